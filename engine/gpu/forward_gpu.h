/* forward_gpu.h - the token loop on the GPU: a layer is six kernels or so, a token one recording.
 *
 * The steps are those of forward_tiered.c. For a single token they are recorded once and played
 * again: position and token live on the device. Experts that are not in VRAM are the host's to
 * compute while the recording plays (host_experts.h), or pass through VRAM bank by bank when a prompt is
 * long enough. */
#ifndef ENGINE_GPU_FORWARD_GPU_H
#define ENGINE_GPU_FORWARD_GPU_H

#include "engine/gpu/host_experts.h"
#include "engine/batch.h"
#include "engine/session/sampler.h"
#include "engine/gpu/weights_gpu.h"

typedef struct forward_gpu forward_gpu;

/* Where the experts are that are not in VRAM; all NULL: there are none. */
typedef struct forward_tiers {
    host_experts *host;
    expert_store *store;
    const plan *p;
} forward_tiers;

/* All buffers for chunks of up to chunk tokens. Borrows everything; st is in VRAM. */
int forward_gpu_create(forward_gpu **out, gpu *g, const model *m, const weights_gpu *w,
                       const forward_tiers *tiers, const rope_tables *rope, state *st, int chunk,
                       err_ctx *err);
void forward_gpu_free(forward_gpu *f);   /* NULL is fine */
uint64_t forward_gpu_bytes(const gpu *g, const model *m, int chunk);     /* of VRAM */
uint64_t forward_gpu_host_bytes(const model *m, int chunk);      /* of page-locked RAM, with tiers */

/* Takes in n tokens at position pos. Keys and values are written; the position is the caller's.
 * watch (or NULL) is asked after each layer of a prompt that has experts elsewhere: false stops,
 * with some layers ahead of others. */
typedef bool forward_watch(void *ctx, double share_done);
int forward_gpu_eval(forward_gpu *f, const int32_t *ids, int n, int pos, forward_watch *watch,
                     void *ctx, err_ctx *err);

/* Logits of the last n_row tokens of the batch just taken in. */
int forward_gpu_logits(forward_gpu *f, float *logits, int n_row, err_ctx *err);

/* Takes in one token and gives the likeliest one behind it, of equals the first. */
int forward_gpu_next(forward_gpu *f, int32_t *next, int32_t id, int pos, err_ctx *err);

/* Takes in one token without waiting for it: for who goes on with forward_gpu_source. */
int forward_gpu_take(forward_gpu *f, int32_t id, int pos, err_ctx *err);

/* The logits of the token just taken in, where they are. Good until the next one is. */
sampler_source forward_gpu_source(forward_gpu *f);

/* Where the time goes when n tokens are taken in: one as forward_gpu_next does it, more as a
 * prompt, n at most the chunk. Every kernel is watched; the session's position must be restored by
 * the caller. Returns the number of spans, at most cap. */
int forward_gpu_profile(forward_gpu *f, gpu_span *spans, int cap, const int32_t *ids, int n, int pos,
                        err_ctx *err);

#endif
