/* x86_avx512_k_quants.c - AVX-512 kernels for super-blocks of 256 weights: Q2_K to Q6_K, IQ4_XS.
 *
 * A group is two super-blocks. If a row has an odd number of them the last one is used twice, the
 * second time with a scale of zero. In these formats one byte has codes of several blocks, so 32
 * bytes are loaded to both halves of a register and shifted by different amounts, which gives two
 * blocks in order. Sub-scales of 32 weights are converted to 32-bit words and multiplied by d,
 * which is exact. Sub-scales of 16 weights become int16, and vpmaddwd joins the halves of a block
 * in integers, because a block is rounded once. */
#include "engine/cpu/x86_avx512.h"
#include "loader/quant_blocks.h"

/* Returns the second super-block of a group. */
INLINE const uint8_t *second_of(const uint8_t *blocks, int bytes, int last)
{
    return block_at(blocks, 1, bytes, last / 8);
}

/* Loads 16 bytes of each super-block. */
INLINE __m256i sixteen_each(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}

/* Returns the two binary16 numbers at a, alternating, for eight blocks, and those at b for the
 * other eight. */
INLINE __m512 half_pairs(const uint8_t *a, const uint8_t *b)
{
    return _mm512_cvtph_ps(_mm256_blend_epi32(spread_word(a), spread_word(b), 0xF0));
}

/* Return the first, or the second, of the two for all blocks. */
INLINE __m512 first_half(__m512 pairs, int last)
{
    return until(_mm512_moveldup_ps(pairs), last);
}

INLINE __m512 second_half(__m512 pairs, int last)
{
    return until(_mm512_movehdup_ps(pairs), last);
}

INLINE __m512 minus(__m512 v)
{
    return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

/* Moves bits 2p and 2p + 1 of 32 bytes, for blocks 2p and 2p + 1, to bit dst. Other bits are
 * undefined, because the rotation mixes bytes. */
INLINE __m512i bit_pair(const uint8_t *bytes, int p, int dst)
{
    const int left = dst - 2 * p;
    return _mm512_rolv_epi64(both_halves(bytes), halves_of(left & 63, (left - 1) & 63));
}

/* ---- sub-blocks of 32: Q4_K, Q5_K, IQ4_XS ---------------------------------------------------- */

#define NO 0x80                          /* as an index of vpshufb: a zero byte */

/* Scales and minimums of q4_k and q5_k, which have the same header: binary16 d and dmin, then 12
 * bytes of 6-bit numbers. Those of blocks 0-3 are in one byte each. Of those of blocks 4-7 the
 * lower four bits are in bytes 12-15 and the upper two above the numbers of blocks 0-3. Each line
 * of the tables has four. m has every minimum twice, for both halves of its block. */
INLINE void put_six_bits(group *g, const uint8_t *a, const uint8_t *b, int last)
{
    static const uint8_t scale[32] = {
        4, NO, NO, NO, 5, NO, NO, NO, 6, NO, NO, NO, 7, NO, NO, NO,
        12, NO, NO, NO, 13, NO, NO, NO, 14, NO, NO, NO, 15, NO, NO, NO,
    };
    static const uint8_t scale_top[32] = {
        NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO,
        4, NO, NO, NO, 5, NO, NO, NO, 6, NO, NO, NO, 7, NO, NO, NO,
    };
    static const uint8_t minimum[32] = {
        8, NO, 8, NO, 9, NO, 9, NO, 10, NO, 10, NO, 11, NO, 11, NO,
        12, NO, 12, NO, 13, NO, 13, NO, 14, NO, 14, NO, 15, NO, 15, NO,
    };
    static const uint8_t minimum_top[32] = {
        NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO,
        8, NO, 8, NO, 9, NO, 9, NO, 10, NO, 10, NO, 11, NO, 11, NO,
    };
    const __m512i whole_or_low = _mm512_setr_epi64(0x003F003F003F003F, 0x003F003F003F003F,
                                                   0x000F000F000F000F, 0x000F000F000F000F,
                                                   0x003F003F003F003F, 0x003F003F003F003F,
                                                   0x000F000F000F000F, 0x000F000F000F000F);
    const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    const __m512i top_bits = _mm512_set1_epi16(0x30);
    const __m512i h = twice_each(a, b);
    const __m512i sc_low = _mm512_shuffle_epi8(h, both_halves(scale));
    const __m512i sc_top = _mm512_srli_epi32(_mm512_shuffle_epi8(h, both_halves(scale_top)), 2);
    const __m512i m_low = _mm512_srlv_epi64(_mm512_shuffle_epi8(h, both_halves(minimum)), shift);
    const __m512i m_top = _mm512_srli_epi32(_mm512_shuffle_epi8(h, both_halves(minimum_top)), 2);
    const __m512i sc = or_and(_mm512_and_si512(sc_low, whole_or_low), sc_top, top_bits);
    const __m512 pairs = half_pairs(a, b);

    g->d = _mm512_mul_ps(first_half(pairs, last), _mm512_cvtepi32_ps(sc));
    g->c = minus(second_half(pairs, last));
    g->m = or_and(_mm512_and_si512(m_low, whole_or_low), m_top, top_bits);
}

/* Returns blocks 2p and 2p + 1 of a super-block: the lower and the upper nibbles of 32 bytes. */
INLINE __m512i low_and_high(const uint8_t *nibbles)
{
    return and_byte(_mm512_srlv_epi64(both_halves(nibbles), halves_of(0, 4)), 15);
}

INLINE void unpack_q4_k(group *g, const uint8_t *blocks, int last)
{
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_q4_k), last) };
    for (int i = 0; i < 8; i++)
        g->w[i] = low_and_high(b[i / 4] + offsetof(block_q4_k, nibbles) + 32 * (i % 4));
    put_six_bits(g, b[0], b[1], last);
}

