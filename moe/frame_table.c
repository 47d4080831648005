/* frame_table.c - the books of experts in VRAM.
 *
 * Invariants: a place that the map names is READY and its expert is the one the cache says, or
 * LEAVING, and its expert is the queue's leaver; a FILLING or LEAVING place is in the queue, in the
 * order in which its copy was decided; the cache says who it is for; a FILLING one is in no map; an
 * expert has one place at most. Where experts are moved, one that is not in the map is in a slot,
 * and one that is READY or LEAVING in none. Values are expert_cache.c's. */
#include "moe/frame_table.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MISSES = 4096 };             /* remembered until the next turn */

typedef struct ranked { double value; int expert; } ranked;       /* or place */

/* A place that is FILLING, or LEAVING: then its expert is on its way to a slot. */
typedef struct moving { int place, leaver, slot; } moving;       /* leaver -1: nobody leaves */

struct frame_table {
    const expert_banks *banks;
    ram_frames *slots;                   /* borrowed; NULL: all experts are in RAM, too */
    const frame_mover *mover;
    int n_layer, n_expert;
    int most_uploads;
    double margin;
    expert_cache *cache;
    int n_pool;
    frame_pool pools[CACHE_MOST_POOLS];
    uint8_t *pool_of;                    /* [n_layer] */
    int32_t *map;                        /* borrowed */
    frame_state *states;                 /* [places] */
    int *ready;                          /* [n_layer] */
    int n_place;
    moving queue[FRAME_TABLE_EVENTS];    /* in order, from head on */
    int head, n_moving, n_unsent;        /* the last n_unsent have not been sent */
    int next_mark;                       /* of the next copy; marks are taken in turn */
    expert_id misses[MOST_MISSES];       /* chosen since the last turn, and not there */
    int n_miss;
    ranked *ranks;                       /* [2, n_expert] scratch of prompts */
    frame_table_stats stats;
};

/* ---- pools ----------------------------------------------------------------------------------- */

static frame_pool pool_for(const expert_bank *b)
{
    frame_pool p = { .stride = 0 };
    for (int s = 0; s < SLAB_COUNT; s++) {
        p.at[s] = p.stride;
        p.stride += size_align(expert_slab_bytes(b, (expert_slab)s), FRAME_ALIGN);
    }
    return p;
}

static bool same_pool(const frame_pool *a, const frame_pool *b)
{
    return a->stride == b->stride && memcmp(a->at, b->at, sizeof a->at) == 0;
}

uint64_t frame_table_bytes(const expert_banks *b, int n_layer, int n_expert)
{
    uint64_t sum = 0;
    for (int l = 0; l < n_layer; l++) sum += (uint64_t)n_expert * pool_for(&b->of[l]).stride;
    return sum;
}

/* How many places of its pool a layer adds, so that every layer could have the same share of its
 * experts. What is left goes to the first layers. One without experts has a pool of no places. */
static int places_for(const frame_table *r, uint64_t stride, uint64_t each, uint64_t *left)
{
    if (stride == 0) return 0;
    const int n = (int)(each < (uint64_t)r->n_expert ? each : (uint64_t)r->n_expert);
    if (n == r->n_expert || *left < stride) return n;
    *left -= stride;
    return n + 1;
}

