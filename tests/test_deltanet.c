/* test_deltanet.c - the gated delta rule in both forms, and what surrounds it, on every instruction
 * set.
 *
 * Both forms are compared with naive double loops and with numbers printed by numpy in float64 (the
 * lines that made them are next to them); a sequence cut anywhere must give the same as the whole.
 * Errors are relative, in the L2 norm, of the output of all tokens and of the final state. All work
 * runs under the allocation guard, in buffers of the exact size. */
#include "tests/numbers.h"

#include <string.h>

#include "engine/cpu/loops.h"

static const loops *f;                 /* under test */

static double silu(double x) { return x / (1.0 + exp(-x)); }

/* ---- the delta rule ------------------------------------------------------------------------ */

typedef enum gate_kind {
    GATES_USUAL,                         /* decay 0.3 .. 1, beta 0 .. 1 */
    GATES_SLOW,                          /* g = -1e-5, always */
    GATES_NONE,                          /* g = 0, beta = 1: pure delta rule */
    GATES_FAST, GATES_SUDDEN,            /* g = -50; g = -1e4 at every fifth token, else near 0 */
    GATES_MIXED,                         /* 0, -1e-7, -1, -50, -1e4, -inf in turn; beta 0 or 1 */
    GATES_BETA0                          /* nothing is written */
} gate_kind;

typedef enum vector_kind {
    VECTORS_RANDOM,
    VECTORS_REPEATED,                    /* one key for all tokens */
    VECTORS_CLOSE,                       /* keys that differ by a thousandth */
    VECTORS_ZERO                         /* every third token all zero */
} vector_kind;

static const struct {
    int dk, dv;
    gate_kind gates;
    vector_kind vectors;
    double recurrence, chunked;          /* bounds of output and state */
    const char *why;
} delta_cases[] = {
    { 128, 128, GATES_USUAL, VECTORS_RANDOM, 5e-7, 5e-7, "usual" },
    { 128, 128, GATES_SLOW, VECTORS_RANDOM, 1e-6, 1e-6, "slow decay" },
    { 128, 128, GATES_NONE, VECTORS_REPEATED, 1e-6, 1e-6, "one key, no decay" },
    { 24, 136, GATES_USUAL, VECTORS_CLOSE, 1e-6, 1e-6, "keys close together; two column blocks" },
    { 5, 3, GATES_NONE, VECTORS_RANDOM, 1e-6, 1e-6, "ragged, no decay" },
    { 1, 1, GATES_USUAL, VECTORS_RANDOM, 1e-5, 1e-5, "smallest: a state that crosses 0" },
    { 17, 130, GATES_FAST, VECTORS_RANDOM, 5e-7, 5e-7, "forgets at once" },
    { 16, 16, GATES_SUDDEN, VECTORS_RANDOM, 1e-6, 1e-6, "forgets every fifth token" },
    { 16, 16, GATES_MIXED, VECTORS_ZERO, 1e-6, 1e-6, "every extreme, zero vectors" },
    { 32, 16, GATES_SLOW, VECTORS_ZERO, 1e-6, 1e-6, "slow decay, zero vectors" },
    { 16, 16, GATES_BETA0, VECTORS_RANDOM, 2e-6, 2e-6, "300 roundings, nothing new" },
};

enum { DELTA_TOKENS = 300 };
static const int delta_lengths[] = { 1, 2, 3, 63, 64, 65, 127, 128, 130, DELTA_TOKENS };

/* A sequence with room between the rows, and its result by naive double loops. */
typedef struct delta_run {
    int dk, dv;
    size_t qk_stride, v_stride, out_stride;
    float *qk, *v, *gates, *start;       /* qk: q, then k of a token; gates: beta, g */
    float *out, *state, *scratch;
    double *want, *s;                    /* s is the state after delta_naive */
} delta_run;

