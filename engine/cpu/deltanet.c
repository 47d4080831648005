/* deltanet.c - the gated delta rule, token by token and in chunks, and what stands around it.
 *
 * One token turns the state S [dk, dv] into S' = exp(g) S + k (x) d with d = beta (v - exp(g) S^T
 * k): the prediction comes from the decayed state. Its output S'^T q comes from the updated one.
 * The columns of S never meet, so both forms go through them in blocks that stay in a near cache.
 * Decay over many tokens is a product of factors in [0, 1], kept in double: nothing overflows,
 * whatever the gates are. Projections and the split into heads are the caller's. */
#include "engine/cpu/deltanet.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/f32_loops.h"
#include "engine/cpu/kernels.h"

enum {
    COLUMNS = 128,                       /* of the state at a time, or channels; 128 is a whole row
                                          * of the known models: 64 would cost 5 to 10 % */
    ROWS = 8                             /* tokens of a chunk that are solved together */
};

/* ---- scalars, norms, convolution ------------------------------------------------------------- */

float sigmoid_f32(float x)
{
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}

float delta_decay(float alpha, float dt_bias, float a)
{
    const double x = (double)alpha + dt_bias;
    return (float)((x > 20.0 ? x : log1p(exp(x))) * a);
}

static double sum_of_squares(const float *x, int n)
{
    double lane[4] = { 0.0 };
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) lane[j] += (double)x[i + j] * x[i + j];
    for (; i < n; i++) lane[0] += (double)x[i] * x[i];
    return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

void delta_l2norm(float *x, int dim, float scale)
{
    const double factor = scale / sqrt(sum_of_squares(x, dim) + 1e-6);
    for (int i = 0; i < dim; i++) x[i] = (float)(x[i] * factor);
}

void delta_gated_norm(float *o, const float *z, const float *weight, int dim, float eps)
{
    const double factor = 1.0 / sqrt(sum_of_squares(o, dim) / dim + eps);
    for (int i = 0; i < dim; i++) o[i] = (float)(o[i] * factor) * weight[i];
    act_swiglu(o, z, o, dim);
}

/* Input r of a channel block, counted from the oldest that the window holds. */
static const float *conv_input(const float *x, const float *window, int r, int in_window,
                               size_t channels, size_t c)
{
    return (r < in_window ? window + (size_t)r * channels
                          : x + (size_t)(r - in_window) * channels) + c;
}

void delta_conv(float *y, const float *x, int n, int channels, int first, int last,
                const float *weight, int taps, float *window)
{
    const size_t stride = (size_t)channels;
    float ones[COLUMNS];                 /* silu(y) is the gate of 1 */
    for (int j = 0; j < COLUMNS; j++) ones[j] = 1.0f;
    for (int c0 = first; c0 < last; c0 += COLUMNS) {
        const int width = last - c0 < COLUMNS ? last - c0 : COLUMNS;
        const size_t c = (size_t)c0, bytes = (size_t)width * sizeof *y;
        float w[COLUMNS];

        for (int tap = 0; tap < taps; tap++) {
            for (int j = 0; j < width; j++) w[j] = weight[(c + (size_t)j) * (size_t)taps + tap];
            for (int t = 0; t < n; t++) {
                const float *in = conv_input(x, window, t + tap, taps - 1, stride, c);
                float *restrict to = y + (size_t)t * stride + c;
                if (tap == 0) memset(to, 0, bytes);
                for (int j = 0; j < width; j++) to[j] += w[j] * in[j];
            }
        }
        for (int t = 0; t < n; t++)
            act_swiglu(y + (size_t)t * stride + c, y + (size_t)t * stride + c, ones, width);
        /* a row comes from a later one, or from x */
        for (int r = 0; r < taps - 1; r++)
            memmove(window + (size_t)r * stride + c,
                    conv_input(x, window, n + r, taps - 1, stride, c), bytes);
    }
}

/* ---- one token after the other --------------------------------------------------------------- */

