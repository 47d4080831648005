/* kv.c - the KV store: rows of F32, F16 or Q8_0 in pages, rings of pages for windowed layers.
 *
 * Invariant: every layer stores the positions from `first` to the last one written, unless a rewind
 * has made the upper ones invalid; no earlier position can be read. A ring raises `first` as it
 * overwrites. A rewind does not bring the overwritten rows back, so `first` is stored and not
 * computed from the position. state.c has the position and decides about rewinds. Rows are encoded
 * in RAM only. */
#include "engine/session/kv.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/session/layer_memory.h"
#include "engine/session/page_pool.h"
#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"

typedef struct kv_layer {
    mem_space *where;                    /* borrowed */
    uint8_t **pages;                     /* its column of the block's table; NULL: no memory */
    int stride, index;                   /* of that table; the layer's column */
    int n_head, head_dim;
    size_t row_bytes;                    /* one head at one position */
    int n_row;                           /* positions with memory of their own, at most */
    bool pooled;                         /* its pages are the pool's */
    int window;                          /* 0: all */
    int first;                           /* lowest position that is not overwritten */
} kv_layer;

struct kv_store {
    kv_type type;
    int n_layer, ctx;
    int n_trunk;                         /* layers before a next-token block */
    int n_held;                          /* pages that each pooled layer has */
    int n_block;
    struct kv_block {                    /* of a segment */
        mem_space *where;
        void *mem;                       /* the table [page of a context][layers with memory], then
                                          * the pages of layer after layer */
        uint64_t bytes;
        uint8_t **table;                 /* the same table in RAM */
        int stride;
        page_pool *pool;                 /* of its full layers; or NULL. Borrowed */
        int first, end;                  /* layers */
    } blocks[SEGMENTS_MOST];
    kv_layer layers[];
};

/* ---- types --------------------------------------------------------------------------------- */

static const struct { const char *name; quant_type quant; } types[] = {
    [KV_F32] = { "f32", QT_F32 }, [KV_F16] = { "f16", QT_F16 }, [KV_Q8_0] = { "q8_0", QT_Q8_0 },
};

const char *kv_type_name(kv_type t) { return types[t].name; }

bool kv_type_from_name(kv_type *out, const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcasecmp(types[i].name, name) != 0) continue;
        *out = (kv_type)i;
        return true;
    }
    return false;
}

/* ---- encoders -------------------------------------------------------------------------------- */

static void encode_f16(uint8_t *restrict out, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++) store_u16(out + 2 * i, f32_to_f16(x[i]));
}

/* The nearest integer of a small number, ties to even, from the low bits of its sum with
 * 1.5 * 2^23. */
static int32_t nearest_int(float x)
{
    const float sum = x + 12582912.0f;
    return (int32_t)(load_u32(&sum) - 0x4B400000u);
}

/* Codes are chosen for the rounded scale, so rounding it costs almost no precision. A block with a
 * NaN, or with values too large for a binary16 scale, decodes to NaN or infinities, so that damage
 * is visible. */
static void encode_q8_0(uint8_t *out, const float *x, int n)
{
    for (int b = 0; b < n; b += 32, x += 32, out += sizeof(block_q8_0)) {
        block_q8_0 q;
        uint32_t largest = 0;                            /* as bits: a NaN is larger than all */
        for (int i = 0; i < 32; i++) {
            const uint32_t a = load_u32(&x[i]) & 0x7FFFFFFFu;
            largest = a > largest ? a : largest;
        }
        const uint16_t d = f32_to_f16(load_f32(&largest) / 127.0f);
        const float scale = f16_to_f32(d);
        store_u16(q.d, d);
        if (scale > 0.0f && isfinite(scale))
            for (int i = 0; i < 32; i++) {
                /* beyond 127 only where the scale is subnormal and was rounded down by much */
                const int32_t code = nearest_int(x[i] / scale), upper = code < 127 ? code : 127;
                q.quants[i] = (int8_t)(upper > -127 ? upper : -127);
            }
        else
            for (int i = 0; i < 32; i++) q.quants[i] = load_u32(&x[i]) >> 31 ? -1 : 1;
        memcpy(out, &q, sizeof q);
    }
}

/* ---- sizes and memory ----------------------------------------------------------------------- */

