/* x86_avx2.h - shared by the AVX2 kernels: block sums, lanes and the loops over rows.
 *
 * The arithmetic of docs/numerics.md with one register for each block: its 32 weights in order.
 * Eight blocks are a segment, and the eight lanes of a row are the eight floats of one register.
 *
 * maddubs multiplies unsigned bytes by signed ones and adds neighbours: a block becomes 16 words.
 * Then a tree of seven merges sums the words of each of eight registers and puts the eight sums in
 * order: a merge turns two registers into one with partial sums of both. Sums stay words as long as
 * they fit in 16 bits, so that the madd to dwords is needed only for merged registers. All merges
 * but the last use one shuffle and one blend, which runs on any port; hadd takes two shuffles.
 *
 * A kernel is two inlined functions, unpack and values, on a struct segment; walk_rows() builds a
 * dot_fn from them. */
#ifndef ENGINE_CPU_X86_AVX2_H
#define ENGINE_CPU_X86_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/x86_strides.h"
#include "loader/bytes.h"

/* ---- memory -------------------------------------------------------------------------------- */

/* Rows are contiguous, so the bytes this far ahead are soon needed, by the next rows or the next
 * call. A prefetch cannot fault. */
enum { PREFETCH_AHEAD = 12 * 1024, CACHE_LINE = 64 };

AVX_INLINE void prefetch_weights(const uint8_t *p, int bytes)
{
    for (int pos = 0; pos < bytes; pos += CACHE_LINE)
        _mm_prefetch((const char *)((uintptr_t)p + PREFETCH_AHEAD + (uintptr_t)pos), _MM_HINT_T0);
}

/* Loads 16 bytes to both halves; the broadcast is free. */
AVX_INLINE __m256i load128_twice(const void *p)
{
    return _mm256_broadcastsi128_si256(load128(p));
}

/* Loads four bytes to all eight dwords; the broadcast is free. */
AVX_INLINE __m256i load32_repeated(const void *p)
{
    return _mm256_set1_epi32((int)load_u32(p));
}

/* Broadcasts two adjacent binary16 numbers, each to one register. */
AVX_INLINE void two_halves(__m256 *first, __m256 *second, const uint8_t *p)
{
    const __m256 in_turn = _mm256_cvtph_ps(_mm256_castsi256_si128(load32_repeated(p)));
    *first = _mm256_moveldup_ps(in_turn);
    *second = _mm256_movehdup_ps(in_turn);
}

/* Unpacks "halves order": 16 bytes, 32 codes. */
AVX_INLINE __m256i nibbles_at(const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    return _mm256_and_si256(_mm256_srlv_epi32(load128_twice(p), shift), _mm256_set1_epi8(15));
}

/* Joins low and high bits immediately. Compilers delay such an `or` until its result is used, keep
 * the shifted bits of all blocks and run out of registers. */
AVX_INLINE __m256i joined_bits(__m256i low, __m256i high)
{
    __m256i w = _mm256_or_si256(low, high);
    __asm__("" : "+x"(w));
    return w;
}

/* ---- products ------------------------------------------------------------------------------ */

/* Sums of two products. Words saturate, but not with weights up to 129. */
AVX_INLINE __m256i products_unsigned(__m256i w, __m256i q)
{
    return _mm256_maddubs_epi16(w, q);
}

