/* gemm_tile.cuh - the kernel of gemm.cu and its like: products of many tokens on tensor cores.
 *
 * out[token, row] = sum over k of W[row, k] * X[token, k]. A block of eight warps makes a tile of
 * 128 rows by 32, 64, 128 or 256 tokens, in steps of 64 columns. Weights become 16-bit floats on
 * their way to shared memory; activations are that already and are copied. Both lie there as
 * [row, 64], a row being eight chunks of 16 bytes, of which chunk c is at c ^ (row % 8): so neither
 * the stores nor the products' reads hit a bank twice. Sums are F32, in the order of k. How a chip
 * multiplies is in gemm_mma.cuh and gemm_wgmma.cuh.
 *
 * While a step is multiplied, the next one's weights are on their way into registers and its
 * activations into the other half of shared memory: one barrier for each step. Weights are
 * requested before the barrier, since compilers move loads down, but not past one. Past the last
 * column activations are zero, and weights are whatever the row's last block holds.
 *
 * With two matrices (gate and up) a tile has 64 rows of each, layout::row_step of one and of the
 * other in turn, so that a gate's value and its partner meet in one thread. Included by the files
 * that name the types. */
#ifndef CUDA_GEMM_TILE_CUH
#define CUDA_GEMM_TILE_CUH

#include "cuda/gemm.cuh"

enum { THREADS = 256, ROWS = 128, STEP = 64, ROW_BYTES = 2 * STEP };

enum { ANY = -1 };                       /* a kernel for all types that have none of their own */

static __device__ __forceinline__ unsigned swizzled(unsigned row, unsigned chunk)
{
    return row * ROW_BYTES + ((chunk ^ (row & 7u)) << 4);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "cuda/gemm_wgmma.cuh"
#else
#include "cuda/gemm_mma.cuh"
#endif

/* ---- weights to shared memory ---------------------------------------------------------------- */

/* What a thread loads. */
typedef struct weight_source {
    const uint8_t *row[4];               /* blocks: [0] alone */
    int type, cols, last;                /* last block of 32, or last chunk of 8 */
} weight_source;

/* Four int8 as scale * w + offset. A byte in the low bits of 2^23 is a float without conversion;
 * seven bits at the top of 128's fraction are 128 + their value, and 192 times the scale, which has
 * few bits, goes into the offset. */
template <bool NARROW>
static __device__ __forceinline__ uint2 four_halves(uint32_t w, float scale, float offset)
{
    float v[4];
    const uint32_t shifted = NARROW ? (w ^ 0x40404040u) & 0x7F7F7F7Fu : w ^ 0x80808080u;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (NARROW) {
            const uint32_t bits = pick_bytes(shifted, 0x43000000u, 0x7044u + 0x100u * (unsigned)i);
            v[i] = fmaf(scale, __uint_as_float(bits), offset);
        } else {
            const uint32_t bits = pick_bytes(shifted, 0x4B000000u, 0x7440u + (unsigned)i);
            v[i] = fmaf(scale, __uint_as_float(bits) - 8388736.0f, offset);
        }
    }
    return make_uint2(pack_halves(v[0], v[1]), pack_halves(v[2], v[3]));
}

/* 32 weights of a row to half a row of the tile. NARROW: they are in -64 .. 63. */
template <bool NARROW>
static __device__ __forceinline__ void store_block(uint8_t *tile, const uint32_t (&w)[8],
                                                   const float *scale, const float *offset)
{
    const unsigned row = threadIdx.x / 2, first = threadIdx.x % 2 * 4;
    #pragma unroll
    for (int c = 0; c < 4; c++) {
        const float by = scale[c / 2];
        const float from = NARROW ? fmaf(-192.0f, by, offset[c / 2]) : offset[c / 2];
        const uint2 low = four_halves<NARROW>(w[2 * c], by, from);
        const uint2 high = four_halves<NARROW>(w[2 * c + 1], by, from);
        *(uint4 *)(tile + swizzled(row, first + c)) = make_uint4(low.x, low.y, high.x, high.y);
    }
}

