/* gpu_layers.c - the steps of a layer on the GPU: mix, route, experts and join.
 *
 * Steps enqueue operations of cuda/gpu.h, into the stream or into a recording. Operations choose
 * their kernels by the number of tokens; the order of steps does not depend on it. */
#include "engine/gpu/gpu_steps_internal.h"

#include <assert.h>
#include <math.h>

#include "engine/session/layer_memory.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

gpu_input gpu_layers_input(const gpu_steps *s, const char *name, const float *x, int cols)
{
    return (gpu_input){ .name = name, .kind = GPU_PLAIN, .n = s->n, .cols = cols,
                        .in_pass = s->in_pass, .x = x,
                        .rows = s->b.rows, .halves = s->b.halves, .lows = s->b.lows,
                        .codes = s->b.codes };
}

gpu_input gpu_layers_normed(const gpu_steps *s, const char *name, const float *x,
                            const float *gain)
{
    gpu_input in = gpu_layers_input(s, name, x, s->m->hp.n_embd);
    in.kind = GPU_NORM;
    in.weight = gain;
    in.eps = s->m->hp.rms_eps;
    return in;
}

static gpu_input normed(const gpu_steps *s, const char *name, const float *gain)
{
    return gpu_layers_normed(s, name, s->b.x, gain);
}

gpu_product gpu_layers_product(float *y, const gpu_matrix *w)
{
    return (gpu_product){ .y = y, .y_stride = w->rows, .w = *w };
}

static bool is_few(const gpu_steps *s) { return gpu_is_few(s->n, s->in_pass); }

/* x += W in. With a norm: x += norm(W in), and the buffer is zeroed, because the experts add to
 * it. */
static void add_product(gpu_steps *s, gpu_input *in, const gpu_matrix *w, const float *norm)
{
    gpu_product p = gpu_layers_product(norm ? s->b.parts[0] : s->b.x, w);
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

static_assert((int)GPU_PAGE == (int)KV_PAGE, "the device reads the pages of engine/session/kv.h");

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
    const kv_store *kv = state_kv(s->rows[0].st);        /* alike in all rows */
    const kv_column column = kv_column_of(kv, from);
    gpu_input h = normed(s, "mixer in", w->attn_norm);
    const gpu_product projections[] = {
        gpu_layers_product(b->q, &w->attn.q), gpu_layers_product(b->k, &w->attn.k),
        gpu_layers_product(b->v, &w->attn.v),
    };
    gpu_project(s->g, &h, projections, from != l ? 1 : w->attn.v.data ? 3 : 2);

    const gpu_attention a = {
        .out = b->heads, .q = b->q, .q_stride = w->attn.q.rows, .q_head_stride = stride * dim,
        .k = from == l ? b->k : NULL, .v = w->attn.v.data ? b->v : b->k, .q_norm = w->attn.q_norm,
        .k_norm = w->attn.k_norm, .norm_whole = f->attn_norm_whole,
        .norm_values = f->attn_norm_values, .eps = hp->rms_eps, .cosine = b->rope_cos[table],
        .sine = b->rope_sin[table], .rope_dim = shape.rope_dim,
        .kv = kv_types[kv_type_of(kv)], .n_column = column.stride, .column = column.index,
        .n_head = shape.n_head, .n_head_kv = shape.n_head_kv, .head_dim = dim, .window = window,
        .sinks = w->attn.sinks,
        .scale = f->attn_unscaled ? 1.0f : 1.0f / sqrtf((float)dim), .cursor = b->cursor, .n = s->n,
        .in_pass = s->in_pass, .last = s->last, .partial = b->partial, .counters = b->counters + 1,
    };
    gpu_attend(s->g, &a);

    gpu_input out = gpu_layers_input(s, "mixer out", b->heads, heads);
    if (f->attn_gated) {
        out.kind = GPU_GATED;
        out.gate = b->q + dim;
        out.head_dim = dim;
        out.head_stride = 2 * dim;
        out.gate_stride = 2 * heads;
    }
    add_product(s, &out, &w->attn.out, w->mix_out_norm);
}

/* The delta rule and its convolution in layer l, of s->n tokens. */
typedef struct delta_ops {
    gpu_conv conv;
    gpu_delta rule;
    int channels;
} delta_ops;

static_assert((int)KEPT_TOKENS <= (int)GPU_FEW, "their convolution keeps what it reads");

