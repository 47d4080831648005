/* host_batch.h - a batch on the CPU, for host_steps.c and the mixers alone. */
#ifndef ENGINE_HOST_HOST_BATCH_H
#define ENGINE_HOST_HOST_BATCH_H

#include "engine/batch.h"
#include "engine/host/workspace.h"
#include "engine/models/rope.h"

typedef struct host_batch {
    const model *m;
    const weights *w;
    const ops *o;
    const rope_tables *rope;
    workspace *ws;
    int n;                               /* tokens */
    const batch_row *rows;               /* [n_row] */
    int n_row;
    bool is_pass;
    const kept_inputs *keep;             /* gets the inputs of DeltaNet layers; or NULL */
    const float *hx_norm;                /* hx is x with this norm; NULL: hx is out of date */
    int n_ff;                            /* width of the shared expert under way */
    bool of_mtp;                         /* a batch of the next-token block */
} host_batch;

/* Both read ws->h, the normed residual, and write their result, which the caller adds to the
 * residual, to ws->y. They may overwrite h. */
void mix_attention(host_batch *b, int layer);
void mix_deltanet(host_batch *b, int layer);
/* layer_steps.again, for b->rows[0] and the inputs in b->keep. */
void mix_deltanet_again(host_batch *b, int layer);

#endif
