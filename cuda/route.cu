/* route.cu - which experts, and with which weights: router logits, the k largest, their weights.
 *
 * For up to GPU_FEW tokens every block finishes the input for itself and takes some rows of the
 * router, each by all of its warps; the first block leaves the input's finished forms for the
 * experts. Where they read it through another norm, a few more blocks make those forms meanwhile, a
 * block for each vector. Router weights are on their way into shared memory before the input is
 * ready. Whichever kernel reads the logits selects, by keys if sigmoids and a bias decide, or, if ids
 * are asked for, a kernel with a warp for each token. Larger batches go through the products of batch.cuh. */
#include "cuda/dot.cuh"
#include "cuda/batch.cuh"
#include "cuda/select.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_ROWS = 8 };      /* MAX_ROWS: of a block */

typedef struct select_args {
    const float *logits;                 /* [n, n_expert] */
    int n_expert, k;
    int32_t *ids;                        /* NULL: not asked for */
    float *gates;
    gpu_router_rule rule;
} select_args;

static __device__ __forceinline__ void select_token(const select_args &a, int t, select_space *s)
{
    const int lane = threadIdx.x % 32;
    int id;
    float gate;
    select_by_rule(&id, &gate, a.logits + (size_t)t * a.n_expert, a.n_expert, a.k, s,
                   a.rule);
    if (lane < a.k) {
        a.ids[(size_t)t * a.k + lane] = id;
        a.gates[(size_t)t * a.k + lane] = gate;
    }
}

/* What a choice by sigmoids and a bias compares. */
static __device__ __forceinline__ float choice_key(float logit, float bias)
{
    return __fadd_rn(sigmoid_score(logit), bias);
}

/* ---- few tokens ------------------------------------------------------------------------------ */

typedef struct few_args {
    enum { forms = 0 };
    input_view in;
    int n, n_row, n_each;                /* tokens; experts and the shared gate; rows of a block */
    gpu_matrix router, shared_gate;
    float *sigma;
    float *logits;
    uint8_t *blocks;                     /* finished forms for the experts; NULL: not wanted */
    float *rows;
    float *keys;                         /* NULL: not wanted; else with the choice's bias: */
    const float *choice_bias;
} few_args;

typedef struct other_form {
    input_view in;
    uint8_t *blocks;
    float *rows;
} other_form;

struct few_forms_args : few_args {
    enum { forms = 1 };
    unsigned n_block;                    /* that route; after them n for each form */
    other_form form[2];
};

/* Row r of the router followed by the shared gate. */
static __device__ __forceinline__ const uint8_t *router_row(const few_args &a, int r)
{
    return r < a.router.rows ? a.router.data + (size_t)r * a.router.row_bytes : a.shared_gate.data;
}

/* Weights 8i .. 8i+7 of a row in shared memory; zeros past its end. */
static __device__ __forceinline__ void row8(float (&w)[8], int type, const uint8_t *row, int i,
                                            int cols)
{
    if (type == QT_F32) {
        load8(w, (const float *)row, i, cols);
        return;
    }
    #pragma unroll
    for (int k = 0; k < 8; k++) {
        const int c = 8 * i + k;
        w[k] = c >= cols ? 0.0f : type == QT_F16 ? weight_at<QT_F16>(row, c)
                                                 : weight_at<QT_BF16>(row, c);
    }
}

static __device__ __forceinline__ void store_logit(const few_args &a, int t, int r, float sum,
                                                   float bias, float choice_bias)
{
    if (r < a.router.rows) {
        const size_t at = (size_t)t * a.router.rows + r;
        const float logit = fmaf(a.router.scale, sum, bias);
        a.logits[at] = logit;
        if (a.keys) a.keys[at] = choice_key(logit, choice_bias);
    } else if (r < a.n_row) {
        a.sigma[t] = sigmoid(a.shared_gate.scale * sum);
    }
}

/* Blocks that route. */
static __device__ __forceinline__ unsigned routing_blocks(const few_args &)
{
    return gridDim.x;
}

static __device__ __forceinline__ unsigned routing_blocks(const few_forms_args &a)
{
    return a.n_block;
}

/* As quantise_rows in experts.cu makes it, to the bit. sums: 32 floats. */
static __device__ __forceinline__ void leave_form(frame f, const other_form &form, int t,
                                                  float *sums)
{
    const int cols = form.in.cols;
    const input_ahead<2> ahead = input_begin<2>(form.in);
    frame_wait(f);
    input_finish(cols % 32 == 0 ? form.blocks + (size_t)t * blocks_pitch(cols) : NULL,
                 form.rows + (size_t)t * cols, form.in, t, sums, ahead);
    frame_end(f);
}

