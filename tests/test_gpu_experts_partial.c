/* test_gpu_experts_partial.c - many tokens with hot experts on the device and cold ones on the
 * host.
 *
 * This program computes the cold experts by plain loops over the contract's products. For any
 * placement, the sums have the bits of all vectors computed here, and gpu_experts makes the same of
 * them as of sums computed here. Vectors that no operation should read are full of NaNs. */
#include <math.h>
#include <string.h>

#include "cuda/gpu_experts.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

enum { GATE, UP, DOWN, SLABS };
enum { MAX_EXPERT = 64 };

typedef struct partial_case {
    quant_type up, down;                 /* up: of gate, too */
    int n_embd, n_ff, n_expert, k;
    gpu_activation act;
    bool bias, norm;
    int shared_ff;                       /* width of the shared expert; 0: none */
    quant_type shared_up, shared_down;
} partial_case;

typedef enum hot_kind { HOT_NONE, HOT_SOME, HOT_ONE, HOT_ALL, HOT_KINDS } hot_kind;
static const char *const hot_names[] = { "none hot", "some hot", "one hot", "all hot" };

typedef struct layer {
    const partial_case *c;
    matrix slab[MAX_EXPERT][SLABS];
    gpu_bank bank[SLABS];                /* expert e at place[e] */
    int place[MAX_EXPERT];
} layer;

/* ---- a layer --------------------------------------------------------------------------------- */

static void make_slabs(layer *l, int s, test_rng *rng)
{
    const partial_case *c = l->c;
    const quant_type type = s == DOWN ? c->down : c->up;
    const int rows = s == DOWN ? c->n_embd : c->n_ff, cols = s == DOWN ? c->n_ff : c->n_embd;
    const size_t n_expert = (size_t)c->n_expert;
    const size_t row_bytes = (size_t)quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const size_t bytes = (size_t)rows * row_bytes;
    uint8_t *ram = host_room(n_expert, bytes), *there = host_room(n_expert, bytes);
    float *scale = host_room(n_expert, sizeof *scale), *bias = NULL;

    if (c->bias) bias = host_floats(n_expert * (size_t)rows, 0.5f, rng);
    for (size_t e = 0; e < n_expert; e++) {
        uint8_t *data = ram + e * bytes;
        for (size_t r = 0; r < (size_t)rows; r++)
            weight_row_make(data + r * row_bytes, type, cols, WEIGHTS_PLAUSIBLE, rng);
        scale[e] = (3.0f + (float)e / (float)n_expert) * unit_scale(data, type, cols);
        l->slab[e][s] = (matrix){ .type = type, .rows = rows, .cols = cols, .data = data,
                                  .row_bytes = row_bytes, .scale = scale[e],
                                  .bias = bias ? bias + e * (size_t)rows : NULL };
        memcpy(there + (size_t)l->place[e] * bytes, data, bytes);
    }
    l->bank[s] = (gpu_bank){ .type = (int)type, .rows = rows, .cols = cols, .row_bytes = row_bytes,
                             .slab_bytes = bytes, .data = vram_copy(there, n_expert * bytes),
                             .scale = vram_floats(scale, n_expert) };
    if (bias) l->bank[s].bias = vram_floats(bias, n_expert * (size_t)rows);
}

static void shuffle(int *order, int n, test_rng *rng)
{
    for (int e = 0; e < n; e++) {
        const int other = (int)test_below(rng, (uint32_t)e + 1);
        order[e] = order[other];
        order[other] = e;
    }
}

static layer *layer_make(const partial_case *c, test_rng *rng)
{
    layer *l = host_room(1, sizeof *l);
    l->c = c;
    shuffle(l->place, c->n_expert, rng);
    for (int s = 0; s < SLABS; s++) make_slabs(l, s, rng);
    return l;
}

/* ---- the host's arithmetic ------------------------------------------------------------------- */

