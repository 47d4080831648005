/* bench_drafts.h - decoding with drafts, in turn with decoding without. */
#ifndef CLI_BENCH_BENCH_DRAFTS_H
#define CLI_BENCH_BENCH_DRAFTS_H

#include "engine/engine.h"
#include "engine/session/drafts.h"

typedef struct bench_draft {
    bool lookup, mtp;                    /* drafts from repetitions, or by the model's next-token
                                          * block; else an oracle: */
    double right;                        /* each draft is the right token with this probability */
} bench_draft;

/* --draft: "mtp", "lookup", or "oracle:0.75". 0, or 2 after one line. */
int bench_draft_read(bench_draft *out, const char *text);

typedef struct bench_draft_result {
    double plain, drafted;               /* tok/s, medians of the runs */
    int n_pass, n_draft, n_right;        /* of the last run */
    draft_times times;
    int n_token;
} bench_draft_result;

/* After the prompt: n tokens with drafts and n without, `runs` times in turn. Fails with ERR_FORMAT
 * if both draw other tokens, with ERR_UNSUPPORTED if there is no block for mtp. watch is called
 * before each pass. */
int bench_draft_measure(bench_draft_result *out, session *s, const bench_draft *d,
                        const int32_t *prompt, int n_prompt, int n, int runs, progress_fn *watch,
                        void *ctx, err_ctx *err);

#endif
