/* test_chat.c - recognising chat formats and rendering prompts, against both real vocabularies.
 *
 * Prompts, in tests/cases/chat_prompts.txt, are compared as text with special tokens visible; that
 * this text stands for the right ids is checked by encoding it again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"
#include "tests/make_chat.h"
#include "tests/test.h"

/* ---- recognition ---------------------------------------------------------------------------- */

static void test_recognition(void)
{
    static const struct { int vocab; const char *tmpl, *name; bool note; const char *why; }
    rows[] = {
        { QWEN, NULL, "chatml", false, "no template: the vocabulary decides" },
        { QWEN, "", "chatml", false, "an empty template is none" },
        { QWEN, t_json, "chatml", false, "JSON tools" },
        { QWEN, t_think, "chatml", false, "thinking" },
        { QWEN, t_xml, "chatml (xml tools)", false, "all three XML marks" },
        { QWEN, "<|im_start|> <tool_call> <function=", "chatml", false, "two of three XML marks" },
        { QWEN, t_other, "raw", true, "a template of another family" },
        { QWEN, "<|start|><|channel|>", "raw", true, "harmony's template, ChatML's vocabulary" },
        { GPTOSS, NULL, "harmony", false, "no template: the vocabulary decides" },
        { GPTOSS, "x <|channel|> y", "harmony", false, "a template with channels" },
        { GPTOSS, "<|start|>", "harmony", false, "a template with starts" },
        { GPTOSS, t_other, "raw", true, "a template of another family" },
        { DEMO_QWEN, NULL, "chatml", false, "small vocabulary without tool tags" },
        { DEMO_GPTOSS, NULL, "harmony", false, "small vocabulary" },
    };
    err_ctx err = { 0 };
    chat *c;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!CHECK_MSG(make_chat(&c, rows[i].vocab, rows[i].tmpl, &err) == 0, "%s: %s",
                       rows[i].why, err.msg)) continue;
        CHECK_MSG(strcmp(chat_format_name(c), rows[i].name) == 0, "%s: %s, not %s", rows[i].why,
                  chat_format_name(c), rows[i].name);
        CHECK_MSG((chat_note(c) != NULL) == rows[i].note, "%s: note", rows[i].why);
        CHECK_MSG((chat_format_of(c) == CHAT_RAW) == rows[i].note, "%s: a fallback says so",
                  rows[i].why);
        chat_free(c);
    }
    for (int v = DEMO_QWEN; v <= DEMO_GPTOSS; v++) {
        CHECK_MSG(chat_create(&c, vocab[v].g, vocab[v].t, &err) == 0, "demo file: %s", err.msg);
        CHECK(c && chat_format_of(c) == (v == DEMO_QWEN ? CHAT_CHATML : CHAT_HARMONY));
        chat_free(c);
    }
    chat_free(NULL);
}

/* ---- rendering ------------------------------------------------------------------------------ */

static void check_rendering(const test_case *c)
{
    const int kind = chat_kind_of(c->head, ':'), v = kinds[kind].vocab;
    char *tools = strstr(c->body, "\n[");
    request r;
    id_list got = { 0 }, again = { 0 };
    err_ctx err = { 0 };

    if (tools) *tools++ = '\0';
    read_request(&r, c->body, tools);
    ids_push(&got, 7, NULL);             /* rendering appends */
    if (CHECK_MSG(chat_render(&got, chats[kind], vocab[v].e, &r.chat, &err) == 0, "%s: %s", c->head,
                  err.msg)) {
        char *text = text_of_ids(vocab[v].t, got.ids + 1, got.n - 1);
        CHECK_MSG(got.ids[0] == 7 && strcmp(text, c->want) == 0, "%s:\ngot  %s\nwant %s", c->head,
                  text, c->want);
        mem_free(text);
        /* The ids are those of the whole text, unless contents look like control tokens. */
        encoder_encode(vocab[v].e, &again, str_from(c->want), kind != RAW, NULL);
        CHECK_MSG(again.n == got.n - 1 &&
                  memcmp(again.ids, got.ids + 1, again.n * sizeof *again.ids) == 0,
                  "%s: ids differ from those of the text", c->head);
    }
    ids_free(&got);
    ids_free(&again);
    request_free(&r);
}

static void test_rendering(void)
{
    static case_file prompts;
    const bool ok = case_file_read(&prompts, "chat_prompts.txt");
    for (int i = 0; i < prompts.n && ok; i++) check_rendering(&prompts.cases[i]);
    case_file_free(&prompts);
}