/* Every slot's vector [n, k, n_embd] from the finished input [n, n_embd]. */
static float *host_vectors(const layer *l, float *x, const int32_t *ids, int n)
{
    const partial_case *c = l->c;
    float *y = host_room((size_t)(n * c->k) * (size_t)c->n_embd, sizeof *y);
    float *g = host_room((size_t)c->n_ff, sizeof *g), *u = host_room((size_t)c->n_ff, sizeof *u);
    acts in, mid;
    acts_init(&in, host_room(acts_bytes(n, c->n_embd), 1), n, c->n_embd);
    acts_init(&mid, host_room(acts_bytes(1, c->n_ff), 1), 1, c->n_ff);
    contract_acts(&in, x, n, c->n_embd, c->up);
    for (int s = 0; s < n * c->k; s++) {
        const matrix *e = l->slab[ids[s]];
        contract_multiply(g, &e[GATE], in.rows + s / c->k);
        contract_multiply(u, &e[UP], in.rows + s / c->k);
        cpu_activate(g, u, c->n_ff, contract_ops(), c->act);
        contract_acts(&mid, g, 1, c->n_ff, c->down);
        contract_multiply(y + (size_t)s * (size_t)c->n_embd, &e[DOWN], mid.rows);
    }
    return y;
}

static float *host_sums(const float *y, const float *gates, int n, int k, int n_embd)
{
    float *sums = host_room((size_t)n * (size_t)n_embd, sizeof *sums);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < n_embd; i++)
            for (int r = 0; r < k; r++) {
                float *sum = sums + (size_t)t * (size_t)n_embd + i;
                *sum = fmaf(gates[t * k + r], y[((size_t)(t * k + r)) * (size_t)n_embd + (size_t)i],
                            *sum);
            }
    return sums;
}

/* ---- a batch --------------------------------------------------------------------------------- */

typedef struct batch {
    const layer *l;
    int n;
    int32_t *ids;
    float *gates, *residual;
    gpu_input in;
    gpu_expert_args args;
    int32_t hot[MAX_EXPERT];
} batch;

static gpu_matrix shared_matrix(quant_type type, int rows, int cols, test_rng *rng)
{
    reference t = reference_make(type, rows, cols, WEIGHTS_PLAUSIBLE, 1.0f, false, rng);
    t.gpu.scale = 3.0f * unit_scale(t.cpu.data, type, cols);
    return t.gpu;
}

/* Tokens prefer the first experts: some have many slots, some none. */
static void choose(batch *b, test_rng *rng)
{
    const partial_case *c = b->l->c;
    const size_t slots = (size_t)(b->n * c->k);
    b->ids = host_room(slots, sizeof *b->ids);
    b->gates = host_floats(slots, 1.0f, rng);
    for (int t = 0; t < b->n; t++) {
        const int some = c->n_expert / 2 > c->k && t % 3 ? c->n_expert / 2 : c->n_expert;
        int order[MAX_EXPERT];
        shuffle(order, some, rng);
        for (int r = 0; r < c->k; r++) b->ids[t * c->k + r] = order[r];
    }
    b->args.ids = vram_copy(b->ids, slots * sizeof *b->ids);
    b->args.gates = vram_floats(b->gates, slots);
}

static void batch_make(batch *b, const layer *l, int n, test_rng *rng)
{
    const partial_case *c = l->c;
    const size_t width = (size_t)n * (size_t)c->n_embd;
    const int wider = c->shared_ff > c->n_ff ? c->shared_ff : c->n_ff;
    b->l = l;
    b->n = n;
    b->residual = host_floats(width, 1.0f, rng);
    b->in = (gpu_input){
        .kind = c->norm ? GPU_NORM : GPU_PLAIN, .n = n, .cols = c->n_embd, .eps = 1e-6f,
        .x = vram_floats(host_floats(width, 1.0f, rng), width),
        .weight = vram_floats(host_floats((size_t)c->n_embd, 1.5f, rng), (size_t)c->n_embd),
        .rows = vram_room(width * sizeof(float)), .halves = vram_room(width * sizeof(uint16_t)),
    };
    b->args = (gpu_expert_args){
        .gate = l->bank[GATE], .up = l->bank[UP], .down = l->bank[DOWN], .act = c->act,
        .n_expert = c->n_expert, .k = c->k,
        .scratch = vram_room(gpu_expert_scratch(device(), n, c->k, c->n_expert, wider, c->n_embd)),
    };
    choose(b, rng);
    if (!c->shared_ff) return;
    b->args.shared_gate = shared_matrix(c->shared_up, c->shared_ff, c->n_embd, rng);
    b->args.shared_up = shared_matrix(c->shared_up, c->shared_ff, c->n_embd, rng);
    b->args.shared_down = shared_matrix(c->shared_down, c->n_embd, c->shared_ff, rng);
    b->args.sigma = vram_floats(host_floats((size_t)n, 1.0f, rng), (size_t)n);
}

