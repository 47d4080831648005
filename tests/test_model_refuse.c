/* test_model_refuse.c - small models with one thing wrong: the binder must name it. */
#include "tests/test.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/models/model.h"
#include "tests/make_model.h"

#define Q "qwen3next."
#define G "gpt-oss."

static char heard[256];

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(heard, sizeof heard, "%s", line);
}

/* Tensors for pictures and sound are ignored, and one line says so. */
static void test_media(void)
{
    static const maker_edit edits[] = {
        SET_TENSOR("v.patch_embd.weight", QT_F32, 14, 14, 3, 8), SET_TENSOR("mm.0.bias", QT_F32, 8),
        SET_TENSOR("a.blk.0.attn_q.weight", QT_F32, 8, 8), SET_TENSOR("vocab.weight", QT_F32, 8),
        SET_INT("clip.vision.block_count", 27),
    };
    maker mk = maker_small(ARCH_QWEN3NEXT);
    maker_file f;
    model *m = NULL;
    err_ctx err = { 0 };
    mk.edits = edits;
    mk.n_edit = ARRAY_LEN(edits);
    if (!CHECK_MSG(maker_open(&f, &mk, &err) == 0, "%s", err.msg)) return;
    log_set_sink(hear, NULL);
    CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s", err.msg);
    log_set_sink(NULL, NULL);
    if (m) CHECK(m->n_media == 3 && m->n_bound == gguf_n_tensor(f.g) - 4);
    CHECK_MSG(strstr(heard, "3 tensors are for pictures or sound: ignored"), "'%s'", heard);
    model_free(m);
    maker_close(&f);
}

/* Every integer key: missing, of another type, below and above its range. */
static void test_keys(void)
{
    enum { BOTH = -1 };
    static const struct { int arch; const char *name; int64_t lo, hi; bool required; } rows[] = {
        { BOTH, "block_count", 1, 1024, true },
        { BOTH, "context_length", 1, INT_MAX, true },
        { BOTH, "embedding_length", 1, 1 << 20, true },
        { BOTH, "attention.head_count", 1, 4096, true },
        { BOTH, "attention.head_count_kv", 1, 4096, false },
        { BOTH, "attention.key_length", 1, 1 << 20, true },
        { BOTH, "attention.value_length", 1, 1 << 20, true },
        { BOTH, "expert_count", 1, 4096, true },
        { BOTH, "expert_used_count", 1, 7, true },
        { ARCH_QWEN3NEXT, "rope.dimension_count", 2, 1 << 20, true },
        { ARCH_QWEN3NEXT, "feed_forward_length", 0, 1 << 20, false },
        { ARCH_QWEN3NEXT, "expert_feed_forward_length", 1, 1 << 20, false },
        { ARCH_QWEN3NEXT, "expert_shared_feed_forward_length", 1, 1 << 20, false },
        { ARCH_QWEN3NEXT, "ssm.conv_kernel", 1, 64, true },
        { ARCH_QWEN3NEXT, "ssm.state_size", 1, 1 << 20, true },
        { ARCH_QWEN3NEXT, "ssm.group_count", 1, 1 << 20, true },
        { ARCH_QWEN3NEXT, "ssm.time_step_rank", 1, 1 << 20, true },
        { ARCH_QWEN3NEXT, "ssm.inner_size", 1, 1 << 20, true },
        { ARCH_QWEN3NEXT, "full_attention_interval", 1, 1024, false },
        { ARCH_QWEN3NEXT, "nextn_predict_layers", 0, 3, false },
        { ARCH_GPTOSS, "rope.dimension_count", 2, 1 << 20, false },
        { ARCH_GPTOSS, "expert_feed_forward_length", 1, 1 << 20, true },
        { ARCH_GPTOSS, "attention.sliding_window", 1, INT_MAX, true },
        { ARCH_GPTOSS, "attention.sliding_window_pattern", 1, 1024, false },
        { ARCH_GPTOSS, "rope.scaling.original_context_length", 1, INT_MAX, true },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int arch = ARCH_QWEN3NEXT; arch <= ARCH_GPTOSS; arch++) {
            maker mk = maker_small((model_arch)arch);
            char key[96], want[256];
            maker_edit e = { .name = key };
            if (rows[i].arch != BOTH && rows[i].arch != arch) continue;
            snprintf(key, sizeof key, "%s.%s", model_arch_name((model_arch)arch), rows[i].name);
            mk.edits = &e;
            mk.n_edit = 1;

            snprintf(want, sizeof want, "key %s missing", key);
            e.kind = EDIT_DROP;
            if (rows[i].required) maker_expect(&mk, want, "missing");
            else if (strcmp(rows[i].name, "attention.head_count_kv") != 0)
                maker_expect(&mk, NULL, key);

            snprintf(want, sizeof want, "key %s is string, expected", key);
            e.kind = EDIT_TEXT;
            e.text = "many";
            maker_expect(&mk, want, "string in place of a number");

            e.kind = EDIT_INT;
            e.number = (double)(rows[i].lo - 1);
            snprintf(want, sizeof want, "key %s = %" PRId64 " out of range %" PRId64 "..%" PRId64,
                     key, rows[i].lo - 1, rows[i].lo, rows[i].hi);
            maker_expect(&mk, want, "too small");
            if (rows[i].hi == INT_MAX) continue;
            e.number = (double)(rows[i].hi + 1);
            snprintf(want, sizeof want, "key %s = %" PRId64 " out of range %" PRId64 "..%" PRId64,
                     key, rows[i].hi + 1, rows[i].lo, rows[i].hi);
            maker_expect(&mk, want, "too large");
        }
    }
}

