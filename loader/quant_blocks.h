/* quant_blocks.h - one struct per block format of a GGUF file: which bit belongs to which weight.
 *
 * Structs hold byte arrays only, so a block may be at any address; fields of two and four bytes are
 * little-endian and are read with load_u16() and load_u32() of loader/bytes.h. Valid C11, C++17 and
 * CUDA: decoders on either processor share these structs and the two value lists at the end.
 *
 * In the drawings the highest bit is on the left, and e(5) is the weight with index 5 in its block.
 * d is the block's scale, a binary16 unless stated otherwise. Terms:
 *
 *   halves order      16 bytes, 32 weights: byte k is   [ e(k+16) : 4 | e(k) : 4 ]
 *                     (not neighbours: e0 and e1 are in different bytes)
 *   four planes       64 bytes, 256 weights of 2 bits; each half serves 128 weights. Byte k of a
 *                     half, k = 0..31, with e() counted from the half's first weight:
 *                         [ e(k+96) : 2 | e(k+64) : 2 | e(k+32) : 2 | e(k) : 2 ]
 *   sub-block         a run of 16 or 32 weights with a scale of its own, numbered j from 0
 *   even signs        7 bits: bit k set means that weight k of 8 is negative; the eighth sign makes
 *                     the number of negative weights even */
#ifndef LOADER_QUANT_BLOCKS_H
#define LOADER_QUANT_BLOCKS_H

#include <assert.h>
#include <stdint.h>

/* ---- 32 weights, one scale ----------------------------------------------------------------- */

/* d * (n - 8) */
typedef struct block_q4_0 {
    uint8_t d[2];
    uint8_t nibbles[16];                 /* halves order */
} block_q4_0;
static_assert(sizeof(block_q4_0) == 18, "q4_0");

/* d * n + m */
typedef struct block_q4_1 {
    uint8_t d[2], m[2];                  /* m: the value of code 0, binary16 */
    uint8_t nibbles[16];                 /* halves order */
} block_q4_1;
static_assert(sizeof(block_q4_1) == 20, "q4_1");

/* d * (n - 16), n of 5 bits */
typedef struct block_q5_0 {
    uint8_t d[2];
    uint8_t high[4];                     /* 32 bits: bit i is the fifth bit of e(i) */
    uint8_t nibbles[16];                 /* halves order */
} block_q5_0;
static_assert(sizeof(block_q5_0) == 22, "q5_0");

/* d * n + m, n of 5 bits */
typedef struct block_q5_1 {
    uint8_t d[2], m[2];
    uint8_t high[4];                     /* as in q5_0 */
    uint8_t nibbles[16];
} block_q5_1;
static_assert(sizeof(block_q5_1) == 24, "q5_1");

/* d * n; n = -128 is legal here, though no quantizer writes it */
typedef struct block_q8_0 {
    uint8_t d[2];
    int8_t quants[32];
} block_q8_0;
static_assert(sizeof(block_q8_0) == 34, "q8_0");

/* Activations only, never in a file: no decoder. */
typedef struct block_q8_1 {
    uint8_t d[2], s[2];                  /* s: d times the sum of the quants, binary16 */
    int8_t quants[32];
} block_q8_1;
static_assert(sizeof(block_q8_1) == 36, "q8_1");

/* d * T[n], T = IQ4_LEVELS below */
typedef struct block_iq4_nl {
    uint8_t d[2];
    uint8_t nibbles[16];                 /* halves order */
} block_iq4_nl;
static_assert(sizeof(block_iq4_nl) == 18, "iq4_nl");

/* ---- 4-bit floats -------------------------------------------------------------------------- */

/* Both hold E2M1 codes [ sign : 1 | exponent : 2 | mantissa : 1 ]: E2M1_TWICE below, halved. */

/* 2^(e-127) * E2M1[n] */
typedef struct block_mxfp4 {
    uint8_t e;                           /* E8M0: exponent only; 255 is reserved */
    uint8_t nibbles[16];                 /* halves order */
} block_mxfp4;
static_assert(sizeof(block_mxfp4) == 17, "mxfp4");

/* 64 weights in 4 sub-blocks of 16: scale[j] * E2M1[n]. A scale byte is E4M3 with bias 7; its sign
 * bit has no meaning:    [ - : 1 | exponent : 4 | mantissa : 3 ] */
typedef struct block_nvfp4 {
    uint8_t scales[4];
    uint8_t nibbles[4][8];               /* halves order in 8 bytes: [ e(k+8) : 4 | e(k) : 4 ] */
} block_nvfp4;
static_assert(sizeof(block_nvfp4) == 36, "nvfp4");

/* ---- 256 weights, small integers as scales of sub-blocks ----------------------------------- */

