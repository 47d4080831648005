/* api_writer.c - events to a response: what is the same for every API.
 *
 * Events become parts: consecutive reasoning or text, or one call. A part closes before the next
 * opens. In a stream each step is written at once, and one call of the writer calls the sink once.
 * Without a stream parts are kept and written at the end. Both use the same parts, so a joined
 * stream equals the whole response. */
#include "cli/serve/api_internal.h"

static const api_style *style_of(api_kind kind)
{
    switch (kind) {
    case API_CHAT: return &api_style_chat;
    case API_COMPLETION: return &api_style_completion;
    case API_RESPONSES: return &api_style_responses;
    case API_MESSAGES: return &api_style_messages;
    default: return &api_style_ollama;
    }
}

const char *api_content_type(const api_request *r)
{
    if (!r->stream) return "application/json";
    return r->kind == API_OLLAMA_CHAT || r->kind == API_OLLAMA_GENERATE ? "application/x-ndjson"
         : "text/event-stream";
}

int api_writer_n_choice(const api_request *r)
{
    const int n = r->raw && r->n_prompts > 1 ? r->n_prompts * r->n : r->n;
    return n < API_MAX_CHOICE ? n : API_MAX_CHOICE;
}

int api_writer_create(api_writer **out, const api_request *r, const api_names *names,
                      api_sink *sink, void *ctx)
{
    api_writer *w = mem_zalloc(sizeof *w);
    *out = NULL;
    if (!w) return ERR_NOMEM;
    w->r = r;
    w->created = names->created;
    w->sink = sink;
    w->ctx = ctx;
    w->style = style_of(r->kind);
    w->n_choice = api_writer_n_choice(r);
    w->model = mem_strdup_n(names->model, strlen(names->model));
    w->id = mem_strdup_n(names->id, strlen(names->id));
    if (!w->model || !w->id) {
        api_writer_free(w);
        return ERR_NOMEM;
    }
    *out = w;
    return 0;
}

void api_writer_free(api_writer *w)
{
    if (!w) return;
    for (int i = 0; i < API_MAX_CHOICE; i++) {
        api_answer *c = &w->choices[i];
        for (int k = 0; k < c->n_part; k++) {
            mem_free(c->parts[k].name);
            textbuf_free(&c->parts[k].text);
            textbuf_free(&c->parts[k].rows);
        }
        mem_free(c->parts);
        mem_free(c->stop_text);
        textbuf_free(&c->rows);
        textbuf_free(&c->row_logprobs);
        textbuf_free(&c->row_tops);
        textbuf_free(&c->row_offsets);
    }
    textbuf_free(&w->out);
    textbuf_free(&w->echo);
    mem_free(w->model);
    mem_free(w->id);
    mem_free(w);
}

static int flush(api_writer *w)
{
    int rc = 0;
    if (w->out.failed || w->echo.failed) return ERR_NOMEM;
    if (w->out.len) rc = w->sink(w->ctx, w->out.ptr, w->out.len);
    w->out.len = 0;
    return rc < 0 ? rc : 0;
}

/* ---- parts --------------------------------------------------------------------------------- */

static api_part *last_part(api_answer *c)
{
    return c->is_open ? &c->parts[c->n_part - 1] : NULL;
}

/* Moves new rows of logprobs to the part, for APIs whose parts have them. */
static void keep_rows(const api_writer *w, api_answer *c, api_part *p)
{
    if (w->r->kind != API_RESPONSES || p->kind != PART_TEXT || !c->rows.len) return;
    if (p->rows.len) textbuf_str(&p->rows, ",");
    textbuf_put(&p->rows, textbuf_view(&c->rows));
    c->rows.len = 0;
}

static void close_part(api_writer *w, api_answer *c)
{
    api_part *p = last_part(c);
    if (!p) return;
    keep_rows(w, c, p);
    c->is_open = false;
    p->done = true;
    if (w->r->stream && w->style->close) w->style->close(w, p);
}

/* Models omit the namespace at times: a tool with this name is used if it is the only one. */
static const api_tool *find_tool(const api_request *r, const char *name)
{
    const api_tool *found = NULL;
    int n = 0;

    for (int i = 0; i < r->n_tool; i++)
        if (strcmp(r->tools[i].full_name, name) == 0) return &r->tools[i];
    for (int i = 0; i < r->n_tool; i++) {
        if (strcmp(r->tools[i].name, name) != 0) continue;
        found = &r->tools[i];
        n++;
    }
    return n == 1 ? found : NULL;
}