/* in: their inputs, in a batch or kept. raw is only written with many tokens or if it is kept. */
static delta_ops delta_of(const gpu_steps *s, int l, const layer_inputs *in)
{
    const model_hparams *hp = &s->m->hp;
    const layer_weights_gpu *w = &s->w->layers[l];
    const gpu_buffers *b = &s->b;
    const recurrent_place place = recurrent_place_of(state_recurrent(s->rows[0].st), l);
    return (delta_ops){
        .conv = { .taps = w->delta.conv, .cursor = b->cursor, .window = place.conv,
                  .n_tap = hp->ssm_conv, .raw = in->raw },
        .rule = { .out = b->delta, .mixed = in->mixed, .ba = in->gates,
                  .apart = w->delta.beta.data != NULL, .tiled = hp->ssm_tiled,
                  .dt_bias = w->delta.dt_bias, .a = w->delta.a, .cursor = b->cursor,
                  .state = place.state, .n_k = hp->ssm_n_k_head, .n_v = hp->ssm_n_v_head,
                  .dim = hp->ssm_head_dim, .n = s->n, .in_pass = s->in_pass,
                  .pos = s->rows[0].pos,
                  .scratch = b->delta_chunks },
        .channels = (int)hparams_channels(hp),
    };
}

static void mix_deltanet(gpu_steps *s, int l)
{
    const model_hparams *hp = &s->m->hp;
    const layer_weights_gpu *w = &s->w->layers[l];
    const gpu_buffers *b = &s->b;
    const layer_inputs own = { is_few(s) ? NULL : b->raw, b->mixed, b->ba };
    const layer_inputs in = s->keep ? kept_inputs_of(s->keep, l, 0) : own;
    const delta_ops d = delta_of(s, l, &in);
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    gpu_input h = normed(s, "mixer in", w->attn_norm);
    gpu_product projections[] = {
        gpu_layers_product(in.mixed, &w->delta.qkv), gpu_layers_product(b->z, &w->delta.z),
        gpu_layers_product(in.gates, d.rule.apart ? &w->delta.beta : &w->delta.ba),
        gpu_layers_product(in.gates + hp->ssm_n_v_head, &w->delta.alpha),
    };
    projections[2].y_stride = projections[3].y_stride = 2 * hp->ssm_n_v_head;
    projections[0].conv = d.conv;
    gpu_project(s->g, &h, projections, d.rule.apart ? 4 : 3);
    gpu_delta_rule(s->g, &d.rule);

    gpu_input out = gpu_layers_input(s, "mixer out", b->delta, values);
    out.kind = GPU_GATED_NORM;
    out.weight = w->delta.norm;
    out.eps = hp->rms_eps;
    out.gate = b->z;
    out.head_dim = out.head_stride = hp->ssm_head_dim;
    out.gate_stride = values;
    add_product(s, &out, &w->delta.out, w->mix_out_norm);
}

/* Layer l once more for the first s->n tokens of the row, whose inputs are kept. */
static void delta_again(gpu_steps *s, int l, const layer_inputs *in)
{
    delta_ops d = delta_of(s, l, in);
    gpu_conv_window(s->g, &d.conv, d.channels, s->n);
    gpu_delta_rule(s->g, &d.rule);
}

static int again(void *self, const batch_row *row, const kept_inputs *kept, int first, int end,
                 err_ctx *err)
{
    gpu_steps *s = self;
    const batch b = { .rows = row, .n_row = 1, .n = row->n };
    gpu_steps_take_batch(s, &b);
    gpu_steps_set_cursors(s, -1);
    for (int l = first; l < end; l++) {
        if (s->m->layers[l].mixer != MIX_DELTANET) continue;
        const layer_inputs in = kept_inputs_of(kept, l, row->first);
        delta_again(s, l, &in);
    }
    return gpu_wait(s->g, err);
}

/* Enqueued operations store the layer's keys and values before any operation reads them. */
void gpu_layers_note_written(void *self, int l)
{
    gpu_steps *s = self;
    const layer_memory a = layer_memory_of(s->m, l);
    for (int i = 0; i < s->n_row && layer_has_rows(&a); i++)
        kv_wrote(state_kv(s->rows[i].st), l, s->rows[i].pos, s->rows[i].n);
}

static void mix(void *self, int l)
{
    gpu_steps *s = self;
    if (s->m->layers[l].mixer == MIX_ATTENTION) mix_attention(s, l);
    else mix_deltanet(s, l);
    if (!s->recording) gpu_layers_note_written(s, l);
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

/* The input of the parallel network, if is_few. No other operation uses its memory, so it can
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
    const bool own = w->experts_norm != w->router_norm, few = is_few(s);
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
    const bool early = has_experts(s, l) && is_few(s);   /* route has made its input */
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

/* ---- the table ------------------------------------------------------------------------------- */

void gpu_layers_fill(layer_steps *table)
{
    table->mix = mix;
    table->route = route;
    table->experts_local = experts_local;
    table->experts_asked = experts_asked;
    table->experts_by_host = experts_by_host;
    table->experts_split = experts_split;
    table->experts_streamed = experts_streamed;
    table->join = join;
    table->again = again;
}
