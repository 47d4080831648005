/* contract_blocks.h - weight blocks unpacked to the integers and scales of the contract.
 *
 * In every format a row is treated as blocks of 32 weights, and eight of those are a segment, such
 * as one super-block of a K-quant. A weight is
 *
 *     factor * d * sc[h] * w                 PARTS_PLAIN      h = 0, 1: the half its index is in
 *     d * sc[h] * w + c * m[h]               PARTS_MINIMUM
 *     factor * f[h] * w                      PARTS_TWO_SCALES
 *
 * exactly; factor is the type's power of two in kernels_contract(). Two differences from
 * loader/quant.h avoid special cases in all kernels: the MXFP4 exponents 0 and 255 are +0 and +Inf,
 * and the NVFP4 scale codes 0x7F and 0xFF are both 0. */
#ifndef ENGINE_CPU_CONTRACT_BLOCKS_H
#define ENGINE_CPU_CONTRACT_BLOCKS_H

#include <stdint.h>

enum { SEGMENT_BLOCKS = 8, SEGMENT = 32 * SEGMENT_BLOCKS };

/* One segment. Arrays are indexed by block, so that eight blocks are scaled in one vector. */
typedef struct block_parts {
    int8_t w[SEGMENT];                   /* 32 for each block */
    int32_t sc[2][SEGMENT_BLOCKS], m[2][SEGMENT_BLOCKS];
    float d[SEGMENT_BLOCKS], c[SEGMENT_BLOCKS], f[2][SEGMENT_BLOCKS];
} block_parts;

typedef enum parts_kind { PARTS_PLAIN, PARTS_MINIMUM, PARTS_TWO_SCALES } parts_kind;

/* Writes w and the fields of the kind for n blocks of 32; n is 1 to 8 and whole blocks of the
 * format. It may also write sc and m of later blocks; other fields are unchanged. blocks may have
 * any alignment. */
typedef void unpack_fn(block_parts *restrict p, const void *restrict blocks, int n);

typedef struct block_format {
    unpack_fn *unpack;
    parts_kind kind;
    int segment_bytes;
} block_format;

/* Returns the format of a weight type, or NULL if the type has no blocks of 32. */
const block_format *contract_blocks_of(uint32_t type);

#endif
