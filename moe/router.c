/* router.c - the best of one token's gate scores, and their weights. */
#include "moe/router.h"

#include <math.h>

/* What a choice goes by. */
typedef struct ranking {
    const float *logits, *bias;          /* bias NULL: logits alone */
    bool sigmoid;
    double top, sum;                     /* of a softmax over all; only with a bias */
} ranking;

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static double score_of(const ranking *r, int e)
{
    return r->sigmoid ? sigmoid(r->logits[e]) : exp((double)r->logits[e] - r->top) / r->sum;
}

/* NaN below every number, so that it is chosen last. */
static float rank_of(const ranking *r, int e)
{
    const float v = r->bias ? (float)score_of(r, e) + r->bias[e] : r->logits[e];
    return isnan(v) ? -INFINITY : v;
}

/* The sum of a softmax over all; a NaN spreads. */
static void weigh_all(ranking *r, int n)
{
    r->top = r->logits[0];
    for (int e = 1; e < n; e++) r->top = fmax(r->top, r->logits[e]);
    r->sum = 0.0;
    for (int e = 0; e < n; e++) r->sum += exp((double)r->logits[e] - r->top);
}

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

/* Weights of a softmax, divided by their sum: over the chosen ones alone. */
static void weigh_chosen(float *weights, const int32_t *ids, const float *logits, int k)
{
    double sum = 0.0, top = logits[ids[0]];
    for (int i = 1; i < k; i++) top = fmax(top, logits[ids[i]]);
    for (int i = 0; i < k; i++) sum += exp((double)logits[ids[i]] - top);
    for (int i = 0; i < k; i++) weights[i] = (float)(exp((double)logits[ids[i]] - top) / sum);
}

void router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                   const router_rule *rule)
{
    static const router_rule usual = { .score = ROUTER_SOFTMAX };
    if (!rule) rule = &usual;
    ranking r = { .logits = logits, .bias = rule->bias, .sigmoid = rule->score == ROUTER_SIGMOID };
    const bool softmax = !r.sigmoid;
    if (softmax && (rule->bias || rule->as_scored)) weigh_all(&r, n);
    choose(ids, &r, n, k);
    if (softmax && !rule->as_scored) {
        weigh_chosen(weights, ids, logits, k);
    } else {
        double sum = 0.0;
        for (int i = 0; i < k; i++) sum += score_of(&r, ids[i]);
        for (int i = 0; i < k; i++)
            weights[i] = (float)(score_of(&r, ids[i]) / (rule->as_scored ? 1.0 : sum));
    }
    if (rule->factor > 0.0f)
        for (int i = 0; i < k; i++) weights[i] *= rule->factor;
}
