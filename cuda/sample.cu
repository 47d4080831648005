/* sample.cu - gpu_shortlist: figures of a row of logits, so that the sampler need not copy the row
 * from VRAM: logits of allowed ids after biases and penalties, the largest of each block of 64 ids,
 * the sum of weights of each block, and on request all logits that reach a bound.
 *
 * Each operation rounds like engine/session/sampler.c, so the bits are the same. A bias is one
 * float addition; all other arithmetic is in double. The compiler must not contract operations. */
#include "cuda/device.cuh"

enum { THREADS = 256, BLOCK = GPU_SHORTLIST_BLOCK, LANES = GPU_SHORTLIST_LANES,
       STEPS = GPU_SHORTLIST_STEPS };

/* ---- biases, penalties, maxima --------------------------------------------------------------- */

/* work = logits + bias. The host has written allowed, often in RAM, before the launch, so a block
 * reads its part before it waits for the logits. */
static __global__ void add_bias(tracer f, float *work, uint32_t *top, const float *logits,
                                const float *bias, const uint64_t *allowed, int n, int n_padded)
{
    enum { WORDS = THREADS / BLOCK };
    __shared__ uint64_t share[WORDS];
    const int i = blockIdx.x * THREADS + threadIdx.x;
    pdl_begin(f);
    if (allowed && threadIdx.x < WORDS) {
        const int word = blockIdx.x * WORDS + threadIdx.x;
        share[threadIdx.x] = word < n_padded / BLOCK ? allowed[word] : 0;
    }
    __syncthreads();
    pdl_wait(f);
    if (i == 0) *top = 0;                /* smaller than all keys */
    if (i < n_padded) {
        const bool may = i < n && (!allowed || share[threadIdx.x / BLOCK] >> i % BLOCK & 1);
        const float x = may ? __fadd_rn(logits[i], bias[i]) : -INFINITY;
        work[i] = isnan(x) ? -INFINITY : x;
    }
    pdl_end(f);
}

static __global__ void penalise(tracer f, float *work, const gpu_shortlist s)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    if (i < s.n_seen) {
        const int id = s.seen[2 * i], count = s.seen[2 * i + 1];
        const float logit = work[id];
        if (isfinite(logit)) {
            double x = logit;
            x = x > 0 ? __ddiv_rn(x, s.repeat) : __dmul_rn(x, s.repeat);
            x = __dsub_rn(x, __dadd_rn(s.presence, __dmul_rn((double)count, s.frequency)));
            const double most = (double)3.402823466e38f;
            x = x > most ? most : x < -most ? -most : x;
            work[id] = __fadd_rn(__double2float_rn(x), 0.0f);    /* -0 becomes +0 */
        }
    }
    pdl_end(f);
}

