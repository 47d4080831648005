/* api_write_responses.c - writes responses of OpenAI's Responses API.
 *
 * Every event has a type and a sequence number. Codex acts on response.output_item.done and repeats
 * its request without response.completed. A part is an item. Namespaces and custom tools are known
 * only when a call is complete, so such calls are written then. */
#include "cli/serve/api_internal.h"

static void open_event(api_writer *w, const char *type)
{
    textbuf_printf(&w->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type,
                   w->n_event++);
}

static bool is_custom(const api_part *p)
{
    return p->kind == PART_CALL && p->tool && p->tool->custom;
}

static const char *id_prefix(const api_part *p)
{
    return p->kind == PART_REASONING ? "rs" : p->kind == PART_TEXT ? "msg"
         : is_custom(p) ? "ctc" : "fc";
}

static void put_id(textbuf *b, const api_writer *w, const api_part *p)
{
    textbuf_printf(b, "\"%s_%s_%d\"", id_prefix(p), w->id, p->number);
}

/* ,"item_id":...,"output_index":... and, where an item has contents, "content_index" */
static void put_position(api_writer *w, const api_part *p)
{
    textbuf_str(&w->out, ",\"item_id\":");
    put_id(&w->out, w, p);
    textbuf_printf(&w->out, ",\"output_index\":%d", p->index);
    if (p->kind != PART_CALL) textbuf_str(&w->out, ",\"content_index\":0");
}

static void put_rows(textbuf *b, const textbuf *rows)
{
    textbuf_str(b, ",\"logprobs\":[");
    textbuf_put(b, textbuf_view(rows));
    textbuf_str(b, "]");
}

static void put_content(textbuf *b, const api_part *p, str_view text)
{
    textbuf_str(b, p->kind == PART_TEXT ? "{\"type\":\"output_text\",\"text\":"
                                        : "{\"type\":\"reasoning_text\",\"text\":");
    textbuf_json_string(b, text);
    if (p->kind == PART_TEXT) {
        textbuf_str(b, ",\"annotations\":[]");
        put_rows(b, &p->rows);
    }
    textbuf_str(b, "}");
}

/* The argument "input"; the whole text if there is none. */
static void put_input(textbuf *b, const api_part *p)
{
    const str_view text = textbuf_view(&p->text);
    json_t *v = text.len ? json_loadb(text.ptr, text.len, JSON_ALLOW_NUL, NULL) : NULL;
    const json_t *input = json_object_get(v, "input");
    textbuf_json_string(b, json_is_string(input) ? json_view(input) : text);
    json_decref(v);
}

static void put_names(textbuf *b, const api_part *p)
{
    api_put_field(b, ",\"name\":", p->tool ? p->tool->name : p->name);
    if (!p->tool || !p->tool->space) return;
    api_put_field(b, ",\"namespace\":", p->tool->space);
}

static void put_call(textbuf *b, const api_writer *w, const api_part *p, bool whole_item)
{
    textbuf_printf(b, "\"type\":\"%s\",\"call_id\":\"call_%s_%d\"",
                   is_custom(p) ? "custom_tool_call" : "function_call", w->id, p->number);
    put_names(b, p);
    textbuf_str(b, is_custom(p) ? ",\"input\":" : ",\"arguments\":");
    if (!whole_item) textbuf_str(b, "\"\"");
    else if (is_custom(p)) put_input(b, p);
    else textbuf_json_string(b, textbuf_view(&p->text));
}

/* The item as it is added, without contents, or whole. */
static void put_item(textbuf *b, const api_writer *w, const api_part *p, bool whole_item,
                     const char *status)
{
    textbuf_str(b, "{\"id\":");
    put_id(b, w, p);
    textbuf_printf(b, ",\"status\":\"%s\",", status);
    if (p->kind == PART_CALL) {
        put_call(b, w, p, whole_item);
    } else {
        textbuf_str(b, p->kind == PART_TEXT ? "\"type\":\"message\",\"role\":\"assistant\""
                                            : "\"type\":\"reasoning\",\"summary\":[]");
        textbuf_str(b, ",\"content\":[");
        if (whole_item) put_content(b, p, textbuf_view(&p->text));
        textbuf_str(b, "]");
        if (p->kind == PART_REASONING && w->r->include_encrypted) {
            textbuf_str(b, ",\"encrypted_content\":\"");
            if (whole_item) api_base64(b, textbuf_view(&p->text));
            textbuf_str(b, "\"");
        }
    }
    textbuf_str(b, "}");
}

