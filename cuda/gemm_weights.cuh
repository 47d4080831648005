/* gemm_weights.cuh - loads a tile's weights from VRAM and stores them as 16-bit floats in shared
 * memory. Part of gemm_tile.cuh.
 *
 * A step is 64 columns of 128 rows. A thread converts one block of 32 weights of it, or four chunks
 * of eight if weights are floats. Weights reach its registers in one of two ways:
 *
 *   straight   The thread requests its block one step ahead. Each load of a warp touches sixteen
 *              rows, which the L1 cache looks up one by one.
 *   staged     A warp copies its rows to shared memory in the background, one group (256 columns)
 *              ahead, in consecutive chunks of 16 bytes. This needs shared memory that only some
 *              chips have: STAGED in gemm_mma.cuh or gemm_wgmma.cuh.
 *
 * Past the last column weights are finite, and activations zero. */
#ifndef CUDA_GEMM_WEIGHTS_CUH
#define CUDA_GEMM_WEIGHTS_CUH

enum { STEP_BLOCKS = 2, GROUP_BLOCKS = 8, GROUP_STEPS = GROUP_BLOCKS / STEP_BLOCKS };

/* ---- what a type is -------------------------------------------------------------------------- */

/* is_plain: float types that this chip's kernels multiply without conversion. Converted to
 * bfloat16, F16 loses three bits; converted to binary16, BF16 loses values below 2^-24. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { F16_IS_ROUNDED = 0 };
template <int TYPE> struct is_plain { enum { value = TYPE == QT_F16 }; };
#else
enum { F16_IS_ROUNDED = 1 };
template <int TYPE> struct is_plain { enum { value = TYPE == QT_BF16 }; };
#endif
template <int TYPE> struct is_wide { enum { value = TYPE == QT_F16 || TYPE == QT_BF16 }; };
template <int TYPE> struct is_block { enum { value = TYPE != ANY && !is_wide<TYPE>::value }; };

/* Groups of Q4_K and Q5_K begin at multiples of 16. The pitch is an odd number of chunks, so that
 * neighbouring rows begin in different banks. */
template <int TYPE> struct raw_layout {
    enum {
        aligned = TYPE == QT_Q4_K || TYPE == QT_Q5_K,
        chunks = (format<TYPE>::group_bytes + (aligned ? 0 : 15) + 15) / 16,
        pitch = raw_tile_pitch(TYPE), bytes = ROWS * pitch
    };
};
template <> struct raw_layout<QT_F16> { enum { bytes = 0 }; };
template <> struct raw_layout<QT_BF16> { enum { bytes = 0 }; };
template <> struct raw_layout<ANY> { enum { bytes = 0 }; };

template <int TYPE> struct raw_weights {
    enum { bytes = is_block<TYPE>::value ? raw_tile_bytes(TYPE) : 0 };
};

/* ---- a thread's part of a step, in file format ----------------------------------------------- */

/* A block of 32 weights, or four chunks of 8 from rows that are 32 apart. */
template <int TYPE> struct piece {
    weight_parts parts;
    template <typename P> __device__ __forceinline__ void take(P group, int l)
    {
        unpack<TYPE>(parts, group, l);
    }
};
template <> struct piece<QT_F16> { uint4 chunk[4]; };
template <> struct piece<QT_BF16> { uint4 chunk[4]; };
template <> struct piece<ANY> {};

