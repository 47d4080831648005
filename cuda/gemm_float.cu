/* gemm_float.cu - products of many tokens with F32 weights, exact: routers, and small models.
 *
 * A router has few rows, so its product has fewer tiles than the chip has multiprocessors. So a
 * block divides the columns of its tile among groups of threads. A tile is SIDE rows by TOKENS
 * tokens; TOKENS is SIDE or half of it. Columns are cut into runs of 64. Group g of GROUPS sums the
 * whole tile over runs g, g + GROUPS, ... with its own shared memory. Groups wait for each other
 * only at the end, when their sums are added.
 *
 * The order of a sum is fixed: within a run a chain of fmas in the order of k; then runs are added
 * to their group's sum, then groups to each other. So rounding errors grow with the length of a run
 * plus the number of runs, not with their product. GROUPS depends on the rows alone, and the tile's
 * size does not change the order: a token has the same bits in any batch. For matrices of at most
 * THIN_ROWS rows another kernel computes a token in each warp. gemm.cu calls gemm_run_float. */
#include "cuda/gemm.cuh"

enum { STEP = FLOAT_STEP, RUN = 4 };     /* RUN: steps of a run */
enum { THIN_ROWS = 8, THIN_WARPS = 8 };
enum { SMALLEST_ROWS = 128 };            /* most rows of a matrix with the smallest tiles */

/* A group has SIDE threads. A warp computes SIDE rows by 32 tokens, a lane SIDE / 8 rows, 8 apart,
 * by 8 tokens; with TOKENS = SIDE / 2 half as many tokens. Shared memory holds two steps of each
 * group, and later all sums. */
template <int SIDE, int TOKENS, int GROUPS> struct shape {
    enum { ROWS = SIDE / 8, EACH = 8 * TOKENS / SIDE, THREADS = SIDE * GROUPS };
    enum { FETCHED = 4 + EACH / 2 };     /* rows that a thread fetches: weights, then activations */
    enum { BLOCKS = 384 / THREADS };     /* blocks whose registers fit a multiprocessor */
    enum { STAGE = (SIDE + TOKENS) * STEP };     /* floats of a step: weights, then activations */
    static constexpr size_t SMEM = gemm_float_bytes(SIDE, TOKENS, GROUPS);
    static_assert(int(EACH) % GROUPS == 0 && (TOKENS == SIDE || SIDE == 32), "shape");
};

/* A thread's first row and token in the tile. The row does not depend on bit 0 of the lane, the
 * token not on bit 1, so two lanes share each load of 16 bytes. */
typedef struct thread_tile {
    int row, token;
} thread_tile;

static __device__ __forceinline__ thread_tile thread_tile_of(int t)
{
    const int lane = t % 32;
    return { (lane >> 1 & 1) | (lane >> 2 & 6), t / 32 * 32 + 2 * ((lane & 1) | (lane >> 1 & 2)) };
}

/* Offset of the thread's j-th token from its first. */
static __device__ __forceinline__ int further(int j) { return (j & 1) + 8 * (j >> 1); }

/* ---- weights and activations into shared memory ---------------------------------------------- */

/* Four values of a row from column k on, zeros past the last. Vectors: k and cols are multiples of
 * four, and rows begin at multiples of 16 bytes. */
static __device__ __forceinline__ float4 load_four(const float *row, int k, int cols, bool vectors)
{
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (vectors) {
        if (k < cols) v = *(const float4 *)(row + k);
        return v;
    }
    if (k < cols) v.x = row[k];
    if (k + 1 < cols) v.y = row[k + 1];
    if (k + 2 < cols) v.z = row[k + 2];
    if (k + 3 < cols) v.w = row[k + 3];
    return v;
}

/* Offset of chunk c (four values) of a row's step in shared memory. The order of chunks changes
 * every other row, so reads of chunk c of eight rows or four tokens have no bank conflict. */
static __device__ __forceinline__ int chunk_at(int row, int c) { return (c ^ (row / 2 & 3)) * 4; }

/* Row r of the block's tile. With two matrices the tile's second half has up's rows, the same as
 * gate's in the first half. */
