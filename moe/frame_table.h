/* frame_table.h - which experts lie in VRAM, and which of them make room for others.
 *
 * A place has room for one expert's three slabs. Layers whose experts have the same size share a
 * pool of places. A place is EMPTY, FILLING (its bytes are on their way) or READY. The map, which
 * the device reads, names READY places alone. Between tokens, experts of little value
 * (moe/expert_cache.h) make room for others that were chosen and missing: contents and map change,
 * sizes and addresses never do. Every expert is in RAM as well, so all of this costs or saves time
 * and cannot change a result.
 *
 * Where RAM is too small for that, experts are moved: each is in a place or in a slot of RAM
 * (moe/ram_frames.h). Before one makes room its bytes go to a spare slot; until they have
 * arrived, its place is LEAVING and as good as READY. What comes in leaves its slot once it is
 * READY. A copy that is lost leaves both experts where they were.
 *
 * Decides and keeps the books; somebody else moves bytes (frame_mover). One thread at a time. */
#ifndef MOE_FRAME_TABLE_H
#define MOE_FRAME_TABLE_H

#include "moe/expert.h"
#include "moe/expert_cache.h"
#include "moe/ram_frames.h"

typedef enum frame_state { FRAME_EMPTY, FRAME_FILLING, FRAME_READY, FRAME_LEAVING } frame_state;

/* Copies experts into places, in the order of the calls, while something else goes on. */
typedef struct frame_mover {
    void *self;
    /* Starts to copy an expert to a place, and afterwards passes mark i. False: the expert cannot
     * be had now. */
    bool (*send)(void *self, int layer, int expert, int place, int i);
    /* 1: mark i has been passed; 0: not yet; < 0: what was sent before it is lost. */
    int (*passed)(void *self, int i, err_ctx *err);
    /* As send, from a place to a slot of RAM: for experts that are moved. Else NULL. */
    bool (*save)(void *self, int layer, int expert, int place, int slot, int i);
} frame_mover;

enum { FRAME_TABLE_EVENTS = 64 };        /* most places that are FILLING or LEAVING at a time */

typedef struct frame_table_options {
    int n_layer;                         /* the first layers: those of the GPU */
    uint64_t bytes;                      /* of VRAM for places */
    cache_policy policy;
    int most_uploads;                    /* begun between two tokens, at most FRAME_TABLE_EVENTS; 0:
                                          * nothing is replaced */
    double margin;                       /* by which a newcomer is worth more than the weakest:
                                          * expert_cache_gain */
    int32_t *map;                        /* [n_layer, n_expert] the caller's, for the device: the
                                          * expert's place in its pool, or -1 */
    ram_frames *slots;                   /* not NULL: experts are moved. Borrowed */
    const int *n_place;                  /* [n_layer] places for the layers' experts, instead of
                                          * bytes; or NULL */
} frame_table_options;

typedef struct frame_table frame_table;

/* All places are EMPTY. Borrows the banks, the mover and the map. Each layer begins with the
 * same share of its experts in mind: frame_table_share. ERR_RANGE if there is not a place for
 * every expert that a token chooses: a smaller cache would find nothing again. */
int frame_table_create(frame_table **out, const expert_banks *b, const frame_table_options *o,
                       const frame_mover *mover, err_ctx *err);
void frame_table_free(frame_table *r);   /* NULL is fine; nothing is waited for */

/* VRAM that it would take to have a place for this many experts of each of the first layers. */
uint64_t frame_table_bytes(const expert_banks *b, int n_layer, int n_expert);

/* ---- pools ---- */

enum { FRAME_ALIGN = 256 };              /* slabs of a place begin at multiples of it */

typedef struct frame_pool {
    uint64_t at[SLAB_COUNT], stride;     /* of slabs in a place; from one place to the next */
    uint64_t begin;                      /* of the pool among all places' bytes */
    int first, n;                        /* its places */
} frame_pool;
const frame_pool *frame_table_pool(const frame_table *r, int layer);
uint64_t frame_table_at(const frame_table *r, int place, expert_slab s);  /* among all bytes */
uint64_t frame_table_all_bytes(const frame_table *r);
int frame_table_count(const frame_table *r);
int frame_table_share(const frame_table *r, int layer);  /* places that a layer would get if all
                                                          * layers got as many */

