/* expert_stream.h - banks of experts that pass through VRAM while a prompt is computed.
 *
 * Of each layer's bank, what has no place in VRAM comes in parts through two buffers: one is filled
 * while products read the other. The order of layers is known, so the next part is always on its
 * way. Where experts have places (vram_cache.h), those that the prompt wants most stay there.
 *
 * Or only some experts of a layer pass, picked when the layer's choices are known, while somebody
 * else computes the others (split_border.h). */
#ifndef MOE_EXPERT_STREAM_H
#define MOE_EXPERT_STREAM_H

#include "cuda/gpu_experts.h"
#include "moe/expert_store.h"
#include "moe/vram_cache.h"
#include "tiers/plan.h"

typedef struct expert_stream expert_stream;

/* For the layers of which the plan keeps fewer than all experts in VRAM; the plan also sizes the
 * buffers. places NULL: no expert of these layers has a place. Borrows everything but banks. */
int expert_stream_create(expert_stream **out, gpu *g, const expert_banks *banks,
                         expert_store *store, vram_cache *places, const plan *p, err_ctx *err);
void expert_stream_free(expert_stream *b);  /* NULL is fine; waits */

/* VRAM that it takes beside the buffers. */
uint64_t expert_stream_bytes(const expert_banks *banks);

/* A chunk of prompt begins, and the device is idle: the first parts are sent. */
int expert_stream_begin(expert_stream *b, err_ctx *err);

/* The experts of the next such layer: gpu_experts, part by part. in_step: the host does not run
 * ahead of the bus. */
int expert_stream_run(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a, bool in_step,
                      err_ctx *err);

/* ---- some of a layer's experts ---- */

/* Not from a cache before a drive. */
bool expert_stream_can_pick(const expert_stream *b);

/* Which experts of a layer are in VRAM already; there [n_expert]. */
void expert_stream_in_vram(const expert_stream *b, int layer, const gpu_expert_args *a,
                           bool *there);

/* The experts that are there, and those picked [n_expert] of the others: gpu_experts, part by part,
 * without the sum, for gpu_experts_join. At least one expert must be there or picked. Nothing is
 * waited for. counts [n_expert]: slots of each, for those that stay. Returns 0; 1 if no expert was
 * left for anybody else, so that the sum has been taken, too; or < 0. */
int expert_stream_pick(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a,
                       const bool *picked, const int32_t *counts, err_ctx *err);

/* Waits for the bytes that the last expert_stream_pick sent; not for what is computed with them. */
int expert_stream_arrived(expert_stream *b, err_ctx *err);

#endif
