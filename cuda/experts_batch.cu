/* experts_batch.cu - gpu_experts for more than GPU_FEW tokens: sorts slots by expert, then computes
 * products.
 *
 * Slot t * k + r is choice r of token t. The host does not know the choices: the device makes the
 * lists, and grids are sized for the worst case. An expert's slots are in ascending order, so the
 * same input makes the same lists. The products are gemm.cuh's; with the contract
 * (docs/numerics.md) they are contract_many.cuh's, with int8 inputs.
 *
 *   slots [n * k] --sorted--> positions: mid = activation(gate x, up x) by position
 *   y [n * k, n_embd] by slot = down mid
 *   x [n, n_embd] += gates * y in rank order, + sigma * the shared expert's
 *
 * A layer may be computed in ranges of experts, one call for each. The first call makes the lists
 * and computes the shared expert, each call writes its slots' vectors to y, and the last call adds
 * the sum. Neither tiles nor bits depend on the ranges or on the order of the experts. If the host
 * computes the last experts, gpu_experts_join adds the sum and reads each of their vectors once
 * from page-locked RAM. */
#include "cuda/contract_many.cuh"

enum { LIST_THREADS = 512, LIST_WARPS = LIST_THREADS / 32, TILE_THREADS = LISTS_MOST_EXPERTS };
enum { JOIN_THREADS = 256 };

/* ---- lists ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ int warp_count(int v)
{
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
    return v;
}

/* A block lists the slots of one expert, in the order of ranks (NULL: of ids), and counts the slots
 * of earlier experts for its first position. Each warp counts a range of slots first, and so knows
 * the position of its own. */
static __global__ void __launch_bounds__(LIST_THREADS) list_slots(tracer f, int32_t *slots,
                                                                  int32_t *first,
                                                                  const int32_t *ids,
                                                                  const int32_t *ranks, int n)
{
    __shared__ int n_lower[LIST_WARPS], n_own[LIST_WARPS];
    const int e = (int)blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int run = (n + LIST_THREADS - 1) / LIST_THREADS * 32;
    const int from = min(warp * run, n), to = min(from + run, n);
    int lower = 0, own = 0;

    pdl_begin(f);
    pdl_wait(f);
    const auto rank_of = [&](int i) { return ranks ? ranks[ids[i]] : ids[i]; };
    for (int i = from + lane; i < to; i += 32) {
        const int rank = rank_of(i);
        lower += rank < e;
        own += rank == e;
    }
    lower = warp_count(lower);
    own = warp_count(own);
    if (lane == 0) {
        n_lower[warp] = lower;
        n_own[warp] = own;
    }
    __syncthreads();
    int at = 0, before = 0;
    for (int i = 0; i < LIST_WARPS; i++) {
        at += n_lower[i];
        if (i < warp) before += n_own[i];
    }
    if (threadIdx.x == 0) first[e] = at;
    if (threadIdx.x == 0 && e + 1 == (int)gridDim.x) first[e + 1] = n;
    at += before;
    for (int start = from; start < to; start += 32) {
        const int i = start + lane;
        const bool of_expert = i < to && rank_of(i) == e;
        const unsigned all = __ballot_sync(0xFFFFFFFFu, of_expert);
        if (of_expert) slots[at + __popc(all & ((1u << lane) - 1))] = i;
        at += __popc(all);
    }
    pdl_end(f);
}

/* One block with a thread for each rank: cuts the expert's slots into tiles and counts the tiles of
 * earlier ranks. counts, in page-locked RAM, gets the number of slots of each expert. */
