/* delta_chunks.cu - the gated delta rule over chunks of 64 tokens, on tensor cores, for delta.cu.
 *
 * With S the state before a chunk, k and q normed, b the write strength, and e(i, j) the decay from
 * token j to token i (e(i): from before the chunk), the rule writes at token i
 *
 *     d_i = b_i (v_i - e(i) S^T k_i - sum over j < i of e(i, j) (k_i . k_j) d_j)
 *
 * a triangular system, whose solution is linear in S. So most of it does not depend on the state;
 * the first kernel, delta_solve, computes that part for all chunks and heads at once:
 *
 *     L_ij = b_i e(i, j) (k_i . k_j), j < i       A_ij = e(i, j) (q_i . k_j), j <= i
 *     (1 + L) W = (b_i e(i) k_i)                  (1 + L) U = (b_i v_i)
 *     P = (e(i) q_i) - A W                        O = A U
 *
 * The second kernel, delta_carry, goes from chunk to chunk. A block has 32 columns of the state in
 * registers:
 *
 *     d = U - W S,    out = O + P S,    S' = e(end) S + K^T (e(end, j) d_j)
 *
 * Precision is close to F32. An operand of a product is the sum of two binary16 halves, high and
 * low: 22 bits with the sign of the low half. Of the four products of halves the smallest, low by
 * low, is omitted. Halves have a small range, so operands are scaled by powers of two. Values of K,
 * Q, L, A, W and P are at most 1 (each token's map of the state is a contraction) and have one
 * scale, 2^15; columns of V, of the state and of d have their own. Tensor cores round sums towards
 * zero. In the state this would act as an additional decay, so they only sum what a chunk adds.
 * Products with low halves have sums of their own. The decay of a chunk is the sum of two floats,
 * as in delta.cu. Logs of decays are accumulated in double and stored as a multiple of 2^-10 and a
 * rest. Differences of the multiples are exact, so decays between neighbours stay precise.
 *
 * The memory between the kernels is in the order of a warp's lanes: fragments of an operand as 16
 * bytes for each lane, accumulators unchanged. It takes 4.7 MB for each chunk of Qwen3-Next, so
 * SLAB chunks at a time go through both kernels, and the data stays in L2. */
#include "cuda/delta.cuh"

enum {
    TOKENS = GPU_DELTA_CHUNK, BLOCKS = TOKENS / 16, TILES = TOKENS / 8,
    SLAB = 8,                            /* chunks at a time: 256 blocks of delta_solve */
    GATES = 128                          /* floats of a chunk and head: e(end, j), e(end) */
};

static const float UNIT = 32768.0f, PER_UNIT = 1.0f / 32768.0f;

/* ---- memory between the kernels -------------------------------------------------------------- */

/* Bytes of one operand of a chunk: two halves or a float for each value. */
template <int DIM> static constexpr size_t piece = (size_t)TOKENS * DIM * 4;

/* The results of a chunk and value head. */
template <int DIM> struct chunk_view {
    uint4 *w, *p;                        /* [TILES of tokens][DIM / 16][lane]: fragments */
    float4 *u, *o;                       /* [DIM / 16][TILES of tokens][lane]: accumulators */
    float *gates;                        /* [GATES] */
};

static __host__ __device__ __forceinline__ size_t head_bytes(int dim)
{
    return 4 * (size_t)TOKENS * (size_t)dim * 4 + GATES * sizeof(float);
}

template <int DIM>
static __device__ __forceinline__ chunk_view<DIM> view_of(const gpu_delta &d, int chunk, int head)
{
    uint8_t *at = (uint8_t *)d.scratch + (size_t)(chunk * d.n_v + head) * head_bytes(DIM);
    chunk_view<DIM> v;
    v.w = (uint4 *)at;
    v.p = (uint4 *)(at + piece<DIM>);
    v.u = (float4 *)(at + 2 * piece<DIM>);
    v.o = (float4 *)(at + 3 * piece<DIM>);
    v.gates = (float *)(at + 4 * piece<DIM>);
    return v;
}

/* Fragments of K of a chunk and key head: [BLOCKS of tokens][DIM / 8][lane]. */
template <int DIM>
static __device__ __forceinline__ uint4 *keys_of(const gpu_delta &d, int chunk, int key_head)
{
    return (uint4 *)((uint8_t *)d.scratch + (size_t)SLAB * d.n_v * head_bytes(DIM) +
                     (size_t)(chunk * d.n_k + key_head) * piece<DIM>);
}

/* ---- halves ---------------------------------------------------------------------------------- */

typedef struct fragment {                /* 16 x 16 values of mma's first operand, in two halves */
    uint32_t high[4], low[4];
} fragment;

