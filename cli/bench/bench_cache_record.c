/* bench_cache_record.c - moe-bench cache record: a run of a model, kept as the experts it chose.
 *
 * Takes in a text, then goes on with tokens that are drawn with a fixed seed: the likeliest ones
 * would soon repeat themselves, and so would the experts. Ends of texts are tokens like others. The
 * file appears when it is complete. */
#include "cli/commands.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/demo_model.h"
#include "cli/interrupt.h"
#include "cli/sampling_args.h"
#include "engine/instruments.h"
#include "engine/plan/planning.h"
#include "moe/routing_trace.h"

typedef struct record_options {
    bench_model_args run;
    const char *output, *text;
    int64_t prompt, tokens, seed;        /* prompt 0: all of the text */
    double temp;                         /* NAN: the model's */
} record_options;

#define FIELD(f) offsetof(record_options, f)
static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, FIELD(run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one. Default: the demo model" },
    { "output", 'o', ARG_NEEDED_TEXT, FIELD(output), "FILE", NULL, 0, 0, "Where the trace goes" },
    { "text", 0, ARG_TEXT, FIELD(text), "FILE", NULL, 0, 0,
      "What the model reads first; - for standard input. Default: built in" },
    { "prompt", 'p', ARG_INT, FIELD(prompt), "N", NULL, 1, INT_MAX,
      "Only the first N tokens of the text. Default: all" },
    { "tokens", 'n', ARG_INT, FIELD(tokens), "N", NULL, 0, INT_MAX,
      "Tokens to generate after it. Default: 512" },
    { "temp", 0, ARG_FLOAT, FIELD(temp), "T", NULL, 0, 0,
      "Temperature; 0 always takes the likeliest token. Default: the model's" },
    { "seed", 's', ARG_INT, FIELD(seed), "N", NULL, 0, 9e18,
      "Same seed, same tokens. Default: 1" },
};

