/* layer_time.h - how long a layer of one token should take, given how many of its chosen experts
 * are where.
 *
 * Plans (plan.h) add this up over an even choice of experts; whoever knows the real choices, such
 * as a replay of recorded routing, adds it up over these. Pure: no I/O, no clock. Rates without
 * zeros (speeds_assume). */
#ifndef TIERS_LAYER_TIME_H
#define TIERS_LAYER_TIME_H

#include "tiers/speeds.h"

/* A layer's experts by their bytes. */
typedef struct layer_experts {
    uint64_t bytes, down_bytes;          /* of one; of that its down slab */
    int n_used;
} layer_experts;

/* Dense part on a GPU, n_cold of the experts not in VRAM: the CPU computes these, with post-fetch
 * as far as it pays. */
double layer_time_gpu(const layer_experts *e, int n_cold, const speeds *rate);

/* All on the CPU, n_missed of the experts read from a drive. */
double layer_time_cpu(const layer_experts *e, int n_missed, const speeds *rate);

#endif
