/* synth_gemma4.c - synthetic files of Gemma 4 with experts: five layers over a window, then one
 * with full attention, larger heads and no value matrix; a dense network in addition to the
 * experts; norms after attention and after the networks.
 *
 * The norms POST_ATTENTION and POST_FFN alone set the growth of the residual. The model does not
 * scale queries, so their norm does. The router's input has the root mean square 1 /
 * sqrt(n_embd). */
#include "cli/synth/synth_add.h"

#include <assert.h>
#include <math.h>

#include "engine/text/tokenizer/tokenizer.h"

#define POST_ATTENTION 0.1
#define POST_FFN 0.13

static const synth_shape shapes[] = {
    { .name = "gemma-4-26b-a4b", .family = &synth_gemma4, .n_layer = 30, .n_embd = 2816,
      .n_head = 16, .n_head_kv = 8, .head_dim = 256, .n_head_kv_full = 2, .head_dim_full = 512,
      .n_expert = 128, .n_used = 8, .n_ff = 704, .n_ff_shared = 2112, .n_vocab = 262144,
      .n_ctx = 262144, .rope_base = 1e6, .window = 1024, .interval = 6,
      .experts = QT_Q4_K, .dense = QT_Q4_K, .head = QT_Q6_K },
};

static const synth_special special[] = {
    { "<pad>", 0 }, { "<eos>", 0 }, { "<bos>", 0 }, { "<unk>", 0 }, { "<mask>", 0 },
    { "<|turn>", 0 }, { "<turn|>", 0 }, { "<|think|>", 0 }, { "<|channel>", 0 },
    { "<channel|>", 0 }, { "<|tool>", 0 }, { "<tool|>", 0 }, { "<|tool_call>", 0 },
    { "<tool_call|>", 0 }, { "<|tool_response>", 0 }, { "<tool_response|>", 0 }, { "<|\"|>", 0 },
    { "\n", TOKEN_NORMAL }, { "\n\n", TOKEN_NORMAL }, { "\n\n\n", TOKEN_NORMAL },
    { "\n\n\n\n", TOKEN_NORMAL },
};

static const synth_vocab vocab = {
    .kind = SYNTH_RANKS, .special = special, .n_special = ARRAY_LEN(special), .bos = 2, .eos = 1,
    .pad = 0, .eot = 6, .eom = -1, .unknown = 3, .add_bos = true,
    .chat_template =
        "{{ bos_token }}{% for m in messages %}{{ '<|turn>' + m.role + '\\n' + m.content + "
        "'<turn|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\\n' }}"
        "{% endif %}",
};

static bool is_full(const synth_shape *s, int l)
{
    return (l + 1) % s->interval == 0;
}

static void add_norm_of(synth_plan *p, int l, const char *name, double size, int n)
{
    synth_add_range(p, l, name, 0.9 * size, 1.1 * size, 1, n, 1);
}

static void add_attention(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const bool full = is_full(s, l);
    const int dim = full ? s->head_dim_full : s->head_dim, n_q = s->n_head * dim;
    const int n_kv = (full ? s->n_head_kv_full : s->n_head_kv) * dim;
    synth_add_norm(p, l, "attn_norm.weight", s->n_embd);
    synth_add_dense(p, l, "attn_q.weight", 1, s->n_embd, n_q);
    if (full) synth_add_values(p, l, "attn_k.weight", n_kv);     /* keys are values, too */
    else synth_add_dense(p, l, "attn_k.weight", 1, s->n_embd, n_kv);
    if (!full) synth_add_values(p, l, "attn_v.weight", n_kv);
    add_norm_of(p, l, "attn_q_norm.weight", 1 / sqrt(dim), dim);
    synth_add_norm(p, l, "attn_k_norm.weight", dim);
    synth_add_dense(p, l, "attn_output.weight", 1, n_q, s->n_embd);
    add_norm_of(p, l, "post_attention_norm.weight", POST_ATTENTION, s->n_embd);
}

