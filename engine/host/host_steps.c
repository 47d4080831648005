/* host_steps.c - mix, route, experts and join on the CPU.
 *
 * Dense weights are views into the mapped file. The store provides the weights of experts; all
 * chosen experts are computed on the CPU. The sum over experts adds one vector for each, in the
 * router's order, as on the GPU. */
#include "engine/host/host_steps.h"

#include <string.h>

#include "engine/engine_internal.h"
#include "engine/host/experts_cpu.h"
#include "engine/host/host_batch.h"
#include "moe/router.h"

struct host_steps {
    layer_steps table;
    host_batch b;                        /* the batch under way */
    host_batch outer;                    /* the one that is set aside */
    workspace *own, *inner;              /* for chunks; for inner batches, or NULL */
    experts_cpu *experts;
    usage_profile *usage;                /* or NULL */
    float *logits;                       /* [n_vocab], of a next-token block; or NULL */
    experts_read read;
};

/* ---- begin ----------------------------------------------------------------------------------- */

static void take_batch(host_steps *s, const batch *b)
{
    const rope_tables *rope = s->b.rope;
    workspace *ws = s->b.ws;
    s->b.n = b->n;
    s->b.rows = b->rows;
    s->b.n_row = b->n_row;
    s->b.keep = b->keep;
    s->b.of_mtp = b->hidden != NULL;
    s->b.is_pass = b->is_pass;
    for (const batch_row *row = b->rows; row < b->rows + b->n_row; row++)
        for (int i = 0; i < rope->n_table; i++) {
            const size_t at = (size_t)row->first * (size_t)(rope->dim[i] / 2);
            rope_table(ws->rope_cos[i] + at, ws->rope_sin[i] + at, rope->freq[i],
                       rope->magnitude[i], rope->dim[i], row->pos, row->n);
        }
}

/* x = eh_proj [norm(embedding); norm(norm(hidden))] */
static void join_hidden(host_steps *s, const batch *b)
{
    const model_hparams *hp = &s->b.m->hp;
    const weights *w = s->b.w;
    const mtp_matrices *mtp = &w->mtp;
    workspace *ws = s->b.ws;
    const size_t n_embd = (size_t)hp->n_embd;
    ops_embed(s->b.o, ws->x, mtp->embed.data ? &mtp->embed : &w->embed, b->ids, b->n);
    ops_rmsnorm(s->b.o, ws->x, ws->x, mtp->enorm, b->n, hp->n_embd, n_embd, hp->rms_eps);
    ops_rmsnorm(s->b.o, ws->y, b->hidden, b->chained ? mtp->head_norm : w->out_norm, b->n,
                hp->n_embd, n_embd, hp->rms_eps);
    ops_rmsnorm(s->b.o, ws->y, ws->y, mtp->hnorm, b->n, hp->n_embd, n_embd, hp->rms_eps);
    for (size_t t = 0; t < (size_t)b->n; t++) {
        memcpy(ws->joined + 2 * t * n_embd, ws->x + t * n_embd, n_embd * sizeof *ws->x);
        memcpy(ws->joined + (2 * t + 1) * n_embd, ws->y + t * n_embd, n_embd * sizeof *ws->y);
    }
    acts_set(&ws->hx, ws->joined, b->n, 2 * hp->n_embd);
    ops_matmul(s->b.o, ws->x, &mtp->eh_proj, &ws->hx);
}

static int begin(void *self, const batch *b, err_ctx *err)
{
    host_steps *s = self;
    (void)err;
    if (b->hidden) join_hidden(s, b);
    else ops_embed(s->b.o, s->b.ws->x, &s->b.w->embed, b->ids, b->n);
    for (int i = 0; i < b->n_row; i++) weights_forget_rows(s->b.w, b->rows[i].pos, b->rows[i].n);
    take_batch(s, b);
    return 0;
}

static int resume(void *self, const batch *b, const float *x, err_ctx *err)
{
    host_steps *s = self;
    (void)err;
    memcpy(s->b.ws->x, x, (size_t)b->n * (size_t)s->b.m->hp.n_embd * sizeof *x);
    take_batch(s, b);
    return 0;
}

