/* test_synth_tables.c - synthetic files of the families after gpt-oss and qwen3next: keys and
 * tensors of the real shapes against tables that were written from the specification, and sizes. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/synth/synth.h"
#include "loader/bytes.h"
#include "tests/synth_checks.h"
#include "tests/test.h"

#define GIB 1073741824.0

/* ---- tables ------------------------------------------------------------------------------ */

/* Keys without those of general.* and tokenizer.*; without prefix. Type: u u32, f f32, b bool, i array of
 * i32, B array of bool; of arrays the first value, and the last one. */
typedef struct key_row { const char *name; char type; double value, last; } key_row;

enum { D2 = 2048, D4 = 4096 };           /* widths of embeddings */

static const key_row qwen3moe_keys[] = {
    { "block_count", 'u', 48, 0 }, { "context_length", 'u', 40960, 0 },
    { "embedding_length", 'u', 2048, 0 }, { "feed_forward_length", 'u', 6144, 0 },
    { "attention.head_count", 'u', 32, 0 }, { "attention.head_count_kv", 'u', 4, 0 },
    { "attention.key_length", 'u', 128, 0 }, { "attention.value_length", 'u', 128, 0 },
    { "attention.layer_norm_rms_epsilon", 'f', 1e-6, 0 }, { "rope.freq_base", 'f', 1e6, 0 },
    { "expert_count", 'u', 128, 0 }, { "expert_used_count", 'u', 8, 0 },
    { "expert_feed_forward_length", 'u', 768, 0 },
};

static const key_row qwen35moe_keys[] = {
    { "block_count", 'u', 40, 0 }, { "context_length", 'u', 262144, 0 },
    { "embedding_length", 'u', 2048, 0 }, { "attention.head_count", 'u', 16, 0 },
    { "attention.head_count_kv", 'u', 2, 0 }, { "attention.key_length", 'u', 256, 0 },
    { "attention.value_length", 'u', 256, 0 }, { "attention.layer_norm_rms_epsilon", 'f', 1e-6, 0 },
    { "rope.freq_base", 'f', 1e7, 0 }, { "rope.dimension_count", 'u', 64, 0 },
    { "rope.dimension_sections", 'i', 11, 0 }, { "expert_count", 'u', 256, 0 },
    { "expert_used_count", 'u', 8, 0 }, { "expert_feed_forward_length", 'u', 512, 0 },
    { "expert_shared_feed_forward_length", 'u', 512, 0 }, { "full_attention_interval", 'u', 4, 0 },
    { "ssm.conv_kernel", 'u', 4, 0 }, { "ssm.state_size", 'u', 128, 0 },
    { "ssm.group_count", 'u', 16, 0 }, { "ssm.time_step_rank", 'u', 32, 0 },
    { "ssm.inner_size", 'u', 4096, 0 },
};

static const key_row glm4moe_keys[] = {
    { "block_count", 'u', 47, 0 }, { "nextn_predict_layers", 'u', 1, 0 },
    { "context_length", 'u', 131072, 0 }, { "embedding_length", 'u', 4096, 0 },
    { "feed_forward_length", 'u', 10944, 0 }, { "attention.head_count", 'u', 96, 0 },
    { "attention.head_count_kv", 'u', 8, 0 }, { "attention.key_length", 'u', 128, 0 },
    { "attention.value_length", 'u', 128, 0 }, { "attention.layer_norm_rms_epsilon", 'f', 1e-5, 0 },
    { "rope.freq_base", 'f', 1e6, 0 }, { "rope.dimension_count", 'u', 64, 0 },
    { "expert_count", 'u', 128, 0 }, { "expert_used_count", 'u', 8, 0 },
    { "expert_feed_forward_length", 'u', 1408, 0 }, { "expert_shared_count", 'u', 1, 0 },
    { "leading_dense_block_count", 'u', 1, 0 }, { "expert_gating_func", 'u', 2, 0 },
    { "expert_weights_scale", 'f', 1, 0 }, { "expert_weights_norm", 'b', 1, 0 },
    { "expert_group_count", 'u', 1, 0 }, { "expert_group_used_count", 'u', 1, 0 },
};

