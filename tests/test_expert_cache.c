/* test_expert_cache.c - random walks of the expert cache against a naive one, which computes what
 * every expert is worth by the policy's definition and searches all places; then by hand what
 * walks are too short or too random for. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/expert_cache.h"
#include "tests/test.h"

enum { MAX_PLACE = 32, MAX_ID = 96, MAX_HOLD = 40, N_STEP = 7500 };

/* ---- the twin -------------------------------------------------------------------------------- */

typedef struct naive_expert {
    int place;                           /* or -1 */
    bool used, pinned;
    double frequency;
    long token, order;                   /* of the last use */
} naive_expert;

typedef struct naive_place {
    int owner, held, pool;               /* owner -1: none */
} naive_place;

typedef struct naive {
    cache_shape s;
    int n_id, n_place;
    naive_expert experts[MAX_ID];
    naive_place places[MAX_PLACE];
    long token, order;
    uint64_t hits, misses;
} naive;

static void naive_begin(naive *v, const cache_shape *s)
{
    *v = (naive){ .s = *s, .n_id = s->n_layer * s->n_expert };
    for (int id = 0; id < v->n_id; id++) v->experts[id].place = -1;
    for (int p = 0; p < s->n_pool; p++)
        for (int i = 0; i < s->n_place[p]; i++)
            v->places[v->n_place++] = (naive_place){ .owner = -1, .pool = p };
}

static int pool_of(const naive *v, int id)
{
    return v->s.pool_of ? v->s.pool_of[id / v->s.n_expert] : 0;
}

static long double time_of(const naive_expert *e)
{
    return e->used ? e->token * 1e6L + e->order : -1e17L;
}

static long double worth(const naive *v, int id)
{
    const naive_expert *e = &v->experts[id];
    switch (v->s.policy) {
    case CACHE_LCP:
        return e->used ? e->frequency * powl(0.25L, (v->token - e->token) / 128.0L) : 0;
    case CACHE_FADE:
        return e->used ? e->frequency * powl(0.5L, (v->token - e->token) / 128.0L) : 0;
    default: return time_of(e);
    }
}

/* Below 0 if a is worth less than b, 0 if as much. *unsure: the difference is one of rounding. */
static int order_of(const naive *v, int a, int b, bool *unsure)
{
    const long double x = worth(v, a), y = worth(v, b);
    const naive_expert *e = &v->experts[a], *f = &v->experts[b];
    const bool alike = e->frequency == f->frequency && e->token == f->token;
    *unsure = v->s.policy >= CACHE_LCP && !alike && fabsl(x - y) <= 1e-9L * fmaxl(x, y);
    return x < y ? -1 : x > y;
}

static bool may_go(const naive *v, int place)
{
    const naive_place *p = &v->places[place];
    return p->held == 0 && (p->owner < 0 || !v->experts[p->owner].pinned);
}

/* Whether nobody else should make room before this one. Between equals the cache may choose. */
static bool is_weakest(const naive *v, int place)
{
    const int owner = v->places[place].owner;
    if (!may_go(v, place)) return false;
    for (int i = 0; i < v->n_place; i++) {
        const int other = v->places[i].owner;
        bool unsure;
        if (i == place || v->places[i].pool != v->places[place].pool || !may_go(v, i)) continue;
        if (other < 0 && owner >= 0) return false;
        if (other < 0 || owner < 0) continue;
        const int order = order_of(v, other, owner, &unsure);
        if (unsure) continue;
        if (order < 0) return false;
        if (order == 0 && time_of(&v->experts[other]) < time_of(&v->experts[owner])) return false;
    }
    return true;
}

static bool anybody_may_go(const naive *v, int pool)
{
    for (int i = 0; i < v->n_place; i++)
        if (v->places[i].pool == pool && may_go(v, i)) return true;
    return false;
}

static void naive_use(naive *v, int id)
{
    naive_expert *e = &v->experts[id];
    e->frequency = (v->s.policy == CACHE_FADE ? (double)worth(v, id) : e->frequency) + 1;
    e->used = true;
    e->token = v->token;
    e->order = ++v->order;
}

