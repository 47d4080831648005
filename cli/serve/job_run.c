/* job_run.c - the steps of a run: sampler, stop strings and form of each choice, then answer_step.
 *
 * A choice is open while run->smp is set. close_choice frees all of it, after its end or an error,
 * so that the slot's session is free for the next request. */
#include "cli/serve/job_run.h"

#include <math.h>
#include <stdio.h>
#include <sys/random.h>

#include "cli/chat/conversation.h"
#include "engine/session/runner.h"

enum { CHECKPOINT_TOKENS = 4096 };       /* of a long prompt: the distance of states in the cache */

/* ---- hooks of the answer --------------------------------------------------------------------- */

static bool continues(const job_run *run)
{
    return job_request_keepalive(run->request) && !atomic_load(run->hooks->finish_now) &&
           !run->has_only_call;
}

static int on_text(void *ctx, const chat_event *ev)
{
    job_run *run = ctx;
    if (ev->kind == CHAT_REASONING) run->in_reasoning = true;
    else if (ev->kind == CHAT_ANSWER || ev->kind == CHAT_CALL_BEGIN) run->in_reasoning = false;
    if (ev->kind == CHAT_CALL_END && !run->request->api->parallel_calls) run->has_only_call = true;
    const int rc = logprob_rows_event(run->rows, ev);
    return rc < 0 || ev->kind == CHAT_DONE ? rc : api_writer_event(run->request->writer, ev);
}

static int on_sampled(void *ctx, int32_t id, bool in_text)
{
    return logprob_rows_token(((job_run *)ctx)->rows, id, in_text);
}

static bool on_token(void *ctx)
{
    job_run *run = ctx;
    run->request->usage.n_answer++;
    run->request->usage.n_reasoning += run->in_reasoning;
    return continues(run);
}

static bool on_prompt(void *ctx, double done, double all)
{
    job_run *run = ctx;
    (void)done, (void)all;
    run->hooks->prompt_layer(run->hooks->ctx);
    return continues(run);
}

/* ---- one choice ------------------------------------------------------------------------------ */

static uint64_t random_seed(void)
{
    uint64_t r;
    return getrandom(&r, sizeof r, 0) == (ssize_t)sizeof r ? r : clock_ns();
}

static void overlay(sampler_options *o, const api_request *a)
{
    if (!isnan(a->temperature)) o->temperature = a->temperature;
    if (!isnan(a->top_p)) o->top_p = a->top_p;
    if (!isnan(a->min_p)) o->min_p = a->min_p;
    if (!isnan(a->repeat_penalty)) o->repeat_penalty = a->repeat_penalty;
    if (!isnan(a->presence_penalty)) o->presence_penalty = a->presence_penalty;
    if (!isnan(a->frequency_penalty)) o->frequency_penalty = a->frequency_penalty;
    if (a->top_k >= 0) o->top_k = a->top_k;
}

/* Options of the request over the model's defaults, with its biases. Tokens without a text are
 * never drawn. */
static int make_sampler(sampler **out, const job_run *run, err_ctx *err)
{
    const api_request *a = run->request->api;
    const model *m = run->request->engine->model->m;
    const tokenizer *tok = run->request->engine->model->tok;
    const int n_vocab = m->hp.n_vocab, n_token = tokenizer_n_token(tok);
    sampler_options o;
    int rc = sampler_defaults(&o, m, err);
    if (rc < 0) return rc;
    logit_bias *biases = mem_array((size_t)a->n_bias + 1, sizeof *biases);
    if (!biases) return err_set(err, ERR_NOMEM, "%d biases", a->n_bias);
    for (int i = 0; i < a->n_bias; i++)
        biases[i] = (logit_bias){ a->bias[i].id, a->bias[i].value <= -100 ? -INFINITY
                                                                         : a->bias[i].value };
    overlay(&o, a);
    o.seed = (a->has_seed ? a->seed : random_seed()) + (uint64_t)run->choice;
    o.biases = biases;
    o.n_bias = a->n_bias;
    rc = sampler_create(out, &o, n_vocab, session_ctx(run->s), err);
    mem_free(biases);
    if (rc < 0) return rc;
    for (int id = 0; id < n_vocab; id++)
        if (id >= n_token || tokenizer_kind(tok, id) == TOKEN_UNUSED ||
            (a->ignore_eos && tokenizer_is_stop(tok, id)))
            sampler_ban(*out, id);
    return 0;
}

static const id_list *prompt_of(const job_run *run)
{
    const job_request *r = run->request;
    return &r->prompts[run->choice / r->api->n % r->n_prompt];
}

/* Writes the prompt's text as the beginning of the answer, for completions that ask for it. */
static int echo_prompt(job_run *run)
{
    const id_list *prompt = prompt_of(run);
    const tokenizer *tok = run->request->engine->model->tok;
    chat_event ev = { .kind = CHAT_ANSWER };
    textbuf text = { 0 };
    err_ctx unused;
    int rc = 0;
    for (size_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= 0 && prompt->ids[i] < tokenizer_n_token(tok))
            textbuf_put(&text, tokenizer_bytes(tok, prompt->ids[i], true));
    ev.text = textbuf_view(&text);
    if (text.failed) rc = ERR_NOMEM;
    else if (text.len > 0 && text_check_utf8(ev.text, &unused) == 0)
        rc = api_writer_event(run->request->writer, &ev);
    textbuf_free(&text);
    return rc;
}

