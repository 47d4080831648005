/* contract_blocks_body.h - the unpackers of contract_blocks.h, one static function for each block
 * format. contract_blocks.c compiles them for the baseline processor, and each kernel file that
 * unpacks whole rows compiles them again for its instruction set.
 *
 * All arithmetic is on integers; scales are converted exactly. Loops have no branches and process
 * runs of 16 or 32 bytes, so that compilers vectorise the formats without a codebook. Any bytes
 * give numbers in range: every product of the contract is below 2^24. loader/quant_blocks.h draws
 * the layouts. */
#ifndef ENGINE_CPU_CONTRACT_BLOCKS_BODY_H
#define ENGINE_CPU_CONTRACT_BLOCKS_BODY_H

#include "engine/cpu/contract_blocks.h"

#include <stddef.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSSE3__)
#include <immintrin.h>
#endif

#include "loader/bytes.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"
#include "loader/quant_tables.h"

/* ---- sixteen bytes at a time --------------------------------------------------------------- */

typedef uint8_t bytes16 __attribute__((vector_size(16)));

static inline bytes16 load16(const void *p) { bytes16 v; memcpy(&v, p, 16); return v; }
static inline void store16(void *p, bytes16 v) { memcpy(p, &v, 16); }

static inline uint64_t two_u32(uint32_t first, uint32_t second)
{
    return first | (uint64_t)second << 32;
}

static inline bytes16 two_u64(uint64_t first, uint64_t second)
{
    const uint64_t pair[2] = { first, second };
    return load16(pair);
}

/* Returns 16 bytes; byte k is 255 if bit k is set, else 0. */
static inline bytes16 bits_to_bytes(uint32_t bits)
{
    static const bytes16 bit = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const uint64_t every = UINT64_C(0x0101010101010101);
    return (bytes16)((two_u64((bits & 255) * every, (bits >> 8 & 255) * every) & bit) != 0);
}

/* Returns -v in bytes whose mask is 255, v in those whose mask is 0. */
static inline bytes16 negate_where(bytes16 mask, bytes16 v)
{
    return (v ^ mask) - mask;
}

/* Returns table[code] for codes below 16. */
static inline bytes16 lookup16(const int8_t table[16], bytes16 codes)
{
#if defined(__aarch64__)
    return (bytes16)vqtbl1q_u8((uint8x16_t)load16(table), (uint8x16_t)codes);
#elif defined(__SSSE3__)
    return (bytes16)_mm_shuffle_epi8((__m128i)load16(table), (__m128i)codes);
#else
    bytes16 v;
    for (int k = 0; k < 16; k++) v[k] = (uint8_t)table[codes[k]];
    return v;
#endif
}

/* ---- helpers ------------------------------------------------------------------------------- */

static inline float half_at(const uint8_t *p)
{
#if defined(__aarch64__)
    __fp16 half;
    memcpy(&half, p, sizeof half);
    return (float)half;
#elif defined(__F16C__)
    return _cvtsh_ss(load_u16(p));
#else
    return f16_to_f32(load_u16(p));
#endif
}

/* Sets the fields of block j with one sub-scale. */
static inline void put_scale(block_parts *p, int j, float d, int sc)
{
    p->d[j] = d;
    p->sc[0][j] = sc;
    p->sc[1][j] = sc;
}

/* For a whole segment, as separate loops, which compilers vectorise. */
static inline void put_floats8(float *dst, float v)
{
    for (int j = 0; j < SEGMENT_BLOCKS; j++) dst[j] = v;
}

static inline void put_bytes8(int32_t dst[2][SEGMENT_BLOCKS], uint64_t bytes)
{
    for (int j = 0; j < SEGMENT_BLOCKS; j++)
        dst[0][j] = dst[1][j] = (int32_t)(bytes >> 8 * j & 255);
}

/* Sets the sub-scales of formats without them to 1. */
static inline void put_ones(block_parts *p, parts_kind kind)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    if (kind != PARTS_TWO_SCALES) put_bytes8(p->sc, ones);
    if (kind == PARTS_MINIMUM) put_bytes8(p->m, ones);
}

