/* experts.cuh - the kernels of the chosen experts of up to GPU_FEW tokens, by the arithmetic
 * contract: the bits are those of engine/host/experts_cpu.c.
 *
 * There are two kernels. A block of experts_up computes 32 rows of gate and up of one slot, applies
 * the activation and quantises the 32 values, which are one block of down's input. A block of
 * experts_down computes eight rows of down (more if slots are few) of all slots of a token, sums
 * them in rank order and adds the sum to the residual stream. The shared expert is one more slot if
 * its formats allow it.
 *
 * The type of the arguments selects one of two variants. In a resident layer (experts.cu) all
 * experts are in one bank. Unless the caller passes ids, each block of both kernels chooses the
 * experts from the router's keys or logits, and experts_down computes the weights. The router's
 * output is two kernels old when experts_down starts, so it chooses and requests its weights before
 * pdl_wait. In a split layer (experts_with_host.cu) the kernel ask has chosen and stored the
 * addresses of each slot's slabs; experts_down only sums the vectors that the host computed. */
#ifndef CUDA_EXPERTS_CUH
#define CUDA_EXPERTS_CUH

#include "cuda/batch.cuh"
#include "cuda/contract_activation.cuh"
#include "cuda/dot.cuh"
#include "cuda/select.cuh"

enum { MAX_SLOTS = GPU_MOST_USED + 1 };

/* STAGES of the unit_runner (dot.cuh) of experts_up. */
template <int TYPE, bool FEWER> struct up_stages {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    enum { value = up_stages_of(TYPE, FEWER, 75) };
#else
    enum { value = up_stages_of(TYPE, FEWER, 80) };
#endif
};
/* STAGES of experts_down. PAIRED: a unit is eight rows, else four. */
template <bool PAIRED> struct down_stages {
    enum { value = down_stages_of(PAIRED) };
};

typedef struct slab {                    /* gate, up or down of all experts, or of the shared one */
    const uint8_t *data;
    uint64_t slab_bytes;
    int row_bytes;
    const float *bias, *scale;           /* [n_expert, rows], [n_expert]; or NULL */
    float fixed_scale;                   /* used if scale is NULL */
} slab;

static __device__ __forceinline__ const uint8_t *row_at(const slab &s, int expert, int row)
{
    return s.data + (uint64_t)expert * s.slab_bytes + (size_t)row * s.row_bytes;
}

/* rows: rows of one expert */
static __device__ __forceinline__ float row_bias(const slab &s, int expert, int row, int rows)
{
    return s.bias ? s.bias[(size_t)expert * rows + row] : 0.0f;
}

/* The row's sum with scale and bias. */
template <int TYPE>
static __device__ __forceinline__ float scale_row(const slab &s, int expert, float bias, float sum)
{
    const float scale = s.scale ? s.scale[expert] : s.fixed_scale;
    return __fmaf_rn(__fmul_rn(factor_of<TYPE>::value, scale), sum, bias);
}

template <int TYPE>
static __device__ __forceinline__ float finish_row(const slab &s, int expert, int row, int rows,
                                                   float sum)
{
    return scale_row<TYPE>(s, expert, row_bias(s, expert, row, rows), sum);
}

/* ---- gate, up, activation -------------------------------------------------------------------- */

/* How a block finds the experts of a token. */
typedef struct choice {
    const int32_t *ids;                  /* [n, k]; NULL: chosen from logits and keys */
    const float *gates;
    const float *logits, *keys;          /* [n, n_expert]; keys NULL: the logits are compared */
    int n_expert, k;
    gpu_router_rule rule;
} choice;

/* Chooses the experts of one token, by all threads of a block: ids, and values for choose_gates.
 * The block synchronises at the end. */
struct chooser {
    block_selector largest;
    const int32_t *ids;                  /* NULL: to be selected */

    __device__ __forceinline__ void begin(const choice &c, int token)
    {
        ids = c.ids ? c.ids + token * c.k : NULL;
        if (!ids)
            largest.begin((c.keys ? c.keys : c.logits) + (size_t)token * c.n_expert, c.n_expert);
    }

    __device__ __forceinline__ void end(block_select_space *room, const choice &c)
    {
        if (!ids) {
            largest.end(room, c.k);
            return;
        }
        if (threadIdx.x < c.k) room->chosen[threadIdx.x] = ids[threadIdx.x];
        __syncthreads();
    }
};

