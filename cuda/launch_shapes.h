/* launch_shapes.h - bytes of dynamic shared memory of every launch that has any, and the number of
 * threads or tokens that fit a chip's blocks.
 *
 * Pure functions, valid C and C++. Kernels and launches take their sizes from here.
 * tests/test_launch_shapes.c compares the sizes with the chips' limits for all types and many
 * widths. A new kernel with dynamic shared memory gets a function here and a row in that test. */
#ifndef CUDA_LAUNCH_SHAPES_H
#define CUDA_LAUNCH_SHAPES_H

#include "cuda/gpu.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"

#ifdef __cplusplus
#define SHAPE_FN static constexpr inline
#else
#define SHAPE_FN static inline
#endif

/* The properties of a chip that a launch depends on. */
typedef struct chip {
    size_t block_bytes;                  /* most shared memory of a block, static and dynamic */
    int code;                            /* architecture that kernels were compiled for, e.g. 75 */
    unsigned n_sm;
} chip;

enum {
    BULK_FROM = 90,                      /* first architecture with bulk copies */
    UNIT_ROWS = 8,                       /* rows that a warp computes at a time */
    STATIC_BYTES = 4096,                 /* upper bound of a kernel's static shared memory, unless
                                          * its function here counts it */
    SUMS_BYTES = 32 * sizeof(float)      /* shared memory of block_sum */
};

SHAPE_FN bool shape_is_float(int type)
{
    return type == QT_F32 || type == QT_F16 || type == QT_BF16;
}

/* ---- weights that are copied to shared memory ------------------------------------------------ */

/* Bytes of a group, 256 weights; 0: not a block format of the GPU. */
SHAPE_FN int group_bytes_of(int type)
{
    switch (type) {
    case QT_Q4_0: return 8 * (int)sizeof(block_q4_0);
    case QT_Q4_1: return 8 * (int)sizeof(block_q4_1);
    case QT_Q5_0: return 8 * (int)sizeof(block_q5_0);
    case QT_Q5_1: return 8 * (int)sizeof(block_q5_1);
    case QT_Q8_0: return 8 * (int)sizeof(block_q8_0);
    case QT_IQ4_NL: return 8 * (int)sizeof(block_iq4_nl);
    case QT_MXFP4: return 8 * (int)sizeof(block_mxfp4);
    case QT_NVFP4: return 4 * (int)sizeof(block_nvfp4);
    case QT_Q2_K: return (int)sizeof(block_q2_k);
    case QT_Q3_K: return (int)sizeof(block_q3_k);
    case QT_Q4_K: return (int)sizeof(block_q4_k);
    case QT_Q5_K: return (int)sizeof(block_q5_k);
    case QT_Q6_K: return (int)sizeof(block_q6_k);
    case QT_IQ4_XS: return (int)sizeof(block_iq4_xs);
    default: return 0;
    }
}

/* Allowed remainders of the pitch (the distance between two rows in shared memory) modulo 128: bit
 * i allows 16 i. They spread the words that a warp reads at once over as many banks as possible.
 * Otherwise a block of gpt-oss takes 40 accesses instead of 20 (Q8_0), 18 instead of 12 (MXFP4). */
SHAPE_FN int pitch_mask(int type)
{
    return type == QT_MXFP4 ? 0x50 : type == QT_Q8_0 ? 0xE4 : type == QT_Q4_K ? 0xEE : 0xAA;
}

/* The smallest pitch >= room that mask allows; room is a multiple of 16. */
SHAPE_FN int pitch_of(int room, int mask)
{
    while (!(mask >> room / 16 % 8 & 1)) room += 16;
    return room;
}

/* Groups of each row in a chunk. Without bulk copies there are `stages` chunks; with bulk copies
 * two, which together hold as many groups, or one more. */
SHAPE_FN int chunk_groups(int type, int stages, bool bulk)
{
    const int limit = 288, group = group_bytes_of(type), few = group > limit ? 1 : limit / group;
    return bulk ? (stages * few + 1) / 2 : few;
}

