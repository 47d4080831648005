/* test_grammar_mask.c - masks of tokens against their definition: a token may come if and only if
 * the grammar can go along with all its bytes. Both demo vocabularies, every token, at random
 * places. */
#include <stdio.h>
#include <string.h>

#include "engine/text/grammar/grammar_mask.h"
#include "tests/model_fixture.h"
#include "tests/test.h"

static const char *const models[] = {
    "tests/models/demo-qwen3next-mtp.gguf", "tests/models/demo-gptoss-MXFP4.gguf",
};

static const struct { const char *text; bool gbnf; } forms[] = {
    { "{\"type\":\"object\"}", 0 },
    { "{\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},\"age\":{\"type\":"
      "\"integer\",\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":"
      "[\"red\",\"green\",\"blue\"]},\"maxItems\":5}},\"required\":[\"name\",\"age\"]}", 0 },
    { "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":300,\"maxLength\":1000}}",
     0 },
    { "root ::= (\"the \" | [a-z]+ \" \")* \".\"", 1 },
    { "root ::= \"\xC3\xA9\"{1,9} | \"\xF0\x9F\x98\x80\" . [^\\n]*", 1 },
};

typedef struct fixture { model_fixture f; const tokenizer *t; token_trie *v; } fixture;

static bool fixture_open(fixture *r, const char *path)
{
    err_ctx err = { 0 };
    *r = (fixture){ 0 };
    if (!model_fixture_open(&r->f, path) || !model_fixture_chat(&r->f)) return false;
    r->t = r->f.t;
    return CHECK_MSG(token_trie_create(&r->v, r->t, false, &err) == 0, "%s: %s", path, err.msg);
}

static void fixture_close(fixture *r)
{
    token_trie_free(r->v);
    model_fixture_close(&r->f);
}

static grammar *form_of(const char *text, bool gbnf)
{
    err_ctx err = { 0 };
    grammar *g;
    json_t *schema = gbnf ? NULL : json_loads(text, 0, NULL);
    const int rc = gbnf ? grammar_from_gbnf(&g, str_from(text), &err)
                        : grammar_from_schema(&g, schema, true, &err);
    json_decref(schema);
    CHECK_MSG(rc == 0, "%s: %s", text, err.msg);
    return g;
}

static grammar_state after(grammar_run *r, grammar_state at, str_view bytes)
{
    for (size_t i = 0; i < bytes.len && at >= 0; i++)
        at = grammar_run_step(r, at, (uint8_t)bytes.ptr[i]);
    return at;
}

/* Every token at this place; `own` is a run that only this test uses. Returns a random one that may
 * come, or -1. */
static int check_place(const fixture *r, const uint64_t *bits, grammar_run *own, grammar_state at,
                       int n_vocab, test_rng *rng, const char *form)
{
    int wrong = -1, n_may = 0, pick = -1;
    const bool may_end = grammar_run_may_end(own, at);
    for (int id = 0; id < n_vocab; id++) {
        const bool bit = bits[id / 64] >> id % 64 & 1;
        bool want = false;
        if (id < tokenizer_n_token(r->t)) {
            const str_view bytes = tokenizer_bytes(r->t, id, false);
            if (tokenizer_is_stop(r->t, id)) want = may_end;
            else if (tokenizer_kind(r->t, id) == TOKEN_NORMAL && bytes.len)
                want = after(own, at, bytes) >= 0;
            if (want && !tokenizer_is_stop(r->t, id) && test_below(rng, (uint32_t)++n_may) == 0)
                pick = id;
        }
        if (bit != want && wrong < 0) wrong = id;
    }
    CHECK_MSG(wrong < 0, "%s: token %d is judged wrong", form, wrong);
    return pick;
}

/* The byte that alone may come, by trying all; -1: none. */
static int only_byte(grammar_run *own, grammar_state at)
{
    int only = -1, n = 0;
    for (int byte = 0; byte < 256; byte++)
        if (grammar_run_step(own, at, (uint8_t)byte) >= 0) only = byte, n++;
    return n == 1 && !grammar_run_may_end(own, at) ? only : -1;
}

