/* vram_cache.c - carries out what frame_table.c decides, on a GPU.
 *
 * Between tokens an expert goes straight from page-locked RAM to its place, by a copy engine. Its
 * place has left the map before the token began, so nobody reads it until the copy has arrived and
 * the map names it again. During a prompt experts pass through VRAM anyway: those that are worth it
 * are copied from there.
 *
 * An expert that is moved is in a slot of RAM or in its place: one that makes room goes to a spare
 * slot first, by the same copy engine, and the device's table of addresses changes with the map. */
#include "moe/vram_cache.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "moe/upload_tuner.h"

/* Of the copies of one token: about a third of the bus's time at 300 tokens a second and 50 GB/s is
 * 55 MB, four experts of gpt-oss or thirty of Qwen3-Next. */
static const uint64_t upload_bytes = 56u << 20;

struct vram_cache {
    gpu *g;
    const expert_banks *banks;
    expert_store *store;
    int n_layer;
    usage_profile *seen;
    frame_table *books;
    frame_mover mover;
    gpu_copy_queue *copies;
    uint8_t *arena;                      /* VRAM: all places */
    int32_t *map, *map_there;            /* [n_layer, n_expert] page-locked, and in VRAM */
    bool changed;                        /* since the device got it */
    ram_frames *slots;                   /* the store's; NULL: experts are not moved */
    uint64_t *slabs;                     /* [n_layer, n_expert, SLAB_COUNT] in VRAM, or NULL */
    bool *row_changed;                   /* [n_layer]: of slabs */
    pool *team;
    upload_tuner tuner;
    /* prompts: one layer */
    int layer;
    frame_table_swap *swaps;             /* [n_expert] */
    bool *kept;                          /* [n_expert]: of the swaps */
    int n_swap;
    gpu_move *moves;                     /* [n_expert, SLAB_COUNT] page-locked */
    int n_move;
};

/* ---- addresses ------------------------------------------------------------------------------- */

const frame_table *vram_cache_table(const vram_cache *v) { return v->books; }
uint64_t vram_cache_bytes(const vram_cache *v) { return frame_table_all_bytes(v->books); }
void vram_cache_reset_counts(vram_cache *v) { frame_table_reset_counts(v->books); }

static size_t row_of(const vram_cache *v, int layer)
{
    return (size_t)layer * (size_t)v->banks->n_expert;
}

const uint64_t *vram_cache_slabs(const vram_cache *v, int layer)
{
    return v->slabs ? v->slabs + row_of(v, layer) * SLAB_COUNT : NULL;
}

uint64_t vram_cache_address(const vram_cache *v, int place, expert_slab s)
{
    return (uint64_t)(uintptr_t)v->arena + frame_table_at(v->books, place, s);
}

void vram_cache_bank(const vram_cache *v, int layer, gpu_bank *banks[SLAB_COUNT])
{
    const frame_pool *p = frame_table_pool(v->books, layer);
    for (int s = 0; s < SLAB_COUNT; s++) {
        banks[s]->data = v->arena + p->begin + p->at[s];
        banks[s]->slab_bytes = p->stride;
    }
}

