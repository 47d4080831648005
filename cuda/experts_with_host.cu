/* experts_with_host.cu - gpu_experts_with_host: a layer of up to GPU_MAIL tokens with hot experts
 * in VRAM. The host computes the cold ones; the mailbox carries questions and replies. All experts
 * follow the arithmetic contract.
 *
 *   stream   ask -------- up (hot, shared) -------- down
 *   side        \-- pull -- up (fetched) --/
 *   reply         \     \-- answer --------/
 *   ahead          \-- predict
 *
 * ask chooses the experts, decides where each is computed, and writes the question. pull fetches
 * slabs. answer waits for the host's reply and copies it to VRAM. up and down are the kernels of
 * experts.cuh. answer runs after pull, because polling across the bus would take up to half of its
 * speed from the fetch. predict (expert_prediction.cuh) is for the next layer. If nothing is
 * fetched, all kernels but predict are in one stream.
 *
 * Kernels read all data of a slot from its expert_slot, so launches do not depend on the number of
 * hot experts. Device and host write a number only after the complete question or reply. A layer
 * without cold experts writes its number without a question and waits for no reply. */
#include <string.h>

#include "cuda/expert_prediction.cuh"

enum {
    ASK_WARPS = GPU_MAIL, ASK_THREADS = 32 * ASK_WARPS, ANSWER_THREADS = 512,
    ANSWER_LOADS = 4, ANSWER_MOST = 8    /* loads in flight of a thread; most blocks: each polls */
};

static_assert(GPU_MAIL <= GPU_FEW, "a question's tokens are those of the kernels for few tokens");

/* ---- the mailbox ----------------------------------------------------------------------------- */

int gpu_mailbox_create(gpu_mailbox **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err)
{
    const uint64_t slots = (uint64_t)GPU_MAIL * (uint64_t)k;
    const uint64_t x = round_up(sizeof(gpu_mailbox));
    const uint64_t y = x + round_up((uint64_t)GPU_MAIL * (uint64_t)n_embd * sizeof(float));
    const uint64_t rows = y + round_up(slots * (uint64_t)n_embd * sizeof(float));
    const uint64_t mid = rows + round_up(slots * (uint64_t)n_ff * sizeof(float));
    const uint64_t bytes = mid + round_up(slots * gpu_blocks_bytes(n_ff));
    uint8_t *p = (uint8_t *)gpu_alloc_host(g, bytes, err);

    *out = NULL;
    if (!p) return ERR_NOMEM;
    memset(p, 0, (size_t)bytes);
    gpu_mailbox *m = (gpu_mailbox *)p;
    m->x = (float *)(p + x);
    m->y = (float *)(p + y);
    m->mid_rows = (float *)(p + rows);
    m->mid = p + mid;
    m->n_embd = n_embd;
    m->n_ff = n_ff;
    *out = m;
    return 0;
}

void gpu_mailbox_free(gpu *g, gpu_mailbox *m) { gpu_free_host(g, m); }

/* The int8 form is described in activations.cuh. */
void gpu_mailbox_put_mid(gpu_mailbox *m, int slot, const int8_t *q, const float *dx,
                         const int16_t *sums)
{
    const size_t n = (size_t)m->n_ff / 32;
    uint8_t *to = m->mid + (size_t)slot * gpu_blocks_bytes(m->n_ff);
    for (size_t j = 0; j < n; j++) {
        memcpy(to + 16 * j, q + 32 * j, 16);
        memcpy(to + 16 * (n + j), q + 32 * j + 16, 16);
    }
    memcpy(to + 32 * n, dx, n * sizeof *dx);
    memcpy(to + 36 * n, sums, 2 * n * sizeof *sums);
}

/* ---- the pad in VRAM ------------------------------------------------------------------------- */

/* The pad for fetched slabs: first whole experts, then down slabs alone. */
typedef struct pad_view {
    uint8_t *data;
    uint64_t gate, up, down;             /* bytes of one slab in the pad */
    int n_down, n_all;
} pad_view;

