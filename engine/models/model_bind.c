/* model_bind.c - binds the keys and tensors of an architecture's tables to a file.
 *
 * A bound tensor has the shape that the keys imply and a type that can be decoded. Every number is
 * checked against its range before it is used in arithmetic or allocation. */
#include "engine/models/model_bind.h"

#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

/* ---- keys ----------------------------------------------------------------------------------- */

const char *bind_key_name(char *dst, const binder *b, const char *name)
{
    snprintf(dst, BIND_KEY_CAP, "%s.%s", b->arch, name);
    return dst;
}

int bind_keys(const binder *b, const bind_key *keys, int n_key)
{
    for (int i = 0; i < n_key; i++) {
        const bind_key *k = &keys[i];
        char key[BIND_KEY_CAP];
        int64_t v = *k->to;
        bind_key_name(key, b, k->name);
        const int rc = k->need == REQUIRED
                           ? gguf_need_int(&v, b->file, key, k->lo, k->hi, b->err)
                           : gguf_get_int(&v, b->file, key, k->lo, k->hi, b->err);
        if (rc < 0) return rc;
        *k->to = (int)v;
    }
    return 0;
}

int bind_float(const binder *b, double *to, const char *name, bool zero_ok, bind_need need)
{
    char key[BIND_KEY_CAP];
    const double lo = zero_ok ? 0.0 : (double)FLT_MIN;
    bind_key_name(key, b, name);
    return need == REQUIRED ? gguf_need_float(to, b->file, key, lo, (double)FLT_MAX, b->err)
                                 : gguf_get_float(to, b->file, key, lo, (double)FLT_MAX, b->err);
}

int bind_blocks(binder *b)
{
    model_hparams *hp = &b->m->hp;
    int n_block = 0, rc;
    const bind_key count[] = { { "block_count", 1, MAX_BLOCKS, REQUIRED, &n_block } };

    if ((rc = bind_keys(b, count, 1)) < 0) return rc;
    const bind_key mtp[] = {
        { "nextn_predict_layers", 0, n_block - 1, OPTIONAL, &hp->n_mtp },
    };
    if ((rc = bind_keys(b, mtp, 1)) < 0) return rc;
    hp->n_layer = n_block - hp->n_mtp;
    b->m->layers = mem_zalloc((size_t)n_block * sizeof *b->m->layers);
    b->m->experts.of = mem_zalloc((size_t)n_block * sizeof *b->m->experts.of);
    if (!b->m->layers || !b->m->experts.of)
        return err_set(b->err, ERR_NOMEM, "out of memory for %d layers", n_block);
    for (int l = 0; l < n_block; l++) b->m->layers[l].experts = &b->m->experts.of[l];
    return 0;
}

int bind_no_mtp(const binder *b)
{
    if (b->m->hp.n_mtp == 0) return 0;
    return err_set(b->err, ERR_UNSUPPORTED, "key %s.nextn_predict_layers = %d: not supported",
                   b->arch, b->m->hp.n_mtp);
}

int bind_sizes(binder *b)
{
    model_hparams *hp = &b->m->hp;
    const bind_key sizes[] = {
        { "context_length",   1, INT_MAX,  REQUIRED, &hp->ctx_train },
        { "embedding_length", 1, MAX_SIZE, REQUIRED, &hp->n_embd },
    };
    return bind_keys(b, sizes, ARRAY_LEN(sizes));
}

/* Reads one number for all full or all windowed layers; *to is unchanged if the key is absent. If
 * the key is an array, the entries of the trunk's attention layers of that kind must be equal
 * (those of MTP blocks count only without such layers); entries of DeltaNet layers are ignored. */
