/* gguf.c - maps a GGUF file and reads its directory.
 *
 * Every number is checked before it is used: lengths against the bytes that are left, products for
 * overflow, offsets against the data section. Tables grow as entries are read, so a count in the
 * file never sizes an allocation. There is no recursion. Lookups use sorted indexes, because a
 * hostile file could make hash keys collide. */
#include "loader/gguf_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/bytes.h"
#include "loader/sigbus_guard.h"

enum { MIN_KV_BYTES = 14, MIN_STRING_BYTES = 8, MIN_TENSOR_BYTES = 33, DEFAULT_ALIGN = 32 };
enum { MAX_PARTS = 99999 };              /* five digits in the file name */

/* State of the parse; entries are written directly to g. */
typedef struct parser {
    gguf *g;
    cursor c;
    uint64_t align;
    err_ctx *err;
} parser;

/* ---- reading fields ------------------------------------------------------------------------ */

static int take(const uint8_t **out, parser *p, uint64_t n, const char *what)
{
    const uint64_t at = p->c.pos;
    *out = cursor_take(&p->c, n);
    if (*out) return 0;
    return err_set(p->err, ERR_FORMAT,
                   "truncated: %s at byte %" PRIu64 " needs %" PRIu64 " bytes, %" PRIu64 " left",
                   what, at, n, cursor_left(&p->c));
}

static int take_u32(uint32_t *out, parser *p, const char *what)
{
    const uint8_t *at;
    const int rc = take(&at, p, 4, what);
    *out = rc == 0 ? load_u32(at) : 0;
    return rc;
}

static int take_u64(uint64_t *out, parser *p, const char *what)
{
    const uint8_t *at;
    const int rc = take(&at, p, 8, what);
    *out = rc == 0 ? load_u64(at) : 0;
    return rc;
}

static int take_string(str_view *out, parser *p, const char *what)
{
    const uint64_t at = p->c.pos;
    const uint8_t *bytes;
    uint64_t len;
    const int rc = take_u64(&len, p, what);
    if (rc < 0) return rc;
    bytes = cursor_take(&p->c, len);
    if (!bytes)
        return err_set(p->err, ERR_FORMAT,
                       "truncated: %s: string length %" PRIu64 " at byte %" PRIu64
                       " exceeds the %" PRIu64 " bytes left", what, len, at, cursor_left(&p->c));
    *out = (str_view){ (const char *)bytes, (size_t)len };
    return 0;
}

/* Ensures capacity for one more element; the table grows by half. */
static int grow(void **table, int *cap, int n, size_t elem_bytes, err_ctx *err)
{
    if (n == *cap) {
        const int bigger = *cap < 64 ? 64 : *cap > INT_MAX / 2 ? *cap : *cap + *cap / 2;
        void *t = bigger > *cap ? mem_resize(*table, (size_t)bigger, elem_bytes) : NULL;
        if (!t) return err_set(err, ERR_NOMEM, "out of memory for %d directory entries", bigger);
        *table = t;
        *cap = bigger;
    }
    return 0;
}

/* ---- metadata ------------------------------------------------------------------------------ */

/* Prefixes a failure in the value of kv with its key. Returns rc. */
static int in_key(parser *p, const gguf_kv *kv, int rc)
{
    char key[128];
    return rc < 0 ? err_prefix(p->err, rc, "key %s", ESC(key, kv->key)) : rc;
}

/* Moves past the elements of an array whose header was just read into *kv. */
static int skip_array(parser *p, const gguf_kv *kv)
{
    const bool strings = kv->type == GGUF_STRING;
    const uint64_t elem_bytes = strings ? MIN_STRING_BYTES : (uint64_t)gguf_type_bytes(kv->type);
    char key[128];

    if (kv->count > cursor_left(&p->c) / elem_bytes)
        return err_set(p->err, ERR_FORMAT,
                       "array %s claims %" PRIu64 " elements, only %" PRIu64
                       " bytes left; file truncated?",
                       ESC(key, kv->key), kv->count, cursor_left(&p->c));
    if (!strings) {
        cursor_take(&p->c, kv->count * elem_bytes);
        return 0;
    }
    for (uint64_t i = 0; i < kv->count; i++) {
        str_view s;
        const int rc = take_string(&s, p, "array element");
        if (rc < 0) return in_key(p, kv, rc);
    }
    return 0;
}

