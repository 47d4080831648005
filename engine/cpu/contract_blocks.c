/* contract_blocks.c - the unpackers behind contract_blocks.h, one per block format.
 *
 * Integers only, but for the scales, which are converted exactly; nothing here rounds. Loops have
 * no branches and go over whole runs of 16 or 32 bytes, so that a compiler can use vectors for the
 * formats without a codebook. Hostile bytes give in-range numbers: every product that the
 * contract forms from them stays below 2^24. Layouts are drawn in loader/quant_blocks.h. */
#include "engine/cpu/contract_blocks.h"

#include <stddef.h>

#include "loader/bytes.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"
#include "loader/quant_tables.h"

/* ---- helpers ------------------------------------------------------------------------------- */

static float half_at(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

/* The fields of block j that has one sub-scale. */
static void put_scale(block_parts *p, int j, float d, int sc)
{
    p->d[j] = d;
    p->sc[0][j] = sc;
    p->sc[1][j] = sc;
}

static void put_min(block_parts *p, int j, float c, int m)
{
    p->c[j] = c;
    p->m[0][j] = m;
    p->m[1][j] = m;
}

/* "Halves order": 16 bytes, 32 codes. */
static void put_nibbles(int8_t *restrict w, const uint8_t *restrict nibbles, int offset)
{
    for (int k = 0; k < 16; k++) {
        w[k] = (int8_t)((nibbles[k] & 15) - offset);
        w[k + 16] = (int8_t)((nibbles[k] >> 4) - offset);
    }
}

static void put_levels(int8_t *restrict w, const uint8_t *restrict nibbles)
{
    static const int8_t levels[16] = { IQ4_LEVELS };
    for (int k = 0; k < 16; k++) {
        w[k] = levels[nibbles[k] & 15];
        w[k + 16] = levels[nibbles[k] >> 4];
    }
}

/* n codes become E2M1_TWICE[code], by arithmetic, which vectors can do and table look-ups cannot:
 * magnitudes 0 to 4 stand for themselves, and 5, 6, 7 for 6, 8, 12, which is 1, 2, 5 more. */
static void codes_to_e2m1(int8_t *w, int n)
{
    for (int k = 0; k < n; k++) {
        const int magnitude = w[k] & 7, minus = -(w[k] >> 3);
        const int above = magnitude & 3 & -(magnitude >> 2);
        const int twice = magnitude + above + ((above & above >> 1) << 1);
        w[k] = (int8_t)((twice ^ minus) - minus);
    }
}

/* Eight bytes, lowest first, of which byte k is bit k. The product holds eight copies of seven bits
 * side by side, the k-th moved so that its bit k is the lowest bit of byte k. */
static uint64_t spread_bits(uint32_t bits)
{
    const uint64_t copies = (bits & 127) * UINT64_C(0x0002040810204081);
    return (copies & UINT64_C(0x0101010101010101)) | (uint64_t)(bits >> 7 & 1) << 56;
}

/* "Four planes": the 32 codes of block j of 8. */
static const uint8_t *plane_bytes(const uint8_t *quants, int j)
{
    return quants + 32 * (j / 4);
}
static int plane_shift(int j)
{
    return 2 * (j % 4);
}

/* ---- 32 weights, one scale ----------------------------------------------------------------- */

static void q4_0(block_parts *restrict p, const block_q4_0 *restrict b, int j)
{
    put_nibbles(p->w + 32 * j, b->nibbles, 8);
    put_scale(p, j, half_at(b->d), 1);
}

static void q4_1(block_parts *restrict p, const block_q4_1 *restrict b, int j)
{
    put_nibbles(p->w + 32 * j, b->nibbles, 0);
    put_scale(p, j, half_at(b->d), 1);
    put_min(p, j, half_at(b->m), 1);
}

/* "Halves order" with a fifth bit of each code apart: bit i for weight i. */
static void put_five_bits(int8_t *restrict w, const uint8_t *restrict nibbles,
                          const uint8_t *restrict high, int offset)
{
    uint8_t fifth[32];
    for (int n = 0; n < 4; n++) store_u64(fifth + 8 * n, spread_bits(high[n]) << 4);
    for (int k = 0; k < 16; k++) {
        w[k] = (int8_t)(((nibbles[k] & 15) | fifth[k]) - offset);
        w[k + 16] = (int8_t)((nibbles[k] >> 4 | fifth[k + 16]) - offset);
    }
}

static void q5_0(block_parts *restrict p, const block_q5_0 *restrict b, int j)
{
    put_five_bits(p->w + 32 * j, b->nibbles, b->high, 16);
    put_scale(p, j, half_at(b->d), 1);
}

static void q5_1(block_parts *restrict p, const block_q5_1 *restrict b, int j)
{
    put_five_bits(p->w + 32 * j, b->nibbles, b->high, 0);
    put_scale(p, j, half_at(b->d), 1);
    put_min(p, j, half_at(b->m), 1);
}

static void q8_0(block_parts *restrict p, const block_q8_0 *restrict b, int j)
{
    memcpy(p->w + 32 * j, b->quants, 32);
    put_scale(p, j, half_at(b->d), 1);
}

static void iq4_nl(block_parts *restrict p, const block_iq4_nl *restrict b, int j)
{
    put_levels(p->w + 32 * j, b->nibbles);
    put_scale(p, j, half_at(b->d), 1);
}

/* ---- 4-bit floats -------------------------------------------------------------------------- */

/* The exponent field as it stands: 0 is +0 and 255 is +Inf. */
static void mxfp4(block_parts *restrict p, const block_mxfp4 *restrict b, int j)
{
    const uint32_t bits = (uint32_t)b->e << 23;
    put_nibbles(p->w + 32 * j, b->nibbles, 0);
    codes_to_e2m1(p->w + 32 * j, 32);
    put_scale(p, j, load_f32(&bits), 1);
}

/* E4M3 in the fields of a binary16, whose exponent bias is larger by 8: the value times 2^-8,
 * subnormal codes included. */
static float e4m3_scaled(uint8_t code)
{
    const uint32_t magnitude = code & 0x7Fu;
    return magnitude == 0x7F ? 0.0f : f16_to_f32((uint16_t)(magnitude << 7));
}

/* 64 weights, two blocks from j on. */
static void nvfp4(block_parts *restrict p, const block_nvfp4 *restrict b, int j)
{
    for (int n = 0; n < 4; n++) {
        int8_t *w = p->w + 32 * j + 16 * n;
        const uint64_t codes = load_u64(b->nibbles[n]);
        store_u64(w, codes & UINT64_C(0x0F0F0F0F0F0F0F0F));
        store_u64(w + 8, codes >> 4 & UINT64_C(0x0F0F0F0F0F0F0F0F));
        p->f[n % 2][j + n / 2] = e4m3_scaled(b->scales[n]);
    }
    codes_to_e2m1(p->w + 32 * j, 64);
}

/* ---- 256 weights, small integers as scales of sub-blocks ----------------------------------- */

static void q2_k(block_parts *restrict p, const block_q2_k *restrict b)
{
    const float d = half_at(b->d), c = -half_at(b->dmin);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = plane_bytes(b->quants, j);
        const int shift = plane_shift(j);
        for (int k = 0; k < 32; k++) p->w[32 * j + k] = (int8_t)(q[k] >> shift & 3);
        p->d[j] = d;
        p->c[j] = c;
        for (int h = 0; h < 2; h++) {
            p->sc[h][j] = b->scales[2 * j + h] & 15;
            p->m[h][j] = b->scales[2 * j + h] >> 4;
        }
    }
}

