/* arm_blocks_types.h - 32 weights and a scale, in NEON: the differences between the types.
 *
 * Converts the bytes of a block to weights, and sums and scales to the values of a group of four
 * blocks. The type is always a constant and everything is inlined, so a kernel contains only the
 * instructions of its type. loader/quant_blocks.h draws the layouts.
 *
 * arm_k_quants_body.h unpacks Q4_K and Q5_K; their values are computed here. */
#ifndef ENGINE_CPU_ARM_BLOCKS_TYPES_H
#define ENGINE_CPU_ARM_BLOCKS_TYPES_H

#include <stdbool.h>

#include "engine/cpu/arm_dotprod.h"
#include "loader/bytes.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"

enum { GROUP = 4 };                      /* blocks */

/* ---- properties of types ------------------------------------------------------------------- */

/* Bytes of 32 weights. */
ARM_INLINE size_t block_bytes(quant_type type)
{
    switch (type) {
    case QT_Q4_0: return sizeof(block_q4_0);
    case QT_Q4_1: return sizeof(block_q4_1);
    case QT_Q5_0: return sizeof(block_q5_0);
    case QT_Q5_1: return sizeof(block_q5_1);
    case QT_Q8_0: return sizeof(block_q8_0);
    case QT_IQ4_NL: return sizeof(block_iq4_nl);
    case QT_MXFP4: return sizeof(block_mxfp4);
    case QT_IQ4_XS: return sizeof(block_iq4_xs) / 8;
    default: return sizeof(block_nvfp4) / 2;
    }
}

ARM_INLINE size_t group_bytes(quant_type type)
{
    return GROUP * block_bytes(type);
}

ARM_INLINE bool has_table(quant_type type)
{
    return type == QT_IQ4_NL || type == QT_IQ4_XS || type == QT_MXFP4 || type == QT_NVFP4;
}

ARM_INLINE bool has_fifth_bit(quant_type type)
{
    return type == QT_Q5_0 || type == QT_Q5_1;
}

/* v = d * A + c * B, with the block's sum of activations as B. */
ARM_INLINE bool has_minimum(quant_type type)
{
    return type == QT_Q4_1 || type == QT_Q5_1 || type == QT_Q4_K || type == QT_Q5_K;
}

/* Constant to add to every unpacked weight. */
ARM_INLINE int weight_offset(quant_type type)
{
    return type == QT_Q4_0 ? -8 : type == QT_Q5_1 ? 16 : 0;
}

/* v = d * A + c * B, with the sums of the two halves as A and B. */
ARM_INLINE bool has_two_scales(quant_type type) { return type == QT_NVFP4; }

/* ---- initial value of sums ------------------------------------------------------------------ */

/* On a core like Neoverse N1, two vector pipes limit the kernels. A zero takes one pipe slot and a
 * conversion to float two, while load pipes have free slots. There sums start at a loaded constant,
 * as in arm_wide.h: the bits of 0x4B400000 + I are the float 12582912 + I, exactly, for |I| < 2^22,
 * and one subtraction gives the float I. Q8_0 is excluded, because its loads are the limit.
 *
 * Newer cores create a zero without a pipe. Neoverse V1 is slower with the constant: 16.0 instead
 * of 17.0 GB/s of MXFP4. */
ARM_INLINE bool starts_above_zero(quant_type type)
{
    return SAVE_VECTOR_PIPES && type != QT_Q8_0;
}

/* Initial value of one of the partial sums of a total: four, or two and two. */
ARM_INLINE int32x4_t sum_start(quant_type type)
{
    enum { START = 0x4B400000 };
    static const int32_t one[4] = { START, 0, 0, 0 }, two[4] = { START, 0, START, 0 };
    if (!starts_above_zero(type)) return vdupq_n_s32(0);
    return *(const volatile int32x4_t *)(has_two_scales(type) ? two : one);
}

