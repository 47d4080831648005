/* expert_prediction.cuh - predicts the experts that the next layer will probably choose.
 *
 * The kernel ask (experts_with_host.cu) stores its vector. A kernel in the stream g->ahead applies
 * the next layer's router to it and writes the likeliest cold experts to the mailbox; the host then
 * reads their weights into the CPU's caches. No result depends on a prediction, and the main stream
 * waits for predictions only at the end of a token. A late prediction is dropped. */
#ifndef CUDA_EXPERT_PREDICTION_CUH
#define CUDA_EXPERT_PREDICTION_CUH

#include "cuda/fetch.cuh"

typedef struct prediction_parts {
    float *logits;                       /* [n_expert] */
    uint32_t *done;                      /* blocks that have ended; zero before and after */
    /* One for each layer, because a prediction may be late by several layers. */
    uint8_t *layers;                     /* [n_layer, layer_bytes]: number and normed vector */
    size_t layer_bytes;
} prediction_parts;
prediction_parts prediction_layout(void *base, int n_expert, int n_embd);

static inline uint32_t *prediction_number(const prediction_parts *p, int layer)
{
    return (uint32_t *)(p->layers + (size_t)layer * p->layer_bytes);
}

static inline float *prediction_vector(const prediction_parts *p, int layer)
{
    return (float *)(p->layers + (size_t)layer * p->layer_bytes + round_up(sizeof(uint32_t)));
}

/* Predicts for the layer after s, in g->ahead after g->fork. Records g->predicted. */
void prediction_next(gpu *g, const gpu_with_host *s, const prediction_parts *parts, int k);

#endif
