/* test_tiers.c - what the machine says about itself, the thread team, and how it reads memory. */
#include "tests/test.h"
#include "tiers/bandwidth.h"
#include "tiers/machine.h"
#include "tiers/pool.h"
#include "tiers/affinity.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *text;
    bool ok;
    uint64_t total, available;
    const char *why;
} infos[] = {
    { "MemTotal:       24676352 kB\nMemFree:  1 kB\nMemAvailable:   23900000 kB\n", true,
      24676352ull * 1024, 23900000ull * 1024, "as Linux writes it" },
    { "MemFree: 5 kB\nMemAvailable: 7 kB\nMemTotal: 9 kB\n", true, 9216, 7168, "other order" },
    { "MemTotal: 9 kB\n", false, 0, 0, "no MemAvailable: an old kernel" },
    { "MemTotalX: 9 kB\nMemAvailable: 7 kB\n", false, 0, 0, "a longer name is another name" },
    { "MemTotal: many kB\nMemAvailable: 7 kB\n", false, 0, 0, "no number" },
    { "MemTotal: 18446744073709551615 kB\nMemAvailable: 7 kB\n", false, 0, 0, "overflow" },
    { "", false, 0, 0, "empty" },
};

/* ---- pool ------------------------------------------------------------------------------------ */

enum { POOL_ITEMS = 1000 };

typedef struct tally {
    int n_thread;
    int64_t n, grain;
    int times[POOL_ITEMS];               /* no atomics: each index belongs to one piece only */
    _Atomic int busy[POOL_MAX_THREADS];  /* calls under way with this thread index */
    _Atomic int wrong;
} tally;

static void count_piece(void *ctx, int64_t begin, int64_t end, int thread)
{
    tally *c = ctx;
    const bool last = end == c->n;
    if (thread < 0 || thread >= c->n_thread || atomic_fetch_add(&c->busy[thread], 1) != 0 ||
        begin < 0 || end > c->n || begin >= end || begin % c->grain != 0 ||
        (!last && (end - begin) % c->grain != 0))
        atomic_fetch_add(&c->wrong, 1);
    for (int64_t i = begin; i < end; i++) c->times[i]++;
    if (thread >= 0 && thread < c->n_thread) atomic_fetch_sub(&c->busy[thread], 1);
}

/* Short loops in quick succession, so that members come late and find the next one: for the thread
 * sanitizer, mainly. */
typedef struct burst {
    bool open;                           /* written by the caller only, outside the loop */
    int n;
    int times[64];
    _Atomic int wrong;
} burst;

static void count_burst(void *ctx, int64_t begin, int64_t end, int thread)
{
    burst *b = ctx;
    (void)thread;
    if (!b->open || end > b->n) atomic_fetch_add(&b->wrong, 1);
    for (int64_t i = begin; i < end; i++) b->times[i]++;
}

static void test_bursts(int n_thread)
{
    static burst two[2];
    int bad = 0;
    err_ctx err;
    pool *p;
    if (!CHECK(pool_create(&p, n_thread, &err) == 0)) return;
    for (int i = 0; i < 4000; i++) {
        burst *b = &two[i % 2];
        memset(b->times, 0, sizeof b->times);
        b->n = 2 + i % 59;
        b->open = true;
        pool_run(p, b->n, 1, count_burst, b);
        b->open = false;
        for (int k = 0; k < 64; k++) bad += b->times[k] != (k < b->n);
    }
    CHECK_MSG(bad == 0 && two[0].wrong + two[1].wrong == 0, "%d threads: %d items, %d pieces wrong",
              n_thread, bad, two[0].wrong + two[1].wrong);
    pool_free(p);
}

static void test_pool(void)
{
    static const int64_t sizes[] = { 0, 1, 2, 7, 31, 32, 33, 999, POOL_ITEMS };
    static const int64_t grains[] = { 1, 3, 32, 5000 };
    static tally c;
    err_ctx err;
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        pool *p = NULL;
        if (!CHECK(pool_create(&p, n_thread, &err) == 0)) return;
        CHECK(pool_threads(p) == n_thread);
        for (size_t i = 0; i < ARRAY_LEN(sizes) * ARRAY_LEN(grains); i++) {
            memset(&c, 0, sizeof c);
            c.n_thread = n_thread;
            c.n = sizes[i / ARRAY_LEN(grains)];
            c.grain = grains[i % ARRAY_LEN(grains)];
            pool_run(p, c.n, c.grain, count_piece, &c);
            int bad = 0;
            for (int k = 0; k < POOL_ITEMS; k++) bad += c.times[k] != (k < c.n);
            CHECK_MSG(bad == 0 && c.wrong == 0,
                      "%d threads, %d items by %d: %d not done once, %d odd pieces", n_thread,
                      (int)c.n, (int)c.grain, bad, c.wrong);
        }
        pool_free(p);
    }
    for (int n_thread = 2; n_thread <= 4; n_thread++) test_bursts(n_thread);
    test_bursts(64);
    pool *p = NULL;
    CHECK(pool_create(&p, 0, &err) == 0 && pool_threads(p) >= 1);
    pool_free(p);
    /* on any machine */
    if (CHECK(pool_create(&p, 64, &err) == 0)) CHECK(pool_threads(p) == 64);
    pool_free(p);
    CHECK(pool_create(&p, -1, &err) == ERR_RANGE && !p);
    CHECK(pool_create(&p, POOL_MAX_THREADS + 1, &err) == ERR_RANGE && !p);
    mem_fail_after(1);
    CHECK(pool_create(&p, 2, &err) == ERR_NOMEM && !p);
    mem_fail_after(0);
    pool_free(NULL);
}

