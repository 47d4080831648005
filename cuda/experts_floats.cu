/* experts_floats.cu - experts.cuh's kernels of resident layers for F32, F16 and BF16. */
#include "cuda/experts.cuh"

void up_floats(gpu *g, launch_stream at, int type, const up_args *a, uint64_t bytes)
{
    LAUNCH_UP(GPU_FLOAT_TYPES)
}

void down_floats(gpu *g, launch_stream at, int type, const down_args *a, int n, uint64_t bytes)
{
    LAUNCH_DOWN(GPU_FLOAT_TYPES)
}
