/* arm_k_quants_body.h - NEON + dotprod kernels for super-blocks of 256 weights: the K-quants. Two
 * files include it, for two kinds of cores, after the definition of SAVE_VECTOR_PIPES as for
 * arm_blocks_body.h, which has IQ4_XS.
 *
 * A super-block is eight blocks of 32, one for each lane of the contract. It has two halves of four
 * blocks, because four block sums are a vector, and each half has two columns: the first and the
 * second 16 weights of its four blocks. Formats differ in how they unpack a column (*_column),
 * where their sub-scales are (*_scales) and how a block's value is computed (add_*).
 *
 * Two products are computed together, either two rows with one token or one row with two tokens.
 * They share loads, but the order of instructions matters more: a core's vector queues are short,
 * and waiting instructions block others. So each step is done for all vectors before the next step,
 * and keep_order() stops the compiler from loading far ahead. On Neoverse V1 that gains 15 to 30%.
 * Q4_K and Q5_K with a few tokens use the pipeline of arm_few.h instead. */
#ifndef ENGINE_CPU_ARM_K_QUANTS_BODY_H
#define ENGINE_CPU_ARM_K_QUANTS_BODY_H

#include "engine/cpu/arm_few.h"
#include "engine/cpu/isa_sets.h"
#include "loader/bytes.h"
#include "loader/quant_blocks.h"

enum { SUPER = 256, MOST_TOKENS = 8 };

/* 16 weights of each of four blocks. */
typedef struct column {
    int8x16_t w[4];
} column;

/* Scales of a super-block. A format sets the fields that its add function reads. */
typedef struct sub_scales {
    int32x4_t sc[2][2];                  /* [half][column]; [half][0] if a block has only one */
    int16x8_t m[2];                      /* minimums: see the add functions */
    float32x4_t d;                       /* d in lane 0, dmin in lane 1 */
    float32x4_t d_block;                 /* d for each block of a half */
} sub_scales;

/* One token's activations at a super-block. */
typedef struct act_at {
    const int8_t *q;
    const float *dx;
    const int16_t *s;
} act_at;

/* Sums of products of four blocks: by column, or of both columns in by[0]. */
typedef struct half_sum {
    int32x4_t by[2];
} half_sum;

/* half and the column number k are constants in every call. */
typedef column column_fn(const uint8_t *block, int half, int k);
typedef sub_scales scales_fn(const uint8_t *block);

/* Adds the super-blocks of n products, 1 or 2, to their lanes. Product i is in lane and sum 2i, the
 * low half, and 2i + 1. */
typedef void add_fn(float32x4_t *lane, half_sum *sum, const sub_scales *u, const act_at *x, int n);

ARM_INLINE void keep_order(void) { __asm__ volatile("" : : : "memory"); }

ARM_INLINE int8x16_t as_s8(uint8x16_t v) { return vreinterpretq_s8_u8(v); }

/* Replaces the bits of the mask in v with those of `from`. Compilers emit three instructions for
 * vbslq. */
ARM_INLINE uint8x16_t put_bits(uint8x16_t v, uint8x16_t from, uint8x16_t mask)
{
    __asm__("bit %0.16b, %1.16b, %2.16b" : "+w"(v) : "w"(from), "w"(mask));
    return v;
}

/* Return the binary16 at p in lane 0; the second function also the next one, in lane 1. */
ARM_INLINE float32x4_t half_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(load_u16(p))));
}
ARM_INLINE float32x4_t two_halves_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(load_u32(p))));
}

/* A byte repeated eight times. */
#define BYTES(b) (UINT64_C(0x0101010101010101) * (b))

/* ---- values, one sub-scale a block ------------------------------------------------------- */

ARM_INLINE float32x4_t dx_of(const act_at *x, int i)
{
    return vld1q_f32(x[i / 2].dx + 4 * (i % 2));
}

/* v = d * (sc * sum) - dmin * (m * s): the second product is rounded, then the difference. Computes
 * -v, the operand of two fused subtractions. m[0] has the minimums of the low half in lanes 0-3,
 * m[1] those of the high half in lanes 4-7, aligned with the sums of the activations. */
