/* test_chat_parse.c - a model's answer parsed back to reasoning, text and tool calls.
 *
 * Most are in tests/cases/chat_answers.txt. They are fed to the parser in several cuts (whole
 * tokens, two halves at every character, single bytes) that must all give the same events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"
#include "tests/make_chat.h"
#include "tests/test.h"

/* ---- parsing -------------------------------------------------------------------------------- */

/* Events as text: R{reasoning} A{answer} C:name{arguments} and
    "." for the end; neighbours joined. */
typedef struct log {
    char text[16384];
    size_t len;
    int last;                            /* kind of the open group, or -1 */
    int n_event;
    bool bad_utf8, bad_order;
} log;

static void log_put(log *l, const char *s, size_t n)
{
    if (l->len + n + 1 > sizeof l->text) n = 0, l->bad_order = true;
    memcpy(l->text + l->len, s, n);
    l->len += n;
    l->text[l->len] = '\0';
}

static void log_close(log *l)
{
    if (l->last == CHAT_REASONING || l->last == CHAT_ANSWER) log_put(l, "}", 1);
    l->last = -1;
}

static int on_event(void *ctx, const chat_event *ev)
{
    log *l = ctx;
    l->n_event++;
    for (size_t i = 0; i < ev->text.len; ) {
        uint32_t cp;
        const int n = utf8_decode(&cp, (const uint8_t *)ev->text.ptr + i, ev->text.len - i);
        if (!n) l->bad_utf8 = true;
        i += n ? (size_t)n : 1;
    }
    if (l->last == CHAT_CALL_BEGIN && ev->kind != CHAT_CALL_ARGS &&
        ev->kind != CHAT_CALL_END) l->bad_order = true;
    switch (ev->kind) {
    case CHAT_REASONING:
    case CHAT_ANSWER:
        if (l->last != (int)ev->kind) {
            log_close(l);
            log_put(l, ev->kind == CHAT_ANSWER ? "A{" : "R{", 2);
            l->last = ev->kind;
        }
        log_put(l, ev->text.ptr, ev->text.len);
        break;
    case CHAT_CALL_BEGIN:
        log_close(l);
        log_put(l, "C:", 2);
        log_put(l, ev->name.ptr, ev->name.len);
        log_put(l, " ", 1);
        l->last = CHAT_CALL_BEGIN;
        break;
    case CHAT_CALL_ARGS:
        if (l->last != CHAT_CALL_BEGIN) l->bad_order = true;
        log_put(l, ev->text.ptr, ev->text.len);
        break;
    case CHAT_CALL_END:
        if (l->last != CHAT_CALL_BEGIN) l->bad_order = true;
        l->last = -1;
        break;
    case CHAT_DONE:
        log_close(l);
        log_put(l, ".", 1);
        l->last = CHAT_DONE;
        break;
    }
    return 0;
}

static int parse_ids(log *l, const chat *c, const chat_request *req, const id_list *ids,
                     err_ctx *err)
{
    chat_parser *p;
    int rc = chat_parser_create(&p, c, req, err);

    *l = (log){ .last = -1 };
    for (size_t i = 0; rc == 0 && i < ids->n; i++)
        rc = chat_parser_push(p, ids->ids[i], on_event, l, err);
    if (rc >= 0) rc = chat_parser_end(p, on_event, l, err);
    if (rc == 0) log_close(l);
    chat_parser_free(p);
    return rc;
}

/* The control token at the beginning of text, and its length; -1 if there is none. Gemma's
 * <|tool_response> is one of another kind, but what ends an answer comes in one piece, too. */
static int control_at(int v, const char *text, size_t *len)
{
    char name[32];
    const char *end = text[0] == '<' ? strchr(text, '>') : NULL;
    *len = end ? (size_t)(end - text) + 1 : 0;
    if (*len == 0 || *len >= sizeof name) return -1;
    memcpy(name, text, *len);
    name[*len] = '\0';
    const int id = tokenizer_special(vocab[v].t, name);
    return id >= 0 && (tokenizer_kind(vocab[v].t, id) == TOKEN_CONTROL ||
                       strcmp(name, "<|tool_response>") == 0) ? id : -1;
}

