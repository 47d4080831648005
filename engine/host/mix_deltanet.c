/* mix_deltanet.c - the gated delta rule of a batch on the CPU.
 *
 * Projections, convolution, then head by head the rule and the gated norm. The kernels are in
 * cpu/deltanet.h. */
#include "engine/host/host_batch.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/deltanet.h"

/* Sizes for every step below. A channel is one value of q, k or v of a token. */
typedef struct delta_sizes {
    int dim, n_k, n_v, ratio;            /* ratio: value heads that share one key head */
    bool tiled;                          /* they are every n_k-th head, not adjacent ones */
    size_t keys, values, channels;       /* widths of q (and of k), of v (and of z), of all three */
} delta_sizes;

static delta_sizes sizes_of(const model_hparams *hp)
{
    delta_sizes s = {
        .dim = hp->ssm_head_dim, .n_k = hp->ssm_n_k_head, .n_v = hp->ssm_n_v_head,
        .ratio = hp->ssm_n_v_head / hp->ssm_n_k_head, .tiled = hp->ssm_tiled,
    };
    s.keys = (size_t)s.n_k * (size_t)s.dim;
    s.values = (size_t)s.n_v * (size_t)s.dim;
    s.channels = 2 * s.keys + s.values;
    return s;
}

/* The i-th value head of key head h, and the key head of value head v. */
static int value_head(const delta_sizes *s, int h, int i)
{
    return s->tiled ? h + i * s->n_k : h * s->ratio + i;
}

static int key_head(const delta_sizes *s, int v) { return s->tiled ? v % s->n_k : v / s->ratio; }

typedef struct delta_job {
    host_batch *b;
    const layer_weights *w;
    delta_sizes s;
    int layer;
    layer_inputs in;                     /* gates: a token's write strengths, then its decays */
    bool again;                          /* in is complete, and no output is wanted */
} delta_job;

/* Where the inputs are kept, or in the workspace. */
static delta_job job_of(host_batch *b, int layer)
{
    const workspace *ws = b->ws;
    const layer_inputs own = { ws->qkv, ws->mixed, ws->delta_gates };
    return (delta_job){
        .b = b, .w = &b->w->layers[layer], .s = sizes_of(&b->m->hp), .layer = layer,
        .in = b->keep ? kept_inputs_of(b->keep, layer, 0) : own,
    };
}

/* The legacy projection has, for each key head, its q, its k, and v and z of its value heads. */
static void ungroup(void *ctx, int64_t begin, int64_t end, int thread)
{
    const delta_job *j = ctx;
    const delta_sizes *s = &j->s;
    const size_t dim = (size_t)s->dim, wide = (size_t)s->ratio * dim;
    const workspace *ws = j->b->ws;
    (void)thread;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        const float *from = ws->qkvz + t * (s->channels + s->values);
        float *qkv = j->in.raw + t * s->channels, *z = ws->z + t * s->values;
        for (size_t h = 0; h < (size_t)s->n_k; h++, from += 2 * (dim + wide)) {
            memcpy(qkv + h * dim, from, dim * sizeof *qkv);
            memcpy(qkv + s->keys + h * dim, from + dim, dim * sizeof *qkv);
            memcpy(qkv + 2 * s->keys + h * wide, from + 2 * dim, wide * sizeof *qkv);
            memcpy(z + h * wide, from + 2 * dim + wide, wide * sizeof *z);
        }
    }
}

