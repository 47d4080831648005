/* matvec.cuh - the kernels of matvec.cu: products of one input with up to six matrices, for up to
 * GPU_FEW tokens.
 *
 * The rows of all matrices of one type are one list of units for the whole chip, with a block for
 * each SM and a warp for each unit. If there are fewer units than warps, several warps share a unit
 * and divide its columns; the sums then follow the contract except for the last additions. A block
 * requests its first weights before it waits for the input. Each block finishes the whole input
 * itself (norm, gates, int8 codes), which costs less than another kernel.
 *
 * Each group of types is compiled in its own file, which shortens compilation. */
#ifndef CUDA_MATVEC_CUH
#define CUDA_MATVEC_CUH

#include "cuda/batch.cuh"
#include "cuda/dot.cuh"

enum { THREADS = DENSE_THREADS, WARPS = DENSE_WARPS, STAGES = DENSE_STAGES };

typedef struct dense_part {              /* one matrix */
    const uint8_t *data;
    int row_bytes, rows, first_unit;
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
    int n_room;                          /* result of dense_tokens */
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

/* LONG: warps have many units each, so the kernel uses bulk copies, which are faster but start
 * later. Chips without bulk copies have no LONG kernel. SHAPE: see ANY_INPUT. */
template <int TYPE, int TOKENS, bool LONG, int SHAPE>
static __global__ void __maxnreg__(TOKENS == 1 ? 80 : 128)
    dense_blocks(tracer f, const dense_args a)
{
    typedef piece_of<TYPE, STAGES, UNIT_ROWS, LONG> P;
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float partial[WARPS][UNIT_ROWS][TOKENS];
    if constexpr (LONG && !COPIES_IN_BULK) return;
    const int n_token = TOKENS == 1 ? 1 : a.n_token;
    const int n_block = a.in.cols / 32, pitch = blocks_pitch(a.in.cols);
    const int warp = warp_index(), pair = threadIdx.x % 32 / 8, l = threadIdx.x % 8;
    const int slot = warp / a.n_share, share = warp % a.n_share;
    uint8_t *x = shared + a.n_slot * a.n_share * P::warp_bytes;
    float *sums = (float *)(x + (size_t)(TOKENS == 1 ? 1 : a.n_room) * pitch);
    unit_runner<TYPE, STAGES, TOKENS, true, false, LONG> runner;

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
    for (int t = 0; t < n_token; t++)
        input_finish<SHAPE, THREADS>(x + t * pitch, NULL, a.in, t, sums, ahead);
    runner.run(first, [&](int) { return x; }, pitch, n_token, n_block, rows_of,
               [&](int unit, const float (&sa)[TOKENS], const float (&sb)[TOKENS]) {
                   if (a.n_share > 1) {  /* the warp has no other unit */
                       #pragma unroll
                       for (int t = 0; t < TOKENS; t++) {
                           if (l == 0) partial[warp][pair][t] = sa[t];
                           if (l == 1) partial[warp][pair + 4][t] = sb[t];
                       }
                       return;
                   }
                   const dense_part &p = part_of(a, unit);
                   const int row = (unit - p.first_unit) * UNIT_ROWS + pair;
                   float sum[TOKENS];
                   #pragma unroll
                   for (int t = 0; t < TOKENS; t++) sum[t] = l == 0 ? sa[t] : sb[t];
                   if (l < 2) store_row(p, row + 4 * l, sum, n_token);
               });
    if (a.n_share > 1) {
        const int unit = (threadIdx.x / UNIT_ROWS) * gridDim.x + blockIdx.x;
        __syncthreads();
        if (threadIdx.x < a.n_slot * UNIT_ROWS && unit < a.n_unit) {
            const int from = threadIdx.x / UNIT_ROWS * a.n_share, r = threadIdx.x % UNIT_ROWS;
            const dense_part &p = part_of(a, unit);
            float sum[TOKENS] = {};
            for (int i = 0; i < a.n_share; i++)
                #pragma unroll
                for (int t = 0; t < TOKENS; t++) sum[t] += partial[from + i][r][t];
            store_row(p, (unit - p.first_unit) * UNIT_ROWS + r, sum, n_token);
        }
    }
    pdl_end(f);
}

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

template <int TYPE, int TOKENS, bool LONG, int SHAPE>
static void launch_blocks(gpu *g, dense_args *a, uint64_t bytes)
{
    const chip c = chip_of(g);
    const dense_shape d = dense_block_shape(&c, TYPE, TOKENS, LONG, TOKENS == 1 ? 1 : a->n_room,
                                            a->in.cols);
    const unsigned grid = a->n_unit < g->n_sm ? a->n_unit : g->n_sm;
    const int need = (int)ceil_div(a->n_unit, grid);
    a->n_slot = need < d.warps ? need : d.warps;
    a->n_share = dense_shares(&c, TYPE, a->in.cols, need);
    if (!is_whole(a->in)) gpu_fail(g, cudaErrorInvalidValue, "product: alignment of the input");
    launch(g, a->name, bytes, dense_blocks<TYPE, TOKENS, LONG, SHAPE>, grid, THREADS,
           d.rest + (size_t)(a->n_slot * a->n_share) * d.warp, *a);
}

template <int TYPE, int TOKENS> static void launch_type(gpu *g, dense_args *a, uint64_t bytes)
{
    const int cols = a->in.cols;
    if constexpr (is_float_type<TYPE>::value) {
        const unsigned grid = a->n_unit < 2 * g->n_sm ? a->n_unit : 2 * g->n_sm;
        launch(g, a->name, bytes, dense_floats<TYPE, TOKENS>, grid, THREADS,
               (size_t)a->n_token * (size_t)cols * sizeof(float) + SUMS_BYTES, *a);
    } else {
        enum { MANY_UNITS = 4 };         /* units of a warp in a LONG kernel, at least */
        const bool is_long = g->code >= BULK_FROM && a->n_unit >= MANY_UNITS * WARPS * g->n_sm;
        if constexpr (TOKENS == 1) {
            if (!is_gated(a->in) && is_long)
                launch_blocks<TYPE, 1, true, UNGATED_INPUT>(g, a, bytes);
            else if (!is_gated(a->in))
                launch_blocks<TYPE, 1, false, UNGATED_INPUT>(g, a, bytes);
            else
                launch_blocks<TYPE, 1, false, WHOLE_INPUT>(g, a, bytes);
        } else {
            launch_blocks<TYPE, TOKENS, false, WHOLE_INPUT>(g, a, bytes);
        }
    }
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

/* Vectors of several wide tokens may exceed a block's shared memory. Then several launches compute
 * the tokens in order, each as many as fit. */
template <int TYPE> static void launch_tokens(gpu *g, dense_args *a, uint64_t bytes)
{
    const chip c = chip_of(g);
    const int all = a->n_token, each = dense_tokens(&c, TYPE, a->in.cols, all);
    for (int left = all; left > 0; left -= each) {
        dense_args some = *a;
        skip_tokens(&some, all - left);
        if (some.n_token > each) some.n_token = each;
        some.n_room = each;
        if (some.n_token == 1) launch_type<TYPE, 1>(g, &some, bytes);
        else launch_type<TYPE, GPU_FEW>(g, &some, bytes);
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
