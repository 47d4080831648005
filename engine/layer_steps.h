/* layer_steps.h - the table of steps that computes a layer.
 *
 * There are two implementations. engine/host/host_steps.h computes on the CPU, at once.
 * engine/gpu/gpu_steps.h enqueues operations on the GPU's stream or into a recording; a second
 * table has the host's half of a recorded pass. forward_tiered.c alone decides the order of the
 * calls: begin or resume, then for each layer mix, route, one of the experts' steps and join; end
 * after the last layer of this implementation, then copy_to_host or logits. again goes back within
 * the last batch. */
#ifndef ENGINE_LAYER_STEPS_H
#define ENGINE_LAYER_STEPS_H

#include "engine/batch.h"

/* How a layer's chosen experts are computed, for one batch. */
typedef enum expert_strategy {
    EXPERTS_LOCAL,                       /* all by the processor that has the dense part */
    EXPERTS_ASKED,                       /* few tokens on the GPU, which asks the host for the cold
                                          * experts and computes the hot ones meanwhile */
    EXPERTS_BY_HOST,                     /* a short prompt on the GPU: the host computes the cold
                                          * experts and sends all vectors of a layer at once */
    EXPERTS_SPLIT,                       /* a longer prompt: cold experts with many slots pass
                                          * through VRAM, the host computes the others */
    EXPERTS_STREAMED                     /* a long prompt: all cold experts pass through VRAM */
} expert_strategy;

typedef struct layer_steps {
    void *self;

    /* Tokens to vectors: the embedding's rows, and the rotation of their positions. For the
     * next-token block: its projection of the embedding's rows and batch.hidden. */
    int (*begin)(void *self, const batch *b, err_ctx *err);
    /* Instead of begin: continues with the vectors [n, n_embd] of another implementation. */
    int (*resume)(void *self, const batch *b, const float *x, err_ctx *err);

    void (*mix)(void *self, int layer);          /* attention or DeltaNet, residual */
    void (*route)(void *self, int layer);        /* norm, router logits, top-k, weights */
    int (*experts_local)(void *self, int layer, err_ctx *err);
    int (*experts_asked)(void *self, int layer, err_ctx *err);
    int (*experts_by_host)(void *self, int layer, err_ctx *err);
    int (*experts_split)(void *self, int layer, err_ctx *err);
    int (*experts_streamed)(void *self, int layer, err_ctx *err);
    void (*join)(void *self, int layer);         /* sum in the router's order, residual */

    int (*end)(void *self, err_ctx *err);
    /* The vectors of the batch in RAM, good until its next begin. */
    int (*copy_to_host)(void *self, const float **x, err_ctx *err);
    /* The recurrent state after the first row->n tokens of a row of the batch that kept these
     * inputs, for layers first .. end - 1: from that of row->st to row->next. */
    int (*again)(void *self, const batch_row *row, const kept_inputs *kept, int first, int end,
                 err_ctx *err);
    /* Logits [n, n_vocab] of the tokens first .. first + n - 1 of the batch. */
    int (*logits)(void *self, float *logits, int first, int n, err_ctx *err);

    /* For the next-token block. In the memory of the implementation: the vectors of the last batch
     * [n, n_embd]; a buffer of a chunk for batch.hidden; a copy of n vectors, after all steps
     * before it. */
    const float *(*vectors)(void *self);
    float *(*hidden)(void *self);
    void (*copy)(void *self, float *to, const float *from, int n);
    /* Waits for the batch. *next, unless next is NULL: the likeliest token after its last one. */
    int (*pick)(void *self, int32_t *next, err_ctx *err);
} layer_steps;

#endif
