/* sampling_args.h - options of the sampler, and stop strings.
 *
 * Put a sampling_args into the verb's options, call sampling_args_init before args_parse and
 * sampling_args_check right after it, and add to the verb's groups:
 * { "Sampling:", sampling_options, SAMPLING_N_OPTION, offsetof(..., sampling) }. Options that are
 * not given take the model's defaults (sampler_defaults). */
#ifndef CLI_ARGS_SAMPLING_ARGS_H
#define CLI_ARGS_SAMPLING_ARGS_H

#include "cli/args/args.h"
#include "engine/session/sampler.h"
#include "engine/text/chat/stop_strings.h"
#include "engine/text/tokenizer/tokenizer.h"

typedef struct sampling_args {
    double temp, top_p, min_p;           /* NAN: not given */
    double repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, penalty_window;       /* INT64_MIN: not given */
    int64_t seed;                        /* -1: a random one */
    arg_texts logit_bias, stop;
} sampling_args;

enum { SAMPLING_N_OPTION = 11 };
extern const arg_option sampling_options[SAMPLING_N_OPTION];

void sampling_args_init(sampling_args *a);

/* Checks what needs no model. 0, or the exit code after one line on stderr. */
int sampling_args_check(const sampling_args *a);

typedef struct sampling {
    sampler_options options;             /* in use: model's defaults, options, seed; no biases */
    sampler *smp;
    stop_strings *stop;                  /* NULL without stop strings */
} sampling;

/* Options over the model's defaults. Bans UNUSED tokens of the vocabulary. ctx is for
 * sampler_create. 0, or < 0 with err filled and *out empty. */
int sampling_open(sampling *out, const sampling_args *a, const model *m, const tokenizer *tok,
                  int ctx, err_ctx *err);
void sampling_close(sampling *s);        /* accepts a zeroed one */

#endif
