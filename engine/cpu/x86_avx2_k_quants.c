/* x86_avx2_k_quants.c - AVX2 kernels of the formats with 256 weights and small integer scales.
 *
 * A super-block is a segment: eight blocks of 32, each in one register after a shift and a mask.
 * Codes stay unsigned. The scale of a sub-block of 32 weights is multiplied into d, exactly. With
 * sub-blocks of 16 the two halves of a register have different scales: the madd from words to
 * dwords multiplies by the scales instead of ones. For minimums, and for the offsets of Q3_K and
 * Q6_K, one madd with the sums of 16 activations serves all eight blocks. */
#include "engine/cpu/isa_sets.h"
#include "engine/cpu/x86_avx2.h"
#include "engine/cpu/x86_iq4.h"
#include "loader/quant_blocks.h"

/* ---- bits and scales ----------------------------------------------------------------------- */

/* Shifts the bits of each byte, left if up > 0, and masks them. The mask must clear the bits that
 * cross into a neighbouring byte. */
AVX_INLINE __m256i moved_bits(__m256i v, int up, int mask)
{
    const __m256i moved = up > 0 ? _mm256_slli_epi16(v, up) :
                          up < 0 ? _mm256_srli_epi16(v, -up) : v;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* Arranges the scales of 16 halves for scaled_sums(): first halves in the low half of the
 * register. */
AVX_INLINE __m256i halves_apart(__m128i scales)
{
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, apart));
}

/* ---- values -------------------------------------------------------------------------------- */

AVX_INLINE void products(__m256i words[8], const segment *g, const act_segment *x)
{
    for (int j = 0; j < 8; j++) words[j] = products_unsigned(g->w[j], load256(x->q + 32 * j));
}

/* Returns sc_0 * I_0 + sc_1 * I_1 of each block; sc is from halves_apart(). Like block_sums(), but
 * merges the halves of a register only after they are scaled. */
AVX_INLINE __m256i scaled_sums(const __m256i words[8], __m256i sc, int n_words)
{
    const __m256i four_times = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302,
                                                  0x0100010001000100, 0x0302030203020302);
    __m256i v[4];
    for (int j = 0; j < 4; j++) {                            /* [ 2j 2j+1 | 2j 2j+1 ] */
        const __m256i of_two = _mm256_add_epi8(four_times, _mm256_set1_epi8((char)(4 * j)));
        v[j] = merge_quarters(words[2 * j], words[2 * j + 1], true);
        if (n_words == 1) v[j] = _mm256_madd_epi16(v[j], _mm256_shuffle_epi8(sc, of_two));
    }
    for (int j = 0; j < 2; j++)                              /* [ 0 1 2 3 | 0 1 2 3 ] */
        v[j] = merge_neighbours(v[2 * j], v[2 * j + 1], n_words >= 2);
    if (n_words >= 2) {
        v[0] = _mm256_madd_epi16(v[0], _mm256_unpacklo_epi16(sc, sc));
        v[1] = _mm256_madd_epi16(v[1], _mm256_unpackhi_epi16(sc, sc));
    }
    return merge_halves(v[0], v[1], false);
}

/* d * A - c * B, for blocks of one scale, which is part of d. */
AVX_INLINE __m256 less_minimum(const segment *g, const act_segment *x, __m256i a)
{
    const __m256i b = _mm256_madd_epi16(load256(x->s), g->m);
    const __m256 minimum = _mm256_mul_ps(g->c, _mm256_cvtepi32_ps(b));
    return _mm256_fmsub_ps(g->d, _mm256_cvtepi32_ps(a), minimum);
}

/* d * A, for codes with an offset of 1 << offset_bits; g->m has the scales in the order of s. */
AVX_INLINE __m256 less_offset(const segment *g, const act_segment *x, __m256i of_codes,
                              int offset_bits)
{
    const __m256i scaled = _mm256_madd_epi16(load256(x->s), g->m);
    const __m256i a = _mm256_sub_epi32(of_codes, _mm256_slli_epi32(scaled, offset_bits));
    return _mm256_mul_ps(g->d, _mm256_cvtepi32_ps(a));
}

/* ---- 32 weights to a scale: Q4_K, Q5_K, IQ4_XS ---------------------------------------------- */

