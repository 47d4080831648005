/* test_moe.c - the router's choice against a full sort, and the worklist against its definition. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe/router.h"
#include "moe/worklist.h"
#include "tests/exact_exp_one.h"
#include "tests/test.h"

/* ---- router ---------------------------------------------------------------------------------- */

/* Weights of the published example, and of the rules that a wrong router breaks. */
static void test_router_values(void)
{
    static const struct {
        const char *why;
        int n, k;
        float logits[8];
        int32_t ids[4];
        double weights[4];
    } rows[] = {
        { "softmax over the chosen four", 6, 4, { -1, 0.5f, -9, 2, 1, -3 }, { 3, 4, 1, 0 },
          { 0.6094600, 0.2242078, 0.1359889, 0.0303432 } },
        { "ties go to the lower id, in order", 5, 3, { 1, 2, 2, 1, 2 }, { 1, 2, 4 },
          { 1 / 3.0, 1 / 3.0, 1 / 3.0 } },
        { "a tie at the edge", 4, 2, { 0, 3, 0, 0 }, { 1, 0 }, { 0.9525741, 0.0474259 } },
        { "one of one", 1, 1, { -5 }, { 0 }, { 1 } },
        { "all of them", 3, 3, { 0, 0, 0 }, { 0, 1, 2 }, { 1 / 3.0, 1 / 3.0, 1 / 3.0 } },
        { "huge logits do not overflow", 3, 2, { 3e38f, 1e38f, 3e38f }, { 0, 2 }, { 0.5, 0.5 } },
        { "minus infinity gets nothing", 3, 2, { -INFINITY, 4, -INFINITY }, { 1, 0 }, { 1, 0 } },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int32_t ids[4];
        float weights[4];
        router_select(ids, weights, rows[i].logits, rows[i].n, rows[i].k, NULL);
        for (int r = 0; r < rows[i].k; r++) {
            CHECK_MSG(ids[r] == rows[i].ids[r], "%s: rank %d is %d, not %d", rows[i].why, r,
                      (int)ids[r], (int)rows[i].ids[r]);
            CHECK_MSG(fabs((double)weights[r] - rows[i].weights[r]) < 1e-7,
                      "%s: weight %d is %.8f, not %.8f", rows[i].why, r, (double)weights[r],
                      rows[i].weights[r]);
        }
    }
}

/* Worked out by hand: 1 / (1 + exp(-x)) of 0, 1, -1, 2 is 0.5, 0.7310586, 0.2689414, 0.8807971; the
 * softmax of 0, 1, 2 is 0.0900306, 0.2447285, 0.6652410. */
static void test_router_rules(void)
{
    static const float bias[4] = { 0.3f, 0, 0, -0.5f }, upwards[3] = { 0.6f, 0, -0.1f };
    const struct {
        const char *why;
        router_rule rule;
        int n, k;
        float logits[4];
        int32_t ids[3];
        double weights[3];
    } rows[] = {
        { "sigmoid, divided by the sum", { .score = ROUTER_SIGMOID }, 4, 2, { 0, 1, -1, 2 },
          { 3, 1 }, { 0.5464491, 0.4535509 } },
        { "sigmoid as it is, with a factor", { .score = ROUTER_SIGMOID, .as_scored = true,
          .factor = 2.5f }, 4, 2, { 0, 1, -1, 2 }, { 3, 1 }, { 2.2019927, 1.8276465 } },
        { "a bias chooses and does not weigh", { .score = ROUTER_SIGMOID, .bias = bias }, 4, 2,
          { 0, 1, -1, 2 }, { 0, 1 }, { 0.4061545, 0.5938455 } },
        { "softmax over all, as it is", { .as_scored = true }, 3, 2, { 0, 1, 2 }, { 2, 1 },
          { 0.6652410, 0.2447285 } },
        { "softmax with a bias", { .bias = upwards }, 3, 2, { 0, 1, 2 }, { 0, 2 },
          { 0.1192029, 0.8807971 } },
        { "ties with a bias go to the lower id", { .score = ROUTER_SIGMOID, .bias = bias }, 3, 2,
          { -20, 20, 20 }, { 1, 2 }, { 0.5, 0.5 } },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int32_t ids[3];
        float weights[3];
        router_select(ids, weights, rows[i].logits, rows[i].n, rows[i].k, &rows[i].rule);
        for (int r = 0; r < rows[i].k; r++)
            CHECK_MSG(ids[r] == rows[i].ids[r] &&
                      fabs((double)weights[r] - rows[i].weights[r]) < 2e-7, "%s: rank %d is %d, "
                      "%.8f", rows[i].why, r, (int)ids[r], (double)weights[r]);
    }
}

