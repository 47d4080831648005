/* test_gpu_network.c - a dense network for all tokens on the GPU, against the CPU.
 *
 * Up to GPU_FEW tokens are those of the contract but for the order of the last additions; with more
 * they are compared with decoded weights and F32 activations, within the error of 16-bit ones; a
 * simulated GPU has the bits of few. The same call gives the same bits twice. */
#include <string.h>

#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

typedef struct network_case {
    quant_type up, down;                 /* up: of gate, too */
    int n_embd, n_ff;
    gpu_activation act;
    bool gated, add;
    bool normed;                         /* the input is */
    bool bias;
    bool lows;                           /* the input has them */
} network_case;

typedef struct network {
    reference gate, up, down;
} network;

static reference network_reference(quant_type type, int rows, int cols, bool bias, test_rng *rng)
{
    reference t = reference_make(type, rows, cols, WEIGHTS_PLAUSIBLE, 1.0f, bias, rng);
    t.cpu.scale = t.gpu.scale = 3.0f * unit_scale(t.cpu.data, type, cols);
    return t;
}

static network network_make(const network_case *c, test_rng *rng)
{
    return (network){ network_reference(c->up, c->n_ff, c->n_embd, c->bias, rng),
                      network_reference(c->up, c->n_ff, c->n_embd, c->bias, rng),
                      network_reference(c->down, c->n_embd, c->n_ff, c->bias, rng) };
}

/* ---- the CPU's side -------------------------------------------------------------------------- */

static const float eps = 1e-5f;

