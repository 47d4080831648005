/* chat.c - recognises the chat format, checks requests, and holds what both formats build on.
 *
 * Invariant: structure reaches the prompt as token ids only, text only through the encoder with
 * control tokens off; a failed render leaves the caller's id list as it was. The formats themselves
 * are in chat_chatml.c and chat_harmony.c; sampling and stopping are the caller's. */
#include "engine/text/chat_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Deeper schemas are refused: rendering recurses, and nested indentation grows with the square. */
#define SCHEMA_DEPTH_MAX 64

/* ---- text ---------------------------------------------------------------------------------- */

void textbuf_put(textbuf *b, str_view s)
{
    if (b->failed || !s.len) return;
    if (s.len > b->cap - b->len) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->len < s.len && cap <= SIZE_MAX / 2) cap *= 2;
        char *p = cap - b->len < s.len ? NULL : mem_resize(b->ptr, cap, 1);
        if (!p) {
            b->failed = true;
            return;
        }
        b->ptr = p;
        b->cap = cap;
    }
    memcpy(b->ptr + b->len, s.ptr, s.len);
    b->len += s.len;
}

void textbuf_str(textbuf *b, const char *s)
{
    textbuf_put(b, str_from(s));
}

void textbuf_drop(textbuf *b, size_t n)
{
    if (n && n < b->len) memmove(b->ptr, b->ptr + n, b->len - n);
    b->len -= n;
}

void textbuf_free(textbuf *b)
{
    mem_free(b->ptr);
    *b = (textbuf){ 0 };
}

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

/* ---- checking a request -------------------------------------------------------------------- */

const json_t *tool_function(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return f ? f : tool;
}

const char *json_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static bool too_deep(const json_t *v, int left)
{
    const char *key;
    size_t i;
    json_t *item;
    if (left == 0) return true;
    json_object_foreach((json_t *)v, key, item)
        if (too_deep(item, left - 1)) return true;
    if (json_is_array(v))
        json_array_foreach(v, i, item)
            if (too_deep(item, left - 1)) return true;
    return false;
}

/* Names stand unquoted in headers and tags, so what would end one is refused in all formats. */
static bool is_name(str_view s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] <= ' ' || strchr("<>\"\\\x7f", s.ptr[i])) return false;
    return s.len > 0;
}

static int check_tools(const json_t *tools, err_ctx *err)
{
    size_t i;
    json_t *tool;
    char esc[128];

    if (!json_is_array(tools)) return err_set(err, ERR_FORMAT, "tools: not an array");
    json_array_foreach(tools, i, tool) {
        const json_t *f = tool_function(tool), *params = json_object_get(f, "parameters");
        const char *name = json_text(f, "name"), *type = json_text(tool, "type");
        if (!json_is_object(tool)) return err_set(err, ERR_FORMAT, "tools[%zu]: not an object", i);
        if (type && strcmp(type, "function") != 0 && json_object_get(tool, "function") == NULL)
            return err_set(err, ERR_UNSUPPORTED, "tools[%zu]: type \"%s\" is not \"function\"", i,
                           ESC(esc, str_from(type)));
        if (!name) return err_set(err, ERR_FORMAT, "tools[%zu]: no function name", i);
        if (!is_name(str_from(name)))
            return err_set(err, ERR_FORMAT, "tools[%zu]: \"%s\" cannot be a function's name", i,
                           ESC(esc, str_from(name)));
        if (params && !json_is_object(params) && !json_is_null(params))
            return err_set(err, ERR_FORMAT, "tools[%zu] (%s): parameters are not an object", i,
                           ESC(esc, str_from(name)));
        if (too_deep(tool, SCHEMA_DEPTH_MAX))
            return err_set(err, ERR_RANGE, "tools[%zu] (%s): nested deeper than %d levels", i,
                           ESC(esc, str_from(name)), SCHEMA_DEPTH_MAX);
    }
    return 0;
}

