/* gemm_fp4.cu - gemm_tile.cuh's kernel for MXFP4 and NVFP4. */
#include "cuda/gemm_tile.cuh"

void gemm_run_fp4(gpu *g, const gemm *p)
{
    if (p->type == QT_MXFP4) run_type<QT_MXFP4>(g, p);
    else run_type<QT_NVFP4>(g, p);
}
