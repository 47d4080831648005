/* x86_iq4.h - IQ4_NL and IQ4_XS for the AVX2 and AVX-VNNI kernels: segments whose weights have a
 * constant offset that makes them unsigned, or 0. */
#ifndef ENGINE_CPU_X86_IQ4_H
#define ENGINE_CPU_X86_IQ4_H

#include "engine/cpu/x86_avx2.h"
#include "loader/quant_blocks.h"

AVX_INLINE __m256i iq4_levels_at(const uint8_t *nibbles, int offset)
{
    const __m128i levels = _mm_add_epi8(_mm_setr_epi8(IQ4_LEVELS), _mm_set1_epi8((char)offset));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), nibbles_at(nibbles));
}

AVX_INLINE void iq4_nl_levels(segment *g, const uint8_t *p, int offset)
{
    const block_iq4_nl *b = (const void *)p;
    for (int j = 0; j < 8; j++) g->w[j] = iq4_levels_at(b[j].nibbles, offset);
    g->d = halves_at(b->d, sizeof *b);
}

AVX_INLINE void iq4_xs_levels(segment *g, const uint8_t *p, int offset)
{
    const __m256i two_bits = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
    const __m256i four_bits = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const block_iq4_xs *b = (const void *)p;
    __m256i top, low, scale;
    __m256 d, unused;

    for (int j = 0; j < 8; j++) g->w[j] = iq4_levels_at(b->nibbles[j], offset);
    top = _mm256_srlv_epi32(load32_repeated(b->d), two_bits);        /* scales_high follows d */
    low = _mm256_srlv_epi32(load32_repeated(b->scales_low), four_bits);
    scale = _mm256_or_si256(
        _mm256_slli_epi32(_mm256_and_si256(top, _mm256_set1_epi32(3)), 4),
        _mm256_and_si256(low, _mm256_set1_epi32(15)));
    scale = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
    two_halves(&d, &unused, b->d);
    g->d = _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale));
}

#endif
