/* x86_avx512_wide.c - tiles of 16 rows and up to 12 tokens for processors with AVX-512 VNNI.
 *
 * dpbusd multiplies four unsigned bytes by four signed ones. Activations are made unsigned, q +
 * 128, and sums start at -128 times the sum of the weights, which is stored with the weights. Sums
 * cannot overflow: |sum| <= 32 * 255 * 128 < 2^21. */
#include <immintrin.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 16, ROW_VECTORS = 1,
    WEIGHT_BYTES = 32 * PANEL_ROWS + 2 * 64,     /* [step][row][4], then the starts of the halves */
    SCALE_COPIES = 1,
    STRIP_TOKENS = 1, TILE_STRIPS = 12,
    ACT_BYTES = 32,
    ACT_FLOATS = 1,
};

#include "engine/cpu/wide.h"
#include "engine/cpu/x86_wide.h"

/* ---- layouts ------------------------------------------------------------------------------- */

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    const __m512i unsigned_128 = _mm512_set1_epi8(-128);
    __m512i step[STEPS], times_128[2] = { _mm512_setzero_si512(), _mm512_setzero_si512() };

    transpose_rows(step, parts, j);
    for (int s = 0; s < STEPS; s++) {
        _mm512_store_si512((void *)(w + STEP_BYTES * s), step[s]);
        times_128[s / 4] = _mm512_dpbusd_epi32(times_128[s / 4], unsigned_128, step[s]);
    }
    for (int h = 0; h < 2; h++)
        _mm512_store_si512((void *)(w + STEP_BYTES * (STEPS + h)),
                           _mm512_sub_epi32(_mm512_setzero_si512(), times_128[h]));
}

/* The limits are the registers that a block of the kind needs. */
static int tile_strips(wide_kind kind, int left)
{
    return left >= 12 && kind != WIDE_HALVES ? 12 : left >= 8 ? 8 : left >= 3 ? 4 : left;
}

static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind)
{
    const __m256i sign = _mm256_set1_epi8(-128);
    (void)n_token;                       /* is 1 */
    for (int j = 0; j < n; j++) {
        const int pos = act_at(first, w, k, slot_of(n, j));
        const __m256i q = _mm256_loadu_si256((const void *)(x->q + 32 * (b0 + j)));
        _mm256_store_si256((void *)a->q[pos], _mm256_xor_si256(q, sign));
        put_act_floats(a, pos, x, b0 + j, kind);
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

#define TILE_WIDTHS(X, ...)                                                                        \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(4, __VA_ARGS__) X(8, __VA_ARGS__) X(12, __VA_ARGS__)
#include "engine/cpu/wide_tile.h"

WIDE_INLINE __m512i step_at(const int8_t *weights, int step)
{
    return _mm512_load_si512((const void *)(weights + STEP_BYTES * step));
}

WIDE_INLINE void add_step(__m512i sum[TILE_STRIPS], const int8_t *weights, const int8_t *q, int w,
                          int step)
{
    const __m512i rows = step_at(weights, step);
    for (int k = 0; k < w; k++) {
        const __m512i four = _mm512_set1_epi32((int)load_u32(q + ACT_BYTES * k + 4 * step));
        sum[k] = _mm512_dpbusd_epi32(sum[k], four, rows);
    }
    in_order();
}

/* Unrolled by hand: compilers do not unroll so far and copy registers instead. */
WIDE_INLINE void add_half(__m512i sum[TILE_STRIPS], const int8_t *weights, const int8_t *q, int w,
                          int half)
{
    add_step(sum, weights, q, w, 4 * half);
    add_step(sum, weights, q, w, 4 * half + 1);
    add_step(sum, weights, q, w, 4 * half + 2);
    add_step(sum, weights, q, w, 4 * half + 3);
}

WIDE_INLINE void sum_halves(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int first,
                            int n)
{
    __m512i start = step_at(weights, STEPS + first), sum[TILE_STRIPS];
    if (n == 2) start = _mm512_add_epi32(start, step_at(weights, STEPS + 1));
    for (int k = 0; k < w; k++) sum[k] = start;
    add_half(sum, weights, q, w, first);
    if (n == 2) add_half(sum, weights, q, w, 1);
    for (int k = 0; k < w; k++) v[k][0] = _mm512_cvtepi32_ps(sum[k]);
}

enum { VEC_FLOATS = 16, FLOAT_ROWS = 4 };
#include "engine/cpu/wide_floats.h"
#include "engine/cpu/wide_types.h"

void put_avx512_wide(kernel_set *s)
{
    wide_put(s, 9, 16);
    wide_put_floats(s, 8);
}