static int bind_per_layer(const binder *b, int *to, const char *name, int64_t hi, bool windowed)
{
    const model_hparams *hp = &b->m->hp;
    const int n_block = hp->n_layer + hp->n_mtp;
    char key[BIND_KEY_CAP];
    int first = -1, rc;
    int64_t v = 0;

    bind_key_name(key, b, name);
    const gguf_kv *kv = gguf_find(b->file, key);
    if (!kv || !kv->is_array) {
        if ((rc = gguf_get_int(&v, b->file, key, 1, hi, b->err)) > 0) *to = (int)v;
        return rc < 0 ? rc : 0;
    }
    for (int l = 0; l < n_block; l++) {
        const model_layer *y = &b->m->layers[l];
        const bool asked = y->mixer == MIX_ATTENTION && (y->window > 0) == windowed;
        const bool used = asked && (l < hp->n_layer || first < 0);
        rc = gguf_get_int_at(&v, b->file, key, l, n_block, used ? 1 : INT64_MIN,
                             used ? hi : INT64_MAX, b->err);
        if (rc < 0) return rc;
        if (!used) continue;
        if (first < 0) { first = l; *to = (int)v; }
        if (v != *to)
            return err_set(b->err, ERR_UNSUPPORTED,
                           "key %s = %d for layer %d, but %" PRId64 " for layer %d: not supported",
                           key, *to, first, v, l);
    }
    if (first < 0)
        return err_set(b->err, ERR_FORMAT, "key %s is an array, but no layer has attention", key);
    return 0;
}

/* Reads the heads of full or windowed layers, except rope_dim. */
static int bind_shape(const binder *b, attn_shape *to, bool windowed, bind_need lengths)
{
    const char *key_length = windowed ? "attention.key_length_swa" : "attention.key_length";
    const char *value_length = windowed ? "attention.value_length_swa" : "attention.value_length";
    char key[BIND_KEY_CAP];
    int values = 0, rc;

    rc = bind_per_layer(b, &to->n_head, "attention.head_count", MAX_HEADS, windowed);
    if (rc < 0) return rc;
    if (to->n_head == 0)
        return err_set(b->err, ERR_FORMAT, "key %s missing",
                       bind_key_name(key, b, "attention.head_count"));
    to->n_head_kv = to->n_head;
    rc = bind_per_layer(b, &to->n_head_kv, "attention.head_count_kv", MAX_HEADS, windowed);
    if (rc < 0) return rc;
    if (to->n_head % to->n_head_kv != 0)
        return err_set(b->err, ERR_FORMAT,
                       "key %s = %d is not a multiple of attention.head_count_kv = %d",
                       bind_key_name(key, b, "attention.head_count"), to->n_head, to->n_head_kv);

    const bind_key sizes[] = {
        { key_length,   1, MAX_SIZE, lengths, &to->head_dim },
        { value_length, 1, MAX_SIZE, lengths, &values },
    };
    to->head_dim = b->m->hp.n_embd / to->n_head;
    if ((rc = bind_keys(b, sizes, 1)) < 0) return rc;
    values = to->head_dim;
    if ((rc = bind_keys(b, sizes + 1, 1)) < 0) return rc;
    if (to->head_dim == 0)
        return err_set(b->err, ERR_FORMAT, "key %s = %d is more than embedding_length = %d",
                       bind_key_name(key, b, "attention.head_count"), to->n_head,
                       b->m->hp.n_embd);
    if (values != to->head_dim)
        return err_set(b->err, ERR_UNSUPPORTED, "key %s = %d differs from %s = %d",
                       bind_key_name(key, b, value_length), values, key_length, to->head_dim);
    return 0;
}

int bind_window_heads(binder *b)
{
    model_hparams *hp = &b->m->hp;
    attn_shape *to = &hp->windowed;
    char key[BIND_KEY_CAP];
    const bind_key rotated[] = {
        { "rope.dimension_count_swa", 2, MAX_SIZE, OPTIONAL, &to->rope_dim },
    };
    int rc = bind_shape(b, to, true, REQUIRED);
    if (rc < 0) return rc;
    to->rope_dim = to->head_dim;
    if ((rc = bind_keys(b, rotated, 1)) < 0) return rc;
    if (to->rope_dim % 2 != 0 || to->rope_dim > to->head_dim)
        return err_set(b->err, ERR_RANGE,
                       "key %s = %d must be even and at most attention.key_length_swa = %d",
                       bind_key_name(key, b, rotated[0].name), to->rope_dim, to->head_dim);
    rc = bind_float(b, &hp->rope_base_window, "rope.freq_base_swa", false, REQUIRED);
    return rc < 0 ? rc : 0;
}

