/* exact.c - products of decoded weights with F32 activations, without int8 quantisation.
 *
 * Weights have exactly the values of loader/quant.h and activations are not quantised; only the sum
 * rounds. It has 32 lanes, weight i in lane i % 32, folded in halves, so the rounding error grows
 * with K / 32 instead of K. The order does not depend on the number of rows or tokens. A segment of
 * a row is decoded once and multiplied by up to eight tokens.
 *
 * For comparisons and --exact; contract.c is faster, and all other processors have its bits. */
#include <string.h>

#include "engine/cpu/kernels.h"

enum { LANES = 32, TOKENS = 8, PIECE = 256 };            /* PIECE: whole blocks of every format */

static void add_products(float *restrict lane, const float *restrict w, const float *restrict x,
                         int n)
{
    float sum[LANES];
    int i = 0;

    memcpy(sum, lane, sizeof sum);
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) sum[k] += w[i + k] * x[i + k];
    for (int k = 0; i + k < n; k++) sum[k] += w[i + k] * x[i + k];
    memcpy(lane, sum, sizeof sum);
}

static float fold(float *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

static void dot_decoded(float *sums, const quant_traits *type, const uint8_t *rows,
                        size_t row_bytes, int n_row, const act_row *x, int n_token, int cols)
{
    float w[PIECE];

    for (int t0 = 0; t0 < n_token; t0 += TOKENS) {
        const int n = n_token - t0 < TOKENS ? n_token - t0 : TOKENS;
        for (int r = 0; r < n_row; r++) {
            const uint8_t *row = rows + (size_t)r * row_bytes;
            float lane[TOKENS][LANES] = { { 0 } };
            for (int c = 0; c < cols; c += PIECE) {
                const int n_here = cols - c < PIECE ? cols - c : PIECE;
                type->decode(w, row + quant_row_bytes(type, (uint64_t)c),
                             (size_t)(n_here / type->block_elems));
                for (int t = 0; t < n; t++) add_products(lane[t], w, x[t0 + t].x + c, n_here);
            }
            for (int t = 0; t < n; t++)
                sums[(size_t)(t0 + t) * (size_t)n_row + (size_t)r] = fold(lane[t]);
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------- */

#define WEIGHT_TYPES(X)                                                                            \
    X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K)  \
    X(Q6_K) X(IQ1_S) X(IQ1_M) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ4_NL)          \
    X(IQ4_XS) X(TQ1_0) X(TQ2_0) X(MXFP4) X(NVFP4) X(Q1_0) X(Q2_0)

#define DEFINE_DOT(NAME)                                                                           \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_decoded(sums, quant_traits_of(QT_##NAME), rows, row_bytes, n_row, x, n_token, cols);   \
    }
WEIGHT_TYPES(DEFINE_DOT)

#define KERNEL_ROW(NAME) [QT_##NAME] = { .dot = dot_##NAME, .factor = 1 },

const kernel_set *kernels_exact(void)
{
    static const kernel_set set = { .isa = "exact", .of = { WEIGHT_TYPES(KERNEL_ROW) } };
    return &set;
}
