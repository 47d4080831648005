/* chat_gemma.c - Gemma 4: messages to tokens, and parsing of its calls.
 *
 * A turn is <|turn>ROLE LF TEXT<turn|> LF. <|think|> at the start of the system turn enables
 * reasoning, which is a channel: <|channel>thought LF ... <channel|>. Without it the cue contains
 * an empty channel. Tools, calls and results are objects with bare keys in alphabetical order and
 * strings between two <|"|>. Calls and results are part of one turn of the model, which continues
 * after them; the text of a message with calls follows the results.
 *
 * Rendering copies the template's oddities: parameters named "type" or "description" are omitted,
 * and an object without a type is not closed. tagged_tool_calls.c parses the rest of the output. */
#include "engine/text/chat/chat_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define QUOTE "<|\"|>"
#define CHANNEL "<|channel>"
#define CHANNEL_END "<channel|>"
#define CALL "<|tool_call>"
#define CALL_END "<tool_call|>"
#define RESPONSE "<|tool_response>"
#define RESPONSE_END "<tool_response|>"
#define CALL_WORD GEMMA_CALL_WORD

/* Deeper nested arguments make the call answer text. */
enum { DEPTH_MAX = 64 };

static const chat_tags gemma_tags = { CHANNEL, CHANNEL_END, "thought", CALL, CALL_END };

static int gemma_setup(chat *c, str_view template, err_ctx *err)
{
    static const char *const tags[] = { CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE };
    (void)err;
    if (!view_has(template, "<|turn>") || !view_has(template, "<turn|>")) return 0;
    c->turn = tokenizer_special(c->t, "<|turn>");
    c->turn_end = tokenizer_special(c->t, "<turn|>");
    if (c->turn < 0 || c->turn_end < 0) return 0;
    c->first = view_has(template, "bos_token") ? tokenizer_bos(c->t) : -1;
    c->tags = &gemma_tags;
    c->knows_reasoning = c->may_rest = view_has(template, "enable_thinking");
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) chat_show(c, tags[i]);
    c->ends[c->n_end++] = c->turn_end;
    const int response = tokenizer_special(c->t, RESPONSE);
    if (response >= 0) c->ends[c->n_end++] = response;
    return 1;
}

/* ---- values -------------------------------------------------------------------------------- */

typedef struct member { const char *key; const json_t *value; size_t index; } member;
typedef struct sorted { member *m; size_t n; } sorted;

/* Compares keys without case; equal keys keep their order. */
static int compare(const void *a, const void *b)
{
    const member *x = a, *y = b;
    for (size_t i = 0; ; i++) {
        const unsigned char cx = (unsigned char)x->key[i], cy = (unsigned char)y->key[i];
        const int lx = cx >= 'A' && cx <= 'Z' ? cx + 32 : cx;
        const int ly = cy >= 'A' && cy <= 'Z' ? cy + 32 : cy;
        if (lx != ly) return lx - ly;
        if (lx == 0) return x->index < y->index ? -1 : 1;
    }
}

/* Returns the members sorted by key, or none with p->rc < 0. The caller frees m with mem_free. */
static sorted sort_members(prompt *p, const json_t *object)
{
    sorted out = { NULL, 0 };
    const char *key;
    json_t *v;
    const size_t n = json_object_size(object);
    if (n == 0 || p->rc < 0) return out;
    if (!(out.m = mem_array(n, sizeof *out.m))) {
        p->rc = err_set(p->err, ERR_NOMEM, "chat: %zu members of an object", n);
        return out;
    }
    json_object_foreach((json_t *)object, key, v) {
        out.m[out.n] = (member){ key, v, out.n };
        out.n++;
    }
    qsort(out.m, out.n, sizeof *out.m, compare);
    return out;
}

static void put_quoted(prompt *p, str_view s)
{
    prompt_tag(p, QUOTE);
    prompt_view(p, s);
    prompt_tag(p, QUOTE);
}

