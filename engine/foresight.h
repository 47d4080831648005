/* foresight.h - guesses which experts the next layer will choose, while this one is computed.
 *
 * A token's vector changes little from one layer to the next: the next layer's router mostly
 * chooses the same experts for this layer's input as for its own. Where experts are read from a
 * drive, some of them can be read early, so that the drive has something to do while the layer in
 * between is computed. A wrong guess costs a read, and never a bit: results do not depend on it.
 *
 * How often guesses were right is counted, and bets are made on good ranks alone. One thread at a
 * time. */
#ifndef ENGINE_FORESIGHT_H
#define ENGINE_FORESIGHT_H

#include "engine/ops.h"

typedef struct foresight foresight;

/* Keeps routers of its own, of those layers whose flag and that of the layer before them is set:
 * foresight_bytes. Borrows o. */
int foresight_create(foresight **out, const ops *o, const weights *w, const model_hparams *hp,
                     const bool *layers, err_ctx *err);
void foresight_free(foresight *f);       /* NULL is fine */
uint64_t foresight_bytes(const model_hparams *hp, const bool *layers);

/* The experts that the layer behind this one will probably choose, the likeliest first, from x, one
 * token's input of this layer's experts. Returns how many, 0 if there is nothing to guess from;
 * they are f's, until the next guess. */
int foresight_guess(foresight *f, int layer, acts *x, const int32_t **experts);

/* Of a guess about a layer, n experts that would have to be read, in its order: how many of the
 * first are worth it. Remembered until the layer's choice is told. */
enum { FORESIGHT_BETS = 3 };
int foresight_bet(foresight *f, int layer, const int *experts, int n);
void foresight_tell(foresight *f, int layer, const int *chosen, int n);

#endif
