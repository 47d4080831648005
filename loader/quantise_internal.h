/* quantise_internal.h - what the quantise_*.c files share. x and w hold one block; w is never NULL
 * and not all zero. */
#ifndef LOADER_QUANTISE_INTERNAL_H
#define LOADER_QUANTISE_INTERNAL_H

#include "loader/quant_blocks.h"
#include "loader/quantise.h"

void quantise_mxfp4(block_mxfp4 *b, const float *x, const float *w);
void quantise_nvfp4(block_nvfp4 *b, const float *x, const float *w);     /* this w may be NULL */
void quantise_q8_0(block_q8_0 *b, const float *x, const float *w);
void quantise_q4_k(block_q4_k *b, const float *x, const float *w);

/* Weights for n columns whose importance begins at w, which may be NULL: w itself, or ones where
 * there is nothing to prefer. n is at most 256. */
const float *quantise_weights(const float *w, int n);

/* Nearest whole number, ties to even, of |x| below 2^22; without a call, so loops use vectors. */
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

/* The sum of n terms, 8 or a multiple, in an order that vectors can keep. */
static inline float sum_terms(const float *t, int n)
{
    float lane[8] = { 0 };
    for (int i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++) lane[k] += t[i + k];
    for (int k = 0; k < 4; k++) lane[k] += lane[k + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

#endif
