/* quant_convert.c - decodes rows, quantises them, decodes them again and compares.
 *
 * A slab (a matrix, or one expert of a stack) is cut into slices of rows; threads claim rows of a
 * slice. NVFP4 needs a scale for the slab first: a pass over its rows finds the largest magnitude,
 * then the candidates are tried on rows spread over the slab. Each row has its own sums, which are
 * added in order, so that they do not depend on the number of threads. */
#include "cli/quant/quant_convert.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "loader/bytes.h"
#include "loader/quantise.h"

enum {
    SLICE_BYTES = 8 << 20,               /* of output, or one row */
    SAMPLE_ROWS = 32                     /* rows on which scales of a slab are tried */
};

typedef struct scratch { float *x, *scaled, *back; uint8_t *blocks; } scratch;

struct quant_convert {
    pool *team;
    const quant_importance *importance;
    scratch *of;                         /* [threads] */
    float *floats;
    uint8_t *row_blocks, *slice;
    quant_error *rows;                   /* [most_rows] of a slice */
    float *largest;                      /* [most_rows] */
    float *weights;                      /* of a slab's columns */
    uint64_t most_rows;

    /* the current slab and slice: set before the threads start, read by all */
    const quant_item *it;
    const quant_traits *from, *to;
    uint64_t slab, first;                /* rows first .. of the slice */
    float old_scale, scale;
    const float *w;                      /* weights, or NULL */
    uint64_t step;                       /* between the sampled rows */
    atomic_ullong bad;                   /* first row with an invalid value, or UINT64_MAX */
};

double quant_error_relative(const quant_error *e, bool weighted)
{
    const double diff = e->diff[weighted], norm = e->norm[weighted];
    return diff == 0.0 ? 0.0 : sqrt(diff / norm);
}

void quant_error_add(quant_error *to, const quant_error *e)
{
    for (int i = 0; i < 2; i++) {
        to->diff[i] += e->diff[i];
        to->norm[i] += e->norm[i];
    }
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint64_t slice_rows(const quant_item *it)
{
    const uint64_t row = quant_row_bytes(quant_traits_of((uint32_t)it->to), it->from->cols);
    const uint64_t n = SLICE_BYTES / row > 0 ? SLICE_BYTES / row : 1;
    return n < it->from->rows ? n : it->from->rows;
}

static int alloc(quant_convert *c, uint64_t cols, uint64_t row_bytes, uint64_t slice_bytes)
{
    const size_t n = (size_t)pool_threads(c->team);
    c->of = mem_array(n, sizeof *c->of);
    c->floats = mem_array(n * 3, (size_t)cols * sizeof *c->floats);
    c->row_blocks = mem_array(n, (size_t)row_bytes);
    c->slice = mem_alloc((size_t)slice_bytes);
    c->rows = mem_array((size_t)c->most_rows, sizeof *c->rows);
    c->largest = mem_array((size_t)c->most_rows, sizeof *c->largest);
    c->weights = mem_array((size_t)cols, sizeof *c->weights);
    if (!c->of || !c->floats || !c->row_blocks || !c->slice || !c->rows || !c->largest ||
        !c->weights) return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        float *at = c->floats + 3 * i * cols;
        c->of[i] = (scratch){ at, at + cols, at + 2 * cols, c->row_blocks + i * row_bytes };
    }
    return 0;
}

int quant_convert_create(quant_convert **out, const quant_plan *p,
                         const quant_importance *importance, pool *team, err_ctx *err)
{
    quant_convert *c = mem_zalloc(sizeof *c);
    uint64_t cols = 1, row_bytes = 1, slice_bytes = 1;
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "no memory for buffers");
    c->team = team;
    c->importance = importance;
    c->most_rows = SAMPLE_ROWS;
    for (int i = 0; i < p->n_item; i++) {
        const quant_item *it = &p->items[i];
        if (it->fate != QUANT_REWRITE) continue;
        const uint64_t row = quant_row_bytes(quant_traits_of((uint32_t)it->to), it->from->cols);
        const uint64_t n = slice_rows(it);
        if (it->from->cols > cols) cols = it->from->cols;
        if (row > row_bytes) row_bytes = row;
        if (n > c->most_rows) c->most_rows = n;
        if (n * row > slice_bytes) slice_bytes = n * row;
    }
    if (alloc(c, cols, row_bytes, slice_bytes) == 0) {
        *out = c;
        return 0;
    }
    quant_convert_free(c);
    return err_set(err, ERR_NOMEM, "no memory for rows of %" PRIu64 " weights", cols);
}

