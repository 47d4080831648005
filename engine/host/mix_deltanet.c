/* mix_deltanet.c - the gated delta rule of a batch on the CPU.
 *
 * Projections, convolution, then head by head the rule and the gated norm. The loops over numbers
 * are cpu/deltanet.h's. */
#include "engine/host/host_batch.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/deltanet.h"

/* Sizes that every step below needs. A channel is one value of q, k or v of a token. */
typedef struct delta_sizes {
    int dim, n_k, n_v, ratio;            /* ratio: value heads that share one key head */
    size_t keys, values, channels;       /* widths of q (and of k), of v (and of z), of all three */
} delta_sizes;

static delta_sizes sizes_of(const model_hparams *hp)
{
    delta_sizes s = {
        .dim = hp->ssm_head_dim, .n_k = hp->ssm_n_k_head, .n_v = hp->ssm_n_v_head,
        .ratio = hp->ssm_n_v_head / hp->ssm_n_k_head,
    };
    s.keys = (size_t)s.n_k * (size_t)s.dim;
    s.values = (size_t)s.n_v * (size_t)s.dim;
    s.channels = 2 * s.keys + s.values;
    return s;
}

/* The legacy projection has, for each key head, its q, its k, and v and z of its value heads. */
static void ungroup(host_batch *b, const delta_sizes *s)
{
    const size_t dim = (size_t)s->dim, wide = (size_t)s->ratio * dim;
    workspace *ws = b->ws;
    for (size_t t = 0; t < (size_t)b->n; t++) {
        const float *from = ws->qkvz + t * (s->channels + s->values);
        float *qkv = ws->qkv + t * s->channels, *z = ws->z + t * s->values;
        for (size_t h = 0; h < (size_t)s->n_k; h++, from += 2 * (dim + wide)) {
            memcpy(qkv + h * dim, from, dim * sizeof *qkv);
            memcpy(qkv + s->keys + h * dim, from + dim, dim * sizeof *qkv);
            memcpy(qkv + 2 * s->keys + h * wide, from + 2 * dim, wide * sizeof *qkv);
            memcpy(z + h * wide, from + 2 * dim + wide, wide * sizeof *z);
        }
    }
}

static void project(host_batch *b, const layer_weights *w, const delta_sizes *s)
{
    workspace *ws = b->ws;
    const product apart[] = { { ws->qkv, &w->delta.qkv }, { ws->z, &w->delta.gate },
                              { ws->ba, &w->delta.ba } };
    const product grouped[] = { { ws->qkvz, &w->delta.in }, { ws->ba, &w->delta.ba } };
    if (w->delta.in.data) {
        ops_matmuls(b->o, grouped, ARRAY_LEN(grouped), &ws->hx);
        ungroup(b, s);
    } else {
        ops_matmuls(b->o, apart, ARRAY_LEN(apart), &ws->hx);
    }
}

typedef struct delta_job {
    host_batch *b;
    const layer_weights *w;
    delta_sizes s;
    float *window, *state;
} delta_job;

/* Convolution of a key head's q and k and of its value heads' v; then the length of q and k, and of
 * every value head the write strength and the decay, which lie as `ratio` betas and `ratio` alphas
 * for each key head. */
static void prepare(void *ctx, int64_t begin, int64_t end, int thread)
{
    const delta_job *j = ctx;
    const delta_sizes *s = &j->s;
    const loops *f = j->b->o->loops;
    workspace *ws = j->b->ws;
    const int n = j->b->n, dim = s->dim, keys = (int)s->keys, wide = s->ratio * dim;
    const float q_scale = 1.0f / sqrtf((float)dim);
    (void)thread;
    for (int h = (int)begin; h < (int)end; h++) {
        const struct { int first, n; } parts[] = {
            { h * dim, dim }, { keys + h * dim, dim }, { 2 * keys + h * wide, wide },
        };
        for (size_t i = 0; i < ARRAY_LEN(parts); i++)
            f->delta_conv(ws->mixed, ws->qkv, n, (int)s->channels, parts[i].first,
                          parts[i].first + parts[i].n, j->w->delta.conv, j->b->m->hp.ssm_conv,
                          j->window);
        for (size_t t = 0; t < (size_t)n; t++) {
            float *q = ws->mixed + t * s->channels + h * dim;
            const float *ba = ws->ba + (t * (size_t)s->n_k + (size_t)h) * 2 * (size_t)s->ratio;
            f->delta_l2norm(q, dim, q_scale);
            f->delta_l2norm(q + keys, dim, 1.0f);
            for (int i = 0; i < s->ratio; i++) {
                const int v = h * s->ratio + i;
                const size_t at = t * (size_t)s->n_v + (size_t)v;
                ws->beta[at] = sigmoid_f32(ba[i]);
                ws->g[at] = delta_decay(ba[s->ratio + i], j->w->delta.dt_bias[v],
                                        j->w->delta.a[v]);
            }
        }
    }
}

/* The delta rule and the gated norm, value head by value head. Runs shorter than half a chunk are
 * cheaper as a recurrence. */
static void remember(void *ctx, int64_t begin, int64_t end, int thread)
{
    const delta_job *j = ctx;
    const delta_sizes *s = &j->s;
    const loops *f = j->b->o->loops;
    workspace *ws = j->b->ws;
    const size_t dim = (size_t)s->dim;
    float *heads = ws->qkv;              /* its raw channels are no longer needed; [n, values] */
    for (int64_t h = begin; h < end; h++) {
        const float *qk = ws->mixed + (size_t)(h / s->ratio) * dim;
        const delta_args a = {
            .out = heads + (size_t)h * dim, .q = qk, .k = qk + s->keys,
            .v = ws->mixed + 2 * s->keys + (size_t)h * dim, .beta = ws->beta + h, .g = ws->g + h,
            .out_stride = s->values, .qk_stride = s->channels, .v_stride = s->channels,
            .bg_stride = (size_t)s->n_v, .state = j->state + (size_t)h * dim * dim,
            .next = h + 1 < end ? j->state + (size_t)(h + 1) * dim * dim : NULL,
            .n = j->b->n, .dk = s->dim, .dv = s->dim,
        };
        if (a.n < DELTA_CHUNK / 2) f->delta_recurrence(&a);
        else f->delta_chunked(&a, ws->thread_scratch + (size_t)thread * ws->thread_floats);
        for (size_t t = 0; t < (size_t)a.n; t++)
            f->delta_gated_norm(a.out + t * s->values, ws->z + t * s->values + (size_t)h * dim,
                                j->w->delta.norm, s->dim, j->b->m->hp.rms_eps);
    }
}

void mix_deltanet(host_batch *b, int l)
{
    recurrent *memory = state_recurrent(b->st);
    workspace *ws = b->ws;
    delta_job j = {
        .b = b, .w = &b->w->layers[l], .s = sizes_of(&b->m->hp),
        .window = recurrent_conv(memory, l), .state = recurrent_state(memory, l),
    };
    project(b, j.w, &j.s);
    pool_run(b->o->team, j.s.n_k, pool_grain((int64_t)b->n * 64 * j.s.dim), prepare, &j);
    pool_run(b->o->team, j.s.n_v, pool_grain((int64_t)b->n * 4 * j.s.dim * j.s.dim), remember, &j);
    acts_set(&ws->hx, ws->qkv, b->n, (int)j.s.values);
    ops_matmul(b->o, ws->y, &j.w->delta.out, &ws->hx);
}