static void divide(batch *b, hot_kind kind, test_rng *rng)
{
    for (int e = 0; e < b->l->c->n_expert; e++) {
        const bool hot = kind == HOT_ALL || (kind == HOT_SOME && test_below(rng, 2)) ||
                         (kind == HOT_ONE && e == b->ids[0]);
        b->hot[e] = hot ? b->l->place[e] : -1;
    }
}

/* x after the shared expert and the residual. */
static float *after(const batch *b, const float *sums)
{
    const size_t width = (size_t)b->n * (size_t)b->l->c->n_embd;
    gpu_expert_args a = b->args;
    gpu_input in = b->in;
    a.x = vram_floats(b->residual, width);
    a.batch.sums = sums;
    gpu_experts(device(), &in, &a);
    return host_copy(a.x, width);
}

/* In one piece, or in several, whose vectors are in the same memory. */
static void take_sums(batch *b, const int32_t *hot, float *sums, const float *y, int piece)
{
    const partial_case *c = b->l->c;
    const size_t row = (size_t)c->k * (size_t)c->n_embd;
    err_ctx err = { 0 };
    float *cold = gpu_alloc_host(device(), (size_t)piece * row * sizeof *cold, &err);
    if (!expect(cold != NULL, "%s", err.msg)) return;
    for (int first = 0; first < b->n; first += piece) {
        const int n = b->n - first < piece ? b->n - first : piece;
        memset(cold, 0xFF, (size_t)piece * row * sizeof *cold);
        for (int s = 0; s < n * c->k; s++)
            if (b->hot[b->ids[first * c->k + s]] < 0)
                memcpy(cold + (size_t)s * (size_t)c->n_embd,
                       y + (size_t)(first * c->k + s) * (size_t)c->n_embd,
                       (size_t)c->n_embd * sizeof *y);
        gpu_experts_partial_end(device(), &b->in, &b->args, hot, sums, cold, first, n);
        expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    }
    gpu_free_host(device(), cold);
}

