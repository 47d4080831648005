/* blocks.cuh - unpacks weight blocks into the integers and scales of the arithmetic contract
 * (docs/numerics.md, section 3): the counterpart of engine/cpu/contract_blocks.h.
 *
 * A row is a sequence of blocks of 32 weights. Eight blocks make a group: a super-block of a
 * K-quant. unpack<TYPE>(parts, group, l) unpacks block l of a group at any address that the format
 * allows (rows begin at multiples of 16). Weights are in natural order, four in a word. unpack may
 * read up to 3 bytes before and after the block.
 *
 * The same source compiles for the host, where tests compare it with the reference. */
#ifndef CUDA_BLOCKS_CUH
#define CUDA_BLOCKS_CUH

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "loader/quant.h"
#include "loader/quant_blocks.h"

#ifdef __CUDACC__
#define BOTH __host__ __device__ __forceinline__
#define BOTH_MEMBER static __host__ __device__ __forceinline__
#else
#define BOTH inline
#define BOTH_MEMBER static inline
#endif

/* ---- the traits of a format ------------------------------------------------------------------ */

typedef enum block_kind {                /* the value of a block, without the activation's scale: */
    BLOCK_PLAIN,                         /* d * A, A = sc[0] * I[0] + sc[1] * I[1] */
    BLOCK_MINIMUM,                       /* fma(d, A, c * (m[0] * s[0] + m[1] * s[1])) */
    BLOCK_TWO_SCALES                     /* fma(f[0], I[0], f[1] * I[1]) */
} block_kind;

/* by_half: each half of a block has its own scale. scaled: the format has integer scales. */
template <int TYPE> struct format;
#define FORMAT(TYPE, block, elems, KIND, FACTOR, BY_HALF, SCALED)                                  \
    template <> struct format<TYPE> {                                                              \
        enum { group_bytes = 256 / (elems) * (int)sizeof(block), kind = KIND, by_half = BY_HALF,   \
               scaled = SCALED };                                                                  \
        static constexpr float factor = FACTOR;                                                    \
    };
FORMAT(QT_Q4_0, block_q4_0, 32, BLOCK_PLAIN, 1.0f, 0, 0)
FORMAT(QT_Q4_1, block_q4_1, 32, BLOCK_MINIMUM, 1.0f, 0, 0)
FORMAT(QT_Q5_0, block_q5_0, 32, BLOCK_PLAIN, 1.0f, 0, 0)
FORMAT(QT_Q5_1, block_q5_1, 32, BLOCK_MINIMUM, 1.0f, 0, 0)
FORMAT(QT_Q8_0, block_q8_0, 32, BLOCK_PLAIN, 1.0f, 0, 0)
FORMAT(QT_IQ4_NL, block_iq4_nl, 32, BLOCK_PLAIN, 1.0f, 0, 0)
FORMAT(QT_MXFP4, block_mxfp4, 32, BLOCK_PLAIN, 0.5f, 0, 0)
FORMAT(QT_NVFP4, block_nvfp4, 64, BLOCK_TWO_SCALES, 128.0f, 1, 0)
FORMAT(QT_Q2_K, block_q2_k, 256, BLOCK_MINIMUM, 1.0f, 1, 1)
FORMAT(QT_Q3_K, block_q3_k, 256, BLOCK_PLAIN, 1.0f, 1, 1)
FORMAT(QT_Q4_K, block_q4_k, 256, BLOCK_MINIMUM, 1.0f, 0, 1)
FORMAT(QT_Q5_K, block_q5_k, 256, BLOCK_MINIMUM, 1.0f, 0, 1)
FORMAT(QT_Q6_K, block_q6_k, 256, BLOCK_PLAIN, 1.0f, 1, 1)
FORMAT(QT_IQ4_XS, block_iq4_xs, 256, BLOCK_PLAIN, 1.0f, 0, 1)
#undef FORMAT

/* Block formats with GPU kernels, in groups with one file each: codes in equal steps, K-quants, and
 * codes that index a table. */
#define GPU_BASIC_TYPES(X) X(QT_Q4_0) X(QT_Q4_1) X(QT_Q5_0) X(QT_Q5_1) X(QT_Q8_0)
#define GPU_K_TYPES(X) X(QT_Q2_K) X(QT_Q3_K) X(QT_Q4_K) X(QT_Q5_K) X(QT_Q6_K)
#define GPU_TABLE_TYPES(X) X(QT_IQ4_NL) X(QT_IQ4_XS) X(QT_MXFP4) X(QT_NVFP4)
#define GPU_BLOCK_TYPES(X) GPU_BASIC_TYPES(X) GPU_K_TYPES(X) GPU_TABLE_TYPES(X)
#define GPU_FLOAT_TYPES(X) X(QT_F32) X(QT_F16) X(QT_BF16)

