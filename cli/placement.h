/* placement.h - where a model will live on this machine: what there is, how fast it was measured to
 * be, and the plan made of it.
 *
 * The one place where speeds come from: the file that remembers them, or a measurement of a second
 * or two where the plan depends on it; else figures are assumed. Only
 * --measure replaces figures that the file has. */
#ifndef CLI_PLACEMENT_H
#define CLI_PLACEMENT_H

#include <limits.h>

#include "cli/view/plan_view.h"
#include "cuda/gpu.h"
#include "engine/plan/planning.h"
#include "moe/postfetch.h"
#include "moe/profile_scores.h"

typedef enum device_choice { DEVICE_CPU, DEVICE_CUDA, DEVICE_AUTO } device_choice;

typedef struct placement_options {
    engine_options engine;
    device_choice device;                /* AUTO: the GPU if there is one that can */
    plan_wish wish;
    postfetch_options post;
    cache_policy cache;
    const char *profile, *learn;         /* files of what runs saw of the experts, to begin with and
                                          * to add to; or NULL */
    weighting_options weighting;         /* what a profile's figures are worth */
    int cache_update;                    /* experts that may come in after an answer */
    int prefill_m;                       /* tokens from which products are GEMMs; 0: as usual */
    bool remember;                       /* the experts of the last run are those of the next */
    bool measure;                        /* in any case, even if the plan does not depend on it */
    uint64_t ram_aside;                  /* for something else of this program, which a bound of
                                          * RAM counts, too */
} placement_options;

typedef struct placement {
    planning in;
    plan p;
    bool measured;                       /* by this machine, now or earlier, every figure */
    int64_t date;                        /* of the measurement, if measured; seconds since 1970 */
    char kept[PATH_MAX];                 /* the file of speeds; "": there is none */
    speeds_key key;                      /* its entry */
    gpu_info info;                       /* name "" without a GPU */
    gpu_gemm gemm;                       /* how it computes products of prompts, */
    char gemm_name[32];                  /* and what that means here: "own"; "" without one */
    char note[800];                      /* why it is the CPU after all; "": nothing to say */
} placement;

/* The plan for a session on m. e measures; NULL: nothing is measured. */
int placement_make(placement *out, const model *m, engine *e, const placement_options *o,
                 const session_options *so, err_ctx *err);

plan_view placement_view(const placement *p);

#endif
