/* matvec_tables.cu - matvec.cuh's kernels for types whose codes are looked up: IQ4_NL, IQ4_XS,
 * MXFP4 and NVFP4. */
#include "cuda/matvec.cuh"

void dense_tables(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    LAUNCH_DENSE(GPU_TABLE_TYPES)
}
