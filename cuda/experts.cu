/* experts.cu - the chosen experts of up to GPU_FEW tokens, by the arithmetic contract: the bits are
 * those of engine/lane_cpu.c.
 *
 * Two kernels. A block of the first takes 32 rows of gate and up of one slot (a token and one of
 * its experts), applies the activation and quantises the 32 values: they are one block of the
 * next product's input. A block of the second takes eight rows of down of all slots of a token,
 * sums them in the router's order and adds the sum to the residual stream. The shared expert is one
 * more slot where its formats allow it. Both choose the experts from the router's logits, every
 * block for itself, unless they are told them. What the router left is two kernels old when the
 * second one starts, so it chooses and asks for its weights before it waits. */
#include "cuda/dot.cuh"
#include "cuda/many.cuh"
#include "cuda/select.cuh"

enum { UP_THREADS = 256, UP_ROWS = 32, DOWN_THREADS = 256, DOWN_ROWS = 8, MAX_SLOTS = 33 };

/* Pieces in shared memory. Three where the chip has little of it, and for MXFP4, whose arithmetic
 * wants as many warps as will fit. */
template <int TYPE> struct up_stages {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    enum { value = 3 };
#else
    enum { value = TYPE == QT_MXFP4 ? 3 : 4 };
#endif
};
enum { DOWN_STAGES = 3 };

typedef struct slab {                    /* all experts' rows of one kind, or the shared one's */
    const uint8_t *data;
    uint64_t slab_bytes;
    int row_bytes;
    const float *bias, *scale;           /* by expert, or NULL */
    float fixed_scale;                   /* if scale is NULL */
} slab;

static __device__ __forceinline__ const uint8_t *row_at(const slab &s, int expert, int row)
{
    return s.data + (uint64_t)expert * s.slab_bytes + (size_t)row * s.row_bytes;
}

/* The row's sum with scale and bias. rows: of an expert. */
template <int TYPE>
static __device__ __forceinline__ float finish_row(const slab &s, int expert, int row, int rows,
                                                   float sum)
{
    const float scale = s.scale ? s.scale[expert] : s.fixed_scale;
    const float bias = s.bias ? s.bias[(size_t)expert * rows + row] : 0.0f;
    return __fmaf_rn(__fmul_rn(factor_of<TYPE>::value, scale), sum, bias);
}

/* ---- activations, to the bit ----------------------------------------------------------------- */

