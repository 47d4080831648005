/* test_chat_formats.c - prompts of every family against what its own template writes.
 *
 * The expected texts were made by executing the models' templates with Jinja (tools/chat_cases.py).
 * The templates themselves are not here: each family is recognised from a short one with the same
 * marks and sentences. With MOE_TEST_TEMPLATES=FOLDER the real ones are read from there instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/textbuf_json.h"
#include "tests/make_chat.h"
#include "tests/test.h"
#include "tests/tokenizer_checks.h"

static const struct { const char *name; int vocab; const char *tmpl, *format; } families[] = {
    { "Qwen-Qwen3-0.6B", QWEN, t_qwen3, "chatml" },
    { "Qwen3-Coder", QWEN, t_coder, "chatml (xml tools)" },
    { "Qwen3.5-4B", QWEN, t_qwen35, "chatml (xml tools)" },
    { "Qwen3.6", QWEN, t_qwen36, "chatml (xml tools)" },
    { "GLM-4.6", GLM_TOKENS, t_glm, "glm" },
    { "GLM-4.6", GLM_CONTROL, t_glm, "glm" },
    { "GLM-4.7-Flash", GLM_TOKENS, t_glm47, "glm" },
    { "google-gemma-4-31B-it", GEMMA_TOKENS, t_gemma, "gemma" },
    { "Mixtral-8x7B", MISTRAL_TOKENS, t_mistral, "mistral" },
    { "Mistral-old", MISTRAL_TOKENS, t_mistral_old, "mistral" },
    { "OLMoE-0125", OLMO_TOKENS, t_olmoe, "tulu" },
    { "OLMo-7B", OLMO_TOKENS, t_olmo, "tulu" },
};

/* ---- requests ------------------------------------------------------------------------------- */

enum { MOST_MESSAGES = 8, MOST_CALLS = 4 };

typedef struct golden_request {
    chat_message messages[MOST_MESSAGES];
    chat_call calls[MOST_MESSAGES][MOST_CALLS];
    char *arguments[MOST_MESSAGES * MOST_CALLS];
    int n_arguments;
    chat_request chat;
} golden_request;

static str_view text_at(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return (str_view){ json_string_value(v), json_string_length(v) };
}

static void read_calls(golden_request *r, int i, const json_t *list)
{
    size_t k, len;
    json_t *call;
    json_array_foreach(list, k, call) {
        const json_t *f = json_object_get(call, "function");
        char **text = &r->arguments[r->n_arguments++];
        CHECK(textbuf_json_text(text, &len, json_object_get(f, "arguments"), NULL) == 0);
        r->calls[i][k] = (chat_call){ text_at(f, "name"), { *text, len } };
    }
    r->messages[i].calls = r->calls[i];
    r->messages[i].n_call = (int)json_array_size(list);
}

/* The name of the function whose call a result answers. */
static str_view caller(const json_t *messages, str_view id)
{
    size_t i, k;
    json_t *m, *call;
    json_array_foreach(messages, i, m)
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
            if (str_eq(text_at(call, "id"), id))
                return text_at(json_object_get(call, "function"), "name");
    return (str_view){ NULL, 0 };
}

static bool read_golden(golden_request *r, const json_t *from)
{
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    const json_t *messages = json_object_get(from, "messages");
    const json_t *thinking = json_object_get(from, "enable_thinking");
    const json_t *tools = json_object_get(from, "tools");
    size_t i;
    json_t *m;
    memset(r, 0, sizeof *r);
    if (!CHECK(json_array_size(messages) <= MOST_MESSAGES)) return false;
    json_array_foreach(messages, i, m) {
        chat_message *to = &r->messages[i];
        size_t role = 0;
        while (role < ARRAY_LEN(roles) && !str_is(text_at(m, "role"), roles[role])) role++;
        to->role = (chat_role)role;
        to->content = text_at(m, "content");
        to->reasoning = text_at(m, "reasoning_content");
        to->name = caller(messages, text_at(m, "tool_call_id"));
        read_calls(r, (int)i, json_object_get(m, "tool_calls"));
    }
    r->chat = (chat_request){
        .messages = r->messages, .n_message = (int)json_array_size(messages),
        .tools = json_is_array(tools) ? tools : NULL,
        .no_cue = json_is_false(json_object_get(from, "cue")),
        .thinking = json_is_true(thinking) ? CHAT_THINK_ON
                  : json_is_false(thinking) ? CHAT_THINK_OFF : CHAT_THINK_DEFAULT,
    };
    return true;
}

