/* measure.h - how fast this machine's links are, with the kernels that will use them.
 *
 * A second or two: the CPU's expert kernels on memory of the model's own shapes, the GPU's links,
 * both at the same time, what layers take beyond their bytes, the drive that has the file. Figures
 * for plans (tiers/plan.h). */
#ifndef ENGINE_PLAN_MEASURE_H
#define ENGINE_PLAN_MEASURE_H

#include "engine/host/ops.h"
#include "engine/models/rope.h"
#include "tiers/speeds.h"

struct gpu;

enum { MEASURE_PARTIAL = 1 };

/* All of it borrowed. */
typedef struct measure_parts {
    const model *m;
    const weights *w;
    const rope_tables *rope;
    const ops *o;
    struct gpu *g;                       /* or NULL */
} measure_parts;

/* Takes at most room bytes of RAM meanwhile (of large ones a quarter, and 4 GB), unless twice the
 * experts of a token or READER_DEPTH reads are more: less cannot be measured. 0, ERR_STOPPED, or
 * MEASURE_PARTIAL: some figure could not be measured this time, for lack of memory or because
 * page-locking was refused. It is left 0 (what speeds_assume makes of that will do), or is that of
 * an idle machine for a busy one; such figures are good for one run, not for keeping. A model that
 * is no file has no drive, and lacks nothing. */
int measure_speeds(speeds *out, const measure_parts *p, uint64_t room, keep_going_fn *watch,
                   void *ctx, err_ctx *err);

#endif
