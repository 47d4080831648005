/* test_expert_cache.c - what must hold after any call, in random walks; and the policies by hand.
 *
 * A walk keeps no second cache. It knows what it has held and pinned, and compares the values that
 * the cache itself reports. What these values are is checked by hand. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/expert_cache.h"
#include "tests/test.h"

enum { MAX_FRAME = 32, MAX_ID = 96, MAX_HOLD = 40 };

/* ---- walks ----------------------------------------------------------------------------------- */

typedef struct walk {
    expert_cache *c;
    cache_shape s;
    int n_id, n_frame;
    int owner[MAX_FRAME], n_hold[MAX_FRAME];     /* owner: as of the last check */
    bool pinned[MAX_ID];
    int holds[MAX_HOLD], n_holds;        /* frames, each as often as it is held */
    test_rng rng;
    const char *why;
} walk;

static int below(walk *w, int n) { return (int)test_below(&w->rng, (uint32_t)n); }
static int layer_of(const walk *w, int id) { return id / w->s.n_expert; }
static int index_of(const walk *w, int id) { return id % w->s.n_expert; }

static int pool_of_id(const walk *w, int id)
{
    return w->s.pool_of ? w->s.pool_of[layer_of(w, id)] : 0;
}

static int pool_of_frame(const walk *w, int frame)
{
    int pool = 0;
    for (int end = w->s.n_frame[0]; frame >= end; end += w->s.n_frame[pool]) pool++;
    return pool;
}

static double value_of(const walk *w, int id)
{
    return id < 0 ? -INFINITY : expert_cache_value(w->c, layer_of(w, id), index_of(w, id));
}

static bool may_go(const walk *w, int frame)
{
    return w->n_hold[frame] == 0 && (w->owner[frame] < 0 || !w->pinned[w->owner[frame]]);
}

/* The least value among frames of the pool that may be taken, or NAN. */
static double least_value(const walk *w, int pool)
{
    double least = NAN;
    for (int f = 0; f < w->n_frame; f++)
        if (pool_of_frame(w, f) == pool && may_go(w, f))
            least = fmin(least, value_of(w, w->owner[f]));
    return least;
}

static void hold(walk *w, int id)
{
    const int pool = pool_of_id(w, id);
    const int before = expert_cache_find(w->c, layer_of(w, id), index_of(w, id));
    const double least = least_value(w, pool);
    bool was_present;
    int evicted;
    const int frame = expert_cache_hold(w->c, layer_of(w, id), index_of(w, id), &was_present,
                                        &evicted);
    if (before < 0 && isnan(least)) {
        CHECK(frame == -1 && !was_present);
        return;
    }
    if (!CHECK(frame >= 0 && frame < w->n_frame && was_present == (before >= 0))) return;
    if (before >= 0)
        CHECK(frame == before && evicted == -1);
    else
        CHECK_MSG(pool_of_frame(w, frame) == pool && may_go(w, frame) &&
                  evicted == w->owner[frame] && value_of(w, evicted) == least,
                  "%s, %s: expert %d took frame %d", cache_policy_name(w->s.policy), w->why, id,
                  frame);
    w->owner[frame] = id;
    w->n_hold[frame]++;
    w->holds[w->n_holds++] = frame;
}

static void release(walk *w, int i)
{
    w->n_hold[w->holds[i]]--;
    expert_cache_release(w->c, w->holds[i]);
    w->holds[i] = w->holds[--w->n_holds];
}

/* To the weakest frame, or to any. */
static void assign(walk *w, int id)
{
    int frame = below(w, w->n_frame);
    if (below(w, 2)) frame = expert_cache_weakest(w->c, pool_of_id(w, id), NULL);
    if (frame < 0 || !may_go(w, frame) || pool_of_frame(w, frame) != pool_of_id(w, id) ||
        expert_cache_find(w->c, layer_of(w, id), index_of(w, id)) >= 0)
        return;
    CHECK(expert_cache_assign(w->c, frame, layer_of(w, id), index_of(w, id)) == w->owner[frame]);
    w->owner[frame] = id;
}

static void use(walk *w, int id)
{
    const double before = value_of(w, id);
    expert_cache_use_many(w->c, layer_of(w, id), index_of(w, id), 1 + below(w, 3));
    CHECK_MSG(value_of(w, id) > before, "%s: a use adds no value", cache_policy_name(w->s.policy));
}

/* Experts and frames agree, and nothing has changed but what the walk did. */
static void check(const walk *w)
{
    int frame_of[MAX_ID], wrong = 0;
    for (int id = 0; id < w->n_id; id++) frame_of[id] = -1;
    for (int f = 0; f < w->n_frame; f++) {
        wrong += expert_cache_owner(w->c, f) != w->owner[f];
        if (w->owner[f] >= 0) frame_of[w->owner[f]] = f;
    }
    for (int id = 0; id < w->n_id; id++)
        wrong += expert_cache_find(w->c, layer_of(w, id), index_of(w, id)) != frame_of[id] ||
                 !isfinite(value_of(w, id)) ||
                 expert_cache_is_pinned(w->c, layer_of(w, id), index_of(w, id)) != w->pinned[id];
    for (int pool = 0; pool < w->s.n_pool; pool++) {
        double value = NAN;
        const double least = least_value(w, pool);
        const int frame = expert_cache_weakest(w->c, pool, &value);
        wrong += isnan(least) ? frame != -1
                              : frame < 0 || pool_of_frame(w, frame) != pool || !may_go(w, frame) ||
                                value != least || value != value_of(w, w->owner[frame]);
    }
    CHECK_MSG(wrong == 0, "%s, %s: %d entries are wrong", cache_policy_name(w->s.policy), w->why,
              wrong);
}

