/* router.c - top-k and softmax of one token's gate scores. */
#include "moe/router.h"

#include <math.h>

/* NaN below every number, so that it is chosen last. */
static float rank_of(float logit)
{
    return isnan(logit) ? -INFINITY : logit;
}

void router_select(int32_t *ids, float *weights, const float *logits, int n, int k)
{
    /* Insertion into a sorted list: k is at most a few, and most logits fail the first test. */
    int held = 0;
    for (int e = 0; e < n; e++) {
        const float v = rank_of(logits[e]);
        if (held == k && !(v > rank_of(logits[ids[k - 1]]))) continue;
        int at = held < k ? held++ : k - 1;
        for (; at > 0 && v > rank_of(logits[ids[at - 1]]); at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
    double sum = 0.0;
    const double top = logits[ids[0]];
    for (int r = 0; r < k; r++) sum += exp((double)logits[ids[r]] - top);
    for (int r = 0; r < k; r++)
        weights[r] = (float)(exp((double)logits[ids[r]] - top) / sum);
}