ARM_INLINE void add_minus_min(float32x4_t *lane, half_sum *sum, const sub_scales *u,
                              const act_at *x, int n)
{
    int32x4_t a[4], b[4];
    float32x4_t scaled[4], minus_v[4];
    for (int i = 0; i < 2 * n; i++) {
        const int16x8_t s = vpaddq_s16(vld1q_s16(x[i / 2].s), vld1q_s16(x[i / 2].s + 8));
        b[i] = i % 2 == 0 ? vmull_s16(vget_low_s16(u[i / 2].m[0]), vget_low_s16(s))
                          : vmull_high_s16(u[i / 2].m[1], s);
    }
    for (int i = 0; i < 2 * n; i++) a[i] = vmulq_s32(u[i / 2].sc[i % 2][0], sum[i].by[0]);
    for (int i = 0; i < 2 * n; i++) minus_v[i] = vcvtq_f32_s32(b[i]);
    for (int i = 0; i < 2 * n; i++) scaled[i] = vcvtq_f32_s32(a[i]);
    for (int i = 0; i < 2 * n; i++) minus_v[i] = vmulq_laneq_f32(minus_v[i], u[i / 2].d, 1);
    for (int i = 0; i < 2 * n; i++)
        minus_v[i] = vfmsq_laneq_f32(minus_v[i], scaled[i], u[i / 2].d, 0);
    for (int i = 0; i < 2 * n; i++) lane[i] = vfmsq_f32(lane[i], minus_v[i], dx_of(x, i));
}

/* ---- values, a sub-scale for each column ------------------------------------------------- */

/* Sums of the activations of all blocks, by column. */
typedef struct act_sums {
    int16x8_t by[2];
} act_sums;

ARM_INLINE act_sums act_sums_at(const int16_t *s)
{
    const int16x8_t low = vld1q_s16(s), high = vld1q_s16(s + 8);
    return (act_sums){ { vuzp1q_s16(low, high), vuzp2q_s16(low, high) } };
}

/* sc[0] * sum[0] + sc[1] * sum[1] */
ARM_INLINE void scale_columns(float32x4_t *scaled, const half_sum *sum, const sub_scales *u, int n)
{
    int32x4_t a[4];
    for (int i = 0; i < 2 * n; i++) a[i] = vmulq_s32(u[i / 2].sc[i % 2][0], sum[i].by[0]);
    for (int i = 0; i < 2 * n; i++) a[i] = vmlaq_s32(a[i], u[i / 2].sc[i % 2][1], sum[i].by[1]);
    for (int i = 0; i < 2 * n; i++) scaled[i] = vcvtq_f32_s32(a[i]);
}

/* v = d * (sc * sum), after subtracting the codes' offset from the sums, in integers. */
ARM_INLINE void add_without_offset(float32x4_t *lane, half_sum *sum, const sub_scales *u,
                                   const act_at *x, int n, int16x8_t offset)
{
    act_sums s[2];
    float32x4_t v[4];
    for (int i = 0; i < n; i++) s[i] = act_sums_at(x[i].s);
    for (int i = 0; i < n; i++) {
        half_sum *low = &sum[2 * i], *high = low + 1;
        low->by[0] = vmlsl_s16(low->by[0], vget_low_s16(s[i].by[0]), vget_low_s16(offset));
        low->by[1] = vmlsl_s16(low->by[1], vget_low_s16(s[i].by[1]), vget_low_s16(offset));
        high->by[0] = vmlsl_high_s16(high->by[0], s[i].by[0], offset);
        high->by[1] = vmlsl_high_s16(high->by[1], s[i].by[1], offset);
    }
    scale_columns(v, sum, u, n);
    for (int i = 0; i < 2 * n; i++) v[i] = vmulq_f32(v[i], u[i / 2].d_block);
    for (int i = 0; i < 2 * n; i++) lane[i] = vfmaq_f32(lane[i], v[i], dx_of(x, i));
}

