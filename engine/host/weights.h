/* weights.h - a model's tensors in the form that the CPU's operations read.
 *
 * Matrices are views into the mapped file. Small vectors (norms, biases, sinks, gates) are decoded
 * to F32 once, into one block. weights_create hides differences between generations of files in how
 * rows are packed together. Immutable after creation. */
#ifndef ENGINE_HOST_WEIGHTS_H
#define ENGINE_HOST_WEIGHTS_H

#include "engine/models/model.h"

/* y = scale * (W x) + bias */
typedef struct matrix {
    quant_type type;
    int rows, cols;
    const uint8_t *data;                 /* NULL: absent */
    const uint8_t *repacked;             /* in the kernels' own order (repack_head.h), or NULL */
    size_t repacked_bytes;
    uint64_t row_bytes;
    float scale;
    const void *bias;                    /* F32 [rows] at any alignment, or NULL */
} matrix;

typedef struct layer_weights {
    const float *attn_norm, *post_attn_norm;     /* [n_embd], all of these */
    const float *router_norm, *experts_norm;     /* post_attn_norm if the file has none */
    const float *mix_out_norm;                   /* or NULL */
    const float *experts_out_norm, *shared_out_norm, *ffn_out_norm;      /* all three, or NULL */
    float out_scale;                             /* of the residual after the layer */
    struct {
        matrix q, k, v, out;             /* also where the file has q, k, v in one tensor */
        const float *q_norm, *k_norm;    /* [head_dim], or [heads * head_dim] with the family's
                                          * attn_norm_whole; or NULL */
        const float *sinks;              /* [n_head], or NULL */
    } attn;
    struct {
        matrix qkv, gate;                /* absent if `in` is present */
        matrix in;                       /* legacy: rows of q, k, v, z grouped by key head */
        matrix ba, out;
        matrix beta, alpha;              /* instead of ba */
        const float *conv;               /* [channels, taps] */
        const float *dt_bias, *a;        /* [n_v_head] */
        const float *norm;               /* [head_dim] */
    } delta;
    matrix router;
    const float *choice_bias;            /* [n_expert], or NULL */
    const expert_bank *experts;
    matrix shared_gate, shared_up, shared_down;  /* shared expert or dense network; or absent */
    matrix shared_gate_inp;              /* one row; absent: the shared expert has weight 1 */
} layer_weights;

/* What a next-token block has besides its layer, layers[n_layer]. */
typedef struct mtp_matrices {
    matrix eh_proj;
    matrix embed, head;                  /* data NULL: those of the model */
    const float *enorm, *hnorm;
    const float *head_norm;              /* the model's out_norm if the file has none */
} mtp_matrices;

typedef struct weights {
    matrix embed, head;
    bool embed_by_row;                   /* rows read from the mapping, whose pages are dropped now
                                          * and then (weights_forget_rows) */
    const float *out_norm;
    layer_weights *layers;               /* [hparams_layers] */
    mtp_matrices mtp;                    /* absent unless the model uses a next-token block */
    float *small;                        /* all decoded vectors */
} weights;

int weights_create(weights **out, const model *m, err_ctx *err);         /* borrows m */
void weights_free(weights *w);

/* Drops the embedding table's pages from memory, about every 256 tokens. The caller has read the
 * rows of n tokens from position pos on. No-op for a table that is also the output matrix. */
void weights_forget_rows(const weights *w, int pos, int n);

/* Most bytes of the table in memory with chunks of this many tokens. */
uint64_t weights_embed_bytes(const model *m, int chunk);

/* One slab of one expert. */
matrix expert_matrix(const expert_bank *b, expert_slab s, int index);

#endif
