/* deltanet.c - the gated delta rule, token by token and in chunks, with its convolution and norms.
 *
 * One token changes the state S [dk, dv] to S' = exp(g) S + k (x) d with d = beta (v - exp(g) S^T
 * k): the prediction uses the decayed state. The output S'^T q uses the updated one. The columns of
 * S are independent: they are the lanes of vectors. The decay over many tokens is a product of
 * factors in [0, 1], in double, so it cannot overflow. The caller does projections and the split
 * into heads.
 *
 * Compiled once for each instruction set, with the same bits. */
#include "engine/cpu/deltanet.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/exact_exp.h"
#include "engine/cpu/f32_loops.h"
#include "engine/cpu/loops.h"

enum {
    COLUMNS = DELTA_COLUMNS,
    FILTERS = 8 * DELTA_MAX_TAPS,        /* filter coefficients in one step */
    ROWS = 8                             /* tokens of a chunk that are solved together */
};

/* ---- norms ----------------------------------------------------------------------------------- */

static void delta_l2norm(float *x, int dim, float scale)
{
    const double factor = scale / sqrt(f64_squares(x, dim) + 1e-6);
    for (int i = 0; i < dim; i++) x[i] = (float)(x[i] * factor);
}

static void delta_gated_norm(float *restrict o, const float *restrict z,
                             const float *restrict gain, int dim, float eps)
{
    const float scale = (float)(1.0 / sqrt(f64_squares(o, dim) / dim + eps));
    int i = 0;
    for (int k = 0; k < dim; k++) o[k] = o[k] * scale * gain[k];
    for (; i + 8 <= dim; i += 8)
        vec8_store(o + i, vec8_mul(silu(vec8_load(z + i)), vec8_load(o + i)));
    if (i < dim)
        vec8_store_some(o + i, dim - i, vec8_mul(silu(vec8_load_some(z + i, dim - i)),
                                                 vec8_load_some(o + i, dim - i)));
}

/* ---- convolution ----------------------------------------------------------------------------- */

/* Transposes the filters of `width` channels to w[tap * width + j]. All known models have four
 * taps, a constant with which compilers vectorise. */
static void take_filters(float *restrict w, const float *restrict filter, int taps, int width)
{
    if (taps == 4)
        for (int j = 0; j < width; j++)
            for (int tap = 0; tap < 4; tap++) w[tap * width + j] = filter[j * 4 + tap];
    else
        for (int tap = 0; tap < taps; tap++)
            for (int j = 0; j < width; j++) w[tap * width + j] = filter[j * taps + tap];
}

/* Returns input r of the channels from c on, counted from the oldest in the window. */
static const float *conv_input(const float *x, const float *window, int r, int in_window,
                               size_t channels, size_t c)
{
    return (r < in_window ? window + (size_t)r * channels
                          : x + (size_t)(r - in_window) * channels) + c;
}

/* x = silu(x) */
static void silu_all(float *x, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) vec8_store(x + i, silu(vec8_load(x + i)));
    if (i < n) vec8_store_some(x + i, n - i, silu(vec8_load_some(x + i, n - i)));
}

static void delta_conv(float *y, const float *x, int n, int channels, int first, int last,
                       const float *filter, int taps, float *window)
{
    const size_t stride = (size_t)channels;
    const int step = FILTERS / taps / 8 * 8;             /* channels at a time */
    assert(taps <= DELTA_MAX_TAPS);
    for (int c0 = first; c0 < last; c0 += step) {
        const int width = last - c0 < step ? last - c0 : step;
        const size_t c = (size_t)c0, bytes = (size_t)width * sizeof *y;
        float w[FILTERS];

        take_filters(w, filter + c * (size_t)taps, taps, width);
        for (int t = 0; t < n; t++) {
            float *restrict dst = y + (size_t)t * stride + c;
            memset(dst, 0, bytes);
            for (int tap = 0; tap < taps; tap++) {
                const float *in = conv_input(x, window, t + tap, taps - 1, stride, c);
                for (int j = 0; j < width; j++) dst[j] = fmaf(w[tap * width + j], in[j], dst[j]);
            }
            silu_all(dst, width);
        }
        /* the source is a later row of the window, or x */
        for (int r = 0; r < taps - 1; r++)
            memmove(window + (size_t)r * stride + c,
                    conv_input(x, window, n + r, taps - 1, stride, c), bytes);
    }
}

