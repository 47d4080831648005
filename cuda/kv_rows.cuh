/* kv_rows.cuh - rows of a KV store in F32, F16 and Q8_0 for the attention kernels: stores them with
 * the bits of engine/session/kv.c and loads eight dimensions at a time. */
#ifndef CUDA_KV_ROWS_CUH
#define CUDA_KV_ROWS_CUH

#include "cuda/device.cuh"
#include "loader/quant_blocks.h"

/* ---- pages ----------------------------------------------------------------------------------- */

/* The pages of an attention's layer. */
typedef struct page_table {
    uint8_t *const *pages;
    int stride;
    __device__ __forceinline__ uint8_t *of(int pos) const
    {
        return pages[(size_t)(pos / GPU_PAGE) * stride];
    }
} page_table;

static __device__ __forceinline__ page_table pages_of(const gpu_attention &a, const gpu_cursor *row)
{
    return { row->pages + a.column, a.n_column };
}

/* Offset in a page of a head's keys, or with `values` of its values. */
static __device__ __forceinline__ size_t head_offset(const gpu_attention &a, bool values, int head,
                                                     size_t row_bytes)
{
    return ((size_t)(values ? a.n_head_kv : 0) + head) * GPU_PAGE * row_bytes;
}

/* ---- norm and rotation of a head ------------------------------------------------------------- */

/* 1 / rms of a head of dim values: lane l of a warp has values l, l + 32, ...; zeros past the
 * end. */
template <int EACH>
static __device__ __forceinline__ float head_scale(const float (&v)[EACH], int dim, float eps)
{
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < EACH; i++) sum = fmaf(v[i], v[i], sum);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)dim), eps)));
}

/* A pair of values after its rotation, with the roundings of engine/cpu/rows.c. */
static __device__ __forceinline__ float rotated_low(float low, float high, float cosine, float sine)
{
    return __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine));
}

static __device__ __forceinline__ float rotated_high(float low, float high, float cosine,
                                                     float sine)
{
    return __fadd_rn(__fmul_rn(low, sine), __fmul_rn(high, cosine));
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Nearest binary16, ties to even; a NaN keeps its sign and the upper bits of its payload. */
static __device__ __forceinline__ uint16_t f16_bits(float v)
{
    const uint32_t bits = __float_as_uint(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7E00u | (bits >> 13 & 0x3FFu));
    return __half_as_ushort(__float2half_rn(v));
}

/* A warp stores one value of each lane to a block of Q8_0, with the bits of encode_q8_0. */
static __device__ __forceinline__ void store_q8_0(uint8_t *block, float v, int lane)
{
    const uint32_t bits = __float_as_uint(v);
    uint32_t largest = bits & 0x7FFFFFFFu;               /* as bits a NaN exceeds all numbers */
    float scale;
    uint16_t d;
    int code;

    for (int i = 16; i > 0; i >>= 1) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, i);
        largest = other > largest ? other : largest;
    }
    d = f16_bits(largest > 0x7F800000u ? __uint_as_float(largest)
                                       : __fdiv_rn(__uint_as_float(largest), 127.0f));
    scale = __half2float(__ushort_as_half(d));
    if (scale > 0.0f && scale < INFINITY) {
        code = __float2int_rn(__fdiv_rn(v, scale));
        code = min(max(code, -127), 127);
    } else {
        code = bits >> 31 ? -1 : 1;
    }
    if (lane == 0) *(uint16_t *)block = d;
    ((int8_t *)block)[offsetof(block_q8_0, quants) + lane] = (int8_t)code;
}

/* A row of one type. load: eight dimensions from d on, in stored form. widen: converts these to
 * floats. store: a warp stores 32 consecutive dimensions, one of each lane. */
template <int KV> struct kv_row;

template <> struct kv_row<GPU_KV_F32> {
    typedef struct raw { float4 a, b; } raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 4; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        return { *(const float4 *)(row + 4 * d), *(const float4 *)(row + 4 * d + 16) };
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        v[0] = r.a.x; v[1] = r.a.y; v[2] = r.a.z; v[3] = r.a.w;
        v[4] = r.b.x; v[5] = r.b.y; v[6] = r.b.z; v[7] = r.b.w;
    }
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
    {
        ((float *)row)[d] = v;
    }
};

template <> struct kv_row<GPU_KV_F16> {
    typedef uint4 raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 2; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        return *(const uint4 *)(row + 2 * d);
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        const uint32_t w[4] = { r.x, r.y, r.z, r.w };
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = __half22float2(*(const __half2 *)&w[i]);
            v[2 * i] = two.x;
            v[2 * i + 1] = two.y;
        }
    }
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
    {
        ((uint16_t *)row)[d] = f16_bits(v);
    }
};

template <> struct kv_row<GPU_KV_Q8_0> {
    typedef struct raw { uint16_t scale, codes[4]; } raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim / 32 * 34; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        const uint16_t *block = (const uint16_t *)(row + d / 32 * 34);
        const uint16_t *codes = block + 1 + d % 32 / 2;
        return { block[0], { codes[0], codes[1], codes[2], codes[3] } };
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        const float scale = __half2float(__ushort_as_half(r.scale));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = scale * (float)(int8_t)r.codes[i];
            v[2 * i + 1] = scale * (float)(int8_t)(r.codes[i] >> 8);
        }
    }
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
    {
        store_q8_0(row + d / 32 * 34, v, d % 32);
    }
};

#endif
