/* deltanet.h - the gated delta rule: causal convolution, token recurrence, and the chunked form.
 *
 * Both forms compute the same thing up to rounding. Everything is F32, with double sums where a sum
 * is long or its result small. Arrays that are written overlap no array that is read, unless it
 * says "in place". The loops are in struct loops, by instruction set. */
#ifndef ENGINE_CPU_DELTANET_H
#define ENGINE_CPU_DELTANET_H

#include <stddef.h>

enum {
    DELTA_MAX_TAPS = 64,                 /* of the convolution */
    DELTA_CHUNK = 64,                    /* tokens of one step of the chunked form */
    DELTA_COLUMNS = 128                  /* columns of the state at a time: a whole row of the known
                                          * models */
};

/* ---- gates: one of each for a head and a token ----------------------------------------------- */

float sigmoid_f32(float x);              /* 1 / (1 + exp(-x)) */

/* Log of the decay: softplus(alpha + dt_bias) * a, with a < 0 as it is stored. */
float delta_decay(float alpha, float dt_bias, float a);

/* ---- the functions of struct loops ----------------------------------------------------------- */

/* y[n, channels] = silu(depthwise causal convolution of x). Channels first .. last-1 only, so that
 * threads can share them. filter is [channels, taps], oldest tap first. window is [taps - 1,
 * channels], the inputs before x, oldest first; it is moved on to the last inputs of x, raw. */
typedef void delta_conv_fn(float *y, const float *x, int n, int channels, int first, int last,
                           const float *filter, int taps, float *window);

/* x[dim] * 1 / sqrt(sum of squares + 1e-6) * scale, in place. */
typedef void delta_l2norm_fn(float *x, int dim, float scale);

/* out[dim] = rmsnorm(o) * gain * silu(z), in place of o. */
typedef void delta_gated_norm_fn(float *o, const float *z, const float *gain, int dim, float eps);

/* One value head of a run of tokens. Strides are in floats from one token to the next. */
typedef struct delta_args {
    float *out;                          /* dv values a token */
    const float *q, *k, *v;              /* dk, dk, dv values a token: q and k normed, q scaled */
    const float *beta, *g;               /* one value a token; g is the log of the decay, <= 0 */
    size_t out_stride, qk_stride, v_stride, bg_stride;
    float *state;                        /* [dk, dv], updated */
    const float *next;                   /* the state that this thread takes next, or NULL: it is
                                          * fetched from memory meanwhile */
    int n, dk, dv;
} delta_args;

typedef void delta_recurrence_fn(const delta_args *a);

/* The same in chunks of DELTA_CHUNK. scratch: delta_scratch() floats, not shared with a call at the
 * same time. */
typedef void delta_chunked_fn(const delta_args *a, float *scratch);
static inline size_t delta_scratch(int dk, int dv)
{
    (void)dv;                            /* one block of columns at a time, whatever their number */
    return (size_t)DELTA_CHUNK * (2 * DELTA_CHUNK + (size_t)dk + DELTA_COLUMNS);
}

#endif
