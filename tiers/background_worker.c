/* background_worker.c - one thread, which sleeps until it is asked to begin.
 *
 * The lock is never held during a step. Whoever sees `working` change under it sees all that the
 * other one wrote. */
#include "tiers/background_worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tiers/thread.h"

struct background_worker {
    background_worker_fn *step;
    void *ctx;
    bool begun;                          /* the owner's: begin without an end */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, over;          /* working, or quit; no longer working */
    bool working, quit;                  /* guarded by lock */
    _Atomic bool stop;                   /* after the step under way */
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
            pthread_cond_wait(&s->asked, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        work(s);
        pthread_mutex_lock(&s->lock);
        s->working = false;
        pthread_cond_signal(&s->over);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int background_worker_create(background_worker **out, background_worker_fn *step, void *ctx,
                             err_ctx *err)
{
    background_worker *s = mem_zalloc(sizeof *s);
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "a thread that goes on: %zu bytes", sizeof *s);
    s->step = step;
    s->ctx = ctx;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->asked, NULL);
    pthread_cond_init(&s->over, NULL);
    const int why = thread_start(&s->thread, serve, s);
    s->has_thread = why == 0;
    if (why != 0) {
        background_worker_free(s);
        errno = why;
        return err_sys(err, "no thread that goes on");
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
        pthread_cond_signal(&s->asked);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->over);
    pthread_cond_destroy(&s->asked);
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
    pthread_cond_signal(&s->asked);
    pthread_mutex_unlock(&s->lock);
}

void background_worker_end(background_worker *s)
{
    if (!s || !s->begun) return;
    s->begun = false;
    atomic_store_explicit(&s->stop, true, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    while (s->working) pthread_cond_wait(&s->over, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