/* Text without a choice is spelled by the longest tokens. Returns their number. */
static int check_forced(const fixture *r, grammar_mask *m, grammar_run *own, grammar_state at,
                        int n_vocab, const char *form)
{
    enum { MOST = 4, BYTES = 512 };
    const int32_t n_token = min_int(n_vocab, tokenizer_n_token(r->t));
    int32_t got[MOST];
    char text[BYTES];
    int n_byte = 0, done = 0, k = 0;
    for (int byte; n_byte < BYTES && (byte = only_byte(own, at)) >= 0; n_byte++) {
        text[n_byte] = (char)byte;
        at = grammar_run_step(own, at, (uint8_t)byte);
    }
    const int n = grammar_mask_forced(m, got, MOST);
    for (int best = 0; k < MOST; k++, done += best) {
        best = 0;
        for (int32_t id = 0; id < n_token; id++) {
            const str_view x = tokenizer_bytes(r->t, id, false);
            if (tokenizer_kind(r->t, id) == TOKEN_NORMAL && (int)x.len > best &&
                (int)x.len <= n_byte - done && memcmp(x.ptr, text + done, x.len) == 0)
                best = (int)x.len;
        }
        if (best == 0) break;
        const str_view x = k < n ? tokenizer_bytes(r->t, got[k], false) : (str_view){ "", 0 };
        CHECK_MSG((int)x.len == best && memcmp(x.ptr, text + done, x.len) == 0,
                  "%s: token %d of '%.*s' is '%.*s'", form, k, n_byte, text, (int)x.len, x.ptr);
    }
    CHECK_MSG(n == k, "%s: %d tokens instead of %d for '%.*s'", form, n, k, n_byte, text);
    return n;
}

/* Accepts some tokens that may come, the first of each mask or later ones, and takes them back. */
static void go_and_return(grammar_mask *m, int n_vocab, test_rng *rng)
{
    const int most = (int)test_below(rng, GRAMMAR_MASK_BACK + 1);
    err_ctx err;
    int n = 0;
    for (const uint64_t *bits; n < most && (bits = grammar_mask_bits(m, &err)); n++) {
        int id = (int)test_below(rng, (uint32_t)n_vocab);
        while (!(bits[id / 64] >> id % 64 & 1)) id = (id + 1) % n_vocab;
        if (!CHECK(grammar_mask_accept(m, id, &err) == 0)) break;
    }
    CHECK(grammar_mask_accept(m, -1, &err) < 0);         /* what fails cannot be taken back */
    grammar_mask_back(m, n);
}

/* Returns the number of forced tokens. */
static int walk_form(const fixture *r, const char *text, bool gbnf, uint64_t seed, int n_step)
{
    int n_forced = 0;
    const int n_vocab = tokenizer_n_token(r->t) + 70;    /* more logits than tokens */
    grammar *g = form_of(text, gbnf);
    grammar_mask *m = NULL;
    grammar_run *own = NULL;
    err_ctx err = { 0 };
    test_rng rng = { seed };
    if (!g || !CHECK(grammar_mask_create(&m, g, r->v, n_vocab, &err) == 0 &&
                     grammar_run_create(&own, g, &err) == 0))
        goto done;
    grammar_state at = grammar_run_start(own);
    for (int i = 0; i < n_step; i++) {
        mem_guard(true);
        go_and_return(m, n_vocab, &rng);
        const uint64_t *bits = grammar_mask_bits(m, &err);
        mem_guard(false);
        if (!CHECK_MSG(bits, "%s: %s", text, err.msg)) break;
        if (grammar_run_n_state(own) > GRAMMAR_MAX_STATES / 2) grammar_run_keep(own, &at, 1);
        const int id = check_place(r, bits, own, at, n_vocab, &rng, text);
        CHECK(grammar_mask_may_end(m) == grammar_run_may_end(own, at));
        n_forced += check_forced(r, m, own, at, n_vocab, text);
        if (id < 0) break;
        at = after(own, at, tokenizer_bytes(r->t, id, false));
        mem_guard(true);
        const int rc = grammar_mask_accept(m, id, &err);
        mem_guard(false);
        if (!CHECK_MSG(rc == 0, "%s: %s", text, err.msg)) break;
    }
done:
    grammar_run_free(own);
    grammar_mask_free(m);
    grammar_free(g);
    return n_forced;
}

/* The same text again needs no new mask, which would be in another place; a token that does not fit
 * changes nothing. */