template <int SIDE>
static __device__ __forceinline__ const float *tile_row(const gemm &p, int expert, int r)
{
    if (!p.up.data)
        return (const float *)weight_row(p.w, expert, min((int)blockIdx.x * SIDE + r, p.rows - 1));
    const int row = min((int)blockIdx.x * (SIDE / 2) + r % (SIDE / 2), p.rows - 1);
    return (const float *)(r < SIDE / 2 ? weight_row(p.w, expert, row)
                                        : weight_row(p.up, expert, row));
}

/* Thread t of the group copies one chunk of each of its rows, of columns k .. k + STEP - 1. Columns
 * past the last one are zeros. */
template <int SIDE, int FETCHED>
static __device__ __forceinline__ void fetch(float *stage, const float *const (&from)[FETCHED],
                                             int t, int k, int cols, bool vectors)
{
    float *to = stage + t / 4 * STEP + chunk_at(t / 4, t % 4);
    k += t % 4 * 4;
    if (vectors && k < cols) {
        #pragma unroll
        for (int i = 0; i < FETCHED; i++) copy16(to + i * (SIDE / 4) * STEP, from[i] + k);
        return;
    }
    #pragma unroll
    for (int i = 0; i < FETCHED; i++)
        *(float4 *)(to + i * (SIDE / 4) * STEP) = load_four(from[i], k, cols, vectors);
}

template <int SIDE> static __device__ __forceinline__ void group_sync(int group)
{
    if constexpr (SIDE == 32) __syncwarp();
    else asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "n"(SIDE) : "memory");
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* run[j][i] += the products of one step. */
template <int ROWS, int EACH>
static __device__ __forceinline__ void multiply(float (&run)[EACH][ROWS], const float *stage,
                                                thread_tile at)
{
    const float *w = stage + at.row * STEP, *x = stage + (8 * ROWS + at.token) * STEP;
    #pragma unroll 2
    for (int c = 0; c < STEP / 4; c++) {
        float4 a[ROWS];
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            a[i] = *(const float4 *)(w + 8 * i * STEP + chunk_at(at.row, c));
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            const float4 b = *(const float4 *)(x + further(j) * STEP + chunk_at(at.token, c));
            #pragma unroll
            for (int i = 0; i < ROWS; i++) run[j][i] = fmaf(a[i].x, b.x, run[j][i]);
            #pragma unroll
            for (int i = 0; i < ROWS; i++) run[j][i] = fmaf(a[i].y, b.y, run[j][i]);
            #pragma unroll
            for (int i = 0; i < ROWS; i++) run[j][i] = fmaf(a[i].z, b.z, run[j][i]);
            #pragma unroll
            for (int i = 0; i < ROWS; i++) run[j][i] = fmaf(a[i].w, b.w, run[j][i]);
        }
    }
}

