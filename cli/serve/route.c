/* route.c - a table of paths, and the checks before it: origin, host, key. */
#include "cli/serve/route.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/serve/error_reply.h"
#include "cli/serve/moe_routes.h"
#include "cli/serve/page.h"
#include "cli/serve/text_routes.h"
#include "engine/session/runner.h"

typedef void route_fn(server_context *c, http_exchange *x, int arg);

typedef struct route {
    const char *method, *path;
    route_fn *run;
    int arg;                             /* an api_kind, or one of an enum */
    bool early;                          /* answers also while the model loads */
} route;

/* ---- answers --------------------------------------------------------------------------------- */

static api_kind kind_of(const char *path)
{
    if (!strncmp(path, "/v1/messages", 12)) return API_MESSAGES;
    if (!strncmp(path, "/api/", 5)) return API_OLLAMA_CHAT;
    return API_CHAT;
}

static void reply_owned(http_exchange *x, char *body)
{
    http_reply_json(x, 200, body);
    mem_free(body);
}

static void refuse(http_exchange *x, api_error_type type, const char *text)
{
    error_reply_text(x, kind_of(http_path(x)), type, text);
}

/* The same with a status of its own. */
static void refuse_with(http_exchange *x, int status, api_error_type type, const char *text)
{
    const api_kind kind = kind_of(http_path(x));
    api_error error;
    api_error_make(&error, type, kind, "%s", text);
    error.status = status;
    error_reply(x, kind, &error);
}

static void answer(server_context *c, http_exchange *x, int kind)
{
    queue_submit(c->queue, x, (api_kind)kind, false);
}

static void count_tokens(server_context *c, http_exchange *x, int arg)
{
    (void)arg;
    queue_submit(c->queue, x, API_MESSAGES, true);
}

/* ---- about the server ------------------------------------------------------------------------ */

static void health(server_context *c, http_exchange *x, int arg)
{
    (void)arg;
    if (atomic_load(&c->stopping)) {
        http_reply_json(x, 503, "{\"status\":\"stopping\"}");
    } else if (!atomic_load(&c->ready)) {
        http_reply_json(x, 503, "{\"status\":\"loading\"}");
    } else {
        http_reply_json(x, 200, "{\"status\":\"ok\"}");
    }
}

static void show_page(server_context *c, http_exchange *x, int file)
{
    (void)c;
    page_send(x, (page_file)file);
}

static void watch(server_context *c, http_exchange *x, int arg)
{
    (void)arg;
    live_events_watch(c->events, x);
}

enum { ABOUT_MODELS, ABOUT_TAGS, ABOUT_PS, ABOUT_SHOW, ABOUT_PROPS, ABOUT_VERSION };

static void about(server_context *c, http_exchange *x, int subject)
{
    const api_model *m = &c->model;
    switch (subject) {
    case ABOUT_MODELS: reply_owned(x, api_models_body(m)); break;
    case ABOUT_TAGS: reply_owned(x, api_tags_body(m)); break;
    case ABOUT_PS: reply_owned(x, api_ps_body(m)); break;
    case ABOUT_SHOW: reply_owned(x, api_show_body(m)); break;
    case ABOUT_PROPS: reply_owned(x, api_props_body(m)); break;
    default: reply_owned(x, api_version_body());
    }
}

static void one_model(server_context *c, http_exchange *x, const char *id)
{
    if (api_model_is(&c->model, id)) reply_owned(x, api_model_body(&c->model, id));
    else refuse(x, API_NO_MODEL, "no model of that name here; GET /v1/models lists names");
}

typedef struct metrics_call { server_context *c; http_exchange *x; } metrics_call;

static void reply_metrics(server_context *c, http_exchange *x, const perf_counts *perf)
{
    const queue_stats stats = queue_get_stats(c->queue);
    textbuf text = { 0 };
    metrics_write(&text, &stats, perf, c->counts);
    http_reply_text(x, "text/plain; version=0.0.4; charset=utf-8", &text);
}

