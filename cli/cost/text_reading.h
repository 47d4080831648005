/* text_reading.h - a model reads a built-in text twice, and the two readings are compared: what an
 * option costs that gives other answers than the model's.
 *
 * The cost is how far the second opinion about the next token is from the first: KL divergence, in
 * nats. Sessions are no larger than the one the model was placed for, so there is room for them. */
#ifndef CLI_COST_TEXT_READING_H
#define CLI_COST_TEXT_READING_H

#include "cli/console.h"
#include "cli/model_handle.h"

enum { TEXT_READING_TOKENS = 256, TEXT_READING_ROWS = 64 };

typedef enum reading_of { READING_OWN, READING_OTHER, READINGS } reading_of;

typedef struct text_reading {
    id_list ids;
    int n;                               /* TEXT_READING_TOKENS, or what the context holds */
    int n_row;                           /* of these, the last ones that are compared */
    float *rows[READINGS];               /* [n_row, n_vocab] */
    int done;                            /* tokens of the reading under way */
    progress bar;
} text_reading;

/* l was opened with its text. On failure there is nothing to release. */
int text_reading_begin(text_reading *r, const model_handle *l, int ctx, err_ctx *err);
/* The same for any text: its first n_token tokens, of which the last n_row are compared; fewer if
 * it is shorter. */
int text_reading_begin_with(text_reading *r, const model_handle *l, str_view text, int n_token,
                            int n_row, err_ctx *err);
void text_reading_release(text_reading *r);

/* The model, which has been placed, reads in a session of these options, but for ctx. as_answer:
 * those that are compared one by one, as an answer's tokens are; else all as a prompt. */
int text_reading_read(text_reading *r, reading_of which, const model_handle *l,
                      const session_options *so, bool as_answer, const char *label, err_ctx *err);

/* Nats a token, the mean over those that are compared, after both readings. */
int text_reading_compare(double *kl, const text_reading *r, int n_vocab, err_ctx *err);

extern const char text_reading_text[];   /* English prose; more than TEXT_READING_TOKENS tokens of
                                          * the largest vocabularies */

#endif
