/* test_profile_scores.c - scores of experts: tables computed by hand, properties of random
 * profiles, and a picker that looks for the best one again and again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe/profile_scores.h"
#include "tests/test.h"

static const char *const names[WEIGHTING_COUNT] = {
    "flat", "pressure", "smooth-pressure", "time", "balanced",
};
static const weighting_options usual = { WEIGHTING_FLAT, WEIGHTING_CURVE };

static usage_profile *make(int n_layer, int n_expert)
{
    usage_profile *p = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(usage_profile_create(&p, n_layer, n_expert, &err) == 0, "%s", err.msg)) exit(1);
    return p;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fmax(1, fabs(b)); }

static double sum(const double *v, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += v[i];
    return s;
}

/* ---- tables by hand -------------------------------------------------------------------------- */

enum { L = 4, E = 4 };

/* Four layers of four experts. Choices 5, 3, 2, 0 of ten; 1, 1, 1, 1; 0, 0, 8, 0; none at all. Two
 * calls each: 32, 2, 2, 0 cold slots, so 16, 1, 1, 0 per call, with mean 4.5; seconds of the cold
 * lane and the join 9, 0, 4, 3 per call, with mean 4. */
static usage_profile *example(void)
{
    static const int raw[L][E] = { { 5, 3, 2, 0 }, { 1, 1, 1, 1 }, { 0, 0, 8, 0 }, { 0 } };
    static const int cold[L] = { 16, 1, 1, 0 };
    static const double cold_s[L] = { 9, 0, 1, 1 }, join_s[L] = { 0, 0, 3, 2 };
    usage_profile *p = make(L, E);
    for (int l = 0; l < L; l++) {
        for (int e = 0; e < E; e++)
            usage_profile_count(p, l, e, (expert_where)(e % 3), (uint64_t)raw[l][e]);
        for (int i = 0; i < 2; i++)
            usage_profile_call(p, l, cold[l], 100 + l, cold_s[l], join_s[l]);
    }
    return p;
}

static const double shares[L][E] = {
    { 0.5, 0.3, 0.2, 0 }, { 0.25, 0.25, 0.25, 0.25 }, { 0, 0, 1, 0 }, { 0.25, 0.25, 0.25, 0.25 },
};

/* w: before the curve. Pressure: 16/4.5, 1/4.5, 1/4.5, at least 1/64. Time: 9/4, at least 1/64,
 * 4/4, 3/4. */
static const struct weight_row { weighting_mode mode; double w[L]; const char *why; } weights[] = {
    { WEIGHTING_FLAT, { 1, 1, 1, 1 }, "flat" },
    { WEIGHTING_PRESSURE, { 32.0 / 9, 2.0 / 9, 2.0 / 9, 1.0 / 64 }, "pressure" },
    { WEIGHTING_SMOOTH_PRESSURE,
      { (1.8856180831641267 + 1) / 2, (0.47140452079103168 + 1) / 2, (0.47140452079103168 + 1) / 2,
        (0.125 + 1) / 2 }, "smooth pressure" },
    { WEIGHTING_TIME, { 2.25, 1.0 / 64, 1, 0.75 }, "time" },
};

static void check_table(const usage_profile *p, weighting_mode mode, double curve, const double *v,
                        const char *why)
{
    double score[L * E];
    const weighting_options o = { mode, curve };
    profile_scores_of(score, p, &o);
    for (int i = 0; i < L * E; i++)
        CHECK_MSG(near(score[i], shares[i / E][i % E] * v[i / E]),
                  "%s, curve %g: layer %d, expert %d: %.15g, not %.15g", why, curve, i / E, i % E,
                  score[i], shares[i / E][i % E] * v[i / E]);
}