static void cpu_network(float *y, const ops *o, const network_case *c, const network *w,
                        const float *x, const float *norm, const float *sigma, int n)
{
    const size_t mid = (size_t)n * (size_t)c->n_ff, embd = (size_t)c->n_embd;
    const int mark = host_mark();
    float *g = host_room(mid, sizeof *g), *u = host_room(mid, sizeof *u);
    float *in = host_room((size_t)n * embd, sizeof *in);
    float *out = host_room((size_t)n * embd, sizeof *out);
    memcpy(in, x, (size_t)n * embd * sizeof *in);
    for (size_t t = 0; norm && t < (size_t)n; t++)
        o->loops->rmsnorm(in + t * embd, in + t * embd, norm, c->n_embd, eps);
    cpu_product(g, o, &w->gate.cpu, in, n);
    cpu_product(u, o, &w->up.cpu, in, n);
    cpu_activate(g, u, (int)mid, o, c->act);
    cpu_product(out, o, &w->down.cpu, g, n);
    for (size_t t = 0; t < (size_t)n; t++)
        for (size_t i = 0; i < embd; i++) {
            const float v = sigma ? sigma[t] * out[t * embd + i] : out[t * embd + i];
            y[t * embd + i] = c->add ? y[t * embd + i] + v : v;
        }
    host_drop(mark);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* A norm has roundings of its own on each side. A code of 8 bits may show one, and what it changes
 * before the second product may change more codes there: a percent in all. */
static double bound_of(const network_case *c, bool few)
{
    const bool codes = quant_traits_of(c->up)->block_elems > 1;
    if (few) return c->normed && codes ? 2e-2 : 1e-5;
    if (c->lows) return LOWS_BOUND;
    return c->up == QT_F32 && c->down == QT_F32 ? 1e-5 : 1.5e-2;
}

/* few: the contract's kernels, however many tokens there are. */
static void check_network(const network_case *c, int n, bool few, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd;
    case_begin("%s/%s, n_embd %d, n_ff %d, %d tokens%s%s%s%s%s%s%s", quant_name(c->up),
               quant_name(c->down), c->n_embd, c->n_ff, n, act_name(c->act),
               c->lows ? ", lows" : "", c->gated ? ", gated" : "", c->add ? ", added" : "",
               c->normed ? ", normed" : "",
               c->bias ? ", biases" : "", few && n > GPU_FEW ? ", by few" : "");
    const network w = network_make(c, rng);
    const float *x = host_floats(width, 1.0f, rng), *before = host_floats(width, 1.0f, rng);
    const float *norm = host_floats((size_t)c->n_embd, 2.0f, rng);
    const float *sigma = host_floats((size_t)n, 1.0f, rng);
    float *want = host_room(width, sizeof *want);
    gpu_input in = {
        .kind = c->normed ? GPU_NORM : GPU_PLAIN, .n = n, .cols = c->n_embd,
        .x = vram_floats(x, width), .weight = vram_floats(norm, (size_t)c->n_embd), .eps = eps,
        .rows = vram_room(width * sizeof(float)), .halves = vram_room(width * 2),
        .lows = c->lows ? vram_room(width * 2) : NULL,
        .blocks = vram_room(GPU_FEW * gpu_blocks_bytes(c->n_embd)),
    };
    const gpu_network_args args = {
        .y = vram_floats(before, width), .add = c->add, .gate = w.gate.gpu, .up = w.up.gpu,
        .down = w.down.gpu, .act = c->act,
        .sigma = c->gated ? vram_floats(sigma, (size_t)n) : NULL,
        .scratch = vram_room(gpu_network_scratch(n, c->n_ff, c->n_embd)),
    };
    gpu_network(device(), &in, &args);
    const float *y = host_copy(args.y, width);

    memcpy(want, before, width * sizeof *want);
    cpu_network(want, few || sim_gpu() ? contract_ops() : exact_ops(), c, &w, x,
                c->normed ? norm : NULL, c->gated ? sigma : NULL, n);
    expect_close("y", y, want, width, bound_of(c, few));

    in.has_rows = in.has_halves = in.has_blocks = false;
    vram_write(args.y, before, width * sizeof *before);
    gpu_network(device(), &in, &args);
    expect_bits("y, the second time", host_copy(args.y, width), y, width);
    case_end();
}

static void test_types(void)
{
    static const int tokens[] = { 1, 2, 8, 9, 40, 200 };
    test_rng rng = { 61 };
    for (int i = 0; i < GPU_TYPE_COUNT; i += sim_gpu_step(test_rounds(3, 5), 5)) {
        family(test_path((char[64]){ 0 }, 64, "%s network", quant_name(gpu_types[i])));
        for (int t = 0; t < (int)ARRAY_LEN(tokens); t++) {
            if (sim_gpu_skips(t + i / 3, 2)) continue;
            network_case c = { .up = gpu_types[i], .down = gpu_types[i], .act = (t + i) % ACT_COUNT,
                               .gated = t % 2, .add = t < 4, .normed = t % 3 == 1,
                               .bias = t % 4 == 1 };
            expert_shape(&c.n_embd, &c.n_ff, gpu_types[i], t % 2);
            check_network(&c, tokens[t], tokens[t] <= GPU_FEW, &rng);
        }
    }
}

/* Types as files mix them, floats of odd widths, and rows as long as real ones: 10944 and 12288
 * columns of up to GPU_FEW tokens are more than the shared memory of some chips. */
static void test_mixed(void)
{
    static const network_case cases[] = {
        { QT_Q4_K, QT_Q5_0, 512, 96, .add = true, .normed = true },
        { QT_Q4_K, QT_Q8_0, 512, 352, .add = true, .normed = true },
        { QT_Q4_K, QT_Q6_K, 512, 768, .gated = true },
        { QT_Q8_0, QT_F16, 96, 64, .add = true },
        { QT_F16, QT_Q8_0, 100, 96, .act = GPU_SWIGLU_CLAMPED },
        { QT_Q8_0, QT_Q8_0, 256, 2112, .act = GPU_GEGLU, .normed = true },
        { QT_F32, QT_BF16, 33, 50, .add = true, .gated = true },
        { QT_BF16, QT_F32, 64, 33, .add = true },
        { QT_F32, QT_F32, 100, 1000, .add = true, .normed = true },
        { QT_Q8_0, QT_Q8_0, 256, 10944, .add = true, .normed = true },
        { QT_Q4_K, QT_Q4_K, 256, 12288, .add = true, .normed = true },
        { QT_BF16, QT_BF16, 128, 12288, .add = true },
        { QT_BF16, QT_BF16, 96, 288, .add = true, .normed = true, .lows = true },
        { QT_F16, QT_BF16, 101, 70, .gated = true, .lows = true },
        { QT_BF16, QT_F32, 64, 33, .add = true, .lows = true },
    };
    static const int tokens[] = { 1, 3, 8, 9, 33, 130 };
    test_rng rng = { 62 };
    family("mixed networks");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++)
            if (!sim_gpu() || ((cases[i].n_ff < 10000 || tokens[t] < 9) &&
                               !sim_gpu_skips((int)(i + t), 3)))
                check_network(&cases[i], tokens[t], tokens[t] <= GPU_FEW, &rng);
}

