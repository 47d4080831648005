/* host_steps.h - the steps of a layer on the CPU: the reference for every other implementation.
 * Each step has finished when it returns. One thread at a time, the owner of the team. */
#ifndef ENGINE_HOST_HOST_STEPS_H
#define ENGINE_HOST_HOST_STEPS_H

#include "engine/engine.h"
#include "engine/layer_steps.h"
#include "engine/session/state.h"

typedef struct host_steps host_steps;

/* Everything for batches of up to chunk tokens, and for batches of up to inner ones between two
 * layers of such a batch; inner 0: there are none. Borrows e. */
int host_steps_create(host_steps **out, const engine *e, int chunk, int inner, err_ctx *err);
void host_steps_free(host_steps *s);     /* NULL is fine */
/* UINT64_MAX: too much */
uint64_t host_steps_bytes(const model *m, int n_thread, int chunk, int inner);

/* Between two layers of a batch: begin sets it aside, and any number of inner batches may follow;
 * end goes back to it. */
void host_steps_inner_begin(host_steps *s);
void host_steps_inner_end(host_steps *s);

/* Experts that passes have read: one that several tokens of a pass chose counts once. */
typedef struct experts_read { uint64_t n, bytes; } experts_read;
experts_read host_steps_read(const host_steps *s);

const layer_steps *host_steps_table(const host_steps *s);

#endif
