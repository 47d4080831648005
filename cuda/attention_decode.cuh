/* attention_decode.cuh - attention of few tokens (gpu_is_few) over their keys, in F32 arithmetic.
 * attention.cu calls it.
 *
 * A thread holds eight dimensions: head_dim / 8 threads make a key's score, and a warp computes
 * several keys at a time, in four rounds between two updates of the maximum. With heads of 512 a
 * thread holds sixteen dimensions, eight in each half of the head; a warp computes one key at a
 * time, in two rounds. Earlier kernels wrote all keys but the token's own, so a block requests its
 * first keys before it waits for the queries. Long F16 stores use attention_decode_mma.cu. Prompts
 * that attention_prompt.cu does not support also use this kernel; a block then attends to all keys
 * of its token.
 *
 * Each type of store is compiled in its own file, which shortens compilation. */
#ifndef CUDA_ATTENTION_DECODE_CUH
#define CUDA_ATTENTION_DECODE_CUH

#include "cuda/attention_decode_split_kv.cuh"
#include "cuda/batch.cuh"

/* How a warp divides keys. */
template <int DIM> struct key_shape {
    enum {
        LANES = DIM < 256 ? DIM / 8 : 32,        /* threads of a key */
        KEYS = 32 / LANES,                       /* keys of a warp at a time */
        PIECES = DIM / (8 * LANES),              /* groups of eight dimensions of a thread */
        ROUNDS = PIECES > 1 ? 2 : 4              /* keys of a thread between two updates of the
                                                  * maximum */
    };
};

enum {
    FEW_HEADS = 4                        /* query heads of a block below MANY_KEYS, at most: few
                                          * for low latency */
};

/* The two pages at most that the keys of a warp are in. */
typedef struct two_pages {
    const uint8_t *first, *second;
} two_pages;

/* Of key0 and the following keys < end; at least one key of the block's range is. */
static __device__ __forceinline__ two_pages pages_from(const page_table &t, int key0, int end)
{
    return { t.of(min(key0, end - 1)), t.of(min(key0 + GPU_PAGE, end - 1)) };
}

/* Keys and values of ROUNDS keys of a thread, in stored form. */
template <int KV, int DIM> struct key_batch {
    typedef key_shape<DIM> S;
    typedef typename kv_row<KV>::raw raw;
    static_assert(S::ROUNDS * S::KEYS <= GPU_PAGE, "keys of a warp are in two pages at most");
    raw k[S::ROUNDS][S::PIECES], v[S::ROUNDS][S::PIECES];

    /* rows: offset of the head's keys or values in a page; key0: the warp's first key. Keys >= end
     * become zeros, because their rows are undefined. */
    static __device__ __forceinline__ void load(raw (&to)[S::ROUNDS][S::PIECES],
                                                const two_pages &pages, size_t rows, int key0,
                                                int end)
    {
        const int lane = threadIdx.x % 32, d = lane % S::LANES * 8;
        #pragma unroll
        for (int i = 0; i < S::ROUNDS; i++) {
            const int key = key0 + i * S::KEYS + lane / S::LANES;
            const uint8_t *page = key / GPU_PAGE == key0 / GPU_PAGE ? pages.first : pages.second;
            const uint8_t *row = page + rows + (size_t)(key % GPU_PAGE) * kv_row<KV>::bytes(DIM);
            #pragma unroll
            for (int p = 0; p < S::PIECES; p++) {
                to[i][p] = {};
                if (key < end) to[i][p] = kv_row<KV>::load(row, d + p * 8 * S::LANES);
            }
        }
    }
};

