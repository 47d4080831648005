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

/* The fields down to post are set. bank: of a layer with cold experts, the others are much alike;
 * NULL: there is none. */
void postfetch_levels_begin(postfetch_levels *f, const expert_bank *bank, const speeds *rate);

/* After each single token, which took so many seconds and chose n_cold experts outside VRAM.
 * Returns whether table, level or reads_ahead have changed. */
bool postfetch_levels_token(postfetch_levels *f, double seconds, int n_cold);

/* While paused nothing is fetched or read ahead, and there are no trials. The table changes. */
void postfetch_levels_pause(postfetch_levels *f, bool paused);

/* How many of n_cold experts have a slab fetched, if all are in page-locked RAM. */
int postfetch_levels_meant(const postfetch_levels *f, int n_cold);

#endif