/* ---- one token after the other --------------------------------------------------------------- */

/* One token's vectors and gates, from column c on. The decay is the sum of two floats: with one,
 * the same rounding error in every token would distort the state of heads with slow decay. */
typedef struct token {
    const float *q, *k, *v;
    float *out;
    float beta;
    double decay;
    float high, low;
} token;

static token token_at(const delta_args *a, int t, int c)
{
    const size_t i = (size_t)t;
    token x = {
        .q = a->q + i * a->qk_stride, .k = a->k + i * a->qk_stride, .v = a->v + i * a->v_stride + c,
        .out = a->out + i * a->out_stride + c, .beta = a->beta[i * a->bg_stride],
        .decay = exp((double)a->g[i * a->bg_stride]),
    };
    x.high = (float)x.decay;
    x.low = (float)(x.decay - x.high);
    return x;
}

/* Updates n rows of the state from `row` on, 8 * vecs columns: s = decay s + k (x) d, then out +=
 * q s. Prefetches the same amount of `next` to L2: with states in DRAM a head is a fifth faster. */
F32_INLINE void update_tile(float *restrict out, float *restrict s, const float *next,
                            size_t s_stride, const token *x, int row, int n,
                            const float *restrict d, int vecs)
{
    const vec8 high = vec8_all(x->high), low = vec8_all(x->low);
    vec8 delta[4], sum[4];
    for (int v = 0; v < vecs; v++) {
        delta[v] = vec8_load(d + 8 * v);
        sum[v] = vec8_all(0.0f);
    }
    for (int i = row; i < row + n; i++, s += s_stride, next += s_stride) {
        const float q = x->q[i];
        const vec8 k = vec8_all(x->k[i]);
        for (int v = 0; v < vecs; v += 2) __builtin_prefetch(next + 8 * v, 0, 2);
        for (int v = 0; v < vecs; v++) {
            const vec8 old = vec8_load(s + 8 * v);
            const vec8 new = vec8_fma(high, old, vec8_fma(low, old, vec8_mul(k, delta[v])));
            vec8_store(s + 8 * v, new);
            sum[v] = vec8_fma_all(q, new, sum[v]);
        }
    }
    for (int v = 0; v < vecs; v++)
        vec8_store(out + 8 * v, vec8_add(vec8_load(out + 8 * v), sum[v]));
}

/* update_tile() for columns that do not fill a vector. */
static void update_ragged(float *restrict out, float *restrict s, size_t s_stride, const token *x,
                          int row, int n, const float *restrict d, int width)
{
    for (int c = 0; c < width; c++) {
        float sum = 0.0f;
        for (int i = 0; i < n; i++) {
            float *pos = s + (size_t)i * s_stride + c;
            const float new = x->k[row + i] * d[c];
            *pos = fmaf(x->high, *pos, fmaf(x->low, *pos, new));
            sum = fmaf(x->q[row + i], *pos, sum);
        }
        out[c] += sum;
    }
}

/* Updates all rows of `width` columns. */
static void update_state(float *out, float *state, const float *next, size_t dv, const token *x,
                         int dk, const float *d, int width)
{
    memset(out, 0, (size_t)width * sizeof *out);
    for (int row = 0; row < dk; row += F32_TERMS) {
        const int n = dk - row < F32_TERMS ? dk - row : F32_TERMS;
        float *s = state + (size_t)row * dv;
        const float *s2 = next + (size_t)row * dv;
        int c = 0;
        for (; c + 32 <= width; c += 32)
            update_tile(out + c, s + c, s2 + c, dv, x, row, n, d + c, 4);
        for (; c + 8 <= width; c += 8)
            update_tile(out + c, s + c, s2 + c, dv, x, row, n, d + c, 1);
        update_ragged(out + c, s + c, dv, x, row, n, d + c, width - c);
    }
}