SHAPE_FN int chunk_bytes(int type, int stages, bool bulk)
{
    return chunk_groups(type, stages, bulk) * group_bytes_of(type);
}

/* Bytes of a row's chunk in shared memory, with up to 15 bytes before it if it is not aligned. */
SHAPE_FN int chunk_row_bytes(int type, int stages, bool bulk)
{
    return (chunk_bytes(type, stages, bulk) + 15 + 15) / 16 * 16;
}

SHAPE_FN int chunk_pitch(int type, int stages, bool bulk)
{
    return pitch_of(chunk_row_bytes(type, stages, bulk), pitch_mask(type));
}

/* Shared memory of a warp: its chunks, and with bulk copies a barrier of 8 bytes for each chunk. */
SHAPE_FN int warp_bytes_of(int type, int stages, int rows, bool bulk)
{
    return (bulk ? 2 : stages) * rows * chunk_pitch(type, stages, bulk) + (bulk ? 16 : 0);
}

/* may_bulk: the kernel uses bulk copies where the chip has them. */
SHAPE_FN size_t warp_bytes(const chip *c, int type, int stages, int rows, bool may_bulk)
{
    return (size_t)warp_bytes_of(type, stages, rows, may_bulk && c->code >= BULK_FROM);
}

/* ---- experts of a few tokens: experts.cuh ---------------------------------------------------- */

enum { UP_THREADS = 256, UP_ROWS = 32, DOWN_THREADS = 256, DOWN_MOST_THREADS = 384, DOWN_ROWS = 8 };

/* Stages of gate and up: two before sm_80 (no background copies, little shared memory); three for
 * MXFP4, whose arithmetic needs as many warps as fit, and if up_takes_fewer; else four. */
SHAPE_FN int up_stages_of(int type, bool fewer, int code)
{
    return code < 80 ? 2 : fewer || type == QT_MXFP4 ? 3 : 4;
}

SHAPE_FN size_t up_bytes(const chip *c, int type, int stages, int cols)
{
    if (shape_is_float(type)) return (size_t)cols * sizeof(float);
    return UP_THREADS / 32 * warp_bytes(c, type, stages, UNIT_ROWS, true) + gpu_blocks_bytes(cols);
}

/* Whether gate and up use three stages instead of four because all n_block blocks are then active
 * at the same time, but are not with four. Only for Q4_K, the most common type. */
static inline bool up_takes_fewer(const chip *c, int type, int cols, uint64_t n_block)
{
    const int most = up_stages_of(type, false, c->code);
    const size_t more = up_bytes(c, type, most, cols) + STATIC_BYTES;
    const size_t less = up_bytes(c, type, 3, cols) + STATIC_BYTES;
    return type == QT_Q4_K && most > 3 && n_block > c->n_sm * (c->block_bytes / more) &&
           n_block <= c->n_sm * (c->block_bytes / less);
}

typedef struct down_shape {
    unsigned warps;
    int octet_shift;                     /* see down_args */
    int n_staged;                        /* floats: slots whose activations are in shared memory */
    size_t bytes;
} down_shape;

SHAPE_FN int down_stages_of(bool paired) { return paired ? 3 : 4; }

/* Whether a warp computes all eight rows of a slot instead of four, which pays for short rows. */
SHAPE_FN bool down_is_paired(int type, uint64_t row_bytes)
{
    return row_bytes <= 2 * (uint64_t)chunk_bytes(type, 1, false);
}

static inline down_shape down_float_shape(const chip *c, int n_slot, int n_ff)
{
    const size_t vector = (size_t)n_ff * sizeof(float);
    const size_t fit = (c->block_bytes - STATIC_BYTES) / vector;
    down_shape s = { DOWN_THREADS / 32, 0, fit < (size_t)n_slot ? (int)fit : n_slot, 0 };
    s.bytes = (size_t)s.n_staged * vector;
    return s;
}

