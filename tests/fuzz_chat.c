/* fuzz_chat.c - fuzz target: chats in all formats: templates, tools and calls that anybody may
 * send, and what a model may answer.
 *
 * The input is a byte that chooses the format, one of flags, and three texts with a byte 0x1E
 * between them: tools as JSON, the arguments of a call that was made before, the answer. A fourth,
 * if there is one, is a template that is read in place of the format's own. Arguments of a call in
 * the answer must come out as a JSON object. Runs under libFuzzer, AFL++ or tests/fuzz_main.c. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat/chat_grammar.h"
#include "tests/make_chat.h"
#include "tests/test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEPARATOR = 0x1E, ON = 1, OFF = 2, NO_CUE = 4, HISTORY = 8, HELD = 16, MUST = 32 };

static chat *with[4];                    /* ChatML, which the small vocabularies have no kind of */
static const char *const chatml[] = { t_qwen3, t_coder, t_qwen35, t_qwen36 };

/* Once: a chat of every format with a small vocabulary. */
static void open_all(void)
{
    static const char *const no_arguments[] = { "fuzz_chat" };
    static bool open;
    err_ctx err;
    if (open) return;
    test_begin("fuzz", 1, (char **)no_arguments);
    if (!chats_open_small()) abort();
    for (size_t i = 0; i < ARRAY_LEN(chatml); i++) {
        char *text = fill_template(chatml[i], SENTENCE_BEFORE, "\n" SENTENCE_AFTER, "");
        if (make_chat(&with[i], CHATML_TOKENS, text, &err) < 0) abort();
        mem_free(text);
    }
    open = true;
}

/* The text up to the next separator, which is taken off with it. */
static str_view take(str_view *rest)
{
    const char *end = rest->len ? memchr(rest->ptr, SEPARATOR, rest->len) : NULL;
    const str_view s = { rest->ptr, end ? (size_t)(end - rest->ptr) : rest->len };
    const size_t used = end ? s.len + 1 : s.len;
    *rest = (str_view){ rest->len ? rest->ptr + used : rest->ptr, rest->len - used };
    return s;
}

typedef struct calls { textbuf args; bool within; } calls;

static int look(void *ctx, const chat_event *ev)
{
    calls *c = ctx;
    json_t *v;
    switch (ev->kind) {
    case CHAT_CALL_BEGIN:
        if (c->within || ev->name.len == 0) abort();
        c->within = true;
        c->args.len = 0;
        break;
    case CHAT_CALL_ARGS:
        if (!c->within) abort();
        textbuf_put(&c->args, ev->text);
        break;
    case CHAT_CALL_END:
        v = json_loadb(c->args.ptr, c->args.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        if (!c->within || !json_is_object(v)) abort();
        json_decref(v);
        c->within = false;
        break;
    default:
        if (c->within) abort();
    }
    return 0;
}

static void answer(const chat *c, encoder *e, const chat_request *req, str_view text)
{
    id_list ids = { 0 };
    calls seen = { { 0 }, false };
    chat_parser *p = NULL;
    err_ctx err;
    int rc = encoder_encode(e, &ids, text, true, &err);
    if (rc == 0) rc = chat_parser_create(&p, c, req, &err);
    for (size_t i = 0; i < ids.n && rc == 0; i++)
        rc = chat_parser_push(p, ids.ids[i], look, &seen, &err);
    if (rc == 0) chat_parser_end(p, look, &seen, &err);
    chat_parser_free(p);
    textbuf_free(&seen.args);
    ids_free(&ids);
}

static void format(const chat *c, encoder *e, int flags, const json_t *tools, str_view args,
                   str_view text)
{
    const chat_call call = { str_from("f"), args };
    const chat_message messages[] = {
        { .role = CHAT_SYSTEM, .content = str_from("be brief") },
        { .role = CHAT_USER, .content = text },
        { .role = CHAT_ASSISTANT, .content = text, .reasoning = args, .calls = &call, .n_call = 1 },
        { .role = CHAT_TOOL, .content = text },
        { .role = CHAT_ASSISTANT, .content = args },
    };
    const chat_request req = {
        .messages = messages, .n_message = flags & HISTORY ? 5 : 2, .tools = tools,
        .thinking = flags & ON ? CHAT_THINK_ON : flags & OFF ? CHAT_THINK_OFF : CHAT_THINK_DEFAULT,
        .no_cue = flags & NO_CUE,
        .calls = flags & MUST ? CHAT_CALLS_MUST : flags & HELD ? CHAT_CALLS_HELD : CHAT_CALLS_FREE,
    };
    id_list prompt = { 0 };
    grammar *form = NULL;
    err_ctx err;
    chat_render(&prompt, c, e, &req, &err);
    ids_free(&prompt);
    if (tools && req.calls != CHAT_CALLS_FREE) chat_grammar(&form, c, &req, NULL, false, &err);
    grammar_free(form);
    answer(c, e, &req, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { N_SMALL = N_KIND - GLM, N_CHATML = ARRAY_LEN(chatml) };
    str_view rest = { (const char *)data + 2, size - 2 };
    chat *other = NULL;
    err_ctx err;
    open_all();
    if (size < 2) return 0;
    const int which = data[0] % (N_SMALL + N_CHATML), kind = GLM + which;
    const int v = which < N_SMALL ? kinds[kind].vocab : CHATML_TOKENS;
    const str_view tools_text = take(&rest), args = take(&rest), text = take(&rest);
    json_t *tools = json_loadb(tools_text.ptr, tools_text.len, JSON_ALLOW_NUL, NULL);
    if (!json_is_array(tools)) {
        json_decref(tools);
        tools = NULL;
    }
    if (rest.len) {
        char *tmpl = mem_zalloc(rest.len + 1);
        if (tmpl) memcpy(tmpl, rest.ptr, rest.len);
        if (!tmpl || make_chat(&other, v, tmpl, &err) < 0) other = NULL;
        mem_free(tmpl);
    }
    format(other ? other : which < N_SMALL ? chats[kind] : with[which - N_SMALL], vocab[v].e,
           data[1], tools, args, text);
    chat_free(other);
    json_decref(tools);
    return 0;
}
