/* base.h - what every file may use: errors, log sink, checked sizes, clock, allocator, byte
 * strings.
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
    ERR_NOMEM = -1,         /* the allocator said no */
    ERR_IO = -2,            /* the operating system said no; the message carries errno's text */
    ERR_FORMAT = -3,        /* the bytes of a file, line or message are not what they claim to be */
    ERR_UNSUPPORTED = -4,   /* well formed, but not something this build can do */
    ERR_RANGE = -5,         /* an argument or number lies outside its allowed range */
    ERR_STOPPED = -6        /* whoever asked for it said stop */
};

/* Filled once, where the failure is found: one line that names the thing and the numbers. */
typedef struct err_ctx {
    int code;
    char msg[768];
} err_ctx;

/* Writes code and message into *err (which may be NULL) and returns code. */
int err_set(err_ctx *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The same with ERR_IO, and ": <text of errno>" after the message. */
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

/* Told how far something is, in units of its own: bytes, tokens. Return false to stop it. */
typedef bool progress_fn(void *ctx, double done, double total);

/* Asked now and then. Return false to stop. */
typedef bool keep_going_fn(void *ctx);

/* ---- sizes, clock, random numbers --------------------------------------------------------- */

/* Checked arithmetic for numbers that come from a file. False means overflow, *out is undefined. */
static inline bool size_mul(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(uint64_t *out, uint64_t a, uint64_t b)
{
    return !__builtin_add_overflow(a, b, out);
}
/* UINT64_MAX: too much, or it was already. */
static inline uint64_t size_times(uint64_t a, uint64_t b)
{
    uint64_t all;
    return size_mul(&all, a, b) ? all : UINT64_MAX;
}

/* Rounds n up to a multiple of align, a power of two. The caller knows that n + align fits. */
static inline uint64_t size_align(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

uint64_t clock_ns(void);                 /* monotonic */
static inline double clock_since(uint64_t from_ns) { return (double)(clock_ns() - from_ns) * 1e-9; }

/* The smallest first. */
void sort_doubles(double *v, int n);

/* Word i of the stream of random numbers with this key: splitmix64, entered at any point. For
 * seeds, synthetic data and tests; nothing here is secret. */
static inline uint64_t random_word(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- memory ------------------------------------------------------------------------------ */

/* The only allocator. NULL on failure, also when n * size overflows. mem_free(NULL) is a no-op. */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_array(size_t n, size_t size);                  /* n * size bytes, uninitialised */
void *mem_resize(void *p, size_t n, size_t size);        /* p stays valid on failure */
char *mem_strdup_n(const char *s, size_t len);           /* terminated copy */
void mem_free(void *p);

/* Many buffers in one block: the same walk first counts, without a block, and then places. Parts
 * begin at multiples of align, and so must the block. */
typedef struct mem_layout {
    uint8_t *block;                      /* NULL while counting */
    uint64_t used;                       /* UINT64_MAX once a sum did not fit */
    uint64_t align;                      /* a power of two */
} mem_layout;

mem_layout mem_layout_count(uint64_t align);
mem_layout mem_layout_over(void *block, uint64_t align);
/* n * width * bytes of it; NULL while counting. */
void *mem_layout_take(mem_layout *a, uint64_t n, uint64_t width, uint64_t bytes);
float *mem_layout_floats(mem_layout *a, int n, int64_t width);
/* Two parts that are never in use together share their room: after the first, go back to where it
 * began, which returns its end; after the second, go on to that end if it is further. */
uint64_t mem_layout_back(mem_layout *a, uint64_t to);
void mem_layout_reach(mem_layout *a, uint64_t end);

/* Test seams. After mem_fail_after(n) the n-th allocation from now (1 = the next) fails, and only
 * that one; 0 switches it off. Between mem_guard(true) and mem_guard(false) every allocation fails:
 * the token loop must not need one. mem_count() counts allocations since the start. */
void mem_fail_after(long n);
void mem_guard(bool on);
long mem_count(void);

/* ---- byte strings ------------------------------------------------------------------------ */

/* Borrowed bytes: not terminated, any content. Compare by length and bytes, never strcmp. */
typedef struct str_view {
    const char *ptr;
    size_t len;
} str_view;

str_view str_from(const char *terminated);
bool str_eq(str_view a, str_view b);
bool str_is(str_view a, const char *terminated);
bool str_starts(str_view a, const char *prefix);
bool str_ends(str_view a, const char *suffix);
int str_compare(str_view a, str_view b);                 /* by bytes, a prefix first: < 0, 0, > 0 */
uint64_t str_hash(str_view a);                           /* for hash tables; seedless, 64 bit */

/* Makes bytes printable: control characters and invalid UTF-8 become \xNN, long text is cut with
 * "...". Always terminates dst; returns dst. ESC(buf, s) is for arguments of err_set. */
const char *str_escape(char *dst, size_t cap, str_view s);
#define ESC(buf, s) str_escape((buf), sizeof(buf), (s))

/* Text under construction. Zero-initialise; textbuf_free releases. An allocation that fails is
 * remembered and what follows is dropped, so code that builds text reads top to bottom and checks
 * failed once, at the end. */
typedef struct textbuf {
    char *ptr;
    size_t len, cap;
    bool failed;                         /* the text has a hole */
} textbuf;

void textbuf_put(textbuf *b, str_view s);
void textbuf_str(textbuf *b, const char *terminated);
void textbuf_printf(textbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
char *textbuf_room(textbuf *b, size_t n);        /* where n more bytes may be written, or NULL; the
                                                  * caller moves len */
void textbuf_drop(textbuf *b, size_t n);                 /* removes the first n bytes */
void textbuf_free(textbuf *b);
static inline str_view textbuf_view(const textbuf *b)
{
    const str_view v = { b->ptr, b->len };
    return v;
}

/* Length of the valid UTF-8 sequence at p (1 to 4), or 0 if there is none in the n bytes.
 * Overlong forms, surrogates and values above 10FFFF are invalid. *cp gets the code point. */
int utf8_decode(uint32_t *cp, const uint8_t *p, size_t n);

#ifdef __cplusplus
}
#endif
#endif
