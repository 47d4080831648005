/* test_chat_grammar.c - calls that are forced or held, in every chat format, from a model that
 * draws at random: each is one that the parser knows, of a tool that may be called, with arguments
 * of its schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat/chat_grammar.h"
#include "engine/text/grammar/grammar_mask.h"
#include "tests/case_file.h"
#include "tests/make_chat.h"
#include "tests/make_schema.h"

enum { MAX_STEPS = 3000 };

/* With the small vocabularies of the demo models: masks of large ones take long to make. */
static const int calling[] = { JSON, THINK, XML, BARE, HARMONY, GLM, GLM47, GEMMA };
static chat *small[N_KIND];
static token_trie *tries[N_VOCAB][2];    /* without and with markup */

static int small_vocab(int kind)
{
    return kinds[kind].vocab >= N_VOCAB_FILE ? kinds[kind].vocab
         : kind == HARMONY ? DEMO_GPTOSS : DEMO_QWEN;
}

/* ---- an answer ------------------------------------------------------------------------------- */

typedef struct heard {
    textbuf answer, reasoning, args;
    char name[16][64];
    json_t *calls[16];                   /* NULL: their arguments are no JSON */
    int n_call;
    bool done;
    bool cut;                            /* ended by us */
} heard;

static int on_event(void *ctx, const chat_event *ev)
{
    heard *h = ctx;
    switch (ev->kind) {
    case CHAT_REASONING: textbuf_put(&h->reasoning, ev->text); break;
    case CHAT_ANSWER: textbuf_put(&h->answer, ev->text); break;
    case CHAT_CALL_BEGIN:
        h->args.len = 0;
        snprintf(h->name[h->n_call], sizeof h->name[0], "%.*s", (int)ev->name.len, ev->name.ptr);
        break;
    case CHAT_CALL_ARGS: textbuf_put(&h->args, ev->text); break;
    case CHAT_CALL_END:
        h->calls[h->n_call++] = json_loadb(h->args.ptr, h->args.len, 0, NULL);
        break;
    case CHAT_DONE: h->done = true; break;
    }
    return h->n_call == 16 ? -1 : 0;
}

static void heard_free(heard *h)
{
    textbuf_free(&h->answer);
    textbuf_free(&h->reasoning);
    textbuf_free(&h->args);
    for (int i = 0; i < h->n_call; i++) json_decref(h->calls[i]);
}

typedef struct format {
    const chat *c;
    int v;                               /* vocabulary */
    int n_vocab;
    chat_parser *p;
    grammar_mask *mask;
    uint64_t *bits;
    bool in_form;
} format;

/* What may come next; false: anything. As the loop of answer.c does it. */
static bool next_bits(format *t)
{
    const size_t words = ((size_t)t->n_vocab + 63) / 64;
    const bool was_in = t->in_form;
    err_ctx err = { 0 };
    memset(t->bits, 0, words * sizeof *t->bits);
    t->in_form = chat_parser_in_answer(t->p);
    if (!t->in_form) {
        if (chat_parser_is_free(t->p)) return false;
        chat_parser_fill(t->p, t->bits, t->n_vocab);
        return true;
    }
    if (!was_in) CHECK(grammar_mask_begin(t->mask, chat_parser_key(t->p), &err) == 0);
    const uint64_t *bits = grammar_mask_bits(t->mask, &err);
    const int think = chat_parser_think(t->p);
    if (!CHECK_MSG(bits != NULL, "%s", err.msg)) return true;
    memcpy(t->bits, bits, words * sizeof *bits);
    if (think >= 0) t->bits[think / 64] |= (uint64_t)1 << think % 64;
    chat_parser_trim(t->p, t->bits, t->n_vocab);
    return true;
}

static bool may(const format *t, int id) { return id >= 0 && (t->bits[id / 64] >> id % 64 & 1); }

