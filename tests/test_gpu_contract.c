/* test_gpu_contract.c - experts of many tokens by the arithmetic contract.
 *
 * gpu_experts with `contract` gives every slot's vector, and the stream after all of them, with the
 * bits that this program computes by plain loops over the contract's products of one token: for
 * every block format, weights with absurd scales and activations with absurd values among them, in
 * one call or in ranges of experts. Float experts keep their 16-bit activations. */
#include <math.h>
#include <string.h>

#include "cuda/gpu_experts.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

enum { GATE, UP, DOWN, SLABS };
enum { MAX_EXPERT = 64 };

typedef struct contract_case {
    quant_type gate, up, down;
    int n_embd, n_ff, n_expert, k;
    gpu_activation act;
    bool bias;
    weight_kind weights, down_weights;
    bool poison;                         /* infinite and NaN activations, too */
    int shared_ff;                       /* width of the shared expert; 0: none */
    quant_type shared_up, shared_down;
    int range;                           /* experts in a call; 0: all */
    double bound;                        /* 0: the same bits */
} contract_case;

typedef struct layer {
    matrix slab[MAX_EXPERT][SLABS];
    gpu_bank bank[SLABS];
    reference shared[SLABS];
} layer;

/* ---- a layer --------------------------------------------------------------------------------- */

static void make_slabs(layer *l, const contract_case *c, int s, test_rng *rng)
{
    const quant_type type = s == DOWN ? c->down : s == UP ? c->up : c->gate;
    const int rows = s == DOWN ? c->n_embd : c->n_ff, cols = s == DOWN ? c->n_ff : c->n_embd;
    const size_t n_expert = (size_t)c->n_expert;
    const size_t row_bytes = (size_t)quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const size_t bytes = (size_t)rows * row_bytes;
    const weight_kind kind = s == DOWN ? c->down_weights : c->weights;
    uint8_t *ram = host_room(n_expert, bytes);
    float *scale = host_room(n_expert, sizeof *scale), *bias = NULL;

    if (c->bias) bias = host_floats(n_expert * (size_t)rows, 0.5f, rng);
    for (size_t e = 0; e < n_expert; e++) {
        uint8_t *data = ram + e * bytes;
        for (size_t r = 0; r < (size_t)rows; r++)
            weight_row_make(data + r * row_bytes, type, cols, kind, rng);
        scale[e] = 1.0f;
        if (kind == WEIGHTS_PLAUSIBLE)
            scale[e] = (3.0f + (float)e / (float)n_expert) * unit_scale(data, type, cols);
        l->slab[e][s] = (matrix){ .type = type, .rows = rows, .cols = cols, .data = data,
                                  .row_bytes = row_bytes, .scale = scale[e],
                                  .bias = bias ? bias + e * (size_t)rows : NULL };
    }
    l->bank[s] = (gpu_bank){ .type = (int)type, .rows = rows, .cols = cols, .row_bytes = row_bytes,
                             .slab_bytes = bytes, .data = vram_copy(ram, n_expert * bytes),
                             .scale = vram_floats(scale, n_expert) };
    if (bias) l->bank[s].bias = vram_floats(bias, n_expert * (size_t)rows);
}

static reference shared_matrix(quant_type type, int rows, int cols, bool bias, test_rng *rng)
{
    reference t = reference_make(type, rows, cols, WEIGHTS_PLAUSIBLE, 1.0f, bias, rng);
    t.cpu.scale = t.gpu.scale = 3.0f * unit_scale(t.cpu.data, type, cols);
    return t;
}

static layer *layer_make(const contract_case *c, test_rng *rng)
{
    layer *l = host_room(1, sizeof *l);
    for (int s = 0; s < SLABS; s++) make_slabs(l, c, s, rng);
    if (!c->shared_ff) return l;
    l->shared[GATE] = shared_matrix(c->shared_up, c->shared_ff, c->n_embd, c->bias, rng);
    l->shared[UP] = shared_matrix(c->shared_up, c->shared_ff, c->n_embd, c->bias, rng);
    l->shared[DOWN] = shared_matrix(c->shared_down, c->n_embd, c->shared_ff, c->bias, rng);
    return l;
}

/* ---- the host's arithmetic ------------------------------------------------------------------- */

static acts acts_make(float *x, int n, int cols, quant_type type)
{
    acts a;
    acts_init(&a, host_room(acts_bytes(n, cols), 1), n, cols);
    contract_acts(&a, x, n, cols, type);
    return a;
}

/* One expert's vector from one token, whose forms gate and up read; mid: room. */
static void host_expert(float *y, const matrix *gate, const matrix *up, const matrix *down,
                        const act_row *x, gpu_activation act, acts *mid, float *g, float *u)
{
    contract_multiply(g, gate, x);
    contract_multiply(u, up, x);
    cpu_activate(g, u, gate->rows, contract_ops(), act);
    contract_acts(mid, g, 1, gate->rows, down->type);
    contract_multiply(y, down, mid->rows);
}

