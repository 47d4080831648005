/* experts_k_quants.cu - experts.cuh's kernels of resident layers for K-quants. */
#include "cuda/experts.cuh"

void up_k_quants(gpu *g, launch_stream at, int type, const up_args *a, uint64_t bytes)
{
    LAUNCH_UP(GPU_K_TYPES)
}

void down_k_quants(gpu *g, launch_stream at, int type, const down_args *a, int n, uint64_t bytes)
{
    LAUNCH_DOWN(GPU_K_TYPES)
}