void quant_convert_free(quant_convert *c)
{
    if (!c) return;
    mem_free(c->of);
    mem_free(c->floats);
    mem_free(c->row_blocks);
    mem_free(c->slice);
    mem_free(c->rows);
    mem_free(c->largest);
    mem_free(c->weights);
    mem_free(c);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void note_bad(quant_convert *c, uint64_t row)
{
    unsigned long long least = atomic_load(&c->bad);
    while (row < least && !atomic_compare_exchange_weak(&c->bad, &least, row)) continue;
}

/* Decodes the old weights of a row to s->x. False: the new type cannot hold one of them. */
static bool read_row(quant_convert *c, const scratch *s, uint64_t row)
{
    const tensor *t = c->it->from;
    const size_t n = (size_t)t->cols;
    c->from->decode(s->x, tensor_row(t, c->slab, row), n / (size_t)c->from->block_elems);
    if (c->old_scale != 1.0f) for (size_t i = 0; i < n; i++) s->x[i] *= c->old_scale;
    return quantise_first_bad(c->it->to, s->x, n) == n;
}

static quant_error compare(const float *x, const float *y, const float *w, size_t n)
{
    quant_error e = { { 0 }, { 0 } };
    for (size_t i = 0; i < n; i++) {
        const double v = (double)x[i], d = v - (double)y[i];
        e.diff[0] += d * d;
        e.norm[0] += v * v;
        if (!w) continue;
        e.diff[1] += (double)w[i] * d * d;
        e.norm[1] += (double)w[i] * v * v;
    }
    if (!w) e.diff[1] = e.diff[0], e.norm[1] = e.norm[0];
    return e;
}

/* Quantises the row in s->x with the slab's scale; returns the error. */
static quant_error write_row(const quant_convert *c, const scratch *s, uint8_t *blocks)
{
    const size_t n = (size_t)c->it->from->cols;
    const float *x = s->x;
    if (c->scale != 1.0f) {
        for (size_t i = 0; i < n; i++) s->scaled[i] = s->x[i] / c->scale;
        x = s->scaled;
    }
    quantise_row(c->it->to, blocks, x, c->w, n);
    c->to->decode(s->back, blocks, n / (size_t)c->to->block_elems);
    if (c->scale != 1.0f) for (size_t i = 0; i < n; i++) s->back[i] *= c->scale;
    return compare(s->x, s->back, c->w, n);
}

static void convert_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    quant_convert *c = ctx;
    const scratch *s = &c->of[thread];
    const uint64_t bytes = quant_row_bytes(c->to, c->it->from->cols);
    for (int64_t r = begin; r < end; r++) {
        if (read_row(c, s, c->first + (uint64_t)r))
            c->rows[r] = write_row(c, s, c->slice + (uint64_t)r * bytes);
        else note_bad(c, c->first + (uint64_t)r);
    }
}

static void find_largest(void *ctx, int64_t begin, int64_t end, int thread)
{
    quant_convert *c = ctx;
    const scratch *s = &c->of[thread];
    for (int64_t r = begin; r < end; r++) {
        float most = 0.0f;
        if (!read_row(c, s, c->first + (uint64_t)r)) note_bad(c, c->first + (uint64_t)r);
        for (uint64_t i = 0; i < c->it->from->cols; i++) {
            const float a = fabsf(s->x[i]);
            most = a > most ? a : most;
        }
        c->largest[r] = most;
    }
}

static void try_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    quant_convert *c = ctx;
    const scratch *s = &c->of[thread];
    for (int64_t r = begin; r < end; r++) {
        read_row(c, s, (uint64_t)r * c->step);
        c->rows[r] = write_row(c, s, s->blocks);
    }
}

/* ---- a slab ---------------------------------------------------------------------------------- */