int bind_heads(binder *b, bind_need lengths)
{
    model_hparams *hp = &b->m->hp;
    attn_shape full = { 0 };
    char key[BIND_KEY_CAP];
    double eps = 0;
    bool causal = true;
    int rc;

    if ((rc = bind_shape(b, &full, false, lengths)) < 0) return rc;
    hp->n_head = full.n_head;
    hp->n_head_kv = full.n_head_kv;
    hp->head_dim = full.head_dim;

    rc = bind_float(b, &eps, "attention.layer_norm_rms_epsilon", true, REQUIRED);
    if (rc < 0) return rc;
    hp->rms_eps = (float)eps;

    rc = gguf_get_bool(&causal, b->file, bind_key_name(key, b, "attention.causal"), b->err);
    if (rc < 0) return rc;
    if (!causal) return err_set(b->err, ERR_UNSUPPORTED, "key %s is false: not supported", key);
    return 0;
}

static int bind_rope_type(const binder *b, rope_scaling *to, bind_need need)
{
    char key[BIND_KEY_CAP], text[64];
    str_view name = str_from("linear");
    const int rc = gguf_get_str(&name, b->file, bind_key_name(key, b, "rope.scaling.type"), b->err);

    if (rc < 0) return rc;
    if (rc == 0 && need == REQUIRED) return err_set(b->err, ERR_FORMAT, "key %s missing", key);
    if (str_is(name, "none")) *to = ROPE_PLAIN;
    else if (str_is(name, "linear")) *to = ROPE_LINEAR;
    else if (str_is(name, "yarn")) *to = ROPE_YARN;
    else return err_set(b->err, ERR_UNSUPPORTED, "key %s is '%s', expected none, linear or yarn",
                        key, ESC(text, name));
    return 0;
}

int bind_rope(binder *b, bind_need need)
{
    model_hparams *hp = &b->m->hp;
    char key[BIND_KEY_CAP];
    int rc;

    if (hp->rope_dim % 2 != 0 || hp->rope_dim > hp->head_dim)
        return err_set(b->err, ERR_RANGE,
                       "key %s = %d must be even and at most attention.key_length = %d",
                       bind_key_name(key, b, "rope.dimension_count"), hp->rope_dim, hp->head_dim);

    hp->rope_base = 10000.0;
    if ((rc = bind_float(b, &hp->rope_base, "rope.freq_base", false, need)) < 0) return rc;
    hp->rope_base_window = hp->rope_base;
    if ((rc = bind_rope_type(b, &hp->rope_scaling, need)) < 0) return rc;

    hp->rope_factor = hp->rope_attn_factor = 1.0;
    hp->rope_ctx_orig = hp->ctx_train;
    rc = bind_float(b, &hp->rope_attn_factor, "rope.scaling.attn_factor", false, OPTIONAL);
    if (rc < 0) return rc;
    if (hp->rope_scaling == ROPE_PLAIN) return 0;

    const bind_need yarn_need = hp->rope_scaling == ROPE_YARN ? need : OPTIONAL;
    const bind_key orig[] = {
        { "rope.scaling.original_context_length", 1, INT_MAX, yarn_need, &hp->rope_ctx_orig },
    };
    if ((rc = bind_keys(b, orig, 1)) < 0) return rc;
    rc = bind_float(b, &hp->rope_factor, "rope.scaling.factor", false, yarn_need);
    if (rc == 0)                         /* absent: try its name in old files */
        rc = bind_float(b, &hp->rope_factor, "rope.scale_linear", false, OPTIONAL);
    if (rc < 0) return rc;
    if (hp->rope_scaling == ROPE_LINEAR && hp->rope_factor == 1.0) hp->rope_scaling = ROPE_PLAIN;
    return 0;
}

int bind_plain_rope(binder *b)
{
    model_hparams *hp = &b->m->hp;
    const bind_key rotated[] = {
        { "rope.dimension_count", 2, MAX_SIZE, OPTIONAL, &hp->rope_dim },
    };
    hp->rope_dim = hp->head_dim;
    const int rc = bind_keys(b, rotated, 1);
    return rc < 0 ? rc : bind_rope(b, OPTIONAL);
}

int bind_not_dense(const binder *b)
{
    int n_expert = 0;
    const bind_key count[] = { { "expert_count", 0, MAX_EXPERTS, OPTIONAL, &n_expert } };
    const int rc = bind_keys(b, count, 1);
    if (rc < 0 || n_expert > 0) return rc;
    return err_set(b->err, ERR_UNSUPPORTED, "%s without experts (%s.expert_count): a dense model, "
                   "which this program does not run", b->arch, b->arch);
}