/* Ctrl-C is for the thread that waits for a person; an unreadable page is for the thread
 * that reads it. */
typedef struct masks { _Atomic int seen, wrong; } masks;

static void look_at_mask(void *ctx, int64_t begin, int64_t end, int thread)
{
    masks *m = ctx;
    sigset_t set;
    (void)begin, (void)end;
    if (thread == 0) {
        usleep(1000);                    /* so that the others get some */
        return;
    }
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    atomic_fetch_add(&m->seen, 1);
    if (!sigismember(&set, SIGINT) || !sigismember(&set, SIGTERM) || sigismember(&set, SIGBUS))
        atomic_fetch_add(&m->wrong, 1);
}

static void test_signals(void)
{
    masks m = { 0 };
    sigset_t set;
    pool *p;
    if (!CHECK(pool_create(&p, 3, NULL) == 0)) return;
    for (int i = 0; i < 100000 && atomic_load(&m.seen) < 3; i++)
        pool_run(p, 9, 1, look_at_mask, &m);
    pool_free(p);
    CHECK_MSG(m.seen >= 3 && m.wrong == 0, "%d looks, %d wrong", m.seen, m.wrong);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && !sigismember(&set, SIGINT));
}

/* ---- affinity -------------------------------------------------------------------------------- */

typedef struct member { affinity *s; _Atomic int tid, leave; } member;

static void *sit(void *arg)
{
    member *m = arg;
    affinity_pin(m->s, 1);
    atomic_store(&m->tid, (int)gettid());
    while (!atomic_load(&m->leave)) usleep(1000);
    return NULL;
}

static bool allowed(int tid, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(tid, sizeof set, &set) == 0 && CPU_ISSET(cpu, &set);
}

static void go_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

