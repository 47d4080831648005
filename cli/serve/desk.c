/* desk.c - two queues and two threads: requests to prompts, prompts to answers.
 *
 * A job belongs to the thread that has taken it out of a queue. While it waits for the engine it is
 * the clerk's, who keeps its stream alive; so its writer is never used by two threads at a time. */
#include "cli/serve/desk.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "cli/console.h"
#include "cli/form_args.h"

static const uint64_t idle_ns = 10ull * 1000 * 1000 * 1000;
enum { MARK_EVERY = 4096 };              /* tokens of a long prompt */

typedef struct job {
    struct job *next;
    http_exchange *x;
    api_request *r;
    bool count;
    api_writer *w;
    textbuf body;                        /* of an answer in one piece */
    id_list ids;
    int n_stable;                        /* of them, before the cue: the next turn has these, too */
    int n_system;                        /* of them, system message and tools: so have others */
    grammar *form;                       /* that the answer has, or NULL */
    uint64_t arrived_ns, wrote_ns;
    api_usage usage;
    bool reasons;                        /* the latest text was reasoning */
    desk *d;
} job;

typedef struct job_list { job *first, *last; int n; } job_list;

struct desk {
    desk_options o;
    encoder *enc;                        /* the clerk's own */
    pthread_t clerk, engine;
    bool has_clerk, has_engine;
    pthread_mutex_t lock;                /* of all below */
    pthread_cond_t more;
    job_list fresh, ready;
    bool closing;
    atomic_bool hurry;                   /* the running one ends now */
    desk_counts counts;
};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void push(job_list *l, job *j)
{
    j->next = NULL;
    if (l->last) l->last->next = j;
    else l->first = j;
    l->last = j;
    l->n++;
}

static job *pop(job_list *l)
{
    job *j = l->first;
    if (!j) return NULL;
    l->first = j->next;
    if (!l->first) l->last = NULL;
    l->n--;
    return j;
}

static void job_free(job *j)
{
    if (!j) return;
    api_writer_free(j->w);
    api_request_free(j->r);
    textbuf_free(&j->body);
    ids_free(&j->ids);
    grammar_free(j->form);
    http_release(j->x);
    mem_free(j);
}

static int on_bytes(void *ctx, const char *bytes, size_t n)
{
    job *j = ctx;
    j->wrote_ns = clock_ns();
    if (j->r->stream) return http_write(j->x, bytes, n);
    textbuf_put(&j->body, (str_view){ bytes, n });
    return j->body.failed ? ERR_NOMEM : 0;
}

/* Nothing has gone out yet. */
static void refuse(http_exchange *x, api_kind kind, const api_error *why)
{
    char *body = api_error_body(why, kind, http_id(x));
    if (why->status == 503 || why->status == 529) http_add_header(x, "Retry-After", "1");
    http_reply(x, why->status, "application/json", body ? body : "", body ? strlen(body) : 0);
    mem_free(body);
}

/* In a stream, or with the error's status. */
static void fail(job *j, const api_error *why)
{
    if (!j->r->stream || !j->w) {
        refuse(j->x, j->r->kind, why);
        return;
    }
    if (api_writer_fail(j->w, why) == 0) http_end(j->x);
    else http_break(j->x);
}

static void fail_with(job *j, api_trouble what, const char *text)
{
    api_error why;
    api_error_make(&why, what, j->r->kind, "%s", text);
    fail(j, &why);
}

/* ---- the clerk ------------------------------------------------------------------------------- */

/* How many tokens of the prompt its first n messages make, without a cue; 0: they do not begin
 * it. */
static int tokens_of(const job *j, encoder *enc, const chat_request *all, int n)
{
    chat_request req = *all;
    id_list ids = { 0 };
    err_ctx unused;
    req.n_message = n;
    req.no_cue = true;
    const bool ok = chat_render(&ids, j->d->o.model->talk, enc, &req, &unused) == 0 &&
                    ids.n < j->ids.n && !memcmp(ids.ids, j->ids.ids, ids.n * sizeof *ids.ids);
    const int n_token = ok ? (int)ids.n : 0;
    ids_free(&ids);
    return n_token;
}

static int render(job *j, encoder *enc, err_ctx *err)
{
    chat_request req = j->r->chat;
    char date[32];
    int n_system = 0;
    req.date = str_from(text_today(date, sizeof date));
    const int rc = chat_render(&j->ids, j->d->o.model->talk, enc, &req, err);
    if (rc < 0) return rc;
    while (n_system < req.n_message && (req.messages[n_system].role == CHAT_SYSTEM ||
                                        req.messages[n_system].role == CHAT_DEVELOPER))
        n_system++;
    j->n_stable = tokens_of(j, enc, &req, req.n_message);
    if (n_system > 0 && n_system < req.n_message) j->n_system = tokens_of(j, enc, &req, n_system);
    return 0;
}