static __device__ __forceinline__ uint32_t two_halves(uint32_t v, int type)
{
    if (type == QT_F16) return pack_halves(half_bits(v & 0xFFFFu), half_bits(v >> 16));
    return pack_halves(float_bits(v << 16), float_bits(v & 0xFFFF0000u));
}

/* Weights that are already what tensor cores of this chip multiply. */
template <int TYPE> struct is_plain {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    enum { value = TYPE == QT_F16 };
#else
    enum { value = TYPE == QT_BF16 };
#endif
};
template <int TYPE> struct is_wide { enum { value = TYPE == QT_F16 || TYPE == QT_BF16 }; };

/* A thread's part of a step: a block of 32 weights, or four chunks of 8 from rows 32 apart. */
template <int TYPE> struct piece { weight_parts parts; };
template <> struct piece<QT_F16> { uint4 chunk[4]; };
template <> struct piece<QT_BF16> { uint4 chunk[4]; };
template <> struct piece<QT_MXFP4> { uint32_t nibbles[4], exponent; };
template <> struct piece<ANY> {};

static __device__ __forceinline__ const uint8_t *chunk_at(const weight_source &s, int i, int step)
{
    return s.row[i] + 16 * (size_t)min(8 * step + (int)(threadIdx.x % 8), s.last);
}

/* Asks for the weights of a step. */
template <int TYPE>
static __device__ __forceinline__ void fetch(piece<TYPE> &p, uint8_t *tile, const weight_source &s,
                                             int step)
{
    if constexpr (is_plain<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            copy16(tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8),
                   chunk_at(s, i, step));
    } else if constexpr (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++) p.chunk[i] = *(const uint4 *)chunk_at(s, i, step);
    } else if constexpr (TYPE == QT_MXFP4) {
        const int b = min(2 * step + (int)(threadIdx.x % 2), s.last);
        const uint8_t *block = s.row[0] + (size_t)b * sizeof(block_mxfp4);
        load_words(p.nibbles, block + offsetof(block_mxfp4, nibbles));
        p.exponent = block[0];
    } else if constexpr (TYPE != ANY) {
        const int b = min(2 * step + (int)(threadIdx.x % 2), s.last);
        unpack<TYPE>(p.parts, s.row[0] + (size_t)(b / 8) * format<TYPE>::group_bytes, b % 8);
    }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
/* Powers of two that binary16 lacks: through F32. */
static __device__ __forceinline__ void store_mxfp4(uint8_t *tile, const piece<QT_MXFP4> &p)
{
    const float by = float_bits(p.exponent << 23), scale[2] = { by, by };
    const float offset[2] = { 0.0f, 0.0f };
    uint32_t w[8];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = e2m1_values(p.nibbles[i] & 0x0F0F0F0Fu);
        w[4 + i] = e2m1_values(p.nibbles[i] >> 4 & 0x0F0F0F0Fu);
    }
    store_block<true>(tile, w, scale, offset);
}
#else
/* The upper and the lower bytes of 0, 1, 2, 3, 4, 6, 8, 12 in bfloat16. */
enum : uint32_t {
    E2M1_UPPER_0 = 0x40403F00, E2M1_UPPER_1 = 0x41414040,
    E2M1_LOWER_0 = 0x40008000, E2M1_LOWER_1 = 0x4000C080
};

static __device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, uint32_t signs,
                                                       __nv_bfloat162 scale)
{
    const uint32_t bits = pair ^ (signs & 0x80008000u);
    const __nv_bfloat162 v = __hmul2(*(const __nv_bfloat162 *)&bits, scale);
    return *(const uint32_t *)&v;
}

/* Two bits of fraction and a power of two: bfloat16 holds every value, so nothing needs F32. Of the
 * codes in a word the even digits are four neighbours of the block's first half, the odd ones of
 * its second. */
