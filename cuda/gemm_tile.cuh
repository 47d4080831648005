/* gemm_tile.cuh - the kernel for products of many tokens on tensor cores. gemm.cu, gemm_fp4.cu and
 * gemm_types.cu instantiate it for their types.
 *
 * out[token, row] = sum over k of W[row, k] * X[token, k]. A block of eight warps computes a tile
 * of 128 rows by 32, 64, 128 or 256 tokens, in steps of 64 columns. Weights are converted to 16-bit
 * floats and stored in shared memory; activations are 16-bit floats already. Both are stored as
 * [row, 64]. A row is eight chunks of 16 bytes; chunk c is at c ^ (row % 8), so neither stores nor
 * reads have bank conflicts. Sums are F32, in the order of k. gemm_mma.cuh and gemm_wgmma.cuh
 * multiply, gemm_weights.cuh loads weights.
 *
 * While a step is multiplied, weights and activations of the next step go to the other half of
 * shared memory, with one barrier for each step. Weights that go straight to registers are
 * requested before the barrier, because compilers move loads down, but not past a barrier. Past the
 * last column activations are zero, and weights are any finite numbers.
 *
 * If activations are sums of two 16-bit floats (LOWS, in kernels of their own), both are multiplied
 * one after the other. F16 weights as bfloat16 are sums of two, as well; then there are three
 * products.
 *
 * With two matrices (gate and up) a tile has 64 rows of each. layout::row_step rows of gate and of
 * up alternate, so that a thread has the gate value and the up value of a row. */
#ifndef CUDA_GEMM_TILE_CUH
#define CUDA_GEMM_TILE_CUH

#include "cuda/gemm.cuh"

enum { THREADS = 256, ROWS = GEMM_ROWS, STEP = 64, ROW_BYTES = GEMM_ROW_BYTES };
static_assert(ROW_BYTES == 2 * STEP, "a step of 16-bit values");

enum { ANY = -1 };                       /* TYPE of the kernel for all types without their own */

static __device__ __forceinline__ unsigned swizzled(unsigned row, unsigned chunk)
{
    return row * ROW_BYTES + ((chunk ^ (row & 7u)) << 4);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "cuda/gemm_wgmma.cuh"
#else
#include "cuda/gemm_mma.cuh"
#endif
#include "cuda/gemm_weights.cuh"

/* ---- activations to shared memory ------------------------------------------------------------ */

/* The source of a thread's copies: chunk threadIdx.x % 8 of N rows that are 32 apart. */
template <int N> struct row_source {
    const uint16_t *x;
    unsigned at[N];                      /* offset of the row, in chunks of 8; ANY: row number */
    int cols;
    bool aligned;                        /* rows are whole chunks, at multiples of 16 bytes */
};

template <int N>
static __device__ __forceinline__ row_source<N> row_source_of(const gemm &p, const void *x,
                                                              const token_tile &tile, bool any)
{
    row_source<N> s;
    s.x = (const uint16_t *)x;
    s.cols = p.cols;
    s.aligned = p.cols % 8 == 0 && (uintptr_t)x % 16 == 0;
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const int r = min((int)threadIdx.x / 8 + 32 * i, tile.n - 1);
        const unsigned row = (unsigned)input_row(p, tile.first + r);
        s.at[i] = any ? row : row * (unsigned)(p.cols / 8) + threadIdx.x % 8;
    }
    return s;
}

/* Copies a chunk value by value, for rows of any length at any address. */
static __device__ __forceinline__ void copy_values(uint8_t *to, const uint16_t *x, int k, int cols)
{
    uint32_t v[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = k + 2 * i < cols ? x[k + 2 * i] : 0;
        const uint32_t high = k + 2 * i + 1 < cols ? x[k + 2 * i + 1] : 0;
        v[i] = low | high << 16;
    }
    *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
}

