/* quantise_internal.h - private to quantise_*.c. x and w hold one block. w is never NULL and not
 * all zero, except where noted. */
#ifndef LOADER_QUANTISE_INTERNAL_H
#define LOADER_QUANTISE_INTERNAL_H

#include "loader/quant_blocks.h"
#include "loader/quantise.h"

void quantise_mxfp4(block_mxfp4 *b, const float *x, const float *w);
void quantise_nvfp4(block_nvfp4 *b, const float *x, const float *w);     /* this w may be NULL */
void quantise_q8_0(block_q8_0 *b, const float *x, const float *w);
void quantise_q4_k(block_q4_k *b, const float *x, const float *w);

/* Returns w, the importance of n <= 256 columns, or an array of ones if w is NULL or all zero. */
const float *quantise_weights(const float *w, int n);

/* Returns the nearest whole number, ties to even, for |x| < 2^22. No call, so loops vectorise. */
static inline float nearest_whole(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static inline float largest_magnitude(const float *x, int n)
{
    float most = 0.0f;
    for (int i = 0; i < n; i++) {
        const float a = x[i] < 0.0f ? -x[i] : x[i];
        most = a > most ? a : most;
    }
    return most;
}

/* Returns the sum of n terms, a multiple of 8, in an order that vector code can follow. */
static inline float sum_terms(const float *t, int n)
{
    float lane[8] = { 0 };
    for (int i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += t[i + k];
    for (int k = 0; k < 4; k++) lane[k] += lane[k + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#endif