/* ---- the response object ------------------------------------------------------------------- */

static void put_usage(textbuf *b, const api_usage *u)
{
    textbuf_printf(b, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d,"
                   "\"cache_write_tokens\":0},\"output_tokens\":%d,\"output_tokens_details\":"
                   "{\"reasoning_tokens\":%d},\"total_tokens\":%d}", u->n_prompt, u->n_cached,
                   u->n_answer, u->n_reasoning, u->n_prompt + u->n_answer);
}

static void put_echo(textbuf *b, const json_t *root, const char *key, const char *fallback)
{
    const json_t *v = api_field(root, key);
    textbuf_printf(b, ",\"%s\":", key);
    if (v) api_put_json(b, v);
    else textbuf_str(b, fallback);
}

/* Collects fields of the request once; several events repeat them. */
static void make_echo(api_writer *w)
{
    static const struct { const char *key, *fallback; } keys[] = {
        { "instructions", "null" }, { "tools", "[]" }, { "tool_choice", "\"auto\"" },
        { "temperature", "null" }, { "top_p", "null" }, { "max_output_tokens", "null" },
        { "reasoning", "{\"effort\":null,\"summary\":null}" },
        { "text", "{\"format\":{\"type\":\"text\"}}" }, { "metadata", "{}" },
        { "prompt_cache_key", "null" },
    };
    if (w->echo.len) return;
    textbuf_printf(&w->echo, ",\"parallel_tool_calls\":%s,\"store\":false,\"background\":false,"
                   "\"previous_response_id\":null,\"truncation\":\"disabled\"",
                   w->r->parallel_calls ? "true" : "false");
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        put_echo(&w->echo, w->r->root, keys[i].key, keys[i].fallback);
}

/* Codex treats an incomplete response as a broken stream, so only a client that set a limit gets
 * one. */
static const char *final_status(const api_writer *w)
{
    return w->choices[0].end == ANSWER_LENGTH && w->r->max_tokens > 0 ? "incomplete" : "completed";
}

static void put_response(api_writer *w, const char *status, const api_error *error)
{
    textbuf *b = &w->out;
    const api_answer *c = &w->choices[0];
    const bool running = strcmp(status, "in_progress") == 0;
    const bool cut = strcmp(status, "incomplete") == 0;

    make_echo(w);
    textbuf_printf(b, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,"
                   "\"status\":\"%s\",\"model\":", w->id, (long long)w->created, status);
    api_put_text(b, w->model);
    textbuf_str(b, ",\"error\":");
    if (error) {
        textbuf_str(b, "{\"code\":");
        api_put_text(b, error->code[0] ? error->code : error->status >= 500 ? "server_error"
                     : "invalid_prompt");
        textbuf_str(b, ",\"message\":");
        api_put_lossy(b, str_from(error->message));
        textbuf_str(b, "}");
    } else {
        textbuf_str(b, "null");
    }
    textbuf_str(b, cut ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                       : ",\"incomplete_details\":null");
    textbuf_str(b, ",\"output\":[");
    for (int i = 0; i < c->n_part && !running; i++) {
        if (i) textbuf_str(b, ",");
        put_item(b, w, &c->parts[i], true, cut && i == c->n_part - 1 ? "incomplete" : "completed");
    }
    textbuf_str(b, "]");
    textbuf_put(b, textbuf_view(&w->echo));
    textbuf_str(b, ",\"usage\":");
    if (running || error) textbuf_str(b, "null");
    else put_usage(b, &w->usage);
    textbuf_str(b, "}");
}

static void put_state(api_writer *w, const char *event, const char *status, const api_error *error)
{
    open_event(w, event);
    textbuf_str(&w->out, ",\"response\":");
    put_response(w, status, error);
    api_close_event(w);
}

