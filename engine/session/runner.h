/* runner.h - what computes for the sessions that share it: the loop over layers, its buffers, the
 * logits and the counts.
 *
 * A session is what is remembered of one conversation. session_create makes a session with a runner
 * of its own, session_create_sharing a further session of a runner. The last session frees the
 * runner. Results of a session do not depend on the others (but see runner_eval). One thread at a
 * time for all sessions of an engine. */
#ifndef ENGINE_SESSION_RUNNER_H
#define ENGINE_SESSION_RUNNER_H

#include "engine/engine.h"
#include "engine/perf_counts.h"
#include "moe/frame_table.h"

enum { RUNNER_MOST_ROWS = 32 };

/* Consecutive tokens of one session. */
typedef struct runner_row {
    session *s;
    const int32_t *ids;                  /* [n] */
    int n;                               /* 1 or more */
    int n_logits;                        /* rows of logits: of its last tokens, 0 .. n */
    bool keep;                           /* session_rewind reaches every position within these
                                          * tokens, until the session takes in others or another
                                          * call has a row with keep. Such calls have at most
                                          * KEPT_TOKENS tokens and n_version rows with keep */
} runner_row;

/* Takes in rows of different sessions of this runner, up to a chunk of tokens in all, and writes
 * logits [sum of n_logits, n_vocab], row after row. On the CPU they go through the layers together,
 * on a GPU as many as have up to GPU_FEW tokens together. Everything is checked before anything is
 * computed. After a failure session_pos tells which rows were taken in. */
int runner_eval(runner *r, const runner_row *rows, int n_row, float *logits, err_ctx *err);

/* A pass: takes in rows of different sessions, up to runner_most_taken tokens in all, like
 * session_take without waiting where the logits stay in VRAM. Every token has logits, n_logits is
 * ignored. < 0: nothing was taken in; *failed is the row that cannot take its tokens, or -1 if the
 * pass failed. */
int runner_take(runner *r, const runner_row *rows, int n_row, int *failed, err_ctx *err);
int runner_most_taken(const runner *r);
/* Draws the token after token t of the session's row in the last pass, before anything else is
 * computed. session_pick is that of a row of one token. */
int runner_pick(session *s, int t, int32_t *next, sampler *smp, err_ctx *err);
/* Begins that draw, so that the draws of several sessions wait for the device together. The sampler
 * must not change before runner_pick, which reports a failure. */
void runner_ask(session *s, int t, const sampler *smp);

/* Called by the watcher of a session_eval: until end, other sessions of the runner may take in and
 * draw tokens in passes, between two layers of that prompt. Their results and those of the prompt
 * stay the same. False: not possible where a GPU computes layers. */
bool runner_inner_begin(runner *r);
void runner_inner_end(runner *r);

/* The most rows of a pass that may have drafts: n_version of those that need keep. keeps: they do;
 * where nothing is recurrent, a session can be rewound into its last tokens without. */
int runner_most_drafting(const runner *r);
bool runner_keeps(const runner *r);

/* Times of passes, which answers measure. */
struct draft_times *runner_draft_times(runner *r);

/* Whether its sessions draft with the model's next-token block (model_use_mtp). */
bool runner_guesses(const runner *r);
/* Writes the block's guesses of up to `most` tokens after next, the token at the session's
 * position, which is not taken in. Returns their number: 0 if the block lacks the vector of the
 * token before, < 0 on failure. The session stays as it is. */
enum { MTP_DRAFTS = 4 };
int runner_guess(session *s, int32_t *out, int most, int32_t next, err_ctx *err);
/* Right after a session_eval of at most a chunk: the block's logits. Row t, from token t and the id
 * of token t + 1: rows first .. first + n - 1, counted from the last position before the call, or
 * from position 0. */
int runner_mtp_logits(session *s, float *logits, int first, int n, err_ctx *err);

/* ---- counts, since runner_reset_counts ---- */

struct expert_server_stats;
struct store_stats;
void runner_counts(const runner *r, struct expert_server_stats *host, struct store_stats *store);
void runner_reset_counts(runner *r);
/* Exchanges of experts in VRAM; all 0 without a cache. */
frame_table_stats runner_vram_moves(const runner *r);
/* Experts that prompts split between bus and CPU. */
struct prompt_split_stats;
void runner_split(const runner *r, struct prompt_split_stats *out);

/* Sets the level of counting, between tokens, and resets the counts. */
void runner_count(runner *r, perf_level level);
perf_counts runner_perf(const runner *r);
/* Each layer, with PERF_FULL: layers [n_layer of the model]. Returns their number; 0 at other
 * levels. */
int runner_perf_layers(const runner *r, perf_layer *layers, int cap);

/* While paused no expert is post-fetched: a bench measures the gain by it. */
void runner_pause_postfetch(runner *r, bool paused);

#endif
