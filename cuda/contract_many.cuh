/* contract_many.cuh - products of more than GPU_FEW tokens by the arithmetic contract.
 *
 * The arguments are gemm.cuh's, but x has its rows in int8 form (activations.cuh), which
 * contract_quantise makes. All block formats have kernels; float weights do not. The bits are those
 * of one token at a time, whatever the tiles. The experts_*batch.cu files call these functions. */
#ifndef CUDA_CONTRACT_MANY_CUH
#define CUDA_CONTRACT_MANY_CUH

#include "cuda/activations.cuh"
#include "cuda/contract_activation.cuh"
#include "cuda/gemm.cuh"

/* A good number of tokens in a tile for n slots and n_expert experts: at least CONTRACT_FEW. */
enum { CONTRACT_FEW = GPU_FEW };
int contract_tile_tokens(int n, int n_expert);

/* Writes the int8 forms of rows [n, cols] to blocks, gpu_blocks_bytes(cols) each, at a multiple of
 * 16; only of vectors *from .. *to - 1 (words in VRAM), unless both are NULL. cols % 32 is 0. */
void contract_quantise(gpu *g, void *blocks, const float *rows, int n, int cols,
                       const int32_t *from, const int32_t *to);

/* y = W x, or mid = activation(w x, up x) with the contract's activation. */
void contract_run(gpu *g, const gemm *p);
void contract_run_k_quants(gpu *g, const gemm *p);       /* GPU_K_TYPES */
void contract_run_tables(gpu *g, const gemm *p);         /* GPU_TABLE_TYPES */

/* mid = activation(gate, up) from two separate products of n rows; p->mid_rows may equal up. */
void contract_activate(gpu *g, const gemm *p, const float *gate, const float *up);

template <int TYPE>
static __device__ __forceinline__ float contract_factor(const gemm_matrix &m, int expert)
{
    return __fmul_rn(format<TYPE>::factor, expert_factor(m, expert));
}

/* Whether the kernels were compiled for a chip before sm_80. */
bool contract_is_small(void);

#endif
