/* forward_tiered.c - the token loop.
 *
 * Every step below is one line of the loop in the header. Here dense weights are in the mapped file
 * and one lane computes all experts; what other places add is another lane and another way to
 * resolve, not another loop. The sum over experts is taken here, from one vector per chosen expert,
 * in the router's order: where a vector came from cannot show. */
#include "engine/forward_tiered.h"

#include <math.h>

#include "moe/router.h"

/* ---- mix ------------------------------------------------------------------------------------- */

static void mix(batch *p, const recipe *r, int l)
{
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    ops_rmsnorm(p->o, ws->h, ws->x, p->w->layers[l].attn_norm, p->n, hp->n_embd,
                (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, p->n, hp->n_embd);
    r->mix(p, l);
    ops_add(p->o, ws->x, ws->y, p->n, hp->n_embd);
}

/* ---- route ----------------------------------------------------------------------------------- */

static void select_experts(void *ctx, int64_t begin, int64_t end, int thread)
{
    const batch *p = ctx;
    const workspace *ws = p->ws;
    const int k = p->m->hp.n_expert_used, n = p->m->hp.n_expert;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        router_select(ws->ids + t * k, ws->gates + t * k, ws->router + t * n, n, k);
}

static void route(batch *p, int l)
{
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    ops_rmsnorm(p->o, ws->h, ws->x, p->w->layers[l].post_attn_norm, p->n, hp->n_embd,
                (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, p->n, hp->n_embd);
    ops_matmul(p->o, ws->router, &p->w->layers[l].router, &ws->hx);
    pool_run(p->o->team, p->n, pool_grain((int64_t)hp->n_expert * hp->n_expert_used),
             select_experts, p);
}

/* ---- resolve --------------------------------------------------------------------------------- */

/* The cold lane takes every expert. */
static expert_job resolve(batch *p, const recipe *r, int l)
{
    workspace *ws = p->ws;
    worklist_fill(ws->work, ws->ids, p->n, p->m->hp.n_expert_used);
    return (expert_job){
        .bank = p->w->layers[l].experts, .act = r->act, .x = &ws->hx, .work = ws->work,
        .items = ws->work->items, .n_item = ws->work->n_item, .y = ws->slots, .layer = l,
    };
}

/* ---- the shared expert ----------------------------------------------------------------------- */

static void activate_shared(void *ctx, int64_t first, int64_t end, int thread)
{
    const batch *p = ctx;
    const int n_ff = p->m->hp.n_ff_shared;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        float *gate = p->ws->shared_gate + (size_t)t * (size_t)n_ff;
        p->o->loops->swiglu(gate, gate, p->ws->shared_up + (size_t)t * (size_t)n_ff, n_ff);
    }
}

static void shared_expert(batch *p, int l)
{
    const layer_weights *w = &p->w->layers[l];
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    const product first[] = { { ws->shared_gate, &w->shared_gate },
                              { ws->shared_up, &w->shared_up },
                              { ws->shared_sigma, &w->shared_gate_inp } };
    if (hp->n_ff_shared == 0) return;
    ops_matmuls(p->o, first, ARRAY_LEN(first), &ws->hx);
    pool_run(p->o->team, p->n, pool_grain(16 * (int64_t)hp->n_ff_shared), activate_shared, p);
    acts_set(&ws->shared_x, ws->shared_gate, p->n, hp->n_ff_shared);
    ops_matmul(p->o, ws->shared_y, &w->shared_down, &ws->shared_x);
}

/* ---- join ------------------------------------------------------------------------------------ */

static void join_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const batch *p = ctx;
    const workspace *ws = p->ws;
    const int k = p->m->hp.n_expert_used, n_embd = p->m->hp.n_embd;
    const bool shared = p->m->hp.n_ff_shared > 0;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const size_t at = (size_t)t * (size_t)n_embd;
        p->o->loops->join(ws->x + at, ws->slots + (size_t)k * at, ws->gates + t * k, k,
                          shared ? ws->shared_y + at : NULL,
                          shared ? sigmoid_f32(ws->shared_sigma[t]) : 0.0f, n_embd);
    }
}

