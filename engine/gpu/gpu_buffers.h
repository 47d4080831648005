/* gpu_buffers.h - every buffer in VRAM that a batch on the GPU writes, allocated once for the
 * largest chunk. The session's thread creates and frees them; afterwards only the device writes. */
#ifndef ENGINE_GPU_GPU_BUFFERS_H
#define ENGINE_GPU_GPU_BUFFERS_H

#include "cuda/gpu.h"
#include "engine/models/model.h"

typedef struct gpu_buffers {
    float *x;                            /* [n, n_embd] the residual stream */
    float *rows;                         /* [n, widest] a product's finished input */
    void *halves;                        /* the same in 16 bits */
    void *lows;                          /* rows - halves, in 16 bits; NULL: not kept */
    void *blocks;                        /* rows in int8, of a pass */
    void *codes;                         /* gpu_input.codes; each product makes its own */
    float *rope_cos[2], *rope_sin[2];
    double *freq[2];
    float *q, *k, *v, *heads;            /* attention; q with its gates */
    float *raw, *mixed, *z, *ba, *delta; /* DeltaNet */
    void *delta_chunks;
    float *router, *keys, *gates;        /* experts */
    float *sigma;                        /* [n] gate of the shared expert; 1 if it has none */
    int32_t *chosen;
    float *sums;                         /* [n, n_embd] of experts that the host computed */
    float *hidden;                       /* [n, n_embd] batch.hidden; NULL without a next-token
                                          * block */
    float *parts[2];                     /* [n, n_embd] vectors that are normed before they are
                                          * added: attention or experts, and the parallel network;
                                          * NULL if the model norms none */
    float *parallel_rows;                /* rows, blocks and scratch of the parallel network, */
    void *parallel_blocks, *parallel_scratch;      /* of a pass */
    void *experts;                       /* scratch of experts and of dense networks */
    float *partial;                      /* attention over long stores */
    int n_logits;                        /* rows of logits: tokens of the largest pass */
    float *logits;                       /* [n_logits, n_vocab] */
    int32_t *ids;                        /* [n] */
    gpu_cursor *cursor;                  /* [n_logits] */
    uint32_t *counters;                  /* [1 + n_logits * n_head]: pick, attention */
    uint32_t *best;
    float *bias, *work;                  /* sampling: [n_logits, n_vocab], and the same rounded
                                          * up to blocks */
    double *steps;
    uint32_t *top;                       /* [n_logits] */
    void *gemm;                          /* lent to the device; NULL: it needs none */
    void *arena;                         /* the memory of all of these */
} gpu_buffers;

/* Tokens of the largest batch, and of the largest pass: GPU_FEW to GPU_RECORDED. */
typedef struct batch_sizes {
    int chunk, pass;
} batch_sizes;

/* Buffers are zeroed. A failure leaves nothing allocated. */
int gpu_buffers_init(gpu_buffers *b, gpu *g, const model *m, batch_sizes most, err_ctx *err);
void gpu_buffers_release(gpu_buffers *b, gpu *g);        /* a zeroed b is fine */
uint64_t gpu_buffers_bytes(const gpu *g, const model *m, batch_sizes most);

#endif
