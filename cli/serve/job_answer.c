/* job_answer.c - a prompt's way to its answer: sampler, stop strings, form, and the steps of
 * engine/session/answer.h, once for each choice. */
#include "cli/serve/job.h"

#include <math.h>
#include <stdio.h>
#include <sys/random.h>

#include "cli/chat/conversation.h"
#include "cli/form_args.h"

enum { MARK_EVERY = 4096 };              /* tokens of a long prompt */

/* ---- while it is computed -------------------------------------------------------------------- */

static bool goes_on(const job *j)
{
    return !atomic_load(j->hurry) && !j->enough;
}

static int on_text(void *ctx, const chat_event *ev)
{
    job *j = ctx;
    if (ev->kind == CHAT_REASONING) j->reasons = true;
    else if (ev->kind == CHAT_ANSWER || ev->kind == CHAT_CALL_BEGIN) j->reasons = false;
    if (ev->kind == CHAT_CALL_END && !j->r->parallel_calls) j->enough = true;
    const int rc = logprob_rows_event(j->rows, ev);
    return rc < 0 || ev->kind == CHAT_DONE ? rc : api_writer_event(j->w, ev);
}

static int on_sampled(void *ctx, int32_t id, bool in_text)
{
    return logprob_rows_token(((job *)ctx)->rows, id, in_text);
}

static bool on_token(void *ctx)
{
    job *j = ctx;
    j->usage.n_answer++;
    j->usage.n_reasoning += j->reasons;
    return job_stays(j) && goes_on(j);
}

static bool on_prompt(void *ctx, double done, double all)
{
    job *j = ctx;
    (void)done, (void)all;
    desk_pause(j->d, DESK_LOOK);
    return job_stays(j) && goes_on(j);
}

/* ---- a choice -------------------------------------------------------------------------------- */

static uint64_t random_seed(void)
{
    uint64_t r;
    return getrandom(&r, sizeof r, 0) == (ssize_t)sizeof r ? r : clock_ns();
}

static void overlay(sampler_options *o, const api_request *r)
{
    if (!isnan(r->temperature)) o->temperature = r->temperature;
    if (!isnan(r->top_p)) o->top_p = r->top_p;
    if (!isnan(r->min_p)) o->min_p = r->min_p;
    if (!isnan(r->repeat_penalty)) o->repeat_penalty = r->repeat_penalty;
    if (!isnan(r->presence_penalty)) o->presence_penalty = r->presence_penalty;
    if (!isnan(r->frequency_penalty)) o->frequency_penalty = r->frequency_penalty;
    if (r->top_k >= 0) o->top_k = r->top_k;
}

/* With the biases of the request; tokens that nothing means are never drawn. */
static int make_sampler(sampler **out, const job *j, int choice, err_ctx *err)
{
    const api_request *r = j->r;
    const model *m = j->o->model->m;
    const tokenizer *tok = j->o->model->tok;
    const int n_vocab = m->hp.n_vocab, n_token = tokenizer_n_token(tok);
    sampler_options o;
    int rc = sampler_defaults(&o, m, err);
    if (rc < 0) return rc;
    logit_bias *biases = mem_array((size_t)r->n_bias + 1, sizeof *biases);
    if (!biases) return err_set(err, ERR_NOMEM, "%d biases", r->n_bias);
    for (int i = 0; i < r->n_bias; i++)
        biases[i] = (logit_bias){ r->bias[i].id, r->bias[i].value <= -100 ? -INFINITY
                                                                         : r->bias[i].value };
    overlay(&o, r);
    o.seed = (r->has_seed ? r->seed : random_seed()) + (uint64_t)choice;
    o.biases = biases;
    o.n_bias = r->n_bias;
    rc = sampler_create(out, &o, n_vocab, session_ctx(j->s), err);
    mem_free(biases);
    if (rc < 0) return rc;
    for (int id = 0; id < n_vocab; id++)
        if (id >= n_token || tokenizer_kind(tok, id) == TOKEN_UNUSED ||
            (r->ignore_eos && tokenizer_is_stop(tok, id)))
            sampler_ban(*out, id);
    return 0;
}

