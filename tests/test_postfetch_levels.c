/* test_postfetch_levels.c - on noisy machines that are made up the number of fetched slabs
 * settles at the fastest level or next to it, and at none where fetching costs time. */
#include "engine/gpu/postfetch_levels.h"

#include <math.h>
#include <string.h>

#include "tests/test.h"

typedef struct made_machine {
    const char *name;
    int k, n_layer, start, most;
    double slab_mb;                      /* a third of an expert */
    double cpu, cpu_busy, pull;          /* GB/s; cpu_busy: while a slab is pulled */
    double pull_latency_us;              /* before a layer's first slab */
    double dense_ms;
    double cold;                         /* share of chosen experts that are cold */
    bool on;                             /* begins with it */
} made_machine;

static const made_machine machines[] = {
    { "small experts", 10, 48, 6, 14, 0.59, 118, 98, 49, 0, 2.1, 1, true },
    { "small experts, a bad start", 10, 48, 1, 14, 0.59, 118, 98, 49, 0, 2.1, 1, true },
    { "small experts, too many at first", 10, 48, 14, 14, 0.59, 118, 98, 49, 5, 2.1, 1, true },
    { "large experts", 4, 24, 3, 8, 4.41, 133, 114, 49, 0, 1.2, 1, true },
    { "few cores", 4, 24, 3, 8, 4.41, 40, 38, 25, 0, 1.2, 1, true },
    { "half the experts in VRAM", 10, 48, 6, 14, 0.59, 118, 98, 49, 0, 2.1, 0.5, true },
    { "a bus slower than measured", 10, 48, 8, 14, 0.59, 95, 90, 20, 0, 2.3, 1, true },
    { "a slow bus", 10, 48, 8, 14, 0.59, 60, 55, 1, 0, 2.1, 1, true },
    { "a bus that slows the CPU", 4, 24, 3, 8, 4.41, 133, 60, 20, 0, 1.2, 1, true },
    { "off at first, and pays", 4, 24, 2, 8, 4.41, 60, 58, 25, 0, 1.2, 1, false },
    { "off at first, and does not", 4, 24, 2, 8, 4.41, 100, 50, 2, 0, 1.2, 1, false },
};

static postfetch_levels levels_of(const made_machine *h)
{
    postfetch_levels f = { .k = h->k, .pad_down = h->k, .pad_all = 2 };
    trial_levels_begin(&f.fetch, h->start, h->most, h->on, false);
    trial_levels_begin(&f.read, 0, 0, false, false);
    postfetch_levels_pause(&f, false);
    return f;
}

/* Seconds of a layer with m cold experts. Both begin together; the CPU is slower while the bus is
 * busy. */
static double layer_s(const made_machine *h, const postfetch_levels *f, int m)
{
    const double slab = h->slab_mb * 1e-3;       /* GB */
    const int n = f->table[m] + 3 * f->table[GPU_FETCH_COUNTS + m];
    const double pull = n > 0 ? n * slab / h->pull + h->pull_latency_us * 1e-6 : 0;
    const double work = (3 * m - n) * slab, overlapped = fmin(work, pull * h->cpu_busy);
    const double cpu = overlapped / h->cpu_busy + (work - overlapped) / h->cpu;
    return fmax(cpu, pull);
}

/* Of a token, with n_cold counted; rng NULL: the mean machine, without noise. */
static double token_s(const made_machine *h, const postfetch_levels *f, int *n_cold, test_rng *rng)
{
    double s = h->dense_ms * 1e-3;
    *n_cold = 0;
    for (int l = 0; l < h->n_layer; l++) {
        int m = 0;
        for (int i = 0; i < h->k; i++)
            m += rng ? test_below(rng, 1000) < h->cold * 1000 : i < h->cold * h->k;
        *n_cold += m;
        s += layer_s(h, f, m);
    }
    if (!rng) return s;
    s *= 1 + (test_below(rng, 1001) / 1000.0 - 0.5) * 0.03;
    return test_below(rng, 25) == 0 ? 1.4 * s : s;       /* another program's work */
}

static double mean_s(const made_machine *h, int level)
{
    postfetch_levels f = levels_of(h);
    int n_cold;
    f.fetch.level = level;
    postfetch_levels_pause(&f, false);
    return token_s(h, &f, &n_cold, NULL);
}

