/* test_gpu_delta.c - the gated delta rule on the GPU against the CPU's.
 *
 * A state goes through batches of all lengths, one after the other, on both sides. */
#include <math.h>
#include <string.h>

#include "engine/cpu/deltanet.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

typedef struct delta_order {             /* of value heads, and of gates */
    bool tiled, apart;
} delta_order;

static const delta_order grouped = { false, false };

typedef struct delta_net {
    int n_k, n_v, dim, ratio;
    delta_order order;
    size_t keys, values, channels;
    float *dt_bias, *a, *state;          /* the CPU's */
    int pos;                             /* of the next token */
    gpu_delta args;
    gpu_cursor *at;                      /* each batch reads one version of the state and writes the
                                          * other */
    gpu_cursor *other;                   /* not this one's: a kernel that has nothing
                                          * to do with it comes between two batches */
} delta_net;

enum { STATE_AT = 64 };                  /* bytes of a version before its state */

/* A cursor and two versions of recurrent memory; the first one holds the state. */
static gpu_cursor *make_versions(const float *state, size_t n)
{
    gpu_cursor at = { .recurrent = vram_room(STATE_AT + n * sizeof *state),
                      .recurrent_next = vram_room(STATE_AT + n * sizeof *state) };
    vram_write((uint8_t *)(uintptr_t)at.recurrent + STATE_AT, state, n * sizeof *state);
    return vram_copy(&at, sizeof at);
}

/* The version that the next batch would read. */
static const float *read_version(const gpu_cursor *where, size_t n)
{
    gpu_cursor at;
    vram_read(&at, where, sizeof at);
    return host_copy((const float *)(const void *)(at.recurrent + STATE_AT), n);
}

static delta_net delta_make(int n_k, int n_v, int dim, delta_order order, test_rng *rng)
{
    const size_t heads = (size_t)n_v, size = heads * (size_t)dim * (size_t)dim;
    delta_net d = { .n_k = n_k, .n_v = n_v, .dim = dim, .ratio = n_v / n_k, .order = order,
                    .keys = (size_t)(n_k * dim), .values = heads * (size_t)dim,
                    .dt_bias = host_floats(heads, 1.0f, rng), .a = host_floats(heads, 1.0f, rng),
                    .state = host_floats(size, 0.1f, rng) };
    d.channels = 2 * d.keys + d.values;
    for (size_t h = 0; h < heads; h++) d.a[h] = -0.05f - 2.0f * fabsf(d.a[h]);
    d.args = (gpu_delta){ .dt_bias = vram_floats(d.dt_bias, heads), .a = vram_floats(d.a, heads),
                          .state = STATE_AT, .n_k = n_k, .n_v = n_v, .dim = dim,
                          .tiled = order.tiled, .apart = order.apart };
    d.args.cursor = d.at = make_versions(d.state, size);
    d.other = vram_room(sizeof *d.other);
    return d;
}

/* Which value head is number i of key head h, and where a token has its two gates. */
static int value_head(const delta_net *d, int h, int i)
{
    return d->order.tiled ? i * d->n_k + h : h * d->ratio + i;
}

static int beta_at(const delta_net *d, int h, int i)
{
    return d->order.apart ? value_head(d, h, i) : h * 2 * d->ratio + i;
}

static int alpha_at(const delta_net *d, int h, int i)
{
    return d->order.apart ? d->n_v + value_head(d, h, i) : h * 2 * d->ratio + d->ratio + i;
}

