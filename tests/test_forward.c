/* test_forward.c - the whole engine on whole models: logits that others computed, and everything
 * that must not change them: how a prompt is cut, how many threads there are, going back, a file in
 * between.
 *
 * The tiny models have random F32 weights: they judge F32 arithmetic. The demo models learned
 * something: they judge quantised arithmetic, which random networks blow up. */
#include "tests/cache_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "engine/engine.h"

/* Sanitizers make this arithmetic fifteen times slower: fewer rows and no long texts there, and the
 * same with a simulated GPU, and once more with experts on the drive if there is no time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static int slow = 1;
#else
static int slow;
#endif

/* ---- models and what others computed with them ----------------------------------------------- */

enum { MAX_SEQ = 8 };

typedef struct golden_seq {
    int32_t *ids;
    int n, rows;                         /* logits are of the last rows positions */
    const float *want;                   /* [rows, n_vocab] */
} golden_seq;

typedef struct subject {
    const char *name;                    /* "tiny-gptoss" */
    gguf *g;
    model *m;
    int n_vocab, n_seq;
    golden_seq seq[MAX_SEQ];
    golden_seq text;                     /* nll_ids; no logits */
    double nll;                          /* mean over text, F32 arithmetic */
    float *logits;
} subject;

enum { TINY_QWEN, TINY_GPTOSS, DEMO_QWEN, DEMO_GPTOSS, N_SUBJECT };
static subject subjects[N_SUBJECT] = {
    { .name = "tiny-qwen3next" }, { .name = "tiny-gptoss" },
    { .name = "demo-qwen3next" }, { .name = "demo-gptoss" },
};

static bool read_ids(golden_seq *q, const json_t *list)
{
    q->n = (int)json_array_size(list);
    q->ids = mem_array((size_t)q->n, sizeof *q->ids);
    if (!CHECK(q->n > 0 && q->ids)) return false;
    for (int t = 0; t < q->n; t++)
        q->ids[t] = (int32_t)json_integer_value(json_array_get(list, (size_t)t));
    return true;
}

static bool read_golden(subject *s, const json_t *j)
{
    const json_t *seqs = json_object_get(j, "seqs"), *rows = json_object_get(j, "rows");
    const json_t *text = json_object_get(j, "nll_ids");
    char path[512];
    size_t bytes, at = 0;

    test_path(path, sizeof path, "%s/models/%s.logits.f32", test_unpacked(), s->name);
    s->logits = test_read_file(path, &bytes);
    s->n_seq = (int)json_array_size(seqs);
    if (!s->logits || !CHECK(s->n_seq > 0 && s->n_seq <= MAX_SEQ)) return false;
    for (int i = 0; i < s->n_seq; i++) {
        golden_seq *q = &s->seq[i];
        q->rows = (int)json_integer_value(json_array_get(rows, (size_t)i));
        q->want = s->logits + at;
        at += (size_t)q->rows * (size_t)s->n_vocab;
        if (!read_ids(q, json_array_get(seqs, (size_t)i))) return false;
        if (!CHECK(q->rows > 0 && q->rows <= q->n)) return false;
    }
    s->nll = json_real_value(json_object_get(j, "nll_f32_weights"));
    if (text && !read_ids(&s->text, text)) return false;
    return CHECK_MSG(at * sizeof(float) == bytes, "%s: %zu floats expected", path, at);
}

static bool subject_open(subject *s)
{
    char path[512];
    err_ctx err = { 0 };
    json_error_t at;
    json_t *j;
    bool ok;

    if (strcmp(s->name, "demo-qwen3next") == 0)
        test_path(path, sizeof path, "tests/models/demo-qwen3next-mtp.gguf");
    else if (strcmp(s->name, "demo-gptoss") == 0)
        test_path(path, sizeof path, "tests/models/demo-gptoss-MXFP4.gguf");
    else
        test_path(path, sizeof path, "%s/models/%s-f32.gguf", test_unpacked(), s->name);
    if (!CHECK_MSG(gguf_open(&s->g, path, &err) == 0, "%s: %s", path, err.msg)) return false;
    if (!CHECK_MSG(model_bind(&s->m, s->g, &err) == 0, "%s: %s", path, err.msg)) return false;
    test_path(path, sizeof path, "%s/models/%s.logits.json", test_golden(), s->name);
    j = json_load_file(path, 0, &at);
    if (!CHECK_MSG(j, "%s: %s", path, at.text)) return false;
    s->n_vocab = s->m->hp.n_vocab;
    ok = CHECK(json_integer_value(json_object_get(j, "vocab")) == s->n_vocab) && read_golden(s, j);
    json_decref(j);
    return ok;
}

static void subject_close(subject *s)
{
    for (int i = 0; i < MAX_SEQ; i++) mem_free(s->seq[i].ids);
    mem_free(s->text.ids);
    mem_free(s->logits);
    model_free(s->m);
    gguf_close(s->g);
}

/* ---- an engine with one session -------------------------------------------------------------- */

typedef struct fixture {
    const subject *sub;
    engine *e;
    session *s;
    float *rows;                         /* [fixture_rows, n_vocab] */
} fixture;

/* One thread: these models are too small for more to help on a busy machine. */
static engine_options plain;             /* set once, by main */
static const place *here = &places[0];   /* all tests run once more in other placements */
static bool on_gpu;                      /* it is one on the GPU */

