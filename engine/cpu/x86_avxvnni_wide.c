/* x86_avxvnni_wide.c - tiles of 8 rows and up to 6 tokens for processors with AVX-VNNI.
 *
 * dpbusd multiplies four unsigned bytes by four signed ones and adds the products to 32 bits. So
 * the weights of all types except Q6_K are made unsigned by the same offset, and a block needs one
 * sum, or one for each half. With |q| <= 127 the sum of a block, without its initial value, is
 * within 32 * 128 * 127 < 2^19.
 *
 * Such a small sum is converted to float by a subtraction. It starts at the bits of the float 1.5 *
 * 2^23, whose unit in the last place is 1, and ends as the bits of that float plus the sum,
 * exactly, because floats between 2^23 and 2^24 are the integers. Conversions would share two ports
 * with dpbusd, while subtractions can use a third. */
#include <immintrin.h>
#include <stdint.h>

enum {
    OFFSET = 128, HALVES_OFFSET = 32,
    ZERO_BITS = 0x4B400000,              /* bits of 1.5 * 2^23 */
};

#include "engine/cpu/x86_unsigned8.h"

/* ---- layouts ------------------------------------------------------------------------------- */

static inline void put_starts(int8_t *dst, const act_row *x, int b, wide_kind kind)
{
    const int offset = kind_has_minimum(kind) ? 0 : offset_of(kind);
    int low = offset * x->s[2 * b];
    const int high = offset * x->s[2 * b + 1];
    if (!kind_is_of_halves(kind)) low += high;
    store_u32((uint8_t *)dst, (uint32_t)(ZERO_BITS - low));
    store_u32((uint8_t *)dst + 4, (uint32_t)(ZERO_BITS - high));
}

/* Stores byte i of each dword, an int8, as a float. */
WIDE_INLINE void put_byte_scales(float *dst, __m256i bytes, int i)
{
    const __m256i byte = _mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * i), 24);
    _mm256_store_ps(dst, _mm256_cvtepi32_ps(byte));
}

#include "engine/cpu/x86_fill8.h"

/* ---- tiles --------------------------------------------------------------------------------- */

#define TILE_KINDS(X)                                                                              \
    X(plain, WIDE_PLAIN) X(minimum, WIDE_MINIMUM) X(half_minimums, WIDE_HALF_MINIMUMS)             \
    X(halves, WIDE_HALVES) X(scaled_halves, WIDE_SCALED_HALVES)
#include "engine/cpu/wide_tile.h"

/* Adds four products to each dword. */
WIDE_INLINE __m256i add_products(__m256i sum, __m256i rows, __m256i four)
{
    return _mm256_dpbusd_avx_epi32(sum, rows, four);
}

/* The integer sums of n halves of a block from half `first` on, as floats. */
WIDE_INLINE void sum_halves(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int first,
                            int n)
{
    const __m256 zero = _mm256_castsi256_ps(_mm256_set1_epi32(ZERO_BITS));
    tile_ints sum;
    start_sums(sum, q, w, first);
    add_half(sum, weights, q, w, first, false);
    if (n == 2) add_half(sum, weights, q, w, 1, false);
    for (int k = 0; k < w; k++) v[k][0] = _mm256_sub_ps(_mm256_castsi256_ps(sum[k]), zero);
}

/* Scales of halves are floats for both kinds: integers would need mullo, which is two uops. */
WIDE_INLINE void sum_block(tile_vecs sum, tile_vecs high, const panel *p, const act_chunk *a,
                           int pos, int slot, int w, wide_kind kind)
{
    const int8_t *weights = p->w[slot], *q = a->q[pos];

    if (!kind_is_of_halves(kind)) {
        sum_halves(sum, weights, q, w, 0, 2);
        return;
    }
    sum_halves(high, weights, q, w, 1, 1);
    high_products(high, p, slot, w);
    in_order();
    sum_halves(sum, weights, q, w, 0, 1);
    if (kind == WIDE_SCALED_HALVES)
        for (int k = 0; k < w; k++)
            sum[k][0] = vec_fma(rows_at(p->lo[slot], 0), sum[k][0], high[k][0]);
}

/* ---- the types ----------------------------------------------------------------------------- */

DEFINE_OFFSET_SCALES(offset_half_scales, half_scales, OFFSET)
DEFINE_OFFSET_SCALES(offset_code_scales, half_scales, HALVES_OFFSET)
DEFINE_OFFSET_SCALES(offset_weights, scaled_weights, OFFSET)
DEFINE_OFFSET_SCALES(offset_weights_minimum, scaled_weights_minimum, OFFSET)

#define WIDE_TYPES(X)                                                                              \
    X(Q4_0, offset_scales, WIDE_PLAIN) X(Q5_0, offset_scales, WIDE_PLAIN)                          \
    X(Q8_0, offset_scales, WIDE_PLAIN) X(IQ4_NL, offset_scales, WIDE_PLAIN)                        \
    X(IQ4_XS, offset_scales, WIDE_PLAIN) X(MXFP4, offset_scales, WIDE_PLAIN)                       \
    X(IQ2_XXS, offset_scales, WIDE_PLAIN) X(IQ3_XXS, offset_scales, WIDE_PLAIN)                    \
    X(IQ3_S, offset_scales, WIDE_PLAIN) X(IQ1_S, offset_scales, WIDE_PLAIN)                        \
    X(TQ1_0, offset_scales, WIDE_PLAIN) X(TQ2_0, offset_scales, WIDE_PLAIN)                        \
    X(Q1_0, offset_scales, WIDE_PLAIN) X(Q2_0, offset_scales, WIDE_PLAIN)                          \
    X(Q3_K, offset_weights, WIDE_PLAIN)                                                            \
    X(Q4_1, minimum_scales, WIDE_MINIMUM) X(Q5_1, minimum_scales, WIDE_MINIMUM)                    \
    X(Q4_K, minimum_scales, WIDE_MINIMUM) X(Q5_K, minimum_scales, WIDE_MINIMUM)                    \
    X(Q2_K, offset_weights_minimum, WIDE_HALF_MINIMUMS)                                            \
    X(Q6_K, offset_code_scales, WIDE_SCALED_HALVES)                                                \
    X(IQ2_XS, offset_half_scales, WIDE_HALVES) X(IQ2_S, offset_half_scales, WIDE_HALVES)           \
    X(IQ1_M, offset_half_scales, WIDE_HALVES) X(NVFP4, offset_float_scales, WIDE_HALVES)
#include "engine/cpu/wide_types.h"

/* Thresholds estimated with llvm-mca for Alder Lake. For a block of eight rows the other kernels
 * take 12 to 14 cycles per token plus 10 to 14, tiles 5 to 6 per token. Filling a panel takes 15 to
 * 25 with a fill function and 70 to 105 without; the loops around tiles take 30 if K is 512, 8 if
 * it is 2048. */
void put_avxvnni_wide(kernel_set *s)
{
    wide_put(s, 9, 16);
    put_directly_filled(s, 5);
}
