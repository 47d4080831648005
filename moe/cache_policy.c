/* cache_policy.c - names of the policies, and one formula for each.
 *
 * Who is privileged, and who may go at all, is kept by expert_cache.c. */
#include "moe/cache_policy.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const char *const names[CACHE_POLICIES] = { "lru", "lfu", "lfru", "lcp" };

const char *cache_policy_name(cache_policy p) { return p < CACHE_POLICIES ? names[p] : "usual"; }

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

static double lcp(const cache_history *h)
{
    const double per_token = 2.0 / 128;  /* 0.25 = 2^-2 */
    if (h->frequency <= 0) return -DBL_MAX;
    return log2(h->frequency) + per_token * (double)(h->when / CACHE_STEPS - CACHE_BEGIN);
}

double cache_policy_value(cache_policy p, const cache_history *h, bool privileged)
{
    const double above_all = 0x1p35;     /* frequencies; a sum with a time is still exact */
    switch (p) {
    case CACHE_LFU: return h->frequency;
    case CACHE_LFRU: return privileged ? above_all + tokens(h->when) : h->frequency;
    case CACHE_LCP: return lcp(h);
    default: return tokens(h->when);
    }
}
