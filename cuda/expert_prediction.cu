/* expert_prediction.cu - which experts the next layer will probably choose, and their way to
 * VRAM. */
#include "cuda/expert_prediction.cuh"

enum {
    GUESS_THREADS = 256, GUESS_WARPS = GUESS_THREADS / 32,
    PULL_BLOCKS = 2                      /* enough for the bus; the others' kernels need every SM */
};

/* ---- memory ---------------------------------------------------------------------------------- */

prediction_parts prediction_layout(void *base, int n_expert, int n_embd)
{
    uint8_t *p = (uint8_t *)base;
    prediction_parts s;
    s.lists = (prediction_list *)p;
    p += round_up(2 * sizeof *s.lists);
    s.logits = (float *)p;
    p += round_up((uint64_t)n_expert * sizeof *s.logits);
    s.done = (uint32_t *)p;
    p += round_up(sizeof *s.done);
    s.pull = (pull_state *)p;
    p += round_up(sizeof *s.pull);
    s.layers = p;
    s.layer_bytes = (size_t)(round_up(sizeof(uint32_t)) +
                             round_up((uint64_t)n_embd * sizeof(float)));
    return s;
}

size_t gpu_prediction_state(int n_expert, int n_embd, int n_layer)
{
    const prediction_parts s = prediction_layout(NULL, n_expert, n_embd);
    return (size_t)(uintptr_t)s.layers + (size_t)n_layer * s.layer_bytes;
}

bool gpu_prediction_fits(int router_type) { return is_float_weight(router_type); }

size_t gpu_prediction_pad(const uint64_t bytes[3])
{
    return (size_t)(slab_room(bytes[0]) + slab_room(bytes[1]) + slab_room(bytes[2]));
}

/* ---- guessing -------------------------------------------------------------------------------- */

typedef struct prediction_args {
    gpu_matrix router;
    gpu_router_rule rule;
    const float *norm, *next_norm;
    const float *x;                      /* [cols] times norm */
    const uint32_t *number;              /* of the layer that x is from */
    const uint32_t *now;                 /* of the last question */
    float *logits;
    uint32_t *done;
    int k;
    const int32_t *hot;                  /* NULL: none */
    const uint64_t *slabs;
    const uint8_t *most;                 /* guesses that are fetched, at most */
    volatile uint64_t *told;             /* of the mail, in RAM */
    uint64_t room[3];                    /* of a slab */
    uint8_t *pad;
    prediction_list *list;
} prediction_args;

static __device__ __forceinline__ uint32_t deal_of(const prediction_list *list)
{
    return *(const volatile uint32_t *)&list->deal;
}

/* Whether the layer that it is about has asked. Once it has, it stays so: whoever is in time at the
 * end was so all along. The list's word alone could be that of a later layer. */
static __device__ __forceinline__ bool is_late(const prediction_args &a, uint32_t number)
{
    const uint32_t now = *(const volatile uint32_t *)a.now;
    return deal_of(a.list) == 2 * number + 1 || ((now - number) & GPU_NUMBERS) <= GPU_NUMBERS / 2;
}

/* Row r times x, by one warp; the sum in all lanes. */
static __device__ __forceinline__ float row_score(const gpu_matrix &m, int r, const float *x)
{
    const int lane = threadIdx.x % 32;
    const uint8_t *row = m.data + (size_t)r * m.row_bytes;
    float sum = 0.0f;
    if (m.type == QT_F32 && m.cols % 4 == 0 && ((uintptr_t)row & 15) == 0) {
        #pragma unroll 8
        for (int i = lane; i < m.cols / 4; i += 32) {
            const float4 w = ((const float4 *)row)[i], v = ((const float4 *)x)[i];
            sum = fmaf(w.x, v.x, fmaf(w.y, v.y, fmaf(w.z, v.z, fmaf(w.w, v.w, sum))));
        }
    } else {
        #pragma unroll 8
        for (int c = lane; c < m.cols; c += 32) {
            const float w = m.type == QT_F32 ? weight_at<QT_F32>(row, c)
                          : m.type == QT_F16 ? weight_at<QT_F16>(row, c)
                                             : weight_at<QT_BF16>(row, c);
            sum = fmaf(w, x[c], sum);
        }
    }
    return warp_sum(sum);
}

