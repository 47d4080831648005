/* qwen3moe.c - Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B: which keys and tensors their files
 * hold.
 *
 * Every layer has full attention, with norms of each head's query and key, and routed experts. */
#include "engine/models/model_bind.h"

/* feed_forward_length is no width of this network: it only stands in for a missing expert width,
 * divided by the experts in use. */
static int bind_ff_keys(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int ff = 0, rc;
    const bind_key all[] = { { "feed_forward_length", 0, MAX_SIZE, OPTIONAL, &ff } };

    if ((rc = bind_keys(b, all, 1)) < 0) return rc;
    hp->n_ff_expert = ff / hp->n_expert_used;
    const bind_key one[] = {
        { "expert_feed_forward_length", 1, MAX_SIZE, hp->n_ff_expert ? OPTIONAL : REQUIRED,
          &hp->n_ff_expert },
    };
    return bind_keys(b, one, 1);
}

static int bind_hparams(binder *b)
{
    int rc;
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_no_mtp(b)) < 0 || (rc = bind_sizes(b)) < 0 ||
        (rc = bind_heads(b, REQUIRED)) < 0 || (rc = bind_plain_rope(b)) < 0 ||
        (rc = bind_expert_counts(b)) < 0)
        return rc;
    return bind_ff_keys(b);
}

static int bind_layer(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, n = (uint64_t)b->m->hp.n_expert;
    const uint64_t dim = (uint64_t)b->m->hp.head_dim;
    const bind_row rows[] = {
        { "attn_norm.weight",    { embd },    SMALL, REQUIRED, &y->attn_norm },
        { "attn_q_norm.weight",  { dim },     SMALL, REQUIRED, &y->attn.q_norm },
        { "attn_k_norm.weight",  { dim },     SMALL, REQUIRED, &y->attn.k_norm },
        { "ffn_norm.weight",     { embd },    SMALL, REQUIRED, &y->post_attn_norm },
        { "ffn_gate_inp.weight", { embd, n }, SMALL, REQUIRED, &y->router },
    };
    int rc;
    if ((rc = bind_projections(b, l)) < 0 || (rc = bind_rows(b, l, rows, ARRAY_LEN(rows))) < 0)
        return rc;
    return bind_experts(b, l, false);
}

static int qwen3moe_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    for (int l = 0; l < b->m->hp.n_layer; l++)
        if ((rc = bind_layer(b, l)) < 0) return rc;
    return 0;
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family qwen3moe_family = {
    .name = "qwen3moe", .bind = qwen3moe_bind, .act = ACT_SWIGLU,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 20, .top_p = 0.8 },
};
