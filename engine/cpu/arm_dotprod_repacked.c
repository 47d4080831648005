/* arm_dotprod_repacked.c - Q8_0 and Q6_K repacked in bundles of four interleaved rows.
 *
 * A quad is four consecutive weights of a row. One sdot multiplies a quad of each of four rows by
 * the same four activations. So a register has one sum for each row, no sum across a register is
 * needed, and activations are loaded once for four rows. Repacking does not change the size.
 *
 * On Neoverse V1, from memory: Q8_0 38.5 instead of 30 GB/s per core, the limit of its reads; Q6_K
 * 27 instead of 15.6. */
#include <string.h>

#include "engine/cpu/arm_dotprod.h"
#include "engine/cpu/contract_blocks.h"
#include "engine/cpu/isa_sets.h"
#include "loader/quant_blocks.h"

enum { BUNDLE = 4, LANES = 8, AHEAD = 16 * 1024 };

/* ---- shared ---------------------------------------------------------------------------------- */

/* lanes_fold() for four rows. */
ARM_INLINE float32x4_t fold(const float32x4_t lane[LANES])
{
    const float32x4_t p0 = vaddq_f32(lane[0], lane[4]), p1 = vaddq_f32(lane[1], lane[5]);
    const float32x4_t p2 = vaddq_f32(lane[2], lane[6]), p3 = vaddq_f32(lane[3], lane[7]);
    return vaddq_f32(vaddq_f32(vaddq_f32(p0, p1), vaddq_f32(p2, p3)), vdupq_n_f32(0));
}

/* Returns the sums of a bundle with one token. */
typedef float32x4_t bundle_fn(const uint8_t *p, const act_row *x, int cols);

ARM_INLINE void dot_bundles(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                            const act_row *x, int n_token, int cols, bundle_fn *dot)
{
    for (int r = 0; r < n_row; r += BUNDLE)
        for (int t = 0; t < n_token; t++) {
            const float32x4_t four = dot(rows + (size_t)r * row_bytes, x + t, cols);
            float *dst = sums + (size_t)t * (size_t)n_row + r;
            if (n_row - r >= BUNDLE) {
                vst1q_f32(dst, four);
            } else {
                float some[BUNDLE];
                vst1q_f32(some, four);
                memcpy(dst, some, (size_t)(n_row - r) * sizeof *dst);
            }
        }
}

/* ---- Q8_0 ------------------------------------------------------------------------------------ */

/* A block in a file is 34 bytes: half of all loads are unaligned, and each block needs a load for
 * its scale. A bundle has for every eight blocks, or fewer at the end of a row,
 *
 *     scales   [block][row]            8 * 4 * 2 bytes
 *     weights  [block][quad][row][4]   8 * 128 bytes
 */
enum { BLOCK_BYTES = BUNDLE * 32 };

/* Repacks up to eight blocks of up to four rows; missing rows become zeros. Returns the end. */
static uint8_t *repack_group(uint8_t *dst, const uint8_t *from, size_t row_bytes, int n_row, int n)
{
    uint8_t *weights = dst + (size_t)n * BUNDLE * sizeof(uint16_t);
    for (int b = 0; b < n; b++)
        for (int r = 0; r < BUNDLE; r++) {
            const block_q8_0 none = { 0 };
            const uint8_t *block = from + (size_t)r * row_bytes + (size_t)b * sizeof none;
            if (r >= n_row) block = (const uint8_t *)&none;
            memcpy(dst + (size_t)(b * BUNDLE + r) * sizeof(uint16_t), block, sizeof(uint16_t));
            for (int quad = 0; quad < 8; quad++)
                memcpy(weights + b * BLOCK_BYTES + quad * 16 + r * 4,
                       block + offsetof(block_q8_0, quants) + quad * 4, 4);
        }
    return weights + (size_t)n * BLOCK_BYTES;
}