static __device__ __forceinline__ float contract_exp(float z)
{
    z = z > 88.0f ? 88.0f : z;
    z = z < -87.0f ? -87.0f : z;
    const float t = __fmaf_rn(z, 0x1.715476p+0f, 12582912.0f);
    const float n = __fsub_rn(t, 12582912.0f);
    float r = __fmaf_rn(n, -0x1.62e430p-1f, z);
    r = __fmaf_rn(n, 0x1.05c610p-29f, r);
    float p = 0x1.6a23d0p-10f;
    p = __fmaf_rn(p, r, 0x1.123a20p-7f);
    p = __fmaf_rn(p, r, 0x1.5558f2p-5f);
    p = __fmaf_rn(p, r, 0x1.555492p-3f);
    p = __fmaf_rn(p, r, 0x1.fffffcp-2f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

static __device__ __forceinline__ float contract_gated(float g, float z)
{
    return __fdiv_rn(g, __fadd_rn(1.0f, contract_exp(-z)));
}

static __device__ __forceinline__ float contract_activation(float g, float u, bool clamped)
{
    if (!clamped) return __fmul_rn(contract_gated(g, g), u);
    g = g > 7.0f ? 7.0f : g;
    u = u > 7.0f ? 7.0f : u;
    u = u < -7.0f ? -7.0f : u;
    return __fmul_rn(contract_gated(g, __fmul_rn(g, 0x1.b3b646p+0f)), __fadd_rn(u, 1.0f));
}

/* ---- gate, up, activation -------------------------------------------------------------------- */

/* How a block learns which experts a token has. */
typedef struct choice {
    const int32_t *ids;                  /* [n, k], or NULL: from these: */
    const float *gates;
    const float *logits;                 /* [n, n_expert] */
    int n_expert, k;
} choice;

/* Of one token, by the first warp; the block has to meet before it reads them. */
static __device__ __forceinline__ void choose(int *ids, float *gates, const choice &c, int token,
                                              select_space *space)
{
    const int lane = threadIdx.x;
    int id = 0;
    float gate = 0.0f;
    if (lane >= 32) return;
    if (!c.ids) {
        select_experts(&id, &gate, c.logits + (size_t)token * c.n_expert, c.n_expert, c.k, space);
    } else if (lane < c.k) {
        id = c.ids[token * c.k + lane];
        gate = c.gates[token * c.k + lane];
    }
    if (lane < c.k) {
        ids[lane] = id;
        gates[lane] = gate;
    }
}

typedef struct up_args {
    slab gate, up, shared_gate, shared_up;
    choice chosen;
    int n_slot, n_shared, k;             /* slots; tokens with a shared expert in this launch */
    int cols, n_ff;
    bool clamped;
    const uint8_t *x;                    /* [n] int8 forms */
    const float *x_rows;                 /* [n, cols] */
    uint8_t *mid;                        /* [n_slot + n_shared] int8 forms */
    float *mid_rows;                     /* [n_slot + n_shared, n_ff] */
} up_args;

/* 32 activations of a slot by one warp: as they are, and as the block that they make. */
static __device__ __forceinline__ void store_mid(const up_args &a, int slot, int group, float v)
{
    const int lane = threadIdx.x % 32, row = group * UP_ROWS + lane, n_block = a.n_ff / 32;
    if (row < a.n_ff) a.mid_rows[(size_t)slot * a.n_ff + row] = v;
    if (group >= n_block) return;        /* F32 experts may have any width */

    uint32_t largest = __float_as_uint(v) & 0x7FFFFFFFu;
    for (int d = 16; d > 0; d >>= 1) largest = max(largest, __shfl_xor_sync(~0u, largest, d));
    const code_scale scale = code_scale_of(largest);
    const int q = scale.usual ? __float2int_rn(__fmul_rn(v, scale.inv)) : 0;
    int sum = q;
    for (int d = 8; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);

    uint8_t *to = a.mid + (size_t)slot * blocks_pitch(a.n_ff);
    to[(lane < 16 ? 0 : 16 * n_block) + 16 * group + lane % 16] = (uint8_t)q;
    if (lane == 0) ((float *)(to + 32 * n_block))[group] = scale.dx;
    if (lane % 16 == 0) ((int16_t *)(to + 36 * n_block))[2 * group + lane / 16] = (int16_t)sum;
}

template <int TYPE>
static __global__ void __launch_bounds__(UP_THREADS, 3) experts_up(frame f, const up_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float gate_sum[UP_ROWS], up_sum[UP_ROWS], gates[SELECT_MAX_K];
    __shared__ int ids[SELECT_MAX_K];
    __shared__ select_space space;
    const int slot = blockIdx.y, group = blockIdx.x, warp = threadIdx.x / 32;
    const bool is_shared = slot >= a.n_slot;
    const int token = is_shared ? slot - a.n_slot : slot / a.k;
    const slab &gate = is_shared ? a.shared_gate : a.gate, &up = is_shared ? a.shared_up : a.up;
    int expert = 0;

    frame_begin(f);
    if constexpr (is_float_type<TYPE>::value) {
        frame_wait(f);
        if (!is_shared) choose(ids, gates, a.chosen, token, &space);
        float *x = (float *)shared;
        for (int c = threadIdx.x; c < a.cols; c += UP_THREADS)
            x[c] = a.x_rows[(size_t)token * a.cols + c];
        __syncthreads();
        if (!is_shared) expert = ids[slot % a.k];
        for (int r = warp; r < UP_ROWS; r += UP_THREADS / 32) {
            const int row = min(group * UP_ROWS + r, a.n_ff - 1);
            float g[1], u[1];
            float_row<TYPE, 1>(g, row_at(gate, expert, row), x, 0, 1, a.cols);
            float_row<TYPE, 1>(u, row_at(up, expert, row), x, 0, 1, a.cols);
            if (threadIdx.x % 32 == 0) {
                gate_sum[r] = finish_row<TYPE>(gate, expert, row, a.n_ff, g[0]);
                up_sum[r] = finish_row<TYPE>(up, expert, row, a.n_ff, u[0]);
            }
        }
    } else {
        enum { STAGES = up_stages<TYPE>::value };
        typedef piece_of<TYPE, STAGES> P;
        const int n_block = a.cols / 32, bytes = blocks_pitch(a.cols);
        const int pair = threadIdx.x % 32 / 8, r = warp * 4 + pair;
        const int row = min(group * UP_ROWS + r, a.n_ff - 1);
        uint8_t *x = shared + UP_THREADS / 32 * P::warp_bytes;
        unit_runner<TYPE, STAGES, 1> runner;
        const auto rows_of = [&](int) {
            return row_pair{ row_at(gate, expert, row), row_at(up, expert, row) };
        };
        if (is_shared)
            runner.begin(f, shared + warp * P::warp_bytes, gate.row_bytes, 0, 1, 0, 1, 1, rows_of);
        frame_wait(f);
        if (!is_shared) choose(ids, gates, a.chosen, token, &space);
        const uint8_t *from = a.x + (size_t)token * bytes;
        #pragma unroll 2
        for (int i = threadIdx.x; i < bytes / 16; i += UP_THREADS)
            ((uint4 *)x)[i] = ((const uint4 *)from)[i];
        __syncthreads();
        if (!is_shared) {
            expert = ids[slot % a.k];
            runner.begin(f, shared + warp * P::warp_bytes, gate.row_bytes, 0, 1, 0, 1, 1, rows_of);
        }
        runner.run(0, [&](int) { return x; }, 0, 1, n_block, rows_of,
                   [&](int, const float (&g)[1], const float (&u)[1]) {
                       if (threadIdx.x % 8 != 0) return;
                       gate_sum[r] = finish_row<TYPE>(gate, expert, row, a.n_ff, g[0]);
                       up_sum[r] = finish_row<TYPE>(up, expert, row, a.n_ff, u[0]);
                   });
    }
    __syncthreads();
    if (warp == 0)
        store_mid(a, slot, group, contract_activation(gate_sum[threadIdx.x], up_sum[threadIdx.x],
                                                      a.clamped && !is_shared));
    frame_end(f);
}

/* ---- down, sum ------------------------------------------------------------------------------- */

typedef struct down_args {
    slab down, shared_down;
    choice chosen;
    const float *sigma;
    int n_slot, k;
    bool has_shared;                     /* as slot k of every token */
    const float *shared_y;               /* [n, n_embd]: else its vector, or NULL */
    int n_ff, n_embd;
    const uint8_t *mid;
    const float *mid_rows;
    float *x, *y;
} down_args;

/* PAIRED: a warp takes all eight rows of a slot, which pays where rows are short; else four. */
template <int TYPE, bool PAIRED>
static __global__ void __launch_bounds__(DOWN_THREADS, 3) experts_down(frame f, const down_args a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float sums[MAX_SLOTS][DOWN_ROWS], gates[SELECT_MAX_K];
    __shared__ int ids[SELECT_MAX_K];
    __shared__ select_space space;
    const int token = blockIdx.y, first = blockIdx.x * DOWN_ROWS, warp = threadIdx.x / 32;
    const int n_warp = blockDim.x / 32, n = a.k + (a.has_shared ? 1 : 0);

    /* slot i of this token: its place in mid, its matrix */
    const auto mid_of = [&](int i) { return i < a.k ? token * a.k + i : a.n_slot + token; };
    const auto slab_of = [&](int i) -> const slab & { return i < a.k ? a.down : a.shared_down; };
    const auto expert_of = [&](int i) { return i < a.k ? ids[i] : 0; };

    frame_begin(f);
    choose(ids, gates, a.chosen, token, &space);
    __syncthreads();
    if constexpr (is_float_type<TYPE>::value) {
        frame_wait(f);
        float *mid = (float *)shared;
        for (int i = 0; i < n; i++)
            for (int c = threadIdx.x; c < a.n_ff; c += blockDim.x)
                mid[i * a.n_ff + c] = a.mid_rows[(size_t)mid_of(i) * a.n_ff + c];
        __syncthreads();
        for (int u = warp; u < n * DOWN_ROWS; u += n_warp) {
            const int i = u / DOWN_ROWS, row = min(first + u % DOWN_ROWS, a.n_embd - 1);
            const int expert = expert_of(i);
            float sum[1];
            float_row<TYPE, 1>(sum, row_at(slab_of(i), expert, row), mid + i * a.n_ff, 0, 1,
                               a.n_ff);
            if (threadIdx.x % 32 == 0)
                sums[i][u % DOWN_ROWS] = finish_row<TYPE>(slab_of(i), expert, row, a.n_embd,
                                                          sum[0]);
        }
    } else {
        typedef piece_of<TYPE, DOWN_STAGES> P;
        const int n_block = a.n_ff / 32, pitch = blocks_pitch(a.n_ff);
        const int pair = threadIdx.x % 32 / 8;
        uint8_t *mid = shared + n_warp * P::warp_bytes;
        enum { PER_SLOT = PAIRED ? 1 : 2 };              /* units of a slot */
        unit_runner<TYPE, DOWN_STAGES, 1, PAIRED> runner;
        const auto rows_of = [&](int unit) {
            const int i = unit / PER_SLOT, row = first + unit % PER_SLOT * 4 + pair;
            return row_pair{ row_at(slab_of(i), expert_of(i), min(row, a.n_embd - 1)),
                             row_at(slab_of(i), expert_of(i), min(row + 4, a.n_embd - 1)) };
        };
        runner.begin(f, shared + warp * P::warp_bytes, a.down.row_bytes, 0, 1, warp, n_warp,
                     PER_SLOT * n, rows_of);
        frame_wait(f);
        /* the routed slots lie side by side, the shared one behind those of all tokens */
        const int routed = a.k * (pitch / 16), all = n * (pitch / 16);
        const uint4 *from = (const uint4 *)(a.mid + (size_t)mid_of(0) * pitch);
        const uint4 *behind = (const uint4 *)(a.mid + (size_t)mid_of(a.k) * pitch) - routed;
        #pragma unroll 4
        for (int c = threadIdx.x; c < all; c += blockDim.x)
            ((uint4 *)mid)[c] = (c < routed ? from : behind)[c];
        __syncthreads();
        runner.run(warp, [&](int unit) { return mid + unit / PER_SLOT * pitch; }, 0, 1, n_block,
                   rows_of, [&](int unit, const float (&sa)[1], const float (&sb)[1]) {
                       const int l = threadIdx.x % 8;
                       if (l > (PAIRED ? 1 : 0)) return;
                       const int i = unit / PER_SLOT, r = unit % PER_SLOT * 4 + pair + 4 * l;
                       const int row = min(first + r, a.n_embd - 1);
                       sums[i][r] = finish_row<TYPE>(slab_of(i), expert_of(i), row, a.n_embd,
                                                     l == 0 ? sa[0] : sb[0]);
                   });
    }
    __syncthreads();
    const int row = first + threadIdx.x;
    if (threadIdx.x < DOWN_ROWS && row < a.n_embd) {
        float sum = 0.0f;
        for (int i = 0; i < a.k; i++) {
            sum = __fmaf_rn(gates[i], sums[i][threadIdx.x], sum);
            if (a.y) a.y[((size_t)token * a.k + i) * a.n_embd + row] = sums[i][threadIdx.x];
        }
        const size_t at = (size_t)token * a.n_embd + row;
        if (a.has_shared) sum = __fmaf_rn(a.sigma[token], sums[a.k][threadIdx.x], sum);
        else if (a.shared_y) sum = __fmaf_rn(a.sigma[token], a.shared_y[at], sum);
        a.x[at] = __fadd_rn(a.x[at], sum);
    }
    frame_end(f);
}

/* ---- int8 form of the input, where no router made it ----------------------------------------- */

static __global__ void quantise_rows(frame f, const input_view in, uint8_t *blocks, float *rows)
{
    __shared__ float sums[32];
    const int t = blockIdx.x;
    frame_begin(f);
    const input_ahead<2> ahead = input_begin<2>(in);
    frame_wait(f);
    input_finish(in.cols % 32 == 0 ? blocks + (size_t)t * blocks_pitch(in.cols)
                                   : NULL,
                 rows + (size_t)t * in.cols, in, t, sums, ahead);
    frame_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

static slab slab_of_bank(const gpu_bank *b)
{
    return { b->data, b->slab_bytes, (int)b->row_bytes, b->bias, b->scale, 1.0f };
}

static slab slab_of_matrix(const gpu_matrix *m)
{
    return { m->data, 0, (int)m->row_bytes, m->bias, NULL, m->scale };
}

template <int TYPE> static void launch_up(gpu *g, const up_args *a, uint64_t bytes)
{
    size_t smem;
    if constexpr (is_float_type<TYPE>::value) smem = (size_t)a->cols * sizeof(float);
    else smem = UP_THREADS / 32 * piece_of<TYPE, 1>::warp_bytes *
                (size_t)(g->cc < 80 ? 3 : (int)up_stages<TYPE>::value) + gpu_blocks_bytes(a->cols);
    launch(g, "experts up", bytes, experts_up<TYPE>,
           dim3(ceil_div(a->n_ff, UP_ROWS), (unsigned)(a->n_slot + a->n_shared)), UP_THREADS, smem,
           *a);
}

template <int TYPE> static void launch_down(gpu *g, const down_args *a, int n, uint64_t bytes)
{
    const dim3 grid(ceil_div(a->n_embd, DOWN_ROWS), (unsigned)n);
    const size_t slots = (size_t)(a->k + (a->has_shared ? 1 : 0));
    if constexpr (is_float_type<TYPE>::value) {
        launch(g, "experts down", bytes, experts_down<TYPE, false>, grid, DOWN_THREADS,
               slots * (size_t)a->n_ff * sizeof(float), *a);
    } else {
        typedef piece_of<TYPE, DOWN_STAGES> P;
        const size_t mids = slots * gpu_blocks_bytes(a->n_ff), fixed = 2048;     /* is static */
        unsigned threads = DOWN_THREADS;
        while (threads > 32 && threads / 32 * P::warp_bytes + mids + fixed > g->smem_block)
            threads /= 2;
        const size_t smem = threads / 32 * P::warp_bytes + mids;
        if (a->down.row_bytes <= 2 * P::bytes)
            launch(g, "experts down", bytes, experts_down<TYPE, true>, grid, threads, smem, *a);
        else
            launch(g, "experts down", bytes, experts_down<TYPE, false>, grid, threads, smem, *a);
    }
}

#define BY_TYPE(type, call)                                                                        \
    switch (type) {                                                                                \
        GPU_BLOCK_TYPES(call) GPU_FLOAT_TYPES(call)                                                \
    default: gpu_fail(g, cudaErrorInvalidValue, "experts: type without a kernel");                 \
    }

static void up_by_type(gpu *g, int type, const up_args *a, uint64_t bytes)
{
#define CASE(T) case T: launch_up<T>(g, a, bytes); break;
    BY_TYPE(type, CASE)
#undef CASE
}

static void down_by_type(gpu *g, int type, const down_args *a, int n, uint64_t bytes)
{
#define CASE(T) case T: launch_down<T>(g, a, n, bytes); break;
    BY_TYPE(type, CASE)
#undef CASE
}

/* What the two kernels hand on: int8 forms and floats of all slots, then the shared expert's
 * vectors where it has to go its own way. */
typedef struct few_scratch {
    uint8_t *mid;
    float *mid_rows, *shared_y;
    size_t bytes;
} few_scratch;

static few_scratch few_layout(void *base, int n, int k, int n_ff, int n_embd)
{
    const size_t slots = (size_t)n * ((size_t)k + 1), ff = ((size_t)n_ff + 31) / 32 * 32;
    uint8_t *p = (uint8_t *)base;
    few_scratch s;
    s.mid = p;
    p += (slots * gpu_blocks_bytes((int)ff) + 255) / 256 * 256;
    s.mid_rows = (float *)p;
    p += (slots * ff * sizeof(float) + 255) / 256 * 256;
    s.shared_y = (float *)p;
    p += ((size_t)n * n_embd * sizeof(float) + 255) / 256 * 256;
    s.bytes = (size_t)(p - (uint8_t *)base);
    return s;
}

size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd)
{
    const size_t few = few_layout(NULL, n < GPU_FEW ? n : GPU_FEW, k, n_ff, n_embd).bytes;
    const size_t many = n > GPU_FEW ? experts_many_scratch(g, n, k, n_expert, n_ff, n_embd) : 0;
    return few > many ? few : many;
}

/* The shared expert by kernels of its own: other formats, or another width. */
static void shared_apart(gpu *g, gpu_input *in, const gpu_expert_args *a, const few_scratch *s)
{
    const int n_ff = a->shared_gate.rows;
    const uint64_t bytes = a->shared_gate.row_bytes * 2 * (uint64_t)n_ff;
    up_args up = {};

    up.shared_gate = slab_of_matrix(&a->shared_gate);
    up.shared_up = slab_of_matrix(&a->shared_up);
    up.n_shared = in->n;
    up.k = 1;
    up.cols = in->cols;
    up.n_ff = n_ff;
    up.x = (const uint8_t *)in->blocks;
    up.x_rows = in->rows;
    up.mid = s->mid;
    up.mid_rows = s->mid_rows;
    up_by_type(g, a->shared_gate.type, &up, bytes);

    gpu_input mid = {};
    mid.kind = GPU_PLAIN;
    mid.n = in->n;
    mid.cols = n_ff;
    mid.x = s->mid_rows;
    gpu_product down = {};
    down.y = s->shared_y;
    down.y_stride = a->shared_down.rows;
    down.w = a->shared_down;
    gpu_project(g, &mid, &down, 1);
}

void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const int n = in->n, n_embd = a->down.rows, n_ff = a->gate.rows, n_slot = n * a->k;
    const bool shared = a->shared_gate.data != NULL;

    if (n > GPU_FEW) {
        experts_many(g, in, a);
        return;
    }
    const few_scratch s = few_layout(a->scratch, n, a->k,
                                     shared && a->shared_gate.rows > n_ff ? a->shared_gate.rows
                                                                          : n_ff, n_embd);
    if (!in->has_blocks) {
        launch(g, "quantise", 0, quantise_rows, (unsigned)n, 256, 0, view_of(in),
               (uint8_t *)in->blocks, in->rows);
        in->has_blocks = in->has_rows = true;
    }
    const bool beside = shared && a->shared_gate.rows == n_ff &&
                        a->shared_gate.type == a->gate.type && a->shared_up.type == a->up.type &&
                        a->shared_down.type == a->down.type;
    if (shared && !beside) shared_apart(g, in, a, &s);

    up_args up = {};
    up.gate = slab_of_bank(&a->gate);
    up.up = slab_of_bank(&a->up);
    if (beside) {
        up.shared_gate = slab_of_matrix(&a->shared_gate);
        up.shared_up = slab_of_matrix(&a->shared_up);
        up.n_shared = n;
    }
    up.chosen = { a->ids, a->gates, a->logits, a->n_expert, a->k };
    up.n_slot = n_slot;
    up.k = a->k;
    up.cols = a->gate.cols;
    up.n_ff = n_ff;
    up.clamped = a->clamped;
    up.x = (const uint8_t *)in->blocks;
    up.x_rows = in->rows;
    up.mid = s.mid;
    up.mid_rows = s.mid_rows;
    up_by_type(g, a->gate.type, &up,
               (uint64_t)(n_slot + up.n_shared) * (a->gate.row_bytes + a->up.row_bytes) * n_ff);

    down_args down = {};
    down.down = slab_of_bank(&a->down);
    if (beside) down.shared_down = slab_of_matrix(&a->shared_down);
    down.chosen = up.chosen;
    down.sigma = a->sigma;
    down.n_slot = n_slot;
    down.k = a->k;
    down.has_shared = beside;
    down.shared_y = shared && !beside ? s.shared_y : NULL;
    down.n_ff = n_ff;
    down.n_embd = n_embd;
    down.mid = s.mid;
    down.mid_rows = s.mid_rows;
    down.x = a->x;
    down.y = a->y;
    down_by_type(g, a->down.type, &down, n,
                 (uint64_t)(n_slot + up.n_shared) * a->down.row_bytes * n_embd);
}
