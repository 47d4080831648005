/* pass.h - a batch of tokens on its way through the layers, and what an architecture does with it.
 *
 * Internal to forward_tiered.c, engine.c and models/. */
#ifndef ENGINE_PASS_H
#define ENGINE_PASS_H

#include "engine/lane.h"
#include "engine/rope.h"
#include "engine/state.h"
#include "engine/workspace.h"

/* Rotation of full [0] and windowed [1] layers, prepared once. */
typedef struct pass_rope {
    int n_table;                         /* 1: both rotate alike, and [0] serves both */
    double *freq[2];                     /* [rope_dim / 2] */
    double magnitude[2];
} pass_rope;

typedef struct pass {
    const model *m;
    const weights *w;
    const ops *o;
    const pass_rope *rope;
    state *st;
    workspace *ws;
    lane *cold;                          /* experts that are not in VRAM: here, all of them */
    const int32_t *ids;                  /* [n] */
    int n;                               /* tokens, 1 .. ws->chunk */
    int pos;                             /* position of the first */
} pass;

/* An architecture's part of a layer. mix reads ws->h, the normed residual, and leaves what is to be
 * added to the residual in ws->y; it may overwrite h. */
typedef struct recipe {
    void (*mix)(pass *p, int layer);
    lane_activation act;
} recipe;

extern const recipe qwen3next_recipe, gptoss_recipe;

/* ---- steps that both architectures share ---- */

/* Rotates n_head heads of each token of x [n, n_head * head_dim] (heads lie stride apart). */
void pass_rotate(const pass *p, float *x, int n_head, size_t stride, bool windowed);

/* Stores ws->k and ws->v, then attends: ws->q [n, heads] -> ws->heads. */
void pass_attend(pass *p, int layer, const float *sinks);

#endif
