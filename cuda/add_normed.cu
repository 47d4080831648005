/* add_normed.cu - parts of a layer that are normed before they join the residual stream.
 *
 * A block takes a token. Sums of squares are in double, and every other rounding is that of
 * engine/host/host_steps.c. Parts are read and normed twice, once for the norm of their sum: they
 * are in the cache, and there is no limit to their width. */
#include "cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Of a and b, over the block. */
static __device__ __forceinline__ double2 block_sums(double a, double b)
{
    __shared__ double2 found[WARPS];
    for (int d = 16; d > 0; d >>= 1) {
        a += __shfl_xor_sync(~0u, a, d);
        b += __shfl_xor_sync(~0u, b, d);
    }
    __syncthreads();                     /* sums of the call before have been read */
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

/* Value c of the parts' sum; by: 1 / rms of each. */
static __device__ __forceinline__ float sum_at(const gpu_normed &a, size_t at, int c, float2 by)
{
    float v = a.part[0][at];
    if (a.part_gain[0]) v = __fmul_rn(__fmul_rn(v, by.x), a.part_gain[0][c]);
    if (!a.part[1]) return v;
    float w = a.part[1][at];
    if (a.part_gain[1]) w = __fmul_rn(__fmul_rn(w, by.y), a.part_gain[1][c]);
    return __fadd_rn(v, w);
}

static __global__ void __launch_bounds__(THREADS) add_normed(frame f, const gpu_normed a)
{
    const size_t first = (size_t)blockIdx.x * a.cols;
    double p = 0.0, q = 0.0;
    float2 by = make_float2(1.0f, 1.0f);

    frame_begin(f);
    frame_wait(f);
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
        if (a.clear) a.clear[first + c] = 0.0f;          /* nobody else reads it any more */
    }
    frame_end(f);
}

void gpu_add_normed(gpu *g, const gpu_normed *a)
{
    if (a->n < 1 || a->cols < 1 || !a->gain || !a->part[0] || (a->part_gain[1] && !a->part[1]))
        gpu_fail(g, cudaErrorInvalidValue, "normed parts: arguments");
    if (g->failure != cudaSuccess) return;
    launch(g, "normed parts", 0, add_normed, (unsigned)a->n, THREADS, 0, *a);
}
