/* bandwidth.c - measures how fast memory is read.
 *
 * Each thread reads its own range of the memory in address order, again and again, for a given
 * time. The next measurement continues where this one stopped, so nothing is read from a cache. A
 * measurement ends after a time, not after an amount: no thread waits for the slowest.
 *
 * Prefetching is tried at several distances and into several caches. On a Neoverse-V1 "into L3,
 * 64 KiB ahead" reads 1.5 times as fast as without prefetches, "into L1" at that distance half as
 * fast. */
#include "tiers/bandwidth.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

enum { CACHE_LINE = 64, CHUNK = 256 << 10 };     /* bytes between looks at the clock */

typedef uint64_t word_pair __attribute__((vector_size(16)));

/* The xor of n bytes, whole lines. level is a constant wherever this is inlined, so it becomes one
 * fixed instruction. A prefetch past the end of the memory does nothing. */
static inline __attribute__((always_inline)) word_pair read_lines(const uint8_t *p, size_t n,
                                                                  size_t ahead, int level)
{
    word_pair a = { 0 }, b = a, c = a, d = a;
    for (const uint8_t *end = p + n; p < end; p += CACHE_LINE) {
        const void *next = (const void *)((uintptr_t)p + ahead);
        const word_pair *line = (const word_pair *)p;
        if (level == 1) __builtin_prefetch(next, 0, 3);
        if (level == 2) __builtin_prefetch(next, 0, 2);
        if (level == 3) __builtin_prefetch(next, 0, 1);
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

enum { RUNS = 5, BARRIER_NS = 2000000000 };      /* a thread that is later than this never comes */

typedef struct thread_range {
    uint8_t *data;
    size_t next;                         /* offset of the next chunk */
    double gb_s;
    volatile uint64_t sum;               /* of all words, so that no read is optimised away */
} thread_range;

typedef struct reading {
    pool *team;
    thread_range *ranges;                /* one for each thread */
    size_t range_bytes;
    int level;                           /* this measurement's */
    size_t ahead_bytes;
    uint64_t ns;
    _Atomic int n_arrived;
} reading;

/* A barrier: each thread gets one call of the loop, and all begin together. False if some threads
 * do not arrive, because OpenMP is limited to fewer. */
static bool wait_for_team(reading *r)
{
    const uint64_t give_up = clock_ns() + BARRIER_NS;
    atomic_fetch_add_explicit(&r->n_arrived, 1, memory_order_relaxed);
    while (atomic_load_explicit(&r->n_arrived, memory_order_relaxed) < pool_threads(r->team)) {
        if (clock_ns() > give_up) return false;
        sched_yield();
    }
    return true;
}

static void touch_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    reading *r = ctx;
    (void)begin, (void)end;
    if (wait_for_team(r)) memset(r->ranges[thread].data, 1, r->range_bytes);
}

static void read_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    reading *r = ctx;
    thread_range *range = &r->ranges[thread];
    word_pair sum = { 0 };
    uint64_t bytes = 0, start, now;
    (void)begin, (void)end;
    if (!wait_for_team(r)) return;
    start = clock_ns();
    do {
        sum ^= read_chunk(range->data + range->next, r->ahead_bytes, r->level);
        bytes += CHUNK;
        range->next += CHUNK;
        if (range->next == r->range_bytes) range->next = 0;
        now = clock_ns();
    } while (now - start < r->ns);
    range->sum = sum[0] ^ sum[1];
    range->gb_s = (double)bytes / (double)(now - start);
}

/* Calls fn once on each thread of the team. */
static int run_team(reading *r, pool_fn *fn, err_ctx *err)
{
    const int n = pool_threads(r->team);
    atomic_store_explicit(&r->n_arrived, 0, memory_order_relaxed);
    pool_run(r->team, n, 1, fn, r);
    if (atomic_load_explicit(&r->n_arrived, memory_order_relaxed) == n) return 0;
    return err_set(err, ERR_IO, "not all of %d threads run: OMP_THREAD_LIMIT?", n);
}

/* ---- methods --------------------------------------------------------------------------------- */

static const struct { int level; size_t ahead_bytes; } candidates[] = {
    { 1, 1 << 10 },  { 1, 4 << 10 },  { 2, 4 << 10 },  { 2, 16 << 10 },
    { 3, 16 << 10 }, { 3, 32 << 10 }, { 3, 64 << 10 },
};