/* Sets hx to the residual with this norm, unless it is up to date. */
static void set_hx(host_batch *b, const float *norm)
{
    workspace *ws = b->ws;
    const int n_embd = b->m->hp.n_embd;
    if (b->hx_norm == norm) return;
    ops_rmsnorm(b->o, ws->h, ws->x, norm, b->n, n_embd, (size_t)n_embd, b->m->hp.rms_eps);
    acts_set(&ws->hx, ws->h, b->n, n_embd);
    b->hx_norm = norm;
}

/* ---- mix ------------------------------------------------------------------------------------- */

static void mix(void *self, int l)
{
    host_batch *b = &((host_steps *)self)->b;
    const model_hparams *hp = &b->m->hp;
    const float *after = b->w->layers[l].mix_out_norm;
    workspace *ws = b->ws;
    b->hx_norm = NULL;
    set_hx(b, b->w->layers[l].attn_norm);
    if (b->m->layers[l].mixer == MIX_ATTENTION) mix_attention(b, l);
    else mix_deltanet(b, l);
    if (after)
        ops_rmsnorm(b->o, ws->y, ws->y, after, b->n, hp->n_embd, (size_t)hp->n_embd, hp->rms_eps);
    ops_add(b->o, ws->x, ws->y, b->n, hp->n_embd);
    b->hx_norm = NULL;
}

/* ---- route ----------------------------------------------------------------------------------- */

typedef struct select_args {
    const host_batch *b;
    router_rule rule;
} select_args;

static void select_experts(void *ctx, int64_t first, int64_t end, int thread)
{
    const select_args *a = ctx;
    const workspace *ws = a->b->ws;
    const int k = a->b->m->hp.n_expert_used, n = a->b->m->hp.n_expert;
    (void)thread;
    for (int64_t t = first; t < end; t++)
        router_select(ws->ids + t * k, ws->gates + t * k, ws->router + t * n, n, k, &a->rule);
}

static void route(void *self, int l)
{
    host_steps *s = self;
    host_batch *b = &s->b;
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    if (b->w->layers[l].experts->n_expert == 0) return;
    set_hx(b, b->w->layers[l].router_norm);
    ops_matmul(b->o, ws->router, &b->w->layers[l].router, &ws->hx);
    select_args a = { b, hp->router };
    a.rule.bias = b->w->layers[l].choice_bias;
    pool_run(b->o->team, b->n, pool_grain((int64_t)hp->n_expert * hp->n_expert_used),
             select_experts, &a);
    if (!s->usage || b->of_mtp) return;
    for (int i = 0; i < b->n * hp->n_expert_used; i++)
        usage_profile_count(s->usage, l, ws->ids[i], EXPERT_EITHER, 1);
    usage_profile_call(s->usage, l, 0, 0, 0, 0);
}

/* ---- experts --------------------------------------------------------------------------------- */

static void activate_shared(void *ctx, int64_t first, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const int n_ff = b->n_ff;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        float *gate = b->ws->shared_gate + (size_t)t * (size_t)n_ff;
        ops_activate(b->o, b->m->family->act, gate, b->ws->shared_up + (size_t)t * (size_t)n_ff,
                     n_ff);
    }
}

static void shared_expert(host_batch *b, int l)
{
    const layer_weights *w = &b->w->layers[l];
    workspace *ws = b->ws;
    const product first[] = { { ws->shared_gate, &w->shared_gate },
                              { ws->shared_up, &w->shared_up },
                              { ws->shared_sigma, &w->shared_gate_inp } };
    if (!w->shared_gate.data) return;
    set_hx(b, w->post_attn_norm);
    b->n_ff = w->shared_gate.rows;
    ops_matmuls(b->o, first, w->shared_gate_inp.data ? 3 : 2, &ws->hx);
    pool_run(b->o->team, b->n, pool_grain(16 * (int64_t)b->n_ff), activate_shared, b);
    acts_set(&ws->shared_x, ws->shared_gate, b->n, b->n_ff);
    ops_matmul(b->o, ws->shared_y, &w->shared_down, &ws->shared_x);
}

