/* bench_decode.c - moe-bench decode: speed of prompts and of generation.
 *
 * Every run does the same work: the same random prompt into an empty session, then greedy tokens.
 * All runs must end with bit-identical logits; otherwise the verb fails. A short warm-up precedes
 * the runs; loading is not measured. The decode rate is also given as bytes of weights per second,
 * to compare with the memory's bandwidth. */
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench_drafts.h"
#include "cli/bench/bench_model.h"
#include "cli/bench/bench_profile.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/view/median_spread.h"
#include "cuda/gpu_measure.h"
#include "engine/engine_stats.h"
#include "tiers/available_memory.h"

enum { WARM_PROMPT = 32, WARM_DECODE = 4, MAX_PROMPTS = 32 };

typedef struct decode_options {
    bench_model_args run;
    const char *prompts;
    int64_t skip, tokens, runs;
    int64_t sms;
    double bandwidth;                    /* per cent */
    const char *draft;
    bool json, profile;
} decode_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(decode_options, run.model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file, or the first part of a split one. Default: the demo model" },
    { "prompt", 'p', ARG_TEXT, offsetof(decode_options, prompts), "N[,N]", NULL, 0, 0,
      "Length of the prompt in tokens; each of several lengths is measured. Default: 512" },
    { "tokens", 'n', ARG_INT, offsetof(decode_options, tokens), "N", NULL, 0, INT32_MAX,
      "Tokens to generate after the prompt. Default: 128" },
    { "skip", 0, ARG_INT, offsetof(decode_options, skip), "N", NULL, 0, INT32_MAX,
      "Tokens to generate before these without measuring. Default: 0" },
    { "runs", 'r', ARG_INT, offsetof(decode_options, runs), "N", NULL, 1, MEDIAN_MAX_RUNS,
      "Number of measurements; the result is their median. Default: 5" },
    { "draft", 0, ARG_TEXT, offsetof(decode_options, draft), "HOW", NULL, 0, 0,
      "Decode with and without drafts in turn: mtp, lookup, or oracle:P, right with "
      "probability P" },
    { "kv", 0, ARG_TEXT, offsetof(decode_options, run.engine.kv), "TYPE", NULL, 0, 0,
      "How keys and values are stored: f32, f16 or q8_0. Default: f16" },
    { "profile", 0, ARG_FLAG, offsetof(decode_options, profile), NULL, NULL, 0, 0,
      "With --device cuda: the time of a token and of the prompt by class of kernels" },
    { "sms", 0, ARG_INT, offsetof(decode_options, sms), "N", NULL, 1, INT32_MAX,
      "With --device cuda: use N multiprocessors, rounded up. Default: all" },
    { "bandwidth-share", 0, ARG_FLOAT, offsetof(decode_options, bandwidth), "PERCENT", NULL, 1, 100,
      "With --sms: limit of decoding, in percent of the card's bandwidth. Default: 100" },
    { "json", 0, ARG_FLAG, offsetof(decode_options, json), NULL, NULL, 0, 0,
      "One JSON object on stdout" },
};

static const arg_group groups[] = {
    { "Running:", bench_model_options, BENCH_MODEL_N_OPTION, offsetof(decode_options, run) },
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(decode_options, run.tiers) },
};

static const arg_spec spec = {
    .usage = "moe-bench decode [[-m] FILE] [-p N[,N]] [-n N] [-r N] [options]",
    .about = "Measures the speed of prompt and generation: median, extremes and spread of all "
             "runs.\nThe prompt is random but always the same; tokens are the likeliest.",
    .options = options, .n_option = ARRAY_LEN(options),
    .groups = groups, .n_group = ARRAY_LEN(groups),
};

typedef struct bench {
    const decode_options *opt;
    int prompts[MAX_PROMPTS], n_prompts; /* lengths in ascending order */
    int n_prompt;                        /* the current one */
    bench_model b;
    session *s;
    int32_t *prompt;
    float *logits;                       /* [n_vocab] */
    int n_vocab;
    gpu_throttled card;                  /* of --sms; all 0: not limited */
    progress bar;
    double prompt_rate[MEDIAN_MAX_RUNS], decode_rate[MEDIAN_MAX_RUNS];   /* tok/s */
    uint64_t hash;                       /* of the last logits */
    bool same;                           /* ... of every run of this length */
    bench_draft draft;                   /* of --draft */
} bench;

