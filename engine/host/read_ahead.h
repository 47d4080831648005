/* read_ahead.h - prefetches the weights of predicted experts into the caches of idle cores.
 *
 * Between a reply and the device's next question all threads wait. Meanwhile each thread prefetches
 * the rows that it would compute itself, because another core's cache is hardly faster than RAM. A
 * wrong prediction costs only the reading; no result depends on it. One thread at a time, the owner
 * of the team. */
#ifndef ENGINE_HOST_READ_AHEAD_H
#define ENGINE_HOST_READ_AHEAD_H

#include "tiers/pool.h"

typedef struct read_ahead read_ahead;

enum { AHEAD_RUNS = 96 };                /* at most: three slabs of 32 experts */

/* For a team of n_thread. */
int read_ahead_create(read_ahead **out, int n_thread, err_ctx *err);
void read_ahead_free(read_ahead *r);     /* NULL is fine */

/* Bytes in n_tile tiles of step bytes each; the last tile may be shorter. Each thread reads the
 * tiles that pool_own assigns to it in a loop over all, with this grain. */
typedef struct ahead_run {
    const uint8_t *data;
    uint64_t bytes, step;
    int64_t n_tile, grain;
} ahead_run;

/* All threads read their tiles of each run, until the end or until go_on returns false; every
 * thread calls it after each 2 kB. Returns the number of bytes read. */
uint64_t read_ahead_run(read_ahead *r, pool *team, const ahead_run *runs, int n,
                        keep_going_fn *go_on, void *ctx);

#endif
