/* sim_gpu_mixers.c - attention and the delta rule, by the loops of engine/cpu/.
 *
 * What gpu.h lets an operation overwrite is overwritten. */
#include "tests/sim_gpu_internal.h"

#include <math.h>
#include <stdlib.h>

#include "engine/cpu/attention.h"
#include "engine/cpu/deltanet.h"

/* ---- attention ------------------------------------------------------------------------------- */

enum { PARTIAL_FLOATS = 2 };             /* of a head and a dimension; nothing is kept in it here */

size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim, int n)
{
    (void)g;
    return (size_t)max_int(n, GPU_FEW) * (size_t)n_head * (size_t)head_dim * PARTIAL_FLOATS;
}

bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim)
{
    return (head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256 ||
            head_dim == 512) &&
           n_head_kv > 0 && n_head % n_head_kv == 0;
}

/* n heads, `stride` floats apart, to y [n, head_dim], of one token: normed and rotated. */
static void turn_heads(float *y, const float *x, size_t stride, int n, const float *norm,
                       const gpu_attention *a, int t)
{
    const loops *f = sim_ops()->loops;
    const size_t half = (size_t)a->rope_dim / 2, dim = (size_t)a->head_dim;
    for (size_t h = 0; h < (size_t)n; h++) memcpy(y + h * dim, x + h * stride, dim * sizeof *y);
    if (a->norm_whole) f->rmsnorm(y, y, norm, n * a->head_dim, a->eps);
    for (int h = 0; h < n; h++, y += dim) {
        if (norm && !a->norm_whole) f->rmsnorm(y, y, norm, a->head_dim, a->eps);
        f->rotate(y, a->cosine + (size_t)t * half, a->sine + (size_t)t * half, a->rope_dim);
    }
}

static kv_view view_of(const gpu_attention *a)
{
    static const kv_type types[] = { [GPU_KV_F32] = KV_F32, [GPU_KV_F16] = KV_F16,
                                     [GPU_KV_Q8_0] = KV_Q8_0 };
    static const quant_type stored[] = { [KV_F32] = QT_F32, [KV_F16] = QT_F16,
                                         [KV_Q8_0] = QT_Q8_0 };
    const kv_type type = types[a->kv];
    return (kv_view){
        .pages = a->cursor->pages + a->column, .stride = a->n_column, .n_head = a->n_head_kv,
        .type = type,
        .row_bytes = (size_t)quant_row_bytes(quant_traits_of(stored[type]),
                                             (uint64_t)a->head_dim),
    };
}

static void attend_all(const attend_args *a)
{
    const int n_block = a->n * attend_token_blocks(a);
    float *work = sim_room(attend_work_floats(a->head_dim), sizeof *work);
    for (int h = 0; h < a->n_head_kv; h++)
        for (int b = 0; b < n_block; b += ATTEND_BLOCKS)
            sim_ops()->loops->attend_blocks(a, h, b, min_int(n_block - b, ATTEND_BLOCKS), work);
    free(work);
}

static bool counters_are_zero(gpu *g, const gpu_attention *a)
{
    for (int i = 0; i < (a->in_pass ? max_int(a->n, GPU_FEW) : GPU_FEW) * a->n_head; i++)
        if (a->counters[i] != 0) {
            sim_fail(g, "attention: counter %d is %u", i, (unsigned)a->counters[i]);
            return false;
        }
    return true;
}

/* Whether no two positions that are read or written have the same memory. Pages may have, if only
 * different rows of them are used. */
static bool rows_differ(const gpu_attention *a)
{
    const int pos = a->cursor->pos, last = pos + a->n - 1;
    const int lowest = a->window > 0 ? max_int(pos - a->window + 1, 0) : 0;
    const kv_view v = view_of(a);
    for (int p = lowest; p + GPU_PAGE <= last; p = (p / GPU_PAGE + 1) * GPU_PAGE)
        for (int q = p + GPU_PAGE; q <= last; q += GPU_PAGE)
            if (v.pages[p / GPU_PAGE * v.stride] == v.pages[q / GPU_PAGE * v.stride]) return false;
    return true;
}

/* Whether the table and those pages are memory of the device. */
static bool pages_exist(const gpu *g, const gpu_attention *a)
{
    const int pos = a->cursor->pos, lowest = a->window > 0 ? pos - a->window + 1 : 0;
    const kv_view v = view_of(a);
    const uint64_t bytes = 2 * (uint64_t)v.n_head * GPU_PAGE * v.row_bytes;
    for (int i = lowest > 0 ? lowest / GPU_PAGE : 0; i <= (pos + a->n - 1) / GPU_PAGE; i++)
        if (!sim_in_vram(g, &v.pages[i * v.stride], sizeof v.pages[0]) ||
            !sim_in_vram(g, v.pages[i * v.stride], bytes))
            return false;
    return true;
}

