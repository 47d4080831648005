/* attend.cu - attention of up to GPU_FEW tokens over a long store of keys.
 *
 * The keys that a token sees are cut into runs; a block takes one run and some of the query heads
 * that share a key head. Threads hold eight dimensions each:
 * head_dim / 8 of them make a key's score, and a warp works on several keys at a time, four rounds
 * before it looks at the maximum. What the runs found is merged by the block that comes last, or,
 * where runs are many, by a second kernel.
 *
 * For a single token, norm, rotation and the store of its key and value are part of the same
 * kernel, done by the block whose run ends with it. All other keys are old: a block asks for its
 * first ones before it waits for the queries. */
#include "cuda/device.cuh"
#include "cuda/many.cuh"

enum {
    THREADS = 256, WARPS = THREADS / 32,
    FEW_HEADS = 4, MANY_HEADS = 8,       /* query heads of a block: few for a short way, many read
                                          * keys once where there are many */
    MANY_KEYS = 8192,                    /* from so many on */
    ROUNDS = 4,                          /* keys of a thread between two looks at the maximum */
    MAX_RUNS = 64, MERGE_RUNS = 16       /* at most, and merged by the block that comes last */
};

/* ---- rows of the store ------------------------------------------------------------------------- */

/* Eight dimensions from d on of a row: raw as they lie there, then as floats. store: one dimension
 * of a row, 32 in succession by a warp; returns what load will give. */
template <int KV> struct kv_row;

template <> struct kv_row<GPU_KV_F32> {
    typedef struct raw { float4 a, b; } raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 4; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        return { *(const float4 *)(row + 4 * d), *(const float4 *)(row + 4 * d + 16) };
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        v[0] = r.a.x; v[1] = r.a.y; v[2] = r.a.z; v[3] = r.a.w;
        v[4] = r.b.x; v[5] = r.b.y; v[6] = r.b.z; v[7] = r.b.w;
    }
    static __device__ __forceinline__ float store(uint8_t *row, int d, float v)
    {
        return ((float *)row)[d] = v;
    }
};

template <> struct kv_row<GPU_KV_F16> {
    typedef uint4 raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 2; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        return *(const uint4 *)(row + 2 * d);
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        const uint32_t w[4] = { r.x, r.y, r.z, r.w };
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = __half22float2(*(const __half2 *)&w[i]);
            v[2 * i] = two.x;
            v[2 * i + 1] = two.y;
        }
    }
    static __device__ __forceinline__ float store(uint8_t *row, int d, float v)
    {
        return __half2float(((__half *)row)[d] = __float2half_rn(v));
    }
};

template <> struct kv_row<GPU_KV_Q8_0> {
    typedef struct raw { uint16_t scale, codes[4]; } raw;
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim / 32 * 34; }
    static __device__ __forceinline__ raw load(const uint8_t *row, int d)
    {
        const uint16_t *block = (const uint16_t *)(row + d / 32 * 34);
        const uint16_t *codes = block + 1 + d % 32 / 2;
        return { block[0], { codes[0], codes[1], codes[2], codes[3] } };
    }
    static __device__ __forceinline__ void widen(float (&v)[8], const raw &r)
    {
        const float scale = __half2float(__ushort_as_half(r.scale));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = scale * (float)(int8_t)r.codes[i];
            v[2 * i + 1] = scale * (float)(int8_t)(r.codes[i] >> 8);
        }
    }
    /* as encode_q8_0 of engine/kv.c; 32 lanes are a block */
    static __device__ __forceinline__ float store(uint8_t *row, int d, float v)
    {
        uint8_t *block = row + d / 32 * 34;
        uint32_t largest = __float_as_uint(v) & 0x7FFFFFFFu;
        for (int s = 16; s > 0; s >>= 1) largest = max(largest, __shfl_xor_sync(~0u, largest, s));
        const __half half = __float2half_rn(__fdiv_rn(__uint_as_float(largest), 127.0f));
        const float scale = __half2float(half);
        int code = __float_as_uint(v) >> 31 ? -1 : 1;
        if (scale > 0.0f && isfinite(scale))
            code = max(-127, min(127, __float2int_rn(__fdiv_rn(v, scale))));
        if (d % 32 == 0) *(__half *)block = half;
        block[2 + d % 32] = (uint8_t)code;
        return scale * (float)code;
    }
};