/* Cuts text into ids: with control tokens found, everything else as single bytes. */
static void encode_bytes(id_list *out, int v, const char *text)
{
    for (size_t i = 0, n = strlen(text), len; i < n; ) {
        const int id = control_at(v, text + i, &len);
        ids_push(out, id >= 0 ? id : vocab[v].byte_id[(unsigned char)text[i]], NULL);
        i += id >= 0 ? len : 1;
    }
}

/* May text be cut at k: not inside a character, not inside a control token. */
static bool may_cut(int v, const char *text, size_t k)
{
    size_t len;
    if (((unsigned char)text[k] & 0xc0) == 0x80) return false;
    for (size_t i = k; i-- > 0 && text[i] != '>'; )
        if (control_at(v, text + i, &len) >= 0 && i + len > k) return false;
    return true;
}

/* Parses text in all cuts; the first result is compared with want (unless NULL),
    the others with it. */
static void check_parse(int kind, const chat_request *req, const char *text, const char *want,
                        const char *why)
{
    const int v = kinds[kind].vocab;
    static log first, other;
    id_list ids = { 0 };
    err_ctx err = { 0 };
    const size_t n = strlen(text);

    encoder_encode(vocab[v].e, &ids, str_from(text), true, NULL);
    if (!CHECK_MSG(parse_ids(&first, chats[kind], req, &ids, &err) >= 0, "%s: %s", why,
                   err.msg)) goto out;
    CHECK_MSG(!first.bad_utf8 && !first.bad_order, "%s: events out of order or not UTF-8", why);
    if (want) CHECK_MSG(strcmp(first.text, want) == 0, "%s:\ngot  %s\nwant %s", why, first.text,
                        want);

    ids.n = 0;
    encode_bytes(&ids, v, text);
    CHECK_MSG(parse_ids(&other, chats[kind], req, &ids, &err) >= 0, "%s: %s", why, err.msg);
    CHECK_MSG(!other.bad_utf8 && !other.bad_order && strcmp(first.text, other.text) == 0,
              "%s, byte by byte (text %s):\ngot  %s\nwant %s", why, text, other.text, first.text);
    for (size_t k = 1; want && k < n; k++) {
        if (!may_cut(v, text, k)) continue;
        ids.n = 0;
        encoder_encode(vocab[v].e, &ids, (str_view){ text, k }, true, NULL);
        encoder_encode(vocab[v].e, &ids, (str_view){ text + k, n - k }, true, NULL);
        parse_ids(&other, chats[kind], req, &ids, &err);
        CHECK_MSG(strcmp(first.text, other.text) == 0, "%s, cut at %zu:\ngot  %s\nwant %s", why, k,
                  other.text, first.text);
    }
out:
    ids_free(&ids);
}

#define XML_TOOLS "[{`name`: `get`, `parameters`: {`properties`: {`city`: {`type`: `string`}, " \
    "`n`: {`type`: `integer`}, `b`: {`type`: `boolean`}, `o`: {`type`: [`string`, `null`]}, " \
    "`e`: {`enum`: [`1`, `2`]}, `u`: {`anyOf`: [{`type`: `string`}, {`type`: `integer`}]}, " \
    "`l`: {`type`: `array`}}}}, {`name`: `ping`}]"
#define IN_CALL(text) "<tool_call>\n" text "\n</tool_call>"
#define FUNCTION(name, params) "<function=" name ">\n" params "</function>"
#define PARAM(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define G_CALL(name, args) "<tool_call>" name "\n" args "</tool_call>"
#define G_ARG(name, value) "<arg_key>" name "</arg_key>\n<arg_value>" value "</arg_value>\n"
#define M_CALL(name, args) "<|tool_call>call:" name "{" args "}<tool_call|>"
#define Q(text) "<|\"|>" text "<|\"|>"
#define CHANNEL(name, text) "<|channel|>" name "<|message|>" text

