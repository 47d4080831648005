/* gpu_steps.h - the steps of a layer on the GPU: a layer is six kernels or so, a token one
 * recording.
 *
 * Steps are operations of cuda/gpu.h: they go into a stream and return. For a single token they are
 * recorded once and played again: position and token live on the device. The host computes experts
 * that are not in VRAM while the recording plays (expert_server.h), or they pass through VRAM bank
 * by bank when a prompt is long enough. */
#ifndef ENGINE_GPU_GPU_STEPS_H
#define ENGINE_GPU_GPU_STEPS_H

#include "engine/gpu/prompt_split.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/layer_steps.h"
#include "engine/models/rope.h"
#include "engine/session/sampler.h"
#include "engine/session/state.h"

typedef struct gpu_steps gpu_steps;

/* All of it borrowed. */
typedef struct gpu_parts {
    gpu *g;
    const model *m;
    const weights_gpu *w;
    const rope_tables *rope;
    int n_layer;                         /* the first layers: those that are computed here */
    bool head;                           /* and the output matrix */
    /* where the experts outside VRAM are; all NULL: there are none */
    expert_server *host;
    expert_store *store;
    vram_cache *cache;                   /* NULL: what is in VRAM stays there */
    const plan *p;
    bool skip_missing;                   /* only with places: engine.h */
    bool contract;                       /* all prompts' experts have the contract's bits, not only
                                          * those that might be shared out with the host: plan.h */
} gpu_parts;

/* Everything for batches of up to chunk tokens. */
int gpu_steps_create(gpu_steps **out, const gpu_parts *parts, int chunk, err_ctx *err);
void gpu_steps_free(gpu_steps *s);       /* NULL is fine */
/* VRAM: of the steps, and of the recordings of one session. */
uint64_t gpu_steps_bytes(const gpu *g, const model *m, int chunk);
uint64_t gpu_steps_recordings_bytes(const model *m);
uint64_t gpu_steps_host_bytes(const model *m, int chunk);        /* of page-locked RAM, if not all
                                                                  * is done here */

/* What belongs to one of the sessions that use these steps in turn: its state, borrowed, and
 * recordings of its tokens. */
typedef struct gpu_session_recordings gpu_session_recordings;
int gpu_session_recordings_create(gpu_session_recordings **out, state *st, err_ctx *err);
void gpu_session_recordings_free(gpu_session_recordings *s);  /* NULL is fine */
/* All that follows is of this session; first of all, and between batches. */
void gpu_steps_select(gpu_steps *s, gpu_session_recordings *recordings);

/* Operations into the stream, or into a recording. Outside a recording, for batches of more than
 * one token, they also do the host's half of a layer. */
const layer_steps *gpu_steps_live(const gpu_steps *s);

/* The host's half of a recorded token, from playing it to its end. After a failure, later questions
 * get an empty reply, so that the device can finish, and end returns the failure. */
const layer_steps *gpu_steps_replay(const gpu_steps *s);

/* How experts that are not in VRAM are computed for a batch of n tokens, more than GPU_FEW: as the
 * plan says, where there is what it takes. */
prompt_strategy gpu_steps_strategy(const gpu_steps *s, int n);

/* What has become of those that were shared out between bus and cores; nothing yet: all 0. */
prompt_split_stats gpu_steps_split_counts(const gpu_steps *s);
void gpu_steps_reset_split(gpu_steps *s);

/* Waits for what is in flight, so that its memory can be used again. Returns the device's own
 * failure if there is one, else rc. */
int gpu_steps_give_up(gpu_steps *s, int rc, err_ctx *err);
int gpu_steps_wait(gpu_steps *s, err_ctx *err);

/* ---- recordings of a token ---- */

/* How far a recording that is made at this position reaches: how attention is cut depends on how
 * far back it looks, so twice as far takes a new one. */
int gpu_steps_reach(int pos);
bool gpu_steps_is_recorded(const gpu_steps *s, int pos);
/* Records a token if it is time to: between the two, call the live steps of one token. end adds
 * what follows the last layer: the head and the pick of the likeliest token, or, without a head
 * here, the copy of the vector to the host. Without VRAM for the recording end returns 0 and
 * logs that, the token remains unrecorded, and wants_recording is false for the next
 * RETRY_TOKENS positions. */
bool gpu_steps_wants_recording(const gpu_steps *s, int pos);
int gpu_steps_record_begin(gpu_steps *s, err_ctx *err);
int gpu_steps_record_end(gpu_steps *s, int pos, err_ctx *err);

/* After the live steps of a token that is computed without a recording: the same ending. */
void gpu_steps_end_token(gpu_steps *s);

/* The likeliest token after the one just played, the first of equals. Waits for it. */
int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err);

/* Reads the logits of the token just played on the device. Good until the next one is played. */
sampler_source gpu_steps_source(gpu_steps *s);

/* Seconds that the host has waited for the ends of single tokens since the last reset. */
double gpu_steps_waited(const gpu_steps *s);
void gpu_steps_reset_waited(gpu_steps *s);

/* ---- profiles ---- */

/* Every kernel of the live steps between the two is watched; those of a recording, whenever it is
 * played. A recording made meanwhile is forgotten at the end. */
int gpu_steps_profile_begin(gpu_steps *s, err_ctx *err);
void gpu_steps_profile_end(gpu_steps *s);

#endif
