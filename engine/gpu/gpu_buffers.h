/* gpu_buffers.h - every buffer in VRAM that a batch on the GPU writes, allocated once for the
 * largest chunk. */
#ifndef ENGINE_GPU_GPU_BUFFERS_H
#define ENGINE_GPU_GPU_BUFFERS_H

#include "cuda/gpu.h"
#include "engine/models/model.h"

enum { LOGIT_ROWS = GPU_FEW };           /* computed together */

typedef struct gpu_buffers {
    float *x;                            /* [n, n_embd] the residual stream */
    float *rows;                         /* [n, widest] a product's finished input */
    void *halves;                        /* the same in 16 bits */
    void *lows;                          /* what these leave out; NULL: that is not kept */
    void *blocks;                        /* the same of few tokens in int8 */
    float *rope_cos[2], *rope_sin[2];
    double *freq[2];
    float *q, *k, *v, *heads;            /* attention; q with its gates */
    float *raw, *mixed, *z, *ba, *delta; /* DeltaNet */
    void *delta_chunks;
    float *router, *keys, *gates;        /* experts */
    float *sigma;                        /* [n] of the shared one: ones if it has no gate */
    int32_t *chosen;
    float *sums;                         /* [n, n_embd] of experts that the host computed */
    float *parts[2];                     /* [n, n_embd] that are normed before they are added:
                                          * attention or experts, and the network beside these;
                                          * NULL where nothing is */
    float *parallel_rows;                /* of that network, for few tokens: like rows, blocks, */
    void *parallel_blocks, *parallel_scratch;      /* and scratch */
    void *experts;                       /* scratch, of networks, too */
    float *partial;                      /* attention over long stores */
    float *logits;                       /* [LOGIT_ROWS, n_vocab] */
    int32_t *ids;                        /* [n] */
    gpu_cursor *cursor;
    uint32_t *counters;                  /* [1 + GPU_FEW * n_head]: pick, attention */
    uint32_t *best;
    float *bias, *work;                  /* sampling: [n_vocab], and rounded up to blocks */
    double *steps;
    uint32_t *top;
    void *gemm;                          /* lent to the device; NULL: it wants none */
    void *arena;                         /* what all of these lie in */
} gpu_buffers;

/* All zero. Nothing is left behind on failure. */
int gpu_buffers_init(gpu_buffers *b, gpu *g, const model *m, int chunk, err_ctx *err);
void gpu_buffers_release(gpu_buffers *b, gpu *g);        /* accepts a zeroed one */
uint64_t gpu_buffers_bytes(const gpu *g, const model *m, int chunk);

#endif
