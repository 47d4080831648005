/* chat.c - recognises the chat format, checks requests, and hands them to the format.
 *
 * Invariant: a failed render leaves the caller's id list unchanged. Each format has a file
 * chat_*.c; chat_parts.c has their shared functions. The caller samples and stops. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

/* Deeper schemas are refused: rendering recurses, and nested indentation grows with the square. */
#define SCHEMA_DEPTH_MAX 64

/* ---- checking a request -------------------------------------------------------------------- */

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

/* Names are unquoted in headers and tags, so characters that would end one are refused. */
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

static const char *format_text(const chat *c)
{
    return c->ops->format == CHAT_RAW ? "a file without a known chat format"
                                      : "this model's chat format";
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
    if (!c->ops->tools && (m->n_call || m->role == CHAT_TOOL))
        return err_set(err, ERR_UNSUPPORTED, "messages[%d]: %s cannot express tool calls and "
                       "results", i, format_text(c));
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
    if (req->n_message < 1 && !req->no_cue)      /* no_cue: only the text before all messages */
        return err_set(err, ERR_RANGE, "messages: there are none");
    if (req->tools && (rc = check_tools(req->tools, err)) < 0) return rc;
    if (!c->ops->tools && json_array_size(req->tools) > 0)
        return err_set(err, ERR_UNSUPPORTED, "tools: %s cannot express them", format_text(c));
    for (int i = 0; i < req->n_message; i++)
        if ((rc = check_message(c, &req->messages[i], i, err)) < 0) return rc;
    return 0;
}

/* ---- recognition --------------------------------------------------------------------------- */

static const char note_template[] = "The file's chat template is of no known format: messages are "
                                    "joined without any markup.";
static const char note_none[] = "The file has no chat template and no known chat tokens: "
                                "messages are joined without any markup.";

void chat_show(chat *c, const char *text)
{
    const int id = tokenizer_special(c->t, text);
    if (id >= 0 && c->n_shown < (int)ARRAY_LEN(c->shown)) c->shown[c->n_shown++] = id;
}

int chat_keep(char **out, str_view s, err_ctx *err)
{
    if (*out) return 0;
    *out = mem_strdup_n(s.ptr ? s.ptr : "", s.len);
    return *out ? 0 : err_set(err, ERR_NOMEM, "chat: %zu bytes of template text", s.len);
}

static const char *const effort_names[] = {
    [CHAT_EFFORT_MEDIUM] = "medium", [CHAT_EFFORT_LOW] = "low", [CHAT_EFFORT_HIGH] = "high",
};

const char *chat_effort_name(chat_effort e)
{
    return effort_names[(size_t)e < ARRAY_LEN(effort_names) ? e : CHAT_EFFORT_MEDIUM];
}

const char *chat_reasoning_name(chat_effort e, chat_thinking t)
{
    return t == CHAT_THINK_ON ? "on" : t == CHAT_THINK_OFF ? "off" : chat_effort_name(e);
}

bool chat_reasoning_from_name(chat_effort *e, chat_thinking *t, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(effort_names); i++) {
        if (strcmp(name, effort_names[i]) != 0) continue;
        *e = (chat_effort)i;
        *t = CHAT_THINK_DEFAULT;
        return true;
    }
    if (strcmp(name, "on") != 0 && strcmp(name, "off") != 0) return false;
    *e = CHAT_EFFORT_MEDIUM;
    *t = strcmp(name, "on") == 0 ? CHAT_THINK_ON : CHAT_THINK_OFF;
    return true;
}

/* ---- text without a format ---- */

static void raw_render(prompt *p, const chat_request *req)
{
    for (int i = 0; i < req->n_message; i++) {
        if (i) prompt_text(p, "\n");
        prompt_view(p, req->messages[i].content);
    }
}

int plain_push(chat_parser *p, int id)
{
    p->held.len = 0;
    const int rc = parser_decode(p, &p->held, tokenizer_bytes(p->c->t, id, false));
    return rc < 0 ? rc : parser_emit(p, CHAT_ANSWER, textbuf_view(&p->held));
}

int plain_end(chat_parser *p)
{
    p->held.len = 0;
    const int rc = parser_decode_end(p, &p->held);
    return rc < 0 ? rc : parser_emit(p, CHAT_ANSWER, textbuf_view(&p->held));
}

static const chat_ops raw_ops = {
    .format = CHAT_RAW, .name = "raw", .render = raw_render, .push = plain_push, .end = plain_end,
};