static void make_gates(float *beta, float *g, gate_kind kind, int t, test_rng *r)
{
    static const float extremes[] = { 0.0f, -1e-7f, -1.0f, -50.0f, -1e4f, -INFINITY, -0.01f };
    *beta = sigmoid_f32(4.0f * uniform(r));
    *g = -0.6f + 0.6f * uniform(r);
    if (kind == GATES_SLOW) *g = -1e-5f;
    if (kind == GATES_NONE) *g = 0.0f, *beta = 1.0f;
    if (kind == GATES_FAST) *g = -50.0f;
    if (kind == GATES_SUDDEN) *g = t % 5 == 4 ? -1e4f : -1e-3f;
    if (kind == GATES_MIXED) {
        *g = extremes[t % (int)ARRAY_LEN(extremes)];
        *beta = t % 3 ? 1.0f : 0.0f;
    }
    if (kind == GATES_BETA0) *g *= 0.01f, *beta = 0.0f;
}

static void delta_run_init(delta_run *d, size_t row)
{
    const int dk = delta_cases[row].dk, dv = delta_cases[row].dv;
    const size_t n = DELTA_TOKENS, cells = (size_t)(dk * dv);
    test_rng rng = { 7 + row };
    *d = (delta_run){ .dk = dk, .dv = dv, .qk_stride = (size_t)(2 * dk + 3),
                      .v_stride = (size_t)(dv + 2), .out_stride = (size_t)(dv + 1) };
    d->qk = room(n * d->qk_stride, sizeof *d->qk);
    d->v = room(n * d->v_stride, sizeof *d->v);
    d->gates = room(2 * n, sizeof *d->gates);
    d->start = room(cells, sizeof *d->start);
    d->out = room(n * d->out_stride, sizeof *d->out);
    d->state = room(cells, sizeof *d->state);
    d->scratch = room(delta_scratch(dk, dv), sizeof *d->scratch);
    d->want = room(n * (size_t)dv, sizeof *d->want);
    d->s = room(cells, sizeof *d->s);
    fill(d->qk, n * d->qk_stride, &rng);
    fill(d->v, n * d->v_stride, &rng);
    fill(d->start, cells, &rng);
    for (int t = 0; t < DELTA_TOKENS; t++) {
        float *q = d->qk + (size_t)t * d->qk_stride, *k = q + dk;
        make_gates(&d->gates[2 * t], &d->gates[2 * t + 1], delta_cases[row].gates, t, &rng);
        if (delta_cases[row].vectors == VECTORS_CLOSE)
            for (int i = 0; i < dk; i++) k[i] = 1.0f + 1e-3f * k[i];
        f->delta_l2norm(q, dk, 1.0f / sqrtf((float)dk));
        f->delta_l2norm(k, dk, 1.0f);
        if (delta_cases[row].vectors == VECTORS_REPEATED)
            memcpy(k, d->qk + dk, (size_t)dk * sizeof *k);
        if (delta_cases[row].vectors == VECTORS_ZERO && t % 3 == 2) {
            memset(q, 0, (size_t)(2 * dk) * sizeof *q);
            memset(d->v + (size_t)t * d->v_stride, 0, (size_t)dv * sizeof *d->v);
        }
    }
}

static void delta_run_free(delta_run *d)
{
    float *floats[] = { d->qk, d->v, d->gates, d->start, d->out, d->state, d->scratch };
    for (size_t i = 0; i < ARRAY_LEN(floats); i++) mem_free(floats[i]);
    mem_free(d->want);
    mem_free(d->s);
}

/* n tokens from the start, as the rule is defined. */
static void delta_naive(delta_run *d, int n)
{
    const int dk = d->dk, dv = d->dv;
    for (int i = 0; i < dk * dv; i++) d->s[i] = d->start[i];
    for (int t = 0; t < n; t++) {
        const float *q = d->qk + (size_t)t * d->qk_stride, *k = q + dk;
        const double decay = exp((double)d->gates[2 * t + 1]);
        for (int i = 0; i < dk * dv; i++) d->s[i] *= decay;
        for (int j = 0; j < dv; j++) {
            double predicted = 0.0, o = 0.0;
            for (int i = 0; i < dk; i++) predicted += d->s[i * dv + j] * k[i];
            const double delta = d->gates[2 * t] *
                                 (d->v[(size_t)t * d->v_stride + (size_t)j] - predicted);
            for (int i = 0; i < dk; i++) {
                d->s[i * dv + j] += k[i] * delta;
                o += d->s[i * dv + j] * q[i];
            }
            d->want[(size_t)t * (size_t)dv + (size_t)j] = o;
        }
    }
}