/* Least length of a run: two rounds of all warps at most. */
static __host__ __device__ __forceinline__ int run_keys(int dim) { return dim > 128 ? 64 : 128; }

/* ---- one run ------------------------------------------------------------------------------------ */

typedef struct run_args {
    gpu_attention a;
    int n_part;                          /* blocks that share a key head's queries */
    int max_runs;
    bool whole;                          /* norm, rotation and store are to be done here */
} run_args;

/* How a token's keys are cut. */
typedef struct run_plan {
    int lowest, n_key, per_run, n_run;
} run_plan;

static __device__ __forceinline__ run_plan plan_runs(const gpu_attention &a, int t, int max_runs)
{
    const int pos = a.at->pos + t;
    run_plan p;
    p.lowest = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    p.n_key = pos - p.lowest + 1;
    const int each = (p.n_key + max_runs - 1) / max_runs;
    p.per_run = max_runs == 1 ? p.n_key : max(run_keys(a.head_dim), (each + 15) / 16 * 16);
    p.n_run = (p.n_key + p.per_run - 1) / p.per_run;
    return p;
}

/* A head on its way from global to shared memory, by one warp: norm, then rotation. All loads are
 * issued before the first is used; weight and tables may be asked for before the head is there. */
template <int DIM> struct head_maker {
    enum { EACH = DIM / 32 };
    float gain[EACH], cosine[EACH], sine[EACH];          /* of d = lane + 32 i */
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
        float v[EACH], sum = 0.0f;
        #pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = from[lane + 32 * i];
        if (normed) {
            #pragma unroll
            for (int i = 0; i < EACH; i++) sum = fmaf(v[i], v[i], sum);
            const float scale = 1.0f / sqrtf(warp_sum(sum) / DIM + a.eps);
            #pragma unroll
            for (int i = 0; i < EACH; i++) v[i] = v[i] * scale * gain[i];
        }
        #pragma unroll
        for (int i = 0; i < EACH; i++) head[lane + 32 * i] = v[i];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = lane + 32 * i;
            if (d < half) {
                const float lower = head[d], upper = head[d + half];
                head[d] = lower * cosine[i] - upper * sine[i];
                head[d + half] = lower * sine[i] + upper * cosine[i];
            }
        }
        __syncwarp();
    }
};

/* Keys and values of ROUNDS keys of a thread, as they lie in the store. */
template <int KV> struct key_batch {
    typename kv_row<KV>::raw k[ROUNDS], v[ROUNDS];

    /* rows: all keys, or values, of the head; key0: the warp's first. Keys at or above end are
     * zeros: what lies there may be anything. */
    template <int DIM>
    static __device__ __forceinline__ void load(typename kv_row<KV>::raw (&to)[ROUNDS],
                                                const gpu_attention &a, const uint8_t *rows,
                                                int key0, int end)
    {
        enum { LANES = DIM / 8, KEYS = 32 / LANES };
        const int lane = threadIdx.x % 32, d = lane % LANES * 8;
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int key = key0 + i * KEYS + lane / LANES;
            to[i] = {};
            if (key < end)
                to[i] = kv_row<KV>::load(rows + (size_t)(key % a.kv_rows) * kv_row<KV>::bytes(DIM),
                                         d);
        }
    }
};

/* Where a run leaves what it found of a head: its sum of values, undivided, and behind all of those
 * its maximum and its sum of weights. head: of all tokens. */
