/* cache_cost.h - --skip-missing: a choice of experts that leaves out those not in VRAM, and what it
 * costs.
 *
 * The model reads a built-in text (cli/cost/text_reading.h) with this option, from the cache as it is
 * then, and once more without. What is compared goes in one by one, after a prompt, as an answer's
 * tokens do: longer prompts do not feel the option. Where no experts change places in VRAM it has
 * no effect, which is said instead. */
#ifndef CLI_COST_CACHE_COST_H
#define CLI_COST_CACHE_COST_H

#include "cli/model_handle.h"

typedef struct cache_cost {
    const char *no_effect;               /* why it has none; else NULL, and: */
    int n_token, n_row;                  /* of the text; of these, the last ones were compared */
    double kl;                           /* nats a token, their mean */
} cache_cost;

/* Places the model for a session of these options, if nobody has, and lets it read twice. l was
 * opened with its text. so->chunk is settled as by model_handle_place. */
int cache_cost_measure(cache_cost *out, model_handle *l, session_options *so, err_ctx *err);

/* What a plan alone says of it: kl is not known, and 0. */
cache_cost cache_cost_planned(const plan *p);

/* One line about it on stderr: what it costs, or, if only a plan is known, that it is measured. */
void cache_cost_say(const cache_cost *c);
void cache_cost_say_planned(const cache_cost *c);

#endif