/* Clean state; rows of the output and what lies between them are marked. */
static void delta_restart(delta_run *d)
{
    memcpy(d->state, d->start, (size_t)(d->dk * d->dv) * sizeof *d->state);
    for (size_t i = 0; i < DELTA_TOKENS * d->out_stride; i++) d->out[i] = 1e30f;
}

/* Tokens first .. first + n - 1, in one of the forms. */
static void delta_piece(delta_run *d, int first, int n, bool chunked)
{
    const size_t t = (size_t)first;
    const delta_args a = {
        .out = d->out + t * d->out_stride, .q = d->qk + t * d->qk_stride,
        .k = d->qk + t * d->qk_stride + d->dk, .v = d->v + t * d->v_stride,
        .beta = d->gates + 2 * t, .g = d->gates + 2 * t + 1, .out_stride = d->out_stride,
        .qk_stride = d->qk_stride, .v_stride = d->v_stride, .bg_stride = 2, .state = d->state,
        .n = n, .dk = d->dk, .dv = d->dv,
    };
    mem_guard(true);
    if (chunked) {
        memset(d->scratch, 0xFF, delta_scratch(d->dk, d->dv) * sizeof *d->scratch);      /* NaN */
        f->delta_chunked(&a, d->scratch);
    } else {
        f->delta_recurrence(&a);
    }
    mem_guard(false);
}

static void check_run(const delta_run *d, int n, double bound, const char *form, const char *why)
{
    double worst = 0.0, diff = 0.0, norm = 0.0;
    bool kept = true;
    for (size_t t = 0; t < DELTA_TOKENS; t++) {
        const float *out = d->out + t * d->out_stride;
        for (int j = 0; j < d->dv && t < (size_t)n; j++) {
            const double want = d->want[t * (size_t)d->dv + (size_t)j];
            diff += (out[j] - want) * (out[j] - want);
            norm += want * want;
        }
        kept = kept && out[d->dv] == 1e30f && (t < (size_t)n || out[0] == 1e30f);
    }
    worst = worse(0.0, diff == 0.0 ? 0.0 : sqrt(diff / norm));
    const double e = rel_error(d->state, d->s, (size_t)(d->dk * d->dv));
    CHECK_MSG(worst <= bound, "%s/%s, %d tokens: output off by %.2e", form, why, n, worst);
    CHECK_MSG(e <= bound, "%s/%s, %d tokens: state off by %.2e", form, why, n, e);
    CHECK_MSG(kept, "%s/%s, %d tokens: wrote between rows or after them", form, why, n);
}

static void test_delta_case(size_t row, size_t set)
{
    const char *why = delta_cases[row].why;
    test_rng rng = { 70 + row };
    delta_run d;
    delta_run_init(&d, row);
    for (size_t i = test_is_long() ? 0 : (row + set) % 4; i < ARRAY_LEN(delta_lengths);
         i += (size_t)test_rounds(1, 4)) {
        const int n = delta_lengths[i];
        delta_naive(&d, n);
        delta_restart(&d);
        delta_piece(&d, 0, n, false);
        check_run(&d, n, delta_cases[row].recurrence, "recurrence", why);
        delta_restart(&d);
        delta_piece(&d, 0, n, true);
        check_run(&d, n, delta_cases[row].chunked, "chunked", why);
    }
    const bool cut = test_is_long() || (row + set) % 4 == 0;
    if (cut) delta_naive(&d, DELTA_TOKENS);
    /* cut anywhere: chunks only, then both forms in turn */
    for (int mixed = 0; mixed < 2 && cut; mixed++) {
        delta_restart(&d);
        for (int t = 0, n; t < DELTA_TOKENS; t += n) {
            n = 1 + (int)test_below(&rng, 100);
            if (n > DELTA_TOKENS - t) n = DELTA_TOKENS - t;
            delta_piece(&d, t, n, !mixed || test_below(&rng, 2));
        }
        check_run(&d, DELTA_TOKENS, delta_cases[row].chunked, mixed ? "mixed" : "pieces", why);
    }
    delta_run_free(&d);
}