/* 16 sub-blocks of 16: d * scale[j] * n - dmin * min[j] */
typedef struct block_q2_k {
    uint8_t scales[16];                  /* byte j: [ min j : 4 | scale j : 4 ] */
    uint8_t quants[64];                  /* four planes */
    uint8_t d[2], dmin[2];               /* at the end, unlike q4_k */
} block_q2_k;
static_assert(sizeof(block_q2_k) == 84, "q2_k");

/* 16 sub-blocks of 16: d * (scale[j] - 32) * (n - (high bit ? 0 : 4)). Note that a SET high bit
 * subtracts nothing. The 6-bit scales, S = low four bits, T = high two:
 *
 *   scales[0..7]   byte k:   [ S(k+8) : 4                | S(k) : 4            ]
 *   scales[8..11]  byte 8+k: [ T(k+12) : 2 | T(k+8) : 2  | T(k+4) : 2 | T(k) : 2 ] */
typedef struct block_q3_k {
    uint8_t high[32];                    /* bit p of byte k belongs to e(32p + k) */
    uint8_t quants[64];                  /* four planes */
    uint8_t scales[12];
    uint8_t d[2];
} block_q3_k;
static_assert(sizeof(block_q3_k) == 110, "q3_k");

/* 8 sub-blocks of 32: d * scale[j] * n - dmin * min[j]. Scales and minimums have 6 bits. Those of
 * sub-blocks 4..7 are split into two bit fields. For k = 0..3:
 *
 *   scales[k]      [ scale k+4, bits 5-4 : 2 | scale k : 6               ]
 *   scales[k+4]    [ min k+4,   bits 5-4 : 2 | min k   : 6               ]
 *   scales[k+8]    [ min k+4,   bits 3-0 : 4 | scale k+4, bits 3-0 : 4   ] */
typedef struct block_q4_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t nibbles[4][32];              /* [p]: byte k is [ e(64p+32+k) : 4 | e(64p+k) : 4 ] */
} block_q4_k;
static_assert(sizeof(block_q4_k) == 144, "q4_k");

/* As q4_k, with n of 5 bits. */
typedef struct block_q5_k {
    uint8_t d[2], dmin[2];
    uint8_t scales[12];
    uint8_t high[32];                    /* bit j of byte k is the fifth bit of e(32j + k) */
    uint8_t nibbles[4][32];
} block_q5_k;
static_assert(sizeof(block_q5_k) == 176, "q5_k");

/* 16 sub-blocks of 16: d * scale[j] * (n - 32), n of 6 bits. */
typedef struct block_q6_k {
    uint8_t low[2][64];                  /* [h]: byte k is [ e(128h+64+k) : 4 | e(128h+k) : 4 ] */
    uint8_t high[64];                    /* upper two bits of n: four planes */
    int8_t scales[16];
    uint8_t d[2];
} block_q6_k;
static_assert(sizeof(block_q6_k) == 210, "q6_k");

/* Activations only, never in a file: no decoder. */
typedef struct block_q8_k {
    uint8_t d[4];                        /* binary32 */
    int8_t quants[256];
    uint8_t sums[16][2];                 /* int16: sums of 16 quants */
} block_q8_k;
static_assert(sizeof(block_q8_k) == 292, "q8_k");

/* 8 sub-blocks of 32: d * (scale[j] - 32) * T[n], scales of 6 bits. */
typedef struct block_iq4_xs {
    uint8_t d[2];
    uint8_t scales_high[2];              /* 16 bits: bits 2j+1, 2j are bits 5-4 of scale j */
    uint8_t scales_low[4];               /* byte k: [ scale 2k+1 : 4 | scale 2k : 4 ], bits 3-0 */
    uint8_t nibbles[8][16];              /* halves order within each sub-block */
} block_iq4_xs;
static_assert(sizeof(block_iq4_xs) == 136, "iq4_xs");

/* ---- codebooks: an index names 8 (IQ1, IQ2) or 4 (IQ3) weights at once --------------------- */

/* d * (1/2 + scale) / 4 * G[index][k], with separate signs. */
typedef struct block_iq2_xxs {
    uint8_t d[2];
    struct {                             /* for 32 weights */
        uint8_t index[4];                /* 8 weights each */
        uint8_t signs_scale[4];          /* [ scale : 4 | 4 x even signs : 7 each, first lowest ] */
    } part[8];
} block_iq2_xxs;
static_assert(sizeof(block_iq2_xxs) == 66, "iq2_xxs");

typedef struct block_iq2_xs {
    uint8_t d[2];
    uint8_t words[32][2];                /* for 8 weights: [ even signs : 7 | index : 9 ] */
    uint8_t scales[8];                   /* sub-blocks of 16: [ j = 2k+1 : 4 | j = 2k : 4 ] */
} block_iq2_xs;
static_assert(sizeof(block_iq2_xs) == 74, "iq2_xs");