/* Unpacks d, dmin and the 6-bit scales and minimums of Q4_K and Q5_K from 16 bytes. */
AVX_INLINE void k_scales(segment *g, const uint8_t *head)
{
    const __m128i v = load128(head);     /* dwords: d and dmin, scales[0..3], [4..7], [8..11] */
    const __m128i low = _mm_and_si128(
        _mm_srlv_epi32(_mm_shuffle_epi32(v, _MM_SHUFFLE(3, 3, 2, 1)), _mm_setr_epi32(0, 0, 0, 4)),
        _mm_setr_epi32(0x3F3F3F3F, 0x3F3F3F3F, 0x0F0F0F0F, 0x0F0F0F0F));
    const __m128i top = _mm_and_si128(
        _mm_srli_epi16(_mm_shuffle_epi32(v, _MM_SHUFFLE(2, 1, 0, 0)), 2),
        _mm_setr_epi32(0, 0, 0x30303030, 0x30303030));
    /* bytes: scales 0-3, minimums 0-3, scales 4-7, minimums 4-7 */
    const __m256i both = _mm256_broadcastsi128_si256(_mm_or_si128(low, top));
    const __m256i scale_dwords = _mm256_setr_epi32(
        (int)0x80808000, (int)0x80808001, (int)0x80808002, (int)0x80808003,
        (int)0x80808008, (int)0x80808009, (int)0x8080800A, (int)0x8080800B);
    const __m256i minimum_twice = _mm256_setr_epi32(
        (int)0x80048004, (int)0x80058005, (int)0x80068006, (int)0x80078007,
        (int)0x800C800C, (int)0x800D800D, (int)0x800E800E, (int)0x800F800F);
    const __m256 scale = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both, scale_dwords));
    __m256 d;

    two_halves(&d, &g->c, head);
    g->d = _mm256_mul_ps(d, scale);
    g->m = _mm256_shuffle_epi8(both, minimum_twice);
}

AVX_INLINE void q4_k_unpack(segment *g, const uint8_t *p)
{
    const block_q4_k *b = (const void *)p;
    for (int n = 0; n < 4; n++) {
        const __m256i codes = load256(b->nibbles[n]);
        g->w[2 * n] = moved_bits(codes, 0, 15);
        g->w[2 * n + 1] = moved_bits(codes, -4, 15);
    }
    k_scales(g, b->d);
}

AVX_INLINE __m256 q4_k_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    products(words, g, x);
    return less_minimum(g, x, block_sums(words, merges_in_words(15)));
}

AVX_INLINE void q5_k_unpack(segment *g, const uint8_t *p)
{
    const block_q5_k *b = (const void *)p;
    const __m256i high = load256(b->high);
    for (int n = 0; n < 4; n++) {
        const __m256i codes = load256(b->nibbles[n]);
        g->w[2 * n] = joined_bits(moved_bits(codes, 0, 15), moved_bits(high, 4 - 2 * n, 16));
        g->w[2 * n + 1] = joined_bits(moved_bits(codes, -4, 15), moved_bits(high, 3 - 2 * n, 16));
    }
    k_scales(g, b->d);
}

AVX_INLINE __m256 q5_k_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    products(words, g, x);
    return less_minimum(g, x, block_sums(words, merges_in_words(31)));
}

AVX_INLINE void iq4_xs_unpack(segment *g, const uint8_t *p)
{
    iq4_xs_levels(g, p, 0);
}

AVX_INLINE __m256 iq4_xs_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    for (int j = 0; j < 8; j++) words[j] = products_signed(g->w[j], load256(x->q + 32 * j));
    return _mm256_mul_ps(g->d, _mm256_cvtepi32_ps(block_sums(words, merges_in_words(127))));
}

/* ---- 16 weights to a scale: Q2_K, Q3_K, Q6_K ------------------------------------------------ */

AVX_INLINE void q2_k_unpack(segment *g, const uint8_t *p)
{
    const block_q2_k *b = (const void *)p;
    const __m128i scales = load128(b->scales), low = _mm_set1_epi8(15);
    for (int j = 0; j < 8; j++)
        g->w[j] = moved_bits(load256(b->quants + 32 * (j / 4)), -2 * (j % 4), 3);
    g->sc = halves_apart(_mm_and_si128(scales, low));
    g->m = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(scales, 4), low));
    two_halves(&g->d, &g->c, b->d);
}