static void test_parsing(void)
{
    static case_file answers;
    const bool ok = case_file_read(&answers, "chat_answers.txt");
    for (int i = 0; i < answers.n && ok; i++) {
        const test_case *c = &answers.cases[i];
        const char *offered = strstr(c->head, ", ") + 2;
        char asked[40] = "";
        request r;
        if (case_begins(offered, "ask", ' '))
            snprintf(asked, sizeof asked, "%.*s", (int)strcspn(offered + 4, ":"), offered + 4);
        read_request(&r, asked, case_begins(offered, "typed", ':') ? XML_TOOLS :
                     case_begins(offered, "any", ':') ? "[{`name`: `get`}]" : NULL);
        check_parse(chat_kind_of(c->head, ','), &r.chat, c->body, c->want, c->head);
        request_free(&r);
    }
    case_file_free(&answers);
    check_parse(JSON, NULL, CALL("x", "{}"), "C:x {}", "unknown request: calls are looked for");
}

/* Text that never becomes a header is shown, and before the end. */
static void test_long_header(void)
{
    static log l;
    chat_parser *p = NULL;
    const chat_request req = { .n_message = 0 };
    CHECK(chat_parser_create(&p, chats[HARMONY], &req, NULL) == 0);
    l = (log){ .last = -1 };
    for (int i = 0; p && i < 600; i++)
        chat_parser_push(p, vocab[GPTOSS].byte_id['a' + i % 26], on_event, &l, NULL);
    CHECK_MSG(l.len > 500 && strncmp(l.text, "A{abcdef", 8) == 0,
              "600 letters without a header: %zu shown", l.len);
    chat_parser_free(p);
}

/* Bytes that are not UTF-8 and characters cut by the end. */
static void test_bytes(void)
{
    static const struct { const char *bytes, *want; } rows[] = {
        { "\xf0\x9f\x99", "A{\xef\xbf\xbd}." }, { "a\xff" "b", "A{a\xef\xbf\xbd" "b}." },
        { "\xe2\x82\xac", "A{\xe2\x82\xac}." },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int harmony = 0; harmony < 2; harmony++) {
            const int kind = harmony ? HARMONY : JSON, v = kinds[kind].vocab;
            const chat_request req = { .n_message = 0 };
            id_list ids = { 0 };
            static log l;
            encode_bytes(&ids, v, harmony ? "<|channel|>final<|message|>" : "");
            encode_bytes(&ids, v, rows[i].bytes);
            encode_bytes(&ids, v, harmony ? "<|return|>" : "<|im_end|>");
            CHECK(parse_ids(&l, chats[kind], &req, &ids, NULL) >= 0);
            CHECK_MSG(!l.bad_utf8 && strcmp(l.text, rows[i].want) == 0, "bytes row %zu: %s", i,
                      l.text);
            ids_free(&ids);
        }
    }
}

/* A rendered assistant turn, fed back without its cue, gives the message again. */
static void test_round_trip(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "chat_round_trips.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        const int kind = chat_kind_of(cells[0], '\0'), v = kinds[kind].vocab;
        char format[512];
        request cue, turn;
        id_list a = { 0 }, b = { 0 };
        static log l;
        err_ctx err = { 0 };

        const char *tools = kind == MISTRAL || kind == OLMOE ? NULL : XML_TOOLS;
        snprintf(format, sizeof format, "+^U Q^%s^.", cells[1]);
        read_request(&cue, "+^U Q", tools);
        read_request(&turn, format, tools);
        CHECK(chat_render(&a, chats[kind], vocab[v].e, &cue.chat, &err) == 0);
        CHECK(chat_render(&b, chats[kind], vocab[v].e, &turn.chat, &err) == 0);
        if (CHECK_MSG(b.n > a.n && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0,
                      "%s: the cue is no prefix", cells[3])) {
            const id_list rest = { .ids = b.ids + a.n, .n = b.n - a.n };
            CHECK(parse_ids(&l, chats[kind], &cue.chat, &rest, &err) >= 0);
            CHECK_MSG(strcmp(l.text, cells[2]) == 0, "%s:\ngot  %s\nwant %s", cells[3],
                      l.text, cells[2]);
        }
        ids_free(&a);
        ids_free(&b);
        request_free(&cue);
        request_free(&turn);
    }
    case_rows_free(&rows);
}

