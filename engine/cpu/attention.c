/* attention.c - softmax attention of one head, tile by tile.
 *
 * After every tile, scratch holds sum(w[p] * v[p]) over the keys seen, with w[p] = exp(score[p] -
 * maximum), and total the sum of the w, which a sink has entered as one more key without a value. A
 * higher maximum rescales both, so no weight is ever above 1 and nothing overflows. Each tile has a
 * sum of its own that is added once: the rounding error of the output hardly grows with the
 * context. How keys and values are stored is kv.c's business; which heads run where, the
 * caller's. */
#include "engine/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/f32_loops.h"
#include "engine/cpu/kernels.h"

/* Weights below exp(-70) = 4e-31 count as nothing. They could not show in an F32 sum, and their
 * products might be subnormal numbers, which some processors take a hundred cycles for. */
static const float lowest_exponent = -70.0f;

/* Scratch: keys or values of a tile, its scores (then weights), its sum, the sum of all tiles. */
size_t attend_scratch(int head_dim)
{
    return (size_t)head_dim * (ATTEND_TILE + 2) + ATTEND_TILE;
}

/* exp(x) for x <= 0; NaN stays NaN. */
static float weight_of(float x)
{
    return x < lowest_exponent ? 0.0f : exact_exp(x);
}

/* Scores of n keys into score; returns the largest of them and of maximum. */
static float score_keys(float *score, const float *q, const float *keys, int n, int head_dim,
                        float scale, float maximum)
{
    for (int i = 0; i < n; i++) {
        score[i] = f32_dot(q, keys + (size_t)i * (size_t)head_dim, head_dim) * scale;
        if (score[i] > maximum) maximum = score[i];
    }
    return maximum;
}

void attend_head(const attend_args *a, int t, int h, float *scratch)
{
    const size_t dim = (size_t)a->head_dim;
    const size_t row = ((size_t)t * (size_t)a->n_head + (size_t)h) * dim;
    const int head_kv = h / (a->n_head / a->n_head_kv);
    const int last = a->pos + t;
    const int first = a->window > 0 && last >= a->window ? last - a->window + 1 : 0;
    float *tile = scratch, *score = tile + ATTEND_TILE * dim;
    float *part = score + ATTEND_TILE, *sum = part + dim;
    float maximum = a->sinks ? a->sinks[h] : -INFINITY;
    double total = a->sinks ? 1.0 : 0.0;

    memset(sum, 0, dim * sizeof *sum);
    for (int p = first; p <= last; p += ATTEND_TILE) {
        const int n = last - p + 1 < ATTEND_TILE ? last - p + 1 : ATTEND_TILE;
        const float *keys = kv_keys(a->cache, a->layer, head_kv, p, n, tile);
        const float higher = score_keys(score, a->q + row, keys, n, a->head_dim, a->scale, maximum);
        if (higher > maximum) {
            const float shrink = weight_of(maximum - higher);
            for (size_t c = 0; c < dim; c++) sum[c] *= shrink;
            total *= shrink;
            maximum = higher;
        }
        for (int i = 0; i < n; i++) {
            score[i] = weight_of(score[i] - maximum);
            total += score[i];
        }
        /* the keys are done with: their place in the tile is free */
        const float *values = kv_values(a->cache, a->layer, head_kv, p, n, tile);
        memset(part, 0, dim * sizeof *part);
        f32_add_product(part, score, values, dim, n, a->head_dim);
        for (size_t c = 0; c < dim; c++) sum[c] += part[c];
    }
    const float inverse = (float)(1.0 / total);
    for (size_t c = 0; c < dim; c++) a->out[row + c] = sum[c] * inverse;
}
