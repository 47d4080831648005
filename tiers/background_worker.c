/* background_worker.c - one thread, which sleeps until background_worker_begin.
 *
 * The lock is never held during a step. `working` changes under the lock, which orders the writes
 * of owner and worker. */
#include "tiers/background_worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tiers/thread.h"

struct background_worker {
    background_worker_fn *step;
    void *ctx;
    bool begun;                          /* between begin and end; owner only */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;           /* working or quit was set; working was cleared */
    bool working, quit;                  /* guarded by lock */
    _Atomic bool stop;                   /* return after the current step */
};

static void work(background_worker *s)
{
    while (!atomic_load_explicit(&s->stop, memory_order_relaxed))
        if (!s->step(s->ctx)) return;
}

static void *serve(void *self)
{
    background_worker *s = self;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (!s->working) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        work(s);
        pthread_mutex_lock(&s->lock);
        s->working = false;
        pthread_cond_signal(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int background_worker_create(background_worker **out, background_worker_fn *step, void *ctx,
                             err_ctx *err)
{
    background_worker *s = mem_zalloc(sizeof *s);
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "background thread: %zu bytes", sizeof *s);
    s->step = step;
    s->ctx = ctx;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->idle, NULL);
    const int code = thread_start(&s->thread, serve, s);
    s->has_thread = code == 0;
    if (code != 0) {
        background_worker_free(s);
        errno = code;
        return err_sys(err, "cannot start a background thread");
    }
    *out = s;
    return 0;
}

void background_worker_free(background_worker *s)
{
    if (!s) return;
    background_worker_end(s);
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

void background_worker_begin(background_worker *s)
{
    if (s->begun) return;
    s->begun = true;
    atomic_store_explicit(&s->stop, false, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    s->working = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void background_worker_end(background_worker *s)
{
    if (!s || !s->begun) return;
    s->begun = false;
    atomic_store_explicit(&s->stop, true, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    while (s->working) pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