template <> struct piece<QT_MXFP4> {
    uint32_t nibbles[4], exponent;
    template <typename P> __device__ __forceinline__ void take(P group, int l)
    {
        const P block = group + l * (int)sizeof(block_mxfp4);
        load_words(nibbles, block + offsetof(block_mxfp4, nibbles));
        exponent = (uint32_t)byte_at(block);
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
template <> struct piece<QT_NVFP4> {
    uint32_t nibbles[4], scale[2];
    template <typename P> __device__ __forceinline__ void take(P group, int l)
    {
        const P block = group + l / 2 * (int)sizeof(block_nvfp4);
        load_words(nibbles, block + offsetof(block_nvfp4, nibbles) + 16 * (l % 2));
        scale[0] = (uint32_t)byte_at(block + 2 * (l % 2));
        scale[1] = (uint32_t)byte_at(block + 2 * (l % 2) + 1);
    }
};
#endif

/* ---- to 16-bit floats ------------------------------------------------------------------------ */

/* Four int8 as halves scale * w + offset. A byte b in the low bits of the float 2^23 makes 2^23 + b
 * without a conversion. NARROW: seven bits at the top of bfloat16 128's fraction make 128 + value;
 * the offset then includes 192 times the scale. */
template <bool NARROW>
static __device__ __forceinline__ uint2 four_halves(uint32_t w, float scale, float offset)
{
    float v[4];
    const uint32_t shifted = NARROW ? (w ^ 0x40404040u) & 0x7F7F7F7Fu : w ^ 0x80808080u;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (NARROW) {
            const uint32_t bits = pick_bytes(shifted, 0x43000000u, 0x7044u + 0x100u * (unsigned)i);
            v[i] = fmaf(scale, __uint_as_float(bits), offset);
        } else {
            const uint32_t bits = pick_bytes(shifted, 0x4B000000u, 0x7440u + (unsigned)i);
            v[i] = fmaf(scale, __uint_as_float(bits) - 8388736.0f, offset);
        }
    }
    return make_uint2(pack_halves(v[0], v[1]), pack_halves(v[2], v[3]));
}

/* Address of the thread's 32 weights in the tile: half a row. */
typedef struct block_place {
    uint32_t at;                         /* offset of chunk 0 */

    __device__ __forceinline__ block_place()
        : at(swizzled(threadIdx.x / 2, threadIdx.x % 2 * 4)) {}
    __device__ __forceinline__ uint4 *chunk(uint8_t *tile, uint32_t c) const
    {
        return (uint4 *)(tile + (at ^ c << 4));
    }
} block_place;

/* NARROW: weights are in -64 .. 63. */
template <bool NARROW>
static __device__ __forceinline__ void store_block(uint8_t *tile, block_place to,
                                                   const uint32_t (&w)[8], const float *scale,
                                                   const float *offset)
{
    #pragma unroll
    for (int c = 0; c < 4; c++) {
        const float by = scale[c / 2];
        const float from = NARROW ? fmaf(-192.0f, by, offset[c / 2]) : offset[c / 2];
        const uint2 low = four_halves<NARROW>(w[2 * c], by, from);
        const uint2 high = four_halves<NARROW>(w[2 * c + 1], by, from);
        *to.chunk(tile, c) = make_uint4(low.x, low.y, high.x, high.y);
    }
}

/* Two weights as halves; rest: the rounding errors of F16 weights. */
static __device__ __forceinline__ uint32_t two_halves(uint32_t v, int type, bool rest)
{
    if (type == QT_F16 && rest) return pack_lows(half_bits(v & 0xFFFFu), half_bits(v >> 16));
    if (type == QT_F16) return pack_halves(half_bits(v & 0xFFFFu), half_bits(v >> 16));
    return pack_halves(float_bits(v << 16), float_bits(v & 0xFFFF0000u));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
/* MXFP4 as binary16: through F32, because scales may be outside binary16. */
static __device__ __forceinline__ void store_piece(uint8_t *tile, block_place to,
                                                   const piece<QT_MXFP4> &p)
{
    const float by = float_bits(p.exponent << 23), scale[2] = { by, by };
    const float offset[2] = { 0.0f, 0.0f };
    uint32_t w[8];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = e2m1_values(p.nibbles[i] & 0x0F0F0F0Fu);
        w[4 + i] = e2m1_values(p.nibbles[i] >> 4 & 0x0F0F0F0Fu);
    }
    store_block<true>(tile, to, w, scale, offset);
}
#else
/* The upper and the lower bytes of 0, 1, 2, 3, 4, 6, 8, 12 in bfloat16. */
enum : uint32_t {
    E2M1_UPPER_0 = 0x40403F00, E2M1_UPPER_1 = 0x41414040,
    E2M1_LOWER_0 = 0x40008000, E2M1_LOWER_1 = 0x4000C080
};

static __device__ __forceinline__ uint32_t scaled_pair(uint32_t pair, uint32_t signs,
                                                       uint32_t scale)
{
    const uint32_t bits = pair ^ (signs & 0x80008000u);
    const __nv_bfloat162 v = __hmul2(*(const __nv_bfloat162 *)&bits,
                                     *(const __nv_bfloat162 *)&scale);
    return *(const uint32_t *)&v;
}

/* Eight E2M1 codes, doubled, times a scale (twice in a word): even gets the codes in even digits,
 * odd the others, two in a word. A code has two bits of fraction and a scale at most four, so
 * bfloat16 holds each product exactly. */
static __device__ __forceinline__ void e2m1_pairs(uint32_t *even, uint32_t *odd, uint32_t codes,
                                                  uint32_t scale)
{
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t digits = (codes & 0x77777777u) >> 16 * i & 0xFFFFu;
        const uint32_t upper = pick_bytes(E2M1_UPPER_0, E2M1_UPPER_1, digits);
        const uint32_t lower = pick_bytes(E2M1_LOWER_0, E2M1_LOWER_1, digits);
        const uint32_t signs = i ? 0xB4A4u : 0x9484u;    /* bytes of signs, two of zeros */
        even[i] = scaled_pair(pick_bytes(lower, upper, 0x6240u), pick_bytes(codes << 4, 0, signs),
                              scale);
        odd[i] = scaled_pair(pick_bytes(lower, upper, 0x7351u), pick_bytes(codes, 0, signs), scale);
    }
}