enum { FIXTURE_ROWS = 300, FIXTURE_CTX = 1100, CUT_TOKENS = 130 };

static bool fixture_open(fixture *r, const subject *sub, engine_options eo, session_options so)
{
    err_ctx err = { 0 };
    *r = (fixture){ .sub = sub };
    if (so.ctx == 0) so.ctx = FIXTURE_CTX;
    r->rows = mem_array(FIXTURE_ROWS, (size_t)sub->n_vocab * sizeof *r->rows);
    return CHECK(r->rows) &&
           CHECK_MSG(engine_open(&r->e, sub->m, &eo, &err) == 0, "%s: %s", sub->name, err.msg) &&
           place_engine(r->e, sub->m, here) &&
           CHECK_MSG(session_create(&r->s, r->e, &so, &err) == 0, "%s: %s", sub->name, err.msg);
}

static void fixture_close(fixture *r)
{
    session_free(r->s);
    engine_close(r->e);
    mem_free(r->rows);
}

static float *fixture_row(const fixture *r, int row)
{
    return r->rows + (size_t)row * (size_t)r->sub->n_vocab;
}

/* Feeds n ids; the last n_row rows go to r->rows from row at on. */
static bool feed(fixture *r, const int32_t *ids, int n, int at, int n_row)
{
    err_ctx err = { 0 };
    const int rc = session_eval(r->s, ids, n, fixture_row(r, at), n_row, NULL, NULL, &err);
    return CHECK_MSG(rc == 0, "%s: %d tokens at %d: %s", r->sub->name, n, session_pos(r->s),
                     err.msg);
}

/* From the start, in pieces of at most `piece` tokens; the last n_row rows. */
static bool feed_in_pieces(fixture *r, const int32_t *ids, int n, int piece, int n_row)
{
    const int first = n - n_row;
    session_rewind(r->s, 0);
    for (int t = 0; t < n; t += piece) {
        const int end = n - t < piece ? n : t + piece, from = t > first ? t : first;
        const int rows = end > from ? end - from : 0;
        if (!feed(r, ids + t, end - t, rows ? from - first : 0, rows)) return false;
    }
    return CHECK(session_pos(r->s) == n);
}

/* ---- distances ------------------------------------------------------------------------------- */

/* Infinite if want is all zero (that would prove nothing) or anything is not a number. */
static double relative_l2(const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return norm > 0 && isfinite(diff) ? sqrt(diff / norm) : INFINITY;
}

static double log_sum_exp(const float *row, int n)
{
    double top = row[0], sum = 0;
    for (int c = 1; c < n; c++) top = row[c] > top ? row[c] : top;
    for (int c = 0; c < n; c++) sum += exp(row[c] - top);
    return top + log(sum);
}

/* Kullback-Leibler divergence of got from want, both logits. */
static double divergence(const float *got, const float *want, int n)
{
    const double lg = log_sum_exp(got, n), lw = log_sum_exp(want, n);
    double kl = 0;
    for (int c = 0; c < n; c++) {
        const double lp = want[c] - lw;
        kl += exp(lp) * (lp - (got[c] - lg));
    }
    return kl;
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- logits that others computed ------------------------------------------------------------- */

static void test_tiny(void)
{
    static const struct { int piece; const char *why; } rows[] = {
        { FIXTURE_ROWS, "whole sequence" }, { 1, "token by token" },
    };
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        fixture r;
        if (fixture_open(&r, &subjects[i], plain, (session_options){ .kv = KV_F32 }))
            for (size_t k = 0; k < ARRAY_LEN(rows); k++)
                for (int q = 0; q < r.sub->n_seq; q++) {
                    const golden_seq *g = &r.sub->seq[q];
                    if (slow && (g->n > 100 || g->n == 63 || g->n == 64)) continue;
                    if (!feed_in_pieces(&r, g->ids, g->n, rows[k].piece, g->rows)) continue;
                    const double e = relative_l2(r.rows, g->want,
                                                 (size_t)g->rows * (size_t)r.sub->n_vocab);
                    CHECK_MSG(e < 2e-5, "%s, %d tokens, %s: error %.2e", r.sub->name, g->n,
                              rows[k].why, e);
                }
        fixture_close(&r);
    }
}

typedef struct demo_row {
    bool exact;
    int most_tokens;                     /* longer sequences are left out, to be quick */
    int piece;
    double l2, row_l2, kl;               /* bounds: of a sequence, of the median row, mean */
    double least;                        /* of the median row: if it is less, int8 is not int8 */
    const char *why;
} demo_row;

