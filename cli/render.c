/* render.c - moe-run render: an OpenAI-style request to the exact prompt, and an answer to its
 * parts.
 *
 * Everything a request can get wrong is refused with the place it stands at ("messages[3]: ...").
 * Text is borrowed from the parsed request where it stands there in one piece; what has to be put
 * together (content parts, arguments given as an object) is owned by the request. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/chat/conversation.h"
#include "cli/console.h"
#include "cli/model_name.h"
#include "engine/text/chat/chat.h"
#include "engine/text/textbuf_json.h"

typedef struct render_options {
    const char *model, *reasoning, *date, *request;
    bool ids, json, no_cue, parse;
} render_options;

#define FIELD(f) offsetof(render_options, f)
static const arg_option options[] = {
    { "model", 'm', ARG_NEEDED_TEXT, FIELD(model), "FILE", "MOE_MODEL", 0, 0,
      "GGUF file with the tokenizer" },
    { "ids", 0, ARG_FLAG, FIELD(ids), NULL, NULL, 0, 0,
      "Print token ids as a JSON array instead of text" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0,
      "Print one JSON object: format, note, text, ids" },
    { "reasoning", 0, ARG_TEXT, FIELD(reasoning), "LEVEL", NULL, 0, 0,
      "low, medium or high; on or off; beats the request's. Default: medium" },
    { "date", 0, ARG_TEXT, FIELD(date), "DATE", NULL, 0, 0,
      "The current date for harmony. Default: today; \"\" leaves it out" },
    { "no-cue", 0, ARG_FLAG, FIELD(no_cue), NULL, NULL, 0, 0,
      "Leave out the cue that makes the assistant speak" },
    { "parse", 0, ARG_FLAG, FIELD(parse), NULL, NULL, 0, 0,
      "The input is an answer: a JSON array of ids, or text with special tokens" },
    { "request", 0, ARG_TEXT, FIELD(request), "FILE", NULL, 0, 0,
      "With --parse: the request that was answered; its tools give argument types" },
};

static const arg_spec spec = {
    .usage = "moe-run render [-m] FILE [REQUEST.json] [options]",
    .about = "Turns chat messages into the exact prompt the model sees, special tokens visible.\n"
             "The request is {\"messages\": [...], \"tools\": [...]} as in the OpenAI API, from\n"
             "the file or from standard input; reasoning_effort is for harmony. --parse turns\n"
             "an answer into {\"reasoning\", \"content\", \"tool_calls\", \"finished\"}.",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 0, .max_operands = 1, .operands = "REQUEST.json",
};

/* ---- the request --------------------------------------------------------------------------- */

typedef struct request {
    json_t *root;
    json_t *call_names;                  /* id of each tool call so far -> name of its function */
    chat_message *messages;
    chat_call **calls;                   /* one array per message, or NULL */
    char **owned;                        /* texts that were put together */
    size_t n_owned, cap_owned;
    chat_request chat;
} request;

static void request_free(request *r)
{
    for (int i = 0; r->calls && i < r->chat.n_message; i++) mem_free(r->calls[i]);
    for (size_t i = 0; i < r->n_owned; i++) mem_free(r->owned[i]);
    mem_free(r->calls);
    mem_free(r->owned);
    mem_free(r->messages);
    json_decref(r->call_names);
    json_decref(r->root);
}

static int no_memory(err_ctx *err)
{
    return err_set(err, ERR_NOMEM, "request: out of memory");
}

/* Makes text live as long as the request; false, and frees it, if there is no memory for that. */
static bool request_keep(request *r, char *text)
{
    if (r->n_owned == r->cap_owned) {
        const size_t cap = r->cap_owned ? 2 * r->cap_owned : 16;
        char **p = mem_resize(r->owned, cap, sizeof *p);
        if (!p) {
            mem_free(text);
            return false;
        }
        r->owned = p;
        r->cap_owned = cap;
    }
    r->owned[r->n_owned++] = text;
    return true;
}

static str_view text_of(const json_t *v)
{
    return (str_view){ json_string_value(v), json_string_length(v) };
}

