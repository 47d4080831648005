/* generate.c - moe-run run, the verb that may be left out: one prompt in, one answer out.
 *
 * stdout carries only the answer, flushed after each token; notes go to stderr. Whatever ends the
 * answer (the model, a limit, Ctrl-C, a closed pipe), its text stays and the program releases
 * everything. engine/session/answer.h has the loop. */
#include "cli/commands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args/answer_args.h"
#include "cli/args/form_args.h"
#include "cli/chat/conversation.h"
#include "cli/console.h"
#include "cli/cost/cache_cost.h"
#include "cli/cost/experts_cost.h"
#include "cli/demo_model.h"
#include "cli/expert_cache_files.h"
#include "cli/interrupt.h"
#include "cli/model_handle.h"
#include "cli/prompt_cache.h"
#include "cli/view/answer_view.h"
#include "cli/view/perf_view.h"
#include "cli/view/plan_vs_measured.h"
#include "engine/session/answer.h"
#include "engine/session/runner.h"

typedef struct run_options {
    const char *prompt, *file;
    bool raw, json, quiet;
    answer_args a;
    form_args form;
    grammar *grammar;                    /* of form; NULL: any answer */
} run_options;

#define FIELD(f) offsetof(run_options, f)
static const arg_option prompt_options[] = {
    { "prompt", 'p', ARG_TEXT, FIELD(prompt), "TEXT", NULL, 0, 0, "The prompt" },
    { "file", 'f', ARG_TEXT, FIELD(file), "FILE", NULL, 0, 0,
      "Read the prompt from FILE; - (also without -f): standard input" },
    { "raw", 0, ARG_FLAG, FIELD(raw), NULL, NULL, 0, 0,
      "Continue the text without a chat format; control tokens are parsed and printed" },
};

static const arg_option output_options[] = {
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0,
      "Print one JSON object at the end: text, token counts, seconds, plan, settings" },
    { "quiet", 'q', ARG_FLAG, FIELD(quiet), NULL, NULL, 0, 0,
      "Print only the answer, errors and the cost of --experts-used and --skip-missing" },
};

static const arg_group groups[] = {
#define PROMPT { "Prompt:", prompt_options, ARRAY_LEN(prompt_options), 0 }
#define OUTPUT { "Output:", output_options, ARRAY_LEN(output_options), 0 }, \
               { NULL, form_options, FORM_N_OPTION, FIELD(form) }
    ANSWER_GROUPS(FIELD(a), PROMPT, OUTPUT),
};

static const arg_spec spec = {
    .usage = "moe-run [run] [[-m] FILE] -p TEXT [options]",
    .about = "Answers a prompt. The answer streams to standard output, all else goes to stderr.\n"
             "With -p and a file, the file's text follows that of -p after an empty line:\n"
             "  git diff | moe-run -m model.gguf -p \"Explain this change.\" -",
    .max_operands = 1, .operands = "-", .groups = groups, .n_group = ARRAY_LEN(groups),
    .epilogue = "Exit code: 0 answered, 1 failed or the output was closed, 2 bad usage, 130 "
                "Ctrl-C (the first ends\nthe answer, the second the program). "
                "MOE_RAM_AVAILABLE=SIZE plans for a machine with that much\nfree memory.",
};

/* ---- the prompt ---------------------------------------------------------------------------- */

/* -p, then the file: joined if raw, else with an empty line in between and without the newline
 * at the end of the file. */
static int read_prompt(textbuf *out, const run_options *o, const char *path, err_ctx *err)
{
    char *text = NULL;
    size_t len = 0;
    if (o->prompt) textbuf_str(out, o->prompt);
    if (path) {
        const int rc = read_whole_file(&text, &len, path, err);
        if (rc < 0) return err_prefix(err, rc, "%s", strcmp(path, "-") ? path : "standard input");
        if (!o->raw && len > 0 && text[len - 1] == '\n') len--;
        if (!o->raw && out->len > 0 && len > 0) textbuf_str(out, "\n\n");
        textbuf_put(out, (str_view){ text, len });
        mem_free(text);
    }
    if (out->failed) return err_set(err, ERR_NOMEM, "out of memory for a prompt of %zu bytes", len);
    if (out->len > 0) return text_check_utf8(textbuf_view(out), err);
    return err_set(err, ERR_RANGE, "the prompt is empty");
}