template <int DIM> static __device__ __forceinline__ float *run_values(const run_args &r, size_t head,
                                                                       int run)
{
    return r.a.partial + (head * r.max_runs + run) * DIM;
}
template <int DIM> static __device__ __forceinline__ float2 *run_stats(const run_args &r, size_t head,
                                                                       int run)
{
    float *behind = r.a.partial + (size_t)GPU_FEW * r.a.n_head * MAX_RUNS * DIM;
    return (float2 *)behind + head * r.max_runs + run;
}

/* The runs of n_head heads from head0 on, brought together by the whole block; sinks join here.
 * Threads take four dimensions each; where there are threads left, they share the runs. */
template <int DIM>
static __device__ __forceinline__ void merge_heads(const run_args &r, int n_run, int t, int head0,
                                                   int n_head)
{
    enum { QUADS = DIM / 4 };
    const gpu_attention &a = r.a;
    __shared__ float factor[MANY_HEADS][MAX_RUNS];
    __shared__ __align__(16) float4 found[THREADS];
    const size_t first = (size_t)t * a.n_head + head0;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int h = warp; h < n_head; h += WARPS) {         /* a warp for each head's weights */
        float top = a.sinks ? a.sinks[head0 + h] : -INFINITY, total = 0.0f;
        float2 stats[MAX_RUNS / 32];
        #pragma unroll
        for (int i = 0; i < MAX_RUNS / 32; i++) {
            stats[i] = make_float2(-INFINITY, 0.0f);
            if (lane + 32 * i < n_run)
                stats[i] = __ldcg(run_stats<DIM>(r, first + h, lane + 32 * i));
            top = fmaxf(top, stats[i].x);
        }
        for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
        #pragma unroll
        for (int i = 0; i < MAX_RUNS / 32; i++)
            total = fmaf(stats[i].y, expf(stats[i].x - top), total);
        total = warp_sum(total);
        if (a.sinks) total += expf(a.sinks[head0 + h] - top);
        #pragma unroll
        for (int i = 0; i < MAX_RUNS / 32; i++)
            if (lane + 32 * i < n_run) factor[h][lane + 32 * i] = expf(stats[i].x - top) / total;
    }
    __syncthreads();
    /* as many heads at a time as there are threads for */
    const int together = min(n_head, (int)THREADS / QUADS), n_quad = together * QUADS;
    const int shares = THREADS / n_quad, share = threadIdx.x / n_quad;
    for (int h0 = 0; h0 < n_head; h0 += together) {
        const int h = h0 + threadIdx.x % n_quad / QUADS, quad = threadIdx.x % QUADS;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (share < shares && h < n_head) {
            #pragma unroll 4
            for (int i = share; i < n_run; i += shares) {
                const float w = factor[h][i];
                const float4 v = __ldcg((const float4 *)run_values<DIM>(r, first + h, i) + quad);
                sum.x = fmaf(w, v.x, sum.x);
                sum.y = fmaf(w, v.y, sum.y);
                sum.z = fmaf(w, v.z, sum.z);
                sum.w = fmaf(w, v.w, sum.w);
            }
        }
        found[threadIdx.x] = sum;
        __syncthreads();
        if (share == 0 && h < n_head) {
            for (int i = 1; i < shares; i++) {
                const float4 v = found[i * n_quad + threadIdx.x];
                sum.x += v.x;
                sum.y += v.y;
                sum.z += v.z;
                sum.w += v.w;
            }
            ((float4 *)(a.out + (first + h) * DIM))[quad] = sum;
        }
        __syncthreads();
    }
}