/* The tokens of one conversation. Returns whether it could. */
static bool attend_row(gpu *g, const gpu_attention *a)
{
    const size_t n = (size_t)a->n, dim = (size_t)a->head_dim, wide = (size_t)a->n_head * dim;
    const size_t kv_wide = (size_t)a->n_head_kv * dim;
    const int pos = a->cursor->pos;
    if (pos < 0 || pos > a->last || a->n > a->last - pos + 1) {
        sim_fail(g, "attention: %d tokens at %d, made for positions up to %d", a->n, pos, a->last);
        return false;
    }
    if (!pages_exist(g, a)) {
        sim_fail(g, "attention: %d tokens at %d: a page is outside of VRAM", a->n, pos);
        return false;
    }
    if (!rows_differ(a)) {
        sim_fail(g, "attention: %d tokens at %d, window %d: too few pages", a->n, pos, a->window);
        return false;
    }
    float *q = sim_room(n * wide, sizeof *q), *k = sim_room(n * kv_wide, sizeof *k);
    float *v = sim_room(n * kv_wide, sizeof *v);
    for (size_t t = 0; t < n; t++) {
        turn_heads(q + t * wide, a->q + t * (size_t)a->q_stride, (size_t)a->q_head_stride,
                   a->n_head, a->q_norm, a, (int)t);
        if (a->k)
            turn_heads(k + t * kv_wide, a->k + t * kv_wide, dim, a->n_head_kv, a->k_norm, a,
                       (int)t);
    }
    if (a->k) memcpy(v, a->v, n * kv_wide * sizeof *v);
    for (size_t h = 0; a->k && a->norm_values && h < n * (size_t)a->n_head_kv; h++)
        sim_ops()->loops->rmsnorm(v + h * dim, v + h * dim, NULL, a->head_dim, a->eps);
    const kv_view stored = view_of(a);
    if (a->k) kv_view_write(&stored, a->head_dim, pos, a->n, k, v);
    const attend_args job = {
        .out = a->out, .q = q, .stored = stored, .n_head = a->n_head, .n_head_kv = a->n_head_kv,
        .head_dim = a->head_dim, .pos = pos, .n = a->n, .window = a->window, .scale = a->scale,
        .sinks = a->sinks,
    };
    attend_all(&job);
    free(v);
    free(k);
    free(q);
    return true;
}

static void run_attend(gpu *g, void *args)
{
    const gpu_attention *a = args;
    const size_t dim = (size_t)a->head_dim, kv_wide = (size_t)a->n_head_kv * dim;
    const size_t half = (size_t)a->rope_dim / 2;
    gpu_attention row = *a;
    if (a->counters && !counters_are_zero(g, a)) return;
    for (int left = a->n; left > 0; left -= row.n, row.cursor++) {
        const size_t t = (size_t)(a->n - left);
        row.n = sim_row_tokens(row.cursor, left);
        row.out = a->out + t * (size_t)a->n_head * dim;
        row.q = a->q + t * (size_t)a->q_stride;
        if (a->k) row.k = a->k + t * kv_wide;
        if (a->k) row.v = a->v + t * kv_wide;
        row.cosine = a->cosine + t * half;
        row.sine = a->sine + t * half;
        if (!attend_row(g, &row)) return;
    }
    if (a->n > 1 || a->norm_whole) {
        for (size_t t = 0; t < (size_t)a->n; t++)
            for (size_t h = 0; h < (size_t)a->n_head; h++)
                sim_clobber(a->q + t * (size_t)a->q_stride + h * (size_t)a->q_head_stride,
                            dim * sizeof *a->q);
        if (a->k) sim_clobber(a->k, (size_t)a->n * kv_wide * sizeof *a->k);
    }
    sim_clobber(a->partial, gpu_attention_scratch(g, a->n_head, a->head_dim, a->in_pass ? a->n : GPU_FEW) *
                                sizeof(float));
}

