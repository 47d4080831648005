/* attention_prompt.cu - attention of more than GPU_FEW tokens, tile by tile, without a score
 * matrix.
 *
 * Query heads that share a KV head are computed together: row r of their queries is head r % group
 * of token r / group. A block computes about 128 neighbouring rows: a few tokens with all their
 * heads. All of them use each tile of keys and values in shared memory, and the union of their
 * windows is hardly wider than one window. The block goes through the keys from the oldest on. For
 * each row it stores the largest score so far, the sum of exp(score - largest) and the sum of
 * weighted values; when the largest changes, it rescales the sums. A sink is an initial score
 * without a value. Either one block attends to all keys of its rows, or each of several blocks
 * attends to a part of them (attention_prompt_split_kv.cuh). The order of sums is fixed in both.
 *
 * F16 and Q8_0 stores are multiplied on tensor cores, in binary16 with F32 sums: queries, weights
 * and Q8_0 values are rounded to binary16. An F32 store is multiplied in F32. attention.cu calls
 * this after attention_prepare, which stores the keys and rotates the queries. */
#include "cuda/attention_prompt_split_kv.cuh"
#include "cuda/batch.cuh"
#include "loader/quant_blocks.h"

/* ---- the keys of a block's rows -------------------------------------------------------------- */

static const float no_score = -1e30f; /* below all scores, but finite, so differences are defined */

static __device__ __forceinline__ int lowest_key(int pos, int window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

typedef struct key_span {
    int first, end;                      /* keys first .. end-1 are visible to at least one row */
    int all_first, all_last;             /* keys all_first .. all_last are visible to every row */
} key_span;

/* Cuts a span to part number `part` of n, in whole tiles; the part may be empty. */
static __device__ __forceinline__ void take_part(key_span &s, int keys, int part, int n)
{
    const int n_tile = (s.end - s.first + keys - 1) / keys, first = s.first;
    s.first = first + part * n_tile / n * keys;
    s.end = min(s.end, first + (part + 1) * n_tile / n * keys);
}

/* The span of rows row .. row+n_row-1; at least the first of them exists. */
static __device__ __forceinline__ key_span span_of(const gpu_attention &a, int pos, int row,
                                                   int n_row)
{
    const int group = a.n_head / a.n_head_kv;
    const int oldest = pos + row / group;
    const int newest = pos + min((row + n_row - 1) / group, a.n - 1);
    key_span s;
    s.first = lowest_key(oldest, a.window);
    s.end = newest + 1;
    s.all_first = lowest_key(newest, a.window);
    s.all_last = oldest;
    return s;
}

/* The rows of a tile's n keys: n_first of them in one page, from `row` on, the others at the
 * beginning of the next. Keys past the last visible one are not read. */
typedef struct tile_rows {
    const uint8_t *first, *second;       /* pages */
    int row, n, n_first;
} tile_rows;

template <int KEYS>
static __device__ __forceinline__ tile_rows tile_at(const page_table &pages, int key, int end)
{
    static_assert(KEYS <= GPU_PAGE, "a tile is in two pages at most");
    tile_rows p;
    p.row = key % GPU_PAGE;
    p.n = min(KEYS, end - key);
    p.n_first = min(p.n, GPU_PAGE - p.row);
    p.first = pages.of(key);
    p.second = pages.of(key + p.n - 1);
    return p;
}

/* Row r at an offset of the pages. */
static __device__ __forceinline__ const uint8_t *row_at(const tile_rows &p, int r, size_t offset,
                                                        int row_bytes)
{
    return r < p.n_first ? p.first + offset + (size_t)(p.row + r) * row_bytes
                         : p.second + offset + (size_t)(r - p.n_first) * row_bytes;
}

/* Copies the same rows at N offsets of the pages to N tiles in shared memory, 16 bytes (a piece) at
 * a time. Rows without a key become zeros, because a weight of zero must not multiply a NaN.
 * place(row, piece): offset in the tile. */
template <int KEYS, int PIECES, int THREADS, int N, typename Place>
static __device__ __forceinline__ void fetch_rows(uint8_t *const (&to)[N],
                                                  const size_t (&rows)[N], const tile_rows &p,
                                                  Place place)
{
    #pragma unroll
    for (int i = 0; i < (KEYS * PIECES + THREADS - 1) / THREADS; i++) {
        const int at = threadIdx.x + i * THREADS, r = at / PIECES, c = at % PIECES;
        if (KEYS * PIECES % THREADS && r >= KEYS) break;
        #pragma unroll
        for (int k = 0; k < N; k++)
            if (r < p.n) copy16(to[k] + place(r, c), row_at(p, r, rows[k], PIECES * 16) + c * 16);
            else *(uint4 *)(to[k] + place(r, c)) = make_uint4(0, 0, 0, 0);
    }
}

/* ---- tensor cores: the shape of a block ------------------------------------------------------ */

static const float log2_e = 1.4426950408889634f;

/* Each warp has TILES tiles of 16 rows and, with SPLIT 1, all columns of the output. Otherwise
 * SPLIT warps have the same rows: each computes all their scores but only a part of the columns,
 * because heads of 512 would need too many registers. */
template <int DIM_, int WARPS_, int TILES_, int KEYS_, bool Q8_, int BLOCKS_, int SPLIT_ = 1>
struct shape {
    enum {
        DIM = DIM_, WARPS = WARPS_, TILES = TILES_, KEYS = KEYS_, Q8 = Q8_,
        BLOCKS = BLOCKS_,                /* blocks whose registers should fit a multiprocessor */
        SPLIT = SPLIT_,
        THREADS = WARPS * 32,
        ROWS = WARPS / SPLIT * TILES * 16,
        COLS = DIM / SPLIT,              /* output columns of a warp */
        PIECES = DIM / 8,                /* pieces of 16 bytes in a row */
        KEPT = DIM <= 64,                /* whether queries stay in registers */
        STORED = DIM / 32 * (int)sizeof(block_q8_0),
        Q_BYTES = ROWS * DIM * 2,
        TILE_BYTES = KEYS * DIM * 2,
        RAW_BYTES = attention_raw_bytes(DIM, KEYS),
        SMEM = attention_tensor_bytes(DIM, ROWS, KEYS, Q8)
    };
    static_assert(RAW_BYTES % 16 == 0, "tiles begin at multiples of 16");
};

/* Offset of a piece of 8 values in a tile. The pieces of one column in any eight neighbouring rows,
 * and any eight neighbouring pieces of a row, are in different banks. */
template <int DIM> static __device__ __forceinline__ int tile_offset(int row, int piece)
{
    const int turn = DIM >= 64 ? row & 7 : row >> 1 & 3;
    return row * DIM * 2 + (piece ^ turn) * 16;
}

static __device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&v;
}

