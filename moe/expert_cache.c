/* expert_cache.c - a table from experts to places, and a list of places by last use.
 *
 * Every place is in the list once, the least recently used first and free ones before all others;
 * table and places always agree. Held places stay in the list: they were used last, so a search
 * from the other end hardly ever meets one. What a place contains is left to the caller. */
#include "moe/expert_cache.h"

#include <assert.h>

typedef struct place {
    int owner;                           /* layer * n_expert + expert, or NOBODY */
    int held;
    int older, newer;                    /* neighbours in the list, or NOBODY */
} place;

enum { NOBODY = -1 };

struct expert_cache {
    int n_layer, n_expert, n_place;
    int *place_of;                       /* [n_layer, n_expert], or NOBODY */
    place *places;
    int oldest, newest;                  /* ends of the list */
    expert_cache_stats stats;
};

int expert_cache_create(expert_cache **out, int n_layer, int n_expert, int n_place, err_ctx *err)
{
    const size_t n = (size_t)n_layer * (size_t)n_expert;
    expert_cache *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "expert cache: %zu bytes", sizeof *c);
    c->n_layer = n_layer;
    c->n_expert = n_expert;
    c->n_place = n_place;
    c->place_of = mem_array(n, sizeof *c->place_of);
    c->places = mem_array((size_t)max_int(n_place, 1), sizeof *c->places);
    if (!c->place_of || !c->places) {
        expert_cache_free(c);
        return err_set(err, ERR_NOMEM, "expert cache: %zu experts, %d places", n, n_place);
    }
    for (size_t i = 0; i < n; i++) c->place_of[i] = NOBODY;
    for (int i = 0; i < n_place; i++)
        c->places[i] = (place){ .owner = NOBODY, .older = i - 1,
                                .newer = i + 1 < n_place ? i + 1 : NOBODY };
    c->oldest = n_place > 0 ? 0 : NOBODY;
    c->newest = n_place - 1;
    *out = c;
    return 0;
}

void expert_cache_free(expert_cache *c)
{
    if (!c) return;
    mem_free(c->place_of);
    mem_free(c->places);
    mem_free(c);
}

int expert_cache_places(const expert_cache *c) { return c->n_place; }
expert_cache_stats expert_cache_counts(const expert_cache *c) { return c->stats; }

static int owner_of(const expert_cache *c, int layer, int expert)
{
    assert(layer >= 0 && layer < c->n_layer && expert >= 0 && expert < c->n_expert);
    return layer * c->n_expert + expert;
}

int expert_cache_find(const expert_cache *c, int layer, int expert)
{
    return c->place_of[owner_of(c, layer, expert)];
}

/* ---- the list -------------------------------------------------------------------------------- */

static void unlink_place(expert_cache *c, int i)
{
    const place *p = &c->places[i];
    if (p->older != NOBODY) c->places[p->older].newer = p->newer;
    else c->oldest = p->newer;
    if (p->newer != NOBODY) c->places[p->newer].older = p->older;
    else c->newest = p->older;
}

static void make_newest(expert_cache *c, int i)
{
    place *p = &c->places[i];
    unlink_place(c, i);
    p->older = c->newest;
    p->newer = NOBODY;
    if (c->newest != NOBODY) c->places[c->newest].newer = i;
    else c->oldest = i;
    c->newest = i;
}

static void make_oldest(expert_cache *c, int i)
{
    place *p = &c->places[i];
    unlink_place(c, i);
    p->older = NOBODY;
    p->newer = c->oldest;
    if (c->oldest != NOBODY) c->places[c->oldest].older = i;
    else c->newest = i;
    c->oldest = i;
}

/* ---- use ------------------------------------------------------------------------------------- */

int expert_cache_hold(expert_cache *c, int layer, int expert, bool *was_there, int *evicted)
{
    const int owner = owner_of(c, layer, expert);
    int i = c->place_of[owner];
    *was_there = i != NOBODY;
    *evicted = NOBODY;
    if (!*was_there) {
        for (i = c->oldest; i != NOBODY && c->places[i].held > 0;) i = c->places[i].newer;
        if (i == NOBODY) return -1;
        *evicted = c->places[i].owner;
        if (*evicted != NOBODY) c->place_of[*evicted] = NOBODY;
        c->places[i].owner = owner;
        c->place_of[owner] = i;
        c->stats.misses++;
    } else {
        c->stats.hits++;
    }
    c->places[i].held++;
    make_newest(c, i);
    return i;
}

void expert_cache_release(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place && c->places[i].held > 0);
    c->places[i].held--;
}

void expert_cache_drop(expert_cache *c, int i)
{
    assert(i >= 0 && i < c->n_place && c->places[i].held == 0);
    if (c->places[i].owner == NOBODY) return;
    c->place_of[c->places[i].owner] = NOBODY;
    c->places[i].owner = NOBODY;
    make_oldest(c, i);
}
