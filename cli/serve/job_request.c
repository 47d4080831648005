/* job_request.c - a body becomes prompts and a writer.
 *
 * A request that cannot be answered is refused here, before the head of a stream, so that its
 * status can say so. Called from a prepare thread; job_request_keepalive also from the engine
 * thread. */
#include "cli/serve/job_request.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/console.h"
#include "cli/prompt_cache.h"
#include "cli/serve/error_reply.h"
#include "engine/text/chat/fim.h"

/* ---- lifetime and errors --------------------------------------------------------------------- */

void job_request_free(job_request *r)
{
    if (!r) return;
    api_writer_free(r->writer);
    api_request_free(r->api);
    textbuf_free(&r->body);
    for (int i = 0; i < r->n_prompt; i++) ids_free(&r->prompts[i]);
    mem_free(r->prompts);
    grammar_free(r->form);
    http_release(r->exchange);
    mem_free(r);
}

/* The writer's sink. */
static int on_bytes(void *ctx, const char *bytes, size_t n)
{
    job_request *r = ctx;
    r->wrote_ns = clock_ns();
    if (r->api->stream) return http_write(r->exchange, bytes, n);
    textbuf_put(&r->body, (str_view){ bytes, n });
    return r->body.failed ? ERR_NOMEM : 0;
}

static void fail(job_request *r, const api_error *error)
{
    if (!r->writer || !r->api->stream) error_reply(r->exchange, r->kind, error);
    else if (api_writer_fail(r->writer, error) == 0) http_end(r->exchange);
    else http_break(r->exchange);
}

void job_request_fail(job_request *r, api_error_type type, const char *text)
{
    api_error error;
    api_error_make(&error, type, r->kind, "%s", text);
    fail(r, &error);
}

static const uint64_t keepalive_ns = 10ull * 1000 * 1000 * 1000;

enum { MAX_UNREAD_BYTES = 16 << 20 };    /* a client that leaves more unread counts as gone */

