/* matvec.cuh - the kernels of matvec.cu: products of one input with up to six matrices, for up to
 * GPU_FEW tokens.
 *
 * One token: the rows of all matrices of one type are one list of units for the whole chip, with a
 * block for each SM and a warp for each unit. If there are fewer units than warps, several warps
 * share a unit and divide its columns; the sums then follow the contract except for the last
 * additions. Each block finishes the whole input itself (norm, gates, int8 codes), which costs less
 * than another kernel.
 *
 * Several tokens: a kernel finishes the input, and few_tile.cuh computes the products, with the
 * same parts of the columns, added in the same order. In both cases a block requests its first
 * weights before it waits for the input.
 *
 * Each group of types is compiled in its own file, which shortens compilation. */
#ifndef CUDA_MATVEC_CUH
#define CUDA_MATVEC_CUH

#include "cuda/batch.cuh"
#include "cuda/dot.cuh"
#include "cuda/few_tile.cuh"

enum { THREADS = DENSE_THREADS, WARPS = DENSE_WARPS, STAGES = DENSE_STAGES };

typedef struct dense_part {              /* one matrix */
    const uint8_t *data;
    int row_bytes, rows, first_unit;
    int first_panel;                     /* several tokens: of its rows' panels */
    float scale;                         /* with the format's factor */
    const float *bias;
    float *y;
    int y_stride;
    bool add;
    gpu_conv conv;
} dense_part;

typedef struct dense_args {
    input_view in;
    const char *name;                    /* in profiles; kernels do not read it */
    int n_token, n_part, n_unit;
    int n_slot, n_share;                 /* units that a block computes at once; warps of a unit */
    const uint8_t *codes;                /* several tokens: [n_token] int8 forms */
    int n_panel;
    dense_part part[GPU_MAX_PRODUCTS];
} dense_args;

static __device__ __forceinline__ const dense_part &part_of(const dense_args &a, int unit)
{
    int i = 0;
    while (i + 1 < a.n_part && unit >= a.part[i + 1].first_unit) i++;
    return a.part[i];
}

/* Prefetches the data that store_row will read. */
static __device__ __forceinline__ void prefetch_ends(const dense_part &p, int row)
{
    if (row >= p.rows) return;
    if (p.bias) prefetch(p.bias + row);
    if (!p.conv.taps) return;
    prefetch(p.conv.taps + (size_t)row * p.conv.n_tap);
    const float *window = conv_window(p.conv, row_token_of(p.conv.cursor, p.conv.first));
    for (int k = 0; k < p.conv.n_tap - 1; k++) prefetch(window + (size_t)k * p.rows + row);
}

/* One channel of a causal convolution, token after token; each conversation has a window. */
static __device__ __forceinline__ void convolve(const dense_part &p, int row, const float *y, int n)
{
    const int n_old = p.conv.n_tap - 1;
    const float *taps = p.conv.taps + (size_t)row * p.conv.n_tap;
    row_token x = row_token_of(p.conv.cursor, p.conv.first);
    float window[7];
    for (int t = 0; t < n; t++, x.t++) {
        float sum = 0.0f;
        if (t > 0 && x.row->n == x.t) x = { x.row + 1, 0 };
        if (t == 0 || x.t == 0) {
            const float *before = conv_window(p.conv, x);
            #pragma unroll
            for (int k = 0; k < 7; k++)
                if (k < n_old) window[k] = before[(size_t)k * p.rows + row];
        }
        if (p.conv.raw) p.conv.raw[(size_t)t * p.rows + row] = y[t];
        #pragma unroll
        for (int k = 0; k < 7; k++)
            if (k < n_old) sum = fmaf(taps[k], window[k], sum);
        sum = fmaf(taps[n_old], y[t], sum);
        #pragma unroll
        for (int k = 0; k < 7; k++)
            if (k < n_old) window[k] = k + 1 < n_old ? window[k < 6 ? k + 1 : 6] : y[t];
        p.y[(size_t)t * p.y_stride + row] = silu(sum);
        if (t + 1 < n && x.row->n != x.t + 1) continue;
        float *after = conv_window_next(p.conv, x);
        #pragma unroll
        for (int k = 0; k < 7; k++)
            if (k < n_old) after[(size_t)k * p.rows + row] = window[k];
    }
}

