/* x86_fill8.h - fills panels of eight rows directly from the blocks of MXFP4, Q4_K, Q5_K and Q6_K:
 * the fill_fn of wide.h for tiles of unsigned weights (x86_unsigned8.h).
 *
 * In a prompt an expert has few tokens, so filling a panel takes as long as its tiles. Codes are
 * transposed in packed form, two or four in a byte, and then unpacked, a step of eight rows at a
 * time. Small scales of the eight rows are gathered as dwords in the same way.
 *
 * Weights are made unsigned by OFFSET or HALVES_OFFSET; Q6_K's codes already include it. Define
 * put_byte_scales() before the include. */
#ifndef ENGINE_CPU_X86_FILL8_H
#define ENGINE_CPU_X86_FILL8_H

#include <immintrin.h>

#include "engine/cpu/x86_strides.h"

static_assert(PANEL_ROWS == 8 && SCALE_COPIES == 1 && HALVES_OFFSET == 32, "see above");

/* ---- bytes of eight rows ------------------------------------------------------------------- */

/* 32 bytes of each row: dword s to step[s]. */
WIDE_INLINE void eight_dwords(__m256i step[8], const uint8_t *p, size_t row_bytes)
{
    __m256i row[8];
    for (size_t r = 0; r < 8; r++) row[r] = load256(p + r * row_bytes);
    transpose_dwords(step, row);
}

/* 16 bytes of each row: dword s to step[s]. A register begins with rows i and i + 4. */
WIDE_INLINE void four_dwords(__m256i step[4], const uint8_t *p, size_t row_bytes)
{
    __m256i rows[4], low[2], high[2];
    for (size_t i = 0; i < 4; i++) {
        const __m256i row = _mm256_castsi128_si256(load128(p + i * row_bytes));
        rows[i] = _mm256_inserti128_si256(row, load128(p + (i + 4) * row_bytes), 1);
    }
    for (int i = 0; i < 2; i++) {
        low[i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        high[i] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    step[0] = _mm256_unpacklo_epi64(low[0], low[1]);
    step[1] = _mm256_unpackhi_epi64(low[0], low[1]);
    step[2] = _mm256_unpacklo_epi64(high[0], high[1]);
    step[3] = _mm256_unpackhi_epi64(high[0], high[1]);
}

/* Prefetches like panel_fill(), with a constant number of bytes. */
WIDE_INLINE void prefetch_next(const uint8_t *blocks, size_t row_bytes, size_t segment_bytes)
{
    for (size_t r = 8; r < 16; r++) prefetch_bytes(blocks, r * row_bytes, segment_bytes);
}

WIDE_INLINE void put_step(panel *p, int slot, int s, __m256i weights)
{
    _mm256_store_si256((void *)(p->w[slot] + STEP_BYTES * s), weights);
}

/* Shifts the bits of each byte, right if down > 0, and masks them. The mask must clear the bits
 * that cross into a neighbouring byte. */
WIDE_INLINE __m256i moved_bits(__m256i v, int down, int mask)
{
    const __m256i moved = down > 0 ? _mm256_srli_epi16(v, down) :
                          down < 0 ? _mm256_slli_epi16(v, -down) : v;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* ---- MXFP4 --------------------------------------------------------------------------------- */

static void fill_mxfp4(panel *p, int slot, int stride, const uint8_t *blocks, size_t row_bytes,
                       int n)
{
    const __m128i twice = _mm_setr_epi8(E2M1_TWICE), offset = _mm_set1_epi8((char)OFFSET);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(twice, offset));
    const block_mxfp4 *b = (const void *)blocks;

    prefetch_next(blocks, row_bytes, LANES * sizeof *b);
    for (int j = 0; j < n; j++, b++, slot += stride) {
        __m256i codes[4];
        four_dwords(codes, b->nibbles, row_bytes);
        for (int s = 0; s < 4; s++) {
            put_step(p, slot, s, _mm256_shuffle_epi8(table, moved_bits(codes[s], 0, 15)));
            put_step(p, slot, s + 4, _mm256_shuffle_epi8(table, moved_bits(codes[s], 4, 15)));
        }
        _mm256_store_ps(p->t[slot], exponents_at(&b->e, (ptrdiff_t)row_bytes));
    }
}

/* ---- Q4_K and Q5_K ------------------------------------------------------------------------- */

/* Stores byte i of each dword times the factor, for block i of four. */
WIDE_INLINE void put_four_scales(row_floats *dst, int stride, __m256i bytes, __m256 factor)
{
    for (int i = 0; i < 4; i++) {
        const __m256i byte = _mm256_and_si256(_mm256_srli_epi32(bytes, 8 * i),
                                              _mm256_set1_epi32(255));
        _mm256_store_ps(dst[i * stride], _mm256_mul_ps(_mm256_cvtepi32_ps(byte), factor));
    }
}

/* Stores d, dmin and the 6-bit scales and minimums; those of blocks 4 to 7 are in two fields. */
WIDE_INLINE void put_k_scale_rows(panel *p, int slot, int stride, const uint8_t *blocks,
                                  size_t row_bytes)
{
    const __m256 minus = _mm256_set1_ps(-0.0f);
    __m256i head[4], both, four;
    __m256 d, c;

    four_dwords(head, blocks, row_bytes);
    both = _mm256_packus_epi32(_mm256_and_si256(head[0], _mm256_set1_epi32(0xFFFF)),
                               _mm256_srli_epi32(head[0], 16));
    both = _mm256_permute4x64_epi64(both, 0xD8);
    d = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    c = _mm256_xor_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(both, 1)), minus);

    put_four_scales(p->t + slot, stride, moved_bits(head[1], 0, 0x3F), d);
    put_four_scales(p->c + slot, stride, moved_bits(head[2], 0, 0x3F), c);
    four = moved_bits(head[3], 0, 15);
    put_four_scales(p->t + slot + 4 * stride, stride,
                    _mm256_or_si256(four, moved_bits(head[1], 2, 0x30)), d);
    four = moved_bits(head[3], 4, 15);
    put_four_scales(p->c + slot + 4 * stride, stride,
                    _mm256_or_si256(four, moved_bits(head[2], 2, 0x30)), c);
}

