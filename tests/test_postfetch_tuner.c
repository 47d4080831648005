/* test_postfetch_tuner.c - on noisy made-up machines the fetched share settles at the fastest level
 * or next to it, and at nothing where fetching costs. */
#include "moe/postfetch_tuner.h"

#include <math.h>

#include "tests/test.h"

/* ---- machines -------------------------------------------------------------------------------- */

typedef struct made_machine {
    const char *name;
    int k, n_layer, start, most;
    double slab_mb;                      /* a third of an expert */
    double cpu, cpu_busy, pull;          /* GB/s; cpu_busy: while something is pulled */
    double pull_latency_us;              /* before a layer's first slab */
    double dense_ms;
    double cold;                         /* share of chosen experts that are cold */
    bool on;                             /* begins with it */
} made_machine;

static const made_machine machines[] = {
    { "small experts", 10, 48, 6, 16, 0.59, 118, 98, 49, 0, 2.1, 1, true },
    { "small experts, a bad start", 10, 48, 1, 16, 0.59, 118, 98, 49, 0, 2.1, 1, true },
    { "small experts, too many at first", 10, 48, 16, 16, 0.59, 118, 98, 49, 5, 2.1, 1, true },
    { "large experts", 4, 24, 3, 10, 4.41, 133, 114, 49, 0, 1.2, 1, true },
    { "few cores", 4, 24, 3, 10, 4.41, 40, 38, 25, 0, 1.2, 1, true },
    { "half the experts in VRAM", 10, 48, 6, 16, 0.59, 118, 98, 49, 0, 2.1, 0.5, true },
    { "a bus slower than thought", 10, 48, 8, 16, 0.59, 95, 90, 20, 0, 2.3, 1, true },
    { "a slow bus", 10, 48, 8, 16, 0.59, 60, 55, 1, 0, 2.1, 1, true },
    { "a bus in the CPU's way", 4, 24, 3, 10, 4.41, 133, 60, 20, 0, 1.2, 1, true },
    { "thought useless, and is not", 4, 24, 2, 10, 4.41, 60, 58, 25, 0, 1.2, 1, false },
    { "thought useless, and is", 4, 24, 2, 10, 4.41, 100, 50, 2, 0, 1.2, 1, false },
};

/* Seconds of a layer with m cold experts. Both begin together; the CPU is slower while the bus is
 * busy. */
static double layer_s(const made_machine *h, int level, int m)
{
    const double slab = h->slab_mb * 1e-3;       /* GB */
    int n_down, n_all;
    postfetch_tuner_split(&n_down, &n_all, level, m, h->k, h->k, 2);
    const int n = n_down + 3 * n_all;
    const double pull = n > 0 ? n * slab / h->pull + h->pull_latency_us * 1e-6 : 0;
    const double work = (3 * m - n) * slab, beside = fmin(work, pull * h->cpu_busy);
    const double cpu = beside / h->cpu_busy + (work - beside) / h->cpu;
    return fmax(cpu, pull);
}

/* Of a token, with n_cold counted; rng NULL: the mean machine, without noise. */
static double token_s(const made_machine *h, int level, int *n_cold, test_rng *rng)
{
    double s = h->dense_ms * 1e-3;
    *n_cold = 0;
    for (int l = 0; l < h->n_layer; l++) {
        int m = 0;
        for (int i = 0; i < h->k; i++)
            m += rng ? test_below(rng, 1000) < h->cold * 1000 : i < h->cold * h->k;
        *n_cold += m;
        s += layer_s(h, level, m);
    }
    if (!rng) return s;
    s *= 1 + (test_below(rng, 1001) / 1000.0 - 0.5) * 0.03;
    return test_below(rng, 25) == 0 ? 1.4 * s : s;       /* somebody else's work */
}

/* ---- finding the level ----------------------------------------------------------------------- */

static double mean_s(const made_machine *h, int level)
{
    int n_cold;
    return token_s(h, level, &n_cold, NULL);
}

