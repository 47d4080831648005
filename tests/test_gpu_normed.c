/* test_gpu_normed.c - parts that are normed before they join the residual stream, and capped
 * logits, on the GPU against the CPU's loops. */
#include <math.h>
#include <string.h>

#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

static const float eps = 1e-6f;

typedef struct normed_case {
    int n, cols;
    bool second;                         /* there are two parts */
    bool own[2];                         /* which have norms of their own */
    float scale;
    bool clear, itself;                  /* itself: what is cleared is the first part */
    int off;                             /* floats: where vectors begin, from a multiple of 16 */
} normed_case;

static float *vram_off(const float *v, size_t n, int off)
{
    float *p = (float *)vram_room((n + (size_t)off) * sizeof *v) + off;
    vram_write(p, v, n * sizeof *v);
    return p;
}

/* A gain as files have it: some are near zero, and some are negative. */
static float *gain_make(int n, test_rng *rng)
{
    float *w = host_floats((size_t)n, 1.5f, rng);
    for (int i = 0; i < n; i++) w[i] += 0.75f;
    return w;
}

/* By the words of gpu.h, in double. */
static void expect_token(double *x, const float *const part[2], const float *const gain[2],
                         const float *last, int cols, float scale)
{
    double *sum = host_room((size_t)cols, sizeof *sum), squares = 0.0;
    for (int i = 0; i < 2 && part[i]; i++) {
        double own = 0.0;
        for (int c = 0; c < cols; c++) own += (double)part[i][c] * part[i][c];
        const double by = gain[i] ? 1.0 / sqrt(own / cols + (double)eps) : 1.0;
        for (int c = 0; c < cols; c++) sum[c] += part[i][c] * by * (gain[i] ? gain[i][c] : 1.0f);
    }
    for (int c = 0; c < cols; c++) squares += sum[c] * sum[c];
    const double by = 1.0 / sqrt(squares / cols + (double)eps);
    for (int c = 0; c < cols; c++) x[c] = (x[c] + sum[c] * by * last[c]) * scale;
}

static void check_normed(const normed_case *k, test_rng *rng)
{
    const size_t cols = (size_t)k->cols, all = (size_t)k->n * cols;
    case_begin("%d tokens of %d, %d parts, norms %d %d, scale %g%s%s", k->n, k->cols,
               1 + k->second, k->own[0], k->own[1], (double)k->scale,
               k->itself ? ", clears itself" : k->clear ? ", clears" : "", k->off ? ", off" : "");
    float *x = host_floats(all, 3.0f, rng), *last = gain_make(k->cols, rng);
    /* of different sizes: it shows whether each is divided by its own */
    float *part[2] = { host_floats(all, 40.0f, rng),
                       k->second ? host_floats(all, 0.2f, rng) : NULL };
    float *gain[2] = { k->own[0] ? gain_make(k->cols, rng) : NULL,
                       k->own[1] ? gain_make(k->cols, rng) : NULL };
    float *want = host_room(all, sizeof *want);
    double *row = host_room(cols, sizeof *row);

    float *first = vram_off(part[0], all, k->off);
    float *cleared = k->itself ? first : vram_off(x, all, k->off);
    const gpu_normed a = {
        .x = vram_off(x, all, k->off),
        .part = { first, part[1] ? vram_off(part[1], all, k->off) : NULL },
        .part_gain = { gain[0] ? vram_off(gain[0], cols, k->off) : NULL,
                       gain[1] ? vram_off(gain[1], cols, k->off) : NULL },
        .gain = vram_off(last, cols, k->off), .eps = eps, .scale = k->scale,
        .clear = k->clear ? cleared : NULL, .n = k->n, .cols = k->cols,
    };
    gpu_add_normed(device(), &a);
    for (size_t t = 0; t < (size_t)k->n; t++) {
        const int mark = host_mark();
        const float *own[2] = { part[0] + t * cols, part[1] ? part[1] + t * cols : NULL };
        for (size_t c = 0; c < cols; c++) row[c] = x[t * cols + c];
        expect_token(row, own, (const float *const *)gain, last, k->cols, k->scale);
        for (size_t c = 0; c < cols; c++) want[t * cols + c] = (float)row[c];
        host_drop(mark);
    }
    expect_rows_close("x", host_copy(a.x, all), want, (size_t)k->n, cols, 1e-6);
    const float *left = host_copy(cleared, all);
    expect_bits("what is to be cleared", left, k->clear ? host_room(all, sizeof *left) : x, all);
    if (!k->itself) expect_bits("the first part", host_copy(first, all), part[0], all);
    case_end();
}

static void test_normed(void)
{
    static const int widths[] = { 1, 31, 64, 256, 257, 260, 2816, 2880, 5376, 8192,
                                  8196 };
    static const int tokens[] = { 1, 2, 8, 9, 70 };
    test_rng rng = { 71 };
    family("normed parts");
    for (int i = 0; i < (int)ARRAY_LEN(widths); i++)
        for (int o = 0; o < 6; o++) {
            const normed_case c = { .n = tokens[(i + o) % (int)ARRAY_LEN(tokens)],
                                    .cols = widths[i], .second = o > 1,
                                    .own = { o % 2, o == 3 || o == 4 },
                                    .scale = o % 3 ? 1.0f : 0.6171875f, .clear = o % 2 == 0,
                                    .itself = o % 2 == 0 && i % 2 };
            check_normed(&c, &rng);
            normed_case apart = c;
            apart.off = 1 + o % 3;
            if (c.cols % 4 == 0 && c.cols <= 2816) check_normed(&apart, &rng);
        }
}

