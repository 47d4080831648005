/* drafts.c - lookup drafts, and the choice of their number. */
#include "engine/session/drafts.h"

#include <math.h>
#include <string.h>

enum {
    LONGEST = 32,                        /* equal tokens that count */
    STALE = 512,                         /* passes after which a time is measured again */
    MOST_MISSES = 8                      /* that make the wait longer */
};
static const double WEIGHT = 1.0 / 8;    /* of a new figure in the running ones */
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

static double running(double old, double now)
{
    if (old == 0.0) return now;
    return old + WEIGHT * (fmin(now, 4.0 * old) - old);  /* a single late pass says little */
}

/* Seconds of a pass with n drafts. An unknown time is assumed to be short, from the shortest known
 * pass, so that it gets measured. */
static double time_of(const draft_control *c, int n)
{
    int known = 0;
    if (c->pass_s[n] > 0.0 && (n == 0 || c->age[n] < STALE)) return c->pass_s[n];
    while (known < DRAFTS_MOST && c->pass_s[known] == 0.0) known++;
    const double one = c->pass_s[known] > 0.0 ? c->pass_s[known] / (1.0 + TOKEN_COST * known) : 1.0;
    return one * (1.0 + TOKEN_COST * n);
}

int draft_control_choose(const draft_control *c, int most)
{
    const double right = c->limit == 0 ? fmax(1.0 - c->wrong, PROBE_RIGHT) : 1.0 - c->wrong;
    double expected = 0.0, reached = 1.0, best_rate = 0.0;
    int best = 0;
    if (c->wait > 0) return 0;
    for (int n = 0; n <= most && n <= c->limit + 1; n++, reached *= right) {
        expected += reached;
        const double rate = expected / time_of(c, n);
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = n;
    }
    return best;
}

void draft_control_note(draft_control *c, int n, int n_right, double seconds)
{
    for (int i = 0; i <= DRAFTS_MOST; i++) c->age[i]++;
    c->pass_s[n] = c->age[n] > STALE ? seconds : running(c->pass_s[n], seconds);
    c->age[n] = 0;
    if (n == 0) {
        c->wait -= c->wait > 0;
        return;
    }
    for (int i = 0; i <= n_right && i < n; i++)          /* those after a wrong one are unknown */
        c->wrong += WEIGHT * ((i == n_right) - c->wrong);
    if (n_right > 0) {
        c->misses = 0;
        c->limit = min_int(n_right < n ? n_right - 1 : 2 * n_right, DRAFTS_MOST - 1);
        return;
    }
    c->misses = min_int(c->misses + 1, MOST_MISSES);
    c->wait = (1 << max_int(c->misses - 2, 0)) - 1;
    c->limit = 0;
}