/* Also row by row, by the median: two nearly tied experts can move single rows much further. */
static void see_demo(fixture *r, const demo_row *d)
{
    double rows[MAX_SEQ * 16], kl = 0;
    const size_t vocab = (size_t)r->sub->n_vocab;
    int n = 0;

    for (int q = 0; q < r->sub->n_seq; q++) {
        const golden_seq *g = &r->sub->seq[q];
        if (g->n > (slow ? 20 : d->most_tokens)) continue;
        if (g->n > 200 && r->sub == &subjects[DEMO_GPTOSS] && !test_is_long()) continue;
        if (!CHECK(g->rows <= 16) || !feed_in_pieces(r, g->ids, g->n, d->piece, g->rows)) return;
        const double e = relative_l2(r->rows, g->want, (size_t)g->rows * vocab);
        CHECK_MSG(e < d->l2, "%s, %d tokens, %s: error %.2e", r->sub->name, g->n, d->why, e);
        for (int row = 0; row < g->rows; row++) {
            const float *want = g->want + (size_t)row * vocab;
            rows[n++] = relative_l2(fixture_row(r, row), want, vocab);
            kl += divergence(fixture_row(r, row), want, r->sub->n_vocab);
        }
    }
    if (!CHECK(n > 0)) return;
    qsort(rows, (size_t)n, sizeof *rows, compare_doubles);
    CHECK_MSG(rows[n / 2] < d->row_l2 && (on_gpu || rows[n / 2] >= d->least),
              "%s, %s: median error %.2e", r->sub->name, d->why, rows[n / 2]);
    const double bound = slow ? 2 * d->kl : d->kl;       /* of half the rows */
    CHECK_MSG(kl / n < bound, "%s, %s: mean divergence %.2e", r->sub->name, d->why, kl / n);
}

static void see_nll(fixture *r, const char *why)
{
    const golden_seq *g = &r->sub->text;
    double sum = 0;

    session_rewind(r->s, 0);
    for (int t = 0; t < g->n; t += FIXTURE_ROWS) {
        const int n = g->n - t < FIXTURE_ROWS ? g->n - t : FIXTURE_ROWS;
        if (!feed(r, g->ids + t, n, 0, n)) return;
        for (int i = 0; i < n && t + i + 1 < g->n; i++)
            sum += log_sum_exp(fixture_row(r, i), r->sub->n_vocab) -
                   fixture_row(r, i)[g->ids[t + i + 1]];
    }
    CHECK_MSG(fabs(sum / (g->n - 1) - r->sub->nll) < 0.002, "%s, %s: nll %.5f, expected %.5f",
              r->sub->name, why, sum / (g->n - 1), r->sub->nll);
}

static void test_demo(void)
{
    static const demo_row rows[] = {
        { false, 640, 640, 2e-2, 8e-3, 1e-3, 1e-3, "int8 activations" },
        { false, 20, 1, 2e-2, 8e-3, 1e-3, 1e-3, "int8 activations, token by token" },
        { true, 200, 200, 1e-3, 1e-4, 1e-6, 0, "exact" },
        { true, 20, 1, 1e-3, 1e-4, 1e-6, 0, "exact, token by token" },
    };
    for (int i = DEMO_QWEN; i <= DEMO_GPTOSS; i++)
        for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
            const engine_options eo = { .exact = rows[k].exact, .yarn_rounded = true,
                                        .threads = sim_gpu() ? plain.threads : 0 };
            fixture r;
            if (on_gpu && rows[k].exact) continue;
            if (rows[k].exact && !test_is_long() && (k + (size_t)i) % 2) continue;
            if (fixture_open(&r, &subjects[i], eo, (session_options){ .kv = KV_F32 })) {
                see_demo(&r, &rows[k]);
                if (k == 0 && !slow && (i == DEMO_QWEN || test_is_long())) see_nll(&r, rows[k].why);
            }
            fixture_close(&r);
        }
}

/* ---- what must not change them --------------------------------------------------------------- */

/* The 130-token sequence of a tiny model. */
static const golden_seq *long_prompt(const subject *s)
{
    for (int q = 0; q < s->n_seq; q++)
        if (s->seq[q].n == CUT_TOKENS) return &s->seq[q];
    return NULL;
}

/* A tiny model's long prompt in one call: all rows, to be freed; NULL after a failed check. */
static float *run_whole(const subject *sub, const golden_seq *g)
{
    const size_t n = (size_t)CUT_TOKENS * (size_t)sub->n_vocab;
    float *whole = mem_array(n, sizeof *whole);
    fixture r;
    const bool ok = fixture_open(&r, sub, plain, (session_options){ .kv = KV_F32 }) &&
                    CHECK(g && whole) && feed(&r, g->ids, g->n, 0, g->n);
    if (ok) memcpy(whole, r.rows, n * sizeof *whole);
    fixture_close(&r);
    if (ok) return whole;
    mem_free(whole);
    return NULL;
}

/* Two calls instead of one. */
static void see_cuts(const subject *sub, const golden_seq *g, const float *whole)
{
    static const int firsts[] = { 1, 2, 3, 62, 63, 64, 65, 66, 127, 128, 129 };
    fixture r;
    if (fixture_open(&r, sub, plain, (session_options){ .kv = KV_F32 }))
        for (size_t k = 0; k < ARRAY_LEN(firsts); k += slow ? 5 : (size_t)test_rounds(1, 3)) {
            const int first = firsts[k], rest = g->n - first;
            session_rewind(r.s, 0);
            if (!feed(&r, g->ids, first, 0, first) || !feed(&r, g->ids + first, rest, first, rest))
                continue;
            const double e = relative_l2(r.rows, whole, (size_t)g->n * (size_t)sub->n_vocab);
            CHECK_MSG(e < 1e-5, "%s: cut after %d: error %.2e", sub->name, first, e);
        }
    fixture_close(&r);
}