static __global__ void __launch_bounds__(TILE_THREADS) list_tiles(tracer f, token_tile *tiles,
                                                                  int32_t *first_tile,
                                                                  const int32_t *first,
                                                                  const int32_t *order,
                                                                  int32_t *counts, int n_expert,
                                                                  int tile_tokens)
{
    __shared__ int of_warp[TILE_THREADS / 32];
    const int e = (int)threadIdx.x, warp = e / 32, lane = e % 32;
    int begin = 0, end = 0;

    pdl_begin(f);
    pdl_wait(f);
    if (e < n_expert) {
        begin = first[e];
        end = first[e + 1];
    }
    const int own = (end - begin + tile_tokens - 1) / tile_tokens;
    int upto = own;                      /* tiles of this expert and of earlier ones in the warp */
    for (int d = 1; d < 32; d <<= 1) {
        const int v = __shfl_up_sync(0xFFFFFFFFu, upto, (unsigned)d);
        if (lane >= d) upto += v;
    }
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    int before = upto - own, all = 0;
    for (int i = 0; i < TILE_THREADS / 32; i++) {
        if (i < warp) before += of_warp[i];
        all += of_warp[i];
    }
    if (e < n_expert) first_tile[e] = before;
    if (e == 0) first_tile[n_expert] = all;
    const int expert = order && e < n_expert ? order[e] : e;
    for (int i = 0; i < own; i++) {
        const int at = begin + i * tile_tokens;
        tiles[before + i] = { expert, at, min(tile_tokens, end - at), 0 };
    }
    if (counts && e < n_expert) counts[expert] = end - begin;
    pdl_end(f);
}

void slot_lists_make(gpu *g, const slot_lists *l, const int32_t *ids, const int32_t *rank,
                     const int32_t *order, int32_t *counts, int n_slot, int n_expert,
                     int tile_tokens)
{
    launch(g, "experts list", 0, list_slots, (unsigned)n_expert, LIST_THREADS, 0, l->slots,
           l->first, ids, rank, n_slot);
    launch(g, "experts list", 0, list_tiles, 1u, TILE_THREADS, 0, l->tiles, l->first_tile,
           (const int32_t *)l->first, order, counts, n_expert, tile_tokens);
}

/* ---- between and after the products ---------------------------------------------------------- */

/* For gate and up of different types, which no kernel multiplies together. p.mid_rows may be up. */
static __global__ void __launch_bounds__(JOIN_THREADS) activate_all(tracer f, const gemm p,
                                                                    const float *gate,
                                                                    const float *up)
{
    const size_t n = (size_t)p.n * p.rows, stride = (size_t)gridDim.x * JOIN_THREADS;

    pdl_begin(f);
    pdl_wait(f);
    for (size_t i = (size_t)blockIdx.x * JOIN_THREADS + threadIdx.x; i < n; i += stride)
        store_mid(p, i, activate(gate[i], up[i], p.act));
    pdl_end(f);
}

typedef struct join_args {
    float *x;                            /* [n, n_embd] */
    const float *y;                      /* [n, k, n_embd] */
    const float *gates;                  /* [n, k] */
    const float *sums;                   /* [n, n_embd]; y and gates are NULL */
    const float *shared, *sigma;         /* [n, n_embd], or NULL; [n] */
    int k, n_embd;
    const float *cold;                   /* [., n_embd] in RAM */
    const int32_t *row;                  /* [n, k]: the slot's row of cold, or -1: in y */
} join_args;

/* Where the vectors of the slots are. */
enum join_kind {
    JOIN_SLOTS,                          /* in y */
    JOIN_SUMS,                           /* sums has their sum for each token */
    JOIN_COLD                            /* in y or in cold */
};

/* Loads W values, past caches, because the host or the previous kernel has just written them. */
template <int W> static __device__ __forceinline__ void load_fresh(float (&v)[W], const float *p)
{
    if constexpr (W == 4) {
        const float4 q = __ldcv((const float4 *)p);
        v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w;
    } else {
        v[0] = __ldcv(p);
    }
}

