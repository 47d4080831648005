/* deltanet.h - the gated delta rule: causal convolution, token recurrence, and the chunked form.
 *
 * Both forms compute the same result up to rounding. Values are F32; sums that are long or have a
 * small result are double. Output arrays do not overlap inputs, unless documented as "in place".
 * struct loops has the functions for each instruction set. */
#ifndef ENGINE_CPU_DELTANET_H
#define ENGINE_CPU_DELTANET_H

#include <stddef.h>

enum {
    DELTA_MAX_TAPS = 64,                 /* taps of the convolution */
    DELTA_CHUNK = 64,                    /* tokens of one step of the chunked form */
    DELTA_COLUMNS = 128                  /* columns in one block: a whole row in known models */
};

/* ---- gates: one of each for a head and a token ----------------------------------------------- */

float sigmoid_f32(float x);              /* 1 / (1 + exp(-x)) */

/* Returns the log of the decay: softplus(alpha + dt_bias) * a, with a < 0 as in the file. */
float delta_decay(float alpha, float dt_bias, float a);

/* ---- the functions of struct loops ----------------------------------------------------------- */

/* y[n, channels] = silu(depthwise causal convolution of x), for channels first .. last-1 only, so
 * that threads can divide the channels. filter is [channels, taps], oldest tap first. window is
 * [taps - 1, channels], the inputs before x, oldest first; it is updated with the last inputs. */
typedef void delta_conv_fn(float *y, const float *x, int n, int channels, int first, int last,
                           const float *filter, int taps, float *window);

/* x[dim] * 1 / sqrt(sum of squares + 1e-6) * scale, in place. */
typedef void delta_l2norm_fn(float *x, int dim, float scale);

/* out[dim] = rmsnorm(o) * gain * silu(z), in place of o. */
typedef void delta_gated_norm_fn(float *o, const float *z, const float *gain, int dim, float eps);

/* One value head and n consecutive tokens. Strides are floats from one token to the next. */
typedef struct delta_args {
    float *out;                          /* dv values per token */
    const float *q, *k, *v;              /* dk, dk, dv values per token; q and k normed, q scaled */
    const float *beta, *g;               /* one value per token; g is the log of the decay, <= 0 */
    size_t out_stride, qk_stride, v_stride, bg_stride;
    float *state;                        /* [dk, dv], updated */
    const float *next;                   /* the thread's next state, to prefetch; or NULL */
    int n, dk, dv;
} delta_args;

typedef void delta_recurrence_fn(const delta_args *a);

/* The chunked form, in chunks of DELTA_CHUNK. scratch has delta_scratch() floats; concurrent calls
 * need separate ones. */
typedef void delta_chunked_fn(const delta_args *a, float *scratch);
static inline size_t delta_scratch(int dk, int dv)
{
    (void)dv;                            /* one block of columns at a time, for any dv */
    return (size_t)DELTA_CHUNK * (2 * DELTA_CHUNK + (size_t)dk + DELTA_COLUMNS);
}

#endif
