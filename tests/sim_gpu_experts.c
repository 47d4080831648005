/* sim_gpu_experts.c - the chosen experts of a layer whose banks are in VRAM, or pass through it.
 *
 * One vector for each choice, then their sum in the order of selection, as everywhere. More than
 * GPU_FEW tokens have the contract's bits only if the caller asks for them, and floats never, as on
 * a real device. Of a layer that comes in ranges of experts, the vectors wait in the scratch, as
 * there: another use of it in between shows. */
#include "tests/sim_gpu_internal.h"

#include <stdlib.h>

#include "moe/router.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

matrix sim_slab(const gpu_bank *b, int expert, const uint8_t *at)
{
    return (matrix){
        .type = (quant_type)b->type, .rows = b->rows, .cols = b->cols, .data = at,
        .row_bytes = b->row_bytes, .scale = b->scale ? b->scale[expert] : 1.0f,
        .bias = b->bias ? b->bias + (size_t)expert * (size_t)b->rows : NULL,
    };
}

/* The vectors of all choices and of the shared expert, between the calls of a layer. */
typedef struct scratch { float *y, *shared; uint64_t bytes; } scratch;

static scratch scratch_at(void *base, int n, int k, int n_embd)
{
    const uint64_t one = (uint64_t)n * (uint64_t)n_embd;
    scratch s = { .y = base, .shared = base ? (float *)base + one * (uint64_t)k : NULL };
    s.bytes = size_align(one * (uint64_t)(k + 1) * sizeof(float), 256);
    return s;
}

size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd)
{
    (void)g, (void)n_expert, (void)n_ff;
    return (size_t)scratch_at(NULL, n, k, n_embd).bytes;
}

static void claim_bank(sim_call *c, const char *what, const gpu_bank *b, int n_expert, int count,
                       bool data)
{
    const uint64_t rows = (uint64_t)b->rows, n = (uint64_t)n_expert;
    if (data && count > 0)
        sim_reads(c, what, b->data, (uint64_t)(count - 1) * b->slab_bytes + rows * b->row_bytes);
    sim_reads(c, "bias", b->bias, n * rows * sizeof(float));
    sim_reads(c, "scale", b->scale, n * sizeof(float));
}

