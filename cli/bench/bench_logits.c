/* bench_logits.c - moe-bench logits: token ids in, logits out, for comparison with other programs.
 *
 * Rows are written after each range of a few chunks, so memory does not depend on the length of a
 * sequence. Ranges end at chunks, so they do not change the batches and thus not the logits. Each
 * sequence begins with an empty session. */
#include "cli/commands.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/cost/logit_stats.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "engine/session/runner.h"

/* Logits in memory at a time; a chunk of the default size with 200,000 tokens fits. */
enum { RANGE_BYTES = 256 << 20 };

typedef struct logits_options {
    bench_model_args run;
    const char *ids, *output;
    int64_t last;
    bool decode, nll, json, mtp;
} logits_options;

static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, offsetof(logits_options, run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one" },
    { "ids", 'i', ARG_NEEDED_TEXT, offsetof(logits_options, ids), "FILE", NULL, 0, 0,
      "Token ids, one sequence per line, separated by blanks or commas; - for stdin" },
    { "output", 'o', ARG_TEXT, offsetof(logits_options, output), "FILE", NULL, 0, 0,
      "Output file of rows of little-endian float32; - for stdout" },
    { "last", 0, ARG_INT, offsetof(logits_options, last), "N", NULL, 1, INT32_MAX,
      "Only the last N positions of each sequence. Default: all" },
    { "decode", 0, ARG_FLAG, offsetof(logits_options, decode), NULL, NULL, 0, 0,
      "Feed one token at a time" },
    { "mtp", 0, ARG_FLAG, offsetof(logits_options, mtp), NULL, NULL, 0, 0,
      "Logits of the next-token block: one row less, of each token and the one after it" },
    { "nll", 0, ARG_FLAG, offsetof(logits_options, nll), NULL, NULL, 0, 0,
      "Print the mean negative log-likelihood; -o is optional then" },
    { "kv", 0, ARG_TEXT, offsetof(logits_options, run.engine.kv), "TYPE", NULL, 0, 0,
      "How keys and values are stored: f32, f16 or q8_0. Default: f32" },
    { "json", 0, ARG_FLAG, offsetof(logits_options, json), NULL, NULL, 0, 0,
      "One JSON object on stdout" },
};

