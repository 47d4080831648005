/* few_codes.cuh - the weights of a block that one thread gives to a tensor core, and a block's
 * scales, from raw bytes in shared memory: the codes of blocks.cuh, a few at a time.
 *
 *   where(row, l, t)            the address from which a thread reads block l of the groups at row
 *   take<G>(first, second, at, l, t)
 *                               of group G: weights 4t .. 4t+3 of each half, four int8 in a word. If
 *                               offset is not 0, they are uint8 that are larger by it
 *   few_scales<TYPE>(p, group, l)
 *                               the fields of p but w
 *
 * Addresses of words are known up to constants before the loop over groups. */
#ifndef CUDA_FEW_CODES_CUH
#define CUDA_FEW_CODES_CUH

#include "cuda/blocks.cuh"

/* The word at a multiple of 4, BYTES behind address. */
template <int BYTES> static __device__ __forceinline__ uint32_t word_behind(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(address), "n"(BYTES));
    return v;
}

/* The word BYTES, a multiple of 4, behind any address. */
template <int BYTES> static __device__ __forceinline__ uint32_t any_word_behind(uint32_t address)
{
    const uint32_t at = address & ~3u;
    return __funnelshift_r(word_behind<BYTES>(at), word_behind<BYTES + 4>(at), address << 3);
}

template <int TYPE> struct few_codes;

/* Nibbles: the low ones are of the first half, the high ones of the second. */
#define NIBBLES(TYPE, OFFSET, WHERE, LOW, HIGH)                                                    \
    template <> struct few_codes<TYPE> {                                                           \
        enum { offset = OFFSET };                                                                  \
        static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)               \
        {                                                                                          \
            return row + (uint32_t)(WHERE) + 4 * t;                                                \
        }                                                                                          \
        template <int G>                                                                           \
        static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second,             \
                                                    uint32_t at, int, int)                         \
        {                                                                                          \
            const uint32_t n = any_word_behind<G * format<TYPE>::group_bytes>(at);                 \
            const uint32_t low = n & 0x0F0F0F0Fu, high = n >> 4 & 0x0F0F0F0Fu;                     \
            first = LOW;                                                                           \
            second = HIGH;                                                                         \
        }                                                                                          \
    };
NIBBLES(QT_Q4_0, 8, l * (int)sizeof(block_q4_0) + offsetof(block_q4_0, nibbles), low, high)
NIBBLES(QT_Q4_1, 0, l * (int)sizeof(block_q4_1) + offsetof(block_q4_1, nibbles), low, high)
NIBBLES(QT_IQ4_NL, 0, l * (int)sizeof(block_iq4_nl) + offsetof(block_iq4_nl, nibbles),
        iq4_values(low), iq4_values(high))
NIBBLES(QT_IQ4_XS, 0, offsetof(block_iq4_xs, nibbles) + 16 * l, iq4_values(low), iq4_values(high))
#undef NIBBLES

/* The fifth bits are in a word before the nibbles. */
#define FIFTH_BITS(TYPE, OFFSET, BLOCK)                                                            \
    template <> struct few_codes<TYPE> {                                                           \
        enum { offset = OFFSET };                                                                  \
        static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int)                 \
        {                                                                                          \
            return row + l * (uint32_t)sizeof(BLOCK) + (uint32_t)offsetof(BLOCK, high);            \
        }                                                                                          \
        template <int G>                                                                           \
        static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second,             \
                                                    uint32_t at, int, int t)                       \
        {                                                                                          \
            enum { from = G * format<TYPE>::group_bytes };                                         \
            static_assert(offsetof(BLOCK, nibbles) == offsetof(BLOCK, high) + 4, "nibbles");       \
            const uint32_t n = any_word_behind<from + 4>(at + 4 * t);                              \
            const uint32_t fifth = any_word_behind<from>(at) >> 4 * t;                             \
            first = (n & 0x0F0F0F0Fu) | spread_bits(fifth) << 4;                                   \
            second = (n >> 4 & 0x0F0F0F0Fu) | spread_bits(fifth >> 16) << 4;                       \
        }                                                                                          \
    };
FIFTH_BITS(QT_Q5_0, 16, block_q5_0)
FIFTH_BITS(QT_Q5_1, 0, block_q5_1)
#undef FIFTH_BITS

template <> struct few_codes<QT_Q8_0> {
    enum { offset = 0 };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)
    {
        return row + l * (uint32_t)sizeof(block_q8_0) + (uint32_t)offsetof(block_q8_0, quants) +
               4 * t;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at, int,
                                                int)
    {
        first = any_word_behind<G * format<QT_Q8_0>::group_bytes>(at);
        second = any_word_behind<G * format<QT_Q8_0>::group_bytes + 16>(at);
    }
};

/* take gives the positive weights 4t, 4t+16, 4t+1, 4t+17 and 4t+2, 4t+18, 4t+3, 4t+19, and in minus
 * the magnitudes of the negative ones. */
template <> struct few_codes<QT_MXFP4> {
    enum { offset = 0 };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)
    {
        return row + l * (uint32_t)sizeof(block_mxfp4) + (uint32_t)offsetof(block_mxfp4, nibbles) +
               4 * t;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t (&plus)[2], uint32_t (&minus)[2],
                                                uint32_t at, uint32_t low, uint32_t high)
    {
        const uint32_t n = any_word_behind<G * format<QT_MXFP4>::group_bytes>(at);
        const uint32_t turned = n ^ 0x88888888u;
        plus[0] = pick_bytes(low, high, n);
        plus[1] = pick_bytes(low, high, n >> 16);
        minus[0] = pick_bytes(low, high, turned);
        minus[1] = pick_bytes(low, high, turned >> 16);
    }
};

