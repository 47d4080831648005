/* engine_internal.h - the parts of an engine, for engine/ alone. engine.c sets them before the
 * first session; what computes a batch reads them. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include "cuda/gpu_measure.h"
#include "engine/engine.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/host/router_ahead.h"
#include "engine/models/rope.h"
#include "engine/session/state.h"
#include "moe/postfetch.h"
#include "moe/usage_profile.h"
#include "moe/vram_cache.h"
#include "tiers/plan.h"

/* A GPU with the dense part of the first layers, up to w->n_layer - 1. */
typedef struct engine_device {
    gpu *g;
    gpu_info info;
    mem_space *vram;
    weights_gpu *w;
} engine_device;

enum { ENGINE_DEVICES = 1 };

struct engine {
    const model *m;                      /* borrowed */
    engine_options opt;
    weights *w;
    rope_tables rope;
    pool *team;
    ops ops_table;
    engine_device devices[ENGINE_DEVICES];
    int n_device;                        /* 0: everything is on the CPU */
    /* by a plan; else NULL */
    plan *p;
    postfetch_options post;
    expert_store *store;
    vram_cache *cache;                   /* NULL: the experts in VRAM never change */
    usage_profile *usage;                /* what tokens chose; NULL without memory for it */
    router_ahead *ahead;                 /* if experts are read from a drive; or NULL */
};

/* Whether the output matrix is in VRAM: then the GPU computes all layers. */
static inline bool engine_head_on_gpu(const engine *e)
{
    return e->n_device > 0 && e->devices[e->n_device - 1].w->head.data;
}

/* ---- session.c, for prefix_cache.c ---- */

state *session_state(session *s);
pool *session_team(const session *s);
/* As for files, but states of other arithmetic (GPU, exact) have other tags. */
state_tag session_tag(const session *s);
/* ERR_IO if an earlier failure lost the state. */
int session_check_state(const session *s, err_ctx *err);
/* The state was replaced by that of these tokens. */
void session_replaced(session *s, const int32_t *ids, int n);

#endif