/* ---- the stream ---------------------------------------------------------------------------- */

static void begin(api_writer *w)
{
    put_state(w, "response.created", "in_progress", NULL);
    put_state(w, "response.in_progress", "in_progress", NULL);
}

static void open_part(api_writer *w, api_part *p)
{
    open_event(w, "response.output_item.added");
    textbuf_printf(&w->out, ",\"output_index\":%d,\"item\":", p->index);
    put_item(&w->out, w, p, false, "in_progress");
    api_close_event(w);
    if (p->kind == PART_CALL) return;
    open_event(w, "response.content_part.added");
    put_position(w, p);
    textbuf_str(&w->out, ",\"part\":");
    put_content(&w->out, p, (str_view){ NULL, 0 });
    api_close_event(w);
}

static void delta(api_writer *w, api_part *p, str_view text)
{
    static const char *const types[] = {
        [PART_REASONING] = "response.reasoning_text.delta",
        [PART_TEXT] = "response.output_text.delta",
        [PART_CALL] = "response.function_call_arguments.delta",
    };
    if (is_custom(p)) return;
    open_event(w, types[p->kind]);
    put_position(w, p);
    api_put_string(&w->out, ",\"delta\":", text);
    if (p->kind == PART_TEXT) put_rows(&w->out, &w->choices[w->current].rows);
    api_close_event(w);
}

static void close_call(api_writer *w, api_part *p)
{
    if (is_custom(p)) {
        open_event(w, "response.custom_tool_call_input.delta");
        put_position(w, p);
        textbuf_str(&w->out, ",\"delta\":");
        put_input(&w->out, p);
        api_close_event(w);
        open_event(w, "response.custom_tool_call_input.done");
        put_position(w, p);
        textbuf_str(&w->out, ",\"input\":");
        put_input(&w->out, p);
    } else {
        open_event(w, "response.function_call_arguments.done");
        put_position(w, p);
        put_names(&w->out, p);
        api_put_string(&w->out, ",\"arguments\":", textbuf_view(&p->text));
    }
    api_close_event(w);
}

static void close_text(api_writer *w, api_part *p)
{
    open_event(w, p->kind == PART_TEXT ? "response.output_text.done"
                                       : "response.reasoning_text.done");
    put_position(w, p);
    api_put_string(&w->out, ",\"text\":", textbuf_view(&p->text));
    if (p->kind == PART_TEXT) put_rows(&w->out, &p->rows);
    api_close_event(w);
    open_event(w, "response.content_part.done");
    put_position(w, p);
    textbuf_str(&w->out, ",\"part\":");
    put_content(&w->out, p, textbuf_view(&p->text));
    api_close_event(w);
}

static void close_part(api_writer *w, api_part *p)
{
    const api_answer *c = &w->choices[0];
    const bool cut = c->finished && strcmp(final_status(w), "incomplete") == 0;
    if (p->kind == PART_CALL) close_call(w, p);
    else close_text(w, p);
    open_event(w, "response.output_item.done");
    textbuf_printf(&w->out, ",\"output_index\":%d,\"item\":", p->index);
    put_item(&w->out, w, p, true, cut ? "incomplete" : "completed");
    api_close_event(w);
}

static void idle(api_writer *w)
{
    put_state(w, "response.in_progress", "in_progress", NULL);
}

static void end(api_writer *w)
{
    const char *status = final_status(w);
    put_state(w, strcmp(status, "incomplete") == 0 ? "response.incomplete" : "response.completed",
              status, NULL);
}

/* clients expect response.created before the error */
static void fail(api_writer *w, const api_error *error)
{
    if (!w->begun) put_state(w, "response.created", "in_progress", NULL);
    put_state(w, "response.failed", "failed", error);
}

static void whole(api_writer *w) { put_response(w, final_status(w), NULL); }

const api_style api_style_responses = {
    .keep_text = true, .begin = begin, .open = open_part, .delta = delta, .close = close_part,
    .idle = idle, .end = end, .fail = fail, .whole = whole,
};