/* Like add_minus_min with a minimum for each column; m[k] has those of all columns k. */
ARM_INLINE void add_minus_mins(float32x4_t *lane, half_sum *sum, const sub_scales *u,
                               const act_at *x, int n)
{
    act_sums s[2];
    int32x4_t b[4];
    float32x4_t scaled[4], minus_v[4];
    for (int i = 0; i < n; i++) s[i] = act_sums_at(x[i].s);
    for (int i = 0; i < n; i++) {
        b[2 * i] = vmull_s16(vget_low_s16(u[i].m[0]), vget_low_s16(s[i].by[0]));
        b[2 * i + 1] = vmull_high_s16(u[i].m[0], s[i].by[0]);
    }
    for (int i = 0; i < n; i++) {
        b[2 * i] = vmlal_s16(b[2 * i], vget_low_s16(u[i].m[1]), vget_low_s16(s[i].by[1]));
        b[2 * i + 1] = vmlal_high_s16(b[2 * i + 1], u[i].m[1], s[i].by[1]);
    }
    scale_columns(scaled, sum, u, n);
    for (int i = 0; i < 2 * n; i++) minus_v[i] = vcvtq_f32_s32(b[i]);
    for (int i = 0; i < 2 * n; i++) minus_v[i] = vmulq_laneq_f32(minus_v[i], u[i / 2].d, 1);
    for (int i = 0; i < 2 * n; i++)
        minus_v[i] = vfmsq_f32(minus_v[i], scaled[i], u[i / 2].d_block);
    for (int i = 0; i < 2 * n; i++) lane[i] = vfmsq_f32(lane[i], minus_v[i], dx_of(x, i));
}

ARM_INLINE void put_sub_scales(sub_scales *u, int16x8_t first, int16x8_t second)
{
    u->sc[0][0] = vmovl_s16(vget_low_s16(first));
    u->sc[0][1] = vmovl_s16(vget_low_s16(second));
    u->sc[1][0] = vmovl_high_s16(first);
    u->sc[1][1] = vmovl_high_s16(second);
}

/* Sets sc from one byte for each column, in the order of the weights. */
ARM_INLINE void put_signed_sub_scales(sub_scales *u, int8x16_t bytes)
{
    const int16x8_t pairs = vreinterpretq_s16_s8(bytes);
    put_sub_scales(u, vshrq_n_s16(vshlq_n_s16(pairs, 8), 8), vshrq_n_s16(pairs, 8));
}

/* ---- Q4_K, Q5_K -------------------------------------------------------------------------- */

ARM_INLINE column q4_k_column(const uint8_t *block, int half, int k)
{
    const block_q4_k *b = (const block_q4_k *)block;
    const uint8x16_t low = vdupq_n_u8(15);
    const uint8x16_t x = vld1q_u8(b->nibbles[2 * half] + 16 * k);
    const uint8x16_t y = vld1q_u8(b->nibbles[2 * half + 1] + 16 * k);
    return (column){ { as_s8(vandq_u8(x, low)), as_s8(vshrq_n_u8(x, 4)),
                       as_s8(vandq_u8(y, low)), as_s8(vshrq_n_u8(y, 4)) } };
}

/* Unpacks eight bytes at a time. With s = scales of loader/quant_blocks.h, the lower six bits of
 * s[0-7] are scales 0-3 and minimums 0-3; their upper two bits, above the nibbles of s[8-11], are
 * scales 4-7 and minimums 4-7. */
ARM_INLINE sub_scales q4_k_scales(const uint8_t *block)
{
    const uint64_t d_s03 = load_u64(block), s4b = load_u64(block + 8);
    const uint64_t s07 = d_s03 >> 32 | s4b << 32;
    const uint64_t nibbles = s4b >> 32 | (s4b >> 4 & UINT64_C(0xFFFFFFFF00000000));
    const uint64_t low = s07 & BYTES(0x3F);
    const uint64_t high = (nibbles & BYTES(0x0F)) | (s07 >> 2 & BYTES(0x30));
    sub_scales u;
    u.m[0] = vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(low << 32 | low >> 32)));
    u.m[1] = vreinterpretq_s16_u16(vmovl_u8(vcreate_u8(high)));
    u.sc[0][0] = vmovl_high_s16(u.m[0]);
    u.sc[1][0] = vmovl_s16(vget_low_s16(u.m[1]));
    u.d = two_halves_at(block);
    return u;
}

