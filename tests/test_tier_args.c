/* test_tier_args.c - what flags and variables, by our names and by those that people know from
 * elsewhere, ask of the plan, of post-fetch and of the threads. */
#include "cli/args/tier_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args/engine_args.h"
#include "tests/test.h"

#define MIB (UINT64_C(1) << 20)
#define ANY UINT64_MAX
#define LP "LLAMA_POSTFETCH_"
#define MP "MOE_POSTFETCH_"

typedef struct options {
    tier_args tiers;
    engine_args engine;
} options;

static const arg_group groups[] = {
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(options, tiers) },
    { "Model:", engine_arg_options, ENGINE_N_OPTION, offsetof(options, engine) },
};
static const arg_spec spec = { .usage = "moe-test verb", .operands = "", .groups = groups,
                               .n_group = ARRAY_LEN(groups) };

enum { MOST_WORDS = 8, MOST_VARIABLES = 11 };

/* The words of an array up to the first NULL as argv. */
static int parse(options *o, const char *const *words)
{
    char *argv[MOST_WORDS + 2] = { "verb" };
    int n = 1;
    for (; n <= MOST_WORDS && words[n - 1]; n++) argv[n] = (char *)words[n - 1];
    *o = (options){ 0 };
    engine_args_init(&o->engine);
    tier_args_init(&o->tiers);
    return args_parse(&spec, o, NULL, NULL, n, argv);
}

/* NAME=VALUE, up to the first NULL. */
static void set_variables(const char *const *list, bool on)
{
    for (int i = 0; i < MOST_VARIABLES && list[i]; i++) {
        char name[64];
        const size_t n = strcspn(list[i], "=");
        snprintf(name, sizeof name, "%.*s", (int)n, list[i]);
        if (on) setenv(name, list[i] + n + 1, 1);
        else unsetenv(name);
    }
}

/* ---- experts in VRAM ------------------------------------------------------------------------- */

static const struct { const char *words[MOST_WORDS], *env[2]; uint64_t want; const char *why; }
hot_rows[] = {
    { { NULL }, { NULL }, ANY, "nothing is said" },
    { { "--expert-cache", "4G" }, { NULL }, 4096 * MIB, "a size" },
    { { "--expert-cache=1.5G" }, { NULL }, 1536 * MIB, "with its value attached" },
    { { "--expert-cache", "0" }, { NULL }, 0, "none" },
    { { "--expert-cache", "auto" }, { NULL }, ANY, "all that is left" },
    { { "--cpu-moe" }, { NULL }, 0, "experts on the CPU" },
    { { "--moe-hot-cache-max-mib", "3000" }, { NULL }, 3000 * MIB, "in MiB" },
    { { "--moe-hot-cache-max-mib=0" }, { NULL }, 0, "in MiB: none" },
    { { "--moe-hot-cache-max-mib", "-1" }, { NULL }, ANY, "-1: auto" },
    { { "--moe-hot-cache-max-mib", "2G" }, { NULL }, 2048 * MIB, "with a unit of its own" },
    { { "--cpu-moe", "--moe-hot-cache-max-mib", "-1" }, { NULL }, ANY, "both options" },
    { { "--moe-hot-cache-max-mib", "512", "--cpu-moe" }, { NULL }, 512 * MIB, "in either order" },
    { { "--cpu-moe", "--expert-cache", "auto" }, { NULL }, ANY, "auto is something said" },
    { { NULL }, { "MOE_EXPERT_CACHE=2G" }, 2048 * MIB, "a variable" },
    { { "--expert-cache", "1G" }, { "MOE_EXPERT_CACHE=2G" }, 1024 * MIB, "the flag wins" },
    { { "--moe-hot-cache-max-mib", "7" }, { "MOE_EXPERT_CACHE=2G" }, 7 * MIB, "so does an alias" },
};

