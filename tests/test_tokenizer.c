/* test_tokenizer.c - the tokenizers against the golden cases, then each part on its own.
 *
 * Golden ids come from two independent reference tokenizers. The rest checks what ids cannot show:
 * cuts the vocabularies hide, both merge loops against a plain one, bad text, bad files, memory
 * that runs out, threads, and that work stays proportional to the text. */
#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/pretokenize.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"
#include "loader/gguf_write.h"
#include "tests/test.h"
#include "tests/tokenizer_checks.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- helpers ------------------------------------------------------------------------------- */

static str_view view(const char *s) { return str_from(s); }

static id_list encode(encoder *e, str_view s, bool parse)
{
    id_list ids = { 0 };
    err_ctx err = { 0 };
    CHECK_MSG(encoder_encode(e, &ids, s, parse, &err) == 0, "encode: %s", err.msg);
    return ids;
}

/* "1,2,3" of the first ids, for messages */
static const char *show_ids(char *dst, size_t cap, const id_list *l)
{
    size_t used = 0;
    dst[0] = '\0';
    for (size_t i = 0; i < l->n && i < 20 && used < cap; i++)
        used += (size_t)snprintf(dst + used, cap - used, i ? ",%d" : "%d", (int)l->ids[i]);
    return dst;
}

static str_view nfc_of(str_view s)
{
    byte_buf out = { 0 };
    nfc_scratch scratch = { 0 };
    err_ctx err;
    CHECK(nfc_append(&out, &scratch, (const uint8_t *)s.ptr, s.len, &err) == 0);
    nfc_scratch_free(&scratch);
    return (str_view){ (char *)out.ptr, out.n };
}

static tokenizer *open_tokenizer(const char *path)
{
    gguf *g = NULL;
    tokenizer *t = NULL;
    err_ctx err = { 0 };
    const bool ok = gguf_open(&g, path, &err) == 0 && tokenizer_create(&t, g, &err) == 0;
    CHECK_MSG(ok, "%s: %s", path, err.msg);
    gguf_close(g);
    return t;
}

static encoder *new_encoder(const tokenizer *t)
{
    encoder *e = NULL;
    err_ctx err;
    CHECK(encoder_create(&e, t, &err) == 0);
    return e;
}

/* ---- golden cases ---------------------------------------------------------------------------- */

static void check_case(encoder *e, const tokenizer *t, const json_t *row, const char *what)
{
    const json_t *s = json_object_get(row, "text"), *want = json_object_get(row, "ids");
    const str_view raw = { json_string_value(s), json_string_length(s) };
    id_list expected = { 0 };
    char a[200], b[200];
    for (size_t i = 0; i < json_array_size(want); i++)
        ids_push(&expected, (int32_t)json_integer_value(json_array_get(want, i)), NULL);
    id_list got = encode(e, raw, json_is_true(json_object_get(row, "special")));
    CHECK_MSG(ids_same(&got, &expected), "%s: ids %s, expected %s", what,
              show_ids(a, sizeof a, &got), show_ids(b, sizeof b, &expected));
    for (size_t i = 0; i < got.n; i++)   /* nothing is left out where a text begins */
        CHECK_MSG(str_eq(tokenizer_bytes(t, got.ids[i], true), tokenizer_bytes_at(t, got.ids, i)),
                  "%s: bytes of id %zu", what, i);
    if (pretokenizer_wants_nfc(t->pre) && strcmp(json_string_value(json_object_get(row, "cat")),
                                                 "special-nfc") != 0) {
        str_view normal = nfc_of(raw);
        tokenizer_check_stream(t, &got, normal, what);
        mem_free((void *)normal.ptr);
    } else if (!pretokenizer_wants_nfc(t->pre)) {
        tokenizer_check_stream(t, &got, raw, what);
    }
    ids_free(&got);
    ids_free(&expected);
}

static void test_golden_file(const tokenizer *t, const char *dir, const char *name, int n_expected)
{
    char path[512], what[600];
    const char *line = NULL;
    size_t bytes;
    int n = 0;
    json_t *row;
    char *data = test_read_file(test_path(path, sizeof path, "%s/tokenizer/%s", dir, name), &bytes);
    encoder *e = new_encoder(t);
    if (!data || !e) return;
    while ((row = json_line(&line, &n, data, name, what))) {
        check_case(e, t, row, what);
        json_decref(row);
    }
    CHECK_MSG(n == n_expected, "%s: %d cases, expected %d", name, n, n_expected);
    encoder_free(e);
    mem_free(data);
}

