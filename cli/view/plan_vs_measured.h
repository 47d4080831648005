/* plan_vs_measured.h - whether a plan kept its promise: the speed of the first answer's tokens
 * beside the one expected, and the likely reason if it is lower.
 *
 * The comparison is a pure function of the plan and of what was seen. Nothing here prints. */
#ifndef CLI_VIEW_PLAN_VS_MEASURED_H
#define CLI_VIEW_PLAN_VS_MEASURED_H

#include "engine/engine_stats.h"
#include "engine/gpu/expert_server.h"
#include "moe/expert_store.h"
#include "tiers/plan.h"

/* What was seen of some tokens that were drawn one at a time. */
typedef struct plan_seen {
    int tokens;
    double seconds;                      /* all of them */
    expert_server_stats host;            /* zeros if all experts are in one place */
    store_stats store;                   /* zeros if nothing is read from the drive */
} plan_seen;

/* "38.1 tok/s where 52.0 were expected: the CPU read experts at 61.0 GB/s instead of 90.0 (...)" if
 * they came at less than three quarters of the expected speed; with faster_too also a line about
 * more than five quarters. Else "". PLAN_VS_MEASURED_CAP is enough. Returns dst. */
enum { PLAN_VS_MEASURED_CAP = 400 };
const char *plan_vs_measured_line(char *dst, size_t cap, const plan *p, const plan_seen *seen,
                                  bool faster_too);

/* Takes off those of the counts above that a line is made of, as they were before. */
void plan_seen_less(plan_seen *seen, const plan_seen *before);

/* Whether a plan puts something anywhere but in RAM: worth a line when it takes effect. */
bool plan_vs_measured_has_tiers(const plan *p);

/* ---- watching an answer ---- */

/* The line is made when this many tokens of the answer were drawn. Those before PLAN_WATCH_FROM do
 * not count: a GPU records its kernels, the first experts come from the drive. */
enum { PLAN_WATCH_FROM = 8, PLAN_WATCH_TOKENS = 64 };

typedef struct plan_watch {
    const plan *p;                       /* NULL: nothing is compared */
    session *s;
    bool faster_too;
    int n_token;                         /* that were about to be drawn */
    uint64_t from_ns, away_ns;
    plan_seen before;                    /* counts when the clock started */
    char line[PLAN_VS_MEASURED_CAP];     /* "" until there is something to say */
} plan_watch;

/* Borrows both. measured: the plan was made with this machine's speeds; if not, or without tiers,
 * nothing is compared. */
void plan_watch_begin(plan_watch *w, const plan *p, bool measured, session *s, bool faster_too);
void plan_watch_token(plan_watch *w);    /* before each token */
void plan_watch_away(plan_watch *w, uint64_t ns);        /* time spent on a reader, not the
                                                          * engine */

#endif