static void step(walk *w)
{
    const int what = below(w, 64), id = below(w, w->n_id), frame = below(w, w->n_frame);
    if (what < 20 && w->n_holds < MAX_HOLD) {
        hold(w, id);
    } else if (what < 40 && w->n_holds > 0) {
        release(w, below(w, w->n_holds));
    } else if (what < 46) {
        use(w, id);
    } else if (what < 50) {
        for (int n = below(w, 200) ? 1 + below(w, 3) : CACHE_HALVE; n > 0; n--)
            expert_cache_tick(w->c);
    } else if (what < 54) {
        assign(w, id);
    } else if (what < 56 && w->n_hold[frame] == 0) {
        expert_cache_drop(w->c, frame);
        w->owner[frame] = -1;
    } else if (what < 60) {
        w->pinned[id] = below(w, 4) == 0;                /* few at a time */
        expert_cache_pin(w->c, layer_of(w, id), index_of(w, id), w->pinned[id]);
    } else {
        expert_cache_seed(w->c, layer_of(w, id), index_of(w, id), below(w, 160) * 0.25,
                          below(w, 16) ? below(w, 600) : below(w, INT_MAX));
    }
    check(w);
}

static void test_walks(void)
{
    static const uint8_t two[] = { 0, 1, 0, 1 }, three[] = { 2, 0, 1, 2, 0, 2 };
    static const struct { cache_shape s; const char *why; } walks[] = {
        { { 1, 1, 1, { 1 }, NULL, 0 }, "one of all" },
        { { 1, 8, 1, { 1 }, NULL, 0 }, "a single frame" },
        { { 2, 5, 1, { 10 }, NULL, 0 }, "frames for all" },
        { { 4, 24, 1, { 31 }, NULL, 0 }, "a third" },
        { { 4, 16, 2, { 5, 12 }, two, 0 }, "two sizes" },
        { { 6, 8, 4, { 3, 7, 10, 0 }, three, 0 }, "pools by layer, one of them empty" },
    };
    static walk w;
    for (size_t i = 0; i < ARRAY_LEN(walks); i++)
        for (int p = 0; p < CACHE_POLICIES; p++) {
            w = (walk){ .s = walks[i].s, .why = walks[i].why,
                        .rng = { 11 + i * CACHE_POLICIES + (size_t)p } };
            w.s.policy = (cache_policy)p;
            w.n_id = w.s.n_layer * w.s.n_expert;
            for (int pool = 0; pool < w.s.n_pool; pool++) w.n_frame += w.s.n_frame[pool];
            for (int f = 0; f < w.n_frame; f++) w.owner[f] = -1;
            if (!CHECK(expert_cache_create(&w.c, &w.s, NULL) == 0)) continue;
            mem_guard(true);
            for (int n = test_rounds(7500, 1500); n > 0; n--) step(&w);
            mem_guard(false);
            expert_cache_free(w.c);
        }
}

/* ---- by hand --------------------------------------------------------------------------------- */

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

static void test_priority(void)
{
    expert_cache *c = make(CACHE_LCP, 4, 4);
    if (!c) return;
    touch(c, "aaaa");
    for (int i = 0; i < 128; i++) expert_cache_tick(c);
    touch(c, "bcc");
    CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 1));   /* 4 * 0.25 = 1 */
    CHECK(expert_cache_value(c, 0, 2) == expert_cache_value(c, 0, 1) + 1);
    expert_cache_seed(c, 0, 3, 16, 256);
    CHECK(expert_cache_value(c, 0, 3) == expert_cache_value(c, 0, 1));
    touch(c, "aaaad");                   /* earlier uses count again: 8 and 17 */
    CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 2) + 2);
    CHECK(expert_cache_value(c, 0, 3) == expert_cache_value(c, 0, 1) + log2(17));
    expert_cache_free(c);
}

static void test_fading(void)
{
    expert_cache *c = make(CACHE_FADE, 4, 4);
    if (!c) return;
    touch(c, "aaaa");
    for (int i = 0; i < 256; i++) expert_cache_tick(c);
    touch(c, "bcc");
    CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 1));   /* 4 / 4 = 1 */
    CHECK(expert_cache_value(c, 0, 2) == expert_cache_value(c, 0, 1) + 1);
    expert_cache_seed(c, 0, 3, 16, 512);
    CHECK(expert_cache_value(c, 0, 3) == expert_cache_value(c, 0, 1));
    touch(c, "ad");                      /* faded uses, and one more */
    CHECK(expert_cache_value(c, 0, 0) == expert_cache_value(c, 0, 2));
    CHECK(expert_cache_value(c, 0, 3) == expert_cache_value(c, 0, 2));
    expert_cache_free(c);
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
    test_priority();
    test_fading();
    test_gain();
    test_odd_seeds();
    test_days();
    test_walks();
    test_failures();
    expert_cache_free(NULL);
    return test_end();
}
