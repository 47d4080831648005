/* expert_cache.c - experts with their histories, frames with their owners, a heap of each pool's
 * frames.
 *
 * Invariants: experts[e].frame and frames[f].owner are inverse to each other. A frame is in its
 * pool's heap unless it is held or its owner is pinned. Its rank is its owner's value, or the least
 * of all if it is empty. */
#include "moe/expert_cache.h"

#include <assert.h>
#include <math.h>

#include "moe/value_heap.h"

enum { NONE = -1 };

#define BELOW_ALL 0x1p40                 /* values are hardly negative: log2 of a frequency */

typedef struct cached_expert {
    cache_history history;
    int frame;                           /* or NONE */
    bool pinned;
} cached_expert;

typedef struct frame {
    int owner;                           /* layer * n_expert + expert, or NONE */
    int n_hold;
    int pool;
    double transient;                    /* 0: no; else a rank among the transient ones */
} frame;

struct expert_cache {
    int n_layer, n_expert, n_frame, n_pool;
    cache_policy policy;
    cached_expert *experts;              /* [n_layer, n_expert] */
    uint8_t *pool_of;                    /* [n_layer] */
    frame *frames;
    value_rank *ranks;                   /* [n_frame]: storage of the heaps */
    int *rank_index;                     /* [n_frame] */
    value_heap evictable[CACHE_MAX_POOLS];       /* of each pool */
    int64_t token, now;                  /* now: in steps */
};

/* ---- create and free ------------------------------------------------------------------------- */

static void rank_frame(expert_cache *c, int i);

static void fill_pools(expert_cache *c, const cache_shape *s)
{
    for (int n = 0, i = 0; n < s->n_pool; n++) {
        c->evictable[n] = (value_heap){ .ranks = c->ranks + i, .index = c->rank_index };
        for (const int end = i + s->n_frame[n]; i < end; i++) {
            c->frames[i] = (frame){ .owner = NONE, .pool = n };
            c->rank_index[i] = NONE;
            rank_frame(c, i);
        }
    }
}

int expert_cache_create(expert_cache **out, const cache_shape *s, err_ctx *err)
{
    const size_t n = (size_t)s->n_layer * (size_t)s->n_expert;
    expert_cache *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "expert cache: %zu bytes", sizeof *c);
    assert(s->n_pool >= 1 && s->n_pool <= CACHE_MAX_POOLS);
    c->n_layer = s->n_layer;
    c->n_expert = s->n_expert;
    c->n_pool = s->n_pool;
    c->policy = s->policy;
    c->token = CACHE_BEGIN;
    c->now = CACHE_BEGIN * CACHE_STEPS;
    for (int i = 0; i < s->n_pool; i++) c->n_frame += s->n_frame[i];
    const size_t room = (size_t)max_int(c->n_frame, 1);
    c->experts = mem_array(n, sizeof *c->experts);
    c->pool_of = mem_array((size_t)s->n_layer, sizeof *c->pool_of);
    c->frames = mem_array(room, sizeof *c->frames);
    c->ranks = mem_array(room, sizeof *c->ranks);
    c->rank_index = mem_array(room, sizeof *c->rank_index);
    if (!c->experts || !c->pool_of || !c->frames || !c->ranks || !c->rank_index) {
        expert_cache_free(c);
        return err_set(err, ERR_NOMEM, "expert cache: %zu experts, %zu frames", n, room);
    }
    for (size_t i = 0; i < n; i++)
        c->experts[i] = (cached_expert){ .history = { .when = CACHE_NEVER }, .frame = NONE };
    for (int l = 0; l < s->n_layer; l++) {
        c->pool_of[l] = s->pool_of ? s->pool_of[l] : 0;
        assert(c->pool_of[l] < s->n_pool);
    }
    fill_pools(c, s);
    *out = c;
    return 0;
}

void expert_cache_free(expert_cache *c)
{
    if (!c) return;
    mem_free(c->experts);
    mem_free(c->pool_of);
    mem_free(c->frames);
    mem_free(c->ranks);
    mem_free(c->rank_index);
    mem_free(c);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int id_of(const expert_cache *c, int layer, int expert)
{
    assert(layer >= 0 && layer < c->n_layer && expert >= 0 && expert < c->n_expert);
    return layer * c->n_expert + expert;
}

int expert_cache_find(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].frame;
}

int expert_cache_owner(const expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_frame);
    return c->frames[i].owner;
}

static double value_of(const expert_cache *c, const cached_expert *e)
{
    return cache_policy_value(c->policy, &e->history);
}

double expert_cache_value(const expert_cache *c, int layer, int expert)
{
    return value_of(c, &c->experts[id_of(c, layer, expert)]);
}

bool expert_cache_was_used(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].history.frequency > 0;
}

double expert_cache_gain(const expert_cache *c, double value, double other)
{
    return cache_policy_gain(c->policy, value, other, c->now);
}