typedef struct weight_parts {            /* unused fields are not written */
    uint32_t w[8];                       /* 32 int8 */
    int sc[2], m[2];                     /* [1] only if by_half */
    float d, c, f[2];
} weight_parts;

/* ---- words of bytes -------------------------------------------------------------------------- */

/* n words from any address. */
template <int n> BOTH void load_words(uint32_t (&out)[n], const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    const unsigned shift = ((unsigned)(uintptr_t)p & 3u) * 8u;
    const uint32_t *at = (const uint32_t *)(p - ((uintptr_t)p & 3u));
    uint32_t low = at[0];
    #pragma unroll
    for (int i = 0; i < n; i++) {
        const uint32_t high = at[i + 1];
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
#else
    memcpy(out, p, sizeof out);
#endif
}

/* n words, a multiple of 4, from an address that is a multiple of 16. */
template <int n> BOTH void load_aligned(uint32_t (&out)[n], const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    #pragma unroll
    for (int i = 0; i < n; i += 4) {
        const uint4 v = *(const uint4 *)(p + 4 * i);
        out[i] = v.x; out[i + 1] = v.y; out[i + 2] = v.z; out[i + 3] = v.w;
    }
#else
    memcpy(out, p, sizeof out);
#endif
}

BOTH float half_bits(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half((unsigned short)bits));
#else
    return f16_to_f32((uint16_t)bits);
#endif
}

/* A binary16 at an even address. */
BOTH float half_at(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    return half_bits(*(const uint16_t *)p);
#else
    uint16_t bits;
    memcpy(&bits, p, 2);
    return half_bits(bits);
#endif
}

BOTH int byte_at(const uint8_t *p) { return *p; }

/* The loads above for shared memory, with a type that tells the compiler the address space. */
#ifdef __CUDACC__
typedef struct shared_at {
    uint32_t address;
    __device__ __forceinline__ shared_at operator+(size_t n) const
    {
        return { address + (uint32_t)n };
    }
} shared_at;

static __device__ __forceinline__ uint32_t shared_word(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

static __device__ __forceinline__ uint4 shared_words4(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

static __device__ __forceinline__ int byte_at(shared_at p)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(p.address));
    return (int)v;
}

static __device__ __forceinline__ float half_at(shared_at p)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(p.address));
    return half_bits(v);
}

