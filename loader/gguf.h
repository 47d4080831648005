/* gguf.h - opens a GGUF file, or all parts of a split one, and checks every number in it.
 *
 * The file is mapped, not read: opening touches only the metadata and the tensor directory.
 * Returned strings, arrays and tensors point into the mapping or into the gguf and are valid until
 * gguf_close. After gguf_open succeeds, every string lies inside the file, every tensor lies inside
 * its part and overlaps no other, names and keys are unique, and no size overflows. Callers check
 * the meaning of the values (architecture, shapes, vocabulary). Immutable after opening: any thread
 * may read it.
 *
 * Messages do not contain the path; the caller prefixes the one that the user typed. */
#ifndef LOADER_GGUF_H
#define LOADER_GGUF_H

#include "loader/tensor.h"

/* Message for the architecture name "gptoss", which Ollama gives to gpt-oss. */
#define GGUF_OLLAMA_HINT "this is Ollama's dialect of gpt-oss, with other tensor names and " \
    "interleaved gate and up rows; get a GGUF converted by llama.cpp, e.g. from ggml-org or unsloth"

typedef struct gguf gguf;

typedef enum gguf_type {
    GGUF_U8 = 0, GGUF_I8 = 1, GGUF_U16 = 2, GGUF_I16 = 3, GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6,
    GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_U64 = 10, GGUF_I64 = 11, GGUF_F64 = 12
} gguf_type;

/* One metadata entry. Scalars have count 1. data points to the first value; for strings and arrays
 * of strings, to the first length field. */
typedef struct gguf_kv {
    str_view key;
    gguf_type type;                      /* of the value, or of the elements if is_array */
    bool is_array;
    uint64_t count;
    const uint8_t *data;
} gguf_kv;

/* Opens path and, if it is the first part of a split model, its siblings. Returns 0, or < 0 with
 * *err filled and *out NULL. */
int gguf_open(gguf **out, const char *path, err_ctx *err);

/* Opens bytes in memory, which must outlive the gguf. Refuses a split model. */
int gguf_open_memory(gguf **out, const void *data, size_t size, err_ctx *err);

void gguf_close(gguf *g);                /* NULL is fine */

/* ---- parts ---- */
int gguf_n_part(const gguf *g);
const char *gguf_part_path(const gguf *g, int part);     /* "" for memory */
uint64_t gguf_part_bytes(const gguf *g, int part);
uint32_t gguf_version(const gguf *g);

/* ---- metadata ---- */
int gguf_n_kv(const gguf *g);
const gguf_kv *gguf_kv_at(const gguf *g, int i);
const gguf_kv *gguf_find(const gguf *g, const char *key);        /* NULL if absent */

/* The getters return 1 and set *out if the key exists, 0 without changing *out if it is absent, or
 * < 0 if its type is wrong or its value outside lo..hi (inclusive). Any integer width is accepted.
 * In the need_ forms absence is an error. */
int gguf_get_int(int64_t *out, const gguf *g, const char *key, int64_t lo, int64_t hi,
                 err_ctx *err);
int gguf_need_int(int64_t *out, const gguf *g, const char *key, int64_t lo, int64_t hi,
                  err_ctx *err);
int gguf_get_float(double *out, const gguf *g, const char *key, double lo, double hi, err_ctx *err);
int gguf_need_float(double *out, const gguf *g, const char *key, double lo, double hi,
                    err_ctx *err);
int gguf_get_bool(bool *out, const gguf *g, const char *key, err_ctx *err);
int gguf_get_str(str_view *out, const gguf *g, const char *key, err_ctx *err);

/* Reads a key that is one integer for all layers, or entry i of an array with exactly n entries.
 * Returns as above. Booleans in an array are 0 and 1. */
int gguf_get_int_at(int64_t *out, const gguf *g, const char *key, int64_t i, int64_t n, int64_t lo,
                    int64_t hi, err_ctx *err);

/* Reads element i < count of a scalar or array of integers or booleans. Returns false for other
 * types and for a u64 above INT64_MAX. */
bool gguf_kv_int(int64_t *out, const gguf_kv *kv, uint64_t i);

/* Walks an array of strings in order. */
typedef struct gguf_strings { const uint8_t *next; uint64_t left; } gguf_strings;
gguf_strings gguf_strings_begin(const gguf_kv *kv);  /* empty unless kv is an array of strings */
bool gguf_strings_next(gguf_strings *it, str_view *out);

/* Returns the name of a value type for messages: "u32", "string", "array of f32". */
const char *gguf_type_name(gguf_type type, bool is_array);

/* ---- tensors, in file order, part after part ---- */
int gguf_n_tensor(const gguf *g);
const tensor *gguf_tensor_at(const gguf *g, int i);
const tensor *gguf_tensor(const gguf *g, const char *name);      /* NULL if absent */

#endif
