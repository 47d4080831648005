/* answer_args.c - rows that run and chat share, and what the table cannot check of them. */
#include "cli/args/answer_args.h"

#include <limits.h>

#include "cli/chat/conversation.h"
#include "cli/console.h"
#include "cli/prompt_cache.h"

#define FIELD(f) offsetof(answer_args, f)
const arg_option answer_prompt_options[ANSWER_N_PROMPT] = {
    { "system", 0, ARG_TEXT, FIELD(system), "TEXT", NULL, 0, 0,
      "System message: instructions that precede the conversation" },
    { "reasoning", 0, ARG_TEXT, FIELD(reasoning), "LEVEL", NULL, 0, 0,
      "gpt-oss: low, medium (default) or high. Models with optional reasoning: on or off" },
    { "date", 0, ARG_TEXT, FIELD(date), "DATE", NULL, 0, 0,
      "gpt-oss: date in the system message, e.g. 2026-01-31; \"\": none. Default: today" },
};
const arg_option answer_memory_options[ANSWER_N_MEMORY] = {
    { PROMPT_CACHE_OPTION, 0, ARG_SIZE, FIELD(cache_bytes), "SIZE", PROMPT_CACHE_ENV, 0, 0,
      "Drive space in $XDG_CACHE_HOME/moe/prompts for states of prompts of 512 tokens or more; "
      "0: none. Default: 16G" },
};
const arg_option answer_output_options[ANSWER_N_OUTPUT] = {
    { "tokens", 'n', ARG_INT, FIELD(most_tokens), "N", NULL, -1, INT_MAX,
      "Limit of an answer in tokens; -1: none. Default: -1" },
    { "show-reasoning", 0, ARG_FLAG, FIELD(show_reasoning), NULL, NULL, 0, 0,
      "Print the reasoning too, between lines <think> and </think>" },
};

void answer_args_init(answer_args *a)
{
    *a = (answer_args){ .most_tokens = -1, .cache_bytes = PROMPT_CACHE_BYTES };
    engine_args_init(&a->engine);
    tier_args_init(&a->tiers);
    sampling_args_init(&a->sampling);
}

static int check_chat(answer_args *a)
{
    err_ctx err;
    if (a->system && text_check_utf8(str_from(a->system), &err) < 0) {
        console_error("--system: %s", err.msg);
        return 2;
    }
    if (a->reasoning && !chat_reasoning_from_name(&a->effort, &a->thinking, a->reasoning)) {
        console_error("--reasoning: '%s' is none of low, medium, high, on and off", a->reasoning);
        return 2;
    }
    if (a->date && !text_is_date(a->date)) {
        console_error("--date: '%s' is not a date such as 2026-01-31", a->date);
        return 2;
    }
    return 0;
}

int answer_args_read(answer_args *a, load_options *load, session_options *so)
{
    int rc;
    *load = (load_options){ .path = a->engine.model, .with_text = true, .where.remember = true };
    if ((rc = check_chat(a)) != 0 ||
        (rc = engine_args_read(&load->where, so, &a->engine)) != 0 ||
        (rc = tier_args_read(&load->where, &a->tiers)) != 0 ||
        (rc = perf_args_read(&a->level, &a->perf)) != 0)
        return rc;
    return sampling_args_check(&a->sampling);
}
