/* planning.h - the planner's inputs: what a model, a session and this machine come to.
 *
 * Sizes come from the bound tensors and from whatever will allocate; no weight is read and nothing
 * is allocated. tiers/plan.h decides. */
#ifndef ENGINE_PLAN_PLANNING_H
#define ENGINE_PLAN_PLANNING_H

#include "engine/engine.h"
#include "tiers/plan.h"

typedef struct planning {
    plan_machine machine;
    plan_model what;                     /* its arrays are these: do not copy the struct */
    plan_session session;
    uint64_t expert_bytes[PLAN_MAX_LAYERS], down_bytes[PLAN_MAX_LAYERS];
    uint64_t layer_dense[PLAN_MAX_LAYERS], slot_bytes[PLAN_MAX_LAYERS];
} planning;

/* Bytes of VRAM that chunks of so many tokens take, wherever the experts are. */
typedef uint64_t planning_work(void *ctx, const model *m, int chunk);
uint64_t planning_gpu_work(void *device, const model *m, int chunk);     /* of gpu_steps.h:
                                          * device is a gpu */

/* Lets go of weights that opening the model has looked at: a plan counts them by their sizes, so
 * they should not count as the program's. For a model in a file; does nothing to others. */
void planning_forget(const model *m);

/* What this process has taken so far, and a little more for what it has not run yet. */
uint64_t planning_program_bytes(void);

/* Each fills its part. planning_machine: what is free now, of the first GPU too if use_gpu, and
 * what this process has taken, so it is to be called before weights are read; speeds are left at 0.
 * planning_session: work NULL plans for the CPU alone; chunk 0: the default. */
int planning_machine(plan_machine *out, bool use_gpu, err_ctx *err);
int planning_model(planning *to, const model *m, err_ctx *err);
int planning_session(plan_session *out, const model *m, const session_options *o, int n_thread,
                     planning_work *work, void *ctx, err_ctx *err);

/* The plan for a session of m; the caller has filled to->machine, the rest is filled here. n_thread
 * 0: one per core. work NULL: the CPU alone, whatever the machine says. */
int planning_make(plan *out, planning *to, const model *m, const session_options *o, int n_thread,
                  planning_work *work, void *ctx, const plan_wish *w, err_ctx *err);

/* Bytes of a repacked head (repack_head.h), for plan_wish; 0 if there is nothing to gain. */
uint64_t planning_copy_bytes(const model *m, const char *isa, bool exact);

/* What measured speeds hold for. gpu_name "": none. isa NULL or "": the fastest. */
int planning_key(speeds_key *out, const model *m, int n_thread, const char *isa,
                 const char *gpu_name, err_ctx *err);

#endif
