/* dot.cuh - rows of quantised weights times one or a few activations, by the arithmetic contract.
 *
 * A warp takes a unit: four pairs of rows, eight threads for each pair, one thread for each of the
 * contract's eight lanes. Bytes of weights pass through shared memory of the warp's own, two pieces
 * ahead of the arithmetic, across the ends of units: they arrive by 16-byte copies that any address
 * of a row allows, and are taken apart from there. Warps never wait for each other.
 *
 * Order: thread l of eight sums blocks l, l + 8, ... one after the other; then lanes are folded as
 * (0 + 4), (1 + 5), ...: by shuffles over 4, 1 and 2. */
#ifndef CUDA_DOT_CUH
#define CUDA_DOT_CUH

#include "cuda/acts.cuh"
#include "cuda/blocks.cuh"

enum { UNIT_ROWS = 8, UNIT_STAGES = 3 };

/* WIDE: pieces of about half a kilobyte a row instead of a quarter: more bytes under way when few
 * warps share an SM. */
template <int TYPE, bool WIDE> struct piece_of {
    enum {
        limit = WIDE ? 576 : 288,
        groups = format<TYPE>::group_bytes > limit ? 1 : limit / format<TYPE>::group_bytes,
        bytes = groups * format<TYPE>::group_bytes,
        pitch = (bytes + 15 + 15) / 16 * 16,
        stage = UNIT_ROWS * pitch,
        warp_bytes = UNIT_STAGES * stage,        /* shared memory of a warp */
    };
};

typedef struct row_pair {                /* of this thread */
    const uint8_t *a, *b;
} row_pair;

/* ---- fetching --------------------------------------------------------------------------------- */

template <int TYPE, bool WIDE> struct weight_stream {
    typedef piece_of<TYPE, WIDE> P;
    uint8_t *stage;                      /* the warp's own */
    int row_bytes, n_piece;
    int slot;                            /* of the next piece to be fetched */

    __device__ __forceinline__ void begin(uint8_t *shared, int row_bytes_)
    {
        stage = shared;
        row_bytes = row_bytes_;
        n_piece = (row_bytes + P::bytes - 1) / P::bytes;
        slot = 0;
    }

    __device__ __forceinline__ void fetch_row(uint8_t *to, const uint8_t *from, int bytes)
    {
        const uint8_t *first = (const uint8_t *)((uintptr_t)from & ~(uintptr_t)15);
        const int n = (int)(from + bytes - first + 15) / 16;
        for (int i = threadIdx.x % 8; i < n; i += 8) copy16(to + 16 * i, first + 16 * i);
    }

    /* Piece i of a pair of rows. */
    __device__ __forceinline__ void fetch(const row_pair &rows, int i)
    {
        const int bytes = min((int)P::bytes, row_bytes - i * P::bytes);
        uint8_t *to = stage + slot * P::stage + (threadIdx.x % 32 / 8) * 2 * P::pitch;
        fetch_row(to, rows.a + i * P::bytes, bytes);
        fetch_row(to + P::pitch, rows.b + i * P::bytes, bytes);
        copy_commit();
        slot = slot + 1 == UNIT_STAGES ? 0 : slot + 1;
    }
};

/* ---- one block --------------------------------------------------------------------------------- */

typedef struct act_block {
    uint32_t q[8];                       /* 32 int8 */
    float dx;
    int s;                               /* sums of the halves, 16 bits each */
} act_block;

static __device__ __forceinline__ act_block act_block_at(const acts_view &x, int j)
{
    const uint4 a = *(const uint4 *)(x.first + 16 * j), b = *(const uint4 *)(x.second + 16 * j);
    return { { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w }, x.dx[j], x.s[j] };
}

template <int TYPE>
static __device__ __forceinline__ float value_of(const uint8_t *group, int l, const act_block &x)
{
    weight_parts p;
    unpack<TYPE>(p, group, l);
    return block_value<TYPE>(p, x.q, (int)(int16_t)x.s, x.s >> 16);
}

/* E2M1 by two looks into a table of magnitudes with the codes themselves as selectors: a set sign
 * bit gives 0, so positive and negative codes are summed apart. Codes lie e0, e16, e1, e17, ...:
 * the activations are put in that order. */
template <>
__device__ __forceinline__ float value_of<QT_MXFP4>(const uint8_t *group, int l, const act_block &x)
{
    const uint8_t *b = group + 17 * l;
    const uint32_t exponent = b[0];
    uint32_t codes[4];
    int plus = 0, minus = 0;

    load_words(codes, b + 1);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t q0 = __byte_perm(x.q[i], x.q[4 + i], 0x5140);
        const uint32_t q1 = __byte_perm(x.q[i], x.q[4 + i], 0x7362);
        const uint32_t turned = codes[i] ^ 0x88888888u;
        plus = dot4(pick_bytes(E2M1_LOW, E2M1_HIGH, codes[i]), q0, plus);
        minus = dot4(pick_bytes(E2M1_LOW, E2M1_HIGH, turned), q0, minus);
        plus = dot4(pick_bytes(E2M1_LOW, E2M1_HIGH, codes[i] >> 16), q1, plus);
        minus = dot4(pick_bytes(E2M1_LOW, E2M1_HIGH, turned >> 16), q1, minus);
    }
    return __fmul_rn(__uint_as_float(exponent << 23), (float)(plus - minus));
}

