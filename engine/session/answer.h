/* answer.h - one answer: takes in the prompt, then samples tokens until the answer ends.
 *
 * The session is rewound to the longest beginning that it shares with the prompt, or a prefix cache
 * restores a longer one; only the rest is computed. A snapshot is taken at the end of the prompt,
 * because the next turn often differs right after it (reasoning is dropped, text is split into
 * other tokens). With a cache, states are kept at the cuts, at the end of the prompt and of the
 * answer.
 *
 * A prompt is always computed in pieces that end at its cuts. So the bits after a cut do not depend
 * on the origin of the tokens before it: computed now, still in memory, or from the cache. One
 * thread at a time, the one that uses the session. */
#ifndef ENGINE_SESSION_ANSWER_H
#define ENGINE_SESSION_ANSWER_H

#include "engine/engine.h"
#include "engine/session/drafts.h"
#include "engine/session/sampler.h"
#include "engine/text/chat/chat.h"
#include "engine/text/chat/stop_strings.h"
#include "engine/text/grammar/grammar_mask.h"

typedef enum answer_end {
    ANSWER_STOP,                         /* the model ended its turn */
    ANSWER_STOP_TEXT,                    /* a stop string came */
    ANSWER_LENGTH,                       /* max_tokens were sampled */
    ANSWER_CONTEXT,                      /* the context is full */
    ANSWER_INTERRUPTED                   /* a hook ended it */
} answer_end;
const char *answer_end_name(answer_end e);       /* "stop", "stop string", "length", ... */

typedef struct answer_options {
    const tokenizer *tok;
    const chat *format;                  /* splits the stream; NULL: raw text, all of it answer */
    const chat_request *req;             /* the source of the prompt, or NULL; only with format */
    stop_strings *stop;                  /* stop strings in the answer's text, or NULL */
    grammar_mask *form;                  /* grammar of the answer's text; NULL: any text. For
                                          * session_vocab tokens; it is reset first. An answer that
                                          * ends early is a beginning of a valid text */
    int max_tokens;                      /* -1: as many as the context holds */
    int n_stable;                        /* takes the snapshot after this many tokens of the prompt,
                                          * if the next turn is known to differ earlier (a cue with
                                          * <think>); 0: at its end */
    bool show_special;                   /* without format: control tokens show as their text */
    struct prefix_cache *cache;          /* prefix_cache.h; made for sessions like this one; or
                                          * NULL */
    const int *cuts;                     /* [n_cut]: positions in the prompt at which other prompts
                                          * may begin to differ, in any order; those outside
                                          * 1 .. n_prompt - 1 are ignored */
    int n_cut;
    int cut_every;                       /* further cuts at its multiples; 0: none */
    const draft_source *drafts;          /* guesses that are verified together, or NULL: none; used
                                          * if the session has n_version. Where the form leaves no
                                          * choice of text, that text is the guess. A next-token
                                          * block guesses too (runner_guesses): for each pass that
                                          * the answer has alone, the one of source and block with
                                          * the better expected speed */
    int n_draft;                         /* always this many if there are; 0: chosen by time */
} answer_options;

/* text gets reasoning, answer and tool calls as chat.h describes them; < 0 ends the answer as
 * ANSWER_INTERRUPTED, and text is not called again. go_on is called before each token; false ends
 * the answer likewise, after the text held back. watch is for the prompt. token gets each token
 * before its text; in_text: the token may be part of the answer's text. Each may be NULL. */
typedef struct answer_hooks {
    void *ctx;
    chat_event_fn *text;
    bool (*go_on)(void *ctx);
    progress_fn *watch;
    int (*token)(void *ctx, int32_t id, bool in_text);   /* < 0 ends like text */
} answer_hooks;

typedef struct answer_stats {
    int n_prompt;                        /* tokens of the prompt */
    int n_taken;                         /* of these, in the session: fewer if it was stopped */
    int n_reused;                        /* of these, from the session or the cache, not computed */
    int n_answer;                        /* tokens sampled, the stop token included */
    int n_draft, n_right;                /* drafts verified; of these, right */
    uint64_t prompt_ns, answer_ns;       /* time in steps: for the prompt; for the answer */
    answer_end end;
} answer_stats;

/* An answer in steps, so that a scheduler can interleave several. smp is new or was just reset; it
 * accepts the prompt and every sampled token. The last token sampled is not taken in. Prompt,
 * session, sampler and the pointers in the options are borrowed; no other caller may use the
 * session until answer_free. Only tool calls and kept states allocate after answer_open. A failure
 * to keep a state is ignored.
 *
 * answer_open fails if the prompt is empty or fills the context. A step computes a chunk of the
 * prompt, or draws a token, or several if drafts are right, and returns 1, or 0 at the end. It
 * fails, with the session usable, if the prompt has an id outside the vocabulary or if logits are
 * not numbers. Interrupted in the prompt it returns 0, with n_answer 0. Chunks depend only on the
 * prompt, its cuts and the session's options. */
typedef struct running_answer running_answer;
int answer_open(running_answer **out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
                const answer_options *o, const answer_hooks *hooks, err_ctx *err);
void answer_free(running_answer *a);             /* NULL is fine */
int answer_step(running_answer *a, err_ctx *err);
bool answer_draws(const running_answer *a);      /* the next step draws a token */
const answer_stats *answer_so_far(const running_answer *a);

/* A step of each of several answers that draw, in one pass through the layers: at most
 * answer_most_together, of sessions of one runner. n_draft: most drafts of each, if the pass has
 * several; those that were right less often than not lately get none. Each gets the result that
 * answer_step would have, in rc[i] and err[i]; the failure of one ends no other, unless the pass
 * itself fails. */
void answer_step_together(running_answer *const *list, int n, int n_draft, int *rc, err_ctx *err);
int answer_most_together(const session *s);

/* Opens an answer, runs all steps and frees it. */
int answer_run(answer_stats *out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
               const answer_options *o, const answer_hooks *hooks, err_ctx *err);

#endif
