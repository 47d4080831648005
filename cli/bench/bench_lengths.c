/* bench_lengths.c - moe-bench lengths: how fast prompts are taken in, from one token to thousands.
 *
 * The same random tokens into an empty session, as many of them as a row says; the median of some
 * runs counts, after one that does not. Where experts are not all in VRAM, there is a choice of who
 * computes them: with --ways the same prompts also go each of these ways, in turn, since a machine
 * is not equally fast at all times. Lengths go up, so that a cache of experts is as warm as it will
 * be. Loading is not measured. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_model.h"
#include "cli/bench/lengths_view.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/sink.h"
#include "engine/gpu/prompt_experts.h"
#include "engine/instruments.h"

typedef struct lengths_options {
    bench_model_args run;
    const char *lengths, *ways, *csv, *svg;
    int64_t runs;
} lengths_options;

#define FIELD(f) offsetof(lengths_options, f)
static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, FIELD(run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one. Default: the demo model" },
    { "lengths", 0, ARG_TEXT, FIELD(lengths), "LIST", NULL, 0, 0,
      "Tokens. Default: 1,2,4,8,9,16,32,... to 8192, as far as the context goes" },
    { "ways", 0, ARG_TEXT, FIELD(ways), "LIST", NULL, 0, 0,
      "Of auto, bus, cores and split, each measured. Default: auto" },
    { "runs", 'r', ARG_INT, FIELD(runs), "N", NULL, 1, LENGTHS_MOST_RUNS,
      "How often to measure; the median counts. Default: 3" },
    { "csv", 0, ARG_TEXT, FIELD(csv), "FILE", NULL, 0, 0,
      "All figures as lines of numbers; - for stdout instead of the table" },
    { "svg", 0, ARG_TEXT, FIELD(svg), "FILE", NULL, 0, 0,
      "Speeds as a picture; - for stdout instead of the table" },
    { "kv", 0, ARG_TEXT, FIELD(run.engine.kv), "TYPE", NULL, 0, 0,
      "How keys and values are stored: f32, f16 or q8_0. Default: f16" },
};

static const arg_group groups[] = {
    { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, FIELD(run) },
    { "Memory:", tier_options, TIER_N_OPTION, FIELD(run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench lengths [[-m] FILE] [--vram SIZE] [--ways LIST] [--csv FILE] [--svg FILE] "
             "[options]",
    .about = "Measures how fast prompts of many lengths are taken in.",
    .options = options, .n_option = ARRAY_LEN(options), .operands = "",
    .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue = "auto      as the plan says\n"
                "bus       experts that are not in VRAM cross the bus, all of them\n"
                "cores     the CPU computes them\n"
                "split     both, by how many tokens chose an expert; up to 2,048 tokens at a time\n"
                "over the bus   auto: of the experts used and not in VRAM, the share that crossed "
                "one by one",
};

typedef struct job {
    const lengths_options *opt;
    bench_model b;
    session *s;
    int32_t *ids;
    float *logits;
    lengths_table table;
} job;

/* ---- lists ----------------------------------------------------------------------------------- */

static int next_word(char *word, size_t cap, const char **list)
{
    const size_t n = strcspn(*list, ",");
    snprintf(word, cap, "%.*s", (int)(n < cap - 1 ? n : cap - 1), *list);
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return *word != '\0';
}

/* 0, or 2 after one line. */
static int read_lengths(lengths_table *t, const char *list)
{
    static const int usual[] = { 1, 2, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192 };
    char word[24], shown[64];
    for (size_t i = 0; !list && i < ARRAY_LEN(usual); i++) t->rows[t->n_row++].tokens = usual[i];
    while (list) {
        char *end = word;
        const long n = next_word(word, sizeof word, &list) ? strtol(word, &end, 10) : 0;
        const int last = t->n_row > 0 ? t->rows[t->n_row - 1].tokens : 0;
        if (*end || n <= last || n > 1 << 20 || t->n_row == LENGTHS_MOST) {
            console_error("--lengths: '%s': up to %d numbers of tokens, each larger than the one "
                          "before, such as 9,64,512", ESC(shown, str_from(word)), LENGTHS_MOST);
            return 2;
        }
        t->rows[t->n_row++].tokens = (int)n;
    }
    return 0;
}

