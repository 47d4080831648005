/* gguf_internal.h - private to gguf.c, gguf_access.c and gguf_write.c. */
#ifndef LOADER_GGUF_INTERNAL_H
#define LOADER_GGUF_INTERNAL_H

#include "loader/gguf.h"

enum { GGUF_TYPE_COUNT = GGUF_F64 + 1 };

typedef struct part {
    char *path;                          /* "" for memory */
    const uint8_t *base;
    uint64_t size;
    bool mapped;
} part;

struct gguf {
    part *parts;
    int n_part;
    uint32_t version;                    /* of part 0 */
    gguf_kv *kvs;                        /* of part 0: the others hold only split.* */
    int n_kv, cap_kv;
    int *kv_index;                       /* into kvs, sorted by key */
    tensor *tensors;
    int n_tensor, cap_tensor;
    int *tensor_index;                   /* into tensors, sorted by name */
};

/* Returns the bytes of one value of a fixed-size type, or 0 for strings and arrays. type must be
 * a known one. */
int gguf_type_bytes(gguf_type type);

/* Returns true for integers of any width, false for bool. */
bool gguf_is_integer(gguf_type type);

#endif
