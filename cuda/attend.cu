/* attend.cu - attention of up to GPU_FEW tokens over a long store of keys.
 *
 * The keys that a token sees are cut into runs; a block takes one run and up to eight query heads
 * that share a key head, so every key and value is read once. Threads hold eight dimensions each:
 * head_dim / 8 of them make a key's score, and a warp works on several keys at a time, four rounds
 * before it looks at the maximum. What the runs found is merged by a second kernel; a window is one
 * run and needs none. For a single token, norm, rotation and the store of its key and value are
 * part of the same kernel: they are done by the block whose run ends with it. */
#include "cuda/device.cuh"
#include "cuda/many.cuh"

enum {
    THREADS = 128, WARPS = THREADS / 32, HEADS = 8,      /* query heads of a block */
    ROUNDS = 4,                          /* keys of a thread between two looks at the maximum */
    RUN_KEYS = 64,                       /* least length of a run */
    MAX_RUNS = 64
};

/* ---- rows of the store ------------------------------------------------------------------------- */

template <int KV> struct kv_row;         /* eight dimensions from d on of a row of dim */

template <> struct kv_row<GPU_KV_F32> {
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 4; }
    static __device__ __forceinline__ void load(float (&v)[8], const uint8_t *row, int d)
    {
        const float4 a = *(const float4 *)(row + 4 * d), b = *(const float4 *)(row + 4 * d + 16);
        v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
        v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
    }
    /* value of one dimension; a warp holds 32 in succession */
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
    {
        ((float *)row)[d] = v;
    }
};

template <> struct kv_row<GPU_KV_F16> {
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim * 2; }
    static __device__ __forceinline__ void load(float (&v)[8], const uint8_t *row, int d)
    {
        const uint4 a = *(const uint4 *)(row + 2 * d);
        const uint32_t w[4] = { a.x, a.y, a.z, a.w };
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = __half22float2(*(const __half2 *)&w[i]);
            v[2 * i] = two.x;
            v[2 * i + 1] = two.y;
        }
    }
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
    {
        ((__half *)row)[d] = __float2half_rn(v);
    }
};

template <> struct kv_row<GPU_KV_Q8_0> {
    static __host__ __device__ size_t bytes(int dim) { return (size_t)dim / 32 * 34; }
    static __device__ __forceinline__ void load(float (&v)[8], const uint8_t *row, int d)
    {
        const uint8_t *block = row + d / 32 * 34;
        const float scale = __half2float(*(const __half *)block);
        const uint16_t *codes = (const uint16_t *)(block + 2 + d % 32);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned two = codes[i];
            v[2 * i] = scale * (float)(int8_t)two;
            v[2 * i + 1] = scale * (float)(int8_t)(two >> 8);
        }
    }
    /* as encode_q8_0 of engine/kv.c; 32 lanes are a block */
    static __device__ __forceinline__ void store(uint8_t *row, int d, float v)
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
    }
};

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
    p.per_run = max((int)RUN_KEYS, (each + 15) / 16 * 16);
    if (max_runs == 1) p.per_run = p.n_key;
    p.n_run = (p.n_key + p.per_run - 1) / p.per_run;
    return p;
}

/* A head in shared memory, by one warp: norm, then rotation. */
template <int DIM>
static __device__ __forceinline__ void norm_rotate(float *head, const float *weight, float eps,
                                                   const float *cosine, const float *sine, int rope)
{
    const int lane = threadIdx.x % 32;
    if (weight) {
        float sum = 0.0f;
        for (int d = lane; d < DIM; d += 32) sum = fmaf(head[d], head[d], sum);
        const float scale = 1.0f / sqrtf(warp_sum(sum) / DIM + eps);
        for (int d = lane; d < DIM; d += 32) head[d] = head[d] * scale * weight[d];
        __syncwarp();
    }
    for (int i = lane; i < rope / 2; i += 32) {
        const float lower = head[i], upper = head[i + rope / 2];
        head[i] = lower * cosine[i] - upper * sine[i];
        head[i + rope / 2] = lower * sine[i] + upper * cosine[i];
    }
    __syncwarp();
}