static const key_row gemma4_keys[] = {
    { "block_count", 'u', 30, 0 }, { "context_length", 'u', 262144, 0 },
    { "embedding_length", 'u', 2816, 0 }, { "feed_forward_length", 'u', 2112, 0 },
    { "attention.head_count", 'u', 16, 0 }, { "attention.head_count_kv", 'i', 8, 2 },
    { "attention.sliding_window", 'u', 1024, 0 },
    { "attention.sliding_window_pattern", 'B', 1, 0 }, { "attention.key_length", 'u', 512, 0 },
    { "attention.value_length", 'u', 512, 0 }, { "attention.key_length_swa", 'u', 256, 0 },
    { "attention.value_length_swa", 'u', 256, 0 }, { "attention.shared_kv_layers", 'u', 0, 0 },
    { "embedding_length_per_layer_input", 'u', 0, 0 },
    { "attention.layer_norm_rms_epsilon", 'f', 1e-6, 0 }, { "rope.freq_base", 'f', 1e6, 0 },
    { "rope.freq_base_swa", 'f', 1e4, 0 }, { "rope.dimension_count", 'u', 512, 0 },
    { "rope.dimension_count_swa", 'u', 256, 0 }, { "final_logit_softcapping", 'f', 30, 0 },
    { "expert_count", 'u', 128, 0 }, { "expert_used_count", 'u', 8, 0 },
    { "expert_feed_forward_length", 'u', 704, 0 },
};

static const key_row llama_keys[] = {
    { "block_count", 'u', 32, 0 }, { "context_length", 'u', 32768, 0 },
    { "embedding_length", 'u', 4096, 0 }, { "feed_forward_length", 'u', 14336, 0 },
    { "attention.head_count", 'u', 32, 0 }, { "attention.head_count_kv", 'u', 8, 0 },
    { "attention.layer_norm_rms_epsilon", 'f', 1e-5, 0 }, { "rope.freq_base", 'f', 1e6, 0 },
    { "rope.dimension_count", 'u', 128, 0 }, { "vocab_size", 'u', 32000, 0 },
    { "expert_count", 'u', 8, 0 }, { "expert_used_count", 'u', 2, 0 },
};

static const key_row olmoe_keys[] = {
    { "block_count", 'u', 16, 0 }, { "context_length", 'u', 4096, 0 },
    { "embedding_length", 'u', 2048, 0 }, { "feed_forward_length", 'u', 1024, 0 },
    { "attention.head_count", 'u', 16, 0 }, { "attention.head_count_kv", 'u', 16, 0 },
    { "attention.layer_norm_rms_epsilon", 'f', 1e-5, 0 }, { "rope.freq_base", 'f', 1e4, 0 },
    { "expert_count", 'u', 64, 0 }, { "expert_used_count", 'u', 8, 0 },
};

/* Tensors of a layer, or of no layer if where is 0. Where: a all layers; r DeltaNet, f full
 * attention (of a mix), w windowed; d without experts, m with; n the next-token block, which is one
 * with experts, too. */
typedef struct tensor_want {
    char where;
    const char *name;
    quant_type type;
    int ne[3];
} tensor_want;

#define ATTENTION(d, q, kv)                                                                        \
    { 'a', "attn_norm.weight", QT_F32, { d } }, { 'a', "attn_q.weight", QT_Q4_K, { d, q } },       \
    { 'a', "attn_k.weight", QT_Q4_K, { d, kv } }, { 'a', "attn_v.weight", QT_Q4_K, { d, kv } },    \
    { 'a', "attn_output.weight", QT_Q4_K, { q, d } }
