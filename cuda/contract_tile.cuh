/* contract_tile.cuh - products of many tokens by the arithmetic contract, on integer tensor cores.
 * contract_many.cu, contract_k_quants.cu and contract_tables.cu instantiate it. The bits are those
 * of engine/cpu/contract.c.
 *
 * Threads do the contract's few F32 operations for a block (contract_mma.cuh) and add it to one of
 * eight sums for each output, one for each lane. With all eight sums a thread would need 128
 * registers for its part of a warp's 32 rows by 16 tokens, and a scheduler would have two warps, too
 * few to hide latency. So there are two passes over the columns: lanes 0, 1, 4 and 5, whose sums
 * fold into one; then lanes 2, 3, 6 and 7.
 *
 * A thread block computes ROWS rows by TOKENS tokens. A step is the four blocks of a group of eight
 * (256 columns) that belong to the pass's lanes. Raw weights arrive in shared memory in the
 * background, two steps ahead. Each warp unpacks the weights that it requested, one step ahead of
 * the products, to
 *
 *   codes    [row, 128], weights' and activations': chunks 0..3 of 16 bytes are the first halves of
 *            four blocks, 4..7 the second ones; chunk c is at c ^ (row % 8), so that neither stores
 *            nor ldmatrix have bank conflicts
 *   scales   [block, 32 rows] and [block, 16 tokens] of a warp, so that a thread's four rows and
 *            its four tokens are four consecutive floats
 *
 * Half groups with a block whose t * MAGIC is not finite use slower code. Past the last column
 * scales are zero. */
#ifndef CUDA_CONTRACT_TILE_CUH
#define CUDA_CONTRACT_TILE_CUH

#include "cuda/contract_few.cuh"

enum { STEP = CONTRACT_STEP, GROUP = 8, WARP_ROWS = 32, WARP_TOKENS = 16 };

/* ---- shared memory --------------------------------------------------------------------------- */

template <int TYPE, int ROWS, int TOKENS> struct contract_layout {
    typedef contract_traits<TYPE> T;
    enum {
        warps_m = ROWS / WARP_ROWS, warps_n = TOKENS / WARP_TOKENS, warps = warps_m * warps_n,
        threads = 32 * warps,
        warp_rows = ROWS / warps,                /* rows that a warp unpacks */
        units = warp_rows * STEP / 32,           /* blocks that a thread unpacks in a step */
        row_units = warp_rows / 8,
        per_token = threads / TOKENS,            /* threads that copy one token's codes */
        w_bytes = ROWS * CODE_PITCH, x_bytes = TOKENS * CODE_PITCH,      /* codes of a step */
        w_scales = STEP * ROWS, x_scales = STEP * TOKENS,                /* floats of one kind */
        raw_bytes = ROWS * T::raw_pitch,
        /* two buffers each: codes and scales of this step and the next, raw of the next two */
        x_at = 2 * w_bytes,
        w_scales_at = x_at + 2 * x_bytes,
        x_scales_at = w_scales_at + 2 * T::row_floats * w_scales * (int)sizeof(float),
        raw_at = x_scales_at + 2 * T::token_floats * x_scales * (int)sizeof(float),
        bytes = raw_at + 2 * raw_bytes + 16      /* unpack may read a word past a block */
    };
    static_assert(warp_rows % 8 == 0, "8 rows by 4 blocks for a warp");
    static_assert((int)bytes == contract_tile_bytes(TYPE, ROWS, TOKENS), "shared memory");
};

/* ---- places in shared memory ----------------------------------------------------------------- */

static __device__ __forceinline__ unsigned code_at(unsigned row, unsigned chunk)
{
    return row * CODE_PITCH + ((chunk ^ (row & 7u)) << 4);
}

/* Indices of scales. Of a warp's 32 rows a thread has g, g+8, g+16, g+24, which become neighbours;
 * of 16 tokens it has 2t, 2t+1, 2t+8, 2t+9, likewise. */
