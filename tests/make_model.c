/* make_model.c - writes the directory of a model as its converter would, plus the edits.
 *
 * Names and shapes are written out here a second time, from the architecture's description and not
 * from the binder's tables, so that a slip in either shows. */
#include "tests/make_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/gguf_write.h"
#include "tests/test.h"

maker maker_small(model_arch arch)
{
    maker mk = {
        .arch = arch, .n_layer = 4, .n_vocab = 10, .n_embd = 128, .n_head = 10, .n_head_kv = 5,
        .head_dim = 64, .rope_dim = 12, .n_expert = 7, .n_used = 3, .n_ff = 64, .n_ff_shared = 192,
    };
    if (arch == ARCH_GPTOSS) {
        mk.rope_dim = mk.head_dim;
        mk.n_ff_shared = 0;
        mk.window = 16;
    } else {
        mk.conv = 3;
        mk.ssm_dim = 64;
        mk.n_k_head = 2;
        mk.n_v_head = 4;
    }
    return mk;
}

maker maker_qwen3next_80b(void)
{
    return (maker){
        .arch = ARCH_QWEN3NEXT, .n_layer = 48, .n_vocab = 151936, .n_embd = 2048, .n_head = 16,
        .n_head_kv = 2, .head_dim = 256, .rope_dim = 64, .n_expert = 512, .n_used = 10, .n_ff = 512,
        .n_ff_shared = 512, .conv = 4, .ssm_dim = 128, .n_k_head = 16, .n_v_head = 32,
    };
}

maker maker_gptoss(bool large)
{
    return (maker){
        .arch = ARCH_GPTOSS, .n_layer = large ? 36 : 24, .n_vocab = 201088, .n_embd = 2880,
        .n_head = 64, .n_head_kv = 8, .head_dim = 64, .rope_dim = 64, .n_expert = large ? 128 : 32,
        .n_used = 4, .n_ff = 2880, .window = 128,
    };
}

bool maker_is_small(const char *name)
{
    return strstr(name, "norm") || strstr(name, "ffn_gate_inp") || strstr(name, ".bias") ||
           strstr(name, "sinks") || strstr(name, "conv1d") || strstr(name, "ssm_a") ||
           strstr(name, "ssm_dt");
}

/* ---- keys ----------------------------------------------------------------------------------- */

typedef struct writer {
    const maker *mk;
    gguf_writer *w;
    bool done[MAKER_MOST_EDITS];         /* edits that found their key or tensor */
} writer;

static const maker_edit *find_edit(writer *o, const char *name)
{
    for (int i = 0; i < o->mk->n_edit; i++)
        if (strcmp(o->mk->edits[i].name, name) == 0) {
            o->done[i] = true;
            return &o->mk->edits[i];
        }
    return NULL;
}

static int count_dims(const uint64_t ne[4]) { return ne[3] ? 4 : ne[2] ? 3 : ne[1] ? 2 : 1; }

static void write_edit(writer *o, const maker_edit *e)
{
    uint32_t list[64];
    switch (e->kind) {
    case EDIT_DROP: break;
    case EDIT_INT:
        gguf_write_kv(o->w, e->name, GGUF_I32, &(int32_t){ (int32_t)e->number }, 4);
        break;
    case EDIT_FLOAT: gguf_write_f32(o->w, e->name, (float)e->number); break;
    case EDIT_TEXT: gguf_write_str(o->w, e->name, str_from(e->text)); break;
    case EDIT_FALSE: gguf_write_bool(o->w, e->name, false); break;
    case EDIT_INTS:
    case EDIT_RAMP:
        for (uint32_t i = 0; i < ARRAY_LEN(list); i++) list[i] = e->kind == EDIT_RAMP ? i + 1 : 1;
        gguf_write_array(o->w, e->name, GGUF_U32, list, (uint64_t)e->number);
        break;
    case EDIT_TENSOR:
        gguf_write_tensor(o->w, e->name, (quant_type)e->type, e->ne, count_dims(e->ne));
        break;
    }
}

/* True if an edit replaces the key, and was written. */
static bool edited(writer *o, char key[128], const char *name)
{
    snprintf(key, 128, "%s.%s", model_arch_name(o->mk->arch), name);
    const maker_edit *e = find_edit(o, key);
    if (e) write_edit(o, e);
    return e != NULL;
}

static void put_int(writer *o, const char *name, int v)
{
    char key[128];
    if (!edited(o, key, name)) gguf_write_u32(o->w, key, (uint32_t)v);
}