static void repack_Q8_0(uint8_t *dst, const uint8_t *rows, size_t row_bytes, int n_row, int cols)
{
    for (int r = 0; r < n_row; r += BUNDLE)
        for (int b = 0, left = cols / 32; left > 0; b += LANES, left -= LANES)
            dst = repack_group(dst, rows + (size_t)r * row_bytes + (size_t)b * sizeof(block_q8_0),
                               row_bytes, n_row - r, left < LANES ? left : LANES);
}

/* Returns the values of one block of four rows, with 32 activations and the rows' scales. */
ARM_INLINE float32x4_t block_values(const uint8_t *p, const int8_t *q, float32x4_t d)
{
    const int8_t *w = (const int8_t *)p;
    const int8x16_t x0 = vld1q_s8(q), x1 = vld1q_s8(q + 16);
    int32x4_t even = vdupq_n_s32(0), odd = vdupq_n_s32(0);

    even = vdotq_laneq_s32(even, vld1q_s8(w), x0, 0);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 16), x0, 1);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 32), x0, 2);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 48), x0, 3);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 64), x1, 0);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 80), x1, 1);
    even = vdotq_laneq_s32(even, vld1q_s8(w + 96), x1, 2);
    odd = vdotq_laneq_s32(odd, vld1q_s8(w + 112), x1, 3);
    return vmulq_f32(d, vcvtq_f32_s32(vaddq_s32(even, odd)));
}

/* Adds n blocks to their lanes; n is a constant. One or two prefetches go with each block: all
 * together they would fill the queues, 33 instead of 38.5 GB/s. */
ARM_INLINE const uint8_t *add_group(float32x4_t lane[LANES], const uint8_t *p, const int8_t *q,
                                    const float *dx, int n)
{
    const uint8_t *weights = p + (size_t)n * BUNDLE * sizeof(uint16_t);

    prefetch_line(weights + n * BLOCK_BYTES - CACHE_LINE + AHEAD);
#pragma GCC unroll 8
    for (int b = 0; b < n; b++) {
        const uint8_t *block = weights + b * BLOCK_BYTES;
        const float16x4_t d = vreinterpret_f16_u8(vld1_u8(p + 8 * b));
        prefetch_line(p + b * BLOCK_BYTES + AHEAD);
        prefetch_line(p + b * BLOCK_BYTES + CACHE_LINE + AHEAD);
        lane[b] = vfmaq_n_f32(lane[b], block_values(block, q + 32 * b, vcvt_f32_f16(d)), dx[b]);
    }
    return weights + n * BLOCK_BYTES;
}

/* add_group() for the end of a row, with a variable n. */
static const uint8_t *add_rest(float32x4_t lane[LANES], const uint8_t *p, const int8_t *q,
                               const float *dx, int n)
{
    switch (n) {
    case 1: return add_group(lane, p, q, dx, 1);
    case 2: return add_group(lane, p, q, dx, 2);
    case 3: return add_group(lane, p, q, dx, 3);
    case 4: return add_group(lane, p, q, dx, 4);
    case 5: return add_group(lane, p, q, dx, 5);
    case 6: return add_group(lane, p, q, dx, 6);
    case 7: return add_group(lane, p, q, dx, 7);
    default: return p;
    }
}

static float32x4_t bundle_Q8_0(const uint8_t *p, const act_row *x, int cols)
{
    float32x4_t lane[LANES];
    const int8_t *q = x->q;
    const float *dx = x->dx;
    int left = cols / 32;

    for (int i = 0; i < LANES; i++) lane[i] = vdupq_n_f32(0);
    for (; left >= LANES; left -= LANES, q += LANES * 32, dx += LANES)
        p = add_group(lane, p, q, dx, LANES);
    if (left > 0) {
        float32x4_t copy[LANES];         /* taking the address of lane would move it to memory */
        memcpy(copy, lane, sizeof copy);
        add_rest(copy, p, q, dx, left);
        return fold(copy);
    }
    return fold(lane);
}

