/* synth.h - writes a synthetic model file: real shapes, random weights. synth_plan.h defines its
 * contents. The file is written as PATH.part and renamed when it is complete; a failure removes
 * PATH.part. */
#ifndef CLI_SYNTH_SYNTH_H
#define CLI_SYNTH_SYNTH_H

#include "cli/synth/synth_plan.h"

typedef struct synth_report {
    uint64_t bytes, ns;
    int n_tensor;
} synth_report;

/* n_thread 0: OpenMP's default; the bytes do not depend on it. One thread at a time calls fn, which
 * may be NULL. Refuses a PATH that exists, and a disk with too little space, before it writes.
 * Messages do not name PATH. */
int synth_write(synth_report *out, const char *path, const synth_options *o, int n_thread,
                progress_fn *fn, void *ctx, err_ctx *err);

#endif
