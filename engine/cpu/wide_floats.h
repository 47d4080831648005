/* wide_floats.h - products of float rows with many tokens, in the vectors of an instruction set:
 * F32, F16 and BF16. Include it after the definitions of vec, vec_fma, rows_at and rows_put, as in
 * wide_values.h, and of VEC_FLOATS and FLOAT_ROWS.
 *
 * Weight i belongs to lane i % 32, so a pair of row and token has 32 sums, too many for registers.
 * So a tile of FLOAT_ROWS rows and six tokens reads a chunk of K once for each vector of lanes,
 * with that vector of every pair in registers and the others in memory. Rows and tokens are stored
 * in this order: [vector of lanes][step][row or token]. */
#ifndef ENGINE_CPU_WIDE_FLOATS_H
#define ENGINE_CPU_WIDE_FLOATS_H

#include "engine/cpu/float_types.h"

enum {
    FLOAT_LANES = 32, LANE_VECTORS = FLOAT_LANES / VEC_FLOATS,
    FLOAT_STEPS = 16, FLOAT_CHUNK = FLOAT_LANES * FLOAT_STEPS,
    FLOAT_TOKENS = 6,                    /* tokens of a tile */
    FLOAT_GROUP = 36,                    /* tokens that share unpacked rows */
};

/* All lanes of a tile, by vector of lanes, row and token. */
typedef struct float_lanes {
    alignas(64) float of[LANE_VECTORS][FLOAT_ROWS][FLOAT_TOKENS][VEC_FLOATS];
} float_lanes;

/* ---- rows to floats ------------------------------------------------------------------------ */

typedef void widen_fn(float *restrict dst, const uint8_t *restrict from, int n);

static void widen_f32(float *restrict dst, const uint8_t *restrict from, int n)
{
    memcpy(dst, from, (size_t)n * sizeof *dst);
}

static void widen_f16(float *restrict dst, const uint8_t *restrict from, int n)
{
    int i = 0;
#if defined(__F16C__)                    /* ARM compilers vectorise the loop below */
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + 2 * i))));
#endif
    for (; i < n; i++) dst[i] = half_at(from + 2 * i);
}

static void widen_bf16(float *restrict dst, const uint8_t *restrict from, int n)
{
    for (int i = 0; i < n; i++) dst[i] = bf16_to_f32(load_u16(from + 2 * i));
}

/* ---- the order of a tile -------------------------------------------------------------------- */

/* Stores a chunk of n rows or tokens as [vector of lanes][step][row]. */
WIDE_INLINE void interleave(float *dst, const float *const *from, int n, int steps)
{
    for (int v = 0; v < LANE_VECTORS; v++)
        for (int s = 0; s < steps; s++, dst += n * VEC_FLOATS)
            for (int k = 0; k < n; k++) rows_put(dst, k, rows_at(from[k] + FLOAT_LANES * s, v));
}

/* Writes n columns of a row as floats, padded with zeros to a whole step. The padding can only turn
 * a lane from -0 to +0, which the fold does anyway. */
static void widen_padded(float *dst, widen_fn *widen, const void *from, int n)
{
    const int end = n % FLOAT_LANES;
    if (end) memset(dst + n - end, 0, sizeof(float) * FLOAT_LANES);
    widen(dst, from, n);
}

static void pack_rows(float *dst, widen_fn *widen, const uint8_t *rows, size_t row_bytes, int n_row,
                      int n)
{
    float w[FLOAT_ROWS][FLOAT_CHUNK];
    const float *from[FLOAT_ROWS];
    for (int k = 0; k < FLOAT_ROWS; k++) {       /* a short tile repeats the last row */
        widen_padded(w[k], widen, rows + (size_t)min_int(k, n_row - 1) * row_bytes, n);
        from[k] = w[k];
    }
    interleave(dst, from, FLOAT_ROWS, (n + FLOAT_LANES - 1) / FLOAT_LANES);
}

static void pack_tokens(float *dst, const act_row *x, int n_token, int c, int n)
{
    float ragged[FLOAT_TOKENS][FLOAT_CHUNK];
    const float *from[FLOAT_TOKENS];
    for (int k = 0; k < FLOAT_TOKENS; k++) {
        from[k] = x[min_int(k, n_token - 1)].x + c;
        if (n % FLOAT_LANES) {
            widen_padded(ragged[k], widen_f32, from[k], n);
            from[k] = ragged[k];
        }
    }
    interleave(dst, from, FLOAT_TOKENS, (n + FLOAT_LANES - 1) / FLOAT_LANES);
}

/* ---- tiles --------------------------------------------------------------------------------- */