/* Unpacks "halves order": 16 bytes, 32 codes. */
static inline void put_nibbles(int8_t *w, const uint8_t *nibbles, uint8_t offset)
{
    const bytes16 n = load16(nibbles);
    store16(w, (n & 15) - offset);
    store16(w + 16, (n >> 4) - offset);
}

static const int8_t iq4_levels[16] = { IQ4_LEVELS }, e2m1_twice[16] = { E2M1_TWICE };

/* Unpacks halves order; the codes are indices of a table. */
static inline void put_looked_up(int8_t *w, const uint8_t *nibbles, const int8_t table[16])
{
    const bytes16 n = load16(nibbles);
    store16(w, lookup16(table, n & 15));
    store16(w + 16, lookup16(table, n >> 4));
}

/* "Four planes": returns 16 of the 32 codes of block j of 8. */
static inline bytes16 plane16(const uint8_t *quants, int j, int half)
{
    return load16(quants + 32 * (j / 4) + 16 * half) >> (uint8_t)(2 * (j % 4)) & 3;
}

/* ---- 32 weights, one scale ----------------------------------------------------------------- */

static void q4_0(block_parts *restrict p, const block_q4_0 *restrict b, int j)
{
    put_nibbles(p->w + 32 * j, b->nibbles, 8);
    p->d[j] = half_at(b->d);
}

static void q4_1(block_parts *restrict p, const block_q4_1 *restrict b, int j)
{
    put_nibbles(p->w + 32 * j, b->nibbles, 0);
    p->d[j] = half_at(b->d);
    p->c[j] = half_at(b->m);
}

/* Unpacks "halves order" with separate fifth bits: bit i for weight i. */
static inline void put_five_bits(int8_t *w, const uint8_t *nibbles, const uint8_t *high,
                                 uint8_t offset)
{
    const bytes16 n = load16(nibbles);
    store16(w, ((n & 15) | (bits_to_bytes(load_u16(high)) & 16)) - offset);
    store16(w + 16, ((n >> 4) | (bits_to_bytes(load_u16(high + 2)) & 16)) - offset);
}

static void q5_0(block_parts *restrict p, const block_q5_0 *restrict b, int j)
{
    put_five_bits(p->w + 32 * j, b->nibbles, b->high, 16);
    p->d[j] = half_at(b->d);
}

static void q5_1(block_parts *restrict p, const block_q5_1 *restrict b, int j)
{
    put_five_bits(p->w + 32 * j, b->nibbles, b->high, 0);
    p->d[j] = half_at(b->d);
    p->c[j] = half_at(b->m);
}

static void q8_0(block_parts *restrict p, const block_q8_0 *restrict b, int j)
{
    memcpy(p->w + 32 * j, b->quants, 32);
    p->d[j] = half_at(b->d);
}

static void iq4_nl(block_parts *restrict p, const block_iq4_nl *restrict b, int j)
{
    put_looked_up(p->w + 32 * j, b->nibbles, iq4_levels);
    p->d[j] = half_at(b->d);
}

/* ---- 4-bit floats -------------------------------------------------------------------------- */

/* e becomes the exponent field: 0 gives +0 and 255 gives +Inf. */
static void mxfp4(block_parts *restrict p, const block_mxfp4 *restrict b, int j)
{
    const uint32_t bits = (uint32_t)b->e << 23;
    put_looked_up(p->w + 32 * j, b->nibbles, e2m1_twice);
    p->d[j] = load_f32(&bits);
}

/* Reads E4M3 as the fields of a binary16, whose exponent bias is larger by 8. Returns the value
 * times 2^-8, also for subnormal codes. */
static inline float e4m3_scaled(uint8_t code)
{
    uint8_t half[2];
    const uint32_t magnitude = code & 0x7Fu;
    store_u16(half, (uint16_t)(magnitude == 0x7F ? 0 : magnitude << 7));
    return half_at(half);
}

/* 64 weights, two blocks from j on. */
static void nvfp4(block_parts *restrict p, const block_nvfp4 *restrict b, int j)
{
    for (int n = 0; n < 4; n++) {
        const uint64_t codes = load_u64(b->nibbles[n]);
        store16(p->w + 32 * j + 16 * n, lookup16(e2m1_twice, two_u64(codes, codes >> 4) & 15));
        p->f[n % 2][j + n / 2] = e4m3_scaled(b->scales[n]);
    }
}

