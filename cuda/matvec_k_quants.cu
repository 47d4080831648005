/* matvec_k_quants.cu - matvec.cuh's kernels for K-quants. */
#include "cuda/matvec.cuh"

void dense_k_quants(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    LAUNCH_DENSE(GPU_K_TYPES)
}