static int read_value(parser *p, gguf_kv *kv)
{
    const uint8_t *at;
    str_view text;
    uint32_t type;
    char key[128];
    int rc;

    if ((rc = take_u32(&type, p, "value type")) < 0) return in_key(p, kv, rc);
    kv->is_array = type == GGUF_ARRAY;
    if (kv->is_array && (rc = take_u32(&type, p, "array element type")) < 0)
        return in_key(p, kv, rc);
    if (kv->is_array && type == GGUF_ARRAY)
        return err_set(p->err, ERR_UNSUPPORTED, "nested array in key %s", ESC(key, kv->key));
    if (type >= GGUF_TYPE_COUNT)
        return err_set(p->err, ERR_FORMAT, "key %s has unknown %s type %" PRIu32, ESC(key, kv->key),
                       kv->is_array ? "array element" : "value", type);
    kv->type = (gguf_type)type;
    kv->count = 1;
    if (kv->is_array && (rc = take_u64(&kv->count, p, "array count")) < 0) return in_key(p, kv, rc);
    kv->data = p->c.base + p->c.pos;
    if (kv->is_array) return skip_array(p, kv);
    if (type == GGUF_STRING) return in_key(p, kv, take_string(&text, p, "value"));
    return in_key(p, kv, take(&at, p, (uint64_t)gguf_type_bytes(kv->type), "value"));
}

static int read_kv(parser *p)
{
    gguf_kv kv = { 0 };
    int rc;

    if ((rc = take_string(&kv.key, p, "key")) < 0) return rc;
    if (kv.key.len == 0)
        return err_set(p->err, ERR_FORMAT, "empty key before byte %" PRIu64, p->c.pos);
    if ((rc = read_value(p, &kv)) < 0) return rc;
    if ((rc = grow((void **)&p->g->kvs, &p->g->cap_kv, p->g->n_kv, sizeof kv, p->err)) < 0)
        return rc;
    p->g->kvs[p->g->n_kv++] = kv;
    return 0;
}

static int compare_kv(const void *a, const void *b, void *g)
{
    const gguf_kv *kvs = ((const gguf *)g)->kvs;
    return str_compare(kvs[*(const int *)a].key, kvs[*(const int *)b].key);
}

static int compare_tensor(const void *a, const void *b, void *g)
{
    const tensor *ts = ((const gguf *)g)->tensors;
    return str_compare(ts[*(const int *)a].name, ts[*(const int *)b].name);
}