static uint64_t pad_bytes_of(const gpu_bank *b)
{
    return slab_pad_bytes((uint64_t)b->rows * b->row_bytes);
}

static pad_view pad_of(const gpu_expert_args *a, uint8_t *data, int n_down, int n_all)
{
    return { data, pad_bytes_of(&a->gate), pad_bytes_of(&a->up), pad_bytes_of(&a->down), n_down,
             n_all };
}

size_t gpu_with_host_pad(const gpu_expert_args *a, int pad_down, int pad_all)
{
    const pad_view p = pad_of(a, NULL, pad_down, pad_all);
    return (size_t)((uint64_t)pad_all * (p.gate + p.up + p.down) + (uint64_t)pad_down * p.down);
}

typedef struct split_scratch {
    pull_state *pull;
    expert_slot *slots;                  /* [GPU_MAIL * k] */
    uint8_t *host_made;                  /* [GPU_MAIL * k] */
    float *host_y;                       /* [GPU_MAIL * k, n_embd] */
    size_t bytes;
} split_scratch;

static split_scratch split_layout(void *base, int k, int n_embd)
{
    const uint64_t slots = (uint64_t)GPU_MAIL * (uint64_t)k;
    uint8_t *p = (uint8_t *)base;
    split_scratch s;
    s.pull = (pull_state *)p;
    p += round_up(sizeof(pull_state));
    s.slots = (expert_slot *)p;
    p += round_up(slots * sizeof(expert_slot));
    s.host_made = p;
    p += round_up(slots);
    s.host_y = (float *)p;
    p += round_up(slots * (uint64_t)n_embd * sizeof(float));
    s.bytes = (size_t)(p - (uint8_t *)base);
    return s;
}

size_t gpu_with_host_scratch(int k, int n_ff, int n_embd)
{
    (void)n_ff;
    return split_layout(NULL, k, n_embd).bytes;
}

/* ---- the question ---------------------------------------------------------------------------- */

typedef struct ask_args {
    choice chosen;
    int n, n_embd;
    const float *x;                      /* [n, n_embd] normed vectors */
    const int32_t *hot;
    slab gate, up, down;                 /* the banks that hot indexes */
    const uint64_t *slabs;               /* NULL: nothing is fetched */
    const uint8_t *fetch;
    pad_view pad;
    float *prediction_x;                 /* NULL, or copy of the vector for predict */
    uint32_t *prediction_number;         /* NULL, or copy of this layer's number */
    expert_slot *slots;
    uint32_t *number;
    uint32_t *log;                       /* gpu_with_host.chosen */
    bool closes;
    gpu_mailbox *mailbox;                /* in RAM; the kernel never reads it */
    float *mailbox_x;
} ask_args;

/* Data that the last warps load while the first ones choose. Without this overlap the kernel would
 * take twice as long. */
typedef struct ask_view {                /* in shared memory */
    uint32_t number;
    uint8_t fetch[2 * GPU_FETCH_COUNTS];
} ask_view;

static __device__ __forceinline__ void look_around(ask_view *v, const ask_args &a)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == ASK_WARPS - 1) {
        const uint32_t number = (*a.number + 1) & GPU_NUMBERS;
        if (lane == 0) v->number = number;
        if (lane == 0 && a.prediction_x) *a.prediction_number = number;
    }
    if (warp == ASK_WARPS - 2 && a.slabs)
        for (int i = lane; i < 2 * GPU_FETCH_COUNTS; i += 32) v->fetch[i] = a.fetch[i];
    if (a.prediction_x)
        for (int c = threadIdx.x; c < a.n_embd; c += ASK_THREADS) a.prediction_x[c] = a.x[c];
}

/* The whole block writes the vectors to the mailbox before the choice is known: the writes take
 * long to reach RAM, and the question's number must come after them. */
