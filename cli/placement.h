/* placement.h - the plan of a model on this machine, from its sizes and speeds.
 *
 * Speeds come from the file of measured speeds, else from a measurement of one to two seconds if
 * the plan depends on them, else they are assumed. Only --measure replaces speeds in the file. */
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
    device_choice device;                /* AUTO: the GPU if it can compute the model */
    bool mtp;                            /* the model's next-token block is used if it has room */
    plan_wish wish;
    postfetch_options post;
    cache_policy cache;
    const char *profile, *learn;         /* files of expert counts, to start from and to add to; or
                                          * NULL */
    weighting_options weighting;         /* of a profile's counts */
    int cache_update;                    /* experts that may move to VRAM after an answer */
    int prefill_m;                       /* tokens from which products are GEMMs; 0: as usual */
    bool remember;                       /* the next run starts with this run's experts */
    bool measure;                        /* even if the plan does not depend on speeds */
    uint64_t ram_aside;                  /* for other data of the program, within the RAM limit */
} placement_options;

typedef struct placement {
    planning in;
    plan p;
    bool measured;                       /* all speeds, on this machine, now or earlier */
    int64_t date;                        /* of the measurement, if measured; seconds since 1970 */
    char kept[PATH_MAX];                 /* the file of speeds; "": none */
    speeds_key key;                      /* its entry */
    gpu_info info;                       /* name "" without a GPU */
    gpu_gemm gemm;                       /* how the GPU computes products of prompts */
    char gemm_name[32];                  /* "own" or the library's name; "" without a GPU */
    char note[800];                      /* why the CPU is used; "": no reason to print */
} placement;

/* The plan for a session on m. e measures; NULL: nothing is measured. If memory is short, m's
 * next-token block is left out first. */
int placement_make(placement *out, model *m, engine *e, const placement_options *o,
                 const session_options *so, err_ctx *err);

plan_view placement_view(const placement *p);

#endif
