/* contract.c - the arithmetic contract as code: the reference for all other kernels.
 *
 * The product of a row and a token has n blocks of 32. Integers are exact; every statement on
 * floats is one operation of the contract, rounded once, and fmaf is one operation too. The value
 * of block j is added to lane j % 8; the lanes of a row are folded in a fixed tree. So a sum
 * depends only on its row and its token. Compile this file with -ffp-contract=off and never with
 * -ffast-math.
 *
 * The weights of a segment of eight blocks are unpacked once (contract_blocks.c) and multiplied by
 * up to eight tokens. The caller applies factor, scale and bias, in one fmaf per row. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/contract_blocks.h"
#include "engine/cpu/kernels.h"
#include "loader/bytes.h"

enum { TOKENS = 8, LANES = 8, FLOAT_LANES = 32 };
static_assert((int)LANES == (int)SEGMENT_BLOCKS, "a segment fills every lane once");

/* Returns the index of the sum of token t and row r. */
static size_t sum_at(int t, int n_row, int r)
{
    return (size_t)t * (size_t)n_row + (size_t)r;
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* (p0 + p1) + (p2 + p3), then + 0, which turns -0 into +0. */
static float fold4(const float *p)
{
    const float low = p[0] + p[1];
    const float high = p[2] + p[3];
    const float sum = low + high;
    return sum + 0.0f;
}

static float fold8(const float *lane)
{
    float p[4];
    for (int i = 0; i < 4; i++) p[i] = lane[i] + lane[i + 4];
    return fold4(p);
}

/* Sums of w * q by half and block. Compilers vectorise the three short loops, gcc 12 only if the
 * function is not inlined; without vectors it has half the speed. Two products fit in 16 bits:
 * |w| <= 128 and |q| <= 127 give at most 32512. */
__attribute__((noinline))
static void half_sums(int32_t sum[2][SEGMENT_BLOCKS], const int8_t *restrict w,
                      const int8_t *restrict q)
{
    int16_t two[SEGMENT / 2];
    int32_t four[SEGMENT / 4];

    for (int h = 0; h < 2 * SEGMENT_BLOCKS; h++)
        for (int k = 0; k < 8; k++)
            two[8 * h + k] = (int16_t)(w[16 * h + k] * q[16 * h + k] +
                                       w[16 * h + k + 8] * q[16 * h + k + 8]);
    for (int h = 0; h < 2 * SEGMENT_BLOCKS; h++)
        for (int k = 0; k < 4; k++) four[4 * h + k] = two[8 * h + k] + two[8 * h + k + 4];
    for (int h = 0; h < 2 * SEGMENT_BLOCKS; h++) {
        int32_t all = 0;
        for (int k = 0; k < 4; k++) all += four[4 * h + k];
        sum[h % 2][h / 2] = all;
    }
}

/* Computes the values of a segment's blocks, without the activations' scale. */
static void plain_values(float *restrict v, const block_parts *restrict p,
                         int32_t sum[2][SEGMENT_BLOCKS])
{
    for (int j = 0; j < SEGMENT_BLOCKS; j++) {
        const int32_t a = p->sc[0][j] * sum[0][j] + p->sc[1][j] * sum[1][j];
        v[j] = p->d[j] * (float)a;
    }
}

static void minimum_values(float *restrict v, const block_parts *restrict p,
                           int32_t sum[2][SEGMENT_BLOCKS], const int16_t *restrict s)
{
    for (int j = 0; j < SEGMENT_BLOCKS; j++) {
        const int32_t a = p->sc[0][j] * sum[0][j] + p->sc[1][j] * sum[1][j];
        const int32_t b = p->m[0][j] * s[2 * j] + p->m[1][j] * s[2 * j + 1];
        const float minimum = p->c[j] * (float)b;
        v[j] = fmaf(p->d[j], (float)a, minimum);
    }
}

static void two_scale_values(float *restrict v, const block_parts *restrict p,
                             int32_t sum[2][SEGMENT_BLOCKS])
{
    for (int j = 0; j < SEGMENT_BLOCKS; j++) {
        const float second = p->f[1][j] * (float)sum[1][j];
        v[j] = fmaf(p->f[0][j], (float)sum[0][j], second);
    }
}

/* Adds one segment with one token. Missing blocks of a short segment are zero on both sides. */
static void add_segment(float *restrict lane, const block_parts *restrict p, parts_kind kind,
                        const act_row *x, int j0)
{
    const float *dx = x->dx + j0;
    int32_t sum[2][SEGMENT_BLOCKS];
    float v[SEGMENT_BLOCKS];

    half_sums(sum, p->w, x->q + 32 * j0);
    if (kind == PARTS_PLAIN) plain_values(v, p, sum);
    else if (kind == PARTS_MINIMUM) minimum_values(v, p, sum, x->s + 2 * j0);
    else two_scale_values(v, p, sum);
    for (int j = 0; j < SEGMENT_BLOCKS; j++) lane[j] = fmaf(dx[j], v[j], lane[j]);
}

static void dot_blocks(float *sums, const block_format *f, const uint8_t *rows, size_t row_bytes,
                       int n_row, const act_row *x, int n_token, int cols)
{
    const int n_block = cols / 32;
    block_parts p;

    for (int t0 = 0; t0 < n_token; t0 += TOKENS) {
        const int n = min_int(n_token - t0, TOKENS);
        for (int r = 0; r < n_row; r++) {
            const uint8_t *blocks = rows + (size_t)r * row_bytes;
            float lane[TOKENS][LANES] = { { 0 } };
            for (int j = 0; j < n_block; j += SEGMENT_BLOCKS, blocks += f->segment_bytes) {
                const int n_here = min_int(n_block - j, SEGMENT_BLOCKS);
                if (n_here < SEGMENT_BLOCKS) memset(&p, 0, sizeof p);
                f->unpack(&p, blocks, n_here);
                for (int t = 0; t < n; t++) add_segment(lane[t], &p, f->kind, &x[t0 + t], j);
            }
            for (int t = 0; t < n; t++) sums[sum_at(t0 + t, n_row, r)] = fold8(lane[t]);
        }
    }
}

/* ---- floats -------------------------------------------------------------------------------- */

static float fold32(const float *lane)
{
    float p[16], h[8];
    for (int i = 0; i < 16; i++) p[i] = lane[i] + lane[i + 16];
    for (int i = 0; i < 8; i++) h[i] = p[i] + p[i + 8];
    return fold8(h);
}

/* The product of weight i is added to lane i % 32. n <= SEGMENT, a multiple of 32 except at the end
 * of a row. */
static void add_floats(float *restrict lane, const float *restrict w, const float *restrict x,
                       int n)
{
    float sum[FLOAT_LANES];
    int i = 0;

    memcpy(sum, lane, sizeof sum);
    for (; i + FLOAT_LANES <= n; i += FLOAT_LANES)
        for (int k = 0; k < FLOAT_LANES; k++) sum[k] = fmaf(w[i + k], x[i + k], sum[k]);
    for (int k = 0; i + k < n; k++) sum[k] = fmaf(w[i + k], x[i + k], sum[k]);
    memcpy(lane, sum, sizeof sum);
}

typedef void widen_fn(float *restrict out, const uint8_t *restrict in, int n);

static void widen_f32(float *restrict out, const uint8_t *restrict in, int n)
{
    memcpy(out, in, (size_t)n * sizeof *out);
}

static void widen_f16(float *restrict out, const uint8_t *restrict in, int n)
{
    for (int i = 0; i < n; i++) out[i] = f16_to_f32(load_u16(in + 2 * i));
}

static void widen_bf16(float *restrict out, const uint8_t *restrict in, int n)
{
    for (int i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)load_u16(in + 2 * i) << 16;
        out[i] = load_f32(&bits);
    }
}

