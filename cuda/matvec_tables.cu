/* matvec_tables.cu - matvec.cuh's kernels for IQ4_NL, IQ4_XS, MXFP4, NVFP4: codes index a table. */
#include "cuda/matvec.cuh"

void dense_tables(gpu *g, int type, dense_args *a, uint64_t bytes)
{
    LAUNCH_DENSE(GPU_TABLE_TYPES)
}
