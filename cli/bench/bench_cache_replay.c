/* bench_cache_replay.c - moe-bench cache replay: a trace of routing against caches of several
 * sizes.
 *
 * No weight is read. Speeds come from cli/placement.h, as plans take them, if the model is named:
 * they were measured with its shapes. Without it they are assumed, and the table says so. */
#include "cli/commands.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/bench/cache_plot.h"
#include "cli/console.h"
#include "cli/engine_args.h"
#include "cli/interrupt.h"
#include "cli/model_handle.h"
#include "cli/sink.h"

typedef struct replay_options {
    const char *model, *sizes, *policy, *mode, *csv, *svg;
    int64_t uploads;
    bool measure, json;
    engine_args engine;                  /* threads and device */
} replay_options;

#define FIELD(f) offsetof(replay_options, f)
static const arg_option options[] = {
    { "sizes", 0, ARG_TEXT, FIELD(sizes), "LIST", NULL, 0, 0,
      "Sizes in percent of all experts. Default: 5,10,25,50,75,90" },
    { "policy", 0, ARG_TEXT, FIELD(policy), "LIST", NULL, 0, 0,
      "Of lru, lfu, lfru, lcp, fade, best and fixed. Default: all" },
    { "mode", 0, ARG_TEXT, FIELD(mode), "NAME", NULL, 0, 0,
      "vram: replaced between tokens; ram: on demand; both. Default: vram" },
    { "uploads", 0, ARG_INT, FIELD(uploads), "N", NULL, 0, INT_MAX,
      "vram: most experts that come in after a token. Default: 8" },
    { "csv", 0, ARG_TEXT, FIELD(csv), "FILE", NULL, 0, 0,
      "All figures as lines of numbers; - for stdout instead of the table" },
    { "svg", 0, ARG_TEXT, FIELD(svg), "FILE", NULL, 0, 0,
      "Hit rates as a picture; - for stdout instead of the table" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0, "One JSON object on stdout" },
    { "model", 'm', ARG_TEXT, FIELD(model), "FILE", NULL, 0, 0,
      "The model of the trace: then tok/s are by this machine's speeds" },
    { "measure", 0, ARG_FLAG, FIELD(measure), NULL, NULL, 0, 0,
      "With -m: measure these first, and remember them" },
    { "threads", 't', ARG_THREADS, FIELD(engine.threads), "N", "MOE_THREADS", 0, 0,
      "With -m: speeds of so many threads. Default: one per physical core" },
    { "device", 0, ARG_TEXT, FIELD(engine.device), "NAME", "MOE_DEVICE", 0, 0,
      "With -m: cpu, cuda, or auto: the GPU if there is one. Default: auto" },
};

static const arg_spec spec = {
    .usage = "moe-bench cache replay TRACE [options]",
    .about = "Replays a trace of moe-bench cache record for caches of several sizes, with each "
             "policy.\nThe prompt warms the cache; the tokens after it count.",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 1, .max_operands = 1, .operands = "TRACE",
    .epilogue = "vram      VRAM before RAM: a token's missing experts are computed by the CPU, and "
                "after it those come\n          in that are worth more than what must go\n"
                "ram       RAM before a drive: a missing expert is read, and takes a place\n"
                "best      the most hits that any policy could have (not the most whole layers): "
                "it knows the tokens\n          to come, and no limit of uploads\n"
                "fixed     the first layers' experts for good, as plans do without a cache\n"
                "tok/s     from bytes and speeds, as plans expect it; what comes in shares the bus",
};

typedef struct job {
    const replay_options *opt;
    routing_trace *trace;
    replay *r;
    cache_table table;
    speeds rate;
} job;

/* ---- lists ----------------------------------------------------------------------------------- */

/* The next word of a list, cut to fit; false at its end. */
static bool next_word(char word[32], const char **list)
{
    if (!*list) return false;
    const size_t n = strcspn(*list, ",");
    snprintf(word, 32, "%.*s", (int)(n < 31 ? n : 31), *list);
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return true;
}

/* 0, or 2 after one line. */
static int read_policies(bool rule[REPLAY_RULES], const char *list)
{
    char word[32], shown[64];
    for (int i = 0; i < REPLAY_RULES; i++) rule[i] = !list;
    while (next_word(word, &list)) {
        int i = 0;
        while (i < REPLAY_RULES && strcmp(word, replay_rule_name(i)) != 0) i++;
        if (i == REPLAY_RULES && strcmp(word, "all") != 0) {
            console_error("--policy: '%s' is none of lru, lfu, lfru, lcp, fade, best, fixed and "
                          "all", ESC(shown, str_from(word)));
            return 2;
        }
        for (int j = 0; j < REPLAY_RULES; j++) rule[j] |= i == j || i == REPLAY_RULES;
    }
    return 0;
}