static __device__ __forceinline__ void send_vectors(const ask_args &a)
{
    const int n = a.n * a.n_embd;
    if (a.n_embd % 4 == 0 && (uintptr_t)a.x % 16 == 0)
        for (int c = threadIdx.x; c < n / 4; c += ASK_THREADS)
            ((float4 *)a.mailbox_x)[c] = ((const float4 *)a.x)[c];
    else
        for (int c = threadIdx.x; c < n; c += ASK_THREADS) a.mailbox_x[c] = a.x[c];
}

/* One warp, with a choice in each lane, decides which of a token's cold experts are fetched: the
 * first n_all whole, of the next n_down the down slab. from: addresses of slabs in page-locked RAM;
 * experts with address 0 are not fetched. */
static __device__ __forceinline__ void decide_fetch(expert_slot &p, const ask_args &a,
                                                    const uint8_t *fetch, const uint64_t (&from)[3],
                                                    bool cold)
{
    const unsigned below = (1u << threadIdx.x % 32) - 1;
    const int m = __popc(__ballot_sync(~0u, cold));
    if (!a.slabs || m == 0) return;
    const int n_all = min((int)fetch[GPU_FETCH_COUNTS + m], a.pad.n_all);
    const int n_down = min((int)fetch[m], a.pad.n_down);
    if (n_all + n_down == 0) return;

    const bool can_all = cold && from[0] && from[1] && from[2];
    const int rank_all = __popc(__ballot_sync(~0u, can_all) & below);
    const bool all = can_all && rank_all < n_all;
    const bool can_down = cold && !all && from[2];
    const int rank_down = __popc(__ballot_sync(~0u, can_down) & below);
    const uint64_t whole = a.pad.gate + a.pad.up + a.pad.down;
    uint8_t *to = a.pad.data;

    if (all) {
        to += (uint64_t)rank_all * whole;
        p.where = GPU_FETCHED;
        p.gate = to + from[0] % LINE;
        p.up = to + a.pad.gate + from[1] % LINE;
        p.down = to + a.pad.gate + a.pad.up + from[2] % LINE;
    } else if (can_down && rank_down < n_down) {
        p.where = GPU_COLD_FETCHED;
        p.down = to + (uint64_t)a.pad.n_all * whole + (uint64_t)rank_down * a.pad.down +
                 from[2] % LINE;
    }
    for (int i = 0; i < 3; i++) p.from[i] = (const uint8_t *)(uintptr_t)from[i];
}

/* One warp chooses a token's experts: lane r < k gets the r-th id and weight. */
static __device__ __forceinline__ void choose_token(int *id, float *weight, const choice &c,
                                                    int token, select_space *space)
{
    const int lane = threadIdx.x % 32, slot = token * c.k + lane;
    if (!c.ids) {
        const float *logits = c.logits + (size_t)token * c.n_expert;
        const float *keys = c.keys ? c.keys + (size_t)token * c.n_expert : logits;
        float value = 0.0f;
        select_largest(id, &value, keys, c.n_expert, c.k, space);
        *weight = is_usual(c.rule) ? usual_weight(value, c.k)
                                   : scored_weight(lane < c.k ? *id : 0, logits, c.n_expert, c.k,
                                                   c.rule);
    } else if (lane < c.k) {
        *id = c.ids[slot];
        *weight = c.gates[slot];
    }
}

/* Decides where each choice of a token is computed. */
static __device__ __forceinline__ void place_token(int *ids, uint8_t *where, const ask_args &a,
                                                   const ask_view *view, int token, int id,
                                                   float weight)
{
    const choice &c = a.chosen;
    const int lane = threadIdx.x % 32, slot = token * c.k + lane;
    const bool has_choice = lane < c.k;
    expert_slot p = {};
    uint64_t from[3] = { 0, 0, 0 };

    const int hot_index = has_choice && a.hot ? a.hot[id] : -1;
    if (has_choice && a.slabs)           /* also for hot experts: waiting for hot_index is slower */
        for (int i = 0; i < 3; i++) from[i] = __ldcv(a.slabs + (size_t)id * 3 + i);
    p.id = id;
    p.weight = weight;
    p.where = hot_index < 0 ? GPU_COLD : GPU_HOT;
    if (hot_index >= 0) {
        p.gate = row_at(a.gate, hot_index, 0);
        p.up = row_at(a.up, hot_index, 0);
        p.down = row_at(a.down, hot_index, 0);
    }
    decide_fetch(p, a, view->fetch, from, has_choice && p.where == GPU_COLD);
    if (!has_choice) return;
    a.slots[slot] = p;
    ids[slot] = id;
    where[slot] = (uint8_t)p.where;
}