/* Chunks of a session: the same as calls with that many tokens, to the bit, whatever rows are asked
 * for. Chunks of one token are decoding. */
static void see_chunks(const subject *sub, const golden_seq *g, const float *whole)
{
    static const int chunks[] = { 1, 2, 3, 63, 65, 64, CUT_TOKENS };
    enum { LAST = 66 };
    const size_t vocab = (size_t)sub->n_vocab, n = CUT_TOKENS * vocab;
    float *once = mem_array(n, sizeof *once);

    for (size_t k = 0; k < ARRAY_LEN(chunks) && CHECK(once);
         k += slow ? 5 : (size_t)test_rounds(1, 5)) {
        fixture r;
        if (fixture_open(&r, sub, plain, (session_options){ .kv = KV_F32, .chunk = chunks[k] }) &&
            feed(&r, g->ids, g->n, 0, g->n)) {
            const double e = relative_l2(r.rows, whole, n);
            CHECK_MSG(e < 1e-5, "%s: chunks of %d: error %.2e", sub->name, chunks[k], e);
            memcpy(once, r.rows, n * sizeof *once);
            if (feed_in_pieces(&r, g->ids, g->n, chunks[k], g->n))
                CHECK_MSG(same_bits(r.rows, once, n), "%s: calls with %d", sub->name, chunks[k]);
            session_rewind(r.s, 0);
            fixture_row(&r, LAST)[0] = 0;
            if (chunks[k] == 64 && feed(&r, g->ids, g->n, 0, LAST))
                CHECK_MSG(same_bits(r.rows, once + n - LAST * vocab, LAST * vocab) &&
                          fixture_row(&r, LAST)[0] == 0, "%s: last %d rows", sub->name, LAST);
        }
        fixture_close(&r);
    }
    mem_free(once);
}

static void test_cuts(void)
{
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        const golden_seq *g = long_prompt(&subjects[i]);
        float *whole = run_whole(&subjects[i], g);
        if (whole) see_cuts(&subjects[i], g, whole);
        if (whole) see_chunks(&subjects[i], g, whole);
        mem_free(whole);
    }
}

/* A prompt and a few tokens one by one; 1 + RUN_DECODE rows. */
enum { RUN_DECODE = 4 };
static bool run_short(fixture *r)
{
    const golden_seq *g = &r->sub->seq[r->sub->n_seq - 1];
    const int prefill = r->sub->n_vocab > 1000 ? 12 : 70;    /* demo models cost more */
    if (!CHECK(g->n >= prefill + RUN_DECODE) || !feed(r, g->ids, prefill, 0, 1)) return false;
    for (int t = 0; t < RUN_DECODE; t++)
        if (!feed(r, g->ids + prefill + t, 1, 1 + t, 1)) return false;
    return true;
}

static void test_threads(void)
{
    for (int i = 0; i < N_SUBJECT; i += test_rounds(1, 3)) {     /* one of each family and kind */
        const size_t n = (1 + RUN_DECODE) * (size_t)subjects[i].n_vocab;
        float *one = mem_array(n, sizeof *one);
        for (int threads = 1; threads <= 3 && CHECK(one); threads++) {
            fixture r;
            if (fixture_open(&r, &subjects[i], (engine_options){ .threads = threads },
                             (session_options){ .kv = KV_F32 }) && run_short(&r)) {
                CHECK(engine_threads(r.e) == threads);
                if (threads == 1) memcpy(one, r.rows, n * sizeof *one);
                else CHECK_MSG(same_bits(r.rows, one, n), "%s: %d threads", r.sub->name, threads);
            }
            fixture_close(&r);
        }
        mem_free(one);
    }
}

/* Keys and values in fewer bits: other logits, but not by much. In exact mode, because int8
 * activations turn the smallest change into one of their own size. */
static void test_kv_types(void)
{
    static const struct { kv_type kv; double least, most; } rows[] = {
        { KV_F32, 0, 0 }, { KV_F16, 1e-5, 1e-3 }, { KV_Q8_0, 3e-4, 5e-2 },
    };
    for (int i = 0; i < N_SUBJECT; i += test_rounds(1, 3)) {     /* one of each family and kind */
        const size_t n = (1 + RUN_DECODE) * (size_t)subjects[i].n_vocab;
        float *full = mem_array(n, sizeof *full);
        for (size_t k = 0; k < ARRAY_LEN(rows) && CHECK(full); k++) {
            const session_options so = { .kv = rows[k].kv, .chunk = 10 };
            fixture r;
            if (fixture_open(&r, &subjects[i], (engine_options){.threads = 1, .exact = true}, so) &&
                run_short(&r)) {
                if (k == 0) memcpy(full, r.rows, n * sizeof *full);
                const double e = relative_l2(r.rows, full, n);
                CHECK_MSG(e >= rows[k].least && e <= rows[k].most, "%s, %s cache: %.2e",
                          r.sub->name, kv_type_name(rows[k].kv), e);
            }
            fixture_close(&r);
        }
        mem_free(full);
    }
}

/* ---- going back ------------------------------------------------------------------------------ */