/* Pages for n positions; the positions of these. */
static int page_count(int n) { return (int)(size_align((uint64_t)n, KV_PAGE) / KV_PAGE); }
static int whole_pages(int n) { return page_count(n) * KV_PAGE; }

/* A chunk is written before any of it is read, so a ring has room for both it and the window. */
static int rows_of(const layer_memory *a, int ctx, int slack)
{
    const bool ring = a->kind == MEMORY_WINDOW && a->window < ctx - slack;
    return whole_pages(ring ? a->window + slack : ctx);
}

static size_t row_bytes_of(kv_type type, int head_dim)
{
    return (size_t)quant_row_bytes(quant_traits_of(types[type].quant), (uint64_t)head_dim);
}

/* Keys and values of n positions of a layer. UINT64_MAX: too much. */
static uint64_t rows_bytes(const layer_memory *a, kv_type type, int n)
{
    return size_times(row_bytes_of(type, a->head_dim), 2 * (uint64_t)a->n_head * (uint64_t)n);
}

/* A layer's column of the table. */
static uint64_t column_bytes(int ctx)
{
    return size_align((uint64_t)page_count(ctx) * sizeof(uint8_t *), 64);
}

/* own: without pages from a pool. */
static uint64_t layer_bytes(const model *m, const kv_options *o, int l, bool own)
{
    const layer_memory a = layer_memory_of(m, l);
    if (!layer_has_rows(&a)) return 0;
    const uint64_t rows = rows_bytes(&a, o->type, rows_of(&a, o->ctx, o->slack));
    if (rows > UINT64_MAX / 2) return UINT64_MAX;
    return (own && a.kind == MEMORY_ROWS ? 0 : rows) + column_bytes(o->ctx);
}

uint64_t kv_layer_bytes(const model *m, const kv_options *o, int l)
{
    return layer_bytes(m, o, l, false);
}

/* Of layers first .. end - 1. */
static uint64_t run_bytes(const model *m, const kv_options *o, int first, int end, bool own)
{
    uint64_t sum = 0;
    for (int l = first; l < end; l++) sum = size_plus(sum, layer_bytes(m, o, l, own));
    return sum;
}

uint64_t kv_page_bytes(const model *m, kv_type type, int first, int end)
{
    uint64_t most = 0;
    for (int l = first; l < end; l++) {
        const layer_memory a = layer_memory_of(m, l);
        const uint64_t one = a.kind == MEMORY_ROWS ? rows_bytes(&a, type, KV_PAGE) : 0;
        if (one > most) most = one;
    }
    return most;
}

uint64_t kv_n_page(const model *m, int ctx, int first, int end)
{
    uint64_t n = 0;
    for (int l = first; l < end; l++) n += layer_memory_of(m, l).kind == MEMORY_ROWS;
    return n * (uint64_t)page_count(ctx);
}

uint64_t kv_ring_bytes(const model *m, kv_type type, int ctx, int slack)
{
    uint64_t sum = 0;
    for (int l = 0; l < hparams_layers(&m->hp); l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (layer_has_rows(&a) && rows_of(&a, ctx, slack) != whole_pages(ctx))
            sum = size_plus(sum, rows_bytes(&a, type, a.window - 1));
    }
    return sum;
}

static int check_options(const model *m, kv_type type, int ctx, int slack, err_ctx *err)
{
    if (ctx < 1 || slack < 1)
        return err_set(err, ERR_RANGE, "KV cache: context %d, longest run %d; both must be 1 or "
                       "more", ctx, slack);
    for (int l = 0; l < hparams_layers(&m->hp) && type == KV_Q8_0; l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (layer_has_rows(&a) && a.head_dim % 32 != 0)
            return err_set(err, ERR_UNSUPPORTED, "KV cache: q8_0 needs a head size that is a "
                           "multiple of 32, this model has %d", a.head_dim);
    }
    return 0;
}

