/* arm_wide.h - shared by the NEON tiles: vectors of four floats, and conversion of integer sums.
 *
 * Sums start at 0x4B400000: the bits of 0x4B400000 + I are the float 12582912 + I, exactly, for
 * |I| < 2^22, and |I| <= 128 * 127 * 32 < 2^19. One subtraction gives the float I. Neoverse V1
 * executes four subtractions per cycle but only one conversion. */
#ifndef ENGINE_CPU_ARM_WIDE_H
#define ENGINE_CPU_ARM_WIDE_H

#include <arm_neon.h>

static const int32_t sum_start[4] = { 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000 };

/* Loads the constant each time: a register copy would take the pipe slot of a product. */
WIDE_INLINE int32x4_t start_sum(void)
{
    return *(const volatile int32x4_t *)sum_start;
}

WIDE_INLINE float32x4_t sum_value(int32x4_t sum)
{
    return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(12582912.0f));
}

typedef float32x4_t vec;

WIDE_INLINE vec vec_mul(vec a, vec b) { return vmulq_f32(a, b); }
WIDE_INLINE vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
WIDE_INLINE vec rows_at(const float *p, int i) { return vld1q_f32(p + 4 * i); }
WIDE_INLINE void rows_put(float *p, int i, vec v) { vst1q_f32(p + 4 * i, v); }

#endif
