/* activations.cuh - prepares a vector for products of up to GPU_FEW tokens: norms and gates, then
 * int8 codes in blocks of 32, by a whole thread block, in shared memory.
 *
 * The int8 form of a vector of n blocks takes 40 n bytes, in shared and in global memory alike:
 *   first  [n][16] int8     weights 0..15 of every block
 *   second [n][16] int8     weights 16..31
 *   dx     [n] float        scales
 *   s      [n][2] int16     sums of the two halves
 * The halves are stored apart so that eight threads that read eight blocks at once have no bank
 * conflict. The codes are the contract's, bit for bit (docs/numerics.md, section 2). Norms and
 * gates are outside the contract. */
#ifndef CUDA_ACTIVATIONS_CUH
#define CUDA_ACTIVATIONS_CUH

#include "cuda/device.cuh"

/* gpu_blocks_bytes on the device. */
static __device__ __forceinline__ int blocks_pitch(int cols)
{
    return (cols / 32 * 40 + 15) / 16 * 16;
}

/* The fields of gpu_input that kernels need. */
typedef struct input_view {
    gpu_input_kind kind;
    int cols;
    const float *x, *weight, *gate;
    float eps;
    int head_dim, head_stride, gate_stride;
} input_view;

static inline input_view view_of(const gpu_input *in)
{
    return { in->kind, in->cols, in->x, in->weight, in->gate, in->eps, in->head_dim,
             in->head_stride, in->gate_stride };
}

/* SHAPE, the properties of an input that are known at compile time. ANY_INPUT: none. WHOLE_INPUT:
 * all groups of eight values are complete and at multiples of 16 bytes. UNGATED_INPUT: likewise,
 * and there are no gates. In a kernel of a few microseconds most code runs once, and fetching it
 * takes longer than running it, so kernels omit unused cases. */
enum { ANY_INPUT, WHOLE_INPUT, UNGATED_INPUT };

static inline bool is_whole(const input_view &in)
{
    const uintptr_t at = (uintptr_t)in.x | (uintptr_t)in.weight | (uintptr_t)in.gate;
    return in.cols % 8 == 0 && at % 16 == 0 && in.head_dim % 8 == 0 && in.head_stride % 4 == 0 &&
           in.gate_stride % 4 == 0;
}

static inline bool is_gated(const input_view &in)
{
    return in.kind == GPU_GATED || in.kind == GPU_GATED_NORM;
}

typedef struct acts_view {
    const uint8_t *first, *second;
    const float *dx;
    const int *s;                        /* [n_block]: s[0] in the low 16 bits, s[1] in the high */
} acts_view;

static __device__ __forceinline__ acts_view acts_at(const void *p, int n_block)
{
    const uint8_t *b = (const uint8_t *)p;
    return { b, b + 16 * n_block, (const float *)(b + 32 * n_block),
             (const int *)(b + 36 * n_block) };
}

/* ---- eight values at a time ------------------------------------------------------------------ */

/* Values 8i .. 8i+7 of a vector that begins at p; zeros past its end. */
template <int SHAPE = ANY_INPUT>
static __device__ __forceinline__ void load8(float (&v)[8], const float *p, int i, int cols)
{
    if (8 * i + 8 <= cols && (SHAPE != ANY_INPUT || ((uintptr_t)p & 15) == 0)) {
        const float4 a = ((const float4 *)p)[2 * i], b = ((const float4 *)p)[2 * i + 1];
        v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
        v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
        return;
    }
    for (int k = 0; k < 8; k++)
        v[k] = SHAPE == ANY_INPUT && 8 * i + k < cols ? p[8 * i + k] : 0.0f;
}

