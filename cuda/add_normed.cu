/* add_normed.cu - gpu_add_normed: adds parts of a layer to the residual stream after a norm.
 *
 * A block computes a token. Sums of squares are in double; all other roundings equal those of
 * engine/host/host_steps.c. Vectors of up to KEPT_COLS values stay in registers: a block requests
 * gains before the parts are ready, and a whole part before it uses the first value. Only the width
 * decides which thread has which values, so a token has the same bits in any batch.
 *
 * Wider or unaligned vectors are read and normed twice, once for the norm of their sum. The second
 * read hits the cache, and the width has no limit. */
#include "cuda/device.cuh"

/* ---- kept in registers ----------------------------------------------------------------------- */

enum { EACH = 8, KEPT_THREADS = 1024, KEPT_COLS = EACH * KEPT_THREADS };

/* Loads the thread's values of a vector: four, and the four that come 4 * blockDim.x later. Values
 * past the end are zeros. */
static __device__ __forceinline__ void load_own(float (&v)[EACH], const float *from, int cols)
{
    #pragma unroll
    for (int r = 0; r < EACH / 4; r++) {
        const int c = 4 * (int)(threadIdx.x + r * blockDim.x);
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (c < cols) four = *(const float4 *)(from + c);
        v[4 * r] = four.x;
        v[4 * r + 1] = four.y;
        v[4 * r + 2] = four.z;
        v[4 * r + 3] = four.w;
    }
}

static __device__ __forceinline__ void store_own(float *to, const float (&v)[EACH], int cols)
{
    #pragma unroll
    for (int r = 0; r < EACH / 4; r++) {
        const int c = 4 * (int)(threadIdx.x + r * blockDim.x);
        if (c < cols)
            *(float4 *)(to + c) = make_float4(v[4 * r], v[4 * r + 1], v[4 * r + 2], v[4 * r + 3]);
    }
}

static __device__ __forceinline__ double squares_of(const float (&v)[EACH])
{
    double sum = 0.0;
    #pragma unroll
    for (int i = 0; i < EACH; i++) sum = fma((double)v[i], (double)v[i], sum);
    return sum;
}

template <int N> static __device__ __forceinline__ void warp_sums(double (&sum)[N])
{
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        #pragma unroll
        for (int i = 0; i < N; i++) sum[i] += __shfl_xor_sync(~0u, sum[i], d);
}

/* 1 / rms of N = 1 or 2 vectors. sum: the thread's sums of squares; share: 1 / cols. Only the first
 * warp computes it, because many chips have few units for double. An error of 1e-16 before the
 * rounding to float rarely changes the result. */
template <int N>
static __device__ __forceinline__ float2 scales_of(double (&sum)[N], double share, float eps)
{
    __shared__ double found[2][KEPT_THREADS / 32];
    __shared__ float scale[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warp = blockDim.x / 32;

    warp_sums(sum);
    if (lane == 0)
        #pragma unroll
        for (int i = 0; i < N; i++) found[i][warp] = sum[i];
    __syncthreads();
    if (warp == 0) {
        #pragma unroll
        for (int i = 0; i < N; i++) sum[i] = lane < n_warp ? found[i][lane] : 0.0;
        warp_sums(sum);
        const double own = lane == 0 ? sum[0] : sum[N - 1];
        if (lane < N) scale[lane] = (float)rsqrt(fma(own, share, (double)eps));
    }
    __syncthreads();
    return make_float2(scale[0], scale[N - 1]);
}

/* Prefetches a vector into the L2 cache. */
static __device__ __forceinline__ void fetch_ahead(const float *from, int cols)
{
    for (int c = 32 * (int)threadIdx.x; c < cols; c += 32 * (int)blockDim.x)
        prefetch(from + c);
}

/* Requires that cols is a multiple of 4 and all vectors begin at multiples of 16 bytes. A thread
 * has at most 64 registers, so that a block fits next to a block of the previous kernel and starts
 * early. For that reason x and the last gain are loaded only during the second sum. */
static __global__ void __launch_bounds__(KEPT_THREADS) add_kept(tracer f, const gpu_normed a,
                                                                double share)
{
    const size_t first = (size_t)blockIdx.x * a.cols;
    const bool norm0 = a.part_gain[0], norm1 = a.part_gain[1], second = a.part[1];
    float v[EACH], w[EACH] = {}, v_gain[EACH], w_gain[EACH], x[EACH], gain[EACH];

    pdl_begin(f);
    if (norm0) load_own(v_gain, a.part_gain[0], a.cols);
    if (norm1) load_own(w_gain, a.part_gain[1], a.cols);
    fetch_ahead(a.gain, a.cols);
    pdl_wait(f);
    load_own(v, a.part[0] + first, a.cols);
    if (second) load_own(w, a.part[1] + first, a.cols);
    if (norm0 || norm1) {
        double sums[2] = { squares_of(v), squares_of(w) };
        const float2 by = scales_of(sums, share, a.eps);
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (norm0) v[i] = __fmul_rn(__fmul_rn(v[i], by.x), v_gain[i]);
            if (norm1) w[i] = __fmul_rn(__fmul_rn(w[i], by.y), w_gain[i]);
        }
    }
    load_own(x, a.x + first, a.cols);
    load_own(gain, a.gain, a.cols);
    if (second)
        #pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = __fadd_rn(v[i], w[i]);
    double sum[1] = { squares_of(v) };
    const float by = scales_of(sum, share, a.eps).x;
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float part = __fmul_rn(__fmul_rn(v[i], by), gain[i]);
        x[i] = __fmul_rn(__fadd_rn(x[i], part), a.scale);
        v[i] = 0.0f;
    }
    store_own(a.x + first, x, a.cols);
    if (a.clear) store_own(a.clear + first, v, a.cols);  /* no other thread reads it after this */
    pdl_end(f);
}

