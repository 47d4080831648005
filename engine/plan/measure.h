/* measure.h - measures the speeds that a plan (tiers/plan.h) needs, with the kernels that will run.
 *
 * One or two seconds: the CPU's expert kernels on memory of the model's shapes, the GPU's links,
 * both at the same time, the time of a layer beyond its weights' bytes, and the drive of the file.
 * moe-bench machine prints the same figures. */
#ifndef ENGINE_PLAN_MEASURE_H
#define ENGINE_PLAN_MEASURE_H

#include "engine/host/ops.h"
#include "engine/models/rope.h"
#include "tiers/speeds.h"

struct gpu;

enum { MEASURE_PARTIAL = 1 };
#define MEASURE_SECONDS 0.5              /* for each figure of the CPU and half of it for the drive:
                                          * what plans use */

/* All are borrowed. */
typedef struct measure_parts {
    const model *m;
    const weights *w;
    const rope_tables *rope;
    const ops *o;
    struct gpu *g;                       /* or NULL */
} measure_parts;

/* Uses at most ram_bytes of RAM, or the size of the experts of two tokens and READER_DEPTH reads if
 * that is more; at most a quarter of it, and 4 GB, for experts. Returns 0, ERR_STOPPED if watch
 * returned false, or MEASURE_PARTIAL: a figure could not be measured, for lack of memory or because
 * page-locking was refused. That figure is 0 (speeds_assume fills it in), or the idle machine's for
 * a busy one; such speeds serve one run and are not saved. A model in memory has no drive: its
 * figure is 0, and the result is not partial. */
int measure_speeds(speeds *out, const measure_parts *p, uint64_t ram_bytes, double seconds,
                   keep_going_fn *watch, void *ctx, err_ctx *err);

#endif