/* Chooses the number of warps so that each has the same number of units; with nine slots, eight
 * warps would be idle at the end. With few slots a block has more than eight rows (octet_shift). */
static inline down_shape down_block_shape(const chip *c, int type, bool paired, int n_slot,
                                          int n_ff, int n_embd)
{
    const size_t warp = warp_bytes(c, type, down_stages_of(paired),
                                   paired ? UNIT_ROWS : UNIT_ROWS / 2, true);
    const size_t fixed = (size_t)n_slot * gpu_blocks_bytes(n_ff);
    const size_t left = c->block_bytes > fixed + STATIC_BYTES
                            ? c->block_bytes - fixed - STATIC_BYTES : 0;
    const unsigned fit = (unsigned)(left / warp), units = (paired ? 1u : 2u) * (unsigned)n_slot;
    down_shape s = { DOWN_THREADS / 32, 0, 0, 0 };
    while (!paired && units << (s.octet_shift + 1) <= s.warps &&
           units << (s.octet_shift + 1) <= fit &&
           n_embd >= (DOWN_ROWS << (s.octet_shift + 1)) * (int)c->n_sm)
        s.octet_shift++;
    const unsigned all = units << s.octet_shift, most = DOWN_MOST_THREADS / 32;
    const unsigned rounds = (all + most - 1) / most, even = (all + rounds - 1) / rounds;
    if (!paired || even > s.warps) s.warps = even;
    while (s.warps > 1 && s.warps > fit) s.warps = (s.warps + 1) / 2;
    s.bytes = s.warps * warp + fixed;
    return s;
}

/* ---- products of a few tokens: matvec.cuh ---------------------------------------------------- */

enum { DENSE_THREADS = 512, DENSE_WARPS = DENSE_THREADS / 32, DENSE_STAGES = 3 };

/* Static shared memory of the kernel for this number of tokens. */
SHAPE_FN size_t dense_static_bytes(int tokens)
{
    return (size_t)DENSE_WARPS * UNIT_ROWS * (size_t)tokens * sizeof(float);
}

/* Number of vectors that a block's shared memory holds. Float weights: at most n. Quantised
 * weights: GPU_FEW int8 forms if the chunks of one warp fit, too; else a power of two below GPU_FEW
 * that leaves memory for the chunks of four warps. */
static inline int dense_tokens(const chip *c, int type, int cols, int n)
{
    const size_t vector = shape_is_float(type) ? (size_t)cols * sizeof(float)
                                               : gpu_blocks_bytes(cols);
    size_t fixed = SUMS_BYTES, warps = 1;
    int fit = GPU_FEW;
    if (shape_is_float(type)) {
        fit = (int)((c->block_bytes - fixed) / vector);
        return fit >= n ? n : fit < 1 ? 1 : fit;
    }
    fixed += dense_static_bytes(GPU_FEW);
    const size_t warp = warp_bytes(c, type, DENSE_STAGES, UNIT_ROWS, false);
    for (; fit > 1 && (size_t)fit * vector + fixed + warps * warp > c->block_bytes; fit /= 2)
        warps = 4;
    return fit;
}

typedef struct dense_shape {
    int warps;                           /* warps that fit */
    size_t rest, warp;                   /* bytes of vectors and sums; bytes of each warp */
} dense_shape;

/* n_room: vectors in shared memory; tokens: of which sums are in static memory. */
static inline dense_shape dense_block_shape(const chip *c, int type, int tokens, bool in_bulk,
                                            int n_room, int cols)
{
    dense_shape s = { 1, 0, warp_bytes(c, type, DENSE_STAGES, UNIT_ROWS, in_bulk) };
    s.rest = (size_t)n_room * gpu_blocks_bytes(cols) + SUMS_BYTES;
    const size_t taken = s.rest + dense_static_bytes(tokens);
    const size_t room = c->block_bytes < taken ? 0 : (c->block_bytes - taken) / s.warp;
    s.warps = room < 1 ? 1 : room < DENSE_WARPS ? (int)room : DENSE_WARPS;
    return s;
}

