/* qwen3moe.c - Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B: which keys and tensors their files
 * hold.
 *
 * Every layer has full attention, with norms of each head's query and key, and routed experts. */
#include "engine/models/model_bind.h"

#include <limits.h>

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
    model_hparams *hp = &b->m->hp;
    int rc;
    const bind_key sizes[] = {
        { "context_length",   1, INT_MAX,  REQUIRED, &hp->ctx_train },
        { "embedding_length", 1, MAX_SIZE, REQUIRED, &hp->n_embd },
    };
    const bind_key rotated[] = {         /* converters leave it out: all of a head */
        { "rope.dimension_count", 2, MAX_SIZE, OPTIONAL, &hp->rope_dim },
    };

    if ((rc = bind_blocks(b)) < 0 || (rc = bind_keys(b, sizes, ARRAY_LEN(sizes))) < 0 ||
        (rc = bind_heads(b)) < 0)
        return rc;
    hp->rope_dim = hp->head_dim;
    if ((rc = bind_keys(b, rotated, 1)) < 0 || (rc = bind_rope(b, OPTIONAL)) < 0 ||
        (rc = bind_expert_counts(b)) < 0)
        return rc;
    return bind_ff_keys(b);
}

static int bind_attention(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->head_dim;
    const uint64_t q = (uint64_t)hp->n_head * dim, k = (uint64_t)hp->n_head_kv * dim;
    int rc;
    const bind_row together[] = {        /* rows of q, then of k, then of v */
        { "attn_qkv.weight",    { embd, q + 2 * k }, MATRIX, REQUIRED, &y->attn.qkv },
    };
    const bind_row apart[] = {
        { "attn_q.weight",      { embd, q },         MATRIX, REQUIRED, &y->attn.q },
        { "attn_k.weight",      { embd, k },         MATRIX, REQUIRED, &y->attn.k },
        { "attn_v.weight",      { embd, k },         MATRIX, REQUIRED, &y->attn.v },
    };
    const bind_row rest[] = {
        { "attn_output.weight", { q, embd },         MATRIX, REQUIRED, &y->attn.out },
        { "attn_q_norm.weight", { dim },             SMALL,  REQUIRED, &y->attn.q_norm },
        { "attn_k_norm.weight", { dim },             SMALL,  REQUIRED, &y->attn.k_norm },
    };

    rc = bind_find(b, l, "attn_qkv.weight") ? bind_rows(b, l, together, ARRAY_LEN(together))
                                            : bind_rows(b, l, apart, ARRAY_LEN(apart));
    return rc < 0 ? rc : bind_rows(b, l, rest, ARRAY_LEN(rest));
}

static int bind_layer(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, n = (uint64_t)b->m->hp.n_expert;
    const bind_row rows[] = {
        { "attn_norm.weight",    { embd },    SMALL, REQUIRED, &y->attn_norm },
        { "ffn_norm.weight",     { embd },    SMALL, REQUIRED, &y->post_attn_norm },
        { "ffn_gate_inp.weight", { embd, n }, SMALL, REQUIRED, &y->router },
    };
    int rc;

    if ((rc = bind_attention(b, l)) < 0) return rc;
    if ((rc = bind_rows(b, l, rows, ARRAY_LEN(rows))) < 0) return rc;
    return bind_experts(b, l, false);
}

static int qwen3moe_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    if (b->m->hp.n_mtp > 0)
        return err_set(b->err, ERR_UNSUPPORTED, "key %s.nextn_predict_layers = %d: not supported",
                       b->arch, b->m->hp.n_mtp);
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