void sim_claim_experts(sim_call *c, const gpu_input *in, const gpu_expert_args *a, bool banks)
{
    const uint64_t n = (uint64_t)in->n, k = (uint64_t)a->k, wide = (uint64_t)in->cols;
    const int count = a->batch.count ? a->batch.count : a->n_expert;
    sim_claim_input(c, in);
    sim_writes(c, "x", a->x, n * wide * sizeof(float));
    if (!a->batch.sums) {
        const uint64_t n_expert = (uint64_t)a->n_expert;
        claim_bank(c, "gate", &a->gate, a->n_expert, count, banks && !a->batch.addresses);
        claim_bank(c, "up", &a->up, a->n_expert, count, banks && !a->batch.addresses);
        claim_bank(c, "down", &a->down, a->n_expert, count, banks && !a->batch.addresses);
        sim_reads(c, "addresses", a->batch.addresses, n_expert * 3 * sizeof *a->batch.addresses);
        if (a->batch.addresses) {
            sim_reads(c, "order", a->batch.order, n_expert * sizeof *a->batch.order);
            sim_reads(c, "ranks", a->batch.rank, n_expert * sizeof *a->batch.rank);
        }
        sim_writes_any(c, "counts", a->batch.counts, n_expert * sizeof *a->batch.counts);
        if (a->ids) {
            sim_reads(c, "ids", a->ids, n * k * sizeof *a->ids);
            sim_reads(c, "gates", a->gates, n * k * sizeof *a->gates);
        } else {
            sim_reads(c, "logits", a->logits, n * n_expert * sizeof *a->logits);
            sim_reads(c, "keys", a->keys, n * n_expert * sizeof *a->keys);
            sim_reads(c, "bias of the choice", a->rule.bias, n_expert * sizeof *a->rule.bias);
        }
    }
    sim_reads(c, "sums", a->batch.sums, n * wide * sizeof *a->batch.sums);
    sim_writes(c, "y", a->y, n * k * wide * sizeof *a->y);
    sim_writes(c, "scratch", a->scratch, scratch_at(NULL, in->n, a->k, in->cols).bytes);
    if (!a->shared_gate.data) return;
    sim_claim_matrix(c, "shared gate", &a->shared_gate);
    sim_claim_matrix(c, "shared up", &a->shared_up);
    sim_claim_matrix(c, "shared down", &a->shared_down);
    sim_reads(c, "sigma", a->sigma, n * sizeof *a->sigma);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static float **rows_of(float *y, int n, int cols)
{
    float **rows = sim_room((size_t)n, sizeof *rows);
    for (int i = 0; i < n; i++) rows[i] = y + (size_t)i * (size_t)cols;
    return rows;
}

/* 16-bit activations, or sums of two of these for weights of 16 bits. */
static void multiply_halves(float *const *y, const matrix *w, const act_row *x, int n, bool lows)
{
    const size_t cols = (size_t)w->cols;
    float *some = sim_room((size_t)n * cols, sizeof *some);
    for (int i = 0; i < n; i++) memcpy(some + (size_t)i * cols, x[i].x, cols * sizeof *some);
    sim_round_halves(some, (size_t)n * cols, lows && sim_is_float((int)w->type));
    sim_vectors v = sim_vectors_make(some, n, w->cols);
    sim_multiply(y, w, v.a.rows, n);
    sim_vectors_free(&v);
    free(some);
}

/* Columns first .. first + count - 1 alone, of floats. */
static void multiply_some(float *const *y, const matrix *w, const act_row *x, int n, int first,
                          int count)
{
    act_row *some = sim_room((size_t)n, sizeof *some);
    matrix part = *w;
    part.data = (const uint8_t *)w->data + (size_t)first * sizeof(float);
    part.cols = count;
    for (int i = 0; i < n; i++) some[i] = (act_row){ .x = x[i].x + first };
    sim_multiply(y, &part, some, n);
    free(some);
}

/* As tensor cores would: 16-bit activations, or exact ones in another order of additions. */
static void multiply_many(float *const *y, const matrix *w, const act_row *x, int n, bool lows)
{
    const int half = w->cols / 2;
    if (w->type != QT_F32) {
        multiply_halves(y, w, x, n, lows);
        return;
    }
    matrix plain = *w;
    float *more = sim_room((size_t)n * (size_t)w->rows, sizeof *more);
    float **rows = rows_of(more, n, w->rows);
    plain.bias = NULL;
    multiply_some(y, w, x, n, 0, half);
    multiply_some(rows, &plain, x, n, half, w->cols - half);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < w->rows; r++) y[i][r] += rows[i][r];
    free(rows);
    free(more);
}

static void multiply(float *const *y, const matrix *w, const act_row *x, int n, sim_bits bits)
{
    const bool blocks = !sim_is_float((int)w->type), lows = bits & SIM_BITS_LOWS;
    if (bits == SIM_BITS_FEW || (bits & SIM_BITS_CONTRACT && blocks)) sim_multiply(y, w, x, n);
    else multiply_many(y, w, x, n, lows);
}

static void expert_up(float *const *mid, const sim_expert *e, const act_row *x, int n,
                      gpu_activation act, sim_bits bits)
{
    const loops *f = sim_ops()->loops;
    float *up = sim_room((size_t)n * (size_t)e->up.rows, sizeof *up);
    float **rows = rows_of(up, n, e->up.rows);
    multiply(mid, &e->gate, x, n, bits);
    multiply(rows, &e->up, x, n, bits);
    for (int i = 0; i < n; i++)
        (act == GPU_GEGLU ? f->geglu : act == GPU_SWIGLU_CLAMPED ? f->swiglu_clamped
                                                                 : f->swiglu)(
            mid[i], mid[i], rows[i], e->up.rows);
    free(rows);
    free(up);
}

void sim_expert_up(float *const *mid, const sim_expert *e, const act_row *x, int n,
                   gpu_activation act)
{
    expert_up(mid, e, x, n, act, SIM_BITS_FEW);
}

void sim_expert_whole(float *const *y, const sim_expert *e, const act_row *x, int n,
                      gpu_activation act, sim_bits bits)
{
    float *mid = sim_room((size_t)n * (size_t)e->gate.rows, sizeof *mid);
    float **rows = rows_of(mid, n, e->gate.rows);
    expert_up(rows, e, x, n, act, bits);
    sim_vectors v = sim_vectors_make(mid, n, e->gate.rows);
    multiply(y, &e->down, v.a.rows, n, bits);
    sim_vectors_free(&v);
    free(rows);
    free(mid);
}

static sim_bits bits_of(const gpu_expert_args *a, const sim_vectors *x)
{
    const sim_bits many = a->batch.contract ? SIM_BITS_CONTRACT : SIM_BITS_ANY;
    return x->few ? SIM_BITS_FEW : many | (x->lows ? SIM_BITS_LOWS : 0);
}