static int check_message(const chat *c, const chat_message *m, int i, err_ctx *err)
{
    static const char *const names[] = { "system", "developer", "user", "assistant", "tool" };
    char esc[128];

    if ((int)m->role < 0 || (int)m->role >= (int)ARRAY_LEN(names))
        return err_set(err, ERR_RANGE, "messages[%d]: role %d is unknown", i, (int)m->role);
    if (m->n_call && m->role != CHAT_ASSISTANT)
        return err_set(err, ERR_FORMAT, "messages[%d]: the role \"%s\" cannot call tools", i,
                       names[m->role]);
    if (c->format == CHAT_RAW && (m->n_call || m->role == CHAT_TOOL))
        return err_set(err, ERR_UNSUPPORTED, "messages[%d]: a file without a known chat format "
                       "cannot express tool calls and results", i);
    for (int k = 0; k < m->n_call; k++)
        if (!is_name(m->calls[k].name))
            return err_set(err, ERR_FORMAT, "messages[%d]: call %d: \"%s\" cannot be a name",
                           i, k, ESC(esc, m->calls[k].name));
    if (m->role == CHAT_TOOL && m->name.len && !is_name(m->name))
        return err_set(err, ERR_FORMAT, "messages[%d]: \"%s\" cannot be a function's name", i,
                       ESC(esc, m->name));
    return 0;
}

static int check_request(const chat *c, const chat_request *req, err_ctx *err)
{
    int rc;
    if (req->n_message < 1) return err_set(err, ERR_RANGE, "messages: there are none");
    if (req->tools && (rc = check_tools(req->tools, err)) < 0) return rc;
    if (c->format == CHAT_RAW && json_array_size(req->tools) > 0)
        return err_set(err, ERR_UNSUPPORTED, "tools: a file without a known chat format cannot "
                       "express them");
    for (int i = 0; i < req->n_message; i++)
        if ((rc = check_message(c, &req->messages[i], i, err)) < 0) return rc;
    return 0;
}

/* ---- recognition --------------------------------------------------------------------------- */

static const char note_template[] = "The file's chat template is neither ChatML nor harmony: "
                                    "messages are joined without any markup.";
static const char note_none[] = "The file has no chat template and no known chat tokens: "
                                "messages are joined without any markup.";

static void find_tokens(chat *c)
{
    c->im_start = tokenizer_special(c->t, "<|im_start|>");
    c->im_end = tokenizer_special(c->t, "<|im_end|>");
    c->h_start = tokenizer_special(c->t, "<|start|>");
    c->h_message = tokenizer_special(c->t, "<|message|>");
    c->h_channel = tokenizer_special(c->t, "<|channel|>");
    c->h_end = tokenizer_special(c->t, "<|end|>");
    c->h_call = tokenizer_special(c->t, "<|call|>");
    c->h_constrain = tokenizer_special(c->t, "<|constrain|>");
}

static const char *const effort_names[] = {
    [CHAT_EFFORT_MEDIUM] = "medium", [CHAT_EFFORT_LOW] = "low", [CHAT_EFFORT_HIGH] = "high",
};

const char *chat_effort_name(chat_effort e)
{
    return effort_names[(size_t)e < ARRAY_LEN(effort_names) ? e : CHAT_EFFORT_MEDIUM];
}

bool chat_effort_from_name(chat_effort *out, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(effort_names); i++) {
        if (strcmp(name, effort_names[i]) != 0) continue;
        *out = (chat_effort)i;
        return true;
    }
    return false;
}

int chat_create(chat **out, const gguf *g, const tokenizer *t, err_ctx *err)
{
    str_view tmpl = { NULL, 0 };
    chat *c;
    int rc;

    *out = NULL;
    if ((rc = gguf_get_str(&tmpl, g, "tokenizer.chat_template", err)) < 0) return rc;
    c = mem_zalloc(sizeof *c);
    if (!c) return err_set(err, ERR_NOMEM, "chat: %zu bytes", sizeof *c);
    c->t = t;
    find_tokens(c);
    if (c->im_start >= 0 && c->im_end >= 0 && (!tmpl.len || view_has(tmpl, "<|im_start|>"))) {
        c->format = CHAT_CHATML;
        if ((rc = chatml_setup(c, tmpl, err)) < 0) goto fail;
    } else if (c->h_start >= 0 && c->h_message >= 0 && c->h_channel >= 0 && c->h_end >= 0 &&
               (!tmpl.len || view_has(tmpl, "<|channel|>") || view_has(tmpl, "<|start|>"))) {
        c->format = CHAT_HARMONY;
    } else {
        c->format = CHAT_RAW;
        c->note = tmpl.len ? note_template : note_none;
    }
    *out = c;
    return 0;
fail:
    chat_free(c);
    return rc;
}

void chat_free(chat *c)
{
    if (!c) return;
    mem_free(c->tools_intro);
    mem_free(c->tools_outro);
    mem_free(c->default_system);
    mem_free(c);
}

chat_format chat_format_of(const chat *c)
{
    return c->format;
}