static void put_float(writer *o, const char *name, double v)
{
    char key[128];
    if (!edited(o, key, name)) gguf_write_f32(o->w, key, (float)v);
}

static bool is_recurrent(const maker *mk, int l)
{
    return mk->arch == ARCH_QWEN3NEXT && l < mk->n_layer && l % 4 != 3;
}

/* A head count: one number, or one per block with 0 where there is no attention. */
static void put_heads(writer *o, const char *name, int v, bool as_array)
{
    const int n_block = o->mk->n_layer + o->mk->n_mtp;
    uint32_t list[64];
    char key[128];
    if (!as_array) { put_int(o, name, v); return; }
    if (edited(o, key, name)) return;
    for (int l = 0; l < n_block; l++) list[l] = is_recurrent(o->mk, l) ? 0 : (uint32_t)v;
    gguf_write_array(o->w, key, GGUF_U32, list, (uint64_t)n_block);
}

static void put_kinds(writer *o)
{
    const int n_block = o->mk->n_layer + o->mk->n_mtp;
    uint8_t list[64];
    char key[128];
    if (o->mk->variants & MAKE_RECURRENT_ARRAY) {
        for (int l = 0; l < n_block; l++) list[l] = l % 4 != 3;      /* wrong for an MTP block */
        if (!edited(o, key, "attention.recurrent_layers"))
            gguf_write_array(o->w, key, GGUF_BOOL, list, (uint64_t)n_block);
        put_int(o, "full_attention_interval", 3);
    } else if (!(o->mk->variants & MAKE_NO_INTERVAL)) {
        put_int(o, "full_attention_interval", 4);
    }
}

static void put_tokens(writer *o)
{
    const char *key = "tokenizer.ggml.tokens";
    const maker_edit *e = find_edit(o, key);
    if (e) { write_edit(o, e); return; }
    gguf_write_str_array(o->w, key, (uint64_t)o->mk->n_vocab);
    for (int i = 0; i < o->mk->n_vocab; i++) gguf_write_array_str(o->w, str_from("token"));
}

static void put_keys(writer *o)
{
    const maker *mk = o->mk;
    const maker_edit *arch = find_edit(o, "general.architecture");
    char key[128];

    if (arch) write_edit(o, arch);
    else gguf_write_str(o->w, "general.architecture", str_from(model_arch_name(mk->arch)));
    put_int(o, "block_count", mk->n_layer + mk->n_mtp);
    if (mk->n_mtp) put_int(o, "nextn_predict_layers", mk->n_mtp);
    put_int(o, "context_length", 4096);
    put_int(o, "embedding_length", mk->n_embd);
    put_int(o, "feed_forward_length", mk->n_ff * mk->n_used);
    put_heads(o, "attention.head_count", mk->n_head, mk->variants & MAKE_HEADS_ARRAY);
    put_heads(o, "attention.head_count_kv", mk->n_head_kv, mk->variants & MAKE_KV_ARRAY);
    put_int(o, "attention.key_length", mk->head_dim);
    put_int(o, "attention.value_length", mk->head_dim);
    put_float(o, "attention.layer_norm_rms_epsilon", 1e-6);
    put_float(o, "rope.freq_base", 150000);
    put_int(o, "expert_count", mk->n_expert);
    put_int(o, "expert_used_count", mk->n_used);
    put_int(o, "expert_feed_forward_length", mk->n_ff);
    if (mk->arch == ARCH_QWEN3NEXT) {
        put_int(o, "rope.dimension_count", mk->rope_dim);
        put_int(o, "expert_shared_feed_forward_length", mk->n_ff_shared);
        put_int(o, "ssm.conv_kernel", mk->conv);
        put_int(o, "ssm.state_size", mk->ssm_dim);
        put_int(o, "ssm.group_count", mk->n_k_head);
        put_int(o, "ssm.time_step_rank", mk->n_v_head);
        put_int(o, "ssm.inner_size", mk->n_v_head * mk->ssm_dim);
        put_kinds(o);
    } else {
        put_int(o, "attention.sliding_window", mk->window);
        if (!edited(o, key, "rope.scaling.type")) gguf_write_str(o->w, key, str_from("yarn"));
        put_float(o, "rope.scaling.factor", 32);
        put_int(o, "rope.scaling.original_context_length", 4096);
    }
    put_tokens(o);
}

