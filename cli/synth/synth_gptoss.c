/* synth_gptoss.c - synthetic files of gpt-oss: attention with biases and sinks, every second layer
 * over a window, and experts with biases. Popularity is in the router's bias. */
#include "cli/synth/synth_add.h"

static const synth_shape shapes[] = {
    { .name = "gpt-oss-20b", .family = &synth_gptoss, .n_layer = 24, .n_embd = 2880, .n_head = 64,
      .n_head_kv = 8, .head_dim = 64, .n_expert = 32, .n_used = 4, .n_ff = 2880, .n_vocab = 201088,
      .first_special = 199998, .n_ctx = 131072, .rope_base = 150000, .rope_factor = 32,
      .rope_ctx = 4096, .window = 128, .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 },
    { .name = "gpt-oss-120b", .family = &synth_gptoss, .n_layer = 36, .n_embd = 2880, .n_head = 64,
      .n_head_kv = 8, .head_dim = 64, .n_expert = 128, .n_used = 4, .n_ff = 2880, .n_vocab = 201088,
      .first_special = 199998, .n_ctx = 131072, .rope_base = 150000, .rope_factor = 32,
      .rope_ctx = 4096, .window = 128, .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 },
};

static const synth_special special[] = {
    { "<|startoftext|>", 0 }, { "<|endoftext|>", 0 }, { NULL, 0 }, { NULL, 0 }, { "<|return|>", 0 },
    { "<|constrain|>", 0 }, { NULL, 0 }, { "<|channel|>", 0 }, { "<|start|>", 0 },
    { "<|end|>", 0 }, { "<|message|>", 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 },
    { "<|call|>", 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }, { NULL, 0 },
    { "<|endofprompt|>", 0 },
};

static const synth_vocab vocab = {
    .kind = SYNTH_BYTES, .pre = "gpt-4o", .special = special, .n_special = ARRAY_LEN(special),
    .bos = 0, .eos = 4, .pad = 1, .eot = -1, .eom = -1, .unknown = -1,
    .chat_template =
        "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
};

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    const double small = 0.05;

    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_dense(p, l, "attn_q.weight", 1, s->n_embd, n_q);
    synth_add_range(p, l, "attn_q.bias", -small, small, 1, n_q, 1);
    synth_add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    synth_add_range(p, l, "attn_k.bias", -small, small, 1, n_kv, 1);
    synth_add_dense(p, l, "attn_v.weight", 1, s->n_embd, n_kv);
    synth_add_range(p, l, "attn_v.bias", -small, small, 1, n_kv, 1);
    synth_add_dense(p, l, "attn_output.weight", WRITE_GAIN, n_q, s->n_embd);
    synth_add_range(p, l, "attn_output.bias", -small, small, 1, s->n_embd, 1);
    synth_add_range(p, l, "attn_sinks.weight", -1, 1, 1, s->n_head, 1);
    synth_add_norm(p, l, "post_attention_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_part *bias = synth_add_range(p, l, "ffn_gate_inp.bias", -small, small, 1, s->n_expert, 1);
    if (p->logits) {
        bias->kind = FILL_TABLE;
        bias->table = p->logits + (size_t)l * (size_t)s->n_expert;
    }
    synth_add_matrix(p, l, "ffn_gate_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff,
                     s->n_expert);
    synth_add_range(p, l, "ffn_gate_exps.bias", -small, small, 2, s->n_ff, s->n_expert);
    synth_add_matrix(p, l, "ffn_up_exps.weight", p->o.experts, 1, 3, s->n_embd, s->n_ff,
                     s->n_expert);
    synth_add_range(p, l, "ffn_up_exps.bias", -small, small, 2, s->n_ff, s->n_expert);
    synth_add_matrix(p, l, "ffn_down_exps.weight", p->o.experts, WRITE_GAIN, 3, s->n_ff, s->n_embd,
                     s->n_expert);
    synth_add_range(p, l, "ffn_down_exps.bias", -small, small, 2, s->n_embd, s->n_expert);
}

static void list_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_common(p, true);
    synth_key_u32(p, "context_length", s->n_ctx);
    synth_key_u32(p, "feed_forward_length", s->n_ff);
    synth_key_u32(p, "attention.sliding_window", s->window);
    synth_key_f32(p, "attention.layer_norm_rms_epsilon", 1e-5);
    synth_key_f32(p, "rope.freq_base", s->rope_base);
    gguf_write_str(p->w, "gpt-oss.rope.scaling.type", str_from("yarn"));
    synth_key_f32(p, "rope.scaling.factor", s->rope_factor);
    synth_key_u32(p, "rope.scaling.original_context_length", s->rope_ctx);
}

const synth_family synth_gptoss = {
    .arch = "gpt-oss", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .growth = 0.027, .add_layer = add_layer, .list_keys = list_keys,
};
