/* expert_cache.h - which experts lie in which places of a store that does not hold all of them.
 *
 * Places are numbers; what they mean (RAM, VRAM) is up to the caller, and so are the bytes. Places
 * of one size are a pool, and a layer's experts lie in one pool. When an expert needs a place, the
 * one of least value in its pool makes room (moe/cache_policy.h), unless it is held or pinned.
 *
 * How often and when an expert was used is remembered whether it is there or not. One who reads
 * what was chosen as it comes calls expert_cache_hold; one who decides between tokens what is worth
 * a place tells of uses, compares values and assigns.
 *
 * Nothing is allocated after creation; everything costs O(log places) but a tick in CACHE_HALVE,
 * which looks at all experts (0.2 ms for 25,000). One thread at a time. */
#ifndef MOE_EXPERT_CACHE_H
#define MOE_EXPERT_CACHE_H

#include "moe/cache_policy.h"

typedef struct expert_cache expert_cache;

enum { CACHE_MOST_POOLS = 16 };

typedef struct cache_shape {
    int n_layer, n_expert;
    int n_pool;                          /* places of one size each */
    int n_place[CACHE_MOST_POOLS];       /* places are numbered through: pool 0 first */
    const uint8_t *pool_of;              /* [n_layer]; NULL: all layers use pool 0. Copied */
    cache_policy policy;
} cache_shape;

int expert_cache_create(expert_cache **out, const cache_shape *s, err_ctx *err);
void expert_cache_free(expert_cache *c); /* NULL is fine */

int expert_cache_places(const expert_cache *c);          /* of all pools */

/* The expert's place, or -1. Not counted as a use. */
int expert_cache_find(const expert_cache *c, int layer, int expert);
/* Whose place it is: layer * n_expert + expert, or -1. */
int expert_cache_owner(const expert_cache *c, int place);

/* ---- using experts ---- */

/* Uses an expert, and holds it: it keeps its place until released. Returns its place; *was_there
 * tells whether it was there before. If it was not, the expert that had the place is gone
 * (*evicted: layer * n_expert + expert, or -1 if the place was empty), and the caller fills it. -1
 * if every place of the pool is held or pinned: then it does not count as a use. */
int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_there, int *evicted);
void expert_cache_release(expert_cache *c, int place);   /* once for each hold */

/* The expert of a place that is held only passes, as all do in a prompt: it makes room before those
 * that do not, and among its like the sooner the fewer, n, chose it. So a prompt after it finds
 * some of every layer; by age, each would make room just before it is wanted again. 0: it stays. */
void expert_cache_pass(expert_cache *c, int place, int n);
bool expert_cache_passes(const expert_cache *c, int place);

/* A use that takes no place: what a router chose, there or not. */
void expert_cache_use(expert_cache *c, int layer, int expert);
/* n of them at the same time, in a prompt; 1 or more. */
void expert_cache_use_many(expert_cache *c, int layer, int expert, int n);

/* A token has passed: ages are in tokens. */
void expert_cache_tick(expert_cache *c);

/* As if it had been used that often (0: never), last `age` tokens ago; what was known of it is
 * forgotten. What is no such number counts as the nearest that is. */
void expert_cache_seed(expert_cache *c, int layer, int expert, double frequency, int age);

/* ---- choosing experts ---- */

/* What it is worth by the policy, as things are now, whether it is there or not. Larger stays
 * longer; good for comparisons within a cache. Finite. */
double expert_cache_value(const expert_cache *c, int layer, int expert);

bool expert_cache_was_used(const expert_cache *c, int layer, int expert);        /* ever */

/* How much more a value is than another, as of now (cache_policy_gain). */
double expert_cache_gain(const expert_cache *c, double value, double other);

/* The place that would be taken next, and in *value (or NULL) what its expert is worth. Empty ones
 * come first, with a value of -INFINITY. -1: all places of the pool are held or pinned. */
int expert_cache_weakest(const expert_cache *c, int pool, double *value);

/* Gives a place to an expert of its pool, without counting a use. The place is not held and its
 * expert not pinned; the new one has no other place. Returns the former owner, or -1. */
int expert_cache_assign(expert_cache *c, int place, int layer, int expert);

/* The expert that has the place is no longer there, e.g. because reading it failed; a pinned one
 * stays pinned for the next time. Not held. */
void expert_cache_drop(expert_cache *c, int place);

/* A pinned expert is never evicted. It need not be there yet: once it is, it stays. */
void expert_cache_pin(expert_cache *c, int layer, int expert, bool pinned);
bool expert_cache_is_pinned(const expert_cache *c, int layer, int expert);

/* Uses of experts that were there, and of those that were not. */
typedef struct expert_cache_stats { uint64_t hits, misses; } expert_cache_stats;
expert_cache_stats expert_cache_counts(const expert_cache *c);

#endif