static __device__ __forceinline__ unsigned warp_or(unsigned v)
{
    for (int d = 16; d > 0; d >>= 1) v |= __shfl_xor_sync(~0u, v, d);
    return v;
}

/* Names experts to the host, by one warp, each by the lane that has it. */
static __device__ __forceinline__ void tell(const prediction_args &a, uint32_t number, int id,
                                            bool mine)
{
    const unsigned below = (1u << threadIdx.x % 32) - 1, all = __ballot_sync(~0u, mine);
    const int rank = __popc(all & below), n = min(__popc(all), (int)GPU_MOST_PREDICTED);
    const uint64_t word =
        mine && rank < GPU_MOST_PREDICTED ? (uint64_t)id << rank * GPU_PREDICTED_BITS : 0;
    const uint64_t ids = warp_or((unsigned)word) | (uint64_t)warp_or((unsigned)(word >> 32)) << 32;
    if (threadIdx.x == 0)
        *a.told =
            (uint64_t)number << GPU_PREDICTED_NUMBER | (uint64_t)n << GPU_PREDICTED_COUNT | ids;
}

/* The list, by one warp, from complete logits. Returns how many are on it. */
static __device__ __forceinline__ int fill_list(const prediction_args &a, uint32_t number, int most,
                                                select_space *space)
{
    const int lane = threadIdx.x % 32;
    const unsigned below = (1u << lane) - 1;
    slot_place p = {};
    int id = 0;
    float weight;
    select_by_rule(&id, &weight, a.logits, a.router.rows, a.k, space, a.rule);
    uint64_t from[3] = { 0, 0, 0 };
    const bool cold = lane < a.k && (!a.hot || a.hot[id] < 0);
    if (cold)
        for (int i = 0; i < 3; i++) from[i] = __ldcv(a.slabs + (size_t)id * 3 + i);
    const bool can = from[0] && from[1] && from[2];
    const unsigned all = __ballot_sync(~0u, can);
    const int rank = __popc(all & below), n = min(__popc(all), most);
    if (can && rank < most) {
        uint8_t *room = a.pad + (uint64_t)rank * (a.room[0] + a.room[1] + a.room[2]);
        p.id = id;
        p.where = GPU_FETCHED;
        p.gate = room + from[0] % LINE;
        p.up = room + a.room[0] + from[1] % LINE;
        p.down = room + a.room[0] + a.room[1] + from[2] % LINE;
        for (int i = 0; i < 3; i++) p.from[i] = (const uint8_t *)(uintptr_t)from[i];
        a.list->slots[rank] = p;
    }
    if (lane >= n && lane < GPU_MOST_PREDICTIONS) a.list->slots[lane].where = GPU_HOT;
    tell(a, number, id, cold && !(can && rank < most));
    return n;
}

/* By one warp: the list is complete, unless the layer has asked already. */
static __device__ __forceinline__ void offer_list(const prediction_args &a, uint32_t number, int n)
{
    int offered = 0;
    __syncwarp();
    if (threadIdx.x == 0) {
        const uint32_t before = deal_of(a.list);
        a.list->n = n;
        __threadfence();                 /* all of the warp's writes, before the word */
        offered = before != 2 * number + 1 &&
                  atomicCAS(&a.list->deal, before, 2 * number) == before;
    }
    if (!__shfl_sync(~0u, offered, 0) && threadIdx.x < GPU_MOST_PREDICTIONS)
        a.list->slots[threadIdx.x].where = GPU_HOT;      /* nobody will look: fetch nothing */
}

