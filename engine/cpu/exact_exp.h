/* exact_exp.h - exp and what is made of it as the arithmetic contract has them, eight at a time.
 *
 * Every statement is one operation, rounded once; nothing is left to libm. */
#ifndef ENGINE_CPU_EXACT_EXP_H
#define ENGINE_CPU_EXACT_EXP_H

#include "engine/cpu/vec8.h"

/* 1.5 * 2^23. A float of small magnitude added to it is rounded to an integer, ties to even, which
 * then stands in the low bits of the sum. */
#define ROUNDING_MAGIC 12582912.0f

/* 2^n * e^r with n = rint(z / ln 2), |r| <= ln 2 / 2, for z in -87 .. 88 or NaN. n reaches the
 * exponent field by an addition of integers, which stays inside the normal range. */
static inline vec8 exp_inside(vec8 z)
{
    const vec8 magic = vec8_all(ROUNDING_MAGIC);
    const vec8 t = vec8_fma(z, vec8_all(0x1.715476p+0f), magic);         /* log2(e) */
    const vec8 n = vec8_sub(t, magic);
    vec8 r = vec8_fma(n, vec8_all(-0x1.62e430p-1f), z);  /* ln 2, high part */
    r = vec8_fma(n, vec8_all(0x1.05c610p-29f), r);       /* and low part, which is negative */
    vec8 p = vec8_all(0x1.6a23d0p-10f);
    p = vec8_fma(p, r, vec8_all(0x1.123a20p-7f));
    p = vec8_fma(p, r, vec8_all(0x1.5558f2p-5f));
    p = vec8_fma(p, r, vec8_all(0x1.555492p-3f));
    p = vec8_fma(p, r, vec8_all(0x1.fffffcp-2f));
    p = vec8_fma(p, r, vec8_all(1.0f));
    p = vec8_fma(p, r, vec8_all(1.0f));
    return vec8_raise(p, t);
}

/* For any z: clamped to -87 .. 88. The comparisons let NaN pass. */
static inline vec8 exp_clamped(vec8 z)
{
    return exp_inside(vec8_larger(vec8_smaller(z, vec8_all(88.0f)), vec8_all(-87.0f)));
}

/* g / (1 + exp(-z)) with a true division. */
static inline vec8 gated(vec8 g, vec8 z)
{
    const vec8 e = exp_clamped(vec8_sub(vec8_all(-0.0f), z));
    const vec8 below = vec8_add(vec8_all(1.0f), e);
    return vec8_div(g, below);
}

static inline vec8 silu(vec8 g) { return gated(g, g); }

#endif