/* The codes' upper and lower bits are multiplied apart and their offset of 32 taken out by the sums
 * of the activations: exact integers all of them. One shift brings words to the address and bits to
 * their place. */
template <>
__device__ __forceinline__ float value_of<QT_Q6_K>(const uint8_t *group, int l, const act_block &x)
{
    const int half = l / 4, part = l % 4;
    const uint8_t *low_at = group + 64 * half + 32 * (part % 2);
    const uint8_t *high_at = group + offsetof(block_q6_k, high) + 32 * half;
    const int8_t *scales = (const int8_t *)group + offsetof(block_q6_k, scales) + 2 * l;
    const unsigned away = ((unsigned)(uintptr_t)group & 3u) * 8u;        /* 0 or 16, for both */
    const uint32_t *low = (const uint32_t *)((uintptr_t)low_at & ~(uintptr_t)3);
    const uint32_t *high = (const uint32_t *)((uintptr_t)high_at & ~(uintptr_t)3);
    const unsigned low_shift = away + 4u * (part / 2), high_shift = away + 2u * part;
    uint32_t low_word = low[0], high_word = high[0];
    int low_sum[2] = { 0, 0 }, high_sum[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t low_next = low[i + 1], high_next = high[i + 1];
        const uint32_t a = __funnelshift_r(low_word, low_next, low_shift) & 0x0F0F0F0Fu;
        const uint32_t b = __funnelshift_r(high_word, high_next, high_shift) & 0x03030303u;
        low_sum[i / 4] = dot4(a, x.q[i], low_sum[i / 4]);
        high_sum[i / 4] = dot4(b, x.q[i], high_sum[i / 4]);
        low_word = low_next;
        high_word = high_next;
    }
    const int first = low_sum[0] + 16 * high_sum[0] - 32 * (int)(int16_t)x.s;
    const int second = low_sum[1] + 16 * high_sum[1] - 32 * (x.s >> 16);
    return __fmul_rn(half_at(group + offsetof(block_q6_k, d)),
                     (float)(scales[0] * first + scales[1] * second));
}

/* ---- units -------------------------------------------------------------------------------------- */

/* lanes to the row's sum, in every one of the eight threads */
static __device__ __forceinline__ float fold_lanes(float v)
{
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 4));
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
    return __fadd_rn(v, 0.0f);
}

/* Runs over the units first, first + step, ... below end. rows_of(unit) gives this thread's pair;
 * what a unit's rows have become goes to emit(unit, sums of row a, sums of row b) for up to TOKENS
 * activations (TOKENS values, of which n_token are meant). Call begin before anything that this may
 * overlap with: it starts the first copies. */
