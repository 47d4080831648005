/* expert_predictor.h - guesses which experts the next layer will choose, while this one is computed.
 *
 * A token's vector changes little from one layer to the next: the next layer's router mostly
 * chooses the same experts for this layer's input as for its own. Where experts are read from a
 * drive, some of them can be read early, so that the drive has something to do while the layer in
 * between is computed. A wrong guess costs a read, and never a bit: results do not depend on it.
 *
 * How often guesses were right is counted, and picks are made on good ranks alone. One thread at a
 * time. */
#ifndef ENGINE_HOST_EXPERT_PREDICTOR_H
#define ENGINE_HOST_EXPERT_PREDICTOR_H

#include "engine/host/ops.h"

typedef struct expert_predictor expert_predictor;

/* Keeps routers of its own, of those layers whose flag and that of the layer before them is set:
 * expert_predictor_bytes. Borrows o. */
int expert_predictor_create(expert_predictor **out, const ops *o, const weights *w, const model_hparams *hp,
                     const bool *layers, err_ctx *err);
void expert_predictor_free(expert_predictor *f);       /* NULL is fine */
uint64_t expert_predictor_bytes(const model_hparams *hp, const bool *layers);

/* The experts that the layer behind this one will probably choose, the likeliest first, from x, one
 * token's input of this layer's experts. Returns how many, 0 if there is nothing to guess from;
 * they are f's, until the next guess. */
int expert_predictor_guess(expert_predictor *f, int layer, acts *x, const int32_t **experts);

/* Of a guess about a layer, n experts that would have to be read, in its order: how many of the
 * first are worth it. Remembered until the layer's choice is told. */
enum { PREDICTOR_PICKS = 3 };
int expert_predictor_pick(expert_predictor *f, int layer, const int *experts, int n);
void expert_predictor_tell(expert_predictor *f, int layer, const int *chosen, int n);

#endif