/* Logprobs, if the client asked for them; of the prompt's tokens, too, if it is echoed. */
static int open_rows(job_run *run, err_ctx *err)
{
    const job_request *r = run->request;
    if (r->api->logprobs < 0) return 0;
    const int rc = logprob_rows_create(&run->rows, r->engine->model->tok, r->writer, err);
    if (rc < 0) return rc;
    sampler_score(run->smp, logprob_rows_scores(run->rows), r->api->logprobs);
    run->scores_prompt = r->api->echo;
    return 0;
}

static void close_choice(job_run *run)
{
    if (run->scores_prompt && run->n_scored > 0) session_rewind(run->s, 0);   /* not finished */
    job_run_drafts(run, &run->n_draft, &run->n_right);
    answer_free(run->answer);
    grammar_mask_free(run->mask);
    stop_strings_free(run->stop);
    sampler_free(run->smp);
    logprob_rows_free(run->rows);
    run->answer = NULL;
    run->stop = NULL;
    run->smp = NULL;
    run->mask = NULL;
    run->rows = NULL;
    run->scores_prompt = false;
    run->n_scored = 0;
}

static int open_choice(job_run *run, err_ctx *err)
{
    const job_request *r = run->request;
    const int n_vocab = r->engine->model->m->hp.n_vocab;
    run->in_reasoning = run->has_only_call = false;
    int rc = make_sampler(&run->smp, run, err);
    if (rc == 0 && r->api->n_stop > 0)
        rc = stop_strings_create(&run->stop, r->api->stop, r->api->n_stop, err);
    if (rc == 0) rc = form_mask(&run->mask, &r->shared->tries, r->form, n_vocab, err);
    return rc == 0 ? open_rows(run, err) : rc;
}

/* Scores one chunk of the prompt, so that other slots get their steps between chunks. Returns 1 if
 * there is more. */
static int score_chunk(job_run *run, err_ctx *err)
{
    const job_request *r = run->request;
    const id_list *prompt = prompt_of(run);
    const int rc = logprob_rows_prompt(r->writer, r->engine->model->tok, run->s, prompt->ids,
                                       (int)prompt->n, run->n_scored, r->api->logprobs, err);
    if (rc < 0) return rc;
    run->n_scored = rc;
    run->scores_prompt = rc < (int)prompt->n - 1;
    return run->scores_prompt;
}

static int open_answer(job_run *run, err_ctx *err)
{
    const job_request *r = run->request;
    const model_handle *h = r->engine->model;
    const id_list *prompt = prompt_of(run);
    const answer_hooks hooks = { run, on_text, on_token, on_prompt, on_sampled };
    /* if unknown: another answer to the same prompt repeats all but its last token */
    const int n_stable = r->n_stable > 0 ? r->n_stable : (int)prompt->n - 1;
    const answer_options options = {
        .tok = h->tok, .format = r->api->raw ? NULL : h->format,
        .req = r->api->raw ? NULL : &r->parsing, .stop = run->stop, .form = run->mask,
        .max_tokens = r->api->max_tokens, .n_stable = n_stable, .cache = r->engine->cache,
        .cuts = &r->n_system, .n_cut = 1, .cut_every = CHECKPOINT_TOKENS,
        .drafts = &draft_by_lookup,
    };
    const int rc = r->api->echo ? echo_prompt(run) : 0;
    if (rc < 0) return err_set(err, rc, "cannot echo");
    return answer_open(&run->answer, run->s, run->smp, prompt->ids, (int)prompt->n, &options,
                       &hooks, err);
}

/* ---- all choices ----------------------------------------------------------------------------- */

/* Adds the choice that has ended to the request's usage and goes on to the next. */
static int end_choice(job_run *run, err_ctx *err)
{
    job_request *r = run->request;
    const int rc = logprob_rows_end(run->rows);
    const answer_stats *s = &run->stats;
    run->stats = *answer_so_far(run->answer);
    const int which = run->stop ? stop_strings_which(run->stop) : -1;
    run->stop_text = which >= 0 ? r->api->stop[which] : NULL;
    if (run->has_only_call && s->end == ANSWER_INTERRUPTED) run->stats.end = ANSWER_STOP;
    close_choice(run);
    run->hooks->count(run->hooks->ctx, s);
    run->n_drawn += s->n_answer;
    if (run->choice % r->api->n == 0) r->usage.n_cached += s->n_reused;
    r->usage.prompt_ns += s->prompt_ns;
    r->usage.answer_ns += s->answer_ns;
    run->choice++;
    if (s->end == ANSWER_INTERRUPTED) run->choice = run->n_choice;
    return rc < 0 ? err_set(err, rc, "out of memory") : 0;
}

