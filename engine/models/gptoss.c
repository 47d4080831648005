/* gptoss.c - gpt-oss 20b and 120b: the keys and tensors of their files.
 *
 * Layers alternate between windowed and full attention, with biases and sinks, and have routed
 * experts with biases. Small tensors are F32 in every known file, so other types are refused. */
#include "engine/models/model_bind.h"

#include <float.h>
#include <limits.h>

/* Layer l is windowed iff l mod period < period - 1; the period is 2 in all known files. If the key
 * is an array it is ignored, as in the reference implementation. */
static int bind_windows(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int period = 2, rc;
    const bind_key window[] = {
        { "attention.sliding_window",         1, INT_MAX,    REQUIRED, &hp->window },
    };
    const bind_key pattern[] = {
        { "attention.sliding_window_pattern", 1, MAX_BLOCKS, OPTIONAL, &period },
    };

    if ((rc = bind_keys(b, window, 1)) < 0) return rc;
    const gguf_kv *given = gguf_find(b->file, bind_key_name(key, b, pattern[0].name));
    if (given && !given->is_array && (rc = bind_keys(b, pattern, 1)) < 0) return rc;
    for (int l = 0; l < hp->n_layer; l++)
        b->m->layers[l].window = l % period < period - 1 ? hp->window : 0;
    return 0;
}

/* Base and scaling are required, because the reference's defaults are wrong for this model. The
 * YaRN betas are always 32 and 1; the file's keys are ignored. */
static int bind_rotation(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int rc;
    const bind_key dim[] = {
        { "rope.dimension_count", 2, MAX_SIZE, OPTIONAL, &hp->rope_dim },
    };

    hp->rope_dim = hp->head_dim;
    if ((rc = bind_keys(b, dim, 1)) < 0 || (rc = bind_rope(b, REQUIRED)) < 0) return rc;
    rc = gguf_get_float(&hp->rope_base_window, b->file, bind_key_name(key, b, "rope.freq_base_swa"),
                        (double)FLT_MIN, (double)FLT_MAX, b->err);
    return rc < 0 ? rc : 0;
}

static int bind_hparams(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int rc;
    const bind_key sizes[] = {
        { "context_length",             1, INT_MAX,  REQUIRED, &hp->ctx_train },
        { "embedding_length",           1, MAX_SIZE, REQUIRED, &hp->n_embd },
        { "expert_feed_forward_length", 1, MAX_SIZE, REQUIRED, &hp->n_ff_expert },
    };

    if ((rc = bind_blocks(b)) < 0 || (rc = bind_keys(b, sizes, ARRAY_LEN(sizes))) < 0 ||
        (rc = bind_heads(b, REQUIRED)) < 0 || (rc = bind_windows(b)) < 0 ||
        (rc = bind_rotation(b)) < 0)
        return rc;
    return bind_expert_counts(b);
}

static int bind_attention(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, heads = (uint64_t)b->m->hp.n_head;
    const bind_row rest[] = {            /* one sink per query head */
        { "attn_output.bias",  { embd },  F32_ONLY, REQUIRED, &y->attn.out_bias },
        { "attn_sinks.weight", { heads }, F32_ONLY, REQUIRED, &y->attn.sinks },
    };
    const int rc = bind_projections(b, l, true);
    return rc < 0 ? rc : bind_rows(b, l, rest, ARRAY_LEN(rest));
}

static int bind_layer(binder *b, int l)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, n = (uint64_t)b->m->hp.n_expert;
    const char *fused = "ffn_gate_up_exps.weight";
    const bind_row rows[] = {
        { "attn_norm.weight",           { embd },    F32_ONLY, REQUIRED, &y->attn_norm },
        { "post_attention_norm.weight", { embd },    F32_ONLY, REQUIRED, &y->post_attn_norm },
        { "ffn_gate_inp.weight",        { embd, n }, F32_ONLY, REQUIRED, &y->router },
        { "ffn_gate_inp.bias",          { n },       F32_ONLY, REQUIRED, &y->router_bias },
    };
    int rc;

    if (bind_find(b, l, fused))
        return err_set(b->err, ERR_UNSUPPORTED,
                       "tensor blk.%d.%s: fused gate and up rows have no agreed order in gpt-oss "
                       "files; use one with ffn_gate_exps and ffn_up_exps", l, fused);
    if ((rc = bind_attention(b, l)) < 0) return rc;
    if ((rc = bind_rows(b, l, rows, ARRAY_LEN(rows))) < 0) return rc;
    return bind_experts(b, l, true);
}

static int gptoss_bind(binder *b)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, F32_ONLY, REQUIRED)) < 0) return rc;
    if ((rc = bind_no_mtp(b)) < 0) return rc;
    for (int l = 0; l < b->m->hp.n_layer; l++)
        if ((rc = bind_layer(b, l)) < 0) return rc;
    return 0;
}

/* ---- the recipe ------------------------------------------------------------------------------ */

/* Attention with sinks, rotation of all dimensions with YaRN, and no shared expert. */
const model_family gptoss_family = {
    .name = "gpt-oss", .bind = gptoss_bind, .act = ACT_SWIGLU_CLAMPED, .cache_experts = true,
    .sampling = { .temperature = 1.0, .top_k = 0, .top_p = 1.0 },
};