static void add_layer(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const quant_type type = p->o.experts;
    add_attention(p, l);
    synth_add_norm(p, l, "ffn_norm.weight", s->n_embd);
    synth_add_dense(p, l, "ffn_gate.weight", 1, s->n_embd, s->n_ff_shared);
    synth_add_dense(p, l, "ffn_up.weight", 1, s->n_embd, s->n_ff_shared);
    synth_add_down(p, l, "ffn_down.weight", 1, s->n_ff_shared, s->n_embd);
    synth_add_norm(p, l, "post_ffw_norm_1.weight", s->n_embd);
    synth_add_router(p, l, sqrt(s->n_embd));
    synth_add_norm(p, l, "ffn_gate_inp.scale", s->n_embd);
    synth_add_norm(p, l, "pre_ffw_norm_2.weight", s->n_embd);
    synth_add_matrix(p, l, "ffn_gate_up_exps.weight", type, 1, 3, s->n_embd, 2 * s->n_ff,
                     s->n_expert);
    synth_add_matrix(p, l, "ffn_down_exps.weight", synth_add_fit(type, s->n_ff), 1, 3, s->n_ff,
                     s->n_embd, s->n_expert);
    synth_add_norm(p, l, "ffn_down_exps.scale", s->n_expert);
    synth_add_norm(p, l, "post_ffw_norm_2.weight", s->n_embd);
    add_norm_of(p, l, "post_ffw_norm.weight", POST_FFN, s->n_embd);
    synth_add_range(p, l, "layer_output_scale.weight", 0.98, 1.02, 1, 1, 1);
}

/* Divisors of the frequencies of full layers: three of four pairs are not rotated. */
static void add_globals(synth_plan *p)
{
    const int half = p->o.shape->head_dim_full / 2;
    float *factors = synth_add_table(p, -1, "rope_freqs.weight", half);
    for (int i = 0; i < half && factors; i++) factors[i] = i < half / 4 ? 1.0f : 1e30f;
}

static void list_layer_keys(synth_plan *p)
{
    enum { LAYERS_MAX = 64 };
    const synth_shape *s = p->o.shape;
    int32_t n_kv[LAYERS_MAX];
    bool windowed[LAYERS_MAX];
    int n = 0;
    assert(s->n_layer <= LAYERS_MAX);
    for (; n < p->o.n_layer; n++) {
        windowed[n] = !is_full(s, n);
        n_kv[n] = windowed[n] ? s->n_head_kv : s->n_head_kv_full;
    }
    synth_key_array(p, "attention.head_count_kv", GGUF_I32, n_kv, n);
    synth_key_array(p, "attention.sliding_window_pattern", GGUF_BOOL, windowed, n);
}

static void list_keys(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    synth_key_common(p, false);
    list_layer_keys(p);
    synth_key_u32(p, "attention.sliding_window", s->window);
    synth_key_u32(p, "attention.key_length", s->head_dim_full);
    synth_key_u32(p, "attention.value_length", s->head_dim_full);
    synth_key_u32(p, "attention.key_length_swa", s->head_dim);
    synth_key_u32(p, "attention.value_length_swa", s->head_dim);
    synth_key_u32(p, "attention.shared_kv_layers", 0);
    synth_key_u32(p, "embedding_length_per_layer_input", 0);
    synth_key_u32(p, "expert_feed_forward_length", s->n_ff);
    synth_key_u32(p, "feed_forward_length", s->n_ff_shared);
    synth_key_f32(p, "final_logit_softcapping", 30);
    synth_key_context(p, 1e-6);
    synth_key_f32(p, "rope.freq_base_swa", 1e4);
    synth_key_u32(p, "rope.dimension_count", s->head_dim_full);
    synth_key_u32(p, "rope.dimension_count_swa", s->head_dim);
}

const synth_family synth_gemma4 = {
    .arch = "gemma4", .shapes = shapes, .n_shape = ARRAY_LEN(shapes), .vocab = &vocab,
    .common = true, .tied = true, .growth = 0.03, .add_layer = add_layer,
    .add_globals = add_globals, .list_keys = list_keys,
};