/* Moves the fifth bits of this half to the upper nibble, and from there to bit 4. */
ARM_INLINE column q5_k_column(const uint8_t *block, int half, int k)
{
    const block_q5_k *b = (const block_q5_k *)block;
    const uint8x16_t low = vdupq_n_u8(15), fifth = vdupq_n_u8(16);
    const uint8x16_t x = vld1q_u8(b->nibbles[2 * half] + 16 * k);
    const uint8x16_t y = vld1q_u8(b->nibbles[2 * half + 1] + 16 * k);
    const uint8x16_t all = vld1q_u8(b->high + 16 * k), bits = half == 0 ? vshlq_n_u8(all, 4) : all;
    return (column){ { as_s8(put_bits(vandq_u8(x, low), bits, fifth)),
                       as_s8(put_bits(vshrq_n_u8(x, 4), vshrq_n_u8(bits, 1), fifth)),
                       as_s8(put_bits(vandq_u8(y, low), vshrq_n_u8(bits, 2), fifth)),
                       as_s8(vsriq_n_u8(vshrq_n_u8(bits, 3), y, 4)) } };
}

ARM_INLINE sub_scales q5_k_scales(const uint8_t *block)
{
    return q4_k_scales(block);
}

/* ---- Q6_K -------------------------------------------------------------------------------- */

/* Codes 0 to 63. Shift-and-insert may leave bits of other codes above the six. */
ARM_INLINE column q6_k_column(const uint8_t *block, int half, int k)
{
    const block_q6_k *b = (const block_q6_k *)block;
    const uint8x16_t six = vdupq_n_u8(0x3F), upper = vdupq_n_u8(0x30);
    const uint8x16_t x = vld1q_u8(b->low[half] + 16 * k);
    const uint8x16_t y = vld1q_u8(b->low[half] + 32 + 16 * k);
    const uint8x16_t high = vld1q_u8(b->high + 32 * half + 16 * k), shifted = vshrq_n_u8(high, 2);
    return (column){ { as_s8(vandq_u8(vsliq_n_u8(x, high, 4), six)),
                       as_s8(vandq_u8(vsliq_n_u8(y, shifted, 4), six)),
                       as_s8(put_bits(vshrq_n_u8(x, 4), high, upper)),
                       as_s8(vsriq_n_u8(shifted, y, 4)) } };
}

ARM_INLINE sub_scales q6_k_scales(const uint8_t *block)
{
    const block_q6_k *b = (const block_q6_k *)block;
    sub_scales u;
    put_signed_sub_scales(&u, vld1q_s8(b->scales));
    u.d_block = vdupq_laneq_f32(half_at(b->d), 0);
    return u;
}

ARM_INLINE void add_q6_k(float32x4_t *lane, half_sum *sum, const sub_scales *u, const act_at *x,
                         int n)
{
    add_without_offset(lane, sum, u, x, n, vdupq_n_s16(32));
}

/* ---- Q2_K, Q3_K -------------------------------------------------------------------------- */

/* "Four planes" of 2 bits. Planes 1 and 2 are masked but not shifted, so their codes are multiplied
 * by 4 and 16; d of these blocks is divided by as much. */
ARM_INLINE void put_planes(uint8x16_t *plane, const uint8_t *quants)
{
    const uint8x16_t q = vld1q_u8(quants);
    plane[0] = vandq_u8(q, vdupq_n_u8(0x03));
    plane[1] = vandq_u8(q, vdupq_n_u8(0x0C));
    plane[2] = vandq_u8(q, vdupq_n_u8(0x30));
    plane[3] = vshrq_n_u8(q, 6);
}

ARM_INLINE float32x4_t d_of_planes(float32x4_t d)
{
    static const float unit[4] = { 1, 1.0f / 4, 1.0f / 16, 1 };
    return vmulq_laneq_f32(vld1q_f32(unit), d, 0);
}

