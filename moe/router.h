/* router.h - gate scores to the experts of a token: which, in which order, with which weights. */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "loader/base.h"

/* The k largest of n logits in descending order, ties to the lower id, and the softmax over those
 * k. (A softmax over all n, renormalised over the k, is the same thing.) NaN ranks below every
 * number, so ids are always k different ones; with a NaN among them all weights are NaN.
 * 1 <= k <= n. */
void router_select(int32_t *ids, float *weights, const float *logits, int n, int k);

#endif