/* Pools by size. */
static int make_pools(frame_table *r, uint64_t bytes, const int *n_place, err_ctx *err)
{
    const uint64_t one = frame_table_bytes(r->banks, r->n_layer, 1), each = bytes / one;
    uint64_t left = bytes - each * one, at = 0;
    int token = 0;                       /* experts that one chooses */
    for (int l = 0; l < r->n_layer; l++) {
        const frame_pool p = pool_for(&r->banks->of[l]);
        int i = 0;
        while (i < r->n_pool && !same_pool(&r->pools[i], &p)) i++;
        if (i == CACHE_MOST_POOLS)
            return err_set(err, ERR_UNSUPPORTED, "experts of more than %d sizes", i);
        if (i == r->n_pool) r->pools[r->n_pool++] = p;
        r->pool_of[l] = (uint8_t)i;
        r->pools[i].n += n_place && p.stride > 0 ? n_place[l]
                                                 : places_for(r, p.stride, each, &left);
        if (p.stride > 0) token += r->banks->n_used;
    }
    for (int i = 0; i < r->n_pool; i++) {
        r->pools[i].first = r->n_place;
        r->pools[i].begin = at;
        r->n_place += r->pools[i].n;
        at += (uint64_t)r->pools[i].n * r->pools[i].stride;
    }
    if (r->n_place < token)
        return err_set(err, ERR_RANGE, "%d experts fit in %.2f GB of VRAM, fewer than the %d of "
                       "one token: none would be found again", r->n_place, (double)at * 1e-9,
                       token);
    return 0;
}

const frame_pool *frame_table_pool(const frame_table *r, int layer)
{
    return &r->pools[r->pool_of[layer]];
}

static const frame_pool *pool_at(const frame_table *r, int place)
{
    const frame_pool *p = r->pools;
    while (place >= p->first + p->n) p++;
    return p;
}

uint64_t frame_table_at(const frame_table *r, int place, expert_slab s)
{
    const frame_pool *p = pool_at(r, place);
    return p->begin + (uint64_t)(place - p->first) * p->stride + p->at[s];
}

uint64_t frame_table_all_bytes(const frame_table *r)
{
    const frame_pool *p = &r->pools[r->n_pool - 1];
    return p->begin + (uint64_t)p->n * p->stride;
}

int frame_table_count(const frame_table *r) { return r->n_place; }

int frame_table_share(const frame_table *r, int layer)
{
    const int pool = r->pool_of[layer];
    int n_layer = 0, before = 0;
    for (int l = 0; l < r->n_layer; l++) {
        before += l < layer && r->pool_of[l] == pool;
        n_layer += r->pool_of[l] == pool;
    }
    const int n = r->pools[pool].n, each = n / n_layer + (before < n % n_layer);
    return min_int(each, r->n_expert);
}

/* ---- life ------------------------------------------------------------------------------------ */

int frame_table_create(frame_table **out, const expert_banks *b, const frame_table_options *o,
                       const frame_mover *mover, err_ctx *err)
{
    frame_table *r = mem_zalloc(sizeof *r);
    int rc;
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "experts in VRAM: %zu bytes", sizeof *r);
    r->banks = b;
    r->slots = o->slots;
    r->mover = mover;
    r->n_layer = o->n_layer;
    r->n_expert = b->n_expert;
    r->most_uploads = min_int(o->most_uploads, FRAME_TABLE_EVENTS);
    r->margin = o->margin;
    r->map = o->map;
    r->pool_of = mem_zalloc((size_t)o->n_layer);
    r->ready = mem_zalloc((size_t)o->n_layer * sizeof *r->ready);
    r->ranks = mem_array(2 * (size_t)b->n_expert, sizeof *r->ranks);
    if (!r->pool_of || !r->ready || !r->ranks) {
        rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d layers", o->n_layer);
        goto fail;
    }
    if ((rc = make_pools(r, o->bytes, o->n_place, err)) < 0) goto fail;
    r->states = mem_zalloc((size_t)r->n_place * sizeof *r->states);
    if (!r->states) {
        rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d places", r->n_place);
        goto fail;
    }
    cache_shape shape = { .n_layer = o->n_layer, .n_expert = b->n_expert, .n_pool = r->n_pool,
                          .pool_of = r->pool_of, .policy = o->policy };
    for (int i = 0; i < r->n_pool; i++) shape.n_place[i] = r->pools[i].n;
    if ((rc = expert_cache_create(&r->cache, &shape, err)) < 0) goto fail;
    for (int i = 0; i < o->n_layer * b->n_expert; i++) r->map[i] = -1;
    *out = r;
    return 0;
