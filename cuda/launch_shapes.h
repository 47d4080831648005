/* launch_shapes.h - bytes of dynamic shared memory of every launch that has any, and the block that
 * fits the chip.
 *
 * Pure functions, valid C and C++. Launches take their sizes from here; tests/test_launch_shapes.c
 * compares them with the chips' limits for all types and many widths. A new kernel with dynamic
 * shared memory gets its function here and its row in that test. */
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
    int code;                            /* architecture that kernels were compiled for: 75 */
    unsigned n_sm;
} chip;

enum {
    BULK_FROM = 90,                      /* first architecture with bulk copies */
    UNIT_ROWS = 8,                       /* rows that a warp computes at a time */
    STATIC_BYTES = 4096,                 /* upper bound of static memory, unless a shape counts
                                          * it */
    SUMS_BYTES = 32 * sizeof(float)      /* of block_sum */
};

SHAPE_FN bool shape_is_float(int type)
{
    return type == QT_F32 || type == QT_F16 || type == QT_BF16;
}

/* ---- weights on their way -------------------------------------------------------------------- */

/* Bytes of 256 weights. */
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

/* The distance between two rows in shared memory, divided by 128, leaves one of these remainders
 * (bit i: 16 i). They put the words that a warp's threads read in step into as many banks as
 * possible. With others gpt-oss's Q8_0 would take 40 accesses for a block instead of 20, its MXFP4
 * 18 instead of 12. */
SHAPE_FN int pitch_mask(int type)
{
    return type == QT_MXFP4 ? 0x50 : type == QT_Q8_0 ? 0xE4 : type == QT_Q4_K ? 0xEE : 0xAA;
}

SHAPE_FN int pitch_of(int room, int mask)
{
    while (!(mask >> room / 16 % 8 & 1)) room += 16;
    return room;
}

/* Groups of a chunk, of each of the unit's rows. Threads copy `stages` chunks ahead. bulk: the chip
 * copies, and two longer chunks together are as long as the others, or longer by one group. */
SHAPE_FN int chunk_groups(int type, int stages, bool bulk)
{
    const int limit = 288, group = group_bytes_of(type), few = group > limit ? 1 : limit / group;
    return bulk ? (stages * few + 1) / 2 : few;
}

SHAPE_FN int chunk_bytes(int type, int stages, bool bulk)
{
    return chunk_groups(type, stages, bulk) * group_bytes_of(type);
}

/* Bytes of a chunk of a row at any address. */
SHAPE_FN int chunk_row_bytes(int type, int stages, bool bulk)
{
    return (chunk_bytes(type, stages, bulk) + 15 + 15) / 16 * 16;
}

SHAPE_FN int chunk_pitch(int type, int stages, bool bulk)
{
    return pitch_of(chunk_row_bytes(type, stages, bulk), pitch_mask(type));
}

/* Bytes of a warp: its chunks, and with bulk copies a barrier of 8 bytes for each. */
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

/* Stages of gate and up. Two where there are no background copies and shared memory is small. Three
 * for MXFP4, whose arithmetic needs as many warps as fit, and where up_takes_fewer. */
SHAPE_FN int up_stages_of(int type, bool fewer, int code)
{
    return code < 80 ? 2 : fewer || type == QT_MXFP4 ? 3 : 4;
}

SHAPE_FN size_t up_bytes(const chip *c, int type, int stages, int cols)
{
    if (shape_is_float(type)) return (size_t)cols * sizeof(float);
    return UP_THREADS / 32 * warp_bytes(c, type, stages, UNIT_ROWS, true) + gpu_blocks_bytes(cols);
}

/* Whether all blocks would be active at a time with one stage less, but are not with all: then gate
 * and up use one less. For Q4_K alone, which most files have. */
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

/* Whether a warp computes all eight rows of a slot: where rows are short. */
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

/* The number of warps that gives each as many units: with nine slots, some of eight warps would be
 * idle at the end. With two experts, eight rows are too few, so a block has more. */
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