static void test_tables(void)
{
    static const double flat[L] = { 1, 1, 1, 1 };
    usage_profile *p = example();
    for (size_t i = 0; i < ARRAY_LEN(weights); i++)
        check_table(p, weights[i].mode, 0, flat, weights[i].why);
    check_table(p, WEIGHTING_BALANCED, 0, flat, "balanced");

    double mean[2][L] = { { 0 } };       /* of the four modes, for curves 1 and 0.5 */
    for (size_t i = 0; i < ARRAY_LEN(weights); i++)
        for (int half = 0; half < 2; half++) {
            double v[L];
            for (int l = 0; l < L; l++) v[l] = half ? sqrt(weights[i].w[l]) : weights[i].w[l];
            const double scale = L / sum(v, L);
            for (int l = 0; l < L; l++) mean[half][l] += (v[l] *= scale) / 4;
            check_table(p, weights[i].mode, half ? 0.5 : 1, v, weights[i].why);
        }
    check_table(p, WEIGHTING_BALANCED, 1, mean[0], "balanced");
    check_table(p, WEIGHTING_BALANCED, 0.5, mean[1], "balanced");

    /* A few in digits: time with the square root is 1.5, 0.125, 1, 0.8660 of 3.4910. */
    double score[L * E];
    profile_scores_of(score, p, &(weighting_options){ WEIGHTING_TIME, WEIGHTING_CURVE });
    CHECK(fabs(score[0] - 0.85935) < 1e-5 && fabs(score[4] - 0.035806) < 1e-6 &&
          fabs(score[10] - 1.14579) < 1e-5 && fabs(score[12] - 0.24807) < 1e-5);
    profile_scores_of(score, p, &usual);
    CHECK(score[0] == 0.5 && score[10] == 1 && score[3] == 0 && score[15] == 0.25);
    usage_profile_free(p);
}

/* Nothing seen, or only a part. */
static void test_degenerate(void)
{
    for (int m = 0; m < WEIGHTING_COUNT; m++) {
        const weighting_options o = { (weighting_mode)m, 1 };
        const char *name = names[o.mode];
        usage_profile *p = make(2, 4), *one = make(1, 2);
        double score[8];
        profile_scores_of(score, p, &o);
        for (int i = 0; i < 8; i++) CHECK_MSG(score[i] == 0.25, "%s: nothing seen", name);
        for (int l = 0; l < 2; l++) usage_profile_call(p, l, 0, 1, 0, 0);
        profile_scores_of(score, p, &o);
        for (int i = 0; i < 8; i++) CHECK_MSG(score[i] == 0.25, "%s: nothing cold", name);
        usage_profile_count(p, 0, 3, EXPERT_COLD, 7);
        profile_scores_of(score, p, &o);
        CHECK_MSG(score[3] == 1 && score[0] == 0 && score[7] == 0.25, "%s: half seen", name);

        usage_profile_free(p);
        p = make(2, 4);                  /* calls of one layer alone: the other one is as usual */
        usage_profile_call(p, 1, 5, 1, 1, 1);
        profile_scores_of(score, p, &o);
        for (int i = 0; i < 8; i++) CHECK_MSG(near(score[i], 0.25), "%s: one layer's calls", name);

        usage_profile_free(p);
        p = make(2, 4);                  /* and if nothing was cold in it */
        usage_profile_call(p, 1, 0, 1, 0, 0);
        profile_scores_of(score, p, &o);
        for (int i = 0; i < 8; i++) CHECK_MSG(score[i] == 0.25, "%s: one layer, hot", name);

        usage_profile_count(one, 0, 0, EXPERT_HOT, 1);
        usage_profile_count(one, 0, 1, EXPERT_HOT, 3);
        for (int i = 0; i < 3; i++) {
            profile_scores_of(score, one, &o);
            CHECK_MSG(near(score[0], 0.25) && near(score[1], 0.75), "%s: one layer", name);
            usage_profile_call(one, 0, 1000 * i, 1e-300, 1e-320, 1e300);
        }
        usage_profile_free(p);
        p = make(2, 4);                  /* seconds hardly above 0, and beyond all sense */
        usage_profile_call(p, 0, 0, 0, 5e-324, 0);
        usage_profile_call(p, 1, INT32_MAX, 0, 0, 5e-324);
        profile_scores_of(score, p, &o);
        CHECK_MSG(near(sum(score, 8), 2) && isfinite(score[0]), "%s: tiny", name);
        usage_profile_call(p, 0, 0, 0, 1e15, 1e15);
        profile_scores_of(score, p, &o);
        CHECK_MSG(near(sum(score, 8), 2) && isfinite(score[0]), "%s: large", name);
        usage_profile_free(p);
        usage_profile_free(one);
    }
}

