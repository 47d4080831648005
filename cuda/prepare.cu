/* prepare.cu - input_prepare and conv_many for more than GPU_FEW tokens: norms and gates before a
 * product, the convolution after one. The products are in gemm.cu and gemm_float.cu.
 *
 * Outside the arithmetic contract; sums over a block or a warp have a fixed order. */
#include "cuda/gemm.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef struct prepare_args {
    const float *x, *weight, *gate;
    float eps;
    int cols, head_dim, head_stride, gate_stride;
    float *rows;                         /* output, or NULL */
    void *halves;                        /* output, or NULL */
    void *lows;                          /* LOWS: output, rounding errors of halves */
} prepare_args;

template <int W, bool LOWS>
static __device__ __forceinline__ void store_input(const prepare_args &a, size_t at,
                                                   const float (&v)[W])
{
    if (a.rows) store_values(a.rows + at, v);
    if (!a.halves) return;
    if constexpr (W == 4)
        *(uint2 *)((uint16_t *)a.halves + at) = make_uint2(pack_halves(v[0], v[1]),
                                                           pack_halves(v[2], v[3]));
    else ((uint16_t *)a.halves)[at] = (uint16_t)pack_halves(v[0], 0.0f);
    if constexpr (LOWS && W == 4)
        *(uint2 *)((uint16_t *)a.lows + at) = make_uint2(pack_lows(v[0], v[1]),
                                                         pack_lows(v[2], v[3]));
    else if constexpr (LOWS) ((uint16_t *)a.lows)[at] = (uint16_t)pack_lows(v[0], 0.0f);
}

template <int W> static __device__ __forceinline__ float squares(const float (&v)[W], float sum)
{
    #pragma unroll
    for (int i = 0; i < W; i++) sum = fmaf(v[i], v[i], sum);
    return sum;
}

/* A block finishes one token: GPU_PLAIN or GPU_NORM. */
template <int KIND, int W, bool LOWS>
static __global__ void __launch_bounds__(THREADS) prepare_token(tracer f, const prepare_args a)
{
    __shared__ float shared[33];
    const size_t t = blockIdx.x;
    const float *x = a.x + t * a.cols;
    float scale = 1.0f;

    pdl_begin(f);
    pdl_wait(f);
    if (KIND == GPU_NORM) {
        float sum = 0.0f;
        for (int c = (int)threadIdx.x * W; c < a.cols; c += THREADS * W) {
            float v[W];
            load_values(v, x + c);
            sum = squares(v, sum);
        }
        sum = block_sum<THREADS>(sum, shared);
        scale = 1.0f / sqrtf(sum / (float)a.cols + a.eps);
    }
    for (int c = (int)threadIdx.x * W; c < a.cols; c += THREADS * W) {
        float v[W], by[W];
        load_values(v, x + c);
        if (KIND == GPU_NORM) {
            load_values(by, a.weight + c);
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] = v[i] * scale * by[i];
        } else if (KIND == GPU_GATED) {
            const int h = c / a.head_dim, d = c % a.head_dim;
            load_values(by, a.gate + t * a.gate_stride + (size_t)h * a.head_stride + d);
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] *= sigmoid(by[i]);
        }
        store_input<W, LOWS>(a, t * a.cols + c, v);
    }
    pdl_end(f);
}

