/* delta.cu - gpu_delta_rule, outside the arithmetic contract. Whole chunks by position go to
 * delta_chunks.cu; this file computes all other tokens, and all tokens on chips before sm_80.
 *
 * Columns of the state are independent, so a warp computes eight of them without other warps: a
 * thread holds a quarter of the rows of one column in registers, from the first token to the last.
 * With S the state before a token, decay e, k and q normed:
 *
 *     d = beta (v - e S^T k),   S' = e S + k (x) d,   out = S'^T q = e S^T q + (q . k) d
 *
 * So both products use the old state. The decay is the sum of two floats: with one float, the same
 * rounding error in each token would bias the state of heads that decay slowly. Tokens pass through
 * shared memory, a tile at a time. Each block norms q and k and computes the gates of its head
 * itself, so a token has the same bits alone and in a batch. */
#include "cuda/delta.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, COLUMNS = 8 * WARPS, TILE = 8 };

/* ---- the rule -------------------------------------------------------------------------------- */

/* The input of one token, for the columns of a block. */
template <int DIM> struct delta_token {
    float q[DIM], k[DIM], v[COLUMNS];
    float beta, alpha, pad[2];           /* before their activation functions */
};

/* Offsets of a head's values. */
typedef struct head_place {
    int key, value;                      /* in a token's mixed; value: the block's first column */
    int gate, decay;                     /* in a token's ba */
} head_place;

template <int DIM>
static __device__ __forceinline__ void load_token(delta_token<DIM> *to, const gpu_delta &d,
                                                  const delta_sizes &s, const head_place &h, int t,
                                                  int at)
{
    const float *from = d.mixed + (size_t)t * s.channels;
    if (at < DIM) copy16(to->q + at, from + h.key + at);
    else if (at < 2 * DIM) copy16(to->k + at - DIM, from + s.keys + h.key + at - DIM);
    else copy16(to->v + at - 2 * DIM, from + h.value + at - 2 * DIM);
}

template <int DIM>
static __device__ __forceinline__ void load_gates(delta_token<DIM> *to, const gpu_delta &d,
                                                  const head_place &h, int t)
{
    const float *ba = d.ba + (size_t)t * 2 * d.n_v;
    to->beta = ba[h.gate];
    to->alpha = ba[h.decay];
}

template <int DIM, bool ONE>
static __device__ __forceinline__ void load_tile(delta_token<DIM> *tile, const gpu_delta &d,
                                                 const delta_sizes &s, const head_place &h, int t0,
                                                 int n_left)
{
    enum { QUADS = (2 * DIM + COLUMNS) / 4 };            /* groups of four floats of a token */
    static_assert(QUADS <= THREADS, "one token is one round");
    if (ONE) {
        if (threadIdx.x < QUADS) load_token(tile, d, s, h, 0, 4 * threadIdx.x);
        if (threadIdx.x == 0) load_gates(tile, d, h, 0);
    } else {
        const int n = min((int)TILE, n_left);
        #pragma unroll 1
        for (int i = threadIdx.x; i < n * QUADS; i += THREADS)
            load_token(&tile[i / QUADS], d, s, h, t0 + i / QUADS, i % QUADS * 4);
        if (threadIdx.x < n) load_gates(&tile[threadIdx.x], d, h, t0 + threadIdx.x);
    }
    copy_commit();
}

/* ONE: a single token. fresh: earlier tokens of the batch have written the state, perhaps in the
 * previous kernel. blockIdx.z is a token: if a conversation begins with it, the block computes all
 * tokens of that one. */
