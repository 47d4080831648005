/* quant_check.h - what a new file costs in answers: both models read a text, and what they say
 * about the next token is compared.
 *
 * The old model reads before the new file is made, so that whatever is wrong with the text shows at
 * once; its logits wait in memory. */
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
    double kl;                           /* nats a token, the mean over r.n_row */
    int same;                            /* of these, rows whose likeliest token is the same */
} quant_check;

/* Reads `text`, or the file of that name, with the model at path. Each of these: 0, or the exit
 * code after a line on stderr. */
int quant_check_begin(quant_check *c, const char *text, const char *path, const engine_args *args);
int quant_check_end(quant_check *c, const char *path);
void quant_check_release(quant_check *c);                /* accepts a zeroed one */

#endif
