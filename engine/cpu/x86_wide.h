/* x86_wide.h - shared by the tiles with 512-bit registers: 16 rows in a vector.
 *
 * Weights are stored as [step][row][4], with four columns per step: a register has four bytes of
 * each of 16 rows, the operand of dpbusd and of the matrix unit. */
#ifndef ENGINE_CPU_X86_WIDE_H
#define ENGINE_CPU_X86_WIDE_H

#include <immintrin.h>

enum { STEPS = 8, STEP_BYTES = 64 };

/* Loads rows `low` and `high`, 32 bytes each. */
WIDE_INLINE __m512i two_rows_of(const block_parts *parts, int low, int high, int j)
{
    const __m256i a = _mm256_loadu_si256((const void *)(parts[low].w + 32 * j));
    const __m256i b = _mm256_loadu_si256((const void *)(parts[high].w + 32 * j));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Writes dword s of 16 rows to step[s]: a transposition in three rounds. After two of them every
 * quarter of a register has one dword of four rows: dwords s and s + 4 alternate. */
WIDE_INLINE void transpose_rows(__m512i step[STEPS], const block_parts *parts, int j)
{
    __m512i row[8], two[8], four[8];
    for (int i = 0; i < 8; i++)
        row[i] = two_rows_of(parts, i / 4 * 8 + i % 4, i / 4 * 8 + i % 4 + 4, j);
    for (int i = 0; i < 8; i += 2) {
        two[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        two[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int k = 0; k < 2; k++) {
            four[i + 2 * k] = _mm512_unpacklo_epi64(two[i + k], two[i + k + 2]);
            four[i + 2 * k + 1] = _mm512_unpackhi_epi64(two[i + k], two[i + k + 2]);
        }
    }
    for (int s = 0; s < 4; s++) {
        step[s] = _mm512_shuffle_i32x4(four[s], four[s + 4], 0x88);
        step[s + 4] = _mm512_shuffle_i32x4(four[s], four[s + 4], 0xDD);
    }
}

typedef __m512 vec;

WIDE_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
WIDE_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
WIDE_INLINE vec tokens_at(const float *p, int k) { return _mm512_set1_ps(p[k]); }

WIDE_INLINE vec rows_at(const float *p, int i)
{
    return _mm512_loadu_ps(p + 16 * i);
}

WIDE_INLINE void rows_put(float *p, int i, vec v)
{
    _mm512_storeu_ps(p + 16 * i, v);
}

#endif
