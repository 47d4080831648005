/* read_ahead.c - prefetching by all threads: thread i reads the tiles that it will compute. */
#include "engine/host/read_ahead.h"

enum { LINE = 64, LOOK = 32 * LINE };    /* LOOK: bytes between two calls of go_on */

/* The count of one thread, in a cache line of its own. */
typedef struct own_count { _Alignas(64) uint64_t bytes; } own_count;

struct read_ahead {
    own_count *own;                      /* [threads] */
    void *storage;
    /* the loop under way */
    const ahead_run *runs;
    int n;
    int64_t n_thread;
    keep_going_fn *go_on;
    void *ctx;
};

int read_ahead_create(read_ahead **out, int n_thread, err_ctx *err)
{
    const size_t bytes = (size_t)n_thread * sizeof(own_count) + 64;
    read_ahead *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (r) r->storage = mem_zalloc(bytes);
    if (!r || !r->storage) {
        mem_free(r);
        return err_set(err, ERR_NOMEM, "reading ahead: %zu bytes", bytes);
    }
    r->own = (own_count *)(((uintptr_t)r->storage + 63) / 64 * 64);
    *out = r;
    return 0;
}

void read_ahead_free(read_ahead *r)
{
    if (!r) return;
    mem_free(r->storage);
    mem_free(r);
}

/* False: stopped. */
static bool read_bytes(const read_ahead *r, own_count *own, const uint8_t *data, uint64_t bytes)
{
    for (uint64_t c = 0; c < bytes; c += LOOK) {
        const uint64_t some = bytes - c < LOOK ? bytes - c : LOOK;
        if (!r->go_on(r->ctx)) return false;
        for (uint64_t i = 0; i < some; i += LINE) __builtin_prefetch(data + c + i, 0, 2);
        own->bytes += some;
    }
    return true;
}

/* Index i: the tiles of thread i. The pool gives each thread its own index. */
static void read_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    read_ahead *r = ctx;
    own_count *own = &r->own[thread];
    for (int64_t i = begin; i < end; i++)
        for (int k = 0; k < r->n; k++) {
            const ahead_run *run = &r->runs[k];
            int64_t first, last;
            pool_own(&first, &last, run->n_tile, run->grain, (int)r->n_thread, (int)i);
            const uint64_t from = (uint64_t)first * run->step, to = (uint64_t)last * run->step;
            const uint64_t stop = to < run->bytes ? to : run->bytes;
            if (from < stop && !read_bytes(r, own, run->data + from, stop - from)) return;
        }
}

uint64_t read_ahead_run(read_ahead *r, pool *team, const ahead_run *runs, int n,
                        keep_going_fn *go_on, void *ctx)
{
    uint64_t all = 0;
    if (n == 0) return 0;
    r->runs = runs;
    r->n = n;
    r->n_thread = pool_threads(team);
    r->go_on = go_on;
    r->ctx = ctx;
    for (int64_t i = 0; i < r->n_thread; i++) r->own[i].bytes = 0;
    pool_run(team, r->n_thread, 1, read_tiles, r);
    for (int64_t i = 0; i < r->n_thread; i++) all += r->own[i].bytes;
    return all;
}
