/* test_gemm_choice.c - which way a product of some tokens goes: the contract's kernels, ours or the
 * vendor's. */
#include "cuda/gemm_choice.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"

enum { BIG = 4096 * 2880 };

static const gpu_gemm_rates measured = {              /* equal at 256 tokens */
    { 1e13, 3e13, 6e13, 7e13 }, { 8e12, 3e13, 9e13, 2e14 }
};
static const gpu_gemm_rates alone = { { 1e13, 3e13, 6e13, 7e13 }, { 0 } };
static const gpu_gemm_rates broken = { { 1e13, 3e13, 6e13, 7e13 }, { 8e12, NAN, 9e13, 2e14 } };
static const gpu_gemm_rates none = { { 0 }, { 0 } };

static const gpu_gemm_rates *const all[] = { &measured, &alone, &broken, &none };

static void test_choice(void)
{
    static case_rows rows;
    (void)case_rows_read(&rows, "gemm_choice.txt");
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i], *end;
        const gpu_gemm how = { (gpu_gemm_use)case_word("own faster vendor", cells[0]),
                               atoi(cells[1]),
                               *all[case_word("measured alone broken none", cells[2]) & 3] };
        gemm_case c = { .n = (int)strtol(cells[3], &end, 10) };
        c.weights = strtol(end, &end, 10);
        c.cc = (int)strtol(end, &end, 10);
        c.vendor_fits = strcmp(end, " no") != 0;
        const gemm_way got = gemm_choose(&how, &c);
        CHECK_MSG((int)got == case_word("contract own vendor", cells[4]), "%s (%d tokens): %d, not "
                  "%s", cells[5], c.n, (int)got, cells[4]);
    }
    case_rows_free(&rows);
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
