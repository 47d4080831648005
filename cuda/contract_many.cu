/* contract_many.cu - products of many tokens by the arithmetic contract: makes their input, chooses
 * kernel and tile, and has the kernel for formats with codes in equal steps.
 *
 * The kernels are in contract_tile.cuh and contract_few.cuh. Other formats are in
 * contract_k_quants.cu and contract_tables.cu, which shortens compilation. */
#include "cuda/contract_tile.cuh"

enum { QUANTISE_THREADS = 256, ACTIVATE_THREADS = 256 };

bool contract_is_small(void) { return gpu_code_version() < 80; }

/* A tile of 32 tokens takes the same time however few are in it, and half of a tile of 64 is wasted
 * on an expert with 32 slots. So the size follows the average number of slots of an expert. */
int contract_tile_tokens(int n, int n_expert)
{
    if (n / n_expert < 16) return CONTRACT_FEW;
    return contract_is_small() || n / n_expert < 24 ? 32 : 64;
}

/* ---- the input ------------------------------------------------------------------------------- */

/* One block for each vector. */
static __global__ void __launch_bounds__(QUANTISE_THREADS) quantise_rows(tracer f, uint8_t *blocks,
                                                                         const float *rows,
                                                                         int cols,
                                                                         const int32_t *from,
                                                                         const int32_t *to)
{
    const size_t t = blockIdx.x;

    pdl_begin(f);
    pdl_wait(f);
    const bool wanted = !from || ((int)t >= *from && (int)t < *to);
    for (int first = 0; wanted && first < cols / 8; first += QUANTISE_THREADS) {
        const int i = first + (int)threadIdx.x;
        float v[8];
        load8(v, rows + t * cols, i, cols);
        quantise8(blocks + t * blocks_pitch(cols), cols / 32, v, i);
    }
    pdl_end(f);
}

void contract_quantise(gpu *g, void *blocks, const float *rows, int n, int cols,
                       const int32_t *from, const int32_t *to)
{
    const uint64_t bytes = (uint64_t)n * (uint64_t)cols * sizeof(float);
    if (n == 0) return;
    launch(g, "quantise", bytes, quantise_rows, (unsigned)n, QUANTISE_THREADS, 0,
           (uint8_t *)blocks, rows, cols, from, to);
}

/* ---- the activation alone -------------------------------------------------------------------- */

static __global__ void __launch_bounds__(ACTIVATE_THREADS) activate_rows(tracer f, const gemm p,
                                                                         const float *gate,
                                                                         const float *up)
{
    const size_t n = (size_t)p.n * p.rows, stride = (size_t)gridDim.x * ACTIVATE_THREADS;

    pdl_begin(f);
    pdl_wait(f);
    for (size_t i = (size_t)blockIdx.x * ACTIVATE_THREADS + threadIdx.x; i < n; i += stride)
        store_mid(p, i, contract_activation(gate[i], up[i], p.act));
    pdl_end(f);
}

void contract_activate(gpu *g, const gemm *p, const float *gate, const float *up)
{
    launch(g, "activation", 0, activate_rows, (unsigned)g->n_sm * 8, ACTIVATE_THREADS, 0, *p, gate,
           up);
}

/* ---- products -------------------------------------------------------------------------------- */

void contract_run(gpu *g, const gemm *p)
{
    gemm q = *p;

    if (p->n == 0 || p->rows == 0) return;
    if ((uintptr_t)p->x % 16 != 0 || p->cols % 32 != 0) {
        gpu_fail(g, cudaErrorMisalignedAddress, "contract: activations");
        return;
    }
    if (!p->tiles) q.tile_tokens = contract_tile_tokens(p->n, 1);
    switch (p->type) {
#define CASE(TYPE) case TYPE: contract_type<TYPE>(g, &q); break;
    GPU_BASIC_TYPES(CASE)
#undef CASE
#define CASE(TYPE) case TYPE:
    GPU_K_TYPES(CASE) contract_run_k_quants(g, &q); break;
    GPU_TABLE_TYPES(CASE) contract_run_tables(g, &q); break;
#undef CASE
    default: gpu_fail(g, cudaErrorNotSupported, "contract: type of weights");
    }
}
