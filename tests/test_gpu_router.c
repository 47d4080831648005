/* test_gpu_router.c - the router on the GPU, alone and before the experts.
 *
 * Its logits are close to those of the CPU. The choice is that of router_select, unless two logits
 * are too close to call, and equal ones are chosen in order. Before experts it leaves them the
 * normed input and the choice, or lets them choose: that is compared as test_gpu_experts.c does. */
#include <math.h>
#include <string.h>

#include "tests/expert_batch.h"

static const float eps = 1e-6f;

/* ---- the router ------------------------------------------------------------------------------ */

typedef struct route_case {
    quant_type type;
    int n_expert, k, cols, n;
    bool plain;                          /* no norm */
    bool bias, shared, tie;
} route_case;

/* Whether rounding errors could change the order of the first k + 1. Equal rows stay equal. */
static bool is_close_call(const float *logits, int n, int k, bool tie)
{
    int32_t order[64];
    float unused[64];
    const int first = min_int(k + 1, n);
    router_select(order, unused, logits, n, first, NULL);
    for (int r = 0; r + 1 < first; r++) {
        const double a = logits[order[r]], b = logits[order[r + 1]];
        const bool references = tie && order[r] == 2 && order[r + 1] == 5;
        if (!references && a - b < 1e-5 * fmax(fabs(a), fabs(b)) + 1e-6) return true;
    }
    return false;
}

/* Logits of about 1, whatever the length. */
static float router_scale(int cols) { return 2.0f / sqrtf((float)cols); }

static void compare_routes(const route_case *c, const float *logits, const gpu_route_args *a)
{
    const size_t slots = (size_t)(c->n * c->k), n_expert = (size_t)c->n_expert;
    const float *gates = host_copy(a->gates, slots);
    int32_t *ids = host_room(slots, sizeof *ids);
    int skipped = 0;
    vram_read(ids, a->ids, slots * sizeof *ids);
    for (int t = 0; t < c->n; t++) {
        int32_t want[32];
        float softmax[32];
        const int32_t *own = ids + t * c->k;
        int at = 0;
        if (is_close_call(logits + (size_t)t * n_expert, c->n_expert, c->k, c->tie)) {
            skipped++;
            continue;
        }
        router_select(want, softmax, logits + (size_t)t * n_expert, c->n_expert, c->k, NULL);
        while (at + 1 < c->k && own[at] == want[at]) at++;
        expect(own[at] == want[at], "token %d: choice %d is %d, expected %d", t, at, own[at],
               want[at]);
        expect_close("gates", gates + t * c->k, softmax, (size_t)c->k, 1e-5);
    }
    expect(skipped <= (c->n + 1) / 2, "%d of %d tokens are too close to call", skipped, c->n);
}