/* 0, or 2 after one line. */
static int read_ways(lengths_table *t, const char *list)
{
    char word[24], shown[64];
    if (!list) t->ways[LENGTHS_AUTO] = true;
    while (list) {
        int way = 0;
        next_word(word, sizeof word, &list);
        while (way < LENGTHS_WAYS && strcmp(word, lengths_way_name(way)) != 0) way++;
        if (way == LENGTHS_WAYS) {
            console_error("--ways: '%s' is none of auto, bus, cores and split",
                          ESC(shown, str_from(word)));
            return 2;
        }
        t->ways[way] = true;
    }
    return 0;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool watch(void *ctx, double done, double total)
{
    (void)ctx, (void)done, (void)total;
    return !interrupted();
}

static int measure_once(double *rate, job *j, int n, err_ctx *err)
{
    session_rewind(j->s, 0);
    const uint64_t from = clock_ns();
    const int rc = session_eval(j->s, j->ids, n, j->logits, 1, watch, j, err);
    *rate = n * 1e9 / (double)(clock_ns() - from);
    return rc;
}

static int sent_percent(const session *s)
{
    prompt_experts_stats n;
    session_split(s, &n);
    const uint64_t all = n.sent + n.by_cores;
    return all > 0 ? (int)((100 * n.sent + all / 2) / all) : -1;
}

static int measure_row(job *j, length_row *row, err_ctx *err)
{
    static const int forced[LENGTHS_WAYS] = { -1, PROMPT_BUS, PROMPT_CORES, PROMPT_SPLIT };
    double rates[LENGTHS_WAYS][LENGTHS_MOST_RUNS], ignored;
    const int runs = (int)j->opt->runs;
    int rc = 0;
    row->sent_percent = -1;
    for (int r = -1; r < runs && rc == 0; r++)           /* the first does not count */
        for (int w = 0; w < LENGTHS_WAYS && rc == 0; w++) {
            if (!j->table.ways[w]) continue;
            console_status("%d tokens, %s, run %d of %d...", row->tokens, lengths_way_name(w),
                           r + 1, runs);
            session_force_way(j->s, forced[w]);
            session_reset_counts(j->s);
            rc = measure_once(r < 0 ? &ignored : &rates[w][r], j, row->tokens, err);
            if (w == LENGTHS_AUTO) row->sent_percent = sent_percent(j->s);
        }
    for (int w = 0; w < LENGTHS_WAYS && rc == 0; w++)
        if (j->table.ways[w]) row->rate[w] = spread_of(rates[w], runs);
    session_force_way(j->s, -1);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef void write_fn(textbuf *b, const lengths_table *t);

/* 0, or the exit code after one line. */
static int write_file(const char *path, write_fn *fn, const lengths_table *t)
{
    textbuf b = { 0 };
    err_ctx err;
    fn(&b, t);
    const int rc = sink_text(path, &b, &err);
    textbuf_free(&b);
    return rc < 0 ? model_handle_fail(sink_name(path), &err) : 0;
}

static int report(const job *j)
{
    int code = 0;
    if (!sink_is_stdout(j->opt->csv) && !sink_is_stdout(j->opt->svg)) lengths_print(&j->table);
    if (j->opt->csv) code = write_file(j->opt->csv, lengths_csv, &j->table);
    if (j->opt->svg && code == 0) code = write_file(j->opt->svg, lengths_plot, &j->table);
    return code ? code : console_finish();
}

/* ---- the verb -------------------------------------------------------------------------------- */

static void name_place(job *j)
{
    const plan *p = engine_plan(j->b.l.e);
    const char *slash = strrchr(j->b.l.path, '/');
    lengths_table *t = &j->table;
    t->model = slash ? slash + 1 : j->b.l.path;
    if (!p || !p->gpu)
        snprintf(t->place, sizeof t->place, "CPU, %d threads, chunks of %d",
                 engine_threads(j->b.l.e), session_chunk(j->s));
    else
        snprintf(t->place, sizeof t->place, "%.1f GB of VRAM, %.1f of them experts; %d threads, "
                 "chunks of %d", (double)plan_vram(p) * 1e-9, (double)p->vram_experts * 1e-9,
                 engine_threads(j->b.l.e), session_chunk(j->s));
}

static int run(job *j)
{
    lengths_table *t = &j->table;
    err_ctx err;
    int rc;
    if ((rc = bench_model_open(&j->b, &j->opt->run)) != 0) return rc;
    while (t->n_row > 0 && t->rows[t->n_row - 1].tokens > j->b.ctx_limit) t->n_row--;
    if (t->n_row == 0) {
        console_error("all lengths are more than the context of %d", j->b.ctx_limit);
        return 1;
    }
    const int most = t->rows[t->n_row - 1].tokens, n_vocab = j->b.l.m->hp.n_vocab;
    if ((rc = bench_model_session(&j->s, &j->b, most)) != 0) return rc;
    name_place(j);
    j->ids = mem_array((size_t)most, sizeof *j->ids);
    j->logits = mem_array((size_t)n_vocab, sizeof *j->logits);
    if (!j->ids || !j->logits) {
        console_error("out of memory for %d tokens", most);
        return 1;
    }
    bench_model_prompt(j->ids, most, n_vocab);
    for (int r = 0; r < t->n_row && rc == 0; r++) rc = measure_row(j, &t->rows[r], &err);
    console_status_clear();
    return rc < 0 ? bench_model_fail(j->b.l.path, rc, &err) : report(j);
}

int cmd_bench_lengths(int argc, char **argv)
{
    static job j;
    lengths_options opt = { .run.engine = { .kv = "f16", .device = "auto" }, .runs = 3 };
    int rc;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (sink_is_stdout(opt.csv) && sink_is_stdout(opt.svg)) {
        console_error("only one of --csv - and --svg - can write to standard output");
        return 2;
    }
    if ((rc = sink_check(opt.csv)) != 0 || (rc = sink_check(opt.svg)) != 0) return rc;
    j.opt = &opt;
    if ((rc = read_lengths(&j.table, opt.lengths)) == 0 &&
        (rc = read_ways(&j.table, opt.ways)) == 0)
        rc = run(&j);
    mem_free(j.ids);
    mem_free(j.logits);
    session_free(j.s);
    bench_model_close(&j.b);
    return rc;
}
