/* test_vocabularies.c - the vocabularies of the further families: byte-level ones with other cuts,
 * SentencePiece by scores, and BPE on characters.
 *
 * Small vocabularies trained with Hugging Face tokenizers and sentencepiece, whose ids of the same
 * texts are the golden data. The rest is compared with the definition written plainly, or shows
 * what ids cannot: what is added to a text, what ends an answer, bad files, memory that runs out,
 * and that work stays proportional to the text. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer/token_bytes.h"
#include "engine/text/tokenizer/token_trie.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"
#include "loader/gguf_write.h"
#include "tests/test.h"
#include "tests/tokenizer_checks.h"

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

static bool is_ids(const id_list *got, const json_t *want)
{
    bool same = got->n == json_array_size(want);
    for (size_t i = 0; same && i < got->n; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    return same;
}

/* What decoding gives back: NFC where the vocabulary has that, and spaces for U+2581. */
static str_view decoded(byte_buf *out, const tokenizer *t, str_view text)
{
    nfc_scratch scratch = { 0 };
    const uint8_t *const p = (const uint8_t *)text.ptr;
    out->n = 0;
    if (pretokenizer_wants_nfc(t->pre)) CHECK(nfc_append(out, &scratch, p, text.len, NULL) == 0);
    else CHECK(byte_buf_append(out, p, text.len, NULL) == 0);
    if (t->model->by_char && out->n) out->n = token_bytes_spaces(out->ptr, out->n);
    nfc_scratch_free(&scratch);
    return (str_view){ (char *)out->ptr, out->n };
}

static void check_case(fixture *r, const json_t *row, const json_t *want, const char *what)
{
    const json_t *s = json_object_get(row, "text");
    const char *const cat = json_string_value(json_object_get(row, "cat"));
    const bool parse = json_is_true(json_object_get(row, "special"));
    const str_view text = { json_string_value(s), json_string_length(s) };
    id_list ids = { 0 };
    byte_buf back = { 0 };
    err_ctx err = { 0 };
    char *shown = json_dumps(want, JSON_COMPACT);
    CHECK_MSG(encoder_encode(r->e, &ids, text, parse, &err) == 0, "%s: %s", what, err.msg);
    CHECK_MSG(is_ids(&ids, want), "%s: %zu ids, from %d, expected %.200s", what, ids.n,
              ids.n ? (int)ids.ids[0] : -1, shown);
    /* around special tokens NFC of the parts is not NFC of the whole */
    if (strcmp(cat, "special-nfc") != 0)
        tokenizer_check_stream(r->t, &ids, decoded(&back, r->t, text), what);
    free(shown);
    byte_buf_free(&back);
    ids_free(&ids);
}

