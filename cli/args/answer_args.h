/* answer_args.h - options of run and chat: model, chat format, sampling, memory, output.
 *
 * Put an answer_args into the verb's options, call answer_args_init before args_parse and
 * answer_args_read after it. The verb's groups are ANSWER_GROUPS with its own rows in between. */
#ifndef CLI_ARGS_ANSWER_ARGS_H
#define CLI_ARGS_ANSWER_ARGS_H

#include "cli/args/engine_args.h"
#include "cli/args/sampling_args.h"
#include "cli/args/tier_args.h"
#include "cli/model_handle.h"
#include "cli/view/perf_view.h"
#include "engine/text/chat/chat.h"

typedef struct answer_args {
    engine_args engine;
    tier_args tiers;
    sampling_args sampling;
    perf_args perf;
    const char *system, *reasoning, *date;       /* NULL: not given */
    bool show_reasoning;
    int64_t most_tokens;                 /* of an answer; -1: no limit */
    uint64_t cache_bytes;                /* of prompts on the drive */
    chat_effort effort;                  /* what reasoning says */
    chat_thinking thinking;
    perf_level level;                    /* what perf says */
} answer_args;

enum { ANSWER_N_PROMPT = 3, ANSWER_N_MEMORY = 1, ANSWER_N_OUTPUT = 2 };
extern const arg_option answer_prompt_options[ANSWER_N_PROMPT];
extern const arg_option answer_memory_options[ANSWER_N_MEMORY];
extern const arg_option answer_output_options[ANSWER_N_OUTPUT];

/* at: offset of the answer_args. prompt and output are groups of the verb's own rows, which open
 * the groups Prompt and Output. */
#define ANSWER_FIELD(at, f) ((at) + offsetof(answer_args, f))
#define ANSWER_GROUPS(at, prompt, output) \
    { "Model:", engine_arg_options, ENGINE_N_OPTION, ANSWER_FIELD(at, engine) }, \
    prompt, { NULL, answer_prompt_options, ANSWER_N_PROMPT, at }, \
    { "Sampling (defaults are the model's):", sampling_options, SAMPLING_N_OPTION, \
      ANSWER_FIELD(at, sampling) }, \
    { "Memory:", tier_options, TIER_N_OPTION, ANSWER_FIELD(at, tiers) }, \
    { NULL, answer_memory_options, ANSWER_N_MEMORY, at }, \
    output, { NULL, answer_output_options, ANSWER_N_OUTPUT, at }, \
    { NULL, perf_options, PERF_N_OPTION, ANSWER_FIELD(at, perf) }

void answer_args_init(answer_args *a);

/* Fills load, so and the last fields of a. 0, or 2, the exit code, after one line on stderr. */
int answer_args_read(answer_args *a, load_options *load, session_options *so);

#endif
