/* test_frame_table.c - the books of experts in VRAM, over a device that is made up.
 *
 * The device has memory, where a copy writes its expert's name, and a map that it gets when a turn
 * says so. Copies end when they like, or are lost. While a token runs, every expert that the
 * device's map names must be where it says. After each turn the books are compared with what can be
 * counted. Where experts are moved, RAM is made up, too: every expert must be in VRAM or in its
 * slot, whatever is lost on the way. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/frame_table.h"
#include "tests/test.h"

enum { LAYERS = 6, EXPERTS = 24, USED = 3, MOST_PLACES = LAYERS * EXPERTS, NOTHING = -1,
       POOLS = 2, MOST_SLOTS = MOST_PLACES + POOLS * FREE_RAM_FRAMES };

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

typedef struct sent { int layer, expert, place, mark, slot; } sent;      /* slot: to RAM */

typedef struct device {
    int32_t map[LAYERS * EXPERTS];       /* the books' */
    int32_t seen[LAYERS * EXPERTS];      /* the device's copy */
    int content[MOST_PLACES];            /* layer * EXPERTS + expert, or NOTHING */
    sent queue[FRAME_TABLE_EVENTS];
    int n_queue, n_sent;
    bool passed[FRAME_TABLE_EVENTS];
    int shift;                           /* of what is popular */
    int lose_in, refuse_in;              /* sends until something goes wrong; 0: never */
    bool lost;
    ram_frames *slots;                   /* NULL: every expert is in RAM */
    int seen_slot[LAYERS * EXPERTS];     /* as of the last turn, or NOTHING */
    int in_slot[MOST_SLOTS];             /* layer * EXPERTS + expert, or NOTHING */
    int n_saved;
    test_rng rng;
} device;

static bool send(void *self, int layer, int expert, int place, int i)
{
    device *d = self;
    if (d->refuse_in > 0 && --d->refuse_in == 0) return false;
    if (d->lose_in > 0 && --d->lose_in == 0) d->lost = true;
    CHECK(d->n_queue < FRAME_TABLE_EVENTS);
    d->queue[d->n_queue++] = (sent){ layer, expert, place, i, NOTHING };
    d->content[place] = NOTHING;         /* half-written from now on */
    d->passed[i] = false;
    d->n_sent++;
    if (d->slots) {
        const int slot = ram_frames_find(d->slots, layer, expert);
        CHECK(slot >= 0 && d->in_slot[slot] == layer * EXPERTS + expert);
    }
    return true;
}

static bool save(void *self, int layer, int expert, int place, int slot, int i)
{
    device *d = self;
    if (d->refuse_in > 0 && --d->refuse_in == 0) return false;
    if (d->lose_in > 0 && --d->lose_in == 0) d->lost = true;
    CHECK(d->n_queue < FRAME_TABLE_EVENTS && d->content[place] == layer * EXPERTS + expert);
    d->queue[d->n_queue++] = (sent){ layer, expert, place, i, slot };
    d->in_slot[slot] = NOTHING;
    d->passed[i] = false;
    d->n_saved++;
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
        const int id = s.layer * EXPERTS + s.expert;
        if (s.slot != NOTHING) d->in_slot[s.slot] = d->content[s.place];
        else d->content[s.place] = d->slots ? d->in_slot[ram_frames_find(d->slots, s.layer,
                                                                          s.expert)] : id;
        d->passed[s.mark] = true;
        memmove(d->queue, d->queue + 1, (size_t)--d->n_queue * sizeof *d->queue);
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What the device would read now. */
static void check_device(const device *d, const frame_table *r)
{
    int wrong = 0;
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        if (d->seen[i] >= 0)
            wrong += d->content[frame_table_pool(r, i / EXPERTS)->first + d->seen[i]] != i;
        else if (d->slots)
            wrong += d->seen_slot[i] == NOTHING || d->in_slot[d->seen_slot[i]] != i;
    }
    CHECK_MSG(wrong == 0, "%d experts are not where the device looks for them", wrong);
}

/* Every expert is in a place or in a slot, and no slot is lost: those that are free or taken are as
 * many as the spares, less what EMPTY places keep in RAM. */
