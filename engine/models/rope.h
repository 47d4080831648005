/* rope.h - rotary positions: frequencies in double, tables in F32. The kernels in struct loops
 * rotate pairs (i, i + dim/2). */
#ifndef ENGINE_MODELS_ROPE_H
#define ENGINE_MODELS_ROPE_H

#include "engine/models/model.h"

typedef struct rope_spec {
    int dim;                             /* rotated dimensions of a head, even */
    double base, factor;
    rope_scaling scaling;
    int ctx_orig;
    double attn_factor;
    bool rounded;                        /* YaRN correction range rounded outwards to whole pairs */
} rope_spec;

/* Returns the model's spec; windowed selects rope_base_window. */
rope_spec rope_spec_of(const model_hparams *hp, bool windowed, bool rounded);

/* Writes freq[dim / 2] and the factor of both sine and cosine: attn_factor, with YaRN times
 * 1 + ln(factor) / 10. */
void rope_frequencies(double *freq, double *magnitude, const rope_spec *s);

/* Writes tables [n, dim / 2] of cosines and sines for positions pos .. pos+n-1. */
void rope_table(float *cosine, float *sine, const double *freq, double magnitude, int dim,
                int pos, int n);

/* Frequencies of a model's full [0] and windowed [1] layers. */
typedef struct rope_tables {
    int n_table;                         /* 1: both kinds of layers use [0] */
    int dim[2];
    double *freq[2];                     /* [dim / 2] */
    double magnitude[2];
} rope_tables;

/* rounded: rounds YaRN's range even if the family does not. */
int rope_tables_init(rope_tables *t, const model *m, bool rounded, err_ctx *err);
void rope_tables_release(rope_tables *t);        /* accepts a zeroed or half-built one */

#endif
