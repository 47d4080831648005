/* base.h - errors, log sink, checked sizes, clock, allocator and byte strings, for every file.
 *
 * Nothing here prints, exits or reads the environment. All functions may be called from any thread
 * unless they say otherwise. */
#ifndef LOADER_BASE_H
#define LOADER_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PRINTF_LIKE(fmt, args)
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }

/* ---- errors ------------------------------------------------------------------------------ */

/* Every function that can fail returns 0 (or a count) on success and one of these on failure. */
enum err_code {
    ERR_NOMEM = -1,         /* out of memory */
    ERR_IO = -2,            /* a system call failed; the message ends with errno's text */
    ERR_FORMAT = -3,        /* a file, line or message violates its format */
    ERR_UNSUPPORTED = -4,   /* well formed, but this build cannot process it */
    ERR_RANGE = -5,         /* an argument or number is outside its allowed range */
    ERR_STOPPED = -6        /* the caller's callback stopped the operation */
};

/* The function that detects a failure fills it once: one line with the object and the numbers. */
typedef struct err_ctx {
    int code;
    char msg[768];
} err_ctx;

/* Writes code and message into *err (which may be NULL) and returns code. */
int err_set(err_ctx *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Like err_set with ERR_IO; appends ": <text of errno>" to the message. */
int err_sys(err_ctx *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Puts "<prefix>: " before the message that is already in *err. Returns rc unchanged. */
int err_prefix(err_ctx *err, int rc, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- log --------------------------------------------------------------------------------- */

/* The sink gets one finished line without newline. NULL, the default, drops it. Set it once, at
 * start; it may be called from any thread. */
typedef void log_sink_fn(void *ctx, const char *line);
void log_set_sink(log_sink_fn *fn, void *ctx);
void log_line(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* ---- callbacks --------------------------------------------------------------------------- */

/* Reports progress; the function that calls it defines the unit. Returns false to stop. */
typedef bool progress_fn(void *ctx, double done, double total);

/* Long operations call it between steps. Returns false to stop. */
typedef bool keep_going_fn(void *ctx);

/* ---- sizes, clock, random numbers --------------------------------------------------------- */

/* Checked arithmetic for numbers from a file. Returns false on overflow; *out is then undefined. */
static inline bool size_mul(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_add_overflow(a, b, out);
}
/* Saturating product and sum: UINT64_MAX if they overflow. */
static inline uint64_t size_times(uint64_t a, uint64_t b)
{
    uint64_t all;
    return size_mul(&all, a, b) ? all : UINT64_MAX;
}
static inline uint64_t size_plus(uint64_t a, uint64_t b)
{
    uint64_t all;
    return size_add(&all, a, b) ? all : UINT64_MAX;
}

/* Rounds n up to a multiple of align, a power of two. n + align must not overflow. */
static inline uint64_t size_align(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

uint64_t clock_ns(void);                 /* monotonic */
static inline double clock_since(uint64_t from_ns) { return (double)(clock_ns() - from_ns) * 1e-9; }

/* Sorts in ascending order. */
void sort_doubles(double *v, int n);

/* Returns word i of the splitmix64 stream with this key. For seeds, synthetic data and tests; not
 * for secrets. */
static inline uint64_t random_word(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- memory ------------------------------------------------------------------------------ */

/* The only allocator. Returns NULL on failure, also if n * size overflows. mem_free(NULL) is a
 * no-op. */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_array(size_t n, size_t size);                  /* n * size bytes, uninitialised */
void *mem_resize(void *p, size_t n, size_t size);        /* p stays valid on failure */
/* Returns the list of n elements with room for another one, at its address or a new one. The
 * capacity doubles; it is at least 16. NULL: no memory, and list and *cap are as they were. */
void *mem_grow(void *list, int n, int *cap, size_t size);
char *mem_strdup_n(const char *s, size_t len);           /* terminated copy */
void mem_free(void *p);

/* Many buffers in one block. The caller runs the same sequence of calls twice: without a block to
 * count bytes, then with one to assign addresses. Block and buffers are aligned to `align`. */
typedef struct mem_layout {
    uint8_t *block;                      /* NULL while counting */
    uint64_t used;                       /* bytes; UINT64_MAX after an overflow */
    uint64_t align;                      /* a power of two */
} mem_layout;

mem_layout mem_layout_count(uint64_t align);
mem_layout mem_layout_over(void *block, uint64_t align);
/* Reserves n * width * bytes bytes. Returns their address, or NULL while counting. */
void *mem_layout_take(mem_layout *a, uint64_t n, uint64_t width, uint64_t bytes);
float *mem_layout_floats(mem_layout *a, int n, int64_t width);
/* Two buffers that are never in use together can overlap. After the first, _rewind(its start)
 * returns its end; after the second, _extend(that end) raises `used` to it if it is larger. */
uint64_t mem_layout_rewind(mem_layout *a, uint64_t begin);
void mem_layout_extend(mem_layout *a, uint64_t end);

/* For tests. After mem_fail_after(n) only the n-th allocation (1: the next) fails; 0 cancels it.
 * Between mem_guard(true) and mem_guard(false) every allocation fails: the token loop must not
 * allocate. mem_count() returns the number of allocations since the start. */
void mem_fail_after(long n);
void mem_guard(bool on);
long mem_count(void);

/* ---- byte strings ------------------------------------------------------------------------ */

/* Borrowed bytes with any content, not terminated. Compare with str_eq, never with strcmp. */
typedef struct str_view {
    const char *ptr;
    size_t len;
} str_view;

str_view str_from(const char *terminated);
bool str_eq(str_view a, str_view b);
bool str_is(str_view a, const char *terminated);
bool str_starts(str_view a, const char *prefix);
bool str_ends(str_view a, const char *suffix);
int str_compare(str_view a, str_view b);                 /* by bytes; a prefix sorts first */
uint64_t str_hash(str_view a);                           /* for hash tables; no seed */

/* Copies s in printable form: control characters and invalid UTF-8 become \xNN; text that exceeds
 * cap ends in "...". Terminates dst and returns it. ESC(buf, s) is for arguments of err_set. */
const char *str_escape(char *dst, size_t cap, str_view s);
#define ESC(buf, s) str_escape((buf), sizeof(buf), (s))

/* A growing text. Zero-initialise; textbuf_free releases it. After a failed allocation `failed` is
 * set and later text is dropped, so callers check `failed` once, at the end. */
typedef struct textbuf {
    char *ptr;
    size_t len, cap;
    bool failed;                         /* out of memory: the text is incomplete */
} textbuf;

void textbuf_put(textbuf *b, str_view s);
void textbuf_str(textbuf *b, const char *terminated);
void textbuf_printf(textbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
char *textbuf_room(textbuf *b, size_t n);        /* address for n more bytes, or NULL; the caller
                                                  * then adds to len */
void textbuf_drop(textbuf *b, size_t n);                 /* removes the first n bytes */
void textbuf_free(textbuf *b);
static inline str_view textbuf_view(const textbuf *b)
{
    const str_view v = { b->ptr, b->len };
    return v;
}

/* Returns the length of the valid UTF-8 sequence at p (1 to 4), or 0 if the n bytes begin with
 * none. Overlong forms, surrogates and values above 10FFFF are invalid. Sets *cp. */
int utf8_decode(uint32_t *cp, const uint8_t *p, size_t n);

#ifdef __cplusplus
}
#endif
#endif
