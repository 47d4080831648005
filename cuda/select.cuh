/* select.cuh - finds the k largest of a token's router logits, by one warp or by a block, and their
 * weights, by one warp.
 *
 * Order: largest first, the lowest id first among equals; NaN counts as -infinity. The k-th largest
 * of the lanes' own maxima is a lower bound of the k-th largest logit. The logits that reach this
 * bound, usually few, are gathered, one in each lane, and each lane counts the lanes before it.
 *
 * The usual weights are the softmax of the chosen logits. Other rules are noinline functions, so
 * the usual kernels do not contain them. route.cu and prefer.cu find experts and weights; the
 * kernels of experts.cuh and experts_with_host.cu find the largest keys first and weigh later. */
#ifndef CUDA_SELECT_CUH
#define CUDA_SELECT_CUH

#include "cuda/contract_activation.cuh"

enum { SELECT_MAX_EXPERT = 1024, SELECT_MAX_K = 32 };

typedef struct select_space {            /* shared memory of one warp */
    uint32_t key[32];
    int id[32];
    float value[32];
} select_space;

static __device__ __forceinline__ uint32_t rank_key(float v)
{
    return order_key(isnan(v) ? -INFINITY : v);
}

/* Number of lanes that come before this one. */
static __device__ __forceinline__ int lanes_before(uint32_t key, int id)
{
    int n = 0;
    #pragma unroll 8
    for (int j = 0; j < 32; j++) {
        const uint32_t k = __shfl_sync(~0u, key, j);
        const int i = __shfl_sync(~0u, id, j);
        n += k > key || (k == key && i < id);
    }
    return n;
}

/* lanes_before for ids that are the lanes. */
static __device__ __forceinline__ int place_of_lane(uint32_t key)
{
    const int lane = threadIdx.x % 32;
    int n = 0;
    #pragma unroll 8
    for (int j = 0; j < 32; j++) {
        const uint32_t other = __shfl_sync(~0u, key, j);
        n += other > key || (other == key && j < lane);
    }
    return n;
}

/* At most 32 logits: each lane has one and counts its rank. */
static __device__ __forceinline__ void select_one_each(int *id, float *value, float v, uint32_t key,
                                                       int k, select_space *s)
{
    const int lane = threadIdx.x % 32, place = place_of_lane(key);
    if (place < k) {
        s->id[place] = lane;
        s->value[place] = v;
    }
    __syncwarp();
    *id = s->id[lane];
    *value = s->value[lane];
    __syncwarp();
}

/* The usual case: at most 32 logits reach the bound. Lane r gets the id and the value (from v) of
 * the r-th expert. False: more logits reach the bound. */
template <int N>
static __device__ __forceinline__ bool select_usual(int *id, float *value, const float (&v)[N],
                                                    const uint32_t (&key)[N], int k,
                                                    select_space *s)
{
    const int lane = threadIdx.x % 32;
    uint32_t best = 0;
    int n = 0, end;

    #pragma unroll
    for (int i = 0; i < N; i++) best = max(best, key[i]);
    const int place = lanes_before(best, lane);
    const unsigned who = __ballot_sync(~0u, place == k - 1);
    const uint32_t bound = max(1u, __shfl_sync(~0u, best, __ffs((int)who) - 1));
    #pragma unroll
    for (int i = 0; i < N; i++) n += key[i] >= bound;
    end = n;                             /* becomes the sum of n over lanes 0 .. lane */
    #pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const int below = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += below;
    }
    const int total = __shfl_sync(~0u, end, 31);
    if (total > 32) return false;
    int at = end - n;
    #pragma unroll
    for (int i = 0; i < N; i++)
        if (key[i] >= bound) {
            s->key[at] = key[i];
            s->id[at] = lane + 32 * i;
            s->value[at] = v[i];
            at++;
        }
    __syncwarp();
    const uint32_t own_key = lane < total ? s->key[lane] : 0;
    const int my_id = lane < total ? s->id[lane] : 0x7FFFFFFF;
    const float my_value = s->value[lane];
    __syncwarp();
    const int rank = lanes_before(own_key, my_id);
    if (lane < total && rank < k) {
        s->id[rank] = my_id;
        s->value[rank] = my_value;
    }
    __syncwarp();
    *id = s->id[lane];
    *value = s->value[lane];
    __syncwarp();
    return true;
}