int expert_cache_weakest(const expert_cache *c, int pool, double *value)
{
    assert(pool >= 0 && pool < c->n_pool);
    const value_heap *h = &c->evictable[pool];
    if (h->n == 0) return NONE;
    if (value) *value = h->ranks[0].value;
    return h->ranks[0].frame;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static value_rank rank_of(const expert_cache *c, int i)
{
    const int owner = c->frames[i].owner;
    if (owner == NONE) return (value_rank){ -INFINITY, CACHE_NEVER, i };
    const cached_expert *e = &c->experts[owner];
    const double passes = c->frames[i].transient;
    return (value_rank){ passes > 0 ? passes - BELOW_ALL : value_of(c, e), e->history.when, i };
}

/* Call after a change of the frame's owner, its value, or whether it is held or pinned. */
static void rank_frame(expert_cache *c, int i)
{
    const frame *p = &c->frames[i];
    value_heap *h = &c->evictable[p->pool];
    if (p->n_hold > 0 || (p->owner != NONE && c->experts[p->owner].pinned))
        value_heap_remove(h, i);
    else
        value_heap_put(h, rank_of(c, i));
}

/* Sets the frame's owner; the caller updates its rank. Returns the former owner. */
static int set_owner(expert_cache *c, int i, int owner)
{
    const int before = c->frames[i].owner;
    if (before != NONE) c->experts[before].frame = NONE;
    if (owner != NONE) c->experts[owner].frame = i;
    c->frames[i].owner = owner;
    c->frames[i].transient = 0;
    return before;
}

/* Adds n uses; the caller updates the rank of the expert's frame. */
static void note_uses(expert_cache *c, cached_expert *e, int n)
{
    cache_policy_use(c->policy, &e->history, ++c->now, n);
}

/* ---- use ------------------------------------------------------------------------------------- */

int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_present, int *evicted)
{
    const int id = id_of(c, layer, expert);
    cached_expert *e = &c->experts[id];
    *was_present = e->frame != NONE;
    *evicted = NONE;
    if (!*was_present) {
        const int i = expert_cache_weakest(c, c->pool_of[layer], NULL);
        if (i == NONE) return -1;
        *evicted = set_owner(c, i, id);
    }
    note_uses(c, e, 1);
    c->frames[e->frame].n_hold++;
    rank_frame(c, e->frame);
    return e->frame;
}

void expert_cache_release(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_frame && c->frames[i].n_hold > 0);
    c->frames[i].n_hold--;
    rank_frame(c, i);
}

void expert_cache_set_transient(expert_cache *c, int i, int n)
{
    frame *p = &c->frames[i];
    assert(i >= 0 && i < c->n_frame && p->n_hold > 0 && p->owner != NONE && n >= 0);
    /* of equals always the same ones stay, so that the next prompt hits them */
    p->transient = n > 0 ? n + (double)(random_word(3, (uint64_t)p->owner) >> 56) / 256 : 0;
}

bool expert_cache_is_transient(const expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_frame);
    return c->frames[i].transient > 0;
}

void expert_cache_use_many(expert_cache *c, int layer, int expert, int n)
{
    cached_expert *e = &c->experts[id_of(c, layer, expert)];
    assert(n > 0);
    note_uses(c, e, n);
    if (e->frame != NONE) rank_frame(c, e->frame);
}

void expert_cache_use(expert_cache *c, int layer, int expert)
{
    expert_cache_use_many(c, layer, expert, 1);
}

void expert_cache_drop(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_frame && c->frames[i].n_hold == 0);
    set_owner(c, i, NONE);
    rank_frame(c, i);
}

void expert_cache_withdraw(expert_cache *c, int i)
{
    expert_cache_drop(c, i);
    c->frames[i].n_hold = 1;
    rank_frame(c, i);
}

int expert_cache_assign(expert_cache *c, int i, int layer, int expert)
{
    const int id = id_of(c, layer, expert);
    assert(i >= 0 && i < c->n_frame && c->frames[i].pool == c->pool_of[layer]);
    assert(c->rank_index[i] != NONE && c->experts[id].frame == NONE);
    const int before = set_owner(c, i, id);
    rank_frame(c, i);
    return before;
}

void expert_cache_pin(expert_cache *c, int layer, int expert, bool pinned)
{
    cached_expert *e = &c->experts[id_of(c, layer, expert)];
    e->pinned = pinned;
    if (e->frame != NONE) rank_frame(c, e->frame);
}

bool expert_cache_is_pinned(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].pinned;
}

void expert_cache_seed(expert_cache *c, int layer, int expert, double frequency, int age)
{
    const double most = 0x1p32;          /* a use still counts */
    cached_expert *e = &c->experts[id_of(c, layer, expert)];
    e->history.frequency = fmin(fmax(frequency, 0), most);  /* 0 if it is no number */
    e->history.when = e->history.frequency > 0 ? (c->token - max_int(age, 0)) * CACHE_STEPS
                                         : CACHE_NEVER;
    if (e->frame != NONE) rank_frame(c, e->frame);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Exact, and so without effect on the order, until a frequency is too small for a double: then it
 * is 0, and its expert was last used a thousand halvings ago. */
static void halve(expert_cache *c)
{
    const int n = c->n_layer * c->n_expert;
    for (int i = 0; i < n; i++) c->experts[i].history.frequency *= 0.5;
    for (int p = 0; p < c->n_pool; p++) {
        value_heap *h = &c->evictable[p];
        for (int i = 0; i < h->n; i++) h->ranks[i] = rank_of(c, h->ranks[i].frame);
        value_heap_order(h);
    }
}

void expert_cache_tick(expert_cache *c)
{
    c->token++;
    if (c->now < c->token * CACHE_STEPS) c->now = c->token * CACHE_STEPS;
    if ((c->token - CACHE_BEGIN) % CACHE_HALVE == 0) halve(c);
}
