/* bench_batch.c - moe-bench batch: several conversations at once, in joint passes and in turns.
 *
 * Each conversation has a prompt of its own, then draws its likeliest tokens. Joint passes and
 * turns alternate, run by run. A conversation must draw the same tokens in every run and in company
 * of any size; otherwise the verb fails. */
#include "cli/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench_lists.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/view/median_spread.h"
#include "engine/session/runner.h"
#include "engine/session/sampler.h"

enum { MOST_SESSIONS = 64, WARM_TOKENS = 4 };

typedef struct batch_options {
    bench_model_args run;
    const char *sessions;
    int64_t prompt, tokens, runs;
    bool json;
} batch_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(batch_options, run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one. Default: the demo model" },
    { "sessions", 's', ARG_TEXT, offsetof(batch_options, sessions), "N[,N]", NULL, 0, 0,
      "Conversations at once; each of several numbers is measured. Default: 1,2,4,8,16,32" },
    { "prompt", 'p', ARG_INT, offsetof(batch_options, prompt), "N", NULL, 1, INT32_MAX,
      "Length of each prompt in tokens. Default: 64" },
    { "tokens", 'n', ARG_INT, offsetof(batch_options, tokens), "N", NULL, 2, INT32_MAX,
      "Tokens that each conversation draws. Default: 64" },
    { "runs", 'r', ARG_INT, offsetof(batch_options, runs), "N", NULL, 1, MEDIAN_MAX_RUNS,
      "Number of measurements; the result is their median. Default: 3" },
    { "kv", 0, ARG_TEXT, offsetof(batch_options, run.engine.kv), "TYPE", NULL, 0, 0,
      "How keys and values are stored: f32, f16 or q8_0. Default: f16" },
    { "json", 0, ARG_FLAG, offsetof(batch_options, json), NULL, NULL, 0, 0,
      "One JSON object on stdout for each number of conversations" },
};

static const arg_group groups[] = {
    { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, offsetof(batch_options, run) },
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(batch_options, run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench batch [[-m] FILE] [-s N[,N]] [-p N] [-n N] [-r N] [options]",
    .about = "Measures several conversations at once: a token for each in one pass through the "
             "layers,\nand one conversation after the other.",
    .options = options, .n_option = ARRAY_LEN(options),
    .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue = "together  tokens per second of all conversations, in joint passes\n"
                "in turns  the same, one token of one conversation at a time\n"
                "p50, p99  milliseconds between two tokens of a conversation, in joint passes\n"
                "last      milliseconds from the start of the first prompt to the last one's first "
                "token\n"
                "experts   different experts that a joint pass reads, in all layers; - on a GPU\n"
                "limit     joint passes as a share of what reading these and the dense weights "
                "allows;\n"
                "          - until the speeds are measured, by moe-run plan FILE --measure",
};

typedef struct conversation {
    session *s;
    int32_t *prompt;
    int32_t id;                          /* drawn last */
    uint64_t hash, first;                /* of the tokens of this run, and of the first run */
    bool known;                          /* first is set */
} conversation;

typedef struct bench {
    const batch_options *opt;
    bench_counts counts;
    bench_model b;
    conversation of[MOST_SESSIONS];
    sampler *likeliest;
    float *logits;                       /* [n_vocab] */
    double *pass_s;                      /* [tokens]: seconds of each pass of a run */
    progress bar;
    double together[MEDIAN_MAX_RUNS], turns[MEDIAN_MAX_RUNS];    /* tok/s */
    double last_ms[MEDIAN_MAX_RUNS], p50_ms, p99_ms;
    perf_counts counted;                 /* in the last run's timed tokens */
} bench;

/* ---- measuring ------------------------------------------------------------------------------- */

static int draw(bench *m, conversation *c, err_ctx *err)
{
    const int rc = session_pick(c->s, &c->id, m->likeliest, err);
    c->hash = c->hash * 31 + (uint32_t)c->id;
    return rc;
}

/* A token for each of n conversations, in passes of up to `most`. */
static int step(bench *m, int n, int most, err_ctx *err)
{
    runner_row rows[RUNNER_MOST_ROWS];
    int rc = 0, failed;
    if (!progress_watch(&m->bar, 0, 1)) return err_set(err, ERR_STOPPED, "stopped");
    for (int first = 0, each; first < n && rc == 0; first += each) {
        each = min_int(most, n - first);
        for (int i = 0; i < each; i++) {
            conversation *c = &m->of[first + i];
            rows[i] = (runner_row){ .s = c->s, .ids = &c->id, .n = 1 };
        }
        rc = runner_take(session_runner(rows[0].s), rows, each, &failed, err);
        for (int i = 0; i < each && rc == 0; i++) runner_ask(rows[i].s, 0, m->likeliest);
        for (int i = 0; i < each && rc == 0; i++) rc = draw(m, &m->of[first + i], err);
    }
    m->bar.done += (uint64_t)n;
    return rc;
}

/* All prompts from the beginning. */
static int take_prompts(bench *m, int n, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        conversation *c = &m->of[i];
        session_rewind(c->s, 0);
        rc = session_eval(c->s, c->prompt, (int)m->opt->prompt, m->logits, 1, progress_watch,
                          &m->bar, err);
        if (rc < 0) return rc;
        m->bar.done += (uint64_t)m->opt->prompt;
        c->id = session_likeliest(c->s, m->logits);
        c->hash = (uint32_t)c->id;
    }
    return rc;
}

