/* quant.c - the traits of every tensor type and the scalar decoders: the reference.
 *
 * Every value is exact. A scale has at most 11 significant bits and its product with the format's
 * integers fits in 24 bits, so the order of multiplication does not matter. Formats with a minimum
 * round once, in the last addition. A decoder reads n_blocks * block_bytes bytes and writes
 * n_blocks * block_elems floats, for any content of the blocks.
 *
 * Inf and NaN scales propagate. quant_blocks.h draws the layouts. */
#include "loader/quant.h"

#include <strings.h>

#include "loader/bytes.h"
#include "loader/quant_blocks.h"
#include "loader/quant_tables.h"

/* ---- small floats -------------------------------------------------------------------------- */

static float float_of_bits(uint32_t bits) { return load_f32(&bits); }

/* 2^(e-127). e is the exponent field of a binary32, except that e = 0 means 2^-127. 255 is NaN, as
 * in the OCP standard, so a damaged block is visible. llama.cpp decodes 255 as NaN on its GPU path
 * and as 2^128 on its CPU path. */
float e8m0_to_f32(uint8_t e)
{
    if (e == 255) return float_of_bits(0x7FC00000u);
    return float_of_bits(e > 0 ? (uint32_t)e << 23 : 0x00400000u);
}

/* E4M3 with bias 7 and no infinities; 0x7F decodes to 0. Bit 7 is ignored, but 0xFF is not the
 * reserved code: it decodes to 480. Both match llama.cpp's CPU path. */
float ue4m3_to_f32(uint8_t c)
{
    const uint32_t exponent = c >> 3 & 15, mantissa = c & 7;

    if (c == 0x7F) return 0.0f;
    if (exponent > 0) return float_of_bits((exponent + 127 - 7) << 23 | mantissa << 20);
    return (float)mantissa * 0x1p-9f;
}

/* ---- helpers of the decoders --------------------------------------------------------------- */

static float f16_at(const uint8_t *p) { return f16_to_f32(load_u16(p)); }

/* First byte of the 16 weights of sub-block j in "four planes", and the shift of their codes. */
static const uint8_t *plane_bytes(const uint8_t *quants, int j)
{
    return quants + 32 * (j / 8) + 16 * (j % 2);
}
static int plane_shift(int j) { return 2 * (j % 8 / 2); }

/* ---- 32 weights, one scale ----------------------------------------------------------------- */

static void q4_0(float *out, const block_q4_0 *b)
{
    const float d = f16_at(b->d);
    for (int k = 0; k < 16; k++) {
        out[k] = d * (float)((b->nibbles[k] & 15) - 8);
        out[k + 16] = d * (float)((b->nibbles[k] >> 4) - 8);
    }
}

static void q4_1(float *out, const block_q4_1 *b)
{
    const float d = f16_at(b->d), m = f16_at(b->m);
    for (int k = 0; k < 16; k++) {
        out[k] = d * (float)(b->nibbles[k] & 15) + m;
        out[k + 16] = d * (float)(b->nibbles[k] >> 4) + m;
    }
}

static void q5_0(float *out, const block_q5_0 *b)
{
    const float d = f16_at(b->d);
    const uint32_t high = load_u32(b->high);
    for (int k = 0; k < 16; k++) {
        const uint32_t lower = (b->nibbles[k] & 15u) | (high >> k & 1) << 4;
        const uint32_t upper = b->nibbles[k] >> 4 | (high >> (k + 16) & 1) << 4;
        out[k] = d * (float)((int)lower - 16);
        out[k + 16] = d * (float)((int)upper - 16);
    }
}

static void q5_1(float *out, const block_q5_1 *b)
{
    const float d = f16_at(b->d), m = f16_at(b->m);
    const uint32_t high = load_u32(b->high);
    for (int k = 0; k < 16; k++) {
        const uint32_t lower = (b->nibbles[k] & 15u) | (high >> k & 1) << 4;
        const uint32_t upper = b->nibbles[k] >> 4 | (high >> (k + 16) & 1) << 4;
        out[k] = d * (float)lower + m;
        out[k + 16] = d * (float)upper + m;
    }
}

static void q8_0(float *out, const block_q8_0 *b)
{
    const float d = f16_at(b->d);
    for (int k = 0; k < 32; k++) out[k] = d * (float)b->quants[k];
}

static const int8_t iq4_levels[16] = { IQ4_LEVELS };

