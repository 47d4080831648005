/* base.c - errors, log sink, clock, allocator with its test seams, byte strings.
 *
 * The allocator is malloc with a counter and an injected failure, so that tests can reach every
 * cleanup path. */
#include "loader/base.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- errors ------------------------------------------------------------------------------ */

static void set_message(err_ctx *err, int code, const char *fmt, va_list ap)
{
    if (!err) return;
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
}

int err_set(err_ctx *err, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set_message(err, code, fmt, ap);
    va_end(ap);
    return code;
}

int err_sys(err_ctx *err, const char *fmt, ...)
{
    const int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    set_message(err, ERR_IO, fmt, ap);
    va_end(ap);
    if (err) {
        char text[128];
        const size_t n = strlen(err->msg);
        /* GNU strerror_r is thread safe and returns the text, which need not be in the buffer */
        snprintf(err->msg + n, sizeof err->msg - n, ": %s", strerror_r(saved, text, sizeof text));
    }
    return ERR_IO;
}

int err_prefix(err_ctx *err, int rc, const char *fmt, ...)
{
    if (err) {
        char old[sizeof err->msg];
        va_list ap;
        memcpy(old, err->msg, sizeof old);
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        const size_t n = strlen(err->msg);
        snprintf(err->msg + n, sizeof err->msg - n, ": %s", old);
    }
    return rc;
}

/* ---- log --------------------------------------------------------------------------------- */

static log_sink_fn *log_sink;            /* set once, at start */
static void *log_sink_ctx;

void log_set_sink(log_sink_fn *fn, void *ctx)
{
    log_sink = fn;
    log_sink_ctx = ctx;
}

void log_line(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    if (!log_sink) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_sink(log_sink_ctx, line);
}

/* ---- clock ------------------------------------------------------------------------------- */

uint64_t clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_doubles(double *v, int n) { qsort(v, (size_t)n, sizeof *v, compare_doubles); }

/* ---- memory ------------------------------------------------------------------------------ */

static atomic_long alloc_count;
static atomic_long fail_at;              /* value of alloc_count that must fail; 0: none */
static atomic_bool guard_on;

static bool alloc_refused(void)
{
    const long n = atomic_fetch_add(&alloc_count, 1) + 1;
    return atomic_load(&guard_on) || n == atomic_load(&fail_at);
}

void *mem_alloc(size_t bytes)
{
    return alloc_refused() ? NULL : malloc(bytes ? bytes : 1);
}

void *mem_zalloc(size_t bytes)
{
    return alloc_refused() ? NULL : calloc(1, bytes ? bytes : 1);
}

void *mem_array(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return mem_alloc(bytes);
}

void *mem_resize(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || alloc_refused()) return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *mem_grow(void *list, int n, int *cap, size_t size)
{
    if (n < *cap) return list;
    const int want = *cap < 16 ? 16 : *cap > INT_MAX / 2 ? n : 2 * *cap;
    void *grown = want > n ? mem_resize(list, (size_t)want, size) : NULL;
    if (grown) *cap = want;
    return grown;
}

