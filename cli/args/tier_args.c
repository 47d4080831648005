/* tier_args.c - options to the plan's wishes and to the options of post-fetch and cache.
 *
 * Limits and measured speeds choose the strategy of a prompt. Above plan_most_shared tokens that
 * can change roundings; --deterministic lets sizes alone decide. */
#include "cli/args/tier_args.h"

#include <stdlib.h>
#include <string.h>

#include "cli/args/args_known.h"
#include "cli/console.h"
#include "cuda/gpu.h"

#define FIELD(f) offsetof(tier_args, f)
#define POSTFETCH "MOE_POSTFETCH_"
const arg_option tier_options[TIER_N_OPTION] = {
    { "vram", 0, ARG_SIZE, FIELD(vram), "SIZE", "MOE_VRAM", 0, 0,
      "VRAM limit, e.g. 6G. Default: free VRAM less a reserve" },
    { "ram", 0, ARG_SIZE, FIELD(ram), "SIZE", "MOE_RAM", 0, 0,
      "RAM limit, e.g. 24G. Default: available RAM less a reserve" },
    { "expert-cache", 0, ARG_SIZE_OR_AUTO, FIELD(expert_cache), "SIZE", "MOE_EXPERT_CACHE", 0, 0,
      "VRAM limit for experts, e.g. 4G; auto: what is left; 0: none. Default: auto" },
    { "cpu-moe", 0, ARG_FLAG, FIELD(cpu_moe), NULL, NULL, 0, 0,
      "Keep all experts out of VRAM; --expert-cache overrides this" },
    { "cache-policy", 0, ARG_TEXT, FIELD(cache), "NAME", TIER_CACHE_ENV, 0, 0, TIER_CACHE_HELP },
    { "expert-profile", 0, ARG_TEXT, FIELD(profile), "FILE", "MOE_EXPERT_PROFILE", 0, 0,
      "Start with the experts used most in a file of --learn. Default: those of the last run" },
    { "learn", 0, ARG_TEXT, FIELD(learn), "FILE", "MOE_LEARN", 0, 0,
      "Add the expert counts of this run to a profile" },
    { "deterministic", 0, ARG_FLAG, FIELD(deterministic), NULL, "MOE_DETERMINISTIC", 0, 0,
      "Decide by sizes, never by measured speeds; run no trials" },
    /* Variables alone: docs/troubleshooting.md has the table. */
    { NULL, 0, ARG_TEXT, FIELD(weighting), "MODE", "MOE_WEIGHTING", 0, 0, NULL },
    { NULL, 0, ARG_FLOAT, FIELD(curve), "C", "MOE_LAYER_CURVE", 0, 1, NULL },
    { NULL, 0, ARG_INT, FIELD(cache_update), "N", "MOE_CACHE_UPDATE", 0, 65536, NULL },
    { NULL, 0, ARG_TEXT, FIELD(prompt_strategy), "WAY", "MOE_PROMPT_WAY", 0, 0, NULL },
    { NULL, 0, ARG_INT, FIELD(prefill_m), "N", "MOE_FP4_PREFILL_M", 0, 1 << 20, NULL },
    { NULL, 0, ARG_TEXT, FIELD(guess), "MODE", "MOE_GUESS", 0, 0, NULL },
    { NULL, 0, ARG_TEXT, FIELD(postfetch), "MODE", POSTFETCH "ENABLE", 0, 0, NULL },
    { NULL, 0, ARG_FLAG, FIELD(force_cpu), NULL, POSTFETCH "FORCE_CPU", 0, 0, NULL },
    { NULL, 0, ARG_FLAG, FIELD(block), NULL, POSTFETCH "BLOCK_ON_MISS", 0, 0, NULL },
    { NULL, 0, ARG_INT, FIELD(max_transfers), "N", POSTFETCH "MAX_TRANSFERS", 0, 96, NULL },
    { NULL, 0, ARG_INT, FIELD(pad_mb), "N", POSTFETCH "SCRATCHPAD_MB", 0, 65536, NULL },
    { NULL, 0, ARG_INT, FIELD(dedicated), "N", POSTFETCH "DEDICATED_STREAMS", 0, 64, NULL },
    { NULL, 0, ARG_FLAG, FIELD(debug), NULL, POSTFETCH "DEBUG", 0, 0, NULL },
};

void tier_args_init(tier_args *a)
{
    *a = (tier_args){ .vram = UINT64_MAX, .ram = UINT64_MAX, .expert_cache = TIER_UNSAID,
                      .dedicated = 1, .curve = WEIGHTING_CURVE, .cache_update = 32 };
}

void tier_args_note_vram(const plan_wish *wish, device_choice device)
{
    const bool vram = wish->vram != UINT64_MAX;
    const bool cache = wish->hot_most != UINT64_MAX && wish->hot_most > 0;   /* none is kept */
    if (!vram && !cache) return;
    console_note("%s no effect: %s", vram && cache ? "--vram and --expert-cache have" :
                 vram ? "--vram has" : "--expert-cache has",
                 device == DEVICE_CPU && gpu_count() > 0 ? "the model runs on the CPU" :
                 strcmp(gpu_backend(), "none") == 0 ? "no GPU (built for the CPU alone)" :
                 "no GPU found");
}

