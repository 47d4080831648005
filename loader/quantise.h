/* quantise.h - floats to blocks: the way back of the decoders in quant.h.
 *
 * Scales are chosen by what they cost: the sum over a block of weight * (value - decoded)^2, where
 * the weight says how much a column matters. For MXFP4 and NVFP4 the choice is the best there is;
 * for Q8_0 and Q4_K it is the best of a search. The bytes depend on nothing but the arguments, so
 * rows may be shared out among any threads. Nothing is allocated. */
#ifndef LOADER_QUANTISE_H
#define LOADER_QUANTISE_H

#include "loader/quant.h"

/* Whether rows can be made of this type: NVFP4, MXFP4, Q8_0, Q4_K, BF16. */
bool quantise_can(quant_type type);

/* The largest magnitude that the type can hold: what is beyond it may not be given to quantise_row.
 * (MXFP4 and BF16 end a little below the largest float; larger ones become their largest.) */
float quantise_limit(quant_type type);

/* Where a row begins to be something else: the first of n values that is NaN, infinite or beyond
 * the limit, or n if there is none. */
size_t quantise_first_bad(quant_type type, const float *x, size_t n);

/* Writes n / block_elems blocks; n is a multiple of block_elems. importance: [n], finite and not
 * negative; NULL: all columns alike, as in a block whose importance is all zero. */
void quantise_row(quant_type type, void *blocks, const float *x, const float *importance, size_t n);

/* NVFP4 has a scale for the whole matrix besides, and blocks hold x / scale. Two that are worth
 * trying for a matrix whose largest magnitude is given: the first uses the range of block scales
 * well, the second is a power of two, with which weights that were MXFP4 stay what they are. Both
 * leave room above the largest block scale, because mapping a block's largest weight to 4 instead
 * of 6 is sometimes better. 1 for a matrix of zeros. */
enum { QUANTISE_NVFP4_SCALES = 2 };
void quantise_nvfp4_scales(float scales[QUANTISE_NVFP4_SCALES], float largest);

#endif
