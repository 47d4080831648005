/* host_steps.h - the steps of a layer on the CPU: the reference for every other implementation.
 * Each step has finished when it returns. One thread at a time, the owner of the team. */
#ifndef ENGINE_HOST_HOST_STEPS_H
#define ENGINE_HOST_HOST_STEPS_H

#include "engine/engine.h"
#include "engine/layer_steps.h"
#include "engine/session/state.h"

typedef struct host_steps host_steps;

/* Everything for batches of up to chunk tokens. Borrows e. */
int host_steps_create(host_steps **out, const engine *e, int chunk, err_ctx *err);
void host_steps_free(host_steps *s);     /* NULL is fine */
uint64_t host_steps_bytes(const model *m, int n_thread, int chunk);      /* UINT64_MAX: too much */

const layer_steps *host_steps_table(const host_steps *s);

#endif