/* Moves the sign of w to q. q is never -128. w = -128 becomes 128, and 2 * 128 * 127 fits. */
AVX_INLINE __m256i products_signed(__m256i w, __m256i q)
{
    return products_unsigned(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
}

/* Returns how many merges, each of which may double a word, cannot overflow 16 bits. */
AVX_INLINE int merges_in_words(int max_weight)
{
    const int most = 2 * 127 * max_weight;
    return 8 * most <= INT16_MAX ? 3 : 4 * most <= INT16_MAX ? 2 : 2 * most <= INT16_MAX ? 1 : 0;
}

/* ---- merges -------------------------------------------------------------------------------- */

AVX_INLINE __m256i add_ints(__m256i a, __m256i b, bool words)
{
    return words ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
}

/* Words to dwords, by adding neighbours. */
AVX_INLINE __m256i widen_words(__m256i v)
{
    return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

/* In the drawings a bar separates the two 128-bit halves of a register, the lower one first.
 *
 * [ a0 | a1 ], [ b0 | b1 ]  to  [ a0 + a1 | b1 + b0 ] */
AVX_INLINE __m256i merge_halves(__m256i a, __m256i b, bool words)
{
    return add_ints(_mm256_blend_epi32(a, b, 0xF0), _mm256_permute2x128_si256(a, b, 0x21), words);
}

/* [ a0 a1 | a2 a3 ], [ b0 b1 | b2 b3 ]  to  [ a0 + a1, b1 + b0 | a2 + a3, b3 + b2 ] */
AVX_INLINE __m256i merge_quarters(__m256i a, __m256i b, bool words)
{
    return add_ints(_mm256_blend_epi32(a, b, 0xCC), _mm256_alignr_epi8(b, a, 8), words);
}

/* Like merge_quarters, but adds neighbours: two words or two dwords. */
AVX_INLINE __m256i merge_neighbours(__m256i a, __m256i b, bool words)
{
    return words ? _mm256_hadd_epi16(a, b) : _mm256_hadd_epi32(a, b);
}

/* words[j] belongs to block j. Returns eight dwords, the sums of the blocks in order. Of the three
 * levels of merges the first n_words, a constant, work on words. */
AVX_INLINE __m256i block_sums(const __m256i words[8], int n_words)
{
    __m256i v[8], sums;
    for (int j = 0; j < 8; j++) v[j] = n_words == 0 ? widen_words(words[j]) : words[j];
    for (int j = 0; j < 4; j++) {
        v[j] = merge_halves(v[j], v[j + 4], n_words >= 1);              /* [ j | j+4 ] */
        if (n_words == 1) v[j] = widen_words(v[j]);
    }
    for (int j = 0; j < 2; j++) {
        v[j] = merge_quarters(v[2 * j], v[2 * j + 1], n_words >= 2);    /* [ 0 1 | 4 5 ], ... */
        if (n_words == 2) v[j] = widen_words(v[j]);
    }
    sums = merge_neighbours(v[0], v[1], n_words >= 3);                  /* [ 0 1 2 3 | 4 5 6 7 ] */
    return n_words == 3 ? widen_words(sums) : sums;
}

/* ---- lanes --------------------------------------------------------------------------------- */

/* lane[i] + lane[i+4], then ((p0 + p1) + (p2 + p3)) + 0; the last turns -0 into +0. */
AVX_INLINE float lanes_fold(__m256 lanes)
{
    const __m128 p = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    const __m128 pairs = _mm_add_ps(p, _mm_movehdup_ps(p));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs))) + 0.0f;
}

/* ---- the walk over rows -------------------------------------------------------------------- */

enum { SEGMENT_MAX_BYTES = 8 * 34, TOKENS_AT_ONCE = 8 };

/* Eight unpacked blocks of weights, with the contract's letters. unpack and values of a format
 * agree on the exact content. */
typedef struct segment {
    __m256i w[8];
    __m256 d, c;                         /* one for each block */
    __m256i sc, m;                       /* words, one for each half of a block */
} segment;

/* The activations of a segment. */
typedef struct act_segment {
    const int8_t *q;                     /* [256] */
    const float *dx;                     /* [8] */
    const int16_t *s;                    /* [16] */
} act_segment;

/* Always a constant, so that compilers inline the functions. */
typedef struct segment_kernel {
    void (*unpack)(segment *g, const uint8_t *blocks);           /* reads `bytes` */
    __m256 (*values)(const segment *g, const act_segment *x);    /* v of the contract, by block */
    int bytes;
    bool ragged;                         /* rows may end within a segment */
} segment_kernel;

AVX_INLINE act_segment act_segment_at(const act_row *x, int i)
{
    return (act_segment){ x->q + (size_t)i * 256, x->dx + (size_t)i * 8, x->s + (size_t)i * 16 };
}

AVX_INLINE __m256 add_values(__m256 lanes, const act_segment *x, __m256 v)
{
    return _mm256_fmadd_ps(_mm256_loadu_ps(x->dx), v, lanes);
}

