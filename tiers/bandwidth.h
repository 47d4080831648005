/* bandwidth.h - how fast this machine reads memory: the limit to compare a decoder with.
 *
 * Weights are read once and forgotten, so the figure that counts is a plain walk through memory
 * much larger than all caches. Processors differ in what they need to reach it, so several ways of
 * reading are tried, and the best is the limit. */
#ifndef TIERS_BANDWIDTH_H
#define TIERS_BANDWIDTH_H

#include "tiers/page_advice.h"
#include "tiers/pool.h"
#include "tiers/topology.h"

enum { BANDWIDTH_RUNS = 5 };

/* One way of reading, and what it gave. */
typedef struct bandwidth_way {
    int level;                           /* prefetched into this cache, 1 .. 3; 0: not prefetched */
    size_t ahead_bytes;                  /* how far ahead of the reads */
    double runs[BANDWIDTH_RUNS];         /* GB/s (10^9) of all threads together */
    double gb_s;                         /* their median */
} bandwidth_way;

typedef struct bandwidth {
    bandwidth_way plain, ahead;          /* ahead: the best with prefetching */
    double gb_s;                         /* the limit: the better of the two */
} bandwidth;

/* Reads `bytes` of memory. Each thread of the team reads an equal part of its own, which it also
 * wrote first: on a machine with several memory nodes every thread reads what is near. seconds:
 * about how long each of the figures plain and ahead is measured. watch, or NULL, is asked
 * before each run, every few milliseconds. Fails with ERR_NOMEM, with ERR_RANGE if a thread's
 * part would be less than 256 KiB, with ERR_STOPPED, and with ERR_IO if the system keeps some
 * threads of the team from running. */
int bandwidth_measure(bandwidth *out, pool *team, page_kind pages, size_t bytes, double seconds,
                      keep_going_fn *watch, void *ctx, err_ctx *err);

/* How much memory to read: eight times the last caches and at least 512 MiB, but no more than half
 * of room; ERR_RANGE if that is too little to tell memory from cache. */
int bandwidth_bytes(size_t *out, const topology *t, uint64_t room, err_ctx *err);

#endif