static void q3_k(block_parts *restrict p, const block_q3_k *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = plane_bytes(b->quants, j);
        const int shift = plane_shift(j);
        for (int k = 0; k < 32; k++)
            p->w[32 * j + k] = (int8_t)((q[k] >> shift & 3) + ((b->high[k] >> j & 1) << 2) - 4);
        p->d[j] = d;
        for (int h = 0; h < 2; h++) {
            const int n = 2 * j + h;
            const int low = b->scales[n % 8] >> 4 * (n / 8) & 15;
            const int high = b->scales[8 + n % 4] >> 2 * (n / 4) & 3;
            p->sc[h][j] = (low | high << 4) - 32;
        }
    }
}

/* The eight 6-bit scales and minimums of q4_k and q5_k, with the two floats they multiply. */
static void put_k_scales(block_parts *restrict p, const uint8_t *restrict s, float d, float c)
{
    for (int k = 0; k < 4; k++) {
        put_scale(p, k, d, s[k] & 63);
        put_min(p, k, c, s[k + 4] & 63);
        put_scale(p, k + 4, d, (s[k + 8] & 15) | s[k] >> 6 << 4);
        put_min(p, k + 4, c, s[k + 8] >> 4 | s[k + 4] >> 6 << 4);
    }
}

static void q4_k(block_parts *restrict p, const block_q4_k *restrict b)
{
    for (int n = 0; n < 4; n++) {
        for (int k = 0; k < 32; k++) {
            p->w[64 * n + k] = (int8_t)(b->nibbles[n][k] & 15);
            p->w[64 * n + 32 + k] = (int8_t)(b->nibbles[n][k] >> 4);
        }
    }
    put_k_scales(p, b->scales, half_at(b->d), -half_at(b->dmin));
}

