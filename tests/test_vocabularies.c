/* test_vocabularies.c - the vocabularies of the further families: byte-level ones with other cuts,
 * SentencePiece by scores, and BPE on characters.
 *
 * Small vocabularies trained with Hugging Face tokenizers and sentencepiece, whose ids of the same
 * texts are the golden data. The rest is compared with the definition written plainly, or shows
 * what ids cannot: what is added to a text, what ends an answer, memory that runs out, and that
 * work stays proportional to the text. Bad files and texts in detail: cases/tokenizers.txt. */
#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer/token_trie.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"
#include "tests/case_file.h"
#include "tests/tokenizer_checks.h"
#include "tests/tokenizer_recipe.h"

static str_view view(const char *s) { return str_from(s); }

/* ---- golden cases ---------------------------------------------------------------------------- */

typedef struct vocabulary {
    const char *name, *pre;
    int n_case;
    bool adds_bos, adds_eos, adds_space;
    const char *bos, *stops[4];
} vocabulary;

static const vocabulary vocabularies[] = {
    { "qwen35", "qwen35", 733, 0, 0, 0, NULL, { "<|im_end|>", "<|endoftext|>" } },
    { "glm4", "glm4", 745, 0, 0, 0, "[gMASK]", { "<|endoftext|>", "<|user|>", "<|observation|>" } },
    { "llama-bpe", "llama-bpe", 723, 1, 0, 0, "<|begin_of_text|>",
      { "<|eot_id|>", "<|end_of_text|>" } },
    { "olmo", "olmo", 781, 0, 0, 0, NULL, { "<|endoftext|>" } },
    { "gemma4", "words", 750, 1, 0, 0, "<bos>", { "<turn|>", "<eos>", "<|tool_response>" } },
    { "gemma4-lines", "lines", 750, 1, 0, 0, "<bos>", { "<turn|>", "<eos>", "<|tool_response>" } },
    { "sentencepiece", "words", 723, 1, 0, 1, "<s>", { "</s>" } },
    { "sentencepiece-phrases", "none", 723, 1, 1, 0, "<s>", { "</s>" } },
};

typedef struct fixture { gguf *g; tokenizer *t; encoder *e; } fixture;

static bool fixture_open(fixture *r, const char *path)
{
    err_ctx err = { 0 };
    *r = (fixture){ 0 };
    return CHECK_MSG(gguf_open(&r->g, path, &err) == 0 &&
                     tokenizer_create(&r->t, r->g, &err) == 0 &&
                     encoder_create(&r->e, r->t, &err) == 0, "%s: %s", path, err.msg);
}

static void fixture_close(fixture *r)
{
    encoder_free(r->e);
    tokenizer_free(r->t);
    gguf_close(r->g);
}

/* ---- what is added, and what ends an answer -------------------------------------------------- */

static void test_keys(const fixture *r, const vocabulary *v)
{
    const tokenizer *const t = r->t;
    int n_stop = 0;
    for (; n_stop < 4 && v->stops[n_stop]; n_stop++) {
        const int id = tokenizer_special(t, v->stops[n_stop]);
        CHECK_MSG(id >= 0 && tokenizer_is_stop(t, id), "%s: %s ends nothing", v->name,
                  v->stops[n_stop]);
    }
    CHECK_MSG(tokenizer_stops(t, NULL, 0) == n_stop, "%s: %d stops, expected %d", v->name,
              tokenizer_stops(t, NULL, 0), n_stop);
    CHECK_MSG(strcmp(tokenizer_pre_name(t), v->pre) == 0, "%s: cut as %s", v->name,
              tokenizer_pre_name(t));
    CHECK_MSG(tokenizer_adds_bos(t) == v->adds_bos && tokenizer_adds_eos(t) == v->adds_eos &&
              tokenizer_adds_space(t) == v->adds_space, "%s: adds %d %d %d", v->name,
              tokenizer_adds_bos(t), tokenizer_adds_eos(t), tokenizer_adds_space(t));
    CHECK(tokenizer_bos(t) == (v->bos ? tokenizer_special(t, v->bos) : -1));
}

static void test_whole(fixture *r, const vocabulary *v)
{
    id_list plain = { 0 }, whole = { 0 };
    char text[64];
    const size_t bos = v->adds_bos, eos = v->adds_eos;
    CHECK(encoder_encode(r->e, &plain, view("two words"), true, NULL) == 0);
    CHECK(encoder_encode_whole(r->e, &whole, view("two words"), true, true, NULL) == 0);
    CHECK_MSG(whole.n == plain.n + bos + eos &&
              memcmp(whole.ids + bos, plain.ids, plain.n * sizeof *plain.ids) == 0,
              "%s: %zu ids, whole %zu", v->name, plain.n, whole.n);
    CHECK(!bos || whole.ids[0] == tokenizer_bos(r->t));
    CHECK(!eos || whole.ids[whole.n - 1] == tokenizer_eos(r->t));

    whole.n = 0;
    CHECK(encoder_encode_whole(r->e, &whole, view("two words"), true, false, NULL) == 0);
    CHECK_MSG(whole.n == plain.n + bos, "%s: EOS where more is to come", v->name);
    whole.n = 0;
    CHECK(encoder_encode_whole(r->e, &whole, view(""), true, false, NULL) == 0 && whole.n == bos);
    if (bos) {
        snprintf(text, sizeof text, "%stwo words", v->bos);
        whole.n = 1;                     /* what stood there before stays */
        whole.ids[0] = 77;
        CHECK(encoder_encode_whole(r->e, &whole, view(text), true, false, NULL) == 0);
        CHECK_MSG(whole.n == 1 + 1 + plain.n && whole.ids[0] == 77 &&
                  whole.ids[1] == tokenizer_bos(r->t) &&
                  memcmp(whole.ids + 2, plain.ids, plain.n * sizeof *plain.ids) == 0,
                  "%s: a text with its own BOS has %zu ids", v->name, whole.n);
    }
    ids_free(&plain);
    ids_free(&whole);
}

