/* layer_time.h - how long a layer of one token should take, given how many of its chosen experts
 * are where.
 *
 * Plans (plan.h) add this up over an even choice of experts; whoever knows the real choices, such
 * as a replay of recorded routing, adds it up over these. Pure: no I/O, no clock. Rates without
 * zeros (speeds_assume). */
#ifndef TIERS_LAYER_TIME_H
#define TIERS_LAYER_TIME_H

#include "tiers/speeds.h"

/* Seconds that a layer takes beyond its bytes: gpt-oss-20b 780 us for 1300 MB and 24 layers at
 * 4.5 TB/s, Qwen3-Next 1330 us for 1424 MB and 48 layers. */
#define LAYER_DENSE_S 20e-6
#define LAYER_HOT_S 8e-6
/* The same on the CPU, which waits for its threads about ten times: the demo models 240 and 280 us
 * for 4.1 and 2.4 MB and 4 layers. */
#define LAYER_CPU_S 30e-6
/* Until the first bytes of an expert come from a drive, and what does not overlap at the end. */
#define LAYER_DISK_S 0.2e-3

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