/* ---- merging --------------------------------------------------------------------------------- */

/* The definition, written as plainly as possible. */
static size_t merge_plain(const bpe *b, int32_t *out, const uint8_t *p, size_t len)
{
    size_t n = len;
    for (size_t i = 0; i < len; i++) out[i] = b->byte_id[p[i]];
    for (;;) {
        uint64_t best = BPE_NO_PAIR;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const uint64_t pair = bpe_pair(b, (uint32_t)out[i], (uint32_t)out[i + 1]);
            if (pair < best) { best = pair; at = i; }
        }
        if (best == BPE_NO_PAIR) return n;
        out[at] = (int32_t)(uint32_t)best;
        n--;
        for (size_t i = at + 1; i < n; i++) out[i] = out[i + 1];
    }
}

static void test_merge_loops(const tokenizer *t, const char *alphabet, int n_round)
{
    const bpe *b = &t->vocab;
    bpe_work work = { 0 };
    test_rng rng = { 7 };
    int bad = 0;
    for (int round = 0; round < n_round; round++) {
        uint8_t p[400];
        int32_t plain[400], fast[400];
        const size_t len = 1 + test_below(&rng, round % 4 ? BPE_SHORT_PIECE : sizeof p);
        const uint32_t letters = 1 + test_below(&rng, (uint32_t)strlen(alphabet));
        for (size_t i = 0; i < len; i++)
            p[i] = round % 3 ? (uint8_t)alphabet[test_below(&rng, letters)]
                             : (uint8_t)test_below(&rng, 256);
        const size_t n = merge_plain(b, plain, p, len);
        int64_t m = bpe_merge_long(b, &work, fast, p, len, NULL);
        bad += m != (int64_t)n || memcmp(plain, fast, n * sizeof *plain) != 0;
        if (len > BPE_SHORT_PIECE) continue;
        m = (int64_t)bpe_merge_short(b, fast, p, len);
        bad += m != (int64_t)n || memcmp(plain, fast, n * sizeof *plain) != 0;
    }
    CHECK_MSG(bad == 0, "%s: %d of %d random pieces merged otherwise", tokenizer_pre_name(t), bad,
              n_round);
    bpe_work_free(&work);
}

/* Four times the bytes, hardly more than four times the steps; quadratic would be sixteen. */
static void test_merge_work(const tokenizer *t)
{
    enum { SMALL = 1 << 14 };
    static const char *const patterns[] = { "a", " ", "abcdefghij", "thequickbrownfoxjumpsover" };
    uint8_t *p = mem_alloc(4 * SMALL);
    int32_t *out = mem_array(4 * SMALL, sizeof *out);
    for (size_t k = 0; p && out && k < ARRAY_LEN(patterns); k++) {
        const size_t period = strlen(patterns[k]);
        uint64_t steps[2];
        for (size_t i = 0; i < 4 * SMALL; i++) p[i] = (uint8_t)patterns[k][i * i % 31 % period];
        for (int big = 0; big < 2; big++) {
            bpe_work work = { 0 };
            const int64_t n = bpe_merge_long(&t->vocab, &work, out, p, big ? 4 * SMALL : SMALL,
                                             NULL);
            CHECK(n > 0);
            steps[big] = work.steps;
            bpe_work_free(&work);
        }
        CHECK_MSG(steps[1] < 5 * steps[0] && steps[1] < 4 * SMALL * 16, "'%s': %llu steps for %d "
                  "bytes, %llu for four times as many", patterns[k], (unsigned long long)steps[0],
                  SMALL, (unsigned long long)steps[1]);
    }
    mem_free(p);
    mem_free(out);
}

/* Every ordinary token comes back from its own bytes: through the merges alone, and, where its text
 * is one piece, through the whole encoder. */
