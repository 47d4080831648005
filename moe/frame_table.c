/* frame_table.c - states of frames, the map, the queue of copies.
 *
 * Invariants: the map names a frame exactly if it is READY, and then its expert is the owner in the
 * expert cache, or LEAVING, and then its expert is the queue entry's evicted one. FILLING and
 * LEAVING frames are in the queue once, in the order of their decisions; the owner in the expert
 * cache is the expert to come. An expert has one frame at most. Where experts are moved, an expert
 * has a RAM frame exactly if the map does not name it. Values are expert_cache.c's. */
#include "moe/frame_table.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe/expert_cache.h"

enum { MAX_MISSES = 4096 };              /* remembered until the next exchange */

typedef struct ranked { double value; int index; } ranked;        /* an expert or a frame */

/* A frame that is FILLING, or LEAVING: then `evicted` is being copied to the RAM frame. */
typedef struct moving { int frame, evicted, ram_frame; } moving;  /* FILLING: -1 and -1 */

struct frame_table {
    const expert_banks *banks;
    ram_frames *ram;                     /* borrowed; NULL: every expert is in RAM */
    int n_layer, n_expert;
    int max_uploads;
    double margin;
    expert_cache *cache;
    int n_pool;
    frame_pool pools[CACHE_MAX_POOLS];
    uint8_t *pool_of;                    /* [n_layer] */
    int32_t *map;                        /* borrowed */
    frame_state *states;                 /* [n_frame] */
    int *n_ready;                        /* [n_layer] */
    int n_frame, n_lent;
    int n_least;                         /* experts that one token chooses */
    moving queue[FRAME_TABLE_EVENTS];    /* a ring: n_moving entries from head on */
    int head, n_moving, n_unsent;        /* the last n_unsent were not submitted */
    int next_event;                      /* of the next copy; events are used in turn */
    expert_id misses[MAX_MISSES];        /* since the last exchange */
    int n_miss;
    ranked *ranks;                       /* [2, n_expert] scratch of prompts */
    frame_table_stats stats;
};

/* ---- pools ----------------------------------------------------------------------------------- */

static frame_pool pool_for(const expert_bank *b)
{
    frame_pool p = { .stride = 0 };
    for (int s = 0; s < SLAB_COUNT; s++) {
        p.slab_offset[s] = p.stride;
        p.stride += expert_frame_slab_bytes(b, (expert_slab)s);
    }
    return p;
}

static bool same_pool(const frame_pool *a, const frame_pool *b)
{
    return a->stride == b->stride &&
           memcmp(a->slab_offset, b->slab_offset, sizeof a->slab_offset) == 0;
}

uint64_t frame_table_frame_bytes(const expert_bank *b) { return pool_for(b).stride; }

/* A layer without experts has a pool of no frames. */
static int make_pools(frame_table *t, const int *n_frame, err_ctx *err)
{
    uint64_t end = 0;
    for (int l = 0; l < t->n_layer; l++) {
        const frame_pool p = pool_for(&t->banks->of[l]);
        int i = 0;
        while (i < t->n_pool && !same_pool(&t->pools[i], &p)) i++;
        if (i == CACHE_MAX_POOLS)
            return err_set(err, ERR_UNSUPPORTED, "experts of more than %d sizes", i);
        if (i == t->n_pool) t->pools[t->n_pool++] = p;
        t->pool_of[l] = (uint8_t)i;
        if (p.stride == 0) continue;
        t->pools[i].n += n_frame[l];
        t->n_least += t->banks->n_used;
    }
    for (int i = 0; i < t->n_pool; i++) {
        t->pools[i].first = t->n_frame;
        t->pools[i].offset = end;
        t->n_frame += t->pools[i].n;
        end += (uint64_t)t->pools[i].n * t->pools[i].stride;
    }
    if (t->n_frame < t->n_least)
        return err_set(err, ERR_RANGE, "%d experts fit in %.2f GB of VRAM, fewer than the %d of "
                       "one token: the cache would never hit", t->n_frame, (double)end * 1e-9,
                       t->n_least);
    return 0;
}

