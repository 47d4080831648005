/* synth_popularity.c - shares by rank, and quantiles of the normal distribution. */
#include "cli/synth/synth_popularity.h"

#include <math.h>

void synth_shares(double *share, int n_expert, int n_used, double skew)
{
    const double most = 0.95;
    double rest = 0, factor = 0;
    int full = 0;                        /* ranks whose share is capped at most */

    for (int r = 0; r < n_expert; r++) rest += share[r] = pow(r + 1, -skew);
    for (; full < n_expert; full++) {
        factor = (n_used - full * most) / rest;
        if (factor * share[full] <= most) break;
        rest -= share[full];
        share[full] = most;
    }
    for (int r = full; r < n_expert; r++) share[r] *= factor;
}

double synth_quantile(double p)
{
    double lo = -9, hi = 9;
    for (int i = 0; i < 60; i++) {
        const double mid = (lo + hi) / 2;
        if (0.5 * erfc(mid / sqrt(2.0)) > p) lo = mid;
        else hi = mid;
    }
    return lo;
}
