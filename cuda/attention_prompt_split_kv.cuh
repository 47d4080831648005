/* attention_prompt_split_kv.cuh - attention of a prompt whose queries do not fill the chip: each
 * block of attention_prompt.cu attends to a part of the keys, in whole tiles; a second kernel adds
 * the parts in order.
 *
 * gpu_attention.partial holds the parts: [part][head of a token][dim] sums of weighted values,
 * undivided; then [part][head of a token] the largest score and the sum of weights. Scores are
 * exponents of 2. A sink belongs to the first part. */
#ifndef CUDA_ATTENTION_PROMPT_SPLIT_KV_CUH
#define CUDA_ATTENTION_PROMPT_SPLIT_KV_CUH

#include "cuda/kv_rows.cuh"

enum {
    PART_KEYS = 512,                     /* keys of the smallest part */
    PART_TOKENS = 512,                   /* upper bound of parts times tokens in partial */
    PART_THREADS = 128
};

/* Number of parts. room: blocks that can be active at once; n_block: blocks of the grid without
 * parts. The result depends on sizes alone, so the same input gives the same bits. */
static inline int parts_for(const gpu_attention *a, int room, int n_block)
{
    const int seen = a->window && a->window + a->n - 1 < a->last ? a->window + a->n - 1 : a->last;
    int n = room / n_block;
    if (n > seen / PART_KEYS) n = seen / PART_KEYS;
    if (n > PART_TOKENS / a->n) n = PART_TOKENS / a->n;
    return n < 1 ? 1 : n;
}

/* The sums of a part. head: index over all tokens. */
template <int DIM>
static __device__ __forceinline__ float *part_values(const gpu_attention &a, int part, size_t head)
{
    return a.partial + ((size_t)part * a.n * a.n_head + head) * DIM;
}

template <int DIM>
static __device__ __forceinline__ float2 *part_stats(const gpu_attention &a, int n_part, int part,
                                                     size_t head)
{
    float *behind = part_values<DIM>(a, n_part, 0);
    return (float2 *)behind + (size_t)part * a.n * a.n_head + head;
}

/* Adds the parts; a thread has four dimensions of a head. */
template <int DIM>
static __global__ void __launch_bounds__(PART_THREADS) add_parts(tracer f, const gpu_attention a,
                                                                 int n_part)
{
    enum { QUADS = DIM / 4, HEADS = PART_THREADS / QUADS };
    const size_t head = (size_t)blockIdx.x * HEADS + threadIdx.x / QUADS;
    const int quad = threadIdx.x % QUADS;
    float top = -INFINITY, total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    pdl_begin(f);
    pdl_wait(f);
    if (head < (size_t)a.n * a.n_head) {
        for (int i = 0; i < n_part; i++)
            top = fmaxf(top, __ldcg(part_stats<DIM>(a, n_part, i, head)).x);
        #pragma unroll 4
        for (int i = 0; i < n_part; i++) {
            const float2 found = __ldcg(part_stats<DIM>(a, n_part, i, head));
            const float4 v = __ldcg((const float4 *)part_values<DIM>(a, i, head) + quad);
            const float w = power_of_2(found.x - top);
            total = fmaf(found.y, w, total);
            sum.x = fmaf(v.x, w, sum.x);
            sum.y = fmaf(v.y, w, sum.y);
            sum.z = fmaf(v.z, w, sum.z);
            sum.w = fmaf(v.w, w, sum.w);
        }
        const float inverse = 1.0f / total;
        *((float4 *)(a.out + head * DIM) + quad) =
            make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse);
    }
    pdl_end(f);
}

template <int DIM> static void launch_add(gpu *g, const gpu_attention *a, int n_part)
{
    const uint64_t n = (uint64_t)a->n * (uint64_t)a->n_head;
    launch(g, "attention", 0, add_parts<DIM>, dim3((unsigned)ceil_div(n, PART_THREADS / (DIM / 4))),
           PART_THREADS, 0, *a, n_part);
}

#endif