template <int n> static __device__ __forceinline__ void load_words(uint32_t (&out)[n], shared_at p)
{
    const unsigned shift = (p.address & 3u) * 8u;
    const uint32_t at = p.address & ~3u;
    uint32_t low = shared_word(at);
    #pragma unroll
    for (int i = 0; i < n; i++) {
        const uint32_t high = shared_word(at + 4 * (i + 1));
        out[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

template <int n>
static __device__ __forceinline__ void load_aligned(uint32_t (&out)[n], shared_at p)
{
    #pragma unroll
    for (int i = 0; i < n; i += 4) {
        const uint4 v = shared_words4(p.address + 4 * i);
        out[i] = v.x; out[i + 1] = v.y; out[i + 2] = v.z; out[i + 3] = v.w;
    }
}
#endif

BOTH float float_bits(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes b:a. If bit 3 of that
 * selector digit is set, it is the byte's sign bit, eight times. */
BOTH uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
#ifdef __CUDA_ARCH__
    uint32_t out;                        /* __byte_perm would clear bit 3 of the digits */
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
    return out;
#else
    const uint64_t all = a | (uint64_t)b << 32;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t byte = (uint32_t)(all >> 8 * (selector >> 4 * i & 7)) & 255;
        if (selector >> 4 * i & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << 8 * i;
    }
    return out;
#endif
}

/* Four bytes minus four bytes, each alone (no borrow); |result| < 128. */
BOTH uint32_t subtract_bytes(uint32_t a, uint32_t b)
{
    return ((a | 0x80808080u) - b) ^ 0x80808080u;        /* a < 128 */
}

/* Moves bits 0..3 to the lowest bits of four bytes. */
BOTH uint32_t spread_bits(uint32_t bits)
{
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}

/* Packs four codes, one in a byte, into four hex digits. */
BOTH uint32_t pack_digits(uint32_t codes)
{
    const uint32_t two = (codes | codes >> 4) & 0x00FF00FFu;
    return (two | two >> 8) & 0xFFFFu;
}

/* ---- value lists ----------------------------------------------------------------------------- */

enum : uint32_t { E2M1_LOW = 0x03020100, E2M1_HIGH = 0x0C080604 };      /* magnitudes, doubled */

/* The values of four E2M1 codes (in bytes), doubled. A set sign bit makes pick_bytes give 0. */
BOTH uint32_t e2m1_values(uint32_t codes)
{
    const uint32_t digits = pack_digits(codes);
    return subtract_bytes(pick_bytes(E2M1_LOW, E2M1_HIGH, digits),
                          pick_bytes(E2M1_LOW, E2M1_HIGH, digits ^ 0x8888u));
}

enum : uint32_t {                        /* IQ4_LEVELS, four in a word */
    IQ4_0 = 0xBFAD9881, IQ4_1 = 0xF6EADDCF, IQ4_2 = 0x26190D01, IQ4_3 = 0x71594535
};

BOTH uint32_t iq4_values(uint32_t codes)
{
    const uint32_t digits = pack_digits(codes) & 0x7777u;
    const uint32_t upper = (codes >> 3 & 0x01010101u) * 255u;
    return (pick_bytes(IQ4_0, IQ4_1, digits) & ~upper) | (pick_bytes(IQ4_2, IQ4_3, digits) & upper);
}

/* ---- 32 weights, one scale ------------------------------------------------------------------- */

/* Words of nibbles in halves order: w[i] gets the low nibbles, w[4 + i] the high ones. */
#define FROM_HALVES(p, n, expression_of_codes)                                                     \
    for (int i = 0; i < 4; i++) {                                                                  \
        uint32_t codes = (n)[i] & 0x0F0F0F0Fu;                                                     \
        (p).w[i] = (expression_of_codes);                                                          \
        codes = (n)[i] >> 4 & 0x0F0F0F0Fu;                                                         \
        (p).w[4 + i] = (expression_of_codes);                                                      \
    }

template <int TYPE> struct unpacker;

template <> struct unpacker<QT_Q4_0> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_q4_0);
        uint32_t n[4];
        load_words(n, b + offsetof(block_q4_0, nibbles));
        FROM_HALVES(p, n, subtract_bytes(codes, 0x08080808u))
        p.d = half_at(b);
    }
};

template <> struct unpacker<QT_Q4_1> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_q4_1);
        uint32_t n[4];
        load_words(n, b + offsetof(block_q4_1, nibbles));
        FROM_HALVES(p, n, codes)
        p.d = half_at(b);
        p.c = half_at(b + offsetof(block_q4_1, m));
    }
};

/* Adds the fifth bits of the codes: bit i of high is for weight i. */
BOTH void add_fifth_bits(weight_parts &p, uint32_t high)
{
    for (int i = 0; i < 8; i++) p.w[i] |= spread_bits(high >> 4 * i) << 4;
}

template <> struct unpacker<QT_Q5_0> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_q5_0);
        uint32_t n[5];                       /* high bits, nibbles */
        load_words(n, b + offsetof(block_q5_0, high));
        FROM_HALVES(p, n + 1, codes)
        add_fifth_bits(p, n[0]);
        for (int i = 0; i < 8; i++) p.w[i] = subtract_bytes(p.w[i], 0x10101010u);
        p.d = half_at(b);
    }
};

template <> struct unpacker<QT_Q5_1> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_q5_1);
        uint32_t n[5];
        load_words(n, b + offsetof(block_q5_1, high));
        FROM_HALVES(p, n + 1, codes)
        add_fifth_bits(p, n[0]);
        p.d = half_at(b);
        p.c = half_at(b + offsetof(block_q5_1, m));
    }
};

template <> struct unpacker<QT_Q8_0> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_q8_0);
        load_words(p.w, b + offsetof(block_q8_0, quants));
        p.d = half_at(b);
    }
};

template <> struct unpacker<QT_IQ4_NL> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_iq4_nl);
        uint32_t n[4];
        load_words(n, b + offsetof(block_iq4_nl, nibbles));
        FROM_HALVES(p, n, iq4_values(codes))
        p.d = half_at(b);
    }
};

/* ---- 4-bit floats ---------------------------------------------------------------------------- */

