/* contract_few.cuh - products by the arithmetic contract for tiles of up to eight tokens.
 *
 * If experts have few tokens each, reading weights bounds the time, and tensor cores would multiply
 * zeros. So a warp computes units of rows as for single tokens (dot.cuh), with the tile's tokens in
 * shared memory. A unit of gate and up is four rows of each; a unit of a single matrix is eight
 * rows. The bits equal those of contract_tile.cuh, which includes this file. */
#ifndef CUDA_CONTRACT_FEW_CUH
#define CUDA_CONTRACT_FEW_CUH

#include "cuda/contract_many.cuh"
#include "cuda/dot.cuh"

enum { FEW_UNITS = 32 };

/* Value t of eight values in registers. */
static __device__ __forceinline__ float value_at(const float (&v)[CONTRACT_FEW], int t)
{
    float r = v[0];
    #pragma unroll
    for (int i = 1; i < CONTRACT_FEW; i++) r = t == i ? v[i] : r;
    return r;
}

/* A block computes FEW_UNITS units of a tile's rows. Eight threads have a row's sums; each of them
 * stores one token's result. */
template <int TYPE, bool UP>
static __global__ void __launch_bounds__(FEW_THREADS, 2) contract_few(tracer f, const gemm p)
{
    typedef piece_of<TYPE, FEW_STAGES> P;
    enum { rows_of_unit = UP ? UNIT_ROWS / 2 : UNIT_ROWS };
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    const int pair = threadIdx.x % 32 / 8, l = threadIdx.x % 8;
    const int n_unit = (p.rows + rows_of_unit - 1) / rows_of_unit;
    const int first = (int)blockIdx.x * FEW_UNITS, end = min(first + FEW_UNITS, n_unit);
    const int pitch = blocks_pitch(p.cols), chunks = pitch / 16;
    uint8_t *const x = shared + n_warp * P::warp_bytes;
    unit_runner<TYPE, FEW_STAGES, CONTRACT_FEW> runner;
    token_tile tile;

    pdl_begin(f);
    pdl_wait(f);
    if (tile_of_block(tile, p)) {
        const int row_bytes = (int)p.w.row_bytes, last = p.rows - 1;
        const uint8_t *const a = weight_row(p.w, tile.expert, 0);
        const uint8_t *const b = UP ? weight_row(p.up, tile.expert, 0) : a;
        const auto rows_of = [&](int unit) {
            const int row = unit * rows_of_unit + pair;
            return row_pair{ a + (size_t)min(row, last) * row_bytes,
                             b + (size_t)min(UP ? row : row + 4, last) * row_bytes };
        };
        runner.begin(f, shared + warp * P::warp_bytes, row_bytes, 0, 1, first + warp, n_warp, end,
                     rows_of);
        for (int c = (int)threadIdx.x; c < tile.n * chunks; c += (int)blockDim.x) {
            const int t = c / chunks;
            const uint8_t *from = (const uint8_t *)p.x +
                                  (size_t)input_row(p, tile.first + t) * (size_t)pitch;
            ((uint4 *)x)[c] = ((const uint4 *)from)[c - t * chunks];
        }
        __syncthreads();

        const bool is_valid = l < tile.n;
        const size_t to = is_valid ? (size_t)output_row(p, tile.first + l) : 0;
        const float factor = contract_factor<TYPE>(p.w, tile.expert);
        const float up_factor = UP ? contract_factor<TYPE>(p.up, tile.expert) : 0.0f;
        const auto store_row = [&](int row, float sum) {
            if (row >= p.rows) return;
            float *y = p.y + to * p.y_stride + row;
            const float v = __fmaf_rn(factor, sum, bias_of(p.w, tile.expert, p.rows, row));
            *y = p.add ? __fadd_rn(*y, v) : v;
        };
        runner.run(first + warp, [&](int) { return x; }, pitch, tile.n, p.cols / 32, rows_of,
                   [&](int unit, const float (&sa)[CONTRACT_FEW], const float (&sb)[CONTRACT_FEW]) {
                       const int row = unit * rows_of_unit + pair;
                       const float va = value_at(sa, l), vb = value_at(sb, l);
                       if (!is_valid) return;
                       if (!UP) {
                           store_row(row, va);
                           store_row(row + 4, vb);
                       } else if (row < p.rows) {
                           const float gate = __fmaf_rn(factor, va, bias_of(p.w, tile.expert,
                                                                            p.rows, row));
                           const float up = __fmaf_rn(up_factor, vb, bias_of(p.up, tile.expert,
                                                                             p.rows, row));
                           store_mid(p, to * p.rows + row, contract_activation(gate, up, p.act));
                       }
                   });
    }
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

/* False: a block's shared memory is too small (few_shape); nothing is launched. */
template <int TYPE> static bool launch_few(gpu *g, const gemm *p)
{
    const chip c = chip_of(g);
    size_t smem;
    const unsigned threads = few_shape(&smem, &c, TYPE, p->cols);
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    const uint64_t n_unit = ceil_div((uint64_t)p->rows, p->up.data ? UNIT_ROWS / 2 : UNIT_ROWS);
    const unsigned n_tile = p->tiles ? (unsigned)p->max_tile
                                     : ceil_div((uint64_t)p->n, (uint64_t)p->tile_tokens);
    if (threads == 0) return false;
    launch(g, p->name, bytes, p->up.data ? contract_few<TYPE, true> : contract_few<TYPE, false>,
           dim3(ceil_div(n_unit, FEW_UNITS), n_tile), threads, smem, *p);
    return true;
}

#endif