template <int KV, int DIM, int HEADS>
static __global__ void __launch_bounds__(THREADS) attend_run(frame f, const run_args r)
{
    enum { LANES = DIM / 8, KEYS = 32 / LANES };         /* threads of a key, keys of a warp */
    const gpu_attention &a = r.a;
    /* queries first, then what the warps found */
    enum { PASS = HEADS * DIM > 1024 ? DIM / 2 : DIM };  /* dimensions that there is room for */
    __shared__ __align__(16) float merge[WARPS][HEADS][PASS];
    __shared__ float merge_max[WARPS][HEADS], merge_sum[WARPS][HEADS];
    __shared__ float fresh[2][DIM];      /* the new key and value, as they will be read */
    __shared__ bool is_last;
    float (*q_shared)[DIM] = (float (*)[DIM])merge;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = lane % LANES * 8;
    const int group = a.n_head / a.n_head_kv, kv_head = blockIdx.y / r.n_part;
    const int head0 = kv_head * group + blockIdx.y % r.n_part * HEADS;
    const int n_head = min((int)HEADS, (kv_head + 1) * group - head0), t = blockIdx.z;
    const size_t row_bytes = kv_row<KV>::bytes(DIM);
    const uint8_t *keys = a.keys + (size_t)kv_head * a.kv_rows * row_bytes;
    const uint8_t *values = a.values + (size_t)kv_head * a.kv_rows * row_bytes;
    const run_plan p = plan_runs(a, t, r.max_runs);
    const int run = blockIdx.x, begin = p.lowest + run * p.per_run;
    const int end = min(begin + p.per_run, p.lowest + p.n_key);
    const int own = r.whole && run == p.n_run - 1 ? end - 1 : -1;        /* key made here */
    const int old_end = own >= 0 ? own : end;
    key_batch<KV> batch;

    frame_begin(f);
    if (run >= p.n_run) {
        frame_wait(f);
        frame_end(f);
        return;
    }
    int key0 = begin + warp * KEYS * ROUNDS;
    /* queries first, then this token's own key and value: a warp for each, as far as there are */
    const int n_make = n_head + (own >= 0 ? 2 : 0);
    head_maker<DIM> maker;
    if (!r.whole) frame_wait(f);
    batch.template load<DIM>(batch.k, a, keys, key0, old_end);
    batch.template load<DIM>(batch.v, a, values, key0, old_end);
    if (r.whole && warp < n_make) maker.begin(warp < n_head ? a.q_norm : a.k_norm, a);
    if (r.whole) frame_wait(f);

    for (int i = warp; i < n_make; i += WARPS) {
        const bool is_query = i < n_head, is_value = i == n_head + 1;
        const float *from = is_query ? a.q + (size_t)t * a.q_stride +
                                       (size_t)(head0 + i) * a.q_head_stride
                                     : (is_value ? a.v : a.k) + (size_t)kv_head * DIM;
        float *to = is_query ? q_shared[i] : fresh[is_value];
        if (r.whole && !is_value) {
            if (i != warp) maker.begin(is_query ? a.q_norm : a.k_norm, a);
            maker.make(to, from, a);
        } else {
            for (int c = lane; c < DIM; c += 32) to[c] = from[c];
        }
        if (is_query) continue;
        uint8_t *row = (uint8_t *)(is_value ? values : keys) + (size_t)(own % a.kv_rows) * row_bytes;
        for (int c = lane; c < DIM; c += 32) to[c] = kv_row<KV>::store(row, c, to[c]);
    }
    __syncthreads();

    float q[HEADS][8], o[HEADS][8], largest[HEADS], sum[HEADS];
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        largest[h] = -INFINITY;
        sum[h] = 0.0f;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            q[h][i] = h < n_head ? q_shared[h][d + i] * a.scale : 0.0f;
            o[h][i] = 0.0f;
        }
    }

    while (key0 < end) {
        float score[ROUNDS][HEADS];
        const int own_round = own - key0 - lane / LANES;         /* times KEYS */
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            float k[8];
            kv_row<KV>::widen(k, batch.k[i]);
            if (own_round == i * KEYS) {
                #pragma unroll
                for (int c = 0; c < 8; c++) k[c] = fresh[0][d + c];
            }
            #pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float s = 0.0f;
                #pragma unroll
                for (int c = 0; c < 8; c++) s = fmaf(q[h][c], k[c], s);
                score[i][h] = s;
            }
        }
        const int next = key0 + WARPS * KEYS * ROUNDS;
        if (next < end) batch.template load<DIM>(batch.k, a, keys, next, old_end);
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const bool inside = key0 + i * KEYS + lane / LANES < end;
            #pragma unroll
            for (int h = 0; h < HEADS; h++) {
                #pragma unroll
                for (int s = LANES / 2; s > 0; s >>= 1)
                    score[i][h] += __shfl_xor_sync(~0u, score[i][h], s);
                if (!inside) score[i][h] = -INFINITY;
            }
        }
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float top = largest[h];
            #pragma unroll
            for (int i = 0; i < ROUNDS; i++) top = fmaxf(top, score[i][h]);
            /* nothing seen yet: any finite number will do */
            const float base = top == -INFINITY ? 0.0f : top;
            const float shrink = expf(largest[h] - base);
            largest[h] = top;
            sum[h] *= shrink;
            #pragma unroll
            for (int c = 0; c < 8; c++) o[h][c] *= shrink;
            #pragma unroll
            for (int i = 0; i < ROUNDS; i++) {
                score[i][h] = expf(score[i][h] - base);
                sum[h] += score[i][h];
            }
        }
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            float v[8];
            kv_row<KV>::widen(v, batch.v[i]);
            if (own_round == i * KEYS) {
                #pragma unroll
                for (int c = 0; c < 8; c++) v[c] = fresh[1][d + c];
            }
            #pragma unroll
            for (int h = 0; h < HEADS; h++)
                #pragma unroll
                for (int c = 0; c < 8; c++) o[h][c] = fmaf(score[i][h], v[c], o[h][c]);
        }
        if (next < end) batch.template load<DIM>(batch.v, a, values, next, old_end);
        key0 = next;
    }

    /* the keys of a warp, then the warps */
    __syncthreads();                     /* queries have been read */
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float top = largest[h];
        #pragma unroll
        for (int s = LANES; s < 32; s <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
        const float shrink = top == -INFINITY ? 0.0f : expf(largest[h] - top);
        sum[h] *= shrink;
        #pragma unroll
        for (int c = 0; c < 8; c++) o[h][c] *= shrink;
        #pragma unroll
        for (int s = LANES; s < 32; s <<= 1) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], s);
            #pragma unroll
            for (int c = 0; c < 8; c++) o[h][c] += __shfl_xor_sync(~0u, o[h][c], s);
        }
        if (lane == 0) {
            merge_max[warp][h] = top;
            merge_sum[warp][h] = sum[h];
        }
    }
    for (int first = 0; first < DIM; first += PASS) {
        #pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (lane < LANES && d >= first && d < first + PASS) {
                #pragma unroll
                for (int c = 0; c < 8; c++) merge[warp][h][d - first + c] = o[h][c];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < n_head * PASS; i += THREADS) {
            const int h = i / PASS, c = first + i % PASS;
            float top = -INFINITY, total = 0.0f, value = 0.0f;
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, merge_max[w][h]);
            for (int w = 0; w < WARPS; w++) {
                const float shrink = expf(merge_max[w][h] - top);
                total = fmaf(merge_sum[w][h], shrink, total);
                value = fmaf(merge[w][h][c - first], shrink, value);
            }
            const size_t head = (size_t)t * a.n_head + head0 + h;
            if (p.n_run == 1) {
                if (a.sinks) total += expf(a.sinks[head0 + h] - top);
                a.out[head * DIM + c] = value / total;
            } else {
                run_values<DIM>(r, head, run)[c] = value;
                if (c == 0) *run_stats<DIM>(r, head, run) = make_float2(top, total);
            }
        }
        __syncthreads();
    }
    if (p.n_run > 1 && r.max_runs <= MERGE_RUNS) {
        uint32_t *counter = a.counters + (size_t)t * a.n_head + blockIdx.y;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == (uint32_t)p.n_run - 1;
        __syncthreads();
        if (is_last) {
            __threadfence();
            merge_heads<DIM>(r, p.n_run, t, head0, n_head);
            if (threadIdx.x == 0) *counter = 0;
        }
    }
    frame_end(f);
}