/* Attention of one block; WHOLE: r.whole. */
template <int KV, int DIM, int HEADS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) decode_range(tracer f, const range_args r)
{
    typedef key_shape<DIM> S;
    enum { LANES = S::LANES, KEYS = S::KEYS, PIECES = S::PIECES, ROUNDS = S::ROUNDS };
    enum { EACH = 8 * PIECES };          /* dimensions of a thread: see dim_at */
    const gpu_attention &a = r.a;
    /* merge has the queries first, then the warps' results, PASS dimensions at a time */
    enum { PASS = HEADS * DIM > 1024 ? 1024 / HEADS : DIM };
    const auto dim_at = [](int d, int i) { return d + i % 8 + i / 8 * 8 * LANES; };
    __shared__ __align__(16) float merge[WARPS][HEADS][PASS];
    __shared__ float merge_max[WARPS][MAX_HEADS], merge_sum[WARPS][MAX_HEADS];
    __shared__ float own_head[2][DIM];   /* the token's own key and value */
    __shared__ __align__(16) uint8_t fresh[2][DIM * 4];          /* both in stored form */
    float (*q_shared)[DIM] = (float (*)[DIM])merge;
    const int warp = warp_index(), lane = threadIdx.x % 32, d = lane % LANES * 8;
    const range_work where = work_of<HEADS>(r, kv_row<KV>::bytes(DIM), WHOLE);
    const int n_head = where.n_head, own = where.own, end = where.end;
    const int old_end = own >= 0 ? own : end;
    key_batch<KV, DIM> batch;

    pdl_begin(f);
    if (where.range >= where.n_range) {
        pdl_wait(f);
        pdl_end(f);
        return;
    }
    int key0 = where.begin + warp * KEYS * ROUNDS;
    head_maker<DIM> maker;
    if (!WHOLE) pdl_wait(f);
    two_pages pages = pages_from(where.pages, key0, end);
    batch.load(batch.k, pages, where.keys, key0, old_end);
    batch.load(batch.v, pages, where.values, key0, old_end);
    if (WHOLE && warp < where.n_make) maker.begin(warp < n_head ? a.q_norm : a.k_norm, a);
    if (WHOLE) pdl_wait(f);

    make_heads<KV, DIM, HEADS>(r, where, WHOLE, q_shared, own_head, fresh, maker);
    __syncthreads();

    const float scale = a.scale * LOG2_E;
    float q[HEADS][EACH], o[HEADS][EACH], largest[HEADS], sum[HEADS];
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        largest[h] = -INFINITY;
        sum[h] = 0.0f;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            q[h][i] = h < n_head ? __fmul_rn(q_shared[h][dim_at(d, i)], scale) : 0.0f;
            o[h][i] = 0.0f;
        }
    }

    while (key0 < end) {
        float score[ROUNDS][HEADS];
        const int next = key0 + WARPS * KEYS * ROUNDS;
        pages = pages_from(where.pages, next, end);
        const int own_round = own - key0 - lane / LANES;         /* times KEYS */
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            #pragma unroll
            for (int h = 0; h < HEADS; h++) score[i][h] = 0.0f;
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                float k[8];
                if (WHOLE && own_round == i * KEYS)
                    batch.k[i][p] = kv_row<KV>::load(fresh[0], dim_at(d, 8 * p));
                kv_row<KV>::widen(k, batch.k[i][p]);
                #pragma unroll
                for (int h = 0; h < HEADS; h++)
                    #pragma unroll
                    for (int c = 0; c < 8; c++)
                        score[i][h] = fmaf(q[h][8 * p + c], k[c], score[i][h]);
            }
        }
        if (next < end) batch.load(batch.k, pages, where.keys, next, old_end);
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const bool inside = key0 + i * KEYS + lane / LANES < end;
            #pragma unroll
            for (int h = 0; h < HEADS; h++) {
                #pragma unroll
                for (int s = LANES / 2; s > 0; s >>= 1)
                    score[i][h] += __shfl_xor_sync(~0u, score[i][h], s);
                if (!inside) score[i][h] = -INFINITY;
            }
        }
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float top = largest[h];
            #pragma unroll
            for (int i = 0; i < ROUNDS; i++) top = fmaxf(top, score[i][h]);
            /* if there was no key so far, base can be any finite number */
            const float base = top == -INFINITY ? 0.0f : top;
            const float shrink = power_of_2(largest[h] - base);
            largest[h] = top;
            sum[h] = __fmul_rn(sum[h], shrink);
            #pragma unroll
            for (int c = 0; c < EACH; c++) o[h][c] = __fmul_rn(o[h][c], shrink);
            #pragma unroll
            for (int i = 0; i < ROUNDS; i++) {
                score[i][h] = power_of_2(score[i][h] - base);
                sum[h] = __fadd_rn(sum[h], score[i][h]);
            }
        }
        #pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                float v[8];
                if (WHOLE && own_round == i * KEYS)
                    batch.v[i][p] = kv_row<KV>::load(fresh[1], dim_at(d, 8 * p));
                kv_row<KV>::widen(v, batch.v[i][p]);
                #pragma unroll
                for (int h = 0; h < HEADS; h++)
                    #pragma unroll
                    for (int c = 0; c < 8; c++)
                        o[h][8 * p + c] = fmaf(score[i][h], v[c], o[h][8 * p + c]);
            }
        }
        if (next < end) batch.load(batch.v, pages, where.values, next, old_end);
        key0 = next;
    }

    /* joins the sums of a warp's threads, then of the warps */
    __syncthreads();                     /* all warps have read the queries from merge */
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float top = largest[h];
        #pragma unroll
        for (int s = LANES; s < 32; s <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
        const float shrink = top == -INFINITY ? 0.0f : power_of_2(largest[h] - top);
        sum[h] = __fmul_rn(sum[h], shrink);
        #pragma unroll
        for (int c = 0; c < EACH; c++) o[h][c] = __fmul_rn(o[h][c], shrink);
        #pragma unroll
        for (int s = LANES; s < 32; s <<= 1) {
            sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], s));
            #pragma unroll
            for (int c = 0; c < EACH; c++)
                o[h][c] = __fadd_rn(o[h][c], __shfl_xor_sync(~0u, o[h][c], s));
        }
        if (lane == 0) {
            merge_max[warp][h] = top;
            merge_sum[warp][h] = sum[h];
        }
    }
    for (int first = 0; first < DIM; first += PASS) {
        #pragma unroll
        for (int h = 0; h < HEADS; h++)
            #pragma unroll
            for (int p = 0; p < PIECES; p++) {
                const int at = dim_at(d, 8 * p) - first;
                if (lane < LANES && at >= 0 && at < PASS) {
                    #pragma unroll
                    for (int c = 0; c < 8; c++) merge[warp][h][at + c] = o[h][8 * p + c];
                }
            }
        __syncthreads();
        store_pass<DIM, PASS, HEADS>(r, where, merge, merge_max, merge_sum, first);
    }
    merge_if_last<DIM, HEADS>(r, where);
    pdl_end(f);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Number of blocks in the second dimension of the grid. */
