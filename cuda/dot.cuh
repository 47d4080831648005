/* dot.cuh - rows of quantised weights times one or a few activations, by the arithmetic contract.
 *
 * A warp computes units: a unit is four pairs of rows, or four rows. Eight threads compute a row or
 * a pair, one thread for each of the contract's eight lanes. Copies bring weight bytes to the
 * warp's own shared memory, ahead of the arithmetic and across unit ends; threads unpack them from
 * there. Copies have 16 bytes, whatever the row's address; from sm_90 on, one bulk copy brings a
 * row's chunk. Warps never wait for each other.
 *
 * Order: thread l of eight sums blocks l, l + 8, ... in order. Then lanes are folded as (0 + 4),
 * (1 + 5), ...: by shuffles over 4, 1 and 2. Kernels of few tokens and of experts include this. */
#ifndef CUDA_DOT_CUH
#define CUDA_DOT_CUH

#include "cuda/activations.cuh"
#include "cuda/blocks.cuh"
#include "cuda/tma_copy.cuh"

/* A piece: one chunk (launch_shapes.h) of each of the unit's rows. */
template <int TYPE, int STAGES, int ROWS, bool BULK> struct piece_shape {
    enum {
        groups = chunk_groups(TYPE, STAGES, BULK),
        stages = BULK ? 2 : STAGES,
        bytes = chunk_bytes(TYPE, STAGES, BULK),
        room = chunk_row_bytes(TYPE, STAGES, BULK),
        pitch = chunk_pitch(TYPE, STAGES, BULK),
        stage = ROWS * pitch,
        warp_bytes = warp_bytes_of(TYPE, STAGES, ROWS, BULK),    /* shared memory of a warp */
    };
    static_assert((int)groups * (int)format<TYPE>::group_bytes == (int)bytes, "groups");
};

/* For kernels. Host code calls warp_bytes, which takes the kernels' architecture from chip. */
template <int TYPE, int STAGES, int ROWS = UNIT_ROWS, bool BULK = true>
struct piece_of : piece_shape<TYPE, STAGES, ROWS, BULK && COPIES_IN_BULK> {};

typedef struct row_pair {                /* this thread's rows */
    const uint8_t *a, *b;
} row_pair;

static __device__ __forceinline__ uint32_t low_bits(const uint8_t *p, uint32_t mask)
{
    return (uint32_t)(uintptr_t)p & mask;
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* Copies of one row into shared memory, for one of its eight threads. */
template <typename P> struct row_stream {
    enum { chunks = (P::room / 16 + 7) / 8 };    /* copies of 16 bytes by each of eight threads */
    const uint8_t *from;                 /* the next piece, at a multiple of 16 */
    uint32_t skip;                       /* bytes at `from` before the piece begins, 0 .. 15 */

    __device__ __forceinline__ void begin(const uint8_t *row, int first)
    {
        row += (size_t)first;
        skip = low_bits(row, 15);
        from = row - skip;
    }

    /* moves to the next piece */
    __device__ __forceinline__ void advance(void)
    {
        if (P::bytes % 16 == 0) {
            from += P::bytes;
        } else {
            const uint32_t ahead = skip + P::bytes;
            from += ahead & ~15u;
            skip = ahead & 15;
        }
    }

    /* called by all eight threads */
    __device__ __forceinline__ void fetch(uint32_t to, int bytes)
    {
        const int l = threadIdx.x % 8, n = ((int)skip + bytes + 15) / 16;
        #pragma unroll
        for (int i = 0; i < chunks; i++)
            if (l + 8 * i < n) copy16_to(to + 16 * l + 128 * i, from + 16 * l + 128 * i);
        advance();
    }

    /* called by one thread */
    __device__ __forceinline__ void fetch_in_bulk(uint32_t to, int bytes, uint32_t arrival)
    {
        const uint32_t n = (skip + (uint32_t)bytes + 15) & ~15u;
        arrival_expect(arrival, n);
        bulk_copy(to, from, n, arrival);
        advance();
    }
};

/* ---- one block ------------------------------------------------------------------------------- */

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

/* Reads block l of each group of a row from shared memory. A group begins a multiple of 4 bytes
 * after the previous one, except in Q6_K and Q3_K, so the first group's alignment holds for all. */
template <int TYPE> struct block_reader {
    uint32_t offset;                     /* of the row's first group in a stage */

    __device__ __forceinline__ void set(uint32_t row_offset, int l, uint32_t zero)
    {
        offset = row_offset;
        keep(offset);
        (void)l, (void)zero;
    }
    __device__ __forceinline__ shared_at group(uint32_t stage, int n) const
    {
        return { stage + offset + n * format<TYPE>::group_bytes };
    }
    __device__ __forceinline__ float value(uint32_t stage, int n, int l, const act_block &x) const
    {
        weight_parts p;
        unpack<TYPE>(p, group(stage, n), l);
        return block_value<TYPE>(p, x.q, (int)(int16_t)x.s, x.s >> 16);
    }
};

/* Whether kernels for one token store its activations woven, that is in the order of the type's
 * codes: e0, e16, e1, e17, ... */
template <int TYPE> struct is_woven { enum { value = 0 }; };
template <> struct is_woven<QT_MXFP4> { enum { value = 1 }; };

static __device__ __forceinline__ void weave(uint32_t (&q)[8])
{
    uint32_t woven[8];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        woven[2 * i] = __byte_perm(q[i], q[4 + i], 0x5140);
        woven[2 * i + 1] = __byte_perm(q[i], q[4 + i], 0x7362);
    }
    #pragma unroll
    for (int i = 0; i < 8; i++) q[i] = woven[i];
}