/* Means are those of layers that were called: 6 and 2 slots, 1 and 3 seconds per call. */
static void test_uncalled(void)
{
    static const struct { weighting_mode mode; double v[3]; } rows[] = {
        { WEIGHTING_PRESSURE, { 1.5, 1, 0.5 } }, { WEIGHTING_TIME, { 0.5, 1, 1.5 } },
    };
    usage_profile *p = make(3, 1);
    usage_profile_call(p, 0, 6, 0, 0.5, 0.5);
    usage_profile_call(p, 2, 2, 0, 2, 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        double score[3];
        profile_scores_of(score, p, &(weighting_options){ rows[i].mode, 1 });
        for (int l = 0; l < 3; l++)
            CHECK_MSG(near(score[l], rows[i].v[l]), "%s: layer %d: %g",
                      names[rows[i].mode], l, score[l]);
    }
    usage_profile_free(p);
}

static void test_names(void)
{
    weighting_mode m = WEIGHTING_TIME;
    for (int i = 0; i < WEIGHTING_COUNT; i++)
        CHECK(weighting_named(&m, names[i]) && m == (weighting_mode)i);
    CHECK(weighting_named(&m, "smooth-pressure") && m == WEIGHTING_SMOOTH_PRESSURE);
    static const char *const none[] = { "", "Flat", "flat ", "pressur", "smooth pressure", "5" };
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        CHECK_MSG(!weighting_named(&m, none[i]) && m == WEIGHTING_SMOOTH_PRESSURE, "%s", none[i]);
}

/* ---- properties ------------------------------------------------------------------------------ */

enum { MOST_LAYER = 7, MOST_EXPERT = 9, MOST_SCORE = MOST_LAYER * MOST_EXPERT };

static usage_profile *random_profile(int n_layer, int n_expert, test_rng *rng)
{
    usage_profile *p = make(n_layer, n_expert);
    for (int l = 0; l < n_layer; l++) {
        if (test_below(rng, 8) > 0)
            for (int e = 0; e < n_expert; e++)
                usage_profile_count(p, l, e, (expert_where)test_below(rng, 3),
                                    test_below(rng, 4) ? test_below(rng, 1000) : 0);
        const int unit = test_below(rng, 2) ? 1 : 100;
        for (uint32_t i = test_below(rng, 4); i > 0; i--)
            usage_profile_call(p, l, unit * (int)test_below(rng, 8), test_below(rng, 99),
                               unit * test_below(rng, 9) * 1e-5, test_below(rng, 9) * 1e-5);
    }
    return p;
}

/* The same profile and something more. */
static void check_more(const usage_profile *p, int l, int e, const double *before,
                       const weighting_options *o, test_rng *rng)
{
    const int n_layer = usage_profile_layers(p), n_expert = usage_profile_experts(p);
    const char *name = names[o->mode];
    double after[MOST_SCORE];
    usage_profile *more = make(n_layer, n_expert), *none = make(n_layer, n_expert);
    const int i = l * n_expert + e;

    usage_profile_merge(more, p, 1);
    usage_profile_count(more, l, e, EXPERT_COLD, 1 + test_below(rng, 50));
    profile_scores_of(after, more, o);
    CHECK_MSG(after[i] >= before[i] - 1e-12, "%s: more uses, from %g to %g", name, before[i],
              after[i]);

    usage_profile_call(none, l, 1000, 77, 5, 5);
    usage_profile_merge(more, none, 1);
    profile_scores_of(after, more, o);
    for (int k = 0; k < n_layer * n_expert && o->mode == WEIGHTING_FLAT; k++)
        CHECK_MSG(k / n_expert == l || after[k] == before[k], "flat: looks at calls or times");
    if (usage_profile_layer(p, l)->calls > 0)            /* its share and its layer's weight */
        CHECK_MSG(after[i] >= before[i] - 1e-12, "%s: more cold slots and seconds, from %g to %g",
                  name, before[i], after[i]);
    usage_profile_free(more);
    usage_profile_free(none);
}