/* Lays out a layer's pages from p on and fills its column of the table. Returns their end. */
static uint8_t *place_layer(kv_layer *y, const struct kv_block *b, const layer_memory *a,
                            const kv_options *o, int index, int stride, uint8_t *p)
{
    *y = (kv_layer){
        .pooled = b->pool && a->kind == MEMORY_ROWS,
        .where = b->where, .pages = b->table + index, .stride = stride, .index = index,
        .n_head = a->n_head, .head_dim = a->head_dim,
        .row_bytes = row_bytes_of(o->type, a->head_dim),
        .n_row = rows_of(a, o->ctx, o->slack), .window = a->window,
    };
    const size_t page = 2 * (size_t)y->n_head * KV_PAGE * y->row_bytes;
    const int n_own = y->n_row / KV_PAGE, n_page = page_count(o->ctx);
    for (int i = 0; i < n_page; i++)
        y->pages[(size_t)i * (size_t)stride] = y->pooled ? NULL : p + (size_t)(i % n_own) * page;
    return y->pooled ? p : p + (size_t)n_own * page;
}

/* The block of layers first .. end - 1. */
static int make_block(kv_store *c, struct kv_block *b, const model *m, const kv_options *o,
                      int first, int end, err_ctx *err)
{
    const uint64_t bytes = run_bytes(m, o, first, end, b->pool != NULL);
    int stride = 0, index = 0;
    char purpose[64];
    if (bytes == 0) return 0;
    snprintf(purpose, sizeof purpose, "a KV cache for %d tokens", c->ctx);
    const int rc = b->where->alloc(&b->mem, b->where, bytes, MEM_SPARSE, purpose, err);
    if (rc < 0) return rc;
    b->bytes = bytes;
    for (int l = first; l < end; l++) stride += kv_layer_bytes(m, o, l) > 0;
    b->stride = stride;
    b->first = first;
    b->end = end;
    const size_t table = (size_t)stride * (size_t)column_bytes(o->ctx);
    b->table = b->where->addressable ? b->mem : mem_alloc(table);
    if (!b->table) return err_set(err, ERR_NOMEM, "KV cache: a table of %zu bytes", table);
    uint8_t *p = (uint8_t *)b->mem + table;
    for (int l = first; l < end; l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (layer_has_rows(&a)) p = place_layer(&c->layers[l], b, &a, o, index++, stride, p);
    }
    if (b->where->addressable) return 0;
    b->where->write(b->where, b->mem, b->table,
                    (size_t)stride * (size_t)page_count(o->ctx) * sizeof *b->table);
    return b->where->check(b->where, err);
}

int kv_create(kv_store **out, const model *m, const kv_options *o, err_ctx *err)
{
    const int n_layer = hparams_layers(&m->hp);
    int rc = check_options(m, o->type, o->ctx, o->slack, err);

    *out = NULL;
    if (rc < 0) return rc;
    kv_store *c = mem_zalloc(sizeof *c + (size_t)n_layer * sizeof c->layers[0]);
    if (!c) return err_set(err, ERR_NOMEM, "KV cache: no memory for %d layers", n_layer);
    c->type = o->type;
    c->n_layer = n_layer;
    c->n_trunk = m->hp.n_layer;
    c->ctx = o->ctx;
    const layer_segments in = segments_or_ram(&o->in, n_layer);
    c->n_block = in.n;
    for (int i = 0; i < in.n; i++) {
        c->blocks[i].where = in.of[i].where;
        c->blocks[i].pool = in.of[i].pages;
    }
    for (int i = 0; i < in.n && rc == 0; i++)
        rc = make_block(c, &c->blocks[i], m, o, segment_first(&in, i), in.of[i].end, err);
    if (rc == 0) *out = c;
    else kv_free(c);
    return rc;
}

void kv_free(kv_store *c)
{
    if (!c) return;
    kv_release(c, 0);
    for (int i = 0; i < c->n_block; i++) {
        struct kv_block *b = &c->blocks[i];
        if (!b->where->addressable) mem_free(b->table);
        b->where->free(b->where, b->mem, b->bytes);
    }
    mem_free(c);
}

/* ---- pages of a pool ------------------------------------------------------------------------- */

/* Gives back what pooled layers have of the pages n .. end - 1. */
static void give_pages(kv_store *c, int n, int end)
{
    for (int i = end; i-- > n;)
        for (int k = 0; k < c->n_block; k++)
            for (int l = c->blocks[k].end; l-- > c->blocks[k].first;) {
                const kv_layer *y = &c->layers[l];
                uint8_t **page = y->pooled ? &y->pages[(size_t)i * (size_t)y->stride] : NULL;
                if (!page || !*page) continue;
                page_pool_give(c->blocks[k].pool, *page);
                *page = NULL;
            }
}

