/* matvec_basic.cu - matvec.cuh's kernels for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0. */
#include "cuda/matvec.cuh"

void dense_basic(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    LAUNCH_DENSE(GPU_BASIC_TYPES)
}
