/* chat_chatml_parse.c - ChatML as the Qwen family writes it: the model's stream back to events.
 *
 * Works on text, not on tokens, so a tag counts however it was cut into tokens. Invariant: what
 * may still turn out to be a tag, or white space that belongs to one, waits in held; it comes out
 * as text if it was none. Nothing the model says is lost: a call that cannot be understood (broken
 * JSON, XML that ends early) becomes answer text, tags included. Calls are checked before they are
 * reported, so a call's arguments come in one event, as the model wrote them (JSON) or as one JSON
 * object made from the parameters (XML).
 *
 * Structure that is dropped: newlines around reasoning, white space between text and calls. Tags
 * are only looked for if the request offered tools, and never inside reasoning. */
#include "engine/text/chat_internal.h"

#include <string.h>

#define THINK CHATML_THINK
#define THINK_END CHATML_THINK_END
#define CALL TAG_CALL
#define CALL_END TAG_CALL_END
#define FUNCTION TAG_FUNCTION
#define FUNCTION_END TAG_FUNCTION_END
#define PARAM TAG_PARAM
#define PARAM_END TAG_PARAM_END

/* A name in a tag, white space that waits for a tag: not longer. Bounds the rescanning. */
#define NAME_MAX_BYTES 256
#define SPACE_MAX_BYTES 64

enum { MORE = 0, AGAIN = 1 };            /* steps return: wait for text, go on, or < 0 */

/* ---- looking at held text ------------------------------------------------------------------ */

typedef enum match { MATCH_NO, MATCH_MAYBE, MATCH_YES } match;

/* Does tag stand at `at`? MAYBE: the text ends within it. */
static match match_at(str_view s, size_t at, const char *tag)
{
    const size_t n = strlen(tag), left = s.len - at;
    if (memcmp(s.ptr + at, tag, n < left ? n : left) != 0) return MATCH_NO;
    return left < n ? MATCH_MAYBE : MATCH_YES;
}

static bool is_space(char c)
{
    return c && strchr(VIEW_SPACE, c) != NULL;
}

static size_t skip_space(str_view s, size_t at)
{
    while (at < s.len && is_space(s.ptr[at])) at++;
    return at;
}

/* Length of the longest end of s that begins tag without completing it. */
static size_t partial_tag(str_view s, const char *tag)
{
    size_t n = strlen(tag) - 1;
    if (n > s.len) n = s.len;
    while (n && memcmp(s.ptr + s.len - n, tag, n) != 0) n--;
    return n;
}

/* s less the white space (any, or newlines only) at its end that may belong to a coming tag. */
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
    if (n) p->chatml.started = true, p->chatml.after_call = false;
    textbuf_drop(&p->held, drop);
    return rc;
}

/* ---- reasoning ----------------------------------------------------------------------------- */

static int step_reasoning(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    size_t end;
    int rc;

    if (!m->started) {
        /* The cue wrote <think>, and some models write it again. */
        while (p->held.len && p->held.ptr[0] == '\n') textbuf_drop(&p->held, 1);
        if (p->held.len == 0) return MORE;
        switch (match_at(textbuf_view(&p->held), 0, THINK)) {
        case MATCH_MAYBE: return MORE;
        case MATCH_YES: textbuf_drop(&p->held, strlen(THINK)); return AGAIN;
        case MATCH_NO: break;
        }
    }
    const str_view s = textbuf_view(&p->held);
    end = view_find(s, 0, THINK_END);
    if (end != SIZE_MAX) {
        size_t text = end;
        while (text && s.ptr[text - 1] == '\n') text--;
        if ((rc = say(p, CHAT_REASONING, text, end + strlen(THINK_END))) < 0) return rc;
        m->where = CHATML_ANSWER;
        m->started = false;
        m->strip = true;
        return AGAIN;
    }
    end = before_space(s, s.len - partial_tag(s, THINK_END), true);
    rc = say(p, CHAT_REASONING, end, end);
    return rc < 0 ? rc : MORE;
}

/* ---- answer -------------------------------------------------------------------------------- */

