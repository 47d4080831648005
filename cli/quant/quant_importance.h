/* quant_importance.h - how much each column of a matrix matters: llama.cpp's importance matrix, in
 * its GGUF form (llama-imatrix -o FILE.gguf).
 *
 * For a matrix NAME the file has NAME.in_sum2, F32 [n_slab, cols], the sums of squares of what the
 * column was multiplied by, and NAME.counts, F32 [n_slab], over how many tokens. Experts are slabs.
 * Everything in it is checked when it is opened, whether it is used or not. */
#ifndef CLI_QUANT_QUANT_IMPORTANCE_H
#define CLI_QUANT_QUANT_IMPORTANCE_H

#include "loader/gguf.h"

typedef struct quant_importance quant_importance;

/* Messages do not name the file. */
int quant_importance_open(quant_importance **out, const char *path, err_ctx *err);
void quant_importance_close(quant_importance *q);        /* NULL is fine */

/* Whether it knows the matrix t, of slabs: 1, 0, or < 0 if what it says has another shape. */
int quant_importance_knows(const quant_importance *q, const tensor *t, err_ctx *err);

/* The importance of t's columns in a slab, with a mean of 1. False, and dst is left alone, if it
 * says nothing about them: no such entry, or an expert that no token chose. The file knows t with
 * its shape, or not at all. */
bool quant_importance_row(float *dst, const quant_importance *q, const tensor *t, uint64_t slab);

#endif
