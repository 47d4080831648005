/* route.cu - which experts, and with which weights: router logits, the k largest, their softmax.
 *
 * For up to GPU_FEW tokens one kernel does it all: every block finishes the input for itself and
 * takes some rows of the router, the first block leaves the input's finished forms for the experts,
 * and the block that comes last selects. Larger batches go through the products of many.cuh and a
 * block for each token.
 *
 * An expert's place in the order is the number of experts before it: larger logits, and equal ones
 * with a lower id. NaN counts as -infinity. */
#include "cuda/dot.cuh"
#include "cuda/many.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_EXPERT = 1024, MAX_K = 32 };

typedef struct select_args {
    const float *logits;                 /* [n, n_expert] */
    int n_expert, k;
    int32_t *ids;
    float *gates;
} select_args;

static __device__ __forceinline__ float rank_value(float v) { return isnan(v) ? -INFINITY : v; }

/* One token's selection by the whole block. value: [n_expert + 3] floats of shared memory. */
static __device__ __forceinline__ void select_token(const select_args &a, int t, float *value)
{
    __shared__ int chosen[MAX_K];
    const volatile float *logits = a.logits + (size_t)t * a.n_expert;
    const int n4 = (a.n_expert + 3) / 4;

    __syncthreads();
    for (int e = threadIdx.x; e < 4 * n4; e += THREADS)
        value[e] = e < a.n_expert ? rank_value(logits[e]) : -INFINITY;
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_expert; e += THREADS) {
        const float mine = value[e];
        int before = 0;
        for (int i = 0; i < n4; i++) {
            const float4 v = ((const float4 *)value)[i];
            before += (v.x > mine || (v.x == mine && 4 * i < e)) +
                      (v.y > mine || (v.y == mine && 4 * i + 1 < e)) +
                      (v.z > mine || (v.z == mine && 4 * i + 2 < e)) +
                      (v.w > mine || (v.w == mine && 4 * i + 3 < e));
        }
        if (before < a.k) chosen[before] = e;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int r = threadIdx.x;
        const int e = r < a.k ? chosen[r] : 0;
        const float top = logits[chosen[0]];
        const float w = r < a.k ? expf(logits[e] - top) : 0.0f;
        const float sum = warp_sum(w);
        if (r < a.k) {
            a.ids[(size_t)t * a.k + r] = e;
            a.gates[(size_t)t * a.k + r] = w / sum;
        }
    }
}

/* ---- few tokens --------------------------------------------------------------------------------- */

typedef struct few_args {
    input_view in;
    int n;
    gpu_matrix router, shared_gate;
    float *sigma;
    select_args select;
    float *logits;
    uint8_t *blocks;                     /* finished forms for the experts; NULL: not wanted */
    float *rows;
    uint32_t *counter;
} few_args;

static __device__ __forceinline__ float any_float_row(const gpu_matrix &m, int row, const float *x)
{
    const uint8_t *data = m.data + (size_t)row * m.row_bytes;
    float sum[1];
    if (m.type == QT_F32) float_row<QT_F32, 1>(sum, data, x, 0, 1, m.cols);
    else if (m.type == QT_F16) float_row<QT_F16, 1>(sum, data, x, 0, 1, m.cols);
    else float_row<QT_BF16, 1>(sum, data, x, 0, 1, m.cols);
    return __fmaf_rn(m.scale, sum[0], m.bias ? m.bias[row] : 0.0f);
}

static __global__ void __launch_bounds__(THREADS) route_few(frame f, const few_args a)
{
    extern __shared__ __align__(16) float x[];           /* [cols], later the logits */
    __shared__ float sums[33];
    __shared__ bool is_last;
    const int warp = threadIdx.x / 32, n_expert = a.router.rows;
    const int n_row = n_expert + (a.shared_gate.data ? 1 : 0);
    const int first = warp * gridDim.x + blockIdx.x, step = gridDim.x * WARPS;
    const size_t pitch = (a.in.cols / 32 * 40 + 15) / 16 * 16;

    frame_begin(f);
    if (first < n_expert)
        prefetch_row(a.router.data + (size_t)first * a.router.row_bytes, a.router.row_bytes);
    frame_wait(f);
    for (int t = 0; t < a.n; t++) {
        const bool leave = blockIdx.x == 0 && a.blocks;
        input_finish(leave && a.in.cols % 32 == 0 ? a.blocks + t * pitch : NULL, x, a.in, t, sums);
        for (int r = first; r < n_row; r += step) {
            if (r < n_expert) {
                const float logit = any_float_row(a.router, r, x);
                if (threadIdx.x % 32 == 0) a.logits[(size_t)t * n_expert + r] = logit;
            } else {
                const float gate = any_float_row(a.shared_gate, 0, x);
                if (threadIdx.x % 32 == 0) a.sigma[t] = sigmoid(gate);
            }
        }
        if (leave && a.rows)
            for (int c = threadIdx.x; c < a.in.cols; c += THREADS)
                a.rows[(size_t)t * a.in.cols + c] = x[c];
        __syncthreads();                 /* x is written anew */
    }
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(a.counter, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last) {
        __threadfence();
        for (int t = 0; t < a.n; t++) select_token(a.select, t, x);
        if (threadIdx.x == 0) *a.counter = 0;
    }
    frame_end(f);
}

/* ---- many tokens -------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) select_many(frame f, const select_args a)
{
    __shared__ __align__(16) float value[MAX_EXPERT + 4];
    frame_begin(f);
    frame_wait(f);
    select_token(a, blockIdx.x, value);
    frame_end(f);
}

static __global__ void sigmoid_many(frame f, float *x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    frame_begin(f);
    frame_wait(f);
    if (i < n) x[i] = sigmoid(x[i]);
    frame_end(f);
}

static bool is_float(const gpu_matrix *m)
{
    return m->type == QT_F32 || m->type == QT_F16 || m->type == QT_BF16;
}

void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *r)
{
    const int n_expert = r->router.rows, n = in->n;
    const bool shared = r->shared_gate.data != NULL;
    const select_args select = { r->logits, n_expert, r->k, r->ids, r->gates };

    if (n_expert > MAX_EXPERT || r->k > MAX_K) {
        gpu_fail(g, cudaErrorInvalidValue, "router: too many experts");
        return;
    }
    if (n <= GPU_FEW && is_float(&r->router) && (!shared || is_float(&r->shared_gate))) {
        const int n_row = n_expert + (shared ? 1 : 0);
        const size_t floats = (size_t)(in->cols > n_expert + 4 ? in->cols : n_expert + 4);
        const few_args a = { view_of(in), n, r->router, r->shared_gate, r->sigma, select, r->logits,
                             (uint8_t *)in->blocks, in->rows, r->counter };
        launch(g, "router", r->router.row_bytes * (uint64_t)n_row, route_few,
               (unsigned)(n_row < g->n_sm ? n_row : g->n_sm), THREADS, floats * sizeof(float), a);
        in->has_blocks = in->has_rows = in->blocks != NULL;
        return;
    }
    const gpu_product list[2] = {
        { r->logits, n_expert, false, r->router, {} },
        { r->sigma, 1, false, r->shared_gate, {} },
    };
    gpu_project(g, in, list, shared ? 2 : 1);
    if (shared) launch(g, "router", 0, sigmoid_many, ceil_div(n, 256), 256, 0, r->sigma, n);
    launch(g, "router", 0, select_many, (unsigned)n, THREADS, 0, select);
}