/* Everything else that a key can do wrong: one edit, or two, each row with its reason. */
static void test_contradictions(void)
{
    static const struct {
        model_arch arch;
        unsigned variants;
        maker_edit e[2];
        const char *want, *why;
    } rows[] = {
        { ARCH_QWEN3NEXT, 0, { SET_TEXT("general.architecture", "mamba") },
          "unsupported architecture 'mamba' (supported: qwen3next, gpt-oss, qwen3moe, olmoe, "
          "llama, qwen35moe, glm4moe, gemma4)", "unknown" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT("general.architecture", "llama") },
          "key llama.block_count missing", "keys of another family" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT("general.architecture", "x\ny") },
          "unsupported architecture 'x\\x0Ay'", "text from the file is escaped" },
        { ARCH_QWEN3NEXT, 0, { DROP("general.architecture") }, "key general.architecture missing",
          "no architecture" },
        { ARCH_QWEN3NEXT, 0, { SET_INT("general.architecture", 3) },
          "key general.architecture is i32, expected", "not a string" },
        { ARCH_GPTOSS, 0, { SET_TEXT("general.architecture", "gptoss") }, "Ollama's dialect",
          "the other dialect deserves a hint" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT("general.architecture", "qwen35") },
          "the dense relative of qwen35moe", "so does the relative" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT("general.architecture", "clip") },
          "(mmproj); this program reads text: give it the file of the model itself",
          "and a model's second file, for pictures" },

        { ARCH_QWEN3NEXT, 0, { DROP("tokenizer.ggml.tokens") }, "key tokenizer.ggml.tokens missing",
          "no vocabulary" },
        { ARCH_QWEN3NEXT, 0, { SET_INTS("tokenizer.ggml.tokens", 10) },
          "key tokenizer.ggml.tokens is array of u32, expected array of string", "not strings" },
        { ARCH_GPTOSS, 0, { SET_TENSOR("token_embd.weight", -1, 128, 11) },
          "token_embd.weight has 11 rows, tokenizer.ggml.tokens has 10 entries", "a row too many" },
        { ARCH_GPTOSS, 0, { SET_TENSOR("output.weight", -1, 128, 9) },
          "tensor output.weight has shape [128, 9], expected [128, 10]", "one row too few" },

        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "attention.head_count_kv", 4) },
          "head_count = 10 is not a multiple of attention.head_count_kv = 4", "10 % 4" },
        { ARCH_QWEN3NEXT, 0, { DROP(Q "attention.head_count_kv") },
          "tensor blk.3.attn_k.weight has shape [128, 320], expected [128, 640]", "the default" },
        { ARCH_QWEN3NEXT, 0, { SET_INTS(Q "attention.head_count_kv", 3) },
          "head_count_kv has 3 entries, expected 4", "one entry per block" },
        { ARCH_QWEN3NEXT, 0, { SET_INTS(Q "attention.head_count_kv", 4) },
          "tensor blk.3.attn_k.weight has shape [128, 320], expected [128, 64]", "array heeded" },
        { ARCH_GPTOSS, 0, { SET_RAMP(G "attention.head_count", 4) }, "key " G
          "attention.head_count = 1 for layer 0, but 2 for layer 1", "layers differ" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "attention.value_length", 32) },
          "attention.value_length = 32 differs from attention.key_length = 64", "unequal lengths" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "rope.dimension_count", 13) },
          "rope.dimension_count = 13 must be even", "pairs" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "rope.dimension_count", 66) },
          "must be even and at most attention.key_length = 64", "more than a head" },
        { ARCH_QWEN3NEXT, 0, { SET_FLOAT(Q "rope.freq_base", 0) }, "key " Q
          "rope.freq_base = 0 out of range", "base 0" },
        { ARCH_QWEN3NEXT, 0, { SET_FLOAT(Q "rope.freq_base", __builtin_inf()) }, "key " Q
          "rope.freq_base = inf out of range", "base not finite" },
        { ARCH_QWEN3NEXT, 0, { SET_FLOAT(Q "attention.layer_norm_rms_epsilon", -1e-6) }, "key " Q
          "attention.layer_norm_rms_epsilon = -1e-06 out of range", "epsilon below 0" },
        { ARCH_GPTOSS, 0, { SET_FLOAT(G "attention.layer_norm_rms_epsilon", __builtin_nan("")) },
          "layer_norm_rms_epsilon = nan out of range", "epsilon not a number" },
        { ARCH_GPTOSS, 0, { DROP(G "attention.layer_norm_rms_epsilon") }, "key " G
          "attention.layer_norm_rms_epsilon missing", "epsilon is required" },
        { ARCH_QWEN3NEXT, 0, { SET_TEXT(Q "rope.scaling.type", "longrope") },
          "rope.scaling.type is 'longrope', expected none, linear or yarn", "unknown scaling" },
        { ARCH_GPTOSS, 0, { DROP(G "rope.scaling.type") }, "key " G "rope.scaling.type missing",
          "the default would be wrong" },
        { ARCH_GPTOSS, 0, { DROP(G "rope.scaling.factor") }, "key " G "rope.scaling.factor missing",
          "YaRN needs it" },
        { ARCH_GPTOSS, 0, { DROP(G "rope.freq_base") }, "key " G "rope.freq_base missing",
          "the default would be wrong" },
        { ARCH_GPTOSS, 0, { SET_FLOAT(G "rope.freq_base_swa", -1) }, "key " G
          "rope.freq_base_swa = -1 out of range", "base of windowed layers" },
        { ARCH_GPTOSS, 0,
          { SET_INT(G "attention.key_length", 47), SET_INT(G "attention.value_length", 47) },
          "rope.dimension_count = 47 must be even", "default: key_length" },
        { ARCH_QWEN3NEXT, 0, { SET_FALSE(Q "attention.causal") }, "attention.causal is false",
          "not a causal model" },

        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "ssm.time_step_rank", 5) },
          "ssm.time_step_rank = 5 is not a multiple of ssm.group_count = 2", "5 % 2" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "ssm.inner_size", 255) },
          "ssm.inner_size = 255 is not ssm.time_step_rank * ssm.state_size = 4 * 64", "255" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "expert_group_count", 4) },
          "expert_group_count = 4: routing by groups", "grouped routing" },
        { ARCH_QWEN3NEXT, 0,
          { DROP(Q "expert_feed_forward_length"), DROP(Q "feed_forward_length") }, "key " Q
          "expert_feed_forward_length missing", "neither width nor fallback" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "full_attention_interval", 3) },
          "layer 2 is full attention by the keys, but the file has blk.2.ssm_a", "wrong interval" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "full_attention_interval", 5) },
          "layer 3 is recurrent by the keys, but the file has blk.3.attn_q.weight", "interval" },
        { ARCH_QWEN3NEXT, 0, { SET_INTS(Q "attention.recurrent_layers", 5) },
          "recurrent_layers has 5 entries, expected 4", "one entry per block" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "attention.recurrent_layers", 1) },
          "recurrent_layers is i32, expected an array", "one number says nothing" },
        { ARCH_QWEN3NEXT, 0, { SET_INT(Q "block_count", 3), SET_INT(Q "nextn_predict_layers", 3) },
          "nextn_predict_layers = 3 out of range 0..2", "nothing left for the trunk" },
        { ARCH_GPTOSS, 0, { SET_INT(G "nextn_predict_layers", 1) },
          "gpt-oss.nextn_predict_layers = 1: not supported", "gpt-oss has none" },

        { ARCH_QWEN3NEXT, MAKE_LEGACY_IN, { DROP("blk.1.ssm_in.weight") },
          "missing tensor blk.1.attn_qkv.weight (or blk.1.ssm_in.weight)", "neither layout" },
        { ARCH_QWEN3NEXT, MAKE_PLAIN_DT, { DROP("blk.1.ssm_dt") },
          "missing tensor blk.1.ssm_dt.bias (or blk.1.ssm_dt)", "neither name" },
        { ARCH_QWEN3NEXT, MAKE_FUSED_EXPERTS, { DROP("blk.1.ffn_gate_up_exps.weight") },
          "missing tensor blk.1.ffn_gate_exps.weight", "neither form" },
        { ARCH_GPTOSS, MAKE_FUSED_EXPERTS, { DROP("none") },
          "tensor blk.0.ffn_gate_up_exps.weight: fused gate and up rows", "order unknown" },
        { ARCH_GPTOSS, MAKE_FUSED_QKV, { DROP("blk.0.attn_qkv.bias") },
          "missing tensor blk.0.attn_qkv.bias", "fused bias" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, { SET_TENSOR("blk.0.ffn_up_exps.scale", -1, 6) },
          "tensor blk.0.ffn_up_exps.scale has shape [6], expected [7]", "one scale per expert" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, { SET_TENSOR("blk.3.attn_k.scale", -1, 2) },
          "tensor blk.3.attn_k.scale has shape [2], expected [1]", "one scale per matrix" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, { SET_TENSOR("blk.3.attn_k.scale", QT_F16, 1) },
          "tensor blk.3.attn_k.scale: type F16 not supported for this tensor", "scales are F32" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, { SET_TENSOR("blk.3.attn_k.weight.scale", QT_F32, 1) },
          "tensors blk.3.attn_k.scale and blk.3.attn_k.weight.scale", "which one?" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        maker mk = maker_small(rows[i].arch);
        mk.variants = rows[i].variants;
        mk.edits = rows[i].e;
        mk.n_edit = rows[i].e[1].name ? 2 : 1;
        maker_expect(&mk, rows[i].want, rows[i].why);
    }
}

