/* chat_parts.c - functions shared by the chat formats: text views, the prompt, the parser's events.
 *
 * Invariant: structure reaches the prompt only as token ids, text only through the encoder with
 * control tokens off. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

/* ---- text ---------------------------------------------------------------------------------- */

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

str_view view_trim(str_view s) { return view_strip(s, VIEW_SPACE, true, true); }

void split_reasoning(str_view *reasoning, str_view *content)
{
    size_t end = SIZE_MAX, open;
    if (reasoning->len) return;
    for (size_t pos = 0; (pos = view_find(*content, pos, "</think>")) != SIZE_MAX; pos++) end = pos;
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

void prompt_text(prompt *p, const char *s) { prompt_view(p, str_from(s)); }

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

    /* Integers beyond 64 bits are rounded rather than refused. */
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

/* Converts in slices, because the length of a token's text comes from the file. */
int parser_decode(chat_parser *p, textbuf *dst, str_view bytes)
{
    char tmp[3 * (64 + 3) + 3];
    while (bytes.len) {
        const size_t n = bytes.len < 64 ? bytes.len : 64;
        const size_t len = utf8_stream_push(&p->utf8, tmp, (str_view){ bytes.ptr, n });
        textbuf_put(dst, (str_view){ tmp, len });
        bytes.ptr += n;
        bytes.len -= n;
    }
    return textbuf_check(dst, p->err);
}

int parser_decode_end(chat_parser *p, textbuf *dst)
{
    char tmp[16];
    textbuf_put(dst, (str_view){ tmp, utf8_stream_end(&p->utf8, tmp) });
    return textbuf_check(dst, p->err);
}
