/* olmoe.c - OLMoE-1B-7B: the keys and tensors of its files.
 *
 * Every layer has full attention, with one norm over all heads for queries and one for keys, and
 * routed experts. Their weights are the softmax over all experts, not renormalised. */
#include "engine/models/model_bind.h"

static int bind_hparams(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int rc;
    const bind_key width[] = {
        { "feed_forward_length", 1, MAX_SIZE, REQUIRED, &hp->n_ff_expert },
    };
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_no_mtp(b)) < 0 || (rc = bind_sizes(b)) < 0 ||
        (rc = bind_heads(b, OPTIONAL)) < 0 || (rc = bind_plain_rope(b)) < 0 ||
        (rc = bind_expert_counts(b)) < 0)
        return rc;
    hp->router.as_scored = true;
    return bind_keys(b, width, 1);
}

static int olmoe_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, REQUIRED)) < 0) return rc;
    return bind_plain_layers(b, true);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family olmoe_family = {
    .name = "olmoe", .bind = olmoe_bind, .act = ACT_SWIGLU, .attn_norm_whole = true,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 0, .top_p = 0.95 },
};
