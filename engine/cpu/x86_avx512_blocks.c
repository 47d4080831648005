/* x86_avx512_blocks.c - AVX-512 kernels for small blocks: 32 weights and a binary16 (Q4_0 to Q8_0,
 * IQ4_NL), 32 weights and an exponent (MXFP4), 64 weights and four scales (NVFP4).
 *
 * Blocks are 17 to 36 bytes apart, so each is loaded separately. The four-bit codes of two blocks
 * are loaded twice each, one half of a register for each block, and the second copy is shifted:
 * this gives the weights the order of the activations without a shuffle. Scales are extracted from
 * sixteen 32-bit words. */
#include "engine/cpu/x86_avx512.h"
#include "loader/quant_blocks.h"

/* ---- one binary16 ---------------------------------------------------------------------------- */

/* Unpacks blocks 2i and 2i + 1 of a format with 16 bytes of nibbles at offset `from`. */
INLINE __m512i nibble_pair(const uint8_t *blocks, int i, int bytes, int from, int last)
{
    return nibbles_of(twice_each(block_at(blocks, 2 * i, bytes, last) + from,
                                 block_at(blocks, 2 * i + 1, bytes, last) + from));
}

/* Adds 16 for each set bit of the 32 fifth bits at offset `from` of blocks 2i and 2i + 1. */
INLINE __m512i add_fifth_bits(__m512i w, const uint8_t *blocks, int i, int bytes, int from,
                              int last)
{
    const uint64_t low = load_u32(block_at(blocks, 2 * i, bytes, last) + from);
    const uint64_t high = load_u32(block_at(blocks, 2 * i + 1, bytes, last) + from);
    return _mm512_mask_add_epi8(w, low | high << 32, w, _mm512_set1_epi8(16));
}

/* Sets d from the binary16 at the start of the blocks. */
INLINE void put_scale(group *g, const uint8_t *blocks, int bytes, int last)
{
    g->d = until(low_halves(sixteen_words(blocks, bytes, last)), last);
}

/* Sets d and c from the two binary16 at the start of the blocks. One minimum serves both halves. */
INLINE void put_scale_and_minimum(group *g, const uint8_t *blocks, int bytes, int last)
{
    const __m512i words = sixteen_words(blocks, bytes, last);
    g->d = until(low_halves(words), last);
    g->c = until(low_halves(_mm512_srli_epi32(words, 16)), last);
    g->m = _mm512_set1_epi16(1);
}

INLINE void unpack_q4_0(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_q4_0) };
    for (int i = 0; i < 8; i++)
        g->w[i] = nibble_pair(blocks, i, BYTES, offsetof(block_q4_0, nibbles), last);
    put_scale(g, blocks, BYTES, last);
}

INLINE __m512 values_q4_0(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 4, 8));
}

INLINE void unpack_q4_1(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_q4_1) };
    for (int i = 0; i < 8; i++)
        g->w[i] = nibble_pair(blocks, i, BYTES, offsetof(block_q4_1, nibbles), last);
    put_scale_and_minimum(g, blocks, BYTES, last);
}

INLINE __m512 values_q4_1(const group *g, const int8_t *q, const int16_t *s)
{
    return with_minimum(g, group_sums(g, q, s, 4, 0), s);
}

INLINE void unpack_q5_0(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_q5_0) };
    for (int i = 0; i < 8; i++) {
        const __m512i low = nibble_pair(blocks, i, BYTES, offsetof(block_q5_0, nibbles), last);
        g->w[i] = add_fifth_bits(low, blocks, i, BYTES, offsetof(block_q5_0, high), last);
    }
    put_scale(g, blocks, BYTES, last);
}

INLINE __m512 values_q5_0(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 5, 16));
}

INLINE void unpack_q5_1(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_q5_1) };
    for (int i = 0; i < 8; i++) {
        const __m512i low = nibble_pair(blocks, i, BYTES, offsetof(block_q5_1, nibbles), last);
        g->w[i] = add_fifth_bits(low, blocks, i, BYTES, offsetof(block_q5_1, high), last);
    }
    put_scale_and_minimum(g, blocks, BYTES, last);
}

INLINE __m512 values_q5_1(const group *g, const int8_t *q, const int16_t *s)
{
    return with_minimum(g, group_sums(g, q, s, 5, 0), s);
}

/* Adds 128 to make the signed weights unsigned. */
INLINE void unpack_q8_0(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_q8_0), FROM = offsetof(block_q8_0, quants) };
    for (int i = 0; i < 8; i++) {
        const uint8_t *a = block_at(blocks, 2 * i, BYTES, last) + FROM;
        const uint8_t *b = block_at(blocks, 2 * i + 1, BYTES, last) + FROM;
        const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)a));
        const __m512i w = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)b), 1);
        g->w[i] = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
    }
    put_scale(g, blocks, BYTES, last);
}

INLINE __m512 values_q8_0(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 8, 128));
}

