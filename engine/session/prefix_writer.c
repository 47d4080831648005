/* prefix_writer.c - a queue of one file, and the background thread that writes it. */
#include "engine/session/prefix_writer.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiers/thread.h"

struct prefix_writer {
    const char *folder;                  /* borrowed */
    pthread_t thread;
    pthread_mutex_t lock;                /* guards the fields below */
    pthread_cond_t changed;
    enum { EMPTY, FULL, WRITTEN, CLOSED } queue;
    prefix_file file;
    int32_t *ids;
    const uint8_t *body;
    int rc;
    err_ctx err;
};

/* The threads that compute have priority. */
static void lower_priority(void)
{
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
}

static void *write_files(void *ctx)
{
    prefix_writer *w = ctx;
    lower_priority();
    pthread_mutex_lock(&w->lock);
    while (w->queue != CLOSED) {
        if (w->queue != FULL) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        w->err = (err_ctx){ 0 };
        w->rc = prefix_file_write(&w->file, w->folder, w->ids, w->body, &w->err);
        mem_free(w->ids);
        pthread_mutex_lock(&w->lock);
        w->queue = WRITTEN;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

prefix_writer *prefix_writer_create(const char *folder)
{
    prefix_writer *w = mem_zalloc(sizeof *w);
    if (!w) return NULL;
    w->folder = folder;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (thread_start(&w->thread, write_files, w) == 0) return w;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
    return NULL;
}

void prefix_writer_free(prefix_writer *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    while (w->queue == FULL) pthread_cond_wait(&w->changed, &w->lock);
    w->queue = CLOSED;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

void prefix_writer_begin(prefix_writer *w, const prefix_file *f, int32_t *ids, const uint8_t *body)
{
    pthread_mutex_lock(&w->lock);
    w->file = *f;
    w->ids = ids;
    w->body = body;
    w->queue = FULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool prefix_writer_ended(prefix_writer *w, bool wait, prefix_file *f, int *rc, err_ctx *err)
{
    pthread_mutex_lock(&w->lock);
    while (wait && w->queue == FULL) pthread_cond_wait(&w->changed, &w->lock);
    const bool ended = w->queue == WRITTEN;
    if (ended) {
        *f = w->file;
        *rc = w->rc;
        if (err) *err = w->err;
        w->queue = EMPTY;
    }
    pthread_mutex_unlock(&w->lock);
    return ended;
}
