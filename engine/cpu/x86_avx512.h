/* x86_avx512.h - shared by the AVX-512 kernels; private to the x86_avx512_*.c files.
 *
 * A row is processed in groups of sixteen blocks of 32 weights, two blocks in a register. Weights
 * are unpacked to unsigned codes, because vpdpbusd multiplies unsigned by signed bytes and never
 * saturates; the codes' offset times the sums of the activations is subtracted afterwards. The
 * products of the group become sixteen integers, one for each block in order, and then sixteen
 * values. Lane j % 8 of a row is a chain over j: the lower eight values are added first, the upper
 * eight second.
 *
 * Each type has two functions, always inlined: unpack converts the bytes of a group to codes and
 * scales; values computes the values of the blocks from those and the activations. A group is
 * unpacked once and multiplied by up to eight tokens. No byte outside the rows is read: in a short
 * last group the last block replaces the missing ones, with a scale of zero.
 *
 * The bottleneck is ports 0 and 5, which execute all 512-bit instructions except loads. So the
 * kernels prefer blends and repeated loads to shuffles.
 *
 * A "lane" of a register is one of its four runs of 128 bits; the eight lanes of a row are those of
 * the contract. */
#ifndef ENGINE_CPU_X86_AVX512_H
#define ENGINE_CPU_X86_AVX512_H

#include <immintrin.h>

#include "engine/cpu/isa_sets.h"
#include "loader/bytes.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUP = 16,                          /* blocks */
    TOKENS = 8,                          /* tokens that share an unpacked group */
    AHEAD_BYTES = 4096,                  /* distance of the prefetch; rows are contiguous */
};

/* Sixteen blocks. unpack sets the fields that the type's values function reads. */
typedef struct group {
    __m512i w[8];                        /* codes: w[i] has blocks 2i and 2i + 1 */
    __m512 d, c;                         /* by block: scale, and scale of the minimum */
    __m512i sc, m;                       /* by half block, int16: sub-scales and sub-minimums */
    __m512i by[4];                       /* defined by the type */
} group;

/* Reads only blocks 0 .. last of a group; last is 15 except at the end of a row. The scales of
 * later blocks must not make their values infinite. */
typedef void unpack_fn(group *g, const uint8_t *blocks, int last);

/* Returns the values of the blocks, in order, without the scale of the activations. */
typedef __m512 values_fn(const group *g, const int8_t *q, const int16_t *s);

/* ---- bytes of a group ------------------------------------------------------------------------ */

/* Returns block min(k, last); a block has `bytes` bytes. */
INLINE const uint8_t *block_at(const uint8_t *blocks, int k, int bytes, int last)
{
    return blocks + (k < last ? k : last) * bytes;
}

INLINE __m256i spread_word(const uint8_t *p)
{
    return _mm256_set1_epi32((int)load_u32(p));
}

/* Gathers the first four bytes of eight blocks, from k on. Uses blends, because all insertions run
 * on one port. */
INLINE __m256i eight_words(const uint8_t *blocks, int k, int bytes, int last)
{
    __m256i v[8];
    for (int i = 0; i < 8; i++) v[i] = spread_word(block_at(blocks, k + i, bytes, last));
    v[0] = _mm256_blend_epi32(v[0], v[1], 0x02);
    v[2] = _mm256_blend_epi32(v[2], v[3], 0x08);
    v[4] = _mm256_blend_epi32(v[4], v[5], 0x20);
    v[6] = _mm256_blend_epi32(v[6], v[7], 0x80);
    return _mm256_blend_epi32(_mm256_blend_epi32(v[0], v[2], 0x0C),
                              _mm256_blend_epi32(v[4], v[6], 0xC0), 0xF0);
}

/* Gathers the first four bytes of the sixteen blocks. */
INLINE __m512i sixteen_words(const uint8_t *blocks, int bytes, int last)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(eight_words(blocks, 0, bytes, last)),
                              eight_words(blocks, 8, bytes, last), 1);
}

/* Converts the binary16 numbers in the lower halves of 32-bit words. */
INLINE __m512 low_halves(__m512i words)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

/* Loads sixteen bytes twice from each address: lanes a, a, b, b. */
INLINE __m512i twice_each(const uint8_t *a, const uint8_t *b)
{
    const __m512i all_a = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)a));
    return _mm512_mask_broadcast_i32x4(all_a, 0xFF00, _mm_loadu_si128((const __m128i *)b));
}

