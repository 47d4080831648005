/* bandwidth.c - measures how fast memory can be read.
 *
 * Each thread reads its own part of the memory round and round, in address order, for a given time;
 * the next measurement goes on where this one stopped, so nothing is ever read from a cache. A
 * measurement ends after a time, not after an amount: all threads read from its beginning to its
 * end, and none waits for the slowest.
 *
 * Prefetching is tried at several distances and into several caches because nothing else finds the
 * best one: on a Neoverse-V1 "into L3, 64 KiB ahead" gives one and a half times what the processor
 * does by itself, and "into L1" at the same distance half of it. */
#include "tiers/bandwidth.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

enum { CACHE_LINE = 64, CHUNK = 256 << 10 };     /* looks at the clock after each chunk */

typedef uint64_t word_pair __attribute__((vector_size(16)));

/* The xor of n bytes, whole lines. level is a constant wherever this is inlined, so it becomes one
 * fixed instruction. A prefetch past the end of the memory does nothing. */
static inline __attribute__((always_inline)) word_pair read_lines(const uint8_t *p, size_t n,
                                                                  size_t ahead, int level)
{
    word_pair a = { 0 }, b = a, c = a, d = a;
    for (const uint8_t *end = p + n; p < end; p += CACHE_LINE) {
        const void *coming = (const void *)((uintptr_t)p + ahead);
        const word_pair *line = (const word_pair *)p;
        if (level == 1) __builtin_prefetch(coming, 0, 3);
        if (level == 2) __builtin_prefetch(coming, 0, 2);
        if (level == 3) __builtin_prefetch(coming, 0, 1);
        a ^= line[0];
        b ^= line[1];
        c ^= line[2];
        d ^= line[3];
    }
    return (a ^ b) ^ (c ^ d);
}

static word_pair read_chunk(const uint8_t *p, size_t ahead, int level)
{
    switch (level) {
    case 0: return read_lines(p, CHUNK, 0, 0);
    case 1: return read_lines(p, CHUNK, ahead, 1);
    case 2: return read_lines(p, CHUNK, ahead, 2);
    default: return read_lines(p, CHUNK, ahead, 3);
    }
}

/* ---- the team -------------------------------------------------------------------------------- */

enum { MEET_NS = 2000000000 };           /* a thread not here in two seconds never comes */

typedef struct part {
    uint8_t *at;
    size_t next;                         /* offset of the chunk to be read next */
    double gb_s;
    volatile uint64_t sum;               /* of what was read, so that no read is optimised away */
} part;

typedef struct reading {
    pool *team;
    part *parts;                         /* one for each thread */
    size_t part_bytes;
    int level;                           /* this measurement's */
    size_t ahead_bytes;
    uint64_t ns;
    _Atomic int n_met;
} reading;

/* Waits until every thread of the team is here, so that each gets one call of the loop and all
 * begin together. False if some do not come: OpenMP may have been told to use fewer. */
static bool meet(reading *r)
{
    const uint64_t give_up = clock_ns() + MEET_NS;
    atomic_fetch_add_explicit(&r->n_met, 1, memory_order_relaxed);
    while (atomic_load_explicit(&r->n_met, memory_order_relaxed) < pool_threads(r->team)) {
        if (clock_ns() > give_up) return false;
        sched_yield();
    }
    return true;
}

static void touch_part(void *ctx, int64_t begin, int64_t end, int thread)
{
    reading *r = ctx;
    (void)begin, (void)end;
    if (meet(r)) memset(r->parts[thread].at, 1, r->part_bytes);
}

static void read_part(void *ctx, int64_t begin, int64_t end, int thread)
{
    reading *r = ctx;
    part *mine = &r->parts[thread];
    word_pair sum = { 0 };
    uint64_t bytes = 0, start, now;
    (void)begin, (void)end;
    if (!meet(r)) return;
    start = clock_ns();
    do {
        sum ^= read_chunk(mine->at + mine->next, r->ahead_bytes, r->level);
        bytes += CHUNK;
        mine->next += CHUNK;
        if (mine->next == r->part_bytes) mine->next = 0;
        now = clock_ns();
    } while (now - start < r->ns);
    mine->sum = sum[0] ^ sum[1];
    mine->gb_s = (double)bytes / (double)(now - start);
}

/* Calls fn once on each thread of the team. */
static int run_team(reading *r, pool_fn *fn, err_ctx *err)
{
    const int n = pool_threads(r->team);
    atomic_store_explicit(&r->n_met, 0, memory_order_relaxed);
    pool_run(r->team, n, 1, fn, r);
    if (atomic_load_explicit(&r->n_met, memory_order_relaxed) == n) return 0;
    return err_set(err, ERR_IO, "not all of %d threads came to read: OMP_THREAD_LIMIT?", n);
}

/* ---- ways of reading ------------------------------------------------------------------------- */

