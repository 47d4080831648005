/* test_mixers.c - rotary positions and attention, on every instruction set.
 *
 * Three kinds of expected values: published tables, numbers printed by numpy in float64 (the lines
 * that made them are in the same folder), and naive double loops in this file. Errors are relative,
 * in the L2 norm. Attention runs under the allocation guard, in buffers of the exact size; it has
 * the same bits for any number of threads and of tokens at a time. */
#include "tests/numbers.h"

#include <stdio.h>
#include <string.h>

#include "engine/cpu/loops.h"
#include "engine/models/rope.h"
#include "tests/case_file.h"
#include "tests/state_reference.h"

/* ---- rotary positions ---------------------------------------------------------------------- */

/* gpt-oss: base 150000, 64 dimensions, factor 32 over 4096 tokens. */
static const rope_spec gptoss_rope = { 64, 150000.0, 32.0, ROPE_YARN, 4096, 1.0, false };

static const struct { int i; double rounded, exact; } gptoss_freq[] = {
    { 0, 1.0, 1.0 },
    { 8, 5.081327e-2, 5.081327e-2 },
    { 9, 3.162075e-2, 3.170570e-2 },
    { 10, 1.945097e-2, 1.933500e-2 },
    { 12, 7.015714e-3, 6.794959e-3 },
    { 13, 4.069555e-3, 3.860359e-3 },
    { 15, 1.206131e-3, 1.052602e-3 },
    { 16, 5.809475e-4, 4.564839e-4 },
    { 17, 2.279478e-4, 1.293187e-4 },
    { 18, 3.830881e-5, 3.830881e-5 },
    { 31, 3.023511e-7, 3.023511e-7 },
};

/* Entries of the table at position 100; NAN: not given. */
static const struct { int i; bool rounded; double c, s; } gptoss_at_100[] = {
    { 0, false, 1.1611758, -0.6818586 },
    { 0, true, 1.1611758, -0.6818586 },
    { 10, true, -0.4923362, 1.2533417 },
    { 10, false, -0.4777689, 1.2589668 },
    { 17, true, NAN, 0.0306922 },
    { 17, false, NAN, 0.0174132 },
};

static void test_rope_gptoss(void)
{
    double freq[32], magnitude;
    float c[32], s[32];
    for (int rounded = 0; rounded < 2; rounded++) {
        rope_spec spec = gptoss_rope;
        spec.rounded = rounded;
        rope_frequencies(freq, &magnitude, &spec);
        CHECK_MSG(fabs(magnitude - 1.3465735903) < 1e-10, "magnitude %.11f", magnitude);
        for (size_t i = 0; i < ARRAY_LEN(gptoss_freq); i++) {
            const double want = rounded ? gptoss_freq[i].rounded : gptoss_freq[i].exact;
            const double got = freq[gptoss_freq[i].i];
            CHECK_MSG(fabs(got / want - 1.0) < 6e-7, "rounded %d, pair %d: %.9g, expected %.7g",
                      rounded, gptoss_freq[i].i, got, want);
        }
        rope_table(c, s, freq, magnitude, 64, 100, 1);
        for (size_t i = 0; i < ARRAY_LEN(gptoss_at_100); i++) {
            const int at = gptoss_at_100[i].i;
            if (gptoss_at_100[i].rounded != rounded) continue;
            CHECK_MSG(!(fabs(c[at] - gptoss_at_100[i].c) >= 1.5e-7) &&
                      fabs(s[at] - gptoss_at_100[i].s) < 1.5e-7,
                      "rounded %d, position 100, pair %d: %.8f, %.8f", rounded, at,
                      (double)c[at], (double)s[at]);
        }
    }
}

/* From numpy, with theta = base ** (-2 * i / dim) and corr(r) = dim * log(ctx / (2 * pi * r)) /
 * (2 * log(base)); lo, hi = corr(32), corr(1), or floor(lo), ceil(hi); lo, hi = max(lo, 0),
 * min(hi, dim - 1); ramp = clip((i - lo) / max(0.001, hi - lo), 0, 1);
 * freq = theta * (1 - ramp + ramp / factor) */