static void test_own_text(const tokenizer *t, int min_piece)
{
    bpe_work work = { 0 };
    encoder *e = new_encoder(t);
    id_list ids = { 0 };
    int bad_merge = 0, bad_encode = 0, n_piece = 0;
    for (int id = 0; id < t->vocab.n_token; id++) {
        const str_view s = tokenizer_bytes(t, id, false);
        const uint8_t *p = (const uint8_t *)s.ptr;
        int32_t out[512];
        size_t len;
        if (tokenizer_kind(t, id) != TOKEN_NORMAL || s.len > ARRAY_LEN(out)) continue;
        bad_merge += bpe_merge(&t->vocab, &work, out, p, s.len, NULL) != 1 || out[0] != id;
        if (utf8_valid_prefix(p, s.len) != s.len) continue;
        if (pretokenizer_wants_nfc(t->pre) && nfc_prefix(p, s.len) != s.len) continue;
        if (pretokenize(t->pre, &len, 1, p, s.len) != 1 || len != s.len) continue;
        n_piece++;
        ids.n = 0;
        bad_encode += encoder_encode(e, &ids, s, false, NULL) != 0 || ids.n != 1 ||
            ids.ids[0] != id;
    }
    CHECK_MSG(bad_merge == 0 && bad_encode == 0, "%s: %d tokens do not merge to themselves, %d do "
              "not encode to themselves", tokenizer_pre_name(t), bad_merge, bad_encode);
    CHECK_MSG(n_piece >= min_piece, "only %d tokens are one piece", n_piece);
    ids_free(&ids);
    encoder_free(e);
    bpe_work_free(&work);
}

/* ---- whole encoder --------------------------------------------------------------------------- */

static size_t random_text(test_rng *rng, char *dst, size_t n_part)
{
    static const char *const parts[] = {
        "hello", " World", "  ", "\n", "\r\n", "'s", "'LL", "e\u0301", "\u0301", "\u4e2d\u6587",
            "123",
        " 7", "...", "/", "<", "<|im_end", "|>", "\u1100\u1161", "\U0001f600", "\u3000", "A", "zz",
        "\u0939\u093f", "\xC2\x85", "(", "\t",
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
    };
    size_t used = 0;
    while (n_part-- > 0) {
        const char *s = parts[test_below(rng, ARRAY_LEN(parts))];
        memcpy(dst + used, s, strlen(s));
        used += strlen(s);
    }
    return used;
}

/* Text, special, text, special ...: the ids are those of the parts, whatever is around them. */
static void test_specials_between(const tokenizer *t, const char *const *specials, int n_special)
{
    encoder *e = new_encoder(t);
    test_rng rng = { 11 };
    int bad = 0;
    for (int round = 0; round < 300; round++) {
        char all[8192];
        size_t used = 0;
        id_list want = { 0 };
        for (int part = 0; part < 5; part++) {
            const size_t n = random_text(&rng, all + used, test_below(&rng, 12));
            id_list ids = encode(e, (str_view){ all + used, n }, true);
            for (size_t i = 0; i < ids.n; i++) ids_push(&want, ids.ids[i], NULL);
            ids_free(&ids);
            used += n;
            const char *s = specials[test_below(&rng, (uint32_t)n_special)];
            memcpy(all + used, s, strlen(s));
            used += strlen(s);
            ids_push(&want, tokenizer_special(t, s), NULL);
        }
        id_list got = encode(e, (str_view){ all, used }, true);
        bad += !ids_same(&got, &want);
        ids_free(&got);
        ids_free(&want);
    }
    CHECK_MSG(bad == 0, "%s: %d of 300 texts differ from their parts", tokenizer_pre_name(t), bad);
    encoder_free(e);
}

/* More pieces than the cache has places, with the same length and first 16 bytes: none may be taken
 * for another. Each must decode to itself. */
static void test_cache(const tokenizer *t)
{
    encoder *e = new_encoder(t);
    id_list ids = { 0 };
    int bad = 0;
    for (uint32_t i = 0; i < 60000; i++) {
        char piece[] = "abcdefghijklmnopqrstuvwx", back[64];
        size_t used = 0;
        for (uint32_t k = 0, v = i * 2654435761u; k < 6; k++,
             v /= 26) piece[18 + k] = (char)('a' + v % 26);
        ids.n = 0;
        bad += encoder_encode(e, &ids, view(piece), true, NULL) != 0;
        for (size_t k = 0; k < ids.n; k++) {
            const str_view s = tokenizer_bytes(t, ids.ids[k], true);
            if (used + s.len <= sizeof back) memcpy(back + used, s.ptr, s.len);
            used += s.len;
        }
        bad += used != strlen(piece) || memcmp(back, piece, used) != 0;
    }
    CHECK_MSG(bad == 0, "%s: %d of 60000 words came out as others", tokenizer_pre_name(t), bad);
    ids_free(&ids);
    encoder_free(e);
}

