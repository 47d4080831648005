/* gguf_access.c - look-ups in an opened GGUF file: keys, typed values, arrays, tensors by name.
 *
 * gguf_open has checked that every value lies inside the file. The getters check type and range;
 * their messages contain the key. */
#include "loader/gguf_internal.h"

#include <inttypes.h>
#include <math.h>

#include "loader/bytes.h"

static const struct { const char *name, *array_name; int bytes; } value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = { "u8", "array of u8", 1 },       [GGUF_I8] = { "i8", "array of i8", 1 },
    [GGUF_U16] = { "u16", "array of u16", 2 },    [GGUF_I16] = { "i16", "array of i16", 2 },
    [GGUF_U32] = { "u32", "array of u32", 4 },    [GGUF_I32] = { "i32", "array of i32", 4 },
    [GGUF_F32] = { "f32", "array of f32", 4 },    [GGUF_BOOL] = { "bool", "array of bool", 1 },
    [GGUF_STRING] = { "string", "array of strings", 0 },
    [GGUF_ARRAY] = { "array", "array of arrays", 0 },
    [GGUF_U64] = { "u64", "array of u64", 8 },    [GGUF_I64] = { "i64", "array of i64", 8 },
    [GGUF_F64] = { "f64", "array of f64", 8 },
};

const char *gguf_type_name(gguf_type type, bool is_array)
{
    if ((unsigned)type >= GGUF_TYPE_COUNT) return "unknown";
    return is_array ? value_types[type].array_name : value_types[type].name;
}

int gguf_type_bytes(gguf_type type) { return value_types[type].bytes; }

int gguf_n_part(const gguf *g) { return g->n_part; }
const char *gguf_part_path(const gguf *g, int part_no) { return g->parts[part_no].path; }
uint64_t gguf_part_bytes(const gguf *g, int part_no) { return g->parts[part_no].size; }
uint32_t gguf_version(const gguf *g) { return g->version; }
int gguf_n_kv(const gguf *g) { return g->n_kv; }
const gguf_kv *gguf_kv_at(const gguf *g, int i) { return &g->kvs[i]; }
int gguf_n_tensor(const gguf *g) { return g->n_tensor; }
const tensor *gguf_tensor_at(const gguf *g, int i) { return &g->tensors[i]; }

const gguf_kv *gguf_find(const gguf *g, const char *key)
{
    const str_view want = str_from(key);
    for (int lo = 0, hi = g->n_kv; lo < hi;) {
        const int mid = lo + (hi - lo) / 2;
        const gguf_kv *kv = &g->kvs[g->kv_index[mid]];
        const int c = str_compare(want, kv->key);
        if (c == 0) return kv;
        if (c < 0) hi = mid; else lo = mid + 1;
    }
    return NULL;
}

const tensor *gguf_tensor(const gguf *g, const char *name)
{
    const str_view want = str_from(name);
    for (int lo = 0, hi = g->n_tensor; lo < hi;) {
        const int mid = lo + (hi - lo) / 2;
        const tensor *t = &g->tensors[g->tensor_index[mid]];
        const int c = str_compare(want, t->name);
        if (c == 0) return t;
        if (c < 0) hi = mid; else lo = mid + 1;
    }
    return NULL;
}

bool gguf_kv_int(int64_t *out, const gguf_kv *kv, uint64_t i)
{
    const uint8_t *p = kv->data;
    uint64_t u;
    switch (kv->type) {
    case GGUF_U8: *out = p[i]; return true;
    case GGUF_I8: *out = (int8_t)p[i]; return true;
    case GGUF_BOOL: *out = p[i] != 0; return true;
    case GGUF_U16: *out = load_u16(p + 2 * i); return true;
    case GGUF_I16: *out = (int16_t)load_u16(p + 2 * i); return true;
    case GGUF_U32: *out = load_u32(p + 4 * i); return true;
    case GGUF_I32: *out = (int32_t)load_u32(p + 4 * i); return true;
    case GGUF_I64: *out = (int64_t)load_u64(p + 8 * i); return true;
    case GGUF_U64:
        u = load_u64(p + 8 * i);
        *out = u > INT64_MAX ? INT64_MAX : (int64_t)u;
        return u <= INT64_MAX;
    default: return false;
    }
}

static int wrong_type(const gguf_kv *kv, const char *expected, err_ctx *err)
{
    char key[128];
    return err_set(err, ERR_FORMAT, "key %s is %s, expected %s", ESC(key, kv->key),
                   gguf_type_name(kv->type, kv->is_array), expected);
}

