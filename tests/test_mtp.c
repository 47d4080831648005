/* test_mtp.c - the next-token block: its logits and its chains of guesses against those that others
 * computed, its rows after rewinds and copies of a state, and how many of its drafts are right.
 *
 * That drafts change no answer: test_drafts.c, test_walks.c. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "engine/session/answer.h"
#include "engine/session/prefix_cache.h"
#include "engine/session/runner.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

enum { MAX_SEQ = 4, MAX_TOKENS = 64, CHAIN = 3, CTX = 512 };

static const char demo[] = "tests/models/demo-qwen3next-mtp.gguf";

typedef struct block {
    const char *name, *file;             /* file NULL: a tiny one of the family */
    double error, rounded;               /* of F32 arithmetic, and with int8 activations */
    model_fixture x;
    int n_seq, n_vocab, n[MAX_SEQ], n_row[MAX_SEQ];
    int32_t ids[MAX_SEQ][MAX_TOKENS], drafts[MAX_SEQ][MAX_TOKENS][CHAIN];
    int n_start[MAX_SEQ];                /* rows with drafts */
    float *want;                         /* the last n_row rows of each sequence */
} block;

static block blocks[] = {
    { .name = "demo", .file = demo, .error = 2e-5, .rounded = 6e-2 },
    { .name = "tiny-glm4moe", .error = 2e-5, .rounded = 2e-5 },
    { .name = "tiny-qwen35moe", .error = 4e-5, .rounded = 4e-5 },
};

/* ---- files ----------------------------------------------------------------------------------- */

static int read_ids(int32_t *ids, const json_t *list)
{
    size_t i;
    json_t *id;
    if (!CHECK(json_array_size(list) <= MAX_TOKENS)) return 0;
    json_array_foreach(list, i, id) ids[i] = (int32_t)json_integer_value(id);
    return (int)json_array_size(list);
}

static bool read_golden(block *b)
{
    char path[512];
    json_error_t at;
    size_t bytes, n_row = 0, i, k;
    json_t *seq, *three;
    test_path(path, sizeof path, "%s/mtp/%s.logits.json", test_golden(), b->name);
    json_t *j = json_load_file(path, 0, &at);
    if (!CHECK_MSG(j, "%s: %s", path, at.text)) return false;
    b->n_vocab = (int)json_integer_value(json_object_get(j, "vocab"));
    json_array_foreach(json_object_get(j, "seqs"), i, seq) {
        b->n[i] = read_ids(b->ids[i], seq);
        b->n_row[i] = (int)json_integer_value(json_array_get(json_object_get(j, "rows"), i));
        n_row += (size_t)b->n_row[i];
        b->n_seq++;
    }
    json_array_foreach(json_object_get(j, "drafts"), i, seq) {
        json_array_foreach(seq, k, three) read_ids(b->drafts[i][k], three);
        b->n_start[i] = (int)json_array_size(seq);
    }
    json_decref(j);
    test_path(path, sizeof path, "%s/mtp/%s.logits.f32", test_unpacked(), b->name);
    b->want = test_read_file(path, &bytes);
    return CHECK(b->want && b->n_seq > 0 && bytes == n_row * (size_t)b->n_vocab * sizeof(float));
}

static bool block_open(block *b)
{
    char path[512];
    if (b->file) test_path(path, sizeof path, "%s", b->file);
    else test_path(path, sizeof path, "%s/families/%s-bf16.gguf", test_unpacked(), b->name);
    if (!model_fixture_open(&b->x, path) || !read_golden(b)) return false;
    CHECK(b->x.m->hp.n_mtp == 1 && !b->x.m->hp.uses_mtp);
    model_use_mtp(b->x.m, true);
    return CHECK(b->x.m->hp.uses_mtp && b->x.m->hp.n_vocab == b->n_vocab);
}

/* ---- logits ---------------------------------------------------------------------------------- */

static double worst_row(const float *got, const float *want, int n_row, int n)
{
    double most = 0;
    for (int r = 0; r < n_row; r++, got += n, want += n) {
        double diff = 0, norm = 0;
        for (int i = 0; i < n; i++) {
            diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
            norm += (double)want[i] * want[i];
        }
        most = fmax(most, isfinite(diff) ? sqrt(diff / norm) : INFINITY);
    }
    return most;
}

/* Takes in a sequence in pieces; rows gets the block's logits of each position but the last. */
static int eval_rows(float *rows, const block *b, session *s, int q, int piece, err_ctx *err)
{
    int rc = session_rewind(s, 0);
    for (int t = 0, n; t < b->n[q] && rc == 0; t += n) {
        n = min_int(piece, b->n[q] - t);
        const int first = max_int(t - 1, 0), n_row = t + n - 1 - first;
        rc = session_eval(s, b->ids[q] + t, n, NULL, 0, NULL, NULL, err);
        if (rc == 0 && n_row > 0)
            rc = runner_mtp_logits(s, rows + (size_t)first * (size_t)b->n_vocab, 0, n_row, err);
    }
    return rc;
}

