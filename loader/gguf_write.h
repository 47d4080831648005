/* gguf_write.h - builds the head of a GGUF file: metadata, tensor directory, padding.
 *
 * Collect entries, then lay out: gguf_write_head fixes every tensor's offset and returns the head's
 * bytes. The caller writes the tensors' data at gguf_write_data_at(). Used by the synthetic model
 * maker, the quantiser and tests. An allocation that fails anywhere is remembered and reported by
 * gguf_write_head, so calls can be chained without checks. */
#ifndef LOADER_GGUF_WRITE_H
#define LOADER_GGUF_WRITE_H

#include "loader/gguf.h"

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_create(void);   /* NULL: out of memory */
void gguf_writer_free(gguf_writer *w);

/* Order of calls is order in the file. Nothing is checked: tests write bad files with it. */
void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_write_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_write_f32(gguf_writer *w, const char *key, float v);
void gguf_write_bool(gguf_writer *w, const char *key, bool v);
void gguf_write_str(gguf_writer *w, const char *key, str_view v);
void gguf_write_kv(gguf_writer *w, const char *key, gguf_type type, const void *value,
                   size_t bytes);
/* count elements of a fixed-size type, back to back */
void gguf_write_array(gguf_writer *w, const char *key, gguf_type elem, const void *data,
                      uint64_t count);
/* Announces count strings; exactly that many gguf_write_array_str calls must follow. */
void gguf_write_str_array(gguf_writer *w, const char *key, uint64_t count);
void gguf_write_array_str(gguf_writer *w, str_view v);

/* An entry of another file as it is there, whatever its type. */
void gguf_write_copy(gguf_writer *w, const gguf_kv *kv);

/* Adds a tensor; ne[0] is the contiguous dimension. Returns its index. */
int gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, const uint64_t *ne,
                      int n_dims);

/* Lays the file out. *head points into w and is good until it changes or is freed; it ends where
 * tensor data begins. */
int gguf_write_head(gguf_writer *w, const uint8_t **head, size_t *head_bytes, err_ctx *err);

/* After gguf_write_head: where tensor i starts in the file, how many bytes it has, and the file's
 * size with the last tensor padded. */
uint64_t gguf_write_data_at(const gguf_writer *w, int i);
uint64_t gguf_write_data_bytes(const gguf_writer *w, int i);
uint64_t gguf_write_file_bytes(const gguf_writer *w);

#endif
