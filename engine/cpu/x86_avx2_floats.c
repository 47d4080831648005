/* x86_avx2_floats.c - AVX2 kernels of F32, F16 and BF16 weights, on F32 activations.
 *
 * 32 lanes are four registers. Rows may have any length and activations are not padded, so the last
 * n % 32 numbers of both are copied to buffers of zeros. Up to three tokens keep their lanes in
 * registers and share the conversion of a row; for the next three the row is in the cache. */
#include "engine/cpu/isa_sets.h"
#include "engine/cpu/x86_avx2.h"

enum { FLOAT_LANES = 32, TOKENS = 3 };

typedef struct float_kernel {
    __m256 (*load)(const uint8_t *p);    /* eight weights */
    int width;                           /* bytes of one */
} float_kernel;

AVX_INLINE __m256 f32_load(const uint8_t *p)
{
    return _mm256_loadu_ps((const float *)p);
}

AVX_INLINE __m256 f16_load(const uint8_t *p)
{
    return _mm256_cvtph_ps(load128(p));
}

AVX_INLINE __m256 bf16_load(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}

/* lane[i] = fma(w[i], x[i], lane[i]) for 32 weights and each token. */
AVX_INLINE void add_weights(__m256 lane[TOKENS][4], float_kernel k, const uint8_t *weights,
                            const float *const x[TOKENS], int n_token)
{
    for (int i = 0; i < 4; i++) {
        const __m256 w = k.load(weights + 8 * i * k.width);
        for (int t = 0; t < n_token; t++)
            lane[t][i] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x[t] + 8 * i), lane[t][i]);
    }
}

AVX_INLINE float fold32(const __m256 lane[4])
{
    return lanes_fold(_mm256_add_ps(_mm256_add_ps(lane[0], lane[2]),
                                    _mm256_add_ps(lane[1], lane[3])));
}

/* One row with n_token tokens, a constant, so that their lanes are registers. */
AVX_INLINE void dot_row(float_kernel k, float *sums, size_t stride, const uint8_t *row,
                        const act_row *x, const int n_token, int cols)
{
    const int n_whole = cols / FLOAT_LANES * FLOAT_LANES, n_rest = cols - n_whole;
    const float *pos[TOKENS];
    __m256 lane[TOKENS][4];

    for (int t = 0; t < n_token; t++) {
        pos[t] = x[t].x;
        for (int i = 0; i < 4; i++) lane[t][i] = _mm256_setzero_ps();
    }
    for (int c = 0; c < n_whole; c += FLOAT_LANES, row += FLOAT_LANES * k.width) {
        prefetch_weights(row, FLOAT_LANES * k.width);
        add_weights(lane, k, row, pos, n_token);
        for (int t = 0; t < n_token; t++) pos[t] += FLOAT_LANES;
    }
    if (n_rest > 0) {
        uint8_t w[FLOAT_LANES * sizeof(float)] = { 0 };
        float last[TOKENS][FLOAT_LANES] = { { 0 } };
        memcpy(w, row, (size_t)(n_rest * k.width));
        for (int t = 0; t < n_token; t++) {
            memcpy(last[t], pos[t], (size_t)n_rest * sizeof(float));
            pos[t] = last[t];
        }
        add_weights(lane, k, w, pos, n_token);
    }
    for (int t = 0; t < n_token; t++) sums[(size_t)t * stride] = fold32(lane[t]);
}

AVX_INLINE void dot_rows(float_kernel k, float *sums, const uint8_t *rows, size_t row_bytes,
                         int n_row, const act_row *x, int n_token, int cols)
{
    const size_t stride = (size_t)n_row;
    for (int r = 0; r < n_row; r++, rows += row_bytes, sums++) {
        int t = 0;
        for (; t + 3 <= n_token; t += 3)
            dot_row(k, sums + (size_t)t * stride, stride, rows, x + t, 3, cols);
        if (n_token - t == 2) dot_row(k, sums + (size_t)t * stride, stride, rows, x + t, 2, cols);
        if (n_token - t == 1) dot_row(k, sums + (size_t)t * stride, stride, rows, x + t, 1, cols);
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

#define FORMATS(X) X(F32, f32, 4) X(F16, f16, 2) X(BF16, bf16, 2)

#define DEFINE_DOT(NAME, format, width)                                                            \
    static void dot_##format(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,        \
                             const act_row *x, int n_token, int cols)                              \
    {                                                                                              \
        dot_rows((float_kernel){ format##_load, width }, sums, rows, row_bytes, n_row, x, n_token, \
                 cols);                                                                            \
    }
FORMATS(DEFINE_DOT)

void put_avx2_floats(kernel_set *s)
{
#define PUT_DOT(NAME, format, width) s->of[QT_##NAME].dot = dot_##format;
    FORMATS(PUT_DOT)
}