static void see_logits(const block *b, session *s, const place *p, double error, int piece)
{
    float *rows = test_alloc((size_t)MAX_TOKENS * (size_t)b->n_vocab, sizeof *rows);
    const float *want = b->want;
    err_ctx err = { 0 };
    for (int q = 0; q < b->n_seq; want += b->n_row[q] * b->n_vocab, q++) {
        const int first = b->n[q] - 1 - b->n_row[q];
        const int rc = eval_rows(rows, b, s, q, piece, &err);
        const double e = worst_row(rows + (size_t)first * (size_t)b->n_vocab, want, b->n_row[q],
                                   b->n_vocab);
        CHECK_MSG(rc == 0 && e < error, "%s, %s: %d tokens in pieces of %d: error %.2e %s", b->name,
                  p->name, b->n[q], piece, e, err.msg);
    }
    mem_free(rows);
}

/* Guesses after each token, the tokens taken in as passes of up to `most`. */
static void see_chains(const block *b, session *s, int most)
{
    err_ctx err = { 0 };
    int rc = 0, n_right = 0, n_all = 0;
    for (int q = 0; q < b->n_seq && rc >= 0; q++) {
        session_rewind(s, 0);
        for (int t = 0, n; t < b->n_start[q] && rc >= 0; t += n) {
            int32_t got[CHAIN];
            int failed;
            n = min_int(most, b->n_start[q] - t);
            const runner_row row = { .s = s, .ids = b->ids[q] + t, .n = n };
            rc = runner_take(session_runner(s), &row, 1, &failed, &err);
            if (rc == 0) rc = runner_guess(s, got, CHAIN, b->ids[q][t + n], &err);
            n_all += CHAIN;
            for (int i = 0; i < rc; i++) n_right += got[i] == b->drafts[q][t + n - 1][i];
        }
    }
    CHECK_MSG(rc == CHAIN && n_right == n_all, "passes of %d: %d of %d guesses: %s", most, n_right,
              n_all, err.msg);
}

/* Logits of the third guess after the first sequence. */
static void see_third(const block *b, session *s)
{
    const int n = b->n[0] - 1;
    float *row = test_alloc((size_t)b->n_vocab, sizeof *row);
    char path[512];
    size_t bytes;
    int32_t got[CHAIN];
    err_ctx err = { 0 };
    test_path(path, sizeof path, "%s/mtp/%s.chain.f32", test_unpacked(), b->name);
    float *want = test_read_file(path, &bytes);
    session_rewind(s, 0);
    int rc = session_eval(s, b->ids[0], n, NULL, 0, NULL, NULL, &err);
    if (rc == 0) rc = runner_guess(s, got, CHAIN, b->ids[0][n], &err);
    if (rc == CHAIN) rc = runner_mtp_logits(s, row, 0, 1, &err);
    const double e = want && rc == 0 ? worst_row(row, want, 1, b->n_vocab) : INFINITY;
    CHECK_MSG(e < b->error, "the third guess: error %.2e %s", e, err.msg);
    mem_free(want);
    mem_free(row);
}