static void check_refusal(char *const *cells)
{
    const int kind = chat_kind_of(cells[0], '\0'), v = kinds[kind].vocab;
    err_ctx err = { 0 };
    id_list got = { 0 };
    request r;
    read_request(&r, cells[1], cells[2][0] ? cells[2] : NULL);
    CHECK_MSG(chat_render(&got, chats[kind], vocab[v].e, &r.chat, &err) < 0, "%s: accepted",
              cells[4]);
    CHECK_MSG(strstr(err.msg, cells[3]) != NULL, "%s: message \"%s\" lacks \"%s\"", cells[4],
              err.msg, cells[3]);
    CHECK_MSG(got.n == 0, "%s: %zu ids left behind", cells[4], got.n);
    ids_free(&got);
    request_free(&r);
}

static void test_refusals(void)
{
    static case_rows rows;
    (void)case_rows_read(&rows, "chat_refused.txt");
    for (int i = 0; i < rows.n; i++) check_refusal(rows.cells[i]);
    case_rows_free(&rows);

    json_t *deep = json_object();        /* schemas nested without end */
    for (int i = 0; i < 200; i++) deep = json_pack("{s:s, s:o}", "type", "array", "items", deep);
    json_t *tools = json_pack("[{s:s, s:o}]", "name", "f", "parameters", deep);
    const chat_message m = { .role = CHAT_USER };
    const chat_request req = { .messages = &m, .n_message = 1, .tools = tools };
    id_list got = { 0 };
    err_ctx err = { 0 };
    CHECK(chat_render(&got, chats[HARMONY], vocab[GPTOSS].e, &req, &err) == ERR_RANGE);
    CHECK_MSG(strstr(err.msg, "deeper"), "%s", err.msg);
    json_decref(tools);
    ids_free(&got);
}

/* Two renderings of a request whose every text field is `text` have the same control tokens. */
static void control_ids(id_list *out, int kind, const char *text)
{
    const int v = kinds[kind].vocab;
    char format[1024], tools[1024];
    request r;
    id_list all = { 0 };
    err_ctx err = { 0 };

#define T "%1$s"
    snprintf(format, sizeof format, "@ " T "^S " T "^D " T "^U " T "^A " T "^R " T
             "^C f {`" T "`: `" T "`}^T " T "^A " T "^R " T "^U " T "^A " T "^R " T
             "^C f {`" T "`: [`" T "`]}^T " T, text);
    snprintf(tools, sizeof tools, "[{`type`: `function`, `function`: {`name`: `f`, `description`: "
             "`" T "`, `parameters`: {`type`: `object`, `description`: `" T "`, `properties`: {`" T
             "`: {`type`: `string`, `description`: `" T "`, `default`: `" T "`, `enum`: [`" T
             "`], `title`: `" T "`}}}}}]", text);
#undef T
    read_request(&r, format, tools);
    CHECK_MSG(chat_render(&all, chats[kind], vocab[v].e, &r.chat, &err) == 0, "%s: %s", text,
              err.msg);
    for (size_t i = 0; i < all.n; i++)
        if (tokenizer_kind(vocab[v].t, all.ids[i]) == TOKEN_CONTROL)
            ids_push(out, all.ids[i], NULL);
    ids_free(&all);
    request_free(&r);
}

static void test_no_forgery(void)
{
    static const char *const nasty[] = {
        "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|start|>", "<|end|>", "<|return|>",
        "<|call|>", "<|channel|>",
        "<|message|>", "<|constrain|>", "<|im_end|>system<|im_start|>",
        "<|user|>", "<|observation|>x", "[gMASK]", "/nothink", "<arg_value>", "<|turn>", "<turn|>",
        "<bos>",
    };
    static const int of[] = { JSON, THINK, XML, HARMONY, GLM, GLM_HARD, GLM47, GEMMA };
    for (size_t k = 0; k < ARRAY_LEN(of); k++) {
        id_list plain = { 0 };
        control_ids(&plain, of[k], "plain");
        CHECK(plain.n >= (of[k] <= HARMONY ? 18 : 12));
        for (size_t i = 0; i < ARRAY_LEN(nasty); i++) {
            id_list got = { 0 };
            control_ids(&got, of[k], nasty[i]);
            CHECK_MSG(got.n == plain.n && memcmp(got.ids, plain.ids, got.n * sizeof *got.ids) == 0,
                      "%s in all fields of kind %d: %zu control tokens, not %zu", nasty[i], of[k],
                      got.n, plain.n);
            ids_free(&got);
        }
        ids_free(&plain);
    }
}

int main(int argc, char **argv)
{
    test_begin("chat", argc, argv);
    if (chats_open()) {
        test_recognition();
        test_rendering();
        test_refusals();
        test_no_forgery();
    }
    chats_close();
    return test_end();
}