static void put_value(prompt *p, const json_t *v, bool quote_keys)
{
    size_t i;
    json_t *item;
    if (json_is_string(v)) {
        put_quoted(p, json_view(v));
    } else if (json_is_boolean(v)) {
        prompt_text(p, json_is_true(v) ? "true" : "false");
    } else if (json_is_object(v)) {
        const sorted all = sort_members(p, v);
        prompt_text(p, "{");
        for (i = 0; i < all.n; i++) {
            if (i) prompt_text(p, ",");
            if (quote_keys) put_quoted(p, str_from(all.m[i].key));
            else prompt_text(p, all.m[i].key);
            prompt_text(p, ":");
            put_value(p, all.m[i].value, quote_keys);
        }
        prompt_text(p, "}");
        mem_free(all.m);
    } else if (json_is_array(v)) {
        prompt_text(p, "[");
        json_array_foreach(v, i, item) {
            if (i) prompt_text(p, ",");
            put_value(p, item, quote_keys);
        }
        prompt_text(p, "]");
    } else {
        textbuf_python(&p->text, v);
    }
}

/* ---- tools --------------------------------------------------------------------------------- */

static bool is_true(const json_t *v)     /* Python's truth value */
{
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return json_object_size(v) > 0;
    if (json_is_number(v)) return json_number_value(v) != 0;
    return json_is_true(v);
}

/* Writes the value as Python's str() does, between quotes; v may be NULL. */
static void put_python(prompt *p, const json_t *v)
{
    prompt_tag(p, QUOTE);
    if (v) textbuf_python(&p->text, v);
    prompt_tag(p, QUOTE);
}

static void put_upper(prompt *p, const json_t *v)
{
    prompt_tag(p, QUOTE);
    const size_t from = p->text.len;
    if (v) textbuf_python(&p->text, v);
    for (size_t i = from; i < p->text.len; i++)
        if (p->text.ptr[i] >= 'a' && p->text.ptr[i] <= 'z') p->text.ptr[i] -= 32;
    prompt_tag(p, QUOTE);
}

static void put_type(prompt *p, const json_t *type)
{
    prompt_text(p, "type:");
    put_upper(p, type);
}

static void put_names(prompt *p, const json_t *names)
{
    size_t i;
    json_t *v;
    prompt_text(p, "required:[");
    json_array_foreach(names, i, v) {
        if (i) prompt_text(p, ",");
        put_python(p, v);
    }
    prompt_text(p, "]");
}

static bool is_type(const json_t *schema, const char *name)
{
    const char *type = json_text(schema, "type");
    return type && strcasecmp(type, name) == 0;
}

static void put_properties(prompt *p, const json_t *properties);

/* Writes all keys of the schema of an array's items, sorted. */
static void put_items(prompt *p, const json_t *items)
{
    const sorted all = sort_members(p, items);
    int n = 0;
    prompt_text(p, "items:{");
    for (size_t i = 0; i < all.n; i++) {
        const json_t *v = all.m[i].value;
        if (json_is_null(v)) continue;
        if (n++) prompt_text(p, ",");
        if (strcmp(all.m[i].key, "properties") == 0) {
            prompt_text(p, "properties:{");
            put_properties(p, v);
            prompt_text(p, "}");
        } else if (strcmp(all.m[i].key, "required") == 0) {
            put_names(p, v);
        } else if (strcmp(all.m[i].key, "type") == 0 && json_is_array(v)) {
            size_t k;
            json_t *one;
            prompt_text(p, "type:[");
            json_array_foreach(v, k, one) {
                prompt_text(p, k ? "," : "");
                put_upper(p, one);
            }
            prompt_text(p, "]");
        } else if (strcmp(all.m[i].key, "type") == 0) {
            put_type(p, v);
        } else {
            prompt_text(p, all.m[i].key);
            prompt_text(p, ":");
            put_value(p, v, true);
        }
    }
    prompt_text(p, "}");
    mem_free(all.m);
}

static void put_comma(prompt *p, bool *any)
{
    if (*any) prompt_text(p, ",");
    *any = true;
}

