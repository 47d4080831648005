/* render.c - moe-run render: an OpenAI request to the exact prompt, and an answer to its parts.
 *
 * Requests are read by the server's own parser (cli/serve/api.h), so a prompt is the one that
 * moe-serve would compute. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/chat/conversation.h"
#include "cli/console.h"
#include "cli/model_name.h"
#include "cli/serve/api.h"
#include "engine/text/chat/chat.h"

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
      "low, medium or high; on or off. Default: the request's reasoning_effort, else medium" },
    { "date", 0, ARG_TEXT, FIELD(date), "DATE", NULL, 0, 0,
      "gpt-oss: date in the system message; \"\": none. Default: today" },
    { "no-cue", 0, ARG_FLAG, FIELD(no_cue), NULL, NULL, 0, 0,
      "Leave out the tokens that open the assistant's turn" },
    { "parse", 0, ARG_FLAG, FIELD(parse), NULL, NULL, 0, 0,
      "The input is an answer: a JSON array of ids, or text with special tokens" },
    { "request", 0, ARG_TEXT, FIELD(request), "FILE", NULL, 0, 0,
      "With --parse: the request that was answered, for the types of tool arguments" },
};

static const arg_spec spec = {
    .usage = "moe-run render [-m] FILE [REQUEST.json] [options]",
    .about =
        "Prints the prompt that the model gets for an OpenAI chat request, special tokens\n"
        "included. The request is {\"messages\": [...], \"tools\": [...]}, from a file or from\n"
        "standard input. --parse prints an answer as\n"
        "{\"reasoning\", \"content\", \"tool_calls\", \"finished\"}.",
    .options = options, .n_option = ARRAY_LEN(options), .max_operands = 1,
    .operands = "REQUEST.json",
};

static int no_memory(err_ctx *err)
{
    return err_set(err, ERR_NOMEM, "request: out of memory");
}

/* What messages call the input. */
static const char *input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* ---- the request --------------------------------------------------------------------------- */

static int check_effort(const char *text)
{
    chat_effort effort;
    chat_thinking thinking;
    return !text || chat_reasoning_from_name(&effort, &thinking, text) ? 0 : -1;
}

/* The options override the request's effort and date. */
static int read_request(api_request **out, const char *path, const render_options *o, err_ctx *err)
{
    api_error error;
    char *text;
    size_t len;
    int rc = read_whole_file(&text, &len, path, err);
    *out = NULL;
    if (rc < 0) return err_prefix(err, rc, "%s", input_name(path));
    rc = api_parse(out, API_CHAT, false, text, len, &error);
    mem_free(text);
    if (rc < 0)
        return err_set(err, ERR_FORMAT, "%s: %s", input_name(path), error.message);
    chat_request *req = &(*out)->chat;
    req->no_cue = o->no_cue;
    req->date = str_from(o->date);
    if (o->reasoning) chat_reasoning_from_name(&req->effort, &req->thinking, o->reasoning);
    return 0;
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

/* Text and ids in one object. */
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
    api_request *r;
    id_list l = { 0 };
    int rc = read_request(&r, path, o, err);

    if (rc == 0 && (rc = chat_render(&l, m->c, m->e, &r->chat, err)) < 0)
        rc = err_prefix(err, rc, "%s", input_name(path));
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
    api_request_free(r);
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

/* Ids from a JSON array of integers; any other input is text, without a newline at its end. */
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
    api_request *r = NULL;
    id_list l = { 0 };
    answer a = { .calls = json_array() };
    chat_parser *p = NULL;
    int rc = a.calls ? 0 : no_memory(err);

    if (rc == 0 && o->request) rc = read_request(&r, o->request, o, err);
    if (rc == 0 && (rc = read_answer(&l, m, path, err)) < 0)
        rc = err_prefix(err, rc, "%s", input_name(path));
    if (rc == 0) rc = chat_parser_create(&p, m->c, r ? &r->chat : NULL, err);
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
    api_request_free(r);
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

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (check_effort(o.reasoning) < 0) {
        console_error("--reasoning: '%s' is none of low, medium, high, on and off", o.reasoning);
        return 2;
    }
    if (o.date && !text_is_date(o.date)) {
        console_error("--date: '%s' is not a date such as 2026-01-31", o.date);
        return 2;
    }
    if (o.request && !o.parse) {
        console_error("--request needs --parse; a request to render is an operand");
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
