/* quant_importance.h - llama.cpp's importance matrix in GGUF form (llama-imatrix -o FILE.gguf).
 *
 * It has an importance for each column of a matrix. For a matrix NAME the file has NAME.in_sum2,
 * F32 [n_slab, cols], the sums of squares of the inputs, and NAME.counts, F32 [n_slab], the number
 * of tokens. Experts are slabs. quant_importance_open checks all tensors, also unused ones. */
#ifndef CLI_QUANT_QUANT_IMPORTANCE_H
#define CLI_QUANT_QUANT_IMPORTANCE_H

#include "loader/gguf.h"

typedef struct quant_importance quant_importance;

/* Messages do not name the file. */
int quant_importance_open(quant_importance **out, const char *path, err_ctx *err);
void quant_importance_close(quant_importance *q);        /* NULL is fine */

/* Whether the file has an entry for the matrix t: 1, 0, or < 0 if the entry has another shape. */
int quant_importance_has(const quant_importance *q, const tensor *t, err_ctx *err);

/* The importance of t's columns in a slab, with a mean of 1. False, and dst is unchanged, without
 * an entry or for an expert that no token chose. Call only after quant_importance_has(t) >= 0. */
bool quant_importance_row(float *dst, const quant_importance *q, const tensor *t, uint64_t slab);

#endif
