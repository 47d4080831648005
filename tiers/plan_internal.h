/* plan_internal.h - between plan.c, which places bytes, and plan_speed.c, which predicts speeds. */
#ifndef TIERS_PLAN_INTERNAL_H
#define TIERS_PLAN_INTERNAL_H

#include "tiers/plan.h"

/* Inputs and budgets of all attempts. */
typedef struct planner {
    const plan_model *model;
    const plan_session *s;
    const plan_wish *w;
    speeds rate;                         /* with assumptions for unmeasured figures */
    uint64_t vram, ram;                  /* budgets, without the program */
    uint64_t program;
    uint64_t ram_most;                   /* the budget without a limit */
    uint64_t experts;                    /* bytes of all experts */
    uint64_t one, down;                  /* bytes of the largest expert and down slab */
} planner;

/* Bytes of experts outside VRAM. */
uint64_t plan_cold_bytes(const plan *p, const planner *j);

void plan_fill_fetch(plan *p, const planner *j);         /* fetch_down and fetch_all */
void plan_choose_strategies(plan *p, const planner *j);  /* stream_from and split_from */
void plan_predict(plan *p, const planner *j);            /* the expectation */

#endif
