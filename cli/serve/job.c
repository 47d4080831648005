/* job.c - a request's way to a prompt: what cannot be answered is refused here, with a status. */
#include "cli/serve/job.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/console.h"
#include "cli/prompt_cache.h"
#include "engine/text/chat/fim.h"

/* ---- life, and how it ends ------------------------------------------------------------------- */

void job_free(job *j)
{
    if (!j) return;
    api_writer_free(j->w);
    api_request_free(j->r);
    textbuf_free(&j->body);
    for (int i = 0; i < j->n_prompt; i++) ids_free(&j->prompts[i]);
    mem_free(j->prompts);
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

void job_refuse(http_exchange *x, api_kind kind, const api_error *why)
{
    char *body = api_error_body(why, kind, http_id(x));
    if (why->status == 503 || why->status == 529) http_add_header(x, "Retry-After", "1");
    http_remark(x, why->param[0] ? why->param : why->code);
    http_reply(x, why->status, "application/json", body ? body : "", body ? strlen(body) : 0);
    mem_free(body);
}

/* In a stream, or with the error's status. */
static void fail(job *j, const api_error *why)
{
    if (!j->w || !j->r->stream) {
        job_refuse(j->x, j->kind, why);
        return;
    }
    if (api_writer_fail(j->w, why) == 0) http_end(j->x);
    else http_break(j->x);
}

void job_fail(job *j, api_trouble what, const char *text)
{
    api_error why;
    api_error_make(&why, what, j->kind, "%s", text);
    fail(j, &why);
}

static const uint64_t idle_ns = 10ull * 1000 * 1000 * 1000;

/* A client that takes nothing for so long has as good as left. */
enum { MOST_UNREAD = 16 << 20 };

bool job_stays(job *j)
{
    if (http_waiting(j->x) > MOST_UNREAD) return false;
    if (clock_ns() - j->wrote_ns <= idle_ns) return !http_gone(j->x);
    j->wrote_ns = clock_ns();
    return api_writer_idle(j->w) == 0 && !http_gone(j->x);
}

/* ---- the prompt ------------------------------------------------------------------------------ */

/* The date that the conversation began on. */
static str_view first_date(char *to, size_t cap, job *j)
{
    char today[32];
    pthread_mutex_lock(&j->shared->lock);
    snprintf(to, cap, "%s", first_dates_of(&j->shared->dates, &j->r->chat,
                                           text_today(today, sizeof today)));
    pthread_mutex_unlock(&j->shared->lock);
    return str_from(to);
}

static int render(job *j, encoder *enc, err_ctx *err)
{
    chat_request req = j->r->chat;
    char date[FIRST_DATE_CAP];
    int n_system = 0;
    req.date = first_date(date, sizeof date, j);
    const int rc = chat_render(j->prompts, j->o->model->talk, enc, &req, err);
    if (rc < 0) return rc;
    while (n_system < req.n_message && (req.messages[n_system].role == CHAT_SYSTEM ||
                                        req.messages[n_system].role == CHAT_DEVELOPER))
        n_system++;
    const chat *talk = j->o->model->talk;
    j->n_stable = prompt_cache_stable(j->prompts, talk, enc, &req);
    if ((n_system > 0 || req.tools) && n_system < req.n_message)
        j->n_system = prompt_cache_tokens(j->prompts, talk, enc, &req, n_system);
    return 0;
}

/* Text as it is, or ids, which the engine checks. */
static int take_raw(id_list *to, encoder *enc, const api_prompt *p, err_ctx *err)
{
    if (p->text)
        return encoder_encode_whole(enc, to, (str_view){ p->text, p->n_text }, false, false, err);
    for (int i = 0; i < p->n_ids; i++) {
        const int rc = ids_push(to, p->ids[i], err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int make_prompts(job *j, encoder *enc, err_ctx *err)
{
    const api_request *r = j->r;
    const int n = r->raw && r->n_prompts > 1 ? r->n_prompts : 1;
    const api_prompt one = { r->prompt, r->n_prompt, r->prompt_ids, r->n_prompt_ids };
    int rc = 0;
    if (!(j->prompts = mem_array((size_t)n, sizeof *j->prompts)))
        return err_set(err, ERR_NOMEM, "%d prompts", n);
    memset(j->prompts, 0, (size_t)n * sizeof *j->prompts);
    j->n_prompt = n;
    if (!r->raw) rc = render(j, enc, err);
    for (int i = 0; i < n && r->raw && rc == 0; i++)
        rc = take_raw(&j->prompts[i], enc, r->n_prompts > 0 ? &r->prompts[i] : &one, err);
    for (int i = 0; i < n && r->raw && r->suffix && rc == 0; i++)
        rc = fim_wrap(&j->prompts[i], j->o->model->tok, enc, str_from(r->suffix), err);
    for (int i = 0; i < n; i++) j->n_all += (int)j->prompts[i].n;
    return rc;
}

static int make_writer(job *j)
{
    const api_names names = { j->o->name, http_id(j->x), (int64_t)time(NULL) };
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

/* What is not done here, and what does not fit this model; *param: the field. */
static int check(const job *j, const char **param, err_ctx *err)
{
    const api_request *r = j->r;
    const int n_vocab = j->o->model->m->hp.n_vocab;
    *param = "suffix";
    if (r->suffix && !fim_is_known(j->o->model->tok))
        return err_set(err, ERR_UNSUPPORTED, "suffix: this model has no tokens to fill in the "
                       "middle");
    *param = "echo";
    if (r->suffix && r->echo)
        return err_set(err, ERR_UNSUPPORTED, "echo: it does not go together with suffix");
    *param = "logit_bias";
    for (int i = 0; i < r->n_bias; i++)
        if (r->bias[i].id < 0 || r->bias[i].id >= n_vocab)
            return err_set(err, ERR_RANGE, "logit_bias: there is no token %d", (int)r->bias[i].id);
    *param = NULL;
    return 0;
}

/* The longest prompt. */
static int longest(const job *j)
{
    size_t n = 0;
    for (int i = 0; i < j->n_prompt; i++)
        if (j->prompts[i].n > n) n = j->prompts[i].n;
    return (int)n;
}

static bool is_empty(const job *j)
{
    for (int i = 0; i < j->n_prompt; i++)
        if (j->prompts[i].n == 0) return true;
    return false;
}

static int read_body(job *j, api_error *why)
{
    const str_view body = http_body(j->x);
    const char *text = body.ptr ? body.ptr : "";
    return j->count ? api_parse_count(&j->r, text, body.len, why)
                    : api_parse(&j->r, j->kind, text, body.len, why);
}

/* What the form needs of the vocabulary. */
static int make_tries(job *j, err_ctx *err)
{
    pthread_mutex_lock(&j->shared->lock);
    const int rc = form_tries_make(&j->shared->tries, j->form, j->o->model->tok, err);
    pthread_mutex_unlock(&j->shared->lock);
    return rc;
}

bool job_prepare(job *j, encoder *enc)
{
    err_ctx err = { 0 };
    api_error why;
    const int ctx = session_ctx(j->o->sessions[0]);
    const char *param;
    if (read_body(j, &why) < 0) {
        job_refuse(j->x, j->kind, &why);
        return false;
    }
    int rc = check(j, &param, &err);
    if (rc == 0) rc = job_make_form(j, &err);
    if (rc == 0) rc = make_tries(j, &err);
    if (rc == 0) rc = make_prompts(j, enc, &err);
    if (rc < 0) {
        api_error_make(&why, rc == ERR_NOMEM ? API_BROKEN : rc == ERR_UNSUPPORTED ?
                       API_UNSUPPORTED : API_BAD_REQUEST, j->r->kind, "%s", err.msg);
        snprintf(why.param, sizeof why.param, "%s", param ? param : "");
        fail(j, &why);
        return false;
    }
    if (j->count) {
        char *body = api_count_body(j->n_all);
        http_reply(j->x, 200, "application/json", body ? body : "", body ? strlen(body) : 0);
        mem_free(body);
        return false;
    }
    j->usage.n_prompt = j->n_all;
    if (make_writer(j) < 0) {
        job_fail(j, API_BROKEN, "out of memory");
        return false;
    }
    if (longest(j) >= ctx) {
        const bool inside = api_error_overflow(&why, j->r, longest(j), ctx);
        if (inside && begin(j) == 0) fail(j, &why);
        else job_refuse(j->x, j->kind, &why);
        return false;
    }
    if (is_empty(j) && !j->r->load_only) {
        job_fail(j, API_BAD_REQUEST, "the prompt is empty");
        return false;
    }
    return begin(j) == 0;
}
