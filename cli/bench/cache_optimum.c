/* cache_optimum.c - Belady's algorithm over a trace: one heap for each pool, the expert whose next
 * use is furthest away on top.
 *
 * An expert in the cache is in its pool's heap once. Its next use is known when it is used, and is
 * later than the one before: an expert in the heap only ever moves up. */
#include "cli/bench/cache_optimum.h"

#include <string.h>

#include "moe/expert_cache.h"

#define NEVER UINT32_MAX                 /* not used again */
enum { ABSENT = -1 };

typedef struct heap {
    int *owner;                          /* layer * n_expert + expert */
    int n;
} heap;

struct cache_optimum {
    const routing_trace *t;
    const uint8_t *pool_of;
    uint32_t *next;                      /* [n_token, n_layer, n_used]: which of these is the next
                                          * use of the same expert by a generated token */
    uint32_t *key;                       /* [n_layer, n_expert]: of experts in a heap, its next */
    int *at;                             /* [n_layer, n_expert]: where it is in its heap, or
                                          * ABSENT */
    int *owners;                         /* what the heaps point to: room for all experts */
    heap heaps[CACHE_MOST_POOLS];
    int n_pool;
};

/* ---- the heap -------------------------------------------------------------------------------- */

static void put(cache_optimum *o, heap *h, int i, int owner)
{
    h->owner[i] = owner;
    o->at[owner] = i;
}

static void move_up(cache_optimum *o, heap *h, int i)
{
    const int owner = h->owner[i];
    for (; i > 0 && o->key[h->owner[(i - 1) / 2]] < o->key[owner]; i = (i - 1) / 2)
        put(o, h, i, h->owner[(i - 1) / 2]);
    put(o, h, i, owner);
}

static void drop_furthest(cache_optimum *o, heap *h)
{
    o->at[h->owner[0]] = ABSENT;
    if (--h->n == 0) return;
    const int owner = h->owner[h->n];
    int i = 0;
    for (int child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && o->key[h->owner[child + 1]] > o->key[h->owner[child]]) child++;
        if (o->key[h->owner[child]] <= o->key[owner]) break;
        put(o, h, i, h->owner[child]);
    }
    put(o, h, i, owner);
}

/* It is in the heap afterwards, by its next use. */
static void use(cache_optimum *o, heap *h, int owner, uint32_t next)
{
    o->key[owner] = next;
    if (o->at[owner] == ABSENT) put(o, h, h->n++, owner);
    move_up(o, h, o->at[owner]);
}

/* ---- the trace ------------------------------------------------------------------------------- */

static int owner_of(const cache_optimum *o, int l, int e) { return l * o->t->model.n_expert + e; }

/* From the end: when each expert is used next. */
static void look_ahead(cache_optimum *o)
{
    const routing_model *m = &o->t->model;
    uint32_t *when = o->key;             /* not in use yet */
    const size_t n = (size_t)m->n_layer * (size_t)m->n_expert;
    for (size_t i = 0; i < n; i++) when[i] = NEVER;
    for (int t = o->t->n_token - 1; t >= 0; t--)
        for (int l = 0; l < m->n_layer; l++) {
            const uint16_t *ids = routing_trace_ids(o->t, t, l);
            for (int i = 0; i < m->n_used; i++) {
                const size_t now = (size_t)(ids - o->t->ids) + (size_t)i;
                uint32_t *w = &when[owner_of(o, l, ids[i])];
                o->next[now] = *w;
                if (t >= o->t->n_prompt) *w = (uint32_t)now;
            }
        }
}

int cache_optimum_create(cache_optimum **out, const routing_trace *t, const uint8_t *pool_of,
                         err_ctx *err)
{
    const routing_model *m = &t->model;
    const size_t n_owner = (size_t)m->n_layer * (size_t)m->n_expert;
    const uint64_t n_use = (uint64_t)t->n_token * (uint64_t)m->n_layer * (uint64_t)m->n_used;
    cache_optimum *o;
    *out = NULL;
    if (n_use >= NEVER)
        return err_set(err, ERR_RANGE, "%d tokens are too many to replay", t->n_token);
    if (!(o = mem_zalloc(sizeof *o))) return err_set(err, ERR_NOMEM, "optimum: %zu bytes",
                                                     sizeof *o);
    o->t = t;
    o->pool_of = pool_of;
    o->next = mem_array((size_t)n_use, sizeof *o->next);
    o->key = mem_array(n_owner, sizeof *o->key);
    o->at = mem_array(n_owner, sizeof *o->at);
    o->owners = mem_array(n_owner, sizeof *o->owners);
    if (!o->next || !o->key || !o->at || !o->owners) {
        cache_optimum_free(o);
        return err_set(err, ERR_NOMEM, "no memory to look ahead in %d tokens", t->n_token);
    }
    for (int l = 0; l < m->n_layer; l++) o->n_pool = max_int(o->n_pool, pool_of[l] + 1);
    look_ahead(o);
    *out = o;
    return 0;
}

void cache_optimum_free(cache_optimum *o)
{
    if (!o) return;
    mem_free(o->owners);
    mem_free(o->at);
    mem_free(o->key);
    mem_free(o->next);
    mem_free(o);
}

/* ---- replaying ------------------------------------------------------------------------------- */

static void empty(cache_optimum *o)
{
    const routing_model *m = &o->t->model;
    const size_t n = (size_t)m->n_layer * (size_t)m->n_expert;
    int *room = o->owners;
    for (size_t i = 0; i < n; i++) o->at[i] = ABSENT;
    for (int p = 0; p < o->n_pool; p++) {
        o->heaps[p] = (heap){ room, 0 };
        for (int l = 0; l < m->n_layer; l++) room += o->pool_of[l] == p ? m->n_expert : 0;
    }
}

/* One layer of one token. On demand what is missing takes a place now; else it is taken in beyond
 * the places, and after_token makes room. Returns the hits. */
static int see_layer(cache_optimum *o, int t, int l, const int *n_place, bool on_demand)
{
    const int n_used = o->t->model.n_used, pool = o->pool_of[l];
    const uint16_t *ids = routing_trace_ids(o->t, t, l);
    const uint32_t *next = o->next + (ids - o->t->ids);
    heap *h = &o->heaps[pool];
    int hits = 0;
    for (int i = 0; i < n_used; i++) {
        const int owner = owner_of(o, l, ids[i]);
        const bool there = o->at[owner] != ABSENT;
        hits += there;
        if (on_demand && !there && n_place[pool] == 0) continue;
        if (on_demand && !there && h->n == n_place[pool]) drop_furthest(o, h);
        use(o, h, owner, next[i]);
    }
    return hits;
}

static void after_token(cache_optimum *o, const int *n_place)
{
    for (int p = 0; p < o->n_pool; p++)
        while (o->heaps[p].n > n_place[p]) drop_furthest(o, &o->heaps[p]);
}

void cache_optimum_run(uint8_t *hits, cache_optimum *o, const int *n_place, bool on_demand)
{
    const int n_layer = o->t->model.n_layer;
    empty(o);
    for (int t = 0; t < o->t->n_token; t++) {
        const bool counts = t >= o->t->n_prompt, at_once = on_demand && counts;
        for (int l = 0; l < n_layer; l++) {
            const int n = see_layer(o, t, l, n_place, at_once);
            if (counts) *hits++ = (uint8_t)n;
        }
        if (!at_once) after_token(o, n_place);
    }
}
