/* gemm_mma.cuh - a tile's products by mma.sync, warp by warp, on every chip since sm_75.
 *
 * A warp reads its factors from shared memory with ldmatrix. gemm_tile.cuh includes this file, or
 * for sm_90a gemm_wgmma.cuh, which defines the same names. */
#ifndef CUDA_GEMM_MMA_CUH
#define CUDA_GEMM_MMA_CUH

enum { STAGED = 0 };                     /* weights go straight to registers */

/* Tokens of the largest tile of which two blocks fit an SM's shared memory. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900)
enum { TWO_BLOCKS_TOKENS = 128 };
#else
enum { TWO_BLOCKS_TOKENS = 64 };
#endif

/* How eight warps share a tile. */
template <int TOKENS> struct layout {
    enum {
        blocks = TOKENS <= (int)TWO_BLOCKS_TOKENS ? 2 : 1,       /* on one multiprocessor */
        warps_m = TOKENS >= 128 ? 2 : 4, warps_n = 8 / warps_m,
        rows = ROWS / warps_m, tokens = TOKENS / warps_n,        /* of a warp */
        m = rows / 16, n = tokens / 8,                           /* a warp's products of 16 by 8 */
        row_step = 16
    };
    static_assert(rows % 32 == 0 && tokens % 16 == 0, "pairs of rows, pairs of products");

    static __device__ __forceinline__ int first_row(int warp, int lane)
    {
        return warp / warps_n * rows + lane / 4;
    }
    static __device__ __forceinline__ int first_token(int warp, int lane)
    {
        return warp % warps_n * tokens + lane % 4 * 2;
    }
};

/* Does nothing: a barrier makes writes to shared memory visible to mma. Compare gemm_wgmma.cuh. */
static __device__ __forceinline__ void show_to_units(void) {}

template <int TOKENS> struct multiplier {
    typedef layout<TOKENS> L;
    typedef float sums[L::m][L::n][4];
    const uint8_t *w, *x;                /* buffer 0 of two */
    unsigned w_at, x_at;                 /* offset of the lane's row of the first ldmatrix */

    __device__ __forceinline__ multiplier(const uint8_t *w_, const uint8_t *x_) : w(w_), x(x_)
    {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        w_at = swizzled(warp / L::warps_n * L::rows + lane % 16, lane / 16);
        x_at = swizzled(warp % L::warps_n * L::tokens + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }

    /* Multiplies one step, from buffers number `now`. */
    __device__ __forceinline__ void begin(sums &sum, int now) const
    {
        const uint8_t *const rows = w + now * ROWS * ROW_BYTES;
        const uint8_t *const tokens = x + now * TOKENS * ROW_BYTES;
        #pragma unroll
        for (unsigned k = 0; k < STEP / 16; k++) {
            uint32_t a[L::m][4], b[L::n / 2][4];
            #pragma unroll
            for (int j = 0; j < L::n / 2; j++)
                load_tiles(b[j], tokens + (x_at ^ 32 * k) + j * 16 * ROW_BYTES);
            #pragma unroll
            for (int i = 0; i < L::m; i++) {
                load_tiles(a[i], rows + (w_at ^ 32 * k) + i * 16 * ROW_BYTES);
                #pragma unroll
                for (int j = 0; j < L::n; j++)
                    mma_16x8x16(sum[i][j], a[i], b[j / 2] + 2 * (j % 2));
            }
        }
    }

    __device__ __forceinline__ void end(sums &) const {}
};

#endif