/* Is the text at `at` (after FUNCTION) the name of an offered tool and '>'? */
static match known_tool(const chat_parser *p, size_t at)
{
    const str_view s = textbuf_view(&p->held);
    match best = MATCH_NO;
    size_t i;
    json_t *tool;

    json_array_foreach(p->tools, i, tool) {
        const char *name = json_text(tool_function(tool), "name");
        const size_t n = strlen(name);
        match m = match_at(s, at, name);
        if (m == MATCH_YES && at + n == s.len) m = MATCH_MAYBE;
        else if (m == MATCH_YES && s.ptr[at + n] != '>') m = MATCH_NO;
        if (m > best) best = m;
    }
    return best;
}

/* Where the next call begins or may begin; len if nowhere. *sure: it is there in full. */
static size_t find_call(const chat_parser *p, bool *sure)
{
    const str_view s = textbuf_view(&p->held);
    size_t at = view_find(s, 0, CALL), partial;

    *sure = at != SIZE_MAX;
    if (*sure) {
        partial = 0;
    } else {
        partial = partial_tag(s, CALL);
        at = s.len - partial;
    }
    if (!p->c->xml_calls || !p->tools) return at;
    /* The coder models sometimes leave out <tool_call>. */
    for (size_t f = 0; (f = view_find(s, f, FUNCTION)) != SIZE_MAX && f < at; f++) {
        const match m = known_tool(p, f + strlen(FUNCTION));
        if (m == MATCH_NO) continue;
        *sure = m == MATCH_YES;
        return f;
    }
    partial = partial_tag(s, FUNCTION);
    if (!*sure && s.len - partial < at) at = s.len - partial;
    return at;
}