static int routed_experts(host_steps *s, int l, err_ctx *err)
{
    workspace *ws = s->b.ws;
    if (s->b.w->layers[l].experts->n_expert == 0) return 0;
    set_hx(&s->b, s->b.w->layers[l].experts_norm);
    worklist_fill(ws->work, ws->ids, s->b.n, s->b.m->hp.n_expert_used);
    const expert_job job = {
        .bank = s->b.w->layers[l].experts, .act = s->b.m->family->act, .x = &ws->hx,
        .work = ws->work, .items = ws->work->items, .n_item = ws->work->n_item, .y = ws->slots,
        .layer = l, .mapped = s->b.of_mtp,
    };
    if (s->b.is_pass) {
        s->read.n += (uint64_t)job.n_item;
        s->read.bytes += (uint64_t)job.n_item * expert_slabs_bytes(job.bank);
    }
    const int rc = experts_cpu_run(s->experts, &job, err);
    return rc < 0 ? err_prefix(err, rc, "layer %d", l) : 0;
}

static int experts_local(void *self, int l, err_ctx *err)
{
    host_steps *s = self;
    const int rc = routed_experts(s, l, err);
    if (rc == 0) shared_expert(&s->b, l);
    return rc;
}

/* ---- join ------------------------------------------------------------------------------------ */

typedef struct join_args {
    const host_batch *b;
    const layer_weights *w;
} join_args;

/* Norms the experts' sum, the shared network's vector, and then the sum of both. */
static void join_normed(const join_args *a, int64_t t, int k)
{
    const loops *f = a->b->o->loops;
    const workspace *ws = a->b->ws;
    const int n = a->b->m->hp.n_embd;
    const float eps = a->b->m->hp.rms_eps;
    const size_t row = (size_t)t * (size_t)n;
    float *y = ws->y + row, *shared = ws->shared_y + row;
    memset(y, 0, (size_t)n * sizeof *y);
    f->join(y, ws->slots + (size_t)k * row, ws->gates + t * k, k, NULL, 0.0f, n);
    f->rmsnorm(y, y, a->w->experts_out_norm, n, eps);
    f->rmsnorm(shared, shared, a->w->shared_out_norm, n, eps);
    f->add(y, shared, (size_t)n);
    f->rmsnorm(y, y, a->w->ffn_out_norm, n, eps);
    f->add(ws->x + row, y, (size_t)n);
}

static void join_plain(const join_args *a, int64_t t, int k)
{
    const workspace *ws = a->b->ws;
    const int n = a->b->m->hp.n_embd;
    const size_t row = (size_t)t * (size_t)n;
    const bool shared = a->w->shared_gate.data, gated = a->w->shared_gate_inp.data;
    a->b->o->loops->join(ws->x + row, ws->slots + (size_t)k * row, ws->gates + t * k, k,
                         shared ? ws->shared_y + row : NULL,
                         gated ? sigmoid_f32(ws->shared_sigma[t]) : 1.0f, n);
}

static void join_tokens(void *ctx, int64_t first, int64_t end, int thread)
{
    const join_args *a = ctx;
    const int n_embd = a->b->m->hp.n_embd;
    const int k = a->w->experts->n_expert > 0 ? a->b->m->hp.n_expert_used : 0;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        float *x = a->b->ws->x + (size_t)t * (size_t)n_embd;
        if (a->w->ffn_out_norm) join_normed(a, t, k);
        else join_plain(a, t, k);
        for (int c = 0; a->w->out_scale != 1.0f && c < n_embd; c++) x[c] *= a->w->out_scale;
    }
}

static void join(void *self, int l)
{
    host_batch *b = &((host_steps *)self)->b;
    join_args a = { b, &b->w->layers[l] };
    pool_run(b->o->team, b->n, pool_grain((int64_t)b->m->hp.n_expert_used * b->m->hp.n_embd),
             join_tokens, &a);
    b->hx_norm = NULL;
}

/* ---- the end --------------------------------------------------------------------------------- */

static int end(void *self, err_ctx *err)
{
    (void)self;
    (void)err;
    return 0;                            /* every step has finished when it returns */
}

static int copy_to_host(void *self, const float **x, err_ctx *err)
{
    (void)err;
    *x = ((host_steps *)self)->b.ws->x;
    return 0;
}

static int again(void *self, const batch_row *row, const kept_inputs *kept, int first, int end,
                 err_ctx *err)
{
    host_batch b = ((host_steps *)self)->b;
    (void)err;
    b.rows = row;
    b.n_row = 1;
    b.keep = kept;
    for (int l = first; l < end; l++)
        if (b.m->layers[l].mixer == MIX_DELTANET) mix_deltanet_again(&b, l);
    return 0;
}

