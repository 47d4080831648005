/* test_gpu_prefer.c - a choice of experts that looks at what is in VRAM, against a naive one.
 *
 * Ids are exact, and so is the log of what the model would have chosen; weights are those of a
 * softmax in double. Where the map cannot matter, because all of the choice is in VRAM or nothing,
 * ids and weights have the bits of gpu_route. */
#include <math.h>
#include <stdio.h>

#include "cuda/gpu_experts.h"
#include "tests/gpu_fixture.h"
#include "tests/test.h"

enum { MAX_EXPERT = 1024, MAX_K = GPU_MOST_USED };

typedef struct prefer_case {
    int n, n_expert, k;
    int hot_of_8;                        /* eighths of the experts in VRAM; -1: the least likely
                                          * alone */
    bool ties;                           /* few different logits */
    const char *why;
} prefer_case;

typedef struct choice {
    int32_t ids[MAX_K];
    float gates[MAX_K];
    uint32_t wanted[MAX_K];
    int n_kept, n_hot;                   /* with a weight; of those in VRAM */
} choice;

/* ---- naive ----------------------------------------------------------------------------------- */

/* The best that is not taken: the largest, the first of equals. */
static int best_left(const double *score, const bool *taken, int n)
{
    int best = -1;
    for (int e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
    return best;
}

static void take_best(int32_t *ids, const double *score, int n, int k)
{
    bool taken[MAX_EXPERT] = { false };
    for (int r = 0; r < k; r++) taken[ids[r] = best_left(score, taken, n)] = true;
}

static choice naive(const prefer_case *c, const float *logits, const int32_t *hot)
{
    choice to = { .n_kept = 0 };
    int32_t ids[MAX_K];
    double score[MAX_EXPERT], sum = 0.0;
    bool any = false;
    for (int e = 0; e < c->n_expert; e++) score[e] = logits[e];
    take_best(ids, score, c->n_expert, c->k);
    for (int r = 0; r < c->k; r++)
        to.wanted[r] = (uint32_t)ids[r] | (uint32_t)(hot[ids[r]] < 0 ? GPU_COLD : GPU_HOT) << 16;
    for (int r = 0; r < c->k; r++) any |= hot[ids[r]] >= 0;
    for (int r = 0; r < c->k; r++) {
        if (any && hot[ids[r]] < 0) continue;
        to.n_hot += hot[ids[r]] >= 0;
        to.ids[to.n_kept++] = ids[r];
        sum += exp((double)logits[ids[r]]);
    }
    for (int r = 0; r < c->k; r++) {
        if (r >= to.n_kept) to.ids[r] = to.ids[0];
        else to.gates[r] = (float)(exp((double)logits[to.ids[r]]) / sum);
    }
    return to;
}

/* ---- the operation --------------------------------------------------------------------------- */

typedef struct run {
    int32_t *ids;                        /* in RAM, all of them */
    float *gates;
    uint32_t *wanted;                    /* page-locked */
} run;

static run prefer(const prefer_case *c, const float *logits, const int32_t *hot, bool logged)
{
    const size_t slots = (size_t)(c->n * c->k), n = (size_t)(c->n * c->n_expert);
    run to = { .ids = host_room(slots, sizeof(int32_t)) };
    err_ctx err = { 0 };
    if (logged) {
        to.wanted = gpu_alloc_host(device(), slots * sizeof *to.wanted, &err);
        expect(to.wanted != NULL, "%s", err.msg);
    }
    const gpu_prefer a = {
        .logits = vram_floats(logits, n), .hot = vram_copy(hot, (size_t)c->n_expert * sizeof *hot),
        .n = c->n, .n_expert = c->n_expert, .k = c->k,
        .ids = vram_room(slots * sizeof *to.ids), .gates = vram_room(slots * sizeof(float)),
        .wanted = to.wanted,
    };
    gpu_prefer_hot(device(), &a);
    vram_read(to.ids, a.ids, slots * sizeof *to.ids);
    to.gates = host_copy(a.gates, slots);
    return to;
}

/* What gpu_route makes of these logits: its router is the identity. */
static run route(const prefer_case *c, const float *logits)
{
    const size_t n_expert = (size_t)c->n_expert, slots = (size_t)(c->n * c->k);
    const size_t n = (size_t)c->n * n_expert;
    float *eye = host_room(n_expert * n_expert, sizeof *eye);
    run to = { .ids = host_room(slots, sizeof(int32_t)) };
    for (size_t e = 0; e < n_expert; e++) eye[e * n_expert + e] = 1.0f;
    gpu_input in = { .kind = GPU_PLAIN, .n = c->n, .cols = c->n_expert,
                     .x = vram_floats(logits, n), .rows = vram_room(n * sizeof(float)) };
    const gpu_route_args a = {
        .router = { .type = QT_F32, .rows = c->n_expert, .cols = c->n_expert,
                    .data = vram_copy(eye, n_expert * n_expert * sizeof *eye),
                    .row_bytes = n_expert * sizeof *eye, .scale = 1.0f },
        .k = c->k, .logits = vram_room(n * sizeof(float)),
        .ids = vram_room(slots * sizeof *to.ids), .gates = vram_room(slots * sizeof(float)),
    };
    gpu_route(device(), &in, &a);
    expect_bits("logits of the identity", host_copy(a.logits, n), logits, n);
    vram_read(to.ids, a.ids, slots * sizeof *to.ids);
    to.gates = host_copy(a.gates, slots);
    return to;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void make(float *logits, int32_t *hot, const prefer_case *c, test_rng *rng)
{
    const int n = c->n * c->n_expert;
    for (int i = 0; i < n; i++)
        logits[i] = c->ties ? (float)test_below(rng, 3) - 1.0f
                            : 6.0f * ((float)test_below(rng, 1 << 20) / (1 << 20) - 0.5f);
    for (int e = 0; e < c->n_expert; e++)
        hot[e] = (int)test_below(rng, 8) < c->hot_of_8 ? c->n_expert - 1 - e : -1;
    if (c->hot_of_8 >= 0) return;
    hot[0] = 0;                          /* one that no token would choose */
    for (int t = 0; t < c->n; t++) logits[t * c->n_expert] = -4.0f;
}

static void check_case(const prefer_case *c, test_rng *rng)
{
    const size_t k = (size_t)c->k;
    int32_t hot[MAX_EXPERT];
    case_begin("%d tokens, %d of %d experts, %d/8 in VRAM: %s", c->n, c->k, c->n_expert,
               c->hot_of_8, c->why);
    float *logits = host_room((size_t)(c->n * c->n_expert), sizeof *logits);
    make(logits, hot, c, rng);
    const run got = prefer(c, logits, hot, true), again = prefer(c, logits, hot, false);
    for (int t = 0; t < c->n; t++) {
        const choice want = naive(c, logits + t * c->n_expert, hot);
        const int32_t *ids = got.ids + t * c->k;
        const float *gates = got.gates + t * c->k;
        float sum = 0.0f;
        int n_cold = 0;
        for (int r = 0; r < c->k; r++) {
            sum += gates[r];
            n_cold += hot[ids[r]] < 0;
        }
        expect_bytes("ids", ids, want.ids, k * sizeof *ids);
        expect_bytes("what is wanted", got.wanted + t * c->k, want.wanted,
                     k * sizeof *want.wanted);
        expect_close("gates", gates, want.gates, k, 1e-6);
        for (int r = want.n_kept; r < c->k; r++) expect(gates[r] == 0.0f, "dropped, and a weight");
        expect(fabsf(sum - 1.0f) < 1e-5f, "token %d: weights add up to %g", t, sum);
        if (want.n_hot > 0) expect(n_cold == 0, "token %d: %d are missing", t, n_cold);
    }
    expect_bytes("ids, not logged", again.ids, got.ids, (size_t)c->n * k * sizeof *got.ids);
    expect_bits("gates, not logged", again.gates, got.gates, (size_t)c->n * k);
    if (c->hot_of_8 == 0 || c->hot_of_8 == 8) {
        const run own = route(c, logits);
        expect_bytes("the router's ids", got.ids, own.ids, (size_t)c->n * k * sizeof *own.ids);
        expect_bits("the router's gates", got.gates, own.gates, (size_t)c->n * k);
    }
    case_end();
    gpu_free_host(device(), got.wanted);
}

static void test_cases(void)
{
    static const struct { int n_expert, k; } sizes[] = {
        { 24, 4 }, { 32, 4 }, { 128, 8 }, { 512, 10 }, { 1024, 32 }, { 100, 1 }, { 8, 8 },
    };
    static const int tokens[] = { 1, 3, GPU_MAIL };
    static const struct { int hot_of_8; bool ties; const char *why; } ways[] = {
        { 4, false, "half is dropped" }, { 1, false, "most is dropped" },
        { -1, false, "nothing of the choice is there, so nothing is dropped" },
        { 0, false, "nothing is there" }, { 8, false, "all is there" },
        { 4, true, "equal logits" },
    };
    test_rng rng = { 41 };
    family("choice by what is in VRAM");
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
        for (size_t w = 0; w < ARRAY_LEN(ways); w++) {
            const prefer_case c = { tokens[(s + w) % ARRAY_LEN(tokens)], sizes[s].n_expert,
                                    sizes[s].k, ways[w].hot_of_8, ways[w].ties, ways[w].why };
            check_case(&c, &rng);
        }
}

int main(int argc, char **argv)
{
    test_begin("gpu prefer", argc, argv);
    if (device_open()) {
        test_cases();
        device_close();
    }
    return test_end();
}
