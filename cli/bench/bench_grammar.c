/* bench_grammar.c - moe-bench grammar: what it costs to hold an answer to a form.
 *
 * For a few schemas a text of random tokens that fit is followed twice: cold, when each mask is
 * worked out at its first use, and warm, when the same tokens come again. A token's cost is its
 * mask, its way through the grammar and what the mask adds to a pick on the host: where few tokens
 * may come (at the text's beginning), and where the most of this text may. No model runs for that;
 * one thread. With --decode the model does, with each form and without. */
#include "cli/args.h"
#include "cli/bench/form_decode.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/report.h"
#include "engine/session/sampler.h"
#include "engine/text/grammar/grammar_mask.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct bench_options {
    bench_model_args run;
    int64_t tokens, decode, runs;
    double temp;
    bool json;
} bench_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(bench_options, run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file with the vocabulary. Default: the built-in demo" },
    { "tokens", 'n', ARG_INT, offsetof(bench_options, tokens), "N", NULL, 1, REPORT_MAX_RUNS,
      "Tokens of each text. Default: 256" },
    { "decode", 0, ARG_INT, offsetof(bench_options, decode), "N", NULL, 0, INT32_MAX / 2,
      "Also have the model write N tokens with each form and without, in turn. Default: 0" },
    { "runs", 'r', ARG_INT, offsetof(bench_options, runs), "N", NULL, 1, REPORT_MAX_RUNS,
      "With --decode: how often; the medians count. Default: 5" },
    { "temp", 0, ARG_FLOAT, offsetof(bench_options, temp), "T", NULL, 0, 100,
      "With --decode: temperature. Default: 0, the likeliest tokens" },
    { "json", 0, ARG_FLAG, offsetof(bench_options, json), NULL, NULL, 0, 0,
      "One JSON object per form on stdout, with --decode two" },
};

static const arg_group groups[] = {
    { "Running, with --decode:", bench_model_options, BENCH_MODEL_N_OPTION,
      offsetof(bench_options, run) },
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(bench_options, run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench grammar [[-m] FILE] [options]",
    .about = "Measures what the form of an answer (--json-schema) costs per token.\n"
             "cold: each mask is worked out when it is first needed. warm: the same text again.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .groups = groups,
    .n_group = ARRAY_LEN(groups),
};

static const struct { const char *name, *schema; } forms[] = {
    { "any object", "{\"type\":\"object\"}" },
    { "person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":40},"
      "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\","
      "\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"maxItems\":5}},"
      "\"required\":[\"name\",\"age\"]}" },
    { "long text", "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\","
      "\"minLength\":500,\"maxLength\":20000}},\"required\":[\"text\"]}" },
    { "tree", "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{"
      "\"value\":{\"type\":\"number\"},\"left\":{\"$ref\":\"#/$defs/node\"},\"right\":"
      "{\"$ref\":\"#/$defs/node\"}},\"required\":[\"value\"]}}}" },
    { "bounds", "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":-12.5,"
      "\"exclusiveMaximum\":1000},\"minItems\":100,\"maxItems\":1000}" },
};

typedef struct measurement {
    int n_node, n_mask;
    double compile_ms;
    double cold_us[REPORT_MAX_RUNS], warm_us[REPORT_MAX_RUNS];
    spread cold, warm;
    int n_few, n_many;                   /* tokens that may come: first, and at most */
    double pick_us, few_pick_us, many_pick_us;   /* of the sampler, medians */
} measurement;

/* A random one of the tokens that may come and do not end the text; -1: there is none. */
static int32_t choose(const uint64_t *bits, const tokenizer *t, int n_vocab, uint64_t *seed)
{
    int32_t pick = -1;
    uint64_t n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!(bits[id / 64] >> id % 64 & 1) || tokenizer_is_stop(t, id)) continue;
        *seed = random_word(*seed, 1);
        if (*seed % ++n == 0) pick = id;
    }
    return pick;
}

static int count_bits(const uint64_t *bits, int n_vocab)
{
    int n = 0;
    for (int i = 0; i < (n_vocab + 63) / 64; i++) n += __builtin_popcountll(bits[i]);
    return n;
}

/* Follows the text; ids that are -1 are chosen and kept, and begin anew where the text ends. most,
 * or NULL, gets the mask with the most tokens. */
static int follow(double *us, grammar_mask *m, int32_t *ids, int n, const tokenizer *t,
                  uint64_t *most, err_ctx *err)
{
    const int n_vocab = tokenizer_n_token(t);
    const size_t bytes = ((size_t)n_vocab + 63) / 64 * sizeof *most;
    uint64_t seed = 1;
    grammar_mask_reset(m);
    for (int i = 0; i < n; i++) {
        const uint64_t start = clock_ns();
        const uint64_t *bits = grammar_mask_bits(m, err);
        uint64_t ns = clock_ns() - start;
        if (!bits) return ERR_RANGE;
        if (most && (i == 0 || count_bits(bits, n_vocab) > count_bits(most, n_vocab)))
            memcpy(most, bits, bytes);
        if (ids[i] < 0) {
            ids[i] = choose(bits, t, n_vocab, &seed);
            if (ids[i] < 0) ids[i] = INT32_MAX;          /* the end */
        }
        if (ids[i] == INT32_MAX) {
            grammar_mask_reset(m);
        } else {
            const uint64_t again = clock_ns();
            const int rc = grammar_mask_accept(m, ids[i], err);
            if (rc < 0) return rc;
            ns += clock_ns() - again;
        }
        us[i] = (double)ns * 1e-3;
    }
    return 0;
}