/* Sums the group's runs. from: rows that the thread fetches, weights and activations. */
template <int SIDE, int GROUPS, int EACH, int FETCHED>
static __device__ __forceinline__ void sum_runs(float (&sum)[EACH][SIDE / 8], float *stages,
                                                const float *const (&from)[FETCHED],
                                                thread_tile at, int cols, bool vectors)
{
    constexpr int STAGE = shape<SIDE, EACH * SIDE / 8, GROUPS>::STAGE;
    const int group = threadIdx.x / SIDE, t = threadIdx.x % SIDE;
    const int n_step = (cols + STEP - 1) / STEP;
    float run[EACH][SIDE / 8] = {};
    float *now = stages, *other = stages + STAGE;
    int step = RUN * group;

    if (step < n_step) fetch<SIDE>(now, from, t, STEP * step, cols, vectors);
    copy_commit();
    #pragma unroll 1
    while (step < n_step) {
        const bool last = step % RUN == RUN - 1;
        const int next = step + 1 + (last ? RUN * (GROUPS - 1) : 0);
        copy_wait<0>();
        group_sync<SIDE>(group);         /* the step is complete; the previous one is free */
        if (next < n_step) fetch<SIDE>(other, from, t, STEP * next, cols, vectors);
        copy_commit();
        multiply(run, now, at);
        if (last || next >= n_step) {
            #pragma unroll
            for (int j = 0; j < EACH; j++)
                #pragma unroll
                for (int i = 0; i < SIDE / 8; i++) {
                    sum[j][i] += run[j][i];
                    run[j][i] = 0.0f;
                }
        }
        float *swap = now;
        now = other;
        other = swap;
        step = next;
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Stores a thread's results of one token. position: the token's; row: the thread's first row. */
template <int ROWS>
static __device__ __forceinline__ void write_token(const gemm &p, const float (&v)[ROWS],
                                                   int expert, int position, int row)
{
    const float factor = expert_factor(p.w, expert);
    if (!p.up.data) {
        float *y = p.y + (size_t)output_row(p, position) * p.y_stride;
        row += (int)blockIdx.x * 8 * ROWS;
        #pragma unroll
        for (int i = 0; i < ROWS; i++, row += 8) {
            if (row >= p.rows) break;
            const float value = fmaf(factor, v[i], bias_of(p.w, expert, p.rows, row));
            y[row] = p.add ? y[row] + value : value;
        }
        return;
    }
    const float up_factor = expert_factor(p.up, expert);
    const size_t out = (size_t)output_row(p, position) * p.rows;
    row += (int)blockIdx.x * 4 * ROWS;
    #pragma unroll
    for (int i = 0; i < ROWS / 2; i++, row += 8) {
        if (row >= p.rows) break;
        const float gate = fmaf(factor, v[i], bias_of(p.w, expert, p.rows, row));
        const float up = fmaf(up_factor, v[i + ROWS / 2], bias_of(p.up, expert, p.rows, row));
        store_mid(p, out + row, activate(gate, up, p.act));
    }
}

/* All groups store their sums in `left`; then each group adds the sums of some tokens. n: tokens of
 * the tile from position on. */
template <int SIDE, int GROUPS, int EACH>
static __device__ __forceinline__ void join_groups(const gemm &p, float *left,
                                                   const float (&sum)[EACH][SIDE / 8],
                                                   thread_tile at, int expert, int position, int n)
{
    enum { ROWS = SIDE / 8 };
    const int group = threadIdx.x / SIDE, t = threadIdx.x % SIDE;

    __syncthreads();                     /* all groups have read their last step */
    #pragma unroll
    for (int j = 0; j < EACH; j++)
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            left[((group * EACH + j) * ROWS + i) * SIDE + t] = sum[j][i];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < EACH / GROUPS; e++) {
        const int j = group * (EACH / GROUPS) + e, token = at.token + further(j);
        float all[ROWS];
        if (token >= n) continue;
        #pragma unroll
        for (int i = 0; i < ROWS; i++) {
            all[i] = left[(j * ROWS + i) * SIDE + t];
            #pragma unroll
            for (int g = 1; g < GROUPS; g++)
                all[i] += left[((g * EACH + j) * ROWS + i) * SIDE + t];
        }
        write_token(p, all, expert, position + token, at.row);
    }
}

/* A tile with more than TOKENS tokens is computed in several parts. */
template <int SIDE, int TOKENS, int GROUPS>
static __global__ void __launch_bounds__(SIDE * GROUPS, shape<SIDE, TOKENS, GROUPS>::BLOCKS)
gemm_floats(tracer f, const gemm p, bool vectors)
{
    typedef shape<SIDE, TOKENS, GROUPS> S;
    extern __shared__ __align__(16) float shared[];
    const int group = threadIdx.x / SIDE, t = threadIdx.x % SIDE;
    const thread_tile at = thread_tile_of(t);
    const float *from[S::FETCHED];
    token_tile tile;

    pdl_begin(f);
    pdl_wait(f);
    if (!tile_of_block(tile, p)) {
        pdl_end(f);
        return;
    }
    #pragma unroll
    for (int i = 0; i < 4; i++)
        from[i] = tile_row<SIDE>(p, tile.expert, t / 4 + i * (SIDE / 4));
    for (int done = 0; done < tile.n; done += TOKENS) {
        const int first = tile.first + done, n = min(TOKENS, tile.n - done);
        float sum[S::EACH][SIDE / 8] = {};
        #pragma unroll
        for (int i = 0; i < S::FETCHED - 4; i++) {
            const int token = min(t / 4 + i * (SIDE / 4), n - 1);
            from[4 + i] = (const float *)p.x + (size_t)input_row(p, first + token) * p.cols;
        }
        __syncthreads();                 /* all threads have read the previous part's sums */
        sum_runs<SIDE, GROUPS>(sum, shared + group * 2 * S::STAGE, from, at, p.cols, vectors);
        join_groups<SIDE, GROUPS>(p, shared, sum, at, tile.expert, first, n);
    }
    pdl_end(f);
}

/* ---- a few rows ------------------------------------------------------------------------------ */

/* A warp computes a token: each lane sums its columns, then the warp sums the lanes. */
static __global__ void __launch_bounds__(32 * THIN_WARPS) gemm_thin(tracer f, const gemm p,
                                                                    bool vectors)
{
    const int t = (int)(blockIdx.x * THIN_WARPS + threadIdx.x / 32), lane = threadIdx.x % 32;

    pdl_begin(f);
    pdl_wait(f);
    if (t < p.n) {
        const float *x = (const float *)p.x + (size_t)t * p.cols;
        for (int r = 0; r < p.rows; r++) {
            const float *w = (const float *)weight_row(p.w, 0, r);
            float sum = 0.0f;
            for (int c = 4 * lane; c < p.cols; c += 512) {
                float4 a[4], b[4];       /* all loads are issued before the first use */
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[i] = load_four(w, c + 128 * i, p.cols, vectors);
                    b[i] = load_four(x, c + 128 * i, p.cols, vectors);
                }
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum = fmaf(a[i].y, b[i].y, fmaf(a[i].x, b[i].x, sum));
                    sum = fmaf(a[i].w, b[i].w, fmaf(a[i].z, b[i].z, sum));
                }
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                float *y = p.y + (size_t)t * p.y_stride + r;
                const float v = fmaf(expert_factor(p.w, 0), sum, bias_of(p.w, 0, p.rows, r));
                *y = p.add ? *y + v : v;
            }
        }
    }
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

