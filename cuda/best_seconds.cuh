/* best_seconds.cuh - times work on the device, between two events of its stream. bandwidth.cu,
 * measure_links.cu and mma_peak.cu use it. */
#ifndef CUDA_BEST_SECONDS_CUH
#define CUDA_BEST_SECONDS_CUH

#include "cuda/device.cuh"

/* Returns the seconds of the fastest run. step enqueues the work of a run. There are at least n
 * runs, and more until ns nanoseconds have passed. 0: failure, which g stores. */
template <typename STEP>
static double best_seconds(gpu *g, const char *what, int n, uint64_t ns, STEP step)
{
    const uint64_t begun = clock_ns();
    cudaEvent_t event[2] = {};
    float best = 0.0f;

    for (int i = 0; i < 2; i++) gpu_fail(g, cudaEventCreate(&event[i]), what);
    for (int i = 0; (i < n || clock_ns() - begun < ns) && g->failure == cudaSuccess; i++) {
        float ms = 0.0f;
        gpu_fail(g, cudaEventRecord(event[0], g->stream), what);
        step();
        gpu_fail(g, cudaEventRecord(event[1], g->stream), what);
        gpu_fail(g, cudaEventSynchronize(event[1]), what);
        gpu_fail(g, cudaEventElapsedTime(&ms, event[0], event[1]), what);
        if (best == 0.0f || ms < best) best = ms;
    }
    for (int i = 0; i < 2; i++)
        if (event[i]) cudaEventDestroy(event[i]);
    return g->failure == cudaSuccess ? best * 1e-3 : 0.0;
}

#endif
