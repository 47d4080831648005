/* gpu_steps.h - the steps of a layer on the GPU: a layer is about six kernels, a token one
 * recording.
 *
 * Steps enqueue operations of cuda/gpu.h and return. A pass of up to GPU_RECORDED tokens is recorded
 * once and replayed for each later one of as many tokens, of any sessions; tokens, positions and the
 * addresses of the sessions' memory are in device memory. During the replay the host computes cold
 * experts (expert_server.h). In a long prompt they pass through VRAM bank by bank. One thread at a
 * time. */
#ifndef ENGINE_GPU_GPU_STEPS_H
#define ENGINE_GPU_GPU_STEPS_H

#include "engine/gpu/gpu_buffers.h"
#include "engine/gpu/prompt_split.h"
#include "engine/layer_steps.h"
#include "engine/session/state.h"

typedef struct gpu_steps gpu_steps;

/* Everything for batches of up to most.chunk tokens. Borrows e and the server of its cold experts, or
 * NULL if there are none. skip_missing: engine.h; it needs a cache. */
int gpu_steps_create(gpu_steps **out, const engine *e, expert_server *server, bool skip_missing,
                     batch_sizes most, err_ctx *err);
void gpu_steps_free(gpu_steps *s);       /* NULL is fine */
/* VRAM: of the steps, and of their recordings. */
uint64_t gpu_steps_bytes(const gpu *g, const model *m, batch_sizes most);
uint64_t gpu_steps_recordings_bytes(const model *m, int pass);
/* Most tokens of a pass: fewer than most.pass where the host computes experts or the head. */
int gpu_steps_most_taken(const gpu_steps *s);
uint64_t gpu_steps_host_bytes(const model *m, batch_sizes most); /* page-locked RAM, if the host
                                                                  * computes a part */

/* Operations into the stream, or into a recording. Outside a recording, for batches of more than
 * one token, they also do the host's half of a layer. */
const layer_steps *gpu_steps_live(const gpu_steps *s);

/* Replays a recorded pass and does the host's half of it. After a failure, later questions get an
 * empty reply, so that the device can finish, and end returns the failure. */
const layer_steps *gpu_steps_replay(const gpu_steps *s);

/* The strategy for cold experts in a batch of n tokens, more than GPU_MAIL: the plan's, or another
 * if its buffers do not exist. */
prompt_strategy gpu_steps_strategy(const gpu_steps *s, int n);

/* Counts of experts split between bus and CPU; zero before the first batch. */
prompt_split_stats gpu_steps_split_counts(const gpu_steps *s);
void gpu_steps_reset_split(gpu_steps *s);

/* Waits for operations in flight, so that their memory can be used again. Returns the device's own
 * failure if it has one, else rc. */
int gpu_steps_give_up(gpu_steps *s, int rc, err_ctx *err);
int gpu_steps_wait(gpu_steps *s, err_ctx *err);

/* ---- recordings of a pass: a batch of up to GPU_RECORDED tokens, all of which want logits; last is
 * gpu_steps_reach of the highest position ---- */

/* The position up to which a recording made at pos is valid. The launch shapes of attention depend
 * on the number of positions read, so twice as many take another recording. */
int gpu_steps_reach(int pos);
bool gpu_steps_is_recorded(gpu_steps *s, const batch *b);
/* Records a pass if wants_recording: between begin and end, call the live steps of b without ids.
 * end adds the operations after the last layer: the head and, for one token, the pick of the
 * likeliest token after it; or, if the head is on the CPU, the copy of the vectors to the host.
 * Without VRAM for the recording, end gives up the recording that has not been used for longest; if
 * there is none, or it was used lately, it logs that passes remain unrecorded, and wants_recording
 * is false for some of them. Both return 0. */
bool gpu_steps_wants_recording(gpu_steps *s, const batch *b);
int gpu_steps_record_begin(gpu_steps *s, err_ctx *err);
int gpu_steps_record_end(gpu_steps *s, const batch *b, err_ctx *err);

/* The same operations after the live steps of a pass that is computed without a recording. */
void gpu_steps_end_pass(gpu_steps *s);

/* The likeliest token after the last one, the first of equals. Waits for it. */
int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err);

/* Reads the logits of token t of the last pass on the device. Valid until the next batch begins. */
sampler_source gpu_steps_source(gpu_steps *s, int t);

/* Seconds that the host has waited for the ends of single tokens since the last reset. */
double gpu_steps_waited(const gpu_steps *s);
void gpu_steps_reset_waited(gpu_steps *s);

/* ---- profiles ---- */

/* Between begin and end every kernel is timed, also in recordings made meanwhile. end drops such a
 * recording. */
int gpu_steps_profile_begin(gpu_steps *s, err_ctx *err);
void gpu_steps_profile_end(gpu_steps *s);

#endif
