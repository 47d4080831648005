/* arm_dotprod_arranged.c - Q8_0 in an order of its own: four rows side by side.
 *
 * As files have it, a block of Q8_0 is 34 bytes: half of all loads cross words, each block needs a
 * load for its scale, and the activations are loaded again for every row. That costs more than the
 * memory does: 30 GB/s of the 39 that a Neoverse V1 core can read. Here a bundle of four rows is,
 * for every eight blocks,
 *
 *     scales   [block][row]            8 * 4 * 2 bytes
 *     weights  [block][quad][row][4]   8 * 128 bytes; a quad is four weights in succession
 *
 * and less at the end of a row. One sdot multiplies a quad of four rows by the same four
 * activations, so that a register has one sum for each row and nothing is to be added up across it.
 * 38.5 GB/s from memory. As many bytes as before, and the same for a row on average. */
#include <string.h>

#include "engine/cpu/arm_dotprod.h"
#include "engine/cpu/isa_sets.h"
#include "loader/quant_blocks.h"

enum { BUNDLE = 4, LANES = 8, BLOCK_BYTES = BUNDLE * 32, AHEAD = 16 * 1024 };

/* ---- writing --------------------------------------------------------------------------------- */

/* Up to eight blocks of up to four rows; rows that are not there are zeros. Returns the end. */
static uint8_t *arrange_group(uint8_t *to, const uint8_t *from, size_t row_bytes, int n_row, int n)
{
    uint8_t *weights = to + (size_t)n * BUNDLE * sizeof(uint16_t);
    for (int b = 0; b < n; b++)
        for (int r = 0; r < BUNDLE; r++) {
            const block_q8_0 none = { 0 };
            const uint8_t *block = from + (size_t)r * row_bytes + (size_t)b * sizeof none;
            if (r >= n_row) block = (const uint8_t *)&none;
            memcpy(to + (size_t)(b * BUNDLE + r) * sizeof(uint16_t), block, sizeof(uint16_t));
            for (int quad = 0; quad < 8; quad++)
                memcpy(weights + b * BLOCK_BYTES + quad * 16 + r * 4,
                       block + offsetof(block_q8_0, quants) + quad * 4, 4);
        }
    return weights + (size_t)n * BLOCK_BYTES;
}

static void arrange_Q8_0(uint8_t *to, const uint8_t *rows, size_t row_bytes, int n_row, int cols)
{
    for (int r = 0; r < n_row; r += BUNDLE)
        for (int b = 0, left = cols / 32; left > 0; b += LANES, left -= LANES)
            to = arrange_group(to, rows + (size_t)r * row_bytes + (size_t)b * sizeof(block_q8_0),
                               row_bytes, n_row - r, left < LANES ? left : LANES);
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* Sums of four rows: one block, its 32 activations, scales of the rows. */
ARM_INLINE float32x4_t block_values(const uint8_t *p, const int8_t *q, float32x4_t d)
{
    const int8_t *w = (const int8_t *)p;
    const int8x16_t x0 = vld1q_s8(q), x1 = vld1q_s8(q + 16);
    int32x4_t even = vdupq_n_s32(0), odd = vdupq_n_s32(0);

    even = vdotq_laneq_s32(even, vld1q_s8(w), x0, 0);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 16), x0, 1);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 32), x0, 2);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 48), x0, 3);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 64), x1, 0);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 80), x1, 1);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 96), x1, 2);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 112), x1, 3);
    return vmulq_f32(d, vcvtq_f32_s32(vaddq_s32(even, odd)));
}

/* Adds n blocks to their lanes; n is a constant. A prefetch or two goes with each block: all at
 * once they would fill the queues, 33 instead of 38.5 GB/s. */
ARM_INLINE const uint8_t *add_group(float32x4_t lane[LANES], const uint8_t *p, const int8_t *q,
                                    const float *dx, int n)
{
    const uint8_t *weights = p + (size_t)n * BUNDLE * sizeof(uint16_t);

    prefetch_line(weights + n * BLOCK_BYTES - CACHE_LINE + AHEAD);
#pragma GCC unroll 8
    for (int b = 0; b < n; b++) {
        const uint8_t *block = weights + b * BLOCK_BYTES;
        const float16x4_t d = vreinterpret_f16_u8(vld1_u8(p + 8 * b));
        prefetch_line(p + b * BLOCK_BYTES + AHEAD);
        prefetch_line(p + b * BLOCK_BYTES + CACHE_LINE + AHEAD);
        lane[b] = vfmaq_n_f32(lane[b], block_values(block, q + 32 * b, vcvt_f32_f16(d)), dx[b]);
    }
    return weights + n * BLOCK_BYTES;
}

/* The same for the end of a row. */
static const uint8_t *add_rest(float32x4_t lane[LANES], const uint8_t *p, const int8_t *q,
                               const float *dx, int n)
{
    switch (n) {
    case 1: return add_group(lane, p, q, dx, 1);
    case 2: return add_group(lane, p, q, dx, 2);
    case 3: return add_group(lane, p, q, dx, 3);
    case 4: return add_group(lane, p, q, dx, 4);
    case 5: return add_group(lane, p, q, dx, 5);
    case 6: return add_group(lane, p, q, dx, 6);
    case 7: return add_group(lane, p, q, dx, 7);
    default: return p;
    }
}

/* As lanes_fold(), for four rows. */
ARM_INLINE float32x4_t fold(const float32x4_t lane[LANES])
{
    const float32x4_t p0 = vaddq_f32(lane[0], lane[4]), p1 = vaddq_f32(lane[1], lane[5]);
    const float32x4_t p2 = vaddq_f32(lane[2], lane[6]), p3 = vaddq_f32(lane[3], lane[7]);
    return vaddq_f32(vaddq_f32(vaddq_f32(p0, p1), vaddq_f32(p2, p3)), vdupq_n_f32(0));
}

static float32x4_t dot_bundle(const uint8_t *p, const act_row *x, int n_block)
{
    float32x4_t lane[LANES];
    const int8_t *q = x->q;
    const float *dx = x->dx;
    int left = n_block;

    for (int i = 0; i < LANES; i++) lane[i] = vdupq_n_f32(0);
    for (; left >= LANES; left -= LANES, q += LANES * 32, dx += LANES)
        p = add_group(lane, p, q, dx, LANES);
    if (left > 0) {
        float32x4_t copy[LANES];         /* lanes that have an address would leave the registers */
        memcpy(copy, lane, sizeof copy);
        add_rest(copy, p, q, dx, left);
        return fold(copy);
    }
    return fold(lane);
}

static void dot_Q8_0(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                     const act_row *x, int n_token, int cols)
{
    for (int r = 0; r < n_row; r += BUNDLE)
        for (int t = 0; t < n_token; t++) {
            const float32x4_t four = dot_bundle(rows + (size_t)r * row_bytes, x + t, cols / 32);
            float *to = sums + (size_t)t * (size_t)n_row + r;
            if (n_row - r >= BUNDLE) {
                vst1q_f32(to, four);
            } else {
                float some[BUNDLE];
                vst1q_f32(some, four);
                memcpy(to, some, (size_t)(n_row - r) * sizeof *to);
            }
        }
}

void put_dotprod_arranged(kernel_set *s)
{
    s->of[QT_Q8_0].arranged = (arrangement){ BUNDLE, arrange_Q8_0, dot_Q8_0 };
}