static void test_block(block *b)
{
    static const int pieces[] = { 1, 7, MAX_TOKENS };
    const session_options so = { .ctx = CTX, .chunk = 64, .kv = KV_F32, .n_version = 1 };
    for (int i = 0; i < 1 + N_PLACES; i++) {
        const place *p = &places[max_int(i - 1, 0)];
        const bool exact = i == 0;
        const engine_options eo = { .threads = test_n_thread(sim_gpu() ? 1 : 2), .exact = exact };
        if (p->gpu ? gpu_count() == 0 || sim_gpu_skips(i, 5) : sim_gpu()) continue;
        if (model_fixture_engine(&b->x, &eo) && place_engine(b->x.e, b->x.m, p) &&
            model_fixture_session(&b->x, &so)) {
            const double error = exact ? b->error : fmax(b->rounded, p->gpu ? 1e-3 : 0.0);
            const bool slow = exact && b->file && !test_is_long();
            for (size_t k = slow; k < (slow ? 2 : ARRAY_LEN(pieces)); k++)
                see_logits(b, b->x.s, p, error, pieces[k]);
            if (exact && b->n_start[0] > 0) {
                see_chains(b, b->x.s, test_rounds(1, 7));
                see_third(b, b->x.s);
            }
        }
        model_fixture_stop(&b->x);
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

enum { WORDS = 40, HALF = 20 };

static int32_t word(int i) { return 300 + 37 * i % 900; }

/* Takes in the words up to `end` in two chunks, and guesses what comes after the next one. */
static int guess_after(session *s, int end, int32_t got[CHAIN], err_ctx *err)
{
    int32_t ids[WORDS];
    int rc = 0;
    for (int i = 0; i < WORDS; i++) ids[i] = word(i);
    while (session_pos(s) < end && rc == 0) {
        const int pos = session_pos(s), to = pos < HALF ? HALF : end;
        rc = session_eval(s, ids + pos, to - pos, NULL, 0, NULL, NULL, err);
        if (session_pos(s) == HALF) session_snapshot(s);
    }
    return rc < 0 ? rc : runner_guess(s, got, CHAIN, word(end), err);
}

/* Takes in as many tokens after HALF words as drafts would be, and goes back to `end`. */
static int go_back(session *s, int end, err_ctx *err)
{
    int32_t ids[4];
    int failed, rc = session_rewind(s, HALF) == HALF ? 0 : ERR_IO;
    for (int i = 0; i < 4; i++) ids[i] = HALF + i < end ? word(HALF + i) : 7;
    const runner_row row = { .s = s, .ids = ids, .n = 4, .keep = true };
    if (rc == 0) rc = runner_take(session_runner(s), &row, 1, &failed, err);
    return rc == 0 && session_rewind(s, end) == end ? 0 : ERR_IO;
}

static void see_same(session *s, int end, const int32_t want[CHAIN], const char *why)
{
    int32_t got[CHAIN];
    err_ctx err = { 0 };
    const int n = guess_after(s, end, got, &err);
    CHECK_MSG(n == CHAIN && memcmp(got, want, sizeof got) == 0, "%s: %d guesses: %s", why, n,
              err.msg);
}

/* A file with the block's rows, or without, read by a session with the block, or without. */
static void test_file(model_fixture *x, bool with, bool by)
{
    const session_options so = { .ctx = 64, .chunk = 32, .n_version = 1 };
    char path[512], *extra = NULL;
    int32_t got[CHAIN], want[CHAIN];
    size_t n_extra;
    err_ctx err = { 0 };
    test_temp(path, sizeof path);
    close(mkstemp(path));
    for (int i = 0; i < 2; i++) {
        model_use_mtp(x->m, i == 0 ? with : by);
        if (!model_fixture_run(x, &(engine_options){ .threads = 1 }, &so)) break;
        if (i == 0) {
            const int n = guess_after(x->s, WORDS - 2, want, &err);
            CHECK_MSG(n == (with ? CHAIN : 0) && session_save(x->s, path, str_from(""), &err) == 0,
                      "%s", err.msg);
        } else {
            CHECK_MSG(session_load(x->s, path, &extra, &n_extra, &err) == 0 &&
                      session_pos(x->s) == WORDS - 2, "%d %d: %s", with, by, err.msg);
            CHECK(runner_guess(x->s, got, CHAIN, 5, &err) == 0);         /* its vector is unknown */
            CHECK((guess_after(x->s, WORDS - 1, got, &err) == CHAIN) == by);
        }
        model_fixture_stop(x);
    }
    mem_free(extra);
    unlink(path);
}

/* A state that a cache brings back has the block's rows, but not the vector of its last token. */
static void test_cached(session *s)
{
    const prefix_cache_options po = { .ram_bytes = 16 << 20 };
    int32_t ids[WORDS], got[CHAIN];
    prefix_cache *c = NULL;
    err_ctx err = { 0 };
    for (int i = 0; i < WORDS; i++) ids[i] = word(i);
    session_rewind(s, 0);
    CHECK(prefix_cache_create(&c, s, &po, &err) == 0);
    CHECK(guess_after(s, HALF, got, &err) == CHAIN && prefix_cache_keep(c, s, &err) == 0);
    session_rewind(s, 0);
    CHECK_MSG(prefix_cache_load(c, s, ids, WORDS, &err) == HALF, "%s", err.msg);
    CHECK(runner_guess(s, got, CHAIN, 5, &err) == 0);
    CHECK_MSG(guess_after(s, WORDS - 2, got, &err) == CHAIN, "%s", err.msg);
    prefix_cache_free(c);
}

static void test_states(void)
{
    const session_options so = { .ctx = 64, .chunk = 32, .n_snapshot = 2, .n_version = 1 };
    const engine_options eo = { .threads = 1 };
    int32_t want[CHAIN], later[CHAIN];
    model_fixture x;
    err_ctx err = { 0 };
    if (!model_fixture_open(&x, demo)) return;
    model_use_mtp(x.m, true);
    if (!model_fixture_run(&x, &eo, &so)) return;
    CHECK(guess_after(x.s, WORDS - 2, want, &err) == CHAIN);
    CHECK(runner_guess(x.s, later, CHAIN, 5, &err) == 0);        /* once for each position */
    CHECK(guess_after(x.s, WORDS - 1, later, &err) == CHAIN && memcmp(want, later, sizeof want));
    CHECK(session_rewind(x.s, WORDS - 4) == HALF);
    see_same(x.s, WORDS - 2, want, "after a rewind to a snapshot");
    CHECK(session_rewind(x.s, 0) == 0);
    see_same(x.s, WORDS - 2, want, "from the start");
    CHECK(session_rewind(x.s, 0) == 0 && guess_after(x.s, HALF + 2, want, &err) == CHAIN);
    CHECK(go_back(x.s, HALF + 2, &err) == 0);
    see_same(x.s, HALF + 2, want, "after wrong drafts");
    test_cached(x.s);
    model_fixture_stop(&x);
    for (int i = 0; i < 4; i++) test_file(&x, i & 1, i & 2);
    model_fixture_close(&x);
}

/* ---- right drafts ---------------------------------------------------------------------------- */

static const char *const prompts[] = {
    "The old house", "Tell me a story.", "She looked at him and", "Who are you?", "In the year of",
    "Describe a ship.", "It was a dark", "Why was the door open?", "Upon the table", "What is love?",
    "The captain", "Write a letter to a friend.", "My good sir", "What did the doctor say?",
    "At the end of the street", "Tell me about the sea.", "When the morning",
    "How do I get to London?", "There is no", "Give me some advice.", "The king of",
    "What is the weather like?", "A little girl", "Describe the garden.",
};

static int guess_nothing(void *ctx, int32_t *out, int most, const int32_t *ids, int n)
{
    (void)ctx, (void)out, (void)most, (void)ids, (void)n;
    return 0;
}

/* Tokens a pass of the greedy answer to a prompt, every second one in the chat's format. */
static double tokens_a_pass(model_fixture *x, int i, int n_draft)
{
    static const draft_source none = { NULL, guess_nothing };
    const sampler_options greedy = { .top_p = 1, .repeat_penalty = 1 };
    const answer_options ao = { .tok = x->t, .max_tokens = test_rounds(129, 65), .drafts = &none,
                                .n_draft = n_draft };
    const chat_message said = { .role = CHAT_USER, .content = str_from(prompts[i]) };
    const chat_request q = { .messages = &said, .n_message = 1 };
    answer_stats st = { 0 };
    id_list p = { 0 };
    sampler *smp = NULL;
    err_ctx err = { 0 };
    session_rewind(x->s, 0);
    int rc = i % 2 ? chat_render(&p, x->c, x->enc, &q, &err)
                   : encoder_encode(x->enc, &p, said.content, true, &err);
    if (rc == 0) rc = sampler_create(&smp, &greedy, x->m->hp.n_vocab, CTX, &err);
    if (rc == 0) rc = answer_run(&st, x->s, smp, p.ids, (int)p.n, &ao, NULL, &err);
    CHECK_MSG(rc == 0 && st.n_answer > 1, "%s: %s", prompts[i], err.msg);
    ids_free(&p);
    sampler_free(smp);
    return (st.n_answer - 1.0) / (st.n_answer - 1.0 - st.n_right);
}

/* Measured by its training on other prompts: 1.90, 2.72 and 3.38. */
static void test_right(void)
{
    static const double want[] = { 1.90, 2.72, 3.38 };
    const session_options so = { .ctx = CTX, .kv = KV_F16, .n_version = 1 };
    const engine_options eo = { .threads = test_n_thread(2) };
    const int n = test_rounds((int)ARRAY_LEN(prompts), 2);
    model_fixture x;
    if (model_fixture_open(&x, demo) && model_fixture_chat(&x)) {
        model_use_mtp(x.m, true);
        for (int d = 0; d < 3 && model_fixture_run(&x, &eo, &so); d++) {
            double sum = 0;
            for (int i = 0; i < n; i++) sum += tokens_a_pass(&x, i, 1 + d);
            CHECK_MSG(fabs(sum / n / want[d] - 1) < (test_is_long() ? 0.05 : 0.2),
                      "%d drafts: %.3f tokens a pass, not %.2f", 1 + d, sum / n, want[d]);
            model_fixture_stop(&x);
        }
    }
    model_fixture_close(&x);
}

int main(int argc, char **argv)
{
    test_begin("mtp", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        if (block_open(&blocks[i])) test_block(&blocks[i]);
        mem_free(blocks[i].want);
        model_fixture_close(&blocks[i].x);
    }
    if (!sim_gpu()) test_states();
    if (!sim_gpu()) test_right();
    return test_end();
}