static __device__ __forceinline__ uint32_t warp_largest(uint32_t v)
{
    for (int d = 16; d > 0; d >>= 1) v = max(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

/* Any case, one expert after the other: lane r gets the r-th id. Overwrites the keys. */
template <int N>
static __device__ __forceinline__ void select_each(int *id, uint32_t (&key)[N], int k)
{
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < k; r++) {
        uint32_t best = 0;
        int at = 0;
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (key[i] > best) {
                best = key[i];
                at = i;
            }
        const uint32_t top = warp_largest(best);
        /* the lowest id of the lanes that have the largest key, also found as a maximum */
        const int e = 0x7FFFFFFF -
                      (int)warp_largest(best == top ? 0x7FFFFFFFu - (lane + 32u * at) : 0u);
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i == e) key[i] = 0;
        if (lane == r) *id = e;
    }
}

template <int N>
static __device__ __noinline__ void select_slowly(int *id, float *value, const float *logits,
                                                  int n_expert, int k)
{
    const int lane = threadIdx.x % 32;
    uint32_t key[N];

    #pragma unroll
    for (int i = 0; i < N; i++)
        key[i] = lane + 32 * i < n_expert ? rank_key(__ldcg(logits + lane + 32 * i)) : 0;
    select_each<N>(id, key, k);
    if (lane < k) *value = __ldcg(logits + *id);
}

template <int N>
static __device__ __forceinline__ void select_of(int *id, float *value, const float *keys,
                                                 int n_expert, int k, select_space *s)
{
    const int lane = threadIdx.x % 32;
    float v[N];
    uint32_t key[N];

    #pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = lane + 32 * i < n_expert ? __ldcg(keys + lane + 32 * i) : 0.0f;
    #pragma unroll
    for (int i = 0; i < N; i++) key[i] = lane + 32 * i < n_expert ? rank_key(v[i]) : 0;
    if constexpr (N == 1) select_one_each(id, value, v[0], key[0], k, s);
    else if (!select_usual<N>(id, value, v, key, k, s))
        select_slowly<N>(id, value, keys, n_expert, k);
}

/* Lane r < k gets the id of the r-th largest, and its value. */
static __device__ __forceinline__ void select_largest(int *id, float *value, const float *keys,
                                                      int n_expert, int k, select_space *s)
{
    if (n_expert <= 32) select_of<1>(id, value, keys, n_expert, k, s);
    else if (n_expert <= 128) select_of<4>(id, value, keys, n_expert, k, s);
    else if (n_expert <= 512) select_of<16>(id, value, keys, n_expert, k, s);
    else select_of<32>(id, value, keys, n_expert, k, s);
}

/* ---- by a whole block ------------------------------------------------------------------------ */

enum { SELECT_MAX_THREADS = 384 };       /* most threads of a block */

typedef struct __align__(16) block_select_space {  /* shared memory of the block */
    uint32_t key[32];                    /* lanes' maxima; then the keys that reach the bound */
    int id[32];
    float value[32];
    uint32_t best[SELECT_MAX_THREADS], bound;
    int n;
    int chosen[SELECT_MAX_K];            /* the chosen ids, the largest first */
    float chosen_value[SELECT_MAX_K];
} block_select_space;

static __device__ __forceinline__ uint32_t warp_least(uint32_t v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(~0u, v);
#else
    for (int d = 16; d > 0; d >>= 1) v = min(v, __shfl_xor_sync(~0u, v, d));
    return v;
#endif
}

/* Finds the k largest by all threads of a block: faster, and less code, than by one warp. begin
 * requests the logits; the block synchronises at the end. */
struct block_selector {
    enum { EACH = 2 };                   /* logits of a thread in registers; it reads more twice */
    const float *keys;
    int n_expert;
    float v[EACH];

    __device__ __forceinline__ void begin(const float *all, int n)
    {
        keys = all;
        n_expert = n;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int e = threadIdx.x + i * blockDim.x;
            v[i] = e < n ? __ldcg(all + e) : 0.0f;
        }
    }

    __device__ __forceinline__ void end(block_select_space *s, int k)
    {
        if (n_expert > 32) gather(s, k);
        if (warp_index() == 0) {
            if (n_expert <= 32) rank_all(s, k);
            else if (s->n <= 32) rank_gathered(s, k);
            else rank_slowly(s, k);
        }
        __syncthreads();
    }

