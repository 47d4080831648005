/* contract_mma.cuh - a block of the arithmetic contract on integer tensor cores, for the kernels of
 * contract_few.cuh and contract_tile.cuh.
 *
 * A tensor core's product of 16 rows, 8 tokens and 32 int8 is one block of the contract for each
 * row and token, or two products if each half of a block has its own scale. It adds integers to its
 * accumulator. If that begins with the bits of the float MAGIC, it ends with the bits of MAGIC +
 * sum. If a block has one scale t, v = t * sum is computed as fma(t, MAGIC + sum, -t * MAGIC). Both
 * products are exact, so the result has one rounding and the same bits, except for the sign of a
 * zero, which has no effect. t * MAGIC must be finite; blocks in which it is not use slower code. */
#ifndef CUDA_CONTRACT_MMA_CUH
#define CUDA_CONTRACT_MMA_CUH

#include "cuda/blocks.cuh"
#include "cuda/device.cuh"

static constexpr float MAGIC = 12582912.0f;
static constexpr int MAGIC_BITS = 0x4B400000;

/* ---- what a type needs ----------------------------------------------------------------------- */

template <int TYPE> struct contract_traits {
    typedef format<TYPE> F;
    enum {
        one_scale = !F::by_half,
        minimum = (int)F::kind == (int)BLOCK_MINIMUM,
        folded = one_scale && !minimum,          /* v = fma(t, MAGIC + sum, -t * MAGIC) */
        two_scales = (int)F::kind == (int)BLOCK_TWO_SCALES,
        row_floats = contract_row_floats(TYPE), token_floats = contract_token_floats(TYPE),
        raw_pitch = contract_raw_pitch(TYPE)
    };
    static_assert((int)row_floats == (folded ? 1 : one_scale || two_scales ? 2 : minimum ? 6 : 3) &&
                  (int)token_floats == (!minimum ? 1 : one_scale ? 2 : 3), "floats of a block");
};

/* Stores a block's scales; d * sc and c * m are exact. step: floats from one kind of scale to the
 * next. True: t * MAGIC is not finite. */
template <int TYPE>
static __device__ __forceinline__ bool contract_store_scales(float *to, int step,
                                                             const weight_parts &p)
{
    typedef format<TYPE> F;
    typedef contract_traits<TYPE> T;
    if constexpr (T::two_scales) {
        to[0] = p.f[0];
        to[step] = p.f[1];
    } else if constexpr (T::one_scale) {
        const float t = F::scaled ? __fmul_rn(p.d, (float)p.sc[0]) : p.d;
        to[0] = t;
        if constexpr (T::minimum)
            to[step] = F::scaled ? __fmul_rn(p.c, (float)p.m[0]) : p.c;
        return T::folded && !(fabsf(t) < 0x1p100f);
    } else {
        to[0] = (float)p.sc[0];
        to[step] = (float)p.sc[1];
        to[2 * step] = p.d;
        if constexpr (T::minimum) {
            to[3 * step] = (float)p.m[0];
            to[4 * step] = (float)p.m[1];
            to[5 * step] = p.c;
        }
    }
    return false;
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

/* d[16, 8] = c + a[16, 32] * b[32, 8], int8: with g = lane / 4 and t = lane % 4, a[0] holds columns
 * 4t .. 4t+3 of row g, a[1] of row g+8; a[2], a[3] the same rows, 16 columns later; b[0] holds rows
 * 4t .. 4t+3 of column g, b[1] 16 rows later; d as in mma_16x8x16. c is c0 in column 2t and c1 in
 * 2t+1. UNSIGNED: a is uint8. */
#define MMA_BLOCK(A, TO, C)                                                                        \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." A ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "       \
        "{%8,%9}, " C ";"                                                                          \
        : TO(d[0]), TO(d[1]), TO(d[2]), TO(d[3])                                                   \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c0), "r"(c1))