template <int SHAPE>
static __device__ __forceinline__ void store8(float *p, const float (&v)[8], int i, int cols)
{
    if (8 * i + 8 <= cols && (SHAPE != ANY_INPUT || ((uintptr_t)p & 15) == 0)) {
        ((float4 *)p)[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)p)[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    for (int k = 0; k < 8; k++)
        if (SHAPE == ANY_INPUT && 8 * i + k < cols) p[8 * i + k] = v[k];
}

static __device__ __forceinline__ float squares8(const float (&v)[8])
{
    float sum = 0.0f;
    for (int k = 0; k < 8; k++) sum = fmaf(v[k], v[k], sum);
    return sum;
}

/* Gate factors of values 8i .. 8i+7. head_dim is a multiple of 8. */
template <int SHAPE>
static __device__ __forceinline__ void load_gate8(float (&v)[8], const input_view &in, int t, int i)
{
    const int h = 8 * i / in.head_dim, d = 8 * i % in.head_dim;
    load8<SHAPE>(v, in.gate + (size_t)t * in.gate_stride + (size_t)h * in.head_stride + d, 0, 8);
    #pragma unroll
    for (int k = 0; k < 8; k++)          /* sigmoid, or silu */
        v[k] = (in.kind == GPU_GATED ? 1.0f : v[k]) / (1.0f + expf(-v[k]));
}

/* Norm weights of values 8i .. 8i+7; ones if there is no norm. */
template <int SHAPE>
static __device__ __forceinline__ void load_weight8(float (&w)[8], const input_view &in, int i)
{
    if (in.kind == GPU_NORM) load8<SHAPE>(w, in.weight, i, in.cols);
    else if (SHAPE != UNGATED_INPUT && in.kind == GPU_GATED_NORM)
        load8<SHAPE>(w, in.weight + 8 * i % in.head_dim, 0, 8);
    else for (int k = 0; k < 8; k++) w[k] = 1.0f;
}

/* Applies norm and gate to values 8i .. 8i+7. w: their weights; gate: result of load_gate8; factor:
 * 1 / rms of a norm over the whole vector. Called by whole warps, neighbours with consecutive i. */
template <int SHAPE>
static __device__ __forceinline__ void finish8(float (&v)[8], const input_view &in, float factor,
                                               const float (&w)[8], const float (&gate)[8])
{
    if (in.kind == GPU_NORM)
        for (int k = 0; k < 8; k++) v[k] = v[k] * factor * w[k];
    if (SHAPE == UNGATED_INPUT) return;
    if (in.kind == GPU_GATED)
        for (int k = 0; k < 8; k++) v[k] *= gate[k];
    if (in.kind == GPU_GATED_NORM) {
        float sum = squares8(v);
        for (int d = in.head_dim / 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
        const float scale = 1.0f / sqrtf(sum / (float)in.head_dim + in.eps);
        for (int k = 0; k < 8; k++) v[k] = v[k] * scale * w[k] * gate[k];
    }
}

/* ---- int8 codes ------------------------------------------------------------------------------ */

/* From the bits of a block's largest magnitude: below 2^-100 all codes are 0; Inf or NaN: dx
 * NaN. */
typedef struct code_scale {
    bool usual;                          /* false: all codes are 0 */
    float inv, dx;
} code_scale;

static __device__ __forceinline__ code_scale code_scale_of(uint32_t largest)
{
    const float amax = __uint_as_float(largest);
    code_scale s = { largest >= 0x0D800000u && largest < 0x7F800000u, 0.0f, 0.0f };
    if (s.usual) s.inv = __fdiv_rn(127.0f, amax), s.dx = __fmul_rn(amax, 0x1.020408p-7f);
    else if (largest >= 0x7F800000u) s.dx = __uint_as_float(0x7FC00000u);
    return s;
}

/* Writes the codes of eight values of each thread of a warp; four neighbours hold a block. */
static __device__ __forceinline__ void quantise8(void *to, int n_block, const float (&v)[8], int i)
{
    uint32_t largest = 0;
    for (int k = 0; k < 8; k++) largest = max(largest, __float_as_uint(v[k]) & 0x7FFFFFFFu);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));

    const code_scale scale = code_scale_of(largest);
    uint32_t code[2] = { 0, 0 };
    if (scale.usual)
        for (int k = 0; k < 8; k++) {
            const int q = __float2int_rn(__fmul_rn(v[k], scale.inv));
            code[k / 4] |= ((uint32_t)q & 255u) << 8 * (k % 4);
        }
    int sum = __dp4a((int)code[0], 0x01010101, __dp4a((int)code[1], 0x01010101, 0));
    sum += __shfl_xor_sync(~0u, sum, 1);

    const int j = i / 4, part = i % 4;
    if (j >= n_block) return;
    uint8_t *b = (uint8_t *)to;
    uint8_t *codes = b + (part < 2 ? 0 : 16 * n_block) + 16 * j + 8 * (part % 2);
    ((uint32_t *)codes)[0] = code[0];
    ((uint32_t *)codes)[1] = code[1];
    if (part == 0) ((float *)(b + 32 * n_block))[j] = scale.dx;
    if (part % 2 == 0) ((int16_t *)(b + 36 * n_block))[2 * j + part / 2] = (int16_t)sum;
}

