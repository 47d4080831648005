/* quantise.h - floats to blocks: the inverse of the decoders in quant.h.
 *
 * Scales minimise the sum over a block of importance * (value - decoded)^2, with one importance per
 * column. For MXFP4 and NVFP4 the result is the minimum; for Q8_0 and Q4_K it is the best of a
 * search. The bytes depend only on the arguments, so threads may encode rows in any order. Nothing
 * is allocated. */
#ifndef LOADER_QUANTISE_H
#define LOADER_QUANTISE_H

#include "loader/quant.h"

/* Returns true for the types that quantise_row writes: NVFP4, MXFP4, Q8_0, Q4_K, BF16. */
bool quantise_can(quant_type type);

/* Returns the largest magnitude that quantise_row accepts. MXFP4 and BF16 end slightly below
 * FLT_MAX; larger values become their largest. */
float quantise_limit(quant_type type);

/* Returns the index of the first of n values that is NaN, infinite or above quantise_limit, or n if
 * all are valid. */
size_t quantise_first_bad(quant_type type, const float *x, size_t n);

/* Writes n / block_elems blocks; n is a multiple of block_elems. importance [n] is finite and not
 * negative. If it is NULL, or all zero in a block, all columns have the same importance. */
void quantise_row(quant_type type, void *blocks, const float *x, const float *importance, size_t n);

/* NVFP4 also has a scale for the whole matrix; blocks hold x / scale. Writes two candidates for a
 * matrix with this largest magnitude. The first uses the range of block scales well. The second is
 * a power of two and so encodes former MXFP4 weights exactly. Both leave headroom above the largest
 * block scale, because mapping a block's largest weight to 4 instead of 6 is sometimes better. For
 * a matrix of zeros the scales are 1. */
enum { QUANTISE_NVFP4_SCALES = 2 };
void quantise_nvfp4_scales(float scales[QUANTISE_NVFP4_SCALES], float largest);

#endif
