/* residency.h - which experts lie in VRAM, and which of them make room for others.
 *
 * A place has room for one expert's three slabs. Layers whose experts have the same size share a
 * pool of places. A place is EMPTY, FILLING (its bytes are on their way) or READY. The map, which
 * the device reads, names READY places alone. Between tokens, experts of little value
 * (moe/expert_cache.h) make room for others that were chosen and missing: contents and map change,
 * sizes and addresses never do. Every expert is in RAM as well, so all of this costs or saves time
 * and cannot change a result.
 *
 * Where RAM is too small for that, experts are moved: each is in a place or in a slot of RAM
 * (moe/expert_slots.h). Before one makes room its bytes go to a spare slot; until they have
 * arrived, its place is LEAVING and as good as READY. What comes in leaves its slot once it is
 * READY. A copy that is lost leaves both experts where they were.
 *
 * Decides and keeps the books; somebody else moves bytes (place_mover). One thread at a time. */
#ifndef MOE_RESIDENCY_H
#define MOE_RESIDENCY_H

#include "moe/expert.h"
#include "moe/expert_cache.h"
#include "moe/expert_slots.h"

typedef enum place_state { PLACE_EMPTY, PLACE_FILLING, PLACE_READY, PLACE_LEAVING } place_state;

/* Copies experts into places, in the order of the calls, while something else goes on. */
typedef struct place_mover {
    void *self;
    /* Starts to copy an expert to a place, and afterwards passes mark i. False: the expert cannot
     * be had now. */
    bool (*send)(void *self, int layer, int expert, int place, int i);
    /* 1: mark i has been passed; 0: not yet; < 0: what was sent before it is lost. */
    int (*passed)(void *self, int i, err_ctx *err);
    /* As send, from a place to a slot of RAM: for experts that are moved. Else NULL. */
    bool (*save)(void *self, int layer, int expert, int place, int slot, int i);
} place_mover;

enum { RESIDENCY_MARKS = 64 };           /* most places that are FILLING or LEAVING at a time */

typedef struct residency_options {
    int n_layer;                         /* the first layers: those of the GPU */
    uint64_t bytes;                      /* of VRAM for places */
    cache_policy policy;
    int most_uploads;                    /* begun between two tokens, at most RESIDENCY_MARKS; 0:
                                          * nothing is replaced */
    double margin;                       /* by which a newcomer is worth more than the weakest:
                                          * expert_cache_gain */
    int32_t *map;                        /* [n_layer, n_expert] the caller's, for the device: the
                                          * expert's place in its pool, or -1 */
    expert_slots *slots;                 /* not NULL: experts are moved. Borrowed */
    const int *n_place;                  /* [n_layer] places for the layers' experts, instead of
                                          * bytes; or NULL */
} residency_options;

typedef struct residency residency;

/* All places are EMPTY. Borrows the banks, the mover and the map. Each layer begins with the same
 * share of its experts in mind: residency_share. ERR_RANGE if there is not a place for every expert
 * that a token chooses: a smaller cache would find nothing again. */
int residency_create(residency **out, const expert_banks *b, const residency_options *o,
                     const place_mover *mover, err_ctx *err);
void residency_free(residency *r);       /* NULL is fine; nothing is waited for */

/* VRAM that it would take to have a place for this many experts of each of the first layers. */
uint64_t residency_bytes(const expert_banks *b, int n_layer, int n_expert);

/* ---- pools ---- */

enum { PLACE_ALIGN = 256 };              /* slabs of a place begin at multiples of it */

typedef struct place_pool {
    uint64_t at[SLAB_COUNT], stride;     /* of slabs in a place; from one place to the next */
    uint64_t begin;                      /* of the pool among all places' bytes */
    int first, n;                        /* its places */
} place_pool;
const place_pool *residency_pool(const residency *r, int layer);
uint64_t residency_at(const residency *r, int place, expert_slab s);     /* among all bytes */
uint64_t residency_all_bytes(const residency *r);
int residency_places(const residency *r);
int residency_share(const residency *r, int layer);      /* places that a layer would get if all
                                                          * layers got as many */

