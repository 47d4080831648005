/* batch.h - a batch of tokens on its way through the layers, and what an architecture does with it.
 *
 * Internal to forward_tiered.c, engine.c and models/. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "engine/host/experts_cpu.h"
#include "engine/models/rope.h"
#include "engine/session/state.h"
#include "engine/host/workspace.h"

/* Rotation of full [0] and windowed [1] layers, prepared once. */
typedef struct rope_tables {
    int n_table;                         /* 1: both rotate alike, and [0] serves both */
    double *freq[2];                     /* [rope_dim / 2] */
    double magnitude[2];
} rope_tables;

typedef struct batch {
    const model *m;
    const weights *w;
    const ops *o;
    const rope_tables *rope;
    state *st;
    workspace *ws;
    experts_cpu *experts;
    const int32_t *ids;                  /* [n] */
    int n;                               /* tokens, 1 .. ws->chunk */
    int pos;                             /* position of the first */
} batch;

/* An architecture's part of a layer. mix reads ws->h, the normed residual, and leaves what is to be
 * added to the residual in ws->y; it may overwrite h. */
typedef struct recipe {
    void (*mix)(batch *p, int layer);
    expert_activation act;
} recipe;

extern const recipe qwen3next_recipe, gptoss_recipe;

/* ---- steps that both architectures share ---- */

/* Rotates n_head heads of each token of x [n, n_head * head_dim] (heads lie stride apart). */
void batch_rotate(const batch *p, float *x, int n_head, size_t stride, bool windowed);

/* Stores ws->k and ws->v, then attends: ws->q [n, heads] -> ws->heads. */
void batch_attend(batch *p, int layer, const float *sinks);

#endif