static void fill_request(chat_request *req, chat_message messages[2], const run_options *o,
                         const textbuf *text, const char *date)
{
    int n = 0;
    if (o->a.system)
        messages[n++] = (chat_message){ .role = CHAT_SYSTEM, .content = str_from(o->a.system) };
    messages[n++] = (chat_message){ .role = CHAT_USER, .content = textbuf_view(text) };
    *req = (chat_request){ .messages = messages, .n_message = n, .date = str_from(date),
                            .effort = o->a.effort, .thinking = o->a.thinking };
}

/* Without --ctx: room for prompt and answer. */
static int choose_ctx(const run_options *o, size_t n_prompt, int most)
{
    const uint64_t want =
        n_prompt + (uint64_t)(o->a.most_tokens >= 0 ? o->a.most_tokens + 1 : 4096);
    const uint64_t ctx = want > 8192 ? want : 8192;
    return ctx < (uint64_t)most ? (int)ctx : most;
}

static int check_length(size_t n_prompt, int ctx, int most, err_ctx *err)
{
    if (n_prompt < (size_t)ctx) return 0;
    if (ctx >= most)
        return err_set(err, ERR_RANGE, "the prompt has %zu tokens, the model's context holds %d: "
                       "shorten the prompt", n_prompt, most);
    return err_set(err, ERR_RANGE, "the prompt has %zu tokens, the context %d: use --ctx %zu or "
                   "more (the model's limit is %d), or shorten the prompt", n_prompt, ctx,
                   n_prompt + 1, most);
}

/* ---- showing the answer -------------------------------------------------------------------- */

typedef struct view {
    const run_options *o;
    answer_view shown;
    textbuf text, reasoning;             /* for --json */
    progress bar;                        /* of the prompt */
    plan_watch speed;                    /* of the first tokens */
    bool answered, reasoning_last;       /* the answer has text; the latest text was reasoning */
    int n_token;
} view;

/* The request has no tools, so there are no calls. */
static int on_text(void *ctx, const chat_event *ev)
{
    view *v = ctx;
    textbuf *to = ev->kind == CHAT_REASONING ? &v->reasoning : &v->text;
    if (ev->text.len > 0 && (ev->kind == CHAT_REASONING || ev->kind == CHAT_ANSWER)) {
        v->reasoning_last = ev->kind == CHAT_REASONING;
        v->answered |= ev->kind == CHAT_ANSWER;
    }
    if (!v->o->json) {
        const uint64_t from = clock_ns();
        const int rc = answer_view_event(&v->shown, ev);
        plan_watch_output_wait(&v->speed, clock_ns() - from);
        return rc;
    }
    if (ev->kind == CHAT_REASONING || ev->kind == CHAT_ANSWER) textbuf_put(to, ev->text);
    return to->failed ? ERR_NOMEM : 0;
}

static bool on_token(void *ctx)
{
    view *v = ctx;
    progress_end(&v->bar);
    v->n_token++;
    plan_watch_output_wait(&v->speed, answer_view_stop(&v->shown));
    plan_watch_token(&v->speed);
    answer_view_token(&v->shown);
    if (v->o->json && !v->o->quiet) {
        char rate[32] = "";
        if (v->shown.rate > 0) snprintf(rate, sizeof rate, ", %.1f tok/s", v->shown.rate);
        console_status("answering... token %d%s", v->n_token, rate);
    }
    return !interrupted();
}

static bool on_prompt(void *ctx, double done_tokens, double n_tokens)
{
    view *v = ctx;
    if (!v->bar.what && !v->o->quiet)
        progress_begin_tokens(&v->bar, "prompt", (uint64_t)n_tokens);
    progress_update(&v->bar, (uint64_t)done_tokens);
    answer_view_stop(&v->shown);
    return !interrupted();
}

/* ---- notes about the run ----------------------------------------------------------------- */

typedef struct report {
    const model_handle *l;
    const session *s;
    experts_cost cost;                   /* own 0: not measured */
    cache_cost by_cache;                 /* n_row 0: not measured */
    const session_options *so;
    const sampler_options *sampling;
    answer_stats stats;
    uint64_t load_ns;
} report;