/* Below the wanted bound, more tokens use the kernels of few. */
static void test_by_few(void)
{
    static const network_case cases[] = {
        { QT_Q4_K, QT_Q8_0, 512, 352, .add = true, .normed = true },
        { QT_BF16, QT_BF16, 64, 96, .gated = true },
    };
    const gpu_gemm from = { .from = 100 }, usual = { .from = 0 };
    test_rng rng = { 63 };
    family("networks, few tokens at a time");
    gpu_gemm_set(device(), &from);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        check_network(&cases[i], 9, true, &rng);
        check_network(&cases[i], 61, true, &rng);
    }
    gpu_gemm_set(device(), &usual);
}

/* ---- inputs that a router finishes ----------------------------------------------------------- */

typedef struct form_case {
    quant_type router;                   /* floats; others leave it to the network */
    int n_expert, cols, n, n_also;
    bool left;                           /* the router's own input is for experts, too */
} form_case;

static gpu_input form_input(const float *x, const form_case *c, bool blocks, test_rng *rng)
{
    const size_t cols = (size_t)c->cols, width = (size_t)c->n * cols;
    return (gpu_input){
        .kind = GPU_NORM, .n = c->n, .cols = c->cols, .x = x,
        .weight = vram_floats(host_floats(cols, 1.5f, rng), cols), .eps = eps,
        .rows = vram_room(width * sizeof *x), .halves = vram_room(width * 2),
        .blocks = blocks ? vram_room((size_t)c->n * gpu_blocks_bytes(c->cols)) : NULL,
    };
}

/* The input's forms are those that a network makes of it, to the bit. */
static void check_forms(const gpu_input *in, const network *w, const form_case *c)
{
    const size_t width = (size_t)c->n * (size_t)c->cols, of_one = gpu_blocks_bytes(c->cols);
    const size_t used = (size_t)c->cols / 32 * 40;
    gpu_input own = *in;
    const gpu_network_args args = {
        .y = vram_room(width * sizeof(float)), .gate = w->gate.gpu, .up = w->up.gpu,
        .down = w->down.gpu, .scratch = vram_room(gpu_network_scratch(c->n, 64, c->cols)),
    };
    own.rows = vram_room(width * sizeof(float));
    own.blocks = vram_room((size_t)c->n * of_one);
    own.has_rows = own.has_blocks = false;
    gpu_network(device(), &own, &args);
    expect_bits("rows", host_copy(in->rows, width), host_copy(own.rows, width), width);
    uint8_t *got = host_room((size_t)c->n, of_one), *want = host_room((size_t)c->n, of_one);
    vram_read(got, in->blocks, (size_t)c->n * of_one);
    vram_read(want, own.blocks, (size_t)c->n * of_one);
    for (size_t t = 0; t < (size_t)c->n && c->cols % 32 == 0; t++)
        expect(memcmp(got + t * of_one, want + t * of_one, used) == 0, "int8 form of token %zu", t);

    const float *y = host_copy(args.y, width);
    gpu_input made = *in;
    gpu_network(device(), &made, &args);
    expect_bits("network", host_copy(args.y, width), y, width);
}

