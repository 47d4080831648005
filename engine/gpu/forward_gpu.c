/* forward_gpu.c - one batch through all layers on the GPU.
 *
 * Written as operations of cuda/gpu.h, which go into a stream: nothing here waits but for results.
 * Operations choose their kernels by the number of tokens; the order of steps is the same for one
 * and for thousands. Buffers are laid out as in workspace.c: one walk counts and places. */
#include "engine/gpu/forward_gpu.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/gpu/bank_stream.h"
#include "tiers/fault.h"

enum {
    LOGIT_ROWS = GPU_FEW,                /* computed together */
    MAX_PAIRS = 8192                     /* candidates for a sampler */
};

typedef struct buffers {
    float *x;                            /* [n, n_embd] the residual stream */
    float *rows;                         /* [n, widest] a product's finished input */
    void *halves;                        /* the same in 16 bits */
    void *blocks;                        /* the same of few tokens in int8 */
    float *rope_cos[2], *rope_sin[2];
    float *q, *k, *v, *heads;            /* attention; q with its gates */
    float *raw, *mixed, *z, *ba, *delta; /* DeltaNet */
    float *router, *gates, *sigma;       /* experts */
    int32_t *chosen;
    float *sums;                         /* [n, n_embd] of experts that the host computed */
    void *experts;
    float *partial;                      /* attention over long stores */
    float *logits;                       /* [LOGIT_ROWS, n_vocab] */
    int32_t *ids;                        /* [n] */
    gpu_cursor *at;
    uint32_t *counters;                  /* [1 + GPU_FEW * n_head]: pick, attention */
    uint32_t *best;
    double *freq[2];
    float *bias, *work;                  /* sampling: [n_vocab], and rounded up to blocks */
    double *steps;
    uint32_t *top;
} buffers;

/* Page-locked: what the device tells the host, and the other way round. */
typedef struct mailbox {
    uint64_t seen;                       /* what was picked, with its stamp */
    gpu_cursor cursor;                   /* on its way to the device */
    uint32_t count;                      /* candidates */
    float *maxima;                       /* [blocks] */
    double *masses;
    gpu_pair *pairs;                     /* [MAX_PAIRS] */
    int32_t *penalised;                  /* [n_vocab, 2]: id, how often */
} mailbox;

/* A prompt's layer of experts on its way to the host and back; page-locked. */
typedef struct errand {
    float *x, *sums;                     /* [n, n_embd] */
    float *gates;                        /* [n, k] */
    int32_t *ids;
} errand;

/* One token and the pick behind it. */
typedef struct next_token {
    gpu_recording *r;
    int last;                            /* position up to which it is good; 0: not yet made */
} next_token;

struct forward_gpu {
    gpu *g;
    const model *m;
    const weights_gpu *w;
    forward_tiers tiers;
    bank_stream *banks;                  /* NULL: they never pass through VRAM */
    bool streaming;                      /* those of the batch under way do */
    bool recording;
    forward_watch *watch;                /* of the batch under way, or NULL */
    void *watch_ctx;
    errand errand;
    const rope_tables *rope;
    state *st;
    int chunk;
    buffers b;
    void *arena;
    mailbox *mail;
    uint64_t bias_version;               /* of the biases there; 0: none */
    gpu_shortlist list;                  /* of the sampling under way */
    gpu_cursor known;                    /* what the device's cursor says; token -1: not known */
    next_token next[2];                  /* [1]: with slabs that are fetched */
    int n;                               /* tokens of the batch under way */
};

/* ---- buffers --------------------------------------------------------------------------------- */

typedef struct layout {
    uint8_t *arena;                      /* NULL while counting */
    uint64_t used;
} layout;

static void *place(layout *a, uint64_t n, uint64_t width, uint64_t bytes)
{
    void *p = a->arena ? a->arena + a->used : NULL;
    a->used += size_align(n * width * bytes, 256);
    return p;
}

static float *floats(layout *a, int n, int64_t width)
{
    return place(a, (uint64_t)n, (uint64_t)width, sizeof(float));
}

