/* test_residency.c - the books of experts in VRAM, over a device that is made up.
 *
 * The device has memory, where a copy writes its expert's name, and a map that it gets when a turn
 * says so. Copies end when they like, or are lost. While a token runs, every expert that the
 * device's map names must be where it says. After each turn the books are compared with what can be
 * counted. */
#include <math.h>
#include <string.h>

#include "moe/residency.h"
#include "tests/test.h"

enum { LAYERS = 6, EXPERTS = 24, USED = 3, MOST_PLACES = LAYERS * EXPERTS, NOTHING = -1 };

/* ---- banks: two sizes ------------------------------------------------------------------------ */

static tensor tensors[2][SLAB_COUNT];
static expert_bank bank_list[LAYERS];
static expert_banks banks = { .n_layer = LAYERS, .n_expert = EXPERTS, .n_used = USED,
                              .of = bank_list };

static void make_banks(void)
{
    for (int kind = 0; kind < 2; kind++)
        for (int s = 0; s < SLAB_COUNT; s++)
            tensors[kind][s].row_bytes = (uint64_t)(kind && s == SLAB_DOWN ? 50 : 34);
    for (int l = 0; l < LAYERS; l++) {
        bank_list[l] = (expert_bank){ .n_expert = EXPERTS, .n_embd = 64, .n_ff = 32 };
        for (int s = 0; s < SLAB_COUNT; s++) bank_list[l].weight[s] = &tensors[l % 3 == 2][s];
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct sent { int layer, expert, place, mark; } sent;

typedef struct device {
    int32_t map[LAYERS * EXPERTS];       /* the books' */
    int32_t seen[LAYERS * EXPERTS];      /* the device's copy */
    int content[MOST_PLACES];            /* layer * EXPERTS + expert, or NOTHING */
    sent queue[RESIDENCY_MARKS];
    int n_queue, n_sent;
    bool passed[RESIDENCY_MARKS];
    int shift;                           /* of what is popular */
    int lose_in, refuse_in;              /* sends until something goes wrong; 0: never */
    bool lost;
    test_rng rng;
} device;

static bool send(void *self, int layer, int expert, int place, int i)
{
    device *d = self;
    if (d->refuse_in > 0 && --d->refuse_in == 0) return false;
    if (d->lose_in > 0 && --d->lose_in == 0) d->lost = true;
    CHECK(d->n_queue < RESIDENCY_MARKS);
    d->queue[d->n_queue++] = (sent){ layer, expert, place, i };
    d->content[place] = NOTHING;         /* half-written from now on */
    d->passed[i] = false;
    d->n_sent++;
    return true;
}

static int passed(void *self, int i, err_ctx *err)
{
    device *d = self;
    if (!d->lost) return d->passed[i];
    d->lost = false;
    d->n_queue = 0;
    return err_set(err, ERR_IO, "made up");
}

/* Some copies arrive, in order. */
static void let_arrive(device *d, int n)
{
    for (; n > 0 && d->n_queue > 0; n--) {
        const sent s = d->queue[0];
        d->content[s.place] = s.layer * EXPERTS + s.expert;
        d->passed[s.mark] = true;
        memmove(d->queue, d->queue + 1, (size_t)--d->n_queue * sizeof *d->queue);
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What the device would read now. */
static void check_device(const device *d, const residency *r)
{
    int wrong = 0;
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        if (d->seen[i] >= 0)
            wrong += d->content[residency_pool(r, i / EXPERTS)->first + d->seen[i]] != i;
    CHECK_MSG(wrong == 0, "%d experts are not where the device looks for them", wrong);
}

static void check_books(const device *d, const residency *r)
{
    int owner[MOST_PLACES], n_ready[LAYERS] = { 0 }, wrong = 0;
    for (int p = 0; p < residency_places(r); p++) owner[p] = NOTHING;
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        const int l = i / EXPERTS, place = residency_find(r, l, i % EXPERTS);
        wrong += (place < 0) != (d->map[i] < 0);
        if (place < 0) continue;
        const place_pool *pool = residency_pool(r, l);
        wrong += place < pool->first || place >= pool->first + pool->n || owner[place] != NOTHING;
        wrong += residency_state(r, place) != PLACE_READY;
        owner[place] = i;
        n_ready[l]++;
    }
    for (int p = 0; p < residency_places(r); p++)
        wrong += (residency_state(r, p) == PLACE_READY) != (owner[p] != NOTHING);
    for (int l = 0; l < LAYERS; l++) wrong += residency_ready(r, l) != n_ready[l];
    CHECK_MSG(wrong == 0, "%d entries of the books are wrong", wrong);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static uint64_t bytes_for(int each) { return residency_bytes(&banks, LAYERS, each); }

static residency *begin(device *d, int each, cache_policy policy, int uploads, uint64_t seed)
{
    static place_mover mover;
    residency *r = NULL;
    err_ctx err = { 0 };
    *d = (device){ .rng = { seed } };
    for (int p = 0; p < MOST_PLACES; p++) d->content[p] = NOTHING;
    mover = (place_mover){ d, send, passed };
    const residency_options o = { .n_layer = LAYERS, .bytes = bytes_for(each), .policy = policy,
                                  .most_uploads = uploads, .margin = 0.3, .map = d->map };
    CHECK_MSG(residency_create(&r, &banks, &o, &mover, &err) == 0, "%s", err.msg);
    for (int l = 0; r && l < LAYERS; l++)
        for (int e = 0; e < residency_share(r, l); e++) {
            const int place = residency_put(r, l, e);
            CHECK(place >= 0);
            if (place >= 0) d->content[place] = l * EXPERTS + e;
        }
    memcpy(d->seen, d->map, sizeof d->seen);
    return r;
}

/* Experts of low rank are chosen more often; which these are depends on the layer. */
static int draw(device *d, int layer, bool even)
{
    if (even) return (int)test_below(&d->rng, EXPERTS);
    uint32_t rank = test_below(&d->rng, EXPERTS);
    rank = rank * test_below(&d->rng, (uint32_t)EXPERTS) / EXPERTS;
    rank = rank * test_below(&d->rng, (uint32_t)EXPERTS) / EXPERTS;
    return (int)(rank * 5 + 7 * (uint32_t)layer + (uint32_t)d->shift) % EXPERTS;
}

/* One token. Returns how many of its choices were there. */
static int run_token(device *d, residency *r, bool even)
{
    int hits = 0;
    check_device(d, r);
    residency_send(r);
    for (int l = 0; l < LAYERS; l++) {
        uint32_t chosen[USED];
        for (int k = 0; k < USED; k++) {
            const int e = draw(d, l, even);
            hits += d->seen[l * EXPERTS + e] >= 0;
            chosen[k] = (uint32_t)e | test_below(&d->rng, 4) << 16;
        }
        let_arrive(d, (int)test_below(&d->rng, 3));
        check_device(d, r);
        residency_chosen(r, l, chosen, USED);
    }
    return hits;
}

static void turn(device *d, residency *r)
{
    err_ctx err = { 0 };
    const int rc = residency_turn(r, true, &err);
    if (rc != 0) memcpy(d->seen, d->map, sizeof d->seen);
    else CHECK(memcmp(d->seen, d->map, sizeof d->seen) == 0);
    CHECK(rc <= 1 && (rc >= 0 || strcmp(err.msg, "made up") == 0 || err.code == ERR_IO));
    check_books(d, r);
}

static void run_prompt(device *d, residency *r, bool interrupted)
{
    residency_swap swaps[EXPERTS];
    for (int l = 0; l < LAYERS; l++) {
        int32_t counts[EXPERTS] = { 0 };
        for (int i = 0; i < 20 * USED; i++) counts[draw(d, l, false)]++;
        const int cap = (int)test_below(&d->rng, EXPERTS + 1);
        const int n = residency_prompt(r, l, counts, swaps, cap);
        CHECK(n <= cap);
        for (int i = 0; i < n; i++) {
            CHECK(counts[swaps[i].expert] > 0);
            if (interrupted && test_below(&d->rng, 4) == 0) residency_lose(r, swaps[i].place);
            else d->content[swaps[i].place] = l * EXPERTS + swaps[i].expert;
        }
        check_books(d, r);
    }
    memcpy(d->seen, d->map, sizeof d->seen);
    check_device(d, r);
}

/* 200,000 choices in all: tokens, prompts, faults. */
static void test_walk(void)
{
    static device d;
    for (int policy = 0; policy < CACHE_POLICIES; policy++)
        for (int faults = 0; faults < 2; faults++) {
            residency *r = begin(&d, 5 + 6 * faults, (cache_policy)policy, 1 + 7 * faults,
                                 100 + (uint64_t)(2 * policy + faults));
            if (!r) return;
            for (int t = 0; t < 1400; t++) {
                if (faults && test_below(&d.rng, 8) == 0)
                    d.lose_in = 1 + (int)test_below(&d.rng, 4);
                if (faults && test_below(&d.rng, 8) == 0)
                    d.refuse_in = 1 + (int)test_below(&d.rng, 4);
                d.shift = t / 100;
                if (test_below(&d.rng, 40) == 0) run_prompt(&d, r, faults == 1);
                run_token(&d, r, t % 300 < 100);
                turn(&d, r);
            }
            const residency_stats s = residency_counts(r);
            CHECK_MSG(s.uploads > 50 && s.evictions > 50 && s.swaps > 10, "%s: %llu uploads, %llu "
                      "evictions, %llu swaps", cache_policy_name((cache_policy)policy),
                      (unsigned long long)s.uploads, (unsigned long long)s.evictions,
                      (unsigned long long)s.swaps);
            CHECK(s.hits + s.misses == 1400u * LAYERS * USED && (s.failures > 10) == faults);
            residency_free(r);
        }
}

/* With uneven choices a third of the experts soon holds most of what is chosen: as much as the best
 * third would, or nearly. */
static void test_learns(void)
{
    static device d, twin;
    int best = 0;
    residency *r = begin(&d, EXPERTS / 3, CACHE_LCP, 8, 7);
    if (!r) return;
    for (int t = 0; t < 400; t++) {
        run_token(&d, r, false);
        turn(&d, r);
    }
    twin = d;                            /* what the most popular ones of each layer would hold */
    int hits = 0, n = 0, counts[LAYERS][EXPERTS] = { { 0 } };
    for (int i = 0; i < 4000; i++)
        for (int l = 0; l < LAYERS; l++) counts[l][draw(&twin, l, false)]++;
    for (int l = 0; l < LAYERS; l++)
        for (int k = 0; k < EXPERTS / 3; k++) {
            int most = 0;
            for (int e = 1; e < EXPERTS; e++)
                if (counts[l][e] > counts[l][most]) most = e;
            best += counts[l][most];
            counts[l][most] = -1;
        }
    const double ideal = best / (4000.0 * LAYERS);
    for (int t = 0; t < 200; t++, n += LAYERS * USED) {
        hits += run_token(&d, r, false);
        turn(&d, r);
    }
    CHECK_MSG(hits > 0.93 * ideal * n, "%d of %d were there, %.3f at best", hits, n, ideal);
    residency_free(r);
}

/* A prompt alone fills the places with what it wants. */
static void test_prompt(void)
{
    static device d;
    residency *r = begin(&d, 4, CACHE_LCP, 8, 9);
    residency_swap swaps[EXPERTS];
    if (!r) return;
    for (int l = 0; l < LAYERS; l++) {
        int32_t counts[EXPERTS] = { 0 };
        for (int i = 0; i < 4; i++) counts[(5 * i + 3 * l) % EXPERTS] = 10 + i;
        counts[(5 * 4 + 3 * l) % EXPERTS] = 1;
        residency_prompt(r, l, counts, swaps, EXPERTS);
        for (int i = 0; i < 4; i++) CHECK(residency_find(r, l, (5 * i + 3 * l) % EXPERTS) >= 0);
        CHECK(residency_ready(r, l) == 4);
    }
    check_books(&d, r);
    residency_free(r);

    r = begin(&d, 4, CACHE_LCP, 0, 9);   /* nothing may change */
    if (!r) return;
    int32_t counts[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) counts[e] = e;
    CHECK(residency_prompt(r, 0, counts, swaps, EXPERTS) == 0);
    for (int t = 0; t < 20; t++) {
        run_token(&d, r, true);
        turn(&d, r);
    }
    CHECK(d.n_sent == 0 && residency_counts(r).evictions == 0);
    residency_free(r);
}

/* What is asked for is there at once, as far as there are places, and nothing is there twice. */
static void test_apply(void)
{
    static device d;
    residency *r = begin(&d, 5, CACHE_LCP, 8, 13);
    residency_swap swaps[LAYERS * EXPERTS + 2];
    int list[LAYERS * EXPERTS + 2];
    err_ctx err = { 0 };
    if (!r) return;
    for (int round = 0; round < 200; round++) {
        const int n = (int)test_below(&d.rng, 50);
        int room[2] = { 0 }, asked[2] = { 0 };
        for (int i = 0; i < n; i++) list[i] = (int)test_below(&d.rng, LAYERS * EXPERTS);
        list[n] = -1;                    /* no such expert */
        list[n + 1] = LAYERS * EXPERTS;
        run_token(&d, r, true);
        turn(&d, r);
        residency_send(r);
        const int swapped = residency_apply(r, list, n + 2, swaps, &err);
        CHECK(swapped >= 0 && swapped <= n);
        for (int i = 0; i < swapped; i++)
            d.content[swaps[i].place] = swaps[i].layer * EXPERTS + swaps[i].expert;
        check_books(&d, r);
        memcpy(d.seen, d.map, sizeof d.seen);
        check_device(&d, r);
        for (int p = 0; p < residency_places(r); p++)
            if (residency_state(r, p) == PLACE_READY) room[p >= residency_pool(r, 2)->first]++;
        for (int i = 0; i < n; i++) {
            const int pool = list[i] / EXPERTS % 3 == 2;
            if (asked[pool]++ < room[pool] / 2)
                CHECK_MSG(residency_find(r, list[i] / EXPERTS, list[i] % EXPERTS) >= 0 ||
                          d.n_queue > 0, "expert %d of the list is missing", i);
        }
    }
    residency_free(r);
}

/* The list has all that is there, in the order of value. */
static void test_list(void)
{
    static device d;
    int list[LAYERS * EXPERTS];
    residency *r = begin(&d, 4, CACHE_LCP, 8, 11);
    if (!r) return;
    for (int l = 0; l < LAYERS; l++) residency_seed(r, l, 2, 50 - l);
    const int n = residency_list(r, list, LAYERS * EXPERTS);
    CHECK(n == 4 * LAYERS);
    for (int l = 0; l < LAYERS; l++) CHECK(list[l] == l * EXPERTS + 2);
    for (int i = 0; i < n; i++) CHECK(residency_find(r, list[i] / EXPERTS, list[i] % EXPERTS) >= 0);
    CHECK(residency_list(r, list, 3) == 3);
    residency_free(r);
}

static void test_sizes(void)
{
    static device d;
    place_mover mover = { &d, send, passed };
    residency *r = NULL;
    err_ctx err = { 0 };
    residency_options o = { .n_layer = LAYERS, .bytes = bytes_for(USED) - 1, .map = d.map };
    CHECK(residency_create(&r, &banks, &o, &mover, &err) == ERR_RANGE && !r);
    CHECK_MSG(strstr(err.msg, "17 experts fit in") != NULL, "%s", err.msg);
    o.bytes = bytes_for(EXPERTS) + 12345;
    CHECK(residency_create(&r, &banks, &o, &mover, &err) == 0);
    CHECK(r && residency_places(r) == LAYERS * EXPERTS && residency_share(r, 2) == EXPERTS);
    CHECK(r && residency_all_bytes(r) == bytes_for(EXPERTS));
    residency_free(r);
    for (o.bytes = bytes_for(USED); o.bytes < bytes_for(EXPERTS); o.bytes += 1777) {
        r = NULL;
        CHECK(residency_create(&r, &banks, &o, &mover, &err) == 0);
        if (!r) return;
        int sum = 0;
        for (int l = 0; l < LAYERS; l++) sum += residency_share(r, l);
        CHECK(sum == residency_places(r) && residency_all_bytes(r) <= o.bytes);
        for (int p = 0; p < residency_places(r); p++)
            CHECK(residency_at(r, p, SLAB_DOWN) % PLACE_ALIGN == 0 &&
                  residency_at(r, p, SLAB_DOWN) < residency_all_bytes(r));
        residency_free(r);
    }
}

int main(int argc, char **argv)
{
    test_begin("residency", argc, argv);
    make_banks();
    test_sizes();
    test_walk();
    test_learns();
    test_prompt();
    test_list();
    test_apply();
    return test_end();
}
