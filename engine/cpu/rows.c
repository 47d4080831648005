/* rows.c - norms, sums and rotations of rows of numbers.
 *
 * Compiled once for each instruction set, with the same bits. */
#include <math.h>
#include <string.h>

#include "engine/cpu/exact_exp.h"
#include "engine/cpu/f32_loops.h"
#include "engine/cpu/loops.h"
#include "loader/bytes.h"

static void finish(float *y, size_t y_stride, const float *sums, int n_row, int n_token,
                   float factor, const uint8_t *bias)
{
    const vec8 f = vec8_all(factor);
    for (int t = 0; t < n_token; t++, y += y_stride, sums += n_row) {
        int r = 0;
        for (; r + 8 <= n_row; r += 8) {
            float b[8] = { 0 };
            if (bias) memcpy(b, bias + (size_t)r * sizeof *b, sizeof b);
            vec8_store(y + r, vec8_fma(f, vec8_load(sums + r), vec8_load(b)));
        }
        for (; r < n_row; r++)
            y[r] = fmaf(factor, sums[r], bias ? load_f32(bias + (size_t)r * sizeof *y) : 0.0f);
    }
}

static void rmsnorm(float *y, const float *x, const float *w, int n, float eps)
{
    const float scale = (float)(1.0 / sqrt(f64_squares(x, n) / n + (double)eps));
    if (w)
        for (int i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
    else
        for (int i = 0; i < n; i++) y[i] = x[i] * scale;
}

static void add(float *restrict x, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += y[i];
}

/* Joins 8 * vecs values, each in the order of the contract. */
F32_INLINE void join_tile(float *restrict x, const float *restrict y, size_t stride,
                          const float *gate, int k, const float *shared, float sigma, int vecs)
{
    vec8 sum[4];
    for (int v = 0; v < vecs; v++) sum[v] = vec8_all(0.0f);
    for (int r = 0; r < k; r++, y += stride)
        for (int v = 0; v < vecs; v++) sum[v] = vec8_fma_all(gate[r], vec8_load(y + 8 * v), sum[v]);
    for (int v = 0; v < vecs; v++) {
        if (shared) sum[v] = vec8_fma_all(sigma, vec8_load(shared + 8 * v), sum[v]);
        vec8_store(x + 8 * v, vec8_add(vec8_load(x + 8 * v), sum[v]));
    }
}

static void join(float *x, const float *y, const float *gate, int k, const float *shared,
                 float sigma, int n)
{
    const size_t stride = (size_t)n;
    int i = 0;
    for (; i + 32 <= n; i += 32)
        join_tile(x + i, y + i, stride, gate, k, shared ? shared + i : NULL, sigma, 4);
    for (; i < n; i++) {
        float sum = 0.0f;
        for (int r = 0; r < k; r++) sum = fmaf(gate[r], y[(size_t)r * stride + (size_t)i], sum);
        if (shared) sum = fmaf(sigma, shared[i], sum);
        x[i] += sum;
    }
}

static void rotate(float *head, const float *cosine, const float *sine, int dim)
{
    const int half = dim / 2;
    float *restrict lower = head, *restrict upper = head + half;
    for (int i = 0; i < half; i++) {
        const float a = lower[i], b = upper[i];
        lower[i] = a * cosine[i] - b * sine[i];
        upper[i] = a * sine[i] + b * cosine[i];
    }
}

/* tanh(t) = (1 - e) / (1 + e) with e = exp(-2 t). The error is about 1e-7 of the cap. */
static inline vec8 soft_cap8(vec8 x, vec8 cap)
{
    const vec8 e = exp_clamped(vec8_div(vec8_mul(x, vec8_all(-2.0f)), cap));
    const vec8 one = vec8_all(1.0f);
    return vec8_mul(cap, vec8_div(vec8_sub(one, e), vec8_add(one, e)));
}

static void soft_cap(float *x, int n, float cap)
{
    const vec8 most = vec8_all(cap);
    int i = 0;
    for (; i + 8 <= n; i += 8) vec8_store(x + i, soft_cap8(vec8_load(x + i), most));
    if (i < n) vec8_store_some(x + i, n - i, soft_cap8(vec8_load_some(x + i, n - i), most));
}

void LOOPS_PUT(rows)(loops *l)
{
    l->finish = finish;
    l->rmsnorm = rmsnorm;
    l->add = add;
    l->join = join;
    l->soft_cap = soft_cap;
    l->rotate = rotate;
}
