/* test_expert_store.c - experts in RAM have the bytes of the file, whatever kind of store they are
 * in, whatever comes and goes, and whatever fails on the way. */
#include "moe/expert_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gpu.h"
#include "tests/make_store.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"
#include "tiers/fault_injection.h"

enum { MAX_EXPERT = 256 };

static pool *team;

static const reader_options readers[] = {
    { .kind = READER_AUTO }, { .kind = READER_PREAD, .depth = 3 },
    { .kind = READER_PREAD, .buffered = true },
};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* How many slabs of the layer are not found, or differ. */
static int wrong_slabs(const made_model *f, const expert_store *s, int l)
{
    expert_slabs at;
    int bad = 0;
    for (int e = 0; e < f->m->hp.n_expert; e++) {
        const bool found = expert_store_find(s, l, e, &at);
        for (int k = 0; k < SLAB_COUNT; k++)
            bad += !found || !made_slab_is(f, l, (expert_slab)k, e, at.at[k]);
    }
    return bad;
}

static int want_and_check(const made_model *f, expert_store *s, int l, const int *experts, int n,
                          err_ctx *err)
{
    int which[MAX_EXPERT], reported[MAX_EXPERT] = { 0 }, got, rc;
    expert_slabs at;
    if ((rc = expert_store_want(s, l, experts, n, err)) < 0) return rc;
    while ((got = expert_store_next(s, which, STORE_UP, err)) > 0)
        for (int i = 0; i < got; i++) {
            const int e = experts[which[i]];
            reported[which[i]]++;
            CHECK(expert_store_find(s, l, e, &at) && made_slab_is(f, l, SLAB_GATE, e, at.at[0]) &&
                  made_slab_is(f, l, SLAB_UP, e, at.at[1]));
        }
    if (got < 0) return got;
    while ((got = expert_store_next(s, which, STORE_ALL, err)) > 0)
        for (int i = 0; i < got; i++) {
            const int e = experts[which[i]];
            reported[which[i]] += 10;
            CHECK(expert_store_find(s, l, e, &at) && made_slab_is(f, l, SLAB_DOWN, e, at.at[2]));
        }
    if (got < 0) return got;
    for (int i = 0; i < n; i++)
        CHECK_MSG(reported[i] == 11, "item %d: %d, not 11", i, reported[i]);
    expert_store_release(s);
    return 0;
}

/* n different experts */
static void choose(int *experts, int n, int n_expert, test_rng *rng)
{
    for (int i = 0; i < n; i++) {
        bool again = true;
        while (again) {
            experts[i] = (int)test_below(rng, (uint32_t)n_expert);
            again = false;
            for (int k = 0; k < i; k++) again = again || experts[k] == experts[i];
        }
    }
}

/* ---- mapped and loaded ----------------------------------------------------------------------- */

typedef struct progress {
    uint64_t done, total, stop_at;
    bool backwards;
} progress;

static bool watch(void *ctx, double done, double total)
{
    progress *p = ctx;
    p->backwards = p->backwards || done < p->done;
    p->done = done;
    p->total = total;
    return done < p->stop_at;
}

static void test_whole(const made_model *f, const char *name)
{
    const bool some[] = { false, true, true, false };
    for (size_t i = 0; i < 2 * ARRAY_LEN(readers); i++) {
        progress p = { .stop_at = UINT64_MAX };
        const store_options o = { .kind = STORE_LOADED, .layers = i % 2 ? some : NULL,
                                  .reader = readers[i / 2], .watch = watch, .watch_ctx = &p };
        expert_store *s = NULL;
        err_ctx err = { 0 };
        uint64_t want = 0;
        for (int l = 0; l < 4; l++)
            for (int k = 0; k < SLAB_COUNT; k++)
                if (!o.layers || some[l])
                    want += (uint64_t)f->m->hp.n_expert *
                            expert_slab_bytes(f->m->layers[l].experts, (expert_slab)k);
        made_forget_pages(f);
        if (!CHECK_MSG(expert_store_create(&s, &f->m->experts, team, &o, &err) == 0, "%s: %s", name,
                       err.msg))
            continue;
        for (int l = 0; l < 4; l++)
            CHECK_MSG(wrong_slabs(f, s, l) == 0, "%s, reader %zu, layer %d: %d slabs differ", name,
                      i, l, wrong_slabs(f, s, l));
        CHECK(!p.backwards && p.done == want && p.total == want);
        CHECK(expert_store_bytes(s) >= want && expert_store_locked(s) == 0);
        CHECK(expert_store_counts(s).read_bytes == want && !expert_store_table(s, 0));
        CHECK((expert_store_reader(s)[0] == '\0') == (gguf_part_path(f->g, 0)[0] == '\0'));
        CHECK(expert_store_after(s, -1) == (o.layers ? 1 : 0) && expert_store_after(s, 1) == 2 &&
              expert_store_after(s, 2) == (o.layers ? -1 : 3));
        expert_store_free(s);
    }
    const store_options mapped = { .kind = STORE_MAPPED };
    expert_store *s = NULL;
    if (!CHECK(expert_store_create(&s, &f->m->experts, team, &mapped, NULL) == 0)) return;
    CHECK(wrong_slabs(f, s, 0) == 0 && expert_store_bytes(s) == 0);
    expert_store_free(s);
}

