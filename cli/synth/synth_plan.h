/* synth_plan.h - the contents of a synthetic model file; any range of bytes can be computed.
 *
 * A plan has the file's head, its vocabulary and a recipe for each tensor. Immutable after
 * creation: any number of threads may fill different ranges at once. */
#ifndef CLI_SYNTH_SYNTH_PLAN_H
#define CLI_SYNTH_SYNTH_PLAN_H

#include "loader/base.h"
#include "loader/quant.h"

typedef struct synth_family synth_family;        /* synth_family.h */

typedef struct synth_shape {
    const char *name;
    const synth_family *family;
    int n_layer, n_embd;
    int n_head, n_head_kv, head_dim;     /* gemma4: of windowed layers */
    int n_expert, n_used, n_ff;
    int n_vocab, first_special;          /* see synth_vocab.h */
    int n_ctx;
    double rope_base, rope_factor;       /* factor of YaRN; 0: none */
    int rope_ctx;                        /* context before YaRN */
    int rope_dim;                        /* of a head; 0: all */
    int window;                          /* gpt-oss, gemma4 */
    int interval;                        /* each interval-th layer has full attention; 0: all */
    int n_head_kv_full, head_dim_full;   /* gemma4: of layers without a window */
    int n_ff_shared;                     /* of the shared expert, or gemma4's dense network */
    int n_dense, n_ff_dense;             /* glm4moe: first layers without experts */
    int n_mtp;                           /* next-token blocks after the layers, in every file */
    int conv, n_k_head, n_v_head, ssm_dim;       /* DeltaNet */
    quant_type experts, dense, head;     /* default types */
} synth_shape;

/* The shape of that name, or NULL. */
const synth_shape *synth_shape_find(const char *name);

/* The i-th shape of all families, or NULL. */
const synth_shape *synth_shape_at(int i);

typedef struct synth_options {
    const synth_shape *shape;            /* borrowed */
    int n_layer;                         /* the first n; at most the shape's */
    quant_type experts, dense, head;
    double skew;                         /* exponent of the experts' popularity; 0: all equal */
    uint64_t seed;
} synth_options;

/* All layers, default types, no skew, seed 1. */
synth_options synth_options_of(const synth_shape *shape);

typedef struct synth_plan synth_plan;

/* ERR_UNSUPPORTED: a type's blocks do not fit the rows of a tensor; down matrices use a substitute
 * instead, as in public files. ERR_RANGE: the shape does not allow these layers or this skew. */
int synth_plan_create(synth_plan **out, const synth_options *o, err_ctx *err);
void synth_plan_free(synth_plan *p);

uint64_t synth_plan_bytes(const synth_plan *p);          /* of the file */
int synth_plan_n_tensor(const synth_plan *p);

/* Bytes offset .. offset + n - 1 of the file; zeros after its end. */
void synth_plan_fill(const synth_plan *p, uint8_t *out, uint64_t offset, size_t n);

#endif
