/* test_quantise.c - floats to blocks, against searches that try everything.
 *
 * MXFP4 and NVFP4 must find what a search over every scale code finds. Q8_0 is compared with every
 * binary16 scale that could matter, Q4_K with all 64 x 64 pairs of factors and a grid of the two
 * scales around the chosen ones; both must beat plain rounding. Costs are taken in double from what
 * the decoders say. */
#include "tests/numbers.h"

#include <float.h>
#include <string.h>

#include "loader/bytes.h"
#include "loader/quant_blocks.h"
#include "loader/quantise.h"

/* ---- made-up weights ------------------------------------------------------------------------ */

static float normal(test_rng *r)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)uniform(r);
    return (float)(sum * 0.5);           /* of variance 1 */
}

typedef enum shape { BELL, TAILS, OUTLIER, FEW_LEVELS, POSITIVE, SHAPES } shape;
static const char *const shape_names[SHAPES] = { "bell", "tails", "outlier", "few levels",
                                                 "positive" };

static void make(float *x, int n, shape s, float scale, test_rng *r)
{
    for (int i = 0; i < n; i++) {
        const float v = normal(r);
        x[i] = scale * (s == TAILS ? v * v * v : s == FEW_LEVELS ? rintf(2 * v) / 2 :
                        s == POSITIVE ? fabsf(v) : v);
    }
    if (s == OUTLIER) x[test_below(r, (uint32_t)n)] *= 40;
}

/* As importance files have them at a spread of 1; most of it in a few columns at 3. */
static void make_weights(float *w, int n, float spread, test_rng *r)
{
    for (int i = 0; i < n; i++) w[i] = expf(spread * normal(r));
    if (test_below(r, 4) == 0) for (int i = 0; i < n; i += 2) w[i] = 0;
}

/* What is lost, by the decoder. */
static double cost_of_blocks(quant_type type, const void *blocks, const float *x, const float *w,
                             int n)
{
    const quant_traits *q = quant_traits_of((uint32_t)type);
    float y[256];
    double sum = 0;
    q->decode(y, blocks, (size_t)(n / q->block_elems));
    for (int i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        sum += (w ? (double)w[i] : 1) * d * d;
    }
    return sum;
}

static double cost_of_row(quant_type type, const float *x, const float *w, int n)
{
    uint8_t blocks[512];
    mem_guard(true);
    quantise_row(type, blocks, x, w, (size_t)n);
    mem_guard(false);
    return cost_of_blocks(type, blocks, x, w, n);
}

/* ---- 4-bit floats: every scale -------------------------------------------------------------- */

/* The least cost of n values with one scale, each at its best of the 8 magnitudes. */
static double cost_with_scale(const float *x, const float *w, int n, double scale)
{
    static const double levels[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double least = INFINITY;
        for (size_t k = 0; k < ARRAY_LEN(levels); k++) {
            const double d = fabs((double)x[i]) - scale * levels[k];
            if (d * d < least) least = d * d;
        }
        sum += (w ? (double)w[i] : 1) * least;
    }
    return sum;
}

static double best_of_codes(const float *x, const float *w, int n, float (*scale)(uint8_t),
                            int first, int last)
{
    double least = INFINITY;
    for (int c = first; c <= last; c++) {
        const double cost = cost_with_scale(x, w, n, (double)scale((uint8_t)c));
        if (cost < least) least = cost;
    }
    return least;
}

