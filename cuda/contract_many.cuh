/* contract_many.cuh - products of more than GPU_FEW tokens by the arithmetic contract.
 *
 * A product is gemm.cuh's, but x is the int8 form of its rows (activations.cuh), which
 * contract_quantise makes. All block formats have it; float weights do not. The bits are those of
 * one token at a time, whatever the tiles. */
#ifndef CUDA_CONTRACT_MANY_CUH
#define CUDA_CONTRACT_MANY_CUH

#include "cuda/activations.cuh"
#include "cuda/contract_activation.cuh"
#include "cuda/gemm.cuh"

/* The number of tokens in a tile for n slots with n_expert experts: at least CONTRACT_FEW. */
enum { CONTRACT_FEW = GPU_FEW };
int contract_tile_tokens(int n, int n_expert);

/* blocks: [n] of gpu_blocks_bytes(cols), at a multiple of 16. cols: a multiple of 32. from, to:
 * NULL, or only vectors *from .. *to - 1, which are in device memory. */
void contract_quantise(gpu *g, void *blocks, const float *rows, int n, int cols,
                       const int32_t *from, const int32_t *to);

/* y = W x, or mid = activation(w x, up x) with the contract's activation. */
void contract_run(gpu *g, const gemm *p);
void contract_run_k_quants(gpu *g, const gemm *p);       /* GPU_K_TYPES */
void contract_run_tables(gpu *g, const gemm *p);         /* GPU_TABLE_TYPES */

/* mid = activation(gate, up), for two separate products of n rows; mid_rows of p may be up. */
void contract_activate(gpu *g, const gemm *p, const float *gate, const float *up);

template <int TYPE>
static __device__ __forceinline__ float contract_factor(const gemm_matrix &m, int expert)
{
    return __fmul_rn(format<TYPE>::factor, expert_factor(m, expert));
}

/* Whether the kernels were compiled for a chip before sm_80. */
bool contract_is_small(void);

#endif
