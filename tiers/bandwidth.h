/* bandwidth.h - how fast this machine reads memory: the limit that decoding is compared with.
 *
 * Weights are read once per token, so the limit is a walk through memory much larger than all
 * caches. Processors differ in the prefetches that reach it: several methods are tried. */
#ifndef TIERS_BANDWIDTH_H
#define TIERS_BANDWIDTH_H

#include "tiers/page_advice.h"
#include "tiers/pool.h"
#include "tiers/topology.h"

/* A method of reading and its speed. */
typedef struct bandwidth_method {
    int level;                           /* prefetched into this cache, 1 .. 3; 0: not prefetched */
    size_t ahead_bytes;                  /* distance of the prefetches from the reads */
    double gb_s;                         /* GB/s (10^9) of all threads together: a median */
} bandwidth_method;

typedef struct bandwidth {
    bandwidth_method plain, ahead;       /* ahead: the best with prefetching */
    double gb_s;                         /* the limit: the better of the two */
} bandwidth;

/* Reads `bytes` of memory, in huge pages where the system has them. Each thread of the team
 * reads an equal range that it wrote first: with several memory nodes every thread reads its
 * own. seconds: for each of the figures plain and ahead. watch, or NULL, is called before each
 * run, every few milliseconds. Fails with ERR_NOMEM, with ERR_RANGE if a range would be less
 * than 256 KiB, with ERR_STOPPED, and with ERR_IO if the system keeps some threads of the team
 * from running. */
int bandwidth_measure(bandwidth *out, pool *team, size_t bytes, double seconds,
                      keep_going_fn *watch, void *ctx, err_ctx *err);

/* Bytes to read: eight times the last caches and at least 512 MiB, but no more than half of
 * ram_bytes. ERR_RANGE if that is too little to tell memory from cache. */
int bandwidth_bytes(size_t *out, const topology *t, uint64_t ram_bytes, err_ctx *err);

#endif
