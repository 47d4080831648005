/* expert_cache.c - experts with their history, places with their owners, a heap of each pool's
 * places.
 *
 * Experts and places always agree on who is where. A place is in its pool's heap exactly if it may
 * be taken, that is, unless it is held or its owner pinned; then its rank there is that of its
 * owner, and that of an empty one is least. What a place contains is left to the caller. */
#include "moe/expert_cache.h"

#include <assert.h>
#include <math.h>

#include "moe/value_heap.h"

enum { NOBODY = -1 };

#define BELOW_ALL 0x1p40                 /* values are hardly negative: log2 of a frequency */

typedef struct known_expert {
    cache_history past;
    int place;                           /* or NOBODY */
    bool pinned;
} known_expert;

typedef struct place {
    int owner;                           /* layer * n_expert + expert, or NOBODY */
    int held;
    int pool;
    double passes;                       /* 0: no; else a rank among those that pass */
} place;

typedef struct frame_pool {
    value_heap free;                     /* places that may be taken */
} frame_pool;

struct expert_cache {
    int n_layer, n_expert, n_place, n_pool;
    cache_policy policy;
    known_expert *experts;               /* [n_layer, n_expert] */
    uint8_t *pool_of;                    /* [n_layer] */
    place *places;
    value_rank *ranks;                   /* [n_place]: storage of the heaps */
    int *rank_at;                        /* [n_place] */
    frame_pool pools[CACHE_MOST_POOLS];
    int64_t token, now;                  /* now: in steps */
    expert_cache_stats stats;
};

/* ---- making ---------------------------------------------------------------------------------- */

static void rank_place(expert_cache *c, int i);

static void fill_pools(expert_cache *c, const cache_shape *s)
{
    for (int n = 0, i = 0; n < s->n_pool; n++) {
        c->pools[n] = (frame_pool){
            .free = { .ranks = c->ranks + i, .at = c->rank_at },
        };
        for (const int end = i + s->n_place[n]; i < end; i++) {
            c->places[i] = (place){ .owner = NOBODY, .pool = n };
            c->rank_at[i] = NOBODY;
            rank_place(c, i);
        }
    }
}

int expert_cache_create(expert_cache **out, const cache_shape *s, err_ctx *err)
{
    const size_t n = (size_t)s->n_layer * (size_t)s->n_expert;
    expert_cache *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "expert cache: %zu bytes", sizeof *c);
    assert(s->n_pool >= 1 && s->n_pool <= CACHE_MOST_POOLS);
    c->n_layer = s->n_layer;
    c->n_expert = s->n_expert;
    c->n_pool = s->n_pool;
    c->policy = s->policy;
    c->token = CACHE_BEGIN;
    c->now = CACHE_BEGIN * CACHE_STEPS;
    for (int i = 0; i < s->n_pool; i++) c->n_place += s->n_place[i];
    const size_t room = (size_t)max_int(c->n_place, 1);
    c->experts = mem_array(n, sizeof *c->experts);
    c->pool_of = mem_array((size_t)s->n_layer, sizeof *c->pool_of);
    c->places = mem_array(room, sizeof *c->places);
    c->ranks = mem_array(room, sizeof *c->ranks);
    c->rank_at = mem_array(room, sizeof *c->rank_at);
    if (!c->experts || !c->pool_of || !c->places || !c->ranks || !c->rank_at) {
        expert_cache_free(c);
        return err_set(err, ERR_NOMEM, "expert cache: %zu experts, %zu places", n, room);
    }
    for (size_t i = 0; i < n; i++)
        c->experts[i] = (known_expert){ .past = { .when = CACHE_NEVER }, .place = NOBODY };
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
    mem_free(c->places);
    mem_free(c->ranks);
    mem_free(c->rank_at);
    mem_free(c);
}

/* ---- questions ------------------------------------------------------------------------------- */

int expert_cache_places(const expert_cache *c) { return c->n_place; }
expert_cache_stats expert_cache_counts(const expert_cache *c) { return c->stats; }

static int id_of(const expert_cache *c, int layer, int expert)
{
    assert(layer >= 0 && layer < c->n_layer && expert >= 0 && expert < c->n_expert);
    return layer * c->n_expert + expert;
}

int expert_cache_find(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].place;
}

int expert_cache_owner(const expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place);
    return c->places[i].owner;
}

static double value_of(const expert_cache *c, const known_expert *e)
{
    return cache_policy_value(c->policy, &e->past);
}

double expert_cache_value(const expert_cache *c, int layer, int expert)
{
    return value_of(c, &c->experts[id_of(c, layer, expert)]);
}

bool expert_cache_was_used(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].past.frequency > 0;
}

double expert_cache_gain(const expert_cache *c, double value, double other)
{
    return cache_policy_gain(c->policy, value, other, c->now);
}

