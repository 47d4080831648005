/* read_ahead.h - weights that will probably be wanted, into the cores' caches while these have
 * nothing else to do.
 *
 * Between a reply and the next question the device mixes, and all cores wait. Meanwhile each thread
 * brings those rows of the experts that are guessed into its own cache that it will compute, if the
 * guess is right: another core's cache is hardly nearer than RAM. A wrong guess costs nothing but
 * the reading, and no result depends on it. For the owner of the team. */
#ifndef ENGINE_HOST_READ_AHEAD_H
#define ENGINE_HOST_READ_AHEAD_H

#include "tiers/pool.h"

typedef struct read_ahead read_ahead;

enum { AHEAD_RUNS = 96 };                /* at most: three slabs of 32 experts */

/* For a team of n_thread. */
int read_ahead_create(read_ahead **out, int n_thread, err_ctx *err);
void read_ahead_free(read_ahead *r);     /* NULL is fine */

/* Bytes in n_piece pieces of step bytes each, the last of which may be shorter. Each thread wants
 * those that are its own (pool_own) in a loop over the pieces, with this grain. */
typedef struct ahead_run {
    const uint8_t *at;
    uint64_t bytes, step;
    int64_t n_piece, grain;
} ahead_run;

/* All threads read theirs of each run, one after another, until there is no more, or go_on, which
 * every thread asks every 2 kB, says stop. Returns how many bytes that was. */
uint64_t read_ahead_run(read_ahead *r, pool *team, const ahead_run *runs, int n,
                        keep_going_fn *go_on, void *ctx);

#endif
