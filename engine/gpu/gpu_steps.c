/* gpu_steps.c - one batch through the layers that are on the GPU.
 *
 * Steps enqueue operations of cuda/gpu.h and wait only for results. Operations choose their kernels
 * by the number of tokens; the order of steps does not depend on it. */
#include "engine/gpu/gpu_steps.h"

#include <assert.h>
#include <limits.h>
#include <math.h>

#include "engine/engine_internal.h"
#include "engine/gpu/gpu_buffers.h"
#include "engine/gpu/gpu_sampling.h"
#include "tiers/fault_injection.h"

/* Page-locked messages between device and host. */
typedef struct mailbox {
    uint64_t picked;                     /* from the device: the picked token, with its stamp */
    gpu_cursor cursor;                   /* to the device */
} mailbox;

/* A batch's vectors for the host, and the host's sums; page-locked. */
typedef struct host_transfer {
    float *x, *sums;                     /* [n, n_embd] */
    float *gates;                        /* [n, k] */
    int32_t *ids;
    void *memory;                        /* NULL: the device computes everything */
} host_transfer;

/* One token and the pick after it. */
typedef struct recorded_token {
    gpu_recording *r;
    int last;                            /* valid up to this position; 0: not recorded yet */
    int refused;                         /* position at which VRAM was too small for it; -1: none */
} recorded_token;

enum {
    RETRY_TOKENS = 64,                   /* from one attempt without VRAM to the next */
    LAYER_KERNELS = 16                   /* most kernels of a token in a layer, or after the last */
};

/* The kernels of a recording depend on two flags: slabs are fetched, the CPU reads ahead. So there
 * are four recordings, and one for profiles. */
enum { PROFILED = 4, RECORDINGS };

/* Recordings contain addresses of the session's state. */
struct gpu_session_recordings {
    recorded_token tokens[RECORDINGS];
};

enum { CHOICES_SENT, VECTORS_TAKEN, N_EVENTS };          /* of prompts that the host computes */

struct gpu_steps {
    layer_steps live, replay_table;
    const engine *e;
    gpu *g;                              /* of e, as are m and w */
    const model *m;
    const weights_gpu *w;
    expert_server *server;               /* NULL: all experts of the GPU's layers are in VRAM */
    bool skip_missing;
    gpu_buffers b;
    mailbox *mailbox;
    host_transfer host_transfer;
    gpu_events *events;                  /* NULL: the host computes nothing */
    gpu_sampling sampling;
    expert_stream *banks;                /* NULL: cold experts never pass through VRAM */
    prompt_split *split;                 /* NULL: prompts are never split */
    gpu_session_recordings *recordings;  /* of the selected session; borrowed */
    bool recording, profiling;
    bool refusal_logged;                 /* VRAM was too small for a recording */
    bool has_cold;                       /* some experts of the GPU's layers are not in VRAM */
    gpu_cursor device_cursor;            /* the device's cursor; token -1: unknown */

    /* the batch under way */
    batch_row row;                       /* all of its tokens */
    int n, last;
    bool has_questions, watched;         /* the host is asked; the batch has a watcher */
    bool contract;                       /* with many tokens: experts have the contract's bits */
    gpu_input h;                         /* input of the layer's router and experts */
    gpu_expert_args experts;
    gpu_input parallel_in;               /* input of the parallel network, for few tokens */
    gpu_network_args parallel;           /* y NULL unless it runs while the host is asked */
    double waited_s;                     /* for the ends of single tokens, without the sampler's */
    int failed;                          /* first failure of the host's half of a replayed token */
    err_ctx failure;                     /* its message */
};

static bool head_on_gpu(const gpu_steps *s) { return s->w->head.data != NULL; }

/* ---- inputs ---------------------------------------------------------------------------------- */

static gpu_input input_of(const gpu_steps *s, const char *name, const float *x, int cols)
{
    return (gpu_input){ .name = name, .kind = GPU_PLAIN, .n = s->n, .cols = cols, .x = x,
                        .rows = s->b.rows, .halves = s->b.halves, .lows = s->b.lows };
}

static gpu_input normed(const gpu_steps *s, const char *name, const float *gain)
{
    gpu_input in = input_of(s, name, s->b.x, s->m->hp.n_embd);
    in.kind = GPU_NORM;
    in.weight = gain;
    in.eps = s->m->hp.rms_eps;
    return in;
}

static gpu_product product_of(float *y, const gpu_matrix *w)
{
    return (gpu_product){ .y = y, .y_stride = w->rows, .w = *w };
}

/* x += W in. With a norm: x += norm(W in), and the buffer is zeroed, because the experts add to
 * it. */
static void add_product(gpu_steps *s, gpu_input *in, const gpu_matrix *w, const float *norm)
{
    gpu_product p = product_of(norm ? s->b.parts[0] : s->b.x, w);
    p.add = !norm;
    gpu_project(s->g, in, &p, 1);
    if (!norm) return;
    const gpu_normed a = {
        .x = s->b.x, .part = { s->b.parts[0] }, .gain = norm, .eps = s->m->hp.rms_eps,
        .scale = 1.0f, .clear = s->b.parts[0], .n = s->n, .cols = s->m->hp.n_embd,
    };
    gpu_add_normed(s->g, &a);
}

