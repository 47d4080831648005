/* postfetch_levels.h - how much is fetched of experts that are not in VRAM, and what is done with
 * guesses at the next layer's: two levels, each with a tuner that tries out others on single
 * tokens.
 *
 * Levels change the device's table of counts, never a result. The owner tells how long each token
 * took, and brings the table to the device when it has changed. Small enough to be embedded; one
 * thread at a time. */
#ifndef ENGINE_GPU_POSTFETCH_LEVELS_H
#define ENGINE_GPU_POSTFETCH_LEVELS_H

#include "cuda/gpu_experts.h"
#include "moe/expert.h"
#include "moe/postfetch.h"
#include "moe/postfetch_tuner.h"
#include "tiers/plan.h"

enum { FETCH_TABLE = 2 * GPU_FETCH_COUNTS };

typedef struct postfetch_levels {
    int k;                               /* experts of a token */
    int pad_down, pad_all;               /* slabs there is room for; 0: nothing is fetched */
    bool can_predict;
    postfetch_options post;
    postfetch_tuner tuner, prediction_tuner;
    bool paused;
    int level;                           /* for the next token: of what is fetched, */
    bool reads_ahead;                    /* and whether predicted experts are read ahead */
    uint8_t table[FETCH_TABLE];          /* gpu_with_host's fetch */
} postfetch_levels;

/* With k, the rooms and post set. bank: of a layer that asks, the others are much alike; NULL: none
 * does. */
void postfetch_levels_begin(postfetch_levels *f, const expert_bank *bank, const speeds *rate);

/* After each single token, which took s seconds and chose n_cold experts that are not in VRAM.
 * Returns whether the table has changed. */
bool postfetch_levels_token(postfetch_levels *f, double s, int n_cold);

/* While paused nothing is fetched, and nothing tried out. The table changes. */
void postfetch_levels_pause(postfetch_levels *f, bool paused);

/* How many of n_cold experts have something fetched, if all are in page-locked RAM. */
int postfetch_levels_meant(const postfetch_levels *f, int n_cold);

#endif