static const struct {
    rope_spec spec;
    int i;                               /* want is freq[i], freq[i + 1], .. */
    double want[4];
    const char *why;
} yarn[] = {
    { { 64, 1e7, 4.0, ROPE_YARN, 262144, 1.0, true }, 14,
      { 0.000865964323, 0.000474239823, 0.00025693506, 0.000137349745 }, "Qwen, start of ramp" },
    { { 64, 1e7, 4.0, ROPE_YARN, 262144, 1.0, true }, 19,
      { 3.70722498e-05, 1.8449222e-05, 8.75977007e-06, 3.84981632e-06 }, "Qwen, end of ramp" },
    { { 64, 5e6, 2.5, ROPE_YARN, 262144, 1.0, true }, 14,
      { 0.00117273699, 0.000675918895, 0.000387585116, 0.000220933805 }, "Qwen Coder" },
    { { 16, 10000.0, 8.0, ROPE_YARN, 150, 1.0, true }, 0,
      { 1.0, 0.223994668, 0.0416666667, 0.00395284708 }, "rounded below pair 0" },
    { { 16, 10000.0, 8.0, ROPE_YARN, 150, 1.0, false }, 0,
      { 1.0, 0.215822436, 0.0364980937, 0.00395284708 }, "begins below pair 0" },
    { { 8, 10.0, 4.0, ROPE_YARN, 476, 1.0, true }, 0,
      { 1.0, 0.562341325, 0.276699295, 0.133370956 }, "rounded past the last dimension" },
    { { 8, 2.0, 4.0, ROPE_YARN, 1 << 20, 1.0, true }, 0,
      { 1.0, 0.840896415, 0.707106781, 0.594603558 }, "begins past the last dimension" },
    { { 8, 10000.0, 4.0, ROPE_LINEAR, 4096, 1.0, false }, 0,
      { 0.25, 0.025, 0.0025, 0.00025 }, "linear" },
    { { 8, 10000.0, 4.0, ROPE_PLAIN, 4096, 1.0, false }, 0,
      { 1.0, 0.1, 0.01, 0.001 }, "plain: factor without effect" },
};

static const struct { rope_scaling scaling; double factor, attn_factor, want; } magnitudes[] = {
    { ROPE_PLAIN, 8.0, 1.0, 1.0 },
    { ROPE_PLAIN, 1.0, 1.25, 1.25 },
    { ROPE_LINEAR, 8.0, 1.0, 1.0 },
    { ROPE_LINEAR, 8.0, 1.25, 1.25 },
    { ROPE_YARN, 1.0, 1.0, 1.0 },
    { ROPE_YARN, 0.5, 1.0, 0.93068528194400547 },
    { ROPE_YARN, 4.0, 1.0, 1.13862943611198906 },
    { ROPE_YARN, 4.0, 0.5, 0.56931471805599453 },
};

static void test_rope_scaling(void)
{
    double freq[32], magnitude;
    for (size_t i = 0; i < ARRAY_LEN(yarn); i++) {
        rope_frequencies(freq, &magnitude, &yarn[i].spec);
        for (int j = 0; j < 4; j++)
            CHECK_MSG(fabs(freq[yarn[i].i + j] / yarn[i].want[j] - 1.0) < 5e-9,
                      "%s: pair %d is %.9g, expected %.9g", yarn[i].why, yarn[i].i + j,
                      freq[yarn[i].i + j], yarn[i].want[j]);
    }
    for (size_t i = 0; i < ARRAY_LEN(magnitudes); i++) {
        const rope_spec spec = { 8, 10000.0, magnitudes[i].factor, magnitudes[i].scaling, 4096,
                                 magnitudes[i].attn_factor, false };
        rope_frequencies(freq, &magnitude, &spec);
        CHECK_MSG(fabs(magnitude - magnitudes[i].want) < 1e-15, "magnitude of row %zu: %.17g", i,
                  magnitude);
    }
}

static void test_rope_spec(void)
{
    model_hparams hp = { .arch = ARCH_GPTOSS, .rope_dim = 64, .rope_base = 150000.0,
                         .rope_base_window = 10000.0, .rope_scaling = ROPE_YARN,
                         .rope_factor = 32.0, .rope_ctx_orig = 4096, .rope_attn_factor = 1.5 };
    rope_spec s = rope_spec_of(&hp, false, false);
    CHECK(s.dim == 64 && s.base == 150000.0 && s.factor == 32.0 && s.scaling == ROPE_YARN);
    CHECK(s.ctx_orig == 4096 && s.attn_factor == 1.5 && !s.rounded);
    CHECK(rope_spec_of(&hp, false, true).rounded);
    CHECK(rope_spec_of(&hp, true, false).base == 10000.0);
}

