/* experts_tables.cu - experts.cuh's kernels of resident layers for types whose codes index a table:
 * IQ4_NL, IQ4_XS, MXFP4 and NVFP4. */
#include "cuda/experts.cuh"

void up_tables(gpu *g, launch_stream at, int type, const up_args *a, uint64_t bytes)
{
    LAUNCH_UP(GPU_TABLE_TYPES)
}

void down_tables(gpu *g, launch_stream at, int type, const down_args *a, int n, uint64_t bytes)
{
    LAUNCH_DOWN(GPU_TABLE_TYPES)
}