/* n tokens on the CPU; out [n, values]. mixed is normed in place. */
static void cpu_delta(float *out, const delta_net *d, float *mixed, const float *ba, int n)
{
    const loops *f = contract_ops()->loops;
    const size_t dim = (size_t)d->dim, n_token = (size_t)n, n_v = (size_t)d->n_v;
    float *beta = host_room(n_token * n_v, sizeof *beta), *g = host_room(n_token * n_v, sizeof *g);
    for (size_t t = 0; t < n_token; t++)
        for (int h = 0; h < d->n_k; h++) {
            float *q = mixed + t * d->channels + (size_t)h * dim;
            const float *gates = ba + t * 2 * n_v;
            f->delta_l2norm(q, d->dim, 1.0f / sqrtf((float)d->dim));
            f->delta_l2norm(q + d->keys, d->dim, 1.0f);
            for (int i = 0; i < d->ratio; i++) {
                const int v = value_head(d, h, i);
                beta[t * n_v + (size_t)v] = sigmoid_f32(gates[beta_at(d, h, i)]);
                g[t * n_v + (size_t)v] = delta_decay(gates[alpha_at(d, h, i)], d->dt_bias[v],
                                                     d->a[v]);
            }
        }
    for (int j = 0; j < d->n_v; j++) {
        const int key = j / d->ratio, v = value_head(d, key, j % d->ratio);
        const float *q = mixed + (size_t)key * dim;
        const delta_args a = {
            .out = out + (size_t)v * dim, .q = q, .k = q + d->keys,
            .v = mixed + 2 * d->keys + (size_t)v * dim, .beta = beta + v, .g = g + v,
            .out_stride = d->values, .qk_stride = d->channels, .v_stride = d->channels,
            .bg_stride = n_v, .state = d->state + (size_t)v * dim * dim, .n = n, .dk = d->dim,
            .dv = d->dim,
        };
        f->delta_recurrence(&a);
    }
}

static void compare_delta(const char *what, const delta_net *d, const float *out, const float *want,
                          int n)
{
    const size_t dim = (size_t)d->dim, values = (size_t)n * d->values;
    const size_t size = (size_t)d->n_v * dim * dim;
    char label[64];
    expect_rows_close(what, host_copy(out, values), want, (size_t)n, d->values, 2e-5);
    expect_rows_close(test_path(label, sizeof label, "state after %s", what),
                      read_version(d->at, size), d->state, (size_t)d->n_v, dim * dim, 2e-5);
}

/* What tokens are like. */
typedef enum delta_kind {
    DELTA_ANY,
    DELTA_SLOW,                          /* all write and forget little, and the same amount: errors
                                          * of the decay add up */
    DELTA_FORGETFUL,                     /* little is left after a few tokens: logs of decays add up
                                          * to large numbers in a chunk */
    DELTA_EQUAL_KEYS,                    /* nothing is forgotten, every token writes over the one
                                          * before: large terms cancel in a chunk */
    DELTA_ABRUPT,                        /* decays of 0 and 1, write strengths of 0 and 1; 1 where
                                          * nothing else is left */
    DELTA_KINDS
} delta_kind;

static const char *const delta_kinds[] = { "any", "slow", "forgetful", "equal keys", "abrupt" };

/* Gates as they come from the products: for each key head betas, then alphas; or all betas
 * first. */
static void shape_tokens(float *mixed, float *ba, const delta_net *d, size_t n, delta_kind kind)
{
    const size_t width = 2 * (size_t)d->n_v, ratio = (size_t)d->ratio;
    for (size_t i = 0; i < n * width; i++) {
        const size_t t = i / width;
        const bool alpha = d->order.apart ? i % width >= width / 2 : i % width / ratio % 2 == 1;
        if (kind == DELTA_SLOW) ba[i] = t == 0 ? 0.5f * ba[i] - 6.0f : ba[i - width];
        if (kind == DELTA_FORGETFUL && alpha) ba[i] += 3.0f;
        if (kind == DELTA_EQUAL_KEYS) ba[i] = alpha ? -60.0f : 40.0f;
        if (kind == DELTA_ABRUPT)
            ba[i] = alpha ? (t % 7 ? -60.0f : 900.0f) : (t % 5 || t % 7 == 0 ? 40.0f : -200.0f);
    }
    for (size_t t = 1; t < n && kind == DELTA_EQUAL_KEYS; t++)
        memcpy(mixed + t * d->channels + d->keys, mixed + d->keys, d->keys * sizeof *mixed);
}