static void test_router_nan(void)
{
    const float some[5] = { NAN, 1, NAN, 2, NAN }, none[3] = { NAN, NAN, NAN };
    int32_t ids[4];
    float w[4];
    router_select(ids, w, some, 5, 2, NULL);
    CHECK(ids[0] == 3 && ids[1] == 1 && fabsf(w[0] + w[1] - 1.0f) < 1e-6f);
    router_select(ids, w, some, 5, 4, NULL);
    CHECK(ids[0] == 3 && ids[1] == 1 && ids[2] == 0 && ids[3] == 2);
    CHECK_MSG(isnan(w[3]), "a NaN that was chosen shows");
    router_select(ids, w, none, 3, 3, NULL);
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == 2 && isnan(w[0]));
}

/* ---- bits of the rules that are not usual ---- */

/* The sum as router.h has it, written in another way: a tree over all 32 lanes. */
static float tree_sum(const float *lane, int first, int step)
{
    if (step == 32) return lane[first];
    return tree_sum(lane, first, 2 * step) + tree_sum(lane, first + step, 2 * step);
}

static float lane_sum(const float *x, int n)
{
    float lane[32] = { 0.0f };
    for (int l = 0; l < 32; l++)
        for (int e = l; e < n; e += 32) lane[l] = lane[l] + x[e];
    return tree_sum(lane, 0, 1);
}

static void check_bits(const float *logits, int n, int k, const router_rule *rule, int round)
{
    float score[64], chosen[64], weights[64], terms[64], top = -INFINITY;
    int32_t ids[64];
    bool taken[64] = { false };
    for (int e = 0; e < n; e++) top = logits[e] > top ? logits[e] : top;
    for (int e = 0; e < n; e++) terms[e] = exact_exp(logits[e] - top);
    const float sum = lane_sum(terms, n);
    for (int e = 0; e < n; e++)
        score[e] = rule->score == ROUTER_SIGMOID ? 1.0f / (1.0f + exact_exp(-logits[e]))
                                                 : terms[e] / sum;
    router_select(ids, weights, logits, n, k, rule);
    for (int r = 0; r < k; r++) {
        int best = -1;
        for (int e = 0; e < n; e++) {
            const float *by = rule->bias ? score : logits;
            const float own = by[e] + (rule->bias ? rule->bias[e] : 0.0f);
            if (!taken[e] && (best < 0 || own > by[best] + (rule->bias ? rule->bias[best] : 0.0f)))
                best = e;
        }
        taken[best] = true;
        CHECK_MSG(ids[r] == best, "round %d: rank %d is %d, not %d", round, r, (int)ids[r], best);
        chosen[r] = score[best];
    }
    const float all = lane_sum(chosen, k);
    for (int r = 0; r < k; r++) {
        float want = rule->as_scored ? chosen[r] : chosen[r] / all;
        if (rule->factor > 0.0f) want = want * rule->factor;
        CHECK_MSG(memcmp(&want, &weights[r], sizeof want) == 0,
                  "round %d: %d of %d, weight %d is %.9g, not %.9g", round, k, n, r,
                  (double)weights[r], (double)want);
    }
}

static void test_router_bits(void)
{
    test_rng rng = { 12 };
    for (int round = 0; round < 400; round++) {
        const int n = 1 + (int)test_below(&rng, 64), k = 1 + (int)test_below(&rng, (uint32_t)n);
        const bool wide = round % 5 == 0, ties = round % 7 == 0;
        float logits[64], bias[64];
        for (int e = 0; e < n; e++) {
            const float v = (float)test_below(&rng, 1 << 20) / (1 << 20) - 0.5f;
            logits[e] = ties ? rintf(4.0f * v) : (wide ? 300.0f : 10.0f) * v;
            bias[e] = ties ? 0.0f : 0.2f * ((float)test_below(&rng, 1 << 20) / (1 << 20) - 0.5f);
        }
        router_rule rule = { .score = round & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                             .as_scored = round & 2, .factor = round & 4 ? 2.5f : 0.0f,
                             .bias = round & 8 ? bias : NULL };
        if (round % 16 == 0) rule.as_scored = true;      /* the usual rule has other bits */
        check_bits(logits, n, k, &rule, round);
    }
}