/* Takes in ids[from .. n) and compares the last row with that of the same prompt in one call. */
static void see_continued(fixture *r, const golden_seq *g, int from, const float *want, bool bits,
                          const char *why)
{
    const size_t n = (size_t)r->sub->n_vocab;
    if (!feed(r, g->ids + from, g->n - from, 0, 1)) return;
    const double e = relative_l2(r->rows, want, n);
    CHECK_MSG(bits ? same_bits(r->rows, want, n) : e < 1e-5, "%s, %s: error %.2e", r->sub->name,
              why, e);
    CHECK_MSG(session_pos(r->s) == g->n &&
              memcmp(session_ids(r->s), g->ids, (size_t)g->n * sizeof *g->ids) == 0,
              "%s, %s: %d ids", r->sub->name, why, session_pos(r->s));
}

static void test_rewind(void)
{
    enum { KEEP = 100, ABOVE = 125, BELOW = 50 };
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        const golden_seq *g = long_prompt(&subjects[i]);
        /* rings of 40 rows: by the end the snapshot's window is overwritten */
        const session_options so = { .kv = KV_F32, .chunk = 8, .n_snapshot = 2 };
        float *want = mem_array((size_t)subjects[i].n_vocab, sizeof *want);
        fixture r;

        if (fixture_open(&r, &subjects[i], plain, so) && CHECK(g && want) &&
            feed(&r, g->ids, KEEP, 0, 0)) {
            session_snapshot(r.s);
            if (feed(&r, g->ids + KEEP, g->n - KEEP, 0, 1))
                memcpy(want, r.rows, (size_t)r.sub->n_vocab * sizeof *want);
            for (int again = 0; again < 2; again++) {
                CHECK(session_rewind_target(r.s, KEEP) == KEEP);
                CHECK(session_pos(r.s) == g->n && session_rewind(r.s, KEEP) == KEEP);
                see_continued(&r, g, KEEP, want, true, "back to the snapshot");
            }
            const int back = session_rewind(r.s, ABOVE);     /* only keys can be cut off */
            CHECK_MSG(back == (r.sub->m->hp.ssm_conv ? KEEP : ABOVE), "%s: back to %d", r.sub->name,
                      back);
            see_continued(&r, g, back, want, back == KEEP, "back to above the snapshot");
            const int target = session_rewind_target(r.s, BELOW);
            const int below = session_rewind(r.s, BELOW);
            CHECK_MSG(below == target && below <= BELOW && session_pos(r.s) == below,
                      "%s: back to %d, said %d", r.sub->name, below, target);
            see_continued(&r, g, below, want, false, "back to below the snapshot");
            CHECK(session_rewind(r.s, 0) == 0 && session_pos(r.s) == 0);
            if (feed(&r, g->ids, KEEP, 0, 0)) see_continued(&r, g, KEEP, want, true, "from 0");
        }
        fixture_close(&r);
        mem_free(want);
    }
}

/* The same model except for one bit of a norm. */
static void test_other_weights(void)
{
    char path[512], name[512];
    const int fd = mkstemp(test_temp(path, sizeof path));
    const subject *sub = &subjects[TINY_GPTOSS];
    subject other = { .name = "one bit changed", .n_vocab = sub->n_vocab };
    err_ctx err = { 0 };
    char *extra = NULL;
    size_t bytes, n_extra;
    fixture a = { 0 }, b = { 0 };

    test_path(name, sizeof name, "%s/models/%s-f32.gguf", test_unpacked(), sub->name);
    uint8_t *file = test_read_file(name, &bytes);
    if (CHECK(fd >= 0 && file) && CHECK(gguf_open_memory(&other.g, file, bytes, &err) == 0) &&
        CHECK(model_bind(&other.m, other.g, &err) == 0)) {
        const uint8_t *norm = other.m->layers[1].attn_norm.t->data;
        file[norm - file] ^= 1;
        if (fixture_open(&a, sub, plain, (session_options){ .kv = KV_F32 }) &&
            fixture_open(&b, &other, plain, (session_options){ .kv = KV_F32 }) &&
            feed(&a, sub->seq[2].ids, 5, 0, 0) &&
            CHECK(session_save(a.s, path, (str_view){ "", 0 }, &err) == 0)) {
            CHECK(session_load(b.s, path, &extra, &n_extra, &err) < 0 && session_pos(b.s) == 0);
            CHECK(session_load(a.s, path, &extra, &n_extra, &err) == 0 && session_pos(a.s) == 5);
        }
    }
    mem_free(extra);
    fixture_close(&a);
    fixture_close(&b);
    subject_close(&other);
    mem_free(file);
    if (fd >= 0) close(fd);
    unlink(path);
}

/* Writes to path a copy of the subject's file with another number under the key for experts that a
 * token uses, whose text is followed by its type, u32, and the value; and opens it. */
static bool open_with_used(subject *to, const char *path, const subject *sub, int n)
{
    static const char key[] = "expert_used_count";
    err_ctx err = { 0 };
    size_t bytes;
    uint8_t *file = test_read_file(gguf_part_path(sub->g, 0), &bytes);
    uint8_t *at = file ? memmem(file, bytes, key, sizeof key - 1) : NULL;
    FILE *f = fopen(path, "wb");
    bool ok = CHECK(f && at && at[sizeof key - 1] == 4 &&
                    at[sizeof key + 3] == sub->m->own_experts_used);
    if (ok) at[sizeof key + 3] = (uint8_t)n;
    ok = ok && CHECK(fwrite(file, 1, bytes, f) == bytes);
    if (f) ok &= fclose(f) == 0;
    mem_free(file);
    *to = (subject){ .name = sub->name, .n_vocab = sub->n_vocab };
    return ok && CHECK_MSG(gguf_open(&to->g, path, &err) == 0 &&
                           model_bind(&to->m, to->g, &err) == 0, "%s: %s", sub->name, err.msg);
}

