/* gemm_wgmma.cuh - a tile's products by wgmma, Hopper's instruction that reads both factors from
 * shared memory while the threads unpack the next weights. gemm_tile.cuh includes it for sm_90a.
 *
 * Four warps make a group. The two groups divide a tile so that wgmma reads the fewest bytes. Up to
 * 128 tokens: each group multiplies 64 rows by all tokens. 256 tokens: each multiplies all 128
 * rows, as two products of 64, by half of the tokens. A tile is stored as [row, 64] with chunk c of
 * 16 bytes at c ^ (row % 8). For wgmma this is a K-major matrix with 128-byte swizzle, which must
 * begin at a multiple of 1,024. */
#ifndef CUDA_GEMM_WGMMA_CUH
#define CUDA_GEMM_WGMMA_CUH

enum { STAGED = 1 };                     /* raw weights go through shared memory */

/* How eight warps share a tile. Of a product's 64 rows a warp has 16 in its registers. */
template <int TOKENS> struct layout {
    enum {
        blocks = TOKENS <= 128 ? 2 : 1,                          /* on one multiprocessor */
        groups_m = TOKENS <= 128 ? 2 : 1,
        tokens = TOKENS / (2 / groups_m),                        /* of a group */
        m = 2 / groups_m, n = tokens / 8, row_step = m == 1 ? 8 : 64
    };
    static __device__ __forceinline__ int first_row(int warp, int lane)
    {
        return (groups_m == 2 ? warp * 16 : warp % 4 * 16) + lane / 4;
    }
    static __device__ __forceinline__ int first_token(int warp, int lane)
    {
        return (groups_m == 2 ? 0 : warp / 4 * tokens) + lane % 4 * 2;
    }
};

/* wgmma's descriptor of a matrix: address, and 1,024 bytes for 8 rows. */
static __device__ __forceinline__ uint64_t matrix_at(const uint8_t *tile)
{
    const uint64_t at = __cvta_generic_to_shared(tile);
    return (at & 0x3FFFF) >> 4 | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* Starts d[64, 8n] += w[64, 16] x[8n, 16]^T; n is 4, 8 or 16. */
#define D1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define D2(j) D1(j), D1(j + 1)
#define D4(j) D2(j), D2(j + 2)
#define D8(j) D4(j), D4(j + 4)
#define D16(j) D8(j), D8(j + 8)
#define NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES32 NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES64 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"       \
                        ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define BEGIN(N, NAMES, W, X, SUMS)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" NAMES "}, " W ", " X  \
                 ", 1, 1, 1, 0, 0;" : SUMS : "l"(w), "l"(x) : "memory")

template <int n>
static __device__ __forceinline__ void product_begin(float (&d)[n][4], uint64_t w, uint64_t x)
{
    if constexpr (n == 4) BEGIN("32", NAMES16, "%16", "%17", D4(0));
    else if constexpr (n == 8) BEGIN("64", NAMES32, "%32", "%33", D8(0));
    else BEGIN("128", NAMES64, "%64", "%65", D16(0));
}

#undef D1
#undef D2
#undef D4
#undef D8
#undef D16
#undef NAMES16
#undef NAMES32
#undef NAMES64
#undef BEGIN

/* Makes this thread's writes to shared memory visible to wgmma after the block's next barrier. */
static __device__ __forceinline__ void show_to_units(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int TOKENS> struct multiplier {
    typedef layout<TOKENS> L;
    typedef float sums[L::m][L::n][4];
    uint64_t rows, tokens;               /* descriptors of buffers 0 */

    /* w, x: buffer 0 of two. */
    __device__ __forceinline__ multiplier(const uint8_t *w, const uint8_t *x)
    {
        /* a shuffle, so that the compiler knows that the value is uniform in a warp */
        const unsigned group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
        rows = matrix_at(L::groups_m == 2 ? w + group * 64 * ROW_BYTES : w);
        tokens = matrix_at(L::groups_m == 2 ? x : x + group * L::tokens * ROW_BYTES);
    }

    /* Starts one step. Until end() no thread may write to buffers number `now` or read sum. */
    __device__ __forceinline__ void begin(sums &sum, int now) const
    {
        const uint64_t w = rows + (uint64_t)(now * ROWS * ROW_BYTES / 16);
        const uint64_t x = tokens + (uint64_t)(now * TOKENS * ROW_BYTES / 16);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            #pragma unroll
            for (int i = 0; i < L::m; i++)
                product_begin(sum[i], w + (uint64_t)(i * 64 * ROW_BYTES + 32 * k) / 16,
                              x + (uint64_t)(32 * k) / 16);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }

    __device__ __forceinline__ void end(sums &sum) const
    {
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        #pragma unroll
        for (int i = 0; i < L::m; i++)
            #pragma unroll
            for (int j = 0; j < L::n; j++)
                #pragma unroll
                for (int e = 0; e < 4; e++) asm volatile("" : "+f"(sum[i][j][e]) :: "memory");
    }
};

#endif