/* A string, null, nothing, or an array of {"type":"text","text":...}. */
static int read_content(str_view *out, request *r, const json_t *v, int i, err_ctx *err)
{
    size_t k, len = 0;
    json_t *part;
    char *dst, esc[64];

    *out = text_of(v);
    if (!v || json_is_null(v) || json_is_string(v)) return 0;
    if (!json_is_array(v))
        return err_set(err, ERR_FORMAT, "messages[%d]: content is neither a string nor an array "
                       "of parts", i);
    json_array_foreach(v, k, part) {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (json_is_string(type) && strcmp(json_string_value(type), "text") != 0)
            return err_set(err, ERR_UNSUPPORTED, "messages[%d]: content part %zu is of type "
                           "\"%s\", not text",
                           i, k, ESC(esc, text_of(type)));
        if (!json_is_string(text))
            return err_set(err, ERR_FORMAT, "messages[%d]: content part %zu has no text", i, k);
        len += json_string_length(text);
    }
    dst = mem_alloc(len);
    if (!dst || !request_keep(r, dst)) return no_memory(err);
    *out = (str_view){ dst, len };
    json_array_foreach(v, k, part) {
        const str_view s = text_of(json_object_get(part, "text"));
        memcpy(dst, s.ptr, s.len);
        dst += s.len;
    }
    return 0;
}

/* Arguments are JSON text; an object is turned into text. */
static int read_arguments(str_view *out, request *r, const json_t *v, int i, err_ctx *err)
{
    char *text;
    size_t len;
    int rc;

    if (json_is_null(v)) v = NULL;
    *out = v ? text_of(v) : str_from("{}");
    if (!v || json_is_string(v)) return 0;
    if (!json_is_object(v))
        return err_set(err, ERR_FORMAT, "messages[%d]: arguments of a tool call are neither text "
                       "nor an object", i);
    if ((rc = textbuf_json_text(&text, &len, v, err)) < 0) return rc;
    if (!request_keep(r, text)) return no_memory(err);
    *out = (str_view){ text, len };
    return 0;
}

static int read_calls(request *r, int i, const json_t *list, err_ctx *err)
{
    const size_t n = json_array_size(list);
    size_t k;
    json_t *call;
    int rc;

    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return err_set(err, ERR_FORMAT,
                                             "messages[%d]: tool_calls is not an array", i);
    if (n == 0) return 0;
    if (!(r->calls[i] = mem_array(n, sizeof **r->calls))) return no_memory(err);
    json_array_foreach(list, k, call) {
        const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name");
        if (!json_is_string(name))
            return err_set(err, ERR_FORMAT, "messages[%d]: tool_calls[%zu] has no function name",
                           i, k);
        const json_t *id = json_object_get(call, "id");
        if (json_is_string(id) &&
            json_object_set(r->call_names, json_string_value(id), (json_t *)name) < 0)
            return no_memory(err);
        r->calls[i][k].name = text_of(name);
        rc = read_arguments(&r->calls[i][k].arguments, r, json_object_get(f, "arguments"), i, err);
        if (rc < 0) return rc;
    }
    r->messages[i].calls = r->calls[i];
    r->messages[i].n_call = (int)n;
    return 0;
}

/* The function a result belongs to: named, or that of the call with its id. */
static int read_result_name(str_view *out, const request *r, const json_t *m, int i, err_ctx *err)
{
    const json_t *id = json_object_get(m, "tool_call_id");
    const json_t *name = json_object_get(r->call_names, json_string_value(id));
    char esc[64];

    *out = text_of(json_object_get(m, "name"));
    if (out->len || !json_is_string(id)) return 0;
    *out = text_of(name);
    if (name) return 0;
    return err_set(err, ERR_FORMAT, "messages[%d]: no tool call before it has the id \"%s\"", i,
                   ESC(esc, text_of(id)));
}