/* The plan if it has tiers, else the memory of the CPU. */
static void say_plan(const model_handle *l, const session_options *so, const model_handle_bytes *b)
{
    char ctx[32], total[32], held[32], state[32], kernels[KERNELS_TEXT_CAP], copy[64];
    char threads[32] = "", line[PLAN_LINE_CAP];
    const char *slash = strrchr(l->path, '/'), *name = slash ? slash + 1 : l->path;
    const char *arch = model_arch_name(l->m->hp.arch);
    if (!engine_on_gpu(l->e))
        snprintf(threads, sizeof threads, "%d thread%s, ", engine_threads(l->e),
                 engine_threads(l->e) == 1 ? "" : "s");
    model_handle_kernels_text(kernels, sizeof kernels, l);
    text_count(ctx, sizeof ctx, (uint64_t)so->ctx);
    if (plan_vs_measured_has_tiers(&l->where->p)) {
        const plan_view where = placement_view(l->where);
        console_note("%s: %s, %s%s, context %s tokens, %s", name, arch, threads, kernels, ctx,
                     plan_view_line(line, sizeof line, &where));
        return;
    }
    console_note("%s: %s, %s%s, context %s tokens, memory %s (weights %s, context %s%s)", name,
                 arch, threads, kernels, ctx,
                 text_bytes(total, sizeof total,
                            b->weights + b->session + engine_repacked_bytes(l->e)),
                 text_bytes(held, sizeof held, b->weights),
                 text_bytes(state, sizeof state, b->session),
                 model_handle_copy_text(copy, sizeof copy, l));
}

static double prompt_rate(const report *r)
{
    return text_rate((uint64_t)(r->stats.n_taken - r->stats.n_reused), r->stats.prompt_ns);
}

static double answer_rate(const report *r)
{
    return text_rate((uint64_t)r->stats.n_answer, r->stats.answer_ns);
}

/* Advice about an answer that a limit ended: a model that reasons first may not have begun it. */
static const char *unfinished(char *dst, size_t cap, const view *v, const report *r)
{
    const answer_stats *s = &r->stats;
    const bool full = s->end == ANSWER_CONTEXT, limited = full || s->end == ANSWER_LENGTH;
    const bool reasons = v->reasoning_last ||
                         (!v->answered && chat_format_of(r->l->format) == CHAT_HARMONY);
    dst[0] = '\0';
    if (!limited || v->o->raw || s->n_answer == 0 || !(reasons || !v->answered)) return dst;
    snprintf(dst, cap, "%s%s: use a larger %s%s", reasons ? " while reasoning" : "",
             v->answered ? "" : ", before the answer began", full ? "--ctx" : "-n",
             reasons && !v->o->a.show_reasoning ? ", or --show-reasoning" : "");
    return dst;
}

/* Times as fast as one token a pass, whose time was measured in this run; 0: it was not. */
static double gain_by_drafts(const report *r)
{
    const draft_times *t = runner_draft_times(session_runner(r->s));
    const answer_stats *s = &r->stats;
    if (s->n_draft == 0 || t->n_timed[0] < 2 || s->answer_ns == 0) return 0.0;
    return (s->n_answer - 1) * t->pass_s[0] * 1e9 / (double)s->answer_ns;
}

static const char *drafts_text(char *dst, size_t cap, const report *r)
{
    const answer_stats *s = &r->stats;
    const double gain = gain_by_drafts(r);
    dst[0] = '\0';
    if (s->n_draft == 0) return dst;
    const int n = snprintf(dst, cap, " (%d of %d drafts right", s->n_right, s->n_draft);
    if (gain > 0.0) snprintf(dst + n, cap - (size_t)n, ": %.2f times as fast)", gain);
    else snprintf(dst + n, cap - (size_t)n, ")");
    return dst;
}

static void say_end(const view *v, const report *r)
{
    const answer_stats *s = &r->stats;
    char peak[32], why[128], reused[32] = "", drafts[96];
    if (s->n_taken < s->n_prompt) {
        console_note("interrupted after %d of %d prompt tokens", s->n_taken, s->n_prompt);
        return;
    }
    text_bytes(peak, sizeof peak, peak_memory_bytes());
    if (s->n_reused > 0) snprintf(reused, sizeof reused, " (%d reused)", s->n_reused);
    console_note("%d prompt token%s%s at %.1f tok/s, %d answer token%s%s at %.1f tok/s, peak "
                 "memory %s, seed %llu, stopped: %s%s", s->n_prompt, s->n_prompt == 1 ? "" : "s",
                 reused,
                 prompt_rate(r), s->n_answer, s->n_answer == 1 ? "" : "s",
                 drafts_text(drafts, sizeof drafts, r),
                 answer_rate(r), peak, (unsigned long long)r->sampling->seed,
                 answer_end_name(s->end), unfinished(why, sizeof why, v, r));
}

