/* sim_gpu_products.c - inputs and products, by the engine's kernels for the CPU.
 *
 * Products of any number of tokens follow the arithmetic contract, but for experts of many:
 * sim_gpu_experts.c. What a real device leaves behind for later operations (finished vectors, as
 * floats, 16-bit floats or int8 blocks) is left behind here, too; a later operation computes it
 * again and compares. */
#include "tests/sim_gpu_internal.h"

#include <stdlib.h>

#include "loader/bytes.h"

enum { PIECE_ROWS = OPS_SUMS / OPS_TOKENS, MOST_CLOBBERED = 4096 };

bool sim_is_float(int type) { return type == QT_F32 || type == QT_F16 || type == QT_BF16; }

static kernel_set kernels;               /* set once */
static ops fastest;

/* Kernels for many tokens clear room for a large tile of sums first: matrices of floats in tests
 * are too small for that to pay. */
static void choose_fastest(void)
{
    const loops *sets[LOOPS_MAX_SETS];
    loops_here(sets);
    kernels = *kernels_named(NULL, NULL);
    for (int type = 0; type < QT_COUNT; type++)
        if (sim_is_float(type)) kernels.of[type].wide = NULL;
    fastest = (ops){ NULL, &kernels, sets[0] };
}

const ops *sim_ops(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_fastest);
    return &fastest;
}

bool gpu_type_fits(int type)
{
    static const quant_type fits[] = {
        QT_Q4_0, QT_Q4_1, QT_Q5_0, QT_Q5_1, QT_Q8_0, QT_IQ4_NL, QT_MXFP4, QT_NVFP4, QT_Q2_K,
        QT_Q3_K, QT_Q4_K, QT_Q5_K, QT_Q6_K, QT_IQ4_XS, QT_F32, QT_F16, QT_BF16,
    };
    for (size_t i = 0; i < ARRAY_LEN(fits); i++)
        if ((int)fits[i] == type) return true;
    return false;
}

void sim_clobber(void *p, uint64_t bytes)
{
    if (p) memset(p, 0xFF, (size_t)(bytes < MOST_CLOBBERED ? bytes : MOST_CLOBBERED));
}

/* ---- vectors --------------------------------------------------------------------------------- */

sim_vectors sim_vectors_make(const float *x, int n, int cols)
{
    sim_vectors v = { .storage = sim_room(acts_bytes(n, cols), 1), .few = n <= GPU_FEW };
    acts *a = &v.a;
    acts_init(a, v.storage, n, cols);
    acts_set(a, x, n, cols);
    if (cols % ACT_BLOCK) return v;      /* then all weights are floats */
    acts_clear_padding(a);
    for (int t = 0; t < n; t++) {
        const size_t block = (size_t)t * (size_t)a->n_block;
        sim_ops()->loops->quantise(a->q + block * ACT_BLOCK, a->dx + block, a->s + 2 * block,
                                   a->rows[t].x, cols / ACT_BLOCK);
    }
    a->quantised = true;
    return v;
}

void sim_vectors_free(sim_vectors *v)
{
    free(v->storage);
    *v = (sim_vectors){ 0 };
}

/* The layout is that of cuda/activations.cuh. */
void sim_blocks_put(uint8_t *to, int cols, const int8_t *q, const float *dx, const int16_t *sums)
{
    const size_t n = (size_t)cols / 32;
    for (size_t j = 0; j < n; j++) {
        memcpy(to + 16 * j, q + 32 * j, 16);
        memcpy(to + 16 * (n + j), q + 32 * j + 16, 16);
    }
    memcpy(to + 32 * n, dx, n * sizeof *dx);
    memcpy(to + 36 * n, sums, 2 * n * sizeof *sums);
}

void sim_blocks_get(int8_t *q, float *dx, int16_t *sums, const uint8_t *from, int cols)
{
    const size_t n = (size_t)cols / 32;
    for (size_t j = 0; j < n; j++) {
        memcpy(q + 32 * j, from + 16 * j, 16);
        memcpy(q + 32 * j + 16, from + 16 * (n + j), 16);
    }
    memcpy(dx, from + 32 * n, n * sizeof *dx);
    memcpy(sums, from + 36 * n, 2 * n * sizeof *sums);
}