static bool is_aligned(const gemm_matrix *m)
{
    return (uintptr_t)m->data % 16 == 0 && m->row_bytes % 16 == 0 && m->slab_bytes % 16 == 0;
}

/* Grid of a product in tiles of this size. */
static dim3 tiles_of(const gemm *p, int side, int tokens)
{
    return dim3(ceil_div((uint64_t)p->rows * (p->up.data ? 2 : 1), (uint64_t)side),
                p->tiles ? (unsigned)p->max_tile : ceil_div((uint64_t)p->n, (uint64_t)tokens));
}

template <int SIDE, int TOKENS, int GROUPS>
static void run_tiles(gpu *g, const gemm *p, uint64_t bytes, bool vectors)
{
    typedef shape<SIDE, TOKENS, GROUPS> S;
    gemm tiled = *p;
    if (!p->tiles) tiled.tile_tokens = TOKENS;
    launch(g, p->name, bytes, gemm_floats<SIDE, TOKENS, GROUPS>, tiles_of(p, SIDE, TOKENS),
           S::THREADS, S::SMEM, tiled, vectors);
}

/* Whether tiles of side * side would leave half of the chip idle. */
static bool is_half_idle(const gpu *g, const gemm *p, int side)
{
    const dim3 tiles = tiles_of(p, side, side);
    return 2 * (uint64_t)tiles.x * tiles.y <= (uint64_t)g->n_sm;
}

/* Whether to use small tiles, which give the same bits: if few tokens share a tile, or large tiles
 * would leave half of the chip idle. */
static bool wants_small(const gpu *g, const gemm *p)
{
    return p->tiles ? p->tile_tokens <= 32 : is_half_idle(g, p, 64);
}

/* Whether to use the smallest tiles. With more rows about 100 tokens make enough small tiles. */
static bool wants_smallest(const gpu *g, const gemm *p)
{
    return !p->tiles && !p->up.data && p->rows <= SMALLEST_ROWS && is_half_idle(g, p, 32);
}

void gemm_run_float(gpu *g, const gemm *p)
{
    const bool vectors = p->cols % 4 == 0 && (uintptr_t)p->x % 16 == 0 && is_aligned(&p->w) &&
                         (!p->up.data || is_aligned(&p->up));
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);

    if (!p->tiles && !p->up.data && p->rows <= THIN_ROWS)
        launch(g, p->name, bytes, gemm_thin, ceil_div((uint64_t)p->n, THIN_WARPS),
               32 * THIN_WARPS, 0, *p, vectors);
    else if (p->rows * (p->up.data ? 2 : 1) <= 32) run_tiles<32, 32, 8>(g, p, bytes, vectors);
    else if (wants_smallest(g, p)) run_tiles<32, 16, 4>(g, p, bytes, vectors);
    else if (wants_small(g, p)) run_tiles<32, 32, 4>(g, p, bytes, vectors);
    else run_tiles<64, 64, 4>(g, p, bytes, vectors);
}