float *sim_shared(const gpu_expert_args *a, const sim_vectors *x)
{
    const sim_expert e = { sim_matrix(&a->shared_gate), sim_matrix(&a->shared_up),
                           sim_matrix(&a->shared_down) };
    const int n = x->a.n;
    if (!a->shared_gate.data) return NULL;
    float *y = sim_room((size_t)n * (size_t)e.down.rows, sizeof *y);
    float **rows = rows_of(y, n, e.down.rows);
    sim_expert_whole(rows, &e, x->a.rows, n, a->act, bits_of(a, x));
    free(rows);
    return y;
}

router_rule sim_rule(const gpu_router_rule *r)
{
    return (router_rule){ .score = r->sigmoid ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                          .as_scored = r->as_scored, .factor = r->factor, .bias = r->bias };
}

bool sim_choose(gpu *g, int32_t *ids, float *gates, const gpu_expert_args *a, int t)
{
    const size_t at = (size_t)t * (size_t)a->k;
    if (a->ids) {
        memcpy(ids, a->ids + at, (size_t)a->k * sizeof *ids);
        memcpy(gates, a->gates + at, (size_t)a->k * sizeof *gates);
    } else {
        const size_t first = (size_t)t * (size_t)a->n_expert;
        const router_rule rule = sim_rule(&a->rule);
        int32_t largest[GPU_MOST_USED];
        float unused[GPU_MOST_USED];
        router_select(ids, gates, a->logits + first, a->n_expert, a->k, &rule);
        router_select(largest, unused, (a->keys ? a->keys : a->logits) + first, a->n_expert, a->k,
                      NULL);
        if (memcmp(ids, largest, (size_t)a->k * sizeof *ids) != 0) {
            sim_fail(g, "experts: the keys of token %d choose others than its rule", t);
            return false;
        }
    }
    for (int r = 0; r < a->k; r++)
        if (ids[r] < 0 || ids[r] >= a->n_expert) {
            sim_fail(g, "experts: token %d chose %d of %d", t, ids[r], a->n_expert);
            return false;
        }
    return true;
}

void sim_join(const gpu_expert_args *a, int t, const float *y, const float *gates,
              const float *shared)
{
    const size_t n_embd = (size_t)a->down.rows, all = (size_t)a->k * n_embd;
    sim_ops()->loops->join(a->x + (size_t)t * n_embd, y, gates, a->k,
                           shared ? shared + (size_t)t * n_embd : NULL,
                           shared ? a->sigma[t] : 0.0f, a->down.rows);
    if (a->y && a->y + (size_t)t * all != y)
        memcpy(a->y + (size_t)t * all, y, all * sizeof *y);
}

/* ---- the operation --------------------------------------------------------------------------- */

typedef struct expert_call {
    gpu_input in;
    gpu_expert_args a;
} expert_call;

static void count_all(const gpu_expert_args *a, const int32_t *ids, int n_slot)
{
    memset(a->batch.counts, 0, (size_t)a->n_expert * sizeof *a->batch.counts);
    for (int s = 0; s < n_slot; s++) a->batch.counts[ids[s]]++;
}

/* Where the table says that the expert is. */
static bool find_scattered(gpu *g, sim_expert *one, const gpu_expert_args *a, int e)
{
    const gpu_bank *banks[3] = { &a->gate, &a->up, &a->down };
    matrix *slabs[3] = { &one->gate, &one->up, &one->down };
    for (int i = 0; i < 3; i++) {
        const uint8_t *at = (const uint8_t *)(uintptr_t)a->batch.addresses[3 * e + i];
        if ((uintptr_t)at % GPU_SLAB_ALIGN != 0 ||
            !sim_in_vram(g, at, (uint64_t)banks[i]->rows * banks[i]->row_bytes)) {
            sim_fail(g, "experts: slab %d of expert %d is not in VRAM", i, e);
            return false;
        }
        *slabs[i] = sim_slab(banks[i], e, at);
    }
    return true;
}

