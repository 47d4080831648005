/* host_steps.c - mix, route, experts and join on the CPU.
 *
 * Dense weights are views into the mapped file. Every chosen expert is computed here; where its
 * weights come from is the store's business. The sum over experts is taken from one vector for each
 * chosen expert, in the router's order: where a vector came from makes no difference. */
#include "engine/host/host_steps.h"

#include <string.h>

#include "engine/host/host_batch.h"

struct host_steps {
    steps face;
    host_batch b;                        /* the batch under way; ws is ours */
    experts_cpu *experts;
    expert_profile *seen;                /* or NULL */
    routing_fn *routed;                  /* or NULL */
    void *routed_ctx;
    router_ahead *guesser;               /* for recall; both or neither are NULL */
    guess_recall *recall;
};

/* ---- begin ----------------------------------------------------------------------------------- */

static void take_batch(host_steps *s, const batch *b)
{
    const rope_tables *rope = s->b.rope;
    workspace *ws = s->b.ws;
    s->b.n = b->n;
    s->b.pos = b->pos;
    for (int i = 0; i < rope->n_table; i++)
        rope_table(ws->rope_cos[i], ws->rope_sin[i], rope->freq[i], rope->magnitude[i],
                   s->b.m->hp.rope_dim, b->pos, b->n);
}