template <int DIM, bool ONE>
static __global__ void __launch_bounds__(THREADS) delta_rule(tracer f, const gpu_delta d,
                                                             bool fresh)
{
    enum { ROWS = DIM / 4 };             /* state rows of a thread: groups of four, 16 apart */
    __shared__ __align__(16) delta_token<DIM> tiles[ONE ? 1 : 2][ONE ? 1 : TILE];
    const delta_sizes s = sizes_of(d);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = lane / 8;
    const int head = blockIdx.x, column0 = blockIdx.y * COLUMNS, own = warp * 8 + lane % 8;
    const int gate = gate_of(d, s, head);
    const head_place place = { key_head_of(d, s, head) * DIM, 2 * s.keys + head * DIM + column0,
                               gate, gate + decay_step(d, s) };
    const int first = ONE ? 0 : blockIdx.z;
    const size_t column = (size_t)head * DIM * DIM + column0 + own;
    float S[ROWS];

    pdl_begin(f);
    if (ONE) pdl_release();              /* this kernel takes 2 us, less than the next's start */
    /* the state was written before the previous kernel, unless fresh */
    if (fresh) pdl_wait(f);
    const row_token x0 = row_token_of(d.cursor, first);
    if (x0.t > 0) {                      /* in the middle of a conversation */
        pdl_wait(f);
        pdl_end(f);
        return;
    }
    const int n_all = ONE ? 1 : x0.row->n > 0 ? x0.row->n : d.n - first;
    const float *before = state_before(d, x0.row, fresh) + column;
    float *after = state_after(d, x0.row) + column;
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        S[r] = before[(size_t)(r / 4 * 16 + quarter * 4 + r % 4) * DIM];
    const float dt_bias = d.dt_bias[head], decay = d.a[head];
    pdl_wait(f);
    load_tile<DIM, ONE>(tiles[0], d, s, place, first, n_all);

    for (int t0 = 0, now = 0; t0 < n_all; t0 += TILE, now ^= 1) {
        if (!ONE) __syncthreads();       /* all threads have read the other tile */
        if (!ONE && t0 + TILE < n_all) {
            load_tile<DIM, ONE>(tiles[now ^ 1], d, s, place, first + t0 + TILE,
                                n_all - t0 - TILE);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        const int n = min((int)TILE, n_all - t0);
        #pragma unroll 1
        for (int t = 0; t < n; t++) {
            const delta_token<DIM> &x = tiles[now][t];
            float kS = 0.0f, qS = 0.0f, qk = 0.0f, qq = 0.0f, kk = 0.0f, k[ROWS];
            #pragma unroll
            for (int i = 0; i < ROWS / 4; i++) {
                const float4 q4 = *(const float4 *)(x.q + 16 * i + 4 * quarter);
                const float4 k4 = *(const float4 *)(x.k + 16 * i + 4 * quarter);
                const float qs[4] = { q4.x, q4.y, q4.z, q4.w }, ks[4] = { k4.x, k4.y, k4.z, k4.w };
                #pragma unroll
                for (int c = 0; c < 4; c++) {
                    k[4 * i + c] = ks[c];
                    kS = fmaf(ks[c], S[4 * i + c], kS);
                    qS = fmaf(qs[c], S[4 * i + c], qS);
                    qk = fmaf(qs[c], ks[c], qk);
                    qq = fmaf(qs[c], qs[c], qq);
                    kk = fmaf(ks[c], ks[c], kk);
                }
            }
            #pragma unroll
            for (int m = 8; m < 32; m <<= 1) {
                kS += __shfl_xor_sync(~0u, kS, m);
                qS += __shfl_xor_sync(~0u, qS, m);
                qk += __shfl_xor_sync(~0u, qk, m);
                qq += __shfl_xor_sync(~0u, qq, m);
                kk += __shfl_xor_sync(~0u, kk, m);
            }
            const float fq = l2_factor(qq) / sqrtf((float)DIM), fk = l2_factor(kk);
            kS = __fmul_rn(kS, fk);
            qS = __fmul_rn(qS, fq);
            qk = __fmul_rn(qk, __fmul_rn(fk, fq));
            const float beta = sigmoid(x.beta), g = log_decay(x.alpha, dt_bias, decay);
            const float2 e = split_exp(g);
            const float decayed = fmaf(e.y, kS, __fmul_rn(e.x, kS));
            const float delta = __fmul_rn(beta, __fsub_rn(x.v[own], decayed));
            const float add = __fmul_rn(delta, fk);
            #pragma unroll
            for (int r = 0; r < ROWS; r++)
                S[r] = fmaf(e.x, S[r], fmaf(e.y, S[r], __fmul_rn(k[r], add)));
            if (quarter == 0)
                d.out[(size_t)(first + t0 + t) * s.values + head * DIM + column0 + own] =
                    fmaf(qk, delta, fmaf(e.x, qS, __fmul_rn(e.y, qS)));
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        after[(size_t)(r / 4 * 16 + quarter * 4 + r % 4) * DIM] = S[r];
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Launches the rule for tokens first .. first+n-1, one after the other. Few tokens may be of several
 * conversations, and first is 0. */
template <int DIM>
static void launch_dim(gpu *g, const gpu_delta *all, int first, int n, bool fresh)
{
    const delta_sizes s = sizes_of(*all);
    gpu_delta d = *all;
    d.n = n;
    d.mixed += (size_t)first * s.channels;
    d.ba += (size_t)first * 2 * d.n_v;
    d.out += (size_t)first * s.values;
    const auto rule = [&](void (*kernel)(tracer, gpu_delta, bool)) {
        launch(g, "DeltaNet", (uint64_t)d.n_v * DIM * DIM * sizeof(float), kernel,
               dim3((unsigned)d.n_v, DIM / COLUMNS,
                    gpu_is_few(all->n, all->in_pass) ? (unsigned)n : 1), THREADS, 0, d, fresh);
    };
    rule(n == 1 ? delta_rule<DIM, true> : delta_rule<DIM, false>);
}

static void walk(gpu *g, const gpu_delta *d, int first, int n, bool fresh)
{
    if (n == 0) return;
    switch (d->dim) {
    case 32: launch_dim<32>(g, d, first, n, fresh); break;
    case 64: launch_dim<64>(g, d, first, n, fresh); break;
    case 128: launch_dim<128>(g, d, first, n, fresh); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "DeltaNet: head size");
    }
}

bool gpu_delta_fits(int dim) { return dim == 32 || dim == 64 || dim == 128; }

void gpu_delta_rule(gpu *g, const gpu_delta *d)
{
    const int before = (GPU_DELTA_CHUNK - d->pos % GPU_DELTA_CHUNK) % GPU_DELTA_CHUNK;
    const int n_chunk = d->n > before ? (d->n - before) / GPU_DELTA_CHUNK : 0;
    const int end = before + n_chunk * GPU_DELTA_CHUNK;
    if (n_chunk == 0 || d->in_pass || !d->scratch || !delta_chunks_fit(g, d->dim)) {
        walk(g, d, 0, d->n, false);
        return;
    }
    walk(g, d, 0, before, false);
    delta_chunks(g, d, before, n_chunk, before > 0);
    walk(g, d, end, d->n - end, true);
}