/* One measurement of ns: GB/s of the whole team. */
static int measure_method(double *gb_s, reading *r, const bandwidth_method *method, uint64_t ns,
                       keep_going_fn *watch, void *ctx, err_ctx *err)
{
    int rc;
    if (watch && !watch(ctx)) return err_set(err, ERR_STOPPED, "stopped");
    r->level = method->level;
    r->ahead_bytes = method->ahead_bytes;
    r->ns = ns;
    if ((rc = run_team(r, read_range, err)) < 0) return rc;
    *gb_s = 0;
    for (int t = 0; t < pool_threads(r->team); t++) *gb_s += r->ranges[t].gb_s;
    return 0;
}

/* Tries each candidate twice, and keeps the one with the fastest single run: a disturbance only
 * ever makes a measurement slower. */
static int choose_ahead(bandwidth_method *out, reading *r, uint64_t ns, keep_going_fn *watch,
                        void *ctx, err_ctx *err)
{
    double best = -1, gb_s;
    for (size_t i = 0; i < 2 * ARRAY_LEN(candidates); i++) {
        const size_t k = i % ARRAY_LEN(candidates);
        const bandwidth_method method = { .level = candidates[k].level,
                                    .ahead_bytes = candidates[k].ahead_bytes };
        const int rc = measure_method(&gb_s, r, &method, ns, watch, ctx, err);
        if (rc < 0) return rc;
        if (gb_s <= best) continue;
        best = gb_s;
        *out = method;
    }
    return 0;
}

/* Runs of both alternate, so that another load of the machine slows both. */
static int measure_both(bandwidth *out, reading *r, double seconds, keep_going_fn *watch,
                        void *ctx, err_ctx *err)
{
    const uint64_t ns = (uint64_t)(seconds * 1e9 / RUNS);
    int rc = choose_ahead(&out->ahead, r, ns / 2, watch, ctx, err);
    double plain[RUNS], ahead[RUNS];
    for (int i = 0; i < RUNS && rc == 0; i++) {
        rc = measure_method(&plain[i], r, &out->plain, ns, watch, ctx, err);
        if (rc == 0) rc = measure_method(&ahead[i], r, &out->ahead, ns, watch, ctx, err);
    }
    if (rc < 0) return rc;
    sort_doubles(plain, RUNS);
    sort_doubles(ahead, RUNS);
    out->plain.gb_s = plain[RUNS / 2];
    out->ahead.gb_s = ahead[RUNS / 2];
    out->gb_s = out->plain.gb_s > out->ahead.gb_s ? out->plain.gb_s : out->ahead.gb_s;
    return 0;
}

/* ---- the measurement ------------------------------------------------------------------------- */

int bandwidth_measure(bandwidth *out, pool *team, size_t bytes, double seconds,
                      keep_going_fn *watch, void *ctx, err_ctx *err)
{
    const size_t n = (size_t)pool_threads(team);
    reading r = { .team = team, .range_bytes = bytes / n / CHUNK * CHUNK };
    void *memory = NULL;
    int rc;

    *out = (bandwidth){ 0 };
    if (r.range_bytes == 0)
        return err_set(err, ERR_RANGE, "%zu bytes are too few for %zu threads", bytes, n);
    if (!(r.ranges = mem_array(n, sizeof *r.ranges)))
        return err_set(err, ERR_NOMEM, "out of memory for %zu threads", n);
    if ((rc = pages_map(&memory, bytes, PAGES_HUGE, err)) == 0) {
        for (size_t t = 0; t < n; t++)
            r.ranges[t] = (thread_range){ .data = (uint8_t *)memory + t * r.range_bytes };
        rc = run_team(&r, touch_range, err);
    }
    if (rc == 0) rc = measure_both(out, &r, seconds, watch, ctx, err);
    pages_unmap(memory, bytes);
    mem_free(r.ranges);
    return rc;
}

int bandwidth_bytes(size_t *out, const topology *t, uint64_t ram_bytes, err_ctx *err)
{
    const uint64_t caches = topology_last_cache_bytes(t), least = (uint64_t)512 << 20;
    const uint64_t wanted = 8 * caches > least ? 8 * caches : least;
    *out = (size_t)(wanted < ram_bytes / 2 ? wanted : ram_bytes / 2);
    if (*out >= 2 * caches && *out >= (size_t)16 << 20) return 0;
    return err_set(err, ERR_RANGE, "%llu bytes are available: too few to measure memory with "
                   "caches of %llu", (unsigned long long)ram_bytes, (unsigned long long)caches);
}
