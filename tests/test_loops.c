/* test_loops.c - the loops of every instruction set against the scalar ones, bit for bit.
 *
 * Numbers of every size, zeros, infinities and NaN; lengths around every vector's; arrays of the
 * exact size, so that a sanitizer sees accesses past the end. test_mixers.c compares attention. The
 * scalar loops' values, which no other test checks, are checked here. */
#include "tests/numbers.h"

#include <string.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"
#include "loader/bytes.h"

/* ---- numbers --------------------------------------------------------------------------------- */

typedef enum number_kind { NUMBERS_PLAIN, NUMBERS_WIDE, NUMBERS_ANY, N_NUMBER_KIND } number_kind;

static const char *const kind_names[] = { "plain", "of all sizes", "with infinities and NaN" };

static float number(number_kind kind, test_rng *r)
{
    static const float special[] = { 0.0f, -0.0f, 1e-45f, -1e-38f, 3e38f, -3e38f, 88.0f, -87.0f,
                                     7.0f, -7.0f, INFINITY, -INFINITY, NAN };
    const uint32_t n_special = ARRAY_LEN(special) - (kind == NUMBERS_ANY ? 0 : 3);
    if (kind == NUMBERS_PLAIN) return 4.0f * uniform(r);
    if (test_below(r, 40) == 0) return special[test_below(r, n_special)];
    return ldexpf(uniform(r), (int)test_below(r, kind == NUMBERS_WIDE ? 40 : 250) - 20);
}