/* Loads 32 bytes to both halves. */
INLINE __m512i both_halves(const uint8_t *p)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

/* Returns one 64-bit number in the lower half and one in the upper, mostly shift counts. */
INLINE __m512i halves_of(int64_t low, int64_t high)
{
    return _mm512_set_epi64(high, high, high, high, low, low, low, low);
}

INLINE __m512i and_byte(__m512i v, int mask)
{
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* a | (b & c) */
INLINE __m512i or_and(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0xF8);
}

/* "Halves order": lanes a, a, b, b become the codes of blocks a and b. */
INLINE __m512i nibbles_of(__m512i lanes)
{
    const __m512i shift = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return and_byte(_mm512_srlv_epi64(lanes, shift), 15);
}

/* Returns sixteen levels plus offset as a table for vpshufb. */
INLINE __m512i table_of(const int8_t levels[16], int offset)
{
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)levels));
    return _mm512_add_epi8(t, _mm512_set1_epi8((char)offset));
}

/* Clears elements after the last block: the repeated scale may be infinite, and 0 * Inf is NaN. */
INLINE __m512 until(__m512 v, int last)
{
    return last == GROUP - 1 ? v : _mm512_maskz_mov_ps((__mmask16)(0xFFFF >> (15 - last)), v);
}

/* ---- products to sums ------------------------------------------------------------------------ */

/* Blocks 2i and 2i + 1 with their activations: sixteen sums of four products each. */
INLINE __m512i products(const group *g, const int8_t *q, int i)
{
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), g->w[i],
                               _mm512_loadu_si512((const void *)(q + 64 * i)));
}

/* Adds neighbours of a, then neighbours of b, in each lane. All inputs must fit in 16 bits. */
INLINE __m512i add_neighbours(__m512i a, __m512i b)
{
    return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
}

/* Returns the sums of the half blocks of eight blocks, from w[i] on. Lane h has half h % 2 of the
 * blocks h / 2, + 2, + 4, + 6: the lanes of a product register are four half blocks, and the result
 * is their transposition. Codes are at most 31, so that eight products fit in 16 bits. */
INLINE __m512i half_sums(const group *g, const int8_t *q, int i)
{
    return add_neighbours(add_neighbours(products(g, q, i), products(g, q, i + 1)),
                          add_neighbours(products(g, q, i + 2), products(g, q, i + 3)));
}

INLINE __m512i add_interleaved(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

/* half_sums() for codes of eight bits. */
INLINE __m512i half_sums_wide(const group *g, const int8_t *q, int i)
{
    const __m512i a = add_interleaved(products(g, q, i), products(g, q, i + 1));
    const __m512i b = add_interleaved(products(g, q, i + 2), products(g, q, i + 3));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Indices of the first halves of the blocks in two results of half_sums(); those of the second
 * halves are larger by four. */
INLINE __m512i first_halves(void)
{
    return _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
}

INLINE __m512i second_halves(void)
{
    return _mm512_add_epi32(first_halves(), _mm512_set1_epi32(4));
}

/* Adds two results of half_sums() to the sums of the sixteen blocks, in order. */
INLINE __m512i block_sums(__m512i low, __m512i high)
{
    return _mm512_add_epi32(_mm512_permutex2var_epi32(low, first_halves(), high),
                            _mm512_permutex2var_epi32(low, second_halves(), high));
}

/* Returns the sums of a group whose codes include `offset` and have at most `bits` bits. */
INLINE __m512i group_sums(const group *g, const int8_t *q, const int16_t *s, int bits, int offset)
{
    const __m512i sums = bits > 5 ? block_sums(half_sums_wide(g, q, 0), half_sums_wide(g, q, 4))
                                  : block_sums(half_sums(g, q, 0), half_sums(g, q, 4));
    if (offset == 0) return sums;
    return _mm512_dpwssd_epi32(sums, _mm512_loadu_si512((const void *)s),
                               _mm512_set1_epi16((short)-offset));
}

/* ---- values ---------------------------------------------------------------------------------- */

/* d * I */
INLINE __m512 scaled(const group *g, __m512i sums)
{
    return _mm512_mul_ps(g->d, _mm512_cvtepi32_ps(sums));
}

/* fma(d, I, c * B); B is the sum over halves of activations' sum times sub-minimum */
INLINE __m512 with_minimum(const group *g, __m512i sums, const int16_t *s)
{
    const __m512i b = _mm512_madd_epi16(g->m, _mm512_loadu_si512((const void *)s));
    const __m512 minimum = _mm512_mul_ps(g->c, _mm512_cvtepi32_ps(b));
    return _mm512_fmadd_ps(g->d, _mm512_cvtepi32_ps(sums), minimum);
}

/* ---- rows ------------------------------------------------------------------------------------ */

INLINE __m256 add_values(__m256 lanes, __m512 v, const float *dx)
{
    lanes = _mm256_fmadd_ps(_mm256_loadu_ps(dx), _mm512_castps512_ps256(v), lanes);
    return _mm256_fmadd_ps(_mm256_loadu_ps(dx + 8), _mm512_extractf32x8_ps(v, 1), lanes);
}

/* The contract's tree, then + 0, which turns -0 into +0. */
INLINE float fold8(__m256 lanes)
{
    const __m128 p = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    const __m128 pairs = _mm_add_ps(p, _mm_movehdup_ps(p));
    const __m128 sum = _mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs));
    return _mm_cvtss_f32(sum) + 0.0f;
}

