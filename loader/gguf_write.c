/* gguf_write.c - builds the head of a GGUF file in memory.
 *
 * gguf_write_head joins two growing texts, metadata and tensor directory. Each tensor starts at the
 * padded end of the one before it, as the format requires. Nothing else is validated, because tests
 * write invalid files. */
#include "loader/gguf_write.h"

#include <string.h>

#include "loader/bytes.h"
#include "loader/gguf_internal.h"

typedef struct entry {
    uint64_t offset, bytes;              /* inside the data section */
} entry;

struct gguf_writer {
    textbuf meta, infos, head;
    entry *tensors;
    int n_tensor, cap_tensor;
    uint64_t n_kv, data_end, head_bytes;
    uint32_t align;
    bool failed;                         /* out of memory for a tensor; the texts have their own */
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
    textbuf_free(&w->meta);
    textbuf_free(&w->infos);
    textbuf_free(&w->head);
    mem_free(w->tensors);
    mem_free(w);
}

static void put(textbuf *b, const void *bytes, size_t n)
{
    textbuf_put(b, (str_view){ bytes, n });
}

static void put_u32(textbuf *b, uint32_t v) { put(b, &v, sizeof v); }
static void put_u64(textbuf *b, uint64_t v) { put(b, &v, sizeof v); }

static void put_str(textbuf *b, str_view s)
{
    put_u64(b, s.len);
    textbuf_put(b, s);
}

void gguf_write_kv(gguf_writer *w, const char *key, gguf_type type, const void *value, size_t bytes)
{
    put_str(&w->meta, str_from(key));
    put_u32(&w->meta, (uint32_t)type);
    put(&w->meta, value, bytes);
    w->n_kv++;
}

void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v)
{
    if (strcmp(key, "general.alignment") == 0) w->align = v;
    gguf_write_kv(w, key, GGUF_U32, &v, sizeof v);
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
    put_str(&w->meta, v);
}

static void begin_array(gguf_writer *w, const char *key, gguf_type elem, uint64_t count)
{
    gguf_write_kv(w, key, GGUF_ARRAY, NULL, 0);
    put_u32(&w->meta, (uint32_t)elem);
    put_u64(&w->meta, count);
}

void gguf_write_array(gguf_writer *w, const char *key, gguf_type elem, const void *data,
                      uint64_t count)
{
    begin_array(w, key, elem, count);
    put(&w->meta, data, (size_t)count * (size_t)gguf_type_bytes(elem));
}

void gguf_write_str_array(gguf_writer *w, const char *key, uint64_t count)
{
    begin_array(w, key, GGUF_STRING, count);
}

void gguf_write_array_str(gguf_writer *w, str_view v) { put_str(&w->meta, v); }

/* Returns the bytes of the value in the file. For strings it adds up their length fields. */
static size_t value_bytes(const gguf_kv *kv)
{
    const uint8_t *p = kv->data;
    if (kv->type != GGUF_STRING) return (size_t)kv->count * (size_t)gguf_type_bytes(kv->type);
    for (uint64_t i = 0; i < kv->count; i++) p += 8 + load_u64(p);
    return (size_t)(p - kv->data);
}

void gguf_write_copy(gguf_writer *w, const gguf_kv *kv)
{
    int64_t align;
    if (str_is(kv->key, "general.alignment") && gguf_kv_int(&align, kv, 0))
        w->align = (uint32_t)align;
    put_str(&w->meta, kv->key);
    put_u32(&w->meta, (uint32_t)(kv->is_array ? GGUF_ARRAY : kv->type));
    if (kv->is_array) {
        put_u32(&w->meta, (uint32_t)kv->type);
        put_u64(&w->meta, kv->count);
    }
    put(&w->meta, kv->data, value_bytes(kv));
    w->n_kv++;
}

int gguf_write_tensor(gguf_writer *w, const char *name, quant_type type, const uint64_t *ne,
                      int n_dims)
{
    const quant_traits *q = quant_traits_of(type);
    entry *e;

    if (!(e = mem_grow(w->tensors, w->n_tensor, &w->cap_tensor, sizeof *e))) {
        w->failed = true;
        return 0;
    }
    w->tensors = e;
    e += w->n_tensor;
    e->bytes = q ? quant_row_bytes(q, ne[0]) : 0;
    for (int k = 1; k < n_dims; k++) e->bytes *= ne[k];
    e->offset = w->data_end;
    w->data_end = size_align(w->data_end + e->bytes, w->align);

    put_str(&w->infos, str_from(name));
    put_u32(&w->infos, (uint32_t)n_dims);
    for (int k = 0; k < n_dims; k++) put_u64(&w->infos, ne[k]);
    put_u32(&w->infos, (uint32_t)type);
    put_u64(&w->infos, e->offset);
    return w->n_tensor++;
}

int gguf_write_head(gguf_writer *w, const uint8_t **head, size_t *head_bytes, err_ctx *err)
{
    textbuf *h = &w->head;
    char *pad;
    size_t n_pad;

    h->len = 0;
    put(h, "GGUF", 4);
    put_u32(h, 3);
    put_u64(h, (uint64_t)w->n_tensor);
    put_u64(h, w->n_kv);
    textbuf_put(h, textbuf_view(&w->meta));
    textbuf_put(h, textbuf_view(&w->infos));
    n_pad = (size_t)(size_align(h->len, w->align) - h->len);
    if ((pad = textbuf_room(h, n_pad))) {
        memset(pad, 0, n_pad);
        h->len += n_pad;
    }
    if (w->failed || w->meta.failed || w->infos.failed || h->failed)
        return err_set(err, ERR_NOMEM, "out of memory for the head of a GGUF file");
    w->head_bytes = h->len;
    *head = (const uint8_t *)h->ptr;
    *head_bytes = h->len;
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