/* blockIdx.x is a token; gridDim.y blocks divide its columns. */
template <int W, join_kind KIND>
static __global__ void __launch_bounds__(JOIN_THREADS) join_experts(tracer f, const join_args a)
{
    constexpr bool SUMS = KIND == JOIN_SUMS;
    __shared__ const float *from[GPU_MOST_USED];
    const size_t t = blockIdx.x;

    pdl_begin(f);
    pdl_wait(f);
    if (KIND == JOIN_COLD) {
        if ((int)threadIdx.x < a.k) {
            const size_t slot = t * a.k + threadIdx.x;
            const int row = __ldcv(a.row + slot);
            from[threadIdx.x] = row < 0 ? a.y + slot * a.n_embd : a.cold + (size_t)row * a.n_embd;
        }
        __syncthreads();
    }
    for (int c = (int)(blockIdx.y * JOIN_THREADS + threadIdx.x) * W; c < a.n_embd;
         c += (int)gridDim.y * JOIN_THREADS * W) {
        float *x = a.x + t * a.n_embd + c;
        float sum[W], v[W];
        #pragma unroll
        for (int i = 0; i < W; i++) sum[i] = 0.0f;
        if (SUMS) load_values(sum, a.sums + t * a.n_embd + c);
        #pragma unroll 4
        for (int r = 0; r < (SUMS ? 0 : a.k); r++) {
            const float gate = a.gates[t * a.k + r];
            if (KIND == JOIN_COLD) load_fresh(v, from[r] + c);
            else load_values(v, a.y + (t * a.k + r) * a.n_embd + c);
            #pragma unroll
            for (int i = 0; i < W; i++) sum[i] = fmaf(gate, v[i], sum[i]);
        }
        if (a.shared) {
            const float sigma = a.sigma[t];
            load_values(v, a.shared + t * a.n_embd + c);
            #pragma unroll
            for (int i = 0; i < W; i++) sum[i] = fmaf(sigma, v[i], sum[i]);
        }
        load_values(v, x);
        #pragma unroll
        for (int i = 0; i < W; i++) v[i] += sum[i];
        store_values(x, v);
    }
    pdl_end(f);
}

/* ---- scratch --------------------------------------------------------------------------------- */

typedef struct scratch {
    slot_lists lists;
    float *mid_rows;                     /* [n * k, n_ff]: input of F32 downs; or results of up
                                          * before the activation; or lows of mid_halves */
    void *mid_halves;                    /* [n * k, n_ff]: input of other downs; or int8 forms */
    float *y;                            /* [n * k, n_embd] by slot; before that, results of gate */
    float *y_shared;                     /* [n, n_embd] */
    void *x_blocks;                      /* [n] int8 forms of the input */
    size_t bytes;
} scratch;

/* n_ff: width of the widest expert, the shared one included. */
static scratch scratch_at(void *base, int n, int k, int n_expert, int n_ff, int n_embd)
{
    const size_t n_slot = (size_t)n * k, widest = (size_t)(n_ff > n_embd ? n_ff : n_embd);
    uint8_t *p = (uint8_t *)base;
    scratch s = {};

    s.lists = slot_lists_take(p, &s.bytes, n * k, n_expert, CONTRACT_FEW);
    s.mid_rows = (float *)scratch_take(p, &s.bytes, n_slot * n_ff * sizeof *s.mid_rows);
    s.mid_halves = scratch_take(p, &s.bytes, n_slot * n_ff * sizeof(uint16_t));
    s.y = (float *)scratch_take(p, &s.bytes, n_slot * widest * sizeof *s.y);
    s.y_shared = (float *)scratch_take(p, &s.bytes, (size_t)n * n_embd * sizeof *s.y_shared);
    s.x_blocks = scratch_take(p, &s.bytes, (size_t)n * gpu_blocks_bytes(n_embd));
    return s;
}

size_t experts_many_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd)
{
    (void)g;
    return scratch_at(NULL, n, k, n_expert, n_ff, n_embd).bytes;
}

/* ---- the operation --------------------------------------------------------------------------- */

typedef struct expert_range {
    int first, count;
} expert_range;

/* Whether a product follows the contract. */
static bool by_contract(const gpu_expert_args *a, int type)
{
    return a->batch.contract && !is_float_weight(type);
}

static void multiply(gpu *g, const gpu_expert_args *a, const gemm *p)
{
    if (by_contract(a, p->type)) contract_run(g, p);
    else gemm_run(g, p);
}

