/* synth_plan.c - what a synthetic model file holds: keys, tensors, and how each is filled.
 *
 * The network must stay sane through all layers without ever being trained. Rules:
 *
 *   embedding rows                             standard deviation 1
 *   matrices that read a normalised vector     1 / sqrt(n_in): outputs have standard deviation 1
 *   matrices that write to the residual        0.25 / sqrt(n_in): a layer adds a few percent
 *   norms                                      0.9 .. 1.1
 *   router                                     logits of standard deviation 1
 *
 * so the residual's root mean square grows from 1 to less than 2 over 48 layers.
 *
 * Skew. A token picks the n_used experts with the largest logits. With logits z + b, z normal with
 * standard deviation 1, an expert is taken with probability p if b is the (1-p)-quantile below the
 * threshold; b is computed that way from the wanted shares. gpt-oss keeps b in the router's bias.
 * qwen3next has no bias there: the first 256 channels of all embedding rows carry the same values,
 * which layers blur but do not change on average, and the router's weights on those channels turn
 * them into b. Which expert has which rank is a new permutation in each layer. With drift it is
 * another one for each topic that the model may have in mind: synth_drift.c.
 *
 * A tensor's content depends on seed and name alone: the first layers of a file are the same
 * whether the file has 4 layers or 48. */
#include "cli/synth/synth_plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/synth/synth_plan_internal.h"

#define WRITE_GAIN 0.25

/* ---- shapes ------------------------------------------------------------------------------ */

