/* recurrent.h - a version of the convolution windows and recurrent states of a session's DeltaNet
 * layers.
 *
 * The state is a lossy summary of all tokens so far: it can be replaced by another version of
 * itself, never shortened. So a batch may read one version and write another, and the session takes
 * the second one if the batch succeeds. A version has one block of memory for each segment of
 * layers: a snapshot is one copy of each. Addresses are in the segment's space. One thread at a
 * time. */
#ifndef ENGINE_SESSION_RECURRENT_H
#define ENGINE_SESSION_RECURRENT_H

#include "engine/models/model.h"
#include "engine/session/layer_blocks.h"

typedef struct recurrent recurrent;

/* All zero. in: all layers of the model. */
int recurrent_create(recurrent **out, const model *m, const layer_segments *in, err_ctx *err);
void recurrent_free(recurrent *r);
uint64_t recurrent_bytes(const model *m);                /* of all blocks; 0 without DeltaNet,
                                                          * UINT64_MAX: too much */
uint64_t recurrent_layer_bytes(const model *m, int layer);       /* of one layer; likewise */

/* [ssm_conv - 1, channels]: inputs of the last tokens before convolution, oldest first. Channels
 * are q, k (n_k_head * head_dim each) and v (n_v_head * head_dim). */
float *recurrent_conv(recurrent *r, int layer);
/* [n_v_head, head_dim (of keys), head_dim (of values)] */
float *recurrent_state(recurrent *r, int layer);

/* The same two as offsets in the layer's block, in bytes. */
typedef struct recurrent_place { uint64_t conv, state; } recurrent_place;
recurrent_place recurrent_place_of(const recurrent *r, int layer);

void recurrent_clear(recurrent *r);

const layer_blocks *recurrent_memory(const recurrent *r);        /* for copies */

#endif
