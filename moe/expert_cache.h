/* expert_cache.h - which experts lie in which places of a store that does not hold all of them.
 *
 * Places are numbers; what they mean (RAM, VRAM) is up to the caller, and so are the bytes. The
 * least recently used expert makes room, unless it is held. No allocation after creation. One
 * thread at a time. */
#ifndef MOE_EXPERT_CACHE_H
#define MOE_EXPERT_CACHE_H

#include "loader/base.h"

typedef struct expert_cache expert_cache;

int expert_cache_create(expert_cache **out, int n_layer, int n_expert, int n_place, err_ctx *err);
void expert_cache_free(expert_cache *c); /* NULL is fine */

int expert_cache_places(const expert_cache *c);

/* The expert's place, or -1. Not counted as a use. */
int expert_cache_find(const expert_cache *c, int layer, int expert);

/* Uses an expert: it becomes the most recent and is held. Returns its place; *was_there tells
 * whether it was there before. If it was not, the expert that had the place is gone (*evicted:
 * layer * n_expert + expert, or -1 if the place was free), and the caller fills it. -1 if every
 * place is held. */
int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_there, int *evicted);
void expert_cache_release(expert_cache *c, int place);   /* once for each hold */

/* The expert that has the place is no longer there, e.g. because reading it failed. Not held. */
void expert_cache_drop(expert_cache *c, int place);

typedef struct expert_cache_stats { uint64_t hits, misses; } expert_cache_stats;
expert_cache_stats expert_cache_counts(const expert_cache *c);

#endif
