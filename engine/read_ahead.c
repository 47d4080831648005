/* read_ahead.c - prefetching by all threads, piece by piece, and who has what. */
#include "engine/read_ahead.h"

enum { LINE = 64, LOOK = 32 * LINE };    /* LOOK: bytes between two looks at the word */
enum { UNREAD = -1, CLAIMED = -2 };      /* instead of a thread */

uint64_t read_ahead_state_bytes(int most_piece)
{
    return (uint64_t)AHEAD_EXPERTS * (uint64_t)most_piece * sizeof(_Atomic int16_t);
}

uint64_t read_ahead_own_bytes(int n_thread) { return (uint64_t)n_thread * sizeof(ahead_count); }

/* ---- reading --------------------------------------------------------------------------------- */

static bool time_is_over(const read_ahead *r)
{
    return __atomic_load_n(r->word, __ATOMIC_RELAXED) == r->stop;
}

static void read_piece(const read_ahead *r, int number, int piece)
{
    for (int i = 0; i < AHEAD_RUNS; i++) {
        const uint64_t from = (uint64_t)piece * r->step[i], left = r->bytes[i] - from;
        const uint64_t bytes = left < r->step[i] ? left : r->step[i];
        const uint8_t *at = r->experts[number].at[i] + from;
        for (uint64_t c = 0; c < bytes; c += LINE) {
            if (c % LOOK == 0 && time_is_over(r)) return;
            __builtin_prefetch(at + c, 0, 2);
        }
    }
}

static void read_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    read_ahead *r = ctx;
    int n = 0;
    (void)begin, (void)end;
    while (!time_is_over(r)) {
        const int i = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (i >= r->most) break;
        atomic_store_explicit(&r->state[i], (int16_t)thread, memory_order_relaxed);
        read_piece(r, i / r->n_piece, i % r->n_piece);
        n++;
    }
    atomic_fetch_add_explicit(&r->own[thread].pieces, n, memory_order_relaxed);
}

void read_ahead_run(read_ahead *r, pool *team)
{
    const int all = r->n * r->n_piece;
    for (int i = 0; i < all; i++)
        atomic_store_explicit(&r->state[i], UNREAD, memory_order_relaxed);
    for (int i = 0; i < pool_threads(team); i++)
        atomic_store_explicit(&r->own[i].pieces, 0, memory_order_relaxed);
    atomic_store_explicit(&r->next, 0, memory_order_relaxed);
    if (r->most > all) r->most = all;
    pool_run(team, pool_threads(team), 1, read_pieces, r);
    const int begun = atomic_load_explicit(&r->next, memory_order_relaxed);
    if (begun < r->most) r->most = begun;
}

/* ---- computing ------------------------------------------------------------------------------- */

int read_ahead_find(const read_ahead *r, int layer, int expert)
{
    if (r->layer != layer) return -1;
    for (int i = 0; i < r->n; i++)
        if (r->experts[i].expert == expert) return i;
    return -1;
}

static bool claim(read_ahead *r, int i)
{
    return atomic_exchange_explicit(&r->state[i], CLAIMED, memory_order_relaxed) != CLAIMED;
}

bool read_ahead_claim(read_ahead *r, int number, int piece)
{
    return claim(r, number * r->n_piece + piece);
}

int read_ahead_claim_own(read_ahead *r, int from, int thread)
{
    if (atomic_load_explicit(&r->own[thread].pieces, memory_order_relaxed) == 0) return -1;
    for (int i = from; i < r->most; i++)
        if (atomic_load_explicit(&r->state[i], memory_order_relaxed) == thread && claim(r, i))
            return i;
    atomic_store_explicit(&r->own[thread].pieces, 0, memory_order_relaxed);
    return -1;
}