static void iq4_nl(float *out, const block_iq4_nl *b)
{
    const float d = f16_at(b->d);
    for (int k = 0; k < 16; k++) {
        out[k] = d * (float)iq4_levels[b->nibbles[k] & 15];
        out[k + 16] = d * (float)iq4_levels[b->nibbles[k] >> 4];
    }
}

/* ---- 4-bit floats -------------------------------------------------------------------------- */

static const int8_t e2m1_twice[16] = { E2M1_TWICE };

/* Exponents 0 and 1 give subnormal weights; 253 and 254 overflow to Inf for the larger codes; 255
 * makes all 32 weights NaN, those with code 0 included. */
static void mxfp4(float *out, const block_mxfp4 *b)
{
    const float d = e8m0_to_f32(b->e);
    for (int k = 0; k < 16; k++) {
        out[k] = d * (0.5f * (float)e2m1_twice[b->nibbles[k] & 15]);
        out[k + 16] = d * (0.5f * (float)e2m1_twice[b->nibbles[k] >> 4]);
    }
}

/* The scale of the whole matrix, if any, is a separate tensor; the caller applies it. */
static void nvfp4(float *out, const block_nvfp4 *b)
{
    for (int j = 0; j < 4; j++, out += 16) {
        const float half = 0.5f * ue4m3_to_f32(b->scales[j]);
        for (int k = 0; k < 8; k++) {
            out[k] = half * (float)e2m1_twice[b->nibbles[j][k] & 15];
            out[k + 8] = half * (float)e2m1_twice[b->nibbles[j][k] >> 4];
        }
    }
}

/* ---- 256 weights, small integers as scales of sub-blocks ----------------------------------- */

static void q2_k(float *out, const block_q2_k *b)
{
    const float d = f16_at(b->d), dmin = f16_at(b->dmin);
    for (int j = 0; j < 16; j++, out += 16) {
        const uint8_t *q = plane_bytes(b->quants, j);
        const int shift = plane_shift(j);
        const float scale = d * (float)(b->scales[j] & 15), min = dmin * (float)(b->scales[j] >> 4);
        for (int k = 0; k < 16; k++) out[k] = scale * (float)(q[k] >> shift & 3) - min;
    }
}

static void q3_k(float *out, const block_q3_k *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 16; j++, out += 16) {
        const uint8_t *q = plane_bytes(b->quants, j), *high = b->high + 16 * (j % 2);
        const int shift = plane_shift(j), bit = j / 2;
        const int scale_low = b->scales[j % 8] >> 4 * (j / 8) & 15;
        const int scale_high = b->scales[8 + j % 4] >> 2 * (j / 4) & 3;
        const float scale = d * (float)((scale_low | scale_high << 4) - 32);
        for (int k = 0; k < 16; k++) {
            const int n = (q[k] >> shift & 3) + 4 * (high[k] >> bit & 1);
            out[k] = scale * (float)(n - 4);
        }
    }
}

/* The eight 6-bit scales and minimums of q4_k and q5_k. */
static void unpack_scales(uint8_t *scale, uint8_t *min, const uint8_t *s)
{
    for (int k = 0; k < 4; k++) {
        scale[k] = s[k] & 63;
        min[k] = s[k + 4] & 63;
        scale[k + 4] = (uint8_t)((s[k + 8] & 15) | s[k] >> 6 << 4);
        min[k + 4] = (uint8_t)(s[k + 8] >> 4 | s[k + 4] >> 6 << 4);
    }
}

static void q4_k(float *out, const block_q4_k *b)
{
    const float d = f16_at(b->d), dmin = f16_at(b->dmin);
    uint8_t scale[8], min[8];

    unpack_scales(scale, min, b->scales);
    for (int j = 0; j < 8; j++, out += 32) {
        const uint8_t *q = b->nibbles[j / 2];
        const int shift = 4 * (j % 2);
        const float dj = d * (float)scale[j], mj = dmin * (float)min[j];
        for (int k = 0; k < 32; k++) out[k] = dj * (float)(q[k] >> shift & 15) - mj;
    }
}

static void q5_k(float *out, const block_q5_k *b)
{
    const float d = f16_at(b->d), dmin = f16_at(b->dmin);
    uint8_t scale[8], min[8];

    unpack_scales(scale, min, b->scales);
    for (int j = 0; j < 8; j++, out += 32) {
        const uint8_t *q = b->nibbles[j / 2];
        const int shift = 4 * (j % 2);
        const float dj = d * (float)scale[j], mj = dmin * (float)min[j];
        for (int k = 0; k < 32; k++) {
            const int n = (q[k] >> shift & 15) | (b->high[k] >> j & 1) << 4;
            out[k] = dj * (float)n - mj;
        }
    }
}