/* ---- every tensor ---------------------------------------------------------------------------- */

/* Only qwen3next may tie the head to the embedding. */
static bool is_optional(const char *name, model_arch arch)
{
    if (strcmp(name, "output.weight") == 0) return arch == ARCH_QWEN3NEXT;
    return strstr(name, "scale") || strstr(name, "shared_head") || strstr(name, "embed_tokens");
}

/* Drops, bends and retypes every tensor of a small model, one at a time. */
static void spoil_tensors(const maker *good)
{
    maker_file f;
    err_ctx err = { 0 };

    if (!CHECK_MSG(maker_open(&f, good, &err) == 0, "%s", err.msg)) return;
    for (int i = 0; i < gguf_n_tensor(f.g); i++) {
        const tensor *t = gguf_tensor_at(f.g, i);
        maker mk = *good;
        char name[64], want[160];
        snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
        maker_edit e = { .kind = EDIT_DROP, .name = name, .type = -1 };
        mk.edits = &e;
        mk.n_edit = 1;
        if (strstr(name, "input_scale")) continue;       /* never looked at */

        if (is_optional(name, good->arch)) maker_expect(&mk, NULL, name);
        else maker_expect(&mk, name, "missing");

        e.kind = EDIT_TENSOR;
        for (int dim = 0; dim < 3; dim++) {              /* one more in each dimension */
            e.ne[0] = t->cols + (dim == 0 ? 64 : 0);
            e.ne[1] = t->n_dims > 1 ? t->rows : 0;
            e.ne[2] = t->n_dims > 2 ? t->slabs : 0;
            if (dim > 0) e.ne[dim] = e.ne[dim] ? e.ne[dim] + 1 : 2;
            if (dim == 2 && e.ne[1] == 0) e.ne[1] = 1;
            maker_expect(&mk, name, "shape");
        }
        memset(e.ne, 0, sizeof e.ne);
        e.type = QT_I32;
        snprintf(want, sizeof want, "tensor %s: type I32 not supported for this tensor", name);
        maker_expect(&mk, want, "integers");
        e.type = QT_Q8_0;
        if (maker_is_small(name) && t->cols % 32 == 0)
            maker_expect(&mk, name, "small tensor quantised");
        e.type = QT_F16;
        if (maker_is_small(name) && good->arch == ARCH_GPTOSS) maker_expect(&mk, name, "not F32");
        else if (!strstr(name, "scale")) maker_expect(&mk, NULL, name);
    }
    maker_close(&f);
}

