/* test_frame_table.c - which expert is in which frame, over a device that is simulated.
 *
 * The device has memory, where a copy writes its expert's name, and a map that it gets after an
 * exchange. Copies arrive at random, or fail. While a token runs, every expert that the device's
 * map names must be in its frame. After each exchange the table must agree with itself. Where
 * experts are moved, RAM is simulated, too: every expert is in VRAM or in its RAM frame, after
 * any failure. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "moe/frame_table.h"
#include "tests/test.h"

enum { LAYERS = 6, EXPERTS = 24, USED = 3, ALL = LAYERS * EXPERTS, NOTHING = -1,
       POOLS = 2, MAX_RAM = ALL + POOLS * RAM_FRAMES_SPARE };

/* ---- banks: two sizes ------------------------------------------------------------------------ */

static tensor tensors[2][SLAB_COUNT];
static expert_bank bank_list[LAYERS];
static expert_banks banks = { .n_layer = LAYERS, .n_expert = EXPERTS, .n_used = USED,
                              .of = bank_list };

static int pool_of(int layer) { return layer % 3 == 2; }

static void make_banks(void)
{
    for (int pool = 0; pool < POOLS; pool++)
        for (int s = 0; s < SLAB_COUNT; s++)
            tensors[pool][s].row_bytes = (uint64_t)(pool && s == SLAB_DOWN ? 50 : 34);
    for (int l = 0; l < LAYERS; l++) {
        bank_list[l] = (expert_bank){ .n_expert = EXPERTS, .n_embd = 64, .n_ff = 32 };
        for (int s = 0; s < SLAB_COUNT; s++) bank_list[l].weight[s] = &tensors[pool_of(l)][s];
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct device {
    int32_t map[ALL];                    /* the table's */
    int32_t published[ALL];              /* the device's copy */
    int content[ALL];                    /* of a frame: layer * EXPERTS + expert, or NOTHING */
    frame_copy queue[FRAME_TABLE_EVENTS];
    int n_queue, n_submitted;
    bool passed[FRAME_TABLE_EVENTS];
    int shift;                           /* of what is popular */
    int fail_in, refuse_in;              /* copies until one fails, or cannot begin; 0: never */
    bool failed;
    ram_frames *ram;                     /* NULL: every expert is in RAM */
    int published_ram[ALL];              /* each expert's RAM frame at the last exchange */
    int ram_content[MAX_RAM];
    bool lent[ALL];                      /* frames that serve something else */
    test_rng rng;
} device;

static void submit(device *d, frame_table *t)
{
    for (frame_copy c; frame_table_next_copy(t, &c);) {
        const int id = c.layer * EXPERTS + c.expert;
        if (d->refuse_in > 0 && --d->refuse_in == 0) {
            const int event = frame_table_next_event(t);
            frame_table_cancel(t, false);
            CHECK(frame_table_next_event(t) == event);   /* of a copy that was submitted */
            return;
        }
        if (d->fail_in > 0 && --d->fail_in == 0) d->failed = true;
        if (!CHECK(d->n_queue < FRAME_TABLE_EVENTS)) return;
        if (c.ram_frame >= 0) {
            CHECK(d->content[c.frame] == id);
            d->ram_content[c.ram_frame] = NOTHING;       /* half-written from now on */
        } else {
            if (d->ram) CHECK(d->ram_content[ram_frames_find(d->ram, c.layer, c.expert)] == id);
            d->content[c.frame] = NOTHING;
        }
        d->queue[d->n_queue++] = c;
        d->passed[c.event] = false;
        d->n_submitted++;
        frame_table_submitted(t);
    }
}

/* The oldest n copies arrive. */
static void let_arrive(device *d, int n)
{
    for (; n > 0 && d->n_queue > 0; n--) {
        const frame_copy c = d->queue[0];
        if (c.ram_frame >= 0) d->ram_content[c.ram_frame] = d->content[c.frame];
        else d->content[c.frame] = c.layer * EXPERTS + c.expert;
        d->passed[c.event] = true;
        memmove(d->queue, d->queue + 1, (size_t)--d->n_queue * sizeof *d->queue);
    }
}

/* Returns whether the map has changed. */
static bool collect(device *d, frame_table *t)
{
    bool changed = false;
    for (int event; (event = frame_table_next_event(t)) >= 0; changed = true) {
        if (d->failed) {
            frame_table_cancel(t, true);
            d->n_queue = 0;
            d->failed = false;
        } else if (d->passed[event]) {
            frame_table_arrived(t);
        } else {
            break;
        }
    }
    return changed;
}

static void publish(device *d)
{
    memcpy(d->published, d->map, sizeof d->published);
    for (int i = 0; i < ALL && d->ram; i++)
        d->published_ram[i] = ram_frames_find(d->ram, i / EXPERTS, i % EXPERTS);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What the device would read now. */
static void check_device(const device *d, const frame_table *t)
{
    int wrong = 0;
    for (int i = 0; i < ALL; i++) {
        if (d->published[i] >= 0)
            wrong += d->content[frame_table_pool(t, i / EXPERTS)->first + d->published[i]] != i;
        else if (d->ram)
            wrong += d->published_ram[i] == NOTHING || d->ram_content[d->published_ram[i]] != i;
    }
    CHECK_MSG(wrong == 0, "%d experts are not where the device reads them", wrong);
}

/* Free RAM frames of a pool: takes all of them, and returns them. */
static int n_free_ram(ram_frames *ram, int layer)
{
    int list[MAX_RAM], n = 0;
    while (n < MAX_RAM && (list[n] = ram_frames_take(ram, layer)) >= 0) n++;
    for (int i = n; i > 0; i--) ram_frames_return(ram, list[i - 1]);
    return n;
}

/* The map, the states and the RAM frames agree, and no RAM frame is lost. */
static void check_table(const device *d, const frame_table *t)
{
    int owner[ALL], n_ready[LAYERS] = { 0 }, wrong = 0;
    int n_ram[POOLS] = { 0 }, n_leaving[POOLS] = { 0 };
    for (int f = 0; f < frame_table_count(t); f++) owner[f] = NOTHING;
    for (int i = 0; i < ALL; i++) {
        const int l = i / EXPERTS, frame = frame_table_find(t, l, i % EXPERTS);
        const frame_pool *pool = frame_table_pool(t, l);
        wrong += (frame < 0) != (d->map[i] < 0);
        if (d->ram) {
            wrong += (ram_frames_find(d->ram, l, i % EXPERTS) >= 0) != (frame < 0);
            n_ram[pool_of(l)] += frame < 0;
        }
        if (frame < 0) continue;
        wrong += frame < pool->first || frame >= pool->first + pool->n || owner[frame] != NOTHING;
        owner[frame] = i;
        n_ready[l]++;
    }
    for (int f = 0; f < frame_table_count(t); f++) {
        const frame_state state = frame_table_state(t, f);
        wrong += (state == FRAME_LENT) != d->lent[f];
        wrong += (state == FRAME_READY || state == FRAME_LEAVING) != (owner[f] != NOTHING);
        n_leaving[f >= frame_table_pool(t, 2)->first] += state == FRAME_LEAVING;
    }
    for (int l = 0; l < LAYERS; l++) wrong += frame_table_n_ready(t, l) != n_ready[l];
    for (int pool = 0; d->ram && pool < POOLS; pool++) {
        const int n_layer = pool ? 2 : 4;
        wrong += n_ram[pool] + n_leaving[pool] + n_free_ram(d->ram, 2 * pool) !=
                 n_layer * EXPERTS - frame_table_pool(t, 2 * pool)->n + RAM_FRAMES_SPARE;
    }
    CHECK_MSG(wrong == 0, "%d entries of the table are wrong", wrong);
}

/* ---- a run ----------------------------------------------------------------------------------- */

#define MARGIN 0.3

typedef struct rules { cache_policy policy; double margin; int uploads; bool moved; } rules;

/* Experts without a VRAM frame get one in RAM. */
static void fill_ram(device *d, const frame_table *t)
{
    for (int i = 0; i < ALL; i++) {
        const int l = i / EXPERTS, e = i % EXPERTS;
        if (frame_table_find(t, l, e) >= 0) continue;
        const int frame = ram_frames_take(d->ram, l);
        if (!CHECK(frame >= 0)) return;
        ram_frames_put(d->ram, frame, l, e);
        d->ram_content[frame] = i;
    }
}

static frame_table *begin_by(device *d, int n_frame, const rules *by, uint64_t seed)
{
    frame_table *t = NULL;
    int frames[LAYERS];
    err_ctx err = { 0 };
    *d = (device){ .rng = { seed } };
    for (int f = 0; f < ALL; f++) d->content[f] = NOTHING;
    for (int l = 0; l < LAYERS; l++) frames[l] = n_frame + (by->moved && l == 0);
    for (int f = 0; f < MAX_RAM; f++) d->ram_content[f] = NOTHING;
    if (by->moved && !CHECK(ram_frames_create(&d->ram, &banks, frames, &err) == 0)) return NULL;
    const frame_table_options o = { .n_layer = LAYERS, .policy = by->policy,
                                    .max_uploads = by->uploads, .margin = by->margin,
                                    .map = d->map, .ram = d->ram, .n_frame = frames };
    CHECK_MSG(frame_table_create(&t, &banks, &o, &err) == 0, "%s", err.msg);
    for (int l = 0; t && l < LAYERS; l++)
        for (int e = 0; e < frame_table_quota(t, l); e++) {
            const int frame = frame_table_put(t, l, e);
            if (CHECK(frame >= 0)) d->content[frame] = l * EXPERTS + e;
        }
    if (t && by->moved) fill_ram(d, t);
    publish(d);
    return t;
}

static frame_table *begin(device *d, int n_frame, cache_policy policy, int uploads, uint64_t seed)
{
    return begin_by(d, n_frame, &(rules){ policy, MARGIN, uploads, false }, seed);
}

static void end(device *d, frame_table *t)
{
    frame_table_free(t);
    ram_frames_free(d->ram);
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

/* One token. Returns its hits. */
static int run_token(device *d, frame_table *t, bool even)
{
    int hits = 0;
    check_device(d, t);
    submit(d, t);
    for (int l = 0; l < LAYERS; l++) {
        uint32_t chosen[USED];
        for (int k = 0; k < USED; k++) {
            const int e = draw(d, l, even);
            hits += d->published[l * EXPERTS + e] >= 0;
            chosen[k] = (uint32_t)e | test_below(&d->rng, 4) << 16;
        }
        let_arrive(d, (int)test_below(&d->rng, 3));
        check_device(d, t);
        frame_table_chosen(t, l, chosen, USED);
    }
    return hits;
}

static void exchange(device *d, frame_table *t)
{
    const bool collected = collect(d, t), exchanged = frame_table_exchange(t, true);
    if (collected || exchanged) publish(d);
    else CHECK(memcmp(d->published, d->map, sizeof d->published) == 0);
    check_table(d, t);
}

static void run_prompt(device *d, frame_table *t, bool interrupted)
{
    frame_table_swap swaps[EXPERTS];
    for (int l = 0; l < LAYERS; l++) {
        int32_t counts[EXPERTS] = { 0 };
        for (int i = 0; i < 20 * USED; i++) counts[draw(d, l, false)]++;
        const int cap = (int)test_below(&d->rng, EXPERTS + 1);
        const int n = frame_table_prompt(t, l, counts, NULL, swaps, cap);
        CHECK(n <= (d->ram ? 0 : cap));
        for (int i = 0; i < n; i++) {
            CHECK(counts[swaps[i].expert] > 0);
            if (interrupted && test_below(&d->rng, 4) == 0) frame_table_drop(t, swaps[i].frame);
            else d->content[swaps[i].frame] = l * EXPERTS + swaps[i].expert;
        }
        check_table(d, t);
    }
    publish(d);
    check_device(d, t);
}

/* Lends a frame, or takes one back. What is written to it meanwhile disturbs no expert. */
static void lend_or_return(device *d, frame_table *t)
{
    int f = (int)test_below(&d->rng, (uint32_t)frame_table_count(t));
    if (d->lent[f]) {
        frame_table_return(t, f);
        d->lent[f] = false;
    } else if ((f = frame_table_lend(t)) >= 0) {
        CHECK(!d->ram && !d->lent[f]);
        d->lent[f] = true;
        d->content[f] = NOTHING;
    }
    publish(d);
    check_table(d, t);
}

/* Tokens, prompts, pins and faults at random; copies to frames, and moves; frames that are lent. */
static void walk(cache_policy policy, bool faults, bool moved)
{
    static device d;
    const rules by = { policy, MARGIN, faults ? 8 + 15 * moved : 1 + 2 * moved, moved };
    const int n = test_rounds(1500, 500);
    frame_table *t = begin_by(&d, faults ? 11 : 5, &by, 100 + 4 * policy + 2 * faults + moved);
    if (!t) return;
    for (int i = 0; i < n; i++) {
        if (faults && test_below(&d.rng, 8) == 0) d.fail_in = 1 + (int)test_below(&d.rng, 4);
        if (faults && test_below(&d.rng, 8) == 0) d.refuse_in = 1 + (int)test_below(&d.rng, 4);
        d.shift = 14 * i / n;
        if (test_below(&d.rng, 40) == 0) run_prompt(&d, t, faults && !moved);
        if (test_below(&d.rng, 5) == 0)                  /* hot, cold or FILLING */
            frame_table_pin(t, (int)test_below(&d.rng, LAYERS), i % EXPERTS, i % 3 == 0);
        run_token(&d, t, i * 5 % n < n / 3);
        exchange(&d, t);
        if (test_below(&d.rng, 10) == 0) exchange(&d, t);        /* twice without a submit */
        if (test_below(&d.rng, 6) == 0) lend_or_return(&d, t);
    }
    const frame_table_stats s = frame_table_counts(t);
    CHECK_MSG(
        s.uploads > 50 && s.evictions > 50 && (s.saves > 50) == moved && (s.swaps > 10) == !moved &&
            (s.failures > 10) == faults && (!moved || s.evictions == s.saves),
        "%s: %d uploads, %d evictions, %d saves, %d swaps, %d failures", cache_policy_name(policy),
        (int)s.uploads, (int)s.evictions, (int)s.saves, (int)s.swaps, (int)s.failures);
    CHECK(s.hits + s.misses == (uint64_t)(n * LAYERS * USED));
    end(&d, t);
}

static void test_walks(void)
{
    for (int i = 0; i < 4 * CACHE_POLICIES; i++) walk((cache_policy)(i / 4), i & 1, i & 2);
}

/* Frames are lent from the weakest expert on, until one token's experts would not fit; then all come
 * back. */
static void test_lend(void)
{
    static device d;
    frame_table *t = begin(&d, 5, CACHE_LCP, 8, 3);
    int n = 0, f;
    if (!t) return;
    for (int l = 0; l < LAYERS; l++)     /* pins are given up when all that is left has one */
        for (int e = 0; e < EXPERTS; e++) frame_table_pin(t, l, e, e % 2 == 0);
    frame_table_seed(t, 1, 2, 3.0);      /* the strongest of all */
    const int strong = frame_table_find(t, 1, 2);
    while ((f = frame_table_lend(t)) >= 0 && n < ALL) {
        CHECK(f != strong && !d.lent[f] && frame_table_state(t, f) == FRAME_LENT);
        d.lent[f] = true;
        n++;
    }
    CHECK_MSG(n == frame_table_count(t) - LAYERS * USED, "%d frames lent", n);
    check_table(&d, t);
    CHECK(frame_table_find(t, 1, 2) == strong && frame_table_put(t, 0, EXPERTS - 1) < 0);
    for (f = 0; f < frame_table_count(t); f++)
        if (d.lent[f]) frame_table_return(t, f);
    memset(d.lent, 0, sizeof d.lent);
    CHECK(frame_table_put(t, 0, EXPERTS - 1) >= 0);
    check_table(&d, t);
    end(&d, t);
}

/* Moves as many as there are spare RAM frames, again and again. */
static void test_apply_moves(void)
{
    static device d;
    frame_table *t = begin_by(&d, 12, &(rules){ CACHE_LCP, MARGIN, 8, true }, 17);
    int list[ALL / 2 + 2] = { NOTHING, ALL }, n = 2, n_round = 0, n_leaving = 0;
    const int back = 0;
    err_ctx err = { 0 };
    if (!t) return;
    for (int i = 0; i < ALL; i++)
        if (i % EXPERTS >= 12) list[n++] = i;
    for (int asked; n_round < 100 && (asked = frame_table_apply_moves(t, list, n, &err)); n_round++)
        for (int pass = 0; pass < 2; pass++) {           /* to RAM, then to VRAM */
            CHECK(asked > 0 && asked <= POOLS * RAM_FRAMES_SPARE);
            submit(&d, t);
            let_arrive(&d, FRAME_TABLE_EVENTS);
            CHECK(collect(&d, t));
            publish(&d);
            check_table(&d, t);
            check_device(&d, t);
        }
    CHECK_MSG(n_round == 48 / RAM_FRAMES_SPARE, "%d rounds", n_round);
    for (int i = 2; i < n; i++)
        CHECK(frame_table_find(t, list[i] / EXPERTS, list[i] % EXPERTS) >= 0);
    CHECK(frame_table_apply_moves(t, &back, 1, &err) == 1);
    for (int i = 0; i < ALL; i++) {                      /* a LEAVING expert cannot come back yet */
        const int frame = frame_table_find(t, i / EXPERTS, i % EXPERTS);
        if (frame < 0 || frame_table_state(t, frame) != FRAME_LEAVING) continue;
        CHECK(frame_table_apply_moves(t, &i, 1, &err) == 0);
        n_leaving++;
    }
    CHECK(n_leaving == 1);
    end(&d, t);
}

/* With uneven choices, frames for a third of the experts soon hit nearly as often as the best third
 * would. */
static void test_learns(void)
{
    static device d, sample;
    int best = 0, hits = 0, n = 0;
    frame_table *t = begin(&d, EXPERTS / 3, CACHE_LCP, 8, 7);
    if (!t) return;
    for (int i = 0; i < 400; i++) {
        run_token(&d, t, false);
        exchange(&d, t);
    }
    sample = d;
    for (int l = 0; l < LAYERS; l++) {
        int counts[EXPERTS] = { 0 };
        for (int i = 0; i < 4000; i++) counts[draw(&sample, l, false)]++;
        for (int k = 0; k < EXPERTS / 3; k++) {
            int most = 0;
            for (int e = 1; e < EXPERTS; e++)
                if (counts[e] > counts[most]) most = e;
            best += counts[most];
            counts[most] = -1;
        }
    }
    const double ideal = best / (4000.0 * LAYERS);
    for (int i = 0; i < 200; i++, n += LAYERS * USED) {
        hits += run_token(&d, t, false);
        exchange(&d, t);
    }
    CHECK_MSG(hits > 0.93 * ideal * n, "%d hits of %d, at best %.3f", hits, n, ideal);
    end(&d, t);
}

/* ---- the margin ------------------------------------------------------------------------------ */

static void seed_all(frame_table *t, double frequency)
{
    for (int i = 0; i < ALL; i++)
        if (frame_table_find(t, i / EXPERTS, i % EXPERTS) >= 0)
            frame_table_seed(t, i / EXPERTS, i % EXPERTS, frequency);
}

/* Uses until a missing expert gets the frame of one with next to none: the first that exceed the
 * margin. LRU needs none. The policies' own margins take 1, 2 and 3 uses. */
static void test_margins(void)
{
    static const int own[CACHE_POLICIES] = { [CACHE_LRU] = 1, [CACHE_LCP] = 2, [CACHE_FADE] = 3 };
    static device d;
    const uint32_t chosen = 20;
    for (int i = 0; i < 7 * CACHE_POLICIES; i++) {
        const cache_policy policy = (cache_policy)(i % CACHE_POLICIES);
        const bool is_own = i < CACHE_POLICIES;
        const int m = is_own ? own[policy] - 1 : policy == CACHE_LRU ? 0 : i / CACHE_POLICIES - 1;
        const rules by = { policy, is_own ? cache_policy_margin(policy) :
                           policy == CACHE_LRU ? 0 : m + 0.5, 8, false };
        frame_table *t = begin_by(&d, 4, &by, 15);
        int n = 0;
        if (!t) return;
        seed_all(t, 0.01);
        for (; d.n_submitted == 0 && n < 100; n++) {
            frame_table_chosen(t, 1, &chosen, 1);
            exchange(&d, t);
            submit(&d, t);
        }
        CHECK_MSG(n == m + 1, "%s, margin %g: after %d uses", cache_policy_name(policy), by.margin,
                  n);
        end(&d, t);
    }
}

/* Between tokens a copy costs time on the bus, and a little more value is not enough. In a
 * prompt it is: the bytes pass through VRAM. */
static void test_margin_of_prompts(void)
{
    static device d;
    const uint32_t chosen[2] = { 20, 21 };
    frame_table *t = begin(&d, 4, CACHE_FADE, 8, 15);
    frame_table_swap swaps[EXPERTS];
    int32_t counts[EXPERTS] = { [20] = 1, [21] = 1 };
    if (!t) return;
    for (int prompt = 0; prompt < 2; prompt++) {
        seed_all(t, 8);                  /* and one use more: 8 +- MARGIN / 2 */
        frame_table_seed(t, 1, 20, 7 + MARGIN / 2);
        frame_table_seed(t, 1, 21, 7 - MARGIN / 2);
        if (prompt) {
            CHECK(frame_table_prompt(t, 1, counts, NULL, swaps, EXPERTS) == 1 &&
                  swaps[0].expert == 20);
            break;
        }
        frame_table_chosen(t, 1, chosen, 2);
        exchange(&d, t);
        submit(&d, t);
        CHECK(d.n_submitted == 0 && frame_table_counts(t).refused > 0);
    }
    end(&d, t);
}

/* ---- prompts, lists, pins -------------------------------------------------------------------- */

/* A prompt alone fills the frames with its own experts; or nothing may change. */
static void test_prompt(void)
{
    static device d;
    frame_table_swap swaps[EXPERTS];
    for (int uploads = 0; uploads < 2; uploads++) {
        frame_table *t = begin(&d, 4, CACHE_LCP, 8 * uploads, 9);
        if (!t) return;
        for (int l = 0; l < LAYERS; l++) {
            int32_t counts[EXPERTS] = { 0 };
            for (int i = 0; i < 4; i++) counts[(5 * i + 3 * l + 4) % EXPERTS] = 10 + i;
            counts[(5 * 4 + 3 * l + 4) % EXPERTS] = 1;
            const int n = frame_table_prompt(t, l, counts, NULL, swaps, EXPERTS);
            if (!uploads) CHECK(n == 0);
            for (int i = 0; i < 4 && uploads; i++)
                CHECK(frame_table_find(t, l, (5 * i + 3 * l + 4) % EXPERTS) >= 0);
            CHECK(frame_table_n_ready(t, l) == 4);
        }
        check_table(&d, t);
        for (int i = 0; i < 20 && !uploads; i++) {
            run_token(&d, t, true);
            exchange(&d, t);
        }
        CHECK(uploads || (d.n_submitted == 0 && frame_table_counts(t).evictions == 0));
        end(&d, t);
    }
}

/* Listed experts are READY at once, as far as there are frames, and none twice. */
static void test_apply(void)
{
    static device d;
    frame_table *t = begin(&d, 5, CACHE_LCP, 8, 13);
    frame_table_swap swaps[ALL + 2];
    int list[ALL + 2];
    err_ctx err = { 0 };
    if (!t) return;
    for (int round = 0; round < 100; round++) {
        const int n = (int)test_below(&d.rng, 50);
        int room[POOLS] = { 0 }, asked[POOLS] = { 0 };
        for (int i = 0; i < n; i++) list[i] = (int)test_below(&d.rng, ALL);
        list[n] = NOTHING;               /* no such experts */
        list[n + 1] = ALL;
        run_token(&d, t, true);
        exchange(&d, t);
        submit(&d, t);
        const int n_swap = frame_table_apply(t, list, n + 2, swaps, &err);
        CHECK(n_swap >= 0 && n_swap <= n);
        for (int i = 0; i < n_swap; i++)
            d.content[swaps[i].frame] = swaps[i].layer * EXPERTS + swaps[i].expert;
        check_table(&d, t);
        publish(&d);
        check_device(&d, t);
        for (int f = 0; f < frame_table_count(t); f++)
            room[f >= frame_table_pool(t, 2)->first] += frame_table_state(t, f) == FRAME_READY;
        for (int i = 0; i < n; i++) {
            const int pool = pool_of(list[i] / EXPERTS);
            if (asked[pool]++ < room[pool] / 2)
                CHECK_MSG(frame_table_find(t, list[i] / EXPERTS, list[i] % EXPERTS) >= 0 ||
                          d.n_queue > 0, "expert %d of the list is missing", i);
        }
    }
    end(&d, t);
}

/* Frames have frequencies 10 to 13 in every layer; a missing expert is listed for each that it
 * exceeds by more than 1. */
static void test_lists(void)
{
    static const struct { double high, low; int pinned, n, n_empty; const char *why; } rows[] = {
        { 100, 11.5, 0, LAYERS, 2 * LAYERS, "a little more is not enough" },
        { 100, 12.5, 0, 2 * LAYERS, 3 * LAYERS, "the second exceeds the second weakest" },
        { 100, 12.5, 2, 2 * LAYERS - 2, 3 * LAYERS - 2, "two of the weakest are pinned" },
        { 10.5, 10.5, 0, 0, LAYERS, "none exceeds any" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        static device d;
        int list[ALL];
        frame_table *t = begin_by(&d, 4, &(rules){ CACHE_LCP, 1, 8, false }, 17);
        if (!t) return;
        CHECK(frame_table_missing(t, list, ALL) == 0);   /* nothing was used yet */
        for (int l = 0; l < LAYERS; l++) {
            for (int e = 0; e < 4; e++) frame_table_seed(t, l, e, 10 + e);
            frame_table_seed(t, l, 5, rows[i].low);
            frame_table_seed(t, l, 6, rows[i].high);
        }
        CHECK(frame_table_list(t, list, ALL) == 4 * LAYERS && frame_table_list(t, list, 3) == 3);
        for (int k = 0; k < 3; k++) CHECK(list[k] == k * EXPERTS + 3);
        for (int l = 0; l < rows[i].pinned; l++) frame_table_pin(t, l, 0, true);
        const int n = frame_table_missing(t, list, ALL);
        CHECK_MSG(n == rows[i].n, "%s: %d, not %d", rows[i].why, n, rows[i].n);
        for (int k = 0; k < n; k++)
            CHECK_MSG(list[k] % EXPERTS == (k < LAYERS ? 6 : 5), "%s: %d is number %d",
                      rows[i].why, list[k], k);
        CHECK(frame_table_missing(t, list, 2) == min_int(n, 2));
        for (int l = 0; l < LAYERS; l++) frame_table_drop(t, frame_table_find(t, l, 3));
        const int n_empty = frame_table_missing(t, list, ALL);
        CHECK_MSG(n_empty == rows[i].n_empty, "%s: %d with EMPTY frames, not %d", rows[i].why,
                  n_empty, rows[i].n_empty);
        end(&d, t);
    }
}

/* Pinned experts stay in tokens, prompts and requests. */
static void test_pinned(void)
{
    static const expert_id pinned[] = { { 0, 0 }, { 2, 1 }, { 5, 3 } };
    for (int p = 0; p < CACHE_POLICIES; p++) {
        static device d;
        frame_table_swap swaps[ALL];
        int list[ALL];
        int32_t counts[EXPERTS];
        err_ctx err = { 0 };
        frame_table *t = begin(&d, 4, (cache_policy)p, 8, 19);
        if (!t) return;
        for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
            frame_table_pin(t, pinned[i].layer, pinned[i].index, true);
        for (int i = 0; i < 100; i++) {
            run_token(&d, t, true);
            exchange(&d, t);
        }
        for (int e = 0; e < EXPERTS; e++) counts[e] = e > 8 ? 1000 : 0;
        for (int l = 0; l < LAYERS; l++) frame_table_prompt(t, l, counts, NULL, swaps, EXPERTS);
        for (int i = 0; i < ALL; i++) list[i] = ALL - 1 - i;
        CHECK(frame_table_apply(t, list, LAYERS * 10, swaps, &err) >= 0);
        for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
            CHECK_MSG(frame_table_find(t, pinned[i].layer, pinned[i].index) >= 0,
                      "%s: pinned expert %d was evicted", cache_policy_name((cache_policy)p),
                      (int)i);
        CHECK(frame_table_counts(t).evictions > 0);
        end(&d, t);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void test_sizes(void)
{
    int32_t map[ALL];
    err_ctx err = { 0 };
    int n_frame[LAYERS];
    for (int l = 0; l < LAYERS; l++) n_frame[l] = USED - (l == 2);
    frame_table_options o = { .n_layer = LAYERS, .n_frame = n_frame, .map = map };
    frame_table *t = NULL;
    CHECK(frame_table_create(&t, &banks, &o, &err) == ERR_RANGE && !t);
    CHECK_MSG(strstr(err.msg, "17 experts fit in") != NULL, "%s", err.msg);
    for (int n = USED * LAYERS; n <= ALL; n++) {         /* the first layers have one more */
        uint64_t bytes = 0;
        int sum = 0;
        for (int l = 0; l < LAYERS; l++) {
            n_frame[l] = n / LAYERS + (l < n % LAYERS);
            bytes += (uint64_t)n_frame[l] * frame_table_frame_bytes(&banks.of[l]);
        }
        if (!CHECK(frame_table_create(&t, &banks, &o, &err) == 0)) return;
        for (int l = 0; l < LAYERS; l++) sum += frame_table_quota(t, l);
        CHECK(sum == n && frame_table_count(t) == n && frame_table_all_bytes(t) == bytes);
        for (int f = 0; f < frame_table_count(t); f++)
            CHECK(frame_table_offset(t, f, SLAB_DOWN) % FRAME_ALIGN == 0 &&
                  frame_table_offset(t, f, SLAB_DOWN) < frame_table_all_bytes(t));
        frame_table_free(t);
    }
}

/* The first layer has no experts: it gets no frame, and a token chooses nothing there. */
static void test_dense_layer(void)
{
    int n_frame[LAYERS] = { EXPERTS, USED, USED, USED, USED, USED };
    const int asked[] = { 0, 1, EXPERTS, EXPERTS + 1, EXPERTS - 1 };
    const uint32_t chosen[USED] = { 0, 1, 2 };
    const expert_bank saved = bank_list[0];
    frame_table_swap swaps[ARRAY_LEN(asked)];
    frame_table *t = NULL;
    err_ctx err = { 0 };
    int32_t map[ALL];
    bank_list[0] = (expert_bank){ .n_expert = 0 };
    frame_table_options o = { .n_layer = LAYERS, .policy = CACHE_LRU, .map = map,
                              .n_frame = n_frame };
    if (CHECK_MSG(frame_table_create(&t, &banks, &o, &err) == 0, "%s", err.msg)) {
        CHECK(frame_table_count(t) == (LAYERS - 1) * USED);
        CHECK(frame_table_quota(t, 0) == 0 && frame_table_quota(t, 1) == USED);
        CHECK(frame_table_put(t, 0, 3) < 0 && frame_table_find(t, 0, 3) < 0);
        frame_table_chosen(t, 0, chosen, USED);
        CHECK(!frame_table_exchange(t, true) && frame_table_n_ready(t, 0) == 0);
        CHECK(frame_table_apply(t, asked, ARRAY_LEN(asked), swaps, &err) == 2);
        CHECK(frame_table_n_ready(t, 0) == 0 && frame_table_n_ready(t, 1) == 2);
    }
    frame_table_free(t);
    n_frame[3]--;                        /* one expert fewer than a token chooses */
    CHECK(frame_table_create(&t, &banks, &o, &err) == ERR_RANGE && !t);
    bank_list[0] = saved;
}

int main(int argc, char **argv)
{
    test_begin("frame_table", argc, argv);
    make_banks();
    test_sizes();
    test_walks();
    test_lend();
    test_apply_moves();
    test_learns();
    test_margins();
    test_margin_of_prompts();
    test_prompt();
    test_apply();
    test_lists();
    test_pinned();
    test_dense_layer();
    return test_end();
}