static void check_slots(const device *d, const frame_table *r)
{
    int owner[MOST_SLOTS], wrong = 0, n_slot[POOLS] = { 0 }, all[POOLS] = { 0 };
    int n_free[POOLS], n_taken[POOLS] = { 0 }, n_there[POOLS] = { 0 };
    for (int s = 0; s < MOST_SLOTS; s++) owner[s] = NOTHING;
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        const int l = i / EXPERTS, slot = ram_frames_find(d->slots, l, i % EXPERTS);
        wrong += (slot >= 0) == (frame_table_find(r, l, i % EXPERTS) >= 0);
        all[l % 3 == 2]++;
        n_there[l % 3 == 2] += slot < 0;
        if (slot < 0) continue;
        wrong += owner[slot] != NOTHING;
        owner[slot] = i;
        n_slot[l % 3 == 2]++;
    }
    for (int pool = 0; pool < POOLS; pool++) n_free[pool] = ram_frames_left(d->slots, 2 * pool);
    for (int p = 0; p < frame_table_count(r); p++)
        n_taken[p >= frame_table_pool(r, 2)->first] += frame_table_state(r, p) == FRAME_LEAVING;
    for (int pool = 0; pool < POOLS; pool++) {
        const int places = frame_table_pool(r, 2 * pool)->n;
        wrong +=
            n_slot[pool] + n_free[pool] + n_taken[pool] != all[pool] - places + FREE_RAM_FRAMES;
        wrong += n_slot[pool] + n_there[pool] != all[pool] || n_there[pool] > places;
    }
    CHECK_MSG(wrong == 0, "%d entries of the slots are wrong", wrong);
}

static void check_books(const device *d, const frame_table *r)
{
    int owner[MOST_PLACES], n_ready[LAYERS] = { 0 }, wrong = 0;
    for (int p = 0; p < frame_table_count(r); p++) owner[p] = NOTHING;
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        const int l = i / EXPERTS, place = frame_table_find(r, l, i % EXPERTS);
        wrong += (place < 0) != (d->map[i] < 0);
        if (place < 0) continue;
        const frame_pool *pool = frame_table_pool(r, l);
        wrong += place < pool->first || place >= pool->first + pool->n || owner[place] != NOTHING;
        wrong += frame_table_state(r, place) != FRAME_READY &&
                 frame_table_state(r, place) != FRAME_LEAVING;
        owner[place] = i;
        n_ready[l]++;
    }
    for (int p = 0; p < frame_table_count(r); p++)
        wrong += (frame_table_state(r, p) == FRAME_READY ||
                  frame_table_state(r, p) == FRAME_LEAVING) != (owner[p] != NOTHING);
    for (int l = 0; l < LAYERS; l++) wrong += frame_table_ready(r, l) != n_ready[l];
    CHECK_MSG(wrong == 0, "%d entries of the books are wrong", wrong);
    if (d->slots) check_slots(d, r);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static uint64_t bytes_for(int each) { return frame_table_bytes(&banks, LAYERS, each); }

/* The device learns what the books say. */
static void publish(device *d)
{
    memcpy(d->seen, d->map, sizeof d->seen);
    for (int i = 0; i < LAYERS * EXPERTS && d->slots; i++)
        d->seen_slot[i] = ram_frames_find(d->slots, i / EXPERTS, i % EXPERTS);
}

static bool begin_slots(device *d, const int *n_place)
{
    err_ctx err = { 0 };
    for (int s = 0; s < MOST_SLOTS; s++) d->in_slot[s] = NOTHING;
    return CHECK_MSG(ram_frames_create(&d->slots, &banks, n_place, &err) == 0, "%s", err.msg);
}

/* What has no place gets a slot. */
static void fill_slots(device *d, const frame_table *r)
{
    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        const int l = i / EXPERTS, e = i % EXPERTS;
        if (frame_table_find(r, l, e) >= 0) continue;
        const int slot = ram_frames_take(d->slots, l);
        if (!CHECK(slot >= 0)) return;
        ram_frames_put(d->slots, slot, l, e);
        d->in_slot[slot] = i;
    }
}

#define MARGIN 0.3

typedef struct rules { cache_policy policy; double margin; int uploads; bool moved; } rules;