/* Copies block j of n of an int8 form from global to shared memory, woven. */
static __device__ __forceinline__ void copy_woven(uint8_t *to, const uint8_t *from, int j, int n)
{
    act_block x = act_block_at(acts_at(from, n), j);
    weave(x.q);
    ((uint4 *)to)[j] = make_uint4(x.q[0], x.q[1], x.q[2], x.q[3]);
    ((uint4 *)to)[n + j] = make_uint4(x.q[4], x.q[5], x.q[6], x.q[7]);
    ((float *)(to + 32 * n))[j] = x.dx;
    ((int *)(to + 36 * n))[j] = x.s;
}

/* Decodes E2M1 by two lookups in a table of magnitudes, with the codes as selectors. A set sign bit
 * makes the lookup 0, so positive and negative codes have sums of their own. */
template <> struct block_reader<QT_MXFP4> {
    uint32_t offset, codes_at, shift, low, high;

    __device__ __forceinline__ void set(uint32_t row_offset, int l, uint32_t zero)
    {
        const uint32_t codes = row_offset + 17 * l + 1;
        offset = row_offset;
        codes_at = codes & ~3u;
        shift = (codes & 3) * 8;
        low = E2M1_LOW + zero;
        high = E2M1_HIGH + zero;
        keep(offset), keep(codes_at), keep(shift), keep(low), keep(high);
    }
    __device__ __forceinline__ shared_at group(uint32_t stage, int n) const
    {
        return { stage + offset + 136 * n };
    }
    __device__ __forceinline__ float value(uint32_t stage, int n, int l, const act_block &x) const
    {
        const uint32_t at = stage + codes_at + 136 * n;
        const uint32_t exponent = (uint32_t)byte_at(group(stage, n) + 17 * l);
        uint32_t word = shared_word(at);
        int plus = 0, minus = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t next = shared_word(at + 4 * (i + 1));
            const uint32_t codes = __funnelshift_r(word, next, shift);
            const uint32_t turned = codes ^ 0x88888888u;
            const uint32_t q0 = x.q[2 * i], q1 = x.q[2 * i + 1];         /* woven */
            plus = dot4(pick_bytes(low, high, codes), q0, plus);
            minus = dot4(pick_bytes(low, high, turned), q0, minus);
            plus = dot4(pick_bytes(low, high, codes >> 16), q1, plus);
            minus = dot4(pick_bytes(low, high, turned >> 16), q1, minus);
            word = next;
        }
        return __fmul_rn(__uint_as_float(exponent << 23), (float)(plus - minus));
    }
};