/* The first warp computes the weights. The block must synchronise before it reads them. */
static __device__ __forceinline__ void choose_gates(float *gates, const block_select_space *room,
                                                    const choice &c, int token)
{
    const int lane = threadIdx.x;
    float gate = 0.0f;
    if (lane >= 32) return;
    if (!c.ids)
        gate = is_usual(c.rule) ? usual_weight(room->chosen_value[lane], c.k)
                                : scored_weight(lane < c.k ? room->chosen[lane] : 0,
                                                c.logits + (size_t)token * c.n_expert, c.n_expert,
                                                c.k, c.rule);
    else if (lane < c.k)
        gate = c.gates[token * c.k + lane];
    if (lane < c.k) gates[lane] = gate;
}

typedef struct up_args {
    enum { split = 0 };
    slab gate, up, shared_gate, shared_up;
    choice chosen;
    int n_slot, n_shared, k;             /* slots; shared expert's vectors in this launch: 0 or n */
    int cols, n_ff;
    gpu_activation act;
    const uint8_t *x;                    /* [n] int8 forms */
    const float *x_rows;                 /* [n, cols] */
    uint8_t *mid;                        /* [n_slot + n_shared] int8 forms */
    float *mid_rows;                     /* [n_slot + n_shared, n_ff] */
} up_args;

/* A slot of a split layer. */
typedef struct expert_slot {
    const uint8_t *gate, *up, *down;     /* in VRAM; set for slabs that the device reads */
    const uint8_t *from[3];              /* their addresses in page-locked RAM, for pull */
    int32_t id;
    float weight;
    int32_t where;                       /* gpu_where */
    int32_t unused;
} expert_slot;

struct split_up_args : up_args {         /* chosen is ignored */
    enum { split = 1 };
    const expert_slot *slots;            /* [n_slot] */
    int want;                            /* the gpu_where that this launch computes */
};

/* One warp stores 32 activations of a slot, as floats and as an int8 block. v: the lane's value. */
static __device__ __forceinline__ void store_mid(const up_args &a, int slot, int group, float v)
{
    const int row = group * UP_ROWS + threadIdx.x % 32, n_block = a.n_ff / 32;
    if (row < a.n_ff) a.mid_rows[(size_t)slot * a.n_ff + row] = v;
    if (group < n_block)                 /* F32 experts may have any width */
        quantise_block(a.mid + (size_t)slot * blocks_pitch(a.n_ff), n_block, group, v);
}

/* Finds the slot's expert and slabs. False: this launch does not compute the slot. */
static __device__ __forceinline__ bool find_slot(int *expert, const uint8_t **gate,
                                                 const uint8_t **up, const split_up_args &a,
                                                 int slot)
{
    const expert_slot &p = a.slots[slot];
    *expert = p.id;
    *gate = p.gate;
    *up = p.up;
    return p.where == a.want;
}