static void naive_give(naive *v, int place, int id)
{
    naive_place *p = &v->places[place];
    if (p->owner >= 0) v->experts[p->owner].place = -1;
    if (id >= 0) v->experts[id].place = place;
    p->owner = id;
}

static void naive_tick(naive *v)
{
    v->token++;
    v->order = 0;
    for (int id = 0; id < v->n_id && v->token % CACHE_HALVE == 0; id++)
        v->experts[id].frequency /= 2;
}

/* ---- walks ----------------------------------------------------------------------------------- */

typedef struct walk {
    expert_cache *c;
    naive v;
    int holds[MAX_HOLD], n_hold;         /* places, each as often as it is held */
    test_rng rng;
    const char *why;
} walk;

static int below(walk *w, int n) { return (int)test_below(&w->rng, (uint32_t)n); }
static int layer_of(const walk *w, int id) { return id / w->v.s.n_expert; }
static int index_of(const walk *w, int id) { return id % w->v.s.n_expert; }
static const char *policy(const walk *w) { return cache_policy_name(w->v.s.policy); }

static void hold(walk *w, int id)
{
    naive *v = &w->v;
    const int before = v->experts[id].place;
    bool was_there = false;
    int evicted = -2;
    const int place = expert_cache_hold(w->c, layer_of(w, id), index_of(w, id), &was_there,
                                        &evicted);
    if (before < 0 && !anybody_may_go(v, pool_of(v, id))) {
        CHECK(place == -1 && !was_there);
        return;
    }
    if (!CHECK_MSG(place >= 0 && place < v->n_place, "%s: place %d", policy(w), place)) return;
    CHECK_MSG(was_there == (before >= 0), "expert %d: was there: %d", id, was_there);
    if (before >= 0) {
        CHECK(place == before && evicted == -1);
        v->hits++;
    } else {
        CHECK_MSG(v->places[place].pool == pool_of(v, id) && is_weakest(v, place),
                  "%s, %s: expert %d: place %d should not make room", policy(w), w->why, id, place);
        CHECK_MSG(evicted == v->places[place].owner, "place %d had %d, not %d", place,
                  v->places[place].owner, evicted);
        naive_give(v, place, id);
        v->misses++;
    }
    naive_use(v, id);
    v->places[place].held++;
    w->holds[w->n_hold++] = place;
}

static void release(walk *w, int i)
{
    w->v.places[w->holds[i]].held--;
    expert_cache_release(w->c, w->holds[i]);
    w->holds[i] = w->holds[--w->n_hold];
}

static void use(walk *w, int id)
{
    expert_cache_use(w->c, layer_of(w, id), index_of(w, id));
    naive_use(&w->v, id);
    if (w->v.experts[id].place >= 0) w->v.hits++;
    else w->v.misses++;
}

/* Some place, or the weakest one. */
static void assign(walk *w, int id)
{
    naive *v = &w->v;
    int place = below(w, v->n_place);
    if (below(w, 2)) place = expert_cache_weakest(w->c, pool_of(v, id), NULL);
    if (place < 0 || !may_go(v, place) || v->places[place].pool != pool_of(v, id) ||
        v->experts[id].place >= 0)
        return;
    const int before = expert_cache_assign(w->c, place, layer_of(w, id), index_of(w, id));
    CHECK_MSG(before == v->places[place].owner, "assigned: place %d had %d, not %d", place,
              v->places[place].owner, before);
    naive_give(v, place, id);
}

static void drop(walk *w, int place)
{
    if (w->v.places[place].held > 0) return;
    expert_cache_drop(w->c, place);
    naive_give(&w->v, place, -1);
}

static void pin(walk *w, int id)
{
    w->v.experts[id].pinned = below(w, 4) == 0;          /* few at a time */
    expert_cache_pin(w->c, layer_of(w, id), index_of(w, id), w->v.experts[id].pinned);
}