static const void *input_of(const gpu_input *in, const gpu_expert_args *a, int type,
                            const scratch *s)
{
    if (by_contract(a, type)) return s->x_blocks;
    return gemm_is_float(type) ? (const void *)in->rows : in->halves;
}

static const void *lows_of(const gpu_input *in, int type)
{
    return is_half_weight(type) ? in->lows : NULL;
}

/* Computes mid. base: common arguments of gate and up: tokens, sizes, activation, form of mid. */
static void gate_and_up(gpu *g, const gpu_input *in, const gpu_expert_args *a, const gemm *base,
                        const gemm_matrix *gate, int gate_type, const gemm_matrix *up, int up_type,
                        const scratch *s)
{
    gemm p = *base;
    p.w = *gate;
    p.type = gate_type;
    p.x = input_of(in, a, gate_type, s);
    p.x_low = lows_of(in, gate_type);
    if (gate_type == up_type) {
        p.up = *up;
        multiply(g, a, &p);
        return;
    }
    p.y = s->y;
    p.y_stride = p.rows;
    multiply(g, a, &p);
    p.w = *up;
    p.type = up_type;
    p.x = input_of(in, a, up_type, s);
    p.x_low = lows_of(in, up_type);
    p.y = s->mid_rows;
    multiply(g, a, &p);
    if (a->batch.contract)
        contract_activate(g, base, s->y, s->mid_rows);
    else
        launch(g, "activation", 0, activate_all, (unsigned)g->n_sm * 8, JOIN_THREADS, 0, *base,
               (const float *)s->y, (const float *)s->mid_rows);
}

/* Chooses the form of mid. If all three types are 16-bit, and gate and up have one type, mid_rows
 * is free and gets the lows. */
static void set_mid(gemm *p, const scratch *s, const gpu_input *in, const gpu_expert_args *a,
                    int gate_type, int up_type, int down_type)
{
    if (gemm_is_float(down_type) || by_contract(a, down_type)) {
        p->mid_rows = s->mid_rows;
        return;
    }
    p->mid_halves = s->mid_halves;
    if (in->lows && is_half_weight(gate_type) && gate_type == up_type && is_half_weight(down_type))
        p->mid_lows = s->mid_rows;
}

static const void *mid_of(const scratch *s, int down_type)
{
    return gemm_is_float(down_type) ? (const void *)s->mid_rows : s->mid_halves;
}

static void shared_expert(gpu *g, const gpu_input *in, const gpu_expert_args *a, const scratch *s)
{
    const gemm_matrix gate = gemm_matrix_of(&a->shared_gate), up = gemm_matrix_of(&a->shared_up);
    gemm p = {}, down = {};

    p.name = down.name = "shared expert";
    p.rows = a->shared_gate.rows;
    p.cols = a->shared_gate.cols;
    p.n = in->n;
    p.act = a->act;
    set_mid(&p, s, in, a, a->shared_gate.type, a->shared_up.type, a->shared_down.type);
    gate_and_up(g, in, a, &p, &gate, a->shared_gate.type, &up, a->shared_up.type, s);
    if (by_contract(a, a->shared_down.type))
        contract_quantise(g, s->mid_halves, s->mid_rows, in->n, p.rows, NULL, NULL);

    down.type = a->shared_down.type;
    down.rows = a->shared_down.rows;
    down.cols = a->shared_down.cols;
    down.w = gemm_matrix_of(&a->shared_down);
    down.x = mid_of(s, down.type);
    down.x_low = p.mid_lows;
    down.n = in->n;
    down.y = s->y_shared;
    down.y_stride = down.rows;
    multiply(g, a, &down);
}

/* Tokens of a tile, the same for all products of a layer, which share the lists. Kernels of float
 * weights need larger tiles than the contract's kernels. */
