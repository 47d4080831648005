/* text_reading.h - the cost of an option that changes answers.
 *
 * A model evaluates a text twice, and the predictions of the next token are compared by their KL
 * divergence, in nats. Sessions are at most as large as the one that the model was placed for. */
#ifndef CLI_COST_TEXT_READING_H
#define CLI_COST_TEXT_READING_H

#include "cli/console.h"
#include "cli/model_handle.h"

enum { TEXT_READING_TOKENS = 256, TEXT_READING_ROWS = 64 };

typedef enum reading_of { READING_OWN, READING_OTHER, READINGS } reading_of;

typedef struct text_reading {
    id_list ids;
    int n;                               /* TEXT_READING_TOKENS, or what the context holds */
    int n_row;                           /* compared: the last tokens */
    float *rows[READINGS];               /* [n_row, n_vocab] */
    progress bar;
} text_reading;

/* l must be opened with_text. A failure needs no release. */
int text_reading_begin(text_reading *r, const model_handle *l, int ctx, err_ctx *err);
/* The same for another text: its first n_token tokens, the last n_row compared; fewer if it is
 * shorter. */
int text_reading_begin_with(text_reading *r, const model_handle *l, str_view text, int n_token,
                            int n_row, err_ctx *err);
void text_reading_release(text_reading *r);

/* Evaluates the text in a session of these options, except ctx. The model must be placed.
 * as_answer: compared tokens one by one, else all as a prompt. */
int text_reading_read(text_reading *r, reading_of which, const model_handle *l,
                      const session_options *so, bool as_answer, const char *label, err_ctx *err);

/* Mean of the compared tokens in nats, after both readings. */
int text_reading_compare(double *kl, const text_reading *r, int n_vocab, err_ctx *err);

extern const char text_reading_text[];   /* English; over TEXT_READING_TOKENS tokens in the
                                          * largest vocabularies */

#endif
