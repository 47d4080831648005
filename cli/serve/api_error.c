/* api_error.c - errors in the words of each API.
 *
 * Clients compare codes and parse sentences, so the table and the text of overflow are those of the
 * APIs. An api_error is in OpenAI's words; the words of others follow from its status. */
#include "cli/serve/api_internal.h"

static const struct { int status; const char *type, *code; } error_types[] = {
    [API_BAD_REQUEST] = { 400, "invalid_request_error", "" },
    [API_UNSUPPORTED] = { 400, "invalid_request_error", "unsupported_parameter" },
    [API_NO_KEY] = { 401, "authentication_error", "invalid_api_key" },
    [API_NOT_FOUND] = { 404, "not_found_error", "" },
    [API_NO_MODEL] = { 404, "not_found_error", "model_not_found" },
    [API_BAD_METHOD] = { 405, "invalid_request_error", "" },
    [API_TOO_LARGE] = { 413, "invalid_request_error", "request_too_large" },
    [API_LOADING] = { 503, "unavailable_error", "loading" },
    [API_BUSY] = { 503, "server_error", "server_is_overloaded" },
    [API_BROKEN] = { 500, "server_error", "" },
};

static void fill(api_error *error, api_error_type type, const char *code)
{
    *error = (api_error){ .status = error_types[type].status };
    snprintf(error->type, sizeof error->type, "%s", error_types[type].type);
    snprintf(error->code, sizeof error->code, "%s", code ? code : error_types[type].code);
}

void api_error_make(api_error *error, api_error_type type, api_kind kind, const char *fmt, ...)
{
    va_list args;
    fill(error, type, NULL);
    if (type == API_BUSY && kind == API_MESSAGES) error->status = 529;
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
}

bool api_error_overflow(api_error *error, const api_request *r, int n_prompt, int n_ctx)
{
    fill(error, API_BAD_REQUEST, "context_length_exceeded");
    if (r->kind == API_MESSAGES) {
        snprintf(error->message, sizeof error->message,
                 "prompt is too long: %d tokens > %d maximum",
                 n_prompt, n_ctx);
        return false;
    }
    snprintf(error->param, sizeof error->param, "%s", r->kind == API_RESPONSES ? "input" :
             r->raw ? "prompt" : "messages");
    snprintf(error->message, sizeof error->message,
             "This model's maximum context length is %d tokens. "
             "However, your messages resulted in %d tokens.", n_ctx, n_prompt);
    return r->kind == API_RESPONSES && r->stream;
}

static const char *anthropic_type(const api_error *error)
{
    switch (error->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 503: case 529: return "overloaded_error";
    default: return error->status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void put_optional(textbuf *b, const char *text)
{
    api_put_text(b, text[0] ? text : NULL);
}

void api_put_error(textbuf *b, const api_error *error, api_kind kind, const char *request_id)
{
    if (kind == API_MESSAGES) {
        api_put_field(b, "{\"type\":\"error\",\"error\":{\"type\":", anthropic_type(error));
        textbuf_str(b, ",\"message\":");
        api_put_lossy(b, str_from(error->message));
        api_put_field(b, "},\"request_id\":", request_id);
        textbuf_str(b, "}");
    } else if (kind == API_OLLAMA_CHAT || kind == API_OLLAMA_GENERATE) {
        textbuf_str(b, "{\"error\":");
        api_put_lossy(b, str_from(error->message));
        textbuf_str(b, "}");
    } else {
        textbuf_str(b, "{\"error\":{\"message\":");
        api_put_lossy(b, str_from(error->message));
        api_put_field(b, ",\"type\":", error->type);
        textbuf_str(b, ",\"param\":");
        put_optional(b, error->param);
        textbuf_str(b, ",\"code\":");
        put_optional(b, error->code);
        textbuf_str(b, "}}");
    }
}

char *api_error_body(const api_error *error, api_kind kind, const char *request_id)
{
    textbuf b = { 0 };
    api_put_error(&b, error, kind, request_id);
    return api_take(&b);
}
