/* gemm.cuh - arguments and common device code of all products of many tokens.
 *
 * A product has one matrix, or two of the same type and size (gate and up), whose results an
 * activation combines. It is computed in tiles of tokens: ranges of the batch, or of the batch's
 * slots sorted by expert. gemm.cu, gemm_fp4.cu and gemm_types.cu multiply 16-bit activations on
 * tensor cores, gemm_float.cu F32 activations exactly. prepare.cu makes both kinds of activations,
 * experts_batch.cu sorts slots.
 *
 * With 16-bit weights an activation can be the sum of two 16-bit floats, x + x_low. The error is
 * then 2^-18 of a value instead of 2^-9. Quantised weights have larger errors and do without. */
#ifndef CUDA_GEMM_CUH
#define CUDA_GEMM_CUH

#include "cuda/batch.cuh"

#include "cuda/blocks.cuh"

/* One matrix, or one for each expert. */
typedef struct gemm_matrix {
    const uint8_t *data;                 /* NULL: absent */
    const uint64_t *at;                  /* NULL: see data; else at[3 * e] is expert e's address */
    uint64_t row_bytes, slab_bytes;
    const float *bias;                   /* [n_expert, rows], or NULL */
    const float *scale;                  /* [n_expert], or NULL: 1 */
    float factor;                        /* multiplies all rows */
} gemm_matrix;

typedef struct gemm {
    const char *name;                    /* class in profiles; kernels do not read it */
    int type, rows, cols;
    gemm_matrix w, up;                   /* with up: activation(w x, up x) */
    gemm_matrix w_shared, up_shared;     /* contract_few: of tiles with expert SHARED_EXPERT */
    const void *x;                       /* [., cols], 16-bit or F32 */
    const void *x_low;                   /* NULL, or if is_half_weight(type): rounding errors of
                                          * x */
    int n;                               /* rows of x; with tiles, number of slots */
    const token_tile *tiles;             /* NULL: ranges of tile_tokens rows of x */
    const int32_t *tile_from, *tile_to;  /* tiles *tile_from .. *tile_to - 1, at most max_tile */
    int tile_tokens, max_tile;           /* without tiles may be 0: gemm_run chooses */
    const int32_t *slots;                /* [n]: the slot at a position */
    int gather;                          /* row of x: slot / gather; 0: the position */
    int n_routed;                        /* contract_few: 0, or slots from here on are the shared
                                          * expert's, one for each row of x */
    bool scatter;                        /* y has a row for each slot instead of each position */
    float *y;                            /* one matrix: value r of row i is y[i * y_stride + r] */
    float *y_shared;                     /* contract_few: of tiles with expert SHARED_EXPERT */
    int y_stride;
    bool add;
    void *mid_halves;                    /* two matrices: NULL, or [n, rows] of 16 bits */
    void *mid_lows;                      /* NULL, or if is_half_weight(type): their errors */
    float *mid_rows;                     /* two matrices, without mid_halves: [n, rows] */
    uint8_t *mid_blocks;                 /* NULL, or with mid_rows: [n] their int8 forms, by
                                          * contract_few alone */
    gpu_activation act;
} gemm;

static inline gemm_matrix gemm_matrix_of(const gpu_matrix *m)
{
    return { m->data, NULL, m->row_bytes, 0, m->bias, NULL, m->scale };
}

/* Kernels count slabs from expert 0 on, but b->data is the slab of expert `first`. at: addresses of
 * this kind of slab, or NULL; with it, data is only checked for NULL and alignment. */
static inline gemm_matrix gemm_bank_of(const gpu_bank *b, const uint64_t *at, int first)
{
    const uintptr_t zeroth = (uintptr_t)b->data - (uintptr_t)first * b->slab_bytes;
    return { (const uint8_t *)(at ? GPU_SLAB_ALIGN : zeroth), at, b->row_bytes,
             at ? 0 : b->slab_bytes, b->bias, b->scale, 1.0f };
}

enum { SHARED_EXPERT = -1 };