/* Of completions that repeat the prompt. */
static int echo(job *j, const id_list *prompt)
{
    const tokenizer *tok = j->o->model->tok;
    textbuf text = { 0 };
    err_ctx unused;
    int rc = 0;
    for (size_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= 0 && prompt->ids[i] < tokenizer_n_token(tok))
            textbuf_put(&text, tokenizer_bytes(tok, prompt->ids[i], true));
    if (text.failed) rc = ERR_NOMEM;
    else if (text.len > 0 && text_check_utf8(textbuf_view(&text), &unused) == 0)
        rc = api_writer_event(j->w, &(chat_event){ .kind = CHAT_ANSWER,
                                                   .text = textbuf_view(&text) });
    textbuf_free(&text);
    return rc;
}

static const id_list *prompt_of(const job *j)
{
    return &j->prompts[j->choice / j->r->n % j->n_prompt];
}

/* Log probabilities, where they are asked for: of a prompt that is repeated, too. */
static int begin_rows(job *j, err_ctx *err)
{
    const int n_top = j->r->logprobs;
    if (n_top < 0) return 0;
    const int rc = logprob_rows_create(&j->rows, j->o->model->tok, j->w, err);
    if (rc < 0) return rc;
    sampler_score(j->smp, logprob_rows_scores(j->rows), n_top);
    j->scores = j->r->echo;
    return 0;
}

static void close_choice(job *j)
{
    if (j->scores && j->n_scored > 0) session_rewind(j->s, 0);   /* left half-way */
    answer_free(j->a);
    grammar_mask_free(j->mask);
    stop_strings_free(j->stop);
    sampler_free(j->smp);
    logprob_rows_free(j->rows);
    j->a = NULL;
    j->stop = NULL;
    j->smp = NULL;
    j->mask = NULL;
    j->rows = NULL;
    j->scores = false;
    j->n_scored = 0;
}

/* All that it needs. */
static int open_choice(job *j, err_ctx *err)
{
    j->reasons = j->enough = false;
    int rc = make_sampler(&j->smp, j, j->choice, err);
    if (rc == 0 && j->r->n_stop > 0)
        rc = stop_strings_create(&j->stop, j->r->stop, j->r->n_stop, err);
    if (rc == 0)
        rc = form_mask(&j->mask, &j->shared->tries, j->form, j->o->model->m->hp.n_vocab, err);
    return rc == 0 ? begin_rows(j, err) : rc;
}

/* A piece of the prompt, as others have their turns between pieces. 1: there is more. */
static int score_prompt(job *j, err_ctx *err)
{
    const id_list *prompt = prompt_of(j);
    const int rc = logprob_rows_prompt(j->w, j->o->model->tok, j->s, prompt->ids, (int)prompt->n,
                                       j->n_scored, j->r->logprobs, err);
    if (rc < 0) return rc;
    j->n_scored = rc;
    j->scores = rc < (int)prompt->n - 1;
    return j->scores;
}