static int read_message(request *r, const json_t *messages, int i, err_ctx *err)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    static const char *const reasoning[] = { "reasoning_content", "reasoning", "thinking" };
    const json_t *v = json_array_get(messages, (size_t)i);
    chat_message *m = &r->messages[i];
    const char *role = json_string_value(json_object_get(v, "role"));
    char esc[64];
    size_t k = 0;
    int rc;

    if (!role) return err_set(err, ERR_FORMAT, "messages[%d]: no role", i);
    while (k < ARRAY_LEN(roles) && strcmp(role, roles[k]) != 0) k++;
    if (k == ARRAY_LEN(roles))
        return err_set(err, ERR_UNSUPPORTED, "messages[%d]: the role \"%s\" is none of system, "
                       "developer, user, assistant and tool", i, ESC(esc, str_from(role)));
    m->role = (chat_role)k;
    if ((rc = read_content(&m->content, r, json_object_get(v, "content"), i, err)) < 0) return rc;
    for (k = 0; k < ARRAY_LEN(reasoning) && !m->reasoning.len; k++)
        m->reasoning = text_of(json_object_get(v, reasoning[k]));
    if ((rc = read_calls(r, i, json_object_get(v, "tool_calls"), err)) < 0) return rc;
    return m->role == CHAT_TOOL ? read_result_name(&m->name, r, v, i, err) : 0;
}

static int read_effort(chat_request *req, const char *text, err_ctx *err)
{
    char esc[64];
    if (!text || chat_reasoning_from_name(&req->effort, &req->thinking, text)) return 0;
    return err_set(err, ERR_RANGE, "reasoning effort \"%s\" is none of low, medium, high, on and "
                   "off", ESC(esc, str_from(text)));
}

/* What messages call the input. */
static const char *input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* On failure *r may be half filled; request_free takes it anyway. */
static int request_read(request *r, const char *path, const render_options *o, err_ctx *err)
{
    char *text, esc[128];
    size_t len, n;
    json_error_t why;
    json_t *messages, *effort;
    int rc = read_whole_file(&text, &len, path, err);

    if (rc < 0) return rc;
    r->root = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    mem_free(text);
    if (!r->root)
        return err_set(err, ERR_FORMAT, "not JSON: line %d, column %d: %s", why.line, why.column,
                       ESC(esc, str_from(why.text)));
    messages = json_object_get(r->root, "messages");
    n = json_array_size(messages);
    if (!json_is_array(messages) || n > 1000000)
        return err_set(err, ERR_FORMAT, "the request has no array of messages");
    r->messages = mem_zalloc((n + 1) * sizeof *r->messages);
    r->calls = mem_zalloc((n + 1) * sizeof *r->calls);
    r->call_names = json_object();
    if (!r->messages || !r->calls || !r->call_names) return no_memory(err);
    r->chat.messages = r->messages;
    r->chat.n_message = (int)n;
    r->chat.tools = json_object_get(r->root, "tools");
    if (json_is_null(r->chat.tools)) r->chat.tools = NULL;
    r->chat.no_cue = o->no_cue;
    r->chat.date = str_from(o->date);
    effort = json_object_get(r->root, "reasoning_effort");
    if (effort && !json_is_string(effort) && !json_is_null(effort))
        return err_set(err, ERR_FORMAT, "reasoning_effort is not a string");
    rc = read_effort(&r->chat, o->reasoning ? o->reasoning : json_string_value(effort), err);
    for (int i = 0; rc == 0 && i < (int)n; i++) rc = read_message(r, messages, i, err);
    return rc;
}

/* ---- the prompt ---------------------------------------------------------------------------- */

typedef struct model_text {
    gguf *g;
    tokenizer *t;
    encoder *e;
    chat *c;
} model_text;

static void model_text_close(model_text *m)
{
    chat_free(m->c);
    encoder_free(m->e);
    tokenizer_free(m->t);
    gguf_close(m->g);
}

static int model_text_open(model_text *m, const char *path, err_ctx *err)
{
    int rc = model_name_open(&m->g, path, err);
    if (rc == 0) rc = tokenizer_create(&m->t, m->g, err);
    if (rc == 0) rc = encoder_create(&m->e, m->t, err);
    if (rc == 0) rc = chat_create(&m->c, m->g, m->t, err);
    return rc;
}