/* Saves what a has, which b does not take. */
static void see_not_taken(fixture *a, fixture *b)
{
    char path[512], *extra = NULL;
    const int fd = mkstemp(test_temp(path, sizeof path));
    err_ctx err = { 0 };
    size_t n_extra;
    if (CHECK(fd >= 0 && session_save(a->s, path, (str_view){ "", 0 }, &err) == 0)) {
        CHECK(session_load(b->s, path, &extra, &n_extra, &err) < 0 && session_pos(b->s) == 0);
        CHECK(session_load(a->s, path, &extra, &n_extra, &err) == 0);
    }
    mem_free(extra);
    if (fd >= 0) close(fd);
    unlink(path);
}

/* More and fewer experts for each token: the bits of a file that says so itself; the model's own
 * number: the bits of the model. */
static void test_experts_used(void)
{
    static const int numbers[] = { 1, 2, 4, 7 };
    char path[512];
    const int fd = mkstemp(test_temp(path, sizeof path));
    if (!CHECK(fd >= 0)) return;
    close(fd);
    for (int i = 0; i < N_SUBJECT; i += test_rounds(1, 3))
        for (size_t k = test_is_long() ? 0 : (size_t)i % 2; k < ARRAY_LEN(numbers);
             k += (size_t)test_rounds(1, 2)) {
            const subject *sub = &subjects[i];
            const golden_seq *g = &sub->seq[2];
            const int n_row = min_int(g->n, 3);
            const size_t n = (size_t)n_row * (size_t)sub->n_vocab;
            const session_options so = { .kv = KV_F32 };
            subject key, other = { .name = sub->name, .g = sub->g, .n_vocab = sub->n_vocab };
            fixture own = { 0 }, a = { 0 }, b = { 0 };
            err_ctx err = { 0 };
            if (open_with_used(&key, path, sub, numbers[k]) &&
                CHECK(model_bind(&other.m, other.g, &err) == 0) &&
                CHECK(model_use_experts(other.m, numbers[k], &err) == 0) &&
                fixture_open(&own, sub, plain, so) && fixture_open(&a, &other, plain, so) &&
                fixture_open(&b, &key, plain, so)) {
                const bool same = numbers[k] == sub->m->own_experts_used;
                if (!same && feed(&a, g->ids, 3, 0, 0)) see_not_taken(&a, &own);
                session_rewind(a.s, 0);
                if (feed(&own, g->ids, g->n, 0, n_row) && feed(&a, g->ids, g->n, 0, n_row) &&
                    feed(&b, g->ids, g->n, 0, n_row)) {
                    CHECK_MSG(same_bits(a.rows, b.rows, n), "%s: %d experts", sub->name,
                              numbers[k]);
                    CHECK_MSG(same_bits(a.rows, own.rows, n) == same, "%s: %d experts, own",
                              sub->name, numbers[k]);
                }
            }
            fixture_close(&own);
            fixture_close(&a);
            fixture_close(&b);
            model_free(other.m);
            subject_close(&key);
        }
    unlink(path);
}

/* A session of another model refuses the file and stays as it was. */
static void see_refused(fixture *r, const char *path)
{
    const golden_seq *g = &r->sub->seq[2];
    err_ctx err = { 0 };
    char *extra = NULL;
    size_t n_extra = 0;

    if (!feed(r, g->ids, 4, 0, 0) || !feed(r, g->ids + 4, 1, 1, 1)) return;
    session_rewind(r->s, 0);
    if (!feed(r, g->ids, 4, 0, 0)) return;
    CHECK_MSG(session_load(r->s, path, &extra, &n_extra, &err) < 0 && !extra && err.msg[0],
              "%s took the file of another model", r->sub->name);
    CHECK(session_pos(r->s) == 4 && feed(r, g->ids + 4, 1, 0, 1));
    CHECK(same_bits(r->rows, fixture_row(r, 1), (size_t)r->sub->n_vocab));
}

static void see_file(fixture *a, fixture *b, fixture *other, const golden_seq *g, const char *path)
{
    enum { KEEP = 100 };
    const str_view note = { "my\0own", 6 };
    err_ctx err = { 0 };
    char *extra = NULL;
    size_t n_extra = 0;

    if (!feed(a, g->ids, KEEP, 0, 0)) return;
    if (!CHECK_MSG(session_save(a->s, path, note, &err) == 0, "%s", err.msg)) return;
    if (!feed(a, g->ids + KEEP, g->n - KEEP, 0, 1)) return;
    feed(b, g->ids + 5, 9, 0, 0);        /* something else: to be replaced */
    if (CHECK_MSG(session_load(b->s, path, &extra, &n_extra, &err) == 0, "%s", err.msg)) {
        CHECK(n_extra == note.len && memcmp(extra, note.ptr, note.len) == 0);
        CHECK(session_pos(b->s) == KEEP);
        see_continued(b, g, KEEP, fixture_row(a, 0), true, "saved and loaded");
    }
    mem_free(extra);
    see_refused(other, path);
}