static __device__ __forceinline__ unsigned row_place(unsigned r)
{
    return r / 32 * 32 + r % 8 * 4 + r % 32 / 8;
}

static __device__ __forceinline__ unsigned token_place(unsigned t)
{
    return t / 16 * 16 + t % 8 / 2 * 4 + t % 16 / 8 * 2 + t % 2;
}

/* The block of the group that is block l of a step: that of the pass's l-th lane. */
static __device__ __forceinline__ int block_of(int pass, int l)
{
    return 2 * pass + l % 2 + l / 2 * 4;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Address of row r of the tile. With gate and up, 16 rows of gate and 16 of up alternate. */
template <int ROWS>
static __device__ __forceinline__ const uint8_t *contract_row(const gemm &p, int expert, int r)
{
    if (!p.up.data)
        return weight_row(p.w, expert, min((int)blockIdx.x * ROWS + r, p.rows - 1));
    const int row = min((int)blockIdx.x * (ROWS / 2) + r / 32 * 16 + r % 16, p.rows - 1);
    return r & 16 ? weight_row(p.up, expert, row) : weight_row(p.w, expert, row);
}

template <int TYPE, int ROWS, int TOKENS> struct weight_stage {
    typedef contract_traits<TYPE> T;
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    enum { group_bytes = format<TYPE>::group_bytes };
    const uint8_t *row[L::row_units];    /* rows that this thread copies; four threads share one */
    uint32_t low[L::row_units];          /* low bits of the addresses of the rows that it unpacks */
    int row_bytes, n_block;

    __device__ __forceinline__ void begin(const gemm &p, int expert)
    {
        const int first = (int)(threadIdx.x / 32) * L::warp_rows, lane = (int)(threadIdx.x % 32);
        n_block = p.cols / 32;
        row_bytes = n_block / GROUP * group_bytes;
        if (n_block % GROUP)             /* only for formats with blocks of 32 or 64 weights */
            row_bytes += group_bytes / GROUP * (n_block % GROUP);
        #pragma unroll
        for (int i = 0; i < L::row_units; i++) {
            row[i] = contract_row<ROWS>(p, expert, first + 8 * i + lane / 4);
            low[i] = (uint32_t)(uintptr_t)contract_row<ROWS>(p, expert, first + 8 * i + lane % 8) &
                     15u;
        }
    }

    /* Requests a group of the warp's rows. */
    __device__ __forceinline__ void copy(uint8_t *raw, int group) const
    {
        const int first = (int)(threadIdx.x / 32) * L::warp_rows, lane = (int)(threadIdx.x % 32);
        const int from = group * group_bytes, bytes = min((int)group_bytes, row_bytes - from);
        #pragma unroll
        for (int i = 0; i < L::row_units; i++) {
            const uint8_t *at = row[i] + from;
            const int skip = (int)((uintptr_t)at & 15u), n = (skip + bytes + 15) / 16;
            uint8_t *to = raw + (first + 8 * i + lane / 4) * T::raw_pitch;
            at -= skip;
            #pragma unroll
            for (int c = 0; c < T::raw_pitch / 16; c += 4)
                if (c + lane % 4 < n) copy16(to + 16 * (c + lane % 4), at + 16 * (c + lane % 4));
        }
    }

    /* Unpacks a step's blocks of the warp's rows. True: some scale's t * MAGIC is not finite. */
    __device__ __forceinline__ bool unpack_step(uint8_t *codes, float *scales, const uint8_t *raw,
                                                int group, int pass) const
    {
        const int first = (int)(threadIdx.x / 32) * L::warp_rows, lane = (int)(threadIdx.x % 32);
        const int l = lane / 8, block = block_of(pass, l);
        const bool there = group * GROUP + block < n_block;
        bool odd = false;
        #pragma unroll
        for (int i = 0; i < L::units; i++) {
            const int r = first + 8 * i + lane % 8;
            const uint32_t skip = (low[i] + (uint32_t)(group * group_bytes)) & 15u;
            const uint32_t at = (uint32_t)__cvta_generic_to_shared(raw + r * T::raw_pitch) + skip;
            float *to = scales + l * ROWS + row_place((unsigned)r);
            weight_parts p;
            if (!there) {
                #pragma unroll
                for (int k = 0; k < T::row_floats; k++) to[k * L::w_scales] = 0.0f;
                continue;
            }
            unpack<TYPE>(p, shared_at{ at }, block);
            *(uint4 *)(codes + code_at((unsigned)r, (unsigned)l)) =
                make_uint4(p.w[0], p.w[1], p.w[2], p.w[3]);
            *(uint4 *)(codes + code_at((unsigned)r, STEP + (unsigned)l)) =
                make_uint4(p.w[4], p.w[5], p.w[6], p.w[7]);
            odd |= contract_store_scales<TYPE>(to, L::w_scales, p);
        }
        return odd;
    }

};

/* ---- activations ----------------------------------------------------------------------------- */

/* The tile's tokens in their int8 form (activations.cuh): codes by copies in the background, scales
 * and sums through registers. */
template <int TYPE, int ROWS, int TOKENS> struct token_stage {
    typedef contract_traits<TYPE> T;
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    enum { each = STEP / L::per_token };
    const uint8_t *x;
    int n_block;
    float dx[each];
    int s[each];

    __device__ __forceinline__ void begin(const gemm &p, const token_tile &tile)
    {
        const int t = min((int)threadIdx.x / L::per_token, tile.n - 1);
        n_block = p.cols / 32;
        x = (const uint8_t *)p.x +
            (size_t)input_row(p, tile.first + t) * (size_t)blocks_pitch(p.cols);
    }

    __device__ __forceinline__ void copy(uint8_t *codes, int group, int pass)
    {
        const int t = (int)threadIdx.x / L::per_token, part = (int)threadIdx.x % L::per_token;
        #pragma unroll
        for (int i = 0; i < each; i++) {
            const int l = part + i * L::per_token, j = group * GROUP + block_of(pass, l);
            dx[i] = 0.0f;
            s[i] = 0;
            if (j >= n_block) continue;
            copy16(codes + code_at((unsigned)t, (unsigned)l), x + 16 * j);
            copy16(codes + code_at((unsigned)t, (unsigned)(STEP + l)), x + 16 * (n_block + j));
            dx[i] = *(const float *)(x + 32 * n_block + 4 * j);
            if (T::minimum) s[i] = *(const int *)(x + 36 * n_block + 4 * j);
        }
    }

    __device__ __forceinline__ void store_scales(float *scales) const
    {
        const int t = (int)threadIdx.x / L::per_token, part = (int)threadIdx.x % L::per_token;
        #pragma unroll
        for (int i = 0; i < each; i++) {
            float *to = scales + (part + i * L::per_token) * TOKENS + token_place((unsigned)t);
            const int low = (int)(int16_t)s[i], high = s[i] >> 16;
            to[0] = dx[i];
            if (T::token_floats == 2) to[L::x_scales] = (float)(low + high);
            if (T::token_floats == 3) {
                to[L::x_scales] = (float)low;
                to[2 * L::x_scales] = (float)high;
            }
        }
    }
};

/* ---- products -------------------------------------------------------------------------------- */

/* out_sums: a thread's outputs, [i][j][rows 16 i + g, + 8; tokens 8 j + 2t, + 1]. lane_sums: the
 * same for each lane of a pass. */
typedef float out_sums[2][2][4];
typedef float lane_sums[STEP][2][2][4];

static __device__ __forceinline__ void load_four(float (&v)[4], const float *p)
{
    const float4 q = *(const float4 *)p;
    v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w;
}

/* Adds the products of a step to sum. w_at, x_at: offset of the thread's first ldmatrix. */
template <int TYPE, int ROWS, int TOKENS, bool ODD>
static __device__ __forceinline__ void multiply_step(lane_sums &sum, const uint8_t *w,
                                                     unsigned w_at, const uint8_t *x,
                                                     unsigned x_at, const float *w_scales,
                                                     const float *x_scales, int magic)
{
    typedef contract_traits<TYPE> T;
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    #pragma unroll
    for (int l = 0; l < STEP; l++) {
        uint32_t a[2][4], b[4];
        float ws[T::row_floats][4], xs[T::token_floats][4];
        load_tiles(b, x + (x_at ^ (unsigned)l << 4));
        #pragma unroll
        for (int i = 0; i < 2; i++)
            load_tiles(a[i], w + (w_at ^ (unsigned)l << 4) + i * 16 * CODE_PITCH);
        #pragma unroll
        for (int k = 0; k < T::row_floats; k++)
            load_four(ws[k], w_scales + k * L::w_scales + l * ROWS);
        #pragma unroll
        for (int k = 0; k < T::token_floats; k++)
            load_four(xs[k], x_scales + k * L::x_scales + l * TOKENS);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *const folds = ws[T::one_scale ? 0 : 1] + 2 * i;
            const float nt[2] = { __fmul_rn(folds[0], -MAGIC), __fmul_rn(folds[1], -MAGIC) };
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                float *const to = sum[l][i][j];
                int low[4], high[4];
                if (T::one_scale) {
                    mma_block(low, a[i], b + 2 * j, magic, magic);
                } else {
                    mma_half(low, a[i], b[2 * j], magic, magic);
                    mma_half(high, a[i] + 2, b[2 * j + 1], magic, magic);
                }
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int r = 2 * i + e / 2, t = 2 * j + e % 2;
                    const float v = contract_value<TYPE, ODD>(low[e], T::one_scale ? 0 : high[e],
                                                              ws, r, xs, t, nt[e / 2]);
                    to[e] = __fmaf_rn(xs[0][t], v, to[e]);
                }
            }
        }
    }
}

