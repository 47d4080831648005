/* vec8.h - vectors of eight floats: two registers of NEON, one of AVX2, or plain C.
 *
 * Lane i of a result depends only on lane i of the operands, every operation is rounded once, and
 * an fma is fused, so all three give the same bits. AVX-512 builds use vectors of eight too,
 * because typically eight query heads share a KV head.
 *
 *   vec8_all(x)  vec8_load(p)  vec8_store(p, a)
 *   vec8_add(a, b)  vec8_sub  vec8_mul  vec8_div
 *   vec8_fma(a, b, c)            a * b + c
 *   vec8_fma_all(x, b, c)        x * b + c, x the same for all lanes
 *   quad_load(p)                 four such x; p[0] .. p[3] must not change while it is in use
 *   vec8_fma_quad(q, i, b, c)    x is element i of the quad, a constant
 *   vec8_larger(a, b)            b where b > a, else a: NaN in a stays
 *   vec8_smaller(a, b)           b where b < a, else a
 *   vec8_drop_below(a, x, low)   0 where x < low, else a
 *   vec8_raise(a, t)             a * 2^n, n in the low bits of t: added to a's exponent
 *   vec8_from_f16(p)  vec8_from_int8(p)
 *   squares8_none()  squares8_add(s, a)  squares8_store(p, s)    sums of squares, in double
 *   int8_sum16(p)                of 16 int8 */
#ifndef ENGINE_CPU_VEC8_H
#define ENGINE_CPU_VEC8_H

#include <math.h>

#include "engine/cpu/isa.h"
#include "loader/bytes.h"
#include "loader/quant.h"

#if ISA_VECTORS && defined(__aarch64__)

#include <arm_neon.h>

typedef struct vec8 { float32x4_t lo, hi; } vec8;
typedef float32x4_t quad;
typedef struct squares8 { float64x2_t of[4]; } squares8;

static inline vec8 vec8_all(float x) { return (vec8){ vdupq_n_f32(x), vdupq_n_f32(x) }; }
static inline vec8 vec8_load(const float *p) { return (vec8){ vld1q_f32(p), vld1q_f32(p + 4) }; }

static inline void vec8_store(float *p, vec8 a)
{
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}

#define VEC8_OPERATION(name, f)                                                                    \
    static inline vec8 vec8_##name(vec8 a, vec8 b)                                                 \
    {                                                                                              \
        return (vec8){ f(a.lo, b.lo), f(a.hi, b.hi) };                                             \
    }
VEC8_OPERATION(add, vaddq_f32)
VEC8_OPERATION(sub, vsubq_f32)
VEC8_OPERATION(mul, vmulq_f32)
VEC8_OPERATION(div, vdivq_f32)

static inline vec8 vec8_fma(vec8 a, vec8 b, vec8 c)
{
    return (vec8){ vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi) };
}

static inline vec8 vec8_fma_all(float x, vec8 b, vec8 c)
{
    return (vec8){ vfmaq_n_f32(c.lo, b.lo, x), vfmaq_n_f32(c.hi, b.hi, x) };
}

static inline quad quad_load(const float *p) { return vld1q_f32(p); }

static inline vec8 vec8_fma_quad(quad q, int i, vec8 b, vec8 c)
{
#define VEC8_FMA_LANE(n)                                                                           \
    (vec8){ vfmaq_laneq_f32(c.lo, b.lo, q, n), vfmaq_laneq_f32(c.hi, b.hi, q, n) }
    switch (i) {                         /* the index is an immediate operand */
    case 0: return VEC8_FMA_LANE(0);
    case 1: return VEC8_FMA_LANE(1);
    case 2: return VEC8_FMA_LANE(2);
    default: return VEC8_FMA_LANE(3);
    }
}

static inline vec8 vec8_larger(vec8 a, vec8 b)
{
    return (vec8){ vbslq_f32(vcgtq_f32(b.lo, a.lo), b.lo, a.lo),
                   vbslq_f32(vcgtq_f32(b.hi, a.hi), b.hi, a.hi) };
}

static inline vec8 vec8_smaller(vec8 a, vec8 b)
{
    return (vec8){ vbslq_f32(vcltq_f32(b.lo, a.lo), b.lo, a.lo),
                   vbslq_f32(vcltq_f32(b.hi, a.hi), b.hi, a.hi) };
}