static void put_property(prompt *p, const json_t *schema)
{
    const json_t *about = json_object_get(schema, "description");
    const json_t *list = json_object_get(schema, "enum"), *items = json_object_get(schema, "items");
    const json_t *inner = json_object_get(schema, "properties");
    bool any = false;

    if (is_true(about)) {
        put_comma(p, &any);
        prompt_text(p, "description:");
        put_python(p, about);
    }
    if (is_type(schema, "string") && is_true(list)) {
        put_comma(p, &any);
        prompt_text(p, "enum:");
        put_value(p, list, true);
    }
    if (is_type(schema, "array") && json_object_size(items) > 0) {
        put_comma(p, &any);
        put_items(p, items);
    }
    if (is_true(json_object_get(schema, "nullable"))) {
        put_comma(p, &any);
        prompt_text(p, "nullable:true");
    }
    if (is_type(schema, "object")) {
        put_comma(p, &any);
        prompt_text(p, "properties:{");
        put_properties(p, json_is_object(inner) ? inner : schema);
        prompt_text(p, "}");
        if (is_true(json_object_get(schema, "required"))) {
            put_comma(p, &any);
            put_names(p, json_object_get(schema, "required"));
        }
    }
    put_comma(p, &any);
    put_type(p, json_object_get(schema, "type"));
}

static void put_properties(prompt *p, const json_t *properties)
{
    static const char *const words[] = {
        "description", "type", "properties", "required", "nullable",
    };
    const sorted all = sort_members(p, properties);
    int n = 0;
    for (size_t i = 0; i < all.n; i++) {
        bool word = false;
        for (size_t k = 0; k < ARRAY_LEN(words); k++)
            if (strcmp(words[k], all.m[i].key) == 0) word = true;
        if (word) continue;
        if (n++) prompt_text(p, ",");
        prompt_text(p, all.m[i].key);
        prompt_text(p, ":{");
        put_property(p, all.m[i].value);
        prompt_text(p, "}");
    }
    mem_free(all.m);
}

static void put_tool(prompt *p, const json_t *f)
{
    const json_t *params = json_object_get(f, "parameters"), *about, *v;
    const json_t *response = json_object_get(f, "response");

    prompt_tag(p, "<|tool>");
    prompt_text(p, "declaration:");
    prompt_text(p, json_text(f, "name"));
    prompt_text(p, "{description:");
    put_python(p, json_object_get(f, "description"));
    if (is_true(params)) {
        prompt_text(p, ",parameters:{");
        if (is_true(v = json_object_get(params, "properties"))) {
            prompt_text(p, "properties:{");
            put_properties(p, v);
            prompt_text(p, "},");
        }
        if (is_true(v = json_object_get(params, "required"))) {
            put_names(p, v);
            prompt_text(p, ",");
        }
        if (is_true(v = json_object_get(params, "type"))) {
            put_type(p, v);
            prompt_text(p, "}");
        }
    }
    if (response) {
        prompt_text(p, ",response:{");
        if (is_true(about = json_object_get(response, "description"))) {
            prompt_text(p, "description:");
            put_python(p, about);
            prompt_text(p, ",");
        }
        if (is_type(response, "object")) {
            put_type(p, json_object_get(response, "type"));
            prompt_text(p, "}");
        }
    }
    prompt_text(p, "}");
    prompt_tag(p, "<tool|>");
}

/* ---- turns --------------------------------------------------------------------------------- */

static bool thinks(const chat *c, const chat_request *req)
{
    return c->may_rest && req->thinking == CHAT_THINK_ON;
}

static void open_turn(prompt *p, const char *role)
{
    prompt_token(p, p->c->turn);
    prompt_text(p, role);
    prompt_text(p, "\n");
}

static void close_turn(prompt *p)
{
    prompt_token(p, p->c->turn_end);
    prompt_text(p, "\n");
}