/* A sum over all shows a NaN in every weight; a sigmoid's only in its own. */
static void test_router_rules_nan(void)
{
    const float some[4] = { 1, NAN, 3, 2 };
    const router_rule softmax = { .as_scored = true };
    const router_rule sigmoid = { .score = ROUTER_SIGMOID, .as_scored = true };
    int32_t ids[4];
    float w[4];
    router_select(ids, w, some, 4, 2, &softmax);
    CHECK(ids[0] == 2 && ids[1] == 3 && isnan(w[0]) && isnan(w[1]));
    router_select(ids, w, some, 4, 4, &sigmoid);
    CHECK(ids[0] == 2 && ids[1] == 3 && ids[2] == 0 && ids[3] == 1 && !isnan(w[0]) &&
          !isnan(w[2]) && isnan(w[3]));
}

/* Random logits with many ties against the naive definition: k times the best of what is left. */
static void test_router_random(void)
{
    test_rng rng = { 11 };
    for (int round = 0; round < 300; round++) {
        const int n = 1 + (int)test_below(&rng, 64), k = 1 + (int)test_below(&rng, (uint32_t)n);
        float logits[64], weights[64];
        int32_t ids[64];
        bool taken[64] = { false };
        double sum = 0.0;
        for (int e = 0; e < n; e++) logits[e] = (float)test_below(&rng, 20) - 10.0f;
        router_select(ids, weights, logits, n, k, NULL);
        for (int r = 0; r < k; r++) {
            int best = -1;
            for (int e = 0; e < n; e++)
                if (!taken[e] && (best < 0 || logits[e] > logits[best])) best = e;
            taken[best] = true;
            CHECK_MSG(ids[r] == best, "round %d: rank %d of %d is %d, not %d", round, r, k,
                      (int)ids[r], best);
            sum += (double)weights[r];
        }
        CHECK_MSG(fabs(sum - 1.0) < 1e-6, "round %d: weights sum to %.8f", round, sum);
    }
}

/* ---- worklist -------------------------------------------------------------------------------- */

static void check_worklist(const worklist *w, const int32_t *ids, int n_token, int k, int round)
{
    const int n = n_token * k;
    bool seen[1024] = { false };
    int at = 0, before = -1;
    for (int i = 0; i < w->n_item; i++) {
        const work_item *it = &w->items[i];
        bool ok = it->expert > before && it->first == at && it->n > 0;
        for (int s = it->first; s < it->first + it->n; s++) {
            const int slot = w->slots[s];
            ok = ok && slot >= 0 && slot < n && !seen[slot] && ids[slot] == it->expert &&
                 (s == it->first || slot > w->slots[s - 1]);
            if (slot >= 0 && slot < n) seen[slot] = true;
        }
        CHECK_MSG(ok, "round %d: item %d, expert %d", round, i, it->expert);
        at += it->n;
        before = it->expert;
    }
    CHECK_MSG(at == n && w->n_slot == n && w->k == k, "round %d: %d of %d slots", round, at, n);
}

static void test_worklist(void)
{
    test_rng rng = { 5 };
    for (int round = 0; round < 200; round++) {
        const int n_expert = 1 + (int)test_below(&rng, 40);
        const int k = 1 + (int)test_below(&rng, (uint32_t)(n_expert < 8 ? n_expert : 8));
        worklist *w = NULL;
        int32_t ids[512];
        if (!CHECK(worklist_create(&w, n_expert, 64 * k, NULL) == 0)) return;
        for (int again = 0; again < 3; again++) {        /* nothing is left from the last layer */
            const int n_token = 1 + (int)test_below(&rng, 64);
            for (int i = 0; i < n_token * k; i++)
                ids[i] = (int32_t)test_below(&rng, (uint32_t)n_expert);
            mem_guard(true);
            worklist_fill(w, ids, n_token, k);
            mem_guard(false);
            check_worklist(w, ids, n_token, k, round);
        }
        worklist_free(w);
    }
    for (long fail = 1; fail < 20; fail++) {
        worklist *w = NULL;
        mem_fail_after(fail);
        const int rc = worklist_create(&w, 8, 16, NULL);
        mem_fail_after(0);
        CHECK((rc == 0) == (w != NULL));
        worklist_free(w);
        if (rc == 0) break;
    }
    worklist_free(NULL);
}

int main(int argc, char **argv)
{
    test_begin("moe", argc, argv);
    test_router_values();
    test_router_rules();
    test_router_nan();
    test_router_random();
    test_router_bits();
    test_router_rules_nan();
    test_worklist();
    return test_end();
}
