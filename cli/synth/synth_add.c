/* synth_add.c - adds tensors and keys to a plan that is being made.
 *
 * Skew. A token picks the n_used experts with the largest logits. With logits z + b, z normal with
 * standard deviation 1, an expert is taken with probability p if b is the (1-p)-quantile below the
 * threshold; b is computed that way from the wanted shares (synth_plan.c). Families with a bias in
 * the router store b in it. In the others the first 256 channels are equal in all embedding rows.
 * Layers add noise to these channels but keep their mean, and the router's weights on them yield
 * b. */
#include "cli/synth/synth_add.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* ---- makers and tensors ------------------------------------------------------------------ */

/* A maker of blocks with that standard deviation; NULL after a failure, which p->rc keeps. */
static const synth_blocks *maker_of(synth_plan *p, quant_type type, double sigma)
{
    synth_blocks *s;
    for (int i = 0; i < p->n_maker; i++)
        if (p->makers[i]->type == type && p->makers[i]->sigma == sigma) return p->makers[i];
    synth_blocks **makers = mem_grow(p->makers, p->n_maker, &p->cap_maker, sizeof *makers);
    if (!makers) goto nomem;
    p->makers = makers;
    if (!(s = mem_alloc(sizeof *s))) goto nomem;
    synth_blocks_init(s, type, sigma);
    return p->makers[p->n_maker++] = s;
nomem:
    if (p->rc == 0)
        p->rc = err_set(p->err, ERR_NOMEM, "out of memory for %s blocks", quant_name(type));
    return NULL;
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

/* Adds a tensor of layer l; l < 0: not part of a layer. The caller writes its recipe to the result,
 * which is valid until the next call. */
static synth_part *list(synth_plan *p, int l, const char *name, quant_type type, int n_dims, int n0,
                        int n1, int n2)
{
    const quant_traits *q = quant_traits_of(type);
    const uint64_t ne[3] = { (uint64_t)n0, (uint64_t)n1, (uint64_t)n2 };
    char full[TENSOR_MAX_NAME + 1];
    synth_part *t;

    full_name(full, l, name);
    if (p->rc == 0 && ne[0] % (uint64_t)q->block_elems) p->rc = refuse_type(p, full, type, ne[0]);
    if (p->rc < 0) return &p->dummy_part;
    if (!(t = mem_grow(p->parts, p->n_part, &p->cap_part, sizeof *t))) {
        p->rc = err_set(p->err, ERR_NOMEM, "out of memory for %d tensors", p->n_part + 1);
        return &p->dummy_part;
    }
    p->parts = t;
    gguf_write_tensor(p->w, full, type, ne, n_dims);
    t = &p->parts[p->n_part++];
    *t = (synth_part){ .key = random_word(p->o.seed, str_hash(str_from(full))), .cols = ne[0],
                       .unit = (size_t)q->block_bytes };
    return t;
}

#define ALMOST_ZERO 1e-4                 /* standard deviation of weights without effect */

/* ---- tensors ----------------------------------------------------------------------------- */

synth_part *synth_add_matrix(synth_plan *p, int l, const char *name, quant_type type, double gain,
                             int n_dims, int n_in, int n_out, int n_stack)
{
    synth_part *t = list(p, l, name, type, n_dims, n_in, n_out, n_stack);
    t->kind = FILL_BLOCKS;
    if (p->rc == 0) t->maker = maker_of(p, type, gain / sqrt(n_in));
    return t;
}

void synth_add_front(synth_plan *p, synth_part *t, double sigma)
{
    const synth_blocks *maker = p->rc == 0 ? maker_of(p, t->maker->type, sigma) : NULL;
    if (!maker) return;
    t->front_maker = maker;
    t->n_front = DIR_COLS;
}

/* llama.cpp's quantiser makes the same substitutions for types with blocks of 256. */
quant_type synth_add_fit(quant_type type, int cols)
{
    if (cols % quant_traits_of(type)->block_elems == 0) return type;
    switch (type) {
    case QT_Q4_K: return QT_Q5_0;
    case QT_Q5_K: return QT_Q5_1;
    case QT_Q6_K: return QT_Q8_0;
    case QT_Q2_K:
    case QT_Q3_K: return QT_Q4_0;
    case QT_IQ2_XXS:
    case QT_IQ2_XS:
    case QT_IQ2_S:
    case QT_IQ3_XXS:
    case QT_IQ3_S:
    case QT_IQ1_S:
    case QT_IQ1_M:
    case QT_IQ4_XS: return QT_IQ4_NL;
    default: return type;                /* add_matrix refuses it */
    }
}

void synth_add_dense(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out)
{
    synth_add_matrix(p, l, name, p->o.dense, gain, 2, n_in, n_out, 1);
}

void synth_add_down(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out)
{
    synth_add_matrix(p, l, name, synth_add_fit(p->o.dense, n_in), gain, 2, n_in, n_out, 1);
}

synth_part *synth_add_range(synth_plan *p, int l, const char *name, double lo, double hi,
                            int n_dims, int n0, int n1)
{
    synth_part *t = list(p, l, name, QT_F32, n_dims, n0, n1, 1);
    t->kind = FILL_RANGE;
    t->lo = (float)lo;
    t->hi = (float)hi;
    return t;
}

void synth_add_norm(synth_plan *p, int l, const char *name, int n)
{
    synth_add_range(p, l, name, 0.9, 1.1, 1, n, 1);
}

static synth_part *add_probe(synth_plan *p, int l, const char *name, double gain, int n_dims,
                             int n_in, int n_out)
{
    const double edge = gain * sqrt(3.0 / n_in);
    return synth_add_range(p, l, name, -edge, edge, n_dims, n_in, n_out);
}

synth_part *synth_add_probe(synth_plan *p, int l, const char *name, int n_dims, int n_in, int n_out)
{
    return add_probe(p, l, name, 1, n_dims, n_in, n_out);
}

float *synth_add_table(synth_plan *p, int l, const char *name, int n)
{
    synth_part *t = list(p, l, name, QT_F32, 1, n, 1, 1);
    float *table = p->rc == 0 ? mem_array((size_t)n, sizeof *table) : NULL;
    if (!table && p->rc == 0) p->rc = err_set(p->err, ERR_NOMEM, "out of memory for %d floats", n);
    if (!table) return NULL;
    assert(p->n_table < TABLES_MAX);
    t->kind = FILL_TABLE;
    t->table = p->tables[p->n_table++] = table;
    return table;
}

/* ---- routers, experts, attention --------------------------------------------------------- */

/* The router of layer l when embeddings carry the common direction. The mean square of the residual
 * is that of the embedding plus the growth by l layers and a mixer in each channel. */
static void add_skewed_router(synth_plan *p, int l, double gain)
{
    const synth_shape *s = p->o.shape;
    synth_part *t = synth_add_range(p, l, "ffn_gate_inp.weight", 0, 0, 2, s->n_embd, s->n_expert);
    const double added = s->family->growth * (l + 0.7);
    double dir_sumsq = 0;
    for (int c = 0; c < DIR_COLS; c++) dir_sumsq += (double)p->dir[c] * (double)p->dir[c];
    const double others = (s->n_embd - DIR_COLS) * (1 + added);
    const double rms = sqrt((dir_sumsq + DIR_COLS * added + others) / s->n_embd);
    float *bias = p->logits + (size_t)l * (size_t)s->n_expert;

    t->kind = FILL_ROUTER;
    t->table = bias;
    t->front = p->dir;
    t->n_front = DIR_COLS;
    t->hi = (float)(gain * sqrt(3.0) * rms / sqrt(others));
    t->lo = -t->hi;
    for (int e = 0; e < s->n_expert; e++) bias[e] *= (float)(gain * rms / dir_sumsq);
}

void synth_add_router(synth_plan *p, int l, double gain)
{
    const synth_shape *s = p->o.shape;
    /* a next-token block has no popularity */
    if (p->logits && s->family->common && l < p->o.n_layer) add_skewed_router(p, l, gain);
    else add_probe(p, l, "ffn_gate_inp.weight", gain, 2, s->n_embd, s->n_expert);
}

void synth_add_experts(synth_plan *p, int l, double down_gain)
{
    const synth_shape *s = p->o.shape;
    const quant_type type = p->o.experts;
    synth_add_matrix(p, l, "ffn_gate_exps.weight", type, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    synth_add_matrix(p, l, "ffn_up_exps.weight", type, 1, 3, s->n_embd, s->n_ff, s->n_expert);
    synth_add_matrix(p, l, "ffn_down_exps.weight", synth_add_fit(type, s->n_ff), down_gain, 3,
                     s->n_ff, s->n_embd, s->n_expert);
}

void synth_add_values(synth_plan *p, int l, const char *name, int n_out)
{
    const synth_shape *s = p->o.shape;
    synth_part *t = synth_add_matrix(p, l, name, p->o.dense, 1, 2, s->n_embd, n_out, 1);
    if (p->logits && s->family->common) synth_add_front(p, t, ALMOST_ZERO);
}

void synth_add_attention(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    synth_add_dense(p, l, "attn_q.weight", 1, s->n_embd, n_q);
    synth_add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    synth_add_values(p, l, "attn_v.weight", n_kv);
    synth_add_dense(p, l, "attn_output.weight", WRITE_GAIN, n_q, s->n_embd);
}

/* ---- keys -------------------------------------------------------------------------------- */

static const char *key_name(char dst[96], const synth_plan *p, const char *name)
{
    snprintf(dst, 96, "%s.%s", p->o.shape->family->arch, name);
    return dst;
}

void synth_key_u32(synth_plan *p, const char *name, int v)
{
    char key[96];
    gguf_write_u32(p->w, key_name(key, p, name), (uint32_t)v);
}

void synth_key_f32(synth_plan *p, const char *name, double v)
{
    char key[96];
    gguf_write_f32(p->w, key_name(key, p, name), (float)v);
}

void synth_key_bool(synth_plan *p, const char *name, bool v)
{
    char key[96];
    gguf_write_bool(p->w, key_name(key, p, name), v);
}

void synth_key_array(synth_plan *p, const char *name, gguf_type type, const void *data, int n)
{
    char key[96];
    gguf_write_array(p->w, key_name(key, p, name), type, data, (uint64_t)n);
}

/* general.file_type, a label for tools. Some types have none. */
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

void synth_key_common(synth_plan *p, bool lengths)
{
    const synth_shape *s = p->o.shape;
    const int file_type = file_type_of(p->o.experts);
    char name[160], skew[32] = "";
    if (p->o.skew > 0) snprintf(skew, sizeof skew, ", skew %g", p->o.skew);
    snprintf(name, sizeof name, "synthetic %s, %d layers%s, seed %llu", s->name, p->o.n_layer, skew,
             (unsigned long long)p->o.seed);
    gguf_write_str(p->w, "general.architecture", str_from(s->family->arch));
    gguf_write_str(p->w, "general.type", str_from("model"));
    gguf_write_str(p->w, "general.name", str_from(name));
    gguf_write_u32(p->w, "general.quantization_version", 2);
    if (file_type >= 0) gguf_write_u32(p->w, "general.file_type", (uint32_t)file_type);
    synth_key_u32(p, "block_count", p->o.n_layer + s->n_mtp);
    synth_key_u32(p, "embedding_length", s->n_embd);
    synth_key_u32(p, "attention.head_count", s->n_head);
    if (!s->n_head_kv_full) synth_key_u32(p, "attention.head_count_kv", s->n_head_kv);
    if (lengths) {
        synth_key_u32(p, "attention.key_length", s->head_dim);
        synth_key_u32(p, "attention.value_length", s->head_dim);
    }
    synth_key_u32(p, "expert_count", s->n_expert);
    synth_key_u32(p, "expert_used_count", s->n_used);
    if (lengths) synth_key_u32(p, "expert_feed_forward_length", s->n_ff);
}

void synth_key_context(synth_plan *p, double eps)
{
    synth_key_u32(p, "context_length", p->o.shape->n_ctx);
    synth_key_f32(p, "attention.layer_norm_rms_epsilon", eps);
    synth_key_f32(p, "rope.freq_base", p->o.shape->rope_base);
}
