/* tagged_tool_calls.c - output to events for formats with tags: ChatML, GLM, Gemma.
 *
 * Works on text, so the division of a tag into tokens does not matter. Invariant: held has the
 * bytes that may still become a tag, and white space that may belong to one; they are emitted as
 * text if no tag follows. No output is lost: an invalid call becomes answer text, tags included.
 * Calls are checked before they are reported, so the arguments of a call come in one event. The
 * format's file parses the text between a call's tags.
 *
 * Dropped as structure: newlines around reasoning, white space between text and calls. Calls are
 * parsed only if the request has tools, and never inside reasoning. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

const chat_tags think_tags = { "<think>", "</think>", NULL, TAG_CALL, TAG_CALL_END };

/* ---- matching ------------------------------------------------------------------------------ */

match match_at(str_view s, size_t pos, const char *tag)
{
    const size_t n = strlen(tag), left = s.len - pos;
    if (memcmp(s.ptr + pos, tag, n < left ? n : left) != 0) return MATCH_NO;
    return left < n ? MATCH_MAYBE : MATCH_YES;
}

match match_any(str_view s, size_t pos, const char *const *tags, size_t n)
{
    match best = MATCH_NO;
    pos = skip_space(s, pos);
    if (pos == s.len) return MATCH_MAYBE;
    for (size_t i = 0; i < n; i++) {
        const match m = match_at(s, pos, tags[i]);
        if (m > best) best = m;
    }
    return best;
}

static bool is_space(char c) { return c && strchr(VIEW_SPACE, c) != NULL; }

size_t skip_space(str_view s, size_t pos)
{
    while (pos < s.len && is_space(s.ptr[pos])) pos++;
    return pos;
}

size_t partial_tag(str_view s, const char *tag)
{
    size_t n = strlen(tag) - 1;
    if (n > s.len) n = s.len;
    while (n && memcmp(s.ptr + s.len - n, tag, n) != 0) n--;
    return n;
}

/* Returns len without the white space (or newlines only) at its end that may belong to a tag. */
static size_t before_space(str_view s, size_t len, bool newlines_only)
{
    size_t n = len;
    while (n && len - n < SPACE_MAX_BYTES &&
           (s.ptr[n - 1] == '\n' || (!newlines_only && is_space(s.ptr[n - 1])))) n--;
    return n;
}

/* Emits the first n bytes of held and drops the first `drop` >= n. */
static int say(chat_parser *p, chat_event_kind kind, size_t n, size_t drop)
{
    const int rc = parser_emit(p, kind, (str_view){ p->held.ptr, n });
    if (n) p->tags.started = true, p->tags.after_call = false;
    textbuf_drop(&p->held, drop);
    return rc;
}

/* ---- reasoning ----------------------------------------------------------------------------- */

/* Removes tag from the start of held if it is there. */
static match take_off(chat_parser *p, const char *tag)
{
    const match m = tag ? match_at(textbuf_view(&p->held), 0, tag) : MATCH_NO;
    if (m == MATCH_YES) textbuf_drop(&p->held, strlen(tag));
    return m;
}

static int step_reasoning(chat_parser *p)
{
    const chat_tags *tags = p->c->tags;
    tags_state *m = &p->tags;
    size_t end;
    int rc;

    if (!m->started) {
        /* The cue has <think>, but some models repeat it. */
        while (p->held.len && p->held.ptr[0] == '\n') textbuf_drop(&p->held, 1);
        if (p->held.len == 0) return MORE;
        const match again = take_off(p, tags->think);
        const match name = again == MATCH_NO ? take_off(p, tags->think_name) : MATCH_NO;
        if (again == MATCH_MAYBE || name == MATCH_MAYBE) return MORE;
        if (again == MATCH_YES || name == MATCH_YES) return AGAIN;
    }
    const str_view s = textbuf_view(&p->held);
    end = view_find(s, 0, tags->think_end);
    if (end != SIZE_MAX) {
        size_t text = end;
        while (text && s.ptr[text - 1] == '\n') text--;
        if ((rc = say(p, CHAT_REASONING, text, end + strlen(tags->think_end))) < 0) return rc;
        m->where = TAGS_ANSWER;
        m->started = false;
        m->strip = true;
        return AGAIN;
    }
    end = before_space(s, s.len - partial_tag(s, tags->think_end), true);
    rc = say(p, CHAT_REASONING, end, end);
    return rc < 0 ? rc : MORE;
}

