/* repack_head.h - a copy of the output matrix in the order that the kernels read fastest.
 *
 * Every generated token reads the whole output matrix; in small models that is most of the bytes.
 * If the kernels have an order of their own for its type, a copy in that order pays for itself
 * within a few dozen tokens. Logits of many tokens at a time still use the file's matrix. One
 * thread at a time, the owner of the team. */
#ifndef ENGINE_HOST_REPACK_HEAD_H
#define ENGINE_HOST_REPACK_HEAD_H

#include "engine/host/ops.h"

/* Bytes of the copy; 0 if the kernels have no order of their own. */
uint64_t repack_head_bytes(const matrix *m, const kernel_set *k);

/* Makes the copy and stores its address in *m. Free it with repack_head_free. */
int repack_head(matrix *m, const ops *o, err_ctx *err);
void repack_head_free(matrix *m);

#endif
