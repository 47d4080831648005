/* f32_loops.h - products of small F32 matrices, the hot loops of attention and DeltaNet.
 *
 * A sum is divided into runs of F32_TERMS terms. Each run is a chain of fmas that starts at zero
 * and is added to y at its end, so rounding errors grow with the length of a run plus the number of
 * runs. Columns are the lanes of vectors and independent, so the bits do not depend on the width of
 * vectors or on the number of rows and columns that are computed together. */
#ifndef ENGINE_CPU_F32_LOOPS_H
#define ENGINE_CPU_F32_LOOPS_H

#include <stddef.h>

#include "engine/cpu/vec8.h"

enum { F32_TERMS = 32 };

#define F32_INLINE static inline __attribute__((always_inline))

/* Partial sums of one run: [rows][vecs] of eight columns, at most 8 vectors. Callers pass constant
 * rows and vecs, so that the sums stay in registers. */
typedef struct f32_sums { vec8 of[8]; } f32_sums;

F32_INLINE void f32_clear(f32_sums *s, int rows, int vecs)
{
    for (int i = 0; i < rows * vecs; i++) s->of[i] = vec8_all(0.0f);
}

F32_INLINE void f32_add_sums(float *restrict y, size_t y_stride, const f32_sums *s, int rows,
                             int vecs)
{
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++) {
            float *dst = y + (size_t)r * y_stride + 8 * v;
            vec8_store(dst, vec8_add(vec8_load(dst), s->of[r * vecs + v]));
        }
}

/* Adds term k of four; factors has the four factors of each row. */
F32_INLINE void f32_term(f32_sums *s, const quad *factors, int k, const float *m, int rows,
                         int vecs)
{
    for (int v = 0; v < vecs; v++) {
        const vec8 term = vec8_load(m + 8 * v);
        for (int r = 0; r < rows; r++)
            s->of[r * vecs + v] = vec8_fma_quad(factors[r], k, term, s->of[r * vecs + v]);
    }
}

/* One run: y[rows, 8 * vecs] += x[rows, n] m[n, 8 * vecs]. */
F32_INLINE void f32_tile(float *restrict y, size_t y_stride, const float *restrict x,
                         size_t x_stride, const float *restrict m, size_t m_stride, int n,
                         int rows, int vecs)
{
    f32_sums s;
    int i = 0;
    f32_clear(&s, rows, vecs);
    for (; i + 4 <= n; i += 4, m += 4 * m_stride) {
        quad factors[8];
        for (int r = 0; r < rows; r++) factors[r] = quad_load(x + (size_t)r * x_stride + i);
        f32_term(&s, factors, 0, m, rows, vecs);
        f32_term(&s, factors, 1, m + m_stride, rows, vecs);
        f32_term(&s, factors, 2, m + 2 * m_stride, rows, vecs);
        f32_term(&s, factors, 3, m + 3 * m_stride, rows, vecs);
    }
    for (; i < n; i++, m += m_stride)
        for (int v = 0; v < vecs; v++)
            for (int r = 0; r < rows; r++)
                s.of[r * vecs + v] = vec8_fma_all(x[(size_t)r * x_stride + (size_t)i],
                                                  vec8_load(m + 8 * v), s.of[r * vecs + v]);
    f32_add_sums(y, y_stride, &s, rows, vecs);
}

/* f32_tile() with x transposed, [n, rows], and four rows, whose factors are contiguous. */
F32_INLINE void f32_tile_transposed(float *restrict y, size_t y_stride, const float *restrict x,
                                    size_t x_stride, const float *restrict m, size_t m_stride,
                                    int n, int vecs)
{
    f32_sums s;
    f32_clear(&s, 4, vecs);
    for (int i = 0; i < n; i++, x += x_stride, m += m_stride) {
        const quad factors = quad_load(x);
        for (int v = 0; v < vecs; v++) {
            const vec8 term = vec8_load(m + 8 * v);
            for (int r = 0; r < 4; r++)
                s.of[r * vecs + v] = vec8_fma_quad(factors, r, term, s.of[r * vecs + v]);
        }
    }
    f32_add_sums(y, y_stride, &s, 4, vecs);
}

/* One run for all rows of 16 columns, four rows at a time. */
F32_INLINE void f32_columns(float *restrict y, size_t y_stride, const float *restrict x,
                            size_t x_stride, const float *restrict m, size_t m_stride, int rows,
                            int n)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * x_stride, y += 4 * y_stride)
        f32_tile(y, y_stride, x, x_stride, m, m_stride, n, 4, 2);
    for (; r < rows; r++, x += x_stride, y += y_stride)
        f32_tile(y, y_stride, x, x_stride, m, m_stride, n, 1, 2);
}

/* One run for columns that do not fill a vector. */
F32_INLINE void f32_ragged(float *restrict y, size_t y_stride, const float *restrict x,
                           size_t x_stride, const float *restrict m, size_t m_stride, int rows,
                           int n, int width)
{
    for (int r = 0; r < rows; r++, x += x_stride, y += y_stride)
        for (int c = 0; c < width; c++) {
            float sum = 0.0f;
            for (int i = 0; i < n; i++) sum = fmaf(x[i], m[(size_t)i * m_stride + (size_t)c], sum);
            y[c] += sum;
        }
}

/* y[rows, width] += x[rows, n] m[n, width]. y overlaps neither x nor m. */
static inline void f32_add_product(float *restrict y, size_t y_stride, const float *restrict x,
                                   size_t x_stride, const float *restrict m, size_t m_stride,
                                   int rows, int n, int width)
{
    for (int i = 0; i < n; i += F32_TERMS, x += F32_TERMS, m += F32_TERMS * m_stride) {
        const int n_here = n - i < F32_TERMS ? n - i : F32_TERMS;
        int c = 0;
        if (rows == 1)
            for (; c + 64 <= width; c += 64)
                f32_tile(y + c, 0, x, 0, m + c, m_stride, n_here, 1, 8);
        for (; c + 16 <= width; c += 16)
            f32_columns(y + c, y_stride, x, x_stride, m + c, m_stride, rows, n_here);
        f32_ragged(y + c, y_stride, x, x_stride, m + c, m_stride, rows, n_here, width - c);
    }
}

/* Returns the sum of squares in double; the squares are exact. Value i is added to lane i % 16; the
 * upper half of the lanes is added to the lower half until one is left. */
static inline double f64_squares(const float *x, int n)
{
    squares8 low = squares8_none(), high = low;
    double lane[16];
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        low = squares8_add(low, vec8_load(x + i));
        high = squares8_add(high, vec8_load(x + i + 8));
    }
    squares8_store(lane, low);
    squares8_store(lane + 8, high);
    for (int j = 0; i + j < n; j++) lane[j] += (double)x[i + j] * x[i + j];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

#endif