ARM_INLINE column q2_k_column(const uint8_t *block, int half, int k)
{
    const block_q2_k *b = (const block_q2_k *)block;
    uint8x16_t p[4];
    put_planes(p, b->quants + 32 * half + 16 * k);
    return (column){ { as_s8(p[0]), as_s8(p[1]), as_s8(p[2]), as_s8(p[3]) } };
}

ARM_INLINE sub_scales q2_k_scales(const uint8_t *block)
{
    const block_q2_k *b = (const block_q2_k *)block;
    const uint16x8_t pairs = vreinterpretq_u16_u8(vld1q_u8(b->scales)), low = vdupq_n_u16(15);
    sub_scales u;
    put_sub_scales(&u, vreinterpretq_s16_u16(vandq_u16(pairs, low)),
                   vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(pairs, 8), low)));
    u.m[0] = vreinterpretq_s16_u16(vandq_u16(vshrq_n_u16(pairs, 4), low));
    u.m[1] = vreinterpretq_s16_u16(vshrq_n_u16(pairs, 12));
    u.d = two_halves_at(b->d);
    u.d_block = d_of_planes(u.d);
    return u;
}

/* Codes 0 to 7: bit j of `high` is above the two bits of block j. */
ARM_INLINE column q3_k_column(const uint8_t *block, int half, int k)
{
    const block_q3_k *b = (const block_q3_k *)block;
    const uint8x16_t h = vld1q_u8(b->high + 16 * k);
    uint8x16_t p[4];
    put_planes(p, b->quants + 32 * half + 16 * k);
    p[0] = put_bits(p[0], half == 0 ? vshlq_n_u8(h, 2) : vshrq_n_u8(h, 2), vdupq_n_u8(0x04));
    p[1] = put_bits(p[1], half == 0 ? vshlq_n_u8(h, 3) : vshrq_n_u8(h, 1), vdupq_n_u8(0x10));
    p[2] = put_bits(p[2], half == 0 ? vshlq_n_u8(h, 4) : h, vdupq_n_u8(0x40));
    p[3] = put_bits(p[3], half == 0 ? vshrq_n_u8(h, 1) : vshrq_n_u8(h, 5), vdupq_n_u8(0x04));
    return (column){ { as_s8(p[0]), as_s8(p[1]), as_s8(p[2]), as_s8(p[3]) } };
}

/* Joins S and T of loader/quant_blocks.h, for eight scales at a time. */
ARM_INLINE sub_scales q3_k_scales(const uint8_t *block)
{
    const block_q3_k *b = (const block_q3_k *)block;
    const uint64_t s = load_u64(b->scales), t = load_u32(b->scales + 8);
    const uint64_t t07 = t << 4 | t >> 2 << 36, t8f = t | t >> 2 << 32;
    const uint64_t low = (s & BYTES(0x0F)) | (t07 & BYTES(0x30));
    const uint64_t high = (s >> 4 & BYTES(0x0F)) | (t8f & BYTES(0x30));
    const int8x16_t six = vcombine_s8(vcreate_s8(low), vcreate_s8(high));
    sub_scales u;
    put_signed_sub_scales(&u, vsubq_s8(six, vdupq_n_s8(32)));
    u.d_block = d_of_planes(half_at(b->d));
    return u;
}

ARM_INLINE void add_q3_k(float32x4_t *lane, half_sum *sum, const sub_scales *u, const act_at *x,
                         int n)
{
    static const int16_t offset[8] = { 4, 16, 64, 4, 4, 16, 64, 4 };     /* in planes */
    add_without_offset(lane, sum, u, x, n, vld1q_s16(offset));
}

/* ---- sums -------------------------------------------------------------------------------- */

/* Sums one half of the super-blocks of n products. */
ARM_INLINE void sum_half(half_sum *sum, const uint8_t *const *block, const act_at *x, int n,
                         int half, bool by_column, column_fn *get_column)
{
    int32x4_t acc[2][4];
    for (int k = 0; k < 2; k++) {
        column c[2];
        for (int i = 0; i < n; i++) c[i] = get_column(block[i], half, k);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < 4; j++) {
                const int8x16_t q = vld1q_s8(x[i].q + 128 * half + 32 * j + 16 * k);
                acc[i][j] = k == 0 || by_column ? dot_first(c[i].w[j], q)
                                                : dot_next(acc[i][j], c[i].w[j], q);
            }
        for (int i = 0; i < n && (k == 1 || by_column); i++)
            sum[2 * i + half].by[by_column ? k : 0] =
                totals(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        keep_order();
    }
}