/* ---- products -------------------------------------------------------------------------------- */

matrix sim_matrix(const gpu_matrix *m)
{
    return (matrix){ .type = (quant_type)m->type, .rows = m->rows, .cols = m->cols,
                     .data = m->data, .row_bytes = m->row_bytes, .scale = m->scale,
                     .bias = m->bias };
}

void sim_multiply(float *const *y, const matrix *w, const act_row *x, int n)
{
    float tile[OPS_SUMS];
    for (int t = 0; t < n; t += OPS_TOKENS) {
        const int some = min_int(n - t, OPS_TOKENS);
        for (int r = 0; r < w->rows; r += PIECE_ROWS) {
            const int rows = min_int(w->rows - r, PIECE_ROWS);
            product_rows(tile, PIECE_ROWS, sim_ops(), w, r, rows, x + t, some, NULL);
            for (int i = 0; i < some; i++)
                memcpy(y[t + i] + r, tile + i * PIECE_ROWS, (size_t)rows * sizeof *tile);
        }
    }
}

void sim_multiply_all(float *y, size_t y_stride, const matrix *w, const sim_vectors *x)
{
    for (int t = 0; t < x->a.n; t += OPS_TOKENS) {
        const int some = min_int(x->a.n - t, OPS_TOKENS);
        for (int r = 0; r < w->rows; r += PIECE_ROWS)
            product_rows(y + (size_t)t * y_stride + (size_t)r, y_stride, sim_ops(), w, r,
                         min_int(w->rows - r, PIECE_ROWS), x->a.rows + t, some, NULL);
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void finish_vector(float *y, const gpu_input *in, int t)
{
    const loops *f = sim_ops()->loops;
    const size_t cols = (size_t)in->cols, dim = (size_t)in->head_dim;
    const float *x = in->x + (size_t)t * cols;
    if (in->kind == GPU_NORM) {
        f->rmsnorm(y, x, in->weight, in->cols, in->eps);
        return;
    }
    memcpy(y, x, cols * sizeof *y);
    if (in->kind == GPU_PLAIN) return;
    for (size_t h = 0; h < cols / dim; h++) {
        const float *gate = in->gate + (size_t)t * (size_t)in->gate_stride +
                            h * (size_t)in->head_stride;
        if (in->kind == GPU_GATED) f->gate(y + h * dim, y + h * dim, gate, in->head_dim);
        else f->delta_gated_norm(y + h * dim, gate, in->weight, in->head_dim, in->eps);
    }
}

/* bfloat16, to the nearest, ties to even; a NaN becomes one of its own. */
static uint16_t to_half(float v)
{
    const uint32_t bits = load_u32(&v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static float of_half(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* What the nearest leaves out. */
static uint16_t to_low(float v) { return to_half(v - of_half(to_half(v))); }

void sim_round_halves(float *x, size_t n, bool lows)
{
    for (size_t i = 0; i < n; i++)
        x[i] = of_half(to_half(x[i])) + (lows ? of_half(to_low(x[i])) : 0.0f);
}

static bool same_halves(const void *halves, uint16_t (*half_of)(float), const float *y, size_t n)
{
    const uint8_t *at = halves;
    for (size_t i = 0; i < n; i++)
        if (load_u16(at + 2 * i) != half_of(y[i])) return false;
    return true;
}

static void put_blocks(uint8_t *to, const float *y, int cols)
{
    sim_vectors v = sim_vectors_make(y, 1, cols);
    sim_blocks_put(to, cols, v.a.q, v.a.dx, v.a.s);
    sim_vectors_free(&v);
}

/* Bytes that sim_blocks_put writes; the rest is padding. */
static size_t blocks_used(int cols) { return (size_t)cols / 32 * 40; }

static bool same_blocks(const gpu_input *in, const float *y)
{
    uint8_t *want = sim_room(gpu_blocks_bytes(in->cols), 1);
    bool same = true;
    for (int t = 0; t < in->n && same; t++) {
        put_blocks(want, y + (size_t)t * (size_t)in->cols, in->cols);
        same = memcmp(want, (const uint8_t *)in->blocks + (size_t)t * gpu_blocks_bytes(in->cols),
                      blocks_used(in->cols)) == 0;
    }
    free(want);
    return same;
}

float *sim_finished(gpu *g, const gpu_input *in)
{
    const size_t n = (size_t)in->n * (size_t)in->cols;
    float *y = sim_room(n, sizeof *y);
    const char *other = NULL;
    for (int t = 0; t < in->n; t++) finish_vector(y + (size_t)t * (size_t)in->cols, in, t);
    if (in->has_rows && memcmp(in->rows, y, n * sizeof *y) != 0) other = "rows";
    if (in->has_halves && !same_halves(in->halves, to_half, y, n)) other = "halves";
    if (in->has_halves && in->lows && !same_halves(in->lows, to_low, y, n)) other = "lows";
    if (in->has_blocks && in->cols % 32 == 0 && !same_blocks(in, y)) other = "blocks";
    if (!other) return y;
    sim_fail(g, "input of %d vectors (%s): its x has changed, or its %s were overwritten", in->n,
             in->name ? in->name : "dense", other);
    free(y);
    return NULL;
}

void sim_claim_input(sim_call *c, const gpu_input *in)
{
    const bool by_heads = in->kind == GPU_GATED || in->kind == GPU_GATED_NORM;
    const uint64_t n = (uint64_t)in->n, cols = (uint64_t)in->cols;
    sim_reads(c, "x", in->x, n * cols * sizeof(float));
    if (in->kind == GPU_NORM) sim_reads(c, "norm", in->weight, cols * sizeof(float));
    if (in->kind == GPU_GATED_NORM)
        sim_reads(c, "norm", in->weight, (uint64_t)in->head_dim * sizeof(float));
    if (by_heads && in->n > 0) {
        const uint64_t heads = cols / (uint64_t)in->head_dim;
        const uint64_t last = (n - 1) * (uint64_t)in->gate_stride +
                              (heads - 1) * (uint64_t)in->head_stride + (uint64_t)in->head_dim;
        sim_reads(c, "gate", in->gate, last * sizeof(float));
    }
    if (in->has_rows) sim_reads(c, "rows", in->rows, n * cols * sizeof(float));
    if (in->has_halves) sim_reads(c, "halves", in->halves, n * cols * 2);
    if (in->has_halves) sim_reads(c, "lows", in->lows, n * cols * 2);
    if (in->has_blocks && in->cols % 32 == 0)
        sim_reads(c, "blocks", in->blocks, n * gpu_blocks_bytes(in->cols));
}

void sim_claim_matrix(sim_call *c, const char *what, const gpu_matrix *m)
{
    sim_reads(c, what, m->data, (uint64_t)m->rows * m->row_bytes);
    sim_reads(c, "bias", m->bias, (uint64_t)m->rows * sizeof(float));
    c->bytes += (uint64_t)m->rows * m->row_bytes;
}

/* ---- forms that are left behind -------------------------------------------------------------- */

typedef struct leave_args {
    gpu_input in;
    float *rows;                         /* NULL: not wanted */
    void *halves, *lows;
} leave_args;

static void run_leave_many(gpu *g, void *args)
{
    const leave_args *a = args;
    const size_t n = (size_t)a->in.n * (size_t)a->in.cols;
    float *y = sim_finished(g, &a->in);
    if (!y) return;
    if (a->rows) memcpy(a->rows, y, n * sizeof *y);
    for (size_t i = 0; a->halves && i < n; i++)
        store_u16((uint8_t *)a->halves + 2 * i, to_half(y[i]));
    for (size_t i = 0; a->lows && i < n; i++)
        store_u16((uint8_t *)a->lows + 2 * i, to_low(y[i]));
    free(y);
}

void sim_prepare_many(gpu *g, gpu_input *in, bool rows, bool halves)
{
    const uint64_t n = (uint64_t)in->n * (uint64_t)in->cols;
    sim_call c = sim_begin(g, "prepare");
    if (rows && !in->has_rows && in->kind == GPU_PLAIN) {
        in->rows = (float *)in->x;
        in->has_rows = true;
    }
    rows = rows && !in->has_rows;
    halves = (halves || (rows && in->halves)) && !in->has_halves;
    if ((!rows && !halves) || in->n == 0) return;
    if ((rows && !in->rows) || (halves && !in->halves)) {
        sim_fail(g, "input of %d vectors: no room for their %s", in->n, rows ? "rows" : "halves");
        return;
    }
    const leave_args a = { *in, rows ? in->rows : NULL, halves ? in->halves : NULL,
                           halves ? in->lows : NULL };
    sim_claim_input(&c, in);
    if (rows) sim_writes(&c, "rows", in->rows, n * sizeof(float));
    if (halves) sim_writes(&c, "halves", in->halves, 2 * n);
    if (halves) sim_writes(&c, "lows", in->lows, 2 * n);
    sim_end(&c, run_leave_many, &a, sizeof a);
    in->has_rows |= rows;
    in->has_halves |= halves;
}

void gpu_finish_input(gpu *g, gpu_input *in) { sim_prepare_many(g, in, true, false); }

void sim_leave_few(const gpu_input *in, const float *rows)
{
    const size_t cols = (size_t)in->cols;
    memcpy(in->rows, rows, (size_t)in->n * cols * sizeof *rows);
    for (int t = 0; in->cols % 32 == 0 && t < in->n; t++)
        put_blocks((uint8_t *)in->blocks + (size_t)t * gpu_blocks_bytes(in->cols),
                   rows + (size_t)t * cols, in->cols);
}

static void run_leave_few(gpu *g, void *args)
{
    const gpu_input *in = args;
    float *y = sim_finished(g, in);
    if (!y) return;
    sim_leave_few(in, y);
    free(y);
}

void sim_prepare_few(gpu *g, gpu_input *in)
{
    sim_call c = sim_begin(g, "quantise");
    if (in->has_blocks) return;
    sim_claim_input(&c, in);
    sim_writes(&c, "rows", in->rows, (uint64_t)in->n * (uint64_t)in->cols * sizeof(float));
    sim_writes(&c, "blocks", in->blocks, (uint64_t)in->n * gpu_blocks_bytes(in->cols));
    sim_end(&c, run_leave_few, in, sizeof *in);
    in->has_blocks = in->has_rows = true;
}

/* ---- the operation --------------------------------------------------------------------------- */

typedef struct project_args {
    gpu_input in;
    int n_product;
    gpu_product list[GPU_MAX_PRODUCTS];
} project_args;

static void put_product(gpu *g, const gpu_product *p, const sim_vectors *x, int n)
{
    const loops *f = sim_ops()->loops;
    const matrix w = sim_matrix(&p->w);
    const size_t rows = (size_t)w.rows, stride = (size_t)p->y_stride;
    if (!p->conv.taps && !p->add) {
        sim_multiply_all(p->y, stride, &w, x);
        return;
    }
    float *raw = sim_room((size_t)n * rows, sizeof *raw), *made = raw, *mixed = NULL;
    sim_multiply_all(raw, rows, &w, x);
    if (p->conv.taps) {
        made = mixed = sim_room((size_t)n * rows, sizeof *mixed);
        const gpu_cursor *row = p->conv.cursor;
        for (int left = n, m; left > 0; left -= m, row++) {
            const size_t at = (size_t)(n - left) * rows;
            float *window = sim_recurrent(g, row, p->conv.window,
                                          rows * (size_t)(p->conv.n_tap - 1));
            m = sim_row_tokens(row, left);
            if (window)
                f->delta_conv(mixed + at, raw + at, m, w.rows, 0, w.rows, p->conv.taps,
                              p->conv.n_tap, window);
        }
        if (p->conv.raw) memcpy(p->conv.raw, raw, (size_t)n * rows * sizeof *raw);
    }
    for (size_t t = 0; t < (size_t)n; t++) {
        if (p->add) f->add(p->y + t * stride, made + t * rows, rows);
        else memcpy(p->y + t * stride, made + t * rows, rows * sizeof *made);
    }
    free(mixed);
    free(raw);
}

static void run_project(gpu *g, void *args)
{
    const project_args *a = args;
    float *rows = sim_finished(g, &a->in);
    if (!rows) return;
    sim_vectors x = sim_vectors_make(rows, a->in.n, a->in.cols);
    for (int i = 0; i < a->n_product; i++) put_product(g, &a->list[i], &x, a->in.n);
    sim_vectors_free(&x);
    free(rows);
}

static bool product_fits(const gpu_input *in, const gpu_product *p)
{
    if (!gpu_type_fits(p->w.type) || p->w.cols != in->cols || p->y_stride < p->w.rows) return false;
    if (!sim_is_float(p->w.type) && p->w.cols % 32) return false;
    return !p->conv.taps || (p->conv.n_tap >= 2 && p->conv.n_tap <= 8 && p->conv.cursor &&
                             (gpu_is_few(in->n, in->in_pass) || p->conv.raw));
}

static void claim_product(sim_call *c, const gpu_product *p, int n)
{
    const uint64_t rows = (uint64_t)p->w.rows, taps = (uint64_t)p->conv.n_tap;
    const uint64_t last = (uint64_t)(n - 1) * (uint64_t)p->y_stride + rows;
    sim_claim_matrix(c, "weights", &p->w);
    sim_writes(c, "y", p->y, last * sizeof(float));
    if (!p->conv.taps) return;
    sim_reads(c, "taps", p->conv.taps, rows * taps * sizeof(float));
    sim_reads_ahead(c, "cursor", p->conv.cursor, sizeof *p->conv.cursor);
    if (p->conv.raw) sim_writes(c, "raw", p->conv.raw, (uint64_t)n * rows * sizeof(float));
}

void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product)
{
    project_args a = { .n_product = n_product };
    bool rows = false, halves = false;
    sim_call c = sim_begin(g, in->name ? in->name : "dense");
    if (in->n < 1 || n_product < 1 || n_product > GPU_MAX_PRODUCTS) {
        sim_fail(g, "product: %d products of %d vectors", n_product, in->n);
        return;
    }
    for (int i = 0; i < n_product; i++) {
        if (!product_fits(in, &list[i])) {
            sim_fail(g, "product: a matrix of type %d, [%d, %d], does not fit %d columns",
                     list[i].w.type, list[i].w.rows, list[i].w.cols, in->cols);
            return;
        }
        if (list[i].w.type == QT_F32) rows = true;
        else halves = true;
        a.list[i] = list[i];
        claim_product(&c, &list[i], in->n);
    }
    if (!gpu_is_few(in->n, in->in_pass)) sim_prepare_many(g, in, rows, halves);
    a.in = *in;
    sim_claim_input(&c, in);
    sim_end(&c, run_project, &a, sizeof a);
}

/* ---- which way: there is only one ------------------------------------------------------------ */

void gpu_gemm_set(gpu *g, const gpu_gemm *how)
{
    (void)g, (void)how;
}

const char *gpu_gemm_name(const gpu *g)
{
    (void)g;
    return "own";
}

uint64_t gpu_gemm_scratch(const gpu *g, int n)
{
    (void)g, (void)n;
    return 0;
}

void gpu_gemm_lend(gpu *g, void *scratch)
{
    (void)g, (void)scratch;
}

void gpu_gemm_reclaim(gpu *g, const void *scratch)
{
    (void)g, (void)scratch;
}
