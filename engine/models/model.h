/* model.h - a supported model: hyper-parameters and bound tensors of a GGUF file.
 *
 * model_bind checks every key and tensor that the architecture needs. It refuses keys and tensors
 * that are missing or have a wrong shape or type; messages name them. Nothing is copied: weights
 * are views into the mapped file, so the gguf must outlive the model. Immutable afterwards, except
 * for model_use_experts and model_use_mtp. */
#ifndef ENGINE_MODELS_MODEL_H
#define ENGINE_MODELS_MODEL_H

#include "loader/gguf.h"
#include "moe/expert.h"
#include "moe/router.h"

typedef enum model_arch {
    ARCH_QWEN3NEXT, ARCH_GPTOSS, ARCH_QWEN3MOE, ARCH_OLMOE, ARCH_LLAMA, ARCH_QWEN35MOE,
    ARCH_GLM4MOE, ARCH_GEMMA4
} model_arch;

/* A matrix or vector with its optional companion scale (NVFP4): y = scale * (W x), before any bias.
 * Rows of the embedding are scaled too. */
typedef struct weight {
    const tensor *t;                     /* NULL: absent, if the architecture allows that */
    const tensor *scale;                 /* F32 {1}, or NULL: 1 */
} weight;

/* The heads of an attention layer. */
typedef struct attn_shape {
    int n_head, n_head_kv, head_dim;
    int rope_dim;                        /* rotated dimensions of a head */
} attn_shape;

typedef enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN } rope_scaling;

typedef struct model_hparams {
    model_arch arch;
    int n_layer;                         /* trunk only: block_count less n_mtp */
    int n_mtp;                           /* trailing next-token blocks; not part of the trunk */
    bool uses_mtp;                       /* the first of them is computed, as layer n_layer */
    int n_vocab;
    int ctx_train;                       /* from the file: not a size for allocations by default */
    int n_embd;
    int n_head, n_head_kv, head_dim;
    float rms_eps;

    int rope_dim;
    double rope_base;
    double rope_base_window;             /* rope base of windowed layers */
    attn_shape windowed;                 /* heads of windowed layers; n_head 0: as in full layers */
    rope_scaling rope_scaling;
    double rope_factor;                  /* 1 without scaling */
    int rope_ctx_orig;
    double rope_attn_factor;

    int n_expert, n_expert_used, n_ff_expert;
    int n_ff_shared;                     /* 0: no shared expert */
    int n_ff_dense;                      /* width of dense layers; 0: all layers have experts */
    router_rule router;                  /* without a bias, which belongs to the layer */

    float embed_scale;                   /* factor of the embedding's rows; 0: 1 */
    float logit_cap;                     /* soft cap: cap * tanh(logit / cap); 0: none */

    int window;                          /* sliding window of windowed layers; 0: none */
    int ssm_conv, ssm_head_dim, ssm_n_k_head, ssm_n_v_head;      /* 0 without DeltaNet */
    bool ssm_tiled;                      /* value head h uses key head h % n_k, not h / ratio */
} model_hparams;

enum { MODEL_MOST_NEIGHBOURS = 512 };    /* limit of rope_dim if rope_neighbours */

typedef enum mixer_kind { MIX_ATTENTION, MIX_DELTANET } mixer_kind;

