/* arm_dotprod_wide.c - tiles of 8 rows and up to 6 tokens for processors with sdot.
 *
 * sdot by element multiplies four bytes of each of four rows by the same four bytes of a token, so
 * a sum is a vector of four rows and one token. Weights are stored as [step][row][4] with four
 * columns per step; activations keep their order, 32 bytes per block. */
#include <arm_neon.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 8, ROW_VECTORS = PANEL_ROWS / 4,
    WEIGHT_BYTES = 32 * PANEL_ROWS,
    SCALE_COPIES = 1,
    STRIP_TOKENS = 1, TILE_STRIPS = 6,
    ACT_BYTES = 32,
    ACT_FLOATS = 1,
};

#define WIDE_ACTS_AS_THEY_ARE
#include "engine/cpu/wide.h"
#include "engine/cpu/arm_wide.h"

/* ---- layouts ------------------------------------------------------------------------------- */

/* Stores four steps of four rows, 16 bytes of each row. */
WIDE_INLINE void put_quad(int8_t *dst, const int8_t *const row[4])
{
    int32x4_t r[4];
    int64x2_t even[2], odd[2];
    for (int i = 0; i < 4; i++) r[i] = vreinterpretq_s32_s8(vld1q_s8(row[i]));
    for (int i = 0; i < 2; i++) {
        even[i] = vreinterpretq_s64_s32(vtrn1q_s32(r[2 * i], r[2 * i + 1]));
        odd[i] = vreinterpretq_s64_s32(vtrn2q_s32(r[2 * i], r[2 * i + 1]));
    }
    vst1q_s8(dst, vreinterpretq_s8_s64(vtrn1q_s64(even[0], even[1])));
    vst1q_s8(dst + 4 * PANEL_ROWS, vreinterpretq_s8_s64(vtrn1q_s64(odd[0], odd[1])));
    vst1q_s8(dst + 8 * PANEL_ROWS, vreinterpretq_s8_s64(vtrn2q_s64(even[0], even[1])));
    vst1q_s8(dst + 12 * PANEL_ROWS, vreinterpretq_s8_s64(vtrn2q_s64(odd[0], odd[1])));
}

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    for (int i = 0; i < ROW_VECTORS; i++) {
        for (int h = 0; h < 2; h++) {
            const int8_t *row[4];
            for (int r = 0; r < 4; r++) row[r] = parts[4 * i + r].w + 32 * j + 16 * h;
            put_quad(w + 16 * PANEL_ROWS * h + 16 * i, row);
        }
    }
}

/* The limits are the registers that a block of the kind needs. */
static int tile_strips(wide_kind kind, int left)
{
    return left >= 6 && kind == WIDE_PLAIN ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* ---- tiles --------------------------------------------------------------------------------- */

WIDE_INLINE vec tokens_at(const float *p, int k) { return vdupq_n_f32(p[k]); }

#define TILE_WIDTHS(X, ...)                                                                        \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(4, __VA_ARGS__) X(6, __VA_ARGS__)
#include "engine/cpu/wide_tile.h"

WIDE_INLINE int32x4_t sum_half(int32x4_t sum, const int8x16_t w[4], int8x16_t q)
{
    sum = vdotq_laneq_s32(sum, w[0], q, 0);
    sum = vdotq_laneq_s32(sum, w[1], q, 1);
    sum = vdotq_laneq_s32(sum, w[2], q, 2);
    return vdotq_laneq_s32(sum, w[3], q, 3);
}

WIDE_INLINE void sum_halves(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int first,
                            int n)
{
    int32x4_t sum[TILE_STRIPS][ROW_VECTORS];
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) sum[k][i] = start_sum();
    for (int h = first; h < first + n; h++) {
        for (int i = 0; i < ROW_VECTORS; i++) {
            int8x16_t rows[4];
            for (int step = 0; step < 4; step++)
                rows[step] = vld1q_s8(weights + 16 * ((4 * h + step) * ROW_VECTORS + i));
            for (int k = 0; k < w; k++)
                sum[k][i] = sum_half(sum[k][i], rows, vld1q_s8(q + ACT_BYTES * k + 16 * h));
            in_order();
        }
    }
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) v[k][i] = sum_value(sum[k][i]);
}

enum { VEC_FLOATS = 4, FLOAT_ROWS = 4 };
#include "engine/cpu/wide_floats.h"
#include "engine/cpu/wide_types.h"

/* Thresholds measured on Neoverse V1. For types with expensive unpacking, shared by all tokens,
 * wide kernels are faster from fewer tokens on. */
void put_dotprod_wide(kernel_set *s)
{
    static const quant_type early[] = { QT_Q3_K, QT_Q4_K, QT_Q5_K, QT_Q6_K, QT_IQ4_XS };
    wide_put(s, 10, 10);
    wide_put_floats(s, 8);
    for (size_t i = 0; i < sizeof early / sizeof early[0]; i++) s->of[early[i]].wide_from = 7;
}
