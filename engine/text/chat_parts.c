/* chat_parts.c - what the chat formats are built from: text buffers, JSON as text, the prompt, and
 * the parser's way to its caller.
 *
 * Invariant: structure reaches the prompt as token ids only, text only through the encoder with
 * control tokens off. Knows no format. */
#include "engine/text/chat_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------------------------- */

int textbuf_check(const textbuf *b, err_ctx *err)
{
    if (b->failed) return err_set(err, ERR_NOMEM, "chat: text of more than %zu bytes", b->len);
    return 0;
}

size_t view_find(str_view s, size_t from, const char *needle)
{
    const char *hit;
    if (from > s.len || s.len == from) return SIZE_MAX;
    hit = memmem(s.ptr + from, s.len - from, needle, strlen(needle));
    return hit ? (size_t)(hit - s.ptr) : SIZE_MAX;
}

bool view_has(str_view s, const char *needle)
{
    return view_find(s, 0, needle) != SIZE_MAX;
}

str_view view_strip(str_view s, const char *chars, bool left, bool right)
{
    const size_t n_char = strlen(chars);
    while (left && s.len && memchr(chars, s.ptr[0], n_char)) s.ptr++, s.len--;
    while (right && s.len && memchr(chars, s.ptr[s.len - 1], n_char)) s.len--;
    return s;
}

str_view view_trim(str_view s)
{
    return view_strip(s, VIEW_SPACE, true, true);
}

void split_reasoning(str_view *reasoning, str_view *content)
{
    size_t end = SIZE_MAX, open;
    if (reasoning->len) return;
    for (size_t at = 0; (at = view_find(*content, at, "</think>")) != SIZE_MAX; at++) end = at;
    if (end == SIZE_MAX) return;
    *reasoning = view_strip((str_view){ content->ptr, view_find(*content, 0, "</think>") }, "\n",
                            false, true);
    while ((open = view_find(*reasoning, 0, "<think>")) != SIZE_MAX) {
        reasoning->ptr += open + 7;
        reasoning->len -= open + 7;
    }
    content->ptr += end + 8;
    content->len -= end + 8;
    *reasoning = view_strip(*reasoning, "\n", true, false);
    *content = view_strip(*content, "\n", true, false);
}

/* ---- JSON as text -------------------------------------------------------------------------- */

void textbuf_json_string(textbuf *b, str_view s)
{
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";     /* pairs: byte, letter */
    textbuf_str(b, "\"");
    for (size_t i = 0, from = 0; i <= s.len; i++) {
        char out[8];
        const char *e = NULL;
        if (i < s.len && (unsigned char)s.ptr[i] >= 0x20 && s.ptr[i] != '"' && s.ptr[i] != '\\')
            continue;
        textbuf_put(b, (str_view){ s.ptr + from, i - from });
        from = i + 1;
        if (i == s.len) break;
        for (size_t k = 0; k + 1 < sizeof escapes; k += 2)
            if (escapes[k] == s.ptr[i]) e = &escapes[k + 1];
        if (e) snprintf(out, sizeof out, "\\%c", *e);
        else snprintf(out, sizeof out, "\\u%04x", (unsigned)(unsigned char)s.ptr[i]);
        textbuf_str(b, out);
    }
    textbuf_str(b, "\"");
}

/* The shortest digits that read back as v, laid out as Python's repr or as serde does: both write
 * 100.0 and 0.1; they part at 1e-05 / 0.00001, 1e-07 / 1e-7 and 1e+16 / 1e16. */
static void put_real(textbuf *b, double v, json_style style)
{
    char digits[40], out[64];
    int prec = 1, exp10, n;
    if (v == 0.0) {
        textbuf_str(b, signbit(v) ? "-0.0" : "0.0");
        return;
    }
    for (; prec <= 17; prec++) {
        snprintf(digits, sizeof digits, "%.*e", prec - 1, v);
        if (strtod(digits, NULL) == v) break;
    }
    exp10 = atoi(strchr(digits, 'e') + 1);
    if (exp10 >= (style == JSON_TIGHT ? -5 : -4) && exp10 < 16) {
        snprintf(out, sizeof out, "%.*f", prec - 1 > exp10 ? prec - 1 - exp10 : 1, v);
    } else {
        n = (int)(strchr(digits, 'e') - digits);
        snprintf(out, sizeof out, style == JSON_TIGHT ? "%.*se%d" : "%.*se%+03d", n, digits, exp10);
    }
    textbuf_str(b, out);
}

void textbuf_json(textbuf *b, const json_t *v, json_style style)
{
    const char *comma = style == JSON_TIGHT ? "," : ", ", *key;
    char num[32];
    size_t i;
    json_t *item;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        textbuf_str(b, "{");
        i = 0;
        json_object_foreach((json_t *)v, key, item) {
            if (i++) textbuf_str(b, comma);
            textbuf_json_string(b, str_from(key));
            textbuf_str(b, style == JSON_TIGHT ? ":" : ": ");
            textbuf_json(b, item, style);
        }
        textbuf_str(b, "}");
        break;
    case JSON_ARRAY:
        textbuf_str(b, "[");
        json_array_foreach(v, i, item) {
            if (i) textbuf_str(b, comma);
            textbuf_json(b, item, style);
        }
        textbuf_str(b, "]");
        break;
    case JSON_STRING:
        textbuf_json_string(b, (str_view){ json_string_value(v), json_string_length(v) });
        break;
    case JSON_INTEGER:
        snprintf(num, sizeof num, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        textbuf_str(b, num);
        break;
    case JSON_REAL:
        put_real(b, json_real_value(v), style);
        break;
    case JSON_TRUE:
        textbuf_str(b, "true");
        break;
    case JSON_FALSE:
        textbuf_str(b, "false");
        break;
    case JSON_NULL:
        textbuf_str(b, "null");
        break;
    }
}