static void project(delta_job *j)
{
    host_batch *b = j->b;
    const layer_weights *w = j->w;
    const delta_sizes *s = &j->s;
    workspace *ws = b->ws;
    const product apart[] = { { j->in.raw, &w->delta.qkv }, { ws->z, &w->delta.gate },
                              { ws->ba, &w->delta.ba } };
    const product grouped[] = { { ws->qkvz, &w->delta.in }, { ws->ba, &w->delta.ba } };
    const product split[] = { apart[0], apart[1], { ws->ba, &w->delta.beta },
                              { ws->ba + b->n * s->n_v, &w->delta.alpha } };
    if (w->delta.beta.data) {
        ops_matmuls(b->o, split, ARRAY_LEN(split), &ws->hx);
    } else if (w->delta.in.data) {
        ops_matmuls(b->o, grouped, ARRAY_LEN(grouped), &ws->hx);
        pool_run(b->o->team, b->n, pool_grain((int64_t)(s->channels + s->values)), ungroup, j);
    } else {
        ops_matmuls(b->o, apart, ARRAY_LEN(apart), &ws->hx);
    }
}

/* Write strength and decay of a value head, the i-th of its key head, before their activation
 * functions. ba has `ratio` of each for every key head, or all strengths and then all decays. */
typedef struct raw_gates { float beta, alpha; } raw_gates;

static raw_gates gates_at(const delta_job *j, size_t t, int h, int i, int v)
{
    const delta_sizes *s = &j->s;
    const float *ba = j->b->ws->ba;
    const size_t n_v = (size_t)s->n_v, ratio = (size_t)s->ratio;
    if (j->w->delta.beta.data) {
        const float *own = ba + t * n_v + (size_t)v;
        return (raw_gates){ own[0], own[(size_t)j->b->n * n_v] };
    }
    const float *own = ba + (t * (size_t)s->n_k + (size_t)h) * 2 * ratio + (size_t)i;
    return (raw_gates){ own[0], own[ratio] };
}

/* The row's own window or state becomes the one before its tokens: n values at `at`, `stride` apart
 * n_row times. Both may be the same memory. */
static void bring(float *to, const float *from, size_t at, size_t n, size_t stride, int n_row)
{
    for (int i = 0; i < n_row && to != from; i++)
        memcpy(to + at + (size_t)i * stride, from + at + (size_t)i * stride, n * sizeof *to);
}

/* Convolution of a key head's q and k and of its value heads' v; then the norms of q and k, and the
 * write strength and decay of every value head. */
static void prepare(void *ctx, int64_t begin, int64_t end, int thread)
{
    const delta_job *j = ctx;
    const delta_sizes *s = &j->s;
    const loops *f = j->b->o->loops;
    const int dim = s->dim, keys = (int)s->keys;
    const float q_scale = 1.0f / sqrtf((float)dim);
    (void)thread;
    for (int item = (int)begin; item < (int)end; item++) {       /* (row, key head) */
        const batch_row *row = &j->b->rows[item / s->n_k];
        const int h = item % s->n_k;
        const size_t t0 = (size_t)row->first;
        const float *before = recurrent_conv(state_recurrent(row->st), j->layer);
        float *window = recurrent_conv(row->next, j->layer);
        for (int i = -2; i < s->ratio; i++) {    /* q, k, and the heads of v */
            const int v = i < 0 ? h : value_head(s, h, i);
            const int first = min_int(i + 2, 2) * keys + v * dim;
            bring(window, before, (size_t)first, (size_t)dim, s->channels,
                  j->b->m->hp.ssm_conv - 1);
            f->delta_conv(j->in.mixed + t0 * s->channels, j->in.raw + t0 * s->channels, row->n,
                          (int)s->channels, first, first + dim, j->w->delta.conv,
                          j->b->m->hp.ssm_conv, window);
        }
        for (size_t t = t0; t < t0 + (size_t)row->n; t++) {
            float *q = j->in.mixed + t * s->channels + h * dim;
            f->delta_l2norm(q, dim, q_scale);
            f->delta_l2norm(q + keys, dim, 1.0f);
            for (int i = 0; i < s->ratio; i++) {
                const int v = value_head(s, h, i);
                float *gate = j->in.gates + t * 2 * (size_t)s->n_v + (size_t)v;
                const raw_gates raw = gates_at(j, t, h, i, v);
                gate[0] = sigmoid_f32(raw.beta);
                gate[s->n_v] = delta_decay(raw.alpha, j->w->delta.dt_bias[v], j->w->delta.a[v]);
            }
        }
    }
}