/* ---- measuring ------------------------------------------------------------------------------- */

static int take_tokens(bench *m, int32_t *id, int n, err_ctx *err)
{
    int rc = 0;
    for (int t = 0; t < n && rc == 0; t++) {
        /* session_eval does not watch single tokens */
        if (!progress_watch(&m->bar, 0, 1)) return err_set(err, ERR_STOPPED, "stopped");
        rc = session_next(m->s, id, *id, err);
        m->bar.done++;
        m->hash = m->hash * 31 + (uint32_t)*id;
    }
    return rc;
}

/* One run over n_prompt and n_token tokens, and n_skip between them. Without a prompt generation
 * starts with the prompt's first token. With --bandwidth-share only the n_token tokens are
 * throttled. */
static int run_once(double *prompt_rate, double *decode_rate, bench *m, int n_prompt, int n_skip,
                    int n_token, err_ctx *err)
{
    const bool smaller = m->opt->sms > 0;
    uint64_t start = clock_ns();
    int32_t id = m->prompt[0];
    int rc;

    session_rewind(m->s, 0);
    m->hash = 0;
    if (n_prompt) {
        rc = session_eval(m->s, m->prompt, n_prompt, m->logits, 1, progress_watch, &m->bar, err);
        if (rc < 0) return rc;
        m->bar.done += (uint64_t)n_prompt;
        *prompt_rate = n_prompt * 1e9 / (double)(clock_ns() - start);
        id = session_likeliest(m->s, m->logits);
        m->hash = str_hash((str_view){ (const char *)m->logits,
                                       (size_t)m->n_vocab * sizeof *m->logits });
    }
    if ((rc = take_tokens(m, &id, n_skip, err)) < 0) return rc;
    if (smaller &&
        (rc = engine_throttle_begin(m->b.l.e, m->opt->bandwidth / 100, &m->card, err)) < 0)
        return rc;
    start = clock_ns();
    rc = take_tokens(m, &id, n_token, err);
    if (n_token) *decode_rate = n_token * 1e9 / (double)(clock_ns() - start);
    err_ctx late;
    const int held = smaller ? engine_throttle_end(m->b.l.e, rc < 0 ? &late : err) : 0;
    return rc < 0 ? rc : held;
}