template <int KV, int DIM>
static __global__ void __launch_bounds__(THREADS) attend_run(frame f, const run_args r)
{
    enum { LANES = DIM / 8, KEYS = 32 / LANES };         /* threads of a key, keys of a warp */
    const gpu_attention &a = r.a;
    __shared__ __align__(16) float q_shared[HEADS][DIM], merge[WARPS][HEADS][DIM];
    __shared__ float merge_max[WARPS][HEADS], merge_sum[WARPS][HEADS];
    __shared__ float fresh[2][DIM];      /* the new key and value */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = lane % LANES * 8;
    const int group = a.n_head / a.n_head_kv, kv_head = blockIdx.y / r.n_part;
    const int head0 = kv_head * group + blockIdx.y % r.n_part * HEADS;
    const int n_head = min((int)HEADS, (kv_head + 1) * group - head0), t = blockIdx.z;
    const size_t row_bytes = kv_row<KV>::bytes(DIM);
    const uint8_t *keys = a.keys + (size_t)kv_head * a.kv_rows * row_bytes;
    const uint8_t *values = a.values + (size_t)kv_head * a.kv_rows * row_bytes;

    frame_begin(f);
    frame_wait(f);
    const run_plan p = plan_runs(a, t, r.max_runs);
    const int run = blockIdx.x, begin = p.lowest + run * p.per_run;
    const int end = min(begin + p.per_run, p.lowest + p.n_key);
    if (run >= p.n_run) {
        frame_end(f);
        return;
    }

    for (int h = warp; h < n_head; h += WARPS) {
        const float *from = a.q + (size_t)t * a.q_stride + (size_t)(head0 + h) * a.q_head_stride;
        for (int i = lane; i < DIM; i += 32) q_shared[h][i] = from[i];
        __syncwarp();
        if (r.whole) norm_rotate<DIM>(q_shared[h], a.q_norm, a.eps, a.cosine, a.sine, a.rope_dim);
        for (int i = lane; i < DIM; i += 32) q_shared[h][i] *= a.scale;
    }
    if (r.whole && run == p.n_run - 1 && warp < 2) {     /* this token's own key and value */
        const float *from = (warp == 0 ? a.k : a.v) + (size_t)kv_head * DIM;
        for (int i = lane; i < DIM; i += 32) fresh[warp][i] = from[i];
        __syncwarp();
        if (warp == 0)
            norm_rotate<DIM>(fresh[0], a.k_norm, a.eps, a.cosine, a.sine, a.rope_dim);
        uint8_t *to = (uint8_t *)(warp == 0 ? keys : values) + (size_t)((end - 1) % a.kv_rows) *
                      row_bytes;
        for (int i = lane; i < DIM; i += 32) kv_row<KV>::store(to, i, fresh[warp][i]);
    }
    __syncthreads();

    float q[HEADS][8], o[HEADS][8], largest[HEADS], sum[HEADS];
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        largest[h] = -INFINITY;
        sum[h] = 0.0f;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            q[h][i] = h < n_head ? q_shared[h][d + i] : 0.0f;
            o[h][i] = 0.0f;
        }
    }

    for (int key0 = begin + warp * KEYS * ROUNDS; key0 < end; key0 += WARPS * KEYS * ROUNDS) {
        float score[ROUNDS][HEADS], v[ROUNDS][8];
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int key = key0 + i * KEYS + lane / LANES;
            const size_t at = (size_t)(min(key, end - 1) % a.kv_rows) * row_bytes;
            float k[8];
            kv_row<KV>::load(k, keys + at, d);
            kv_row<KV>::load(v[i], values + at, d);
            #pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float s = 0.0f;
                #pragma unroll
                for (int c = 0; c < 8; c++) s = fmaf(q[h][c], k[c], s);
                score[i][h] = s;
            }
        }
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
                const float w = expf(score[i][h] - base);
                sum[h] += w;
                #pragma unroll
                for (int c = 0; c < 8; c++) o[h][c] = fmaf(w, v[i][c], o[h][c]);
            }
        }
    }

    /* the keys of a warp, then the warps */
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
        if (lane < LANES) {
            #pragma unroll
            for (int c = 0; c < 8; c++) merge[warp][h][d + c] = o[h][c];
        }
        if (lane == 0) {
            merge_max[warp][h] = top;
            merge_sum[warp][h] = sum[h];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_head * DIM; i += THREADS) {
        const int h = i / DIM, c = i % DIM;
        float top = -INFINITY, total = 0.0f, value = 0.0f;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, merge_max[w][h]);
        for (int w = 0; w < WARPS; w++) {
            const float shrink = expf(merge_max[w][h] - top);
            total = fmaf(merge_sum[w][h], shrink, total);
            value = fmaf(merge[w][h][c], shrink, value);
        }
        const size_t head = (size_t)t * a.n_head + head0 + h;
        if (r.max_runs == 1) {
            if (a.sinks) total += expf(a.sinks[head0 + h] - top);
            a.out[head * DIM + c] = value / total;
        } else {
            float *to = a.partial + (head * r.max_runs + run) * (DIM + 2);
            to[2 + c] = value;
            if (c == 0) {
                to[0] = top;
                to[1] = total;
            }
        }
    }
    frame_end(f);
}