/* A warp finds the largest logit of a block of ids. *top gets the key of the largest of all. */
static __global__ void block_maxima(tracer f, float *maxima, uint32_t *top, const float *work,
                                    int n_block)
{
    const int b = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    pdl_begin(f);
    pdl_wait(f);
    if (b < n_block) {
        float most = fmaxf(work[b * BLOCK + lane], work[b * BLOCK + 32 + lane]);
        for (int d = 16; d > 0; d >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
        if (lane == 0) {
            maxima[b] = most;
            atomicMax(top, order_key(most));
        }
    }
    pdl_end(f);
}

/* ---- weights --------------------------------------------------------------------------------- */

static __device__ __forceinline__ double weight_of(float x, double largest, double per_temperature,
                                                   const double *steps)
{
    const double ln_2 = 0x1.62e42fefa39efp-1, magic = 0x1.8p52;
    double z = __dmul_rn(__dsub_rn((double)x, largest), per_temperature);
    z = z < -700 ? -700 : z;
    const double t = __dadd_rn(__dmul_rn(z, STEPS / ln_2), magic);
    const double r = __dsub_rn(z, __dmul_rn(__dsub_rn(t, magic), ln_2 / STEPS));
    double p = __dadd_rn(0.5, __dmul_rn(r, 1.0 / 6));
    p = __dadd_rn(1.0, __dmul_rn(r, p));
    p = __dadd_rn(1.0, __dmul_rn(r, p));
    const unsigned long long n = (unsigned long long)__double_as_longlong(t);
    const unsigned long long bits = (unsigned long long)__double_as_longlong(steps[n % STEPS]) +
                                    (n / STEPS << 52);
    return __dmul_rn(__longlong_as_double((long long)bits), p);
}

/* A thread sums one lane of a block, eight ids; then the eight lanes are added in order. A block
 * without an allowed id has weight 0. */
static __global__ void block_masses(tracer f, double *masses, const uint32_t *top,
                                    const float *work, const gpu_shortlist s, int n_block)
{
    const int i = blockIdx.x * THREADS + threadIdx.x, b = i / LANES, lane = i % LANES;
    pdl_begin(f);
    pdl_wait(f);
    const double largest = (double)key_float(*top);
    bool some = false;
    float x[BLOCK / LANES];
    #pragma unroll
    for (int k = 0; k < BLOCK / LANES; k++) {
        x[k] = b < n_block ? work[b * BLOCK + k * LANES + lane] : -INFINITY;
        some |= x[k] > -INFINITY;
    }
    const unsigned group = ((1u << LANES) - 1) << (threadIdx.x % 32 / LANES * LANES);
    some = (__ballot_sync(~0u, some) & group) != 0;
    double sum = 0.0;
    if (some) {
        #pragma unroll
        for (int k = 0; k < BLOCK / LANES; k++)
            sum = __dadd_rn(sum, weight_of(x[k], largest, s.per_temperature, s.steps));
    }
    double mass = 0.0;
    for (int j = 0; j < LANES; j++)
        mass = __dadd_rn(mass, __shfl_sync(~0u, sum, threadIdx.x % 32 / LANES * LANES + j));
    if (b < n_block && lane == 0) masses[b] = mass;
    pdl_end(f);
}

void gpu_shortlist_make(gpu *g, const gpu_shortlist *s)
{
    const int n_block = (int)ceil_div(s->n, BLOCK), n_padded = n_block * BLOCK;
    launch(g, "sampling", 0, add_bias, ceil_div(n_padded, THREADS), THREADS, 0, s->work, s->top,
           s->logits, s->bias, s->allowed, s->n, n_padded);
    if (s->n_seen > 0)
        launch(g, "sampling", 0, penalise, ceil_div(s->n_seen, THREADS), THREADS, 0, s->work, *s);
    launch(g, "sampling", 0, block_maxima, ceil_div(n_block * 32, THREADS), THREADS, 0, s->maxima,
           s->top, s->work, n_block);
    if (s->masses)
        launch(g, "sampling", 0, block_masses, ceil_div(n_block * LANES, THREADS), THREADS, 0,
               s->masses, s->top, s->work, *s, n_block);
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Gathers logits >= bound; if top is not NULL, the bound is the float of the key *top. */
static __global__ void gather(tracer f, gpu_pair *to, uint32_t *count, int cap, const float *work,
                              int n, float bound, const uint32_t *top)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    if (top) bound = key_float(*top);
    if (i < n && work[i] >= bound && work[i] > -INFINITY) {
        const uint32_t at = atomicAdd(count, 1u);
        if (at < (uint32_t)cap) to[at] = { i, work[i] };
    }
    pdl_end(f);
}

static void gather_from(gpu *g, const gpu_shortlist *s, float bound, const uint32_t *top,
                        gpu_pair *to, int cap, uint32_t *count)
{
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaMemsetAsync(count, 0, sizeof *count, g->stream), "sampling");
    launch(g, "sampling", 0, gather, ceil_div(s->n, THREADS), THREADS, 0, to, count, cap, s->work,
           s->n, bound, top);
}

void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count)
{
    gather_from(g, s, bound, NULL, to, cap, count);
}

void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count)
{
    gather_from(g, s, 0.0f, s->top, to, cap, count);
}
