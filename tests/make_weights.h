/* make_weights.h - rows of weights of any type, made of random bytes, and of activations. */
#ifndef TESTS_MAKE_WEIGHTS_H
#define TESTS_MAKE_WEIGHTS_H

#include "loader/quant.h"
#include "tests/test.h"

typedef enum weight_kind {
    WEIGHTS_RANDOM,                      /* scales are infinite, subnormal or NaN now and then */
    WEIGHTS_PLAUSIBLE,                   /* scales as in models, and no reserved codes */
    WEIGHTS_EXTREME,                     /* scales at the ends of their range */
    WEIGHTS_LARGEST,                     /* one byte throughout: the largest sums */
    WEIGHT_KINDS
} weight_kind;

const char *weight_kind_name(weight_kind kind);

/* cols is a multiple of the type's block. */
void weight_row_make(uint8_t *row, quant_type type, int cols, weight_kind kind, test_rng *rng);

/* Blocks of 32 with values of about 1; now and then zero, tiny, huge or tied ones, or those that
 * make the largest sums, and with poison also an Inf or a NaN. */
void activations_make(float *x, int cols, bool poison, test_rng *rng);

#endif
