/* x86_avx2_blocks.c - AVX2 kernels of the formats with 32 weights and a scale (NVFP4: two).
 *
 * Scales are between the weights, one every 17 to 34 bytes; x86_strides.h gathers eight of them.
 *
 * If codes have an offset, weights stay unsigned, and the offset times the sum of the activations
 * is subtracted from the block sums: one madd for eight blocks. With an offset Q8_0 and IQ4_NL
 * would exceed 16 bits; there the sign of a weight moves to its activation. */
#include "engine/cpu/isa_sets.h"
#include "engine/cpu/x86_avx2.h"
#include "engine/cpu/x86_iq4.h"
#include "loader/quant_blocks.h"

/* ---- scales of eight blocks ---------------------------------------------------------------- */

/* The dwords at p[0], p[1], p[2] and p[3]. */
AVX_INLINE __m128i dwords_at(const uint8_t *p0, const uint8_t *p1, const uint8_t *p2,
                             const uint8_t *p3)
{
    __m128i v = load128(p0);
    v = _mm_blend_epi32(v, load128(p1 - 4), 1 << 1);
    v = _mm_blend_epi32(v, load128(p2 - 8), 1 << 2);
    return _mm_blend_epi32(v, load128(p3 - 12), 1 << 3);
}

/* Gathers pairs of binary16, a scale and a minimum, at p, p + stride, ... The blocks are loaded in
 * an order from which shuffles within 128-bit halves restore the right one. */
AVX_INLINE void half_pairs_at(__m256 *first, __m256 *second, const uint8_t *p, int stride)
{
    const __m256 a = _mm256_cvtph_ps(dwords_at(p, p + stride, p + 4 * stride, p + 5 * stride));
    const __m256 b = _mm256_cvtph_ps(dwords_at(p + 2 * stride, p + 3 * stride, p + 6 * stride,
                                               p + 7 * stride));
    *first = _mm256_shuffle_ps(a, b, 0x88);
    *second = _mm256_shuffle_ps(a, b, 0xDD);
}

/* ---- weights of one block ------------------------------------------------------------------ */

