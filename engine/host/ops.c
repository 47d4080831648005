/* ops.c - divides each operation into tiles for the thread team.
 *
 * The kernel set computes the sums of products. This file applies factor, scale and bias of a row,
 * once, in one fma: y = fma(factor * scale, sum, bias). */
#include "engine/host/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- activations ----------------------------------------------------------------------------- */

enum { BLOCK_GROUP = 16 };               /* kernels may read whole groups of blocks */

static int padded_blocks(int cols)
{
    return (cols + ACT_BLOCK * BLOCK_GROUP - 1) / (ACT_BLOCK * BLOCK_GROUP) * BLOCK_GROUP;
}

/* Codes, scales and sums begin where a cache line does: they are read for every row of weights. */
enum { CACHE_LINE = 64 };

size_t acts_bytes(int n, int cols)
{
    const size_t blocks = (size_t)n * (size_t)padded_blocks(cols);
    return CACHE_LINE + blocks * (ACT_BLOCK + sizeof(float) + 2 * sizeof(int16_t)) +
           (size_t)n * sizeof(act_row);
}

void acts_init(acts *a, void *storage, int n, int cols)
{
    const size_t blocks = (size_t)n * (size_t)padded_blocks(cols);
    uint8_t *p = (uint8_t *)(((uintptr_t)storage + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    memset(a, 0, sizeof *a);
    a->q = (int8_t *)p;                  /* a group of blocks fills whole cache lines */
    p += blocks * ACT_BLOCK;
    a->dx = (float *)p;
    p += blocks * sizeof(float);
    a->s = (int16_t *)p;
    p += blocks * 2 * sizeof(int16_t);
    a->rows = (act_row *)p;
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
    const size_t used = (size_t)a->cols / ACT_BLOCK, pad = (size_t)a->n_block - used;
    const size_t first = (size_t)t * (size_t)a->n_block + used;
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

static_assert((int)OPS_TOKENS <= (int)PACKED_TOKENS, "tokens of a call are packed as one");

static bool is_packed(const token_pack *p, const matrix *w, const act_row *x, int n_token)
{
    return p->x == x && p->n == n_token && p->cols == w->cols && p->type == w->type;
}

/* Packs the tokens unless they are packed. False: the type has no packed form, or it does not
 * fit. */
static bool pack_tokens(token_pack *p, const packing *by, const matrix *w, const act_row *x,
                        int n_token)
{
    if (!p || !by->bytes || by->bytes(w->cols) > sizeof p->bytes) return false;
    if (is_packed(p, w, x, n_token)) return true;
    by->pack(p->bytes, x, n_token, w->cols);
    p->x = x;
    p->n = n_token;
    p->cols = w->cols;
    p->type = w->type;
    return true;
}

void product_rows(float *y, size_t y_stride, const ops *o, const matrix *w, int first, int n_row,
                  const act_row *x, int n_token, token_pack *pack)
{
    const kernel *fn = &o->kernels->of[w->type];
    const uint8_t *bias = w->bias;
    const bool wide = fn->wide && n_token >= fn->wide_from, repacked = !wide && w->repacked;
    const uint8_t *rows = (repacked ? w->repacked : w->data) + (uint64_t)first * w->row_bytes;
    dot_fn *dot = wide ? fn->wide : repacked ? fn->repacked.dot : fn->dot;
    float sums[OPS_SUMS];

    assert(n_token <= OPS_TOKENS && n_row * n_token <= OPS_SUMS);
    assert(!repacked || first % fn->repacked.bundle == 0);
    if (wide && pack_tokens(pack, &fn->packed, w, x, n_token))
        fn->packed.dot(sums, rows, w->row_bytes, n_row, pack->bytes, n_token, w->cols);
    else
        dot(sums, rows, w->row_bytes, n_row, x, n_token, w->cols);
    o->loops->finish(y, y_stride, sums, n_row, n_token, fn->factor * w->scale,
                     bias ? bias + (size_t)first * sizeof(float) : NULL);
}

/* Tiles are (tokens, rows) of one matrix. Tiles of the same tokens are adjacent, so that a thread
 * packs tokens once for many rows; the matrices follow each other. */
typedef struct matmul_args {
    const ops *o;
    const acts *x;
    const product *list;
    int n_product;
    int height;                          /* rows of a tile */
    int n_batch;                         /* of tokens */
} matmul_args;

/* Tiles of a matrix with one batch of tokens. */
static int64_t tiles_of_batch(const matmul_args *m, const matrix *w)
{
    return (w->rows + m->height - 1) / m->height;
}

/* Computes tile i of one product and up to n - 1 more in the same call, if they fit. Returns the
 * number of tiles computed. */
static int64_t matmul_tiles_at(const matmul_args *m, const product *p, int64_t i, int64_t n,
                               token_pack *pack)
{
    const int64_t each = tiles_of_batch(m, p->w);
    const int t = (int)(i / each) * OPS_TOKENS, left = m->x->n - t;
    const int n_token = left < OPS_TOKENS ? left : OPS_TOKENS;
    const int most = OPS_SUMS / (n_token * m->height);
    const int n_tile = m->n_batch > 1 ? 1 : n < most ? (int)n : most;
    const int first = (int)(i % each) * m->height;
    const int n_row = min_int(p->w->rows - first, n_tile * m->height);
    const size_t stride = (size_t)p->w->rows;

    product_rows(p->y + (size_t)t * stride + (size_t)first, stride, m->o, p->w, first, n_row,
                 m->x->rows + t, n_token, pack);
    return n_tile;
}

static void matmul_range(const matmul_args *m, int64_t begin, int64_t end, token_pack *pack)
{
    int64_t before = 0;                  /* tiles of earlier products */
    for (int k = 0; k < m->n_product && begin < end; k++) {
        const int64_t own = tiles_of_batch(m, m->list[k].w) * m->n_batch;
        const int64_t stop = end < before + own ? end : before + own;
        while (begin < stop)
            begin += matmul_tiles_at(m, &m->list[k], begin - before, stop - begin, pack);
        before += own;
    }
}

static void matmul_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    matmul_range(ctx, begin, end, NULL);
}

static void matmul_packed(void *ctx, int64_t begin, int64_t end, int thread)
{
    token_pack pack;
    (void)thread;
    pack.x = NULL;
    matmul_range(ctx, begin, end, &pack);
}

void ops_matmuls(const ops *o, const product *list, int n_product, acts *x)
{
    matmul_args m = { .o = o, .x = x, .list = list, .n_product = n_product,
                      .height = ops_rows(x->n), .n_batch = (x->n + OPS_TOKENS - 1) / OPS_TOKENS };
    int64_t n_tile = 0;

    assert(x->n > 0);
    for (int k = 0; k < n_product; k++) {
        assert(list[k].w->cols == x->cols);
        if (o->kernels->of[list[k].w->type].quantised) ops_quantise(o, x);
        n_tile += tiles_of_batch(&m, list[k].w) * m.n_batch;
    }
    pool_run(o->team, n_tile, pool_grain((int64_t)m.height * x->cols * x->n / m.n_batch),
             ops_packs(x->n) ? matmul_packed : matmul_tiles, &m);
}

void ops_matmul(const ops *o, float *y, const matrix *w, acts *x)
{
    const product one = { y, w };
    ops_matmuls(o, &one, 1, x);
}

/* ---- rows of numbers ------------------------------------------------------------------------- */

void ops_embed(const ops *o, float *y, const matrix *table, const int32_t *ids, int n)
{
    const quant_traits *q = quant_traits_of(table->type);
    const size_t width = (size_t)table->cols;
    (void)o;                             /* a copy of n rows: not worth a team */
    for (int t = 0; t < n; t++) {
        float *row = y + (size_t)t * width;
        q->decode(row, table->data + (uint64_t)ids[t] * table->row_bytes,
                  width / (size_t)q->block_elems);
        if (table->scale != 1.0f)
            for (size_t c = 0; c < width; c++) row[c] *= table->scale;
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

typedef struct add_args {
    const ops *o;
    float *x;
    const float *y;
    size_t width;
} add_args;

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const add_args *a = ctx;
    const size_t first = (size_t)begin * a->width;
    (void)thread;
    a->o->loops->add(a->x + first, a->y + first, (size_t)(end - begin) * a->width);
}

void ops_add(const ops *o, float *x, const float *y, int n, int width)
{
    add_args a = { o, x, y, (size_t)width };
    pool_run(o->team, n, pool_grain(width), add_rows, &a);
}

void ops_activate(const ops *o, expert_activation act, float *g, const float *u, int n)
{
    switch (act) {
    case ACT_SWIGLU: o->loops->swiglu(g, g, u, n); break;
    case ACT_SWIGLU_CLAMPED: o->loops->swiglu_clamped(g, g, u, n); break;
    case ACT_GEGLU: o->loops->geglu(g, g, u, n); break;
    }
}

enum { CAP_TILE = 1024 };

typedef struct cap_args {
    const ops *o;
    float *x;
    int64_t n;
    float cap;
} cap_args;

static void cap_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    const cap_args *a = ctx;
    (void)thread;
    for (int64_t i = begin * CAP_TILE; i < end * CAP_TILE && i < a->n; i += CAP_TILE)
        a->o->loops->soft_cap(a->x + i, (int)(a->n - i < CAP_TILE ? a->n - i : CAP_TILE), a->cap);
}

void ops_soft_cap(const ops *o, float *x, int64_t n, float cap)
{
    cap_args a = { o, x, n, cap };
    pool_run(o->team, (n + CAP_TILE - 1) / CAP_TILE, pool_grain(16 * CAP_TILE), cap_tiles, &a);
}

/* ---- the largest ----------------------------------------------------------------------------- */

enum { LARGEST_RANGES = 64 };

typedef struct largest_args {
    const float *x;
    int n, each;
    int best[LARGEST_RANGES];            /* index of each range's largest value */
} largest_args;

static bool beats(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

static int largest_of(const float *x, int first, int end)
{
    int best = first;
    for (int i = first + 1; i < end; i++)
        if (beats(x[i], x[best])) best = i;
    return best;
}

static void largest_ranges(void *ctx, int64_t begin, int64_t end, int thread)
{
    largest_args *a = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int first = (int)i * a->each, left = a->n - first;
        a->best[i] = largest_of(a->x, first, first + (left < a->each ? left : a->each));
    }
}

/* By all threads: the values are in the caches of the cores that computed them. */
int ops_largest(const ops *o, const float *x, int n)
{
    largest_args a = { .x = x, .n = n, .each = (n + LARGEST_RANGES - 1) / LARGEST_RANGES };
    const int n_range = (n + a.each - 1) / a.each;
    int best;

    assert(n > 0);
    pool_run(o->team, n_range, pool_grain(a.each), largest_ranges, &a);
    best = a.best[0];
    for (int i = 1; i < n_range; i++)
        if (beats(x[a.best[i]], x[best])) best = a.best[i];
    return best;
}