/* Returns the number of messages that it rendered: 0 or 1. */
static int put_system(prompt *p, const chat_request *req)
{
    const chat_message *ms = req->messages;
    const bool first = req->n_message > 0 &&
                       (ms[0].role == CHAT_SYSTEM || ms[0].role == CHAT_DEVELOPER);
    size_t i;
    json_t *tool;

    if (!first && !thinks(p->c, req) && json_array_size(req->tools) == 0) return 0;
    open_turn(p, "system");
    if (thinks(p->c, req)) {
        prompt_tag(p, "<|think|>");
        prompt_text(p, "\n");
    }
    if (first) prompt_view(p, view_trim(ms[0].content));
    json_array_foreach(req->tools, i, tool) put_tool(p, tool_function(tool));
    close_turn(p);
    return first;
}

static void put_call(prompt *p, const chat_call *call, int i_message)
{
    json_t *args = call_arguments(p, call, i_message);
    const sorted all = sort_members(p, args);
    prompt_tag(p, CALL);
    prompt_text(p, CALL_WORD);
    prompt_view(p, call->name);
    prompt_text(p, "{");
    for (size_t i = 0; i < all.n; i++) {
        if (i) prompt_text(p, ",");
        prompt_text(p, all.m[i].key);
        prompt_text(p, ":");
        put_value(p, all.m[i].value, false);
    }
    prompt_text(p, "}");
    prompt_tag(p, CALL_END);
    mem_free(all.m);
    json_decref(args);
}

static void put_result(prompt *p, str_view name, str_view content)
{
    prompt_tag(p, RESPONSE);
    prompt_text(p, "response:");
    prompt_view(p, name);
    prompt_text(p, "{value:");
    put_quoted(p, content);
    prompt_text(p, "}");
    prompt_tag(p, RESPONSE_END);
}

/* Writes text without its channels, trimmed at both ends. Returns p->rc. */
static int put_spoken(prompt *p, str_view s)
{
    textbuf out = { 0 };
    for (size_t pos = 0; pos < s.len; ) {
        const size_t end = view_find(s, pos, CHANNEL_END), stop = end == SIZE_MAX ? s.len : end;
        const str_view segment = { s.ptr + pos, stop - pos };
        const size_t open = view_find(segment, 0, CHANNEL);
        textbuf_put(&out, (str_view){ segment.ptr, open == SIZE_MAX ? segment.len : open });
        pos = end == SIZE_MAX ? s.len : end + strlen(CHANNEL_END);
    }
    if (p->rc == 0) p->rc = textbuf_check(&out, p->err);
    prompt_view(p, view_trim(textbuf_view(&out)));
    textbuf_free(&out);
    return p->rc;
}

/* Writes a message of the model and the results after it. Returns the number of results. */
static int put_model(prompt *p, const chat_request *req, int i, bool goes_on, bool in_progress)
{
    const chat_message *m = &req->messages[i];
    int n = 0;

    if (!goes_on) open_turn(p, "model");
    if (m->reasoning.len && in_progress && m->n_call) {
        prompt_tag(p, CHANNEL);
        prompt_text(p, "thought\n");
        prompt_view(p, m->reasoning);
        prompt_text(p, "\n");
        prompt_tag(p, CHANNEL_END);
    }
    for (int k = 0; k < m->n_call; k++) put_call(p, &m->calls[k], i);
    for (; m->n_call && i + 1 + n < req->n_message; n++) {
        const chat_message *r = &req->messages[i + 1 + n];
        if (r->role != CHAT_TOOL) break;
        put_result(p, r->name.len ? r->name : m->calls[m->n_call - 1].name, r->content);
    }
    put_spoken(p, m->content);
    if (m->n_call && n == 0) prompt_tag(p, RESPONSE);
    else if (n == 0 || m->content.len) close_turn(p);
    return n;
}

/* Returns true if the last turn is the model's and has calls: it continues and needs no cue. */
static bool turn_is_open(const chat_request *req)
{
    int i = req->n_message - 1;
    while (i >= 0 && req->messages[i].role == CHAT_TOOL) i--;
    return i >= 0 && req->messages[i].n_call > 0;
}

