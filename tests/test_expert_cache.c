/* test_expert_cache.c - the policies by hand: which expert is evicted, what a value means, and seeds
 * of any kind. test_frame_table.c walks at random through frames over this cache. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/expert_cache.h"
#include "tests/test.h"

static expert_cache *make(cache_policy p, int n_expert, int n_frame)
{
    const cache_shape s = { .n_layer = 1, .n_expert = n_expert, .n_pool = 1,
                            .n_frame = { n_frame }, .policy = p };
    expert_cache *c = NULL;
    CHECK(expert_cache_create(&c, &s, NULL) == 0);
    return c;
}

/* Uses experts of layer 0 one after the other; returns the expert that the last one evicted. */
static int touch(expert_cache *c, const char *experts)
{
    int evicted = -1;
    for (; *experts; experts++) {
        bool was_present;
        expert_cache_release(c, expert_cache_hold(c, 0, *experts - 'a', &was_present, &evicted));
    }
    return evicted < 0 ? '-' : 'a' + evicted;
}

static void test_evictions(void)
{
    static const struct {
        cache_policy p;
        int n_frame;
        const char *uses;
        int gone;
        const char *why;
    } rows[] = {
        { CACHE_LRU, 3, "abcad", 'b', "oldest" },
        { CACHE_LCP, 3, "aabbcd", 'c', "used once" },
        { CACHE_LCP, 3, "aabbccd", 'a', "of equals the oldest" },
        { CACHE_LCP, 2, "aabcbd", 'a', "b was used before it came back" },
        { CACHE_LCP, 2, "aabcbde", 'd', "which was not" },
        { CACHE_LCP, 3, "aabcd", 'b', "within a token: by frequency, then age" },
        { CACHE_FADE, 3, "aabcd", 'b', "the same" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        expert_cache *c = make(rows[i].p, 8, rows[i].n_frame);
        const int gone = c ? touch(c, rows[i].uses) : 0;
        CHECK_MSG(gone == rows[i].gone, "%s %s: %c is gone, not %c: %s",
                  cache_policy_name(rows[i].p), rows[i].uses, gone, rows[i].gone, rows[i].why);
        expert_cache_free(c);
    }
}

/* Transient experts are evicted first, those with the fewest slots before others. */
static void test_transient(void)
{
    static const struct { int expert, n, gone; } rows[] = {
        { 'a', 0, '-' }, { 'b', 9, '-' }, { 'c', 2, '-' },
        { 'd', 4, 'c' }, { 'e', 3, 'd' }, { 'f', 8, 'e' },
        { 'b', 0, '-' },                 /* a token uses it: stays */
        { 'g', 0, 'f' },                 /* the last transient one */
        { 'h', 1, 'a' },                 /* the oldest of the others */
        { 'a', 7, 'h' }, { 'i', 0, 'a' }, { 'j', 0, 'b' },
    };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        expert_cache *c = make((cache_policy)p, 10, 3);
        for (size_t i = 0; c && i < ARRAY_LEN(rows); i++) {
            int evicted;
            bool was_present;
            const int e = rows[i].expert - 'a';
            if (p != CACHE_LRU && i > 7) break;  /* others keep another one */
            const int frame = expert_cache_hold(c, 0, e, &was_present, &evicted);
            expert_cache_set_transient(c, frame, rows[i].n);
            CHECK(expert_cache_is_transient(c, frame) == (rows[i].n > 0));
            expert_cache_release(c, frame);
            CHECK_MSG((evicted < 0 ? '-' : 'a' + evicted) == rows[i].gone,
                      "%s, row %d: %d is gone", cache_policy_name((cache_policy)p), (int)i,
                      evicted);
        }
        expert_cache_free(c);
    }
}

/* Uses fade with the tokens since: after `ticks` tokens, 4 uses are worth 1. */
static void test_values(void)
{
    static const struct { cache_policy p; int ticks; double last; } rows[] = {
        { CACHE_LCP, 128, 2 }, { CACHE_FADE, 256, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        expert_cache *c = make(rows[i].p, 4, 4);
        if (!c) return;
        touch(c, "aaaa");
        for (int t = 0; t < rows[i].ticks; t++) expert_cache_tick(c);
        touch(c, "bcc");
        CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 1));
        CHECK(expert_cache_value(c, 0, 2) == expert_cache_value(c, 0, 1) + 1);
        expert_cache_seed(c, 0, 3, 16, 2 * rows[i].ticks);
        CHECK(expert_cache_value(c, 0, 3) == expert_cache_value(c, 0, 1));
        touch(c, rows[i].p == CACHE_LCP ? "aaaa" : "a");         /* earlier uses count again */
        CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 2) + rows[i].last);
        expert_cache_free(c);
    }
}

