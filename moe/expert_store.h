/* expert_store.h - the RAM side of the routed experts: where each one's slabs are, and how they get
 * there.
 *
 * Three kinds. MAPPED: the file's mapping, nothing is moved. LOADED: the banks of the chosen layers
 * in huge pages of our own, read past the page cache and page-locked for the GPU as far as the
 * system allows. CACHED: places for some experts, in front of the file; the others are read when
 * they are wanted. Slabs have the same bytes everywhere. One thread at a time.
 *
 * LOADED experts may be moved to VRAM and back: then RAM has slots (moe/ram_frames.h) for those
 * that are not there. */
#ifndef MOE_EXPERT_STORE_H
#define MOE_EXPERT_STORE_H

#include "moe/expert.h"
#include "moe/expert_cache.h"
#include "moe/ram_frames.h"
#include "tiers/pool.h"
#include "tiers/reader.h"

struct gpu;

typedef enum store_kind { STORE_MAPPED, STORE_LOADED, STORE_CACHED } store_kind;

typedef struct store_options {
    store_kind kind;
    const bool *layers;                  /* [n_layer]: those to serve; NULL: all */
    const int *n_in_vram;                  /* LOADED: [n_layer] of all layers, how many experts are
                                          * elsewhere: the others have slots, and are read by
                                          * expert_store_fill. NULL: none are */
    uint64_t cache_bytes;                /* CACHED: RAM for places, */
    cache_policy policy;                 /* and which expert makes room */
    struct gpu *device;                  /* page-lock for it; NULL: no device */
    reader_options reader;
    progress_fn *watch;                  /* told of bytes; or NULL */
    void *watch_ctx;
} store_options;

typedef struct expert_store expert_store;

/* Borrows b and team. LOADED reads everything here. */
int expert_store_create(expert_store **out, const expert_banks *b, pool *team,
                        const store_options *o, err_ctx *err);
void expert_store_free(expert_store *s); /* NULL is fine */

store_kind expert_store_kind(const expert_store *s);
uint64_t expert_store_bytes(const expert_store *s);      /* RAM of ours, and of that: */
uint64_t expert_store_locked(const expert_store *s);     /* page-locked */
const char *expert_store_note(const expert_store *s);    /* what did not work; "": nothing */
const char *expert_store_reader(const expert_store *s);  /* "io_uring, direct"; "" if it has none */
/* Of CACHED: the least cache_bytes that can work: room for twice the experts of one token's
 * layer. */
uint64_t expert_store_least(const expert_banks *b);

/* The next layer after this one (-1: the first) that is served, or -1. */
int expert_store_after(const expert_store *s, int layer);

/* Where an expert's slabs are: addresses by expert_slab. */
typedef struct expert_slabs { const uint8_t *at[SLAB_COUNT]; } expert_slabs;

/* False if the expert is not in RAM (CACHED); NULL for a slab of it that is still being read. Of
 * layers that are not served, and of an expert that has no slot: the mapping. */
bool expert_store_find(const expert_store *s, int layer, int expert, expert_slabs *out);

/* [n_expert][SLAB_COUNT] addresses for the device, 0 where a slab is not in page-locked RAM. The
 * table is itself in page-locked RAM and is kept up to date between layers. NULL if there is no
 * device. */
const uint64_t *expert_store_table(const expert_store *s, int layer);

/* ---- LOADED: experts that are moved ---- */

/* Who has a slot; NULL if none has. To be followed by expert_store_refresh. */
ram_frames *expert_store_ram_frames(const expert_store *s);
/* Where an expert's slab is, or would be, in a slot. */
uint8_t *expert_store_frame_slab(const expert_store *s, int slot, int layer, int expert,
                                 expert_slab slab);
/* Reads all experts that are not elsewhere [n_layer, n_expert] into slots. Once. */
int expert_store_fill(expert_store *s, const bool *elsewhere, progress_fn *watch, void *watch_ctx,
                      err_ctx *err);
/* The layer's table as its slots are now. Returns whether it has changed. */
bool expert_store_refresh(expert_store *s, int layer);

/* ---- CACHED: bringing experts in ---- */

/* Wants experts of a layer: those present are held, the others get a place and are read, gate and
 * up of all before any down. n is at most expert_store_room, and nothing may be held from before.
 * On failure nothing is held. */
int expert_store_want(expert_store *s, int layer, const int *experts, int n, err_ctx *err);
/* The same for a prompt that uses nearly all experts of a layer, each by so many tokens (slots [n],
 * 1 or more): what is read for it makes room first, and those that few chose before others. */
int expert_store_want_all(expert_store *s, int layer, const int *experts, const int *slots, int n,
                          err_ctx *err);
int expert_store_room(const expert_store *s);    /* experts that can be held at a time */

/* Which slabs of a wanted expert are present. */
typedef enum store_part {
    STORE_UP = 1,                        /* gate and up */
    STORE_ALL = 3                        /* down, too */
} store_part;

/* Waits until some wanted experts that lacked this part have it (or all do): gives their indices
 * into the experts of the last want, at most n of them, each once for each part. Returns how many,
 * 0 if there are no more, < 0 on failure: then all are released and what was not read is
 * dropped. */
int expert_store_next(expert_store *s, int *which, store_part part, err_ctx *err);

/* Lets go of all that is held, after the layer's last product. Reads under way go on. */
void expert_store_release(expert_store *s);

/* What is being read goes on without the caller until its next call of anything above or below: for
 * a caller that computes for longer than the few reads last that the drive knows of. */
void expert_store_go_on(expert_store *s);

/* Reads experts of a later layer, as far as there are places that are not held and the drive has
 * nothing better to do: for prompts, which use whole banks. Never fails: it only reads early. */
void expert_store_ahead(expert_store *s, int layer, const int *experts, int n);

/* Of n experts that a layer will probably want: those neither present nor being read, at most
 * `most`. The next reads do not evict the others. */
int expert_store_lacking(expert_store *s, int layer, const int32_t *likely, int n, int *lacking,
                         int most);

/* Reads a few of them early, at most STORE_MOST_EARLY. Call it after expert_store_want; never
 * fails. */
enum { STORE_MOST_EARLY = 4 };
void expert_store_read_early(expert_store *s, int layer, const int *experts, int n);

typedef struct store_stats {
    uint64_t hits, misses;               /* wanted experts that were present, and that were not */
    uint64_t predicted;                  /* of the misses: already being read, or read early */
    uint64_t guesses;                    /* experts read because they were predicted */
    uint64_t read_bytes;
    double wait_s;                       /* time that the caller spent in expert_store_next */
} store_stats;
store_stats expert_store_counts(const expert_store *s);
void expert_store_reset_counts(expert_store *s);

#endif
