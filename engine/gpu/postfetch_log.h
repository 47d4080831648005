/* postfetch_log.h - logs, layer by layer, the matrices that crossed the bus for a token: for
 * MOE_POSTFETCH_DEBUG.
 *
 * Questions are copied while the token is computed and written after it, because writing a line
 * takes longer than a layer. Only the creation allocates. One thread at a time. */
#ifndef ENGINE_GPU_POSTFETCH_LOG_H
#define ENGINE_GPU_POSTFETCH_LOG_H

#include "cuda/gpu_experts.h"
#include "engine/gpu/weights_gpu.h"

typedef struct postfetch_log postfetch_log;

/* For the first n_layer layers and a pad of pad_all whole experts. Borrows m. */
int postfetch_log_create(postfetch_log **out, const model *m, const weights_gpu *w, int n_layer,
                         int pad_all, err_ctx *err);
void postfetch_log_free(postfetch_log *f);  /* NULL is fine; writes nothing */

/* Copies a question of one token, before its reply; adds the seconds of its fetches later. */
void postfetch_log_note(postfetch_log *f, int layer, const gpu_mailbox *mailbox);
void postfetch_log_time(postfetch_log *f, int layer, double seconds);

/* Writes a line for each question since the last call:
 *
 *   post-fetch: layer 12, 0.184 ms; expert 301 down 884736 bytes at 0; expert 7 down 884736 bytes
 *   at 884992, not used
 *
 * Offsets are in the pad, where a slab takes a little more than its own bytes. The time is that of
 * all slabs together. */
void postfetch_log_write(postfetch_log *f);

#endif