fail:
    frame_table_free(r);
    return rc;
}

void frame_table_free(frame_table *r)
{
    if (!r) return;
    expert_cache_free(r->cache);
    mem_free(r->states);
    mem_free(r->ranks);
    mem_free(r->ready);
    mem_free(r->pool_of);
    mem_free(r);
}

/* ---- contents -------------------------------------------------------------------------------- */

static int32_t *map_entry(const frame_table *r, int layer, int expert)
{
    return &r->map[(size_t)layer * (size_t)r->n_expert + (size_t)expert];
}

int frame_table_find(const frame_table *r, int layer, int expert)
{
    const int32_t at = *map_entry(r, layer, expert);
    return at < 0 ? -1 : frame_table_pool(r, layer)->first + at;
}

frame_state frame_table_state(const frame_table *r, int place) { return r->states[place]; }
int frame_table_ready(const frame_table *r, int layer) { return r->ready[layer]; }

static expert_id owner_of(const frame_table *r, int place)
{
    const int owner = expert_cache_owner(r->cache, place);
    assert(owner >= 0);
    return (expert_id){ owner / r->n_expert, owner % r->n_expert };
}

static void make_ready(frame_table *r, int place)
{
    const expert_id e = owner_of(r, place);
    r->states[place] = FRAME_READY;
    *map_entry(r, e.layer, e.index) = place - frame_table_pool(r, e.layer)->first;
    r->ready[e.layer]++;
}

static void leave_map(frame_table *r, expert_id e)
{
    *map_entry(r, e.layer, e.index) = -1;
    r->ready[e.layer]--;
    r->stats.evictions++;
}

/* The place's expert leaves the map; who owns the place is for the caller to say. */
static void unmap(frame_table *r, int place)
{
    if (r->states[place] == FRAME_READY) leave_map(r, owner_of(r, place));
}

static void empty(frame_table *r, int place)
{
    r->states[place] = FRAME_EMPTY;
    expert_cache_drop(r->cache, place);
}

static void give(frame_table *r, int place, int layer, int expert)
{
    unmap(r, place);
    expert_cache_assign(r->cache, place, layer, expert);
}

/* An EMPTY place of the layer's pool, or -1. */
static int empty_place(const frame_table *r, int layer)
{
    double value;
    const int place = expert_cache_weakest(r->cache, r->pool_of[layer], &value);
    return place >= 0 && r->states[place] == FRAME_EMPTY ? place : -1;
}

int frame_table_put(frame_table *r, int layer, int expert)
{
    if (expert_cache_find(r->cache, layer, expert) >= 0) return -1;
    const int place = empty_place(r, layer);
    if (place < 0) return -1;
    give(r, place, layer, expert);
    make_ready(r, place);
    return place;
}

void frame_table_seed(frame_table *r, int layer, int expert, double frequency)
{
    expert_cache_seed(r->cache, layer, expert, frequency, 0);
}

static int by_value(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->expert - y->expert;
}

int frame_table_list(const frame_table *r, int *list, int cap)
{
    ranked *all = mem_array((size_t)r->n_place, sizeof *all);
    int n = 0;
    for (int p = 0; all && p < r->n_place; p++) {
        if (r->states[p] != FRAME_READY) continue;
        const expert_id e = owner_of(r, p);
        all[n++] = (ranked){ -expert_cache_value(r->cache, e.layer, e.index),
                             e.layer * r->n_expert + e.index };
    }
    if (n > 0) qsort(all, (size_t)n, sizeof *all, by_value);
    n = min_int(n, cap);
    for (int i = 0; i < n; i++) list[i] = all[i].expert;
    mem_free(all);
    return n;
}

void frame_table_pin(frame_table *r, int layer, int expert, bool pinned)
{
    expert_cache_pin(r->cache, layer, expert, pinned);
}

