/* arm_i8mm_wide.c - tiles of 8 rows and up to 6 tokens for processors with smmla.
 *
 * smmla multiplies eight columns of two rows by two tokens. Four of them are a block, and the
 * register then has [row 0: token 0, token 1 | row 1: token 0, token 1]. So pairs of rows and pairs
 * of tokens are interleaved in runs of eight bytes, and their floats are stored in the layout of
 * that register. */
#include <arm_neon.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 8, ROW_VECTORS = PANEL_ROWS / 2,
    WEIGHT_BYTES = 32 * PANEL_ROWS,      /* [step][pair][16] */
    SCALE_COPIES = 2,                    /* [r0 r0 r1 r1] */
    STRIP_TOKENS = 2, TILE_STRIPS = 3,
    ACT_BYTES = 64,                      /* [step][16] */
    ACT_FLOATS = 4,                      /* [t0 t1 t0 t1] */
};

#include "engine/cpu/wide.h"
#include "engine/cpu/arm_wide.h"

/* ---- layouts ------------------------------------------------------------------------------- */

/* Interleaves 32 bytes of two rows, or of two tokens, in runs of eight; steps are `apart` bytes
 * apart. */
WIDE_INLINE void put_pair(int8_t *dst, int apart, const int8_t *first, const int8_t *second)
{
    for (int h = 0; h < 2; h++, dst += 2 * apart) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + 16 * h));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second + 16 * h));
        vst1q_s8(dst, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
        vst1q_s8(dst + apart, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
}

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    for (int i = 0; i < ROW_VECTORS; i++, parts += 2)
        put_pair(w + 16 * i, 16 * ROW_VECTORS, parts[0].w + 32 * j, parts[1].w + 32 * j);
}

/* Stores the numbers of four blocks of two tokens to slots `apart` floats apart. */
WIDE_INLINE void put_pair_floats(float *dst, size_t apart, float32x4_t first, float32x4_t second)
{
    const float64x2_t low = vreinterpretq_f64_f32(vzip1q_f32(first, second));
    const float64x2_t high = vreinterpretq_f64_f32(vzip2q_f32(first, second));
    vst1q_f32(dst, vreinterpretq_f32_f64(vdupq_laneq_f64(low, 0)));
    vst1q_f32(dst + apart, vreinterpretq_f32_f64(vdupq_laneq_f64(low, 1)));
    vst1q_f32(dst + 2 * apart, vreinterpretq_f32_f64(vdupq_laneq_f64(high, 0)));
    vst1q_f32(dst + 3 * apart, vreinterpretq_f32_f64(vdupq_laneq_f64(high, 1)));
}

/* Sums of the activations of four blocks, and of their halves 0 or 1. */
WIDE_INLINE float32x4_t block_sums(const int16_t *s)
{
    return vcvtq_f32_s32(vpaddlq_s16(vld1q_s16(s)));
}

WIDE_INLINE float32x4_t half_sums(const int16_t *s, int half)
{
    const int16x4x2_t halves = vld2_s16(s);
    return vcvtq_f32_s32(vmovl_s16(halves.val[half]));
}

/* The limits are the registers that a block of the kind needs. */
static int tile_strips(wide_kind kind, int left)
{
    return min_int(left, kind == WIDE_PLAIN ? 3 : 2);
}

static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind)
{
    const act_row *x0 = &x[0], *x1 = &x[n_token - 1];
    const int per_lane = lane_blocks(n, 0);
    const size_t apart = (size_t)(per_lane * w * ACT_FLOATS);

    for (int i = 0; i < per_lane; i++) {
        for (int h = 0; h < LANES; h += 4) {
            const int b = b0 + LANES * i + h, pos = act_at(first, w, k, h * per_lane + i);
            const int16_t *s0 = x0->s + 2 * b, *s1 = x1->s + 2 * b;
            for (int j = 0; j < 4; j++)
                put_pair(a->q[pos + j * per_lane * w], 16, x0->q + 32 * (b + j),
                         x1->q + 32 * (b + j));
            put_pair_floats(a->dx[pos], apart, vld1q_f32(x0->dx + b), vld1q_f32(x1->dx + b));
            if (kind == WIDE_MINIMUM)
                put_pair_floats(a->s[pos], apart, block_sums(s0), block_sums(s1));
            if (kind == WIDE_HALF_MINIMUMS) {
                put_pair_floats(a->s[pos], apart, half_sums(s0, 0), half_sums(s1, 0));
                put_pair_floats(a->s_hi[pos], apart, half_sums(s0, 1), half_sums(s1, 1));
            }
        }
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

WIDE_INLINE vec tokens_at(const float *p, int k) { return vld1q_f32(p + 4 * k); }

#define TILE_WIDTHS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__)
#include "engine/cpu/wide_tile.h"

WIDE_INLINE void sum_halves(tile_vecs v, const int8_t *weights, const int8_t *q, int w, int first,
                            int n)
{
    int32x4_t sum[TILE_STRIPS][ROW_VECTORS];
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) sum[k][i] = start_sum();
    for (int step = 2 * first; step < 2 * (first + n); step++) {
        int8x16_t rows[ROW_VECTORS];
        for (int i = 0; i < ROW_VECTORS; i++)
            rows[i] = vld1q_s8(weights + 16 * (step * ROW_VECTORS + i));
        for (int k = 0; k < w; k++) {
            const int8x16_t tokens = vld1q_s8(q + ACT_BYTES * k + 16 * step);
            for (int i = 0; i < ROW_VECTORS; i++)
                sum[k][i] = vmmlaq_s32(sum[k][i], rows[i], tokens);
        }
        in_order();
    }
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) v[k][i] = sum_value(sum[k][i]);
}

#include "engine/cpu/wide_types.h"

/* Thresholds measured on Neoverse V1. For types with expensive unpacking, shared by all tokens,
 * wide kernels are faster from fewer tokens on. For types whose tiles need two sums or four scales,
 * or whose other kernel is fast with four tokens, from more. */
void put_i8mm_wide(kernel_set *s)
{
    static const quant_type early[] = { QT_Q3_K, QT_IQ4_XS }, late[] = { QT_Q4_K, QT_Q5_K };
    wide_put(s, 6, 6);
    for (size_t i = 0; i < sizeof early / sizeof early[0]; i++) s->of[early[i]].wide_from = 5;
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) s->of[late[i]].wide_from = 7;
    s->of[QT_Q2_K].wide_from = 8;
}