static void q6_k(float *out, const block_q6_k *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 16; j++, out += 16) {
        const uint8_t *low = b->low[j / 8] + 16 * (j % 4), *high = plane_bytes(b->high, j);
        const int low_shift = 4 * (j % 8 / 4), high_shift = plane_shift(j);
        const float scale = d * (float)b->scales[j];
        for (int k = 0; k < 16; k++) {
            const int n = (low[k] >> low_shift & 15) | (high[k] >> high_shift & 3) << 4;
            out[k] = scale * (float)(n - 32);
        }
    }
}

static void iq4_xs(float *out, const block_iq4_xs *b)
{
    const float d = f16_at(b->d);
    const uint32_t scales_high = load_u16(b->scales_high);
    for (int j = 0; j < 8; j++, out += 32) {
        const uint32_t low = b->scales_low[j / 2] >> 4 * (j % 2) & 15;
        const uint32_t high = scales_high >> 2 * j & 3;
        const float scale = d * (float)((int)(low | high << 4) - 32);
        for (int k = 0; k < 16; k++) {
            out[k] = scale * (float)iq4_levels[b->nibbles[j][k] & 15];
            out[k + 16] = scale * (float)iq4_levels[b->nibbles[j][k] >> 4];
        }
    }
}

/* ---- codebooks ----------------------------------------------------------------------------- */

/* Writes n weights from a grid row of magnitudes. Weight k is negative if bit k of signs is set. */
static void put_row(float *out, int n, float scale, uint64_t row, uint32_t signs)
{
    for (int k = 0; k < n; k++) {
        const int magnitude = (int)(row >> 8 * k & 255), sign = 1 - 2 * (int)(signs >> k & 1);
        out[k] = scale * (float)(magnitude * sign);      /* no branch: signs are random */
    }
}

/* Returns the eight signs of an "even signs" field: bit 7 is the parity of the other seven. 0x6996
 * is a table of the parity of each 4-bit number. */
static uint32_t even_signs(uint32_t seven)
{
    const uint32_t parity = 0x6996u >> ((seven ^ seven >> 4) & 15) & 1;
    return seven | parity << 7;
}

static void iq2_xxs(float *out, const block_iq2_xxs *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t w = load_u32(b->part[j].signs_scale);
        const float scale = d * (0.5f + (float)(w >> 28)) * 0.25f;
        for (int n = 0; n < 4; n++, out += 8) {
            put_row(out, 8, scale, quant_grid_iq2_xxs[b->part[j].index[n]],
                    even_signs(w >> 7 * n & 127));
        }
    }
}

static void iq2_xs(float *out, const block_iq2_xs *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 16; j++) {
        const float scale = d * (0.5f + (float)(b->scales[j / 2] >> 4 * (j % 2) & 15)) * 0.25f;
        for (int n = 2 * j; n < 2 * j + 2; n++, out += 8) {
            const uint32_t w = load_u16(b->words[n]);
            put_row(out, 8, scale, quant_grid_iq2_xs[w & 511], even_signs(w >> 9));
        }
    }
}

static void iq2_s(float *out, const block_iq2_s *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 16; j++) {
        const float scale = d * (0.5f + (float)(b->scales[j / 2] >> 4 * (j % 2) & 15)) * 0.25f;
        for (int n = 2 * j; n < 2 * j + 2; n++, out += 8) {
            const int high = b->index_high[n / 4] >> 2 * (n % 4) & 3;
            put_row(out, 8, scale, quant_grid_iq2_s[b->index[n] | high << 8], b->signs[n]);
        }
    }
}

static void iq3_xxs(float *out, const block_iq3_xxs *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t w = load_u32(b->signs_scale[j]);
        const float scale = d * (0.5f + (float)(w >> 28)) * 0.5f;
        for (int n = 0; n < 4; n++, out += 8) {
            const uint8_t *index = b->index + 8 * j + 2 * n;
            const uint32_t signs = even_signs(w >> 7 * n & 127);
            put_row(out, 4, scale, quant_grid_iq3_xxs[index[0]], signs);
            put_row(out + 4, 4, scale, quant_grid_iq3_xxs[index[1]], signs >> 4);
        }
    }
}