/* What a pick takes with all tokens, with few of them and with many. */
static int measure_picks(measurement *out, grammar_mask *m, const uint64_t *many, int n_vocab,
                         err_ctx *err)
{
    enum { RUNS = 51 };
    const sampler_options o = { .temperature = 0.8, .top_p = 0.95, .repeat_penalty = 1 };
    double us[3][RUNS];
    float *logits = mem_array((size_t)n_vocab, sizeof *logits);
    sampler *s = NULL;
    int rc = logits ? sampler_create(&s, &o, n_vocab, 0, err)
                    : err_set(err, ERR_NOMEM, "out of memory for %d logits", n_vocab);
    for (int i = 0; i < n_vocab && rc == 0; i++) {       /* few are large, as models have it */
        float x = (float)(random_word(7, (uint64_t)i) % 100000) * 1e-5f;
        for (int k = 0; k < 8; k++) x *= x;
        logits[i] = 30 * x;
    }
    grammar_mask_reset(m);
    const uint64_t *few = rc < 0 ? NULL : grammar_mask_bits(m, err);
    if (rc == 0 && !few) rc = ERR_RANGE;
    for (int i = 0; i < 3 * RUNS && rc == 0; i++) {
        int32_t id;
        sampler_allow(s, i % 3 == 0 ? NULL : i % 3 == 1 ? few : many);
        const uint64_t start = clock_ns();
        rc = sampler_pick(&id, s, logits, err);
        us[i % 3][i / 3] = (double)(clock_ns() - start) * 1e-3;
    }
    if (rc == 0) {
        out->n_few = count_bits(few, n_vocab);
        out->n_many = count_bits(many, n_vocab);
        out->pick_us = spread_of(us[0], RUNS).median;
        out->few_pick_us = spread_of(us[1], RUNS).median;
        out->many_pick_us = spread_of(us[2], RUNS).median;
    }
    sampler_free(s);
    mem_free(logits);
    return rc;
}

static int compile(grammar **out, const char *schema, err_ctx *err)
{
    json_t *form = json_loads(schema, 0, NULL);
    const int rc = grammar_from_schema(out, form, true, err);
    json_decref(form);
    return rc;
}

static int measure(measurement *out, const char *schema, const token_trie *v, int n, err_ctx *err)
{
    const int n_vocab = tokenizer_n_token(v->tok);
    uint64_t *most = mem_array((size_t)n_vocab / 64 + 1, sizeof *most);
    int32_t ids[REPORT_MAX_RUNS];
    const uint64_t start = clock_ns();
    grammar_mask *m = NULL;
    grammar *g = NULL;
    int rc = most ? compile(&g, schema, err)
                  : err_set(err, ERR_NOMEM, "out of memory for a mask of %d tokens", n_vocab);
    out->compile_ms = (double)(clock_ns() - start) * 1e-6;
    if (rc == 0) rc = grammar_mask_create(&m, g, v, n_vocab, err);
    for (int i = 0; i < n; i++) ids[i] = -1;
    if (rc == 0) rc = follow(out->cold_us, m, ids, n, v->tok, most, err);
    if (rc == 0) rc = follow(out->warm_us, m, ids, n, v->tok, NULL, err);
    if (rc == 0) {
        out->n_node = grammar_size(g);
        out->n_mask = (int)grammar_mask_counts(m).made;
        out->cold = spread_of(out->cold_us, n);
        out->warm = spread_of(out->warm_us, n);
        rc = measure_picks(out, m, most, n_vocab, err);
    }
    grammar_mask_free(m);
    grammar_free(g);
    mem_free(most);
    return rc;
}

/* ---- showing it ------------------------------------------------------------------------------ */

static double mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static void print_row(const measurement *m, const char *name, int n)
{
    printf("%-11s %6d %8.2f %6d %9.1f %9.1f %7.2f %7.2f %7.1f %7.1f %7.1f\n", name, m->n_node,
           m->compile_ms, m->n_mask, mean(m->cold_us, n), m->cold.max, mean(m->warm_us, n),
           m->warm.max, m->pick_us, m->few_pick_us, m->many_pick_us);
}

static int show_json(json_t *row)
{
    if (console_json(row, JSON_COMPACT | JSON_REAL_PRECISION(6))) return 0;
    console_error("out of memory");
    return 1;
}

