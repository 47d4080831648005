/* router_ahead.h - guesses which experts the next layer will choose, while this one is computed.
 *
 * A token's vector changes little from one layer to the next: the next layer's router mostly
 * chooses the same experts for this layer's input as for its own. Where experts are read from a
 * drive, some of them can be read early, so that the drive has something to do while the layer in
 * between is computed. Which guesses are worth a read is moe/expert_predictor.h's decision. One
 * thread at a time. */
#ifndef ENGINE_HOST_ROUTER_AHEAD_H
#define ENGINE_HOST_ROUTER_AHEAD_H

#include "engine/host/ops.h"
#include "moe/expert_predictor.h"
#include "moe/expert_store.h"

typedef struct router_ahead router_ahead;

/* Keeps its own copies of routers, which take router_ahead_bytes: those of layers whose flag and
 * whose predecessor's flag are set. Borrows o. */
int router_ahead_create(router_ahead **out, const ops *o, const weights *w, const model_hparams *hp,
                        const bool *layers, err_ctx *err);
void router_ahead_free(router_ahead *r); /* NULL is fine */
uint64_t router_ahead_bytes(const model_hparams *hp, const bool *layers);

/* The experts that the layer after this one will probably choose, the likeliest first, guessed from
 * x, one token's input to this layer's experts. Returns how many, 0 if there is nothing to guess
 * from; the list is r's, good until the next guess. */
int router_ahead_guess(router_ahead *r, int layer, acts *x, const int32_t **experts);

/* Guesses, and has the store read early what is worth it; after expert_store_want. Never fails. */
void router_ahead_read(router_ahead *r, expert_store *s, int layer, acts *x);

/* What a layer chose. */
void router_ahead_tell(router_ahead *r, int layer, const int *chosen, int n);

#endif
