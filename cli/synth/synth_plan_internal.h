/* synth_plan_internal.h - a plan that is being made; for synth_plan.c, synth_add.c, synth_drift.c.
 *
 * Tensors are listed one after the other; the first failure stays in rc, and what is listed or
 * written after it goes to a spare part. */
#ifndef CLI_SYNTH_SYNTH_PLAN_INTERNAL_H
#define CLI_SYNTH_SYNTH_PLAN_INTERNAL_H

#include "cli/synth/synth_family.h"
#include "cli/synth/synth_part.h"

/* DIR_STD: of the 256 channels that are alike in all tokens; large against what layers add there.
 * With drift only the first layer reads them: less will do, and the likeliest token depends less on
 * what is always the same. */
enum { DIR_COLS = 256, TABLES_MAX = 8 };
#define NOTHING 1e-4                     /* standard deviation of what is switched off */
#define DIR_STD 1.5
#define DIR_STD_DRIFT 0.75

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
    int n_topic;                         /* of a router: 1 without drift */
    float *logits;                       /* [n_layer, n_topic, n_expert]: b, as a router needs it */
    float dir[DIR_COLS];                 /* of all embeddings, as the first layer gets them */
    float *tables[TABLES_MAX];           /* contents of small tensors */
    int n_table;
    struct synth_drift *drift;           /* NULL: none */
    synth_part spare;                    /* takes what callers write after a failure */
    int rc;                              /* first failure while tensors were listed; *err tells */
    err_ctx *err;
};

/* ---- synth_plan.c ---- */

/* Lists a tensor of layer l; l < 0: not part of a layer. The caller writes its recipe into the
 * result, which is good until the next is listed. */
synth_part *synth_plan_list(synth_plan *p, int l, const char *name, quant_type type, int n_dims,
                            int n0, int n1, int n2);

/* Room for n floats that a recipe may point to; NULL after a failure, which is then in rc. */
float *synth_plan_table(synth_plan *p, int n);

/* Blocks of that standard deviation; NULL after a failure, which is then in rc. */
const synth_blocks *synth_plan_maker(synth_plan *p, quant_type type, double sigma);

/* A listed tensor, good until the next is listed. */
synth_part *synth_plan_part(synth_plan *p, int l, const char *name);

/* Another standard deviation in a rectangle of t. The caller may give it a stream of its own. */
synth_patch *synth_plan_patch(synth_plan *p, synth_part *t, int row, int n_row, int col, int n_col,
                              double sigma);

/* ---- synth_drift.c: nothing without drift ---- */

int synth_drift_check(const synth_options *o, err_ctx *err);
void synth_drift_release(synth_plan *p);
void synth_drift_embedding(synth_plan *p, synth_part *t);        /* the first of all */
void synth_drift_latches(synth_plan *p, int l);          /* the mixer of layer l has been listed */
bool synth_drift_router(synth_plan *p, int l);   /* the router has; true: it now reads a latch */

#endif