static inline vec8 vec8_drop_below(vec8 a, vec8 x, vec8 low)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    return (vec8){ vbslq_f32(vcltq_f32(x.lo, low.lo), zero, a.lo),
                   vbslq_f32(vcltq_f32(x.hi, low.hi), zero, a.hi) };
}

static inline float32x4_t vec8_raise_half(float32x4_t a, float32x4_t t)
{
    const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), n));
}

static inline vec8 vec8_raise(vec8 a, vec8 t)
{
    return (vec8){ vec8_raise_half(a.lo, t.lo), vec8_raise_half(a.hi, t.hi) };
}

static inline vec8 vec8_from_f16(const uint8_t *p)
{
    const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return (vec8){ vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h) };
}

static inline vec8 vec8_from_int8(const int8_t *p)
{
    const int16x8_t w = vmovl_s8(vld1_s8(p));
    return (vec8){ vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w)) };
}

static inline squares8 squares8_none(void)
{
    const float64x2_t zero = vdupq_n_f64(0.0);
    return (squares8){ { zero, zero, zero, zero } };
}

static inline squares8 squares8_add(squares8 s, vec8 a)
{
    const float64x2_t x[4] = { vcvt_f64_f32(vget_low_f32(a.lo)), vcvt_high_f64_f32(a.lo),
                               vcvt_f64_f32(vget_low_f32(a.hi)), vcvt_high_f64_f32(a.hi) };
    for (int i = 0; i < 4; i++) s.of[i] = vfmaq_f64(s.of[i], x[i], x[i]);
    return s;
}

static inline void squares8_store(double *p, squares8 s)
{
    for (int i = 0; i < 4; i++) vst1q_f64(p + 2 * i, s.of[i]);
}

static inline int int8_sum16(const int8_t *p) { return vaddlvq_s8(vld1q_s8(p)); }

#elif ISA_VECTORS && defined(__AVX2__)

#include <immintrin.h>

typedef __m256 vec8;
typedef const float *quad;               /* factors are broadcast by their loads */
typedef struct squares8 { __m256d lo, hi; } squares8;

static inline vec8 vec8_all(float x) { return _mm256_set1_ps(x); }
static inline vec8 vec8_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vec8_store(float *p, vec8 a) { _mm256_storeu_ps(p, a); }
static inline vec8 vec8_add(vec8 a, vec8 b) { return _mm256_add_ps(a, b); }
static inline vec8 vec8_sub(vec8 a, vec8 b) { return _mm256_sub_ps(a, b); }
static inline vec8 vec8_mul(vec8 a, vec8 b) { return _mm256_mul_ps(a, b); }
static inline vec8 vec8_div(vec8 a, vec8 b) { return _mm256_div_ps(a, b); }
static inline vec8 vec8_fma(vec8 a, vec8 b, vec8 c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec8 vec8_fma_all(float x, vec8 b, vec8 c) { return vec8_fma(vec8_all(x), b, c); }
static inline quad quad_load(const float *p) { return p; }
static inline vec8 vec8_fma_quad(quad q, int i, vec8 b, vec8 c) { return vec8_fma_all(q[i], b, c); }
/* minps and maxps return the second operand if neither is smaller (larger), also for NaN */
static inline vec8 vec8_larger(vec8 a, vec8 b) { return _mm256_max_ps(b, a); }
static inline vec8 vec8_smaller(vec8 a, vec8 b) { return _mm256_min_ps(b, a); }

static inline vec8 vec8_drop_below(vec8 a, vec8 x, vec8 low)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), a);
}

static inline vec8 vec8_raise(vec8 a, vec8 t)
{
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}

static inline vec8 vec8_from_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vec8 vec8_from_int8(const int8_t *p)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

static inline squares8 squares8_none(void)
{
    return (squares8){ _mm256_setzero_pd(), _mm256_setzero_pd() };
}

static inline squares8 squares8_add(squares8 s, vec8 a)
{
    const __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    const __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    return (squares8){ _mm256_fmadd_pd(lo, lo, s.lo), _mm256_fmadd_pd(hi, hi, s.hi) };
}