/* A warp for a row of the router; the last block to end chooses. */
static __global__ void __launch_bounds__(GUESS_THREADS) guess(frame f, const prediction_args a)
{
    extern __shared__ __align__(16) float x[];
    __shared__ select_space space;
    __shared__ bool last;
    const int warp = threadIdx.x / 32;

    pdl_begin(f);
    pdl_wait(f);
    const uint32_t number = (*a.number + 1) & GPU_NUMBERS;
    const int most = a.pad ? min((int)*a.most, (int)GPU_MOST_PREDICTIONS) : 0;
    if (!is_late(a, number)) {
        for (int c = threadIdx.x; c < a.router.cols; c += GUESS_THREADS) {
            const float norm = a.norm[c];
            x[c] = norm == 0.0f ? 0.0f : a.x[c] / norm * a.next_norm[c];
        }
        __syncthreads();
        const int step = (int)gridDim.x * GUESS_WARPS;
        for (int r = (int)(blockIdx.x + gridDim.x * warp); r < a.router.rows; r += step) {
            const float sum = row_score(a.router, r, x);
            if (threadIdx.x % 32 == 0)
                a.logits[r] = fmaf(a.router.scale, sum, a.router.bias ? a.router.bias[r] : 0.0f);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(a.done, 1u) == gridDim.x - 1;
        if (last) *a.done = 0;
        __threadfence();
    }
    __syncthreads();
    if (last && warp == 0) {
        if (!is_late(a, number))
            offer_list(a, number, fill_list(a, number, most, &space));
        else if (threadIdx.x < GPU_MOST_PREDICTIONS) a.list->slots[threadIdx.x].where = GPU_HOT;
    }
    pdl_end(f);
}

void prediction_next(gpu *g, const gpu_with_host *s, const prediction_parts *parts, int k)
{
    const stream_place at = { g->ahead, false };
    const gpu_predict *next = &s->next;
    const int turn = s->prediction_turn;
    const unsigned blocks = ceil_div((uint64_t)next->router.rows, GUESS_WARPS);
    prediction_args a = {};
    pull_args pulled = {};

    a.router = next->router;
    a.rule = next->rule;
    a.norm = next->norm;
    a.next_norm = next->next_norm;
    a.x = prediction_vector(parts, s->prediction_layer);
    a.number = prediction_number(parts, s->prediction_layer);
    a.now = s->number;
    a.logits = parts->logits;
    a.done = parts->done;
    a.k = k;
    a.hot = next->hot;
    a.slabs = next->slabs;
    a.most = s->fetch;
    for (int i = 0; i < 3; i++) a.room[i] = slab_room(next->bytes[i]);
    if (s->prediction_pad) a.pad = s->prediction_pad + (uint64_t)(1 - turn) * s->prediction_room;
    a.told = &s->mailbox->told;
    a.list = parts->lists + (1 - turn);
    gpu_fail(g, cudaStreamWaitEvent(g->ahead, g->fork, 0), "guess");
    launch_at(g, at, "guess", (uint64_t)next->router.rows * next->router.row_bytes, guess, blocks,
              GUESS_THREADS, prediction_bytes(next->router.cols), a);

    pulled.slots = a.list->slots;
    pulled.k = GPU_MOST_PREDICTIONS;
    for (int i = 0; i < 3; i++) pulled.bytes[i] = (uint32_t)next->bytes[i];
    pulled.number = a.number;
    pulled.state = parts->pull;
    if (s->prediction_pad) {
        gpu_fail(g, cudaStreamWaitEvent(g->ahead, g->pulled, 0), "guess");
        launch_at(g, at, "fetch ahead", 0, pull, PULL_BLOCKS, PULL_THREADS, 0, pulled);
    }
    gpu_fail(g, cudaEventRecord(g->guessed, g->ahead), "guess");
    g->guessing = true;
}
