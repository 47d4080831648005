/* experts_cost.h - the cost of --experts-used, another number of experts per token.
 *
 * The model reads a built-in text twice (cli/cost/text_reading.h): with its own number of
 * experts and with the other. The KL divergence is printed, because answers change. */
#ifndef CLI_COST_EXPERTS_COST_H
#define CLI_COST_EXPERTS_COST_H

#include "cli/model_handle.h"

typedef struct experts_cost {
    int used, own;
    int n_token;                         /* of the text */
    int n_row;                           /* compared: the last tokens */
    double kl;                           /* mean, nats per token */
} experts_cost;

/* Places the model for a session of these options and reads, releases it, changes to n experts
 * (model_handle_use_experts), places it and reads again. l must be opened with_text and not placed.
 * Weights are in memory once at any time; the logits are freed at the end. Sets so->chunk as
 * model_handle_place does. */
int experts_cost_measure(experts_cost *out, model_handle *l, int n, session_options *so,
                         err_ctx *err);

/* Prints one line on stderr. */
void experts_cost_say(const experts_cost *c);

#endif
