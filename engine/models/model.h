/* model.h - a supported model in a GGUF file: hyper-parameters and bound tensors.
 *
 * model_bind checks every key and every tensor that the architecture needs. It refuses a missing
 * tensor, a wrong shape or an unusable type, and names it. Nothing is copied: weights are views
 * into the mapped file, so the gguf must outlive the model. Immutable after model_bind, except for
 * model_use_experts. */
#ifndef ENGINE_MODELS_MODEL_H
#define ENGINE_MODELS_MODEL_H

#include "loader/gguf.h"
#include "moe/expert.h"
#include "moe/router.h"

typedef enum model_arch {
    ARCH_QWEN3NEXT, ARCH_GPTOSS, ARCH_QWEN3MOE, ARCH_OLMOE, ARCH_LLAMA, ARCH_QWEN35MOE,
    ARCH_GLM4MOE, ARCH_GEMMA4
} model_arch;

/* A matrix or vector with its optional companion scale (NVFP4): y = scale * (W x), before any bias;
 * a row of the embedding is scaled alike. */
typedef struct weight {
    const tensor *t;                     /* NULL: absent, where the architecture allows that */
    const tensor *scale;                 /* F32 {1}, or NULL: 1 */
} weight;

/* The heads of an attention layer. */
typedef struct attn_shape {
    int n_head, n_head_kv, head_dim;
    int rope_dim;                        /* dimensions of a head that turn */
} attn_shape;

typedef enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN } rope_scaling;

typedef struct model_hparams {
    model_arch arch;
    int n_layer;                         /* trunk only: block_count less n_mtp */
    int n_mtp;                           /* trailing next-token blocks; no part of the trunk */
    int n_vocab;
    int ctx_train;                       /* a label: never allocate from it unasked */
    int n_embd;
    int n_head, n_head_kv, head_dim;
    float rms_eps;

    int rope_dim;
    double rope_base;
    double rope_base_window;             /* of windowed layers */
    attn_shape windowed;                 /* theirs, where it is another; n_head 0: it is not */
    rope_scaling rope_scaling;
    double rope_factor;                  /* 1 without scaling */
    int rope_ctx_orig;
    double rope_attn_factor;

    int n_expert, n_expert_used, n_ff_expert;
    int n_ff_shared;                     /* 0: no shared expert */
    int n_ff_dense;                      /* of layers without experts; 0: all have some */
    router_rule router;                  /* without a bias: that is the layer's */

    float embed_scale;                   /* of the embedding's rows; 0: 1 */
    float logit_cap;                     /* logits are bent to stay below it; 0: they are not */

    int window;                          /* sliding window of windowed layers; 0: none */
    int ssm_conv, ssm_head_dim, ssm_n_k_head, ssm_n_v_head;      /* 0 without DeltaNet */
    bool ssm_tiled;                      /* value head h is of key head h % n_k, not h / ratio */
} model_hparams;

enum { MODEL_MOST_NEIGHBOURS = 512 };    /* dimensions of a head that turn as neighbours */

typedef enum mixer_kind { MIX_ATTENTION, MIX_DELTANET } mixer_kind;

typedef struct model_layer {
    mixer_kind mixer;
    int window;                          /* keys visible including the token's own; 0: all */
    int kv_back;                         /* attends to the keys and values of the layer that is so
                                          * many before it and stores none; 0: to its own */
    weight attn_norm, post_attn_norm;    /* before attention; before experts and shared expert */
    weight router_norm;                  /* for the router, which then also divides by
                                          * sqrt(n_embd); absent: post_attn_norm */
    weight experts_norm;                 /* for the experts; absent: post_attn_norm */
    weight mix_out_norm;                 /* of attention's output */
    weight experts_out_norm;             /* of the sum over experts, */
    weight shared_out_norm;              /* of the shared expert's vector, */
    weight ffn_out_norm;                 /* and of the sum of both; these three, or none of them */
    weight out_scale;                    /* {1}: of the residual after the layer */
    struct {                             /* MIX_ATTENTION */
        weight q, k, v, out;             /* qwen3next: q holds query and gate, per head; without v
                                          * values are the keys as they were projected */
        weight q_bias, k_bias, v_bias, out_bias, sinks, q_norm, k_norm;
        weight qkv, qkv_bias;            /* gpt-oss files may fuse q, k, v: then those are absent */
    } attn;
    struct {                             /* MIX_DELTANET */
        weight qkv, gate;                /* new layout; absent if in is there */
        weight in;                       /* legacy ssm_in: q, k, v, z grouped by key head */
        weight ba;                       /* strengths and decays, by key head; or: */
        weight beta, alpha;              /* each in the order of value heads */
        weight conv, dt_bias, a, norm, out;
    } delta;
    weight router, router_bias;
    weight choice_bias;                  /* added to scores for the choice alone */
    expert_bank *experts;                /* that of the layer in model.experts */
    weight shared_gate, shared_up, shared_down;  /* shared expert or dense network */
    weight shared_gate_inp;              /* absent: the shared expert has weight 1 */
    struct mtp_weights {                 /* MTP blocks only; the last three are optional */
        weight eh_proj, enorm, hnorm, head_norm, embed, head;
    } mtp;
} model_layer;

/* Of full layers, or of windowed ones. */
static inline attn_shape hparams_attn(const model_hparams *hp, bool windowed)
{
    if (windowed && hp->windowed.n_head > 0) return hp->windowed;
    return (attn_shape){ hp->n_head, hp->n_head_kv, hp->head_dim, hp->rope_dim };
}

static inline attn_shape layer_attn(const model_hparams *hp, const model_layer *y)
{
    return hparams_attn(hp, y->window > 0);
}