static int read_mode(bool mode[REPLAY_MODES], const char *name)
{
    char shown[64];
    const bool both = !strcmp(name, "both");
    for (int m = 0; m < REPLAY_MODES; m++)
        mode[m] = both || !strcmp(name, replay_mode_name((replay_mode)m));
    if (mode[REPLAY_VRAM] || mode[REPLAY_RAM]) return 0;
    console_error("--mode: '%s' is none of vram, ram and both", ESC(shown, str_from(name)));
    return 2;
}

enum { MOST_SIZES = CACHE_VIEW_SIZES - 1 };

static int read_sizes(double percent[MOST_SIZES], int *n, const char *list)
{
    char word[32], shown[64];
    for (*n = 0; next_word(word, &list); ++*n) {
        char *end;
        const double v = strtod(word, &end);
        if (end == word || *end || !(v > 0 && v <= 100)) {
            console_error("--sizes: '%s' is not a percentage above 0, up to 100",
                          ESC(shown, str_from(word)));
            return 2;
        }
        if (*n == MOST_SIZES) {
            console_error("--sizes: more than %d", MOST_SIZES);
            return 2;
        }
        percent[*n] = v;
    }
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const cache_column *x = a, *y = b;
    if (x->percent != y->percent) return x->percent < y->percent ? -1 : 1;
    return y->one_token - x->one_token;
}

/* Ascending, each once, with that of one token. */
static void make_columns(job *j, const double *percent, int n)
{
    cache_table *t = &j->table;
    int kept = 0;
    t->all_bytes = replay_all_bytes(j->r);
    for (int i = 0; i < n; i++)
        t->sizes[i] = (cache_column){ .size = replay_share(j->r, percent[i] / 100),
                                      .percent = percent[i] };
    const replay_size one = replay_one_token(j->r);
    t->sizes[n] = (cache_column){ one, 100.0 * (double)one.bytes / (double)t->all_bytes, true };
    qsort(t->sizes, (size_t)n + 1, sizeof *t->sizes, by_size);
    for (int i = 0; i <= n; i++)
        if (i == 0 || t->sizes[i].percent != t->sizes[kept - 1].percent)
            t->sizes[kept++] = t->sizes[i];
    t->n_size = kept;
}

/* ---- speeds ---------------------------------------------------------------------------------- */

/* Takes over what was measured, assumes the rest, and notes which is which. */
static void take_speeds(job *j, const placement *p)
{
    cache_table *t = &j->table;
    const speeds *s = p ? &p->in.machine.rate : &(speeds){ 0 };
    t->gpu_measured = s->vram_read > 0;
    t->cpu_measured = s->cpu > 0;
    t->disk_measured = s->disk > 0;
    j->rate = speeds_assume(s);
    for (int mode = 0; mode < REPLAY_MODES; mode++) {
        char *text = t->speeds[mode];
        const char *lacks = mode == REPLAY_VRAM && !t->gpu_measured
                                ? ", those of a GPU and its bus assumed"
                            : mode == REPLAY_RAM && !t->disk_measured
                                ? ", that of the drive assumed" : "";
        if (t->cpu_measured)
            snprintf(text, sizeof t->speeds[mode], "this machine's speeds%s", lacks);
        else
            snprintf(text, sizeof t->speeds[mode], "assumed speeds%s",
                     p ? ": --measure measures this machine" : ": -m MODEL takes this machine's");
    }
}

static int ask_machine(placement *p, model_handle *l, const job *j, const load_options *load,
                       session_options *so, err_ctx *err)
{
    int rc = model_handle_open(l, load, err);
    if (rc < 0) return rc;
    if (model_fingerprint(l->m) != j->trace->model.fingerprint)
        return err_set(err, ERR_RANGE, "not the model of %s", j->table.path);
    so->ctx = min_int(8192, l->m->hp.ctx_train);
    return placement_make(p, l->m, load->where.measure ? l->e : NULL, &load->where, so, err);
}