static void check_partial(const partial_case *c, hot_kind kind, int n, int piece, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd;
    batch *b = host_room(1, sizeof *b);
    float *sums = vram_room(width * sizeof *sums);
    batch_make(b, layer_make(c, rng), n, rng);
    divide(b, kind, rng);
    if (kind == HOT_NONE) b->args.gate.data = b->args.up.data = b->args.down.data = NULL;
    const int32_t *hot = vram_copy(b->hot, (size_t)c->n_expert * sizeof *hot);

    gpu_experts_partial_begin(device(), &b->in, &b->args, hot);
    const float *y = host_vectors(b->l, host_copy(b->in.rows, width), b->ids, n);
    const float *want = host_sums(y, b->gates, n, c->k, c->n_embd);
    take_sums(b, hot, sums, y, piece);
    expect_bits("sums", host_copy(sums, width), want, width);
    expect_bits("stream", after(b, sums), after(b, vram_floats(want, width)), width);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void run_case(const partial_case *c, hot_kind kind, int n, int piece, test_rng *rng)
{
    shared_text text;
    const char *shared = shared_name(text, c->shared_up, c->shared_down, c->shared_ff);
    case_begin("%s/%s, %d, %d, %d of %d experts, %d tokens, %d at a time%s%s%s%s; %s",
               quant_name(c->up), quant_name(c->down), c->n_embd, c->n_ff, c->k, c->n_expert, n,
               piece, act_name(c->act), c->bias ? ", biases" : "",
               c->norm ? ", norm" : "", shared, hot_names[kind]);
    check_partial(c, kind, n, piece, rng);
    case_end();
}

static void set_shape(partial_case *c, quant_type type, int i)
{
    expert_shape(&c->n_embd, &c->n_ff, type, i);
    c->up = c->down = type;
    c->n_expert = 8;
    c->k = 4;
}

static void test_types(void)
{
    static const struct { int n, piece; } batches[] = { { 9, 9 }, { 17, 17 }, { 33, 14 } };
    test_rng rng = { 31 };
    for (int i = 0; i < GPU_TYPE_COUNT; i += sim_gpu_step(4, 12)) {
        family(test_path((char[64]){ 0 }, 64, "%s partial experts", quant_name(gpu_types[i])));
        for (int option = 0; option < 2 * HOT_KINDS; option++) {
            if (sim_gpu_skips(option + i / 4, 4)) continue;
            partial_case c = { .act = (option + i) % ACT_COUNT, .bias = option & 2,
                              .norm = option % 3 == 0 };
            set_shape(&c, gpu_types[i], option % 2);
            const int at = option % (int)ARRAY_LEN(batches);
            run_case(&c, (hot_kind)(option % HOT_KINDS), batches[at].n, batches[at].piece, &rng);
        }
    }
}

/* Mixed types, shared experts, many choices, odd widths, experts of many slots and of none. */
static void test_special(void)
{
    static const partial_case special[] = {
        { QT_Q4_K, QT_Q6_K, 512, 256, 16, 10, .norm = true },
        { QT_Q8_0, QT_F16, 96, 96, 8, 4, .bias = true },
        { QT_F16, QT_Q8_0, 100, 96, 8, 4, .norm = true },
        { QT_F32, QT_BF16, 33, 50, 8, 4, .bias = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 40, 32, .norm = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 1, 1, .act = GPU_SWIGLU },
        { QT_Q4_K, QT_Q6_K, 512, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q4_K,
          .shared_down = QT_Q6_K },
        { QT_Q8_0, QT_Q8_0, 288, 96, 64, 4, .bias = true, .shared_ff = 192, .shared_up = QT_Q8_0,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 96, 64, 8, 4, .shared_ff = 130, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 3300, 96, 3, 2, .bias = true },
    };
    static const struct { int n, piece; } batches[] = { { 9, 4 }, { 70, 70 }, { 41, 32 } };
    test_rng rng = { 32 };
    family("special partial experts");
    for (size_t i = 0; i < ARRAY_LEN(special); i += (size_t)sim_gpu_step(1, 4))
        for (int option = 0; option < 3; option++) {
            const int at = ((int)i + option) % (int)ARRAY_LEN(batches);
            if (sim_gpu_skips((int)i + 2 * option, 3)) continue;
            run_case(&special[i], option == 0 ? HOT_SOME : option == 1 ? HOT_ALL : HOT_NONE,
                     batches[at].n, batches[at].piece, &rng);
        }
}

/* What makes no sense is refused. */
static void test_refused(void)
{
    static const struct { int n, first, count; const char *why; } bad[] = {
        { GPU_FEW, 0, 1, "few tokens" }, { 9, 0, 10, "more than there are" },
        { 9, -1, 1, "before the first" }, { 9, 9, 1, "after the last" }, { 9, 0, 0, "none" },
    };
    test_rng rng = { 33 };
    const partial_case c = { QT_Q8_0, QT_Q8_0, 64, 64, 8, 2, .norm = true };
    family("no such batch");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gpu *other = NULL;
        err_ctx err = { 0 };
        batch *b;
        case_begin("%s", bad[i].why);
        b = host_room(1, sizeof *b);
        batch_make(b, layer_make(&c, &rng), bad[i].n, &rng);
        const int32_t *hot = vram_copy(b->hot, (size_t)c.n_expert * sizeof *hot);
        float *room = vram_room(16 * 64 * sizeof *room);
        if (expect(gpu_open(&other, 0, &err) == 0, "%s", err.msg)) {
            if (bad[i].n <= GPU_FEW) gpu_experts_partial_begin(other, &b->in, &b->args, hot);
            else gpu_experts_partial_end(other, &b->in, &b->args, hot, room, room, bad[i].first,
                                         bad[i].count);
            expect(gpu_wait(other, &err) < 0, "not refused");
        }
        gpu_close(other);
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu experts partial", argc, argv);
    if (device_open()) {
        test_types();
        test_special();
        test_refused();
        device_close();
    }
    return test_end();
}