static inline int rows_of_heads(const gpu_attention *a, int heads)
{
    return a->n_head_kv * (int)ceil_div((uint64_t)(a->n_head / a->n_head_kv), (uint64_t)heads);
}

/* Heads of a block: MAX_HEADS from MANY_KEYS on, to read keys only once. Else two if at most four
 * blocks are then on a multiprocessor, or FEW_HEADS. If a whole warp computes a key, each head costs
 * five shuffles, so one is tried first. Heads of 512 have too few registers for MAX_HEADS. */
template <int DIM> static int heads_for(const gpu *g, const gpu_attention *a, int keys, int n)
{
    const int ranges = (int)ceil_div((uint64_t)keys, (uint64_t)least_range_keys(DIM)) * n;
    if (DIM > 256) return FEW_HEADS;
    if (keys >= MANY_KEYS) return MAX_HEADS;
    for (int heads = DIM == 256 ? 1 : 2; heads < FEW_HEADS; heads *= 2)
        if (rows_of_heads(a, heads) * ranges <= 4 * g->n_sm) return heads;
    return FEW_HEADS;
}

template <int KV, int DIM> static constexpr bool has_mma(void)
{
    return KV == GPU_KV_F16 && DIM >= 64 && DIM <= 256;
}

/* Whether attention_decode_mma.cu computes the tokens of a class. */
template <int KV, int DIM> static bool uses_mma(const gpu_attention *a, int c)
{
    return has_mma<KV, DIM>() && keys_of_reach(a, c) >= MANY_KEYS;
}

