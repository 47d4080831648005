/* mix_attention.c - softmax attention of a batch on the CPU.
 *
 * Families differ in fields of the weights and of model_family: norms of queries and keys, sinks,
 * windows, a gate after each query, keys that serve as values. The kernels are in
 * cpu/attention.h. */
#include "engine/host/host_batch.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/attention.h"

typedef struct rotate_args {
    const host_batch *b;
    float *x;
    int n_head, dim;
    size_t stride;
    const float *cosine, *sine;
} rotate_args;

/* Moves x[2i] to x[i] and x[2i + 1] to x[half + i], the order of pairs in other families. Queries
 * and keys are reordered alike, so their products do not change. */
static void split_neighbours(float *x, size_t half)
{
    float odd[MODEL_MOST_NEIGHBOURS / 2];
    for (size_t i = 0; i < half; i++) {
        odd[i] = x[2 * i + 1];
        x[i] = x[2 * i];
    }
    memcpy(x + half, odd, half * sizeof *x);
}

static void rotate_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const rotate_args *a = ctx;
    const size_t half = (size_t)a->dim / 2;
    (void)thread;
    for (size_t t = (size_t)begin; t < (size_t)end; t++)
        for (size_t h = 0; h < (size_t)a->n_head; h++) {
            float *x = a->x + (t * (size_t)a->n_head + h) * a->stride;
            if (a->b->m->family->rope_neighbours) split_neighbours(x, half);
            a->b->o->loops->rotate(x, a->cosine + t * half, a->sine + t * half, a->dim);
        }
}

static void rotate(const host_batch *b, float *x, int n_head, attn_shape heads, bool windowed)
{
    const int table = windowed && b->rope->n_table > 1;
    rotate_args a = { b, x, n_head, heads.rope_dim, (size_t)heads.head_dim,
                      b->ws->rope_cos[table], b->ws->rope_sin[table] };
    pool_run(b->o->team, b->n, pool_grain((int64_t)n_head * heads.rope_dim), rotate_tokens, &a);
}

static void store_and_attend(const host_batch *b, const batch_row *row, int layer, attn_shape heads,
                             const float *sinks)
{
    workspace *ws = b->ws;
    kv_store *kv = state_kv(row->st);
    const int from = model_kv_layer(b->m, layer);
    const size_t first = (size_t)row->first, dim = (size_t)heads.head_dim;
    const size_t q = first * (size_t)heads.n_head * dim, k = first * (size_t)heads.n_head_kv * dim;
    if (from == layer)
        kv_write(kv, layer, row->pos, row->n, ws->k + k, ws->v + k, b->o->team);
    const attend_args a = {
        .out = ws->heads + q, .q = ws->q + q, .stored = kv_layer_view(kv, from),
        .n_head = heads.n_head, .n_head_kv = heads.n_head_kv, .head_dim = heads.head_dim,
        .pos = row->pos, .n = row->n, .window = b->m->layers[layer].window,
        .scale = b->m->family->attn_unscaled ? 1.0f : 1.0f / sqrtf((float)heads.head_dim),
        .sinks = sinks,
    };
    attend(b->o->loops, b->o->team, &a, ws->thread_scratch, ws->thread_floats);
}

/* heads *= sigmoid(gate). The projected gate is neither normed nor rotated. */
static void gate_heads(void *ctx, int64_t begin, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const size_t dim = (size_t)b->m->hp.head_dim;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {      /* (token, head) */
        float *out = b->ws->heads + (size_t)i * dim;
        const float *gate = b->ws->q_gate + (2 * (size_t)i + 1) * dim;
        b->o->loops->gate(out, out, gate, (int)dim);
    }
}

/* Copies the queries out of query, gate, query, gate, ... */
static void copy_queries(void *ctx, int64_t begin, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const size_t dim = (size_t)b->m->hp.head_dim;
    (void)thread;
    for (size_t i = (size_t)begin; i < (size_t)end; i++)
        memcpy(b->ws->q + i * dim, b->ws->q_gate + 2 * i * dim, dim * sizeof *b->ws->q);
}

/* Norms each head, or with `whole` all heads of a token together. */
static void norm_heads(const host_batch *b, float *x, const float *gain, int n_head, int head_dim,
                       bool whole)
{
    const int dim = head_dim * (whole ? n_head : 1), n = b->n * (whole ? 1 : n_head);
    ops_rmsnorm(b->o, x, x, gain, n, dim, (size_t)dim, b->m->hp.rms_eps);
}

/* Queries, keys and values before rotation; only queries if an earlier layer has the keys. */
static void project(host_batch *b, int l, attn_shape heads)
{
    const layer_weights *w = &b->w->layers[l];
    const model_family *f = b->m->family;
    const size_t dim = (size_t)heads.head_dim, n_q = (size_t)b->n * (size_t)heads.n_head;
    const size_t n_kv = (size_t)b->n * (size_t)heads.n_head_kv;
    workspace *ws = b->ws;
    const product projections[] = { { f->attn_gated ? ws->q_gate : ws->q, &w->attn.q },
                                    { ws->k, &w->attn.k }, { ws->v, &w->attn.v } };

    const bool shared = b->m->layers[l].kv_back > 0;
    ops_matmuls(b->o, projections, shared ? 1 : w->attn.v.data ? 3 : 2, &ws->hx);
    if (f->attn_gated)
        pool_run(b->o->team, (int64_t)n_q, pool_grain((int64_t)dim), copy_queries, b);
    if (w->attn.q_norm)
        norm_heads(b, ws->q, w->attn.q_norm, heads.n_head, heads.head_dim, f->attn_norm_whole);
    if (shared) return;
    if (!w->attn.v.data) memcpy(ws->v, ws->k, n_kv * dim * sizeof *ws->v);
    if (w->attn.k_norm)
        norm_heads(b, ws->k, w->attn.k_norm, heads.n_head_kv, heads.head_dim, f->attn_norm_whole);
    if (f->attn_norm_values) norm_heads(b, ws->v, NULL, heads.n_head_kv, heads.head_dim, false);
}

void mix_attention(host_batch *b, int l)
{
    const layer_weights *w = &b->w->layers[l];
    const attn_shape heads = layer_attn(&b->m->hp, &b->m->layers[l]);
    const bool windowed = b->m->layers[l].window > 0;
    workspace *ws = b->ws;

    project(b, l, heads);
    rotate(b, ws->q, heads.n_head, heads, windowed);
    if (b->m->layers[l].kv_back == 0) rotate(b, ws->k, heads.n_head_kv, heads, windowed);
    for (int i = 0; i < b->n_row; i++)
        store_and_attend(b, &b->rows[i], l, heads, w->attn.sinks);
    if (b->m->family->attn_gated)
        pool_run(b->o->team, b->n * heads.n_head, pool_grain(16 * heads.head_dim), gate_heads, b);
    acts_set(&ws->hx, ws->heads, b->n, heads.n_head * heads.head_dim);
    ops_matmul(b->o, ws->y, &w->attn.out, &ws->hx);
}
