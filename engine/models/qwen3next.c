/* qwen3next.c - Qwen3-Next and Qwen3-Coder-Next: which keys and tensors their files hold, and how a
 * layer mixes tokens.
 *
 * Every layer mixes tokens by gated DeltaNet (three of four) or gated attention (every fourth),
 * then has routed experts and one shared expert. All generations of files are bound to the same
 * fields; where they differ in layout (ssm_in, fused experts) the field that is set tells which. */
#include "engine/models/model_bind.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/deltanet.h"
#include "engine/batch.h"

/* ---- keys ----------------------------------------------------------------------------------- */

/* Which layers are recurrent: as attention.recurrent_layers lists them, one entry per block, else
 * all but every full_attention_interval-th. MTP blocks have attention whatever these say. */
static int bind_mixers(binder *b)
{
    const model_hparams *hp = &b->m->hp;
    const int n_block = hp->n_layer + hp->n_mtp;
    char key[BIND_KEY_CAP];
    int interval = 4, rc;
    const bind_key keys[] = {
        { "full_attention_interval", 1, MAX_BLOCKS, OPTIONAL, &interval },
    };

    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    const gguf_kv *list = gguf_find(b->file, bind_key_name(key, b, "attention.recurrent_layers"));
    if (list && !list->is_array)
        return err_set(b->err, ERR_FORMAT, "key %s is %s, expected an array", key,
                       gguf_type_name(list->type, false));
    for (int l = 0; l < hp->n_layer; l++) {
        int64_t is_recurrent = (l + 1) % interval != 0;
        rc = gguf_get_int_at(&is_recurrent, b->file, key, l, n_block, INT64_MIN, INT64_MAX, b->err);
        if (rc < 0) return rc;
        b->m->layers[l].mixer = is_recurrent ? MIX_DELTANET : MIX_ATTENTION;
    }
    return 0;
}