static __device__ __forceinline__ void store_pairs(uint8_t *tile, block_place to,
                                                   const uint32_t (&v)[16])
{
    #pragma unroll
    for (int c = 0; c < 4; c++)
        *to.chunk(tile, c) = make_uint4(v[4 * c], v[4 * c + 1], v[4 * c + 2], v[4 * c + 3]);
}

/* MXFP4 as bfloat16; even digits are the block's first half. */
static __device__ __forceinline__ void store_piece(uint8_t *tile, block_place to,
                                                   const piece<QT_MXFP4> &p)
{
    const uint32_t scale = (p.exponent << 7) * 0x10001u;
    uint32_t v[16];
    #pragma unroll
    for (int i = 0; i < 4; i++) e2m1_pairs(v + 2 * i, v + 8 + 2 * i, p.nibbles[i], scale);
    store_pairs(tile, to, v);
}

/* NVFP4 as bfloat16; even digits are the first eight of sixteen weights. */
static __device__ __forceinline__ void store_piece(uint8_t *tile, block_place to,
                                                   const piece<QT_NVFP4> &p)
{
    uint32_t v[16];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float by = e4m3_scaled(p.scale[i / 2]);
        const int at = i / 2 * 8 + i % 2 * 2;
        e2m1_pairs(v + at, v + at + 4, p.nibbles[i], pack_halves(by, by));
    }
    store_pairs(tile, to, v);
}
#endif

template <int TYPE>
static __device__ __forceinline__ void store_piece(uint8_t *tile, block_place to,
                                                   const piece<TYPE> &p)
{
    float scale[2], offset[2];
    block_affine<TYPE>(scale, offset, p.parts);
    store_block<TYPE != QT_Q8_0>(tile, to, p.parts.w, scale, offset);
}

/* ---- which rows ------------------------------------------------------------------------------ */

/* Address of row r of the block's tile, in w or up. */
template <int TOKENS>
static __device__ __forceinline__ const uint8_t *tile_row(const gemm &p, int expert, int r)
{
    enum { RUN = layout<TOKENS>::row_step };
    if (!p.up.data)
        return weight_row(p.w, expert, min((int)blockIdx.x * ROWS + r, p.rows - 1));
    const int row = min((int)blockIdx.x * (ROWS / 2) + r / (2 * RUN) * RUN + r % RUN, p.rows - 1);
    return r & RUN ? weight_row(p.up, expert, row) : weight_row(p.w, expert, row);
}

/* ---- straight from VRAM ---------------------------------------------------------------------- */

/* The sources of a thread's loads. */
typedef struct weight_source {
    const uint8_t *row[4];               /* block formats use only [0] */
    int type, cols, last;                /* last: index of the last block of 32 or chunk of 8 */
    bool rest;                           /* F16: store the rounding errors instead of weights */
} weight_source;