static inline bool gemm_is_float(int type) { return type == QT_F32; }

/* A good number of tokens in a tile for n slots with n_expert experts: at least 32. */
enum { GEMM_LEAST_TILE = 32 };
int gemm_tile_tokens(const gpu *g, int n, int n_expert);

/* y = W x, or mid = activation(w x, up x). x is F32 if gemm_is_float(type), else 16-bit. */
void gemm_run(gpu *g, const gemm *p);
void gemm_run_float(gpu *g, const gemm *p);      /* F32 weights alone */
void gemm_run_fp4(gpu *g, const gemm *p);        /* MXFP4 and NVFP4 */
void gemm_run_more(gpu *g, const gemm *p);       /* gemm_types.cu: all other types */

/* ---- the device side ------------------------------------------------------------------------- */

/* Finds the block's tile. False: there is no such tile. */
static __device__ __forceinline__ bool tile_of_block(token_tile &tile, const gemm &p)
{
    const int at = (int)blockIdx.y;
    if (p.tiles) {
        const int i = *p.tile_from + at;
        if (i >= *p.tile_to) return false;
        tile = p.tiles[i];
        return true;
    }
    tile.expert = 0;
    tile.first = at * p.tile_tokens;
    tile.n = min(p.tile_tokens, p.n - tile.first);
    return true;
}

static __device__ __forceinline__ int input_row(const gemm &p, int position)
{
    return p.gather ? p.slots[position] / p.gather : position;
}

static __device__ __forceinline__ int output_row(const gemm &p, int position)
{
    return p.scatter ? p.slots[position] : position;
}

static __device__ __forceinline__ const uint8_t *weight_row(const gemm_matrix &m, int expert, int r)
{
    const uint8_t *slab = m.at ? (const uint8_t *)m.at[3 * expert]
                               : m.data + (uint64_t)expert * m.slab_bytes;
    return slab + (uint64_t)r * m.row_bytes;
}

static __device__ __forceinline__ float expert_factor(const gemm_matrix &m, int expert)
{
    return m.scale ? m.factor * m.scale[expert] : m.factor;
}

static __device__ __forceinline__ float bias_of(const gemm_matrix &m, int expert, int rows, int r)
{
    return m.bias ? m.bias[(size_t)expert * rows + r] : 0.0f;
}

/* The activation in F32, with the accuracy of expf. gpt-oss's gate is not clamped from below. */
static __device__ __forceinline__ float activate(float g, float u, gpu_activation act)
{
    if (act == GPU_SWIGLU) return silu(g) * u;
    if (act == GPU_GEGLU)
        return g / (1.0f + expf(-g * fmaf(g * g, 0x1.2444f2p-4f, 0x1.988454p+0f))) * u;
    if (g > 7.0f) g = 7.0f;
    if (u > 7.0f) u = 7.0f;
    if (u < -7.0f) u = -7.0f;
    return g / (1.0f + expf(-1.702f * g)) * (u + 1.0f);
}

/* Loads W values: 4, at a multiple of 16 bytes, or 1. */
template <int W> static __device__ __forceinline__ void load_values(float (&v)[W], const float *p)
{
    if constexpr (W == 4) {
        const float4 q = *(const float4 *)p;
        v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w;
    } else {
        v[0] = p[0];
    }
}

template <int W> static __device__ __forceinline__ void store_values(float *p, const float (&v)[W])
{
    if constexpr (W == 4) *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    else p[0] = v[0];
}

static __device__ __forceinline__ void store_mid(const gemm &p, size_t at, float v)
{
    if (p.mid_halves) ((uint16_t *)p.mid_halves)[at] = (uint16_t)pack_halves(v, 0.0f);
    else p.mid_rows[at] = v;
}

static __device__ __forceinline__ void store_mid_low(const gemm &p, size_t at, float v)
{
    if (p.mid_lows) ((uint16_t *)p.mid_lows)[at] = (uint16_t)pack_lows(v, 0.0f);
}

#endif