static __device__ __forceinline__ void store_mxfp4(uint8_t *tile, const piece<QT_MXFP4> &p)
{
    const unsigned row = threadIdx.x / 2, first = threadIdx.x % 2 * 4;
    const uint32_t twice = (p.exponent << 7) * 0x10001u;
    const __nv_bfloat162 scale = *(const __nv_bfloat162 *)&twice;
    uint32_t v[2][8];                    /* [half][two weights] */
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t codes = p.nibbles[i / 2], upper_half = i % 2;
        const uint32_t digits = (codes & 0x77777777u) >> 16 * upper_half;
        const uint32_t upper = pick_bytes(E2M1_UPPER_0, E2M1_UPPER_1, digits & 0xFFFFu);
        const uint32_t lower = pick_bytes(E2M1_LOWER_0, E2M1_LOWER_1, digits & 0xFFFFu);
        const uint32_t signs = upper_half ? 0xB4A4u : 0x9484u;   /* bytes of signs, two of zeros */
        v[0][i] = scaled_pair(pick_bytes(lower, upper, 0x6240u),
                              pick_bytes(codes << 4, 0, signs), scale);
        v[1][i] = scaled_pair(pick_bytes(lower, upper, 0x7351u),
                              pick_bytes(codes, 0, signs), scale);
    }
    #pragma unroll
    for (int c = 0; c < 4; c++) {
        const uint32_t *at = &v[c / 2][c % 2 * 4];
        *(uint4 *)(tile + swizzled(row, first + c)) = make_uint4(at[0], at[1], at[2], at[3]);
    }
}
#endif

/* Tells the L2 cache which weights come AHEAD steps later, if that is not 0: experts that few
 * tokens chose are multiplied faster than they are read, and a block waits for the little that its
 * registers ask for. */
template <int TYPE>
static __device__ __forceinline__ void announce(const weight_source &s, int step)
{
    if constexpr (AHEAD > 0 && TYPE != ANY && !is_wide<TYPE>::value) {
        const int b = min(2 * (step + AHEAD), s.last);
        const uint8_t *at = s.row[0] + (size_t)b * format<TYPE>::group_bytes / 8;
        if (threadIdx.x % 2 == 0) asm volatile("prefetch.global.L2 [%0];" :: "l"(at));
    }
}

/* Any type, at any address that it allows; floats past the last column are zero. */
static __device__ __forceinline__ void store_any(uint8_t *tile, const weight_source &s, int step)
{
    const int b = 2 * step + (int)(threadIdx.x % 2);
    if (s.type == QT_F16 || s.type == QT_BF16) {
        const uint16_t *values = (const uint16_t *)s.row[0];
        #pragma unroll 1
        for (int c = 0; c < 4; c++) {
            uint32_t v[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int k = 32 * b + 8 * c + 2 * i;
                const uint32_t low = k < s.cols ? values[k] : 0;
                const uint32_t high = k + 1 < s.cols ? values[k + 1] : 0;
                v[i] = two_halves(low | high << 16, s.type);
            }
            *(uint4 *)(tile + swizzled(threadIdx.x / 2, threadIdx.x % 2 * 4 + c)) =
                make_uint4(v[0], v[1], v[2], v[3]);
        }
        return;
    }
    const int block = min(b, s.last);
    float scale[2], offset[2];
    weight_parts parts;
    switch (s.type) {
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        unpack<TYPE>(parts, s.row[0] + (size_t)(block / 8) * format<TYPE>::group_bytes, block % 8);\
        block_affine<TYPE>(scale, offset, parts);                                                  \
        break;
    CASE(QT_Q4_0) CASE(QT_Q4_1) CASE(QT_Q5_0) CASE(QT_Q5_1) CASE(QT_IQ4_NL) CASE(QT_Q2_K)
    CASE(QT_Q3_K) CASE(QT_IQ4_XS)
#undef CASE
    default: return;
    }
    store_block<false>(tile, parts.w, scale, offset);
}