template <> struct block_reader<QT_Q8_0> {
    uint32_t offset, codes_at, shift;

    __device__ __forceinline__ void set(uint32_t row_offset, int l, uint32_t zero)
    {
        const uint32_t codes = row_offset + 34 * l + 2;
        offset = row_offset;
        codes_at = codes & ~3u;
        shift = (codes & 3) * 8;
        keep(offset), keep(codes_at), keep(shift);
        (void)zero;
    }
    __device__ __forceinline__ shared_at group(uint32_t stage, int n) const
    {
        return { stage + offset + 272 * n };
    }
    __device__ __forceinline__ float value(uint32_t stage, int n, int l, const act_block &x) const
    {
        const uint32_t at = stage + codes_at + 272 * n;
        uint32_t word = shared_word(at);
        int low = 0, high = 0;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t next = shared_word(at + 4 * (i + 1));
            const uint32_t codes = __funnelshift_r(word, next, shift);
            if (i < 4) low = dot4(codes, x.q[i], low);
            else high = dot4(codes, x.q[i], high);
            word = next;
        }
        return __fmul_rn(half_at(group(stage, n) + 34 * l), (float)(low + high));
    }
};

/* Multiplies the upper and the lower bits of the codes by the activations separately, and subtracts
 * 32 times the sums of the activations for the codes' offset: all exact integers. One shift aligns
 * the words and moves the bits into position. */
template <> struct block_reader<QT_Q6_K> {
    uint32_t offset;

    __device__ __forceinline__ void set(uint32_t row_offset, int l, uint32_t zero)
    {
        offset = row_offset;
        keep(offset);
        (void)l, (void)zero;
    }
    __device__ __forceinline__ shared_at group(uint32_t stage, int n) const
    {
        return { stage + offset + 210 * n };
    }
    __device__ __forceinline__ float value(uint32_t stage, int n, int l, const act_block &x) const
    {
        const shared_at g = group(stage, n);
        const int half = l / 4, part = l % 4;
        const unsigned away = (g.address & 3u) * 8u;     /* 0 or 16 */
        const uint32_t low_at = (g.address & ~3u) + 64 * half + 32 * (part % 2);
        const uint32_t high_at =
            (g.address & ~3u) + (uint32_t)offsetof(block_q6_k, high) + 32 * half;
        const unsigned low_shift = away + 4u * (part / 2), high_shift = away + 2u * part;
        uint32_t low = shared_word(low_at), high = shared_word(high_at);
        int low_sum[2] = { 0, 0 }, high_sum[2] = { 0, 0 };
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t low_next = shared_word(low_at + 4 * (i + 1));
            const uint32_t high_next = shared_word(high_at + 4 * (i + 1));
            const uint32_t a = __funnelshift_r(low, low_next, low_shift) & 0x0F0F0F0Fu;
            const uint32_t b = __funnelshift_r(high, high_next, high_shift) & 0x03030303u;
            low_sum[i / 4] = dot4(a, x.q[i], low_sum[i / 4]);
            high_sum[i / 4] = dot4(b, x.q[i], high_sum[i / 4]);
            low = low_next;
            high = high_next;
        }
        const shared_at scales = g + offsetof(block_q6_k, scales) + 2 * l;
        const int first = low_sum[0] + 16 * high_sum[0] - 32 * (int)(int16_t)x.s;
        const int second = low_sum[1] + 16 * high_sum[1] - 32 * (x.s >> 16);
        const int sum = (int8_t)byte_at(scales) * first + (int8_t)byte_at(scales + 1) * second;
        return __fmul_rn(half_at(g + offsetof(block_q6_k, d)), (float)sum);
    }
};