/* n tokens in one call, or one at a time without a wait; with something else in between. */
static void check_delta(delta_net *d, int n, bool alone, delta_kind kind,
                        test_rng *rng)
{
    const size_t n_token = (size_t)n, width = 2 * (size_t)d->n_v;
    float *mixed = host_floats(n_token * d->channels, 1.0f, rng);
    float *ba = host_floats(n_token * width, 3.0f, rng);
    shape_tokens(mixed, ba, d, n_token, kind);
    float *want = host_room(n_token * d->values, sizeof *want);
    const gpu_delta all = { .mixed = vram_floats(mixed, n_token * d->channels),
                            .ba = vram_floats(ba, n_token * width),
                            .out = vram_room(n_token * d->values * sizeof *want) };
    void *scratch = vram_room(gpu_delta_scratch(device(), d->n_k, d->n_v, d->dim, n) + 1);
    char what[64];
    for (int t = 0; t < n; t += alone ? 1 : n) {
        gpu_delta part = d->args;
        part.mixed = all.mixed + (size_t)t * d->channels;
        part.ba = all.ba + (size_t)t * width;
        part.out = all.out + (size_t)t * d->values;
        part.n = alone ? 1 : n;
        part.pos = d->pos;
        part.scratch = scratch;
        gpu_delta_rule(device(), &part);
        gpu_advance(device(), d->at, part.n);
        gpu_advance(device(), d->other, 1);
        d->pos += part.n;
    }
    cpu_delta(want, d, mixed, ba, n);
    compare_delta(test_path(what, sizeof what, "%d tokens%s", n, alone ? ", one by one" : ""), d,
                  all.out, want, n);
}

static void test_delta(void)
{
    static const int sizes[][3] = { { 2, 4, 32 }, { 4, 4, 32 }, { 2, 4, 64 }, { 4, 4, 64 },
                                    { 2, 4, 128 }, { 4, 4, 128 }, { 16, 32, 128 } };
    /* chunks begin at multiples of 64: among these are none, parts before and after, only one */
    static const int batches[] = { 1, 2, 9, 64, 130, 1, 8, 41, 64, 129, 127, 700 };
    test_rng rng = { 24 };
    family("delta rule");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        case_begin("%d and %d heads of %d", sizes[i][0], sizes[i][1], sizes[i][2]);
        delta_net d = delta_make(sizes[i][0], sizes[i][1], sizes[i][2], grouped, &rng);
        for (size_t k = 0; k < ARRAY_LEN(batches); k++)
            check_delta(&d, batches[k], false, DELTA_ANY, &rng);
        check_delta(&d, 20, true, DELTA_ANY, &rng);
        case_end();
    }
    for (int dim = 32; dim <= 128; dim *= 2)
        for (int kind = DELTA_SLOW; kind < DELTA_KINDS; kind++) {
            case_begin("2 and 8 heads of %d, %s", dim, delta_kinds[kind]);
            delta_net d = delta_make(2, 8, dim, grouped, &rng);
            check_delta(&d, kind == DELTA_SLOW && dim < 128 ? 4000 : 300, false,
                        (delta_kind)kind, &rng);
            case_end();
        }
}

/* Other orders of heads and gates, with more than two value heads for a key head. */
static void test_delta_orders(void)
{
    static const int batches[] = { 1, 2, 61, 64, 1, 8, 200 };
    test_rng rng = { 28 };
    family("delta rule, orders");
    for (int i = 0; i < 9; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const delta_order order = { i % 3 != 0, i % 3 != 1 };
        const int dim = 32 << i / 3, n_k = 2 + i % 2, n_v = n_k * (3 - i % 2);
        case_begin("%d and %d heads of %d%s%s", n_k, n_v, dim, order.tiled ? ", tiled" : "",
                   order.apart ? ", gates apart" : "");
        delta_net d = delta_make(n_k, n_v, dim, order, &rng);
        for (size_t k = 0; k < ARRAY_LEN(batches); k++)
            check_delta(&d, batches[k], false, DELTA_ANY, &rng);
        check_delta(&d, 10, true, DELTA_ANY, &rng);
        case_end();
    }
}