template <int TYPE, bool WIDE, int TOKENS> struct unit_runner {
    typedef piece_of<TYPE, WIDE> P;
    weight_stream<TYPE, WIDE> stream;
    int fetch_unit, fetch_piece, step, end;
    row_pair fetch_rows;

    template <typename RowsOf> __device__ __forceinline__ void fetch_next(RowsOf rows_of)
    {
        if (fetch_unit >= end) {
            copy_commit();               /* keeps the count of groups */
            return;
        }
        stream.fetch(fetch_rows, fetch_piece);
        if (++fetch_piece < stream.n_piece) return;
        fetch_piece = 0;
        fetch_unit += step;
        if (fetch_unit < end) fetch_rows = rows_of(fetch_unit);
    }

    template <typename RowsOf>
    __device__ __forceinline__ void begin(uint8_t *shared, int row_bytes, int first, int step_,
                                          int end_, RowsOf rows_of)
    {
        stream.begin(shared, row_bytes);
        fetch_unit = first;
        fetch_piece = 0;
        step = step_;
        end = end_;
        if (first < end) fetch_rows = rows_of(first);
        for (int i = 0; i < UNIT_STAGES - 1; i++) fetch_next(rows_of);
    }

    /* x_of(unit): its activations, pitch bytes apart, n_block blocks each. */
    template <typename RowsOf, typename XOf, typename Emit>
    __device__ __forceinline__ void run(int first, XOf x_of, int pitch, int n_token, int n_block,
                                        RowsOf rows_of, Emit emit)
    {
        const int l = threadIdx.x % 8;
        int slot = 0;
        for (int unit = first; unit < end; unit += step) {
            const row_pair rows = rows_of(unit);
            const void *x = x_of(unit);
            float a[TOKENS] = {}, b[TOKENS] = {};
            for (int i = 0; i < stream.n_piece; i++) {
                copy_wait<UNIT_STAGES - 2>();
                __syncwarp();
                const uint8_t *from = stream.stage + slot * P::stage +
                                      (threadIdx.x % 32 / 8) * 2 * P::pitch;
                const uint8_t *group_a = from + ((uintptr_t)(rows.a + i * P::bytes) & 15);
                const uint8_t *group_b = from + P::pitch +
                                         ((uintptr_t)(rows.b + i * P::bytes) & 15);
                fetch_next(rows_of);
                #pragma unroll
                for (int n = 0; n < P::groups; n++) {
                    const int j = (i * P::groups + n) * 8 + l;
                    if (j < n_block)
                        add(a, b, group_a + n * format<TYPE>::group_bytes,
                            group_b + n * format<TYPE>::group_bytes, l, x, pitch, n_token, n_block,
                            j);
                }
                slot = slot + 1 == UNIT_STAGES ? 0 : slot + 1;
            }
            #pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                a[t] = fold_lanes(a[t]);
                b[t] = fold_lanes(b[t]);
            }
            emit(unit, a, b);
        }
    }

    __device__ __forceinline__ void add(float (&a)[TOKENS], float (&b)[TOKENS],
                                        const uint8_t *group_a, const uint8_t *group_b, int l,
                                        const void *x, int pitch, int n_token, int n_block, int j)
    {
        if (TOKENS == 1) {
            const act_block q = act_block_at(acts_at(x, n_block), j);
            a[0] = __fmaf_rn(q.dx, value_of<TYPE>(group_a, l, q), a[0]);
            b[0] = __fmaf_rn(q.dx, value_of<TYPE>(group_b, l, q), b[0]);
            return;
        }
        weight_parts pa, pb;
        unpack<TYPE>(pa, group_a, l);
        unpack<TYPE>(pb, group_b, l);
        #pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= n_token) break;
            const act_block q = act_block_at(acts_at((const uint8_t *)x + t * pitch, n_block), j);
            const int low = (int)(int16_t)q.s, high = q.s >> 16;
            a[t] = __fmaf_rn(q.dx, block_value<TYPE>(pa, q.q, low, high), a[t]);
            b[t] = __fmaf_rn(q.dx, block_value<TYPE>(pb, q.q, low, high), b[t]);
        }
    }
};

/* ---- float weights: one row for a warp, weight i in lane i % 32 --------------------------------- */

template <int TYPE> static __device__ __forceinline__ float weight_at(const uint8_t *row, int i);
template <> __device__ __forceinline__ float weight_at<QT_F32>(const uint8_t *row, int i)
{
    return ((const float *)row)[i];
}
template <> __device__ __forceinline__ float weight_at<QT_F16>(const uint8_t *row, int i)
{
    return __half2float(((const __half *)row)[i]);
}
template <> __device__ __forceinline__ float weight_at<QT_BF16>(const uint8_t *row, int i)
{
    return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
}

static __device__ __forceinline__ float fold_float_lanes(float v)
{
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 16));
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 8));
    return fold_lanes(v);
}

/* x in shared memory, pitch floats apart. The row's sums, in all lanes. */
template <int TYPE, int TOKENS>
static __device__ __forceinline__ void float_row(float (&sum)[TOKENS], const uint8_t *row,
                                                 const float *x, int pitch, int n_token, int cols)
{
    const int lane = threadIdx.x % 32;
    int i = lane;
    for (int t = 0; t < TOKENS; t++) sum[t] = 0.0f;
    for (; i + 15 * 32 < cols; i += 16 * 32) {           /* many loads before the first use */
        float w[16];
        #pragma unroll
        for (int k = 0; k < 16; k++) w[k] = weight_at<TYPE>(row, i + 32 * k);
        #pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= n_token) break;
            #pragma unroll
            for (int k = 0; k < 16; k++) sum[t] = __fmaf_rn(w[k], x[t * pitch + i + 32 * k], sum[t]);
        }
    }
    for (; i < cols; i += 32) {
        const float w = weight_at<TYPE>(row, i);
        #pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= n_token) break;
            sum[t] = __fmaf_rn(w, x[t * pitch + i], sum[t]);
        }
    }
    #pragma unroll
    for (int t = 0; t < TOKENS; t++) sum[t] = fold_float_lanes(sum[t]);
}

/* Asks for a row ahead of its use, into the second cache. */
static __device__ __forceinline__ void prefetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t at = (size_t)(threadIdx.x % 32) * 128; at < bytes; at += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(row + at));
}

template <int TYPE> struct is_float_type { enum { value = 0 }; };
template <> struct is_float_type<QT_F32> { enum { value = 1 }; };
template <> struct is_float_type<QT_F16> { enum { value = 1 }; };
template <> struct is_float_type<QT_BF16> { enum { value = 1 }; };

/* A value of 1.0f * scale, exactly; 1 for float types. */
template <int TYPE, int FLOAT = is_float_type<TYPE>::value> struct factor_of {
    static constexpr float value = format<TYPE>::factor;
};
template <int TYPE> struct factor_of<TYPE, 1> {
    static constexpr float value = 1.0f;
};

#endif
