/* arm_dotprod.h - what the NEON kernels with sdot share: block sums, lanes and the prefetch.
 *
 * The arithmetic of docs/numerics.md in vectors of four blocks: two sdot a block leave four partial
 * sums of it in a register, three addp turn four such registers into one vector of block sums, and
 * that vector, scaled, is added to half of the eight lanes. Blocks 0-3 of eight belong to the low
 * half, blocks 4-7 to the high one.
 *
 * One row after the other, in the order of addresses: memory is fastest with one stream of reads
 * and a prefetch that runs ahead of it. */
#ifndef ENGINE_CPU_ARM_DOTPROD_H
#define ENGINE_CPU_ARM_DOTPROD_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

/* Kernels are made of small functions with constant arguments. (Not all in one, where every access
 * is checked: compilers would need minutes.) */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ARM_INLINE static inline
#else
#define ARM_INLINE static inline __attribute__((always_inline))
#endif

/* Keeps a vector where the program has it: what follows in the program follows in the code. The
 * vector queues of a core are short; instructions that come long before their operands are ready
 * block those after them. Kernels therefore spread dependent instructions over others, and
 * compilers, which count on large queues, must not bring them together again. */
#define HERE(vector) __asm__ volatile("" : : "w"(vector))
#define HERE_BITS(number) __asm__ volatile("" : : "r"(number))       /* in a general register */

/* A constant, passed through an instruction that computes nothing: on Neoverse V1 a register that
 * was loaded long ago is slower to read than one that was computed. 17.6 instead of 16.9 GB/s. */
ARM_INLINE uint8x16_t settled(uint8x16_t constant)
{
    __asm__ volatile("orr %0.16b, %0.16b, %1.16b" : "+w"(constant) : "w"(vdupq_n_u8(0)));
    return constant;
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Rows follow each other in memory, so what lies this far ahead is soon needed, in the next rows
 * or in the next call. A prefetch cannot fault. To L3 only: L1 and L2 would lose what the kernel
 * works on, and they have prefetchers of their own. Reading on Neoverse V1: 27 GB/s a core without,
 * 40 with; flat from 10 to 40 KB. */
enum { PREFETCH_AHEAD = 12 * 1024, CACHE_LINE = 64 };

/* Assembly, because gcc spends registers on the addresses that __builtin_prefetch() gets. */
ARM_INLINE void prefetch_line(const uint8_t *p)
{
    typedef uint64_t anywhere __attribute__((aligned(1)));
    __asm__ volatile("prfm pldl3keep, %0" : : "m"(*(const anywhere *)p));
}

/* Call it for all weights, in order, whenever the kernel comes to them: a line without prefetch
 * stops the stream. bytes should be a constant. */
ARM_INLINE void prefetch_weights(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CACHE_LINE) prefetch_line(p + PREFETCH_AHEAD + i);
}

/* The same for kernels that live on every slot for loads: each line once, though groups of weights
 * are no multiple of it. A second prefetch of a line costs as much as the first. */
typedef struct prefetcher {
    const uint8_t *next;
} prefetcher;

ARM_INLINE prefetcher prefetch_from(const uint8_t *p)
{
    const uintptr_t line = ((uintptr_t)p + PREFETCH_AHEAD) / CACHE_LINE * CACHE_LINE;
    return (prefetcher){ (const uint8_t *)line };
}

/* At the start of a row: where rows are no multiple of the steps it runs ahead or falls behind. */
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

/* Four partial sums of w * q. The zero is made in place: compilers keep one in a register and copy
 * it for each sdot, and a copy costs what a movi does not. */
ARM_INLINE int32x4_t dot_first(int8x16_t w, int8x16_t q)
{
    int32x4_t sum;
    __asm__("movi %0.2d, #0\n\tsdot %0.4s, %1.16b, %2.16b" : "=&w"(sum) : "w"(w), "w"(q));
    return sum;
}

/* Adds four more to them; one sdot after another on the same register does not wait. */
ARM_INLINE int32x4_t dot_next(int32x4_t sum, int8x16_t w, int8x16_t q)
{
    return vdotq_s32(sum, w, q);
}

/* The totals of four registers, in order. */
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

/* lane[i] + lane[i+4], then ((p0 + p1) + (p2 + p3)) + 0: a minus zero becomes a plus zero. */
ARM_INLINE float lanes_fold(lanes a)
{
    const float32x4_t p = vaddq_f32(a.low, a.high);
    const float32x2_t pairs = vget_low_f32(vpaddq_f32(p, p));
    return vpadds_f32(pairs) + 0.0f;
}

#endif