/* Sums of unsigned times signed bytes. */
static __device__ __forceinline__ int dot4_unsigned(uint32_t a, uint32_t b, int c)
{
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* High nibbles stay where they are: each counts sixteen times, and the sum is shifted back. Scale
 * and minimum of block l are bits of two words of the head, whose choice depends on l alone:
 *
 *   ((first word >> at) & mask) | ((second word >> at + 2) & mask of two more bits) */
template <> struct block_reader<QT_Q4_K> {
    uint32_t offset, codes_at, scale_at, min_at, at, min_shift, digit, low_mask, high_mask;

    __device__ __forceinline__ void set(uint32_t row_offset, int l, uint32_t zero)
    {
        offset = row_offset;
        codes_at = row_offset + 16 + 32 * (l / 2);
        scale_at = row_offset + (l < 4 ? 4 : 12);
        min_at = row_offset + (l < 4 ? 8 : 12);
        at = 8 * (l % 4);
        min_shift = at + (l < 4 ? 0 : 4);
        digit = l % 2 ? 4 : 0;
        low_mask = l < 4 ? 63 : 15;
        high_mask = l < 4 ? 0 : 48;
        keep(offset), keep(codes_at), keep(scale_at), keep(min_at), keep(at), keep(min_shift);
        keep(digit), keep(low_mask), keep(high_mask);
        (void)zero;
    }
    __device__ __forceinline__ shared_at group(uint32_t stage, int n) const
    {
        return { stage + offset + 144 * n };
    }
    __device__ __forceinline__ float value(uint32_t stage, int n, int l, const act_block &x) const
    {
        const uint32_t base = stage + 144 * n, mask = 0x0F0F0F0Fu << digit;
        const uint4 a = shared_words4(base + codes_at), b = shared_words4(base + codes_at + 16);
        const uint32_t codes[8] = { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
        const uint32_t halves = shared_word(base + offset);
        int sum = 0, more = 0;
        (void)l;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = dot4_unsigned(codes[i] & mask, x.q[i], sum);
            more = dot4_unsigned(codes[4 + i] & mask, x.q[4 + i], more);
        }
        const int sc = (int)((shared_word(base + scale_at) >> at & low_mask) |
                             (shared_word(base + offset + 4) >> (at + 2) & high_mask));
        const int m = (int)((shared_word(base + min_at) >> min_shift & low_mask) |
                            (shared_word(base + offset + 8) >> (at + 2) & high_mask));
        const int s = (int)(int16_t)x.s + (x.s >> 16);
        const float minimum = __fmul_rn(-half_bits(halves >> 16), (float)(m * s));
        return __fmaf_rn(half_bits(halves & 0xFFFFu), (float)(sc * ((sum + more) >> digit)),
                         minimum);
    }
};

/* ---- units ----------------------------------------------------------------------------------- */

/* Returns the row's sum, folded from the lanes, to all eight threads. */
static __device__ __forceinline__ float fold_lanes(float v)
{
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 4));
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
    return __fadd_rn(v, 0.0f);
}

/* Computes units first, first + step, ... below end; of each unit pieces piece_first ..
 * piece_end-1, which are all of them unless warps share a unit. rows_of(unit) returns this thread's
 * pair of rows. enter(unit), called before the unit is summed, returns the activations. emit(unit,
 * sums of row a, sums of row b) receives the results for up to TOKENS activations; n_token of them
 * are valid.
 *
 * begin starts the first copies; the caller calls it before work that can overlap with them. Not
 * PAIRED (one token only): there is no row b, and units are half as large. WOVEN (one token only):
 * activations are woven if is_woven. */
template <int TYPE, int STAGES, int TOKENS, bool PAIRED = true, bool WOVEN = false,
          bool MAY_BULK = true>
struct unit_runner {
    enum { ROWS = PAIRED ? UNIT_ROWS : UNIT_ROWS / 2, BULK = MAY_BULK && COPIES_IN_BULK };
    typedef piece_of<TYPE, STAGES, ROWS, MAY_BULK> P;
    uint32_t stages;                     /* the warp's own, in shared memory */
    uint32_t zero;                       /* tracer.zero */
    int row_bytes, step, end, piece_first, piece_end;
    int fetch_unit, fetch_piece;
    uint32_t fetch_slot;                 /* offset of the stage that is filled next */
    uint32_t read_slot;                  /* offset of the stage that is read next; bulk: unused */
    uint32_t phase;                      /* bulk: phase of its barrier */
    row_stream<P> stream_a, stream_b;    /* bulk: only stream_a is used, for row a by the first of
                                          * eight threads and for row b by the second */

    static __device__ __forceinline__ uint32_t next_slot(uint32_t slot)
    {
        return slot == (P::stages - 1) * P::stage ? 0 : slot + P::stage;
    }
    /* in a stage rows a come before rows b */
    static __device__ __forceinline__ uint32_t a_offset(void)
    {
        return threadIdx.x % 32 / 8 * P::pitch;
    }
    static __device__ __forceinline__ uint32_t b_offset(void)
    {
        return a_offset() + UNIT_ROWS / 2 * P::pitch;
    }
    __device__ __forceinline__ uint32_t arrival_of(uint32_t slot) const
    {
        return stages + P::stages * P::stage + (slot ? 8 : 0);
    }
    /* bulk: whether this thread copies row b */
    static __device__ __forceinline__ bool takes_b(void) { return PAIRED && threadIdx.x % 8 == 1; }