/* A run of tokens from position 24 on, in batches that end at multiples of `each`: out [n, values],
 * then the state. */
static float *delta_in_batches(const delta_net *d, const float *mixed, const float *ba, int n,
                               int each)
{
    const size_t n_token = (size_t)n, width = 2 * (size_t)d->n_v;
    const size_t size = (size_t)(d->n_v * d->dim * d->dim), n_out = n_token * d->values;
    gpu_delta part = d->args;
    float *result = host_room(n_out + size, sizeof *result);
    float *out = vram_room(n_out * sizeof *out), *x = vram_floats(mixed, n_token * d->channels);
    float *gates = vram_floats(ba, n_token * width);
    gpu_cursor *at = make_versions(d->state, size);
    part.cursor = at;
    part.scratch = vram_room(gpu_delta_scratch(device(), d->n_k, d->n_v, d->dim, n) + 1);
    for (int t = 0; t < n; t += part.n) {
        part.mixed = x + (size_t)t * d->channels;
        part.ba = gates + (size_t)t * width;
        part.out = out + (size_t)t * d->values;
        part.pos = 24 + t;
        part.n = each - part.pos % each < n - t ? each - part.pos % each : n - t;
        gpu_delta_rule(device(), &part);
        gpu_advance(device(), at, part.n);
        gpu_advance(device(), d->other, 1);
    }
    memcpy(result, host_copy(out, n_out), n_out * sizeof *result);
    memcpy(result + n_out, read_version(at, size), size * sizeof *result);
    return result;
}