typedef struct block_iq2_s {
    uint8_t d[2];
    uint8_t index[32];                   /* low 8 of 10 bits; 8 weights each */
    uint8_t signs[32];                   /* one sign per weight: bit k of byte n for e(8n + k) */
    uint8_t index_high[8];               /* byte k, bits 2p+1, 2p: bits 9-8 of index 4k + p */
    uint8_t scales[8];                   /* as in iq2_xs */
} block_iq2_s;
static_assert(sizeof(block_iq2_s) == 82, "iq2_s");

/* d * (1/2 + scale) / 2 * G[index][k], with separate signs. */
typedef struct block_iq3_xxs {
    uint8_t d[2];
    uint8_t index[64];                   /* 4 weights each */
    uint8_t signs_scale[8][4];           /* for 32 weights, as in iq2_xxs */
} block_iq3_xxs;
static_assert(sizeof(block_iq3_xxs) == 98, "iq3_xxs");

/* d * (1 + 2 * scale) * G[index][k], with separate signs. */
typedef struct block_iq3_s {
    uint8_t d[2];
    uint8_t index[64];                   /* low 8 of 9 bits; 4 weights each */
    uint8_t index_high[8];               /* byte k, bit p: bit 8 of index 8k + p */
    uint8_t signs[32];                   /* as in iq2_s */
    uint8_t scales[4];                   /* sub-blocks of 32: [ j = 2k+1 : 4 | j = 2k : 4 ] */
} block_iq3_s;
static_assert(sizeof(block_iq3_s) == 110, "iq3_s");

/* d * (2 * scale + 1) * (G[index][k] + shift), G of -1, 0, 1 and shift = +1/8 or -1/8. */
typedef struct block_iq1_s {
    uint8_t d[2];
    uint8_t index[32];                   /* low 8 of 11 bits; 8 weights each */
    uint8_t words[8][2];                 /* for 32 weights: [ shift is -1/8 : 1 | scale : 3 |
                                          *   4 x bits 10-8 of an index : 3 each, first lowest ] */
} block_iq1_s;
static_assert(sizeof(block_iq1_s) == 50, "iq1_s");

typedef struct block_iq1_m {
    uint8_t index[32];                   /* as in iq1_s */
    uint8_t high[16];                    /* a nibble for each index, low one first:
                                          *   [ shift is -1/8 : 1 | bits 10-8 of the index : 3 ] */
    uint8_t scales[4][2];                /* word k: [ nibble k of d : 4 | scales of sub-blocks of
                                          *   16, j = 4k+3 : 3 | 4k+2 : 3 | 4k+1 : 3 | 4k : 3 ] */
} block_iq1_m;
static_assert(sizeof(block_iq1_m) == 56, "iq1_m");

/* ---- one and two bits, three values -------------------------------------------------------- */

/* d * (n - 1). n = 0, 1, 2 are the base-3 digits of the fraction v / 256, v being the byte: the
 * first digit is the integer part of 3 * v / 256, the next one that of 3 times the remainder. */
typedef struct block_tq1_0 {
    uint8_t digits5[48];                 /* 5 per byte. Bytes 0-31: digit t of byte k is e(32t + k);
                                          * bytes 32-47: digit t of byte 32+k is e(160 + 16t + k) */
    uint8_t digits4[4];                  /* 4 per byte: digit t of byte k is e(240 + 4t + k) */
    uint8_t d[2];
} block_tq1_0;
static_assert(sizeof(block_tq1_0) == 54, "tq1_0");

/* d * (n - 1); n = 3 is legal here */
typedef struct block_tq2_0 {
    uint8_t quants[64];                  /* four planes */
    uint8_t d[2];
} block_tq2_0;
static_assert(sizeof(block_tq2_0) == 66, "tq2_0");

/* 128 weights: bit ? d : -d */
typedef struct block_q1_0 {
    uint8_t d[2];
    uint8_t bits[16];                    /* bit k of byte n is e(8n + k) */
} block_q1_0;
static_assert(sizeof(block_q1_0) == 18, "q1_0");

/* 64 weights: d * (n - 1) */
typedef struct block_q2_0 {
    uint8_t d[2];
    uint8_t quants[16];                  /* byte k: [ e(4k+3) : 2 | ... | e(4k) : 2 ] */
} block_q2_0;
static_assert(sizeof(block_q2_0) == 18, "q2_0");

/* ---- value lists --------------------------------------------------------------------------- */

/* Initialisers rather than arrays: host and device each place their own copy. */

/* IQ4_NL and IQ4_XS: the value of each nibble. */
#define IQ4_LEVELS -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

/* E2M1 doubled, which makes integers of it. Code 8, minus zero, counts as zero. */
#define E2M1_TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

#endif