#define MMA_HALF(A)                                                                                \
    asm("mma.sync.aligned.m16n8k16.row.col.s32." A ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "       \
        "{%7,%8,%7,%8};"                                                                           \
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c0), "r"(c1))
#define MMA_SMALL(A, i, b)                                                                         \
    asm("mma.sync.aligned.m8n8k16.row.col.s32." A ".s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"         \
        : "+r"(d[i % 2 * 2]), "+r"(d[i % 2 * 2 + 1]) : "r"(a[i]), "r"(b))

template <bool UNSIGNED = false>
static __device__ __forceinline__ void mma_block(int (&d)[4], const uint32_t *a, const uint32_t *b,
                                                 int c0, int c1)
{
#if __CUDA_ARCH__ >= 800
    if (UNSIGNED) MMA_BLOCK("u8", "=r", "{%10,%11,%10,%11}");
    else MMA_BLOCK("s8", "=r", "{%10,%11,%10,%11}");
#else
    d[0] = d[2] = c0;
    d[1] = d[3] = c1;
    for (int i = 0; i < 4; i++) {
        if (UNSIGNED) MMA_SMALL("u8", i, b[i / 2]);
        else MMA_SMALL("s8", i, b[i / 2]);
    }
#endif
}

/* d += a * b. */
static __device__ __forceinline__ void mma_add(int (&d)[4], const uint32_t *a, const uint32_t *b)
{
#if __CUDA_ARCH__ >= 800
    const int c0 = 0, c1 = 0;
    MMA_BLOCK("s8", "+r", "{%0,%1,%2,%3}");
#else
    for (int i = 0; i < 4; i++) MMA_SMALL("s8", i, b[i / 2]);
#endif
}

/* mma_block for half a block: a[16, 16] * b[16, 8]. */
template <bool UNSIGNED = false>
static __device__ __forceinline__ void mma_half(int (&d)[4], const uint32_t *a, uint32_t b, int c0,
                                                int c1)
{
#if __CUDA_ARCH__ >= 800
    if (UNSIGNED) MMA_HALF("u8");
    else MMA_HALF("s8");
#else
    d[0] = d[2] = c0;
    d[1] = d[3] = c1;
    for (int i = 0; i < 2; i++) {
        if (UNSIGNED) MMA_SMALL("u8", i, b);
        else MMA_SMALL("s8", i, b);
    }
#endif
}

/* ---- values ---------------------------------------------------------------------------------- */

/* The value of a block. low, high: bits of MAGIC + the sums of its halves; with one scale, low is
 * for the whole block. w[kind][row], x[kind][token]: scales. nt: -MAGIC times the scale of the
 * block, or of its second half. ODD: some t * MAGIC is not finite. */
template <int TYPE, bool ODD, int ROWS, int TOKENS>
static __device__ __forceinline__ float contract_value(int low, int high, const float (*w)[ROWS],
                                                       int r, const float (*x)[TOKENS], int t,
                                                       float nt)
{
    typedef contract_traits<TYPE> T;
    const float a = __int_as_float(low), b = __int_as_float(high);
    if constexpr (T::folded) {
        return ODD ? __fmul_rn(w[0][r], __fsub_rn(a, MAGIC)) : __fmaf_rn(w[0][r], a, nt);
    } else if constexpr (T::one_scale) {
        return __fmaf_rn(w[0][r], __fsub_rn(a, MAGIC), __fmul_rn(w[1][r], x[1][t]));
    } else {
        /* the products of both halves are exact; with integer scales their sum is exact, too */
        const float both = __fmaf_rn(w[0][r], __fsub_rn(a, MAGIC), __fmaf_rn(w[1][r], b, nt));
        if constexpr (T::two_scales) return both;
        if constexpr (!T::minimum) return __fmul_rn(w[2][r], both);
        const float less = __fmaf_rn(w[3][r], x[1][t], __fmul_rn(w[4][r], x[2][t]));
        return __fmaf_rn(w[2][r], both, __fmul_rn(w[5][r], less));
    }
}

#endif