enum { N_TEXT = 200, N_THREAD = 4 };

typedef struct thread_job {
    const tokenizer *t;
    const str_view *texts;
    const id_list *want;
    int first, bad;
} thread_job;

static void *encode_all(void *arg)
{
    thread_job *job = arg;
    encoder *e = NULL;
    job->bad += encoder_create(&e, job->t, NULL) != 0;
    for (int i = 0; e && i < 3 * N_TEXT; i++) {
        const int k = (i + job->first) % N_TEXT;
        id_list got = { 0 };
        job->bad += encoder_encode(e, &got, job->texts[k], true, NULL) != 0;
        job->bad += !ids_same(&got, &job->want[k]);
        ids_free(&got);
    }
    encoder_free(e);
    return NULL;
}

/* Whether pieces come from the cache or not, and on whichever thread: the same ids. (Plain threads:
 * the thread sanitizer does not understand OpenMP's.) */
static void test_threads(const tokenizer *t)
{
    static char room[N_TEXT][1024];
    str_view texts[N_TEXT];
    id_list want[N_TEXT] = { 0 };
    thread_job jobs[N_THREAD];
    pthread_t threads[N_THREAD];
    test_rng rng = { 17 };
    for (int i = 0; i < N_TEXT; i++) {
        encoder *e = new_encoder(t);     /* a cold cache for each */
        texts[i] = (str_view){ room[i], random_text(&rng, room[i], 16) };
        want[i] = encode(e, texts[i], true);
        encoder_free(e);
    }
    for (int i = 0; i < N_THREAD; i++) {
        jobs[i] = (thread_job){ t, texts, want, i * 37, 0 };
        if (!CHECK(pthread_create(&threads[i], NULL, encode_all, &jobs[i]) == 0)) return;
    }
    for (int i = 0; i < N_THREAD; i++) {
        pthread_join(threads[i], NULL);
        CHECK_MSG(jobs[i].bad == 0, "%s: %d answers differ on thread %d", tokenizer_pre_name(t),
                  jobs[i].bad, i);
    }
    for (int i = 0; i < N_TEXT; i++) ids_free(&want[i]);
}

/* ---- small vocabularies ---------------------------------------------------------------------- */

typedef struct extra { const char *text; int type; } extra;

/* A vocabulary of the 256 bytes, then extra tokens; everything else is how a row breaks it. */
typedef struct recipe {
    const char *model, *pre;             /* NULL: "gpt2", "qwen2" */
    const char *leave_out;               /* key that is not written */
    extra extra[8];
    const char *merges[8];
    int byte_missing;                    /* byte + 1 that has no token */
    int types_more;                      /* entries of token_type beyond the tokens */
    gguf_type types_as, strings_as;      /* 0: as they should be */
    int64_t bos, eos;                    /* 0: not written */
} recipe;

