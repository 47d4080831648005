/* api_write_completion.c - writes responses of OpenAI's completions.
 *
 * All output of the model is text; there is no reasoning and no call. Chunks of a stream are
 * objects of the same kind as a whole response. */
#include "cli/serve/api_internal.h"

static void put_head(api_writer *w)
{
    textbuf_printf(&w->out, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,"
                   "\"model\":", w->id, (long long)w->created);
    api_put_text(&w->out, w->model);
    textbuf_str(&w->out, ",\"system_fingerprint\":\"moe\",\"choices\":[");
}

static void put_rows(textbuf *b, api_answer *c)
{
    textbuf_str(b, "{\"tokens\":[");
    textbuf_put(b, textbuf_view(&c->rows));
    textbuf_str(b, "],\"token_logprobs\":[");
    textbuf_put(b, textbuf_view(&c->row_logprobs));
    textbuf_str(b, "],\"top_logprobs\":[");
    textbuf_put(b, textbuf_view(&c->row_tops));
    textbuf_str(b, "],\"text_offset\":[");
    textbuf_put(b, textbuf_view(&c->row_offsets));
    textbuf_str(b, "]}");
    c->rows.len = c->row_logprobs.len = c->row_tops.len = c->row_offsets.len = 0;
}

static void put_choice(api_writer *w, int index, str_view text, bool rows, const char *finish)
{
    textbuf *b = &w->out;
    textbuf_printf(b, "{\"index\":%d,\"text\":", index);
    textbuf_json_string(b, text);
    textbuf_str(b, ",\"logprobs\":");
    if (rows) put_rows(b, &w->choices[index]);
    else textbuf_str(b, "null");
    api_put_field(b, ",\"finish_reason\":", finish);
    textbuf_str(b, "}");
}

static void put_chunk(api_writer *w, int index, str_view text, const char *finish)
{
    textbuf_str(&w->out, "data: ");
    put_head(w);
    put_choice(w, index, text, w->choices[index].rows.len > 0, finish);
    textbuf_str(&w->out, w->r->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void delta(api_writer *w, api_part *p, str_view text)
{
    if (p->kind == PART_TEXT) put_chunk(w, w->current, text, NULL);
}

static void idle(api_writer *w)
{
    textbuf_str(&w->out, "data: ");
    put_head(w);
    put_choice(w, 0, (str_view){ NULL, 0 }, false, NULL);
    textbuf_str(&w->out, w->r->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void end(api_writer *w)
{
    textbuf *b = &w->out;
    for (int i = 0; i < w->n_choice; i++)
        put_chunk(w, i, (str_view){ NULL, 0 }, api_finish_reason(w, &w->choices[i]));
    if (w->r->include_usage) {
        textbuf_str(b, "data: ");
        put_head(w);
        textbuf_str(b, "],\"usage\":");
        api_put_usage(b, &w->usage);
        textbuf_str(b, "}\n\n");
    }
    textbuf_str(b, "data: [DONE]\n\n");
}

static void whole(api_writer *w)
{
    textbuf *b = &w->out;
    put_head(w);
    for (int i = 0; i < w->n_choice; i++) {
        textbuf text = { 0 };
        api_put_joined(&text, &w->choices[i], PART_TEXT);
        if (i) textbuf_str(b, ",");
        put_choice(w, i, textbuf_view(&text), w->r->logprobs >= 0,
                   api_finish_reason(w, &w->choices[i]));
        if (text.failed) b->failed = true;
        textbuf_free(&text);
    }
    textbuf_str(b, "],\"usage\":");
    api_put_usage(b, &w->usage);
    textbuf_str(b, ",\"timings\":");
    api_put_timings(b, &w->usage);
    textbuf_str(b, "}");
}

const api_style api_style_completion = {
    .delta = delta, .idle = idle, .end = end, .fail = api_put_failure, .whole = whole,
};
