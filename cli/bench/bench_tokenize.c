/* bench_tokenize.c - moe-bench tokenize: how fast a file's tokenizer turns text into ids.
 *
 * Each run encodes the whole text twice with an encoder of its own: first cold, as for a prompt
 * that comes in alone, then warm, with pieces of the text in the encoder's cache. The cold rate is
 * the headline. One thread; rates are bytes of UTF-8 in 10^6 per second. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/report.h"
#include "engine/text/tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

typedef struct bench_options {
    const char *model;
    int64_t runs;
    bool json, special;
} bench_options;

static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, offsetof(bench_options, model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file with the vocabulary, or the first part of a split one" },
    { "runs", 'r', ARG_INT, offsetof(bench_options, runs), "N", NULL, 1, REPORT_MAX_RUNS,
      "How often to measure; the median counts. Default: 5" },
    { "special", 0, ARG_FLAG, offsetof(bench_options, special), NULL, NULL, 0, 0,
      "Control tokens in the text become their ids" },
    { "json", 0, ARG_FLAG, offsetof(bench_options, json), NULL, NULL, 0, 0,
      "One JSON object on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-bench tokenize [-m] FILE TEXTFILE [options]",
    .about = "Measures the tokenizer of a model on a text, on one core. TEXTFILE may be - .\n"
             "cold: every run starts with a new encoder. warm: the same text once more.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .min_operands = 1,
    .max_operands = 1,
    .operands = "TEXTFILE",
};

typedef struct measurement {
    double load_ms;
    size_t bytes, tokens;
    double cold_mb_s[REPORT_MAX_RUNS], warm_mb_s[REPORT_MAX_RUNS];
    spread cold, warm;
} measurement;

static int encode_timed(double *mb_s, encoder *e, size_t *tokens, str_view text, bool special,
                        err_ctx *err)
{
    id_list ids = { 0 };
    const uint64_t start = clock_ns();
    const int rc = encoder_encode(e, &ids, text, special, err);
    const uint64_t ns = clock_ns() - start;
    *mb_s = (double)text.len * 1e3 / (double)(ns ? ns : 1);
    *tokens = ids.n;
    ids_free(&ids);
    return rc;
}

static int measure(measurement *m, const tokenizer *t, str_view text, const bench_options *opt,
                   err_ctx *err)
{
    m->bytes = text.len;
    for (int i = 0; i < (int)opt->runs; i++) {
        encoder *e;
        int rc = encoder_create(&e, t, err);
        if (rc < 0) return rc;
        rc = encode_timed(&m->cold_mb_s[i], e, &m->tokens, text, opt->special, err);
        if (rc == 0) rc = encode_timed(&m->warm_mb_s[i], e, &m->tokens, text, opt->special, err);
        encoder_free(e);
        if (rc < 0) return rc;
    }
    m->cold = spread_of(m->cold_mb_s, (int)opt->runs);
    m->warm = spread_of(m->warm_mb_s, (int)opt->runs);
    return 0;
}

static int load_timed(tokenizer **out, double *ms, const char *path, err_ctx *err)
{
    const uint64_t start = clock_ns();
    gguf *g;
    int rc = gguf_open(&g, path, err);
    if (rc < 0) return rc;
    rc = tokenizer_create(out, g, err);
    *ms = (double)(clock_ns() - start) * 1e-6;
    gguf_close(g);
    return rc;
}

static double bytes_per_token(const measurement *m)
{
    return m->tokens ? (double)m->bytes / (double)m->tokens : 0.0;
}

static void print_table(const measurement *m, const tokenizer *t, const bench_options *opt)
{
    char vocabulary[32], bytes[32], tokens[32];
    printf("vocabulary  %s tokens, %s, loaded in %.0f ms\n",
           text_count(vocabulary, sizeof vocabulary, (uint64_t)tokenizer_n_token(t)),
           tokenizer_pre_name(t), m->load_ms);
    printf("text        %s bytes, %s tokens, %.2f bytes per token\n",
           text_count(bytes, sizeof bytes, m->bytes), text_count(tokens, sizeof tokens, m->tokens),
           bytes_per_token(m));
    printf("\nMB/s          median      min      max   of %d\n", (int)opt->runs);
    printf("cold        %8.1f %8.1f %8.1f   new encoder each run\n", m->cold.median, m->cold.min,
           m->cold.max);
    printf("warm        %8.1f %8.1f %8.1f   same text again\n", m->warm.median, m->warm.min,
           m->warm.max);
}

static int print_json(const measurement *m, const tokenizer *t, const bench_options *opt,
                      const char *path)
{
    char model[1024], text[1024];
    json_t *row = json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:I, s:I, s:f, s:i, s:o, s:o}",
                            "model", ESC(model, str_from(opt->model)),
                            "text", ESC(text, str_from(path)),
                            "pre", tokenizer_pre_name(t),
                            "vocabulary", tokenizer_n_token(t),
                            "merges", tokenizer_n_merge(t),
                            "load_ms", m->load_ms,
                            "bytes", (json_int_t)m->bytes,
                            "tokens", (json_int_t)m->tokens,
                            "bytes_per_token", bytes_per_token(m),
                            "runs", (int)opt->runs,
                            "cold_mb_s", spread_json(&m->cold, m->cold_mb_s),
                            "warm_mb_s", spread_json(&m->warm, m->warm_mb_s));
    if (console_json(row, JSON_COMPACT | JSON_REAL_PRECISION(6))) return 0;
    console_error("out of memory");
    return 1;
}

int cmd_bench_tokenize(int argc, char **argv)
{
    static measurement m;                /* 16 kB of rates */
    bench_options opt = { .runs = 5 };
    const char *operands[1];
    int n_operand, rc;
    tokenizer *t = NULL;
    char *text = NULL;
    size_t len;
    err_ctx err;

    rc = args_parse(&spec, &opt, operands, &n_operand, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (load_timed(&t, &m.load_ms, opt.model, &err) < 0) return console_fail(opt.model, &err);
    if (read_whole_file(&text, &len, operands[0], &err) < 0) {
        tokenizer_free(t);
        return console_fail(operands[0], &err);
    }
    rc = 0;
    if (len == 0) {
        console_error("%s: empty, nothing to measure", operands[0]);
        rc = 1;
    } else if (measure(&m, t, (str_view){ text, len }, &opt, &err) < 0) {
        rc = console_fail(operands[0], &err);
    } else if (opt.json) {
        rc = print_json(&m, t, &opt, operands[0]);
    } else {
        print_table(&m, t, &opt);
    }
    mem_free(text);
    tokenizer_free(t);
    return rc ? rc : console_finish();
}