/* ---- answer -------------------------------------------------------------------------------- */

/* Returns the position in held at which the next call begins or may begin, or its length. *sure:
 * the opening tag is complete. */
static size_t find_call(const chat_parser *p, bool *sure)
{
    const str_view s = textbuf_view(&p->held);
    size_t pos = view_find(s, 0, p->c->tags->call);

    *sure = pos != SIZE_MAX;
    if (!*sure) pos = s.len - partial_tag(s, p->c->tags->call);
    return p->c->xml_calls && p->tools ? chatml_bare_call(p, pos, sure) : pos;
}

static int step_answer(chat_parser *p)
{
    const chat_tags *tags = p->c->tags;
    tags_state *m = &p->tags;
    size_t pos;
    bool sure = false;
    int rc;

    if (!m->started && m->strip)
        while (p->held.len && p->held.ptr[0] == '\n') textbuf_drop(&p->held, 1);
    if (!m->started && !m->strip && p->c->knows_reasoning) {
        /* The model itself decides whether to reason. */
        pos = skip_space(textbuf_view(&p->held), 0);
        if (pos == p->held.len) return MORE;
        switch (match_at(textbuf_view(&p->held), pos, tags->think)) {
        case MATCH_MAYBE: return MORE;
        case MATCH_YES:
            textbuf_drop(&p->held, pos + strlen(tags->think));
            m->where = TAGS_REASONING;
            return AGAIN;
        case MATCH_NO: break;
        }
        if (p->c->cue_open) {
            m->strip = true;
            return AGAIN;
        }
    }
    if (!p->calls) {
        rc = say(p, CHAT_ANSWER, p->held.len, p->held.len);
        return rc < 0 ? rc : MORE;
    }
    pos = find_call(p, &sure);
    const size_t text = before_space(textbuf_view(&p->held), pos, false);
    if ((rc = say(p, CHAT_ANSWER, text, text)) < 0) return rc;
    if (!sure) return MORE;
    m->tag_at = m->scan = pos - text;    /* the white space stays in held in case this is no call */
    m->where = TAGS_CALL;
    m->body = match_at(textbuf_view(&p->held), m->tag_at, tags->call) == MATCH_YES ? BODY_OPEN
                                                                                   : BODY_XML;
    m->phase = PARAMS_NAME;
    m->n_param = 0;
    m->depth = 0;
    m->in_string = m->escaped = false;
    return AGAIN;
}

/* ---- calls --------------------------------------------------------------------------------- */

int tags_give_up(chat_parser *p, size_t n)
{
    const int rc = say(p, CHAT_ANSWER, n, n);
    p->tags.where = TAGS_ANSWER;
    return rc < 0 ? rc : AGAIN;
}

int tags_report(chat_parser *p, str_view name, str_view args, size_t call_bytes)
{
    int rc = parser_call(p, name);
    if (rc == 0) rc = parser_emit(p, CHAT_CALL_ARGS, args);
    if (rc == 0) rc = parser_emit(p, CHAT_CALL_END, (str_view){ NULL, 0 });
    textbuf_drop(&p->held, call_bytes);
    p->tags.where = TAGS_AFTER;
    p->tags.started = true;
    return rc < 0 ? rc : AGAIN;
}

