/* test_gpu_rules.c - rules that turn router logits into a choice and weights, on the GPU: the bits
 * of router_select.
 *
 * The logits are those that the device has; the usual rule is in test_gpu_router.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/gpu_experts.h"
#include "moe/router.h"
#include "tests/gpu_fixture.h"
#include "tests/test.h"

typedef struct rule_case {
    const char *why;
    bool sigmoid, as_scored, bias;
    float factor;
} rule_case;

static const rule_case rules[] = {
    { "softmax, as scored", false, true, false, 0.0f },
    { "softmax, as scored, a factor", false, true, false, 1.5f },
    { "softmax, a factor", false, false, false, 2.5f },
    { "softmax, a bias", false, false, true, 0.0f },
    { "sigmoid", true, false, false, 0.0f },
    { "sigmoid, as scored", true, true, false, 0.0f },
    { "sigmoid, a bias", true, false, true, 0.0f },
    { "sigmoid, a bias and a factor", true, false, true, 2.5f },
    { "sigmoid, as scored, a bias", true, true, true, 0.0f },
};

static const struct { int n_expert, k; } sizes[] = {
    { 1, 1 }, { 8, 2 }, { 32, 32 }, { 33, 4 }, { 64, 8 }, { 128, 8 }, { 160, 8 }, { 512, 10 },
    { 513, 1 }, { 1000, 32 }, { 1024, 8 },
};

typedef struct rule_pair {
    router_rule cpu;
    gpu_router_rule gpu;
} rule_pair;

static rule_pair rule_make(const rule_case *c, int n_expert, test_rng *rng)
{
    const float *bias = c->bias ? host_floats((size_t)n_expert, 0.2f, rng) : NULL;
    return (rule_pair){
        { .score = c->sigmoid ? ROUTER_SIGMOID : ROUTER_SOFTMAX, .as_scored = c->as_scored,
          .factor = c->factor, .bias = bias },
        { .sigmoid = c->sigmoid, .as_scored = c->as_scored, .factor = c->factor,
          .bias = bias ? vram_floats(bias, (size_t)n_expert) : NULL },
    };
}

/* The choice of every token, and its weights. */
static void compare(const float *logits, const int32_t *ids, const float *gates, int n,
                    int n_expert, int k, const router_rule *rule)
{
    const size_t slots = (size_t)(n * k);
    int32_t *want = host_room(slots, sizeof *want), *got = host_room(slots, sizeof *got);
    float *wanted = host_room(slots, sizeof *wanted);
    for (int t = 0; t < n; t++)
        router_select(want + t * k, wanted + t * k, logits + (size_t)t * (size_t)n_expert,
                      n_expert, k, rule);
    vram_read(got, ids, slots * sizeof *got);
    expect_bytes("ids", got, want, slots * sizeof *got);
    expect_bits("gates", host_copy(gates, slots), wanted, slots);
}

static void check_route(const rule_case *c, int n_expert, int k, int n, test_rng *rng)
{
    enum { COLS = 64 };
    const size_t n_logit = (size_t)(n * n_expert), slots = (size_t)(n * k);
    const rule_pair rule = rule_make(c, n_expert, rng);
    const reference router =
        reference_make(QT_F32, n_expert, COLS, WEIGHTS_PLAUSIBLE, 0.5f, true, rng);
    gpu_input in = { .kind = GPU_PLAIN, .n = n, .cols = COLS,
                     .x = vram_floats(host_floats((size_t)n * COLS, 1.0f, rng), (size_t)n * COLS),
                     .rows = vram_room((size_t)n * COLS * sizeof(float)),
                     .halves = vram_room((size_t)n * COLS * 2) };
    const gpu_route_args a = {
        .router = router.gpu, .rule = rule.gpu, .k = k,
        .logits = vram_room(n_logit * sizeof(float)), .ids = vram_room(slots * sizeof(int32_t)),
        .gates = vram_room(slots * sizeof(float)),
    };
    gpu_route(device(), &in, &a);
    const float *logits = host_copy(a.logits, n_logit);
    compare(logits, a.ids, a.gates, n, n_expert, k, &rule.cpu);
    if (!c->sigmoid || !c->bias) return;

    /* keys, whose largest are the choice */
    int32_t *want = host_room((size_t)k, sizeof *want), *got = host_room((size_t)k, sizeof *got);
    float *unused = host_room((size_t)k, sizeof *unused);
    gpu_route_args compared = a;
    compared.ids = NULL;
    compared.keys = vram_room(n_logit * sizeof(float));
    gpu_route(device(), &in, &compared);
    const float *keys = host_copy(compared.keys, n_logit);
    expect_bits("logits", host_copy(a.logits, n_logit), logits, n_logit);
    for (int t = 0; t < n; t++) {
        router_select(want, unused, logits + t * n_expert, n_expert, k, &rule.cpu);
        router_select(got, unused, keys + t * n_expert, n_expert, k, NULL);
        expect_bytes("ids by keys", got, want, (size_t)k * sizeof *got);
    }
}

static void test_routes(void)
{
    static const int tokens[] = { 1, 3, GPU_FEW, 9, 40 };
    test_rng rng = { 61 };
    family("router rules");
    for (size_t r = 0; r < ARRAY_LEN(rules); r++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
            const int n = tokens[(r + s) % ARRAY_LEN(tokens)];
            case_begin("%s, %d of %d experts, %d tokens", rules[r].why, sizes[s].k,
                       sizes[s].n_expert, n);
            check_route(&rules[r], sizes[s].n_expert, sizes[s].k, n, &rng);
            case_end();
        }
}

