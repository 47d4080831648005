/* cache_policy.h - which expert of a full cache makes room: the one of least value.
 *
 * LRU   the one that was used longest ago. Uses within a token count in their order.
 * LCP   least cache priority: frequency * 0.25^(age / 128), age in tokens since the last use. All
 *       experts age alike, so their order changes with uses alone, and the value here is
 *       log2(frequency) + last / 64: it need not be computed again as time passes, and is never too
 *       small for a double.
 * FADE  frequency * 0.5^(age / 128), and the next use is added to what is left by then. So every
 *       use fades alike, and the frequency tells how popular an expert is of late; with LCP the
 *       next use revives all that ever were. The value here is log2(frequency) + last / 128.
 *
 * What was used long ago must not stay forever because it was used often then: all frequencies are
 * halved every CACHE_HALVE tokens. All at once, so at that moment no two experts change places. */
#ifndef MOE_CACHE_POLICY_H
#define MOE_CACHE_POLICY_H

#include "loader/base.h"

typedef enum cache_policy {
    CACHE_LRU, CACHE_LCP, CACHE_FADE, CACHE_POLICIES
} cache_policy;

const char *cache_policy_name(cache_policy p);           /* "lru", "lcp", "fade" */
bool cache_policy_named(cache_policy *out, const char *name);    /* false: no such policy */

/* Time runs in tokens, and within a token in steps, one for each use. (More uses than that borrow
 * from the next token: their order is right all the same.) It begins so late that any age an int
 * can hold lies after 0, and values made of it are exact for 2^36 tokens, some decades. */
#define CACHE_BEGIN ((int64_t)1 << 31)   /* the first token */
enum {
    CACHE_STEPS = 1 << 16,
    CACHE_NEVER = -1,                    /* a time before all others */
    CACHE_HALVE = 1 << 14                /* a guess: a long conversation or two */
};

/* What is known of an expert, whether it is in the cache or not. */
typedef struct cache_history {
    double frequency;                    /* how often it was used; FADE: what is left of that ... */
    int64_t when;                        /* ... the last time: token * CACHE_STEPS + step */
} cache_history;

/* Notes n uses, not before the last one. */
void cache_policy_use(cache_policy p, cache_history *h, int64_t when, int n);

/* Larger stays longer; of equal values the later use does. Finite, so that an empty place can be
 * worth less than any expert. */
double cache_policy_value(cache_policy p, const cache_history *h);

/* How much more one value is than another, as of now: in uses; LRU: in tokens. INFINITY if the
 * other is an empty place's, or with LCP and FADE that of an expert that was never used. */
double cache_policy_gain(cache_policy p, double value, double other, int64_t now);

/* The gain that is worth a copy over the bus. FADE's uses are those of the last two hundred tokens
 * or so: with fewer of them, experts of about the same popularity replace each other all the time;
 * with more, a cache that begins with the wrong ones learns slowly. From 2 to 3 it hardly
 * matters. */
double cache_policy_margin(cache_policy p);

#endif
