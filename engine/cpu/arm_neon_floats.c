/* arm_neon_floats.c - NEON kernels for float weights: F32, F16 and BF16.
 *
 * The product of weight i is added to lane i % 32 of its row, in order: 32 weights are one step,
 * and the lanes are eight vectors. Weights are widened exactly and multiplied by one or two tokens.
 * Rows are read in the order of addresses. */
#include <arm_neon.h>
#include <string.h>

#include "engine/cpu/float_types.h"
#include "engine/cpu/isa_sets.h"

#define INLINE static inline __attribute__((always_inline))

enum { STEP = 32, VECTORS = STEP / 4 };

/* Distance of the prefetch to L3: on Neoverse V1 36 GB/s per core instead of 26, for any distance
 * from 16 to 64 KB. It may pass the end of the rows; it cannot fault. */
enum { PREFETCH_AHEAD = 16 * 1024, CACHE_LINE = 64 };

INLINE void prefetch_step(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch((const void *)((uintptr_t)p + PREFETCH_AHEAD + (uintptr_t)i), 0, 1);
}

/* ---- weights ----------------------------------------------------------------------------- */

/* Converts 32 weights at any address to eight vectors. */
typedef void widen_fn(float32x4_t *w, const uint8_t *p);

INLINE void widen_f32(float32x4_t *w, const uint8_t *p)
{
    for (int i = 0; i < VECTORS; i++) w[i] = vreinterpretq_f32_u8(vld1q_u8(p + 16 * i));
}

INLINE void widen_f16(float32x4_t *w, const uint8_t *p)
{
    for (int i = 0; i < VECTORS; i += 2) {
        const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p + 8 * i));
        w[i] = vcvt_f32_f16(vget_low_f16(h));
        w[i + 1] = vcvt_high_f32_f16(h);
    }
}

/* A BF16 is the upper half of an F32. Half of them are shifted and half zipped, to use more
 * pipes. */
INLINE void widen_bf16(float32x4_t *w, const uint8_t *p)
{
    const uint16x8_t zero = vdupq_n_u16(0);
    for (int i = 0; i < VECTORS; i += 2) {
        const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p + 8 * i));
        w[i] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
        w[i + 1] = vreinterpretq_f32_u16(vzip2q_u16(zero, h));
    }
}

/* ---- rows -------------------------------------------------------------------------------- */

/* 32 lanes to 16, 8, 4, then ((p0 + p1) + (p2 + p3)) + 0; the last turns -0 into +0. */
INLINE float fold(const float32x4_t *lane)
{
    float32x4_t p[4];
    for (int i = 0; i < 4; i++) p[i] = vaddq_f32(lane[i], lane[i + 4]);
    for (int i = 0; i < 2; i++) p[i] = vaddq_f32(p[i], p[i + 2]);
    p[0] = vaddq_f32(p[0], p[1]);
    p[0] = vpaddq_f32(p[0], p[0]);
    return vpadds_f32(vget_low_f32(p[0])) + 0.0f;
}

INLINE void multiply_add(float32x4_t *lane, const float32x4_t *w, const float *x)
{
    for (int i = 0; i < VECTORS; i++) lane[i] = vfmaq_f32(lane[i], w[i], vld1q_f32(x + 4 * i));
}

/* Adds the last n < 32 weights of a row, padded with zeros. The padding can only turn a lane from
 * -0 to +0, which the fold does anyway. */
INLINE void add_end(float32x4_t *lane, const uint8_t *row, const float *x, int n, int width,
                    widen_fn *widen)
{
    uint8_t row_end[STEP * sizeof(float)] = { 0 };
    float x_end[STEP] = { 0 };
    float32x4_t w[VECTORS];

    memcpy(row_end, row, (size_t)n * (size_t)width);
    memcpy(x_end, x, (size_t)n * sizeof *x);
    widen(w, row_end);
    multiply_add(lane, w, x_end);
}

/* One row with one or two tokens. */
INLINE void dot_row(float *sums, const uint8_t *row, const act_row *x, int cols, int width,
                    widen_fn *widen)
{
    float32x4_t lane[VECTORS], w[VECTORS];
    int c = 0;

    for (int i = 0; i < VECTORS; i++) lane[i] = vdupq_n_f32(0);
    for (; c + STEP <= cols; c += STEP, row += STEP * width) {
        prefetch_step(row, STEP * width);
        widen(w, row);
        multiply_add(lane, w, x->x + c);
    }
    if (c < cols) add_end(lane, row, x->x + c, cols - c, width, widen);
    *sums = fold(lane);
}

INLINE void dot_row_twice(float *sums, size_t stride, const uint8_t *row, const act_row *x,
                          int cols, int width, widen_fn *widen)
{
    float32x4_t first[VECTORS], second[VECTORS], w[VECTORS];
    int c = 0;

    for (int i = 0; i < VECTORS; i++) first[i] = second[i] = vdupq_n_f32(0);
    for (; c + STEP <= cols; c += STEP, row += STEP * width) {
        prefetch_step(row, STEP * width);
        widen(w, row);
        multiply_add(first, w, x[0].x + c);
        multiply_add(second, w, x[1].x + c);
    }
    if (c < cols) {
        add_end(first, row, x[0].x + c, cols - c, width, widen);
        add_end(second, row, x[1].x + c, cols - c, width, widen);
    }
    sums[0] = fold(first);
    sums[stride] = fold(second);
}

INLINE void dot_floats(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                       const act_row *x, int n_token, int cols, int width, widen_fn *widen)
{
    const size_t stride = (size_t)n_row;
    for (int r = 0; r < n_row; r++) {
        const uint8_t *row = rows + (size_t)r * row_bytes;
        int t = 0;
        for (; t + 2 <= n_token; t += 2)
            dot_row_twice(sums + (size_t)t * stride + r, stride, row, x + t, cols, width, widen);
        if (t < n_token)
            dot_row(sums + (size_t)t * stride + r, row, x + t, cols, width, widen);
    }
}

FLOAT_TYPES(DEFINE_FLOAT_DOT)

void put_neon_floats(kernel_set *s)
{
    FLOAT_TYPES(PUT_FLOAT_DOT)
}