template <int TYPE, int N>
static __device__ __forceinline__ void copy_rows(uint8_t *tile, const row_source<N> &s, int step)
{
    const int k = STEP * step + 8 * (int)(threadIdx.x % 8);
    #pragma unroll
    for (int i = 0; i < N; i++) {
        uint8_t *to = tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8);
        if (TYPE == ANY) {
            const uint16_t *row = s.x + (size_t)s.at[i] * s.cols;
            if (!s.aligned) {
                copy_values(to, row, k, s.cols);
                continue;
            }
            if (k < s.cols) copy16(to, row + k);
        } else if (k < s.cols) {
            copy16(to, (const uint4 *)s.x + s.at[i] + 8 * (size_t)step);
        }
        if (k >= s.cols) *(uint4 *)to = make_uint4(0, 0, 0, 0);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Stores one matrix's results. A lane has rows g and g + 8 of 16, tokens 2t and 2t + 1 of 8. */
template <int TOKENS>
static __device__ __forceinline__ void write_one(const gemm &p, const token_tile &tile,
                                                 const float (&sum)[layout<TOKENS>::m]
                                                                   [layout<TOKENS>::n][4])
{
    typedef layout<TOKENS> L;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = (int)blockIdx.x * ROWS + L::first_row(warp, lane);
    const int first_token = L::first_token(warp, lane);
    const float factor = expert_factor(p.w, tile.expert);
    float bias[2 * L::m];
    #pragma unroll
    for (int i = 0; i < 2 * L::m; i++) {
        const int r = first_row + i / 2 * L::row_step + i % 2 * 8;
        bias[i] = r < p.rows ? bias_of(p.w, tile.expert, p.rows, r) : 0.0f;
    }
    #pragma unroll
    for (int j = 0; j < 2 * L::n; j++) {
        const int t = first_token + j / 2 * 8 + j % 2;
        if (t >= tile.n) continue;
        float *y = p.y + (size_t)output_row(p, tile.first + t) * p.y_stride;
        #pragma unroll
        for (int i = 0; i < 2 * L::m; i++) {
            const int r = first_row + i / 2 * L::row_step + i % 2 * 8;
            if (r >= p.rows) continue;
            const float v = fmaf(factor, sum[i / 2][j / 2][i % 2 * 2 + j % 2], bias[i]);
            y[r] = p.add ? y[r] + v : v;
        }
    }
}

/* Stores activation(gate, up). Both values of a row are the same element of products 2i and 2i + 1;
 * or, with row_step 8, the two rows that a lane has of one product. */
template <int TOKENS, bool LOWS>
static __device__ __forceinline__ void write_two(const gemm &p, const token_tile &tile,
                                                 const float (&sum)[layout<TOKENS>::m]
                                                                   [layout<TOKENS>::n][4])
{
    typedef layout<TOKENS> L;
    enum { BY_EIGHT = L::row_step == 8 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int in_tile = L::first_row(warp, lane);
    const int first_row = (int)blockIdx.x * (ROWS / 2) + in_tile / (2 * L::row_step) * L::row_step +
                          in_tile % L::row_step;
    const int first_token = L::first_token(warp, lane);
    const float gate_factor = expert_factor(p.w, tile.expert);
    const float up_factor = expert_factor(p.up, tile.expert);
    #pragma unroll
    for (int i = 0; i < L::m; i++) {
        const int r = first_row + 8 * i, at = BY_EIGHT ? i : i / 2 * 2;
        if (r >= p.rows) continue;
        const float gate_bias = bias_of(p.w, tile.expert, p.rows, r);
        const float up_bias = bias_of(p.up, tile.expert, p.rows, r);
        #pragma unroll
        for (int j = 0; j < 2 * L::n; j++) {
            const int t = first_token + j / 2 * 8 + j % 2, e = (BY_EIGHT ? 0 : i % 2 * 2) + j % 2;
            if (t >= tile.n) continue;
            const float gate = fmaf(gate_factor, sum[at][j / 2][e], gate_bias);
            const float up = fmaf(up_factor, BY_EIGHT ? sum[at][j / 2][e + 2]
                                                      : sum[at + 1][j / 2][e], up_bias);
            const size_t to = (size_t)output_row(p, tile.first + t) * p.rows + r;
            const float mid = activate(gate, up, p.act);
            store_mid(p, to, mid);
            if (LOWS) store_mid_low(p, to, mid);
        }
    }
}

/* Whether raw weights are staged in shared memory, after the tiles. */
template <int TYPE> struct is_staged { enum { value = STAGED && is_block<TYPE>::value }; };

/* Multiplies all steps, with weights straight from VRAM. rest: the rounding errors of F16 weights
 * instead of the weights. */
template <int TYPE, int TOKENS>
static __device__ __forceinline__ void multiply_straight(typename multiplier<TOKENS>::sums &sum,
                                                         const gemm &p, const token_tile &tile,
                                                         const void *x_rows, bool rest,
                                                         uint8_t *w, uint8_t *x)
{
    enum { W_BYTES = ROWS * ROW_BYTES, X_BYTES = TOKENS * ROW_BYTES };
    const multiplier<TOKENS> by(w, x);
    const weight_source weights = weight_source_of<TYPE, TOKENS>(p, tile.expert, rest);
    const row_source<TOKENS / 32> rows = row_source_of<TOKENS / 32>(p, x_rows, tile, TYPE == ANY);
    const int n_step = (p.cols + STEP - 1) / STEP;
    piece<TYPE> next;

    copy_rows<TYPE>(x, rows, 0);
    fetch<TYPE>(next, w, weights, 0);
    copy_commit();
    store<TYPE>(w, next, weights, 0);
    #pragma unroll 1
    for (int step = 0; step + 1 < n_step; step++) {
        const int now = step & 1, other = now ^ 1;
        if (!is_plain<TYPE>::value) fetch<TYPE>(next, w, weights, step + 1);
        /* after the barrier this step is complete, and the previous one is free */
        copy_wait<0>();
        show_to_units();
        __syncthreads();
        copy_rows<TYPE>(x + other * X_BYTES, rows, step + 1);
        if (is_plain<TYPE>::value) fetch<TYPE>(next, w + other * W_BYTES, weights, step + 1);
        copy_commit();
        by.begin(sum, now);
        store<TYPE>(w + other * W_BYTES, next, weights, step + 1);
        by.end(sum);
    }
    copy_wait<0>();
    show_to_units();
    __syncthreads();
    by.begin(sum, (n_step - 1) & 1);
    by.end(sum);
}

/* Multiplies the parts, small products first, while sums are small: x by the rounding errors of F16
 * weights, x_low by weights, x by weights. The fourth product is negligible. */
template <int TYPE, int TOKENS>
static __device__ __forceinline__ void multiply_parts(typename multiplier<TOKENS>::sums &sum,
                                                      const gemm &p, const token_tile &tile,
                                                      uint8_t *w, uint8_t *x)
{
    const int n_pass = F16_IS_ROUNDED && p.type == QT_F16 ? 3 : 2;
    #pragma unroll 1
    for (int pass = n_pass - 1; pass >= 0; pass--) {
        multiply_straight<TYPE, TOKENS>(sum, p, tile, pass == 1 ? p.x_low : p.x, pass == 2, w, x);
        if (pass > 0) __syncthreads();   /* all threads have read the last step */
    }
}

/* Copies the tile's activations; rows are whole chunks. Constant values stay in registers. */
template <int N> struct row_stage {
    const uint8_t *row[N];               /* the thread's chunk of the next step */
    uint32_t to;
    int n_step;                          /* number of steps that have this chunk */

    __device__ __forceinline__ row_stage(const gemm &p, const token_tile &tile)
    {
        #pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = min((int)threadIdx.x / 8 + 32 * i, tile.n - 1);
            const size_t at = (size_t)input_row(p, tile.first + r) * p.cols;
            row[i] = (const uint8_t *)((const uint16_t *)p.x + at + 8 * (threadIdx.x % 8));
        }
        to = swizzled(threadIdx.x / 8, threadIdx.x % 8);
        n_step = (p.cols / 8 - (int)(threadIdx.x % 8) + 7) / 8;
        keep(to);
    }

    __device__ __forceinline__ void copy(uint8_t *x, int step)
    {
        #pragma unroll
        for (int i = 0; i < N; i++) {
            copy16_or_zero(x + to + 32 * i * ROW_BYTES, row[i], step < n_step);
            row[i] += ROW_BYTES;
        }
    }
};

/* Multiplies all steps with staged weights, requested one group ahead; raw holds two groups. Each
 * step commits the next step's activations, then weights or nothing. A step begins when all but the
 * last commit have arrived, so weights have two steps to arrive. */
template <int TYPE, int TOKENS>
static __device__ __forceinline__ void multiply_staged(typename multiplier<TOKENS>::sums &sum,
                                                       const gemm &p, const token_tile &tile,
                                                       uint8_t *w, uint8_t *x, uint8_t *raw)
{
    enum { W_BYTES = ROWS * ROW_BYTES, X_BYTES = TOKENS * ROW_BYTES,
           RAW_BYTES = raw_layout<TYPE>::bytes };
    const multiplier<TOKENS> by(w, x);
    const weight_stage<TYPE, TOKENS> weights(p, tile.expert);
    row_stage<TOKENS / 32> rows(p, tile);
    const int n_step = (p.cols + STEP - 1) / STEP;

    weights.copy(raw, 0);
    copy_commit();
    rows.copy(x, 0);
    copy_commit();
    copy_wait<1>();
    __syncwarp();
    weights.store(w, raw, 0, 0);
    copy_commit();
    #pragma unroll 1
    for (int group = 0; GROUP_STEPS * group < n_step; group++) {
        uint8_t *const this_raw = raw + group % 2 * RAW_BYTES;
        uint8_t *const next_raw = raw + (group + 1) % 2 * RAW_BYTES;
        #pragma unroll
        for (int s = 0; s < GROUP_STEPS; s++) {
            const int step = GROUP_STEPS * group + s, now = s % 2, other = now ^ 1;
            if (step >= n_step) break;
            const bool more = step + 1 < n_step;
            copy_wait<1>();
            show_to_units();
            __syncthreads();
            if (more) rows.copy(x + other * X_BYTES, step + 1);
            copy_commit();
            if (s == 0 && step + GROUP_STEPS < n_step) weights.copy(next_raw, group + 1);
            copy_commit();
            by.begin(sum, now);
            if (more && s + 1 < GROUP_STEPS)
                weights.store(w + other * W_BYTES, this_raw, group, s + 1);
            else if (more) weights.store(w + other * W_BYTES, next_raw, group + 1, 0);
            by.end(sum);
        }
    }
}

/* Dynamic shared memory: two tiles of weights, two of activations, staged weights. */
template <int TYPE, int TOKENS, bool LOWS>
static __global__ void __launch_bounds__(THREADS, layout<TOKENS>::blocks) gemm_tile(tracer f,
                                                                                    const gemm p)
{
    typedef layout<TOKENS> L;
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *const w = shared, *const x = w + 2 * ROWS * ROW_BYTES;
    token_tile tile;
    float sum[L::m][L::n][4];

    pdl_begin(f);
    pdl_wait(f);
    if (!tile_of_block(tile, p)) {
        pdl_end(f);
        return;
    }
    #pragma unroll
    for (int i = 0; i < L::m; i++)
        #pragma unroll
        for (int j = 0; j < L::n; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;
    if constexpr (is_staged<TYPE>::value)
        multiply_staged<TYPE, TOKENS>(sum, p, tile, w, x, x + 2 * TOKENS * ROW_BYTES);
    else if constexpr (LOWS) multiply_parts<TYPE, TOKENS>(sum, p, tile, w, x);
    else multiply_straight<TYPE, TOKENS>(sum, p, tile, p.x, false, w, x);

    if (p.up.data) write_two<TOKENS, LOWS>(p, tile, sum);
    else write_one<TOKENS>(p, tile, sum);
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

/* Whether the kernels are compiled for sm_90a and so stage weights. */
static inline bool gemm_is_staged(const gpu *g) { return g->cc == 90 && gpu_code_version() >= 90; }

/* Launches the product. p->tile_tokens is set; the factors include the format's factor. */
template <int TYPE, bool LOWS = false> static void run_type(gpu *g, const gemm *p)
{
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    const int rows = p->up.data ? ROWS / 2 : ROWS;
    const unsigned n_tile = p->tiles ? (unsigned)p->max_tile
                                     : ceil_div((uint64_t)p->n, (uint64_t)p->tile_tokens);
    const int tokens = max_int(p->tile_tokens, GEMM_LEAST_TILE); /* TOKENS of the kernel */
    const dim3 grid(ceil_div((uint64_t)p->rows, (uint64_t)rows), n_tile);
    const size_t staged = gemm_is_staged(g) ? raw_weights<TYPE>::bytes : 0;
    const size_t smem = tile_bytes(tokens) + staged;

    if (TYPE != ANY && (uintptr_t)p->x % 16 != 0) {
        gpu_fail(g, cudaErrorMisalignedAddress, "gemm: activations");
        return;
    }
    switch (tokens) {
    case 256: launch(g, p->name, bytes, gemm_tile<TYPE, 256, LOWS>, grid, THREADS, smem, *p); break;
    case 128: launch(g, p->name, bytes, gemm_tile<TYPE, 128, LOWS>, grid, THREADS, smem, *p); break;
    case 64: launch(g, p->name, bytes, gemm_tile<TYPE, 64, LOWS>, grid, THREADS, smem, *p); break;
    default: launch(g, p->name, bytes, gemm_tile<TYPE, 32, LOWS>, grid, THREADS, smem, *p); break;
    }
}

#endif
