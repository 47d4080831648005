/* affinity.h - pins each thread of a team to its own physical core.
 *
 * Thread 0 is the caller and is not pinned; the others are pinned to the other cores. If the system
 * moves thread 0 to the core of another thread, that thread is moved to thread 0's earlier core.
 * Without this, some systems kept both threads of a team on one core. */
#ifndef TIERS_AFFINITY_H
#define TIERS_AFFINITY_H

#include "loader/base.h"

typedef struct affinity affinity;

/* *out stays NULL, without an error, with more threads than cores: no thread is pinned then. All
 * functions below accept that NULL. */
int affinity_create(affinity **out, int n_thread, err_ctx *err);
void affinity_free(affinity *s);

void affinity_pin(affinity *s, int thread);      /* each thread except 0 pins itself, once */
void affinity_yield_core(affinity *s);           /* by thread 0, before each loop */

#endif