const int32_t *vram_cache_map(const vram_cache *v, int layer)
{
    return v->map_there + row_of(v, layer);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t slab_bytes(const vram_cache *v, int layer, int s)
{
    return expert_slab_bytes(&v->banks->of[layer], (expert_slab)s);
}

/* False if it is not in page-locked RAM. */
static bool copy_expert(vram_cache *v, int layer, int expert, int place)
{
    const uint64_t *from = expert_store_table(v->store, layer);
    if (!from) return false;
    from += (size_t)expert * SLAB_COUNT;
    for (int s = 0; s < SLAB_COUNT; s++)
        if (from[s] == 0) return false;
    for (int s = 0; s < SLAB_COUNT; s++)
        gpu_copy_queue_copy(v->g, v->copies,
                            (void *)(uintptr_t)vram_cache_address(v, place, (expert_slab)s),
                            (const void *)(uintptr_t)from[s], slab_bytes(v, layer, s));
    return true;
}

static bool send(void *self, int layer, int expert, int place, int i)
{
    vram_cache *v = self;
    if (!copy_expert(v, layer, expert, place)) return false;
    gpu_copy_queue_record(v->g, v->copies, i);
    return true;
}

static bool save(void *self, int layer, int expert, int place, int slot, int i)
{
    vram_cache *v = self;
    for (int s = 0; s < SLAB_COUNT; s++)
        gpu_copy_queue_save(v->g, v->copies, expert_store_slot(v->store, slot, layer, expert,
                                                               (expert_slab)s),
                            (const void *)(uintptr_t)vram_cache_address(v, place, (expert_slab)s),
                            slab_bytes(v, layer, s));
    gpu_copy_queue_record(v->g, v->copies, i);
    return true;
}

static int passed(void *self, int i, err_ctx *err)
{
    const vram_cache *v = self;
    return gpu_copy_queue_passed(v->g, v->copies, i, err);
}

/* After anything that moves experts: the store's addresses are those of the books. */
static void refresh(vram_cache *v)
{
    for (int l = 0; l < v->n_layer && v->slots; l++)
        if (expert_store_refresh(v->store, l)) v->row_changed[l] = true;
}

void vram_cache_publish(vram_cache *v)
{
    const size_t row = row_of(v, 1) * SLAB_COUNT;
    if (v->changed)
        gpu_copy(v->g, v->map_there, v->map, row_of(v, v->n_layer) * sizeof *v->map);
    v->changed = false;
    for (int l = 0; l < v->n_layer && v->slabs; l++) {
        if (v->row_changed[l])
            gpu_copy(v->g, v->slabs + (size_t)l * row, expert_store_table(v->store, l),
                     row * sizeof *v->slabs);
        v->row_changed[l] = false;
    }
}

void vram_cache_chosen(vram_cache *v, int layer, const uint32_t *chosen, int n)
{
    frame_table_chosen(v->books, layer, chosen, n);
    for (int i = 0; i < n && v->seen; i++)
        usage_profile_count(v->seen, layer, (int)(chosen[i] & 0xFFFF),
                            chosen[i] >> 16 == GPU_HOT ? EXPERT_HOT : EXPERT_COLD, 1);
}

void vram_cache_call(vram_cache *v, int layer, int cold_slots, double seconds)
{
    if (v->seen) usage_profile_call(v->seen, layer, cold_slots, 0, seconds, 0);
}

void vram_cache_token(vram_cache *v, double seconds, int hits, int n)
{
    const upload_tuner *t = &v->tuner;
    switch (upload_tuner_token(&v->tuner, seconds, hits, n)) {
    case UPLOAD_RESTS:
        log_line("expert cache: moving experts costs %.1f%% of a token's time and finds no more of "
                 "them; it rests for %d tokens", 100 * t->price, t->left);
        break;
    case UPLOAD_WAKES:
        log_line("expert cache: experts are moved again");
        break;
    case UPLOAD_NOTHING: break;
    }
}

int vram_cache_exchange(vram_cache *v, err_ctx *err)
{
    const int rc = frame_table_exchange(v->books, upload_tuner_allows(&v->tuner), NULL);
    v->changed |= rc != 0;
    refresh(v);
    vram_cache_publish(v);
    return rc < 0 ? gpu_wait(v->g, err) : 0;     /* a copy that failed is in RAM as before */
}

void vram_cache_send(vram_cache *v, int most) { frame_table_send(v->books, most); }

/* ---- prompts --------------------------------------------------------------------------------- */

int vram_cache_choose(vram_cache *v, int layer, const int32_t *counts, const bool *passing)
{
    for (int e = 0; e < v->banks->n_expert && v->seen; e++)
        if (counts[e] > 0)
            usage_profile_count(v->seen, layer, e, EXPERT_EITHER, (uint64_t)counts[e]);
    v->layer = layer;
    v->n_move = 0;
    v->n_swap = frame_table_prompt(v->books, layer, counts, passing, v->swaps, v->banks->n_expert);
    memset(v->kept, 0, (size_t)v->banks->n_expert * sizeof *v->kept);
    return v->n_swap;
}

static bool is_among(int expert, const int32_t *experts, int n)
{
    for (int i = 0; i < n; i++)
        if (experts[i] == expert) return true;
    return false;
}

void vram_cache_keep(vram_cache *v, const int32_t *experts, int n, const uint64_t *at)
{
    const int first = v->n_move;
    for (int i = 0; i < v->n_swap; i++) {
        const frame_table_swap *swap = &v->swaps[i];
        if (v->kept[i] || !is_among(swap->expert, experts, n)) continue;
        for (int s = 0; s < SLAB_COUNT; s++)
            v->moves[v->n_move++] = (gpu_move){
                .to = vram_cache_address(v, swap->place, (expert_slab)s),
                .from = at[(size_t)swap->expert * SLAB_COUNT + (size_t)s],
                .bytes = slab_bytes(v, v->layer, s),
            };
        v->kept[i] = true;
    }
    gpu_moves(v->g, v->moves + first, v->n_move - first);
}

void vram_cache_settle(vram_cache *v)
{
    for (int i = 0; i < v->n_swap; i++)
        if (!v->kept[i]) frame_table_lose(v->books, v->swaps[i].place);
    v->changed |= v->n_swap > 0;
    v->n_swap = 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int wait_for_copies(vram_cache *v, err_ctx *err)
{
    int rc;
    gpu_copy_queue_record(v->g, v->copies, 0);
    while ((rc = gpu_copy_queue_passed(v->g, v->copies, 0, err)) == 0) {}
    return rc < 0 ? rc : 0;
}

/* The bytes of an expert that has just got a place. One that is not in page-locked RAM goes through
 * buffers. */
static int carry(vram_cache *v, int layer, int expert, int place, err_ctx *err)
{
    expert_slabs from;
    int rc = 0;
    if (copy_expert(v, layer, expert, place)) return 0;
    expert_store_find(v->store, layer, expert, &from);
    for (int s = 0; s < SLAB_COUNT && rc == 0; s++)
        rc = gpu_upload(v->g, (void *)(uintptr_t)vram_cache_address(v, place, (expert_slab)s),
                        from.at[s], slab_bytes(v, layer, s), v->team ? pool_copy : NULL,
                        v->team, err);
    return rc;
}

/* Puts an expert into a place. Returns 1, 0 if there is none, < 0 on failure. */
static int bring(vram_cache *v, int layer, int expert, err_ctx *err)
{
    const int place = frame_table_put(v->books, layer, expert);
    const int rc = place < 0 ? 0 : carry(v, layer, expert, place, err);
    return rc < 0 ? rc : place >= 0;
}

/* Experts that are asked for count as chosen once or twice, the first of them most. */
static int bring_wanted(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const int n_expert = v->banks->n_expert;
    int rc = 0;
    for (int i = 0; i < o->n_expert && rc >= 0; i++) {
        const int l = o->experts[i] / n_expert, e = o->experts[i] % n_expert;
        if (o->experts[i] < 0 || l >= v->n_layer) continue;
        if ((rc = bring(v, l, e, err)) > 0)
            frame_table_seed(v->books, l, e, 2.0 - (double)i / o->n_expert);
    }
    return rc < 0 ? rc : 0;
}

/* The first experts of every layer, up to its share; then wherever there is room. */
static int bring_first(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const uint64_t all = frame_table_all_bytes(v->books);
    uint64_t done = 0;
    int rc = 0;
    for (int shared = 1; shared >= 0; shared--)
        for (int l = 0; l < v->n_layer && rc >= 0; l++) {
            const int most = shared ? frame_table_share(v->books, l) : v->banks->n_expert;
            for (int e = 0; e < v->banks->n_expert && rc >= 0; e++)
                if (frame_table_ready(v->books, l) < most) rc = bring(v, l, e, err);
            if (!shared) continue;
            done += (uint64_t)most * frame_table_pool(v->books, l)->stride;
            if (rc >= 0 && o->watch && !o->watch(o->watch_ctx, (double)done, (double)all))
                rc = err_set(err, ERR_STOPPED, "interrupted");
        }
    return rc < 0 ? rc : 0;
}

static int carry_all(vram_cache *v, const frame_table_swap *swaps, int n, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = carry(v, swaps[i].layer, swaps[i].expert, swaps[i].place, err);
    if (rc == 0) rc = wait_for_copies(v, err);
    const int ended = gpu_upload_end(v->g, rc < 0 ? NULL : err);
    return rc < 0 ? rc : ended;
}

/* What is under way arrives: to RAM, then to the places that this made. */
static int settle(vram_cache *v, err_ctx *err)
{
    int rc = 0;
    for (int way = 0; way < 2 && rc >= 0; way++) {
        frame_table_send(v->books, INT_MAX);
        rc = wait_for_copies(v, err);
        const int taken = frame_table_take_in(v->books, rc < 0 ? NULL : err);
        if (rc == 0) rc = taken;
        v->changed = true;
        refresh(v);
    }
    return rc;
}

/* Experts that make room go to RAM, then others take their places: as many at a time as there are
 * spare slots. Moves that were under way before may have all of these. Returns how many came. */
static int apply_moves(vram_cache *v, const int *experts, int n, err_ctx *err)
{
    int rc = settle(v, err);
    const uint64_t before = frame_table_counts(v->books).uploads;
    uint64_t last = before - 1, now = before;
    while (now != last && rc >= 0 && (rc = frame_table_ask(v->books, experts, n, err)) > 0) {
        rc = settle(v, err);
        last = now;                      /* nothing came: it never would */
        now = frame_table_counts(v->books).uploads;
    }
    return rc < 0 ? rc : (int)(now - before);
}

static int move_all(vram_cache *v, const int *experts, int n, bool seeded, err_ctx *err)
{
    const int n_expert = v->banks->n_expert, all = v->n_layer * n_expert;
    bool *missing = mem_zalloc((size_t)max_int(n, 1) * sizeof *missing);
    if (!missing) return err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", n);
    for (int i = 0; i < n; i++)
        missing[i] = experts[i] >= 0 && experts[i] < all &&
                     frame_table_find(v->books, experts[i] / n_expert, experts[i] % n_expert) < 0;
    const int rc = apply_moves(v, experts, n, err);
    for (int i = 0; i < n; i++) {
        const int l = experts[i] / n_expert, e = experts[i] % n_expert;
        if (seeded && missing[i] && frame_table_find(v->books, l, e) >= 0)
            frame_table_seed(v->books, l, e, 2.0);
    }
    mem_free(missing);
    return rc;
}

/* Experts of which every one is in RAM. */
static int copy_all(vram_cache *v, const int *experts, int n, bool seeded, err_ctx *err)
{
    frame_table_swap *swaps = mem_array((size_t)max_int(n, 1), sizeof *swaps);
    int rc = 0;
    if (!swaps) rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", n);
    const int n_swap = rc < 0 ? rc : frame_table_apply(v->books, experts, n, swaps, err);
    if (n_swap > 0 && (rc = carry_all(v, swaps, n_swap, err)) < 0)
        for (int i = 0; i < n_swap; i++) frame_table_lose(v->books, swaps[i].place);
    for (int i = 0; i < n_swap && rc >= 0 && seeded; i++)
        frame_table_seed(v->books, swaps[i].layer, swaps[i].expert, 2.0);
    v->changed |= n_swap > 0;
    mem_free(swaps);
    return rc < 0 ? rc : n_swap;
}

/* Whether experts can change places: those that are moved use any slot, and all have to be
 * page-locked. */
static bool can_change(const vram_cache *v)
{
    return !v->slots ||
           (v->slabs && expert_store_locked(v->store) == expert_store_bytes(v->store));
}

/* The device is idle, and what was on its way to it has arrived. */
static int settle_all(vram_cache *v, err_ctx *err)
{
    int rc = gpu_wait(v->g, err);
    frame_table_send(v->books, INT_MAX);  /* what is under way arrives first */
    if (rc == 0 && (rc = wait_for_copies(v, err)) == 0)
        v->changed |= frame_table_exchange(v->books, false, NULL) != 0;
    refresh(v);
    return rc;
}

/* seeded: as if they had been chosen. */
static int have(vram_cache *v, const int *experts, int n, bool seeded, err_ctx *err)
{
    const int rc = v->slots ? move_all(v, experts, n, seeded, err)
                            : copy_all(v, experts, n, seeded, err);
    vram_cache_publish(v);
    return rc;
}

int vram_cache_apply(vram_cache *v, const int *experts, int n, err_ctx *err)
{
    const int rc = settle_all(v, err);
    if (rc == 0) return have(v, experts, n, true, err);
    vram_cache_publish(v);
    return rc;
}

int vram_cache_update(vram_cache *v, int most, err_ctx *err)
{
    const int cap = min_int(most, frame_table_count(v->books));
    int rc = settle_all(v, err);
    int *list = mem_array((size_t)max_int(cap, 1), sizeof *list);
    if (!list && rc == 0) rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", cap);
    const int n = rc == 0 && can_change(v) ? frame_table_missing(v->books, list, cap) : 0;
    if (n > 0) rc = have(v, list, n, false, err);
    else vram_cache_publish(v);
    mem_free(list);
    return rc;
}

void vram_cache_pin(vram_cache *v, const int *experts, int n)
{
    const int n_expert = v->banks->n_expert, all = v->n_layer * n_expert;
    const int most = min_int(n, frame_table_count(v->books) / 2);
    for (int i = 0; i < all; i++) frame_table_pin(v->books, i / n_expert, i % n_expert, false);
    for (int i = 0; i < most; i++)
        if (experts[i] >= 0 && experts[i] < all)
            frame_table_pin(v->books, experts[i] / n_expert, experts[i] % n_expert, true);
}

/* What got no place gets a slot. */
static int fill_slots(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const int n_expert = v->banks->n_expert, n = v->banks->n_layer * n_expert;
    bool *elsewhere = mem_zalloc((size_t)n * sizeof *elsewhere);
    if (!elsewhere) return err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", n);
    for (int i = 0; i < v->n_layer * n_expert; i++)
        elsewhere[i] = frame_table_find(v->books, i / n_expert, i % n_expert) >= 0;
    const int rc = expert_store_fill(v->store, elsewhere, o->watch, o->watch_ctx, err);
    mem_free(elsewhere);
    for (int l = 0; l < v->n_layer; l++) v->row_changed[l] = true;
    return rc;
}

static int fill(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    int rc = bring_wanted(v, o, err);
    if (rc == 0) rc = bring_first(v, o, err);
    if (rc == 0) rc = wait_for_copies(v, err);
    const int ended = gpu_upload_end(v->g, rc < 0 ? NULL : err);
    if (rc == 0) rc = ended;
    if (rc == 0 && v->slots) rc = fill_slots(v, o, err);
    if (rc < 0) return rc;
    v->changed = true;
    vram_cache_publish(v);
    return gpu_wait(v->g, err);
}

static int make(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const expert_banks *b = v->banks;
    const size_t n = (size_t)b->n_expert, map_bytes = row_of(v, v->n_layer) * sizeof *v->map;
    uint64_t largest = 1;
    int rc;
    v->swaps = mem_array(n, sizeof *v->swaps);
    v->kept = mem_array(n, sizeof *v->kept);
    if (!v->swaps || !v->kept) return err_set(err, ERR_NOMEM, "experts in VRAM: %zu experts", n);
    v->map = gpu_alloc_host(v->g, map_bytes, err);
    v->moves = v->map ? gpu_alloc_host(v->g, n * SLAB_COUNT * sizeof *v->moves, err) : NULL;
    if (!v->moves) return ERR_NOMEM;
    if (v->slots) {
        v->row_changed = mem_zalloc((size_t)v->n_layer * sizeof *v->row_changed);
        if (!v->row_changed) return err_set(err, ERR_NOMEM, "experts: %d layers", v->n_layer);
    }
    if (v->slots && expert_store_table(v->store, 0)) {
        const size_t table = row_of(v, v->n_layer) * SLAB_COUNT * sizeof *v->slabs;
        v->slabs = gpu_alloc(v->g, table, "addresses of experts", err);
        if (!v->slabs) return ERR_NOMEM;
    }
    for (int l = 0; l < v->n_layer; l++)
        if (expert_slabs_bytes(&b->of[l]) > largest) largest = expert_slabs_bytes(&b->of[l]);
    const frame_table_options books = {
        .n_layer = v->n_layer, .bytes = o->bytes, .policy = o->policy,
        .most_uploads = can_change(v) ? max_int((int)(upload_bytes / largest), 1) : 0,
        .margin = cache_policy_margin(o->policy), .map = v->map, .slots = v->slots,
        .n_place = v->slots ? o->n_place : NULL,
    };
    v->mover = (frame_mover){ v, send, passed, save };
    if ((rc = frame_table_create(&v->books, b, &books, &v->mover, err)) < 0 ||
        (rc = gpu_copy_queue_create(&v->copies, v->g, FRAME_TABLE_EVENTS, err)) < 0)
        return rc;
    v->map_there = gpu_alloc(v->g, map_bytes, "the map of experts", err);
    if (!v->map_there) return ERR_NOMEM;
    v->arena = gpu_alloc(v->g, frame_table_all_bytes(v->books), "experts", err);
    return v->arena ? fill(v, o, err) : ERR_NOMEM;
}

int vram_cache_create(vram_cache **out, gpu *g, const expert_banks *b, expert_store *store,
                      const vram_cache_options *o, err_ctx *err)
{
    vram_cache *v = mem_zalloc(sizeof *v);
    *out = NULL;
    if (!v) return err_set(err, ERR_NOMEM, "experts in VRAM: %zu bytes", sizeof *v);
    v->g = g;
    v->banks = b;
    v->store = store;
    v->slots = expert_store_slots(store);
    v->team = o->team;
    v->n_layer = o->n_layer;
    v->seen = o->seen;
    upload_tuner_begin(&v->tuner);
    const int rc = make(v, o, err);
    if (rc < 0) {
        vram_cache_free(v);
        return rc;
    }
    *out = v;
    return 0;
}

void vram_cache_free(vram_cache *v)
{
    if (!v) return;
    gpu_copy_queue_free(v->g, v->copies);
    frame_table_free(v->books);
    gpu_free(v->g, v->arena);
    gpu_free(v->g, v->map_there);
    gpu_free(v->g, v->slabs);
    gpu_free_host(v->g, v->map);
    gpu_free_host(v->g, v->moves);
    mem_free(v->row_changed);
    mem_free(v->kept);
    mem_free(v->swaps);
    mem_free(v);
}
