/* fp4_pack.cuh - operands of the block-scaled FP4 product of cuBLASLt: codes, scales, and where a
 * scale lies.
 *
 * A matrix is [outer, k], k contiguous, two E2M1 codes in a byte, the first in its low digit. Every
 * 16 values share an E4M3 scale (NVFP4), or every 32 a power of two (MXFP4). Scales lie in tiles of
 * 128 rows by 4 blocks, 512 bytes each, tiles of a row of tiles after one another; in a tile row r
 * has the four bytes at r % 32 * 16 + r / 32 * 4. Rows and blocks are padded to whole tiles; the
 * padding is zero. Source: the cuBLAS manual, "1D block scaling factors layout".
 *
 * The same source compiles for the host, where tests/test_fp4_pack.cu checks it. Only chips from
 * compute capability 10.0 on have the product; this has not run on one yet. */
#ifndef CUDA_FP4_PACK_CUH
#define CUDA_FP4_PACK_CUH

#include "cuda/blocks.cuh"

enum { FP4_TILE_ROWS = 128, FP4_TILE_BLOCKS = 4, FP4_TILE_BYTES = 512 };

/* ---- where scales lie ------------------------------------------------------------------------ */

BOTH size_t fp4_scales_bytes(int outer, int n_block)
{
    return (size_t)((outer + FP4_TILE_ROWS - 1) / FP4_TILE_ROWS) *
           (size_t)((n_block + FP4_TILE_BLOCKS - 1) / FP4_TILE_BLOCKS) * FP4_TILE_BYTES;
}

/* Of block b of row r, n_block being those of a row. */
BOTH size_t fp4_scale_at(int r, int b, int n_block)
{
    const size_t tiles = (size_t)((n_block + FP4_TILE_BLOCKS - 1) / FP4_TILE_BLOCKS);
    const size_t tile = (size_t)(r / FP4_TILE_ROWS) * tiles + (size_t)(b / FP4_TILE_BLOCKS);
    return tile * FP4_TILE_BYTES + (size_t)(r % 32 * 16 + r % FP4_TILE_ROWS / 32 * 4 +
                                            b % FP4_TILE_BLOCKS);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Eight codes in the low digits of eight bytes (two words) to the eight digits of a word. */
BOTH uint32_t fp4_join_digits(uint32_t first, uint32_t second)
{
    return pack_digits(first & 0x0F0F0F0Fu) | pack_digits(second & 0x0F0F0F0Fu) << 16;
}

/* 16 weights of an NVFP4 block, sub-block j: their codes in order, and their scale. */
BOTH uint32_t fp4_take_nvfp4(uint32_t (&codes)[2], const uint8_t *block, int j)
{
    uint32_t n[2];
    load_words(n, block + offsetof(block_nvfp4, nibbles) + 8 * j);
    codes[0] = fp4_join_digits(n[0], n[1]);
    codes[1] = fp4_join_digits(n[0] >> 4, n[1] >> 4);
    const uint32_t scale = (uint32_t)byte_at(block + j) & 0x7Fu;
    return scale == 0x7Fu ? 0 : scale;   /* not a number: the contract reads 0 */
}

/* 32 weights of an MXFP4 block. */
BOTH uint32_t fp4_take_mxfp4(uint32_t (&codes)[4], const uint8_t *block)
{
    uint32_t n[4];
    load_words(n, block + offsetof(block_mxfp4, nibbles));
    for (int i = 0; i < 2; i++) {
        codes[i] = fp4_join_digits(n[2 * i], n[2 * i + 1]);
        codes[2 + i] = fp4_join_digits(n[2 * i] >> 4, n[2 * i + 1] >> 4);
    }
    return (uint32_t)byte_at(block);
}

/* ---- activations ----------------------------------------------------------------------------- */

BOTH uint32_t fp4_float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with v's sign; ties to the even code. */
BOTH uint32_t fp4_code(float v)
{
    const float a = fabsf(v);
    const uint32_t magnitude = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) +
                               (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return magnitude | (v < 0.0f ? 8u : 0u);
}

BOTH float fp4_value(uint32_t code)
{
    const uint32_t m = code & 7u;
    const float v = m < 2 ? 0.5f * (float)m
                          : (float)(2u | (m & 1u)) * 0.5f * (float)(1u << (m >> 1)) * 0.5f;
    return code & 8u ? -v : v;
}

/* The nearest E4M3 of v >= 0, at most 448; ties to the even code. */
BOTH uint32_t fp4_e4m3_code(float v)
{
    if (!(v < 448.0f)) return 0x7Eu;
    if (v < 0x1p-6f) return (uint32_t)rintf(v * 512.0f);
    const uint32_t bits = fp4_float_bits(v), rounded = bits + 0x7FFFFu + (bits >> 20 & 1u);
    return (rounded >> 20) - ((127u - 7u) << 3);
}

BOTH float fp4_e4m3_value(uint32_t code)
{
    const uint32_t e = code >> 3 & 15u, m = code & 7u;
    return e == 0 ? (float)m * 0x1p-9f : float_bits((e + 120u) << 23 | m << 20);
}

/* The least power of two with which v <= 6 times it, as E8M0. */
BOTH uint32_t fp4_e8m0_code(float v)
{
    if (!(v > 0x1p-120f)) return 0;
    const uint32_t bits = fp4_float_bits(v);
    /* 6 is 1.5 * 4 */
    return (bits >> 23) - 2u + ((bits & 0x7FFFFFu) > 0x400000u);
}

BOTH float fp4_e8m0_value(uint32_t code) { return code == 0 ? 0.0f : float_bits(code << 23); }

/* N values as codes times one scale, of which the scale's code is returned; v becomes what is left
 * of them. N is 16 for E4M3 and 32 for powers of two. */
template <int N> BOTH uint32_t fp4_pack(uint32_t (&codes)[N / 8], float (&v)[N])
{
    float largest = 0.0f;
    for (int i = 0; i < N; i++) largest = fmaxf(largest, fabsf(v[i]));
    const uint32_t code = N == 16 ? fp4_e4m3_code(largest / 6.0f) : fp4_e8m0_code(largest);
    const float scale = N == 16 ? fp4_e4m3_value(code) : fp4_e8m0_value(code);
    const float by = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int w = 0; w < N / 8; w++) {
        uint32_t word = 0;
        for (int i = 0; i < 8; i++) {
            const uint32_t q = fp4_code(v[8 * w + i] * by);
            v[8 * w + i] -= scale * fp4_value(q);
            word |= q << 4 * i;
        }
        codes[w] = word;
    }
    return code;
}

#endif
