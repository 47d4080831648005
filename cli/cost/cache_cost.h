/* cache_cost.h - the cost of --skip-missing, which leaves out experts outside VRAM.
 *
 * The model reads a built-in text (cli/cost/text_reading.h) with the option and without. The
 * compared tokens are evaluated one by one, as an answer's are, because prompts ignore the
 * option. It has no effect where experts in VRAM are fixed. */
#ifndef CLI_COST_CACHE_COST_H
#define CLI_COST_CACHE_COST_H

#include "cli/model_handle.h"

typedef struct cache_cost {
    const char *no_effect;               /* why it has no effect; else NULL, and: */
    int n_token, n_row;                  /* of the text; compared: the last ones */
    double kl;                           /* mean, nats per token */
} cache_cost;

/* Places the model for a session of these options unless it is placed, and reads twice. l must be
 * opened with_text. Sets so->chunk as model_handle_place does. */
int cache_cost_measure(cache_cost *out, model_handle *l, session_options *so, err_ctx *err);

/* From a plan alone: kl is unknown, and 0. */
cache_cost cache_cost_planned(const plan *p);

/* Prints one line on stderr: the cost, or for a plan that a run measures it. */
void cache_cost_say(const cache_cost *c);
void cache_cost_say_planned(const cache_cost *c);

#endif