/* The whole block writes the question except the vectors and the number. */
static __device__ __forceinline__ void write_question(const ask_args &a, const int *ids,
                                                      const uint8_t *where)
{
    const int n_slot = a.n * a.chosen.k;
    for (int i = threadIdx.x; i < n_slot; i += ASK_THREADS) a.mailbox->ids[i] = ids[i];
    for (int i = threadIdx.x; i < (n_slot + 3) / 4; i += ASK_THREADS)
        ((uint32_t *)a.mailbox->where)[i] = ((const uint32_t *)where)[i];
    if (threadIdx.x == 0) {
        a.mailbox->n = a.n;
        a.mailbox->k = a.chosen.k;
    }
}

/* One block, a warp for each token. Few registers, so that it fits an SM next to the router's. */
static __global__ void __launch_bounds__(ASK_THREADS, 2) ask(tracer f, const ask_args a)
{
    __shared__ select_space space[GPU_MAIL];
    __shared__ int ids[GPU_MOST_CHOICES];
    __shared__ __align__(4) uint8_t where[GPU_MOST_CHOICES];
    __shared__ ask_view view;
    const int n_slot = a.n * a.chosen.k, warp = threadIdx.x / 32;
    int id = 0;
    float weight = 0.0f;
    bool cold = false;

    pdl_begin(f);
    pdl_wait(f);
    look_around(&view, a);
    send_vectors(a);
    if (warp < a.n) choose_token(&id, &weight, a.chosen, warp, &space[warp]);
    __syncthreads();
    if (warp < a.n) place_token(ids, where, a, &view, warp, id, weight);
    __syncthreads();
    const uint32_t number = view.number;
    for (int i = threadIdx.x; i < n_slot; i += ASK_THREADS) {
        cold |= where[i] != GPU_HOT;
        if (a.log) a.log[i] = (uint32_t)ids[i] | (uint32_t)where[i] << 16;
    }
    const bool wanted = __syncthreads_or(cold);
    if (wanted) write_question(a, ids, where);
    if (threadIdx.x == 0) *a.number = number;
    if (wanted || a.closes) __syncthreads();
    if (threadIdx.x == 0) {
        /* orders all writes of this block and of earlier kernels before the number; not needed in a
         * quiet layer, whose other data the host does not read */
        if (wanted || a.closes) __threadfence_system();
        a.mailbox->asked = number * GPU_CODES + (wanted ? 0 : GPU_QUIET);
    }
    pdl_end(f);
}

/* ---- the reply ------------------------------------------------------------------------------- */

typedef struct answer_args {
    const expert_slot *slots;
    int n_slot, n_embd;
    int mid_bytes;                       /* bytes of a slot's int8 form, or of its floats */
    const uint32_t *number;
    const volatile uint32_t *answered;   /* answered, by_host, mid, y: in the mailbox, in RAM */
    const uint8_t *by_host;
    const uint8_t *mid;
    const float *y;
    uint8_t *to_mid;                     /* in VRAM */
    float *to_y;
    uint8_t *host_made;
    host_wait *wait;
    bool early;                          /* ask is not the previous kernel, so its output can be
                                          * read before pdl_wait */
} answer_args;

/* The whole grid copies the rows of [n_row, width] that want selects, past caches, which may be out
 * of date. A thread issues its loads together, because each crosses the bus. */
