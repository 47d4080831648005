/* delta.cuh - sizes, gates and norms for both forms of the delta rule: delta.cu (single tokens) and
 * delta_chunks.cu (chunks). delta.cu divides a batch between them. */
#ifndef CUDA_DELTA_CUH
#define CUDA_DELTA_CUH

#include "cuda/device.cuh"

typedef struct delta_sizes {
    int keys, values, channels, ratio;   /* widths of q (or k), of v, of q, k and v; n_v / n_k */
} delta_sizes;

static __host__ __device__ __forceinline__ delta_sizes sizes_of(const gpu_delta &d)
{
    return { d.n_k * d.dim, d.n_v * d.dim, (2 * d.n_k + d.n_v) * d.dim, d.n_v / d.n_k };
}

/* The key head of value head v. rank_of: the index of v among the value heads of that key head. */
static __device__ __forceinline__ int key_head_of(const gpu_delta &d, const delta_sizes &s, int v)
{
    return d.tiled ? v % d.n_k : v / s.ratio;
}

static __device__ __forceinline__ int rank_of(const gpu_delta &d, const delta_sizes &s, int v)
{
    return d.tiled ? v / d.n_k : v % s.ratio;
}

/* Offset of the write strength of value head v in a token's ba; its decay is decay_step later. */
static __device__ __forceinline__ int gate_of(const gpu_delta &d, const delta_sizes &s, int v)
{
    return d.apart ? v : key_head_of(d, s, v) * 2 * s.ratio + rank_of(d, s, v);
}

static __device__ __forceinline__ int decay_step(const gpu_delta &d, const delta_sizes &s)
{
    return d.apart ? d.n_v : s.ratio;
}

/* log of the decay */
static __device__ __forceinline__ float log_decay(float alpha, float dt_bias, float a)
{
    const float x = alpha + dt_bias;
    return (x > 20.0f ? x : log1pf(expf(x))) * a;
}

/* exp(g), g <= 0, as the sum of two floats */
static __device__ __forceinline__ float2 split_exp(float g)
{
    const float above = expm1f(g), high = 1.0f + above;
    return make_float2(high, (1.0f - high) + above);
}

static __device__ __forceinline__ float l2_factor(float squares)
{
    return 1.0f / sqrtf(squares + 1e-6f);
}

/* The state of a conversation before the tokens of a kernel, and where it goes after them. fresh:
 * earlier tokens of the batch have written it. */
static __device__ __forceinline__ const float *state_before(const gpu_delta &d,
                                                            const gpu_cursor *row, bool fresh)
{
    return (const float *)((fresh ? row->recurrent_next : row->recurrent) + d.state);
}

static __device__ __forceinline__ float *state_after(const gpu_delta &d, const gpu_cursor *row)
{
    return (float *)(row->recurrent_next + d.state);
}

/* delta_chunks.cu: computes n_chunk chunks of GPU_DELTA_CHUNK tokens from token `first` of the
 * batch on. Reads mixed and ba as the caller gave them, before norms and gates. fresh: as above. */
bool delta_chunks_fit(const gpu *g, int dim);
void delta_chunks(gpu *g, const gpu_delta *d, int first, int n_chunk, bool fresh);

#endif
