/* synth_plain.c - synthetic files of Mixtral, OLMoE and Qwen3 with experts: attention and experts,
 * nothing else. They differ in the norms of queries and keys: none, one of all heads together, one
 * of each head. */
#include "cli/synth/synth_add.h"

#include "engine/text/tokenizer/tokenizer.h"

static const synth_shape mixtral_shapes[] = {
    { .name = "mixtral-8x7b", .family = &synth_llama, .n_layer = 32, .n_embd = 4096, .n_head = 32,
      .n_head_kv = 8, .head_dim = 128, .n_expert = 8, .n_used = 2, .n_ff = 14336, .n_vocab = 32000,
      .n_ctx = 32768, .rope_base = 1e6, .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};
static const synth_shape olmoe_shapes[] = {
    { .name = "olmoe-1b-7b", .family = &synth_olmoe, .n_layer = 16, .n_embd = 2048, .n_head = 16,
      .n_head_kv = 16, .head_dim = 128, .n_expert = 64, .n_used = 8, .n_ff = 1024,
      .n_vocab = 50304, .first_special = 50279, .n_ctx = 4096, .rope_base = 1e4,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};
static const synth_shape qwen3moe_shapes[] = {
    { .name = "qwen3-30b-a3b", .family = &synth_qwen3moe, .n_layer = 48, .n_embd = 2048,
      .n_head = 32, .n_head_kv = 4, .head_dim = 128, .n_expert = 128, .n_used = 8, .n_ff = 768,
      .n_vocab = 151936, .first_special = 151643, .n_ctx = 40960, .rope_base = 1e6,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_special mixtral_special[] = {
    { "<unk>", TOKEN_UNKNOWN }, { "<s>", 0 }, { "</s>", 0 },
};

static const synth_special olmoe_special[] = { { "<|endoftext|>", 0 }, { "<|padding|>", 0 } };

static const synth_vocab mixtral_vocab = {
    .kind = SYNTH_SCORES, .pre = "default", .special = mixtral_special,
    .n_special = ARRAY_LEN(mixtral_special),
    .bos = 1, .eos = 2, .pad = -1, .eot = -1, .eom = -1, .unknown = 0, .add_bos = true,
    .chat_template =
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ ' [INST] ' + m.content +"
        " ' [/INST] ' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
};

static const synth_vocab olmoe_vocab = {
    .kind = SYNTH_BYTES, .pre = "olmo", .special = olmoe_special,
    .n_special = ARRAY_LEN(olmoe_special),
    .bos = -1, .eos = 0, .pad = 1, .eot = -1, .eom = -1, .unknown = -1,
    .chat_template =
        "{{ eos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\\n' + "
        "m.content + '\\n' }}{% else %}{{ '<|assistant|>\\n' + m.content + eos_token + '\\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
};

static const synth_vocab qwen3moe_vocab = {
    .kind = SYNTH_BYTES, .pre = "qwen2", .special = synth_qwen_special,
    .n_special = SYNTH_QWEN_SPECIAL, .bos = 0, .eos = SYNTH_QWEN_EOS, .pad = 0, .eot = -1,
    .eom = -1, .unknown = -1, .chat_template = SYNTH_CHATML,
};

/* norm_q, norm_k: lengths of the norms of queries and keys; 0: none. */
static void add_layer(synth_plan *p, int l, int norm_q, int norm_k)
{
    const synth_shape *s = p->o.shape;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_attention(p, l);
    if (norm_q) synth_add_norm(p, l, "attn_q_norm.weight", norm_q);
    if (norm_k) synth_add_norm(p, l, "attn_k_norm.weight", norm_k);
    synth_add_norm(p, l, "ffn_norm.weight", s->n_embd);
    synth_add_router(p, l, 1);
    synth_add_experts(p, l, WRITE_GAIN);
}

static void add_mixtral(synth_plan *p, int l) { add_layer(p, l, 0, 0); }

static void add_olmoe(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    add_layer(p, l, s->n_head * s->head_dim, s->n_head_kv * s->head_dim);
}

static void add_qwen3moe(synth_plan *p, int l)
{
    add_layer(p, l, p->o.shape->head_dim, p->o.shape->head_dim);
}

static void olmoe_keys(synth_plan *p)
{
    synth_key_common(p, false);
    synth_key_u32(p, "feed_forward_length", p->o.shape->n_ff);
    synth_key_context(p, 1e-5);
}

static void mixtral_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    olmoe_keys(p);
    synth_key_u32(p, "rope.dimension_count", s->head_dim);
    synth_key_u32(p, "vocab_size", s->n_vocab);
    gguf_write_bool(p->w, "tokenizer.ggml.add_eos_token", false);
}

static void qwen3moe_keys(synth_plan *p)
{
    synth_key_common(p, true);
    synth_key_u32(p, "feed_forward_length", p->o.shape->n_used * p->o.shape->n_ff);
    synth_key_context(p, 1e-6);
}

const synth_family synth_llama = {
    .arch = "llama", .shapes = mixtral_shapes, .n_shape = ARRAY_LEN(mixtral_shapes),
    .vocab = &mixtral_vocab, .common = true, .growth = 0.017,
    .add_layer = add_mixtral, .list_keys = mixtral_keys,
};

const synth_family synth_olmoe = {
    .arch = "olmoe", .shapes = olmoe_shapes, .n_shape = ARRAY_LEN(olmoe_shapes),
    .vocab = &olmoe_vocab, .common = true, .growth = 0.005,
    .add_layer = add_olmoe, .list_keys = olmoe_keys,
};

const synth_family synth_qwen3moe = {
    .arch = "qwen3moe", .shapes = qwen3moe_shapes, .n_shape = ARRAY_LEN(qwen3moe_shapes),
    .vocab = &qwen3moe_vocab, .common = true, .growth = 0.008,
    .add_layer = add_qwen3moe, .list_keys = qwen3moe_keys,
};