static void gemma_render(prompt *p, const chat_request *req)
{
    const chat *c = p->c;
    const chat_message *ms = req->messages;
    int last_user = -1, before = -1;

    for (int i = 0; i < req->n_message; i++)
        if (ms[i].role == CHAT_USER) last_user = i;
    if (c->first >= 0) prompt_token(p, c->first);
    for (int i = put_system(p, req); i < req->n_message && p->rc == 0; i++) {
        if (ms[i].role == CHAT_TOOL) {
            p->rc = err_set(p->err, ERR_UNSUPPORTED, "messages[%d]: in this model's chat format a "
                            "tool's result follows its call", i);
        } else if (ms[i].role == CHAT_ASSISTANT) {
            const bool goes_on = before >= 0 && ms[before].role == CHAT_ASSISTANT;
            before = i;
            i += put_model(p, req, i, goes_on, i > last_user);
        } else {
            open_turn(p, ms[i].role == CHAT_USER ? "user" :
                         ms[i].role == CHAT_SYSTEM ? "system" : "developer");
            prompt_view(p, view_trim(ms[i].content));
            close_turn(p);
            before = i;
        }
    }
    if (req->no_cue || turn_is_open(req)) return;
    open_turn(p, "model");
    if (!c->may_rest || thinks(c, req)) return;
    prompt_tag(p, CHANNEL);
    prompt_text(p, "thought\n");
    prompt_tag(p, CHANNEL_END);
}

/* ---- parsing of calls ---------------------------------------------------------------------- */

static void gemma_begin(chat_parser *p, const chat_request *req)
{
    p->tags.strip = req->n_message > 0 && p->c->may_rest && !thinks(p->c, req) &&
                    !turn_is_open(req);
}

/* Converts Gemma's notation to JSON. */
typedef struct reader {
    str_view s;
    size_t pos;
    textbuf *out;
} reader;

static bool is_at(reader *r, const char *expected)
{
    if (r->pos >= r->s.len || match_at(r->s, r->pos, expected) != MATCH_YES) return false;
    r->pos += strlen(expected);
    return true;
}

static void pass_space(reader *r) { r->pos = skip_space(r->s, r->pos); }

/* Reads text between two quotes. Returns false if the second is missing. */
static bool read_string(reader *r)
{
    const size_t end = view_find(r->s, r->pos, QUOTE);
    if (end == SIZE_MAX) return false;
    textbuf_json_string(r->out, (str_view){ r->s.ptr + r->pos, end - r->pos });
    r->pos = end + strlen(QUOTE);
    return true;
}

/* Returns the unquoted text up to one of the marks. */
static str_view read_bare(reader *r, const char *marks)
{
    const size_t from = r->pos;
    while (r->pos < r->s.len && !strchr(marks, r->s.ptr[r->pos])) r->pos++;
    return view_trim((str_view){ r->s.ptr + from, r->pos - from });
}

/* Reads unquoted text: a JSON number or literal, else a string. */
static bool read_word(reader *r)
{
    const size_t any = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY;
    const str_view word = read_bare(r, ",}]");
    json_t *v;
    if (!word.len) return false;
    if (str_is(word, "None") || str_is(word, "True") || str_is(word, "False")) {
        textbuf_str(r->out, word.ptr[0] == 'N' ? "null" : word.ptr[0] == 'T' ? "true" : "false");
        return true;
    }
    v = json_loadb(word.ptr, word.len, any, NULL);
    if (v) textbuf_put(r->out, word);
    else textbuf_json_string(r->out, word);
    json_decref(v);
    return true;
}

static bool read_value(reader *r, int depth);

static bool read_object(reader *r, int depth)
{
    textbuf_str(r->out, "{");
    pass_space(r);
    for (int n = 0; !is_at(r, "}"); n++) {
        if (n && !is_at(r, ",")) return false;
        if (n) textbuf_str(r->out, ", ");
        pass_space(r);
        if (is_at(r, QUOTE)) {
            const size_t from = r->pos;
            if (!read_string(r) || !is_json_key((str_view){ r->s.ptr + from, r->pos - from }))
                return false;
            pass_space(r);
        } else {
            const str_view key = read_bare(r, ":,{}[]");
            if (!key.len) return false;
            textbuf_json_string(r->out, key);
        }
        if (!is_at(r, ":")) return false;
        textbuf_str(r->out, ": ");
        if (!read_value(r, depth - 1)) return false;
    }
    textbuf_str(r->out, "}");
    return true;
}

