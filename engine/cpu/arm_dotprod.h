/* arm_dotprod.h - shared by the NEON kernels with sdot: block sums, lanes and prefetch.
 *
 * The arithmetic of docs/numerics.md in vectors of four blocks: two sdot a block leave four partial
 * sums of it in a register, three addp turn four such registers into one vector of block sums, and
 * that vector, scaled, is added to half of the eight lanes. Blocks 0-3 of eight belong to the low
 * half, blocks 4-7 to the high one.
 *
 * Rows are read in the order of addresses: memory is fastest with one stream of reads and a
 * prefetch ahead of it. */
#ifndef ENGINE_CPU_ARM_DOTPROD_H
#define ENGINE_CPU_ARM_DOTPROD_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

/* Kernels consist of small inlined functions with constant arguments. (Builds with sanitizers do
 * not inline: compilation would take minutes.) */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ARM_INLINE static inline
#else
#define ARM_INLINE static inline __attribute__((always_inline))
#endif

/* Fixes the place of a vector's computation: later statements follow it in the machine code. The
 * vector queues of a core are short, and instructions that wait for operands block later ones.
 * Kernels therefore put independent instructions between dependent ones, and compilers, which
 * assume large queues, must not undo that. */
#define HERE(vector) __asm__ volatile("" : : "w"(vector))
#define HERE_BITS(number) __asm__ volatile("" : : "r"(number))       /* in a general register */

/* Passes a constant through an instruction without effect: on Neoverse V1 a register that was
 * loaded long ago is slower to read than a computed one. 17.6 instead of 16.9 GB/s. */
ARM_INLINE uint8x16_t settled(uint8x16_t constant)
{
    __asm__ volatile("orr %0.16b, %0.16b, %1.16b" : "+w"(constant) : "w"(vdupq_n_u8(0)));
    return constant;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Rows are contiguous, so the bytes this far ahead are soon needed, by the next rows or the next
 * call. A prefetch cannot fault. It goes to L3 only: in L1 and L2 it would evict the working set,
 * and they have hardware prefetchers. Reads on Neoverse V1: 27 GB/s per core without it, 40 with
 * it, for any distance from 10 to 40 KB. */
enum { PREFETCH_AHEAD = 12 * 1024, CACHE_LINE = 64 };

/* Assembly, because gcc spends registers on the addresses that __builtin_prefetch() gets. */
ARM_INLINE void prefetch_line(const uint8_t *p)
{
    typedef uint64_t anywhere __attribute__((aligned(1)));
    __asm__ volatile("prfm pldl3keep, %0" : : "m"(*(const anywhere *)p));
}

/* Call it for all weights, in order: a cache line without prefetch stalls the stream. bytes should
 * be a constant. */
ARM_INLINE void prefetch_weights(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CACHE_LINE) prefetch_line(p + PREFETCH_AHEAD + i);
}

/* For kernels that are limited by load slots: prefetches each line exactly once, although groups of
 * weights are not multiples of a line. A repeated prefetch costs as much as the first. */
typedef struct prefetcher {
    const uint8_t *next;
} prefetcher;

ARM_INLINE prefetcher prefetch_from(const uint8_t *p)
{
    const uintptr_t line = ((uintptr_t)p + PREFETCH_AHEAD) / CACHE_LINE * CACHE_LINE;
    return (prefetcher){ (const uint8_t *)line };
}

/* Call at the start of a row. Resets the position if rows are not a multiple of the steps. */
ARM_INLINE void prefetch_row(prefetcher *f, const uint8_t *row)
{
    const uint8_t *cursor = row + PREFETCH_AHEAD;
    if (f->next + CACHE_LINE < cursor || f->next > cursor + 8 * CACHE_LINE) *f = prefetch_from(row);
}

ARM_INLINE void prefetch_go_on(prefetcher *f, const uint8_t *p, size_t bytes)
{
    const uint8_t *end = p + PREFETCH_AHEAD + bytes;
    const size_t n = bytes / CACHE_LINE;
    for (size_t i = 0; i < n; i++) prefetch_line(f->next + CACHE_LINE * i);
    f->next += CACHE_LINE * n;
    if (f->next < end) {
        prefetch_line(f->next);
        f->next += CACHE_LINE;
    }
}

/* ---- integers ------------------------------------------------------------------------------ */

/* Four partial sums of w * q. movi creates the zero for free; compilers would copy a zero register
 * for each sdot, which is not free. */
ARM_INLINE int32x4_t dot_first(int8x16_t w, int8x16_t q)
{
    int32x4_t sum;
    __asm__("movi %0.2d, #0\n\tsdot %0.4s, %1.16b, %2.16b" : "=&w"(sum) : "w"(w), "w"(q));
    return sum;
}

/* Adds products to the partial sums; consecutive sdot on one register do not wait. */
ARM_INLINE int32x4_t dot_next(int32x4_t sum, int8x16_t w, int8x16_t q)
{
    return vdotq_s32(sum, w, q);
}

/* Returns the totals of four registers, in order. */
ARM_INLINE int32x4_t totals(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d)
{
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

/* ---- lanes --------------------------------------------------------------------------------- */

typedef struct lanes {
    float32x4_t low, high;
} lanes;

ARM_INLINE lanes lanes_zero(void)
{
    return (lanes){ vdupq_n_f32(0), vdupq_n_f32(0) };
}

/* lane[i] + lane[i+4], then ((p0 + p1) + (p2 + p3)) + 0; the last turns -0 into +0. */
ARM_INLINE float lanes_fold(lanes a)
{
    const float32x4_t p = vaddq_f32(a.low, a.high);
    const float32x2_t pairs = vget_low_f32(vpaddq_f32(p, p));
    return vpadds_f32(pairs) + 0.0f;
}

#endif