template <typename T, typename Want>
static __device__ __forceinline__ void take_rows(T *to, const T *from, int n_row, int width,
                                                 Want want)
{
    const int step = gridDim.x * ANSWER_THREADS, n = n_row * width;
    for (int first = blockIdx.x * ANSWER_THREADS + threadIdx.x; first < n;
         first += ANSWER_LOADS * step) {
        T v[ANSWER_LOADS];
        bool wanted[ANSWER_LOADS];
        #pragma unroll
        for (int l = 0; l < ANSWER_LOADS; l++) {
            const int i = first + l * step;
            wanted[l] = i < n && want(i / width);
            if (wanted[l]) v[l] = __ldcv(from + i);
        }
        #pragma unroll
        for (int l = 0; l < ANSWER_LOADS; l++)
            if (wanted[l]) to[first + l * step] = v[l];
    }
}

template <typename Want>
static __device__ __forceinline__ void take_vectors(const answer_args &a, Want want)
{
    if (a.n_embd % 4 == 0)
        take_rows((uint4 *)a.to_y, (const uint4 *)a.y, a.n_slot, a.n_embd / 4, want);
    else
        take_rows((uint32_t *)a.to_y, (const uint32_t *)a.y, a.n_slot, a.n_embd, want);
}

/* Waits for the reply and copies it to VRAM. If early, nothing here depends on the previous kernel,
 * so pdl_wait is at the end, where it keeps the order for the next kernel. */
static __global__ void __launch_bounds__(ANSWER_THREADS) answer(tracer f, const answer_args a)
{
    __shared__ uint8_t where[GPU_MOST_CHOICES], made[GPU_MOST_CHOICES];
    const int own = threadIdx.x;         /* slot */
    uint8_t by_host = 0;

    pdl_begin(f);
    if (!a.early) pdl_wait(f);
    if (own < a.n_slot) where[own] = (uint8_t)__ldcg(&a.slots[own].where);
    if (!__syncthreads_or(own < a.n_slot && where[own] != GPU_HOT)) {    /* a quiet layer */
        if (own < a.n_slot && blockIdx.x == 0) a.host_made[own] = 0;
        if (a.early) pdl_wait(f);
        pdl_end(f);
        return;
    }
    if (threadIdx.x == 0) {
        /* if the limit passes, the kernel uses an old reply, and gpu_wait reports an error */
        wait_for_host(a.answered, __ldcg(a.number), a.wait);
        __threadfence_system();          /* orders all reads of the reply after the poll */
    }
    __syncthreads();
    if (own < a.n_slot && where[own] == GPU_COLD_FETCHED) by_host = __ldcv(a.by_host + own);
    take_vectors(a, [&](int slot) { return where[slot] == GPU_COLD; });
    /* copies mid even of slots that the host finished: by_host has not arrived yet */
    const auto fetched = [&](int slot) { return where[slot] == GPU_COLD_FETCHED; };
    if (a.mid_bytes % 16 == 0)
        take_rows((uint4 *)a.to_mid, (const uint4 *)a.mid, a.n_slot, a.mid_bytes / 16, fetched);
    else
        take_rows((uint32_t *)a.to_mid, (const uint32_t *)a.mid, a.n_slot, a.mid_bytes / 4,
                  fetched);
    if (own < a.n_slot) {
        made[own] = where[own] == GPU_COLD || by_host;
        if (blockIdx.x == 0) a.host_made[own] = made[own];
    }
    __syncthreads();
    take_vectors(a, [&](int slot) { return where[slot] == GPU_COLD_FETCHED && made[slot]; });
    if (a.early) pdl_wait(f);
    pdl_end(f);
}

/* ---- the layer ------------------------------------------------------------------------------- */

#define ALL_TYPES(X) GPU_BLOCK_TYPES(X) GPU_FLOAT_TYPES(X)

static void up_by_type(gpu *g, launch_stream at, int type, const split_up_args *a, uint64_t bytes)
{
    LAUNCH_UP(ALL_TYPES)
}