static int compare_place(const void *a, const void *b, void *g)
{
    const tensor *x = &((const gguf *)g)->tensors[*(const int *)a];
    const tensor *y = &((const gguf *)g)->tensors[*(const int *)b];
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Allocates the numbers 0..n-1, sorted by compare. */
static int make_index(int **out, gguf *g, int n, int (*compare)(const void *, const void *, void *),
                      err_ctx *err)
{
    int *index = mem_array((size_t)n, sizeof *index);
    if (!index) return err_set(err, ERR_NOMEM, "out of memory for an index of %d names", n);
    for (int i = 0; i < n; i++) index[i] = i;
    qsort_r(index, (size_t)n, sizeof *index, compare, g);
    mem_free(*out);
    *out = index;
    return 0;
}

/* ---- header and tensor directory ----------------------------------------------------------- */

static int read_header(parser *p, uint64_t *n_tensor, uint64_t *n_kv)
{
    const uint8_t *magic;
    uint32_t version;
    int rc;

    if ((rc = take(&magic, p, 4, "magic")) < 0) return rc;
    if (memcmp(magic, "GGUF", 4) != 0) {
        char found[32];
        return err_set(p->err, ERR_FORMAT,
                       "not a GGUF file: it begins with '%s' (%02X %02X %02X %02X)",
                       ESC(found, ((str_view){ (const char *)magic, 4 })),
                       magic[0], magic[1], magic[2], magic[3]);
    }
    if ((rc = take_u32(&version, p, "version")) < 0) return rc;
    if (version != 0 && (version & 0xFFFF) == 0)
        return err_set(p->err, ERR_UNSUPPORTED,
                       "big-endian file (version field 0x%08" PRIX32 "); "
                       "only little-endian files are read", version);
    if (version < 2 || version > 3)
        return err_set(p->err, ERR_UNSUPPORTED,
                       "unsupported version %" PRIu32 " (2 and 3 are read)", version);
    p->g->version = version;
    if ((rc = take_u64(n_tensor, p, "tensor count")) < 0) return rc;
    if ((rc = take_u64(n_kv, p, "key count")) < 0) return rc;
    if (*n_tensor > p->c.size / MIN_TENSOR_BYTES)
        return err_set(p->err, ERR_FORMAT,
                       "tensor count %" PRIu64 " cannot fit in a file of %" PRIu64 " bytes",
                       *n_tensor, p->c.size);
    if (*n_kv > p->c.size / MIN_KV_BYTES)
        return err_set(p->err, ERR_FORMAT, "key count %" PRIu64 " cannot fit in a file of %" PRIu64
                       " bytes", *n_kv, p->c.size);
    return 0;
}

static int read_metadata(parser *p, uint64_t n_kv)
{
    gguf *g = p->g;
    int rc;

    for (uint64_t i = 0; i < n_kv; i++)
        if ((rc = read_kv(p)) < 0) return rc;
    if ((rc = make_index(&g->kv_index, g, g->n_kv, compare_kv, p->err)) < 0) return rc;
    for (int i = 1; i < g->n_kv; i++) {
        const str_view a = g->kvs[g->kv_index[i - 1]].key, b = g->kvs[g->kv_index[i]].key;
        char key[128];
        if (str_eq(a, b)) return err_set(p->err, ERR_FORMAT, "duplicate key %s", ESC(key, a));
    }
    return 0;
}

static int read_alignment(parser *p)
{
    const gguf_kv *kv = gguf_find(p->g, "general.alignment");
    int64_t v = DEFAULT_ALIGN;
    if (kv && (kv->is_array || !gguf_is_integer(kv->type)))
        return err_set(p->err, ERR_FORMAT, "general.alignment is a %s, must be a power of two",
                       gguf_type_name(kv->type, kv->is_array));
    if (kv && !gguf_kv_int(&v, kv, 0))   /* 2^63 and above: no file is that large */
        return err_set(p->err, ERR_FORMAT,
                       "general.alignment is %" PRIu64 ", too large for a file of %" PRIu64
                       " bytes",
                       load_u64(kv->data), p->c.size);
    if (v <= 0 || (v & (v - 1)) != 0)
        return err_set(p->err, ERR_FORMAT,
                       "general.alignment is %" PRId64 ", must be a power of two", v);
    p->align = (uint64_t)v;
    return 0;
}

static int read_tensor(parser *p)
{
    uint64_t ne[TENSOR_MAX_DIMS] = { 0 };
    uint32_t n_dims, type;
    tensor t = { 0 };
    char name[128];
    int rc;

    if ((rc = take_string(&t.name, p, "tensor name")) < 0) return rc;
    if (t.name.len == 0)
        return err_set(p->err, ERR_FORMAT, "empty tensor name before byte %" PRIu64, p->c.pos);
    ESC(name, t.name);
    if (t.name.len > TENSOR_MAX_NAME)
        return err_set(p->err, ERR_FORMAT, "tensor name too long: %zu bytes, at most %d: %s",
                       t.name.len, TENSOR_MAX_NAME, name);
    if ((rc = take_u32(&n_dims, p, "dimension count")) < 0)
        return err_prefix(p->err, rc, "tensor %s", name);
    if (n_dims < 1 || n_dims > TENSOR_MAX_DIMS) return tensor_set_shape(&t, 0, ne, n_dims, p->err);
    for (uint32_t k = 0; k < n_dims; k++)
        if ((rc = take_u64(&ne[k], p, "dimension")) < 0)
            return err_prefix(p->err, rc, "tensor %s", name);
    if ((rc = take_u32(&type, p, "type")) < 0) return err_prefix(p->err, rc, "tensor %s", name);
    if ((rc = take_u64(&t.offset, p, "offset")) < 0)
        return err_prefix(p->err, rc, "tensor %s", name);
    if ((rc = tensor_set_shape(&t, type, ne, n_dims, p->err)) < 0) return rc;
    rc = grow((void **)&p->g->tensors, &p->g->cap_tensor, p->g->n_tensor, sizeof t, p->err);
    if (rc == 0) p->g->tensors[p->g->n_tensor++] = t;
    return rc;
}

/* Checks that all tensors lie in the data section and converts their offsets to file offsets. */
static int place_tensors(parser *p)
{
    gguf *g = p->g;
    uint64_t data_at, data_bytes;

    if (g->n_tensor == 0) return 0;         /* no tensors: the data section may be missing */
    data_at = size_plus(p->c.pos, p->align - 1) & ~(p->align - 1);
    if (data_at > p->c.size)
        return err_set(p->err, ERR_FORMAT,
                       "data section would start at %" PRIu64 ", file has %" PRIu64 " bytes",
                       data_at, p->c.size);
    data_bytes = p->c.size - data_at;
    for (int i = 0; i < g->n_tensor; i++) {
        tensor *t = &g->tensors[i];
        char name[128];
        if (t->offset % p->align != 0)
            return err_set(p->err, ERR_FORMAT,
                           "tensor %s: offset %" PRIu64 " is not a multiple of %" PRIu64,
                           ESC(name, t->name), t->offset, p->align);
        if (t->offset > data_bytes || t->bytes > data_bytes - t->offset) {
            return err_set(p->err, ERR_FORMAT,
                           "tensor %s: bytes %" PRIu64 "..%" PRIu64 " lie outside the data "
                           "(%" PRIu64 " bytes); file truncated?",
                           ESC(name, t->name), t->offset, size_plus(t->offset, t->bytes),
                           data_bytes);
        }
        t->offset += data_at;
        t->data = p->c.base + t->offset;
    }
    return 0;
}

/* Refuses equal tensor names in all parts, and tensors that overlap. */
static int check_tensors(gguf *g, err_ctx *err)
{
    int *place = NULL;
    char a[128], b[128];
    int rc;

    if ((rc = make_index(&g->tensor_index, g, g->n_tensor, compare_tensor, err)) < 0) return rc;
    for (int i = 1; i < g->n_tensor; i++) {
        const tensor *t = &g->tensors[g->tensor_index[i - 1]], *u = &g->tensors[g->tensor_index[i]];
        if (str_eq(t->name, u->name))
            return err_set(err, ERR_FORMAT, "duplicate tensor %s", ESC(a, t->name));
    }
    if ((rc = make_index(&place, g, g->n_tensor, compare_place, err)) < 0) return rc;
    for (int i = 1; i < g->n_tensor && rc == 0; i++) {
        const tensor *t = &g->tensors[place[i - 1]], *u = &g->tensors[place[i]];
        if (t->part == u->part && t->offset + t->bytes > u->offset)
            rc = err_set(err, ERR_FORMAT, "tensors %s and %s overlap",
                         ESC(a, t->name), ESC(b, u->name));
    }
    mem_free(place);
    return rc;
}

/* Ollama's gpt-oss files use a tensor type that GGUF has removed. Prefixes the message with that
 * cause. Returns rc. */
static int name_dialect(parser *p, int rc)
{
    str_view arch;
    if (gguf_get_str(&arch, p->g, "general.architecture", NULL) == 1 && str_is(arch, "gptoss"))
        err_prefix(p->err, rc, "unsupported architecture 'gptoss': %s", GGUF_OLLAMA_HINT);
    return rc;
}

/* Parses header, metadata and directory of g's only file. */
static int parse_file(gguf *g, err_ctx *err)
{
    uint64_t n_tensor = 0, n_kv = 0;
    parser p = { .g = g, .c = { g->parts[0].base, g->parts[0].size, 0 }, .err = err };
    int rc;

    if ((rc = read_header(&p, &n_tensor, &n_kv)) < 0) return rc;
    if ((rc = read_metadata(&p, n_kv)) < 0) return rc;
    if ((rc = read_alignment(&p)) < 0) return rc;
    for (uint64_t i = 0; i < n_tensor; i++)
        if ((rc = read_tensor(&p)) < 0) return rc == ERR_UNSUPPORTED ? name_dialect(&p, rc) : rc;
    return place_tensors(&p);
}

/* ---- files --------------------------------------------------------------------------------- */

static int map_file(part *p, const char *path, err_ctx *err)
{
    struct stat st;
    void *base;
    int rc = 0;
    /* O_NONBLOCK: opening a named pipe must not block; it is refused below */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) return err_sys(err, "cannot open");
    if (fstat(fd, &st) < 0) {
        rc = err_sys(err, "cannot stat");
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(err, ERR_FORMAT, "not a GGUF file: %s",
                     S_ISDIR(st.st_mode) ? "it is a directory" : "it is not a regular file");
    } else if (st.st_size == 0) {
        rc = err_set(err, ERR_FORMAT, "truncated: the file is empty");
    } else if ((base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0)) ==
               MAP_FAILED) {
        rc = err_sys(err, "cannot map %lld bytes", (long long)st.st_size);
    } else {
        p->base = base;
        p->size = (uint64_t)st.st_size;
        p->mapped = true;
        /* on file systems with huge pages reads are 12% faster and loading takes half the time */
        madvise(base, (size_t)st.st_size, MADV_HUGEPAGE);
        rc = sigbus_guard_add(base, p->size, path, err);
    }
    close(fd);
    return rc;
}