static int step_after(chat_parser *p)
{
    const str_view s = textbuf_view(&p->held);
    const size_t pos = skip_space(s, 0);
    const match m = pos == s.len ? MATCH_MAYBE : match_at(s, pos, p->c->tags->call_end);

    if (m == MATCH_MAYBE && pos < NAME_MAX_BYTES) return MORE;
    if (m == MATCH_YES) textbuf_drop(&p->held, pos + strlen(p->c->tags->call_end));
    p->tags.where = TAGS_ANSWER;
    p->tags.after_call = true;
    return AGAIN;
}

/* ---- parameters between tags ----------------------------------------------------------------- */

static int type_bit(const json_t *name)
{
    const char *s = json_is_string(name) ? json_string_value(name) : "";
    return strcmp(s, "string") == 0 ? TYPE_STRING : strcmp(s, "null") == 0 ? TYPE_NULL : TYPE_OTHER;
}

int schema_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *list;
    static const char *const unions[] = { "anyOf", "oneOf" };
    int mask = 0;
    size_t i;
    json_t *v;

    if (json_is_string(type)) return type_bit(type);
    json_array_foreach(type, i, v) mask |= type_bit(v);
    for (size_t u = 0; u < ARRAY_LEN(unions); u++) {
        list = json_object_get(schema, unions[u]);
        json_array_foreach(list, i, v) mask |= schema_types(v);
    }
    list = json_object_get(schema, "enum");
    if (!mask) {
        json_array_foreach(list, i, v)
            mask |= json_is_string(v) ? TYPE_STRING : json_is_null(v) ? TYPE_NULL : TYPE_OTHER;
    }
    return mask;
}

static int param_types(const chat_parser *p, str_view function, str_view key)
{
    size_t i;
    json_t *tool, *schema;
    const char *name;

    json_array_foreach(p->tools, i, tool) {
        const json_t *f = tool_function(tool), *params = json_object_get(f, "parameters");
        if (!str_is(function, json_text(f, "name"))) continue;
        json_object_foreach(json_object_get(params, "properties"), name, schema)
            if (str_is(key, name)) return schema_types(schema);
    }
    return 0;
}

/* Writes value as a string if the schema allows one; else as JSON if it is valid JSON or Python's
 * True, False or None, which history shows to the model; else as a string. */
static void put_typed(textbuf *b, str_view value, int types)
{
    static const struct { const char *python, *json; } words[] = {
        { "True", "true" }, { "False", "false" }, { "None", "null" },
    };
    const size_t any = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY;
    const str_view bare = view_trim(value);
    json_t *v;

    if (types & TYPE_STRING) {
        const bool null = (types & TYPE_NULL) && (str_is(bare, "null") || str_is(bare, "None"));
        if (null) textbuf_str(b, "null");
        else textbuf_json_string(b, value);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (!str_is(bare, words[i].python) || (types == 0 && i == 2)) continue;
        textbuf_str(b, words[i].json);
        return;
    }
    v = bare.len ? json_loadb(bare.ptr, bare.len, any, NULL) : NULL;
    if (v) textbuf_put(b, bare);
    else textbuf_json_string(b, value);
    json_decref(v);
}

int params_add(chat_parser *p, size_t key_at, size_t key_len)
{
    tags_state *m = &p->tags;
    void *params = mem_grow(m->params, m->n_param, &m->cap_param, sizeof *m->params);
    if (!params) return err_set(p->err, ERR_NOMEM, "chat: %d parameters of a call", m->n_param + 1);
    m->params = params;
    m->params[m->n_param] = (struct call_param){ .key_at = key_at, .key_len = key_len };
    return 0;
}