#define EXPERTS(where, d, f, n, down)                                                              \
    { where, "ffn_gate_inp.weight", QT_F32, { d, n } },                                            \
    { where, "ffn_gate_exps.weight", QT_Q4_K, { d, f, n } },                                       \
    { where, "ffn_up_exps.weight", QT_Q4_K, { d, f, n } },                                         \
    { where, "ffn_down_exps.weight", down, { f, d, n } }
#define GLOBALS(d, v)                                                                              \
    { 0, "token_embd.weight", QT_Q4_K, { d, v } }, { 0, "output_norm.weight", QT_F32, { d } },     \
    { 0, "output.weight", QT_Q6_K, { d, v } }

static const tensor_want qwen3moe_tensors[] = {
    GLOBALS(D2, 151936), ATTENTION(D2, 4096, 512), EXPERTS('a', D2, 768, 128, QT_Q4_K),
    { 'a', "attn_q_norm.weight", QT_F32, { 128 } }, { 'a', "attn_k_norm.weight", QT_F32, { 128 } },
    { 'a', "ffn_norm.weight", QT_F32, { D2 } },
};

static const tensor_want qwen35moe_tensors[] = {
    GLOBALS(D2, 248320), EXPERTS('a', D2, 512, 256, QT_Q4_K),
    { 'a', "attn_norm.weight", QT_F32, { D2 } },
    { 'a', "post_attention_norm.weight", QT_F32, { D2 } },
    { 'a', "ffn_gate_inp_shexp.weight", QT_F32, { D2 } },
    { 'a', "ffn_gate_shexp.weight", QT_Q4_K, { D2, 512 } },
    { 'a', "ffn_up_shexp.weight", QT_Q4_K, { D2, 512 } },
    { 'a', "ffn_down_shexp.weight", QT_Q4_K, { 512, D2 } },
    { 'f', "attn_q.weight", QT_Q4_K, { D2, 8192 } }, { 'f', "attn_k.weight", QT_Q4_K, { D2, 512 } },
    { 'f', "attn_v.weight", QT_Q4_K, { D2, 512 } },
    { 'f', "attn_output.weight", QT_Q4_K, { 4096, D2 } },
    { 'f', "attn_q_norm.weight", QT_F32, { 256 } }, { 'f', "attn_k_norm.weight", QT_F32, { 256 } },
    { 'r', "attn_qkv.weight", QT_Q4_K, { D2, 8192 } },
    { 'r', "attn_gate.weight", QT_Q4_K, { D2, 4096 } },
    { 'r', "ssm_beta.weight", QT_Q4_K, { D2, 32 } },
    { 'r', "ssm_alpha.weight", QT_Q4_K, { D2, 32 } },
    { 'r', "ssm_conv1d.weight", QT_F32, { 4, 8192 } }, { 'r', "ssm_dt.bias", QT_F32, { 32 } },
    { 'r', "ssm_a", QT_F32, { 32 } }, { 'r', "ssm_norm.weight", QT_F32, { 128 } },
    { 'r', "ssm_out.weight", QT_Q4_K, { 4096, D2 } },
};

static const tensor_want glm4moe_tensors[] = {
    GLOBALS(D4, 151552), ATTENTION(D4, 12288, 1024), EXPERTS('m', D4, 1408, 128, QT_Q5_0),
    { 'a', "post_attention_norm.weight", QT_F32, { D4 } },
    { 'a', "attn_q.bias", QT_F32, { 12288 } }, { 'a', "attn_k.bias", QT_F32, { 1024 } },
    { 'a', "attn_v.bias", QT_F32, { 1024 } }, { 'm', "exp_probs_b.bias", QT_F32, { 128 } },
    { 'd', "ffn_gate.weight", QT_Q4_K, { D4, 10944 } },
    { 'd', "ffn_up.weight", QT_Q4_K, { D4, 10944 } },
    { 'd', "ffn_down.weight", QT_Q5_0, { 10944, D4 } },
    { 'm', "ffn_gate_shexp.weight", QT_Q4_K, { D4, 1408 } },
    { 'm', "ffn_up_shexp.weight", QT_Q4_K, { D4, 1408 } },
    { 'm', "ffn_down_shexp.weight", QT_Q5_0, { 1408, D4 } },
    { 'n', "nextn.eh_proj.weight", QT_Q4_K, { 2 * D4, D4 } },
    { 'n', "nextn.enorm.weight", QT_F32, { D4 } }, { 'n', "nextn.hnorm.weight", QT_F32, { D4 } },
    { 'n', "nextn.shared_head_norm.weight", QT_F32, { D4 } },
    { 'n', "nextn.embed_tokens.weight", QT_Q4_K, { D4, 151552 } },
    { 'n', "nextn.shared_head_head.weight", QT_Q4_K, { D4, 151552 } },
};

