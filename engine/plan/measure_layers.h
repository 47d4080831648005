/* measure_layers.h - what a layer of one token takes on the GPU beyond its weights' bytes.
 *
 * The steps of the token loop, recorded and played as there, over the first layers of the model
 * with weights of zeros: their shapes are the model's own, so the figures hold what kernels wait
 * for each other, and what they stay below the speed of a kernel that only reads. */
#ifndef ENGINE_PLAN_MEASURE_LAYERS_H
#define ENGINE_PLAN_MEASURE_LAYERS_H

#include "cuda/gpu.h"
#include "engine/host/weights.h"
#include "engine/models/rope.h"

/* No layer takes less, or, beyond its bytes, more: what is measured outside is an accident, and
 * such a figure is set to the nearer one. */
#define LAYER_LEAST_S 1e-6
#define LAYER_MOST_S 1e-3
double layer_cost_within(double s);

typedef struct layer_costs {
    double dense;                        /* s of a layer up to the choice of experts, */
    double hot;                          /* and of its experts, all in VRAM */
} layer_costs;

/* vram_read: bytes per second, what bytes are counted with. Takes a tenth of a second at most on
 * all but slow devices, and up to a gigabyte of VRAM, or one layer if that is more; ERR_NOMEM if
 * that is not there. */
int measure_layers(layer_costs *out, gpu *g, const model *m, const weights *w,
                   const rope_tables *rope, double vram_read, err_ctx *err);

#endif