void gpu_attend(gpu *g, const gpu_attention *a)
{
    const uint64_t n = (uint64_t)a->n, dim = (uint64_t)a->head_dim, f = sizeof(float);
    const uint64_t kv_wide = (uint64_t)a->n_head_kv * dim, half = (uint64_t)a->rope_dim / 2;
    sim_call c = sim_begin(g, "attention");
    if (!gpu_attention_fits(a->n_head, a->n_head_kv, a->head_dim) || a->n < 1 ||
        a->rope_dim % 2 || a->rope_dim > a->head_dim || a->column >= a->n_column ||
        (a->norm_whole && (!a->q_norm || !a->k_norm || !a->k || a->v == a->k))) {
        sim_fail(g, "attention: %d tokens, column %d of %d, %d and %d heads of %d", a->n,
                 a->column, a->n_column, a->n_head, a->n_head_kv, a->head_dim);
        return;
    }
    sim_writes(&c, "out", a->out, n * (uint64_t)a->n_head * dim * f);
    sim_writes(&c, "q", a->q, ((n - 1) * (uint64_t)a->q_stride +
                               (uint64_t)(a->n_head - 1) * (uint64_t)a->q_head_stride + dim) * f);
    if (a->k) {
        sim_writes(&c, "k", a->k, n * kv_wide * f);
        sim_reads(&c, "v", a->v, n * kv_wide * f);
    }
    sim_reads(&c, "norm of q", a->q_norm, (a->norm_whole ? (uint64_t)a->n_head : 1) * dim * f);
    if (a->k)
        sim_reads(&c, "norm of k", a->k_norm, (a->norm_whole ? kv_wide : dim) * f);
    sim_reads_ahead(&c, "cosine", a->cosine, n * half * f);
    sim_reads_ahead(&c, "sine", a->sine, n * half * f);
    sim_reads_ahead(&c, "cursor", a->cursor, sizeof *a->cursor);
    sim_reads(&c, "sinks", a->sinks, (uint64_t)a->n_head * f);
    const int few = a->in_pass ? max_int(a->n, GPU_FEW) : GPU_FEW;
    sim_writes(&c, "partial", a->partial,
               gpu_attention_scratch(g, a->n_head, a->head_dim, few) * f);
    sim_writes(&c, "counters", a->counters, (uint64_t)few * (uint64_t)a->n_head *
                                            sizeof *a->counters);
    sim_end(&c, run_attend, a, sizeof *a);
}

/* ---- recurrent memory ------------------------------------------------------------------------ */

float *sim_recurrent(gpu *g, const gpu_cursor *at, uint64_t offset, size_t n)
{
    const uint8_t *from = at->recurrent + offset;
    uint8_t *to = at->recurrent_next + offset;
    if (!sim_in_vram(g, from, n * sizeof(float)) || !sim_in_vram(g, to, n * sizeof(float))) {
        sim_fail(g, "%zu floats of recurrent memory are outside of VRAM", n);
        return NULL;
    }
    if (from != to) memcpy(to, from, n * sizeof(float));
    return (float *)(void *)to;
}

typedef struct window_args {
    gpu_conv c;
    int rows, n;
} window_args;

static void run_window(gpu *g, void *args)
{
    const window_args *a = args;
    const size_t rows = (size_t)a->rows, n = (size_t)a->n, n_old = (size_t)a->c.n_tap - 1;
    float *window = sim_recurrent(g, a->c.cursor, a->c.window, rows * n_old);
    for (size_t i = 0; i < n_old && window; i++)
        memmove(window + i * rows,
                i + n < n_old ? window + (i + n) * rows : a->c.raw + (i + n - n_old) * rows,
                rows * sizeof *window);
}

void gpu_conv_window(gpu *g, const gpu_conv *c, int rows, int n)
{
    const window_args a = { *c, rows, n };
    sim_call call = sim_begin(g, "convolution");
    sim_reads(&call, "raw", c->raw, (uint64_t)rows * (uint64_t)n * sizeof(float));
    sim_reads(&call, "cursor", c->cursor, sizeof *c->cursor);
    sim_end(&call, run_window, &a, sizeof a);
}

/* ---- the delta rule -------------------------------------------------------------------------- */

bool gpu_delta_fits(int dim) { return dim == 32 || dim == 64 || dim == 128; }

typedef struct delta_sizes {
    int ratio;
    size_t dim, keys, values, channels;  /* widths of q (or k), of v, of all three */
} delta_sizes;

static delta_sizes sizes_of(const gpu_delta *d)
{
    const size_t dim = (size_t)d->dim, keys = (size_t)d->n_k * dim, values = (size_t)d->n_v * dim;
    return (delta_sizes){ d->n_v / d->n_k, dim, keys, values, 2 * keys + values };
}

/* The key head of value head v. */
static int key_head(const gpu_delta *d, const delta_sizes *s, int v)
{
    return d->tiled ? v % d->n_k : v / s->ratio;
}

/* Of a token's gates the write strength of value head v; its decay is `step` further on. */
static size_t gate_at(const gpu_delta *d, const delta_sizes *s, int v, size_t *step)
{
    *step = d->apart ? (size_t)d->n_v : (size_t)s->ratio;
    if (d->apart) return (size_t)v;
    return (size_t)(key_head(d, s, v) * 2 * s->ratio + (d->tiled ? v / d->n_k : v % s->ratio));
}