static const tensor_want gemma4_tensors[] = {
    { 0, "token_embd.weight", QT_Q6_K, { 2816, 262144 } },
    { 0, "output_norm.weight", QT_F32, { 2816 } }, { 0, "rope_freqs.weight", QT_F32, { 256 } },
    { 'a', "attn_norm.weight", QT_F32, { 2816 } },
    { 'a', "post_attention_norm.weight", QT_F32, { 2816 } },
    { 'a', "ffn_norm.weight", QT_F32, { 2816 } }, { 'a', "post_ffw_norm.weight", QT_F32, { 2816 } },
    { 'a', "pre_ffw_norm_2.weight", QT_F32, { 2816 } },
    { 'a', "post_ffw_norm_1.weight", QT_F32, { 2816 } },
    { 'a', "post_ffw_norm_2.weight", QT_F32, { 2816 } },
    { 'w', "attn_q.weight", QT_Q4_K, { 2816, 4096 } },
    { 'w', "attn_output.weight", QT_Q4_K, { 4096, 2816 } },
    { 'w', "attn_k.weight", QT_Q4_K, { 2816, 2048 } },
    { 'w', "attn_v.weight", QT_Q4_K, { 2816, 2048 } },
    { 'w', "attn_q_norm.weight", QT_F32, { 256 } }, { 'w', "attn_k_norm.weight", QT_F32, { 256 } },
    { 'f', "attn_q.weight", QT_Q4_K, { 2816, 8192 } },
    { 'f', "attn_output.weight", QT_Q4_K, { 8192, 2816 } },
    { 'f', "attn_k.weight", QT_Q4_K, { 2816, 1024 } },
    { 'f', "attn_q_norm.weight", QT_F32, { 512 } }, { 'f', "attn_k_norm.weight", QT_F32, { 512 } },
    { 'a', "ffn_gate.weight", QT_Q4_K, { 2816, 2112 } },
    { 'a', "ffn_up.weight", QT_Q4_K, { 2816, 2112 } },
    { 'a', "ffn_down.weight", QT_Q5_0, { 2112, 2816 } },
    { 'a', "ffn_gate_inp.weight", QT_F32, { 2816, 128 } },
    { 'a', "ffn_gate_inp.scale", QT_F32, { 2816 } },
    { 'a', "ffn_gate_up_exps.weight", QT_Q4_K, { 2816, 1408, 128 } },
    { 'a', "ffn_down_exps.weight", QT_Q5_0, { 704, 2816, 128 } },
    { 'a', "ffn_down_exps.scale", QT_F32, { 128 } },
    { 'a', "layer_output_scale.weight", QT_F32, { 1 } },
};

static const tensor_want llama_tensors[] = {
    GLOBALS(D4, 32000), ATTENTION(D4, 4096, 1024), EXPERTS('a', D4, 14336, 8, QT_Q4_K),
    { 'a', "ffn_norm.weight", QT_F32, { D4 } },
};

static const tensor_want olmoe_tensors[] = {
    GLOBALS(D2, 50304), ATTENTION(D2, 2048, 2048), EXPERTS('a', D2, 1024, 64, QT_Q4_K),
    { 'a', "attn_q_norm.weight", QT_F32, { D2 } }, { 'a', "attn_k_norm.weight", QT_F32, { D2 } },
    { 'a', "ffn_norm.weight", QT_F32, { D2 } },
};

