/* vendor_fp4.cu - packs weights and activations for the block-scaled FP4 product: a thread for each
 * scale, those of the padding included, which is zero. */
#include "cuda/vendor_fp4.cuh"

enum { THREADS = 256 };

typedef struct pack_args {
    const uint8_t *from;
    uint64_t row_bytes;
    int rows, n_block, padded;           /* blocks of a row, and with the padding */
    unsigned n;                          /* threads that have something to do */
    fp4_matrix to;
} pack_args;

static pack_args args_of(const void *from, uint64_t row_bytes, int rows, int n_block,
                         const fp4_matrix *to)
{
    const int padded = (n_block + FP4_TILE_BLOCKS - 1) / FP4_TILE_BLOCKS * FP4_TILE_BLOCKS;
    return { (const uint8_t *)from, row_bytes, rows, n_block, padded,
             (unsigned)fp4_scales_bytes(rows, n_block), *to };
}

/* The thread's row and block. False: it has none. */
static __device__ __forceinline__ bool place_of(int &r, int &b, const pack_args &a)
{
    const unsigned at = blockIdx.x * THREADS + threadIdx.x;
    r = (int)(at / (unsigned)a.padded);
    b = (int)(at % (unsigned)a.padded);
    return at < a.n;
}

/* ---- weights --------------------------------------------------------------------------------- */

template <int TYPE>
static __global__ void __launch_bounds__(THREADS) pack_weights(frame f, const pack_args a)
{
    enum { WORDS = TYPE == QT_NVFP4 ? 2 : 4 };
    uint32_t codes[WORDS], scale = 0;
    int r, b;
    frame_begin(f);
    const bool mine = place_of(r, b, a), inside = mine && r < a.rows && b < a.n_block;
    if (inside) {
        const uint8_t *row = a.from + (uint64_t)r * a.row_bytes;
        if constexpr (TYPE == QT_NVFP4)
            scale = fp4_take_nvfp4(codes, row + (size_t)(b / 4) * sizeof(block_nvfp4), b % 4);
        else scale = fp4_take_mxfp4(codes, row + (size_t)b * sizeof(block_mxfp4));
    }
    frame_wait(f);                       /* the last product has read what was here */
    if (inside) {
        uint32_t *to = (uint32_t *)a.to.codes + ((size_t)r * a.n_block + b) * WORDS;
        #pragma unroll
        for (int i = 0; i < WORDS; i++) to[i] = codes[i];
    }
    if (mine) a.to.scales[fp4_scale_at(r, b, a.n_block)] = (uint8_t)scale;
    frame_end(f);
}

void fp4_pack_weights(gpu *g, const fp4_matrix *to, const gemm *p, int first, int rows)
{
    const uint8_t *from = p->w.data + (uint64_t)first * p->w.row_bytes;
    const pack_args a = args_of(from, p->w.row_bytes, rows, p->cols / fp4_block(p->type), to);
    launch(g, "decode", (uint64_t)rows * p->w.row_bytes,
           p->type == QT_NVFP4 ? pack_weights<QT_NVFP4> : pack_weights<QT_MXFP4>,
           ceil_div(a.n, THREADS), THREADS, 0, a);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Two bf16 of a word. */
static __device__ __forceinline__ float low_half(uint32_t v) { return float_bits(v << 16); }
static __device__ __forceinline__ float high_half(uint32_t v)
{
    return float_bits(v & 0xFFFF0000u);
}

/* Bits of the largest magnitude, of floats: they are in the order of their values. */
static __global__ void __launch_bounds__(THREADS) find_largest(frame f, const uint4 *x, size_t n,
                                                               uint32_t *largest)
{
    uint32_t best = 0;
    frame_begin(f);
    frame_wait(f);
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        const uint4 v = x[i];
        const uint32_t words[4] = { v.x, v.y, v.z, v.w };
        #pragma unroll
        for (int k = 0; k < 4; k++)
            best = max(best, max(words[k] << 16 & 0x7FFF0000u, words[k] & 0x7FFF0000u));
    }
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(0xFFFFFFFFu, best, d));
    if (threadIdx.x % 32 == 0) atomicMax(largest, best);
    frame_end(f);
}

/* The exponent field of a power of two that brings the largest below 2048: E4M3 ends at 448, E2M1
 * at 6. */
static __device__ __forceinline__ uint32_t unit_field(uint32_t largest)
{
    const uint32_t field = largest >> 23;
    return largest == 0 ? 127 : field > 11 ? field - 10 : 1;
}

template <int N>
static __global__ void __launch_bounds__(THREADS) pack_inputs(frame f, const pack_args a,
                                                              const fp4_inputs to, float factor,
                                                              bool add)
{
    int r, b;
    frame_begin(f);
    const bool mine = place_of(r, b, a), inside = mine && r < a.rows && b < a.n_block;
    frame_wait(f);
    const uint32_t unit = N == 16 ? unit_field(*to.largest) : 127;
    const float by = float_bits((254 - unit) << 23);     /* 1 / unit */
    float v[N];
    #pragma unroll
    for (int i = 0; i < N; i++) v[i] = 0.0f;
    if (inside) {
        const uint4 *from = (const uint4 *)(a.from + (size_t)r * a.row_bytes) + b * (N / 8);
        #pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const uint4 q = from[i];
            const uint32_t words[4] = { q.x, q.y, q.z, q.w };
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                v[8 * i + 2 * k] = low_half(words[k]) * by;
                v[8 * i + 2 * k + 1] = high_half(words[k]) * by;
            }
        }
    }
    #pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t codes[N / 8];
        const uint32_t scale = fp4_pack<N>(codes, v);
        if (inside) {
            uint32_t *at = (uint32_t *)to.part[part].codes + ((size_t)r * a.n_block + b) * (N / 8);
            #pragma unroll
            for (int i = 0; i < N / 8; i++) at[i] = codes[i];
        }
        if (mine) to.part[part].scales[fp4_scale_at(r, b, a.n_block)] = (uint8_t)scale;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        to.by[0] = factor * float_bits(unit << 23);
        to.by[1] = add ? 1.0f : 0.0f;
        to.by[2] = 1.0f;
    }
    frame_end(f);
}

void fp4_pack_inputs(gpu *g, const fp4_inputs *to, const gemm *p)
{
    const bool nvfp4 = p->type == QT_NVFP4;
    const uint64_t row_bytes = (uint64_t)p->cols * sizeof(uint16_t);
    const pack_args a = args_of(p->x, row_bytes, p->n, p->cols / fp4_block(p->type), &to->part[0]);
    const size_t chunks = (size_t)p->n * p->cols / 8;
    if (nvfp4 && g->failure == cudaSuccess) {
        gpu_fail(g, cudaMemsetAsync(to->largest, 0, sizeof *to->largest, g->stream), "FP4");
        launch(g, "quantise", 0, find_largest, (unsigned)g->n_sm * 4, THREADS, 0,
               (const uint4 *)p->x, chunks, to->largest);
    }
    launch(g, "quantise", 0, nvfp4 ? pack_inputs<16> : pack_inputs<32>, ceil_div(a.n, THREADS),
           THREADS, 0, a, *to, p->w.factor, p->add);
}