static __device__ __forceinline__ const uint8_t *chunk_at(const weight_source &s, int i, int step)
{
    return s.row[i] + 16 * (size_t)min(8 * step + (int)(threadIdx.x % 8), s.last);
}

/* The thread's block of a step. */
static __device__ __forceinline__ int block_of(const weight_source &s, int step)
{
    return min(STEP_BLOCKS * step + (int)(threadIdx.x % 2), s.last);
}

/* Requests the weights of a step. */
template <int TYPE>
static __device__ __forceinline__ void fetch(piece<TYPE> &p, uint8_t *tile, const weight_source &s,
                                             int step)
{
    if constexpr (is_plain<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            copy16(tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8),
                   chunk_at(s, i, step));
    } else if constexpr (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++) p.chunk[i] = *(const uint4 *)chunk_at(s, i, step);
    } else if constexpr (TYPE != ANY) {
        const int b = block_of(s, step);
        p.take(s.row[0] + (size_t)(b / GROUP_BLOCKS) * format<TYPE>::group_bytes, b % GROUP_BLOCKS);
    }
}

template <int TYPE, int TOKENS>
static __device__ __forceinline__ weight_source weight_source_of(const gemm &p, int expert,
                                                                 bool rest)
{
    weight_source s;
    s.type = p.type;
    s.cols = p.cols;
    s.rest = rest;
    if (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            s.row[i] = tile_row<TOKENS>(p, expert, (int)threadIdx.x / 8 + 32 * i);
        s.last = p.cols / 8 - 1;
    } else {
        s.row[0] = tile_row<TOKENS>(p, expert, (int)threadIdx.x / 2);
        s.last = p.cols / 32 - 1;
    }
    return s;
}

/* Loads and stores weights of any type at any valid address; floats past the last column are 0. */
static __device__ __forceinline__ void store_any(uint8_t *tile, const weight_source &s, int step)
{
    const int b = 2 * step + (int)(threadIdx.x % 2);
    if (s.type == QT_F16 || s.type == QT_BF16) {
        const uint16_t *values = (const uint16_t *)s.row[0];
        #pragma unroll 1
        for (int c = 0; c < 4; c++) {
            uint32_t v[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int k = 32 * b + 8 * c + 2 * i;
                const uint32_t low = k < s.cols ? values[k] : 0;
                const uint32_t high = k + 1 < s.cols ? values[k + 1] : 0;
                v[i] = two_halves(low | high << 16, s.type, s.rest);
            }
            *(uint4 *)(tile + swizzled(threadIdx.x / 2, threadIdx.x % 2 * 4 + c)) =
                make_uint4(v[0], v[1], v[2], v[3]);
        }
        return;
    }
    const int block = min(b, s.last);
    float scale[2], offset[2];
    weight_parts parts;
    switch (s.type) {
#define CASE(TYPE)                                                                                 \
    case TYPE:                                                                                     \
        unpack<TYPE>(parts, s.row[0] + (size_t)(block / 8) * format<TYPE>::group_bytes, block % 8);\
        block_affine<TYPE>(scale, offset, parts);                                                  \
        break;
    CASE(QT_Q4_0) CASE(QT_Q4_1) CASE(QT_Q5_0) CASE(QT_Q5_1) CASE(QT_IQ4_NL) CASE(QT_Q2_K)
    CASE(QT_Q3_K) CASE(QT_IQ4_XS)
#undef CASE
    default: return;
    }
    store_block<false>(tile, block_place(), parts.w, scale, offset);
}

/* Stores the fetched weights in the order of the tensor cores. */
template <int TYPE>
static __device__ __forceinline__ void store(uint8_t *tile, const piece<TYPE> &p,
                                             const weight_source &s, int step)
{
    if constexpr (is_plain<TYPE>::value) {
        return;                          /* fetch has copied them to the tile */
    } else if constexpr (is_wide<TYPE>::value) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 v = p.chunk[i];
            *(uint4 *)(tile + swizzled(threadIdx.x / 8 + 32 * i, threadIdx.x % 8)) =
                make_uint4(two_halves(v.x, TYPE, s.rest), two_halves(v.y, TYPE, s.rest),
                           two_halves(v.z, TYPE, s.rest), two_halves(v.w, TYPE, s.rest));
        }
    } else if constexpr (TYPE == ANY) {
        store_any(tile, s, step);
    } else {
        store_piece(tile, block_place(), p);
    }
}