static void iq3_s(float *out, const block_iq3_s *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 8; j++) {
        const float scale = d * (float)(1 + 2 * (b->scales[j / 2] >> 4 * (j % 2) & 15));
        for (int n = 0; n < 8; n++, out += 4) {
            const int high = b->index_high[j] >> n & 1;
            put_row(out, 4, scale, quant_grid_iq3_s[b->index[8 * j + n] | high << 8],
                    (uint32_t)b->signs[4 * j + n / 2] >> 4 * (n % 2));
        }
    }
}

/* Writes 8 weights: a grid row of -1, 0, 1 plus 1/8, or minus 1/8 if down. */
static void put_iq1_row(float *out, float scale, uint32_t index, bool down)
{
    const uint64_t row = quant_grid_iq1[index];
    const float shift = down ? -0.125f : 0.125f;
    for (int k = 0; k < 8; k++) out[k] = scale * ((float)(int8_t)(row >> 8 * k & 255) + shift);
}

static void iq1_s(float *out, const block_iq1_s *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t w = load_u16(b->words[j]);
        const float scale = d * (float)(2 * (w >> 12 & 7) + 1);
        for (int n = 0; n < 4; n++, out += 8)
            put_iq1_row(out, scale, b->index[4 * j + n] | (w >> 3 * n & 7) << 8, w >> 15);
    }
}

static void iq1_m(float *out, const block_iq1_m *b)
{
    uint32_t words[4], d_bits = 0;
    float d;

    for (int k = 0; k < 4; k++) {
        words[k] = load_u16(b->scales[k]);
        d_bits |= words[k] >> 12 << 4 * k;
    }
    d = f16_to_f32((uint16_t)d_bits);
    for (int j = 0; j < 16; j++) {
        const float scale = d * (float)(2 * (words[j / 4] >> 3 * (j % 4) & 7) + 1);
        for (int n = 0; n < 2; n++, out += 8) {
            const uint32_t t = b->high[j] >> 4 * n & 15;
            put_iq1_row(out, scale, b->index[2 * j + n] | (t & 7) << 8, t >> 3);
        }
    }
}

/* ---- one and two bits, three values -------------------------------------------------------- */

/* Writes digit t of each of n bytes, times d. power is 3^t: multiplying by it modulo 256 drops the
 * digits before t. */
static void put_digits(float *out, const uint8_t *bytes, int n, int power, float d)
{
    for (int k = 0; k < n; k++) {
        const int rest = bytes[k] * power & 255;
        out[k] = d * (float)((rest * 3 >> 8) - 1);
    }
}

static void tq1_0(float *out, const block_tq1_0 *b)
{
    static const int powers[5] = { 1, 3, 9, 27, 81 };
    const float d = f16_at(b->d);
    for (int t = 0; t < 5; t++, out += 32) put_digits(out, b->digits5, 32, powers[t], d);
    for (int t = 0; t < 5; t++, out += 16) put_digits(out, b->digits5 + 32, 16, powers[t], d);
    for (int t = 0; t < 4; t++, out += 4) put_digits(out, b->digits4, 4, powers[t], d);
}

static void tq2_0(float *out, const block_tq2_0 *b)
{
    const float d = f16_at(b->d);
    for (int j = 0; j < 16; j++, out += 16) {
        const uint8_t *q = plane_bytes(b->quants, j);
        const int shift = plane_shift(j);
        for (int k = 0; k < 16; k++) out[k] = d * (float)((q[k] >> shift & 3) - 1);
    }
}

static void q1_0(float *out, const block_q1_0 *b)
{
    const float d = f16_at(b->d);
    for (int n = 0; n < 16; n++, out += 8)
        for (int k = 0; k < 8; k++) out[k] = b->bits[n] >> k & 1 ? d : -d;
}

static void q2_0(float *out, const block_q2_0 *b)
{
    const float d = f16_at(b->d);
    for (int n = 0; n < 16; n++, out += 4)
        for (int k = 0; k < 4; k++) out[k] = d * (float)((b->quants[n] >> 2 * k & 3) - 1);
}

/* ---- plain numbers: a block is one element ------------------------------------------------- */

static void decode_f32(float *out, const void *blocks, size_t n_blocks)
{
    if (n_blocks) memcpy(out, blocks, n_blocks * sizeof *out);
}

