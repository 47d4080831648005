/* answer.h - one answer: take in the prompt, then sample token after token until something says
 * stop.
 *
 * What the session already holds of the prompt is not computed again: it goes back to the longest
 * common beginning that it can reach. A snapshot is taken at the end of the prompt, because the
 * next turn of a conversation often differs right after it (reasoning is dropped, text is split
 * into other tokens). With a prefix cache the beginning may also come from there, and states are
 * kept there: at the marks, at the end of the prompt and at the end of the answer.
 *
 * A prompt is cut at its marks, whether there is a cache or not, and whatever is there already: so
 * what is computed after a mark does not show whether the tokens before it were computed just now,
 * stayed in memory or came back. Used by whoever talks: command line, interactive chat, service. */
#ifndef ENGINE_SESSION_ANSWER_H
#define ENGINE_SESSION_ANSWER_H

#include "engine/engine.h"
#include "engine/session/sampler.h"
#include "engine/text/chat/chat.h"
#include "engine/text/chat/stop_strings.h"
#include "engine/text/grammar/grammar_mask.h"

typedef enum answer_end {
    ANSWER_STOP,                         /* the model ended its turn */
    ANSWER_STOP_TEXT,                    /* a stop string came */
    ANSWER_LENGTH,                       /* max_tokens were sampled */
    ANSWER_CONTEXT,                      /* the context is full */
    ANSWER_INTERRUPTED                   /* a hook said stop */
} answer_end;
const char *answer_end_name(answer_end e);       /* "stop", "stop string", "length", ... */

typedef struct answer_options {
    const tokenizer *tok;
    const chat *format;                  /* splits the stream; NULL: raw text, all of it answer */
    const chat_request *req;             /* that the prompt was made from, or NULL; with talk
                                          * only */
    stop_strings *stop;                         /* stop strings in the answer's text, or NULL */
    grammar_mask *form;                  /* that the answer's text has, or NULL: any. For
                                          * session_vocab tokens; is reset first. What ends before
                                          * the form does (ANSWER_LENGTH) is a beginning of it */
    int max_tokens;                      /* -1: as many as the context holds */
    int n_stable;                        /* the snapshot is taken after that many tokens of the
                                          * prompt instead, where the next turn is known to differ
                                          * earlier (a cue with <think>); 0: at its end */
    bool show_special;                   /* without talk: control tokens show as their text */
    struct prefix_cache *cache;          /* prefix_cache.h; made for sessions like this one. NULL:
                                          * what the session holds is all there is */
    const int *marks;                    /* [n_mark]: after how many tokens of the prompt the next
                                          * one may well differ; in any order, and others than
                                          * 1 .. n_prompt - 1 do not matter */
    int n_mark;
    int mark_every;                      /* more marks, at its multiples; 0: none */
} answer_options;

/* text gets reasoning, answer and tool calls as chat.h describes them; < 0 ends the answer as
 * ANSWER_INTERRUPTED, and text is not called again. go_on is asked before each token; false ends
 * likewise, after what was held back. watch is for the prompt. token hears of each token before its
 * text; in_text: it may be part of the answer's. Each may be NULL. */
typedef struct answer_hooks {
    void *ctx;
    chat_event_fn *text;
    bool (*go_on)(void *ctx);
    progress_fn *watch;
    int (*token)(void *ctx, int32_t id, bool in_text);   /* < 0 ends like text */
} answer_hooks;

typedef struct answer_stats {
    int n_prompt;                        /* tokens of the prompt */
    int n_taken;                         /* of these, in the session: fewer if that was stopped */
    int n_reused;                        /* of these, already there, or in the cache: not computed
                                          * again */
    int n_answer;                        /* tokens sampled, the stop token included */
    uint64_t prompt_ns, answer_ns;       /* taking in; sampling and taking in what was sampled: in
                                          * steps, not between them */
    answer_end end;
} answer_stats;

/* An answer under way, so that several can take turns. smp is new or was just reset: it is told the
 * prompt and every token after it. The last token sampled is not taken in. Prompt, session, sampler
 * and what the options point to are borrowed; nobody else uses the session until answer_free.
 * Everything is allocated before the first token, but for what tool calls need and what is kept. A
 * state that cannot be kept is no failure.
 *
 * answer_open fails if the prompt is empty or leaves no room for a token in the context. A step
 * computes a piece of the prompt, or draws a token, and returns 1, or 0 if that was the end. It
 * fails, with the session usable, if the prompt has an id outside the vocabulary and if logits are
 * not numbers. Interrupted in the prompt it returns 0, with n_answer 0. Where steps are cut does
 * not depend on anything but the prompt and its marks. */
typedef struct running_answer running_answer;
int answer_open(running_answer **out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
                const answer_options *o, const answer_hooks *hooks, err_ctx *err);
void answer_free(running_answer *a);             /* NULL is fine */
int answer_step(running_answer *a, err_ctx *err);
bool answer_draws(const running_answer *a);      /* the prompt is in: the next step is a token */
const answer_stats *answer_so_far(const running_answer *a);

/* All steps of one. */
int answer_run(answer_stats *out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
               const answer_options *o, const answer_hooks *hooks, err_ctx *err);

#endif