/* On the engine thread, which owns the counts of experts. */
static void read_metrics(void *ctx, const engine_context *ec)
{
    metrics_call *call = ctx;
    perf_counts perf;
    if (ec) perf = runner_perf(session_runner(ec->sessions[0]));
    reply_metrics(call->c, call->x, ec ? &perf : NULL);
    http_release(call->x);
    mem_free(call);
}

static void show_metrics(server_context *c, http_exchange *x, int arg)
{
    metrics_call *call = mem_zalloc(sizeof *call);
    (void)arg;
    if (call) {
        *call = (metrics_call){ c, x };
        http_keep(x);
        if (engine_call(c->queue, CALL_READ, read_metrics, call)) return;
        http_release(x);
        mem_free(call);
    }
    reply_metrics(c, x, NULL);
}

static void slots(server_context *c, http_exchange *x, int arg)
{
    const queue_stats stats = queue_get_stats(c->queue);
    const char *fail_if_busy = http_query(x, "fail_on_no_slot");
    textbuf text = { 0 };
    (void)arg;
    if (fail_if_busy && !strcmp(fail_if_busy, "1") && stats.running >= c->model.n_slot) {
        refuse(x, API_BUSY, "all slots are busy");
        return;
    }
    textbuf_str(&text, "[");
    for (int i = 0; i < c->model.n_slot; i++) {
        const slot_status v = queue_slot_status(c->queue, i);
        textbuf_printf(&text, "%s{\"id\":%d,\"id_task\":%lld,\"n_ctx\":%d,\"is_processing\":%s,"
                       "\"n_prompt\":%d,\"n_cached\":%d,\"n_decoded\":%d,\"n_drafts\":%d,"
                       "\"n_right_drafts\":%d,\"n_together\":%d,\"age_s\":%.3f,"
                       "\"n_waiting\":%d}", i > 0 ? "," : "", i,
                       v.job > 0 ? (long long)v.job : -1ll, c->model.n_ctx,
                       v.busy ? "true" : "false", v.n_prompt, v.n_cached, v.n_drawn, v.n_draft,
                       v.n_right, v.n_together, v.age_s, stats.waiting);
    }
    textbuf_str(&text, "]");
    http_reply_text(x, "application/json", &text);
}

static const route routes[] = {
    { "GET", "/health", health, 0, true },
    { "GET", "/v1/health", health, 0, true },
    { "GET", "/", show_page, PAGE_HTML, true },
    { "GET", "/page/style.css", show_page, PAGE_STYLE, true },
    { "GET", "/page/app.js", show_page, PAGE_SCRIPT, true },
    { "POST", "/v1/chat/completions", answer, API_CHAT, false },
    { "POST", "/chat/completions", answer, API_CHAT, false },
    { "POST", "/v1/completions", answer, API_COMPLETION, false },
    { "POST", "/completions", answer, API_COMPLETION, false },
    { "POST", "/v1/responses", answer, API_RESPONSES, false },
    { "POST", "/responses", answer, API_RESPONSES, false },
    { "POST", "/v1/messages", answer, API_MESSAGES, false },
    { "POST", "/v1/messages/count_tokens", count_tokens, 0, false },
    { "GET", "/v1/models", about, ABOUT_MODELS, false },
    { "GET", "/models", about, ABOUT_MODELS, false },
    { "POST", "/tokenize", text_route, TEXT_TOKENIZE, false },
    { "POST", "/detokenize", text_route, TEXT_DETOKENIZE, false },
    { "POST", "/apply-template", text_route, TEXT_TEMPLATE, false },
    { "GET", "/moe-layer-perf", moe_route, MOE_PERF, false },
    { "POST", "/moe-layer-perf", moe_route, MOE_SET_PERF, false },
    { "GET", "/moe-hot-cache", moe_route, MOE_CACHE, false },
    { "POST", "/moe-hot-cache", moe_route, MOE_APPLY, false },
    { "GET", "/moe-events", watch, 0, false },
    { "GET", "/metrics", show_metrics, 0, false },
    { "GET", "/slots", slots, 0, false },
    { "GET", "/props", about, ABOUT_PROPS, false },
    { "GET", "/api/version", about, ABOUT_VERSION, true },
    { "GET", "/api/tags", about, ABOUT_TAGS, false },
    { "GET", "/api/ps", about, ABOUT_PS, false },
    { "POST", "/api/show", about, ABOUT_SHOW, false },
    { "POST", "/api/chat", answer, API_OLLAMA_CHAT, false },
    { "POST", "/api/generate", answer, API_OLLAMA_GENERATE, false },
};