/* Cuts at multiples of a chunk do not show. */
static void test_delta_cuts(void)
{
    test_rng rng = { 25 };
    family("delta rule, cut");
    for (int dim = 32; dim <= 128; dim *= 2) {
        enum { N = 1000 };
        case_begin("2 and 4 heads of %d", dim);
        delta_net d = delta_make(2, 4, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t all = N * d.values + (size_t)(d.n_v * dim * dim);
        float *mixed = host_floats(N * d.channels, 1.0f, &rng);
        float *ba = host_floats(N * 2 * (size_t)d.n_v, 3.0f, &rng);
        const float *whole = delta_in_batches(&d, mixed, ba, N, 1 << 20);
        expect_bits("chunk by chunk", delta_in_batches(&d, mixed, ba, N, GPU_DELTA_CHUNK), whole,
                    all);
        expect_bits("batches of 192", delta_in_batches(&d, mixed, ba, N, 192), whole, all);
        case_end();
    }
}

/* Up to GPU_FEW tokens have the bits that they have one by one. */
static void test_delta_few(void)
{
    test_rng rng = { 33 };
    family("delta rule, few tokens");
    for (int dim = 32; dim <= 128; dim *= 2) {
        case_begin("2 and 4 heads of %d", dim);
        delta_net d = delta_make(2, 4, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        for (int n = 2; n <= GPU_FEW; n++) {
            const size_t n_out = (size_t)n * d.values, size = (size_t)(d.n_v * dim * dim);
            float *mixed = host_floats((size_t)n * d.channels, 1.0f, &rng);
            float *ba = host_floats((size_t)n * 2 * (size_t)d.n_v, 3.0f, &rng);
            expect_bits("tokens together", delta_in_batches(&d, mixed, ba, n, 1 << 20),
                        delta_in_batches(&d, mixed, ba, n, 1), n_out + size);
        }
        case_end();
    }
}

/* One batch of three conversations, each with a state of its own: the bits that each has alone. */
static void test_delta_rows(void)
{
    static const int rows[][3] = { { 1, 1, 1 }, { 2, 5, 1 }, { 1, 3, 4 } };
    test_rng rng = { 32 };
    family("delta rule, several conversations");
    for (int dim = 32; dim <= 128; dim *= 2) {
        case_begin("2 and 6 heads of %d", dim);
        delta_net d = delta_make(2, 6, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t size = (size_t)(d.n_v * dim * dim), width = 2 * (size_t)d.n_v;
        for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
            float *states[3], *mixed = host_floats(GPU_FEW * d.channels, 1.0f, &rng);
            float *ba = host_floats(GPU_FEW * width, 3.0f, &rng);
            float *want = host_room(GPU_FEW * d.values, sizeof *want);
            gpu_cursor list[3];
            gpu_delta part = d.args;
            for (int i = 0; i < 3; i++) {
                states[i] = host_floats(size, 0.1f, &rng);
                vram_read(&list[i], make_versions(states[i], size), sizeof list[i]);
                list[i].n = i < 2 ? rows[k][i] : 0;
                part.n += rows[k][i];
            }
            part.cursor = vram_copy(list, sizeof list);
            part.mixed = vram_floats(mixed, GPU_FEW * d.channels);
            part.ba = vram_floats(ba, GPU_FEW * width);
            part.out = vram_room(GPU_FEW * d.values * sizeof *want);
            gpu_delta_rule(device(), &part);
            for (int i = 0, t = 0; i < 3; t += rows[k][i++]) {
                delta_net own = d;
                own.state = states[i];
                const size_t n_out = (size_t)rows[k][i] * d.values;
                const float *alone = delta_in_batches(&own, mixed + (size_t)t * d.channels,
                                                      ba + (size_t)t * width, rows[k][i], 1);
                expect_bits("out, alone", host_copy(part.out + (size_t)t * d.values, n_out), alone,
                            n_out);
                cpu_delta(want + (size_t)t * d.values, &own, mixed + (size_t)t * d.channels,
                          ba + (size_t)t * width, rows[k][i]);
                const uint8_t *after = list[i].recurrent_next + STATE_AT;
                expect_rows_close("state", host_copy((const float *)(const void *)after, size),
                                  states[i], (size_t)d.n_v, (size_t)(dim * dim), 2e-5);
            }
            expect_rows_close("out", host_copy(part.out, (size_t)part.n * d.values), want,
                              (size_t)part.n, d.values, 2e-5);
        }
        case_end();
    }
}

/* After a batch, the state after its first tokens again: from the version before it and the same
 * inputs. */
static void test_delta_again(void)
{
    test_rng rng = { 31 };
    family("delta rule, again");
    for (int dim = 32; dim <= 128; dim *= 2) {
        enum { N = GPU_FEW };
        case_begin("2 and 6 heads of %d", dim);
        delta_net d = delta_make(2, 6, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t size = (size_t)(d.n_v * dim * dim);
        float *mixed = host_floats(N * d.channels, 1.0f, &rng);
        float *ba = host_floats(N * 2 * (size_t)d.n_v, 3.0f, &rng);
        gpu_delta part = d.args;
        part.mixed = vram_floats(mixed, N * d.channels);
        part.ba = vram_floats(ba, N * 2 * (size_t)d.n_v);
        part.out = vram_room(N * d.values * sizeof *part.out);
        for (int n = N; n > 0; n--) {
            gpu_cursor at;
            part.n = n;
            gpu_delta_rule(device(), &part);
            gpu_advance(device(), d.other, 1);
            vram_read(&at, d.at, sizeof at);
            const float *state = (const float *)(const void *)(at.recurrent_next + STATE_AT);
            const float *want = delta_in_batches(&d, mixed, ba, n, 1 << 20);
            expect_bits("state", host_copy(state, size), want + (size_t)n * d.values, size);
        }
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu delta", argc, argv);
    if (device_open()) {
        test_delta_orders();
        test_delta_again();
        test_delta_few();
        test_delta_rows();
        if (!sim_gpu()) {                /* whose loops are those that it would be compared with */
            test_delta();
            test_delta_cuts();
        }
        device_close();
    }
    return test_end();
}