static const synth_shape shapes[] = {
    { .name = "gpt-oss-20b", .family = SYNTH_GPTOSS, .n_layer = 24, .n_embd = 2880, .n_head = 64,
      .n_head_kv = 8, .head_dim = 64, .n_expert = 32, .n_used = 4, .n_ff = 2880, .n_vocab = 201088,
      .first_special = 199998, .window = 128,
      .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 },
    { .name = "gpt-oss-120b", .family = SYNTH_GPTOSS, .n_layer = 36, .n_embd = 2880, .n_head = 64,
      .n_head_kv = 8, .head_dim = 64, .n_expert = 128, .n_used = 4, .n_ff = 2880, .n_vocab = 201088,
      .first_special = 199998, .window = 128,
      .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 },
    { .name = "qwen3-next-80b", .family = SYNTH_QWEN3NEXT, .n_layer = 48, .n_embd = 2048,
      .n_head = 16, .n_head_kv = 2, .head_dim = 256, .n_expert = 512, .n_used = 10, .n_ff = 512,
      .n_vocab = 151936, .first_special = 151643, .n_ff_shared = 512, .interval = 4, .rope_dim = 64,
      .conv = 4, .n_k_head = 16, .n_v_head = 32, .ssm_dim = 128,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

const synth_shape *synth_shape_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

synth_options synth_options_of(const synth_shape *shape)
{
    return (synth_options){ .shape = shape, .n_layer = shape->n_layer, .experts = shape->experts,
                            .dense = shape->dense, .head = shape->head, .seed = 1 };
}

/* ---- skew -------------------------------------------------------------------------------- */

static uint64_t key_of(const synth_plan *p, const char *name)
{
    return random_word(p->o.seed, str_hash(str_from(name)));
}

/* logits[l, topic, e]: b of the rank that a permutation gives to e. */
static int make_logits(synth_plan *p)
{
    const int n = p->o.shape->n_expert;
    double *b = mem_array((size_t)n, sizeof *b);
    p->n_topic = p->o.drift ? DRIFT_TOPICS : 1;
    p->logits = mem_array((size_t)n * (size_t)(p->o.n_layer * p->n_topic), sizeof *p->logits);
    if (!b || !p->logits) {
        mem_free(b);
        return err_set(p->err, ERR_NOMEM, "out of memory for %d routers", p->o.n_layer);
    }
    synth_shares(b, n, p->o.shape->n_used, p->o.skew);
    for (int r = 0; r < n; r++) b[r] = -synth_quantile(b[r]);
    for (int i = 0; i < p->o.n_layer * p->n_topic; i++) {
        const int topic = i % p->n_topic;
        const uint64_t layer = key_of(p, "ranks of layers") + (uint64_t)(i / p->n_topic);
        const uint64_t key = topic ? random_word(layer, UINT64_MAX - (uint64_t)topic) : layer;
        float *row = p->logits + (size_t)i * (size_t)n;
        for (int e = 0; e < n; e++) {                /* inside-out shuffle */
            const int at = (int)((random_word(key, (uint64_t)e) >> 32) * (uint64_t)(e + 1) >> 32);
            if (at != e) row[e] = row[at];
            row[at] = (float)b[e];
        }
    }
    mem_free(b);
    return 0;
}

/* ---- makers and tensors ------------------------------------------------------------------ */

const synth_blocks *synth_plan_maker(synth_plan *p, quant_type type, double sigma)
{
    synth_blocks *s;
    for (int i = 0; i < p->n_maker; i++)
        if (p->makers[i]->type == type && p->makers[i]->sigma == sigma) return p->makers[i];
    if (p->n_maker == p->cap_maker) {
        const int cap = p->cap_maker + 16;
        synth_blocks **grown = mem_resize(p->makers, (size_t)cap, sizeof *grown);
        if (!grown) goto nomem;
        p->makers = grown;
        p->cap_maker = cap;
    }
    if (!(s = mem_alloc(sizeof *s))) goto nomem;
    synth_blocks_init(s, type, sigma);
    return p->makers[p->n_maker++] = s;
nomem:
    if (p->rc == 0)
        p->rc = err_set(p->err, ERR_NOMEM, "out of memory for %s blocks", quant_name(type));
    return NULL;
}

synth_patch *synth_plan_patch(synth_plan *p, synth_part *t, int row, int n_row, int col, int n_col,
                              double sigma)
{
    const synth_blocks *maker = p->rc == 0 ? synth_plan_maker(p, t->maker->type, sigma) : NULL;
    if (!maker) return &p->spare.patch[0];
    assert(t->n_patch < SYNTH_PATCHES_MAX);
    t->patch[t->n_patch] = (synth_patch){
        .row = (uint64_t)row, .n_row = (uint64_t)n_row, .col = (uint64_t)col,
        .n_col = (uint64_t)n_col, .maker = maker };
    return &t->patch[t->n_patch++];
}

static int refuse_type(synth_plan *p, const char *name, quant_type type, uint64_t cols)
{
    char fits[384] = "";
    size_t n = 0;
    for (uint32_t id = 0; id < QT_COUNT; id++) {
        const quant_traits *q = quant_traits_of(id);
        if (q && q->decode && cols % (uint64_t)q->block_elems == 0 && n + 16 < sizeof fits)
            n += (size_t)snprintf(fits + n, sizeof fits - n, " %s", q->name);
    }
    return err_set(p->err, ERR_UNSUPPORTED, "%s: rows of %llu weights cannot be cut into %s blocks "
                   "of %d; these fit:%s", name, (unsigned long long)cols, quant_name(type),
                   quant_traits_of(type)->block_elems, fits);
}

static void full_name(char out[TENSOR_MAX_NAME + 1], int l, const char *name)
{
    if (l < 0) snprintf(out, TENSOR_MAX_NAME + 1, "%s", name);
    else snprintf(out, TENSOR_MAX_NAME + 1, "blk.%d.%s", l, name);
}

synth_part *synth_plan_part(synth_plan *p, int l, const char *name)
{
    char full[TENSOR_MAX_NAME + 1];
    full_name(full, l, name);
    const uint64_t key = key_of(p, full);
    for (int i = p->n_part; i-- > 0 && p->rc == 0; )
        if (p->parts[i].key == key) return &p->parts[i];
    return &p->spare;
}

/* Lists a tensor; l < 0: not part of a layer. The caller writes its recipe into the result. */
static synth_part *add(synth_plan *p, int l, const char *name, quant_type type, int n_dims, int n0,
                       int n1, int n2)
{
    const quant_traits *q = quant_traits_of(type);
    const uint64_t ne[3] = { (uint64_t)n0, (uint64_t)n1, (uint64_t)n2 };
    char full[TENSOR_MAX_NAME + 1];
    synth_part *t;

    full_name(full, l, name);
    if (p->rc == 0 && ne[0] % (uint64_t)q->block_elems) p->rc = refuse_type(p, full, type, ne[0]);
    if (p->rc == 0 && p->n_part == p->cap_part) {
        const int cap = p->cap_part ? p->cap_part * 2 : 128;
        synth_part *grown = mem_resize(p->parts, (size_t)cap, sizeof *grown);
        if (grown) {
            p->parts = grown;
            p->cap_part = cap;
        } else {
            p->rc = err_set(p->err, ERR_NOMEM, "out of memory for %d tensors", cap);
        }
    }
    if (p->rc < 0) return &p->spare;
    gguf_write_tensor(p->w, full, type, ne, n_dims);
    t = &p->parts[p->n_part++];
    *t = (synth_part){ .key = key_of(p, full), .cols = ne[0], .unit = (size_t)q->block_bytes };
    return t;
}

static synth_part *add_matrix(synth_plan *p, int l, const char *name, quant_type type, double gain,
                              int n_dims, int n_in, int n_out, int n_stack)
{
    synth_part *t = add(p, l, name, type, n_dims, n_in, n_out, n_stack);
    t->kind = FILL_BLOCKS;
    if (p->rc == 0) t->maker = synth_plan_maker(p, type, gain / sqrt(n_in));
    return t;
}

/* A dense matrix. */
static void add_dense(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out)
{
    add_matrix(p, l, name, p->o.dense, gain, 2, n_in, n_out, 1);
}

static synth_part *add_range(synth_plan *p, int l, const char *name, double lo, double hi,
                             int n_dims, int n0, int n1)
{
    synth_part *t = add(p, l, name, QT_F32, n_dims, n0, n1, 1);
    t->kind = FILL_RANGE;
    t->lo = (float)lo;
    t->hi = (float)hi;
    return t;
}

static void add_norm(synth_plan *p, int l, const char *name, int n)
{
    add_range(p, l, name, 0.9, 1.1, 1, n, 1);
}

/* F32 matrix or vector whose product with a normalised vector has standard deviation 1. */
static synth_part *add_probe(synth_plan *p, int l, const char *name, int n_dims, int n_in,
                             int n_out)
{
    const double edge = sqrt(3.0 / n_in);
    return add_range(p, l, name, -edge, edge, n_dims, n_in, n_out);
}

/* ---- qwen3next --------------------------------------------------------------------------- */

static void add_deltanet(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_qk = s->n_k_head * s->ssm_dim, n_v = s->n_v_head * s->ssm_dim;
    add_dense(p, l, "attn_qkv.weight", 1, s->n_embd, 2 * n_qk + n_v);
    add_dense(p, l, "attn_gate.weight", 1, s->n_embd, n_v);
    add_dense(p, l, "ssm_ba.weight", 1, s->n_embd, 2 * s->n_v_head);
    add_range(p, l, "ssm_conv1d.weight", -0.5, 0.5, 2, s->conv, 2 * n_qk + n_v);
    add_range(p, l, "ssm_dt.bias", -4, -1, 1, s->n_v_head, 1);
    add_range(p, l, "ssm_a", -4, -0.25, 1, s->n_v_head, 1);
    add_norm(p, l, "ssm_norm.weight", s->ssm_dim);
    add_dense(p, l, "ssm_out.weight", WRITE_GAIN, n_v, s->n_embd);
}

static void add_gated_attention(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    add_dense(p, l, "attn_q.weight", 1, s->n_embd, 2 * n_q);     /* query and gate */
    add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    add_dense(p, l, "attn_v.weight", 1, s->n_embd, n_kv);
    add_norm(p, l, "attn_q_norm.weight", s->head_dim);
    add_norm(p, l, "attn_k_norm.weight", s->head_dim);
    add_dense(p, l, "attn_output.weight", WRITE_GAIN, n_q, s->n_embd);
}

/* The router of layer l when embeddings carry the common direction. Before it the residual's mean
 * square is that of the embedding plus what l layers and a mixer added to each channel. */
static void add_skewed_router(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_part *t = add_range(p, l, "ffn_gate_inp.weight", 0, 0, 2, s->n_embd, s->n_expert);
    const double added = GROWTH * (l + 0.7);
    double dir_sumsq = 0;
    for (int c = 0; c < DIR_COLS; c++) dir_sumsq += (double)p->dir[c] * (double)p->dir[c];
    const double others = (s->n_embd - DIR_COLS) * (1 + added);
    const double rms = sqrt((dir_sumsq + DIR_COLS * added + others) / s->n_embd);
    float *pull = p->logits + (size_t)l * (size_t)s->n_expert;

    t->kind = FILL_ROUTER;
    t->table = pull;
    t->front = p->dir;
    t->n_sum = 1;
    t->n_front = DIR_COLS;
    t->hi = (float)(sqrt(3.0) * rms / sqrt(others));
    t->lo = -t->hi;
    for (int e = 0; e < s->n_expert; e++) pull[e] *= (float)(rms / dir_sumsq);
}

static void add_qwen3next_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    add_norm(p, l, "attn_norm.weight", s->n_embd);
    if ((l + 1) % s->interval) add_deltanet(p, l);
    else add_gated_attention(p, l);
    synth_drift_latches(p, l);
    add_norm(p, l, "post_attention_norm.weight", s->n_embd);
    if (p->logits && !p->o.drift) add_skewed_router(p, l);
    else add_probe(p, l, "ffn_gate_inp.weight", 2, s->n_embd, s->n_expert);
    synth_drift_router(p, l);
    add_matrix(p, l, "ffn_gate_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    add_matrix(p, l, "ffn_up_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    add_matrix(p, l, "ffn_down_exps.weight", p->o.experts, WRITE_GAIN, 3, s->n_ff, s->n_embd,
               s->n_expert);
    add_probe(p, l, "ffn_gate_inp_shexp.weight", 1, s->n_embd, 1);
    add_dense(p, l, "ffn_gate_shexp.weight", 1, s->n_embd, s->n_ff_shared);
    add_dense(p, l, "ffn_up_shexp.weight", 1, s->n_embd, s->n_ff_shared);
    add_dense(p, l, "ffn_down_shexp.weight", WRITE_GAIN, s->n_ff_shared, s->n_embd);
}

/* ---- gpt-oss ----------------------------------------------------------------------------- */

static void add_gptoss_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    const double small = 0.05;
    synth_part *bias;

    add_norm(p, l, "attn_norm.weight", s->n_embd);
    add_dense(p, l, "attn_q.weight", 1, s->n_embd, n_q);
    add_range(p, l, "attn_q.bias", -small, small, 1, n_q, 1);
    add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    add_range(p, l, "attn_k.bias", -small, small, 1, n_kv, 1);
    add_dense(p, l, "attn_v.weight", 1, s->n_embd, n_kv);
    add_range(p, l, "attn_v.bias", -small, small, 1, n_kv, 1);
    add_dense(p, l, "attn_output.weight", WRITE_GAIN, n_q, s->n_embd);
    add_range(p, l, "attn_output.bias", -small, small, 1, s->n_embd, 1);
    add_range(p, l, "attn_sinks.weight", -1, 1, 1, s->n_head, 1);
    synth_drift_latches(p, l);
    add_norm(p, l, "post_attention_norm.weight", s->n_embd);
    add_probe(p, l, "ffn_gate_inp.weight", 2, s->n_embd, s->n_expert);
    bias = add_range(p, l, "ffn_gate_inp.bias", -small, small, 1, s->n_expert, 1);
    if (p->logits && !synth_drift_router(p, l)) {
        bias->kind = FILL_TABLE;
        bias->table = p->logits + (size_t)(l * p->n_topic) * (size_t)s->n_expert;
    }
    add_matrix(p, l, "ffn_gate_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    add_range(p, l, "ffn_gate_exps.bias", -small, small, 2, s->n_ff, s->n_expert);
    add_matrix(p, l, "ffn_up_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    add_range(p, l, "ffn_up_exps.bias", -small, small, 2, s->n_ff, s->n_expert);
    add_matrix(p, l, "ffn_down_exps.weight", p->o.experts, WRITE_GAIN, 3, s->n_ff, s->n_embd,
               s->n_expert);
    add_range(p, l, "ffn_down_exps.bias", -small, small, 2, s->n_embd, s->n_expert);
}

/* ---- all tensors ------------------------------------------------------------------------- */

/* With skew every row begins alike for qwen3next, from a stream of its own. */
static void add_embedding(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_part *t = add_matrix(p, -1, "token_embd.weight", p->o.dense, sqrt(s->n_embd), 2,
                               s->n_embd, s->n_vocab, 1);
    if (p->logits && s->family == SYNTH_QWEN3NEXT) {
        synth_patch *dir = synth_plan_patch(p, t, 0, s->n_vocab, 0, DIR_COLS,
                                            p->o.drift ? DIR_STD_DRIFT : DIR_STD);
        dir->key = random_word(t->key, 1);
        dir->period = 1;
        if (p->rc == 0) synth_part_decode(p->dir, t, 0, 0, DIR_COLS);
    }
    synth_drift_embedding(p, t);
}

static int list_tensors(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    if (p->o.skew > 0 && s->family == SYNTH_QWEN3NEXT && s->n_embd < 2 * DIR_COLS)
        return err_set(p->err, ERR_RANGE, "%s: skew needs an embedding of %d channels, this has %d",
                       s->name, 2 * DIR_COLS, s->n_embd);
    if ((p->rc = synth_drift_check(&p->o, p->err)) < 0) return p->rc;
    if (p->o.skew > 0) p->rc = make_logits(p);
    if (p->rc == 0) add_embedding(p);
    for (int l = 0; l < p->o.n_layer && p->rc == 0; l++) {
        if (s->family == SYNTH_QWEN3NEXT) add_qwen3next_layer(p, l);
        else add_gptoss_layer(p, l);
    }
    if (p->rc < 0) return p->rc;
    add_norm(p, -1, "output_norm.weight", s->n_embd);
    add_matrix(p, -1, "output.weight", p->o.head, 1, 2, s->n_embd, s->n_vocab, 1);
    return p->rc;
}

/* ---- keys -------------------------------------------------------------------------------- */

static void key_u32(synth_plan *p, const char *prefix, const char *name, int v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", prefix, name);
    gguf_write_u32(p->w, key, (uint32_t)v);
}

static void key_f32(synth_plan *p, const char *prefix, const char *name, double v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", prefix, name);
    gguf_write_f32(p->w, key, (float)v);
}

/* What tools call a file by its experts' type; a label, left out for types without one. */
static int file_type_of(quant_type experts)
{
    switch (experts) {
    case QT_Q8_0: return 7;
    case QT_Q4_K: return 15;
    case QT_IQ4_XS: return 30;
    case QT_BF16: return 32;
    case QT_MXFP4: return 38;
    case QT_NVFP4: return 39;
    default: return -1;
    }
}

static void list_common_keys(synth_plan *p, const char *arch)
{
    const synth_shape *s = p->o.shape;
    const int file_type = file_type_of(p->o.experts);
    char name[160], skew[32] = "", drift[32] = "";
    if (p->o.skew > 0) snprintf(skew, sizeof skew, ", skew %g", p->o.skew);
    if (p->o.drift > 0) snprintf(drift, sizeof drift, ", drift %d", p->o.drift);
    snprintf(name, sizeof name, "synthetic %s, %d layers%s%s, seed %llu", s->name, p->o.n_layer,
             skew, drift, (unsigned long long)p->o.seed);
    gguf_write_str(p->w, "general.architecture", str_from(arch));
    gguf_write_str(p->w, "general.type", str_from("model"));
    gguf_write_str(p->w, "general.name", str_from(name));
    gguf_write_u32(p->w, "general.quantization_version", 2);
    if (file_type >= 0) gguf_write_u32(p->w, "general.file_type", (uint32_t)file_type);
    key_u32(p, arch, "block_count", p->o.n_layer);
    key_u32(p, arch, "embedding_length", s->n_embd);
    key_u32(p, arch, "attention.head_count", s->n_head);
    key_u32(p, arch, "attention.head_count_kv", s->n_head_kv);
    key_u32(p, arch, "attention.key_length", s->head_dim);
    key_u32(p, arch, "attention.value_length", s->head_dim);
    key_u32(p, arch, "expert_count", s->n_expert);
    key_u32(p, arch, "expert_used_count", s->n_used);
    key_u32(p, arch, "expert_feed_forward_length", s->n_ff);
}

static void list_gptoss_keys(synth_plan *p)
{
    const char *arch = "gpt-oss";
    list_common_keys(p, arch);
    key_u32(p, arch, "context_length", 131072);
    key_u32(p, arch, "feed_forward_length", p->o.shape->n_ff);
    key_u32(p, arch, "attention.sliding_window", p->o.shape->window);
    key_f32(p, arch, "attention.layer_norm_rms_epsilon", 1e-5);
    key_f32(p, arch, "rope.freq_base", GPTOSS_ROPE_BASE);
    gguf_write_str(p->w, "gpt-oss.rope.scaling.type", str_from("yarn"));
    key_f32(p, arch, "rope.scaling.factor", GPTOSS_ROPE_FACTOR);
    key_u32(p, arch, "rope.scaling.original_context_length", GPTOSS_ROPE_CTX);
}

static void list_qwen3next_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    const char *arch = "qwen3next";
    list_common_keys(p, arch);
    key_u32(p, arch, "context_length", 262144);
    key_u32(p, arch, "feed_forward_length", s->n_used * s->n_ff);
    key_u32(p, arch, "expert_shared_feed_forward_length", s->n_ff_shared);
    key_f32(p, arch, "attention.layer_norm_rms_epsilon", 1e-6);
    key_u32(p, arch, "rope.dimension_count", s->rope_dim);
    key_f32(p, arch, "rope.freq_base", 1e7);
    key_u32(p, arch, "full_attention_interval", s->interval);
    key_u32(p, arch, "ssm.conv_kernel", s->conv);
    key_u32(p, arch, "ssm.state_size", s->ssm_dim);
    key_u32(p, arch, "ssm.group_count", s->n_k_head);
    key_u32(p, arch, "ssm.time_step_rank", s->n_v_head);
    key_u32(p, arch, "ssm.inner_size", s->n_v_head * s->ssm_dim);
}

/* ---- creation ---------------------------------------------------------------------------- */

static int build(synth_plan *p, err_ctx *err)
{
    const synth_shape *s = p->o.shape;
    int rc;
    if (p->o.n_layer < 1 || p->o.n_layer > s->n_layer)
        return err_set(err, ERR_RANGE, "%s has %d layers, not %d", s->name, s->n_layer,
                       p->o.n_layer);
    if (!(p->w = gguf_writer_create())) return err_set(err, ERR_NOMEM, "out of memory");
    if ((rc = list_tensors(p)) < 0) return rc;
    if (s->family == SYNTH_QWEN3NEXT) list_qwen3next_keys(p);
    else list_gptoss_keys(p);
    if ((rc = synth_vocab_write(p->w, s->family, s->n_vocab, s->first_special, err)) < 0) return rc;
    if ((rc = gguf_write_head(p->w, &p->head, &p->head_bytes, err)) < 0) return rc;
    for (int i = 0; i < p->n_part; i++) {
        p->parts[i].at = gguf_write_data_at(p->w, i);
        p->parts[i].bytes = gguf_write_data_bytes(p->w, i);
    }
    p->bytes = gguf_write_file_bytes(p->w);
    return 0;
}

int synth_plan_create(synth_plan **out, const synth_options *o, err_ctx *err)
{
    synth_plan *p = mem_zalloc(sizeof *p);
    int rc;
    *out = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "out of memory");
    p->o = *o;
    p->err = err;
    rc = build(p, err);
    p->err = NULL;
    if (rc < 0) {
        synth_plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void synth_plan_free(synth_plan *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_maker; i++) mem_free(p->makers[i]);
    mem_free(p->makers);
    mem_free(p->parts);
    mem_free(p->logits);
    synth_drift_release(p);
    gguf_writer_free(p->w);
    mem_free(p);
}

uint64_t synth_plan_bytes(const synth_plan *p)
{
    return p->bytes;
}

int synth_plan_n_tensor(const synth_plan *p)
{
    return p->n_part;
}

/* ---- filling ----------------------------------------------------------------------------- */

/* Index of the first part that ends after at. */
static int find_part(const synth_plan *p, uint64_t at)
{
    int lo = 0, hi = p->n_part;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (p->parts[mid].at + p->parts[mid].bytes > at) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

void synth_plan_fill(const synth_plan *p, uint8_t *out, uint64_t at, size_t n)
{
    const uint64_t end = at + n;
    uint64_t pos = at;

    if (pos < p->head_bytes) {
        const uint64_t take = p->head_bytes - pos < n ? p->head_bytes - pos : n;
        memcpy(out, p->head + pos, (size_t)take);
        pos += take;
    }
    for (int i = find_part(p, pos); i < p->n_part && pos < end && p->parts[i].at < end; i++) {
        const synth_part *t = &p->parts[i];
        if (t->at > pos) {                           /* padding before the tensor */
            memset(out + (pos - at), 0, (size_t)(t->at - pos));
            pos = t->at;
        }
        const uint64_t left = t->at + t->bytes - pos, take = left < end - pos ? left : end - pos;
        synth_part_fill(t, out + (pos - at), pos - t->at, take);
        pos += take;
    }
    if (pos < end) memset(out + (pos - at), 0, (size_t)(end - pos));
}