/* One of those that may come. Ends come sooner than by chance, or nothing would ever end. */
static int draw(const format *t, test_rng *rng, bool any, const char *tail)
{
    const chat_format kind = chat_format_of(t->c);
    const bool glm = kind == CHAT_GLM, gemma = kind == CHAT_GEMMA;
    const char *const closing[] = { gemma ? "<|\"|>" : glm ? "</arg_value>" : "</parameter>",
                                    gemma ? "<channel|>" : "</think>",
                                    gemma ? "<|tool_call>" : "<tool_call>" };
    const tokenizer *tok = vocab[t->v].t;
    int stops[16], n_stop = tokenizer_stops(tok, stops, 16), n = 0;
    if (any && test_below(rng, 4) == 0) return tokenizer_special(tok, "<|end|>");
    if (any) return (int)test_below(rng, 3000);
    for (int i = 0; i < n_stop; i++)
        if (may(t, stops[i]) && test_below(rng, 3) == 0) return stops[i];
    if (may(t, tokenizer_special(tok, "<|end|>")) && test_below(rng, 5) == 0)
        return tokenizer_special(tok, "<|end|>");
    if (may(t, tokenizer_special(tok, closing[2])) && test_below(rng, 2))
        return tokenizer_special(tok, closing[2]);
    for (size_t i = 0; i < ARRAY_LEN(closing); i++) {    /* what was begun, or something new */
        const size_t len = strlen(tail);
        size_t k = strlen(closing[i]) - 1;
        while (k > 0 && (k > len || memcmp(tail + len - k, closing[i], k) != 0)) k--;
        const int id = vocab[t->v].byte_id[(uint8_t)closing[i][k]];
        if (may(t, id) && (k > 1 ? test_below(rng, 20) > 0 : test_below(rng, 6) == 0)) return id;
    }
    for (int id = 0; id < t->n_vocab; id++) n += may(t, id);
    if (n == 0) return -1;
    n = (int)test_below(rng, (uint32_t)n);
    for (int id = 0; id < t->n_vocab; id++)
        if (may(t, id) && n-- == 0) return id;
    return -1;
}

/* True: the answer came to its end. */
static bool answer(heard *h, int kind, const chat_request *req, const grammar *g, uint64_t seed)
{
    test_rng rng = { seed };
    err_ctx err = { 0 };
    char tail[32] = "";
    format t = { .c = small[kind], .v = small_vocab(kind) };
    bool ended = false;
    t.n_vocab = tokenizer_n_token(vocab[t.v].t);
    t.bits = test_alloc((size_t)t.n_vocab / 64 + 1, sizeof *t.bits);
    *h = (heard){ 0 };
    if (CHECK_MSG(chat_parser_create(&t.p, t.c, req, &err) == 0 &&
                  grammar_mask_create(&t.mask, g, tries[t.v][grammar_has_markup(g)], t.n_vocab,
                                      &err) == 0, "%s", err.msg)) {
        for (int i = 0; i < MAX_STEPS && !ended && h->n_call < 15; i++) {
            const bool any = !next_bits(&t);
            const int id = draw(&t, &rng, any, tail);
            if (!CHECK_MSG(id >= 0, "%s, step %d, after \"%s\": nothing may come",
                           kinds[kind].name, i, tail)) break;
            const str_view bytes = tokenizer_bytes(vocab[t.v].t, id, false);
            const size_t n = strlen(tail), add = bytes.len < 12 ? bytes.len : 0;
            if (n + add > 24) memmove(tail, tail + n + add - 24, 24 - add + 1);
            snprintf(tail + strlen(tail), sizeof tail - strlen(tail), "%.*s", (int)add, bytes.ptr);
            if (t.in_form && id != chat_parser_think(t.p))
                CHECK_MSG(grammar_mask_accept(t.mask, id, &err) == 0, "%s", err.msg);
            const int rc = chat_parser_push(t.p, id, on_event, h, &err);
            CHECK_MSG(rc >= 0, "%s", err.msg);
            ended = rc == 1;
        }
        h->cut = !ended;
        if (!ended) CHECK(chat_parser_end(t.p, on_event, h, &err) == 0);
    }
    grammar_mask_free(t.mask);
    chat_parser_free(t.p);
    mem_free(t.bits);
    return ended;
}

/* ---- tools at random ------------------------------------------------------------------------- */

