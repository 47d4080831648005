/* synth_qwen3next.c - synthetic files of Qwen3-Next, and of Qwen3.5 and 3.6 with experts: DeltaNet,
 * gated attention in every fourth layer, and a shared expert. Qwen3.5 and 3.6 have other matrices
 * in DeltaNet. */
#include "cli/synth/synth_add.h"

static const synth_shape next_shapes[] = {
    { .name = "qwen3-next-80b", .family = &synth_qwen3next, .n_layer = 48, .n_embd = 2048,
      .n_head = 16, .n_head_kv = 2, .head_dim = 256, .n_expert = 512, .n_used = 10, .n_ff = 512,
      .n_vocab = 151936, .first_special = 151643, .n_ctx = 262144, .rope_base = 1e7, .rope_dim = 64,
      .interval = 4, .n_ff_shared = 512, .conv = 4, .n_k_head = 16, .n_v_head = 32, .ssm_dim = 128,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_shape qwen35_shapes[] = {
    { .name = "qwen3.5-35b-a3b", .family = &synth_qwen35moe, .n_layer = 40, .n_embd = 2048,
      .n_head = 16, .n_head_kv = 2, .head_dim = 256, .n_expert = 256, .n_used = 8, .n_ff = 512,
      .n_vocab = 248320, .first_special = 248044, .n_ctx = 262144, .rope_base = 1e7, .rope_dim = 64,
      .interval = 4, .n_ff_shared = 512, .conv = 4, .n_k_head = 16, .n_v_head = 32, .ssm_dim = 128,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_vocab next_vocab = {
    .kind = SYNTH_BYTES, .pre = "qwen2", .special = synth_qwen_special,
    .n_special = SYNTH_QWEN_SPECIAL, .bos = 0, .eos = SYNTH_QWEN_EOS, .pad = 0, .eot = -1,
    .eom = -1, .unknown = -1, .chat_template = SYNTH_CHATML,
};

static const synth_vocab qwen35_vocab = {
    .kind = SYNTH_BYTES, .pre = "qwen35", .special = synth_qwen_special,
    .n_special = SYNTH_QWEN_SPECIAL, .bos = -1, .eos = SYNTH_QWEN_EOS, .pad = 0, .eot = -1,
    .eom = -1, .unknown = -1, .chat_template = SYNTH_CHATML,
};

static void add_deltanet(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_qk = s->n_k_head * s->ssm_dim, n_v = s->n_v_head * s->ssm_dim;
    synth_add_dense(p, l, "attn_qkv.weight", 1, s->n_embd, 2 * n_qk + n_v);
    synth_add_dense(p, l, "attn_gate.weight", 1, s->n_embd, n_v);
    if (s->family == &synth_qwen3next) {
        synth_add_dense(p, l, "ssm_ba.weight", 1, s->n_embd, 2 * s->n_v_head);
    } else {
        synth_add_dense(p, l, "ssm_beta.weight", 1, s->n_embd, s->n_v_head);
        synth_add_dense(p, l, "ssm_alpha.weight", 1, s->n_embd, s->n_v_head);
    }
    synth_add_range(p, l, "ssm_conv1d.weight", -0.5, 0.5, 2, s->conv, 2 * n_qk + n_v);
    synth_add_range(p, l, "ssm_dt.bias", -4, -1, 1, s->n_v_head, 1);
    synth_add_range(p, l, "ssm_a", -4, -0.25, 1, s->n_v_head, 1);
    synth_add_norm(p, l, "ssm_norm.weight", s->ssm_dim);
    synth_add_dense(p, l, "ssm_out.weight", WRITE_GAIN, n_v, s->n_embd);
}

static void add_attention(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    synth_add_dense(p, l, "attn_q.weight", 1, s->n_embd, 2 * n_q);       /* query and gate */
    synth_add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    synth_add_dense(p, l, "attn_v.weight", 1, s->n_embd, n_kv);
    synth_add_norm(p, l, "attn_q_norm.weight", s->head_dim);
    synth_add_norm(p, l, "attn_k_norm.weight", s->head_dim);
    synth_add_dense(p, l, "attn_output.weight", WRITE_GAIN, n_q, s->n_embd);
}

static void add_ffn(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "post_attention_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_add_experts(p, l, WRITE_GAIN);
    synth_add_probe(p, l, "ffn_gate_inp_shexp.weight", 1, s->n_embd, 1);
    synth_add_dense(p, l, "ffn_gate_shexp.weight", 1, s->n_embd, s->n_ff_shared);
    synth_add_dense(p, l, "ffn_up_shexp.weight", 1, s->n_embd, s->n_ff_shared);
    synth_add_down(p, l, "ffn_down_shexp.weight", WRITE_GAIN, s->n_ff_shared, s->n_embd);
}

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    if ((l + 1) % s->interval) add_deltanet(p, l);
    else add_attention(p, l);
    add_ffn(p, l);
}

static void list_shared_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_u32(p, "expert_shared_feed_forward_length", s->n_ff_shared);
    synth_key_f32(p, "attention.layer_norm_rms_epsilon", 1e-6);
    synth_key_u32(p, "rope.dimension_count", s->rope_dim);
    synth_key_f32(p, "rope.freq_base", s->rope_base);
    synth_key_u32(p, "full_attention_interval", s->interval);
    synth_key_u32(p, "ssm.conv_kernel", s->conv);
    synth_key_u32(p, "ssm.state_size", s->ssm_dim);
    synth_key_u32(p, "ssm.group_count", s->n_k_head);
    synth_key_u32(p, "ssm.time_step_rank", s->n_v_head);
    synth_key_u32(p, "ssm.inner_size", s->n_v_head * s->ssm_dim);
}

static void next_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_common(p, true);
    synth_key_u32(p, "context_length", s->n_ctx);
    synth_key_u32(p, "feed_forward_length", s->n_used * s->n_ff);
    list_shared_keys(p);
}

/* One third of the rotated pairs for each of the three axes of a picture's positions. */
static void qwen35_keys(synth_plan *p)
{
    const int half = p->o.shape->rope_dim / 2, third = (half + 2) / 3;
    const int32_t sections[4] = { third, third, half - 2 * third, 0 };
    synth_key_common(p, true);
    synth_key_u32(p, "context_length", p->o.shape->n_ctx);
    synth_key_array(p, "rope.dimension_sections", GGUF_I32, sections, 4);
    list_shared_keys(p);
}

const synth_family synth_qwen3next = {
    .arch = "qwen3next", .shapes = next_shapes, .n_shape = ARRAY_LEN(next_shapes),
    .vocab = &next_vocab, .common = true, .growth = 0.027, .add_layer = add_layer,
    .list_keys = next_keys,
};

const synth_family synth_qwen35moe = {
    .arch = "qwen35moe", .shapes = qwen35_shapes, .n_shape = ARRAY_LEN(qwen35_shapes),
    .vocab = &qwen35_vocab, .common = true, .growth = 0.03,
    .add_layer = add_layer, .list_keys = qwen35_keys,
};
