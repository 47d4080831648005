/* plan_view.h - prints a plan as tables, as one line, or as JSON. */
#ifndef CLI_VIEW_PLAN_VIEW_H
#define CLI_VIEW_PLAN_VIEW_H

#include <jansson.h>

#include "tiers/plan.h"

typedef struct plan_view {
    const plan *p;
    const plan_model *model;
    bool measured;                       /* the speeds are this machine's, not assumed ones */
    int64_t date;                        /* of the measurement; 0: unknown */
    const char *gemm;                    /* kernels for prompts on the GPU; NULL or "": not known,
                                          * or no GPU */
} plan_view;

/* Tables on stdout: bytes of each tier, and the expected speed. */
void plan_view_print(const plan_view *v);

/* "VRAM 7.5 GB with 11 of 36 layers' experts, RAM 42.5 GB, drive 0 B; 38.6 tok/s expected, bound by
 * CPU memory". PLAN_LINE_CAP is enough. Returns dst. */
enum { PLAN_LINE_CAP = 320 };
const char *plan_view_line(char *dst, size_t cap, const plan_view *v);

/* Both return NULL without memory. */
json_t *plan_view_json(const plan_view *v);
json_t *plan_view_speeds_json(const speeds *s);

#endif