/* 0, or the exit code after one line. */
static int know_speeds(job *j)
{
    const replay_options *opt = j->opt;
    load_options load = { .path = opt->model, .where.measure = opt->measure };
    session_options so;
    model_handle l = { 0 };
    err_ctx err;
    int code;
    if (!opt->model) {
        take_speeds(j, NULL);
        return 0;
    }
    code = engine_args_read(&load.where.engine, &so, &load.where.device, &opt->engine);
    if (code != 0) return code;
    load.where.wish = (plan_wish){ .vram = UINT64_MAX, .ram = UINT64_MAX };
    placement *p = mem_zalloc(sizeof *p);
    if (!p) {
        console_error("out of memory: %zu bytes", sizeof *p);
        return 1;
    }
    if (ask_machine(p, &l, j, &load, &so, &err) < 0) code = model_handle_fail(opt->model, &err);
    else take_speeds(j, p);
    model_handle_close(&l);
    mem_free(p);
    return code;
}

/* ---- replaying, writing ---------------------------------------------------------------------- */

static int run_all(job *j, err_ctx *err)
{
    cache_table *t = &j->table;
    for (int mode = 0; mode < REPLAY_MODES; mode++)
        for (int s = 0; s < t->n_size; s++)
            for (int rule = 0; rule < REPLAY_RULES; rule++) {
                if (!cache_has(t, (replay_mode)mode, rule)) continue;
                if (interrupted()) return err_set(err, ERR_STOPPED, "interrupted");
                console_status("replaying %s, %.1f%%, %s...", replay_mode_name((replay_mode)mode),
                               t->sizes[s].percent, replay_rule_name(rule));
                const int rc = replay_run(&t->at[mode][s][rule], j->r, (replay_mode)mode, rule,
                                          &t->sizes[s].size, t->n_upload, &j->rate, err);
                if (rc < 0) return rc;
            }
    return 0;
}

typedef void write_fn(textbuf *b, const cache_table *t);

/* 0, or the exit code after one line. */
static int write_file(const char *path, write_fn *fn, const cache_table *t)
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
    const replay_options *opt = j->opt;
    int code = 0;
    if (opt->csv) code = write_file(opt->csv, cache_csv, &j->table);
    if (opt->svg && code == 0) code = write_file(opt->svg, cache_plot, &j->table);
    if (code != 0) return code;
    if (opt->json && !cache_print_json(&j->table)) {
        console_error("out of memory for the answer");
        return 1;
    }
    if (!opt->json && !sink_is_stdout(opt->csv) && !sink_is_stdout(opt->svg)) cache_print(&j->table);
    return console_finish();
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int check_usage(const replay_options *opt)
{
    if (sink_is_stdout(opt->csv) + sink_is_stdout(opt->svg) + opt->json > 1) {
        console_error("only one of --csv -, --svg - and --json can write to standard output");
        return 2;
    }
    if (opt->measure && !opt->model) {
        console_error("--measure needs the model, whose shapes are measured with: -m FILE");
        return 2;
    }
    return 0;
}

static int run(job *j, const double *percent, int n_percent)
{
    err_ctx err;
    int code;
    if (routing_trace_load(&j->trace, j->table.path, &err) < 0 ||
        replay_create(&j->r, j->trace, &err) < 0)
        return console_fail(j->table.path, &err);
    j->table.trace = j->trace;
    interrupt_install();
    if ((code = know_speeds(j)) != 0) return code;
    make_columns(j, percent, n_percent);
    const int rc = run_all(j, &err);
    console_status_clear();
    return rc < 0 ? model_handle_fail(j->table.path, &err) : report(j);
}

int cmd_bench_cache_replay(int argc, char **argv)
{
    replay_options opt = { .sizes = "5,10,25,50,75,90", .mode = "vram", .uploads = 8 };
    double percent[MOST_SIZES];
    const char *path = NULL;
    int code, n_percent;

    engine_args_init(&opt.engine);
    code = args_parse(&spec, &opt, &path, NULL, argc, argv);
    if (code != ARGS_RUN) return code == ARGS_HELP ? console_finish() : 2;
    job *j = mem_zalloc(sizeof *j);      /* the table is large */
    if (!j) {
        console_error("out of memory: %zu bytes", sizeof *j);
        return 1;
    }
    j->opt = &opt;
    j->table.path = path;
    j->table.n_upload = (int)opt.uploads;
    if ((code = check_usage(&opt)) == 0 &&
        (code = read_sizes(percent, &n_percent, opt.sizes)) == 0 &&
        (code = read_mode(j->table.mode, opt.mode)) == 0 &&
        (code = read_policies(j->table.rule, opt.policy)) == 0)
        code = run(j, percent, n_percent);
    replay_free(j->r);
    routing_trace_free(j->trace);
    mem_free(j);
    return code;
}