INLINE __m512 values_q4_k(const group *g, const int8_t *q, const int16_t *s)
{
    return with_minimum(g, group_sums(g, q, s, 4, 0), s);
}

INLINE void unpack_q5_k(group *g, const uint8_t *blocks, int last)
{
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_q5_k), last) };
    for (int i = 0; i < 8; i++) {
        const uint8_t *nibbles = b[i / 4] + offsetof(block_q5_k, nibbles) + 32 * (i % 4);
        const __m512i fifth = bit_pair(b[i / 4] + offsetof(block_q5_k, high), i % 4, 4);
        g->w[i] = or_and(low_and_high(nibbles), fifth, _mm512_set1_epi8(16));
    }
    put_six_bits(g, b[0], b[1], last);
}

INLINE __m512 values_q5_k(const group *g, const int8_t *q, const int16_t *s)
{
    return with_minimum(g, group_sums(g, q, s, 5, 0), s);
}

/* d * (n - 32); the lower four bits of n are in bytes 4-7, the upper two in bytes 2-3. */
INLINE void put_iq4_xs_scales(group *g, const uint8_t *a, const uint8_t *b, int last)
{
    static const uint8_t low_at[32] = {
        4, NO, NO, NO, 4, NO, NO, NO, 5, NO, NO, NO, 5, NO, NO, NO,
        6, NO, NO, NO, 6, NO, NO, NO, 7, NO, NO, NO, 7, NO, NO, NO,
    };
    static const uint8_t high_at[32] = {
        2, NO, NO, NO, 2, NO, NO, NO, 2, NO, NO, NO, 2, NO, NO, NO,
        3, NO, NO, NO, 3, NO, NO, NO, 3, NO, NO, NO, 3, NO, NO, NO,
    };
    const __m512i h = twice_each(a, b);
    const __m512i low = _mm512_srlv_epi32(_mm512_shuffle_epi8(h, both_halves(low_at)),
                                          _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4, 0, 4)));
    const __m512i high = _mm512_rolv_epi32(_mm512_shuffle_epi8(h, both_halves(high_at)),
                                           _mm512_broadcast_i32x4(_mm_setr_epi32(4, 2, 0, 30)));
    const __m512i six = or_and(_mm512_and_si512(low, _mm512_set1_epi32(15)), high,
                               _mm512_set1_epi32(0x30));
    const __m512i sc = _mm512_sub_epi32(six, _mm512_set1_epi32(32));

    g->d = _mm512_mul_ps(first_half(half_pairs(a, b), last), _mm512_cvtepi32_ps(sc));
}

/* Adds 127 to make the levels -127 .. 113 unsigned. */
INLINE void unpack_iq4_xs(group *g, const uint8_t *blocks, int last)
{
    static const int8_t levels[16] = { IQ4_LEVELS };
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_iq4_xs), last) };
    const __m512i table = table_of(levels, 127);
    for (int i = 0; i < 8; i++) {
        const uint8_t *nibbles = b[i / 4] + offsetof(block_iq4_xs, nibbles) + 32 * (i % 4);
        g->w[i] = _mm512_shuffle_epi8(table, nibbles_of(twice_each(nibbles, nibbles + 16)));
    }
    put_iq4_xs_scales(g, b[0], b[1], last);
}

