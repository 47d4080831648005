/* loops.h - all computations between two products of weights, for each instruction set.
 *
 * The same sources are compiled for each instruction set (see isa.h) and called through this table.
 * Loops have a fixed order and explicit fmas. From libm they use only sqrt, and exp once for each
 * head and token. So all tables give the same bits, which obey the contract. */
#ifndef ENGINE_CPU_LOOPS_H
#define ENGINE_CPU_LOOPS_H

#include "engine/cpu/attention.h"
#include "engine/cpu/deltanet.h"
#include "engine/cpu/isa.h"
#include "loader/base.h"

typedef struct loops {
    const char *isa;                     /* "scalar", "neon", "avx2", "avx512" */

    /* activation.c. Quantises n_block blocks of 32 values: q [32 * n_block], dx [n_block],
     * s [2 * n_block]. */
    void (*quantise)(int8_t *q, float *dx, int16_t *s, const float *x, int n_block);
    /* between gate and up rows and the down projection, n values; out may be g or u */
    void (*swiglu)(float *out, const float *g, const float *u, int n);
    void (*swiglu_clamped)(float *out, const float *g, const float *u, int n);
    void (*geglu)(float *out, const float *g, const float *u, int n);    /* gelu(g) u, by tanh */
    void (*gate)(float *out, const float *x, const float *z, int n);     /* x * sigmoid(z) */

    /* rows.c */
    /* y = fma(factor, sum, bias) for [n_token, n_row] sums; y rows y_stride apart, bias F32 [n_row]
     * at any alignment or NULL */
    void (*finish)(float *y, size_t y_stride, const float *sums, int n_row, int n_token,
                   float factor, const uint8_t *bias);
    /* y may be x; w NULL: no gain */
    void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);
    void (*add)(float *x, const float *y, size_t n);     /* x += y */
    /* x += the sum over k experts of gate * y, in order, then sigma * shared unless that is NULL */
    void (*join)(float *x, const float *y, const float *gate, int k, const float *shared,
                 float sigma, int n);
    void (*soft_cap)(float *x, int n, float cap);        /* x = cap * tanh(x / cap), in place */
    /* rotates the first dim values of a head, in pairs (i, i + dim/2), by one row of rope.h's
     * tables */
    void (*rotate)(float *head, const float *cosine, const float *sine, int dim);

    attend_blocks_fn *attend_blocks;     /* attention.c; called by attend() */
    attend_part_fn *attend_part;
    attend_join_fn *attend_join;

    delta_conv_fn *delta_conv;           /* deltanet.c */
    delta_l2norm_fn *delta_l2norm;
    delta_gated_norm_fn *delta_gated_norm;
    delta_recurrence_fn *delta_recurrence;
    delta_chunked_fn *delta_chunked;
} loops;

/* Returns the table for the kernel set with this name, which this processor must be able to run. */
const loops *loops_for(const char *isa);

enum { LOOPS_MAX_SETS = 4 };

/* Lists all tables that this processor can run, the scalar one last. Returns their number. */
int loops_here(const loops *sets[LOOPS_MAX_SETS]);

/* ---- internal: each file fills its part of the table ----------------------------------------- */

#define LOOPS_PUT(part) ISA_NAME(put_##part)

#define LOOPS_DECLARE_PUTS(isa)                                                                    \
    void put_activation_##isa(loops *l);                                                           \
    void put_rows_##isa(loops *l);                                                                 \
    void put_attention_##isa(loops *l);                                                            \
    void put_deltanet_##isa(loops *l)

LOOPS_DECLARE_PUTS(scalar);
#if defined(__aarch64__)
LOOPS_DECLARE_PUTS(neon);
#elif defined(__x86_64__)
LOOPS_DECLARE_PUTS(avx2);
LOOPS_DECLARE_PUTS(avx512);
#endif

#endif