/* Near and far: F32 rounding of the result is all that may be lost. */
static void test_rope_table(void)
{
    static const int positions[] = { 0, 1, 1000, 131071, 262143, 1 << 24 };
    double freq[32], magnitude;
    float c[3 * 32], s[3 * 32], c1[32], s1[32];
    rope_frequencies(freq, &magnitude, &gptoss_rope);
    for (size_t i = 0; i < ARRAY_LEN(positions); i++) {
        const int pos = positions[i];
        double worst = 0.0;
        rope_table(c, s, freq, magnitude, 64, pos, 3);
        for (int at = 0; at < 96; at++) {
            const long double angle = (long double)(pos + at / 32) * freq[at % 32];
            worst = worse(worst, fabs((double)(c[at] - magnitude * cosl(angle))));
            worst = worse(worst, fabs((double)(s[at] - magnitude * sinl(angle))));
        }
        CHECK_MSG(worst < 0x1p-24 + 1e-16 * pos, "tables from position %d: off by %.2e", pos,
                  worst);
        rope_table(c1, s1, freq, magnitude, 64, pos + 2, 1);
        CHECK(!memcmp(c1, c + 64, sizeof c1) && !memcmp(s1, s + 64, sizeof s1));
    }
}

static void test_rope_rotate(const loops *f)
{
    static const struct { int dim, head_dim; } shapes[] = { { 2, 2 }, { 6, 10 }, { 64, 256 } };
    test_rng rng = { 11 };
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const int half = shapes[i].dim / 2, n = shapes[i].head_dim;
        float head[256], c[32], s[32];
        double want[256];
        fill(head, (size_t)n, &rng);
        fill(c, (size_t)half, &rng);
        fill(s, (size_t)half, &rng);
        for (int j = 0; j < n; j++) want[j] = head[j];
        for (int j = 0; j < half; j++) {
            want[j] = (double)head[j] * c[j] - (double)head[j + half] * s[j];
            want[j + half] = (double)head[j] * s[j] + (double)head[j + half] * c[j];
        }
        f->rotate(head, c, s, shapes[i].dim);
        const double e = rel_error(head, want, (size_t)n);
        CHECK_MSG(e < 1e-7, "%s: %d of %d dimensions: error %.1e", f->isa, shapes[i].dim, n, e);
        for (int j = shapes[i].dim; j < n; j++) CHECK(head[j] == want[j]);
    }
}

/* ---- attention ----------------------------------------------------------------------------- */

typedef enum key_kind {
    KEYS_RANDOM,
    KEYS_EQUAL,                          /* the same key everywhere */
    KEYS_RISING, KEYS_FALLING,           /* every score above (below) the one before, by 0.5 */
    KEYS_HUGE,                           /* whole numbers: scores to +-1e6, exact; all in pairs */
    KEYS_STEEP                           /* the first key 1e5 above the rest */
} key_kind;

typedef struct attend_case {
    kv_type type;
    int n_head, n_head_kv, head_dim;
    int pos, n;                          /* of the tokens that are asked about */
    int window;
    key_kind keys;
    float sink;                   /* NAN: none; of head h: sink + h / 4 */
    double bound;
    const char *why;
} attend_case;

/* Values that F16 holds too. */
static void fill_f16(float *x, size_t n, test_rng *r)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)((int)test_below(r, 2049) - 1024) / 512.0f;
}

