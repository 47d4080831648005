/* background_worker.h - a thread that goes on with somebody's work while he is busy with something
 * else.
 *
 * The work is done in steps, by its owner or by the stand-in, never by both: between begin and end
 * everything that a step touches is the stand-in's. It takes no part in the team's loops, and it
 * gets its time from whatever core the system finds. */
#ifndef TIERS_BACKGROUND_WORKER_H
#define TIERS_BACKGROUND_WORKER_H

#include "loader/base.h"

typedef struct background_worker background_worker;

/* One step; false: there is nothing left to do. It should not take long: background_worker_end
 * waits. */
typedef bool background_worker_fn(void *ctx);

int background_worker_create(background_worker **out, background_worker_fn *step, void *ctx,
                             err_ctx *err);
void background_worker_free(background_worker *s);  /* ends first; NULL is fine */

/* Called by the owner, in turn; either is fine if it changes nothing. */
void background_worker_begin(
    background_worker *s); /* steps are done elsewhere until there are none left */
void background_worker_end(background_worker *s);  /* or until here. NULL is fine */

#endif