static void test_hot(void)
{
    for (size_t i = 0; i < ARRAY_LEN(hot_rows); i++) {
        options o;
        placement_options to = { 0 };
        const plan_wish *w = &to.wish;
        set_variables(hot_rows[i].env, true);
        CHECK_MSG(parse(&o, hot_rows[i].words) == ARGS_RUN &&
                  tier_args_read(&to, &o.tiers) == 0 && w->hot_most == hot_rows[i].want &&
                  !w->no_hot && w->vram == ANY && w->ram == ANY, "%s: %llu", hot_rows[i].why,
                  (unsigned long long)w->hot_most);
        set_variables(hot_rows[i].env, false);
    }
}

/* ---- products of prompts --------------------------------------------------------------------- */

static void test_prefill(void)
{
    static const struct { const char *words[MOST_WORDS], *env[2]; int want; bool ok; } rows[] = {
        { { NULL }, { NULL }, 0, true },
        { { NULL }, { "MOE_FP4_PREFILL_M=128" }, 128, true },
        { { NULL }, { "MOE_FP4_PREFILL_M=many" }, 0, false },
        { { "--prefill-m", "64" }, { NULL }, 0, false },     /* no flag */
        { { NULL }, { "MOE_FP4_PREFILL_M=-1" }, 0, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        options o;
        placement_options to = { 0 };
        set_variables(rows[i].env, true);
        const bool ok = parse(&o, rows[i].words) == ARGS_RUN && tier_args_read(&to, &o.tiers) == 0;
        CHECK_MSG(ok == rows[i].ok && to.prefill_m == rows[i].want, "row %d: %d", (int)i,
                  to.prefill_m);
        set_variables(rows[i].env, false);
    }
}

/* ---- cache policy ---------------------------------------------------------------------------- */

static void test_policy(void)
{
    static const struct {
        const char *words[MOST_WORDS], *env[MOST_VARIABLES];
        cache_policy want;
        bool off;
    } rows[] = {
        { { NULL }, { NULL }, CACHE_FADE, false },
        { { "--cache-policy", "lcp" }, { "MOE_CACHE_POLICY=lru" }, CACHE_LCP, false },
        { { NULL }, { "MOE_CACHE_POLICY=lru" }, CACHE_LRU, false },
        { { "--cache-policy", "off" }, { NULL }, CACHE_FADE, true },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        options o;
        placement_options to = { 0 };
        set_variables(rows[i].env, true);
        CHECK_MSG(parse(&o, rows[i].words) == ARGS_RUN && tier_args_read(&to, &o.tiers) == 0 &&
                  to.cache == rows[i].want && to.wish.whole_banks == rows[i].off, "row %d: %s",
                  (int)i, cache_policy_name(to.cache));
        set_variables(rows[i].env, false);
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void test_ways(void)
{
    static const struct {
        const char *words[MOST_WORDS], *env[2];
        bool wanted;
        prompt_strategy way;
    } rows[] = {
        { { NULL }, { NULL }, false, PROMPT_CORES },
        { { NULL }, { "MOE_PROMPT_WAY=auto" }, false, PROMPT_CORES },
        { { NULL }, { "MOE_PROMPT_WAY=bus" }, true, PROMPT_BUS },
        { { NULL }, { "MOE_PROMPT_WAY=cores" }, true, PROMPT_CORES },
        { { NULL }, { "MOE_PROMPT_WAY=split" }, true, PROMPT_SPLIT },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        options o;
        placement_options to = { 0 };
        set_variables(rows[i].env, true);
        CHECK_MSG(parse(&o, rows[i].words) == ARGS_RUN && tier_args_read(&to, &o.tiers) == 0 &&
                  to.wish.strategy_wanted == rows[i].wanted &&
                  (!rows[i].wanted || to.wish.strategy == rows[i].way), "row %d", (int)i);
        set_variables(rows[i].env, false);
    }
}

/* ---- post-fetch ------------------------------------------------------------------------------ */

static const struct {
    const char *words[MOST_WORDS], *env[MOST_VARIABLES];
    postfetch_options want;
    int threads;
    const char *why;
} post_rows[] = {
    { { NULL }, { NULL }, { 0 }, 0, "nothing is said" },
    { { "--postfetch-enable" }, { NULL }, { 0 }, 0, "left out with a note" },
    { { NULL },
      { MP "ENABLE=1", MP "FORCE_CPU=1", MP "BLOCK_ON_MISS=1", MP "MAX_TRANSFERS=3",
        MP "SCRATCHPAD_MB=5", MP "DEDICATED_STREAMS=0", MP "DEBUG=1", MP "CPU_LIMIT=2" },
      { .always = true, .force_cpu = true, .block = true, .max_transfers = 3, .pad_bytes = 5 * MIB,
        .one_stream = true, .debug = true }, 2, "all variables" },
    { { NULL },
      { LP "ENABLE=0", LP "FORCE_CPU=1", LP "BLOCK_ON_MISS=1", LP "MAX_TRANSFERS=3",
        LP "SCRATCHPAD_MB=5", LP "DEDICATED_STREAMS=0", LP "DEBUG=1", LP "CPU_LIMIT=2" },
      { .off = true, .force_cpu = true, .block = true, .max_transfers = 3, .pad_bytes = 5 * MIB,
        .one_stream = true, .debug = true }, 2, "all of them by the other name" },
    { { NULL }, { LP "USE_DEDICATED_STREAMS=0" }, { .one_stream = true }, 0, "with USE_" },
    { { NULL }, { MP "USE_DEDICATED_STREAMS=0" }, { .one_stream = true }, 0, "with USE_, ours" },
    { { NULL }, { LP "USE_DEDICATED_STREAMS=0", MP "DEDICATED_STREAMS=1" }, { 0 }, 0,
      "ours wins" },
    { { NULL }, { LP "ENABLE=1", MP "ENABLE=0" }, { .off = true }, 0, "ours wins here, too" },
    { { NULL }, { LP "ENABLE=1", MP "ENABLE=" }, { 0 }, 0, "ours is set, and empty" },
    { { NULL }, { LP "CPU_LIMIT=2", MP "CPU_LIMIT=3" }, { 0 }, 3, "the first of two" },
    { { NULL }, { LP "CPU_LIMIT=2", "MOE_THREADS=4" }, { 0 }, 4, "the variable of --threads" },
    { { "--threads", "1" }, { LP "CPU_LIMIT=2" }, { 0 }, 1, "the flag" },
    { { NULL }, { "MOE_GUESS=off" }, { .no_prediction = true }, 0, "no predictions" },
    { { NULL }, { "MOE_GUESS=on" }, { .prediction_always = true }, 0, "always predictions" },
    { { NULL }, { "MOE_GUESS=0" }, { .no_prediction = true }, 0, "no predictions, as a number" },
};

static void test_post(void)
{
    for (size_t i = 0; i < ARRAY_LEN(post_rows); i++) {
        const postfetch_options *want = &post_rows[i].want;
        options o;
        placement_options to = { 0 };
        const postfetch_options *got = &to.post;
        set_variables(post_rows[i].env, true);
        const bool read = parse(&o, post_rows[i].words) == ARGS_RUN &&
                          tier_args_read(&to, &o.tiers) == 0;
        set_variables(post_rows[i].env, false);
        CHECK_MSG(read && got->off == want->off && got->always == want->always &&
                  got->force_cpu == want->force_cpu && got->block == want->block &&
                  got->one_stream == want->one_stream &&
                  got->max_transfers == want->max_transfers && got->pad_bytes == want->pad_bytes &&
                  got->debug == want->debug && got->no_prediction == want->no_prediction &&
                  got->prediction_always == want->prediction_always &&
                  to.wish.no_postfetch == want->off, "%s", post_rows[i].why);
        CHECK_MSG(o.engine.threads == post_rows[i].threads, "%s: %d threads", post_rows[i].why,
                  (int)o.engine.threads);
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static const struct { const char *words[MOST_WORDS], *env[2], *says, *why; } bad_rows[] = {
    { { "--expert-cache", "lots" }, { NULL },
      "--expert-cache: 'lots' is not auto or a size such as 512M or 20G", "no size" },
    { { "--expert-cache", "8" }, { NULL }, "--expert-cache: 8 would be 8 bytes: use 8M or 8G",
      "no unit" },
    { { "--expert-cache", "-1" }, { NULL }, "--expert-cache: '-1' is not", "less than nothing" },
    { { "--expert-cache" }, { NULL }, "--expert-cache needs a value (SIZE)", "no value" },
    { { "--moe-hot-cache-max-mib", "-2" }, { NULL }, "--moe-hot-cache-max-mib: '-2' is not",
      "only -1 means auto" },
    { { "--moe-hot-cache-max-mib", "x" }, { NULL }, "--moe-hot-cache-max-mib: 'x' is not",
      "the name that was typed" },
    { { "--moe-hot-cache-max-mib" }, { NULL }, "--moe-hot-cache-max-mib needs a value", "none" },
    { { "--moe-hot-cache-max-mib", "99999999999999999999999999999999999999" }, { NULL },
      "--moe-hot-cache-max-mib: '9", "too many" },
    { { "--cpu-moe=1" }, { NULL }, "--cpu-moe takes no value", "a flag" },
    { { "-cpu-moe" }, { NULL }, "takes two dashes: --cpu-moe", "one dash" },
    { { "--postfetch", "on" }, { NULL }, "unknown option --postfetch", "a variable alone" },
    { { "-cmoe=1" }, { NULL }, "error: -cmoe takes no value", "a long name with one dash" },
    { { "--cmoe" }, { NULL }, "unknown option --cmoe", "the same with two" },
    { { "-np", "4" }, { NULL }, "-np: use --parallel", "an option of others" },
    { { NULL }, { LP "ENABLE=maybe" }, LP "ENABLE: 'maybe' is none of", "the one that is set" },
    { { NULL }, { MP "ENABLE=maybe" }, MP "ENABLE: 'maybe' is none of", "ours" },
    { { NULL }, { "MOE_PROMPT_WAY=rail" }, "MOE_PROMPT_WAY: 'rail' is none of", "the variable" },
    { { "--deterministic" }, { "MOE_PROMPT_WAY=bus" },
      "MOE_PROMPT_WAY=bus and --deterministic", "both" },
    { { NULL }, { LP "CPU_LIMIT=0" }, LP "CPU_LIMIT: 0 is out of range", "no thread at all" },
    { { NULL }, { LP "USE_DEDICATED_STREAMS=x" }, LP "USE_DEDICATED_STREAMS: 'x'", "no number" },
};

/* What a call says on stderr, in text. */
static int read_errors(char *text, size_t cap, const char *const *words)
{
    options o;
    placement_options options_read = { 0 };
    FILE *to = tmpfile();
    const int old = dup(2);
    int rc;
    text[0] = '\0';
    if (!CHECK(to && old >= 0)) return 0;
    dup2(fileno(to), 2);
    rc = parse(&o, words);
    if (rc == ARGS_RUN) rc = tier_args_read(&options_read, &o.tiers);
    dup2(old, 2);
    close(old);
    rewind(to);
    text[fread(text, 1, cap - 1, to)] = '\0';
    fclose(to);
    return rc;
}

static void test_bad(void)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_rows); i++) {
        char text[1024];
        set_variables(bad_rows[i].env, true);
        const int rc = read_errors(text, sizeof text, bad_rows[i].words);
        set_variables(bad_rows[i].env, false);
        CHECK_MSG(rc == 2 && strstr(text, bad_rows[i].says), "%s: %d, %s", bad_rows[i].why, rc,
                  text);
        CHECK_MSG(strchr(text, '\n') == text + strlen(text) - 1, "%s: not one line: %s",
                  bad_rows[i].why, text);
    }
}

int main(int argc, char **argv)
{
    test_begin("tier_args", argc, argv);
    test_hot();
    test_prefill();
    test_policy();
    test_ways();
    test_post();
    test_bad();
    return test_end();
}
