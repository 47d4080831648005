/* chat_chatml_parse.c - parses calls of the Qwen family in the model's output.
 *
 * A call is a JSON object between the tags, whose arguments are reported verbatim, or the coder
 * models' XML, whose parameters become one JSON object. Invalid JSON and incomplete XML become
 * answer text. tagged_tool_calls.c parses the rest of the output. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

#define CALL TAG_CALL
#define CALL_END TAG_CALL_END
#define FUNCTION TAG_FUNCTION
#define FUNCTION_END TAG_FUNCTION_END
#define PARAM TAG_PARAM
#define PARAM_END TAG_PARAM_END

/* Matches the text at pos (after FUNCTION) with the name of an offered tool and '>'. */
static match known_tool(const chat_parser *p, size_t pos)
{
    const str_view s = textbuf_view(&p->held);
    match best = MATCH_NO;
    size_t i;
    json_t *tool;

    json_array_foreach(p->tools, i, tool) {
        const char *name = json_text(tool_function(tool), "name");
        const size_t n = strlen(name);
        match m = match_at(s, pos, name);
        if (m == MATCH_YES && pos + n == s.len) m = MATCH_MAYBE;
        else if (m == MATCH_YES && s.ptr[pos + n] != '>') m = MATCH_NO;
        if (m > best) best = m;
    }
    return best;
}

/* The coder models sometimes omit <tool_call>. */
size_t chatml_bare_call(const chat_parser *p, size_t pos, bool *sure)
{
    const str_view s = textbuf_view(&p->held);
    for (size_t f = 0; (f = view_find(s, f, FUNCTION)) != SIZE_MAX && f < pos; f++) {
        const match m = known_tool(p, f + strlen(FUNCTION));
        if (m == MATCH_NO) continue;
        *sure = m == MATCH_YES;
        return f;
    }
    const size_t partial = partial_tag(s, FUNCTION);
    return !*sure && s.len - partial < pos ? s.len - partial : pos;
}

/* ---- which kind of call -------------------------------------------------------------------- */

static int step_open(chat_parser *p)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    const size_t tag_end = m->tag_at + strlen(CALL), pos = skip_space(s, tag_end);

    if (pos == s.len) return pos < NAME_MAX_BYTES ? MORE : tags_give_up(p, pos);
    m->scan = pos;
    if (s.ptr[pos] == '{') {
        m->body = BODY_JSON;
        return AGAIN;
    }
    switch (match_at(s, pos, FUNCTION)) {
    case MATCH_MAYBE: return MORE;
    case MATCH_YES: m->body = BODY_XML; return AGAIN;
    case MATCH_NO: break;
    }
    return tags_give_up(p, tag_end);
}

/* ---- a call in JSON ------------------------------------------------------------------------ */

/* Returns the position after the JSON string at pos; s must be valid JSON. */
static size_t after_string(str_view s, size_t pos)
{
    for (pos++; s.ptr[pos] != '"'; pos++)
        if (s.ptr[pos] == '\\') pos++;
    return pos + 1;
}

/* Returns the verbatim text of a member of the object in s, or an empty view. Of duplicate keys the
 * last counts, as in a parsed object. s must be a valid JSON object. */
static str_view member_text(str_view s, const char *key)
{
    str_view found = { NULL, 0 };
    size_t pos = skip_space(s, 1);
    while (s.ptr[pos] != '}') {
        const size_t name_at = pos + 1, name_end = after_string(s, pos) - 1;
        size_t end;
        int depth = 0;
        pos = skip_space(s, skip_space(s, name_end + 1) + 1);
        for (end = pos; depth || !strchr(",}", s.ptr[end]); ) {
            if (s.ptr[end] == '"') {
                end = after_string(s, end);
                continue;
            }
            if (s.ptr[end] == '{' || s.ptr[end] == '[') depth++;
            if (s.ptr[end] == '}' || s.ptr[end] == ']') depth--;
            end++;
        }
        if (str_is((str_view){ s.ptr + name_at, name_end - name_at }, key))
            found = view_strip((str_view){ s.ptr + pos, end - pos }, VIEW_SPACE, false, true);
        pos = s.ptr[end] == ',' ? skip_space(s, end + 1) : end;
    }
    return found;
}

