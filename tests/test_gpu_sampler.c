/* test_gpu_sampler.c - tokens drawn from logits that stay on the GPU: the same ones as from a row
 * at hand, by every rule of the sampler, whatever of them is allowed. */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "engine/session/sampler.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

enum { MAX_PAIRS = 8192, ROUNDS = 24 };

/* One row in VRAM, and what sampling needs there. */
typedef struct there {
    gpu_shortlist list;
    float *bias;
    double *steps;
    float *maxima;
    double *masses;
    gpu_pair *pairs;
    uint32_t *count;
    int32_t *seen;
    uint64_t *bits, *locked;             /* what is allowed: in VRAM, and in page-locked RAM */
    bool in_ram;                         /* the latter is read */
    int n_block;
} there;

static there there_make(int n)
{
    const int n_block = (n + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK;
    const size_t floats = (size_t)n * sizeof(float), blocks = (size_t)n_block;
    there t = {
        .bias = vram_room(floats), .steps = vram_room(SAMPLER_STEPS * sizeof(double)),
        .maxima = vram_room(blocks * sizeof(float)), .masses = vram_room(blocks * sizeof(double)),
        .pairs = vram_room(MAX_PAIRS * sizeof(gpu_pair)), .count = vram_room(sizeof(uint32_t)),
        .seen = vram_room(2 * floats), .bits = vram_room(blocks * sizeof(uint64_t)),
        .n_block = n_block,
    };
    t.list = (gpu_shortlist){ .logits = vram_room(floats), .n = n,
                              .work = vram_room(blocks * SAMPLER_BLOCK * sizeof(float)),
                              .top = vram_room(sizeof(uint32_t)) };
    return t;
}

static int prepare(void *ctx, const sampler_rules *r, float *block_max, double *mass, err_ctx *err)
{
    there *t = ctx;
    gpu_shortlist *l = &t->list;
    (void)err;
    vram_write(t->bias, r->bias, (size_t)l->n * sizeof *r->bias);
    vram_write(t->steps, r->steps, SAMPLER_STEPS * sizeof *r->steps);
    for (int i = 0; i < r->n_penalised; i++) {
        const int32_t pair[2] = { r->penalised[i], r->count[r->penalised[i]] };
        vram_write(t->seen + 2 * i, pair, sizeof pair);
    }
    if (r->allowed && t->in_ram) memcpy(t->locked, r->allowed, (size_t)t->n_block * 8);
    else if (r->allowed) vram_write(t->bits, r->allowed, (size_t)t->n_block * 8);
    l->allowed = !r->allowed ? NULL : t->in_ram ? t->locked : t->bits;
    l->bias = t->bias;
    l->seen = t->seen;
    l->n_seen = r->n_penalised;
    l->repeat = r->repeat;
    l->presence = r->presence;
    l->frequency = r->frequency;
    l->per_temperature = r->per_temperature;
    l->steps = t->steps;
    l->maxima = t->maxima;
    l->masses = mass ? t->masses : NULL;
    gpu_shortlist_make(device(), l);
    vram_read(block_max, t->maxima, (size_t)t->n_block * sizeof *block_max);
    if (mass) vram_read(mass, t->masses, (size_t)t->n_block * sizeof *mass);
    return 0;
}

static int gather(void *ctx, sampler_pair *to, int cap, float bound, err_ctx *err)
{
    there *t = ctx;
    gpu_pair *pairs = host_room(MAX_PAIRS, sizeof *pairs);
    uint32_t n;
    (void)err;
    gpu_shortlist_gather(device(), &t->list, bound, t->pairs, cap < MAX_PAIRS ? cap : MAX_PAIRS,
                         t->count);
    vram_read(&n, t->count, sizeof n);
    if (n > (uint32_t)cap || n > MAX_PAIRS) return MAX_PAIRS + 1;
    vram_read(pairs, t->pairs, n * sizeof *pairs);
    for (uint32_t i = 0; i < n; i++) to[i] = (sampler_pair){ pairs[i].id, pairs[i].logit };
    return (int)n;
}

/* Those that have the largest logit, without knowing it: the first of them is the greedy pick. */
static int32_t first_of_top(const there *t)
{
    gpu_pair *pairs = host_room(MAX_PAIRS, sizeof *pairs);
    int32_t first = INT32_MAX;
    uint32_t n;
    gpu_shortlist_gather_top(device(), &t->list, t->pairs, MAX_PAIRS, t->count);
    vram_read(&n, t->count, sizeof n);
    if (n > MAX_PAIRS) return -1;
    vram_read(pairs, t->pairs, n * sizeof *pairs);
    for (uint32_t i = 0; i < n; i++) first = pairs[i].id < first ? pairs[i].id : first;
    return first;
}

/* Round by round all tokens, half of them, a few, one block, one or none: then no token can be
 * picked. The bits after the last token mean nothing. */
static const uint64_t *allow(uint64_t *bits, int n, int round, test_rng *rng)
{
    const int n_word = (n + 63) / 64, kind = round % 6;
    if (kind == 0) return NULL;
    for (int i = 0; i < n_word; i++) {
        const uint64_t u = test_rand(rng);
        bits[i] = kind == 1 ? u : 0;
        if (kind == 2) bits[i] = u & test_rand(rng) & test_rand(rng) & test_rand(rng);
    }
    const int at = (int)test_below(rng, (uint32_t)n);
    if (kind == 3) bits[at / 64] = UINT64_MAX;
    if (kind == 4) bits[at / 64] = (uint64_t)1 << at % 64;
    if (n % 64) bits[n_word - 1] |= UINT64_MAX << n % 64;
    return bits;
}

/* Many small logits and a few that stand out, as in a trained model's rows; some equal, some
 * NaN. */
static void fill_row(float *x, int n, int round, test_rng *rng)
{
    for (int i = 0; i < n; i++) {
        const float u = (float)test_below(rng, 100000) * 1e-5f;
        x[i] = round % 3 == 0 ? 12.0f * u : round % 3 == 1 ? 3.0f * logf(u + 1e-6f)
                                                            : rintf(20.0f * u);
        if (i % 997 == 0) x[i] += 15.0f;
        if (round % 5 == 4 && i % 7 == 0) x[i] = NAN;
    }
}

static void check_rules(const sampler_options *o, int n, test_rng *rng)
{
    err_ctx err = { 0 };
    sampler *near = NULL, *far = NULL;
    there t = there_make(n);
    uint64_t *bits = host_room((size_t)t.n_block, sizeof *bits);
    const sampler_source from = { .ctx = &t, .prepare = prepare, .gather = gather };
    float *x = host_room((size_t)n, sizeof *x);
    int unusual = 0;

    if (!expect(sampler_create(&near, o, n, 100, &err) == 0 &&
                sampler_create(&far, o, n, 100, &err) == 0 &&
                (t.locked = gpu_alloc_host(device(), (size_t)t.n_block * 8, &err)), "%s", err.msg))
        return;
    for (int round = 0; round < ROUNDS; round++) {
        int32_t want = -1, got = -1;
        fill_row(x, n, round, rng);
        if (round == ROUNDS / 2)
            for (int i = 0; i < n; i += 3) {
                sampler_ban(near, i);
                sampler_ban(far, i);
            }
        vram_write((void *)t.list.logits, x, (size_t)n * sizeof *x);
        const uint64_t *may = allow(bits, n, round, rng);
        sampler_allow(near, may);
        sampler_allow(far, may);
        t.in_ram = round % 2;
        const int mark = host_mark(), rc = sampler_pick_from(&got, far, &from, &err);
        const int32_t first = first_of_top(&t);
        if (rc == 0 && o->temperature == 0)
            expect(first == got, "round %d: %d, the first of the largest is %d", round, got, first);
        host_drop(mark);
        if (rc == 1) {
            unusual++;
            sampler_pick(&got, far, x, &err);
        }
        sampler_pick(&want, near, x, &err);
        expect(rc >= 0 && got == want, "round %d: token %d instead of %d, %d", round, got, want,
               rc);
        sampler_accept(near, want);
        sampler_accept(far, want);
    }
    expect(unusual <= ROUNDS / 2, "%d of %d rows had to be looked at as a whole", unusual, ROUNDS);
    gpu_free_host(device(), t.locked);
    sampler_free(near);
    sampler_free(far);
}

static const struct { sampler_options o; const char *why; } rules[] = {
    { { .top_p = 1, .repeat_penalty = 1 }, "greedy" },
    { { .temperature = 1, .top_p = 1, .repeat_penalty = 1 }, "all tokens" },
    { { .temperature = 0.7, .top_k = 20, .top_p = 0.8, .repeat_penalty = 1 }, "top-k and top-p" },
    { { .temperature = 0.5, .top_p = 0.9, .repeat_penalty = 1 }, "top-p" },
    { { .temperature = 1, .top_p = 1, .min_p = 0.05, .repeat_penalty = 1 }, "min-p" },
    { { .temperature = 0.8, .top_p = 0.95, .repeat_penalty = 1.3, .presence_penalty = 0.5,
        .frequency_penalty = 0.25, .penalty_window = 32 }, "penalties" },
    { { .repeat_penalty = 1.3, .top_p = 1, .penalty_window = -1 }, "greedy, penalties" },
};

int main(int argc, char **argv)
{
    static const int sizes[] = { 64, 1000, 4096, 201088 };
    test_rng rng = { 41 };
    test_begin("gpu sampler", argc, argv);
    if (device_open()) {
        for (size_t k = 0; k < ARRAY_LEN(rules); k++) {
            family(rules[k].why);
            for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
                if (sim_gpu_skips((int)(i + k), 2)) continue;
                case_begin("%d tokens", sizes[i]);
                check_rules(&rules[k].o, sizes[i], &rng);
                case_end();
            }
        }
        device_close();
    }
    return test_end();
}
