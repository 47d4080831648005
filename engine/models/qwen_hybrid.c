/* qwen_hybrid.c - keys, attention and experts shared by Qwen3-Next and its successors.
 *
 * Every layer mixes tokens by gated DeltaNet (three of four) or gated attention (every fourth),
 * then has routed experts and one shared expert. */
#include "engine/models/qwen_hybrid.h"

#include <inttypes.h>

/* ---- keys ----------------------------------------------------------------------------------- */

/* Sets which layers are recurrent: from attention.recurrent_layers, one entry per block, else all
 * but every full_attention_interval-th. MTP blocks always have attention. */
static int bind_mixers(binder *b)
{
    const model_hparams *hp = &b->m->hp;
    const int n_block = hp->n_layer + hp->n_mtp;
    char key[BIND_KEY_CAP];
    int interval = 4, rc;
    const bind_key keys[] = {
        { "full_attention_interval", 1, MAX_BLOCKS, OPTIONAL, &interval },
    };

    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    const gguf_kv *list = gguf_find(b->file, bind_key_name(key, b, "attention.recurrent_layers"));
    if (list && !list->is_array)
        return err_set(b->err, ERR_FORMAT, "key %s is %s, expected an array", key,
                       gguf_type_name(list->type, false));
    for (int l = 0; l < hp->n_layer; l++) {
        int64_t is_recurrent = (l + 1) % interval != 0;
        rc = gguf_get_int_at(&is_recurrent, b->file, key, l, n_block, INT64_MIN, INT64_MAX, b->err);
        if (rc < 0) return rc;
        b->m->layers[l].mixer = is_recurrent ? MIX_DELTANET : MIX_ATTENTION;
    }
    return 0;
}

static int bind_delta_keys(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int inner = 0, rc;
    const bind_key keys[] = {
        { "ssm.conv_kernel",    1, MAX_CONV, REQUIRED, &hp->ssm_conv },
        { "ssm.state_size",     1, MAX_SIZE, REQUIRED, &hp->ssm_head_dim },
        { "ssm.group_count",    1, MAX_SIZE, REQUIRED, &hp->ssm_n_k_head },
        { "ssm.time_step_rank", 1, MAX_SIZE, REQUIRED, &hp->ssm_n_v_head },
        { "ssm.inner_size",     1, MAX_SIZE, REQUIRED, &inner },
    };

    if ((rc = bind_keys(b, keys, ARRAY_LEN(keys))) < 0) return rc;
    if (hp->ssm_n_v_head % hp->ssm_n_k_head != 0)
        return err_set(b->err, ERR_FORMAT, "key %s = %d is not a multiple of ssm.group_count = %d",
                       bind_key_name(key, b, "ssm.time_step_rank"), hp->ssm_n_v_head,
                       hp->ssm_n_k_head);
    if (inner != (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim)
        return err_set(b->err, ERR_FORMAT,
                       "key %s = %d is not ssm.time_step_rank * ssm.state_size = %d * %d",
                       bind_key_name(key, b, "ssm.inner_size"), inner, hp->ssm_n_v_head,
                       hp->ssm_head_dim);
    return 0;
}

/* Reads the widths of routed and shared experts. If the expert width is missing, it is
 * feed_forward_length / n_expert_used. A missing width of the shared expert comes from its
 * matrix. */
static int bind_ff_keys(binder *b)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int64_t ff = 0;
    int rc;
    const tensor *shared = bind_find(b, 0, "ffn_gate_shexp.weight");

    bind_key_name(key, b, "feed_forward_length");
    rc = gguf_get_int_at(&ff, b->file, key, 0, hp->n_layer + hp->n_mtp, 0, MAX_SIZE, b->err);
    if (rc < 0) return rc;
    hp->n_ff_expert = (int)(ff / hp->n_expert_used);
    hp->n_ff_shared = shared && shared->rows <= MAX_SIZE ? (int)shared->rows : (int)ff;
    const bind_key keys[] = {
        { "expert_feed_forward_length",        1, MAX_SIZE,
          hp->n_ff_expert ? OPTIONAL : REQUIRED, &hp->n_ff_expert },
        { "expert_shared_feed_forward_length", 1, MAX_SIZE,
          hp->n_ff_shared ? OPTIONAL : REQUIRED, &hp->n_ff_shared },
    };
    rc = bind_keys(b, keys, ARRAY_LEN(keys));
    return rc < 0 ? rc : bind_no_groups(b);
}