static void join(batch *p)
{
    pool_run(p->o->team, p->n, pool_grain((int64_t)p->m->hp.n_expert_used * p->m->hp.n_embd),
             join_tokens, p);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void begin(batch *p)
{
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    ops_embed(p->o, ws->x, &p->w->embed, p->ids, p->n);
    weights_forget_rows(p->w, p->pos, p->n);
    for (int i = 0; i < p->rope->n_table; i++)
        rope_table(ws->rope_cos[i], ws->rope_sin[i], p->rope->freq[i], p->rope->magnitude[i],
                   hp->rope_dim, p->pos, p->n);
}

int forward_tiered(batch *p, const recipe *r, session_watch *watch, void *ctx, double before,
                   int total, err_ctx *err)
{
    const int n_layer = p->m->hp.n_layer;
    begin(p);
    for (int l = 0; l < n_layer; l++) {
        mix(p, r, l);
        route(p, l);
        const expert_job job = resolve(p, r, l);
        const int rc = experts_cpu_run(p->experts, &job, err);
        if (rc < 0) return err_prefix(err, rc, "layer %d", l);
        shared_expert(p, l);
        join(p);
        if (watch && !watch(ctx, before + (double)p->n * (l + 1) / n_layer, total))
            return err_set(err, ERR_STOPPED, "stopped behind layer %d of %d", l + 1, n_layer);
    }
    return 0;
}

void forward_logits(batch *p, float *logits, int n_row)
{
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    const float *x = ws->x + (size_t)(p->n - n_row) * (size_t)hp->n_embd;
    if (n_row == 0) return;
    ops_rmsnorm(p->o, ws->h, x, p->w->out_norm, n_row, hp->n_embd, (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, n_row, hp->n_embd);
    ops_matmul(p->o, logits, &p->w->head, &ws->hx);
}

/* ---- steps that both architectures share ----------------------------------------------------- */

typedef struct rotate_args {
    const batch *p;
    float *x;
    int n_head;
    size_t stride;
    const float *cosine, *sine;
} rotate_args;

static void rotate_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const rotate_args *a = ctx;
    const int dim = a->p->m->hp.rope_dim;
    const size_t half = (size_t)dim / 2;
    (void)thread;
    for (size_t t = (size_t)begin; t < (size_t)end; t++)
        for (size_t h = 0; h < (size_t)a->n_head; h++)
            a->p->o->loops->rotate(a->x + (t * (size_t)a->n_head + h) * a->stride,
                                   a->cosine + t * half, a->sine + t * half, dim);
}

void batch_rotate(const batch *p, float *x, int n_head, size_t stride, bool windowed)
{
    const int table = windowed && p->rope->n_table > 1;
    rotate_args a = { p, x, n_head, stride, p->ws->rope_cos[table], p->ws->rope_sin[table] };
    pool_run(p->o->team, p->n, pool_grain((int64_t)n_head * p->m->hp.rope_dim), rotate_tokens, &a);
}

void batch_attend(batch *p, int layer, const float *sinks)
{
    const model_hparams *hp = &p->m->hp;
    workspace *ws = p->ws;
    kv_store *cache = state_kv(p->st);
    const attend_args a = {
        .out = ws->heads, .q = ws->q, .cache = cache, .layer = layer, .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv, .head_dim = hp->head_dim, .pos = p->pos, .n = p->n,
        .window = p->m->layers[layer].window, .scale = 1.0f / sqrtf((float)hp->head_dim),
        .sinks = sinks,
    };
    kv_write(cache, layer, p->pos, p->n, ws->k, ws->v);
    attend(p->o->loops, p->o->team, &a, ws->thread_scratch, ws->thread_floats);
}
