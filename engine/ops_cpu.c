/* ops_cpu.c - the verbs on the CPU: how each is cut into pieces for the thread team.
 *
 * The arithmetic of products is the kernel set's; here rows are handed out, and the factor, scale
 * and bias of a row are applied, once, in one fma: y = fma(factor * scale, sum, bias). */
#include "engine/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "loader/bytes.h"

/* ---- activations ----------------------------------------------------------------------------- */

enum { BLOCK_GROUP = 16 };               /* kernels may read whole groups of blocks */

static int padded_blocks(int cols)
{
    return (cols + ACT_BLOCK * BLOCK_GROUP - 1) / (ACT_BLOCK * BLOCK_GROUP) * BLOCK_GROUP;
}

size_t acts_bytes(int n, int cols)
{
    const size_t blocks = (size_t)n * (size_t)padded_blocks(cols);
    return blocks * (ACT_BLOCK + sizeof(float) + 2 * sizeof(int16_t)) + (size_t)n * sizeof(act_row);
}

void acts_init(acts *a, void *storage, int n, int cols)
{
    const size_t blocks = (size_t)n * (size_t)padded_blocks(cols);
    uint8_t *p = storage;
    memset(a, 0, sizeof *a);
    a->rows = (act_row *)p;              /* the strictest alignment first */
    p += (size_t)n * sizeof(act_row);
    a->dx = (float *)p;
    p += blocks * sizeof(float);
    a->s = (int16_t *)p;
    p += blocks * 2 * sizeof(int16_t);
    a->q = (int8_t *)p;
}

void acts_set(acts *a, const float *x, int n, int cols)
{
    a->x = x;
    a->n = n;
    a->cols = cols;
    a->n_block = padded_blocks(cols);
    a->quantised = false;
    for (int t = 0; t < n; t++) {
        const size_t first = (size_t)t * (size_t)a->n_block;
        a->rows[t] = (act_row){
            .x = x + (size_t)t * (size_t)cols, .q = a->q + first * ACT_BLOCK,
            .dx = a->dx + first, .s = a->s + 2 * first,
        };
    }
}

static void clear_padding(acts *a, int64_t t)
{
    const size_t used = (size_t)a->cols / ACT_BLOCK, room = (size_t)a->n_block, pad = room - used;
    const size_t first = (size_t)t * room + used;
    memset(a->q + first * ACT_BLOCK, 0, pad * ACT_BLOCK);
    memset(a->dx + first, 0, pad * sizeof(float));
    memset(a->s + 2 * first, 0, 2 * pad * sizeof(int16_t));
}

void acts_clear_padding(acts *a)
{
    for (int t = 0; t < a->n; t++) clear_padding(a, t);
}

typedef struct quantise_args {
    const loops *f;
    acts *a;
} quantise_args;

static void quantise_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const quantise_args *j = ctx;
    acts *a = j->a;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const size_t first = (size_t)t * (size_t)a->n_block;
        j->f->quantise(a->q + first * ACT_BLOCK, a->dx + first, a->s + 2 * first, a->rows[t].x,
                       a->cols / ACT_BLOCK);
        clear_padding(a, t);
    }
}

void ops_quantise(const ops *o, acts *a)
{
    if (a->quantised) return;
    assert(a->cols % ACT_BLOCK == 0);    /* a quantised row of weights has no other length */
    quantise_args j = { o->loops, a };
    pool_run(o->team, a->n, pool_grain(4 * a->cols), quantise_rows, &j);
    a->quantised = true;
}

/* ---- products -------------------------------------------------------------------------------- */

void product_rows(float *y, size_t y_stride, const kernel_set *k, const matrix *w, int first,
                  int n_row, const act_row *x, int n_token)
{
    const kernel *fn = &k->of[w->type];
    const float factor = fn->factor * w->scale;
    const uint8_t *bias = w->bias;
    dot_fn *dot = fn->wide && n_token >= fn->wide_from ? fn->wide : fn->dot;
    float sums[OPS_ROWS * OPS_TOKENS];

    dot(sums, w->data + (uint64_t)first * w->row_bytes, w->row_bytes, n_row, x, n_token, w->cols);
    for (int t = 0; t < n_token; t++)
        for (int r = 0; r < n_row; r++) {
            const float b = bias ? load_f32(bias + (size_t)(first + r) * sizeof(float)) : 0.0f;
            y[(size_t)t * y_stride + (size_t)r] = fmaf(factor, sums[t * n_row + r], b);
        }
}

typedef struct matmul_args {
    const ops *o;
    float *y;
    const matrix *w;
    const acts *x;
} matmul_args;

static void matmul_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const matmul_args *m = ctx;
    const size_t stride = (size_t)m->w->rows;
    (void)thread;
    for (int r = (int)begin; r < (int)end; r += OPS_ROWS) {
        const int n_row = (int)end - r < OPS_ROWS ? (int)end - r : OPS_ROWS;
        for (int t = 0; t < m->x->n; t += OPS_TOKENS) {
            const int n = m->x->n - t < OPS_TOKENS ? m->x->n - t : OPS_TOKENS;
            product_rows(m->y + (size_t)t * stride + (size_t)r, stride, m->o->kernels, m->w, r,
                         n_row, m->x->rows + t, n);
        }
    }
}

void ops_matmul(const ops *o, float *y, const matrix *w, acts *x)
{
    matmul_args m = { o, y, w, x };
    assert(w->cols == x->cols);
    if (o->kernels->of[w->type].quantised) ops_quantise(o, x);
    pool_run(o->team, w->rows, OPS_ROWS * pool_grain((int64_t)OPS_ROWS * w->cols * x->n),
             matmul_rows, &m);
}

/* ---- rows of numbers ------------------------------------------------------------------------- */

void ops_embed(const ops *o, float *y, const matrix *table, const int32_t *ids, int n)
{
    const quant_traits *q = quant_traits_of(table->type);
    const size_t width = (size_t)table->cols;
    (void)o;                             /* a copy of n rows: not worth a team */
    for (int t = 0; t < n; t++) {
        float *to = y + (size_t)t * width;
        q->decode(to, table->data + (uint64_t)ids[t] * table->row_bytes,
                  width / (size_t)q->block_elems);
        if (table->scale != 1.0f)
            for (size_t c = 0; c < width; c++) to[c] *= table->scale;
    }
}

typedef struct norm_args {
    const ops *o;
    float *y;
    const float *x, *w;
    int width;
    size_t stride;
    float eps;
} norm_args;

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const norm_args *a = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        a->o->loops->rmsnorm(a->y + (size_t)t * a->stride, a->x + (size_t)t * a->stride, a->w,
                             a->width, a->eps);
}

void ops_rmsnorm(const ops *o, float *y, const float *x, const float *w, int n, int width,
                 size_t stride, float eps)
{
    norm_args a = { o, y, x, w, width, stride, eps };
    pool_run(o->team, n, pool_grain(4 * width), norm_rows, &a);
}

void ops_add(const ops *o, float *x, const float *y, int n, int width)
{
    /* memory-bound and small beside the products: no work for a team */
    o->loops->add(x, y, (size_t)n * (size_t)width);
}
