/* network.cu - gpu_network: one dense network for all tokens of a batch: gate, up and activation,
 * then down.
 *
 * Up to GPU_FEW tokens use kernels of experts.cuh and matvec.cuh, like a shared expert; more tokens
 * use those of gemm.cuh. A last kernel multiplies by sigma. gpu.h states the arithmetic. */
#include "cuda/experts.cuh"
#include "cuda/gemm.cuh"

enum { WEIGH_THREADS = 256 };

/* ---- the factor ------------------------------------------------------------------------------ */

/* A block multiplies one token by sigma, with the rounding of a shared expert in join_experts. */
static __global__ void __launch_bounds__(WEIGH_THREADS) weigh(tracer f, float *y, const float *from,
                                                              const float *sigma, int n_embd,
                                                              bool add)
{
    const size_t t = blockIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    const float by = sigma[t];
    for (int c = threadIdx.x; c < n_embd; c += WEIGH_THREADS) {
        const float v = __fmul_rn(by, from[t * n_embd + c]);
        float *to = y + t * n_embd + c;
        *to = add ? __fadd_rn(*to, v) : v;
    }
    pdl_end(f);
}

/* ---- scratch --------------------------------------------------------------------------------- */

typedef struct scratch {
    float *mid_rows;                     /* [n, n_ff] F32 or lows */
    void *mid;                           /* [n, n_ff] halves, or [n] int8 forms */
    float *y;                            /* [n, n_embd] before the factor */
    size_t bytes;
} scratch;

static scratch scratch_at(void *base, int n, int n_ff, int n_embd)
{
    const size_t ff = ((size_t)n_ff + 31) / 32 * 32;
    uint8_t *p = (uint8_t *)base;
    scratch s = {};
    s.mid_rows = (float *)scratch_take(p, &s.bytes, (size_t)n * ff * sizeof *s.mid_rows);
    s.mid = scratch_take(p, &s.bytes, (size_t)n * ff * sizeof(uint16_t));
    s.y = (float *)scratch_take(p, &s.bytes, (size_t)n * n_embd * sizeof *s.y);
    return s;
}

size_t gpu_network_scratch(int n, int n_ff, int n_embd)
{
    return scratch_at(NULL, n, n_ff, n_embd).bytes;
}

/* ---- the operation --------------------------------------------------------------------------- */

/* The output of down: the caller's y, or scratch if sigma is applied later. */
typedef struct result {
    float *y;
    bool add;
} result;

static void network_few(gpu *g, gpu_input *in, const gpu_network_args *a, const scratch *s,
                        result to)
{
    few_input(g, in);
    few_gate_up(g, in, &a->gate, &a->up, a->act, (uint8_t *)s->mid, s->mid_rows);
    few_down(g, in->n, &a->down, (uint8_t *)s->mid, s->mid_rows, to.y, to.add);
}

/* GPU_FEW tokens at a time. All use the same scratch, because operations run in order. */
static void network_by_few(gpu *g, const gpu_input *in, const gpu_network_args *a,
                           const scratch *s, result to)
{
    for (int first = 0; first < in->n; first += GPU_FEW) {
        const int left = in->n - first;
        gpu_input part = input_part(in, first, left < GPU_FEW ? left : GPU_FEW);
        network_few(g, &part, a, s, { to.y + (size_t)first * a->down.rows, to.add });
    }
}

static void network_many(gpu *g, gpu_input *in, const gpu_network_args *a, const scratch *s,
                         result to)
{
    const bool floats = gemm_is_float(a->gate.type), mid_floats = gemm_is_float(a->down.type);
    const bool lows = in->lows && is_half_weight(a->gate.type);
    gemm up = {}, down = {};

    input_prepare(g, in, floats, !floats);
    up.name = down.name = in->name ? in->name : "dense";
    up.type = a->gate.type;
    up.rows = a->gate.rows;
    up.cols = a->gate.cols;
    up.w = gemm_matrix_of(&a->gate);
    up.up = gemm_matrix_of(&a->up);
    up.x = floats ? (const void *)in->rows : in->halves;
    up.x_low = lows ? in->lows : NULL;
    up.n = down.n = in->n;
    up.act = a->act;
    if (mid_floats) up.mid_rows = s->mid_rows;
    else up.mid_halves = s->mid;
    if (lows && is_half_weight(a->down.type)) up.mid_lows = s->mid_rows;
    gemm_run(g, &up);

    down.type = a->down.type;
    down.rows = a->down.rows;
    down.cols = a->down.cols;
    down.w = gemm_matrix_of(&a->down);
    down.x = mid_floats ? (const void *)s->mid_rows : s->mid;
    down.x_low = up.mid_lows;
    down.y = to.y;
    down.y_stride = down.rows;
    down.add = to.add;
    gemm_run(g, &down);
}

void gpu_network(gpu *g, gpu_input *in, const gpu_network_args *a)
{
    const int n = in->n, n_embd = a->down.rows;
    if (n < 1 || a->gate.type != a->up.type || a->gate.rows != a->up.rows ||
        a->gate.rows != a->down.cols || (gpu_is_few(n, in->in_pass) && !in->blocks))
        gpu_fail(g, cudaErrorInvalidValue, "network: arguments");
    if (g->failure != cudaSuccess) return;

    const scratch s = scratch_at(a->scratch, n, a->gate.rows, n_embd);
    const result to = { a->sigma ? s.y : a->y, a->sigma ? false : a->add };
    if (n <= GPU_FEW) network_few(g, in, a, &s, to);
    else if (in->in_pass || (gemm_follows_contract(g, n) && in->blocks))
        network_by_few(g, in, a, &s, to);
    else network_many(g, in, a, &s, to);
    if (a->sigma)
        launch(g, "dense", 0, weigh, (unsigned)n, WEIGH_THREADS, 0, a->y, (const float *)s.y,
               a->sigma, n_embd, a->add);
}
