/* bandwidth.cu - gpu_read_bandwidth: measures how fast a kernel reads VRAM, the limit with which
 * the programs compare decode speed. */
#include "cuda/best_seconds.cuh"
#include "cuda/gpu_measure.h"

enum { THREADS = 512, ROUNDS = 5 };
static const uint64_t BYTES = 1u << 30;

static __global__ void __launch_bounds__(THREADS) read_all(tracer f, const uint4 *from, size_t n,
                                                           uint32_t *to)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    uint32_t sum = 0;
    pdl_begin(f);
    pdl_wait(f);
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^
               d.z ^ d.w;
    }
    if (sum == 0x12345678u) *to = sum;   /* keeps the compiler from removing the reads */
    pdl_end(f);
}

double gpu_read_rate(gpu *g, const void *from, uint64_t bytes)
{
    const double s = best_seconds(g, "bandwidth", ROUNDS, 0, [&] {
        launch(g, "bandwidth", bytes, read_all, (unsigned)g->n_sm * 4, THREADS, 0,
               (const uint4 *)from, (size_t)(bytes / 16), (uint32_t *)from);
    });
    return s > 0 ? (double)bytes / s : 0;
}

int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err)
{
    uint8_t *p = (uint8_t *)gpu_alloc(g, BYTES, "a measurement of the memory", err);
    *bytes_per_s = 0;
    if (!p) return ERR_NOMEM;
    gpu_fail(g, cudaMemsetAsync(p, 1, BYTES, g->stream), "bandwidth");
    *bytes_per_s = gpu_read_rate(g, p, BYTES);
    gpu_free(g, p);
    return gpu_wait(g, err);
}
