/* test_api.c - requests of five APIs: the form that they are parsed into, and what is refused with
 * which words. The requests are in tests/cases/api_requests.txt. */
#include "cli/serve/api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"

static const char kinds[] = "chat completion responses messages ollama generate";

/* ---- a request as text --------------------------------------------------------------------- */

/* "S[be kind] U[hi] A[text|reasoning|f({})] T:f[result]" */
static void show_messages(textbuf *b, const api_request *r)
{
    for (int i = 0; i < r->chat.n_message; i++) {
        const chat_message *m = &r->chat.messages[i];
        if (i) textbuf_str(b, " ");
        textbuf_printf(b, "%c", "SDUAT"[m->role]);
        if (m->name.len) textbuf_printf(b, ":%.*s", (int)m->name.len, m->name.ptr);
        textbuf_printf(b, "[%.*s", (int)m->content.len, m->content.ptr);
        if (m->reasoning.len || m->n_call)
            textbuf_printf(b, "|%.*s", (int)m->reasoning.len, m->reasoning.ptr);
        for (int k = 0; k < m->n_call; k++)
            textbuf_printf(b, "|%.*s(%.*s)", (int)m->calls[k].name.len, m->calls[k].name.ptr,
                           (int)m->calls[k].arguments.len, m->calls[k].arguments.ptr);
        textbuf_str(b, "]");
    }
}

static void show_float(textbuf *b, const char *name, float v)
{
    if (!isnan(v)) textbuf_printf(b, " %s=%g", name, (double)v);
}

/* What differs from a request that says nothing. */
static void show_settings(textbuf *b, const api_request *r)
{
    static const char *const choices[] = { "auto", "none", "required", "named" };
    size_t i;
    json_t *tool;

    if (r->stream) textbuf_str(b, " stream");
    if (r->include_usage) textbuf_str(b, " usage");
    if (r->load_only) textbuf_str(b, " load");
    if (r->raw) textbuf_str(b, " raw");
    if (r->echo) textbuf_str(b, " echo");
    for (int k = 0; k < r->n_prompts; k++) {
        const api_prompt *p = &r->prompts[k];
        if (p->text) textbuf_printf(b, " '%.*s'", (int)p->n_text, p->text);
        for (int t = 0; t < p->n_ids; t++)
            textbuf_printf(b, "%s%d", t ? "," : " #", (int)p->ids[t]);
    }
    if (r->suffix) textbuf_printf(b, " suffix=%s", r->suffix);
    if (r->chat.effort != CHAT_EFFORT_MEDIUM)
        textbuf_printf(b, " effort=%s", chat_effort_name(r->chat.effort));
    if (r->chat.thinking == CHAT_THINK_OFF) textbuf_str(b, " no-thinking");
    if (r->chat.thinking == CHAT_THINK_ON) textbuf_str(b, " thinking");
    if (!r->show_reasoning) textbuf_str(b, " hidden");
    if (r->max_tokens != -1) textbuf_printf(b, " max=%d", r->max_tokens);
    show_float(b, "temp", r->temperature);
    show_float(b, "top_p", r->top_p);
    show_float(b, "min_p", r->min_p);
    show_float(b, "freq", r->frequency_penalty);
    show_float(b, "pres", r->presence_penalty);
    show_float(b, "rep", r->repeat_penalty);
    if (r->top_k != -1) textbuf_printf(b, " top_k=%d", r->top_k);
    if (r->has_seed) textbuf_printf(b, " seed=%llu", (unsigned long long)r->seed);
    for (int k = 0; k < r->n_stop; k++) textbuf_printf(b, " stop=%s", r->stop[k]);
    if (r->n != 1) textbuf_printf(b, " n=%d", r->n);
    if (r->logprobs != -1) textbuf_printf(b, " logprobs=%d", r->logprobs);
    for (int k = 0; k < r->n_bias; k++)
        textbuf_printf(b, " bias%d=%g", (int)r->bias[k].id, (double)r->bias[k].value);
    json_array_foreach(r->chat.tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        textbuf_printf(b, " tool=%s", json_string_value(json_object_get(f, "name")));
        if (json_object_get(f, "parameters")) textbuf_str(b, "()");
    }
    for (int k = 0; k < r->n_tool; k++)
        if (r->tools[k].space || r->tools[k].custom)
            textbuf_printf(b, " %s=%s/%s%s", r->tools[k].full_name, r->tools[k].space ?
                           r->tools[k].space : "", r->tools[k].name, r->tools[k].custom ? "!" : "");
    if (r->tool_choice != CHOICE_AUTO) textbuf_printf(b, " %s", choices[r->tool_choice]);
    if (r->tool_name) textbuf_printf(b, "=%s", r->tool_name);
    for (int k = 0; k < r->n_allowed; k++) textbuf_printf(b, " allowed=%s", r->allowed[k]);
    if (!r->parallel_calls) textbuf_str(b, " one-call");
    if (r->form != FORM_TEXT) textbuf_str(b, r->form == FORM_JSON ? " json" : " schema");
    if (r->form == FORM_SCHEMA && !json_is_object(r->schema)) textbuf_str(b, " NO SCHEMA");
    if (r->strict) textbuf_str(b, " strict");
    if (r->include_encrypted) textbuf_str(b, " encrypted");
    if (r->ignore_eos) textbuf_str(b, " no-eos");
}

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
static case_file requests;