static void check_machine(const made_machine *h, unsigned seed)
{
    postfetch_tuner f;
    test_rng rng = { seed };
    int best = 0, n_trial = 0, n_bad = 0;
    double spent = 0, ideal = 0, early = 0;
    bool was_on = h->on;
    for (int level = 1; level <= h->most; level++)
        if (mean_s(h, level) < mean_s(h, best)) best = level;
    postfetch_tuner_begin(&f, h->start, h->most, h->on, false);
    CHECK(postfetch_tuner_now(&f) == (h->on ? h->start : 0));
    for (int i = 0; i < 1500; i++) {
        int n_cold;
        const int level = postfetch_tuner_now(&f);
        n_bad += level < 0 || level > h->most;
        const double s = token_s(h, level, &n_cold, &rng);
        if (i < 300) early += mean_s(h, level) / mean_s(h, best) / 300;
        if (i >= 700) spent += mean_s(h, level), ideal += mean_s(h, best);
        const tuner_event event = postfetch_tuner_token(&f, s, n_cold);
        if (event == TUNER_SWITCHED) {
            n_bad += (f.level > 0) == was_on || !f.switched.candidate_won;
            n_bad += (f.switched.candidate > 0) == was_on || (f.switched.level > 0) != was_on;
            was_on = f.level > 0;
        }
        if (event == TUNER_TRIAL_ENDED) {
            n_trial++;
            n_bad += f.last.candidate == f.last.level || f.last.cost[0] <= 0 || f.last.cost[1] <= 0;
            n_bad += f.level != (f.last.candidate_won ? f.last.candidate : f.last.level);
        }
    }
    while (f.to_try > 0 || f.candidate >= 0) {       /* the round under way */
        int n_cold;
        const double s = token_s(h, postfetch_tuner_now(&f), &n_cold, &rng);
        if (postfetch_tuner_token(&f, s, n_cold) == TUNER_SWITCHED) was_on = !was_on;
    }
    CHECK_MSG((f.level > 0) == was_on, "%s: nobody was told of level %d", h->name, f.level);
    CHECK_MSG(n_bad == 0, "%s: %d times something that cannot be", h->name, n_bad);
    CHECK_MSG(n_trial >= 3, "%s: %d trials", h->name, n_trial);
    CHECK_MSG(mean_s(h, f.level) < 1.015 * mean_s(h, best), "%s: level %d (%.3f ms), best %d "
              "(%.3f ms)", h->name, f.level, 1e3 * mean_s(h, f.level), best,
              1e3 * mean_s(h, best));
    CHECK_MSG((f.level > 0) == (mean_s(h, best) < 0.99 * mean_s(h, 0)), "%s: level %d", h->name,
              f.level);
    CHECK_MSG(spent < 1.03 * ideal, "%s: trying costs %.1f%%", h->name,
              100 * (spent / ideal - 1));
    CHECK_MSG(early < (mean_s(h, h->start) > 2 * mean_s(h, best) ? 2 : 1.1), "%s: finding out "
              "costs %.1f%%", h->name, 100 * (early - 1));
}