    __device__ __forceinline__ void aim(const row_pair &rows)
    {
        stream_a.begin(BULK && takes_b() ? rows.b : rows.a, piece_first * P::bytes);
        if (PAIRED && !BULK) stream_b.begin(rows.b, piece_first * P::bytes);
    }

    __device__ __forceinline__ void fetch(int bytes)
    {
        const uint32_t to = stages + fetch_slot;
        if (BULK) {
            if (threadIdx.x % 8 == 0 || takes_b())
                stream_a.fetch_in_bulk(to + (takes_b() ? b_offset() : a_offset()), bytes,
                                       arrival_of(fetch_slot));
            return;
        }
        stream_a.fetch(to + a_offset(), bytes);
        if (PAIRED) stream_b.fetch(to + b_offset(), bytes);
    }

    template <typename RowsOf> __device__ __forceinline__ void fetch_next(RowsOf rows_of)
    {
        if (fetch_unit < end) {
            fetch(min((int)P::bytes, row_bytes - fetch_piece * P::bytes));
            if (++fetch_piece == piece_end) {
                fetch_piece = piece_first;
                fetch_unit += step;
                if (fetch_unit < end) aim(rows_of(fetch_unit));
            }
        }
        fetch_slot = next_slot(fetch_slot);
        if (!BULK) copy_commit();        /* even if empty, because copy_wait counts groups */
    }

    /* Waits for the next piece and returns its address. Without bulk copies also requests another
     * piece, into the stage of the previous one; with bulk copies `used` does that later, into the
     * stage of this piece. */
    template <typename RowsOf> __device__ __forceinline__ uint32_t await(RowsOf rows_of)
    {
        if (BULK) {
            arrival_wait(arrival_of(fetch_slot), phase);
            return stages + fetch_slot;
        }
        copy_wait<STAGES - 2>();
        __syncwarp();
        fetch_next(rows_of);
        return stages + read_slot;
    }
    template <typename RowsOf> __device__ __forceinline__ void used(RowsOf rows_of)
    {
        if (!BULK) {
            read_slot = next_slot(read_slot);
            return;
        }
        __syncwarp();
        fetch_next(rows_of);
        if (fetch_slot == 0) phase ^= 1;
    }

    /* part, n_part: this warp computes part number `part` of the unit's pieces */
    template <typename RowsOf>
    __device__ __forceinline__ void begin(tracer f, const void *shared, int row_bytes_, int part,
                                          int n_part, int first, int step_, int end_,
                                          RowsOf rows_of)
    {
        const int n_piece = (row_bytes_ + P::bytes - 1) / P::bytes;
        stages = (uint32_t)__cvta_generic_to_shared(shared);
        zero = f.zero;
        row_bytes = row_bytes_;
        piece_first = part * n_piece / n_part;
        piece_end = (part + 1) * n_piece / n_part;
        step = step_;
        end = end_;
        fetch_unit = piece_first == piece_end ? end : first;
        fetch_piece = piece_first;
        fetch_slot = read_slot = phase = 0;
        if (fetch_unit >= end) return;   /* no work; the warp may have no shared memory */
        aim(rows_of(fetch_unit));
        if (BULK) {
            if (threadIdx.x % 32 < P::stages)
                arrival_init(arrival_of(threadIdx.x % 32 * P::stage), ROWS);
            arrivals_ready();
            __syncwarp();
        }
        #pragma unroll 1
        for (int i = 0; i < P::stages - (BULK ? 0 : 1); i++) fetch_next(rows_of);
    }

