/* x86_avx2_wide.c - tiles of 8 rows and up to 6 tokens for processors with AVX2: the types whose
 * weights are too large for x86_avx2_small.c, and floats.
 *
 * Weights and activations are widened to 16 bits: madd multiplies pairs of them and adds the two
 * products in 32 bits, which cannot overflow. Weights are stored as [step][row][2], with two
 * columns per step. */
#include <immintrin.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 8, ROW_VECTORS = 1,
    WEIGHT_BYTES = 64 * PANEL_ROWS,
    SCALE_COPIES = 1,
    STRIP_TOKENS = 1, TILE_STRIPS = 6,
    ACT_BYTES = 64,
    ACT_FLOATS = 1,
    HALF_STEPS = 8, STEP_BYTES = 32,
};

#include "engine/cpu/wide.h"
#include "engine/cpu/x86_wide8.h"

/* ---- layouts ------------------------------------------------------------------------------- */

WIDE_INLINE __m256i load_wide(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p));
}

/* Stores one half of a block. */
WIDE_INLINE void put_half(int8_t *dst, const block_parts *parts, int pos)
{
    __m256i row[8], step[8];
    for (int r = 0; r < 8; r++) row[r] = load_wide(parts[r].w + pos);
    transpose_dwords(step, row);
    for (int s = 0; s < HALF_STEPS; s++)
        _mm256_store_si256((void *)(dst + STEP_BYTES * s), step[s]);
}

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    for (int h = 0; h < 2; h++) put_half(w + HALF_STEPS * STEP_BYTES * h, parts, 32 * j + 16 * h);
}

/* The limits are the registers that a block of the kind needs. */
static int tile_strips(wide_kind kind, int left)
{
    return left >= 6 && kind != WIDE_HALVES ? 6 : left >= 3 ? 4 : left;
}

static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind)
{
    (void)n_token;                       /* is 1 */
    for (int j = 0; j < n; j++) {
        const int pos = act_at(first, w, k, slot_of(n, j));
        for (int h = 0; h < 2; h++)
            _mm256_store_si256((void *)(a->q[pos] + 32 * h),
                               load_wide(x->q + 32 * (b0 + j) + 16 * h));
        put_act_floats(a, pos, x, b0 + j, kind);
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

#define TILE_WIDTHS(X, ...)                                                                        \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(4, __VA_ARGS__) X(6, __VA_ARGS__)
#include "engine/cpu/wide_tile.h"

WIDE_INLINE void add_step(__m256i sum[TILE_STRIPS], const int8_t *weights, const int8_t *q, int w,
                          int step)
{
    const __m256i rows = _mm256_load_si256((const void *)(weights + STEP_BYTES * step));
    for (int k = 0; k < w; k++) {
        const __m256i two = _mm256_set1_epi32((int)load_u32(q + ACT_BYTES * k + 4 * step));
        sum[k] = _mm256_add_epi32(sum[k], _mm256_madd_epi16(rows, two));
        __asm__("" : "+x"(sum[k]));      /* stops gcc from delaying the additions */
    }
    in_order();
}

/* Unrolled by hand: compilers do not unroll so far and copy registers instead. */
WIDE_INLINE void add_half(__m256i sum[TILE_STRIPS], const int8_t *weights, const int8_t *q, int w,
                          int half)
{
    add_step(sum, weights, q, w, HALF_STEPS * half);
    add_step(sum, weights, q, w, HALF_STEPS * half + 1);
    add_step(sum, weights, q, w, HALF_STEPS * half + 2);
    add_step(sum, weights, q, w, HALF_STEPS * half + 3);
    add_step(sum, weights, q, w, HALF_STEPS * half + 4);
    add_step(sum, weights, q, w, HALF_STEPS * half + 5);
    add_step(sum, weights, q, w, HALF_STEPS * half + 6);
    add_step(sum, weights, q, w, HALF_STEPS * half + 7);
}

WIDE_INLINE void sum_halves(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int first,
                            int n)
{
    __m256i sum[TILE_STRIPS];
    for (int k = 0; k < w; k++) sum[k] = _mm256_setzero_si256();
    add_half(sum, weights, q, w, first);
    if (n == 2) add_half(sum, weights, q, w, 1);
    for (int k = 0; k < w; k++) v[k][0] = _mm256_cvtepi32_ps(sum[k]);
}

enum { VEC_FLOATS = 8, FLOAT_ROWS = 2 };
#include "engine/cpu/wide_floats.h"

#define WIDE_FILL(NAME) NULL
#define WIDE_TYPES(X)                                                                              \
    X(Q8_0, plain_scales, WIDE_PLAIN) X(IQ4_NL, plain_scales, WIDE_PLAIN)                          \
    X(IQ4_XS, plain_scales, WIDE_PLAIN)                                                            \
    X(IQ2_XXS, plain_scales, WIDE_PLAIN) X(IQ3_XXS, plain_scales, WIDE_PLAIN)                      \
    X(Q2_K, scaled_weights_minimum, WIDE_HALF_MINIMUMS)                                            \
    X(IQ2_XS, half_scales, WIDE_HALVES) X(IQ2_S, half_scales, WIDE_HALVES)
#include "engine/cpu/wide_types.h"

void put_avx2_wide(kernel_set *s)
{
    wide_put(s, 12, 24);
    wide_put_floats(s, 8);
}
