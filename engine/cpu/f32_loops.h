/* f32_loops.h - the two F32 sums that attention and DeltaNet spend their time in.
 *
 * Plain loops in a fixed order that compilers turn into vector code without permission to reorder:
 * the bits do not depend on the vector width. Many short partial sums also keep the rounding error
 * of long sums small. */
#ifndef ENGINE_CPU_F32_LOOPS_H
#define ENGINE_CPU_F32_LOOPS_H

#include <stddef.h>

enum { F32_LANES = 16, F32_TERMS = 8 };

/* Sum of a[i] * b[i]. Lane i % 16 sums its products in order; the upper half of the lanes is added
 * to the lower half until one is left; the last n % 16 products have a sum of their own. */
static inline float f32_dot(const float *a, const float *b, int n)
{
    float lane[F32_LANES] = { 0.0f }, rest = 0.0f;
    int i = 0;
    for (; i + F32_LANES <= n; i += F32_LANES)
        for (int j = 0; j < F32_LANES; j++) lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++) rest += a[i] * b[i];
    for (int j = 0; j < 8; j++) lane[j] += lane[j + 8];
    for (int j = 0; j < 4; j++) lane[j] += lane[j + 4];
    return ((lane[0] + lane[2]) + (lane[1] + lane[3])) + rest;
}

/* y[width] += x[n] m[n, width], rows of m m_stride floats apart: eight terms at a time, summed as
 * a tree, then added to y; the last n % 8 one by one. y does not overlap x or m. */
static inline void f32_add_product(float *restrict y, const float *restrict x,
                                   const float *restrict m, size_t m_stride, int n, int width)
{
    int i = 0;
    for (; i + F32_TERMS <= n; i += F32_TERMS) {
        const float *m0 = m + (size_t)i * m_stride, *m1 = m0 + m_stride, *m2 = m1 + m_stride;
        const float *m3 = m2 + m_stride, *m4 = m3 + m_stride, *m5 = m4 + m_stride;
        const float *m6 = m5 + m_stride, *m7 = m6 + m_stride;
        const float x0 = x[i], x1 = x[i + 1], x2 = x[i + 2], x3 = x[i + 3];
        const float x4 = x[i + 4], x5 = x[i + 5], x6 = x[i + 6], x7 = x[i + 7];
        for (int c = 0; c < width; c++)
            y[c] += ((x0 * m0[c] + x1 * m1[c]) + (x2 * m2[c] + x3 * m3[c])) +
                    ((x4 * m4[c] + x5 * m5[c]) + (x6 * m6[c] + x7 * m7[c]));
    }
    for (; i < n; i++) {
        const float *mi = m + (size_t)i * m_stride, xi = x[i];
        for (int c = 0; c < width; c++) y[c] += xi * mi[c];
    }
}

#endif
