/* synth_olmoe.c - synthetic files of OLMoE: attention with norms of all heads together. */
#include "cli/synth/synth_add.h"

static const synth_shape shapes[] = {
    { .name = "olmoe-1b-7b", .family = &synth_olmoe, .n_layer = 16, .n_embd = 2048, .n_head = 16,
      .n_head_kv = 16, .head_dim = 128, .n_expert = 64, .n_used = 8, .n_ff = 1024,
      .n_vocab = 50304, .first_special = 50279, .n_ctx = 4096, .rope_base = 1e4,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_special special[] = { { "<|endoftext|>", 0 }, { "<|padding|>", 0 } };

static const synth_vocab vocab = {
    .kind = SYNTH_BYTES, .pre = "olmo", .special = special, .n_special = ARRAY_LEN(special),
    .bos = -1, .eos = 0, .pad = 1, .eot = -1, .eom = -1, .unknown = -1,
    .chat_template =
        "{{ eos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\\n' + "
        "m.content + '\\n' }}{% else %}{{ '<|assistant|>\\n' + m.content + eos_token + '\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
};

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_attention(p, l);
    synth_add_norm(p, l, "attn_q_norm.weight", s->n_head * s->head_dim);
    synth_add_norm(p, l, "attn_k_norm.weight", s->n_head_kv * s->head_dim);
    synth_drift_latches(p, l);
    synth_add_norm(p, l, "ffn_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_add_experts(p, l, WRITE_GAIN);
}

static void list_keys(synth_plan *p)
{
    synth_key_common(p, false);
    synth_key_u32(p, "feed_forward_length", p->o.shape->n_ff);
    synth_key_context(p, 1e-5);
}

const synth_family synth_olmoe = {
    .arch = "olmoe", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .common = true, .growth = 0.005, .latch = SYNTH_LATCH_COMMON,
    .add_layer = add_layer, .list_keys = list_keys,
};