/* A bus that is ten times as slow for a while switches fetching off, but not for good. */
static void check_spell(unsigned seed)
{
    made_machine h = machines[0], slow = h;
    postfetch_tuner f;
    test_rng rng = { seed };
    int n_cold, was_off = 0;
    h.pull_latency_us = slow.pull_latency_us = 20;
    slow.pull /= 10;
    postfetch_tuner_begin(&f, h.start, h.most, true, false);
    for (int i = 0; i < 6000; i++) {
        const double s = token_s(i < 80 ? &slow : &h, postfetch_tuner_now(&f), &n_cold, &rng);
        postfetch_tuner_token(&f, s, n_cold);
        was_off += f.level == 0;
    }
    CHECK_MSG(was_off > 200 && f.level >= 7, "off for %d tokens, then %d", was_off, f.level);
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* n tokens that take as long as a table says: how many trials ended. */
static int play(postfetch_tuner *f, const double *s, int n)
{
    int ended = 0;
    for (int i = 0; i < n; i++)
        ended += postfetch_tuner_token(f, s[postfetch_tuner_now(f)], 10) == TUNER_TRIAL_ENDED;
    return ended;
}

/* Of the first one. */
static int tokens_of_trial(postfetch_tuner *f, const double *s)
{
    int n = 1;
    while (postfetch_tuner_token(f, s[postfetch_tuner_now(f)], 10) != TUNER_TRIAL_ENDED) n++;
    return n - TUNER_WARM;
}

/* Steps are large at first and single ones later; rests get longer while nothing changes. */
static void check_pace(void)
{
    double slope[17];
    int tried[40], rests[40], n = 0, quiet = 0;
    postfetch_tuner f;
    for (int i = 0; i <= 16; i++) slope[i] = 1 + 0.05 * (i > 12 ? i - 12 : 12 - i);
    slope[0] = 2;
    postfetch_tuner_begin(&f, 12, 16, true, false);
    for (int i = 0; i < 12000 && n < 40; i++) {
        quiet++;
        if (postfetch_tuner_token(&f, slope[postfetch_tuner_now(&f)], 10) != TUNER_TRIAL_ENDED)
            continue;
        rests[n] = quiet;
        tried[n++] = f.last.candidate;
        quiet = 0;
    }
    CHECK(n >= 9 && f.level == 12 && tried[0] == 0 && tried[1] == 15 && tried[2] == 9);
    CHECK(tried[3] == 0 && tried[4] == 13 && tried[5] == 11 && tried[8] == 11);
    CHECK(rests[3] > 2 * TUNER_REST && rests[3] < 3 * TUNER_REST && rests[6] > 4 * TUNER_REST);
    CHECK(n < 40 && rests[n - 3] < TUNER_MOST_REST + 100);
}

static void check_rules(void)
{
    const double flat[] = { 2, 1, 1, 1, 1 }, worse[] = { 1, 2, 2, 2, 2 };
    postfetch_tuner f;
    postfetch_tuner_begin(&f, 2, 4, true, false);
    play(&f, flat, 3000);
    CHECK(f.level == 2);                 /* no better, no change */
    postfetch_tuner_begin(&f, 2, 4, true, true);
    int n_off = 0;
    for (int i = 0; i < 3000; i++) {
        n_off += postfetch_tuner_now(&f) == 0;
        postfetch_tuner_token(&f, worse[postfetch_tuner_now(&f)], 10);
    }
    CHECK(n_off == 0);                   /* never off */
    postfetch_tuner_begin(&f, 2, 4, true, false);
    CHECK(play(&f, worse, 200) == 2 && f.level == 0 && f.other == 1);    /* 2; 1; later perhaps */
    play(&f, flat, 2000);                /* times change: it comes back */
    CHECK(f.level == 1);
    const double hardly[] = { 0.99, 1, 1, 1, 1 };
    postfetch_tuner_begin(&f, 2, 4, true, false);
    play(&f, hardly, 3000);
    CHECK(f.level == 2);                 /* nor is it switched off for so little */
    postfetch_tuner_begin(&f, 2, 4, true, false);    /* candidate bad; level bad; a little worse: */
    CHECK(tokens_of_trial(&f, (double[]){ 3, 1, 1, 1, 1 }) == 2 * TUNER_BLOCK);
    postfetch_tuner_begin(&f, 2, 4, true, false);
    CHECK(tokens_of_trial(&f, (double[]){ 1, 3, 3, 3, 3 }) == 4 * TUNER_BLOCK);
    postfetch_tuner_begin(&f, 2, 4, true, false);
    CHECK(tokens_of_trial(&f, (double[]){ 1, 1.1, 1.1, 1, 1 }) == 8 * TUNER_BLOCK);
    const double nearly[] = { 2, 1.002, 1, 0.998, 0.996 };
    postfetch_tuner_begin(&f, 2, 4, true, false);
    play(&f, nearly, 3000);
    CHECK(f.level == 2);                 /* for so little it does not move */
    postfetch_tuner_begin(&f, 2, 4, true, false);
    for (int i = 0; i < 3000; i++) {     /* fewer cold experts are no advantage */
        const int n = postfetch_tuner_now(&f) == 2 ? 20 : 10;
        postfetch_tuner_token(&f, n, n);
    }
    CHECK(f.level == 2);
    const double down[] = { 5, 1, 2, 3, 4 }, up[] = { 5, 4, 3, 2, 1 };
    postfetch_tuner_begin(&f, 3, 4, true, false);
    CHECK(play(&f, down, 200) == 4 && f.level == 1);     /* none, 4, 2, 1 */
    CHECK(play(&f, up, TUNER_REST) == 4 && f.level == 4);  /* none, 2, 3, 4 */
    postfetch_tuner_begin(&f, 3, 4, true, false);
    CHECK(play(&f, up, 200) == 2);       /* none; 4; and not where it came from */
    const double hill[] = { 5, 4, 3, 2, 2.5 };
    postfetch_tuner_begin(&f, 2, 4, true, false);
    CHECK(play(&f, hill, 200) == 3 && f.level == 3);     /* none, 3, 4 */
    const double valley[] = { 3, 9, 2, 9, 9, 9, 9, 9, 9 };
    postfetch_tuner_begin(&f, 8, 8, true, false);
    CHECK(play(&f, valley, 200) == 5 && f.level == 2);   /* none, 4, 2 at once; then 3, 1 */
    postfetch_tuner_begin(&f, 4, 4, false, false);
    for (int i = 0; i < 2000; i++) postfetch_tuner_token(&f, 1, 0);
    CHECK(f.other == 4);                 /* nothing was learnt */
    postfetch_tuner_begin(&f, 0, 0, false, false);
    n_off = 0;
    for (int i = 0; i < 600; i++)
        n_off += postfetch_tuner_token(&f, 1, 10) == TUNER_NOTHING && f.level == 0;
    CHECK(n_off == 600);                 /* nothing to try */
    postfetch_tuner_begin(&f, 2, 4, true, false);
    /* nothing cold: nothing learnt */
    for (int i = 0; i < 600; i++) postfetch_tuner_token(&f, 1, 0);
    CHECK(f.level == 2);
    postfetch_tuner_begin(&f, 2, 4, true, false);
    for (int i = 0; i < 300; i++) {      /* nor from a turn's first token, */
        static const double own[TUNER_BLOCK] = { 1000, 1, 2, 3 };
        const int now = postfetch_tuner_now(&f);
        postfetch_tuner_token(&f, now == 2 && f.candidate >= 0 ? own[f.n_token % TUNER_BLOCK] : 2.2,
                              10);
    }
    CHECK(f.level == 2);
    for (int side = 0; side < 2; side++) {       /* nor twice from one, if its candidate had none */
        postfetch_tuner_begin(&f, 2, 4, true, false);
        for (int i = 0; i < TUNER_WARM + 10 * TUNER_BLOCK; i++) {
            const int now = postfetch_tuner_now(&f), seen = f.n_token < 2 * TUNER_BLOCK ||
                                                        (now == 0) == side;
            CHECK(postfetch_tuner_token(&f, now > 0 ? 1.3 : 1, seen ? 10 : 0) == TUNER_NOTHING);
        }
    }
    double end[17] = { 9, [14] = 5, 4, 3 };      /* a step too far is cut short */
    postfetch_tuner_begin(&f, 14, 16, true, false);
    CHECK(play(&f, end, 200) == 2 && f.level == 16);
    check_pace();
}

/* Never more than there are, nor than the level; and exactly that where all are cold. */
static void check_split(void)
{
    for (int k = 1; k <= 32; k++) {
        int n_bad = 0;
        for (int m = 0; m <= k; m++)
            for (int level = 0; level <= k + 2 * min_int(2, k); level++) {
                int d, a;
                postfetch_tuner_split(&d, &a, level, m, k, k, 2);
                n_bad += d < 0 || a < 0 || a > 2 || d + a > m || d + 3 * a > level;
                n_bad += m == k && k > 2 && d + 3 * a != level;
                n_bad += m == 0 && d + a > 0;
                postfetch_tuner_split(&d, &a, level, m, k, 1, 0);    /* a small pad */
                n_bad += d > 1 || a != 0;
            }
        CHECK_MSG(n_bad == 0, "of %d experts: %d wrong", k, n_bad);
    }
}

int main(int argc, char **argv)
{
    test_begin("postfetch_tuner", argc, argv);
    check_split();
    check_rules();
    for (unsigned seed = 1; seed <= 3; seed++) check_spell(seed);
    for (size_t i = 0; i < ARRAY_LEN(machines); i++)
        for (unsigned seed = 1; seed <= 5; seed++) check_machine(&machines[i], seed);
    return test_end();
}
