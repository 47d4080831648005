/* vram_cache.h - the experts' places in VRAM: their memory, the map on the device, and the copies.
 *
 * frame_table.h decides which expert has which place; this carries it out on a GPU. Experts come
 * from a store that has all of them in page-locked RAM, or that has slots for those that are not
 * in VRAM: then they are moved. One thread at a time. */
#ifndef MOE_VRAM_CACHE_H
#define MOE_VRAM_CACHE_H

#include "cuda/gpu.h"
#include "moe/expert_store.h"
#include "moe/frame_table.h"
#include "moe/usage_profile.h"

typedef struct vram_cache vram_cache;

typedef struct vram_cache_options {
    int n_layer;                         /* the first layers: those of the GPU */
    uint64_t bytes;                      /* of VRAM */
    const int *n_place;                  /* [n_layer] if experts are moved: places for the layers'
                                          * experts, as many as the store has no slots for */
    pool *team;                          /* brings experts that are not in RAM; or NULL */
    cache_policy policy;
    const int *experts;                  /* to begin with, the most wanted first: layer * n_expert +
                                          * expert; may be NULL */
    int n_expert;                        /* of them */
    usage_profile *seen;                 /* counts what is chosen; or NULL. Borrowed */
    progress_fn *watch;                  /* told of bytes; or NULL */
    void *watch_ctx;
} vram_cache_options;

/* Places are filled with the experts that are asked for, as far as there is room, then with the
 * first ones of every layer; slots with the others (expert_store_fill). Borrows g, the banks and
 * the store. */
int vram_cache_create(vram_cache **out, gpu *g, const expert_banks *b, expert_store *store,
                      const vram_cache_options *o, err_ctx *err);
void vram_cache_free(vram_cache *v);     /* NULL is fine; waits */

const frame_table *vram_cache_table(const vram_cache *v);
uint64_t vram_cache_bytes(const vram_cache *v);
void vram_cache_reset_counts(vram_cache *v);

/* Where a layer's places are, for gpu_experts_with_host: data and slab_bytes of its banks; and
 * the map, in VRAM: [n_expert]. */
void vram_cache_bank(const vram_cache *v, int layer, gpu_bank *banks[SLAB_COUNT]);
const int32_t *vram_cache_map(const vram_cache *v, int layer);
/* The store's table (expert_store_table), in VRAM, kept up to date. NULL if experts are not moved:
 * then that table never changes. */
const uint64_t *vram_cache_slabs(const vram_cache *v, int layer);
uint64_t vram_cache_address(const vram_cache *v, int place, expert_slab s);

/* What a layer chose for one token (frame_table_chosen), as gpu_with_host tells it: with
 * gpu_where. */
void vram_cache_chosen(vram_cache *v, int layer, const uint32_t *chosen, int n);

/* What such a call of a layer came to, for the profile: slots that the host computed, and how long
 * that took. */
void vram_cache_call(vram_cache *v, int layer, int cold_slots, double seconds);

/* How long a single token took, and how many of its n choices were there: copies that do not pay
 * rest for a while (upload_tuner.h). */
void vram_cache_token(vram_cache *v, double seconds, int hits, int n);

/* The device has chosen all experts of the token, and may still be computing: experts change
 * places, and the device gets the map, before the next token, if it has changed. A copy that failed
 * is only counted, unless the device has failed. Then, when the next token is under way: at most
 * this many of the copies begin that have not, beside it. */
int vram_cache_exchange(vram_cache *v, err_ctx *err);
void vram_cache_send(vram_cache *v, int most);

/* An operation: the device gets map and table if they have changed, as after a prompt whose experts
 * passed through VRAM. */
void vram_cache_publish(vram_cache *v);

/* Has these experts there (frame_table_apply), at once. Waits for the device. Returns how many were
 * brought, < 0 on failure: what did not arrive is missing then. Experts that are moved come a few
 * at a time. */
int vram_cache_apply(vram_cache *v, const int *experts, int n, err_ctx *err);

/* Has those there that the books find worth a copy (frame_table_missing), at most this many. Waits
 * and returns as vram_cache_apply does. */
int vram_cache_update(vram_cache *v, int most, err_ctx *err);

/* These and no others never make room once they are there: the first of n, up to half of the
 * places. */
void vram_cache_pin(vram_cache *v, const int *experts, int n);

/* One layer of a prompt, whose choices were counted: experts that are worth it take places. at
 * [n_expert, SLAB_COUNT]: where in VRAM they will have passed. Returns how many; they are copied by
 * vram_cache_keep, called once for the experts of each part that is there just now. To be followed
 * by vram_cache_settle, which gives up those that were not kept. None, if experts are moved: those
 * that are in VRAM could not go anywhere meanwhile. passing [n_expert]: those that pass; NULL:
 * all do. */
int vram_cache_choose(vram_cache *v, int layer, const int32_t *counts, const bool *passing);
void vram_cache_keep(vram_cache *v, const int32_t *experts, int n, const uint64_t *at);
void vram_cache_settle(vram_cache *v);

#endif