ARM_INLINE void sum_super_blocks(half_sum *sum, const uint8_t *const *block, const act_at *x, int n,
                                 bool by_column, column_fn *get_column)
{
    sum_half(sum, block, x, n, 0, by_column, get_column);
    sum_half(sum, block, x, n, 1, by_column, get_column);
}

ARM_INLINE float fold(const float32x4_t *lane)
{
    return lanes_fold((lanes){ lane[0], lane[1] });
}

/* ---- one token: two rows at a time ------------------------------------------------------- */

/* Two rows are two streams of reads for the hardware prefetcher, which is slow from memory. So the
 * contiguous range of both rows is prefetched: far ahead to L3, and to L1 before the second row. */
enum { NEAR_AHEAD = 2048 };

ARM_INLINE void prefetch_near(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch((const void *)((uintptr_t)p + i), 0, 3);
}

/* n = 1 or 2 rows with one token. */
ARM_INLINE void dot_rows(float *sums, const uint8_t *rows, size_t row_bytes, int n,
                         const act_row *x, int cols, size_t bytes, bool by_column,
                         column_fn *get_column, scales_fn *get_scales, add_fn *add)
{
    const uint8_t *block[2] = { rows, rows + (n - 1) * row_bytes };
    const uint8_t *far = rows;
    uintptr_t near = (uintptr_t)rows + row_bytes + NEAR_AHEAD;
    act_at pos = { x->q, x->dx, x->s };
    float32x4_t lane[4];

    for (int i = 0; i < 2 * n; i++) lane[i] = vdupq_n_f32(0);
    for (int c = 0; c < cols; c += SUPER) {
        const act_at same[2] = { pos, pos };
        half_sum sum[4];
        sub_scales u[2];
        prefetch_weights(far, (size_t)n * bytes);
        prefetch_near((const uint8_t *)near, (size_t)n * bytes);
        sum_super_blocks(sum, block, same, n, by_column, get_column);
        for (int i = 0; i < n; i++) u[i] = get_scales(block[i]);
        add(lane, sum, u, same, n);
        for (int i = 0; i < 2; i++) block[i] += bytes;
        pos = (act_at){ pos.q + SUPER, pos.dx + SUPER / 32, pos.s + SUPER / 16 };
        far += (size_t)n * bytes;
        near += (size_t)n * bytes;
    }
    for (int i = 0; i < n; i++) sums[i] = fold(lane + 2 * i);
}

/* ---- several tokens: one row, two tokens at a time --------------------------------------- */

/* From three tokens on a super-block is unpacked once to w; this loads its columns. */
ARM_INLINE column unpacked_column(const uint8_t *w, int half, int k)
{
    column c;
    for (int j = 0; j < 4; j++) c.w[j] = as_s8(vld1q_u8(w + 128 * half + 64 * k + 16 * j));
    return c;
}

ARM_INLINE void super_unpack(uint8_t *w, const uint8_t *block, column_fn *get_column)
{
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 2; k++) {
            const column c = get_column(block, half, k);
            for (int j = 0; j < 4; j++)
                vst1q_u8(w + 128 * half + 64 * k + 16 * j, vreinterpretq_u8_s8(c.w[j]));
        }
}

/* Adds the super-block that starts at column c, with n = 1 or 2 tokens. */
ARM_INLINE void add_tokens(float32x4_t *lane, const uint8_t *block, const sub_scales *u,
                           const act_row *x, int n, int c, bool by_column, column_fn *get_column,
                           add_fn *add)
{
    const uint8_t *same[2] = { block, block };
    const sub_scales same_scales[2] = { *u, *u };
    act_at pos[2];
    half_sum sum[4];
    for (int i = 0; i < n; i++) pos[i] = (act_at){ x[i].q + c, x[i].dx + c / 32, x[i].s + c / 16 };
    sum_super_blocks(sum, same, pos, n, by_column, get_column);
    add(lane, sum, same_scales, pos, n);
}