static void golden_free(golden_request *r)
{
    for (int i = 0; i < r->n_arguments; i++) mem_free(r->arguments[i]);
}

/* ---- rendering ------------------------------------------------------------------------------ */

/* Where contents hold the text of a control token, the tokens of the whole text are others. Where
 * tags are control tokens, that is so of sentences about them, too. */
static bool same_ids_expected(int v, const char *want)
{
    return strstr(want, "Q/nothink") == NULL &&
           (v != GLM_CONTROL || (!strstr(want, "# Tools") && !strstr(want, "<tool_response>r<")));
}

static void check_case(const chat *c, int v, const json_t *line)
{
    const char *name = json_string_value(json_object_get(line, "template"));
    const char *why = json_string_value(json_object_get(line, "case"));
    const char *want = json_string_value(json_object_get(line, "want"));
    id_list got = { 0 }, again = { 0 };
    err_ctx err = { 0 };
    golden_request r;

    if (!read_golden(&r, json_object_get(line, "request"))) return;
    const int rc = chat_render(&got, c, vocab[v].e, &r.chat, &err);
    if (!want) {
        CHECK_MSG(rc < 0, "%s, %s: accepted, but the template says: %s", name, why,
                  json_string_value(json_object_get(line, "error")));
    } else if (CHECK_MSG(rc == 0, "%s, %s: %s", name, why, err.msg)) {
        char *text = text_of_ids(vocab[v].t, got.ids, got.n);
        CHECK_MSG(strcmp(text, want) == 0, "%s, %s (cue %d, thinking %d):\ngot  %s\nwant %s", name,
                  why, !r.chat.no_cue, (int)r.chat.thinking, text, want);
        mem_free(text);
        encoder_encode(vocab[v].e, &again, str_from(want), true, NULL);
        CHECK_MSG(!same_ids_expected(v, want) ||
                  (again.n == got.n && memcmp(again.ids, got.ids, got.n * sizeof *got.ids) == 0),
                  "%s, %s: ids differ from those of the text", name, why);
    }
    ids_free(&got);
    ids_free(&again);
    golden_free(&r);
}

/* The real template, or ours with the sentences of the first line. */
static int make_family(chat **out, size_t f, const json_t *sentences, err_ctx *err)
{
    const char *folder = getenv("MOE_TEST_TEMPLATES");
    const bool chatml = families[f].vocab == QWEN;
    char path[512], *tmpl;
    if (folder) {
        size_t bytes;
        test_path(path, sizeof path, "%s/%s.jinja", folder, families[f].name);
        char *file = test_read_file(path, &bytes);
        if (!file) return -1;
        tmpl = mem_strdup_n(file, bytes);
        mem_free(file);
    } else {
        /* A newline on either side of the list belongs to it in ChatML. */
        const str_view intro = text_at(sentences, "intro"), outro = text_at(sentences, "outro");
        char *before = mem_strdup_n(intro.ptr ? intro.ptr : "", intro.len);
        if (chatml && str_ends(intro, "\n")) before[intro.len - 1] = '\0';
        tmpl = fill_template(families[f].tmpl, before, !outro.ptr ? "" : chatml ? outro.ptr :
                             outro.ptr + 1, sentences ? text_at(sentences, "system").ptr : "");
        mem_free(before);
    }
    const int rc = make_chat(out, families[f].vocab, tmpl, err);
    mem_free(tmpl);
    return rc;
}

static void check_family(size_t f, const json_t *lines)
{
    const char *name = families[f].name;
    const json_t *sentences = NULL;
    err_ctx err = { 0 };
    chat *c = NULL;
    size_t i;
    json_t *line;
    int n = 0;

    json_array_foreach(lines, i, line)
        if (str_is(text_at(line, "template"), name) && json_object_get(line, "intro"))
            sentences = line;
    if (!CHECK_MSG(make_family(&c, f, sentences, &err) == 0, "%s: %s", name, err.msg)) return;
    CHECK_MSG(strcmp(chat_format_name(c), families[f].format) == 0 && !chat_note(c),
              "%s: recognised as %s, not %s", name, chat_format_name(c), families[f].format);
    json_array_foreach(lines, i, line) {
        if (!str_is(text_at(line, "template"), name) || line == sentences) continue;
        check_case(c, families[f].vocab, line);
        n++;
    }
    CHECK_MSG(n >= 20, "%s: %d cases", name, n);
    chat_free(c);
}