static void test_again(const fixture *r)
{
    grammar *g = form_of("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5000}}",
                         0);
    grammar_mask *m = NULL;
    err_ctx err = { 0 };
    int quote = -1, letter = -1, open = -1;
    for (int id = 0; id < tokenizer_n_token(r->t); id++) {
        const str_view bytes = tokenizer_bytes(r->t, id, false);
        if (str_is(bytes, "\"")) quote = id;
        if (str_is(bytes, "e")) letter = id;
        if (str_is(bytes, "[")) open = id;
    }
    if (!g || !CHECK(grammar_mask_create(&m, g, r->v, tokenizer_n_token(r->t), &err) == 0)) return;
    CHECK(grammar_mask_accept(m, letter, &err) == ERR_RANGE);
    CHECK(grammar_mask_accept(m, -1, &err) == ERR_RANGE && grammar_mask_accept(m, 1 << 30,
        &err) < 0);
    const uint64_t *masks[402], *bits;
    int n = 0, made[2];
    for (int turn = 0; turn < 2; turn++) {
        const int before = n;
        grammar_mask_reset(m);
        bool ok = grammar_mask_accept(m, open, &err) == 0 && grammar_mask_accept(m, quote,
            &err) == 0;
        for (int i = 0; i < 200 && ok; i++) {
            int k = 0;
            ok = (bits = grammar_mask_bits(m, &err)) && grammar_mask_accept(m, letter, &err) == 0;
            while (k < n && masks[k] != bits) k++;
            if (k == n) masks[n++] = bits;
        }
        CHECK_MSG(ok, "%s", err.msg);
        made[turn] = n - before;
    }
    CHECK_MSG(made[0] >= 1 && made[0] < 10 && made[1] == 0, "%d and %d masks were made", made[0],
              made[1]);
    grammar_mask_free(m);
    grammar_free(g);
}

/* A text with more places than the tables hold. */
static void test_long(const fixture *r)
{
    grammar *g = form_of("root ::= \"[\" [a-z]{1,60000} \"]\"", 1);
    grammar_mask *m = NULL;
    err_ctx err = { 0 };
    int letter = -1, open = -1, close = -1;
    for (int id = 0; id < tokenizer_n_token(r->t); id++) {
        const str_view bytes = tokenizer_bytes(r->t, id, false);
        if (str_is(bytes, "e")) letter = id;
        if (str_is(bytes, "[")) open = id;
        if (str_is(bytes, "]")) close = id;
    }
    if (!g || !CHECK(grammar_mask_create(&m, g, r->v, tokenizer_n_token(r->t), &err) == 0)) return;
    bool ok = grammar_mask_accept(m, open, &err) == 0;
    for (int i = 0; i < 60000 && ok; i++) {
        const uint64_t *bits = i % 1000 == 999 ? grammar_mask_bits(m, &err) : NULL;
        ok = (i % 1000 != 999 || (bits && bits[letter / 64] >> letter % 64 & 1)) &&
             grammar_mask_accept(m, letter, &err) == 0;
        const int n = i < 59000 ? i % 7 : 0;             /* also across a clearing of the tables */
        for (int k = 0; k < n && ok; k++) ok = grammar_mask_accept(m, letter, &err) == 0;
        grammar_mask_back(m, n);
    }
    CHECK_MSG(ok, "%s", err.msg);
    CHECK(grammar_mask_accept(m, letter, &err) < 0);
    CHECK(grammar_mask_accept(m, close, &err) == 0 && grammar_mask_may_end(m));
    CHECK(GRAMMAR_MAX_STATES < 60000);   /* the tables became full */
    grammar_mask_free(m);
    grammar_free(g);
}

int main(int argc, char **argv)
{
    test_begin("grammar_mask", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        fixture r;
        int n_forced = 0;
        if (fixture_open(&r, models[i])) {
            for (size_t k = 0; k < ARRAY_LEN(forms); k++)
                for (uint64_t seed = 1; seed <= 3; seed++)
                    n_forced += walk_form(&r, forms[k].text, forms[k].gbnf, seed + i, 25);
            CHECK_MSG(n_forced > 50, "%s: %d forced tokens", models[i], n_forced);
            test_again(&r);
            test_long(&r);
        }
        fixture_close(&r);
    }
    return test_end();
}
