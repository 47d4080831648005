/* sampling_args.c - makes the sampler and the stop strings from options.
 *
 * sampler_check judges the values. It is called once without a model, so that a typing error is
 * reported before gigabytes are read. */
#include "cli/args/sampling_args.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/console.h"

#define FIELD(f) offsetof(sampling_args, f)
const arg_option sampling_options[SAMPLING_N_OPTION] = {
    { "temp", 0, ARG_FLOAT, FIELD(temp), "T", NULL, 0, 0,
      "Temperature, 0 to 100; 0: always the likeliest token" },
    { "top-k", 0, ARG_INT, FIELD(top_k), "N", NULL, INT_MIN, INT_MAX,
      "Keep the N likeliest tokens; 0: all" },
    { "top-p", 0, ARG_FLOAT, FIELD(top_p), "P", NULL, 0, 0,
      "Keep the likeliest tokens whose probabilities add up to P, 0 to 1; 1: all" },
    { "min-p", 0, ARG_FLOAT, FIELD(min_p), "P", NULL, 0, 0,
      "Drop tokens with less than P times the top probability, 0 to 1; 0: none" },
    { "repeat-penalty", 0, ARG_FLOAT, FIELD(repeat_penalty), "X", NULL, 0, 0,
      "Divide positive logits of recent tokens by X, multiply others, up to 10; 1: off" },
    { "presence-penalty", 0, ARG_FLOAT, FIELD(presence_penalty), "X", NULL, 0, 0,
      "Subtract X, -2 to 2, from the logits of recent tokens; 0: off" },
    { "frequency-penalty", 0, ARG_FLOAT, FIELD(frequency_penalty), "X", NULL, 0, 0,
      "Subtract X, -2 to 2, for each recent occurrence; 0: off" },
    { "penalty-window", 0, ARG_INT, FIELD(penalty_window), "N", NULL, INT_MIN, INT_MAX,
      "Number of recent tokens that penalties see; -1: all" },
    { "seed", 's', ARG_INT, FIELD(seed), "N", NULL, -1, 9e18,
      "Seed of the random draws, 0 or more. Default: random, printed at the end" },
    { "logit-bias", 0, ARG_TEXTS, FIELD(logit_bias), "ID=X,...", NULL, 0, 0,
      "Add X to the logit of token ID; -inf bans it. Repeatable" },
    { "stop", 0, ARG_TEXTS, FIELD(stop), "TEXT", NULL, 0, 0,
      "End the answer before TEXT. Repeatable" },
};

void sampling_args_init(sampling_args *a)
{
    *a = (sampling_args){
        .temp = NAN, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .presence_penalty = NAN,
        .frequency_penalty = NAN, .top_k = INT64_MIN, .penalty_window = INT64_MIN, .seed = -1,
    };
}

/* ---- biases -------------------------------------------------------------------------------- */

/* Parses "ID=VALUE" at p; returns the text after it, or NULL. */
static const char *parse_bias(logit_bias *out, const char *p)
{
    char *end;
    const long id = strtol(p, &end, 10);
    if (end == p || *end != '=' || id < 0 || id > INT32_MAX) return NULL;
    p = end + 1;
    const double v = strtod(p, &end);
    if (end == p || isnan(v) || v == (double)INFINITY || (*end && *end != ',')) return NULL;
    *out = (logit_bias){ (int32_t)id, (float)v };
    return *end ? end + 1 : end;
}

/* Appends the biases of one option at *n; counts only if out is NULL. False: not ID=VALUE,... */
static bool parse_biases(logit_bias *out, int *n, const char *text)
{
    const char *p = text;
    do {
        logit_bias b;
        if (!(p = parse_bias(&b, p))) return false;
        if (out) out[*n] = b;
        ++*n;
    } while (*p);
    return true;
}

static int read_biases(logit_bias **out, int *n, const sampling_args *a, err_ctx *err)
{
    int count = 0, filled = 0;
    *out = NULL;
    *n = 0;
    for (int i = 0; i < a->logit_bias.n; i++)
        if (!parse_biases(NULL, &count, a->logit_bias.text[i]))
            return err_set(err, ERR_FORMAT, "--logit-bias: not ID=VALUE");
    if (count == 0) return 0;
    if (!(*out = mem_array((size_t)count, sizeof **out)))
        return err_set(err, ERR_NOMEM, "out of memory for %d logit biases", count);
    for (int i = 0; i < a->logit_bias.n; i++) parse_biases(*out, &filled, a->logit_bias.text[i]);
    *n = count;
    return 0;
}

