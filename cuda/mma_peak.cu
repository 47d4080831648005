/* mma_peak.cu - gpu_multiply_peak: measures how fast this device multiplies 16-bit matrices by mma,
 * the limit of kernels that use it. Hopper's own instruction, wgmma, is 1.5 times as fast. */
#include "cuda/best_seconds.cuh"
#include "cuda/gpu_measure.h"

enum { THREADS = 256, SUMS = 8, STEPS = 2048, BLOCKS = 4, ROUNDS = 5 };

static __global__ void __launch_bounds__(THREADS) multiply_registers(tracer f, float *to)
{
    float sum[SUMS][4] = {};
    uint32_t a[4], b[SUMS][2];
    pdl_begin(f);
    pdl_wait(f);
    for (uint32_t &v : a) v = pack_halves(1.0f, (float)threadIdx.x);
    for (auto &pair : b)
        for (uint32_t &v : pair) v = pack_halves(0.5f, (float)blockIdx.x);
    #pragma unroll 1
    for (int i = 0; i < STEPS; i++)
        #pragma unroll
        for (int k = 0; k < SUMS; k++) mma_16x8x16(sum[k], a, b[k]);
    float all = 0.0f;
    for (const auto &four : sum)
        for (const float v : four) all += v;
    if (all == 0.12345f) *to = all;      /* keeps the compiler from removing the products */
    pdl_end(f);
}

int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err)
{
    const unsigned blocks = (unsigned)(g->n_sm * BLOCKS);
    const double macs = (double)blocks * (THREADS / 32) * STEPS * SUMS * (16 * 8 * 16);
    const double s = best_seconds(g, "peak", ROUNDS, 0, [&] {
        launch(g, "peak", 0, multiply_registers, blocks, THREADS, 0, (float *)NULL);
    });
    const int rc = gpu_wait(g, err);
    *macs_per_s = rc == 0 && s > 0 ? macs / s : 0.0;
    return rc;
}
