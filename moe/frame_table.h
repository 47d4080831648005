/* frame_table.h - which expert is in which frame of VRAM. Bookkeeping only: the caller copies
 * bytes.
 *
 * A frame is memory for the three slabs of one expert. Layers whose experts have the same size
 * share a pool of frames. Sizes and addresses never change; contents do, between two tokens:
 *
 *   EMPTY   -> FILLING   a copy from RAM was decided
 *   FILLING -> READY     it has arrived: the map, which the device reads, names the frame
 *   READY   -> FILLING   the expert is evicted: it leaves the map at once
 *   READY, EMPTY -> LENT -> EMPTY    its memory serves something else for a while
 *
 * The policy (moe/expert_cache.h) values the experts. Every expert is in RAM, too, so a frame costs
 * or saves time and cannot change a result.
 *
 * Where RAM is too small for all experts they are moved: each is in a VRAM frame or in a RAM frame
 * (moe/ram_frames.h). READY -> LEAVING while the evicted expert is copied to a free RAM frame: the
 * device may still read the VRAM frame. LEAVING -> FILLING when that copy has arrived. When FILLING
 * ends, the new expert's RAM frame is free. A cancelled copy leaves both experts where they were.
 *
 * One thread at a time. */
#ifndef MOE_FRAME_TABLE_H
#define MOE_FRAME_TABLE_H

#include "moe/cache_policy.h"
#include "moe/expert.h"
#include "moe/ram_frames.h"

typedef enum frame_state {
    FRAME_EMPTY, FRAME_FILLING, FRAME_READY, FRAME_LEAVING, FRAME_LENT
} frame_state;

enum { FRAME_TABLE_EVENTS = 64 };        /* most frames that are FILLING or LEAVING at a time */

typedef struct frame_table_options {
    int n_layer;                         /* the first layers: those of the GPU */
    cache_policy policy;
    int max_uploads;                     /* frames that may be FILLING or LEAVING after an exchange,
                                          * 0..FRAME_TABLE_EVENTS; 0: contents never change */
    double margin;                       /* a missing expert must exceed the weakest by it:
                                          * cache_policy_margin */
    int32_t *map;    /* [n_layer, n_expert] borrowed: the expert's frame, counted
                                          * from its pool's first one, or -1 */
    ram_frames *ram; /* borrowed. NULL: every expert is in RAM */
    const int *n_frame;                  /* [n_layer] frames that each layer adds to its pool; none
                                          * where there are no experts */
} frame_table_options;

typedef struct frame_table frame_table;

/* All frames are EMPTY. Borrows the banks. ERR_RANGE if the frames are fewer than the experts that
 * one token chooses: such a cache never hits. */
int frame_table_create(frame_table **out, const expert_banks *b, const frame_table_options *o,
                       err_ctx *err);
void frame_table_free(frame_table *t);   /* NULL is fine */

/* Bytes of a frame for an expert of this bank; 0: it has no experts. */
uint64_t frame_table_frame_bytes(const expert_bank *b);

/* ---- pools ---- */

typedef struct frame_pool {
    uint64_t slab_offset[SLAB_COUNT], stride;    /* in a frame; from one frame to the next */
    uint64_t offset;                     /* of the pool's first frame in the bytes of all frames */
    int first, n;                        /* its frames */
} frame_pool;
const frame_pool *frame_table_pool(const frame_table *t, int layer);
/* Of a slab in the bytes of all frames. */
uint64_t frame_table_offset(const frame_table *t, int frame, expert_slab s);
uint64_t frame_table_all_bytes(const frame_table *t);
int frame_table_count(const frame_table *t);
/* Frames that a layer gets if each layer of its pool gets as many. */
int frame_table_quota(const frame_table *t, int layer);

/* ---- contents ---- */

int frame_table_find(const frame_table *t, int layer, int expert); /* its frame in the map, or -1 */
frame_state frame_table_state(const frame_table *t, int frame);
int frame_table_n_ready(const frame_table *t, int layer);  /* its experts in the map */

/* Gives an EMPTY frame to an expert without one and makes it READY: the caller copies the bytes
 * before the device reads the map. Returns the frame, or -1 if none is EMPTY. */
int frame_table_put(frame_table *t, int layer, int expert);
/* Makes a READY frame EMPTY. Not where experts are moved. */
void frame_table_drop(frame_table *t, int frame);
/* Lends the frame of the least valuable expert, or an EMPTY one; if all of them are pinned, the
 * pins end. -1 if a copy to it is in flight, or if fewer frames would stay than one token's experts
 * need. Not where experts are moved. */