static const arg_group groups[] = {
    { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, FIELD(run) },
    { "Memory:", tier_options, TIER_N_OPTION, FIELD(run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench cache record [[-m] FILE] -o TRACE [options] [TEXT]",
    .about = "Runs a model on the CPU and writes which experts every token chose in every layer.\n"
             "First TEXT, or that of a file, as it is: without a chat format; then tokens drawn "
             "from the model.",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 0, .max_operands = 1, .operands = "TEXT",
    .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue = "A layer's choice takes two bytes for each expert: 1 kB a token for a model of 48 "
                "layers with 10\nexperts each. moe-bench cache replay reads it.",
};

/* From "A Tale of Two Cities" (1859): prose like that which the demo models have read. */
static const char usual_text[] =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the "
    "season of Light, it was the season of Darkness, it was the spring of hope, it was the winter "
    "of despair, we had everything before us, we had nothing before us, we were all going direct "
    "to Heaven, we were all going direct the other way\xe2\x80\x94in short, the period was so far "
    "like the present period, that some of its noisiest authorities insisted on its being "
    "received, for good or for evil, in the superlative degree of comparison only.\n\n"
    "There were a king with a large jaw and a queen with a plain face, on the throne of England; "
    "there were a king with a large jaw and a queen with a fair face, on the throne of France. In "
    "both countries it was clearer than crystal to the lords of the State preserves of loaves and "
    "fishes, that things in general were settled for ever.\n\n";

typedef struct recorder {
    const record_options *opt;
    bench_model b;
    session *s;
    sampling draw;
    id_list ids;                         /* the prompt */
    routing_record *to;
    int n_layer;                         /* in the trace: those with experts */
    int row_of[PLAN_MAX_LAYERS];         /* of a layer among them */
    bool prompt;                         /* tokens under way are given ones */
    progress bar;
    uint64_t n_done;                     /* tokens before the present session_eval */
    bool at_output;                      /* the failure is about the trace */
} recorder;

/* ---- the text -------------------------------------------------------------------------------- */

static int encode(recorder *r, str_view text, err_ctx *err)
{
    const int rc = encoder_encode_whole(r->b.l.enc, &r->ids, text, true, false, err);
    if (rc < 0) return rc;
    if (r->ids.n == 0) return err_set(err, ERR_RANGE, "there is no text in it");
    if (r->opt->prompt > 0 && r->ids.n > (size_t)r->opt->prompt)
        r->ids.n = (size_t)r->opt->prompt;
    return 0;
}

/* 0, or the exit code after one line. */
static int read_text(recorder *r, const char *operand)
{
    const char *path = r->opt->text;
    str_view text = operand ? str_from(operand) : (str_view){ usual_text, sizeof usual_text - 1 };
    char *read = NULL;
    err_ctx err;
    int rc = 0;
    if (path) {
        rc = read_whole_file(&read, &text.len, path, &err);
        text.ptr = read;
    }
    if (rc == 0) rc = encode(r, text, &err);
    mem_free(read);
    if (rc == 0) return 0;
    return console_fail(!path ? "the prompt" : strcmp(path, "-") ? path : "standard input", &err);
}

/* ---- the trace ------------------------------------------------------------------------------- */

static void on_routing(void *ctx, int layer, int pos, int n_token, const int32_t *ids, int k)
{
    recorder *r = ctx;
    (void)k;
    routing_record_layer(r->to, r->row_of[layer], pos, n_token, ids, r->prompt);
}

/* Sizes of the layers that have experts, one after the other. */
static void leave_out_dense(recorder *r, planning *sizes)
{
    for (int l = 0; l < sizes->what.n_layer; l++) {
        const int at = r->row_of[l] = r->n_layer;
        if (sizes->expert_bytes[l] == 0) continue;
        sizes->expert_bytes[at] = sizes->expert_bytes[l];
        sizes->down_bytes[at] = sizes->down_bytes[l];
        r->n_layer++;
    }
}

static int begin_trace(recorder *r, err_ctx *err)
{
    const model *m = r->b.l.m;
    const char *slash = strrchr(r->b.l.path, '/');
    planning *sizes = mem_zalloc(sizeof *sizes);
    if (!sizes) return err_set(err, ERR_NOMEM, "out of memory for the trace");
    int rc = planning_model(sizes, m, err);
    if (rc == 0) leave_out_dense(r, sizes);
    routing_model what = {
        .fingerprint = model_fingerprint(m), .n_layer = r->n_layer, .n_expert = m->hp.n_expert,
        .n_used = m->hp.n_expert_used, .dense_bytes = sizes->what.token_dense,
        .expert_bytes = sizes->expert_bytes, .down_bytes = sizes->down_bytes,
    };
    ESC(what.name, str_from(slash ? slash + 1 : r->b.l.path));
    if (rc == 0) rc = session_watch_routing(r->s, on_routing, r, err);
    if (rc == 0) {
        rc = routing_record_begin(&r->to, r->opt->output, &what, session_chunk(r->s), err);
        r->at_output = rc < 0;
    }
    mem_free(sizes);
    return rc;
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool watch(void *ctx, double done_tokens, double n_tokens)
{
    recorder *r = ctx;
    (void)n_tokens;
    progress_update(&r->bar, r->n_done + (uint64_t)done_tokens);
    return !interrupted();
}

/* The prompt, and the token after it. */
static int take_prompt(recorder *r, int32_t *next, err_ctx *err)
{
    const int n = (int)r->ids.n;
    float *logits = mem_array((size_t)session_vocab(r->s), sizeof *logits);
    if (!logits) return err_set(err, ERR_NOMEM, "out of memory for logits");
    r->prompt = true;
    int rc = session_eval(r->s, r->ids.ids, n, logits, 1, watch, r, err);
    for (int t = 0; t < n; t++) sampler_accept(r->draw.smp, r->ids.ids[t]);
    if (rc == 0) rc = sampler_pick(next, r->draw.smp, logits, err);
    mem_free(logits);
    r->n_done = (uint64_t)n;
    return rc;
}

static int run_tokens(recorder *r, err_ctx *err)
{
    int32_t id = 0;
    int rc = take_prompt(r, &id, err);
    r->prompt = false;
    for (int64_t t = 0; t < r->opt->tokens && rc == 0; t++) {
        if (!watch(r, 0, 1)) return err_set(err, ERR_STOPPED, "stopped");
        sampler_accept(r->draw.smp, id);
        rc = session_draw(r->s, &id, id, r->draw.smp, err);
        r->n_done++;
    }
    return rc;
}

static int record(recorder *r, err_ctx *err)
{
    int rc = begin_trace(r, err);
    if (rc < 0) return rc;
    progress_begin_tokens(&r->bar, "recording", r->ids.n + (uint64_t)r->opt->tokens);
    rc = run_tokens(r, err);
    progress_end(&r->bar);
    if (rc < 0) return rc;
    rc = routing_record_end(r->to, err);
    r->at_output = rc < 0;
    return rc;
}

static int report(const recorder *r, uint64_t ns)
{
    const model_hparams *hp = &r->b.l.m->hp;
    char bytes[32];
    console_note("%s: %zu prompt token%s and %" PRId64 " after %s, %d of %d experts in each of %d "
                 "layers: %s, %.1f s", r->opt->output, r->ids.n, r->ids.n == 1 ? "" : "s",
                 r->opt->tokens, r->ids.n == 1 ? "it" : "them", hp->n_expert_used, hp->n_expert,
                 r->n_layer, text_bytes(bytes, sizeof bytes, routing_record_bytes(r->to)),
                 (double)ns * 1e-9);
    return console_finish();
}

static int run_model(recorder *r, const char *operand)
{
    const record_options *opt = r->opt;
    sampling_args how;
    err_ctx err = { 0 };
    int rc;

    if ((rc = bench_model_open(&r->b, &opt->run)) != 0) return rc;
    if ((rc = read_text(r, operand)) != 0) return rc;
    const int64_t need = (int64_t)r->ids.n + opt->tokens;
    if (need > r->b.ctx_limit) {
        console_error("%" PRId64 " tokens are more than the context of %d", need, r->b.ctx_limit);
        return 1;
    }
    if ((rc = bench_model_session(&r->s, &r->b, (int)need)) != 0) return rc;
    sampling_args_init(&how);
    how.temp = opt->temp;
    how.seed = opt->seed;
    if (sampling_open(&r->draw, &how, r->b.l.m, r->b.l.tok, (int)need, &err) < 0)
        return console_fail(r->b.l.path, &err);
    const uint64_t start = clock_ns();
    rc = record(r, &err);
    if (rc < 0) return bench_model_fail(r->at_output ? opt->output : r->b.l.path, rc, &err);
    return report(r, clock_ns() - start);
}

/* What the table cannot check. 0, or 2 after one line. */
static int check_usage(const record_options *opt, const char *operand)
{
    const char *device = opt->run.engine.device;
    sampling_args how;
    if (operand && opt->text) {
        console_error("a text and --text %s do not go together", opt->text);
        return 2;
    }
    if (device && strcmp(device, "cuda") == 0) {
        console_error("--device %s: routing is recorded on the CPU only, for now: --device cpu",
                      device);
        return 2;
    }
    sampling_args_init(&how);
    how.temp = opt->temp;
    return sampling_args_check(&how);
}

int cmd_bench_cache_record(int argc, char **argv)
{
    record_options opt = { .run.engine.kv = "f16", .run.with_text = true, .tokens = 512, .seed = 1,
                           .temp = NAN };
    const char *operand = NULL;
    recorder r = { .opt = &opt };
    int rc;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, &operand, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((rc = check_usage(&opt, operand)) != 0) return rc;
    opt.run.engine.device = "cpu";       /* auto, too */
    if (!opt.run.model) console_note("%s", DEMO_MODEL_REMARK);
    rc = run_model(&r, operand);
    routing_record_drop(r.to);
    ids_free(&r.ids);
    sampling_close(&r.draw);
    session_free(r.s);
    bench_model_close(&r.b);
    return rc;
}