/* What all models of an architecture have in common: one constant in its file. */
struct binder;
typedef struct model_family {
    const char *name;                    /* general.architecture, and prefix of the keys */
    int (*bind)(struct binder *b);       /* model_bind.h */
    bool attn_gated;                     /* rows of q: query, then gate, head by head */
    bool rope_neighbours;                /* pairs that turn are 2i, 2i + 1, not i, i + half */
    bool attn_norm_whole;                /* q_norm and k_norm are of all heads together */
    bool attn_norm_values;               /* values, too, are normed, head by head, with no gain */
    bool attn_unscaled;                  /* products of queries and keys are taken as they are */
    expert_activation act;
    bool cache_experts;                  /* experts may change places in VRAM: tried and tested */
    bool yarn_rounded;                   /* YaRN's range is rounded to whole pairs of dimensions */
    struct { double temperature; int top_k; double top_p; } sampling;    /* as published */
} model_family;

typedef struct model {
    const gguf *file;                    /* borrowed */
    const model_family *family;
    model_hparams hp;
    weight embed, out_norm, head;        /* head == embed if the file ties them */
    weight rope_factors;                 /* [rope_dim / 2], which divide the frequencies of full
                                          * layers; or absent */
    bool head_tied;
    model_layer *layers;                 /* n_layer + n_mtp; an MTP block is MIX_ATTENTION */
    expert_banks experts;                /* of the trunk; those of MTP blocks follow */
    int n_bound;                         /* tensors in use; the rest of the file is ignored */
    int n_media;                         /* of the rest, tensors of image and sound encoders */
    int own_experts_used;                /* the file's hp.n_expert_used, before
                                          * model_use_experts */
} model;

/* The layer whose keys and values layer l attends to: l, or the earlier one that it shares with. */
static inline int model_kv_layer(const model *m, int l) { return l - m->layers[l].kv_back; }

/* Layers may be split between GPU and CPU after at most this many, or not at all: a layer and the
 * one whose keys and values it shares are on the same side. n_layer: none is shared. */
int model_split_most(const model *m);

/* Returns 0, or < 0 with *err filled and *out NULL. Borrows g until model_free. */
int model_bind(model **out, const gguf *g, err_ctx *err);
void model_free(model *m);               /* NULL is fine */

/* From now on each token goes through its n best experts, 1 .. n_expert and MODEL_MOST_USED at
 * most, instead of as many as the file says, which is allowed in any case. Another model in effect:
 * its answers differ. Before anything is made of m, or after all of it has been closed: plans,
 * engines and sessions take the number from hp. On failure m is as before. */
enum { MODEL_MOST_USED = 32 };           /* that the GPU's kernels and the plan's tables have room
                                          * for */
int model_use_experts(model *m, int n, err_ctx *err);
int model_check_experts(const model *m, int n, err_ctx *err);    /* whether it would be taken */

/* The experts of the first layer that has any: those of the others are like them. */
const expert_bank *model_first_bank(const model *m);

/* N of a tensor called "blk.N.what"; -1: it is called otherwise. */
int model_block_of(str_view name);

const model_family *model_family_of(model_arch a);
const char *model_arch_name(model_arch a);       /* of the family */

/* A number that differs between models: from name, type, shape and some bytes of every bound
 * tensor. Reads up to three pages of each. */
uint64_t model_fingerprint(const model *m);

/* What a bound tensor is for. A companion scale counts with its weight, except of experts. */
typedef enum model_use {
    USE_EMBED, USE_HEAD, USE_NORM, USE_ATTENTION, USE_DELTANET, USE_ROUTER, USE_SHARED,
    USE_EXPERT_GATE, USE_EXPERT_UP, USE_EXPERT_GATE_UP, USE_EXPERT_DOWN,
    USE_EXPERT_SMALL,                    /* biases and scales of experts */
    USE_MTP,                             /* what only an MTP block has; the rest of it by its use */
    USE_COUNT
} model_use;
const char *model_use_name(model_use u);         /* for people: "shared expert" */

/* Calls fn once for every bound tensor, n_bound times. layer is -1 for embedding, final norm and
 * head, and n_layer or more in an MTP block. */
typedef void model_visit_fn(void *ctx, const tensor *t, model_use use, int layer);
void model_visit(const model *m, model_visit_fn *fn, void *ctx);

/* Calls fn once for every bound matrix: what may have any type with a decoder, and a companion
 * scale of one number, or one for each of its slabs (NULL: 1). The rest is vectors, routers and
 * convolutions, which stay floats. */
typedef void model_matrix_fn(void *ctx, const tensor *t, const tensor *scale, model_use use);
void model_visit_matrices(const model *m, model_matrix_fn *fn, void *ctx);

/* Bytes as the token loop sees them; computed from the bound tensors alone. A tied head is the
 * embedding table: stored once, and read for every token. */
typedef struct model_bytes {
    uint64_t params;                     /* elements of all trunk tensors */
    uint64_t params_active;              /* per token: all but idle experts and the embedding table,
                                          * which counts only as a tied head */
    uint64_t experts;                    /* all routed experts of the trunk, with bias and scale */
    uint64_t dense;                      /* all the rest of the trunk */
    uint64_t embed, head;                /* part of dense; head is 0 if tied */
    uint64_t expert_largest;             /* largest single expert */
    uint64_t bank_largest;               /* largest bank: all experts of one layer */
    uint64_t token_experts;              /* read per token: n_expert_used experts of each layer */
    uint64_t token_dense;                /* read per token: dense, the embedding only if tied */
    uint64_t mtp;                        /* the MTP blocks, in none of the numbers above */
} model_bytes;
void model_count_bytes(model_bytes *out, const model *m);

#endif