/* One run: prompts, a warm-up, then the tokens that are timed. Returns tok/s. */
static int run_once(double *rate, double *last_ms, bench *m, int n, int most, int tokens,
                    err_ctx *err)
{
    const uint64_t begun = clock_ns();
    int rc = take_prompts(m, n, err);
    *last_ms = (double)(clock_ns() - begun) * 1e-6;
    for (int t = 0; t < WARM_TOKENS && rc == 0; t++) rc = step(m, n, most, err);
    runner_reset_counts(session_runner(m->of[0].s));
    const uint64_t start = clock_ns();
    for (int t = 0; t < tokens && rc == 0; t++) {
        const uint64_t from = clock_ns();
        rc = step(m, n, most, err);
        m->pass_s[t] = clock_since(from);
    }
    *rate = (double)n * tokens / clock_since(start);
    m->counted = runner_perf(session_runner(m->of[0].s));
    return rc;
}

/* Whether the conversations have drawn the tokens of their first run. */
static bool is_same(bench *m, int n)
{
    bool same = true;
    for (int i = 0; i < n; i++) {
        conversation *c = &m->of[i];
        if (!c->known) c->first = c->hash;
        c->known = true;
        same &= c->first == c->hash;
    }
    return same;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(bool *same, bench *m, int n, err_ctx *err)
{
    const int tokens = (int)m->opt->tokens, runs = (int)m->opt->runs;
    const int most = runner_most_taken(session_runner(m->of[0].s));
    double ignored, turn_ms;
    progress_begin_tokens(&m->bar, "measuring", (uint64_t)n * (2 * (uint64_t)runs + 1) *
                          ((uint64_t)m->opt->prompt + WARM_TOKENS + (uint64_t)tokens));
    int rc = run_once(&ignored, &ignored, m, n, most, tokens, err);      /* warms up */
    *same = rc == 0 && is_same(m, n);
    for (int r = 0; r < runs && rc == 0 && *same; r++) {
        rc = run_once(&m->turns[r], &turn_ms, m, n, 1, tokens, err);
        *same = rc == 0 && is_same(m, n);
        if (rc == 0) rc = run_once(&m->together[r], &m->last_ms[r], m, n, most, tokens, err);
        *same = *same && rc == 0 && is_same(m, n);
    }
    progress_end(&m->bar);
    qsort(m->pass_s, (size_t)tokens, sizeof *m->pass_s, by_size);
    m->p50_ms = 1e3 * m->pass_s[tokens / 2];
    m->p99_ms = 1e3 * m->pass_s[tokens * 99 / 100];
    return rc;
}

/* ---- what passes read ------------------------------------------------------------------------ */

/* Experts of a joint pass; NAN: a GPU computes, and does not count them. */
static double experts_read(const bench *m)
{
    if (engine_gpu_name(m->b.l.e)[0]) return NAN;
    return (double)m->counted.read_experts / (double)m->counted.passes;
}

/* The speed as a share of that at which the links carry what passes read; NAN: unknown. */
static double of_limit(const bench *m, double rate)
{
    const perf_counts *c = &m->counted;
    const speeds *s = &m->b.l.where->p.rate;
    model_bytes bytes;
    if (!m->b.l.where->measured || isnan(experts_read(m))) return NAN;
    model_count_bytes(&bytes, m->b.l.m);
    const double pass_s = (double)bytes.token_dense / s->cpu_dense +
                          (double)c->cpu_bytes / (double)c->passes / s->cpu;
    return rate * pass_s * (double)c->passes / (double)c->tokens;
}

/* ---- output ---------------------------------------------------------------------------------- */

static json_t *real(double v) { return isnan(v) ? json_null() : json_real(v); }

static int report(const bench *m, int n)
{
    const int runs = (int)m->opt->runs;
    const spread together = spread_of(m->together, runs), turns = spread_of(m->turns, runs);
    const spread last = spread_of(m->last_ms, runs);
    const double experts = experts_read(m), limit = of_limit(m, together.median);
    char shown[1024], n_read[16] = "-", share[16] = "-";
    if (!m->opt->json) {
        if (n == m->counts.of[0])
            printf("sessions  together      each  in turns   gain   p50 ms   p99 ms  last ms  "
                   "experts  limit\n");
        if (!isnan(experts)) snprintf(n_read, sizeof n_read, "%.1f", experts);
        if (!isnan(limit)) snprintf(share, sizeof share, "%.0f%%", 100 * limit);
        printf("%8d %9.1f %9.1f %9.1f %5.2fx %8.2f %8.2f %8.1f %8s %6s\n", n, together.median,
               together.median / n, turns.median, together.median / turns.median, m->p50_ms,
               m->p99_ms, last.median, n_read, share);
        fflush(stdout);
        return 0;
    }
    json_t *row = json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:f, s:f, s:f, s:o, s:o}",
                            "model", ESC(shown, str_from(m->b.l.path)), "sessions", n,
                            "prompt", (int)m->opt->prompt, "tokens", (int)m->opt->tokens,
                            "together_tok_s", spread_json(&together, m->together),
                            "turns_tok_s", spread_json(&turns, m->turns),
                            "p50_ms", m->p50_ms, "p99_ms", m->p99_ms, "last_ms", last.median,
                            "experts_per_pass", real(experts),
                            "of_limit", real(limit));
    return console_report(row, REPORT_FLAGS, "");
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int measure_all(bench *m)
{
    for (int i = 0; i < m->counts.n; i++) {
        const int n = m->counts.of[i];
        bool same = false;
        err_ctx err;
        const int rc = measure(&same, m, n, &err);
        if (rc < 0) return bench_model_fail(m->b.l.path, rc, &err);
        if (!same) {
            console_error("%s: a conversation of %d drew other tokens than before", m->b.l.path, n);
            return 1;
        }
        if (report(m, n) != 0) return 1;
    }
    return console_finish();
}