static int bind_hparams(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int rc;
    const bind_key rope[] = {
        { "rope.dimension_count", 2, MAX_SIZE, REQUIRED, &hp->rope_dim },
    };

    if ((rc = bind_blocks(b)) < 0 || (rc = bind_mixers(b)) < 0 ||
        (rc = bind_sizes(b)) < 0 || (rc = bind_heads(b, REQUIRED)) < 0 ||
        (rc = bind_keys(b, rope, ARRAY_LEN(rope))) < 0 || (rc = bind_rope(b, OPTIONAL)) < 0 ||
        (rc = bind_expert_counts(b)) < 0 || (rc = bind_ff_keys(b)) < 0)
        return rc;
    return bind_delta_keys(b);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int bind_attention(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->head_dim;
    const uint64_t q = (uint64_t)hp->n_head * dim, k = (uint64_t)hp->n_head_kv * dim;
    const bind_row rows[] = {            /* attn_q: query and gate of head 0, of head 1, ... */
        { "attn_q.weight",      { embd, 2 * q }, MATRIX, REQUIRED, &y->attn.q },
        { "attn_k.weight",      { embd, k },     MATRIX, REQUIRED, &y->attn.k },
        { "attn_v.weight",      { embd, k },     MATRIX, REQUIRED, &y->attn.v },
        { "attn_output.weight", { q, embd },     MATRIX, REQUIRED, &y->attn.out },
        { "attn_q_norm.weight", { dim },         SMALL,  REQUIRED, &y->attn.q_norm },
        { "attn_k_norm.weight", { dim },         SMALL,  REQUIRED, &y->attn.k_norm },
    };
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

static int bind_ffn(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)hp->n_embd, n = (uint64_t)hp->n_expert;
    const bind_row rows[] = {
        { "ffn_gate_inp.weight",       { embd, n }, SMALL, REQUIRED, &y->router },
        { "ffn_gate_inp_shexp.weight", { embd },    SMALL, REQUIRED, &y->shared_gate_inp },
    };
    int rc = bind_rows(b, l, rows, ARRAY_LEN(rows));
    if (rc == 0) rc = bind_shared(b, l, true, hp->n_ff_shared);
    return rc < 0 ? rc : bind_experts(b, l, false);
}

/* Refuses a layer with a tensor that contradicts its kind by the keys. */
static int check_mixer(const binder *b, int l)
{
    const bool delta = b->m->layers[l].mixer == MIX_DELTANET;
    const char *alien = delta ? "attn_q.weight" : "ssm_a";
    if (!bind_find(b, l, alien)) return 0;
    return err_set(b->err, ERR_FORMAT, "layer %d is %s by the keys, but the file has blk.%d.%s", l,
                   delta ? "recurrent" : "full attention", l, alien);
}

static int bind_layer(binder *b, int l, bind_delta_fn *deltanet)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd;
    const bind_row norms[] = {
        { "attn_norm.weight",           { embd }, SMALL, REQUIRED, &y->attn_norm },
        { "post_attention_norm.weight", { embd }, SMALL, REQUIRED, &y->post_attn_norm },
    };
    int rc;

    if ((rc = check_mixer(b, l)) < 0) return rc;
    if ((rc = bind_rows(b, l, norms, ARRAY_LEN(norms))) < 0) return rc;
    rc = y->mixer == MIX_DELTANET ? deltanet(b, l) : bind_attention(b, l);
    if (rc < 0 || (rc = bind_ffn(b, l)) < 0) return rc;
    return l < b->m->hp.n_layer ? 0 : bind_mtp(b, l);
}

int bind_hybrid(binder *b, bind_delta_fn *deltanet)
{
    int rc;
    if ((rc = bind_hparams(b)) < 0 || (rc = bind_globals(b, SMALL, OPTIONAL)) < 0) return rc;
    bind_absent_mtp(b);
    for (int l = 0; l < b->m->hp.n_layer + b->m->hp.n_mtp; l++)
        if ((rc = bind_layer(b, l, deltanet)) < 0) return rc;
    return 0;
}