AVX_INLINE __m256 q2_k_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    products(words, g, x);
    return less_minimum(g, x, scaled_sums(words, g->sc, merges_in_words(3)));
}

/* Returns 16 scales of 6 bits, minus 32. The load begins two bytes early, because the bytes after d
 * may not be readable. */
AVX_INLINE __m128i q3_k_scales(const block_q3_k *b)
{
    const __m128i v = load128(b->scales - 2);
    const __m128i low = _mm_srlv_epi64(
        _mm_shuffle_epi8(v, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9)),
        _mm_set_epi64x(4, 0));
    const __m128i top = _mm_srlv_epi32(
        _mm_shuffle_epi8(v, _mm_set1_epi32(0x0D0C0B0A)), _mm_setr_epi32(0, 2, 4, 6));
    const __m128i six = _mm_or_si128(
        _mm_and_si128(low, _mm_set1_epi8(15)),
        _mm_slli_epi16(_mm_and_si128(top, _mm_set1_epi8(3)), 4));
    return _mm_sub_epi8(six, _mm_set1_epi8(32));
}

AVX_INLINE void q3_k_unpack(segment *g, const uint8_t *p)
{
    const block_q3_k *b = (const void *)p;
    const __m256i high = load256(b->high);
    const __m128i scales = q3_k_scales(b);
    __m256 unused;

    for (int j = 0; j < 8; j++) {
        const __m256i codes = load256(b->quants + 32 * (j / 4));
        g->w[j] = joined_bits(moved_bits(codes, -2 * (j % 4), 3), moved_bits(high, 2 - j, 4));
    }
    g->sc = halves_apart(scales);
    g->m = _mm256_cvtepi8_epi16(scales);
    two_halves(&unused, &g->d, b->d - 2);
}

AVX_INLINE __m256 q3_k_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    products(words, g, x);
    return less_offset(g, x, scaled_sums(words, g->sc, merges_in_words(7)), 2);
}

AVX_INLINE void q6_k_unpack(segment *g, const uint8_t *p)
{
    const block_q6_k *b = (const void *)p;
    const __m128i scales = load128(b->scales);
    __m256 unused;

    for (int h = 0; h < 2; h++) {
        const __m256i first = load256(b->low[h]), second = load256(b->low[h] + 32);
        const __m256i top = load256(b->high + 32 * h);
        __m256i *w = g->w + 4 * h;
        w[0] = joined_bits(moved_bits(first, 0, 15), moved_bits(top, 4, 0x30));
        w[1] = joined_bits(moved_bits(second, 0, 15), moved_bits(top, 2, 0x30));
        w[2] = joined_bits(moved_bits(first, -4, 15), moved_bits(top, 0, 0x30));
        w[3] = joined_bits(moved_bits(second, -4, 15), moved_bits(top, -2, 0x30));
    }
    g->sc = halves_apart(scales);
    g->m = _mm256_cvtepi8_epi16(scales);
    two_halves(&unused, &g->d, b->d - 2);
}

AVX_INLINE __m256 q6_k_values(const segment *g, const act_segment *x)
{
    __m256i words[8];
    products(words, g, x);
    return less_offset(g, x, scaled_sums(words, g->sc, merges_in_words(63)), 5);
}

/* ---- the table ----------------------------------------------------------------------------- */

#define FORMATS(X)                                                                                 \
    X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(IQ4_XS, iq4_xs)

#define DEFINE_DOT(NAME, format)                                                                   \
    static void dot_##format(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,        \
                             const act_row *x, int n_token, int cols)                              \
    {                                                                                              \
        static const segment_kernel k = { format##_unpack, format##_values,                        \
                                          (int)sizeof(block_##format), false };                    \
        walk_rows(&k, sums, rows, row_bytes, n_row, x, n_token, cols);                             \
    }
FORMATS(DEFINE_DOT)

void put_avx2_k_quants(kernel_set *s)
{
#define PUT_DOT(NAME, format) s->of[QT_##NAME].dot = dot_##format;
    FORMATS(PUT_DOT)
}