/* The vectors of all slots that chose an expert of the range, to y [n, k, n_embd]. */
static void routed(gpu *g, const gpu_expert_args *a, const int32_t *ids, float *y,
                   const sim_vectors *x)
{
    const int count = a->batch.count ? a->batch.count : a->n_expert, n_slot = x->a.n * a->k;
    const size_t n_embd = (size_t)a->down.rows;
    act_row *rows = sim_room((size_t)n_slot, sizeof *rows);
    float **to = sim_room((size_t)n_slot, sizeof *to);
    for (int r = a->batch.first; r < a->batch.first + count; r++) {
        const int e = a->batch.addresses ? a->batch.order[r] : r;
        const uint64_t i = (uint64_t)(r - a->batch.first);
        int n = 0;
        for (int s = 0; s < n_slot; s++) {
            if (ids[s] != e) continue;
            rows[n] = x->a.rows[s / a->k];
            to[n++] = y + (size_t)s * n_embd;
        }
        if (a->batch.addresses && (e < 0 || e >= a->n_expert || a->batch.rank[e] != r)) {
            sim_fail(g, "experts: rank %d is expert %d's", r, e);
            break;
        }
        if (n == 0) continue;
        sim_expert one = { sim_slab(&a->gate, e, a->gate.data + i * a->gate.slab_bytes),
                           sim_slab(&a->up, e, a->up.data + i * a->up.slab_bytes),
                           sim_slab(&a->down, e, a->down.data + i * a->down.slab_bytes) };
        if (a->batch.addresses && !find_scattered(g, &one, a, e)) break;
        sim_expert_whole(to, &one, rows, n, a->act, bits_of(a, x));
    }
    free(to);
    free(rows);
}

/* The first of a layer's calls computes the shared expert, the last one adds up. A range that is
 * left out leaves NaNs. */
static void run_ranges(gpu *g, const expert_call *c, const sim_vectors *x)
{
    const gpu_expert_args *a = &c->a;
    const int n = c->in.n, count = a->batch.count ? a->batch.count : a->n_expert;
    const size_t n_embd = (size_t)c->in.cols, slots = (size_t)n * (size_t)a->k;
    const scratch s = scratch_at(a->scratch, n, a->k, c->in.cols);
    int32_t *ids = sim_room(slots, sizeof *ids);
    float *gates = sim_room(slots, sizeof *gates), *y = a->y ? a->y : s.y;
    bool ok = true;
    for (int t = 0; t < n && ok; t++)
        ok = sim_choose(g, ids + t * a->k, gates + t * a->k, a, t);
    if (ok && a->batch.first == 0) {
        float *shared = sim_shared(a, x);
        if (shared) memcpy(s.shared, shared, (size_t)n * n_embd * sizeof *shared);
        free(shared);
        memset(y, 0xFF, slots * n_embd * sizeof *y);
    }
    if (ok && a->batch.counts && a->batch.first == 0) count_all(a, ids, (int)slots);
    if (ok) routed(g, a, ids, y, x);
    for (int t = 0; t < n && ok && a->batch.first + count == a->n_expert; t++)
        sim_join(a, t, y + (size_t)(t * a->k) * n_embd, gates + t * a->k,
                 a->shared_gate.data ? s.shared : NULL);
    free(gates);
    free(ids);
}

/* The sum over the selection was taken elsewhere. */
static void run_sums(const expert_call *c, const sim_vectors *x)
{
    const gpu_expert_args *a = &c->a;
    const size_t n_embd = (size_t)c->in.cols;
    const float one = 1.0f;
    float *shared = sim_shared(a, x);
    for (size_t t = 0; t < (size_t)c->in.n; t++)
        sim_ops()->loops->join(a->x + t * n_embd, a->batch.sums + t * n_embd, &one, 1,
                               shared ? shared + t * n_embd : NULL, shared ? a->sigma[t] : 0.0f,
                               c->in.cols);
    free(shared);
}

/* The sum over vectors that the calls left in the scratch, and those of the host. */
typedef struct join_call {
    gpu_input in;
    gpu_expert_args a;
    const float *cold;
    const int32_t *row;
} join_call;

static void run_join(gpu *g, void *args)
{
    const join_call *c = args;
    const gpu_expert_args *a = &c->a;
    const size_t n_embd = (size_t)c->in.cols, k = (size_t)a->k;
    const scratch s = scratch_at(a->scratch, c->in.n, a->k, c->in.cols);
    float *y = sim_room(k * n_embd, sizeof *y);
    (void)g;
    for (size_t t = 0; t < (size_t)c->in.n; t++) {
        for (size_t r = 0; r < k; r++) {
            const int32_t row = c->row[t * k + r];
            const float *from = row < 0 ? (a->y ? a->y : s.y) + (t * k + r) * n_embd
                                        : c->cold + (size_t)row * n_embd;
            memcpy(y + r * n_embd, from, n_embd * sizeof *y);
        }
        sim_ops()->loops->join(a->x + t * n_embd, y, a->gates + t * k, a->k,
                               a->shared_gate.data ? s.shared + t * n_embd : NULL,
                               a->shared_gate.data ? a->sigma[t] : 0.0f, c->in.cols);
    }
    free(y);
}

