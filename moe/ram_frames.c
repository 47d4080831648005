/* ram_frames.c - pools of frames, a list of the free ones of each.
 *
 * Invariants: a free frame is in its pool's list once. A taken frame is in no list and has no
 * owner. owner[] and frame_of[] are inverse to each other. */
#include "moe/ram_frames.h"

#include <assert.h>

#include "moe/expert_cache.h"
#include "tiers/reader.h"

enum { FREE = -1, TAKEN = -2 };

typedef struct ram_pool {
    uint64_t slab_offset[SLAB_COUNT], bytes;     /* in a frame; of a frame */
    uint64_t offset;                     /* of the first frame in the bytes of all frames */
    int first, n;                        /* its frames */
    int n_free;
    int *free;                           /* [n]; the first n_free are valid */
} ram_pool;

struct ram_frames {
    const expert_banks *banks;
    int n_pool, n_frame;
    ram_pool pools[CACHE_MAX_POOLS];
    uint8_t *pool_of;                    /* [n_layer] */
    int *free;                           /* [n_frame]: the pools' lists */
    int *owner;                          /* [n_frame]: layer * n_expert + expert, FREE or TAKEN */
    int *frame_of;                       /* [n_layer, n_expert], or -1 */
    bool *changed;                       /* [n_layer] */
};

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Whether two layers share a pool of VRAM frames, and so one of RAM frames. */
static bool share_pool(const expert_bank *a, const expert_bank *b)
{
    for (int s = 0; s < SLAB_COUNT; s++)
        if (expert_frame_slab_bytes(a, (expert_slab)s) !=
            expert_frame_slab_bytes(b, (expert_slab)s))
            return false;
    return true;
}

/* The first layer of the layer's pool. */
static int first_of_pool(const expert_banks *b, int layer)
{
    int l = 0;
    while (!share_pool(&b->of[l], &b->of[layer])) l++;
    return l;
}

/* Each slab has whole pages, at whichever offset in a page it begins. Without experts a frame has 0
 * bytes. */
static ram_pool pool_for(const expert_bank *b)
{
    ram_pool p = { .bytes = 0 };
    for (int s = 0; s < SLAB_COUNT && b->n_expert > 0; s++) {
        p.slab_offset[s] = p.bytes;
        p.bytes += size_align(expert_frame_slab_bytes(b, (expert_slab)s) + READER_PAGE - 1,
                              READER_PAGE);
    }
    return p;
}

uint64_t ram_frames_frame_bytes(const expert_banks *b, int layer)
{
    return pool_for(&b->of[layer]).bytes;
}

uint64_t ram_frames_spare_bytes(const expert_banks *b)
{
    uint64_t sum = 0;
    int n_pool = 0;
    for (int l = 0; l < b->n_layer; l++) {
        if (first_of_pool(b, l) < l) continue;
        sum += RAM_FRAMES_SPARE * ram_frames_frame_bytes(b, l);
        n_pool++;
    }
    return n_pool <= CACHE_MAX_POOLS ? sum : 0;
}

/* ---- create and free ------------------------------------------------------------------------- */

static int make_pools(ram_frames *s, const int *n_in_vram, err_ctx *err)
{
    const expert_banks *b = s->banks;
    uint64_t end = 0;
    for (int l = 0; l < b->n_layer; l++) {
        const int first = first_of_pool(b, l);
        if (first == l && s->n_pool == CACHE_MAX_POOLS)
            return err_set(err, ERR_UNSUPPORTED, "experts of more than %d sizes", s->n_pool);
        if (first == l) {
            s->pools[s->n_pool] = pool_for(&b->of[l]);
            if (b->of[l].n_expert > 0) s->pools[s->n_pool].n = RAM_FRAMES_SPARE;
        }
        s->pool_of[l] = first == l ? (uint8_t)s->n_pool++ : s->pool_of[first];
        if (b->of[l].n_expert > 0) s->pools[s->pool_of[l]].n += b->n_expert - n_in_vram[l];
    }
    for (int i = 0; i < s->n_pool; i++) {
        s->pools[i].first = s->n_frame;
        s->pools[i].offset = end;
        s->n_frame += s->pools[i].n;
        end += (uint64_t)s->pools[i].n * s->pools[i].bytes;
    }
    return 0;
}

