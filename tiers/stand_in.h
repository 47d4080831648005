/* stand_in.h - a thread that goes on with somebody's work while he is busy with something else.
 *
 * The work is done in steps, by its owner or by the stand-in, never by both: between begin and end
 * everything that a step touches is the stand-in's. It takes no part in the team's loops, and it
 * gets its time from whatever core the system finds. */
#ifndef TIERS_STAND_IN_H
#define TIERS_STAND_IN_H

#include "loader/base.h"

typedef struct stand_in stand_in;

/* One step; false: there is nothing left to do. It should not take long: stand_in_end waits. */
typedef bool stand_in_fn(void *ctx);

int stand_in_create(stand_in **out, stand_in_fn *step, void *ctx, err_ctx *err);
void stand_in_free(stand_in *s);         /* ends first; NULL is fine */

/* Called by the owner, in turn; either is fine if it changes nothing. */
void stand_in_begin(stand_in *s);        /* steps are done elsewhere until there are none left */
void stand_in_end(stand_in *s);          /* or until here. NULL is fine */

#endif
