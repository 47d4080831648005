/* activation.c - activations between two products: int8 quantisation and the gates.
 *
 * Part of the arithmetic contract: every statement on floats is one operation, rounded once, in the
 * same order on all processors. It must not be contracted, reordered or computed by libm.
 *
 * Compiled once for each instruction set, with the same bits. */
#include <string.h>

#include "engine/cpu/exact_exp.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"

/* ---- int8 codes ---------------------------------------------------------------------------- */

static uint32_t bits_of(float v) { return load_u32(&v); }

static float float_of(uint32_t bits) { return load_f32(&bits); }

/* |q| <= 127 holds without a clamp, because inv is at most (127 / largest) (1 + 2^-24). Blocks
 * below 2^-100 become zero, which keeps inv finite and the scale normal. Inf or NaN in x make the
 * scale NaN, and so the product with every row. */
static float quantise_block(int8_t *restrict q, const float *restrict x)
{
    uint32_t largest = 0;

    for (int k = 0; k < ACT_BLOCK; k++) {
        const uint32_t magnitude = bits_of(x[k]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7F800000u || largest < 0x0D800000u) {
        memset(q, 0, ACT_BLOCK);
        return largest >= 0x7F800000u ? float_of(0x7FC00000u) : 0.0f;
    }
    const float amax = float_of(largest);
    const float inv = 127.0f / amax;
    for (int k = 0; k < ACT_BLOCK; k++) {
        const float scaled = x[k] * inv;
        const float sum = scaled + ROUNDING_MAGIC;
        q[k] = (int8_t)bits_of(sum);     /* the magic number ends in a zero byte */
    }
    return amax * 0x1.020408p-7f;
}

static void quantise(int8_t *q, float *dx, int16_t *s, const float *x, int n_block)
{
    for (int j = 0; j < n_block; j++, q += ACT_BLOCK, x += ACT_BLOCK) {
        dx[j] = quantise_block(q, x);
        s[2 * j] = (int16_t)int8_sum16(q);
        s[2 * j + 1] = (int16_t)int8_sum16(q + 16);
    }
}

/* ---- gates --------------------------------------------------------------------------------- */

static inline vec8 swiglu8(vec8 g, vec8 u) { return vec8_mul(silu(g), u); }

/* gpt-oss: the gate is clamped only from above. */
static inline vec8 swiglu_clamped8(vec8 g, vec8 u)
{
    const vec8 top = vec8_all(7.0f);
    const vec8 gate = vec8_smaller(g, top);
    const vec8 up = vec8_larger(vec8_smaller(u, top), vec8_all(-7.0f));
    const vec8 z = vec8_mul(gate, vec8_all(0x1.b3b646p+0f));     /* 1.702 */
    return vec8_mul(gated(gate, z), vec8_add(up, vec8_all(1.0f)));
}

/* 0.5 g (1 + tanh(y)) = g / (1 + exp(-2 y)) with y = sqrt(2 / pi) (g + 0.044715 g^3). The second
 * form has no subtraction, so small values lose no precision. */
static inline vec8 geglu8(vec8 g, vec8 u)
{
    const vec8 square = vec8_mul(g, g);
    const vec8 slope = vec8_fma(square, vec8_all(0x1.2444f2p-4f), vec8_all(0x1.988454p+0f));
    return vec8_mul(gated(g, vec8_mul(g, slope)), u);
}

/* out[i] = f(a[i], b[i]) */
#define DEFINE_GATE(name, f)                                                                       \
    static void name(float *out, const float *a, const float *b, int n)                            \
    {                                                                                              \
        int i = 0;                                                                                 \
        for (; i + 8 <= n; i += 8) vec8_store(out + i, f(vec8_load(a + i), vec8_load(b + i)));     \
        if (i < n)                                                                                 \
            vec8_store_some(out + i, n - i,                                                        \
                            f(vec8_load_some(a + i, n - i), vec8_load_some(b + i, n - i)));        \
    }
DEFINE_GATE(swiglu, swiglu8)
DEFINE_GATE(swiglu_clamped, swiglu_clamped8)
DEFINE_GATE(geglu, geglu8)
DEFINE_GATE(gate, gated)

void LOOPS_PUT(activation)(loops *l)
{
    l->quantise = quantise;
    l->swiglu = swiglu;
    l->swiglu_clamped = swiglu_clamped;
    l->geglu = geglu;
    l->gate = gate;
}