static int step_answer(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    size_t at;
    bool sure = false;
    int rc;

    if (!m->started && m->strip)
        while (p->held.len && p->held.ptr[0] == '\n') textbuf_drop(&p->held, 1);
    if (!m->started && !m->strip && p->c->knows_reasoning) {
        /* Models that may think or not say so themselves. */
        at = skip_space(textbuf_view(&p->held), 0);
        if (at == p->held.len) return MORE;
        switch (match_at(textbuf_view(&p->held), at, THINK)) {
        case MATCH_MAYBE: return MORE;
        case MATCH_YES:
            textbuf_drop(&p->held, at + strlen(THINK));
            m->where = CHATML_REASONING;
            return AGAIN;
        case MATCH_NO: break;
        }
    }
    if (!p->calls) {
        rc = say(p, CHAT_ANSWER, p->held.len, p->held.len);
        return rc < 0 ? rc : MORE;
    }
    at = find_call(p, &sure);
    const size_t text = before_space(textbuf_view(&p->held), at, false);
    if ((rc = say(p, CHAT_ANSWER, text, text)) < 0) return rc;
    if (!sure) return MORE;
    m->tag_at = m->scan = at - text;     /* the white space is still needed if this is no call */
    m->where = p->held.ptr[m->tag_at + 1] == CALL[1] ? CHATML_CALL : CHATML_XML;
    m->phase = XML_NAME;
    m->n_param = 0;
    return AGAIN;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* What looked like a call is none: the first n bytes are answer text. */
static int give_up(chat_parser *p, size_t n)
{
    const int rc = say(p, CHAT_ANSWER, n, n);
    p->chatml.where = CHATML_ANSWER;
    return rc < 0 ? rc : AGAIN;
}

static int report(chat_parser *p, str_view name, str_view args, size_t call_bytes)
{
    int rc = parser_call(p, name);
    if (rc == 0) rc = parser_emit(p, CHAT_CALL_ARGS, args);
    if (rc == 0) rc = parser_emit(p, CHAT_CALL_END, (str_view){ NULL, 0 });
    textbuf_drop(&p->held, call_bytes);
    p->chatml.where = CHATML_AFTER;
    p->chatml.started = true;
    return rc < 0 ? rc : AGAIN;
}

static int step_call(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    const str_view s = textbuf_view(&p->held);
    const size_t tag_end = m->tag_at + strlen(CALL), at = skip_space(s, tag_end);

    if (at == s.len) return at < NAME_MAX_BYTES ? MORE : give_up(p, at);
    m->scan = at;
    m->depth = 0;
    m->in_string = m->escaped = false;
    if (s.ptr[at] == '{') {
        m->where = CHATML_JSON;
        return AGAIN;
    }
    switch (match_at(s, at, FUNCTION)) {
    case MATCH_MAYBE: return MORE;
    case MATCH_YES: m->where = CHATML_XML; return AGAIN;
    case MATCH_NO: break;
    }
    return give_up(p, tag_end);
}

static int step_after(chat_parser *p)
{
    const str_view s = textbuf_view(&p->held);
    const size_t at = skip_space(s, 0);
    const match m = at == s.len ? MATCH_MAYBE : match_at(s, at, CALL_END);

    if (m == MATCH_MAYBE && at < NAME_MAX_BYTES) return MORE;
    if (m == MATCH_YES) textbuf_drop(&p->held, at + strlen(CALL_END));
    p->chatml.where = CHATML_ANSWER;
    p->chatml.after_call = true;
    return AGAIN;
}

/* ---- a call in JSON ------------------------------------------------------------------------ */

/* Returns the place after the JSON string that begins at `at`; the text is known to be valid
 * JSON. */
static size_t after_string(str_view s, size_t at)
{
    for (at++; s.ptr[at] != '"'; at++)
        if (s.ptr[at] == '\\') at++;
    return at + 1;
}

/* The text of a member of the object in s, exactly as it stands there; the last one of that name,
 * as in the parsed form. s is known to be a valid JSON object. Empty if it is not there. */
static str_view member_text(str_view s, const char *key)
{
    str_view found = { NULL, 0 };
    size_t at = skip_space(s, 1);
    while (s.ptr[at] != '}') {
        const size_t name_at = at + 1, name_end = after_string(s, at) - 1;
        size_t end;
        int depth = 0;
        at = skip_space(s, skip_space(s, name_end + 1) + 1);
        for (end = at; depth || !strchr(",}", s.ptr[end]); ) {
            if (s.ptr[end] == '"') {
                end = after_string(s, end);
                continue;
            }
            if (s.ptr[end] == '{' || s.ptr[end] == '[') depth++;
            if (s.ptr[end] == '}' || s.ptr[end] == ']') depth--;
            end++;
        }
        if (str_is((str_view){ s.ptr + name_at, name_end - name_at }, key))
            found = view_strip((str_view){ s.ptr + at, end - at }, VIEW_SPACE, false, true);
        at = s.ptr[end] == ',' ? skip_space(s, end + 1) : end;
    }
    return found;
}

static json_t *load(str_view s)
{
    /* Integers as reals: only validity matters here, and they may exceed 64 bits. */
    return json_loadb(s.ptr, s.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
}

/* held[at..end) is a balanced object: a call if it has a name and an object of arguments. */
static int json_call(chat_parser *p, size_t at, size_t end)
{
    const str_view text = { p->held.ptr + at, end - at };
    json_t *call = load(text), *args = json_object_get(call, "arguments"), *inner = NULL;
    const char *name = json_text(call, "name");
    str_view args_text = { NULL, 0 };
    int rc;

    if (json_is_object(args)) {
        args_text = member_text(text, "arguments");
    } else if (json_is_string(args)) {
        /* Some write the object once more as a string. */
        args_text = (str_view){ json_string_value(args), json_string_length(args) };
        inner = load(args_text);
        if (!json_is_object(inner)) args_text.len = 0;
    } else if (!args || json_is_null(args)) {
        args_text = str_from("{}");
    }
    if (name && *name && args_text.len) rc = report(p, str_from(name), args_text, end);
    else rc = give_up(p, end);
    json_decref(inner);
    json_decref(call);
    return rc;
}

/* Walks to the brace that closes the object. A control character inside a string or a tag outside
 * of one cannot be JSON: better to notice there than to wait for the end of the answer. */
static int step_json(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    for (; m->scan < p->held.len; m->scan++) {
        const char ch = p->held.ptr[m->scan];
        if (m->in_string) {
            if ((unsigned char)ch < 0x20) return give_up(p, m->scan);
            if (m->escaped) m->escaped = false;
            else if (ch == '\\') m->escaped = true;
            else if (ch == '"') m->in_string = false;
        } else if (ch == '"') {
            m->in_string = true;
        } else if (ch == '<') {
            return give_up(p, m->scan);
        } else if (ch == '{' || ch == '[') {
            m->depth++;
        } else if ((ch == '}' || ch == ']') && --m->depth == 0) {
            return json_call(p, skip_space(textbuf_view(&p->held), m->tag_at + strlen(CALL)),
                             m->scan + 1);
        }
    }
    return MORE;
}

/* ---- a call in XML ------------------------------------------------------------------------- */

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

/* Text stays text where the schema allows it; otherwise it is JSON, or Python's True, False and
 * None, which history shows to the model. What is neither is text after all. */
static void put_typed(textbuf *b, str_view value, int types)
{
    static const struct { const char *python, *json; } words[] = {
        { "True", "true" }, { "False", "false" }, { "None", "null" },
    };
    const size_t any = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL | JSON_DECODE_ANY;
    const str_view bare = view_strip(value, VIEW_SPACE, true, true);
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

static int xml_call(chat_parser *p, size_t end)
{
    chatml_state *m = &p->chatml;
    const char *base = p->held.ptr;
    const str_view name = { base + m->name_at, m->name_len };
    int n_put = 0, rc;

    p->args.len = 0;
    textbuf_str(&p->args, "{");
    for (size_t i = 0; i < m->n_param; i++) {
        const struct xml_param *x = &m->params[i];
        const str_view key = { base + x->key_at, x->key_len };
        str_view value = { base + x->value_at, x->value_len };
        bool again = false;
        for (size_t j = i + 1; j < m->n_param && !again; j++)
            again = str_eq(key, (str_view){ base + m->params[j].key_at, m->params[j].key_len });
        if (again) continue;             /* said twice: the last one counts */
        if (value.len && value.ptr[0] == '\n') value.ptr++, value.len--;
        if (value.len && value.ptr[value.len - 1] == '\n') value.len--;
        if (n_put++) textbuf_str(&p->args, ", ");
        textbuf_json_string(&p->args, key);
        textbuf_str(&p->args, ": ");
        put_typed(&p->args, value, param_types(p, name, key));
    }
    textbuf_str(&p->args, "}");
    if ((rc = textbuf_check(&p->args, p->err)) < 0) return rc;
    return report(p, name, textbuf_view(&p->args), end);
}

static int add_param(chat_parser *p, size_t key_at, size_t key_len)
{
    chatml_state *m = &p->chatml;
    if (m->n_param == m->cap_param) {
        const size_t cap = m->cap_param ? 2 * m->cap_param : 8;
        void *q = mem_resize(m->params, cap, sizeof *m->params);
        if (!q) return err_set(p->err, ERR_NOMEM, "chat: %zu parameters of a call", cap);
        m->params = q;
        m->cap_param = cap;
    }
    m->params[m->n_param] = (struct xml_param){ .key_at = key_at, .key_len = key_len };
    return 0;
}

/* "<tag=NAME>" at `at`: AGAIN with the name's place, MORE, or -1 for text that is none. */
static int tag_name(str_view s, size_t at, const char *tag, size_t *name_at, size_t *name_len)
{
    const size_t from = at + strlen(tag);
    for (size_t i = from; i < s.len; i++) {
        if (s.ptr[i] == '\n' || i - from > NAME_MAX_BYTES) return -1;
        if (s.ptr[i] != '>') continue;
        *name_at = from;
        *name_len = i - from;
        return i > from ? AGAIN : -1;
    }
    return MORE;
}

/* What may follow a parameter's end. A </parameter> with anything else after it is part of the
 * value: the coder models write about XML, too. */
static match after_param(str_view s, size_t at)
{
    static const char *const next[] = { PARAM, FUNCTION_END, CALL_END };
    match best = MATCH_NO;
    if (at == s.len) return MATCH_MAYBE;
    for (size_t i = 0; i < ARRAY_LEN(next); i++) {
        const match m = match_at(s, at, next[i]);
        if (m > best) best = m;
    }
    return best;
}

static int xml_between(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    const str_view s = textbuf_view(&p->held);
    const size_t at = skip_space(s, m->scan);
    size_t key_at, key_len;
    int rc;

    switch (after_param(s, at)) {
    case MATCH_MAYBE: return MORE;
    case MATCH_NO: return give_up(p, at);
    case MATCH_YES: break;
    }
    if (match_at(s, at, FUNCTION_END) == MATCH_YES) return xml_call(p, at + strlen(FUNCTION_END));
    if (match_at(s, at, CALL_END) == MATCH_YES) return xml_call(p, at);
    rc = tag_name(s, at, PARAM, &key_at, &key_len);
    if (rc == MORE) return MORE;
    if (rc < 0) return give_up(p, at + 1);
    if ((rc = add_param(p, key_at, key_len)) < 0) return rc;
    m->phase = XML_VALUE;
    m->value_at = m->scan = key_at + key_len + 1;
    return AGAIN;
}

static int xml_value(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    const str_view s = textbuf_view(&p->held);
    size_t at;

    while ((at = view_find(s, m->scan, PARAM_END)) != SIZE_MAX) {
        const size_t behind = at + strlen(PARAM_END);
        const match what = after_param(s, skip_space(s, behind));
        m->scan = at;
        if (what == MATCH_MAYBE) return MORE;
        if (what == MATCH_YES) {
            m->params[m->n_param].value_at = m->value_at;
            m->params[m->n_param++].value_len = at - m->value_at;
            m->phase = XML_BETWEEN;
            m->scan = behind;
            return AGAIN;
        }
        m->scan = at + 1;
    }
    at = s.len - partial_tag(s, PARAM_END);
    if (at > m->scan) m->scan = at;
    return MORE;
}

static int step_xml(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    int rc;

    if (m->phase == XML_BETWEEN) return xml_between(p);
    if (m->phase == XML_VALUE) return xml_value(p);
    rc = tag_name(textbuf_view(&p->held), m->scan, FUNCTION, &m->name_at, &m->name_len);
    if (rc == MORE) return MORE;
    if (rc < 0) return give_up(p, m->scan + strlen(FUNCTION));
    m->phase = XML_BETWEEN;
    m->scan = m->name_at + m->name_len + 1;
    return AGAIN;
}

/* ---- stream -------------------------------------------------------------------------------- */

static int run(chat_parser *p)
{
    int rc = AGAIN;
    while (rc == AGAIN && p->held.len) {
        switch (p->chatml.where) {
        case CHATML_REASONING: rc = step_reasoning(p); break;
        case CHATML_ANSWER: rc = step_answer(p); break;
        case CHATML_CALL: rc = step_call(p); break;
        case CHATML_JSON: rc = step_json(p); break;
        case CHATML_XML: rc = step_xml(p); break;
        case CHATML_AFTER: rc = step_after(p); break;
        }
    }
    return rc < 0 ? rc : 0;
}

int chatml_push(chat_parser *p, int id)
{
    const int rc = parser_decode(p, &p->held, tokenizer_bytes(p->c->t, id, false));
    return rc < 0 ? rc : run(p);
}

int chatml_end(chat_parser *p)
{
    chatml_state *m = &p->chatml;
    int rc = parser_decode_end(p, &p->held);

    if (rc == 0) rc = run(p);
    if (rc < 0) return rc;
    if (m->where == CHATML_REASONING) return say(p, CHAT_REASONING, p->held.len, p->held.len);
    if (m->after_call || m->where == CHATML_AFTER) {
        const str_view s = textbuf_view(&p->held);
        const size_t at = skip_space(s, 0);
        /* White space, or a closing tag that the limit of the answer cut: neither is text. */
        if (at == s.len || (m->where == CHATML_AFTER && match_at(s, at, CALL_END) == MATCH_MAYBE))
            p->held.len = 0;
    }
    return say(p, CHAT_ANSWER, p->held.len, p->held.len);
}