/* Parameters in billions, one expert in MiB, the rest in GiB: all but the first without a
 * next-token block. Interval: every so many layers one is full. */
static const struct shape_row {
    const char *shape;
    const key_row *keys;
    int n_key;
    const tensor_want *tensors;
    int n_row, n_tensor, interval;
    double params, expert, routed, resident, embed;
    const char *tokenizer, *pre;
} rows[] = {
#define ROW(name) name##_keys, ARRAY_LEN(name##_keys), name##_tensors, ARRAY_LEN(name##_tensors)
    { "qwen3-30b-a3b", ROW(qwen3moe), 579, 1, 30.53, 2.53, 15.19, 0.76, 0.16, "gpt2", "qwen2" },
    { "qwen3.5-35b-a3b", ROW(qwen35moe), 733, 4, 34.66, 1.69, 16.88, 1.21, 0.27, "gpt2", "qwen35" },
    { "glm-4.5-air", ROW(glm4moe), 803, 1, 106.85, 9.97, 56.07, 3.70, 0.33, "gpt2", "glm4" },
    { "gemma-4-26b-a4b", ROW(gemma4), 658, 6, 25.23, 3.43, 12.85, 1.49, 0, "gemma4", NULL },
    { "mixtral-8x7b", ROW(llama), 323, 1, 46.70, 94.50, 23.62, 0.81, 0.07, "llama", "default" },
    { "olmoe-1b-7b", ROW(olmoe), 195, 1, 6.92, 3.38, 3.38, 0.23, 0.05, "gpt2", "olmo" },
#undef ROW
};

/* ---- files of real shapes ---------------------------------------------------------------- */

static char folder[400];

