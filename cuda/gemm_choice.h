/* gemm_choice.h - chooses the kernels of a product of n tokens: pure functions, valid C and C++.
 *
 * Fewer than `from` tokens use the contract's kernels (docs/numerics.md). Larger batches use own
 * kernels on tensor cores or the vendor's library. The library computes a product if it supports
 * it, the matrix is not small, and the library was measured to be faster. With GPU_GEMM_OWN the
 * choice depends on neither speeds nor the library. cuda/gemm.cu calls this header,
 * tests/test_gemm_choice.c checks it. */
#ifndef CUDA_GEMM_CHOICE_H
#define CUDA_GEMM_CHOICE_H

#include "cuda/gpu.h"

typedef enum gemm_way { GEMM_CONTRACT, GEMM_OWN, GEMM_VENDOR } gemm_way;

typedef struct gemm_case {
    int n;                               /* tokens */
    int64_t weights;                     /* rows * columns */
    bool vendor_fits;                    /* the library is loaded and supports the product */
    int cc;                              /* compute capability of the chip, e.g. 90 */
} gemm_case;

/* Weights of the smallest matrix for the library. It needs a second kernel, which decodes the
 * weights; with smaller matrices that costs more than the library gains. */
#define GEMM_VENDOR_LEAST ((int64_t)1 << 20)
/* The library must be faster by this factor, so that noise does not change the choice. */
#define GEMM_VENDOR_GAIN 1.03
/* Without measurements: up to Ada own kernels are near the chip's peak; from Hopper on the library
 * is assumed to be faster from this many tokens on. */
enum { GEMM_ASSUMED_CC = 90, GEMM_ASSUMED_FROM = 512 };

static inline int gemm_from(const gpu_gemm *how)
{
    return how->from > GPU_FEW ? how->from : GPU_FEW + 1;
}

/* Seconds for n tokens at these rates, divided by the multiply-adds of one token. Time is constant
 * below the first point and linear between points; speed is constant above the last point. */
static inline double gemm_time(const double rates[GPU_GEMM_POINTS], int n)
{
    static const int at[GPU_GEMM_POINTS] = GPU_GEMM_TOKENS;
    double before = at[0] / rates[0];
    if (n <= at[0]) return before;
    for (int i = 1; i < GPU_GEMM_POINTS; i++) {
        const double time = at[i] / rates[i];
        if (n <= at[i])
            return before + (time - before) * (n - at[i - 1]) / (at[i] - at[i - 1]);
        before = time;
    }
    return n / rates[GPU_GEMM_POINTS - 1];
}

static inline bool gemm_is_measured(const double rates[GPU_GEMM_POINTS])
{
    for (int i = 0; i < GPU_GEMM_POINTS; i++)
        if (!(rates[i] > 0)) return false;
    return true;
}

/* Whether the library is faster for n tokens. False if it was absent when speeds were measured. */
static inline bool gemm_vendor_wins(const gpu_gemm_rates *r, int n, int cc)
{
    if (!gemm_is_measured(r->own)) return cc >= GEMM_ASSUMED_CC && n >= GEMM_ASSUMED_FROM;
    if (!gemm_is_measured(r->vendor)) return false;
    return gemm_time(r->vendor, n) * GEMM_VENDOR_GAIN <= gemm_time(r->own, n);
}

static inline gemm_way gemm_choose(const gpu_gemm *how, const gemm_case *c)
{
    if (c->n < gemm_from(how)) return GEMM_CONTRACT;
    if (how->use == GPU_GEMM_OWN || !c->vendor_fits) return GEMM_OWN;
    if (how->use == GPU_GEMM_VENDOR) return GEMM_VENDOR;
    if (c->weights < GEMM_VENDOR_LEAST) return GEMM_OWN;
    return gemm_vendor_wins(&how->rates, c->n, c->cc) ? GEMM_VENDOR : GEMM_OWN;
}

/* Whether the library could be chosen for up to n tokens; else it is not loaded, without memory. */
static inline bool gemm_may_use_vendor(const gpu_gemm *how, int cc, int n)
{
    static const int at[GPU_GEMM_POINTS] = GPU_GEMM_TOKENS;
    if (how->use != GPU_GEMM_FASTER) return how->use == GPU_GEMM_VENDOR;
    for (int i = 0; i < GPU_GEMM_POINTS; i++)
        if (at[i] < n && gemm_vendor_wins(&how->rates, at[i], cc)) return true;
    return gemm_vendor_wins(&how->rates, n, cc);
}

#endif
