/* wide_types.h - the wide kernels of all types of an instruction set. The last include of files
 * that include wide.h. A file with tiles for fewer types, or with fill functions, defines
 * WIDE_TYPES and WIDE_FILL before. */
#ifndef ENGINE_CPU_WIDE_TYPES_H
#define ENGINE_CPU_WIDE_TYPES_H

#ifndef WIDE_TYPES
#define WIDE_FILL(NAME) NULL
#define WIDE_TYPES(X)                                                                              \
    X(Q4_0, plain_scales, WIDE_PLAIN) X(Q5_0, plain_scales, WIDE_PLAIN)                            \
    X(Q8_0, plain_scales, WIDE_PLAIN) X(IQ4_NL, plain_scales, WIDE_PLAIN)                          \
    X(IQ4_XS, plain_scales, WIDE_PLAIN) X(MXFP4, plain_scales, WIDE_PLAIN)                         \
    X(IQ2_XXS, plain_scales, WIDE_PLAIN) X(IQ3_XXS, plain_scales, WIDE_PLAIN)                      \
    X(IQ3_S, plain_scales, WIDE_PLAIN) X(IQ1_S, plain_scales, WIDE_PLAIN)                          \
    X(TQ1_0, plain_scales, WIDE_PLAIN) X(TQ2_0, plain_scales, WIDE_PLAIN)                          \
    X(Q1_0, plain_scales, WIDE_PLAIN) X(Q2_0, plain_scales, WIDE_PLAIN)                            \
    X(Q3_K, scaled_weights, WIDE_PLAIN)                                                            \
    X(Q4_1, minimum_scales, WIDE_MINIMUM) X(Q5_1, minimum_scales, WIDE_MINIMUM)                    \
    X(Q4_K, minimum_scales, WIDE_MINIMUM) X(Q5_K, minimum_scales, WIDE_MINIMUM)                    \
    X(Q2_K, scaled_weights_minimum, WIDE_HALF_MINIMUMS)                                            \
    X(Q6_K, half_scales, WIDE_HALVES) X(IQ2_XS, half_scales, WIDE_HALVES)                          \
    X(IQ2_S, half_scales, WIDE_HALVES) X(IQ1_M, half_scales, WIDE_HALVES)                          \
    X(NVFP4, float_half_scales, WIDE_HALVES)
#endif

#define DEFINE_WIDE(NAME, scales, kind)                                                            \
    static wide_format format_##NAME(void)                                                         \
    {                                                                                              \
        return (wide_format){ &block_formats[QT_##NAME], scales, kind, WIDE_FILL(NAME) };          \
    }                                                                                              \
    static void wide_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,         \
                            const act_row *x, int n_token, int cols)                               \
    {                                                                                              \
        const wide_format f = format_##NAME();                                                     \
        wide_dot(&f, sums, rows, row_bytes, n_row, x, n_token, cols);                              \
    }                                                                                              \
    static void pack_##NAME(void *packed, const act_row *x, int n_token, int cols)                 \
    {                                                                                              \
        const wide_format f = format_##NAME();                                                     \
        wide_pack(&f, packed, x, n_token, cols);                                                   \
    }                                                                                              \
    static void packed_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,       \
                              void *packed, int n_token, int cols)                                 \
    {                                                                                              \
        const wide_format f = format_##NAME();                                                     \
        wide_packed_dot(&f, sums, rows, row_bytes, n_row, packed, n_token, cols);                  \
    }
WIDE_TYPES(DEFINE_WIDE)

#define WIDE_ROW(NAME, scales, kind)                                                               \
    { QT_##NAME, wide_##NAME, { wide_packed_bytes, pack_##NAME, packed_##NAME }, kind },

/* Enters wide kernels with the measured number of tokens from which they are faster: from_halves
 * for tiles with two sums per block. If the other kernel is the reference they are always used. */
static void wide_put(kernel_set *s, int from, int from_halves)
{
    static const struct { quant_type type; dot_fn *fn; packing packed; wide_kind kind; }
    kernels[] = {
        WIDE_TYPES(WIDE_ROW)
    };
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        kernel *k = &s->of[kernels[i].type];
        const bool halves = kind_is_of_halves(kernels[i].kind);
        k->wide = kernels[i].fn;
        k->packed = kernels[i].packed;
        k->wide_from = kernel_is_reference(s, kernels[i].type) ? 1 : halves ? from_halves : from;
    }
}

#endif
