/* layer_memory.h - what a session remembers of a layer: the one description that the KV store, the
 * recurrent state, files, snapshots and plans go by. */
#ifndef ENGINE_SESSION_LAYER_MEMORY_H
#define ENGINE_SESSION_LAYER_MEMORY_H

#include "engine/models/model.h"

typedef enum memory_kind {
    MEMORY_NONE,                         /* the layer reads what an earlier one keeps */
    MEMORY_ROWS,                         /* keys and values of every position */
    MEMORY_WINDOW,                       /* the same, but only the last positions are read */
    MEMORY_RECURRENT                     /* a summary of all tokens, of one size */
} memory_kind;

typedef struct layer_memory {
    memory_kind kind;
    int n_head, head_dim;                /* of a position's keys, and of its values */
    int window;                          /* positions that a token reads, its own included; 0:
                                          * all */
    uint64_t conv, state;                /* MEMORY_RECURRENT: floats of the convolution's window,
                                          * and of the state; UINT64_MAX: too much */
} layer_memory;

static inline layer_memory layer_memory_of(const model *m, int l)
{
    const model_hparams *hp = &m->hp;
    const model_layer *y = &m->layers[l];
    const uint64_t dim = (uint64_t)hp->ssm_head_dim, n_v = (uint64_t)hp->ssm_n_v_head;
    layer_memory a = { .kind = MEMORY_RECURRENT };
    if (y->mixer == MIX_DELTANET) {
        if (!size_mul(&a.conv, hparams_channels(hp), (uint64_t)(hp->ssm_conv - 1)) ||
            !size_mul(&a.state, dim * dim, n_v))
            a.conv = a.state = UINT64_MAX;
        return a;
    }
    const attn_shape heads = layer_attn(hp, y);
    return (layer_memory){
        .kind = y->kv_back > 0 ? MEMORY_NONE : y->window > 0 ? MEMORY_WINDOW : MEMORY_ROWS,
        .n_head = heads.n_head_kv, .head_dim = heads.head_dim, .window = y->window,
    };
}

/* Whether it keeps keys and values. */
static inline bool layer_has_rows(const layer_memory *a)
{
    return a->kind == MEMORY_ROWS || a->kind == MEMORY_WINDOW;
}

#endif