private:
    static __device__ __forceinline__ void choose(block_select_space *s, int place, int k, int id,
                                                  float value)
    {
        if (place >= k) return;
        s->chosen[place] = id;
        s->chosen_value[place] = value;
    }

    /* The next three functions are called by the first warp. */
    __device__ __forceinline__ void rank_all(block_select_space *s, int k)
    {
        const int lane = threadIdx.x;
        const uint32_t key = lane < n_expert ? rank_key(v[0]) : 0;
        choose(s, place_of_lane(key), k, lane, v[0]);
    }

    __device__ __forceinline__ void rank_gathered(block_select_space *s, int k)
    {
        const int lane = threadIdx.x, id = s->id[lane];
        const uint32_t key = s->key[lane];
        int place = lane < s->n ? 0 : k;
        #pragma unroll 4
        for (int j = 0; j < 8; j++) {
            const uint4 other = ((const uint4 *)s->key)[j];
            const int4 i = ((const int4 *)s->id)[j];
            place += (other.x > key || (other.x == key && i.x < id)) +
                     (other.y > key || (other.y == key && i.y < id)) +
                     (other.z > key || (other.z == key && i.z < id)) +
                     (other.w > key || (other.w == key && i.w < id));
        }
        choose(s, place, k, id, s->value[lane]);
    }

    __device__ __forceinline__ void rank_slowly(block_select_space *s, int k)
    {
        int id = 0;
        float value = 0.0f;
        select_slowly<SELECT_MAX_EXPERT / 32>(&id, &value, keys, n_expert, k);
        choose(s, threadIdx.x, k, id, value);
    }

    /* Gathers at most 32 keys >= the k-th largest of the lanes' maxima (the bound), in any
     * order. */
    __device__ __forceinline__ void gather(block_select_space *s, int k)
    {
        const int thread = threadIdx.x, lane = thread % 32, n_thread = blockDim.x;
        uint32_t key[EACH], best = 0;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            key[i] = thread + i * n_thread < n_expert ? rank_key(v[i]) : 0;
            best = max(best, key[i]);
        }
        #pragma unroll 1
        for (int e = thread + EACH * n_thread; e < n_expert; e += n_thread)
            best = max(best, rank_key(__ldcg(keys + e)));
        s->best[thread] = best;
        __syncthreads();
        if (warp_index() == 0) {
            #pragma unroll
            for (int t = 32; t < SELECT_MAX_THREADS; t += 32)
                if (t < n_thread) best = max(best, s->best[t + lane]);
            int larger = 0;
            #pragma unroll 8
            for (int j = 0; j < 32; j++) larger += __shfl_sync(~0u, best, j) > best;
            const uint32_t bound = warp_least(larger < k ? best : ~0u);
            s->key[lane] = 0;
            if (lane == 0) {
                s->bound = max(1u, bound);
                s->n = 0;
            }
        }
        __syncthreads();
        const uint32_t bound = s->bound;
        #pragma unroll
        for (int i = 0; i < EACH; i++) offer(s, key[i], thread + i * n_thread, v[i], bound);
        #pragma unroll 1
        for (int i = EACH; i * n_thread < n_expert; i++) {
            const int e = thread + i * n_thread;
            const float value = e < n_expert ? __ldcg(keys + e) : 0.0f;
            offer(s, e < n_expert ? rank_key(value) : 0, e, value, bound);
        }
        __syncthreads();
    }

    /* Called by whole warps; a warp adds to the counter once. */
    static __device__ __forceinline__ void offer(block_select_space *s, uint32_t key, int id,
                                                 float value, uint32_t bound)
    {
        const int lane = threadIdx.x % 32;
        const unsigned who = __ballot_sync(~0u, key >= bound);
        int at = 0;
        if (who == 0) return;
        if (lane == 0) at = atomicAdd(&s->n, __popc(who));
        at = __shfl_sync(~0u, at, 0) + __popc(who & ((1u << lane) - 1));
        if (key < bound || at >= 32) return;
        s->key[at] = key;
        s->id[at] = id;
        s->value[at] = value;
    }
};

/* ---- weights --------------------------------------------------------------------------------- */

/* The softmax weight of this lane's chosen logit. Lanes below k have one each, largest first. */
static __device__ __forceinline__ float usual_weight(float value, int k)
{
    const float top = __shfl_sync(~0u, value, 0);
    const float w = (int)(threadIdx.x % 32) < k ? expf(value - top) : 0.0f;
    return w / warp_sum(w);
}

/* ---- other rules ----------------------------------------------------------------------------- */

static __device__ __forceinline__ bool is_usual(const gpu_router_rule &r)
{
    return !r.sigmoid && !r.as_scored && !r.bias && !(r.factor > 0.0f);
}

static __device__ __forceinline__ float score_exp(float z)
{
    return isnan(z) ? z : contract_exp(z);
}

typedef struct score_scale {             /* of a softmax over all logits */
    float top, sum;
} score_scale;

