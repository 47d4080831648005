/* synth_blocks.h - random blocks of any type, with a given standard deviation of the weights.
 *
 * A synth_blocks is prepared for a type and a standard deviation and then writes any range of
 * blocks of a tensor. Each byte depends only on the tensor's key and its offset, so threads may
 * write ranges in any order. Blocks are valid: scales are positive and finite, scales of sub-blocks
 * are not zero, and only codes that a quantizer writes occur. Immutable after init: any thread may
 * use it. */
#ifndef CLI_SYNTH_SYNTH_BLOCKS_H
#define CLI_SYNTH_SYNTH_BLOCKS_H

#include "loader/quant.h"

enum { SYNTH_LADDER = 16, SYNTH_LEVELS = 1024, SYNTH_BLOCK_BYTES_MAX = 256 };

typedef struct synth_blocks {
    quant_type type;
    int block_bytes;
    double sigma;                        /* as requested */
    uint16_t d[SYNTH_LADDER];            /* binary16 scales a block may have, and the minimums */
    uint16_t m[SYNTH_LADDER];            /* that centre its codes */
    uint8_t byte_low, byte_high;         /* MXFP4, NVFP4: two neighbouring scale bytes ... */
    int high_of_256;                     /* ... and the frequency of the larger one */
    uint16_t level[SYNTH_LEVELS];        /* F16, BF16: evenly spaced values */
    float step;                          /* F32: one unit of a random int32 */
} synth_blocks;

/* For a type that has a decoder; weights have mean 0 and standard deviation sigma. NVFP4 without a
 * companion tensor has a sigma of at least 0.0057. */
void synth_blocks_init(synth_blocks *s, quant_type type, double sigma);

/* Writes blocks first .. first + n - 1 of the tensor with this key. */
void synth_blocks_fill(const synth_blocks *s, uint8_t *out, uint64_t first, size_t n, uint64_t key);

/* ---- its random generator ---- */

/* Bytes at .. at + n - 1 of the stream of random_word(key, ...). */
void synth_bytes(uint8_t *out, uint64_t at, size_t n, uint64_t key);

#endif