/* Takes the pages from c->n_held to n - 1 for a block's layers. */
static int take_pages(const kv_store *c, const struct kv_block *b, int n, err_ctx *err)
{
    const size_t from = (size_t)c->n_held * (size_t)b->stride;
    int rc = 0;
    for (int i = c->n_held; i < n; i++)
        for (int l = b->first; l < b->end; l++) {
            const kv_layer *y = &c->layers[l];
            uint8_t **page = &y->pages[(size_t)i * (size_t)y->stride];
            if (y->pooled && (rc = page_pool_take(b->pool, page, err)) < 0) return rc;
        }
    if (!b->where->addressable)
        b->where->write(b->where, (uint8_t **)b->mem + from, b->table + from,
                        ((size_t)n * (size_t)b->stride - from) * sizeof *b->table);
    return 0;
}

int kv_reserve(kv_store *c, int n_pos, err_ctx *err)
{
    const int n = page_count(n_pos);
    int rc = 0;
    assert(n_pos >= 0 && n_pos <= c->ctx);
    if (n <= c->n_held) return 0;
    for (int i = 0; i < c->n_block && rc == 0; i++)
        if (c->blocks[i].pool && c->blocks[i].table) rc = take_pages(c, &c->blocks[i], n, err);
    if (rc < 0) give_pages(c, c->n_held, n);
    else c->n_held = n;
    return rc;
}

void kv_release(kv_store *c, int n_pos)
{
    const int n = page_count(n_pos);
    give_pages(c, n, c->n_held);
    c->n_held = min_int(c->n_held, n);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void encode(kv_type type, uint8_t *out, const float *x, int n)
{
    switch (type) {
    case KV_F32: memcpy(out, x, (size_t)n * sizeof *x); break;
    case KV_F16: encode_f16(out, x, n); break;
    case KV_Q8_0: encode_q8_0(out, x, n); break;
    }
}

void kv_view_write(const kv_view *w, int head_dim, int pos, int n, const float *k, const float *v)
{
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < w->n_head; h++, k += head_dim, v += head_dim) {
            encode(w->type, kv_row(w, KV_KEYS, h, pos + t), k, head_dim);
            encode(w->type, kv_row(w, KV_VALUES, h, pos + t), v, head_dim);
        }
    }
}

typedef struct write_job {
    kv_view to;
    int head_dim, pos;
    const float *k, *v;
} write_job;

static void write_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const write_job *j = ctx;
    const size_t from = (size_t)begin * (size_t)j->to.n_head * (size_t)j->head_dim;
    (void)thread;
    kv_view_write(&j->to, j->head_dim, j->pos + (int)begin, (int)(end - begin), j->k + from,
                  j->v + from);
}

void kv_write(kv_store *c, int layer, int pos, int n, const float *k, const float *v, pool *team)
{
    const kv_layer *y = &c->layers[layer];
    write_job j = { kv_layer_view(c, layer), y->head_dim, pos, k, v };
    assert(layer < c->n_layer && y->pages && y->where->addressable);
    assert(pos >= 0 && n <= c->ctx - pos);
    if (team) pool_run(team, n, pool_grain(4 * (int64_t)y->n_head * y->head_dim), write_rows, &j);
    else write_rows(&j, 0, n, 0);
    kv_wrote(c, layer, pos, n);
}

void kv_wrote(kv_store *c, int layer, int pos, int n)
{
    kv_layer *y = &c->layers[layer];
    assert(layer < c->n_layer && y->pages && pos >= 0 && n >= 0 && n <= c->ctx - pos);
    if (y->first > pos) y->first = pos;          /* a window of 1 may go back below it */
    if (y->first < pos + n - y->n_row) y->first = pos + n - y->n_row;
}

kv_view kv_layer_view(const kv_store *c, int layer)
{
    const kv_layer *y = &c->layers[layer];
    assert(layer >= 0 && layer < c->n_layer);
    return (kv_view){ .pages = y->pages, .stride = y->stride, .n_head = y->n_head,
                      .n_row = y->n_row, .first = y->first, .type = c->type,
                      .row_bytes = y->row_bytes };
}

uint8_t *const *kv_segment_table(const kv_store *c, int segment)
{
    return c->blocks[segment].mem;
}