typedef struct model_layer {
    mixer_kind mixer;
    int window;                          /* keys visible including the token's own; 0: all */
    int kv_back;                         /* uses the keys and values of the layer this many before
                                          * it and stores none; 0: its own */
    weight attn_norm, post_attn_norm;    /* before attention; before experts and shared expert */
    weight router_norm;                  /* replaces post_attn_norm for the router, whose input is
                                          * then divided by sqrt(n_embd) */
    weight experts_norm;                 /* replaces post_attn_norm for the experts */
    weight mix_out_norm;                 /* norm of attention's output, before the residual add */
    weight experts_out_norm;             /* norm of the sum over experts, */
    weight shared_out_norm;              /* of the shared expert's vector, */
    weight ffn_out_norm;                 /* and of the sum of both; all three or none */
    weight out_scale;                    /* {1}: factor of the residual after the layer */
    struct {                             /* MIX_ATTENTION */
        weight q, k, v, out;             /* attn_gated: q has query and gate of each head; without
                                          * v the values are the projected keys */
        weight q_bias, k_bias, v_bias, out_bias, sinks, q_norm, k_norm;
        weight qkv, qkv_bias;            /* fused q, k, v; then those are absent */
    } attn;
    struct {                             /* MIX_DELTANET */
        weight qkv, gate;                /* new layout; absent if `in` exists */
        weight in;                       /* legacy ssm_in: q, k, v, z grouped by key head */
        weight ba;                       /* beta and alpha fused, by key head; or: */
        weight beta, alpha;              /* each in the order of value heads */
        weight conv, dt_bias, a, norm, out;
    } delta;
    weight router, router_bias;
    weight choice_bias;                  /* added to scores for the choice, not for the weights */
    expert_bank *experts;                /* the layer's bank in model.experts */
    weight shared_gate, shared_up, shared_down;  /* shared expert, or the dense layer's network */
    weight shared_gate_inp;              /* absent: weight 1 */
    struct mtp_weights {                 /* MTP blocks; the last three are optional */
        weight eh_proj, enorm, hnorm, head_norm, embed, head;
    } mtp;
} model_layer;

/* Returns the layers that are computed: the trunk, and behind it a next-token block in use. */
static inline int hparams_layers(const model_hparams *hp) { return hp->n_layer + hp->uses_mtp; }

/* Returns the heads of full or of windowed layers. */
static inline attn_shape hparams_attn(const model_hparams *hp, bool windowed)
{
    if (windowed && hp->windowed.n_head > 0) return hp->windowed;
    return (attn_shape){ hp->n_head, hp->n_head_kv, hp->head_dim, hp->rope_dim };
}

/* Widths of q, k and v of a token together, in a DeltaNet layer. */
static inline uint64_t hparams_channels(const model_hparams *hp)
{
    return (2 * (uint64_t)hp->ssm_n_k_head + (uint64_t)hp->ssm_n_v_head) *
           (uint64_t)hp->ssm_head_dim;
}

static inline attn_shape layer_attn(const model_hparams *hp, const model_layer *y)
{
    return hparams_attn(hp, y->window > 0);
}

/* Properties of all models of an architecture: one constant in its file. */
struct binder;
typedef struct model_family {
    const char *name;                    /* general.architecture, and prefix of the keys */
    int (*bind)(struct binder *b);       /* model_bind.h */
    bool attn_gated;                     /* rows of q: query, then gate, for each head */
    bool rope_neighbours;                /* rotated pairs are 2i, 2i + 1, not i, i + half */
    bool attn_norm_whole;                /* q_norm and k_norm span all heads */
    bool attn_norm_values;               /* the values of each head are normed too, without gain */
    bool attn_unscaled;                  /* scores are not divided by sqrt(head_dim) */
    expert_activation act;
    bool cache_experts;                  /* tested with experts that change frames in VRAM */
    bool yarn_rounded;                   /* YaRN's range is rounded to whole pairs of dimensions */
    struct { double temperature; int top_k; double top_p; } sampling;    /* as published */
} model_family;

typedef struct model {
    const gguf *file;                    /* borrowed */
    const model_family *family;
    model_hparams hp;
    weight embed, out_norm, head;        /* head == embed if the file ties them */
    weight rope_factors;                 /* [rope_dim / 2] divisors of full layers' frequencies; or
                                          * absent */
    bool head_tied;
    model_layer *layers;                 /* n_layer + n_mtp; an MTP block is MIX_ATTENTION */
    expert_banks experts;                /* of the trunk; those of MTP blocks follow */
    int n_bound;                         /* tensors in use; the others are ignored */
    int n_media;                         /* ignored tensors for images and sound */
    int own_experts_used;                /* the file's number; model_use_experts changes only
                                          * hp.n_expert_used */
} model;

/* Returns the layer whose keys and values layer l uses: l, or the earlier one that it shares. */
static inline int model_kv_layer(const model *m, int l) { return l - m->layers[l].kv_back; }