/* Adds 127 to make the levels -127 .. 113 unsigned. */
INLINE void unpack_iq4_nl(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_iq4_nl) };
    static const int8_t levels[16] = { IQ4_LEVELS };
    const __m512i table = table_of(levels, 127);
    for (int i = 0; i < 8; i++)
        g->w[i] = _mm512_shuffle_epi8(
            table, nibble_pair(blocks, i, BYTES, offsetof(block_iq4_nl, nibbles), last));
    put_scale(g, blocks, BYTES, last);
}

INLINE __m512 values_iq4_nl(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 8, 127));
}

/* ---- 4-bit floats ---------------------------------------------------------------------------- */

static const int8_t e2m1_twice[16] = { E2M1_TWICE };
enum { E2M1_OFFSET = 12 };               /* makes E2M1_TWICE unsigned: 0 .. 24 */

/* The scale is the exponent field of a float; the bits above it belong to the first nibble. */
INLINE void unpack_mxfp4(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_mxfp4) };
    const __m512i table = table_of(e2m1_twice, E2M1_OFFSET);
    const __m512i words = sixteen_words(blocks, BYTES, last);
    const __m512i bits = _mm512_and_si512(_mm512_slli_epi32(words, 23),
                                          _mm512_set1_epi32(0x7F800000));
    for (int i = 0; i < 8; i++)
        g->w[i] = _mm512_shuffle_epi8(
            table, nibble_pair(blocks, i, BYTES, offsetof(block_mxfp4, nibbles), last));
    g->d = until(_mm512_castsi512_ps(bits), last);
}

INLINE __m512 values_mxfp4(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 5, E2M1_OFFSET));
}

/* Converts the 32 scales of the half blocks of eight block_nvfp4: E4M3 in the fields of a binary16,
 * zero for codes that are not numbers. The first 16 results belong to the first four blocks, in the
 * order of half_sums(): all first scales, all second ones, and so on. */
INLINE __m512i nvfp4_scales(__m256i words)
{
    const __m256i transposed = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_shuffle_epi8(words, transposed));
    const __m512i magnitudes = _mm512_and_si512(codes, _mm512_set1_epi16(0x7F));
    const __mmask32 finite = _mm512_cmpneq_epi16_mask(magnitudes, _mm512_set1_epi16(0x7F));
    return _mm512_maskz_slli_epi16(finite, magnitudes, 7);
}

/* 64 weights in four runs of 16, each with its nibbles in 8 bytes, which are loaded twice. No scale
 * is infinite, so blocks after the last need no mask. d and c are the scales of the first and of
 * the last eight blocks, by half block in the order of half_sums(). */
INLINE void unpack_nvfp4(group *g, const uint8_t *blocks, int last)
{
    enum { BYTES = sizeof(block_nvfp4) };
    const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    const __m512i shift = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i table = table_of(e2m1_twice, E2M1_OFFSET);
    const __m512i scales = nvfp4_scales(eight_words(blocks, 0, BYTES, last / 2));
    for (int i = 0; i < 8; i++) {
        const uint8_t *from = block_at(blocks, i, BYTES, last / 2) + offsetof(block_nvfp4, nibbles);
        const __m256i nibbles = _mm256_loadu_si256((const __m256i *)from);
        const __m512i both = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(nibbles));
        g->w[i] = _mm512_shuffle_epi8(table, and_byte(_mm512_srlv_epi64(both, shift), 15));
    }
    g->d = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
    g->c = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(scales, 1));
}

/* Returns f * I by half block, exactly. sums is from half_sums(); first selects eight of the
 * sixteen blocks. */
INLINE __m512 nvfp4_products(__m512 f, __m512i sums, __m512i s, int first)
{
    const __m512i blocks = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    const __m512i halves = _mm512_maskz_set1_epi16(0xAA55AA55, -E2M1_OFFSET);   /* lane by lane */
    const __m512i these = _mm512_add_epi32(blocks, _mm512_set1_epi32(first));
    const __m512i exact = _mm512_dpwssd_epi32(sums, _mm512_permutexvar_epi32(these, s), halves);
    return _mm512_mul_ps(f, _mm512_cvtepi32_ps(exact));
}

/* Both products are exact, so their sum is the contract's fma. */
INLINE __m512 values_nvfp4(const group *g, const int8_t *q, const int16_t *s)
{
    const __m512i sums = _mm512_loadu_si512((const void *)s);
    const __m512 low = nvfp4_products(g->d, half_sums(g, q, 0), sums, 0);
    const __m512 high = nvfp4_products(g->c, half_sums(g, q, 4), sums, 8);
    return _mm512_add_ps(_mm512_permutex2var_ps(low, first_halves(), high),
                         _mm512_permutex2var_ps(low, second_halves(), high));
}

/* ---- the table ------------------------------------------------------------------------------- */

#define FORMATS(X)                                                                                 \
    X(Q4_0, q4_0, 32) X(Q4_1, q4_1, 32) X(Q5_0, q5_0, 32) X(Q5_1, q5_1, 32) X(Q8_0, q8_0, 32)      \
    X(IQ4_NL, iq4_nl, 32) X(MXFP4, mxfp4, 32) X(NVFP4, nvfp4, 64)

FORMATS(DEFINE_DOT)

void put_avx512_blocks(kernel_set *set)
{
    FORMATS(PUT_DOT)
}
