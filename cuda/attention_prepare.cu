/* attention_prepare.cu - prepares q, k and v of several tokens for the attention: norm, rotation,
 * and the store of keys and values. Also norms over all heads, for any number of tokens.
 *
 * A warp computes one head of one token; lane l has values l, l + 32, ..., so 32 lanes hold one
 * block of Q8_0. The arithmetic is that of a single token (head_maker), so a token stores the same
 * bytes alone and in a batch. It is also that of engine/cpu/rows.c and engine/session/kv.c, except
 * that these sum a norm in double and in another order. attention.cu calls these functions. */
#include "cuda/batch.cuh"
#include "cuda/kv_rows.cuh"

enum {
    WARPS = 4,                           /* heads in a block */
    USUAL_DIM = 256, MAX_DIM = 512       /* values of a head, at most */
};

/* A warp stores a head's values of token t to its row. VALUES, here and below: number of values of
 * a lane. */
template <int VALUES>
static __device__ __forceinline__ void store_row(const gpu_attention &a, bool is_value, int head,
                                                 int t, const float (&x)[VALUES], int lane)
{
    const row_token own = row_token_of(a.cursor, t);
    const int pos = pos_of(own);
    const size_t dim = (size_t)a.head_dim;
    const size_t row_bytes = a.kv == GPU_KV_F32 ? dim * 4 : a.kv == GPU_KV_F16 ? dim * 2 :
                             dim / 32 * sizeof(block_q8_0);
    uint8_t *to = pages_of(a, own.row).of(pos) + head_offset(a, is_value, head, row_bytes) +
                  (size_t)(pos % GPU_PAGE) * row_bytes;

    #pragma unroll
    for (int j = 0; j < VALUES; j++) {
        const int i = lane + 32 * j;
        if (32 * j >= a.head_dim) break;
        if (a.kv == GPU_KV_Q8_0) store_q8_0(to + j * (int)sizeof(block_q8_0), x[j], lane);
        else if (i >= a.head_dim) continue;
        else if (a.kv == GPU_KV_F16) ((uint16_t *)to)[i] = f16_bits(x[j]);
        else ((float *)to)[i] = x[j];
    }
}

/* x = x / rms(x) * w; w NULL: x / rms(x). */
template <int VALUES>
static __device__ __forceinline__ void norm(float (&x)[VALUES], const float *w, int dim, float eps,
                                            int lane)
{
    const float scale = head_scale(x, dim, eps);
    #pragma unroll
    for (int j = 0; j < VALUES; j++)
        if (lane + 32 * j < dim) {
            x[j] = __fmul_rn(x[j], scale);
            if (w) x[j] = __fmul_rn(x[j], w[lane + 32 * j]);
        }
}

/* Rotates pairs (i, i + half) of the first 2 * half values, which meet in shared memory. */
template <int VALUES>
static __device__ __forceinline__ void rotate(float (&x)[VALUES], float *shared,
                                              const float *cosine, const float *sine, int half,
                                              int lane)
{
    #pragma unroll
    for (int j = 0; j < VALUES; j++) shared[lane + 32 * j] = x[j];
    __syncwarp();
    #pragma unroll
    for (int j = 0; j < VALUES; j++) {
        const int i = lane + 32 * j;
        if (i < half) x[j] = rotated_low(x[j], shared[i + half], cosine[i], sine[i]);
        else if (i < 2 * half)
            x[j] = rotated_high(shared[i - half], x[j], cosine[i - half], sine[i - half]);
    }
}

/* Number of heads of q, k and v of a token. */
static __host__ __device__ __forceinline__ int heads_of(const gpu_attention &a)
{
    return a.n_head + (a.k ? 2 * a.n_head_kv : 0);
}