/* setup of each format decides whether a file has it; the most specific formats come first. */
static const chat_ops *const formats[] = {
    &chatml_ops, &harmony_ops, &glm_ops, &gemma_ops, &mistral_ops, &tulu_ops,
};

int chat_create(chat **out, const gguf *g, const tokenizer *t, err_ctx *err)
{
    str_view tmpl = { NULL, 0 };
    chat *c;
    int rc;

    *out = NULL;
    if ((rc = gguf_get_str(&tmpl, g, "tokenizer.chat_template", err)) < 0) return rc;
    c = mem_zalloc(sizeof *c);
    if (!c) return err_set(err, ERR_NOMEM, "chat: %zu bytes", sizeof *c);
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        *c = (chat){ .t = t, .ops = formats[i] };
        if ((rc = formats[i]->setup(c, tmpl, err)) < 0) goto fail;
        if (rc == 0) continue;
        *out = c;
        return 0;
    }
    *c = (chat){ .t = t, .ops = &raw_ops, .note = tmpl.len ? note_template : note_none };
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

chat_format chat_format_of(const chat *c) { return c->ops->format; }

const char *chat_format_name(const chat *c)
{
    return c->xml_calls ? "chatml (xml tools)" : c->ops->name;
}

bool chat_reasons(const chat *c) { return c->knows_reasoning; }

bool chat_has_switch(const chat *c) { return c->may_rest; }

const char *chat_note(const chat *c) { return c->note; }

/* ---- rendering ----------------------------------------------------------------------------- */

int chat_render(id_list *out, const chat *c, encoder *e, const chat_request *req, err_ctx *err)
{
    prompt p = { .c = c, .e = e, .out = out, .err = err };
    const size_t n_before = out->n;
    int rc = check_request(c, req, err);

    if (rc < 0) return rc;
    c->ops->render(&p, req);
    rc = prompt_flush(&p);
    if (rc < 0) out->n = n_before;
    textbuf_free(&p.text);
    return rc;
}

/* ---- parsing ------------------------------------------------------------------------------- */

json_t *request_callable(const chat_request *req)
{
    json_t *out = json_object(), *tool;
    size_t i;

    json_array_foreach(req->tools, i, tool) {
        const char *name = json_text(tool_function(tool), "name");
        bool may = req->n_callable == 0;
        for (int k = 0; k < req->n_callable && !may; k++)
            may = strcmp(req->callable[k], name) == 0;
        if (!may || json_object_get(out, name)) continue;
        if (json_object_set_new(out, name, json_integer((json_int_t)i)) < 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
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
    if (rc == 0 && req && req->calls != CHAT_CALLS_FREE) {
        p->hold = req->calls;
        p->formed = req->formed;
        if (!(p->callable = request_callable(req)))
            rc = err_set(err, ERR_NOMEM, "chat: names of %zu tools", json_array_size(tools));
    }
    if (rc == 0) {
        /* Enough for plain text, so that only tool calls allocate in the token loop. */
        textbuf_room(&p->held, 1024);
        textbuf_room(&p->args, 1024);
        rc = textbuf_check(&p->held, err);
        if (rc == 0) rc = textbuf_check(&p->args, err);
    }
    if (rc < 0) {
        chat_parser_free(p);
        return rc;
    }
    if (c->ops->begin) c->ops->begin(p, req ? req : &(chat_request){ .n_message = 0 });
    *out = p;
    return 0;
}

void chat_parser_free(chat_parser *p)
{
    if (!p) return;
    json_decref(p->tools);
    json_decref(p->callable);
    textbuf_free(&p->held);
    textbuf_free(&p->args);
    mem_free(p->tags.params);
    mem_free(p);
}

static int parser_finish(chat_parser *p)
{
    p->done = true;
    return p->c->ops->end(p);
}

bool chat_ends_turn(const chat *c, int id)
{
    for (int i = 0; i < c->n_end; i++)
        if (c->ends[i] == id) return true;
    return tokenizer_is_stop(c->t, id);
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
    if (chat_ends_turn(p->c, id)) {
        if ((rc = parser_finish(p)) < 0) return rc;
        rc = parser_emit(p, CHAT_DONE, (str_view){ NULL, 0 });
        return rc < 0 ? rc : 1;
    }
    return p->c->ops->push(p, id);
}

int chat_parser_end(chat_parser *p, chat_event_fn *fn, void *ctx, err_ctx *err)
{
    if (p->done) return 0;
    p->fn = fn;
    p->ctx = ctx;
    p->err = err;
    return parser_finish(p);
}
