/* test_grammar_schema.c - JSON schemas as grammars: random schemas with values that a small
 * validator judges, and texts that the grammar itself leads to; each keyword by hand, in
 * tests/cases/schemas.txt; what is refused, by name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/grammar/grammar.h"
#include "tests/case_file.h"
#include "tests/make_schema.h"

static grammar_run *run_of(grammar **g, const json_t *schema, bool strict, err_ctx *err)
{
    grammar_run *r = NULL;
    if (grammar_from_schema(g, schema, strict, err) < 0) return NULL;
    if (grammar_run_create(&r, *g, err) < 0) return NULL;
    return r;
}

static bool accepts(grammar_run *r, const char *s)
{
    grammar_state at = grammar_run_start(r);
    for (; *s && at >= 0; s++) at = grammar_run_step(r, at, (uint8_t)*s);
    return at >= 0 && grammar_run_may_end(r, at);
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* Each line of texts begins with + or -. */
static void check_texts(const char *schema, const json_t *s, bool strict, char *texts)
{
    err_ctx err = { 0 };
    grammar *g = NULL;
    grammar_run *r = run_of(&g, s, strict, &err);
    CHECK_MSG(r, "%s: %s", schema, err.msg);
    for (char *t = strtok(texts, "\n"); t && r; t = strtok(NULL, "\n"))
        CHECK_MSG(accepts(r, t + 1) == (*t == '+'), "%s: %s should be %s", schema, t + 1,
                  *t == '+' ? "accepted" : "refused");
    grammar_run_free(r);
    grammar_free(g);
}

static void check_refused(const char *schema, const json_t *s, const char *words)
{
    err_ctx err = { 0 };
    grammar *g = NULL;
    const int rc = grammar_from_schema(&g, s, true, &err);
    CHECK_MSG(rc < 0 && !g && strstr(err.msg, words), "%s: rc %d, '%s', not '%s'", schema, rc,
              err.msg, words);
    grammar_free(g);
}

static void test_rows(void)
{
    static case_file file;
    const bool ok = case_file_read(&file, "schemas.txt");
    for (int i = 0; i < file.n && ok; i++) {
        const test_case *c = &file.cases[i];
        json_t *schema = json_loads(c->body, JSON_DECODE_ANY, NULL);
        if (!CHECK_MSG(schema, "not JSON: %s", c->body)) continue;
        if (strcmp(c->head, "refused") == 0) check_refused(c->body, schema, c->want);
        else check_texts(c->body, schema, strcmp(c->head, "strict") == 0, c->want);
        json_decref(schema);
    }
    case_file_free(&file);
    json_t *any = json_object();         /* what no text file can show */
    err_ctx err = { 0 };
    grammar *g = NULL;
    grammar_run *r = run_of(&g, any, false, &err);
    CHECK(r && !accepts(r, "\"a\nb\"") && !accepts(r, "\"\xC3\""));
    grammar_run_free(r);
    grammar_free(g);
    json_decref(any);
}

static void test_memory(void)
{
    json_t *schema = json_loads("{\"properties\":{\"a\":{\"allOf\":[{\"type\":\"integer\"}]},"
                                "\"b\":{\"enum\":[\"x\",2]}},\"additionalProperties\":true}", 0,
                                    NULL);
    for (long n = 1; n < 400; n++) {
        err_ctx err = { 0 };
        grammar *g;
        mem_fail_after(n);
        const int rc = grammar_from_schema(&g, schema, true, &err);
        mem_fail_after(0);
        if (!CHECK_MSG(rc == 0 || rc == ERR_NOMEM, "allocation %ld: %d %s", n, rc, err.msg)) break;
        grammar_free(g);
        if (rc == 0) break;
    }
    json_decref(schema);
}

/* ---- values and texts ------------------------------------------------------------------------ */

static test_rng rng;

/* Any value at all, small. */
static json_t *any_value(int depth)
{
    switch (test_below(&rng, depth > 0 ? 9 : 7)) {
    case 0: return json_null();
    case 1: return json_boolean(test_below(&rng, 2));
    case 2: return json_integer((json_int_t)test_below(&rng, 500) - 250);
    case 3: return json_real(((double)test_below(&rng, 4000) - 2000) / 8);
    case 4: return json_string("o");
    case 5: return json_string("\xC3\xA9t\"\n\xF0\x9F\x98\x80");
    case 6: return json_string("");
    case 7: return json_pack("[o,o]", any_value(depth - 1), any_value(depth - 1));
    default: return json_pack("{s:o}", schema_names[test_below(&rng, SCHEMA_N_NAME - 2)],
                              any_value(depth - 1));
    }
}