static void q5_k(block_parts *restrict p, const block_q5_k *restrict b)
{
    for (int n = 0; n < 4; n++) {
        for (int k = 0; k < 32; k++) {
            const int code = b->nibbles[n][k], high = b->high[k] >> 2 * n;
            p->w[64 * n + k] = (int8_t)((code & 15) | (high & 1) << 4);
            p->w[64 * n + 32 + k] = (int8_t)(code >> 4 | (high & 2) << 3);
        }
    }
    put_k_scales(p, b->scales, half_at(b->d), -half_at(b->dmin));
}

static void q6_k(block_parts *restrict p, const block_q6_k *restrict b)
{
    const float d = half_at(b->d);
    for (int h = 0; h < 2; h++) {
        const uint8_t *low = b->low[h], *high = b->high + 32 * h;
        int8_t *w = p->w + 128 * h;
        for (int k = 0; k < 32; k++) {
            const int first = low[k], second = low[k + 32], top = high[k];
            w[k] = (int8_t)(((first & 15) | (top & 3) << 4) - 32);
            w[k + 32] = (int8_t)(((second & 15) | (top >> 2 & 3) << 4) - 32);
            w[k + 64] = (int8_t)((first >> 4 | (top >> 4 & 3) << 4) - 32);
            w[k + 96] = (int8_t)((second >> 4 | (top >> 6) << 4) - 32);
        }
    }
    for (int j = 0; j < 8; j++) {
        p->d[j] = d;
        p->sc[0][j] = b->scales[2 * j];
        p->sc[1][j] = b->scales[2 * j + 1];
    }
}

static void iq4_xs(block_parts *restrict p, const block_iq4_xs *restrict b)
{
    const float d = half_at(b->d);
    const int scales_high = load_u16(b->scales_high);
    for (int j = 0; j < 8; j++) {
        const int low = b->scales_low[j / 2] >> 4 * (j % 2) & 15, high = scales_high >> 2 * j & 3;
        put_levels(p->w + 32 * j, b->nibbles[j]);
        put_scale(p, j, d, (low | high << 4) - 32);
    }
}

/* ---- codebooks ----------------------------------------------------------------------------- */

/* 8 weights from a grid row of magnitudes; bit k of signs set: weight k is negative. All eight are
 * negated at once as ~m + 1, which carries into no neighbour because no magnitude is 0. */
static void put_row(int8_t *w, uint64_t row, uint32_t signs)
{
    const uint64_t one = spread_bits(signs);
    store_u64(w, (row ^ one * 255) + one);
}

/* The eight signs behind "even signs": bit 7 is the parity of the other seven. The constant is a
 * table of 16 bits, the parity of each 4-bit number. */
static uint32_t even_signs(uint32_t seven)
{
    const uint32_t parity = 0x6996u >> ((seven ^ seven >> 4) & 15) & 1;
    return seven | parity << 7;
}

static void iq2_xxs(block_parts *restrict p, const block_iq2_xxs *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u32(b->part[j].signs_scale);
        put_scale(p, j, d, 2 * (int)(word >> 28) + 1);
        for (int n = 0; n < 4; n++) {
            put_row(p->w + 32 * j + 8 * n, quant_grid_iq2_xxs[b->part[j].index[n]],
                    even_signs(word >> 7 * n & 127));
        }
    }
}

/* One byte of scales serves the two halves of a block. */
static void put_half_scales(block_parts *p, int j, float d, uint8_t scales)
{
    p->d[j] = d;
    p->sc[0][j] = 2 * (scales & 15) + 1;
    p->sc[1][j] = 2 * (scales >> 4) + 1;
}

static void iq2_xs(block_parts *restrict p, const block_iq2_xs *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        put_half_scales(p, j, d, b->scales[j]);
        for (int n = 0; n < 4; n++) {
            const uint32_t word = load_u16(b->words[4 * j + n]);
            put_row(p->w + 32 * j + 8 * n, quant_grid_iq2_xs[word & 511], even_signs(word >> 9));
        }
    }
}