/* READY places whose expert is neither wanted (NULL: none is) nor pinned, the weakest first. */
static int spare_places(const frame_table *r, const bool *wanted, ranked *list)
{
    int n = 0;
    for (int p = 0; p < r->n_place; p++) {
        if (r->states[p] != FRAME_READY) continue;
        const expert_id e = owner_of(r, p);
        if (!expert_cache_is_pinned(r->cache, e.layer, e.index) &&
            !(wanted && wanted[e.layer * r->n_expert + e.index]))
            list[n++] = (ranked){ expert_cache_value(r->cache, e.layer, e.index), p };
    }
    if (n > 0) qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

/* The next one of n places that is in the pool, from number i on; n: there is none. */
static int next_of(const frame_pool *pool, const ranked *places, int i, int n)
{
    while (i < n && (places[i].expert < pool->first ||
                     places[i].expert >= pool->first + pool->n))
        i++;
    return i;
}

/* ---- places whose contents change ------------------------------------------------------------ */

/* An expert will have the place, which is EMPTY or READY: in the latter case whoever is there makes
 * room, after a copy of it if experts are moved. False if there is no slot for that, or no mark. */
static bool begin_move(frame_table *r, int place, int layer, int expert)
{
    moving m = { .place = place, .leaver = -1, .slot = -1 };
    if (r->n_moving == FRAME_TABLE_EVENTS) return false;
    if (r->slots && r->states[place] == FRAME_READY) {
        if ((m.slot = ram_frames_take(r->slots, layer)) < 0) return false;
        m.leaver = expert_cache_assign(r->cache, place, layer, expert);
        r->states[place] = FRAME_LEAVING;
    } else {
        give(r, place, layer, expert);
        r->states[place] = FRAME_FILLING;
    }
    r->queue[(r->head + r->n_moving++) % FRAME_TABLE_EVENTS] = m;
    r->n_unsent++;
    return true;
}

/* The copy of whoever made room has arrived: the place is free for the next. */
static void end_leaving(frame_table *r, moving m)
{
    const expert_id e = { m.leaver / r->n_expert, m.leaver % r->n_expert };
    leave_map(r, e);
    ram_frames_put(r->slots, m.slot, e.layer, e.index);
    r->states[m.place] = FRAME_FILLING;
    r->queue[(r->head + r->n_moving++) % FRAME_TABLE_EVENTS] = (moving){ m.place, -1, -1 };
    r->n_unsent++;
    r->stats.saves++;
}

static void end_filling(frame_table *r, int place)
{
    const expert_id e = owner_of(r, place);
    make_ready(r, place);
    if (r->slots) ram_frames_leave(r->slots, e.layer, e.index);
    r->stats.uploads++;
    r->stats.upload_bytes += expert_slabs_bytes(&r->banks->of[e.layer]);
}

/* A copy is lost: whoever was to make room stays. */
static void undo_move(frame_table *r, moving m)
{
    if (m.leaver < 0) {
        empty(r, m.place);
        return;
    }
    expert_cache_drop(r->cache, m.place);        /* who was to come may be pinned */
    expert_cache_assign(r->cache, m.place, m.leaver / r->n_expert, m.leaver % r->n_expert);
    r->states[m.place] = FRAME_READY;
    ram_frames_return(r->slots, m.slot);
}

/* Whether it could come in: where experts are moved, not one that is just leaving. */
static bool can_come(const frame_table *r, int layer, int expert)
{
    return expert_cache_find(r->cache, layer, expert) < 0 &&
           (!r->slots || ram_frames_find(r->slots, layer, expert) >= 0);
}

/* Gives the place to an expert, at once or by a move. */
static bool take_over(frame_table *r, int place, int layer, int expert)
{
    if (r->slots) return begin_move(r, place, layer, expert);
    give(r, place, layer, expert);
    make_ready(r, place);
    return true;
}

/* swaps NULL: experts are moved. */
static int bring_all(frame_table *r, const int *experts, int n, frame_table_swap *swaps,
                     err_ctx *err)
{
    const int all = r->n_layer * r->n_expert;
    bool *wanted = mem_zalloc((size_t)all * sizeof *wanted);
    ranked *spare = mem_array((size_t)r->n_place, sizeof *spare);
    int n_swap = 0, next[CACHE_MOST_POOLS] = { 0 };
    if (!wanted || !spare) {
        mem_free(wanted);
        mem_free(spare);
        return err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", all);
    }
    for (int i = 0; i < n; i++)
        if (experts[i] >= 0 && experts[i] < all) wanted[experts[i]] = true;
    const int n_spare = spare_places(r, wanted, spare);
    for (int i = 0; i < n; i++) {
        const int l = experts[i] / r->n_expert, e = experts[i] % r->n_expert;
        if (experts[i] < 0 || experts[i] >= all || !can_come(r, l, e)) continue;
        int place = empty_place(r, l), *at = &next[r->pool_of[l]];
        const frame_pool *pool = frame_table_pool(r, l);
        if (place < 0 && (*at = next_of(pool, spare, *at, n_spare)) < n_spare)
            place = spare[(*at)++].expert;
        if (place < 0 || !take_over(r, place, l, e)) continue;
        if (swaps) swaps[n_swap] = (frame_table_swap){ l, e, place };
        n_swap++;
    }
    mem_free(wanted);
    mem_free(spare);
    return n_swap;
}

int frame_table_apply(frame_table *r, const int *experts, int n, frame_table_swap *swaps,
                      err_ctx *err)
{
    assert(!r->slots);
    return bring_all(r, experts, n, swaps, err);
}

int frame_table_ask(frame_table *r, const int *experts, int n, err_ctx *err)
{
    assert(r->slots);
    return r->most_uploads > 0 ? bring_all(r, experts, n, NULL, err) : 0;
}

void frame_table_lose(frame_table *r, int place)
{
    assert(!r->slots);
    unmap(r, place);
    empty(r, place);
}

/* ---- between tokens -------------------------------------------------------------------------- */

void frame_table_chosen(frame_table *r, int layer, const uint32_t *chosen, int n)
{
    for (int i = 0; i < n; i++) {
        const int e = (int)(chosen[i] & 0xFFFF);
        if (e >= r->n_expert) continue;
        expert_cache_use(r->cache, layer, e);
        if (frame_table_find(r, layer, e) >= 0) {
            r->stats.hits++;
            continue;
        }
        r->stats.misses++;
        if (r->n_miss < MOST_MISSES) r->misses[r->n_miss++] = (expert_id){ layer, e };
    }
}

/* The oldest copies that have arrived. Returns how many, < 0 on failure. */
static int take_in(frame_table *r, err_ctx *err)
{
    int n = 0;
    while (r->n_moving > r->n_unsent) {
        const int mark = (r->next_mark - (r->n_moving - r->n_unsent) + FRAME_TABLE_EVENTS) %
                         FRAME_TABLE_EVENTS;
        const moving m = r->queue[r->head];
        const int passed = r->mover->passed(r->mover->self, mark, err);
        if (passed < 0) return passed;
        if (passed == 0) break;
        r->head = (r->head + 1) % FRAME_TABLE_EVENTS;
        r->n_moving--;
        if (m.leaver >= 0) end_leaving(r, m);
        else end_filling(r, m.place);
        n++;
    }
    return n;
}

/* What was under way is lost. */
static void give_up(frame_table *r)
{
    for (; r->n_moving > 0; r->n_moving--) {
        undo_move(r, r->queue[r->head]);
        r->head = (r->head + 1) % FRAME_TABLE_EVENTS;
    }
    r->n_unsent = 0;
    r->stats.failures++;
}

/* Whether a value is enough to take a place. One that was chosen just now looks better than it is,
 * and the weakest, which was not for long, looks worse: by a small margin such pairs change places
 * at every token, and no more is found for all the copies. */
static bool is_worth(const frame_table *r, double value, double weakest)
{
    return expert_cache_gain(r->cache, value, weakest) > r->margin;
}

/* Experts that are used and missing, the most valuable first. */
static int used_and_missing(const frame_table *r, ranked *list)
{
    int n = 0;
    for (int l = 0; l < r->n_layer; l++)
        for (int e = 0; e < r->n_expert; e++)
            if (can_come(r, l, e) && expert_cache_was_used(r->cache, l, e))
                list[n++] = (ranked){ -expert_cache_value(r->cache, l, e), l * r->n_expert + e };
    if (n > 0) qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

int frame_table_missing(const frame_table *r, int *list, int cap)
{
    ranked *missing = mem_array((size_t)(r->n_layer * r->n_expert), sizeof *missing);
    ranked *weak = mem_array((size_t)r->n_place, sizeof *weak);
    int n = 0, next[CACHE_MOST_POOLS] = { 0 }, n_empty[CACHE_MOST_POOLS] = { 0 };
    const int n_missing = missing && weak ? used_and_missing(r, missing) : 0;
    const int n_weak = n_missing > 0 ? spare_places(r, NULL, weak) : 0;
    for (int k = 0; k < r->n_pool; k++)
        for (int p = r->pools[k].first; p < r->pools[k].first + r->pools[k].n; p++)
            n_empty[k] += r->states[p] == FRAME_EMPTY;
    for (int i = 0; i < n_missing && n < cap; i++) {
        const int l = missing[i].expert / r->n_expert;
        const frame_pool *pool = frame_table_pool(r, l);
        int *at = &next[r->pool_of[l]], *empty = &n_empty[r->pool_of[l]];
        *at = next_of(pool, weak, *at, n_weak);
        if (*empty > 0) --*empty;
        else if (*at < n_weak && is_worth(r, -missing[i].value, weak[*at].value)) ++*at;
        else continue;
        list[n++] = missing[i].expert;
    }
    mem_free(missing);
    mem_free(weak);
    return n;
}

/* A missing expert takes the place of the weakest, if it is worth more. */
static bool make_room(frame_table *r, expert_id e)
{
    double weakest;
    const int place = expert_cache_weakest(r->cache, r->pool_of[e.layer], &weakest);
    const bool there = place >= 0 && r->states[place] == FRAME_READY;
    if (place < 0 || !(r->states[place] == FRAME_EMPTY ||
          (there && is_worth(r, expert_cache_value(r->cache, e.layer, e.index), weakest)))) {
        r->stats.refused++;
        return false;
    }
    return begin_move(r, place, e.layer, e.index);
}

/* The most valuable of the missing, at most `room` of them, one by one: lists are short. Where one
 * of them got no place, no other one of its pool does. */
static int admit(frame_table *r, int room)
{
    bool full[CACHE_MOST_POOLS] = { false };
    for (int n = 0;;) {
        int best = -1;
        double most = -INFINITY;
        for (int i = 0; i < r->n_miss && n < room; i++) {
            const expert_id e = r->misses[i];
            if (full[r->pool_of[e.layer]] || !can_come(r, e.layer, e.index)) continue;
            const double value = expert_cache_value(r->cache, e.layer, e.index);
            if (value <= most) continue;
            most = value;
            best = i;
        }
        if (best < 0) return n;
        if (make_room(r, r->misses[best])) n++;
        else full[r->pool_of[r->misses[best].layer]] = true;
    }
}

int frame_table_take_in(frame_table *r, err_ctx *err)
{
    const int changed = take_in(r, err);
    if (changed < 0) give_up(r);
    return changed < 0 ? changed : changed > 0;
}

int frame_table_exchange(frame_table *r, bool may_admit, err_ctx *err)
{
    expert_cache_tick(r->cache);
    int changed = frame_table_take_in(r, err);
    if (changed >= 0 && may_admit) changed += admit(r, r->most_uploads - r->n_moving);
    r->n_miss = 0;
    return changed < 0 ? changed : changed > 0;
}

static bool send_move(frame_table *r, moving m)
{
    const frame_mover *to = r->mover;
    const expert_id e = owner_of(r, m.place);
    return m.leaver < 0 ? to->send(to->self, e.layer, e.index, m.place, r->next_mark)
                        : to->save(to->self, m.leaver / r->n_expert, m.leaver % r->n_expert,
                                   m.place, m.slot, r->next_mark);
}

void frame_table_send(frame_table *r, int most)
{
    for (; r->n_unsent > 0 && most > 0; most--) {
        if (send_move(r, r->queue[(r->head + r->n_moving - r->n_unsent) % FRAME_TABLE_EVENTS])) {
            r->next_mark = (r->next_mark + 1) % FRAME_TABLE_EVENTS;
            r->n_unsent--;
            continue;
        }
        for (; r->n_unsent > 0; r->n_unsent--, r->n_moving--)    /* this one, and those after it */
            undo_move(r, r->queue[(r->head + r->n_moving - 1) % FRAME_TABLE_EVENTS]);
        r->stats.failures++;
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The layer's experts that were chosen and are missing, the most valuable first; those that are
 * READY, the least valuable first. */
static int rank_missing(frame_table *r, int layer, const int32_t *counts, ranked *list)
{
    int n = 0;
    for (int e = 0; e < r->n_expert; e++)
        if (counts[e] > 0 && expert_cache_find(r->cache, layer, e) < 0)
            list[n++] = (ranked){ -expert_cache_value(r->cache, layer, e), e };
    qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

static int rank_ready(frame_table *r, int layer, ranked *list)
{
    int n = 0;
    for (int e = 0; e < r->n_expert; e++)
        if (frame_table_find(r, layer, e) >= 0 && !expert_cache_is_pinned(r->cache, layer, e))
            list[n++] = (ranked){ expert_cache_value(r->cache, layer, e), e };
    qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

int frame_table_prompt(frame_table *r, int layer, const int32_t *counts, const bool *passing,
                       frame_table_swap *swaps, int cap)
{
    ranked *missing = r->ranks, *ready = r->ranks + r->n_expert;
    int n = 0, weakest = 0;
    for (int e = 0; e < r->n_expert; e++)
        if (counts[e] > 0) expert_cache_use_many(r->cache, layer, e, counts[e]);
    if (r->most_uploads == 0) return 0;
    const int n_missing = rank_missing(r, layer, counts, missing);
    const int n_ready = rank_ready(r, layer, ready), share = frame_table_share(r, layer);
    if (r->slots) {
        for (int i = 0; i < n_missing && i < r->banks->n_used && r->n_miss < MOST_MISSES; i++)
            r->misses[r->n_miss++] = (expert_id){ layer, missing[i].expert };
        return 0;
    }
    for (int i = 0; i < n_missing && n < cap; i++) {
        const int e = missing[i].expert;
        if (passing && !passing[e]) continue;
        int place = r->ready[layer] < share ? frame_table_put(r, layer, e) : -1;
        if (place < 0) {
            if (weakest == n_ready || !(-missing[i].value > ready[weakest].value)) break;
            place = frame_table_find(r, layer, ready[weakest++].expert);
            give(r, place, layer, e);
            make_ready(r, place);
        }
        swaps[n++] = (frame_table_swap){ layer, e, place };
    }
    r->stats.swaps += (uint64_t)n;
    return n;
}

frame_table_stats frame_table_counts(const frame_table *r) { return r->stats; }
void frame_table_reset_counts(frame_table *r) { r->stats = (frame_table_stats){ 0 }; }
