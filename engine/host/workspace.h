/* workspace.h - every buffer that a batch on the CPU writes, allocated once for the largest chunk.
 *
 * Buffers of attention and DeltaNet share one region. Only x and the rotation tables keep their
 * contents from one layer to the next. One thread at a time, the owner of the team. */
#ifndef ENGINE_HOST_WORKSPACE_H
#define ENGINE_HOST_WORKSPACE_H

#include "engine/host/ops.h"
#include "moe/worklist.h"

typedef struct workspace {
    int chunk;                           /* most tokens of a batch */
    float *x;                            /* [n, n_embd] the residual stream */
    float *h;                            /* [n, n_embd] normed */
    float *y;                            /* [n, n_embd] result of the mixer, to be added to x */
    acts hx;                             /* h (or the mixer's last vector) for products */

    float *rope_cos[2], *rope_sin[2];    /* [n, dim / 2]; [1]: windowed layers */

    float *hidden;                       /* [n, n_embd] the next-token block's vectors of the tokens
                                          * before; NULL without a block, as is the next */
    float *joined;                       /* [n, 2, n_embd]: embedding and such a vector, normed */

    /* attention */
    float *q, *k, *v, *heads;            /* [n, heads * head_dim] */
    float *q_gate;                       /* [n, heads, 2, head_dim]: query and gate of each head */

    /* DeltaNet */
    float *qkvz;                         /* [n, channels + v]: legacy projection */
    float *qkv, *mixed, *z;              /* [n, channels], the same after convolution, [n, v] */
    float *ba, *delta_gates;             /* [n, 2 * n_v_head] each; write strengths and decays
                                          * before and after their functions */

    /* experts */
    float *router;                       /* [n, n_expert] logits */
    int32_t *ids;                        /* [n, k] chosen, in order */
    float *gates;                        /* [n, k] their weights */
    worklist *work;
    float *slots;                        /* [n * k, n_embd]: one vector for each chosen expert */
    float *shared_gate, *shared_up, *shared_y, *shared_sigma;
    acts shared_x;

    float *thread_scratch;               /* thread_floats for each thread */
    size_t thread_floats;

    void *block;                         /* the memory of all of these */
} workspace;

/* Bytes for chunks of n tokens; UINT64_MAX if that is too much to count. */
uint64_t workspace_bytes(const model *m, int n_thread, int chunk);
int workspace_create(workspace **out, const model *m, int n_thread, int chunk, err_ctx *err);
void workspace_free(workspace *w);

#endif