/* From numpy, wave as above in float64 after rounding, dk = 3, dv = 2, 6 tokens:
 * unit = lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
 * q = unit(wave(18, .37, 0).reshape(6, 3)) / 3 ** .5; k = unit(wave(18, .53, 1).reshape(6, 3))
 * v = wave(12, .71, 2).reshape(6, 2); beta = 1 / (1 + np.exp(-wave(6, .9, 3)))
 * g = np.logaddexp(0, wave(6, 1.1, 4) + .25) * -.5; S = wave(6, .29, 5).reshape(3, 2)
 * for t in range(6): S *= np.exp(g[t]); d = beta[t] * (v[t] - S.T @ k[t]); S += np.outer(k[t], d);
 *                    print(S.T @ q[t]) */
static void test_delta_golden(void)
{
    static const double want[12] = {
        0.225735058, 0.200498625, 0.0606097274, 0.00151597574, 0.0996782355, -0.0137230728,
        -0.0970800055, -0.139220694, -0.346471386, -0.295433925, -0.260888785, -0.0661426438,
    };
    static const double want_state[6] = { 0.386832349, 0.00996748009, 0.235487848,
                                          0.233127334, 0.0220270927, 0.393871626 };
    float q[18], k[18], v[12], beta[6], g[6], state[6], out[12];
    float *scratch = room(delta_scratch(3, 2), sizeof *scratch);
    const delta_args a = { .out = out, .q = q, .k = k, .v = v, .beta = beta, .g = g,
                           .out_stride = 2, .qk_stride = 3, .v_stride = 2, .bg_stride = 1,
                           .state = state, .n = 6, .dk = 3, .dv = 2 };
    wave(q, 18, 0.37, 0.0);
    wave(k, 18, 0.53, 1.0);
    wave(v, 12, 0.71, 2.0);
    wave(beta, 6, 0.9, 3.0);
    wave(g, 6, 1.1, 4.0);
    for (int t = 0; t < 6; t++) {
        f->delta_l2norm(q + 3 * t, 3, 1.0f / sqrtf(3.0f));
        f->delta_l2norm(k + 3 * t, 3, 1.0f);
        beta[t] = sigmoid_f32(beta[t]);
        g[t] = delta_decay(g[t], 0.25f, -0.5f);
    }
    for (int chunked = 0; chunked < 2; chunked++) {
        wave(state, 6, 0.29, 5.0);
        if (chunked) f->delta_chunked(&a, scratch);
        else f->delta_recurrence(&a);
        const double e = rel_error(out, want, 12), e_state = rel_error(state, want_state, 6);
        CHECK_MSG(e < 3e-7 && e_state < 3e-7, "golden, chunked %d: output %.1e, state %.1e",
                  chunked, e, e_state);
    }
    mem_free(scratch);
}

/* ---- what surrounds it ---------------------------------------------------------------------- */

static const struct { float x; double want; } sigmoids[] = {
    { 0.0f, 0.5 }, { 1.5f, 0.817574476193643659 }, { -3.0f, 0.0474258731775667809 },
    { -20.0f, 2.06115361819020358e-09 }, { 30.0f, 1.0 }, { 1e30f, 1.0 }, { -1e30f, 0.0 },
    { -80.0f, 1.80485138784541723e-35 },
};

static const struct { float alpha, bias, a; double want; const char *why; } decays[] = {
    { 0.0f, 0.0f, -1.0f, -0.693147180559945309, "ln 2" },
    { 1.0f, 0.5f, -2.0f, -3.40282655657764, "between" },
    { -30.0f, 1.0f, -3.0f, -7.63099691662e-13, "1 + exp would be 1 in F32" },
    { 19.0f, 0.5f, -0.5f, -9.7500000017, "below the switch" },
    { 20.0f, 0.5f, -0.5f, -10.25, "above it" },
    { 100.0f, 1.0f, -0.25f, -25.25, "exp would overflow F32" },
    { 1e30f, 0.0f, -1e-3f, -1e27, "and double" },
    { -200.0f, 0.0f, -1.0f, 0.0, "no decay that F32 could show" },
};