/* ---- tensor cores: tiles --------------------------------------------------------------------- */

/* Stores the block's queries, multiplied by scale * log2(e), so that scores are exponents of 2. */
template <typename S>
static __device__ __forceinline__ void put_queries(uint8_t *to, const gpu_attention &a, int head_kv,
                                                   int row)
{
    const int group = a.n_head / a.n_head_kv, n_row = a.n * group;
    const float scale = a.scale * log2_e;

    #pragma unroll 4
    for (int i = threadIdx.x; i < S::ROWS * S::PIECES; i += S::THREADS) {
        const int r = i / S::PIECES, c = i % S::PIECES;
        const int t = (row + r) / group, h = head_kv * group + (row + r) % group;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row + r < n_row) {
            const float *q = a.q + (size_t)t * a.q_stride + (size_t)h * a.q_head_stride + 8 * c;
            const float4 lo = *(const float4 *)q, hi = *(const float4 *)(q + 4);
            v.x = pack_f16(lo.x * scale, lo.y * scale);
            v.y = pack_f16(lo.z * scale, lo.w * scale);
            v.z = pack_f16(hi.x * scale, hi.y * scale);
            v.w = pack_f16(hi.z * scale, hi.w * scale);
        }
        *(uint4 *)(to + tile_offset<S::DIM>(r, c)) = v;
    }
}

/* Offsets of a Q8_0 tile in the bytes of fetch_raw. Row r of the first page is at lead + r *
 * STORED, row r of the second at second + r * STORED. A head's rows begin at a multiple of 16. */
typedef struct raw_part {
    int lead, second, end;               /* bytes; second and end are multiples of 16 */
} raw_part;

template <typename S> static __device__ __forceinline__ raw_part raw_of(const tile_rows &p)
{
    static_assert(GPU_PAGE * S::STORED % 16 == 0, "heads begin at multiples of 16");
    raw_part w;
    w.lead = p.row * S::STORED & 15;
    w.second = (w.lead + p.n_first * S::STORED + 15) & ~15;
    w.end = w.second;
    if (p.n_first < p.n) w.end += ((p.n - p.n_first) * S::STORED + 15) & ~15;
    return w;
}

template <typename S>
static __device__ __forceinline__ void fetch_raw(uint8_t *to, size_t rows, const tile_rows &p)
{
    const raw_part w = raw_of<S>(p);
    const uint8_t *from[2] = { p.first + rows + p.row * S::STORED - w.lead, p.second + rows };
    #pragma unroll 1
    for (int i = threadIdx.x * 16; i < w.end; i += S::THREADS * 16)
        copy16(to + i, i < w.second ? from[0] + i : from[1] + (i - w.second));
}

/* Four codes times d, two in a word. The byte code + 128 in the low bits of the binary16 1024 gives
 * 1024 + 128 + code exactly. */
