/* weights_gpu.c - moves a model's weights to VRAM.
 *
 * put_all() visits all tensors twice: without an arena it counts bytes, with one it copies. The
 * threads of the team copy into page-locked buffers. */
#include "engine/gpu/weights_gpu.h"

#include <inttypes.h>
#include <string.h>

#include "tiers/fault_injection.h"

typedef struct uploader {
    uint8_t *arena;                      /* NULL while counting */
    bool zeros;                          /* reserves, but copies nothing */
    uint64_t used, total;
    gpu *g;
    pool *team;
    progress_fn *watch;
    void *ctx;
    err_ctx *err;
    int rc;                              /* the first failure */
} uploader;

/* ---- copying --------------------------------------------------------------------------------- */

/* Reserves bytes of the arena; the address is NULL while counting. */
static uint8_t *reserve(uploader *s, uint64_t bytes)
{
    uint8_t *dst = s->arena ? s->arena + s->used : NULL;
    s->used += size_align(bytes, 256);
    return dst;
}

static void copy_to(uploader *s, uint8_t *dst, const void *from, uint64_t bytes)
{
    if (!s->arena || s->zeros || s->rc < 0) return;
    s->rc = gpu_upload(s->g, dst, from, bytes, pool_copy, s->team, s->err);
    if (s->rc == 0 && s->watch && !s->watch(s->ctx, s->used, s->total))
        s->rc = err_set(s->err, ERR_STOPPED, "interrupted");
}

static uint8_t *put(uploader *s, const void *from, uint64_t bytes)
{
    uint8_t *dst = reserve(s, bytes);
    copy_to(s, dst, from, bytes);
    return dst;
}

/* ---- the kinds of tensors -------------------------------------------------------------------- */

static const float *put_floats(uploader *s, const void *from, uint64_t n)
{
    return from ? (const float *)(const void *)put(s, from, n * sizeof(float)) : NULL;
}

static gpu_matrix shape_of(const matrix *m)
{
    return (gpu_matrix){ .type = m->type, .rows = m->rows, .cols = m->cols,
                         .row_bytes = m->row_bytes, .scale = m->scale };
}

static gpu_matrix put_matrix(uploader *s, const matrix *m)
{
    gpu_matrix out = { 0 };
    if (!m->data) return out;
    out = shape_of(m);
    out.data = put(s, m->data, (uint64_t)m->rows * m->row_bytes);
    out.bias = put_floats(s, m->bias, (uint64_t)m->rows);
    return out;
}

