/* cache_replay.h - what a cache of experts would have made of a trace of routing.
 *
 * Two kinds of cache, after how experts come in:
 *
 *   VRAM   between tokens, and at most n_upload of them for a token: one that was chosen and is not
 *          there comes in if it is worth more than the least of those that are. Until then the CPU
 *          computes it. A prompt's tokens bring in as many as they like: its experts pass through
 *          VRAM anyway.
 *   RAM    on demand: an expert is read from the drive when it is chosen, and takes a place.
 *
 * The prompt warms the cache; only generated tokens count. Layers follow each other token by token,
 * in a prompt, too. Needs no model: sizes are in the trace. */
#ifndef CLI_BENCH_CACHE_REPLAY_H
#define CLI_BENCH_CACHE_REPLAY_H

#include "cli/bench/cache_optimum.h"
#include "moe/expert_cache.h"
#include "tiers/speeds.h"

typedef enum replay_mode { REPLAY_VRAM, REPLAY_RAM, REPLAY_MODES } replay_mode;
const char *replay_mode_name(replay_mode m);     /* "vram", "ram" */

/* A cache_policy, or one of these. */
enum {
    REPLAY_BEST = CACHE_POLICIES,        /* cache_optimum.h */
    REPLAY_FIXED,                        /* VRAM only: the first layers' experts, for good */
    REPLAY_RULES
};
const char *replay_rule_name(int rule);          /* "lru", ..., "best", "fixed" */

typedef struct replay replay;

/* Borrows t. Refuses a trace without generated tokens, one that has more of a prompt after them,
 * and one with more than CACHE_MOST_POOLS sizes of experts. */
int replay_create(replay **out, const routing_trace *t, err_ctx *err);
void replay_free(replay *r);             /* NULL is fine */

/* Places of each size of experts. */
typedef struct replay_size {
    int n_place[CACHE_MOST_POOLS];
    int places;                          /* all together, */
    uint64_t bytes;                      /* and what they hold */
} replay_size;
replay_size replay_share(const replay *r, double share);         /* of all experts; rounded down */
replay_size replay_one_token(const replay *r);                   /* as many as a token chooses */
uint64_t replay_all_bytes(const replay *r);                      /* of all experts */

typedef struct replay_figures {
    double hit_rate;                     /* of the choices */
    double layers_inside;                /* share of layers whose chosen experts were all there */
    double uploads;                      /* for a token; RAM: reads */
    double tok_s;                        /* by the given speeds: tiers/layer_time.h */
} replay_figures;

/* n_upload is for REPLAY_VRAM. rate without zeros. The cache's own memory is all that is
 * allocated. */
int replay_run(replay_figures *out, replay *r, replay_mode mode, int rule, const replay_size *size,
               int n_upload, const speeds *rate, err_ctx *err);

#endif