/* MOE_RAM_AVAILABLE simulates a machine for plans; cli/placement.c uses it. 0, or 2 after one
 * line. */
static int check_pretended(void)
{
    const char *text = getenv("MOE_RAM_AVAILABLE");
    uint64_t bytes;
    if (!text || !*text || arg_parse_size(&bytes, text)) return 0;
    console_error("MOE_RAM_AVAILABLE: '%s' is not a size such as 512M or 20G", text);
    return 2;
}

static bool cache_is_off(const tier_args *a) { return a->cache && strcmp(a->cache, "off") == 0; }

/* 0, or 2 after one line. */
static int read_policy(cache_policy *to, const tier_args *a)
{
    char shown[64];
    *to = CACHE_FADE;
    if (!a->cache || !*a->cache || cache_policy_named(to, a->cache)) return 0;
    if (cache_is_off(a)) return 0;
    console_error("%s: '%s' is none of fade, lcp, lru and off",
                  a->cache == getenv(TIER_CACHE_ENV) ? TIER_CACHE_ENV : "--cache-policy",
                  ESC(shown, str_from(a->cache)));
    return 2;
}

/* 0, or 2 after one line. */
static int read_weighting(weighting_options *to, const tier_args *a)
{
    char shown[64];
    *to = (weighting_options){ WEIGHTING_FLAT, a->curve };
    if (!a->weighting || !*a->weighting || weighting_named(&to->mode, a->weighting)) return 0;
    console_error(
        "MOE_WEIGHTING: '%s' is none of flat, pressure, smooth-pressure, time and balanced",
        ESC(shown, str_from(a->weighting)));
    return 2;
}

static const char *path_or_null(const char *text) { return text && *text ? text : NULL; }

typedef struct on_off { bool on, off; } on_off;          /* neither: auto */

static int read_on_off(on_off *to, const char *text, const char *variable)
{
    const char *mode = text && *text ? text : "auto";
    const char *name, *said = args_known_variable(&name, variable);
    char shown[64];
    *to = (on_off){ !strcmp(mode, "on") || !strcmp(mode, "1"),
                    !strcmp(mode, "off") || !strcmp(mode, "0") };
    if (to->on || to->off || !strcmp(mode, "auto")) return 0;
    console_error("%s: '%s' is none of on, off and auto",
                  text == said ? name : "--postfetch",   /* a flag of moe-bench tiers */
                  ESC(shown, str_from(mode)));
    return 2;
}

/* 0, or 2 after one line. */
static int read_way(plan_wish *to, const tier_args *a)
{
    static const struct { const char *name; prompt_strategy way; } ways[] = {
        { "bus", PROMPT_BUS }, { "cores", PROMPT_CORES }, { "split", PROMPT_SPLIT },
    };
    const char *text = a->prompt_strategy && *a->prompt_strategy ? a->prompt_strategy : "auto";
    char shown[64];
    if (!strcmp(text, "auto")) return 0;
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        if (strcmp(text, ways[i].name) != 0) continue;
        to->strategy_wanted = true;
        to->strategy = ways[i].way;
        if (!a->deterministic) return 0;
        console_error("MOE_PROMPT_WAY=%s and --deterministic exclude each other", text);
        return 2;
    }
    console_error("MOE_PROMPT_WAY: '%s' is none of bus, cores, split and auto",
                  ESC(shown, str_from(text)));
    return 2;
}

int tier_args_read(placement_options *to, const tier_args *a)
{
    on_off fetch, guess;
    if (read_on_off(&fetch, a->postfetch, POSTFETCH "ENABLE") != 0 ||
        read_on_off(&guess, a->guess, "MOE_GUESS") != 0 || check_pretended() != 0 ||
        read_policy(&to->cache, a) != 0 || read_weighting(&to->weighting, a) != 0)
        return 2;
    to->profile = path_or_null(a->profile);
    to->learn = path_or_null(a->learn);
    to->cache_update = (int)a->cache_update;
    to->prefill_m = (int)a->prefill_m;
    to->wish = (plan_wish){
        .vram = a->vram, .ram = a->ram, .no_postfetch = fetch.off, .fixed = a->deterministic,
        .hot_most = a->expert_cache != TIER_UNSAID ? a->expert_cache :
                    a->cpu_moe ? 0 : UINT64_MAX,
        .whole_banks = cache_is_off(a),
    };
    if (read_way(&to->wish, a) != 0) return 2;
    to->post = (postfetch_options){
        .off = fetch.off, .always = fetch.on, .no_prediction = guess.off,
        .prediction_always = guess.on, .force_cpu = a->force_cpu, .block = a->block,
        .one_stream = a->dedicated == 0, .max_transfers = (int)a->max_transfers,
        .pad_bytes = (uint64_t)a->pad_mb << 20, .frozen = a->deterministic, .debug = a->debug,
    };
    return 0;
}
