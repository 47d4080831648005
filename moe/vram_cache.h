/* vram_cache.h - experts in VRAM: the memory of the frames, the map on the device, and the copies.
 *
 * frame_table.h decides which expert has which frame; the cache carries the decisions out on a GPU.
 * Experts come from a store that holds all of them in page-locked RAM. If its RAM has frames only
 * for the experts that are not in VRAM, experts are moved. One thread at a time. */
#ifndef MOE_VRAM_CACHE_H
#define MOE_VRAM_CACHE_H

#include "cuda/gpu_experts.h"
#include "moe/expert_store.h"
#include "moe/frame_table.h"
#include "moe/usage_profile.h"

typedef struct vram_cache vram_cache;

typedef struct vram_cache_options {
    int n_layer;                         /* the first layers: those of the GPU */
    const int *n_frame;                  /* [n_layer] frames of each layer; where experts are moved,
                                          * as many as the store has no RAM frames for */
    pool *team;                          /* copies experts that are not page-locked; or NULL */
    cache_policy policy;
    const int *experts;                  /* first contents, layer * n_expert + expert, the most
                                          * valuable first; may be NULL */
    int n_expert;                        /* of them */
    usage_profile *profile;              /* counts the choices; or NULL. Borrowed */
    progress_fn *watch;                  /* of bytes; or NULL */
    void *watch_ctx;
} vram_cache_options;

/* Fills the frames with the first contents, then with the first experts of every layer; and the
 * store's RAM frames with the others (expert_store_fill). Borrows g, the banks and the store. */
int vram_cache_create(vram_cache **out, gpu *g, const expert_banks *b, expert_store *store,
                      const vram_cache_options *o, err_ctx *err);
void vram_cache_free(vram_cache *v);     /* NULL is fine; waits for the copies */

const frame_table *vram_cache_table(const vram_cache *v);
void vram_cache_reset_counts(vram_cache *v);

/* ---- what the device reads ---- */

/* Sets data and slab_bytes of a layer's banks: its frames, for gpu_experts_with_host. */
void vram_cache_bank(const vram_cache *v, int layer, gpu_bank *banks[SLAB_COUNT]);
/* [n_expert] in VRAM: each expert's frame in that bank, or -1. */
const int32_t *vram_cache_map(const vram_cache *v, int layer);
/* A copy of expert_store_table in VRAM, kept up to date. NULL unless experts are moved: then the
 * store's own table never changes. */
const uint64_t *vram_cache_slabs(const vram_cache *v, int layer);
uint64_t vram_cache_address(const vram_cache *v, int frame, expert_slab s);

/* Enqueues copies of map and table to the device if they have changed. */
void vram_cache_publish(vram_cache *v);

/* ---- tokens ---- */

/* The experts that a layer chose for one token: n words, expert | gpu_where << 16. */
void vram_cache_chosen(vram_cache *v, int layer, const uint32_t *chosen, int n);
/* For the profile: one call of a layer, the slots that the CPU computed and their seconds. */
void vram_cache_count_call(vram_cache *v, int layer, int cold_slots, double seconds);
/* Seconds of a single token, and how many of its n choices hit. Copies that do not pay rest for a
 * while (trial.h). */
void vram_cache_token(vram_cache *v, double seconds, int hits, int n);

/* The device has chosen all experts of a token; it may still compute. Arrived copies enter the map,
 * new copies are decided, and the changed map is published. A failed copy is only counted, unless
 * the device has failed. */
int vram_cache_exchange(vram_cache *v, err_ctx *err);
/* Submits at most n of the decided copies. They run while the next token is computed. */
void vram_cache_submit(vram_cache *v, int n);

/* ---- requests of the user ---- */

/* Loads these experts (frame_table_apply). Waits for the device. Returns how many were copied, or
 * < 0: experts whose copies failed are missing then. Where experts are moved, a few at a time. */
int vram_cache_apply(vram_cache *v, const int *experts, int n, err_ctx *err);
/* The same for at most n experts that the policy prefers (frame_table_missing). */
int vram_cache_update(vram_cache *v, int n, err_ctx *err);
/* Pins the first experts of the list, up to half of the frames, and unpins all others. */
void vram_cache_pin(vram_cache *v, const int *experts, int n);

/* ---- frames for others ---- */

/* Bytes that every frame has. */
uint64_t vram_cache_frame_bytes(const vram_cache *v);
/* Takes a frame from the least valuable expert; its memory is the caller's until it is returned.
 * Waits for the device. ERR_NOMEM: there is none to be had. */
int vram_cache_lend(vram_cache *v, void **memory, err_ctx *err);
void vram_cache_return(vram_cache *v, void *memory);     /* waits, too */

/* ---- prompts: one layer at a time ---- */

/* The layer's choices were counted: counts [n_expert]. Picks experts that get frames, and returns
 * how many. 0 where experts are moved: an evicted one would have no RAM frame in time. passing
 * [n_expert]: experts whose bytes pass through VRAM in this chunk; NULL: all. */
int vram_cache_pick(vram_cache *v, int layer, const int32_t *counts, const bool *passing);
/* Enqueues copies of the picked ones among n experts to their frames. address [n_expert,
 * SLAB_COUNT]: of the slabs in VRAM, valid now for these n experts. */
void vram_cache_keep(vram_cache *v, const int32_t *experts, int n, const uint64_t *address);
/* Ends the layer: picked experts that were not kept lose their frames. */
void vram_cache_end_picks(vram_cache *v);

#endif