static int make_lists(ram_frames *s, err_ctx *err)
{
    const int n = s->banks->n_layer * s->banks->n_expert;
    s->free = mem_array((size_t)s->n_frame, sizeof *s->free);
    s->owner = mem_array((size_t)s->n_frame, sizeof *s->owner);
    s->frame_of = mem_array((size_t)n, sizeof *s->frame_of);
    if (!s->free || !s->owner || !s->frame_of)
        return err_set(err, ERR_NOMEM, "experts: %d frames", s->n_frame);
    for (int i = 0; i < n; i++) s->frame_of[i] = -1;
    for (int i = 0; i < s->n_frame; i++) s->owner[i] = FREE;
    for (int i = 0; i < s->n_pool; i++) {
        ram_pool *p = &s->pools[i];
        p->free = s->free + p->first;
        while (p->n_free < p->n) {       /* lists are stacks: frame 0 is taken first */
            p->free[p->n_free] = p->first + p->n - 1 - p->n_free;
            p->n_free++;
        }
    }
    return 0;
}

int ram_frames_create(ram_frames **out, const expert_banks *b, const int *n_in_vram, err_ctx *err)
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
        rc = err_set(err, ERR_NOMEM, "experts: frames of %d layers", b->n_layer);
    else if ((rc = make_pools(s, n_in_vram, err)) == 0)
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
    mem_free(s->frame_of);
    mem_free(s->owner);
    mem_free(s->free);
    mem_free(s->changed);
    mem_free(s->pool_of);
    mem_free(s);
}

/* ---- positions ------------------------------------------------------------------------------- */

static ram_pool *pool_of_frame(ram_frames *s, int frame)
{
    ram_pool *p = s->pools;
    while (frame >= p->first + p->n) p++;
    return p;
}

uint64_t ram_frames_bytes(const ram_frames *s)
{
    const ram_pool *p = &s->pools[s->n_pool - 1];
    return p->offset + (uint64_t)p->n * p->bytes;
}

uint64_t ram_frames_offset(const ram_frames *s, int frame, int layer, int expert, expert_slab slab)
{
    const ram_pool *p = &s->pools[s->pool_of[layer]];
    const expert_bank *b = &s->banks->of[layer];
    const tensor *t = b->weight[slab];
    const uint64_t in_file = t->offset + (uint64_t)(expert_slab_data(b, slab, expert) - t->data);
    return p->offset + (uint64_t)(frame - p->first) * p->bytes + p->slab_offset[slab] +
           in_file % READER_PAGE;
}

static int id_of(const ram_frames *s, int layer, int expert)
{
    return layer * s->banks->n_expert + expert;
}

int ram_frames_find(const ram_frames *s, int layer, int expert)
{
    return s->frame_of[id_of(s, layer, expert)];
}

/* ---- changes --------------------------------------------------------------------------------- */

int ram_frames_take(ram_frames *s, int layer)
{
    ram_pool *p = &s->pools[s->pool_of[layer]];
    if (p->n_free == 0) return -1;
    const int frame = p->free[--p->n_free];
    s->owner[frame] = TAKEN;
    return frame;
}

static void set_free(ram_frames *s, int frame)
{
    ram_pool *p = pool_of_frame(s, frame);
    s->owner[frame] = FREE;
    p->free[p->n_free++] = frame;
}

void ram_frames_return(ram_frames *s, int frame)
{
    assert(s->owner[frame] == TAKEN);
    set_free(s, frame);
}

void ram_frames_put(ram_frames *s, int frame, int layer, int expert)
{
    const int id = id_of(s, layer, expert);
    assert(s->owner[frame] == TAKEN && s->frame_of[id] < 0);
    s->owner[frame] = id;
    s->frame_of[id] = frame;
    s->changed[layer] = true;
}

void ram_frames_remove(ram_frames *s, int layer, int expert)
{
    const int id = id_of(s, layer, expert), frame = s->frame_of[id];
    assert(frame >= 0);
    s->frame_of[id] = -1;
    s->changed[layer] = true;
    set_free(s, frame);
}

bool ram_frames_changed(ram_frames *s, int layer)
{
    const bool changed = s->changed[layer];
    s->changed[layer] = false;
    return changed;
}