/* ---- options ------------------------------------------------------------------------------- */

static void overlay(sampler_options *o, const sampling_args *a)
{
    if (!isnan(a->temp)) o->temperature = a->temp;
    if (!isnan(a->top_p)) o->top_p = a->top_p;
    if (!isnan(a->min_p)) o->min_p = a->min_p;
    if (!isnan(a->repeat_penalty)) o->repeat_penalty = a->repeat_penalty;
    if (!isnan(a->presence_penalty)) o->presence_penalty = a->presence_penalty;
    if (!isnan(a->frequency_penalty)) o->frequency_penalty = a->frequency_penalty;
    if (a->top_k != INT64_MIN) o->top_k = (int)a->top_k;
    if (a->penalty_window != INT64_MIN) o->penalty_window = (int)a->penalty_window;
}

int sampling_args_check(const sampling_args *a)
{
    sampler_options o = { .top_p = 1, .repeat_penalty = 1 };
    logit_bias *biases;
    stop_strings *stop;
    err_ctx err;
    int rc;
    for (int i = 0; i < a->logit_bias.n; i++) {
        int n = 0;
        if (parse_biases(NULL, &n, a->logit_bias.text[i])) continue;
        console_error("--logit-bias: '%s' is not ID=VALUE, such as 1234=-5 or 7=-inf (moe-run "
                      "tokenize shows ids)", a->logit_bias.text[i]);
        return 2;
    }
    overlay(&o, a);
    rc = read_biases(&biases, &o.n_bias, a, &err);
    o.biases = biases;
    if (rc == 0) rc = sampler_check(&o, INT32_MAX, &err);
    mem_free(biases);
    if (rc < 0) {
        console_error("%s", err.msg);
        return rc == ERR_NOMEM ? 1 : 2;
    }
    if ((rc = stop_strings_create(&stop, a->stop.text, a->stop.n, &err)) < 0) {
        console_error("--stop: %s", err.msg);
        return rc == ERR_NOMEM ? 1 : 2;
    }
    stop_strings_free(stop);
    return 0;
}

/* Short enough to be typed again. */
static uint64_t random_seed(void)
{
    uint32_t r;
    if (getrandom(&r, sizeof r, 0) != sizeof r) r = (uint32_t)(clock_ns() * 2654435761u >> 8);
    return r;
}

/* ---- sampler and stop strings -------------------------------------------------------------- */

int sampling_open(sampling *out, const sampling_args *a, const model *m, const tokenizer *tok,
                  int ctx, err_ctx *err)
{
    const int n_token = tokenizer_n_token(tok), n_vocab = m->hp.n_vocab;
    logit_bias *biases = NULL;
    int rc;

    *out = (sampling){ 0 };
    if ((rc = sampler_defaults(&out->options, m, err)) < 0) goto done;
    overlay(&out->options, a);
    out->options.seed = a->seed < 0 ? random_seed() : (uint64_t)a->seed;
    if ((rc = read_biases(&biases, &out->options.n_bias, a, err)) < 0) goto done;
    out->options.biases = biases;
    if ((rc = sampler_check(&out->options, n_vocab, err)) < 0) goto done;
    if ((rc = sampler_create(&out->smp, &out->options, n_vocab, ctx, err)) < 0) goto done;
    for (int id = 0; id < n_vocab; id++)
        if (id >= n_token || tokenizer_kind(tok, id) == TOKEN_UNUSED) sampler_ban(out->smp, id);
    if (a->stop.n > 0) rc = stop_strings_create(&out->stop, a->stop.text, a->stop.n, err);
done:
    mem_free(biases);
    out->options.biases = NULL;
    out->options.n_bias = 0;
    if (rc < 0) sampling_close(out);
    return rc;
}

void sampling_close(sampling *s)
{
    sampler_free(s->smp);
    stop_strings_free(s->stop);
    *s = (sampling){ 0 };
}