static quant_type type_of(const maker *mk, const char *name, int layer)
{
    if (mk->type_of) return mk->type_of(name, layer);
    if (maker_is_small(name)) return mk->types.small;
    if (strstr(name, "_exps.")) return mk->types.experts;
    return mk->types.plain_head && strcmp(name, "output.weight") == 0 ? QT_F32 : mk->types.dense;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void put_raw(writer *o, const char *name, quant_type type, const uint64_t ne[4])
{
    const maker_edit *e = find_edit(o, name);
    maker_edit merged;
    if (!e) {
        gguf_write_tensor(o->w, name, type, ne, count_dims(ne));
        return;
    }
    merged = *e;
    if (merged.type < 0) merged.type = (int)type;
    if (merged.ne[0] == 0) memcpy(merged.ne, ne, sizeof merged.ne);
    write_edit(o, &merged);
}

/* "blk.N.<stem>.weight" with its companions, of the type the maker chooses. */
static void put_matrix(writer *o, int layer, const char *stem, int a, int b, int c)
{
    const maker *mk = o->mk;
    const uint64_t ne[4] = { (uint64_t)a, (uint64_t)b, (uint64_t)c };
    const uint64_t ne_scale[4] = { c ? (uint64_t)c : 1 };
    char name[96], full[64], base[64];
    if (layer < 0) snprintf(base, sizeof base, "%s", stem);
    else snprintf(base, sizeof base, "blk.%d.%s", layer, stem);
    snprintf(name, sizeof name, "%s.weight", stem);
    snprintf(full, sizeof full, "%.50s.weight", base);
    put_raw(o, full, type_of(mk, name, layer), ne);
    if (mk->variants & MAKE_SCALES) {
        snprintf(name, sizeof name, "%s.scale", base);
        put_raw(o, name, QT_F32, ne_scale);
        snprintf(name, sizeof name, "%s.input_scale", base);
        put_raw(o, name, QT_F32, ne_scale);
    } else if (mk->variants & MAKE_WEIGHT_SCALES) {
        snprintf(name, sizeof name, "%s.scale", full);
        put_raw(o, name, QT_F32, ne_scale);
    }
}

static void put_small(writer *o, int layer, const char *name, int a, int b)
{
    const uint64_t ne[4] = { (uint64_t)a, (uint64_t)b, 0 };
    char full[64];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    put_raw(o, full, type_of(o->mk, name, layer), ne);
}

static void put_experts(writer *o, int l)
{
    const maker *mk = o->mk;
    if (mk->variants & MAKE_FUSED_EXPERTS) {
        put_matrix(o, l, "ffn_gate_up_exps", mk->n_embd, 2 * mk->n_ff, mk->n_expert);
    } else {
        put_matrix(o, l, "ffn_gate_exps", mk->n_embd, mk->n_ff, mk->n_expert);
        put_matrix(o, l, "ffn_up_exps", mk->n_embd, mk->n_ff, mk->n_expert);
    }
    put_matrix(o, l, "ffn_down_exps", mk->n_ff, mk->n_embd, mk->n_expert);
}

static void put_deltanet(writer *o, int l)
{
    const maker *mk = o->mk;
    const int v = mk->n_v_head * mk->ssm_dim, qkv = 2 * mk->n_k_head * mk->ssm_dim + v;
    if (mk->variants & MAKE_LEGACY_IN) {
        put_matrix(o, l, "ssm_in", mk->n_embd, qkv + v, 0);
    } else {
        put_matrix(o, l, "attn_qkv", mk->n_embd, qkv, 0);
        put_matrix(o, l, "attn_gate", mk->n_embd, v, 0);
    }
    put_matrix(o, l, "ssm_ba", mk->n_embd, 2 * mk->n_v_head, 0);
    put_small(o, l, "ssm_conv1d.weight", mk->conv, qkv);
    put_small(o, l, mk->variants & MAKE_PLAIN_DT ? "ssm_dt" : "ssm_dt.bias", mk->n_v_head, 0);
    put_small(o, l, "ssm_a", mk->n_v_head, 0);
    put_small(o, l, "ssm_norm.weight", mk->ssm_dim, 0);
    put_matrix(o, l, "ssm_out", v, mk->n_embd, 0);
}

static void put_mtp(writer *o, int l)
{
    const maker *mk = o->mk;
    put_matrix(o, l, "nextn.eh_proj", 2 * mk->n_embd, mk->n_embd, 0);
    put_small(o, l, "nextn.enorm.weight", mk->n_embd, 0);
    put_small(o, l, "nextn.hnorm.weight", mk->n_embd, 0);
    put_small(o, l, "nextn.shared_head_norm.weight", mk->n_embd, 0);
    if (!(mk->variants & MAKE_FULL_MTP)) return;
    put_matrix(o, l, "nextn.embed_tokens", mk->n_embd, mk->n_vocab, 0);
    put_matrix(o, l, "nextn.shared_head_head", mk->n_embd, mk->n_vocab, 0);
}

static void put_qwen3next_layer(writer *o, int l)
{
    const maker *mk = o->mk;
    const bool rank2 = mk->variants & MAKE_SHARED_RANK2;
    const int q = mk->n_head * mk->head_dim, kv = mk->n_head_kv * mk->head_dim;

    put_small(o, l, "attn_norm.weight", mk->n_embd, 0);
    if (is_recurrent(mk, l)) {
        put_deltanet(o, l);
    } else {
        put_matrix(o, l, "attn_q", mk->n_embd, 2 * q, 0);
        put_matrix(o, l, "attn_k", mk->n_embd, kv, 0);
        put_matrix(o, l, "attn_v", mk->n_embd, kv, 0);
        put_matrix(o, l, "attn_output", q, mk->n_embd, 0);
        put_small(o, l, "attn_q_norm.weight", mk->head_dim, 0);
        put_small(o, l, "attn_k_norm.weight", mk->head_dim, 0);
    }
    put_small(o, l, "post_attention_norm.weight", mk->n_embd, 0);
    put_small(o, l, "ffn_gate_inp.weight", mk->n_embd, mk->n_expert);
    put_experts(o, l);
    put_small(o, l, "ffn_gate_inp_shexp.weight", mk->n_embd, rank2 ? 1 : 0);
    put_matrix(o, l, "ffn_gate_shexp", mk->n_embd, mk->n_ff_shared, 0);
    put_matrix(o, l, "ffn_up_shexp", mk->n_embd, mk->n_ff_shared, 0);
    put_matrix(o, l, "ffn_down_shexp", mk->n_ff_shared, mk->n_embd, 0);
    if (l >= mk->n_layer) put_mtp(o, l);
}

static void put_gptoss_layer(writer *o, int l)
{
    const maker *mk = o->mk;
    const int q = mk->n_head * mk->head_dim, kv = mk->n_head_kv * mk->head_dim;

    put_small(o, l, "attn_norm.weight", mk->n_embd, 0);
    if (mk->variants & MAKE_FUSED_QKV) {
        put_matrix(o, l, "attn_qkv", mk->n_embd, q + 2 * kv, 0);
        put_small(o, l, "attn_qkv.bias", q + 2 * kv, 0);
    } else {
        put_matrix(o, l, "attn_q", mk->n_embd, q, 0);
        put_small(o, l, "attn_q.bias", q, 0);
        put_matrix(o, l, "attn_k", mk->n_embd, kv, 0);
        put_small(o, l, "attn_k.bias", kv, 0);
        put_matrix(o, l, "attn_v", mk->n_embd, kv, 0);
        put_small(o, l, "attn_v.bias", kv, 0);
    }
    put_matrix(o, l, "attn_output", q, mk->n_embd, 0);
    put_small(o, l, "attn_output.bias", mk->n_embd, 0);
    put_small(o, l, "attn_sinks.weight", mk->n_head, 0);
    put_small(o, l, "post_attention_norm.weight", mk->n_embd, 0);
    put_small(o, l, "ffn_gate_inp.weight", mk->n_embd, mk->n_expert);
    put_small(o, l, "ffn_gate_inp.bias", mk->n_expert, 0);
    put_experts(o, l);
    put_small(o, l, "ffn_gate_exps.bias", mk->n_ff, mk->n_expert);
    put_small(o, l, "ffn_up_exps.bias", mk->n_ff, mk->n_expert);
    put_small(o, l, "ffn_down_exps.bias", mk->n_embd, mk->n_expert);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void write_rest(writer *o)        /* edits of what is not there yet add it */
{
    for (int i = 0; i < o->mk->n_edit; i++)
        if (!o->done[i]) write_edit(o, &o->mk->edits[i]);
}

static gguf_writer *write_model(const maker *mk)
{
    writer o = { .mk = mk, .w = gguf_writer_create() };
    if (!o.w) return NULL;
    put_keys(&o);
    put_matrix(&o, -1, "token_embd", mk->n_embd, mk->n_vocab, 0);
    put_small(&o, -1, "output_norm.weight", mk->n_embd, 0);
    if (!(mk->variants & MAKE_TIED)) put_matrix(&o, -1, "output", mk->n_embd, mk->n_vocab, 0);
    for (int l = 0; l < mk->n_layer + mk->n_mtp; l++) {
        if (mk->arch == ARCH_QWEN3NEXT) put_qwen3next_layer(&o, l);
        else put_gptoss_layer(&o, l);
    }
    write_rest(&o);
    return o.w;
}

static gguf_writer *write_copy(const maker *mk, const gguf *of)
{
    writer o = { .mk = mk, .w = gguf_writer_create() };
    char name[128];
    if (!o.w) return NULL;
    for (int i = 0; i < gguf_n_kv(of); i++) {
        const gguf_kv *kv = gguf_kv_at(of, i);
        snprintf(name, sizeof name, "%.*s", (int)kv->key.len, kv->key.ptr);
        const maker_edit *e = find_edit(&o, name);
        if (e) write_edit(&o, e);
        else gguf_write_copy(o.w, kv);
    }
    for (int i = 0; i < gguf_n_tensor(of); i++) {
        const tensor *t = gguf_tensor_at(of, i);
        const uint64_t ne[4] = { t->cols, t->n_dims > 1 ? t->rows : 0, t->n_dims > 2 ? t->slabs : 0,
                                 0 };
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
        put_raw(&o, name, t->type, ne);
    }
    write_rest(&o);
    return o.w;
}

/* Frees w. */
static int open_zeros(maker_file *out, gguf_writer *w, err_ctx *err)
{
    const uint8_t *head = NULL;
    size_t head_bytes = 0;
    int rc = w ? gguf_write_head(w, &head, &head_bytes, err) : err_set(err, ERR_NOMEM, "no writer");

    *out = (maker_file){ NULL, NULL };
    if (rc == 0) {
        const uint64_t bytes = gguf_write_file_bytes(w);
        out->bytes = mem_zalloc(bytes);
        if (!out->bytes) rc = err_set(err, ERR_NOMEM, "no memory for the model");
        else {
            memcpy(out->bytes, head, head_bytes);
            rc = gguf_open_memory(&out->g, out->bytes, bytes, err);
        }
    }
    gguf_writer_free(w);
    if (rc < 0) maker_close(out);
    return rc;
}

int maker_open(maker_file *out, const maker *mk, err_ctx *err)
{
    return open_zeros(out, write_model(mk), err);
}

int maker_open_copy(maker_file *out, const gguf *of, const maker_edit *edits, int n_edit,
                    err_ctx *err)
{
    const maker mk = { .edits = edits, .n_edit = n_edit };
    return open_zeros(out, write_copy(&mk, of), err);
}

int maker_open_sparse(maker_file *out, const maker *mk, err_ctx *err)
{
    const uint8_t *head = NULL;
    size_t head_bytes = 0;
    char path[512];
    gguf_writer *w = write_model(mk);
    int rc = w ? gguf_write_head(w, &head, &head_bytes, err) : err_set(err, ERR_NOMEM, "no writer");
    int fd = -1;

    *out = (maker_file){ NULL, NULL };
    test_temp(path, sizeof path);
    if (rc == 0 && (fd = mkstemp(path)) < 0) rc = err_sys(err, "mkstemp %s", path);
    if (rc == 0 && (write(fd, head, head_bytes) != (ssize_t)head_bytes ||
                    ftruncate(fd, (off_t)gguf_write_file_bytes(w)) < 0))
        rc = err_sys(err, "write %s", path);
    if (rc == 0) rc = gguf_open(&out->g, path, err);
    if (fd >= 0) {
        unlink(path);
        close(fd);
    }
    gguf_writer_free(w);
    return rc;
}

static void expect(maker_file *f, const char *want, const char *why)
{
    err_ctx err = { 0 };
    model *m = NULL;
    const int rc = model_bind(&m, f->g, &err);
    CHECK_MSG((rc == 0) == !want && !m == (rc != 0) && (!want || strstr(err.msg, want)),
              "%s: %s, '%s', expected %s", why, rc == 0 ? "bound" : "refused", err.msg,
              want ? want : "no error");
    model_free(m);
    maker_close(f);
}

void maker_expect(const maker *mk, const char *want, const char *why)
{
    maker_file f;
    err_ctx err = { 0 };
    if (CHECK_MSG(maker_open(&f, mk, &err) == 0, "%s: container: %s", why, err.msg))
        expect(&f, want, why);
}

void maker_expect_copy(const gguf *of, const maker_edit *edits, int n_edit, const char *want,
                       const char *why)
{
    maker_file f;
    err_ctx err = { 0 };
    if (CHECK_MSG(maker_open_copy(&f, of, edits, n_edit, &err) == 0, "%s: %s", why, err.msg))
        expect(&f, want, why);
}

void maker_close(maker_file *f)
{
    gguf_close(f->g);
    mem_free(f->bytes);
    *f = (maker_file){ NULL, NULL };
}