INLINE void prefetch_ahead(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_T0);
}

/* One group of a row, from block j on, with n tokens. */
INLINE void dot_group(__m256 *lanes, const uint8_t *blocks, int last, const act_row *x, int n,
                      int j, int group_bytes, unpack_fn *unpack, values_fn *values)
{
    group g;
    prefetch_ahead(blocks, group_bytes);
    unpack(&g, blocks, last);
    for (int t = 0; t < n; t++) {
        const __m512 v = values(&g, x[t].q + 32 * j, x[t].s + 2 * j);
        lanes[t] = add_values(lanes[t], v, x[t].dx + j);
    }
}

/* All rows with n tokens, at most TOKENS. group_bytes, the functions and mostly n are constants. */
INLINE void dot_tokens(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                       const act_row *x, int n, int n_block, int group_bytes, unpack_fn *unpack,
                       values_fn *values)
{
    for (int r = 0; r < n_row; r++) {
        const uint8_t *blocks = rows + (size_t)r * row_bytes;
        __m256 lanes[TOKENS];
        int j = 0;

        for (int t = 0; t < n; t++) lanes[t] = _mm256_setzero_ps();
        for (; j + GROUP <= n_block; j += GROUP, blocks += group_bytes)
            dot_group(lanes, blocks, GROUP - 1, x, n, j, group_bytes, unpack, values);
        if (n_block - j == 10)           /* gpt-oss: a constant is faster */
            dot_group(lanes, blocks, 9, x, n, j, group_bytes, unpack, values);
        else if (j < n_block)
            dot_group(lanes, blocks, n_block - j - 1, x, n, j, group_bytes, unpack, values);
        for (int t = 0; t < n; t++) sums[(size_t)t * (size_t)n_row + (size_t)r] = fold8(lanes[t]);
    }
}

INLINE void dot_groups(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                       const act_row *x, int n_token, int cols, int group_bytes, unpack_fn *unpack,
                       values_fn *values)
{
    const int n_block = cols / 32;
    if (n_token == 1) {
        dot_tokens(sums, rows, row_bytes, n_row, x, 1, n_block, group_bytes, unpack, values);
        return;
    }
    for (int t = 0; t < n_token; t += TOKENS)
        dot_tokens(sums + (size_t)t * (size_t)n_row, rows, row_bytes, n_row, x + t,
                   n_token - t < TOKENS ? n_token - t : TOKENS, n_block, group_bytes, unpack,
                   values);
}

/* Defines dot_NAME() for a type with `elems` weights in a block_<format>, from unpack_<format> and
 * values_<format>. */
#define DEFINE_DOT(NAME, format, elems)                                                            \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_groups(sums, rows, row_bytes, n_row, x, n_token, cols,                                 \
                   32 * GROUP / (elems) * (int)sizeof(block_##format), unpack_##format,            \
                   values_##format);                                                               \
    }

#define PUT_DOT(NAME, format, elems) set->of[QT_##NAME].dot = dot_##NAME;

#endif