/* Names the value that the new type cannot hold. */
static int explain_bad(quant_convert *c, err_ctx *err)
{
    const tensor *t = c->it->from;
    const uint64_t row = atomic_load(&c->bad);
    char name[128], of[48] = "";
    if (t->slabs > 1) snprintf(of, sizeof of, "expert %" PRIu64 ", ", c->slab);
    read_row(c, &c->of[0], row);
    const size_t at = quantise_first_bad(c->it->to, c->of[0].x, (size_t)t->cols);
    const float v = c->of[0].x[at];
    ESC(name, t->name);
    if (!isfinite(v))
        return err_set(err, ERR_FORMAT, "tensor %s: %srow %" PRIu64 ", column %zu is %s", name, of,
                       row, at, isnan(v) ? "not a number" : "infinite");
    return err_set(err, ERR_RANGE, "tensor %s: %srow %" PRIu64 ", column %zu is %g, and %s ends at "
                   "%g", name, of, row, at, (double)v, c->to->name,
                   (double)quantise_limit(c->it->to));
}

static int run_rows(quant_convert *c, uint64_t n, pool_fn *fn, err_ctx *err)
{
    atomic_store(&c->bad, UINT64_MAX);
    pool_run(c->team, (int64_t)n, 1, fn, c);
    return atomic_load(&c->bad) == UINT64_MAX ? 0 : explain_bad(c, err);
}

static int slab_largest(float *most, quant_convert *c, err_ctx *err)
{
    const uint64_t rows = c->it->from->rows;
    *most = 0.0f;
    const uint64_t step = slice_rows(c->it);
    for (c->first = 0; c->first < rows; c->first += step) {
        const uint64_t left = rows - c->first, n = left < step ? left : step;
        const int rc = run_rows(c, n, find_largest, err);
        if (rc < 0) return rc;
        for (uint64_t r = 0; r < n; r++) if (c->largest[r] > *most) *most = c->largest[r];
    }
    return 0;
}

/* The candidate with the smallest error on the sampled rows; the first of equals. */
static int choose_scale(quant_convert *c, err_ctx *err)
{
    const uint64_t rows = c->it->from->rows, n = rows < SAMPLE_ROWS ? rows : SAMPLE_ROWS;
    float candidates[QUANTISE_NVFP4_SCALES], most, best = 1.0f;
    double least = INFINITY;
    const int rc = slab_largest(&most, c, err);
    if (rc < 0) return rc;
    quantise_nvfp4_scales(candidates, most);
    c->step = rows / n;
    /* the power of two first: it is exact, and it wins if the sample shows no difference */
    for (int k = QUANTISE_NVFP4_SCALES - 1; k >= 0 && least > 0; k--) {
        double cost = 0;
        c->scale = candidates[k];
        pool_run(c->team, (int64_t)n, 1, try_rows, c);
        for (uint64_t r = 0; r < n; r++) cost += c->rows[r].diff[1];
        if (cost < least) least = cost, best = candidates[k];
    }
    c->scale = best;
    return 0;
}

static int convert_slab(quant_convert *c, quant_error *error, quant_convert_fn *put, void *ctx,
                        err_ctx *err)
{
    const tensor *t = c->it->from;
    const uint64_t bytes = quant_row_bytes(c->to, t->cols), step = slice_rows(c->it);
    for (c->first = 0; c->first < t->rows; c->first += step) {
        const uint64_t left = t->rows - c->first, n = left < step ? left : step;
        int rc = run_rows(c, n, convert_rows, err);
        if (rc < 0) return rc;
        for (uint64_t r = 0; r < n; r++) quant_error_add(error, &c->rows[r]);
        rc = put(ctx, c->slice, (size_t)(n * bytes), n * t->row_bytes, err);
        if (rc < 0) return rc;
    }
    return 0;
}

int quant_convert_run(quant_convert *c, const quant_item *it, quant_error *error, float *scales,
                      quant_convert_fn *put, void *ctx, err_ctx *err)
{
    const tensor *t = it->from;
    c->it = it;
    c->from = quant_traits_of((uint32_t)t->type);
    c->to = quant_traits_of((uint32_t)it->to);
    for (c->slab = 0; c->slab < t->slabs; c->slab++) {
        int rc;
        c->old_scale = it->scale ? load_f32(it->scale->data + 4 * c->slab) : 1.0f;
        c->scale = 1.0f;
        c->w = c->importance && quant_importance_row(c->weights, c->importance, t, c->slab)
               ? c->weights : NULL;
        if (it->new_scale && (rc = choose_scale(c, err)) < 0) return rc;
        if (it->new_scale) scales[c->slab] = c->scale;
        if ((rc = convert_slab(c, error, put, ctx, err)) < 0) return rc;
    }
    return 0;
}
