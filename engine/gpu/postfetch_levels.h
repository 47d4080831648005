/* postfetch_levels.h - how many slabs of cold experts are fetched, and whether the CPU reads
 * predicted experts ahead. Trials on single tokens decide both (moe/trial.h).
 *
 * A decision changes the device's table of counts and the launches of a layer, never a result.
 * The owner reports each token's time and sends the table to the device when it has changed.
 * Embedded in expert_server; one thread at a time. */
#ifndef ENGINE_GPU_POSTFETCH_LEVELS_H
#define ENGINE_GPU_POSTFETCH_LEVELS_H

#include "cuda/gpu_experts.h"
#include "moe/expert.h"
#include "moe/postfetch.h"
#include "moe/trial.h"
#include "tiers/plan.h"

enum { FETCH_TABLE = 2 * GPU_FETCH_COUNTS };

typedef struct postfetch_levels {
    int k;                               /* experts of a token */
    int pad_down, pad_all;               /* slabs and whole experts that fit in the pad */
    bool can_predict;
    postfetch_options post;
    trial_levels fetch;                  /* slabs that are fetched where all k experts are cold */
    trial_levels read;                   /* 1: the CPU reads ahead */
    int n_cold;                          /* experts of the last token that had any */
    bool paused;
    int level;                           /* for the next token: of fetch, */
    bool reads_ahead;                    /* and of read */
    uint8_t table[FETCH_TABLE];          /* gpu_with_host's fetch */
} postfetch_levels;

/* The caller has set the fields down to post. bank: of any layer with cold experts, whose sizes are
 * similar; NULL: no layer has any. */
void postfetch_levels_begin(postfetch_levels *f, const expert_bank *bank, const speeds *rate);

/* Reports a single token's seconds and number of cold experts. Returns whether table, level or
 * reads_ahead have changed. */
bool postfetch_levels_token(postfetch_levels *f, double seconds, int n_cold);

/* While paused nothing is fetched or read ahead, and there are no trials. The table changes. */
void postfetch_levels_pause(postfetch_levels *f, bool paused);

/* Of n_cold experts, those with a fetched slab, if all are in page-locked RAM. */
int postfetch_levels_meant(const postfetch_levels *f, int n_cold);

#endif
