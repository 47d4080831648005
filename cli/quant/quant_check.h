/* quant_check.h - the KL divergence between the models before and after requantisation.
 *
 * Both models evaluate a text, and their predictions of the next token are compared. The old model
 * does so before the new file is written, so that errors of the text are found first; its logits
 * stay in memory. */
#ifndef CLI_QUANT_QUANT_CHECK_H
#define CLI_QUANT_QUANT_CHECK_H

#include "cli/args/engine_args.h"
#include "cli/cost/text_reading.h"

enum { QUANT_CHECK_TOKENS = 512, QUANT_CHECK_ROWS = 128 };       /* at most */

typedef struct quant_check {
    text_reading r;
    load_options load;
    session_options so;
    int n_vocab;
    double kl;                           /* nats per token, mean over r.n_row */
    int same;                            /* rows with the same likeliest token, 0 .. r.n_row */
} quant_check;

/* Evaluates `text`, or the file of that name, with the old model at path; quant_check_end does so
 * with the new one. Both return 0, or the exit code after a line on stderr. */
int quant_check_begin(quant_check *c, const char *text, const char *path, const engine_args *args);
int quant_check_end(quant_check *c, const char *path);
void quant_check_release(quant_check *c);                /* accepts a zeroed one */

#endif
