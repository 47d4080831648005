/* api_write_chat.c - writes responses of OpenAI's chat completions.
 *
 * Each event is a chunk; id, created and model are the same in all. The first chunk of a call has
 * its id and name, every chunk its index. No text follows the chunk with finish_reason. */
#include "cli/serve/api_internal.h"

static void put_head(api_writer *w, const char *object)
{
    textbuf *b = &w->out;
    textbuf_printf(b, "{\"id\":\"chatcmpl-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                   w->id, object, (long long)w->created);
    api_put_text(b, w->model);
    textbuf_str(b, ",\"system_fingerprint\":\"moe\"");
}

/* The caller writes the value of delta and calls close_chunk. */
static void open_chunk(api_writer *w, int index)
{
    textbuf_str(&w->out, "data: ");
    put_head(w, "chat.completion.chunk");
    textbuf_printf(&w->out, ",\"choices\":[{\"index\":%d,\"delta\":", index);
}

static void put_rows(textbuf *b, api_answer *c)
{
    textbuf_str(b, "{\"content\":[");
    textbuf_put(b, textbuf_view(&c->rows));
    textbuf_str(b, "],\"refusal\":null}");
    c->rows.len = 0;
}

static void close_chunk(api_writer *w, api_answer *c, const char *finish, bool timings)
{
    textbuf *b = &w->out;
    if (c && c->rows.len) {
        textbuf_str(b, ",\"logprobs\":");
        put_rows(b, c);
    }
    api_put_field(b, ",\"finish_reason\":", finish);
    textbuf_str(b, "}]");
    if (w->r->include_usage) textbuf_str(b, ",\"usage\":null");
    if (timings) {
        textbuf_str(b, ",\"timings\":");
        api_put_timings(b, &w->usage);
    }
    textbuf_str(b, "}\n\n");
}

static void begin(api_writer *w)
{
    for (int i = 0; i < w->n_choice; i++) {
        open_chunk(w, i);
        textbuf_str(&w->out, "{\"role\":\"assistant\",\"content\":\"\"}");
        close_chunk(w, NULL, NULL, false);
    }
}

static void put_call_head(textbuf *b, const api_writer *w, const api_part *p)
{
    textbuf_printf(b, "\"id\":\"call_%s_%d\",\"type\":\"function\",\"function\":{\"name\":", w->id,
                   p->number);
    api_put_text(b, p->name);
    textbuf_str(b, ",\"arguments\":");
}

static void open_part(api_writer *w, api_part *p)
{
    if (p->kind != PART_CALL) return;
    open_chunk(w, w->current);
    textbuf_printf(&w->out, "{\"tool_calls\":[{\"index\":%d,", p->call);
    put_call_head(&w->out, w, p);
    textbuf_str(&w->out, "\"\"}}]}");
    close_chunk(w, NULL, NULL, false);
}

static void delta(api_writer *w, api_part *p, str_view text)
{
    textbuf *b = &w->out;
    open_chunk(w, w->current);
    if (p->kind == PART_CALL)
        textbuf_printf(b, "{\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p->call);
    else
        textbuf_str(b, p->kind == PART_TEXT ? "{\"content\":" : "{\"reasoning_content\":");
    textbuf_json_string(b, text);
    textbuf_str(b, p->kind == PART_CALL ? "}}]}" : "}");
    close_chunk(w, p->kind == PART_TEXT ? &w->choices[w->current] : NULL, NULL, false);
}

static void idle(api_writer *w)
{
    open_chunk(w, 0);
    textbuf_str(&w->out, "{}");
    close_chunk(w, NULL, NULL, false);
}

static void end(api_writer *w)
{
    textbuf *b = &w->out;
    for (int i = 0; i < w->n_choice; i++) {
        api_answer *c = &w->choices[i];
        open_chunk(w, i);
        textbuf_str(b, "{}");
        close_chunk(w, c, api_finish_reason(w, c), i == w->n_choice - 1);
    }
    if (w->r->include_usage) {
        textbuf_str(b, "data: ");
        put_head(w, "chat.completion.chunk");
        textbuf_str(b, ",\"choices\":[],\"usage\":");
        api_put_usage(b, &w->usage);
        textbuf_str(b, "}\n\n");
    }
    textbuf_str(b, "data: [DONE]\n\n");
}

/* ---- in one piece -------------------------------------------------------------------------- */

static void put_joined(textbuf *b, const api_answer *c, part_kind kind)
{
    textbuf text = { 0 };
    api_put_joined(&text, c, kind);
    if (text.failed) b->failed = true;
    else textbuf_json_string(b, textbuf_view(&text));
    textbuf_free(&text);
}

static bool has_part(const api_answer *c, part_kind kind)
{
    for (int i = 0; i < c->n_part; i++)
        if (c->parts[i].kind == kind) return true;
    return false;
}

static void put_message(api_writer *w, const api_answer *c)
{
    textbuf *b = &w->out;
    int n = 0;

    textbuf_str(b, "{\"role\":\"assistant\",\"content\":");
    if (c->n_call && !has_part(c, PART_TEXT)) textbuf_str(b, "null");
    else put_joined(b, c, PART_TEXT);
    textbuf_str(b, ",\"refusal\":null");
    if (has_part(c, PART_REASONING)) {
        textbuf_str(b, ",\"reasoning_content\":");
        put_joined(b, c, PART_REASONING);
    }
    for (int i = 0; i < c->n_part; i++) {
        if (c->parts[i].kind != PART_CALL) continue;
        textbuf_str(b, n++ ? ",{" : ",\"tool_calls\":[{");
        put_call_head(b, w, &c->parts[i]);
        textbuf_json_string(b, textbuf_view(&c->parts[i].text));
        textbuf_str(b, "}}");
    }
    textbuf_str(b, n ? "]}" : "}");
}

static void whole(api_writer *w)
{
    textbuf *b = &w->out;
    put_head(w, "chat.completion");
    textbuf_str(b, ",\"choices\":[");
    for (int i = 0; i < w->n_choice; i++) {
        api_answer *c = &w->choices[i];
        textbuf_printf(b, "%s{\"index\":%d,\"message\":", i ? "," : "", i);
        put_message(w, c);
        textbuf_str(b, ",\"logprobs\":");
        if (w->r->logprobs >= 0) put_rows(b, c);
        else textbuf_str(b, "null");
        api_put_field(b, ",\"finish_reason\":", api_finish_reason(w, c));
        textbuf_str(b, "}");
    }
    textbuf_str(b, "],\"usage\":");
    api_put_usage(b, &w->usage);
    textbuf_str(b, ",\"timings\":");
    api_put_timings(b, &w->usage);
    textbuf_str(b, "}");
}

const api_style api_style_chat = {
    .begin = begin, .open = open_part, .delta = delta, .idle = idle, .end = end,
    .fail = api_put_failure, .whole = whole,
};
