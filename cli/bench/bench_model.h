/* bench_model.h - shared by the verbs that measure a model: options, opening it, a session of the
 * needed size, Ctrl-C.
 *
 * A failing function prints one line on stderr. An int result is the exit code: 0 success, 1
 * failed, 2 bad usage. */
#ifndef CLI_BENCH_BENCH_MODEL_H
#define CLI_BENCH_BENCH_MODEL_H

#include "cli/args/args.h"
#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "cli/model_handle.h"

typedef struct bench_model_args {
    const char *model;                   /* NULL: the demo model inside the program */
    engine_args engine;                  /* the verb sets kv before args_parse */
    tier_args tiers;                     /* the verb calls tier_args_init before args_parse */
    bool with_text;                      /* also opens the tokenizer */
} bench_model_args;

/* All options except -m and --kv, whose defaults differ between the verbs. For a verb's groups:
 * { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, offsetof(..., run) }. */
enum { BENCH_MODEL_N_OPTION = 7 };
extern const arg_option bench_model_options[BENCH_MODEL_N_OPTION];

typedef struct bench_model {
    model_handle l;
    session_options so;                  /* ctx 0: --ctx was not given */
    int ctx_limit;                       /* --ctx, or the model's */
} bench_model;

/* Checks the options, opens the model and installs cli/interrupt.h. */
int bench_model_open(bench_model *b, const bench_model_args *a);
void bench_model_close(bench_model *b);  /* accepts a zeroed one */

/* A session for ctx tokens, or for --ctx tokens if that was given. */
int bench_model_session(session **out, bench_model *b, int ctx);

/* Prints the failure rc < 0 and returns 1, or interrupt_exit_code() after a signal. */
int bench_model_fail(const char *name, int rc, const err_ctx *err);

/* n random ids, the same in each run; number: of the prompt. The upper end of the vocabulary is left out, because known
 * files have control tokens and unused ids there. */
void bench_model_prompt(int32_t *ids, int number, int n, int n_vocab);

#endif
