/* ram_frames.c - which expert is in which slot of RAM.
 *
 * Invariants: a slot that is an expert's is in no list and nobody else's; a free one is in its
 * pool's list once; a taken one is in no list and has no owner. */
#include "moe/ram_frames.h"

#include <assert.h>

#include "moe/expert_cache.h"
#include "moe/frame_table.h"
#include "tiers/reader.h"

enum { FREE = -1, TAKEN = -2 };

typedef struct slot_pool {
    uint64_t room_at[SLAB_COUNT], bytes; /* of slabs in a slot; of a slot */
    uint64_t begin;                      /* of the pool among all slots' bytes */
    int first, n;                        /* its slots */
    int n_free;
    int *free;                           /* [n]; the first n_free are */
} slot_pool;

struct ram_frames {
    const expert_banks *banks;
    int n_pool, n_slot;
    slot_pool pools[CACHE_MOST_POOLS];
    uint8_t *pool_of;                    /* [n_layer] */
    int *free;                           /* [n_slot]: the pools' lists */
    int *owner;                          /* [n_slot]: layer * n_expert + expert, FREE or TAKEN */
    int *slot_of;                        /* [n_layer, n_expert], or -1 */
    bool *changed;                       /* [n_layer] */
};

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Whether experts of two layers can have each other's places, and so each other's slots. */
static bool are_alike(const expert_bank *a, const expert_bank *b)
{
    for (int s = 0; s < SLAB_COUNT; s++)
        if (size_align(expert_slab_bytes(a, (expert_slab)s), FRAME_ALIGN) !=
            size_align(expert_slab_bytes(b, (expert_slab)s), FRAME_ALIGN))
            return false;
    return true;
}

/* The first layer whose experts are like this one's. */
static int first_like(const expert_banks *b, int layer)
{
    int l = 0;
    while (!are_alike(&b->of[l], &b->of[layer])) l++;
    return l;
}

/* Each slab has whole pages, wherever in a page it begins. Where there are no experts, a slot is
 * nothing. */
static slot_pool pool_for(const expert_bank *b)
{
    slot_pool p = { .bytes = 0 };
    for (int s = 0; s < SLAB_COUNT && b->n_expert > 0; s++) {
        const uint64_t most = size_align(expert_slab_bytes(b, (expert_slab)s), FRAME_ALIGN);
        p.room_at[s] = p.bytes;
        p.bytes += size_align(most + READER_PAGE - 1, READER_PAGE);
    }
    return p;
}

uint64_t ram_frames_one(const expert_banks *b, int layer)
{
    return pool_for(&b->of[layer]).bytes;
}