/* Most ranges of a token of a class, whatever else the launch computes: as many blocks as can be
 * active at once if the token is alone. */
template <int KV, int DIM> static int room_of(const gpu *g, const gpu_attention *a, int c)
{
    const int heads = heads_for<DIM>(g, a, keys_of_reach(a, c), 1);
    const int each_sm = uses_mma<KV, DIM>(a, c) ? mma_blocks(DIM) : heads < FEW_HEADS ? 2 : 1;
    if (!gpu_is_few(a->n, a->in_pass)) return 1;
    return room_for(each_sm * g->n_sm / rows_of_heads(a, heads));
}

template <int KV, int DIM, int HEADS>
static void launch_heads(gpu *g, const range_args *of_all, int keys)
{
    const gpu_attention *a = &of_all->a;
    const int rows = rows_of_heads(a, HEADS);
    range_args r = *of_all;
    r.n_part = rows / a->n_head_kv;
    launch(g, "attention", (uint64_t)keys * a->n_head_kv * kv_row<KV>::bytes(DIM) * 2,
           r.whole ? decode_range<KV, DIM, HEADS, true> : decode_range<KV, DIM, HEADS, false>,
           dim3((unsigned)r.max_ranges, (unsigned)rows, (unsigned)a->n), THREADS, 0, r);
    launch_merge<DIM>(g, r);
}

/* Tokens of several classes may need both kernels; each skips the tokens of the other. */
template <int KV, int DIM> static void launch_ranges(gpu *g, const gpu_attention *a)
{
    const int last = reach_of(a->last - 1), first = a->n == 1 ? last : 0;
    const bool mma = uses_mma<KV, DIM>(a, last);
    const int end = mma ? last : last + 1;
    int room[REACHES];
    for (int c = 0; c < REACHES; c++) room[c] = room_of<KV, DIM>(g, a, c);
    if (first < end) {
        const range_args r = range_args_of(a, room, first, end);
        const int keys = keys_of_reach(a, end - 1);
        switch (heads_for<DIM>(g, a, keys, a->n)) {
        case 1:
            if constexpr (DIM == 256) launch_heads<KV, DIM, 1>(g, &r, keys);
            break;
        case 2:
            if constexpr (DIM <= 256) launch_heads<KV, DIM, 2>(g, &r, keys);
            break;
        case FEW_HEADS:
            launch_heads<KV, DIM, FEW_HEADS>(g, &r, keys);
            break;
        default:
            if constexpr (DIM <= 256 && !has_mma<KV, DIM>())
                launch_heads<KV, DIM, MAX_HEADS>(g, &r, keys);
        }
    }
    if (mma) {
        const range_args r = range_args_of(a, room, last, last + 1);
        attention_decode_mma(g, &r);
    }
}

template <int KV> static void launch_dim(gpu *g, const gpu_attention *a)
{
    switch (a->head_dim) {
    case 32: launch_ranges<KV, 32>(g, a); break;
    case 64: launch_ranges<KV, 64>(g, a); break;
    case 128: launch_ranges<KV, 128>(g, a); break;
    case 256: launch_ranges<KV, 256>(g, a); break;
    case 512: launch_ranges<KV, 512>(g, a); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "attention: head size");
    }
}

/* The attention of few tokens, or of more if attention_prompt has no kernel. The caller
 * has called attention_prepare if n > 1. */
void attention_decode_f32(gpu *g, const gpu_attention *a);
void attention_decode_f16(gpu *g, const gpu_attention *a);
void attention_decode_q8(gpu *g, const gpu_attention *a);

#endif