/* One thread makes and stores a row's results from its sums. */
template <int TOKENS>
static __device__ __forceinline__ void store_row(const dense_part &p, int row,
                                                 const float (&sum)[TOKENS], int n)
{
    float y[TOKENS];
    if (row >= p.rows) return;
    const float bias = p.bias ? p.bias[row] : 0.0f;
    #pragma unroll
    for (int t = 0; t < TOKENS; t++) y[t] = __fmaf_rn(p.scale, sum[t], bias);
    if (p.conv.taps) {
        convolve(p, row, y, n);
        return;
    }
    #pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (t >= n) break;
        float *to = p.y + (size_t)t * p.y_stride + row;
        *to = p.add ? *to + y[t] : y[t];
    }
}

/* ---- one token -------------------------------------------------------------------------------- */

/* LONG: warps have many units each, so the kernel uses bulk copies, which are faster but start
 * later. Chips without bulk copies have no LONG kernel. SHAPE: see ANY_INPUT. */
template <int TYPE, bool LONG, int SHAPE>
static __global__ void __maxnreg__(80) dense_blocks(tracer f, const dense_args a)
{
    typedef piece_of<TYPE, STAGES, UNIT_ROWS, LONG> P;
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float partial[WARPS][UNIT_ROWS];
    if constexpr (LONG && !COPIES_IN_BULK) return;
    const int n_block = a.in.cols / 32;
    const int warp = warp_index(), pair = threadIdx.x % 32 / 8, l = threadIdx.x % 8;
    const int slot = warp / a.n_share, share = warp % a.n_share;
    uint8_t *x = shared + a.n_slot * a.n_share * P::warp_bytes;
    float *sums = (float *)(x + blocks_pitch(a.in.cols));
    unit_runner<TYPE, STAGES, 1, true, false, LONG> runner;

    const auto rows_of = [&](int unit) {
        const dense_part &p = part_of(a, unit);
        const int row = (unit - p.first_unit) * UNIT_ROWS + pair;
        row_pair r;
        r.a = p.data + (size_t)min(row, p.rows - 1) * p.row_bytes;
        r.b = p.data + (size_t)min(row + 4, p.rows - 1) * p.row_bytes;
        return r;
    };
    const int first = slot * gridDim.x + blockIdx.x, end = slot < a.n_slot ? a.n_unit : 0;

    pdl_begin(f);
    runner.begin(f, shared + warp * P::warp_bytes, a.part[0].row_bytes, share, a.n_share, first,
                 gridDim.x * a.n_slot, end, rows_of);
    const input_ahead<1> ahead = input_begin<1, SHAPE, THREADS>(a.in);
    if (!LONG && share == 0 && l < 2) {
        for (int unit = first; unit < end; unit += gridDim.x * a.n_slot) {
            const dense_part &p = part_of(a, unit);
            prefetch_ends(p, (unit - p.first_unit) * UNIT_ROWS + pair + 4 * l);
        }
    }
    pdl_wait(f);
    input_finish<SHAPE, THREADS>(x, NULL, a.in, 0, sums, ahead);
    runner.run(first, [&](int) { return x; }, 0, 1, n_block, rows_of,
               [&](int unit, const float (&sa)[1], const float (&sb)[1]) {
                   if (a.n_share > 1) {  /* the warp has no other unit */
                       if (l == 0) partial[warp][pair] = sa[0];
                       if (l == 1) partial[warp][pair + 4] = sb[0];
                       return;
                   }
                   const dense_part &p = part_of(a, unit);
                   const int row = (unit - p.first_unit) * UNIT_ROWS + pair;
                   const float sum[1] = { l == 0 ? sa[0] : sb[0] };
                   if (l < 2) store_row(p, row + 4 * l, sum, 1);
               });
    if (a.n_share > 1) {
        const int unit = (threadIdx.x / UNIT_ROWS) * gridDim.x + blockIdx.x;
        __syncthreads();
        if (threadIdx.x < a.n_slot * UNIT_ROWS && unit < a.n_unit) {
            const int from = threadIdx.x / UNIT_ROWS * a.n_share, r = threadIdx.x % UNIT_ROWS;
            const dense_part &p = part_of(a, unit);
            float sum[1] = {};
            for (int i = 0; i < a.n_share; i++) sum[0] += partial[from + i][r];
            store_row(p, (unit - p.first_unit) * UNIT_ROWS + r, sum, 1);
        }
    }
    pdl_end(f);
}