/* ---- Q6_K ------------------------------------------------------------------------------------ */

/* A bundle is
 *
 *     d        [group][row]                   4 * 2 bytes for every eight blocks
 *     groups:
 *       scales   [pair of blocks][row][4]     4 * 16 bytes; both halves of each block of the pair
 *       weights  [block][half][3][row][4]     8 * 96 bytes
 *
 * Three vectors hold the four quads of a half. The first three quads are in the upper six bits,
 *
 *     a   [ quad 0 : 6 | quad 3, bits 5-4 : 2 ]
 *     b   [ quad 1 : 6 | quad 3, bits 3-2 : 2 ]
 *     c   [ quad 2 : 6 | quad 3, bits 1-0 : 2 ]
 *
 * as signed numbers. One instruction converts them to int8 values of four times the weight. */
enum {
    HALF_BYTES = BUNDLE * 12, PAIR_SCALES = BUNDLE * 4, GROUP_D = BUNDLE * 2,
    GROUP_SCALES = LANES / 2 * PAIR_SCALES, GROUP_BYTES = GROUP_SCALES + LANES * 2 * HALF_BYTES,
};
static_assert(GROUP_D + GROUP_BYTES == BUNDLE * sizeof(block_q6_k), "as many bytes as before");

/* Repacks 16 weights of one row. */
static void repack_half(uint8_t *dst, const int8_t *w)
{
    for (int i = 0; i < 4; i++) {
        const int last = w[12 + i] & 63;
        for (int k = 0; k < 3; k++)
            dst[k * 16 + i] = (uint8_t)(w[4 * k + i] * 4 | (last >> (4 - 2 * k) & 3));
    }
}

/* Repacks row r of a group. */
static void repack_super_block(uint8_t *d, uint8_t *group, int r, const uint8_t *block)
{
    block_parts p;
    contract_blocks_of(QT_Q6_K)->unpack(&p, block, LANES);
    memcpy(d + r * 2, block + offsetof(block_q6_k, d), 2);
    for (int b = 0; b < LANES; b++)
        for (int half = 0; half < 2; half++) {
            group[b / 2 * PAIR_SCALES + r * 4 + b % 2 * 2 + half] = (uint8_t)p.sc[half][b];
            repack_half(group + GROUP_SCALES + (2 * b + half) * HALF_BYTES + r * 4,
                         p.w + 32 * b + 16 * half);
        }
}

static void repack_Q6_K(uint8_t *dst, const uint8_t *rows, size_t row_bytes, int n_row, int cols)
{
    const size_t n_group = (size_t)cols / SEGMENT;
    for (int first = 0; first < n_row; first += BUNDLE, dst += BUNDLE * row_bytes) {
        const int n = n_row - first < BUNDLE ? n_row - first : BUNDLE;
        memset(dst, 0, BUNDLE * row_bytes);
        for (int r = 0; r < n; r++)
            for (size_t g = 0; g < n_group; g++)
                repack_super_block(dst + g * GROUP_D, dst + n_group * GROUP_D + g * GROUP_BYTES, r,
                                    rows + (size_t)(first + r) * row_bytes +
                                        g * sizeof(block_q6_k));
    }
}

/* ---- Q6_K, multiplying: single instructions in a fixed order ---- */

ARM_INLINE int8x16_t upper_six(uint8x16_t v)
{
    const uint8x16_t six = vandq_u8(v, vdupq_n_u8(0xFC));
    HERE(six);
    return vreinterpretq_s8_u8(six);
}

/* Joins the last quad in three steps of two-bit fields: [ . . b c ], [ . b c 0 ], [ a b c 0 ]. */
ARM_INLINE uint8x16_t append(uint8x16_t c, uint8x16_t b)
{
    const uint8x16_t bc = vsliq_n_u8(c, b, 2);
    HERE(bc);
    return bc;
}

ARM_INLINE uint8x16_t move_up(uint8x16_t bc)
{
    const uint8x16_t up = vshlq_n_u8(bc, 2);
    HERE(up);
    return up;
}