static void test_fp4(void)
{
    static const float scales[] = { 1e-30f, 0x1p-20f, 0.02f, 1, 30, 1e30f };
    test_rng r = { 11 };
    for (size_t k = 0; k < ARRAY_LEN(scales); k++)
        for (int s = 0; s < SHAPES; s++)
            for (int t = 0; t < 40; t++) {
                float x[64], weights[64];
                make(x, 64, (shape)s, scales[k], &r);
                make_weights(weights, 64, 3, &r);
                const float *w = t % 2 ? weights : NULL;
                const double mx = cost_of_row(QT_MXFP4, x, w, 32);
                const double mx_best = best_of_codes(x, w, 32, e8m0_to_f32, 0, 252);
                CHECK_MSG(mx <= mx_best * 1.0001, "MXFP4 %s, scale %g, %d: %g, the best is %g",
                          shape_names[s], (double)scales[k], t, mx, mx_best);
                if (scales[k] < 1e-6f || scales[k] > 1e6f) continue;     /* it has another one */
                double nv_best = 0;
                for (int j = 0; j < 4; j++)
                    nv_best += best_of_codes(x + 16 * j, w ? w + 16 * j : NULL, 16, ue4m3_to_f32, 0,
                                             126);
                const double nv = cost_of_row(QT_NVFP4, x, w, 64);
                CHECK_MSG(nv <= nv_best * 1.0001, "NVFP4 %s, scale %g, %d: %g, the best is %g",
                          shape_names[s], (double)scales[k], t, nv, nv_best);
            }
}

/* ---- Q8_0: every binary16 scale that could be ----------------------------------------------- */

static double q8_cost(const float *x, const float *w, uint16_t code)
{
    const double d = (double)f16_to_f32(code);
    double sum = 0;
    for (int i = 0; i < 32; i++) {
        double q = rint((double)x[i] / d);
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        const double diff = (double)x[i] - d * q;
        sum += (w ? (double)w[i] : 1) * diff * diff;
    }
    return sum;
}