static int logits(void *self, float *out, int first, int n_row, err_ctx *err)
{
    host_batch *b = &((host_steps *)self)->b;
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    const float *x = ws->x + (size_t)first * (size_t)hp->n_embd;
    const mtp_matrices *mtp = &b->w->mtp;
    const matrix *head = b->of_mtp && mtp->head.data ? &mtp->head : &b->w->head;
    const float *norm = b->of_mtp ? mtp->head_norm : b->w->out_norm;
    (void)err;
    if (n_row == 0) return 0;
    ops_rmsnorm(b->o, ws->h, x, norm, n_row, hp->n_embd, (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, n_row, hp->n_embd);
    ops_matmul(b->o, out, head, &ws->hx);
    if (hp->logit_cap > 0.0f) ops_soft_cap(b->o, out, (int64_t)n_row * hp->n_vocab, hp->logit_cap);
    return 0;
}

/* ---- the next-token block -------------------------------------------------------------------- */

static const float *vectors(void *self) { return ((host_steps *)self)->b.ws->x; }
static float *hidden(void *self) { return ((host_steps *)self)->b.ws->hidden; }

static void copy(void *self, float *to, const float *from, int n)
{
    const model *m = ((host_steps *)self)->b.m;
    memcpy(to, from, (size_t)n * (size_t)m->hp.n_embd * sizeof *to);
}

static int pick(void *self, int32_t *next, err_ctx *err)
{
    host_steps *s = self;
    const int rc = next ? logits(s, s->logits, s->b.n - 1, 1, err) : 0;
    if (next && rc == 0) *next = ops_largest(s->b.o, s->logits, s->b.m->hp.n_vocab);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t host_steps_bytes(const model *m, int n_thread, int chunk, int inner)
{
    const uint64_t more = inner > 0 ? workspace_bytes(m, n_thread, inner) : 0;
    const uint64_t logits = m->hp.uses_mtp ? (uint64_t)m->hp.n_vocab * sizeof(float) : 0;
    return size_plus(size_plus(workspace_bytes(m, n_thread, chunk), more),
                     experts_cpu_bytes(&m->hp, chunk * m->hp.n_expert_used) + logits);
}

void host_steps_inner_begin(host_steps *s)
{
    s->outer = s->b;
    s->b.ws = s->inner;
}

void host_steps_inner_end(host_steps *s) { s->b = s->outer; }

int host_steps_create(host_steps **out, const engine *e, int chunk, int inner, err_ctx *err)
{
    const model *m = e->m;
    const ops *o = &e->ops_table;
    host_steps *s = mem_zalloc(sizeof *s);
    int rc;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "steps on the CPU: %zu bytes", sizeof *s);
    s->table = (layer_steps){
        .self = s, .begin = begin, .resume = resume, .mix = mix, .route = route,
        .experts_local = experts_local, .join = join, .end = end, .copy_to_host = copy_to_host,
        .again = again, .logits = logits, .vectors = vectors, .hidden = hidden, .copy = copy,
        .pick = pick,
    };
    s->usage = e->usage;
    s->b = (host_batch){ .m = m, .w = e->w, .o = o, .rope = &e->rope };
    const int n_thread = pool_threads(o->team);
    if (m->hp.uses_mtp && !(s->logits = mem_array((size_t)m->hp.n_vocab, sizeof *s->logits))) {
        host_steps_free(s);
        return err_set(err, ERR_NOMEM, "logits of %d tokens", m->hp.n_vocab);
    }
    if ((rc = workspace_create(&s->own, m, n_thread, chunk, err)) < 0 ||
        (inner > 0 && (rc = workspace_create(&s->inner, m, n_thread, inner, err)) < 0) ||
        (rc = experts_cpu_create(&s->experts, o, &m->hp, e->store, e->ahead,
                                 chunk * m->hp.n_expert_used, err)) < 0) {
        host_steps_free(s);
        return rc;
    }
    s->b.ws = s->own;
    *out = s;
    return 0;
}

void host_steps_free(host_steps *s)
{
    if (!s) return;
    experts_cpu_free(s->experts);
    workspace_free(s->inner);
    workspace_free(s->own);
    mem_free(s->logits);
    mem_free(s);
}

experts_read host_steps_read(const host_steps *s) { return s->read; }

const layer_steps *host_steps_table(const host_steps *s) { return &s->table; }