static json_t *settings_json(const report *r, const run_options *o, json_error_t *why)
{
    const sampler_options *s = r->sampling;
    return json_pack_ex(why, 0, "{s:i, s:s, s:o, s:i, s:s, s:i, s:I, s:b, s:f, s:i, s:f, s:f, "
                     "s:f, s:f, s:f, s:i, s:i, s:o, s:b, s:o}",
                     "threads", engine_threads(r->l->e), "kernels", engine_kernels(r->l->e),
                     "slow_types", model_handle_slow_json(r->l),
                     "ctx", r->so->ctx,
                     "kv", kv_type_name(r->so->kv),
                     "chunk", r->so->chunk ? r->so->chunk : SESSION_CHUNK,
                     "max_tokens", (json_int_t)o->a.most_tokens, "raw", (int)o->raw,
                     "temperature", s->temperature, "top_k", s->top_k, "top_p", s->top_p,
                     "min_p", s->min_p, "repeat_penalty", s->repeat_penalty,
                     "presence_penalty", s->presence_penalty,
                     "frequency_penalty", s->frequency_penalty,
                     "penalty_window", s->penalty_window,
                     "experts_used", r->l->m->hp.n_expert_used, "experts_used_kl",
                     r->cost.own ? json_real(r->cost.kl) : json_null(),
                     "skip_missing", (int)o->a.engine.skip_missing, "cache_kl",
                     r->by_cache.n_row > 0 ? json_real(r->by_cache.kl) : json_null());
}

/* Bytes of each tier, and the expected speed if it is measured. */
static json_t *plan_json(const model_handle *l)
{
    const plan *p = &l->where->p;
    return json_pack("{s:I, s:I, s:I, s:o}", "vram_bytes", (json_int_t)plan_vram(p),
                     "ram_bytes", (json_int_t)plan_ram(p),
                     "drive_bytes", (json_int_t)p->drive.experts, "expected_tokens_per_second",
                     l->where->measured ? json_real(p->decode_tok_s) : json_null());
}

/* Adds counts unless they are off. NULL without memory. */
static json_t *with_counts(json_t *root, const report *r, const run_options *o)
{
    if (!root || o->a.level == PERF_OFF) return root;
    if (json_object_set_new(root, "perf", perf_view_session(r->s, o->a.level)) == 0) return root;
    json_decref(root);
    return NULL;
}

/* Bytes of a path that JSON cannot hold are escaped. NULL: *why has the reason. */
static json_t *answer_json(const view *v, const report *r, json_error_t *why)
{
    const answer_stats *s = &r->stats;
    char path[4 * PATH_MAX];
    json_t *settings = settings_json(r, v->o, why);
    return !settings ? NULL : json_pack_ex(
        why, 0, "{s:s%, s:s%, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:{s:f, s:f, s:f}, s:{s:f, s:f}, "
        "s:I, s:I, s:s, s:s, s:o, s:o}",
        "text", v->text.ptr ? v->text.ptr : "", v->text.len,
        "reasoning", v->reasoning.ptr ? v->reasoning.ptr : "", v->reasoning.len,
        "stop", answer_end_name(s->end),
        "prompt_tokens", s->n_prompt, "cached_tokens", s->n_reused, "answer_tokens", s->n_answer,
        "drafts", s->n_draft, "right_drafts", s->n_right, "gain_by_drafts", gain_by_drafts(r),
        "seconds", "load", (double)r->load_ns * 1e-9, "prompt", (double)s->prompt_ns * 1e-9,
        "answer", (double)s->answer_ns * 1e-9,
        "tokens_per_second", "prompt", prompt_rate(r), "answer", answer_rate(r),
        "peak_memory_bytes", (json_int_t)peak_memory_bytes(),
        "seed", (json_int_t)r->sampling->seed,
        "model", ESC(path, str_from(r->l->path)),
        "device", engine_on_gpu(r->l->e) ? engine_gpu_name(r->l->e) : "cpu",
        "plan", plan_json(r->l), "settings", settings);
}

