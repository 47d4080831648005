/* bench_tiers.c - moe-bench tiers: the speed of a model with several budgets of VRAM and RAM.
 *
 * For each budget the verb plans, places, runs and closes the model. Every row does the same work
 * (the same random prompt into an empty session, then greedy tokens). Decoding is bit-identical
 * with all budgets, so after a prompt of up to eight tokens all rows have the same tokens. CPU and
 * tensor cores round longer prompts differently; the output names rows whose tokens differ. Runs
 * with and without post-fetch alternate, because a machine's speed drifts. An impossible budget has
 * the reason in its row. Loading is not measured. */
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench_lists.h"
#include "cli/bench/bench_model.h"
#include "cli/bench/tiers_view.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/interrupt.h"
#include "engine/session/runner.h"

enum {
    MOST_SIZES = 16,                     /* of a list */
    WARM_PROMPT = 32, WARM_DECODE = 4,
    WARM_CACHE = 40,                     /* with experts on the drive: fills the cache in RAM */
    WARM_TRIAL = 256                     /* where they are fetched: the tuner has had time for its
                                          * trials */
};
#define MB 1000000u

typedef struct tiers_options {
    bench_model_args run;
    const char *vram, *ram;              /* lists */
    int64_t prompt, tokens, runs;
    bool json;
} tiers_options;