/* One row with 2 to MOST_TOKENS tokens. */
ARM_INLINE void dot_tokens(float *sums, size_t stride, const uint8_t *row, const act_row *x,
                           int n_token, int cols, size_t bytes, bool by_column,
                           column_fn *get_column, scales_fn *get_scales, add_fn *add)
{
    float32x4_t lane[2 * MOST_TOKENS];
    uint8_t w[SUPER];

    for (int i = 0; i < 2 * n_token; i++) lane[i] = vdupq_n_f32(0);
    for (int c = 0; c < cols; c += SUPER, row += bytes) {
        const sub_scales u = get_scales(row);
        int t = 0;
        prefetch_weights(row, bytes);
        if (n_token == 2) {
            add_tokens(lane, row, &u, x, 2, c, by_column, get_column, add);
            continue;
        }
        super_unpack(w, row, get_column);
        for (; t + 2 <= n_token; t += 2)
            add_tokens(lane + 2 * t, w, &u, x + t, 2, c, by_column, unpacked_column, add);
        if (t < n_token)
            add_tokens(lane + 2 * t, w, &u, x + t, 1, c, by_column, unpacked_column, add);
    }
    for (int t = 0; t < n_token; t++) sums[(size_t)t * stride] = fold(lane + 2 * t);
}

/* ---- a few tokens: groups of four blocks ------------------------------------------------- */

/* Formats for arm_few.h: half of a super-block is unpacked once and multiplied by two or four
 * tokens. A sub-scale times d must be exact. Q6_K, with two sub-scales per block, gains nothing. */
ARM_INLINE bool has_groups(quant_type type)
{
    return type == QT_Q4_K || type == QT_Q5_K;
}

ARM_INLINE scales group_scales(quant_type type, const sub_scales *u, int half)
{
    scales g = { .d = vmulq_laneq_f32(vcvtq_f32_s32(u->sc[half][0]), u->d, 0) };
    if (has_minimum(type)) {
        const int16x4_t m = half == 0 ? vget_low_s16(u->m[0]) : vget_high_s16(u->m[1]);
        g.c = vmulq_laneq_f32(vnegq_f32(vcvtq_f32_s32(vmovl_s16(m))), u->d, 1);
    }
    return g;
}

ARM_INLINE group_weights group_of(quant_type type, const uint8_t *block, const sub_scales *u,
                                  int half, column_fn *get_column)
{
    const column first = get_column(block, half, 0), second = get_column(block, half, 1);
    group_weights g = { .sc = group_scales(type, u, half) };
    for (int j = 0; j < GROUP; j++) g.block[j] = (weights){ { first.w[j], second.w[j] } };
    return g;
}

/* Rows with n tokens, 2 or 4. */
ARM_INLINE void dot_few(quant_type type, float *sums, size_t stride, const uint8_t *rows,
                        size_t row_bytes, int n_row, const act_row *x, int n, int cols,
                        size_t bytes, column_fn *get_column, scales_fn *get_scales)
{
    for (int r = 0; r < n_row; r++) {
        const uint8_t *block = rows + (size_t)r * row_bytes;
        few row = few_from(false, x, n);

        for (int left = cols; left > 0; left -= SUPER, block += bytes) {
            const sub_scales u = get_scales(block);
            const int to_next = left > SUPER ? SUPER / 2 : 0;
            prefetch_weights(block, bytes);
            const group_weights low = group_of(type, block, &u, 0, get_column);
            meet_tokens(type, &row, &low, 0, n, row.pos[0].q + SUPER / 2);
            const group_weights high = group_of(type, block, &u, 1, get_column);
            meet_tokens(type, &row, &high, 1, n, row.pos[0].q + to_next);
        }
        meet_end(type, &row, 1, n);
        for (int t = 0; t < n; t++) sums[(size_t)t * stride + (size_t)r] = lanes_fold(row.lane[t]);
    }
}

/* ---- the table --------------------------------------------------------------------------- */

