/* cache_policy.h - values the experts of a cache; the expert of least value is evicted first.
 *
 * LRU   the time of the last use, with the order of uses within a token.
 * LCP   least cache priority: frequency * 0.25^(age / 128), age in tokens since the last use. All
 *       experts age at the same rate, so their order changes only with uses. The value is stored as
 *       log2(frequency) + last / 64, which needs no update over time and cannot underflow.
 * FADE  the same with 0.5^(age / 128), and a use is added to the faded frequency. So old uses fade,
 *       and the frequency measures recent popularity; with LCP a new use revives all old ones. The
 *       value is stored as log2(frequency) + last / 128.
 *
 * All frequencies are halved every CACHE_HALVE tokens, so that frequent use long ago loses its
 * weight. The halving does not change the order of experts. */
#ifndef MOE_CACHE_POLICY_H
#define MOE_CACHE_POLICY_H

#include "loader/base.h"

typedef enum cache_policy {
    CACHE_LRU, CACHE_LCP, CACHE_FADE, CACHE_POLICIES
} cache_policy;

const char *cache_policy_name(cache_policy p);           /* "lru", "lcp", "fade" */
bool cache_policy_named(cache_policy *out, const char *name);    /* false: no such policy */

/* Time is token * CACHE_STEPS + step, with a step for each use. (Further uses take steps of the
 * next token, which keeps their order.) The clock starts so late that any age of an int is after 0.
 * Values are exact for 2^36 tokens, some decades. */
#define CACHE_BEGIN ((int64_t)1 << 31)   /* the first token */
enum {
    CACHE_STEPS = 1 << 16,
    CACHE_NEVER = -1,                    /* a time before all others */
    CACHE_HALVE = 1 << 14                /* one or two long conversations; not measured */
};

/* The uses of an expert, resident or not. */
typedef struct cache_history {
    double frequency;                    /* number of uses; FADE: faded to the time `when` */
    int64_t when;                        /* time of the last use */
} cache_history;

/* Adds n uses at a time not before the last one. */
void cache_policy_use(cache_policy p, cache_history *h, int64_t when, int n);

/* Of equal values the later use ranks higher. Finite, so that -INFINITY is free for empty
 * frames. */
double cache_policy_value(cache_policy p, const cache_history *h);

/* The difference of two values as of now, in uses; LRU: in tokens. INFINITY if `other` is that of
 * an empty frame, or with LCP and FADE that of an expert that was never used. */
double cache_policy_gain(cache_policy p, double value, double other, int64_t now);

/* The gain from which a copy over the bus pays. FADE counts uses of about the last 200 tokens. With
 * a lower margin, experts of similar popularity replace each other all the time; with a higher one,
 * a cache with the wrong contents adapts slowly. 2 and 3 give nearly the same speed. */
double cache_policy_margin(cache_policy p);

#endif