static int tile_tokens_of(const gpu *g, const gpu_expert_args *a, int n_slot)
{
    const bool floats = is_float_weight(a->gate.type) || is_float_weight(a->up.type) ||
                        is_float_weight(a->down.type);
    if (!a->batch.contract) return gemm_tile_tokens(g, n_slot, a->n_expert);
    return max_int(contract_tile_tokens(n_slot, a->n_expert), floats ? GEMM_LEAST_TILE : 0);
}

/* Computes the vectors of all slots in the range of experts, y [n, k, n_embd]. */
static void routed_experts(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                           expert_range range, float *y, const scratch *s)
{
    const int n_slot = in->n * a->k;
    const int tokens = tile_tokens_of(g, a, n_slot);
    const int32_t *from = s->lists.first + range.first;
    const gpu_expert_batch *batch = &a->batch;
    const uint64_t *at = batch->addresses;
    const gemm_matrix gate = gemm_bank_of(&a->gate, at, range.first);
    const gemm_matrix up = gemm_bank_of(&a->up, at ? at + 1 : NULL, range.first);
    gemm p = {}, down;

    if (range.first == 0)
        slot_lists_make(g, &s->lists, a->ids, at ? batch->rank : NULL, at ? batch->order : NULL,
                        batch->counts, n_slot, a->n_expert, tokens);

    p.name = "experts up";
    p.n = n_slot;
    p.tiles = s->lists.tiles;
    p.tile_from = s->lists.first_tile + range.first;
    p.tile_to = p.tile_from + range.count;
    p.tile_tokens = tokens;
    /* the number of slots in the range is unknown here; blocks without a tile return at once */
    p.max_tile = most_tiles(n_slot, range.count, tokens);
    p.slots = s->lists.slots;
    down = p;

    p.rows = a->gate.rows;
    p.cols = a->gate.cols;
    p.gather = a->k;
    p.act = a->act;
    set_mid(&p, s, in, a, a->gate.type, a->up.type, a->down.type);
    gate_and_up(g, in, a, &p, &gate, a->gate.type, &up, a->up.type, s);
    if (by_contract(a, a->down.type))
        contract_quantise(g, s->mid_halves, s->mid_rows, n_slot, p.rows, from, from + range.count);

    down.name = "experts down";
    down.type = a->down.type;
    down.rows = a->down.rows;
    down.cols = a->down.cols;
    down.w = gemm_bank_of(&a->down, at ? at + 2 : NULL, range.first);
    down.x = mid_of(s, down.type);
    down.x_low = p.mid_lows;
    down.scatter = true;
    down.y = y;
    down.y_stride = down.rows;
    multiply(g, a, &down);
}

/* Makes the input forms that products read; the int8 form only in the first call of a layer. */
static void prepare_input(gpu *g, gpu_input *in, const gpu_expert_args *a, bool shared,
                          const scratch *s)
{
    bool rows = false, halves = false, blocks = false;
    const int types[4] = { a->gate.type, a->up.type, a->shared_gate.type, a->shared_up.type };
    for (int i = a->batch.sums ? 2 : 0; i < (shared ? 4 : 2); i++) {
        if (by_contract(a, types[i])) blocks = true;
        else if (gemm_is_float(types[i])) rows = true;
        else halves = true;
    }
    input_prepare(g, in, rows || blocks, halves);
    if (blocks && a->batch.first == 0)
        contract_quantise(g, s->x_blocks, in->rows, in->n, in->cols, NULL, NULL);
}

static void join(gpu *g, int n, const join_args *a)
{
    const int read = a->sums ? 2 : a->k + 1;
    const uint64_t bytes = (uint64_t)n * (uint64_t)read * (uint64_t)a->n_embd * sizeof(float);
    const uintptr_t at = (uintptr_t)a->x | (uintptr_t)a->y | (uintptr_t)a->sums |
                         (uintptr_t)a->cold;
    const bool four = a->n_embd % 4 == 0 && at % 16 == 0;
    launch(g, "experts join", bytes,
           a->sums ? (four ? join_experts<4, JOIN_SUMS> : join_experts<1, JOIN_SUMS>)
           : a->row ? (four ? join_experts<4, JOIN_COLD> : join_experts<1, JOIN_COLD>)
                    : (four ? join_experts<4, JOIN_SLOTS> : join_experts<1, JOIN_SLOTS>),
           dim3((unsigned)n, n > g->n_sm ? 1 : ceil_div((uint64_t)a->n_embd, 4 * JOIN_THREADS)),
           JOIN_THREADS, 0, *a);
}