/* A block finishes one token, each warp every eighth head: norm by heads, then gates. */
template <int W, bool LOWS>
static __global__ void __launch_bounds__(THREADS) prepare_heads(tracer f, const prepare_args a)
{
    const size_t t = blockIdx.x;
    const int n_head = a.cols / a.head_dim, lane = threadIdx.x % 32;

    pdl_begin(f);
    pdl_wait(f);
    #pragma unroll 1
    for (int h = threadIdx.x / 32; h < n_head; h += WARPS) {
        const float *x = a.x + t * a.cols + (size_t)h * a.head_dim;
        const float *gate = a.gate + t * a.gate_stride + (size_t)h * a.head_stride;
        float sum = 0.0f;
        #pragma unroll 1
        for (int d = lane * W; d < a.head_dim; d += 32 * W) {
            float v[W];
            load_values(v, x + d);
            sum = squares(v, sum);
        }
        const float scale = 1.0f / sqrtf(warp_sum(sum) / (float)a.head_dim + a.eps);
        #pragma unroll 1
        for (int d = lane * W; d < a.head_dim; d += 32 * W) {
            float v[W], weight[W], by[W];
            load_values(v, x + d);
            load_values(weight, a.weight + d);
            load_values(by, gate + d);
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] = v[i] * scale * weight[i] * silu(by[i]);
            store_input<W, LOWS>(a, t * a.cols + (size_t)h * a.head_dim + d, v);
        }
    }
    pdl_end(f);
}

static bool is_aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

/* Whether four values at a time never cross a head or a row, and begin at multiples of 16 bytes. */
static bool is_vector(const gpu_input *in, const prepare_args *a)
{
    const bool by_heads = in->kind == GPU_GATED || in->kind == GPU_GATED_NORM;
    if (a->cols % 4 || !is_aligned(a->x) || !is_aligned(a->rows) || !is_aligned(a->halves) ||
        !is_aligned(a->lows))
        return false;
    if (in->kind == GPU_PLAIN) return true;
    if (in->kind != GPU_GATED && !is_aligned(a->weight)) return false;
    return !by_heads || (is_aligned(a->gate) && a->head_dim % 4 == 0 && a->head_stride % 4 == 0 &&
                         a->gate_stride % 4 == 0);
}

template <int W, bool LOWS>
static void prepare(gpu *g, const gpu_input *in, const prepare_args *a)
{
    const dim3 grid((unsigned)in->n);
    const uint64_t bytes = (uint64_t)in->n * (uint64_t)in->cols * sizeof(float);
    switch (in->kind) {
    case GPU_PLAIN:
        launch(g, "prepare", bytes, prepare_token<GPU_PLAIN, W, LOWS>, grid, THREADS, 0, *a);
        break;
    case GPU_NORM:
        launch(g, "prepare", bytes, prepare_token<GPU_NORM, W, LOWS>, grid, THREADS, 0, *a);
        break;
    case GPU_GATED:
        launch(g, "prepare", bytes, prepare_token<GPU_GATED, W, LOWS>, grid, THREADS, 0, *a);
        break;
    case GPU_GATED_NORM:
        launch(g, "prepare", bytes, prepare_heads<W, LOWS>, grid, THREADS, 0, *a);
        break;
    }
}

void input_prepare(gpu *g, gpu_input *in, bool rows, bool halves)
{
    prepare_args a = {};

    if (rows && !in->has_rows && in->kind == GPU_PLAIN) {
        in->rows = (float *)in->x;
        in->has_rows = true;
    }
    rows = rows && !in->has_rows;
    /* rows alone are for the router; later operations then need halves, so make them here */
    halves = (halves || (rows && in->halves)) && !in->has_halves;
    if ((!rows && !halves) || in->n == 0) return;
    a.x = in->x;
    a.weight = in->weight;
    a.gate = in->gate;
    a.eps = in->eps;
    a.cols = in->cols;
    a.head_dim = in->head_dim;
    a.head_stride = in->head_stride;
    a.gate_stride = in->gate_stride;
    a.rows = rows ? in->rows : NULL;
    a.halves = halves ? in->halves : NULL;
    a.lows = halves ? in->lows : NULL;
    if (is_vector(in, &a)) (a.lows ? prepare<4, true> : prepare<4, false>)(g, in, &a);
    else (a.lows ? prepare<1, true> : prepare<1, false>)(g, in, &a);
    in->has_rows |= rows;
    in->has_halves |= halves;
}

/* ---- convolution ----------------------------------------------------------------------------- */

enum { CONV_THREADS = 128, CONV_TOKENS = 32, MAX_TAPS = 8 };

