/* test_logit_stats.c - likelihoods and divergences of rows whose probabilities are known. */
#include "cli/cost/logit_stats.h"

#include <math.h>
#include <stdio.h>

#include "tests/test.h"

enum { N = 4 };

/* Logits are logarithms of shares, with something added to all of them that must not matter. */
static void logits_of(float *row, const double *shares, double add)
{
    for (int c = 0; c < N; c++) row[c] = (float)(log(shares[c]) + add);
}

static const struct { double p[N], q[N], kl; const char *why; } rows[] = {
    { { 0.25, 0.25, 0.25, 0.25 }, { 0.25, 0.25, 0.25, 0.25 }, 0, "even" },
    { { 0.1, 0.2, 0.3, 0.4 }, { 0.1, 0.2, 0.3, 0.4 }, 0, "equal" },
    { { 0.5, 0.5, 0, 0 }, { 0.25, 0.25, 0.25, 0.25 }, 0.69314718056, "log 2: two of four" },
    { { 1, 0, 0, 0 }, { 0.125, 0.5, 0.25, 0.125 }, 2.07944154168, "log 8: one, had an eighth" },
    { { 0.75, 0.25, 0, 0 }, { 0.25, 0.75, 0, 0 }, 0.54930614433, "log 3 / 2: the wrong way round" },
    { { 0.25, 0.25, 0.25, 0.25 }, { 0.5, 0.5, 0, 0 }, INFINITY, "what cannot be does happen" },
};

int main(int argc, char **argv)
{
    test_begin("logit_stats", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        float p[N], q[N];
        logits_of(p, rows[i].p, 3);
        logits_of(q, rows[i].q, -90);
        const double kl = logit_stats_kl(p, q, N);
        CHECK_MSG(kl == rows[i].kl || fabs(kl - rows[i].kl) < 1e-5, "%s: %.9g", rows[i].why, kl);
        CHECK_MSG(logit_stats_kl(p, p, N) == 0 && logit_stats_kl(q, q, N) == 0, "%s: of itself",
                  rows[i].why);
        for (int c = 0; c < N; c++) {
            const double want = -log(rows[i].p[c]), nll = logit_stats_nll(p, N, c);
            CHECK_MSG(nll == want || fabs(nll - want) < 1e-5, "%s: nll %.9g", rows[i].why, nll);
        }
    }
    /* far apart: no sum overflows, and none of them is of zeros alone */
    const float far[N] = { 30000, -30000, 29999, 0 }, near[N] = { 1, 0, 0, 0 }, bad[N] = { NAN };
    CHECK(isfinite(logit_stats_kl(far, near, N)) && fabs(logit_stats_nll(far, N, 1) - 60000) < 1);
    CHECK(isnan(logit_stats_kl(near, bad, N)) && isnan(logit_stats_kl(bad, near, N)));
    return test_end();
}