static int bind_delta_keys(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int inner = 0, rc;
    const bind_key keys[] = {
        { "ssm.conv_kernel",    1, MAX_CONV, REQUIRED, &hp->ssm_conv },
        { "ssm.state_size",     1, MAX_SIZE, REQUIRED, &hp->ssm_head_dim },
        { "ssm.group_count",    1, MAX_SIZE, REQUIRED, &hp->ssm_n_k_head },
        { "ssm.time_step_rank", 1, MAX_SIZE, REQUIRED, &hp->ssm_n_v_head },
        { "ssm.inner_size",     1, MAX_SIZE, REQUIRED, &inner },
    };

    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    if (hp->ssm_n_v_head % hp->ssm_n_k_head != 0)
        return err_set(b->err, ERR_FORMAT, "key %s = %d is not a multiple of ssm.group_count = %d",
                       bind_key_name(key, b, "ssm.time_step_rank"), hp->ssm_n_v_head,
                       hp->ssm_n_k_head);
    if (inner != (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim)
        return err_set(b->err, ERR_FORMAT,
                       "key %s = %d is not ssm.time_step_rank * ssm.state_size = %d * %d",
                       bind_key_name(key, b, "ssm.inner_size"), inner, hp->ssm_n_v_head,
                       hp->ssm_head_dim);
    return 0;
}

/* Widths of routed and shared experts. feed_forward_length is no width of this network: it only
 * stands in for a missing expert width, divided by the experts in use. A missing width of the
 * shared expert is read off its matrix. */
static int bind_ff_keys(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int64_t ff = 0;
    int groups = 0, rc;
    const tensor *shared = bind_find(b, 0, "ffn_gate_shexp.weight");

    bind_key_name(key, b, "feed_forward_length");
    rc = gguf_get_int_at(&ff, b->file, key, 0, hp->n_layer + hp->n_mtp, 0, MAX_SIZE, b->err);
    if (rc < 0) return rc;
    hp->n_ff_expert = (int)(ff / hp->n_expert_used);
    hp->n_ff_shared = shared && shared->rows <= MAX_SIZE ? (int)shared->rows : (int)ff;
    const bind_key keys[] = {
        { "expert_feed_forward_length",        1, MAX_SIZE,
          hp->n_ff_expert ? OPTIONAL : REQUIRED, &hp->n_ff_expert },
        { "expert_shared_feed_forward_length", 1, MAX_SIZE,
          hp->n_ff_shared ? OPTIONAL : REQUIRED, &hp->n_ff_shared },
        { "expert_group_count",                0, MAX_EXPERTS, OPTIONAL, &groups },
    };
    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    if (groups > 1)
        return err_set(b->err, ERR_UNSUPPORTED, "key %s = %d: routing by groups is not supported",
                       bind_key_name(key, b, "expert_group_count"), groups);
    return 0;
}

static int bind_hparams(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int rc;
    const bind_key sizes[] = {
        { "context_length",   1, INT_MAX,  REQUIRED, &hp->ctx_train },
        { "embedding_length", 1, MAX_SIZE, REQUIRED, &hp->n_embd },
    };
    const bind_key rope[] = {
        { "rope.dimension_count", 2, MAX_SIZE, REQUIRED, &hp->rope_dim },
    };

    if ((rc = bind_blocks(b)) < 0 || (rc = bind_mixers(b)) < 0 ||
        (rc = bind_keys(b, sizes, ARRAY_LEN(sizes))) < 0 || (rc = bind_heads(b)) < 0 ||
        (rc = bind_keys(b, rope, ARRAY_LEN(rope))) < 0 || (rc = bind_rope(b, OPTIONAL)) < 0 ||
        (rc = bind_expert_counts(b)) < 0 || (rc = bind_ff_keys(b)) < 0)
        return rc;
    return bind_delta_keys(b);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int bind_attention(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->head_dim;
    const uint64_t q = (uint64_t)hp->n_head * dim, k = (uint64_t)hp->n_head_kv * dim;
    const bind_row rows[] = {            /* attn_q: query and gate of head 0, of head 1, ... */
        { "attn_q.weight",      { embd, 2 * q }, MATRIX, REQUIRED, &y->attn.q },
        { "attn_k.weight",      { embd, k },     MATRIX, REQUIRED, &y->attn.k },
        { "attn_v.weight",      { embd, k },     MATRIX, REQUIRED, &y->attn.v },
        { "attn_output.weight", { q, embd },     MATRIX, REQUIRED, &y->attn.out },
        { "attn_q_norm.weight", { dim },         SMALL,  REQUIRED, &y->attn.q_norm },
        { "attn_k_norm.weight", { dim },         SMALL,  REQUIRED, &y->attn.k_norm },
    };
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

static int bind_deltanet(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->ssm_head_dim;
    const uint64_t n_v = (uint64_t)hp->ssm_n_v_head, v = n_v * dim;      /* also the width of z */
    const uint64_t qkv = 2 * (uint64_t)hp->ssm_n_k_head * dim + v, taps = (uint64_t)hp->ssm_conv;
    const bool split = bind_find(b, l, "attn_qkv.weight"), in = bind_find(b, l, "ssm_in.weight");
    const bool dt_bias = bind_find(b, l, "ssm_dt.bias"), dt = bind_find(b, l, "ssm_dt");
    int rc;
    const bind_row projection[] = {      /* attn_gate is the projection to z */
        { "attn_qkv.weight",   { embd, qkv },     MATRIX, REQUIRED, &y->delta.qkv },
        { "attn_gate.weight",  { embd, v },       MATRIX, REQUIRED, &y->delta.gate },
    };
    const bind_row legacy[] = {
        { "ssm_in.weight",     { embd, qkv + v }, MATRIX, REQUIRED, &y->delta.in },
    };
    const bind_row rest[] = {            /* ssm_dt: as one converter calls the bias */
        { "ssm_ba.weight",     { embd, 2 * n_v }, MATRIX, REQUIRED, &y->delta.ba },
        { "ssm_conv1d.weight", { taps, qkv },     SMALL,  REQUIRED, &y->delta.conv },
        { dt_bias ? "ssm_dt.bias" : "ssm_dt",
                               { n_v },           SMALL,  REQUIRED, &y->delta.dt_bias },
        { "ssm_a",             { n_v },           SMALL,  REQUIRED, &y->delta.a },
        { "ssm_norm.weight",   { dim },           SMALL,  REQUIRED, &y->delta.norm },
        { "ssm_out.weight",    { v, embd },       MATRIX, REQUIRED, &y->delta.out },
    };

    if (!split && !in) return bind_missing(b, l, "attn_qkv.weight", "ssm_in.weight");
    if (!dt_bias && !dt) return bind_missing(b, l, "ssm_dt.bias", "ssm_dt");
    rc = split ? bind_rows(b, l, projection, ARRAY_LEN(projection))
               : bind_rows(b, l, legacy, ARRAY_LEN(legacy));
    return rc < 0 ? rc : bind_rows(b, l, rest, ARRAY_LEN(rest));
}

static int bind_ffn(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, ff = (uint64_t)hp->n_ff_shared;
    const uint64_t n = (uint64_t)hp->n_expert;
    const bind_row rows[] = {
        { "ffn_gate_inp.weight",       { embd, n },  SMALL,  REQUIRED, &y->router },
        { "ffn_gate_inp_shexp.weight", { embd },     SMALL,  REQUIRED, &y->shared_gate_inp },
        { "ffn_gate_shexp.weight",     { embd, ff }, MATRIX, REQUIRED, &y->shared_gate },
        { "ffn_up_shexp.weight",       { embd, ff }, MATRIX, REQUIRED, &y->shared_up },
        { "ffn_down_shexp.weight",     { ff, embd }, MATRIX, REQUIRED, &y->shared_down },
    };
    const int rc = bind_rows(b, l, rows, ARRAY_LEN(rows));
    return rc < 0 ? rc : bind_experts(b, l, false);
}

/* What only a next-token block has. Without embedding, head norm or head it uses the trunk's. */
static int bind_mtp(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    const uint64_t embd = (uint64_t)hp->n_embd, vocab = (uint64_t)hp->n_vocab;
    struct mtp_weights *x = &b->m->layers[l].mtp;
    const bind_row rows[] = {
        { "nextn.eh_proj.weight",          { 2 * embd, embd }, MATRIX, REQUIRED, &x->eh_proj },
        { "nextn.enorm.weight",            { embd },           SMALL,  REQUIRED, &x->enorm },
        { "nextn.hnorm.weight",            { embd },           SMALL,  REQUIRED, &x->hnorm },
        { "nextn.shared_head_norm.weight", { embd },           SMALL,  OPTIONAL, &x->head_norm },
        { "nextn.embed_tokens.weight",     { embd, vocab },    MATRIX, OPTIONAL, &x->embed },
        { "nextn.shared_head_head.weight", { embd, vocab },    MATRIX, OPTIONAL, &x->head },
    };
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

/* The keys say what kind a layer is; a tensor that only the other kind has contradicts them. */
static int check_mixer(const binder *b, int l)
{
    const bool delta = b->m->layers[l].mixer == MIX_DELTANET;
    const char *alien = delta ? "attn_q.weight" : "ssm_a";
    if (!bind_find(b, l, alien)) return 0;
    return err_set(b->err, ERR_FORMAT, "layer %d is %s by the keys, but the file has blk.%d.%s", l,
                   delta ? "recurrent" : "full attention", l, alien);
}

static int bind_layer(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd;
    const bind_row norms[] = {
        { "attn_norm.weight",           { embd }, SMALL, REQUIRED, &y->attn_norm },
        { "post_attention_norm.weight", { embd }, SMALL, REQUIRED, &y->post_attn_norm },
    };
    int rc;

    if ((rc = check_mixer(b, l)) < 0) return rc;
    if ((rc = bind_rows(b, l, norms, ARRAY_LEN(norms))) < 0) return rc;
    rc = y->mixer == MIX_DELTANET ? bind_deltanet(b, l) : bind_attention(b, l);
    if (rc < 0 || (rc = bind_ffn(b, l)) < 0) return rc;
    return l < b->m->hp.n_layer ? 0 : bind_mtp(b, l);
}

/* Some files keep the key of a next-token block that was cut out of them. */
static void forget_absent_mtp(binder *b)
{
    model_hparams *hp = &b->m->hp;
    const int l = hp->n_layer;
    if (hp->n_mtp == 0 || bind_find(b, l, "attn_norm.weight") ||
        bind_find(b, l, "nextn.eh_proj.weight"))
        return;
    log_line("blk.%d is announced as a next-token block and is not there: left out", l);
    hp->n_mtp = 0;
}

int qwen3next_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    forget_absent_mtp(b);
    for (int l = 0; l < b->m->hp.n_layer + b->m->hp.n_mtp; l++)
        if ((rc = bind_layer(b, l)) < 0) return rc;
    return 0;
}

/* ---- the recipe: gated attention ------------------------------------------------------------- */

/* heads *= sigmoid(gate), the gate as it was projected: neither normed nor rotated. */
static void gate_heads(void *ctx, int64_t begin, int64_t end, int thread)
{
    const batch *p = ctx;
    const size_t dim = (size_t)p->m->hp.head_dim;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {      /* (token, head) */
        float *out = p->ws->heads + (size_t)i * dim;
        const float *gate = p->ws->q_gate + (2 * (size_t)i + 1) * dim;
        p->o->loops->gate(out, out, gate, (int)dim);
    }
}

static void mix_attention(batch *p, int l)
{
    const layer_weights *w = &p->w->layers[l];
    const model_hparams *hp = &p->m->hp;
    const size_t dim = (size_t)hp->head_dim;
    const int n_q = p->n * hp->n_head, n_k = p->n * hp->n_head_kv;
    workspace *ws = p->ws;
    const product projections[] = { { ws->q_gate, &w->attn.q }, { ws->k, &w->attn.k },
                                    { ws->v, &w->attn.v } };

    ops_matmuls(p->o, projections, ARRAY_LEN(projections), &ws->hx);
    for (size_t i = 0; i < (size_t)n_q; i++)     /* query, gate, query, gate, ... */
        memcpy(ws->q + i * dim, ws->q_gate + 2 * i * dim, dim * sizeof *ws->q);
    ops_rmsnorm(p->o, ws->q, ws->q, w->attn.q_norm, n_q, hp->head_dim, dim, hp->rms_eps);
    ops_rmsnorm(p->o, ws->k, ws->k, w->attn.k_norm, n_k, hp->head_dim, dim, hp->rms_eps);
    batch_rotate(p, ws->q, hp->n_head, dim, false);
    batch_rotate(p, ws->k, hp->n_head_kv, dim, false);
    batch_attend(p, l, NULL);
    pool_run(p->o->team, n_q, pool_grain(16 * hp->head_dim), gate_heads, p);
    acts_set(&ws->hx, ws->heads, p->n, hp->n_head * hp->head_dim);
    ops_matmul(p->o, ws->y, &w->attn.out, &ws->hx);
}

/* ---- the recipe: gated DeltaNet -------------------------------------------------------------- */

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
static void ungroup(batch *p, const delta_sizes *s)
{
    const size_t dim = (size_t)s->dim, wide = (size_t)s->ratio * dim;
    workspace *ws = p->ws;
    for (size_t t = 0; t < (size_t)p->n; t++) {
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

static void project(batch *p, const layer_weights *w, const delta_sizes *s)
{
    workspace *ws = p->ws;
    const product apart[] = { { ws->qkv, &w->delta.qkv }, { ws->z, &w->delta.gate },
                              { ws->ba, &w->delta.ba } };
    const product grouped[] = { { ws->qkvz, &w->delta.in }, { ws->ba, &w->delta.ba } };
    if (w->delta.in.data) {
        ops_matmuls(p->o, grouped, ARRAY_LEN(grouped), &ws->hx);
        ungroup(p, s);
    } else {
        ops_matmuls(p->o, apart, ARRAY_LEN(apart), &ws->hx);
    }
}

typedef struct delta_job {
    batch *p;
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
    const loops *f = j->p->o->loops;
    workspace *ws = j->p->ws;
    const int n = j->p->n, dim = s->dim, keys = (int)s->keys, wide = s->ratio * dim;
    const float q_scale = 1.0f / sqrtf((float)dim);
    (void)thread;
    for (int h = (int)begin; h < (int)end; h++) {
        const struct { int first, n; } parts[] = {
            { h * dim, dim }, { keys + h * dim, dim }, { 2 * keys + h * wide, wide },
        };
        for (size_t i = 0; i < ARRAY_LEN(parts); i++)
            f->delta_conv(ws->mixed, ws->qkv, n, (int)s->channels, parts[i].first,
                          parts[i].first + parts[i].n, j->w->delta.conv, j->p->m->hp.ssm_conv,
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
    const loops *f = j->p->o->loops;
    workspace *ws = j->p->ws;
    const size_t dim = (size_t)s->dim;
    float *heads = ws->qkv;              /* raw channels are done with: values' width of it */
    for (int64_t h = begin; h < end; h++) {
        const float *qk = ws->mixed + (size_t)(h / s->ratio) * dim;
        const delta_args a = {
            .out = heads + (size_t)h * dim, .q = qk, .k = qk + s->keys,
            .v = ws->mixed + 2 * s->keys + (size_t)h * dim, .beta = ws->beta + h, .g = ws->g + h,
            .out_stride = s->values, .qk_stride = s->channels, .v_stride = s->channels,
            .bg_stride = (size_t)s->n_v, .state = j->state + (size_t)h * dim * dim,
            .next = h + 1 < end ? j->state + (size_t)(h + 1) * dim * dim : NULL,
            .n = j->p->n, .dk = s->dim, .dv = s->dim,
        };
        if (a.n < DELTA_CHUNK / 2) f->delta_recurrence(&a);
        else f->delta_chunked(&a, ws->thread_scratch + (size_t)thread * ws->thread_floats);
        for (size_t t = 0; t < (size_t)a.n; t++)
            f->delta_gated_norm(a.out + t * s->values, ws->z + t * s->values + (size_t)h * dim,
                                j->w->delta.norm, s->dim, j->p->m->hp.rms_eps);
    }
}

static void mix_deltanet(batch *p, int l)
{
    recurrent *memory = state_recurrent(p->st);
    workspace *ws = p->ws;
    delta_job j = {
        .p = p, .w = &p->w->layers[l], .s = sizes_of(&p->m->hp),
        .window = recurrent_conv(memory, l), .state = recurrent_state(memory, l),
    };
    project(p, j.w, &j.s);
    pool_run(p->o->team, j.s.n_k, pool_grain((int64_t)p->n * 64 * j.s.dim), prepare, &j);
    pool_run(p->o->team, j.s.n_v, pool_grain((int64_t)p->n * 4 * j.s.dim * j.s.dim), remember, &j);
    acts_set(&ws->hx, ws->qkv, p->n, (int)j.s.values);
    ops_matmul(p->o, ws->y, &j.w->delta.out, &ws->hx);
}

static void mix(batch *p, int l)
{
    if (p->m->layers[l].mixer == MIX_ATTENTION) mix_attention(p, l);
    else mix_deltanet(p, l);
}

const recipe qwen3next_recipe = { .mix = mix, .act = ACT_SWIGLU };
