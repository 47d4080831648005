/* experts.cu - gpu_experts for up to GPU_FEW tokens of a resident layer, one with all experts in
 * VRAM; by the arithmetic contract. experts_batch.cu has larger batches, experts_with_host.cu
 * layers with cold experts. The kernels are in experts.cuh; experts_basic.cu, experts_k_quants.cu,
 * experts_tables.cu and experts_floats.cu compile them. */
#include "cuda/experts.cuh"

/* ---- int8 form of the input, if the router did not make it ----------------------------------- */

static __global__ void quantise_rows(tracer f, const input_view in, uint8_t *blocks, float *rows)
{
    __shared__ float sums[32];
    const int t = blockIdx.x;
    pdl_begin(f);
    const input_ahead<2> ahead = input_begin<2, ANY_INPUT, 256>(in);
    pdl_wait(f);
    uint8_t *codes = in.cols % 32 == 0 ? blocks + (size_t)t * blocks_pitch(in.cols) : NULL;
    input_finish<ANY_INPUT, 256>(codes, rows + (size_t)t * in.cols, in, t, sums, ahead);
    pdl_end(f);
}

void few_input(gpu *g, gpu_input *in)
{
    if (in->has_blocks) return;
    launch(g, "quantise", 0, quantise_rows, (unsigned)in->n, 256, 0, view_of(in),
           (uint8_t *)in->blocks, in->rows);
    in->has_blocks = in->has_rows = true;
}

/* ---- a layer's arguments --------------------------------------------------------------------- */

few_scratch few_layout(void *base, int n, int k, int n_ff, int n_embd)
{
    const size_t slots = (size_t)n * ((size_t)k + 1), ff = ((size_t)n_ff + 31) / 32 * 32;
    const size_t routed = (size_t)n * (size_t)k;
    uint8_t *p = (uint8_t *)base;
    few_scratch s;
    s.mid = p;
    s.apart_mid = p + routed * gpu_blocks_bytes((int)ff);
    p += (slots * gpu_blocks_bytes((int)ff) + 255) / 256 * 256;
    s.mid_rows = (float *)p;
    s.apart_rows = s.mid_rows + routed * ff;
    p += (slots * ff * sizeof(float) + 255) / 256 * 256;
    s.shared_y = (float *)p;
    p += ((size_t)n * n_embd * sizeof(float) + 255) / 256 * 256;
    s.bytes = (size_t)(p - (uint8_t *)base);
    return s;
}

size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd)
{
    const size_t few = few_layout(NULL, n < GPU_FEW ? n : GPU_FEW, k, n_ff, n_embd).bytes;
    const size_t many = n > GPU_FEW ? experts_many_scratch(g, n, k, n_expert, n_ff, n_embd) : 0;
    const size_t part = n > GPU_FEW ? experts_partial_scratch(n, k, n_expert, n_ff, n_embd) : 0;
    const size_t tiles = n > 1 ? experts_tiles_scratch(n, k, n_ff, n_embd) : 0;
    const size_t most = few > many ? few : many, other = part > tiles ? part : tiles;
    return most > other ? most : other;
}

bool few_shared_is_slot(const gpu_expert_args *a)
{
    return a->shared_gate.data && a->shared_gate.rows == a->gate.rows &&
           a->shared_gate.type == a->gate.type && a->shared_up.type == a->up.type &&
           a->shared_down.type == a->down.type;
}

layer_args layer_args_of(const gpu_input *in, const gpu_expert_args *a)
{
    const int n = in->n, n_embd = a->down.rows, n_ff = a->gate.rows;
    const bool shared = a->shared_gate.data != NULL, shared_is_slot = few_shared_is_slot(a);
    layer_args few = {};

    few.apart = shared && !shared_is_slot;
    few.scratch = few_layout(a->scratch, n, a->k,
                             shared && a->shared_gate.rows > n_ff ? a->shared_gate.rows : n_ff,
                             n_embd);
    up_args &up = few.up;
    up.gate = slab_of_bank(&a->gate);
    up.up = slab_of_bank(&a->up);
    if (shared_is_slot) {
        up.shared_gate = slab_of_matrix(&a->shared_gate);
        up.shared_up = slab_of_matrix(&a->shared_up);
        up.n_shared = n;
    }
    up.chosen = { a->ids, a->gates, a->logits, a->keys, a->n_expert, a->k, a->rule };
    up.n_slot = n * a->k;
    up.k = a->k;
    up.cols = a->gate.cols;
    up.n_ff = n_ff;
    up.act = a->act;
    up.x = (const uint8_t *)in->blocks;
    up.x_rows = in->rows;
    up.mid = few.scratch.mid;
    up.mid_rows = few.scratch.mid_rows;

    down_args &down = few.down;
    down.down = slab_of_bank(&a->down);
    if (shared_is_slot) down.shared_down = slab_of_matrix(&a->shared_down);
    down.chosen = up.chosen;
    down.sigma = a->sigma;
    down.n_slot = up.n_slot;
    down.k = a->k;
    down.has_shared = shared_is_slot;
    down.shared_y = few.apart ? few.scratch.shared_y : NULL;
    down.n_ff = n_ff;
    down.n_embd = n_embd;
    down.mid = up.mid;
    down.mid_rows = up.mid_rows;
    down.x = a->x;
    down.y = a->y;
    return few;
}

/* ---- a resident layer ------------------------------------------------------------------------ */

