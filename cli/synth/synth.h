/* synth.h - writes a synthetic model file: real shapes, random weights, any size, fast.
 *
 * What is in the file is synth_plan.h's business; this puts it on a disk. Written to PATH.part and
 * renamed at the end, so PATH is either whole or as it was; on any failure PATH.part is removed. */
#ifndef CLI_SYNTH_SYNTH_H
#define CLI_SYNTH_SYNTH_H

#include "cli/synth/synth_plan.h"

typedef struct synth_report {
    uint64_t bytes, ns;
    int n_tensor;
} synth_report;

/* n_thread 0: as many as OpenMP would take; the file does not depend on it. fn, or NULL, is called
 * by one thread at a time. Refuses a PATH that exists and is not a regular file, and a disk without
 * room, before writing anything. Messages do not name PATH. */
int synth_write(synth_report *out, const char *path, const synth_options *o, int n_thread,
                progress_fn *fn, void *ctx, err_ctx *err);

#endif
