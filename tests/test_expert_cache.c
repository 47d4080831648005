/* test_expert_cache.c - random walks of the expert cache against a naive one, which notes a time
 * for every place and searches all of them. */
#include <string.h>

#include "moe/expert_cache.h"
#include "tests/test.h"

enum { MAX_PLACE = 16, MAX_ID = 64, MAX_HOLD = 64 };

typedef struct naive {
    int n_place, n_expert;
    int owner[MAX_PLACE], held[MAX_PLACE];
    long used[MAX_PLACE];                /* when; 0: never, or dropped */
    long now;
    uint64_t hits, misses;
} naive;

static int naive_find(const naive *v, int id)
{
    for (int i = 0; i < v->n_place; i++)
        if (v->owner[i] == id) return i;
    return -1;
}

static bool anybody_free(const naive *v)
{
    for (int i = 0; i < v->n_place; i++)
        if (v->held[i] == 0) return true;
    return false;
}

/* Whether this place is the right one for a new expert: free, or least recently used. Between free
 * ones the cache may choose. */
static bool may_take(const naive *v, int place)
{
    if (v->held[place] > 0) return false;
    for (int i = 0; i < v->n_place; i++)
        if (v->held[i] == 0 && v->used[i] < v->used[place]) return false;
    return true;
}

static void hold(expert_cache *c, naive *v, int id, int *holds, int *n_hold)
{
    const int before = naive_find(v, id);
    bool was_there = false;
    int evicted = -2;
    const int place = expert_cache_hold(c, id / v->n_expert, id % v->n_expert, &was_there,
                                        &evicted);
    if (before < 0 && !anybody_free(v)) {
        CHECK(place == -1 && !was_there);
        return;
    }
    if (!CHECK_MSG(place >= 0 && place < v->n_place, "place %d", place)) return;
    CHECK_MSG(was_there == (before >= 0), "expert %d: was there: %d", id, was_there);
    if (before >= 0) {
        CHECK(place == before && evicted == -1);
        v->hits++;
    } else {
        CHECK_MSG(may_take(v, place), "expert %d: place %d is not the oldest", id, place);
        CHECK_MSG(evicted == v->owner[place], "place %d had %d, not %d", place, v->owner[place],
                  evicted);
        v->misses++;
    }
    v->owner[place] = id;
    v->held[place]++;
    v->used[place] = ++v->now;
    holds[(*n_hold)++] = place;
}

static void let_go(expert_cache *c, naive *v, int *holds, int *n_hold, int i)
{
    v->held[holds[i]]--;
    expert_cache_release(c, holds[i]);
    holds[i] = holds[--*n_hold];
}

static void compare(const expert_cache *c, const naive *v, int n_id)
{
    const expert_cache_stats k = expert_cache_counts(c);
    int id = 0;
    while (id < n_id && expert_cache_find(c, id / v->n_expert, id % v->n_expert) ==
                        naive_find(v, id)) id++;
    CHECK_MSG(id == n_id, "expert %d is not in place %d", id, naive_find(v, id));
    CHECK_MSG(k.hits == v->hits && k.misses == v->misses, "%llu hits, %llu misses",
              (unsigned long long)k.hits, (unsigned long long)k.misses);
}

static void walk(int n_layer, int n_expert, int n_place, int n_step, test_rng *rng)
{
    naive v = { .n_place = n_place, .n_expert = n_expert };
    int holds[MAX_HOLD], n_hold = 0;
    expert_cache *c = NULL;
    memset(v.owner, 0xff, sizeof v.owner);
    if (!CHECK(expert_cache_create(&c, n_layer, n_expert, n_place, NULL) == 0)) return;
    CHECK(expert_cache_places(c) == n_place);
    mem_guard(true);
    for (int i = 0; i < n_step; i++) {
        const uint32_t what = test_below(rng, 16);
        const int place = (int)test_below(rng, (uint32_t)n_place);
        if (what < 8 && n_hold < MAX_HOLD)
            hold(c, &v, (int)test_below(rng, (uint32_t)(n_layer * n_expert)), holds, &n_hold);
        else if (what < 15 && n_hold > 0)
            let_go(c, &v, holds, &n_hold, (int)test_below(rng, (uint32_t)n_hold));
        else if (v.held[place] == 0) {
            expert_cache_drop(c, place);
            v.owner[place] = -1;
            v.used[place] = 0;
        }
        compare(c, &v, n_layer * n_expert);
    }
    mem_guard(false);
    expert_cache_free(c);
}

static void test_failures(void)
{
    for (long fail = 1; fail < 10; fail++) {
        expert_cache *c = NULL;
        err_ctx err = { 0 };
        mem_fail_after(fail);
        const int rc = expert_cache_create(&c, 3, 5, 4, &err);
        mem_fail_after(0);
        CHECK((rc == 0) == (c != NULL) && (rc == 0 || (rc == ERR_NOMEM && err.msg[0])));
        expert_cache_free(c);
        if (rc == 0) return;
    }
    CHECK_MSG(false, "never made");
}

int main(int argc, char **argv)
{
    static const struct { int n_layer, n_expert, n_place; const char *why; } walks[] = {
        { 1, 1, 1, "one of all" },       { 1, 8, 1, "a single place" },
        { 2, 5, 10, "room for all" },    { 3, 7, 6, "as of a small token" },
        { 4, 16, 16, "a quarter" },      { 2, 4, 12, "more places than experts" },
    };
    test_rng rng = { 11 };
    test_begin("expert_cache", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(walks); i++)
        walk(walks[i].n_layer, walks[i].n_expert, walks[i].n_place, 600, &rng);
    test_failures();
    expert_cache_free(NULL);
    return test_end();
}