/* A schema whose outermost names fit into tags; free: one of its strings has no bounds. */
static json_t *parameters(test_rng *rng, bool free)
{
    json_t *s = schema_random(rng), *old = json_object_get(s, "properties"), *p = json_object(), *v;
    json_t *required = json_array(), *was = json_object_get(s, "required");
    const char *key;
    char name[16];
    int n = 0;
    schema_widen(rng, s);
    json_object_foreach(old, key, v) {
        snprintf(name, sizeof name, "p_%d", n++);
        json_object_set(p, name, v);
        if (schema_lists(was, key)) json_array_append_new(required, json_string(name));
    }
    if (free) json_object_set_new(p, "text", json_pack("{s:s}", "type", "string"));
    json_object_set_new(s, "properties", p);
    json_object_set_new(s, "required", required);
    return s;
}

static json_t *random_tools(test_rng *rng, int n, bool strict, bool free)
{
    json_t *tools = json_array();
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, i ? "tool%d" : "tool", i);
        json_t *f = json_pack("{s:s, s:o, s:b}", "name", name, "parameters", parameters(rng, free),
                              "strict", strict && i % 2 == 0);
        json_array_append_new(tools, json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    return tools;
}

static const json_t *find_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *t;
    json_array_foreach(tools, i, t) {
        const json_t *f = json_object_get(t, "function");
        if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0) return f;
    }
    return NULL;
}

/* all: of all tools, else of strict ones, the arguments have the schema's form. */
static void check_calls(const heard *h, const json_t *tools, const chat_request *req, bool all,
                        const char *what)
{
    /* harmony passes on what it has of a call that is cut off */
    const int n = h->n_call - (h->n_call > 0 && h->cut && !h->calls[h->n_call - 1]);
    for (int i = 0; i < n; i++) {
        const json_t *f = find_tool(tools, h->name[i]), *s = json_object_get(f, "parameters");
        bool callable = req->n_callable == 0;
        for (int k = 0; k < req->n_callable; k++)
            callable |= strcmp(req->callable[k], h->name[i]) == 0;
        CHECK_MSG(f && callable, "%s: a call of %s", what, h->name[i]);
        char *schema = json_dumps(s, JSON_COMPACT), *args = json_dumps(h->calls[i], JSON_COMPACT);
        const bool obeys = all || json_is_true(json_object_get(f, "strict"));
        CHECK_MSG(h->calls[i] && (!obeys || schema_valid(s, h->calls[i], s, true)), "%s: %s: %s",
                  what, schema, args);
        free(schema);
        free(args);
    }
}

/* If there is no time, every second form of calls; test_held has the others. */
static void test_forced(void)
{
    for (size_t k = 0; k < ARRAY_LEN(calling); k += (size_t)test_rounds(1, 2)) {
        const int kind = calling[k];
        test_rng rng = { 5 + k };
        const int n_round = test_rounds(24, 3);
        int n_ended = 0, n_many = 0, n_reasoned = 0;
        for (int i = 0; i < n_round; i++) {
            const char *only[] = { "tool1" };
            json_t *tools = random_tools(&rng, 1 + i % 3, false, i % 4 == 3);
            chat_request req = { .tools = tools, .calls = CHAT_CALLS_MUST, .one_call = i % 2 };
            err_ctx err = { 0 };
            grammar *g;
            heard h;
            if (i % 3 == 1) req.callable = only, req.n_callable = 1;
            if (chat_grammar(&g, small[kind], &req, NULL, false, &err) < 0) {
                CHECK_MSG(strstr(err.msg, "no finite text"), "%s: %s", kinds[kind].name, err.msg);
                json_decref(tools);
                continue;
            }
            const bool ended = answer(&h, kind, &req, g, (uint64_t)i);
            check_calls(&h, tools, &req, true, kinds[kind].name);
            if (ended)
                CHECK_MSG(h.n_call >= 1 && h.answer.len == 0, "%s: %d calls and the text %.*s",
                          kinds[kind].name, h.n_call, (int)h.answer.len, h.answer.ptr);
            if (req.one_call) CHECK(h.n_call <= 1);
            n_ended += ended;
            n_many += h.n_call > 1;
            n_reasoned += h.reasoning.len > 0;
            heard_free(&h);
            grammar_free(g);
            json_decref(tools);
        }
        CHECK_MSG(n_ended >= n_round / 2, "%s: only %d ended", kinds[kind].name, n_ended);
        if (kind == HARMONY || kind == JSON)
            CHECK_MSG((n_many > 0) == (kind == JSON), "%s: %d with several calls", kinds[kind].name,
                      n_many);
        if (kind == THINK || kind == GLM47 || kind == XML)
            CHECK_MSG((n_reasoned > 0) == (kind != XML), "%s: %d reasoned", kinds[kind].name,
                      n_reasoned);
    }
}

