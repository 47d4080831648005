/* reader_pread.c - requests by threads that call pread: works everywhere, and is the reference for
 * io_uring.
 *
 * A request is in one of two lists, both guarded by lock, or with the thread that reads it, which
 * does not hold the lock meanwhile. Threads that find nothing to do sleep. */
#include "tiers/reader_internal.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "tiers/thread.h"

enum { ROOM = 64 };                      /* requests kept ready for threads, however few they are */

typedef struct request_list { read_request *first, *last; } request_list;

typedef struct preader {
    pthread_t threads[READER_MAX_DEPTH];
    int n_thread;                        /* set once, except while threads start */
    pthread_mutex_t lock;
    pthread_cond_t work, ready;          /* something to do, or quit; something done */
    request_list todo, done;             /* guarded by lock */
    bool quit;                           /* guarded by lock */
} preader;

static void list_put(request_list *l, read_request *rq)
{
    rq->next = NULL;
    if (l->first) l->last->next = rq;
    else l->first = rq;
    l->last = rq;
}

static read_request *list_take(request_list *l)
{
    read_request *rq = l->first;
    if (rq) l->first = rq->next;
    return rq;
}

static void *serve(void *self)
{
    preader *p = self;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        read_request *rq = list_take(&p->todo);
        if (!rq) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        const ssize_t n = pread(rq->fd, rq->to, rq->bytes, (off_t)rq->offset);
        rq->result = n < 0 ? -errno : (int)n;
        pthread_mutex_lock(&p->lock);
        list_put(&p->done, rq);
        pthread_cond_signal(&p->ready);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void preader_stop(void *self)
{
    preader *p = self;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_thread; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->ready);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* As many as the system grants; one is enough. */
static int start_threads(preader *p, int n)
{
    int why = 0;
    while (p->n_thread < n && why == 0) {
        why = thread_start(&p->threads[p->n_thread], serve, p);
        if (why == 0) p->n_thread++;
    }
    return why;
}

static int preader_start(void **self, int depth, int *room, err_ctx *err)
{
    preader *p = mem_zalloc(sizeof *p);
    *self = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "reader: %zu bytes", sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->ready, NULL);
    const int why = start_threads(p, depth);
    if (p->n_thread == 0) {
        preader_stop(p);
        errno = why;
        return err_sys(err, "reader: no thread to read with");
    }
    *room = depth > ROOM ? depth : ROOM;
    *self = p;
    return 0;
}

static void preader_keep(void *self, void *base, uint64_t bytes)
{
    (void)self;
    (void)base;
    (void)bytes;
}

static void preader_send(void *self, read_request *rq)
{
    preader *p = self;
    pthread_mutex_lock(&p->lock);
    list_put(&p->todo, rq);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static void preader_flush(void *self) { (void)self; }

static read_request *preader_reap(void *self, bool wait)
{
    preader *p = self;
    read_request *rq;
    pthread_mutex_lock(&p->lock);
    while (!(rq = list_take(&p->done)) && wait) pthread_cond_wait(&p->ready, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return rq;
}

const reader_backend reader_pread = {
    .name = "pread", .depth = READER_THREADS, .built = true, .start = preader_start,
    .stop = preader_stop, .keep = preader_keep, .send = preader_send, .flush = preader_flush,
    .reap = preader_reap,
};
