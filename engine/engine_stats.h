/* engine_stats.h - measurements and counts of an engine, for benches, planners and status views. */
#ifndef ENGINE_ENGINE_STATS_H
#define ENGINE_ENGINE_STATS_H

#include "engine/engine.h"

/* The machine's speeds with this model's shapes: measure_speeds of engine/plan/measure.h. g may be
 * NULL. */
struct gpu;
struct speeds;
int engine_measure(struct speeds *out, engine *e, struct gpu *g, uint64_t ram_bytes,
                   double seconds, keep_going_fn *watch, void *ctx, err_ctx *err);

/* Where the time goes when the GPU takes in n tokens, a chunk at most: a span for each kernel, in
 * order, at most cap. *bandwidth: bytes/s of a kernel that only reads. The caller rewinds the
 * session afterwards. Returns the number of spans, or < 0. */
struct gpu_span;
int session_profile(session *s, struct gpu_span *spans, int cap, const int32_t *ids, int n,
                    double *bandwidth, err_ctx *err);

/* Throttles the GPU's bandwidth, after gpu_limit_sms: cuda/gpu.h. Fails without a GPU. */
struct gpu_throttled;
int engine_throttle_begin(engine *e, double share, struct gpu_throttled *out, err_ctx *err);
int engine_throttle_end(engine *e, err_ctx *err);

/* The tier of every expert: tiers [n_layer, n_expert] of the model, an expert_tier each. May be
 * called while a session of the engine is between two layers of a prompt. */
typedef enum expert_tier {
    EXPERT_ON_DRIVE, EXPERT_IN_RAM, EXPERT_IN_VRAM,
    EXPERT_NONE                          /* the layer has no experts */
} expert_tier;
void engine_expert_tiers(const engine *e, uint8_t *tiers);

#endif