/* A token has the same bits in any batch, and by any kernel: of sums in double nothing is left of
 * the order but one rounding in a hundred million. */
static void check_bits(int cols, int n, test_rng *rng)
{
    const size_t wide = (size_t)cols, all = (size_t)n * wide;
    case_begin("%d tokens of %d", n, cols);
    float *x = host_floats(all, 3.0f, rng), *gain = gain_make(cols, rng);
    float *part[2] = { host_floats(all, 40.0f, rng), host_floats(all, 0.2f, rng) };
    const float *want = NULL;
    for (int way = 0; way < 3; way++) {  /* as a batch, off, by tokens */
        const int off = way == 1;
        const float *gains = vram_off(gain, wide, off);
        float *got = vram_off(x, all, off);
        const float *parts[2] = { vram_off(part[0], all, off), vram_off(part[1], all, off) };
        for (int t = 0; t < (way == 2 ? n : 1); t++) {
            const size_t at = (size_t)t * wide;
            const gpu_normed a = {
                .x = got + at, .part = { parts[0] + at, parts[1] + at },
                .part_gain = { gains, gains }, .gain = gains, .eps = eps, .scale = 0.6171875f,
                .n = way == 2 ? 1 : n, .cols = cols,
            };
            gpu_add_normed(device(), &a);
        }
        if (way == 0) want = host_copy(got, all);
        else expect_bits(way == 1 ? "off" : "by tokens", host_copy(got, all), want, all);
    }
    case_end();
}

static void test_bits(void)
{
    static const int widths[] = { 64, 260, 2816, 5376, 8192 };
    test_rng rng = { 74 };
    family("bits of normed parts");
    for (int i = 0; i < (int)ARRAY_LEN(widths); i++)
        for (int n = 1; n <= 64; n *= 8) check_bits(widths[i], n, &rng);
}

/* A vector of zeros stays one: eps keeps its norm finite. */
static void test_zeros(void)
{
    enum { COLS = 96 };
    test_rng rng = { 72 };
    family("normed zeros");
    case_begin("both parts");
    float *x = host_floats(COLS, 1.0f, &rng), *gain = gain_make(COLS, &rng);
    float *nothing = vram_floats(host_room(COLS, sizeof *x), COLS);
    const float *gains = vram_floats(gain, COLS);
    const gpu_normed a = { .x = vram_floats(x, COLS), .part = { nothing, nothing },
                           .part_gain = { gains, gains }, .gain = gains, .eps = eps,
                           .scale = 1.0f, .n = 1, .cols = COLS };
    gpu_add_normed(device(), &a);
    expect_bits("x", host_copy(a.x, COLS), x, COLS);
    case_end();
}

static void test_refused(void)
{
    float one[1] = { 1.0f };
    family("no such parts");
    for (int i = 0; i < 4; i++) {
        gpu *other = NULL;
        err_ctx err = { 0 };
        case_begin("%d", i);
        float *v = vram_floats(one, 1);
        gpu_normed a = { .x = v, .part = { v }, .gain = v, .scale = 1.0f, .n = 1, .cols = 1 };
        if (i == 0) a.n = 0;
        if (i == 1) a.part[0] = NULL;
        if (i == 2) a.gain = NULL;
        if (i == 3) a.part_gain[1] = v;
        if (expect(gpu_open(&other, 0, &err) == 0, "%s", err.msg)) {
            gpu_add_normed(other, &a);
            expect(gpu_wait(other, &err) < 0, "not refused");
            gpu_close(other);
        }
        case_end();
    }
}

/* The bits of the CPU, small logits and large ones, and what no model should give. */
static void test_cap(void)
{
    static const int sizes[] = { 1, 255, 5000, 262144 };
    static const float special[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e30f, -1e30f, 1e-30f };
    test_rng rng = { 73 };
    family("capped logits");
    for (int i = 0; i < (int)ARRAY_LEN(sizes); i++) {
        const size_t n = (size_t)sizes[i];
        case_begin("%zu", n);
        float *x = host_floats(n, i % 2 ? 200.0f : 20.0f, &rng);
        for (size_t c = 0; c < ARRAY_LEN(special) && c < n; c++) x[n - 1 - c] = special[c];
        float *y = vram_floats(x, n);
        gpu_soft_cap(device(), y, n, 30.0f);
        ops_soft_cap(contract_ops(), x, (int64_t)n, 30.0f);
        expect_bits("capped", host_copy(y, n), x, n);
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu normed", argc, argv);
    if (device_open()) {
        test_normed();
        test_bits();
        test_zeros();
        test_refused();
        test_cap();
        device_close();
    }
    return test_end();
}
