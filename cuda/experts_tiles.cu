/* experts_tiles.cu - gpu_experts for several tokens of a pass in a resident layer, by the arithmetic
 * contract: an expert that several tokens chose is read once. The bits are those of experts.cuh.
 *
 *   choose     the experts of each token; slots sorted by expert, in tiles of up to eight
 *   up, down   contract_few.cuh, tile after tile; the shared expert's tiles come first if its
 *              formats are those of the others, else kernels of its own compute it
 *   sum        each token's vectors in rank order, added to the residual stream */
#include "cuda/contract_many.cuh"
#include "cuda/experts.cuh"

enum { CHOOSE_WARPS = GPU_RECORDED, CHOOSE_THREADS = 32 * CHOOSE_WARPS };
enum { CHOOSE_SLOTS = GPU_RECORDED * GPU_MOST_USED };
static_assert((int)CHOOSE_THREADS >= (int)SELECT_MAX_EXPERT, "a thread for each expert");

/* ---- scratch --------------------------------------------------------------------------------- */

typedef struct tiles_scratch {
    int32_t *ids, *slots, *tile_range;   /* [n, k]; [n, k + 1]; first tile, end of the tiles */
    float *gates;                        /* [n, k] */
    token_tile *tiles;
    uint8_t *mid;                        /* [n, k + 1] int8 forms by position */
    float *y;                            /* [n, k] vectors by slot, then [n] of the shared expert */
    few_scratch apart;                   /* of a shared expert with kernels of its own */
    size_t bytes;
} tiles_scratch;

static tiles_scratch tiles_scratch_at(void *base, int n, int k, int n_ff, int n_embd)
{
    const size_t slots = (size_t)n * (size_t)k, all = slots + (size_t)n;
    uint8_t *p = (uint8_t *)base;
    tiles_scratch s = {};
    s.ids = (int32_t *)scratch_take(p, &s.bytes, slots * sizeof *s.ids);
    s.gates = (float *)scratch_take(p, &s.bytes, slots * sizeof *s.gates);
    s.slots = (int32_t *)scratch_take(p, &s.bytes, all * sizeof *s.slots);
    s.tile_range = (int32_t *)scratch_take(p, &s.bytes, 2 * sizeof *s.tile_range);
    s.tiles = (token_tile *)scratch_take(p, &s.bytes, all * sizeof *s.tiles);
    s.mid = scratch_take(p, &s.bytes, all * gpu_blocks_bytes(n_ff));
    s.y = (float *)scratch_take(p, &s.bytes, all * (size_t)n_embd * sizeof *s.y);
    s.apart = few_layout(p + s.bytes, n < GPU_FEW ? n : GPU_FEW, 1, n_ff, n_embd);
    s.bytes += s.apart.bytes;
    return s;
}

size_t experts_tiles_scratch(int n, int k, int n_ff, int n_embd)
{
    return tiles_scratch_at(NULL, n < GPU_RECORDED ? n : GPU_RECORDED, k, n_ff, n_embd).bytes;
}

/* ---- the choice ------------------------------------------------------------------------------ */

typedef struct choose_args {
    choice c;
    int n;
    bool has_shared;                     /* tiles of SHARED_EXPERT come first */
    int32_t *ids, *slots, *tile_range;
    float *gates;
    token_tile *tiles;
} choose_args;

/* Sum of v over the threads before this one, and over all: *all. shared: [CHOOSE_WARPS]. */
static __device__ __forceinline__ int sum_before(int v, int *all, int *shared)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int upto = v;
    #pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const int below = __shfl_up_sync(~0u, upto, (unsigned)d);
        if (lane >= d) upto += below;
    }
    __syncthreads();                     /* an earlier call's sums are read */
    if (lane == 31) shared[warp] = upto;
    __syncthreads();
    int before = upto - v, sum = 0;
    for (int i = 0; i < CHOOSE_WARPS; i++) {
        if (i < warp) before += shared[i];
        sum += shared[i];
    }
    *all = sum;
    return before;
}

/* One block: a warp chooses a token's experts, then a thread has an expert. The order of an expert's
 * slots differs from run to run; no result depends on it. */
