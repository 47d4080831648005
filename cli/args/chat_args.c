/* chat_args.c - flags of the chat format, and what the table cannot check of them. */
#include "cli/args/chat_args.h"

#include "cli/chat/conversation.h"
#include "cli/console.h"

#define FIELD(f) offsetof(chat_args, f)
const arg_option chat_arg_options[CHAT_N_OPTION] = {
    { "system", 0, ARG_TEXT, FIELD(system), "TEXT", NULL, 0, 0,
      "What the model is told before everything else" },
    { "reasoning", 0, ARG_TEXT, FIELD(reasoning), "LEVEL", NULL, 0, 0,
      "gpt-oss: low, medium (the default) or high. Others that can do both: on or off" },
    { "show-reasoning", 0, ARG_FLAG, FIELD(show_reasoning), NULL, NULL, 0, 0,
      "Show the reasoning too, between lines <think> and </think>" },
    { "date", 0, ARG_TEXT, FIELD(date), "DATE", NULL, 0, 0,
      "gpt-oss: the date it is told. Default: today; \"\" leaves it out" },
};

int chat_args_check(chat_effort *effort, chat_thinking *thinking, const chat_args *a)
{
    err_ctx err;
    if (a->system && text_check_utf8(str_from(a->system), &err) < 0) {
        console_error("--system: %s", err.msg);
        return 2;
    }
    if (a->reasoning && !chat_reasoning_from_name(effort, thinking, a->reasoning)) {
        console_error("--reasoning: '%s' is none of low, medium, high, on and off", a->reasoning);
        return 2;
    }
    if (a->date && !text_is_date(a->date)) {
        console_error("--date: '%s' is not a date such as 2026-01-31", a->date);
        return 2;
    }
    return 0;
}