/* One token's vectors and gates, from column c on. */
typedef struct token {
    const float *q, *k, *v;
    float *out;
    float beta;
    double decay;
} token;

static token token_at(const delta_args *a, int t, int c)
{
    const size_t i = (size_t)t;
    return (token){
        .q = a->q + i * a->qk_stride,
        .k = a->k + i * a->qk_stride,
        .v = a->v + i * a->v_stride + c,
        .out = a->out + i * a->out_stride + c,
        .beta = a->beta[i * a->bg_stride],
        .decay = exp((double)a->g[i * a->bg_stride]),
    };
}

/* n rows of the state, at s: s = decay * s + k (x) d, then out += q s. The decay is the sum of two
 * floats: rounded to one, the same error every token would shift what slow heads remember. */
static inline void update_rows(float *restrict out, float *restrict s, size_t s_stride,
                               const token *x, int row, int n, const float *restrict d, int width)
{
    const float high = (float)x->decay, low = (float)(x->decay - high);
    const float *k = x->k + row, *q = x->q + row;
    for (int c = 0; c < width; c++) {
        float o = 0.0f;
        for (int i = 0; i < n; i++) {
            float *at = s + (size_t)i * s_stride + c;
            *at = high * *at + (low * *at + k[i] * d[c]);
            o += q[i] * *at;
        }
        out[c] += o;
    }
}

void delta_recurrence(const delta_args *a)
{
    const size_t dv = (size_t)a->dv;
    for (int c0 = 0; c0 < a->dv; c0 += COLUMNS) {
        const int width = a->dv - c0 < COLUMNS ? a->dv - c0 : COLUMNS;
        float *state = a->state + c0;
        for (int t = 0; t < a->n; t++) {
            const token x = token_at(a, t, c0);
            float d[COLUMNS] = { 0.0f };
            int row = 0;
            f32_add_product(d, x.k, state, dv, a->dk, width);
            for (int c = 0; c < width; c++)
                d[c] = x.beta * (x.v[c] - (float)(x.decay * d[c]));
            memset(x.out, 0, (size_t)width * sizeof *x.out);
            for (; row + 4 <= a->dk; row += 4)
                update_rows(x.out, state + (size_t)row * dv, dv, &x, row, 4, d, width);
            for (; row < a->dk; row++)
                update_rows(x.out, state + (size_t)row * dv, dv, &x, row, 1, d, width);
        }
    }
}

/* ---- in chunks ------------------------------------------------------------------------------- */

/* Of tokens 0 .. n-1 of a chunk, with decay(j, i) the product of the decays of j+1 .. i:
 *   d_i   = beta_i (v_i - decay(-1, i) S^T k_i - sum over j < i of (k_i . k_j) decay(j, i) d_j)
 *   out_i = decay(-1, i) S^T q_i + sum over j <= i of (q_i . k_j) decay(j, i) d_j
 *   S'    = decay(-1, n-1) S + sum over j of decay(j, n-1) k_j (x) d_j
 * The d are those of the recurrence. What does not touch S is made once, then every block of
 * columns takes three matrix products and the triangular solve between them. */
typedef struct chunk {
    int n;
    const float *q, *k;                  /* of token 0 */
    float beta[DELTA_CHUNK];
    double decay[DELTA_CHUNK];           /* of each token */
    double since[DELTA_CHUNK];           /* decay(-1, i): from the start of the chunk */
    float *kk;                           /* [n, DELTA_CHUNK]: -beta_i (k_i . k_j) decay(j, i) where
                                          * j < i; the rest is never read */
    float *qk;                           /* [n, DELTA_CHUNK]: (q_i . k_j) decay(j, i), j <= i */
    float *keys;                         /* [dk, DELTA_CHUNK]: a column per token; first k_j, then
                                          * k_j decay(j, n-1) */
    float *d;                            /* [n, COLUMNS] */
} chunk;

