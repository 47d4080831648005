/* weights.c - views of matrices, decoded copies of small vectors.
 *
 * model_bind has checked all shapes. set_all() visits all tensors twice: without a block it counts
 * the values of vectors, with one it decodes them. */
#include "engine/host/weights.h"

#include <math.h>
#include <string.h>

#include "loader/bytes.h"
#include "tiers/page_advice.h"

enum { EMBED_KEPT = 256 };               /* tokens: dropping pages takes some microseconds */

/* ---- small vectors --------------------------------------------------------------------------- */

typedef struct arena {
    float *block;                        /* NULL while counting */
    size_t used;
} arena;

static float *put_vector(arena *s, const weight *w)
{
    if (!w->t) return NULL;
    const quant_traits *q = quant_traits_of(w->t->type);
    float *dst = s->block ? s->block + s->used : NULL;
    s->used += size_align(w->t->elems, 16);
    if (dst) q->decode(dst, w->t->data, w->t->elems / (uint64_t)q->block_elems);
    return dst;
}

/* ---- matrices -------------------------------------------------------------------------------- */

static matrix view(const weight *w, const weight *bias)
{
    const tensor *t = w->t;
    matrix m = { .scale = 1.0f };
    if (!t) return m;
    m.type = t->type;
    m.rows = (int)t->rows;
    m.cols = (int)t->cols;
    m.data = t->data;
    m.row_bytes = t->row_bytes;
    if (w->scale) m.scale = load_f32(w->scale->data);
    if (bias && bias->t) m.bias = bias->t->data;
    return m;
}

/* Rows first .. first+n-1 of a matrix. */
static matrix slice(matrix m, int first, int n)
{
    m.data += (uint64_t)first * m.row_bytes;
    if (m.bias) m.bias = (const uint8_t *)m.bias + (size_t)first * sizeof(float);
    m.rows = n;
    return m;
}

