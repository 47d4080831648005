/* expert_stream.h - streams banks of experts through VRAM while a prompt is computed.
 *
 * The experts of a layer that have no VRAM frame pass in ranges through two buffers: one is filled
 * while kernels read the other. The order of layers is known, so the next range is always being
 * copied. With a VRAM cache (vram_cache.h) the prompt's most used experts get frames.
 *
 * Alternatively only some experts of a layer pass, picked after the layer's router, while the CPU
 * computes the others (split_border.h). */
#ifndef MOE_EXPERT_STREAM_H
#define MOE_EXPERT_STREAM_H

#include "cuda/gpu_experts.h"
#include "moe/expert_store.h"
#include "moe/vram_cache.h"
#include "tiers/plan.h"

typedef struct expert_stream expert_stream;

/* For the layers whose experts are not all in VRAM by the plan, which also sizes the buffers.
 * places NULL: no expert of these layers has a frame. Borrows all arguments except banks. */
int expert_stream_create(expert_stream **out, gpu *g, const expert_banks *banks,
                         expert_store *store, vram_cache *places, const plan *p, err_ctx *err);
void expert_stream_free(expert_stream *b);  /* NULL is fine; waits */

/* VRAM of its tables, without the buffers. */
uint64_t expert_stream_bytes(const expert_banks *banks);

/* Begins a chunk of a prompt and sends the first ranges. The device must be idle. */
int expert_stream_begin(expert_stream *b, err_ctx *err);

/* Computes the experts of the next such layer: gpu_experts, range by range. in_step: the host does
 * not run ahead of the bus. */
int expert_stream_run(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a, bool in_step,
                      err_ctx *err);

/* ---- some of a layer's experts ---- */

/* False if the store reads experts from the drive. */
bool expert_stream_can_pick(const expert_stream *b);

/* Sets in_vram [n_expert]: the layer's experts that have VRAM frames. */
void expert_stream_in_vram(const expert_stream *b, int layer, const gpu_expert_args *a,
                           bool *in_vram);

/* Computes the experts in VRAM and picked [n_expert] ones of the others: gpu_experts, range by
 * range, without the sum, for gpu_experts_join. At least one expert must be in VRAM or picked. Does
 * not wait. counts [n_expert]: slots of each expert, to choose new frames. Returns 0; 1 if the CPU
 * has no experts left, and then the sum is complete; or < 0. */
int expert_stream_pick(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a,
                       const bool *picked, const int32_t *counts, err_ctx *err);

/* Waits for the copies of the last expert_stream_pick, not for its kernels. */
int expert_stream_arrived(expert_stream *b, err_ctx *err);

#endif