static void up_by_type(gpu *g, int type, const up_args *a, uint64_t bytes)
{
    const launch_stream at = main_stream(g);
    switch (type) {
#define CASE(T) case T:
    GPU_BASIC_TYPES(CASE) up_basic(g, at, type, a, bytes); break;
    GPU_K_TYPES(CASE) up_k_quants(g, at, type, a, bytes); break;
    GPU_TABLE_TYPES(CASE) up_tables(g, at, type, a, bytes); break;
    GPU_FLOAT_TYPES(CASE) up_floats(g, at, type, a, bytes); break;
#undef CASE
    default: gpu_fail(g, cudaErrorInvalidValue, "experts: type without a kernel");
    }
}

static void down_by_type(gpu *g, int type, const down_args *a, int n, uint64_t bytes)
{
    const launch_stream at = main_stream(g);
    switch (type) {
#define CASE(T) case T:
    GPU_BASIC_TYPES(CASE) down_basic(g, at, type, a, n, bytes); break;
    GPU_K_TYPES(CASE) down_k_quants(g, at, type, a, n, bytes); break;
    GPU_TABLE_TYPES(CASE) down_tables(g, at, type, a, n, bytes); break;
    GPU_FLOAT_TYPES(CASE) down_floats(g, at, type, a, n, bytes); break;
#undef CASE
    default: gpu_fail(g, cudaErrorInvalidValue, "experts: type without a kernel");
    }
}

void few_gate_up(gpu *g, const gpu_input *in, const gpu_matrix *gate, const gpu_matrix *up,
                 gpu_activation act, uint8_t *mid, float *mid_rows)
{
    up_args a = {};
    a.shared_gate = slab_of_matrix(gate);
    a.shared_up = slab_of_matrix(up);
    a.n_shared = in->n;
    a.k = 1;
    a.cols = in->cols;
    a.n_ff = gate->rows;
    a.act = act;
    a.x = (const uint8_t *)in->blocks;
    a.x_rows = in->rows;
    a.mid = mid;
    a.mid_rows = mid_rows;
    up_by_type(g, gate->type, &a, gate->row_bytes * 2 * (uint64_t)gate->rows);
}

void few_down(gpu *g, int n, const gpu_matrix *down, uint8_t *mid, const float *mid_rows, float *y,
              bool add)
{
    gpu_input in = {};
    in.kind = GPU_PLAIN;
    in.n = n;
    in.cols = down->cols;
    in.x = mid_rows;
    in.codes = mid;
    in.has_codes = true;
    gpu_product p = {};
    p.y = y;
    p.y_stride = down->rows;
    p.add = add;
    p.w = *down;
    gpu_project(g, &in, &p, 1);
}

void shared_apart(gpu *g, gpu_input *in, const gpu_expert_args *a, const few_scratch *s)
{
    few_gate_up(g, in, &a->shared_gate, &a->shared_up, a->act, s->apart_mid, s->apart_rows);
    few_down(g, in->n, &a->shared_down, s->apart_mid, s->apart_rows, s->shared_y, false);
}

bool few_choice_fits(gpu *g, const gpu_expert_args *a)
{
    if (a->ids || !a->rule.bias || a->keys) return true;
    gpu_fail(g, cudaErrorInvalidValue, "experts: a choice without keys");
    return false;
}

static void experts_few(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    if (!few_choice_fits(g, a)) return;
    few_input(g, in);
    const layer_args few = layer_args_of(in, a);
    const uint64_t slots = (uint64_t)(few.up.n_slot + few.up.n_shared);
    if (few.apart) shared_apart(g, in, a, &few.scratch);
    up_by_type(g, a->gate.type, &few.up,
               slots * (a->gate.row_bytes + a->up.row_bytes) * (uint64_t)a->gate.rows);
    down_by_type(g, a->down.type, &few.down, in->n,
                 slots * a->down.row_bytes * (uint64_t)a->down.rows);
}

/* Whether all experts are in one bank, and none is counted. */
static bool is_whole_bank(const gpu_expert_args *a)
{
    const gpu_expert_batch *b = &a->batch;
    return b->first == 0 && (b->count == 0 || b->count == a->n_expert) && !b->addresses &&
           !b->counts && !b->sums;
}

static void experts_by_few(gpu *g, const gpu_input *in, const gpu_expert_args *a)
{
    const int n_embd = a->down.rows;
    for (int first = 0; first < in->n; first += GPU_FEW) {
        const int left = in->n - first, slot = first * a->k;
        gpu_input part = input_part(in, first, left < GPU_FEW ? left : GPU_FEW);
        gpu_expert_args some = *a;
        some.x += (size_t)first * n_embd;
        if (a->sigma) some.sigma += first;
        if (a->ids) some.ids += slot;
        if (a->gates) some.gates += slot;
        if (a->logits) some.logits += (size_t)first * a->n_expert;
        if (a->keys) some.keys += (size_t)first * a->n_expert;
        if (a->y) some.y += (size_t)slot * n_embd;
        experts_few(g, &part, &some);
    }
}

/* With batch.contract the same kernels compute the shared expert for any placement of the bank. */
void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a)
{
    const bool few = gpu_is_few(in->n, in->in_pass);
    if (few && in->n > 1 && experts_tiles_fit(a)) experts_tiles(g, in, a);
    else if (in->n <= GPU_FEW) experts_few(g, in, a);
    else if (few || (!a->batch.contract && gemm_follows_contract(g, in->n) && in->blocks &&
                     is_whole_bank(a)))
        experts_by_few(g, in, a);
    else experts_many(g, in, a);
}
