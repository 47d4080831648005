/* contract_tables.cu - contract_tile.cuh's kernel for formats whose codes index a table. */
#include "cuda/contract_tile.cuh"

void contract_run_tables(gpu *g, const gemm *p)
{
    switch (p->type) {
#define CASE(TYPE) case TYPE: contract_type<TYPE>(g, p); break;
    GPU_TABLE_TYPES(CASE)
#undef CASE
    }
}