/* ---- contents ---- */

int residency_find(const residency *r, int layer, int expert);   /* its READY place, or -1 */
place_state residency_state(const residency *r, int place);
int residency_ready(const residency *r, int layer);      /* how many experts of it are READY */

/* Gives an EMPTY place to an expert that has none. It counts as READY: the caller brings the bytes
 * before the map is used. Returns the place, or -1 if no place is EMPTY. */
int residency_put(residency *r, int layer, int expert);
/* The other way round: the bytes of a READY place are lost, and it is EMPTY. Not for experts that
 * are moved. */
void residency_lose(residency *r, int place);
/* As if it had been chosen that often, just now: for experts that are there to begin with. */
void residency_seed(residency *r, int layer, int expert, double frequency);
/* The READY experts, layer * n_expert + expert, the most valuable first. Returns how many, at most
 * cap. */
int residency_list(const residency *r, int *list, int cap);
/* Those that have been used, are missing, and are worth a copy: each beats one of the weakest by
 * the margin. The most valuable first. Returns how many, at most cap; none without memory. */
int residency_missing(const residency *r, int *list, int cap);
/* A pinned expert never makes room, once it is there. */
void residency_pin(residency *r, int layer, int expert, bool pinned);

/* An expert that takes a place at once. */
typedef struct residency_swap { int layer, expert, place; } residency_swap;

/* Has as many of n experts (layer * n_expert + expert) there as possible, the first of them first:
 * others make room, the weakest first. What is FILLING stays. As with residency_put, the caller
 * brings the bytes of those in swaps [n] before the map is used. Returns how many, < 0 without
 * memory, and then nothing is changed. */
int residency_apply(residency *r, const int *experts, int n, residency_swap *swaps, err_ctx *err);
/* The same for experts that are moved: begins to move as many as there are spare slots for. What is
 * under way arrives first. Returns how many; once they have arrived, there may be more. */
int residency_ask(residency *r, const int *experts, int n, err_ctx *err);

/* ---- between tokens ---- */

/* What a layer chose for one token: n words, expert | anything << 16. */
void residency_chosen(residency *r, int layer, const uint32_t *chosen, int n);

/* All choices of a token are known, and the next one has not begun: places that have been filled
 * become READY, and some experts make room, if they may. Returns 1 if the map has changed, 0 if
 * not, < 0 on failure: then what was under way is EMPTY, or READY as before if it was LEAVING, and
 * everything else as it was. */
int residency_turn(residency *r, bool may_admit, err_ctx *err);
/* What has arrived becomes READY, as at a turn, and nothing else happens. Returns as that does. */
int residency_take_in(residency *r, err_ctx *err);
/* The device has ended the token before, and has the map, or will before it reads it again: at most
 * this many of the copies begin that have not. */
void residency_send(residency *r, int most);

/* ---- prompts ---- */

/* What a layer chose in a chunk of a prompt: counts [n_expert]. Experts that are missing and worth
 * more take EMPTY places and those of the layer's own weakest experts, both in the books and in the
 * map; their bytes pass through VRAM just now, so any margin will do, and the caller copies them
 * before the map is used. Returns how many, at most cap. Experts that are moved come after the
 * prompt, as if a token had missed them. passing [n_expert]: only these take places; NULL: all
 * pass. */
int residency_prompt(residency *r, int layer, const int32_t *counts, const bool *passing,
                     residency_swap *swaps, int cap);

typedef struct residency_stats {
    uint64_t hits, misses;               /* choices of tokens that were READY, and that were not */
    uint64_t uploads, swaps;             /* experts brought in between tokens; during prompts */
    uint64_t saves;                      /* experts taken to RAM before that */
    uint64_t upload_bytes;
    uint64_t evictions;
    uint64_t refused;                    /* missing experts that were worth less than the weakest */
    uint64_t failures;
} residency_stats;
residency_stats residency_counts(const residency *r);
void residency_reset_counts(residency *r);

#endif