const frame_pool *frame_table_pool(const frame_table *t, int layer)
{
    return &t->pools[t->pool_of[layer]];
}

static const frame_pool *pool_of_frame(const frame_table *t, int frame)
{
    const frame_pool *p = t->pools;
    while (frame >= p->first + p->n) p++;
    return p;
}

uint64_t frame_table_offset(const frame_table *t, int frame, expert_slab s)
{
    const frame_pool *p = pool_of_frame(t, frame);
    return p->offset + (uint64_t)(frame - p->first) * p->stride + p->slab_offset[s];
}

uint64_t frame_table_all_bytes(const frame_table *t)
{
    const frame_pool *p = &t->pools[t->n_pool - 1];
    return p->offset + (uint64_t)p->n * p->stride;
}

int frame_table_count(const frame_table *t) { return t->n_frame; }

int frame_table_quota(const frame_table *t, int layer)
{
    const int pool = t->pool_of[layer];
    int n_layer = 0, before = 0;
    for (int l = 0; l < t->n_layer; l++) {
        before += l < layer && t->pool_of[l] == pool;
        n_layer += t->pool_of[l] == pool;
    }
    const int n = t->pools[pool].n, each = n / n_layer + (before < n % n_layer);
    return min_int(each, t->n_expert);
}

/* ---- create and free ------------------------------------------------------------------------- */

int frame_table_create(frame_table **out, const expert_banks *b, const frame_table_options *o,
                       err_ctx *err)
{
    frame_table *t = mem_zalloc(sizeof *t);
    int rc;
    *out = NULL;
    if (!t) return err_set(err, ERR_NOMEM, "experts in VRAM: %zu bytes", sizeof *t);
    t->banks = b;
    t->ram = o->ram;
    t->n_layer = o->n_layer;
    t->n_expert = b->n_expert;
    t->max_uploads = min_int(o->max_uploads, FRAME_TABLE_EVENTS);
    t->margin = o->margin;
    t->map = o->map;
    t->pool_of = mem_zalloc((size_t)o->n_layer);
    t->n_ready = mem_zalloc((size_t)o->n_layer * sizeof *t->n_ready);
    t->ranks = mem_array(2 * (size_t)b->n_expert, sizeof *t->ranks);
    if (!t->pool_of || !t->n_ready || !t->ranks) {
        rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d layers", o->n_layer);
        goto fail;
    }
    if ((rc = make_pools(t, o->n_frame, err)) < 0) goto fail;
    t->states = mem_zalloc((size_t)t->n_frame * sizeof *t->states);
    if (!t->states) {
        rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d frames", t->n_frame);
        goto fail;
    }
    cache_shape shape = { .n_layer = o->n_layer, .n_expert = b->n_expert, .n_pool = t->n_pool,
                          .pool_of = t->pool_of, .policy = o->policy };
    for (int i = 0; i < t->n_pool; i++) shape.n_frame[i] = t->pools[i].n;
    if ((rc = expert_cache_create(&t->cache, &shape, err)) < 0) goto fail;
    for (int i = 0; i < o->n_layer * b->n_expert; i++) t->map[i] = -1;
    *out = t;
    return 0;
fail:
    frame_table_free(t);
    return rc;
}

void frame_table_free(frame_table *t)
{
    if (!t) return;
    expert_cache_free(t->cache);
    mem_free(t->states);
    mem_free(t->ranks);
    mem_free(t->n_ready);
    mem_free(t->pool_of);
    mem_free(t);
}

/* ---- contents -------------------------------------------------------------------------------- */

static int32_t *map_entry(const frame_table *t, int layer, int expert)
{
    return &t->map[(size_t)layer * (size_t)t->n_expert + (size_t)expert];
}

