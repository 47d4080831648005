/* qwen3next.c - Qwen3-Next and Qwen3-Coder-Next: the DeltaNet tensors of their files.
 *
 * Old files have the fused tensor ssm_in, bound to delta.in; newer ones have delta.qkv and
 * delta.gate instead. qwen_hybrid.c binds the rest. */
#include "engine/models/qwen_hybrid.h"

static int bind_deltanet(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->ssm_head_dim;
    const uint64_t n_v = (uint64_t)hp->ssm_n_v_head, v = n_v * dim;      /* also the width of z */
    const uint64_t qkv = hparams_channels(hp), taps = (uint64_t)hp->ssm_conv;
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
    const bind_row rest[] = {            /* ssm_dt: one converter's name of the bias */
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

static int qwen3next_bind(binder *b) { return bind_hybrid(b, bind_deltanet); }

/* ---- the recipe ------------------------------------------------------------------------------ */

/* DeltaNet layers, with a layer of gated attention at regular intervals. */
const model_family qwen3next_family = {
    .name = "qwen3next", .bind = qwen3next_bind, .attn_gated = true, .act = ACT_SWIGLU,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 20, .top_p = 0.8 },
};