/* ---- of any width ---------------------------------------------------------------------------- */

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Returns the sums of a and of b over the block to all threads. */
static __device__ __forceinline__ double2 block_sums(double a, double b)
{
    __shared__ double2 found[WARPS];
    for (int d = 16; d > 0; d >>= 1) {
        a += __shfl_xor_sync(~0u, a, d);
        b += __shfl_xor_sync(~0u, b, d);
    }
    __syncthreads();                     /* all threads have read the previous call's sums */
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = make_double2(a, b);
    __syncthreads();
    double2 all = make_double2(0.0, 0.0);
    for (int i = 0; i < WARPS; i++) {
        all.x += found[i].x;
        all.y += found[i].y;
    }
    return all;
}

static __device__ __forceinline__ float inverse_rms(double squares, int n, float eps)
{
    return (float)(1.0 / sqrt(squares / n + (double)eps));
}

/* Value c of the parts' sum. by: 1 / rms of each part. */
static __device__ __forceinline__ float sum_at(const gpu_normed &a, size_t at, int c, float2 by)
{
    float v = a.part[0][at];
    if (a.part_gain[0]) v = __fmul_rn(__fmul_rn(v, by.x), a.part_gain[0][c]);
    if (!a.part[1]) return v;
    float w = a.part[1][at];
    if (a.part_gain[1]) w = __fmul_rn(__fmul_rn(w, by.y), a.part_gain[1][c]);
    return __fadd_rn(v, w);
}

static __global__ void __launch_bounds__(THREADS) add_normed(tracer f, const gpu_normed a)
{
    const size_t first = (size_t)blockIdx.x * a.cols;
    double p = 0.0, q = 0.0;
    float2 by = make_float2(1.0f, 1.0f);

    pdl_begin(f);
    pdl_wait(f);
    if (a.part_gain[0] || a.part_gain[1]) {
        for (int c = threadIdx.x; c < a.cols; c += THREADS) {
            const double v = a.part[0][first + c], w = a.part[1] ? a.part[1][first + c] : 0.0f;
            p = fma(v, v, p);
            q = fma(w, w, q);
        }
        const double2 squares = block_sums(p, q);
        by = make_float2(inverse_rms(squares.x, a.cols, a.eps),
                         inverse_rms(squares.y, a.cols, a.eps));
    }
    p = 0.0;
    for (int c = threadIdx.x; c < a.cols; c += THREADS) {
        const double v = sum_at(a, first + c, c, by);
        p = fma(v, v, p);
    }
    const float scale = inverse_rms(block_sums(p, 0.0).x, a.cols, a.eps);
    for (int c = threadIdx.x; c < a.cols; c += THREADS) {
        const float v = __fmul_rn(__fmul_rn(sum_at(a, first + c, c, by), scale), a.gain[c]);
        a.x[first + c] = __fmul_rn(__fadd_rn(a.x[first + c], v), a.scale);
        if (a.clear) a.clear[first + c] = 0.0f;          /* no other thread reads it after this */
    }
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

static bool is_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

static bool can_be_kept(const gpu_normed *a)
{
    return a->cols % 4 == 0 && a->cols <= KEPT_COLS && is_aligned(a->x) && is_aligned(a->gain) &&
           is_aligned(a->part[0]) && is_aligned(a->part[1]) && is_aligned(a->part_gain[0]) &&
           is_aligned(a->part_gain[1]) && is_aligned(a->clear);
}

void gpu_add_normed(gpu *g, const gpu_normed *a)
{
    if (a->n < 1 || a->cols < 1 || !a->gain || !a->part[0] || (a->part_gain[1] && !a->part[1]))
        gpu_fail(g, cudaErrorInvalidValue, "normed parts: arguments");
    if (g->failure != cudaSuccess) return;
    if (can_be_kept(a))
        launch(g, "normed parts", 0, add_kept, (unsigned)a->n,
               ceil_div((uint64_t)a->cols, 32 * EACH) * 32, 0, *a, 1.0 / a->cols);
    else launch(g, "normed parts", 0, add_normed, (unsigned)a->n, THREADS, 0, *a);
}