static bool read_array(reader *r, int depth)
{
    textbuf_str(r->out, "[");
    pass_space(r);
    for (int n = 0; !is_at(r, "]"); n++) {
        if (n && !is_at(r, ",")) return false;
        if (n) textbuf_str(r->out, ", ");
        if (!read_value(r, depth - 1)) return false;
    }
    textbuf_str(r->out, "]");
    return true;
}

static bool read_value(reader *r, int depth)
{
    bool ok;
    pass_space(r);
    if (depth <= 0) return false;
    if (is_at(r, QUOTE)) ok = read_string(r);
    else if (is_at(r, "{")) ok = read_object(r, depth);
    else if (is_at(r, "[")) ok = read_array(r, depth);
    else ok = read_word(r);
    pass_space(r);
    return ok;
}

/* Reports the call whose balanced arguments object is held[pos, end). */
static int report(chat_parser *p, size_t pos, size_t end)
{
    const tags_state *m = &p->tags;
    reader r = { { p->held.ptr + pos, end - pos }, 1, &p->args };
    int rc;
    p->args.len = 0;
    if (!read_object(&r, DEPTH_MAX) || r.pos != r.s.len) return tags_give_up(p, end);
    if ((rc = textbuf_check(&p->args, p->err)) < 0) return rc;
    return tags_report(p, (str_view){ p->held.ptr + m->name_at, m->name_len },
                       textbuf_view(&p->args), end);
}

/* Reads "call:NAME{". */
static int read_name(chat_parser *p)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    const size_t word = skip_space(s, m->tag_at + strlen(CALL)), from = word + strlen(CALL_WORD);
    size_t pos = from;

    if (word == s.len) return word < NAME_MAX_BYTES ? MORE : tags_give_up(p, word);
    switch (match_at(s, word, CALL_WORD)) {
    case MATCH_MAYBE: return MORE;
    case MATCH_NO: return tags_give_up(p, word);
    case MATCH_YES: break;
    }
    while (pos < s.len && (unsigned char)s.ptr[pos] > ' ' && !strchr("{<>", s.ptr[pos])) pos++;
    if (pos == s.len && pos - from <= NAME_MAX_BYTES) return MORE;
    if (pos == s.len || s.ptr[pos] != '{' || pos == from) return tags_give_up(p, pos);
    m->name_at = from;
    m->name_len = pos - from;
    m->value_at = m->scan = pos;
    m->phase = PARAMS_VALUE;
    return AGAIN;
}

/* Scans to the brace that closes the arguments. Any text may appear between quotes. */
static int gemma_call(chat_parser *p)
{
    tags_state *m = &p->tags;
    if (m->phase == PARAMS_NAME) return read_name(p);
    for (; m->scan < p->held.len; m->scan++) {
        const str_view s = textbuf_view(&p->held);
        const char ch = s.ptr[m->scan];
        const match quote = ch == '<' ? match_at(s, m->scan, QUOTE) : MATCH_NO;
        if (quote == MATCH_MAYBE) return MORE;
        if (quote == MATCH_YES) {
            m->in_string = !m->in_string;
            m->scan += strlen(QUOTE) - 1;
        } else if (m->in_string) {
            continue;
        } else if (ch == '<') {
            return tags_give_up(p, m->scan);
        } else if (ch == '{' || ch == '[') {
            m->depth++;
        } else if ((ch == '}' || ch == ']') && --m->depth == 0) {
            return report(p, m->value_at, m->scan + 1);
        }
    }
    return MORE;
}

const chat_ops gemma_ops = {
    .format = CHAT_GEMMA, .name = "gemma", .tools = true, .setup = gemma_setup,
    .render = gemma_render, .begin = gemma_begin, .push = tags_push, .end = tags_end,
    .call = gemma_call,
};
