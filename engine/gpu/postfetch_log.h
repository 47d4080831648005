/* postfetch_log.h - which matrices crossed the bus for a token, told layer by layer: for
 * MOE_POSTFETCH_DEBUG.
 *
 * Noted while the token is computed, told after it: writing takes longer than a layer. Nothing is
 * allocated in between. One thread at a time. */
#ifndef ENGINE_GPU_POSTFETCH_LOG_H
#define ENGINE_GPU_POSTFETCH_LOG_H

#include "cuda/gpu_experts.h"
#include "engine/gpu/weights_gpu.h"

typedef struct postfetch_log postfetch_log;

/* For the first n_layer layers, with a pad that has room for pad_all whole experts. Borrows m. */
int postfetch_log_create(postfetch_log **out, const model *m, const weights_gpu *w, int n_layer,
                         int pad_all, err_ctx *err);
void postfetch_log_free(postfetch_log *f);  /* NULL is fine; tells nothing */

/* A question of one token, before its reply; and how long the fetching took, when that is known. */
void postfetch_log_note(postfetch_log *f, int layer, const gpu_mailbox *mailbox);
void postfetch_log_time(postfetch_log *f, int layer, double seconds);

/* A line of the log for each layer that was noted since:
 *
 *   post-fetch: layer 12, 0.184 ms; expert 301 down 884736 bytes at 0; expert 7 down 884736 bytes
 *   at 884992, not used
 *
 * Offsets are those of the slabs' rooms in the pad; a room is a little larger than its slab. The
 * time is that of all together. */
void postfetch_log_write(postfetch_log *f);

#endif
