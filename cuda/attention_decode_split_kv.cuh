/* attention_decode_split_kv.cuh - common code of attention_decode.cuh and attention_decode_mma.cu:
 * cuts a token's keys into ranges, prepares the token's own heads, and merges the ranges.
 *
 * A block computes one range for some of the query heads that share a key head. The last block to
 * finish merges the ranges, or a separate kernel if there are more than MERGE_RANGES. For a single
 * token, the block of the last range norms, rotates and stores the token's key and value. Scores
 * and maxima are exponents of 2.
 *
 * A token's bits do not depend on the other tokens of the launch: its position alone decides its
 * ranges and its kernel, ranges are merged in one order, and the number of heads of a block, which
 * depends on all tokens, does not enter any sum. */
#ifndef CUDA_ATTENTION_DECODE_SPLIT_KV_CUH
#define CUDA_ATTENTION_DECODE_SPLIT_KV_CUH

#include "cuda/kv_rows.cuh"

enum {
    THREADS = 256, WARPS = THREADS / 32,
    MAX_HEADS = 8,                       /* query heads of a block, at most */
    MAX_RANGES = 64, MERGE_RANGES = 32,  /* most ranges; most ranges that the last block merges */
    CHAINS = 4,                          /* of sums in a merge: range i is in chain i % CHAINS */
    REACHES = 4                          /* classes of positions: below 1024, 2048, 4096, others */
};

/* Keys from which blocks have MAX_HEADS heads, to read keys only once, and F16 stores use
 * attention_decode_mma.cu. The last class has as many, unless there is a window. */
enum { MANY_KEYS = GPU_LEAST_REACH << (REACHES - 1) };

static __host__ __device__ __forceinline__ int reach_of(int pos)
{
    int c = 0;
    while (c < REACHES - 1 && pos >= GPU_LEAST_REACH << c) c++;
    return c;
}

/* Least length of a range: the number of keys that all warps request at once (key_batch). */
static __host__ __device__ __forceinline__ int least_range_keys(int dim)
{
    return dim > 128 ? 32 : dim > 64 ? 64 : 128;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

typedef struct range_args {
    gpu_attention a;
    int group;                           /* query heads of a key head */
    int n_part;                          /* blocks that divide these heads */
    int max_ranges;                      /* of any token */
    int room[REACHES];                   /* ranges of a token, at most, by the class of its
                                          * position; 0: another launch computes it */
    bool whole;                          /* one token: the kernel also norms, rotates and stores */
} range_args;

static const float LOG2_E = 1.44269504f;

/* The ranges of a token's keys; n_range 0: another launch has them. */
typedef struct range_plan {
    int lowest, n_key, range_keys, n_range;
} range_plan;

static __device__ __forceinline__ range_plan plan_ranges(const range_args &r, int pos)
{
    const int window = r.a.window, room = r.room[reach_of(pos)];
    range_plan p = {};
    if (room == 0) return p;
    p.lowest = window > 0 && pos >= window ? pos - window + 1 : 0;
    p.n_key = pos - p.lowest + 1;
    const int each = (p.n_key + room - 1) / room;
    p.range_keys = max(least_range_keys(r.a.head_dim), (each + 15) / 16 * 16);
    p.n_range = (p.n_key + p.range_keys - 1) / p.range_keys;
    return p;
}

/* One warp loads a head, norms and rotates it, and stores it to shared memory. All loads are issued
 * before the first use. begin loads weight and tables, and may run before the head is ready. */
template <int DIM> struct head_maker {
    enum { EACH = DIM / 32 };
    float gain[EACH], cosine[EACH], sine[EACH];          /* for dimension lane + 32 i */
    bool normed;

    __device__ __forceinline__ void begin(const float *weight, const gpu_attention &a)
    {
        const int lane = threadIdx.x % 32;
        normed = weight != NULL;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = lane + 32 * i;
            gain[i] = weight ? weight[d] : 1.0f;
            if (d < a.rope_dim / 2) {
                cosine[i] = a.cosine[d];
                sine[i] = a.sine[d];
            }
        }
    }

    __device__ __forceinline__ void make(float *head, const float *from, const gpu_attention &a)
    {
        const int lane = threadIdx.x % 32, half = a.rope_dim / 2;
        float v[EACH];
        #pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = from[lane + 32 * i];
        if (normed) {
            const float scale = head_scale(v, DIM, a.eps);
            #pragma unroll
            for (int i = 0; i < EACH; i++) v[i] = __fmul_rn(__fmul_rn(v[i], scale), gain[i]);
        }
        #pragma unroll
        for (int i = 0; i < EACH; i++) head[lane + 32 * i] = v[i];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = lane + 32 * i;
            if (d < half) {
                const float lower = head[d], upper = head[d + half];
                head[d] = rotated_low(lower, upper, cosine[i], sine[i]);
                head[d + half] = rotated_high(lower, upper, cosine[i], sine[i]);
            }
        }
        __syncwarp();
    }
};

