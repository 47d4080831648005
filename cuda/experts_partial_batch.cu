/* experts_partial_batch.cu - gpu_experts_partial_begin and _end: the hot experts of more than
 * GPU_FEW tokens, while the host computes the cold ones. All follow the arithmetic contract, so the
 * bits do not depend on the placement.
 *
 *   begin   int8 form of the input; slots sorted by expert, in tiles of up to eight
 *           up     a block computes 32 rows of gate and up of a tile's expert, for all of its slots
 *           down   a block computes 64 rows; a vector for each slot
 *   end     sum of a token's vectors in rank order: those of hot experts from VRAM, the others from
 *           the host's page-locked RAM, where each is read once
 *
 * experts_batch.cu sorts the slots. Tiles of cold experts are skipped. These kernels read weights
 * once for eight slots; contract_many.cuh has kernels for larger tiles. */
#include "cuda/contract_many.cuh"
#include "cuda/experts.cuh"

enum {
    TILE_SLOTS = GPU_FEW, PARTIAL_DOWN_ROWS = 64,
    SUM_THREADS = 256
};

/* ---- scratch --------------------------------------------------------------------------------- */

typedef struct partial_scratch {
    slot_lists lists;
    uint8_t *x;                          /* [n] int8 forms of the input */
    uint8_t *mid;                        /* [n * k] by position: int8 forms; mid_rows: floats */
    float *mid_rows;
    float *y;                            /* [n * k, n_embd] by slot: of hot experts */
    size_t bytes;
} partial_scratch;

static partial_scratch partial_layout(void *base, int n, int k, int n_expert, int n_ff, int n_embd)
{
    const size_t n_slot = (size_t)n * (size_t)k, ff = ((size_t)n_ff + 31) / 32 * 32;
    uint8_t *p = (uint8_t *)base;
    partial_scratch s = {};

    s.lists = slot_lists_take(p, &s.bytes, n * k, n_expert, TILE_SLOTS);
    s.x = scratch_take(p, &s.bytes, (size_t)n * gpu_blocks_bytes(n_embd));
    s.mid = scratch_take(p, &s.bytes, n_slot * gpu_blocks_bytes((int)ff));
    s.mid_rows = (float *)scratch_take(p, &s.bytes, n_slot * ff * sizeof(float));
    s.y = (float *)scratch_take(p, &s.bytes, n_slot * (size_t)n_embd * sizeof(float));
    return s;
}