ARM_INLINE float32x4_t total_value(quant_type type, int32x4_t total)
{
    if (!starts_above_zero(type)) return vcvtq_f32_s32(total);
    return vsubq_f32(vreinterpretq_f32_s32(total), vdupq_n_f32(12582912.0f));
}

/* ---- a block of weights -------------------------------------------------------------------- */

typedef struct constants {
    int8x16_t table;                     /* weight of each 4-bit code */
    uint8x16_t byte_of[2], bit_of;       /* byte and bit of the fifth bit of weight i of a half */
} constants;

ARM_INLINE constants constants_for(quant_type type)
{
    static const int8_t e2m1[16] = { E2M1_TWICE }, iq4[16] = { IQ4_LEVELS };
    const int8x16_t table = vld1q_s8(type == QT_IQ4_NL || type == QT_IQ4_XS ? iq4 : e2m1);
    const uint8x16_t byte = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
    constants c = { .table = table };

    if (has_table(type)) c.table = vreinterpretq_s8_u8(settled(vreinterpretq_u8_s8(table)));
    if (has_fifth_bit(type)) {
        c.byte_of[0] = settled(byte);
        c.byte_of[1] = settled(vaddq_u8(byte, vdupq_n_u8(2)));
        c.bit_of = settled(vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201))));
    }
    return c;
}

/* A block as loaded. */
typedef struct packed {
    uint8x16_t codes;                    /* 32 codes of 4 bits; Q8_0: the first 16 weights */
    uint8x16_t more;                     /* Q8_0: the other 16; else the 32 fifth bits, inverted */
} packed;

typedef struct weights {
    int8x16_t half[2];
} weights;

/* IQ4_XS: the bytes of a group are not contiguous. The address of a group is that of its
 * super-block, plus half of the super-block's bytes if half is 1. Other types ignore half. */
ARM_INLINE const uint8_t *super_block_of(const uint8_t *group, int half)
{
    return group - (size_t)half * (sizeof(block_iq4_xs) / 2);
}

/* Loads block k of a group. */
ARM_INLINE packed packed_load(quant_type type, const uint8_t *group, int half, int k)
{
    const uint8_t *p = group + (size_t)k * block_bytes(type);
    packed b = { .more = vdupq_n_u8(0) };

    if (type == QT_Q8_0) {
        p += offsetof(block_q8_0, quants);
        b = (packed){ vld1q_u8(p), vld1q_u8(p + 16) };
    } else if (type == QT_NVFP4) {       /* a block_nvfp4 has two blocks of 32 */
        p = group + (size_t)(k / 2) * sizeof(block_nvfp4);
        b.codes = vld1q_u8(p + offsetof(block_nvfp4, nibbles) + 16 * (k % 2));
    } else if (type == QT_IQ4_XS) {
        p = super_block_of(group, half) + offsetof(block_iq4_xs, nibbles);
        b.codes = vld1q_u8(p + 16 * (GROUP * half + k));
    } else {
        b.codes = vld1q_u8(p + block_bytes(type) - 16);      /* always at the end */
    }
    if (has_fifth_bit(type))
        b.more = vcombine_u8(vcreate_u8(~load_u32(p + block_bytes(type) - 20)), vdup_n_u8(0));
    HERE(b.codes);
    if (has_fifth_bit(type) || type == QT_Q8_0) HERE(b.more);
    return b;
}

/* Returns all ones in the bytes of weights whose fifth bit is 0. */
ARM_INLINE uint8x16_t fifth_is_zero(packed b, const constants *c, int half)
{
    return vtstq_u8(vqtbl1q_u8(b.more, c->byte_of[half]), c->bit_of);
}

/* Returns the weights before weight_offset(). Q4_1 and Q4_0: the codes. Types with fifth bits: the
 * code minus 16, as Q5_0 needs; a fifth bit of 0 sets the four bits above the code. */