static void test_save_load(void)
{
    char path[512];
    const int fd = mkstemp(test_temp(path, sizeof path));
    const session_options so = { .kv = KV_F16, .chunk = 40 };
    if (!CHECK(fd >= 0)) return;
    close(fd);
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        const golden_seq *g = long_prompt(&subjects[i]);
        fixture a, b, other;
        bool ok = fixture_open(&a, &subjects[i], plain, so);
        ok &= fixture_open(&b, &subjects[i], plain, so);
        ok &= fixture_open(&other, &subjects[TINY_QWEN + TINY_GPTOSS - i], plain, so);
        if (ok && CHECK(g)) see_file(&a, &b, &other, g, path);
        fixture_close(&a);
        fixture_close(&b);
        fixture_close(&other);
    }
    unlink(path);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_no_allocation(void)
{
    for (int i = 0; i < N_SUBJECT; i++) {
        const golden_seq *g = &subjects[i].seq[subjects[i].n_seq - 1];
        const session_options so = { .kv = i % 2 ? KV_Q8_0 : KV_F16, .chunk = 8, .n_snapshot = 1 };
        err_ctx err = { 0 };
        fixture r;
        if (fixture_open(&r, &subjects[i], plain, so)) {
            const long before = mem_count();
            int rc;
            mem_guard(true);
            rc = session_eval(r.s, g->ids, 20, r.rows, 3, NULL, NULL, &err);
            session_snapshot(r.s);
            for (int t = 20; t < 24 && rc == 0; t++)
                rc = session_eval(r.s, g->ids + t, 1, r.rows, 1, NULL, NULL, &err);
            session_rewind(r.s, 20);
            if (rc == 0) rc = session_eval(r.s, g->ids + 20, 4, r.rows, 1, NULL, NULL, &err);
            mem_guard(false);
            CHECK_MSG(rc == 0 && session_pos(r.s) == 24 && mem_count() == before,
                      "%s: %ld allocations, %s", r.sub->name, mem_count() - before, err.msg);
        }
        fixture_close(&r);
    }
}

typedef struct watcher {
    double stop_at, last;
    int n_tokens, calls;
    bool orderly;
} watcher;

static bool watch(void *ctx, double done_tokens, double n_tokens)
{
    watcher *w = ctx;
    w->calls++;
    w->orderly &= done_tokens >= w->last && done_tokens <= n_tokens && n_tokens == w->n_tokens;
    w->last = done_tokens;
    return done_tokens < w->stop_at;
}

static void test_watch(void)
{
    enum { CHUNK = 16 };
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        const golden_seq *g = long_prompt(&subjects[i]);
        const session_options so = { .kv = KV_F32, .chunk = CHUNK };
        watcher all = { .stop_at = 1e9, .n_tokens = CUT_TOKENS, .orderly = true }, some = all;
        err_ctx err = { 0 };
        float *want;
        fixture r;

        some.stop_at = 40;
        if (fixture_open(&r, &subjects[i], plain, so) && CHECK(g)) {
            want = fixture_row(&r, 1);
            CHECK(session_eval(r.s, g->ids, g->n, want, 1, watch, &all, &err) == 0);
            CHECK_MSG(all.orderly && all.last == g->n &&
                      all.calls >= (g->n + CHUNK - 1) / CHUNK *
                                   (on_gpu ? 1 : r.sub->m->hp.n_layer),
                      "%s: %d calls, the last at %g", r.sub->name, all.calls, all.last);
            session_rewind(r.s, 0);
            CHECK(session_eval(r.s, g->ids, g->n, r.rows, 1, watch, &some, &err) == ERR_STOPPED);
            const int done = session_pos(r.s);
            CHECK_MSG(some.orderly && done % CHUNK == 0 && done >= 32 && done <= 48,
                      "%s: stopped after %d tokens", r.sub->name, done);
            see_continued(&r, g, done, want, true, "going on after a stop");
        }
        fixture_close(&r);
    }
}

/* What cannot be taken in changes nothing. */
static void test_refusals(void)
{
    enum { CTX = 70, HAVE = 60 };
    static const struct { int n, bad_at; int32_t bad; const char *why; } rows[] = {
        { 1, 0, -1, "negative id" }, { 1, 0, INT32_MIN, "lowest id" },
        { 8, 7, 512, "last id one too high" }, { 8, 0, INT32_MAX, "highest id" },
        { 11, -1, 0, "one token more than the context" },
        { 130, -1, 0, "far more than the context" },
    };
    for (int i = TINY_QWEN; i <= TINY_GPTOSS; i++) {
        const golden_seq *g = long_prompt(&subjects[i]);
        const session_options so = { .kv = KV_F32, .chunk = 4, .ctx = CTX };
        int32_t ids[CUT_TOKENS];
        fixture r, same;
        const bool ok = fixture_open(&r, &subjects[i], plain, so);

        if (fixture_open(&same, &subjects[i], plain, so) && ok && CHECK(g) &&
            feed(&r, g->ids, HAVE, 0, 0) && feed(&same, g->ids, HAVE, 0, 0)) {
            for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
                err_ctx err = { 0 };
                memcpy(ids, g->ids, sizeof ids);
                if (rows[k].bad_at >= 0) ids[rows[k].bad_at] = rows[k].bad;
                const int rc = session_eval(r.s, ids, rows[k].n, r.rows, 1, NULL, NULL, &err);
                CHECK_MSG(rc == ERR_RANGE && err.msg[0] && session_pos(r.s) == HAVE,
                          "%s, %s: %d, %s", r.sub->name, rows[k].why, rc, err.msg);
            }
            feed(&r, g->ids + HAVE, CTX - HAVE, 0, 1);
            feed(&same, g->ids + HAVE, CTX - HAVE, 0, 1);
            CHECK(session_pos(r.s) == CTX && session_ctx(r.s) == CTX);
            CHECK_MSG(same_bits(r.rows, same.rows, (size_t)r.sub->n_vocab), "%s: changed by what "
                      "was refused", r.sub->name);
        }
        fixture_close(&r);
        fixture_close(&same);
    }
}