static __device__ __forceinline__ uint2 widen_codes(uint32_t codes, __half2 d)
{
    const uint32_t bytes = codes ^ 0x80808080u;
    const uint32_t words[2] = { __byte_perm(bytes, 0x64646464u, 0x4140u),
                                __byte_perm(bytes, 0x64646464u, 0x4342u) };
    const __half2 bias = __floats2half2_rn(1152.0f, 1152.0f);
    const __half2 lo = __hmul2(__hsub2(*(const __half2 *)&words[0], bias), d);
    const __half2 hi = __hmul2(__hsub2(*(const __half2 *)&words[1], bias), d);
    return make_uint2(*(const uint32_t *)&lo, *(const uint32_t *)&hi);
}

/* Converts a fetched tile of Q8_0 to binary16; rows without a key become zeros. */
template <typename S>
static __device__ __forceinline__ void widen_raw(uint8_t *to, const uint8_t *raw,
                                                 const tile_rows &p)
{
    const raw_part w = raw_of<S>(p);
    #pragma unroll 2
    for (int i = threadIdx.x; i < S::KEYS * S::PIECES; i += S::THREADS) {
        const int r = i / S::PIECES, c = i % S::PIECES;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (r < p.n) {
            const int block = (r < p.n_first ? w.lead + r * S::STORED
                                             : w.second + (r - p.n_first) * S::STORED) +
                              c / 4 * (int)sizeof(block_q8_0);
            const int at = block + (int)offsetof(block_q8_0, quants) + 8 * (c % 4);
            const uint32_t *words = (const uint32_t *)(raw + (at & ~3));
            const unsigned shift = (at & 2) * 8u;        /* blocks begin at even addresses */
            const __half2 d = __half2half2(__ushort_as_half(*(const uint16_t *)(raw + block)));
            const uint2 lo = widen_codes(__funnelshift_r(words[0], words[1], shift), d);
            const uint2 hi = widen_codes(__funnelshift_r(words[1], words[2], shift), d);
            v = make_uint4(lo.x, lo.y, hi.x, hi.y);
        }
        *(uint4 *)(to + tile_offset<S::DIM>(r, c)) = v;
    }
}

/* ---- tensor cores: scores, weights, sums ----------------------------------------------------- */

/* A lane's state of its rows; index [i][0] is row lane / 4 of tile i, [i][1] row lane / 4 + 8. */
template <typename S> struct row_state {
    int pos[S::TILES][2];
    float top[S::TILES][2];              /* largest score so far */
    float total[S::TILES][2];            /* this lane's part of the sum of weights */
    float sum[S::TILES][S::COLS / 8][4]; /* of weights times values, as mma lays it out */
};

/* Loads the fragments of 16 rows of queries, dimensions 16k .. 16k+15. */
template <typename S>
static __device__ __forceinline__ void load_queries(uint32_t a[4], const uint8_t *q, int row, int k,
                                                    int lane)
{
    load_tiles(a, q + tile_offset<S::DIM>(row + 8 * (lane / 8 % 2) + lane % 8, 2 * k + lane / 16));
}

