/* gemm_float.cu - products of many tokens with F32 weights, exact: routers, and small models.
 *
 * A block of 256 threads makes tiles of 64 rows by 64 tokens, a thread 4 by 4 of it. Sums are
 * chains of fmas in the order of k, cut into runs of 64 terms that are then added: rounding errors
 * grow with the length of a run plus the number of runs, not with their product. A matrix of a few
 * rows goes to a kernel where a warp takes a token. gemm.cu takes other weights. */
#include "cuda/gemm.cuh"

enum { THREADS = 256, SIDE = 64, STEP = 16, RUN = 4 };   /* RUN: steps */
/* In shared memory a step lies column by column. The padding keeps rows at multiples of 16 bytes
 * and the banks of a warp's stores apart. */
enum { PITCH = SIDE + 4 };
enum { THIN_ROWS = 8, THIN_WARPS = 8 };

typedef float float_step[STEP][PITCH];

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

static __device__ __forceinline__ void store_column(float_step to, float4 v)
{
    const int r = threadIdx.x / 4, k = threadIdx.x % 4 * 4;
    to[k][r] = v.x;
    to[k + 1][r] = v.y;
    to[k + 2][r] = v.z;
    to[k + 3][r] = v.w;
}

/* Row r of the block's tile. With two matrices a tile has 32 rows of each, two by two in turn: a
 * thread's four are two rows of both. */
static __device__ __forceinline__ const float *tile_row(const gemm &p, int expert, int r)
{
    if (!p.up.data)
        return (const float *)weight_row(p.w, expert, min((int)blockIdx.x * SIDE + r, p.rows - 1));
    const int row = min((int)blockIdx.x * (SIDE / 2) + r / 4 * 2 + r % 2, p.rows - 1);
    return (const float *)(r & 2 ? weight_row(p.up, expert, row) : weight_row(p.w, expert, row));
}

/* sum[t][r] += the products of one step. */
static __device__ __forceinline__ void multiply(float (&sum)[4][4], const float_step w,
                                                const float_step x, int r0, int t0)
{
    #pragma unroll
    for (int k = 0; k < STEP; k++) {
        const float4 a = *(const float4 *)&w[k][r0], b = *(const float4 *)&x[k][t0];
        const float by_row[4] = { a.x, a.y, a.z, a.w }, by_token[4] = { b.x, b.y, b.z, b.w };
        #pragma unroll
        for (int t = 0; t < 4; t++)
            #pragma unroll
            for (int r = 0; r < 4; r++) sum[t][r] = fmaf(by_row[r], by_token[t], sum[t][r]);
    }
}

/* r0, t0: the thread's first row and token in the tile; n: the tile's tokens from position on. */
static __device__ __forceinline__ void write_tile(const gemm &p, const float (&sum)[4][4],
                                                  int expert, int position, int n, int r0, int t0)
{
    const float factor = expert_factor(p.w, expert);
    if (!p.up.data) {
        #pragma unroll
        for (int t = 0; t < 4; t++) {
            if (t0 + t >= n) continue;
            float *y = p.y + (size_t)output_row(p, position + t0 + t) * p.y_stride;
            #pragma unroll
            for (int r = 0; r < 4; r++) {
                const int row = (int)blockIdx.x * SIDE + r0 + r;
                if (row >= p.rows) continue;
                const float v = fmaf(factor, sum[t][r], bias_of(p.w, expert, p.rows, row));
                y[row] = p.add ? y[row] + v : v;
            }
        }
        return;
    }
    const float up_factor = expert_factor(p.up, expert);
    #pragma unroll
    for (int t = 0; t < 4; t++) {
        if (t0 + t >= n) continue;
        const size_t out = (size_t)output_row(p, position + t0 + t) * p.rows;
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = (int)blockIdx.x * (SIDE / 2) + r0 / 2 + r;
            if (row >= p.rows) continue;
            const float gate = fmaf(factor, sum[t][r], bias_of(p.w, expert, p.rows, row));
            const float up = fmaf(up_factor, sum[t][r + 2], bias_of(p.up, expert, p.rows, row));
            store_mid(p, out + row, activate(gate, up, p.clamped));
        }
    }
}