/* One line. 0, or 1 after an error line; the view reports failed writes. */
static int print_json(view *v, const report *r)
{
    json_error_t why = { .text = "out of memory" };
    json_t *root = with_counts(answer_json(v, r, &why), r, v->o);
    char *text = root ? json_dumps(root, JSON_REAL_PRECISION(6)) : NULL;

    if (!text) {
        console_error("the answer cannot be written as JSON: %s",
                      root ? "out of memory" : why.text);
        json_decref(root);
        return 1;
    }
    json_decref(root);
    if (answer_view_str(&v->shown, text) == 0) answer_view_str(&v->shown, "\n");
    free(text);                          /* Jansson's own */
    return 0;
}

/* ---- the verb ------------------------------------------------------------------------------ */

/* Ends the output. Returns the exit code. */
static int finish(view *v, const report *r)
{
    int code;
    progress_end(&v->bar);
    if (v->text.failed || v->reasoning.failed) {
        console_error("out of memory for the answer's text");
        return 1;
    }
    answer_view_end(&v->shown, false);
    if (v->o->json && print_json(v, r) != 0) return 1;
    if ((code = answer_view_exit_code(&v->shown)) != 0) return code;
    if (!v->o->quiet) say_end(v, r);
    if (!v->o->quiet && v->speed.line[0]) console_note("%s", v->speed.line);
    return r->stats.end == ANSWER_INTERRUPTED ? interrupt_exit_code() : 0;
}

enum { LEAST_NEW_TOKENS = 64 };          /* at the end of a prompt, for another file */

/* Positions where the next prompt may differ from this one. */
static prompt_parts parts_of(const id_list *ids, const model_handle *l, const run_options *o,
                             const chat_request *req)
{
    prompt_parts p = { .n_prompt = (int)ids->n };
    if (ids->n < PROMPT_CACHE_LEAST) return p;
    if (!o->raw && o->a.system)
        p.n_system = prompt_cache_tokens(ids, l->format, l->enc, req, 1);
    if (!o->raw) p.n_stable = prompt_cache_stable(ids, l->format, l->enc, req);
    if (p.n_stable == 0) p.n_stable = p.n_prompt - 1;
    return p;
}

/* Prompt to answer on an open model. */
static int answer(model_handle *l, const run_options *o, const textbuf *text, session_options *so,
                  uint64_t start_ns)
{
    report r = { .l = l, .so = so };
    view v = { .o = o, .shown = answer_view_of(o->a.show_reasoning) };
    const answer_hooks hooks = { .ctx = &v, .text = on_text, .go_on = on_token,
                                 .watch = on_prompt };
    char date[32];
    chat_message messages[2];
    chat_request req;
    id_list ids = { 0 };
    sampling draw = { 0 };
    form_tries tries = { 0 };
    grammar_mask *mask = NULL;
    prompt_cache kept = { .drive_bytes = o->a.cache_bytes };
    session *s = NULL;
    model_handle_bytes bytes;
    err_ctx err = { 0 };
    int rc, code = 0;

    v.shown.quiet = o->quiet;
    fill_request(&req, messages, o, text,
                 o->a.date ? o->a.date : text_today(date, sizeof date));
    rc = o->raw ? encoder_encode_whole(l->enc, &ids, textbuf_view(text), true, false, &err)
                : chat_render(&ids, l->format, l->enc, &req, &err);
    if (rc < 0) goto done;
    if (so->ctx == 0) so->ctx = choose_ctx(o, ids.n, l->m->hp.ctx_train);
    if ((rc = model_handle_plan(&bytes, l, so, &err)) < 0) goto model_refused;
    if ((rc = check_length(ids.n, so->ctx, l->m->hp.ctx_train, &err)) < 0) goto done;
    if ((rc = sampling_open(&draw, &o->a.sampling, l->m, l->tok, so->ctx, &err)) < 0) goto done;
    if ((rc = form_tries_make(&tries, o->grammar, l->tok, &err)) < 0 ||
        (rc = form_mask(&mask, &tries, o->grammar, l->m->hp.n_vocab, &err)) < 0)
        goto done;
    if (o->a.engine.experts_used) {
        rc = experts_cost_measure(&r.cost, l, (int)o->a.engine.experts_used, so, &err);
        if (rc < 0) goto model_refused;
        experts_cost_say(&r.cost);       /* with --quiet too */
    }
    if (so->skip_missing) {
        if ((rc = cache_cost_measure(&r.by_cache, l, so, &err)) < 0) goto model_refused;
        cache_cost_say(&r.by_cache);
    }
    rc = prompt_cache_place(&kept, l, so, (int)ids.n, PROMPT_CACHE_SNAPSHOTS, &err);
    if (rc < 0 ||
        (rc = model_handle_plan(&bytes, l, so, &err)) < 0)
        goto model_refused;
    if (!o->quiet) model_handle_say_notes(l, !o->raw, o->a.reasoning != NULL);
    if ((rc = model_handle_session(&s, l, so, &err)) < 0) goto model_refused;
    runner_count(session_runner(s), o->a.level);
    r.s = s;
    r.sampling = &draw.options;
    r.load_ns = clock_ns() - start_ns;
    if (!o->quiet) say_plan(l, so, &bytes);
    plan_watch_begin(&v.speed, &l->where->p, l->where->measured, s);
    answer_options ao = {
        .tok = l->tok, .format = o->raw ? NULL : l->format, .req = &req, .stop = draw.stop,
        .form = mask, .max_tokens = (int)o->a.most_tokens, .show_special = true,
        .drafts = &draft_by_lookup,
    };
    const prompt_parts parts = parts_of(&ids, l, o, &req);
    prompt_cache_begin(&kept, &ao, s, so, &parts);
    interrupt_hold_stop(true);
    rc = answer_run(&r.stats, s, draw.smp, ids.ids, (int)ids.n, &ao, &hooks, &err);
    interrupt_hold_stop(false);
    if (rc < 0) answer_view_end(&v.shown, false);
    else code = finish(&v, &r);
    if (o->a.perf.out && *o->a.perf.out && perf_view_save(o->a.perf.out, s, o->a.level) != 0 &&
        code == 0)
        code = 1;
    if (rc == 0 && r.stats.n_taken >= r.stats.n_prompt)
        prompt_cache_end(&kept, s, LEAST_NEW_TOKENS);
    goto done;
model_refused:
    code = model_handle_fail(l->path, &err);
done:
    if (rc < 0 && code == 0) code = model_handle_fail(NULL, &err);
    prompt_cache_close(&kept);
    session_free(s);
    sampling_close(&draw);
    grammar_mask_free(mask);
    form_tries_release(&tries);
    ids_free(&ids);
    textbuf_free(&v.text);
    textbuf_free(&v.reasoning);
    return code;
}