/* Folds a pass's lanes, (0 + 4) + (1 + 5) or (2 + 6) + (3 + 7), and sets them to 0. */
static __device__ __forceinline__ void fold_pass(out_sums &to, lane_sums &sum)
{
    #pragma unroll
    for (int k = 0; k < 16; k++) {
        const int i = k / 8, j = k / 4 % 2, e = k % 4;
        to[i][j][e] = __fadd_rn(__fadd_rn(sum[0][i][j][e], sum[2][i][j][e]),
                                __fadd_rn(sum[1][i][j][e], sum[3][i][j][e]));
        #pragma unroll
        for (int l = 0; l < STEP; l++) sum[l][i][j][e] = 0.0f;
    }
}

template <int TYPE, int ROWS, int TOKENS>
static __device__ __forceinline__ void write_rows(const gemm &p, const token_tile &tile,
                                                  const out_sums &sum)
{
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = (int)blockIdx.x * ROWS + warp / L::warps_n * WARP_ROWS + lane / 4;
    const int first_token = warp % L::warps_n * WARP_TOKENS + lane % 4 * 2;
    const float factor = contract_factor<TYPE>(p.w, tile.expert);
    float bias[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = first_row + 8 * i;
        bias[i] = r < p.rows ? bias_of(p.w, tile.expert, p.rows, r) : 0.0f;
    }
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const int t = first_token + j / 2 * 8 + j % 2;
        if (t >= tile.n) continue;
        float *y = p.y + (size_t)output_row(p, tile.first + t) * p.y_stride;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = first_row + 8 * i;
            if (r >= p.rows) continue;
            const float v = __fmaf_rn(factor, sum[i / 2][j / 2][i % 2 * 2 + j % 2], bias[i]);
            y[r] = p.add ? __fadd_rn(y[r], v) : v;
        }
    }
}