/* ---- all runs of a head --------------------------------------------------------------------------- */

template <int DIM>
static __global__ void __launch_bounds__(DIM) attend_merge(frame f, const run_args r)
{
    const gpu_attention &a = r.a;
    const int h = blockIdx.x, t = blockIdx.y, c = threadIdx.x;
    __shared__ float top_of[MAX_RUNS], sum_of[MAX_RUNS];
    frame_begin(f);
    frame_wait(f);
    const run_plan p = plan_runs(a, t, r.max_runs);
    const size_t head = (size_t)t * a.n_head + h;
    const float *runs = a.partial + head * r.max_runs * (DIM + 2);
    for (int i = c; i < p.n_run; i += DIM) {
        top_of[i] = runs[(size_t)i * (DIM + 2)];
        sum_of[i] = runs[(size_t)i * (DIM + 2) + 1];
    }
    __syncthreads();
    float top = a.sinks ? a.sinks[h] : -INFINITY;
    for (int i = 0; i < p.n_run; i++) top = fmaxf(top, top_of[i]);
    float total = a.sinks ? expf(a.sinks[h] - top) : 0.0f, value = 0.0f;
    #pragma unroll 8
    for (int i = 0; i < p.n_run; i++) {
        const float shrink = expf(top_of[i] - top);
        total = fmaf(sum_of[i], shrink, total);
        value = fmaf(runs[(size_t)i * (DIM + 2) + 2 + c], shrink, value);
    }
    a.out[head * DIM + c] = value / total;
    frame_end(f);
}

/* ---- launching ------------------------------------------------------------------------------------ */

static int runs_for(const gpu *g, int n_block)
{
    const int n = 2 * g->n_sm / n_block;
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

template <int KV, int DIM> static void launch_runs(gpu *g, const gpu_attention *a)
{
    const int group = a->n_head / a->n_head_kv, n_part = (int)ceil_div(group, HEADS);
    const unsigned rows = (unsigned)(a->n_head_kv * n_part);
    run_args r = { *a, n_part, 1, a->n == 1 };
    if (a->window == 0 || a->window > 8 * RUN_KEYS) r.max_runs = runs_for(g, (int)rows);
    launch(g, "attention", 0, attend_run<KV, DIM>,
           dim3((unsigned)r.max_runs, rows, (unsigned)a->n), THREADS, 0, r);
    if (r.max_runs > 1)
        launch(g, "attention", 0, attend_merge<DIM>, dim3((unsigned)a->n_head, (unsigned)a->n), DIM,
               0, r);
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
