/* background_worker.h - a worker thread that continues the owner's step function in the background.
 *
 * Between begin and end only the worker runs steps and only it may use their data; at other times
 * only the owner. The worker is not a member of the thread team and is not pinned to a core. */
#ifndef TIERS_BACKGROUND_WORKER_H
#define TIERS_BACKGROUND_WORKER_H

#include "loader/base.h"

typedef struct background_worker background_worker;

/* One step; false: no work is left. Keep it short, because background_worker_end waits for it. */
typedef bool background_worker_fn(void *ctx);

int background_worker_create(background_worker **out, background_worker_fn *step, void *ctx,
                             err_ctx *err);
void background_worker_free(background_worker *s);  /* calls end; NULL is fine */

/* By the owner. The worker runs steps from begin until no work is left or end is called. A second
 * begin or end has no effect. */
void background_worker_begin(background_worker *s);
void background_worker_end(background_worker *s);   /* NULL is fine */

#endif