/* __launch_bounds__: as many blocks of an SM as shared memory holds. */
template <int TYPE, bool FEWER, typename ARGS>
static __global__ void __launch_bounds__(UP_THREADS, (up_stages<TYPE, FEWER>::value > 3 ? 2 : 3))
    experts_up(tracer f, const ARGS a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float gate_sum[UP_ROWS], up_sum[UP_ROWS];
    __shared__ block_select_space room;
    static_assert(sizeof gate_sum + sizeof up_sum + sizeof room <= STATIC_BYTES, "gate and up");
    const int slot = blockIdx.y, group = blockIdx.x, warp = warp_index();
    const bool is_shared = slot >= a.n_slot;
    const int token = is_shared ? slot - a.n_slot : slot / a.k;
    const slab &gate = is_shared ? a.shared_gate : a.gate, &up = is_shared ? a.shared_up : a.up;
    uint32_t rank = slot % a.k;
    int expert = 0;
    chooser choose;
    const uint8_t *gate_at = gate.data, *up_at = up.data;        /* split layer: the slot's slabs */
    const auto row_of = [&](const slab &s, const uint8_t *at, int row) {
        if constexpr (ARGS::split) return at + (size_t)row * s.row_bytes;
        else return row_at(s, expert, row);
    };

    /* After this call the input is in shared memory and the slot's expert is known. */
    const auto chosen = [&] {
        if (ARGS::split || is_shared) {
            __syncthreads();
            return;
        }
        choose.end(&room, a.chosen);
        expert = room.chosen[rank];
    };

    pdl_begin(f);
    keep(rank);                          /* the result of a division, which is slow */
    if constexpr (is_float_type<TYPE>::value) {
        pdl_wait(f);
        if constexpr (ARGS::split) {
            if (!is_shared && !find_slot(&expert, &gate_at, &up_at, a, slot)) {
                pdl_end(f);
                return;
            }
        } else if (!is_shared) {
            choose.begin(a.chosen, token);
        }
        float *x = (float *)shared;
        for (int c = threadIdx.x; c < a.cols; c += UP_THREADS)
            x[c] = a.x_rows[(size_t)token * a.cols + c];
        chosen();
        for (int r = warp; r < UP_ROWS; r += UP_THREADS / 32) {
            const int row = min(group * UP_ROWS + r, a.n_ff - 1);
            float g[1], u[1];
            float_row<TYPE, 1>(g, row_of(gate, gate_at, row), x, 0, 1, a.cols);
            float_row<TYPE, 1>(u, row_of(up, up_at, row), x, 0, 1, a.cols);
            if (threadIdx.x % 32 == 0) {
                gate_sum[r] = finish_row<TYPE>(gate, expert, row, a.n_ff, g[0]);
                up_sum[r] = finish_row<TYPE>(up, expert, row, a.n_ff, u[0]);
            }
        }
    } else {
        enum { STAGES = up_stages<TYPE, FEWER>::value };
        typedef piece_of<TYPE, STAGES> P;
        const int n_block = a.cols / 32, bytes = blocks_pitch(a.cols);
        const int pair = threadIdx.x % 32 / 8, r = warp * 4 + pair;
        const int row = min(group * UP_ROWS + r, a.n_ff - 1);
        uint8_t *x = shared + UP_THREADS / 32 * P::warp_bytes;
        unit_runner<TYPE, STAGES, 1, true, true> runner;
        const auto rows_of = [&](int) {
            return row_pair{ row_of(gate, gate_at, row), row_of(up, up_at, row) };
        };
        if (is_shared)
            runner.begin(f, shared + warp * P::warp_bytes, gate.row_bytes, 0, 1, 0, 1, 1, rows_of);
        pdl_wait(f);
        if constexpr (ARGS::split) {
            if (!is_shared && !find_slot(&expert, &gate_at, &up_at, a, slot)) {
                pdl_end(f);
                return;
            }
        } else if (!is_shared) {
            choose.begin(a.chosen, token);
        }
        const uint8_t *from = a.x + (size_t)token * bytes;
        if constexpr (is_woven<TYPE>::value) {
            for (int j = threadIdx.x; j < n_block; j += UP_THREADS)
                copy_woven(x, from, j, n_block);
        } else {
            #pragma unroll 2
            for (int i = threadIdx.x; i < bytes / 16; i += UP_THREADS)
                ((uint4 *)x)[i] = ((const uint4 *)from)[i];
        }
        chosen();
        if (!is_shared)
            runner.begin(f, shared + warp * P::warp_bytes, gate.row_bytes, 0, 1, 0, 1, 1, rows_of);
        float gate_bias = 0.0f, up_bias = 0.0f;
        if (threadIdx.x % 8 == 0) {      /* these loads overlap with the sum of the row */
            gate_bias = row_bias(gate, expert, row, a.n_ff);
            up_bias = row_bias(up, expert, row, a.n_ff);
        }
        runner.run(0, [&](int) { return x; }, 0, 1, n_block, rows_of,
                   [&](int, const float (&g)[1], const float (&u)[1]) {
                       if (threadIdx.x % 8 != 0) return;
                       gate_sum[r] = scale_row<TYPE>(gate, expert, gate_bias, g[0]);
                       up_sum[r] = scale_row<TYPE>(up, expert, up_bias, u[0]);
                   });
    }
    __syncthreads();
    if (warp == 0)
        store_mid(a, slot, group, contract_activation(gate_sum[threadIdx.x], up_sum[threadIdx.x],
                                                      a.act));
    pdl_end(f);
}

