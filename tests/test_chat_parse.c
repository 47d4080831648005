/* test_chat_parse.c - a model's answer parsed back to reasoning, text and tool calls.
 *
 * Answers are fed to the parser in several cuts (whole tokens, two halves at every character,
 * single bytes) that must all give the same events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/chat_maker.h"
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

/* Cuts text into ids: with control tokens found, everything else as single bytes. */
static void encode_bytes(id_list *out, int v, const char *text)
{
    for (size_t i = 0, n = strlen(text); i < n; ) {
        char name[32];
        size_t len = 0;
        int id = -1;
        if (text[i] == '<' && text[i + 1] == '|')
            do len++; while (i + len < n && len < sizeof name - 1 && text[i + len - 1] != '>');
        memcpy(name, text + i, len);
        name[len] = '\0';
        if (len) id = tokenizer_special(vocab[v].t, name);
        ids_push(out, id >= 0 ? id : vocab[v].byte_id[(unsigned char)text[i]], NULL);
        i += id >= 0 ? len : 1;
    }
}

/* May text be cut at k: not inside a character, not inside <|...|>. */
static bool may_cut(const char *text, size_t k)
{
    if (((unsigned char)text[k] & 0xc0) == 0x80) return false;
    for (size_t i = k; i-- > 0 && text[i] != '>'; )
        if (text[i] == '<' && text[i + 1] == '|') return false;
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
        if (!may_cut(text, k)) continue;
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
#define ANY_TOOLS "[{`name`: `get`}]"
#define IN_CALL(text) "<tool_call>\n" text "\n</tool_call>"
#define FUNCTION(name, params) "<function=" name ">\n" params "</function>"
#define PARAM(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define CHANNEL(name, text) "<|channel|>" name "<|message|>" text
#define NEXT "<|end|><|start|>assistant"

static const struct { int kind; const char *tools, *text, *want, *why; } answers[] = {
    /* ChatML, JSON calls */
    { JSON, NULL, "Hello wörld 🙂<|im_end|>", "A{Hello wörld 🙂}.", "plain text" },
    { JSON, NULL, "no end\n", "A{no end\n}", "no stop token; white space at the end stays" },
    { JSON, NULL, "a<|im_end|>b", "A{a}.", "nothing after the end" },
    { JSON, NULL, IN_CALL("{\"name\": \"x\"}"), "A{" IN_CALL("{\"name\": \"x\"}") "}",
      "without tools on offer tags are text" },
    { JSON, NULL, "<think>a</think>", "A{<think>a</think>}", "without thinking, tags are shown" },
    { JSON, ANY_TOOLS, "Let me see.\n" CALL("get", "{\"city\": \"Rom\"}") "<|im_end|>",
      "A{Let me see.}C:get {\"city\": \"Rom\"}.", "text, then a call" },
    { JSON, ANY_TOOLS, CALL("get", "{}") "\n" IN_CALL("{\"arguments\":{\"a\":[1,{\"b\":\"}\"}],"
      "\"n\":123456789012345678901234567890},\"name\":\"g\\u00e9\"}") "\n<|im_end|>",
      "C:get {}C:gé {\"a\":[1,{\"b\":\"}\"}],\"n\":123456789012345678901234567890}.",
      "two calls, arguments exactly as written, keys in any order" },
    { JSON, ANY_TOOLS, "<tool_call>{\"name\":\"get\",\"arguments\":\"{\\\"a\\\": 1}\"}"
      "</tool_call>then<|im_end|>", "C:get {\"a\": 1}A{then}.",
      "arguments as a string; text after a call" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\"}<|im_end|>", "C:get {}.",
      "no arguments, no closing tag" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\"}\n</tool_ca", "C:get {}",
      "a closing tag that was cut is no text" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\"}\n</tool_x", "C:get {}A{\n</tool_x}",
      "another tag there is" },
    { JSON, ANY_TOOLS, CALL("get", "{\"s\": \"</tool_call> \\\" {\"}"),
      "C:get {\"s\": \"</tool_call> \\\" {\"}", "a closing tag inside a string" },
    { JSON, ANY_TOOLS, "x " CALL("get", "{\"a\" 1}") " y<|im_end|>",
      "A{x " CALL("get", "{\"a\" 1}") " y}.", "broken JSON is answer text" },
    { JSON, ANY_TOOLS, CALL("get", "{\"a\": 1") "\n" CALL("get", "{}"),
      "A{" CALL("get", "{\"a\": 1") "}C:get {}", "a missing brace does not swallow the next call" },
    { JSON, ANY_TOOLS, CALL("get", "{\"a\": \"x") "\n" CALL("get", "{}"),
      "A{" CALL("get", "{\"a\": \"x") "}C:get {}", "nor does a missing quote" },
    { JSON, ANY_TOOLS, IN_CALL("{\"name\": 3}"), "A{" IN_CALL("{\"name\": 3}") "}", "no name" },
    { JSON, ANY_TOOLS, "<tool_call>\n{\"name\": \"get\", \"argu<|im_end|>",
      "A{<tool_call>\n{\"name\": \"get\", \"argu}.", "cut off" },
    { JSON, ANY_TOOLS, "<tool_call> what?<|im_end|>", "A{<tool_call> what?}.", "a tag in prose" },
    { JSON, ANY_TOOLS, "a < b <tool <tool_calls> </tool_call> \n x  <tool_c",
      "A{a < b <tool <tool_calls> </tool_call> \n x  <tool_c}",
      "what only looks like a tag comes out whole" },
    /* thinking */
    { THINK, NULL, "First\n\nthis.\n</think>\n\nSo: 4<|im_end|>", "R{First\n\nthis.}A{So: 4}.",
      "output begins inside reasoning" },
    { THINK, NULL, "<think>\nhm</think>x", "R{hm}A{x}", "the model repeats the tag" },
    { THINK, NULL, "only thought\n", "R{only thought\n}", "cut off while thinking" },
    { THINK, NULL, "</think>\n\n\n\nx\n\ny</think>z", "A{x\n\ny</think>z}",
      "empty reasoning; only the first tag splits" },
    { THINK, ANY_TOOLS, "a <tool_call> b\n</think>\n\n" CALL("get", "{}") "<|im_end|>",
      "R{a <tool_call> b}C:get {}.", "tags inside reasoning are text" },
    { HYBRID, NULL, "<think>\nhm\n</think>\n\nx<|im_end|>", "R{hm}A{x}.",
      "the model opens the block itself" },
    { HYBRID, NULL, "x <think>y", "A{x <think>y}", "later it is text" },
    { HYBRID, NULL, "\n <th", "A{\n <th}", "a beginning that never ends" },
    /* XML calls */
    { XML, XML_TOOLS, "See:\n\n" IN_CALL(FUNCTION("get", PARAM("city", "Rom \"II\"\n")
      PARAM("n", "3") PARAM("b", "True"))) "<|im_end|>",
      "A{See:}C:get {\"city\": \"Rom \\\"II\\\"\\n\", \"n\": 3, \"b\": true}.",
      "typed by the schema" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("get", PARAM("city", "12") PARAM("n", "many")
      PARAM("o", "null") PARAM("e", "1") PARAM("u", "5") PARAM("l", "[1,\n 2]")
      PARAM("x", "{\"k\": 1}") PARAM("y", "free text"))),
      "C:get {\"city\": \"12\", \"n\": \"many\", \"o\": null, \"e\": \"1\", \"u\": \"5\", "
      "\"l\": [1,\n 2], \"x\": {\"k\": 1}, \"y\": \"free text\"}",
      "strings stay strings, what is no JSON too, unknown parameters are tried" },
    { XML, XML_TOOLS, "Now " FUNCTION("get", PARAM("city", "Rom")) "\n</tool_call>\n"
      FUNCTION("ping", "") "<|im_end|>",
      "A{Now}C:get {\"city\": \"Rom\"}C:ping {}.", "the opening tag is missing" },
    { XML, XML_TOOLS, "Write <function=other> or <function=getx> or <function=ge",
      "A{Write <function=other> or <function=getx> or <function=ge}",
      "names that were not offered are text" },
    { XML, XML_TOOLS, "<function=other> first, " IN_CALL(FUNCTION("ping", "")),
      "A{<function=other> first,}C:ping {}", "and do not hide a call after them" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("new", "")), "C:new {}", "with the tag any name is a call" },
    { XML, XML_TOOLS, IN_CALL(FUNCTION("get", PARAM("city", "x\n</parameter>\ny\n</function>\nz"))),
      "C:get {\"city\": \"x\\n</parameter>\\ny\\n</function>\\nz\"}", "closing tags in a value" },
    { XML, XML_TOOLS, IN_CALL("<function=get>\n" PARAM("city", "a") PARAM("city", "b")) "!",
      "C:get {\"city\": \"b\"}A{!}", "said twice; </function> missing" },
    { XML, XML_TOOLS, "<tool_call>\n<function=get>\n<parameter=city>\nRom<|im_end|>",
      "A{<tool_call>\n<function=get>\n<parameter=city>\nRom}.", "cut off" },
    { XML, XML_TOOLS, "<tool_call>\n" FUNCTION("get", "what"),
      "A{<tool_call>\n" FUNCTION("get", "what") "}", "text between tags" },
    { XML, XML_TOOLS, "<tool_call>\n<function=>", "A{<tool_call>\n<function=>}", "no name" },
    { XML, XML_TOOLS, CALL("get", "{}"), "C:get {}", "JSON where XML is usual" },
    /* harmony */
    { HARMONY, NULL, CHANNEL("analysis", "User asks.") NEXT
      CHANNEL("final", "2 + 2 = 4. 🙂<|return|>"),
      "R{User asks.}A{2 + 2 = 4. 🙂}.", "reasoning, then the answer" },
    { HARMONY, NULL, CHANNEL("analysis", "a") NEXT CHANNEL("commentary", "b") NEXT
      CHANNEL("analysis", "c") NEXT CHANNEL("final", "d<|endoftext|>"),
      "R{a}A{b}R{\n\nc}A{\n\nd}.", "several blocks of each; a preamble is for the user" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis", "x") NEXT
      CHANNEL("commentary to=functions.get <|constrain|>json", "{\"a\": \"é\"}<|call|>"),
      "R{x}C:get {\"a\": \"é\"}.", "recipient after the channel" },
    { HARMONY, ANY_TOOLS, " to=functions.get" CHANNEL("commentary json", "{}<|call|>"), "C:get {}.",
      "recipient before it, no constrain token" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis to=functions.get<|constrain|>json", "<|call|>"),
      "C:get {}.", "analysis channel, no space, no arguments" },
    { HARMONY, ANY_TOOLS, " to=functions.get" CHANNEL("commentary to=functions.get code", "1") NEXT
      CHANNEL("final", "k<|return|>"), "C:get 1A{k}.",
      "recipient twice, a call that ends like a message" },
    { HARMONY, ANY_TOOLS, "<|channel|>commentary" CHANNEL("analysis", "x") NEXT
      "<|channel|>commentary to=assistant" CHANNEL("final", "y<|return|>"), "R{x}A{y}.",
      "stray channels before the real one" },
    { HARMONY, NULL, CHANNEL("final <|constrain|>json", "{\"a\": 1}<|return|>"), "A{{\"a\": 1}}.",
      "structured output" },
    { HARMONY, ANY_TOOLS, CHANNEL("analysis to=container.exec code", "ls<|call|>"),
      "C:container.exec ls.", "a tool nobody offered" },
    { HARMONY, NULL, CHANNEL("analysis to=python code", "1+1<|call|>"), "R{1+1}.",
      "a call where nothing was offered" },
    { HARMONY, NULL, "<|message|>x<|end|>", "A{x}", "no channel" },
    { HARMONY, NULL, "Hello<|return|>", "A{Hello}.", "no header at all" },
    { HARMONY, NULL, "<|channel|>fin<|return|>", ".", "an end inside the header" },
    { HARMONY, NULL, CHANNEL("final", "a") "<|start|>assistant" CHANNEL("final", "b")
      CHANNEL("analysis", "c<|return|>"), "A{a\n\nb}R{c}.", "<|end|> forgotten" },
    { HARMONY, NULL, CHANNEL("final", "a") "<|end|><|start|>user<|message|>b" NEXT
      CHANNEL("final", "c"), "A{a}R{b}A{\n\nc}", "the model plays the user" },
    { HARMONY, NULL, CHANNEL("final", "a <tool_call> </think> <|message|>b"),
      "A{a <tool_call> </think> b}", "foreign tags" },
    { RAW, NULL, "a<think> b<|im_end|>", "A{a<think> b}.", "raw text" },
};