ARM_INLINE int8x16_t put_on_top(uint8x16_t bc, uint8x16_t a)
{
    const uint8x16_t abc = vsliq_n_u8(bc, a, 6);
    HERE(abc);
    return vreinterpretq_s8_u8(abc);
}

ARM_INLINE int32x4_t add_quad(int32x4_t sum, int8x16_t w, int8x16_t x, int quad)
{
    switch (quad) {
    case 0: sum = vdotq_laneq_s32(sum, w, x, 0); break;
    case 1: sum = vdotq_laneq_s32(sum, w, x, 1); break;
    case 2: sum = vdotq_laneq_s32(sum, w, x, 2); break;
    default: sum = vdotq_laneq_s32(sum, w, x, 3); break;
    }
    HERE(sum);
    return sum;
}

/* movi creates a zero for free; compilers would copy a zero register, which is not free. */
ARM_INLINE int32x4_t zero(void)
{
    int32x4_t v;
    __asm__ volatile("movi %0.2d, #0" : "=w"(v));
    return v;
}

/* Returns byte i of each word, sign-extended: one sdot instead of two widening instructions. */
ARM_INLINE int32x4_t byte_of(int8x16_t words, int i)
{
    static const int8_t only[16] = { 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1 };
    return add_quad(zero(), words, vld1q_s8(only), i);
}

/* ---- Q6_K, multiplying: blocks ---- */

/* The pipeline's state. Three blocks are in different stages, because waiting instructions would
 * fill the core's short queues: 27 instead of 18.5 GB/s. */
typedef struct in_flight {
    int32x4_t half[2];                   /* last block: sums of its halves, times four */
    int8x16_t scales;                    /* scales of its pair */
    int32x4_t both;                      /* block before it: its scaled sum, times four */
    float32x4_t d;                       /* d of that block */
} in_flight;

/* Returns sc_0 I_0 + sc_1 I_1 of the last block, block b of its group. */
ARM_INLINE int32x4_t scaled_sum(const in_flight *f, int b)
{
    const int32x4_t scale0 = byte_of(f->scales, b % 2 * 2);
    const int32x4_t scale1 = byte_of(f->scales, b % 2 * 2 + 1);
    const int32x4_t both = vmlaq_s32(vmulq_s32(f->half[0], scale0), f->half[1], scale1);
    HERE(both);
    return both;
}

/* Multiplies block b of a group, scales the last block, and adds the block before that, whose
 * activation scale is dx, to its lane. The order of instructions is the fastest of some hundreds
 * that were measured. */
ARM_INLINE void add_block(float32x4_t *lane, in_flight *f, const float *dx, const uint8_t *group,
                          const int8_t *q, int b)
{
    const uint8_t *w = group + GROUP_SCALES + b * 2 * HALF_BYTES;
    const uint8x16_t a0 = vld1q_u8(w), b0 = vld1q_u8(w + 16);
    uint8x16_t c0 = vld1q_u8(w + 32);
    const uint8x16_t a1 = vld1q_u8(w + HALF_BYTES), b1 = vld1q_u8(w + HALF_BYTES + 16);
    uint8x16_t c1 = vld1q_u8(w + HALF_BYTES + 32);
    const int8x16_t x0 = vld1q_s8(q + 32 * b), x1 = vld1q_s8(q + 32 * b + 16);

    const int8x16_t quad4 = upper_six(a1);
    float32x4_t value = vcvtq_n_f32_s32(f->both, 2);
    HERE(value);
    f->both = scaled_sum(f, (b + 1) % 2);
    const int8x16_t quad0 = upper_six(a0);
    int32x4_t sum0 = add_quad(zero(), quad0, x0, 0);
    const int8x16_t quad2 = upper_six(c0);
    c0 = append(c0, b0);
    if (b % 2 == 0) f->scales = vld1q_s8((const int8_t *)group + b / 2 * PAIR_SCALES);
    const int8x16_t quad6 = upper_six(c1), quad1 = upper_six(b0);
    int32x4_t sum1 = add_quad(zero(), quad4, x1, 0);
    c1 = append(c1, b1);
    sum0 = add_quad(sum0, quad2, x0, 2);
    const int8x16_t quad5 = upper_six(b1);
    sum1 = add_quad(sum1, quad6, x1, 2);
    sum0 = add_quad(sum0, quad1, x0, 1);
    c0 = move_up(c0);
    sum1 = add_quad(sum1, quad5, x1, 1);
    const int8x16_t quad3 = put_on_top(c0, a0);
    c1 = move_up(c1);
    value = vmulq_f32(f->d, value);
    HERE(value);
    const int8x16_t quad7 = put_on_top(c1, a1);
    *lane = vfmaq_n_f32(*lane, value, *dx);
    HERE(*lane);
    f->half[0] = add_quad(sum0, quad3, x0, 3);
    f->half[1] = add_quad(sum1, quad7, x1, 3);
}

