/* x86_avx2_small.c - tiles of 8 rows and up to 6 tokens for processors with AVX2, for the types
 * with small weights: 32 products per instruction instead of the 16 of x86_avx2_wide.c.
 *
 * maddubs multiplies unsigned bytes by signed ones and adds two products in 16 bits. Weights are
 * made unsigned, u = w + offset; activations stay signed. The products of a block are summed in
 * words, modulo 2^16. Each sum starts at minus the offset times the sum of the activations, which
 * is stored with them; one madd converts the result to dwords. A weight is a code of 1 to 6 bits
 * minus a constant, or from a table (largest magnitude: MXFP4 and NVFP4 12, IQ3_S 15, IQ1 9), and
 * quantise() ensures |q| <= 127. So with any bytes in a file these values fit in 16 bits:
 *
 *   sum of two products, where maddubs would saturate:     2 * 64 * 127 = 16256, u <= 64
 *   final words, signed weights, offset 16:               16 * 16 * 127 = 32512, |w| <= 16
 *   final words of a half block, offset 32:                8 * 32 * 127 = 32512, |w| <= 32
 *   final words, unsigned weights:                        16 * 15 * 127 = 30480, w <= 15
 *   two sums of half a block each (WIDE_LONG_MINIMUM):     8 * 31 * 127 = 31496, w <= 31
 *
 * If the halves of a block have integer scales, the madd multiplies by them, so a block needs one
 * float instead of two. Its dwords are below 2 * 32512 * 128 < 2^23; their sums, by the contract,
 * are at most 2^24. */
#include <immintrin.h>
#include <stdint.h>

enum { OFFSET = 16, HALVES_OFFSET = 32 };

#include "engine/cpu/x86_unsigned8.h"

/* ---- layouts ------------------------------------------------------------------------------- */

/* Stores minus the offset times the sums of the activations of a word: bytes 0 and 1 of every four
 * in the first word, bytes 2 and 3 in the second. */
static inline void put_starts(int8_t *dst, const act_row *x, int b, wide_kind kind)
{
    const __m256i q = _mm256_loadu_si256((const void *)(x->q + 32 * b));
    __m256i sum = _mm256_maddubs_epi16(_mm256_set1_epi8((char)offset_of(kind)), q);
    __m128i low, high;

    if (kind_has_minimum(kind)) return;  /* sum_words() starts at 0 */
    sum = _mm256_add_epi16(sum, _mm256_shuffle_epi32(sum, 0x4E));
    sum = _mm256_add_epi16(sum, _mm256_shuffle_epi32(sum, 0xB1));
    sum = _mm256_sub_epi16(_mm256_setzero_si256(), sum);
    low = _mm256_castsi256_si128(sum);
    high = _mm256_extracti128_si256(sum, 1);
    if (kind == WIDE_PLAIN) low = _mm_add_epi16(low, high);
    store_u32((uint8_t *)dst, (uint32_t)_mm_cvtsi128_si32(low));
    store_u32((uint8_t *)dst + 4, (uint32_t)_mm_cvtsi128_si32(high));
}

/* Stores byte i of each dword, an int8, as a pair of int16. */
WIDE_INLINE void put_byte_scales(float *dst, __m256i bytes, int i)
{
    const __m256i upper = _mm256_set1_epi32((int)(0x00800080u | (uint32_t)i << 8 |
                                                  (uint32_t)i << 24));
    const __m256i of_row = _mm256_setr_epi32(0, 0x04000400, 0x08000800, 0x0C000C00,
                                             0, 0x04000400, 0x08000800, 0x0C000C00);
    const __m256i moved = _mm256_shuffle_epi8(bytes, _mm256_add_epi32(upper, of_row));
    _mm256_store_si256((void *)dst, _mm256_srai_epi16(moved, 8));
}

#include "engine/cpu/x86_fill8.h"

/* ---- tiles --------------------------------------------------------------------------------- */

#define TILE_KINDS(X)                                                                              \
    X(plain, WIDE_PLAIN) X(minimum, WIDE_MINIMUM) X(long_minimum, WIDE_LONG_MINIMUM)               \
    X(halves, WIDE_HALVES) X(scaled_halves, WIDE_SCALED_HALVES)
#include "engine/cpu/wide_tile.h"

/* Adds two products to each word. */
WIDE_INLINE __m256i add_products(__m256i words, __m256i rows, __m256i four)
{
    return _mm256_add_epi16(words, _mm256_maddubs_epi16(rows, four));
}

/* Sums both halves of a block in words. */
WIDE_INLINE void sum_words(tile_ints words, const int8_t *weights, const int8_t *q, int w,
                           bool started)
{
    if (started) start_sums(words, q, w, 0);
    add_half(words, weights, q, w, 0, !started);
    add_half(words, weights, q, w, 1, false);
}

/* Multiplies words by the factors of their rows and adds pairs to dwords. */
WIDE_INLINE void widen_words(tile_ints words, __m256i factors, int w)
{
    for (int k = 0; k < w; k++) words[k] = _mm256_madd_epi16(words[k], factors);
}