template <int DIM>                       /* upper bound of head_dim */
static __global__ void __launch_bounds__(WARPS * 32) prepare_heads(tracer f, gpu_attention a)
{
    enum { VALUES = DIM / 32 };
    __shared__ float shared[WARPS][DIM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int per_token = heads_of(a);
    const int t = ((int)blockIdx.x * WARPS + warp) / per_token;
    int h = ((int)blockIdx.x * WARPS + warp) % per_token;

    pdl_begin(f);
    pdl_wait(f);
    if (t < a.n) {
        const bool is_q = h < a.n_head, is_v = h >= a.n_head + a.n_head_kv;
        const int half = a.rope_dim / 2;
        const float *weight = is_q ? a.q_norm : a.k_norm;
        const float *from;
        float x[VALUES];

        h -= is_q ? 0 : is_v ? a.n_head + a.n_head_kv : a.n_head;
        from = is_q ? a.q + (size_t)t * a.q_stride + (size_t)h * a.q_head_stride
                    : (is_v ? a.v : a.k) + ((size_t)t * a.n_head_kv + h) * a.head_dim;
        #pragma unroll
        for (int j = 0; j < VALUES; j++)
            x[j] = lane + 32 * j < a.head_dim ? from[lane + 32 * j] : 0.0f;
        if (!is_v) {
            if (weight) norm(x, weight, a.head_dim, a.eps, lane);
            rotate(x, shared[warp], a.cosine + (size_t)t * half, a.sine + (size_t)t * half, half,
                   lane);
        } else if (a.norm_values) {
            norm(x, NULL, a.head_dim, a.eps, lane);
        }
        if (is_q) {
            float *to = a.q + (size_t)t * a.q_stride + (size_t)h * a.q_head_stride;
            #pragma unroll
            for (int j = 0; j < VALUES; j++)
                if (lane + 32 * j < a.head_dim) to[lane + 32 * j] = x[j];
        } else {
            store_row(a, is_v, h, t, x, lane);
        }
    }
    pdl_end(f);
}

/* ---- norms of all heads together ------------------------------------------------------------- */

enum { NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / 32 };

/* A block norms q (blockIdx.y 0) or k (1) of one token, in place. */
static __global__ void __launch_bounds__(NORM_THREADS) norm_whole(tracer f, gpu_attention a)
{
    __shared__ double sums[NORM_WARPS];
    const bool is_q = blockIdx.y == 0;
    const int n = (is_q ? a.n_head : a.n_head_kv) * a.head_dim;
    const int head_stride = is_q ? a.q_head_stride : a.head_dim;
    const float *weight = is_q ? a.q_norm : a.k_norm;
    float *x = is_q ? a.q + (size_t)blockIdx.x * a.q_stride : a.k + (size_t)blockIdx.x * n;
    double sum = 0.0;

    pdl_begin(f);
    pdl_wait(f);
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
        const double v = x[(size_t)(i / a.head_dim) * head_stride + i % a.head_dim];
        sum = fma(v, v, sum);
    }
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0;
    for (int i = 0; i < NORM_WARPS; i++) sum += sums[i];
    const float scale = (float)(1.0 / sqrt(sum / n + (double)a.eps));
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
        float *v = x + (size_t)(i / a.head_dim) * head_stride + i % a.head_dim;
        *v = __fmul_rn(__fmul_rn(*v, scale), weight[i]);
    }
    pdl_end(f);
}

void attention_norm_whole(gpu *g, const gpu_attention *a)
{
    const uint64_t heads = (uint64_t)a->n * (uint64_t)(a->n_head + a->n_head_kv);
    launch(g, "attention", heads * (uint64_t)a->head_dim * sizeof(float), norm_whole,
           dim3((unsigned)a->n, 2), NORM_THREADS, 0, *a);
}

void attention_prepare(gpu *g, const gpu_attention *a)
{
    const uint64_t heads = (uint64_t)a->n * (uint64_t)heads_of(*a);
    const uint64_t bytes = heads * (uint64_t)a->head_dim * sizeof(float);
    const dim3 grid(ceil_div(heads, WARPS));
    if (a->head_dim <= USUAL_DIM)
        launch(g, "attention", bytes, prepare_heads<USUAL_DIM>, grid, WARPS * 32, 0, *a);
    else
        launch(g, "attention", bytes, prepare_heads<MAX_DIM>, grid, WARPS * 32, 0, *a);
}