/* A closing tag that none of next follows is part of the value, which may contain XML. */
int params_value(chat_parser *p, const char *close, const char *const *next, size_t n_next)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    size_t pos;

    while ((pos = view_find(s, m->scan, close)) != SIZE_MAX) {
        const size_t after = pos + strlen(close);
        const match found = match_any(s, after, next, n_next);
        m->scan = pos;
        if (found == MATCH_MAYBE) return MORE;
        if (found == MATCH_YES) {
            m->params[m->n_param].value_at = m->value_at;
            m->params[m->n_param++].value_len = pos - m->value_at;
            m->phase = PARAMS_BETWEEN;
            m->scan = after;
            return AGAIN;
        }
        m->scan = pos + 1;
    }
    pos = s.len - partial_tag(s, close);
    if (pos > m->scan) m->scan = pos;
    return MORE;
}

bool is_json_key(str_view s)
{
    return s.len == 0 || !memchr(s.ptr, '\0', s.len);
}

int params_report(chat_parser *p, bool lines, size_t call_bytes)
{
    tags_state *m = &p->tags;
    const char *base = p->held.ptr;
    const str_view name = { base + m->name_at, m->name_len };
    int n_put = 0, rc;

    p->args.len = 0;
    textbuf_str(&p->args, "{");
    for (int i = 0; i < m->n_param; i++) {
        const struct call_param *x = &m->params[i];
        const str_view key = { base + x->key_at, x->key_len };
        str_view value = { base + x->value_at, x->value_len };
        bool again = false;
        if (!is_json_key(key)) return tags_give_up(p, call_bytes);
        for (int j = i + 1; j < m->n_param && !again; j++)
            again = str_eq(key, (str_view){ base + m->params[j].key_at, m->params[j].key_len });
        if (again) continue;             /* of duplicate keys the last counts */
        if (lines && value.len && value.ptr[0] == '\n') value.ptr++, value.len--;
        if (lines && value.len && value.ptr[value.len - 1] == '\n') value.len--;
        if (n_put++) textbuf_str(&p->args, ", ");
        textbuf_json_string(&p->args, key);
        textbuf_str(&p->args, ": ");
        put_typed(&p->args, value, param_types(p, name, key));
    }
    textbuf_str(&p->args, "}");
    if ((rc = textbuf_check(&p->args, p->err)) < 0) return rc;
    return tags_report(p, name, textbuf_view(&p->args), call_bytes);
}

/* ---- stream -------------------------------------------------------------------------------- */

static int run(chat_parser *p)
{
    int rc = AGAIN;
    while (rc == AGAIN && p->held.len) {
        switch (p->tags.where) {
        case TAGS_REASONING: rc = step_reasoning(p); break;
        case TAGS_ANSWER: rc = step_answer(p); break;
        case TAGS_CALL: rc = p->c->ops->call(p); break;
        case TAGS_AFTER: rc = step_after(p); break;
        }
    }
    return rc < 0 ? rc : 0;
}

str_view tags_bytes(const chat *c, int id)
{
    for (int i = 0; i < c->n_shown; i++)
        if (c->shown[i] == id) return tokenizer_bytes(c->t, id, true);
    return tokenizer_bytes(c->t, id, false);
}

int tags_push(chat_parser *p, int id)
{
    const int rc = parser_decode(p, &p->held, tags_bytes(p->c, id));
    return rc < 0 ? rc : run(p);
}

int tags_end(chat_parser *p)
{
    tags_state *m = &p->tags;
    int rc = parser_decode_end(p, &p->held);

    if (rc == 0) rc = run(p);
    if (rc < 0) return rc;
    if (m->where == TAGS_REASONING) return say(p, CHAT_REASONING, p->held.len, p->held.len);
    if (m->after_call || m->where == TAGS_AFTER) {
        const str_view s = textbuf_view(&p->held);
        const size_t pos = skip_space(s, 0);
        /* White space, or a closing tag cut off by the token limit, is not text. */
        if (pos == s.len ||
            (m->where == TAGS_AFTER && match_at(s, pos, p->c->tags->call_end) == MATCH_MAYBE))
            p->held.len = 0;
    }
    return say(p, CHAT_ANSWER, p->held.len, p->held.len);
}
