/* api_write_ollama.c - writes responses of Ollama's /api/chat and /api/generate.
 *
 * Each line is a JSON object. Arguments of a call are an object, so a call is written when it is
 * complete; it has no id. /api/generate has no calls, and its text is at the top level. */
#include "cli/serve/api_internal.h"

static void put_head(api_writer *w)
{
    api_put_field(&w->out, "{\"model\":", w->model);
    textbuf_str(&w->out, ",\"created_at\":");
    api_put_date(&w->out, w->created);
}

static void put_call(textbuf *b, const api_part *p)
{
    api_put_field(b, "{\"function\":{\"name\":", p->name);
    textbuf_str(b, ",\"arguments\":");
    api_put_object(b, textbuf_view(&p->text));
    textbuf_str(b, "}}");
}

/* ,"message":{"role":"assistant","content":TEXT,"thinking":TEXT or ,"response":...; the caller
 * closes the message. */
static void put_texts(api_writer *w, str_view text, str_view thinking)
{
    textbuf *b = &w->out;
    textbuf_str(b, w->r->kind == API_OLLAMA_CHAT ?
                ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    textbuf_json_string(b, text);
    if (!thinking.len) return;
    api_put_string(b, ",\"thinking\":", thinking);
}

static void close_message(api_writer *w)
{
    if (w->r->kind == API_OLLAMA_CHAT) textbuf_str(&w->out, "}");
}

static void put_line(api_writer *w, str_view text, str_view thinking)
{
    put_head(w);
    put_texts(w, text, thinking);
    close_message(w);
    textbuf_str(&w->out, ",\"done\":false}\n");
}

static void delta(api_writer *w, api_part *p, str_view text)
{
    const str_view none = { NULL, 0 };
    if (p->kind != PART_CALL)
        put_line(w, p->kind == PART_TEXT ? text : none, p->kind == PART_TEXT ? none : text);
}

static void close_part(api_writer *w, api_part *p)
{
    if (p->kind != PART_CALL || w->r->kind != API_OLLAMA_CHAT) return;
    put_head(w);
    put_texts(w, (str_view){ NULL, 0 }, (str_view){ NULL, 0 });
    textbuf_str(&w->out, ",\"tool_calls\":[");
    put_call(&w->out, p);
    textbuf_str(&w->out, "]},\"done\":false}\n");
}

static void idle(api_writer *w)
{
    put_line(w, (str_view){ NULL, 0 }, (str_view){ NULL, 0 });
}

static void put_end(api_writer *w)
{
    const api_usage *u = &w->usage;
    const api_answer *c = &w->choices[0];
    const char *reason = w->r->load_only ? "load"
                       : strcmp(api_finish_reason(w, c), "length") == 0 ? "length" : "stop";
    textbuf_printf(&w->out, ",\"done\":true,\"done_reason\":\"%s\"", reason);
    if (!w->r->load_only)
        textbuf_printf(&w->out, ",\"total_duration\":%llu,\"load_duration\":0,"
                       "\"prompt_eval_count\":%d,\"prompt_eval_duration\":%llu,\"eval_count\":%d,"
                       "\"eval_duration\":%llu", (unsigned long long)u->total_ns, u->n_prompt,
                       (unsigned long long)u->prompt_ns, u->n_answer,
                       (unsigned long long)u->answer_ns);
    textbuf_str(&w->out, w->r->stream ? "}\n" : "}");
}

static void end(api_writer *w)
{
    put_head(w);
    put_texts(w, (str_view){ NULL, 0 }, (str_view){ NULL, 0 });
    close_message(w);
    put_end(w);
}

static void fail(api_writer *w, const api_error *error)
{
    api_put_error(&w->out, error, w->r->kind, NULL);
    textbuf_str(&w->out, "\n");
}

static void whole(api_writer *w)
{
    const api_answer *c = &w->choices[0];
    textbuf text = { 0 }, thinking = { 0 };
    int n = 0;

    api_put_joined(&text, c, PART_TEXT);
    api_put_joined(&thinking, c, PART_REASONING);
    if (text.failed || thinking.failed) w->out.failed = true;
    put_head(w);
    put_texts(w, textbuf_view(&text), textbuf_view(&thinking));
    for (int i = 0; i < c->n_part && w->r->kind == API_OLLAMA_CHAT; i++) {
        if (c->parts[i].kind != PART_CALL) continue;
        textbuf_str(&w->out, n++ ? "," : ",\"tool_calls\":[");
        put_call(&w->out, &c->parts[i]);
    }
    if (n) textbuf_str(&w->out, "]");
    close_message(w);
    put_end(w);
    textbuf_free(&text);
    textbuf_free(&thinking);
}

const api_style api_style_ollama = {
    .delta = delta, .close = close_part, .idle = idle, .end = end, .fail = fail, .whole = whole,
};
