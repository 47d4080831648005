/* plan_internal.h - between plan.c, which places bytes, and plan_speed.c, which predicts speeds. */
#ifndef TIERS_PLAN_INTERNAL_H
#define TIERS_PLAN_INTERNAL_H

#include "tiers/plan.h"

/* Inputs of all candidates. */
typedef struct planner {
    const plan_machine *machine;
    const plan_model *model;
    const plan_session *s;
    const plan_wish *w;
    speeds rate;                         /* with assumptions for unmeasured figures */
    bool gpu;                            /* may be used */
    plan_pool vram, ram, drive;          /* nothing is placed yet, except the program */
    uint64_t ram_most;                   /* the budget without a limit */
    uint64_t experts;                    /* bytes of all experts */
    uint64_t frames;                     /* bytes of a frame of the cache for each layer */
    uint64_t one, down;                  /* bytes of the largest expert and down slab */
} planner;

/* Bytes of experts outside VRAM. */
uint64_t plan_cold_bytes(const plan *p, const planner *j);

/* Fills what follows from the places: post-fetch, strategies of prompts, and the expectation. */
void plan_predict(plan *p, const planner *j);

#endif
