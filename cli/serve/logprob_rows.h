/* logprob_rows.h - which tokens the answer's text is made of, and how likely they were.
 *
 * A token's text may come later than the token, in part, or never: it waits for the rest of a
 * character or of a tag, belongs to one, or a stop string swallows it. So tokens wait here until
 * their text has come, and then go to the writer as rows whose bytes, joined, are the text. One for
 * each choice. */
#ifndef CLI_SERVE_LOGPROB_ROWS_H
#define CLI_SERVE_LOGPROB_ROWS_H

#include "cli/serve/api.h"

typedef struct logprob_rows logprob_rows;

/* Borrows both. */
int logprob_rows_create(logprob_rows **out, const tokenizer *tok, api_writer *w, err_ctx *err);
void logprob_rows_free(logprob_rows *r);         /* NULL is fine, as for all others but scores */

token_scores *logprob_rows_scores(logprob_rows *r);      /* of the token that comes next: for the
                                                          * sampler */

/* Each returns 0, ERR_NOMEM or what the writer said. */
int logprob_rows_token(logprob_rows *r, int32_t id, bool in_text);
/* Before the writer gets the event. */
int logprob_rows_event(logprob_rows *r, const chat_event *ev);
int logprob_rows_end(logprob_rows *r);   /* no more text comes */

/* Rows for the next few tokens of a prompt that is echoed, the first of which has no logprob. done:
 * 0, then what the call before returned: tokens that have been taken in, n - 1 if all have their
 * row; < 0: it failed. The session forgets what it held, and at the end, or on failure, what it got
 * here: an answer computes other pieces. */
int logprob_rows_prompt(api_writer *w, const tokenizer *tok, session *s, const int32_t *ids, int n,
                        int done, int n_top, err_ctx *err);

#endif
