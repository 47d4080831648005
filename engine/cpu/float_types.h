/* float_types.h - list of the float weight types, for kernel tables. Private to engine/cpu.
 *
 * X(NAME, widen, width): the including file defines widen_f32() and so on, which convert weights of
 * `width` bytes to floats. */
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

/* Enters it in the set s. */
#define PUT_FLOAT_DOT(NAME, widen, width) s->of[QT_##NAME].dot = dot_##NAME;

#endif