/* Multiplies one group. Its last two blocks are completed in the next call; dx_before has the
 * scales of the previous group. */
ARM_INLINE void add_super_blocks(float32x4_t lane[LANES], in_flight *f, const uint8_t *d,
                                 const uint8_t *group, const int8_t *q, const float *dx,
                                 const float *dx_before)
{
#pragma GCC unroll 8
    for (int b = 0; b < LANES; b++) {
        const int done = (b + LANES - 2) % LANES;
        prefetch_line(group + 2 * b * CACHE_LINE + AHEAD);
        if (2 * b + 1 < GROUP_BYTES / CACHE_LINE)
            prefetch_line(group + (2 * b + 1) * CACHE_LINE + AHEAD);
        if (b == 2) f->d = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(d)));
        add_block(&lane[done], f, (b < 2 ? dx_before : dx) + done, group, q, b);
    }
}

static float32x4_t bundle_Q6_K(const uint8_t *p, const act_row *x, int cols)
{
    static const float nothing[LANES] = { 0 };
    const int n_group = cols / SEGMENT;
    const uint8_t *d = p, *group = p + n_group * GROUP_D;
    const float *dx = x->dx, *dx_before = nothing;
    const int32x4_t none = vdupq_n_s32(0);
    in_flight f = { { none, none }, vdupq_n_s8(0), none, vdupq_n_f32(0) };
    float32x4_t lane[LANES];

    for (int i = 0; i < LANES; i++) lane[i] = vdupq_n_f32(0);
    for (int g = 0; g < n_group; g++, d += GROUP_D, group += GROUP_BYTES) {
        if (g % (CACHE_LINE / GROUP_D) == 0) prefetch_line(d + AHEAD);
        add_super_blocks(lane, &f, d, group, x->q + g * SEGMENT, dx, dx_before);
        dx_before = dx;
        dx += LANES;
    }
    const float32x4_t value6 = vmulq_f32(f.d, vcvtq_n_f32_s32(f.both, 2));
    const float32x4_t value7 = vmulq_f32(f.d, vcvtq_n_f32_s32(scaled_sum(&f, 7), 2));
    lane[6] = vfmaq_n_f32(lane[6], value6, dx_before[6]);
    lane[7] = vfmaq_n_f32(lane[7], value7, dx_before[7]);
    return fold(lane);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define DEFINE(NAME)                                                                               \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_bundles(sums, rows, row_bytes, n_row, x, n_token, cols, bundle_##NAME);                \
    }
DEFINE(Q8_0)
DEFINE(Q6_K)

void put_dotprod_repacked(kernel_set *s)
{
    s->of[QT_Q8_0].repacked = (repacking){ BUNDLE, repack_Q8_0, dot_Q8_0 };
    s->of[QT_Q6_K].repacked = (repacking){ BUNDLE, repack_Q6_K, dot_Q6_K };
}