static __device__ __forceinline__ void split_pair(uint32_t &high, uint32_t &low, float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    const float2 f = __half22float2(h);
    const __half2 l = __floats2half2_rn(a - f.x, b - f.y);
    high = *(const uint32_t *)&h;
    low = *(const uint32_t *)&l;
}

/* Turns two neighbouring accumulators, 16 x 8 each, into the first operand of a product. */
static __device__ __forceinline__ fragment split_tiles(const float a[4], const float b[4])
{
    fragment f;
    split_pair(f.high[0], f.low[0], a[0], a[1]);
    split_pair(f.high[1], f.low[1], a[2], a[3]);
    split_pair(f.high[2], f.low[2], b[0], b[1]);
    split_pair(f.high[3], f.low[3], b[2], b[3]);
    return f;
}

typedef struct scaling {                 /* a power of two, and its inverse */
    float up, down;
} scaling;

/* The scale that brings values of up to `largest` below 2^top. */
static __device__ __forceinline__ scaling scaling_for(float largest, int top)
{
    const int e = max((int)(__float_as_uint(largest) >> 23), 40);        /* below 2^(e - 126) */
    return { __uint_as_float((uint32_t)(253 + top - e) << 23),
             __uint_as_float((uint32_t)(1 - top + e) << 23) };
}

/* Scales for a lane's two accumulator rows, lane / 4 and lane / 4 + 8, by their largest values. */
template <int N>
static __device__ __forceinline__ void row_scalings(scaling s[2], const float x[N][4], int top)
{
    float most[2] = { 0.0f, 0.0f };
    #pragma unroll
    for (int i = 0; i < N; i++)
        #pragma unroll
        for (int c = 0; c < 4; c++) most[c / 2] = fmaxf(most[c / 2], fabsf(x[i][c]));
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        s[r] = scaling_for(most[r], top);
    }
}

/* ---- delta_solve: the part without the state ------------------------------------------------- */

enum { SOLVE_THREADS = 256, SOLVE_WARPS = SOLVE_THREADS / 32, PAIRS = BLOCKS * (BLOCKS + 1) / 2 };

/* Rows are 16 bytes longer than a power of two, so that eight of them use all banks. */
template <int DIM> struct solve_memory {
    uint16_t k[2][TOKENS][DIM + 8];      /* high and low halves */
    union {
        uint16_t q[2][TOKENS][DIM + 8];
        struct {                         /* replaces q: A; and L, whose diagonal blocks are then
                                          * replaced by inverses of diagonal blocks of 1 + L */
            uint16_t l[2][TOKENS][TOKENS + 8], a[2][TOKENS][TOKENS + 8];
        };
    };
    float diagonal[BLOCKS][16][17];      /* diagonal blocks of L */
    float k_norm[TOKENS], q_norm[TOKENS], beta[TOKENS];
    float high[TOKENS], low[TOKENS];     /* log e(i): multiple of 2^-10, and rest */
    float write[TOKENS], read[TOKENS];   /* b_i e(i) / |k_i| and e(i) / |q_i| */
};

/* Log of e(i, j). */
template <int DIM>
static __device__ __forceinline__ float log_between(const solve_memory<DIM> &m, int i, int j)
{
    return (m.high[i] - m.high[j]) + (m.low[i] - m.low[j]);
}

static __device__ __forceinline__ void put_halves(uint16_t *high, uint16_t *low, float v)
{
    const __half h = __float2half_rn(v), l = __float2half_rn(v - __half2float(h));
    *high = *(const uint16_t *)&h;
    *low = *(const uint16_t *)&l;
}

/* One warp computes write strengths, and logs of decays from the beginning of the chunk. Decays
 * below e^-128 are 0 in F32. */
template <int DIM>
static __device__ __forceinline__ void take_gates(solve_memory<DIM> &m, const gpu_delta &d,
                                                  const delta_sizes &s, int head, int token,
                                                  int lane)
{
    double sum[2];
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = 2 * lane + i;
        const float *ba = d.ba + (size_t)(token + t) * 2 * d.n_v + gate_of(d, s, head);
        const float g = log_decay(ba[decay_step(d, s)], d.dt_bias[head], d.a[head]);
        m.beta[t] = sigmoid(ba[0]);
        sum[i] = g < -128.0f ? -128.0f : g;
    }
    sum[1] += sum[0];
    double before = sum[1];
    for (int i = 1; i < 32; i <<= 1) {
        const double left = __shfl_up_sync(~0u, before, i);
        if (lane >= i) before += left;
    }
    before -= sum[1];
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const double log = before + sum[i];
        const float high = rintf((float)log * 1024.0f) / 1024.0f;
        m.high[2 * lane + i] = high;
        m.low[2 * lane + i] = (float)(log - high);
    }
}