bool job_request_keepalive(job_request *r)
{
    if (http_unread_bytes(r->exchange) > MAX_UNREAD_BYTES) return false;
    if (clock_ns() - r->wrote_ns <= keepalive_ns) return !http_gone(r->exchange);
    r->wrote_ns = clock_ns();
    return api_writer_idle(r->writer) == 0 && !http_gone(r->exchange);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The date on which the conversation began. */
static str_view conversation_date(char *out, size_t cap, job_request *r)
{
    char today[32];
    pthread_mutex_lock(&r->shared->lock);
    snprintf(out, cap, "%s", conversation_dates_get(&r->shared->dates, &r->api->chat,
                                                    text_today(today, sizeof today)));
    pthread_mutex_unlock(&r->shared->lock);
    return str_from(out);
}

static int render(job_request *r, encoder *enc, err_ctx *err)
{
    const chat *format = r->engine->model->format;
    chat_request req = r->api->chat;
    char date[CONVERSATION_DATE_CAP];
    int n_system = 0;
    req.date = conversation_date(date, sizeof date, r);
    const int rc = chat_render(r->prompts, format, enc, &req, err);
    if (rc < 0) return rc;
    while (n_system < req.n_message && (req.messages[n_system].role == CHAT_SYSTEM ||
                                        req.messages[n_system].role == CHAT_DEVELOPER))
        n_system++;
    r->n_stable = prompt_cache_stable(r->prompts, format, enc, &req);
    if ((n_system > 0 || req.tools) && n_system < req.n_message)
        r->n_system = prompt_cache_tokens(r->prompts, format, enc, &req, n_system);
    return 0;
}

/* A prompt without a chat format: text, or ids, whose range the engine checks. */
static int encode_raw(id_list *out, encoder *enc, const api_prompt *p, err_ctx *err)
{
    if (p->text)
        return encoder_encode_whole(enc, out, (str_view){ p->text, p->n_text }, false, false, err);
    for (int i = 0; i < p->n_ids; i++) {
        const int rc = ids_push(out, p->ids[i], err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int make_prompts(job_request *r, encoder *enc, err_ctx *err)
{
    const api_request *a = r->api;
    const int n = a->n_prompts > 1 ? a->n_prompts : 1;
    int rc = 0;
    if (!(r->prompts = mem_array((size_t)n, sizeof *r->prompts)))
        return err_set(err, ERR_NOMEM, "%d prompts", n);
    memset(r->prompts, 0, (size_t)n * sizeof *r->prompts);
    r->n_prompt = n;
    if (!a->raw) rc = render(r, enc, err);
    for (int i = 0; i < a->n_prompts && rc == 0; i++)
        rc = encode_raw(&r->prompts[i], enc, &a->prompts[i], err);
    for (int i = 0; i < n && a->raw && a->suffix && rc == 0; i++)
        rc = fim_wrap(&r->prompts[i], r->engine->model->tok, enc, str_from(a->suffix), err);
    for (int i = 0; i < n; i++) r->n_tokens += (int)r->prompts[i].n;
    return rc;
}

static int longest_prompt(const job_request *r)
{
    size_t n = 0;
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompts[i].n > n) n = r->prompts[i].n;
    return (int)n;
}

static bool has_empty_prompt(const job_request *r)
{
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompts[i].n == 0) return true;
    return false;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int make_writer(job_request *r)
{
    const api_names names = { r->engine->name, http_id(r->exchange), (int64_t)time(NULL) };
    return api_writer_create(&r->writer, r->api, &names, on_bytes, r);
}

/* Sends the head and the first events of a stream. */
static int begin_response(job_request *r)
{
    if (r->api->stream) {
        http_stream(r->exchange, 200, api_content_type(r->api));
    }
    return api_writer_begin(r->writer, &r->usage);
}

/* Refuses what this server or this model cannot do. *param: the field. */
static int check_fields(const job_request *r, const char **param, err_ctx *err)
{
    const api_request *a = r->api;
    const int n_vocab = r->engine->model->m->hp.n_vocab;
    *param = "suffix";
    if (a->suffix && !fim_is_known(r->engine->model->tok))
        return err_set(err, ERR_UNSUPPORTED, "suffix: this model has no tokens to fill in the "
                       "middle");
    *param = "echo";
    if (a->suffix && a->echo)
        return err_set(err, ERR_UNSUPPORTED, "echo: not possible together with suffix");
    *param = "logit_bias";
    for (int i = 0; i < a->n_bias; i++)
        if (a->bias[i].id < 0 || a->bias[i].id >= n_vocab)
            return err_set(err, ERR_RANGE, "logit_bias: there is no token %d", (int)a->bias[i].id);
    *param = NULL;
    return 0;
}

/* Builds what the form's mask needs of the vocabulary, once for all requests. */
static int make_tries(job_request *r, err_ctx *err)
{
    pthread_mutex_lock(&r->shared->lock);
    const int rc = form_tries_make(&r->shared->tries, r->form, r->engine->model->tok, err);
    pthread_mutex_unlock(&r->shared->lock);
    return rc;
}

bool job_request_prepare(job_request *r, encoder *enc)
{
    const str_view body = http_body(r->exchange);
    err_ctx err = { 0 };
    api_error error;
    const int n_ctx = session_ctx(r->engine->sessions[0]);
    const char *param;
    if (api_parse(&r->api, r->kind, r->count_only, body.ptr, body.len, &error) < 0) {
        error_reply(r->exchange, r->kind, &error);
        return false;
    }
    int rc = check_fields(r, &param, &err);
    if (rc == 0) rc = job_request_form(r, &err);
    if (rc == 0) rc = make_tries(r, &err);
    if (rc == 0) rc = make_prompts(r, enc, &err);
    if (rc < 0) {
        api_error_make(&error, rc == ERR_NOMEM ? API_BROKEN : rc == ERR_UNSUPPORTED ?
                       API_UNSUPPORTED : API_BAD_REQUEST, r->api->kind, "%s", err.msg);
        snprintf(error.param, sizeof error.param, "%s", param ? param : "");
        fail(r, &error);
        return false;
    }
    if (r->count_only) {
        char *count = api_count_body(r->n_tokens);
        http_reply_json(r->exchange, 200, count);
        mem_free(count);
        return false;
    }
    r->usage.n_prompt = r->n_tokens;
    if (make_writer(r) < 0) {
        job_request_fail(r, API_BROKEN, "out of memory");
        return false;
    }
    if (longest_prompt(r) >= n_ctx) {
        const bool in_stream = api_error_overflow(&error, r->api, longest_prompt(r), n_ctx);
        if (in_stream && begin_response(r) == 0) fail(r, &error);
        else error_reply(r->exchange, r->kind, &error);
        return false;
    }
    if (has_empty_prompt(r) && !r->api->load_only) {
        job_request_fail(r, API_BAD_REQUEST, "the prompt is empty");
        return false;
    }
    return begin_response(r) == 0;
}
