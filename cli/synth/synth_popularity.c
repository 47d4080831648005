/* synth_popularity.c - shares by rank, latches and what reads them.
 *
 * A latch of attention. Its query is constant. In one dimension, whose rotation is too slow to
 * matter, the query is large: each token has a score of its own, normal with standard deviation
 * CONTRAST. The other pairs of dimensions have constant keys as well and take r(d) off the score of
 * a token that is d tokens back: the sum of A_i (1 - cos(f_i d)) over their frequencies f_i. With
 * A_i proportional to 1 / f_i, and to how far apart the logarithms of neighbouring frequencies are,
 * this is a straight line, because the integral of (1 - cos(f d)) / f^2 over all f is pi d / 2. For
 * frequencies below 1 / (REACH T) A_i grows no further: the line has come far enough by then.
 *
 * The largest of many normal scores are distributed like the logarithm of an exponential, times s =
 * CONTRAST / (their usual height). For such scores with a line of slope s / T the largest is the
 * same one as t tokens before with probability exp(-t / T) exactly; simulated with the scores and
 * frequencies of gpt-oss: 0.30 to 0.42 at t = T, for T of 16 to 16,384. */
#include "cli/synth/synth_popularity.h"

#include <math.h>
#include <string.h>

#define CONTRAST 16.0
#define REACH 8.0
#define KEY 16.0                         /* bias of keys: large against what a token adds to it */

static const double pi = 3.14159265358979323846;

/* ---- skew -------------------------------------------------------------------------------- */

void synth_shares(double *share, int n_expert, int n_used, double skew)
{
    const double most = 0.95;
    double rest = 0, factor = 0;
    int full = 0;                        /* ranks that want more than most get just that */

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

/* ---- latches ----------------------------------------------------------------------------- */

/* Mean of sigmoid(spread * g + mean), g standard normal. */
static double mean_sigmoid(double spread, double mean)
{
    const double step = 0.01;
    double sum = 0;
    for (int i = -800; i <= 800; i++) {
        const double g = i * step;
        sum += exp(-g * g / 2) / (1 + exp(-spread * g - mean));
    }
    return sum * step / sqrt(2 * pi);
}

double synth_latch_mean(double spread, double tokens)
{
    double lo = -10 * spread - 10, hi = 0;
    for (int i = 0; i < 50; i++) {
        const double mid = (lo + hi) / 2;
        if (mean_sigmoid(spread, mid) < 1 / tokens) lo = mid;
        else hi = mid;
    }
    return lo;
}

void synth_latch_biases(float *q, float *k, int latch, const rope_spec *rope, int dim,
                        double tokens)
{
    const int half = rope->dim / 2, n_line = half - (DRIFT_LATCHES + 1) / 2;
    const double s = CONTRAST / synth_quantile(1 / (1.3 * tokens));
    double freq[DRIFT_DIM_MAX / 2], magnitude;

    rope_frequencies(freq, &magnitude, rope);
    const double to_query = sqrt(dim) / (magnitude * magnitude);
    memset(q, 0, (size_t)dim * sizeof *q);
    memset(k, 0, (size_t)dim * sizeof *k);
    q[n_line + latch / 2 + latch % 2 * half] = (float)(CONTRAST * to_query);
    for (int i = 0; i < n_line; i++) {
        const double above = freq[i > 0 ? i - 1 : 0], below = freq[i + 1];
        const double width = log(above / below) / (i > 0 ? 2 : 1);
        const double a = 2 / pi * s * width * fmin(REACH, 1 / (freq[i] * tokens));
        q[i] = (float)(a * to_query / KEY);
        k[i] = (float)KEY;
    }
}

/* ---- readers ----------------------------------------------------------------------------- */

/* held * held^T, factored in place into a lower triangle times its transpose. */
static bool factor_products(double *m, const float *held)
{
    const int n = DRIFT_HELD;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int c = 0; c < DRIFT_COLS; c++)
                sum += (double)held[i * DRIFT_COLS + c] * (double)held[j * DRIFT_COLS + c];
            for (int k = 0; k < j; k++) sum -= m[i * n + k] * m[j * n + k];
            if (i == j && !(sum > 0)) return false;
            m[i * n + j] = i == j ? sqrt(sum) : sum / m[j * n + j];
        }
    return true;
}

/* Column by column of the inverse of the products, times held. */
bool synth_latch_readers(float *readers, const float *held)
{
    const int n = DRIFT_HELD;
    double m[DRIFT_HELD * DRIFT_HELD], x[DRIFT_HELD];

    if (!factor_products(m, held)) return false;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < n; i++) {
            x[i] = i == r;
            for (int k = 0; k < i; k++) x[i] -= m[i * n + k] * x[k];
            x[i] /= m[i * n + i];
        }
        for (int i = n - 1; i >= 0; i--) {
            for (int k = i + 1; k < n; k++) x[i] -= m[k * n + i] * x[k];
            x[i] /= m[i * n + i];
        }
        for (int c = 0; c < DRIFT_COLS; c++) {
            double sum = 0;
            for (int i = 0; i < n; i++) sum += x[i] * (double)held[i * DRIFT_COLS + c];
            readers[r * DRIFT_COLS + c] = (float)sum;
        }
    }
    return true;
}