/* A warp norms k and q of its tokens and stores them in halves. */
template <int DIM>
static __device__ __forceinline__ void take_rows(solve_memory<DIM> &m, const gpu_delta &d,
                                                 const delta_sizes &s, int key_head, int token,
                                                 int warp, int lane)
{
    enum { EACH = TOKENS / SOLVE_WARPS, PER_LANE = DIM / 32 };
    float q[EACH][PER_LANE], k[EACH][PER_LANE];
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float *row = d.mixed + (size_t)(token + warp * EACH + i) * s.channels +
                           key_head * DIM + lane;
        #pragma unroll
        for (int c = 0; c < PER_LANE; c++) {
            q[i][c] = row[32 * c];
            k[i][c] = row[s.keys + 32 * c];
        }
    }
    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int t = warp * EACH + i;
        float qq = 0.0f, kk = 0.0f;
        #pragma unroll
        for (int c = 0; c < PER_LANE; c++) {
            qq = fmaf(q[i][c], q[i][c], qq);
            kk = fmaf(k[i][c], k[i][c], kk);
        }
        const float fq = l2_factor(warp_sum(qq)) / sqrtf((float)DIM), fk = l2_factor(warp_sum(kk));
        if (lane == 0) {
            m.q_norm[t] = fq;
            m.k_norm[t] = fk;
        }
        #pragma unroll
        for (int c = 0; c < PER_LANE; c++) {
            const int at = lane + 32 * c;
            put_halves(&m.q[0][t][at], &m.q[1][t][at], q[i][c] * fq * UNIT);
            put_halves(&m.k[0][t][at], &m.k[1][t][at], k[i][c] * fk * UNIT);
        }
    }
}

/* high and rest [two tiles of 8 columns] += a B^T, B the 16 x 16 block of halves at rows n0,
 * columns k0 of x. */
template <int WIDTH>
static __device__ __forceinline__ void add_block(float high[2][4], float rest[2][4],
                                                 const uint32_t a_high[4], const uint32_t a_low[4],
                                                 const uint16_t (*x)[TOKENS][WIDTH], int n0, int k0,
                                                 int lane)
{
    const int row = n0 + lane % 8 + lane / 16 * 8, column = k0 + lane / 8 % 2 * 8;
    uint32_t b_high[4], b_low[4];
    load_tiles(b_high, &x[0][row][column]);
    load_tiles(b_low, &x[1][row][column]);
    #pragma unroll
    for (int i = 0; i < 2; i++) mma_f16(high[i], a_high, b_high[2 * i], b_high[2 * i + 1]);
    #pragma unroll
    for (int i = 0; i < 2; i++) mma_f16(rest[i], a_high, b_low[2 * i], b_low[2 * i + 1]);
    #pragma unroll
    for (int i = 0; i < 2; i++) mma_f16(rest[i], a_low, b_high[2 * i], b_high[2 * i + 1]);
}

/* Computes L and A: blocks of 16 x 16 on and below the diagonal, divided among the warps. L and A
 * replace Q, so all products are complete before the first result is stored. */
template <int DIM>
static __device__ __forceinline__ void make_squares(solve_memory<DIM> &m, int warp, int lane)
{
    enum { EACH = (2 * PAIRS + SOLVE_WARPS - 1) / SOLVE_WARPS };
    float x[EACH][2][4];
    #pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int item = warp + n * SOLVE_WARPS, pair = item / 2;
        const int bi = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
        const int bj = pair - bi * (bi + 1) / 2;
        float rest[2][4] = {};
        #pragma unroll
        for (int i = 0; i < 8; i++) x[n][i / 4][i % 4] = 0.0f;
        if (item >= 2 * PAIRS) continue;
        const uint16_t (*rows)[TOKENS][DIM + 8] = item % 2 ? m.q : m.k;
        for (int c = 0; c < DIM; c += 16) {
            uint32_t high[4], low[4];
            load_tiles(high, &rows[0][16 * bi + lane % 16][c + lane / 16 * 8]);
            load_tiles(low, &rows[1][16 * bi + lane % 16][c + lane / 16 * 8]);
            add_block<DIM + 8>(x[n], rest, high, low, m.k, 16 * bj, c, lane);
        }
        #pragma unroll
        for (int i = 0; i < 8; i++) x[n][i / 4][i % 4] += rest[i / 4][i % 4];
    }
    __syncthreads();
    #pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int item = warp + n * SOLVE_WARPS, pair = item / 2;
        const int bi = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
        const int bj = pair - bi * (bi + 1) / 2;
        if (item >= 2 * PAIRS) continue;
        #pragma unroll
        for (int v = 0; v < 4; v++) {    /* two neighbours in a row */
            const int i = 16 * bi + lane / 4 + v % 2 * 8, j = 16 * bj + v / 2 * 8 + lane % 4 * 2;
            float y[2];
            #pragma unroll
            for (int c = 0; c < 2; c++) {
                const bool counts = item % 2 ? j + c <= i : j + c < i;
                const float strength = item % 2 ? 1.0f : m.beta[i];
                y[c] = !counts ? 0.0f : x[n][v / 2][v % 2 * 2 + c] * (PER_UNIT * PER_UNIT) *
                                        strength * expf(log_between(m, i, j + c));
            }
            if (item % 2 == 0 && bi == bj) {
                m.diagonal[bi][i % 16][j % 16] = y[0];
                m.diagonal[bi][i % 16][j % 16 + 1] = y[1];
                continue;
            }
            uint32_t high, low;
            split_pair(high, low, y[0] * UNIT, y[1] * UNIT);
            *(uint32_t *)&(item % 2 ? m.a : m.l)[0][i][j] = high;
            *(uint32_t *)&(item % 2 ? m.a : m.l)[1][i][j] = low;
        }
    }
}

