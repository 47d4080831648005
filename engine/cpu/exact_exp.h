/* exact_exp.h - exp and gated() of the arithmetic contract, for eight values.
 *
 * Every statement is one operation, rounded once; libm is not used. */
#ifndef ENGINE_CPU_EXACT_EXP_H
#define ENGINE_CPU_EXACT_EXP_H

#include "engine/cpu/vec8.h"

/* 1.5 * 2^23. Adding a float of small magnitude rounds it to an integer, ties to even, in the low
 * bits of the sum. */
#define ROUNDING_MAGIC 12582912.0f

/* Returns 2^n * e^r with n = rint(z / ln 2), |r| <= ln 2 / 2, for z in -87 .. 88 or NaN. An integer
 * addition adds n to the exponent field; the result is always a normal number. */
static inline vec8 exp_inside(vec8 z)
{
    const vec8 magic = vec8_all(ROUNDING_MAGIC);
    const vec8 t = vec8_fma(z, vec8_all(0x1.715476p+0f), magic);         /* log2(e) */
    const vec8 n = vec8_sub(t, magic);
    vec8 r = vec8_fma(n, vec8_all(-0x1.62e430p-1f), z);  /* ln 2, high part */
    r = vec8_fma(n, vec8_all(0x1.05c610p-29f), r);       /* low part, which is negative */
    vec8 p = vec8_all(0x1.6a23d0p-10f);
    p = vec8_fma(p, r, vec8_all(0x1.123a20p-7f));
    p = vec8_fma(p, r, vec8_all(0x1.5558f2p-5f));
    p = vec8_fma(p, r, vec8_all(0x1.555492p-3f));
    p = vec8_fma(p, r, vec8_all(0x1.fffffcp-2f));
    p = vec8_fma(p, r, vec8_all(1.0f));
    p = vec8_fma(p, r, vec8_all(1.0f));
    return vec8_raise(p, t);
}

/* Returns exp(z) for any z, clamped to -87 .. 88; NaN stays NaN. */
static inline vec8 exp_clamped(vec8 z)
{
    return exp_inside(vec8_larger(vec8_smaller(z, vec8_all(88.0f)), vec8_all(-87.0f)));
}

/* Returns g / (1 + exp(-z)), with a division and not a reciprocal. */
static inline vec8 gated(vec8 g, vec8 z)
{
    const vec8 e = exp_clamped(vec8_sub(vec8_all(-0.0f), z));
    const vec8 below = vec8_add(vec8_all(1.0f), e);
    return vec8_div(g, below);
}

static inline vec8 silu(vec8 g) { return gated(g, g); }

#endif
