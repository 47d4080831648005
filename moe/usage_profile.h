/* usage_profile.h - what a run saw of its router: how often each expert was chosen, where it was
 * then, and what the layers cost.
 *
 * A run counts into a profile of its own. At its end the profile of earlier runs is loaded, this
 * one is merged into it and it is saved, so that old runs fade. moe/profile_scores.h makes scores
 * of it. Nothing here asks for the time or for what is hot: the caller says so.
 *
 * Counts are multiples of 1/64: what a decay leaves is rounded down to that, so sums are exact, a
 * file holds all of it in a few digits, and what nobody chooses any more ends at 0. Counting
 * allocates nothing. One thread at a time. */
#ifndef MOE_USAGE_PROFILE_H
#define MOE_USAGE_PROFILE_H

#include "moe/profile_file.h"

typedef struct usage_profile usage_profile;

/* Of an expert: choices (a token that chose it is one). hot + cold <= raw. */
typedef struct expert_uses {
    double hot, cold;                    /* it was in VRAM, it was not */
    double raw;                          /* all, also where it made no difference (prompts) */
} expert_uses;

/* Of a layer. */
typedef struct layer_uses {
    double calls;                        /* how often its experts were computed for a batch */
    double cold_slots;                   /* slots of those calls that were computed off the GPU */
    double hot_s, cold_s;                /* seconds of the GPU's lane and of the other one, */
    double join_s;                       /* and of the one waiting for the other */
} layer_uses;

/* An empty one. ERR_RANGE if the shape is none that a file could hold (profile_file.h). */
int usage_profile_create(usage_profile **out, int n_layer, int n_expert, err_ctx *err);
void usage_profile_free(usage_profile *p);       /* NULL is fine */
void usage_profile_clear(usage_profile *p);

int usage_profile_layers(const usage_profile *p);
int usage_profile_experts(const usage_profile *p);       /* of a layer */
/* Runs that were merged; this one is one as soon as anything was counted. */
int usage_profile_runs(const usage_profile *p);

/* Borrowed, until the profile is freed. */
const expert_uses *usage_profile_uses(const usage_profile *p, int layer);      /* [n_expert] */
const layer_uses *usage_profile_layer(const usage_profile *p, int layer);

/* ---- counting -------------------------------------------------------------------------------- */

typedef enum expert_where { EXPERT_COLD, EXPERT_HOT, EXPERT_EITHER } expert_where;

/* n choices of an expert. */
void usage_profile_count(usage_profile *p, int layer, int expert, expert_where where, uint64_t n);

/* One call of a layer. Seconds that are none (negative, NaN) count as 0. */
void usage_profile_call(usage_profile *p, int layer, int cold_slots, double hot_s, double cold_s,
                        double join_s);

/* Adds figures of a layer that somebody else has counted; none is negative or NaN. */
void usage_profile_add_layer(usage_profile *p, int layer, const layer_uses *more);

/* into = into * decay + from, figure by figure; decay 0 .. 1. Both have the same shape. Runs are
 * added up. */
void usage_profile_merge(usage_profile *into, const usage_profile *from, double decay);

/* ---- files and texts ------------------------------------------------------------------------- */

/* Replaces the file in one step. ERR_RANGE, and no file, if a figure is one that loading would
 * refuse. key: of this profile's shape. */
int usage_profile_save(const usage_profile *p, const char *path, const profile_key *key,
                       err_ctx *err);

/* 0 with *out NULL if there is no such file; < 0 with *out NULL if it is damaged, absurd or another
 * model's. */
int usage_profile_load(usage_profile **out, const char *path, const profile_key *expected,
                       err_ctx *err);
int usage_profile_load_text(usage_profile **out, str_view text, const profile_key *expected,
                            err_ctx *err);

/* ---- for people ------------------------------------------------------------------------------ */

/* One paragraph: the model, the runs, the calls, what was hot, how uneven it was. Cut where dst
 * ends. < 0 without memory, and dst is "". */
int usage_profile_describe(char *dst, size_t cap, const usage_profile *p, const char *name,
                           err_ctx *err);

#endif