static int measure(bench *m, err_ctx *err)
{
    const int p = m->n_prompt, n = (int)m->opt->tokens, runs = (int)m->opt->runs;
    const int skip = (int)m->opt->skip;
    uint64_t first = 0;
    double ignored;
    int rc;

    progress_begin_tokens(&m->bar, "measuring", (uint64_t)runs *
                          ((uint64_t)p + (uint64_t)skip + (uint64_t)n));
    rc = run_once(&ignored, &ignored, m, p < WARM_PROMPT ? p : WARM_PROMPT, 0,
                  n < WARM_DECODE ? n : WARM_DECODE, err);
    m->bar.done = 0;
    m->same = true;
    for (int r = 0; r < runs && rc == 0; r++) {
        rc = run_once(&m->prompt_rate[r], &m->decode_rate[r], m, p, skip, n, err);
        if (r == 0) first = m->hash;
        else if (rc == 0 && m->hash != first) m->same = false;
    }
    progress_end(&m->bar);
    return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_phase(const char *name, int tokens, const spread *s)
{
    if (tokens)
        printf("%-8s %8d %10.2f %10.2f %10.2f %8.1f%%\n", name, tokens, s->median, s->min, s->max,
               spread_percent(s));
}

/* decode: bytes per second; 0: nothing was generated. */
static void print_card(const gpu_throttled *c, double decode)
{
    printf("limit     %d of %d multiprocessors that only read: %.0f GB/s, %.1f%% of all", c->n_sm,
           c->n_sm_all, c->bytes_per_s * 1e-9, 100 * c->bytes_per_s / c->whole_bytes_per_s);
    if (decode > 0) printf("; decode %.1f%% of it", 100 * decode / c->bytes_per_s);
    printf("\n");
}

static void print_heading(const bench *m)
{
    const model *mod = m->b.l.m;
    char params[32], shown[256], kernels[KERNELS_TEXT_CAP];
    model_bytes bytes;
    model_count_bytes(&bytes, mod);

    printf("model     %s: %s, %d layers, %s parameters\n", ESC(shown, str_from(m->b.l.path)),
           model_arch_name(mod->hp.arch), mod->hp.n_layer,
           text_count(params, sizeof params, bytes.params));
    printf("engine    %d thread%s, %s, %s cache of %d tokens, chunks of %d\n\n",
           engine_threads(m->b.l.e), engine_threads(m->b.l.e) == 1 ? "" : "s",
           model_handle_kernels_text(kernels, sizeof kernels, &m->b.l), kv_type_name(m->b.so.kv),
           session_ctx(m->s), session_chunk(m->s));
    printf("phase      tokens      tok/s        min        max   spread   of %d\n",
           (int)m->opt->runs);
}

/* The rows of a length; after the last length also weights, limit and hash. */
static void print_table(const bench *m, const model_bytes *bytes, const spread *prompt,
                        const spread *decode)
{
    const uint64_t per_token = bytes->token_experts + bytes->token_dense;
    char all[32], experts[32], dense[32];
    print_phase("prompt", m->n_prompt, prompt);
    print_phase("decode", (int)m->opt->tokens, decode);
    if (m->n_prompt != m->prompts[m->n_prompts - 1]) return;
    printf("\n");
    if (m->opt->tokens)
        printf("weights   %s per token (experts %s, dense %s): %.2f GB/s in decode\n",
               text_bytes(all, sizeof all, per_token),
               text_bytes(experts, sizeof experts, bytes->token_experts),
               text_bytes(dense, sizeof dense, bytes->token_dense),
               decode->median * (double)per_token * 1e-9);
    if (m->card.n_sm > 0)
        print_card(&m->card, m->opt->tokens ? decode->median * (double)per_token : 0);
    printf("logits    %016" PRIx64 "\n", m->hash);
}

static json_t *phase_json(int tokens, const spread *s, const double *rates)
{
    if (!tokens) return json_null();
    return json_pack("{s:i, s:o}", "tokens", tokens, "tok_s", spread_json(s, rates));
}

static int print_json(const bench *m, const model_bytes *bytes, const spread *prompt,
                      const spread *decode)
{
    const uint64_t per_token = bytes->token_experts + bytes->token_dense;
    char shown[1024], hash[24];
    json_t *row;

    snprintf(hash, sizeof hash, "%016" PRIx64, m->hash);
    row = json_pack("{s:s, s:s, s:i, s:s, s:o, s:b, s:s, s:i, s:i, s:i, s:o, s:o, s:I, s:I, s:f, "
                    "s:s, s:I}",
                    "model", ESC(shown, str_from(m->b.l.path)),
                    "architecture", model_arch_name(m->b.l.m->hp.arch),
                    "threads", engine_threads(m->b.l.e), "kernels", engine_kernels(m->b.l.e),
                    "slow_types", model_handle_slow_json(&m->b.l),
                    "exact", m->opt->run.engine.exact, "kv", kv_type_name(m->b.so.kv),
                    "ctx", session_ctx(m->s), "chunk", session_chunk(m->s),
                    "runs", (int)m->opt->runs,
                    "prompt", phase_json(m->n_prompt, prompt, m->prompt_rate),
                    "decode", phase_json((int)m->opt->tokens, decode, m->decode_rate),
                    "expert_bytes_per_token", (json_int_t)bytes->token_experts,
                    "dense_bytes_per_token", (json_int_t)bytes->token_dense,
                    "decode_gb_s", m->opt->tokens ? decode->median * (double)per_token * 1e-9 : 0.0,
                    "logits", hash, "peak_memory_bytes", (json_int_t)peak_memory_bytes());
    if (row && m->card.n_sm > 0) {
        json_object_set_new(row, "sms", json_integer(m->card.n_sm));
        json_object_set_new(row, "limit_gb_s", json_real(m->card.bytes_per_s * 1e-9));
    }
    return console_report(row, REPORT_FLAGS, "");
}

static int report(const bench *m)
{
    const spread prompt = spread_of(m->prompt_rate, (int)m->opt->runs);
    const spread decode = spread_of(m->decode_rate, (int)m->opt->runs);
    model_bytes bytes;

    model_count_bytes(&bytes, m->b.l.m);
    if (!m->opt->json) {
        if (m->n_prompt == m->prompts[0]) print_heading(m);
        print_table(m, &bytes, &prompt, &decode);
    } else if (print_json(m, &bytes, &prompt, &decode) != 0) {
        return 1;
    }
    if (!m->same) {
        console_error("%s: runs of the same tokens ended with different logits", m->b.l.path);
        return 1;
    }
    return 0;
}

/* The token after the prompt and the prompt's first chunk; the session is emptied for it. */
static int profile(bench *m, err_ctx *err)
{
    const int n = m->n_prompt, chunk = session_chunk(m->s);
    int rc;
    session_rewind(m->s, 0);
    rc = session_eval(m->s, m->prompt, n, m->logits, 0, progress_watch, &m->bar, err);
    if (rc == 0) rc = bench_profile(m->s, "a token after the prompt", m->prompt + n, 1, err);
    session_rewind(m->s, 0);
    if (rc == 0 && n > 1)
        rc = bench_profile(m->s, "the prompt's first chunk", m->prompt, n < chunk ? n : chunk, err);
    return rc;
}

static int measure_drafts(bench *m, err_ctx *err)
{
    bench_draft_result r;
    progress_begin_tokens(&m->bar, "measuring", 1);
    const int rc = bench_draft_measure(&r, m->s, &m->draft, m->prompt, max_int(m->n_prompt, 1),
                                       (int)m->opt->tokens, (int)m->opt->runs, progress_watch,
                                       &m->bar, err);
    progress_end(&m->bar);
    if (rc < 0) return rc;
    if (!m->opt->json) {
        printf("drafts    %.2f tok/s, %.2f without: %.2f times; %.2f tokens a pass, %d of %d "
               "drafts right\n", r.drafted, r.plain, r.drafted / r.plain,
               (double)(r.n_token - 1) / r.n_pass, r.n_right, r.n_draft);
        for (int i = 0; i <= DRAFTS_MOST; i++)
            if (r.times.pass_s[i] > 0.0)
                printf("  a pass of %d   %.3f ms\n", 1 + i, 1e3 * r.times.pass_s[i]);
        if (r.times.guess_s > 0.0) printf("  a draft       %.3f ms\n", 1e3 * r.times.guess_s);
        return 0;
    }
    json_t *times = json_array();
    for (int i = 0; i <= DRAFTS_MOST; i++)
        json_array_append_new(times, json_real(1e3 * r.times.pass_s[i]));
    json_t *row = json_pack("{s:s, s:i, s:f, s:f, s:i, s:i, s:i, s:i, s:o, s:f}",
                            "draft", m->opt->draft, "prompt", m->n_prompt, "drafted_tok_s",
                            r.drafted, "plain_tok_s", r.plain, "tokens", r.n_token, "passes", r.n_pass, "drafts", r.n_draft,
                            "right_drafts", r.n_right, "pass_ms", times, "draft_ms",
                            1e3 * r.times.guess_s);
    return console_report(row, REPORT_FLAGS, "");
}

/* 0, or the exit code after one line. */
static int measure_all(bench *m)
{
    err_ctx err;
    for (int i = 0; i < m->n_prompts; i++) {
        m->n_prompt = m->prompts[i];
        if (m->opt->draft) {
            const int done = measure_drafts(m, &err);
            if (done < 0) return bench_model_fail(m->b.l.path, done, &err);
            if (done > 0) return done;
            continue;
        }
        int rc = measure(m, &err);
        if (rc < 0) return bench_model_fail(m->b.l.path, rc, &err);
        if ((rc = report(m)) != 0) return rc;
        if (m->opt->profile && (rc = profile(m, &err)) < 0)
            return bench_model_fail(m->b.l.path, rc, &err);
    }
    return console_finish();
}

static int run_model(bench *m)
{
    const decode_options *opt = m->opt;
    const int most = m->prompts[m->n_prompts - 1];
    const int64_t need = most + opt->skip + opt->tokens;
    int rc;

    if ((rc = bench_model_open(&m->b, &opt->run)) != 0) return rc;
    if (need > m->b.ctx_limit) {
        console_error("%" PRId64 " tokens are more than the context of %d", need, m->b.ctx_limit);
        return 1;
    }
    if ((rc = bench_model_session(&m->s, &m->b, (int)need)) != 0) return rc;
    m->n_vocab = m->b.l.m->hp.n_vocab;
    m->prompt = mem_array((size_t)most + 1, sizeof *m->prompt);
    m->logits = mem_array((size_t)m->n_vocab, sizeof *m->logits);
    if (!m->prompt || !m->logits) {
        console_error("out of memory for %" PRId64 " tokens", need);
        return 1;
    }
    bench_model_prompt(m->prompt, 0, most + 1, m->n_vocab);
    return measure_all(m);
}

/* 0, or 2 after one line. */
static int read_prompts(bench *m, const char *list)
{
    char shown[64];
    for (const char *at = list; ; at++) {
        char *end;
        const long n = strtol(at, &end, 10);
        const int last = m->n_prompts > 0 ? m->prompts[m->n_prompts - 1] : -1;
        if (*at < '0' || *at > '9' || (*end && *end != ',') || n > INT32_MAX / 2 || n <= last ||
            m->n_prompts == MAX_PROMPTS) {
            console_error("--prompt: '%s' is not a number of tokens, or up to %d of them, each "
                          "larger than the one before, such as 9,64,512",
                          ESC(shown, str_from(list)), MAX_PROMPTS);
            return 2;
        }
        m->prompts[m->n_prompts++] = (int)n;
        if (!*end) return 0;
        at = end;
    }
}

int cmd_bench_decode(int argc, char **argv)
{
    static bench m;                      /* 16 kB of rates */
    decode_options opt = { .run.engine = { .kv = "f16", .device = "auto" },
                           .prompts = "512", .tokens = 128, .runs = 5, .bandwidth = 100 };
    int rc;

    tier_args_init(&opt.run.tiers);
    rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((rc = read_prompts(&m, opt.prompts)) != 0) return rc;
    if (m.prompts[0] + opt.tokens == 0) {
        console_error("-p 0 and -n 0: nothing to measure");
        return 2;
    }
    if (opt.bandwidth < 100 && (opt.sms == 0 || opt.profile)) {
        console_error(opt.profile ? "--profile cannot be used with --bandwidth-share"
                                  : "--bandwidth-share needs --sms");
        return 2;
    }
    if (opt.sms > 0 && strcmp(opt.run.engine.device, "cuda") != 0) {
        console_error("--sms needs --device cuda");
        return 2;
    }
    if (opt.draft) {
        if ((rc = bench_draft_read(&m.draft, opt.draft)) != 0) return rc;
        if (opt.tokens < 2 || opt.skip > 0 || opt.profile || opt.bandwidth < 100) {
            console_error("--draft needs -n 2 or more, and cannot be used with --skip, --profile "
                          "and --bandwidth-share");
            return 2;
        }
        opt.run.engine.drafts = m.draft.mtp ? "on" : "lookup";
    }
    if (opt.sms > 0) gpu_limit_sms((int)opt.sms);
    m.opt = &opt;
    rc = run_model(&m);
    mem_free(m.prompt);
    mem_free(m.logits);
    session_free(m.s);
    bench_model_close(&m.b);
    return rc;
}
