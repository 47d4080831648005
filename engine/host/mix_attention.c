/* mix_attention.c - softmax attention of a batch on the CPU.
 *
 * What families do differently is in the weights and in the family's row: norms of queries and
 * keys, sinks, windows, a gate beside each query. The loops over numbers are cpu/attention.h's. */
#include "engine/host/host_batch.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/attention.h"

typedef struct rotate_args {
    const host_batch *b;
    float *x;
    int n_head;
    size_t stride;
    const float *cosine, *sine;
} rotate_args;

static void rotate_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const rotate_args *a = ctx;
    const int dim = a->b->m->hp.rope_dim;
    const size_t half = (size_t)dim / 2;
    (void)thread;
    for (size_t t = (size_t)begin; t < (size_t)end; t++)
        for (size_t h = 0; h < (size_t)a->n_head; h++)
            a->b->o->loops->rotate(a->x + (t * (size_t)a->n_head + h) * a->stride,
                                   a->cosine + t * half, a->sine + t * half, dim);
}

static void rotate(const host_batch *b, float *x, int n_head, size_t stride, bool windowed)
{
    const int table = windowed && b->rope->n_table > 1;
    rotate_args a = { b, x, n_head, stride, b->ws->rope_cos[table], b->ws->rope_sin[table] };
    pool_run(b->o->team, b->n, pool_grain((int64_t)n_head * b->m->hp.rope_dim), rotate_tokens, &a);
}

static void store_and_attend(host_batch *b, int layer, const float *sinks)
{
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    kv_store *cache = state_kv(b->st);
    kv_write(cache, layer, b->pos, b->n, ws->k, ws->v);
    const attend_args a = {
        .out = ws->heads, .q = ws->q, .stored = kv_layer_view(cache, layer), .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv, .head_dim = hp->head_dim, .pos = b->pos, .n = b->n,
        .window = b->m->layers[layer].window, .scale = 1.0f / sqrtf((float)hp->head_dim),
        .sinks = sinks,
    };
    attend(b->o->loops, b->o->team, &a, ws->thread_scratch, ws->thread_floats);
}

/* heads *= sigmoid(gate), the gate as it was projected: neither normed nor rotated. */
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

void mix_attention(host_batch *b, int l)
{
    const layer_weights *w = &b->w->layers[l];
    const model_hparams *hp = &b->m->hp;
    const bool gated = b->m->family->attn_gated, windowed = b->m->layers[l].window > 0;
    const size_t dim = (size_t)hp->head_dim;
    const int n_q = b->n * hp->n_head, n_k = b->n * hp->n_head_kv;
    workspace *ws = b->ws;
    const product projections[] = { { gated ? ws->q_gate : ws->q, &w->attn.q },
                                    { ws->k, &w->attn.k }, { ws->v, &w->attn.v } };

    ops_matmuls(b->o, projections, ARRAY_LEN(projections), &ws->hx);
    for (size_t i = 0; gated && i < (size_t)n_q; i++)    /* query, gate, query, gate, ... */
        memcpy(ws->q + i * dim, ws->q_gate + 2 * i * dim, dim * sizeof *ws->q);
    if (w->attn.q_norm)
        ops_rmsnorm(b->o, ws->q, ws->q, w->attn.q_norm, n_q, hp->head_dim, dim, hp->rms_eps);
    if (w->attn.k_norm)
        ops_rmsnorm(b->o, ws->k, ws->k, w->attn.k_norm, n_k, hp->head_dim, dim, hp->rms_eps);
    rotate(b, ws->q, hp->n_head, dim, windowed);
    rotate(b, ws->k, hp->n_head_kv, dim, windowed);
    store_and_attend(b, l, w->attn.sinks);
    if (gated) pool_run(b->o->team, n_q, pool_grain(16 * hp->head_dim), gate_heads, b);
    acts_set(&ws->hx, ws->heads, b->n, hp->n_head * hp->head_dim);
    ops_matmul(b->o, ws->y, &w->attn.out, &ws->hx);
}