static api_part *open_part(api_writer *w, api_answer *c, part_kind kind, str_view name)
{
    api_part *p;

    close_part(w, c);
    if (!(p = mem_grow(c->parts, c->n_part, &c->cap_part, sizeof *p))) return NULL;
    c->parts = p;
    p += c->n_part;
    *p = (api_part){ .kind = kind, .index = c->n_part, .number = w->n_number };
    if (kind == PART_CALL) {
        if (!(p->name = mem_strdup_n(name.len ? name.ptr : "", name.len))) return NULL;
        p->tool = find_tool(w->r, p->name);
        p->call = c->n_call++;
    }
    w->n_number++;
    c->n_part++;
    c->is_open = true;
    if (w->r->stream && w->style->open) w->style->open(w, p);
    return p;
}

static int add_text(api_writer *w, api_part *p, str_view text)
{
    if (!text.len) return 0;
    if (p->kind == PART_CALL || !w->r->stream || w->style->keep_text) textbuf_put(&p->text, text);
    if (p->text.failed) return ERR_NOMEM;
    if (w->r->stream) w->style->delta(w, p, text);
    keep_rows(w, &w->choices[w->current], p);
    if (p->rows.failed) return ERR_NOMEM;
    return 0;
}

int api_writer_event(api_writer *w, const chat_event *ev)
{
    api_answer *c = &w->choices[w->current];
    api_part *p = last_part(c);
    part_kind kind = PART_TEXT;
    int rc = 0;

    switch (ev->kind) {
    case CHAT_REASONING:
        if (!w->r->show_reasoning) return 0;
        kind = PART_REASONING;           /* fall through */
    case CHAT_ANSWER:
        if (!ev->text.len) return 0;
        if (!p || p->kind != kind) p = open_part(w, c, kind, (str_view){ NULL, 0 });
        rc = p ? add_text(w, p, ev->text) : ERR_NOMEM;
        break;
    case CHAT_CALL_BEGIN:
        /* one call at most: arguments of another find no open call */
        if (!w->r->parallel_calls && c->n_call) close_part(w, c);
        else if (!open_part(w, c, PART_CALL, ev->name)) rc = ERR_NOMEM;
        break;
    case CHAT_CALL_ARGS:
        if (p && p->kind == PART_CALL) rc = add_text(w, p, ev->text);
        break;
    case CHAT_CALL_END:
        if (!p || p->kind != PART_CALL) break;
        if (!p->text.len) rc = add_text(w, p, str_from("{}"));
        close_part(w, c);
        break;
    case CHAT_DONE:
        break;
    }
    return rc < 0 ? rc : flush(w);
}

/* ---- the rest ------------------------------------------------------------------------------ */

int api_writer_begin(api_writer *w, const api_usage *u)
{
    w->begun = true;
    if (u) w->usage = *u;
    if (w->r->stream && !w->r->load_only && w->style->begin) w->style->begin(w);
    return flush(w);
}

int api_writer_idle(api_writer *w)
{
    if (w->r->stream && w->begun) w->style->idle(w);
    return flush(w);
}

void api_writer_choice(api_writer *w, int i)
{
    if (i >= 0 && i < w->n_choice) w->current = i;
}

void api_writer_finish(api_writer *w, answer_end end, const char *stop_text)
{
    api_answer *c = &w->choices[w->current];
    if (c->finished) return;
    c->finished = true;
    c->end = end;
    /* without memory the client misses only which stop string it was */
    if (stop_text) c->stop_text = mem_strdup_n(stop_text, strlen(stop_text));
}

int api_writer_end(api_writer *w, answer_end end, const char *stop_text, const api_usage *u)
{
    if (u) w->usage = *u;
    for (w->current = 0; w->current < w->n_choice; w->current++) {
        api_writer_finish(w, end, stop_text);
        close_part(w, &w->choices[w->current]);
    }
    w->current = 0;
    if (w->r->stream) w->style->end(w);
    else w->style->whole(w);
    return flush(w);
}

int api_writer_fail(api_writer *w, const api_error *error)
{
    if (w->r->stream) w->style->fail(w, error);
    else api_put_error(&w->out, error, w->r->kind, w->id);
    return flush(w);
}
