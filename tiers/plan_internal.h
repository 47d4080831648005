/* plan_internal.h - what plan.c (what goes where) and plan_speed.c (how fast that is) share, and
 * nobody else uses. */
#ifndef TIERS_PLAN_INTERNAL_H
#define TIERS_PLAN_INTERNAL_H

#include "tiers/plan.h"

/* What all attempts have in common. */
typedef struct planner {
    const plan_model *what;
    const plan_session *s;
    const plan_wish *w;
    speeds rate;                         /* no zeros but those that mean something */
    uint64_t vram, ram;                  /* that may be taken, beside the program */
    uint64_t program;
    uint64_t ram_there;                  /* that could be, without a wish */
    uint64_t experts;                    /* all of them */
    uint64_t one, down;                  /* largest expert, largest down slab */
} planner;

/* Bytes of experts that are not in VRAM. */
static inline uint64_t plan_cold_bytes(const plan *p, const planner *j)
{
    return j->experts - p->vram_experts;
}

void plan_fill_fetch(plan *p, const planner *j);         /* fetch_down and fetch_all */
void plan_choose_ways(plan *p, const planner *j);        /* stream_from and split_from */
void plan_predict(plan *p, const planner *j);            /* the expectation */

#endif
