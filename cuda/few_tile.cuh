/* few_tile.cuh - rows of quantised weights times a tile of up to eight vectors, by the arithmetic
 * contract, on integer tensor cores. The bits are those of dot.cuh. The kernels of contract_few.cuh
 * and matvec.cuh include this.
 *
 * A block of eight warps computes units of ROWS rows. Warp w computes blocks w, w + 8, ... of all
 * rows: it is the w-th of the contract's eight lanes and needs one sum for each of its outputs. At
 * the end of the columns the warps' sums are folded as dot.cuh folds its lanes.
 *
 * Weights and int8 forms (activations.cuh) arrive in shared memory in the background, a chunk of
 * columns at a time and across unit ends. A chunk has
 *
 *   offsets  [ROWS] where a row's groups begin in rows
 *   rows     [ROWS] a row's groups, with up to 15 bytes before them if they are not aligned
 *   tokens   [8] first halves of the codes, second halves, scales, sums of the halves
 *
 * Threads unpack the weights of tensor cores' operands from there. A warp computes the scales of its
 * block of each row once, in memory of its own: [kind, ROWS], those of a thread are neighbours.
 *
 * Tokens that a tile does not have are not copied: their columns are undefined and ignored. */
#ifndef CUDA_FEW_TILE_CUH
#define CUDA_FEW_TILE_CUH

#include "cuda/activations.cuh"
#include "cuda/contract_mma.cuh"
#include "cuda/few_codes.cuh"

template <int TYPE, int ROWS> struct few_layout {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    enum { stages = few_stages(ROWS, 75) };
#else
    enum { stages = few_stages(ROWS, 80) };
#endif
    enum {
        groups = few_groups(TYPE), blocks = 8 * groups, group_bytes = format<TYPE>::group_bytes,
        row_pitch = few_row_pitch(TYPE), token_pitch = few_token_pitch(TYPE),
        rows_at = ROWS * 4, tokens_at = rows_at + ROWS * row_pitch,
        chunk_bytes = few_chunk_bytes(TYPE, ROWS), warp_bytes = few_warp_bytes(TYPE, ROWS),
        sum_pitch = few_sum_pitch(ROWS)
    };
    static_assert(chunk_bytes % 16 == 0 && warp_bytes % 16 == 0, "alignment");
};

/* What a block computes: units first, first + step, ... below end of rows with n_block blocks. The
 * columns are cut into n_part parts, whose sums are added in order: chunks i * n / n_part .. of n. */
typedef struct few_work {
    int first, step, end;
    int n_block, row_bytes, n_part;
} few_work;

/* row_of(unit, r): address of row r of a unit. vector_of(unit, t): int8 form of token t; NULL: there
 * is none. finish(unit, sum): called by all threads, sum [EACH] for token threadIdx.x / 32: of rows
 * row_of_sum(i); a thread has none with 16 rows and a lane >= 16. finish may synchronise and then
 * use spare_sums.
 *
 * PAIRED, with 64 rows: a thread's two rows are r and r + 8, with eight rows of one matrix and eight
 * of another in turn. */