/* Opens one part: the bytes at data, or the file at path if data is NULL. */
static int open_one(gguf **out, const char *path, const void *data, size_t size, err_ctx *err)
{
    gguf *g = mem_zalloc(sizeof *g);
    int rc = 0;

    *out = NULL;
    if (!g || !(g->parts = mem_zalloc(sizeof *g->parts)) ||
        !(g->parts[0].path = mem_strdup_n(path, strlen(path)))) {
        gguf_close(g);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    g->n_part = 1;
    g->parts[0].base = data;
    g->parts[0].size = size;
    if (!data) rc = map_file(&g->parts[0], path, err);
    if (rc == 0) rc = parse_file(g, err);
    if (rc < 0) gguf_close(g);
    else *out = g;
    return rc;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_part; i++) {
        if (g->parts[i].mapped) {
            sigbus_guard_remove(g->parts[i].base);
            munmap((void *)g->parts[i].base, g->parts[i].size);
        }
        mem_free(g->parts[i].path);
    }
    mem_free(g->parts);
    mem_free(g->kvs);
    mem_free(g->kv_index);
    mem_free(g->tensors);
    mem_free(g->tensor_index);
    mem_free(g);
}

/* ---- split files --------------------------------------------------------------------------- */

/* Reads the split.* keys. *count is 0 or 1 if the model is not split. */
static int read_split(int64_t *no, int64_t *count, const gguf *g, err_ctx *err)
{
    int rc;
    *no = *count = 0;
    if ((rc = gguf_get_int(count, g, "split.count", 0, MAX_PARTS, err)) < 0) return rc;
    if ((rc = gguf_get_int(no, g, "split.no", 0, MAX_PARTS - 1, err)) < 0) return rc;
    return 0;
}

