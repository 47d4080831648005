/* qwen3moe.c - Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B: keys and tensors of their files.
 *
 * Every layer has full attention, with a norm of each head's query and key, and routed experts. */
#include "engine/models/model_bind.h"

/* feed_forward_length is not a width of this network. If the expert width is missing, it is
 * feed_forward_length / n_expert_used. */
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

static int qwen3moe_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    return bind_plain_layers(b, true);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family qwen3moe_family = {
    .name = "qwen3moe", .bind = qwen3moe_bind, .act = ACT_SWIGLU,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 20, .top_p = 0.8 },
};
