/* synth_glm4moe.c - synthetic files of GLM-4.5-Air: attention with biases, a first layer without
 * experts, a shared expert without a gate, and a next-token block at the end, as every public file
 * has one.
 *
 * A token picks the experts with the largest sigmoid(z) + c, where c is a bias for the choice alone
 * and z is normal with standard deviation 1. With the b of synth_add.c, c = sigmoid(b) - 0.5 makes
 * the sum exceed 0.5 with probability p, because sigmoid(-b) + sigmoid(b) is 1. */
#include "cli/synth/synth_add.h"

#include <math.h>

#include "engine/text/tokenizer/tokenizer.h"

static const synth_shape shapes[] = {
    { .name = "glm-4.5-air", .family = &synth_glm4moe, .n_layer = 46, .n_embd = 4096, .n_head = 96,
      .n_head_kv = 8, .head_dim = 128, .n_expert = 128, .n_used = 8, .n_ff = 1408,
      .n_vocab = 151552, .first_special = 151329, .n_ctx = 131072, .rope_base = 1e6, .rope_dim = 64,
      .n_ff_shared = 1408, .n_dense = 1, .n_ff_dense = 10944, .n_mtp = 1,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_special special[] = {
    { "<|endoftext|>", 0 }, { "[MASK]", 0 }, { "[gMASK]", 0 }, { "[sMASK]", 0 }, { "<sop>", 0 },
    { "<eop>", 0 }, { "<|system|>", 0 }, { "<|user|>", 0 }, { "<|assistant|>", 0 },
    { "<|observation|>", 0 }, { "<|begin_of_image|>", 0 }, { "<|end_of_image|>", 0 },
    { "<|begin_of_video|>", 0 }, { "<|end_of_video|>", 0 }, { "<|begin_of_audio|>", 0 },
    { "<|end_of_audio|>", 0 }, { "<|begin_of_transcription|>", 0 },
    { "<|end_of_transcription|>", 0 }, { "<|code_prefix|>", 0 }, { "<|code_middle|>", 0 },
    { "<|code_suffix|>", 0 }, { "/nothink", TOKEN_USER }, { "<think>", TOKEN_USER },
    { "</think>", TOKEN_USER }, { "<tool_call>", TOKEN_USER }, { "</tool_call>", TOKEN_USER },
    { "<tool_response>", TOKEN_USER }, { "</tool_response>", TOKEN_USER },
    { "<arg_key>", TOKEN_USER }, { "</arg_key>", TOKEN_USER }, { "<arg_value>", TOKEN_USER },
    { "</arg_value>", TOKEN_USER },
};

static const synth_vocab vocab = {
    .kind = SYNTH_BYTES, .pre = "glm4", .special = special, .n_special = ARRAY_LEN(special),
    .bos = 2, .eos = 0, .pad = 0, .eot = 7, .eom = 9, .unknown = 0,
    .chat_template =
        "[gMASK]<sop>{% if tools %}<|system|>\n# Tools\n\n<tools>\n{{ tools | tojson }}\n</tools>\n"
        "\n<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        "</tool_call>{% endif %}{% for m in messages %}{% if m.role == 'user' %}<|user|>\n"
        "{{ m.content }}{{- '/nothink' if not enable_thinking -}}{% else %}<|assistant|>\n"
        "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
        "{% endif %}",
};

static void add_attention(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    const double small = 0.05;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_attention(p, l);
    synth_add_range(p, l, "attn_q.bias", -small, small, 1, n_q, 1);
    synth_add_range(p, l, "attn_k.bias", -small, small, 1, n_kv, 1);
    synth_add_range(p, l, "attn_v.bias", -small, small, 1, n_kv, 1);
    synth_add_norm(p, l, "post_attention_norm.weight", s->n_embd);
}

static void add_router(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const bool skewed = p->logits && l < p->o.n_layer;
    const double small = skewed ? 0 : 0.05;
    synth_add_router(p, l, 1);
    synth_part *bias = synth_add_range(p, l, "exp_probs_b.bias", -small, small, 1, s->n_expert, 1);
    if (!skewed) return;
    float *b = p->logits + (size_t)l * (size_t)s->n_expert;
    for (int e = 0; e < s->n_expert; e++) b[e] = (float)(1 / (1 + exp(-(double)b[e])) - 0.5);
    bias->kind = FILL_TABLE;
    bias->table = b;
}

/* A gate, an up and a down matrix. */
static void add_network(synth_plan *p, int l, const char *gate, const char *up, const char *down,
                        int n_ff)
{
    const int n_embd = p->o.shape->n_embd;
    synth_add_dense(p, l, gate, 1, n_embd, n_ff);
    synth_add_dense(p, l, up, 1, n_embd, n_ff);
    synth_add_down(p, l, down, WRITE_GAIN, n_ff, n_embd);
}

static void add_next_token(synth_plan *p, int l)
{
    const int n_embd = p->o.shape->n_embd, n_vocab = p->o.shape->n_vocab;
    synth_add_dense(p, l, "nextn.eh_proj.weight", 1, 2 * n_embd, n_embd);
    synth_add_dense(p, l, "nextn.embed_tokens.weight", sqrt(n_embd), n_embd, n_vocab);
    synth_add_norm(p, l, "nextn.enorm.weight", n_embd);
    synth_add_norm(p, l, "nextn.hnorm.weight", n_embd);
    synth_add_dense(p, l, "nextn.shared_head_head.weight", 1, n_embd, n_vocab);
    synth_add_norm(p, l, "nextn.shared_head_norm.weight", n_embd);
}

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    add_attention(p, l);
    if (l < s->n_dense) {
        add_network(p, l, "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", s->n_ff_dense);
        return;
    }
    add_router(p, l);
    synth_add_experts(p, l, WRITE_GAIN);
    add_network(p, l, "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight",
                s->n_ff_shared);
    if (l >= p->o.n_layer) add_next_token(p, l);
}

static void list_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_common(p, true);
    synth_key_u32(p, "feed_forward_length", s->n_ff_dense);
    synth_key_context(p, 1e-5);
    synth_key_u32(p, "rope.dimension_count", s->rope_dim);
    synth_key_u32(p, "leading_dense_block_count", s->n_dense);
    synth_key_u32(p, "expert_shared_count", s->n_ff_shared / s->n_ff);
    synth_key_u32(p, "expert_group_count", 1);
    synth_key_u32(p, "expert_group_used_count", 1);
    synth_key_u32(p, "expert_gating_func", 2);
    synth_key_f32(p, "expert_weights_scale", 1);
    synth_key_bool(p, "expert_weights_norm", true);
    synth_key_u32(p, "nextn_predict_layers", s->n_mtp);
}

const synth_family synth_glm4moe = {
    .arch = "glm4moe", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .growth = 0.03, .add_layer = add_layer, .list_keys = list_keys,
};