static void write_alphabet(uint8_t *dst, int byte)
{
    int n = 0x100;
    for (int c = 0; c < byte; c++)
        n += !((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE);
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
        byte >= 0xAE;
    dst[utf8_write(dst, (uint32_t)(itself ? byte : n))] = '\0';
}

static bool writes(const recipe *r, const char *key)
{
    return !r->leave_out || strcmp(r->leave_out, key) != 0;
}

static void write_recipe(gguf_writer *w, const recipe *r)
{
    int n_extra = 0, n_merge = 0;
    int64_t types[300];
    while (n_extra < 8 && r->extra[n_extra].text) n_extra++;
    while (n_merge < 8 && r->merges[n_merge]) n_merge++;
    const int n_token = 256 + n_extra;
    if (writes(r, "model")) gguf_write_str(w, "tokenizer.ggml.model",
                                           view(r->model ? r->model : "gpt2"));
    if (writes(r, "pre")) gguf_write_str(w, "tokenizer.ggml.pre", view(r->pre ? r->pre : "qwen2"));
    if (r->strings_as) {
        const uint64_t none[300] = { 0 };
        gguf_write_array(w, "tokenizer.ggml.tokens", r->strings_as, none, (uint64_t)n_token);
    } else if (writes(r, "tokens")) {
        gguf_write_str_array(w, "tokenizer.ggml.tokens", (uint64_t)n_token);
        for (int i = 0; i < n_token; i++) {
            uint8_t text[8] = "!!";      /* replaces a missing byte */
            if (i < 256 && i + 1 != r->byte_missing) write_alphabet(text, i);
            gguf_write_array_str(w, view(i < 256 ? (char *)text : r->extra[i - 256].text));
        }
    }
    for (int i = 0; i < n_token + r->types_more; i++)
        types[i] = i < 256 || i >= n_token ? TOKEN_NORMAL : r->extra[i - 256].type;
    int32_t narrow[300];
    for (int i = 0; i < n_token + r->types_more; i++) narrow[i] = (int32_t)types[i];
    if (writes(r, "types"))
        gguf_write_array(w, "tokenizer.ggml.token_type", r->types_as ? r->types_as : GGUF_I32,
                         r->types_as == GGUF_I64 ? (void *)types : (void *)narrow,
                         (uint64_t)(n_token + r->types_more));
    if (writes(r, "merges")) {
        gguf_write_str_array(w, "tokenizer.ggml.merges", (uint64_t)n_merge);
        for (int i = 0; i < n_merge; i++) gguf_write_array_str(w, view(r->merges[i]));
    }
    if (r->bos) gguf_write_i32(w, "tokenizer.ggml.bos_token_id", (int32_t)r->bos);
    if (r->eos) gguf_write_i32(w, "tokenizer.ggml.eos_token_id", (int32_t)r->eos);
}

static int small_tokenizer(tokenizer **t, const recipe *r, err_ctx *err)
{
    gguf_writer *w = gguf_writer_create();
    write_recipe(w, r);
    return tokenizer_from(t, w, err);
}

static void test_hostile(void)
{
    static const struct { recipe r; int code; const char *says, *why; } rows[] = {
        { { .merges = { "a b" }, .extra = { { "ab", 1 } } }, 0, "", "the sound one" },
        { { .extra = { { "", 1 }, { "", 3 }, { "", 4 }, { "", 5 } } }, 0, "",
          "empty texts are harmless" },
        { { .extra = { { "ab", 1 }, { "ab", 1 } }, .merges = { "a b", "a b" } }, 0, "",
          "twice the same" },
        { { .types_as = GGUF_I64 }, 0, "", "any integer width" },
        { { .leave_out = "model" }, ERR_FORMAT, "tokenizer.ggml.model is missing", "" },
        { { .model = "bert" }, ERR_UNSUPPORTED, "'bert' (supported: gpt2, llama, gemma4)", "" },
        { { .pre = "gpt-5" }, ERR_UNSUPPORTED, "'gpt-5' (supported: qwen2, gpt-4o, qwen35, glm4, "
          "chatglm-bpe, dbrx, smaug-bpe, llama-bpe, olmo)", "" },
        { { .pre = "words" }, ERR_UNSUPPORTED, "'words' (supp", "no file may name this one" },
        { { .pre = "qwen2\n" }, ERR_UNSUPPORTED, "qwen2\\x0A", "text of the file is escaped" },
        { { .leave_out = "pre" }, ERR_FORMAT, "tokenizer.ggml.pre is missing",
          "unknown vocabulary" },
        { { .leave_out = "tokens" }, ERR_FORMAT, "tokenizer.ggml.tokens is missing", "" },
        { { .leave_out = "types" }, ERR_FORMAT, "token_type is missing", "" },
        { { .leave_out = "merges" }, ERR_FORMAT, "merges is missing", "" },
        { { .strings_as = GGUF_U64 }, ERR_FORMAT, "expected array of string",
          "tokens are numbers" },
        { { .types_more = 1 }, ERR_FORMAT, "257 entries, tokenizer.ggml.tokens has 256", "" },
        { { .types_more = -1 }, ERR_FORMAT, "255 entries", "" },
        { { .types_as = GGUF_F32 }, ERR_FORMAT, "expected array of i32", "types are floats" },
        { { .extra = { { "x", 0 } } }, ERR_FORMAT, "token 256 has type 0", "" },
        { { .extra = { { "<0x41>", 6 } } }, ERR_FORMAT, "token 256 has type 6", "byte tokens" },
        { { .extra = { { "x", -7 } } }, ERR_FORMAT, "type -7", "" },
        { { .byte_missing = 0x42 }, ERR_FORMAT, "single byte 0x41", "a byte has no token" },
        { { .extra = { { "a b", 1 } } }, ERR_FORMAT, "token 256 'a b' has a character outside",
          "" },
        { { .extra = { { "\u4e2d", 1 } } }, ERR_FORMAT, "outside the byte alphabet",
          "three bytes" },
        { { .extra = { { "\u0144", 1 } } }, ERR_FORMAT, "outside the byte alphabet",
          "one too high" },
        { { .extra = { { "a\xC4", 1 } } }, ERR_FORMAT, "outside the byte alphabet",
          "cut in a character" },
        { { .extra = { { "\xC1\x81", 1 } } }, ERR_FORMAT, "outside the byte alphabet", "overlong" },
        { { .extra = { { "ab", 1 } }, .merges = { "ab" } }, ERR_FORMAT, "merge 0 'ab' is not two",
          "" },
        { { .extra = { { "ab", 1 } }, .merges = { "" } }, ERR_FORMAT, "merge 0 '' is not two", "" },
        { { .extra = { { "ab", 1 } }, .merges = { "a b", "a b c" } }, ERR_FORMAT, "merge 1",
          "two spaces" },
        { { .extra = { { "ab", 1 } }, .merges = { "a  b" } }, ERR_FORMAT, "merge 0", "two spaces" },
        { { .extra = { { "ab", 1 } }, .merges = { " ab" } }, ERR_FORMAT, "left side",
          "empty side" },
        { { .extra = { { "ab", 1 } }, .merges = { "ab " } }, ERR_FORMAT, "right side",
          "empty side" },
        { { .extra = { { "abc", 1 } }, .merges = { "ab c" } }, ERR_FORMAT, "left side 'ab'", "" },
        { { .extra = { { "abc", 1 } }, .merges = { "a bc" } }, ERR_FORMAT, "right side 'bc'", "" },
        { { .extra = { { "ab", 1 } }, .merges = { "b a" } }, ERR_FORMAT, "result 'ba'", "" },
        { { .extra = { { "ab", 3 } }, .merges = { "a b" } }, ERR_FORMAT, "result 'ab'", "control" },
        { { .extra = { { "ab", 1 } }, .merges = { "a aaaaaaaaaaaaaaaaaa" } }, ERR_FORMAT,
          "makes more", "" },
        { { .extra = { { "ab", 1 } }, .merges = { "a \u4e2d" } }, ERR_FORMAT, "outside the byte",
          "" },
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

static void check_small(const recipe *r, const char *s, bool parse, const char *want,
                        const char *why)
{
    tokenizer *t;
    err_ctx err = { 0 };
    if (CHECK_MSG(small_tokenizer(&t, r, &err) == 0, "%s: %s", why, err.msg))
        tokenizer_check_ids(t, s, parse, want, why);
}

/* In the small vocabularies the id of a byte is the byte. */
static void test_small(void)
{
    static const recipe by_id = { .extra = { { "ab", 1 }, { "bc", 1 } }, .merges = { "a b",
        "b c" } };
    static const recipe by_index = { .extra = { { "ab", 1 }, { "bc", 1 } }, .merges = { "b c",
        "a b" } };
    static const recipe again = { .extra = { { "ab", 1 }, { "bc", 1 } },
                                  .merges = { "b c", "a b", "b c" } };
    static const recipe ties = { .extra = { { "aa", 1 }, { "aaa", 1 } },
                                 .merges = { "a a", "a aa", "aa a" } };
    static const recipe twice = { .extra = { { "ab", 1 }, { "ab", 1 }, { "abc", 1 } },
                                  .merges = { "a b", "ab c" } };
    static const recipe specials = { .extra = { { "<a>", 3 }, { "<a><b>", 4 }, { "[x]", 3 },
                                                { "<a", 5 }, { "<a>!", 3 }, { "[y", 4 } } };
    static const recipe unmade = { .extra = { { "ab", 1 }, { "hell", 1 } }, .merges = { "a b" } };
    static const recipe whole = { .pre = "gpt-4o", .extra = { { "ab", 1 }, { "hell", 1 } },
                                  .merges = { "a b" } };
    check_small(&unmade, "hell ab", true, "104,101,108,108,32,256", "no merge makes 'hell'");
    check_small(&unmade, "ab", true, "256", "a merge makes 'ab'");
    check_small(&whole, "hell", true, "257", "gpt-oss takes a piece that is a token as it stands");
    check_small(&by_id, "abc", true, "256,99", "ids ascend: the lower id merges first");
    check_small(&by_index, "abc", true, "97,257", "ids do not ascend: list order decides");
    check_small(&by_index, "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc", true,
                "97,257,97,257,97,257,97,257,97,257,97,257,97,257,97,257,97,257,97,257",
                "the same in a long piece (first 20)");
    check_small(&again, "abc", true, "97,257", "a merge listed twice keeps its first place");
    check_small(&ties, "aaaa", true, "256,256", "leftmost of equals");
    check_small(&ties, "aaaaa", true, "256,257", "leftmost pairs first, then what they allow");
    check_small(&twice, "ab", true, "256", "of two tokens with one text the first is found");
    check_small(&twice, "abc", true, "258", "and merges lead to it");
    check_small(&specials, "<a>", true, "256", "control token");
    check_small(&specials, "<a>", false, "60,97,62", "which is text when specials are off");
    check_small(&specials, "<a><b>", true, "257", "the longest wins");
    check_small(&specials, "<a><b>", false, "257", "a user token is one always");
    check_small(&specials, "<a><b", true, "256,60,98", "cut short: the shorter one");
    check_small(&specials, "<a>!<<a>", true, "260,60,256", "longer again; a false start");
    check_small(&specials, "[x][y]<a", true, "258,261,93,60,97",
                "other first bytes; unused is text");
    check_small(&specials, "", true, "", "empty");

    tokenizer *t;
    err_ctx err = { 0 };
    int stops[8];
    const recipe ids = { .extra = { { "<|im_end|>", 3 }, { "<|end|>", 3 }, { "<|return|>", 1 },
                                    { "<|call|>", 3 }, { "<|eot|>", 3 } }, .bos = 261, .eos = 260 };
    if (!CHECK_MSG(small_tokenizer(&t, &ids, &err) == 0, "%s", err.msg)) return;
    CHECK(tokenizer_bos(t) == -1 && tokenizer_eos(t) == 260);
    CHECK(tokenizer_special(t, "<|im_end|>") == 256 && tokenizer_special(t, "<|return|>") == -1);
    CHECK(tokenizer_special(t, "") == -1 && tokenizer_special(t, "zzz") == -1);
    CHECK(tokenizer_stops(t, stops, 8) == 3 && stops[0] == 256 && stops[1] == 259 &&
          stops[2] == 260);
    CHECK(tokenizer_stops(t, NULL, 0) == 3 && !tokenizer_is_stop(t, 258) && tokenizer_is_stop(t,
                                                                                              260));
    CHECK(str_is(tokenizer_bytes(t, 256, true), "<|im_end|>"));
    CHECK(tokenizer_bytes(t, 256, false).len == 0);
    tokenizer_free(t);
    const recipe end = { .extra = { { "<|end|>", 3 } }, .bos = -1, .eos = 256 };
    if (!CHECK_MSG(small_tokenizer(&t, &end, &err) == 0, "%s", err.msg)) return;
    CHECK(tokenizer_bos(t) == -1 && tokenizer_eos(t) == 256 && tokenizer_stops(t, stops, 8) == 0);
    test_merge_loops(t, "ab", 50);
    tokenizer_free(t);
    if (!CHECK_MSG(small_tokenizer(&t, &by_index, &err) == 0, "%s", err.msg)) return;
    test_merge_loops(t, "abc", 2000);
    tokenizer_free(t);
}

static void test_no_memory(void)
{
    static const recipe r = { .extra = { { "bc", 1 }, { "ab", 1 }, { "<x>", 3 } },
                              .merges = { "a b", "b c" } };
    gguf_writer *w = gguf_writer_create();
    char text[307];
    memset(text, 'a', sizeof text);                      /* one long piece */
    memcpy(text + 300, "<x>e\u0301\xFF", 7);            /* special, NFC, repair */
    write_recipe(w, &r);
    tokenizer_check_no_memory(w, (str_view){ text, sizeof text }, "gpt2");
}

/* ---- other files ----------------------------------------------------------------------------- */

/* gpt-oss files of one producer do not name the pre-tokenizer: size and one token identify them. */
static void test_missing_pre(const char *message, bool accepted)
{
    gguf_writer *w = gguf_writer_create();
    int32_t *types = mem_array(201088, sizeof *types);
    const uint8_t *head;
    size_t bytes;
    gguf *g = NULL;
    tokenizer *t = NULL;
    err_ctx err = { 0 };
    if (!w || !types) return;
    gguf_write_str(w, "tokenizer.ggml.model", view("gpt2"));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", 201088);
    for (int i = 0; i < 201088; i++) {
        uint8_t text[8] = "";
        if (i < 256) write_alphabet(text, i);
        gguf_write_array_str(w, view(i == 200008 ? message : (char *)text));
        types[i] = i < 256 ? TOKEN_NORMAL : i == 200008 ? TOKEN_CONTROL : TOKEN_UNUSED;
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, 201088);
    gguf_write_str_array(w, "tokenizer.ggml.merges", 0);
    int rc = gguf_write_head(w, &head, &bytes, &err);
    if (rc == 0) rc = gguf_open_memory(&g, head, bytes, &err);
    if (rc == 0) rc = tokenizer_create(&t, g, &err);
    CHECK_MSG((rc == 0) == accepted, "200008 = '%s' without pre: %d %s", message, rc, err.msg);
    if (t) CHECK(strcmp(tokenizer_pre_name(t), "gpt-4o") == 0);
    tokenizer_free(t);
    gguf_close(g);
    gguf_writer_free(w);
    mem_free(types);
}

static void test_demo(const char *name, const char *pre)
{
    char path[512];
    tokenizer *t = open_tokenizer(test_path(path, sizeof path, "%s/../models/%s", test_golden(),
                                            name));
    const str_view s = view("Hello, World! \u4f60\u597d 1234");
    if (!t) return;
    encoder *e = new_encoder(t);
    id_list ids = encode(e, s, true);
    CHECK_MSG(strcmp(tokenizer_pre_name(t), pre) == 0, "%s: %s", name, tokenizer_pre_name(t));
    tokenizer_check_stream(t, &ids, s, name);
    ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
}

static void test_vocabulary(const char *vocab, const char *cases, int n_case, const char *disputed,
                            int n_disputed, const char *const *specials, int n_special,
                            int min_piece)
{
    char path[512];
    tokenizer *t = open_tokenizer(test_path(path, sizeof path, "%s/tokenizer/%s", test_unpacked(),
                                            vocab));
    if (!t) return;
    test_golden_file(t, test_unpacked(), cases, n_case);
    test_golden_file(t, test_golden(), disputed, n_disputed);
    CHECK(t->vocab.pair_rank == NULL);   /* both lists are in id order */
    test_own_text(t, min_piece);
    test_merge_loops(t, "aeinst hou<>01", 2000);
    test_merge_work(t);
    test_specials_between(t, specials, n_special);
    tokenizer_check_bytes(t, 2000);
    test_cache(t);
    test_threads(t);
    tokenizer_free(t);
}

static void test_qwen_ids(void)
{
    char path[512];
    tokenizer *t = open_tokenizer(test_path(path, sizeof path, "%s/tokenizer/qwen3-vocab.gguf",
                                            test_unpacked()));
    int stops[8];
    if (!t) return;
    CHECK(tokenizer_n_token(t) == 151936 && tokenizer_n_merge(t) == 151387);
    CHECK(tokenizer_stops(t, stops, 8) == 2 && stops[0] == 151645 && stops[1] == 151643);
    CHECK(tokenizer_special(t, "<think>") == 151667 && tokenizer_kind(t, 151667) == TOKEN_USER);
    CHECK(tokenizer_bytes(t, 151935, true).len == 0);    /* padding row */
    tokenizer_free(t);
}

int main(int argc, char **argv)
{
    static const char *const qwen[] = { "<|im_start|>", "<|im_end|>", "<think>", "</tool_call>" };
    static const char *const gptoss[] = { "<|start|>", "<|end|>", "<|message|>", "<|return|>" };
    test_begin("tokenizer", argc, argv);
    test_hostile();
    test_small();
    test_no_memory();
    test_missing_pre("<|message|>", true);
    test_missing_pre("<|massage|>", false);
    test_demo("demo-qwen3next-Q4_K_M.gguf", "qwen2");
    test_demo("demo-gptoss-MXFP4.gguf", "gpt-4o");
    test_vocabulary("qwen3-vocab.gguf", "cases-qwen3.jsonl", 457, "disputed-qwen3.jsonl", 4, qwen,
                    ARRAY_LEN(qwen), 140000);
    test_vocabulary("gptoss-vocab.gguf", "cases-gptoss.jsonl", 462, "disputed-gptoss.jsonl", 10,
                    gptoss, ARRAY_LEN(gptoss), 180000);
    test_qwen_ids();
    return test_end();
}