static void run_experts(gpu *g, void *args)
{
    const expert_call *c = args;
    float *rows = sim_finished(g, &c->in);
    if (!rows) return;
    sim_vectors x = sim_vectors_make(rows, c->in.n, c->in.cols);
    x.few = gpu_is_few(c->in.n, c->in.in_pass);
    x.lows = c->in.lows != NULL;
    if (c->a.batch.sums) run_sums(c, &x);
    else run_ranges(g, c, &x);
    sim_vectors_free(&x);
    free(rows);
}

/* What products of many vectors read. */
static void prepare_many(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const int types[] = { a->gate.type, a->up.type, a->shared_gate.type, a->shared_up.type };
    const int first = a->batch.sums ? 2 : 0, end = a->shared_gate.data ? 4 : 2;
    bool rows = false, halves = false;
    for (int i = first; i < end; i++) {
        const bool block = quant_traits_of((quant_type)types[i])->block_elems > 1;
        if (types[i] == QT_F32 || (a->batch.contract && block)) rows = true;
        else halves = true;
    }
    sim_prepare_many(g, in, rows, halves);
}

static bool layer_fits(const gpu_input *in, const gpu_expert_args *a)
{
    const int count = a->batch.count ? a->batch.count : a->n_expert;
    const bool few = gpu_is_few(in->n, in->in_pass);
    if (in->n < 1 || in->cols < 1) return false;
    if (a->batch.sums) return !few;
    return a->k >= 1 && a->k <= GPU_MOST_USED && a->k <= a->n_expert && a->n_expert <= 1024 &&
           gpu_type_fits(a->gate.type) && gpu_type_fits(a->up.type) &&
           gpu_type_fits(a->down.type) && a->gate.cols == in->cols && a->up.cols == in->cols &&
           a->down.rows == in->cols && a->gate.rows == a->up.rows &&
           a->gate.rows == a->down.cols && a->batch.first >= 0 && count >= 1 &&
           count <= a->n_expert - a->batch.first && (!few || count == a->n_expert) &&
           (a->ids || few) &&
           (a->batch.addresses ? !few : a->gate.data && a->up.data && a->down.data);
}

void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    sim_call c = sim_begin(g, "experts");
    if (!layer_fits(in, a)) {
        sim_fail(g, "experts: %d of %d for %d tokens, from %d on %d", a->k, a->n_expert, in->n,
                 a->batch.first, a->batch.count);
        return;
    }
    if (a->gate.type != a->up.type && a->batch.count && a->batch.count < a->n_expert && !a->y) {
        sim_fail(g, "experts: a range of two types");
        return;
    }
    if (!gpu_is_few(in->n, in->in_pass)) prepare_many(g, in, a);
    else sim_prepare_few(g, in);
    const expert_call e = { *in, *a };
    sim_claim_experts(&c, in, a, true);
    sim_end(&c, run_experts, &e, sizeof e);
}

void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row)
{
    sim_call c = sim_begin(g, "join of experts");
    const uint64_t n = (uint64_t)in->n, k = (uint64_t)a->k;
    const uint64_t wide = (uint64_t)in->cols * sizeof(float);
    uint64_t n_row = 0;
    if (in->n <= GPU_FEW || !layer_fits(in, a) || a->batch.sums || !a->batch.addresses || !cold ||
        !row) {
        sim_fail(g, "experts: arguments of a join of %d tokens", in->n);
        return;
    }
    for (uint64_t s = 0; s < n * k; s++) if (row[s] >= 0) n_row++;
    const join_call j = { *in, *a, cold, row };
    sim_writes(&c, "x", a->x, n * wide);
    sim_reads(&c, "gates", a->gates, n * k * sizeof *a->gates);
    sim_reads(&c, "scratch", a->scratch, scratch_at(NULL, in->n, a->k, in->cols).bytes);
    sim_reads(&c, "y", a->y, n * k * wide);
    sim_reads_any(&c, "rows", row, n * k * sizeof *row);
    sim_reads_any(&c, "the host's vectors", cold, n_row * wide);
    if (a->shared_gate.data) sim_reads(&c, "sigma", a->sigma, n * sizeof *a->sigma);
    sim_end(&c, run_join, &j, sizeof j);
}
