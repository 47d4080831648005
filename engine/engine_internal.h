/* engine_internal.h - what engine.c and session.c share; for them alone. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/forward_tiered.h"

struct engine {
    const model *m;                      /* borrowed */
    engine_options opt;
    weights *w;
    rope_tables rope;
    pool *team;
    ops verbs;
    /* on a GPU; else NULL */
    gpu *device;
    gpu_info device_info;
    mem_space *vram;
    weights_gpu *on_gpu;
    /* by a plan; else NULL */
    plan *p;
    postfetch_options post;
    expert_store *store;
    vram_places *places;                 /* of experts that make room for others; or NULL */
    expert_profile *seen;                /* what tokens chose; NULL without memory for it */
    router_ahead *ahead;                 /* where experts come from a drive; or NULL */
};

#endif