/* Stores activation(gate, up). A warp's first 16 rows are of gate, its others the same of up. */
template <int TYPE, int ROWS, int TOKENS>
static __device__ __forceinline__ void write_mid(const gemm &p, const token_tile &tile,
                                                 const out_sums &sum)
{
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = ((int)blockIdx.x * ROWS + warp / L::warps_n * WARP_ROWS) / 2 + lane / 4;
    const int first_token = warp % L::warps_n * WARP_TOKENS + lane % 4 * 2;
    const float gate_factor = contract_factor<TYPE>(p.w, tile.expert);
    const float up_factor = contract_factor<TYPE>(p.up, tile.expert);
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = first_row + 8 * i;
        if (r >= p.rows) continue;
        const float gate_bias = bias_of(p.w, tile.expert, p.rows, r);
        const float up_bias = bias_of(p.up, tile.expert, p.rows, r);
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const int t = first_token + j / 2 * 8 + j % 2, e = i * 2 + j % 2;
            if (t >= tile.n) continue;
            const float gate = __fmaf_rn(gate_factor, sum[0][j / 2][e], gate_bias);
            const float up = __fmaf_rn(up_factor, sum[1][j / 2][e], up_bias);
            store_mid(p, (size_t)output_row(p, tile.first + t) * p.rows + r,
                      contract_activation(gate, up, p.act));
        }
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Chips before sm_80 have less shared memory and use the smaller tile. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { LEAST_ROWS = 0, MOST_ROWS = 32 };
#else
enum { LEAST_ROWS = 64, MOST_ROWS = 64 };
#endif