static void seed(walk *w, int id)
{
    naive_expert *e = &w->v.experts[id];
    const int age = below(w, 16) ? below(w, 600) : below(w, INT_MAX);
    const double frequency = below(w, 160) * 0.25;
    expert_cache_seed(w->c, layer_of(w, id), index_of(w, id), frequency, age);
    *e = (naive_expert){ .place = e->place, .pinned = e->pinned, .used = frequency > 0,
                         .frequency = frequency, .token = w->v.token - age };
}

static void tick(walk *w, int n)
{
    while (n-- > 0) {
        expert_cache_tick(w->c);
        naive_tick(&w->v);
    }
}

/* Every expert where it should be, and every place whose it should be. */
static void compare(const walk *w)
{
    const naive *v = &w->v;
    const expert_cache_stats k = expert_cache_counts(w->c);
    int id = 0, place = 0;
    while (id < v->n_id && expert_cache_find(w->c, layer_of(w, id), index_of(w, id)) ==
                           v->experts[id].place) id++;
    CHECK_MSG(id == v->n_id, "%s, %s: expert %d is in the wrong place", policy(w), w->why, id);
    while (place < v->n_place && expert_cache_owner(w->c, place) == v->places[place].owner) place++;
    CHECK_MSG(place == v->n_place, "%s, %s: place %d has the wrong owner", policy(w), w->why,
              place);
    CHECK_MSG(k.hits == v->hits && k.misses == v->misses, "%llu hits, %llu misses",
              (unsigned long long)k.hits, (unsigned long long)k.misses);
}

static void check_weakest(const walk *w, int pool)
{
    double value = 0;
    const int place = expert_cache_weakest(w->c, pool, &value);
    if (!anybody_may_go(&w->v, pool)) {
        CHECK(place == -1);
        return;
    }
    if (!CHECK_MSG(place >= 0 && w->v.places[place].pool == pool && is_weakest(&w->v, place),
                   "%s, %s: place %d of pool %d is not the weakest", policy(w), w->why, place,
                   pool))
        return;
    const int owner = w->v.places[place].owner;
    CHECK(owner < 0 ? value == -INFINITY
                    : value == expert_cache_value(w->c, layer_of(w, owner), index_of(w, owner)));
}

/* Values are in the order of what the experts are worth. */
static void check_values(const walk *w, int a, int b)
{
    const double x = expert_cache_value(w->c, layer_of(w, a), index_of(w, a));
    const double y = expert_cache_value(w->c, layer_of(w, b), index_of(w, b));
    bool unsure;
    const int order = order_of(&w->v, a, b, &unsure);
    CHECK_MSG(isfinite(x) && (unsure || order == (x < y ? -1 : x > y)),
              "%s, %s: experts %d and %d: %.17g and %.17g", policy(w), w->why, a, b, x, y);
}

static void step(walk *w)
{
    const int what = below(w, 64), id = below(w, w->v.n_id), other = below(w, w->v.n_id);
    if (what < 20 && w->n_hold < MAX_HOLD) hold(w, id);
    else if (what < 40 && w->n_hold > 0) release(w, below(w, w->n_hold));
    else if (what < 46) use(w, id);
    else if (what < 50) tick(w, 1 + below(w, 3));
    else if (what < 54) assign(w, id);
    else if (what < 56) drop(w, below(w, w->v.n_place));
    else if (what < 59) pin(w, id);
    else if (what < 62) seed(w, id);
    else if (below(w, 200) == 0) tick(w, below(w, CACHE_HALVE));
    compare(w);
    check_values(w, id, other);
    check_weakest(w, below(w, w->v.s.n_pool));
}