int frame_table_find(const frame_table *t, int layer, int expert)
{
    const int32_t i = *map_entry(t, layer, expert);
    return i < 0 ? -1 : frame_table_pool(t, layer)->first + i;
}

frame_state frame_table_state(const frame_table *t, int frame) { return t->states[frame]; }
int frame_table_n_ready(const frame_table *t, int layer) { return t->n_ready[layer]; }

static expert_id owner_of(const frame_table *t, int frame)
{
    const int owner = expert_cache_owner(t->cache, frame);
    assert(owner >= 0);
    return (expert_id){ owner / t->n_expert, owner % t->n_expert };
}

static void make_ready(frame_table *t, int frame)
{
    const expert_id e = owner_of(t, frame);
    t->states[frame] = FRAME_READY;
    *map_entry(t, e.layer, e.index) = frame - frame_table_pool(t, e.layer)->first;
    t->n_ready[e.layer]++;
}

static void unmap_expert(frame_table *t, expert_id e)
{
    *map_entry(t, e.layer, e.index) = -1;
    t->n_ready[e.layer]--;
    t->stats.evictions++;
}

/* The caller sets the state. */
static void assign(frame_table *t, int frame, int layer, int expert)
{
    if (t->states[frame] == FRAME_READY) unmap_expert(t, owner_of(t, frame));
    expert_cache_assign(t->cache, frame, layer, expert);
}

static void make_empty(frame_table *t, int frame)
{
    t->states[frame] = FRAME_EMPTY;
    expert_cache_drop(t->cache, frame);
}

/* An EMPTY frame of the layer's pool, or -1. */
static int empty_frame(const frame_table *t, int layer)
{
    double value;
    const int frame = expert_cache_weakest(t->cache, t->pool_of[layer], &value);
    return frame >= 0 && t->states[frame] == FRAME_EMPTY ? frame : -1;
}

int frame_table_put(frame_table *t, int layer, int expert)
{
    if (expert_cache_find(t->cache, layer, expert) >= 0) return -1;
    const int frame = empty_frame(t, layer);
    if (frame < 0) return -1;
    assign(t, frame, layer, expert);
    make_ready(t, frame);
    return frame;
}

void frame_table_seed(frame_table *t, int layer, int expert, double frequency)
{
    expert_cache_seed(t->cache, layer, expert, frequency, 0);
}

static int by_value(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->index - y->index;
}

int frame_table_list(const frame_table *t, int *list, int cap)
{
    ranked *all = mem_array((size_t)t->n_frame, sizeof *all);
    int n = 0;
    for (int p = 0; all && p < t->n_frame; p++) {
        if (t->states[p] != FRAME_READY) continue;
        const expert_id e = owner_of(t, p);
        all[n++] = (ranked){ -expert_cache_value(t->cache, e.layer, e.index),
                             e.layer * t->n_expert + e.index };
    }
    if (n > 0) qsort(all, (size_t)n, sizeof *all, by_value);
    n = min_int(n, cap);
    for (int i = 0; i < n; i++) list[i] = all[i].index;
    mem_free(all);
    return n;
}

void frame_table_pin(frame_table *t, int layer, int expert, bool pinned)
{
    expert_cache_pin(t->cache, layer, expert, pinned);
}

