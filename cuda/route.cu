/* route.cu - gpu_route: router logits, the k chosen experts, their weights.
 *
 * For few tokens (gpu_is_few) each block finishes the input of some tokens and computes some rows of
 * the router, with all of its warps for each row. Further blocks, one for each vector, write the
 * input's finished forms for the experts, and those of other inputs (gpu_route_args.also). Router
 * weights are loaded into shared memory before the input is ready. If ids are NULL, a later kernel
 * chooses, by logits or keys. Otherwise a kernel with a warp for each token chooses. Larger batches use the products
 * of batch.cuh. Logits are F32, outside the arithmetic contract (docs/numerics.md, section 7). */
#include "cuda/batch.cuh"
#include "cuda/dot.cuh"
#include "cuda/select.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_ROWS = 8 };      /* MAX_ROWS: of a block */

typedef struct select_args {
    const float *logits;                 /* [n, n_expert] */
    int n_expert, k;
    int32_t *ids;                        /* NULL: another kernel chooses */
    float *gates;
    gpu_router_rule rule;
} select_args;

static __device__ __forceinline__ void select_token(const select_args &a, int t, select_space *s)
{
    const int lane = threadIdx.x % 32;
    int id;
    float gate;
    select_by_rule(&id, &gate, a.logits + (size_t)t * a.n_expert, a.n_expert, a.k, s, a.rule);
    if (lane < a.k) {
        a.ids[(size_t)t * a.k + lane] = id;
        a.gates[(size_t)t * a.k + lane] = gate;
    }
}

/* The key that decides a choice by sigmoids and a bias. */
static __device__ __forceinline__ float choice_key(float logit, float bias)
{
    return __fadd_rn(sigmoid_score(logit), bias);
}

/* ---- few tokens ------------------------------------------------------------------------------ */

typedef struct left_form {               /* finished forms of one input; rows: [n, cols] */
    input_view in;
    uint8_t *blocks;
    float *rows;
} left_form;

typedef struct few_args {
    input_view in;
    int n, n_row, n_each;                /* tokens; experts and the shared gate; rows of a block */
    unsigned n_block;                    /* blocks that route; then come n blocks for each form */
    left_form form[3];
    gpu_matrix router, shared_gate;
    float *sigma;
    float *logits;
    float *keys;                         /* NULL, or output: choice_key of each logit */
    const float *choice_bias;            /* set if keys is */
} few_args;

/* Row r of the router; row router.rows is the shared gate. */
static __device__ __forceinline__ const uint8_t *router_row(const few_args &a, int r)
{
    return r < a.router.rows ? a.router.data + (size_t)r * a.router.row_bytes : a.shared_gate.data;
}