/* ---- several tokens -------------------------------------------------------------------------- */

/* A block finishes a token's input, with the bits of dense_blocks: by as many threads. */
template <int SHAPE>
static __global__ void __launch_bounds__(THREADS) dense_input(tracer f, const input_view in,
                                                              uint8_t *codes)
{
    __shared__ float sums[32];
    const int t = blockIdx.x;
    pdl_begin(f);
    const input_ahead<1> ahead = input_begin<1, SHAPE, THREADS>(in);
    pdl_wait(f);
    input_finish<SHAPE, THREADS>(codes + (size_t)t * blocks_pitch(in.cols), NULL, in, t, sums,
                                 ahead);
    pdl_end(f);
}

template <int TYPE, int ROWS>
static __global__ void __launch_bounds__(FEW_THREADS, few_most_active(ROWS))
    dense_few(tracer f, const dense_args a)
{
    typedef few_tile<TYPE, ROWS, false> tile;
    extern __shared__ __align__(16) uint8_t shared[];
    const size_t pitch = (size_t)blocks_pitch(a.in.cols);
    const auto part_at = [&](int panel) -> const dense_part & {
        int i = 0;
        while (i + 1 < a.n_part && panel >= a.part[i + 1].first_panel) i++;
        return a.part[i];
    };
    const auto row_of = [&](int panel, int r) {
        const dense_part &p = part_at(panel);
        const int row = min((panel - p.first_panel) * ROWS + r, p.rows - 1);
        return p.data + (size_t)row * p.row_bytes;
    };
    const auto vector_of = [&](int, int t) -> const uint8_t * {
        return t < a.n_token ? a.codes + (size_t)t * pitch : NULL;
    };
    tile few;

    /* A convolution needs all tokens of a row in one thread. */
    const auto finish = [&](int panel, const float (&sum)[tile::EACH]) {
        const dense_part &p = part_at(panel);
        const int first = (panel - p.first_panel) * ROWS, t = threadIdx.x / 32;
        if (p.conv.taps) __syncthreads();
        #pragma unroll
        for (int i = 0; i < tile::EACH; i++) {
            const int r = tile::row_of_sum(i);
            if (ROWS < 32 && r >= ROWS) break;
            if (p.conv.taps) {
                few.spare_sums[t * tile::L::sum_pitch + r] = sum[i];
            } else if (first + r < p.rows && t < a.n_token) {
                const float bias = p.bias ? p.bias[first + r] : 0.0f;
                const float y = __fmaf_rn(p.scale, sum[i], bias);
                float *to = p.y + (size_t)t * p.y_stride + first + r;
                *to = p.add ? *to + y : y;
            }
        }
        if (!p.conv.taps) return;
        __syncthreads();
        if (threadIdx.x >= ROWS) return;
        float all[GPU_FEW];
        #pragma unroll
        for (int i = 0; i < GPU_FEW; i++)
            all[i] = few.spare_sums[i * tile::L::sum_pitch + threadIdx.x];
        store_row(p, first + (int)threadIdx.x, all, a.n_token);
    };

    pdl_begin(f);
    const few_work work = { (int)blockIdx.x, (int)gridDim.x, a.n_panel, a.in.cols / 32,
                            a.part[0].row_bytes, a.n_share };
    few.begin(work, shared, MAGIC_BITS + (int)f.zero, row_of, vector_of, [&] { pdl_wait(f); });
    few.run(row_of, vector_of, finish);
    pdl_end(f);
}

