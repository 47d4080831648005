/* numbers.h - made-up inputs and relative errors, for tests of arithmetic. */
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <math.h>

#include "tests/test.h"

/* The larger error; one that is no number is the largest. */
static inline double worse(double a, double b) { return b <= a ? a : isnan(b) ? INFINITY : b; }

/* |got - want| / |want|. Where all of want is 0, so must be all of got. */
static inline double rel_error(const float *got, const double *want, size_t n)
{
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return worse(0.0, diff == 0.0 ? 0.0 : sqrt(diff / norm));
}

static inline float uniform(test_rng *r)                 /* -1 .. 1 */
{
    return (float)((double)(test_rand(r) >> 11) * 0x1p-52 - 1.0);
}

static inline void fill(float *x, size_t n, test_rng *r)
{
    for (size_t i = 0; i < n; i++) x[i] = uniform(r);
}

static inline void wave(float *x, size_t n, double step, double start)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)sin((double)i * step + start);
}

static inline void *room(size_t n, size_t size)
{
    void *p = mem_array(n, size);
    if (!p) CHECK_MSG(false, "no memory for %zu elements of %zu bytes", n, size);
    return p;
}

#endif