/* ---- permission ------------------------------------------------------------------------------ */

/* True: host, with or without a port, is a loopback name or address. */
static bool is_local(const char *host)
{
    static const char *const names[] = { "localhost", "[::1]", "::1" };
    char number[16];
    struct in_addr a;
    const size_t len = strcspn(host, ":");       /* a longer name would be cut to a number */
    snprintf(number, sizeof number, "%.*s", (int)(len < sizeof number ? len : 0), host);
    if (!strncmp(number, "127.", 4) && inet_pton(AF_INET, number, &a) == 1) return true;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n)) continue;
        if (host[n] == '\0') return true;
        if (host[n] == ':' && host[n + 1] && !host[n + 1 + strspn(host + n + 1, "0123456789")])
            return true;
    }
    return false;
}

/* True: host, with or without a port, is an IP address. */
static bool is_ip_address(const char *host)
{
    char number[INET6_ADDRSTRLEN];
    struct in6_addr a;
    const bool v6 = host[0] == '[';
    const size_t len = strcspn(host + v6, v6 ? "]" : ":");
    const char *after = host + 2 * v6 + len;
    if (len >= sizeof number || (v6 && host[1 + len] != ']')) return false;
    snprintf(number, sizeof number, "%.*s", (int)len, host + v6);
    return (*after == '\0' || *after == ':') &&
           inet_pton(v6 ? AF_INET6 : AF_INET, number, &a) == 1;
}

/* True: the page is this server's own. A matching host name is not enough without a key, because
 * the name of a foreign page may resolve to this server (DNS rebinding). */
static bool is_own_page(const server_context *c, const char *origin_host, const char *host)
{
    return host && !strcasecmp(origin_host, host) && (c->n_key > 0 || is_ip_address(host));
}

static bool allows_origin(const server_context *c, const char *origin, const char *host)
{
    const char *scheme_end = strstr(origin, "://");
    if (scheme_end && (is_local(scheme_end + 3) || is_own_page(c, scheme_end + 3, host)))
        return true;
    for (int i = 0; i < c->n_origin; i++)
        if (!strcmp(c->origins[i], "*") || !strcasecmp(c->origins[i], origin)) return true;
    return false;
}

/* Takes a time that depends on the length of `given` only. */
static bool same_key(const char *key, const char *given)
{
    const size_t n = strlen(key), m = strlen(given);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; i++)
        differs |= (unsigned char)given[i] ^ (unsigned char)key[n > 0 ? i % n : 0];
    return n > 0 && !differs;
}

static bool has_key(const server_context *c, const http_exchange *x)
{
    const char *bearer = http_header(x, "Authorization"), *api_key = http_header(x, "x-api-key");
    bool ok = c->n_key == 0;
    if (bearer && !strncasecmp(bearer, "Bearer ", 7)) bearer += 7 + strspn(bearer + 7, " ");
    else bearer = NULL;
    for (int i = 0; i < c->n_key; i++) {
        if (bearer) ok |= same_key(c->keys[i], bearer);
        if (api_key) ok |= same_key(c->keys[i], api_key);
    }
    return ok;
}