/* Warps that divide the columns of a unit, if a block computes `need` units: as many as fit with
 * the vectors of GPU_FEW tokens. So the order of a row's last additions does not depend on the
 * number of tokens. */
static inline int dense_shares(const chip *c, int type, int cols, int need)
{
    const int n_room = dense_tokens(c, type, cols, GPU_FEW);
    const int warps = dense_block_shape(c, type, GPU_FEW, false, n_room, cols).warps;
    return need > warps ? 1 : warps / need;
}

/* ---- experts of a batch: experts_partial_batch.cu -------------------------------------------- */

enum { PARTIAL_THREADS = 256, PARTIAL_STAGES = 3 };

/* As many threads as fit the block's shared memory, then as many slots. */
typedef struct partial_shape {
    unsigned threads;
    int each;                            /* slots that are computed together */
    size_t bytes;
} partial_shape;

static inline partial_shape partial_shape_of(const chip *c, int type, int cols)
{
    const bool floats = shape_is_float(type);
    const size_t vector = floats ? (size_t)cols * sizeof(float) : gpu_blocks_bytes(cols);
    const size_t warp = floats ? 0 : warp_bytes(c, type, PARTIAL_STAGES, UNIT_ROWS, true);
    const size_t most = c->block_bytes - STATIC_BYTES;
    partial_shape s = { PARTIAL_THREADS, GPU_FEW, 0 };
    while (s.threads > 32 && warp > 0 && s.threads / 32 * warp + (size_t)s.each * vector > most)
        s.threads /= 2;
    while (s.each > 1 && s.threads / 32 * warp + (size_t)s.each * vector > most) s.each--;
    s.bytes = s.threads / 32 * warp + (size_t)s.each * vector;
    return s;
}

/* ---- products of many tokens: gemm_tile.cuh -------------------------------------------------- */

enum { GEMM_ROWS = 128, GEMM_ROW_BYTES = 128, GEMM_LEAST_TOKENS = 32, GEMM_MOST_TOKENS = 256 };

/* Bytes of two tiles of weights and two of activations. */
SHAPE_FN size_t tile_bytes(int tokens)
{
    return 2 * (size_t)(GEMM_ROWS + tokens) * GEMM_ROW_BYTES;
}

/* The largest tile of at most `tokens` tokens that fits. staged: bytes of raw_tile_bytes, or 0. */
static inline int tile_tokens_that_fit(const chip *c, size_t staged, int tokens)
{
    while (tokens > GEMM_LEAST_TOKENS && tile_bytes(tokens) + staged > c->block_bytes) tokens /= 2;
    return tokens;
}

/* Distance of two rows' raw groups in shared memory. Only kernels for sm_90 have raw groups. */
SHAPE_FN int raw_tile_pitch(int type)
{
    const bool aligned = type == QT_Q4_K || type == QT_Q5_K;
    return ((group_bytes_of(type) + (aligned ? 0 : 15) + 15) / 16 | 1) * 16;
}

/* Two groups of each row. Unpacking may read a word past a block. */
SHAPE_FN int raw_tile_bytes(int type) { return 2 * GEMM_ROWS * raw_tile_pitch(type) + 16; }

/* ---- products of many tokens by the contract: contract_tile.cuh ------------------------------ */

enum { CONTRACT_STEP = 4, CODE_PITCH = 128 };    /* blocks of a step; bytes of a row's codes */

/* Floats that a row stores for each block. By number: 1: t; 2: t, c m or f, f; 3: sc, sc, d; 6: sc,
 * sc, d, m, m, c (docs/numerics.md, section 3; t = d * sc). */
SHAPE_FN int contract_row_floats(int type)
{
    switch (type) {
    case QT_Q2_K: return 6;
    case QT_Q3_K: case QT_Q6_K: return 3;
    case QT_Q4_1: case QT_Q5_1: case QT_Q4_K: case QT_Q5_K: case QT_NVFP4: return 2;
    default: return 1;
    }
}