static json_t *number_for(const json_t *s)
{
    const bool whole = strcmp(json_string_value(json_object_get(s, "type")), "integer") == 0;
    const json_t *lo = json_object_get(s, "minimum"), *hi = json_object_get(s, "maximum");
    if (!lo) lo = json_object_get(s, "exclusiveMinimum");
    if (!hi) hi = json_object_get(s, "exclusiveMaximum");
    double from = lo ? json_number_value(lo) : hi ? json_number_value(hi) - 100 : -50;
    double to = hi ? json_number_value(hi) : from + 100;
    const uint32_t pick = test_below(&rng, 8);           /* often the bounds themselves */
    const double v = pick == 0 ? from : pick == 1 ? to : from + (to - from) * test_below(&rng,
        101) / 100;
    return whole ? json_integer((json_int_t)v) : json_real(round(v * 100) / 100);
}

/* A value that tries to be valid. */
static json_t *value_for(const json_t *s, const json_t *root, int depth)
{
    const json_t *x;
    const char *type = json_string_value(json_object_get(s, "type"));
    if (json_is_boolean(s) || depth < -3) return any_value(1);
    if ((x = json_object_get(s, "$ref")))
        return value_for(json_object_get(json_object_get(root, "$defs"), "t"), root, depth - 1);
    if ((x = json_object_get(s, "allOf"))) {
        json_t *a = value_for(json_array_get(x, 0), root, depth);
        json_t *b = value_for(json_array_get(x, 1), root, depth);
        json_object_del(a, "zz");        /* further members come last */
        json_object_del(a, "abcd");
        json_object_update(a, b);
        json_decref(b);
        return a;
    }
    if ((x = json_object_get(s, "anyOf")))
        return value_for(json_array_get(x, test_below(&rng, 2)), root, depth - 1);
    if ((x = json_object_get(s, "const"))) return json_deep_copy(x);
    if ((x = json_object_get(s, "enum"))) return json_deep_copy(json_array_get(x, test_below(&rng,
        3)));
    if (!type) return any_value(1);
    if (strcmp(type, "boolean") == 0) return json_boolean(test_below(&rng, 2));
    if (strcmp(type, "null") == 0) return json_null();
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0) return number_for(s);
    if (strcmp(type, "string") == 0) {
        static const char *const strings[] = { "", "a", "\xC3\xA9o", "a\"\\",
                                               "\xF0\x9F\x98\x80\n/b", "12345", "1234567" };
        return json_string(strings[test_below(&rng, ARRAY_LEN(strings))]);
    }
    if (strcmp(type, "array") == 0) {
        json_t *v = json_array();
        const size_t n = test_below(&rng, 5), fixed = json_array_size(json_object_get(s,
            "prefixItems"));
        for (size_t i = 0; i < n; i++) {
            x = i < fixed ? json_array_get(json_object_get(s, "prefixItems"),
                                           i) : json_object_get(s, "items");
            json_array_append_new(v, x ? value_for(x, root, depth - 1) : any_value(1));
        }
        return v;
    }
    json_t *v = json_object(), *p;
    const char *key;
    json_object_foreach(json_object_get(s, "properties"), key, p)
        if (test_below(&rng, 2) || schema_lists(json_object_get(s, "required"), key))
            json_object_set_new(v, key, value_for(p, root, depth - 1));
    if (test_below(&rng, 3) == 0) {
        x = json_object_get(s, "additionalProperties");
        json_object_set_new(v, test_below(&rng, 2) ? "abcd" : "zz",
                            x && json_is_object(x) ? value_for(x, root, depth - 1) : any_value(1));
    }
    return v;
}

/* The value with some part of it changed; the order of members stays. */
static json_t *mutated(const json_t *v)
{
    if (json_is_object(v) && json_object_size(v) && test_below(&rng, 4)) {
        json_t *out = json_object(), *x;
        const char *key;
        const size_t at = test_below(&rng, (uint32_t)json_object_size(v));
        size_t i = 0;
        json_object_foreach((json_t *)v, key, x) {
            if (i++ != at) json_object_set(out, key, x);
            else if (test_below(&rng, 3)) json_object_set_new(out, key, mutated(x));
        }
        return out;
    }
    if (json_is_array(v) && json_array_size(v) && test_below(&rng, 4)) {
        json_t *out = json_copy((json_t *)v);
        const size_t at = test_below(&rng, (uint32_t)json_array_size(v));
        if (test_below(&rng, 3) == 0) json_array_remove(out, at);
        else if (test_below(&rng, 3) == 0) json_array_append_new(out, any_value(0));
        else json_array_set_new(out, at, mutated(json_array_get(v, at)));
        return out;
    }
    if (json_is_integer(v) && test_below(&rng, 2))
        return json_integer(json_integer_value(v) + (json_int_t)test_below(&rng, 7) - 3);
    return any_value(1);
}