static void test_parsing(void)
{
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        request r;
        read_request(&r, "", answers[i].tools);
        check_parse(answers[i].kind, &r.chat, answers[i].text, answers[i].want, answers[i].why);
        request_free(&r);
    }
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
    static const struct { int kind; const char *message, *want, *why; } rows[] = {
        { JSON, "A Hello *there*.", "A{Hello *there*.}.", "an answer" },
        { JSON, "A See^C get {`city`: `Zürich`}^C ping {}",
          "A{See}C:get {\"city\": \"Zürich\"}C:ping {}.", "calls" },
        { THINK, "A c^R a\n\nb", "R{a\n\nb}A{c}.", "reasoning" },
        { THINK, "A c^R a^C ping {}", "R{a}A{c}C:ping {}.", "all three" },
        { XML, "A See^C get {`city`: `a\\n b \\n`, `n`: 2, `b`: false, `l`: [1, null]}^C ping {}",
          "A{See}C:get {\"city\": \"a\\n b \\n\", \"n\": 2, \"b\": false, \"l\": [1, null]}"
          "C:ping {}.",
          "XML calls" },
        { HARMONY, "A Hello.", "A{Hello.}", "an answer; <|end|> replaces <|return|>" },
        { HARMONY, "A c^R a^C get {`a`:1}", "R{a}A{c}C:get {\"a\":1}.", "all three" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int kind = rows[i].kind, v = kinds[kind].vocab;
        char talk[512];
        request cue, turn;
        id_list a = { 0 }, b = { 0 };
        static log l;
        err_ctx err = { 0 };

        snprintf(talk, sizeof talk, "U Q^%s^.", rows[i].message);
        read_request(&cue, "U Q", XML_TOOLS);
        read_request(&turn, talk, XML_TOOLS);
        CHECK(chat_render(&a, chats[kind], vocab[v].e, &cue.chat, &err) == 0);
        CHECK(chat_render(&b, chats[kind], vocab[v].e, &turn.chat, &err) == 0);
        if (CHECK_MSG(b.n > a.n && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0,
                      "%s: the cue is no prefix", rows[i].why)) {
            const id_list rest = { .ids = b.ids + a.n, .n = b.n - a.n };
            CHECK(parse_ids(&l, chats[kind], &cue.chat, &rest, &err) >= 0);
            CHECK_MSG(strcmp(l.text, rows[i].want) == 0, "%s:\ngot  %s\nwant %s", rows[i].why,
                      l.text, rows[i].want);
        }
        ids_free(&a);
        ids_free(&b);
        request_free(&cue);
        request_free(&turn);
    }
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
    static const int of[] = { JSON, THINK, HYBRID, XML, HARMONY };
    test_rng rng = { 11 };
    request r;

    read_request(&r, "", XML_TOOLS);
    for (int i = 0; i < 1500; i++) {
        const int kind = of[i % (int)ARRAY_LEN(of)];
        char text[1024] = "", why[32];
        const uint32_t n = 1 + test_below(&rng, 14);
        for (uint32_t k = 0; k < n; k++)
            strcat(text, kind == HARMONY ? h_parts[test_below(&rng, ARRAY_LEN(h_parts))] :
                   parts[test_below(&rng, ARRAY_LEN(parts))]);
        snprintf(why, sizeof why, "random text %d", i);
        check_parse(kind, &r.chat, text, NULL, why);
    }
    request_free(&r);

    for (int i = 0; i < 40; i++) {       /* any ids at all: no crash, valid UTF-8, in order */
        const int kind = of[i % (int)ARRAY_LEN(of)], v = kinds[kind].vocab;
        id_list ids = { 0 };
        static log l;
        const uint32_t n = (uint32_t)tokenizer_n_token(vocab[v].t);
        const uint32_t special = n - (v == QWEN ? 300 : 1100);
        for (int k = 0; k < 200; k++)
            ids_push(&ids, (int32_t)(test_below(&rng, 3) ? test_below(&rng, n)
                                                         : special + test_below(&rng, 60)), NULL);
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
    int rc = make_chat(&c, v, kinds[kind].tmpl, err);
    if (rc == 0) rc = chat_render(&ids, c, vocab[v].e, &r->chat, err);
    if (rc == 0) rc = parse_ids(l, c, &r->chat, answer, err);
    chat_free(c);
    ids_free(&ids);
    return rc;
}

static void test_memory(void)
{
    static const int of[] = { JSON, THINK, XML, HARMONY };
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

int main(int argc, char **argv)
{
    test_begin("chat_parse", argc, argv);
    if (chats_open()) {
        test_parsing();
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