matrix expert_matrix(const expert_bank *b, expert_slab s, int index)
{
    const tensor *t = b->weight[s];
    matrix m = {
        .type = t->type, .rows = (int)expert_slab_rows(b, s), .cols = (int)t->cols,
        .data = expert_slab_data(b, s, index), .row_bytes = t->row_bytes, .scale = 1.0f,
    };
    if (b->scale[s]) m.scale = load_f32(b->scale[s]->data + (size_t)index * sizeof(float));
    if (b->bias[s]) m.bias = tensor_row(b->bias[s], 0, (uint64_t)index);
    return m;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void set_attention(layer_weights *y, const model_layer *x, const model_hparams *hp,
                          arena *s)
{
    y->attn.out = view(&x->attn.out, &x->attn.out_bias);
    if (x->attn.qkv.t) {
        const matrix all = view(&x->attn.qkv, &x->attn.qkv_bias);
        const int q = hp->n_head * hp->head_dim, kv = hp->n_head_kv * hp->head_dim;
        y->attn.q = slice(all, 0, q);
        y->attn.k = slice(all, q, kv);
        y->attn.v = slice(all, q + kv, kv);
    } else {
        y->attn.q = view(&x->attn.q, &x->attn.q_bias);
        y->attn.k = view(&x->attn.k, &x->attn.k_bias);
        y->attn.v = view(&x->attn.v, &x->attn.v_bias);
    }
    y->attn.q_norm = put_vector(s, &x->attn.q_norm);
    y->attn.k_norm = put_vector(s, &x->attn.k_norm);
    y->attn.sinks = put_vector(s, &x->attn.sinks);
}

static void set_deltanet(layer_weights *y, const model_layer *x, arena *s)
{
    y->delta.qkv = view(&x->delta.qkv, NULL);
    y->delta.gate = view(&x->delta.gate, NULL);
    y->delta.in = view(&x->delta.in, NULL);
    y->delta.ba = view(&x->delta.ba, NULL);
    y->delta.beta = view(&x->delta.beta, NULL);
    y->delta.alpha = view(&x->delta.alpha, NULL);
    y->delta.out = view(&x->delta.out, NULL);
    y->delta.conv = put_vector(s, &x->delta.conv);
    y->delta.dt_bias = put_vector(s, &x->delta.dt_bias);
    y->delta.a = put_vector(s, &x->delta.a);
    y->delta.norm = put_vector(s, &x->delta.norm);
}

/* The gains of the router's norm include its factor 1 / sqrt(n_embd). */
static void set_norms(layer_weights *y, const model_layer *x, const model_hparams *hp, arena *s)
{
    y->attn_norm = put_vector(s, &x->attn_norm);
    y->post_attn_norm = y->router_norm = y->experts_norm = put_vector(s, &x->post_attn_norm);
    if (x->router_norm.t) {
        float *gain = put_vector(s, &x->router_norm);
        const float factor = 1.0f / sqrtf((float)hp->n_embd);
        for (int i = 0; gain && i < hp->n_embd; i++) gain[i] *= factor;
        y->router_norm = gain;
    }
    if (x->experts_norm.t) y->experts_norm = put_vector(s, &x->experts_norm);
    y->mix_out_norm = put_vector(s, &x->mix_out_norm);
    y->experts_out_norm = put_vector(s, &x->experts_out_norm);
    y->shared_out_norm = put_vector(s, &x->shared_out_norm);
    y->ffn_out_norm = put_vector(s, &x->ffn_out_norm);
    const float *scale = put_vector(s, &x->out_scale);
    y->out_scale = scale ? *scale : 1.0f;
}

static void set_layer(layer_weights *y, const model_layer *x, const model_hparams *hp, arena *s)
{
    set_norms(y, x, hp, s);
    if (x->mixer == MIX_ATTENTION) set_attention(y, x, hp, s);
    else set_deltanet(y, x, s);
    y->router = view(&x->router, &x->router_bias);
    y->choice_bias = put_vector(s, &x->choice_bias);
    y->experts = x->experts;
    y->shared_gate_inp = view(&x->shared_gate_inp, NULL);
    y->shared_gate = view(&x->shared_gate, NULL);
    y->shared_up = view(&x->shared_up, NULL);
    y->shared_down = view(&x->shared_down, NULL);
}

static void set_mtp(weights *w, const struct mtp_weights *x, arena *s)
{
    w->mtp.eh_proj = view(&x->eh_proj, NULL);
    w->mtp.embed = view(&x->embed, NULL);
    w->mtp.head = view(&x->head, NULL);
    w->mtp.enorm = put_vector(s, &x->enorm);
    w->mtp.hnorm = put_vector(s, &x->hnorm);
    w->mtp.head_norm = x->head_norm.t ? put_vector(s, &x->head_norm) : w->out_norm;
}

static void set_all(weights *w, const model *m, arena *s)
{
    w->embed = view(&m->embed, NULL);
    if (m->hp.embed_scale > 0.0f) w->embed.scale *= m->hp.embed_scale;
    w->head = view(&m->head, NULL);
    w->out_norm = put_vector(s, &m->out_norm);
    for (int l = 0; l < hparams_layers(&m->hp); l++)
        set_layer(&w->layers[l], &m->layers[l], &m->hp, s);
    if (m->hp.uses_mtp) set_mtp(w, &m->layers[m->hp.n_layer].mtp, s);
}

/* ---- the embedding table --------------------------------------------------------------------- */

static bool embed_by_row(const model *m)
{
    return !m->head_tied && m->file && gguf_n_part(m->file) > 0 && gguf_part_path(m->file, 0)[0];
}

void weights_forget_rows(const weights *w, int pos, int n)
{
    if (w->embed_by_row && pos / EMBED_KEPT != (pos + n) / EMBED_KEPT)
        pages_forget(w->embed.data, (uint64_t)w->embed.rows * w->embed.row_bytes);
}

uint64_t weights_embed_bytes(const model *m, int chunk)
{
    const tensor *t = m->embed.t;
    const uint64_t rows = (uint64_t)chunk + EMBED_KEPT - 1;
    const uint64_t few = rows * size_align(t->row_bytes + PAGES_AROUND - 1, PAGES_AROUND);
    return embed_by_row(m) && few < t->bytes ? few : t->bytes;
}

/* ---- all ------------------------------------------------------------------------------------- */

int weights_create(weights **out, const model *m, err_ctx *err)
{
    weights *w = mem_zalloc(sizeof *w);
    arena s = { 0 };
    *out = NULL;
    if (!w) return err_set(err, ERR_NOMEM, "weights: %zu bytes", sizeof *w);
    const size_t n_layer = (size_t)hparams_layers(&m->hp);
    w->layers = mem_array(n_layer, sizeof *w->layers);
    if (!w->layers) goto fail;
    memset(w->layers, 0, n_layer * sizeof *w->layers);
    set_all(w, m, &s);
    w->small = mem_array(s.used, sizeof *w->small);
    if (!w->small) goto fail;
    s = (arena){ .block = w->small };
    set_all(w, m, &s);
    w->embed_by_row = embed_by_row(m);
    if (w->embed_by_row) pages_few(m->embed.t->data, m->embed.t->bytes);
    *out = w;
    return 0;
fail:
    weights_free(w);
    return err_set(err, ERR_NOMEM, "weights: %d layers, %zu small values", hparams_layers(&m->hp),
                   s.used);
}

void weights_free(weights *w)
{
    if (!w) return;
    mem_free(w->layers);
    mem_free(w->small);
    mem_free(w);
}
