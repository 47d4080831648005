/* test_tiers.c - what the machine says about itself, where threads run, how memory is read. */
#include "tests/test.h"
#include "tiers/affinity.h"
#include "tiers/bandwidth.h"
#include "tiers/machine.h"
#include "tiers/pool.h"

#include <pthread.h>
#include <sched.h>
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
    affinity_yield_core(NULL);
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
        affinity_yield_core(m.s);
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

static bool stop_later(void *ctx) { return --*(int *)ctx > 0; }

static bool is_sane(const bandwidth_method *m) { return m->gb_s > 0 && m->gb_s < 1e5; }

static void test_bandwidth(void)
{
    enum { BYTES = 5 << 20 };            /* no multiple of a huge page */
    bandwidth b;
    err_ctx err;
    for (int n_thread = 1; n_thread <= 3; n_thread++) {
        pool *p;
        if (!CHECK(pool_create(&p, n_thread, &err) == 0)) return;
        const int rc = bandwidth_measure(&b, p, BYTES, 0.002, NULL, NULL, &err);
        CHECK_MSG(rc == 0 && is_sane(&b.plain) && is_sane(&b.ahead),
                  "%d threads: plain %g, ahead %g: %s", n_thread, b.plain.gb_s, b.ahead.gb_s,
                  err.msg);
        CHECK(b.plain.level == 0 && b.ahead.level >= 1 && b.ahead.ahead_bytes >= 1024);
        CHECK(b.gb_s == (b.plain.gb_s > b.ahead.gb_s ? b.plain.gb_s : b.ahead.gb_s));
        for (int n = 1; n < 25; n += 8) {                /* while choosing and while measuring */
            int left = n;
            CHECK(bandwidth_measure(&b, p, BYTES, 0.001, stop_later, &left, &err) ==
                  ERR_STOPPED && left == 0);
        }
        CHECK(bandwidth_measure(&b, p, ((size_t)n_thread << 18) - 1, 0.001, NULL, NULL,
                                &err) == ERR_RANGE);
        CHECK(bandwidth_measure(&b, p, (size_t)1 << 62, 0.001, NULL, NULL, &err) ==
              ERR_NOMEM);
        CHECK(bandwidth_measure(&b, p, SIZE_MAX, 0.001, NULL, NULL, &err) == ERR_NOMEM);
        mem_fail_after(1);
        CHECK(bandwidth_measure(&b, p, BYTES, 0.001, NULL, NULL, &err) == ERR_NOMEM);
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