static void iq2_s(block_parts *restrict p, const block_iq2_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        put_half_scales(p, j, d, b->scales[j]);
        for (int n = 0; n < 4; n++) {
            const int high = b->index_high[j] >> 2 * n & 3;
            put_row(p->w + 32 * j + 8 * n, quant_grid_iq2_s[b->index[4 * j + n] | high << 8],
                    b->signs[4 * j + n]);
        }
    }
}

static uint64_t two_rows(uint32_t first, uint32_t second)
{
    return first | (uint64_t)second << 32;
}

static void iq3_xxs(block_parts *restrict p, const block_iq3_xxs *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u32(b->signs_scale[j]);
        put_scale(p, j, d, 2 * (int)(word >> 28) + 1);
        for (int n = 0; n < 4; n++) {
            const uint8_t *index = b->index + 8 * j + 2 * n;
            put_row(p->w + 32 * j + 8 * n,
                    two_rows(quant_grid_iq3_xxs[index[0]], quant_grid_iq3_xxs[index[1]]),
                    even_signs(word >> 7 * n & 127));
        }
    }
}

static void iq3_s(block_parts *restrict p, const block_iq3_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        put_scale(p, j, d, 2 * (b->scales[j / 2] >> 4 * (j % 2) & 15) + 1);
        for (int n = 0; n < 4; n++) {
            const uint8_t *index = b->index + 8 * j + 2 * n;
            const int high = b->index_high[j] >> 2 * n;
            put_row(p->w + 32 * j + 8 * n,
                    two_rows(quant_grid_iq3_s[index[0] | (high & 1) << 8],
                             quant_grid_iq3_s[index[1] | (high & 2) << 7]),
                    b->signs[4 * j + n]);
        }
    }
}

/* 8 weights: eight times a grid row of -1, 0, 1, plus or minus 1. */
static void put_iq1_row(int8_t *w, uint32_t index, bool down)
{
    const uint64_t row = quant_grid_iq1[index];
    const int shift = down ? -1 : 1;
    for (int k = 0; k < 8; k++) w[k] = (int8_t)(8 * (int8_t)(row >> 8 * k & 255) + shift);
}

static void iq1_s(block_parts *restrict p, const block_iq1_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u16(b->words[j]);
        put_scale(p, j, d, 2 * (int)(word >> 12 & 7) + 1);
        for (int n = 0; n < 4; n++)
            put_iq1_row(p->w + 32 * j + 8 * n, b->index[4 * j + n] | (word >> 3 * n & 7) << 8,
                        word >> 15);
    }
}

static void iq1_m(block_parts *restrict p, const block_iq1_m *restrict b)
{
    uint32_t words[4], d_bits = 0;
    float d;

    for (int k = 0; k < 4; k++) {
        words[k] = load_u16(b->scales[k]);
        d_bits |= words[k] >> 12 << 4 * k;
    }
    d = f16_to_f32((uint16_t)d_bits);
    for (int n = 0; n < 16; n++) {
        const int j = n / 2, h = n % 2;
        p->d[j] = d;
        p->sc[h][j] = 2 * (int)(words[n / 4] >> 3 * (n % 4) & 7) + 1;
        for (int i = 0; i < 2; i++) {
            const uint32_t top = b->high[n] >> 4 * i & 15;
            put_iq1_row(p->w + 16 * n + 8 * i, b->index[2 * n + i] | (top & 7) << 8, top >> 3);
        }
    }
}

/* ---- one and two bits, three values -------------------------------------------------------- */

/* Digit t of each of n bytes. power is 3^t: multiplying by it modulo 256 drops the digits before
 * t. */
static void put_digits(int8_t *restrict w, const uint8_t *restrict bytes, int n, int power)
{
    for (int k = 0; k < n; k++) {
        const int rest = bytes[k] * power & 255;
        w[k] = (int8_t)((rest * 3 >> 8) - 1);
    }
}

static void tq1_0(block_parts *restrict p, const block_tq1_0 *restrict b)
{
    static const int powers[5] = { 1, 3, 9, 27, 81 };
    const float d = half_at(b->d);
    int8_t *w = p->w;
    for (int t = 0; t < 5; t++, w += 32) put_digits(w, b->digits5, 32, powers[t]);
    for (int t = 0; t < 5; t++, w += 16) put_digits(w, b->digits5 + 32, 16, powers[t]);
    for (int t = 0; t < 4; t++, w += 4) put_digits(w, b->digits4, 4, powers[t]);
    for (int j = 0; j < 8; j++) put_scale(p, j, d, 1);
}

static void tq2_0(block_parts *restrict p, const block_tq2_0 *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = plane_bytes(b->quants, j);
        const int shift = plane_shift(j);
        for (int k = 0; k < 32; k++) p->w[32 * j + k] = (int8_t)((q[k] >> shift & 3) - 1);
        put_scale(p, j, d, 1);
    }
}

