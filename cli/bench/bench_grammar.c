/* bench_grammar.c - moe-bench grammar: what it costs to hold an answer to a form.
 *
 * For a few schemas a text of random tokens that fit is followed twice: cold, when each mask is
 * worked out at its first use, and warm, when the same tokens come again. A token's cost is its
 * mask, its way through the grammar and what the mask adds to a pick; no model runs. One thread. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/report.h"
#include "engine/session/sampler.h"
#include "engine/text/grammar_mask.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>

typedef struct bench_options {
    const char *model;
    int64_t tokens;
    bool json;
} bench_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(bench_options, model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file with the vocabulary. Default: the built-in demo" },
    { "tokens", 'n', ARG_INT, offsetof(bench_options, tokens), "N", NULL, 1, REPORT_MAX_RUNS,
      "Tokens of each text. Default: 256" },
    { "json", 0, ARG_FLAG, offsetof(bench_options, json), NULL, NULL, 0, 0,
      "One JSON object per form on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-bench grammar [[-m] FILE] [options]",
    .about = "Measures what the form of an answer (--json-schema) costs per token.\n"
             "cold: each mask is worked out when it is first needed. warm: the same text again.",
    .options = options,
    .n_option = ARRAY_LEN(options),
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
    double pick_us, masked_pick_us;      /* of the sampler, medians */
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

/* Follows the text; ids that are -1 are chosen and kept, and begin anew where the text ends. */
static int follow(double *us, grammar_mask *m, int32_t *ids, int n, const tokenizer *t,
                  err_ctx *err)
{
    const int n_vocab = tokenizer_n_token(t);
    uint64_t seed = 1;
    grammar_mask_reset(m);
    for (int i = 0; i < n; i++) {
        const uint64_t start = clock_ns();
        const uint64_t *bits = grammar_mask_bits(m, err);
        uint64_t ns = clock_ns() - start;
        if (!bits) return ERR_RANGE;
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

/* What a pick takes with all tokens, and with those of the mask. */
static int measure_picks(measurement *out, grammar_mask *m, int n_vocab, err_ctx *err)
{
    enum { RUNS = 51 };
    const sampler_options o = { .temperature = 0.8, .top_p = 0.95, .repeat_penalty = 1 };
    double us[2][RUNS];
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
    for (int i = 0; i < 2 * RUNS && rc == 0; i++) {
        const uint64_t *bits = i & 1 ? grammar_mask_bits(m, err) : NULL;
        int32_t id;
        if (i & 1 && !bits) {
            rc = ERR_RANGE;
            break;
        }
        sampler_allow(s, bits);
        const uint64_t start = clock_ns();
        rc = sampler_pick(&id, s, logits, err);
        us[i & 1][i / 2] = (double)(clock_ns() - start) * 1e-3;
    }
    if (rc == 0) out->pick_us = spread_of(us[0], RUNS).median;
    if (rc == 0) out->masked_pick_us = spread_of(us[1], RUNS).median;
    sampler_free(s);
    mem_free(logits);
    return rc;
}

static int measure(measurement *out, const char *schema, const token_trie *v, int n, err_ctx *err)
{
    int32_t ids[REPORT_MAX_RUNS];
    const uint64_t start = clock_ns();
    json_t *form = json_loads(schema, 0, NULL);
    grammar_mask *m = NULL;
    grammar *g;
    int rc = grammar_from_schema(&g, form, true, err);
    json_decref(form);
    out->compile_ms = (double)(clock_ns() - start) * 1e-6;
    if (rc == 0) rc = grammar_mask_create(&m, g, v, tokenizer_n_token(v->tok), err);
    for (int i = 0; i < n; i++) ids[i] = -1;
    if (rc == 0) rc = follow(out->cold_us, m, ids, n, v->tok, err);
    if (rc == 0) rc = follow(out->warm_us, m, ids, n, v->tok, err);
    if (rc == 0) {
        out->n_node = grammar_size(g);
        out->n_mask = (int)grammar_mask_counts(m).made;
        out->cold = spread_of(out->cold_us, n);
        out->warm = spread_of(out->warm_us, n);
        rc = measure_picks(out, m, tokenizer_n_token(v->tok), err);
    }
    grammar_mask_free(m);
    grammar_free(g);
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
    printf("%-11s %6d %8.2f %7d %10.1f %9.1f %9.2f %9.2f %9.1f %9.1f\n", name, m->n_node,
           m->compile_ms, m->n_mask, mean(m->cold_us, n), m->cold.max, mean(m->warm_us, n),
           m->warm.max, m->pick_us, m->masked_pick_us);
}

static int print_json(const measurement *m, const char *name, int n, const token_trie *v)
{
    json_t *row = json_pack("{s:s, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f}",
                            "form", name, "vocabulary", tokenizer_n_token(v->tok),
                            "nodes", m->n_node, "compile_ms", m->compile_ms, "masks", m->n_mask,
                            "cold_us", mean(m->cold_us, n), "cold_most_us", m->cold.max,
                            "warm_us", mean(m->warm_us, n), "warm_most_us", m->warm.max,
                            "pick_us", m->pick_us, "masked_pick_us", m->masked_pick_us);
    if (console_json(row, JSON_COMPACT | JSON_REAL_PRECISION(6))) return 0;
    console_error("out of memory");
    return 1;
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
        printf("                 compiled   masks    us per token: cold       warm           "
               "a pick, us\n"
               "form         nodes       ms    made       mean      most      mean      most      "
               "free    masked\n");
    }
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (measure(&m, forms[i].schema, v, (int)o->tokens, &err) < 0)
            return console_fail(forms[i].name, &err);
        if (!o->json) print_row(&m, forms[i].name, (int)o->tokens);
        else if (print_json(&m, forms[i].name, (int)o->tokens, v) != 0) return 1;
    }
    return 0;
}

int cmd_bench_grammar(int argc, char **argv)
{
    bench_options opt = { .tokens = 256 };
    const char *name = DEMO_MODEL_NAME;
    gguf *g = NULL;
    tokenizer *t = NULL;
    token_trie *v = NULL;
    err_ctx err;
    int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (opt.model) name = opt.model;
    rc = opt.model ? gguf_open(&g, opt.model, &err)
                   : gguf_open_memory(&g, demo_model_data, demo_model_bytes(), &err);
    if (rc == 0) rc = tokenizer_create(&t, g, &err);
    const uint64_t start = clock_ns();
    if (rc == 0) rc = token_trie_create(&v, t, false, &err);
    const double tree_ms = (double)(clock_ns() - start) * 1e-6;
    const int code = rc < 0 ? console_fail(name, &err) : measure_all(&opt, v, tree_ms);
    token_trie_free(v);
    tokenizer_free(t);
    gguf_close(g);
    return code ? code : console_finish();
}