/* ---- 256 weights, small integers as scales of sub-blocks ----------------------------------- */

static void q2_k(block_parts *restrict p, const block_q2_k *restrict b)
{
    for (int j = 0; j < 8; j++)
        for (int h = 0; h < 2; h++) store16(p->w + 32 * j + 16 * h, plane16(b->quants, j, h));
    for (int h = 0; h < 2; h++) {
        for (int j = 0; j < 8; j++) p->sc[h][j] = b->scales[2 * j + h] & 15;
        for (int j = 0; j < 8; j++) p->m[h][j] = b->scales[2 * j + h] >> 4;
    }
    put_floats8(p->d, half_at(b->d));
    put_floats8(p->c, -half_at(b->dmin));
}

static void q3_k(block_parts *restrict p, const block_q3_k *restrict b)
{
    const uint64_t low = load_u64(b->scales), four = UINT64_C(0x0F0F0F0F0F0F0F0F);
    const uint32_t high = load_u32(b->scales + 8), two = 0x03030303;
    uint8_t scales[16];

    for (int j = 0; j < 8; j++) {
        for (int h = 0; h < 2; h++) {
            const bytes16 high4 = (load16(b->high + 16 * h) >> (uint8_t)j & 1) << 2;
            store16(p->w + 32 * j + 16 * h, plane16(b->quants, j, h) + high4 - 4);
        }
    }
    store16(scales, two_u64(low & four, low >> 4 & four) |
                    two_u64(two_u32(high & two, high >> 2 & two),
                            two_u32(high >> 4 & two, high >> 6 & two)) << 4);
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++) p->sc[h][j] = scales[2 * j + h] - 32;
    put_floats8(p->d, half_at(b->d));
}

/* Unpacks the eight 6-bit scales and minimums of q4_k and q5_k, with the floats d and c. */
static void put_k_scales(block_parts *restrict p, const uint8_t *restrict s, float d, float c)
{
    const uint32_t six = 0x3F3F3F3F, four = 0x0F0F0F0F, two = 0x03030303;
    const uint32_t first = load_u32(s), second = load_u32(s + 4), third = load_u32(s + 8);

    put_bytes8(p->sc, two_u32(first & six, (third & four) | (first >> 6 & two) << 4));
    put_bytes8(p->m, two_u32(second & six, (third >> 4 & four) | (second >> 6 & two) << 4));
    put_floats8(p->d, d);
    put_floats8(p->c, c);
}

static void q4_k(block_parts *restrict p, const block_q4_k *restrict b)
{
    for (int n = 0; n < 8; n++) {
        const bytes16 codes = load16(b->nibbles[n / 2] + 16 * (n % 2));
        int8_t *w = p->w + 64 * (n / 2) + 16 * (n % 2);
        store16(w, codes & 15);
        store16(w + 32, codes >> 4);
    }
    put_k_scales(p, b->scales, half_at(b->d), -half_at(b->dmin));
}

static void q5_k(block_parts *restrict p, const block_q5_k *restrict b)
{
    for (int n = 0; n < 8; n++) {
        const bytes16 codes = load16(b->nibbles[n / 2] + 16 * (n % 2));
        const bytes16 high = load16(b->high + 16 * (n % 2)) >> (uint8_t)(n / 2 * 2);
        int8_t *w = p->w + 64 * (n / 2) + 16 * (n % 2);
        store16(w, (codes & 15) | (high & 1) << 4);
        store16(w + 32, codes >> 4 | (high & 2) << 3);
    }
    put_k_scales(p, b->scales, half_at(b->d), -half_at(b->dmin));
}

static void q6_k(block_parts *restrict p, const block_q6_k *restrict b)
{
    for (int n = 0; n < 4; n++) {
        const int h = n / 2, pos = 16 * (n % 2);
        const bytes16 first = load16(b->low[h] + pos), second = load16(b->low[h] + 32 + pos);
        const bytes16 top = load16(b->high + 32 * h + pos);
        int8_t *w = p->w + 128 * h + pos;
        store16(w, ((first & 15) | (top & 3) << 4) - 32);
        store16(w + 32, ((second & 15) | (top >> 2 & 3) << 4) - 32);
        store16(w + 64, (first >> 4 | (top >> 4 & 3) << 4) - 32);
        store16(w + 96, (second >> 4 | top >> 6 << 4) - 32);
    }
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++) p->sc[h][j] = b->scales[2 * j + h];
    put_floats8(p->d, half_at(b->d));
}

