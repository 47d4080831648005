/* repack_head.h - a copy of the output matrix in the order that the kernels read fastest.
 *
 * The output matrix is read whole for every token that is generated, and in small models it is most
 * of what is read. Where the kernels have an order of their own for its type, a copy in that order
 * pays for itself within a few dozen tokens. The file's own matrix still serves the logits of many
 * tokens at a time. */
#ifndef ENGINE_HOST_REPACK_HEAD_H
#define ENGINE_HOST_REPACK_HEAD_H

#include "engine/host/ops.h"

/* Bytes of the copy; 0 if there is nothing to gain. */
uint64_t repack_head_bytes(const matrix *m, const kernel_set *k);

/* Makes it, and enters it in *m. Free it with repack_head_free. */
int repack_head(matrix *m, const ops *o, err_ctx *err);
void repack_head_free(matrix *m);

#endif
