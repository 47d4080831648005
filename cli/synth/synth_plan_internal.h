/* synth_plan_internal.h - a plan that is being made; for synth_plan.c, synth_add.c and families.
 *
 * Tensors are listed one after the other; the first failure stays in rc, and what is listed or
 * written after it goes to a spare part. */
#ifndef CLI_SYNTH_SYNTH_PLAN_INTERNAL_H
#define CLI_SYNTH_SYNTH_PLAN_INTERNAL_H

#include "cli/synth/synth_family.h"
#include "cli/synth/synth_part.h"

/* The channels that are alike in all tokens under skew, and their standard deviation: large against
 * what layers add there. */
enum { DIR_COLS = 256, TABLES_MAX = 8 };
#define DIR_STD 1.5

struct synth_plan {
    synth_options o;
    gguf_writer *w;
    const uint8_t *head;                 /* in w */
    size_t head_bytes;
    uint64_t bytes;
    synth_part *parts;
    int n_part, cap_part;
    synth_blocks **makers;               /* one for each type and standard deviation in use */
    int n_maker, cap_maker;
    float *logits;                       /* [n_layer, n_expert]: b, as a router needs it */
    float dir[DIR_COLS];                 /* of all embeddings, as the first layer gets them */
    float *tables[TABLES_MAX];           /* contents of small tensors */
    int n_table;
    synth_part spare;                    /* takes what callers write after a failure */
    int rc;                              /* first failure while tensors were listed; *err tells */
    err_ctx *err;
};

#endif