/* ---- mix ------------------------------------------------------------------------------------- */

static const gpu_kv_type kv_types[] = {
    [KV_F32] = GPU_KV_F32, [KV_F16] = GPU_KV_F16, [KV_Q8_0] = GPU_KV_Q8_0,
};

/* A gated q matrix gives query and gate of head 0, then of head 1, and so on. */
static void mix_attention(gpu_steps *s, int l)
{
    const model_hparams *hp = &s->m->hp;
    const model_family *f = s->m->family;
    const layer_weights_gpu *w = &s->w->layers[l];
    const attn_shape shape = layer_attn(hp, &s->m->layers[l]);
    const gpu_buffers *b = &s->b;
    const int dim = shape.head_dim, stride = f->attn_gated ? 2 : 1;
    const int window = s->m->layers[l].window, heads = shape.n_head * dim;
    const int table = window > 0 && s->e->rope.n_table > 1;
    const int from = model_kv_layer(s->m, l);
    const kv_view rows = kv_layer_view(state_kv(s->row.st), from);
    gpu_input h = normed(s, "mixer in", w->attn_norm);
    const gpu_product projections[] = {
        product_of(b->q, &w->attn.q), product_of(b->k, &w->attn.k), product_of(b->v, &w->attn.v),
    };
    gpu_project(s->g, &h, projections, from != l ? 1 : w->attn.v.data ? 3 : 2);

    const gpu_attention a = {
        .out = b->heads, .q = b->q, .q_stride = w->attn.q.rows, .q_head_stride = stride * dim,
        .k = from == l ? b->k : NULL, .v = w->attn.v.data ? b->v : b->k, .q_norm = w->attn.q_norm,
        .k_norm = w->attn.k_norm, .norm_whole = f->attn_norm_whole,
        .norm_values = f->attn_norm_values, .eps = hp->rms_eps, .cosine = b->rope_cos[table],
        .sine = b->rope_sin[table], .rope_dim = shape.rope_dim,
        .kv = kv_types[kv_type_of(state_kv(s->row.st))], .keys = rows.keys,
        .values = rows.values, .kv_rows = rows.rows, .n_head = shape.n_head,
        .n_head_kv = shape.n_head_kv, .head_dim = dim, .window = window, .sinks = w->attn.sinks,
        .scale = f->attn_unscaled ? 1.0f : 1.0f / sqrtf((float)dim), .cursor = b->cursor, .n = s->n,
        .last = s->last, .partial = b->partial, .counters = b->counters + 1,
    };
    gpu_attend(s->g, &a);

    gpu_input out = input_of(s, "mixer out", b->heads, heads);
    if (f->attn_gated) {
        out.kind = GPU_GATED;
        out.gate = b->q + dim;
        out.head_dim = dim;
        out.head_stride = 2 * dim;
        out.gate_stride = 2 * heads;
    }
    add_product(s, &out, &w->attn.out, w->mix_out_norm);
}

static void mix_deltanet(gpu_steps *s, int l)
{
    const model_hparams *hp = &s->m->hp;
    const layer_weights_gpu *w = &s->w->layers[l];
    const gpu_buffers *b = &s->b;
    recurrent *memory = state_recurrent(s->row.st);
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    const bool separate = w->delta.beta.data != NULL;
    gpu_input h = normed(s, "mixer in", w->attn_norm);
    gpu_product projections[] = {
        product_of(b->mixed, &w->delta.qkv), product_of(b->z, &w->delta.z),
        product_of(b->ba, separate ? &w->delta.beta : &w->delta.ba),
        product_of(b->ba + hp->ssm_n_v_head, &w->delta.alpha),
    };
    projections[2].y_stride = projections[3].y_stride = 2 * hp->ssm_n_v_head;
    projections[0].conv = (gpu_conv){ .taps = w->delta.conv, .window = recurrent_conv(memory, l),
                                      .n_tap = hp->ssm_conv, .raw = b->raw };
    gpu_project(s->g, &h, projections, separate ? 4 : 3);

    const gpu_delta d = {
        .out = b->delta, .mixed = b->mixed, .ba = b->ba, .apart = separate, .tiled = hp->ssm_tiled,
        .dt_bias = w->delta.dt_bias, .a = w->delta.a, .state = recurrent_state(memory, l),
        .n_k = hp->ssm_n_k_head, .n_v = hp->ssm_n_v_head, .dim = hp->ssm_head_dim, .n = s->n,
        .pos = s->row.pos, .scratch = b->delta_chunks,
    };
    gpu_delta_rule(s->g, &d);

    gpu_input out = input_of(s, "mixer out", b->delta, values);
    out.kind = GPU_GATED_NORM;
    out.weight = w->delta.norm;
    out.eps = hp->rms_eps;
    out.gate = b->z;
    out.head_dim = out.head_stride = hp->ssm_head_dim;
    out.gate_stride = values;
    add_product(s, &out, &w->delta.out, w->mix_out_norm);
}

