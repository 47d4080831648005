/* router_ahead.h - predicts the experts of the next layer while this one is computed.
 *
 * A token's vector changes little from one layer to the next: the next layer's router mostly
 * chooses the same experts for this layer's input as for its own. If experts are read from a drive,
 * some of them are read early, so that the drive is not idle while this layer is computed.
 * moe/expert_predictor.h decides which predictions are read. One thread at a time. */
#ifndef ENGINE_HOST_ROUTER_AHEAD_H
#define ENGINE_HOST_ROUTER_AHEAD_H

#include "engine/host/ops.h"
#include "moe/expert_predictor.h"
#include "moe/expert_store.h"

typedef struct router_ahead router_ahead;

/* Keeps modified copies of routers (router_ahead_bytes), for layers whose flag and whose
 * predecessor's flag are set. Borrows o and w. */
int router_ahead_create(router_ahead **out, const ops *o, const weights *w, const model_hparams *hp,
                        const bool *layers, err_ctx *err);
void router_ahead_free(router_ahead *r); /* NULL is fine */
uint64_t router_ahead_bytes(const model_hparams *hp, const bool *layers);

/* The experts that the next layer will probably choose, the likeliest first, from x, one token's
 * input to this layer's experts. Returns their number; 0 if the next layer has no router here. The
 * list is valid until the next call. */
int router_ahead_predict(router_ahead *r, int layer, acts *x, const int32_t **experts);

/* Predicts, and lets the store read some of the experts early; after expert_store_want. A failure
 * is ignored. */
void router_ahead_read(router_ahead *r, expert_store *s, int layer, acts *x);

/* Reports the experts that a layer chose. */
void router_ahead_report(router_ahead *r, int layer, const int *chosen, int n);

#endif