/* ---- down, sum ------------------------------------------------------------------------------- */

typedef struct down_args {
    enum { split = 0 };
    slab down, shared_down;
    choice chosen;
    const float *sigma;
    int n_slot, k;
    bool has_shared;                     /* the shared expert is slot k of every token */
    const float *shared_y;               /* else NULL, or its vectors [n, n_embd] */
    int n_ff, n_embd;
    int octet_shift;                     /* not PAIRED: a block has 8 << octet_shift rows; its warps
                                          * are divided among the octets */
    int n_staged;                        /* float weights: slots with activations in shared memory;
                                          * activations of other slots are read from VRAM */
    const uint8_t *mid;
    const float *mid_rows;
    float *x, *y;
} down_args;

struct split_down_args : down_args {     /* chosen is ignored */
    enum { split = 1 };
    const expert_slot *slots;            /* [n_slot] */
    const uint8_t *host_made;            /* [n_slot] 1: the vector is in host_y; 0: computed here */
    const float *host_y;                 /* [n_slot, n_embd] */
};

/* The first warp finds ids, weights, and the slots that the device computes (made, n_made), for one
 * token of a split layer. The block must synchronise before it reads them. */
static __device__ __forceinline__ void find_slots(int *ids, float *gates, const uint8_t **down,
                                                  int *made, int *n_made, const split_down_args &a,
                                                  int token)
{
    const int lane = threadIdx.x;
    bool here = false;
    if (lane >= 32) return;
    if (lane < a.k) {
        const expert_slot &p = a.slots[token * a.k + lane];
        here = !a.host_made[token * a.k + lane];
        ids[lane] = p.id;
        gates[lane] = p.weight;
        down[lane] = p.down;
    }
    const unsigned all = __ballot_sync(~0u, here);
    int n = __popc(all);
    if (here) made[__popc(all & ((1u << lane) - 1))] = lane;
    if (lane != 0) return;
    if (a.has_shared) {
        down[a.k] = a.shared_down.data;
        made[n++] = a.k;
    }
    *n_made = n;
}

