/* expert_cache.h - which experts have frames where there are fewer frames than experts.
 *
 * Frames are numbers; the caller knows their memory, in RAM or VRAM, and copies the bytes. Frames
 * of one size form a pool, and all experts of a layer use one pool. A miss evicts the expert of
 * least value in the pool (moe/cache_policy.h), unless it is held or pinned.
 *
 * The cache keeps the history of every expert, resident or not. On-demand users call
 * expert_cache_hold. Users that replace between tokens call expert_cache_use, _weakest, _gain and
 * _assign.
 *
 * Nothing is allocated after creation. Every call costs O(log frames), except one tick in
 * CACHE_HALVE, which walks over all experts (0.2 ms for 25,000). One thread at a time. */
#ifndef MOE_EXPERT_CACHE_H
#define MOE_EXPERT_CACHE_H

#include "moe/cache_policy.h"

typedef struct expert_cache expert_cache;

enum { CACHE_MAX_POOLS = 16 };

typedef struct cache_shape {
    int n_layer, n_expert;
    int n_pool;
    int n_frame[CACHE_MAX_POOLS];        /* frames are numbered through: pool 0 first */
    const uint8_t *pool_of;              /* [n_layer]; NULL: all layers use pool 0. Copied */
    cache_policy policy;
} cache_shape;

/* All frames are empty. */
int expert_cache_create(expert_cache **out, const cache_shape *s, err_ctx *err);
void expert_cache_free(expert_cache *c); /* NULL is fine */

/* The expert's frame, or -1. Does not count as a use. */
int expert_cache_find(const expert_cache *c, int layer, int expert);
/* The frame's expert, layer * n_expert + expert, or -1. */
int expert_cache_owner(const expert_cache *c, int frame);

/* ---- history ---- */

void expert_cache_use(expert_cache *c, int layer, int expert);
/* n uses at the same time, 1 or more. */
void expert_cache_use_many(expert_cache *c, int layer, int expert, int n);

/* A token has ended: ages are counted in tokens. */
void expert_cache_tick(expert_cache *c);

/* Replaces the expert's history by `frequency` uses (0: never used) that ended `age` tokens ago.
 * Clamps both to their ranges; NaN is 0. */
void expert_cache_seed(expert_cache *c, int layer, int expert, double frequency, int age);

/* ---- users on demand ---- */

/* Uses an expert and holds its frame until the matching release. Returns the frame.
 * *was_present: the expert had it before; if not, the caller fills it, and *evicted is the
 * expert that lost it (layer * n_expert + expert, or -1). Returns -1 without a use if every
 * frame of the pool is held or pinned. */
int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_present, int *evicted);
void expert_cache_release(expert_cache *c, int frame);   /* once for each hold */

/* Marks a held frame's expert as transient: brought in by a prompt, which uses nearly every expert.
 * Transient experts are evicted before all others, those with the fewest slots n first. So some
 * experts of every layer stay; by age, each would be evicted just before the next prompt needs it.
 * n = 0: no longer transient. */
void expert_cache_set_transient(expert_cache *c, int frame, int n);
bool expert_cache_is_transient(const expert_cache *c, int frame);

/* ---- users that replace between tokens ---- */

/* By the policy, resident or not. The expert of least value is evicted first. Finite; comparable
 * within one cache only. */
double expert_cache_value(const expert_cache *c, int layer, int expert);
bool expert_cache_was_used(const expert_cache *c, int layer, int expert);        /* ever */
/* cache_policy_gain of two values at the current time. */
double expert_cache_gain(const expert_cache *c, double value, double other);

/* The frame that the next miss of the pool would take, and in *value (or NULL) its expert's value.
 * Empty frames come first, with value -INFINITY. -1: all are held or pinned. */
int expert_cache_weakest(const expert_cache *c, int pool, double *value);

/* Gives a frame to an expert that has none. No use is counted. The frame is of the expert's pool,
 * not held, and its owner not pinned. Returns the former owner, or -1. */
int expert_cache_assign(expert_cache *c, int frame, int layer, int expert);

/* Empties a frame that is not held, e.g. because reading its bytes failed. */
void expert_cache_drop(expert_cache *c, int frame);
/* The same; and no expert gets the frame until expert_cache_release. */
void expert_cache_withdraw(expert_cache *c, int frame);

/* A pinned expert is never evicted. It need not have a frame yet; it stays pinned after a drop. */
void expert_cache_pin(expert_cache *c, int layer, int expert, bool pinned);
bool expert_cache_is_pinned(const expert_cache *c, int layer, int expert);

#endif
