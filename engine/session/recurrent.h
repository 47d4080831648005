/* recurrent.h - what the DeltaNet layers of one session remember: convolution window and state.
 *
 * One block of memory for all layers, so that a snapshot is one copy. A lossy summary of all tokens
 * so far: it can be replaced by an earlier copy of itself, never shortened. All addresses here are
 * those of the space that the block is in. */
#ifndef ENGINE_SESSION_RECURRENT_H
#define ENGINE_SESSION_RECURRENT_H

#include "engine/models/model.h"
#include "tiers/mem_space.h"

typedef struct recurrent recurrent;

/* All zero. Borrows where until recurrent_free. */
int recurrent_create(recurrent **out, const model *m, mem_space *where, err_ctx *err);
void recurrent_free(recurrent *r);
uint64_t recurrent_bytes(const model *m);                /* of the block; 0 without DeltaNet,
                                                          * UINT64_MAX: too much */

/* [ssm_conv - 1, channels]: inputs of the last tokens before convolution, oldest first. Channels
 * are q, k (n_k_head * head_dim each) and v (n_v_head * head_dim). */
float *recurrent_conv(recurrent *r, int layer);
/* [n_v_head, head_dim (of keys), head_dim (of values)] */
float *recurrent_state(recurrent *r, int layer);

void recurrent_clear(recurrent *r);
void *recurrent_block(recurrent *r);                     /* recurrent_bytes() bytes, for copies */

#endif