/* Random sequences of fragments: however they are cut into tokens, the events are the same, and
 * everything but calls and the white space around them comes out. */
static void test_random(void)
{
    static const char *const parts[] = {
        "<tool_call>", "</tool_call>", "\n", "{\"name\": \"get\"", ", \"arguments\": ",
        "{\"a\": 1}", "}", "\"", "{", "<function=get>",
        "<function=", "<parameter=n>", "<parameter=city>", "\n", "</parameter>", "</function>",
        "text", " ", "é🙂", "<", "</think>", "<think>",
        "{\"name\": \"get\", \"arguments\": {}}", "3", "get>",
    };
    static const char *const h_parts[] = {
        "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "assistant",
        "analysis", "final", "commentary",
        " to=functions.get", " json", "{}", "text", "é🙂", " ", "<|channel|>final<|message|>",
    };
    static const char *const g_parts[] = {
        "<tool_call>", "</tool_call>", "\n", "get", "ping", "<arg_key>", "</arg_key>", "city",
        "<arg_value>", "</arg_value>", "text", " ", "é🙂", "<", "</think>", "<think>",
        G_CALL("get", G_ARG("n", "3")), G_ARG("city", "x"), "<tool_call>get\n",
    };
    static const char *const m_parts[] = {
        "<|tool_call>", "<tool_call|>", "call:", "get", "{", "}", "a:", "<|\"|>", ",", "[", "]",
        "1", "text", " ", "é🙂", "<", "<|channel>", "<channel|>", "thought\n",
        M_CALL("get", "a:1"),
        "<|tool_call>call:get{a:", Q("x"),
    };
    static const struct { int kind; const char *const *parts; uint32_t n; } of[] = {
        { JSON, parts, ARRAY_LEN(parts) }, { THINK, parts, ARRAY_LEN(parts) },
        { HYBRID, parts, ARRAY_LEN(parts) }, { XML, parts, ARRAY_LEN(parts) },
        { HARMONY, h_parts, ARRAY_LEN(h_parts) }, { QWEN35, parts, ARRAY_LEN(parts) },
        { GLM, g_parts, ARRAY_LEN(g_parts) }, { GLM47, g_parts, ARRAY_LEN(g_parts) },
        { GEMMA, m_parts, ARRAY_LEN(m_parts) },
    };
    test_rng rng = { 11 };
    request r;

    read_request(&r, "", XML_TOOLS);
    for (int i = 0; i < 2700; i++) {
        const int row = i % (int)ARRAY_LEN(of), kind = of[row].kind;
        char text[1024] = "", why[32];
        const uint32_t n = 1 + test_below(&rng, 14);
        for (uint32_t k = 0; k < n; k++) strcat(text, of[row].parts[test_below(&rng, of[row].n)]);
        snprintf(why, sizeof why, "random text %d", i);
        check_parse(kind, &r.chat, text, NULL, why);
    }
    request_free(&r);

    for (int i = 0; i < 72; i++) {       /* any ids at all: no crash, valid UTF-8, in order */
        const int kind = of[i % (int)ARRAY_LEN(of)].kind, v = kinds[kind].vocab;
        id_list ids = { 0 };
        static log l;
        const uint32_t n = (uint32_t)tokenizer_n_token(vocab[v].t);
        const uint32_t special = v >= N_VOCAB_FILE ? 256 : n - (v == QWEN ? 300 : 1100);
        const uint32_t n_special = v >= N_VOCAB_FILE ? n - 256 : 60;
        for (int k = 0; k < 200; k++)
            ids_push(&ids, (int32_t)(test_below(&rng, 3) ? test_below(&rng, n)
                                     : special + test_below(&rng, n_special)), NULL);
        CHECK(parse_ids(&l, chats[kind], NULL, &ids, NULL) >= 0 && !l.bad_utf8 && !l.bad_order);
        ids_free(&ids);
    }
}