static void test_cases(fixture *r, const vocabulary *v, const char *data)
{
    char what[600];
    const char *line = NULL;
    int n = 0, n_line = 0;
    json_t *row;
    while ((row = json_line(&line, &n_line, data, v->name, what))) {
        const json_t *const want = json_object_get(json_object_get(row, "ids"), v->name);
        if (want) check_case(r, row, want, what);
        n += want != NULL;
        json_decref(row);
    }
    CHECK_MSG(n == v->n_case, "%s: %d cases, expected %d", v->name, n, v->n_case);
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

static size_t random_text(test_rng *rng, char *dst, size_t n_part)
{
    static const char *const parts[] = {
        "hello", " World", "  ", "\n", "\n\n", "'s", "e\u0301", "\u4e2d\u6587", "123", " 7", "...",
        "the", " the", " expert", "es", "ing", "\U0001f600", "\u3000", "A", "zz", "\u0939\u093f",
        "(", "\t", "\u0416", "   ", "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
    };
    size_t used = 0;
    while (n_part-- > 0) {
        const char *s = parts[test_below(rng, ARRAY_LEN(parts))];
        memcpy(dst + used, s, strlen(s));
        used += strlen(s);
    }
    return used;
}

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

/* The same for a list of merges. */
static size_t merge_by_list(const tokenizer *t, int32_t *out, const uint8_t *p, size_t len)
{
    const bpe *b = &t->vocab;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        const size_t size = utf8_read(&cp, p + i);
        const int id = id_of(b, p + i, size);
        if (id >= 0) out[n++] = id;
        for (size_t k = 0; id < 0 && k < size; k++) out[n++] = b->byte_id[p[i + k]];
        i += size;
    }
    for (;;) {
        uint64_t best = BPE_NO_PAIR;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const uint64_t pair = bpe_pair(b, (uint32_t)out[i], (uint32_t)out[i + 1]);
            if (pair >> 32 < best >> 32) best = pair, at = i;
        }
        if (best == BPE_NO_PAIR) return n;
        out[at] = (int32_t)(uint32_t)best;
        n--;
        memmove(out + at + 1, out + at + 2, (n - at - 1) * sizeof *out);
    }
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
        int32_t plain[2048], fast[2048];
        const size_t len = random_text(&rng, text, 1 + test_below(&rng, round % 4 ? 5 : 30));
        const uint8_t *const p = (const uint8_t *)text;
        const size_t n = t->model->by_score ? merge_by_score(t, scores, plain, p, len)
                                            : merge_by_list(t, plain, p, len);
        int64_t m = bpe_merge_long(&t->vocab, &work, fast, p, len, NULL);
        bad += m != (int64_t)n || memcmp(plain, fast, n * sizeof *plain) != 0;
        if (len > BPE_SHORT_PIECE) continue;
        m = (int64_t)bpe_merge_short(&t->vocab, fast, p, len);
        bad += m != (int64_t)n || memcmp(plain, fast, n * sizeof *plain) != 0;
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
        const str_view s = { text, random_text(&rng, text, 1 + test_below(&rng, 20)) };
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

/* One line of any length is one piece here: four times the text, about four times the steps. */
static void test_work(const fixture *r, const char *name)
{
    enum { SMALL = 1 << 14 };
    static const char pattern[] = "the experts and \u4e2d\u6587 in the cache ";
    uint8_t *p = test_alloc(4 * SMALL + 64, 1);
    int32_t *out = test_alloc(4 * SMALL + 64, sizeof *out);
    uint64_t steps[2];
    for (int big = 0; big < 2; big++) {
        bpe_work work = { 0 };
        size_t len = 0;
        while (len < (big ? 4 * SMALL : SMALL)) {
            memcpy(p + len, pattern, sizeof pattern - 1);
            len += sizeof pattern - 1;
        }
        CHECK(bpe_merge_long(&r->t->vocab, &work, out, p, len, NULL) > 0);
        steps[big] = work.steps;
        bpe_work_free(&work);
    }
    CHECK_MSG(steps[1] < 5 * steps[0], "%s: %llu steps, %llu for four times the text", name,
              (unsigned long long)steps[0], (unsigned long long)steps[1]);
    mem_free(p);
    mem_free(out);
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
        test_cases(&r, v, cases);
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

typedef struct extra { const char *text; int type; float score; } extra;

/* Ids: 0 <unk>, 1 <s>, 2 </s>, 3 to 258 the bytes, then extra. */
enum { FIRST = 259 };

typedef struct recipe {
    const char *model, *pre;             /* NULL: "llama", none */
    const char *leave_out;
    extra extra[12];
    const char *merges[8];               /* gemma4 only */
    const char *byte_text;               /* what the file has for byte 0x41; NULL: <0x41> */
    int scores_more;
    bool scores_as_i32, no_prefix, no_bos;
} recipe;

static bool writes(const recipe *r, const char *key)
{
    return !r->leave_out || strcmp(r->leave_out, key) != 0;
}

static void write_recipe(gguf_writer *w, const recipe *r)
{
    static const char *const first[] = { "<unk>", "<s>", "</s>" };
    int32_t types[300] = { TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_CONTROL };
    float scores[300] = { 0 };
    int n = FIRST, n_merge = 0;
    while (n < FIRST + 12 && r->extra[n - FIRST].text) n++;
    while (n_merge < 8 && r->merges[n_merge]) n_merge++;
    gguf_write_str(w, "tokenizer.ggml.model", view(r->model ? r->model : "llama"));
    if (r->pre) gguf_write_str(w, "tokenizer.ggml.pre", view(r->pre));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int i = 0; i < n; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)(i - 3) & 255);
        if (i >= 3 && i < FIRST) types[i] = TOKEN_BYTE;
        if (i >= FIRST) types[i] = r->extra[i - FIRST].type;
        if (i >= FIRST) scores[i] = r->extra[i - FIRST].score;
        gguf_write_array_str(w, view(i < 3 ? first[i] : i >= FIRST ? r->extra[i - FIRST].text :
                                     i == 3 + 0x41 && r->byte_text ? r->byte_text : text));
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, (uint64_t)n);
    if (writes(r, "scores"))
        gguf_write_array(w, "tokenizer.ggml.scores", r->scores_as_i32 ? GGUF_I32 : GGUF_F32, scores,
                         (uint64_t)(n + r->scores_more));
    if (r->model && strcmp(r->model, "gemma4") == 0 && writes(r, "merges")) {
        gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)n_merge);
        for (int i = 0; i < n_merge; i++) gguf_write_array_str(w, view(r->merges[i]));
    }
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", 2);
    if (r->no_prefix) gguf_write_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (r->no_bos) gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
}