static __global__ void __launch_bounds__(CHOOSE_THREADS) choose_tiles(tracer f, const choose_args a)
{
    __shared__ select_space space[CHOOSE_WARPS];
    __shared__ int expert_of[CHOOSE_SLOTS], rank_of[CHOOSE_SLOTS];
    __shared__ int count[SELECT_MAX_EXPERT], first[SELECT_MAX_EXPERT];
    __shared__ int sums[CHOOSE_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = a.c.k;
    const int n_slot = a.n * k, n_shared = a.has_shared ? (a.n + GPU_FEW - 1) / GPU_FEW : 0;
    int n_position, n_tile;

    pdl_begin(f);
    count[threadIdx.x] = 0;
    __syncthreads();
    pdl_wait(f);
    if (warp < a.n) {
        const int slot = warp * k + lane;
        int id = 0;
        float gate = 0.0f;
        if (a.c.ids) {
            if (lane < k) {
                id = a.c.ids[slot];
                gate = a.c.gates[slot];
            }
        } else {
            const float *logits = a.c.logits + (size_t)warp * a.c.n_expert;
            select_by_rule(&id, &gate, logits, a.c.n_expert, k, &space[warp], a.c.rule);
        }
        if (lane < k) {
            a.ids[slot] = expert_of[slot] = id;
            a.gates[slot] = gate;
            rank_of[slot] = atomicAdd(&count[id], 1);
        }
    }
    __syncthreads();
    const int own = count[threadIdx.x], n_own_tile = (own + GPU_FEW - 1) / GPU_FEW;
    const int begin = sum_before(own, &n_position, sums);
    const int tile = n_shared + sum_before(n_own_tile, &n_tile, sums);
    first[threadIdx.x] = begin;
    for (int i = 0; i < n_own_tile; i++)
        a.tiles[tile + i] = { (int)threadIdx.x, begin + i * GPU_FEW,
                              min((int)GPU_FEW, own - i * GPU_FEW), 0 };
    if ((int)threadIdx.x < n_shared) {
        const int t = (int)threadIdx.x * GPU_FEW;
        a.tiles[threadIdx.x] = { SHARED_EXPERT, n_slot + t, min((int)GPU_FEW, a.n - t), 0 };
    }
    if (threadIdx.x == 0) {
        a.tile_range[0] = 0;
        a.tile_range[1] = n_shared + n_tile;
    }
    __syncthreads();
    if ((int)threadIdx.x < n_slot) a.slots[first[expert_of[threadIdx.x]] + rank_of[threadIdx.x]] =
        (int)threadIdx.x;
    pdl_end(f);
}

/* ---- the operation --------------------------------------------------------------------------- */

bool experts_tiles_fit(const gpu_expert_args *a)
{
    return a->gate.type == a->up.type && !is_float_weight(a->gate.type) &&
           !is_float_weight(a->down.type) && a->n_expert <= SELECT_MAX_EXPERT &&
           a->k <= SELECT_MAX_K;
}

/* A shared expert of other formats or another width, GPU_FEW tokens at a time. */
static void shared_by_few(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                          const tiles_scratch *s, float *y)
{
    for (int first = 0; first < in->n; first += GPU_FEW) {
        const int left = in->n - first;
        gpu_input part = input_part(in, first, left < GPU_FEW ? left : GPU_FEW);
        few_scratch to = s->apart;
        part.blocks = (uint8_t *)in->blocks + (size_t)first * gpu_blocks_bytes(in->cols);
        part.has_blocks = part.has_rows = true;
        to.shared_y = y + (size_t)first * a->down.rows;
        shared_apart(g, &part, a, &to);
    }
}

void experts_tiles(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const int n = in->n, n_slot = n * a->k, n_embd = a->down.rows, n_ff = a->gate.rows;
    const bool shared = a->shared_gate.data != NULL, is_slot = few_shared_is_slot(a);
    const int widest = shared && a->shared_gate.rows > n_ff ? a->shared_gate.rows : n_ff;
    const tiles_scratch s = tiles_scratch_at(a->scratch, n, a->k, widest, n_embd);
    float *y = a->y ? a->y : s.y, *shared_y = s.y + (size_t)n_slot * n_embd;
    gemm p = {}, down;

    if (!few_choice_fits(g, a)) return;
    few_input(g, in);
    const choose_args c = {
        { a->ids, a->gates, a->logits, a->keys, a->n_expert, a->k, a->rule }, n, is_slot,
        s.ids, s.slots, s.tile_range, s.gates, s.tiles,
    };
    launch(g, "experts list", 0, choose_tiles, 1u, CHOOSE_THREADS, 0, c);
    if (shared && !is_slot) shared_by_few(g, in, a, &s, shared_y);

    p.n = p.n_routed = n_slot;
    p.tiles = s.tiles;
    p.tile_from = s.tile_range;
    p.tile_to = s.tile_range + 1;
    p.tile_tokens = GPU_FEW;
    p.max_tile = n_slot + (is_slot ? (n + GPU_FEW - 1) / GPU_FEW : 0);
    p.slots = s.slots;
    down = p;

    p.name = "experts up";
    p.type = a->gate.type;
    p.rows = n_ff;
    p.cols = a->gate.cols;
    p.w = gemm_bank_of(&a->gate, NULL, 0);
    p.up = gemm_bank_of(&a->up, NULL, 0);
    p.x = in->blocks;
    p.gather = a->k;
    p.mid_blocks = s.mid;
    p.act = a->act;

    down.name = "experts down";
    down.type = a->down.type;
    down.rows = n_embd;
    down.cols = n_ff;
    down.w = gemm_bank_of(&a->down, NULL, 0);
    down.x = s.mid;
    down.scatter = true;
    down.y = y;
    down.y_stride = n_embd;
    if (is_slot) {
        p.w_shared = gemm_matrix_of(&a->shared_gate);
        p.up_shared = gemm_matrix_of(&a->shared_up);
        down.w_shared = gemm_matrix_of(&a->shared_down);
        down.y_shared = shared_y;
    }
    contract_run(g, &p);
    contract_run(g, &down);
    experts_sum(g, a, n, s.gates, y, shared ? shared_y : NULL);
}