/* Returns the largest number of first layers on the GPU if the others are on the CPU, so that
 * layers with shared keys and values are on one side. n_layer if none are shared. */
int model_split_most(const model *m);

/* Returns 0, or < 0 with *err filled and *out NULL. Borrows g until model_free. */
int model_bind(model **out, const gguf *g, err_ctx *err);
void model_free(model *m);               /* NULL is fine */

/* Sets the number of experts for each token to n instead of the file's number. n is 1 to the
 * smaller of n_expert and MODEL_MOST_USED, or the file's number. Answers change. Call it while no
 * plan, engine or session of m exists, because they read the number from hp. On failure m is
 * unchanged. */
enum { MODEL_MOST_USED = 32 };           /* limit of the GPU's kernels and of the plan's tables */
int model_use_experts(model *m, int n, err_ctx *err);
int model_check_experts(const model *m, int n, err_ctx *err);    /* only checks n */

/* Uses the first next-token block, if the model has one, as a layer behind the trunk's; or leaves
 * it out, as after model_bind. Its bank is never streamed: it is where the head is. Use it before
 * an engine of m is opened; leave it out before the engine is placed and has a session. */
void model_use_mtp(model *m, bool used);

/* Returns the bank of the first layer with experts; the other banks have the same shapes. */
const expert_bank *model_first_bank(const model *m);

/* Returns N of a tensor name "blk.N.x", or -1 for other names. */
int model_block_of(str_view name);

const model_family *model_family_of(model_arch a);
const char *model_arch_name(model_arch a);       /* of the family */

/* Returns a hash of name, type, shape and some bytes of every bound tensor, which identifies the
 * model. Reads up to three pages of each tensor. */
uint64_t model_fingerprint(const model *m);

/* The use of a bound tensor. A companion scale has the use of its weight, except in experts. */
typedef enum model_use {
    USE_EMBED, USE_HEAD, USE_NORM, USE_ATTENTION, USE_DELTANET, USE_ROUTER, USE_SHARED,
    USE_EXPERT_GATE, USE_EXPERT_UP, USE_EXPERT_GATE_UP, USE_EXPERT_DOWN,
    USE_EXPERT_SMALL,                    /* biases and scales of experts */
    USE_MTP,                             /* tensors that only MTP blocks have */
    USE_COUNT
} model_use;
const char *model_use_name(model_use u);         /* for display: "shared expert" */

/* Calls fn once for every bound tensor, n_bound times. layer is -1 for embedding, final norm and
 * head, and n_layer or more in an MTP block. */
typedef void model_visit_fn(void *ctx, const tensor *t, model_use use, int layer);
void model_visit(const model *m, model_visit_fn *fn, void *ctx);

/* Calls fn once for every bound matrix, which may have any type with a decoder. scale has one
 * number, or one for each slab (NULL: 1). Vectors, routers and convolutions, always floats, are
 * skipped. */
typedef void model_matrix_fn(void *ctx, const tensor *t, const tensor *scale, model_use use);
void model_visit_matrices(const model *m, model_matrix_fn *fn, void *ctx);

/* Sizes for the token loop, computed from the bound tensors. A tied head is the embedding table,
 * stored once and read for every token. */
typedef struct model_bytes {
    uint64_t params;                     /* elements of all trunk tensors */
    uint64_t params_active;              /* per token: all but idle experts and the embedding table,
                                          * which counts only as a tied head */
    uint64_t experts;                    /* all routed experts of the trunk, with bias and scale */
    uint64_t dense;                      /* the rest of the trunk */
    uint64_t embed, head;                /* part of dense; head is 0 if tied */
    uint64_t expert_largest;             /* largest single expert */
    uint64_t bank_largest;               /* largest bank: all experts of one layer */
    uint64_t token_experts;              /* read per token: n_expert_used experts of each layer */
    uint64_t token_dense;                /* read per token: dense, the embedding only if tied */
    uint64_t mtp;                        /* the MTP blocks, not in the numbers above */
} model_bytes;
void model_count_bytes(model_bytes *out, const model *m);

#endif