/* ---- merging --------------------------------------------------------------------------------- */

typedef struct symbol { size_t at, len; } symbol;

static int id_of(const bpe *b, const uint8_t *p, size_t len)
{
    return len > b->longest ? -1 : bpe_find(b, p, len, bpe_hash(p, len));
}

/* The definition of SentencePiece's merging, by text and score, as plainly as possible. */
static size_t merge_by_score(const tokenizer *t, const float *scores, int32_t *out,
                             const uint8_t *p, size_t len)
{
    symbol s[2048];
    size_t n = 0, n_out = 0;
    for (size_t i = 0; i < len; i += s[n++].len) {
        uint32_t cp;
        s[n] = (symbol){ i, utf8_read(&cp, p + i) };
    }
    for (;;) {
        size_t best = n;
        float score = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const int id = id_of(&t->vocab, p + s[i].at, s[i].len + s[i + 1].len);
            if (id < 0 || (best < n && scores[id] <= score)) continue;
            best = i;
            score = scores[id];
        }
        if (best == n) break;
        s[best].len += s[best + 1].len;
        n--;
        memmove(s + best + 1, s + best + 2, (n - best - 1) * sizeof *s);
    }
    for (size_t i = 0; i < n; i++) {
        const int id = id_of(&t->vocab, p + s[i].at, s[i].len);
        if (id >= 0) out[n_out++] = id;
        for (size_t k = 0; id < 0 && k < s[i].len; k++)
            out[n_out++] = t->vocab.byte_id[p[s[i].at + k]];
    }
    return n_out;
}

static void test_merging(const fixture *r, const char *name)
{
    const gguf_kv *const kv = gguf_find(r->g, "tokenizer.ggml.scores");
    const tokenizer *const t = r->t;
    float *const scores = test_alloc((size_t)t->vocab.n_token, sizeof *scores);
    bpe_work work = { 0 };
    test_rng rng = { 23 };
    int bad = 0;
    for (int id = 0; id < t->vocab.n_token; id++) scores[id] = load_f32(kv->data + 4 * id);
    for (int round = 0; round < 400; round++) {
        char text[2048];
        int32_t plain[2048];
        const size_t n_part = 1 + test_below(&rng, round % 4 ? 5 : 30);
        const size_t len = tokenizer_random_text(&rng, text, n_part);
        const uint8_t *const p = (const uint8_t *)text;
        const size_t n = t->model->by_score ? merge_by_score(t, scores, plain, p, len)
                                            : tokenizer_merge_plain(&t->vocab, plain, p, len);
        bad += tokenizer_merge_differs(&t->vocab, &work, plain, n, p, len);
    }
    CHECK_MSG(bad == 0, "%s: %d random texts merged otherwise", name, bad);
    bpe_work_free(&work);
    mem_free(scores);
}

/* Words are cut only where nothing merges: without those cuts the ids are the same. */
static void test_word_cuts(fixture *r, const char *name)
{
    const pretokenizer own = r->t->pre;
    test_rng rng = { 29 };
    int bad = 0;
    CHECK(own == PRE_WORDS);
    for (int round = 0; round < 300; round++) {
        char text[2048];
        const str_view s = { text, tokenizer_random_text(&rng, text, 1 + test_below(&rng, 20)) };
        id_list a = { 0 }, b = { 0 };
        encoder *e = NULL;
        CHECK(encoder_encode(r->e, &a, s, false, NULL) == 0);
        r->t->pre = r->t->model->by_score ? PRE_WHOLE : PRE_LINES;
        CHECK(encoder_create(&e, r->t, NULL) == 0 && encoder_encode(e, &b, s, false, NULL) == 0);
        r->t->pre = own;
        bad += !ids_same(&a, &b);
        encoder_free(e);
        ids_free(&a);
        ids_free(&b);
    }
    CHECK_MSG(bad == 0, "%s: %d of 300 texts have other ids word by word", name, bad);
}

/* One line of any length is one piece here. */
static void test_work(const fixture *r, const char *name)
{
    static const char pattern[] = "the experts and \u4e2d\u6587 in the cache ";
    uint8_t *p = test_alloc(TOKENIZER_WORK_BYTES + 64, 1);
    for (size_t i = 0; i < TOKENIZER_WORK_BYTES + 64; i++)
        p[i] = (uint8_t)pattern[i % (sizeof pattern - 1)];
    tokenizer_check_work(&r->t->vocab, p, name);
    mem_free(p);
}