int bind_no_groups(const binder *b)
{
    char key[BIND_KEY_CAP];
    int groups = 0;
    const bind_key keys[] = { { "expert_group_count", 0, MAX_EXPERTS, OPTIONAL, &groups } };
    const int rc = bind_keys(b, keys, 1);
    if (rc < 0 || groups <= 1) return rc;
    return err_set(b->err, ERR_UNSUPPORTED, "key %s = %d: routing by groups is not supported",
                   bind_key_name(key, b, "expert_group_count"), groups);
}

int bind_expert_counts(binder *b)
{
    model_hparams *hp = &b->m->hp;
    const bind_key count[] = { { "expert_count", 1, MAX_EXPERTS, REQUIRED, &hp->n_expert } };
    int rc = bind_keys(b, count, 1);
    if (rc < 0) return rc;
    const bind_key used[] = {
        { "expert_used_count", 1, hp->n_expert, REQUIRED, &hp->n_expert_used },
    };
    if ((rc = bind_keys(b, used, 1)) < 0) return rc;
    b->m->experts.file = b->file;
    b->m->experts.n_layer = hp->n_layer;
    b->m->experts.n_expert = hp->n_expert;
    b->m->experts.n_used = hp->n_expert_used;
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Writes "blk.N.name", at most 4 + 10 + 1 + the longest name of a table. Returns dst. */
static const char *tensor_name(char dst[TENSOR_MAX_NAME + 1], int layer, const char *name)
{
    if (layer == NO_LAYER) snprintf(dst, TENSOR_MAX_NAME + 1, "%s", name);
    else snprintf(dst, TENSOR_MAX_NAME + 1, "blk.%d.%s", layer, name);
    return dst;
}

const tensor *bind_find(const binder *b, int layer, const char *name)
{
    char full[TENSOR_MAX_NAME + 1];
    return gguf_tensor(b->file, tensor_name(full, layer, name));
}

int bind_missing(const binder *b, int layer, const char *name, const char *other)
{
    char full[TENSOR_MAX_NAME + 1], alt[TENSOR_MAX_NAME + 1];
    tensor_name(full, layer, name);
    if (!other) return err_set(b->err, ERR_FORMAT, "missing tensor %s", full);
    return err_set(b->err, ERR_FORMAT, "missing tensor %s (or %s)", full,
                   tensor_name(alt, layer, other));
}

/* Missing dimensions are 1 on both sides, so {n} equals {n, 1}. */
static int check_shape(const binder *b, const tensor *t, const uint64_t ne[3])
{
    tensor want = { .n_dims = ne[2] ? 3 : ne[1] ? 2 : 1 };
    char name[128], have_text[96], want_text[96];

    want.cols = ne[0];
    want.rows = ne[1] ? ne[1] : 1;
    want.slabs = ne[2] ? ne[2] : 1;
    want.outer = 1;
    if (t->cols == want.cols && t->rows == want.rows && t->slabs == want.slabs && t->outer == 1)
        return 0;
    return err_set(b->err, ERR_FORMAT, "tensor %s has shape %s, expected %s", ESC(name, t->name),
                   tensor_shape_text(have_text, sizeof have_text, t),
                   tensor_shape_text(want_text, sizeof want_text, &want));
}

static int check_type(const binder *b, const tensor *t, bind_class cls)
{
    const bool half = t->type == QT_F16 || t->type == QT_BF16;
    char name[128];

    if (cls == MATRIX ? quant_traits_of(t->type)->decode != NULL
                           : t->type == QT_F32 || (half && cls == SMALL))
        return 0;
    return err_set(b->err, ERR_UNSUPPORTED, "tensor %s: type %s not supported for this tensor",
                   ESC(name, t->name), quant_name(t->type));
}

/* Binds the companion scale of a matrix "<stem>.weight": "<stem>.scale", in some files
 * "<stem>.weight.scale". It has one number, or one per expert. "<stem>.input_scale", a hint for
 * 4-bit activations, is not used. */
static int bind_scale(binder *b, const tensor **to, const tensor *w, uint64_t n)
{
    const int len = (int)w->name.len;
    const int stem = str_ends(w->name, ".weight") ? len - (int)sizeof ".weight" + 1 : len;
    const uint64_t ne[3] = { n, 0, 0 };
    char name[TENSOR_MAX_NAME + 16], other[TENSOR_MAX_NAME + 16];
    int rc;

    snprintf(name, sizeof name, "%.*s.scale", stem, w->name.ptr);
    snprintf(other, sizeof other, "%.*s.scale", len, w->name.ptr);
    const tensor *s = gguf_tensor(b->file, name), *s2 = gguf_tensor(b->file, other);
    if (s && s2 && s != s2)
        return err_set(b->err, ERR_FORMAT, "tensors %s and %s: only one may be there", name, other);
    if (!s) s = s2;
    if (!s) return 0;
    if ((rc = check_shape(b, s, ne)) < 0 || (rc = check_type(b, s, F32_ONLY)) < 0) return rc;
    *to = s;
    b->m->n_bound++;
    return 0;
}

int bind_rows(binder *b, int layer, const bind_row *rows, int n_row)
{
    for (int i = 0; i < n_row; i++) {
        const bind_row *r = &rows[i];
        const tensor *t = bind_find(b, layer, r->name);
        int rc;
        if (!t && r->need == OPTIONAL) continue;
        if (!t) return bind_missing(b, layer, r->name, NULL);
        if ((rc = check_shape(b, t, r->ne)) < 0 || (rc = check_type(b, t, r->cls)) < 0) return rc;
        r->to->t = t;
        b->m->n_bound++;
        if (r->cls != MATRIX) continue;
        if ((rc = bind_scale(b, &r->to->scale, t, r->ne[2] ? r->ne[2] : 1)) < 0) return rc;
    }
    return 0;
}

/* The size of the vocabulary is that of the list of tokens; the embedding must have as many
 * rows. */
static int bind_vocab(binder *b)
{
    const char *key = "tokenizer.ggml.tokens";
    const gguf_kv *tokens = gguf_find(b->file, key);
    const tensor *embed = gguf_tensor(b->file, "token_embd.weight");

    if (!tokens) return err_set(b->err, ERR_FORMAT, "key %s missing", key);
    if (!tokens->is_array || tokens->type != GGUF_STRING)
        return err_set(b->err, ERR_FORMAT, "key %s is %s, expected %s", key,
                       gguf_type_name(tokens->type, tokens->is_array),
                       gguf_type_name(GGUF_STRING, true));
    if (embed && embed->rows != tokens->count)
        return err_set(b->err, ERR_FORMAT,
                       "token_embd.weight has %" PRIu64 " rows, %s has %" PRIu64 " entries",
                       embed->rows, key, tokens->count);
    if (tokens->count < 1 || tokens->count > INT_MAX)
        return err_set(b->err, ERR_RANGE, "key %s has %" PRIu64 " entries", key, tokens->count);
    b->m->hp.n_vocab = (int)tokens->count;
    return 0;
}

int bind_globals(binder *b, bind_class norm_cls, bind_need head)
{
    model *m = b->m;
    int rc = bind_vocab(b);
    if (rc < 0) return rc;

    const uint64_t embd = (uint64_t)m->hp.n_embd, vocab = (uint64_t)m->hp.n_vocab;
    const bind_row rows[] = {
        { "token_embd.weight",  { embd, vocab }, MATRIX, REQUIRED, &m->embed },
        { "output_norm.weight", { embd },        norm_cls,    REQUIRED, &m->out_norm },
        { "output.weight",      { embd, vocab }, MATRIX, head, &m->head },
    };
    if ((rc = bind_rows(b, NO_LAYER, rows, ARRAY_LEN(rows))) < 0) return rc;
    m->head_tied = m->head.t == NULL;
    if (m->head_tied) m->head = m->embed;
    /* Like the reference implementation, ignores output.scale unless the head is NVFP4. */
    else if (m->head.scale && m->head.t->type != QT_NVFP4) {
        m->head.scale = NULL;
        m->n_bound--;
    }
    return 0;
}

int bind_projections(binder *b, int layer, bool with_bias)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[layer];
    const uint64_t embd = (uint64_t)hp->n_embd, dim = (uint64_t)hp->head_dim;
    const uint64_t q = (uint64_t)hp->n_head * dim, k = (uint64_t)hp->n_head_kv * dim;
    const bind_row together[] = {        /* rows of q, then of k, then of v */
        { "attn_qkv.weight",    { embd, q + 2 * k }, MATRIX,   REQUIRED, &y->attn.qkv },
        { "attn_qkv.bias",      { q + 2 * k },       F32_ONLY, REQUIRED, &y->attn.qkv_bias },
    };
    const bind_row apart[] = {
        { "attn_q.weight",      { embd, q },         MATRIX,   REQUIRED, &y->attn.q },
        { "attn_k.weight",      { embd, k },         MATRIX,   REQUIRED, &y->attn.k },
        { "attn_v.weight",      { embd, k },         MATRIX,   REQUIRED, &y->attn.v },
        { "attn_q.bias",        { q },               F32_ONLY, REQUIRED, &y->attn.q_bias },
        { "attn_k.bias",        { k },               F32_ONLY, REQUIRED, &y->attn.k_bias },
        { "attn_v.bias",        { k },               F32_ONLY, REQUIRED, &y->attn.v_bias },
    };
    const bind_row out[] = {
        { "attn_output.weight", { q, embd },         MATRIX,   REQUIRED, &y->attn.out },
    };
    const bool fused = bind_find(b, layer, together[0].name) != NULL;

    if (!fused && !bind_find(b, layer, apart[0].name))
        return bind_missing(b, layer, apart[0].name, together[0].name);
    const int rc = fused ? bind_rows(b, layer, together, with_bias ? 2 : 1)
                         : bind_rows(b, layer, apart, with_bias ? 6 : 3);
    return rc < 0 ? rc : bind_rows(b, layer, out, ARRAY_LEN(out));
}