static void print_ids(const id_list *l)
{
    putchar('[');
    for (size_t i = 0; i < l->n; i++) printf(i ? ", %d" : "%d", (int)l->ids[i]);
    printf("]\n");
}

/* Text and ids in one object. The text is collected first: JSON strings come in one piece. */
static int print_json(const model_text *m, const id_list *l, err_ctx *err)
{
    json_t *ids = json_array(), *root = NULL;
    utf8_stream utf8 = { 0 };
    textbuf text = { 0 };
    bool ok = ids != NULL;

    for (size_t i = 0; i < l->n && ok; i++) {
        const str_view bytes = tokenizer_bytes(m->t, l->ids[i], true);
        char *at = textbuf_room(&text, 3 * (bytes.len + 3) + 3);
        ok = at && json_array_append_new(ids, json_integer(l->ids[i])) == 0;
        if (ok) text.len += utf8_stream_push(&utf8, at, bytes);
    }
    char *end = textbuf_room(&text, 3);
    if (end) text.len += utf8_stream_end(&utf8, end);
    if (ok && end)
        root = json_pack("{s:s, s:s?, s:s%, s:O}", "format", chat_format_name(m->c), "note",
                         chat_note(m->c), "text", text.ptr, text.len, "ids", ids);
    ok = console_json(root, 0);
    json_decref(ids);
    textbuf_free(&text);
    return ok ? 0 : no_memory(err);
}

static int render(const model_text *m, const render_options *o, const char *path, err_ctx *err)
{
    request r = { 0 };
    id_list l = { 0 };
    int rc = request_read(&r, path, o, err);

    if (rc == 0) rc = chat_render(&l, m->c, m->e, &r.chat, err);
    if (rc < 0) rc = err_prefix(err, rc, "%s", input_name(path));
    if (rc == 0 && o->json) {
        rc = print_json(m, &l, err);
    } else if (rc == 0 && o->ids) {
        print_ids(&l);
    } else if (rc == 0) {
        for (size_t i = 0; i < l.n; i++) {
            const str_view s = tokenizer_bytes(m->t, l.ids[i], true);
            fwrite(s.ptr, 1, s.len, stdout);
        }
    }
    ids_free(&l);
    request_free(&r);
    return rc;
}

/* ---- an answer ----------------------------------------------------------------------------- */

typedef struct answer {
    textbuf reasoning, content, arguments;
    json_t *calls;
    bool finished;
} answer;

static int gather(textbuf *b, str_view s)
{
    textbuf_put(b, s);
    return b->failed ? ERR_NOMEM : 0;
}

static int on_event(void *ctx, const chat_event *ev)
{
    answer *a = ctx;
    json_t *call, *text;

    switch (ev->kind) {
    case CHAT_REASONING: return gather(&a->reasoning, ev->text);
    case CHAT_ANSWER: return gather(&a->content, ev->text);
    case CHAT_CALL_BEGIN:
        a->arguments.len = 0;
        call = json_pack("{s:s, s:{s:s%}}", "type", "function", "function", "name", ev->name.ptr,
                         ev->name.len);
        return json_array_append_new(a->calls, call) < 0 ? ERR_NOMEM : 0;
    case CHAT_CALL_ARGS: return gather(&a->arguments, ev->text);
    case CHAT_CALL_END:
        call = json_object_get(json_array_get(a->calls, json_array_size(a->calls) - 1), "function");
        text = json_stringn(a->arguments.ptr ? a->arguments.ptr : "", a->arguments.len);
        return json_object_set_new(call, "arguments", text) < 0 ? ERR_NOMEM : 0;
    case CHAT_DONE:
        a->finished = true;
        break;
    }
    return 0;
}

/* A JSON array of integers is ids; anything else is text, less the newline an editor put at its
 * end. */