static void test_stop(const made_model *f)
{
    progress p = { .stop_at = 1 };
    const store_options o = { .kind = STORE_LOADED, .watch = watch, .watch_ctx = &p };
    expert_store *s = NULL;
    err_ctx err = { 0 };
    CHECK(expert_store_create(&s, &f->m->experts, team, &o, &err) == ERR_STOPPED && !s &&
          strstr(err.msg, "stopped"));
}

/* ---- cached ---------------------------------------------------------------------------------- */

static expert_store *make_with(const made_model *f, const store_options *o)
{
    expert_store *s = NULL;
    err_ctx err = { 0 };
    CHECK_MSG(expert_store_create(&s, &f->m->experts, team, o, &err) == 0, "%s", err.msg);
    return s;
}

static expert_store *make_cached(const made_model *f, uint64_t bytes, const reader_options *r)
{
    const store_options o = { .kind = STORE_CACHED, .cache_bytes = bytes, .reader = *r };
    return make_with(f, &o);
}

/* One step of a walk: wants, and now and then leaves before all is read, or reads ahead. */
static int step(const made_model *f, expert_store *s, uint64_t *wanted, test_rng *rng, err_ctx *err)
{
    const int n_expert = f->m->hp.n_expert, room = min_int(expert_store_room(s), n_expert);
    const int l = (int)test_below(rng, 4), n = 1 + (int)test_below(rng, (uint32_t)room);
    int experts[MAX_EXPERT], later[MAX_EXPERT], which[MAX_EXPERT], rc;
    choose(experts, n, n_expert, rng);
    choose(later, n_expert, n_expert, rng);
    if (test_below(rng, 3) == 0)
        expert_store_ahead(s, (int)test_below(rng, 4), later, (int)test_below(rng, 12));
    *wanted += (uint64_t)n;
    if (test_below(rng, 3) > 0) return want_and_check(f, s, l, experts, n, err);
    if ((rc = expert_store_want(s, l, experts, n, err)) < 0) return rc;
    expert_store_ahead(s, (l + 1) % 4, later, (int)test_below(rng, 12));
    if (test_below(rng, 2)) expert_store_go_on(s);
    if (test_below(rng, 2) && (rc = expert_store_next(s, which, STORE_UP, err)) < 0) return rc;
    expert_store_release(s);
    return 0;
}

static void walk(const made_model *f, const char *name, uint64_t bytes, const reader_options *r,
                 cache_policy policy, int n_step)
{
    const store_options o = { .kind = STORE_CACHED, .cache_bytes = bytes, .policy = policy,
                              .reader = *r };
    expert_store *s = make_with(f, &o);
    test_rng rng = { bytes };
    err_ctx err = { 0 };
    uint64_t wanted = 0;
    int experts[MAX_EXPERT];
    if (!s) return;
    for (int i = 0; i < n_step; i++)
        CHECK_MSG(step(f, s, &wanted, &rng, &err) == 0, "%s: step %d: %s", name, i, err.msg);
    const store_stats k = expert_store_counts(s);
    CHECK_MSG(k.hits + k.misses == wanted && k.misses > 0, "%s: %llu hits, %llu misses of %llu",
              name, (unsigned long long)k.hits, (unsigned long long)k.misses,
              (unsigned long long)wanted);
    CHECK(k.read_bytes > 0 && k.wait_s >= 0);
    /* what was wanted last is present; and present now means a hit, without a read */
    const int n = min_int(expert_store_room(s), f->m->hp.n_expert);
    for (int i = 0; i < n; i++) experts[i] = i;
    CHECK(want_and_check(f, s, 1, experts, n, &err) == 0);
    const store_stats before = expert_store_counts(s);
    CHECK(want_and_check(f, s, 1, experts, n, &err) == 0);
    const store_stats after = expert_store_counts(s);
    CHECK(after.hits == before.hits + (uint64_t)n && after.read_bytes == before.read_bytes);
    expert_store_reset_counts(s);
    const store_stats zero = expert_store_counts(s);
    CHECK(zero.hits == 0 && zero.misses == 0 && zero.read_bytes == 0 && zero.wait_s == 0);
    CHECK(expert_store_want(s, 0, experts, expert_store_room(s) + 1, &err) == ERR_RANGE);
    expert_store_free(s);
}