/* PAIRED: a warp computes all eight rows of a slot, which pays for short rows; else four. */
template <int TYPE, bool PAIRED, typename ARGS>
static __global__ void __launch_bounds__(DOWN_MOST_THREADS, 2)
    experts_down(tracer f, const ARGS a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float sums[MAX_SLOTS * DOWN_ROWS], gates[SELECT_MAX_K];
    __shared__ block_select_space room;
    static_assert(sizeof sums + sizeof gates + sizeof room + MAX_SLOTS * 16 <= STATIC_BYTES,
                  "down");
    const int *ids = room.chosen;
    const int octet_shift = PAIRED ? 0 : a.octet_shift, n_row = DOWN_ROWS << octet_shift;
    const int token = blockIdx.y, first = blockIdx.x * n_row, warp = warp_index();
    const int n_warp = blockDim.x / 32;
    int n = a.k + (a.has_shared ? 1 : 0);                /* slots computed by this launch */
    const int end_row = first + threadIdx.x;             /* the row that this thread finishes */
    const bool finishes = threadIdx.x < n_row && end_row < a.n_embd;
    const size_t at = (size_t)token * a.n_embd + end_row;
    float before = 0.0f;                 /* x before the sum: loaded after pdl_wait, used last */

    /* index in mid, matrix and expert of slot i of this token */
    const auto mid_of = [&](int i) { return i < a.k ? token * a.k + i : a.n_slot + token; };
    const auto slab_of = [&](int i) -> const slab & { return i < a.k ? a.down : a.shared_down; };
    const auto expert_of = [&](int i) { return i < a.k ? ids[i] : 0; };

    /* split layer only */
    __shared__ const uint8_t *down_at[MAX_SLOTS];
    __shared__ int made[MAX_SLOTS], n_made;
    const auto slot_at = [&](int j) {    /* the j-th slot of this launch */
        if constexpr (ARGS::split) return made[j];
        else return j;
    };
    const auto row_of = [&](int i, int expert, int row) {
        if constexpr (ARGS::split) return down_at[i] + (size_t)row * slab_of(i).row_bytes;
        else return row_at(slab_of(i), expert, row);
    };

    pdl_begin(f);
    if constexpr (ARGS::split) {
        pdl_wait(f);
        find_slots(room.chosen, gates, down_at, made, &n_made, a, token);
        __syncthreads();
        n = n_made;
        for (int u = threadIdx.x; u < a.k * n_row; u += blockDim.x) {
            const int i = u / DOWN_ROWS >> octet_shift, row = min(first + (u & (n_row - 1)),
                                                             a.n_embd - 1);
            const size_t slot = (size_t)token * a.k + i;
            if (a.host_made[slot]) sums[u] = a.host_y[slot * a.n_embd + row];
        }
    } else {
        chooser choose;
        choose.begin(a.chosen, token);
        choose.end(&room, a.chosen);
    }
    if constexpr (is_float_type<TYPE>::value) {
        if constexpr (!ARGS::split) {
            choose_gates(gates, &room, a.chosen, token);
            pdl_wait(f);
        }
        if (finishes) before = a.x[at];
        float *mid = (float *)shared;
        for (int j = 0; j < min(n, a.n_staged); j++)
            for (int c = threadIdx.x; c < a.n_ff; c += blockDim.x)
                mid[j * a.n_ff + c] = a.mid_rows[(size_t)mid_of(slot_at(j)) * a.n_ff + c];
        __syncthreads();
        for (int u = warp; u < n * DOWN_ROWS; u += n_warp) {
            const int j = u / DOWN_ROWS, i = slot_at(j);
            const int row = min(first + u % DOWN_ROWS, a.n_embd - 1);
            const int expert = expert_of(i);
            const float *own = j < a.n_staged ? mid + j * a.n_ff
                                              : a.mid_rows + (size_t)mid_of(i) * a.n_ff;
            float sum[1];
            float_row<TYPE, 1>(sum, row_of(i, expert, row), own, 0, 1, a.n_ff);
            if (threadIdx.x % 32 == 0)
                sums[i * DOWN_ROWS + u % DOWN_ROWS] =
                    finish_row<TYPE>(slab_of(i), expert, row, a.n_embd, sum[0]);
        }
    } else {
        enum { PER_SLOT = PAIRED ? 1 : 2 };              /* units of a slot, of eight rows */
        typedef unit_runner<TYPE, down_stages<PAIRED>::value, 1, PAIRED, true> down_runner;
        typedef typename down_runner::P P;
        const int n_block = a.n_ff / 32, pitch = blocks_pitch(a.n_ff);
        const int octet = warp & ((1 << octet_shift) - 1), unit0 = warp >> octet_shift;
        const int step = n_warp >> octet_shift;
        const int own_first = octet * DOWN_ROWS + threadIdx.x % 32 / 8;
        uint8_t *mid = shared + n_warp * P::warp_bytes;
        down_runner runner;
        const auto rows_of = [&](int unit) {
            const int i = slot_at(unit / PER_SLOT), row = first + own_first + unit % PER_SLOT * 4;
            return row_pair{ row_of(i, expert_of(i), min(row, a.n_embd - 1)),
                             row_of(i, expert_of(i), min(row + 4, a.n_embd - 1)) };
        };
        runner.begin(f, shared + warp * P::warp_bytes, a.down.row_bytes, 0, 1, unit0, step,
                     PER_SLOT * n, rows_of);
        const int each = pitch / 16;
        if constexpr (!ARGS::split) {
            choose_gates(gates, &room, a.chosen, token);
            pdl_wait(f);
        }
        if (finishes) before = a.x[at];
        if constexpr (is_woven<TYPE>::value) {
            #pragma unroll 2
            for (int c = threadIdx.x; c < n * n_block; c += blockDim.x) {
                const int j = c / n_block;
                copy_woven(mid + j * pitch, a.mid + (size_t)mid_of(slot_at(j)) * pitch,
                           c - j * n_block, n_block);
            }
        } else if constexpr (ARGS::split) {
            for (int c = threadIdx.x; c < n * each; c += blockDim.x) {
                const int j = c / each;
                const uint8_t *from = a.mid + (size_t)mid_of(made[j]) * pitch;
                ((uint4 *)mid)[c] = ((const uint4 *)from)[c - j * each];
            }
        } else {
            /* mid has the routed slots of all tokens first, then the shared expert's */
            const int routed = a.k * each, all = n * each;
            const uint4 *from = (const uint4 *)(a.mid + (size_t)mid_of(0) * pitch);
            const uint4 *behind = (const uint4 *)(a.mid + (size_t)mid_of(a.k) * pitch) - routed;
            #pragma unroll 4
            for (int c = threadIdx.x; c < all; c += blockDim.x)
                ((uint4 *)mid)[c] = (c < routed ? from : behind)[c];
        }
        __syncthreads();
        /* Loads the bias of a row before the row is summed; not for a pair of rows, where the
         * compiler would spill it to memory and wait for the load. */
        const int l = threadIdx.x % 8;
        const auto bias_of = [&](int unit) {
            const int i = slot_at(unit / PER_SLOT);
            const int r = first + own_first + unit % PER_SLOT * 4 + 4 * l;
            return row_bias(slab_of(i), expert_of(i), min(r, a.n_embd - 1), a.n_embd);
        };
        float early = 0.0f;
        const auto enter = [&](int unit) {
            if (!PAIRED && l == 0) early = bias_of(unit);
            return mid + unit / PER_SLOT * pitch;
        };
        runner.run(unit0, enter, 0, 1, n_block, rows_of,
                   [&](int unit, const float (&sa)[1], const float (&sb)[1]) {
                       if (l > (PAIRED ? 1 : 0)) return;
                       const int i = slot_at(unit / PER_SLOT);
                       const int r = own_first + unit % PER_SLOT * 4 + 4 * l;
                       sums[i * n_row + r] =
                           scale_row<TYPE>(slab_of(i), expert_of(i), PAIRED ? bias_of(unit) : early,
                                           l == 0 ? sa[0] : sb[0]);
                   });
    }
    __syncthreads();
    if (finishes) {
        const float *own = sums + threadIdx.x;
        float sum = 0.0f;
        for (int i = 0; i < a.k; i++) {
            sum = __fmaf_rn(gates[i], own[i * n_row], sum);
            if (a.y) a.y[((size_t)token * a.k + i) * a.n_embd + end_row] = own[i * n_row];
        }
        if (a.has_shared) sum = __fmaf_rn(a.sigma[token], own[a.k * n_row], sum);
        else if (a.shared_y) sum = __fmaf_rn(a.sigma[token], a.shared_y[at], sum);
        a.x[at] = __fadd_rn(before, sum);
    }
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

static inline slab slab_of_bank(const gpu_bank *b)
{
    return { b->data, b->slab_bytes, (int)b->row_bytes, b->bias, b->scale, 1.0f };
}

static inline slab slab_of_matrix(const gpu_matrix *m)
{
    return { m->data, 0, (int)m->row_bytes, m->bias, NULL, m->scale };
}

template <int TYPE, typename ARGS>
static void launch_up(gpu *g, launch_stream at, const ARGS *a, uint64_t bytes)
{
    const chip c = chip_of(g);
    const dim3 grid(ceil_div(a->n_ff, UP_ROWS), (unsigned)(a->n_slot + a->n_shared));
    enum { MAY = TYPE == QT_Q4_K && !ARGS::split };
    const bool fewer = MAY && up_takes_fewer(&c, TYPE, a->cols, (uint64_t)grid.x * grid.y);
    const size_t smem = up_bytes(&c, TYPE, up_stages_of(TYPE, fewer, g->code), a->cols);
    launch_at(g, at, "experts up", bytes,
              fewer ? experts_up<TYPE, MAY, ARGS> : experts_up<TYPE, false, ARGS>, grid,
              UP_THREADS, smem, *a);
}

template <int TYPE, bool PAIRED, typename ARGS>
static void launch_down_shape(gpu *g, launch_stream at, const ARGS *a, int n, uint64_t bytes,
                              const down_shape &s)
{
    ARGS some = *a;
    some.octet_shift = s.octet_shift;
    some.n_staged = s.n_staged;
    launch_at(g, at, "experts down", bytes, experts_down<TYPE, PAIRED, ARGS>,
              dim3(ceil_div(a->n_embd, DOWN_ROWS << s.octet_shift), (unsigned)n), 32 * s.warps,
              s.bytes, some);
}

template <int TYPE, typename ARGS>
static void launch_down(gpu *g, launch_stream at, const ARGS *a, int n, uint64_t bytes)
{
    const chip c = chip_of(g);
    const int n_slot = a->k + (a->has_shared ? 1 : 0);
    if constexpr (is_float_type<TYPE>::value) {
        launch_down_shape<TYPE, true>(g, at, a, n, bytes, down_float_shape(&c, n_slot, a->n_ff));
    } else {
        const bool paired = down_is_paired(TYPE, (uint64_t)a->down.row_bytes);
        const down_shape s = down_block_shape(&c, TYPE, paired, n_slot, a->n_ff, a->n_embd);
        if (paired) launch_down_shape<TYPE, true>(g, at, a, n, bytes, s);
        else launch_down_shape<TYPE, false>(g, at, a, n, bytes, s);
    }
}

/* Bodies of functions with a parameter `type`: a case for each type of a group. */
#define LAUNCH_UP(TYPES)                                                                           \
    switch (type) {                                                                                \
        TYPES(LAUNCH_UP_TYPE)                                                                      \
    default: gpu_fail(g, cudaErrorInvalidValue, "experts: type without a kernel");                 \
    }
#define LAUNCH_UP_TYPE(T) case T: launch_up<T>(g, at, a, bytes); break;
#define LAUNCH_DOWN(TYPES)                                                                         \
    switch (type) {                                                                                \
        TYPES(LAUNCH_DOWN_TYPE)                                                                    \
    default: gpu_fail(g, cudaErrorInvalidValue, "experts: type without a kernel");                 \
    }
#define LAUNCH_DOWN_TYPE(T) case T: launch_down<T>(g, at, a, n, bytes); break;

/* Kernels of a resident layer, one file for each group of types, because one file for all takes
 * almost a minute to compile. type belongs to the group. */
#define RESIDENT_GROUP(group)                                                                      \
    void up_##group(gpu *g, launch_stream at, int type, const up_args *a, uint64_t bytes);         \
    void down_##group(gpu *g, launch_stream at, int type, const down_args *a, int n,               \
                      uint64_t bytes);
