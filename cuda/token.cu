/* token.cu - the first and the last operations of a token: embedding and table of rotations; soft
 * cap and the largest logit. The soft cap has the bits of engine/cpu/. */
#include "cuda/blocks.cuh"
#include "cuda/contract_activation.cuh"

enum { THREADS = 256, PICK_BLOCKS = 128 };

/* ---- the embedding --------------------------------------------------------------------------- */

template <int TYPE>
static __device__ __forceinline__ void embed_block(float *x, const uint8_t *row, int j, float scale)
{
    weight_parts p;
    float factor[2], offset[2];
    unpack<TYPE>(p, row + (j / 8) * format<TYPE>::group_bytes, j % 8);
    block_affine<TYPE>(factor, offset, p);
    for (int i = 0; i < 32; i++) {
        const float w = (float)(int8_t)(p.w[i / 4] >> 8 * (i % 4));
        x[32 * j + i] = scale * format<TYPE>::factor * fmaf(factor[i / 16], w, offset[i / 16]);
    }
}

static __global__ void embed(tracer f, float *x, const gpu_matrix table, const int32_t *ids)
{
    const int t = blockIdx.x, cols = table.cols;
    pdl_begin(f);
    pdl_wait(f);
    const uint8_t *row = table.data + (size_t)ids[t] * table.row_bytes;
    float *out = x + (size_t)t * cols;
    for (int j = threadIdx.x; j < cols / 32; j += THREADS)
        switch (table.type) {
#define CASE(T) case T: embed_block<T>(out, row, j, table.scale); break;
        GPU_BLOCK_TYPES(CASE)
#undef CASE
        }
    for (int c = threadIdx.x; c < cols; c += THREADS) {
        if (table.type == QT_F32) out[c] = table.scale * ((const float *)row)[c];
        if (table.type == QT_F16) out[c] = table.scale * __half2float(((const __half *)row)[c]);
        if (table.type == QT_BF16)
            out[c] = table.scale * __bfloat162float(((const __nv_bfloat16 *)row)[c]);
    }
    pdl_end(f);
}

void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n)
{
    launch(g, "embed", 0, embed, (unsigned)n, THREADS, 0, x, *table, ids);
}

/* ---- rotation -------------------------------------------------------------------------------- */

static __global__ void rope_table(tracer f, float *cosine, float *sine, const double *freq,
                                  double magnitude, int half, const gpu_cursor *at)
{
    pdl_begin(f);
    pdl_wait(f);
    const double pos = pos_of(row_token_of(at, (int)blockIdx.x));
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        double s, c;
        sincos(pos * freq[i], &s, &c);
        cosine[(size_t)blockIdx.x * half + i] = (float)(magnitude * c);
        sine[(size_t)blockIdx.x * half + i] = (float)(magnitude * s);
    }
    pdl_end(f);
}

void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *at, int n)
{
    launch(g, "rope", 0, rope_table, (unsigned)n, 32, 0, cosine, sine, freq, magnitude, half, at);
}

/* ---- capped logits --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    soft_cap(tracer f, float *x, uint64_t n, float cap)
{
    pdl_begin(f);
    pdl_wait(f);
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < n;
         i += gridDim.x * (uint64_t)THREADS) {
        const float v = x[i], e = contract_exp(__fdiv_rn(__fmul_rn(v, -2.0f), cap));
        if (isnan(v)) continue;          /* the formula would turn NaN into cap */
        x[i] = __fmul_rn(cap, __fdiv_rn(__fsub_rn(1.0f, e), __fadd_rn(1.0f, e)));
    }
    pdl_end(f);
}

void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap)
{
    const uint64_t blocks = ceil_div(n, THREADS), most = (uint64_t)g->n_sm * 8;
    launch(g, "soft cap", n * sizeof *x, soft_cap, (unsigned)(blocks < most ? blocks : most),
           THREADS, 0, x, n, cap);
}

/* ---- the next token -------------------------------------------------------------------------- */

/* A key in the order of logits; NaN is the smallest. Of equals the lowest id has the largest
 * key. */
static __device__ __forceinline__ unsigned long long pick_key(float v, int id)
{
    const uint32_t order = isnan(v) ? 0 : order_key(v);
    return (unsigned long long)order << 32 | (uint32_t)(0x7FFFFFFF - id);
}

static __device__ __forceinline__ unsigned long long block_largest(unsigned long long key)
{
    __shared__ unsigned long long best[THREADS / 32];
    for (int d = 16; d > 0; d >>= 1) key = max(key, __shfl_xor_sync(~0u, key, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = key;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) key = max(key, best[i]);
    return key;
}

static __device__ __forceinline__ void advance_cursor(gpu_cursor *at, int n)
{
    uint8_t *written = at->recurrent_next;
    at->pos += n;
    at->recurrent_next = (uint8_t *)at->recurrent;
    at->recurrent = written;
}

static __global__ void __launch_bounds__(THREADS)
largest(tracer f, const float *logits, int n, gpu_cursor *at, unsigned long long *seen,
        unsigned long long *found, uint32_t *counter)
{
    __shared__ bool is_last;
    unsigned long long key = 0;
    pdl_begin(f);
    pdl_wait(f);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
        key = max(key, pick_key(logits[i], i));
    key = block_largest(key);
    if (threadIdx.x == 0) {
        found[blockIdx.x] = key;
        __threadfence();
        is_last = atomicAdd(counter, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last) {
        __threadfence();
        const volatile unsigned long long *all = found;
        key = block_largest(threadIdx.x < gridDim.x ? all[threadIdx.x] : 0);
        if (threadIdx.x == 0) {
            const int id = 0x7FFFFFFF - (int)(uint32_t)key;
            at->token = id;
            advance_cursor(at, 1);
            if (seen) {
                const unsigned long long stamp = (uint32_t)at->pos & 0x7FFFFFFFu;
                *(volatile unsigned long long *)seen = stamp << 32 | (uint32_t)id;
                __threadfence_system();
            }
            *counter = 0;
        }
    }
    pdl_end(f);
}

void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *at, uint64_t *seen, uint32_t *best,
                 uint32_t *counter)
{
    launch(g, "pick", 0, largest, PICK_BLOCKS, THREADS, 0, logits, n, at,
           (unsigned long long *)seen, (unsigned long long *)best, counter);
}

static __global__ void advance(tracer f, gpu_cursor *at, int n)
{
    pdl_begin(f);
    pdl_wait(f);
    advance_cursor(at, n);
    pdl_end(f);
}

void gpu_advance(gpu *g, gpu_cursor *at, int n)
{
    launch(g, "pick", 0, advance, 1, 1, 0, at, n);
}

int gpu_code_version(void)
{
    cudaFuncAttributes code;
    if (cudaFuncGetAttributes(&code, (const void *)advance) == cudaSuccess) return code.ptxVersion;
    cudaGetLastError();
    return -1;
}