static void test_cached(const made_model *f, const char *name)
{
    const uint64_t least = expert_store_least(&f->m->experts);
    const int n_step = test_rounds(60, 25);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        walk(f, name, least, &readers[i], CACHE_LRU, n_step);
        walk(f, name, 3 * least, &readers[i], CACHE_LRU, n_step);
        walk(f, name, UINT64_MAX, &readers[i], CACHE_LRU, n_step);
    }
    for (int p = CACHE_LRU + 1; p < CACHE_POLICIES; p++) {
        walk(f, name, least, &readers[(size_t)p % ARRAY_LEN(readers)], (cache_policy)p, n_step);
        walk(f, name, 3 * least, &readers[0], (cache_policy)p, n_step);
    }
    const store_options o = { .kind = STORE_CACHED, .cache_bytes = least - 1 };
    expert_store *s = NULL;
    err_ctx err = { 0 };
    CHECK(expert_store_create(&s, &f->m->experts, team, &o, &err) == ERR_RANGE && !s &&
          strstr(err.msg, "at least"));
    s = make_cached(f, least, &readers[0]);
    CHECK(s && expert_store_room(s) == 2 * f->m->hp.n_expert_used);
    expert_store_free(s);
}

/* An expert that was read ahead is there, and no more than half of the places are taken for it. */
static void test_ahead(const made_model *f)
{
    expert_store *s = make_cached(f, expert_store_least(&f->m->experts), &readers[1]);
    int experts[MAX_EXPERT];
    err_ctx err = { 0 };
    expert_slabs at;
    if (!s) return;
    const int room = expert_store_room(s), half = room / 2;
    for (int i = 0; i < MAX_EXPERT; i++) experts[i] = i;
    CHECK(want_and_check(f, s, 0, experts, room, &err) == 0);
    CHECK(expert_store_want(s, 0, experts + half, room - half, &err) == 0);
    expert_store_ahead(s, 2, experts, f->m->hp.n_expert);
    expert_store_release(s);
    CHECK(want_and_check(f, s, 2, experts, half, &err) == 0);
    CHECK(expert_store_counts(s).misses == (uint64_t)room);      /* none of layer 2 */
    CHECK(expert_store_counts(s).hits == (uint64_t)room);
    for (int i = 0; i < room; i++)       /* those that were held have stayed, and only those */
        CHECK_MSG(expert_store_find(s, 0, i, &at) == (i >= half), "expert %d", i);
    CHECK(!expert_store_find(s, 2, half, &at));
    expert_store_free(s);
}

static bool want_one(const made_model *f, expert_store *s, int layer, int expert)
{
    return CHECK(want_and_check(f, s, layer, &expert, 1, NULL) == 0);
}

/* Which expert is evicted: one that was wanted four times, long ago, or one of those that were
 * wanted once, just now. So long as no token has passed since, LCP keeps the first. */