/* ---- float weights --------------------------------------------------------------------------- */

template <int TYPE, int TOKENS>
static __global__ void __launch_bounds__(THREADS) dense_floats(tracer f, const dense_args a)
{
    extern __shared__ __align__(16) float values[];
    const int warp = threadIdx.x / 32, cols = a.in.cols, step = gridDim.x * WARPS;
    const int first = warp * gridDim.x + blockIdx.x;
    float *sums = values + (size_t)a.n_token * cols;

    pdl_begin(f);
    if (first < a.n_unit) {
        const dense_part &p = part_of(a, first);
        prefetch_row(p.data + (size_t)(first - p.first_unit) * p.row_bytes, p.row_bytes);
    }
    const input_ahead<1> ahead = input_begin<1, ANY_INPUT, THREADS>(a.in);
    pdl_wait(f);
    for (int t = 0; t < a.n_token; t++)
        input_finish<ANY_INPUT, THREADS>(NULL, values + (size_t)t * cols, a.in, t, sums, ahead);
    for (int unit = first; unit < a.n_unit; unit += step) {
        const dense_part &p = part_of(a, unit);
        const int row = unit - p.first_unit;
        float sum[TOKENS];
        float_row<TYPE, TOKENS>(sum, p.data + (size_t)row * p.row_bytes, values, cols, a.n_token,
                                cols);
        if (threadIdx.x % 32 == 0) store_row(p, row, sum, a.n_token);
    }
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Units of rows for one token, and their division among warps: also the parts of the columns that
 * several tokens have. Returns the grid for one token. */
static inline unsigned divide_units(gpu *g, dense_args *a, int type, int warps)
{
    const chip c = chip_of(g);
    const unsigned grid = a->n_unit < g->n_sm ? a->n_unit : g->n_sm;
    const int need = (int)ceil_div(a->n_unit, grid);
    a->n_slot = need < warps ? need : warps;
    a->n_share = dense_shares(&c, type, a->in.cols, need);
    if (!is_whole(a->in)) gpu_fail(g, cudaErrorInvalidValue, "product: alignment of the input");
    return grid;
}

template <int TYPE, bool LONG, int SHAPE>
static void launch_one(gpu *g, dense_args *a, uint64_t bytes)
{
    const chip c = chip_of(g);
    const dense_shape d = dense_block_shape(&c, TYPE, 1, LONG, 1, a->in.cols);
    const unsigned grid = divide_units(g, a, TYPE, d.warps);
    launch(g, a->name, bytes, dense_blocks<TYPE, LONG, SHAPE>, grid, THREADS,
           d.rest + (size_t)(a->n_slot * a->n_share) * d.warp, *a);
}

template <int TYPE, int ROWS> static void launch_few(gpu *g, dense_args *a, uint64_t bytes)
{
    const chip c = chip_of(g);
    const unsigned most = few_active(&c, TYPE, ROWS) * c.n_sm;
    a->n_panel = 0;
    for (int i = 0; i < a->n_part; i++) {
        a->part[i].first_panel = a->n_panel;
        a->n_panel += (int)ceil_div((uint64_t)a->part[i].rows, ROWS);
    }
    const unsigned n = (unsigned)a->n_panel;
    launch(g, a->name, bytes, dense_few<TYPE, ROWS>, n < most ? n : most, FEW_THREADS,
           (size_t)few_bytes(TYPE, ROWS, g->code), *a);
}

/* Small panels where rows are few, so that all multiprocessors have some. By measurement: on 132,
 * 2,880 and 2,048 rows are fastest with 16, 5,120 and 12,352 with 32. */
template <int TYPE> static void launch_several(gpu *g, dense_args *a, uint64_t bytes)
{
    int rows = 0;
    for (int i = 0; i < a->n_part; i++) rows += a->part[i].rows;
    (void)divide_units(g, a, TYPE, DENSE_WARPS);
    if (rows >= 4 * 64 * g->n_sm) launch_few<TYPE, 64>(g, a, bytes);
    else if (rows >= 32 * g->n_sm) launch_few<TYPE, 32>(g, a, bytes);
    else launch_few<TYPE, 16>(g, a, bytes);
}

template <int TYPE> static void launch_single(gpu *g, dense_args *a, uint64_t bytes)
{
    enum { MANY_UNITS = 4 };             /* units of a warp in a LONG kernel, at least */
    const bool is_long = g->code >= BULK_FROM && a->n_unit >= MANY_UNITS * WARPS * g->n_sm;
    if (!is_gated(a->in) && is_long) launch_one<TYPE, true, UNGATED_INPUT>(g, a, bytes);
    else if (!is_gated(a->in)) launch_one<TYPE, false, UNGATED_INPUT>(g, a, bytes);
    else launch_one<TYPE, false, WHOLE_INPUT>(g, a, bytes);
}

template <int TYPE, int TOKENS> static void launch_floats(gpu *g, dense_args *a, uint64_t bytes)
{
    const unsigned grid = a->n_unit < 2 * g->n_sm ? a->n_unit : 2 * g->n_sm;
    launch(g, a->name, bytes, dense_floats<TYPE, TOKENS>, grid, THREADS,
           (size_t)a->n_token * (size_t)a->in.cols * sizeof(float) + SUMS_BYTES, *a);
}

/* Removes the first n tokens from the arguments. */
static void skip_tokens(dense_args *a, int n)
{
    a->n_token -= n;
    a->in.x += (size_t)n * a->in.cols;
    if (a->in.gate) a->in.gate += (size_t)n * a->in.gate_stride;
    for (int i = 0; i < a->n_part; i++) {
        dense_part *p = &a->part[i];
        p->y += (size_t)n * p->y_stride;
        p->conv.first += n;
        if (p->conv.raw) p->conv.raw += (size_t)n * p->rows;
    }
}

/* Float vectors of several wide tokens may exceed a block's shared memory, and quantised products
 * of several tokens need their codes. Otherwise several launches compute the tokens in order. */
template <int TYPE> static void launch_tokens(gpu *g, dense_args *a, uint64_t bytes)
{
    constexpr bool floats = is_float_type<TYPE>::value;
    const chip c = chip_of(g);
    const int all = a->n_token;
    const int each = floats ? dense_tokens(&c, TYPE, a->in.cols, all) : a->codes ? all : 1;
    for (int left = all; left > 0; left -= each) {
        dense_args some = *a;
        skip_tokens(&some, all - left);
        if (some.n_token > each) some.n_token = each;
        if constexpr (!floats) {
            if (some.n_token == 1) launch_single<TYPE>(g, &some, bytes);
            else launch_several<TYPE>(g, &some, bytes);
        } else {
            if (some.n_token == 1) launch_floats<TYPE, 1>(g, &some, bytes);
            else launch_floats<TYPE, GPU_FEW>(g, &some, bytes);
        }
    }
}

/* The body of the functions below: a case for each type of the group. */
#define LAUNCH_DENSE(TYPES)                                                                        \
    switch (type) {                                                                                \
        TYPES(LAUNCH_DENSE_TYPE)                                                                   \
    default: gpu_fail(g, cudaErrorInvalidValue, "product: type without a kernel");                 \
    }
#define LAUNCH_DENSE_TYPE(T) case T: launch_tokens<T>(g, a, bytes); break;

/* All parts of a have this type, which is of the group. bytes: of weights, for profiles. */
void dense_basic(gpu *g, int type, dense_args *a, uint64_t bytes);
void dense_k_quants(gpu *g, int type, dense_args *a, uint64_t bytes);
void dense_tables(gpu *g, int type, dense_args *a, uint64_t bytes);
void dense_float_types(gpu *g, int type, dense_args *a, uint64_t bytes);

#endif
