/* router.c - the best of one token's gate scores, and their weights. */
#include "moe/router.h"

#include <math.h>

/* ---- scores ---------------------------------------------------------------------------------- */

/* The arithmetic contract's exp, one at a time: engine/cpu/exact_exp.h has it for eight. */
static float exact_exp_of(float z)
{
    union { float f; uint32_t bits; } p, t;
    if (isnan(z)) return z;
    z = z > 88.0f ? 88.0f : z;
    z = z < -87.0f ? -87.0f : z;
    t.f = fmaf(z, 0x1.715476p+0f, 12582912.0f);
    const float n = t.f - 12582912.0f;
    float r = fmaf(n, -0x1.62e430p-1f, z);
    r = fmaf(n, 0x1.05c610p-29f, r);
    p.f = fmaf(0x1.6a23d0p-10f, r, 0x1.123a20p-7f);
    p.f = fmaf(p.f, r, 0x1.5558f2p-5f);
    p.f = fmaf(p.f, r, 0x1.555492p-3f);
    p.f = fmaf(p.f, r, 0x1.fffffcp-2f);
    p.f = fmaf(p.f, r, 1.0f);
    p.f = fmaf(p.f, r, 1.0f);
    p.bits += t.bits << 23;
    return p.f;
}

enum { LANES = 32 };

static float sum_of(float lane[LANES])
{
    for (int d = LANES / 2; d > 0; d /= 2)
        for (int i = 0; i < d; i++) lane[i] += lane[i + d];
    return lane[0];
}

/* The inputs of a choice. */
typedef struct ranking {
    const float *logits, *bias;          /* bias NULL: logits alone */
    bool sigmoid;
    float top, sum;                      /* of a softmax over all */
} ranking;

static float score_of(const ranking *r, int e)
{
    if (r->sigmoid) return 1.0f / (1.0f + exact_exp_of(-r->logits[e]));
    return exact_exp_of(r->logits[e] - r->top) / r->sum;
}

/* NaN below every number, so that it is chosen last. */
static float rank_of(const ranking *r, int e)
{
    const float v = r->bias ? score_of(r, e) + r->bias[e] : r->logits[e];
    return isnan(v) ? -INFINITY : v;
}

/* The sum of a softmax over all; a NaN spreads. */
static void weigh_all(ranking *r, int n)
{
    float lane[LANES] = { 0.0f };
    r->top = r->logits[0];
    for (int e = 1; e < n; e++) r->top = fmaxf(r->top, r->logits[e]);
    for (int e = 0; e < n; e++) lane[e % LANES] += exact_exp_of(r->logits[e] - r->top);
    r->sum = sum_of(lane);
}

/* ---- choice and weights ---------------------------------------------------------------------- */

/* Insertion into a sorted list: k is at most a few, and most experts fail the first test. */
static void choose(int32_t *ids, const ranking *r, int n, int k)
{
    int held = 0;
    float last = 0.0f;                   /* rank of the k-th */
    for (int e = 0; e < n; e++) {
        const float v = rank_of(r, e);
        if (held == k && !(v > last)) continue;
        int at = held < k ? held++ : k - 1;
        for (; at > 0 && v > rank_of(r, ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = e;
        last = rank_of(r, ids[held - 1]);
    }
}

/* The usual weights: a softmax over the chosen ones alone. */
static void weigh_chosen(float *weights, const int32_t *ids, const float *logits, int k)
{
    double sum = 0.0, top = logits[ids[0]];
    for (int i = 1; i < k; i++) top = fmax(top, logits[ids[i]]);
    for (int i = 0; i < k; i++) sum += exp((double)logits[ids[i]] - top);
    for (int i = 0; i < k; i++) weights[i] = (float)(exp((double)logits[ids[i]] - top) / sum);
}

static void weigh_scores(float *weights, const int32_t *ids, const ranking *r, int k,
                         const router_rule *rule)
{
    float lane[LANES] = { 0.0f };
    for (int i = 0; i < k; i++) {
        weights[i] = score_of(r, ids[i]);
        lane[i % LANES] += weights[i];
    }
    const float sum = sum_of(lane);
    for (int i = 0; i < k; i++) {
        if (!rule->as_scored) weights[i] /= sum;
        if (rule->factor > 0.0f) weights[i] *= rule->factor;
    }
}

void router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                   const router_rule *rule)
{
    const bool usual = !rule || (rule->score == ROUTER_SOFTMAX && !rule->as_scored &&
                                 !rule->bias && !(rule->factor > 0.0f));
    ranking r = { .logits = logits };
    if (!usual) {
        r.bias = rule->bias;
        r.sigmoid = rule->score == ROUTER_SIGMOID;
        if (!r.sigmoid) weigh_all(&r, n);
    }
    choose(ids, &r, n, k);
    if (usual) weigh_chosen(weights, ids, logits, k);
    else weigh_scores(weights, ids, &r, k, rule);
}
