/* llama.c - Mixtral: the keys and tensors of files of the architecture llama with experts.
 *
 * Every layer has full attention, which rotates pairs of adjacent dimensions, and routed experts.
 * Models derived from Llama 3.1 and later have a rope factor for each pair. */
#include "engine/models/model_bind.h"

static int bind_hparams(binder *b)
{
    int rc;
    const bind_key width[] = {
        { "feed_forward_length", 1, MAX_SIZE, REQUIRED, &b->m->hp.n_ff_expert },
    };
    if ((rc = bind_blocks(b)) < 0 || (rc = bind_no_mtp(b)) < 0 || (rc = bind_sizes(b)) < 0 ||
        (rc = bind_not_dense(b)) < 0 || (rc = bind_keys(b, width, 1)) < 0 ||
        (rc = bind_heads(b, OPTIONAL)) < 0 || (rc = bind_plain_rope(b)) < 0)
        return rc;
    if (b->m->hp.rope_dim > MODEL_MOST_NEIGHBOURS)
        return err_set(b->err, ERR_UNSUPPORTED, "heads with %d rotated dimensions: at most %d are "
                       "supported", b->m->hp.rope_dim, MODEL_MOST_NEIGHBOURS);
    return bind_expert_counts(b);
}

static int llama_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    const bind_row factors[] = {
        { "rope_freqs.weight", { (uint64_t)b->m->hp.rope_dim / 2 }, F32_ONLY, OPTIONAL,
          &b->m->rope_factors },
    };
    if ((rc = bind_rows(b, NO_LAYER, factors, 1)) < 0) return rc;
    return bind_plain_layers(b, false);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

const model_family llama_family = {
    .name = "llama", .bind = llama_bind, .act = ACT_SWIGLU, .rope_neighbours = true,
    .cache_experts = true, .yarn_rounded = true,
    .sampling = { .temperature = 0.7, .top_k = 50, .top_p = 0.95 },
};
