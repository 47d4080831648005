/* quant_convert.h - the new bytes of a matrix, and their error against the old ones.
 *
 * Memory is a few rows for each thread and a slice of the output, whatever the model's size. Bytes
 * and figures do not depend on the number of threads. */
#ifndef CLI_QUANT_QUANT_CONVERT_H
#define CLI_QUANT_QUANT_CONVERT_H

#include "cli/quant/quant_importance.h"
#include "cli/quant/quant_plan.h"
#include "tiers/pool.h"

typedef struct quant_convert quant_convert;

/* Sums of squares; [1] is weighted by importance, and equals [0] without an importance file. */
typedef struct quant_error {
    double diff[2], norm[2];
} quant_error;
double quant_error_relative(const quant_error *e, bool weighted);        /* root mean square; 0 if
                                                                          * all weights are zero */
void quant_error_add(quant_error *to, const quant_error *e);

/* Buffers for every matrix of the plan that is rewritten. importance may be NULL. Borrows all. */
int quant_convert_create(quant_convert **out, const quant_plan *p,
                         const quant_importance *importance, pool *team, err_ctx *err);
void quant_convert_free(quant_convert *c);               /* NULL is fine */

/* Receives the new bytes in order, slice by slice, and the number of old bytes they replace. */
typedef int quant_convert_fn(void *ctx, const void *data, size_t bytes, uint64_t old_bytes,
                             err_ctx *err);

/* Converts a matrix. If the item has a new companion, scales, [slabs], receives its values. A NaN,
 * an infinity or a value too large for the type is an error that names tensor, row and column. */
int quant_convert_run(quant_convert *c, const quant_item *it, quant_error *error, float *scales,
                      quant_convert_fn *put, void *ctx, err_ctx *err);

#endif