static void check_router_forms(const form_case *c, test_rng *rng)
{
    const size_t width = (size_t)c->n * (size_t)c->cols, n_logit = (size_t)(c->n * c->n_expert);
    const bool made = c->n <= GPU_FEW && quant_traits_of(c->router)->block_elems == 1;
    case_begin("%s router of %d, %d columns, %d tokens, %d forms%s", quant_name(c->router),
               c->n_expert, c->cols, c->n, c->n_also, c->left ? " and its own" : "");
    const network_case shape = { .up = QT_F32, .down = QT_F32, .n_embd = c->cols, .n_ff = 64 };
    const network w = network_make(&shape, rng);
    const reference router =
        reference_make(c->router, c->n_expert, c->cols, WEIGHTS_PLAUSIBLE, 1.0f, true, rng);
    const float *x = vram_floats(host_floats(width, 3.0f, rng), width);
    gpu_input in = form_input(x, c, c->left, rng), plain = in, also[2];
    gpu_route_args a = { .router = router.gpu, .k = 2,
                         .logits = vram_room(n_logit * sizeof(float)) };
    gpu_route(device(), &plain, &a);
    const float *logits = host_copy(a.logits, n_logit);
    for (int i = 0; i < c->n_also; i++) {
        also[i] = form_input(x, c, true, rng);
        a.also[2 - c->n_also + i] = &also[i];
    }
    a.logits = vram_room(n_logit * sizeof(float));
    gpu_route(device(), &in, &a);
    expect_bits("logits", host_copy(a.logits, n_logit), logits, n_logit);
    for (int i = 0; i < c->n_also; i++) {
        expect(also[i].has_blocks == made && also[i].has_rows == made, "input %d: made %d", i,
               also[i].has_blocks);
        if (made) check_forms(&also[i], &w, c);
    }
    if (c->left && made) check_forms(&in, &w, c);
    case_end();
}

static void test_router_forms(void)
{
    static const form_case cases[] = {
        { QT_F32, 128, 2816, 1, 2, false }, { QT_F32, 128, 2816, 8, 2, false },
        { QT_F32, 8, 64, 1, 1, false }, { QT_F32, 8, 4224, 3, 2, true },
        { QT_BF16, 60, 288, 2, 1, true }, { QT_F16, 500, 2048, 2, 2, false },
        { QT_F32, 8, 100, 2, 2, false }, { QT_F32, 1024, 5376, 5, 2, false },
        { QT_Q8_0, 32, 256, 3, 2, false }, { QT_F32, 32, 256, 9, 2, false },
    };
    test_rng rng = { 64 };
    family("inputs finished by a router");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) check_router_forms(&cases[i], &rng);
}

static void test_refused(void)
{
    static const struct { int up_rows, down_cols; bool blocks; } bad[] = {
        { 32, 64, true }, { 64, 32, true }, { 64, 64, false },
    };
    family("no such network");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gpu *other = NULL;
        err_ctx err = { 0 };
        case_begin("up of %d rows, down of %d columns", bad[i].up_rows, bad[i].down_cols);
        gpu_input in = { .n = 1, .cols = 64,
                         .blocks = bad[i].blocks ? vram_room(gpu_blocks_bytes(64)) : NULL };
        const gpu_network_args a = {
            .gate = { .type = QT_Q8_0, .rows = 64, .cols = 64 },
            .up = { .type = QT_Q8_0, .rows = bad[i].up_rows, .cols = 64 },
            .down = { .type = QT_Q8_0, .rows = 64, .cols = bad[i].down_cols },
        };
        if (expect(gpu_open(&other, 0, &err) == 0, "%s", err.msg)) {
            gpu_network(other, &in, &a);
            expect(gpu_wait(other, &err) < 0, "not refused");
            gpu_close(other);
        }
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu network", argc, argv);
    if (device_open()) {
        test_types();
        test_mixed();
        test_by_few();
        test_router_forms();
        test_refused();
        device_close();
    }
    return test_end();
}
