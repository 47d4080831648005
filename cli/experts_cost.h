/* experts_cost.h - --experts-used: another number of experts for each token, and what it costs.
 *
 * The model reads a built-in text twice: as its file says, then with the other number. The cost is
 * how far the second opinion about the next token is from the first: KL divergence, in nats. Nobody
 * gets other answers than the model's without having been told this. */
#ifndef CLI_EXPERTS_COST_H
#define CLI_EXPERTS_COST_H

#include "cli/model_handle.h"

enum { EXPERTS_COST_TOKENS = 256, EXPERTS_COST_ROWS = 64 };

typedef struct experts_cost {
    int used, own;
    int n_token;                         /* of the text: EXPERTS_COST_TOKENS, or what the context
                                          * holds */
    int n_row;                           /* of these, the last ones that were compared */
    double kl;                           /* nats a token, their mean */
} experts_cost;

/* Places the model for a session of these options, lets it read, gives everything back, goes on
 * with n experts (model_handle_use_experts), and places it and lets it read again. l was opened
 * with its text, and nothing has been placed yet. Weights are in memory once at any time; the
 * opinions, two rows of logits for each token compared, are gone before a session is made.
 * so->chunk is settled as by model_handle_place. */
int experts_cost_measure(experts_cost *out, model_handle *l, int n, session_options *so,
                         err_ctx *err);

/* One line about it on stderr. */
void experts_cost_say(const experts_cost *c);

extern const char experts_cost_text[];   /* English prose; more than EXPERTS_COST_TOKENS tokens of
                                          * the largest vocabularies */

#endif