static void test_goldens(void)
{
    char path[512], what[600];
    const char *at = NULL;
    size_t bytes;
    int n = 0;
    test_path(path, sizeof path, "%s/chat/cases.jsonl", test_unpacked());
    char *text = test_read_file(path, &bytes);
    json_t *lines = json_array(), *line;
    while (text && (line = json_line(&at, &n, text, path, what)))
        json_array_append_new(lines, line);
    for (size_t f = 0; f < ARRAY_LEN(families) && text; f++) check_family(f, lines);
    json_decref(lines);
    mem_free(text);
}

/* ---- recognition ---------------------------------------------------------------------------- */

static void test_recognition(void)
{
    static const struct { int vocab; const char *tmpl, *format, *why; } rows[] = {
        { GLM_TOKENS, NULL, "raw", "no template: the tokens alone are older models', too" },
        { GLM_TOKENS, "[gMASK]<sop><|user|>\n{{ m }}<|assistant|>", "raw", "GLM-4" },
        { GLM_TOKENS, t_gemma, "raw", "another family's template" },
        { QWEN, t_glm, "raw", "another family's vocabulary" },
        { GEMMA_TOKENS, "<start_of_turn>user\n", "raw", "Gemma 3" },
        { MISTRAL_TOKENS, t_other, "raw", "[INST] without an end" },
        { MISTRAL_TOKENS, "{{ '[INST] <<SYS>>' + ' [/INST]' + eos_token }}", "raw", "Llama 2" },
        { MISTRAL_TOKENS, "{{ '[INST] ' + '[AVAILABLE_TOOLS]' + ' [/INST]' + eos_token }}", "raw",
          "a later Mistral" },
        { OLMO_TOKENS, "{{ '<|user|>\n' + message['content'] + eos_token + '\n' }}"
          "{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}", "raw",
          "Zephyr: users' turns end, too" },
        { OLMO_TOKENS, "{{ '<|user|>\n' + c + '<|end|>\n' }}"
          "{{ '<|assistant|>\n' + c + eos_token }}", "raw", "Phi" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        err_ctx err = { 0 };
        chat *c;
        char *tmpl = rows[i].tmpl ? fill_template(rows[i].tmpl, SENTENCE_BEFORE "\n",
                                                  SENTENCE_AFTER, "") : NULL;
        if (CHECK_MSG(make_chat(&c, rows[i].vocab, tmpl, &err) == 0, "%s: %s", rows[i].why,
                      err.msg)) {
            CHECK_MSG(strcmp(chat_format_name(c), rows[i].format) == 0 && chat_note(c),
                      "%s: %s", rows[i].why, chat_format_name(c));
            chat_free(c);
        }
        mem_free(tmpl);
    }
}

/* A template that ends anywhere is one of some format or of none. */
static void test_cut_templates(void)
{
    for (size_t f = 0; f < ARRAY_LEN(families); f++) {
        char *tmpl = fill_template(families[f].tmpl, SENTENCE_BEFORE "\n", SENTENCE_AFTER, "s");
        const size_t n = strlen(tmpl);
        for (size_t len = n; len-- > 0; ) {
            char *cut = mem_strdup_n(tmpl, len);         /* in a block of its size */
            err_ctx err = { 0 };
            chat *c = NULL;
            if (make_chat(&c, families[f].vocab, cut, &err) != 0)
                CHECK_MSG(false, "%s, %zu bytes: %s", families[f].name, len, err.msg);
            chat_free(c);
            mem_free(cut);
        }
        mem_free(tmpl);
    }
}

static void test_refusals(void)
{
    static const struct { int kind; const char *format, *tools, *part, *why; } rows[] = {
        { QWEN35, "U x^S y", NULL, "messages[1]", "system comes first" },
        { GLM, "A ^C f [1]", NULL, "messages[0]: the arguments of f", "an array" },
        { GEMMA, "A ^C f {", NULL, "not a JSON object", "broken JSON" },
        { GEMMA, "U x^T y", NULL, "messages[1]", "a result of nothing" },
        { MISTRAL, "U x^U y", NULL, "messages[1]", "twice the same role" },
        { MISTRAL, "U x", "[{`name`: `a`}]", "tools: this model's", "tools" },
        { OLMOE, "U x^T y", NULL, "messages[1]: this model's", "a result" },
        { OLMOE, "A ^C f {}", NULL, "messages[0]", "a call" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        err_ctx err = { 0 };
        id_list got = { 0 };
        request r;
        read_request(&r, rows[i].format, rows[i].tools);
        const int kind = rows[i].kind;
        CHECK_MSG(chat_render(&got, chats[kind], vocab[kinds[kind].vocab].e, &r.chat, &err) < 0,
                  "%s: accepted", rows[i].why);
        CHECK_MSG(strstr(err.msg, rows[i].part) != NULL, "%s: message \"%s\" lacks \"%s\"",
                  rows[i].why, err.msg, rows[i].part);
        CHECK_MSG(got.n == 0, "%s: %zu ids left behind", rows[i].why, got.n);
        ids_free(&got);
        request_free(&r);
    }
}

/* ---- answers of a given form ---------------------------------------------------------------- */

static int ignore_event(void *ctx, const chat_event *ev)
{
    (void)ctx;
    (void)ev;
    return 0;
}

/* Reasoning is no part of what has a form: it may begin instead of it, does not end the turn, and
 * the tag that ends it leads there. */
static void test_form(void)
{
    static const struct {
        int kind;
        const char *format, *think, *think_end, *turn_end;
        bool inside;
    } rows[] = {
        { QWEN35, "U x", NULL, "</think>", "<|im_end|>", true },
        { QWEN35, "-^U x", NULL, NULL, NULL, false },
        { GLM, "U x", "<think>", "</think>", "<|user|>", false },
        { GLM_HARD, "U x", "<think>", "</think>", "<|observation|>", false },
        { GLM, "-^U x", NULL, NULL, NULL, false },
        { GLM47, "U x", NULL, "</think>", "<|user|>", true },
        { GEMMA, "U x", NULL, NULL, NULL, false },
        { GEMMA, "+^U x", "<|channel>", "<channel|>", "<turn|>", false },
        { GEMMA, "+^U x", "<|channel>", "<channel|>", "<|tool_response>", false },
        { MISTRAL, "U x", NULL, NULL, NULL, false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const tokenizer *t = vocab[kinds[rows[i].kind].vocab].t;
        const int n = tokenizer_n_token(t);
        const int think = rows[i].think ? tokenizer_special(t, rows[i].think) : -1;
        uint64_t *bits = test_alloc((size_t)n / 64 + 1, sizeof *bits);
        chat_parser *p;
        request r;
        read_request(&r, rows[i].format, NULL);
        memset(bits, 0, ((size_t)n / 64 + 1) * sizeof *bits);
        CHECK(chat_parser_create(&p, chats[rows[i].kind], &r.chat, NULL) == 0);
        CHECK_MSG(chat_parser_in_answer(p) != rows[i].inside, "row %zu: where it begins", i);
        if (!rows[i].inside)
            CHECK_MSG(chat_parser_think(p) == think, "row %zu: %d begins reasoning", i,
                      chat_parser_think(p));
        if (think >= 0) CHECK(chat_parser_push(p, think, ignore_event, NULL, NULL) == 0);
        if (rows[i].think_end) {
            const int end = tokenizer_special(t, rows[i].think_end);
            const int stop = tokenizer_special(t, rows[i].turn_end);
            CHECK_MSG(!chat_parser_in_answer(p), "row %zu: not reasoning", i);
            chat_parser_fill(p, bits, n);
            CHECK_MSG(bits[end / 64] >> end % 64 & 1, "row %zu: reasoning has no end", i);
            CHECK_MSG(!(bits[stop / 64] >> stop % 64 & 1), "row %zu: the turn may end in it", i);
            CHECK(chat_parser_push(p, end, ignore_event, NULL, NULL) == 0);
            CHECK_MSG(chat_parser_in_answer(p), "row %zu: still reasoning", i);
        }
        chat_parser_free(p);
        request_free(&r);
        mem_free(bits);
    }
}

int main(int argc, char **argv)
{
    test_begin("chat formats", argc, argv);
    if (chats_open()) {
        test_recognition();
        test_cut_templates();
        test_refusals();
        test_form();
        test_goldens();
    }
    chats_close();
    return test_end();
}