/* A block's rows are as far apart as there are blocks that route, and pitch bytes in shared memory.
 * A thread multiplies the values that it has finished itself: eight consecutive ones, then the
 * eight that are 8 * THREADS further on. */
template <typename ARGS>
static __global__ void __launch_bounds__(THREADS, 3) route_few(frame f, const ARGS a)
{
    extern __shared__ __align__(16) uint8_t shared[];    /* [n_each] rows */
    __shared__ float sums[32], found[MAX_ROWS][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cols = a.in.cols;
    const int pitch = (cols * 4 + 15) / 16 * 16;         /* enough for any of the types */
    const size_t form_bytes = blocks_pitch(cols);
    const int rounds = (int)(cols + 8 * THREADS - 1) / (8 * THREADS);
    const int own_row = blockIdx.x + threadIdx.x * routing_blocks(a);    /* the first threads' */
    float bias = 0.0f, choice_bias = 0.0f;

    frame_begin(f);
    if constexpr (ARGS::forms)
        if (blockIdx.x >= a.n_block) {
            const int more = (int)(blockIdx.x - a.n_block);
            leave_form(f, a.form[more / a.n], more % a.n, sums);
            return;
        }
    for (int i = 0; i < a.n_each; i++) {
        const int r = blockIdx.x + i * routing_blocks(a);
        if (r >= a.n_row) break;
        const uint8_t *row = router_row(a, r);
        const int bytes = (int)(r < a.router.rows ? a.router.row_bytes : a.shared_gate.row_bytes);
        if ((((uintptr_t)row | bytes) & 15) == 0)
            for (int c = 16 * threadIdx.x; c < bytes; c += 16 * THREADS)
                copy16(shared + i * pitch + c, row + c);
        else
            for (int c = threadIdx.x; c < bytes; c += THREADS) shared[i * pitch + c] = row[c];
    }
    copy_commit();
    const input_ahead<2> ahead = input_begin<2>(a.in);
    if (threadIdx.x < a.n_each && own_row < a.router.rows) {
        if (a.router.bias) bias = a.router.bias[own_row];
        if (a.keys) choice_bias = a.choice_bias[own_row];
    }
    frame_wait(f);
    for (int t = 0; t < a.n; t++) {
        const float *x = a.in.x + (size_t)t * cols;
        const bool leave = blockIdx.x == 0 && a.blocks;
        float kept[2][8], factor = 1.0f, sum[MAX_ROWS] = {};
        #pragma unroll
        for (int r = 0; r < 2; r++) load8(kept[r], x, threadIdx.x + r * THREADS, cols);
        copy_wait<0>();
        float squares = squares8(kept[0]) + squares8(kept[1]);
        for (int r = 2; r < rounds; r++) {
            float v[8];
            load8(v, x, threadIdx.x + r * THREADS, cols);
            squares += squares8(v);
        }
        squares = block_sum(squares, sums);              /* the rows have arrived, too */
        if (a.in.kind == GPU_NORM) factor = 1.0f / sqrtf(squares / (float)cols + a.in.eps);

        for (int r = 0; r < rounds; r++) {
            const int i = threadIdx.x + r * THREADS;
            float v[8], w[8];
            if (r < 2) {
                #pragma unroll
                for (int k = 0; k < 8; k++) {
                    v[k] = r == 0 ? kept[0][k] : kept[1][k];
                    w[k] = r == 0 ? ahead.w[0][k] : ahead.w[1][k];
                }
            } else {
                load8(v, x, i, cols);
                if (8 * i < cols) load_weight8(w, a.in, i);
            }
            finish8(v, a.in, t, i, factor, w);
            if (leave && cols % 32 == 0) quantise8(a.blocks + t * form_bytes, cols / 32, v, i);
            if (8 * i >= cols) continue;
            #pragma unroll
            for (int k = 0; k < 8; k++)
                if (leave && a.rows && 8 * i + k < cols)
                    a.rows[(size_t)t * cols + 8 * i + k] = v[k];
            #pragma unroll
            for (int n = 0; n < MAX_ROWS; n++) {
                if (n >= a.n_each) break;
                const bool routed = (int)(blockIdx.x + n * routing_blocks(a)) < a.router.rows;
                row8(w, routed ? a.router.type : a.shared_gate.type, shared + n * pitch, i, cols);
                #pragma unroll
                for (int k = 0; k < 8; k++) sum[n] = fmaf(w[k], v[k], sum[n]);
            }
        }
        #pragma unroll
        for (int n = 0; n < MAX_ROWS; n++) {
            if (n >= a.n_each) break;
            sum[n] = warp_sum(sum[n]);
            if (lane == 0) found[n][warp] = sum[n];
        }
        __syncthreads();
        if (threadIdx.x < a.n_each) {
            float all = 0.0f;
            for (int w = 0; w < WARPS; w++) all += found[threadIdx.x][w];
            store_logit(a, t, own_row, all, bias, choice_bias);
        }
        __syncthreads();                 /* found is rewritten */
    }
    frame_end(f);
}

/* ---- many tokens ----------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) select_many(frame f, const select_args a, int n)
{
    __shared__ select_space space[WARPS];
    const int t = blockIdx.x * WARPS + threadIdx.x / 32;
    frame_begin(f);
    frame_wait(f);
    if (t < n) select_token(a, t, &space[threadIdx.x / 32]);
    frame_end(f);
}

static __global__ void make_keys(frame f, float *keys, const float *logits, const float *bias,
                                 int n_expert, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    frame_begin(f);
    frame_wait(f);
    if (i < n) keys[i] = choice_key(logits[i], bias[i % n_expert]);
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

/* With blocks for the forms that the other inputs do not have yet. */
static void launch_few(gpu *g, const few_args *a, unsigned grid, size_t smem,
                       gpu_input *const also[2])
{
    const uint64_t bytes = a->router.row_bytes * (uint64_t)a->n_row;
    few_forms_args more = {};
    unsigned n_form = 0;

    for (int i = 0; i < 2; i++) {
        gpu_input *in = also[i];
        if (!in || in->has_blocks) continue;
        if (in->n != a->n || !in->blocks || !in->rows)
            gpu_fail(g, cudaErrorInvalidValue, "router: other inputs");
        more.form[n_form++] = { view_of(in), (uint8_t *)in->blocks, in->rows };
        in->has_blocks = in->has_rows = true;
    }
    if (n_form == 0) {
        launch(g, "router", bytes, route_few<few_args>, grid, THREADS, smem, *a);
        return;
    }
    (few_args &)more = *a;
    more.n_block = grid;
    launch(g, "router", bytes, route_few<few_forms_args>, grid + n_form * (unsigned)a->n, THREADS,
           smem, more);
}

void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *r)
{
    const int n_expert = r->router.rows, n = in->n;
    const bool shared = r->shared_gate.data != NULL;
    const select_args select = { r->logits, n_expert, r->k, r->ids, r->gates, r->rule };

    if (n_expert > SELECT_MAX_EXPERT || r->k > SELECT_MAX_K) {
        gpu_fail(g, cudaErrorInvalidValue, "router: too many experts");
        return;
    }
    float *keys = r->ids ? NULL : r->keys;
    if (keys && (!r->rule.sigmoid || !r->rule.bias)) {
        gpu_fail(g, cudaErrorInvalidValue, "router: keys");
        return;
    }
    if (n <= GPU_FEW && is_float_weight(r->router.type) &&
        (!shared || is_float_weight(r->shared_gate.type))) {
        const int n_row = n_expert + (shared ? 1 : 0);
        const size_t pitch = ((size_t)in->cols * 4 + 15) / 16 * 16;
        unsigned grid = n_row < g->n_sm ? n_row : g->n_sm;
        if (ceil_div(n_row, grid) > MAX_ROWS) grid = ceil_div(n_row, MAX_ROWS);
        while (ceil_div(n_row, grid) * pitch > g->smem_block - 2048 && grid < (unsigned)n_row)
            grid *= 2;
        const int n_each = (int)ceil_div(n_row, grid);
        const few_args a = { view_of(in), n, n_row, n_each, r->router, r->shared_gate, r->sigma,
                             r->logits, (uint8_t *)in->blocks, in->rows, keys, r->rule.bias };
        launch_few(g, &a, grid, n_each * pitch, r->also);
        in->has_blocks = in->has_rows = in->blocks != NULL;
    } else {
        const gpu_product list[2] = {
            { r->logits, n_expert, false, r->router, {} },
            { r->sigma, 1, false, r->shared_gate, {} },
        };
        gpu_project(g, in, list, shared ? 2 : 1);
        if (shared) launch(g, "router", 0, sigmoid_many, ceil_div(n, 256), 256, 0, r->sigma, n);
        if (keys)
            launch(g, "router", 0, make_keys, ceil_div((uint64_t)n * n_expert, 256), 256, 0, keys,
                   (const float *)r->logits, r->rule.bias, n_expert, n * n_expert);
    }
    if (r->ids)
        launch(g, "router", 0, select_many, ceil_div(n, WARPS), THREADS, 0, select, n);
}