template <> struct unpacker<QT_MXFP4> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + l * (int)sizeof(block_mxfp4);
        uint32_t n[4];
        load_words(n, b + offsetof(block_mxfp4, nibbles));
        FROM_HALVES(p, n, e2m1_values(codes))
        p.d = float_bits((uint32_t)byte_at(b) << 23);
    }
};

/* An E4M3 code put in the fields of a binary16: the code's value times 2^-8. */
BOTH float e4m3_scaled(uint32_t code)
{
    const uint32_t magnitude = code & 0x7Fu;
    return half_bits(magnitude == 0x7Fu ? 0 : magnitude << 7);
}

template <> struct unpacker<QT_NVFP4> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P b = group + (l / 2) * (int)sizeof(block_nvfp4);
        uint32_t n[4];                       /* two halves of eight bytes */
        load_words(n, b + offsetof(block_nvfp4, nibbles) + 16 * (l % 2));
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 2; i++) {
                p.w[4 * h + i] = e2m1_values(n[2 * h + i] & 0x0F0F0F0Fu);
                p.w[4 * h + 2 + i] = e2m1_values(n[2 * h + i] >> 4 & 0x0F0F0F0Fu);
            }
            p.f[h] = e4m3_scaled((uint32_t)byte_at(b + 2 * (l % 2) + h));
        }
    }
};

/* ---- 256 weights, small integers as scales --------------------------------------------------- */

template <> struct unpacker<QT_Q2_K> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P scales = group + 2 * l;
        load_words(p.w, group + offsetof(block_q2_k, quants) + 32 * (l / 4));
        for (int i = 0; i < 8; i++) p.w[i] = p.w[i] >> 2 * (l % 4) & 0x03030303u;
        for (int h = 0; h < 2; h++) {
            p.sc[h] = byte_at(scales + h) & 15;
            p.m[h] = byte_at(scales + h) >> 4;
        }
        p.d = half_at(group + offsetof(block_q2_k, d));
        p.c = -half_at(group + offsetof(block_q2_k, dmin));
    }
};

template <> struct unpacker<QT_Q3_K> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P scales = group + offsetof(block_q3_k, scales);
        uint32_t high[8];
        load_words(p.w, group + offsetof(block_q3_k, quants) + 32 * (l / 4));
        load_words(high, group);
        for (int i = 0; i < 8; i++)
            p.w[i] = subtract_bytes((p.w[i] >> 2 * (l % 4) & 0x03030303u) |
                                    (high[i] >> l & 0x01010101u) << 2, 0x04040404u);
        for (int h = 0; h < 2; h++) {
            const int j = 2 * l + h;         /* index of the half, 0 .. 15 */
            const int low = byte_at(scales + j % 8) >> 4 * (j / 8) & 15;
            const int top = byte_at(scales + 8 + j % 4) >> 2 * (j / 4);
            p.sc[h] = (low | (top & 3) << 4) - 32;
        }
        p.d = half_at(group + offsetof(block_q3_k, d));
    }
};

/* Scale and minimum of block l, 6 bits each. head: the first 16 bytes of a q4_k or q5_k. */
BOTH void k_scales(weight_parts &p, const uint32_t (&head)[4], int l)
{
    const unsigned at = 8u * (l % 4);
    const uint32_t first = head[1] >> at, second = head[2] >> at, third = head[3] >> at;
    p.sc[0] = (int)(l < 4 ? first & 63 : (third & 15) | (first >> 6 & 3) << 4);
    p.m[0] = (int)(l < 4 ? second & 63 : (third >> 4 & 15) | (second >> 6 & 3) << 4);
    p.d = half_bits(head[0] & 0xFFFFu);
    p.c = -half_bits(head[0] >> 16);
}

template <> struct unpacker<QT_Q4_K> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const unsigned shift = 4u * (l & 1);
        uint32_t head[4];
        load_aligned(head, group);
        load_aligned(p.w, group + offsetof(block_q4_k, nibbles) + 32 * (l / 2));
        for (int i = 0; i < 8; i++) p.w[i] = p.w[i] >> shift & 0x0F0F0F0Fu;
        k_scales(p, head, l);
    }
};

template <> struct unpacker<QT_Q5_K> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const unsigned shift = 4u * (l & 1);
        uint32_t head[4], high[8];
        load_aligned(head, group);
        load_aligned(high, group + offsetof(block_q5_k, high));
        load_aligned(p.w, group + offsetof(block_q5_k, nibbles) + 32 * (l / 2));
        for (int i = 0; i < 8; i++)
            p.w[i] = (p.w[i] >> shift & 0x0F0F0F0Fu) | (high[i] >> l & 0x01010101u) << 4;
        k_scales(p, head, l);
    }
};