/* A warp writes the codes of 32 values, one of each lane, which are block j of n_block. */
static __device__ __forceinline__ void quantise_block(uint8_t *to, int n_block, int j, float v)
{
    const int lane = threadIdx.x % 32;
    uint32_t largest = __float_as_uint(v) & 0x7FFFFFFFu;
    for (int d = 16; d > 0; d >>= 1) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    const code_scale scale = code_scale_of(largest);
    const int q = scale.usual ? __float2int_rn(__fmul_rn(v, scale.inv)) : 0;
    int sum = q;
    for (int d = 8; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);

    to[(lane < 16 ? 0 : 16 * n_block) + 16 * j + lane % 16] = (uint8_t)q;
    if (lane == 0) ((float *)(to + 32 * n_block))[j] = scale.dx;
    if (lane % 16 == 0) ((int16_t *)(to + 36 * n_block))[2 * j + lane / 16] = (int16_t)sum;
}

/* ---- a whole vector -------------------------------------------------------------------------- */

/* Data that a thread reads before the input is ready: the norm weights of its first KEPT rounds. A
 * block of few threads keeps more rounds in registers. */
template <int KEPT> struct input_ahead {
    float w[KEPT][8];
};

template <int KEPT, int SHAPE, int THREADS>
static __device__ __forceinline__ input_ahead<KEPT> input_begin(const input_view &in)
{
    input_ahead<KEPT> a;
    #pragma unroll
    for (int r = 0; r < KEPT; r++) {
        const int i = threadIdx.x + r * THREADS;
        if (8 * i < in.cols) load_weight8<SHAPE>(a.w[r], in, i);
    }
    return a;
}

/* Loads a thread's values of round r, index i, with weights and gates. x: token t's vector; kept:
 * weights of the first rounds. */
template <int SHAPE, int KEPT>
static __device__ __forceinline__ void input_round(float (&v)[8], float (&w)[8], float (&gate)[8],
                                                   const input_view &in, const float *x, int t,
                                                   int r, int i, const float (&kept)[KEPT][8],
                                                   const input_ahead<KEPT> &ahead)
{
    const bool gated = in.kind == GPU_GATED || in.kind == GPU_GATED_NORM;
    if (r >= KEPT) {
        load8<SHAPE>(v, x, i, in.cols);
        if (8 * i < in.cols) load_weight8<SHAPE>(w, in, i);
    }
    if (SHAPE != UNGATED_INPUT && gated && 8 * i < in.cols) load_gate8<SHAPE>(gate, in, t, i);
    #pragma unroll
    for (int kr = 0; kr < KEPT; kr++)
        if (r == kr)
            for (int k = 0; k < 8; k++) v[k] = kept[kr][k], w[k] = ahead.w[kr][k];
}

/* Finishes token t's vector: writes its int8 form to codes and its values to floats; either may be
 * NULL. The block synchronises at the end. shared: 32 floats. */
template <int SHAPE, int THREADS, int KEPT>
static __device__ __forceinline__ void input_finish(void *codes, float *floats,
                                                    const input_view &in, int t, float *shared,
                                                    const input_ahead<KEPT> &ahead)
{
    const float *x = in.x + (size_t)t * in.cols;
    float kept[KEPT][8], factor = 1.0f;

    #pragma unroll
    for (int r = 0; r < KEPT; r++) load8<SHAPE>(kept[r], x, threadIdx.x + r * THREADS, in.cols);
    if (in.kind == GPU_NORM) {
        float sum = 0.0f;
        #pragma unroll
        for (int r = 0; r < KEPT; r++) sum += squares8(kept[r]);
        #pragma unroll 1
        for (int i = threadIdx.x + KEPT * THREADS; 8 * i < in.cols; i += THREADS) {
            float v[8];
            load8<SHAPE>(v, x, i, in.cols);
            sum += squares8(v);
        }
        factor = 1.0f / sqrtf(block_sum<THREADS>(sum, shared) / (float)in.cols + in.eps);
    }
    /* a warp continues while any of its threads has values; not unrolled: see ANY_INPUT */
    #pragma unroll 1
    for (int r = 0; 8 * (threadIdx.x / 32 * 32 + r * THREADS) < in.cols; r++) {
        const int i = threadIdx.x + r * THREADS;
        float v[8], w[8], gate[8];
        input_round<SHAPE>(v, w, gate, in, x, t, r, i, kept, ahead);
        finish8<SHAPE>(v, in, factor, w, gate);
        if (codes) quantise8(codes, in.cols / 32, v, i);
        if (floats) store8<SHAPE>(floats, v, i, in.cols);
    }
    __syncthreads();
}

#endif
