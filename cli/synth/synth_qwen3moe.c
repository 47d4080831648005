/* synth_qwen3moe.c - synthetic files of Qwen3 with experts: attention with norms of each head. */
#include "cli/synth/synth_add.h"

static const synth_shape shapes[] = {
    { .name = "qwen3-30b-a3b", .family = &synth_qwen3moe, .n_layer = 48, .n_embd = 2048,
      .n_head = 32, .n_head_kv = 4, .head_dim = 128, .n_expert = 128, .n_used = 8, .n_ff = 768,
      .n_vocab = 151936, .first_special = 151643, .n_ctx = 40960, .rope_base = 1e6,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_vocab vocab = {
    .kind = SYNTH_BYTES, .pre = "qwen2", .special = synth_qwen_special,
    .n_special = SYNTH_QWEN_SPECIAL, .bos = 0, .eos = SYNTH_QWEN_EOS, .pad = 0, .eot = -1,
    .eom = -1, .unknown = -1, .chat_template = SYNTH_CHATML,
};

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_attention(p, l);
    synth_add_norm(p, l, "attn_q_norm.weight", s->head_dim);
    synth_add_norm(p, l, "attn_k_norm.weight", s->head_dim);
    synth_drift_latches(p, l);
    synth_add_norm(p, l, "ffn_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_add_experts(p, l, WRITE_GAIN);
}

static void list_keys(synth_plan *p)
{
    synth_key_common(p, true);
    synth_key_u32(p, "feed_forward_length", p->o.shape->n_used * p->o.shape->n_ff);
    synth_key_context(p, 1e-6);
}

const synth_family synth_qwen3moe = {
    .arch = "qwen3moe", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .common = true, .growth = 0.008, .latch = SYNTH_LATCH_COMMON,
    .add_layer = add_layer, .list_keys = list_keys,
};