/* Puts the fetched weights where the tensor cores look for them. */
template <int TYPE>
static __device__ __forceinline__ void store(uint8_t *tile, const piece<TYPE> &p,
                                             const weight_source &s, int step)
{
    if constexpr (is_plain<TYPE>::value) {
        return;                          /* copied */
    } else if constexpr (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 v = p.chunk[i];
            *(uint4 *)(tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8)) =
                make_uint4(two_halves(v.x, TYPE), two_halves(v.y, TYPE), two_halves(v.z, TYPE),
                           two_halves(v.w, TYPE));
        }
    } else if constexpr (TYPE == ANY) {
        store_any(tile, s, step);
    } else if constexpr (TYPE == QT_MXFP4) {
        store_mxfp4(tile, p);
    } else {
        float scale[2], offset[2];
        block_affine<TYPE>(scale, offset, p.parts);
        store_block<TYPE != QT_Q8_0>(tile, p.parts.w, scale, offset);
    }
}

/* The matrix and the row in it that row r of the block's tile is. */
template <int TOKENS>
static __device__ __forceinline__ const uint8_t *tile_row(const gemm &p, int expert, int r)
{
    enum { RUN = layout<TOKENS>::row_step };
    if (!p.up.data)
        return weight_row(p.w, expert, min((int)blockIdx.x * ROWS + r, p.rows - 1));
    const int row = min((int)blockIdx.x * (ROWS / 2) + r / (2 * RUN) * RUN + r % RUN, p.rows - 1);
    return r & RUN ? weight_row(p.up, expert, row) : weight_row(p.w, expert, row);
}

template <int TYPE, int TOKENS>
static __device__ __forceinline__ weight_source weight_source_of(const gemm &p, int expert)
{
    weight_source s;
    s.type = p.type;
    s.cols = p.cols;
    if (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            s.row[i] = tile_row<TOKENS>(p, expert, (int)threadIdx.x / 8 + 32 * i);
        s.last = p.cols / 8 - 1;
    } else {
        s.row[0] = tile_row<TOKENS>(p, expert, (int)threadIdx.x / 2);
        s.last = p.cols / 32 - 1;
    }
    return s;
}

/* ---- activations to shared memory ------------------------------------------------------------ */

/* A thread copies chunk threadIdx.x % 8 of rows that lie 32 apart. */
template <int N> struct row_source {
    const uint16_t *x;
    unsigned at[N];                      /* of the row, in chunks of 8; ANY: the row */
    int cols;
    bool aligned;                        /* rows are whole chunks, at multiples of 16 bytes */
};

template <int N>
static __device__ __forceinline__ row_source<N> row_source_of(const gemm &p, const token_tile &tile,
                                                              bool any)
{
    row_source<N> s;
    s.x = (const uint16_t *)p.x;
    s.cols = p.cols;
    s.aligned = p.cols % 8 == 0 && (uintptr_t)p.x % 16 == 0;
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const int r = min((int)threadIdx.x / 8 + 32 * i, tile.n - 1);
        const unsigned row = (unsigned)input_row(p, tile.first + r);
        s.at[i] = any ? row : row * (unsigned)(p.cols / 8) + threadIdx.x % 8;
    }
    return s;
}

/* Rows of any length at any address, value by value. */
static __device__ __forceinline__ void copy_values(uint8_t *to, const uint16_t *x, int k, int cols)
{
    uint32_t v[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = k + 2 * i < cols ? x[k + 2 * i] : 0;
        const uint32_t high = k + 2 * i + 1 < cols ? x[k + 2 * i + 1] : 0;
        v[i] = low | high << 16;
    }
    *(uint4 *)to = make_uint4(v[0], v[1], v[2], v[3]);
}