/* One warp sets x = x / rms(x). Each lane reads only values that it wrote. */
template <int DIM> static __device__ __forceinline__ void norm_value(float *x, float eps)
{
    float v[DIM / 32];
    #pragma unroll
    for (int i = 0; i < DIM / 32; i++) v[i] = x[threadIdx.x % 32 + 32 * i];
    const float scale = head_scale(v, DIM, eps);
    #pragma unroll
    for (int i = 0; i < DIM / 32; i++) x[threadIdx.x % 32 + 32 * i] = __fmul_rn(v[i], scale);
}

/* The work of a block. */
typedef struct range_work {
    int t, kv_head, head0, n_head;       /* token; key head; query heads */
    int range, n_range, begin, end;      /* keys */
    int own;                             /* the token's own key if this block stores it, or -1 */
    int n_make;                          /* heads to be prepared: queries, own key and value */
    size_t row_bytes;
    page_table pages;
    size_t keys, values;                 /* offsets of the key head's rows in a page */
    uint8_t *own_row[2];                 /* rows of the own key and of its value */
} range_work;

/* whole: r.whole; some callers pass a constant. */
template <int HEADS>
static __device__ __forceinline__ range_work work_of(const range_args &r, size_t row_bytes,
                                                     bool whole)
{
    const gpu_attention &a = r.a;
    range_work w;
    w.t = blockIdx.z;
    w.kv_head = blockIdx.y / r.n_part;
    w.head0 = w.kv_head * r.group + (blockIdx.y - w.kv_head * r.n_part) * HEADS;
    w.n_head = min((int)HEADS, (w.kv_head + 1) * r.group - w.head0);
    const row_token token = row_token_of(a.cursor, w.t);
    const range_plan p = plan_ranges(r, pos_of(token));
    w.range = blockIdx.x;
    w.n_range = p.n_range;
    w.begin = p.lowest + w.range * p.range_keys;
    w.end = min(w.begin + p.range_keys, p.lowest + p.n_key);
    w.own = whole && a.k && w.range == p.n_range - 1 ? w.end - 1 : -1;
    w.n_make = w.n_head + (w.own >= 0 ? 2 : 0);
    w.row_bytes = row_bytes;
    w.pages = pages_of(a, token.row);
    w.keys = head_offset(a, false, w.kv_head, row_bytes);
    w.values = head_offset(a, true, w.kv_head, row_bytes);
    if (w.own >= 0) {
        uint8_t *row = w.pages.of(w.own) + (size_t)(w.own % GPU_PAGE) * row_bytes;
        w.own_row[0] = row + w.keys;
        w.own_row[1] = row + w.values;
    }
    return w;
}

/* Prepares the queries, then the token's own key and value; each warp takes every WARPS-th head.
 * maker: begin was called for the warp's first head. own: gets key and value; fresh: NULL, or gets
 * both in stored form. The block must synchronise before it reads them. */