/* Structured output walks the tokens as a tree: single bytes belong to it. */
static void test_trie(const fixture *r, const char *name)
{
    token_trie *v = NULL;
    err_ctx err = { 0 };
    int n_byte = 0;
    if (!CHECK_MSG(token_trie_create(&v, r->t, false, &err) == 0, "%s: %s", name, err.msg)) return;
    for (int id = 0; id < tokenizer_n_token(r->t); id++)
        n_byte += tokenizer_kind(r->t, id) == TOKEN_BYTE && token_trie_has(v, id);
    CHECK_MSG(n_byte == 256, "%s: %d bytes in the tree", name, n_byte);
    token_trie_free(v);
}

static void test_vocabulary(const vocabulary *v, const char *cases)
{
    char path[512];
    fixture r;
    test_path(path, sizeof path, "%s/tokenizer/small-%s.gguf", test_unpacked(), v->name);
    if (fixture_open(&r, path)) {
        const int n = tokenizer_check_cases(r.t, cases, v->name, v->name);
        CHECK_MSG(n == v->n_case, "%s: %d cases, expected %d", v->name, n, v->n_case);
        test_keys(&r, v);
        test_whole(&r, v);
        tokenizer_check_bytes(r.t, 500);
        if (r.t->model->by_char) {
            test_merging(&r, v->name);
            test_work(&r, v->name);
            test_trie(&r, v->name);
        }
        if (strcmp(v->pre, "words") == 0) test_word_cuts(&r, v->name);
    }
    fixture_close(&r);
}

/* ---- small files ----------------------------------------------------------------------------- */

static void check_file(char *const *cells)
{
    const int code = !strcmp(cells[0], "taken") ? 0 :
                     !strcmp(cells[0], "format") ? ERR_FORMAT : ERR_UNSUPPORTED;
    tokenizer *t;
    err_ctx err = { 0 };
    const int rc = tokenizer_of_recipe(&t, cells[1], &err);
    CHECK_MSG(rc == code && (rc == 0) == (t != NULL) && strstr(err.msg, cells[2]),
              "%s, %s: %d '%s', expected %d '%s'", cells[1], cells[3], rc, err.msg, code, cells[2]);
    tokenizer_free(t);
}

static void check_adds(char *const *cells)
{
    tokenizer *t;
    char got[20];
    if (!CHECK(tokenizer_of_recipe(&t, cells[1], NULL) == 0)) return;
    snprintf(got, sizeof got, "%d %d", tokenizer_adds_bos(t), tokenizer_adds_space(t));
    CHECK_MSG(!strcmp(got, cells[2]), "%s: %s", cells[3], got);
    CHECK(tokenizer_bytes(t, 0, false).len == 0 && str_is(tokenizer_bytes(t, 0, true), "<unk>"));
    tokenizer_free(t);
}

static void check_text(const char *of, char *const *cells)
{
    tokenizer *t;
    err_ctx err = { 0 };
    if (CHECK_MSG(tokenizer_of_recipe(&t, of, &err) == 0, "%s: %s", of, err.msg))
        tokenizer_check_ids(t, cells[1], !strcmp(cells[0], "text"), cells[2], cells[3]);
}

static void test_small(void)
{
    static case_rows rows;
    const char *of = "";
    (void)case_rows_read(&rows, "tokenizers.txt");
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        if (!strcmp(cells[0], "recipe")) of = cells[1];
        else if (!strcmp(cells[0], "adds")) check_adds(cells);
        else if (!strcmp(cells[0], "text") || !strcmp(cells[0], "plain")) check_text(of, cells);
        else check_file(cells);
    }
    case_rows_free(&rows);
}

/* The end of each text: a special token, what the vocabulary changes, and a repair. */
static void test_no_memory(void)
{
    static const char *const rows[][2] = {
        { "gpt2 +bc +ab +<x>:3 =a~b =b~c", "<x>e\u0301\xFF" },
        { "llama +a +b +c +ab:1:-1 +bc:1:-2", "<s>\u2581\xFF" },
        { "gemma4 +a +b +c +ab:1:-1 +bc:1:-2 =b~c =a~b", "<s>\u2581\xFF" },
    };
    char text[307];
    memset(text, 'a', sizeof text);                      /* one long piece */
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        memcpy(text + 300, rows[i][1], 7);
        tokenizer_check_no_memory(tokenizer_recipe(rows[i][0]), (str_view){ text, sizeof text },
                                  rows[i][0]);
    }
}

int main(int argc, char **argv)
{
    char path[512];
    size_t bytes;
    test_begin("vocabularies", argc, argv);
    test_small();
    test_no_memory();
    char *cases = test_read_file(test_path(path, sizeof path, "%s/tokenizer/cases-small.jsonl",
                                           test_unpacked()), &bytes);
    for (size_t i = 0; cases && i < ARRAY_LEN(vocabularies); i++)
        test_vocabulary(&vocabularies[i], cases);
    mem_free(cases);
    return test_end();
}
