/* activation.c - what happens to activations between two products: int8 codes, exp, the gates.
 *
 * Part of the arithmetic contract: every statement on floats is one operation, rounded once, in the
 * order that all processors keep; nothing here may be contracted, reordered or left to libm (fmaf
 * aside, which is exact by definition). Loops have no branches, so that compilers use vectors. */
#include <math.h>
#include <string.h>

#include "engine/cpu/kernels.h"
#include "loader/bytes.h"

/* 1.5 * 2^23. A float of small magnitude added to it is rounded to an integer, ties to even, which
 * then stands in the low bits of the sum. */
static const float MAGIC = 12582912.0f;

enum { CHUNK = 128 };

static uint32_t bits_of(float v)
{
    return load_u32(&v);
}

static float float_of(uint32_t bits)
{
    return load_f32(&bits);
}

/* ---- int8 codes ---------------------------------------------------------------------------- */

/* Sums of the two halves of a block. */
static void put_sums(int16_t *s, const int8_t *q)
{
    int low = 0, high = 0;
    for (int k = 0; k < 16; k++) low += q[k];
    for (int k = 16; k < 32; k++) high += q[k];
    s[0] = (int16_t)low;
    s[1] = (int16_t)high;
}

/* |q| <= 127 needs no clamp: inv is at most (127 / largest) (1 + 2^-24). A block below 2^-100 is
 * zero, which keeps inv finite and the scale normal. Inf or NaN in x make a NaN of the scale and so
 * of every row that meets the block. */
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
        const float sum = scaled + MAGIC;
        q[k] = (int8_t)(bits_of(sum) - bits_of(MAGIC));
    }
    return amax * 0x1.020408p-7f;
}

void act_quantise(int8_t *q, float *dx, int16_t *s, const float *x, int n_block)
{
    for (int j = 0; j < n_block; j++, q += ACT_BLOCK, x += ACT_BLOCK) {
        dx[j] = quantise_block(q, x);
        put_sums(s + 2 * j, q);
    }
}

/* ---- exp and the gates --------------------------------------------------------------------- */

/* 2^n * e^r with n = rint(z / ln 2), |r| <= ln 2 / 2. n reaches the exponent field by an addition
 * of integers; the clamps keep that field inside the normal range. The comparisons let NaN pass. */
static inline float exp_steps(float z)
{
    z = z > 88.0f ? 88.0f : z;
    z = z < -87.0f ? -87.0f : z;
    const float t = fmaf(z, 0x1.715476p+0f, MAGIC);      /* log2(e) */
    const float n = t - MAGIC;
    float r = fmaf(n, -0x1.62e430p-1f, z);               /* ln 2, high part */
    r = fmaf(n, 0x1.05c610p-29f, r);                     /* and low part, which is negative */
    float p = 0x1.6a23d0p-10f;
    p = fmaf(p, r, 0x1.123a20p-7f);
    p = fmaf(p, r, 0x1.5558f2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return float_of(bits_of(p) + (bits_of(t) << 23));
}

float exact_exp(float z)
{
    return exp_steps(z);
}

/* g / (1 + exp(-z)) with a true division. */
static inline float gated(float g, float z)
{
    const float e = exp_steps(-z);
    const float below = 1.0f + e;
    return g / below;
}

void act_swiglu(float *out, const float *g, const float *u, int n)
{
    for (int i = 0; i < n; i++) {
        const float silu = gated(g[i], g[i]);
        out[i] = silu * u[i];
    }
}

/* The gate is not clamped from below. Two loops because compilers make branches of clamps that meet
 * those of exp, and then no vectors. */
void act_swiglu_clamped(float *out, const float *g, const float *u, int n)
{
    float gate[CHUNK], more[CHUNK];

    for (int at = 0; at < n; at += CHUNK) {
        const int n_here = n - at < CHUNK ? n - at : CHUNK;
        for (int i = 0; i < n_here; i++) {
            const float upper = u[at + i] > 7.0f ? 7.0f : u[at + i];
            const float up = upper < -7.0f ? -7.0f : upper;
            more[i] = up + 1.0f;
            gate[i] = g[at + i] > 7.0f ? 7.0f : g[at + i];
        }
        for (int i = 0; i < n_here; i++) {
            const float z = gate[i] * 0x1.b3b646p+0f;    /* 1.702 */
            const float swish = gated(gate[i], z);
            out[at + i] = swish * more[i];
        }
    }
}