static int missing(const char *key, err_ctx *err)
{
    return err_set(err, ERR_FORMAT, "key %s missing", key);
}

bool gguf_is_integer(gguf_type type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type != GGUF_STRING && type != GGUF_BOOL &&
           type != GGUF_ARRAY;
}

/* Reads element i of kv and checks it against lo..hi. A u64 above INT64_MAX is out of range. */
static int int_in_range(int64_t *out, const gguf_kv *kv, uint64_t i, int64_t lo, int64_t hi,
                        err_ctx *err)
{
    char key[128];
    int64_t v;
    const bool fits = gguf_kv_int(&v, kv, i);
    if (fits && v >= lo && v <= hi) { *out = v; return 1; }
    if (!fits)
        return err_set(err, ERR_RANGE,
                       "key %s = %" PRIu64 " out of range %" PRId64 "..%" PRId64, ESC(key, kv->key),
                       load_u64(kv->data + 8 * i), lo, hi);
    return err_set(err, ERR_RANGE, "key %s = %" PRId64 " out of range %" PRId64 "..%" PRId64,
                   ESC(key, kv->key), v, lo, hi);
}

int gguf_get_int(int64_t *out, const gguf *g, const char *key, int64_t lo, int64_t hi, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || !gguf_is_integer(kv->type)) return wrong_type(kv, "an integer", err);
    return int_in_range(out, kv, 0, lo, hi, err);
}

int gguf_need_int(int64_t *out, const gguf *g, const char *key, int64_t lo, int64_t hi,
                  err_ctx *err)
{
    const int rc = gguf_get_int(out, g, key, lo, hi, err);
    return rc ? rc : missing(key, err);
}

int gguf_get_int_at(int64_t *out, const gguf *g, const char *key, int64_t i, int64_t n, int64_t lo,
                    int64_t hi, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    char name[128];
    if (!kv) return 0;
    if (!kv->is_array) return gguf_get_int(out, g, key, lo, hi, err);
    if (!gguf_is_integer(kv->type) && kv->type != GGUF_BOOL)
        return wrong_type(kv, "an integer or an array of integers", err);
    if (kv->count != (uint64_t)n)
        return err_set(err, ERR_FORMAT, "key %s has %" PRIu64 " entries, expected %" PRId64,
                       ESC(name, kv->key), kv->count, n);
    return int_in_range(out, kv, (uint64_t)i, lo, hi, err);
}

int gguf_get_float(double *out, const gguf *g, const char *key, double lo, double hi, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    int64_t as_int;
    double v;

    if (!kv) return 0;
    if (kv->is_array) return wrong_type(kv, "a number", err);
    if (kv->type == GGUF_F32) v = (double)load_f32(kv->data);
    else if (kv->type == GGUF_F64) v = load_f64(kv->data);
    else if (gguf_is_integer(kv->type) && gguf_kv_int(&as_int, kv, 0)) v = (double)as_int;
    else return wrong_type(kv, "a number", err);
    if (!isfinite(v) || v < lo || v > hi)
        return err_set(err, ERR_RANGE, "key %s = %g out of range %g..%g", key, v, lo, hi);
    *out = v;
    return 1;
}

int gguf_need_float(double *out, const gguf *g, const char *key, double lo, double hi, err_ctx *err)
{
    const int rc = gguf_get_float(out, g, key, lo, hi, err);
    return rc ? rc : missing(key, err);
}

int gguf_get_bool(bool *out, const gguf *g, const char *key, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || kv->type != GGUF_BOOL) return wrong_type(kv, "a bool", err);
    *out = kv->data[0] != 0;
    return 1;
}

int gguf_get_str(str_view *out, const gguf *g, const char *key, err_ctx *err)
{
    const gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || kv->type != GGUF_STRING) return wrong_type(kv, "a string", err);
    *out = (str_view){ (const char *)kv->data + 8, (size_t)load_u64(kv->data) };
    return 1;
}

gguf_strings gguf_strings_begin(const gguf_kv *kv)
{
    if (!kv || !kv->is_array || kv->type != GGUF_STRING) return (gguf_strings){ NULL, 0 };
    return (gguf_strings){ kv->data, kv->count };
}

bool gguf_strings_next(gguf_strings *it, str_view *out)
{
    if (it->left == 0) return false;
    *out = (str_view){ (const char *)it->next + 8, (size_t)load_u64(it->next) };
    it->next += 8 + out->len;
    it->left--;
    return true;
}