/* Text is free, calls are not; with a form for the text neither is. */
static void test_held(void)
{
    json_t *text = json_pack("{s:[s,s]}", "enum", "yes", "no");
    for (size_t k = test_is_long() ? 0 : 1; k < ARRAY_LEN(calling);
         k += (size_t)test_rounds(1, 2)) {
        const int kind = calling[k];
        test_rng rng = { 50 + k };
        int n_call = 0, n_text = 0;
        for (int i = 0; i < test_rounds(24, 5); i++) {
            json_t *tools = random_tools(&rng, 2, true, false);
            chat_request req = { .tools = tools, .calls = CHAT_CALLS_HELD, .formed = i % 2,
                                 .one_call = i % 4 > 1 };
            err_ctx err = { 0 };
            grammar *g;
            heard h;
            if (chat_grammar(&g, small[kind], &req, text, true, &err) < 0) {
                CHECK_MSG(strstr(err.msg, "no finite text"), "%s: %s", kinds[kind].name, err.msg);
                json_decref(tools);
                continue;
            }
            const bool ended = answer(&h, kind, &req, g, (uint64_t)i);
            check_calls(&h, tools, &req, false, kinds[kind].name);
            if (ended && req.formed)
                CHECK_MSG(h.n_call ? h.answer.len == 0
                                   : str_is(textbuf_view(&h.answer), "\"yes\"") ||
                                     str_is(textbuf_view(&h.answer), "\"no\""), "%s: %.*s",
                          kinds[kind].name, (int)h.answer.len, h.answer.ptr);
            n_call += h.n_call;
            n_text += h.answer.len > 0;
            heard_free(&h);
            grammar_free(g);
            json_decref(tools);
        }
        CHECK_MSG(n_call > 0 && n_text > 0, "%s: %d calls, %d texts", kinds[kind].name, n_call,
                  n_text);
    }
    json_decref(text);
}

/* ---- one by one ------------------------------------------------------------------------------ */

/* May the text come, to its end? Tokens as the vocabulary cuts it. */
static bool accepts(int kind, const grammar *g, const char *key, const char *text)
{
    const int v = kinds[kind].vocab;
    grammar_mask *m;
    id_list ids = { 0 };
    err_ctx err = { 0 };
    bool ok = grammar_mask_create(&m, g, tries[v][grammar_has_markup(g)],
                                  tokenizer_n_token(vocab[v].t), &err) == 0 &&
              grammar_mask_begin(m, str_from(key), &err) == 0 &&
              encoder_encode(vocab[v].e, &ids, str_from(text), false, &err) == 0;
    for (size_t i = 0; i < ids.n && ok; i++) {
        const uint64_t *bits = grammar_mask_bits(m, &err);
        ok = bits && (bits[ids.ids[i] / 64] >> ids.ids[i] % 64 & 1) &&
             grammar_mask_accept(m, ids.ids[i], &err) == 0;
    }
    ok = ok && grammar_mask_may_end(m);
    ids_free(&ids);
    grammar_mask_free(m);
    return ok;
}

#define M_CALL(name, args) "<|tool_call>call:" name "{" args "}<tool_call|>"
#define Q(text) "<|\"|>" text "<|\"|>"

static const char look[] =
    "[{`type`:`function`,`function`:{`name`:`look`,`strict`:true,`parameters`:{`type`:`object`,"
    "`properties`:{`at`:{`type`:`string`},`how`:{`enum`:[`fast`,`slow`]},`n`:{`type`:`integer`,"
    "`minimum`:1,`maximum`:9}},`required`:[`at`]}}},"
    "{`type`:`function`,`function`:{`name`:`rest`}}]";

