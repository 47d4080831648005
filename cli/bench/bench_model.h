/* bench_model.h - what the verbs that run a model for measurement share: flags, opening it, a
 * session as large as the work needs, Ctrl-C.
 *
 * Each function says on stderr what went wrong; where it returns int, that is the exit code: 0 go
 * on, 1 failed, 2 bad usage. */
#ifndef CLI_BENCH_BENCH_MODEL_H
#define CLI_BENCH_BENCH_MODEL_H

#include "cli/args/args.h"
#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "cli/model_handle.h"

typedef struct bench_model_args {
    const char *model;                   /* NULL: the demo model inside the program */
    engine_args engine;                  /* kv is the verb's to set before args_parse */
    tier_args tiers;                     /* tier_args_init is, too */
    bool with_text;                      /* tokenizer, too */
} bench_model_args;

/* All but -m and --kv, whose defaults differ between the verbs. For a verb's groups:
 * { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, offsetof(..., run) }. */
enum { BENCH_MODEL_N_OPTION = 7 };
extern const arg_option bench_model_options[BENCH_MODEL_N_OPTION];

typedef struct bench_model {
    model_handle l;
    session_options so;                  /* ctx 0: --ctx was not given */
    int ctx_limit;                       /* --ctx, or the model's */
} bench_model;

/* Checks the flags and opens the model. From here on Ctrl-C is for cli/interrupt.h. */
int bench_model_open(bench_model *b, const bench_model_args *a);
void bench_model_close(bench_model *b);  /* accepts a zeroed one */

/* A session for ctx tokens, or for --ctx of them. */
int bench_model_session(session **out, bench_model *b, int ctx);

/* What to do about a failure rc < 0: says so and returns 1, or interrupt_exit_code() if a signal
 * stopped it. */
int bench_model_fail(const char *what, int rc, const err_ctx *err);

/* n ids, random and always the same, clear of the upper end of the vocabulary, where control tokens
 * and unused places lie in the known files. */
void bench_model_prompt(int32_t *ids, int n, int n_vocab);

#endif