static void test_tensors(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_mtp = 1;
    mk.variants = MAKE_FULL_MTP;
    spoil_tensors(&mk);
    mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_layer = 1;
    mk.variants = MAKE_LEGACY_IN | MAKE_FUSED_EXPERTS | MAKE_SCALES;
    mk.types = (maker_types){ QT_F32, QT_NVFP4, QT_NVFP4, false };
    spoil_tensors(&mk);
    mk = maker_small(ARCH_GPTOSS);
    mk.n_layer = 2;
    spoil_tensors(&mk);
    mk.n_layer = 1;
    mk.variants = MAKE_FUSED_QKV;
    spoil_tensors(&mk);
}

/* A file that holds only the draft block of a model. */
static void test_draft_only(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    const maker_edit e[] = {
        SET_INT(Q "block_count", 49), SET_INT(Q "nextn_predict_layers", 1),
    };
    mk.edits = e;
    mk.n_edit = 2;
    maker_expect(&mk, "missing tensor blk.4.attn_norm.weight", "trunk blocks absent");
}

/* Three layers, none with attention: a count per layer then says nothing, a plain one is fine. */
static void test_no_attention(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    mk.n_layer = 3;
    maker_expect(&mk, NULL, "DeltaNet only");
    mk.variants = MAKE_KV_ARRAY;
    maker_expect(&mk, "head_count_kv is an array, but no layer has attention", "DeltaNet only");
}

