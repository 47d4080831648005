/* weights_gpu.h - a model's weights in VRAM: the file's bytes, every tensor at a multiple of 256.
 *
 * Shapes and small vectors of all experts of the GPU's layers are in VRAM, the matrices only of
 * some experts. The upload reorders the rows of older files, and of families that rotate
 * neighbouring values as a pair, so that operations see one layout. Immutable after creation. */
#ifndef ENGINE_GPU_WEIGHTS_GPU_H
#define ENGINE_GPU_WEIGHTS_GPU_H

#include "cuda/gpu_experts.h"
#include "engine/host/weights.h"
#include "tiers/pool.h"

typedef struct layer_weights_gpu {
    const float *attn_norm, *post_attn_norm;
    const float *router_norm, *experts_norm;     /* post_attn_norm, if there is no other */
    const float *mix_out_norm;                   /* or NULL */
    const float *experts_out_norm, *shared_out_norm, *ffn_out_norm;      /* all three, or NULL */
    float out_scale;
    struct {
        gpu_matrix q, k, out;
        gpu_matrix v;                    /* data NULL: the keys, as they are projected */
        const float *q_norm, *k_norm, *sinks;
    } attn;
    struct {
        gpu_matrix qkv, z, out;
        gpu_matrix ba;                   /* by key heads; data NULL: */
        gpu_matrix beta, alpha;          /* in the order of value heads */
        const float *conv, *dt_bias, *a, *norm;
    } delta;
    gpu_matrix router;                   /* data NULL: no experts, only the shared network */
    gpu_matrix shared_gate_inp, shared_gate, shared_up, shared_down;
    const float *choice_bias;            /* NULL: none */
    gpu_bank gate, up, down;             /* data NULL if no expert of the layer is in VRAM */
} layer_weights_gpu;

/* What a next-token block has besides its layer: as in mtp_matrices, but both halves of eh_proj are
 * matrices of their own. */
typedef struct mtp_gpu {
    gpu_matrix of_embed, of_hidden, embed, head;
    const float *enorm, *hnorm, *head_norm;
} mtp_gpu;

typedef struct weights_gpu {
    gpu *device;                         /* borrowed */
    gpu_matrix embed, head;              /* head.data NULL: the head is not in VRAM */
    const float *out_norm;
    int n_layer;                         /* the first layers of the model */
    layer_weights_gpu *layers;           /* [n_layer]; with the head also that of a next-token block,
                                          * [hparams.n_layer], and all of its experts */
    mtp_gpu mtp;
    void *arena;
    void *embed_host;                    /* the embedding, page-locked, if it is not in VRAM */
    uint64_t bytes;                      /* of VRAM */
} weights_gpu;

/* The weights that go to VRAM. */
typedef struct weights_choice {
    int n_layer;                         /* the dense weights of this many first layers */
    bool head;                           /* output matrix and last norm, and a next-token block */
    const int *hot;                      /* [n_layer]: this many first experts; NULL: all */
    bool embed_in_ram;
    bool zeros;                          /* for measurements: shapes without data (bytes of 0, one
                                          * row of the embedding); no file is read */
} weights_choice;

/* The rule of a layer with this bias, or NULL. */
gpu_router_rule weights_gpu_rule(const router_rule *rule, const float *choice_bias);

gpu_activation weights_gpu_act(expert_activation act);

/* Whether there are kernels for this model's types and shapes; ERR_UNSUPPORTED names the first type
 * or shape without one. */
int weights_gpu_check(const model *m, err_ctx *err);

uint64_t weights_gpu_bytes(const model *m, const weights *w, const weights_choice *choice);

/* Borrows g; m and w are not needed afterwards. */
int weights_gpu_create(weights_gpu **out, gpu *g, const model *m, const weights *w,
                       const weights_choice *choice, pool *team, progress_fn *watch, void *ctx,
                       err_ctx *err);
void weights_gpu_free(weights_gpu *w);   /* NULL is fine */

#endif