static const arg_group groups[] = {
    { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, offsetof(logits_options, run) },
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(logits_options, run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench logits [-m] FILE --ids FILE -o OUT.f32 [options]",
    .about = "Feeds sequences of token ids to a model and writes a row of logits per position.\n"
             "--nll: mean negative log-likelihood of each sequence's tokens from its second on, in "
             "nats.",
    .options = options, .n_option = ARRAY_LEN(options),
    .groups = groups, .n_group = ARRAY_LEN(groups),
};

/* ---- sequences ------------------------------------------------------------------------------- */

typedef struct sequence {
    int32_t *ids;                        /* into sequences.ids */
    int n, line;
    int rows;                            /* number of requested logits, at the end */
    double nll_sum;                      /* over n - 1 tokens, if all rows are requested */
} sequence;

typedef struct sequences {
    const char *path;
    int32_t *ids;
    sequence *seq;
    int n, longest, most_rows;
    int bad_line;                        /* the line that a message is about; 0: none */
    uint64_t n_id, n_row, n_predicted;
} sequences;

static void sequences_free(sequences *s)
{
    mem_free(s->ids);
    mem_free(s->seq);
}

/* Blanks and commas separate ids. Brackets are accepted, because moe-run tokenize prints them. */
static bool parts_ids(char c)
{
    return c != '\0' && strchr(" \t\r,[]", c) != NULL;
}

/* Reads the ids of one line, which ends at end. Returns their number, or < 0. */
static int read_line(int32_t *ids, const char *p, const char *end, err_ctx *err)
{
    int n = 0;

    while (p < end) {
        const char *begin = p;
        int64_t id = 0;
        char shown[48];
        if (parts_ids(*p)) {
            p++;
            continue;
        }
        while (p < end && *p >= '0' && *p <= '9') {
            if (id <= INT32_MAX) id = id * 10 + (*p - '0');
            p++;
        }
        if ((p < end && !parts_ids(*p)) || id > INT32_MAX) {
            while (p < end && !parts_ids(*p)) p++;
            const str_view word = { begin, (size_t)(p - begin) };
            return err_set(err, ERR_FORMAT, "'%s' is not a token id", ESC(shown, word));
        }
        ids[n++] = (int32_t)id;
    }
    return n;
}

/* Splits the text into sequences. Each id has at least a digit and a separator. */
static int sequences_read(sequences *s, str_view text, err_ctx *err)
{
    const char *p = text.ptr, *const end = text.ptr + text.len;
    size_t n_line = 1;

    if (text.len / 2 >= INT_MAX) return err_set(err, ERR_RANGE, "%zu bytes of ids", text.len);
    for (const char *c = p; c < end; c++) n_line += *c == '\n';
    s->ids = mem_array(text.len / 2 + 1, sizeof *s->ids);
    s->seq = mem_array(n_line, sizeof *s->seq);
    if (!s->ids || !s->seq) return err_set(err, ERR_NOMEM, "no memory for %zu lines", n_line);
    for (int line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        s->bad_line = line;
        const int n = read_line(s->ids + s->n_id, p, stop, err);
        if (n < 0) return n;
        if (n > 0) {
            s->seq[s->n++] = (sequence){ .ids = s->ids + s->n_id, .n = n, .line = line };
            s->n_id += (uint64_t)n;
        }
        p = stop + 1;
    }
    s->bad_line = 0;
    return s->n ? 0 : err_set(err, ERR_FORMAT, "no token ids");
}

/* Checks the ids against vocabulary and context, and sets the requested rows. */
static int sequences_check(sequences *s, int n_vocab, int ctx, const logits_options *opt,
                           err_ctx *err)
{
    for (int i = 0; i < s->n; i++) {
        sequence *q = &s->seq[i];
        s->bad_line = q->line;
        if (q->n > ctx)
            return err_set(err, ERR_RANGE, "%d ids are more than the context of %d", q->n, ctx);
        for (int t = 0; t < q->n; t++)
            if (q->ids[t] >= n_vocab)
                return err_set(err, ERR_RANGE, "id %d is outside the vocabulary of %d", q->ids[t],
                               n_vocab);
        q->rows = q->n - opt->mtp;
        if (opt->last && opt->last < q->rows) q->rows = (int)opt->last;
        if (q->n > s->longest) s->longest = q->n;
        if (q->rows > s->most_rows) s->most_rows = q->rows;
        s->n_row += (uint64_t)q->rows;
        s->n_predicted += (uint64_t)q->n - 1;
    }
    s->bad_line = 0;
    return 0;
}

/* Prints "FILE:LINE: text", which editors can open. */
static int sequences_fail(const sequences *s, const err_ctx *err)
{
    const char *name = strcmp(s->path, "-") == 0 ? "standard input" : s->path;
    char where[PATH_MAX + 16];

    if (!s->bad_line) return console_fail(name, err);
    snprintf(where, sizeof where, "%s:%d", name, s->bad_line);
    return console_fail(where, err);
}

/* ---- computing ------------------------------------------------------------------------------- */

typedef struct logits_run {
    const logits_options *opt;
    session *s;
    output_file out;                     /* file NULL: rows are not stored */
    float *rows;                         /* requested rows of one range, [.., n_vocab] */
    int range;                           /* tokens per session_eval */
    int n_vocab;
    progress bar;
    uint64_t ns;                         /* inside session_eval */
    bool at_output;                      /* the failure concerns the output */
} logits_run;

/* Tokens begin .. begin+n-1 of a sequence, and the last n_row rows of the block's logits. */
static int eval_mtp(logits_run *run, const sequence *q, int begin, int n, int n_row, err_ctx *err)
{
    const int rc = session_eval(run->s, q->ids + begin, n, NULL, 0, progress_watch, &run->bar, err);
    if (rc < 0 || n_row == 0) return rc;
    return runner_mtp_logits(run->s, run->rows, n - (begin == 0) - n_row, n_row, err);
}

/* Evaluates tokens begin .. begin+n-1 of a sequence and writes their requested rows. */
static int run_piece(logits_run *run, sequence *q, int begin, int n, err_ctx *err)
{
    const int first = q->n - q->rows, end = begin + n;       /* requested rows: first .. q->n-1 */
    const int most = n - (run->opt->mtp && begin == 0);
    const int n_row = end <= first ? 0 : end - first < most ? end - first : most;
    const uint64_t start = clock_ns();
    int rc;

    /* session_eval does not watch single tokens */
    if (!progress_watch(&run->bar, 0, n)) return err_set(err, ERR_STOPPED, "stopped");
    rc = run->opt->mtp ? eval_mtp(run, q, begin, n, n_row, err) :
         session_eval(run->s, q->ids + begin, n, run->rows, n_row, progress_watch, &run->bar, err);
    run->ns += clock_ns() - start;
    run->bar.done += (uint64_t)n;
    if (rc < 0) return rc;
    for (int t = begin; !run->opt->last && !run->opt->mtp && t < end && t + 1 < q->n; t++)
        q->nll_sum += logit_stats_nll(run->rows + (size_t)(t - begin) * (size_t)run->n_vocab,
                                      run->n_vocab, q->ids[t + 1]);
    if (!run->out.is_open) return 0;
    rc = output_file_write(&run->out, run->rows,
                           (size_t)n_row * (size_t)run->n_vocab * sizeof *run->rows, err);
    run->at_output = rc < 0;
    return rc;
}

static int run_sequences(logits_run *run, sequences *s, err_ctx *err)
{
    for (int i = 0; i < s->n; i++) {
        sequence *q = &s->seq[i];
        session_rewind(run->s, 0);
        for (int t = 0, n; t < q->n; t += n) {
            n = min_int(q->n - t, run->range);
            if (run->opt->mtp) n = min_int(n, session_first_chunk(run->s, q->n - t));
            const int rc = run_piece(run, q, t, n, err);
            if (rc < 0) return rc;
        }
    }
    return 0;
}

/* Sets the tokens per session_eval and allocates their rows: the longest sequence if its rows fit
 * in RANGE_BYTES, else as many whole chunks as fit, else part of a chunk. */
static int alloc_rows(logits_run *run, const sequences *s, int chunk, err_ctx *err)
{
    const size_t row_bytes = (size_t)run->n_vocab * sizeof *run->rows;
    const int fit = RANGE_BYTES / row_bytes > 0 ? (int)(RANGE_BYTES / row_bytes) : 1;
    int n_row = s->most_rows;

    run->range = run->opt->decode ? 1 : run->opt->mtp ? chunk : s->longest;
    if (n_row > fit && !run->opt->decode) run->range = fit >= chunk ? fit - fit % chunk : fit;
    if (n_row > run->range) n_row = run->range;
    if ((run->rows = mem_array((size_t)n_row, row_bytes))) return 0;
    return err_set(err, ERR_NOMEM, "no memory for %d rows of %d logits", n_row, run->n_vocab);
}

static int run_all(logits_run *run, sequences *s, const bench_model *b, err_ctx *err)
{
    const char *path = run->opt->output;
    int rc;

    run->n_vocab = b->l.m->hp.n_vocab;
    if ((rc = alloc_rows(run, s, session_chunk(run->s), err)) < 0) return rc;
    if (path && (rc = output_file_open(&run->out, path, err)) < 0) {
        run->at_output = true;
        return rc;
    }
    progress_begin_tokens(&run->bar, "logits", s->n_id);
    rc = run_sequences(run, s, err);
    progress_end(&run->bar);
    if (rc == 0 && path) run->at_output = (rc = output_file_finish(&run->out, err)) < 0;
    return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static double mean_nll(const sequences *s)
{
    double sum = 0;
    for (int i = 0; i < s->n; i++) sum += s->seq[i].nll_sum;
    return s->n_predicted ? sum / (double)s->n_predicted : 0;
}

static void print_nll(const sequences *s)
{
    char count[32];
    printf("sequence    tokens         nll\n");
    for (int i = 0; i < s->n; i++) {
        const sequence *q = &s->seq[i];
        if (q->n > 1) printf("%8d %9d %11.6f\n", i + 1, q->n, q->nll_sum / (q->n - 1));
        else printf("%8d %9d %11s\n", i + 1, q->n, "-");
    }
    printf("all %14s ", text_count(count, sizeof count, s->n_id));
    if (s->n_predicted) printf("%11.6f\n", mean_nll(s));
    else printf("%11s\n", "-");
}

static json_t *sequence_json(const sequence *q, bool with_nll)
{
    json_t *row = json_pack("{s:i, s:i}", "tokens", q->n, "rows", q->rows);
    if (row && with_nll && q->n > 1)
        json_object_set_new(row, "nll", json_real(q->nll_sum / (q->n - 1)));
    return row;
}

static int print_json(const sequences *s, const logits_run *run, const bench_model *b, double rate)
{
    const bool with_nll = !run->opt->last && !run->opt->mtp && s->n_predicted;
    json_t *list = json_array(), *row;
    char shown[1024];

    for (int i = 0; i < s->n; i++)
        json_array_append_new(list, sequence_json(&s->seq[i], with_nll));
    row = json_pack("{s:s, s:i, s:s, s:i, s:I, s:I, s:f, s:f, s:o}",
                    "model", ESC(shown, str_from(b->l.path)),
                    "threads", engine_threads(b->l.e), "kernels", engine_kernels(b->l.e),
                    "vocabulary", run->n_vocab, "tokens", (json_int_t)s->n_id,
                    "rows", (json_int_t)s->n_row, "seconds", (double)run->ns * 1e-9,
                    "tok_s", rate, "sequences", list);
    if (row && with_nll) json_object_set_new(row, "nll", json_real(mean_nll(s)));
    return console_report(row, JSON_COMPACT | JSON_REAL_PRECISION(9), "");
}

static int report(const sequences *s, const logits_run *run, const bench_model *b)
{
    const double rate = (double)s->n_id * 1e9 / (double)(run->ns ? run->ns : 1);
    char rows[32], nll[48] = "";

    if (!run->opt->last && !run->opt->mtp && s->n_predicted)
        snprintf(nll, sizeof nll, ", nll %.4f", mean_nll(s));
    console_note("%d sequence%s, %s row%s, %.2f s, %.1f tok/s%s", s->n, s->n == 1 ? "" : "s",
                 text_count(rows, sizeof rows, s->n_row), s->n_row == 1 ? "" : "s",
                 (double)run->ns * 1e-9, rate, nll);
    if (run->opt->json && print_json(s, run, b, rate) != 0) return 1;
    if (run->opt->nll && !run->opt->json) print_nll(s);
    return console_finish();
}

static int check_usage(const logits_options *opt)
{
    const bool to_stdout = opt->output && strcmp(opt->output, "-") == 0;
    if (!opt->output && !opt->nll) {
        console_error("-o FILE missing (usage: %s)", spec.usage);
        return 2;
    }
    if (opt->nll && opt->mtp) {
        console_error("--nll is of the model's own logits, --mtp of the next-token block's");
        return 2;
    }
    if (opt->nll && opt->last) {
        console_error("--nll needs the logits of all positions, not of the --last %d",
                      (int)opt->last);
        return 2;
    }
    if (to_stdout && (opt->nll || opt->json)) {
        console_error("-o - and %s both write to standard output", opt->nll ? "--nll" : "--json");
        return 2;
    }
    return 0;
}

static int run_model(const logits_options *opt, sequences *s, bench_model *b)
{
    logits_run run = { .opt = opt };
    err_ctx err;
    int rc = bench_model_open(b, &opt->run);

    if (rc) return rc;
    if (sequences_check(s, b->l.m->hp.n_vocab, b->ctx_limit, opt, &err) < 0)
        return sequences_fail(s, &err);
    if ((rc = bench_model_session(&run.s, b, s->longest)) != 0) return rc;
    if (opt->mtp && !runner_guesses(session_runner(run.s)))
        rc = err_set(&err, ERR_UNSUPPORTED, "--mtp: the file has no next-token block, or memory is "
                     "too short for it");
    if (rc == 0) rc = run_all(&run, s, b, &err);
    output_file_drop(&run.out);
    if (rc == ERR_STOPPED && run.at_output) rc = interrupt_exit_code();
    else if (rc < 0)
        rc = bench_model_fail(run.at_output ? output_file_name(opt->output) : b->l.path, rc, &err);
    else rc = report(s, &run, b);
    mem_free(run.rows);
    session_free(run.s);
    return rc;
}

int cmd_bench_logits(int argc, char **argv)
{
    logits_options opt = { .run.engine.kv = "f32" };
    sequences s = { 0 };
    bench_model b = { 0 };
    char *text = NULL;
    size_t len;
    err_ctx err;
    int rc;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((rc = check_usage(&opt)) != 0) return rc;
    s.path = opt.ids;
    if (opt.mtp) opt.run.engine.drafts = "on";
    rc = read_whole_file(&text, &len, s.path, &err);
    if (rc == 0) rc = sequences_read(&s, (str_view){ text, len }, &err);
    mem_free(text);
    rc = rc < 0 ? sequences_fail(&s, &err) : run_model(&opt, &s, &b);
    bench_model_close(&b);
    sequences_free(&s);
    return rc;
}