static void dot_floats(float *sums, widen_fn *widen, int width, const uint8_t *rows,
                       size_t row_bytes, int n_row, const act_row *x, int n_token, int cols)
{
    float w[SEGMENT];

    for (int t0 = 0; t0 < n_token; t0 += TOKENS) {
        const int n = min_int(n_token - t0, TOKENS);
        for (int r = 0; r < n_row; r++) {
            const uint8_t *row = rows + (size_t)r * row_bytes;
            float lane[TOKENS][FLOAT_LANES] = { { 0 } };
            for (int c = 0; c < cols; c += SEGMENT) {
                const int n_here = min_int(cols - c, SEGMENT);
                widen(w, row + (size_t)c * (size_t)width, n_here);
                for (int t = 0; t < n; t++) add_floats(lane[t], w, x[t0 + t].x + c, n_here);
            }
            for (int t = 0; t < n; t++) sums[sum_at(t0 + t, n_row, r)] = fold32(lane[t]);
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

#define BLOCK_TYPES(X)                                                                             \
    X(Q4_0, 1) X(Q4_1, 1) X(Q5_0, 1) X(Q5_1, 1) X(Q8_0, 1) X(Q2_K, 1) X(Q3_K, 1) X(Q4_K, 1)        \
    X(Q5_K, 1) X(Q6_K, 1) X(IQ4_NL, 1) X(IQ4_XS, 1) X(MXFP4, 0.5f) X(NVFP4, 128)                   \
    X(IQ2_XXS, 0.125f) X(IQ2_XS, 0.125f) X(IQ2_S, 0.125f) X(IQ3_XXS, 0.25f) X(IQ3_S, 1)            \
    X(IQ1_S, 0.125f) X(IQ1_M, 0.125f) X(TQ1_0, 1) X(TQ2_0, 1) X(Q1_0, 1) X(Q2_0, 1)

#define FLOAT_TYPES(X) X(F32, widen_f32, 4) X(F16, widen_f16, 2) X(BF16, widen_bf16, 2)

#define DEFINE_BLOCKS(NAME, factor)                                                                \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_blocks(sums, contract_blocks_of(QT_##NAME), rows, row_bytes, n_row, x, n_token, cols); \
    }
BLOCK_TYPES(DEFINE_BLOCKS)

#define DEFINE_FLOATS(NAME, widen, width)                                                          \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_floats(sums, widen, width, rows, row_bytes, n_row, x, n_token, cols);                  \
    }
FLOAT_TYPES(DEFINE_FLOATS)

#define BLOCK_ROW(NAME, power)                                                                     \
    [QT_##NAME] = { .dot = dot_##NAME, .factor = power, .quantised = true },
#define FLOAT_ROW(NAME, widen, width) [QT_##NAME] = { .dot = dot_##NAME, .factor = 1 },

const kernel_set *kernels_contract(void)
{
    static const kernel_set set = {
        .isa = "scalar", .of = { BLOCK_TYPES(BLOCK_ROW) FLOAT_TYPES(FLOAT_ROW) },
    };
    return &set;
}
