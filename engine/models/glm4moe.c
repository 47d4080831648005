/* glm4moe.c - GLM-4.5, 4.6 and 4.7, and GLM-4.5-Air: the keys and tensors of their files.
 *
 * Every layer has full attention with biases and partial rotation. The first layers have a dense
 * network. The others have experts, chosen by sigmoid scores plus a correction bias, and a shared
 * expert of weight 1. The last block of a file is a next-token block. */
#include "engine/models/model_bind.h"

static int bind_router_keys(binder *b)
{
    router_rule *rule = &b->m->hp.router;
    char key[BIND_KEY_CAP];
    bool divided = false;
    double factor = 1.0;
    int score = 2, rc;
    const bind_key keys[] = {            /* 1: softmax, 2: sigmoid */
        { "expert_gating_func", 1, 2, OPTIONAL, &score },
    };
    bind_key_name(key, b, "expert_weights_norm");
    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0 ||
        (rc = bind_float(b, &factor, "expert_weights_scale", false, OPTIONAL)) < 0 ||
        (rc = gguf_get_bool(&divided, b->file, key, b->err)) < 0)
        return rc;
    rule->score = score == 2 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    rule->as_scored = !divided;
    rule->factor = (float)factor;
    return bind_no_groups(b);
}

/* Reads the number of dense layers and all widths. The shared expert's width is given in
 * experts. */
static int bind_ff_keys(binder *b, int *n_dense)
{
    model_hparams *hp = &b->m->hp;
    int n_shared = 0, rc;
    const bind_key one[] = {
        { "leading_dense_block_count",  0, hp->n_layer - 1, OPTIONAL, n_dense },
        { "expert_feed_forward_length", 1, MAX_SIZE,        REQUIRED, &hp->n_ff_expert },
    };
    if ((rc = bind_keys(b, one, ARRAY_LEN(one))) < 0) return rc;
    const bind_key others[] = {
        { "expert_shared_count", 0, MAX_SIZE / hp->n_ff_expert, REQUIRED, &n_shared },
        { "feed_forward_length", 1, MAX_SIZE,                   REQUIRED, &hp->n_ff_dense },
    };
    rc = bind_keys(b, others, *n_dense > 0 ? 2 : 1);
    hp->n_ff_shared = n_shared * hp->n_ff_expert;
    return rc;
}

static int bind_hparams(binder *b, int *n_dense)
{
    int rc;
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_sizes(b)) < 0 ||
        (rc = bind_heads(b, REQUIRED)) < 0 || (rc = bind_plain_rope(b)) < 0 ||
        (rc = bind_expert_counts(b)) < 0 || (rc = bind_router_keys(b)) < 0)
        return rc;
    return bind_ff_keys(b, n_dense);
}

static int bind_moe(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, n = (uint64_t)hp->n_expert;
    const bind_row rows[] = {
        { "ffn_gate_inp.weight", { embd, n }, SMALL, REQUIRED, &y->router },
        { "exp_probs_b.bias",    { n },       SMALL, OPTIONAL, &y->choice_bias },
    };
    int rc = bind_rows(b, l, rows, ARRAY_LEN(rows));
    if (rc == 0 && hp->n_ff_shared > 0) rc = bind_shared(b, l, true, hp->n_ff_shared);
    return rc < 0 ? rc : bind_experts(b, l, false);
}

static int bind_layer(binder *b, int l, bool dense)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd;
    const bind_row norms[] = {
        { "attn_norm.weight",           { embd }, SMALL, REQUIRED, &y->attn_norm },
        { "post_attention_norm.weight", { embd }, SMALL, REQUIRED, &y->post_attn_norm },
    };
    int rc;
    if ((rc = bind_rows(b, l, norms, ARRAY_LEN(norms))) < 0 ||
        (rc = bind_projections(b, l, true)) < 0 || (rc = bind_head_norms(b, l, OPTIONAL)) < 0)
        return rc;
    if (!y->attn.q_norm.t != !y->attn.k_norm.t)
        return bind_missing(b, l, y->attn.q_norm.t ? "attn_k_norm.weight" : "attn_q_norm.weight",
                            NULL);
    rc = dense ? bind_shared(b, l, false, b->m->hp.n_ff_dense) : bind_moe(b, l);
    return rc < 0 || l < b->m->hp.n_layer ? rc : bind_mtp(b, l);
}

static int glm4moe_bind(binder *b)
{
    int n_dense = 0, rc;
    if ((rc = bind_hparams(b, &n_dense)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0)
        return rc;
    bind_absent_mtp(b);
    for (int l = 0; l < b->m->hp.n_layer + b->m->hp.n_mtp; l++)
        if ((rc = bind_layer(b, l, l < n_dense)) < 0) return rc;
    return 0;
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family glm4moe_family = {
    .name = "glm4moe", .bind = glm4moe_bind, .act = ACT_SWIGLU,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.6, .top_k = 0, .top_p = 0.95 },
};