static void check_machine(const made_machine *h, unsigned seed)
{
    postfetch_levels f = levels_of(h);
    test_rng rng = { seed };
    double mean[32], spent = 0, early = 0;
    int best = 0, n_cold;
    for (int level = 0; level <= h->most; level++) {
        mean[level] = mean_s(h, level);
        if (mean[level] < mean[best]) best = level;
    }
    CHECK(f.level == (h->on ? h->start : 0));
    for (int i = 0; i < 1500; i++) {
        (i < 300 ? &early : &spent)[0] += i < 300 || i >= 700 ? mean[f.level] : 0;
        const double s = token_s(h, &f, &n_cold, &rng);
        (void)postfetch_levels_token(&f, s, n_cold);
    }
    const int level = f.fetch.level;
    CHECK_MSG(mean[level] < 1.015 * mean[best], "%s: level %d (%.3f ms), best %d (%.3f ms)",
              h->name, level, 1e3 * mean[level], best, 1e3 * mean[best]);
    CHECK_MSG((level > 0) == (mean[best] < 0.99 * mean[0]), "%s: level %d", h->name, level);
    CHECK_MSG(spent < 1.03 * 800 * mean[best], "%s: trials cost %.1f%%", h->name,
              100 * (spent / 800 / mean[best] - 1));
    CHECK_MSG(early < (mean[h->start] > 2 * mean[best] ? 2 : 1.1) * 300 * mean[best],
              "%s: the first 300 tokens cost %.1f%%", h->name,
              100 * (early / 300 / mean[best] - 1));
}

/* A bus that is ten times as slow for a while switches fetching off, but not permanently. */
static void check_disturbance(unsigned seed)
{
    made_machine h = machines[0], slow = h;
    test_rng rng = { seed };
    int n_cold, n_off = 0;
    h.pull_latency_us = slow.pull_latency_us = 20;
    slow.pull /= 10;
    postfetch_levels f = levels_of(&h);
    for (int i = 0; i < 6000; i++) {
        const double s = token_s(i < 80 ? &slow : &h, &f, &n_cold, &rng);
        (void)postfetch_levels_token(&f, s, n_cold);
        n_off += f.fetch.level == 0;
    }
    CHECK_MSG(n_off > 200 && f.fetch.level >= 7, "off for %d tokens, then %d", n_off,
              f.fetch.level);
}

/* The table: never more than there are or fit, nor than the level; exactly the level where all are
 * cold. */
static void check_tables(void)
{
    for (int k = 1; k <= GPU_MOST_USED; k++) {
        int n_bad = 0;
        for (int level = 0; level <= k + 2 * min_int(2, k); level++)
            for (int small = 0; small <= 1; small++) {
                postfetch_levels f = {.k = k, .pad_down = small ? 1 : k, .pad_all = small ? 0 : 2};
                f.fetch.level = level;
                f.fetch.candidate = f.read.candidate = -1;
                postfetch_levels_pause(&f, false);
                for (int m = 0; m <= k; m++) {
                    const int d = f.table[m], a = f.table[GPU_FETCH_COUNTS + m];
                    n_bad += a > f.pad_all || d > f.pad_down || d + a > m || d + 3 * a > level;
                    n_bad += !small && m == k && k > 2 && d + 3 * a != level;
                    n_bad += m > 0 && postfetch_levels_meant(&f, m) != d + a;
                }
            }
        CHECK_MSG(n_bad == 0, "of %d experts: %d wrong", k, n_bad);
    }
}

/* Paused or frozen, nothing changes; in a pause nothing is fetched. */
static void check_pause(void)
{
    static const uint8_t none[FETCH_TABLE];
    postfetch_levels f = levels_of(&machines[0]);
    postfetch_levels_pause(&f, true);
    CHECK(f.level == 0 && memcmp(f.table, none, sizeof none) == 0);
    for (int i = 0; i < 500; i++) CHECK(!postfetch_levels_token(&f, 1, 5));
    postfetch_levels_pause(&f, false);
    CHECK(f.level == machines[0].start);
    f.post.frozen = true;
    for (int i = 0; i < 500; i++) CHECK(!postfetch_levels_token(&f, 1, 5));
}

int main(int argc, char **argv)
{
    test_begin("postfetch_levels", argc, argv);
    check_tables();
    check_pause();
    for (unsigned seed = 1; seed <= 3; seed++) check_disturbance(seed);
    for (size_t i = 0; i < ARRAY_LEN(machines); i++)
        for (unsigned seed = 1; seed <= 5; seed++) check_machine(&machines[i], seed);
    return test_end();
}
