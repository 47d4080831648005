/* plan_vs_measured.h - compares the speed of an answer's first tokens with the plan's, and names
 * the likeliest reason if it is lower.
 *
 * The comparison is a pure function of the plan and of counts. Nothing here prints. */
#ifndef CLI_VIEW_PLAN_VS_MEASURED_H
#define CLI_VIEW_PLAN_VS_MEASURED_H

#include "engine/session/runner.h"
#include "engine/gpu/expert_server.h"
#include "moe/expert_store.h"
#include "tiers/plan.h"

/* Counts of tokens that were drawn one at a time. */
typedef struct plan_counts {
    int tokens;
    double seconds;                      /* for all tokens */
    expert_server_stats host;            /* zeros if one tier has all experts */
    store_stats store;                   /* zeros if nothing is read from the drive */
} plan_counts;

/* "slower than expected: 38.1 instead of 52.0 tok/s, because the CPU read weights at 61.0 GB/s
 * instead of 90.0 (...)" below three quarters of the expected speed, else "". PLAN_VS_MEASURED_CAP
 * bytes are enough. Returns dst. */
enum { PLAN_VS_MEASURED_CAP = 400 };
const char *plan_vs_measured_line(char *dst, size_t cap, const plan *p, const plan_counts *counts);

/* Subtracts the counts that plan_vs_measured_line uses. */
void plan_counts_subtract(plan_counts *counts, const plan_counts *before);

/* Whether a plan uses VRAM or the drive, not RAM alone. */
bool plan_vs_measured_has_tiers(const plan *p);

/* ---- watching an answer ---- */

/* The line is made after this many tokens. Tokens before PLAN_WATCH_FROM do not count, because a
 * GPU records its kernels and the first experts come from the drive. */
enum { PLAN_WATCH_FROM = 8, PLAN_WATCH_TOKENS = 64 };

typedef struct plan_watch {
    const plan *p;                       /* NULL: nothing is compared */
    session *s;
    int n_token;                         /* calls of plan_watch_token */
    uint64_t from_ns, output_wait_ns;           /* start of the clock; time that output waited */
    plan_counts before;                    /* counts when the clock started */
    char line[PLAN_VS_MEASURED_CAP];     /* "" until a line is made */
} plan_watch;

/* Borrows p and s. measured: the plan uses measured speeds. Compares nothing otherwise, nor for a
 * plan without tiers. */
void plan_watch_begin(plan_watch *w, const plan *p, bool measured, session *s);
void plan_watch_token(plan_watch *w);    /* before each token */
/* Excludes time in which output waited for its reader. */
void plan_watch_output_wait(plan_watch *w, uint64_t ns);

#endif