kv_column kv_column_of(const kv_store *c, int layer)
{
    assert(layer >= 0 && layer < c->n_layer);
    return (kv_column){ c->layers[layer].stride, c->layers[layer].index };
}

kv_type kv_type_of(const kv_store *c) { return c->type; }

/* ---- rewinds -------------------------------------------------------------------------------- */

/* Lowest position that a token at pos may read; pos itself if only its own key. */
static int lowest_read(const kv_layer *y, int pos)
{
    return y->window > 0 && pos > y->window - 1 ? pos - (y->window - 1) : 0;
}

int kv_rewind_limit(const kv_store *c, int pos)
{
    int limit = 0;
    for (int l = 0; l < c->n_layer; l++) {
        const kv_layer *y = &c->layers[l];
        const int first = y->first > pos - y->n_row ? y->first : pos - y->n_row;
        /* a token reads window - 1 keys before its own: none of them may be below first */
        if (!y->pages || first <= 0 || y->window == 1) continue;
        if (limit < first + (y->window - 1)) limit = first + (y->window - 1);
    }
    return limit < pos ? limit : pos;
}

static bool is_in_part(const kv_store *c, const kv_layer *y, kv_part part)
{
    if (!y->pages) return false;
    switch (part) {
    case KV_ALL: return true;
    case KV_TRUNK: return y < c->layers + c->n_trunk;
    case KV_MTP: return y >= c->layers + c->n_trunk;
    case KV_RINGS: return y->n_row < c->ctx;
    case KV_WINDOWS: return y->window > 0;
    }
    return false;
}

/* Calls fn for positions from .. to - 1 of a layer: the keys of each head, then the values, cut at
 * the ends of pages. */
static int each_row(const kv_store *c, int layer, int from, int to, kv_piece_fn *fn, void *ctx)
{
    const kv_view v = kv_layer_view(c, layer);
    for (int i = 0; i < 2 * v.n_head; i++)
        for (int p = from, n; p < to; p += n) {
            uint8_t *row = kv_row(&v, i < v.n_head ? KV_KEYS : KV_VALUES, i % v.n_head, p);
            n = min_int(to - p, KV_PAGE - p % KV_PAGE);
            const int rc = fn(ctx, c->layers[layer].where, row, (size_t)n * v.row_bytes);
            if (rc < 0) return rc;
        }
    return 0;
}

int kv_each_piece(const kv_store *c, kv_part part, int pos, kv_piece_fn *fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < c->n_layer && rc == 0; l++)
        if (is_in_part(c, &c->layers[l], part))
            rc = each_row(c, l, lowest_read(&c->layers[l], pos), pos, fn, ctx);
    return rc;
}

void kv_replaced(kv_store *c, kv_part part, int pos)
{
    for (int l = 0; l < c->n_layer; l++) {
        kv_layer *y = &c->layers[l];
        if (is_in_part(c, y, part)) y->first = lowest_read(y, pos);
    }
}

/* ---- parts of a kept state ------------------------------------------------------------------ */

int kv_each_full(const kv_store *c, int from, int to, kv_piece_fn *fn, void *ctx)
{
    int rc = 0;
    for (int l = 0; l < c->n_layer && rc == 0; l++)
        if (c->layers[l].pages && c->layers[l].window == 0)
            rc = each_row(c, l, from, to, fn, ctx);
    return rc;
}

uint64_t kv_rows_bytes(const model *m, kv_type type, int layer, int n)
{
    const layer_memory a = layer_memory_of(m, layer);
    return rows_bytes(&a, type, n);
}

uint64_t kv_window_bytes(const model *m, kv_type type, int pos)
{
    uint64_t sum = 0;
    for (int l = 0; l < hparams_layers(&m->hp); l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (a.kind == MEMORY_WINDOW)
            sum = size_plus(sum, rows_bytes(&a, type, min_int(pos, a.window - 1)));
    }
    return sum;
}

uint64_t kv_full_bytes(const model *m, kv_type type, int n)
{
    uint64_t sum = 0;
    for (int l = 0; l < hparams_layers(&m->hp); l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (a.kind == MEMORY_ROWS) sum = size_plus(sum, rows_bytes(&a, type, n));
    }
    return sum;
}