static void test_q8_0(void)
{
    test_rng r = { 12 };
    double ours = 0, best = 0, plain = 0;
    for (int t = 0; t < 60; t++) {
        float x[32], weights[32], most = 0;
        make(x, 32, t % 3 == 0 ? TAILS : BELL, 0.02f, &r);
        make_weights(weights, 32, 1, &r);
        const float *w = t % 2 ? weights : NULL;
        double least = INFINITY;
        for (int i = 0; i < 32; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        const uint16_t usual = f32_to_f16(most / 127);
        for (int c = f32_to_f16(most / 200); c <= f32_to_f16(most / 40); c++) {
            const double cost = q8_cost(x, w, (uint16_t)c);
            if (cost < least) least = cost;
        }
        const double cost = cost_of_row(QT_Q8_0, x, w, 32);
        CHECK_MSG(cost <= q8_cost(x, w, usual) * 1.0001, "Q8_0 block %d: worse than rounding", t);
        ours += cost / least;
        best += 1;
        plain += q8_cost(x, w, usual) / least;
    }
    CHECK_MSG(ours < 1.12 * best, "Q8_0: %.3f of the best there is", ours / best);
    CHECK_MSG(plain > 1.2 * best, "plain rounding is near the best: %.3f; this proves nothing",
              plain / best);
}

/* ---- Q4_K: all factors, a grid of scales ---------------------------------------------------- */

static double q4_cost(const float *x, const float *w, double scale, double min)
{
    double sum = 0;
    for (int i = 0; i < 32; i++) {
        double n = scale > 0 ? rint(((double)x[i] + min) / scale) : 0;
        n = n < 0 ? 0 : n > 15 ? 15 : n;
        const double d = (double)x[i] - (scale * n - min);
        sum += (w ? (double)w[i] : 1) * d * d;
    }
    return sum;
}

/* With these two scales and the best factors for each sub-block. */
static double q4_best(const float *x, const float *w, double d, double dmin)
{
    double sum = 0;
    for (int j = 0; j < 8; j++) {
        double least = INFINITY;
        for (int a = 0; a < 64; a++)
            for (int m = 0; m < 64; m++) {
                const double cost = q4_cost(x + 32 * j, w ? w + 32 * j : NULL, d * a, dmin * m);
                if (cost < least) least = cost;
            }
        sum += least;
    }
    return sum;
}

/* Least and largest value give scale and minimum; nothing is searched. */
static double q4_plain(const float *x, const float *w)
{
    double scale[8], min[8], d = 0, dmin = 0, sum = 0;
    for (int j = 0; j < 8; j++) {
        double low = 0, high = -INFINITY;
        for (int i = 32 * j; i < 32 * j + 32; i++) {
            low = fmin(low, (double)x[i]);
            high = fmax(high, (double)x[i]);
        }
        scale[j] = (high - low) / 15;
        min[j] = -low;
        d = fmax(d, scale[j] / 63);
        dmin = fmax(dmin, min[j] / 63);
    }
    d = (double)f16_to_f32(f32_to_f16((float)d));
    dmin = (double)f16_to_f32(f32_to_f16((float)dmin));
    for (int j = 0; j < 8; j++)
        sum += q4_cost(x + 32 * j, w ? w + 32 * j : NULL, d * fmin(63, rint(scale[j] / d)),
                       dmin > 0 ? dmin * fmin(63, rint(min[j] / dmin)) : 0);
    return sum;
}

static void test_q4_k(void)
{
    static const double around[] = { 0.97, 1, 1.03 };
    test_rng r = { 13 };
    double gain = 0;
    int n = 0;
    for (int t = 0; t < 8; t++) {
        float x[256], weights[256];
        uint8_t block[sizeof(block_q4_k)];
        make(x, 256, (shape)(t % SHAPES), 0.02f, &r);
        make_weights(weights, 256, 1, &r);
        const float *w = t % 2 ? weights : NULL;
        quantise_row(QT_Q4_K, block, x, w, 256);
        const double cost = cost_of_blocks(QT_Q4_K, block, x, w, 256), plain = q4_plain(x, w);
        const double d = (double)f16_to_f32(load_u16(block));
        const double dmin = (double)f16_to_f32(load_u16(block + 2));
        double best = INFINITY;
        for (size_t i = 0; i < ARRAY_LEN(around); i++)
            for (size_t k = 0; k < ARRAY_LEN(around); k++)
                if (i == k || t == 0)
                    best = fmin(best, q4_best(x, w, d * around[i], dmin * around[k]));
        CHECK_MSG(cost <= 1.08 * best, "Q4_K %s, %d: %g, the best around it is %g",
                  shape_names[t % SHAPES], t, cost, best);
        CHECK_MSG(cost <= plain, "Q4_K %s, %d: %g, plain rounding %g", shape_names[t % SHAPES], t,
                  cost, plain);
        gain += cost / plain;
        n++;
    }
    CHECK_MSG(gain < 0.8 * n, "Q4_K: %.3f of plain rounding", gain / n);
}

/* ---- errors of a long row, by type ---------------------------------------------------------- */

static const struct { quant_type type; double most; } known[] = {
    { QT_NVFP4, 0.0825 }, { QT_MXFP4, 0.114 }, { QT_Q8_0, 0.00485 }, { QT_Q4_K, 0.0710 },
    { QT_BF16, 0.00172 },
};

static void test_errors(void)
{
    enum { N = 1 << 15 };
    float *x = room(N, sizeof *x), *y = room(N, sizeof *y);
    uint8_t *blocks = room(N, 4);
    test_rng r = { 14 };
    for (size_t k = 0; k < ARRAY_LEN(known); k++) {
        const quant_traits *q = quant_traits_of((uint32_t)known[k].type);
        double diff = 0, norm = 0;
        make(x, N, BELL, known[k].type == QT_NVFP4 ? 300.0f : 0.02f, &r);
        quantise_row(known[k].type, blocks, x, NULL, N);
        q->decode(y, blocks, N / (size_t)q->block_elems);
        for (int i = 0; i < N; i++) {
            diff += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
            norm += (double)x[i] * (double)x[i];
        }
        const double error = sqrt(diff / norm);
        CHECK_MSG(error > 0.9 * known[k].most && error < known[k].most,
                  "%s: relative error %.5f, expected a little less than %.5f", q->name, error,
                  known[k].most);
    }
    mem_free(x);
    mem_free(y);
    mem_free(blocks);
}

/* ---- nothing lost --------------------------------------------------------------------------- */

/* Weights that were MXFP4, with exponents as models have them. */
static void make_mxfp4(float *x, int n, test_rng *r)
{
    for (int b = 0; b < n; b += 32) {
        block_mxfp4 block = { .e = (uint8_t)(115 + test_below(r, 10)) };
        for (int k = 0; k < 16; k++) block.nibbles[k] = (uint8_t)test_below(r, 256);
        quant_traits_of(QT_MXFP4)->decode(x + b, &block, 1);
    }
}

static void test_lossless(void)
{
    static const quant_type types[] = { QT_MXFP4, QT_Q8_0, QT_BF16 };
    test_rng r = { 15 };
    for (int t = 0; t < 50; t++) {
        float x[64], scaled[64], scales[QUANTISE_NVFP4_SCALES], most = 0;
        make_mxfp4(x, 64, &r);
        for (size_t k = 0; k < ARRAY_LEN(types); k++)
            CHECK_MSG(cost_of_row(types[k], x, NULL, 64) == 0, "MXFP4 to %s: something is lost",
                      quant_name((uint32_t)types[k]));
        for (int i = 0; i < 64; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        quantise_nvfp4_scales(scales, most);
        for (int i = 0; i < 64; i++) scaled[i] = x[i] / scales[1];
        CHECK_MSG(cost_of_row(QT_NVFP4, scaled, NULL, 64) == 0, "MXFP4 to NVFP4: something is "
                  "lost");
    }
}

static void test_scales(void)
{
    static const float largest[] = { 1e-45f, 1e-30f, 0.3f, 1.5f, 1536, 1e30f, FLT_MAX };
    float s[QUANTISE_NVFP4_SCALES];
    int e;
    quantise_nvfp4_scales(s, 0);
    CHECK(s[0] == 1 && s[1] == 1);
    for (size_t i = 0; i < ARRAY_LEN(largest); i++) {
        quantise_nvfp4_scales(s, largest[i]);
        CHECK_MSG(s[0] >= FLT_MIN && largest[i] / s[0] <= 1537, "%g: scale %g",
                  (double)largest[i], (double)s[0]);
        CHECK_MSG(frexpf(s[1], &e) == 0.5f && s[1] >= s[0] && s[1] < 2 * s[0], "%g: scales %g, %g",
                  (double)largest[i], (double)s[0], (double)s[1]);
    }
}

/* ---- BF16, bit by bit ----------------------------------------------------------------------- */

static void test_bf16(void)
{
    static const struct { uint32_t in; uint16_t out; const char *why; } rows[] = {
        { 0x3F800000, 0x3F80, "1" },             { 0x3F808000, 0x3F80, "tie, even below" },
        { 0x3F818000, 0x3F82, "tie, even above" }, { 0x3F808001, 0x3F81, "above a tie" },
        { 0xBF80FFFF, 0xBF81, "negative" },      { 0x3FFFFFFF, 0x4000, "carry into the exponent" },
        { 0x7F7FFFFF, 0x7F7F, "the largest float stays finite" },
        { 0xFF7FFFFF, 0xFF7F, "the smallest, too" }, { 0x00000001, 0x0000, "least subnormal" },
        { 0x00018000, 0x0002, "subnormal tie" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const float x = load_f32(&rows[i].in);
        uint16_t got;
        quantise_row(QT_BF16, &got, &x, NULL, 1);
        CHECK_MSG(got == rows[i].out, "BF16, %s: %04x, expected %04x", rows[i].why, got,
                  rows[i].out);
    }
}

/* ---- hostile values ------------------------------------------------------------------------- */

static void test_hostile(void)
{
    static const quant_type types[] = { QT_NVFP4, QT_MXFP4, QT_Q8_0, QT_Q4_K, QT_BF16 };
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        const char *name = quant_name((uint32_t)types[k]);
        const float limit = quantise_limit(types[k]);
        float x[256] = { 0 }, y[256], inf = INFINITY;
        uint8_t blocks[1024];
        const quant_traits *q = quant_traits_of((uint32_t)types[k]);
        const size_t n_block = 256 / (size_t)q->block_elems;

        memset(blocks, 0xFF, sizeof blocks);
        quantise_row(types[k], blocks, x, NULL, 256);
        q->decode(y, blocks, n_block);
        for (int i = 0; i < 256; i++)
            CHECK_MSG(y[i] == 0, "%s: zero became %g", name, (double)y[i]);

        const float values[] = { 1e-45f, 1e-40f, FLT_MIN, 1e-20f, 1e-8f, 1e5f, 4e6f, 1e30f, 1e38f };
        for (size_t v = 0; v < ARRAY_LEN(values); v++) {
            if (values[v] > limit) continue;
            for (int i = 0; i < 256; i++) x[i] = values[v] * (float)(i % 7 - 3) / 3;
            quantise_row(types[k], blocks, x, NULL, 256);
            q->decode(y, blocks, n_block);
            int n_wrong = 0;
            for (int i = 0; i < 256; i++)
                n_wrong += !isfinite(y[i]) || (double)fabsf(y[i]) > 1.5 * (double)values[v] + 1e-7;
            CHECK_MSG(n_wrong == 0, "%s of %g: %d values astray", name, (double)values[v], n_wrong);
        }
        for (int i = 0; i < 256; i++) x[i] = (i % 2 ? limit : -limit);
        quantise_row(types[k], blocks, x, NULL, 256);
        q->decode(y, blocks, n_block);
        int n_astray = 0;
        for (int i = 0; i < 256; i++) n_astray += !isfinite(y[i]);
        CHECK_MSG(n_astray == 0, "%s at its limit %g: %d values astray", name, (double)limit,
                  n_astray);

        CHECK_MSG(quantise_first_bad(types[k], x, 256) == 256, "%s: its limit is refused", name);
        x[200] = NAN;
        CHECK_MSG(quantise_first_bad(types[k], x, 256) == 200, "%s: NaN is not seen", name);
        x[100] = -inf;
        CHECK_MSG(quantise_first_bad(types[k], x, 256) == 100, "%s: Inf is not seen", name);
        x[50] = limit * 1.001f;
        CHECK_MSG(quantise_first_bad(types[k], x, 256) == 50, "%s: what is too large is not seen",
                  name);
    }
}

/* ---- importance ----------------------------------------------------------------------------- */

static void test_importance(void)
{
    static const quant_type types[] = { QT_NVFP4, QT_MXFP4, QT_Q8_0, QT_Q4_K };
    test_rng r = { 16 };
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        const char *name = quant_name((uint32_t)types[k]);
        uint8_t plain[512], same[512];
        float x[256], w[256] = { 0 };
        double with = 0, without = 0;
        for (int t = 0; t < 20; t++) {
            make(x, 256, BELL, 1, &r);
            memset(w, 0, sizeof w);
            quantise_row(types[k], plain, x, NULL, 256);
            memset(same, 0, sizeof same);
            quantise_row(types[k], same, x, w, 256);     /* none matters: all alike */
            CHECK_MSG(cost_of_blocks(types[k], same, x, NULL, 256) ==
                      cost_of_blocks(types[k], plain, x, NULL, 256), "%s: weights of zero", name);
            make_weights(w, 256, 1, &r);
            quantise_row(types[k], same, x, w, 256);
            with += cost_of_blocks(types[k], same, x, w, 256);
            without += cost_of_blocks(types[k], plain, x, w, 256);
        }
        /* MXFP4 has one power of two for 32 weights: hardly a choice */
        CHECK_MSG(with < (types[k] == QT_MXFP4 ? 1.0 : 0.9) * without,
                  "%s: importance gains nothing: %g, without %g", name, with, without);
    }
}

int main(int argc, char **argv)
{
    test_begin("quantise", argc, argv);
    test_fp4();
    test_q8_0();
    test_q4_k();
    test_errors();
    test_lossless();
    test_scales();
    test_bf16();
    test_hostile();
    test_importance();
    return test_end();
}