/* Floats that a token stores for each block: dx, then the sum of the block's codes or of each
 * half's codes, if the type has minimums. */
SHAPE_FN int contract_token_floats(int type)
{
    switch (type) {
    case QT_Q2_K: return 3;
    case QT_Q4_1: case QT_Q5_1: case QT_Q4_K: case QT_Q5_K: return 2;
    default: return 1;
    }
}

/* The distance of two rows' raw groups: an odd number of 16-byte chunks against bank conflicts. */
SHAPE_FN int contract_raw_pitch(int type)
{
    return ((group_bytes_of(type) + 15 + 15) / 16 | 1) * 16;
}

/* Bytes of codes, scales and raw groups of this step and of the next one. */
SHAPE_FN int contract_tile_bytes(int type, int rows, int tokens)
{
    const int floats = contract_row_floats(type) * rows + contract_token_floats(type) * tokens;
    return 2 * ((rows + tokens) * CODE_PITCH + floats * CONTRACT_STEP * (int)sizeof(float) +
                rows * contract_raw_pitch(type)) + 16;
}

/* ---- products of up to eight tokens by the contract: few_tile.cuh ---------------------------- */

enum {
    FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS,
    FEW_MOST_ROWS = 64, FEW_LEAST_ROWS = 16      /* of a unit: 64, 32 or 16 */
};

/* Groups of a chunk: as many as a chunk of matvec.cuh has, whose parts of a row end there. */
SHAPE_FN int few_groups(int type) { return chunk_groups(type, DENSE_STAGES, false); }

/* Distances of two rows and of two tokens in a chunk: odd numbers of 16 bytes against bank
 * conflicts. A token has 32 codes, a scale and a sum of 4 bytes for each block. */
SHAPE_FN int few_row_pitch(int type)
{
    return ((few_groups(type) * group_bytes_of(type) + 15 + 15) / 16 | 1) * 16;
}
SHAPE_FN int few_token_pitch(int type) { return few_groups(type) * 8 * 40 + 16; }
SHAPE_FN int few_chunk_bytes(int type, int rows)
{
    return rows * (4 + few_row_pitch(type)) + GPU_FEW * few_token_pitch(type);
}

/* Floats between the sums of two tokens. */
SHAPE_FN int few_sum_pitch(int rows) { return rows + 4; }

/* A warp's own memory: scales of a block of each row and group of a chunk; later its sums. */
SHAPE_FN int few_warp_bytes(int type, int rows)
{
    const int scales = few_groups(type) * rows * contract_row_floats(type) * (int)sizeof(float);
    const int sums = GPU_FEW * few_sum_pitch(rows) * (int)sizeof(float);
    return scales > sums ? scales : sums;
}

/* Chunks in flight: fewer rows need more, as far as 96 KiB hold them. Before sm_80 copies do not run
 * in the background, so there is one. */
SHAPE_FN int few_stages(int type, int rows, int code)
{
    const int room = (96 << 10) - FEW_WARPS * few_warp_bytes(type, rows);
    int most = rows == 64 ? 3 : rows == 32 ? 5 : 8;
    while (most > 2 && most * few_chunk_bytes(type, rows) > room) most--;
    return code < 80 ? 1 : most;
}

SHAPE_FN int few_bytes(int type, int rows, int code)
{
    return few_stages(type, rows, code) * few_chunk_bytes(type, rows) +
           FEW_WARPS * few_warp_bytes(type, rows);
}

/* Blocks of a multiprocessor: as many as its shared memory holds, up to the limit by registers. */
SHAPE_FN int few_most_active(int rows) { return rows == 64 ? 2 : 3; }
static inline unsigned few_active(const chip *c, int type, int rows)
{
    const size_t each = (size_t)few_bytes(type, rows, c->code) + 1024, room = c->block_bytes + 1024;
    const unsigned most = (unsigned)few_most_active(rows), fit = (unsigned)(room / each);
    return fit < 1 ? 1 : fit < most ? fit : most;
}

