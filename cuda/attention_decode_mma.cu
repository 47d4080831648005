/* attention_decode_mma.cu - attention of few tokens over a long F16 KV store, by tensor cores.
 *
 * A warp computes tiles of 16 keys. Scores are K Q^T with keys as the 16 rows and heads as the 8
 * columns; sums of values are V^T P with 16 dimensions as rows and the same columns. Keys and
 * values go from global memory to registers in stored order, 16 bytes for each thread. A product
 * does not depend on the order of its columns if both factors have the same, so dimensions stay in
 * the order of the loads. Weights and values are transposed in registers.
 *
 * With g = lane / 4 and t = lane % 4, a thread's load number j of a row has dimensions 8 (t + 4j)
 * .. +7, in the words x, y, z, w. Queries and weights are rounded to F16, sums are F32. The caller
 * is attention_decode.cuh, from MANY_KEYS keys on. */
#include "cuda/attention_decode_split_kv.cuh"

enum { TILE = 16 };

static __device__ __forceinline__ uint32_t two_halves(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *(const uint32_t *)&v;
}

template <int DIM>
static __global__ void __launch_bounds__(THREADS) decode_tiles(tracer f, const range_args r)
{
    enum { CHUNKS = DIM / 32, STEPS = DIM / 16, PASS = DIM > 128 ? DIM / 2 : DIM };
    const gpu_attention &a = r.a;
    /* merge has the queries first, then the warps' results */
    __shared__ __align__(16) float merge[WARPS][MAX_HEADS][PASS];
    __shared__ float merge_max[WARPS][MAX_HEADS], merge_sum[WARPS][MAX_HEADS];
    __shared__ float own_head[2][DIM];
    float (*q_shared)[DIM] = (float (*)[DIM])merge;
    const range_work where = work_of<MAX_HEADS>(r, DIM * sizeof(__half), r.whole);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    head_maker<DIM> maker;

    pdl_begin(f);
    pdl_wait(f);
    if (where.range >= where.n_range) {
        pdl_end(f);
        return;
    }
    if (r.whole && warp < where.n_make) maker.begin(warp < where.n_head ? a.q_norm : a.k_norm, a);
    make_heads<GPU_KV_F16, DIM, MAX_HEADS>(r, where, r.whole, q_shared, own_head, NULL, maker);
    __syncthreads();

    /* q: the second factor, with heads as columns */
    const float scale = a.scale * LOG2_E;
    uint32_t q[STEPS][2];
    #pragma unroll
    for (int s = 0; s < STEPS; s++)
        #pragma unroll
        for (int b = 0; b < 2; b++) {
            const int d = 8 * (t + 4 * (s / 2)) + 4 * (s % 2) + 2 * b;
            const bool there = g < where.n_head;
            q[s][b] = there ? two_halves(__fmul_rn(q_shared[g][d], scale),
                                         __fmul_rn(q_shared[g][d + 1], scale)) : 0;
        }

    /* the pages of keys g and g + 8 of a tile; past the end the last row is read, with weight 0 */
    const uint8_t *page[2];
    const auto key_of = [&](int key0, int h) { return min(key0 + g + 8 * h, where.end - 1); };
    const auto find_pages = [&](int key0) {
        #pragma unroll
        for (int h = 0; h < 2; h++) page[h] = where.pages.of(key_of(key0, h));
    };

    float o[STEPS][4] = {}, top[2] = { -INFINITY, -INFINITY }, sum[2] = { 0.0f, 0.0f };
    find_pages(where.begin + warp * TILE);
    for (int key0 = where.begin + warp * TILE; key0 < where.end; key0 += WARPS * TILE) {
        const uint8_t *row[2][2];
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t at = (size_t)(key_of(key0, h) % GPU_PAGE) * where.row_bytes + 16 * t;
            row[0][h] = page[h] + where.keys + at;
            row[1][h] = page[h] + where.values + at;
        }
        find_pages(key0 + WARPS * TILE);
        uint4 k[CHUNKS][2], v[CHUNKS][2];
        #pragma unroll
        for (int j = 0; j < CHUNKS; j++)
            #pragma unroll
            for (int h = 0; h < 2; h++) k[j][h] = *(const uint4 *)(row[0][h] + 64 * j);
        if (DIM <= 128) {
            #pragma unroll
            for (int j = 0; j < CHUNKS; j++)
                #pragma unroll
                for (int h = 0; h < 2; h++) v[j][h] = *(const uint4 *)(row[1][h] + 64 * j);
        }
        float s[4] = {};
        #pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const uint32_t first[4] = { k[j][0].x, k[j][1].x, k[j][0].y, k[j][1].y };
            const uint32_t second[4] = { k[j][0].z, k[j][1].z, k[j][0].w, k[j][1].w };
            mma_f16(s, first, q[2 * j][0], q[2 * j][1]);
            mma_f16(s, second, q[2 * j + 1][0], q[2 * j + 1][1]);
        }
        if (DIM > 128) {                 /* registers do not hold keys and values together */
            #pragma unroll
            for (int j = 0; j < CHUNKS; j++)
                #pragma unroll
                for (int h = 0; h < 2; h++) v[j][h] = *(const uint4 *)(row[1][h] + 64 * j);
        }

        /* s[0], s[1]: key g of heads 2t and 2t + 1; s[2], s[3]: key g + 8 */
        #pragma unroll
        for (int i = 0; i < 4; i++)
            if (key0 + g + 8 * (i / 2) >= where.end) s[i] = -INFINITY;
        float shrink[2];
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = fmaxf(s[i], s[i + 2]);
            #pragma unroll
            for (int d = 4; d < 32; d <<= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
            most = fmaxf(most, top[i]);  /* finite, because each tile has at least one key */
            shrink[i] = power_of_2(top[i] - most);
            top[i] = most;
            s[i] = power_of_2(s[i] - most);
            s[i + 2] = power_of_2(s[i + 2] - most);
            sum[i] = fmaf(sum[i], shrink[i], s[i] + s[i + 2]);
        }
        const uint32_t p[2] = { transpose_tile(two_halves(s[0], s[1])),
                                transpose_tile(two_halves(s[2], s[3])) };
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) o[n][i] *= shrink[i % 2];
        #pragma unroll
        for (int j = 0; j < CHUNKS; j++) {
            const uint32_t first[4] = { transpose_tile(v[j][0].x), transpose_tile(v[j][0].y),
                                        transpose_tile(v[j][1].x), transpose_tile(v[j][1].y) };
            const uint32_t second[4] = { transpose_tile(v[j][0].z), transpose_tile(v[j][0].w),
                                         transpose_tile(v[j][1].z), transpose_tile(v[j][1].w) };
            mma_f16(o[2 * j], first, p[0], p[1]);
            mma_f16(o[2 * j + 1], second, p[0], p[1]);
        }
    }

    /* o[2j + n]: rows g and g + 8 are dimensions 8 (g / 2 + 4j) + 4n + g % 2, and + 2; columns are
     * heads 2t and 2t + 1 */
    #pragma unroll
    for (int i = 0; i < 2; i++)
        for (int d = 4; d < 32; d <<= 1) sum[i] += __shfl_xor_sync(~0u, sum[i], d);
    __syncthreads();                     /* all warps have read the queries from merge */
    if (g == 0) {
        for (int i = 0; i < 2; i++) {
            merge_max[warp][2 * t + i] = top[i];
            merge_sum[warp][2 * t + i] = sum[i];
        }
    }
    for (int first = 0; first < DIM; first += PASS) {
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int d = 8 * (g / 2 + 4 * (n / 2)) + 4 * (n % 2) + g % 2 + 2 * (i / 2);
                if (d >= first && d < first + PASS) merge[warp][2 * t + i % 2][d - first] = o[n][i];
            }
        __syncthreads();
        store_pass<DIM, PASS, MAX_HEADS>(r, where, merge, merge_max, merge_sum, first);
    }
    merge_if_last<DIM, MAX_HEADS>(r, where);
    pdl_end(f);
}

template <int DIM> static void launch_tiles(gpu *g, const range_args *of_all)
{
    range_args r = *of_all;
    r.n_part = (int)ceil_div((uint64_t)r.group, MAX_HEADS);
    launch(g, "attention", (uint64_t)r.a.last * r.a.n_head_kv * DIM * sizeof(__half) * 2,
           decode_tiles<DIM>,
           dim3((unsigned)r.max_ranges, (unsigned)(r.a.n_head_kv * r.n_part), (unsigned)r.a.n),
           THREADS, 0, r);
    launch_merge<DIM>(g, r);
}

void attention_decode_mma(gpu *g, const range_args *r)
{
    switch (r->a.head_dim) {
    case 64: launch_tiles<64>(g, r); break;
    case 128: launch_tiles<128>(g, r); break;
    case 256: launch_tiles<256>(g, r); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "attention: head size");
    }
}
