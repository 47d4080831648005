/* affinity.h - which core each thread of a team runs on: one physical core each.
 *
 * Thread 0 is the caller's own and stays as free as it was; the others are pinned to the other
 * cores. If the system moves thread 0 onto a core that is taken, the thread there goes to the core
 * that thread 0 came from. Without this, some systems kept both threads of a team on one core. */
#ifndef TIERS_AFFINITY_H
#define TIERS_AFFINITY_H

#include "loader/base.h"

typedef struct affinity affinity;

/* *out stays NULL, without an error, if there are more threads than cores: then nothing is pinned.
 * All functions below accept that NULL. */
int affinity_create(affinity **out, int n_thread, err_ctx *err);
void affinity_free(affinity *s);

void affinity_pin(affinity *s, int thread);   /* by each thread but 0, once: pins itself */
void affinity_make_way(affinity *s);           /* by thread 0, before each loop */

#endif