/* ---- staged in shared memory ----------------------------------------------------------------- */

/* Stages a warp's sixteen rows: four threads copy a row, two unpack it. Constant values stay in
 * registers and a group's four steps are unrolled, so most instructions of a step convert. */
template <int TYPE, int TOKENS> struct weight_stage {
    typedef raw_layout<TYPE> R;
    enum { group_bytes = format<TYPE>::group_bytes, WARP_ROWS = ROWS / (THREADS / 32), UNITS = 2 };
    static_assert(WARP_ROWS == 8 * UNITS, "four threads for each row, twice");
    const uint8_t *row[UNITS];           /* rows that this thread copies */
    uint32_t copy_at;                    /* destination of the copies */
    uint32_t take_at, low;               /* the row that it unpacks; low bits of its VRAM address */
    block_place place;
    int row_bytes;
    int odd;                             /* the step without a block for this thread, or -1 */

    __device__ __forceinline__ weight_stage(const gemm &p, int expert)
    {
        const uint32_t first = threadIdx.x / 32 * WARP_ROWS, lane = threadIdx.x % 32;
        const int n_block = p.cols / 32;
        #pragma unroll
        for (int i = 0; i < UNITS; i++) {
            row[i] = tile_row<TOKENS>(p, expert, (int)(first + 8 * i + lane / 4));
            keep(row[i]);
        }
        copy_at = (first + lane / 4) * R::pitch + 16 * (lane % 4);
        take_at = threadIdx.x / 2 * R::pitch;
        low = R::aligned ? 0
                         : (uint32_t)(uintptr_t)tile_row<TOKENS>(p, expert,
                                                                 (int)threadIdx.x / 2) & 15u;
        row_bytes = n_block / GROUP_BLOCKS * group_bytes;
        if (n_block % GROUP_BLOCKS)      /* only for formats with blocks of 32 or 64 weights */
            row_bytes += group_bytes / GROUP_BLOCKS * (n_block % GROUP_BLOCKS);
        odd = n_block % 2 && threadIdx.x % 2 ? n_block / 2 : -1;
        keep(copy_at);
        keep(take_at);
        keep(place.at);
    }

    /* Requests a group of the warp's rows, including all of its first and last 16 bytes. */
    __device__ __forceinline__ void copy(uint8_t *raw, int group) const
    {
        const int from = group * group_bytes, bytes = min((int)group_bytes, row_bytes - from);
        #pragma unroll
        for (int i = 0; i < UNITS; i++) {
            const uint8_t *at = row[i] + from;
            const int skip = R::aligned ? 0 : (int)((uintptr_t)at & 15u);
            const int n = skip + bytes - (int)(16 * (threadIdx.x % 4));
            at += (int)(16 * (threadIdx.x % 4)) - skip;
            keep(at);
            #pragma unroll
            for (int c = 0; c < 16 * R::chunks; c += 64)
                if (c < n) copy16(raw + copy_at + 8 * i * R::pitch + c, at + c);
        }
    }

    /* Converts the thread's block of step s of a group and stores it in the tile. */
    __device__ __forceinline__ void store(uint8_t *tile, const uint8_t *raw, int group, int s) const
    {
        const uint32_t skip = R::aligned ? 0 : (low + (uint32_t)(group * group_bytes)) & 15u;
        if (group * GROUP_STEPS + s == odd) {
            #pragma unroll
            for (int c = 0; c < 4; c++) *place.chunk(tile, c) = make_uint4(0, 0, 0, 0);
            return;
        }
        piece<TYPE> p;
        p.take(shared_at{ (uint32_t)__cvta_generic_to_shared(raw) + take_at + skip },
               STEP_BLOCKS * s + (int)(threadIdx.x % 2));
        store_piece(tile, place, p);
    }
};

#endif