/* The whole file without the contents of its tensors: a hole on the disk. */
static gguf *open_hollow(const synth_options *o)
{
    char path[512];
    synth_plan *p = NULL;
    gguf *g = NULL;
    err_ctx err = { 0, "" };
    if (!CHECK_MSG(synth_plan_create(&p, o, &err) == 0, "%s: %s", o->shape->name, err.msg))
        return NULL;
    const size_t head = 32 << 20;        /* more than any: what follows costs little */
    uint8_t *data = test_alloc(head, 1);
    const int fd = open(test_path(path, sizeof path, "%s/hollow", folder),
                        O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    synth_plan_fill(p, data, 0, head);
    if (CHECK(fd >= 0 && write(fd, data, head) == (ssize_t)head &&
              ftruncate(fd, (off_t)synth_plan_bytes(p)) == 0))
        CHECK_MSG(gguf_open(&g, path, &err) == 0, "%s: %s", o->shape->name, err.msg);
    if (fd >= 0) close(fd);
    unlink(path);
    mem_free(data);
    synth_plan_free(p);
    return g;
}

static void check_key(const gguf *g, const char *arch, const key_row *k)
{
    const gguf_type types[128] = { ['u'] = GGUF_U32, ['f'] = GGUF_F32, ['b'] = GGUF_BOOL,
                                   ['i'] = GGUF_I32, ['B'] = GGUF_BOOL };
    const bool is_array = k->type == 'i' || k->type == 'B';
    char name[96];
    int64_t v = 0, last = 0;
    snprintf(name, sizeof name, "%s.%s", arch, k->name);
    const gguf_kv *kv = gguf_find(g, name);
    if (!CHECK_MSG(kv, "no key %s", name)) return;
    if (!CHECK_MSG(kv->type == types[(int)k->type] && kv->is_array == is_array, "%s is %s", name,
                   gguf_type_name(kv->type, kv->is_array))) return;
    if (k->type == 'f') {
        const float f = load_f32(kv->data);
        CHECK_MSG(f == (float)k->value, "%s is %g, not %g", name, (double)f, k->value);
        return;
    }
    CHECK(gguf_kv_int(&v, kv, 0) && gguf_kv_int(&last, kv, kv->count - 1));
    CHECK_MSG(v == (int64_t)k->value && (!is_array || last == (int64_t)k->last), "%s is %lld, %lld",
              name, (long long)v, (long long)last);
}

static void check_keys(const gguf *g, const char *arch, const struct shape_row *r)
{
    int n_own = 0;
    for (int i = 0; i < r->n_key; i++) check_key(g, arch, &r->keys[i]);
    for (int i = 0; i < gguf_n_kv(g); i++) {
        const str_view key = gguf_kv_at(g, i)->key;
        n_own += key.len > strlen(arch) && !memcmp(key.ptr, arch, strlen(arch)) &&
                 key.ptr[strlen(arch)] == '.';
    }
    CHECK_MSG(n_own == r->n_key, "%s: %d keys of its own, not %d", arch, n_own, r->n_key);
    str_view kind = { "", 0 }, pre = { "", 0 };
    CHECK(gguf_get_str(&kind, g, "tokenizer.ggml.model", NULL) == 1 && str_is(kind, r->tokenizer));
    const int has_pre = gguf_get_str(&pre, g, "tokenizer.ggml.pre", NULL);
    CHECK_MSG(has_pre == (r->pre != NULL) && (!r->pre || str_is(pre, r->pre)), "%s: pre", arch);
}

static bool row_is_of(const tensor_want *t, const struct shape_row *r, const synth_shape *s, int l)
{
    const bool full = (l + 1) % r->interval == 0, mtp = l >= s->n_layer;
    switch (t->where) {
    case 0: return l < 0;
    case 'a': return l >= 0;
    case 'f': return l >= 0 && full;
    case 'r':
    case 'w': return l >= 0 && !full;
    case 'd': return l >= 0 && l < s->n_dense;
    case 'm': return l >= s->n_dense;
    case 'n': return mtp;
    default: return false;
    }
}

static void check_tensors(const gguf *g, const struct shape_row *r, const synth_shape *s)
{
    int found = 0;
    for (int l = -1; l < s->n_layer + s->n_mtp; l++)
        for (int i = 0; i < r->n_row; i++) {
            const tensor_want *row = &r->tensors[i];
            char name[TENSOR_MAX_NAME + 1], shape[96];
            if (!row_is_of(row, r, s, l)) continue;
            if (l < 0) snprintf(name, sizeof name, "%s", row->name);
            else snprintf(name, sizeof name, "blk.%d.%s", l, row->name);
            const tensor *t = gguf_tensor(g, name);
            if (!CHECK_MSG(t, "%s: no tensor %s", s->name, name)) continue;
            const uint64_t ne[3] = { (uint64_t)row->ne[0], (uint64_t)max_int(row->ne[1], 1),
                                     (uint64_t)max_int(row->ne[2], 1) };
            found++;
            if (t->cols == ne[0] && t->rows == ne[1] && t->slabs == ne[2] && t->type == row->type)
                continue;
            CHECK_MSG(false, "%s: %s is %s %s", s->name, name, quant_name(t->type),
                      tensor_shape_text(shape, sizeof shape, t));
        }
    CHECK_MSG(found == r->n_tensor && gguf_n_tensor(g) == r->n_tensor,
              "%s: %d tensors of the table and %d in the file, not %d", s->name, found,
              gguf_n_tensor(g), r->n_tensor);
}

static void check_near(const char *shape, const char *what, double got, double want)
{
    CHECK_MSG(fabs(got - want) < 0.0051, "%s: %s %.3f, published %.2f", shape, what, got, want);
}

static void check_sizes(const gguf *g, const struct shape_row *r, const synth_shape *s)
{
    double params = 0, routed = 0, resident = 0, embed = 0;
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        if (s->n_mtp && synth_in_block(t, s->n_layer)) continue;
        params += (double)t->elems;
        if (str_ends(t->name, "_exps.weight")) routed += (double)t->bytes;
        else if (str_is(t->name, "token_embd.weight") && r->embed > 0) embed += (double)t->bytes;
        else if (t->rows > 1) resident += (double)t->bytes;      /* vectors were not counted */
    }
    check_near(s->name, "parameters", params / 1e9, r->params);
    check_near(s->name, "one expert", routed / (s->n_layer - s->n_dense) / s->n_expert / 1048576,
               r->expert);
    check_near(s->name, "routed experts", routed / GIB, r->routed);
    check_near(s->name, "resident", resident / GIB, r->resident);
    check_near(s->name, "embedding", embed / GIB, r->embed);
}