static void delta_recurrence(const delta_args *a)
{
    const size_t dv = (size_t)a->dv;
    for (int c0 = 0; c0 < a->dv; c0 += COLUMNS) {
        const int width = a->dv - c0 < COLUMNS ? a->dv - c0 : COLUMNS;
        float *state = a->state + c0;
        for (int t = 0; t < a->n; t++) {
            const token x = token_at(a, t, c0);
            const float *next = t == a->n - 1 && a->next ? a->next + c0 : state;
            float d[COLUMNS] = { 0.0f };
            f32_add_product(d, 0, x.k, 0, state, dv, 1, a->dk, width);
            for (int c = 0; c < width; c++) {
                const float rest = x.low * d[c];
                const float predicted = fmaf(x.high, d[c], rest);
                d[c] = x.beta * (x.v[c] - predicted);
            }
            update_state(x.out, state, next, dv, &x, a->dk, d, width);
        }
    }
}

/* ---- in chunks ------------------------------------------------------------------------------- */

/* A chunk of tokens 0 .. n-1, with decay(j, i) the product of the decays of j+1 .. i:
 *   d_i   = beta_i (v_i - decay(-1, i) S^T k_i - sum over j < i of (k_i . k_j) decay(j, i) d_j)
 *   out_i = decay(-1, i) S^T q_i + sum over j <= i of (q_i . k_j) decay(j, i) d_j
 *   S'    = decay(-1, n-1) S + sum over j of decay(j, n-1) k_j (x) d_j
 * The d equal those of the recurrence. Terms without S are computed once. Then every block of
 * columns needs three matrix products and a triangular solve. */
typedef struct chunk {
    int n;
    const float *q, *k;                  /* of token 0 */
    float beta[DELTA_CHUNK];
    double decay[DELTA_CHUNK];           /* of each token */
    double since[DELTA_CHUNK];           /* decay(-1, i): from the start of the chunk */
    float *kk;                           /* [n, DELTA_CHUNK]: -beta_i (k_i . k_j) decay(j, i) for
                                          * j < i; the rest is undefined */
    float *qk;                           /* [n, DELTA_CHUNK]: (q_i . k_j) decay(j, i), j <= i */
    float *keys;                         /* [dk, DELTA_CHUNK]: a column per token; first k_j, then
                                          * k_j decay(j, n-1) */
    float *d;                            /* [n, COLUMNS] */
} chunk;

/* Computes the lower triangle of x times keys, in blocks of ROWS rows up to their diagonal. */
static void lower_products(float *y, const float *x, size_t x_stride, const chunk *u, int dk)
{
    for (int r = 0; r < u->n; r += ROWS) {
        const int rows = u->n - r < ROWS ? u->n - r : ROWS;
        float *dst = y + r * DELTA_CHUNK;
        memset(dst, 0, (size_t)rows * DELTA_CHUNK * sizeof *dst);
        f32_add_product(dst, DELTA_CHUNK, x + (size_t)r * x_stride, x_stride, u->keys, DELTA_CHUNK,
                        rows, dk, r + rows);
    }
}

/* Computes the terms of the chunk that do not depend on the state. */
static void chunk_prepare(chunk *u, const delta_args *a, int first)
{
    double between[DELTA_CHUNK], since = 1.0;            /* decay(j, i) of the current row */
    for (int t = 0; t < u->n; t++) {
        const token x = token_at(a, first + t, 0);
        u->beta[t] = x.beta;
        u->decay[t] = x.decay;
        u->since[t] = since *= x.decay;
        for (int i = 0; i < a->dk; i++) u->keys[i * DELTA_CHUNK + t] = x.k[i];
    }
    lower_products(u->kk, u->k, a->qk_stride, u, a->dk);
    lower_products(u->qk, u->q, a->qk_stride, u, a->dk);
    for (int t = 0; t < u->n; t++) {
        float *kk = u->kk + t * DELTA_CHUNK, *qk = u->qk + t * DELTA_CHUNK;
        for (int j = 0; j < t; j++) {
            between[j] *= u->decay[t];
            kk[j] *= -u->beta[t] * (float)between[j];
            qk[j] *= (float)between[j];
        }
        between[t] = 1.0;
    }
    for (int i = 0; i < a->dk; i++)
        for (int t = 0; t < u->n; t++) u->keys[i * DELTA_CHUNK + t] *= (float)between[t];
}

