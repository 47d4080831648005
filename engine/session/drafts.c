/* drafts.c - lookup drafts, and the choice of their number. */
#include "engine/session/drafts.h"

#include <math.h>
#include <string.h>

enum {
    LONGEST = 32,                        /* equal tokens that count */
    STALE = 512,                         /* passes after which a time is measured again; */
    STALE_SINGLE = 128,                  /* that of single tokens, by which all drafts are judged */
    FREE_MISSES = 2,                     /* without a wait, once a draft was right */
    LONGEST_WAIT = 6                     /* 63 passes, as a power of 2 */
};
static const double WEIGHT = 1.0 / 8;    /* of a new figure in the running ones */
static const double OLD_WEIGHT = 1.0 / 2;
static const double LATE = 1.5;          /* times the mean: a measurement counts as no more */
static const double TOKEN_COST = 0.1;    /* assumed cost of a further token, in single ones */
static const double PROBE_RIGHT = 0.5;   /* least share of right ones that a first draft assumes */

/* ---- lookup ---------------------------------------------------------------------------------- */

static int common_end(const int32_t *a, const int32_t *b, int most)
{
    int n = 0;
    while (n < most && a[-1 - n] == b[-1 - n]) n++;
    return n;
}

/* Of equally long repetitions the latest. */
int draft_lookup(void *ctx, int32_t *out, int most, const int32_t *ids, int n)
{
    int best = DRAFT_LOOKUP_LEAST - 1, end = 0;
    (void)ctx;
    for (int i = n - 1; i > best; i--) {
        if (ids[i - 1] != ids[n - 1]) continue;
        const int same = common_end(ids + i, ids + n, i < LONGEST ? i : LONGEST);
        if (same <= best) continue;
        best = same;
        end = i;
        if (best == LONGEST) break;
    }
    const int found = end == 0 ? 0 : n - end < most ? n - end : most;
    memcpy(out, ids + end, (size_t)found * sizeof *out);
    return found;
}

const draft_source draft_by_lookup = { NULL, draft_lookup };

/* ---- their number ---------------------------------------------------------------------------- */

static bool is_known(const draft_times *t, int n)
{
    return t->n_timed[n] > 1 && (n == 0 || t->age[n] < STALE);
}

/* Seconds of a pass with n drafts and of making them. An unknown time is assumed to be short, so
 * that it gets measured. Drafts that take time themselves are tried with fewer hopes: each further
 * token is assumed to cost as much as those before. */
static double time_of(const draft_control *c, int n)
{
    const draft_times *t = c->times;
    double each = TOKEN_COST * t->pass_s[0];
    if (is_known(t, n)) each = n > 0 ? (t->pass_s[n] - t->pass_s[0]) / n : 0.0;
    else for (int m = 1; c->of_block && m < n; m++)
        if (is_known(t, m)) each = (t->pass_s[m] - t->pass_s[0]) / m;
    return t->pass_s[0] + n * (each + (c->of_block ? t->guess_s : 0.0));
}

/* A single late measurement says little; more where the mean is old. */
static void average(double *mean, double seconds, bool old)
{
    *mean += (old ? OLD_WEIGHT : WEIGHT) * (fmin(seconds, LATE * *mean) - *mean);
}

/* The first pass of a length is not counted: it loads kernels and records them. */
void draft_times_pass(draft_times *t, int n, double seconds)
{
    for (int i = 0; i <= DRAFTS_MOST; i++) t->age[i]++;
    const bool stale = t->age[n] > STALE, old = t->age[n] >= STALE_SINGLE;
    t->age[n] = 0;
    if (t->n_timed[n] == 0) t->n_timed[n] = 1;
    else if (t->n_timed[n] == 1 || stale) t->pass_s[n] = seconds, t->n_timed[n] = 2;
    else average(&t->pass_s[n], seconds, old);
}

void draft_times_guess(draft_times *t, int n, double seconds)
{
    if (n <= 0) return;
    if (t->n_guessed == 1) t->guess_s = seconds / n;
    else if (t->n_guessed > 1) average(&t->guess_s, seconds / n, false);
    t->n_guessed = min_int(t->n_guessed + 1, 2);
}

/* The probability that a draft is right, where those before it are. */
static double share_right(const draft_control *c)
{
    return c->limit == 0 ? fmax(1.0 - c->wrong, PROBE_RIGHT) : 1.0 - c->wrong;
}

double draft_control_rate(const draft_control *c, int n)
{
    const double right = share_right(c);
    double expected = 0.0, reached = 1.0;
    if (c->times->n_timed[0] < 2) return 0.0;
    for (int i = 0; i <= n; i++, reached *= right) expected += reached;
    return expected / time_of(c, n);
}

int draft_control_likely(const draft_control *c, int most)
{
    const double right = share_right(c);
    double reached = right;
    int n = 0;
    if (c->wait > 0) return 0;
    for (; n < most && n <= c->limit && reached >= PROBE_RIGHT; reached *= right) n++;
    return n;
}

int draft_control_choose(const draft_control *c, int most)
{
    double best_rate = 0.0;
    int best = 0;
    if (c->wait > 0 || c->times->n_timed[0] < 2 || c->times->age[0] >= STALE_SINGLE)
        return 0;
    for (int n = 0; n <= most && n <= c->limit + 1; n++) {
        const double rate = draft_control_rate(c, n);
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = n;
    }
    return best;
}

void draft_control_note(draft_control *c, int n, int n_right)
{
    if (n == 0) {
        c->wait -= c->wait > 0;
        return;
    }
    for (int i = 0; i <= n_right && i < n; i++)          /* those after a wrong one are unknown */
        c->wrong += WEIGHT * ((i == n_right) - c->wrong);
    if (n_right > 0) {
        c->was_right = true;
        c->misses = 0;
        c->limit = min_int(n_right < n ? n_right - 1 : 2 * n_right, DRAFTS_MOST - 1);
        return;
    }
    c->misses = min_int(c->misses + 1, LONGEST_WAIT + FREE_MISSES);
    const int power = c->misses - (c->was_right ? FREE_MISSES : -1);
    c->wait = (1 << min_int(max_int(power, 0), LONGEST_WAIT)) - 1;
    c->limit = 0;
}