/* Query and keys of all positions; scale is 1 where the scores are to be exact. */
static void make_keys(float *q, size_t n_q, float *k, const attend_case *c, int n_pos, test_rng *r)
{
    const size_t dim = (size_t)c->head_dim, width = (size_t)c->n_head_kv * dim;
    fill_f16(q, n_q, r);
    fill_f16(k, (size_t)n_pos * width, r);
    if (c->keys == KEYS_RANDOM) return;
    for (size_t i = 0; i < n_q; i++) q[i] = c->keys == KEYS_HUGE ? (float)(int)(q[i] * 64) : 1.0f;
    for (int p = 0; p < n_pos; p++)
        for (size_t i = 0; i < width; i++) {
            float *at = &k[(size_t)p * width + i];
            const float score = c->keys == KEYS_RISING ? p * 0.5f
                              : c->keys == KEYS_FALLING ? -p * 0.5f
                              : c->keys == KEYS_STEEP ? (p == 0 ? 1e5f : 0.0f) : 1.0f;
            if (c->keys == KEYS_HUGE) *at = p % 2 ? *(at - width) : (float)(int)(*at * 256.0f);
            else *at = i % dim == 0 ? score : 0.0f;
        }
}

static void attend_naive(double *out, const attend_args *a, const float *keys, const float *values,
                         int t, int h)
{
    const size_t dim = (size_t)a->head_dim, width = (size_t)a->n_head_kv * dim;
    const size_t kv_at = (size_t)(h / (a->n_head / a->n_head_kv)) * dim;
    const float *q = a->q + ((size_t)t * (size_t)a->n_head + (size_t)h) * dim;
    double score[4096], top = a->sinks ? a->sinks[h] : -INFINITY, total;
    int n = 0, first = 0;
    for (int p = 0; p <= a->pos + t; p++) {
        if (a->window > 0 && a->pos + t - p >= a->window) { first = p + 1; continue; }
        score[n] = 0.0;
        for (size_t c = 0; c < dim; c++)
            score[n] += (double)q[c] * keys[(size_t)p * width + kv_at + c];
        score[n] *= a->scale;
        top = fmax(top, score[n++]);
    }
    total = a->sinks ? exp(a->sinks[h] - top) : 0.0;
    for (int i = 0; i < n; i++) total += score[i] = exp(score[i] - top);
    memset(out, 0, dim * sizeof *out);
    for (int i = 0; i < n; i++)
        for (size_t c = 0; c < dim; c++)
            out[c] += score[i] / total * values[(size_t)(first + i) * width + kv_at + c];
}

/* A store of two layers, of which the second holds everything, written in pieces of up to 7. */
static kv_store *make_store(const attend_case *c, const float *k, const float *v, int n_pos)
{
    model_layer layers[2] = { { .mixer = MIX_DELTANET },
                              { .mixer = MIX_ATTENTION, .window = c->window } };
    const model m = { .hp = { .n_layer = 2, .n_head = c->n_head, .n_head_kv = c->n_head_kv,
                              .head_dim = c->head_dim, .window = c->window }, .layers = layers };
    const size_t width = (size_t)(c->n_head_kv * c->head_dim);
    const int slack = c->n > 7 ? c->n : 7;
    kv_store *store;
    err_ctx err;
    if (!CHECK_MSG(kv_create(&store, &m,
                             &(kv_options){ .type = c->type, .ctx = n_pos, .slack = slack },
                             &err) == 0, "%s: %s", c->why, err.msg))
        return NULL;
    for (int p = 0; p < n_pos;) {
        const int left = n_pos - p, n = p < c->pos && left > 7 ? 7 : left < slack ? left : slack;
        kv_write(store, 1, p, n, k + (size_t)p * width, v + (size_t)p * width, NULL);
        p += n;
    }
    return store;
}

/* A team and its scratch, of the exact size and full of NaN. */
typedef struct fixture {
    pool *team;
    float *scratch;
    size_t thread_floats;
} fixture;

static bool fixture_init(fixture *r, int n_thread, int head_dim)
{
    *r = (fixture){ .thread_floats = attend_scratch(head_dim) };
    if (!CHECK(pool_create(&r->team, n_thread, NULL) == 0)) return false;
    r->scratch = room((size_t)n_thread * r->thread_floats, sizeof *r->scratch);
    memset(r->scratch, 0xFF, (size_t)n_thread * r->thread_floats * sizeof *r->scratch);
    return r->scratch != NULL;
}

static void fixture_release(fixture *r)
{
    pool_free(r->team);
    mem_free(r->scratch);
}

static void run_attention(const loops *f, int n_thread, const attend_args *a)
{
    fixture r;
    if (fixture_init(&r, n_thread, a->head_dim)) {
        mem_guard(true);
        attend(f, r.team, a, r.scratch, r.thread_floats);
        mem_guard(false);
    }
    fixture_release(&r);
}