/* What the table cannot check. 0, or 2 after one line. */
static int check_options(const run_options *o, const char *operand)
{
    err_ctx err;
    if (operand && o->file) {
        console_error("- and -f %s exclude each other", o->file);
        return 2;
    }
    if (!o->prompt && !o->file && !operand) {
        console_error(
            "no prompt: use -p TEXT, -f FILE or - for standard input; moe-run chat holds a "
            "conversation");
        return 2;
    }
    if (o->prompt && !*o->prompt && !o->file && !operand) {
        console_error("the prompt is empty");
        return 2;
    }
    if (o->prompt && text_check_utf8(str_from(o->prompt), &err) < 0) {
        console_error("-p: %s", err.msg);
        return 2;
    }
    if (o->raw && (o->a.system || o->a.reasoning)) {
        console_error("%s needs the chat format, which --raw leaves out",
                      o->a.system ? "--system" : "--reasoning");
        return 2;
    }
    return 0;
}

int cmd_run(int argc, char **argv)
{
    run_options o = { 0 };
    const char *operand = NULL;
    load_options load;
    session_options so;
    textbuf text = { 0 };
    model_handle l;
    err_ctx err;
    int rc, code;

    answer_args_init(&o.a);
    rc = args_parse(&spec, &o, &operand, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((code = check_options(&o, operand)) != 0 ||
        (code = answer_args_read(&o.a, &load, &so)) != 0)
        return code;
    if ((code = form_args_read(&o.grammar, &o.form)) != 0) return code;
    if (read_prompt(&text, &o, operand ? operand : o.file, &err) < 0) {
        code = model_handle_fail(NULL, &err);
        grammar_free(o.grammar);
        textbuf_free(&text);
        return code;
    }
    interrupt_install();
    const uint64_t start_ns = clock_ns();
    if (!load.path && !o.quiet) console_note("%s", DEMO_MODEL_REMARK);
    if (model_handle_open(&l, &load, &err) < 0) {
        code = model_handle_fail(load.path ? load.path : DEMO_MODEL_NAME, &err);
    } else {
        code = answer(&l, &o, &text, &so, start_ns);
        expert_cache_files_keep(l.e, &l.asked, l.m);
        model_handle_close(&l);
    }
    grammar_free(o.grammar);
    textbuf_free(&text);
    return code;
}