static int stop_at_second(void *ctx, const chat_event *ev)
{
    (void)ev;
    return ++*(int *)ctx == 2 ? -77 : 0;
}

static void test_contract(void)
{
    const chat_request req = { .n_message = 0 };
    const int letter = vocab[QWEN].byte_id['x'];
    const int end = tokenizer_special(vocab[QWEN].t, "<|im_end|>");
    chat_parser *p = NULL;
    err_ctx err = { 0 };
    static log l = { .last = -1 };
    int n = 0;

    CHECK(chat_parser_create(&p, chats[JSON], &req, &err) == 0);
    CHECK(chat_parser_push(p, -1, on_event, &l, &err) == ERR_RANGE);
    CHECK(chat_parser_push(p, tokenizer_n_token(vocab[QWEN].t), on_event, &l, &err) == ERR_RANGE);
    CHECK_MSG(strstr(err.msg, "151936"), "%s", err.msg);
    CHECK(chat_parser_push(p, letter, on_event, &l, &err) == 0);
    CHECK(chat_parser_push(p, end, on_event, &l, &err) == 1);
    CHECK(chat_parser_push(p, letter, on_event, &l, &err) == 1);
    CHECK(chat_parser_end(p, on_event, &l, &err) == 0);
    CHECK_MSG(strcmp(l.text, "A{x}.") == 0, "%s", l.text);
    chat_parser_free(p);
    chat_parser_free(NULL);

    CHECK(chat_parser_create(&p, chats[JSON], &req, &err) == 0);
    CHECK(chat_parser_push(p, letter, stop_at_second, &n, &err) == 0);
    CHECK(chat_parser_push(p, letter, stop_at_second, &n, &err) == -77);
    chat_parser_free(p);

    /* Plain text needs no memory once the parser exists. */
    for (int k = 0; k < 2; k++) {
        const int kind = k ? HARMONY : JSON, v = kinds[kind].vocab;
        id_list ids = { 0 };
        encoder_encode(vocab[v].e, &ids, str_from(k ? "<|channel|>final<|message|>" : ""), true,
                       NULL);
        encoder_encode(vocab[v].e, &ids, str_from("Some plain text,\n\nwith < signs and 🙂."),
                       true, NULL);
        l = (log){ .last = -1 };
        CHECK(chat_parser_create(&p, chats[kind], &req, &err) == 0);
        mem_guard(true);
        for (size_t i = 0; i < ids.n; i++) n = chat_parser_push(p, ids.ids[i], on_event, &l, &err);
        mem_guard(false);
        CHECK_MSG(n == 0 && l.len > 30, "text under the guard: %d, \"%s\"", n, l.text);
        chat_parser_free(p);
        ids_free(&ids);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Everything at once for a kind; 0, or < 0 with nothing leaked. */
static int whole_run(int kind, const request *r, const id_list *answer, log *l, err_ctx *err)
{
    const int v = kinds[kind].vocab;
    chat *c;
    id_list ids = { 0 };
    int rc = make_chat(&c, v, kind_templates[kind], err);
    if (rc == 0) rc = chat_render(&ids, c, vocab[v].e, &r->chat, err);
    if (rc == 0) rc = parse_ids(l, c, &r->chat, answer, err);
    chat_free(c);
    ids_free(&ids);
    return rc;
}

static void test_memory(void)
{
    static const int of[] = { JSON, THINK, XML, HARMONY, GLM, GEMMA };
    request r;
    char big[1400];
    memset(big, 'v', sizeof big);
    big[sizeof big - 1] = '\0';

    read_request(&r, "S S^U Q^A A^R R^C get {`city`: 1}^T r", XML_TOOLS);
    for (size_t k = 0; k < ARRAY_LEN(of); k++) {
        const int kind = of[k], v = kinds[kind].vocab;
        static log want, got;
        char text[4096];
        id_list ids = { 0 };
        err_ctx err = { 0 };
        int n = 1, rc;

        if (kind == HARMONY)
            snprintf(text, sizeof text,
                     CHANNEL("commentary to=functions.get", "{\"city\": \"%s\"}<|call|>"), big);
        else if (kind == GLM)
            snprintf(text, sizeof text, G_CALL("get", G_ARG("city", "%s")), big);
        else if (kind == GEMMA)
            snprintf(text, sizeof text, M_CALL("get", "city:" Q("%s")), big);
        else if (kind == XML)
            snprintf(text, sizeof text, IN_CALL(FUNCTION("get", PARAM("city", "%s"))), big);
        else
            snprintf(text, sizeof text, "r</think>a" CALL("get", "{\"a\": \"%s\"}"), big);
        encoder_encode(vocab[v].e, &ids, str_from(text), true, NULL);
        CHECK(whole_run(kind, &r, &ids, &want, &err) >= 0 && strchr(want.text, 'C'));
        for (; n < 5000; n++) {
            mem_fail_after(n);
            rc = whole_run(kind, &r, &ids, &got, &err);
            mem_fail_after(0);
            if (rc >= 0) break;
            if (rc != ERR_NOMEM) CHECK_MSG(false, "kind %d, allocation %d fails: %d, %s", kind, n,
                                           rc, err.msg);
        }
        CHECK_MSG(n > 10 && n < 5000, "kind %d: %d allocations", kind, n);
        CHECK_MSG(strcmp(want.text, got.text) == 0, "kind %d: %s", kind, got.text);
        ids_free(&ids);
    }
    request_free(&r);
}

/* A key with a zero character is none that others could read: the call stays text. */
static void test_zero_in_key(void)
{
#define ROW(kind, text) { kind, text, sizeof text - 1 }
    static const struct { int kind; const char *text; size_t n; } rows[] = {
        ROW(GLM, "<tool_call>get\n<arg_key>a\0b</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ROW(XML, "<tool_call>\n<function=get>\n<parameter=a\0b>\n1\n</parameter>\n</function>\n"
                 "</tool_call>"),
        ROW(GEMMA, "<|tool_call>call:get{<|\"|>a\0b<|\"|>:1}<tool_call|>"),
    };
#undef ROW
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int v = kinds[rows[i].kind].vocab;
        request r;
        id_list ids = { 0 };
        log l;
        err_ctx err = { 0 };
        read_request(&r, "U x", XML_TOOLS);
        const str_view text = { rows[i].text, rows[i].n };
        CHECK(encoder_encode(vocab[v].e, &ids, text, true, &err) == 0);
        CHECK_MSG(parse_ids(&l, chats[rows[i].kind], &r.chat, &ids, &err) == 0, "%s", err.msg);
        CHECK_MSG(l.len > rows[i].n && memcmp(l.text, "A{", 2) == 0 &&
                  memcmp(l.text + 2, text.ptr, 11) == 0, "row %d: %.40s", (int)i, l.text);
        ids_free(&ids);
        request_free(&r);
    }
}

int main(int argc, char **argv)
{
    test_begin("chat_parse", argc, argv);
    if (chats_open()) {
        test_parsing();
        test_zero_in_key();
        test_long_header();
        test_bytes();
        test_round_trip();
        test_random();
        test_contract();
        test_memory();
    }
    chats_close();
    return test_end();
}
