/* float_types.h - the types whose weights are floats, for tables of their kernels. Internal to
 * engine/cpu.
 *
 * X(NAME, widen, width): the including file has widen_f32() and so on, which make floats of weights
 * of that many bytes each. */
#ifndef ENGINE_CPU_FLOAT_TYPES_H
#define ENGINE_CPU_FLOAT_TYPES_H

#define FLOAT_TYPES(X) X(F32, widen_f32, 4) X(F16, widen_f16, 2) X(BF16, widen_bf16, 2)

/* dot_NAME(), from the including file's dot_floats(). */
#define DEFINE_FLOAT_DOT(NAME, widen, width)                                                       \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_floats(sums, rows, row_bytes, n_row, x, n_token, cols, width, widen);                  \
    }

/* Puts it into the set s. */
#define PUT_FLOAT_DOT(NAME, widen, width) s->of[QT_##NAME].dot = dot_##NAME;

#endif
