/* chat_args.h - the flags about the chat format: system prompt, reasoning, date.
 *
 * Shared by the verbs that talk: put a chat_args into the verb's options, call chat_args_check
 * after args_parse, and add to the verb's groups:
 * { "Prompt:", chat_arg_options, CHAT_N_OPTION, offsetof(..., talk) }. */
#ifndef CLI_ARGS_CHAT_ARGS_H
#define CLI_ARGS_CHAT_ARGS_H

#include "cli/args/args.h"
#include "engine/text/chat/chat.h"

typedef struct chat_args {
    const char *system, *reasoning, *date;       /* NULL: not given */
    bool show_reasoning;
} chat_args;

enum { CHAT_N_OPTION = 4 };
extern const arg_option chat_arg_options[CHAT_N_OPTION];

/* Sets *effort and *thinking if --reasoning was given. 0, or 2, the exit code, after one line on
 * stderr. */
int chat_args_check(chat_effort *effort, chat_thinking *thinking, const chat_args *a);

#endif