/* Moves the mapping and the tensors of the one-part file s into g, as g's next part. */
static int absorb(gguf *g, gguf *s, err_ctx *err)
{
    part *parts = mem_resize(g->parts, (size_t)g->n_part + 1, sizeof *parts);
    int rc;

    if (!parts) return err_set(err, ERR_NOMEM, "out of memory for part %d", g->n_part + 1);
    g->parts = parts;
    for (int i = 0; i < s->n_tensor; i++) {
        tensor *t = &s->tensors[i];
        t->part = g->n_part;
        rc = grow((void **)&g->tensors, &g->cap_tensor, g->n_tensor, sizeof *t, err);
        if (rc < 0) return rc;
        g->tensors[g->n_tensor++] = *t;
    }
    parts[g->n_part++] = s->parts[0];
    s->n_part = 0;                       /* the mapping and the path are g's now */
    return 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Opens part `no` of count at path and moves it into g. */
static int add_sibling(gguf *g, const char *path, int64_t no, int64_t count, err_ctx *err)
{
    int64_t its_no, its_count;
    gguf *s;
    int rc = open_one(&s, path, NULL, 0, err);

    if (rc == 0) rc = read_split(&its_no, &its_count, s, err);
    if (rc == 0 && (its_no != no || its_count != count))
        rc = err_set(err, ERR_FORMAT, "split.no is %" PRId64 " and split.count %" PRId64
                     ", expected %" PRId64 " and %" PRId64, its_no, its_count, no, count);
    if (rc == 0) rc = absorb(g, s, err);
    if (rc < 0)                          /* the caller's prefix has the folder */
        err_prefix(err, rc, "part %" PRId64 " of %" PRId64 ", %s", no + 1, count, base_name(path));
    gguf_close(s);
    return rc;
}

/* g is the first part of several. Finds the others by file name and moves them into g. */
static int add_siblings(gguf *g, int64_t count, err_ctx *err)
{
    const size_t cap = strlen(g->parts[0].path) + 1;
    char suffix[32], *path;
    int64_t total;
    size_t prefix_len;
    int rc = 0;

    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", 1, (int)count);
    if (!str_ends(str_from(g->parts[0].path), suffix))
        return err_set(err, ERR_FORMAT, "split.count is %" PRId64 ", so the name must end in %s "
                       "for the other parts to be found", count, suffix);
    if ((rc = gguf_need_int(&total, g, "split.tensors.count", 0, INT32_MAX, err)) < 0) return rc;
    prefix_len = cap - 1 - strlen(suffix);
    if (!(path = mem_strdup_n(g->parts[0].path, cap - 1)))
        return err_set(err, ERR_NOMEM, "out of memory for a path");
    rc = 0;
    for (int no = 1; no < count && rc == 0; no++) {
        snprintf(path + prefix_len, cap - prefix_len, "-%05d-of-%05d.gguf", no + 1, (int)count);
        rc = add_sibling(g, path, no, count, err);
    }
    mem_free(path);
    if (rc == 0 && total != g->n_tensor)
        rc = err_set(err, ERR_FORMAT,
                     "split.tensors.count is %" PRId64 ", the %d parts hold %d tensors",
                     total, g->n_part, g->n_tensor);
    return rc;
}

static int finish_open(gguf *g, bool may_be_split, err_ctx *err)
{
    int64_t no, count;
    int rc = read_split(&no, &count, g, err);

    if (rc < 0) return rc;
    if (count > 1 && no > 0)
        return err_set(err, ERR_FORMAT, "this is part %" PRId64 " of %" PRId64 " of a split model; "
                       "name the first part, ...-00001-of-%05d.gguf", no + 1, count, (int)count);
    if (count > 1 && !may_be_split)
        return err_set(err, ERR_UNSUPPORTED,
                       "split into %" PRId64 " parts, which memory cannot hold", count);
    if (count > 1 && (rc = add_siblings(g, count, err)) < 0) return rc;
    return check_tensors(g, err);
}

int gguf_open(gguf **out, const char *path, err_ctx *err)
{
    int rc = open_one(out, path, NULL, 0, err);
    if (rc == 0 && (rc = finish_open(*out, true, err)) < 0) {
        gguf_close(*out);
        *out = NULL;
    }
    return rc;
}

int gguf_open_memory(gguf **out, const void *data, size_t size, err_ctx *err)
{
    int rc = open_one(out, "", data ? data : "", data ? size : 0, err);
    if (rc == 0 && (rc = finish_open(*out, false, err)) < 0) {
        gguf_close(*out);
        *out = NULL;
    }
    return rc;
}