static void fill_q4_k(panel *p, int slot, int stride, const uint8_t *blocks, size_t row_bytes,
                      int n)
{
    const block_q4_k *b = (const void *)blocks;
    (void)n;                             /* is 8 */
    prefetch_next(blocks, row_bytes, sizeof *b);
    for (int i = 0; i < 4; i++) {
        const int pos = slot + 2 * i * stride;
        __m256i codes[8];
        eight_dwords(codes, b->nibbles[i], row_bytes);
        for (int s = 0; s < STEPS; s++) {
            put_step(p, pos, s, moved_bits(codes[s], 0, 15));
            put_step(p, pos + stride, s, moved_bits(codes[s], 4, 15));
        }
    }
    put_k_scale_rows(p, slot, stride, b->d, row_bytes);
}

/* Bit j of `high` is the fifth bit of the codes of block j. */
WIDE_INLINE void put_five_bit_pair(panel *p, int slot, int stride, const uint8_t *nibbles,
                                   size_t row_bytes, const __m256i high[8], int i)
{
    const int pos = slot + 2 * i * stride;
    __m256i codes[8];
    eight_dwords(codes, nibbles, row_bytes);
    for (int s = 0; s < STEPS; s++) {
        put_step(p, pos, s, _mm256_or_si256(moved_bits(codes[s], 0, 15),
                                           moved_bits(high[s], 2 * i - 4, 16)));
        put_step(p, pos + stride, s, _mm256_or_si256(moved_bits(codes[s], 4, 15),
                                                    moved_bits(high[s], 2 * i - 3, 16)));
    }
}

static void fill_q5_k(panel *p, int slot, int stride, const uint8_t *blocks, size_t row_bytes,
                      int n)
{
    const block_q5_k *b = (const void *)blocks;
    __m256i high[8];
    (void)n;                             /* is 8 */
    prefetch_next(blocks, row_bytes, sizeof *b);
    eight_dwords(high, b->high, row_bytes);
    put_five_bit_pair(p, slot, stride, b->nibbles[0], row_bytes, high, 0);
    put_five_bit_pair(p, slot, stride, b->nibbles[1], row_bytes, high, 1);
    put_five_bit_pair(p, slot, stride, b->nibbles[2], row_bytes, high, 2);
    put_five_bit_pair(p, slot, stride, b->nibbles[3], row_bytes, high, 3);
    put_k_scale_rows(p, slot, stride, b->d, row_bytes);
}

/* ---- Q6_K ---------------------------------------------------------------------------------- */

static void fill_q6_k(panel *p, int slot, int stride, const uint8_t *blocks, size_t row_bytes,
                      int n)
{
    const block_q6_k *b = (const void *)blocks;
    __m256i scales[4];
    __m256 d;
    (void)n;                             /* is 8 */

    prefetch_next(blocks, row_bytes, sizeof *b);
    for (int h = 0; h < 2; h++) {
        const int pos = slot + 4 * h * stride;
        __m256i first[8], second[8], top[8];
        eight_dwords(first, b->low[h], row_bytes);
        eight_dwords(second, b->low[h] + 32, row_bytes);
        eight_dwords(top, b->high + 32 * h, row_bytes);
        for (int s = 0; s < STEPS; s++) {
            put_step(p, pos, s, _mm256_or_si256(moved_bits(first[s], 0, 15),
                                               moved_bits(top[s], -4, 0x30)));
            put_step(p, pos + stride, s, _mm256_or_si256(moved_bits(second[s], 0, 15),
                                                        moved_bits(top[s], -2, 0x30)));
            put_step(p, pos + 2 * stride, s, _mm256_or_si256(moved_bits(first[s], 4, 15),
                                                            moved_bits(top[s], 0, 0x30)));
            put_step(p, pos + 3 * stride, s, _mm256_or_si256(moved_bits(second[s], 4, 15),
                                                            moved_bits(top[s], 2, 0x30)));
        }
    }
    four_dwords(scales, (const uint8_t *)b->scales, row_bytes);
    d = halves_at(b->d, (ptrdiff_t)row_bytes);
    for (int j = 0; j < LANES; j++) {
        const int pos = slot + j * stride;
        put_byte_scales(p->lo[pos], scales[j / 2], j % 2 * 2);
        put_byte_scales(p->hi[pos], scales[j / 2], j % 2 * 2 + 1);
        _mm256_store_ps(p->t[pos], d);
    }
}

/* ---- the types ----------------------------------------------------------------------------- */

static fill_fn *const fills[QT_COUNT] = {
    [QT_MXFP4] = fill_mxfp4, [QT_Q4_K] = fill_q4_k, [QT_Q5_K] = fill_q5_k, [QT_Q6_K] = fill_q6_k,
};
#define WIDE_FILL(NAME) fills[QT_##NAME]

/* Sets wide_from of the types with a fill function. */
static void put_directly_filled(kernel_set *s, int from)
{
    for (int type = 0; type < QT_COUNT; type++)
        if (fills[type]) s->of[type].wide_from = from;
}

#endif