/* 128 weights, four blocks from j on. */
static void q1_0(block_parts *restrict p, const block_q1_0 *restrict b, int j)
{
    const float d = half_at(b->d);
    for (int i = 0; i < 4; i++) {
        for (int n = 0; n < 4; n++)
            put_row(p->w + 32 * (j + i) + 8 * n, UINT64_C(0x0101010101010101),
                    ~(uint32_t)b->bits[4 * i + n]);
        put_scale(p, j + i, d, 1);
    }
}

/* 64 weights, two blocks from j on. */
static void q2_0(block_parts *restrict p, const block_q2_0 *restrict b, int j)
{
    const float d = half_at(b->d);
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 8; n++)
            for (int k = 0; k < 4; k++)
                p->w[32 * (j + i) + 4 * n + k] = (int8_t)((b->quants[8 * i + n] >> 2 * k & 3) - 1);
        put_scale(p, j + i, d, 1);
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

/* Name, struct and function, weights per block, kind. A super-block is a segment of its own; of the
 * smaller blocks there may be any number. */
#define SMALL_FORMATS(X)                                                                           \
    X(Q4_0, q4_0, 32, PARTS_PLAIN) X(Q4_1, q4_1, 32, PARTS_MINIMUM)                                \
    X(Q5_0, q5_0, 32, PARTS_PLAIN) X(Q5_1, q5_1, 32, PARTS_MINIMUM)                                \
    X(Q8_0, q8_0, 32, PARTS_PLAIN) X(IQ4_NL, iq4_nl, 32, PARTS_PLAIN)                              \
    X(MXFP4, mxfp4, 32, PARTS_PLAIN) X(NVFP4, nvfp4, 64, PARTS_TWO_SCALES)                         \
    X(Q1_0, q1_0, 128, PARTS_PLAIN) X(Q2_0, q2_0, 64, PARTS_PLAIN)

#define SUPER_FORMATS(X)                                                                           \
    X(Q2_K, q2_k, 256, PARTS_MINIMUM) X(Q3_K, q3_k, 256, PARTS_PLAIN)                              \
    X(Q4_K, q4_k, 256, PARTS_MINIMUM) X(Q5_K, q5_k, 256, PARTS_MINIMUM)                            \
    X(Q6_K, q6_k, 256, PARTS_PLAIN) X(IQ4_XS, iq4_xs, 256, PARTS_PLAIN)                            \
    X(IQ2_XXS, iq2_xxs, 256, PARTS_PLAIN) X(IQ2_XS, iq2_xs, 256, PARTS_PLAIN)                      \
    X(IQ2_S, iq2_s, 256, PARTS_PLAIN) X(IQ3_XXS, iq3_xxs, 256, PARTS_PLAIN)                        \
    X(IQ3_S, iq3_s, 256, PARTS_PLAIN) X(IQ1_S, iq1_s, 256, PARTS_PLAIN)                            \
    X(IQ1_M, iq1_m, 256, PARTS_PLAIN) X(TQ1_0, tq1_0, 256, PARTS_PLAIN)                            \
    X(TQ2_0, tq2_0, 256, PARTS_PLAIN)

#define DEFINE_SMALL(NAME, format, elems, kind)                                                    \
    static void unpack_##format(block_parts *restrict p, const void *restrict blocks, int n)       \
    {                                                                                              \
        const block_##format *b = blocks;                                                          \
        for (int j = 0; j < n; j += (elems) / 32, b++) format(p, b, j);                            \
    }
SMALL_FORMATS(DEFINE_SMALL)

#define DEFINE_SUPER(NAME, format, elems, kind)                                                    \
    static void unpack_##format(block_parts *restrict p, const void *restrict blocks, int n)       \
    {                                                                                              \
        (void)n;                                                                                   \
        format(p, blocks);                                                                         \
    }
SUPER_FORMATS(DEFINE_SUPER)

#define FORMAT_ROW(NAME, format, elems, kind)                                                      \
    [QT_##NAME] = { unpack_##format, kind, SEGMENT / (elems) * (int)sizeof(block_##format) },

static const block_format formats[QT_COUNT] = {
    SMALL_FORMATS(FORMAT_ROW)
    SUPER_FORMATS(FORMAT_ROW)
};

const block_format *contract_blocks_of(uint32_t type)
{
    return type < QT_COUNT && formats[type].unpack ? &formats[type] : NULL;
}