template <int TYPE, int ROWS, bool PAIRED> struct few_tile {
    typedef few_layout<TYPE, ROWS> L;
    typedef contract_traits<TYPE> T;
    enum {
        TILES = ROWS / 16,               /* of a tensor core's product */
        EACH = ROWS == 64 ? 2 : 1,       /* rows whose scales a lane makes, and that it finishes */
        COPIERS = FEW_THREADS / ROWS     /* threads that copy a row */
    };
    static_assert(!PAIRED || ROWS == 64, "a lane has both rows");
    typedef float out_sums[TILES][4];    /* [i]: rows 16 i + g, + 8; tokens 2t, + 1 */
    few_work k;
    uint8_t *chunks, *own;               /* in shared memory; own: this warp's */
    float *spare_sums;                   /* [8 tokens][L::sum_pitch]: of all threads */
    int n_chunk, magic;
    int unit, chunk, stage;              /* of the next copy */
    const uint8_t *row, *vector;         /* that this thread copies */

    static __device__ __forceinline__ int row_of_sum(int i)
    {
        const int lane = threadIdx.x % 32;
        return PAIRED ? lane / 8 * 16 + lane % 8 + 8 * i : lane + 32 * i;
    }

    template <typename RowOf, typename VectorOf>
    __device__ __forceinline__ void aim(RowOf row_of, VectorOf vector_of)
    {
        if (unit >= k.end) return;
        row = row_of(unit, (int)threadIdx.x / COPIERS);
        vector = vector_of(unit, (int)threadIdx.x / 32);
    }

    __device__ __forceinline__ void copy_rows(int chunk_, int stage_) const
    {
        const int from = chunk_ * L::groups * L::group_bytes;
        const int skip = (int)((uintptr_t)(row + from) & 15u);
        const int bytes = min((int)(L::groups * L::group_bytes), k.row_bytes - from);
        const uint8_t *at = row + from - skip;
        const int r = threadIdx.x / COPIERS;
        uint8_t *to = chunks + stage_ * L::chunk_bytes + L::rows_at + r * L::row_pitch;
        if (threadIdx.x % COPIERS == 0)
            ((uint32_t *)(chunks + stage_ * L::chunk_bytes))[r] =
                (uint32_t)(L::rows_at + r * L::row_pitch + skip);
        #pragma unroll
        for (int c = 0; c < L::row_pitch / 16; c += COPIERS) {
            const int i = 16 * (c + (int)threadIdx.x % COPIERS);
            if (i < skip + bytes) copy16(to + i, at + i);
        }
    }

    __device__ __forceinline__ void copy_tokens(int chunk_, int stage_) const
    {
        const int first = chunk_ * L::blocks, n = min((int)L::blocks, k.n_block - first);
        uint8_t *to = chunks + stage_ * L::chunk_bytes + L::tokens_at +
                      threadIdx.x / 32 * L::token_pitch;
        if (!vector) return;
        for (int i = threadIdx.x % 32; i < 2 * n; i += 32) {
            const int h = i >= n, j = i - h * n;
            copy16(to + 16 * (h * L::blocks + j), vector + 16 * (h * k.n_block + first + j));
            copy4(to + 32 * L::blocks + 4 * (h * L::blocks + j),
                  vector + 32 * k.n_block + 4 * (h * k.n_block + first + j));
        }
    }

    /* Requests a chunk. has_rows: its rows are requested already. */
    template <typename RowOf, typename VectorOf>
    __device__ __forceinline__ void fetch(RowOf row_of, VectorOf vector_of, bool has_rows)
    {
        if (unit < k.end) {
            if (!has_rows) copy_rows(chunk, stage);
            copy_tokens(chunk, stage);
            if (++chunk == n_chunk) {
                chunk = 0;
                unit += k.step;
                aim(row_of, vector_of);
            }
        }
        stage = stage + 1 == L::stages ? 0 : stage + 1;
        copy_commit();                   /* even if empty, because copy_wait counts groups */
    }

    /* Where a row's scale is among a warp's: those of a thread are neighbours. */
    static __device__ __forceinline__ int scale_place(int r)
    {
        return r % 8 * (2 * TILES) + r / 16 * 2 + r / 8 % 2;
    }

    /* Makes the scales of block l of a group of each row. True: some t * MAGIC is not finite. */
    __device__ __forceinline__ bool make_scales(const uint8_t *from, int group, int l) const
    {
        float *scales = (float *)own;
        bool odd = false;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int r = threadIdx.x % 32 + 32 * i;
            if (ROWS < 32 && r >= ROWS) break;
            weight_parts p;
            few_scales<TYPE>(p, from + ((const uint32_t *)from)[r] + group * L::group_bytes, l);
            odd |= contract_store_scales<TYPE>(scales + scale_place(r), ROWS, p);
        }
        return __any_sync(~0u, odd);
    }

    /* The tokens' operand: first and second halves of a block's codes. For MXFP4 in the order of
     * few_codes, and negated. */
    static __device__ __forceinline__ void order_mxfp4(uint32_t (&b)[2], uint32_t (&minus)[2])
    {
        const uint32_t first = b[0], second = b[1];
        b[0] = __byte_perm(first, second, 0x5140);
        b[1] = __byte_perm(first, second, 0x7362);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t turned = ~b[i];
            minus[i] = ((turned & 0x7F7F7F7Fu) + 0x01010101u) ^ (turned & 0x80808080u);
        }
    }

    /* Adds the products of block l of group G of the rows with block j of a chunk's tokens. at: where
     * the thread reads its rows. */
    template <int G, bool ODD>
    __device__ __forceinline__ void multiply(out_sums &sum, const uint32_t (&at)[2 * TILES],
                                             const uint8_t *tokens, int l, int j) const
    {
        enum { offset = few_codes<TYPE>::offset };
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const uint8_t *codes = tokens + g * L::token_pitch + 16 * j + 4 * t;
        uint32_t b[2] = { *(const uint32_t *)codes, *(const uint32_t *)(codes + 16 * L::blocks) };
        uint32_t minus_b[2];
        float ws[T::row_floats][2 * TILES], xs[T::token_floats][2];
        int begin[2][2];                 /* of an operand's result: [half][token] */
        if constexpr (TYPE == QT_MXFP4) order_mxfp4(b, minus_b);
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint8_t *x = tokens + (2 * t + e) * L::token_pitch + 32 * L::blocks + 4 * j;
            xs[0][e] = *(const float *)x;
            begin[0][e] = begin[1][e] = magic;
            if constexpr (T::token_floats > 1 || offset > 0) {
                const int s = *(const int *)(x + 4 * L::blocks);
                const int low = (int)(int16_t)s, high = s >> 16;
                if constexpr (T::token_floats > 1)
                    xs[1][e] = (float)(T::one_scale ? low + high : low);
                if constexpr (T::token_floats > 2) xs[2][e] = (float)high;
                begin[0][e] -= offset * (T::one_scale ? low + high : low);
                begin[1][e] -= offset * high;
            }
        }
        #pragma unroll
        for (int i = 0; i < T::row_floats; i++)
            #pragma unroll
            for (int r = 0; r < 2 * TILES; r += 2) {
                const float2 two = *(const float2 *)((const float *)own + ROWS * i + 2 * TILES * g +
                                                     r);
                ws[i][r] = two.x;
                ws[i][r + 1] = two.y;
            }
        #pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t a[4];
            int low[4], high[4];
            if constexpr (TYPE == QT_MXFP4) {
                uint32_t minus_a[4];
                #pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t plus[2], minus[2];
                    few_codes<TYPE>::template take<G>(plus, minus, at[2 * i + h], E2M1_LOW,
                                                      E2M1_HIGH);
                    a[h] = plus[0], a[h + 2] = plus[1];
                    minus_a[h] = minus[0], minus_a[h + 2] = minus[1];
                }
                mma_block(low, a, b, magic, magic);
                mma_add(low, minus_a, minus_b);
            } else {
                #pragma unroll
                for (int h = 0; h < 2; h++)
                    few_codes<TYPE>::template take<G>(a[h], a[h + 2], at[2 * i + h], l, t);
                if (T::one_scale) {
                    mma_block<(offset > 0)>(low, a, b, begin[0][0], begin[0][1]);
                } else {
                    mma_half<(offset > 0)>(low, a, b[0], begin[0][0], begin[0][1]);
                    mma_half<(offset > 0)>(high, a + 2, b[1], begin[1][0], begin[1][1]);
                }
            }
            const float *const folds = ws[T::one_scale ? 0 : 1] + 2 * i;
            const float nt[2] = { __fmul_rn(folds[0], -MAGIC), __fmul_rn(folds[1], -MAGIC) };
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = 2 * i + e / 2;
                const float v = contract_value<TYPE, ODD>(low[e], T::one_scale ? 0 : high[e], ws, r,
                                                          xs, e % 2, nt[e / 2]);
                sum[i][e] = __fmaf_rn(xs[0][e % 2], v, sum[i][e]);
            }
        }
    }

    /* Group G of a chunk, if the columns reach that far, and the groups after it. */
    template <int G>
    __device__ __forceinline__ void add_groups(out_sums &sum, const uint32_t (&at)[2 * TILES],
                                               const uint8_t *from, int left, int l) const
    {
        const int j = 8 * G + l;
        if (j >= left) return;
        const bool odd = make_scales(from, G, l);
        __syncwarp();
        if (T::folded && odd) multiply<G, true>(sum, at, from + L::tokens_at, l, j);
        else multiply<G, false>(sum, at, from + L::tokens_at, l, j);
        __syncwarp();
        if constexpr (G + 1 < L::groups) add_groups<G + 1>(sum, at, from, left, l);
    }

    /* Folds the warps' sums, adds them to those of the parts before, and sets them to 0. */
    __device__ __forceinline__ void fold(float (&out)[EACH], out_sums &sum)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        float *to = (float *)own;
        #pragma unroll
        for (int i = 0; i < TILES; i++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                to[(2 * t + e % 2) * L::sum_pitch + 16 * i + 8 * (e / 2) + g] = sum[i][e];
                sum[i][e] = 0.0f;
            }
        __syncthreads();
        const float *from = spare_sums + threadIdx.x / 32 * L::sum_pitch;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            float l[FEW_WARPS];
            const int r = row_of_sum(i);
            if (ROWS < 32 && r >= ROWS) break;
            #pragma unroll
            for (int w = 0; w < FEW_WARPS; w++) l[w] = from[w * (L::warp_bytes / 4) + r];
            #pragma unroll
            for (int w = 0; w < 4; w++) l[w] = __fadd_rn(l[w], l[w + 4]);
            out[i] = __fadd_rn(out[i], __fadd_rn(__fadd_rn(__fadd_rn(l[0], l[1]),
                                                           __fadd_rn(l[2], l[3])), 0.0f));
        }
    }

    /* wait: called after the first rows are requested, before the first vector is. */
    template <typename RowOf, typename VectorOf, typename Wait>
    __device__ __forceinline__ void begin(const few_work &work, uint8_t *shared, int magic_bits,
                                          RowOf row_of, VectorOf vector_of, Wait wait)
    {
        uint8_t *all = shared + L::stages * L::chunk_bytes;
        k = work;
        chunks = shared;
        own = all + warp_index() * L::warp_bytes;
        spare_sums = (float *)all;
        magic = magic_bits;
        n_chunk = (k.n_block + L::blocks - 1) / L::blocks;
        unit = k.first;
        chunk = stage = 0;
        aim(row_of, vector_of);
        const int early = unit < k.end ? min((int)L::stages - 1, n_chunk) : 0;
        #pragma unroll 1
        for (int i = 0; i < early; i++) copy_rows(i, i);
        wait();
        #pragma unroll 1
        for (int i = 0; i < L::stages - 1; i++) fetch(row_of, vector_of, i < early);
    }

    template <typename RowOf, typename VectorOf, typename Finish>
    __device__ __forceinline__ void run(RowOf row_of, VectorOf vector_of, Finish finish)
    {
        const int warp = warp_index(), lane = threadIdx.x % 32;
        out_sums sum = {};
        int now = 0;
        #pragma unroll 1
        for (int u = k.first; u < k.end; u += k.step) {
            float out[EACH] = {};
            int part = 1;
            #pragma unroll 1
            for (int c = 0; c < n_chunk; c++) {
                /* the chunk has arrived, and no thread still reads the memory of the next copy */
                copy_wait<(L::stages > 1 ? L::stages - 2 : 0)>();
                __syncthreads();
                fetch(row_of, vector_of, false);
                if (L::stages == 1) __syncthreads();
                const uint8_t *from = chunks + now * L::chunk_bytes;
                uint32_t at[2 * TILES];
                #pragma unroll
                for (int i = 0; i < 2 * TILES; i++)
                    at[i] = few_codes<TYPE>::where(
                        (uint32_t)__cvta_generic_to_shared(from) +
                            ((const uint32_t *)from)[8 * i + lane / 4], warp, lane % 4);
                add_groups<0>(sum, at, from, k.n_block - c * L::blocks, warp);
                now = now + 1 == L::stages ? 0 : now + 1;
                if (c + 1 < part * n_chunk / k.n_part) continue;
                while (c + 1 >= part * n_chunk / k.n_part) part++;
                fold(out, sum);          /* the next chunk begins with a synchronisation */
            }
            finish(u, out);
        }
    }
};

#endif
