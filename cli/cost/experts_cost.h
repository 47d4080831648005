/* experts_cost.h - --experts-used: another number of experts for each token, and what it costs.
 *
 * The model reads a built-in text twice (cli/cost/text_reading.h): as its file says, then with the other
 * number. Nobody gets other answers than the model's without having been told what that costs. */
#ifndef CLI_COST_EXPERTS_COST_H
#define CLI_COST_EXPERTS_COST_H

#include "cli/model_handle.h"

typedef struct experts_cost {
    int used, own;
    int n_token;                         /* of the text */
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

#endif