template <int TYPE, int N>
static __device__ __forceinline__ void copy_rows(uint8_t *tile, const row_source<N> &s, int step)
{
    const int k = STEP * step + 8 * (int)(threadIdx.x % 8);
    #pragma unroll
    for (int i = 0; i < N; i++) {
        uint8_t *to = tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8);
        if (TYPE == ANY) {
            const uint16_t *row = s.x + (size_t)s.at[i] * s.cols;
            if (!s.aligned) {
                copy_values(to, row, k, s.cols);
                continue;
            }
            if (k < s.cols) copy16(to, row + k);
        } else if (k < s.cols) {
            copy16(to, (const uint4 *)s.x + s.at[i] + 8 * (size_t)step);
        }
        if (k >= s.cols) *(uint4 *)to = make_uint4(0, 0, 0, 0);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* What a lane holds: rows g and g + 8 of 16, tokens 2t and 2t + 1 of 8. */
template <int TOKENS>
static __device__ __forceinline__ void write_one(const gemm &p, const token_tile &tile,
                                                 const float (&sum)[layout<TOKENS>::m]
                                                                   [layout<TOKENS>::n][4])
{
    typedef layout<TOKENS> L;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = (int)blockIdx.x * ROWS + L::first_row(warp, lane);
    const int first_token = L::first_token(warp, lane);
    const float factor = expert_factor(p.w, tile.expert);
    float bias[2 * L::m];
    #pragma unroll
    for (int i = 0; i < 2 * L::m; i++) {
        const int r = first_row + i / 2 * L::row_step + i % 2 * 8;
        bias[i] = r < p.rows ? bias_of(p.w, tile.expert, p.rows, r) : 0.0f;
    }
    #pragma unroll
    for (int j = 0; j < 2 * L::n; j++) {
        const int t = first_token + j / 2 * 8 + j % 2;
        if (t >= tile.n) continue;
        float *y = p.y + (size_t)output_row(p, tile.first + t) * p.y_stride;
        #pragma unroll
        for (int i = 0; i < 2 * L::m; i++) {
            const int r = first_row + i / 2 * L::row_step + i % 2 * 8;
            if (r >= p.rows) continue;
            const float v = fmaf(factor, sum[i / 2][j / 2][i % 2 * 2 + j % 2], bias[i]);
            y[r] = p.add ? y[r] + v : v;
        }
    }
}

/* Products 2i are the gate's, 2i + 1 of the same rows of the other matrix; a product's rows are 16
 * of a warp. */
template <int TOKENS>
static __device__ __forceinline__ void write_two(const gemm &p, const token_tile &tile,
                                                 const float (&sum)[layout<TOKENS>::m]
                                                                   [layout<TOKENS>::n][4])
{
    typedef layout<TOKENS> L;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int in_tile = L::first_row(warp, lane);
    const int first_row = (int)blockIdx.x * (ROWS / 2) + in_tile / (2 * L::row_step) * L::row_step +
                          in_tile % L::row_step;
    const int first_token = L::first_token(warp, lane);
    const float gate_factor = expert_factor(p.w, tile.expert);
    const float up_factor = expert_factor(p.up, tile.expert);
    #pragma unroll
    for (int i = 0; i < L::m; i++) {
        const int r = first_row + 8 * i, at = i / 2 * 2;
        if (r >= p.rows) continue;
        const float gate_bias = bias_of(p.w, tile.expert, p.rows, r);
        const float up_bias = bias_of(p.up, tile.expert, p.rows, r);
        #pragma unroll
        for (int j = 0; j < 2 * L::n; j++) {
            const int t = first_token + j / 2 * 8 + j % 2, e = i % 2 * 2 + j % 2;
            if (t >= tile.n) continue;
            const float gate = fmaf(gate_factor, sum[at][j / 2][e], gate_bias);
            const float up = fmaf(up_factor, sum[at + 1][j / 2][e], up_bias);
            store_mid(p, (size_t)output_row(p, tile.first + t) * p.rows + r,
                      activate(gate, up, p.clamped));
        }
    }
}

/* Dynamic shared memory: two tiles of weights, two of activations. */
template <int TYPE, int TOKENS>
static __global__ void __launch_bounds__(THREADS, layout<TOKENS>::blocks) gemm_tile(frame f,
                                                                                    const gemm p)
{
    typedef layout<TOKENS> L;
    enum { W_BYTES = ROWS * ROW_BYTES, X_BYTES = TOKENS * ROW_BYTES };
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *const w = shared, *const x = shared + 2 * W_BYTES;
    const multiplier<TOKENS> by;
    const int n_step = (p.cols + STEP - 1) / STEP;
    token_tile tile;
    float sum[L::m][L::n][4];

    frame_begin(f);
    frame_wait(f);
    if (!tile_of_block(tile, p)) {
        frame_end(f);
        return;
    }
    const weight_source weights = weight_source_of<TYPE, TOKENS>(p, tile.expert);
    const row_source<TOKENS / 32> rows = row_source_of<TOKENS / 32>(p, tile, TYPE == ANY);
    #pragma unroll
    for (int i = 0; i < L::m; i++)
        #pragma unroll
        for (int j = 0; j < L::n; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;

    piece<TYPE> next;
    copy_rows<TYPE>(x, rows, 0);
    fetch<TYPE>(next, w, weights, 0);
    copy_commit();
    store<TYPE>(w, next, weights, 0);
    #pragma unroll 1
    for (int step = 0; step + 1 < n_step; step++) {
        const int now = step & 1, other = now ^ 1;
        if (!is_plain<TYPE>::value) fetch<TYPE>(next, w, weights, step + 1);
        /* this step has arrived, and nobody reads the previous one any more */
        copy_wait<0>();
        show_to_units();
        __syncthreads();
        copy_rows<TYPE>(x + other * X_BYTES, rows, step + 1);
        if (is_plain<TYPE>::value) fetch<TYPE>(next, w + other * W_BYTES, weights, step + 1);
        copy_commit();
        by.begin(sum, w + now * W_BYTES, x + now * X_BYTES);
        announce<TYPE>(weights, step + 1);
        store<TYPE>(w + other * W_BYTES, next, weights, step + 1);
        by.end(sum);
    }
    copy_wait<0>();
    show_to_units();
    __syncthreads();
    const int now = (n_step - 1) & 1;
    by.begin(sum, w + now * W_BYTES, x + now * X_BYTES);
    by.end(sum);

    if (p.up.data) write_two<TOKENS>(p, tile, sum);
    else write_one<TOKENS>(p, tile, sum);
    frame_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

static inline size_t tile_bytes(int tokens)
{
    return 2 * (size_t)(ROWS + tokens) * ROW_BYTES;
}

/* tile_tokens is set, and factors hold the format's. */
template <int TYPE> static void run_type(gpu *g, const gemm *p)
{
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    const int rows = p->up.data ? ROWS / 2 : ROWS;
    const unsigned n_tile = p->tiles ? (unsigned)p->max_tile
                                     : ceil_div((uint64_t)p->n, (uint64_t)p->tile_tokens);
    const dim3 grid(ceil_div((uint64_t)p->rows, (uint64_t)rows), n_tile);
    const size_t smem = tile_bytes(p->tile_tokens);

    if (TYPE != ANY && (uintptr_t)p->x % 16 != 0) {
        gpu_fail(g, cudaErrorMisalignedAddress, "gemm: activations");
        return;
    }
    switch (p->tile_tokens) {
    case 256: launch(g, p->name, bytes, gemm_tile<TYPE, 256>, grid, THREADS, smem, *p); break;
    case 128: launch(g, p->name, bytes, gemm_tile<TYPE, 128>, grid, THREADS, smem, *p); break;
    case 64: launch(g, p->name, bytes, gemm_tile<TYPE, 64>, grid, THREADS, smem, *p); break;
    default: launch(g, p->name, bytes, gemm_tile<TYPE, 32>, grid, THREADS, smem, *p); break;
    }
}

#endif