static const struct { int level; size_t ahead_bytes; } candidates[] = {
    { 1, 1 << 10 },  { 1, 4 << 10 },  { 2, 4 << 10 },  { 2, 16 << 10 },
    { 3, 16 << 10 }, { 3, 32 << 10 }, { 3, 64 << 10 },
};

/* One measurement of ns: GB/s of the whole team. */
static int measure_way(double *gb_s, reading *r, const bandwidth_way *way, uint64_t ns,
                       keep_going_fn *watch, void *ctx, err_ctx *err)
{
    int rc;
    if (watch && !watch(ctx)) return err_set(err, ERR_STOPPED, "stopped");
    r->level = way->level;
    r->ahead_bytes = way->ahead_bytes;
    r->ns = ns;
    if ((rc = run_team(r, read_part, err)) < 0) return rc;
    *gb_s = 0;
    for (int t = 0; t < pool_threads(r->team); t++) *gb_s += r->parts[t].gb_s;
    return 0;
}

/* Tries each candidate twice, and keeps the one with the fastest single run: a disturbance only
 * ever makes a measurement slower. */
static int choose_ahead(bandwidth_way *out, reading *r, uint64_t ns, keep_going_fn *watch,
                        void *ctx, err_ctx *err)
{
    double best = -1, gb_s;
    for (size_t i = 0; i < 2 * ARRAY_LEN(candidates); i++) {
        const size_t k = i % ARRAY_LEN(candidates);
        const bandwidth_way way = { .level = candidates[k].level,
                                    .ahead_bytes = candidates[k].ahead_bytes };
        const int rc = measure_way(&gb_s, r, &way, ns, watch, ctx, err);
        if (rc < 0) return rc;
        if (gb_s <= best) continue;
        best = gb_s;
        *out = way;
    }
    return 0;
}

static double median(const double runs[BANDWIDTH_RUNS])
{
    double v[BANDWIDTH_RUNS];
    memcpy(v, runs, sizeof v);
    sort_doubles(v, BANDWIDTH_RUNS);
    return v[BANDWIDTH_RUNS / 2];
}

/* Plain and ahead alternate: whatever else happens on the machine affects both. */
static int measure_both(bandwidth *out, reading *r, double seconds, keep_going_fn *watch,
                        void *ctx, err_ctx *err)
{
    const uint64_t ns = (uint64_t)(seconds * 1e9 / BANDWIDTH_RUNS);
    int rc = choose_ahead(&out->ahead, r, ns / 2, watch, ctx, err);
    for (int i = 0; i < BANDWIDTH_RUNS && rc == 0; i++) {
        rc = measure_way(&out->plain.runs[i], r, &out->plain, ns, watch, ctx, err);
        if (rc == 0) rc = measure_way(&out->ahead.runs[i], r, &out->ahead, ns, watch, ctx, err);
    }
    if (rc < 0) return rc;
    out->plain.gb_s = median(out->plain.runs);
    out->ahead.gb_s = median(out->ahead.runs);
    out->gb_s = out->plain.gb_s > out->ahead.gb_s ? out->plain.gb_s : out->ahead.gb_s;
    return 0;
}

/* ---- all together ---------------------------------------------------------------------------- */

int bandwidth_measure(bandwidth *out, pool *team, page_kind pages, size_t bytes, double seconds,
                      keep_going_fn *watch, void *ctx, err_ctx *err)
{
    const size_t n = (size_t)pool_threads(team);
    reading r = { .team = team, .part_bytes = bytes / n / CHUNK * CHUNK };
    void *memory = NULL;
    int rc;

    *out = (bandwidth){ 0 };
    if (r.part_bytes == 0)
        return err_set(err, ERR_RANGE, "%zu bytes are too few to share among %zu threads", bytes,
                       n);
    if (!(r.parts = mem_array(n, sizeof *r.parts)))
        return err_set(err, ERR_NOMEM, "out of memory for %zu threads", n);
    if ((rc = pages_map(&memory, bytes, pages, err)) == 0) {
        for (size_t t = 0; t < n; t++)
            r.parts[t] = (part){ .at = (uint8_t *)memory + t * r.part_bytes };
        rc = run_team(&r, touch_part, err);
    }
    if (rc == 0) rc = measure_both(out, &r, seconds, watch, ctx, err);
    pages_unmap(memory, bytes);
    mem_free(r.parts);
    return rc;
}

int bandwidth_bytes(size_t *out, const topology *t, uint64_t room, err_ctx *err)
{
    const uint64_t caches = topology_last_cache_bytes(t), least = (uint64_t)512 << 20;
    const uint64_t wanted = 8 * caches > least ? 8 * caches : least;
    *out = (size_t)(wanted < room / 2 ? wanted : room / 2);
    if (*out >= 2 * caches && *out >= (size_t)16 << 20) return 0;
    return err_set(err, ERR_RANGE, "%llu bytes are available: too few to measure it beside caches "
                   "of %llu", (unsigned long long)room, (unsigned long long)caches);
}