/* Inverts the diagonal blocks of 1 + L; a thread computes one column. */
template <int DIM>
static __device__ __forceinline__ void invert_diagonal(solve_memory<DIM> &m, int thread)
{
    const int block = thread / 16, j = thread % 16;
    float x[16];
    #pragma unroll
    for (int i = 0; i < 16; i++) {
        float sum = i == j ? 1.0f : 0.0f;
        #pragma unroll
        for (int s = 0; s < i; s++) sum = fmaf(-m.diagonal[block][i][s], x[s], sum);
        x[i] = sum;
        put_halves(&m.l[0][16 * block + i][16 * block + j], &m.l[1][16 * block + i][16 * block + j],
                   sum * UNIT);
    }
}

/* Stores the fragments of K for delta_carry. Only each key head's first value head calls it. */
template <int DIM>
static __device__ __forceinline__ void put_keys(uint4 *to, const solve_memory<DIM> &m, int warp,
                                                int n_warp, int lane)
{
    for (int i = warp; i < BLOCKS * DIM / 8; i += n_warp) {
        const int row = i / (DIM / 8) * 16 + lane % 16, column = i % (DIM / 8) * 8;
        uint32_t r[4];
        load_tiles_transposed(r, &m.k[lane / 16][row][column]);
        to[i * 32 + lane] = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

/* Stores the decays that delta_carry reads: chunk_view.gates. */
template <int DIM>
static __device__ __forceinline__ void put_gates(float *to, const solve_memory<DIM> &m, int thread)
{
    if (thread < TOKENS) to[thread] = expf(log_between(m, TOKENS - 1, thread));
    if (thread == TOKENS) {
        const float2 e = split_exp(m.high[TOKENS - 1] + m.low[TOKENS - 1]);
        to[TOKENS] = e.x;
        to[TOKENS + 1] = e.y;
    }
}

/* Loads a lane's values, columns lane / 4 and lane / 4 + 8 of 16: x[tile of tokens][.]. */
static __device__ __forceinline__ void take_columns(float x[TILES][4], const float *from,
                                                    int stride, const float *factor, int lane)
{
    #pragma unroll
    for (int i = 0; i < TILES; i++)
        #pragma unroll
        for (int c = 0; c < 4; c++) {
            const int t = 8 * i + lane % 4 * 2 + c % 2;
            x[i][c] = from[(size_t)t * stride + lane / 4 + c / 2 * 8] * factor[t];
        }
}

/* X = (1 + L)^-1 x; columns are independent. Overwrites x. */
template <int DIM>
static __device__ __forceinline__ void solve(fragment X[BLOCKS], float x[TILES][4],
                                             const solve_memory<DIM> &m, int lane)
{
    #pragma unroll
    for (int r = 0; r < BLOCKS; r++) {
        float high[2][4] = {}, rest[2][4] = {};
        #pragma unroll
        for (int s = 0; s < r; s++)
            add_block(high, rest, X[s].high, X[s].low, m.l, 16 * r, 16 * s, lane);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            float *to = &x[2 * r + i / 4][i % 4];
            *to = fmaf(high[i / 4][i % 4] + rest[i / 4][i % 4], -PER_UNIT, *to);
            high[i / 4][i % 4] = rest[i / 4][i % 4] = 0.0f;
        }
        const fragment left = split_tiles(x[2 * r], x[2 * r + 1]);
        add_block(high, rest, left.high, left.low, m.l, 16 * r, 16 * r, lane);
        #pragma unroll
        for (int i = 0; i < 8; i++)
            x[2 * r + i / 4][i % 4] = (high[i / 4][i % 4] + rest[i / 4][i % 4]) * PER_UNIT;
        X[r] = split_tiles(x[2 * r], x[2 * r + 1]);
    }
}

/* y [two tiles] = rows 16 r .. of A X */
template <int DIM>
static __device__ __forceinline__ void multiply_a(float y[2][4], const fragment X[BLOCKS], int r,
                                                  const solve_memory<DIM> &m, int lane)
{
    float high[2][4] = {}, rest[2][4] = {};
    #pragma unroll
    for (int s = 0; s < BLOCKS; s++)
        if (s <= r) add_block(high, rest, X[s].high, X[s].low, m.a, 16 * r, 16 * s, lane);
    #pragma unroll
    for (int i = 0; i < 8; i++)
        y[i / 4][i % 4] = (high[i / 4][i % 4] + rest[i / 4][i % 4]) * PER_UNIT;
}

/* Stores a fragment [columns, tokens] as two fragments [tokens, columns], from `to` on. */
template <int DIM>
static __device__ __forceinline__ void put_fragment(uint4 *to, const fragment &f, int lane)
{
    #pragma unroll
    for (int i = 0; i < 2; i++)
        to[i * (DIM / 16) * 32 + lane] =
            make_uint4(transpose_tile(f.high[2 * i]), transpose_tile(f.high[2 * i + 1]),
                       transpose_tile(f.low[2 * i]), transpose_tile(f.low[2 * i + 1]));
}

/* Computes W and P for 16 of the keys' dimensions; k and q begin at these. */
template <int DIM>
static __device__ __forceinline__ void solve_keys(const chunk_view<DIM> &to,
                                                  const solve_memory<DIM> &m, const float *k,
                                                  const float *q, int stride, int group, int lane)
{
    float x[TILES][4];
    fragment X[BLOCKS];
    take_columns(x, k, stride, m.write, lane);
    #pragma unroll
    for (int i = 0; i < 4 * TILES; i++) x[i / 4][i % 4] *= UNIT;
    solve(X, x, m, lane);
    take_columns(x, q, stride, m.read, lane);
    #pragma unroll
    for (int r = 0; r < BLOCKS; r++)
        put_fragment<DIM>(to.w + (2 * r * (DIM / 16) + group) * 32, X[r], lane);
    #pragma unroll
    for (int r = 0; r < BLOCKS; r++) {
        float y[2][4];
        multiply_a(y, X, r, m, lane);
        #pragma unroll
        for (int i = 0; i < 8; i++)
            y[i / 4][i % 4] = fmaf(x[2 * r + i / 4][i % 4], UNIT, -y[i / 4][i % 4]);
        put_fragment<DIM>(to.p + (2 * r * (DIM / 16) + group) * 32, split_tiles(y[0], y[1]), lane);
    }
}

static __device__ __forceinline__ float4 scaled(const float x[4], const scaling s[2])
{
    return make_float4(x[0] * s[0].down, x[1] * s[0].down, x[2] * s[1].down, x[3] * s[1].down);
}

/* Computes U and O for 16 of the values' dimensions. U may be up to 64 times larger than b_i
 * v_i. */
template <int DIM>
static __device__ __forceinline__ void solve_values(const chunk_view<DIM> &to,
                                                    const solve_memory<DIM> &m, const float *v,
                                                    int stride, int group, int lane)
{
    float x[TILES][4];
    fragment X[BLOCKS];
    scaling s[2];
    float4 *u = to.u + group * TILES * 32 + lane, *o = to.o + group * TILES * 32 + lane;
    take_columns(x, v, stride, m.beta, lane);
    row_scalings<TILES>(s, x, 9);
    #pragma unroll
    for (int i = 0; i < 4 * TILES; i++) x[i / 4][i % 4] *= s[i % 4 / 2].up;
    solve(X, x, m, lane);
    #pragma unroll
    for (int i = 0; i < TILES; i++) u[i * 32] = scaled(x[i], s);
    #pragma unroll
    for (int r = 0; r < BLOCKS; r++) {
        float y[2][4];
        multiply_a(y, X, r, m, lane);
        o[2 * r * 32] = scaled(y[0], s);
        o[(2 * r + 1) * 32] = scaled(y[1], s);
    }
}

/* A block computes one value head (x) and chunk (y) of a slab that begins at token `first`. */
template <int DIM>
static __global__ void __launch_bounds__(SOLVE_THREADS, 2) delta_solve(tracer f, const gpu_delta d,
                                                                       int first)
{
    extern __shared__ __align__(16) uint8_t solve_shared[];
    solve_memory<DIM> &m = *(solve_memory<DIM> *)solve_shared;
    const delta_sizes s = sizes_of(d);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.x, key_head = key_head_of(d, s, head), chunk = blockIdx.y;
    const int token = first + chunk * TOKENS;
    const chunk_view<DIM> to = view_of<DIM>(d, chunk, head);

    pdl_begin(f);
    pdl_wait(f);
    if (warp == 0) take_gates(m, d, s, head, token, lane);
    take_rows(m, d, s, key_head, token, warp, lane);
    __syncthreads();
    if (threadIdx.x < TOKENS) {
        const int t = threadIdx.x;
        const float e = expf(m.high[t] + m.low[t]);
        m.write[t] = m.k_norm[t] * (m.beta[t] * e);
        m.read[t] = m.q_norm[t] * e;
    }
    make_squares(m, warp, lane);
    __syncthreads();
    if (warp < 2) invert_diagonal(m, threadIdx.x);
    else if (rank_of(d, s, head) == 0)
        put_keys(keys_of<DIM>(d, chunk, key_head), m, warp - 2, 6, lane);
    put_gates(to.gates, m, threadIdx.x);
    __syncthreads();
    const float *row = d.mixed + (size_t)token * s.channels;
    for (int i = warp; i < 2 * DIM / 16; i += SOLVE_WARPS) {
        const int group = i % (DIM / 16), column = group * 16;
        const float *q = row + key_head * DIM + column;
        if (i < DIM / 16) solve_keys(to, m, q + s.keys, q, s.channels, group, lane);
        else solve_values(to, m, row + 2 * s.keys + head * DIM + column, s.channels, group, lane);
    }
    pdl_end(f);
}

/* ---- delta_carry: the part with the state ---------------------------------------------------- */

/* Four warps compute 32 columns. A warp has 16 columns and half of the state's rows; its partner
 * has the other half. Each multiplies its half with all tokens, then gives its partner the sums of
 * the partner's tokens. */
enum { CARRY_THREADS = 128, CARRY_COLUMNS = 32, OWN_TILES = TILES / 2 };

template <int DIM> struct exchange {
    float4 w[4][OWN_TILES][32], p[4][OWN_TILES][32];  /* sums for the partner's tokens */
    float4 d[4][OWN_TILES][32];                  /* d of own tokens */
};

/* Starts to copy operand number i of the slab (W, P, K of each chunk in turn) to shared memory. */
template <int DIM>
static __device__ __forceinline__ void fetch_piece(uint8_t *to, const gpu_delta &d, int i,
                                                   int n_chunk, int head, int key_head)
{
    const int chunk = i / 3, which = i % 3;
    if (chunk < n_chunk) {
        const uint4 *from = which == 2 ? keys_of<DIM>(d, chunk, key_head) :
                            which == 1 ? view_of<DIM>(d, chunk, head).p :
                                         view_of<DIM>(d, chunk, head).w;
        for (int at = threadIdx.x; at < (int)(piece<DIM> / 16); at += CARRY_THREADS)
            copy16(to + 16 * at, from + at);
    }
    copy_commit();
}

/* high + rest [N tiles] += a B. B's fragments of a tile begin at b + lane, `stride` fragments apart
 * from tile to tile. */
template <int N>
static __device__ __forceinline__ void add_tiles(float high[N][4], float rest[N][4],
                                                 const fragment &a, const uint4 *b, int stride)
{
    uint4 x[N];
    #pragma unroll
    for (int i = 0; i < N; i++) x[i] = b[i * stride * 32];
    #pragma unroll
    for (int i = 0; i < N; i++) mma_f16(high[i], a.high, x[i].x, x[i].y);
    #pragma unroll
    for (int i = 0; i < N; i++) mma_f16(rest[i], a.high, x[i].z, x[i].w);
    #pragma unroll
    for (int i = 0; i < N; i++) mma_f16(rest[i], a.low, x[i].x, x[i].y);
}

/* Multiplies the state's half with W or P for all tokens. Sums of own tokens go to own_sums, sums
 * of the partner's tokens to shared memory. */
template <int DIM>
static __device__ __forceinline__ void multiply_state(float own_sums[OWN_TILES][4],
                                                      float4 (*partner_sums)[32],
                                                      const fragment S[DIM / 32],
                                                      const scaling s[2], const uint4 *b, int half,
                                                      int lane)
{
    float high[TILES][4] = {}, rest[TILES][4] = {};
    /* the unrolled code treats own tokens first, so array indices are constants */
    const uint4 *own = b + (half * OWN_TILES * (DIM / 16) + half * (DIM / 32)) * 32 + lane;
    const uint4 *other = b + ((1 - half) * OWN_TILES * (DIM / 16) + half * (DIM / 32)) * 32 + lane;
    #pragma unroll
    for (int k = 0; k < DIM / 32; k++) {
        uint4 x[TILES];
        #pragma unroll
        for (int i = 0; i < TILES; i++)
            x[i] = (i < OWN_TILES ? own : other)[(i % OWN_TILES * (DIM / 16) + k) * 32];
        #pragma unroll
        for (int i = 0; i < TILES; i++) mma_f16(high[i], S[k].high, x[i].x, x[i].y);
        #pragma unroll
        for (int i = 0; i < TILES; i++) mma_f16(rest[i], S[k].high, x[i].z, x[i].w);
        #pragma unroll
        for (int i = 0; i < TILES; i++) mma_f16(rest[i], S[k].low, x[i].x, x[i].y);
    }
    #pragma unroll
    for (int i = 0; i < TILES; i++) {
        float y[4];
        #pragma unroll
        for (int c = 0; c < 4; c++)
            y[c] = (high[i][c] + rest[i][c]) * (s[c / 2].down * PER_UNIT);
        if (i >= OWN_TILES) partner_sums[i - OWN_TILES][lane] = make_float4(y[0], y[1], y[2], y[3]);
        #pragma unroll
        for (int c = 0; c < 4; c++)
            if (i < OWN_TILES) own_sums[i % OWN_TILES][c] = y[c];
    }
}

/* A block computes one value head (x) and 32 columns (y): n_chunk chunks from token `first` on. */
template <int DIM, int STAGES>
static __global__ void __launch_bounds__(CARRY_THREADS) delta_carry(tracer f, const gpu_delta d,
                                                                    int first, int n_chunk,
                                                                    bool fresh)
{
    enum { ROWS = DIM / 16, K_STEPS = DIM / 32 };        /* tiles of the warp's half of the state */
    extern __shared__ __align__(16) uint8_t carry_shared[];
    exchange<DIM> &x = *(exchange<DIM> *)(carry_shared + STAGES * piece<DIM>);
    const delta_sizes s = sizes_of(d);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, partner = warp ^ 1;
    const int head = blockIdx.x, column = blockIdx.y * CARRY_COLUMNS + warp / 2 * 16;
    const int key_head = key_head_of(d, s, head);
    const size_t place = (size_t)head * DIM * DIM + column + lane / 4;
    float S[ROWS][4];                    /* S[i][c]: row 8 i + lane % 4 * 2 + c % 2 of the half,
                                          * column lane / 4 + c / 2 * 8 */
    int now = 0;                         /* number of the next operand */

    pdl_begin(f);
    pdl_wait(f);
    #pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        fetch_piece<DIM>(carry_shared + i * piece<DIM>, d, i, n_chunk, head, key_head);
    const float *before = state_before(d, d.cursor, fresh) + place;
    float *after = state_after(d, d.cursor) + place;
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int c = 0; c < 4; c++)
            S[i][c] = before[(half * (DIM / 2) + 8 * i + lane % 4 * 2 + c % 2) * DIM + c / 2 * 8];

    /* After the barrier all warps have used the operand before this one; its memory is refilled. */
    const auto next_piece = [&]() {
        copy_wait<STAGES - 2>();
        __syncthreads();
        const int ahead = now + STAGES - 1;
        fetch_piece<DIM>(carry_shared + ahead % STAGES * piece<DIM>, d, ahead, n_chunk, head,
                         key_head);
        return (const uint4 *)(carry_shared + now++ % STAGES * piece<DIM>);
    };

    for (int chunk = 0; chunk < n_chunk; chunk++) {
        const chunk_view<DIM> v = view_of<DIM>(d, chunk, head);
        const int at = (column / 16 * TILES + half * OWN_TILES) * 32 + lane;
        float4 u[OWN_TILES], o[OWN_TILES];
        float2 to_end[OWN_TILES];        /* decay from a token to the chunk's end */
        #pragma unroll
        for (int i = 0; i < OWN_TILES; i++) {
            u[i] = v.u[at + i * 32];
            o[i] = v.o[at + i * 32];
            to_end[i] = *(const float2 *)(v.gates + half * (TOKENS / 2) + 8 * i + lane % 4 * 2);
        }
        const float2 decay = *(const float2 *)(v.gates + TOKENS);

        scaling scale[2];
        fragment old[K_STEPS];
        row_scalings<ROWS>(scale, S, 15);
        #pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
            float y[2][4];
            #pragma unroll
            for (int c = 0; c < 8; c++)
                y[c / 4][c % 4] = S[2 * k + c / 4][c % 4] * scale[c % 4 / 2].up;
            old[k] = split_tiles(y[0], y[1]);
        }
        float w[OWN_TILES][4], p[OWN_TILES][4];
        multiply_state<DIM>(w, x.w[warp], old, scale, next_piece(), half, lane);

        const uint4 *reads = next_piece();
        float writes[TILES][4];          /* d of own tokens, then of the partner's */
        #pragma unroll
        for (int i = 0; i < OWN_TILES; i++) {
            const float4 rest = x.w[partner][i][lane];
            writes[i][0] = (u[i].x - (w[i][0] + rest.x)) * to_end[i].x;
            writes[i][1] = (u[i].y - (w[i][1] + rest.y)) * to_end[i].y;
            writes[i][2] = (u[i].z - (w[i][2] + rest.z)) * to_end[i].x;
            writes[i][3] = (u[i].w - (w[i][3] + rest.w)) * to_end[i].y;
            x.d[warp][i][lane] = make_float4(writes[i][0], writes[i][1], writes[i][2],
                                             writes[i][3]);
        }
        multiply_state<DIM>(p, x.p[warp], old, scale, reads, half, lane);

        const uint4 *keys = next_piece() + half * ROWS * 32 + lane;
        float *out = d.out + (size_t)(first + chunk * TOKENS + half * (TOKENS / 2) + lane % 4 * 2) *
                             s.values + head * DIM + column + lane / 4;
        #pragma unroll
        for (int i = 0; i < OWN_TILES; i++) {
            const float4 more = x.d[partner][i][lane], rest = x.p[partner][i][lane];
            writes[OWN_TILES + i][0] = more.x;
            writes[OWN_TILES + i][1] = more.y;
            writes[OWN_TILES + i][2] = more.z;
            writes[OWN_TILES + i][3] = more.w;
            float *row = out + (size_t)(8 * i) * s.values;
            row[0] = o[i].x + (p[i][0] + rest.x);
            row[s.values] = o[i].y + (p[i][1] + rest.y);
            row[8] = o[i].z + (p[i][2] + rest.z);
            row[s.values + 8] = o[i].w + (p[i][3] + rest.w);
        }
        row_scalings<TILES>(scale, writes, 15);
        #pragma unroll
        for (int i = 0; i < 4 * TILES; i++) writes[i / 4][i % 4] *= scale[i % 4 / 2].up;
        float high[ROWS][4] = {}, rest[ROWS][4] = {};
        #pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            const int block = (k / 2 ^ half) * 2 + k % 2;        /* block of tokens, own first */
            const fragment a = split_tiles(writes[2 * k], writes[2 * k + 1]);
            add_tiles<ROWS>(high, rest, a, keys + block * (DIM / 8) * 32, 1);
        }
        #pragma unroll
        for (int i = 0; i < ROWS; i++)
            #pragma unroll
            for (int c = 0; c < 4; c++) {
                const float add = (high[i][c] + rest[i][c]) * (scale[c / 2].down * PER_UNIT);
                S[i][c] = fmaf(decay.x, S[i][c], fmaf(decay.y, S[i][c], add));
            }
    }
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int c = 0; c < 4; c++)
            after[(half * (DIM / 2) + 8 * i + lane % 4 * 2 + c % 2) * DIM + c / 2 * 8] = S[i][c];
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

