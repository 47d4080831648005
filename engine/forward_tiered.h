/* forward_tiered.h - THE LOOP: a batch of tokens through all layers. Start reading here.
 *
 *   for each layer:  mix      attention or DeltaNet, residual
 *                    route    norm, router logits, top-k, weights
 *                    resolve  which lane computes which of the chosen experts
 *                    launch   the lanes, and the shared expert beside them
 *                    join     sum in selection order, residual
 */
#ifndef ENGINE_FORWARD_TIERED_H
#define ENGINE_FORWARD_TIERED_H

#include "engine/engine.h"
#include "engine/batch.h"

/* Takes p->n tokens through the layers: ws->x holds their last residual, state has not been
 * advanced. Asks watch after each layer and returns ERR_STOPPED if it says so; fails, too, where
 * experts cannot be read. The caller then puts the recurrent state back, for some layers have seen
 * the tokens and some have not. */
int forward_tiered(batch *p, const recipe *r, session_watch *watch, void *ctx, double before,
                   int total, err_ctx *err);

/* Logits [n_row, n_vocab] of the last n_row tokens of the batch. */
void forward_logits(batch *p, float *logits, int n_row);

#endif
