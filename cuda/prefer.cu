/* prefer.cu - gpu_prefer_hot: drops chosen experts that are not in VRAM, so that the host computes
 * less. Answers then differ from the model's own.
 *
 * One kernel with a warp for each token, launched only with --skip-missing. select.cuh chooses. */
#include "cuda/gpu_experts.h"
#include "cuda/select.cuh"

enum { PREFER_THREADS = 32 * GPU_MAIL };

static __device__ __forceinline__ float warp_most(float v)
{
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

static __device__ __forceinline__ void prefer_token(const gpu_prefer &a, int token,
                                                    select_space *space)
{
    const int lane = threadIdx.x % 32, first = token * a.k;
    const bool has_choice = lane < a.k, usual = is_usual(a.rule);
    float *logits = a.logits + (size_t)token * a.n_expert;
    float gate, value = -INFINITY;
    score_scale scale = {};
    int id;

    select_by_rule(&id, &gate, logits, a.n_expert, a.k, space, a.rule);
    const bool hot = has_choice && a.hot[id] >= 0;
    if (has_choice && a.wanted)
        a.wanted[first + lane] = (uint32_t)id | (uint32_t)(hot ? GPU_HOT : GPU_COLD) << 16;
    if (!usual) scale = score_scale_of(a.rule, logits, a.n_expert);
    if (has_choice) value = __ldcg(logits + id);
    const bool drops = __ballot_sync(~0u, hot) != 0;
    const bool kept = drops ? hot : has_choice;
    const unsigned all = __ballot_sync(~0u, kept);
    if (usual) {
        const float top = warp_most(kept ? value : -INFINITY);
        const float w = kept ? expf(value - top) : 0.0f;
        gate = w / warp_sum(w);
    } else {
        gate = score_weight(a.rule, kept ? score_of(a.rule, scale, value) : 0.0f);
    }
    const int leader = __shfl_sync(~0u, id, __ffs((int)all) - 1);
    if (kept) {
        const int slot = first + __popc(all & ((1u << lane) - 1));
        a.ids[slot] = id;
        a.gates[slot] = gate;
    }
    if (has_choice && lane >= __popc(all)) {
        a.ids[first + lane] = leader;
        a.gates[first + lane] = 0.0f;
    }
}

static __global__ void __launch_bounds__(PREFER_THREADS) prefer(tracer f, const gpu_prefer a)
{
    __shared__ select_space space[GPU_MAIL];
    const int token = threadIdx.x / 32;
    pdl_begin(f);
    pdl_wait(f);
    if (token < a.n) prefer_token(a, token, &space[token]);
    pdl_end(f);
}

void gpu_prefer_hot(gpu *g, const gpu_prefer *a)
{
    if (a->n < 1 || a->n > GPU_MAIL || a->n_expert > SELECT_MAX_EXPERT || a->k > SELECT_MAX_K ||
        a->k > a->n_expert || !a->hot) {
        gpu_fail(g, cudaErrorInvalidValue, "choice by what is in VRAM: arguments");
        return;
    }
    launch(g, "router", 0, prefer, 1, PREFER_THREADS, 0, *a);
}
