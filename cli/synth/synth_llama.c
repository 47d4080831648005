/* synth_llama.c - synthetic files of Mixtral: plain attention and a few large experts. */
#include "cli/synth/synth_add.h"

#include "engine/text/tokenizer/tokenizer.h"

static const synth_shape shapes[] = {
    { .name = "mixtral-8x7b", .family = &synth_llama, .n_layer = 32, .n_embd = 4096, .n_head = 32,
      .n_head_kv = 8, .head_dim = 128, .n_expert = 8, .n_used = 2, .n_ff = 14336, .n_vocab = 32000,
      .n_ctx = 32768, .rope_base = 1e6, .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_special special[] = { { "<unk>", TOKEN_UNKNOWN }, { "<s>", 0 }, { "</s>", 0 } };

static const synth_vocab vocab = {
    .kind = SYNTH_SCORES, .pre = "default", .special = special, .n_special = ARRAY_LEN(special),
    .bos = 1, .eos = 2, .pad = -1, .eot = -1, .eom = -1, .unknown = 0, .add_bos = true,
    .chat_template =
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ ' [INST] ' + m.content +"
        " ' [/INST] ' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
};

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_attention(p, l);
    synth_drift_latches(p, l);
    synth_add_norm(p, l, "ffn_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_add_experts(p, l, WRITE_GAIN);
}

static void list_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_common(p, false);
    synth_key_u32(p, "feed_forward_length", s->n_ff);
    synth_key_context(p, 1e-5);
    synth_key_u32(p, "rope.dimension_count", s->head_dim);
    synth_key_u32(p, "vocab_size", s->n_vocab);
    gguf_write_bool(p->w, "tokenizer.ggml.add_eos_token", false);
}

const synth_family synth_llama = {
    .arch = "llama", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .common = true, .growth = 0.017, .latch = SYNTH_LATCH_COMMON, .neighbours = true,
    .add_layer = add_layer, .list_keys = list_keys,
};
