/* bytes.h - little-endian fields at any address, and a cursor that cannot leave its range.
 *
 * The cursor tests n <= size - pos, because pos + n could overflow. On failure it does not move. */
#ifndef LOADER_BYTES_H
#define LOADER_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \
    "this engine reads little-endian files with plain loads; big-endian machines are not supported"
#endif

static inline uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline float load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
static inline double load_f64(const void *p) { double v; memcpy(&v, p, 8); return v; }
static inline void store_u16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void store_u32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store_u64(void *p, uint64_t v) { memcpy(p, &v, 8); }

typedef struct cursor {
    const uint8_t *base;
    uint64_t size, pos;                  /* pos <= size, always */
} cursor;

static inline uint64_t cursor_left(const cursor *c) { return c->size - c->pos; }

/* Returns the next n bytes and moves past them, or NULL if fewer are left. */
static inline const uint8_t *cursor_take(cursor *c, uint64_t n)
{
    const uint8_t *p = c->base + c->pos;
    if (n > cursor_left(c)) return NULL;
    c->pos += n;
    return p;
}

#endif
