/* chat_session.h - a chat: model, session, conversation and sampler.
 *
 * chat_command.c opens it and reads messages, chat_turn.c answers one, chat_slash.c runs commands.
 * One thread. */
#ifndef CLI_CHAT_CHAT_SESSION_H
#define CLI_CHAT_CHAT_SESSION_H

#include "cli/args/sampling_args.h"
#include "cli/chat/conversation.h"
#include "cli/model_handle.h"
#include "cli/prompt_cache.h"
#include "cli/view/answer_view.h"
#include "cli/view/perf_view.h"
#include "cli/view/plan_vs_measured.h"
#include "engine/session/answer.h"

typedef struct chat_session {
    model_handle l;
    session_options room;                /* of the session */
    session *s;
    prompt_cache kept;
    conversation conv;
    conversation_settings set;           /* .sampling is set by /save alone; see draw.options */
    sampling_args flags;                 /* options; they override a file's settings */
    bool effort_given, date_given;       /* --reasoning and --date likewise */
    sampling draw;
    int max_tokens;                      /* per answer; -1: no limit */
    bool show_reasoning, verbose;
    bool interactive;                    /* at a terminal, not a pipe */
    int n_shown;                         /* answers printed so far */
    int lost;                            /* errno of standard output; 0: it works */
    perf_level perf;
    plan_watch speed;                    /* of the latest answer's first tokens */
    bool speed_printed;                  /* its line, once per chat */
    answer_stats last;                   /* of the latest turn; n_prompt 0: none */
    struct chat_totals {
        int n_turn;
        uint64_t n_prompt, n_reused, n_answer, prompt_ns, answer_ns;
    } total;
} chat_session;

/* Answers the open question: prints the answer and adds it to the conversation. 0 also for an
 * answer that was cut, after a note. < 0 with err filled: no answer. A question that exceeds the
 * context is removed, in other cases it stays open. */
int chat_turn(chat_session *t, err_ctx *err);

/* Another answer to the last question. The earlier one stays if there is none. */
int chat_turn_again(chat_session *t, err_ctx *err);

/* "prompt 120 tokens (90 reused), 55.1 tok/s; answer 33 tokens, 21.0 tok/s (stop)" of t->last */
const char *chat_turn_summary(char *dst, size_t cap, const chat_session *t);

/* Tokens of the conversation as the model would see it. */
int chat_count_tokens(int *out, const chat_session *t, err_ctx *err);

/* ---- commands ---- */

enum { CHAT_SLASH_DONE, CHAT_SLASH_FAILED, CHAT_SLASH_QUIT };

/* Runs a line that begins with a slash, and prints failures. */
int chat_slash(chat_session *t, str_view line);

/* Continues the chat in a file that /save wrote. Fails with the conversation as it was. */
int chat_load(chat_session *t, const char *path, err_ctx *err);

enum { CHAT_SLASH_N = 12 };
extern const char *const chat_slash_words[CHAT_SLASH_N];         /* "/help", ... */

#endif