static int small_tokenizer(tokenizer **t, const recipe *r, err_ctx *err)
{
    gguf_writer *w = gguf_writer_create();
    write_recipe(w, r);
    return tokenizer_from(t, w, err);
}

static void test_hostile(void)
{
    static char endless[300];
    memset(endless, 'a', sizeof endless - 1);
    const struct { recipe r; int code; const char *says, *why; } rows[] = {
        { { .extra = { { "a", 1, -1 }, { "b", 1, -2 }, { "ab", 1, 0 } } }, 0, "", "the sound one" },
        { { .pre = "default" }, 0, "", "what converters write" },
        { { .pre = "qwen2" }, ERR_UNSUPPORTED, "'qwen2' for tokenizer model llama", "" },
        { { .model = "gemma4", .pre = "llama-bpe" }, ERR_UNSUPPORTED, "model gemma4", "" },
        { { .model = "gemma4", .leave_out = "scores" }, 0, "", "scores mean nothing there" },
        { { .model = "gemma4", .leave_out = "merges" }, ERR_FORMAT, "merges is missing", "" },
        { { .leave_out = "scores" }, ERR_FORMAT, "tokenizer.ggml.scores is missing", "" },
        { { .scores_as_i32 = true }, ERR_FORMAT, "expected array of f32", "scores are integers" },
        { { .scores_more = 1 }, ERR_FORMAT, "260 entries for 259 tokens", "" },
        { { .scores_more = -1 }, ERR_FORMAT, "258 entries for 259 tokens", "" },
        { { .extra = { { "a", 1, INFINITY } } }, ERR_FORMAT, "score of token 259 is not", "" },
        { { .extra = { { "a", 1, NAN } } }, ERR_FORMAT, "score of token 259 is not", "" },
        { { .extra = { { "a", 7, 0 } } }, ERR_FORMAT, "type 7", "" },
        { { .byte_text = "<0x4g>" }, ERR_FORMAT, "token 68 '<0x4g>' is no byte", "" },
        { { .byte_text = "<0x041>" }, ERR_FORMAT, "is no byte", "seven characters" },
        { { .byte_text = "<0x42>" }, ERR_FORMAT, "single byte 0x41", "one twice, one not at all" },
        { { .extra = { { "a\xFF", 1, 0 } } }, ERR_FORMAT, "is not UTF-8", "" },
        { { .extra = { { "a", 1, 0 }, { "ab", 1, 0 } } }, ERR_FORMAT,
          "token 260 'ab' has the character 'b', which is no token", "" },
        { { .extra = { { "a", 1, 0 }, { endless, 1, 0 } } }, ERR_UNSUPPORTED, "299 bytes", "" },
        { { .model = "gemma4", .extra = { { "a", 1, 0 }, { "aa", 1, 0 } }, .merges = { "aa" } },
          ERR_FORMAT, "merge 0 'aa' is not two", "" },
        { { .model = "gemma4", .extra = { { "a", 1, 0 }, { "aa", 1, 0 } }, .merges = { "a b" } },
          ERR_FORMAT, "right side 'b'", "" },
        { { .model = "gemma4", .extra = { { "a", 1, 0 } }, .merges = { "a \xFF" } }, ERR_FORMAT,
          "is not UTF-8", "" },
        { { .model = "gemma4", .extra = { { "a", 1, 0 } }, .merges = { " " } }, ERR_FORMAT,
          "is not two", "" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        tokenizer *t;
        err_ctx err = { 0 };
        const int rc = small_tokenizer(&t, &rows[i].r, &err);
        CHECK_MSG(rc == rows[i].code && (rc == 0) == (t != NULL) && strstr(err.msg, rows[i].says),
                  "row %zu %s: %d '%s', expected %d '%s'", i, rows[i].why, rc, err.msg,
                  rows[i].code, rows[i].says);
        tokenizer_free(t);
    }
}

static void check_small(const recipe *r, const char *text, bool parse, const char *want,
                        const char *why)
{
    tokenizer *t;
    err_ctx err = { 0 };
    if (CHECK_MSG(small_tokenizer(&t, r, &err) == 0, "%s: %s", why, err.msg))
        tokenizer_check_ids(t, text, parse, want, why);
}

static void test_small(void)
{
    /* a 259, b 260, c 261, ab 262, bc 263, abc 264, space 265, " a" 266, aa 267 */
#define LETTERS { "a", 1, 0 }, { "b", 1, 0 }, { "c", 1, 0 }
    static const recipe high_bc = { .no_prefix = true, .extra = { LETTERS, { "ab", 1, -2 },
        { "bc", 1, -1 }, { "abc", 1, -3 }, { "\u2581", 1, -9 }, { "\u2581" "a", 1, -4 },
        { "aa", 1, -5 } } };
    static const recipe high_ab = { .no_prefix = true, .extra = { LETTERS, { "ab", 1, -1 },
        { "bc", 1, -2 } } };
    static const recipe ties = { .no_prefix = true, .extra = { LETTERS, { "bc", 1, -1 },
        { "ab", 1, -1 } } };
    static const recipe prefix = { .extra = { LETTERS, { "ab", 1, -2 }, { "bc", 1, -1 },
        { "abc", 1, -3 }, { "\u2581", 1, -9 }, { "\u2581" "a", 1, -4 }, { "a\u2581", 1, -3 } } };
    static const recipe user = { .no_prefix = true, .extra = { LETTERS, { "[a]", 4, 0 },
        { "ab", 5, 0 }, { "<x>", 3, 0 } } };
    check_small(&high_bc, "abc", true, "264", "bc first, then a and bc");
    check_small(&high_bc, "ab", true, "262", "");
    check_small(&high_bc, "aaa", true, "267,259", "leftmost of equals");
    check_small(&high_bc, " a", true, "266", "a space in text is U+2581 in the file");
    check_small(&high_bc, "\u2581" "a", true, "266", "and U+2581 in text is a space");
    check_small(&high_bc, "a\u2581\u2581" "a", true, "259,265,266", "in the middle as well");
    check_small(&high_bc, "", true, "", "nothing gives nothing");
    check_small(&high_bc, "a\u00e9", true, "259,198,172", "a character that is no token: bytes");
    check_small(&high_bc, "x\n", true, "123,13", "in ASCII, too");
    check_small(&high_bc, "<0x41>", true, "63,51,123,55,52,65", "the name of a byte is text");
    check_small(&high_ab, "abc", true, "262,261", "the higher score first");
    check_small(&ties, "abc", true, "263,261", "equal scores: the leftmost, whatever the ids");
    check_small(&prefix, "abc", true, "265,264", "a space in front");
    check_small(&prefix, " a", true, "265,266", "even before another");
    check_small(&prefix, "<s>a<unk>b", true, "1,266,0,265,260", "and after each special token");
    check_small(&prefix, "a<s>", true, "266,1", "but not after the text");
    check_small(&prefix, "<s></s>", true, "1,2", "nor between them");
    check_small(&prefix, "<s>", false, "265,63,118,65", "control tokens are text if not asked for");
    check_small(&user, "[a]ab<x>", true, "262,259,260,264", "unused tokens are not made");
    check_small(&user, "[a]<x>", false, "262,63,123,65", "user tokens always");

    /* a 259, space 260, "a " 261, newline 262, two of them 263, " a" 264, three newlines 265 */
    static const recipe gemma = { .model = "gemma4", .extra = { { "a", 1, 0 }, { "\u2581", 1, 0 },
        { "a\u2581", 1, 9 }, { "\n", 1, 0 }, { "\n\n", 1, 0 }, { "\u2581" "a", 1, 0 },
        { "\n\n\n", 1, 0 } }, .merges = { "\u2581 a", "a \u2581", "\n \n" } };
    static const recipe plain = { .model = "gemma4", .extra = { { "a", 1, 0 }, { " ", 1, 0 },
        { " a", 1, 0 } }, .merges = { "  a" } };
    check_small(&gemma, "a a", true, "259,264", "by the list, not by scores; across a word");
    check_small(&gemma, "a aa ", true, "259,264,261", "");
    check_small(&gemma, "a\n\n\na", true, "259,265,259", "newlines that are a token, never merged");
    check_small(&gemma, "\n\n\n\n\n", true, "263,263,262", "newlines that are none");
    check_small(&gemma, " \n", true, "260,262", "no space in front");
    check_small(&plain, "a a", true, "259,261", "the left side of a merge may start with a space");

    static const struct { recipe r; bool bos, space; const char *why; } keys[] = {
        { { .model = "llama" }, true, true, "what holds for SentencePiece" },
        { { .no_bos = true }, false, true, "the file says no BOS" },
        { { .no_prefix = true }, true, false, "the file says no space" },
        { { .model = "gemma4", .no_bos = true }, true, false, "gemma4 has BOS whatever it says" },
    };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        tokenizer *t;
        if (!CHECK(small_tokenizer(&t, &keys[i].r, NULL) == 0)) continue;
        CHECK_MSG(tokenizer_adds_bos(t) == keys[i].bos && tokenizer_adds_space(t) == keys[i].space,
                  "%s: %d %d", keys[i].why, tokenizer_adds_bos(t), tokenizer_adds_space(t));
        CHECK(tokenizer_bytes(t, 0, false).len == 0);
        CHECK(str_is(tokenizer_bytes(t, 0, true), "<unk>"));
        tokenizer_free(t);
    }
}

static void test_no_memory(const char *model)
{
    const recipe r = { .model = model, .extra = { LETTERS, { "ab", 1, -1 }, { "bc", 1, -2 } },
                       .merges = { "b c", "a b" } };
    gguf_writer *w = gguf_writer_create();
    char text[307];
    memset(text, 'a', sizeof text);
    memcpy(text + 300, "<s>\u2581\xFF", 7);      /* special, space, repair */
    write_recipe(w, &r);
    tokenizer_check_no_memory(w, (str_view){ text, sizeof text }, model);
}

int main(int argc, char **argv)
{
    char path[512];
    size_t bytes;
    test_begin("vocabularies", argc, argv);
    test_hostile();
    test_small();
    test_no_memory("llama");
    test_no_memory("gemma4");
    char *cases = test_read_file(test_path(path, sizeof path, "%s/tokenizer/cases-small.jsonl",
                                           test_unpacked()), &bytes);
    for (size_t i = 0; cases && i < ARRAY_LEN(vocabularies); i++)
        test_vocabulary(&vocabularies[i], cases);
    mem_free(cases);
    return test_end();
}