static void iq4_xs(block_parts *restrict p, const block_iq4_xs *restrict b)
{
    const float d = half_at(b->d);
    const int scales_high = load_u16(b->scales_high);
    for (int j = 0; j < 8; j++) {
        const int low = b->scales_low[j / 2] >> 4 * (j % 2) & 15, high = scales_high >> 2 * j & 3;
        put_looked_up(p->w + 32 * j, b->nibbles[j], iq4_levels);
        put_scale(p, j, d, (low | high << 4) - 32);
    }
}

/* ---- codebooks ----------------------------------------------------------------------------- */

/* Writes 16 weights from two grid rows of magnitudes. Weight k is negative if bit k of signs is
 * set. */
static inline void put_rows(int8_t *w, uint64_t first, uint64_t second, uint32_t signs)
{
    store16(w, negate_where(bits_to_bytes(signs), two_u64(first, second)));
}

/* Returns the eight signs of "even signs": bit 7 is the parity of the other seven. 0x6996 is a
 * table of the parity of each 4-bit number. */
static inline uint32_t even_signs(uint32_t seven)
{
    const uint32_t parity = 0x6996u >> ((seven ^ seven >> 4) & 15) & 1;
    return seven | parity << 7;
}

static inline uint32_t two_even_signs(uint32_t first, uint32_t second)
{
    return even_signs(first) | even_signs(second) << 8;
}

static void iq2_xxs(block_parts *restrict p, const block_iq2_xxs *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u32(b->part[j].signs_scale);
        put_scale(p, j, d, 2 * (int)(word >> 28) + 1);
        for (int n = 0; n < 4; n += 2)
            put_rows(p->w + 32 * j + 8 * n, quant_grid_iq2_xxs[b->part[j].index[n]],
                     quant_grid_iq2_xxs[b->part[j].index[n + 1]],
                     two_even_signs(word >> 7 * n & 127, word >> 7 * (n + 1) & 127));
    }
}

/* One byte has the scales of both halves of a block. */
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
        for (int n = 0; n < 4; n += 2) {
            const uint32_t first = load_u16(b->words[4 * j + n]);
            const uint32_t second = load_u16(b->words[4 * j + n + 1]);
            put_rows(p->w + 32 * j + 8 * n, quant_grid_iq2_xs[first & 511],
                     quant_grid_iq2_xs[second & 511], two_even_signs(first >> 9, second >> 9));
        }
    }
}

static void iq2_s(block_parts *restrict p, const block_iq2_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        put_half_scales(p, j, d, b->scales[j]);
        for (int n = 0; n < 4; n += 2) {
            const uint8_t *index = b->index + 4 * j + n;
            const int high = b->index_high[j] >> 2 * n;
            put_rows(p->w + 32 * j + 8 * n, quant_grid_iq2_s[index[0] | (high & 3) << 8],
                     quant_grid_iq2_s[index[1] | (high & 12) << 6],
                     load_u16(b->signs + 4 * j + n));
        }
    }
}

static void iq3_xxs(block_parts *restrict p, const block_iq3_xxs *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u32(b->signs_scale[j]);
        put_scale(p, j, d, 2 * (int)(word >> 28) + 1);
        for (int n = 0; n < 4; n += 2) {
            const uint8_t *index = b->index + 8 * j + 2 * n;
            put_rows(p->w + 32 * j + 8 * n,
                     two_u32(quant_grid_iq3_xxs[index[0]], quant_grid_iq3_xxs[index[1]]),
                     two_u32(quant_grid_iq3_xxs[index[2]], quant_grid_iq3_xxs[index[3]]),
                     two_even_signs(word >> 7 * n & 127, word >> 7 * (n + 1) & 127));
        }
    }
}