/* Strings in a list stand in quotes, but what is in them is not escaped. */
void textbuf_python(textbuf *b, const json_t *v)
{
    size_t i;
    json_t *item;

    if (json_is_string(v)) {
        textbuf_put(b, (str_view){ json_string_value(v), json_string_length(v) });
    } else if (json_is_boolean(v)) {
        textbuf_str(b, json_is_true(v) ? "True" : "False");
    } else if (json_is_null(v)) {
        textbuf_str(b, "None");
    } else if (json_is_array(v)) {
        textbuf_str(b, "[");
        json_array_foreach(v, i, item) {
            textbuf_str(b, i ? ", " : "");
            if (json_is_string(item)) textbuf_str(b, "'");
            textbuf_python(b, item);
            if (json_is_string(item)) textbuf_str(b, "'");
        }
        textbuf_str(b, "]");
    } else {
        textbuf_json(b, v, JSON_SPACED);
    }
}

int chat_json_text(char **out, size_t *len, const json_t *v, err_ctx *err)
{
    textbuf b = { 0 };
    int rc;

    *out = NULL;
    textbuf_json(&b, v, JSON_SPACED);
    textbuf_put(&b, (str_view){ "", 1 });        /* the terminator */
    if ((rc = textbuf_check(&b, err)) < 0) {
        textbuf_free(&b);
        return rc;
    }
    *out = b.ptr;
    *len = b.len - 1;
    return 0;
}

const json_t *tool_function(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return f ? f : tool;
}

const char *json_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- prompt -------------------------------------------------------------------------------- */

void prompt_view(prompt *p, str_view s)
{
    if (p->rc == 0) textbuf_put(&p->text, s);
}

void prompt_text(prompt *p, const char *s)
{
    prompt_view(p, str_from(s));
}

int prompt_flush(prompt *p)
{
    if (p->rc == 0) p->rc = textbuf_check(&p->text, p->err);
    if (p->rc == 0 && p->text.len)
        p->rc = encoder_encode(p->e, p->out, textbuf_view(&p->text), false, p->err);
    p->text.len = 0;
    return p->rc;
}

void prompt_token(prompt *p, int id)
{
    if (prompt_flush(p) < 0) return;
    p->rc = id >= 0 ? ids_push(p->out, id, p->err)
          : err_set(p->err, ERR_UNSUPPORTED, "chat: the vocabulary has no tokens for tool calls");
}

void prompt_tag(prompt *p, const char *s)
{
    const int id = tokenizer_special(p->c->t, s);
    if (id >= 0) prompt_token(p, id);
    else prompt_text(p, s);
}

json_t *call_arguments(prompt *p, const chat_call *call, int i_message)
{
    const str_view args = call->arguments.len ? call->arguments : str_from("{}");
    json_t *v = json_loadb(args.ptr, args.len, JSON_ALLOW_NUL, NULL);
    char esc[96];

    /* Integers beyond 64 bits are better shown rounded than refused. */
    if (!v) v = json_loadb(args.ptr, args.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (json_is_object(v)) return v;
    json_decref(v);
    if (p->rc == 0)
        p->rc = err_set(p->err, ERR_FORMAT, "messages[%d]: the arguments of %s are not a JSON "
                        "object", i_message, ESC(esc, call->name));
    return NULL;
}

/* ---- events -------------------------------------------------------------------------------- */

int parser_emit(chat_parser *p, chat_event_kind kind, str_view text)
{
    const chat_event ev = { .kind = kind, .text = text };
    const int rc = text.len || kind == CHAT_CALL_END || kind == CHAT_DONE ? p->fn(p->ctx, &ev) : 0;
    return rc < 0 ? rc : 0;
}

int parser_call(chat_parser *p, str_view name)
{
    const chat_event ev = { .kind = CHAT_CALL_BEGIN, .name = name };
    const int rc = p->fn(p->ctx, &ev);
    return rc < 0 ? rc : 0;
}

/* Token texts are short, but it is the file that decides: they go in slices. */
int parser_decode(chat_parser *p, textbuf *to, str_view bytes)
{
    char tmp[3 * (64 + 3) + 3];
    while (bytes.len) {
        const size_t n = bytes.len < 64 ? bytes.len : 64;
        const size_t len = utf8_stream_push(&p->utf8, tmp, (str_view){ bytes.ptr, n });
        textbuf_put(to, (str_view){ tmp, len });
        bytes.ptr += n;
        bytes.len -= n;
    }
    return textbuf_check(to, p->err);
}

int parser_decode_end(chat_parser *p, textbuf *to)
{
    char tmp[16];
    textbuf_put(to, (str_view){ tmp, utf8_stream_end(&p->utf8, tmp) });
    return textbuf_check(to, p->err);
}