static void test_ages(const made_model *f)
{
    static const bool first_alone[4] = { true };
    static const struct {
        cache_policy policy;
        const bool *served;
        int layer, other;                /* wanted in turn */
        bool stays;
        const char *why;
    } rows[] = {
        { CACHE_LRU, NULL, 0, 1, false, "oldest" },
        { CACHE_LCP, NULL, 0, 1, false, "a token begins with each layer 0" },
        { CACHE_LCP, NULL, 1, 3, false, "... or with a later one, if 0 has nothing to read" },
        { CACHE_LCP, NULL, 0, 0, true, "the same layer again: parts of a prompt" },
        { CACHE_LCP, first_alone, 0, 0, false, "there is no other layer" },
    };
    const int n_expert = f->m->hp.n_expert;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const store_options o = { .kind = STORE_CACHED, .layers = rows[i].served,
                                  .cache_bytes = expert_store_least(&f->m->experts),
                                  .policy = rows[i].policy };
        expert_store *s = make_with(f, &o);
        expert_slabs at;
        if (!s) return;
        const int room = expert_store_room(s);
        if (!CHECK(room >= 4 && room < n_expert)) return;
        for (int n = 0; n < 4; n++) want_one(f, s, 0, n_expert - 1);
        for (int n = 0; n < 300; n++) want_one(f, s, n % 2 ? rows[i].other : rows[i].layer, n % 2);
        for (int n = 0; n < room - 2; n++)       /* the last one needs a place */
            want_one(f, s, rows[i].other, 2 + n);
        CHECK_MSG(expert_store_find(s, 0, n_expert - 1, &at) == rows[i].stays, "%s, row %d: %s",
                  cache_policy_name(rows[i].policy), (int)i, rows[i].why);
        expert_store_free(s);
    }
}

/* All experts of all layers in turn, as prompts want them, some at a time. Returns the hits. */
static int sweep(const made_model *f, expert_store *s, bool tokens)
{
    const uint64_t before = expert_store_counts(s).hits;
    const int n_expert = f->m->hp.n_expert;
    err_ctx err = { 0 };
    for (int l = 0; l < 4; l++)
        for (int first = 0, n; first < n_expert; first += n) {
            int experts[MAX_EXPERT], slots[MAX_EXPERT], which[MAX_EXPERT], rc;
            n = min_int(4, n_expert - first);
            for (int i = 0; i < n; i++) {
                experts[i] = first + i;
                slots[i] = 1 + (7 * (first + i) + l) % n_expert;
            }
            rc = tokens ? expert_store_want(s, l, experts, n, &err)
                        : expert_store_want_all(s, l, experts, slots, n, &err);
            if (!CHECK_MSG(rc == 0, "%s", err.msg)) return -1;
            expert_store_go_on(s);
            while ((rc = expert_store_next(s, which, STORE_ALL, &err)) > 0) expert_store_go_on(s);
            if (!CHECK_MSG(rc == 0, "%s", err.msg)) return -1;
            expert_store_release(s);
        }
    return (int)(expert_store_counts(s).hits - before);
}

/* A prompt after a prompt finds what there was room for; by age alone it would find nothing. What
 * tokens wanted stays through both. */
static void test_sweeps(const made_model *f)
{
    const uint64_t n_least = 2 * (uint64_t)f->m->hp.n_expert_used;
    const uint64_t one = expert_store_least(&f->m->experts) / n_least;
    expert_store *s = make_cached(f, 40 * one, &readers[0]);
    expert_slabs at;
    if (!s || !CHECK(expert_store_room(s) == 40 && 4 * f->m->hp.n_expert > 80)) return;
    for (int e = 0; e < 5; e++) want_one(f, s, 2, e);
    const int first = sweep(f, s, false), second = sweep(f, s, false);
    CHECK_MSG(first == 5 && second >= 40 - 8, "%d, then %d hits of 40", first, second);
    for (int e = 0; e < 5; e++) CHECK(expert_store_find(s, 2, e, &at));
    (void)sweep(f, s, true);
    CHECK(sweep(f, s, true) == 0);
    expert_store_free(s);
}

/* A wanted expert keeps its place, even if another one is wanted before it in the same call. */
static void test_stays(const made_model *f)
{
    expert_store *s = make_cached(f, expert_store_least(&f->m->experts), &readers[0]);
    int experts[MAX_EXPERT];
    err_ctx err = { 0 };
    if (!s) return;
    const int room = expert_store_room(s);
    for (int i = 0; i < room; i++) experts[i] = i;
    CHECK(want_and_check(f, s, 3, experts, room, &err) == 0);
    experts[1] = experts[0];             /* the oldest, after one that is not there */
    experts[0] = room;
    CHECK(want_and_check(f, s, 3, experts, room, &err) == 0);
    const store_stats k = expert_store_counts(s);
    CHECK_MSG(k.hits == (uint64_t)room - 1 && k.misses == (uint64_t)room + 1, "%llu hits",
              (unsigned long long)k.hits);
    expert_store_free(s);
}