size_t experts_partial_scratch(int n, int k, int n_expert, int n_ff, int n_embd)
{
    return partial_layout(NULL, n, k, n_expert, n_ff, n_embd).bytes;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef struct partial_tiles {
    const token_tile *tiles;
    const int32_t *n_tile;               /* number of tiles */
    const int32_t *slots;                /* by position */
    const int32_t *hot;
    int k, n_group;                      /* choices of a token; blocks that share a tile */
    int each;                            /* slots that are computed together: partial_shape */
} partial_tiles;

/* Finds this block's tile. Returns the index of its expert in the banks; -1: no hot expert. */
static __device__ __forceinline__ int find_tile(token_tile &tile, const partial_tiles &t)
{
    const int i = (int)(blockIdx.x / (unsigned)t.n_group);
    if (i >= *t.n_tile) return -1;
    tile = t.tiles[i];
    return t.hot[tile.expert];
}

/* ---- gate, up, activation -------------------------------------------------------------------- */

struct partial_up_args : up_args {       /* mid is by position; no shared expert, no choice */
    partial_tiles tiles;
};

/* Sums of 32 rows of gate and up for n slots from position `at` on. */
template <int TYPE>
static __device__ __forceinline__ void up_sums(float (&gate_sum)[TILE_SLOTS][UP_ROWS],
                                               float (&up_sum)[TILE_SLOTS][UP_ROWS], tracer f,
                                               const partial_up_args &a, uint8_t *shared,
                                               int expert, int hot_index, int group, int at, int n)
{
    const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    const auto token_of = [&](int t) { return (size_t)(a.tiles.slots[at + t] / a.tiles.k); };

    if constexpr (is_float_type<TYPE>::value) {
        float *x = (float *)shared;
        for (int t = 0; t < n; t++)
            for (int c = threadIdx.x; c < a.cols; c += blockDim.x)
                x[t * a.cols + c] = a.x_rows[token_of(t) * a.cols + c];
        __syncthreads();
        for (int r = warp; r < UP_ROWS; r += n_warp) {
            const int row = min(group * UP_ROWS + r, a.n_ff - 1);
            float g[TILE_SLOTS], u[TILE_SLOTS];
            float_row<TYPE, TILE_SLOTS>(g, row_at(a.gate, hot_index, row), x, a.cols, n, a.cols);
            float_row<TYPE, TILE_SLOTS>(u, row_at(a.up, hot_index, row), x, a.cols, n, a.cols);
            #pragma unroll
            for (int t = 0; t < TILE_SLOTS; t++) {
                if (threadIdx.x % 32 != 0 || t >= n) break;
                gate_sum[t][r] = finish_row<TYPE>(a.gate, expert, row, a.n_ff, g[t]);
                up_sum[t][r] = finish_row<TYPE>(a.up, expert, row, a.n_ff, u[t]);
            }
        }
    } else {
        typedef piece_of<TYPE, PARTIAL_STAGES> P;
        const int pitch = blocks_pitch(a.cols), each = pitch / 16, pair = threadIdx.x % 32 / 8;
        uint8_t *x = shared + n_warp * P::warp_bytes;
        unit_runner<TYPE, PARTIAL_STAGES, TILE_SLOTS> runner;
        const auto row_of = [&](int unit) {
            return min(group * UP_ROWS + unit * 4 + pair, a.n_ff - 1);
        };
        const auto rows_of = [&](int unit) {
            return row_pair{ row_at(a.gate, hot_index, row_of(unit)),
                             row_at(a.up, hot_index, row_of(unit)) };
        };
        runner.begin(f, shared + warp * P::warp_bytes, a.gate.row_bytes, 0, 1, warp, n_warp,
                     UP_ROWS / 4, rows_of);
        for (int c = threadIdx.x; c < n * each; c += blockDim.x) {
            const int t = c / each;
            const uint8_t *from = a.x + token_of(t) * pitch;
            ((uint4 *)x)[c] = ((const uint4 *)from)[c - t * each];
        }
        __syncthreads();
        runner.run(warp, [&](int) { return x; }, pitch, n, a.cols / 32, rows_of,
                   [&](int unit, const float (&g)[TILE_SLOTS], const float (&u)[TILE_SLOTS]) {
                       const int row = row_of(unit), r = unit * 4 + pair;
                       if (threadIdx.x % 8 != 0) return;
                       #pragma unroll
                       for (int t = 0; t < TILE_SLOTS; t++) {
                           if (t >= n) break;
                           gate_sum[t][r] = finish_row<TYPE>(a.gate, expert, row, a.n_ff, g[t]);
                           up_sum[t][r] = finish_row<TYPE>(a.up, expert, row, a.n_ff, u[t]);
                       }
                   });
        runner.finish(warp);
    }
}

template <int TYPE>
static __global__ void __launch_bounds__(PARTIAL_THREADS, 2) partial_up(tracer f,
                                                                        const partial_up_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float gate_sum[TILE_SLOTS][UP_ROWS], up_sum[TILE_SLOTS][UP_ROWS];
    static_assert(sizeof gate_sum + sizeof up_sum <= STATIC_BYTES, "gate and up");
    const int group = (int)(blockIdx.x % (unsigned)a.tiles.n_group), lane = threadIdx.x % 32;
    token_tile tile;

    pdl_begin(f);
    pdl_wait(f);
    const int hot_index = find_tile(tile, a.tiles);
    for (int done = 0; hot_index >= 0 && done < tile.n; done += a.tiles.each) {
        const int n = min(a.tiles.each, tile.n - done), at = tile.first + done;
        up_sums<TYPE>(gate_sum, up_sum, f, a, shared, tile.expert, hot_index, group, at, n);
        __syncthreads();
        for (int t = threadIdx.x / 32; t < n; t += blockDim.x / 32)
            store_mid(a, at + t, group, contract_activation(gate_sum[t][lane], up_sum[t][lane],
                                                            a.act));
        __syncthreads();
    }
    pdl_end(f);
}

/* ---- down ------------------------------------------------------------------------------------ */

typedef struct partial_down_args {
    slab down;
    int n_ff, n_embd;
    const uint8_t *mid;
    const float *mid_rows;
    float *y;
    partial_tiles tiles;
} partial_down_args;

/* The block's rows of the vectors of n slots from position `at` on. */
template <int TYPE>
static __device__ __forceinline__ void down_rows(tracer f, const partial_down_args &a,
                                                 uint8_t *shared, int expert, int hot_index,
                                                 int group, int at, int n)
{
    const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32, first = group * PARTIAL_DOWN_ROWS;
    const int n_row = min((int)PARTIAL_DOWN_ROWS, a.n_embd - first);
    const auto store = [&](int row, const float (&sum)[TILE_SLOTS]) {
        if (row >= a.n_embd) return;
        #pragma unroll
        for (int t = 0; t < TILE_SLOTS; t++) {
            if (t >= n) break;
            a.y[(size_t)a.tiles.slots[at + t] * a.n_embd + row] =
                finish_row<TYPE>(a.down, expert, row, a.n_embd, sum[t]);
        }
    };

    if constexpr (is_float_type<TYPE>::value) {
        float *mid = (float *)shared;
        for (int c = threadIdx.x; c < n * a.n_ff; c += blockDim.x)
            mid[c] = a.mid_rows[(size_t)at * a.n_ff + c];
        __syncthreads();
        for (int r = warp; r < n_row; r += n_warp) {
            float sum[TILE_SLOTS];
            float_row<TYPE, TILE_SLOTS>(sum, row_at(a.down, hot_index, first + r), mid, a.n_ff, n,
                                        a.n_ff);
            if (threadIdx.x % 32 == 0) store(first + r, sum);
        }
    } else {
        typedef piece_of<TYPE, PARTIAL_STAGES> P;
        const int pitch = blocks_pitch(a.n_ff), pair = threadIdx.x % 32 / 8, l = threadIdx.x % 8;
        uint8_t *mid = shared + n_warp * P::warp_bytes;
        unit_runner<TYPE, PARTIAL_STAGES, TILE_SLOTS> runner;
        const auto rows_of = [&](int unit) {
            const int row = first + unit * UNIT_ROWS + pair;
            return row_pair{ row_at(a.down, hot_index, min(row, a.n_embd - 1)),
                             row_at(a.down, hot_index, min(row + 4, a.n_embd - 1)) };
        };
        runner.begin(f, shared + warp * P::warp_bytes, a.down.row_bytes, 0, 1, warp, n_warp,
                     (n_row + UNIT_ROWS - 1) / UNIT_ROWS, rows_of);
        const uint4 *from = (const uint4 *)(a.mid + (size_t)at * pitch);
        for (int c = threadIdx.x; c < n * (pitch / 16); c += blockDim.x)
            ((uint4 *)mid)[c] = from[c];
        __syncthreads();
        runner.run(warp, [&](int) { return mid; }, pitch, n, a.n_ff / 32, rows_of,
                   [&](int unit, const float (&sa)[TILE_SLOTS], const float (&sb)[TILE_SLOTS]) {
                       const int row = first + unit * UNIT_ROWS + pair;
                       if (l == 0) store(row, sa);
                       if (l == 1) store(row + 4, sb);
                   });
        runner.finish(warp);
    }
}

template <int TYPE>
static __global__ void __launch_bounds__(PARTIAL_THREADS, 2) partial_down(tracer f,
                                                                          const partial_down_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const int group = (int)(blockIdx.x % (unsigned)a.tiles.n_group);
    token_tile tile;

    pdl_begin(f);
    pdl_wait(f);
    const int hot_index = find_tile(tile, a.tiles);
    for (int done = 0; hot_index >= 0 && done < tile.n; done += a.tiles.each) {
        down_rows<TYPE>(f, a, shared, tile.expert, hot_index, group, tile.first + done,
                        min(a.tiles.each, tile.n - done));
        __syncthreads();
    }
    pdl_end(f);
}

/* ---- the sum --------------------------------------------------------------------------------- */

typedef struct partial_sum_args {
    float *sums;                         /* [., n_embd]; sums, y, gates and ids begin at token 0 */
    const float *y, *gates;
    const int32_t *ids, *hot;
    const float *cold;                   /* [., k, n_embd], in RAM; begins at token `first` */
    int first, k, n_embd;
} partial_sum_args;

/* A block sums one token. T: float4 or float. Vectors in RAM are read past caches. */
template <typename T>
static __global__ void __launch_bounds__(SUM_THREADS)
    partial_sum(tracer f, const partial_sum_args a)
{
    enum { W = sizeof(T) / sizeof(float) };
    __shared__ const float *from[SELECT_MAX_K];
    __shared__ float gates[SELECT_MAX_K];
    const size_t t = (size_t)a.first + blockIdx.x;

    pdl_begin(f);
    pdl_wait(f);
    if ((int)threadIdx.x < a.k) {
        const size_t slot = t * a.k + threadIdx.x, own = (size_t)blockIdx.x * a.k + threadIdx.x;
        const bool hot = a.hot[a.ids[slot]] >= 0;
        from[threadIdx.x] = hot ? a.y + slot * a.n_embd : a.cold + own * a.n_embd;
        gates[threadIdx.x] = a.gates[slot];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.n_embd / W; i += SUM_THREADS) {
        union { T all; float v[W]; } in, out;
        float sum[W] = {};
        #pragma unroll 4
        for (int r = 0; r < a.k; r++) {
            in.all = __ldcv((const T *)from[r] + i);
            #pragma unroll
            for (int w = 0; w < W; w++) sum[w] = __fmaf_rn(gates[r], in.v[w], sum[w]);
        }
        #pragma unroll
        for (int w = 0; w < W; w++) out.v[w] = __fadd_rn(0.0f, sum[w]);
        ((T *)(a.sums + t * a.n_embd))[i] = out.all;
    }
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

template <int TYPE> static void launch_partial_up(gpu *g, partial_up_args *a, int n_tile)
{
    const chip c = chip_of(g);
    const partial_shape s = partial_shape_of(&c, TYPE, a->cols);
    a->tiles.each = s.each;
    a->tiles.n_group = (int)ceil_div((uint64_t)a->n_ff, UP_ROWS);
    launch(g, "experts up", 0, partial_up<TYPE>, (unsigned)n_tile * (unsigned)a->tiles.n_group,
           s.threads, s.bytes, *a);
}

template <int TYPE> static void launch_partial_down(gpu *g, partial_down_args *a, int n_tile)
{
    const chip c = chip_of(g);
    const partial_shape s = partial_shape_of(&c, TYPE, a->n_ff);
    a->tiles.each = s.each;
    a->tiles.n_group = (int)ceil_div((uint64_t)a->n_embd, PARTIAL_DOWN_ROWS);
    launch(g, "experts down", 0, partial_down<TYPE>, (unsigned)n_tile * (unsigned)a->tiles.n_group,
           s.threads, s.bytes, *a);
}

static void up_by_type(gpu *g, int type, partial_up_args *a, int n_tile)
{
    switch (type) {
#define CASE(T) case T: launch_partial_up<T>(g, a, n_tile); break;
    GPU_BLOCK_TYPES(CASE)
    GPU_FLOAT_TYPES(CASE)
#undef CASE
    default: gpu_fail(g, cudaErrorInvalidValue, "experts of a batch: type without a kernel");
    }
}

static void down_by_type(gpu *g, int type, partial_down_args *a, int n_tile)
{
    switch (type) {
#define CASE(T) case T: launch_partial_down<T>(g, a, n_tile); break;
    GPU_BLOCK_TYPES(CASE)
    GPU_FLOAT_TYPES(CASE)
#undef CASE
    default: gpu_fail(g, cudaErrorInvalidValue, "experts of a batch: type without a kernel");
    }
}

static partial_scratch scratch_of(const gpu_input *in, const gpu_expert_args *a)
{
    return partial_layout(a->scratch, in->n, a->k, a->n_expert, a->gate.rows, a->down.rows);
}

void gpu_experts_partial_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot)
{
    const int n_slot = in->n * a->k;
    const int n_tile = min(n_slot, most_tiles(n_slot, a->n_expert, TILE_SLOTS));
    if (in->n <= GPU_FEW || a->k > SELECT_MAX_K || a->n_expert > LISTS_MOST_EXPERTS || !a->ids ||
        !hot || a->gate.type != a->up.type)
        gpu_fail(g, cudaErrorInvalidValue, "experts of a batch: arguments");
    if (g->failure != cudaSuccess) return;

    input_prepare(g, in, true, false);   /* makes in->rows */
    const partial_scratch s = scratch_of(in, a);
    const partial_tiles tiles = { s.lists.tiles, s.lists.first_tile + a->n_expert, s.lists.slots,
                                 hot, a->k, 0, 0 };
    partial_up_args up = {};
    up.gate = slab_of_bank(&a->gate);
    up.up = slab_of_bank(&a->up);
    up.cols = a->gate.cols;
    up.n_ff = a->gate.rows;
    up.act = a->act;
    up.x = s.x;
    up.x_rows = in->rows;
    up.mid = s.mid;
    up.mid_rows = s.mid_rows;
    up.tiles = tiles;
    partial_down_args down = { slab_of_bank(&a->down), a->gate.rows, a->down.rows, s.mid,
                              s.mid_rows, s.y, tiles };

    if (!is_float_weight(a->gate.type))
        contract_quantise(g, s.x, in->rows, in->n, in->cols, NULL, NULL);
    slot_lists_make(g, &s.lists, a->ids, NULL, NULL, NULL, n_slot, a->n_expert, TILE_SLOTS);
    up_by_type(g, a->gate.type, &up, n_tile);
    down_by_type(g, a->down.type, &down, n_tile);
}

void gpu_experts_partial_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                             const int32_t *hot, float *sums, const float *cold, int first, int n)
{
    const int n_embd = a->down.rows;
    const partial_scratch s = scratch_of(in, a);
    const partial_sum_args sum = { sums, s.y, a->gates, a->ids, hot, cold, first, a->k, n_embd };
    const bool four = n_embd % 4 == 0 && ((uintptr_t)sums | (uintptr_t)cold) % 16 == 0;
    if (first < 0 || n < 1 || n > in->n - first)
        gpu_fail(g, cudaErrorInvalidValue, "experts of a batch: tokens");
    if (four)
        launch(g, "experts join", 0, partial_sum<float4>, (unsigned)n, SUM_THREADS, 0, sum);
    else
        launch(g, "experts join", 0, partial_sum<float>, (unsigned)n, SUM_THREADS, 0, sum);
}
