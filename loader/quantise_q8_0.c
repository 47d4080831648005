/* quantise_q8_0.c - Q8_0: finds a binary16 scale with a small error.
 *
 * The usual scale maps the largest magnitude to 127. Scales that differ by a few thousandths round
 * other weights well, and the best of many has a tenth less error. So scales around the usual one
 * are tried, then the neighbours of the best. A power of two is tried first, because it encodes
 * former 4-bit floats exactly. */
#include <math.h>

#include "loader/bytes.h"
#include "loader/quantise_internal.h"

enum { LADDER = 28, Q8_MOST = 127, CODE_MOST = 0x7BFF };

static inline float q8_nearest(float x, float inverse)
{
    const float v = x * inverse;
    return nearest_whole(v > Q8_MOST ? Q8_MOST : v < -Q8_MOST ? -Q8_MOST : v);
}

static float cost_of(const float *x, const float *w, uint16_t d)
{
    const float scale = f16_to_f32(d), inverse = 1.0f / scale;
    float terms[32];
    for (int i = 0; i < 32; i++) {
        const float diff = x[i] - scale * q8_nearest(x[i], inverse);
        terms[i] = w[i] * diff * diff;
    }
    return sum_terms(terms, 32);
}

typedef struct choice { uint16_t d; float cost; } choice;

/* Ignores d == 0, which would divide by zero; such blocks are below half of the smallest scale. */
static void try_scale(choice *best, const float *x, const float *w, int d)
{
    if (d < 1 || d > CODE_MOST) return;
    const float cost = cost_of(x, w, (uint16_t)d);
    if (cost < best->cost) *best = (choice){ (uint16_t)d, cost };
}

static void walk(choice *best, const float *x, const float *w, int step)
{
    uint16_t from;
    do {
        from = best->d;
        try_scale(best, x, w, from + step);
    } while (best->d != from);
}

void quantise_q8_0(block_q8_0 *b, const float *x, const float *w)
{
    const float most = largest_magnitude(x, 32);
    choice best = { 0, INFINITY };
    int e;

    *b = (block_q8_0){ { 0 }, { 0 } };
    const float usual = most / Q8_MOST;
    if (f32_to_f16(usual) == 0) return;
    if (frexpf(usual, &e) == 0.5f) e--;
    try_scale(&best, x, w, f32_to_f16(ldexpf(1.0f, e)));
    for (int i = 0; i < LADDER && best.cost > 0.0f; i++)
        try_scale(&best, x, w, f32_to_f16(usual * (0.985f + 0.003f * (float)i)));
    if (best.cost > 0.0f) {
        walk(&best, x, w, 1);
        walk(&best, x, w, -1);
    }
    const float inverse = 1.0f / f16_to_f32(best.d);
    store_u16(b->d, best.d);
    for (int i = 0; i < 32; i++) b->quants[i] = (int8_t)q8_nearest(x[i], inverse);
}
