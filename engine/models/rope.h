/* rope.h - rotary positions: frequencies in double, tables in F32. The rotation itself, of pairs
 * (i, i + dim/2), is in struct loops. */
#ifndef ENGINE_MODELS_ROPE_H
#define ENGINE_MODELS_ROPE_H

#include "engine/models/model.h"

typedef struct rope_spec {
    int dim;                             /* rotated dimensions of a head, even; the rest is kept */
    double base, factor;
    rope_scaling scaling;
    int ctx_orig;
    double attn_factor;
    bool rounded;                        /* YaRN correction range rounded outwards to whole pairs */
} rope_spec;

/* The model's: windowed picks rope_base_window. */
rope_spec rope_spec_of(const model_hparams *hp, bool windowed, bool rounded);

/* freq[dim / 2], and the factor that both sine and cosine are multiplied by: attn_factor, with YaRN
 * times 1 + ln(factor) / 10. */
void rope_frequencies(double *freq, double *magnitude, const rope_spec *s);

/* cos and sin tables [n, dim / 2] for positions pos .. pos+n-1, from double products. */
void rope_table(float *cosine, float *sine, const double *freq, double magnitude, int dim,
                int pos, int n);

/* Frequencies of a model's full [0] and windowed [1] layers. */
typedef struct rope_tables {
    int n_table;                         /* 1: both rotate alike, and [0] serves both */
    int dim[2];
    double *freq[2];                     /* [dim / 2] */
    double magnitude[2];
} rope_tables;

/* rounded: also where the family does not ask for it. */
int rope_tables_init(rope_tables *t, const model *m, bool rounded, err_ctx *err);
void rope_tables_release(rope_tables *t);        /* accepts a zeroed or half-built one */

#endif
