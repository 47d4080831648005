/* read_ahead.c - prefetching by all threads, piece by piece, and which thread has what.
 *
 * States of pieces are relaxed atomics: they decide who computes a piece, never what comes out. A
 * piece is computed by whoever exchanges its state for CLAIMED first. */
#include "engine/host/read_ahead.h"

#include <stdatomic.h>

enum { LINE = 64, LOOK = 32 * LINE };    /* LOOK: bytes between two questions whether to go on */
enum { UNREAD = -1, CLAIMED = -2 };      /* instead of a thread */

/* A count of one thread's, in a cache line of its own. */
typedef struct own_count { _Alignas(64) _Atomic int pieces; } own_count;

typedef struct ahead_expert {
    int expert;
    const uint8_t *at[AHEAD_RUNS];
} ahead_expert;

struct read_ahead {
    int layer;                           /* that it is about; -1: none */
    ahead_shape shape;
    int most_piece;                      /* set once */
    int n;
    ahead_expert experts[AHEAD_EXPERTS]; /* the likeliest first */
    int n_read;                          /* pieces to read; after a run, that were begun */
    keep_going_fn *go_on;
    void *ctx;
    _Atomic int next;                    /* piece that nobody reads yet */
    _Atomic int16_t *state;              /* [n, n_piece]: the thread that has it, or neither */
    own_count *own;                      /* [threads]: pieces read and not yet looked for */
    void *storage;
};

/* ---- life ------------------------------------------------------------------------------------ */

static void place_all(read_ahead *r, mem_layout *a, int most_piece, int n_thread)
{
    r->own = mem_layout_take(a, (uint64_t)n_thread, 1, sizeof *r->own);
    r->state = mem_layout_take(a, AHEAD_EXPERTS, (uint64_t)most_piece, sizeof *r->state);
}

uint64_t read_ahead_bytes(int most_piece, int n_thread)
{
    read_ahead unused = { .n = 0 };
    mem_layout a = mem_layout_count(64);
    place_all(&unused, &a, most_piece, n_thread);
    return sizeof unused + a.used + 64;
}

int read_ahead_create(read_ahead **out, int most_piece, int n_thread, err_ctx *err)
{
    const uint64_t bytes = read_ahead_bytes(most_piece, n_thread);
    read_ahead *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (r) r->storage = mem_zalloc((size_t)bytes);
    if (!r || !r->storage) {
        mem_free(r);
        return err_set(err, ERR_NOMEM, "reading ahead: %llu bytes", (unsigned long long)bytes);
    }
    mem_layout a = mem_layout_over((void *)(((uintptr_t)r->storage + 63) / 64 * 64), 64);
    place_all(r, &a, most_piece, n_thread);
    r->most_piece = most_piece;
    r->layer = -1;
    *out = r;
    return 0;
}

void read_ahead_free(read_ahead *r)
{
    if (!r) return;
    mem_free(r->storage);
    mem_free(r);
}

/* ---- reading --------------------------------------------------------------------------------- */

void read_ahead_begin(read_ahead *r, int layer, const ahead_shape *shape)
{
    r->layer = shape->n_piece <= r->most_piece ? layer : -1;
    r->shape = *shape;
    r->n = r->n_read = 0;
}

void read_ahead_add(read_ahead *r, int expert, const uint8_t *const at[AHEAD_RUNS])
{
    if (r->n == AHEAD_EXPERTS || r->layer < 0) return;
    ahead_expert *e = &r->experts[r->n++];
    e->expert = expert;
    for (int i = 0; i < AHEAD_RUNS; i++) e->at[i] = at[i];
}

static void read_piece(const read_ahead *r, int number, int piece)
{
    for (int i = 0; i < AHEAD_RUNS; i++) {
        const uint64_t step = r->shape.step[i], from = (uint64_t)piece * step;
        const uint64_t left = r->shape.bytes[i] - from, bytes = left < step ? left : step;
        const uint8_t *at = r->experts[number].at[i] + from;
        for (uint64_t c = 0; c < bytes; c += LINE) {
            if (c % LOOK == 0 && !r->go_on(r->ctx)) return;
            __builtin_prefetch(at + c, 0, 2);
        }
    }
}

static void read_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    read_ahead *r = ctx;
    const int n_piece = r->shape.n_piece;
    int n = 0;
    (void)begin, (void)end;
    while (r->go_on(r->ctx)) {
        const int i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (i >= r->n_read) break;
        atomic_store_explicit(&r->state[i], (int16_t)thread, memory_order_relaxed);
        read_piece(r, i / n_piece, i % n_piece);
        n++;
    }
    atomic_fetch_add_explicit(&r->own[thread].pieces, n, memory_order_relaxed);
}

uint64_t read_ahead_run(read_ahead *r, pool *team, uint64_t most_bytes, keep_going_fn *go_on,
                        void *ctx)
{
    const int all = r->n * r->shape.n_piece;
    uint64_t each = 0;                   /* bytes of a piece */
    for (int i = 0; i < AHEAD_RUNS; i++) each += r->shape.step[i];
    if (all == 0 || each == 0) return 0;
    for (int i = 0; i < all; i++)
        atomic_store_explicit(&r->state[i], UNREAD, memory_order_relaxed);
    for (int i = 0; i < pool_threads(team); i++)
        atomic_store_explicit(&r->own[i].pieces, 0, memory_order_relaxed);
    atomic_store_explicit(&r->next, 0, memory_order_relaxed);
    r->n_read = most_bytes / each < (uint64_t)all ? (int)(most_bytes / each) : all;
    r->go_on = go_on;
    r->ctx = ctx;
    pool_run(team, pool_threads(team), 1, read_pieces, r);
    r->n_read = min_int(r->n_read, atomic_load_explicit(&r->next, memory_order_relaxed));
    return (uint64_t)r->n_read * each;
}

/* ---- computing ------------------------------------------------------------------------------- */

void read_ahead_forget(read_ahead *r) { r->layer = -1; }
int read_ahead_pieces(const read_ahead *r) { return r->shape.n_piece; }

int read_ahead_find(const read_ahead *r, int layer, int expert)
{
    if (r->layer != layer || r->n_read == 0) return -1;
    for (int i = 0; i < r->n; i++)
        if (r->experts[i].expert == expert) return i;
    return -1;
}

static bool claim(read_ahead *r, int i)
{
    /* looked at first: most have been claimed, and a look leaves the line with the others, too */
    return atomic_load_explicit(&r->state[i], memory_order_relaxed) != CLAIMED &&
           atomic_exchange_explicit(&r->state[i], CLAIMED, memory_order_relaxed) != CLAIMED;
}

bool read_ahead_claim(read_ahead *r, int number, int piece)
{
    return claim(r, number * r->shape.n_piece + piece);
}

int read_ahead_claim_own(read_ahead *r, int from, int thread)
{
    if (atomic_load_explicit(&r->own[thread].pieces, memory_order_relaxed) == 0) return -1;
    for (int i = from; i < r->n_read; i++)
        if (atomic_load_explicit(&r->state[i], memory_order_relaxed) == thread && claim(r, i))
            return i;
    atomic_store_explicit(&r->own[thread].pieces, 0, memory_order_relaxed);
    return -1;
}
