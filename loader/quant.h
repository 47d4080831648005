/* quant.h - the block formats a GGUF tensor can have, and their exact values.
 *
 * A row is a run of blocks; a block holds block_elems weights in block_bytes bytes, at any byte
 * alignment. The decoders are scalar and exact. They are the reference for every fast kernel on any
 * processor. quant_blocks.h draws the layouts. */
#ifndef LOADER_QUANT_H
#define LOADER_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ids are the file format's. Gaps are ids that were removed from it. */
typedef enum quant_type {
    QT_F32 = 0, QT_F16 = 1, QT_Q4_0 = 2, QT_Q4_1 = 3, QT_Q5_0 = 6, QT_Q5_1 = 7, QT_Q8_0 = 8,
    QT_Q8_1 = 9, QT_Q2_K = 10, QT_Q3_K = 11, QT_Q4_K = 12, QT_Q5_K = 13, QT_Q6_K = 14, QT_Q8_K = 15,
    QT_IQ2_XXS = 16, QT_IQ2_XS = 17, QT_IQ3_XXS = 18, QT_IQ1_S = 19, QT_IQ4_NL = 20, QT_IQ3_S = 21,
    QT_IQ2_S = 22, QT_IQ4_XS = 23, QT_I8 = 24, QT_I16 = 25, QT_I32 = 26, QT_I64 = 27, QT_F64 = 28,
    QT_IQ1_M = 29, QT_BF16 = 30, QT_TQ1_0 = 34, QT_TQ2_0 = 35, QT_MXFP4 = 39, QT_NVFP4 = 40,
    QT_Q1_0 = 41, QT_Q2_0 = 42,
    QT_COUNT = 43                        /* one past the largest id */
} quant_type;

/* Decodes n_blocks consecutive blocks to n_blocks * block_elems values. Never fails; quant.c says
 * what NaN, Inf and reserved codes of each format decode to. */
typedef void quant_decode_fn(float *out, const void *blocks, size_t n_blocks);

typedef struct quant_traits {
    const char *name;                    /* "Q4_K"; NULL in a gap of the id space */
    int block_elems, block_bytes;
    quant_decode_fn *decode;             /* NULL: not a weight type (integers, F64), or never in a
                                          * file (Q8_1, Q8_K) */
} quant_traits;

/* The row for an id from a file; NULL if the id is unknown or was removed. */
const quant_traits *quant_traits_of(uint32_t id);

/* Returns the name of an id for messages, also of a removed one ("Q4_2, removed"), or "unknown". */
const char *quant_name(uint32_t id);

/* Finds a type with a decoder by name, ignoring case. Returns false if there is none. */
bool quant_from_name(quant_type *out, const char *name);

/* Returns true if a tensor in a file may have this type: known, and not for activations only. */
bool quant_is_storable(uint32_t id);

/* Bytes of a row of n elements, which must be a multiple of block_elems. */
static inline uint64_t quant_row_bytes(const quant_traits *t, uint64_t n_elems)
{
    return n_elems / (uint64_t)t->block_elems * (uint64_t)t->block_bytes;
}

/* Exact conversions, subnormals, infinities and NaN included.
 *
 *   sign : 1 | exponent : 5, bias 15 | mantissa : 10
 *
 * Masks replace conditions, which compilers would turn into branches, so loops over it vectorise.
 * A normal number gets the other bias. A subnormal x is computed as (2^-14 + x) - 2^-14. */
static inline float f16_to_f32(uint16_t h)
{
    const uint32_t magnitude = (h & 0x7FFFu) << 13, sign = (h & 0x8000u) << 16;
    const uint32_t is_normal = 0u - (magnitude >= 1u << 23), is_max = 0u - (magnitude >= 31u << 23);
    const uint32_t moved = magnitude + (112u << 23), raised = magnitude + (113u << 23);
    float small, out;
    uint32_t bits;
    memcpy(&small, &raised, sizeof small);
    small -= 0x1p-14f;
    memcpy(&bits, &small, sizeof bits);
    bits = (moved & is_normal) | (bits & ~is_normal) | (is_max & 0x7F800000u) | sign;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Returns the nearest binary16, ties to even, subnormals included; overflow gives infinity. Masks
 * select one of three results, so loops over it vectorise. */
static inline uint16_t f32_to_f16(float f)
{
    uint32_t bits, sum_bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, a = bits & 0x7FFFFFFFu;
    /* normal: changes the exponent's bias from 127 to 15. Rounding may carry into the exponent, and
     * from the largest one to infinity */
    const uint32_t moved = a - (112u << 23), rounded = (moved + 0xFFFu + (moved >> 13 & 1)) >> 13;
    const uint32_t normal = rounded < 0x7C00u ? rounded : 0x7C00u;
    /* below 2^-14: subnormal, in units of 2^-24, which is the last bit of a sum with 0.5 */
    float sum;
    memcpy(&sum, &a, sizeof sum);
    sum += 0.5f;
    memcpy(&sum_bits, &sum, sizeof sum_bits);
    const uint32_t small = sum_bits - 0x3F000000u;
    const uint32_t nan = 0x7E00u | (a >> 13 & 0x3FFu);   /* quiet, never infinity */
    const uint32_t is_small = 0u - (a < 0x38800000u), is_nan = 0u - (a > 0x7F800000u);
    const uint32_t number = (small & is_small) | (normal & ~is_small);
    return (uint16_t)(sign | (nan & is_nan) | (number & ~is_nan));
}

static inline float bf16_to_f32(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Scale bytes of MXFP4 (2^(e-127)) and NVFP4 (E4M3 without sign). */
float e8m0_to_f32(uint8_t e);
float ue4m3_to_f32(uint8_t c);

#ifdef __cplusplus
}
#endif
#endif
