/* contract_k_quants.cu - contract_tile.cuh's kernel for K-quants. */
#include "cuda/contract_tile.cuh"

void contract_run_k_quants(gpu *g, const gemm *p)
{
    switch (p->type) {
#define CASE(TYPE) case TYPE: contract_type<TYPE>(g, p); break;
    GPU_K_TYPES(CASE)
#undef CASE
    }
}