static int blocks_of(const model_hparams *hp)
{
    return (hp->n_vocab + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK;
}

static int channels_of(const model_hparams *hp)
{
    return (2 * hp->ssm_n_k_head + hp->ssm_n_v_head) * hp->ssm_head_dim;
}

static void place_all(buffers *b, layout *a, const gpu *g, const model *m, int n)
{
    const model_hparams *hp = &m->hp;
    const int heads = hp->n_head * hp->head_dim, kv = hp->n_head_kv * hp->head_dim;
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    const int widest = max_int(hp->n_embd, max_int(heads, values)), k = hp->n_expert_used;

    b->x = floats(a, n, hp->n_embd);
    b->rows = floats(a, n, widest);
    b->halves = place(a, (uint64_t)n, (uint64_t)widest, 2);
    b->blocks = place(a, GPU_FEW, gpu_blocks_bytes(hp->n_embd), 1);
    for (int i = 0; i < 2; i++) {
        b->rope_cos[i] = floats(a, n, hp->rope_dim / 2);
        b->rope_sin[i] = floats(a, n, hp->rope_dim / 2);
        b->freq[i] = place(a, (uint64_t)hp->rope_dim / 2, 1, sizeof(double));
    }
    const uint64_t mixers = a->used;     /* a layer has one of the two: they share their place */
    b->q = floats(a, n, (hp->arch == ARCH_QWEN3NEXT ? 2 : 1) * (int64_t)heads);
    b->k = floats(a, n, kv);
    b->v = floats(a, n, kv);
    b->heads = floats(a, n, heads);
    b->partial = floats(a, 1, (int64_t)gpu_attention_scratch(g, hp->n_head, hp->head_dim));
    const uint64_t attention = a->used;
    if (hp->ssm_n_v_head > 0) {
        a->used = mixers;
        b->raw = floats(a, n, channels_of(hp));
        b->mixed = floats(a, n, channels_of(hp));
        b->z = floats(a, n, values);
        b->ba = floats(a, n, 2 * hp->ssm_n_v_head);
        b->delta = floats(a, n, values);
        if (a->used < attention) a->used = attention;
    }
    b->router = floats(a, n, hp->n_expert);
    b->gates = floats(a, n, k);
    b->sigma = floats(a, n, 1);
    b->chosen = place(a, (uint64_t)n, (uint64_t)k, sizeof *b->chosen);
    b->sums = floats(a, n, hp->n_embd);
    b->experts = place(a, gpu_expert_scratch(g, n, k, hp->n_expert,
                                             max_int(hp->n_ff_expert, hp->n_ff_shared),
                                             hp->n_embd), 1, 1);
    b->logits = floats(a, LOGIT_ROWS, hp->n_vocab);
    b->ids = place(a, (uint64_t)n, 1, sizeof *b->ids);
    b->at = place(a, 1, 1, sizeof *b->at);
    b->counters = place(a, 1 + GPU_FEW * (uint64_t)hp->n_head, 1, sizeof *b->counters);
    b->best = place(a, 2048, 1, sizeof *b->best);
    b->bias = floats(a, 1, hp->n_vocab);
    b->work = floats(a, blocks_of(hp), SAMPLER_BLOCK);
    b->steps = place(a, SAMPLER_STEPS, 1, sizeof *b->steps);
    b->top = place(a, 1, 1, sizeof *b->top);
}

uint64_t forward_gpu_bytes(const gpu *g, const model *m, int chunk)
{
    buffers b = { 0 };
    layout a = { 0 };
    place_all(&b, &a, g, m, chunk);
    return a.used;
}

/* Where parts of the mailbox begin. */
typedef struct mail_layout { size_t masses, pairs, maxima, penalised, bytes; } mail_layout;

static mail_layout mail_of(const model_hparams *hp)
{
    const size_t n_block = (size_t)blocks_of(hp);
    mail_layout a = { .masses = (size_t)size_align(sizeof(mailbox), 64) };
    a.pairs = a.masses + n_block * sizeof(double);
    a.maxima = a.pairs + MAX_PAIRS * sizeof(gpu_pair);
    a.penalised = a.maxima + n_block * sizeof(float);
    a.bytes = a.penalised + 2 * (size_t)hp->n_vocab * sizeof(int32_t);
    return a;
}

static int make_mailbox(forward_gpu *f, err_ctx *err)
{
    const mail_layout a = mail_of(&f->m->hp);
    uint8_t *p = gpu_alloc_host(f->g, a.bytes, err);
    if (!p) return ERR_NOMEM;
    f->mail = (mailbox *)(void *)p;
    *f->mail = (mailbox){
        .masses = (double *)(void *)(p + a.masses), .pairs = (gpu_pair *)(void *)(p + a.pairs),
        .maxima = (float *)(void *)(p + a.maxima),
        .penalised = (int32_t *)(void *)(p + a.penalised),
    };
    return 0;
}

static uint64_t errand_bytes(const model *m, int chunk)
{
    return (uint64_t)chunk * 2 * ((uint64_t)m->hp.n_embd + (uint64_t)m->hp.n_expert_used) *
           sizeof(float);
}

static int make_errand(forward_gpu *f, err_ctx *err)
{
    const size_t n = (size_t)f->chunk, n_embd = (size_t)f->m->hp.n_embd;
    const size_t k = (size_t)f->m->hp.n_expert_used, wide = n * n_embd * sizeof(float);
    uint8_t *p = gpu_alloc_host(f->g, errand_bytes(f->m, f->chunk), err);
    if (!p) return ERR_NOMEM;
    f->errand = (errand){
        .x = (float *)(void *)p, .sums = (float *)(void *)(p + wide),
        .gates = (float *)(void *)(p + 2 * wide),
        .ids = (int32_t *)(void *)(p + 2 * wide + n * k * sizeof(float)),
    };
    return 0;
}

uint64_t forward_gpu_host_bytes(const model *m, int chunk)
{
    return mail_of(&m->hp).bytes + errand_bytes(m, chunk);
}

static int make_tiers(forward_gpu *f, err_ctx *err)
{
    const plan *p = f->tiers.p;
    int rc;
    if (!f->tiers.host) return 0;
    if ((rc = make_errand(f, err)) < 0 || p->stage_parts == 0) return rc;
    return bank_stream_create(&f->banks, f->g, f->m, f->tiers.store, p, err);
}

int forward_gpu_create(forward_gpu **out, gpu *g, const model *m, const weights_gpu *w,
                       const forward_tiers *tiers, const rope_tables *rope, state *st, int chunk,
                       err_ctx *err)
{
    const uint64_t bytes = forward_gpu_bytes(g, m, chunk);
    forward_gpu *f = mem_zalloc(sizeof *f);
    char what[64];
    int rc = 0;

    *out = NULL;
    if (!f) return err_set(err, ERR_NOMEM, "forward: %zu bytes", sizeof *f);
    f->g = g;
    f->m = m;
    f->w = w;
    f->tiers = *tiers;
    f->rope = rope;
    f->st = st;
    f->chunk = chunk;
    f->known.token = -1;
    snprintf(what, sizeof what, "chunks of %d tokens (--chunk)", chunk);
    f->arena = gpu_alloc(g, bytes, what, err);
    if (!f->arena) goto fail;
    layout a = { .arena = f->arena };
    place_all(&f->b, &a, g, m, chunk);
    if ((rc = make_mailbox(f, err)) < 0 || (rc = make_tiers(f, err)) < 0) goto fail;
    rc = gpu_zero(g, f->arena, bytes, err);
    for (int i = 0; i < rope->n_table && rc == 0; i++)
        rc = gpu_write(g, f->b.freq[i], rope->freq[i],
                       (uint64_t)m->hp.rope_dim / 2 * sizeof(double), err);
    for (int i = 0; i < 2 && rc == 0; i++) rc = gpu_recording_create(&f->next[i].r, err);
    if (rc < 0) goto fail;
    *out = f;
    return 0;
fail:
    forward_gpu_free(f);
    return rc < 0 ? rc : ERR_NOMEM;
}

void forward_gpu_free(forward_gpu *f)
{
    if (!f) return;
    for (int i = 0; i < 2; i++) gpu_recording_free(f->next[i].r);
    bank_stream_free(f->banks);
    gpu_free_host(f->g, f->errand.x);
    gpu_free_host(f->g, f->mail);
    gpu_free(f->g, f->arena);
    mem_free(f);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static gpu_input input_of(const forward_gpu *f, const char *name, const float *x, int cols)
{
    return (gpu_input){ .name = name, .kind = GPU_PLAIN, .n = f->n, .cols = cols, .x = x,
                        .rows = f->b.rows, .halves = f->b.halves };
}

static gpu_input normed(const forward_gpu *f, const char *name, const float *gain)
{
    gpu_input in = input_of(f, name, f->b.x, f->m->hp.n_embd);
    in.kind = GPU_NORM;
    in.weight = gain;
    in.eps = f->m->hp.rms_eps;
    return in;
}

static gpu_product product_of(float *y, const gpu_matrix *w)
{
    return (gpu_product){ .y = y, .y_stride = w->rows, .w = *w };
}

/* x += W in */
static void add_product(forward_gpu *f, gpu_input *in, const gpu_matrix *w)
{
    gpu_product p = product_of(f->b.x, w);
    p.add = true;
    gpu_project(f->g, in, &p, 1);
}

/* ---- mix ------------------------------------------------------------------------------------- */

static const gpu_kv_type kv_types[] = {
    [KV_F32] = GPU_KV_F32, [KV_F16] = GPU_KV_F16, [KV_Q8_0] = GPU_KV_Q8_0,
};

/* Qwen's q matrix gives query and gate of each head in turn. */
static void mix_attention(forward_gpu *f, int l, int last)
{
    const model_hparams *hp = &f->m->hp;
    const layer_weights_gpu *w = &f->w->layers[l];
    const buffers *b = &f->b;
    const bool gated = hp->arch == ARCH_QWEN3NEXT;
    const int window = f->m->layers[l].window, heads = hp->n_head * hp->head_dim;
    const int table = window > 0 && f->rope->n_table > 1;
    const kv_view rows = kv_layer_view(state_kv(f->st), l);
    gpu_input h = normed(f, "mixer in", w->attn_norm);
    const gpu_product projections[] = {
        product_of(b->q, &w->attn.q), product_of(b->k, &w->attn.k), product_of(b->v, &w->attn.v),
    };
    gpu_project(f->g, &h, projections, ARRAY_LEN(projections));

    const gpu_attention a = {
        .out = b->heads, .q = b->q, .q_stride = w->attn.q.rows,
        .q_head_stride = gated ? 2 * hp->head_dim : hp->head_dim, .k = b->k, .v = b->v,
        .q_norm = w->attn.q_norm, .k_norm = w->attn.k_norm, .eps = hp->rms_eps,
        .cosine = b->rope_cos[table], .sine = b->rope_sin[table], .rope_dim = hp->rope_dim,
        .kv = kv_types[kv_type_of(state_kv(f->st))], .keys = rows.keys, .values = rows.values,
        .kv_rows = rows.rows, .n_head = hp->n_head, .n_head_kv = hp->n_head_kv,
        .head_dim = hp->head_dim, .window = window, .sinks = w->attn.sinks,
        .scale = 1.0f / sqrtf((float)hp->head_dim), .at = b->at, .n = f->n, .last = last,
        .partial = b->partial, .counters = b->counters + 1,
    };
    gpu_attend(f->g, &a);

    gpu_input out = input_of(f, "mixer out", b->heads, heads);
    if (gated) {
        out.kind = GPU_GATED;
        out.gate = b->q + hp->head_dim;
        out.head_dim = hp->head_dim;
        out.head_stride = 2 * hp->head_dim;
        out.gate_stride = 2 * heads;
    }
    add_product(f, &out, &w->attn.out);
}

static void mix_deltanet(forward_gpu *f, int l)
{
    const model_hparams *hp = &f->m->hp;
    const layer_weights_gpu *w = &f->w->layers[l];
    const buffers *b = &f->b;
    recurrent *memory = state_recurrent(f->st);
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    gpu_input h = normed(f, "mixer in", w->attn_norm);
    gpu_product projections[] = {
        product_of(b->mixed, &w->delta.qkv), product_of(b->z, &w->delta.z),
        product_of(b->ba, &w->delta.ba),
    };
    projections[0].conv = (gpu_conv){ .taps = w->delta.conv, .window = recurrent_conv(memory, l),
                                      .n_tap = hp->ssm_conv, .raw = b->raw };
    gpu_project(f->g, &h, projections, ARRAY_LEN(projections));

    const gpu_delta d = {
        .out = b->delta, .mixed = b->mixed, .ba = b->ba, .dt_bias = w->delta.dt_bias,
        .a = w->delta.a, .state = recurrent_state(memory, l), .n_k = hp->ssm_n_k_head,
        .n_v = hp->ssm_n_v_head, .dim = hp->ssm_head_dim, .n = f->n,
    };
    gpu_delta_rule(f->g, &d);

    gpu_input out = input_of(f, "mixer out", b->delta, values);
    out.kind = GPU_GATED_NORM;
    out.weight = w->delta.norm;
    out.eps = hp->rms_eps;
    out.gate = b->z;
    out.head_dim = out.head_stride = hp->ssm_head_dim;
    out.gate_stride = values;
    add_product(f, &out, &w->delta.out);
}

/* ---- route, experts, join -------------------------------------------------------------------- */

static bool is_cold(const forward_gpu *f, int l)
{
    return f->tiers.host && host_experts_layer(f->tiers.host, l);
}

/* A short prompt's: the host computes them. */
static int compute_on_host(forward_gpu *f, int l, gpu_input *h, gpu_expert_args *a, err_ctx *err)
{
    const size_t n = (size_t)f->n, wide = n * (size_t)f->m->hp.n_embd * sizeof(float);
    const size_t choices = n * (size_t)a->k;
    const errand *e = &f->errand;
    int rc;
    gpu_finish_input(f->g, h);
    gpu_copy(f->g, e->x, h->rows, wide);
    gpu_copy(f->g, e->ids, f->b.chosen, choices * sizeof *e->ids);
    gpu_copy(f->g, e->gates, f->b.gates, choices * sizeof *e->gates);
    if ((rc = gpu_wait(f->g, err)) < 0 ||
        (rc = host_experts_prompt(f->tiers.host, l, e->sums, e->x, e->ids, e->gates, f->n, err)) < 0)
        return rc;
    gpu_copy(f->g, f->b.sums, e->sums, wide);
    a->sums = f->b.sums;
    gpu_experts(f->g, h, a);
    return 0;
}

static int run_experts(forward_gpu *f, int l, err_ctx *err)
{
    const model_hparams *hp = &f->m->hp;
    const layer_weights_gpu *w = &f->w->layers[l];
    const buffers *b = &f->b;
    gpu_input h = normed(f, "router", w->post_attn_norm);
    h.blocks = b->blocks;
    int32_t *ids = f->n > GPU_FEW ? b->chosen : NULL;    /* few tokens: where they are needed */
    const gpu_route_args route = {
        .router = w->router, .shared_gate = w->shared_gate_inp, .k = hp->n_expert_used,
        .logits = b->router, .ids = ids, .gates = b->gates, .sigma = b->sigma,
    };
    gpu_route(f->g, &h, &route);

    gpu_expert_args experts = {
        .x = b->x, .gate = w->gate, .up = w->up, .down = w->down,
        .clamped = hp->arch == ARCH_GPTOSS, .shared_gate = w->shared_gate,
        .shared_up = w->shared_up, .shared_down = w->shared_down, .sigma = b->sigma,
        .ids = ids, .gates = b->gates, .logits = b->router, .n_expert = hp->n_expert,
        .k = hp->n_expert_used, .scratch = b->experts,
    };
    if (!is_cold(f, l)) {
        gpu_experts(f->g, &h, &experts);
        return 0;
    }
    if (f->n > GPU_FEW)
        return f->streaming ? bank_stream_run(f->banks, l, &h, &experts, f->watch != NULL, err)
                            : compute_on_host(f, l, &h, &experts, err);
    const gpu_split split = host_experts_split(f->tiers.host, l);
    gpu_experts_split(f->g, &h, &experts, &split);
    return f->recording ? 0 : host_experts_serve(f->tiers.host, l, err);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* ids: on the device. last: a position that the batch does not go beyond. */
static int run_layers(forward_gpu *f, const int32_t *ids, int last, err_ctx *err)
{
    const model_hparams *hp = &f->m->hp;
    const buffers *b = &f->b;
    gpu_embed(f->g, b->x, &f->w->embed, ids, f->n);
    for (int i = 0; i < f->rope->n_table; i++)
        gpu_rope_table(f->g, b->rope_cos[i], b->rope_sin[i], b->freq[i], f->rope->magnitude[i],
                       hp->rope_dim / 2, b->at, f->n);
    for (int l = 0; l < hp->n_layer; l++) {
        if (f->m->layers[l].mixer == MIX_ATTENTION) mix_attention(f, l, last);
        else mix_deltanet(f, l);
        const int rc = run_experts(f, l, err);
        if (rc < 0) return rc;
        if (f->watch && is_cold(f, l) && !f->watch(f->watch_ctx, (l + 1.0) / hp->n_layer))
            return err_set(err, ERR_STOPPED, "stopped");
    }
    return 0;
}

static void run_head(forward_gpu *f, const float *x, int n)
{
    gpu_input in = input_of(f, "head", x, f->m->hp.n_embd);
    in.kind = GPU_NORM;
    in.n = n;
    in.weight = f->w->out_norm;
    in.eps = f->m->hp.rms_eps;
    const gpu_product p = product_of(f->b.logits, &f->w->head);
    gpu_project(f->g, &in, &p, 1);
}

static void note_written(forward_gpu *f, int pos, int n)
{
    for (int l = 0; l < f->m->hp.n_layer; l++)
        if (f->m->layers[l].mixer == MIX_ATTENTION) kv_wrote(state_kv(f->st), l, pos, n);
}

/* The device reads it in its turn; it stays as it is until the next wait. */
static void set_cursor(forward_gpu *f, int pos, int32_t token)
{
    f->known = f->mail->cursor = (gpu_cursor){ pos, token };
    gpu_copy(f->g, f->b.at, &f->mail->cursor, sizeof f->mail->cursor);
}

/* What is in flight has to end before its memory is used again. */
static int give_up(forward_gpu *f, int rc, err_ctx *err)
{
    err_ctx first;
    const int failed = gpu_wait(f->g, &first);
    if (failed == 0) return rc;
    if (err) *err = first;               /* what the device says comes before what followed */
    return failed;
}

int forward_gpu_eval(forward_gpu *f, const int32_t *ids, int n, int pos, forward_watch *watch,
                     void *ctx, err_ctx *err)
{
    const bool asks = f->tiers.host && n <= GPU_FEW;
    int rc;
    if (n == 1) {
        rc = forward_gpu_take(f, ids[0], pos, err);
        return rc < 0 ? rc : gpu_wait(f->g, err);
    }
    set_cursor(f, pos, -1);
    if ((rc = gpu_write(f->g, f->b.ids, ids, (uint64_t)n * sizeof *ids, err)) < 0) return rc;
    f->n = n;
    f->streaming = f->banks && n > GPU_FEW && n >= f->tiers.p->stream_from;
    if (f->streaming && (rc = bank_stream_begin(f->banks, err)) < 0) return give_up(f, rc, err);
    if (asks) host_experts_begin(f->tiers.host, n);
    f->watch = n > GPU_FEW ? watch : NULL;
    f->watch_ctx = ctx;
    rc = run_layers(f, f->b.ids, pos + n, err);
    f->watch = NULL;
    if (asks) host_experts_end(f->tiers.host);
    if (rc < 0) return give_up(f, rc, err);
    note_written(f, pos, n);
    return gpu_wait(f->g, err);
}

int forward_gpu_logits(forward_gpu *f, float *logits, int n_row, err_ctx *err)
{
    const size_t n_embd = (size_t)f->m->hp.n_embd, n_vocab = (size_t)f->m->hp.n_vocab;
    for (int done = 0; done < n_row;) {
        const int n = min_int(n_row - done, LOGIT_ROWS);
        if (f->n > 1)                    /* else they are there */
            run_head(f, f->b.x + (size_t)(f->n - n_row + done) * n_embd, n);
        const int rc = gpu_read(f->g, logits + (size_t)done * n_vocab, f->b.logits,
                                (size_t)n * n_vocab * sizeof *logits, err);
        if (rc < 0) return rc;
        done += n;
    }
    return 0;
}

/* ---- one token and the next ------------------------------------------------------------------ */

static void run_next(forward_gpu *f, int last)
{
    const buffers *b = &f->b;
    f->n = 1;
    f->recording = true;
    (void)run_layers(f, &b->at->token, last, NULL);      /* nothing is waited for */
    f->recording = false;
    run_head(f, b->x, 1);
    gpu_largest(f->g, b->logits, f->m->hp.n_vocab, b->at, &f->mail->seen, b->best, &b->counters[0]);
    gpu_advance(f->g, b->at, 1);
}

static int record_next(gpu_recording *r, forward_gpu *f, int last, err_ctx *err)
{
    const int rc = gpu_record_begin(f->g, err);
    if (rc < 0) return rc;
    run_next(f, last);
    return gpu_record_end(r, f->g, err);
}

static int lost(err_ctx *err)
{
    return err_set(err, ERR_IO, "the GPU stopped");
}

/* Plays a token and answers what it asks. */
static int play(forward_gpu *f, gpu_recording *r, err_ctx *err)
{
    int rc = 0;
    f->n = 1;
    f->known.token = -1;
    gpu_play(f->g, r);
    if (!f->tiers.host) return fault_hits(FAULT_GPU_LOST) ? give_up(f, lost(err), err) : 0;
    host_experts_begin(f->tiers.host, 1);        /* threads wake up while the first layer mixes */
    for (int l = 0; l < f->m->hp.n_layer; l++) {
        if (!is_cold(f, l)) continue;
        const int failed = host_experts_serve(f->tiers.host, l, rc < 0 ? NULL : err);
        if (rc == 0) rc = failed;
        if (failed < 0 && !gpu_alive(f->g)) break;
    }
    host_experts_end(f->tiers.host);
    return rc < 0 ? give_up(f, rc, err) : 0;
}

/* How attention is cut depends on how far back it looks: twice as far, a new recording. */
static int reach_of(int pos)
{
    int last = 1024;
    while (last <= pos && last < 1 << 30) last *= 2;
    return last;
}

int forward_gpu_take(forward_gpu *f, int32_t id, int pos, err_ctx *err)
{
    next_token *next = &f->next[f->tiers.host && host_experts_fetches(f->tiers.host)];
    int rc;
    if (next->last != reach_of(pos)) {
        if ((rc = record_next(next->r, f, reach_of(pos), err)) < 0) return rc;
        next->last = reach_of(pos);
    }
    if (f->known.pos != pos || f->known.token != id) set_cursor(f, pos, id);
    if ((rc = play(f, next->r, err)) < 0) return rc;
    note_written(f, pos, 1);
    return 0;
}

int forward_gpu_next(forward_gpu *f, int32_t *next, int32_t id, int pos, err_ctx *err)
{
    int rc = forward_gpu_take(f, id, pos, err);
    if (rc < 0 || (rc = gpu_wait(f->g, err)) < 0) return rc;
    *next = (int32_t)(uint32_t)f->mail->seen;
    f->known = (gpu_cursor){ pos + 1, *next };
    return 0;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static int prepare_sampling(void *ctx, const sampler_rules *r, float *block_max, double *mass,
                            err_ctx *err)
{
    forward_gpu *f = ctx;
    const buffers *b = &f->b;
    const size_t n_block = (size_t)blocks_of(&f->m->hp);
    int rc = 0;

    if (f->bias_version != r->bias_version) {            /* rules never change without it */
        rc = gpu_write(f->g, b->bias, r->bias, (uint64_t)f->m->hp.n_vocab * sizeof *r->bias, err);
        if (rc == 0)
            rc = gpu_write(f->g, b->steps, r->steps, SAMPLER_STEPS * sizeof *r->steps, err);
        if (rc < 0) return rc;
        f->bias_version = r->bias_version;
    }
    for (int i = 0; i < r->n_seen; i++) {
        f->mail->penalised[2 * i] = r->seen[i];
        f->mail->penalised[2 * i + 1] = r->count[r->seen[i]];
    }
    f->list = (gpu_shortlist){
        .logits = b->logits, .bias = b->bias, .n = f->m->hp.n_vocab, .seen = f->mail->penalised,
        .n_seen = r->n_seen, .repeat = r->repeat, .presence = r->presence,
        .frequency = r->frequency, .per_temperature = r->per_temperature, .steps = b->steps,
        .work = b->work, .top = b->top, .maxima = f->mail->maxima,
        .masses = mass ? f->mail->masses : NULL,
    };
    gpu_shortlist_make(f->g, &f->list);
    if ((rc = gpu_wait(f->g, err)) < 0) return rc;
    memcpy(block_max, f->mail->maxima, n_block * sizeof *block_max);
    if (mass) memcpy(mass, f->mail->masses, n_block * sizeof *mass);
    return 0;
}

static int gather_candidates(void *ctx, sampler_pair *to, int cap, float bound, err_ctx *err)
{
    forward_gpu *f = ctx;
    gpu_shortlist_gather(f->g, &f->list, bound, f->mail->pairs, min_int(cap, MAX_PAIRS),
                         &f->mail->count);
    const int rc = gpu_wait(f->g, err);
    if (rc < 0) return rc;
    const int n = f->mail->count > INT_MAX ? INT_MAX : (int)f->mail->count;
    for (int i = 0; i < n && n <= cap && n <= MAX_PAIRS; i++)
        to[i] = (sampler_pair){ f->mail->pairs[i].id, f->mail->pairs[i].logit };
    return n <= MAX_PAIRS ? n : INT_MAX;
}

sampler_source forward_gpu_source(forward_gpu *f)
{
    return (sampler_source){ f, prepare_sampling, gather_candidates };
}

/* ---- profiles -------------------------------------------------------------------------------- */

/* What is launched now is watched; a recording would be watched whenever it is played. */
static int profile_prompt(forward_gpu *f, gpu_span *spans, int cap, const int32_t *ids, int n,
                          int pos, err_ctx *err)
{
    int rc = gpu_profile_begin(f->g, err);
    if (rc == 0) rc = forward_gpu_eval(f, ids, n, pos, NULL, NULL, err);
    return rc < 0 ? rc : gpu_profile_read(spans, cap, f->g, err);
}

static int profile_next(forward_gpu *f, gpu_span *spans, int cap, int32_t id, int pos, err_ctx *err)
{
    gpu_recording *watched = NULL;
    int rc = gpu_recording_create(&watched, err);
    if (rc == 0) rc = gpu_profile_begin(f->g, err);
    if (rc == 0) rc = record_next(watched, f, reach_of(pos), err);
    for (int i = 0; i < 2 && rc >= 0; i++) {             /* the first one warms up */
        set_cursor(f, pos, id);
        rc = play(f, watched, err);
        if (rc == 0) rc = gpu_profile_read(spans, cap, f->g, err);
    }
    gpu_recording_free(watched);
    return rc;
}

int forward_gpu_profile(forward_gpu *f, gpu_span *spans, int cap, const int32_t *ids, int n, int pos,
                        err_ctx *err)
{
    const int rc = n == 1 ? profile_next(f, spans, cap, ids[0], pos, err)
                          : profile_prompt(f, spans, cap, ids, n, pos, err);
    gpu_profile_end(f->g);
    f->known.token = -1;
    return rc;
}