static void test_scalars(void)
{
    for (size_t i = 0; i < ARRAY_LEN(sigmoids); i++) {
        const double got = sigmoid_f32(sigmoids[i].x), want = sigmoids[i].want;
        CHECK_MSG(fabs(got - want) <= 0x1p-24 * want, "sigmoid(%g) = %.9g", (double)sigmoids[i].x,
                  got);
    }
    for (size_t i = 0; i < ARRAY_LEN(decays); i++) {
        const double got = delta_decay(decays[i].alpha, decays[i].bias, decays[i].a);
        CHECK_MSG(fabs(got - decays[i].want) <= 1e-7 * fabs(decays[i].want), "decay, %s: %.9g",
                  decays[i].why, got);
    }
}

static void test_norms(void)
{
    static const int dims[] = { 1, 3, 7, 128, 130 };
    static const float sizes[] = { 0.0f, 1e-20f, 1e-4f, 1e-3f, 1.0f, 1e15f };
    test_rng rng = { 5 };
    float x[130], o[130], z[130], w[130];
    double want_x[130], want_o[130];
    for (size_t i = 0; i < ARRAY_LEN(dims) * ARRAY_LEN(sizes); i++) {
        const int n = dims[i / ARRAY_LEN(sizes)];
        const float size = sizes[i % ARRAY_LEN(sizes)];
        double squares = 0.0;
        fill(x, (size_t)n, &rng);
        fill(z, (size_t)n, &rng);
        fill(w, (size_t)n, &rng);
        for (int j = 0; j < n; j++) {
            o[j] = x[j] *= size;
            z[j] *= 8.0f;
            squares += (double)x[j] * x[j];
        }
        for (int j = 0; j < n; j++) {
            want_x[j] = x[j] / sqrt(squares + 1e-6) * 0.125;
            want_o[j] = o[j] / sqrt(squares / n + 1e-6f) * w[j] * silu(z[j]);
        }
        f->delta_l2norm(x, n, 0.125f);
        f->delta_gated_norm(o, z, w, n, 1e-6f);
        const double e_x = rel_error(x, want_x, (size_t)n), e_o = rel_error(o, want_o, (size_t)n);
        CHECK_MSG(e_x < 6e-8, "L2 norm of %d times %g: error %.1e", n, (double)size, e_x);
        CHECK_MSG(e_o < 3e-7, "gated norm of %d times %g: error %.1e", n, (double)size, e_o);
    }
    /* no gate, however large, gives NaN */
    const float gates[] = { -1e30f, -1000.0f, -88.0f, 88.0f, 1000.0f, 1e30f };
    for (size_t j = 0; j < ARRAY_LEN(gates); j++) {
        float one = 2.0f, gain = 1.0f;
        f->delta_gated_norm(&one, &gates[j], &gain, 1, 1e-6f);
        const float want = gates[j] > 0.0f ? gates[j] : 0.0f;
        CHECK_MSG(fabsf(one - want) <= 1e-6f * want + 1e-6f, "gate %g gives %g", (double)gates[j],
                  (double)one);
    }
}

enum { CONV_TOKENS = 20, CONV_CHANNELS = 300 };

static void conv_naive(double *y, const float *x, const float *w, int taps, const float *window)
{
    for (int t = 0; t < CONV_TOKENS; t++)
        for (int c = 0; c < CONV_CHANNELS; c++) {
            double sum = 0.0;
            for (int tap = 0; tap < taps; tap++) {
                const int from = t + tap - (taps - 1);
                sum += (double)w[c * taps + tap] * (from >= 0 ? x[from * CONV_CHANNELS + c]
                                       : window[(taps - 1 + from) * CONV_CHANNELS + c]);
            }
            y[t * CONV_CHANNELS + c] = silu(sum);
        }
}