/* A tile of tokens may be longer than SIDE: then it is taken in parts. */
static __global__ void __launch_bounds__(THREADS, 2) gemm_floats(frame f, const gemm p,
                                                                 bool vectors)
{
    __shared__ __align__(16) float_step w[2], x[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    /* neighbours write neighbouring rows; a warp has 32 rows and 16 tokens */
    const int r0 = 4 * (warp % 2 * 8 + lane % 8), t0 = 4 * (warp / 2 * 4 + lane / 8);
    const int r = threadIdx.x / 4, k = threadIdx.x % 4 * 4;      /* what the thread loads */
    const int n_step = (p.cols + STEP - 1) / STEP;
    token_tile tile;

    frame_begin(f);
    frame_wait(f);
    if (!tile_of_block(tile, p)) {
        frame_end(f);
        return;
    }
    const float *w_row = tile_row(p, tile.expert, r);
    for (int done = 0; done < tile.n; done += SIDE) {
        const int first = tile.first + done, n = min(SIDE, tile.n - done);
        const float *x_row = (const float *)p.x +
                             (size_t)input_row(p, first + min(r, n - 1)) * p.cols;
        float sum[4][4] = {}, run[4][4] = {};

        __syncthreads();                 /* nobody reads the previous part any more */
        store_column(w[0], load_four(w_row, k, p.cols, vectors));
        store_column(x[0], load_four(x_row, k, p.cols, vectors));
        #pragma unroll 1
        for (int step = 0; step < n_step; step++) {
            const int now = step & 1, next = STEP * (step + 1) + k;
            /* past the last column these are zeros, which nobody reads */
            const float4 next_w = load_four(w_row, next, p.cols, vectors);
            const float4 next_x = load_four(x_row, next, p.cols, vectors);
            __syncthreads();
            multiply(run, w[now], x[now], r0, t0);
            if ((step + 1) % RUN == 0 || step + 1 == n_step) {
                #pragma unroll
                for (int i = 0; i < 4; i++)
                    #pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sum[i][j] += run[i][j];
                        run[i][j] = 0.0f;
                    }
            }
            store_column(w[now ^ 1], next_w);
            store_column(x[now ^ 1], next_x);
        }
        write_tile(p, sum, tile.expert, first, n, r0, t0);
    }
    frame_end(f);
}

/* A warp for a token; every lane its columns, then the sum over lanes. */
static __global__ void __launch_bounds__(32 * THIN_WARPS) gemm_thin(frame f, const gemm p,
                                                                    bool vectors)
{
    const int t = (int)(blockIdx.x * THIN_WARPS + threadIdx.x / 32), lane = threadIdx.x % 32;

    frame_begin(f);
    frame_wait(f);
    if (t < p.n) {
        const float *x = (const float *)p.x + (size_t)t * p.cols;
        for (int r = 0; r < p.rows; r++) {
            const float *w = (const float *)weight_row(p.w, 0, r);
            float sum = 0.0f;
            for (int c = 4 * lane; c < p.cols; c += 128) {
                const float4 a = load_four(w, c, p.cols, vectors);
                const float4 b = load_four(x, c, p.cols, vectors);
                sum = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                float *y = p.y + (size_t)t * p.y_stride + r;
                const float v = fmaf(expert_factor(p.w, 0), sum, bias_of(p.w, 0, p.rows, r));
                *y = p.add ? *y + v : v;
            }
        }
    }
    frame_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

static bool is_aligned(const gemm_matrix *m)
{
    return (uintptr_t)m->data % 16 == 0 && m->row_bytes % 16 == 0 && m->slab_bytes % 16 == 0;
}

void gemm_run_float(gpu *g, const gemm *p)
{
    const bool vectors = p->cols % 4 == 0 && (uintptr_t)p->x % 16 == 0 && is_aligned(&p->w) &&
                         (!p->up.data || is_aligned(&p->up));
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    gemm tiled = *p;

    if (!p->tiles && !p->up.data && p->rows <= THIN_ROWS) {
        launch(g, p->name, bytes, gemm_thin, ceil_div((uint64_t)p->n, THIN_WARPS),
               32 * THIN_WARPS, 0, *p, vectors);
        return;
    }
    if (!p->tiles) tiled.tile_tokens = SIDE;
    const unsigned n_tile = p->tiles ? (unsigned)p->max_tile : ceil_div((uint64_t)p->n, SIDE);
    const unsigned n_row = ceil_div((uint64_t)p->rows, p->up.data ? SIDE / 2 : SIDE);
    launch(g, p->name, bytes, gemm_floats, dim3(n_row, n_tile), THREADS, 0, tiled, vectors);
}
