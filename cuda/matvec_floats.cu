/* matvec_floats.cu - matvec.cuh's kernels for F32, F16 and BF16. */
#include "cuda/matvec.cuh"

void dense_float_types(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    LAUNCH_DENSE(GPU_FLOAT_TYPES)
}