ARM_INLINE weights unpack(quant_type type, packed b, const constants *c)
{
    uint8x16_t low = b.codes, high = b.more;
    weights w;

    if (has_fifth_bit(type)) {
        low = vbslq_u8(vdupq_n_u8(15), b.codes, fifth_is_zero(b, c, 0));
        high = vsriq_n_u8(fifth_is_zero(b, c, 1), b.codes, 4);
    } else if (type != QT_Q8_0) {
        low = vandq_u8(b.codes, vdupq_n_u8(15));
        HERE(low);
        high = vshrq_n_u8(b.codes, 4);
        HERE(high);
    }
    w.half[0] = has_table(type) ? vqtbl1q_s8(c->table, low) : vreinterpretq_s8_u8(low);
    HERE(w.half[0]);
    w.half[1] = has_table(type) ? vqtbl1q_s8(c->table, high) : vreinterpretq_s8_u8(high);
    HERE(w.half[1]);
    return w;
}

/* ---- the scales of a group ----------------------------------------------------------------- */

/* Scales gathered in general registers, which are idle: four numbers of 16 bits in each. NVFP4 has
 * eight numbers of 8 bits in d, with the two halves of a block adjacent. MXFP4 may instead have
 * four floats, two in d and two in c, so that no vector instruction has to shift exponents. */
typedef struct scale_bits {
    uint64_t d, c;
} scale_bits;

ARM_INLINE bool has_float_bits(quant_type type)
{
    return SAVE_VECTOR_PIPES && type == QT_MXFP4;
}

/* IQ4_XS: joins nibble and upper two bits of four scales, 16 bits each; c has d. */
ARM_INLINE scale_bits spread_scales(const uint8_t *super_block, int half)
{
    const uint64_t head = load_u64(super_block);             /* d : 16, upper : 16, nibbles : 32 */
    uint64_t low = head >> (32 + 16 * half) & 0xFFFF, high = head >> (16 + 8 * half) & 0xFF;
    low = (low | low << 24) & UINT64_C(0x000000FF000000FF);
    high = (high | high << 28) & UINT64_C(0x0000000F0000000F);
    low = (low | low << 12) & UINT64_C(0x000F000F000F000F);
    high = (high | high << 14) & UINT64_C(0x0003000300030003);
    return (scale_bits){ low | high << 4, head & 0xFFFF };
}

ARM_INLINE void scale_bits_add(quant_type type, scale_bits *b, const uint8_t *group, int half,
                               int k)
{
    const uint8_t *p = group + (size_t)k * block_bytes(type);
    if (type == QT_IQ4_XS) {
        if (k == 0) *b = spread_scales(super_block_of(group, half), half);
    } else if (has_float_bits(type)) {
        *(k < 2 ? &b->d : &b->c) |= (uint64_t)*p << (32 * (k % 2) + 23);
    } else if (type == QT_MXFP4) {
        b->d |= (uint64_t)*p << (16 * k + 8);
    } else if (type != QT_NVFP4) {
        b->d |= (uint64_t)load_u16(p) << 16 * k;
    } else if (k % 2 == 0) {
        b->d |= (uint64_t)load_u32(p) << 16 * k;
    }
    if (has_minimum(type)) b->c |= (uint64_t)load_u16(p + 2) << 16 * k;
    HERE_BITS(b->d);
    if (has_float_bits(type) && k >= 2) HERE_BITS(b->c);
}

/* Mask of the lowest n numbers of `bits` bits in a register. */
ARM_INLINE uint64_t lowest(int n, int bits)
{
    return n * bits < 64 ? (UINT64_C(1) << n * bits) - 1 : UINT64_MAX;
}

/* Clears the scales after the first n >= 1 blocks. */
ARM_INLINE scale_bits scale_bits_first(quant_type type, scale_bits b, int n)
{
    if (has_float_bits(type))
        return (scale_bits){ b.d & lowest(n, 32), b.c & (n > 2 ? lowest(n - 2, 32) : 0) };
    return (scale_bits){ b.d & lowest(n, 16), b.c & lowest(n, 16) };
}

ARM_INLINE float32x4_t halves_to_f32(uint64_t bits)
{
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(bits)));
}

/* Assembly, because compilers use an instruction for the upper half that also needs a vector
 * pipe. */
