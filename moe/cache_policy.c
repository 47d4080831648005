/* cache_policy.c - names of the policies, and one formula for each.
 *
 * Which expert may be evicted at all is kept by expert_cache.c. */
#include "moe/cache_policy.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Halvings of what an expert is worth. 0.25 = 2^-2. */
static const double per_token[CACHE_POLICIES] = {
    [CACHE_LCP] = 2.0 / 128, [CACHE_FADE] = 1.0 / 128,
};

static const double margins[CACHE_POLICIES] = {
    [CACHE_LCP] = 1, [CACHE_FADE] = 2.5,
};

static const char *const names[CACHE_POLICIES] = { "lru", "lcp", "fade" };

const char *cache_policy_name(cache_policy p) { return names[p]; }

bool cache_policy_named(cache_policy *out, const char *name)
{
    for (int i = 0; i < CACHE_POLICIES; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (cache_policy)i;
        return true;
    }
    return false;
}

/* Of a time, in tokens from the first one on. */
static double tokens(int64_t when)
{
    return (double)when / CACHE_STEPS - (double)CACHE_BEGIN;
}

/* The same, whole ones alone. */
static double whole_tokens(int64_t when) { return (double)(when / CACHE_STEPS - CACHE_BEGIN); }

static double aging(cache_policy p, const cache_history *h)
{
    if (h->frequency <= 0) return -DBL_MAX;
    return log2(h->frequency) + per_token[p] * whole_tokens(h->when);
}

void cache_policy_use(cache_policy p, cache_history *h, int64_t when, int n)
{
    if (p == CACHE_FADE && h->frequency > 0)
        h->frequency *= exp2(per_token[p] * (whole_tokens(h->when) - whole_tokens(when)));
    h->frequency += n;
    h->when = when;
}

double cache_policy_value(cache_policy p, const cache_history *h)
{
    return p == CACHE_LRU ? tokens(h->when) : aging(p, h);
}

double cache_policy_gain(cache_policy p, double value, double other, int64_t now)
{
    const double faded = per_token[p] * whole_tokens(now);
    if (other <= -DBL_MAX) return INFINITY;
    return per_token[p] > 0 ? exp2(value - faded) - exp2(other - faded) : value - other;
}

double cache_policy_margin(cache_policy p) { return margins[p]; }
