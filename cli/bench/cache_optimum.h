/* cache_optimum.h - the most hits that any cache of experts could have had with a trace of routing:
 * Belady's algorithm, which knows the tokens to come.
 *
 * The expert whose next use is furthest away makes room. Only uses by generated tokens count, so
 * only these are a next use. Between tokens the cache may keep any of those it had and those that
 * the token chose: it need not take what others are used before. On demand an expert that is
 * missing takes a place at once, as it must where experts are read from a drive: the classic
 * algorithm; but of what a prompt chose it may keep what it likes there, too. No policy that
 * follows the same rules has more hits. Places of one size are a pool of their own, for which all
 * this holds. */
#ifndef CLI_BENCH_CACHE_OPTIMUM_H
#define CLI_BENCH_CACHE_OPTIMUM_H

#include "moe/routing_trace.h"

typedef struct cache_optimum cache_optimum;

/* Borrows t, whose prompt comes before all other tokens, and pool_of [n_layer]. */
int cache_optimum_create(cache_optimum **out, const routing_trace *t, const uint8_t *pool_of,
                         err_ctx *err);
void cache_optimum_free(cache_optimum *o);       /* NULL is fine */

/* In hits [generated tokens, n_layer]: how many of the chosen experts were there. n_place: places
 * of each pool. Allocates nothing. */
void cache_optimum_run(uint8_t *hits, cache_optimum *o, const int *n_place, bool on_demand);

#endif