/* y += x d for the lower triangle of x, with or without its diagonal: in blocks of rows, first the
 * product with earlier blocks, then row by row inside the block. If y is d this is the triangular
 * solve: rows use the new values of earlier rows. */
static void add_lower(float *y, size_t y_stride, const float *x, const chunk *u, int diagonal,
                      int width)
{
    for (int r = 0; r < u->n; r += ROWS) {
        const int rows = u->n - r < ROWS ? u->n - r : ROWS;
        const float *d = u->d + r * COLUMNS;
        f32_add_product(y, y_stride, x, DELTA_CHUNK, u->d, COLUMNS, rows, r, width);
        for (int i = 0; i < rows; i++, x += DELTA_CHUNK, y += y_stride)
            f32_add_product(y, 0, x + r, 0, d, COLUMNS, 1, i + diagonal, width);
    }
}

/* Computes columns c0 .. c0 + width - 1 of deltas, outputs and state. */
static void chunk_columns(const chunk *u, const delta_args *a, int first, int c0, int width)
{
    const size_t dv = (size_t)a->dv;
    float *state = a->state + c0, *out = a->out + (size_t)first * a->out_stride + c0;
    const float *v = a->v + (size_t)first * a->v_stride + c0;

    for (int t = 0; t < u->n; t++) {
        memset(u->d + t * COLUMNS, 0, (size_t)width * sizeof *u->d);
        memset(out + (size_t)t * a->out_stride, 0, (size_t)width * sizeof *out);
    }
    f32_add_product(u->d, COLUMNS, u->k, a->qk_stride, state, dv, u->n, a->dk, width);
    f32_add_product(out, a->out_stride, u->q, a->qk_stride, state, dv, u->n, a->dk, width);
    for (int t = 0; t < u->n; t++) {
        float *d = u->d + t * COLUMNS, *o = out + (size_t)t * a->out_stride;
        const float since = (float)u->since[t];
        for (int c = 0; c < width; c++) {
            d[c] = u->beta[t] * (v[(size_t)t * a->v_stride + (size_t)c] - since * d[c]);
            o[c] *= since;
        }
    }
    add_lower(u->d, COLUMNS, u->kk, u, 0, width);
    add_lower(out, a->out_stride, u->qk, u, 1, width);
    for (int i = 0; i < a->dk; i++) {
        float *row = state + (size_t)i * dv;
        for (int c = 0; c < width; c++) row[c] = (float)(u->since[u->n - 1] * row[c]);
    }
    f32_add_product(state, dv, u->keys, DELTA_CHUNK, u->d, COLUMNS, a->dk, u->n, width);
}

static void delta_chunked(const delta_args *a, float *scratch)
{
    chunk u = { .kk = scratch };
    u.qk = u.kk + DELTA_CHUNK * DELTA_CHUNK;
    u.d = u.qk + DELTA_CHUNK * DELTA_CHUNK;
    u.keys = u.d + DELTA_CHUNK * COLUMNS;
    for (int t = 0; t < a->n; t += DELTA_CHUNK) {
        u.n = a->n - t < DELTA_CHUNK ? a->n - t : DELTA_CHUNK;
        u.q = a->q + (size_t)t * a->qk_stride;
        u.k = a->k + (size_t)t * a->qk_stride;
        chunk_prepare(&u, a, t);
        for (int c = 0; c < a->dv; c += COLUMNS)
            chunk_columns(&u, a, t, c, a->dv - c < COLUMNS ? a->dv - c : COLUMNS);
    }
}

void LOOPS_PUT(deltanet)(loops *l)
{
    l->delta_conv = delta_conv;
    l->delta_l2norm = delta_l2norm;
    l->delta_gated_norm = delta_gated_norm;
    l->delta_recurrence = delta_recurrence;
    l->delta_chunked = delta_chunked;
}