/* The API that a head names, "!chat" or "chat: reason". */
static api_kind kind_of(const test_case *c)
{
    char name[20];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(c->head, ":"), c->head + (c->head[0] == '!'));
    return (api_kind)case_word(kinds, name);
}

static void check_parsed(const test_case *c, const api_request *r)
{
    textbuf b = { 0 };
    show_messages(&b, r);
    show_settings(&b, r);
    textbuf_put(&b, (str_view){ "", 1 });
    CHECK_MSG(strcmp(b.ptr, case_unescape(c->want)) == 0, "%s:\n  %s\n  wanted\n  %s", c->head,
              b.ptr, c->want);
    textbuf_free(&b);
}

/* want: "parameter: words of the message" */
static void check_refused(const test_case *c, const api_error *error)
{
    char *words = strstr(c->want, ": ");
    *words = '\0';
    CHECK_MSG(error->status == 400 && strcmp(error->type, "invalid_request_error") == 0 &&
              strcmp(error->param, c->want) == 0 && strstr(error->message, words + 2),
              "%s %s: %d, param \"%s\", \"%s\"", c->head, c->body, error->status, error->param,
              error->message);
    CHECK_MSG(!strstr(error->message, "quote"), "text of the body: %s", error->message);
    *words = ':';
}

static void test_requests(void)
{
    for (int i = 0; i < requests.n; i++) {
        const test_case *c = &requests.cases[i];
        const bool refused = c->head[0] == '!';
        api_request *r;
        api_error error;
        const int rc = api_parse(&r, kind_of(c), false, c->body, strlen(c->body), &error);
        CHECK_MSG(rc == (refused ? -1 : 0) && !r == refused, "%s %s: %d, %s", c->head, c->body, rc,
                  rc ? error.message : "");
        if (refused && rc < 0) check_refused(c, &error);
        else if (r) check_parsed(c, r);
        api_request_free(r);
    }
    api_request *r;
    api_error error;
    static const char latin1[] = "{" ASK ",\"x\":\"\xff\"}";
    CHECK(api_parse(&r, API_CHAT, false, latin1, strlen(latin1), &error) == -1 &&
          strstr(error.message, "not JSON"));
}

static void test_depth(void)
{
    const int depths[] = { 255, 256, 100000 };   /* of the inner value; the body is one more */
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        textbuf b = { 0 };
        api_request *r;
        api_error error;
        textbuf_str(&b, "{" ASK ",\"x\":");
        for (int k = 0; k < depths[i]; k++) textbuf_str(&b, "[");
        for (int k = 0; k < depths[i]; k++) textbuf_str(&b, "]");
        textbuf_str(&b, "}");
        const int rc = api_parse(&r, API_CHAT, false, b.ptr, b.len, &error);
        CHECK_MSG((rc == 0) == (depths[i] < 256), "depth %d: rc %d %s", depths[i] + 1, rc,
                  error.message);
        if (rc < 0) CHECK(strstr(error.message, "nested deeper than 256"));
        api_request_free(r);
        textbuf_free(&b);
    }
}

/* Every prefix of good bodies, and every byte changed: never a crash; sanitizers see leaks. */
static void test_damage(void)
{
    int n_ok = 0, n_bad = 0;
    for (int i = 0; i < requests.n; i++) {
        const test_case *c = &requests.cases[i];
        const api_kind kind = kind_of(c);
        const size_t n = strlen(c->body);
        if (c->head[0] == '!') continue;
        char *copy = test_alloc(n, 1);
        for (size_t at = 0; at < n; at++) {
            static const char other[] = "\"{[1x\\";
            api_request *r;
            api_error error;
            memcpy(copy, c->body, n);
            api_parse(&r, kind, false, copy, at, &error) == 0 ? n_ok++ : n_bad++;
            api_request_free(r);
            copy[at] = other[at % (sizeof other - 1)];
            api_parse(&r, kind, false, copy, n, &error) == 0 ? n_ok++ : n_bad++;
            api_request_free(r);
        }
        mem_free(copy);
    }
    CHECK_MSG(n_ok > 100 && n_bad > 1000, "%d taken, %d refused", n_ok, n_bad);
}

/* Each allocation of ours fails once. */
static void test_no_memory(void)
{
    for (int i = 0; i < requests.n; i++) {
        const test_case *c = &requests.cases[i];
        for (long k = 1; c->head[0] != '!'; k++) {
            api_request *r;
            api_error error;
            const api_kind kind = kind_of(c);
            mem_fail_after(k);
            const int rc = api_parse(&r, kind, false, c->body, strlen(c->body), &error);
            mem_fail_after(0);
            api_request_free(r);
            if (rc == 0) break;
            if (!CHECK_MSG(error.status == 500, "%s, allocation %ld: %d %s", c->head, k,
                           error.status, error.message)) break;
        }
    }
}

