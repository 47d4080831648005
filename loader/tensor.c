/* tensor.c - shape and size arithmetic of a tensor view.
 *
 * Only this file converts GGUF's reversed dimensions to [slabs, rows, cols] and multiplies numbers
 * from a file; every product is checked. */
#include "loader/tensor.h"

#include <inttypes.h>
#include <stdio.h>

static int check_type(const tensor *t, uint32_t type, err_ctx *err)
{
    char name[128];
    if (quant_is_storable(type)) return 0;
    return err_set(err, ERR_UNSUPPORTED, "tensor %s has unsupported type %" PRIu32 " (%s)",
                   ESC(name, t->name), type, quant_name(type));
}

int tensor_set_shape(tensor *t, uint32_t type, const uint64_t *ne, uint32_t n_dims, err_ctx *err)
{
    const quant_traits *q;
    uint64_t dim[TENSOR_MAX_DIMS] = { 1, 1, 1, 1 };
    char name[128];
    int rc;

    if (n_dims < 1 || n_dims > TENSOR_MAX_DIMS)
        return err_set(err, ERR_FORMAT,
                       "tensor %s has %" PRIu32 " dimensions (1 to %d are allowed)",
                       ESC(name, t->name), n_dims, TENSOR_MAX_DIMS);
    for (uint32_t k = 0; k < n_dims; k++) {
        if (ne[k] == 0 || ne[k] > INT64_MAX)
            return err_set(err, ERR_FORMAT, "tensor %s: dimension %" PRIu32 " is %" PRIu64,
                           ESC(name, t->name), k, ne[k]);
        dim[k] = ne[k];
    }
    if ((rc = check_type(t, type, err)) < 0) return rc;
    q = quant_traits_of(type);
    if (dim[0] % (uint64_t)q->block_elems != 0)
        return err_set(err, ERR_FORMAT,
                       "tensor %s: row of %" PRIu64 " elements is not a multiple of %d (%s)",
                       ESC(name, t->name), dim[0], q->block_elems, q->name);

    t->type = (quant_type)type;
    t->n_dims = (int)n_dims;
    t->cols = dim[0];
    t->rows = dim[1];
    t->outer = dim[3];
    if (!size_mul(&t->slabs, dim[2], dim[3]) ||
        !size_mul(&t->row_bytes, dim[0] / (uint64_t)q->block_elems, (uint64_t)q->block_bytes) ||
        !size_mul(&t->slab_bytes, t->row_bytes, t->rows) ||
        !size_mul(&t->bytes, t->slab_bytes, t->slabs) ||
        !size_mul(&t->elems, t->cols, t->rows) || !size_mul(&t->elems, t->elems, t->slabs) ||
        t->elems > INT64_MAX || t->bytes > INT64_MAX)
        return err_set(err, ERR_FORMAT, "tensor %s: size overflows", ESC(name, t->name));
    return 0;
}

const uint8_t *tensor_row(const tensor *t, uint64_t s, uint64_t r)
{
    return t->data + s * t->slab_bytes + r * t->row_bytes;
}

const char *tensor_shape_text(char *dst, size_t cap, const tensor *t)
{
    const uint64_t dim[4] = { t->cols, t->rows, t->slabs / t->outer, t->outer };
    size_t used = 0;
    for (int k = 0; k < t->n_dims && used < cap; k++)
        used += (size_t)snprintf(dst + used, cap - used, "%s%" PRIu64, k ? ", " : "[", dim[k]);
    if (used < cap) snprintf(dst + used, cap - used, "]");
    return dst;
}