template <> struct unpacker<QT_Q6_K> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const int half = l / 4, part = l % 4;
        const P scales = group + offsetof(block_q6_k, scales) + 2 * l;
        uint32_t high[8];
        load_words(p.w, group + 64 * half + 32 * (part % 2));
        load_words(high, group + offsetof(block_q6_k, high) + 32 * half);
        for (int i = 0; i < 8; i++) {
            const uint32_t low = p.w[i] >> 4 * (part / 2) & 0x0F0F0F0Fu;
            p.w[i] = subtract_bytes(low | (high[i] >> 2 * part & 0x03030303u) << 4, 0x20202020u);
        }
        p.sc[0] = (int8_t)byte_at(scales);
        p.sc[1] = (int8_t)byte_at(scales + 1);
        p.d = half_at(group + offsetof(block_q6_k, d));
    }
};

template <> struct unpacker<QT_IQ4_XS> {
    template <typename P> BOTH_MEMBER void take(weight_parts &p, P group, int l)
    {
        const P high = group + offsetof(block_iq4_xs, scales_high);
        const int low = byte_at(group + offsetof(block_iq4_xs, scales_low) + l / 2) >> 4 * (l % 2) &
                        15;
        uint32_t n[4];
        load_words(n, group + offsetof(block_iq4_xs, nibbles) + 16 * l);
        FROM_HALVES(p, n, iq4_values(codes))
        p.sc[0] = (low | (byte_at(high + l / 4) >> 2 * (l % 4) & 3) << 4) - 32;
        p.d = half_at(group);
    }
};
#undef FROM_HALVES

template <int TYPE, typename P> BOTH void unpack(weight_parts &p, P group, int l)
{
    unpacker<TYPE>::take(p, group, l);
}

/* ---- the value of a block -------------------------------------------------------------------- */

/* c + the products of four int8 each. */
BOTH int dot4(uint32_t a, uint32_t b, int c)
{
#ifdef __CUDA_ARCH__
    return __dp4a((int)a, (int)b, c);
#else
    for (int k = 0; k < 4; k++) c += (int8_t)(a >> 8 * k) * (int8_t)(b >> 8 * k);
    return c;
#endif
}

/* The value of a block. q: 32 int8 activations; s_low, s_high: sums of their halves. Rounds only
 * where the contract does. */
template <int TYPE>
BOTH float block_value(const weight_parts &p, const uint32_t (&q)[8], int s_low, int s_high)
{
    typedef format<TYPE> F;
    int low = 0, high = 0;
    for (int i = 0; i < 4; i++) low = dot4(p.w[i], q[i], low);
    if (!F::by_half) high = low;
    for (int i = 4; i < 8; i++) high = dot4(p.w[i], q[i], high);
#ifdef __CUDA_ARCH__
#define MUL __fmul_rn
#define FMA __fmaf_rn
#else
#define MUL(a, b) ((a) * (b))
#define FMA fmaf
#endif
    if (F::kind == BLOCK_TWO_SCALES) return FMA(p.f[0], (float)low, MUL(p.f[1], (float)high));
    int a = high;                        /* both halves, if they share a scale */
    if (F::scaled && F::by_half) a = p.sc[0] * low + p.sc[1] * high;
    else if (F::scaled) a = p.sc[0] * high;
    if (F::kind == BLOCK_PLAIN) return MUL(p.d, (float)a);
    int b = s_low + s_high;
    if (F::scaled && F::by_half) b = p.m[0] * s_low + p.m[1] * s_high;
    else if (F::scaled) b = p.m[0] * b;
    return FMA(p.d, (float)a, MUL(p.c, (float)b));
#undef MUL
#undef FMA
}

/* A weight of half h is scale[h] * w + offset[h], times the format's factor. */
template <int TYPE> BOTH void block_affine(float scale[2], float offset[2], const weight_parts &p)
{
    typedef format<TYPE> F;
    for (int h = 0; h < 2; h++) {
        const int at = F::by_half ? h : 0;
        scale[h] = F::kind == BLOCK_TWO_SCALES ? p.f[h] : F::scaled ? p.d * (float)p.sc[at] : p.d;
        offset[h] = F::kind != BLOCK_MINIMUM ? 0.0f : F::scaled ? p.c * (float)p.m[at] : p.c;
    }
}

#endif