/* Enqueued operations store the layer's keys and values before any operation reads them. */
static void note_written(void *self, int l)
{
    gpu_steps *s = self;
    if (s->m->layers[l].mixer == MIX_ATTENTION && s->m->layers[l].kv_back == 0)
        kv_wrote(state_kv(s->row.st), l, s->row.pos, s->n);
}

static void mix(void *self, int l)
{
    gpu_steps *s = self;
    if (s->m->layers[l].mixer == MIX_ATTENTION) mix_attention(s, l);
    else mix_deltanet(s, l);
    if (!s->recording) note_written(s, l);
}

/* ---- route ----------------------------------------------------------------------------------- */

static gpu_router_rule rule_of(const gpu_steps *s, int l)
{
    return weights_gpu_rule(&s->m->hp.router, s->w->layers[l].choice_bias);
}

/* Whether the choice prefers hot experts: in layers with cold experts and a map of the hot ones. */
static bool skips_missing(const gpu_steps *s, int l)
{
    return s->skip_missing && s->n <= GPU_MAIL && expert_server_has_cold(s->server, l) &&
           expert_server_wanted(s->server, l);
}

static void prefer_hot(gpu_steps *s, int l)
{
    const model_hparams *hp = &s->m->hp;
    const gpu_buffers *b = &s->b;
    const gpu_prefer args = {
        .logits = b->router, .rule = rule_of(s, l), .hot = expert_server_args(s->server, l).hot,
        .n = s->n, .n_expert = hp->n_expert, .k = hp->n_expert_used, .ids = b->chosen,
        .gates = b->gates, .wanted = expert_server_wanted(s->server, l),
    };
    gpu_prefer_hot(s->g, &args);
    s->experts.ids = b->chosen;
}

static bool has_experts(const gpu_steps *s, int l)
{
    return s->m->layers[l].experts->n_expert > 0;
}

/* The input of experts that do not read what the router reads. */
static gpu_input experts_input(const gpu_steps *s, int l)
{
    gpu_input in = normed(s, "experts", s->w->layers[l].experts_norm);
    in.blocks = s->b.blocks;
    return in;
}

/* The input of the parallel network, for few tokens. No other operation uses its memory, so it can
 * be finished early. */
static gpu_input parallel_input(const gpu_steps *s, int l)
{
    gpu_input in = normed(s, "dense network", s->w->layers[l].post_attn_norm);
    in.rows = s->b.parallel_rows;
    in.blocks = s->b.parallel_blocks;
    return in;
}

