/* bank_stream.h - banks of experts that pass through VRAM while a prompt is computed.
 *
 * Of each layer's bank, what has no place in VRAM comes in parts through two buffers: one is filled
 * while products read the other. The order of layers is known, so the next part is always on its
 * way. Where experts have places (vram_places.h), those that the prompt wants most stay there. */
#ifndef ENGINE_GPU_BANK_STREAM_H
#define ENGINE_GPU_BANK_STREAM_H

#include "cuda/gpu.h"
#include "moe/expert_store.h"
#include "moe/vram_places.h"
#include "tiers/plan.h"

typedef struct bank_stream bank_stream;

/* For the layers of which the plan keeps fewer than all experts in VRAM; the plan also sizes the
 * buffers. places NULL: no expert of these layers has a place. Borrows everything but banks. */
int bank_stream_create(bank_stream **out, gpu *g, const expert_banks *banks, expert_store *store,
                       vram_places *places, const plan *p, err_ctx *err);
void bank_stream_free(bank_stream *b);   /* NULL is fine; waits */

/* VRAM that it takes beside the buffers. */
uint64_t bank_stream_bytes(const expert_banks *banks);

/* A chunk of prompt begins, and the device is idle: the first parts are sent. */
int bank_stream_begin(bank_stream *b, err_ctx *err);

/* The experts of the next such layer: gpu_experts, part by part. in_step: the host does not run
 * ahead of the bus. */
int bank_stream_run(bank_stream *b, int layer, gpu_input *in, gpu_expert_args *a, bool in_step,
                    err_ctx *err);

#endif
