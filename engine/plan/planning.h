/* planning.h - the planner's inputs: sizes of a model, of a session, and of this machine's memory.
 *
 * Sizes come from the bound tensors and from the code that will allocate. Reads no weight and
 * allocates nothing. tiers/plan.h decides. Called from the thread that opens the engine. */
#ifndef ENGINE_PLAN_PLANNING_H
#define ENGINE_PLAN_PLANNING_H

#include "engine/engine.h"
#include "tiers/plan.h"

typedef struct planning {
    plan_machine machine;
    plan_model model;                     /* points at the arrays below: do not copy the struct */
    plan_session session;
    uint64_t expert_bytes[PLAN_MAX_LAYERS], down_bytes[PLAN_MAX_LAYERS];
    uint64_t cached_bytes[PLAN_MAX_LAYERS], frame_bytes[PLAN_MAX_LAYERS];
    uint64_t layer_dense[PLAN_MAX_LAYERS], layer_state[PLAN_CHUNKS][PLAN_MAX_LAYERS];
} planning;

/* Returns the bytes of VRAM for chunks of `chunk` tokens, for any placement of the experts. */
typedef uint64_t planning_work(void *ctx, const model *m, int chunk, int pass);
uint64_t planning_gpu_work(void *device, const model *m, int chunk, int pass);   /* device: gpu */


/* Unmaps the pages of weights that opening the model has read: a plan counts weights by their size
 * and not as the program's memory. Does nothing for a model in memory. */
void planning_forget(const model *m);

/* Returns the RAM of this process now, plus a margin for code that has not run yet. */
uint64_t planning_program_bytes(void);

/* Each fills one input. planning_machine: free memory now, of the first GPU too if use_gpu, and the
 * RAM of this process; call it before weights are read. Speeds stay 0. planning_session: work NULL
 * plans for the CPU alone; chunk 0: the default. */
int planning_machine(plan_machine *out, bool use_gpu, err_ctx *err);
int planning_model(planning *to, const model *m, err_ctx *err);
int planning_session(planning *to, const model *m, const session_options *o, int n_thread,
                     planning_work *work, void *ctx, err_ctx *err);

/* The plan for a session of m; the caller has filled to->machine, the rest is filled here. n_thread
 * 0: one per core. work NULL: plans for the CPU alone. */
int planning_make(plan *out, planning *to, const model *m, const session_options *o, int n_thread,
                  planning_work *work, void *ctx, const plan_wish *w, err_ctx *err);

/* Whether a plan for a model that uses its next-token block has room for it: with the head on one
 * processor, no experts on the drive, and VRAM for cold experts many times the block. */
bool planning_has_mtp_room(const planning *of, const plan *p, const model *m);

/* Returns the bytes of a repacked head (repack_head.h), for plan_wish, or 0 if it is not faster. */
uint64_t planning_copy_bytes(const model *m, const char *isa, bool exact);

/* Sets the key under which measured speeds are saved. gpu_name "": none. isa NULL or "":
 * fastest. */
int planning_key(speeds_key *out, const model *m, int n_thread, const char *isa,
                 const char *gpu_name, err_ctx *err);

#endif