/* Sums two halves, each multiplied by its own factors. */
WIDE_INLINE void sum_two(tile_ints sum, const int8_t *weights, const int8_t *q, int w, bool started,
                         __m256i low_factors, __m256i high_factors)
{
    tile_ints high;
    if (started) start_sums(high, q, w, 1);
    add_half(high, weights, q, w, 1, !started);
    widen_words(high, high_factors, w);
    in_order();
    if (started) start_sums(sum, q, w, 0);
    add_half(sum, weights, q, w, 0, !started);
    widen_words(sum, low_factors, w);
    for (int k = 0; k < w; k++) sum[k] = _mm256_add_epi32(sum[k], high[k]);
}

WIDE_INLINE void to_floats(tile_vecs v, const tile_ints sum, int w)
{
    for (int k = 0; k < w; k++) v[k][0] = _mm256_cvtepi32_ps(sum[k]);
}

/* Sums one half alone, for halves whose scales are not integers. */
WIDE_INLINE void sum_half(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int half)
{
    tile_ints words;
    start_sums(words, q, w, half);
    add_half(words, weights, q, w, half, false);
    widen_words(words, _mm256_set1_epi16(1), w);
    to_floats(v, words, w);
}

WIDE_INLINE __m256i pairs_at(const float *p)
{
    return _mm256_load_si256((const void *)p);
}

WIDE_INLINE void sum_block(tile_vecs sum, tile_vecs high, const panel *p, const act_chunk *a,
                           int pos, int slot, int w, wide_kind kind)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *weights = p->w[slot], *q = a->q[pos];
    tile_ints ints;

    if (kind == WIDE_HALVES) {
        sum_half(high, weights, q, w, 1);
        high_products(high, p, slot, w);
        in_order();
        sum_half(sum, weights, q, w, 0);
        return;
    }
    if (kind == WIDE_LONG_MINIMUM) {
        sum_two(ints, weights, q, w, false, ones, ones);
    } else if (kind == WIDE_SCALED_HALVES) {
        sum_two(ints, weights, q, w, true, pairs_at(p->lo[slot]), pairs_at(p->hi[slot]));
    } else {
        sum_words(ints, weights, q, w, kind == WIDE_PLAIN);
        widen_words(ints, ones, w);
    }
    to_floats(sum, ints, w);
}

/* ---- the types ----------------------------------------------------------------------------- */

/* Stores bit patterns instead of floats, in the form of put_byte_scales(). */
static void offset_scale_pairs(segment_floats *restrict f, int r, block_parts *restrict p)
{
    add_offset(p, HALVES_OFFSET);
    for (int j = 0; j < LANES; j++) f->t[r][j] = p->d[j];
    for (int j = 0; j < LANES; j++) {
        const uint32_t lo = (uint16_t)p->sc[0][j] * 0x10001u, hi = (uint16_t)p->sc[1][j] * 0x10001u;
        memcpy(&f->lo[r][j], &lo, sizeof lo);
        memcpy(&f->hi[r][j], &hi, sizeof hi);
    }
}

#define WIDE_TYPES(X)                                                                              \
    X(Q4_0, offset_scales, WIDE_PLAIN) X(Q5_0, offset_scales, WIDE_PLAIN)                          \
    X(MXFP4, offset_scales, WIDE_PLAIN)                                                            \
    X(IQ3_S, offset_scales, WIDE_PLAIN) X(IQ1_S, offset_scales, WIDE_PLAIN)                        \
    X(TQ1_0, offset_scales, WIDE_PLAIN) X(TQ2_0, offset_scales, WIDE_PLAIN)                        \
    X(Q1_0, offset_scales, WIDE_PLAIN) X(Q2_0, offset_scales, WIDE_PLAIN)                          \
    X(Q4_1, minimum_scales, WIDE_MINIMUM) X(Q4_K, minimum_scales, WIDE_MINIMUM)                    \
    X(Q5_1, minimum_scales, WIDE_LONG_MINIMUM) X(Q5_K, minimum_scales, WIDE_LONG_MINIMUM)          \
    X(Q3_K, offset_scale_pairs, WIDE_SCALED_HALVES)                                                \
    X(Q6_K, offset_scale_pairs, WIDE_SCALED_HALVES)                                                \
    X(IQ1_M, offset_scale_pairs, WIDE_SCALED_HALVES)                                               \
    X(NVFP4, offset_float_scales, WIDE_HALVES)
#include "engine/cpu/wide_types.h"

/* Thresholds estimated from instruction counts and llvm-mca for Skylake. For a block of eight rows
 * and a token the other kernels take 14 to 16 cycles, tiles 8. Filling a panel takes about 20 with
 * a fill function and 70 to 110 without, once for all tokens. */
void put_avx2_small(kernel_set *s)
{
    wide_put(s, 9, 16);
    put_directly_filled(s, 6);
}