/* What logits are like. */
typedef enum logit_kind {
    LOGITS_ANY, LOGITS_WIDE, LOGITS_TIES, LOGITS_NAN, LOGITS_KINDS
} logit_kind;
static const char *const kinds[] = { "any", "wide", "ties", "infinities and NaN" };

static float logit_make(logit_kind kind, test_rng *rng)
{
    const float v = (float)test_below(rng, 1 << 20) / (1 << 20) - 0.5f;
    if (kind == LOGITS_WIDE) return 400.0f * v;
    if (kind == LOGITS_TIES) return rintf(3.0f * v);
    if (kind == LOGITS_NAN && test_below(rng, 40) == 0)
        return test_below(rng, 2) ? NAN : -INFINITY;
    return 8.0f * v;
}

/* gpu_prefer_hot takes logits as they are: with no expert in VRAM, or with all of them, the choice
 * is the model's own. */
static void check_given(const rule_case *c, int n_expert, int k, int n, logit_kind kind, bool hot,
                        test_rng *rng)
{
    const size_t n_logit = (size_t)(n * n_expert), slots = (size_t)(n * k);
    const rule_pair rule = rule_make(c, n_expert, rng);
    float *logits = host_room(n_logit, sizeof *logits);
    int32_t *map = host_room((size_t)n_expert, sizeof *map);
    for (size_t i = 0; i < n_logit; i++) logits[i] = logit_make(kind, rng);
    for (int e = 0; e < n_expert; e++) map[e] = hot ? e : -1;
    const gpu_prefer a = {
        .logits = vram_floats(logits, n_logit), .rule = rule.gpu,
        .hot = vram_copy(map, (size_t)n_expert * sizeof *map), .n = n, .n_expert = n_expert, .k = k,
        .ids = vram_room(slots * sizeof(int32_t)),
        .gates = vram_room(slots * sizeof(float)),
    };
    gpu_prefer_hot(device(), &a);
    compare(logits, a.ids, a.gates, n, n_expert, k, &rule.cpu);
}

static void test_given(void)
{
    test_rng rng = { 62 };
    family("router rules, logits of all kinds");
    for (size_t r = 0; r < ARRAY_LEN(rules); r++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
            for (int kind = 0; kind < LOGITS_KINDS; kind++) {
                const bool hot = (r + s + (size_t)kind) % 2;
                case_begin("%s, %d of %d experts, %s%s", rules[r].why, sizes[s].k,
                           sizes[s].n_expert, kinds[kind], hot ? ", in VRAM" : "");
                check_given(&rules[r], sizes[s].n_expert, sizes[s].k, 1 + (int)(r + s) % GPU_FEW,
                            (logit_kind)kind, hot, &rng);
                case_end();
            }
}

/* Some are in VRAM: what is left of the choice has the weights that its own logits give. */
static void check_dropped(const rule_case *c, int n_expert, int k, test_rng *rng)
{
    const size_t n = (size_t)n_expert, slots = (size_t)k;
    const rule_pair rule = rule_make(c, n_expert, rng);
    router_rule all = rule.cpu;
    float *logits = host_floats(n, 4.0f, rng), *score = host_room(n, sizeof *score);
    float *by_rank = host_room(n, sizeof *score), *want = host_room(slots, sizeof *want);
    int32_t *map = host_room(n, sizeof *map), *order = host_room(n, sizeof *order);
    int32_t *ids = host_room(slots, sizeof *ids), *got = host_room(slots, sizeof *got);
    double sum = 0.0;
    int kept = 0;
    for (size_t e = 0; e < n; e++) map[e] = e % 3 ? (int32_t)e : -1;
    all.as_scored = true;
    all.factor = 0.0f;
    all.bias = NULL;
    router_select(order, by_rank, logits, n_expert, n_expert, &all);
    for (size_t e = 0; e < n; e++) score[order[e]] = by_rank[e];
    router_select(ids, want, logits, n_expert, k, &rule.cpu);
    for (int r = 0; r < k; r++)
        if (map[ids[r]] >= 0) {
            ids[kept] = ids[r];
            want[kept] = score[ids[r]];
            sum += (double)want[kept++];
        }
    for (int r = 0; r < k && kept > 0; r++) {
        const double w = (double)want[r] / (c->as_scored ? 1.0 : sum);
        want[r] = r < kept ? (float)(c->factor > 0.0f ? w * (double)c->factor : w) : 0.0f;
        if (r >= kept) ids[r] = ids[0];
    }
    const gpu_prefer a = {
        .logits = vram_floats(logits, n), .rule = rule.gpu, .hot = vram_copy(map, n * sizeof *map),
        .n = 1, .n_expert = n_expert, .k = k,
        .ids = vram_room(slots * sizeof *ids), .gates = vram_room(slots * sizeof *want),
    };
    gpu_prefer_hot(device(), &a);
    vram_read(got, a.ids, slots * sizeof *got);
    expect(kept > 0, "nothing is in VRAM");
    expect_bytes("ids", got, ids, slots * sizeof *ids);
    expect_close("gates", host_copy(a.gates, slots), want, slots, 1e-6);
}

static void test_dropped(void)
{
    test_rng rng = { 63 };
    family("router rules, some experts dropped");
    for (size_t r = 0; r < ARRAY_LEN(rules); r++) {
        case_begin("%s", rules[r].why);
        check_dropped(&rules[r], 60, 12, &rng);
        check_dropped(&rules[r], 256, 8, &rng);
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu rules", argc, argv);
    if (device_open()) {
        test_routes();
        test_given();
        test_dropped();
        device_close();
    }
    return test_end();
}
