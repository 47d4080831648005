/* expert_prediction.cuh - experts of the next layer that cross the bus before it asks for them.
 *
 * ask leaves its vector; beside the stream, the next layer's router is applied to it, and those of
 * the experts that it would choose which are not in VRAM are fetched. The next layer's ask takes
 * what was guessed if the list was complete by then: one word decides, which either side changes
 * once (where nothing is fetched, nobody looks at lists, and guesses may be several layers late).
 * So a slab on the list is always fetched and, by the order of the streams, is there when the
 * layer's second up kernel reads it. What comes too late is neither fetched nor used. */
#ifndef CUDA_EXPERT_PREDICTION_CUH
#define CUDA_EXPERT_PREDICTION_CUH

#include "cuda/fetch.cuh"

typedef struct prediction_list {         /* for the layers of one turn */
    uint32_t deal;                       /* 2 * number: complete for that question; + 1: that
                                          * question has been asked */
    int32_t n;
    slot_place slots[GPU_MOST_PREDICTIONS];  /* where: GPU_FETCHED, or GPU_HOT from n on */
} prediction_list;

typedef struct prediction_parts {
    prediction_list *lists;              /* [2] */
    float *logits;                       /* [n_expert] */
    uint32_t *done;                      /* blocks; zero before and after */
    pull_state *pull;
    /* Of every layer, because where nothing is fetched a guess may be late by several. */
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

/* In g->ahead, after g->fork: guesses for the layer after s; if something is fetched on a guess,
 * fetches it after g->pulled. g->guessed is when all of that is there. */
void prediction_next(gpu *g, const gpu_with_host *s, const prediction_parts *parts, int k);

/* ---- in the kernel that asks ----------------------------------------------------------------- */

typedef struct prediction_view {         /* what is on the list, in shared memory */
    int n;
    int id[GPU_MOST_PREDICTIONS];
    const uint8_t *gate[GPU_MOST_PREDICTIONS], *up[GPU_MOST_PREDICTIONS],
        *down[GPU_MOST_PREDICTIONS];
} prediction_view;

/* By one warp: the layer asks now. What has been guessed for it, if the list is complete. */
static __device__ __forceinline__ void prediction_close(prediction_view *to, prediction_list *list,
                                                        uint32_t number)
{
    const int lane = threadIdx.x % 32;
    int n = 0;
    if (list && lane == 0 && atomicExch(&list->deal, 2 * number + 1) == 2 * number) {
        __threadfence();                 /* nothing of the list is read before this */
        n = __ldcg(&list->n);
    }
    n = __shfl_sync(~0u, n, 0);
    if (lane == 0) to->n = n;
    if (lane >= n) return;
    const slot_place *p = &list->slots[lane];
    to->id[lane] = __ldcg(&p->id);
    to->gate[lane] = (const uint8_t *)__ldcg((const unsigned long long *)&p->gate);
    to->up[lane] = (const uint8_t *)__ldcg((const unsigned long long *)&p->up);
    to->down[lane] = (const uint8_t *)__ldcg((const unsigned long long *)&p->down);
}

/* Whether p->id was guessed; then where its slabs are. */
static __device__ __forceinline__ void prediction_find(slot_place *p, const prediction_view *v)
{
    for (int i = 0; i < v->n; i++) {
        if (v->id[i] != p->id) continue;
        p->where = GPU_GUESSED;
        p->gate = v->gate[i];
        p->up = v->up[i];
        p->down = v->down[i];
    }
}

#endif