/* In uses as of now, whatever the values are made of. */
static void test_gain(void)
{
    for (int p = CACHE_LCP; p < CACHE_POLICIES; p++) {
        expert_cache *c = make((cache_policy)p, 4, 4);
        if (!c) return;
        expert_cache_seed(c, 0, 0, 12, 0);
        expert_cache_seed(c, 0, 1, 4, 0);
        const double a = expert_cache_value(c, 0, 0), b = expert_cache_value(c, 0, 1);
        const double never = expert_cache_value(c, 0, 2);
        CHECK(expert_cache_gain(c, a, b) == 8 && expert_cache_gain(c, b, a) == -8);
        CHECK(expert_cache_gain(c, a, never) == INFINITY);
        CHECK(expert_cache_gain(c, a, -INFINITY) == INFINITY);
        for (int i = 0; i < 256; i++) expert_cache_tick(c);
        CHECK(expert_cache_gain(c, a, b) == (p == CACHE_LCP ? 0.5 : 2));
        expert_cache_free(c);
    }
}

static void test_odd_seeds(void)
{
    static const struct { double frequency; int age; } odd[] = {
        { NAN, 0 }, { -1, 5 }, { INFINITY, INT_MAX }, { DBL_MAX, -7 }, { DBL_MIN, INT_MAX },
    };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        expert_cache *c = make((cache_policy)p, 8, 4);
        if (!c) return;
        for (int i = 0; i < (int)ARRAY_LEN(odd); i++) {
            double value = NAN;
            expert_cache_seed(c, 0, i, odd[i].frequency, odd[i].age);
            CHECK_MSG(isfinite(expert_cache_value(c, 0, i)), "%s: seed %d",
                      cache_policy_name((cache_policy)p), i);
            if (i >= 4) break;
            const int frame = expert_cache_weakest(c, 0, &value);
            CHECK(value == -INFINITY && expert_cache_assign(c, frame, 0, i) == -1);
        }
        CHECK_MSG(touch(c, "h") < 'c', "%s: not one that was never used",
                  cache_policy_name((cache_policy)p));
        const double before = expert_cache_value(c, 0, 7);
        expert_cache_seed(c, 0, 6, 1e300, 0);
        CHECK(p == CACHE_LRU || expert_cache_value(c, 0, 6) > before);
        const double seeded = expert_cache_value(c, 0, 6);
        expert_cache_use(c, 0, 6);
        CHECK_MSG(expert_cache_value(c, 0, 6) > seeded, "%s: a use counts for nothing",
                  cache_policy_name((cache_policy)p));
        expert_cache_free(c);
    }
}

/* A token with more uses than steps, then so many tokens that every frequency is halved away: age
 * alone is left. */
static void test_days(void)
{
    static const char gone[CACHE_POLICIES][4] = { "abc", "cda", "cda" };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        const char *name = cache_policy_name((cache_policy)p);
        expert_cache *c = make((cache_policy)p, 8, 4);
        if (!c) return;
        for (int i = 0; i < 3 * CACHE_STEPS; i++) touch(c, i % 2 ? "b" : "a");
        expert_cache_tick(c);
        const int first = touch(c, "cde"), second = touch(c, "f");
        CHECK_MSG(first == gone[p][0] && second == gone[p][1], "%s, many uses in a token: %c and "
                  "%c are gone", name, first, second);
        for (long i = 0; i < 1100L * CACHE_HALVE; i++) expert_cache_tick(c);
        const int third = touch(c, "g");
        CHECK_MSG(third == gone[p][2], "%s, after days: %c is gone", name, third);
        touch(c, "h");
        for (int e = 0; e < 8; e++)
            CHECK_MSG(isfinite(expert_cache_value(c, 0, e)), "%s: expert %d after days", name, e);
        CHECK_MSG(expert_cache_value(c, 0, 6) > expert_cache_value(c, 0, 4) &&
                  expert_cache_value(c, 0, 7) > expert_cache_value(c, 0, 4),
                  "%s: what was used days ago is worth more", name);
        expert_cache_free(c);
    }
}