/* An expert that could not be read ahead is not there; no error is reported. */
static void test_ahead_fault(const made_model *f)
{
    const reader_options one = { .kind = READER_PREAD, .depth = 1 };
    const int ahead = 4, other = 9;
    for (int slab = 0; slab < SLAB_COUNT; slab++) {
        expert_store *s = make_cached(f, expert_store_least(&f->m->experts), &one);
        err_ctx err = { 0 };
        expert_slabs at;
        if (!s) return;
        fault_arm(FAULT_READ_ERROR, slab, 1);
        expert_store_ahead(s, 2, &ahead, 1);
        CHECK_MSG(want_and_check(f, s, 0, &other, 1, &err) == 0, "%s", err.msg);
        fault_disarm_all();
        CHECK_MSG(!expert_store_find(s, 2, ahead, &at), "slab %d", slab);
        CHECK(want_and_check(f, s, 2, &ahead, 1, &err) == 0);
        CHECK(expert_store_counts(s).misses == 2);
        expert_store_free(s);
    }
}

/* Gate and up of all are read before any down: the first read of a down fails. */
static void test_order(const made_model *f)
{
    const reader_options one = { .kind = READER_PREAD, .depth = 1 };
    expert_store *s = make_cached(f, expert_store_least(&f->m->experts), &one);
    const int experts[] = { 5, 2, 7 };
    const expert_bank *b = f->m->layers[1].experts;
    char bytes[64];
    err_ctx err = { 0 };
    if (!s) return;
    fault_arm(FAULT_READ_ERROR, 2 * 3, 1);
    CHECK(want_and_check(f, s, 1, experts, 3, &err) == ERR_IO);
    fault_disarm_all();
    snprintf(bytes, sizeof bytes, "bytes %llu..", (unsigned long long)
             (b->weight[SLAB_DOWN]->offset + 5 * expert_slab_bytes(b, SLAB_DOWN)));
    CHECK_MSG(strstr(err.msg, bytes), "%s: %s", bytes, err.msg);
    expert_store_free(s);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* If there is no time, half of the readers have each kind of fault, others for each turn. */
static void test_read_faults(const made_model *f, size_t turn)
{
    static const fault_point points[] = { FAULT_READ_ERROR, FAULT_READ_END };
    for (size_t i = 0; i < ARRAY_LEN(points) * ARRAY_LEN(readers); i++) {
        if (!test_is_long() && (i + i / ARRAY_LEN(points) + turn) % 2) continue;
        expert_store *s = make_cached(f, expert_store_least(&f->m->experts),
                                      &readers[i / ARRAY_LEN(points)]);
        test_rng rng = { i };
        uint64_t wanted = 0;
        int n_error = 0;
        if (!s) return;
        for (int skip = 0; skip < 24; skip++) {
            fault_arm(points[i % ARRAY_LEN(points)], skip, 1);
            for (int k = 0; k < 8; k++) {
                err_ctx err = { 0 };
                const int rc = step(f, s, &wanted, &rng, &err);
                n_error += rc < 0;
                CHECK_MSG(rc == 0 || (rc == ERR_IO && strstr(err.msg, ".gguf") &&
                                      !strchr(err.msg, '\n')), "%d: %s", rc, err.msg);
            }
            fault_disarm_all();
        }
        CHECK_MSG(n_error >= 4 && n_error <= 24, "%d errors of 24 faults", n_error);
        for (int k = 0; k < 20; k++) CHECK(step(f, s, &wanted, &rng, NULL) == 0);
        expert_store_free(s);
    }
}

static void test_load_faults(const made_model *f)
{
    const store_options o = { .kind = STORE_LOADED, .reader = { .kind = READER_PREAD } };
    if (!made_forget_pages(f)) {
        test_skip("this file system keeps its files in RAM: nothing is read");
        return;
    }
    for (int skip = 0; skip < 3; skip++) {
        expert_store *s = NULL;
        err_ctx err = { 0 };
        made_forget_pages(f);
        fault_arm(FAULT_READ_ERROR, skip, 1);
        const int rc = expert_store_create(&s, &f->m->experts, team, &o, &err);
        fault_disarm_all();
        CHECK_MSG(rc == ERR_IO && !s && strstr(err.msg, ".gguf"), "%d: %s", rc, err.msg);
        expert_store_free(s);
    }
}

static void test_no_memory(const made_model *f)
{
    for (int kind = STORE_MAPPED; kind <= STORE_CACHED; kind++) {
        const store_options o = { .kind = (store_kind)kind,
                                  .cache_bytes = expert_store_least(&f->m->experts) };
        bool made = false;
        for (long fail = 1; fail < 60 && !made; fail++) {
            expert_store *s = NULL;
            err_ctx err = { 0 };
            mem_fail_after(fail);
            const int rc = expert_store_create(&s, &f->m->experts, team, &o, &err);
            mem_fail_after(0);
            made = rc == 0;
            CHECK((rc == 0) == (s != NULL) && (rc == 0 || (rc == ERR_NOMEM && err.msg[0])));
            expert_store_free(s);
        }
        CHECK_MSG(made, "kind %d is never made", kind);
    }
}

/* More jobs than the reader keeps room for: it has to allocate, and may not. */
static void test_no_memory_for_jobs(void)
{
    const maker mk = made_maker(ARCH_GPTOSS, 400, 40, 0);
    int experts[400], which[400];
    err_ctx err = { 0 };
    made_model f;
    expert_store *s = NULL;
    for (int i = 0; i < 400; i++) experts[i] = i;
    if (made_open(&f, &mk, IN_FILE) && (s = make_cached(&f, UINT64_MAX, &readers[0]))) {
        mem_guard(true);
        CHECK(expert_store_want(s, 0, experts, 400, &err) == ERR_NOMEM && err.msg[0]);
        expert_store_ahead(s, 1, experts, 400);
        mem_guard(false);
        CHECK(expert_store_want(s, 0, experts, 400, &err) == 0);
        while (expert_store_next(s, which, STORE_ALL, &err) > 0) { }
        expert_store_release(s);
        CHECK(wrong_slabs(&f, s, 0) == 0);
        CHECK(expert_store_counts(s).misses == 800);     /* nothing was there the second time */
        CHECK(expert_store_want(s, 1, experts, 400, &err) == 0);
        if (CHECK(expert_store_counts(s).misses == 1200))        /* nor what was read ahead */
            while (expert_store_next(s, which, STORE_ALL, &err) > 0) { }
        expert_store_release(s);
    }
    expert_store_free(s);
    made_close(&f);
}

/* ---- page-locking ---------------------------------------------------------------------------- */

static int wrong_entries(const made_model *f, const expert_store *s, int l)
{
    expert_slabs at;
    int bad = 0;
    for (int e = 0; e < f->m->hp.n_expert; e++) {
        const uint64_t *entry = expert_store_table(s, l) + e * SLAB_COUNT;
        const bool there = expert_store_find(s, l, e, &at) && at.at[0] && at.at[1] && at.at[2] &&
                           expert_store_locked(s) > 0;
        for (int k = 0; k < SLAB_COUNT; k++)
            bad += entry[k] != (there ? (uint64_t)(uintptr_t)at.at[k] : 0);
    }
    return bad;
}

/* refuse: the number of the page-lock request that is refused; -1: none. */
static void check_locked(const made_model *f, struct gpu *device, store_kind kind, int refuse)
{
    const store_options o = { .kind = kind, .device = device,
                              .cache_bytes = expert_store_least(&f->m->experts) };
    expert_store *s = NULL;
    err_ctx err = { 0 };
    test_rng rng = { 3 };
    uint64_t wanted = 0;
    if (refuse >= 0) fault_arm(FAULT_PAGE_LOCK, refuse, 1);
    CHECK_MSG(expert_store_create(&s, &f->m->experts, team, &o, &err) == 0, "%s", err.msg);
    fault_disarm_all();
    if (!s) return;
    CHECK((refuse >= 0) == (strstr(expert_store_note(s), "page-locked 0.0 of") != NULL));
    CHECK(expert_store_locked(s) == (refuse >= 0 ? 0 : expert_store_bytes(s)));
    CHECK((expert_store_table(s, 1) != NULL) == (refuse != 0));
    for (int i = 0; i < 30 && kind == STORE_CACHED; i++) {
        CHECK(step(f, s, &wanted, &rng, &err) == 0);
        for (int l = 0; refuse != 0 && l < 4; l++)
            CHECK_MSG(wrong_entries(f, s, l) == 0, "step %d, layer %d", i, l);
    }
    for (int l = 0; kind == STORE_LOADED && l < 4; l++)
        CHECK(wrong_slabs(f, s, l) == 0 && (refuse == 0 || wrong_entries(f, s, l) == 0));
    expert_store_free(s);
}

static void test_locked(const made_model *f)
{
    struct gpu *device = NULL;
    err_ctx err = { 0 };
    char other;
    if (gpu_count() == 0) {
        if (strcmp(gpu_backend(), "none") != 0) { test_skip("no GPU"); return; }
        /* without CUDA every request is refused: that must do no harm */
        check_locked(f, (struct gpu *)&other, STORE_LOADED, 0);
        check_locked(f, (struct gpu *)&other, STORE_CACHED, 0);
        return;
    }
    if (!CHECK_MSG(gpu_open(&device, 0, &err) == 0, "%s", err.msg)) return;
    for (int refuse = -1; refuse < 2; refuse++) {
        check_locked(f, device, STORE_LOADED, refuse);
        check_locked(f, device, STORE_CACHED, refuse);
    }
    CHECK_MSG(gpu_wait(device, &err) == 0, "%s", err.msg);
    gpu_close(device);
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Which experts are in VRAM to begin with: others in every layer. Counts them. */
static void choose_elsewhere(bool *elsewhere, int *in_vram, int n_expert)
{
    for (int i = 0; i < 4 * n_expert; i++) {
        elsewhere[i] = (i % n_expert + i / n_expert) % 4 == 1;
        in_vram[i / n_expert] += elsewhere[i];
    }
}

/* Slabs that are not what they should be: in a slot, or else in the mapping and not in the
 * table. */
static int wrong_moved(const made_model *f, const expert_store *s, int l)
{
    int bad = wrong_slabs(f, s, l);
    const uint64_t *table = expert_store_table(s, l);
    for (int i = 0; i < f->m->hp.n_expert * SLAB_COUNT; i++) {
        const int e = i / SLAB_COUNT, slot = ram_frames_find(expert_store_ram_frames(s), l, e);
        const expert_slab slab = (expert_slab)(i % SLAB_COUNT);
        const uint8_t *want = slot >= 0 ? expert_store_frame_slab(s, slot, l, e, slab)
                            : expert_slab_data(f->m->layers[l].experts, slab, e);
        expert_slabs at;
        bad += !expert_store_find(s, l, e, &at) || at.at[slab] != want;
        if (table) bad += table[i] != (slot >= 0 ? (uint64_t)(uintptr_t)want : 0);
    }
    return bad;
}

/* One comes to RAM, and one of the same layer leaves. */
static bool move_two(const made_model *f, expert_store *s, int l, int in, int out)
{
    ram_frames *slots = expert_store_ram_frames(s);
    const expert_bank *b = f->m->layers[l].experts;
    if (ram_frames_find(slots, l, in) >= 0 || ram_frames_find(slots, l, out) < 0) return false;
    const int slot = ram_frames_take(slots, l);
    if (!CHECK(slot >= 0)) return false;
    for (int k = 0; k < SLAB_COUNT; k++)
        memcpy(expert_store_frame_slab(s, slot, l, in, (expert_slab)k),
               expert_slab_data(b, (expert_slab)k, in),
               (size_t)expert_slab_bytes(b, (expert_slab)k));
    ram_frames_put(slots, slot, l, in);
    ram_frames_remove(slots, l, out);
    CHECK(expert_store_refresh(s, l) && !expert_store_refresh(s, l));
    return true;
}

static void check_moves(const made_model *f, expert_store *s)
{
    const uint32_t n_expert = (uint32_t)f->m->hp.n_expert;
    test_rng rng = { 11 };
    for (int moved = 0; moved < 60;) {
        const int l = (int)test_below(&rng, 4), in = (int)test_below(&rng, n_expert);
        if (!move_two(f, s, l, in, (int)test_below(&rng, n_expert))) continue;
        moved++;
        if (moved % 10 == 0)
            for (int k = 0; k < 4; k++) CHECK_MSG(wrong_moved(f, s, k) == 0, "%d moves", moved);
    }
}

/* Experts that are not in VRAM are in slots, and stay what they are as others come and go. */
static void test_slots(const made_model *f, const char *name)
{
    const int n_expert = f->m->hp.n_expert;
    bool elsewhere[4 * MAX_EXPERT];
    int in_vram[4] = { 0 };
    struct gpu *device = NULL;
    choose_elsewhere(elsewhere, in_vram, n_expert);
    if (gpu_count() > 0) CHECK(gpu_open(&device, 0, NULL) == 0);
    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        progress p = { .stop_at = UINT64_MAX };
        const store_options o = { .kind = STORE_LOADED, .n_in_vram = in_vram, .reader = readers[i],
                                  .device = device };
        uint64_t want = 0;
        err_ctx err = { 0 };
        for (int e = 0; e < 4 * n_expert; e++)
            want += elsewhere[e] ? 0 : expert_slabs_bytes(f->m->layers[e / n_expert].experts);
        made_forget_pages(f);
        expert_store *s = make_with(f, &o);
        if (!s || !CHECK_MSG(expert_store_fill(s, elsewhere, watch, &p, &err) == 0, "%s: %s", name,
                             err.msg)) {
            expert_store_free(s);
            continue;
        }
        CHECK(!p.backwards && p.done == want && p.total == want);
        CHECK(expert_store_counts(s).read_bytes == want && expert_store_bytes(s) >= want);
        CHECK(expert_store_locked(s) == (device ? expert_store_bytes(s) : 0));
        for (int l = 0; l < 4; l++)
            CHECK_MSG(wrong_moved(f, s, l) == 0, "%s, reader %zu, layer %d: %d slabs differ", name,
                      i, l, wrong_moved(f, s, l));
        check_moves(f, s);
        expert_store_free(s);
    }
    if (device) CHECK(gpu_wait(device, NULL) == 0);
    gpu_close(device);
}

/* A read that fails, an interruption, too few slots: an error, and nothing is left. */
static void test_slots_faults(const made_model *f)
{
    bool elsewhere[4 * MAX_EXPERT];
    int in_vram[4] = { 0 };
    choose_elsewhere(elsewhere, in_vram, f->m->hp.n_expert);
    const store_options o = { .kind = STORE_LOADED, .n_in_vram = in_vram,
                              .reader = { .kind = READER_PREAD } };
    progress p = { .stop_at = 20000 };
    err_ctx err = { 0 };
    expert_store *s = make_with(f, &o);
    CHECK(s && expert_store_fill(s, elsewhere, watch, &p, &err) == ERR_STOPPED);
    expert_store_free(s);
    for (int l = 0; l < 4; l++) in_vram[l] = f->m->hp.n_expert;
    s = make_with(f, &o);
    err = (err_ctx){ 0 };
    CHECK(s && expert_store_fill(s, elsewhere, NULL, NULL, &err) == ERR_RANGE &&
          strstr(err.msg, "no frame for expert"));
    expert_store_free(s);
}

/* ---------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct { model_arch arch; unsigned variants; made_where where; const char *name; }
    rows[] = {
        { ARCH_GPTOSS, 0, IN_FILE, "gpt-oss" },
        { ARCH_QWEN3NEXT, MAKE_FUSED_EXPERTS, IN_FILE, "qwen3next, fused" },
        { ARCH_QWEN3NEXT, MAKE_SCALES, IN_PARTS, "qwen3next, two parts" },
        { ARCH_GPTOSS, 0, IN_MEMORY, "gpt-oss in memory" },
    };
    const bool without = !sim_gpu() || test_is_long();   /* what is not about a GPU */
    test_begin("expert_store", argc, argv);
    CHECK(pool_create(&team, test_n_thread(2), NULL) == 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const maker mk = made_maker(rows[i].arch, 23, 3, rows[i].variants);
        made_model f;
        if (sim_gpu_skips((int)i + 1, 2)) continue;
        if (made_open(&f, &mk, rows[i].where)) {
            if (rows[i].where != IN_MEMORY) test_load_faults(&f);
            test_whole(&f, rows[i].name);
            test_stop(&f);
            if (without) test_cached(&f, rows[i].name);
            test_no_memory(&f);
            test_locked(&f);
            test_slots(&f, rows[i].name);
            test_slots_faults(&f);
            if (rows[i].where != IN_MEMORY) {
                test_ahead(&f);
                test_ahead_fault(&f);
                test_stays(&f);
                test_sweeps(&f);
                test_ages(&f);
                test_order(&f);
                if (without) test_read_faults(&f, i);
            }
        }
        made_close(&f);
    }
    /* a tensor longer than a piece of 16 MiB, and pieces that begin within tensors */
    const maker large = made_maker(ARCH_GPTOSS, 230, 3, 0);
    made_model f;
    if (without) {
        if (made_open(&f, &large, IN_FILE)) test_whole(&f, "large");
        made_close(&f);
        test_no_memory_for_jobs();
    }
    pool_free(team);
    return test_end();
}
