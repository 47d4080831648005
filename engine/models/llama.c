/* llama.c - Mixtral, as files of the architecture llama with experts: which keys and tensors they
 * hold.
 *
 * Every layer has full attention, whose queries and keys turn in pairs of neighbours, and routed
 * experts. */
#include "engine/models/model_bind.h"

/* Files of dense models have the same name. */
static int bind_width(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int n_expert = 0, rc;
    const bind_key count[] = { { "expert_count", 0, MAX_EXPERTS, OPTIONAL, &n_expert } };
    const bind_key width[] = {
        { "feed_forward_length", 1, MAX_SIZE, REQUIRED, &hp->n_ff_expert },
    };
    if ((rc = bind_keys(b, count, 1)) < 0) return rc;
    if (n_expert == 0)
        return err_set(b->err, ERR_UNSUPPORTED, "%s without experts (%s.expert_count): a dense "
                       "model, which this program does not run", b->arch, b->arch);
    return bind_keys(b, width, 1);
}

static int bind_hparams(binder *b)
{
    int rc;
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_no_mtp(b)) < 0 || (rc = bind_sizes(b)) < 0 ||
        (rc = bind_width(b)) < 0 || (rc = bind_heads(b, OPTIONAL)) < 0 ||
        (rc = bind_plain_rope(b)) < 0)
        return rc;
    if (b->m->hp.rope_dim > MODEL_MOST_NEIGHBOURS)
        return err_set(b->err, ERR_UNSUPPORTED, "heads of which %d dimensions turn: at most %d can",
                       b->m->hp.rope_dim, MODEL_MOST_NEIGHBOURS);
    return bind_expert_counts(b);
}

static int llama_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    return bind_plain_layers(b, false);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family llama_family = {
    .name = "llama", .bind = llama_bind, .act = ACT_SWIGLU, .rope_neighbours = true,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 50, .top_p = 0.95 },
};
