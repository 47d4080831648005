/* gguf_write.h - builds the head of a GGUF file: metadata, tensor directory, padding.
 *
 * First add entries; then gguf_write_head assigns every tensor's offset and returns the head's
 * bytes. The caller writes the tensors' data at gguf_write_data_at(). Used by the synthetic model
 * maker, the quantiser and tests. gguf_write_head reports a failed allocation of any earlier call,
 * so those calls need no checks. */
#ifndef LOADER_GGUF_WRITE_H
#define LOADER_GGUF_WRITE_H

#include "loader/gguf.h"

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_create(void);   /* NULL: out of memory */
void gguf_writer_free(gguf_writer *w);

/* Entries appear in the file in the order of the calls. Nothing is validated. */
void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_write_f32(gguf_writer *w, const char *key, float v);
void gguf_write_bool(gguf_writer *w, const char *key, bool v);
void gguf_write_str(gguf_writer *w, const char *key, str_view v);
void gguf_write_kv(gguf_writer *w, const char *key, gguf_type type, const void *value,
                   size_t bytes);
/* Adds an array of count elements of a fixed-size type, contiguous at data. */
void gguf_write_array(gguf_writer *w, const char *key, gguf_type elem, const void *data,
                      uint64_t count);
/* Begins an array of count strings; exactly count calls of gguf_write_array_str must follow. */
void gguf_write_str_array(gguf_writer *w, const char *key, uint64_t count);
void gguf_write_array_str(gguf_writer *w, str_view v);

/* Copies an entry of another file unchanged, with any type. */
void gguf_write_copy(gguf_writer *w, const gguf_kv *kv);

/* Adds a tensor; ne[0] is the contiguous dimension. Returns its index. */
int gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, const uint64_t *ne,
                      int n_dims);

/* Assigns offsets and builds the head, which ends where tensor data begins. *head points into w and
 * is valid until w changes or is freed. */
int gguf_write_head(gguf_writer *w, const uint8_t **head, size_t *head_bytes, err_ctx *err);

/* Valid after gguf_write_head: the file offset of tensor i, its bytes, and the file's size with the
 * last tensor padded. */
uint64_t gguf_write_data_at(const gguf_writer *w, int i);
uint64_t gguf_write_data_bytes(const gguf_writer *w, int i);
uint64_t gguf_write_file_bytes(const gguf_writer *w);

#endif
