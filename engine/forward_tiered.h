/* forward_tiered.h - THE LOOP: a batch of tokens through all layers. Start reading here.
 *
 *   for each layer:  mix      attention or DeltaNet, residual
 *                    route    norm, router logits, top-k, weights
 *                    experts  one expert_strategy, by the layer and the length of the batch
 *                    join     sum in selection order, residual
 *
 * The first layers may have their dense part on the GPU, the others have it on the CPU; all or none
 * is the usual case. A pass of a few tokens on the GPU is recorded once, by this loop, and then
 * replayed, while this loop runs the host's half of it. One thread at a time. */
#ifndef ENGINE_FORWARD_TIERED_H
#define ENGINE_FORWARD_TIERED_H

#include "cuda/gpu_measure.h"
#include "engine/gpu/gpu_steps.h"
#include "engine/host/host_steps.h"

typedef struct forward forward;

/* Everything for batches and passes of that many tokens. Borrows e. skip_missing: engine.h; it needs a
 * cache. inner: tokens of batches within others, or 0. */
int forward_create(forward **out, const engine *e, bool skip_missing, batch_sizes most, int inner,
                   err_ctx *err);
void forward_free(forward *f);           /* NULL is fine */

/* Called by the watcher of a batch: until end, other batches may be computed, of sessions that this
 * one does not have. False: not where the GPU computes layers, or inner was 0. */
bool forward_inner_begin(forward *f);
void forward_inner_end(forward *f);

/* Takes in the rows of b. Keys and values are written; the caller advances the positions. Calls the
 * watcher after each layer that the host knows to be complete, and returns ERR_STOPPED if the
 * watcher returns false. After that, and after a failure, only some layers have taken in the
 * tokens: the caller restores the recurrent states. */
int forward_eval(forward *f, batch *b, err_ctx *err);

/* The recurrent state of row->st, which is that before the last batch with batch.keep, becomes
 * that after the first row->n tokens of this row of it, in row->next. */
int forward_again(forward *f, const batch_row *row, const kept_inputs *kept, err_ctx *err);

/* Logits [n, n_vocab] of the tokens first .. first + n - 1 of the batch just taken in. */
int forward_logits(forward *f, float *logits, int first, int n, err_ctx *err);

/* Takes in a row of one token and gives the likeliest token after it, the first of equals. logits
 * [n_vocab] is scratch. */
int forward_next(forward *f, int32_t *next, const batch_row *row, int32_t id, float *logits,
                 err_ctx *err);

/* Takes in rows of up to forward_most_taken tokens together, without waiting for them where
 * forward_source has their logits. The caller reads these logits or calls forward_wait() before the
 * next batch. keep: batch.keep. */
int forward_take(forward *f, const batch_row *rows, int n_row, const int32_t *ids,
                 kept_inputs *keep, err_ctx *err);
int forward_wait(forward *f, err_ctx *err);
int forward_most_taken(const forward *f);

/* The next-token block, if the model uses one. The memory is that of the head. */
const float *forward_vectors(const forward *f);  /* of the last batch [n, n_embd]; a batch of the
                                                  * block overwrites those of the trunk */
float *forward_hidden(const forward *f);         /* a buffer for batch.hidden, [chunk, n_embd] */
void forward_copy_vectors(const forward *f, float *to, const float *from, int n);
/* Takes in row->n tokens, of which forward_hidden has the vectors, and waits. chained: vectors of
 * the block itself. *next, or NULL: the likeliest token after the last row, the first of equals. */
int forward_mtp(forward *f, const batch_row *row, const int32_t *ids, bool chained, int32_t *next,
                err_ctx *err);

/* True, and a source that reads the logits of token t just taken in, if these are in VRAM. */
bool forward_source(forward *f, int t, sampler_source *out);

/* Where the time goes on the GPU when a row is taken in. Every kernel is watched; the caller must
 * restore the session's state. Returns the number of spans, at most cap. */
int forward_profile(forward *f, gpu_span *spans, int cap, const batch_row *row, const int32_t *ids,
                    err_ctx *err);

/* NULL if no layer of the GPU has cold experts. */
expert_server *forward_expert_server(forward *f);

/* Experts that the CPU's layers read for passes. */
experts_read forward_read(const forward *f);

/* Seconds that the host waited for single tokens after their last layer; 0 without a GPU. */
double forward_waited(const forward *f);
void forward_reset_waited(forward *f);

/* Counts of experts that prompts split between bus and CPU; all 0 without a GPU. */
prompt_split_stats forward_split(const forward *f);
void forward_reset_split(forward *f);

#endif