/* Whatever happens, the weakest frame is one of least value among those that are neither held nor
 * pinned, and a miss takes it. */
static void test_weakest(cache_policy p)
{
    enum { EXPERTS = 24, FRAMES = 10 };
    expert_cache *c = make(p, EXPERTS, FRAMES);
    int n_hold[FRAMES] = { 0 }, n_bad = 0;
    test_rng rng = { 11 + p };
    mem_guard(true);
    for (int n = c ? test_rounds(20000, 2000) : 0; n > 0; n--) {
        const int e = (int)test_below(&rng, EXPERTS), f = (int)test_below(&rng, FRAMES);
        double least = NAN, value = NAN;
        int evicted;
        bool was_present;
        for (int i = 0; i < FRAMES; i++) {
            const int owner = expert_cache_owner(c, i);
            if (n_hold[i] == 0 && (owner < 0 || !expert_cache_is_pinned(c, 0, owner)))
                least = fmin(least, owner < 0 ? -INFINITY : expert_cache_value(c, 0, owner));
        }
        const int weakest = expert_cache_weakest(c, 0, &value);
        n_bad += (weakest < 0) != isnan(least) || (weakest >= 0 && value != least);
        switch (test_below(&rng, 7)) {
        case 0: expert_cache_use_many(c, 0, e, 1 + (int)test_below(&rng, 3)); break;
        case 1: expert_cache_seed(c, 0, e, test_below(&rng, 160), 25 * f); break;
        case 2: expert_cache_pin(c, 0, e, test_below(&rng, 4) == 0); break;
        case 3: for (int i = 0; i < (n % 50 ? 1 : CACHE_HALVE); i++) expert_cache_tick(c); break;
        case 4: if (n_hold[f] == 0) expert_cache_drop(c, f); break;
        case 5: if (n_hold[f] > 0) n_hold[f]--, expert_cache_release(c, f); break;
        default: {
            const int before = expert_cache_find(c, 0, e);
            const int frame = expert_cache_hold(c, 0, e, &was_present, &evicted);
            n_bad += frame != (before >= 0 ? before : weakest) || was_present != (before >= 0);
            if (frame >= 0) n_hold[frame]++;
        }
        }
    }
    mem_guard(false);
    CHECK_MSG(n_bad == 0, "%s: %d times another than the weakest", cache_policy_name(p), n_bad);
    expert_cache_free(c);
}

static void test_names(void)
{
    static const char *const wrong[] = { "", "LRU", "lr", "lrus", "belady" };
    cache_policy p = CACHE_LCP;
    for (int i = 0; i < CACHE_POLICIES; i++)
        CHECK(cache_policy_named(&p, cache_policy_name((cache_policy)i)) && (int)p == i);
    p = CACHE_LCP;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        CHECK(!cache_policy_named(&p, wrong[i]) && p == CACHE_LCP);
}

static void test_failures(void)
{
    const cache_shape s = { .n_layer = 3, .n_expert = 5, .n_pool = 2, .n_frame = { 1, 3 } };
    for (long fail = 1; fail < 10; fail++) {
        expert_cache *c = NULL;
        err_ctx err = { 0 };
        mem_fail_after(fail);
        const int rc = expert_cache_create(&c, &s, &err);
        mem_fail_after(0);
        CHECK((rc == 0) == (c != NULL) && (rc == 0 || (rc == ERR_NOMEM && err.msg[0])));
        expert_cache_free(c);
        if (rc == 0) return;
    }
    CHECK_MSG(false, "never made");
}

int main(int argc, char **argv)
{
    test_begin("expert_cache", argc, argv);
    test_names();
    test_evictions();
    test_transient();
    test_values();
    test_gain();
    test_odd_seeds();
    test_days();
    for (int p = 0; p < CACHE_POLICIES; p++) test_weakest((cache_policy)p);
    test_failures();
    expert_cache_free(NULL);
    return test_end();
}