static void check_route(const route_case *c, test_rng *rng)
{
    const size_t width = (size_t)c->n * (size_t)c->cols, n_logit = (size_t)(c->n * c->n_expert);
    float *x = host_floats(width, 1.0f, rng), *gain = host_floats((size_t)c->cols, 1.5f, rng);
    float *normed = host_room(width, sizeof *normed), *logits = host_room(n_logit, sizeof *logits);
    float *sigma = host_room((size_t)c->n, sizeof *sigma);
    const float scale = router_scale(c->cols);
    reference router =
        reference_make(c->type, c->n_expert, c->cols, WEIGHTS_PLAUSIBLE, scale, c->bias, rng);
    reference shared = reference_make(c->type, 1, c->cols, WEIGHTS_PLAUSIBLE, scale, false, rng);

    if (c->tie) {                        /* experts 2 and 5 are equal, and often chosen */
        uint8_t *row = (uint8_t *)router.cpu.data + 2 * router.cpu.row_bytes;
        float *bias = (float *)router.cpu.bias;
        memcpy(row + 3 * router.cpu.row_bytes, row, router.cpu.row_bytes);
        bias[5] = bias[2] = 100.0f;
        vram_write((void *)router.gpu.data, router.cpu.data,
                   router.cpu.row_bytes * (size_t)c->n_expert);
        vram_write((void *)router.gpu.bias, bias, (size_t)c->n_expert * sizeof *bias);
    }
    gpu_input in = { .kind = c->plain ? GPU_PLAIN : GPU_NORM, .n = c->n, .cols = c->cols,
                     .x = vram_floats(x, width), .weight = vram_floats(gain, (size_t)c->cols),
                     .eps = eps, .rows = vram_room(width * sizeof *x),
                     .halves = vram_room(width * 2),
                     .blocks = c->n <= GPU_FEW
                                   ? vram_room((size_t)c->n * gpu_blocks_bytes(c->cols)) : NULL };
    const gpu_route_args a = {
        .router = router.gpu, .shared_gate = c->shared ? shared.gpu : (gpu_matrix){ 0 }, .k = c->k,
        .logits = vram_room(n_logit * sizeof *logits),
        .ids = vram_room((size_t)(c->n * c->k) * sizeof(int32_t)),
        .gates = vram_room((size_t)(c->n * c->k) * sizeof(float)),
        .sigma = vram_room((size_t)c->n * sizeof *sigma),
    };
    gpu_route(device(), &in, &a);

    if (c->plain) memcpy(normed, x, width * sizeof *x);
    else ops_rmsnorm(contract_ops(), normed, x, gain, c->n, c->cols, (size_t)c->cols, eps);
    cpu_product(logits, contract_ops(), &router.cpu, normed, c->n);
    const float *got = host_copy(a.logits, n_logit);
    expect_close("logits", got, logits, n_logit, 1e-5);
    compare_routes(c, logits, &a);
    if (c->shared) {
        cpu_product(sigma, contract_ops(), &shared.cpu, normed, c->n);
        for (int t = 0; t < c->n; t++) sigma[t] = sigmoid_f32(sigma[t]);
        expect_close("sigma", host_copy(a.sigma, (size_t)c->n), sigma, (size_t)c->n, 1e-5);
    }

    if (c->n > GPU_FEW) return;          /* else the choice may be left to the experts */
    gpu_route_args logits_only = a;
    logits_only.ids = NULL;
    logits_only.gates = NULL;
    logits_only.logits = vram_room(n_logit * sizeof *logits);
    in.has_rows = in.has_halves = in.has_blocks = false;
    gpu_route(device(), &in, &logits_only);
    expect_bits("logits alone", host_copy(logits_only.logits, n_logit), got, n_logit);
}

static void run_route(const route_case *c, test_rng *rng)
{
    case_begin("%s router, %d columns, %d of %d experts, %d tokens%s%s%s%s", quant_name(c->type),
               c->cols, c->k, c->n_expert, c->n, c->plain ? "" : ", norm", c->bias ? ", bias" : "",
               c->shared ? ", shared" : "", c->tie ? ", ties" : "");
    check_route(c, rng);
    case_end();
}

static void test_routes(void)
{
    static const int tokens[] = { 1, 3, 8, 9, 50 };
    static const struct { int n_expert, k, cols; } sizes[] = {
        { 8, 4, 64 }, { 32, 4, 96 }, { 32, 10, 512 }, { 512, 4, 256 }, { 512, 10, 2048 },
        { 8, 8, 33 }, { 1, 1, 64 }, { 1024, 32, 64 }, { 1000, 10, 100 },
    };
    static const quant_type types[] = { QT_F16, QT_BF16, QT_Q8_0, QT_F32 };
    test_rng rng = { 14 };
    int option = 0;
    family("router");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++, option++) {
            route_case c = { QT_F32, sizes[i].n_expert, sizes[i].k, sizes[i].cols, tokens[t],
                             .bias = option & 1, .shared = option & 2 };
            run_route(&c, &rng);
            c.bias = c.tie = true;
            if (c.n_expert >= 8 && c.k >= 2) run_route(&c, &rng);
        }
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        for (int n = 1; n <= GPU_FEW; n += 7) {
            const route_case c = { types[i], 60, 6, 288, n, .plain = true, .bias = true,
                                   .shared = true };
            run_route(&c, &rng);
        }
}

/* ---- router and experts ---------------------------------------------------------------------- */

/* As in a layer: the router leaves the normed input to the experts, which read what it chose, or
 * choose themselves. */
