/* gpu_steps.h - the steps of a layer on the GPU: a layer is six kernels or so, a token one
 * recording.
 *
 * Steps are operations of cuda/gpu.h: they go into a stream and return. For a single token they are
 * recorded once and played again: position and token live on the device. Experts that are not in
 * VRAM are the host's to compute while the recording plays (host_experts.h), or pass through VRAM
 * bank by bank when a prompt is long enough. */
#ifndef ENGINE_GPU_GPU_STEPS_H
#define ENGINE_GPU_GPU_STEPS_H

#include "engine/gpu/host_experts.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/models/rope.h"
#include "engine/session/sampler.h"
#include "engine/session/state.h"
#include "engine/steps.h"

typedef struct gpu_steps gpu_steps;

/* All of it borrowed. */
typedef struct gpu_parts {
    gpu *g;
    const model *m;
    const weights_gpu *w;
    const rope_tables *rope;
    state *st;
    int n_layer;                         /* the first layers: those that are computed here */
    bool head;                           /* and the output matrix */
    /* where the experts are that are not in VRAM; all NULL: there are none */
    host_experts *host;
    expert_store *store;
    const plan *p;
} gpu_parts;

/* Everything for batches of up to chunk tokens. */
int gpu_steps_create(gpu_steps **out, const gpu_parts *parts, int chunk, err_ctx *err);
void gpu_steps_free(gpu_steps *s);       /* NULL is fine */
uint64_t gpu_steps_bytes(const gpu *g, const model *m, int chunk);       /* of VRAM */
uint64_t gpu_steps_host_bytes(const model *m, int chunk);        /* of page-locked RAM, if not all
                                                                  * is done here */

/* Operations into the stream, or into a recording. For a batch of more than one token outside a
 * recording the host's half of a layer is done with it. */
const steps *gpu_steps_live(const gpu_steps *s);

/* The host's half of a recorded token, from playing it to its end. After a failure the questions
 * that follow are answered with nothing, and end returns it: so the device comes to its end. */
const steps *gpu_steps_played(const gpu_steps *s);

bool gpu_steps_streams(const gpu_steps *s, int n);       /* whether experts pass through VRAM for a
                                                          * batch of n tokens */

/* What is in flight has to end before its memory is used again. Returns the device's own failure,
 * which comes first, or rc. */
int gpu_steps_give_up(gpu_steps *s, int rc, err_ctx *err);
int gpu_steps_wait(gpu_steps *s, err_ctx *err);

/* ---- recordings of a token ---- */

/* How far a recording that is made at this position reaches: how attention is cut depends on how
 * far back it looks, so twice as far takes a new one. */
int gpu_steps_reach(int pos);
bool gpu_steps_is_recorded(const gpu_steps *s, int pos);
/* Between the two the live steps of one token. end adds what follows the last layer: the head and
 * the pick of the likeliest token, or, without a head here, the vector's way to the host. */
int gpu_steps_record_begin(gpu_steps *s, err_ctx *err);
int gpu_steps_record_end(gpu_steps *s, int pos, err_ctx *err);

/* The likeliest token after the one just played, of equals the first. Waits for it. */
int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err);

/* The logits of the token just played, where they are. Good until the next one is. */
sampler_source gpu_steps_source(gpu_steps *s);

/* ---- profiles ---- */

/* Every kernel of the live steps between the two is watched; with a recording, whenever it is
 * played. A recording made meanwhile is forgotten at the end. */
int gpu_steps_profile_begin(gpu_steps *s, err_ctx *err);
void gpu_steps_profile_end(gpu_steps *s);

#endif
