/* logit_stats.c - likelihoods and divergences of rows of logits. */
#include "cli/cost/logit_stats.h"

#include <math.h>

/* log(sum(exp(row))) */
static double log_sum(const float *row, int n)
{
    double top = row[0], sum = 0;
    for (int c = 1; c < n; c++) top = row[c] > top ? row[c] : top;
    for (int c = 0; c < n; c++) sum += exp(row[c] - top);
    return log(sum) + top;
}

double logit_stats_nll(const float *row, int n, int32_t id)
{
    return log_sum(row, n) - row[id];
}

double logit_stats_kl(const float *p, const float *q, int n)
{
    const double all_p = log_sum(p, n), all_q = log_sum(q, n);
    double sum = 0;
    for (int c = 0; c < n; c++) {
        const double log_p = p[c] - all_p, share = exp(log_p);
        if (share != 0) sum += share * (log_p - (q[c] - all_q));
    }
    return sum > 0 || isnan(sum) ? sum : 0;      /* rounding may go below 0 by a little */
}