/* nibbles_at() plus separate fifth bits: bit i for weight i. */
AVX_INLINE __m256i five_bits_at(const uint8_t *nibbles, const uint8_t *high)
{
    const __m256i own_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                                0x0303030303030303);
    const __m256i own_bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    const __m256i bytes = _mm256_shuffle_epi8(load32_repeated(high), own_byte);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own_bit), own_bit);
    return joined_bits(nibbles_at(nibbles), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

/* ---- values of eight blocks ---------------------------------------------------------------- */

AVX_INLINE __m256i unsigned_sums(const segment *g, const act_segment *x, int max_weight)
{
    __m256i words[8];
    for (int j = 0; j < 8; j++) words[j] = products_unsigned(g->w[j], load256(x->q + 32 * j));
    return block_sums(words, merges_in_words(max_weight));
}

AVX_INLINE __m256i signed_sums(const segment *g, const act_segment *x)
{
    __m256i words[8];
    for (int j = 0; j < 8; j++) words[j] = products_signed(g->w[j], load256(x->q + 32 * j));
    return block_sums(words, merges_in_words(128));
}

/* d * (sum of w * q); the weights are codes of 0 .. max_code minus offset. */
AVX_INLINE __m256 offset_values(const segment *g, const act_segment *x, int max_code, int offset)
{
    const __m256i of_codes = unsigned_sums(g, x, max_code);
    const __m256i of_offset = _mm256_madd_epi16(load256(x->s), _mm256_set1_epi16((short)offset));
    return _mm256_mul_ps(g->d, _mm256_cvtepi32_ps(_mm256_sub_epi32(of_codes, of_offset)));
}

AVX_INLINE __m256 signed_values(const segment *g, const act_segment *x)
{
    return _mm256_mul_ps(g->d, _mm256_cvtepi32_ps(signed_sums(g, x)));
}

/* d * (sum of n * q) + c * (sum of q) */
AVX_INLINE __m256 minimum_values(const segment *g, const act_segment *x, int max_code)
{
    const __m256 sums = _mm256_cvtepi32_ps(unsigned_sums(g, x, max_code));
    const __m256 of_x = _mm256_cvtepi32_ps(widen_words(load256(x->s)));
    return _mm256_fmadd_ps(g->d, sums, _mm256_mul_ps(g->c, of_x));
}

/* ---- the formats --------------------------------------------------------------------------- */

AVX_INLINE void q4_0_unpack(segment *g, const uint8_t *p)
{
    const block_q4_0 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = nibbles_at(b[j].nibbles);
    g->d = halves_at(b->d, sizeof *b);
}

AVX_INLINE __m256 q4_0_values(const segment *g, const act_segment *x)
{
    return offset_values(g, x, 15, 8);
}

AVX_INLINE void q4_1_unpack(segment *g, const uint8_t *p)
{
    const block_q4_1 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = nibbles_at(b[j].nibbles);
    half_pairs_at(&g->d, &g->c, b->d, sizeof *b);
}

AVX_INLINE __m256 q4_1_values(const segment *g, const act_segment *x)
{
    return minimum_values(g, x, 15);
}

AVX_INLINE void q5_0_unpack(segment *g, const uint8_t *p)
{
    const block_q5_0 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = five_bits_at(b[j].nibbles, b[j].high);
    g->d = halves_at(b->d, sizeof *b);
}

AVX_INLINE __m256 q5_0_values(const segment *g, const act_segment *x)
{
    return offset_values(g, x, 31, 16);
}

AVX_INLINE void q5_1_unpack(segment *g, const uint8_t *p)
{
    const block_q5_1 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = five_bits_at(b[j].nibbles, b[j].high);
    half_pairs_at(&g->d, &g->c, b->d, sizeof *b);
}

AVX_INLINE __m256 q5_1_values(const segment *g, const act_segment *x)
{
    return minimum_values(g, x, 31);
}

AVX_INLINE void q8_0_unpack(segment *g, const uint8_t *p)
{
    const block_q8_0 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = load256(b[j].quants);
    g->d = halves_at(b->d, sizeof *b);
}

AVX_INLINE __m256 q8_0_values(const segment *g, const act_segment *x)
{
    return signed_values(g, x);
}

AVX_INLINE void iq4_nl_unpack(segment *g, const uint8_t *p)
{
    iq4_nl_levels(g, p, 0);
}

AVX_INLINE __m256 iq4_nl_values(const segment *g, const act_segment *x)
{
    return signed_values(g, x);
}

/* ---- 4-bit floats -------------------------------------------------------------------------- */

enum { E2M1_OFFSET = 12 };               /* makes E2M1_TWICE unsigned: 0 .. 24 */

AVX_INLINE __m256i e2m1_unsigned(__m256i codes)
{
    const __m128i twice = _mm_setr_epi8(E2M1_TWICE);
    const __m128i table = _mm_add_epi8(twice, _mm_set1_epi8(E2M1_OFFSET));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
}

AVX_INLINE void mxfp4_unpack(segment *g, const uint8_t *p)
{
    const block_mxfp4 *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = e2m1_unsigned(nibbles_at(b[j].nibbles));
    g->d = exponents_at(&b->e, sizeof *b);
}

AVX_INLINE __m256 mxfp4_values(const segment *g, const act_segment *x)
{
    return offset_values(g, x, 2 * E2M1_OFFSET, E2M1_OFFSET);
}

/* Converts the scales of 16 halves; *first has those of first halves. A code is E4M3 without sign
 * and becomes the binary16 with the same fields; 0x7F becomes 0. */
AVX_INLINE void e4m3_scales(__m256 *first, __m256 *second, __m128i codes)
{
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i most = _mm_set1_epi8(0x7F), code = _mm_and_si128(codes, most);
    const __m128i valid = _mm_andnot_si128(_mm_cmpeq_epi8(code, most), code);
    const __m256i half = _mm256_slli_epi16(
        _mm256_cvtepu8_epi16(_mm_shuffle_epi8(valid, apart)), 7);
    *first = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    *second = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

/* 64 weights in 32 bytes: four runs of 8 bytes, each with 8 low nibbles, then 8 high ones. Two
 * blocks share two registers, w[2i] with the low nibbles and w[2i+1] with the high ones:
 *
 *     [ first half of block 2i, of block 2i+1 | second half of block 2i, of block 2i+1 ]
 *
 * 8 weights each. One unpack for each register gives activations the same order. The sum of the two
 * products equals the result of a merge. */
AVX_INLINE void nvfp4_unpack(segment *g, const uint8_t *p)
{
    const block_nvfp4 *b = (const void *)p;
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 4; i++) {
        const __m256i runs = _mm256_permute4x64_epi64(load256(b[i].nibbles), 0xD8);
        g->w[2 * i] = e2m1_unsigned(_mm256_and_si256(runs, low));
        g->w[2 * i + 1] = e2m1_unsigned(_mm256_and_si256(_mm256_srli_epi16(runs, 4), low));
    }
    e4m3_scales(&g->d, &g->c, dwords_at(b[0].scales, b[1].scales, b[2].scales, b[3].scales));
}

/* fma(f_0, I_0, f_1 * I_1) */
AVX_INLINE __m256 nvfp4_values(const segment *g, const act_segment *x)
{
    const __m256i s = load256(x->s);     /* first half, second half, alternating */
    __m256i v[4], sums[2], first, second;
    for (int i = 0; i < 4; i++) {
        const __m256i q0 = load256(x->q + 64 * i), q1 = load256(x->q + 64 * i + 32);
        v[i] = _mm256_add_epi16(products_unsigned(g->w[2 * i], _mm256_unpacklo_epi64(q0, q1)),
                                products_unsigned(g->w[2 * i + 1], _mm256_unpackhi_epi64(q0, q1)));
    }
    for (int i = 0; i < 2; i++)
        sums[i] = widen_words(merge_neighbours(v[2 * i], v[2 * i + 1], true));
    first = _mm256_permute2x128_si256(sums[0], sums[1], 0x20);
    second = _mm256_permute2x128_si256(sums[0], sums[1], 0x31);
    first = _mm256_sub_epi32(first, _mm256_madd_epi16(s, _mm256_set1_epi32(E2M1_OFFSET)));
    second = _mm256_sub_epi32(second, _mm256_madd_epi16(s, _mm256_set1_epi32(E2M1_OFFSET << 16)));
    return _mm256_fmadd_ps(g->d, _mm256_cvtepi32_ps(first),
                           _mm256_mul_ps(g->c, _mm256_cvtepi32_ps(second)));
}

/* ---- the table ----------------------------------------------------------------------------- */

#define FORMATS(X)                                                                                 \
    X(Q4_0, q4_0, 32) X(Q4_1, q4_1, 32) X(Q5_0, q5_0, 32) X(Q5_1, q5_1, 32) X(Q8_0, q8_0, 32)      \
    X(IQ4_NL, iq4_nl, 32) X(MXFP4, mxfp4, 32) X(NVFP4, nvfp4, 64)

#define DEFINE_DOT(NAME, format, elems)                                                            \
    static void dot_##format(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,        \
                             const act_row *x, int n_token, int cols)                              \
    {                                                                                              \
        static const segment_kernel k = { format##_unpack, format##_values,                        \
                                          256 / (elems) * (int)sizeof(block_##format), true };     \
        walk_rows(&k, sums, rows, row_bytes, n_row, x, n_token, cols);                             \
    }
FORMATS(DEFINE_DOT)

void put_avx2_blocks(kernel_set *s)
{
#define PUT_DOT(NAME, format, elems) s->of[QT_##NAME].dot = dot_##format;
    FORMATS(PUT_DOT)
}
