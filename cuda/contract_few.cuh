/* contract_few.cuh - products by the arithmetic contract for tiles of up to eight tokens, of which
 * an expert with few tokens has one. The bits equal those of contract_tile.cuh, which includes this
 * file; the arithmetic is that of few_tile.cuh.
 *
 * There are as many blocks as can be active. They take units of rows, tile after tile. */
#ifndef CUDA_CONTRACT_FEW_CUH
#define CUDA_CONTRACT_FEW_CUH

#include "cuda/contract_many.cuh"
#include "cuda/few_tile.cuh"

/* UP: a unit has 32 rows of gate and of up, which make a block of down's input. */
template <int TYPE, bool UP>
static __global__ void __launch_bounds__(FEW_THREADS, 2) contract_few(tracer f, const gemm p)
{
    enum { rows_of_unit = UP ? FEW_MOST_ROWS / 2 : FEW_MOST_ROWS };
    typedef few_tile<TYPE, FEW_MOST_ROWS, UP> tile_of_few;
    extern __shared__ __align__(128) uint8_t shared[];
    const int n_panel = (p.rows + rows_of_unit - 1) / rows_of_unit, row_bytes = (int)p.w.row_bytes;
    const size_t pitch = (size_t)blocks_pitch(p.cols);

    pdl_begin(f);
    pdl_wait(f);
    const int first_tile = p.tiles ? *p.tile_from : 0;
    const int n_tile = p.tiles ? *p.tile_to - first_tile : (p.n + GPU_FEW - 1) / GPU_FEW;
    const auto tile_of = [&](int unit) -> token_tile {
        const int i = unit / n_panel;
        if (p.tiles) return p.tiles[first_tile + i];
        return { 0, i * GPU_FEW, min((int)GPU_FEW, p.n - i * GPU_FEW), 0 };
    };
    const auto row_of = [&](int unit, int r) {
        const int first = unit % n_panel * rows_of_unit, expert = tile_of(unit).expert;
        const int row = min(first + (UP ? r / 16 * 8 + r % 8 : r), p.rows - 1);
        const bool up = UP && r / 8 % 2;
        if (expert == SHARED_EXPERT) return weight_row(up ? p.up_shared : p.w_shared, 0, row);
        return weight_row(up ? p.up : p.w, expert, row);
    };
    const auto vector_of = [&](int unit, int t) -> const uint8_t * {
        const token_tile tile = tile_of(unit);
        if (t >= tile.n) return NULL;
        const int at = tile.first + t;
        const int from = p.gather && tile.expert == SHARED_EXPERT ? at - p.n_routed
                                                                  : input_row(p, at);
        return (const uint8_t *)p.x + (size_t)from * pitch;
    };
    const auto finish = [&](int unit, const float (&sum)[tile_of_few::EACH]) {
        const token_tile tile = tile_of(unit);
        const int t = threadIdx.x / 32, first = unit % n_panel * rows_of_unit;
        if (t >= tile.n) return;
        const bool is_shared = tile.expert == SHARED_EXPERT;
        const int expert = is_shared ? 0 : tile.expert, at = tile.first + t;
        const gemm_matrix &w = is_shared ? p.w_shared : p.w;
        const size_t to = (size_t)(!is_shared ? output_row(p, at) : UP ? at : at - p.n_routed);
        const float factor = contract_factor<TYPE>(w, expert);
        if constexpr (UP) {
            const int row = first + threadIdx.x % 32, own = min(row, p.rows - 1);
            const gemm_matrix &u = is_shared ? p.up_shared : p.up;
            const float gate = __fmaf_rn(factor, sum[0], bias_of(w, expert, p.rows, own));
            const float up = __fmaf_rn(contract_factor<TYPE>(u, expert), sum[1],
                                       bias_of(u, expert, p.rows, own));
            const float v = contract_activation(gate, up, p.act);
            if (row < p.rows && (p.mid_rows || p.mid_halves)) store_mid(p, to * p.rows + row, v);
            if (p.mid_blocks)
                quantise_block(p.mid_blocks + to * (size_t)blocks_pitch(p.rows), p.rows / 32, first / 32,
                               v);
        } else {
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = first + tile_of_few::row_of_sum(i);
                if (row >= p.rows) continue;
                float *y = (is_shared ? p.y_shared : p.y) + to * p.y_stride + row;
                const float v = __fmaf_rn(factor, sum[i], bias_of(w, expert, p.rows, row));
                *y = p.add ? __fadd_rn(*y, v) : v;
            }
        }
    };
    const few_work work = { (int)blockIdx.x, (int)gridDim.x, n_tile * n_panel, p.cols / 32,
                            row_bytes, 1 };
    tile_of_few few;
    few.begin(work, shared, MAGIC_BITS + (int)f.zero, row_of, vector_of, [] {});
    few.run(row_of, vector_of, finish);
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

template <int TYPE> static void launch_few(gpu *g, const gemm *p)
{
    const chip c = chip_of(g);
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    const uint64_t rows = p->up.data ? FEW_MOST_ROWS / 2 : FEW_MOST_ROWS;
    const uint64_t n_tile = p->tiles ? (uint64_t)p->max_tile : ceil_div((uint64_t)p->n, GPU_FEW);
    const uint64_t all = ceil_div((uint64_t)p->rows, rows) * n_tile;
    const uint64_t most = few_active(&c, TYPE, FEW_MOST_ROWS) * c.n_sm;
    launch(g, p->name, bytes, p->up.data ? contract_few<TYPE, true> : contract_few<TYPE, false>,
           (unsigned)(all < most ? all : most), FEW_THREADS,
           (size_t)few_bytes(TYPE, FEW_MOST_ROWS, g->code), *p);
}

#endif
