/* test_tokenizer.c - the tokenizers against the golden cases, then each part on its own.
 *
 * Golden ids come from two independent reference tokenizers. The rest checks what ids cannot show:
 * cuts the vocabularies hide, both merge loops against a plain one, bad text, threads, and that work
 * stays proportional to the text. */
#include "engine/text/tokenizer/pretokenize.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/unicode.h"
#include "loader/gguf_write.h"
#include "tests/tokenizer_checks.h"
#include "tests/tokenizer_recipe.h"

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

static void test_golden_file(const tokenizer *t, const char *dir, const char *name, int n_expected)
{
    char path[512];
    size_t bytes;
    char *data = test_read_file(test_path(path, sizeof path, "%s/tokenizer/%s", dir, name), &bytes);
    const int n = data ? tokenizer_check_cases(t, data, name, NULL) : 0;
    CHECK_MSG(n == n_expected, "%s: %d cases, expected %d", name, n, n_expected);
    mem_free(data);
}

/* ---- merging --------------------------------------------------------------------------------- */

static void test_merge_loops(const tokenizer *t, const char *alphabet, int n_round)
{
    const bpe *b = &t->vocab;
    bpe_work work = { 0 };
    test_rng rng = { 7 };
    int bad = 0;
    for (int round = 0; round < n_round; round++) {
        uint8_t p[400];
        int32_t plain[400];
        const size_t len = 1 + test_below(&rng, round % 4 ? BPE_SHORT_PIECE : sizeof p);
        const uint32_t letters = 1 + test_below(&rng, (uint32_t)strlen(alphabet));
        for (size_t i = 0; i < len; i++)
            p[i] = round % 3 ? (uint8_t)alphabet[test_below(&rng, letters)]
                             : (uint8_t)test_below(&rng, 256);
        const size_t n = tokenizer_merge_plain(b, plain, p, len);
        bad += tokenizer_merge_differs(b, &work, plain, n, p, len);
    }
    CHECK_MSG(bad == 0, "%s: %d of %d random pieces merged otherwise", tokenizer_pre_name(t), bad,
              n_round);
    bpe_work_free(&work);
}

static void test_merge_work(const tokenizer *t)
{
    static const char *const patterns[] = { "a", " ", "abcdefghij", "thequickbrownfoxjumpsover" };
    uint8_t *p = test_alloc(TOKENIZER_WORK_BYTES + 64, 1);
    for (size_t k = 0; k < ARRAY_LEN(patterns); k++) {
        for (size_t i = 0; i < TOKENIZER_WORK_BYTES + 64; i++)
            p[i] = (uint8_t)patterns[k][i * i % 31 % strlen(patterns[k])];
        tokenizer_check_work(&t->vocab, p, patterns[k]);
    }
    mem_free(p);
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
            const size_t n = tokenizer_random_text(&rng, all + used, test_below(&rng, 12));
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
        texts[i] = (str_view){ room[i], tokenizer_random_text(&rng, room[i], 16) };
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

static void test_small(void)
{
    tokenizer *t;
    err_ctx err = { 0 };
    int stops[8];
    static const char ids[] = "gpt2 +<|im_end|>:3 +<|end|>:3 +<|return|> +<|call|>:3 +<|eot|>:3 "
                              "bos=261 eos=260";
    if (!CHECK_MSG(tokenizer_of_recipe(&t, ids, &err) == 0, "%s", err.msg)) return;
    CHECK(tokenizer_bos(t) == -1 && tokenizer_eos(t) == 260);
    CHECK(tokenizer_special(t, "<|im_end|>") == 256 && tokenizer_special(t, "<|return|>") == -1);
    CHECK(tokenizer_special(t, "") == -1 && tokenizer_special(t, "zzz") == -1);
    CHECK(tokenizer_stops(t, stops, 8) == 3 && stops[0] == 256 && stops[1] == 259 &&
          stops[2] == 260);
    CHECK(tokenizer_stops(t, NULL, 0) == 3);
    CHECK(!tokenizer_is_stop(t, 258) && tokenizer_is_stop(t, 260));
    CHECK(str_is(tokenizer_bytes(t, 256, true), "<|im_end|>"));
    CHECK(tokenizer_bytes(t, 256, false).len == 0);
    tokenizer_free(t);
    if (!CHECK(tokenizer_of_recipe(&t, "gpt2 +<|end|>:3 bos=-1 eos=256", &err) == 0)) return;
    CHECK(tokenizer_bos(t) == -1 && tokenizer_eos(t) == 256 && tokenizer_stops(t, stops, 8) == 0);
    test_merge_loops(t, "ab", 50);
    tokenizer_free(t);
    if (!CHECK(tokenizer_of_recipe(&t, "gpt2 +ab +bc =b~c =a~b", &err) == 0)) return;
    test_merge_loops(t, "abc", 2000);
    tokenizer_free(t);
}

/* ---- other files ----------------------------------------------------------------------------- */

/* gpt-oss files of one producer do not name the pre-tokenizer: size and one token identify them. */
static void test_missing_pre(const char *message, bool accepted)
{
    gguf_writer *w = gguf_writer_create();
    int32_t *types = mem_array(201088, sizeof *types);
    tokenizer *t;
    err_ctx err = { 0 };
    if (!w || !types) return;
    gguf_write_str(w, "tokenizer.ggml.model", view("gpt2"));
    gguf_write_str_array(w, "tokenizer.ggml.tokens", 201088);
    for (int i = 0; i < 201088; i++) {
        char text[8] = "";
        if (i < 256) tokenizer_byte_text(text, i);
        gguf_write_array_str(w, view(i == 200008 ? message : text));
        types[i] = i < 256 ? TOKEN_NORMAL : i == 200008 ? TOKEN_CONTROL : TOKEN_UNUSED;
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, 201088);
    gguf_write_str_array(w, "tokenizer.ggml.merges", 0);
    const int rc = tokenizer_from(&t, w, &err);
    CHECK_MSG((rc == 0) == accepted, "200008 = '%s' without pre: %d %s", message, rc, err.msg);
    if (t) CHECK(strcmp(tokenizer_pre_name(t), "gpt-4o") == 0);
    tokenizer_free(t);
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
    test_small();
    test_missing_pre("<|message|>", true);
    test_missing_pre("<|massage|>", false);
    test_demo("demo-qwen3next-mtp.gguf", "qwen2");
    test_demo("demo-gptoss-MXFP4.gguf", "gpt-4o");
    test_vocabulary("qwen3-vocab.gguf", "cases-qwen3.jsonl", 457, "disputed-qwen3.jsonl", 4, qwen,
                    ARRAY_LEN(qwen), 140000);
    test_vocabulary("gptoss-vocab.gguf", "cases-gptoss.jsonl", 462, "disputed-gptoss.jsonl", 10,
                    gptoss, ARRAY_LEN(gptoss), 180000);
    test_qwen_ids();
    return test_end();
}