template <> struct few_codes<QT_NVFP4> {
    enum { offset = 0 };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)
    {
        return row + (l / 2) * (uint32_t)sizeof(block_nvfp4) +
               (uint32_t)offsetof(block_nvfp4, nibbles) + 16 * (l % 2) + 4 * (t % 2);
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at, int,
                                                int t)
    {
        enum { from = G * format<QT_NVFP4>::group_bytes };
        first = e2m1_values(any_word_behind<from>(at) >> 4 * (t / 2) & 0x0F0F0F0Fu);
        second = e2m1_values(any_word_behind<from + 8>(at) >> 4 * (t / 2) & 0x0F0F0F0Fu);
    }
};

template <> struct few_codes<QT_Q2_K> {
    enum { offset = 0 };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)
    {
        return row + (uint32_t)offsetof(block_q2_k, quants) + 32 * (l / 4) + 4 * t;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at,
                                                int l, int)
    {
        enum { from = G * format<QT_Q2_K>::group_bytes };
        first = any_word_behind<from>(at) >> 2 * (l % 4) & 0x03030303u;
        second = any_word_behind<from + 16>(at) >> 2 * (l % 4) & 0x03030303u;
    }
};

/* A group has 110 bytes. */
template <> struct few_codes<QT_Q3_K> {
    enum { offset = 4, quants = offsetof(block_q3_k, quants) };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int, int t)
    {
        return row + 4 * t;
    }
    template <int FROM>
    static __device__ __forceinline__ uint32_t word(uint32_t at, int l)
    {
        const uint32_t low = any_word_behind<quants + FROM>(at + 32 * (l / 4));
        const uint32_t high = any_word_behind<FROM>(at);
        return (low >> 2 * (l % 4) & 0x03030303u) | (high >> l & 0x01010101u) << 2;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at,
                                                int l, int)
    {
        at += G * format<QT_Q3_K>::group_bytes;
        first = word<0>(at, l);
        second = word<16>(at, l);
    }
};

/* Groups of Q4_K and Q5_K are aligned. */
template <> struct few_codes<QT_Q4_K> {
    enum { offset = 0 };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int l, int t)
    {
        return row + (uint32_t)offsetof(block_q4_k, nibbles) + 32 * (l / 2) + 4 * t;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at,
                                                int l, int)
    {
        enum { from = G * format<QT_Q4_K>::group_bytes };
        first = word_behind<from>(at) >> 4 * (l % 2) & 0x0F0F0F0Fu;
        second = word_behind<from + 16>(at) >> 4 * (l % 2) & 0x0F0F0F0Fu;
    }
};

template <> struct few_codes<QT_Q5_K> {
    enum { offset = 0, high = offsetof(block_q5_k, high), nibbles = offsetof(block_q5_k, nibbles) };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int, int t)
    {
        return row + 4 * t;
    }
    template <int FROM>
    static __device__ __forceinline__ uint32_t word(uint32_t at, int l)
    {
        const uint32_t low = word_behind<FROM + nibbles>(at + 32 * (l / 2));
        const uint32_t fifth = word_behind<FROM + high>(at);
        return (low >> 4 * (l % 2) & 0x0F0F0F0Fu) | (fifth >> l & 0x01010101u) << 4;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at,
                                                int l, int)
    {
        first = word<G * format<QT_Q5_K>::group_bytes>(at, l);
        second = word<G * format<QT_Q5_K>::group_bytes + 16>(at, l);
    }
};

template <> struct few_codes<QT_Q6_K> {
    enum { offset = 32, high = offsetof(block_q6_k, high) };
    static __device__ __forceinline__ uint32_t where(uint32_t row, int, int t)
    {
        return row + 4 * t;
    }
    template <int FROM>
    static __device__ __forceinline__ uint32_t word(uint32_t at, int l)
    {
        const int half = l / 4, part = l % 4;
        const uint32_t low = any_word_behind<FROM>(at + 64 * half + 32 * (part % 2));
        const uint32_t upper = any_word_behind<FROM + high>(at + 32 * half);
        return (low >> 4 * (part / 2) & 0x0F0F0F0Fu) | (upper >> 2 * part & 0x03030303u) << 4;
    }
    template <int G>
    static __device__ __forceinline__ void take(uint32_t &first, uint32_t &second, uint32_t at,
                                                int l, int)
    {
        at += G * format<QT_Q6_K>::group_bytes;
        first = word<0>(at, l);
        second = word<16>(at, l);
    }
};

/* ---- scales ---------------------------------------------------------------------------------- */

/* The compiler drops what makes w. */
template <int TYPE>
static __device__ __forceinline__ void few_scales(weight_parts &p, const uint8_t *group, int l)
{
    unpack<TYPE>(p, group, l);
}

template <>
__device__ __forceinline__ void few_scales<QT_Q4_K>(weight_parts &p, const uint8_t *group, int l)
{
    uint32_t head[4];
    load_aligned(head, group);
    k_scales(p, head, l);
}

template <>
__device__ __forceinline__ void few_scales<QT_Q5_K>(weight_parts &p, const uint8_t *group, int l)
{
    few_scales<QT_Q4_K>(p, group, l);
}

#endif