typedef struct answer { float *y, *x; } answer;  /* [n, k, n_embd]; [n, n_embd]: the stream */

static answer host_layer(const layer *l, const contract_case *c, float *x, const int32_t *ids,
                         const float *gates, const float *sigma, const float *residual, int n)
{
    const int mark_ff = c->n_ff > c->shared_ff ? c->n_ff : c->shared_ff;
    const size_t n_embd = (size_t)c->n_embd, k = (size_t)c->k;
    float *g = host_room((size_t)mark_ff, sizeof *g), *u = host_room((size_t)mark_ff, sizeof *u);
    float *shared = host_room(n_embd, sizeof *shared);
    const acts in = acts_make(x, n, c->n_embd, c->gate);
    acts mid, shared_mid;
    answer a = { host_room((size_t)n * k * n_embd, sizeof *a.y),
                 host_room((size_t)n * n_embd, sizeof *a.x) };
    acts_init(&mid, host_room(acts_bytes(1, c->n_ff), 1), 1, c->n_ff);
    if (c->shared_ff) acts_init(&shared_mid, host_room(acts_bytes(1, mark_ff), 1), 1, c->shared_ff);
    memcpy(a.x, residual, (size_t)n * n_embd * sizeof *a.x);
    for (size_t t = 0; t < (size_t)n; t++) {
        for (size_t r = 0; r < k; r++) {
            const matrix *e = l->slab[ids[t * k + r]];
            host_expert(a.y + (t * k + r) * n_embd, &e[GATE], &e[UP], &e[DOWN], in.rows + t,
                        c->act, &mid, g, u);
        }
        if (c->shared_ff)
            host_expert(shared, &l->shared[GATE].cpu, &l->shared[UP].cpu, &l->shared[DOWN].cpu,
                        in.rows + t, c->act, &shared_mid, g, u);
        contract_ops()->loops->join(a.x + t * n_embd, a.y + t * k * n_embd, gates + t * k, c->k,
                                    c->shared_ff ? shared : NULL, sigma[t], c->n_embd);
    }
    return a;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Tokens prefer the first experts: some have many slots, some none. */
static int32_t *choose(const contract_case *c, int n, test_rng *rng)
{
    int32_t *ids = host_room((size_t)(n * c->k), sizeof *ids);
    for (int t = 0; t < n; t++) {
        const int some = c->n_expert / 2 > c->k && t % 3 ? c->n_expert / 2 : c->n_expert;
        int32_t order[MAX_EXPERT];
        for (int e = 0; e < some; e++) {
            const int other = (int)test_below(rng, (uint32_t)e + 1);
            order[e] = order[other];
            order[other] = e;
        }
        memcpy(ids + t * c->k, order, (size_t)c->k * sizeof *ids);
    }
    return ids;
}

static void run_ranges(gpu_input *in, gpu_expert_args *a, int size)
{
    const gpu_bank whole[SLABS] = { a->gate, a->up, a->down };
    gpu_bank *parts[SLABS] = { &a->gate, &a->up, &a->down };
    for (a->batch.first = 0; a->batch.first < a->n_expert; a->batch.first += size) {
        a->batch.count = size < a->n_expert - a->batch.first ? size : a->n_expert - a->batch.first;
        for (int s = 0; s < SLABS; s++)
            parts[s]->data = whole[s].data + (uint64_t)a->batch.first * whole[s].slab_bytes;
        gpu_experts(device(), in, a);
    }
}

static void compare(const char *what, const float *got, const float *want, size_t n, double bound)
{
    if (bound == 0.0) expect_bits(what, got, want, n);
    else expect_close(what, got, want, n, bound);
}

/* Sums of the same vectors that are given leave the same stream: the shared expert follows the
 * contract there, too. */
static void check_sums(gpu_input *in, gpu_expert_args *a, const float *gates, const float *residual)
{
    const size_t n = (size_t)in->n, n_embd = (size_t)in->cols, k = (size_t)a->k;
    const float *x = host_copy(a->x, n * n_embd), *y = host_copy(a->y, n * k * n_embd);
    float *sums = host_room(n * n_embd, sizeof *sums);
    memset(sums, 0, n * n_embd * sizeof *sums);
    for (size_t t = 0; t < n; t++)
        contract_ops()->loops->join(sums + t * n_embd, y + t * k * n_embd, gates + t * k, a->k,
                                    NULL, 0.0f, in->cols);
    a->batch.sums = vram_floats(sums, n * n_embd);
    a->batch.first = a->batch.count = 0;
    vram_write(a->x, residual, n * n_embd * sizeof *residual);
    gpu_experts(device(), in, a);
    expect_bits("stream, from sums", host_copy(a->x, n * n_embd), x, n * n_embd);
}

static void check(const contract_case *c, int n, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd, slots = (size_t)(n * c->k);
    const int wider = c->n_ff > c->shared_ff ? c->n_ff : c->shared_ff;
    case_begin("%s/%s/%s, n_embd %d, n_ff %d, %d of %d experts, %d tokens, %s and %s weights%s%s%s"
               ", shared %d, ranges of %d", quant_name(c->gate), quant_name(c->up),
               quant_name(c->down), c->n_embd, c->n_ff, c->k, c->n_expert, n,
               weight_kind_name(c->weights), weight_kind_name(c->down_weights),
               act_name(c->act), c->bias ? ", biases" : "",
               c->poison ? ", poison" : "", c->shared_ff, c->range);
    const layer *l = layer_make(c, rng);
    float *x = host_floats(width, 1.0f, rng);
    for (int t = 0; t < n && c->bound == 0.0; t++)
        activations_make(x + (size_t)t * (size_t)c->n_embd, c->n_embd, c->poison && t % 4 == 1,
                         rng);
    const float *residual = host_floats(width, 1.0f, rng);
    const float *gates = host_floats(slots, 1.0f, rng), *sigma = host_floats((size_t)n, 1.0f, rng);
    const int32_t *ids = choose(c, n, rng);
    gpu_input in = {
        .kind = GPU_PLAIN, .n = n, .cols = c->n_embd, .x = vram_floats(x, width),
        .rows = vram_room(width * sizeof(float)), .halves = vram_room(width * sizeof(uint16_t)),
    };
    gpu_expert_args a = {
        .x = vram_floats(residual, width), .gate = l->bank[GATE], .up = l->bank[UP],
        .down = l->bank[DOWN], .act = c->act, .shared_gate = l->shared[GATE].gpu,
        .shared_up = l->shared[UP].gpu, .shared_down = l->shared[DOWN].gpu,
        .sigma = vram_floats(sigma, (size_t)n), .ids = vram_copy(ids, slots * sizeof *ids),
        .gates = vram_floats(gates, slots), .n_expert = c->n_expert, .k = c->k,
        .scratch = vram_room(gpu_expert_scratch(device(), n, c->k, c->n_expert, wider, c->n_embd)),
        .y = vram_room(slots * (size_t)c->n_embd * sizeof(float)), .batch.contract = true,
    };
    run_ranges(&in, &a, c->range ? c->range : c->n_expert);

    const answer want = host_layer(l, c, x, ids, gates, sigma, residual, n);
    compare("experts", host_copy(a.y, slots * (size_t)c->n_embd), want.y,
            slots * (size_t)c->n_embd, c->bound);
    compare("stream", host_copy(a.x, width), want.x, width, c->bound);
    check_sums(&in, &a, gates, residual);
    case_end();
}

/* ---- cases ----------------------------------------------------------------------------------- */

static bool is_block(quant_type type) { return quant_traits_of(type)->block_elems > 1; }

/* Every format, with weights of every kind: in all matrices, or in down alone, since an infinite
 * row of gate or up leaves nothing but NaNs behind it. */
static void test_types(void)
{
    static const int tokens[] = { 9, 33, 70, 150 };
    test_rng rng = { 31 };
    for (int i = 0; i < GPU_TYPE_COUNT; i += sim_gpu_step(test_rounds(1, 3), 3)) {
        const quant_type type = gpu_types[i];
        if (!is_block(type)) continue;
        family(test_path((char[64]){ 0 }, 64, "%s", quant_name(type)));
        for (int kind = 0; kind < WEIGHT_KINDS; kind++)
            for (int option = 0; option < 3; option++) {
                const bool alone = option == 2;
                if (sim_gpu_skips(i + kind, 2) || sim_gpu_skips(i + kind + 2 * option, 3)) continue;
                contract_case c = {
                    .gate = type, .up = type, .down = type, .n_expert = 4, .k = 2,
                    .act = (option + kind + i) % ACT_COUNT, .bias = option > 0,
                    .weights = alone ? WEIGHTS_PLAUSIBLE : (weight_kind)kind,
                    .down_weights = (weight_kind)kind, .poison = option == 1,
                };
                expert_shape(&c.n_embd, &c.n_ff, type, option % 2);
                check(&c, tokens[(kind + option) % 4], &rng);
            }
    }
}

/* Types that differ, rows and columns of all lengths, shared experts, ranges. */
static void test_shapes(void)
{
    static const struct { contract_case c; int n; } cases[] = {
#define ALL(type) .gate = type, .up = type, .down = type
        { { ALL(QT_MXFP4), 32, 32, 1, 1, .bias = true }, 9 },
        { { ALL(QT_MXFP4), 2880, 96, 4, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true }, 17 },
        { { ALL(QT_MXFP4), 96, 2880, 4, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true }, 40 },
        { { ALL(QT_MXFP4), 2880, 96, 8, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true }, 20 },
        { { ALL(QT_MXFP4), 96, 2880, 8, 4, .act = GPU_SWIGLU_CLAMPED,
            .bias = true, .range = 3 }, 31 },
        { { ALL(QT_Q8_0), 24576, 32, 2, 1, .bias = true }, 9 },  /* too wide for tiles of eight */
        { { ALL(QT_MXFP4), 160, 224, 32, 4, .act = GPU_SWIGLU_CLAMPED, .range = 5 }, 150 },
        { { ALL(QT_Q8_0), 96, 64, 8, 4, .bias = true, .range = 3 }, 300 },
        { { ALL(QT_Q8_0), 64, 1056, 2, 1, .bias = true }, 129 },
        { { ALL(QT_NVFP4), 192, 320, 8, 4, .range = 1, .shared_ff = 192, .shared_up = QT_NVFP4,
            .shared_down = QT_NVFP4 }, 64 },
        { { ALL(QT_Q4_K), 512, 256, 8, 4, .shared_ff = 512, .shared_up = QT_Q4_K,
            .shared_down = QT_Q6_K }, 65 },
        { { QT_Q4_K, QT_Q4_K, QT_Q6_K, 768, 256, 16, 10, .range = 16 }, 31 },
        { { QT_Q5_K, QT_Q4_K, QT_Q8_0, 256, 96, 8, 2, .bias = true }, 40 },
        { { QT_Q8_0, QT_MXFP4, QT_Q4_0, 96, 160, 8, 2, .act = GPU_SWIGLU_CLAMPED,
            .range = 3 }, 100 },
        { { ALL(QT_Q4_0), 32, 96, 8, 4, .bias = true, .shared_ff = 32, .shared_up = QT_Q8_0,
            .shared_down = QT_Q5_1 }, 10 },
        { { QT_Q4_K, QT_Q4_K, QT_Q5_1, 256, 96, 8, 2, .act = GPU_GEGLU, .shared_ff = 96,
            .shared_up = QT_Q8_0, .shared_down = QT_Q8_0 }, 50 },
        { { QT_Q5_K, QT_Q4_K, QT_Q8_0, 256, 96, 8, 2, .act = GPU_GEGLU, .range = 3 }, 40 },
        { { QT_Q8_0, QT_Q8_0, QT_F16, 96, 96, 8, 4, .bias = true, .bound = 1.5e-2 }, 40 },
        { { QT_Q8_0, QT_Q8_0, QT_F32, 96, 70, 8, 4, .bias = true, .bound = 1e-5 }, 40 },
        { { QT_BF16, QT_BF16, QT_Q8_0, 96, 96, 8, 4, .bias = true, .bound = 1.5e-2 }, 40 },
        /* so few slots that the contract's own tiles would be lower than any of floats */
        { { QT_Q8_0, QT_Q8_0, QT_F16, 96, 96, 8, 4, .bias = true, .bound = 1.5e-2 }, 9 },
        { { QT_Q8_0, QT_Q8_0, QT_F32, 96, 70, 8, 4, .bias = true, .bound = 1e-5 }, 9 },
        { { ALL(QT_BF16), 96, 64, 6, 3, .bound = 1.5e-2 }, 17 },
#undef ALL
    };
    test_rng rng = { 32 };
    family("shapes");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        contract_case c = cases[i].c;
        if (sim_gpu_skips((int)i, 4)) continue;
        c.weights = c.down_weights = WEIGHTS_PLAUSIBLE;
        check(&c, cases[i].n, &rng);
    }
}

/* Every number of tokens around the ends of tiles. */
static void test_tokens(void)
{
    const contract_case c = { QT_Q8_0, QT_Q8_0, QT_Q8_0, 64, 32, 2, 1,
                              .weights = WEIGHTS_PLAUSIBLE,
                              .down_weights = WEIGHTS_PLAUSIBLE };
    test_rng rng = { 33 };
    family("tokens");
    for (int n = 9, i = 0; n <= 300; n += n % 16 == 1 ? 7 : n % 16 == 0 ? 1 : 16 - n % 16, i++)
        if (!sim_gpu_skips(i, 8)) check(&c, n, &rng);
}

int main(int argc, char **argv)
{
    test_begin("gpu contract", argc, argv);
    if (device_open()) {
        test_types();
        test_shapes();
        test_tokens();
        device_close();
    }
    return test_end();
}
