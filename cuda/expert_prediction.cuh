/* expert_prediction.cuh - names the experts that the next layer will probably choose to the host.
 *
 * ask stores its vector. A kernel in g->ahead applies the next layer's router to it and writes the
 * likeliest cold experts to the mailbox, for the host to read into the CPU's caches. No result
 * depends on a prediction, and the main stream waits for predictions at the end of a token alone. A
 * prediction whose layer has asked already is dropped. */
#ifndef CUDA_EXPERT_PREDICTION_CUH
#define CUDA_EXPERT_PREDICTION_CUH

#include "cuda/fetch.cuh"

typedef struct prediction_parts {
    float *logits;                       /* [n_expert] */
    uint32_t *done;                      /* blocks; zero before and after */
    /* Per layer, because a prediction may be late by several layers. */
    uint8_t *layers;                     /* the number of its question, and its finished vector */
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

/* In g->ahead, after g->fork: predicts for the layer after s. Records g->predicted. */
void prediction_next(gpu *g, const gpu_with_host *s, const prediction_parts *parts, int k);

#endif
