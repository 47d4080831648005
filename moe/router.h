/* router.h - gate scores to the experts of a token: which, in which order, with which weights. */
#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "loader/base.h"

/* The k largest of n logits in descending order, ties to the lower id, and the softmax over those
 * k. (A softmax over all n, renormalised over the k, is the same thing.) NaN ranks below every
 * number, so ids are always k different ones; with a NaN among them all weights are NaN.
 * 1 <= k <= n. */
void router_select(int32_t *ids, float *weights, const float *logits, int n, int k);

/* Told which experts n_token tokens from position pos on chose in a layer: ids [n_token, k], each
 * token's in the order of router_select. Only looks; ids are good during the call. */
typedef void routing_fn(void *ctx, int layer, int pos, int n_token, const int32_t *ids, int k);

#endif