uint64_t ram_frames_n_free(const expert_banks *b)
{
    uint64_t sum = 0;
    int n_pool = 0;
    for (int l = 0; l < b->n_layer; l++) {
        if (first_like(b, l) < l) continue;
        sum += FREE_RAM_FRAMES * ram_frames_one(b, l);
        n_pool++;
    }
    return n_pool <= CACHE_MOST_POOLS ? sum : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_pools(ram_frames *s, const int *in_vram, err_ctx *err)
{
    const expert_banks *b = s->banks;
    uint64_t at = 0;
    for (int l = 0; l < b->n_layer; l++) {
        const int like = first_like(b, l);
        if (like == l && s->n_pool == CACHE_MOST_POOLS)
            return err_set(err, ERR_UNSUPPORTED, "experts of more than %d sizes", s->n_pool);
        if (like == l) {
            s->pools[s->n_pool] = pool_for(&b->of[l]);
            if (b->of[l].n_expert > 0) s->pools[s->n_pool].n = FREE_RAM_FRAMES;
        }
        s->pool_of[l] = like == l ? (uint8_t)s->n_pool++ : s->pool_of[like];
        if (b->of[l].n_expert > 0) s->pools[s->pool_of[l]].n += b->n_expert - in_vram[l];
    }
    for (int i = 0; i < s->n_pool; i++) {
        s->pools[i].first = s->n_slot;
        s->pools[i].begin = at;
        s->n_slot += s->pools[i].n;
        at += (uint64_t)s->pools[i].n * s->pools[i].bytes;
    }
    return 0;
}

static int make_lists(ram_frames *s, err_ctx *err)
{
    const int n = s->banks->n_layer * s->banks->n_expert;
    s->free = mem_array((size_t)s->n_slot, sizeof *s->free);
    s->owner = mem_array((size_t)s->n_slot, sizeof *s->owner);
    s->slot_of = mem_array((size_t)n, sizeof *s->slot_of);
    if (!s->free || !s->owner || !s->slot_of)
        return err_set(err, ERR_NOMEM, "experts: %d slots", s->n_slot);
    for (int i = 0; i < n; i++) s->slot_of[i] = -1;
    for (int i = 0; i < s->n_slot; i++) s->owner[i] = FREE;
    for (int i = 0; i < s->n_pool; i++) {
        slot_pool *p = &s->pools[i];
        p->free = s->free + p->first;
        while (p->n_free < p->n) {       /* the first is taken first */
            p->free[p->n_free] = p->first + p->n - 1 - p->n_free;
            p->n_free++;
        }
    }
    return 0;
}

int ram_frames_create(ram_frames **out, const expert_banks *b, const int *in_vram, err_ctx *err)
{
    ram_frames *s = mem_zalloc(sizeof *s);
    int rc;
    *out = NULL;
    if (s) {
        s->banks = b;
        s->pool_of = mem_zalloc((size_t)b->n_layer);
        s->changed = mem_zalloc((size_t)b->n_layer * sizeof *s->changed);
    }
    if (!s || !s->pool_of || !s->changed)
        rc = err_set(err, ERR_NOMEM, "experts: slots of %d layers", b->n_layer);
    else if ((rc = make_pools(s, in_vram, err)) == 0)
        rc = make_lists(s, err);
    if (rc < 0) {
        ram_frames_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ram_frames_free(ram_frames *s)
{
    if (!s) return;
    mem_free(s->slot_of);
    mem_free(s->owner);
    mem_free(s->free);
    mem_free(s->changed);
    mem_free(s->pool_of);
    mem_free(s);
}

/* ---- where ----------------------------------------------------------------------------------- */

static slot_pool *pool_at(ram_frames *s, int slot)
{
    slot_pool *p = s->pools;
    while (slot >= p->first + p->n) p++;
    return p;
}

uint64_t ram_frames_bytes(const ram_frames *s)
{
    const slot_pool *p = &s->pools[s->n_pool - 1];
    return p->begin + (uint64_t)p->n * p->bytes;
}

uint64_t ram_frames_at(const ram_frames *s, int slot, int layer, int expert, expert_slab slab)
{
    const slot_pool *p = &s->pools[s->pool_of[layer]];
    const expert_bank *b = &s->banks->of[layer];
    const tensor *t = b->weight[slab];
    const uint64_t in_file = t->offset + (uint64_t)(expert_slab_data(b, slab, expert) - t->data);
    return p->begin + (uint64_t)(slot - p->first) * p->bytes + p->room_at[slab] +
           in_file % READER_PAGE;
}

static int id_of(const ram_frames *s, int layer, int expert)
{
    return layer * s->banks->n_expert + expert;
}

int ram_frames_find(const ram_frames *s, int layer, int expert)
{
    return s->slot_of[id_of(s, layer, expert)];
}

int ram_frames_left(const ram_frames *s, int layer)
{
    return s->pools[s->pool_of[layer]].n_free;
}

/* ---- changes --------------------------------------------------------------------------------- */

int ram_frames_take(ram_frames *s, int layer)
{
    slot_pool *p = &s->pools[s->pool_of[layer]];
    if (p->n_free == 0) return -1;
    const int slot = p->free[--p->n_free];
    s->owner[slot] = TAKEN;
    return slot;
}

static void set_free(ram_frames *s, int slot)
{
    slot_pool *p = pool_at(s, slot);
    s->owner[slot] = FREE;
    p->free[p->n_free++] = slot;
}

void ram_frames_return(ram_frames *s, int slot)
{
    assert(s->owner[slot] == TAKEN);
    set_free(s, slot);
}

void ram_frames_put(ram_frames *s, int slot, int layer, int expert)
{
    const int id = id_of(s, layer, expert);
    assert(s->owner[slot] == TAKEN && s->slot_of[id] < 0);
    s->owner[slot] = id;
    s->slot_of[id] = slot;
    s->changed[layer] = true;
}

void ram_frames_leave(ram_frames *s, int layer, int expert)
{
    const int id = id_of(s, layer, expert), slot = s->slot_of[id];
    assert(slot >= 0);
    s->slot_of[id] = -1;
    s->changed[layer] = true;
    set_free(s, slot);
}

bool ram_frames_changed(ram_frames *s, int layer)
{
    const bool changed = s->changed[layer];
    s->changed[layer] = false;
    return changed;
}
