/* x86_unsigned8.h - shared by x86_avx2_small.c and x86_avxvnni_wide.c: tiles of eight rows with
 * unsigned weights, u = w + offset, and signed activations.
 *
 * Sums start at minus the offset times the sum of the activations, which is stored with the
 * activations. Weights are stored as [step][row][4], with four columns per step.
 *
 * Define OFFSET and HALVES_OFFSET before the include, put_starts() and add_products() after it. */
#ifndef ENGINE_CPU_X86_UNSIGNED8_H
#define ENGINE_CPU_X86_UNSIGNED8_H

#include <immintrin.h>

enum {
    PANEL_ROWS = 8, ROW_VECTORS = 1,
    WEIGHT_BYTES = 32 * PANEL_ROWS,
    SCALE_COPIES = 1,
    STRIP_TOKENS = 1, TILE_STRIPS = 6,
    ACT_BYTES = 32 + 2 * 4,              /* codes, then initial values of the sums of the halves */
    ACT_FLOATS = 1,
    STEPS = 8, STEP_BYTES = 32,
};

#include "engine/cpu/wide.h"
#include "engine/cpu/x86_wide8.h"

/* Returns the offset that makes weights unsigned. */
static inline int offset_of(wide_kind kind)
{
    return kind == WIDE_SCALED_HALVES ? HALVES_OFFSET : OFFSET;
}

/* ---- layouts ------------------------------------------------------------------------------- */

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    __m256i row[8], step[STEPS];
    for (int r = 0; r < 8; r++) row[r] = _mm256_loadu_si256((const void *)(parts[r].w + 32 * j));
    transpose_dwords(step, row);
    for (int s = 0; s < STEPS; s++) _mm256_store_si256((void *)(w + STEP_BYTES * s), step[s]);
}

/* With two sums for each of six tokens the lanes do not fit in registers. Four tokens have the same
 * speed per token, two are slower. */
static int tile_strips(wide_kind kind, int left)
{
    const bool one_sum = !kind_is_of_halves(kind) && kind != WIDE_LONG_MINIMUM;
    return left >= 6 && (one_sum || left % 4 >= 2) ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Stores the initial value of the sums of a block's lower half, or of the whole block if the kind
 * has one sum, in four bytes; then that of the upper half in four more. */
static inline void put_starts(int8_t *dst, const act_row *x, int b, wide_kind kind);

static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind)
{
    (void)n_token;                       /* is 1 */
    for (int lane = 0; lane < LANES; lane++) {
        int pos = act_at(first, w, k, slot_of(n, lane));
        for (int j = lane; j < n; j += LANES, pos += w) {
            const __m256i q = _mm256_loadu_si256((const void *)(x->q + 32 * (b0 + j)));
            _mm256_storeu_si256((void *)a->q[pos], q);
            put_starts(a->q[pos] + 32, x, b0 + j, kind);
            put_act_floats(a, pos, x, b0 + j, kind);
        }
    }
}

/* ---- sums ---------------------------------------------------------------------------------- */

#define TILE_WIDTHS(X, ...)                                                                        \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(4, __VA_ARGS__) X(6, __VA_ARGS__)

typedef __m256i tile_ints[TILE_STRIPS];

/* Adds the products of a step with four activations to the sums of eight rows. */
WIDE_INLINE __m256i add_products(__m256i sum, __m256i rows, __m256i four);

WIDE_INLINE __m256i four_repeated(const int8_t *p)
{
    return _mm256_set1_epi32((int)load_u32(p));
}

WIDE_INLINE void add_step(tile_ints sum, const int8_t *weights, const int8_t *q, int w, int step,
                          bool first)
{
    const __m256i rows = _mm256_load_si256((const void *)(weights + STEP_BYTES * step));
    for (int k = 0; k < w; k++) {
        sum[k] = add_products(first ? _mm256_setzero_si256() : sum[k], rows,
                              four_repeated(q + ACT_BYTES * k + 4 * step));
        __asm__("" : "+x"(sum[k]));      /* stops gcc from delaying the additions */
    }
    in_order();
}

/* Adds half of a block. Unrolled by hand: compilers do not unroll so far and copy registers
 * instead. */
WIDE_INLINE void add_half(tile_ints sum, const int8_t *weights, const int8_t *q, int w, int half,
                          bool first)
{
    add_step(sum, weights, q, w, 4 * half, first);
    add_step(sum, weights, q, w, 4 * half + 1, false);
    add_step(sum, weights, q, w, 4 * half + 2, false);
    add_step(sum, weights, q, w, 4 * half + 3, false);
}

WIDE_INLINE void start_sums(tile_ints sum, const int8_t *q, int w, int half)
{
    for (int k = 0; k < w; k++) sum[k] = four_repeated(q + ACT_BYTES * k + 32 + 4 * half);
}

/* ---- scales -------------------------------------------------------------------------------- */

static inline void add_offset(block_parts *p, int offset)
{
    for (int i = 0; i < SEGMENT; i++) p->w[i] = (int8_t)(p->w[i] + offset);
}

/* Defines a scales_fn that calls another one and makes the weights unsigned. */
#define DEFINE_OFFSET_SCALES(name, scales, offset)                                                 \
    static void name(segment_floats *restrict f, int r, block_parts *restrict p)                   \
    {                                                                                              \
        scales(f, r, p);                                                                           \
        add_offset(p, offset);                                                                     \
    }
DEFINE_OFFSET_SCALES(offset_scales, plain_scales, OFFSET)
DEFINE_OFFSET_SCALES(offset_float_scales, float_half_scales, OFFSET)

#endif
