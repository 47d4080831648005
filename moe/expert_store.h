/* expert_store.h - the routed experts in RAM: addresses of their slabs, and reads from the drive.
 *
 * Three kinds. MAPPED: the file's mapping; no bytes are copied. LOADED: the banks of the chosen
 * layers in huge pages, read with O_DIRECT and page-locked for the GPU as far as the system allows.
 * CACHED: frames for some experts; the others are read from the drive on demand. Slabs have the
 * same bytes in all kinds. One thread at a time.
 *
 * LOADED experts may be exchanged with VRAM: then RAM has frames (moe/ram_frames.h) only for the
 * experts outside VRAM. */
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
    const bool *layers;                  /* [n_layer]: layers to serve; NULL: all */
    const int *n_in_vram;                /* LOADED: [n_layer] experts that are in VRAM; the others
                                          * have RAM frames, filled by expert_store_fill. NULL:
                                          * experts are not moved */
    uint64_t cache_bytes;                /* CACHED: RAM for frames, */
    cache_policy policy;                 /* and which expert is evicted */
    struct gpu *device;                  /* page-lock for it; NULL: no device */
    reader_options reader;
    progress_fn *watch;                  /* progress in bytes; or NULL */
    void *watch_ctx;
} store_options;

typedef struct expert_store expert_store;

/* Borrows b and team. LOADED reads everything here. */
int expert_store_create(expert_store **out, const expert_banks *b, pool *team,
                        const store_options *o, err_ctx *err);
void expert_store_free(expert_store *s); /* NULL is fine */

store_kind expert_store_kind(const expert_store *s);
uint64_t expert_store_bytes(const expert_store *s);      /* allocated RAM */
uint64_t expert_store_locked(const expert_store *s);     /* page-locked bytes of it */
const char *expert_store_note(const expert_store *s);    /* a problem to report, or "" */
const char *expert_store_reader(const expert_store *s);  /* "io_uring, direct"; "" without one */
/* CACHED: the least cache_bytes, twice the experts that one token chooses in a layer. */
uint64_t expert_store_least(const expert_banks *b);

/* The next served layer after this one (-1: the first served one), or -1. */
int expert_store_after(const expert_store *s, int layer);

/* Addresses of an expert's slabs, by expert_slab. */
typedef struct expert_slabs { const uint8_t *at[SLAB_COUNT]; } expert_slabs;

/* False if the expert is not in RAM (CACHED). A slab that is still being read is NULL. For layers
 * that are not served, and for experts without a RAM frame: addresses in the mapping. */
bool expert_store_find(const expert_store *s, int layer, int expert, expert_slabs *out);

/* [n_expert][SLAB_COUNT] addresses for the device, 0 for a slab outside page-locked RAM. The table
 * is in page-locked RAM and changes only between layers. NULL without a device. */
const uint64_t *expert_store_table(const expert_store *s, int layer);

/* ---- LOADED: experts that are moved ---- */

/* The table of RAM frames, or NULL. After changing it, call expert_store_refresh. */
ram_frames *expert_store_ram_frames(const expert_store *s);
/* The address of an expert's slab if this RAM frame is, or becomes, the expert's. */
uint8_t *expert_store_frame_slab(const expert_store *s, int frame, int layer, int expert,
                                 expert_slab slab);
/* Reads all experts except those in VRAM, in_vram [n_layer, n_expert], into RAM frames. Once. */
int expert_store_fill(expert_store *s, const bool *in_vram, progress_fn *watch, void *watch_ctx,
                      err_ctx *err);
/* Updates the layer's table of addresses. Returns whether it has changed. */
bool expert_store_refresh(expert_store *s, int layer);

/* ---- CACHED: reading experts ---- */

/* Requests n experts of a layer, at most expert_store_room. Present experts are held; the others
 * get a frame, are held and are read, gate and up of all before any down. No expert may be held
 * before the call, nor is any after a failure. */
int expert_store_want(expert_store *s, int layer, const int *experts, int n, err_ctx *err);
/* The same for a prompt that uses nearly all experts of a layer, each for slots[i] >= 1 tokens:
 * experts that it reads are evicted before others, those with the fewest slots first. */
int expert_store_want_all(expert_store *s, int layer, const int *experts, const int *slots, int n,
                          err_ctx *err);
int expert_store_room(const expert_store *s);    /* most experts that can be held at a time */

/* Slabs of a requested expert that a caller waits for. */
typedef enum store_part {
    STORE_UP = 1,                        /* gate and up */
    STORE_ALL = 3                        /* also down */
} store_part;

/* Waits until at least one more requested expert has this part. Writes the indices of these experts
 * in the last request and returns their number; each expert is reported once for each part. 0: all
 * were reported. < 0: all experts are released, and incomplete ones are dropped. */
int expert_store_next(expert_store *s, int *which, store_part part, err_ctx *err);

/* Releases all held experts, after the layer's last product. Reads in flight continue. */
void expert_store_release(expert_store *s);

/* Queued reads continue in the background until the caller's next call of a function above or
 * below: for a caller whose work takes longer than the reads in flight. */
void expert_store_go_on(expert_store *s);

/* Reads experts of a later layer into frames that are not held, with lower priority than requests:
 * for prompts, which use whole banks. Failures are ignored. */
void expert_store_ahead(expert_store *s, int layer, const int *experts, int n);

/* Writes at most `most` of n predicted experts of a layer that are neither present nor being read,
 * and returns their number. The next reads do not evict the other predicted ones. */
int expert_store_lacking(expert_store *s, int layer, const int32_t *likely, int n, int *lacking,
                         int most);

/* Reads at most STORE_MOST_EARLY predicted experts. Call it after expert_store_want. Failures are
 * ignored. */
enum { STORE_MOST_EARLY = 4 };
void expert_store_read_early(expert_store *s, int layer, const int *experts, int n);

typedef struct store_stats {
    uint64_t hits, misses;               /* requested experts that were present, or not */
    uint64_t predicted;                  /* of the misses: already being read, or read early */
    uint64_t guesses;                    /* experts read because they were predicted */
    uint64_t read_bytes;
    double wait_s;                       /* time that the caller spent in expert_store_next */
} store_stats;
store_stats expert_store_counts(const expert_store *s);
void expert_store_reset_counts(expert_store *s);

#endif