static int begin(void *self, const batch *b, err_ctx *err)
{
    host_steps *s = self;
    (void)err;
    ops_embed(s->b.o, s->b.ws->x, &s->b.w->embed, b->ids, b->n);
    weights_forget_rows(s->b.w, b->pos, b->n);
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

/* ---- mix ------------------------------------------------------------------------------------- */

static void mix(void *self, int l)
{
    host_batch *b = &((host_steps *)self)->b;
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    ops_rmsnorm(b->o, ws->h, ws->x, b->w->layers[l].attn_norm, b->n, hp->n_embd,
                (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, b->n, hp->n_embd);
    if (b->m->layers[l].mixer == MIX_ATTENTION) mix_attention(b, l);
    else mix_deltanet(b, l);
    ops_add(b->o, ws->x, ws->y, b->n, hp->n_embd);
}

/* ---- route ----------------------------------------------------------------------------------- */

static void select_experts(void *ctx, int64_t first, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const workspace *ws = b->ws;
    const int k = b->m->hp.n_expert_used, n = b->m->hp.n_expert;
    (void)thread;
    for (int64_t t = first; t < end; t++)
        router_select(ws->ids + t * k, ws->gates + t * k, ws->router + t * n, n, k);
}

/* What was guessed for this layer is judged, and the next one's is guessed. */
static void follow_guesses(host_steps *s, int l)
{
    const int32_t *likely;
    if (s->b.n != 1) return;
    guess_recall_chosen(s->recall, l, s->b.ws->ids);
    if (router_ahead_guess(s->guesser, l, &s->b.ws->hx, &likely) > 0)
        guess_recall_guess(s->recall, l + 1, likely, 0);
}

static void route(void *self, int l)
{
    host_steps *s = self;
    host_batch *b = &s->b;
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    ops_rmsnorm(b->o, ws->h, ws->x, b->w->layers[l].post_attn_norm, b->n, hp->n_embd,
                (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, b->n, hp->n_embd);
    ops_matmul(b->o, ws->router, &b->w->layers[l].router, &ws->hx);
    pool_run(b->o->team, b->n, pool_grain((int64_t)hp->n_expert * hp->n_expert_used),
             select_experts, b);
    if (s->routed) s->routed(s->routed_ctx, l, b->pos, b->n, ws->ids, hp->n_expert_used);
    if (s->recall) follow_guesses(s, l);
    if (!s->seen) return;
    for (int i = 0; i < b->n * hp->n_expert_used; i++)
        expert_profile_count(s->seen, l, ws->ids[i], EXPERT_EITHER, 1);
    expert_profile_call(s->seen, l, 0, 0, 0, 0);
}

/* ---- experts --------------------------------------------------------------------------------- */

static void activate_shared(void *ctx, int64_t first, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const int n_ff = b->m->hp.n_ff_shared;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        float *gate = b->ws->shared_gate + (size_t)t * (size_t)n_ff;
        b->o->loops->swiglu(gate, gate, b->ws->shared_up + (size_t)t * (size_t)n_ff, n_ff);
    }
}

static void shared_expert(host_batch *b, int l)
{
    const layer_weights *w = &b->w->layers[l];
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    const product first[] = { { ws->shared_gate, &w->shared_gate },
                              { ws->shared_up, &w->shared_up },
                              { ws->shared_sigma, &w->shared_gate_inp } };
    if (hp->n_ff_shared == 0) return;
    ops_matmuls(b->o, first, ARRAY_LEN(first), &ws->hx);
    pool_run(b->o->team, b->n, pool_grain(16 * (int64_t)hp->n_ff_shared), activate_shared, b);
    acts_set(&ws->shared_x, ws->shared_gate, b->n, hp->n_ff_shared);
    ops_matmul(b->o, ws->shared_y, &w->shared_down, &ws->shared_x);
}

static int experts_here(void *self, int l, err_ctx *err)
{
    host_steps *s = self;
    workspace *ws = s->b.ws;
    worklist_fill(ws->work, ws->ids, s->b.n, s->b.m->hp.n_expert_used);
    const expert_job job = {
        .bank = s->b.w->layers[l].experts, .act = s->b.m->family->act, .x = &ws->hx,
        .work = ws->work, .items = ws->work->items, .n_item = ws->work->n_item, .y = ws->slots,
        .layer = l,
    };
    const int rc = experts_cpu_run(s->experts, &job, err);
    if (rc < 0) return err_prefix(err, rc, "layer %d", l);
    shared_expert(&s->b, l);
    return 0;
}

/* ---- join ------------------------------------------------------------------------------------ */

static void join_tokens(void *ctx, int64_t first, int64_t end, int thread)
{
    const host_batch *b = ctx;
    const workspace *ws = b->ws;
    const int k = b->m->hp.n_expert_used, n_embd = b->m->hp.n_embd;
    const bool shared = b->m->hp.n_ff_shared > 0;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const size_t at = (size_t)t * (size_t)n_embd;
        b->o->loops->join(ws->x + at, ws->slots + (size_t)k * at, ws->gates + t * k, k,
                          shared ? ws->shared_y + at : NULL,
                          shared ? sigmoid_f32(ws->shared_sigma[t]) : 0.0f, n_embd);
    }
}

static void join(void *self, int l)
{
    host_batch *b = &((host_steps *)self)->b;
    (void)l;
    pool_run(b->o->team, b->n, pool_grain((int64_t)b->m->hp.n_expert_used * b->m->hp.n_embd),
             join_tokens, b);
}

/* ---- the end --------------------------------------------------------------------------------- */

static int end(void *self, err_ctx *err)
{
    (void)self;
    (void)err;
    return 0;                            /* every step has finished when it returns */
}

static int hand_over(void *self, const float **x, err_ctx *err)
{
    (void)err;
    *x = ((host_steps *)self)->b.ws->x;
    return 0;
}

static int logits(void *self, float *to, int n_row, err_ctx *err)
{
    host_batch *b = &((host_steps *)self)->b;
    const model_hparams *hp = &b->m->hp;
    workspace *ws = b->ws;
    const float *x = ws->x + (size_t)(b->n - n_row) * (size_t)hp->n_embd;
    (void)err;
    if (n_row == 0) return 0;
    ops_rmsnorm(b->o, ws->h, x, b->w->out_norm, n_row, hp->n_embd, (size_t)hp->n_embd, hp->rms_eps);
    acts_set(&ws->hx, ws->h, n_row, hp->n_embd);
    ops_matmul(b->o, to, &b->w->head, &ws->hx);
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t host_steps_bytes(const model *m, int n_thread, int chunk)
{
    uint64_t sum;
    if (!size_add(&sum, workspace_bytes(m, n_thread, chunk),
                  experts_cpu_bytes(&m->hp, chunk * m->hp.n_expert_used)))
        return UINT64_MAX;
    return sum;
}

int host_steps_create(host_steps **out, const host_parts *parts, int chunk, err_ctx *err)
{
    const model *m = parts->m;
    host_steps *s = mem_zalloc(sizeof *s);
    int rc;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "steps on the CPU: %zu bytes", sizeof *s);
    s->face = (steps){
        .self = s, .begin = begin, .resume = resume, .mix = mix, .route = route,
        .experts_here = experts_here, .join = join, .end = end, .hand_over = hand_over,
        .logits = logits,
    };
    s->seen = parts->seen;
    s->b = (host_batch){ .m = m, .w = parts->w, .o = parts->o, .rope = parts->rope };
    if ((rc = workspace_create(&s->b.ws, m, pool_threads(parts->o->team), chunk, err)) < 0 ||
        (rc = experts_cpu_create(&s->experts, parts->o, &m->hp, parts->store, parts->ahead,
                                 chunk * m->hp.n_expert_used, err)) < 0) {
        host_steps_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void host_steps_free(host_steps *s)
{
    if (!s) return;
    experts_cpu_free(s->experts);
    workspace_free(s->b.ws);
    mem_free(s);
}

void host_steps_turn_to(host_steps *s, state *st) { s->b.st = st; }

const steps *host_steps_face(const host_steps *s) { return &s->face; }

void host_steps_watch_routing(host_steps *s, routing_fn *fn, void *ctx)
{
    s->routed = fn;
    s->routed_ctx = ctx;
}

void host_steps_watch_guesses(host_steps *s, router_ahead *by, guess_recall *to)
{
    s->guesser = by;
    s->recall = to;
}