#define FIELD(f) offsetof(tiers_options, f)
static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, FIELD(run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one. Default: the demo model" },
    { "vram", 0, ARG_TEXT, FIELD(vram), "LIST", NULL, 0, 0,
      "VRAM budgets, e.g. none,4G,8G,all. none: no experts. Default: none, 1/4, 1/2, all experts" },
    { "ram", 0, ARG_TEXT, FIELD(ram), "LIST", NULL, 0, 0,
      "RAM budgets, e.g. 16G,all. Default: all; without a GPU also 1/2 and 1/4 of FILE" },
    { "prompt", 'p', ARG_INT, FIELD(prompt), "N", NULL, 1, INT32_MAX,
      "Tokens of the prompt. Default: 512" },
    { "tokens", 'n', ARG_INT, FIELD(tokens), "N", NULL, 1, INT32_MAX,
      "Tokens to generate after the prompt. Default: 64" },
    { "runs", 'r', ARG_INT, FIELD(runs), "N", NULL, 1, TIERS_MOST_RUNS,
      "Number of measurements; the result is their median. Default: 3" },
    { "ctx", 'c', ARG_INT, FIELD(run.engine.ctx), "N", NULL, 1, INT32_MAX,
      "Context in tokens, at most the model's. Default: as many as it takes" },
    { "kv", 0, ARG_TEXT, FIELD(run.engine.kv), "TYPE", NULL, 0, 0,
      "How keys and values are stored: f32, f16 or q8_0. Default: f16" },
    { "postfetch", 0, ARG_TEXT, FIELD(run.tiers.postfetch), "MODE", "MOE_POSTFETCH_ENABLE", 0, 0,
      "on, off, auto, or both: auto and off alternate. Default: auto" },
    { "cache-policy", 0, ARG_TEXT, FIELD(run.tiers.cache), "NAME", TIER_CACHE_ENV, 0, 0,
      TIER_CACHE_HELP },
    { "device", 0, ARG_TEXT, FIELD(run.engine.device), "NAME", "MOE_DEVICE", 0, 0,
      "cpu, cuda, or auto: the GPU if there is one. Default: auto" },
    { "threads", 't', ARG_THREADS, FIELD(run.engine.threads), "N", "MOE_THREADS", 0, 0,
      "Threads of the CPU. Default: one per physical core" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0,
      "One JSON object with a list of rows on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-bench tiers [[-m] FILE] [--vram LIST] [--ram LIST] [-p N] [-n N] [-r N] "
             "[options]",
    .about = "Measures a model with several budgets of VRAM and RAM: the tiers of experts, the "
             "speed of\nprompts and tokens, and its share of the limit that the links set.",
    .options = options, .n_option = ARRAY_LEN(options),
    .epilogue = "expected  the plan's speed, which assumes a uniform choice of experts\n"
                "MB        of routed experts read per token: in VRAM, by the CPU, over the bus, "
                "from the drive\n"
                "overlap   the share of post-fetch's time while the CPU computed\n"
                "late      the share of fetched matrices that arrived too late, so that the CPU "
                "computed them\n"
                "of limit  the speed as a share of the limit that the links set\n"
                "tokens    a hash of the answer: the same in all rows",
};

typedef struct tiers {
    const tiers_options *opt;
    load_options load;
    session_options so;
    placement *unbounded;                /* machine and model, without budgets */
    tiers_table table;
    int n_vocab;
    int32_t *prompt, *ids;
    float *logits;
    progress bar;
    char label[48];                      /* of the bar */
} tiers;

/* ---- lists of budgets ------------------------------------------------------------------------ */

typedef struct sizes {
    uint64_t bytes[MOST_SIZES];
    int n;
} sizes;

/* 0, or 2 after one line. */
static int read_sizes(sizes *out, const char *flag, const char *list, bool vram)
{
    char word[32], shown[64];
    while (bench_next_word(word, &list)) {
        uint64_t bytes = TIERS_NO_EXPERTS;
        if (out->n == MOST_SIZES) {
            console_error("%s: more than %d sizes", flag, MOST_SIZES);
            return 2;
        }
        if (!strcmp(word, "all")) bytes = TIERS_ALL;
        else if (!(vram && !strcmp(word, "none")) && !arg_parse_size(&bytes, word)) {
            console_error("%s: '%s' is neither a size such as 4G nor all%s", flag,
                          ESC(shown, str_from(word)), vram ? " nor none" : "");
            return 2;
        }
        out->bytes[out->n++] = bytes;
    }
    return 0;
}

/* Whether a plan within w has so many bytes of experts in VRAM, and can stream the others. */
static bool plan_holds(const tiers *t, const plan_wish *w, uint64_t experts)
{
    const planning *in = &t->unbounded->in;
    plan p;
    if (plan_make(&p, &in->machine, &in->model, &in->session, w, NULL) < 0) return false;
    if (!t->table.gpu[0]) return true;
    return p.gpu && p.vram.experts >= experts &&
           (p.stage_ranges > 0 || p.vram.experts == plan_all_experts(&t->unbounded->in.model));
}

/* The least VRAM (with a GPU) or RAM for that, or TIERS_ALL. */
static uint64_t least_budget(const tiers *t, uint64_t experts)
{
    const plan_machine *m = &t->unbounded->in.machine;
    uint64_t low = 0, high = t->table.gpu[0] ? m->vram_free : m->ram_available;
    plan_wish w = { .vram = TIERS_ALL, .ram = TIERS_ALL, .hot_most = TIERS_ALL,
                    .cpu_only = !t->table.gpu[0], .no_postfetch = t->load.where.wish.no_postfetch };
    uint64_t *bound = t->table.gpu[0] ? &w.vram : &w.ram;
    if (!plan_holds(t, &w, experts)) return TIERS_ALL;
    while (high - low > MB) {
        *bound = low + (high - low) / 2;
        if (plan_holds(t, &w, experts)) high = *bound;
        else low = *bound;
    }
    return high;
}

/* The default budgets. */
static void usual_sizes(sizes *vram, sizes *ram, const tiers *t)
{
    const plan_model *m = &t->unbounded->in.model;
    const bool on_gpu = t->table.gpu[0] != '\0';
    if (vram->n == 0) {
        const uint64_t quarter = plan_all_experts(m) / 4;
        uint64_t last = TIERS_ALL;
        if (on_gpu) vram->bytes[vram->n++] = TIERS_NO_EXPERTS;
        for (uint64_t n = 1; on_gpu && n <= 2; n++) {
            const uint64_t bytes = least_budget(t, n * quarter);
            if (bytes != TIERS_ALL && bytes != last) vram->bytes[vram->n++] = last = bytes;
        }
        vram->bytes[vram->n++] = TIERS_ALL;
    }
    if (ram->n > 0) return;
    ram->bytes[ram->n++] = TIERS_ALL;
    for (uint64_t part = 2; !on_gpu && part <= 4; part *= 2)
        ram->bytes[ram->n++] = m->file_bytes / part;
}

static int make_rows(tiers *t, sizes *vram, sizes *ram, err_ctx *err)
{
    if (vram->n > 0 && !t->table.gpu[0]) {
        console_note("no GPU is used: --vram has no effect");
        vram->n = 0;
    }
    usual_sizes(vram, ram, t);
    tiers_row *rows = mem_array((size_t)vram->n * (size_t)ram->n, sizeof *rows);
    if (!rows) return err_set(err, ERR_NOMEM, "out of memory for %d rows", vram->n * ram->n);
    t->table.rows = rows;
    for (int v = 0; v < vram->n; v++)
        for (int r = 0; r < ram->n; r++)
            rows[t->table.n_row++] = (tiers_row){ .vram = vram->bytes[v], .ram = ram->bytes[r] };
    return 0;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* Measures the machine's speeds, which are stored and serve all rows. Only a plan that depends on
 * them measures them, so this one is for the least memory. */
static int know_speeds(const tiers *t, const model_handle *l, err_ctx *err)
{
    placement_options o = t->load.where;
    placement *small;
    int rc;
    if (t->unbounded->measured) return 0;
    small = mem_zalloc(sizeof *small);
    if (!small) return err_set(err, ERR_NOMEM, "out of memory: %zu bytes", sizeof *small);
    if (t->table.gpu[0]) o.wish.vram = least_budget(t, 0);
    else o.wish.ram = least_budget(t, 0);
    rc = placement_make(small, l->m, l->e, &o, &t->so, err);
    mem_free(small);
    return rc == ERR_STOPPED ? rc : 0;   /* the row reports other failures */
}

/* Detects machine and model. Afterwards all rows use the GPU, or no row does. */
static int look_around(tiers *t, const model_handle *l, err_ctx *err)
{
    const int64_t need = t->opt->prompt + t->opt->tokens;
    const int most = t->so.ctx ? t->so.ctx : l->m->hp.ctx_train;
    int rc;
    if (need > most)
        return err_set(err, ERR_RANGE, "%" PRId64 " tokens are more than the context of %d", need,
                       most);
    if (t->so.ctx == 0) t->so.ctx = (int)need;
    t->table.arch = model_arch_name(l->m->hp.arch);
    t->table.n_thread = engine_threads(l->e);
    t->n_vocab = l->m->hp.n_vocab;
    t->table.unbounded = t->unbounded = mem_zalloc(sizeof *t->unbounded);
    if (!t->unbounded)
        return err_set(err, ERR_NOMEM, "out of memory: %zu bytes", sizeof *t->unbounded);
    if ((rc = placement_make(t->unbounded, l->m, NULL, &t->load.where, &t->so, err)) < 0) return rc;
    if (t->unbounded->note[0]) console_note("%s", t->unbounded->note);
    if (t->unbounded->p.gpu) t->table.gpu = t->unbounded->info.name;
    t->load.where.device = t->unbounded->p.gpu ? DEVICE_CUDA : DEVICE_CPU;
    return know_speeds(t, l, err);
}

static int make_buffers(tiers *t, err_ctx *err)
{
    t->prompt = mem_array((size_t)t->opt->prompt, sizeof *t->prompt);
    t->ids = mem_array((size_t)t->opt->tokens, sizeof *t->ids);
    t->logits = mem_array((size_t)t->n_vocab, sizeof *t->logits);
    if (!t->prompt || !t->ids || !t->logits)
        return err_set(err, ERR_NOMEM, "out of memory for %" PRId64 " tokens",
                       t->opt->prompt + t->opt->tokens);
    bench_model_prompt(t->prompt, 0, (int)t->opt->prompt, t->n_vocab);
    return 0;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* The first n_prompt tokens of the prompt; in *id the likeliest token after them. */
static int take_prompt(tiers *t, int32_t *id, session *s, int n_prompt, err_ctx *err)
{
    int rc;
    session_rewind(s, 0);
    rc = session_eval(s, t->prompt, n_prompt, t->logits, 1, progress_watch, &t->bar, err);
    t->bar.done += (uint64_t)n_prompt;
    if (rc == 0) *id = session_likeliest(s, t->logits);
    return rc;
}

static int take_tokens(tiers *t, int32_t id, session *s, int n_token, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < n_token && rc == 0; i++) {
        if (!progress_watch(&t->bar, 0, 1)) return err_set(err, ERR_STOPPED, "stopped");
        rc = session_next(s, &id, id, err);
        if (i < t->opt->tokens) t->ids[i] = id;
        t->bar.done++;
    }
    return rc;
}

static void add_counts(tiers_outcome *o, const session *s)
{
    expert_server_stats c;
    store_stats st;
    runner_counts(session_runner(s), &c, &st);
    o->host.down_fetched += c.down_fetched;
    o->host.late += c.late;
    o->host.cpu_bytes += c.cpu_bytes;
    o->host.pull_bytes += c.pull_bytes;
    o->host.hot_bytes += c.hot_bytes;
    o->host.ask_s += c.ask_s;
    o->host.cpu_s += c.cpu_s;
    o->host.wait_s += c.wait_s;
    o->host.pull_s += c.pull_s;
    o->host.hidden_least_s += c.hidden_least_s;
    o->host.hidden_most_s += c.hidden_most_s;
    o->host.pad_bytes = c.pad_bytes;
    o->host.fetching = c.fetching;
    o->store.hits += st.hits;
    o->store.misses += st.misses;
    o->store.predicted += st.predicted;
    o->store.guesses += st.guesses;
    o->store.read_bytes += st.read_bytes;
    o->store.wait_s += st.wait_s;
}

static int run_once(tiers_outcome *o, tiers *t, session *s, int r, err_ctx *err)
{
    const int p = (int)t->opt->prompt, n = (int)t->opt->tokens;
    uint64_t start = clock_ns(), hash;
    int32_t id;
    int rc = take_prompt(t, &id, s, p, err);
    if (rc < 0) return rc;
    o->prompt[r] = text_rate((uint64_t)p, clock_ns() - start);
    runner_reset_counts(session_runner(s));
    start = clock_ns();
    if ((rc = take_tokens(t, id, s, n, err)) < 0) return rc;
    o->decode[r] = text_rate((uint64_t)n, clock_ns() - start);
    add_counts(o, s);
    hash = str_hash((str_view){ (const char *)t->ids, (size_t)n * sizeof *t->ids });
    o->same = r == 0 || (o->same && hash == o->hash);
    if (r == 0) o->hash = hash;
    return 0;
}

/* Number of tokens for warming up. */
static int warm_tokens(const tiers *t, const plan *p, int n)
{
    if (plan_uses_drive(p, t->unbounded->in.model.n_layer)) return min_int(n, WARM_CACHE);
    return p->gpu && p->vram.pad > 0 ? WARM_TRIAL : min_int(n, WARM_DECODE);
}

static int warm_up(tiers *t, session *s, int n_prompt, int n_token, err_ctx *err)
{
    int32_t id;
    const int rc = take_prompt(t, &id, s, n_prompt, err);
    return rc < 0 ? rc : take_tokens(t, id, s, n_token, err);
}

static bool can_fetch(const session *s)
{
    expert_server_stats c;
    store_stats st;
    runner_counts(session_runner(s), &c, &st);
    return c.pad_bytes > 0;
}

/* off: without post-fetch; filled only if that makes a difference. */
static int measure(tiers_outcome *o, tiers_outcome *off, tiers *t, session *s, err_ctx *err)
{
    const int p = (int)t->opt->prompt, n = (int)t->opt->tokens, runs = (int)t->opt->runs;
    const int warm_p = min_int(p, WARM_PROMPT);
    const int warm_n = min_int(p + n - warm_p, warm_tokens(t, &o->p, n));
    const bool both = t->table.both && can_fetch(s);
    const int warm_off = both ? min_int(warm_n, WARM_DECODE) : 0;
    const uint64_t sides = both ? 2 : 1, one = (uint64_t)p + (uint64_t)n;
    int rc;
    progress_begin_tokens(&t->bar, t->label, sides * (uint64_t)warm_p +
                          (uint64_t)(warm_n + warm_off) + sides * (uint64_t)runs * one);
    rc = warm_up(t, s, warm_p, warm_n, err);
    if (both && rc == 0) {
        runner_pause_postfetch(session_runner(s), true);
        rc = warm_up(t, s, warm_p, warm_off, err);
    }
    for (int r = 0; r < runs && rc == 0; r++) {
        if (both) runner_pause_postfetch(session_runner(s), false);
        rc = run_once(o, t, s, r, err);
        if (!both || rc < 0) continue;
        runner_pause_postfetch(session_runner(s), true);
        rc = run_once(off, t, s, r, err);
    }
    off->done = both && rc == 0;
    progress_end(&t->bar);
    return rc;
}

/* Opens, places, measures, closes: an engine is placed once. */
static int run_placed(tiers_row *r, tiers *t, const load_options *load, err_ctx *err)
{
    tiers_outcome *o = &r->on;
    session_options so = t->so;
    session *s = NULL;
    model_handle l;
    int rc = model_handle_open(&l, load, err);
    if (rc < 0) return rc;
    if ((rc = model_handle_session(&s, &l, &so, err)) == 0) {
        const engine_experts store = engine_expert_store(l.e);
        if (store.note[0]) console_note("%s: %s", t->label, store.note);
        o->p = l.where->p;
        o->measured = l.where->measured;
        rc = measure(o, &r->off, t, s, err);
    }
    session_free(s);
    model_handle_close(&l);
    return rc;
}

/* 0 also after a failure, which the outcome explains; < 0 if interrupted. */
static int run_budget(tiers_row *r, tiers *t, err_ctx *err)
{
    load_options load = t->load;
    load.where.wish.no_hot = r->vram == TIERS_NO_EXPERTS;
    load.where.wish.vram = load.where.wish.no_hot ? TIERS_ALL : r->vram;
    load.where.wish.ram = r->ram;
    const int rc = run_placed(r, t, &load, err);
    if (rc == ERR_STOPPED && interrupted()) return rc;
    r->on.done = rc == 0;
    if (rc < 0) snprintf(r->on.error, sizeof r->on.error, "%s", err->msg);
    return 0;
}

static int run_rows(tiers *t, err_ctx *err)
{
    const int n = t->table.n_row;
    for (int i = 0; i < n; i++) {
        int rc;
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        snprintf(t->label, sizeof t->label, "row %d of %d", i + 1, n);
        if ((rc = run_budget(&t->table.rows[i], t, err)) < 0) return rc;
    }
    return 0;
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* Prints the rows measured so far; returns the exit code. */
static int report(const tiers *t)
{
    if (!t->opt->json) tiers_print(&t->table);
    else if (tiers_print_json(&t->table) != 0) return 1;
    const int code = console_finish();
    return code != 0 ? code : tiers_first_done(&t->table) == NULL;
}

static int run_model(tiers *t, sizes *vram, sizes *ram)
{
    const char *path = t->table.path;
    model_handle l;
    err_ctx err;
    int rc = model_handle_open(&l, &t->load, &err);
    if (rc < 0) return console_fail(path, &err);
    rc = look_around(t, &l, &err);
    model_handle_close(&l);
    if (rc == 0) rc = make_buffers(t, &err);
    if (rc == 0) rc = make_rows(t, vram, ram, &err);
    if (rc < 0) return bench_model_fail(path, rc, &err);
    if ((rc = run_rows(t, &err)) == 0) return report(t);
    const int code = bench_model_fail(path, rc, &err);
    if (tiers_first_done(&t->table)) (void)report(t);
    return code;
}

int cmd_bench_tiers(int argc, char **argv)
{
    /* memory as moe-run plans it, with a version for drafts */
    tiers_options opt = { .run.engine = { .kv = "f16", .device = "auto", .drafts = "on" },
                          .prompt = 512, .tokens = 64, .runs = 3 };
    tiers t = { .opt = &opt, .table = { .gpu = "" } };
    sizes vram = { .n = 0 }, ram = { .n = 0 };
    int rc;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    t.table.both = opt.run.tiers.postfetch && !strcmp(opt.run.tiers.postfetch, "both");
    if (t.table.both) opt.run.tiers.postfetch = "auto";
    if ((rc = read_sizes(&vram, "--vram", opt.vram, true)) != 0 ||
        (rc = read_sizes(&ram, "--ram", opt.ram, false)) != 0 ||
        (rc = engine_args_read(&t.load.where, &t.so, &opt.run.engine)) != 0 ||
        (rc = tier_args_read(&t.load.where, &opt.run.tiers)) != 0)
        return rc;
    t.load.path = opt.run.model;
    t.table.path = opt.run.model ? opt.run.model : DEMO_MODEL_NAME;
    t.table.so = &t.so;
    t.table.cache = t.load.where.cache;
    t.table.n_prompt = (int)opt.prompt;
    t.table.n_token = (int)opt.tokens;
    t.table.n_run = (int)opt.runs;
    interrupt_install();
    rc = run_model(&t, &vram, &ram);
    mem_free(t.prompt);
    mem_free(t.ids);
    mem_free(t.logits);
    mem_free(t.table.rows);
    mem_free(t.unbounded);
    return rc;
}