/* A thread computes one channel for CONV_TOKENS tokens. n_tap < 8 taps are the last of eight, so
 * that all indices are constants. */
static __global__ void __launch_bounds__(CONV_THREADS) convolve_tokens(tracer f, float *y,
                                                                       int y_stride, gpu_conv c,
                                                                       int rows, int n)
{
    const int r = (int)(blockIdx.x * CONV_THREADS + threadIdx.x);
    const int first = (int)blockIdx.y * CONV_TOKENS, last = min(first + CONV_TOKENS, n);
    const int n_old = c.n_tap - 1;
    float taps[MAX_TAPS], x[MAX_TAPS];

    pdl_begin(f);
    pdl_wait(f);
    if (r < rows) {
        const float *window = conv_window(c, { c.cursor, 0 });
        #pragma unroll
        for (int k = 0; k < MAX_TAPS; k++) {
            const int tap = k - (MAX_TAPS - c.n_tap);
            taps[k] = tap < 0 ? 0.0f : c.taps[(size_t)r * c.n_tap + tap];
        }
        #pragma unroll
        for (int k = 0; k < MAX_TAPS - 1; k++) {
            const int t = first + k - (MAX_TAPS - 1);    /* < 0: in the window */
            if (t >= 0) x[k + 1] = c.raw[(size_t)t * rows + r];
            else x[k + 1] = t + n_old < 0 ? 0.0f : window[(size_t)(t + n_old) * rows + r];
        }
        for (int t = first; t < last; t++) {
            float sum = 0.0f;
            #pragma unroll
            for (int k = 0; k < MAX_TAPS - 1; k++) x[k] = x[k + 1];
            x[MAX_TAPS - 1] = c.raw[(size_t)t * rows + r];
            #pragma unroll
            for (int k = 0; k < MAX_TAPS; k++)
                if (k >= MAX_TAPS - c.n_tap) sum = fmaf(taps[k], x[k], sum);
            y[(size_t)t * y_stride + r] = silu(sum);
        }
    }
    pdl_end(f);
}

/* The window becomes the last n_tap - 1 tokens of window and batch. In ascending order of j each
 * row is read before it is overwritten. */
static __global__ void __launch_bounds__(CONV_THREADS) move_window(tracer f, gpu_conv c, int rows,
                                                                   int n)
{
    const int r = (int)(blockIdx.x * CONV_THREADS + threadIdx.x), n_old = c.n_tap - 1;

    pdl_begin(f);
    pdl_wait(f);
    if (r < rows) {
        const row_token first = { c.cursor, 0 };
        const float *from = conv_window(c, first);
        float *to = conv_window_next(c, first);
        for (int j = 0; j < n_old; j++)
            to[(size_t)j * rows + r] = j + n < n_old ? from[(size_t)(j + n) * rows + r]
                                                     : c.raw[(size_t)(j + n - n_old) * rows + r];
    }
    pdl_end(f);
}

void conv_many(gpu *g, float *y, int y_stride, const gpu_conv *c, int rows, int n)
{
    const unsigned across = ceil_div((uint64_t)rows, CONV_THREADS);
    const uint64_t bytes = (uint64_t)rows * (uint64_t)n * sizeof(float);

    if (c->n_tap < 2 || c->n_tap > MAX_TAPS) {
        gpu_fail(g, cudaErrorNotSupported, "convolution: taps");
        return;
    }
    launch(g, "convolution", bytes, convolve_tokens,
           dim3(across, ceil_div((uint64_t)n, CONV_TOKENS)), CONV_THREADS, 0, y, y_stride, *c, rows,
           n);
    gpu_conv_window(g, c, rows, n);
}

void gpu_conv_window(gpu *g, const gpu_conv *c, int rows, int n)
{
    launch(g, "convolution", 0, move_window, ceil_div((uint64_t)rows, CONV_THREADS), CONV_THREADS,
           0, *c, rows, n);
}

void gpu_finish_input(gpu *g, gpu_input *in)
{
    input_prepare(g, in, true, false);
}
