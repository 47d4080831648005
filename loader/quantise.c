/* quantise.c - encodes rows of floats as blocks of a given type, and the limits of each type.
 *
 * quantise_fp4.c, quantise_q8_0.c and quantise_q4_k.c encode one block; BF16, which has no blocks,
 * is here. */
#include "loader/quantise.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include "loader/bytes.h"
#include "loader/quantise_internal.h"

#define F16_MOST 65504.0f
#define BF16_MOST 0x1.FEp127f

bool quantise_can(quant_type type)
{
    return type == QT_NVFP4 || type == QT_MXFP4 || type == QT_Q8_0 || type == QT_Q4_K ||
           type == QT_BF16;
}

/* Q8_0 holds magnitudes up to d * 127. Q4_K reaches -dmin * 63; its positive limit is higher. */
float quantise_limit(quant_type type)
{
    switch (type) {
    case QT_Q8_0: return F16_MOST * 127.0f;
    case QT_Q4_K: return F16_MOST * 63.0f;
    default: return FLT_MAX;
    }
}

size_t quantise_first_bad(quant_type type, const float *x, size_t n)
{
    const float limit = quantise_limit(type);
    size_t i = 0;
    while (i < n && fabsf(x[i]) <= limit) i++;           /* false for NaN */
    return i;
}

void quantise_nvfp4_scales(float scales[QUANTISE_NVFP4_SCALES], float largest)
{
    const float even = largest / (6.0f * 256.0f);
    int e;
    scales[0] = scales[1] = 1.0f;
    if (largest == 0.0f) return;
    scales[0] = even > FLT_MIN ? even : FLT_MIN;
    if (frexpf(scales[0], &e) == 0.5f) e--;              /* a power of two already */
    scales[1] = ldexpf(1.0f, e);
}

const float *quantise_weights(const float *w, int n)
{
#define EIGHT 1, 1, 1, 1, 1, 1, 1, 1
#define SIXTY_FOUR EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT
    static const float ones[256] = { SIXTY_FOUR, SIXTY_FOUR, SIXTY_FOUR, SIXTY_FOUR };
#undef SIXTY_FOUR
#undef EIGHT
    for (int i = 0; w && i < n; i++)
        if (w[i] > 0.0f) return w;
    return ones;
}

/* Returns the nearest BF16, ties to even. */
static uint16_t bf16_from(float x)
{
    if (fabsf(x) > BF16_MOST) x = copysignf(BF16_MOST, x);
    const uint32_t bits = load_u32(&x);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

void quantise_row(quant_type type, void *blocks, const float *x, const float *importance, size_t n)
{
    const quant_traits *q = quant_traits_of((uint32_t)type);
    const size_t elems = (size_t)q->block_elems, n_block = n / elems;
    uint8_t *at = blocks;

    assert(quantise_can(type) && n % elems == 0);
    for (size_t i = 0; i < n_block; i++, at += q->block_bytes, x += elems) {
        const float *w = importance ? importance + i * elems : NULL;
        switch (type) {
        case QT_NVFP4: quantise_nvfp4((block_nvfp4 *)at, x, w); break;
        case QT_MXFP4: quantise_mxfp4((block_mxfp4 *)at, x, quantise_weights(w, 32)); break;
        case QT_Q8_0: quantise_q8_0((block_q8_0 *)at, x, quantise_weights(w, 32)); break;
        case QT_Q4_K: quantise_q4_k((block_q4_k *)at, x, quantise_weights(w, 256)); break;
        default: store_u16(at, bf16_from(*x)); break;
        }
    }
}