template <int KV, int DIM, int HEADS>
static __device__ __forceinline__ void make_heads(const range_args &r, const range_work &w,
                                                  bool whole, float (*queries)[DIM],
                                                  float (*own)[DIM], uint8_t (*fresh)[DIM * 4],
                                                  head_maker<DIM> &maker)
{
    const gpu_attention &a = r.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < w.n_make; i += WARPS) {
        const bool is_query = i < w.n_head, is_value = i == w.n_head + 1;
        const float *from = is_query ? a.q + (size_t)w.t * a.q_stride +
                                       (size_t)(w.head0 + i) * a.q_head_stride
                                     : (is_value ? a.v : a.k) + (size_t)w.kv_head * DIM;
        float *to = is_query ? queries[i] : own[is_value];
        if (whole && !is_value) {
            if (HEADS + 2 > WARPS && i != warp) maker.begin(is_query ? a.q_norm : a.k_norm, a);
            maker.make(to, from, a);
        } else {
            #pragma unroll
            for (int c = lane; c < DIM; c += 32) to[c] = from[c];
            if (is_value && a.norm_values) norm_value<DIM>(to, a.eps);
        }
        if (!is_query) {
            #pragma unroll
            for (int c = lane; c < DIM; c += 32) {
                kv_row<KV>::store(is_value ? w.own_row[1] : w.own_row[0], c, to[c]);
                if (fresh) kv_row<KV>::store(fresh[is_value], c, to[c]);
            }
        }
        if (HEADS + 2 <= WARPS) break;   /* a warp has at most one head */
    }
}

/* ---- merging ranges -------------------------------------------------------------------------- */

/* Address in `partial` of a range's result for a head: the sum of weighted values, undivided. After
 * all sums come the maxima and the sums of weights. head: index over all tokens. */
template <int DIM>
static __device__ __forceinline__ float *range_values(const range_args &r, size_t head, int range)
{
    return r.a.partial + (head * r.max_ranges + range) * DIM;
}

template <int DIM>
static __device__ __forceinline__ float2 *range_stats(const range_args &r, size_t head, int range)
{
    float *behind = r.a.partial + (size_t)r.a.n * r.a.n_head * MAX_RANGES * DIM;
    return (float2 *)behind + head * r.max_ranges + range;
}

/* Adds chain c + N / 2 to chain c, then the upper half of the rest to the lower one, and so on. If
 * several threads share the chains, each folds its own first: the same tree. */
template <int N> static __device__ __forceinline__ void fold_chains(float4 (&v)[N])
{
    #pragma unroll
    for (int n = N / 2; n > 0; n /= 2)
        #pragma unroll
        for (int c = 0; c < n; c++) {
            v[c].x = __fadd_rn(v[c].x, v[c + n].x);
            v[c].y = __fadd_rn(v[c].y, v[c + n].y);
            v[c].z = __fadd_rn(v[c].z, v[c + n].z);
            v[c].w = __fadd_rn(v[c].w, v[c + n].w);
        }
}

/* The whole block merges the ranges of n_head heads from head0 on, at most HEADS, and adds sinks. A
 * thread has four dimensions; if the heads do not need all threads, several threads (SHARES) divide
 * the chains. The first loads are issued before the weights are known; with many ranges all loads
 * are, because that kernel has enough registers. */