/* The first set of loops on one thread gives the right values, and all others on any number of
 * threads, with all tokens or one at a time, the same bits. */
static void check_attention(const attend_case *c, const attend_args *a, const double *want)
{
    const size_t row = (size_t)(c->n_head * c->head_dim), n = (size_t)c->n * row;
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    float *first = room(n, sizeof *first);
    double worst = 0.0;

    for (int i = 0; i < n_set; i++)
        for (int n_thread = 1; n_thread <= 4; n_thread++) {
            const bool alone = n_thread == 4;
            if (!test_is_long() && (n_thread == 2 || (i > 0 && n_thread == 3))) continue;
            memset(a->out, 0xFF, n * sizeof *a->out);
            for (int t = 0; t < c->n; t += alone ? 1 : c->n) {
                attend_args part = *a;
                part.pos += t;
                part.n = alone ? 1 : c->n;
                part.q += (size_t)t * row;
                part.out += (size_t)t * row;
                run_attention(sets[i], n_thread, &part);
            }
            if (i == 0 && n_thread == 1) memcpy(first, a->out, n * sizeof *first);
            CHECK_MSG(!memcmp(first, a->out, n * sizeof *first), "%s: %s, %d threads: other bits",
                      c->why, sets[i]->isa, n_thread);
        }
    for (size_t h = 0; h < (size_t)(c->n * c->n_head); h++) {
        const size_t at = h * (size_t)c->head_dim;
        worst = worse(worst, rel_error(first + at, want + at, (size_t)c->head_dim));
    }
    CHECK_MSG(worst <= c->bound, "%s: error %.2e, bound %.0e", c->why, worst, c->bound);
    mem_free(first);
}

static void test_attention_case(const attend_case *c)
{
    const int n_pos = c->pos + c->n;
    const size_t dim = (size_t)c->head_dim, width = (size_t)c->n_head_kv * dim;
    const size_t n_q = (size_t)(c->n * c->n_head) * dim;
    test_rng rng = { 100 + (uint64_t)c->pos };
    float *q = room(n_q, sizeof *q), *out = room(n_q, sizeof *out), sinks[64];
    float *k = room((size_t)n_pos * width, sizeof *k), *v = room((size_t)n_pos * width, sizeof *v);
    double *want = room(n_q, sizeof *want);
    make_keys(q, n_q, k, c, n_pos, &rng);
    fill_f16(v, (size_t)n_pos * width, &rng);
    for (int h = 0; h < c->n_head; h++) sinks[h] = c->sink + (float)h / 4;
    kv_store *store = make_store(c, k, v, n_pos);
    const attend_args a = {
        .out = out, .q = q, .stored = store ? kv_layer_view(store, 1) : (kv_view){ 0 },
        .n_head = c->n_head, .n_head_kv = c->n_head_kv, .head_dim = c->head_dim, .pos = c->pos,
        .n = c->n, .window = c->window,
        .scale = c->keys == KEYS_RANDOM ? 1.0f / sqrtf((float)c->head_dim) : 1.0f,
        .sinks = isnan(c->sink) ? NULL : sinks,
    };
    for (int t = 0; t < c->n; t++)
        for (int h = 0; h < c->n_head; h++)
            attend_naive(want + (size_t)(t * c->n_head + h) * dim, &a, k, v, t, h);
    if (store) check_attention(c, &a, want);
    kv_free(store);
    mem_free(q);
    mem_free(out);
    mem_free(k);
    mem_free(v);
    mem_free(want);
}

/* A Q8_0 scale that was rounded down by a third: codes beyond 127 are clamped, not wrapped. */
static void test_q8_0_range(void)
{
    const float x = 0x1p-24f, edge[3] = { 180 * x, -180 * x, 90 * x };
    const attend_case c = { KV_Q8_0, 1, 1, 32, 0, 1, 0, KEYS_RANDOM, 0.0f, 0.0, "scale of 2^-24" };
    float k[32] = { edge[0], edge[1], edge[2] }, got[32];
    kv_store *store = make_store(&c, k, k, 1);
    if (!store) return;
    kv_row_decode(got, store, 1, 0, 0, false);
    CHECK_MSG(got[0] == 127 * x && got[1] == -127 * x && got[2] == 90 * x, "%a, %a, %a",
              (double)got[0], (double)got[1], (double)got[2]);
    kv_free(store);
}