static void check_layer(const expert_case *c, int n, test_rng *rng)
{
    const size_t n_logit = (size_t)(n * c->n_expert);
    const size_t width = (size_t)n * (size_t)c->n_embd, n_embd = (size_t)c->n_embd;
    const size_t slots = (size_t)(n * c->k);
    expert_batch b = expert_batch_make(c, reference_banks_make(c, rng), n, rng);
    float *gain = host_floats(n_embd, 1.5f, rng);
    const float scale = router_scale(c->n_embd);
    reference router =
        reference_make(QT_F32, c->n_expert, c->n_embd, WEIGHTS_PLAUSIBLE, scale, true, rng);
    reference shared = reference_make(QT_F32, 1, c->n_embd, WEIGHTS_PLAUSIBLE, scale, false, rng);
    const gpu_route_args route = {
        .router = router.gpu, .shared_gate = c->shared_ff ? shared.gpu : (gpu_matrix){ 0 },
        .k = c->k, .logits = vram_room(n_logit * sizeof(float)),
        .ids = (int32_t *)b.args.ids, .gates = (float *)b.args.gates,
        .sigma = c->shared_ff ? (float *)b.args.sigma : NULL,
    };
    b.in.kind = GPU_NORM;
    b.in.weight = vram_floats(gain, n_embd);
    b.in.eps = eps;
    b.in.x = b.args.x;                   /* the stream itself, as in a model */
    b.args.logits = route.logits;
    gpu_route(device(), &b.in, &route);
    gpu_experts(device(), &b.in, &b.args);

    if (c->by_logits) {
        vram_read(b.logits, route.logits, n_logit * sizeof *b.logits);
        for (int t = 0; t < n; t++)
            router_select(b.ids + t * c->k, b.gates + t * c->k,
                          b.logits + (size_t)t * (size_t)c->n_expert, c->n_expert, c->k, NULL);
    } else {
        vram_read(b.ids, b.args.ids, slots * sizeof *b.ids);
        vram_read(b.gates, b.args.gates, slots * sizeof *b.gates);
    }
    if (c->shared_ff) vram_read(b.sigma, b.args.sigma, (size_t)n * sizeof *b.sigma);
    bool sound = true;
    for (size_t i = 0; i < slots; i++) sound = sound && b.ids[i] >= 0 && b.ids[i] < c->n_expert;
    if (!expect(sound, "there is no such expert")) return;
    ops_rmsnorm(contract_ops(), b.x, b.residual, gain, n, c->n_embd, n_embd, eps);
    expert_batch_expect(&b, c, n <= GPU_FEW ? contract_ops() : exact_ops());
    expect_close("stream", host_copy(b.args.x, width), b.want, width, expert_case_bound(c));
}

static void test_layers(void)
{
    static const expert_case layers[] = {
        { QT_Q4_K, QT_Q6_K, 512, 256, 16, 4, .shared_ff = 256, .shared_up = QT_Q4_K,
          .shared_down = QT_Q6_K },
        { QT_MXFP4, QT_MXFP4, 288, 96, 32, 4, .act = GPU_SWIGLU_CLAMPED, .bias = true },
        { QT_F32, QT_F32, 100, 70, 8, 2, .act = GPU_SWIGLU },
        { QT_F32, QT_F32, 96, 64, 8, 2, .shared_ff = 32, .shared_up = QT_F32,
          .shared_down = QT_F32 },
    };
    static const int tokens[] = { 1, 2, 8, 9, 70 };
    test_rng rng = { 15 };
    family("router and experts");
    for (size_t i = 0; i < ARRAY_LEN(layers); i++)
        for (size_t t = 0; t < ARRAY_LEN(tokens); t++)
            for (int by = 0; by <= (tokens[t] <= GPU_FEW); by++) {
                expert_case c = layers[i];
                c.by_logits = by;
                expert_case_begin(&c, tokens[t]);
                check_layer(&c, tokens[t], &rng);
                case_end();
            }
}

int main(int argc, char **argv)
{
    test_begin("gpu router", argc, argv);
    if (device_open()) {
        test_routes();
        test_layers();
        device_close();
    }
    return test_end();
}