/* Flat does not look at calls, slots or seconds at all. */
static void check_flat(const usage_profile *p, test_rng *rng)
{
    const int n_layer = usage_profile_layers(p), n_expert = usage_profile_experts(p);
    double before[MOST_SCORE], after[MOST_SCORE];
    usage_profile *more = make(n_layer, n_expert);
    usage_profile_merge(more, p, 1);
    profile_scores_of(before, more, &usual);
    for (int l = 0; l < n_layer; l++)
        usage_profile_call(more, l, (int)test_below(rng, 99), test_below(rng, 99),
                           test_below(rng, 99), test_below(rng, 99));
    profile_scores_of(after, more, &usual);
    CHECK(memcmp(before, after, (size_t)(n_layer * n_expert) * sizeof *before) == 0);
    usage_profile_free(more);
}

static void test_properties(void)
{
    test_rng rng = { 11 };
    for (int round = 0; round < 400; round++) {
        const int n_layer = 1 + (int)test_below(&rng, MOST_LAYER);
        const int n_expert = 1 + (int)test_below(&rng, MOST_EXPERT), n = n_layer * n_expert;
        usage_profile *p = random_profile(n_layer, n_expert, &rng);
        check_flat(p, &rng);
        for (int m = 0; m < WEIGHTING_COUNT; m++) {
            const weighting_options o = { (weighting_mode)m, test_below(&rng, 5) / 4.0 };
            double score[MOST_SCORE];
            int n_bad = 0;
            profile_scores_of(score, p, &o);
            CHECK_MSG(fabs(sum(score, n) - n_layer) < 1e-9, "%s: sum %.15g of %d layers",
                      names[o.mode], sum(score, n), n_layer);
            for (int i = 0; i < n; i++) {
                const expert_uses *u = usage_profile_uses(p, i / n_expert);
                n_bad += !isfinite(score[i]) || score[i] < 0;
                for (int e = 0; e < n_expert; e++)       /* order within a layer */
                    n_bad += u[i % n_expert].raw > u[e].raw &&
                             score[i] <= score[i / n_expert * n_expert + e];
            }
            CHECK_MSG(n_bad == 0, "%s: %d wrong", names[o.mode], n_bad);
            check_more(p, (int)test_below(&rng, (uint32_t)n_layer),
                       (int)test_below(&rng, (uint32_t)n_expert), score, &o, &rng);
        }
        usage_profile_free(p);
    }
}

/* ---- picking --------------------------------------------------------------------------------- */

/* Searches all for the best that it has not looked at yet. */
static int naive_pick(int *order, const double *score, const uint64_t *bytes, uint64_t budget,
                      int n_layer, int n_expert)
{
    bool done[MOST_SCORE] = { false };
    int n = 0;
    for (;;) {
        int best = -1;
        for (int i = 0; i < n_layer * n_expert; i++) {
            const uint64_t own = bytes[i / n_expert];
            if (done[i] || own == 0 || isnan(score[i]) || score[i] < 0) continue;
            if (best < 0 ||
                score[i] / (double)own > score[best] / (double)bytes[best / n_expert])
                best = i;
        }
        if (best < 0) return n;
        done[best] = true;
        if (bytes[best / n_expert] > budget) continue;
        budget -= bytes[best / n_expert];
        order[n++] = best;
    }
}

static void test_reference(void)
{
    static const uint64_t sizes[] = { 0, 1, 2, 3, 8, 1000, UINT64_MAX / 2 };
    test_rng rng = { 3 };
    for (int round = 0; round < 3000; round++) {
        const int n_layer = 1 + (int)test_below(&rng, MOST_LAYER);
        const int n_expert = 1 + (int)test_below(&rng, MOST_EXPERT);
        double score[MOST_SCORE];
        uint64_t bytes[MOST_LAYER], budget = test_below(&rng, 4000);
        int order[MOST_SCORE], want[MOST_SCORE], n = -1;
        for (int l = 0; l < n_layer; l++) bytes[l] = sizes[test_below(&rng, ARRAY_LEN(sizes))];
        for (int i = 0; i < n_layer * n_expert; i++) {
            const uint32_t kind = test_below(&rng, 40);  /* many ties */
            score[i] = kind == 0 ? NAN : kind == 1 ? -1 : kind == 2 ? INFINITY
                                                                    : test_below(&rng, 6);
        }
        if (test_below(&rng, 9) == 0) budget = UINT64_MAX;
        const int n_want = naive_pick(want, score, bytes, budget, n_layer, n_expert);
        profile_scores_pick(order, &n, score, bytes, budget, n_layer, n_expert);
        CHECK_MSG(n == n_want && memcmp(order, want, (size_t)n * sizeof *order) == 0,
                  "round %d: %d picked, not %d", round, n, n_want);
    }
}