static int print_json(const measurement *m, const char *name, int n, const token_trie *v)
{
    return show_json(json_pack("{s:s, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:i, "
                               "s:f}", "form", name, "vocabulary", tokenizer_n_token(v->tok),
                               "nodes", m->n_node, "compile_ms", m->compile_ms,
                               "masks", m->n_mask, "cold_us", mean(m->cold_us, n),
                               "cold_most_us", m->cold.max, "warm_us", mean(m->warm_us, n),
                               "warm_most_us", m->warm.max, "pick_us", m->pick_us,
                               "few", m->n_few, "few_pick_us", m->few_pick_us,
                               "many", m->n_many, "many_pick_us", m->many_pick_us));
}

static int measure_all(const bench_options *o, const token_trie *v, double tree_ms)
{
    static measurement m;                /* 16 kB of times */
    char count[32];
    err_ctx err;
    if (!o->json) {
        printf("vocabulary  %s tokens, tree of %d nodes made in %.0f ms\n\n",
               text_count(count, sizeof count, (uint64_t)tokenizer_n_token(v->tok)), v->n_node,
               tree_ms);
        printf("                 compiled  masks   us per token: cold        warm     "
               "a pick, us, of\n"
               "form         nodes       ms   made      mean      most    mean    most     "
               "all     few    many\n");
    }
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (measure(&m, forms[i].schema, v, (int)o->tokens, &err) < 0)
            return console_fail(forms[i].name, &err);
        if (!o->json) print_row(&m, forms[i].name, (int)o->tokens);
        else if (print_json(&m, forms[i].name, (int)o->tokens, v) != 0) return 1;
    }
    return 0;
}

/* ---- with the model -------------------------------------------------------------------------- */

static void print_rates(const form_decode *d, const char *name)
{
    const spread without = spread_of(d->free_rate, d->n_run);
    const spread with = spread_of(d->held_rate, d->n_run);
    printf("%-11s %10.2f %8.1f%% %10.2f %8.1f%% %8.2f%% %10.1f\n", name, without.median,
           spread_percent(&without), with.median, spread_percent(&with), form_decode_cost(d),
           1e6 / with.median - 1e6 / without.median);
}

static int print_rates_json(const form_decode *d, const char *name)
{
    const spread without = spread_of(d->free_rate, d->n_run);
    const spread with = spread_of(d->held_rate, d->n_run);
    return show_json(json_pack("{s:s, s:i, s:s, s:o, s:o, s:f}", "form", name,
                               "decode_tokens", d->n_token,
                               "kernels", engine_kernels(d->b.l.e),
                               "free_tok_s", spread_json(&without, d->free_rate),
                               "form_tok_s", spread_json(&with, d->held_rate),
                               "cost_percent", form_decode_cost(d)));
}

static int decode_all(form_decode *d, const bench_options *o, const token_trie *v)
{
    char kernels[KERNELS_TEXT_CAP];
    int code = 0;
    if (!o->json)
        printf("\ndecode     %d tokens, temperature %g, %s\n\n"
               "             without              with                 cost\n"
               "form           tok/s   spread      tok/s   spread  of time  us a token\n",
               (int)o->decode, o->temp, model_handle_kernels_text(kernels, sizeof kernels, &d->b.l));
    for (size_t i = 0; i < ARRAY_LEN(forms) && code == 0; i++) {
        grammar *g = NULL;
        err_ctx err;
        code = compile(&g, forms[i].schema, &err) < 0 ? console_fail(forms[i].name, &err)
                                                      : form_decode_measure(d, g, v);
        if (code == 0 && o->json) code = print_rates_json(d, forms[i].name);
        else if (code == 0) print_rates(d, forms[i].name);
        grammar_free(g);
    }
    return code;
}

static int measure_vocabulary(const bench_options *o, form_decode *d)
{
    const char *path = o->run.model;
    gguf *g = NULL;
    tokenizer *t = NULL;
    token_trie *v = NULL;
    err_ctx err;
    int rc = path ? gguf_open(&g, path, &err)
                  : gguf_open_memory(&g, demo_model_data, demo_model_bytes(), &err);
    if (rc == 0) rc = tokenizer_create(&t, g, &err);
    const uint64_t start = clock_ns();
    if (rc == 0) rc = token_trie_create(&v, t, false, &err);
    const double tree_ms = (double)(clock_ns() - start) * 1e-6;
    int code = rc < 0 ? console_fail(path ? path : DEMO_MODEL_NAME, &err)
                      : measure_all(o, v, tree_ms);
    if (code == 0 && o->decode > 0) code = decode_all(d, o, v);
    token_trie_free(v);
    tokenizer_free(t);
    gguf_close(g);
    return code;
}

int cmd_bench_grammar(int argc, char **argv)
{
    static form_decode d;                /* 16 kB of rates */
    bench_options opt = { .run.engine = { .kv = "f16", .device = "auto" }, .tokens = 256,
                          .runs = 5 };
    tier_args_init(&opt.run.tiers);
    const int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    int code = opt.decode == 0 ? 0 : form_decode_open(&d, &opt.run, (int)opt.decode, (int)opt.runs,
                                                      opt.temp);
    if (code == 0) code = measure_vocabulary(&opt, &d);
    if (opt.decode > 0) form_decode_close(&d);
    return code ? code : console_finish();
}