size_t delta_scratch(int dk, int dv)
{
    (void)dv;                            /* one block of columns at a time, whatever their number */
    return (size_t)DELTA_CHUNK * (2 * DELTA_CHUNK + (size_t)dk + COLUMNS);
}

/* y[rows, width] += x[rows, n] m[n, width] */
static void add_matrix_product(float *y, size_t y_stride, const float *x, size_t x_stride,
                               const float *m, size_t m_stride, int rows, int n, int width)
{
    for (int r = 0; r < rows; r++)
        f32_add_product(y + (size_t)r * y_stride, x + (size_t)r * x_stride, m, m_stride, n, width);
}

/* Rows of the lower triangle of x keys, in blocks of ROWS that reach to the block's diagonal. */
static void lower_products(float *y, const float *x, size_t x_stride, const chunk *u, int dk)
{
    for (int r = 0; r < u->n; r += ROWS) {
        const int rows = u->n - r < ROWS ? u->n - r : ROWS;
        float *to = y + r * DELTA_CHUNK;
        memset(to, 0, (size_t)rows * DELTA_CHUNK * sizeof *to);
        add_matrix_product(to, DELTA_CHUNK, x + (size_t)r * x_stride, x_stride, u->keys,
                           DELTA_CHUNK, rows, dk, r + rows);
    }
}

/* Everything in the chunk that does not depend on the state. */
static void chunk_prepare(chunk *u, const delta_args *a, int first)
{
    double between[DELTA_CHUNK], since = 1.0;            /* decay(j, i) of the row under way */
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

/* d += kk d, from the first row to the last: the part from earlier blocks of rows at once, then row
 * by row inside the block. */
static void chunk_solve(const chunk *u, int width)
{
    for (int r = 0; r < u->n; r += ROWS) {
        const int rows = u->n - r < ROWS ? u->n - r : ROWS;
        const float *kk = u->kk + r * DELTA_CHUNK;
        float *d = u->d + r * COLUMNS;
        add_matrix_product(d, COLUMNS, kk, DELTA_CHUNK, u->d, COLUMNS, rows, r, width);
        for (int i = 1; i < rows; i++)
            f32_add_product(d + i * COLUMNS, kk + i * DELTA_CHUNK + r, d, COLUMNS, i, width);
    }
}

/* Columns c0 .. c0 + width - 1 of deltas, outputs and state. */
static void chunk_columns(const chunk *u, const delta_args *a, int first, int c0, int width)
{
    const size_t dv = (size_t)a->dv;
    float *state = a->state + c0, *out = a->out + (size_t)first * a->out_stride + c0;
    const float *v = a->v + (size_t)first * a->v_stride + c0;

    for (int t = 0; t < u->n; t++) {
        float *d = u->d + t * COLUMNS, *o = out + (size_t)t * a->out_stride;
        const float since = (float)u->since[t];
        memset(d, 0, COLUMNS * sizeof *d);
        memset(o, 0, (size_t)width * sizeof *o);
        f32_add_product(d, u->k + (size_t)t * a->qk_stride, state, dv, a->dk, width);
        f32_add_product(o, u->q + (size_t)t * a->qk_stride, state, dv, a->dk, width);
        for (int c = 0; c < width; c++) {
            d[c] = u->beta[t] * (v[(size_t)t * a->v_stride + (size_t)c] - since * d[c]);
            o[c] *= since;
        }
    }
    chunk_solve(u, width);
    for (int t = 0; t < u->n; t++)
        f32_add_product(out + (size_t)t * a->out_stride, u->qk + t * DELTA_CHUNK, u->d, COLUMNS,
                        t + 1, width);
    for (int i = 0; i < a->dk; i++) {
        float *row = state + (size_t)i * dv;
        for (int c = 0; c < width; c++) row[c] = (float)(u->since[u->n - 1] * row[c]);
        f32_add_product(row, u->keys + i * DELTA_CHUNK, u->d, COLUMNS, u->n, width);
    }
}

void delta_chunked(const delta_args *a, float *scratch)
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