static float *numbers(size_t n, number_kind kind, test_rng *r)
{
    float *x = room(n ? n : 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = number(kind, r);
    return x;
}

static float *copied(const float *x, size_t n)
{
    float *y = room(n ? n : 1, sizeof *y);
    memcpy(y, x, n * sizeof *y);
    return y;
}

/* Compares bits, all NaNs being one; frees both. */
static void same(float *got, float *want, size_t n, const char *isa, const char *what,
                 number_kind kind, int size)
{
    size_t at = 0;
    while (at < n && (load_u32(&got[at]) == load_u32(&want[at]) ||
                      (isnan(got[at]) && isnan(want[at])))) at++;
    CHECK_MSG(at == n, "%s: %s of %d, %s: value %zu is %a, expected %a", isa, what, size,
              kind_names[kind], at, (double)got[at < n ? at : 0], (double)want[at < n ? at : 0]);
    mem_free(got);
    mem_free(want);
}

/* ---- one length ------------------------------------------------------------------------------ */

static void see_quantise(const loops *f, const loops *ref, number_kind kind, int n, test_rng *r)
{
    const size_t count = (size_t)n * ACT_BLOCK;
    int8_t *q[2] = { room(count, 1), room(count, 1) };
    int16_t *s[2] = { room(2 * (size_t)n, 2), room(2 * (size_t)n, 2) };
    float *dx[2] = { room((size_t)n, 4), room((size_t)n, 4) }, *x = numbers(count, kind, r);
    for (size_t i = 0; i < ACT_BLOCK; i++) x[i] = n > 1 ? x[i] * 1e-33f : 0.0f;
    f->quantise(q[0], dx[0], s[0], x, n);
    ref->quantise(q[1], dx[1], s[1], x, n);
    CHECK_MSG(!memcmp(q[0], q[1], count) && !memcmp(s[0], s[1], 4 * (size_t)n),
              "%s: codes or sums of %d blocks, %s", f->isa, n, kind_names[kind]);
    same(dx[0], dx[1], (size_t)n, f->isa, "scales", kind, n);
    for (int i = 0; i < 2; i++) {
        mem_free(q[i]);
        mem_free(s[i]);
    }
    mem_free(x);
}

typedef void gate_fn(float *out, const float *a, const float *b, int n);

/* Into another array, and in place of either argument. */
static void see_gate(const loops *f, gate_fn *fn, gate_fn *ref, const char *what, number_kind kind,
                     int n, test_rng *r)
{
    float *a = numbers((size_t)n, kind, r), *b = numbers((size_t)n, kind, r);
    for (int place = 0; place < 3; place++) {
        float *got = copied(place == 2 ? b : a, (size_t)n), *want = room((size_t)n, sizeof *want);
        ref(want, a, b, n);
        fn(got, place == 1 ? got : a, place == 2 ? got : b, n);
        same(got, want, (size_t)n, f->isa, what, kind, n);
    }
    mem_free(a);
    mem_free(b);
}

static void see_cap(const loops *f, const loops *ref, number_kind kind, int n, test_rng *r)
{
    float *got = numbers((size_t)n, kind, r), *want = copied(got, (size_t)n);
    f->soft_cap(got, n, 30.0f);
    ref->soft_cap(want, n, 30.0f);
    same(got, want, (size_t)n, f->isa, "soft cap", kind, n);
}

static void see_rows(const loops *f, const loops *ref, number_kind kind, int n, test_rng *r)
{
    const size_t count = (size_t)n;
    const int k = 1 + (int)test_below(r, 10);
    float *x = numbers(count, kind, r), *w = numbers(count, kind, r), *gate = numbers(10, kind, r);
    float *y = numbers(count * (size_t)k, kind, r);
    float *got = copied(x, count), *want = copied(x, count);
    f->rmsnorm(got, got, w, n, 1e-6f);
    ref->rmsnorm(want, x, w, n, 1e-6f);
    same(got, want, count, f->isa, "norm", kind, n);
    got = copied(x, count);
    want = copied(x, count);
    f->add(got, w, count);
    for (size_t i = 0; i < count; i++) want[i] += w[i];
    same(got, want, count, f->isa, "sum", kind, n);
    for (int shared = 0; shared < 2; shared++) {
        got = copied(x, count);
        want = copied(x, count);
        f->join(got, y, gate, k, shared ? w : NULL, 0.3f, n);
        for (size_t i = 0; i < count; i++) {             /* as the contract has it */
            float sum = 0.0f;
            for (int e = 0; e < k; e++) sum = fmaf(gate[e], y[(size_t)e * count + i], sum);
            if (shared) sum = fmaf(0.3f, w[i], sum);
            want[i] += sum;
        }
        same(got, want, count, f->isa, "experts", kind, n);
    }
    got = copied(x, count);
    want = copied(x, count);
    f->rotate(got, w, w + n / 2, n / 2 * 2);
    ref->rotate(want, w, w + n / 2, n / 2 * 2);
    same(got, want, count, f->isa, "rotation", kind, n);
    mem_free(x);
    mem_free(w);
    mem_free(y);
    mem_free(gate);
}

static void see_norms(const loops *f, const loops *ref, number_kind kind, int n, test_rng *r)
{
    const size_t count = (size_t)n;
    float *x = numbers(count, kind, r), *z = numbers(count, kind, r), *w = numbers(count, kind, r);
    float *got = copied(x, count), *want = copied(x, count);
    f->delta_l2norm(got, n, 0.125f);
    ref->delta_l2norm(want, n, 0.125f);
    same(got, want, count, f->isa, "L2 norm", kind, n);
    got = copied(x, count);
    want = copied(x, count);
    f->rmsnorm(got, x, NULL, n, 1e-6f);
    ref->rmsnorm(want, x, NULL, n, 1e-6f);
    same(got, want, count, f->isa, "norm without a gain", kind, n);
    got = copied(x, count);
    want = copied(x, count);
    f->delta_gated_norm(got, z, w, n, 1e-6f);
    ref->delta_gated_norm(want, z, w, n, 1e-6f);
    same(got, want, count, f->isa, "gated norm", kind, n);
    mem_free(x);
    mem_free(z);
    mem_free(w);
}

static void see_conv(const loops *f, const loops *ref, number_kind kind, int n, test_rng *r)
{
    enum { TOKENS = 3 };
    const int taps = 1 + (int)test_below(r, 5), first = n / 3;
    const size_t count = (size_t)n, kept = count * (size_t)(taps - 1);
    float *x = numbers(TOKENS * count, kind, r), *w = numbers(count * (size_t)taps, kind, r);
    float *y[2] = { copied(x, TOKENS * count), copied(x, TOKENS * count) };
    float *window[2] = { numbers(kept, kind, r), NULL };
    window[1] = copied(window[0], kept);
    f->delta_conv(y[0], x, TOKENS, n, first, n, w, taps, window[0]);
    ref->delta_conv(y[1], x, TOKENS, n, first, n, w, taps, window[1]);
    same(y[0], y[1], TOKENS * count, f->isa, "convolution", kind, n);
    same(window[0], window[1], kept, f->isa, "window", kind, n);
    mem_free(x);
    mem_free(w);
}

/* Both forms of the delta rule, dk by dv. */
static void see_delta(const loops *f, const loops *ref, number_kind kind, int dk, int dv,
                      test_rng *r)
{
    enum { TOKENS = 70 };
    const size_t row = (size_t)(2 * dk + dv), cells = (size_t)(dk * dv);
    const size_t n_out = TOKENS * (size_t)dv;
    float *x = numbers(TOKENS * row, kind, r), *gates = numbers(2 * TOKENS, NUMBERS_PLAIN, r);
    float *start = numbers(cells, kind, r), *scratch = room(delta_scratch(dk, dv), sizeof *scratch);
    for (size_t i = 0; kind == NUMBERS_PLAIN && i < TOKENS * row; i++) x[i] *= 0.05f;
    for (int t = 0; t < TOKENS; t++) gates[2 * t + 1] = -fabsf(gates[2 * t + 1]);
    for (int chunked = 0; chunked < 2; chunked++) {
        float *out[2], *state[2];
        for (int i = 0; i < 2; i++) {
            const loops *g = i == 0 ? f : ref;
            out[i] = room(n_out, sizeof *out[i]);
            state[i] = copied(start, cells);
            const delta_args a = {
                .out = out[i], .q = x, .k = x + dk, .v = x + 2 * dk, .beta = gates, .g = gates + 1,
                .out_stride = (size_t)dv, .qk_stride = row, .v_stride = row, .bg_stride = 2,
                .state = state[i], .next = start, .n = TOKENS, .dk = dk, .dv = dv,
            };
            if (chunked) g->delta_chunked(&a, scratch);
            else g->delta_recurrence(&a);
        }
        same(out[0], out[1], n_out, f->isa, chunked ? "chunks" : "recurrence", kind, dv);
        same(state[0], state[1], cells, f->isa, chunked ? "state of chunks" : "state", kind, dv);
    }
    mem_free(x);
    mem_free(gates);
    mem_free(start);
    mem_free(scratch);
}

static void see_set(const loops *f, const loops *ref)
{
    static const int lengths[] = { 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128,
                                   130, 512, 513, 2880 };
    static const struct { int dk, dv; } shapes[] = { { 1, 1 }, { 5, 3 }, { 33, 70 }, { 64, 64 },
                                                     { 128, 128 }, { 17, 139 } };
    test_rng rng = { 21 };
    for (int kind = 0; kind < N_NUMBER_KIND; kind++) {
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
            const int n = lengths[i];
            see_quantise(f, ref, kind, n < 100 ? n : 90, &rng);
            see_gate(f, f->swiglu, ref->swiglu, "SwiGLU", kind, n, &rng);
            see_gate(f, f->swiglu_clamped, ref->swiglu_clamped, "clamped SwiGLU", kind, n, &rng);
            see_gate(f, f->geglu, ref->geglu, "GEGLU", kind, n, &rng);
            see_gate(f, f->gate, ref->gate, "gate", kind, n, &rng);
            see_cap(f, ref, kind, n, &rng);
            see_rows(f, ref, kind, n, &rng);
            see_norms(f, ref, kind, n, &rng);
            see_conv(f, ref, kind, n, &rng);
        }
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
            see_delta(f, ref, kind, shapes[i].dk, shapes[i].dv, &rng);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_values(const loops *f)
{
    enum { N = 2880 };
    static float x[N], z[N], y[N];
    static double norm[N], gated[N];
    test_rng rng = { 4 };
    double squares = 0.0;
    fill(x, N, &rng);
    fill(z, N, &rng);
    for (int i = 0; i < N; i++) squares += (double)x[i] * x[i];
    for (int i = 0; i < N; i++) {
        norm[i] = x[i] / sqrt(squares / N + 1e-5) * z[i];
        gated[i] = x[i] / (1.0 + exp(-20.0 * z[i]));
    }
    f->rmsnorm(y, x, z, N, 1e-5f);
    CHECK_MSG(rel_error(y, norm, N) < 8e-8, "%s: norm off by %.1e", f->isa, rel_error(y, norm, N));
    for (int i = 0; i < N; i++) norm[i] = x[i] / sqrt(squares / N + 1e-5);
    f->rmsnorm(y, x, NULL, N, 1e-5f);
    CHECK_MSG(rel_error(y, norm, N) < 8e-8, "%s: norm without a gain off by %.1e", f->isa,
              rel_error(y, norm, N));
    for (int i = 0; i < N; i++) z[i] *= 20.0f;
    f->gate(y, x, z, N);
    CHECK_MSG(rel_error(y, gated, N) < 8e-8, "%s: gate off by %.1e", f->isa,
              rel_error(y, gated, N));
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

/* Against what their names say. Far below zero GELU is next to nothing, and is that here, too. */
static void test_tanh(const loops *f)
{
    enum { N = 4001 };
    static float g[N], u[N], y[N];
    double worst = 0, worst_cap = 0;
    for (int i = 0; i < N; i++) {
        g[i] = (float)(i - N / 2) * 0.005f;
        u[i] = 1.0f + 0.001f * (float)i;
    }
    f->geglu(y, g, u, N);
    for (int i = 0; i < N; i++) {
        const double want = gelu(g[i]) * u[i];
        /* 1 + tanh loses digits in double, too, from -6 or so on */
        worst = fmax(worst, fabs(y[i] - want) / (fabs(want) + (g[i] < -4.0f ? 1e-6 : 1e-30)));
    }
    CHECK_MSG(worst < 2e-6 && y[N / 2] == 0.0f, "%s: GEGLU off by %.1e", f->isa, worst);
    for (int i = 0; i < N; i++) y[i] = g[i] * 20.0f;
    f->soft_cap(y, N, 30.0f);
    for (int i = 0; i < N; i++)
        worst_cap = fmax(worst_cap, fabs(y[i] - 30.0 * tanh(g[i] * 20.0 / 30.0)));
    CHECK_MSG(worst_cap < 30 * 2e-7 && y[N / 2] == 0.0f, "%s: soft cap off by %.1e", f->isa,
              worst_cap);
    float ends[] = { INFINITY, -INFINITY, NAN, 1e9f };
    f->soft_cap(ends, ARRAY_LEN(ends), 30.0f);
    CHECK(ends[0] == 30.0f && ends[1] == -30.0f && isnan(ends[2]) && ends[3] == 30.0f);
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const kernel_set *kernels[KERNELS_MAX_SETS];
    const int n_set = loops_here(sets), n_kernels = kernels_here(kernels);
    test_begin("loops", argc, argv);
    CHECK(n_set >= 1 && strcmp(sets[n_set - 1]->isa, "scalar") == 0);
    CHECK(loops_for(kernels[0]->isa) == sets[0]);
    CHECK(loops_for(kernels[n_kernels - 1]->isa) == sets[n_set - 1]);
    for (int i = 0; i < n_set; i++) {
        see_set(sets[i], sets[n_set - 1]);
        test_values(sets[i]);
        test_tanh(sets[i]);
    }
    return test_end();
}