/* READY frames whose expert is neither wanted (NULL: none is) nor pinned, the weakest first. */
static int evictable_frames(const frame_table *t, const bool *wanted, ranked *list)
{
    int n = 0;
    for (int p = 0; p < t->n_frame; p++) {
        if (t->states[p] != FRAME_READY) continue;
        const expert_id e = owner_of(t, p);
        if (!expert_cache_is_pinned(t->cache, e.layer, e.index) &&
            !(wanted && wanted[e.layer * t->n_expert + e.index]))
            list[n++] = (ranked){ expert_cache_value(t->cache, e.layer, e.index), p };
    }
    if (n > 0) qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

/* The first frame of the pool in frames[i..n-1], or n. */
static int next_of(const frame_pool *pool, const ranked *frames, int i, int n)
{
    while (i < n && (frames[i].index < pool->first ||
                     frames[i].index >= pool->first + pool->n))
        i++;
    return i;
}

/* ---- frames whose contents change ------------------------------------------------------------ */

static int queue_index(const frame_table *t, int i) { return (t->head + i) % FRAME_TABLE_EVENTS; }

static void push(frame_table *t, moving m)
{
    t->queue[queue_index(t, t->n_moving++)] = m;
    t->n_unsent++;
}

/* Decides a copy to a frame that is EMPTY or READY. Where experts are moved, the expert of a READY
 * one is copied to RAM first. False if there is no RAM frame for it, or no event. */
static bool begin_move(frame_table *t, int frame, int layer, int expert)
{
    moving m = { .frame = frame, .evicted = -1, .ram_frame = -1 };
    if (t->n_moving == FRAME_TABLE_EVENTS) return false;
    if (t->ram && t->states[frame] == FRAME_READY) {
        if ((m.ram_frame = ram_frames_take(t->ram, layer)) < 0) return false;
        m.evicted = expert_cache_assign(t->cache, frame, layer, expert);
        t->states[frame] = FRAME_LEAVING;
    } else {
        assign(t, frame, layer, expert);
        t->states[frame] = FRAME_FILLING;
    }
    push(t, m);
    return true;
}

static void end_leaving(frame_table *t, moving m)
{
    const expert_id e = { m.evicted / t->n_expert, m.evicted % t->n_expert };
    unmap_expert(t, e);
    ram_frames_put(t->ram, m.ram_frame, e.layer, e.index);
    t->states[m.frame] = FRAME_FILLING;
    push(t, (moving){ m.frame, -1, -1 });
    t->stats.saves++;
}

static void end_filling(frame_table *t, int frame)
{
    const expert_id e = owner_of(t, frame);
    make_ready(t, frame);
    if (t->ram) ram_frames_remove(t->ram, e.layer, e.index);
    t->stats.uploads++;
    t->stats.upload_bytes += expert_slabs_bytes(&t->banks->of[e.layer]);
}

/* A FILLING frame becomes EMPTY; a LEAVING one keeps its expert. */
static void undo_move(frame_table *t, moving m)
{
    if (m.evicted < 0) {
        make_empty(t, m.frame);
        return;
    }
    expert_cache_drop(t->cache, m.frame);        /* the expert to come may be pinned */
    expert_cache_assign(t->cache, m.frame, m.evicted / t->n_expert, m.evicted % t->n_expert);
    t->states[m.frame] = FRAME_READY;
    ram_frames_return(t->ram, m.ram_frame);
}

/* Whether an expert may get a frame. Where experts are moved, one that is LEAVING may not. */
static bool can_enter(const frame_table *t, int layer, int expert)
{
    return expert_cache_find(t->cache, layer, expert) < 0 &&
           (!t->ram || ram_frames_find(t->ram, layer, expert) >= 0);
}

static bool replace(frame_table *t, int frame, int layer, int expert)
{
    if (t->ram) return begin_move(t, frame, layer, expert);
    assign(t, frame, layer, expert);
    make_ready(t, frame);
    return true;
}

/* swaps NULL: experts are moved. */
static int apply(frame_table *t, const int *experts, int n, frame_table_swap *swaps,
                     err_ctx *err)
{
    const int all = t->n_layer * t->n_expert;
    bool *wanted = mem_zalloc((size_t)all * sizeof *wanted);
    ranked *weak = mem_array((size_t)t->n_frame, sizeof *weak);
    int n_swap = 0, next[CACHE_MAX_POOLS] = { 0 };
    if (!wanted || !weak) {
        mem_free(wanted);
        mem_free(weak);
        return err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", all);
    }
    for (int i = 0; i < n; i++)
        if (experts[i] >= 0 && experts[i] < all) wanted[experts[i]] = true;
    const int n_weak = evictable_frames(t, wanted, weak);
    for (int i = 0; i < n; i++) {
        const int l = experts[i] / t->n_expert, e = experts[i] % t->n_expert;
        if (experts[i] < 0 || experts[i] >= all || !can_enter(t, l, e)) continue;
        int frame = empty_frame(t, l), *i_weak = &next[t->pool_of[l]];
        const frame_pool *pool = frame_table_pool(t, l);
        if (frame < 0 && (*i_weak = next_of(pool, weak, *i_weak, n_weak)) < n_weak)
            frame = weak[(*i_weak)++].index;
        if (frame < 0 || !replace(t, frame, l, e)) continue;
        if (swaps) swaps[n_swap] = (frame_table_swap){ l, e, frame };
        n_swap++;
    }
    mem_free(wanted);
    mem_free(weak);
    return n_swap;
}

int frame_table_apply(frame_table *t, const int *experts, int n, frame_table_swap *swaps,
                      err_ctx *err)
{
    assert(!t->ram);
    return apply(t, experts, n, swaps, err);
}

int frame_table_apply_moves(frame_table *t, const int *experts, int n, err_ctx *err)
{
    assert(t->ram);
    return t->max_uploads > 0 ? apply(t, experts, n, NULL, err) : 0;
}

void frame_table_drop(frame_table *t, int frame)
{
    assert(!t->ram && t->states[frame] == FRAME_READY);
    unmap_expert(t, owner_of(t, frame));
    make_empty(t, frame);
}

/* The frame of the least valuable expert of all pools; -1: all are pinned. */
static int weakest_frame(const frame_table *t)
{
    int frame = -1;
    double least = INFINITY, value;
    for (int i = 0; i < t->n_pool; i++) {
        const int weakest = expert_cache_weakest(t->cache, i, &value);
        if (weakest < 0 || !(value < least)) continue;
        frame = weakest;
        least = value;
    }
    return frame;
}

int frame_table_lend(frame_table *t)
{
    if (t->ram || t->n_frame - t->n_lent <= t->n_least) return -1;
    if (weakest_frame(t) < 0)
        for (int f = 0; f < t->n_frame; f++)
            if (t->states[f] == FRAME_READY)
                frame_table_pin(t, owner_of(t, f).layer, owner_of(t, f).index, false);
    const int frame = weakest_frame(t);
    if (frame < 0 || t->states[frame] == FRAME_FILLING) return -1;
    if (t->states[frame] == FRAME_READY) unmap_expert(t, owner_of(t, frame));
    expert_cache_withdraw(t->cache, frame);
    t->states[frame] = FRAME_LENT;
    t->n_lent++;
    return frame;
}

void frame_table_return(frame_table *t, int frame)
{
    assert(t->states[frame] == FRAME_LENT);
    expert_cache_release(t->cache, frame);
    t->states[frame] = FRAME_EMPTY;
    t->n_lent--;
}

/* ---- between tokens -------------------------------------------------------------------------- */

void frame_table_chosen(frame_table *t, int layer, const uint32_t *chosen, int n)
{
    for (int i = 0; i < n; i++) {
        const int e = (int)(chosen[i] & 0xFFFF);
        if (e >= t->n_expert) continue;
        expert_cache_use(t->cache, layer, e);
        if (frame_table_find(t, layer, e) >= 0) {
            t->stats.hits++;
            continue;
        }
        t->stats.misses++;
        if (t->n_miss < MAX_MISSES) t->misses[t->n_miss++] = (expert_id){ layer, e };
    }
}

/* An expert's value is highest just after a use and lowest just before the next one. Without the
 * margin two experts of equal popularity would replace each other at every token: copies without
 * more hits. */
static bool exceeds(const frame_table *t, double value, double weakest)
{
    return expert_cache_gain(t->cache, value, weakest) > t->margin;
}

/* Experts that are used and missing, the most valuable first. */
static int used_and_missing(const frame_table *t, ranked *list)
{
    int n = 0;
    for (int l = 0; l < t->n_layer; l++)
        for (int e = 0; e < t->n_expert; e++)
            if (can_enter(t, l, e) && expert_cache_was_used(t->cache, l, e))
                list[n++] = (ranked){ -expert_cache_value(t->cache, l, e), l * t->n_expert + e };
    if (n > 0) qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

int frame_table_missing(const frame_table *t, int *list, int cap)
{
    ranked *missing = mem_array((size_t)(t->n_layer * t->n_expert), sizeof *missing);
    ranked *weak = mem_array((size_t)t->n_frame, sizeof *weak);
    int n = 0, next[CACHE_MAX_POOLS] = { 0 }, n_empty[CACHE_MAX_POOLS] = { 0 };
    const int n_missing = missing && weak ? used_and_missing(t, missing) : 0;
    const int n_weak = n_missing > 0 ? evictable_frames(t, NULL, weak) : 0;
    for (int k = 0; k < t->n_pool; k++)
        for (int p = t->pools[k].first; p < t->pools[k].first + t->pools[k].n; p++)
            n_empty[k] += t->states[p] == FRAME_EMPTY;
    for (int i = 0; i < n_missing && n < cap; i++) {
        const int l = missing[i].index / t->n_expert;
        const frame_pool *pool = frame_table_pool(t, l);
        int *i_weak = &next[t->pool_of[l]], *empty = &n_empty[t->pool_of[l]];
        *i_weak = next_of(pool, weak, *i_weak, n_weak);
        if (*empty > 0) --*empty;
        else if (*i_weak < n_weak && exceeds(t, -missing[i].value, weak[*i_weak].value)) ++*i_weak;
        else continue;
        list[n++] = missing[i].index;
    }
    mem_free(missing);
    mem_free(weak);
    return n;
}

/* Decides a copy for a missing expert to an EMPTY frame, or to the weakest expert's. */
static bool admit_one(frame_table *t, expert_id e)
{
    double weakest;
    const int frame = expert_cache_weakest(t->cache, t->pool_of[e.layer], &weakest);
    const frame_state state = frame < 0 ? FRAME_FILLING : t->states[frame];
    if (state == FRAME_EMPTY ||
        (state == FRAME_READY &&
         exceeds(t, expert_cache_value(t->cache, e.layer, e.index), weakest)))
        return begin_move(t, frame, e.layer, e.index);
    t->stats.refused++;
    return false;
}

/* Decides copies for at most `cap` of the misses, the most valuable first. The list is short, so
 * each step searches it. After one failure in a pool no other miss of that pool is tried. */
static int admit(frame_table *t, int cap)
{
    bool full[CACHE_MAX_POOLS] = { false };
    for (int n = 0;;) {
        int best = -1;
        double most = -INFINITY;
        for (int i = 0; i < t->n_miss && n < cap; i++) {
            const expert_id e = t->misses[i];
            if (full[t->pool_of[e.layer]] || !can_enter(t, e.layer, e.index)) continue;
            const double value = expert_cache_value(t->cache, e.layer, e.index);
            if (value <= most) continue;
            most = value;
            best = i;
        }
        if (best < 0) return n;
        if (admit_one(t, t->misses[best])) n++;
        else full[t->pool_of[t->misses[best].layer]] = true;
    }
}

bool frame_table_exchange(frame_table *t, bool may_admit)
{
    expert_cache_tick(t->cache);
    const int n = may_admit ? admit(t, t->max_uploads - t->n_moving) : 0;
    t->n_miss = 0;
    return n > 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

bool frame_table_next_copy(const frame_table *t, frame_copy *copy)
{
    if (t->n_unsent == 0) return false;
    const moving m = t->queue[queue_index(t, t->n_moving - t->n_unsent)];
    const expert_id e = m.evicted < 0 ? owner_of(t, m.frame)
                                      : (expert_id){ m.evicted / t->n_expert,
                                                     m.evicted % t->n_expert };
    *copy = (frame_copy){ e.layer, e.index, m.frame, m.ram_frame, t->next_event };
    return true;
}

void frame_table_submitted(frame_table *t)
{
    assert(t->n_unsent > 0);
    t->next_event = (t->next_event + 1) % FRAME_TABLE_EVENTS;
    t->n_unsent--;
}

int frame_table_next_event(const frame_table *t)
{
    const int n_sent = t->n_moving - t->n_unsent;
    return n_sent > 0 ? (t->next_event - n_sent + FRAME_TABLE_EVENTS) % FRAME_TABLE_EVENTS : -1;
}

void frame_table_arrived(frame_table *t)
{
    assert(t->n_moving > t->n_unsent);
    const moving m = t->queue[t->head];
    t->head = (t->head + 1) % FRAME_TABLE_EVENTS;
    t->n_moving--;
    if (m.evicted >= 0) end_leaving(t, m);
    else end_filling(t, m.frame);
}

void frame_table_cancel(frame_table *t, bool submitted)
{
    const int first = submitted ? 0 : t->n_moving - t->n_unsent;
    for (int i = first; i < t->n_moving; i++) undo_move(t, t->queue[queue_index(t, i)]);
    t->n_moving = first;
    t->n_unsent = 0;
    t->stats.failures++;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The layer's chosen and missing experts, the most valuable first. */
static int rank_missing(frame_table *t, int layer, const int32_t *counts, ranked *list)
{
    int n = 0;
    for (int e = 0; e < t->n_expert; e++)
        if (counts[e] > 0 && expert_cache_find(t->cache, layer, e) < 0)
            list[n++] = (ranked){ -expert_cache_value(t->cache, layer, e), e };
    qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

/* The layer's experts that may be evicted, the least valuable first. */
static int rank_ready(frame_table *t, int layer, ranked *list)
{
    int n = 0;
    for (int e = 0; e < t->n_expert; e++)
        if (frame_table_find(t, layer, e) >= 0 && !expert_cache_is_pinned(t->cache, layer, e))
            list[n++] = (ranked){ expert_cache_value(t->cache, layer, e), e };
    qsort(list, (size_t)n, sizeof *list, by_value);
    return n;
}

int frame_table_prompt(frame_table *t, int layer, const int32_t *counts, const bool *passing,
                       frame_table_swap *swaps, int cap)
{
    ranked *missing = t->ranks, *ready = t->ranks + t->n_expert;
    int n = 0, weakest = 0;
    for (int e = 0; e < t->n_expert; e++)
        if (counts[e] > 0) expert_cache_use_many(t->cache, layer, e, counts[e]);
    if (t->max_uploads == 0) return 0;
    const int n_missing = rank_missing(t, layer, counts, missing);
    const int n_ready = rank_ready(t, layer, ready), quota = frame_table_quota(t, layer);
    if (t->ram) {
        for (int i = 0; i < n_missing && i < t->banks->n_used && t->n_miss < MAX_MISSES; i++)
            t->misses[t->n_miss++] = (expert_id){ layer, missing[i].index };
        return 0;
    }
    for (int i = 0; i < n_missing && n < cap; i++) {
        const int e = missing[i].index;
        if (passing && !passing[e]) continue;
        int frame = t->n_ready[layer] < quota ? frame_table_put(t, layer, e) : -1;
        if (frame < 0) {
            if (weakest == n_ready || !(-missing[i].value > ready[weakest].value)) break;
            frame = frame_table_find(t, layer, ready[weakest++].index);
            assign(t, frame, layer, e);
            make_ready(t, frame);
        }
        swaps[n++] = (frame_table_swap){ layer, e, frame };
    }
    t->stats.swaps += (uint64_t)n;
    return n;
}

frame_table_stats frame_table_counts(const frame_table *t) { return t->stats; }
void frame_table_reset_counts(frame_table *t) { t->stats = (frame_table_stats){ 0 }; }