/* ---- all runs of a head --------------------------------------------------------------------------- */

template <int DIM>
static __global__ void __launch_bounds__(THREADS) attend_merge(frame f, const run_args r)
{
    frame_begin(f);
    frame_wait(f);
    const run_plan p = plan_runs(r.a, blockIdx.y, r.max_runs);
    if (p.n_run > 1) merge_heads<DIM>(r, p.n_run, blockIdx.y, blockIdx.x, 1);
    frame_end(f);
}

/* ---- launching ------------------------------------------------------------------------------------ */

/* A block for each SM, and no run shorter than it must be as far as is known. */
static int runs_for(const gpu *g, const gpu_attention *a, int keys, int n_block)
{
    const int useful = (int)ceil_div(keys, run_keys(a->head_dim)), room = g->n_sm / n_block;
    const int n = useful < room ? useful : room;
    return n < 1 ? 1 : n > MAX_RUNS ? MAX_RUNS : n;
}

size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim)
{
    (void)g;
    return (size_t)GPU_FEW * (size_t)n_head * MAX_RUNS * ((size_t)head_dim + 2);
}

bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim)
{
    return (head_dim == 32 || head_dim == 64 || head_dim == 128 || head_dim == 256) &&
           n_head_kv > 0 && n_head % n_head_kv == 0;
}