/* Weights 8i .. 8i+7 of a row in shared memory; zeros past its end. */
template <int SHAPE>
static __device__ __forceinline__ void row8(float (&w)[8], int type, const uint8_t *row, int i,
                                            int cols)
{
    if (SHAPE == UNGATED_INPUT || type == QT_F32) {
        load8<SHAPE>(w, (const float *)row, i, cols);
    } else {
        #pragma unroll
        for (int k = 0; k < 8; k++) {
            const int c = 8 * i + k;
            w[k] = c >= cols ? 0.0f : type == QT_F16 ? weight_at<QT_F16>(row, c)
                                                     : weight_at<QT_BF16>(row, c);
        }
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

/* Writes token t's finished forms, the bits of quantise_rows in experts.cu. sums: 32 floats. */
template <int SHAPE>
static __device__ __forceinline__ void leave_form(tracer f, const left_form &form, int t,
                                                  float *sums)
{
    const int cols = form.in.cols;
    const input_ahead<2> ahead = input_begin<2, SHAPE, THREADS>(form.in);
    pdl_wait(f);
    uint8_t *codes = cols % 32 == 0 ? form.blocks + (size_t)t * blocks_pitch(cols) : NULL;
    float *rows = form.rows ? form.rows + (size_t)t * cols : NULL;
    input_finish<SHAPE, THREADS>(codes, rows, form.in, t, sums, ahead);
    pdl_end(f);
}

/* A block computes EACH rows: blockIdx.x, blockIdx.x + n_block, ...; they are pitch bytes apart in
 * shared memory. A thread multiplies the values that it has finished: eight consecutive ones, then
 * the eight that come 8 * THREADS later. SHAPE: of all inputs; UNGATED_INPUT: weights are F32. */
template <int EACH, int SHAPE>
static __global__ void __launch_bounds__(THREADS, 3) route_few(tracer f, const few_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];    /* [EACH] rows */
    __shared__ float sums[32], found[EACH][WARPS];
    static_assert(sizeof sums + sizeof found <= ROUTE_STATIC_BYTES, "counted");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cols = a.in.cols;
    const int pitch = (cols * 4 + 15) / 16 * 16;         /* bytes of a row in F32, the widest */
    const int rounds = (int)(cols + 8 * THREADS - 1) / (8 * THREADS);
    const int own_row = blockIdx.x + threadIdx.x * a.n_block;    /* threads 0 .. EACH - 1 */
    float bias = 0.0f, choice_bias = 0.0f;

    pdl_begin(f);
    if (blockIdx.x >= a.n_block) {
        if (blockIdx.y > 0) return;
        const int more = (int)(blockIdx.x - a.n_block), i = more / a.n;
        leave_form<SHAPE>(f, i == 0 ? a.form[0] : i == 1 ? a.form[1] : a.form[2], more % a.n, sums);
        return;
    }
    for (int i = 0; i < EACH; i++) {
        const int r = blockIdx.x + i * a.n_block;
        if (r >= a.n_row) break;
        const uint8_t *row = router_row(a, r);
        const int bytes = (int)(r < a.router.rows ? a.router.row_bytes : a.shared_gate.row_bytes);
        if ((((uintptr_t)row | bytes) & 15) == 0) {
            #pragma unroll 2
            for (int c = 16 * threadIdx.x; c < bytes; c += 16 * THREADS)
                copy16(shared + i * pitch + c, row + c);
        } else {
            #pragma unroll 1
            for (int c = threadIdx.x; c < bytes; c += THREADS) shared[i * pitch + c] = row[c];
        }
    }
    copy_commit();
    const input_ahead<2> ahead = input_begin<2, SHAPE, THREADS>(a.in);
    if (threadIdx.x < EACH && own_row < a.router.rows) {
        if (a.router.bias) bias = a.router.bias[own_row];
        if (a.keys) choice_bias = a.choice_bias[own_row];
    }
    pdl_wait(f);
    for (int t = blockIdx.y; t < a.n; t += gridDim.y) {
        const float *x = a.in.x + (size_t)t * cols;
        float kept[2][8], factor = 1.0f, sum[EACH] = {};
        #pragma unroll
        for (int r = 0; r < 2; r++) load8<SHAPE>(kept[r], x, threadIdx.x + r * THREADS, cols);
        copy_wait<0>();
        float squares = squares8(kept[0]) + squares8(kept[1]);
        #pragma unroll 1
        for (int r = 2; r < rounds; r++) {
            float v[8];
            load8<SHAPE>(v, x, threadIdx.x + r * THREADS, cols);
            squares += squares8(v);
        }
        squares = block_sum<THREADS>(squares, sums);     /* synchronises: rows have arrived, too */
        if (a.in.kind == GPU_NORM) factor = 1.0f / sqrtf(squares / (float)cols + a.in.eps);

        #pragma unroll 1
        for (int r = 0; r < rounds; r++) {
            const int i = threadIdx.x + r * THREADS;
            float v[8], weight[8], gate[8];
            input_round<SHAPE>(v, weight, gate, a.in, x, t, r, i, kept, ahead);
            finish8<SHAPE>(v, a.in, factor, weight, gate);
            if (8 * i >= cols) continue;
            #pragma unroll
            for (int n = 0; n < EACH; n++) {             /* sums past the last row are ignored */
                if (SHAPE == ANY_INPUT && n >= a.n_each) break;
                const bool routed = (int)(blockIdx.x + n * a.n_block) < a.router.rows;
                float w[8];
                row8<SHAPE>(w, routed ? a.router.type : a.shared_gate.type, shared + n * pitch, i,
                            cols);
                #pragma unroll
                for (int k = 0; k < 8; k++) sum[n] = fmaf(w[k], v[k], sum[n]);
            }
        }
        #pragma unroll
        for (int n = 0; n < EACH; n++) {
            sum[n] = warp_sum(sum[n]);
            if (lane == 0) found[n][warp] = sum[n];
        }
        __syncthreads();
        if (threadIdx.x < EACH) {
            float all = 0.0f;
            for (int w = 0; w < WARPS; w++) all += found[threadIdx.x][w];
            store_logit(a, t, own_row, all, bias, choice_bias);
        }
        __syncthreads();                 /* the next token overwrites found */
    }
    pdl_end(f);
}

/* ---- many tokens ----------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) select_many(tracer f, const select_args a, int n)
{
    __shared__ select_space space[WARPS];
    const int t = blockIdx.x * WARPS + threadIdx.x / 32;
    pdl_begin(f);
    pdl_wait(f);
    if (t < n) select_token(a, t, &space[threadIdx.x / 32]);
    pdl_end(f);
}

static __global__ void make_keys(tracer f, float *keys, const float *logits, const float *bias,
                                 int n_expert, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    if (i < n) keys[i] = choice_key(logits[i], bias[i % n_expert]);
    pdl_end(f);
}

static __global__ void sigmoid_many(tracer f, float *x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    if (i < n) x[i] = sigmoid(x[i]);
    pdl_end(f);
}

static bool is_usual_input(const gpu_input *in)
{
    const input_view v = view_of(in);
    return is_whole(v) && !is_gated(v) && (uintptr_t)in->rows % 16 == 0;
}

/* Launches route_few, with blocks for the finished forms that the inputs do not have yet. */
static void launch_few(gpu *g, few_args *a, gpu_input *in, gpu_input *const also[2])
{
    const size_t pitch = route_row_bytes(in->cols);
    const unsigned n_row = (unsigned)a->n_row;
    bool usual = is_usual_input(in) && a->router.type == QT_F32 &&
                 (!a->shared_gate.data || a->shared_gate.type == QT_F32);
    for (int i = 0; i < 2; i++) usual = usual && (!also[i] || is_usual_input(also[i]));
    const auto rows_of = [&](unsigned grid) {            /* rows of a block */
        unsigned n = 1;
        while (n * grid < n_row) n *= 2;
        return usual ? n : ceil_div(n_row, grid);
    };
    gpu_input *const inputs[3] = { in->blocks ? in : NULL, also[0], also[1] };
    const unsigned n_sm = (unsigned)g->n_sm;
    unsigned grid = n_row < n_sm ? n_row : n_sm, n_more = 0;

    for (int i = 0; i < 3; i++) {
        gpu_input *form = inputs[i];
        if (!form || (i > 0 && form->has_blocks)) continue;
        if (i > 0 && (form->n != a->n || !form->blocks || !form->rows))
            gpu_fail(g, cudaErrorInvalidValue, "router: other inputs");
        a->form[n_more / (unsigned)a->n] = { view_of(form), (uint8_t *)form->blocks, form->rows };
        form->has_blocks = form->has_rows = true;
        n_more += (unsigned)a->n;
    }
    while (grid < n_row &&
           (rows_of(grid) > MAX_ROWS || rows_of(grid) * pitch > g->smem_block - ROUTE_STATIC_BYTES))
        grid *= 2;
    /* Next to the previous kernel a multiprocessor has room for only one more block. */
    if (grid == n_sm && n_more < n_sm && rows_of(n_sm - n_more) == rows_of(grid)) grid -= n_more;
    a->n_block = grid;
    a->n_each = (int)rows_of(grid);
    const unsigned each = ceil_div(3 * (uint64_t)n_sm, grid), n = (unsigned)a->n;
    const dim3 blocks(grid + n_more, n < each ? n : each);
    const auto go = [&](void (*kernel)(tracer, few_args)) {
        launch(g, "router", a->router.row_bytes * (uint64_t)n_row, kernel, blocks, THREADS,
               rows_of(grid) * pitch, *a);
    };
    if (!usual) go(route_few<MAX_ROWS, ANY_INPUT>);
    else if (rows_of(grid) == 1) go(route_few<1, UNGATED_INPUT>);
    else if (rows_of(grid) == 2) go(route_few<2, UNGATED_INPUT>);
    else if (rows_of(grid) == 4) go(route_few<4, UNGATED_INPUT>);
    else go(route_few<MAX_ROWS, UNGATED_INPUT>);
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
    if (gpu_is_few(n, in->in_pass) && is_float_weight(r->router.type) &&
        (!shared || is_float_weight(r->shared_gate.type))) {
        few_args a = { view_of(in), n, n_expert + (shared ? 1 : 0), 0, 0, {}, r->router,
                       r->shared_gate, r->sigma, r->logits, keys, r->rule.bias };
        launch_few(g, &a, in, r->also);
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
