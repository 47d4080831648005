/* usage_profile.h - counts of one or more runs: how often each expert was chosen, where it was
 * then, and what the layers cost.
 *
 * A run counts into a profile of its own. At its end the program merges it into the profile of
 * earlier runs (moe/profile_file.h), whose counts fade. moe/profile_scores.h makes scores of a
 * profile.
 *
 * Counts are multiples of 1/64: a merge rounds down. So sums are exact, a file holds them in a
 * few digits, and experts that are no longer chosen end at 0. Counting allocates nothing. One
 * thread at a time. */
#ifndef MOE_USAGE_PROFILE_H
#define MOE_USAGE_PROFILE_H

#include "loader/base.h"

enum {
    PROFILE_MAX_EXPERTS = 1000000,       /* of all layers together */
    PROFILE_MAX_RUNS = 1000000000
};

/* Of an expert, in choices: one for each token that chose it. hot + cold <= raw. */
typedef struct expert_uses {
    double hot, cold;                    /* the expert was in VRAM; it was not */
    double raw;                          /* all, also where that made no difference (prompts) */
} expert_uses;

/* Of a layer. */
typedef struct layer_uses {
    double calls;                        /* its experts were computed for a batch */
    double cold_slots;                   /* slots of those calls that the CPU computed */
    double hot_s, cold_s;                /* seconds of the GPU, and of the CPU, */
    double join_s;                       /* and of one waiting for the other */
} layer_uses;

/* The fields are for usage_profile.c and profile_file.c. */
typedef struct usage_profile {
    int n_layer, n_expert;
    int n_run;
    layer_uses *layers;                  /* [n_layer] */
    expert_uses *experts;                /* [n_layer, n_expert] */
} usage_profile;

/* All counts are 0. ERR_RANGE if the shape is empty, or above PROFILE_MAX_EXPERTS. */
int usage_profile_create(usage_profile **out, int n_layer, int n_expert, err_ctx *err);
void usage_profile_free(usage_profile *p);       /* NULL is fine */

int usage_profile_layers(const usage_profile *p);
int usage_profile_experts(const usage_profile *p);       /* of a layer */
/* Merged runs. A profile is a run as soon as it has counted anything. */
int usage_profile_runs(const usage_profile *p);

/* Borrowed, until the profile is freed. */
const expert_uses *usage_profile_uses(const usage_profile *p, int layer);      /* [n_expert] */
const layer_uses *usage_profile_layer(const usage_profile *p, int layer);

/* ---- counting ---- */

typedef enum expert_where { EXPERT_COLD, EXPERT_HOT, EXPERT_EITHER } expert_where;

/* n choices of an expert. */
void usage_profile_count(usage_profile *p, int layer, int expert, expert_where where, uint64_t n);
/* One call of a layer. Negative seconds and NaN count as 0. */
void usage_profile_call(usage_profile *p, int layer, int cold_slots, double hot_s, double cold_s,
                        double join_s);
/* Adds counts of a layer that come from elsewhere. */
void usage_profile_add_layer(usage_profile *p, int layer, const layer_uses *more);

/* into = into * decay + from for each count, with decay 0..1. The shapes are equal. Runs are added
 * up. */
void usage_profile_merge(usage_profile *into, const usage_profile *from, double decay);

/* ---- an order of experts as a profile ---- */

/* Counts n, n - 1, .. 1 choices of n experts, layer * n_expert + expert. Ignores those that are out
 * of range. */
void usage_profile_count_list(usage_profile *p, const int *experts, int n);
/* Lists the chosen experts, the most often chosen first. list: for all experts. Returns how
 * many. */
int usage_profile_list(const usage_profile *p, int *list);

#endif