static void route(void *self, int l)
{
    gpu_steps *s = self;
    const model_hparams *hp = &s->m->hp;
    const layer_weights_gpu *w = &s->w->layers[l];
    const gpu_buffers *b = &s->b;
    if (!has_experts(s, l)) return;
    const bool own = w->experts_norm != w->router_norm, few = s->n <= GPU_FEW;
    gpu_input in = normed(s, "router", w->router_norm);
    if (own) s->h = experts_input(s, l);
    else in.blocks = b->blocks;                          /* for the experts */
    if (w->ffn_out_norm && few) s->parallel_in = parallel_input(s, l);
    const gpu_router_rule rule = rule_of(s, l);
    const bool later = few && (gpu_rule_can_wait(&rule) || skips_missing(s, l));
    float *keys = later && rule.sigmoid && rule.bias ? b->keys : NULL;
    int32_t *ids = later ? NULL : b->chosen;             /* later: the next kernel chooses */
    const gpu_route_args args = {
        .router = w->router, .rule = rule, .shared_gate = w->shared_gate_inp,
        .k = hp->n_expert_used, .logits = b->router, .ids = ids, .gates = b->gates,
        .keys = keys, .sigma = b->sigma, .also = { own ? &s->h : NULL,
                                     w->ffn_out_norm && few ? &s->parallel_in : NULL },
    };
    gpu_route(s->g, &in, &args);
    if (!own) s->h = in;
    s->parallel.y = NULL;
    s->experts = (gpu_expert_args){
        .x = b->x, .gate = w->gate, .up = w->up, .down = w->down,
        .act = weights_gpu_act(s->m->family->act), .ids = ids, .gates = b->gates,
        .logits = b->router, .keys = keys, .rule = rule,
        .n_expert = hp->n_expert, .k = hp->n_expert_used, .scratch = b->experts,
        .batch.contract = s->contract,
    };
    if (w->ffn_out_norm) {                               /* join adds it up */
        s->experts.x = b->parts[0];
    } else {
        s->experts.shared_gate = w->shared_gate;
        s->experts.shared_up = w->shared_up;
        s->experts.shared_down = w->shared_down;
        s->experts.sigma = b->sigma;
    }
    if (skips_missing(s, l)) prefer_hot(s, l);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* The layer's dense network: y = network(x), or y += network(x). */
static gpu_network_args network_of(const gpu_steps *s, int l, float *y, bool add)
{
    const layer_weights_gpu *w = &s->w->layers[l];
    return (gpu_network_args){
        .y = y, .add = add, .gate = w->shared_gate, .up = w->shared_up, .down = w->shared_down,
        .act = weights_gpu_act(s->m->family->act), .scratch = s->b.experts,
    };
}

/* The dense network by itself. It uses the experts' scratch. */
static void dense_network(gpu_steps *s, int l, float *y, bool add)
{
    const gpu_network_args args = network_of(s, l, y, add);
    gpu_input in = normed(s, "dense network", s->w->layers[l].post_attn_norm);
    in.blocks = s->b.blocks;
    const bool early = has_experts(s, l) && s->n <= GPU_FEW;     /* route has made its input */
    gpu_network(s->g, early ? &s->parallel_in : &in, &args);
}

/* The dense network while the host computes experts, with scratch of its own. */
static void add_parallel_network(gpu_steps *s, gpu_with_host *split, int l)
{
    s->parallel = network_of(s, l, s->b.parts[1], false);
    s->parallel.scratch = s->b.parallel_scratch;
    split->parallel_in = &s->parallel_in;
    split->parallel = &s->parallel;
}

static int experts_local(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    (void)err;
    if (has_experts(s, l)) gpu_experts(s->g, &s->h, &s->experts);
    else dense_network(s, l, s->b.x, true);
    return 0;
}

static int experts_asked(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    gpu_with_host split = expert_server_args(s->server, l);
    if (s->w->layers[l].ffn_out_norm) add_parallel_network(s, &split, l);
    gpu_experts_with_host(s->g, &s->h, &s->experts, &split);
    return s->recording ? 0 : expert_server_serve(s->server, l, err);
}

/* Copies the layer's normed vectors and choices to the host. */
static void send_choices(gpu_steps *s)
{
    const size_t n = (size_t)s->n, choices = n * (size_t)s->experts.k;
    const host_transfer *e = &s->host_transfer;
    gpu_finish_input(s->g, &s->h);
    gpu_copy(s->g, e->x, s->h.rows, n * (size_t)s->m->hp.n_embd * sizeof *e->x);
    gpu_copy(s->g, e->ids, s->b.chosen, choices * sizeof *e->ids);
    gpu_copy(s->g, e->gates, s->b.gates, choices * sizeof *e->gates);
    gpu_events_record(s->g, s->events, CHOICES_SENT);
}

static int sums_by_host(gpu_steps *s, int l, err_ctx *err)
{
    const size_t wide = (size_t)s->n * (size_t)s->m->hp.n_embd * sizeof(float);
    const host_transfer *e = &s->host_transfer;
    int rc;
    if ((rc = gpu_events_wait(s->g, s->events, CHOICES_SENT, err)) < 0 ||
        (rc = expert_server_prompt(s->server, l, e->sums, e->x, e->ids, e->gates, s->n, err)) < 0)
        return rc;
    gpu_copy(s->g, s->b.sums, e->sums, wide);
    return 0;
}

/* The device computes the experts that are in VRAM while the host computes the others. */
static int sums_by_both(gpu_steps *s, int l, const int32_t *hot, err_ctx *err)
{
    const size_t n_embd = (size_t)s->m->hp.n_embd, k = (size_t)s->experts.k;
    const host_transfer *e = &s->host_transfer;
    const float *cold;
    gpu *g = s->g;
    gpu_experts_partial_begin(g, &s->h, &s->experts, hot);
    int rc = gpu_events_wait(g, s->events, CHOICES_SENT, err);
    for (int done = 0; done < s->n && rc == 0;) {
        const int n = min_int(s->n - done, EXPERT_SERVER_TOKENS);
        const size_t first = (size_t)done;
        /* the host overwrites the vectors of the tokens before */
        if (done > 0 && (rc = gpu_events_wait(g, s->events, VECTORS_TAKEN, err)) < 0) return rc;
        rc = expert_server_cold(s->server, l, &cold, e->x + first * n_embd, e->ids + first * k, n,
                                err);
        if (rc < 0) return rc;
        gpu_experts_partial_end(g, &s->h, &s->experts, hot, s->b.sums, cold, done, n);
        gpu_events_record(g, s->events, VECTORS_TAKEN);
        done += n;
    }
    return rc;
}

/* After send_choices: the device computes the hot experts, the host the cold ones. */
static int chosen_by_host(gpu_steps *s, int l, err_ctx *err)
{
    const int32_t *hot = expert_server_map(s->server, l);
    const int rc = hot ? sums_by_both(s, l, hot, err) : sums_by_host(s, l, err);
    if (rc < 0) return rc;
    s->experts.batch.sums = s->b.sums;
    gpu_experts(s->g, &s->h, &s->experts);
    return 0;
}

static int experts_by_host(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    send_choices(s);
    return chosen_by_host(s, l, err);
}

static int experts_split(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    const host_transfer *e = &s->host_transfer;
    int rc;
    send_choices(s);
    if ((rc = prompt_split_poll(s->split, err)) < 0 ||
        (rc = gpu_events_wait(s->g, s->events, CHOICES_SENT, err)) < 0 ||
        (rc = prompt_split_run(s->split, l, &s->h, &s->experts, e->x, e->ids, err)) < 0)
        return rc;
    return rc > 0 ? 0 : chosen_by_host(s, l, err);
}

static int experts_streamed(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    return expert_stream_run(s->banks, l, &s->h, &s->experts, s->watched, err);
}

/* The kernel that computes down adds the slots, in the router's order, to the residual; if the sum
 * is normed first, it adds them to parts[0] and this step does the rest. */
static void join(void *self, int l)
{
    gpu_steps *s = self;
    const layer_weights_gpu *w = &s->w->layers[l];
    float *const *parts = s->b.parts;
    if (!w->ffn_out_norm) return;
    if (!s->parallel.y) dense_network(s, l, parts[1], false);
    const gpu_normed a = {
        .x = s->b.x, .part = { parts[0], parts[1] },
        .part_gain = { w->experts_out_norm, w->shared_out_norm }, .gain = w->ffn_out_norm,
        .eps = s->m->hp.rms_eps, .scale = w->out_scale, .n = s->n, .cols = s->m->hp.n_embd,
    };
    gpu_add_normed(s->g, &a);
}

/* ---- begin and end --------------------------------------------------------------------------- */

/* The copy reads the mailbox later. No earlier copy may be in flight: each caller has waited since
 * the last cursor, a batch for its ids, a replayed token for the one before (forward_take). */
static void set_cursor(gpu_steps *s, int pos, int32_t token)
{
    s->device_cursor = s->mailbox->cursor = (gpu_cursor){ pos, token };
    gpu_copy(s->g, s->b.cursor, &s->mailbox->cursor, sizeof s->mailbox->cursor);
}

/* Whether the device's experts follow the contract, so that results do not depend on the processor
 * of an expert. The plan, the strategy and the number of tokens decide it, never the contents of
 * VRAM or a measured speed. All layers of a batch are alike, also those with all experts in
 * VRAM. */
static bool by_contract(const gpu_steps *s, prompt_strategy strategy, int n)
{
    if (s->e->post.frozen || !s->has_cold) return s->e->post.frozen;
    return strategy != PROMPT_BUS || n <= s->e->p->contract_to;
}

static void take_batch(gpu_steps *s, const batch *b)
{
    s->contract = b->n > GPU_FEW && by_contract(s, b->strategy, b->n);
    assert(b->n_row == 1);
    s->row = b->rows[0];
    s->n = b->n;
    s->last = b->last;
    s->watched = b->watch != NULL;
    s->has_questions = false;
    s->failed = 0;
}

static int begin(void *self, const batch *b, err_ctx *err)
{
    gpu_steps *s = self;
    const rope_tables *rope = &s->e->rope;
    int rc;
    take_batch(s, b);
    if (b->ids) {
        rc = gpu_write(s->g, s->b.ids, b->ids, (uint64_t)b->n * sizeof *b->ids, err);
        set_cursor(s, s->row.pos, -1);
        const bool streams = b->n > GPU_MAIL && b->strategy == PROMPT_BUS;
        if (rc < 0 || (streams && (rc = expert_stream_begin(s->banks, err)) < 0)) return rc;
    }
    if (s->server && b->n > GPU_MAIL && b->strategy != PROMPT_BUS)
        expert_server_prompt_begin(s->server);
    if (b->n > GPU_MAIL && b->strategy == PROMPT_SPLIT) prompt_split_begin(s->split);
    if (s->server && b->n <= GPU_MAIL && !s->recording) {
        if ((rc = expert_server_prepare(s->server, err)) < 0) return rc;
        s->has_questions = true;
        expert_server_begin(s->server, b->n);
    }
    gpu_embed(s->g, s->b.x, &s->w->embed, b->ids ? s->b.ids : &s->b.cursor->token, b->n);
    for (int i = 0; i < rope->n_table; i++)
        gpu_rope_table(s->g, s->b.rope_cos[i], s->b.rope_sin[i], s->b.freq[i],
                       rope->magnitude[i], rope->dim[i] / 2, s->b.cursor, b->n);
    return 0;
}

static int end(void *self, err_ctx *err)
{
    gpu_steps *s = self;
    (void)err;
    if (s->recording) return 0;
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    return 0;
}

static void send_vectors(gpu_steps *s)
{
    gpu_copy(s->g, s->host_transfer.x, s->b.x,
             (uint64_t)s->n * (uint64_t)s->m->hp.n_embd * sizeof(float));
}

static int copy_to_host(void *self, const float **x, err_ctx *err)
{
    gpu_steps *s = self;
    send_vectors(s);
    *x = s->host_transfer.x;
    return gpu_wait(s->g, err);
}

int gpu_steps_wait(gpu_steps *s, err_ctx *err)
{
    const uint64_t from = clock_ns();
    const int rc = gpu_wait(s->g, err);
    if (s->n == 1) s->waited_s += clock_since(from);
    return rc;
}

double gpu_steps_waited(const gpu_steps *s) { return s->waited_s + s->sampling.waited_s; }

void gpu_steps_reset_waited(gpu_steps *s)
{
    s->waited_s = 0.0;
    s->sampling.waited_s = 0.0;
}

int gpu_steps_give_up(gpu_steps *s, int rc, err_ctx *err)
{
    err_ctx first;
    const int failed = gpu_wait(s->g, &first);
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    if (failed == 0) return rc;
    if (err) *err = first;
    return failed;
}

/* ---- logits ---------------------------------------------------------------------------------- */

static void run_head(gpu_steps *s, const float *x, int n)
{
    gpu_input in = input_of(s, "head", x, s->m->hp.n_embd);
    in.kind = GPU_NORM;
    in.n = n;
    in.weight = s->w->out_norm;
    in.eps = s->m->hp.rms_eps;
    const gpu_product p = product_of(s->b.logits, &s->w->head);
    const float cap = s->m->hp.logit_cap;
    gpu_project(s->g, &in, &p, 1);
    if (cap > 0.0f)
        gpu_soft_cap(s->g, s->b.logits, (uint64_t)n * (uint64_t)s->m->hp.n_vocab, cap);
}

static int logits(void *self, float *out, int first, int n_row, err_ctx *err)
{
    gpu_steps *s = self;
    const size_t n_embd = (size_t)s->m->hp.n_embd, n_vocab = (size_t)s->m->hp.n_vocab;
    for (int done = 0; done < n_row;) {
        const int n = min_int(n_row - done, GPU_RECORDED);
        if (s->n > 1)                    /* a single token ends with its logits */
            run_head(s, s->b.x + (size_t)(first + done) * n_embd, n);
        const int rc = gpu_read(s->g, out + (size_t)done * n_vocab, s->b.logits,
                                (size_t)n * n_vocab * sizeof *out, err);
        if (rc < 0) return rc;
        done += n;
    }
    return 0;
}

sampler_source gpu_steps_source(gpu_steps *s) { return gpu_sampling_source(&s->sampling); }

/* ---- recordings ------------------------------------------------------------------------------ */

int gpu_steps_reach(int pos)
{
    int last = 1024;
    while (last <= pos && last < 1 << 30) last *= 2;
    return last;
}

static int recording_index(const gpu_steps *s)
{
    if (s->profiling) return PROFILED;
    if (!s->server) return 0;
    return 2 * expert_server_fetches(s->server) + expert_server_reads_ahead(s->server);
}

bool gpu_steps_is_recorded(const gpu_steps *s, int pos)
{
    return s->recordings->tokens[recording_index(s)].last == gpu_steps_reach(pos);
}

bool gpu_steps_wants_recording(const gpu_steps *s, int pos)
{
    const recorded_token *t = &s->recordings->tokens[recording_index(s)];
    const bool refused = t->refused >= 0 && pos >= t->refused && pos - t->refused < RETRY_TOKENS;
    return t->last != gpu_steps_reach(pos) && !refused;
}

int gpu_steps_record_begin(gpu_steps *s, err_ctx *err)
{
    const int rc = gpu_record_begin(s->g, err);
    s->recording = rc == 0;
    return rc;
}

int gpu_steps_record_end(gpu_steps *s, int pos, err_ctx *err)
{
    recorded_token *t = &s->recordings->tokens[recording_index(s)];
    err_ctx failure = { 0 };
    s->recording = false;
    gpu_steps_end_token(s);
    const int rc = gpu_record_end(t->r, s->g, &failure);
    t->last = rc == 0 ? gpu_steps_reach(pos) : 0;
    t->refused = rc == ERR_NOMEM ? pos : -1;
    if (rc == ERR_NOMEM && !s->refusal_logged) {
        log_line("%s: tokens are computed without a recording, which is slower", failure.msg);
        s->refusal_logged = true;
    } else if (rc < 0 && err) {
        *err = failure;
    }
    return rc == ERR_NOMEM ? 0 : rc;
}

void gpu_steps_end_token(gpu_steps *s)
{
    const gpu_buffers *b = &s->b;
    if (head_on_gpu(s)) {
        run_head(s, b->x, 1);
        gpu_largest(s->g, b->logits, s->m->hp.n_vocab, b->cursor, &s->mailbox->picked, b->best,
                    &b->counters[0]);
    } else {
        send_vectors(s);
    }
    gpu_advance(s->g, b->cursor, 1);
}

int gpu_steps_picked(gpu_steps *s, int32_t *next, int pos, err_ctx *err)
{
    const int rc = gpu_steps_wait(s, err);
    if (rc < 0) return rc;
    *next = (int32_t)(uint32_t)s->mailbox->picked;
    s->device_cursor = (gpu_cursor){ pos + 1, *next };
    return 0;
}

/* ---- the host's half of a replayed token ----------------------------------------------------- */

static int replay_begin(void *self, const batch *b, err_ctx *err)
{
    gpu_steps *s = self;
    take_batch(s, b);
    if (s->server) {
        const int rc = expert_server_prepare(s->server, err);
        if (rc < 0) return rc;
    }
    s->has_questions = s->server != NULL;
    if (s->device_cursor.pos != s->row.pos || s->device_cursor.token != b->ids[0])
        set_cursor(s, s->row.pos, b->ids[0]);
    s->device_cursor.token = -1;
    gpu_replay(s->g, s->recordings->tokens[recording_index(s)].r);
    if (s->has_questions)
        expert_server_begin(s->server, 1);       /* threads wake up during the first mixer */
    else if (fault_hits(FAULT_GPU_LOST)) return err_set(err, ERR_IO, "the GPU stopped");
    return 0;
}

static void no_step(void *self, int l)
{
    (void)self;
    (void)l;
}

static int no_experts(void *self, int l, err_ctx *err)
{
    (void)self;
    (void)l;
    (void)err;
    return 0;
}

static int replay_experts(void *self, int l, err_ctx *err)
{
    gpu_steps *s = self;
    (void)err;
    if (s->failed < 0 && !gpu_alive(s->g)) return 0;   /* no more questions will come */
    const int rc = expert_server_serve(s->server, l, s->failed < 0 ? NULL : &s->failure);
    if (s->failed == 0) s->failed = rc;
    return 0;
}

static int replay_end(void *self, err_ctx *err)
{
    gpu_steps *s = self;
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    if (s->failed < 0 && err) *err = s->failure;
    return s->failed;
}

static int copy_replayed(void *self, const float **x, err_ctx *err)
{
    gpu_steps *s = self;
    *x = s->host_transfer.x;
    return gpu_steps_wait(s, err);
}

/* ---- profiles -------------------------------------------------------------------------------- */

int gpu_steps_profile_begin(gpu_steps *s, err_ctx *err)
{
    s->profiling = true;
    return gpu_profile_begin(s->g, err);
}

void gpu_steps_profile_end(gpu_steps *s)
{
    gpu_profile_end(s->g);
    s->profiling = false;
    s->recordings->tokens[PROFILED].last = 0;
    s->device_cursor.token = -1;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void place_host_transfer(host_transfer *e, mem_layout *a, const model_hparams *hp, int n)
{
    e->x = mem_layout_floats(a, n, hp->n_embd);
    e->sums = mem_layout_floats(a, n, hp->n_embd);
    e->gates = mem_layout_floats(a, n, hp->n_expert_used);
    e->ids = mem_layout_take(a, (uint64_t)n, (uint64_t)hp->n_expert_used, sizeof *e->ids);
}

static uint64_t host_transfer_bytes(const model_hparams *hp, int chunk)
{
    host_transfer unused;
    mem_layout a = mem_layout_count(64);
    place_host_transfer(&unused, &a, hp, chunk);
    return a.used;
}

uint64_t gpu_steps_bytes(const gpu *g, const model *m, int chunk)
{
    return gpu_buffers_bytes(g, m, chunk);
}

uint64_t gpu_steps_recordings_bytes(const model *m)
{
    const uint64_t kernels = LAYER_KERNELS * (1 + (uint64_t)m->hp.n_layer);
    return RECORDINGS * kernels * GPU_RECORDED_KERNEL;
}

uint64_t gpu_steps_host_bytes(const model *m, int chunk)
{
    return sizeof(mailbox) + gpu_sampling_host_bytes(m->hp.n_vocab) +
           host_transfer_bytes(&m->hp, chunk) + prompt_split_bytes(m);
}

prompt_strategy gpu_steps_strategy(const gpu_steps *s, int n)
{
    const prompt_strategy strategy = s->banks ? plan_prompt_strategy(s->e->p, n) : PROMPT_CORES;
    if (strategy == PROMPT_SPLIT && n > PLAN_SPLIT_TOKENS) return PROMPT_BUS;
    return strategy == PROMPT_SPLIT && !s->split ? PROMPT_CORES : strategy;
}

prompt_split_stats gpu_steps_split_counts(const gpu_steps *s)
{
    return s->split ? prompt_split_counts(s->split) : (prompt_split_stats){ 0 };
}

void gpu_steps_reset_split(gpu_steps *s)
{
    if (s->split) prompt_split_reset_counts(s->split);
}

/* Needed unless the device computes everything. */
static int make_host_transfer(gpu_steps *s, int chunk, err_ctx *err)
{
    const model_hparams *hp = &s->m->hp;
    if (s->server) {
        const int rc = gpu_events_create(&s->events, s->g, N_EVENTS, err);
        if (rc < 0) return rc;
    }
    if (!s->server && head_on_gpu(s)) return 0;
    s->host_transfer.memory = gpu_alloc_host(s->g, host_transfer_bytes(hp, chunk), err);
    if (!s->host_transfer.memory) return ERR_NOMEM;
    mem_layout a = mem_layout_over(s->host_transfer.memory, 64);
    place_host_transfer(&s->host_transfer, &a, hp, chunk);
    return 0;
}

static int make_banks(gpu_steps *s, err_ctx *err)
{
    expert_banks own = s->m->experts;
    if (!s->server || s->e->p->stage_ranges == 0) return 0;
    own.n_layer = s->w->n_layer;
    const engine *e = s->e;
    const int rc = expert_stream_create(&s->banks, e->device, &own, e->store, e->cache, e->p, err);
    if (rc < 0 || e->p->split_from == INT_MAX || !expert_stream_can_pick(s->banks)) return rc;
    return prompt_split_create(&s->split, e, s->server, s->banks, err);
}

static int make_all(gpu_steps *s, int chunk, err_ctx *err)
{
    const rope_tables *rope = &s->e->rope;
    int rc;
    for (int l = 0; l < s->w->n_layer && s->server; l++)
        s->has_cold |= expert_server_has_cold(s->server, l);
    if ((rc = gpu_buffers_init(&s->b, s->g, s->m, chunk, err)) < 0) return rc;
    s->mailbox = gpu_alloc_host(s->g, sizeof *s->mailbox, err);
    if (!s->mailbox) return ERR_NOMEM;
    if ((rc = gpu_sampling_init(&s->sampling, s->g, &s->b, s->m->hp.n_vocab, err)) < 0 ||
        (rc = make_host_transfer(s, chunk, err)) < 0 || (rc = make_banks(s, err)) < 0)
        return rc;
    for (int i = 0; i < rope->n_table && rc == 0; i++)
        rc = gpu_write(s->g, s->b.freq[i], rope->freq[i],
                       (uint64_t)rope->dim[i] / 2 * sizeof(double), err);
    return rc;
}

int gpu_steps_create(gpu_steps **out, const engine *e, expert_server *server, bool skip_missing,
                     int chunk, err_ctx *err)
{
    gpu_steps *s = mem_zalloc(sizeof *s);
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "steps on the GPU: %zu bytes", sizeof *s);
    s->e = e;
    s->g = e->device;
    s->m = e->m;
    s->w = e->on_gpu;
    s->server = server;
    s->skip_missing = skip_missing;
    s->device_cursor.token = -1;
    s->live = (layer_steps){
        .self = s, .begin = begin, .mix = mix, .route = route, .experts_local = experts_local,
        .experts_asked = experts_asked, .experts_by_host = experts_by_host,
        .experts_split = experts_split, .experts_streamed = experts_streamed, .join = join,
        .end = end, .copy_to_host = copy_to_host, .logits = logits,
    };
    s->replay_table = (layer_steps){
        .self = s, .begin = replay_begin, .mix = note_written, .route = no_step,
        .experts_local = no_experts, .experts_asked = replay_experts, .join = no_step,
        .end = replay_end, .copy_to_host = copy_replayed, .logits = logits,
    };
    const int rc = make_all(s, chunk, err);
    if (rc < 0) {
        gpu_steps_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void gpu_steps_free(gpu_steps *s)
{
    if (!s) return;
    prompt_split_free(s->split);
    expert_stream_free(s->banks);
    gpu_sampling_release(&s->sampling);
    gpu_events_free(s->events);
    if (s->host_transfer.memory) gpu_free_host(s->g, s->host_transfer.memory);
    if (s->mailbox) gpu_free_host(s->g, s->mailbox);
    gpu_buffers_release(&s->b, s->g);
    mem_free(s);
}

int gpu_session_recordings_create(gpu_session_recordings **out, err_ctx *err)
{
    gpu_session_recordings *s = mem_zalloc(sizeof *s);
    int rc = 0;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "session recordings: %zu bytes", sizeof *s);
    for (int i = 0; i < RECORDINGS && rc == 0; i++) {
        s->tokens[i].refused = -1;
        rc = gpu_recording_create(&s->tokens[i].r, err);
    }
    if (rc == 0) *out = s;
    else gpu_session_recordings_free(s);
    return rc;
}

void gpu_session_recordings_free(gpu_session_recordings *s)
{
    if (!s) return;
    for (int i = 0; i < RECORDINGS; i++) gpu_recording_free(s->tokens[i].r);
    mem_free(s);
}

void gpu_steps_select(gpu_steps *s, gpu_session_recordings *recordings)
{
    s->recordings = recordings;
}

const layer_steps *gpu_steps_live(const gpu_steps *s) { return &s->live; }
const layer_steps *gpu_steps_replay(const gpu_steps *s) { return &s->replay_table; }
