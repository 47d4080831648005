/* fuzz_request.c - fuzz target: bodies of requests to the server.
 *
 * Every interface reads the input. What it accepts becomes prompts in both chat formats, the form
 * of the answer, and an answer in the interface's own words, which must be JSON, or events of it;
 * what it refuses becomes an error body, which must be JSON, too. Runs under libFuzzer, AFL++ or
 * tests/fuzz_main.c, from the root of the tree: the formats are those of the demo models. */
#include <stdlib.h>
#include <string.h>

#include "cli/serve/api.h"
#include "engine/text/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_FORMAT = 2, API_COUNT = API_OLLAMA_GENERATE + 1, N_WAY };

static struct format {
    gguf *file;
    tokenizer *tok;
    encoder *enc;
    chat *format;
} formats[N_FORMAT];

static void close_formats(void)
{
    for (int i = 0; i < N_FORMAT; i++) {
        chat_free(formats[i].format);
        encoder_free(formats[i].enc);
        tokenizer_free(formats[i].tok);
        gguf_close(formats[i].file);
    }
}

static void open_formats(void)
{
    static const char *const paths[N_FORMAT] = { "tests/models/demo-qwen3next-mtp.gguf",
                                                 "tests/models/demo-gptoss-MXFP4.gguf" };
    for (int i = 0; i < N_FORMAT; i++) {
        struct format *f = &formats[i];
        err_ctx err;
        if (gguf_open(&f->file, paths[i], &err) < 0 ||
            tokenizer_create(&f->tok, f->file, &err) < 0 ||
            encoder_create(&f->enc, f->tok, &err) < 0 ||
            chat_create(&f->format, f->file, f->tok, &err) < 0)
            abort();
    }
    atexit(close_formats);
}

/* ---- what comes of it ------------------------------------------------------------------------ */

static bool is_json(const char *text, size_t n)
{
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    json_decref(v);
    return v != NULL;
}

static void try_prompts(const api_request *r)
{
    for (int i = 0; i < N_FORMAT; i++) {
        const struct format *f = &formats[i];
        id_list ids = { 0 };
        err_ctx err;
        const api_prompt *p = r->n_prompts > 0 && r->prompts[0].text ? r->prompts : NULL;
        const int rc = p ? encoder_encode(f->enc, &ids, (str_view){ p->text, p->n_text }, false,
                                          &err)
                         : chat_render(&ids, f->format, f->enc, &r->chat, &err);
        for (size_t k = 0; rc == 0 && k < ids.n; k++)
            if (ids.ids[k] < 0 || ids.ids[k] >= tokenizer_n_token(f->tok)) abort();
        ids_free(&ids);
    }
}

static void try_form(const api_request *r)
{
    grammar *g = NULL;
    err_ctx err;
    if (r->form == FORM_SCHEMA && grammar_from_schema(&g, r->schema, r->strict, &err) < 0 && g)
        abort();
    grammar_free(g);
}

/* Each line of a stream is JSON, after "data: " or "event: ..." where the interface has these. */
static void check_lines(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        size_t len = end ? (size_t)(end - line) : n - at;
        at += len + 1;
        if (len == 0 || line[0] == ':' || !strncmp(line, "event: ", 7)) continue;
        if (len >= 6 && !strncmp(line, "data: ", 6)) line += 6, len -= 6;
        if (len == 6 && !strncmp(line, "[DONE]", 6)) continue;
        if (!is_json(line, len)) abort();
    }
}

static int collect(void *ctx, const char *bytes, size_t n)
{
    textbuf_put(ctx, (str_view){ bytes, n });
    return 0;
}

static void try_answer(const api_request *r, int way)
{
    const api_names names = { .model = "demo", .id = "1", .created = 1 };
    const api_usage u = { .n_prompt = 3, .n_answer = 2 };
    const chat_event events[] = {
        { .kind = CHAT_REASONING, .text = str_from("so\n") },
        { .kind = CHAT_ANSWER, .text = str_from("\"it\" \\ is \xc3\xa9") },
    };
    textbuf out = { 0 };
    api_error error;
    api_writer *w;
    if (api_writer_create(&w, r, &names, collect, &out) < 0) abort();
    int rc = api_writer_begin(w, &u);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(events); i++) rc = api_writer_event(w, &events[i]);
    if (rc == 0) rc = api_writer_idle(w);
    if (way % 3 > 0) {
        if (rc == 0) rc = api_writer_end(w, way % 3 == 1 ? ANSWER_STOP : ANSWER_LENGTH, NULL, &u);
    } else if (rc == 0) {
        api_error_make(&error, API_BROKEN, r->kind, "broken");
        rc = api_writer_fail(w, &error);
    }
    if (rc < 0) abort();
    if (r->stream) check_lines(out.ptr, out.len);
    else if (!is_json(out.ptr, out.len)) abort();
    api_writer_free(w);
    textbuf_free(&out);
}

static void try_error(const api_error *error, api_kind kind)
{
    char *body = api_error_body(error, kind, "1");
    if (error->status < 400 || !error->message[0] || !body || !is_json(body, strlen(body))) abort();
    mem_free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!formats[0].format) open_formats();
    for (int way = 0; way < N_WAY; way++) {
        const api_kind kind = way == API_COUNT ? API_MESSAGES : (api_kind)way;
        api_request *r = NULL;
        api_error error = { 0 };
        const bool count = way == API_COUNT;
        const int rc = api_parse(&r, count ? API_MESSAGES : kind, count, (const char *)data, size,
                                 &error);
        if ((rc == 0) != (r != NULL)) abort();
        if (!r) {
            try_error(&error, kind);
            continue;
        }
        try_prompts(r);
        try_form(r);
        if (way != API_COUNT) try_answer(r, way + (int)size);
        api_request_free(r);
    }
    return 0;
}