/* Of a kernel for that many tokens. */
SHAPE_FN size_t dense_static_bytes(int tokens)
{
    return (size_t)DENSE_WARPS * UNIT_ROWS * (size_t)tokens * sizeof(float);
}

/* Number of n vectors that fit a block. Of int8 forms all GPU_FEW next to the chunks of one warp,
 * or as many as fit next to those of four warps. */
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
    size_t rest, warp;                   /* other bytes, and bytes of each warp */
} dense_shape;

/* n_room: vectors that fit, from dense_tokens; tokens: the kernel's. */
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

/* ---- experts of a batch: experts_partial_batch.cu, contract_few.cuh -------------------------- */

enum {
    PARTIAL_THREADS = 256, PARTIAL_STAGES = 3,
    FEW_THREADS = 256, FEW_LEAST_THREADS = 128, FEW_STAGES = 3
};

/* Threads of a block, slots at a time and shared memory: as many threads as fit, then as many
 * slots. */
typedef struct partial_shape {
    unsigned threads;
    int each;
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

/* Threads of a block for a tile of GPU_FEW tokens; 0: the tokens and some warps' weights do not
 * fit. */
static inline unsigned few_shape(size_t *bytes, const chip *c, int type, int cols)
{
    const size_t vectors = GPU_FEW * gpu_blocks_bytes(cols);
    const size_t warp = warp_bytes(c, type, FEW_STAGES, UNIT_ROWS, true);
    unsigned threads = FEW_THREADS;
    while (threads > FEW_LEAST_THREADS && threads / 32 * warp + vectors > c->block_bytes)
        threads /= 2;
    *bytes = threads / 32 * warp + vectors;
    return *bytes <= c->block_bytes ? threads : 0;
}

/* ---- products of many tokens: gemm_tile.cuh -------------------------------------------------- */

enum { GEMM_ROWS = 128, GEMM_ROW_BYTES = 128, GEMM_LEAST_TOKENS = 32, GEMM_MOST_TOKENS = 256 };

/* Two tiles of weights and two of activations. */
SHAPE_FN size_t tile_bytes(int tokens)
{
    return 2 * (size_t)(GEMM_ROWS + tokens) * GEMM_ROW_BYTES;
}

/* staged: bytes of raw weights. */
static inline int tile_tokens_that_fit(const chip *c, size_t staged, int tokens)
{
    while (tokens > GEMM_LEAST_TOKENS && tile_bytes(tokens) + staged > c->block_bytes) tokens /= 2;
    return tokens;
}

/* Bytes of two groups of a tile's raw weights, which only kernels of sm_90 keep in shared memory.
 * Unpacking may read a word past a block. */
SHAPE_FN int raw_tile_pitch(int type)
{
    const bool aligned = type == QT_Q4_K || type == QT_Q5_K;
    return ((group_bytes_of(type) + (aligned ? 0 : 15) + 15) / 16 | 1) * 16;
}

SHAPE_FN int raw_tile_bytes(int type) { return 2 * GEMM_ROWS * raw_tile_pitch(type) + 16; }

/* ---- products of many tokens by the contract: contract_tile.cuh ------------------------------ */

enum { CONTRACT_STEP = 4, CODE_PITCH = 128 };    /* blocks of a step; bytes of a row's codes */

/* Floats of a row and block: t; t, c m; f, f; sc, sc, d; sc, sc, d, m, m, c. */
SHAPE_FN int contract_row_floats(int type)
{
    switch (type) {
    case QT_Q2_K: return 6;
    case QT_Q3_K: case QT_Q6_K: return 3;
    case QT_Q4_1: case QT_Q5_1: case QT_Q4_K: case QT_Q5_K: case QT_NVFP4: return 2;
    default: return 1;
    }
}

/* Floats of a token and block: dx, then the sum of its codes, or of each half. */
SHAPE_FN int contract_token_floats(int type)
{
    switch (type) {
    case QT_Q2_K: return 3;
    case QT_Q4_1: case QT_Q5_1: case QT_Q4_K: case QT_Q5_K: return 2;
    default: return 1;
    }
}

/* The distance of two raw groups: an odd number of chunks, so that rows are in other banks. */
SHAPE_FN int contract_raw_pitch(int type)
{
    return ((group_bytes_of(type) + 15 + 15) / 16 | 1) * 16;
}

/* Codes, scales and raw groups of this step and of the next one. */
SHAPE_FN int contract_tile_bytes(int type, int rows, int tokens)
{
    const int floats = contract_row_floats(type) * rows + contract_token_floats(type) * tokens;
    return 2 * ((rows + tokens) * CODE_PITCH + floats * CONTRACT_STEP * (int)sizeof(float) +
                rows * contract_raw_pitch(type)) + 16;
}

/* ---- products of F32 weights: gemm_float.cu -------------------------------------------------- */

enum { FLOAT_STEP = 16 };                /* columns that are fetched at a time */

/* Two steps of each group, and later all sums in the same bytes. */
SHAPE_FN size_t gemm_float_bytes(int side, int tokens, int groups)
{
    const int stages = 2 * (side + tokens) * FLOAT_STEP, sums = side * tokens;
    return (size_t)groups * (size_t)(stages > sums ? stages : sums) * sizeof(float);
}

/* ---- attention of prompts: attention_prompt.cu ----------------------------------------------- */

/* Bytes of raw keys of Q8_0: one or two parts of the ring, each with up to 15 bytes more at either
 * end, and 4 readable bytes after them. */
SHAPE_FN int attention_raw_bytes(int dim, int keys)
{
    return keys * (dim / 32 * (int)sizeof(block_q8_0)) + 64;
}

/* Queries, then two pairs of tiles K and V, used alternately; with Q8_0 one pair, and the next one
 * raw. */
SHAPE_FN int attention_tensor_bytes(int dim, int rows, int keys, bool q8)
{
    const int tile = keys * dim * 2;
    return rows * dim * 2 + (q8 ? 2 * tile + 2 * attention_raw_bytes(dim, keys) : 4 * tile);
}

enum { FLOAT_QUERY_ROWS = 32 };

/* With F32 keys: queries, keys, values, scores, and a factor for each row. Rows are padded by four
 * floats against conflicts of banks. */
SHAPE_FN int attention_float_bytes(int dim, int keys)
{
    const int rows = FLOAT_QUERY_ROWS;
    return ((rows + 2 * keys) * (dim + 4) + rows * (keys + 4) + rows) * (int)sizeof(float);
}

/* ---- DeltaNet over chunks: delta_chunks.cu --------------------------------------------------- */

enum { DELTA_TOKENS = GPU_DELTA_CHUNK, DELTA_BLOCKS = DELTA_TOKENS / 16 };

/* Halves of k, high and low; of q, and after it of two squares; diagonal blocks; seven vectors.
 * Rows are padded by 16 bytes. */
SHAPE_FN size_t delta_solve_bytes(int dim)
{
    const size_t k = 4 * DELTA_TOKENS * ((size_t)dim + 8);
    const size_t squares = 8 * DELTA_TOKENS * (DELTA_TOKENS + 8);
    return k + (k > squares ? k : squares) + DELTA_BLOCKS * 16 * 17 * sizeof(float) +
           7 * DELTA_TOKENS * sizeof(float);
}

/* Operands in flight, and three exchanges of half a chunk between four warps. */
SHAPE_FN size_t delta_carry_bytes(int dim, int stages)
{
    return (size_t)stages * DELTA_TOKENS * (size_t)dim * 4 + 3 * 4 * (DELTA_TOKENS / 16) * 32 * 16;
}

/* The most stages that fit, or 0: the chip has only the kernels for single tokens. */
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