static int begin_answer(job *j, err_ctx *err)
{
    const model_handle *l = j->o->model;
    const id_list *prompt = prompt_of(j);
    const answer_hooks hooks = { j, on_text, on_token, on_prompt, on_sampled };
    /* where it is not known: what another answer to the same prompt begins with */
    const int n_stable = j->n_stable > 0 ? j->n_stable : (int)prompt->n - 1;
    const answer_options ao = {
        .tok = l->tok, .talk = j->r->raw ? NULL : l->talk, .req = j->r->raw ? NULL : &j->shown,
        .stop = j->stop, .form = j->mask, .max_tokens = j->r->max_tokens,
        .n_stable = n_stable, .cache = j->o->cache, .marks = &j->n_system, .n_mark = 1,
        .mark_every = MARK_EVERY,
    };
    const int rc = j->r->echo ? echo(j, prompt) : 0;
    if (rc < 0) return err_set(err, rc, "cannot echo");
    return answer_open(&j->a, j->s, j->smp, prompt->ids, (int)prompt->n, &ao, &hooks, err);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* A choice has ended: what it took goes into the job's usage. */
static int end_choice(job *j, job_count_fn *count, void *ctx, err_ctx *err)
{
    const int rc = logprob_rows_end(j->rows);
    j->stats = *answer_so_far(j->a);
    const int which = j->stop ? stop_strings_which(j->stop) : -1;
    j->stop_text = which >= 0 ? j->r->stop[which] : NULL;
    if (j->enough && j->stats.end == ANSWER_INTERRUPTED) j->stats.end = ANSWER_STOP;
    close_choice(j);
    count(ctx, &j->stats);
    j->n_drawn += j->stats.n_answer;
    if (j->choice % j->r->n == 0) j->usage.n_cached += j->stats.n_reused;
    j->usage.prompt_ns += j->stats.prompt_ns;
    j->usage.answer_ns += j->stats.answer_ns;
    j->choice++;
    if (j->stats.end == ANSWER_INTERRUPTED) j->choice = j->n_choice;
    return rc < 0 ? err_set(err, rc, "out of memory") : 0;
}

/* Up to a choice under way. 1: not yet. */
static int prepare(job *j, err_ctx *err)
{
    int rc = 0;
    if (!j->smp) {
        if (j->choice > 0) api_writer_finish(j->w, j->stats.end, j->stop_text);
        if (j->n_choice > 1) api_writer_choice(j->w, j->choice);
        rc = open_choice(j, err);
    }
    if (rc == 0 && j->scores) rc = score_prompt(j, err);
    if (rc == 0) rc = begin_answer(j, err);
    return rc;
}

/* 1: there is more. */
static int step(job *j, job_count_fn *count, void *ctx, err_ctx *err)
{
    int rc = 0;
    if (!j->a && j->choice < j->n_choice) rc = prepare(j, err);
    if (rc == 0 && j->a) rc = answer_step(j->a, err);
    if (rc == 0 && j->a) rc = end_choice(j, count, ctx, err);
    return rc != 0 ? rc : j->choice < j->n_choice;
}

/* For the log. */
static void say_what(job *j)
{
    char text[HTTP_REMARK];
    snprintf(text, sizeof text, "prompt of %d tokens (%d reused), answer of %d, %.2f s, %s",
             j->usage.n_prompt, j->usage.n_cached, j->usage.n_answer,
             (double)(clock_ns() - j->arrived_ns) * 1e-9,
             http_gone(j->x) ? "the client left" : answer_end_name(j->stats.end));
    http_remark(j->x, text);
}

void job_sit(job *j, session *s)
{
    j->s = s;
    j->stats = (answer_stats){ .end = ANSWER_STOP };
    j->n_choice = j->r->load_only ? 0 : api_writer_n_choice(j->r);
}

int job_cached(const job *j)
{
    const bool counts = j->a && j->choice % j->r->n == 0;
    return j->usage.n_cached + (counts ? answer_so_far(j->a)->n_reused : 0);
}

bool job_draws(const job *j) { return j->a && answer_draws(j->a); }

int job_step(job *j, job_count_fn *count, void *ctx)
{
    err_ctx err = { 0 };
    int rc = 0;
    if (!j->a && !job_stays(j)) rc = err_set(&err, ERR_STOPPED, "the client has left");
    else if (!j->a && j->choice < j->n_choice && atomic_load(j->hurry))
        j->stats.end = ANSWER_INTERRUPTED;
    else rc = step(j, count, ctx, &err);
    if (rc > 0) return rc;
    close_choice(j);
    j->usage.n_answer = rc == 0 ? j->n_drawn : j->usage.n_answer;
    j->usage.total_ns = clock_ns() - j->arrived_ns;
    say_what(j);
    if (http_gone(j->x)) return ERR_STOPPED;
    if (rc < 0) {
        job_fail(j, rc == ERR_RANGE ? API_BAD_REQUEST : API_BROKEN, err.msg);
        return rc;
    }
    /* what was interrupted though the client is there: the server closes */
    const answer_end end = j->stats.end == ANSWER_INTERRUPTED ? ANSWER_LENGTH : j->stats.end;
    if (api_writer_end(j->w, end, j->stop_text, &j->usage) < 0) http_break(j->x);
    else if (j->r->stream) http_end(j->x);
    else http_reply(j->x, 200, api_content_type(j->r), j->body.ptr, j->body.len);
    return 0;
}
