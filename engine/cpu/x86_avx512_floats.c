/* x86_avx512_floats.c - AVX-512 kernels for float weights: F32, F16, BF16 with F32 activations.
 *
 * Weight i belongs to lane i % 32, so two registers are the lanes of a row, and every 32 weights
 * need one fma for each. 128 weights are widened together and multiplied by up to eight tokens.
 * Rows may have any length: masked loads at the end read no byte outside the row and return zeros
 * for the rest. Products of zeros can only turn a lane from -0 to +0, which the fold does
 * anyway. */
#include "engine/cpu/float_types.h"
#include "engine/cpu/x86_avx512.h"

enum { LANES = 32, CHUNK = 128 };

/* Converts the weights that the mask selects from 16. */
typedef __m512 widen_fn(const uint8_t *p, __mmask16 mask);

INLINE __m512 widen_f32(const uint8_t *p, __mmask16 mask)
{
    return _mm512_maskz_loadu_ps(mask, p);
}

INLINE __m512 widen_f16(const uint8_t *p, __mmask16 mask)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}

INLINE __m512 widen_bf16(const uint8_t *p, __mmask16 mask)
{
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

typedef struct lanes32 { __m512 low, high; } lanes32;

/* Adds n weights, a multiple of 32, with one token. The mask selects the valid ones of each 32. */
INLINE lanes32 add_floats(lanes32 a, const __m512 *w, const float *x, int n, uint32_t mask)
{
    for (int i = 0; i < n; i += LANES) {
        const __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, x + i);
        const __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + i + 16);
        a.low = _mm512_fmadd_ps(w[i / 16], low, a.low);
        a.high = _mm512_fmadd_ps(w[i / 16 + 1], high, a.high);
    }
    return a;
}

INLINE float fold32(lanes32 a)
{
    const __m512 p = _mm512_add_ps(a.low, a.high);
    return fold8(_mm256_add_ps(_mm512_castps512_ps256(p), _mm512_extractf32x8_ps(p, 1)));
}

/* Adds weights c .. c + n - 1 of a row with all tokens; n and mask as above. */
INLINE void dot_part(lanes32 *lanes, const uint8_t *row, const act_row *x, int n_token, int c,
                     int n, uint32_t mask, int width, widen_fn *widen)
{
    __m512 w[CHUNK / 16];
    prefetch_ahead(row + (size_t)c * (size_t)width, n * width);
    for (int i = 0; i < n; i += LANES) {
        const uint8_t *p = row + (size_t)(c + i) * (size_t)width;
        w[i / 16] = widen(p, (__mmask16)mask);
        w[i / 16 + 1] = widen(p + 16 * width, (__mmask16)(mask >> 16));
    }
    for (int t = 0; t < n_token; t++) lanes[t] = add_floats(lanes[t], w, x[t].x + c, n, mask);
}

INLINE void dot_some(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                     const act_row *x, int n_token, int cols, int width, widen_fn *widen)
{
    const uint32_t all = 0xFFFFFFFF, rest = cols % LANES ? all >> (LANES - cols % LANES) : 0;
    for (int r = 0; r < n_row; r++) {
        const uint8_t *row = rows + (size_t)r * row_bytes;
        lanes32 lanes[TOKENS];
        int c = 0;

        for (int t = 0; t < n_token; t++)
            lanes[t] = (lanes32){ _mm512_setzero_ps(), _mm512_setzero_ps() };
        for (; c + CHUNK <= cols; c += CHUNK)
            dot_part(lanes, row, x, n_token, c, CHUNK, all, width, widen);
        for (; c + LANES <= cols; c += LANES)
            dot_part(lanes, row, x, n_token, c, LANES, all, width, widen);
        if (rest) dot_part(lanes, row, x, n_token, c, LANES, rest, width, widen);
        for (int t = 0; t < n_token; t++)
            sums[(size_t)t * (size_t)n_row + (size_t)r] = fold32(lanes[t]);
    }
}

INLINE void dot_floats(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                       const act_row *x, int n_token, int cols, int width, widen_fn *widen)
{
    if (n_token == 1) {
        dot_some(sums, rows, row_bytes, n_row, x, 1, cols, width, widen);
        return;
    }
    for (int t = 0; t < n_token; t += TOKENS)
        dot_some(sums + (size_t)t * (size_t)n_row, rows, row_bytes, n_row, x + t,
                 n_token - t < TOKENS ? n_token - t : TOKENS, cols, width, widen);
}

FLOAT_TYPES(DEFINE_FLOAT_DOT)

void put_avx512_floats(kernel_set *s)
{
    FLOAT_TYPES(PUT_FLOAT_DOT)
}