/* Norms of q and k in a copy of mixed, write strengths and log decays in a copy of ba. */
static void prepare_token(float *mixed, float *ba, const gpu_delta *d, const delta_sizes *s)
{
    const loops *f = sim_ops()->loops;
    for (int h = 0; h < d->n_k; h++) {
        float *q = mixed + (size_t)h * s->dim;
        f->delta_l2norm(q, d->dim, 1.0f / sqrtf((float)d->dim));
        f->delta_l2norm(q + s->keys, d->dim, 1.0f);
    }
    for (int v = 0; v < d->n_v; v++) {
        size_t step;
        float *own = ba + gate_at(d, s, v, &step);
        own[0] = sigmoid_f32(own[0]);
        own[step] = delta_decay(own[step], d->dt_bias[v], d->a[v]);
    }
}

size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n)
{
    (void)g;
    return n < GPU_DELTA_CHUNK ? 0 : (size_t)(n_k + n_v) * (size_t)dim * 4 * GPU_DELTA_CHUNK;
}

/* The tokens of one conversation, with prepared inputs. Chunks as on the CPU, wherever they
 * begin. */
static void delta_row(gpu *g, const gpu_delta *d, const float *mixed, const float *ba, float *out,
                      float *scratch)
{
    const delta_sizes s = sizes_of(d);
    const loops *f = sim_ops()->loops;
    const size_t gates = 2 * (size_t)d->n_v;
    float *state = sim_recurrent(g, d->cursor, d->state, (size_t)d->n_v * s.dim * s.dim);
    for (int h = 0; h < d->n_v && state; h++) {
        const size_t key = (size_t)key_head(d, &s, h);
        size_t step;
        const float *own = ba + gate_at(d, &s, h, &step);
        const delta_args a = {
            .out = out + (size_t)h * s.dim, .q = mixed + key * s.dim,
            .k = mixed + s.keys + key * s.dim, .v = mixed + 2 * s.keys + (size_t)h * s.dim,
            .beta = own, .g = own + step, .out_stride = s.values, .qk_stride = s.channels,
            .v_stride = s.channels, .bg_stride = gates,
            .state = state + (size_t)h * s.dim * s.dim, .n = d->n, .dk = d->dim, .dv = d->dim,
        };
        if (a.n < DELTA_CHUNK / 2) f->delta_recurrence(&a);
        else f->delta_chunked(&a, scratch);
    }
}

static void run_delta(gpu *g, void *args)
{
    const gpu_delta *d = args;
    const delta_sizes s = sizes_of(d);
    const size_t n = (size_t)d->n, gates = 2 * (size_t)d->n_v;
    float *mixed = sim_room(n * s.channels, sizeof *mixed), *ba = sim_room(n * gates, sizeof *ba);
    float *scratch = sim_room(delta_scratch(d->dim, d->dim), sizeof *scratch);
    gpu_delta row = *d;
    memcpy(mixed, d->mixed, n * s.channels * sizeof *mixed);
    memcpy(ba, d->ba, n * gates * sizeof *ba);
    for (size_t t = 0; t < n; t++)
        prepare_token(mixed + t * s.channels, ba + t * gates, d, &s);
    for (int left = d->n; left > 0; left -= row.n, row.cursor++) {
        const size_t t = n - (size_t)left;
        row.n = sim_row_tokens(row.cursor, left);
        delta_row(g, &row, mixed + t * s.channels, ba + t * gates, d->out + t * s.values, scratch);
    }
    if (d->scratch) sim_clobber(d->scratch, gpu_delta_scratch(g, d->n_k, d->n_v, d->dim, d->n));
    free(scratch);
    free(ba);
    free(mixed);
}

void gpu_delta_rule(gpu *g, const gpu_delta *d)
{
    const uint64_t n = (uint64_t)d->n, n_v = (uint64_t)d->n_v, f = sizeof(float);
    sim_call c = sim_begin(g, "DeltaNet");
    if (!gpu_delta_fits(d->dim) || d->n_k < 1 || d->n_v % d->n_k || d->n < 1 || d->pos < 0) {
        sim_fail(g, "DeltaNet: %d tokens from %d, %d and %d heads of %d", d->n, d->pos, d->n_k,
                 d->n_v, d->dim);
        return;
    }
    const delta_sizes s = sizes_of(d);
    sim_writes(&c, "out", d->out, n * s.values * f);
    sim_reads(&c, "mixed", d->mixed, n * s.channels * f);
    sim_reads(&c, "ba", d->ba, n * 2 * n_v * f);
    sim_reads(&c, "dt_bias", d->dt_bias, n_v * f);
    sim_reads(&c, "a", d->a, n_v * f);
    sim_reads_ahead(&c, "cursor", d->cursor, sizeof *d->cursor);
    if (d->scratch)
        sim_writes(&c, "scratch", d->scratch,
                   gpu_delta_scratch(g, d->n_k, d->n_v, d->dim, d->n));
    sim_end(&c, run_delta, d, sizeof *d);
}