template <int TYPE, int ROWS, int TOKENS>
static __device__ __forceinline__ void contract_block(const gemm &p, const token_tile &tile,
                                                      uint8_t *shared, int magic)
{
    typedef contract_traits<TYPE> T;
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    uint8_t *const w = shared, *const x = shared + L::x_at, *const raw = shared + L::raw_at;
    float *const w_scales = (float *)(shared + L::w_scales_at);
    float *const x_scales = (float *)(shared + L::x_scales_at);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned warp_m = warp / L::warps_n, warp_n = warp % L::warps_n;
    const unsigned w_at = code_at(warp_m * WARP_ROWS + lane % 16, lane / 16 * STEP);
    const unsigned x_at = code_at(warp_n * WARP_TOKENS + lane % 8 + lane / 16 * 8,
                                  lane / 8 % 2 * STEP);
    const float *const w_own = w_scales + warp_m * WARP_ROWS + lane / 4 * 4;
    const float *const x_own = x_scales + warp_n * WARP_TOKENS + lane % 4 * 4;
    const int n_block = p.cols / 32, n_group = (n_block + GROUP - 1) / GROUP;
    weight_stage<TYPE, ROWS, TOKENS> weights;
    token_stage<TYPE, ROWS, TOKENS> tokens;
    out_sums before = {}, out;
    lane_sums sum;

    weights.begin(p, tile.expert);
    tokens.begin(p, tile);
    #pragma unroll
    for (int k = 0; k < 16 * STEP; k++) sum[k / 16][k / 8 % 2][k / 4 % 2][k % 4] = 0.0f;

    weights.copy(raw, 0);
    tokens.copy(x, 0, 0);
    copy_commit();
    weights.copy(raw + L::raw_bytes, 1 % n_group);
    copy_commit();
    tokens.store_scales(x_scales);
    copy_wait<1>();
    __syncwarp();
    bool odd = weights.unpack_step(w, w_scales, raw, 0, 0);

    #pragma unroll 1
    for (int i = 0; i < 2 * n_group; i++) {
        const int now = i & 1, next = now ^ 1;
        const bool more = i + 1 < 2 * n_group;
        const int pass = i + 1 >= n_group, group = i + 1 - pass * n_group;       /* of step i + 1 */

        /* all codes of this step are stored, and no thread still reads the previous step's */
        const bool any = __syncthreads_or(odd);
        if (i == n_group) fold_pass(before, sum);
        if (more) tokens.copy(x + next * L::x_bytes, group, pass);
        copy_commit();
        if (i + 2 < 2 * n_group) weights.copy(raw + now * L::raw_bytes, (i + 2) % n_group);
        copy_commit();
        if (T::folded && any)
            multiply_step<TYPE, ROWS, TOKENS, true>(
                sum, w + now * L::w_bytes, w_at, x + now * L::x_bytes, x_at,
                w_own + now * T::row_floats * L::w_scales,
                x_own + now * T::token_floats * L::x_scales, magic);
        else
            multiply_step<TYPE, ROWS, TOKENS, false>(
                sum, w + now * L::w_bytes, w_at, x + now * L::x_bytes, x_at,
                w_own + now * T::row_floats * L::w_scales,
                x_own + now * T::token_floats * L::x_scales, magic);
        if (more) {
            tokens.store_scales(x_scales + next * T::token_floats * L::x_scales);
            copy_wait<1>();
            __syncwarp();
            odd = weights.unpack_step(w + next * L::w_bytes,
                                      w_scales + next * T::row_floats * L::w_scales,
                                      raw + next * L::raw_bytes, group, pass);
        }
    }
    fold_pass(out, sum);
    #pragma unroll
    for (int k = 0; k < 16; k++) {
        float &v = out[k / 8][k / 4 % 2][k % 4];
        v = __fadd_rn(__fadd_rn(before[k / 8][k / 4 % 2][k % 4], v), 0.0f);
    }
    if (p.up.data) write_mid<TYPE, ROWS, TOKENS>(p, tile, out);
    else write_rows<TYPE, ROWS, TOKENS>(p, tile, out);
}