/* Called by one warp. A NaN logit makes all scores NaN. */
static __device__ __forceinline__ score_scale score_scale_of(const gpu_router_rule &rule,
                                                             const float *logits, int n_expert)
{
    score_scale s = { -INFINITY, 0.0f };
    if (rule.sigmoid) return s;
    for (int e = threadIdx.x % 32; e < n_expert; e += 32) s.top = fmaxf(s.top, __ldcg(logits + e));
    for (int d = 16; d > 0; d >>= 1) s.top = fmaxf(s.top, __shfl_xor_sync(~0u, s.top, d));
    for (int e = threadIdx.x % 32; e < n_expert; e += 32)
        s.sum = __fadd_rn(s.sum, score_exp(__fsub_rn(__ldcg(logits + e), s.top)));
    s.sum = warp_sum(s.sum);
    return s;
}

static __device__ __forceinline__ float sigmoid_score(float logit)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, score_exp(-logit)));
}

static __device__ __forceinline__ float score_of(const gpu_router_rule &rule, const score_scale &s,
                                                 float logit)
{
    if (rule.sigmoid) return sigmoid_score(logit);
    return __fdiv_rn(score_exp(__fsub_rn(logit, s.top)), s.sum);
}

/* The weight of this lane's expert. Called by a whole warp; score is 0 in lanes without one. */
static __device__ __forceinline__ float score_weight(const gpu_router_rule &rule, float score)
{
    const float sum = warp_sum(score);
    const float w = rule.as_scored ? score : __fdiv_rn(score, sum);
    return rule.factor > 0.0f ? __fmul_rn(w, rule.factor) : w;
}

/* Loads logits and biases at the same time and keeps them in registers. */
template <int N>
static __device__ __noinline__ void select_scored(int *id, float *gate, const float *logits,
                                                  int n_expert, int k, select_space *s,
                                                  const gpu_router_rule rule)
{
    const int lane = threadIdx.x % 32;
    float score[N], bias[N], value = 0.0f;
    score_scale scale = { -INFINITY, 0.0f };
    uint32_t key[N];

    #pragma unroll
    for (int i = 0; i < N; i++) {
        const int e = lane + 32 * i;
        score[i] = e < n_expert ? __ldcg(logits + e) : -INFINITY;
        bias[i] = rule.bias && e < n_expert ? rule.bias[e] : 0.0f;
        scale.top = fmaxf(scale.top, score[i]);
        key[i] = e < n_expert ? rank_key(score[i]) : 0;
    }
    if (!rule.sigmoid) {
        for (int d = 16; d > 0; d >>= 1)
            scale.top = fmaxf(scale.top, __shfl_xor_sync(~0u, scale.top, d));
        #pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i < n_expert)
                scale.sum = __fadd_rn(scale.sum, score_exp(__fsub_rn(score[i], scale.top)));
        scale.sum = warp_sum(scale.sum);
    }
    #pragma unroll
    for (int i = 0; i < N; i++) {
        if (lane + 32 * i >= n_expert) break;
        score[i] = score_of(rule, scale, score[i]);
        if (rule.bias) key[i] = rank_key(__fadd_rn(score[i], bias[i]));
    }
    if (!select_usual<N>(id, &value, score, key, k, s)) {
        select_each<N>(id, key, k);
        if (lane < k) value = score_of(rule, scale, __ldcg(logits + *id));
    }
    *gate = score_weight(rule, lane < k ? value : 0.0f);
}

/* The weight of the r-th id, in lane r, by a rule other than the usual one. */
static __device__ __noinline__ float scored_weight(int id, const float *logits, int n_expert, int k,
                                                   const gpu_router_rule rule)
{
    const score_scale scale = score_scale_of(rule, logits, n_expert);
    return score_weight(rule, (int)(threadIdx.x % 32) < k ? score_of(rule, scale,
                                                                     __ldcg(logits + id)) : 0.0f);
}

/* Lane r < k gets the id and the weight of the r-th expert. */
static __device__ __forceinline__ void select_by_rule(int *id, float *gate, const float *logits,
                                                      int n_expert, int k, select_space *s,
                                                      const gpu_router_rule &rule)
{
    float value = 0.0f;
    if (is_usual(rule)) {
        select_largest(id, &value, logits, n_expert, k, s);
        *gate = usual_weight(value, k);
    } else if (n_expert <= 128) {
        select_scored<4>(id, gate, logits, n_expert, k, s, rule);
    } else if (n_expert <= 512) {
        select_scored<16>(id, gate, logits, n_expert, k, s, rule);
    } else {
        select_scored<32>(id, gate, logits, n_expert, k, s, rule);
    }
}

#endif