/* The delta rule and the gated norm, value head by value head. Fewer tokens than half a chunk are
 * cheaper as a recurrence. */
static void run_delta_rule(void *ctx, int64_t begin, int64_t end, int thread)
{
    const delta_job *j = ctx;
    const delta_sizes *s = &j->s;
    const loops *f = j->b->o->loops;
    workspace *ws = j->b->ws;
    const size_t dim = (size_t)s->dim;
    float *heads = ws->qkv;              /* its raw channels are no longer needed; [n, values] */
    for (int64_t item = begin; item < end; item++) {     /* (row, value head) */
        const batch_row *row = &j->b->rows[item / s->n_v];
        const int h = (int)(item % s->n_v);
        const size_t t0 = (size_t)row->first, gates = 2 * (size_t)s->n_v;
        const float *gate = j->in.gates + t0 * gates + (size_t)h;
        const float *mixed = j->in.mixed + t0 * s->channels;
        const float *qk = mixed + (size_t)key_head(s, h) * dim;
        const float *before = recurrent_state(state_recurrent(row->st), j->layer);
        float *after = recurrent_state(row->next, j->layer), *own = after + (size_t)h * dim * dim;
        bring(after, before, (size_t)h * dim * dim, dim * dim, 0, 1);
        const delta_args a = {
            .out = heads + t0 * s->values + (size_t)h * dim, .q = qk, .k = qk + s->keys,
            .v = mixed + 2 * s->keys + (size_t)h * dim, .beta = gate, .g = gate + s->n_v,
            .out_stride = s->values, .qk_stride = s->channels, .v_stride = s->channels,
            .bg_stride = gates, .state = own,
            .next = item + 1 < end && h + 1 < s->n_v && after == before ? own + dim * dim : NULL,
            .n = row->n, .dk = s->dim, .dv = s->dim,
        };
        if (a.n < DELTA_CHUNK / 2) f->delta_recurrence(&a);
        else f->delta_chunked(&a, ws->thread_scratch + (size_t)thread * ws->thread_floats);
        for (size_t t = 0; t < (size_t)a.n && !j->again; t++)
            f->delta_gated_norm(a.out + t * s->values,
                                ws->z + (t0 + t) * s->values + (size_t)h * dim,
                                j->w->delta.norm, s->dim, j->b->m->hp.rms_eps);
    }
}

void mix_deltanet(host_batch *b, int l)
{
    workspace *ws = b->ws;
    delta_job j = job_of(b, l);
    const int64_t n = b->n / b->n_row;   /* tokens of a row, on average */
    project(&j);
    pool_run(b->o->team, b->n_row * j.s.n_k, pool_grain(n * 64 * j.s.dim), prepare, &j);
    pool_run(b->o->team, b->n_row * j.s.n_v, pool_grain(n * 4 * j.s.dim * j.s.dim),
             run_delta_rule, &j);
    acts_set(&ws->hx, ws->qkv, b->n, (int)j.s.values);
    ops_matmul(b->o, ws->y, &j.w->delta.out, &ws->hx);
}

void mix_deltanet_again(host_batch *b, int l)
{
    const batch_row *row = b->rows;
    delta_job j = job_of(b, l);
    const size_t channels = j.s.channels, n = (size_t)row->n;
    const size_t n_old = (size_t)b->m->hp.ssm_conv - 1;
    const float *before = recurrent_conv(state_recurrent(row->st), l);
    const float *raw = j.in.raw + (size_t)row->first * channels;
    float *window = recurrent_conv(row->next, l);
    for (size_t i = 0; i < n_old; i++)
        memcpy(window + i * channels,
               i + n < n_old ? before + (i + n) * channels : raw + (i + n - n_old) * channels,
               channels * sizeof *window);
    j.again = true;
    pool_run(b->o->team, j.s.n_v, pool_grain((int64_t)n * 4 * j.s.dim * j.s.dim), run_delta_rule,
             &j);
}