RESIDENT_GROUP(basic)
RESIDENT_GROUP(k_quants)
RESIDENT_GROUP(tables)
RESIDENT_GROUP(floats)
#undef RESIDENT_GROUP

/* ---- resident and split layers: functions of experts.cu -------------------------------------- */

/* Memory between the two kernels: int8 forms and floats of all slots, those of the shared expert
 * last; and the vectors of a shared expert with kernels of its own (apart). */
typedef struct few_scratch {
    uint8_t *mid;
    float *mid_rows;
    uint8_t *apart_mid;                  /* mid, mid_rows and vectors of an apart shared expert */
    float *apart_rows, *shared_y;
    size_t bytes;
} few_scratch;
few_scratch few_layout(void *base, int n, int k, int n_ff, int n_embd);

/* The arguments that resident and split layers have in common. */
typedef struct layer_args {
    few_scratch scratch;
    bool apart;                          /* shared_apart computes the shared expert */
    up_args up;
    down_args down;
} layer_args;
layer_args layer_args_of(const gpu_input *in, const gpu_expert_args *a);

/* Whether the shared expert has the formats and the width of the others. */
bool few_shared_is_slot(const gpu_expert_args *a);

/* Whether ids are given or can be chosen. If not, stores a failure and returns false. */
bool few_choice_fits(gpu *g, const gpu_expert_args *a);

/* Makes the input's finished values and int8 form, unless the router has made them. */
void few_input(gpu *g, gpu_input *in);

/* Gate, up and activation of a network for all tokens of the input, which few_input has finished:
 * mid [n] int8 forms, mid_rows [n, gate->rows]. */
void few_gate_up(gpu *g, const gpu_input *in, const gpu_matrix *gate, const gpu_matrix *up,
                 gpu_activation act, uint8_t *mid, float *mid_rows);
/* Down of the network of few_gate_up. add: y += instead of y =. */
void few_down(gpu *g, int n, const gpu_matrix *down, uint8_t *mid, const float *mid_rows, float *y,
              bool add);

/* Computes a shared expert of other formats or another width with kernels of its own. */
void shared_apart(gpu *g, gpu_input *in, const gpu_expert_args *a, const few_scratch *s);

#endif