/* The first `hot` experts; the small vectors of all experts. */
static gpu_bank put_bank(uploader *s, const expert_bank *b, expert_slab slab, int hot)
{
    const uint64_t n = (uint64_t)b->n_expert, bytes = expert_slab_bytes(b, slab);
    const matrix one = expert_matrix(b, slab, 0);
    gpu_bank out = { .type = one.type, .rows = one.rows, .cols = one.cols,
                     .row_bytes = one.row_bytes, .slab_bytes = bytes };
    uint8_t *dst = reserve(s, (uint64_t)hot * bytes);
    out.data = hot > 0 ? dst : NULL;
    if (!b->fused || slab == SLAB_DOWN) {                /* contiguous in the file */
        copy_to(s, dst, expert_slab_data(b, slab, 0), (uint64_t)hot * bytes);
    } else {
        for (int e = 0; e < hot; e++)
            copy_to(s, dst ? dst + (uint64_t)e * bytes : NULL, expert_slab_data(b, slab, e), bytes);
    }
    if (b->bias[slab]) out.bias = put_floats(s, b->bias[slab]->data, n * (uint64_t)one.rows);
    if (b->scale[slab]) out.scale = put_floats(s, b->scale[slab]->data, n);
    return out;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The legacy projection has, for each key head, the rows of q, of k, and of v and z of its value
 * heads. In VRAM all rows of q, of k, of v and of z are contiguous. */
static void put_grouped(layer_weights_gpu *y, uploader *s, const matrix *in,
                        const model_hparams *hp)
{
    const uint64_t dim = (uint64_t)hp->ssm_head_dim, n_k = (uint64_t)hp->ssm_n_k_head;
    const uint64_t wide = dim * (uint64_t)(hp->ssm_n_v_head / hp->ssm_n_k_head);
    const uint64_t row = in->row_bytes;
    const uint64_t group = 2 * (dim + wide), keys = n_k * dim, values = n_k * wide;
    y->delta.qkv = y->delta.z = shape_of(in);
    y->delta.qkv.rows = (int)(2 * keys + values);
    y->delta.z.rows = (int)values;
    uint8_t *qkv = reserve(s, (2 * keys + values) * row), *z = reserve(s, values * row);
    for (uint64_t h = 0; h < n_k && s->arena; h++) {
        const uint8_t *from = in->data + h * group * row;
        copy_to(s, qkv + h * dim * row, from, dim * row);
        copy_to(s, qkv + (keys + h * dim) * row, from + dim * row, dim * row);
        copy_to(s, qkv + (2 * keys + h * wide) * row, from + 2 * dim * row, wide * row);
        copy_to(s, z + h * wide * row, from + (2 * dim + wide) * row, wide * row);
    }
    y->delta.qkv.data = qkv;
    y->delta.z.data = z;
}

/* Rows of queries or keys, `bytes` each, head by head: rotated row 2i moves to i and 2i + 1 to
 * half + i, as in mix_attention.c's split_neighbours. */
static uint8_t *put_rotated(uploader *s, const void *from, uint64_t bytes, int rows,
                            attn_shape heads)
{
    const uint64_t dim = (uint64_t)heads.head_dim, half = (uint64_t)heads.rope_dim / 2;
    uint8_t *dst = reserve(s, (uint64_t)rows * bytes), *head;
    if (!s->arena || s->zeros || s->rc < 0) return dst;
    head = mem_alloc(dim * bytes);
    if (!head) s->rc = err_set(s->err, ERR_NOMEM, "a head: %" PRIu64 " bytes", dim * bytes);
    for (uint64_t r = 0; r < (uint64_t)rows && s->rc == 0; r += dim) {
        const uint8_t *in = (const uint8_t *)from + r * bytes;
        for (uint64_t i = 0; i < half; i++) {
            memcpy(head + i * bytes, in + 2 * i * bytes, bytes);
            memcpy(head + (half + i) * bytes, in + (2 * i + 1) * bytes, bytes);
        }
        memcpy(head + 2 * half * bytes, in + 2 * half * bytes, (dim - 2 * half) * bytes);
        copy_to(s, dst + r * bytes, head, dim * bytes);
    }
    mem_free(head);
    return dst;
}

/* The projection of queries or keys. All operations rotate row i with row half + i of a head. */
static gpu_matrix put_projection(uploader *s, const matrix *m, const model *of, attn_shape heads)
{
    if (!of->family->rope_neighbours) return put_matrix(s, m);
    gpu_matrix out = shape_of(m);
    out.data = put_rotated(s, m->data, m->row_bytes, m->rows, heads);
    if (m->bias)
        out.bias = (const float *)(const void *)put_rotated(s, m->bias, sizeof(float), m->rows,
                                                            heads);
    return out;
}

static void put_attention(layer_weights_gpu *y, uploader *s, const layer_weights *x, const model *m,
                          attn_shape heads)
{
    const bool whole = m->family->attn_norm_whole;
    const uint64_t dim = (uint64_t)heads.head_dim;
    y->attn.q = put_projection(s, &x->attn.q, m, heads);
    y->attn.k = put_projection(s, &x->attn.k, m, heads);
    y->attn.v = put_matrix(s, &x->attn.v);
    y->attn.out = put_matrix(s, &x->attn.out);
    y->attn.q_norm = put_floats(s, x->attn.q_norm, dim * (whole ? (uint64_t)heads.n_head : 1));
    y->attn.k_norm = put_floats(s, x->attn.k_norm, dim * (whole ? (uint64_t)heads.n_head_kv : 1));
    y->attn.sinks = put_floats(s, x->attn.sinks, (uint64_t)heads.n_head);
}

static void put_norms(layer_weights_gpu *y, uploader *s, const layer_weights *x, uint64_t n)
{
    y->attn_norm = put_floats(s, x->attn_norm, n);
    y->post_attn_norm = y->router_norm = y->experts_norm = put_floats(s, x->post_attn_norm, n);
    if (x->router_norm != x->post_attn_norm) y->router_norm = put_floats(s, x->router_norm, n);
    if (x->experts_norm != x->post_attn_norm) y->experts_norm = put_floats(s, x->experts_norm, n);
    y->mix_out_norm = put_floats(s, x->mix_out_norm, n);
    y->experts_out_norm = put_floats(s, x->experts_out_norm, n);
    y->shared_out_norm = put_floats(s, x->shared_out_norm, n);
    y->ffn_out_norm = put_floats(s, x->ffn_out_norm, n);
    y->out_scale = x->out_scale;
}

static void put_deltanet(layer_weights_gpu *y, uploader *s, const layer_weights *x,
                         const model_hparams *hp)
{
    const uint64_t n_v = (uint64_t)hp->ssm_n_v_head, dim = (uint64_t)hp->ssm_head_dim;
    const uint64_t channels = hparams_channels(hp);
    if (x->delta.in.data) {
        put_grouped(y, s, &x->delta.in, hp);
    } else {
        y->delta.qkv = put_matrix(s, &x->delta.qkv);
        y->delta.z = put_matrix(s, &x->delta.gate);
    }
    y->delta.ba = put_matrix(s, &x->delta.ba);
    y->delta.beta = put_matrix(s, &x->delta.beta);
    y->delta.alpha = put_matrix(s, &x->delta.alpha);
    y->delta.out = put_matrix(s, &x->delta.out);
    y->delta.conv = put_floats(s, x->delta.conv, channels * (uint64_t)hp->ssm_conv);
    y->delta.dt_bias = put_floats(s, x->delta.dt_bias, n_v);
    y->delta.a = put_floats(s, x->delta.a, n_v);
    y->delta.norm = put_floats(s, x->delta.norm, dim);
}

static void put_layer(layer_weights_gpu *y, uploader *s, const model *m, const layer_weights *x,
                      int l, int hot)
{
    const model_hparams *hp = &m->hp;
    put_norms(y, s, x, (uint64_t)hp->n_embd);
    if (m->layers[l].mixer == MIX_ATTENTION)
        put_attention(y, s, x, m, layer_attn(hp, &m->layers[l]));
    else put_deltanet(y, s, x, hp);
    y->router = put_matrix(s, &x->router);
    y->choice_bias = put_floats(s, x->choice_bias, (uint64_t)hp->n_expert);
    y->shared_gate_inp = put_matrix(s, &x->shared_gate_inp);
    y->shared_gate = put_matrix(s, &x->shared_gate);
    y->shared_up = put_matrix(s, &x->shared_up);
    y->shared_down = put_matrix(s, &x->shared_down);
    if (x->experts->n_expert == 0) return;
    y->gate = put_bank(s, x->experts, SLAB_GATE, hot);
    y->up = put_bank(s, x->experts, SLAB_UP, hot);
    y->down = put_bank(s, x->experts, SLAB_DOWN, hot);
}

/* The columns of eh_proj from `first` on, as many as rows: whole blocks (model_use_mtp). */
static gpu_matrix put_half(uploader *s, const matrix *m, bool second)
{
    const uint64_t row = m->row_bytes / 2, n = (uint64_t)m->rows;
    gpu_matrix out = shape_of(m);
    out.cols /= 2;
    out.row_bytes = row;
    uint8_t *dst = reserve(s, n * row);
    out.data = dst;
    if (!s->arena || s->zeros || s->rc < 0) return out;
    uint8_t *half = mem_array(n, row);
    if (!half) s->rc = err_set(s->err, ERR_NOMEM, "half a matrix: %" PRIu64 " bytes", n * row);
    for (uint64_t r = 0; r < n && half; r++)
        memcpy(half + r * row, m->data + (2 * r + second) * row, row);
    copy_to(s, dst, half, n * row);
    mem_free(half);
    return out;
}

static void put_mtp(weights_gpu *out, uploader *s, const model *m, const weights *w)
{
    const int l = m->hp.n_layer;
    const uint64_t n_embd = (uint64_t)m->hp.n_embd;
    layer_weights_gpu unused = { 0 };
    put_layer(out->layers ? &out->layers[l] : &unused, s, m, &w->layers[l], l, m->hp.n_expert);
    out->mtp = (mtp_gpu){
        .of_embed = put_half(s, &w->mtp.eh_proj, false),
        .of_hidden = put_half(s, &w->mtp.eh_proj, true),
        .embed = w->mtp.embed.data ? put_matrix(s, &w->mtp.embed) : out->embed,
        .head = w->mtp.head.data ? put_matrix(s, &w->mtp.head) : out->head,
        .enorm = put_floats(s, w->mtp.enorm, n_embd), .hnorm = put_floats(s, w->mtp.hnorm, n_embd),
        .head_norm = w->mtp.head_norm == w->out_norm ? out->out_norm
                                                     : put_floats(s, w->mtp.head_norm, n_embd),
    };
}

static void put_all(weights_gpu *out, uploader *s, const model *m, const weights *w,
                    const weights_choice *choice)
{
    matrix embed = w->embed;
    if (choice->zeros) embed.rows = 1;
    if (!choice->embed_in_ram) out->embed = put_matrix(s, &embed);
    if (choice->head) {
        out->head = w->head.data == w->embed.data ? out->embed : put_matrix(s, &w->head);
        out->head.scale = w->head.scale;
        out->out_norm = put_floats(s, w->out_norm, (uint64_t)m->hp.n_embd);
    }
    for (int l = 0; l < choice->n_layer; l++) {
        layer_weights_gpu unused = { 0 };
        put_layer(out->layers ? &out->layers[l] : &unused, s, m, &w->layers[l], l,
                  choice->hot ? choice->hot[l] : m->hp.n_expert);
    }
    if (choice->head && m->hp.uses_mtp) put_mtp(out, s, m, w);
}

gpu_router_rule weights_gpu_rule(const router_rule *rule, const float *choice_bias)
{
    return (gpu_router_rule){ .sigmoid = rule->score == ROUTER_SIGMOID,
                              .as_scored = rule->as_scored, .factor = rule->factor,
                              .bias = choice_bias };
}

gpu_activation weights_gpu_act(expert_activation act)
{
    static const gpu_activation of[] = {
        [ACT_SWIGLU] = GPU_SWIGLU, [ACT_SWIGLU_CLAMPED] = GPU_SWIGLU_CLAMPED,
        [ACT_GEGLU] = GPU_GEGLU,
    };
    return of[act];
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct type_check {
    err_ctx *err;
    int n_layer, rc;
} type_check;

static void check_tensor(void *ctx, const tensor *t, model_use use, int layer)
{
    type_check *c = ctx;
    if (c->rc < 0 || layer >= c->n_layer || use == USE_NORM || use == USE_EXPERT_SMALL ||
        gpu_type_fits((int)t->type))
        return;
    c->rc = err_set(c->err, ERR_UNSUPPORTED, "tensor %.*s: there is no GPU kernel for %s",
                    (int)t->name.len, t->name.ptr, quant_name(t->type));
}

static bool types_differ(const tensor *a, const tensor *b)
{
    return a && b && a->type != b->type;
}

static int check_heads(attn_shape heads, err_ctx *err)
{
    if (gpu_attention_fits(heads.n_head, heads.n_head_kv, heads.head_dim)) return 0;
    return err_set(err, ERR_UNSUPPORTED, "there is no GPU kernel for %d heads of %d values, %d "
                   "for keys", heads.n_head, heads.head_dim, heads.n_head_kv);
}

int weights_gpu_check(const model *m, err_ctx *err)
{
    const model_hparams *hp = &m->hp;
    type_check c = { .err = err, .n_layer = hparams_layers(hp) };
    int rc;
    if ((rc = check_heads(hparams_attn(hp, false), err)) < 0 ||
        (rc = check_heads(hparams_attn(hp, true), err)) < 0)
        return rc;
    if (hp->ssm_n_v_head > 0 && (!gpu_delta_fits(hp->ssm_head_dim) || hp->ssm_conv < 2 ||
                                 hp->ssm_conv > 8))
        return err_set(err, ERR_UNSUPPORTED, "there is no GPU kernel for DeltaNet heads of %d "
                       "values and a convolution over %d", hp->ssm_head_dim, hp->ssm_conv);
    if (hp->n_expert > 1024 || hp->n_expert_used > 32)
        return err_set(err, ERR_UNSUPPORTED, "there is no GPU kernel for %d of %d experts",
                       hp->n_expert_used, hp->n_expert);
    for (int l = 0; l < hparams_layers(hp); l++) {
        const model_layer *y = &m->layers[l];
        if (types_differ(y->experts->weight[SLAB_GATE], y->experts->weight[SLAB_UP]) ||
            types_differ(y->shared_gate.t, y->shared_up.t))
            return err_set(err, ERR_UNSUPPORTED, "blk.%d: there is no GPU kernel for gate and up "
                           "of different types", l);
    }
    model_visit(m, check_tensor, &c);
    return c.rc;
}

uint64_t weights_gpu_bytes(const model *m, const weights *w, const weights_choice *choice)
{
    weights_gpu unused = { 0 };
    uploader s = { 0 };
    put_all(&unused, &s, m, w, choice);
    return s.used;
}

/* The embedding table in page-locked RAM: the device reads one row of it for each token. */
static int put_embed_in_ram(weights_gpu *w, const matrix *table, pool *team, err_ctx *err)
{
    const uint64_t bytes = (uint64_t)table->rows * table->row_bytes;
    w->embed_host = gpu_alloc_host(w->device, bytes + 64, err);
    if (!w->embed_host) return ERR_NOMEM;
    pool_copy(team, w->embed_host, table->data, (size_t)bytes);
    w->embed = shape_of(table);
    w->embed.data = w->embed_host;
    return 0;
}

int weights_gpu_create(weights_gpu **out, gpu *g, const model *m, const weights *w,
                       const weights_choice *choice, pool *team, progress_fn *watch, void *ctx,
                       err_ctx *err)
{
    const uint64_t bytes = weights_gpu_bytes(m, w, choice);
    uploader s = { .zeros = choice->zeros, .total = bytes, .g = g, .team = team, .watch = watch,
                .ctx = ctx, .err = err };
    weights_gpu *result = mem_zalloc(sizeof *result);
    int rc = 0;

    *out = NULL;
    const size_t n_layer = (size_t)hparams_layers(&m->hp);
    if (result) result->layers = mem_array(n_layer, sizeof *result->layers);
    if (!result || !result->layers) {
        weights_gpu_free(result);
        return err_set(err, ERR_NOMEM, "weights: %zu layers", n_layer);
    }
    memset(result->layers, 0, n_layer * sizeof *result->layers);
    result->device = g;
    result->n_layer = choice->n_layer;
    result->bytes = bytes;
    if (!choice->zeros && fault_hits(FAULT_VRAM))
        rc = err_set(err, ERR_NOMEM, "GPU: no room for the weights: another program took it");
    else result->arena = gpu_alloc(g, bytes, "the weights", err);
    if (!result->arena) {
        rc = ERR_NOMEM;
    } else {
        s.arena = result->arena;
        if (choice->embed_in_ram) s.rc = put_embed_in_ram(result, &w->embed, team, err);
        if (choice->zeros) s.rc = gpu_zero(g, result->arena, bytes, err);
        put_all(result, &s, m, w, choice);
        rc = s.rc < 0 ? s.rc : gpu_upload_end(g, err);
    }
    if (rc < 0) {
        gpu_upload_end(g, NULL);
        weights_gpu_free(result);
        return rc;
    }
    *out = result;
    return 0;
}

void weights_gpu_free(weights_gpu *w)
{
    if (!w) return;
    gpu_free(w->device, w->arena);
    gpu_free_host(w->device, w->embed_host);
    mem_free(w->layers);
    mem_free(w);
}