static int read_answer(id_list *l, const model_text *m, const char *path, err_ctx *err)
{
    char *text;
    size_t len, i;
    json_t *ids, *v;
    int rc = read_whole_file(&text, &len, path, err);

    if (rc < 0) return rc;
    ids = json_loadb(text, len, 0, NULL);
    if (json_is_array(ids)) {
        json_array_foreach(ids, i, v) {
            const json_int_t id = json_integer_value(v);
            if (!json_is_integer(v) || id < 0 || id >= tokenizer_n_token(m->t))
                rc = err_set(err, ERR_RANGE, "element %zu is not a token id below %d", i,
                             tokenizer_n_token(m->t));
            else rc = ids_push(l, (int32_t)id, err);
            if (rc < 0) break;
        }
    } else {
        if (len && text[len - 1] == '\n') len--;
        rc = encoder_encode(m->e, l, (str_view){ text, len }, true, err);
    }
    json_decref(ids);
    mem_free(text);
    return rc;
}

static int print_answer(const answer *a, err_ctx *err)
{
    json_t *root = json_pack("{s:s%, s:s%, s:O, s:b}",
                             "reasoning", a->reasoning.ptr ? a->reasoning.ptr : "",
                             a->reasoning.len,
                             "content", a->content.ptr ? a->content.ptr : "", a->content.len,
                             "tool_calls", a->calls, "finished", (int)a->finished);
    return console_json(root, 0) ? 0 : no_memory(err);
}

static int parse(const model_text *m, const render_options *o, const char *path, err_ctx *err)
{
    request r = { 0 };
    id_list l = { 0 };
    answer a = { .calls = json_array() };
    chat_parser *p = NULL;
    int rc = a.calls ? 0 : no_memory(err);

    if (rc == 0 && o->request && (rc = request_read(&r, o->request, o, err)) < 0)
        rc = err_prefix(err, rc, "%s", input_name(o->request));
    if (rc == 0 && (rc = read_answer(&l, m, path, err)) < 0)
        rc = err_prefix(err, rc, "%s", input_name(path));
    if (rc == 0) rc = chat_parser_create(&p, m->c, o->request ? &r.chat : NULL, err);
    for (size_t i = 0; rc == 0 && i < l.n; i++)
        rc = chat_parser_push(p, l.ids[i], on_event, &a, err);
    if (rc == 0) rc = chat_parser_end(p, on_event, &a, err);
    if (rc == ERR_NOMEM) rc = no_memory(err);
    if (rc >= 0) rc = print_answer(&a, err);
    chat_parser_free(p);
    json_decref(a.calls);
    textbuf_free(&a.reasoning);
    textbuf_free(&a.content);
    textbuf_free(&a.arguments);
    ids_free(&l);
    request_free(&r);
    return rc;
}

/* ---- the verb ------------------------------------------------------------------------------ */

int cmd_render(int argc, char **argv)
{
    render_options o = { 0 };
    const char *operand[1] = { NULL }, *path;
    int n_operand = 0, rc = args_parse(&spec, &o, operand, &n_operand, argc, argv);
    char today[32] = "";
    model_text m = { 0 };
    err_ctx err = { 0 };
    chat_request unused = { .n_message = 0 };

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (read_effort(&unused, o.reasoning, &err) < 0) {
        console_error("render: --reasoning: %s", err.msg);
        return 2;
    }
    if (o.date && !text_is_date(o.date)) {
        console_error("render: --date: '%s' is not a date such as 2026-01-31", o.date);
        return 2;
    }
    if (o.request && !o.parse) {
        console_error("render: --request belongs to --parse; the request to render is the operand");
        return 2;
    }
    if (!o.date) o.date = text_today(today, sizeof today);
    path = n_operand ? operand[0] : "-";
    if (model_text_open(&m, o.model, &err) < 0) {
        rc = console_fail(o.model, &err);
    } else {
        rc = o.parse ? parse(&m, &o, path, &err) : render(&m, &o, path, &err);
        if (rc < 0) {
            console_error("%s", err.msg);
            rc = 1;
        } else {
            if (chat_note(m.c)) console_note("%s", chat_note(m.c));
            rc = console_finish();
        }
    }
    model_text_close(&m);
    return rc;
}