static void down_by_type(gpu *g, launch_stream at, int type, const split_down_args *a, int n,
                         uint64_t bytes)
{
    LAUNCH_DOWN(ALL_TYPES)
}

static void fork_side(gpu *g)
{
    gpu_fail(g, cudaEventRecord(g->fork, g->stream), "split layer");
    gpu_fail(g, cudaStreamWaitEvent(g->side, g->fork, 0), "split layer");
    if (g->predicting) gpu_fail(g, cudaStreamWaitEvent(g->side, g->predicted, 0), "split layer");
    g->predicting = false;
}

/* Makes the main stream wait for the streams side and reply. */
static void join_side(gpu *g)
{
    gpu_fail(g, cudaEventRecord(g->join, g->side), "split layer");
    gpu_fail(g, cudaEventRecord(g->replied, g->reply), "split layer");
    gpu_fail(g, cudaStreamWaitEvent(g->stream, g->join, 0), "split layer");
    gpu_fail(g, cudaStreamWaitEvent(g->stream, g->replied, 0), "split layer");
}

static void fetch_slabs(gpu *g, launch_stream at, const layer_args *layer, const gpu_expert_args *a,
                        const gpu_with_host *s, const split_scratch *scratch)
{
    const gpu_bank *bank[3] = { &a->gate, &a->up, &a->down };
    pull_args pulled = {};

    pulled.slots = scratch->slots;
    pulled.k = a->k;
    for (int i = 0; i < 3; i++)
        pulled.bytes[i] = (uint32_t)((uint64_t)bank[i]->rows * bank[i]->row_bytes);
    pulled.number = s->number;
    pulled.state = scratch->pull;
    pulled.fetched = s->mailbox->fetched;
    pulled.fetch_ns = &s->mailbox->fetch_ns;
    launch_at(g, at, "fetch", 0, pull, pull_blocks(g), PULL_THREADS, 0, pulled);
    gpu_fail(g, cudaEventRecord(g->pulled, at.stream), "split layer");
    if (s->pad_all == 0) return;         /* no expert is fetched whole */

    split_up_args up = {};
    (up_args &)up = layer->up;
    up.n_shared = 0;
    up.slots = scratch->slots;
    up.want = GPU_FETCHED;
    up_by_type(g, at, a->gate.type, &up, 0);
}

static void take_answer(gpu *g, launch_stream at, const layer_args *layer,
                        const gpu_expert_args *a, const gpu_with_host *s,
                        const split_scratch *scratch, bool early)
{
    const bool floats = is_float_weight(a->down.type);
    const uint64_t units = (uint64_t)layer->down.n_slot * (uint64_t)layer->down.n_embd / 4;
    const unsigned n_block = ceil_div(units, 2 * ANSWER_THREADS);
    answer_args args = {};

    args.slots = scratch->slots;
    args.n_slot = layer->down.n_slot;
    args.n_embd = layer->down.n_embd;
    args.mid_bytes = floats ? layer->down.n_ff * (int)sizeof(float)
                            : (int)gpu_blocks_bytes(layer->down.n_ff);
    args.number = s->number;
    args.answered = &s->mailbox->answered;
    args.by_host = s->mailbox->by_host;
    args.mid = floats ? (const uint8_t *)s->mailbox->mid_rows : s->mailbox->mid;
    args.y = s->mailbox->y;
    args.to_mid = floats ? (uint8_t *)layer->scratch.mid_rows : layer->scratch.mid;
    args.to_y = scratch->host_y;
    args.host_made = scratch->host_made;
    args.wait = g->wait;
    args.early = early;
    launch_at(g, at, "answer", 0, answer,
              n_block < 1 ? 1u : n_block > ANSWER_MOST ? (unsigned)ANSWER_MOST : n_block,
              ANSWER_THREADS, 0, args);
}

