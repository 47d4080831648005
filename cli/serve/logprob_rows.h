/* logprob_rows.h - log probabilities of the tokens that make up the answer's text.
 *
 * The text of a token may appear later than the token, in part, or never: it may wait for the rest
 * of a character or of a tag, belong to a tag, or end in a stop string. Tokens wait here for their
 * text and then go to the writer as rows. The bytes of all rows, joined, are the text. One object
 * for each choice; engine thread only. */
#ifndef CLI_SERVE_LOGPROB_ROWS_H
#define CLI_SERVE_LOGPROB_ROWS_H

#include "cli/serve/api.h"

typedef struct logprob_rows logprob_rows;

/* Borrows tok and w. */
int logprob_rows_create(logprob_rows **out, const tokenizer *tok, api_writer *w, err_ctx *err);
void logprob_rows_free(logprob_rows *r);         /* NULL is fine, as for _token, _event and _end */

/* Where the sampler writes the scores of the next token. */
token_scores *logprob_rows_scores(logprob_rows *r);

/* Each returns 0, ERR_NOMEM or the writer's result. */
int logprob_rows_token(logprob_rows *r, int32_t id, bool in_text);
int logprob_rows_event(logprob_rows *r, const chat_event *ev);   /* before the writer gets it */
int logprob_rows_end(logprob_rows *r);   /* no more text */

/* Writes rows for the next 16 tokens of a prompt that is echoed; the first token has no logprob.
 * done: 0, then the result of the call before. Returns the number of tokens done, n - 1 after the
 * last call, or < 0. Rewinds the session to 0 before the first call, after the last one, and on
 * failure: an answer computes the prompt in other chunks. */
int logprob_rows_prompt(api_writer *w, const tokenizer *tok, session *s, const int32_t *ids, int n,
                        int done, int n_top, err_ctx *err);

#endif