int bind_head_norms(binder *b, int layer, bind_need need)
{
    const model_hparams *hp = &b->m->hp;
    model_layer *y = &b->m->layers[layer];
    const bool whole = b->m->family->attn_norm_whole;
    const uint64_t dim = (uint64_t)hp->head_dim;
    const uint64_t q = whole ? (uint64_t)hp->n_head * dim : dim;
    const uint64_t k = whole ? (uint64_t)hp->n_head_kv * dim : dim;
    const bind_row rows[] = {
        { "attn_q_norm.weight", { q }, SMALL, need, &y->attn.q_norm },
        { "attn_k_norm.weight", { k }, SMALL, need, &y->attn.k_norm },
    };
    return bind_rows(b, layer, rows, ARRAY_LEN(rows));
}

static int bind_plain_layer(binder *b, int layer, bool head_norms)
{
    model_layer *y = &b->m->layers[layer];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, n = (uint64_t)b->m->hp.n_expert;
    const bind_row rows[] = {
        { "attn_norm.weight",    { embd },    SMALL, REQUIRED, &y->attn_norm },
        { "ffn_norm.weight",     { embd },    SMALL, REQUIRED, &y->post_attn_norm },
        { "ffn_gate_inp.weight", { embd, n }, SMALL, REQUIRED, &y->router },
    };
    int rc;
    if ((rc = bind_projections(b, layer, false)) < 0 ||
        (rc = bind_rows(b, layer, rows, ARRAY_LEN(rows))) < 0 ||
        (head_norms && (rc = bind_head_norms(b, layer, REQUIRED)) < 0))
        return rc;
    return bind_experts(b, layer, false);
}