/* Four dimensions are refused, even if the bytes would do. */
static void test_four_dimensions(void)
{
    maker mk = maker_small(ARCH_QWEN3NEXT);
    const uint64_t embd = (uint64_t)mk.n_embd, ff = (uint64_t)mk.n_ff;
    maker_edit e = { .kind = EDIT_TENSOR, .name = "blk.0.ffn_gate_exps.weight", .type = -1 };
    mk.n_expert = 6;
    mk.edits = &e;
    mk.n_edit = 1;
    e.ne[0] = embd;
    e.ne[1] = ff;
    e.ne[2] = 2;
    e.ne[3] = 3;
    maker_expect(&mk, "tensor blk.0.ffn_gate_exps.weight has shape [", "experts in two dimensions");
    e.ne[2] = 6;
    e.ne[3] = 1;
    maker_expect(&mk, NULL, "a fourth dimension of 1");
}

/* A file that announces a next-token block and holds no tensor of it is bound without it. */
static void test_absent_mtp(void)
{
    const maker_edit edits[] = {
        { .kind = EDIT_INT, .name = "qwen3next.block_count", .number = 5 },
        { .kind = EDIT_INT, .name = "qwen3next.nextn_predict_layers", .number = 1 },
    };
    maker mk = maker_small(ARCH_QWEN3NEXT);
    maker_file f;
    err_ctx err = { 0 };
    model *m = NULL;

    mk.edits = edits;
    mk.n_edit = ARRAY_LEN(edits);
    if (!CHECK_MSG(maker_open(&f, &mk, &err) == 0, "%s", err.msg)) return;
    CHECK_MSG(model_bind(&m, f.g, &err) == 0, "%s", err.msg);
    CHECK(m && m->hp.n_layer == 4 && m->hp.n_mtp == 0);
    model_free(m);
    maker_close(&f);
}

int main(int argc, char **argv)
{
    test_begin("model_refuse", argc, argv);
    test_media();
    test_keys();
    test_contradictions();
    test_tensors();
    test_draft_only();
    test_no_attention();
    test_four_dimensions();
    test_absent_mtp();
    return test_end();
}
