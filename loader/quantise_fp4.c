/* quantise_fp4.c - MXFP4 and NVFP4: finds the block scale with the least error.
 *
 * Let s be the smallest scale at which nothing is clipped (6 s >= the largest magnitude). Every
 * value of 2 s in that range is also a value of s, so 2 s and above are never better. Below s the
 * error of clipped weights grows with every step down; once it alone reaches the best total, no
 * smaller scale can win. All scales in between are tried, so the result equals an exhaustive search
 * over every code; tests compare the two. */
#include <math.h>

#include "loader/quantise_internal.h"

/* Returns the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 to a >= 0. */
static inline float e2m1_nearest(float a)
{
    const float v = a < 6.0f ? a : 6.0f;
    const float fine = 0.5f * nearest_whole(2.0f * v), middle = nearest_whole(v);
    const float coarse = 2.0f * nearest_whole(0.5f * v);
    return v < 2.0f ? fine : v < 4.0f ? middle : coarse;
}

/* Returns the code of one of those values; the table's index is twice the value. */
static inline uint8_t e2m1_code(float nearest)
{
    static const uint8_t codes[13] = { 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7 };
    return codes[(int)(2.0f * nearest)];
}

typedef struct cost {
    float all;                           /* error of the block with this scale */
    float clipped;                       /* its part from values above 6 */
} cost;

/* a: magnitudes; n is 16 or 32. */
static inline cost cost_of(const float *a, const float *w, int n, float scale)
{
    const float inverse = 1.0f / scale, edge = 6.0f * scale;
    float all[32], clipped[32];
    for (int i = 0; i < n; i++) {
        const float diff = a[i] - scale * e2m1_nearest(a[i] * inverse);
        const float over = a[i] > edge ? a[i] - edge : 0.0f;
        all[i] = w[i] * diff * diff;
        clipped[i] = w[i] * over * over;
    }
    return (cost){ sum_terms(all, n), sum_terms(clipped, n) };
}

/* Halves order: byte k has element k low and element k + n/2 high. */
static void put_codes(uint8_t *nibbles, const float *x, const float *a, int n, float scale)
{
    const float inverse = 1.0f / scale;
    uint8_t code[32];
    for (int i = 0; i < n; i++) {
        code[i] = e2m1_code(e2m1_nearest(a[i] * inverse));
        if (x[i] < 0.0f && code[i]) code[i] |= 8;        /* never -0 */
    }
    for (int k = 0; k < n / 2; k++) nibbles[k] = (uint8_t)(code[k] | code[k + n / 2] << 4);
}

/* ---- MXFP4 --------------------------------------------------------------------------------- */

enum { E8M0_BIAS = 127, E8M0_MOST = 252 };       /* 6 * 2^(253-127) is infinite */

/* Writes x * 2^-e, in two factors because 2^-e may exceed the range of float. */
static void scale_down(float *a, const float *x, int n, int e)
{
    const float half = ldexpf(1.0f, -(e / 2)), rest = ldexpf(1.0f, -(e - e / 2));
    for (int i = 0; i < n; i++) a[i] = fabsf(x[i]) * half * rest;
}

void quantise_mxfp4(block_mxfp4 *b, const float *x, const float *w)
{
    const float most = largest_magnitude(x, 32);
    float a[32], scale = 1.0f, best_scale = 1.0f;
    int e, best;

    *b = (block_mxfp4){ 0 };
    if (most == 0.0f) return;
    const float fraction = frexpf(most, &e);             /* 0.75 * 2^e is 6 * 2^(e-3) */
    e -= fraction <= 0.75f ? 3 : 2;
    if (e > E8M0_MOST - E8M0_BIAS) e = E8M0_MOST - E8M0_BIAS;
    if (e < -E8M0_BIAS) e = -E8M0_BIAS;
    scale_down(a, x, 32, e);                             /* the initial scale is now 1 */
    best = e;
    cost least = cost_of(a, w, 32, scale);
    while (e > -E8M0_BIAS) {
        e--;
        scale *= 0.5f;
        const cost c = cost_of(a, w, 32, scale);
        if (c.clipped >= least.all) break;
        if (c.all < least.all) least = c, best = e, best_scale = scale;
    }
    b->e = (uint8_t)(best + E8M0_BIAS);
    put_codes(b->nibbles, x, a, 32, best_scale);
}

/* ---- NVFP4 --------------------------------------------------------------------------------- */

/* Codes of UE4M3. From 16 on, the code for half a value is 8 lower; below 16 there may be none. */
enum { UE4M3_MOST = 126, UE4M3_HALVED = 16, UE4M3_OCTAVE = 8 };

/* Returns the smallest code with 6 * scale >= most, or UE4M3_MOST if there is none. */
static int unclipped(float most)
{
    int low = 1, high = UE4M3_MOST;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (6.0f * ue4m3_to_f32((uint8_t)mid) >= most) high = mid;
        else low = mid + 1;
    }
    return low;
}

static uint8_t best_code(const float *a, const float *w, float most)
{
    const int from = unclipped(most);
    int top = from + UE4M3_OCTAVE - 1, best = from;
    float least = INFINITY;

    if (top < UE4M3_HALVED - 1) top = UE4M3_HALVED - 1;
    if (top > UE4M3_MOST) top = UE4M3_MOST;
    for (int c = top; c >= 1; c--) {
        const cost now = cost_of(a, w, 16, ue4m3_to_f32((uint8_t)c));
        if (now.clipped >= least) break;
        if (now.all < least) least = now.all, best = c;
    }
    return (uint8_t)best;
}

void quantise_nvfp4(block_nvfp4 *b, const float *x, const float *w)
{
    *b = (block_nvfp4){ 0 };
    for (int j = 0; j < 4; j++, x += 16) {
        const float most = largest_magnitude(x, 16);
        float a[16];
        if (most == 0.0f) continue;
        for (int i = 0; i < 16; i++) a[i] = fabsf(x[i]);
        b->scales[j] = best_code(a, quantise_weights(w ? w + 16 * j : NULL, 16), most);
        put_codes(b->nibbles[j], x, a, 16, ue4m3_to_f32(b->scales[j]));
    }
}