INLINE __m512 values_iq4_xs(const group *g, const int8_t *q, const int16_t *s)
{
    return scaled(g, group_sums(g, q, s, 8, 127));
}

/* ---- sub-blocks of 16, few bits: Q2_K, Q3_K -------------------------------------------------- */

/* Returns the sums of the 32 half blocks as int16, in order; they fit for codes of three bits. */
INLINE __m512i ordered_half_sums(const group *g, const int8_t *q)
{
    static const uint16_t from[32] = {
        0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
        4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31,
    };
    const __m512i packed = _mm512_packs_epi32(half_sums(g, q, 0), half_sums(g, q, 4));
    return _mm512_permutexvar_epi16(_mm512_loadu_si512((const void *)from), packed);
}

/* "Four planes": returns the 2-bit codes of blocks 2i and 2i + 1 of 8. */
INLINE __m512i plane_pair(const uint8_t *quants, int i)
{
    const int first = 4 * (i % 2);
    return and_byte(_mm512_srlv_epi64(both_halves(quants + 32 * (i / 2)),
                                      halves_of(first, first + 2)), 3);
}

INLINE void unpack_q2_k(group *g, const uint8_t *blocks, int last)
{
    enum { SCALES = offsetof(block_q2_k, scales), PAIR = offsetof(block_q2_k, d) };
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_q2_k), last) };
    const __m512i bytes = _mm512_cvtepu8_epi16(sixteen_each(b[0] + SCALES, b[1] + SCALES));
    const __m512 halves = half_pairs(b[0] + PAIR, b[1] + PAIR);
    for (int i = 0; i < 8; i++)
        g->w[i] = plane_pair(b[i / 4] + offsetof(block_q2_k, quants), i % 4);
    g->sc = _mm512_and_si512(bytes, _mm512_set1_epi16(15));
    g->m = _mm512_srli_epi16(bytes, 4);
    g->d = first_half(halves, last);
    g->c = minus(second_half(halves, last));
}

INLINE __m512 values_q2_k(const group *g, const int8_t *q, const int16_t *s)
{
    return with_minimum(g, _mm512_madd_epi16(ordered_half_sums(g, q), g->sc), s);
}

/* Returns the 32 sub-scales of two super-blocks, minus 32. The 16 input bytes include two before
 * and two after the scales: bytes 2-9 have the lower four bits of scales 0-7 and 8-15, bytes 10-13
 * the upper two of 0-3, 4-7, 8-11 and 12-15. */
INLINE __m512i q3_k_scales(__m256i bytes)
{
    const __m256i low_at = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    const __m256i high_at = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    const __m256i low = _mm256_srlv_epi64(_mm256_shuffle_epi8(bytes, low_at),
                                          _mm256_setr_epi64x(0, 4, 0, 4));
    const __m256i high = _mm256_rolv_epi32(_mm256_shuffle_epi8(bytes, high_at),
                                           _mm256_setr_epi32(4, 2, 0, 30, 4, 2, 0, 30));
    const __m256i six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)),
                                        _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    return _mm512_cvtepi8_epi16(_mm256_sub_epi8(six, _mm256_set1_epi8(32)));
}

/* Two bits in planes, the third in bit j of 32 bytes. Codes have an offset of 4. */
INLINE void unpack_q3_k(group *g, const uint8_t *blocks, int last)
{
    enum { SCALES = offsetof(block_q3_k, scales) - 2, PAIR = offsetof(block_q3_k, d) - 2 };
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_q3_k), last) };
    for (int i = 0; i < 8; i++) {
        const __m512i low = plane_pair(b[i / 4] + offsetof(block_q3_k, quants), i % 4);
        const __m512i third = bit_pair(b[i / 4] + offsetof(block_q3_k, high), i % 4, 2);
        g->w[i] = or_and(low, third, _mm512_set1_epi8(4));
    }
    g->sc = q3_k_scales(sixteen_each(b[0] + SCALES, b[1] + SCALES));
    g->d = second_half(half_pairs(b[0] + PAIR, b[1] + PAIR), last);
}

INLINE __m512 values_q3_k(const group *g, const int8_t *q, const int16_t *s)
{
    const __m512i four_s = _mm512_slli_epi16(_mm512_loadu_si512((const void *)s), 2);
    const __m512i sums = _mm512_sub_epi16(ordered_half_sums(g, q), four_s);
    return scaled(g, _mm512_madd_epi16(sums, g->sc));
}