char *mem_strdup_n(const char *s, size_t len)
{
    char *p = mem_array(len + 1, 1);
    if (!p) return NULL;
    if (len) memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

void mem_free(void *p) { free(p); }

mem_layout mem_layout_count(uint64_t align) { return (mem_layout){ .align = align }; }

mem_layout mem_layout_over(void *block, uint64_t align)
{
    return (mem_layout){ .block = block, .align = align };
}

void *mem_layout_take(mem_layout *a, uint64_t n, uint64_t width, uint64_t bytes)
{
    uint64_t size, end;
    void *p = a->block ? a->block + a->used : NULL;
    if (a->used == UINT64_MAX || !size_mul(&size, n, width) || !size_mul(&size, size, bytes) ||
        !size_add(&end, a->used, size) || !size_add(&end, end, a->align)) {
        a->used = UINT64_MAX;
        return NULL;
    }
    a->used = size_align(end - a->align, a->align);
    return p;
}

float *mem_layout_floats(mem_layout *a, int n, int64_t width)
{
    return (float *)mem_layout_take(a, (uint64_t)n, (uint64_t)width, sizeof(float));
}

uint64_t mem_layout_rewind(mem_layout *a, uint64_t begin)
{
    const uint64_t end = a->used;
    if (end != UINT64_MAX) a->used = begin;
    return end;
}

void mem_layout_extend(mem_layout *a, uint64_t end)
{
    if (a->used < end) a->used = end;
}

void mem_fail_after(long n)
{
    atomic_store(&fail_at, n > 0 ? atomic_load(&alloc_count) + n : 0);
}

void mem_guard(bool on) { atomic_store(&guard_on, on); }

long mem_count(void) { return atomic_load(&alloc_count); }

/* ---- byte strings ------------------------------------------------------------------------ */

str_view str_from(const char *terminated)
{
    return (str_view){ terminated, strlen(terminated) };
}

bool str_eq(str_view a, str_view b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_is(str_view a, const char *terminated)
{
    return str_eq(a, str_from(terminated));
}

bool str_starts(str_view a, const char *prefix)
{
    const size_t n = strlen(prefix);
    return a.len >= n && memcmp(a.ptr, prefix, n) == 0;
}

bool str_ends(str_view a, const char *suffix)
{
    const size_t n = strlen(suffix);
    return a.len >= n && memcmp(a.ptr + a.len - n, suffix, n) == 0;
}

int str_compare(str_view a, str_view b)
{
    const size_t n = a.len < b.len ? a.len : b.len;
    const int c = n ? memcmp(a.ptr, b.ptr, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

/* FNV-1a, then a final mix so that the low bits are usable as a table index. */
uint64_t str_hash(str_view a)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < a.len; i++) h = (h ^ (uint8_t)a.ptr[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

char *textbuf_room(textbuf *b, size_t n)
{
    if (b->failed) return NULL;
    if (n > b->cap - b->len || !b->ptr) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->len < n && cap <= SIZE_MAX / 2) cap *= 2;
        char *p = cap - b->len < n ? NULL : mem_resize(b->ptr, cap, 1);
        if (!p) {
            b->failed = true;
            return NULL;
        }
        b->ptr = p;
        b->cap = cap;
    }
    return b->ptr + b->len;
}

void textbuf_put(textbuf *b, str_view s)
{
    char *at = s.len ? textbuf_room(b, s.len) : NULL;
    if (!at) return;
    memcpy(at, s.ptr, s.len);
    b->len += s.len;
}

void textbuf_str(textbuf *b, const char *terminated)
{
    textbuf_put(b, str_from(terminated));
}

void textbuf_printf(textbuf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : textbuf_room(b, (size_t)n + 1);
    if (to) {
        vsnprintf(to, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

void textbuf_drop(textbuf *b, size_t n)
{
    if (n && n < b->len) memmove(b->ptr, b->ptr + n, b->len - n);
    b->len -= n;
}

void textbuf_free(textbuf *b)
{
    mem_free(b->ptr);
    *b = (textbuf){ 0 };
}

int utf8_decode(uint32_t *cp, const uint8_t *p, size_t n)
{
    static const uint32_t smallest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t v;
    int len;

    if (n == 0) return 0;
    if (p[0] < 0x80) { *cp = p[0]; return 1; }
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    len = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (n < (size_t)len) return 0;
    v = p[0] & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        v = v << 6 | (p[i] & 0x3Fu);
    }
    if (v < smallest[len] || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) return 0;
    *cp = v;
    return len;
}

/* Returns false for control characters, line separators and marks of writing direction. */
static bool is_printable(uint32_t cp)
{
    return cp >= 0x20 && !(cp >= 0x7F && cp <= 0x9F) && !(cp >= 0x2028 && cp <= 0x202E) &&
           !(cp >= 0x2066 && cp <= 0x2069) && cp != 0x200E && cp != 0x200F;
}

const char *str_escape(char *dst, size_t cap, str_view s)
{
    const uint8_t *p = (const uint8_t *)s.ptr;
    size_t used = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        const int n = utf8_decode(&cp, p + i, s.len - i);
        const bool plain = n > 0 && is_printable(cp);
        const size_t need = plain ? (size_t)n : 4;
        if (used + need + 4 > cap) {             /* reserves bytes for "..." and the terminator */
            if (cap >= 4) { memcpy(dst + used, "...", 3); used += 3; }
            break;
        }
        if (plain) {
            memcpy(dst + used, p + i, need);
            i += need;
        } else {
            snprintf(dst + used, 5, "\\x%02X", p[i]);
            i++;
        }
        used += need;
    }
    if (cap) dst[used] = '\0';
    return dst;
}
