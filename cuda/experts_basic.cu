/* experts_basic.cu - experts.cuh's kernels of resident layers for Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. */
#include "cuda/experts.cuh"

void up_basic(gpu *g, launch_stream at, int type, const up_args *a, uint64_t bytes)
{
    LAUNCH_UP(GPU_BASIC_TYPES)
}

void down_basic(gpu *g, launch_stream at, int type, const down_args *a, int n, uint64_t bytes)
{
    LAUNCH_DOWN(GPU_BASIC_TYPES)
}
