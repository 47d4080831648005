/* tensor.h - a view of one tensor in a mapped GGUF file. Owns nothing.
 *
 * Shapes are [rows, cols], row-major, cols contiguous; stacked matrices (experts) add slabs in
 * front: [slabs, rows, cols]. GGUF stores dimensions in reverse order; tensor_set_shape converts
 * them. */
#ifndef LOADER_TENSOR_H
#define LOADER_TENSOR_H

#include "loader/base.h"
#include "loader/quant.h"

enum { TENSOR_MAX_DIMS = 4, TENSOR_MAX_NAME = 63 };

typedef struct tensor {
    str_view name;                       /* in the mapping */
    quant_type type;
    int n_dims;
    uint64_t cols, rows, slabs;          /* ne[0], ne[1], ne[2] * ne[3]; missing ones are 1 */
    uint64_t outer;                      /* ne[3]; 1 in all weights of supported models */
    uint64_t row_bytes, slab_bytes;      /* of one row; of one [rows, cols] matrix */
    uint64_t bytes, elems;               /* of all slabs */
    int part;                            /* index of the file it is in: 0 unless split */
    uint64_t offset;                     /* of the first byte, counted from the start of that
                                          * file */
    const uint8_t *data;                 /* the same byte in the mapping; no alignment promised */
} tensor;

/* Sets type, n_dims, shape and sizes from a file's numbers; ne[0] is the contiguous dimension.
 * t->name must be set: messages contain it. */
int tensor_set_shape(tensor *t, uint32_t type, const uint64_t *ne, uint32_t n_dims, err_ctx *err);

/* Returns the first byte of row r of slab s; both must be in range. */
const uint8_t *tensor_row(const tensor *t, uint64_t s, uint64_t r);

/* Writes "[2048, 512, 512]", contiguous dimension first as in GGUF tools. Returns dst. */
const char *tensor_shape_text(char *dst, size_t cap, const tensor *t);

#endif
