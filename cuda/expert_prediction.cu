/* expert_prediction.cu - predicts the next layer's cold experts. Called by experts_with_host.cu. */
#include "cuda/expert_prediction.cuh"

enum { PREDICT_THREADS = 256, PREDICT_WARPS = PREDICT_THREADS / 32 };

/* ---- memory ---------------------------------------------------------------------------------- */

prediction_parts prediction_layout(void *base, int n_expert, int n_embd)
{
    uint8_t *p = (uint8_t *)base;
    prediction_parts s;
    s.logits = (float *)p;
    p += round_up((uint64_t)n_expert * sizeof *s.logits);
    s.done = (uint32_t *)p;
    p += round_up(sizeof *s.done);
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

/* ---- the kernel ------------------------------------------------------------------------------ */

typedef struct prediction_args {
    gpu_matrix router;
    gpu_router_rule rule;
    const float *norm, *next_norm;
    const float *x;                      /* [cols] x / rms(x) * norm of this layer */
    const uint32_t *number;              /* number of the layer that x is from */
    const uint32_t *now;                 /* number of the last layer that has asked */
    float *logits;
    uint32_t *done;
    int k;
    const int32_t *hot;                  /* NULL: none */
    volatile uint64_t *predicted;        /* gpu_mailbox.predicted, in RAM */
} prediction_args;

/* Whether the predicted layer has already asked. The result never returns to false, so if the last
 * block is not late, no earlier block was, and all logits are complete. */
static __device__ __forceinline__ bool is_late(const prediction_args &a, uint32_t number)
{
    const uint32_t now = *(const volatile uint32_t *)a.now;
    return ((now - number) & GPU_NUMBERS) <= GPU_NUMBERS / 2;
}

/* One warp multiplies row r by x; the sum is in all lanes. */
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

/* One warp writes the likeliest cold experts to the mailbox. All logits are complete. */
static __device__ __forceinline__ void name_experts(const prediction_args &a, uint32_t number,
                                                    select_space *space)
{
    const int lane = threadIdx.x % 32;
    int id = 0;
    float weight;
    select_by_rule(&id, &weight, a.logits, a.router.rows, a.k, space, a.rule);
    const bool cold = lane < a.k && (!a.hot || a.hot[id] < 0);
    const unsigned below = (1u << lane) - 1, all = __ballot_sync(~0u, cold);
    const int rank = __popc(all & below), n = min(__popc(all), (int)GPU_MOST_PREDICTED);
    const uint64_t word =
        cold && rank < GPU_MOST_PREDICTED ? (uint64_t)id << rank * GPU_PREDICTED_BITS : 0;
    const uint64_t ids = warp_or((unsigned)word) | (uint64_t)warp_or((unsigned)(word >> 32)) << 32;
    if (lane == 0)
        *a.predicted =
            (uint64_t)number << GPU_PREDICTED_NUMBER | (uint64_t)n << GPU_PREDICTED_COUNT | ids;
}

/* A warp computes one logit; the last block to end chooses the experts. */
static __global__ void __launch_bounds__(PREDICT_THREADS) predict(tracer f, const prediction_args a)
{
    extern __shared__ __align__(16) float x[];
    __shared__ select_space space;
    __shared__ bool last;
    const int warp = threadIdx.x / 32;

    pdl_begin(f);
    pdl_wait(f);
    const uint32_t number = (*a.number + 1) & GPU_NUMBERS;
    if (!is_late(a, number)) {
        for (int c = threadIdx.x; c < a.router.cols; c += PREDICT_THREADS) {
            const float norm = a.norm[c];
            x[c] = norm == 0.0f ? 0.0f : a.x[c] / norm * a.next_norm[c];
        }
        __syncthreads();
        const int step = (int)gridDim.x * PREDICT_WARPS;
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
    if (last && warp == 0 && !is_late(a, number)) name_experts(a, number, &space);
    pdl_end(f);
}

void prediction_next(gpu *g, const gpu_with_host *s, const prediction_parts *parts, int k)
{
    const launch_stream at = { g->ahead, false };
    const gpu_predict *next = &s->next;
    const unsigned blocks = ceil_div((uint64_t)next->router.rows, PREDICT_WARPS);
    prediction_args a = {};

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
    a.predicted = &s->mailbox->predicted;
    gpu_fail(g, cudaStreamWaitEvent(g->ahead, g->fork, 0), "predict");
    launch_at(g, at, "predict", (uint64_t)next->router.rows * next->router.row_bytes, predict,
              blocks, PREDICT_THREADS, prediction_bytes(next->router.cols), a);
    gpu_fail(g, cudaEventRecord(g->predicted, g->ahead), "predict");
    g->predicting = true;
}