static inline void squares8_store(double *p, squares8 s)
{
    _mm256_storeu_pd(p, s.lo);
    _mm256_storeu_pd(p + 4, s.hi);
}

static inline int int8_sum16(const int8_t *p)
{
    /* adds 128 to each byte, as unsigned, and sums groups of eight */
    const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}

#else

typedef struct vec8 { float of[8]; } vec8;
typedef const float *quad;
typedef struct squares8 { double of[8]; } squares8;

#define VEC8_LANES(value)                                                                          \
    vec8 r;                                                                                        \
    for (int k = 0; k < 8; k++) r.of[k] = (value);                                                 \
    return r

static inline vec8 vec8_all(float x) { VEC8_LANES(x); }
static inline vec8 vec8_load(const float *p) { VEC8_LANES(p[k]); }
static inline void vec8_store(float *p, vec8 a) { memcpy(p, a.of, sizeof a.of); }
static inline vec8 vec8_add(vec8 a, vec8 b) { VEC8_LANES(a.of[k] + b.of[k]); }
static inline vec8 vec8_sub(vec8 a, vec8 b) { VEC8_LANES(a.of[k] - b.of[k]); }
static inline vec8 vec8_mul(vec8 a, vec8 b) { VEC8_LANES(a.of[k] * b.of[k]); }
static inline vec8 vec8_div(vec8 a, vec8 b) { VEC8_LANES(a.of[k] / b.of[k]); }
static inline vec8 vec8_fma(vec8 a, vec8 b, vec8 c) { VEC8_LANES(fmaf(a.of[k], b.of[k], c.of[k])); }
static inline vec8 vec8_fma_all(float x, vec8 b, vec8 c) { VEC8_LANES(fmaf(x, b.of[k], c.of[k])); }
static inline quad quad_load(const float *p) { return p; }
static inline vec8 vec8_fma_quad(quad q, int i, vec8 b, vec8 c) { return vec8_fma_all(q[i], b, c); }

static inline vec8 vec8_larger(vec8 a, vec8 b)
{
    VEC8_LANES(b.of[k] > a.of[k] ? b.of[k] : a.of[k]);
}

static inline vec8 vec8_smaller(vec8 a, vec8 b)
{
    VEC8_LANES(b.of[k] < a.of[k] ? b.of[k] : a.of[k]);
}

static inline vec8 vec8_drop_below(vec8 a, vec8 x, vec8 low)
{
    VEC8_LANES(x.of[k] < low.of[k] ? 0.0f : a.of[k]);
}

static inline float vec8_raise_lane(float a, float t)
{
    const uint32_t bits = load_u32(&a) + (load_u32(&t) << 23);
    return load_f32(&bits);
}

static inline vec8 vec8_raise(vec8 a, vec8 t) { VEC8_LANES(vec8_raise_lane(a.of[k], t.of[k])); }
static inline vec8 vec8_from_f16(const uint8_t *p) { VEC8_LANES(f16_to_f32(load_u16(p + 2 * k))); }
static inline vec8 vec8_from_int8(const int8_t *p) { VEC8_LANES((float)p[k]); }
static inline squares8 squares8_none(void) { return (squares8){ { 0.0 } }; }

static inline squares8 squares8_add(squares8 s, vec8 a)
{
    for (int k = 0; k < 8; k++) s.of[k] += (double)a.of[k] * a.of[k];    /* the square is exact */
    return s;
}

static inline void squares8_store(double *p, squares8 s) { memcpy(p, s.of, sizeof s.of); }

static inline int int8_sum16(const int8_t *p)
{
    int sum = 0;
    for (int k = 0; k < 16; k++) sum += p[k];
    return sum;
}

#endif

/* ---- ends of arrays: n is less than 8 -------------------------------------------------------- */

static inline vec8 vec8_load_some(const float *p, int n)
{
    float lane[8] = { 0.0f };
    memcpy(lane, p, (size_t)n * sizeof *lane);
    return vec8_load(lane);
}

static inline void vec8_store_some(float *p, int n, vec8 a)
{
    float lane[8];
    vec8_store(lane, a);
    memcpy(p, lane, (size_t)n * sizeof *lane);
}

#endif