/* Opens the next choice, scores its prompt, opens its answer. Returns 1 while the prompt is
 * scored. */
static int next_choice(job_run *run, err_ctx *err)
{
    api_writer *w = run->request->writer;
    int rc = 0;
    if (!run->smp) {
        if (run->choice > 0) api_writer_finish(w, run->stats.end, run->stop_text);
        if (run->n_choice > 1) api_writer_choice(w, run->choice);
        rc = open_choice(run, err);
    }
    if (rc == 0 && run->scores_prompt) rc = score_chunk(run, err);
    if (rc == 0) rc = open_answer(run, err);
    return rc;
}

/* rc: of the answer's step. Returns 1 if there is more. */
static int after_step(job_run *run, int rc, err_ctx *err)
{
    if (rc == 0 && run->answer) rc = end_choice(run, err);
    return rc != 0 ? rc : run->choice < run->n_choice;
}

static int step(job_run *run, err_ctx *err)
{
    int rc = 0;
    if (!run->answer && run->choice < run->n_choice) rc = next_choice(run, err);
    if (rc == 0 && run->answer) rc = answer_step(run->answer, err);
    return after_step(run, rc, err);
}

/* The rest of the request's log line. */
static void remark(const job_run *run)
{
    const job_request *r = run->request;
    char text[HTTP_REMARK];
    snprintf(text, sizeof text, "prompt of %d tokens (%d reused), answer of %d, %.2f s, %s",
             r->usage.n_prompt, r->usage.n_cached, r->usage.n_answer,
             (double)(clock_ns() - r->arrived_ns) * 1e-9,
             http_gone(r->exchange) ? "the client left" : answer_end_name(run->stats.end));
    http_remark(r->exchange, text);
}

/* Completes the response. An answer that was interrupted although its client is here ends as if its
 * length were reached: the server stops. */
static void end_response(job_run *run)
{
    job_request *r = run->request;
    const answer_end end = run->stats.end == ANSWER_INTERRUPTED ? ANSWER_LENGTH : run->stats.end;
    if (api_writer_end(r->writer, end, run->stop_text, &r->usage) < 0) http_break(r->exchange);
    else if (r->api->stream) http_end(r->exchange);
    else http_reply(r->exchange, 200, api_content_type(r->api), r->body.ptr, r->body.len);
}

void job_run_begin(job_run *run, job_request *request, session *s, const job_run_hooks *hooks)
{
    *run = (job_run){ .request = request, .s = s, .hooks = hooks, .stats.end = ANSWER_STOP,
                      .n_choice = request->api->load_only ? 0
                                                          : api_writer_n_choice(request->api) };
}

int job_run_cached(const job_run *run)
{
    const bool counts = run->answer && run->choice % run->request->api->n == 0;
    return run->request->usage.n_cached + (counts ? answer_so_far(run->answer)->n_reused : 0);
}

void job_run_drafts(const job_run *run, int *n_draft, int *n_right)
{
    const answer_stats *s = run->answer ? answer_so_far(run->answer) : NULL;
    *n_draft = run->n_draft + (s ? s->n_draft : 0);
    *n_right = run->n_right + (s ? s->n_right : 0);
}

bool job_run_draws(const job_run *run) { return run->answer && answer_draws(run->answer); }

/* rc: of a step; the response is completed unless there is more. */
static int end_step(job_run *run, int rc, const err_ctx *err)
{
    job_request *r = run->request;
    if (rc > 0) return rc;
    close_choice(run);
    if (rc == 0) r->usage.n_answer = run->n_drawn;
    r->usage.total_ns = clock_ns() - r->arrived_ns;
    remark(run);
    if (http_gone(r->exchange)) return ERR_STOPPED;
    if (rc < 0) job_request_fail(r, rc == ERR_RANGE ? API_BAD_REQUEST : API_BROKEN, err->msg);
    else end_response(run);
    return rc;
}

int job_run_step(job_run *run)
{
    err_ctx err = { 0 };
    int rc = 0;
    if (!run->answer && !job_request_keepalive(run->request))
        rc = err_set(&err, ERR_STOPPED, "the client has left");
    else if (!run->answer && run->choice < run->n_choice && atomic_load(run->hooks->finish_now))
        run->stats.end = ANSWER_INTERRUPTED;
    else rc = step(run, &err);
    return end_step(run, rc, &err);
}

int job_run_most_together(const session *s) { return answer_most_together(s); }

void job_run_step_together(job_run *const *runs, int n, int n_draft, int *rc)
{
    running_answer *answers[RUNNER_MOST_ROWS] = { 0 };
    err_ctx err[RUNNER_MOST_ROWS];
    for (int i = 0; i < n; i++) answers[i] = runs[i]->answer;
    answer_step_together(answers, n, n_draft, rc, err);
    for (int i = 0; i < n; i++)
        rc[i] = end_step(runs[i], after_step(runs[i], rc[i], &err[i]), &err[i]);
}