static bool is_public(const http_exchange *x)
{
    const char *path = http_path(x);
    return !strcmp(path, "/health") || !strcmp(path, "/v1/health") ||
           ((!strcmp(path, "/") || !strncmp(path, "/page/", 6)) &&
            strcmp(http_method(x), "POST") != 0);
}

static void allow_origin(const server_context *c, http_exchange *x)
{
    const char *origin = http_header(x, "Origin");
    if (!origin || !allows_origin(c, origin, http_header(x, "Host"))) return;
    http_add_header(x, "Access-Control-Allow-Origin", origin);
    http_add_header(x, "Vary", "Origin");
}

static void preflight(http_exchange *x)
{
    http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    http_add_header(x, "Access-Control-Allow-Headers",
                    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, *");
    http_add_header(x, "Access-Control-Max-Age", "86400");
    http_reply(x, 204, NULL, NULL, 0);
}

static void refuse_problem(http_exchange *x)
{
    const char *text;
    const int status = http_problem(x, &text);
    refuse_with(x, status, status == 413 ? API_TOO_LARGE : status == 503 ? API_BUSY :
                API_BAD_REQUEST, text);
}

/* False: the client has its error. */
static bool check_access(const server_context *c, http_exchange *x)
{
    const char *host = http_header(x, "Host");
    const char *origin = http_header(x, "Origin");
    if (origin && !allows_origin(c, origin, host)) {
        refuse_with(x, 403, API_BAD_REQUEST,
                    "pages of this origin are not allowed; --cors ORIGIN allows them");
        return false;
    }
    if (c->loopback && host && !is_local(host)) {
        refuse_with(x, 403, API_BAD_REQUEST,
                    "this server listens on a loopback address: Host must be localhost");
        return false;
    }
    if (!is_public(x) && !has_key(c, x)) {
        refuse(x, API_NO_KEY, "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
        return false;
    }
    return true;
}

/* A request without permission is refused before its body. */
void route_head(void *ctx, http_exchange *x)
{
    const server_context *c = ctx;
    allow_origin(c, x);
    if (!strncmp(http_path(x), "/v1/messages", 12)) http_add_header(x, "request-id", http_id(x));
    if (strcmp(http_method(x), "OPTIONS") != 0) (void)check_access(c, x);
}

/* A static string; "other" for a path without a route. */
static const char *route_of(const http_exchange *x)
{
    const char *path = http_path(x);
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        if (!strcmp(routes[i].path, path)) return routes[i].path;
    return "other";
}

void route_done(server_context *c, const http_exchange *x, int status)
{
    route_counts_add(c->counts, route_of(x), status);
}

void route_request(void *ctx, http_exchange *x)
{
    server_context *c = ctx;
    const char *method = http_method(x), *path = http_path(x);
    bool gets = false, posts = false;
    static const char models[] = "/v1/models/";
    if (http_problem(x, NULL)) {
        refuse_problem(x);
        return;
    }
    if (!strcmp(method, "OPTIONS")) {
        preflight(x);
        return;
    }
    if (!strcmp(method, "HEAD")) method = "GET";
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (strcmp(routes[i].path, path)) continue;
        if (!strcmp(routes[i].method, "GET")) gets = true;
        else posts = true;
        if (strcmp(routes[i].method, method)) continue;
        if (!routes[i].early && !atomic_load(&c->ready))
            refuse(x, API_LOADING, "the model is still loading");
        else routes[i].run(c, x, routes[i].arg);
        return;
    }
    if (!strncmp(path, models, sizeof models - 1) && !strcmp(method, "GET") &&
        atomic_load(&c->ready)) {
        one_model(c, x, path + sizeof models - 1);
    } else if (gets || posts) {
        http_add_header(x, "Allow", gets && posts ? "GET, HEAD, POST, OPTIONS" :
                                    gets ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
        refuse(x, API_BAD_METHOD, posts ? gets ? "this path takes GET and POST" :
                                               "this path takes POST" : "this path takes GET");
    } else {
        refuse(x, API_NOT_FOUND, "this server has no such path");
    }
}