int frame_table_lend(frame_table *t);
void frame_table_return(frame_table *t, int frame);      /* it is EMPTY again */
/* Sets an expert's history to `frequency` uses that ended now. */
void frame_table_seed(frame_table *t, int layer, int expert, double frequency);
/* A pinned expert is never evicted. It need not have a frame yet. */
void frame_table_pin(frame_table *t, int layer, int expert, bool pinned);

/* The next two list experts as layer * n_expert + expert, the most valuable first, and return how
 * many, at most cap. */

/* Experts in READY frames. */
int frame_table_list(const frame_table *t, int *list, int cap);
/* Used experts that are missing and would get a frame: an EMPTY one, or that of one of the weakest
 * experts, which each exceeds by the margin. None without memory. */
int frame_table_missing(const frame_table *t, int *list, int cap);

typedef struct frame_table_swap { int layer, expert, frame; } frame_table_swap;

/* Gives frames to as many of n experts (layer * n_expert + expert) as possible, in their order; the
 * weakest of the others are evicted. FILLING frames stay. The new frames are READY: the caller
 * copies the bytes of swaps [n] before the device reads the map. Returns how many, or < 0 without
 * memory, and then nothing has changed. Not where experts are moved. */
int frame_table_apply(frame_table *t, const int *experts, int n, frame_table_swap *swaps,
                      err_ctx *err);
/* The same where experts are moved: decides as many copies as there are free RAM frames. Returns
 * how many. Call it again when they have arrived. */
int frame_table_apply_moves(frame_table *t, const int *experts, int n, err_ctx *err);

/* ---- between two tokens ---- */

/* The experts that a layer chose for one token: n words, expert | (ignored << 16). */
void frame_table_chosen(frame_table *t, int layer, const uint32_t *chosen, int n);

/* Ends a token: decides copies for missing experts that exceed the weakest by the margin, if
 * may_admit. Returns whether the map may have changed. */
bool frame_table_exchange(frame_table *t, bool may_admit);

/* ---- copies ----
 *
 * The caller submits the decided copies in their order, to one queue that keeps the order, and
 * records the copy's event after each. It reports the arrivals in the same order. */

typedef struct frame_copy {
    int layer, expert, frame;
    int ram_frame;                       /* the target in RAM; -1: the copy is from RAM to VRAM */
    int event;                           /* 0..FRAME_TABLE_EVENTS-1 */
} frame_copy;

/* The oldest copy that was not submitted. False if there is none. */
bool frame_table_next_copy(const frame_table *t, frame_copy *copy);
void frame_table_submitted(frame_table *t);      /* frame_table_next_copy's */
/* The event of the oldest copy that was submitted and has not arrived, or -1. */
int frame_table_next_event(const frame_table *t);
void frame_table_arrived(frame_table *t);        /* frame_table_next_event's; changes the map */
/* Copies have failed. Cancels those that were not submitted and, if asked, those that were. */
void frame_table_cancel(frame_table *t, bool submitted);

/* ---- prompts ---- */

/* Counts the choices of a layer in a chunk of a prompt: counts [n_expert]. Missing experts with
 * more value take EMPTY frames and those of the layer's weakest experts. No margin: their bytes
 * are in VRAM anyway. The new frames are READY, and the caller copies the bytes before the
 * device reads the map. passing [n_expert]: only these take frames; NULL: all. Returns the
 * number of swaps, at most cap. Where experts are moved there are none: the next exchange treats
 * the most valuable missing experts as misses. */
int frame_table_prompt(frame_table *t, int layer, const int32_t *counts, const bool *passing,
                       frame_table_swap *swaps, int cap);

typedef struct frame_table_stats {
    uint64_t hits, misses;               /* choices of tokens */
    uint64_t uploads, swaps;             /* experts that got a frame between tokens; in prompts */
    uint64_t saves;                      /* evicted experts that were copied to RAM */
    uint64_t upload_bytes;
    uint64_t evictions;
    uint64_t refused;                    /* missing experts that did not exceed the weakest */
    uint64_t failures;                   /* calls of frame_table_cancel */
} frame_table_stats;
frame_table_stats frame_table_counts(const frame_table *t);
void frame_table_reset_counts(frame_table *t);

#endif
