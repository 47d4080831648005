/* pool.c - the thread team on OpenMP.
 *
 * The one place with an OpenMP pragma. Ranges are handed out from a counter, so a thread that
 * starts late costs its share and no more. The counters double as the synchronisation that the
 * thread sanitizer can see: it does not know libgomp's own. */
#include "tiers/pool.h"

#include <omp.h>
#include <stdatomic.h>

#include "tiers/machine.h"

struct pool {
    int n_thread;                        /* set once */
    pool_fn *fn;                         /* of the loop under way: set before opened is raised */
    void *ctx;
    int64_t n, piece;
    _Atomic int64_t next;                /* first index not handed out */
    _Atomic int opened;                  /* raised by the caller, seen by each thread before fn */
    _Atomic int done;                    /* threads that have finished; the caller waits for all */
};

int pool_create(pool **out, int n_thread, err_ctx *err)
{
    machine m;
    *out = NULL;
    if (n_thread < 0 || n_thread > POOL_MAX_THREADS)
        return err_set(err, ERR_RANGE, "threads: %d is not within 0..%d", n_thread,
                       POOL_MAX_THREADS);
    if (n_thread == 0) {
        const int rc = machine_probe(&m, err);
        if (rc < 0) return rc;
        n_thread = m.n_core < POOL_MAX_THREADS ? m.n_core : POOL_MAX_THREADS;
    }
    pool *p = mem_zalloc(sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "pool: %zu bytes", sizeof *p);
    p->n_thread = n_thread;
    *out = p;
    return 0;
}

void pool_free(pool *p)
{
    mem_free(p);
}

int pool_threads(const pool *p)
{
    return p->n_thread;
}

/* One thread's part. Not inlined: below it everything is seen by the thread sanitizer. */
static __attribute__((noinline)) void work(pool *p, int thread)
{
    (void)atomic_load_explicit(&p->opened, memory_order_acquire);
    for (;;) {
        const int64_t begin = atomic_fetch_add_explicit(&p->next, p->piece, memory_order_relaxed);
        if (begin >= p->n) break;
        const int64_t end = begin + p->piece < p->n ? begin + p->piece : p->n;
        p->fn(p->ctx, begin, end, thread);
    }
    atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
}

/* libgomp hands p over in a way the thread sanitizer cannot follow: hence not instrumented here. */
__attribute__((no_sanitize_thread)) static void fork_join(pool *p)
{
#pragma omp parallel num_threads(p->n_thread)
    work(p, omp_get_thread_num());
}

void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx)
{
    if (n <= 0) return;
    if (p->n_thread == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    /* About four pieces a thread: enough to even out, few enough that the counter is no crowd. */
    const int64_t share = n / ((int64_t)p->n_thread * 4);
    p->piece = share > grain ? share / grain * grain : grain;
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->opened, 1, memory_order_release);
    fork_join(p);
    (void)atomic_load_explicit(&p->done, memory_order_acquire);
}
