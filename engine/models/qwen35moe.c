/* qwen35moe.c - Qwen3.5 and Qwen3.6 with experts: the DeltaNet tensors of their files.
 *
 * Unlike in Qwen3-Next, value head h uses key head h % n_k, in all tensors, and beta and alpha have
 * separate matrices. qwen_hybrid.c binds the rest. rope.dimension_sections matter only for images
 * and are ignored. */
#include "engine/models/qwen_hybrid.h"

static int bind_deltanet(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->ssm_head_dim;
    const uint64_t n_v = (uint64_t)hp->ssm_n_v_head, v = n_v * dim;      /* also the width of z */
    const uint64_t qkv = hparams_channels(hp), taps = (uint64_t)hp->ssm_conv;
    const bool dt_bias = bind_find(b, l, "ssm_dt.bias"), dt = bind_find(b, l, "ssm_dt");
    const bind_row rows[] = {            /* attn_gate is the projection to z */
        { "attn_qkv.weight",   { embd, qkv }, MATRIX, REQUIRED, &y->delta.qkv },
        { "attn_gate.weight",  { embd, v },   MATRIX, REQUIRED, &y->delta.gate },
        { "ssm_beta.weight",   { embd, n_v }, MATRIX, REQUIRED, &y->delta.beta },
        { "ssm_alpha.weight",  { embd, n_v }, MATRIX, REQUIRED, &y->delta.alpha },
        { "ssm_conv1d.weight", { taps, qkv }, SMALL,  REQUIRED, &y->delta.conv },
        { dt_bias ? "ssm_dt.bias" : "ssm_dt",
                               { n_v },       SMALL,  REQUIRED, &y->delta.dt_bias },
        { "ssm_a",             { n_v },       SMALL,  REQUIRED, &y->delta.a },
        { "ssm_norm.weight",   { dim },       SMALL,  REQUIRED, &y->delta.norm },
        { "ssm_out.weight",    { v, embd },   MATRIX, REQUIRED, &y->delta.out },
    };
    if (!dt_bias && !dt) return bind_missing(b, l, "ssm_dt.bias", "ssm_dt");
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

static int qwen35moe_bind(binder *b)
{
    b->m->hp.ssm_tiled = true;
    return bind_hybrid(b, bind_deltanet);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family qwen35moe_family = {
    .name = "qwen35moe", .bind = qwen35moe_bind, .attn_gated = true, .act = ACT_SWIGLU,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 20, .top_p = 0.8 },
};
