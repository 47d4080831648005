/* test_gemm_choice.c - which way a product of some tokens goes: the contract's kernels, ours or the
 * vendor's. */
#include "cuda/gemm_choice.h"

#include <limits.h>
#include <math.h>

#include "tests/test.h"

enum { BIG = 4096 * 2880 };

static const gpu_gemm_rates measured = {              /* equal at 256 tokens */
    { 1e13, 3e13, 6e13, 7e13 }, { 8e12, 3e13, 9e13, 2e14 }
};
static const gpu_gemm_rates alone = { { 1e13, 3e13, 6e13, 7e13 }, { 0 } };
static const gpu_gemm_rates broken = { { 1e13, 3e13, 6e13, 7e13 }, { 8e12, NAN, 9e13, 2e14 } };
static const gpu_gemm_rates none = { { 0 }, { 0 } };

static const struct {
    gpu_gemm_use use;
    int from;
    const gpu_gemm_rates *rates;
    gemm_case c;
    gemm_way want;
    const char *why;
} rows[] = {
    { GPU_GEMM_FASTER, 0, &measured, { 8, BIG, true, 90 }, GEMM_CONTRACT, "few tokens" },
    { GPU_GEMM_FASTER, 0, &measured, { 9, BIG, true, 90 }, GEMM_OWN, "the first that need not" },
    { GPU_GEMM_FASTER, 3, &measured, { 8, BIG, true, 90 }, GEMM_CONTRACT, "few is the least" },
    { GPU_GEMM_FASTER, 64, &measured, { 63, BIG, true, 90 }, GEMM_CONTRACT, "below MOE_FP4_PREFILL_M" },
    { GPU_GEMM_FASTER, 64, &measured, { 64, BIG, true, 90 }, GEMM_OWN, "at MOE_FP4_PREFILL_M" },
    { GPU_GEMM_OWN, 64, &measured, { 63, BIG, true, 90 }, GEMM_CONTRACT, "it is about shapes" },
    { GPU_GEMM_VENDOR, 64, &measured, { 63, BIG, true, 90 }, GEMM_CONTRACT, "in every use" },
    { GPU_GEMM_FASTER, 0, &measured, { 256, BIG, true, 90 }, GEMM_OWN, "a draw is ours" },
    { GPU_GEMM_FASTER, 0, &measured, { 1024, BIG, true, 90 }, GEMM_VENDOR, "measured" },
    { GPU_GEMM_FASTER, 0, &measured, { 1024, BIG, true, 80 }, GEMM_VENDOR, "on any chip" },
    { GPU_GEMM_FASTER, 0, &measured, { 8192, BIG, true, 90 }, GEMM_VENDOR, "past the last point" },
    { GPU_GEMM_FASTER, 0, &measured, { 40, BIG, true, 90 }, GEMM_OWN, "before the first" },
    { GPU_GEMM_FASTER, 0, &measured, { 640, BIG, true, 90 }, GEMM_VENDOR, "between two" },
    { GPU_GEMM_FASTER, 0, &measured, { 260, BIG, true, 90 }, GEMM_OWN, "within noise" },
    { GPU_GEMM_FASTER, 0, &measured, { 4096, 512 * 2047, true, 90 }, GEMM_OWN, "small" },
    { GPU_GEMM_FASTER, 0, &measured, { 4096, 512 * 2048, true, 90 }, GEMM_VENDOR, "large enough" },
    { GPU_GEMM_FASTER, 0, &measured, { 4096, BIG, false, 90 }, GEMM_OWN, "it cannot, or is not" },
    { GPU_GEMM_FASTER, 0, &alone, { 8192, BIG, true, 90 }, GEMM_OWN, "was not there to measure" },
    { GPU_GEMM_FASTER, 0, &broken, { 8192, BIG, true, 90 }, GEMM_OWN, "not a speed" },
    { GPU_GEMM_FASTER, 0, &none, { 511, BIG, true, 90 }, GEMM_OWN, "assumed: too few" },
    { GPU_GEMM_FASTER, 0, &none, { 512, BIG, true, 90 }, GEMM_VENDOR, "assumed" },
    { GPU_GEMM_FASTER, 0, &none, { 4096, BIG, true, 89 }, GEMM_OWN, "assumed: an older chip" },
    { GPU_GEMM_OWN, 0, &measured, { 8192, BIG, true, 90 }, GEMM_OWN, "deterministic: no speeds" },
    { GPU_GEMM_OWN, 0, &none, { 8192, BIG, true, 120 }, GEMM_OWN, "nor assumptions" },
    { GPU_GEMM_VENDOR, 0, &measured, { 9, 32, true, 75 }, GEMM_VENDOR, "wherever it can" },
    { GPU_GEMM_VENDOR, 0, &measured, { 9, BIG, false, 90 }, GEMM_OWN, "and only there" },
};

static const char *const names[] = { "contract", "own", "vendor" };

static void test_choice(void)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const gpu_gemm how = { rows[i].use, rows[i].from, *rows[i].rates };
        const gemm_way got = gemm_choose(&how, &rows[i].c);
        CHECK_MSG(got == rows[i].want, "%s (%d tokens): %s instead of %s", rows[i].why,
                  rows[i].c.n, names[got], names[rows[i].want]);
    }
}

/* More tokens never take less time, and points are met. */
static void test_time(void)
{
    static const int at[GPU_GEMM_POINTS] = GPU_GEMM_TOKENS;
    double before = 0;
    for (int i = 0; i < GPU_GEMM_POINTS; i++) {
        const double want = at[i] / measured.vendor[i];
        CHECK_MSG(fabs(gemm_time(measured.vendor, at[i]) - want) < 1e-9 * want, "point %d", i);
    }
    for (int n = 1; n < 10000; n++) {
        const double now = gemm_time(measured.vendor, n);
        CHECK_MSG(now >= before, "%d tokens take less than %d", n, n - 1);
        before = now;
    }
    CHECK(fabs(gemm_time(measured.own, 8192) / gemm_time(measured.own, 4096) - 2) < 1e-9);
}

/* Memory is kept for the library exactly where a product of that size could be its own. */
static void test_scratch(void)
{
    static const gpu_gemm_rates *const all[] = { &measured, &alone, &broken, &none };
    static const int chunks[] = { 9, 64, 256, 511, 512, 1024, 8192, INT_MAX };
    for (size_t r = 0; r < ARRAY_LEN(all); r++)
        for (size_t k = 0; k < ARRAY_LEN(chunks); k++)
            for (int use = GPU_GEMM_OWN; use <= GPU_GEMM_VENDOR; use++) {
                const gpu_gemm how = { (gpu_gemm_use)use, 0, *all[r] };
                bool any = false;
                for (int n = 9; n <= chunks[k] && n <= 20000 && !any; n++) {
                    const gemm_case c = { n, BIG, true, 90 };
                    any = gemm_choose(&how, &c) == GEMM_VENDOR;
                }
                CHECK_MSG(gemm_may_use_vendor(&how, 90, chunks[k]) == any,
                          "rates %zu, chunks of %d, use %d", r, chunks[k], use);
            }
}

int main(int argc, char **argv)
{
    test_begin("gemm_choice", argc, argv);
    test_choice();
    test_time();
    test_scratch();
    return test_end();
}