static void test_walks(void)
{
    static const uint8_t two[] = { 0, 1, 0, 1 }, three[] = { 2, 0, 1, 2, 0, 2 };
    static const struct { cache_shape s; const char *why; } walks[] = {
        { { 1, 1, 1, { 1 }, NULL, 0 }, "one of all" },
        { { 1, 8, 1, { 1 }, NULL, 0 }, "a single place" },
        { { 2, 5, 1, { 10 }, NULL, 0 }, "room for all" },
        { { 3, 7, 1, { 6 }, NULL, 0 }, "as of a small token" },
        { { 4, 24, 1, { 31 }, NULL, 0 }, "a third" },
        { { 4, 16, 2, { 5, 12 }, two, 0 }, "two sizes" },
        { { 6, 8, 4, { 3, 7, 10, 0 }, three, 0 }, "pools by layer, one of them empty" },
    };
    static walk w;
    for (size_t i = 0; i < ARRAY_LEN(walks); i++)
        for (int p = 0; p < CACHE_POLICIES; p++) {
            cache_shape s = walks[i].s;
            s.policy = (cache_policy)p;
            w = (walk){ .rng = { 11 + i * CACHE_POLICIES + (size_t)p }, .why = walks[i].why };
            naive_begin(&w.v, &s);
            if (!CHECK(expert_cache_create(&w.c, &s, NULL) == 0)) continue;
            CHECK(expert_cache_places(w.c) == w.v.n_place);
            mem_guard(true);
            for (int n = 0; n < N_STEP; n++) step(&w);
            mem_guard(false);
            expert_cache_free(w.c);
        }
}

/* ---- by hand --------------------------------------------------------------------------------- */

static expert_cache *make(cache_policy p, int n_expert, int n_place)
{
    const cache_shape s = { .n_layer = 1, .n_expert = n_expert, .n_pool = 1,
                            .n_place = { n_place }, .policy = p };
    expert_cache *c = NULL;
    CHECK(expert_cache_create(&c, &s, NULL) == 0);
    return c;
}

/* Uses experts of layer 0 one after the other; returns whom the last one evicted. */
static int touch(expert_cache *c, const char *experts)
{
    int evicted = -1;
    for (; *experts; experts++) {
        bool was_there;
        expert_cache_release(c, expert_cache_hold(c, 0, *experts - 'a', &was_there, &evicted));
    }
    return evicted < 0 ? '-' : 'a' + evicted;
}

static void test_evictions(void)
{
    static const struct {
        cache_policy p;
        int n_place;
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
        expert_cache *c = make(rows[i].p, 8, rows[i].n_place);
        const int gone = c ? touch(c, rows[i].uses) : 0;
        CHECK_MSG(gone == rows[i].gone, "%s %s: %c is gone, not %c: %s",
                  cache_policy_name(rows[i].p), rows[i].uses, gone, rows[i].gone, rows[i].why);
        expert_cache_free(c);
    }
}

/* Experts that only pass make room first, those that fewest chose before others. */
static void test_passing(void)
{
    static const struct { int expert, n, gone; } rows[] = {
        { 'a', 0, '-' }, { 'b', 9, '-' }, { 'c', 2, '-' },
        { 'd', 4, 'c' }, { 'e', 3, 'd' }, { 'f', 8, 'e' },
        { 'b', 0, '-' },                 /* is used by a token: stays */
        { 'g', 0, 'f' },                 /* the last that passes */
        { 'h', 1, 'a' },                 /* the oldest of those that do not */
        { 'a', 7, 'h' }, { 'i', 0, 'a' }, { 'j', 0, 'b' },
    };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        expert_cache *c = make((cache_policy)p, 10, 3);
        for (size_t i = 0; c && i < ARRAY_LEN(rows); i++) {
            int evicted;
            bool was_there;
            const int e = rows[i].expert - 'a';
            if (p != CACHE_LRU && i > 7) break;  /* others keep another one */
            const int place = expert_cache_hold(c, 0, e, &was_there, &evicted);
            expert_cache_pass(c, place, rows[i].n);
            CHECK(expert_cache_passes(c, place) == (rows[i].n > 0));
            expert_cache_release(c, place);
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
    touch(c, "aaaad");                   /* revives all that ever were: 8 and 17 */
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
    touch(c, "ad");                      /* what is left, and one more; not all that ever was */
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
            const int place = expert_cache_weakest(c, 0, &value);
            CHECK(value == -INFINITY && expert_cache_assign(c, place, 0, i) == -1);
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
    const cache_shape s = { .n_layer = 3, .n_expert = 5, .n_pool = 2, .n_place = { 1, 3 } };
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
    test_passing();
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
