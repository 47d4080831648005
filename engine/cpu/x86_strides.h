/* x86_strides.h - loads, and gathers of eight scales that are a fixed number of bytes apart: those
 * of eight blocks, or of eight rows.
 *
 * Blends gather them directly from memory: a load that begins the right number of bytes early has
 * scale j in element j. The first load begins with the first scale and ends in later blocks or
 * rows. The last load ends two bytes after the start of its scale, or four if scales are
 * exponents. */
#ifndef ENGINE_CPU_X86_STRIDES_H
#define ENGINE_CPU_X86_STRIDES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define AVX_INLINE static inline __attribute__((always_inline))

AVX_INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }

AVX_INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }

/* Gathers the binary16 at p, p + stride, ... */
AVX_INLINE __m256 halves_at(const uint8_t *p, ptrdiff_t stride)
{
    const ptrdiff_t step = stride - 2;
    __m128i h = load128(p);
    h = _mm_blend_epi16(h, load128(p + 1 * step), 1 << 1);
    h = _mm_blend_epi16(h, load128(p + 2 * step), 1 << 2);
    h = _mm_blend_epi16(h, load128(p + 3 * step), 1 << 3);
    h = _mm_blend_epi16(h, load128(p + 4 * step), 1 << 4);
    h = _mm_blend_epi16(h, load128(p + 5 * step), 1 << 5);
    h = _mm_blend_epi16(h, load128(p + 6 * step), 1 << 6);
    h = _mm_blend_epi16(h, load128(p + 7 * step), 1 << 7);
    return _mm256_cvtph_ps(h);
}

/* Gathers floats whose exponent fields are the bytes at p, p + stride, ...: powers of two, +0,
 * +Inf. */
AVX_INLINE __m256 exponents_at(const uint8_t *p, ptrdiff_t stride)
{
    const ptrdiff_t step = stride - 4;
    __m256i e = load256(p);
    e = _mm256_blend_epi32(e, load256(p + 1 * step), 1 << 1);
    e = _mm256_blend_epi32(e, load256(p + 2 * step), 1 << 2);
    e = _mm256_blend_epi32(e, load256(p + 3 * step), 1 << 3);
    e = _mm256_blend_epi32(e, load256(p + 4 * step), 1 << 4);
    e = _mm256_blend_epi32(e, load256(p + 5 * step), 1 << 5);
    e = _mm256_blend_epi32(e, load256(p + 6 * step), 1 << 6);
    e = _mm256_blend_epi32(e, load256(p + 7 * step), 1 << 7);
    e = _mm256_and_si256(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(255 << 23));
    return _mm256_castsi256_ps(e);
}

#endif