    /* activations: pitch bytes apart, n_block blocks each */
    template <typename RowsOf, typename Enter, typename Emit>
    __device__ __forceinline__ void run(int first, Enter enter, int pitch, int n_token, int n_block,
                                        RowsOf rows_of, Emit emit)
    {
        const int l = threadIdx.x % 8;
        #pragma unroll 1
        for (int unit = first; unit < end; unit += step) {
            const row_pair rows = rows_of(unit);
            uint32_t skip_a = low_bits(rows.a + piece_first * P::bytes, 15);
            uint32_t skip_b = low_bits(rows.b + piece_first * P::bytes, 15);
            const void *x = enter(unit);
            block_reader<TYPE> reader_a, reader_b;
            float a[TOKENS] = {}, b[TOKENS] = {};
            if (P::bytes % 16 == 0) {
                reader_a.set(a_offset() + skip_a, l, zero);
                if (PAIRED) reader_b.set(b_offset() + skip_b, l, zero);
            }
            #pragma unroll 1
            for (int i = piece_first; i < piece_end; i++) {
                const uint32_t stage = await(rows_of);
                if (P::bytes % 16 != 0) {
                    reader_a.set(a_offset() + skip_a, l, zero);
                    if (PAIRED) reader_b.set(b_offset() + skip_b, l, zero);
                    skip_a = (skip_a + P::bytes) % 16;
                    skip_b = (skip_b + P::bytes) % 16;
                }
                #pragma unroll
                for (int n = 0; n < P::groups; n++) {
                    const int j = (i * P::groups + n) * 8 + l;
                    if (j < n_block)
                        add(a, b, reader_a, reader_b, stage, n, l, x, pitch, n_token, n_block, j);
                }
                used(rows_of);
            }
            #pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                a[t] = fold_lanes(a[t]);
                if (PAIRED) b[t] = fold_lanes(b[t]);
            }
            emit(unit, a, b);
        }
    }

    /* Called after run, with the same first, before the memory is used for another begin. */
    __device__ __forceinline__ void finish(int first)
    {
        if (!BULK || first >= end || piece_first == piece_end) return;   /* begin started no copy */
        __syncwarp();
        if (threadIdx.x % 32 < P::stages) arrival_end(arrival_of(threadIdx.x % 32 * P::stage));
    }

    __device__ __forceinline__ void add(float (&a)[TOKENS], float (&b)[TOKENS],
                                        const block_reader<TYPE> &reader_a,
                                        const block_reader<TYPE> &reader_b, uint32_t stage, int n,
                                        int l, const void *x, int pitch, int n_token, int n_block,
                                        int j)
    {
        if (TOKENS == 1) {
            act_block q = act_block_at(acts_at(x, n_block), j);
            if (is_woven<TYPE>::value && !WOVEN) weave(q.q);
            a[0] = __fmaf_rn(q.dx, reader_a.value(stage, n, l, q), a[0]);
            if (PAIRED) b[0] = __fmaf_rn(q.dx, reader_b.value(stage, n, l, q), b[0]);
            return;
        }
        weight_parts pa, pb;
        unpack<TYPE>(pa, reader_a.group(stage, n), l);
        unpack<TYPE>(pb, reader_b.group(stage, n), l);
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

/* ---- float weights: a warp computes a row; weight i is in lane i % 32 ------------------------ */

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

/* Sums of a row times n_token vectors, to all lanes. x: in shared memory, pitch floats apart. */
template <int TYPE, int TOKENS>
static __device__ __forceinline__ void float_row(float (&sum)[TOKENS], const uint8_t *row,
                                                 const float *x, int pitch, int n_token, int cols)
{
    const int lane = threadIdx.x % 32;
    int i = lane;
    for (int t = 0; t < TOKENS; t++) sum[t] = 0.0f;
    for (; i + 15 * 32 < cols; i += 16 * 32) {           /* 16 loads before the first use */
        float w[16];
        #pragma unroll
        for (int k = 0; k < 16; k++) w[k] = weight_at<TYPE>(row, i + 32 * k);
        #pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (t >= n_token) break;
            #pragma unroll
            for (int k = 0; k < 16; k++)
                sum[t] = __fmaf_rn(w[k], x[t * pitch + i + 32 * k], sum[t]);
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

/* Prefetches a row into the second-level cache. */
static __device__ __forceinline__ void prefetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t at = (size_t)(threadIdx.x % 32) * 128; at < bytes; at += 32 * 128)
        prefetch(row + at);
}

template <int TYPE> struct is_float_type { enum { value = 0 }; };
template <> struct is_float_type<QT_F32> { enum { value = 1 }; };
template <> struct is_float_type<QT_F16> { enum { value = 1 }; };
template <> struct is_float_type<QT_BF16> { enum { value = 1 }; };

/* The format's factor; 1 for float types. */
template <int TYPE, int FLOAT = is_float_type<TYPE>::value> struct factor_of {
    static constexpr float value = format<TYPE>::factor;
};
template <int TYPE> struct factor_of<TYPE, 1> {
    static constexpr float value = 1.0f;
};

#endif