/* What start-up code of -ffast-math does. */
static void flush_subnormals(bool on)
{
#if defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr = on ? fpcr | UINT64_C(1) << 24 : fpcr & ~(UINT64_C(1) << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#elif defined(__x86_64__)
    const unsigned now = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? now | 0x8040 : now & ~0x8040u);
#else
    (void)on;
#endif
}

static void test_flushing(void)
{
#if defined(__aarch64__) || defined(__x86_64__)
    const engine_options eo = { .threads = 1 };
    engine *e = NULL;
    err_ctx err = { 0 };
    flush_subnormals(true);
    const int rc = engine_open(&e, subjects[0].m, &eo, &err);
    flush_subnormals(false);
    CHECK_MSG(rc == ERR_UNSUPPORTED && !e && strstr(err.msg, "subnormal"), "%d, %s", rc, err.msg);
    engine_close(e);
#endif
}

static void test_out_of_memory(void)
{
    for (int i = 0; i < N_SUBJECT; i++) {
        const engine_options eo = { .threads = test_n_thread(2) };
        const session_options so = { .ctx = 64, .chunk = 16, .kv = KV_F16, .n_snapshot = 2 };
        int rc = -1, n;
        for (n = 1; n < 500 && rc < 0; n++) {
            engine *e = NULL;
            session *s = NULL;
            err_ctx err = { 0 };
            mem_fail_after(n);
            rc = engine_open(&e, subjects[i].m, &eo, &err);
            if (rc == 0) rc = session_create(&s, e, &so, &err);
            mem_fail_after(0);
            CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && !s && err.msg[0]), "%s, allocation %d: %d, %s",
                      subjects[i].name, n, rc, err.msg);
            session_free(s);
            engine_close(e);
        }
        CHECK_MSG(rc == 0 && n > 5, "%s: %d tries", subjects[i].name, n);
    }
}

/* What needs neither F32 activations nor threads; some of it if time is short. */
static void test_place(const place *p, bool all)
{
    here = p;
    on_gpu = p->gpu;
    test_tiny();
    if (test_is_long() || (on_gpu && (all || !sim_gpu()))) test_demo();
    test_save_load();
    if (all) {
        test_cuts();
        test_rewind();
        test_watch();
        test_refusals();
    }
    test_no_allocation();
    here = &places[0];
    on_gpu = false;
}

static void test_cpu(void)
{
    test_tiny();
    test_demo();
    test_cuts();
    test_threads();
    test_kv_types();
    test_rewind();
    test_save_load();
    test_other_weights();
    test_experts_used();
    test_no_allocation();
    test_watch();
    test_refusals();
    test_flushing();
    test_out_of_memory();
}

int main(int argc, char **argv)
{
    bool ok = true;
    test_begin("forward", argc, argv);
    plain.threads = test_n_thread(1);
    if (slow) test_skip("sanitizer: long texts of the demo models");
    slow |= sim_gpu();
    for (int i = 0; i < N_SUBJECT; i++) ok &= subject_open(&subjects[i]);
    if (ok) {
        if (!sim_gpu()) test_cpu();      /* as without it */
        /* test_gpu.c counts that there is no GPU */
        const bool always = slow;
        const int step = sim_gpu_step(test_rounds(1, 7), 5);
        for (int i = sim_gpu() ? N_CPU_PLACES : 1; i < N_PLACES; i += step) {
            /* Opening a session takes a driver longer than everything else, and there are many:
             * every third place of a real GPU has to do, and of a simulated one, if there is no
             * time. test_vram_cache.c compares all of them. */
            const bool real = places[i].gpu && !sim_gpu();
            const int nth = real ? 9 : sim_gpu_step(test_rounds(3, N_PLACES), N_PLACES);
            const bool all = places[i].gpu ? (i - N_CPU_PLACES) % nth == 0
                                           : test_is_long();
            if (places[i].gpu && gpu_count() == 0) continue;
            if (real && (i - N_CPU_PLACES) % 3 != 0) continue;
            slow = always || (real && !all) || (!places[i].gpu && !test_is_long());
            test_place(&places[i], all);
        }
    }
    session_free(NULL);
    engine_close(NULL);
    for (int i = 0; i < N_SUBJECT; i++) subject_close(&subjects[i]);
    return test_end();
}