int expert_cache_weakest(const expert_cache *c, int pool, double *value)
{
    assert(pool >= 0 && pool < c->n_pool);
    const value_heap *h = &c->pools[pool].free;
    if (h->n == 0) return NOBODY;
    if (value) *value = h->ranks[0].value;
    return h->ranks[0].place;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static value_rank rank_of(const expert_cache *c, int i)
{
    const int owner = c->places[i].owner;
    if (owner == NOBODY) return (value_rank){ -INFINITY, CACHE_NEVER, i };
    const known_expert *e = &c->experts[owner];
    const double passes = c->places[i].passes;
    return (value_rank){ passes > 0 ? passes - BELOW_ALL : value_of(c, e), e->past.when, i };
}

/* After anything that changes who has the place, whether it may be taken, or what it is worth. */
static void rank_place(expert_cache *c, int i)
{
    const place *p = &c->places[i];
    value_heap *h = &c->pools[p->pool].free;
    if (p->held > 0 || (p->owner != NOBODY && c->experts[p->owner].pinned))
        value_heap_remove(h, i);
    else
        value_heap_put(h, rank_of(c, i));
}

/* The place changes hands; its rank is the caller's to set. Returns the former owner. */
static int give(expert_cache *c, int i, int owner)
{
    const int before = c->places[i].owner;
    if (before != NOBODY) c->experts[before].place = NOBODY;
    if (owner != NOBODY) c->experts[owner].place = i;
    c->places[i].owner = owner;
    c->places[i].passes = 0;
    return before;
}

/* Notes n uses; the rank of a place that it has is the caller's to set. */
static void note_uses(expert_cache *c, known_expert *e, int n)
{
    cache_policy_use(c->policy, &e->past, ++c->now, n);
}

/* ---- use ------------------------------------------------------------------------------------- */

int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_there, int *evicted)
{
    const int id = id_of(c, layer, expert);
    known_expert *e = &c->experts[id];
    *was_there = e->place != NOBODY;
    *evicted = NOBODY;
    if (!*was_there) {
        const int i = expert_cache_weakest(c, c->pool_of[layer], NULL);
        if (i == NOBODY) return -1;
        *evicted = give(c, i, id);
        c->stats.misses++;
    } else {
        c->stats.hits++;
    }
    note_uses(c, e, 1);
    c->places[e->place].held++;
    rank_place(c, e->place);
    return e->place;
}

void expert_cache_release(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place && c->places[i].held > 0);
    c->places[i].held--;
    rank_place(c, i);
}

void expert_cache_pass(expert_cache *c, int i, int n)
{
    place *p = &c->places[i];
    assert(i >= 0 && i < c->n_place && p->held > 0 && p->owner != NOBODY && n >= 0);
    /* of equals always the same ones stay: the next prompt finds them */
    p->passes = n > 0 ? n + (double)(random_word(3, (uint64_t)p->owner) >> 56) / 256 : 0;
}

bool expert_cache_passes(const expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place);
    return c->places[i].passes > 0;
}

void expert_cache_use_many(expert_cache *c, int layer, int expert, int n)
{
    known_expert *e = &c->experts[id_of(c, layer, expert)];
    assert(n > 0);
    note_uses(c, e, n);
    if (e->place == NOBODY) {
        c->stats.misses += (uint64_t)n;
        return;
    }
    c->stats.hits += (uint64_t)n;
    rank_place(c, e->place);
}

void expert_cache_use(expert_cache *c, int layer, int expert)
{
    expert_cache_use_many(c, layer, expert, 1);
}

void expert_cache_drop(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place && c->places[i].held == 0);
    give(c, i, NOBODY);
    rank_place(c, i);
}

int expert_cache_assign(expert_cache *c, int i, int layer, int expert)
{
    const int id = id_of(c, layer, expert);
    assert(i >= 0 && i < c->n_place && c->places[i].pool == c->pool_of[layer]);
    assert(c->rank_at[i] != NOBODY && c->experts[id].place == NOBODY);
    const int before = give(c, i, id);
    rank_place(c, i);
    return before;
}

void expert_cache_pin(expert_cache *c, int layer, int expert, bool pinned)
{
    known_expert *e = &c->experts[id_of(c, layer, expert)];
    e->pinned = pinned;
    if (e->place != NOBODY) rank_place(c, e->place);
}

bool expert_cache_is_pinned(const expert_cache *c, int layer, int expert)
{
    return c->experts[id_of(c, layer, expert)].pinned;
}

void expert_cache_seed(expert_cache *c, int layer, int expert, double frequency, int age)
{
    const double most = 0x1p32;          /* a use still counts */
    known_expert *e = &c->experts[id_of(c, layer, expert)];
    e->past.frequency = fmin(fmax(frequency, 0), most);  /* 0 if it is no number */
    e->past.when = e->past.frequency > 0 ? (c->token - max_int(age, 0)) * CACHE_STEPS
                                         : CACHE_NEVER;
    if (e->place != NOBODY) rank_place(c, e->place);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Exact, and so without effect on the order, until a frequency is too small for a double: then it
 * is 0, and its expert was last used a thousand halvings ago. */
static void halve(expert_cache *c)
{
    const int n = c->n_layer * c->n_expert;
    for (int i = 0; i < n; i++) c->experts[i].past.frequency *= 0.5;
    for (int p = 0; p < c->n_pool; p++) {
        value_heap *h = &c->pools[p].free;
        for (int i = 0; i < h->n; i++) h->ranks[i] = rank_of(c, h->ranks[i].place);
        value_heap_order(h);
    }
}

void expert_cache_tick(expert_cache *c)
{
    c->token++;
    if (c->now < c->token * CACHE_STEPS) c->now = c->token * CACHE_STEPS;
    if ((c->token - CACHE_BEGIN) % CACHE_HALVE == 0) halve(c);
}