int bind_plain_layers(binder *b, bool head_norms)
{
    int rc = 0;
    for (int l = 0; l < b->m->hp.n_layer && rc == 0; l++) rc = bind_plain_layer(b, l, head_norms);
    return rc;
}

int bind_shared(binder *b, int l, bool expert, int width)
{
    model_layer *y = &b->m->layers[l];
    const uint64_t embd = (uint64_t)b->m->hp.n_embd, ff = (uint64_t)width;
    const char *gate = expert ? "ffn_gate_shexp.weight" : "ffn_gate.weight";
    const char *up = expert ? "ffn_up_shexp.weight" : "ffn_up.weight";
    const char *down = expert ? "ffn_down_shexp.weight" : "ffn_down.weight";
    const bind_row rows[] = {
        { gate, { embd, ff }, MATRIX, REQUIRED, &y->shared_gate },
        { up,   { embd, ff }, MATRIX, REQUIRED, &y->shared_up },
        { down, { ff, embd }, MATRIX, REQUIRED, &y->shared_down },
    };
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

void bind_absent_mtp(binder *b)
{
    model_hparams *hp = &b->m->hp;
    const int l = hp->n_layer;
    if (hp->n_mtp == 0 || bind_find(b, l, "attn_norm.weight") ||
        bind_find(b, l, "nextn.eh_proj.weight"))
        return;
    log_line("blk.%d is a next-token block by the keys, but the file lacks it: ignored", l);
    hp->n_mtp = 0;
}

int bind_mtp(binder *b, int l)
{
    const model_hparams *hp = &b->m->hp;
    const uint64_t embd = (uint64_t)hp->n_embd, vocab = (uint64_t)hp->n_vocab;
    struct mtp_weights *x = &b->m->layers[l].mtp;
    const bind_row rows[] = {
        { "nextn.eh_proj.weight",          { 2 * embd, embd }, MATRIX, REQUIRED, &x->eh_proj },
        { "nextn.enorm.weight",            { embd },           SMALL,  REQUIRED, &x->enorm },
        { "nextn.hnorm.weight",            { embd },           SMALL,  REQUIRED, &x->hnorm },
        { "nextn.shared_head_norm.weight", { embd },           SMALL,  OPTIONAL, &x->head_norm },
        { "nextn.embed_tokens.weight",     { embd, vocab },    MATRIX, OPTIONAL, &x->embed },
        { "nextn.shared_head_head.weight", { embd, vocab },    MATRIX, OPTIONAL, &x->head },
    };
    return bind_rows(b, l, rows, ARRAY_LEN(rows));
}

int bind_experts(binder *b, int layer, bool with_bias)
{
    static const char old_gate[] = "ffn_gate.0.weight";
    const model_hparams *hp = &b->m->hp;
    const uint64_t embd = (uint64_t)hp->n_embd, ff = (uint64_t)hp->n_ff_expert;
    const uint64_t n = (uint64_t)hp->n_expert;
    expert_bank *bank = b->m->layers[layer].experts;
    weight w[SLAB_COUNT] = { { NULL, NULL } }, bias[SLAB_COUNT] = { { NULL, NULL } };
    int rc;
    const bind_row fused[] = {
        { "ffn_gate_up_exps.weight", { embd, 2 * ff, n }, MATRIX, REQUIRED, &w[SLAB_GATE] },
    };
    const bind_row separate[] = {
        { "ffn_gate_exps.weight",    { embd, ff, n },     MATRIX, REQUIRED, &w[SLAB_GATE] },
        { "ffn_up_exps.weight",      { embd, ff, n },     MATRIX, REQUIRED, &w[SLAB_UP] },
    };
    const bind_row down[] = {
        { "ffn_down_exps.weight",    { ff, embd, n },     MATRIX, REQUIRED, &w[SLAB_DOWN] },
    };
    const bind_row biases[] = {
        { "ffn_gate_exps.bias",      { ff, n },           F32_ONLY, REQUIRED, &bias[SLAB_GATE] },
        { "ffn_up_exps.bias",        { ff, n },           F32_ONLY, REQUIRED, &bias[SLAB_UP] },
        { "ffn_down_exps.bias",      { embd, n },         F32_ONLY, REQUIRED, &bias[SLAB_DOWN] },
    };

    bank->fused = bind_find(b, layer, fused[0].name) != NULL;
    if (!bank->fused && !bind_find(b, layer, separate[0].name) && bind_find(b, layer, old_gate))
        return err_set(b->err, ERR_UNSUPPORTED, "tensor blk.%d.%s: every expert is a tensor of its "
                       "own, as in files from before April 2024, which this program does not read; "
                       "find a newer conversion of the model", layer, old_gate);
    if (!bank->fused && !bind_find(b, layer, separate[0].name))
        return bind_missing(b, layer, separate[0].name, with_bias ? NULL : fused[0].name);
    rc = bank->fused ? bind_rows(b, layer, fused, ARRAY_LEN(fused))
                     : bind_rows(b, layer, separate, ARRAY_LEN(separate));
    if (rc < 0 || (rc = bind_rows(b, layer, down, ARRAY_LEN(down))) < 0) return rc;
    if (with_bias && (rc = bind_rows(b, layer, biases, ARRAY_LEN(biases))) < 0) return rc;
    if (bank->fused) w[SLAB_UP] = w[SLAB_GATE];

    for (int s = 0; s < SLAB_COUNT; s++) {
        bank->weight[s] = w[s].t;
        bank->scale[s] = w[s].scale;
        bank->bias[s] = bias[s].t;
    }
    bank->n_expert = hp->n_expert;
    bank->n_embd = embd;
    bank->n_ff = ff;
    return 0;
}
