/* tier_args.h - options of memory: limits, cache of experts, profiles; variables of post-fetch.
 *
 * Put a tier_args into the verb's options, call tier_args_init before args_parse and
 * tier_args_read after it, and add to the verb's groups:
 * { "Memory:", tier_options, TIER_N_OPTION, offsetof(..., tiers) }. */
#ifndef CLI_ARGS_TIER_ARGS_H
#define CLI_ARGS_TIER_ARGS_H

#include "cli/args/args.h"
#include "cli/placement.h"

typedef struct tier_args {
    uint64_t vram, ram;                  /* UINT64_MAX: not given */
    uint64_t expert_cache;               /* UINT64_MAX: auto; TIER_UNSAID: not given */
    bool cpu_moe;
    bool deterministic;
    int64_t prefill_m;                   /* tokens; 0: as usual */
    const char *postfetch;               /* "auto", "on", "off", "1", "0"; NULL: auto */
    const char *guess;                   /* likewise */
    const char *prompt_strategy;         /* "auto", "bus", "cores", "split"; NULL: auto */
    bool force_cpu, block, debug;
    int64_t max_transfers, pad_mb, dedicated;
    const char *cache;                   /* a policy's name, or off; NULL or "": the usual */
    int64_t cache_update;                /* experts */
    const char *profile, *learn;         /* files */
    const char *weighting;               /* a mode's name; NULL or "": flat */
    double curve;
} tier_args;

#define TIER_UNSAID (UINT64_MAX - 1)     /* larger than any size that can be given */

/* For verbs with some of these options in their own tables. */
#define TIER_CACHE_ENV "MOE_CACHE_POLICY"
#define TIER_CACHE_HELP "Expert to evict: fade: least used recently; lru: longest unused; lcp: " \
                        "both; off: none, VRAM is fixed. Default: fade"

enum { TIER_N_OPTION = 21 };
extern const arg_option tier_options[TIER_N_OPTION];

void tier_args_init(tier_args *a);

/* Without a GPU: prints that --vram and --expert-cache have no effect, if given, and why. */
void tier_args_note_vram(const plan_wish *wish, device_choice device);

/* Fills wish, post and cache. 0, or 2, the exit code, after one line on stderr. */
int tier_args_read(placement_options *to, const tier_args *a);

#endif