static void iq3_s(block_parts *restrict p, const block_iq3_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        put_scale(p, j, d, 2 * (b->scales[j / 2] >> 4 * (j % 2) & 15) + 1);
        for (int n = 0; n < 4; n += 2) {
            const uint8_t *index = b->index + 8 * j + 2 * n;
            const int high = b->index_high[j] >> 2 * n;
            put_rows(p->w + 32 * j + 8 * n,
                     two_u32(quant_grid_iq3_s[index[0] | (high & 1) << 8],
                              quant_grid_iq3_s[index[1] | (high & 2) << 7]),
                     two_u32(quant_grid_iq3_s[index[2] | (high & 4) << 6],
                              quant_grid_iq3_s[index[3] | (high & 8) << 5]),
                     load_u16(b->signs + 4 * j + n));
        }
    }
}

/* Writes 16 weights from two grid rows of -1, 0, 1: 8 * row + 1, or 8 * row - 1 if down. */
static inline void put_iq1_rows(int8_t *w, uint32_t first, bool first_down, uint32_t second,
                                bool second_down)
{
    const bytes16 down = bits_to_bytes((first_down ? 0xFFu : 0) | (second_down ? 0xFF00u : 0));
    const bytes16 rows = two_u64(quant_grid_iq1[first], quant_grid_iq1[second]);
    store16(w, (rows << 3) + (down | 1));
}

static void iq1_s(block_parts *restrict p, const block_iq1_s *restrict b)
{
    const float d = half_at(b->d);
    for (int j = 0; j < 8; j++) {
        const uint32_t word = load_u16(b->words[j]);
        put_scale(p, j, d, 2 * (int)(word >> 12 & 7) + 1);
        for (int n = 0; n < 4; n += 2) {
            const uint8_t *index = b->index + 4 * j + n;
            const uint32_t high = word >> 3 * n;
            put_iq1_rows(p->w + 32 * j + 8 * n, index[0] | (high & 7) << 8, word >> 15,
                         index[1] | (high & 56) << 5, word >> 15);
        }
    }
}

static void iq1_m(block_parts *restrict p, const block_iq1_m *restrict b)
{
    uint32_t words[4], d_bits = 0;
    uint8_t d_bytes[2];
    float d;

    for (int k = 0; k < 4; k++) {
        words[k] = load_u16(b->scales[k]);
        d_bits |= words[k] >> 12 << 4 * k;
    }
    store_u16(d_bytes, (uint16_t)d_bits);
    d = half_at(d_bytes);
    for (int n = 0; n < 16; n++) {
        const int j = n / 2, h = n % 2;
        p->d[j] = d;
        p->sc[h][j] = 2 * (int)(words[n / 4] >> 3 * (n % 4) & 7) + 1;
        const uint32_t top = b->high[n];
        put_iq1_rows(p->w + 16 * n, b->index[2 * n] | (top & 7) << 8, top >> 3 & 1,
                     b->index[2 * n + 1] | (top >> 4 & 7) << 8, top >> 7);
    }
}

/* ---- one and two bits, three values -------------------------------------------------------- */

/* Writes digit t of each of n bytes. power is 3^t: multiplying by it modulo 256 drops the digits
 * before t. */
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
    put_floats8(p->d, d);
    put_ones(p, PARTS_PLAIN);
}

static void tq2_0(block_parts *restrict p, const block_tq2_0 *restrict b)
{
    for (int j = 0; j < 8; j++)
        for (int h = 0; h < 2; h++) store16(p->w + 32 * j + 16 * h, plane16(b->quants, j, h) - 1);
    put_floats8(p->d, half_at(b->d));
    put_ones(p, PARTS_PLAIN);
}

/* 128 weights, four blocks from j on. */
static void q1_0(block_parts *restrict p, const block_q1_0 *restrict b, int j)
{
    const float d = half_at(b->d);
    for (int i = 0; i < 4; i++) {
        for (int h = 0; h < 2; h++) {
            const bytes16 set = bits_to_bytes(load_u16(b->bits + 4 * i + 2 * h));
            store16(p->w + 32 * (j + i) + 16 * h, (set & 2) - 1);
        }
        p->d[j + i] = d;
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
        p->d[j + i] = d;
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

/* Name, struct and function, weights per block, kind. A super-block is one segment; a row of
 * smaller blocks may end within a segment. */
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
        put_ones(p, kind);                                                                         \
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

static const block_format block_formats[QT_COUNT] = {
    SMALL_FORMATS(FORMAT_ROW)
    SUPER_FORMATS(FORMAT_ROW)
};

#endif