/* The caller moves from core to core; the member must never be on the same core. */
static void test_affinity(void)
{
    int core_of[CPU_SETSIZE], n_cpu, cpus[2] = { -1, -1 };
    const int n_core = machine_cores(core_of, CPU_SETSIZE, &n_cpu);
    cpu_set_t before;
    member m = { 0 };
    pthread_t thread;

    CHECK(affinity_create(&m.s, n_core + 1, NULL) == 0 && !m.s);
    affinity_pin(NULL, 1);
    affinity_make_way(NULL);
    if (n_core < 2) {
        test_skip("affinity: one core");
        return;
    }
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
        if (core_of[cpu] == 0 || core_of[cpu] == 1) cpus[core_of[cpu]] = cpu;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    go_to(cpus[0]);                      /* from there the member's core is the next core */
    sched_setaffinity(0, sizeof before, &before);
    if (!CHECK(affinity_create(&m.s, 2, NULL) == 0 && m.s)) return;
    CHECK(pthread_create(&thread, NULL, sit, &m) == 0);
    while (atomic_load(&m.tid) == 0) usleep(1000);
    for (int i = 0; i < 6; i++) {
        const int here = cpus[i % 2];
        go_to(here);
        affinity_make_way(m.s);
        CHECK_MSG(!allowed(m.tid, here), "move %d: both on CPU %d", i, here);
    }
    sched_setaffinity(0, sizeof before, &before);
    atomic_store(&m.leave, 1);
    pthread_join(thread, NULL);
    affinity_free(m.s);
    mem_fail_after(1);
    CHECK(affinity_create(&m.s, 2, NULL) == ERR_NOMEM && !m.s);
    mem_fail_after(0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool stop_later(void *ctx)
{
    return --*(int *)ctx > 0;
}

static bool is_sane(const bandwidth_way *w)
{
    int below = 0, above = 0;
    for (int i = 0; i < BANDWIDTH_RUNS; i++) {
        below += w->runs[i] < w->gb_s;
        above += w->runs[i] > w->gb_s;
        if (!(w->runs[i] > 0 && w->runs[i] < 1e5)) return false;
    }
    return below <= BANDWIDTH_RUNS / 2 && above <= BANDWIDTH_RUNS / 2;
}

static void test_bandwidth(void)
{
    enum { BYTES = 5 << 20 };            /* no multiple of a huge page */
    bandwidth b;
    err_ctx err;
    for (int n_thread = 1; n_thread <= 3; n_thread++) {
        pool *p;
        if (!CHECK(pool_create(&p, n_thread, &err) == 0)) return;
        for (page_kind kind = PAGES_SMALL; kind <= PAGES_HUGE; kind++) {
            const int rc = bandwidth_measure(&b, p, kind, BYTES, 0.002, NULL, NULL, &err);
            if (!CHECK_MSG(rc == 0, "%d threads: %s", n_thread, err.msg)) continue;
            CHECK_MSG(is_sane(&b.plain) && is_sane(&b.ahead), "%d threads: plain %g, ahead %g",
                      n_thread, b.plain.gb_s, b.ahead.gb_s);
            CHECK(b.plain.level == 0 && b.ahead.level >= 1 && b.ahead.ahead_bytes >= 1024);
            CHECK(b.gb_s == (b.plain.gb_s > b.ahead.gb_s ? b.plain.gb_s : b.ahead.gb_s));
        }
        for (int n = 1; n < 25; n += 8) {                /* while choosing and while measuring */
            int left = n;
            CHECK(bandwidth_measure(&b, p, PAGES_SMALL, BYTES, 0.001, stop_later, &left, &err) ==
                  ERR_STOPPED && left == 0);
        }
        CHECK(bandwidth_measure(&b, p, PAGES_SMALL, ((size_t)n_thread << 18) - 1, 0.001, NULL, NULL,
                                &err) == ERR_RANGE);
        CHECK(bandwidth_measure(&b, p, PAGES_HUGE, (size_t)1 << 62, 0.001, NULL, NULL, &err) ==
              ERR_NOMEM);
        CHECK(bandwidth_measure(&b, p, PAGES_HUGE, SIZE_MAX, 0.001, NULL, NULL, &err) == ERR_NOMEM);
        mem_fail_after(1);
        CHECK(bandwidth_measure(&b, p, PAGES_SMALL, BYTES, 0.001, NULL, NULL, &err) == ERR_NOMEM);
        mem_fail_after(0);
        pool_free(p);
    }
}

static void test_bandwidth_bytes(void)
{
    static topology t;                   /* all zero: nothing is known */
    const uint64_t mib = 1 << 20;
    size_t n = 0;
    err_ctx err;
    CHECK(bandwidth_bytes(&n, &t, 9000 * mib, &err) == 0 && n == 512 * mib);
    CHECK(bandwidth_bytes(&n, &t, 100 * mib, &err) == 0 && n == 50 * mib);
    CHECK(bandwidth_bytes(&n, &t, 31 * mib, &err) == ERR_RANGE);
    t.n_cache = 2;
    t.caches[0] = (topology_cache){ .level = 2, .bytes = 500 * mib, .n_core = 1, .n = 9 };
    t.caches[1] = (topology_cache){ .level = 3, .bytes = 100 * mib, .n_core = 8, .n = 2 };
    CHECK(bandwidth_bytes(&n, &t, 9000 * mib, &err) == 0 && n == 1600 * mib);
    CHECK(bandwidth_bytes(&n, &t, 1000 * mib, &err) == 0 && n == 500 * mib);
    CHECK(bandwidth_bytes(&n, &t, 799 * mib, &err) == ERR_RANGE);
}

static void test_pages(void)
{
    static const size_t sizes[] = { 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5 };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (page_kind kind = PAGES_SMALL; kind <= PAGES_HUGE; kind++) {
            void *at = NULL;
            err_ctx err;
            if (!CHECK(pages_map(&at, sizes[i], kind, &err) == 0)) continue;
            const uint8_t *p = at;
            CHECK((uintptr_t)at % HUGE_PAGE == 0 && p[0] == 0 && p[sizes[i] - 1] == 0);
            memset(at, 7, sizes[i]);
            pages_unmap(at, sizes[i]);
        }
    static const size_t bad[] = { 0, SIZE_MAX, SIZE_MAX - HUGE_PAGE + 1, SIZE_MAX - HUGE_PAGE };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        void *at = &at;
        CHECK(pages_map(&at, bad[i], PAGES_SMALL, NULL) == ERR_NOMEM && !at);
    }
    pages_unmap(NULL, 5);
}

int main(int argc, char **argv)
{
    err_ctx err;
    machine m;

    test_begin("tiers", argc, argv);
    test_pool();
    test_signals();
    test_affinity();
    test_pages();
    test_bandwidth();
    test_bandwidth_bytes();
    for (size_t i = 0; i < ARRAY_LEN(infos); i++) {
        uint64_t total = 0, available = 0;
        const int rc = machine_parse_meminfo(&total, &available, infos[i].text, &err);
        CHECK_MSG((rc == 0) == infos[i].ok, "%s: returned %d", infos[i].why, rc);
        CHECK_MSG(rc < 0 || (total == infos[i].total && available == infos[i].available),
                  "%s: %llu, %llu", infos[i].why, (unsigned long long)total,
                  (unsigned long long)available);
    }
    CHECK_MSG(machine_probe(&m, &err) == 0, "%s", err.msg);
    CHECK(m.n_core >= 1 && m.n_core <= m.n_cpu);
    CHECK(m.ram_total > 0 && m.ram_available <= m.ram_total);
    CHECK(m.n_gpu <= gpu_count());
    return test_end();
}
