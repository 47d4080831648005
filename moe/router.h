/* router.h - gate scores to the experts of a token: which, in which order, with which weights. */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "loader/base.h"

typedef enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID } router_score;

/* How a family turns logits into weights. */
typedef struct router_rule {
    router_score score;                  /* over all experts */
    bool as_scored;                      /* weights are the scores; else divided by their sum */
    float factor;                        /* of all weights; 0: 1 */
    const float *bias;                   /* [n], added to scores for the choice alone; or NULL */
} router_rule;

/* The k best of n in descending order, ties to the lower id, and their weights. rule NULL, or all
 * of it 0: the usual softmax over those k. Without a bias the logits decide themselves: scores grow
 * with them. NaN ranks below every number, so ids are always k different ones; with a NaN among
 * them all weights are NaN (of a sigmoid's as_scored, that one alone). 1 <= k <= n.
 *
 * The usual weights are computed in double. All others have the same bits on every processor: F32
 * with the arithmetic contract's exp (NaN stays NaN), one operation after the other, sigmoid
 * 1 / (1 + exp(-x)), softmax exp(x - largest) / sum. A sum has 32 lanes that begin with 0: expert e
 * (of the chosen: rank e) is added to lane e % 32, in ascending order; then lanes i and i + 16 are
 * added, i and i + 8, and so on. */
void router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                   const router_rule *rule);

#endif
