/* form_decode.h - how fast a model decodes when its answer has a form, and when it has none.
 *
 * Both are done as an answer does it: a token is taken in, what may come next is found out
 * meanwhile, and one of that is picked. They take turns, run by run, so that a machine that becomes
 * slower does so for both. Each function says on stderr what went wrong; where it returns int, that
 * is the exit code: 0 go on. */
#ifndef CLI_BENCH_FORM_DECODE_H
#define CLI_BENCH_FORM_DECODE_H

#include "cli/bench/bench_model.h"
#include "cli/report.h"
#include "engine/text/grammar/grammar_mask.h"

typedef struct form_decode {
    bench_model b;
    session *s;
    sampler *smp;
    float *logits;
    int n_token, n_run;
    double free_rate[REPORT_MAX_RUNS], held_rate[REPORT_MAX_RUNS];       /* tok/s */
} form_decode;

/* Runs of n_token tokens; temperature 0: the likeliest. */
int form_decode_open(form_decode *d, const bench_model_args *a, int n_token, int n_run,
                     double temperature);
void form_decode_close(form_decode *d);  /* accepts a zeroed one */

/* Fills both rates. The tokens of a form are the same in all runs, and a run before the first has
 * worked out their masks. A text that has come to its end begins anew. */
int form_decode_measure(form_decode *d, const grammar *g, const token_trie *v);

/* What the form costs of a token's time, in percent; by the medians. */
double form_decode_cost(const form_decode *d);

#endif