const char *chat_format_name(const chat *c)
{
    if (c->format == CHAT_CHATML) return c->xml_calls ? "chatml (xml tools)" : "chatml";
    return c->format == CHAT_HARMONY ? "harmony" : "raw";
}

const char *chat_note(const chat *c)
{
    return c->note;
}

/* ---- rendering ----------------------------------------------------------------------------- */

int chat_render(id_list *out, const chat *c, encoder *e, const chat_request *req, err_ctx *err)
{
    prompt p = { .c = c, .e = e, .out = out, .err = err };
    const size_t n_before = out->n;
    int rc = check_request(c, req, err);

    if (rc < 0) return rc;
    if (c->format == CHAT_CHATML) {
        chatml_render(&p, req);
    } else if (c->format == CHAT_HARMONY) {
        harmony_render(&p, req);
    } else {
        for (int i = 0; i < req->n_message; i++) {
            if (i) prompt_text(&p, "\n");
            prompt_view(&p, req->messages[i].content);
        }
    }
    rc = prompt_flush(&p);
    if (rc < 0) out->n = n_before;
    textbuf_free(&p.text);
    return rc;
}

/* ---- the way back -------------------------------------------------------------------------- */

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

int chat_parser_create(chat_parser **out, const chat *c, const chat_request *req, err_ctx *err)
{
    chat_parser *p = mem_zalloc(sizeof *p);
    const json_t *tools = req ? req->tools : NULL;
    int rc = 0;

    *out = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "chat: %zu bytes", sizeof *p);
    p->c = c;
    p->calls = !req || json_array_size(tools) > 0;
    if (tools) rc = check_tools(tools, err);
    if (rc == 0 && json_array_size(tools) > 0 && !(p->tools = json_deep_copy(tools)))
        rc = err_set(err, ERR_NOMEM, "chat: a copy of %zu tools", json_array_size(tools));
    if (rc == 0) {
        /* Room for what plain text needs, so that only tool calls allocate while tokens come. */
        textbuf_put(&p->held, (str_view){ (char[1024]){ 0 }, 1024 });
        textbuf_put(&p->args, (str_view){ (char[1024]){ 0 }, 1024 });
        rc = textbuf_check(&p->held, err);
        if (rc == 0) rc = textbuf_check(&p->args, err);
        p->held.len = p->args.len = 0;
    }
    if (rc < 0) {
        chat_parser_free(p);
        return rc;
    }
    if (c->cue_thinks) {
        p->chatml.where = CHATML_REASONING;
        p->chatml.strip = true;
    }
    *out = p;
    return 0;
}

void chat_parser_free(chat_parser *p)
{
    if (!p) return;
    json_decref(p->tools);
    textbuf_free(&p->held);
    textbuf_free(&p->args);
    mem_free(p->chatml.params);
    mem_free(p);
}

static int raw_push(chat_parser *p, int id)
{
    int rc;
    p->held.len = 0;
    rc = id < 0 ? parser_decode_end(p, &p->held)
                : parser_decode(p, &p->held, tokenizer_bytes(p->c->t, id, false));
    return rc < 0 ? rc : parser_emit(p, CHAT_ANSWER, textbuf_view(&p->held));
}

static int parser_finish(chat_parser *p)
{
    p->done = true;
    if (p->c->format == CHAT_CHATML) return chatml_end(p);
    if (p->c->format == CHAT_HARMONY) return harmony_end(p);
    return raw_push(p, -1);
}

int chat_parser_push(chat_parser *p, int id, chat_event_fn *fn, void *ctx, err_ctx *err)
{
    const int n_token = tokenizer_n_token(p->c->t);
    int rc;

    if (p->done) return 1;
    if (id < 0 || id >= n_token)
        return err_set(err, ERR_RANGE, "token id %d lies outside the vocabulary of %d", id,
                       n_token);
    p->fn = fn;
    p->ctx = ctx;
    p->err = err;
    if (tokenizer_is_stop(p->c->t, id)) {
        if ((rc = parser_finish(p)) < 0) return rc;
        rc = parser_emit(p, CHAT_DONE, (str_view){ NULL, 0 });
        return rc < 0 ? rc : 1;
    }
    if (p->c->format == CHAT_CHATML) return chatml_push(p, id);
    if (p->c->format == CHAT_HARMONY) return harmony_push(p, id);
    return raw_push(p, id);
}

int chat_parser_end(chat_parser *p, chat_event_fn *fn, void *ctx, err_ctx *err)
{
    if (p->done) return 0;
    p->fn = fn;
    p->ctx = ctx;
    p->err = err;
    return parser_finish(p);
}
