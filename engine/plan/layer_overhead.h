/* layer_overhead.h - the time of a layer of one token on the GPU beyond its weights' bytes.
 *
 * Records and replays the steps of the token loop over the model's first layers, with weights of
 * zeros. The overhead is the time that kernels wait for each other, and the time that they need
 * beyond that of a kernel that only reads. Called from the thread that opened the device. */
#ifndef ENGINE_PLAN_LAYER_OVERHEAD_H
#define ENGINE_PLAN_LAYER_OVERHEAD_H

#include "cuda/gpu.h"
#include "engine/host/weights.h"
#include "engine/models/rope.h"

/* Bounds of an overhead in seconds. A measurement outside is set to the nearer bound. */
#define LAYER_OVERHEAD_LEAST_S 1e-6
#define LAYER_OVERHEAD_MOST_S 1e-3
double layer_overhead_within(double s);

typedef struct layer_overhead {
    double dense;                        /* seconds of a layer up to the choice of experts */
    double hot;                          /* seconds of its experts, all in VRAM */
} layer_overhead;

/* vram_read: bytes per second, for the time of the weights' bytes. Takes about 0.1 s, and 1 GB of
 * VRAM or one layer if that is more; ERR_NOMEM without it. */
int measure_layer_overhead(layer_overhead *out, gpu *g, const model *m, const weights *w,
                           const rope_tables *rope, double vram_read, err_ctx *err);

#endif
