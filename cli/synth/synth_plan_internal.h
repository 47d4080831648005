/* synth_plan_internal.h - an unfinished plan; for synth_plan.c, synth_add.c and families.
 *
 * Tensors are added one after the other. rc keeps the first failure; later calls then write to
 * dummy_part, so that callers need no checks. */
#ifndef CLI_SYNTH_SYNTH_PLAN_INTERNAL_H
#define CLI_SYNTH_SYNTH_PLAN_INTERNAL_H

#include "cli/synth/synth_family.h"
#include "cli/synth/synth_part.h"

/* With skew, the first DIR_COLS channels are equal in all embeddings. Their standard deviation is
 * large compared with the residual's growth. */
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
    float *logits;                       /* [n_layer, n_expert]: b of synth_add.c */
    float dir[DIR_COLS];                 /* the common channels, decoded */
    float *tables[TABLES_MAX];           /* contents of small tensors */
    int n_table;
    synth_part dummy_part;               /* callers write here after a failure */
    int rc;                              /* first failure, explained by *err */
    err_ctx *err;
};

#endif