ARM_INLINE float32x4_t floats_of_bits(uint64_t low, uint64_t high)
{
    float32x4_t v;
    __asm__("fmov %d0, %1\n\tfmov %0.d[1], %2" : "=&w"(v) : "r"(low), "r"(high));
    return v;
}

typedef struct scales {
    float32x4_t d, c;
} scales;

/* IQ4_XS: d times 6 bits is exact. NVFP4: codes 0x7F and 0xFF are 0; the others, shifted, are
 * binary16 numbers of 2^-8 times the value. MXFP4: moves exponents from the upper byte of 16 bits
 * to a float's exponent field. */
ARM_INLINE scales scales_from(quant_type type, scale_bits b)
{
    if (type == QT_NVFP4) {
        const uint64_t low7 = UINT64_C(0x7F7F7F7F7F7F7F7F), even = UINT64_C(0x00FF00FF00FF00FF);
        const uint64_t code = b.d & low7, bit7 = ~low7;
        const uint64_t is_7f = (code + (bit7 >> 7)) & bit7;
        b.d = code & ~(is_7f - (is_7f >> 7));
        b.c = (b.d >> 8 & even) << 7;
        b.d = (b.d & even) << 7;
    }
    if (type == QT_IQ4_XS) {
        const uint16x4_t six = vreinterpret_u16_u64(vcreate_u64(b.d));
        const int32x4_t sc = vreinterpretq_s32_u32(vsubl_u16(six, vdup_n_u16(32)));
        return (scales){ .d = vmulq_laneq_f32(vcvtq_f32_s32(sc), halves_to_f32(b.c), 0) };
    }
    if (has_float_bits(type)) return (scales){ .d = floats_of_bits(b.d, b.c) };
    if (type == QT_MXFP4) {
        const uint16x4_t e = vreinterpret_u16_u64(vcreate_u64(b.d));
        return (scales){ .d = vreinterpretq_f32_u32(vshll_n_u16(e, 15)) };
    }
    if (has_minimum(type) || has_two_scales(type))
        return (scales){ halves_to_f32(b.d), halves_to_f32(b.c) };
    return (scales){ .d = halves_to_f32(b.d) };
}

/* ---- the values of a group ----------------------------------------------------------------- */

/* Four integers A and, for types with a minimum or two scales, four B. */
typedef struct group_sums {
    int32x4_t a, b;
} group_sums;

/* From the partial sums of two pairs of blocks: totals of four, or of two and two. s: sums of
 * activations. */
ARM_INLINE group_sums sums_from(quant_type type, int32x4_t blocks01, int32x4_t blocks23,
                                int16x8_t s)
{
    group_sums g = { .a = blocks01, .b = blocks23 };
    if (has_two_scales(type)) {
        g.a = vuzp1q_s32(blocks01, blocks23);
        g.b = vuzp2q_s32(blocks01, blocks23);
    } else {
        g.a = vpaddq_s32(blocks01, blocks23);
        if (has_minimum(type)) g.b = vpaddlq_s16(s);
    }
    if (weight_offset(type) != 0)
        g.a = vpadalq_s16(g.a, vmulq_n_s16(s, (int16_t)weight_offset(type)));
    return g;
}

typedef struct group_floats {
    float32x4_t a, b;
} group_floats;

ARM_INLINE group_floats floats_from(quant_type type, group_sums g)
{
    group_floats f = { .a = total_value(type, g.a) };
    HERE(f.a);
    if (has_two_scales(type)) {
        f.b = total_value(type, g.b);
        HERE(f.b);
    }
    if (has_minimum(type)) {
        f.b = vcvtq_f32_s32(g.b);
        HERE(f.b);
    }
    return f;
}

ARM_INLINE float32x4_t values(quant_type type, group_floats f, scales s)
{
    if (has_minimum(type) || has_two_scales(type))
        return vfmaq_f32(vmulq_f32(s.c, f.b), s.d, f.a);
    return vmulq_f32(s.d, f.a);
}

#endif