/* ---- contents ---- */

int frame_table_find(const frame_table *r, int layer, int expert);  /* its READY place, or -1 */
frame_state frame_table_state(const frame_table *r, int place);
int frame_table_ready(const frame_table *r, int layer);  /* how many experts of it are READY */

/* Gives an EMPTY place to an expert that has none. It counts as READY: the caller brings the bytes
 * before the map is used. Returns the place, or -1 if no place is EMPTY. */
int frame_table_put(frame_table *r, int layer, int expert);
/* The other way round: the bytes of a READY place are lost, and it is EMPTY. Not for experts that
 * are moved. */
void frame_table_lose(frame_table *r, int place);
/* As if it had been chosen that often, just now: for experts that are there to begin with. */
void frame_table_seed(frame_table *r, int layer, int expert, double frequency);
/* The READY experts, layer * n_expert + expert, the most valuable first. Returns how many, at most
 * cap. */
int frame_table_list(const frame_table *r, int *list, int cap);
/* Those that have been used, are missing, and are worth a copy: each beats one of the weakest by
 * the margin. The most valuable first. Returns how many, at most cap; none without memory. */
int frame_table_missing(const frame_table *r, int *list, int cap);
/* A pinned expert never makes room, once it is there. */
void frame_table_pin(frame_table *r, int layer, int expert, bool pinned);

/* An expert that takes a place at once. */
typedef struct frame_table_swap { int layer, expert, place; } frame_table_swap;

/* Has as many of n experts (layer * n_expert + expert) there as possible, the first of them first:
 * others make room, the weakest first. What is FILLING stays. As with frame_table_put, the caller
 * brings the bytes of those in swaps [n] before the map is used. Returns how many, < 0 without
 * memory, and then nothing is changed. */
int frame_table_apply(frame_table *r, const int *experts, int n, frame_table_swap *swaps,
                      err_ctx *err);
/* The same for experts that are moved: begins to move as many as there are spare slots for. What is
 * under way arrives first. Returns how many; once they have arrived, there may be more. */
int frame_table_ask(frame_table *r, const int *experts, int n, err_ctx *err);

/* ---- between tokens ---- */

/* What a layer chose for one token: n words, expert | anything << 16. */
void frame_table_chosen(frame_table *r, int layer, const uint32_t *chosen, int n);

/* All choices of a token are known, and the next one has not begun: places that have been filled
 * become READY, and some experts make room, if they may. Returns 1 if the map has changed, 0 if
 * not, < 0 on failure: then what was under way is EMPTY, or READY as before if it was LEAVING, and
 * everything else as it was. */
int frame_table_exchange(frame_table *r, bool may_admit, err_ctx *err);
/* What has arrived becomes READY, as at a turn, and nothing else happens. Returns as that does. */
int frame_table_take_in(frame_table *r, err_ctx *err);
/* The device has ended the token before, and has the map, or will before it reads it again: at most
 * this many of the copies begin that have not. */
void frame_table_send(frame_table *r, int most);

/* ---- prompts ---- */

/* What a layer chose in a chunk of a prompt: counts [n_expert]. Experts that are missing and worth
 * more take EMPTY places and those of the layer's own weakest experts, both in the books and in the
 * map; their bytes pass through VRAM just now, so any margin will do, and the caller copies them
 * before the map is used. Returns how many, at most cap. Experts that are moved come after the
 * prompt, as if a token had missed them. passing [n_expert]: only these take places; NULL: all
 * pass. */
int frame_table_prompt(frame_table *r, int layer, const int32_t *counts, const bool *passing,
                       frame_table_swap *swaps, int cap);

typedef struct frame_table_stats {
    uint64_t hits, misses;               /* choices of tokens that were READY, and that were not */
    uint64_t uploads, swaps;             /* experts brought in between tokens; during prompts */
    uint64_t saves;                      /* experts taken to RAM before that */
    uint64_t upload_bytes;
    uint64_t evictions;
    uint64_t refused;                    /* missing experts that were worth less than the weakest */
    uint64_t failures;
} frame_table_stats;
frame_table_stats frame_table_counts(const frame_table *r);
void frame_table_reset_counts(frame_table *r);

#endif