static void test_texts(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "chat_grammar.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        const int kind = chat_kind_of(cells[0], '\0');
        const bool must = !strcmp(cells[1], "must"), may = !strcmp(cells[3], "yes");
        json_t *tools = read_json(look);
        const chat_request req = { .tools = tools,
                                   .calls = must ? CHAT_CALLS_MUST : CHAT_CALLS_HELD };
        err_ctx err = { 0 };
        grammar *g;
        if (CHECK_MSG(chat_grammar(&g, chats[kind], &req, NULL, false, &err) == 0, "%s", err.msg))
            CHECK_MSG(accepts(kind, g, cells[4], cells[2]) == may, "row %d: %s", i, cells[2]);
        grammar_free(g);
        json_decref(tools);
    }
    case_rows_free(&rows);
}

/* Gemma's keys come in alphabetical order, whatever the schema's is. */
static void test_sorted(void)
{
    static const struct { const char *text; bool may; } rows[] = {
        { M_CALL("f", "A:1,b:2"), true }, { M_CALL("f", "b:2,A:1"), false },
        { M_CALL("f", "A:1,b:2," Q("c d") ":3"), true },
    };
    json_t *tools = read_json("[{`name`:`f`,`strict`:true,`parameters`:{`type`:`object`,"
                              "`required`:[`b`,`A`],`properties`:{`c d`:{`type`:`integer`},"
                              "`b`:{`type`:`integer`},`A`:{`type`:`integer`}}}}]");
    const chat_request req = { .tools = tools, .calls = CHAT_CALLS_MUST };
    err_ctx err = { 0 };
    grammar *g;
    if (CHECK_MSG(chat_grammar(&g, chats[GEMMA], &req, NULL, false, &err) == 0, "%s", err.msg))
        for (size_t i = 0; i < ARRAY_LEN(rows); i++)
            CHECK_MSG(accepts(GEMMA, g, "", rows[i].text) == rows[i].may, "%s", rows[i].text);
    grammar_free(g);
    json_decref(tools);
}

/* What cannot be held is refused by its name; a tool that is not strict has what can be. */
static void test_refused(void)
{
    static case_rows rows;
    if (!case_rows_read(&rows, "chat_tools_refused.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        char text[512];
        snprintf(text, sizeof text, "[{`type`:`function`,`function`:{%s,`strict`:%s}}]", cells[2],
                 cells[1][0] ? "true" : "false");
        json_t *tools = read_json(text);
        const chat_request req = { .tools = tools, .calls = CHAT_CALLS_MUST };
        err_ctx err = { 0 };
        grammar *g;
        const chat *of = chats[chat_kind_of(cells[0], '\0')];
        const int rc = chat_grammar(&g, of, &req, NULL, false, &err);
        CHECK_MSG(cells[3][0] ? rc < 0 && strstr(err.msg, cells[3]) : rc == 0, "row %d: %d, %s", i,
                  rc, err.msg);
        grammar_free(g);
        json_decref(tools);
    }
    case_rows_free(&rows);
}

int main(int argc, char **argv)
{
    err_ctx err = { 0 };
    test_begin("chat_grammar", argc, argv);
    if (chats_open()) {
        for (int v = 0; v < N_VOCAB; v++)
            for (int i = 0; i < 2; i++)
                CHECK(token_trie_create(&tries[v][i], vocab[v].t, i, &err) == 0);
        for (size_t k = 0; k < ARRAY_LEN(calling); k++)
            CHECK(make_chat(&small[calling[k]], small_vocab(calling[k]),
                            kind_templates[calling[k]], &err) == 0);
        test_texts();
        test_sorted();
        test_refused();
        test_forced();
        test_held();
        for (int v = 0; v < N_VOCAB; v++)
            for (int i = 0; i < 2; i++) token_trie_free(tries[v][i]);
    }
    for (int k = 0; k < N_KIND; k++) chat_free(small[k]);
    chats_close();
    return test_end();
}