/* ---- errors -------------------------------------------------------------------------------- */

static void check_error(char *const *cells, api_kind kind)
{
    static const char types[] = "bad_request unsupported no_key not_found no_model bad_method "
                                "too_large loading busy broken";
    api_error error;
    api_error_make(&error, (api_error_type)case_word(types, cells[0]), kind, "%s", "m");
    char *body = api_error_body(&error, kind, "R");
    CHECK_MSG(error.status == atoi(cells[2]) && body && strcmp(body, cells[3]) == 0,
              "%s, %s: %d %s", cells[0], cells[1], error.status, body);
    mem_free(body);
}

static void check_overflow(char *const *cells, api_kind kind)
{
    api_request *r;
    api_error error;
    if (!CHECK(api_parse(&r, kind, false, cells[2], strlen(cells[2]), &error) == 0)) return;
    const bool inside = api_error_overflow(&error, r, 200, 100);
    CHECK_MSG(inside == !strcmp(cells[4], "inside") && error.status == 400 &&
              strcmp(error.code, "context_length_exceeded") == 0 &&
              strcmp(error.message, cells[3]) == 0, "%s: %d %s", cells[1], inside, error.message);
    api_request_free(r);
}

static void test_errors(void)
{
    static case_rows rows;
    (void)case_rows_read(&rows, "api_errors.txt");
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        const api_kind kind = (api_kind)case_word(kinds, cells[1]);
        if (!strcmp(cells[0], "overflow")) check_overflow(cells, kind);
        else check_error(cells, kind);
    }
    case_rows_free(&rows);
}

static void test_count(void)
{
    static const char body[] = "{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":{}}]}";
    api_request *r;
    api_error error;
    CHECK(api_parse(&r, API_MESSAGES, true, body, strlen(body), &error) == 0 &&
          r->chat.n_message == 1 &&
          json_array_size(r->chat.tools) == 1);
    api_request_free(r);
}

/* ---- bodies about the model ---------------------------------------------------------------- */

static const char *text_at(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

static void test_models(void)
{
    static const char *const aliases[] = { "gpt-oss:20b", "claude-local" };
    const api_model m = { .name = "demo \"x\"", .aliases = aliases, .n_alias = 2, .path = "/m.gguf",
                          .arch = "qwen3next", .quant = "Q4_K_M", .created = 86400, .n_ctx = 4096,
                          .n_params = 80000000000, .size_bytes = 1 << 20, .n_slot = 4,
                          .thinks = true };
    char *bodies[] = { api_models_body(&m), api_tags_body(&m), api_ps_body(&m), api_show_body(&m),
                       api_props_body(&m), api_version_body(), api_count_body(7),
                       api_model_body(&m, "claude-local") };
    json_t *v[ARRAY_LEN(bodies)];

    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        v[i] = bodies[i] ? json_loads(bodies[i], JSON_REJECT_DUPLICATES, NULL) : NULL;
        CHECK_MSG(json_is_object(v[i]), "body %zu: %s", i, bodies[i]);
    }
    const json_t *data = json_object_get(v[0], "data");
    CHECK(json_array_size(data) == 3 && strcmp(text_at(v[0], "object"), "list") == 0 &&
          strcmp(text_at(json_array_get(data, 0), "id"), "demo \"x\"") == 0 &&
          strcmp(text_at(json_array_get(data, 2), "display_name"), "claude-local") == 0 &&
          strcmp(text_at(json_array_get(data, 0), "created_at"), "1970-01-02T00:00:00Z") == 0 &&
          strcmp(text_at(v[0], "last_id"), "claude-local") == 0);
    const json_t *tags = json_object_get(v[1], "models");
    CHECK(json_array_size(tags) == 3 &&
          strcmp(text_at(json_array_get(tags, 1), "name"), "gpt-oss:20b") == 0 &&
          strlen(text_at(json_array_get(tags, 1), "digest")) == 64 &&
          strcmp(text_at(json_object_get(json_array_get(tags, 1), "details"), "parameter_size"),
                 "80B") == 0);
    CHECK(json_array_size(json_object_get(v[2], "models")) == 1);
    const json_t *info = json_object_get(v[3], "model_info");
    CHECK(json_integer_value(json_object_get(info, "qwen3next.context_length")) == 4096 &&
          strcmp(text_at(v[3], "parameters"), "num_ctx 4096\n") == 0 &&
          json_array_size(json_object_get(v[3], "capabilities")) == 3);
    CHECK(json_integer_value(json_object_get(v[4], "total_slots")) == 4);
    CHECK(json_integer_value(json_object_get(v[6], "input_tokens")) == 7);
    CHECK(strcmp(text_at(v[7], "id"), "claude-local") == 0 && !api_model_body(&m, "other"));
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        json_decref(v[i]);
        mem_free(bodies[i]);
    }
}

int main(int argc, char **argv)
{
    test_begin("api", argc, argv);
    if (case_file_read(&requests, "api_requests.txt")) {
        test_requests();
        test_damage();
        test_no_memory();
    }
    case_file_free(&requests);
    test_depth();
    test_errors();
    test_count();
    test_models();
    return test_end();
}