static void test_pick(void)
{
    /* layer 0 of 10 bytes: 0.5, 0.3, 0.2; layer 1 of 20: 0.8, 0.6, 0. Per byte: 0.05, 0.03, 0.02;
     * 0.04, 0.03, 0. */
    static const double score[] = { 0.5, 0.3, 0.2, 0.8, 0.6, 0 };
    static const uint64_t bytes[] = { 10, 20 };
    static const struct { uint64_t budget; int n, order[6]; const char *why; } rows[] = {
        { 0, 0, { 0 }, "no room" },
        { 9, 0, { 0 }, "too little" },
        { 10, 1, { 0 }, "the best" },
        { 29, 2, { 0, 1 }, "the second does not fit, the third does" },
        { 30, 2, { 0, 3 }, "two" },
        { 40, 3, { 0, 3, 1 }, "a tie: the lower layer" },
        { 50, 4, { 0, 3, 1, 2 }, "the tie's other half does not fit" },
        { 60, 4, { 0, 3, 1, 4 }, "now it does" },
        { 70, 5, { 0, 3, 1, 4, 2 }, "all that was used" },
        { 90, 6, { 0, 3, 1, 4, 2, 5 }, "all" },
        { UINT64_MAX, 6, { 0, 3, 1, 4, 2, 5 }, "more room than that" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int order[6], n = -1;
        profile_scores_pick(order, &n, score, bytes, rows[i].budget, 2, 3);
        CHECK_MSG(n == rows[i].n && memcmp(order, rows[i].order, (size_t)n * sizeof *order) == 0,
                  "%s: %d picked", rows[i].why, n);
    }
    usage_profile *p = example();        /* flat: the best of each layer first, in turn */
    const uint64_t even[L] = { 1, 1, 1, 1 };
    double all[L * E];
    int order[L * E], n;
    profile_scores_of(all, p, &usual);
    profile_scores_pick(order, &n, all, even, 5, L, E);
    const int want[] = { 10, 0, 1, 4, 5 };               /* 1, 0.5, 0.3, 0.25, 0.25 */
    CHECK(n == 5 && memcmp(order, want, sizeof want) == 0);
    const int mixed[] = { 4, 1, 10, 5, 0 }, sorted[] = { 10, 0, 4, 1, 5 };       /* shares 1, 0.5 */
    memcpy(order, mixed, sizeof mixed);
    CHECK(profile_scores_universal(order, 5, p, 1) == 2 &&
          memcmp(order, sorted, sizeof sorted) == 0);
    memcpy(order, mixed, sizeof mixed);  /* two a token: a quarter of all choices are enough */
    CHECK(profile_scores_universal(order, 5, p, 2) == 5 && memcmp(order, mixed, sizeof mixed) == 0);
    usage_profile_free(p);
}

/* A million experts, all alike or in the worst order: a quadratic sort would not end. */
static void test_many(void)
{
    const int n_layer = 1000, n_expert = 1000, all = n_layer * n_expert;
    double *score = test_alloc((size_t)all, sizeof *score);
    uint64_t *bytes = test_alloc((size_t)n_layer, sizeof *bytes);
    int *order = test_alloc((size_t)all, sizeof *order), n;
    for (int l = 0; l < n_layer; l++) bytes[l] = 7;
    for (int way = 0; way < 3; way++) {
        int n_bad = 0;
        for (int i = 0; i < all; i++) score[i] = way == 0 ? 1 : way == 1 ? i : all - i;
        profile_scores_pick(order, &n, score, bytes, UINT64_MAX, n_layer, n_expert);
        for (int i = 0; i < n; i++) n_bad += order[i] != (way == 1 ? all - 1 - i : i);
        CHECK_MSG(n == all && n_bad == 0, "%d: %d picked, %d wrong", way, n, n_bad);
    }
    mem_free(score);
    mem_free(bytes);
    mem_free(order);
}

int main(int argc, char **argv)
{
    test_begin("cache_weighting", argc, argv);
    test_tables();
    test_degenerate();
    test_uncalled();
    test_names();
    test_properties();
    test_pick();
    test_reference();
    test_many();
    return test_end();
}
