/* exact_exp_one.h - exp of the arithmetic contract for one value: clamped to [-87, 88], error below
 * one ulp, NaN stays NaN. */
#ifndef TESTS_EXACT_EXP_ONE_H
#define TESTS_EXACT_EXP_ONE_H

#include "engine/cpu/exact_exp.h"

static inline float exact_exp(float z)
{
    float lane[8];
    vec8_store(lane, exp_clamped(vec8_all(z)));
    return lane[0];
}

#endif