template <int KV, int DIM, int HEADS>
static void launch_heads(gpu *g, const gpu_attention *a, int keys)
{
    const int group = a->n_head / a->n_head_kv, n_part = (int)ceil_div(group, HEADS);
    const unsigned rows = (unsigned)(a->n_head_kv * n_part);
    const run_args r = { *a, n_part, runs_for(g, a, keys, (int)rows), a->n == 1 };
    launch(g, "attention", (uint64_t)keys * a->n_head_kv * kv_row<KV>::bytes(DIM) * 2,
           attend_run<KV, DIM, HEADS>, dim3((unsigned)r.max_runs, rows, (unsigned)a->n), THREADS, 0,
           r);
    if (r.max_runs > MERGE_RUNS)
        launch(g, "attention", 0, attend_merge<DIM>, dim3((unsigned)a->n_head, (unsigned)a->n),
               THREADS, 0, r);
}

template <int KV, int DIM> static void launch_runs(gpu *g, const gpu_attention *a)
{
    const int keys = a->window > 0 && a->window < a->last ? a->window : a->last;
    if (keys < MANY_KEYS) launch_heads<KV, DIM, FEW_HEADS>(g, a, keys);
    else launch_heads<KV, DIM, MANY_HEADS>(g, a, keys);
}

template <int KV> static void launch_dim(gpu *g, const gpu_attention *a)
{
    switch (a->head_dim) {
    case 32: launch_runs<KV, 32>(g, a); break;
    case 64: launch_runs<KV, 64>(g, a); break;
    case 128: launch_runs<KV, 128>(g, a); break;
    case 256: launch_runs<KV, 256>(g, a); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "attention: head size");
    }
}

void gpu_attend(gpu *g, const gpu_attention *a)
{
    if (a->n > 1) attend_prepare(g, a);
    if (a->n > GPU_FEW) attend_many(g, a);
    else if (a->kv == GPU_KV_F32) launch_dim<GPU_KV_F32>(g, a);
    else if (a->kv == GPU_KV_F16) launch_dim<GPU_KV_F16>(g, a);
    else launch_dim<GPU_KV_Q8_0>(g, a);
}
