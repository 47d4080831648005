/* batch.cuh - functions that the operations of gpu.h call for more than GPU_FEW tokens. Products
 * run on tensor cores, or in exact F32 for F32 weights. */
#ifndef CUDA_BATCH_CUH
#define CUDA_BATCH_CUH

#include "cuda/device.cuh"
#include "cuda/gpu_experts.h"
#include "loader/quant.h"

static inline bool is_float_weight(int type)
{
    return type == QT_F32 || type == QT_F16 || type == QT_BF16;
}

/* Float types that tensor cores multiply. */
static inline bool is_half_weight(int type) { return type == QT_F16 || type == QT_BF16; }

/* Makes in->rows, or in->halves with in->lows, as requested, unless they exist. */
void input_prepare(gpu *g, gpu_input *in, bool rows, bool halves);

/* Whether a batch of n tokens is computed by the contract's kernels, GPU_FEW tokens at a time. */
bool gemm_follows_contract(const gpu *g, int n);

/* An input with tokens first .. first + n - 1 of another. */
static inline gpu_input input_part(const gpu_input *in, int first, int n)
{
    const size_t at = (size_t)first * in->cols;
    gpu_input part = *in;
    part.n = n;
    part.in_pass = false;
    part.x += at;
    if (part.gate) part.gate += (size_t)first * in->gate_stride;
    if (part.rows) part.rows += at;
    part.halves = part.lows = NULL;
    part.has_rows = part.has_halves = part.has_blocks = part.has_codes = false;
    return part;
}

/* y = scale * W x + bias for all products of the input. F32 weights are multiplied by F32
 * activations, others by halves, F16 and BF16 by halves + lows if in->lows. */
void project_many(gpu *g, gpu_input *in, const gpu_product *list, int n_product);

/* The window before a token, the first one of a product, and where its conversation's goes after
 * it. */
static __device__ __forceinline__ const float *conv_window(const gpu_conv &c, const row_token &x)
{
    return (const float *)((x.t > 0 ? x.row->recurrent_next : x.row->recurrent) + c.window);
}

static __device__ __forceinline__ float *conv_window_next(const gpu_conv &c, const row_token &x)
{
    return (float *)(x.row->recurrent_next + c.window);
}

/* y [n, y_stride] = silu(conv(raw)) for all channels; shifts the window by n tokens. */
void conv_many(gpu *g, float *y, int y_stride, const gpu_conv *c, int rows, int n);

/* Positions first .. first + n - 1 of the sorted slots, all of one expert. */
typedef struct token_tile {
    int32_t expert, first, n, unused;
} token_tile;

/* A batch's slots sorted by expert and cut into tiles. Position: index of a slot in that order. */
typedef struct slot_lists {
    int32_t *first;                      /* [n_expert + 1]: the expert's first position */
    int32_t *slots;                      /* [n_slot] by position */
    int32_t *first_tile;                 /* [n_expert + 1]: the expert's first tile */
    token_tile *tiles;                   /* [most_tiles] */
} slot_lists;

static inline int most_tiles(int n_slot, int n_expert, int tile_tokens)
{
    return (n_slot + tile_tokens - 1) / tile_tokens + n_expert;
}

/* Takes the next bytes of a scratch at base. *at: bytes used so far. */
static inline uint8_t *scratch_take(uint8_t *base, size_t *at, size_t bytes)
{
    uint8_t *p = base + *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Takes memory for the lists of n_slot slots, with tiles of tile_tokens or more tokens. */
static inline slot_lists slot_lists_take(uint8_t *base, size_t *at, int n_slot, int n_expert,
                                         int tile_tokens)
{
    const size_t firsts = ((size_t)n_expert + 1) * sizeof(int32_t);
    const size_t n_tile = (size_t)most_tiles(n_slot, n_expert, tile_tokens);
    slot_lists l;
    l.first = (int32_t *)scratch_take(base, at, firsts);
    l.slots = (int32_t *)scratch_take(base, at, (size_t)n_slot * sizeof(int32_t));
    l.first_tile = (int32_t *)scratch_take(base, at, firsts);
    l.tiles = (token_tile *)scratch_take(base, at, n_tile * sizeof(token_tile));
    return l;
}

/* Fills the lists for n_slot choices. rank, order, counts: as in gpu_expert_batch, or NULL. */
enum { LISTS_MOST_EXPERTS = 1024 };
void slot_lists_make(gpu *g, const slot_lists *l, const int32_t *ids, const int32_t *rank,
                     const int32_t *order, int32_t *counts, int n_slot, int n_expert,
                     int tile_tokens);

/* x [n, n_embd] += gates * y in rank order, + sigma * shared. y [n, k, n_embd], shared [n, n_embd]
 * or NULL. */
void experts_sum(gpu *g, const gpu_expert_args *a, int n, const float *gates, const float *y,
                 const float *shared);

/* gpu_experts for n > GPU_FEW. */
void experts_many(gpu *g, gpu_input *in, const gpu_expert_args *a);
size_t experts_many_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd);

/* gpu_experts for 2 .. GPU_RECORDED tokens by the contract, if experts_tiles_fit. in->blocks has room
 * for all tokens. n_ff: the wider of routed and shared experts. */
bool experts_tiles_fit(const gpu_expert_args *a);
void experts_tiles(gpu *g, gpu_input *in, const gpu_expert_args *a);
size_t experts_tiles_scratch(int n, int k, int n_ff, int n_embd);

/* Scratch of gpu_experts_partial_begin. */
size_t experts_partial_scratch(int n, int k, int n_expert, int n_ff, int n_embd);

/* Steps of gpu_attend. attention_norm_whole: the norms if norm_whole, in place. attention_prepare:
 * for n > 1 norm and rotation, q in place, and store of keys and values. attention_prompt: the
 * attention for n > GPU_FEW. */
void attention_norm_whole(gpu *g, const gpu_attention *a);
void attention_prepare(gpu *g, const gpu_attention *a);
void attention_prompt(gpu *g, const gpu_attention *a);
bool attention_prompt_fits(const gpu *g, const gpu_attention *a);  /* whether there is a kernel */

#endif