static json_t *load(str_view s)
{
    /* Integers as reals: only validity matters here, and they may exceed 64 bits. */
    return json_loadb(s.ptr, s.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
}

/* held[pos, end) is a balanced object. Reports a call if it has a name and an arguments object. */
static int json_call(chat_parser *p, size_t pos, size_t end)
{
    const str_view text = { p->held.ptr + pos, end - pos };
    json_t *call = load(text), *args = json_object_get(call, "arguments"), *inner = NULL;
    const char *name = json_text(call, "name");
    str_view args_text = { NULL, 0 };
    int rc;

    if (json_is_object(args)) {
        args_text = member_text(text, "arguments");
    } else if (json_is_string(args)) {
        /* Some models encode the object as a string. */
        args_text = json_view(args);
        inner = load(args_text);
        if (!json_is_object(inner)) args_text.len = 0;
    } else if (!args || json_is_null(args)) {
        args_text = str_from("{}");
    }
    if (name && *name && args_text.len) rc = tags_report(p, str_from(name), args_text, end);
    else rc = tags_give_up(p, end);
    json_decref(inner);
    json_decref(call);
    return rc;
}

/* Scans to the brace that closes the object. A control character inside a string, or a tag outside
 * of one, is not JSON; detecting it here avoids buffering up to the end of the answer. */
static int step_json(chat_parser *p)
{
    tags_state *m = &p->tags;
    for (; m->scan < p->held.len; m->scan++) {
        const char ch = p->held.ptr[m->scan];
        if (m->in_string) {
            if ((unsigned char)ch < 0x20) return tags_give_up(p, m->scan);
            if (m->escaped) m->escaped = false;
            else if (ch == '\\') m->escaped = true;
            else if (ch == '"') m->in_string = false;
        } else if (ch == '"') {
            m->in_string = true;
        } else if (ch == '<') {
            return tags_give_up(p, m->scan);
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

/* Parses "<tag=NAME>" at pos. Returns AGAIN with the name's position, MORE if it is incomplete, or
 * -1 if it does not match. */
static int tag_name(str_view s, size_t pos, const char *tag, size_t *name_at, size_t *name_len)
{
    const size_t from = pos + strlen(tag);
    for (size_t i = from; i < s.len; i++) {
        if (s.ptr[i] == '\n' || i - from > NAME_MAX_BYTES) return -1;
        if (s.ptr[i] != '>') continue;
        *name_at = from;
        *name_len = i - from;
        return i > from ? AGAIN : -1;
    }
    return MORE;
}

static const char *const after_param[] = { PARAM, FUNCTION_END, CALL_END };

static int xml_between(chat_parser *p)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    const size_t pos = skip_space(s, m->scan);
    size_t key_at, key_len;
    int rc;

    switch (match_any(s, pos, after_param, ARRAY_LEN(after_param))) {
    case MATCH_MAYBE: return MORE;
    case MATCH_NO: return tags_give_up(p, pos);
    case MATCH_YES: break;
    }
    if (match_at(s, pos, FUNCTION_END) == MATCH_YES)
        return params_report(p, true, pos + strlen(FUNCTION_END));
    if (match_at(s, pos, CALL_END) == MATCH_YES) return params_report(p, true, pos);
    rc = tag_name(s, pos, PARAM, &key_at, &key_len);
    if (rc == MORE) return MORE;
    if (rc < 0) return tags_give_up(p, pos + 1);
    if ((rc = params_add(p, key_at, key_len)) < 0) return rc;
    m->phase = PARAMS_VALUE;
    m->value_at = m->scan = key_at + key_len + 1;
    return AGAIN;
}

static int step_xml(chat_parser *p)
{
    tags_state *m = &p->tags;
    int rc;

    if (m->phase == PARAMS_BETWEEN) return xml_between(p);
    if (m->phase == PARAMS_VALUE)
        return params_value(p, PARAM_END, after_param, ARRAY_LEN(after_param));
    rc = tag_name(textbuf_view(&p->held), m->scan, FUNCTION, &m->name_at, &m->name_len);
    if (rc == MORE) return MORE;
    if (rc < 0) return tags_give_up(p, m->scan + strlen(FUNCTION));
    m->phase = PARAMS_BETWEEN;
    m->scan = m->name_at + m->name_len + 1;
    return AGAIN;
}

/* ---- a step within a call ------------------------------------------------------------------ */

int chatml_call(chat_parser *p)
{
    switch (p->tags.body) {
    case BODY_OPEN: return step_open(p);
    case BODY_JSON: return step_json(p);
    case BODY_XML: break;
    }
    return step_xml(p);
}