static void float_tile(float_lanes *lanes, const float *w, const float *x, int steps)
{
    for (int v = 0; v < LANE_VECTORS; v++) {
        vec sum[FLOAT_ROWS][FLOAT_TOKENS];
        for (int r = 0; r < FLOAT_ROWS; r++)
            for (int t = 0; t < FLOAT_TOKENS; t++) sum[r][t] = rows_at(lanes->of[v][r][t], 0);
        for (int s = 0; s < steps; s++) {
            vec rows[FLOAT_ROWS];
            for (int r = 0; r < FLOAT_ROWS; r++) rows[r] = rows_at(w, r);
            for (int t = 0; t < FLOAT_TOKENS; t++) {
                const vec token = rows_at(x, t);
                for (int r = 0; r < FLOAT_ROWS; r++) sum[r][t] = vec_fma(rows[r], token, sum[r][t]);
                in_order();
            }
            w += FLOAT_ROWS * VEC_FLOATS;
            x += FLOAT_TOKENS * VEC_FLOATS;
        }
        for (int r = 0; r < FLOAT_ROWS; r++)
            for (int t = 0; t < FLOAT_TOKENS; t++) rows_put(lanes->of[v][r][t], 0, sum[r][t]);
    }
}

/* Folds 32 lanes to 16 and 8, then ((p0 + p1) + (p2 + p3)) + 0. */
static float float_fold(const float_lanes *lanes, int r, int t)
{
    float lane[FLOAT_LANES], h[16], e[8], p[4];
    for (int v = 0; v < LANE_VECTORS; v++)
        rows_put(lane, v, rows_at(lanes->of[v][r][t], 0));
    for (int i = 0; i < 16; i++) h[i] = lane[i] + lane[i + 16];
    for (int i = 0; i < 8; i++) e[i] = h[i] + h[i + 8];
    for (int i = 0; i < 4; i++) p[i] = e[i] + e[i + 4];
    const float low = p[0] + p[1], high = p[2] + p[3];
    const float sum = low + high;
    return sum + 0.0f;
}

/* ---- products ------------------------------------------------------------------------------ */

static void float_dot(widen_fn *widen, int width, float *sums, const uint8_t *rows,
                      size_t row_bytes, int n_row, const act_row *x, int n_token, int cols)
{
    float_lanes lanes[GROUP_ROWS / FLOAT_ROWS][FLOAT_GROUP / FLOAT_TOKENS];
    alignas(64) float tokens[FLOAT_GROUP / FLOAT_TOKENS][FLOAT_TOKENS * FLOAT_CHUNK];
    alignas(64) float w[FLOAT_ROWS * FLOAT_CHUNK];

    for (int t0 = 0; t0 < n_token; t0 += FLOAT_GROUP) {
        const int n_t = min_int(n_token - t0, FLOAT_GROUP);
        const int n_tile = (n_t + FLOAT_TOKENS - 1) / FLOAT_TOKENS;
        for (int r0 = 0; r0 < n_row; r0 += GROUP_ROWS) {
            const int n_r = min_int(n_row - r0, GROUP_ROWS);
            for (int r = 0; r < n_r; r += FLOAT_ROWS)
                memset(lanes[r / FLOAT_ROWS], 0, sizeof lanes[0][0] * (size_t)n_tile);
            for (int c = 0; c < cols; c += FLOAT_CHUNK) {
                const int n = min_int(cols - c, FLOAT_CHUNK);
                const int steps = (n + FLOAT_LANES - 1) / FLOAT_LANES;
                for (int t = 0; t < n_t; t += FLOAT_TOKENS)
                    pack_tokens(tokens[t / FLOAT_TOKENS], x + t0 + t, n_t - t, c, n);
                for (int r = 0; r < n_r; r += FLOAT_ROWS) {
                    pack_rows(w, widen, rows + (size_t)(r0 + r) * row_bytes + (size_t)(c * width),
                              row_bytes, n_r - r, n);
                    for (int t = 0; t < n_t; t += FLOAT_TOKENS)
                        float_tile(&lanes[r / FLOAT_ROWS][t / FLOAT_TOKENS], w,
                                   tokens[t / FLOAT_TOKENS], steps);
                }
            }
            for (int t = 0; t < n_t; t++)
                for (int r = 0; r < n_r; r++)
                    sums[(size_t)(t0 + t) * (size_t)n_row + (size_t)(r0 + r)] =
                        float_fold(&lanes[r / FLOAT_ROWS][t / FLOAT_TOKENS], r % FLOAT_ROWS,
                                   t % FLOAT_TOKENS);
        }
    }
}

#define DEFINE_FLOATS(NAME, widen, width)                                                          \
    static void wide_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,         \
                            const act_row *x, int n_token, int cols)                               \
    {                                                                                              \
        float_dot(widen, width, sums, rows, row_bytes, n_row, x, n_token, cols);                   \
    }
FLOAT_TYPES(DEFINE_FLOATS)

#define FLOAT_ROW(NAME, widen, width) { QT_##NAME, wide_##NAME },
static const struct { quant_type type; dot_fn *fn; } float_kernels[] = { FLOAT_TYPES(FLOAT_ROW) };

static void wide_put_floats(kernel_set *s, int from)
{
    for (size_t i = 0; i < sizeof float_kernels / sizeof float_kernels[0]; i++) {
        kernel *k = &s->of[float_kernels[i].type];
        k->wide = float_kernels[i].fn;
        k->packed = (packing){ .bytes = NULL };
        k->wide_from = from;
    }
}

#endif
