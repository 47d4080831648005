/* api_write_messages.c - writes responses of Anthropic's Messages API.
 *
 * Every event has its name twice: clients skip events without an event line. Blocks never overlap
 * and are numbered from 0. input_tokens does not include cached tokens. */
#include "cli/serve/api_internal.h"

static void open_event(api_writer *w, const char *type)
{
    textbuf_printf(&w->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void put_usage(textbuf *b, const api_usage *u, bool at_begin)
{
    textbuf_printf(b, "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%d,\"output_tokens\":%d}",
                   u->n_prompt - u->n_cached, u->n_cached, at_begin ? 0 : u->n_answer);
}

static const char *stop_reason(const api_answer *c, bool only_call)
{
    if (only_call) return "tool_use";
    switch (c->end) {
    case ANSWER_STOP_TEXT: return "stop_sequence";
    case ANSWER_CONTEXT: return "model_context_window_exceeded";
    case ANSWER_LENGTH:
    case ANSWER_INTERRUPTED: return "max_tokens";
    default: return c->n_call ? "tool_use" : "end_turn";
    }
}

static void put_stop(api_writer *w)
{
    const api_answer *c = &w->choices[0];
    api_put_field(&w->out, "\"stop_reason\":", stop_reason(c, !w->r->parallel_calls && c->n_call));
    api_put_field(&w->out, ",\"stop_sequence\":", c->end == ANSWER_STOP_TEXT ? c->stop_text : NULL);
}

static void put_head(api_writer *w)
{
    textbuf_printf(&w->out, "\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\","
                   "\"model\":", w->id);
    api_put_text(&w->out, w->model);
}

static void begin(api_writer *w)
{
    open_event(w, "message_start");
    textbuf_str(&w->out, ",\"message\":{");
    put_head(w);
    textbuf_str(&w->out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(&w->out, &w->usage, true);
    textbuf_str(&w->out, "}");
    api_close_event(w);
    open_event(w, "ping");
    api_close_event(w);
}

/* With an empty text this is the block of content_block_start. */
static void put_block(textbuf *b, const api_writer *w, const api_part *p, str_view text)
{
    if (p->kind == PART_CALL) {
        textbuf_printf(b, "{\"type\":\"tool_use\",\"id\":\"toolu_%s_%d\",\"name\":", w->id,
                       p->number);
        api_put_text(b, p->name);
        textbuf_str(b, ",\"input\":");
        api_put_object(b, text);
    } else {
        textbuf_str(b, p->kind == PART_TEXT ? "{\"type\":\"text\",\"text\":"
                                            : "{\"type\":\"thinking\",\"thinking\":");
        textbuf_json_string(b, text);
        if (p->kind == PART_REASONING) textbuf_str(b, ",\"signature\":\"\"");
    }
    textbuf_str(b, "}");
}

static void open_part(api_writer *w, api_part *p)
{
    open_event(w, "content_block_start");
    textbuf_printf(&w->out, ",\"index\":%d,\"content_block\":", p->index);
    put_block(&w->out, w, p, (str_view){ NULL, 0 });
    api_close_event(w);
}

static void delta(api_writer *w, api_part *p, str_view text)
{
    static const char *const heads[] = {
        [PART_REASONING] = "{\"type\":\"thinking_delta\",\"thinking\":",
        [PART_TEXT] = "{\"type\":\"text_delta\",\"text\":",
        [PART_CALL] = "{\"type\":\"input_json_delta\",\"partial_json\":",
    };
    open_event(w, "content_block_delta");
    textbuf_printf(&w->out, ",\"index\":%d,\"delta\":%s", p->index, heads[p->kind]);
    textbuf_json_string(&w->out, text);
    textbuf_str(&w->out, "}");
    api_close_event(w);
}

static void close_part(api_writer *w, api_part *p)
{
    if (p->kind == PART_REASONING) {
        open_event(w, "content_block_delta");
        textbuf_printf(&w->out, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\","
                       "\"signature\":\"\"}", p->index);
        api_close_event(w);
    }
    open_event(w, "content_block_stop");
    textbuf_printf(&w->out, ",\"index\":%d", p->index);
    api_close_event(w);
}

static void idle(api_writer *w)
{
    open_event(w, "ping");
    api_close_event(w);
}

static void end(api_writer *w)
{
    open_event(w, "message_delta");
    textbuf_str(&w->out, ",\"delta\":{");
    put_stop(w);
    textbuf_str(&w->out, "},\"usage\":");
    put_usage(&w->out, &w->usage, false);
    api_close_event(w);
    open_event(w, "message_stop");
    api_close_event(w);
}

static void whole(api_writer *w)
{
    const api_answer *c = &w->choices[0];
    textbuf_str(&w->out, "{");
    put_head(w);
    textbuf_str(&w->out, ",\"content\":[");
    for (int i = 0; i < c->n_part; i++) {
        if (i) textbuf_str(&w->out, ",");
        put_block(&w->out, w, &c->parts[i], textbuf_view(&c->parts[i].text));
    }
    textbuf_str(&w->out, "],");
    put_stop(w);
    textbuf_str(&w->out, ",\"usage\":");
    put_usage(&w->out, &w->usage, false);
    textbuf_str(&w->out, "}");
}

const api_style api_style_messages = {
    .begin = begin, .open = open_part, .delta = delta, .close = close_part, .idle = idle,
    .end = end, .fail = api_put_failure, .whole = whole,
};