/* ---- products of F32 weights: gemm_float.cu -------------------------------------------------- */

enum { FLOAT_STEP = 16 };                /* columns that are fetched at a time */

/* Bytes of two steps of each group of threads. All sums later use the same bytes. */
SHAPE_FN size_t gemm_float_bytes(int side, int tokens, int groups)
{
    const int stages = 2 * (side + tokens) * FLOAT_STEP, sums = side * tokens;
    return (size_t)groups * (size_t)(stages > sums ? stages : sums) * sizeof(float);
}

/* ---- attention of prompts: attention_prompt.cu ----------------------------------------------- */

/* Bytes of a tile of raw Q8_0 keys: one or two ranges of the ring, each with up to 15 more bytes at
 * either end, and 4 readable bytes after them. */
SHAPE_FN int attention_raw_bytes(int dim, int keys)
{
    return keys * (dim / 32 * (int)sizeof(block_q8_0)) + 64;
}

/* Bytes of the queries and of two pairs of tiles K and V, used alternately. With Q8_0: one pair of
 * tiles, and the raw bytes of the next pair. */
SHAPE_FN int attention_tensor_bytes(int dim, int rows, int keys, bool q8)
{
    const int tile = keys * dim * 2;
    return rows * dim * 2 + (q8 ? 2 * tile + 2 * attention_raw_bytes(dim, keys) : 4 * tile);
}

enum { FLOAT_QUERY_ROWS = 32 };

/* F32 keys: bytes of queries, keys, values, scores, and a factor for each row. Rows are padded by
 * four floats against bank conflicts. */
SHAPE_FN int attention_float_bytes(int dim, int keys)
{
    const int rows = FLOAT_QUERY_ROWS;
    return ((rows + 2 * keys) * (dim + 4) + rows * (keys + 4) + rows) * (int)sizeof(float);
}

/* ---- DeltaNet over chunks: delta_chunks.cu --------------------------------------------------- */

enum { DELTA_TOKENS = GPU_DELTA_CHUNK, DELTA_BLOCKS = DELTA_TOKENS / 16 };

/* Bytes of solve_memory: k as high and low halves; q likewise, whose memory two square matrices use
 * later; diagonal blocks; seven vectors. Rows are padded by 16 bytes. */
SHAPE_FN size_t delta_solve_bytes(int dim)
{
    const size_t k = 4 * DELTA_TOKENS * ((size_t)dim + 8);
    const size_t squares = 8 * DELTA_TOKENS * (DELTA_TOKENS + 8);
    return k + (k > squares ? k : squares) + DELTA_BLOCKS * 16 * 17 * sizeof(float) +
           7 * DELTA_TOKENS * sizeof(float);
}

/* Bytes of `stages` operands in flight, and of three exchanges of half a chunk by four warps. */
SHAPE_FN size_t delta_carry_bytes(int dim, int stages)
{
    return (size_t)stages * DELTA_TOKENS * (size_t)dim * 4 + 3 * 4 * (DELTA_TOKENS / 16) * 32 * 16;
}

/* The most stages that fit: 6, 4, 2, or 0: chunks cannot be computed on this chip. */
SHAPE_FN int delta_carry_stages(const chip *c, int dim)
{
    int stages = 6;
    while (stages > 0 && delta_carry_bytes(dim, stages) > c->block_bytes) stages -= 2;
    return stages;
}

/* ---- routers: route.cu, expert_prediction.cu ------------------------------------------------- */

enum { ROUTE_STATIC_BYTES = 2048 };

SHAPE_FN size_t route_row_bytes(int cols) { return ((size_t)cols * 4 + 15) / 16 * 16; }
SHAPE_FN size_t prediction_bytes(int cols) { return (size_t)cols * sizeof(float); }

#undef SHAPE_FN
#endif