static frame_table *begin_by(device *d, int each, const rules *by, uint64_t seed)
{
    static frame_mover mover;
    frame_table *r = NULL;
    int n_place[LAYERS];
    err_ctx err = { 0 };
    *d = (device){ .rng = { seed } };
    for (int p = 0; p < MOST_PLACES; p++) d->content[p] = NOTHING;
    for (int l = 0; l < LAYERS; l++) n_place[l] = each + (l == 0);
    if (by->moved && !begin_slots(d, n_place)) return NULL;
    mover = (frame_mover){ d, send, passed, by->moved ? save : NULL };
    const frame_table_options o = { .n_layer = LAYERS, .bytes = bytes_for(each),
                                  .policy = by->policy, .most_uploads = by->uploads,
                                  .margin = by->margin, .map = d->map, .slots = d->slots,
                                  .n_place = by->moved ? n_place : NULL };
    CHECK_MSG(frame_table_create(&r, &banks, &o, &mover, &err) == 0, "%s", err.msg);
    for (int l = 0; r && l < LAYERS; l++)
        for (int e = 0; e < frame_table_share(r, l); e++) {
            const int place = frame_table_put(r, l, e);
            CHECK(place >= 0);
            if (place >= 0) d->content[place] = l * EXPERTS + e;
        }
    if (r && by->moved) fill_slots(d, r);
    publish(d);
    return r;
}

static frame_table *begin_with(device *d, int each, cache_policy policy, int uploads, uint64_t seed,
                               bool moved)
{
    return begin_by(d, each, &(rules){ policy, MARGIN, uploads, moved }, seed);
}