/* 0, or the exit code after one line. */
static int open_sessions(bench *m, int n)
{
    const int n_prompt = (int)m->opt->prompt, n_vocab = m->b.l.m->hp.n_vocab;
    const int64_t need = m->opt->prompt + WARM_TOKENS + m->opt->tokens;
    const sampler_options likeliest = { .temperature = 0, .top_p = 1, .repeat_penalty = 1 };
    err_ctx err;
    int rc;
    if (need > m->b.ctx_limit) {
        console_error("%" PRId64 " tokens are more than the context of %d", need, m->b.ctx_limit);
        return 1;
    }
    m->b.so.n_sharing = n - 1;
    if ((rc = bench_model_session(&m->of[0].s, &m->b, (int)need)) != 0) return rc;
    rc = sampler_create(&m->likeliest, &likeliest, n_vocab, (int)need, &err);
    for (int i = 1; i < n && rc == 0; i++)
        rc = session_create_sharing(&m->of[i].s, session_runner(m->of[0].s), &err);
    if (rc < 0) return bench_model_fail(m->b.l.path, rc, &err);
    m->logits = mem_array((size_t)n_vocab, sizeof *m->logits);
    m->pass_s = mem_array((size_t)m->opt->tokens, sizeof *m->pass_s);
    bool complete = m->logits && m->pass_s;
    for (int i = 0; i < n; i++) {
        m->of[i].prompt = mem_array((size_t)n_prompt, sizeof *m->of[i].prompt);
        complete &= m->of[i].prompt != NULL;
        if (m->of[i].prompt) bench_model_prompt(m->of[i].prompt, i, n_prompt, n_vocab);
    }
    if (!complete) console_error("out of memory for %d conversations", n);
    return !complete;
}

int cmd_bench_batch(int argc, char **argv)
{
    static bench m;
    batch_options opt = { .run.engine = { .kv = "f16", .device = "auto" },
                          .sessions = "1,2,4,8,16,32", .prompt = 64, .tokens = 64, .runs = 3 };
    int rc, most = 0;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    m.opt = &opt;
    if ((rc = bench_read_counts(&m.counts, "--sessions", opt.sessions, 1, MOST_SESSIONS)) != 0)
        return rc;
    for (int i = 0; i < m.counts.n; i++) most = max_int(most, m.counts.of[i]);
    rc = bench_model_open(&m.b, &opt.run);
    if (rc == 0) rc = open_sessions(&m, most);
    if (rc == 0) rc = measure_all(&m);
    for (int i = MOST_SESSIONS; i-- > 0;) {
        session_free(m.of[i].s);
        mem_free(m.of[i].prompt);
    }
    sampler_free(m.likeliest);
    mem_free(m.logits);
    mem_free(m.pass_s);
    bench_model_close(&m.b);
    return rc;
}