/* In runs of `step` tokens, each for two ranges of channels: the same bits as in one run, and the
 * window holds the last inputs unchanged. */
static void test_conv_steps(const float *whole, const float *x, const float *w, int taps,
                            const float *start, int step)
{
    const size_t row = CONV_CHANNELS, kept = (size_t)(taps - 1) * row;
    float *y = room(CONV_TOKENS * row, sizeof *y), *window = room(kept ? kept : 1, sizeof *window);
    bool same = true;
    memcpy(window, start, kept * sizeof *window);
    for (int t = 0; t < CONV_TOKENS; t += step) {
        const int n = CONV_TOKENS - t < step ? CONV_TOKENS - t : step, cut = 10 * step + 1;
        f->delta_conv(y + (size_t)t * row, x + (size_t)t * row, n, CONV_CHANNELS, cut,
                      CONV_CHANNELS, w, taps, kept ? window : NULL);
        f->delta_conv(y + (size_t)t * row, x + (size_t)t * row, n, CONV_CHANNELS, 0, cut, w, taps,
                      kept ? window : NULL);
    }
    same = !memcmp(y, whole, CONV_TOKENS * row * sizeof *y);
    CHECK_MSG(same, "%d taps in steps of %d: other bits than at once", taps, step);
    same = !memcmp(window, x + CONV_TOKENS * row - kept, kept * sizeof *window);
    CHECK_MSG(same, "%d taps in steps of %d: wrong window", taps, step);
    mem_free(y);
    mem_free(window);
}

static void test_conv(void)
{
    static const int steps[] = { 1, 2, 3, 5, 19, CONV_TOKENS };
    const size_t cells = CONV_TOKENS * CONV_CHANNELS;
    test_rng rng = { 3 };
    float *x = room(cells, sizeof *x), *y = room(cells, sizeof *y);
    double *want = room(cells, sizeof *want);
    fill(x, cells, &rng);
    for (int taps = 1; taps <= 8; taps++) {
        float w[8 * CONV_CHANNELS], start[7 * CONV_CHANNELS], window[7 * CONV_CHANNELS];
        fill(w, ARRAY_LEN(w), &rng);
        fill(start, ARRAY_LEN(start), &rng);
        memcpy(window, start, sizeof window);
        conv_naive(want, x, w, taps, start);
        mem_guard(true);
        f->delta_conv(y, x, CONV_TOKENS, CONV_CHANNELS, 0, CONV_CHANNELS, w, taps, window);
        mem_guard(false);
        const double e = rel_error(y, want, cells);
        CHECK_MSG(e < 2e-7, "%d taps: error %.1e", taps, e);
        for (size_t i = 0; i < ARRAY_LEN(steps); i++)
            test_conv_steps(y, x, w, taps, start, steps[i]);
        /* one range only: the rest is left alone */
        for (size_t i = 0; i < cells; i++) y[i] = 1e30f;
        memcpy(window, start, sizeof window);
        f->delta_conv(y, x, CONV_TOKENS, CONV_CHANNELS, 100, 140, w, taps, window);
        bool kept = true;
        for (size_t i = 0; i < cells; i++) {
            const bool own = i % CONV_CHANNELS >= 100 && i % CONV_CHANNELS < 140;
            kept = kept && (y[i] != 1e30f) == own;
            if (i < (size_t)(taps - 1) * CONV_CHANNELS)
                kept = kept && (window[i] != start[i]) == own;
        }
        CHECK_MSG(kept, "%d taps: touches channels of others, or not its own", taps);
    }
    mem_free(x);
    mem_free(y);
    mem_free(want);
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    test_begin("deltanet", argc, argv);
    test_scalars();
    for (int i = 0; i < n_set; i++) {
        f = sets[i];
        for (size_t row = 0; row < ARRAY_LEN(delta_cases); row++) test_delta_case(row, (size_t)i);
        test_delta_golden();
        test_norms();
        test_conv();
    }
    return test_end();
}