template <int TYPE, int ROWS, int TOKENS>
static __global__ void __launch_bounds__((contract_layout<TYPE, ROWS, TOKENS>::threads),
                                         TOKENS > 32 ? 2 : 4) contract_tile(tracer f, const gemm p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    token_tile tile;

    pdl_begin(f);
    pdl_wait(f);
    if constexpr (ROWS >= LEAST_ROWS && ROWS <= MOST_ROWS)
        if (tile_of_block(tile, p))
            contract_block<TYPE, ROWS, TOKENS>(p, tile, shared, MAGIC_BITS + (int)f.zero);
    pdl_end(f);
}

/* ---- the host side --------------------------------------------------------------------------- */

template <int TYPE, int ROWS, int TOKENS> static void launch_contract(gpu *g, const gemm *p)
{
    typedef contract_layout<TYPE, ROWS, TOKENS> L;
    const uint64_t bytes = (uint64_t)p->rows * p->w.row_bytes * (p->up.data ? 2 : 1);
    const int rows = p->up.data ? ROWS / 2 : ROWS;
    const unsigned n_tile = p->tiles ? (unsigned)p->max_tile
                                     : ceil_div((uint64_t)p->n, (uint64_t)p->tile_tokens);
    const dim3 grid(ceil_div((uint64_t)p->rows, (uint64_t)rows), n_tile);
    launch(g, p->name, bytes, contract_tile<TYPE, ROWS, TOKENS>, grid, L::threads, L::bytes, *p);
}

/* Launches the product; p->tile_tokens is set. */
template <int TYPE> static void contract_type(gpu *g, const gemm *p)
{
    if (p->tile_tokens <= CONTRACT_FEW) launch_few<TYPE>(g, p);
    else if (contract_is_small()) launch_contract<TYPE, 32, 32>(g, p);
    else if (p->tile_tokens > 32) launch_contract<TYPE, 64, 64>(g, p);
    else launch_contract<TYPE, 64, 32>(g, p);
}

#endif