void gpu_experts_with_host(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s)
{
    const int n = in->n;
    if (n < 1 || n > GPU_MAIL || a->k > SELECT_MAX_K || a->n_expert > SELECT_MAX_EXPERT ||
        !in->rows || !in->blocks || s->mailbox->n_embd != a->down.rows ||
        s->mailbox->n_ff != a->gate.rows)
        gpu_fail(g, cudaErrorInvalidValue, "split layer: arguments");
    if (g->failure != cudaSuccess || !few_choice_fits(g, a)) return;

    few_input(g, in);
    const layer_args layer = layer_args_of(in, a);
    const split_scratch scratch = split_layout(s->scratch, a->k, a->down.rows);
    const bool fetches = n == 1 && s->slabs && s->fetch && s->pad && s->pad_down + s->pad_all > 0;
    const bool forks = fetches && !s->one_stream;
    const bool predicts = n == 1 && s->prediction_state && !s->one_stream && s->next.router.data;
    const prediction_parts prediction =
        prediction_layout(s->prediction_state, a->n_expert, a->down.rows);
    bool early = fetches && !forks;
    ask_args asked = {};

    asked.chosen = layer.up.chosen;
    asked.n = n;
    asked.n_embd = a->down.rows;
    asked.x = in->rows;
    asked.hot = s->hot;
    asked.gate = layer.up.gate;
    asked.up = layer.up.up;
    asked.down = layer.down.down;
    asked.slabs = fetches ? s->slabs : NULL;
    asked.fetch = s->fetch;
    asked.pad = pad_of(a, s->pad, s->pad_down, s->pad_all);
    if (predicts) {
        asked.prediction_x = prediction_vector(&prediction, s->prediction_layer);
        asked.prediction_number = prediction_number(&prediction, s->prediction_layer);
    }
    asked.slots = scratch.slots;
    asked.number = s->number;
    asked.log = s->chosen;
    asked.closes = s->closes;
    asked.mailbox = s->mailbox;
    asked.mailbox_x = s->mailbox->x;
    launch(g, "ask", 0, ask, 1, ASK_THREADS, 0, asked);

    if (forks) {
        fork_side(g);
        fetch_slabs(g, { g->side, false }, &layer, a, s, &scratch);
        gpu_fail(g, cudaStreamWaitEvent(g->reply, g->pulled, 0), "split layer");
        take_answer(g, { g->reply, false }, &layer, a, s, &scratch, false);
        if (predicts) prediction_next(g, s, &prediction, a->k);
    } else if (fetches) {
        fetch_slabs(g, main_stream(g), &layer, a, s, &scratch);
    } else if (predicts) {
        gpu_fail(g, cudaEventRecord(g->fork, g->stream), "split layer");
        prediction_next(g, s, &prediction, a->k);
    }
    if (layer.apart) {
        shared_apart(g, in, a, &layer.scratch);
        early = true;
    }
    if (s->parallel) {
        gpu_network(g, s->parallel_in, s->parallel);
        early = true;
    }
    if (s->hot || layer.up.n_shared) {
        split_up_args up = {};
        (up_args &)up = layer.up;
        up.slots = scratch.slots;
        up.want = GPU_HOT;
        up_by_type(g, main_stream(g), a->gate.type, &up,
                   (uint64_t)up.n_shared * (a->gate.row_bytes + a->up.row_bytes) *
                       (uint64_t)a->gate.rows);
        early = true;
    }
    launch_stream at = main_stream(g);
    if (!forks && s->closes && g->predicting) {
        gpu_fail(g, cudaStreamWaitEvent(g->stream, g->predicted, 0), "split layer");
        g->predicting = at.dependent = false;
    }
    if (forks) join_side(g);
    else take_answer(g, at, &layer, a, s, &scratch, early);

    split_down_args down = {};
    (down_args &)down = layer.down;
    down.slots = scratch.slots;
    down.host_made = scratch.host_made;
    down.host_y = scratch.host_y;
    down_by_type(g, { g->stream, g->dependent_launch && !forks }, a->down.type, &down, n,
                 (uint64_t)layer.up.n_shared * a->down.row_bytes * (uint64_t)a->down.rows);
}
