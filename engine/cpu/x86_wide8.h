/* x86_wide8.h - shared by the tiles with 256-bit registers: eight rows in a vector. */
#ifndef ENGINE_CPU_X86_WIDE8_H
#define ENGINE_CPU_X86_WIDE8_H

#include <immintrin.h>

/* Writes dword s of eight rows to step[s]: a transposition in three rounds. */
WIDE_INLINE void transpose_dwords(__m256i step[8], const __m256i row[8])
{
    __m256i two[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        two[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
        two[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int k = 0; k < 2; k++) {
            four[i + 2 * k] = _mm256_unpacklo_epi64(two[i + k], two[i + k + 2]);
            four[i + 2 * k + 1] = _mm256_unpackhi_epi64(two[i + k], two[i + k + 2]);
        }
    }
    for (int s = 0; s < 4; s++) {
        step[s] = _mm256_permute2x128_si256(four[s], four[s + 4], 0x20);
        step[s + 4] = _mm256_permute2x128_si256(four[s], four[s + 4], 0x31);
    }
}

typedef __m256 vec;

WIDE_INLINE vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
WIDE_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
WIDE_INLINE vec rows_at(const float *p, int i) { return _mm256_loadu_ps(p + 8 * i); }
WIDE_INLINE void rows_put(float *p, int i, vec v) { _mm256_storeu_ps(p + 8 * i, v); }
WIDE_INLINE vec tokens_at(const float *p, int k) { return _mm256_set1_ps(p[k]); }

#endif