template <int DIM, int HEADS, int RANGES>
static __device__ __forceinline__ void merge_heads(const range_args &r, int n_range, int t,
                                                   int head0, int n_head)
{
    enum {
        QUADS = DIM / 4,                         /* threads of a head */
        TOGETHER = HEADS * QUADS <= THREADS ? HEADS : THREADS / QUADS,
        ROOM = THREADS / (TOGETHER * QUADS),
        SHARES = ROOM < CHAINS ? ROOM : CHAINS,
        OWN = CHAINS / SHARES,           /* chains of a thread: share, share + SHARES, ... */
        MANY = RANGES / SHARES < 16 ? RANGES / SHARES : 16,
        ASKED = RANGES > MERGE_RANGES ? MANY : 4,               /* quads loaded at a time */
        EACH = (RANGES + 31) / 32                /* ranges of a lane */
    };
    static_assert((HEADS & (HEADS - 1)) == 0 && THREADS % (TOGETHER * QUADS) == 0, "even shares");
    static_assert(SHARES == 1 || TOGETHER == HEADS, "shares are found once");
    static_assert(ASKED % OWN == 0, "quad c of a thread is of its chain c % OWN");
    const gpu_attention &a = r.a;
    __shared__ float factor[HEADS][RANGES];
    __shared__ __align__(16) float4 found[SHARES][TOGETHER * QUADS];
    const size_t first = (size_t)t * a.n_head + head0;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int share = threadIdx.x / (TOGETHER * QUADS), quad = threadIdx.x % (TOGETHER * QUADS);
    float4 v[ASKED];
    const auto ask = [&](int h0, int i0) {
        const int h = h0 + quad / QUADS;
        #pragma unroll
        for (int c = 0; c < ASKED; c++) {
            const int i = i0 + c * SHARES;
            if (i < n_range && h < n_head)
                v[c] = __ldcg((const float4 *)range_values<DIM>(r, first + h, i) + quad % QUADS);
        }
    };

    if (share < SHARES) ask(0, share);
    for (int h = warp; h < n_head; h += WARPS) {         /* a warp for each head's weights */
        const float sink = a.sinks ? __fmul_rn(a.sinks[head0 + h], LOG2_E) : -INFINITY;
        float top = sink, total = 0.0f;
        float2 stats[EACH];
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            stats[i] = make_float2(-INFINITY, 0.0f);
            if (lane + 32 * i < n_range)
                stats[i] = __ldcg(range_stats<DIM>(r, first + h, lane + 32 * i));
            top = fmaxf(top, stats[i].x);
        }
        #pragma unroll
        for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            total = fmaf(stats[i].y, power_of_2(stats[i].x - top), total);
        total = warp_sum(total) + power_of_2(sink - top);
        const float inverse = 1.0f / total;
        #pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i < n_range)
                factor[h][lane + 32 * i] = __fmul_rn(power_of_2(stats[i].x - top), inverse);
    }
    __syncthreads();
    for (int h0 = 0; h0 < n_head; h0 += TOGETHER) {      /* TOGETHER heads at a time */
        const int h = h0 + quad / QUADS;
        float4 sum[OWN] = {};
        if (h0 > 0) ask(h0, share);
        for (int i0 = share; i0 < n_range && share < SHARES; i0 += ASKED * SHARES) {
            if (i0 > share) ask(h0, i0);
            #pragma unroll
            for (int c = 0; c < ASKED; c++) {
                const int i = i0 + c * SHARES;
                if (i >= n_range || h >= n_head) break;
                const float w = factor[h][i];
                float4 &to = sum[c % OWN];
                to.x = fmaf(w, v[c].x, to.x);
                to.y = fmaf(w, v[c].y, to.y);
                to.z = fmaf(w, v[c].z, to.z);
                to.w = fmaf(w, v[c].w, to.w);
            }
        }
        fold_chains(sum);
        if (SHARES > 1) {
            if (share < SHARES) found[share][quad] = sum[0];
            __syncthreads();
            float4 all[SHARES];
            #pragma unroll
            for (int i = 0; i < SHARES; i++) all[i] = found[i][quad];
            fold_chains(all);
            sum[0] = all[0];
        }
        if (share == 0 && h < n_head)
            ((float4 *)(a.out + (first + h) * DIM))[quad % QUADS] = sum[0];
    }
}

/* Maximum and sum of weights of head h over the warps of a block. */
static __device__ __forceinline__ float2 join_stats(const float (*top)[MAX_HEADS],
                                                    const float (*sum)[MAX_HEADS], int h)
{
    float2 s = make_float2(-INFINITY, 0.0f);
    for (int w = 0; w < WARPS; w++) s.x = fmaxf(s.x, top[w][h]);
    for (int w = 0; w < WARPS; w++) s.y = fmaf(sum[w][h], power_of_2(top[w][h] - s.x), s.y);
    return s;
}

/* Stores dimension c of head h of a block's range: undivided for the merge, or divided if the token
 * has only one range. */
template <int DIM>
static __device__ __forceinline__ void store_value(const range_args &r, const range_work &w, int h,
                                                   int c, float value, float2 stats)
{
    const size_t head = (size_t)w.t * r.a.n_head + w.head0 + h;
    if (w.n_range == 1) {
        if (r.a.sinks)
            stats.y += power_of_2(__fsub_rn(__fmul_rn(r.a.sinks[w.head0 + h], LOG2_E), stats.x));
        r.a.out[head * DIM + c] = value / stats.y;
        return;
    }
    range_values<DIM>(r, head, w.range)[c] = value;
    if (c == 0) *range_stats<DIM>(r, head, w.range) = stats;
}

/* Joins PASS dimensions from `first` on of the results of a block's warps. The block has
 * synchronised before the call; it synchronises again at the end. */