static void decode_f16(float *out, const void *blocks, size_t n_blocks)
{
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n_blocks; i++) out[i] = f16_at(p + 2 * i);
}

static void decode_bf16(float *out, const void *blocks, size_t n_blocks)
{
    const uint8_t *p = blocks;
    for (size_t i = 0; i < n_blocks; i++) out[i] = bf16_to_f32(load_u16(p + 2 * i));
}

/* ---- the table ----------------------------------------------------------------------------- */

/* Name, struct and function, weights per block, for each block format. */
#define BLOCK_FORMATS(X)                                                                           \
    X(Q4_0, q4_0, 32) X(Q4_1, q4_1, 32) X(Q5_0, q5_0, 32) X(Q5_1, q5_1, 32) X(Q8_0, q8_0, 32)      \
    X(Q2_K, q2_k, 256) X(Q3_K, q3_k, 256) X(Q4_K, q4_k, 256) X(Q5_K, q5_k, 256) X(Q6_K, q6_k, 256) \
    X(IQ1_S, iq1_s, 256) X(IQ1_M, iq1_m, 256) X(IQ2_XXS, iq2_xxs, 256) X(IQ2_XS, iq2_xs, 256)      \
    X(IQ2_S, iq2_s, 256) X(IQ3_XXS, iq3_xxs, 256) X(IQ3_S, iq3_s, 256) X(IQ4_NL, iq4_nl, 32)       \
    X(IQ4_XS, iq4_xs, 256) X(TQ1_0, tq1_0, 256) X(TQ2_0, tq2_0, 256) X(MXFP4, mxfp4, 32)           \
    X(NVFP4, nvfp4, 64) X(Q1_0, q1_0, 128) X(Q2_0, q2_0, 64)

#define DEFINE_DECODE(NAME, format, elems)                                                         \
    static void decode_##format(float *out, const void *blocks, size_t n_blocks)                   \
    {                                                                                              \
        const block_##format *b = blocks;                                                          \
        for (size_t i = 0; i < n_blocks; i++) format(out + i * (elems), b + i);                    \
    }
BLOCK_FORMATS(DEFINE_DECODE)

#define TRAITS_ROW(NAME, format, elems)                                                            \
    [QT_##NAME] = { #NAME, elems, (int)sizeof(block_##format), decode_##format },

static const quant_traits traits[QT_COUNT] = {
    [QT_F32] = { "F32", 1, 4, decode_f32 },
    [QT_F16] = { "F16", 1, 2, decode_f16 },
    [QT_BF16] = { "BF16", 1, 2, decode_bf16 },
    BLOCK_FORMATS(TRAITS_ROW)
    [QT_Q8_1] = { "Q8_1", 32, (int)sizeof(block_q8_1), NULL },
    [QT_Q8_K] = { "Q8_K", 256, (int)sizeof(block_q8_k), NULL },
    [QT_I8] = { "I8", 1, 1, NULL },
    [QT_I16] = { "I16", 1, 2, NULL },
    [QT_I32] = { "I32", 1, 4, NULL },
    [QT_I64] = { "I64", 1, 8, NULL },
    [QT_F64] = { "F64", 1, 8, NULL },
};

/* Removed types: early 4-bit formats, and layouts repacked for particular processors. */
static const char *const removed[QT_COUNT] = {
    [4] = "Q4_2, removed",
    [5] = "Q4_3, removed",
    [31] = "Q4_0_4_4, removed",
    [32] = "Q4_0_4_8, removed",
    [33] = "Q4_0_8_8, removed",
    [36] = "IQ4_NL_4_4, removed",
    [37] = "IQ4_NL_4_8, removed",
    [38] = "IQ4_NL_8_8, removed",
};

const quant_traits *quant_traits_of(uint32_t id)
{
    return id < QT_COUNT && traits[id].name ? &traits[id] : NULL;
}

const char *quant_name(uint32_t id)
{
    if (id >= QT_COUNT) return "unknown";
    return traits[id].name ? traits[id].name : removed[id];
}

bool quant_from_name(quant_type *out, const char *name)
{
    for (int id = 0; id < QT_COUNT; id++) {
        if (traits[id].decode && strcasecmp(traits[id].name, name) == 0) {
            *out = (quant_type)id;
            return true;
        }
    }
    return false;
}

bool quant_is_storable(uint32_t id)
{
    return quant_traits_of(id) && id != QT_Q8_1 && id != QT_Q8_K;
}