/* scores[TILES * 16, KEYS] = queries * keys. kept: the warp's query fragments if S::KEPT. */
template <typename S>
static __device__ __forceinline__ void score_tile(float (&s)[S::TILES][S::KEYS / 8][4],
                                                  const uint32_t (*kept)[S::DIM / 16][4],
                                                  const uint8_t *q, const uint8_t *keys, int row,
                                                  int lane)
{
    #pragma unroll
    for (int i = 0; i < S::TILES; i++)
        #pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = 0.0f;
    #pragma unroll
    for (int k = 0; k < S::DIM / 16; k++) {
        uint32_t a[S::TILES][4];
        #pragma unroll
        for (int i = 0; i < S::TILES; i++) {
            if (!S::KEPT) load_queries<S>(a[i], q, row + 16 * i, k, lane);
            #pragma unroll
            for (int e = 0; S::KEPT && e < 4; e++) a[i][e] = kept[i][k][e];
        }
        #pragma unroll
        for (int j = 0; j < S::KEYS / 8; j += 2) {
            uint32_t b[4];               /* [0], [1]: keys 8j .. 8j+7; [2], [3]: the next eight */
            load_tiles(b, keys + tile_offset<S::DIM>(8 * j + 8 * (lane / 16) + lane % 8,
                                                     2 * k + lane / 8 % 2));
            #pragma unroll
            for (int i = 0; i < S::TILES; i++) {
                mma_f16(s[i][j], a[i], b[0], b[1]);
                mma_f16(s[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Sets scores of keys outside a row's window to -infinity. key: the tile's first key. */
template <typename S>
static __device__ __forceinline__ void mask_tile(float (&s)[S::TILES][S::KEYS / 8][4],
                                                 const row_state<S> &x, int key, int window,
                                                 int lane)
{
    #pragma unroll
    for (int i = 0; i < S::TILES; i++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const int last = x.pos[i][e / 2], first = lowest_key(last, window);
            #pragma unroll
            for (int j = 0; j < S::KEYS / 8; j++) {
                const int at = key + 8 * j + 2 * (lane % 4) + e % 2;
                if (at < first || at > last) s[i][j][e] = -INFINITY;
            }
        }
}

/* Turns scores into weights, and rescales the rows' sums to the new maxima. */
template <typename S>
static __device__ __forceinline__ void weigh_tile(float (&s)[S::TILES][S::KEYS / 8][4],
                                                  row_state<S> &x)
{
    float shrink[S::TILES][2];
    bool same = true;

    #pragma unroll
    for (int i = 0; i < S::TILES; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]), sum = 0.0f;
            #pragma unroll
            for (int j = 1; j < S::KEYS / 8; j++)
                top = fmaxf(top, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
            top = fmaxf(top, x.top[i][h]);
            shrink[i][h] = power_of_2(x.top[i][h] - top);
            same = same && shrink[i][h] == 1.0f;
            x.top[i][h] = top;
            #pragma unroll
            for (int j = 0; j < S::KEYS / 8; j++) {
                s[i][j][2 * h] = power_of_2(s[i][j][2 * h] - top);
                s[i][j][2 * h + 1] = power_of_2(s[i][j][2 * h + 1] - top);
                sum += s[i][j][2 * h] + s[i][j][2 * h + 1];
            }
            x.total[i][h] = x.total[i][h] * shrink[i][h] + sum;
        }
    /* after the first tiles the largest score rarely changes */
    if (__all_sync(0xFFFFFFFFu, same)) return;
    #pragma unroll
    for (int i = 0; i < S::TILES; i++)
        #pragma unroll
        for (int j = 0; j < S::COLS / 8; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) x.sum[i][j][e] *= shrink[i][e / 2];
}

/* sum += weights * values, for the columns from `first` on. Two neighbouring 8-key results of
 * score_tile are the left factor of this product for 16 keys. */
template <typename S>
static __device__ __forceinline__ void add_tile(row_state<S> &x,
                                                const float (&s)[S::TILES][S::KEYS / 8][4],
                                                const uint8_t *values, int first, int lane)
{
    #pragma unroll
    for (int k = 0; k < S::KEYS / 16; k++) {
        uint32_t a[S::TILES][4];
        #pragma unroll
        for (int i = 0; i < S::TILES; i++) {
            a[i][0] = pack_f16(s[i][2 * k][0], s[i][2 * k][1]);
            a[i][1] = pack_f16(s[i][2 * k][2], s[i][2 * k][3]);
            a[i][2] = pack_f16(s[i][2 * k + 1][0], s[i][2 * k + 1][1]);
            a[i][3] = pack_f16(s[i][2 * k + 1][2], s[i][2 * k + 1][3]);
        }
        #pragma unroll
        for (int j = 0; j < S::COLS / 8; j += 2) {
            uint32_t b[4];               /* columns 8j .. 8j+7, then the next eight */
            load_tiles_transposed(b, values + tile_offset<S::DIM>(16 * k + lane % 16,
                                                                  first / 8 + j + lane / 16));
            #pragma unroll
            for (int i = 0; i < S::TILES; i++) {
                mma_f16(x.sum[i][j], a[i], b[0], b[1]);
                mma_f16(x.sum[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Initialises the state. row: the warp's first row. sinks: a.sinks, or NULL for later parts. */
template <typename S>
static __device__ __forceinline__ void begin_rows(row_state<S> &x, const gpu_attention &a, int pos,
                                                  int head_kv, int row, const float *sinks,
                                                  int lane)
{
    const int group = a.n_head / a.n_head_kv;
    #pragma unroll
    for (int i = 0; i < S::TILES; i++) {
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = row + 16 * i + 8 * h + lane / 4;
            x.pos[i][h] = pos + min(r / group, a.n - 1);
            x.top[i][h] = no_score;
            x.total[i][h] = 0.0f;
            if (sinks) {
                const float sink = sinks[head_kv * group + r % group] * log2_e;
                x.top[i][h] = fmaxf(sink, no_score);
                if (lane % 4 == 0) x.total[i][h] = power_of_2(sink - x.top[i][h]);
            }
        }
        #pragma unroll
        for (int j = 0; j < S::COLS / 8; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) x.sum[i][j][e] = 0.0f;
    }
}

/* Stores the output, columns from `first` on; with several parts the undivided result of one. */
template <typename S>
static __device__ __forceinline__ void store_rows(const row_state<S> &x, const gpu_attention &a,
                                                  int head_kv, int row, int first, int part,
                                                  int n_part, int lane)
{
    const int group = a.n_head / a.n_head_kv, n_row = a.n * group;
    #pragma unroll
    for (int i = 0; i < S::TILES; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = row + 16 * i + 8 * h + lane / 4;
            float total = x.total[i][h];
            total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
            total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
            if (r < n_row) {
                const size_t head = (size_t)(r / group) * a.n_head + head_kv * group + r % group;
                float *to = n_part > 1 ? part_values<S::DIM>(a, part, head)
                                       : a.out + head * S::DIM;
                const float factor = n_part > 1 ? 1.0f : 1.0f / total;
                #pragma unroll
                for (int j = 0; j < S::COLS / 8; j++)
                    *(float2 *)(to + first + 8 * j + 2 * (lane % 4)) =
                        make_float2(x.sum[i][j][2 * h] * factor, x.sum[i][j][2 * h + 1] * factor);
                if (n_part > 1 && first == 0 && lane % 4 == 0)
                    *part_stats<S::DIM>(a, n_part, part, head) = make_float2(x.top[i][h], total);
            }
        }
}

/* ---- tensor cores: the kernel ---------------------------------------------------------------- */

/* Grid: KV heads; blocks of rows, the last tokens (with the most keys) first; parts of the keys.
 *
 * While a tile is computed, the next one is copied to the memory of the previous one, after a
 * barrier at which all warps have left that. Q8_0 needs a second barrier, after widen_raw. */
template <typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) prompt_tensor(tracer f,
                                                                             gpu_attention a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    uint8_t *const q = shared, *const tiles = shared + S::Q_BYTES;
    uint8_t *const raw = tiles + 2 * S::TILE_BYTES;      /* Q8_0 only */
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 / S::SPLIT * S::TILES * 16;
    const int warp_col = threadIdx.x / 32 % S::SPLIT * S::COLS;
    const int head_kv = blockIdx.x, row = (gridDim.y - 1 - blockIdx.y) * S::ROWS;
    const int part = blockIdx.z, n_part = gridDim.z;
    const size_t row_bytes = S::Q8 ? S::STORED : 2 * S::DIM;
    const size_t rows[2] = { head_offset(a, false, head_kv, row_bytes),
                             head_offset(a, true, head_kv, row_bytes) };   /* keys, values */
    page_table pages;
    uint32_t kept[S::TILES][S::DIM / 16][4];
    row_state<S> x;

    auto fetch = [&](int key, int end, int turn) {
        const tile_rows p = tile_at<S::KEYS>(pages, key, end);
        if (S::Q8) {
            fetch_raw<S>(raw, rows[0], p);
            fetch_raw<S>(raw + S::RAW_BYTES, rows[1], p);
        } else {
            uint8_t *const to = tiles + turn * 2 * S::TILE_BYTES;
            uint8_t *const pair[2] = { to, to + S::TILE_BYTES };
            fetch_rows<S::KEYS, S::PIECES, S::THREADS>(pair, rows, p, tile_offset<S::DIM>);
        }
        copy_commit();
    };

    pdl_begin(f);
    pdl_wait(f);
    const int pos = a.cursor->pos;
    pages = pages_of(a, a.cursor);
    key_span span = span_of(a, pos, row, S::ROWS);
    take_part(span, S::KEYS, part, n_part);

    if (span.first < span.end) fetch(span.first, span.end, 0);
    put_queries<S>(q, a, head_kv, row);
    begin_rows<S>(x, a, pos, head_kv, row + warp_row, part == 0 ? a.sinks : NULL, lane);
    if (S::KEPT) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < S::TILES; i++)
            #pragma unroll
            for (int k = 0; k < S::DIM / 16; k++)
                load_queries<S>(kept[i][k], q, warp_row + 16 * i, k, lane);
    }
    for (int key = span.first, turn = 0; key < span.end; key += S::KEYS, turn ^= !S::Q8) {
        const uint8_t *const k_tile = tiles + turn * 2 * S::TILE_BYTES;
        float s[S::TILES][S::KEYS / 8][4];

        copy_wait<0>();
        __syncthreads();
        if (S::Q8) {
            const tile_rows p = tile_at<S::KEYS>(pages, key, span.end);
            widen_raw<S>(tiles, raw, p);
            widen_raw<S>(tiles + S::TILE_BYTES, raw + S::RAW_BYTES, p);
            __syncthreads();
        }
        if (key + S::KEYS < span.end) fetch(key + S::KEYS, span.end, turn ^ !S::Q8);
        score_tile<S>(s, kept, q, k_tile, warp_row, lane);
        if (key < span.all_first || key + S::KEYS - 1 > span.all_last)
            mask_tile<S>(s, x, key, a.window, lane);
        weigh_tile<S>(s, x);
        add_tile<S>(x, s, k_tile + S::TILE_BYTES, warp_col, lane);
    }
    store_rows<S>(x, a, head_kv, row + warp_row, warp_col, part, n_part, lane);
    pdl_end(f);
}

/* ---- F32 ------------------------------------------------------------------------------------- */

/* 128 threads, 32 rows. A score is summed in chunks of 64 dimensions, as on the CPU. The weighted
 * values of a tile are summed before the sum is added to that of earlier tiles. */
template <int DIM_, int KEYS_> struct float_shape {
    enum {
        DIM = DIM_, KEYS = KEYS_, THREADS = 128, ROWS = FLOAT_QUERY_ROWS,
        STRIDE = DIM + 4,                /* floats of a row: padded against bank conflicts */
        P_STRIDE = KEYS + 4,
        CHUNK = DIM < 64 ? DIM : 64,             /* dimensions that a score sums first */
        GROUPS = DIM < 64 ? DIM / 4 : 16,        /* threads side by side in a row of the output */
        OUT_ROWS = ROWS * GROUPS / THREADS,      /* output rows of a thread */
        PARTS = DIM / (4 * GROUPS),              /* groups of four output columns of a thread */
        SMEM = attention_float_bytes(DIM, KEYS)
    };
};

static __device__ __forceinline__ float dot4(float4 a, float4 b, float sum)
{
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    return fmaf(a.w, b.w, sum);
}

static __device__ __forceinline__ float4 add_scaled(float4 sum, float f, float4 v)
{
    return make_float4(fmaf(f, v.x, sum.x), fmaf(f, v.y, sum.y), fmaf(f, v.z, sum.z),
                       fmaf(f, v.w, sum.w));
}

/* p[ROWS, KEYS] = scores. A thread has two rows, 16 apart, and keys that are 8 apart. */
template <typename S>
static __device__ __forceinline__ void float_scores(float *p, const gpu_attention &a,
                                                    const float *q, const float *keys, int pos,
                                                    int row, int key)
{
    enum { N = S::KEYS / 8 };
    const int j0 = threadIdx.x % 8, i0 = threadIdx.x / 8;
    const int group = a.n_head / a.n_head_kv;
    float s[2][N] = {};

    for (int d0 = 0; d0 < S::DIM; d0 += S::CHUNK) {
        float sum[2][N] = {};
        #pragma unroll 4
        for (int d = d0; d < d0 + S::CHUNK; d += 4) {
            float4 x[2], y[N];
            #pragma unroll
            for (int i = 0; i < 2; i++)
                x[i] = *(const float4 *)(q + (i0 + 16 * i) * S::STRIDE + d);
            #pragma unroll
            for (int j = 0; j < N; j++)
                y[j] = *(const float4 *)(keys + (j0 + 8 * j) * S::STRIDE + d);
            #pragma unroll
            for (int i = 0; i < 2; i++)
                #pragma unroll
                for (int j = 0; j < N; j++) sum[i][j] = dot4(x[i], y[j], sum[i][j]);
        }
        #pragma unroll
        for (int i = 0; i < 2; i++)
            #pragma unroll
            for (int j = 0; j < N; j++) s[i][j] += sum[i][j];
    }
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = i0 + 16 * i, last = pos + min((row + r) / group, a.n - 1);
        const int first = lowest_key(last, a.window);
        #pragma unroll
        for (int j = 0; j < N; j++) {
            const int at = key + j0 + 8 * j;
            p[r * S::P_STRIDE + j0 + 8 * j] = at < first || at > last ? -INFINITY
                                                                      : s[i][j] * a.scale;
        }
    }
}

/* Turns scores into weights. Four threads share a row, and all have its state in top and total.
 * Returns the factor for earlier sums. */
template <typename S>
static __device__ __forceinline__ float float_weights(float *p, float &top, float &total)
{
    float *const row_scores = p + threadIdx.x / 4 * S::P_STRIDE + threadIdx.x % 4;
    float largest = top, sum = 0.0f, shrink;

    #pragma unroll
    for (int j = 0; j < S::KEYS; j += 4) largest = fmaxf(largest, row_scores[j]);
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    #pragma unroll
    for (int j = 0; j < S::KEYS; j += 4) {
        const float w = expf(row_scores[j] - largest);
        row_scores[j] = w;
        sum += w;
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    shrink = expf(top - largest);
    total = fmaf(total, shrink, sum);
    top = largest;
    return shrink;
}

/* out = out * shrink + p * values; a thread has OUT_ROWS neighbouring rows. */
template <typename S>
static __device__ __forceinline__ void float_sums(float4 (&out)[S::PARTS][S::OUT_ROWS],
                                                  const float *p, const float *values,
                                                  const float *shrink)
{
    const int c0 = threadIdx.x % S::GROUPS * 4, r0 = threadIdx.x / S::GROUPS * S::OUT_ROWS;
    #pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        const int c = c0 + part * 4 * S::GROUPS;
        float4 sum[S::OUT_ROWS];
        #pragma unroll
        for (int r = 0; r < S::OUT_ROWS; r++) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        #pragma unroll 2
        for (int k = 0; k < S::KEYS; k += 4) {
            float4 w[S::OUT_ROWS], v[4];
            #pragma unroll
            for (int r = 0; r < S::OUT_ROWS; r++)
                w[r] = *(const float4 *)(p + (r0 + r) * S::P_STRIDE + k);
            #pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = *(const float4 *)(values + (k + i) * S::STRIDE + c);
            #pragma unroll
            for (int r = 0; r < S::OUT_ROWS; r++) {
                sum[r] = add_scaled(sum[r], w[r].x, v[0]);
                sum[r] = add_scaled(sum[r], w[r].y, v[1]);
                sum[r] = add_scaled(sum[r], w[r].z, v[2]);
                sum[r] = add_scaled(sum[r], w[r].w, v[3]);
            }
        }
        #pragma unroll
        for (int r = 0; r < S::OUT_ROWS; r++)
            out[part][r] = add_scaled(sum[r], shrink[r0 + r], out[part][r]);
    }
}

/* The next tile's keys are copied during weights and sums, a tile's values during its scores. */
template <typename S>
static __global__ void __launch_bounds__(S::THREADS) prompt_float(tracer f, gpu_attention a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    float *const q = (float *)shared, *const k_tile = q + S::ROWS * S::STRIDE;
    float *const v_tile = k_tile + S::KEYS * S::STRIDE, *const p = v_tile + S::KEYS * S::STRIDE;
    float *const factor = p + S::ROWS * S::P_STRIDE;     /* [ROWS] */
    const int head_kv = blockIdx.x, row = (gridDim.y - 1 - blockIdx.y) * S::ROWS;
    const int group = a.n_head / a.n_head_kv, n_row = a.n * group;
    const size_t keys = head_offset(a, false, head_kv, S::DIM * sizeof(float));
    const size_t values = head_offset(a, true, head_kv, S::DIM * sizeof(float));
    page_table pages;
    float4 out[S::PARTS][S::OUT_ROWS];
    float top = no_score, total = 0.0f;

    auto place = [](int r, int c) { return (r * S::STRIDE + 4 * c) * (int)sizeof(float); };
    auto fetch = [&](float *tile, size_t rows, int key, int end) {
        uint8_t *const to[1] = { (uint8_t *)tile };
        const size_t from[1] = { rows };
        if (key < end)
            fetch_rows<S::KEYS, S::DIM / 4, S::THREADS>(to, from, tile_at<S::KEYS>(pages, key, end),
                                                        place);
        copy_commit();
    };

    pdl_begin(f);
    pdl_wait(f);
    const int pos = a.cursor->pos;
    pages = pages_of(a, a.cursor);
    const key_span span = span_of(a, pos, row, S::ROWS);

    fetch(k_tile, keys, span.first, span.end);
    for (int i = threadIdx.x; i < S::ROWS * S::DIM / 4; i += S::THREADS) {
        const int r = i / (S::DIM / 4), c = i % (S::DIM / 4) * 4;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row + r < n_row)
            v = *(const float4 *)(a.q + (size_t)((row + r) / group) * a.q_stride +
                                  (size_t)(head_kv * group + (row + r) % group) * a.q_head_stride +
                                  c);
        *(float4 *)(q + r * S::STRIDE + c) = v;
    }
    if (a.sinks) {
        const float sink = a.sinks[head_kv * group + (row + threadIdx.x / 4) % group];
        top = fmaxf(sink, no_score);
        total = expf(sink - top);
    }
    #pragma unroll
    for (int part = 0; part < S::PARTS; part++)
        #pragma unroll
        for (int r = 0; r < S::OUT_ROWS; r++)
            out[part][r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int key = span.first; key < span.end; key += S::KEYS) {
        copy_wait<0>();                  /* this thread's copies of keys have arrived */
        __syncthreads();                 /* all copies have; p and v_tile may be overwritten */
        fetch(v_tile, values, key, span.end);
        float_scores<S>(p, a, q, k_tile, pos, row, key);
        __syncthreads();                 /* scores are complete; k_tile may be overwritten */
        fetch(k_tile, keys, key + S::KEYS, span.end);
        const float shrink = float_weights<S>(p, top, total);
        if (threadIdx.x % 4 == 0) factor[threadIdx.x / 4] = shrink;
        copy_wait<1>();                  /* values have arrived; the next keys may not have */
        __syncthreads();
        float_sums<S>(out, p, v_tile, factor);
    }
    __syncthreads();
    if (threadIdx.x % 4 == 0) factor[threadIdx.x / 4] = 1.0f / total;
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < S::OUT_ROWS; r++) {
        const int i = threadIdx.x / S::GROUPS * S::OUT_ROWS + r, at = row + i;
        if (at >= n_row) continue;
        const size_t head = (size_t)(at / group) * a.n_head + head_kv * group + at % group;
        #pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            const int c = (threadIdx.x % S::GROUPS + part * S::GROUPS) * 4;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            *(float4 *)(a.out + head * S::DIM + c) = add_scaled(zero, factor[i], out[part][r]);
        }
    }
    pdl_end(f);
}

/* ---- launches -------------------------------------------------------------------------------- */

static unsigned blocks_of(const gpu_attention *a, int rows)
{
    return ceil_div((uint64_t)a->n * (uint64_t)(a->n_head / a->n_head_kv), (uint64_t)rows);
}

/* Bytes of queries, keys and values, each counted once. */
static uint64_t bytes_of(const gpu_attention *a)
{
    const uint64_t dim = (uint64_t)a->head_dim;
    const uint64_t row = a->kv == GPU_KV_F32 ? 4 * dim : a->kv == GPU_KV_F16 ? 2 * dim :
                         dim / 32 * sizeof(block_q8_0);
    const int seen = a->window && a->window + a->n - 1 < a->last ? a->window + a->n - 1 : a->last;
    return 2 * row * (uint64_t)seen * (uint64_t)a->n_head_kv +
           4 * dim * (uint64_t)a->n_head * (uint64_t)a->n;
}

template <typename S> static void launch_tensor(gpu *g, const gpu_attention *a)
{
    const unsigned n_head = (unsigned)a->n_head_kv, n_block = blocks_of(a, S::ROWS);
    const int n_part = parts_for(a, g->n_sm * S::BLOCKS, (int)(n_head * n_block));
    launch(g, "attention", bytes_of(a), prompt_tensor<S>, dim3(n_head, n_block, (unsigned)n_part),
           S::THREADS, S::SMEM, *a);
    if (n_part > 1) launch_add<S::DIM>(g, a, n_part);
}

template <typename S> static void launch_float(gpu *g, const gpu_attention *a)
{
    launch(g, "attention", bytes_of(a), prompt_float<S>,
           dim3((unsigned)a->n_head_kv, blocks_of(a, S::ROWS)), S::THREADS, S::SMEM, *a);
}

/* Launches shape S, or Smaller if S exceeds the chip's shared memory. */
template <typename S, typename Smaller> static void launch_tensor_fitting(gpu *g,
                                                                          const gpu_attention *a)
{
    if (S::SMEM <= g->smem_block) launch_tensor<S>(g, a);
    else launch_tensor<Smaller>(g, a);
}

/* Shapes for heads of 512; least is the smallest. */
template <bool Q8> struct wide_shapes {
    typedef shape<512, 8, 1, 32, Q8, 1, 2> large;
    typedef shape<512, 8, 1, 16, Q8, 1, 2> medium;
    typedef shape<512, 4, 1, 16, Q8, 1, 2> least;
};

template <bool Q8> static void launch_wide(gpu *g, const gpu_attention *a)
{
    typedef wide_shapes<Q8> of;
    /* large blocks need enough tokens: otherwise half of the multiprocessors would be idle */
    const bool many = 2 * blocks_of(a, of::large::ROWS) * (unsigned)a->n_head_kv >
                      (unsigned)g->n_sm;
    if (many && of::large::SMEM <= g->smem_block) launch_tensor<typename of::large>(g, a);
    else if (many && of::medium::SMEM <= g->smem_block) launch_tensor<typename of::medium>(g, a);
    else launch_tensor<typename of::least>(g, a);
}

bool attention_prompt_fits(const gpu *g, const gpu_attention *a)
{
    if (a->head_dim <= 256) return true;
    return a->kv == GPU_KV_F16 ? wide_shapes<false>::least::SMEM <= g->smem_block :
           a->kv == GPU_KV_Q8_0 && wide_shapes<true>::least::SMEM <= g->smem_block;
}

template <bool Q8> static void launch_halves(gpu *g, const gpu_attention *a)
{
    typedef shape<256, 8, 1, 64, Q8, 1> large;

    switch (a->head_dim) {
    case 32: launch_tensor<shape<32, 4, 2, 64, Q8, 2>>(g, a); break;
    case 64: launch_tensor<shape<64, 4, 2, 64, Q8, 2>>(g, a); break;
    case 128: launch_tensor_fitting<shape<128, 8, 1, 64, Q8, 1>, shape<128, 8, 1, 32, Q8, 1>>(g, a);
        break;
    case 256:
        /* large blocks need enough tokens: otherwise half of the multiprocessors would be idle */
        if (large::SMEM <= g->smem_block &&
            2 * blocks_of(a, large::ROWS) * (unsigned)a->n_head_kv > (unsigned)g->n_sm)
            launch_tensor<large>(g, a);
        else
            launch_tensor_fitting<shape<256, 4, 1, 32, Q8, 2>, shape<256, 4, 1, 16, Q8, 2>>(g, a);
        break;
    case 512: launch_wide<Q8>(g, a); break;
    default: gpu_fail(g, cudaErrorInvalidValue, "attention"); break;
    }
}

static void launch_floats(gpu *g, const gpu_attention *a)
{
    typedef float_shape<256, 16> large;

    switch (a->head_dim) {
    case 32: launch_float<float_shape<32, 32>>(g, a); break;
    case 64: launch_float<float_shape<64, 32>>(g, a); break;
    case 128: launch_float<float_shape<128, 32>>(g, a); break;
    case 256:
        if (large::SMEM <= g->smem_block) launch_float<large>(g, a);
        else launch_float<float_shape<256, 8>>(g, a);
        break;
    default: gpu_fail(g, cudaErrorInvalidValue, "attention"); break;
    }
}

void attention_prompt(gpu *g, const gpu_attention *a)
{
    switch (a->kv) {
    case GPU_KV_F32: launch_floats(g, a); break;
    case GPU_KV_F16: launch_halves<false>(g, a); break;
    case GPU_KV_Q8_0: launch_halves<true>(g, a); break;
    }
}
