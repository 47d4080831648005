/* gguf_write.c - builds the head of a GGUF file in memory.
 *
 * Two growing byte buffers, metadata and tensor directory, are joined by gguf_write_head. Offsets
 * follow the format's rule: each tensor starts where the padded one before it ends. Whether the
 * result makes sense is the writer's business, not ours: tests write nonsense on purpose. */
#include "loader/gguf_write.h"

#include <string.h>

#include "loader/bytes.h"

typedef struct buffer {
    uint8_t *data;
    size_t n, cap;
} buffer;

typedef struct entry {
    uint64_t offset, bytes;              /* inside the data section */
} entry;

struct gguf_writer {
    buffer meta, infos, head;
    entry *tensors;
    int n_tensor, cap_tensor;
    uint64_t n_kv, data_end, head_bytes;
    uint32_t align;
    bool failed;                         /* an allocation failed somewhere */
};

gguf_writer *gguf_writer_create(void)
{
    gguf_writer *w = mem_zalloc(sizeof *w);
    if (w) w->align = 32;
    return w;
}

void gguf_writer_free(gguf_writer *w)
{
    if (!w) return;
    mem_free(w->meta.data);
    mem_free(w->infos.data);
    mem_free(w->head.data);
    mem_free(w->tensors);
    mem_free(w);
}

/* Room for n more bytes, or NULL; a failure is remembered in w. */
static uint8_t *reserve(gguf_writer *w, buffer *b, size_t n)
{
    if (b->cap - b->n < n) {
        size_t cap = b->cap < 4096 ? 4096 : b->cap * 2;
        uint8_t *data;
        while (cap - b->n < n) cap *= 2;
        data = w->failed ? NULL : mem_resize(b->data, cap, 1);
        if (!data) {
            w->failed = true;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    b->n += n;
    return b->data + b->n - n;
}

static void put(gguf_writer *w, buffer *b, const void *bytes, size_t n)
{
    uint8_t *at = n ? reserve(w, b, n) : NULL;
    if (at) memcpy(at, bytes, n);
}

static void put_u32(gguf_writer *w, buffer *b, uint32_t v) { put(w, b, &v, sizeof v); }
static void put_u64(gguf_writer *w, buffer *b, uint64_t v) { put(w, b, &v, sizeof v); }

static void put_str(gguf_writer *w, buffer *b, str_view s)
{
    put_u64(w, b, s.len);
    put(w, b, s.ptr, s.len);
}

void gguf_write_kv(gguf_writer *w, const char *key, gguf_type type, const void *value, size_t bytes)
{
    put_str(w, &w->meta, str_from(key));
    put_u32(w, &w->meta, (uint32_t)type);
    put(w, &w->meta, value, bytes);
    w->n_kv++;
}

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v)
{
    if (strcmp(key, "general.alignment") == 0) w->align = v;
    gguf_write_kv(w, key, GGUF_U32, &v, sizeof v);
}

void gguf_write_i32(gguf_writer *w, const char *key, int32_t v)
{
    gguf_write_kv(w, key, GGUF_I32, &v, sizeof v);
}

void gguf_write_u64(gguf_writer *w, const char *key, uint64_t v)
{
    gguf_write_kv(w, key, GGUF_U64, &v, sizeof v);
}

void gguf_write_f32(gguf_writer *w, const char *key, float v)
{
    gguf_write_kv(w, key, GGUF_F32, &v, sizeof v);
}

void gguf_write_bool(gguf_writer *w, const char *key, bool v)
{
    const uint8_t byte = v;
    gguf_write_kv(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_write_str(gguf_writer *w, const char *key, str_view v)
{
    gguf_write_kv(w, key, GGUF_STRING, NULL, 0);
    put_str(w, &w->meta, v);
}

static void begin_array(gguf_writer *w, const char *key, gguf_type elem, uint64_t count)
{
    gguf_write_kv(w, key, GGUF_ARRAY, NULL, 0);
    put_u32(w, &w->meta, (uint32_t)elem);
    put_u64(w, &w->meta, count);
}

void gguf_write_array(gguf_writer *w, const char *key, gguf_type elem, const void *data,
                      uint64_t count)
{
    static const int elem_bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    begin_array(w, key, elem, count);
    put(w, &w->meta, data, (size_t)count * (size_t)elem_bytes[elem]);
}

void gguf_write_str_array(gguf_writer *w, const char *key, uint64_t count)
{
    begin_array(w, key, GGUF_STRING, count);
}

void gguf_write_array_str(gguf_writer *w, str_view v)
{
    put_str(w, &w->meta, v);
}

int gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, const uint64_t *ne,
                      int n_dims)
{
    const quant_traits *q = quant_traits_of(type);
    entry *e;

    if (w->n_tensor == w->cap_tensor) {
        const int cap = w->cap_tensor ? w->cap_tensor * 2 : 64;
        e = w->failed ? NULL : mem_resize(w->tensors, (size_t)cap, sizeof *e);
        if (!e) {
            w->failed = true;
            return 0;
        }
        w->tensors = e;
        w->cap_tensor = cap;
    }
    e = &w->tensors[w->n_tensor];
    e->bytes = q ? quant_row_bytes(q, ne[0]) : 0;
    for (int k = 1; k < n_dims; k++) e->bytes *= ne[k];
    e->offset = w->data_end;
    w->data_end = size_align(w->data_end + e->bytes, w->align);

    put_str(w, &w->infos, str_from(name));
    put_u32(w, &w->infos, (uint32_t)n_dims);
    for (int k = 0; k < n_dims; k++) put_u64(w, &w->infos, ne[k]);
    put_u32(w, &w->infos, (uint32_t)type);
    put_u64(w, &w->infos, e->offset);
    return w->n_tensor++;
}

int gguf_write_head(gguf_writer *w, const uint8_t **head, size_t *head_bytes, err_ctx *err)
{
    buffer *h = &w->head;
    uint8_t *pad;
    size_t n_pad;

    h->n = 0;
    put(w, h, "GGUF", 4);
    put_u32(w, h, 3);
    put_u64(w, h, (uint64_t)w->n_tensor);
    put_u64(w, h, w->n_kv);
    put(w, h, w->meta.data, w->meta.n);
    put(w, h, w->infos.data, w->infos.n);
    n_pad = (size_t)(size_align(h->n, w->align) - h->n);
    if ((pad = reserve(w, h, n_pad))) memset(pad, 0, n_pad);
    if (w->failed) return err_set(err, ERR_NOMEM, "out of memory for the head of a GGUF file");
    w->head_bytes = h->n;
    *head = h->data;
    *head_bytes = h->n;
    return 0;
}

uint64_t gguf_write_data_at(const gguf_writer *w, int i)
{
    return w->head_bytes + w->tensors[i].offset;
}

uint64_t gguf_write_data_bytes(const gguf_writer *w, int i)
{
    return w->tensors[i].bytes;
}

uint64_t gguf_write_file_bytes(const gguf_writer *w)
{
    return w->head_bytes + w->data_end;
}
