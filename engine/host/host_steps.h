/* host_steps.h - the steps of a layer on the CPU: the reference for every other implementation. */
#ifndef ENGINE_HOST_HOST_STEPS_H
#define ENGINE_HOST_HOST_STEPS_H

#include "engine/host/experts_cpu.h"
#include "engine/layer_steps.h"
#include "engine/models/rope.h"
#include "engine/session/state.h"
#include "moe/router.h"
#include "moe/usage_profile.h"

typedef struct host_steps host_steps;

/* All of it borrowed. */
typedef struct host_parts {
    const model *m;
    const weights *w;
    const ops *o;
    const rope_tables *rope;
    expert_store *store;                 /* where experts come from; NULL: the mapping */
    router_ahead *ahead;                 /* or NULL */
    usage_profile *usage;                /* counts what is chosen; or NULL */
} host_parts;

/* Everything for batches of up to chunk tokens. */
int host_steps_create(host_steps **out, const host_parts *parts, int chunk, err_ctx *err);
void host_steps_free(host_steps *s);     /* NULL is fine */
uint64_t host_steps_bytes(const model *m, int n_thread, int chunk);      /* UINT64_MAX: too much */

/* All that follows is of the session with this state, whose layers here are in RAM; first of all,
 * and between batches. */
void host_steps_select(host_steps *s, state *st);

const layer_steps *host_steps_table(const host_steps *s);

#endif