template <int DIM, int STAGES>
static void carry(gpu *g, const gpu_delta *d, int first, int n_chunk, bool fresh)
{
    launch(g, "DeltaNet", (uint64_t)d->n_v * DIM * DIM * sizeof(float), delta_carry<DIM, STAGES>,
           dim3((unsigned)d->n_v, DIM / CARRY_COLUMNS), CARRY_THREADS,
           delta_carry_bytes(DIM, STAGES), *d, first, n_chunk, fresh);
}

template <int DIM>
static void run_chunks(gpu *g, const gpu_delta *d, int first, int n_chunk, bool fresh)
{
    static_assert(sizeof(solve_memory<DIM>) == delta_solve_bytes(DIM) &&
                  sizeof(exchange<DIM>) == delta_carry_bytes(DIM, 0), "shared memory");
    const chip c = chip_of(g);
    const int stages = delta_carry_stages(&c, DIM);
    for (int at = 0; at < n_chunk; at += SLAB) {
        const int n = n_chunk - at < SLAB ? n_chunk - at : (int)SLAB, token = first + at * TOKENS;
        launch(g, "DeltaNet", 0, delta_solve<DIM>, dim3((unsigned)d->n_v, (unsigned)n),
               SOLVE_THREADS, delta_solve_bytes(DIM), *d, token);
        if (stages == 6) carry<DIM, 6>(g, d, token, n, fresh || at > 0);
        else if (stages == 4) carry<DIM, 4>(g, d, token, n, fresh || at > 0);
        else carry<DIM, 2>(g, d, token, n, fresh || at > 0);
    }
}

bool delta_chunks_fit(const gpu *g, int dim)
{
    const chip c = chip_of(g);
    return gpu_delta_fits(dim) && g->cc >= 80 && delta_solve_bytes(128) <= c.block_bytes &&
           delta_carry_stages(&c, 128) > 0;
}

size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n)
{
    const size_t keys = (size_t)n_k * TOKENS * (size_t)dim * 4;
    if (n < TOKENS || !delta_chunks_fit(g, dim)) return 0;
    return SLAB * ((size_t)n_v * head_bytes(dim) + keys);
}

void delta_chunks(gpu *g, const gpu_delta *d, int first, int n_chunk, bool fresh)
{
    switch (d->dim) {
    case 32: run_chunks<32>(g, d, first, n_chunk, fresh); break;
    case 64: run_chunks<64>(g, d, first, n_chunk, fresh); break;
    case 128: run_chunks<128>(g, d, first, n_chunk, fresh); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "DeltaNet: head size");
    }
}
