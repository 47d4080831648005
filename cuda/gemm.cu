/* gemm.cu - products of many tokens: chooses the kernel (own or the vendor's) and the tile, and has
 * the tensor core kernels for Q8_0, Q4_K, Q5_K and Q6_K. Outside the arithmetic contract.
 *
 * The rule is in gemm_choice.h, the own kernel in gemm_tile.cuh, the vendor's in vendor_gemm.cu,
 * F32 weights in gemm_float.cu. gemm_fp4.cu and gemm_types.cu have other types, which shortens
 * compilation. */
#include "cuda/gemm_choice.h"
#include "cuda/gemm_tile.cuh"
#include "cuda/vendor_gemm.cuh"

#include <limits.h>

/* ---- the choice ------------------------------------------------------------------------------ */

void gpu_gemm_set(gpu *g, const gpu_gemm *how)
{
    gpu_gemm_reclaim(g, g->lent);
    g->gemm = *how;
    /* the library is loaded only if it could be used, because loading takes time */
    if (!gemm_may_use_vendor(how, g->cc, INT_MAX) || gpu_code_version() < 80 || !vendor_gemm_find())
        g->gemm.use = GPU_GEMM_OWN;
}

const char *gpu_gemm_name(const gpu *g)
{
    return g->gemm.use == GPU_GEMM_OWN ? "own" : vendor_gemm_find();
}

uint64_t gpu_gemm_scratch(const gpu *g, int n)
{
    return gemm_may_use_vendor(&g->gemm, g->cc, n) ? vendor_gemm_bytes() : 0;
}

void gpu_gemm_lend(gpu *g, void *scratch)
{
    if (g->gemm.use == GPU_GEMM_OWN || !scratch) return;
    gpu_gemm_reclaim(g, g->lent);
    if (vendor_gemm_open(g, scratch)) g->lent = scratch;
    else g->gemm.use = GPU_GEMM_OWN;
}

void gpu_gemm_reclaim(gpu *g, const void *scratch)
{
    if (!scratch || scratch != g->lent) return;
    gpu_fail(g, cudaStreamSynchronize(g->stream), "wait");
    vendor_gemm_close(g);
    g->lent = NULL;
}

bool gemm_follows_contract(const gpu *g, int n) { return n < gemm_from(&g->gemm); }

static gemm_way strategy_of(const gpu *g, const gemm *p)
{
    gemm_case c = {};
    c.n = p->n;
    c.weights = (int64_t)p->rows * p->cols;
    c.vendor_fits = vendor_gemm_fits(g, p);
    c.cc = g->cc;
    return gemm_choose(&g->gemm, &c);
}

/* ---- own tiles ------------------------------------------------------------------------------- */

/* The largest tile that fits together with staged weights of any type. */
static int tile_that_fits(const gpu *g, int tokens)
{
    const size_t staged = gemm_is_staged(g) ? raw_weights<QT_Q8_0>::bytes : 0;
    const chip c = chip_of(g);
    return tile_tokens_that_fit(&c, staged, tokens);
}

/* Tokens of a dense product's tile. A block's time is about 48 (unpacking weights) + tokens. */
static int dense_tokens(const gpu *g, const gemm *p)
{
    const uint64_t n_row = ceil_div((uint64_t)p->rows, p->up.data ? ROWS / 2 : ROWS);
    uint64_t least = UINT64_MAX;
    int best = GEMM_LEAST_TILE;
    for (int tokens = tile_that_fits(g, 256); tokens >= GEMM_LEAST_TILE; tokens /= 2) {
        const uint64_t n_block = n_row * ceil_div((uint64_t)p->n, (uint64_t)tokens);
        const uint64_t cost = (uint64_t)ceil_div(n_block, (uint64_t)g->n_sm) * (48 + tokens);
        if (cost >= least) continue;
        least = cost;
        best = tokens;
    }
    return best;
}

/* Tokens of a tile of slots. An expert's last tile is half empty on average. */
int gemm_tile_tokens(const gpu *g, int n, int n_expert)
{
    const int each = n / n_expert;
    return tile_that_fits(g, each >= 768 ? 256 : each >= 56 ? 128 : each >= 24 ? 64 : 32);
}

/* The factor of a format; 0: no kernel here has the format. */
static float type_factor(int type)
{
    switch (type) {
#define CASE(TYPE) case TYPE: return format<TYPE>::factor;
    GPU_BLOCK_TYPES(CASE)
#undef CASE
    case QT_F16: case QT_BF16: return 1.0f;
    default: return 0.0f;
    }
}

static void run_half(gpu *g, const gemm *p)
{
    const float factor = type_factor(p->type);
    gemm scaled = *p;

    if (factor == 0.0f) {
        gpu_fail(g, cudaErrorNotSupported, "gemm: type of weights");
        return;
    }
    scaled.w.factor *= factor;
    scaled.up.factor *= factor;
    if (strategy_of(g, p) == GEMM_VENDOR && vendor_gemm_run(g, &scaled)) return;
    if (!p->tiles) scaled.tile_tokens = dense_tokens(g, p);
    switch (p->type) {
#define CASE(TYPE) case TYPE: run_type<TYPE>(g, &scaled); break;
    CASE(QT_Q8_0) CASE(QT_Q4_K) CASE(QT_Q5_K) CASE(QT_Q6_K)
#undef CASE
    case QT_MXFP4: case QT_NVFP4: gemm_run_fp4(g, &scaled); break;
    default: gemm_run_more(g, &scaled); break;
    }
}

void gemm_run(gpu *g, const gemm *p)
{
    if (p->n == 0 || p->rows == 0) return;
    if (gemm_is_float(p->type)) gemm_run_float(g, p);
    else run_half(g, p);
}

/* Products with a convolution first write to conv.raw; conv_many then writes y. */
void project_many(gpu *g, gpu_input *in, const gpu_product *list, int n_product)
{
    bool rows = false, halves = false;

    for (int i = 0; i < n_product; i++) {
        if (gemm_is_float(list[i].w.type)) rows = true;
        else halves = true;
    }
    input_prepare(g, in, rows, halves);
    for (int i = 0; i < n_product; i++) {
        const gpu_product *from = &list[i];
        const gpu_matrix *w = &from->w;
        const bool convolved = from->conv.taps != NULL;
        gemm p = {};
        p.name = in->name ? in->name : "dense";
        p.type = w->type;
        p.rows = w->rows;
        p.cols = w->cols;
        p.w = { w->data, NULL, w->row_bytes, 0, w->bias, NULL, w->scale };
        p.x = gemm_is_float(w->type) ? (const void *)in->rows : in->halves;
        p.x_low = is_half_weight(w->type) ? in->lows : NULL;
        p.n = in->n;
        p.y = convolved ? from->conv.raw : from->y;
        p.y_stride = convolved ? w->rows : from->y_stride;
        p.add = from->add && !convolved;
        gemm_run(g, &p);
        if (convolved) conv_many(g, from->y, from->y_stride, &from->conv, w->rows, in->n);
    }
}