/* Constant description of a kernel. */
typedef struct format {
    quant_type type;
    size_t bytes;
    bool by_column;
    column_fn *column;
    scales_fn *scales;
    add_fn *add;
} format;

ARM_INLINE void dot_one(const format *f, float *sums, const uint8_t *rows, size_t row_bytes,
                        int n_row, const act_row *x, int cols)
{
    int r = 0;
    for (; r + 2 <= n_row; r += 2)
        dot_rows(sums + r, rows + (size_t)r * row_bytes, row_bytes, 2, x, cols, f->bytes,
                 f->by_column, f->column, f->scales, f->add);
    if (r < n_row)
        dot_rows(sums + r, rows + (size_t)r * row_bytes, row_bytes, 1, x, cols, f->bytes,
                 f->by_column, f->column, f->scales, f->add);
}

/* Any number of tokens, four, two or one at a time; a few rows at a time, which stay in the
 * cache. */
ARM_INLINE void dot_batches(const format *f, float *sums, const uint8_t *rows, size_t row_bytes,
                            int n_row, const act_row *x, int n_token, int cols)
{
    enum { NEAR_ROWS = 32 };
    const bool one_batch = n_token <= 2 || n_token == TOKENS;
    const int most = one_batch ? n_row : NEAR_ROWS;

    for (int r = 0; r < n_row; r += most) {
        const uint8_t *first = rows + (size_t)r * row_bytes;
        const int n_here = n_row - r < most ? n_row - r : most;
        for (int t = 0, n; t < n_token; t += n) {
            float *dst = sums + (size_t)t * (size_t)n_row + r;
            n = n_token - t >= TOKENS ? TOKENS : n_token - t >= 2 ? 2 : 1;
            if (n == TOKENS)
                dot_few(f->type, dst, (size_t)n_row, first, row_bytes, n_here, x + t, TOKENS, cols,
                        f->bytes, f->column, f->scales);
            else if (n == 2)
                dot_few(f->type, dst, (size_t)n_row, first, row_bytes, n_here, x + t, 2, cols,
                        f->bytes, f->column, f->scales);
            else
                dot_one(f, dst, first, row_bytes, n_here, x + t, cols);
        }
    }
}

ARM_INLINE void dot_any(const format *f, float *sums, const uint8_t *rows, size_t row_bytes,
                        int n_row, const act_row *x, int n_token, int cols)
{
    const size_t stride = (size_t)n_row;
    int t = 0;

    if (has_groups(f->type)) {
        dot_batches(f, sums, rows, row_bytes, n_row, x, n_token, cols);
        return;
    }
    for (; n_token - t > 1; t += MOST_TOKENS)
        for (int r = 0; r < n_row; r++)
            dot_tokens(sums + (size_t)t * stride + r, stride, rows + (size_t)r * row_bytes, x + t,
                       n_token - t < MOST_TOKENS ? n_token - t : MOST_TOKENS, cols, f->bytes,
                       f->by_column, f->column, f->scales, f->add);
    if (t < n_token)
        dot_one(f, sums + (size_t)t * stride, rows, row_bytes, n_row, x + t, cols);
}

/* Type, prefix of its functions, whether each column has a sub-scale, add function. */
#define K_QUANTS(X)                                                                                \
    X(Q2_K, q2_k, true, add_minus_mins) X(Q3_K, q3_k, true, add_q3_k)                              \
    X(Q4_K, q4_k, false, add_minus_min) X(Q5_K, q5_k, false, add_minus_min)                        \
    X(Q6_K, q6_k, true, add_q6_k)

#define DEFINE(NAME, format_, by_column, add)                                                      \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        const format f = { QT_##NAME, sizeof(block_##format_), by_column, format_##_column,        \
                           format_##_scales, add };                                                \
        dot_any(&f, sums, rows, row_bytes, n_row, x, n_token, cols);                               \
    }
K_QUANTS(DEFINE)

#define PUT(NAME, format_, by_column, add) s->of[QT_##NAME].dot = dot_##NAME;

static void put_k_quants(kernel_set *s)
{
    K_QUANTS(PUT)
}

#endif