template <int DIM, int PASS, int HEADS>
static __device__ __forceinline__ void store_pass(const range_args &r, const range_work &where,
                                                  const float (*found)[HEADS][PASS],
                                                  const float (*top)[MAX_HEADS],
                                                  const float (*sum)[MAX_HEADS], int first)
{
    for (int i = threadIdx.x; i < where.n_head * PASS; i += THREADS) {
        const int h = i / PASS, c = i % PASS;
        const float2 stats = join_stats(top, sum, h);
        float value = 0.0f;
        for (int w = 0; w < WARPS; w++)
            value = fmaf(found[w][h][c], power_of_2(top[w][h] - stats.x), value);
        store_value<DIM>(r, where, h, first + c, value, stats);
    }
    __syncthreads();
}

/* Increments the counter and returns its old value. Blocks that count later see all writes that
 * this block made before its last synchronisation. */
static __device__ __forceinline__ uint32_t count_done(uint32_t *counter)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* Called by all threads of all blocks of a token and some of its heads, after they have stored
 * their ranges and synchronised. */
template <int DIM, int HEADS>
static __device__ __forceinline__ void merge_if_last(const range_args &r, const range_work &w)
{
    __shared__ bool is_last;
    if (w.n_range == 1 || r.max_ranges > MERGE_RANGES) return;
    uint32_t *counter = r.a.counters + (size_t)w.t * r.a.n_head + blockIdx.y;
    if (threadIdx.x == 0) is_last = count_done(counter) == (uint32_t)w.n_range - 1;
    __syncthreads();
    if (!is_last) return;
    merge_heads<DIM, HEADS, MERGE_RANGES>(r, w.n_range, w.t, w.head0, w.n_head);
    if (threadIdx.x == 0) *counter = 0;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Keys of the tokens at positions of a class, at most. */
static inline int keys_of_reach(const gpu_attention *a, int c)
{
    const int reach = c < REACHES - 1 ? GPU_LEAST_REACH << c : MANY_KEYS;
    return a->window > 0 && a->window < reach ? a->window : reach;
}

/* blocks: those of a token's heads that can be active at once. */
static inline int room_for(int blocks)
{
    return blocks < 1 ? 1 : blocks > MAX_RANGES ? MAX_RANGES : blocks;
}

/* Arguments of a launch for tokens of the classes first .. end - 1; room: of each class. A single
 * token is of the class that a->last says. n_part depends on the kernel. */
static inline range_args range_args_of(const gpu_attention *a, const int (&room)[REACHES],
                                       int first, int end)
{
    const int most = a->window > 0 && a->window < a->last ? a->window : a->last;
    range_args r = { *a, a->n_head / a->n_head_kv, 0, 1, {}, a->n == 1 };
    for (int c = first; c < end; c++) {
        const int keys = c < REACHES - 1 ? keys_of_reach(a, c) : most;
        const int useful = (int)ceil_div((uint64_t)keys, (uint64_t)least_range_keys(a->head_dim));
        const int n = useful < room[c] ? useful : room[c];
        r.room[c] = room[c];
        if (n > r.max_ranges) r.max_ranges = n;
    }
    for (int c = 0; c < REACHES && a->n == 1; c++) r.room[c] = room[first];
    return r;
}

/* Blocks of attention_decode_mma.cu on a multiprocessor. */
static inline int mma_blocks(int dim) { return dim > 128 ? 1 : dim > 64 ? 2 : 3; }

/* The attention of the tokens of the last class over F16 keys; head sizes 64, 128 and 256. */
void attention_decode_mma(gpu *g, const range_args *r);

template <int DIM>
static __global__ void __launch_bounds__(THREADS) decode_merge(tracer f, const range_args r)
{
    pdl_begin(f);
    pdl_wait(f);
    const int pos = pos_of(row_token_of(r.a.cursor, blockIdx.y));
    const range_plan p = plan_ranges(r, pos);
    if (p.n_range > 1) merge_heads<DIM, 1, MAX_RANGES>(r, p.n_range, blockIdx.y, blockIdx.x, 1);
    pdl_end(f);
}

/* Launches the kernel that merges more than MERGE_RANGES ranges. */
template <int DIM> static void launch_merge(gpu *g, const range_args &r)
{
    if (r.max_ranges > MERGE_RANGES)
        launch(g, "attention", 0, decode_merge<DIM>,
               dim3((unsigned)r.a.n_head, (unsigned)r.a.n), THREADS, 0, r);
}

#endif
