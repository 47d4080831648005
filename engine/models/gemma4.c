/* gemma4.c - Gemma 4 with experts (26B-A4B): the keys and tensors of its files.
 *
 * Most layers have windowed attention. The others have full attention with fewer and larger heads,
 * whose values equal their keys. The last layers may share keys and values of an earlier layer.
 * Queries, keys and values are normed; scores are not scaled. Each layer has experts and a dense
 * network in parallel, with a norm before and after each, and one after their sum. The router has
 * its own norm of the residual. Logits are capped. */
#include "engine/models/model_bind.h"

#include <inttypes.h>
#include <math.h>

/* ---- keys ----------------------------------------------------------------------------------- */

/* Refuses per-layer embeddings, which smaller Gemma 4 models have. */
static int bind_absent(binder *b)
{
    char key[BIND_KEY_CAP];
    int per_layer = 0, rc;
    const bind_key keys[] = {
        { "embedding_length_per_layer_input", 0, MAX_SIZE, OPTIONAL, &per_layer },
    };
    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    if (per_layer == 0) return bind_not_dense(b);
    return err_set(b->err, ERR_UNSUPPORTED, "key %s = %d: not supported",
                   bind_key_name(key, b, keys[0].name), per_layer);
}

static int bind_windows(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int n_windowed = 0, rc;
    const bind_key window[] = { { "attention.sliding_window", 1, INT32_MAX, REQUIRED,
                                  &hp->window } };
    if ((rc = bind_keys(b, window, 1)) < 0) return rc;
    bind_key_name(key, b, "attention.sliding_window_pattern");
    const gguf_kv *list = gguf_find(b->file, key);
    if (!list) return err_set(b->err, ERR_FORMAT, "key %s missing", key);
    if (!list->is_array)
        return err_set(b->err, ERR_FORMAT, "key %s is %s, expected an array", key,
                       gguf_type_name(list->type, false));
    for (int l = 0; l < hp->n_layer; l++) {
        int64_t windowed = 0;
        rc = gguf_get_int_at(&windowed, b->file, key, l, hp->n_layer, 0, 1, b->err);
        if (rc < 0) return rc;
        b->m->layers[l].window = windowed ? hp->window : 0;
        n_windowed += windowed != 0;
    }
    if (n_windowed > 0 && n_windowed < hp->n_layer) return 0;
    return err_set(b->err, ERR_UNSUPPORTED, "key %s: %d of %d layers have a window, expected some",
                   key, n_windowed, hp->n_layer);
}

/* The key is the number of last layers that share keys and values. Each uses those of the last
 * earlier layer of its kind, windowed or full. */
static int bind_shared_kv(binder *b)
{
    model_layer *layers = b->m->layers;
    const int n_layer = b->m->hp.n_layer;
    char key[BIND_KEY_CAP];
    int n_shared = 0, rc;
    const bind_key keys[] = {
        { "attention.shared_kv_layers", 0, n_layer - 1, OPTIONAL, &n_shared },
    };
    if ((rc = bind_keys(b, keys, 1)) < 0) return rc;
    for (int l = n_layer - n_shared; l < n_layer; l++) {
        int from = n_layer - n_shared - 1;
        while (from >= 0 && (layers[from].window > 0) != (layers[l].window > 0)) from--;
        if (from < 0)
            return err_set(b->err, ERR_FORMAT, "key %s = %d: no %s layer is before these layers",
                           bind_key_name(key, b, keys[0].name), n_shared,
                           layers[l].window > 0 ? "windowed" : "full");
        layers[l].kv_back = l - from;
    }
    return 0;
}

/* Refuses rope scaling: no published model has it, so its meaning for windowed layers is
 * unknown. */
static int bind_unscaled_rope(binder *b)
{
    const int rc = bind_plain_rope(b);
    char key[BIND_KEY_CAP];
    if (rc < 0 || b->m->hp.rope_scaling == ROPE_PLAIN) return rc;
    return err_set(b->err, ERR_UNSUPPORTED, "key %s: not supported",
                   bind_key_name(key, b, "rope.scaling.type"));
}