/* Returns all ones for the first n of eight lanes. */
AVX_INLINE __m256 first_lanes(int n)
{
    static const int32_t mask[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    return _mm256_castsi256_ps(load256(mask + 8 - n));
}

/* Returns the last blocks of a row as a whole readable segment: in place if enough readable bytes
 * follow, else as a copy. The caller masks the surplus blocks. */
AVX_INLINE const uint8_t *whole_segment(uint8_t copy[SEGMENT_MAX_BYTES], const uint8_t *blocks,
                                        size_t bytes, size_t readable, int segment_bytes)
{
    if (readable >= (size_t)segment_bytes) return blocks;
    memset(copy, 0, (size_t)segment_bytes);
    memcpy(copy, blocks, bytes);
    return copy;
}

AVX_INLINE void walk_one_token(const segment_kernel *k, float *sums, const uint8_t *rows,
                               size_t row_bytes, int n_row, const act_row *x, int cols)
{
    const int n_whole = cols / 256, n_rest = cols / 32 % 8;
    const size_t rest_bytes = (size_t)(n_rest * k->bytes / 8);
    uint8_t copy[SEGMENT_MAX_BYTES];
    segment g;

    for (int r = 0; r < n_row; r++) {
        const uint8_t *p = rows + (size_t)r * row_bytes;
        __m256 lanes = _mm256_setzero_ps();
        for (int i = 0; i < n_whole; i++, p += k->bytes) {
            const act_segment a = act_segment_at(x, i);
            prefetch_weights(p, k->bytes);
            k->unpack(&g, p);
            lanes = add_values(lanes, &a, k->values(&g, &a));
        }
        if (k->ragged && n_rest > 0) {
            const size_t readable = (size_t)(n_row - 1 - r) * row_bytes + rest_bytes;
            const act_segment a = act_segment_at(x, n_whole);
            prefetch_weights(p, k->bytes);
            k->unpack(&g, whole_segment(copy, p, rest_bytes, readable, k->bytes));
            lanes = add_values(lanes, &a, _mm256_and_ps(k->values(&g, &a), first_lanes(n_rest)));
        }
        sums[r] = lanes_fold(lanes);
    }
}

/* One row with up to TOKENS_AT_ONCE tokens: a segment is unpacked once for all tokens. The sum of
 * token t goes to sums[t * stride]; `readable` bytes of later rows follow the row. */
AVX_INLINE void walk_one_row(const segment_kernel *k, float *sums, size_t stride,
                             const uint8_t *p, size_t readable, const act_row *x, int n_token,
                             int cols)
{
    const int n_block = cols / 32;
    __m256 lanes[TOKENS_AT_ONCE];
    uint8_t copy[SEGMENT_MAX_BYTES];
    segment g;

    for (int t = 0; t < n_token; t++) lanes[t] = _mm256_setzero_ps();
    for (int i = 0; i * 8 < n_block; i++, p += k->bytes) {
        const int n_here = n_block - i * 8 < 8 ? n_block - i * 8 : 8;
        const __m256 mask = first_lanes(n_here);
        prefetch_weights(p, k->bytes);
        if (k->ragged && n_here < 8) {
            const size_t rest_bytes = (size_t)(n_here * k->bytes / 8);
            k->unpack(&g, whole_segment(copy, p, rest_bytes, readable + rest_bytes, k->bytes));
        } else {
            k->unpack(&g, p);
        }
        for (int t = 0; t < n_token; t++) {
            const act_segment a = act_segment_at(&x[t], i);
            const __m256 v = k->values(&g, &a);
            lanes[t] = add_values(lanes[t], &a, k->ragged ? _mm256_and_ps(v, mask) : v);
        }
    }
    for (int t = 0; t < n_token; t++) sums[(size_t)t * stride] = lanes_fold(lanes[t]);
}

AVX_INLINE void walk_rows(const segment_kernel *k, float *sums, const uint8_t *rows,
                          size_t row_bytes, int n_row, const act_row *x, int n_token, int cols)
{
    if (n_token == 1) {
        walk_one_token(k, sums, rows, row_bytes, n_row, x, cols);
        return;
    }
    for (int r = 0; r < n_row; r++) {
        const size_t behind = (size_t)(n_row - 1 - r) * row_bytes;
        for (int t = 0; t < n_token; t += TOKENS_AT_ONCE) {
            const int n = n_token - t < TOKENS_AT_ONCE ? n_token - t : TOKENS_AT_ONCE;
            walk_one_row(k, sums + (size_t)t * (size_t)n_row + r, (size_t)n_row,
                         rows + (size_t)r * row_bytes, behind, x + t, n, cols);
        }
    }
}

#endif
