/* placing.h - where a model will live on this machine: what there is, how fast it was measured to
 * be, and the plan made of it.
 *
 * The one place where speeds come from: the file that remembers them, or a measurement of a second
 * or two where the plan depends on it; else figures are assumed. */
#ifndef CLI_PLACING_H
#define CLI_PLACING_H

#include "cli/plan_view.h"
#include "cuda/gpu.h"
#include "engine/planning.h"
#include "engine/postfetch.h"

typedef enum device_choice { DEVICE_CPU, DEVICE_CUDA, DEVICE_AUTO } device_choice;

typedef struct placing_options {
    engine_options engine;
    device_choice device;                /* AUTO: the GPU if there is one that can */
    plan_wish wish;
    postfetch_options post;
} placing_options;

typedef struct placing {
    planning in;
    plan p;
    bool measured;                       /* by this machine, now or earlier, every figure */
    gpu_info info;                       /* name "" without a GPU */
    char note[800];                      /* why it is the CPU after all; "": nothing to say */
} placing;

/* The plan for a session on m. e measures; NULL: nothing is measured. */
int placing_make(placing *out, const model *m, engine *e, const placing_options *o,
                 const session_options *so, err_ctx *err);

plan_view placing_view(const placing *p);

#endif