static void test_real_shapes(void)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const synth_shape *s = synth_shape_find(rows[i].shape);
        if (!CHECK_MSG(s, "no shape %s", rows[i].shape)) continue;
        const synth_options o = synth_options_of(s);
        gguf *g = open_hollow(&o);
        model *m = NULL;
        if (!g) continue;
        check_keys(g, s->family->arch, &rows[i]);
        check_tensors(g, &rows[i], s);
        check_sizes(g, &rows[i], s);
        if (synth_bind(&m, g, s->name)) {
            const model_hparams *hp = &m->hp;
            CHECK_MSG(hp->n_layer == s->n_layer && hp->n_expert == s->n_expert &&
                      hp->n_expert_used == s->n_used && hp->n_ff_expert == s->n_ff &&
                      hp->n_vocab == s->n_vocab, "%s: read otherwise", s->name);
            synth_check_used(m, g, s, s->n_layer);
        }
        model_free(m);
        gguf_close(g);
    }
}

/* ---- types, refusals ---------------------------------------------------------------------- */

static void test_types(void)
{
    static const struct { quant_type experts, down; } fits[] = {
        { QT_Q4_K, QT_Q5_0 }, { QT_Q5_K, QT_Q5_1 }, { QT_Q6_K, QT_Q8_0 }, { QT_Q2_K, QT_Q4_0 },
        { QT_Q3_K, QT_Q4_0 }, { QT_IQ4_XS, QT_IQ4_NL }, { QT_IQ2_S, QT_IQ4_NL },
        { QT_Q8_0, QT_Q8_0 }, { QT_MXFP4, QT_MXFP4 },
    };
    for (size_t i = 0; i < ARRAY_LEN(fits); i += (size_t)test_rounds(1, 3)) {
        synth_options o = synth_options_of(synth_shape_find("gemma-4-26b-a4b"));
        o.experts = fits[i].experts;
        o.n_layer = 1;
        gguf *g = open_hollow(&o);
        const tensor *up = g ? gguf_tensor(g, "blk.0.ffn_gate_up_exps.weight") : NULL;
        const tensor *down = g ? gguf_tensor(g, "blk.0.ffn_down_exps.weight") : NULL;
        CHECK_MSG(up && down && up->type == fits[i].experts && down->type == fits[i].down,
                  "%s: rows of 704 are %s", quant_name(fits[i].experts),
                  down ? quant_name(down->type) : "absent");
        gguf_close(g);
    }
}

static void test_refusals(void)
{
    synth_options o = synth_options_of(synth_shape_find("glm-4.5-air"));
    synth_plan *p = NULL;
    err_ctx err = { 0, "" };
    o.n_layer = 1;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && strstr(err.msg, "2 or more"), "%s",
              err.msg);
    o.n_layer = 47;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && strstr(err.msg, "46 layers, not 47"),
              "%s", err.msg);
    o.n_layer = 46;
    o.experts = QT_Q1_0;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == 0 || strstr(err.msg, "1408"), "%s", err.msg);
    synth_plan_free(p);
    CHECK(!synth_shape_find("glm-4.5") && !synth_shape_at(1000));
}

int main(int argc, char **argv)
{
    test_begin("synth_tables", argc, argv);
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) return test_end();
    test_real_shapes();
    test_types();
    test_refusals();
    CHECK_MSG(rmdir(folder) == 0, "%s is not empty", folder);
    return test_end();
}