static int bind_hparams(binder *b)
{
    model_hparams *hp = &b->m->hp;
    double cap = 30.0;
    int rc;
    const bind_key width[] = {
        { "expert_feed_forward_length", 1, MAX_SIZE, REQUIRED, &hp->n_ff_expert },
    };
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_no_mtp(b)) < 0 || (rc = bind_absent(b)) < 0 ||
        (rc = bind_sizes(b)) < 0 || (rc = bind_windows(b)) < 0 || (rc = bind_shared_kv(b)) < 0 ||
        (rc = bind_heads(b, REQUIRED)) < 0 || (rc = bind_unscaled_rope(b)) < 0 ||
        (rc = bind_window_heads(b)) < 0 || (rc = bind_expert_counts(b)) < 0 ||
        (rc = bind_keys(b, width, 1)) < 0 ||
        (rc = bind_float(b, &cap, "final_logit_softcapping", true, OPTIONAL)) < 0)
        return rc;
    hp->logit_cap = (float)cap;
    hp->embed_scale = sqrtf((float)hp->n_embd);
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int bind_attention(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const attn_shape heads = layer_attn(&b->m->hp, y);
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, dim = (uint64_t)heads.head_dim;
    const uint64_t q = (uint64_t)heads.n_head * dim, k = (uint64_t)heads.n_head_kv * dim;
    const bind_need values = y->window > 0 ? REQUIRED : OPTIONAL;
    const bind_row rows[] = {
        { "attn_q.weight",      { embd, q }, MATRIX, REQUIRED, &y->attn.q },
        { "attn_output.weight", { q, embd }, MATRIX, REQUIRED, &y->attn.out },
        { "attn_q_norm.weight", { dim },     SMALL,  REQUIRED, &y->attn.q_norm },
    };
    const bind_row own[] = {
        { "attn_k.weight",      { embd, k }, MATRIX, REQUIRED, &y->attn.k },
        { "attn_v.weight",      { embd, k }, MATRIX, values,   &y->attn.v },
        { "attn_k_norm.weight", { dim },     SMALL,  REQUIRED, &y->attn.k_norm },
    };
    const int rc = bind_rows(b, l, rows, ARRAY_LEN(rows));
    return rc < 0 || y->kv_back > 0 ? rc : bind_rows(b, l, own, ARRAY_LEN(own));
}

/* Binds the dense network parallel to the experts; its width may differ by layer. */
static int bind_dense(binder *b, int l)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int64_t width = 0;
    bind_key_name(key, b, "feed_forward_length");
    int rc = gguf_get_int_at(&width, b->file, key, l, hp->n_layer, 1, MAX_SIZE, b->err);
    if (rc < 0) return rc;
    if (rc == 0) return err_set(b->err, ERR_FORMAT, "key %s missing", key);
    hp->n_ff_shared = max_int(hp->n_ff_shared, (int)width);
    return bind_shared(b, l, false, (int)width);
}

static int bind_layer(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, n = (uint64_t)b->m->hp.n_expert;
    const bind_row rows[] = {
        { "attn_norm.weight",           { embd },    SMALL, REQUIRED, &y->attn_norm },
        { "post_attention_norm.weight", { embd },    SMALL, REQUIRED, &y->mix_out_norm },
        { "ffn_norm.weight",            { embd },    SMALL, REQUIRED, &y->post_attn_norm },
        { "post_ffw_norm_1.weight",     { embd },    SMALL, REQUIRED, &y->shared_out_norm },
        { "pre_ffw_norm_2.weight",      { embd },    SMALL, REQUIRED, &y->experts_norm },
        { "post_ffw_norm_2.weight",     { embd },    SMALL, REQUIRED, &y->experts_out_norm },
        { "post_ffw_norm.weight",       { embd },    SMALL, REQUIRED, &y->ffn_out_norm },
        { "ffn_gate_inp.weight",        { embd, n }, SMALL, REQUIRED, &y->router },
        { "ffn_gate_inp.scale",         { embd },    SMALL, REQUIRED, &y->router_norm },
        { "layer_output_scale.weight",  { 1 },       SMALL, OPTIONAL, &y->out_scale },
    };
    int rc;
    if ((rc = bind_rows(b, l, rows, ARRAY_LEN(rows))) < 0 || (rc = bind_attention(b, l)) < 0 ||
        (rc = bind_dense(b, l)) < 0)
        return rc;
    return bind_experts(b, l, false);    /* binds ffn_down_exps.scale too */
}

static int gemma4_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    const bind_row factors[] = {
        { "rope_freqs.weight", { (uint64_t)b->m->hp.rope_dim / 2 }, F32_ONLY, REQUIRED,
          &b->m->rope_factors },
    };
    if ((rc = bind_rows(b, NO_LAYER, factors, 1)) < 0) return rc;
    for (int l = 0; l < b->m->hp.n_layer; l++)
        if ((rc = bind_layer(b, l)) < 0) return rc;
    return 0;
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family gemma4_family = {
    .name = "gemma4", .bind = gemma4_bind, .act = ACT_GEGLU, .attn_norm_values = true,
    .attn_unscaled = true, .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 1.0, .top_k = 64, .top_p = 0.95 },
};