/* From numpy: wave = lambda n, a, b: np.sin(np.arange(n) * a + b).astype(np.float32)
 * q = 2 * wave(4, .31, 0); k = 2 * wave(20, .47, 1).reshape(5, 4)
 * v = wave(20, .83, 2).reshape(5, 4)
 * s = k @ q / 2 [of the last 3 keys where the window is 3]; w = exp(s); t = w.sum(), with the sink
 * t + exp(.5); w / t @ v */
static const struct { int window; bool sink; double want[4]; } attend_golden[] = {
    { 0, false, { 0.0392180888, 0.244047539, 0.2901854, 0.147630669 } },
    { 0, true, { 0.0376605576, 0.234355285, 0.278660799, 0.141767574 } },
    { 3, true, { -0.498259628, 0.191090816, 0.756184699, 0.829570661 } },
};

static void test_attention_golden(const loops *f)
{
    const float sink = 0.5f;
    float q[4], k[20], v[20], out[4];
    wave(q, 4, 0.31, 0.0);
    wave(k, 20, 0.47, 1.0);
    wave(v, 20, 0.83, 2.0);
    for (int i = 0; i < 4; i++) q[i] *= 2.0f;
    for (int i = 0; i < 20; i++) k[i] *= 2.0f;
    for (size_t i = 0; i < ARRAY_LEN(attend_golden); i++) {
        const attend_case c = { KV_F32, 1, 1, 4, 4, 1, attend_golden[i].window, KEYS_RANDOM, 0.0f,
                                1e-7, "golden" };
        kv_store *store = make_store(&c, k, v, 5);
        if (!store) return;
        const attend_args a = { out, q, kv_layer_view(store, 1), 1, 1, 4, 4, 1, c.window, 0.5f,
                                attend_golden[i].sink ? &sink : NULL };
        run_attention(f, 1, &a);
        const double e = rel_error(out, attend_golden[i].want, 4);
        CHECK_MSG(e < 1.5e-7, "%s: golden %zu: error %.1e", f->isa, i, e);
        kv_free(store);
    }
    /* scores 1 and 2, sink 0.5: the weights, shown by values that are unit vectors */
    const float q2 = 1.0f, k2[] = { 1.0f, 0.0f, 2.0f, 0.0f }, v2[] = { 1.0f, 0.0f, 0.0f, 1.0f };
    const float query[2] = { q2, 7.0f };
    static const double weights[2] = { 0.2312239, 0.6285317 };
    const attend_case c = { KV_F32, 1, 1, 2, 1, 1, 0, KEYS_RANDOM, 0.0f, 1e-7, "published" };
    kv_store *store = make_store(&c, k2, v2, 2);
    if (!store) return;
    const attend_args a = {out,  query,       kv_layer_view(store, 1), 1, 1, 2, 1, 1, 0,
                           1.0f, &sink};
    run_attention(f, 1, &a);
    const double e = rel_error(out, weights, 2);
    CHECK_MSG(e < 2e-7, "%s: published weights: error %.1e", f->isa, e);
    kv_free(store);
}

static void test_attention(void)
{
    static case_rows rows;
    (void)case_rows_read(&rows, "attention.txt");
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        attend_case c = { .type = cells[0][1] == '3' ? KV_F32 : KV_F16, .why = cells[3] };
        c.keys = (key_kind)case_word("random equal rising falling huge steep", cells[1]);
        if (CHECK(sscanf(cells[0], "F%*d %d %d %d %d %d %d", &c.n_head, &c.n_head_kv, &c.head_dim,
                         &c.pos, &c.n, &c.window) == 6 &&
                  sscanf(cells[2], "%f %lf", &c.sink, &c.bound) == 2)) test_attention_case(&c);
    }
    case_rows_free(&rows);
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    test_begin("mixers", argc, argv);
    test_rope_gptoss();
    test_rope_scaling();
    test_rope_spec();
    test_rope_table();
    test_q8_0_range();
    test_attention();
    for (int i = 0; i < n_set; i++) {
        test_rope_rotate(sets[i]);
        test_attention_golden(sets[i]);
    }
    return test_end();
}
