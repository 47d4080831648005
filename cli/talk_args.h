/* talk_args.h - the flags about the chat format: system prompt, reasoning, date.
 *
 * Shared by the verbs that talk: put a talk_args into the verb's options, call talk_args_check
 * after args_parse, and add to the verb's groups:
 * { "Prompt:", talk_options, TALK_N_OPTION, offsetof(..., talk) }. */
#ifndef CLI_TALK_ARGS_H
#define CLI_TALK_ARGS_H

#include "cli/args.h"
#include "engine/text/chat/chat.h"

typedef struct talk_args {
    const char *system, *reasoning, *date;       /* NULL: not given */
    bool show_reasoning;
} talk_args;

enum { TALK_N_OPTION = 4 };
extern const arg_option talk_options[TALK_N_OPTION];

/* Sets *effort and *thinking if --reasoning was given. 0, or 2, the exit code, after one line on
 * stderr. */
int talk_args_check(chat_effort *effort, chat_thinking *thinking, const talk_args *a);

#endif