static frame_table *begin(device *d, int each, cache_policy policy, int uploads, uint64_t seed)
{
    return begin_with(d, each, policy, uploads, seed, false);
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
static int run_token(device *d, frame_table *r, bool even)
{
    int hits = 0;
    check_device(d, r);
    frame_table_send(r, INT_MAX);
    for (int l = 0; l < LAYERS; l++) {
        uint32_t chosen[USED];
        for (int k = 0; k < USED; k++) {
            const int e = draw(d, l, even);
            hits += d->seen[l * EXPERTS + e] >= 0;
            chosen[k] = (uint32_t)e | test_below(&d->rng, 4) << 16;
        }
        let_arrive(d, (int)test_below(&d->rng, 3));
        check_device(d, r);
        frame_table_chosen(r, l, chosen, USED);
    }
    return hits;
}

static void turn(device *d, frame_table *r)
{
    err_ctx err = { 0 };
    const int rc = frame_table_exchange(r, true, &err);
    if (rc != 0) publish(d);
    else CHECK(memcmp(d->seen, d->map, sizeof d->seen) == 0);
    CHECK(rc <= 1 && (rc >= 0 || strcmp(err.msg, "made up") == 0 || err.code == ERR_IO));
    check_books(d, r);
}

static void run_prompt(device *d, frame_table *r, bool interrupted)
{
    frame_table_swap swaps[EXPERTS];
    for (int l = 0; l < LAYERS; l++) {
        int32_t counts[EXPERTS] = { 0 };
        for (int i = 0; i < 20 * USED; i++) counts[draw(d, l, false)]++;
        const int cap = (int)test_below(&d->rng, EXPERTS + 1);
        const int n = frame_table_prompt(r, l, counts, NULL, swaps, cap);
        CHECK(n <= (d->slots ? 0 : cap));
        for (int i = 0; i < n; i++) {
            CHECK(counts[swaps[i].expert] > 0);
            if (interrupted && test_below(&d->rng, 4) == 0) frame_table_lose(r, swaps[i].place);
            else d->content[swaps[i].place] = l * EXPERTS + swaps[i].expert;
        }
        check_books(d, r);
    }
    publish(d);
    check_device(d, r);
}

/* 200,000 choices in all: tokens, prompts, faults. */
static void test_walk(void)
{
    static device d;
    for (int policy = 0; policy < CACHE_POLICIES; policy++)
        for (int faults = 0; faults < 2; faults++) {
            frame_table *r = begin(&d, 5 + 6 * faults, (cache_policy)policy, 1 + 7 * faults,
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
            const frame_table_stats s = frame_table_counts(r);
            CHECK_MSG(s.uploads > 50 && s.evictions > 50 && s.swaps > 10, "%s: %llu uploads, %llu "
                      "evictions, %llu swaps", cache_policy_name((cache_policy)policy),
                      (unsigned long long)s.uploads, (unsigned long long)s.evictions,
                      (unsigned long long)s.swaps);
            CHECK(s.hits + s.misses == 1400u * LAYERS * USED && (s.failures > 10) == faults);
            frame_table_free(r);
        }
}

static void walk_moved(device *d, frame_table *r, bool faults)
{
    for (int t = 0; t < 1500; t++) {
        if (faults && test_below(&d->rng, 8) == 0) d->lose_in = 1 + (int)test_below(&d->rng, 4);
        if (faults && test_below(&d->rng, 8) == 0) d->refuse_in = 1 + (int)test_below(&d->rng, 4);
        d->shift = t / 100;
        if (test_below(&d->rng, 40) == 0) run_prompt(d, r, false);
        if (test_below(&d->rng, 5) == 0)                 /* one that is there, or not, or coming */
            frame_table_pin(r, (int)test_below(&d->rng, LAYERS), t % EXPERTS, t % 3 == 0);
        run_token(d, r, t % 300 < 100);
        turn(d, r);
        if (test_below(&d->rng, 10) == 0) turn(d, r);    /* twice without a send */
    }
}

/* 200,000 choices more, of experts that are in VRAM or in RAM and not in both. */
static void test_moved(void)
{
    static device d;
    for (int policy = 0; policy < CACHE_POLICIES; policy++)
        for (int faults = 0; faults < 2; faults++) {
            frame_table *r = begin_with(&d, 5 + 6 * faults, (cache_policy)policy, 3 + 20 * faults,
                                        200 + (uint64_t)(2 * policy + faults), true);
            if (r) walk_moved(&d, r, faults == 1);
            const frame_table_stats s = r ? frame_table_counts(r) : (frame_table_stats){ 0 };
            CHECK_MSG(s.uploads > 50 && s.saves > 50 && s.evictions == s.saves && s.swaps == 0 &&
                      (s.failures > 10) == faults, "%s: %llu uploads, %llu saves, %llu evictions",
                      cache_policy_name((cache_policy)policy), (unsigned long long)s.uploads,
                      (unsigned long long)s.saves, (unsigned long long)s.evictions);
            frame_table_free(r);
            ram_frames_free(d.slots);
        }
}

/* Once the copies of a round have arrived, twice, there is room for the next. */
static int bring(device *d, frame_table *r, const int *list, int n)
{
    err_ctx err = { 0 };
    int rounds = 0;
    for (int asked; rounds < 100 && (asked = frame_table_ask(r, list, n, &err)) != 0; rounds++)
        for (int way = 0; way < 2; way++) {
            CHECK(asked > 0 && asked <= POOLS * FREE_RAM_FRAMES);
            frame_table_send(r, INT_MAX);
            let_arrive(d, FRAME_TABLE_EVENTS);
            CHECK(frame_table_take_in(r, &err) == 1);
            publish(d);
            check_books(d, r);
            check_device(d, r);
        }
    return rounds;
}

static void test_ask(void)
{
    static device d;
    frame_table *r = begin_with(&d, 12, CACHE_LCP, 8, 17, true);
    int list[12 * LAYERS + 2], n = 0, n_leaving = 0;
    const int back = 0;
    err_ctx err = { 0 };
    if (!r) return;
    for (int l = 0; l < LAYERS; l++)
        for (int e = 12; e < 24; e++) list[n++] = l * EXPERTS + e;
    list[n++] = -1;
    list[n++] = LAYERS * EXPERTS;
    CHECK(bring(&d, r, list, n) == 48 / FREE_RAM_FRAMES);
    for (int i = 0; i < n - 2; i++)
        CHECK(frame_table_find(r, list[i] / EXPERTS, list[i] % EXPERTS) >= 0);
    CHECK(bring(&d, r, list, n) == 0);
    CHECK(frame_table_ask(r, &back, 1, &err) == 1);
    for (int i = 0; i < LAYERS * EXPERTS; i++) {         /* who leaves just now cannot come */
        const int place = frame_table_find(r, i / EXPERTS, i % EXPERTS);
        if (place < 0 || frame_table_state(r, place) != FRAME_LEAVING) continue;
        CHECK(frame_table_ask(r, &i, 1, &err) == 0);
        n_leaving++;
    }
    CHECK(n_leaving == 1);
    frame_table_free(r);
    ram_frames_free(d.slots);
}

/* With uneven choices a third of the experts soon holds most of what is chosen: as much as the best
 * third would, or nearly. */
static void test_learns(void)
{
    static device d, reference;
    int best = 0;
    frame_table *r = begin(&d, EXPERTS / 3, CACHE_LCP, 8, 7);
    if (!r) return;
    for (int t = 0; t < 400; t++) {
        run_token(&d, r, false);
        turn(&d, r);
    }
    reference = d;                       /* what the most popular ones of each layer would hold */
    int hits = 0, n = 0, counts[LAYERS][EXPERTS] = { { 0 } };
    for (int i = 0; i < 4000; i++)
        for (int l = 0; l < LAYERS; l++) counts[l][draw(&reference, l, false)]++;
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
    frame_table_free(r);
}

/* Tokens until an expert that each of them chooses takes the place of the weakest; < 0: it never
 * does. */
static int tokens_until(device *d, frame_table *r, int layer, int expert)
{
    const uint32_t chosen = (uint32_t)expert;
    for (int t = 1; t <= 100; t++) {
        frame_table_chosen(r, layer, &chosen, 1);
        turn(d, r);
        frame_table_send(r, INT_MAX);
        let_arrive(d, FRAME_TABLE_EVENTS);
        if (d->n_sent > 0) return t;
    }
    return -1;
}

static void seed_ready(frame_table *r, double frequency)
{
    for (int i = 0; i < LAYERS * EXPERTS; i++)
        if (frame_table_find(r, i / EXPERTS, i % EXPERTS) >= 0)
            frame_table_seed(r, i / EXPERTS, i % EXPERTS, frequency);
}

/* Margins are uses as of now: whoever is there has had 8 of them, which fade, and so do those of
 * the newcomer, which was popular once: of its 1000 uses next to nothing is left. */
static void test_margin(void)
{
    static device d;
    for (int once = 0; once < 2; once++) {
        frame_table *r = begin(&d, 4, CACHE_FADE, 8, 15);
        const double fade = exp2(-1.0 / 128);
        double there = 8, new = once ? 1000.0 / 1024 : 0;
        int want = 0;
        if (!r) return;
        if (once) frame_table_seed(r, 1, 20, 1000);
        for (int i = 0; i < 1280 && once; i++) turn(&d, r);
        seed_ready(r, there);
        for (; new - there <= MARGIN; want++) {
            there *= fade;
            new = (new + 1) * fade;
        }
        const int is = tokens_until(&d, r, 1, 20);
        CHECK_MSG(is == want, "after %d tokens, not %d", is, want);
        frame_table_free(r);
    }
}

/* How many fresh uses are worth a copy where next to nothing is known of the weakest: by the
 * policies' own margins. */
static void test_own_margins(void)
{
    static const int want[CACHE_POLICIES] = {
        [CACHE_LRU] = 1, [CACHE_LCP] = 2, [CACHE_FADE] = 3,
    };
    static device d;
    for (int p = 0; p < CACHE_POLICIES; p++) {
        const rules own = { (cache_policy)p, cache_policy_margin((cache_policy)p), 8, false };
        frame_table *r = begin_by(&d, 4, &own, 15);
        if (!r) return;
        seed_ready(r, 0.01);
        const int is = tokens_until(&d, r, 1, 20);
        CHECK_MSG(is == want[p], "%s: after %d uses, not %d", cache_policy_name((cache_policy)p),
                  is, want[p]);
        frame_table_free(r);
    }
}

/* Between tokens a place costs a copy over the bus, and what is a little more popular is not worth
 * it; in a prompt it costs next to nothing. */
static void test_margin_of_prompts(void)
{
    static device d;
    const uint32_t chosen[2] = { 20, 21 };
    const double more = 7 + MARGIN / 2, less = 7 - MARGIN / 2;   /* and one use, to 8 */
    frame_table *r = begin(&d, 4, CACHE_FADE, 8, 15);
    frame_table_swap swaps[EXPERTS];
    int32_t counts[EXPERTS] = { 0 };
    if (!r) return;
    seed_ready(r, 8);
    frame_table_seed(r, 1, 20, more);
    frame_table_seed(r, 1, 21, less);
    frame_table_chosen(r, 1, chosen, 2);
    turn(&d, r);
    frame_table_send(r, INT_MAX);
    CHECK(d.n_sent == 0 && frame_table_counts(r).refused > 0);
    seed_ready(r, 8);
    frame_table_seed(r, 1, 20, more);
    frame_table_seed(r, 1, 21, less);
    counts[20] = counts[21] = 1;
    CHECK(frame_table_prompt(r, 1, counts, NULL, swaps, EXPERTS) == 1 && swaps[0].expert == 20);
    frame_table_free(r);
}

/* A prompt alone fills the places with what it wants. */
static void test_prompt(void)
{
    static device d;
    frame_table *r = begin(&d, 4, CACHE_LCP, 8, 9);
    frame_table_swap swaps[EXPERTS];
    if (!r) return;
    for (int l = 0; l < LAYERS; l++) {
        int32_t counts[EXPERTS] = { 0 };
        for (int i = 0; i < 4; i++) counts[(5 * i + 3 * l) % EXPERTS] = 10 + i;
        counts[(5 * 4 + 3 * l) % EXPERTS] = 1;
        frame_table_prompt(r, l, counts, NULL, swaps, EXPERTS);
        for (int i = 0; i < 4; i++) CHECK(frame_table_find(r, l, (5 * i + 3 * l) % EXPERTS) >= 0);
        CHECK(frame_table_ready(r, l) == 4);
    }
    check_books(&d, r);
    frame_table_free(r);

    r = begin(&d, 4, CACHE_LCP, 0, 9);   /* nothing may change */
    if (!r) return;
    int32_t counts[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) counts[e] = e;
    CHECK(frame_table_prompt(r, 0, counts, NULL, swaps, EXPERTS) == 0);
    for (int t = 0; t < 20; t++) {
        run_token(&d, r, true);
        turn(&d, r);
    }
    CHECK(d.n_sent == 0 && frame_table_counts(r).evictions == 0);
    frame_table_free(r);
}

/* What is asked for is there at once, as far as there are places, and nothing is there twice. */
static void test_apply(void)
{
    static device d;
    frame_table *r = begin(&d, 5, CACHE_LCP, 8, 13);
    frame_table_swap swaps[LAYERS * EXPERTS + 2];
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
        frame_table_send(r, INT_MAX);
        const int swapped = frame_table_apply(r, list, n + 2, swaps, &err);
        CHECK(swapped >= 0 && swapped <= n);
        for (int i = 0; i < swapped; i++)
            d.content[swaps[i].place] = swaps[i].layer * EXPERTS + swaps[i].expert;
        check_books(&d, r);
        memcpy(d.seen, d.map, sizeof d.seen);
        check_device(&d, r);
        for (int p = 0; p < frame_table_count(r); p++)
            if (frame_table_state(r, p) == FRAME_READY) room[p >= frame_table_pool(r, 2)->first]++;
        for (int i = 0; i < n; i++) {
            const int pool = list[i] / EXPERTS % 3 == 2;
            if (asked[pool]++ < room[pool] / 2)
                CHECK_MSG(frame_table_find(r, list[i] / EXPERTS, list[i] % EXPERTS) >= 0 ||
                          d.n_queue > 0, "expert %d of the list is missing", i);
        }
    }
    frame_table_free(r);
}

/* The list has all that is there, in the order of value. */
static void test_list(void)
{
    static device d;
    int list[LAYERS * EXPERTS];
    frame_table *r = begin(&d, 4, CACHE_LCP, 8, 11);
    if (!r) return;
    for (int l = 0; l < LAYERS; l++) frame_table_seed(r, l, 2, 50 - l);
    const int n = frame_table_list(r, list, LAYERS * EXPERTS);
    CHECK(n == 4 * LAYERS);
    for (int l = 0; l < LAYERS; l++) CHECK(list[l] == l * EXPERTS + 2);
    for (int i = 0; i < n; i++)
        CHECK(frame_table_find(r, list[i] / EXPERTS, list[i] % EXPERTS) >= 0);
    CHECK(frame_table_list(r, list, 3) == 3);
    frame_table_free(r);
}

/* The places have frequencies 10 to 13 in every layer, and a missing expert comes for each that it
 * beats by more than 1. */
static void test_missing(void)
{
    static const struct { double high, low; int pinned, n, n_then; const char *why; } rows[] = {
        { 100, 11.5, 0, LAYERS, 2 * LAYERS, "a little more is not enough" },
        { 100, 12.5, 0, 2 * LAYERS, 3 * LAYERS, "the second beat the second weakest" },
        { 100, 12.5, 2, 2 * LAYERS - 2, 3 * LAYERS - 2, "two of the weakest stay" },
        { 10.5, 10.5, 0, 0, LAYERS, "none beats any" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        static device d;
        int list[LAYERS * EXPERTS];
        frame_table *r = begin_by(&d, 4, &(rules){ CACHE_LCP, 1, 8, false }, 17);
        if (!r) return;
        CHECK(frame_table_missing(r, list, LAYERS * EXPERTS) == 0);      /* nothing was used yet */
        for (int l = 0; l < LAYERS; l++) {
            for (int e = 0; e < 4; e++) frame_table_seed(r, l, e, 10 + e);
            frame_table_seed(r, l, 5, rows[i].low);
            frame_table_seed(r, l, 6, rows[i].high);
        }
        for (int l = 0; l < rows[i].pinned; l++) frame_table_pin(r, l, 0, true);
        const int n = frame_table_missing(r, list, LAYERS * EXPERTS);
        CHECK_MSG(n == rows[i].n, "%s: %d, not %d", rows[i].why, n, rows[i].n);
        for (int k = 0; k < n; k++)
            CHECK_MSG(list[k] % EXPERTS == (k < LAYERS ? 6 : 5), "%s: %d is number %d",
                      rows[i].why, list[k], k);
        CHECK(frame_table_missing(r, list, 2) == min_int(n, 2));
        /* EMPTY places for as many; and those of 13 are missing, too */
        for (int l = 0; l < LAYERS; l++) frame_table_lose(r, frame_table_find(r, l, 3));
        const int n_then = frame_table_missing(r, list, LAYERS * EXPERTS);
        CHECK_MSG(n_then == rows[i].n_then, "%s: %d with EMPTY places, not %d", rows[i].why, n_then,
                  rows[i].n_then);
        frame_table_free(r);
    }
}

/* Whatever comes in, and by whichever way. */
static void test_pinned(void)
{
    static const expert_id pinned[] = { { 0, 0 }, { 2, 1 }, { 5, 3 } };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        static device d;
        frame_table_swap swaps[LAYERS * EXPERTS];
        int list[LAYERS * EXPERTS];
        err_ctx err = { 0 };
        frame_table *r = begin(&d, 4, (cache_policy)p, 8, 19);
        if (!r) return;
        for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
            frame_table_pin(r, pinned[i].layer, pinned[i].index, true);
        for (int t = 0; t < 300; t++) {
            run_token(&d, r, true);
            turn(&d, r);
        }
        for (int l = 0; l < LAYERS; l++) {
            int32_t counts[EXPERTS];
            for (int e = 0; e < EXPERTS; e++) counts[e] = e > 8 ? 1000 : 0;
            const int n = frame_table_prompt(r, l, counts, NULL, swaps, EXPERTS);
            for (int i = 0; i < n; i++) d.content[swaps[i].place] = l * EXPERTS + swaps[i].expert;
        }
        for (int i = 0; i < LAYERS * EXPERTS; i++) list[i] = LAYERS * EXPERTS - 1 - i;
        CHECK(frame_table_apply(r, list, LAYERS * 10, swaps, &err) >= 0);
        for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
            CHECK_MSG(frame_table_find(r, pinned[i].layer, pinned[i].index) >= 0,
                      "%s: pinned expert %d made room", cache_policy_name((cache_policy)p), (int)i);
        CHECK(frame_table_counts(r).evictions > 0);
        frame_table_free(r);
    }
}

static void test_sizes(void)
{
    static device d;
    frame_mover mover = { &d, send, passed, NULL };
    frame_table *r = NULL;
    err_ctx err = { 0 };
    frame_table_options o = { .n_layer = LAYERS, .bytes = bytes_for(USED) - 1, .map = d.map };
    CHECK(frame_table_create(&r, &banks, &o, &mover, &err) == ERR_RANGE && !r);
    CHECK_MSG(strstr(err.msg, "17 experts fit in") != NULL, "%s", err.msg);
    o.bytes = bytes_for(EXPERTS) + 12345;
    CHECK(frame_table_create(&r, &banks, &o, &mover, &err) == 0);
    CHECK(r && frame_table_count(r) == LAYERS * EXPERTS && frame_table_share(r, 2) == EXPERTS);
    CHECK(r && frame_table_all_bytes(r) == bytes_for(EXPERTS));
    frame_table_free(r);
    for (o.bytes = bytes_for(USED); o.bytes < bytes_for(EXPERTS); o.bytes += 1777) {
        r = NULL;
        CHECK(frame_table_create(&r, &banks, &o, &mover, &err) == 0);
        if (!r) return;
        int sum = 0;
        for (int l = 0; l < LAYERS; l++) sum += frame_table_share(r, l);
        CHECK(sum == frame_table_count(r) && frame_table_all_bytes(r) <= o.bytes);
        for (int p = 0; p < frame_table_count(r); p++)
            CHECK(frame_table_at(r, p, SLAB_DOWN) % FRAME_ALIGN == 0 &&
                  frame_table_at(r, p, SLAB_DOWN) < frame_table_all_bytes(r));
        frame_table_free(r);
    }
}

/* The first layer has no experts: it gets no place, whoever asks for one, and a token chooses
 * nothing there. by_layer: places are given for each layer, and those of that one are ignored. */
static void test_dense_layer(bool by_layer)
{
    static const int n_place[LAYERS] = { EXPERTS, USED, USED, USED, USED, USED };
    const int asked[] = { 0, 1, EXPERTS, EXPERTS + 1, EXPERTS - 1 };
    const uint32_t chosen[USED] = { 0, 1, 2 };
    const expert_bank kept = bank_list[0];
    const frame_mover mover = { NULL, send, NULL, NULL };
    frame_table_swap swaps[ARRAY_LEN(asked)];
    frame_table *r = NULL;
    err_ctx err = { 0 };
    int32_t map[LAYERS * EXPERTS];
    bank_list[0] = (expert_bank){ .n_expert = 0 };
    frame_table_options o = { .n_layer = LAYERS, .policy = CACHE_LRU, .map = map,
                            .bytes = frame_table_bytes(&banks, LAYERS, USED),
                            .n_place = by_layer ? n_place : NULL };
    if (CHECK_MSG(frame_table_create(&r, &banks, &o, &mover, &err) == 0, "%s", err.msg)) {
        CHECK(frame_table_count(r) == (LAYERS - 1) * USED && frame_table_all_bytes(r) == o.bytes);
        CHECK(frame_table_share(r, 0) == 0 && frame_table_share(r, 1) == USED);
        CHECK(frame_table_put(r, 0, 3) < 0 && frame_table_find(r, 0, 3) < 0);
        frame_table_chosen(r, 0, chosen, USED);
        CHECK(frame_table_exchange(r, true, &err) == 0 && frame_table_ready(r, 0) == 0);
        CHECK(frame_table_apply(r, asked, ARRAY_LEN(asked), swaps, &err) == 2);
        CHECK(frame_table_ready(r, 0) == 0 && frame_table_ready(r, 1) == 2);
        for (int p = 0; p < frame_table_count(r); p++)
            CHECK(frame_table_at(r, p, SLAB_DOWN) < frame_table_all_bytes(r));
    }
    frame_table_free(r);
    o.bytes -= 1;                        /* one expert fewer than a token chooses */
    o.n_place = NULL;
    CHECK(frame_table_create(&r, &banks, &o, &mover, &err) == ERR_RANGE && !r);
    bank_list[0] = kept;
}

int main(int argc, char **argv)
{
    test_begin("residency", argc, argv);
    make_banks();
    test_sizes();
    test_walk();
    test_moved();
    test_ask();
    test_learns();
    test_margin();
    test_own_margins();
    test_margin_of_prompts();
    test_prompt();
    test_list();
    test_missing();
    test_pinned();
    test_apply();
    test_dense_layer(false);
    test_dense_layer(true);
    return test_end();
}