/* A text that the grammar leads to: bytes at random, those that close things more often. */
static bool led_text(textbuf *out, grammar_run *r)
{
    static const char closing[] = "\"]}:,0 null";
    grammar_state at = grammar_run_start(r);
    out->len = 0;
    while (out->len < 4000 && at >= 0) {
        if (grammar_run_may_end(r, at) && test_below(&rng, 3)) break;
        const bool close = out->len > 300 || test_below(&rng, 3) == 0;
        char c = 0;
        grammar_state to = GRAMMAR_DEAD;
        for (uint32_t k = 0; k < 12 && to < 0 && close; k++) {
            c = closing[out->len > 300 ? k : test_below(&rng, sizeof closing - 1)];
            to = grammar_run_step(r, at, (uint8_t)c);
        }
        const int from = (int)test_below(&rng, 256);
        for (int k = 0; k < 256 && to < 0; k++) {
            c = (char)(from + k);
            to = grammar_run_step(r, at, (uint8_t)c);
        }
        if (to < 0) return grammar_run_may_end(r, at);
        textbuf_put(out, (str_view){ &c, 1 });
        at = to;
    }
    return at >= 0 && grammar_run_may_end(r, at);
}

/* A name of the schema's that is escaped or double is outside what the grammar writes; so are
 * numbers with exponents that JSON's writer chose. */
static bool is_written_alike(const char *text) { return !strpbrk(text, "eE") || !strstr(text,
    "e-"); }

static void test_random(void)
{
    int n_schema = 0, n_good = 0, n_bad = 0, n_led = 0, n_none = 0;
    rng = (test_rng){ 7 };
    for (int round = 0; round < test_rounds(300, 210); round++) {
        const bool strict = round & 1;
        json_t *schema = schema_random(&rng);
        char *shown = json_dumps(schema, JSON_COMPACT);
        err_ctx err = { 0 };
        grammar *g = NULL;
        grammar_run *r = run_of(&g, schema, strict, &err);
        if (!r) {
            n_none++;
            CHECK_MSG(strstr(err.msg, "no finite text"), "%s: %s", shown, err.msg);
        }
        for (int k = 0; k < 30 && r; k++) {
            json_t *v = value_for(schema, schema, 3);
            for (int m = (int)test_below(&rng, 3); m > 0; m--) {
                json_t *other = mutated(v);
                json_decref(v);
                v = other;
            }
            const bool want = schema_valid(schema, v, schema, strict);
            const size_t how = k & 1 ? JSON_COMPACT : 0;
            char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15) | how);
            if (is_written_alike(text))
                CHECK_MSG(accepts(r, text) == want, "%s\n    %s should be %s", shown, text,
                          want ? "accepted" : "refused");
            n_good += want;
            n_bad += !want;
            free(text);
            json_decref(v);
        }
        textbuf text = { 0 };
        for (int k = 0; k < 10 && r; k++) {
            json_error_t why = { .text = "" };
            if (!led_text(&text, r)) continue;
            json_t *v = json_loadb(text.ptr, text.len, JSON_DECODE_ANY, &why);
            CHECK_MSG(v && schema_valid(schema, v, schema, strict), "%s\n    led to %.*s %s", shown,
                      (int)text.len, text.ptr, why.text);
            n_led++;
            json_decref(v);
        }
        textbuf_free(&text);
        n_schema += r != NULL;
        grammar_run_free(r);
        grammar_free(g);
        free(shown);
        json_decref(schema);
    }
    CHECK_MSG(n_schema > 200 && n_good > 1000 && n_bad > 1000 && n_led > 1000 && n_none < 60,
              "%d schemas, %d good, %d bad, %d led, %d without a text", n_schema, n_good, n_bad,
                  n_led, n_none);
}

int main(int argc, char **argv)
{
    test_begin("grammar_schema", argc, argv);
    test_rows();
    test_memory();
    test_random();
    return test_end();
}