/* ---- sub-blocks of 16, six bits: Q6_K -------------------------------------------------------- */

/* Arranges sub-scales for vpmaddwd with products from vpackssdw: in each lane four times the scale
 * of its half block in one register, then four times that in the next. */
INLINE __m512i q6_k_lane_scales(const uint8_t *scales, int first)
{
    static const uint8_t from[64] = {
        NO, 0, NO, 0, NO, 0, NO, 0, NO, 4, NO, 4, NO, 4, NO, 4,
        NO, 1, NO, 1, NO, 1, NO, 1, NO, 5, NO, 5, NO, 5, NO, 5,
        NO, 2, NO, 2, NO, 2, NO, 2, NO, 6, NO, 6, NO, 6, NO, 6,
        NO, 3, NO, 3, NO, 3, NO, 3, NO, 7, NO, 7, NO, 7, NO, 7,
    };
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)scales));
    const __m512i places = _mm512_add_epi8(_mm512_loadu_si512((const void *)from),
                                           _mm512_set1_epi8((char)first));
    return _mm512_srai_epi16(_mm512_shuffle_epi8(all, places), 8);
}

/* Codes have an offset of 32; m, -32 times the sub-scales, corrects it. by[k] has the lane scales
 * of w[2k] and w[2k + 1]. */
INLINE void unpack_q6_k(group *g, const uint8_t *blocks, int last)
{
    enum { SCALES = offsetof(block_q6_k, scales), PAIR = offsetof(block_q6_k, d) - 2 };
    const uint8_t *b[2] = { blocks, second_of(blocks, sizeof(block_q6_k), last) };
    const __m512i fifteen = _mm512_set1_epi8(15);
    for (int n = 0; n < 4; n++) {        /* 128 weights */
        const uint8_t *from = b[n / 2];
        const uint8_t *low_at = from + offsetof(block_q6_k, low) + 64 * (n % 2);
        const __m512i low = _mm512_loadu_si512((const void *)low_at);
        const __m512i high = both_halves(from + offsetof(block_q6_k, high) + 32 * (n % 2));
        const __m512i top01 = and_byte(_mm512_sllv_epi64(high, halves_of(4, 2)), 0x30);
        const __m512i top23 = and_byte(_mm512_srlv_epi64(high, halves_of(0, 2)), 0x30);
        g->w[2 * n] = or_and(top01, low, fifteen);
        g->w[2 * n + 1] = or_and(top23, _mm512_srli_epi16(low, 4), fifteen);
        g->by[n] = q6_k_lane_scales(from + SCALES, 8 * (n % 2));
    }
    g->sc = _mm512_cvtepi8_epi16(sixteen_each(b[0] + SCALES, b[1] + SCALES));
    g->m = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(g->sc, 5));
    g->d = second_half(half_pairs(b[0] + PAIR, b[1] + PAIR), last);
}

/* Only sums of four products fit in 16 bits, so neighbours are added while they are scaled. */
INLINE __m512i q6_k_pairs(const group *g, const int8_t *q, int k)
{
    const __m512i packed = _mm512_packs_epi32(products(g, q, 2 * k), products(g, q, 2 * k + 1));
    return _mm512_madd_epi16(packed, g->by[k]);
}

/* Like half_sums(), but scaled. */
INLINE __m512i q6_k_half_sums(const group *g, const int8_t *q, int k)
{
    const __m512 a = _mm512_castsi512_ps(q6_k_pairs(g, q, k));
    const __m512 b = _mm512_castsi512_ps(q6_k_pairs(g, q, k + 1));
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
}

INLINE __m512 values_q6_k(const group *g, const int8_t *q, const int16_t *s)
{
    const __m512i sums = block_sums(q6_k_half_sums(g, q, 0), q6_k_half_sums(g, q, 2));
    return scaled(g, _mm512_dpwssd_epi32(sums, _mm512_loadu_si512((const void *)s), g->m));
}

/* ---- the table ------------------------------------------------------------------------------- */

#define FORMATS(X)                                                                                 \
    X(Q2_K, q2_k, 256) X(Q3_K, q3_k, 256) X(Q4_K, q4_k, 256) X(Q5_K, q5_k, 256)                    \
    X(Q6_K, q6_k, 256) X(IQ4_XS, iq4_xs, 256)

FORMATS(DEFINE_DOT)

void put_avx512_k_quants(kernel_set *set)
{
    FORMATS(PUT_DOT)
}
