/* kept_inputs.h - what the DeltaNet layers were given for the tokens of one batch.
 *
 * The recurrent state cannot be shortened. But with the version before the batch, the first of
 * these inputs make the version after any of its tokens: forward_again. So a conversation can go
 * back by a few tokens, such as drafts that were wrong. Memory is in the spaces of the segments. */
#ifndef ENGINE_SESSION_KEPT_INPUTS_H
#define ENGINE_SESSION_KEPT_INPUTS_H

#include "engine/models/model.h"
#include "engine/session/layer_segments.h"

enum { KEPT_TOKENS = 8 };                /* most tokens of such a batch */

typedef struct kept_inputs kept_inputs;

/* in: all layers of the model. */
int kept_inputs_create(kept_inputs **out, const model *m, const layer_segments *in, err_ctx *err);
void kept_inputs_free(kept_inputs *k);   /* NULL is fine */
uint64_t kept_inputs_layer_bytes(const model *m, int layer);     /* 0 without DeltaNet */

/* Of one layer from token `first` on, in the layout of the processor that computes it. */
typedef struct layer_inputs {
    float *raw, *mixed;                  /* [n, channels] before and after the convolution */
    float *gates;                        /* [n, 2 * n_v_head]: write strengths and decays */
} layer_inputs;
layer_inputs kept_inputs_of(const kept_inputs *k, int layer, int first);

#endif