static int make_form(job *j, err_ctx *err)
{
    const api_request *r = j->r;
    if (r->form == FORM_JSON) return grammar_any_object(&j->form, err);
    if (r->form == FORM_SCHEMA) return grammar_from_schema(&j->form, r->schema, r->strict, err);
    return 0;
}

static int make_prompt(job *j, encoder *enc, err_ctx *err)
{
    const api_request *r = j->r;
    if (!r->raw) return render(j, enc, err);
    if (r->prompt)
        return encoder_encode(enc, &j->ids, (str_view){ r->prompt, r->n_prompt }, false, err);
    for (int i = 0; i < r->n_prompt_ids; i++) {
        const int rc = ids_push(&j->ids, r->prompt_ids[i], err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int make_writer(job *j)
{
    const api_names names = { j->d->o.name, http_id(j->x), (int64_t)time(NULL) };
    return api_writer_create(&j->w, j->r, &names, on_bytes, j);
}

/* Of a stream the head, and its first events. */
static int begin(job *j)
{
    if (j->r->stream) {
        http_add_header(j->x, "Cache-Control", "no-cache");
        http_add_header(j->x, "X-Accel-Buffering", "no");
        http_stream(j->x, 200, api_content_type(j->r));
    }
    return api_writer_begin(j->w, &j->usage);
}

/* True: it may wait for the engine. False: it has been answered. */
static bool prepare(desk *d, job *j)
{
    err_ctx err = { 0 };
    api_error why;
    const int ctx = session_ctx(d->o.s);
    int rc = make_form(j, &err);
    if (rc == 0) rc = make_prompt(j, d->enc, &err);
    if (rc < 0) {
        fail_with(j, rc == ERR_NOMEM ? API_BROKEN : API_BAD_REQUEST, err.msg);
        return false;
    }
    if (j->count) {
        char *body = api_count_body((int)j->ids.n);
        http_reply(j->x, 200, "application/json", body ? body : "", body ? strlen(body) : 0);
        mem_free(body);
        return false;
    }
    j->usage.n_prompt = (int)j->ids.n;
    if (make_writer(j) < 0) {
        fail_with(j, API_BROKEN, "out of memory");
        return false;
    }
    if (j->ids.n >= (size_t)ctx) {
        const bool inside = api_error_overflow(&why, j->r, (int)j->ids.n, ctx);
        if (inside && begin(j) == 0) fail(j, &why);
        else refuse(j->x, j->r->kind, &why);
        return false;
    }
    if (j->ids.n == 0 && !j->r->load_only) {
        fail_with(j, API_BAD_REQUEST, "the prompt is empty");
        return false;
    }
    return begin(j) == 0;
}

/* The lock is held. Streams that wait say so; clients who left make room. */
static void look_after(desk *d)
{
    job_list rest = { 0 };
    const uint64_t now = clock_ns();
    for (job *j; (j = pop(&d->ready));) {
        const bool gone = http_gone(j->x) ||
                          (now - j->wrote_ns > idle_ns && api_writer_idle(j->w) < 0);
        if (gone) {
            d->counts.cancelled++;
            job_free(j);
        } else {
            if (now - j->wrote_ns > idle_ns) j->wrote_ns = now;
            push(&rest, j);
        }
    }
    d->ready = rest;
}

static void *clerk(void *ctx)
{
    desk *d = ctx;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        job *j = pop(&d->fresh);
        if (!j && d->closing) break;
        if (!j) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec++;
            pthread_cond_timedwait(&d->more, &d->lock, &until);
            look_after(d);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        j->wrote_ns = clock_ns();
        const bool ready = prepare(d, j);
        if (!ready) job_free(j);
        pthread_mutex_lock(&d->lock);
        if (ready) push(&d->ready, j);
        pthread_cond_broadcast(&d->more);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static bool goes_on(const job *j) { return !http_gone(j->x) && !atomic_load(&j->d->hurry); }

static int on_text(void *ctx, const chat_event *ev)
{
    job *j = ctx;
    if (ev->kind == CHAT_REASONING) j->reasons = true;
    else if (ev->kind == CHAT_ANSWER || ev->kind == CHAT_CALL_BEGIN) j->reasons = false;
    return ev->kind == CHAT_DONE ? 0 : api_writer_event(j->w, ev);
}

static bool on_token(void *ctx)
{
    job *j = ctx;
    j->usage.n_answer++;
    j->usage.n_reasoning += j->reasons;
    if (clock_ns() - j->wrote_ns > idle_ns) (void)api_writer_idle(j->w);
    return goes_on(j);
}

static bool on_prompt(void *ctx, double done, double all)
{
    job *j = ctx;
    if (clock_ns() - j->wrote_ns > idle_ns) (void)api_writer_idle(j->w);
    (void)done, (void)all;
    return goes_on(j);
}

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
static int make_sampler(sampler **out, const desk *d, const api_request *r, int choice,
                        err_ctx *err)
{
    const model *m = d->o.model->m;
    const tokenizer *tok = d->o.model->tok;
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
    rc = sampler_create(out, &o, n_vocab, session_ctx(d->o.s), err);
    mem_free(biases);
    if (rc < 0) return rc;
    for (int id = 0; id < n_vocab; id++)
        if (id >= n_token || tokenizer_kind(tok, id) == TOKEN_UNUSED) sampler_ban(*out, id);
    return 0;
}

static int answer_choice(answer_stats *stats, desk *d, job *j, int choice, err_ctx *err)
{
    const model_handle *l = d->o.model;
    const answer_hooks hooks = { j, on_text, on_token, on_prompt };
    chat_request shown = j->r->chat;     /* as the parser sees it */
    sampler *smp = NULL;
    stops *stop = NULL;
    form held_to = { 0 };
    if (j->r->tool_choice == CHOICE_NONE) shown.tools = NULL;
    int rc = make_sampler(&smp, d, j->r, choice, err);
    if (rc == 0 && j->r->n_stop > 0) rc = stops_create(&stop, j->r->stop, j->r->n_stop, err);
    if (rc == 0) rc = form_open(&held_to, j->form, l->tok, l->m->hp.n_vocab, err);
    const answer_options ao = {
        .tok = l->tok, .talk = j->r->raw ? NULL : l->talk, .req = j->r->raw ? NULL : &shown,
        .stop = stop, .form = held_to.mask, .max_tokens = j->r->max_tokens,
        .n_stable = j->n_stable, .cache = d->o.cache, .marks = &j->n_system, .n_mark = 1,
        .mark_every = MARK_EVERY,
    };
    if (rc == 0)
        rc = answer_run(stats, d->o.s, smp, j->ids.ids, (int)j->ids.n, &ao, &hooks, err);
    form_close(&held_to);
    stops_free(stop);
    sampler_free(smp);
    return rc;
}

static void add_counts(desk *d, const answer_stats *s)
{
    pthread_mutex_lock(&d->lock);
    d->counts.prompt_tokens += (uint64_t)(s->n_taken - s->n_reused);
    d->counts.cached_tokens += (uint64_t)s->n_reused;
    d->counts.answer_tokens += (uint64_t)s->n_answer;
    d->counts.prompt_s += (double)s->prompt_ns * 1e-9;
    d->counts.answer_s += (double)s->answer_ns * 1e-9;
    if ((uint64_t)(s->n_prompt + s->n_answer) > d->counts.most_tokens)
        d->counts.most_tokens = (uint64_t)(s->n_prompt + s->n_answer);
    pthread_mutex_unlock(&d->lock);
}

/* All choices; what they took goes into the job's usage. */
static int answer_all(answer_stats *stats, desk *d, job *j, err_ctx *err)
{
    const int n = j->r->load_only ? 0 : api_writer_n_choice(j->r);
    int n_answer = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0) api_writer_finish(j->w, stats->end, NULL);
        if (n > 1) api_writer_choice(j->w, i);
        j->reasons = false;
        const int rc = answer_choice(stats, d, j, i, err);
        if (rc < 0) return rc;
        add_counts(d, stats);
        n_answer += stats->n_answer;
        if (i == 0) j->usage.n_cached = stats->n_reused;
        j->usage.prompt_ns += stats->prompt_ns;
        j->usage.answer_ns += stats->answer_ns;
        if (stats->end == ANSWER_INTERRUPTED) break;
    }
    j->usage.n_answer = n_answer;
    j->usage.total_ns = clock_ns() - j->arrived_ns;
    return 0;
}

static void answer(desk *d, job *j)
{
    answer_stats stats = { .end = ANSWER_STOP };
    err_ctx err = { 0 };
    const int rc = answer_all(&stats, d, j, &err);
    const bool by_text = stats.end == ANSWER_STOP_TEXT && j->r->n_stop == 1;
    const char *stop_text = by_text ? j->r->stop[0] : NULL;
    if (http_gone(j->x)) {
        pthread_mutex_lock(&d->lock);
        d->counts.cancelled++;
        pthread_mutex_unlock(&d->lock);
        return;
    }
    if (rc < 0) {
        pthread_mutex_lock(&d->lock);
        d->counts.failed++;
        pthread_mutex_unlock(&d->lock);
        fail_with(j, rc == ERR_RANGE ? API_BAD_REQUEST : API_BROKEN, err.msg);
        return;
    }
    if (stats.end == ANSWER_INTERRUPTED) stats.end = ANSWER_LENGTH;      /* the server closes */
    if (api_writer_end(j->w, stats.end, stop_text, &j->usage) < 0) {
        http_break(j->x);
    } else if (j->r->stream) {
        http_end(j->x);
    } else {
        http_reply(j->x, 200, api_content_type(j->r), j->body.ptr, j->body.len);
    }
}

static void *engine_thread(void *ctx)
{
    desk *d = ctx;
    bool unsaved = false;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        job *j = d->closing ? NULL : pop(&d->ready);
        if (!j && d->closing && !unsaved) break;
        if (!j && unsaved) {             /* there is time: a kill would lose it */
            pthread_mutex_unlock(&d->lock);
            (void)prefix_cache_flush(d->o.cache, NULL);
            pthread_mutex_lock(&d->lock);
            unsaved = false;
            continue;
        }
        if (!j) {
            pthread_cond_wait(&d->more, &d->lock);
            continue;
        }
        unsaved = d->o.cache != NULL;
        d->counts.running = 1;
        pthread_mutex_unlock(&d->lock);
        if (!http_gone(j->x)) answer(d, j);
        job_free(j);
        pthread_mutex_lock(&d->lock);
        d->counts.running = 0;
        pthread_cond_broadcast(&d->more);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the desk -------------------------------------------------------------------------------- */

int desk_open(desk **out, const desk_options *o, err_ctx *err)
{
    desk *d = mem_zalloc(sizeof *d);
    *out = NULL;
    if (!d) return err_set(err, ERR_NOMEM, "desk: %zu bytes", sizeof *d);
    d->o = *o;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->more, NULL);
    int rc = encoder_create(&d->enc, o->model->tok, err);
    if (rc == 0) d->has_clerk = (rc = -pthread_create(&d->clerk, NULL, clerk, d)) == 0;
    if (rc == 0) d->has_engine = (rc = -pthread_create(&d->engine, NULL, engine_thread, d)) == 0;
    if (rc < 0 && !d->has_engine && !err->msg[0]) err_set(err, ERR_NOMEM, "no more threads");
    if (rc < 0) desk_close(d, 0);
    else *out = d;
    return rc < 0 ? ERR_NOMEM : 0;
}

void desk_take(desk *d, http_exchange *x, api_request *r, bool count)
{
    api_error why;
    job *j = mem_zalloc(sizeof *j);
    http_keep(x);
    pthread_mutex_lock(&d->lock);
    const bool closing = d->closing;
    const bool full = d->fresh.n + d->ready.n >= d->o.most_waiting;
    if (j && !closing && !full) {
        *j = (job){ .x = x, .r = r, .count = count, .d = d, .arrived_ns = clock_ns() };
        d->counts.requests++;
        push(&d->fresh, j);
        pthread_cond_broadcast(&d->more);
        pthread_mutex_unlock(&d->lock);
        return;
    }
    d->counts.refused++;
    pthread_mutex_unlock(&d->lock);
    api_error_make(&why, API_BUSY, r->kind, closing ? "the server is stopping" :
                   "too many requests wait already: try again");
    refuse(x, r->kind, &why);
    api_request_free(r);
    http_release(x);
    mem_free(j);
}

desk_counts desk_count(desk *d)
{
    pthread_mutex_lock(&d->lock);
    desk_counts c = d->counts;
    c.waiting = d->fresh.n + d->ready.n;
    pthread_mutex_unlock(&d->lock);
    return c;
}

/* The lock is held. */
static void dismiss(job_list *l)
{
    for (job *j; (j = pop(l));) {
        fail_with(j, API_BUSY, "the server is stopping");
        job_free(j);
    }
}

void desk_close(desk *d, double patience_s)
{
    if (!d) return;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)patience_s;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    dismiss(&d->fresh);
    dismiss(&d->ready);
    pthread_cond_broadcast(&d->more);
    while (d->counts.running && patience_s > 0 &&
           pthread_cond_timedwait(&d->more, &d->lock, &until) != ETIMEDOUT) { }
    atomic_store(&d->hurry, true);
    pthread_mutex_unlock(&d->lock);
    if (d->has_clerk) pthread_join(d->clerk, NULL);
    if (d->has_engine) pthread_join(d->engine, NULL);
    dismiss(&d->fresh);
    dismiss(&d->ready);
    encoder_free(d->enc);
    pthread_cond_destroy(&d->more);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}
