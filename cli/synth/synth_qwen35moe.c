/* synth_qwen35moe.c - synthetic files of Qwen3.5 and 3.6 with experts: Qwen3-Next's network with
 * other matrices in DeltaNet. */
#include "cli/synth/synth_add.h"

static const synth_shape shapes[] = {
    { .name = "qwen3.5-35b-a3b", .family = &synth_qwen35moe, .n_layer = 40, .n_embd = 2048,
      .n_head = 16, .n_head_kv = 2, .head_dim = 256, .n_expert = 256, .n_used = 8, .n_ff = 512,
      .n_vocab = 248320, .first_special = 248044, .n_ctx = 262144, .rope_base = 1e7, .rope_dim = 64,
      .interval = 4, .n_ff_shared = 512, .conv = 4, .n_k_head = 16, .n_v_head = 32, .ssm_dim = 128,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_vocab vocab = {
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
    synth_add_dense(p, l, "ssm_beta.weight", 1, s->n_embd, s->n_v_head);
    synth_add_dense(p, l, "ssm_alpha.weight", 1, s->n_embd, s->n_v_head);
    synth_add_range(p, l, "ssm_conv1d.weight", -0.5, 0.5, 2, s->conv, 2 * n_qk + n_v);
    synth_add_range(p, l, "ssm_dt.bias", -4, -1, 1, s->n_v_head, 1);
    synth_add_range(p, l, "ssm_a", -4, -0.25, 1, s->n_v_head, 1);
    synth_add_norm(p, l, "ssm_norm.weight", s->ssm_dim);
    synth_add_dense(p, l, "ssm_out.weight", WRITE_GAIN, n_v, s->n_embd);
}

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    if ((l + 1) % s->interval) add_deltanet(p, l);
    else synth_qwen3next_attention(p, l);
    synth_drift_latches(p, l);
    synth_qwen3next_ffn(p, l);
}

/* Of the pairs that turn, a third each for the three axes of a picture's positions. */
static void list_keys(synth_plan *p)
{
    const int half = p->o.shape->rope_dim / 2, third = (half + 2) / 3;
    const int32_t sections[4] = { third, third, half - 2 * third, 0 };
    synth_key_common(p, true);
    synth_key_u32(p, "context_length", p->o.shape->n_ctx);
    synth_key_array(p, "rope.dimension_sections", GGUF_I32, sections, 4);
    synth_qwen3next_keys(p);
}

const synth_family synth_qwen35moe = {
    .arch = "qwen35moe", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .common = true, .growth = 0.03, .latch = SYNTH_LATCH_DELTANET, .tiled = true,
    .add_layer = add_layer, .list_keys = list_keys,
};