/* Adds batch.sums, the finished routed experts, and the shared expert to x. */
static void join_sums(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const bool shared = a->shared_gate.data != NULL;
    const scratch s = scratch_at(a->scratch, in->n, 1, 0, shared ? a->shared_gate.rows : 0,
                                 in->cols);
    join_args sum = {};

    if (shared) {
        prepare_input(g, in, a, true, &s);
        shared_expert(g, in, a, &s);
        sum.shared = s.y_shared;
        sum.sigma = a->sigma;
    }
    sum.x = a->x;
    sum.sums = a->batch.sums;
    sum.n_embd = in->cols;
    join(g, in->n, &sum);
}

static scratch scratch_of(const gpu_input *in, const gpu_expert_args *a)
{
    const bool shared = a->shared_gate.data != NULL;
    const int n_ff = shared ? max_int(a->gate.rows, a->shared_gate.rows) : a->gate.rows;
    return scratch_at(a->scratch, in->n, a->k, a->n_expert, n_ff, a->down.rows);
}

/* Arguments of the sum of all slots' vectors. */
static join_args sum_of(const gpu_expert_args *a, const float *gates, const float *y,
                        const float *shared)
{
    join_args sum = {};
    sum.x = a->x;
    sum.y = y;
    sum.gates = gates;
    sum.shared = shared;
    sum.sigma = a->sigma;
    sum.k = a->k;
    sum.n_embd = a->down.rows;
    return sum;
}

static join_args sum_of_many(const gpu_expert_args *a, const scratch *s)
{
    return sum_of(a, a->gates, a->y ? a->y : s->y, a->shared_gate.data ? s->y_shared : NULL);
}

void experts_sum(gpu *g, const gpu_expert_args *a, int n, const float *gates, const float *y,
                 const float *shared)
{
    const join_args sum = sum_of(a, gates, y, shared);
    join(g, n, &sum);
}

void experts_many(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const bool shared = a->shared_gate.data != NULL;
    const expert_range range = { a->batch.first, a->batch.count ? a->batch.count : a->n_expert };

    if (a->batch.sums) {
        join_sums(g, in, a);
        return;
    }
    if (a->n_expert > TILE_THREADS) {
        gpu_fail(g, cudaErrorInvalidValue, "experts: too many");
        return;
    }
    if (range.first < 0 || range.count < 1 || range.count > a->n_expert - range.first) {
        gpu_fail(g, cudaErrorInvalidValue, "experts: no such range");
        return;
    }
    const scratch s = scratch_of(in, a);
    float *y = a->y ? a->y : s.y;
    /* with gate and up of different types, gate's results in y would overwrite earlier ranges */
    if (a->gate.type != a->up.type && range.count < a->n_expert && y == s.y) {
        gpu_fail(g, cudaErrorNotSupported, "experts: a range of two types");
        return;
    }
    prepare_input(g, in, a, shared, &s);
    /* the shared expert comes first, because it borrows scratch of the routed ones */
    if (shared && range.first == 0) shared_expert(g, in, a, &s);
    routed_experts(g, in, a, range, y, &s);
    if (range.first + range.count < a->n_expert) return;

    const join_args sum = sum_of_many(a, &s);
    join(g, in->n, &sum);
}

void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row)
{
    if (in->n <= GPU_FEW || a->k > GPU_MOST_USED || a->batch.sums || !cold || !row)
        gpu_fail(g, cudaErrorInvalidValue, "experts: arguments of a join");
    if (g->failure != cudaSuccess) return;
    const scratch s = scratch_of(in, a);
    join_args sum = sum_of_many(a, &s);
    sum.cold = cold;
    sum.row = row;
    join(g, in->n, &sum);
}
