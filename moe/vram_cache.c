/* vram_cache.c - carries out on a GPU what frame_table.c decides.
 *
 * Between two tokens a copy engine copies an expert from page-locked RAM to its frame. The frame
 * left the map before the token began, and enters it again after the copy has arrived: no kernel
 * reads a frame while it is written. In a prompt the experts' bytes pass through VRAM anyway, and
 * kernels copy them from there.
 *
 * Where experts are moved, the same copy engine first copies the evicted expert to a RAM frame, and
 * the device's table of addresses changes together with the map. */
#include "moe/vram_cache.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "moe/trial.h"

/* Of the copies during one token: a third of the bus's time at 300 tokens/s and 50 GB/s. Four
 * experts of gpt-oss or thirty of Qwen3-Next. */
static const uint64_t upload_bytes = 56u << 20;

struct vram_cache {
    gpu *g;
    const expert_banks *banks;
    expert_store *store;
    int n_layer;
    usage_profile *profile;
    frame_table *table;
    gpu_copy_queue *copies;
    uint8_t *arena;                      /* VRAM: all frames */
    int32_t *map, *device_map;           /* [n_layer, n_expert] page-locked, and in VRAM */
    bool changed;                        /* map, since it was published */
    ram_frames *ram;                     /* the store's; NULL: experts are not moved */
    uint64_t *slabs;                     /* [n_layer, n_expert, SLAB_COUNT] in VRAM, or NULL */
    bool *row_changed;                   /* [n_layer]: of slabs, since they were published */
    pool *team;
    trial_worth worth;                   /* of the copies during tokens */
    /* prompts */
    int layer;                           /* of the picks */
    frame_table_swap *swaps;             /* [n_expert] */
    bool *kept;                          /* [n_expert]: of the swaps */
    int n_swap;
    gpu_move *moves;                     /* [n_expert, SLAB_COUNT] page-locked */
    int n_move;
};

/* ---- addresses ------------------------------------------------------------------------------- */

const frame_table *vram_cache_table(const vram_cache *v) { return v->table; }
void vram_cache_reset_counts(vram_cache *v) { frame_table_reset_counts(v->table); }

static size_t row_of(const vram_cache *v, int layer)
{
    return (size_t)layer * (size_t)v->banks->n_expert;
}

const uint64_t *vram_cache_slabs(const vram_cache *v, int layer)
{
    return v->slabs ? v->slabs + row_of(v, layer) * SLAB_COUNT : NULL;
}

uint64_t vram_cache_address(const vram_cache *v, int frame, expert_slab s)
{
    return (uint64_t)(uintptr_t)v->arena + frame_table_offset(v->table, frame, s);
}

void vram_cache_bank(const vram_cache *v, int layer, gpu_bank *banks[SLAB_COUNT])
{
    const frame_pool *p = frame_table_pool(v->table, layer);
    for (int s = 0; s < SLAB_COUNT; s++) {
        banks[s]->data = v->arena + p->offset + p->slab_offset[s];
        banks[s]->slab_bytes = p->stride;
    }
}

const int32_t *vram_cache_map(const vram_cache *v, int layer)
{
    return v->device_map + row_of(v, layer);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static uint64_t slab_bytes(const vram_cache *v, int layer, int s)
{
    return expert_slab_bytes(&v->banks->of[layer], (expert_slab)s);
}

/* False if it is not in page-locked RAM. */
static bool copy_expert(vram_cache *v, int layer, int expert, int frame)
{
    const uint64_t *from = expert_store_table(v->store, layer);
    if (!from) return false;
    from += (size_t)expert * SLAB_COUNT;
    for (int s = 0; s < SLAB_COUNT; s++)
        if (from[s] == 0) return false;
    for (int s = 0; s < SLAB_COUNT; s++)
        gpu_copy_queue_copy(v->g, v->copies,
                            (void *)(uintptr_t)vram_cache_address(v, frame, (expert_slab)s),
                            (const void *)(uintptr_t)from[s], slab_bytes(v, layer, s));
    return true;
}

static void save_expert(vram_cache *v, const frame_copy *c)
{
    for (int s = 0; s < SLAB_COUNT; s++)
        gpu_copy_queue_save(v->g, v->copies,
                            expert_store_frame_slab(v->store, c->ram_frame, c->layer, c->expert,
                                                    (expert_slab)s),
                            (const void *)(uintptr_t)vram_cache_address(v, c->frame,
                                                                        (expert_slab)s),
                            slab_bytes(v, c->layer, s));
}

void vram_cache_submit(vram_cache *v, int n)
{
    for (frame_copy c; n > 0 && frame_table_next_copy(v->table, &c); n--) {
        if (c.ram_frame >= 0) {
            save_expert(v, &c);
        } else if (!copy_expert(v, c.layer, c.expert, c.frame)) {
            frame_table_cancel(v->table, false);
            return;
        }
        gpu_copy_queue_record(v->g, v->copies, c.event);
        frame_table_submitted(v->table);
    }
}

/* Reports arrived copies to the table, in order. On failure all copies are cancelled. */
static int collect(vram_cache *v, err_ctx *err)
{
    int event, rc = 1;
    while (rc > 0 && (event = frame_table_next_event(v->table)) >= 0) {
        rc = gpu_copy_queue_passed(v->g, v->copies, event, err);
        if (rc > 0) frame_table_arrived(v->table);
        if (rc < 0) frame_table_cancel(v->table, true);
        v->changed |= rc != 0;
    }
    return rc < 0 ? rc : 0;
}

/* Ends a token. A failed copy is only counted: its expert is in RAM as before. */
static bool exchange(vram_cache *v, bool may_admit)
{
    const bool collected = collect(v, NULL) == 0;
    v->changed |= frame_table_exchange(v->table, collected && may_admit);
    return collected;
}

/* After each change of the RAM frames: updates the store's table of addresses. */
static void refresh(vram_cache *v)
{
    for (int l = 0; l < v->n_layer && v->ram; l++)
        if (expert_store_refresh(v->store, l)) v->row_changed[l] = true;
}

void vram_cache_publish(vram_cache *v)
{
    const size_t row = row_of(v, 1) * SLAB_COUNT;
    if (v->changed)
        gpu_copy(v->g, v->device_map, v->map, row_of(v, v->n_layer) * sizeof *v->map);
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
    frame_table_chosen(v->table, layer, chosen, n);
    for (int i = 0; i < n && v->profile; i++)
        usage_profile_count(v->profile, layer, (int)(chosen[i] & 0xFFFF),
                            chosen[i] >> 16 == GPU_HOT ? EXPERT_HOT : EXPERT_COLD, 1);
}

void vram_cache_count_call(vram_cache *v, int layer, int cold_slots, double seconds)
{
    if (v->profile) usage_profile_call(v->profile, layer, cold_slots, 0, seconds, 0);
}

void vram_cache_token(vram_cache *v, double seconds, int hits, int n)
{
    const trial_worth *w = &v->worth;
    switch (trial_worth_token(&v->worth, seconds, hits, n)) {
    case TRIAL_WORTH_RESTS:
        log_line("expert cache: moving experts costs %.1f%% of a token's time and finds no more of "
                 "them; it rests for %d tokens", 100 * w->price, w->left);
        break;
    case TRIAL_WORTH_WAKES:
        log_line("expert cache: experts are moved again");
        break;
    case TRIAL_WORTH_NOTHING: break;
    }
}

int vram_cache_exchange(vram_cache *v, err_ctx *err)
{
    const bool collected = exchange(v, trial_worth_runs(&v->worth));
    refresh(v);
    vram_cache_publish(v);
    return collected ? 0 : gpu_wait(v->g, err);
}

/* ---- prompts --------------------------------------------------------------------------------- */

int vram_cache_pick(vram_cache *v, int layer, const int32_t *counts, const bool *passing)
{
    for (int e = 0; e < v->banks->n_expert && v->profile; e++)
        if (counts[e] > 0)
            usage_profile_count(v->profile, layer, e, EXPERT_EITHER, (uint64_t)counts[e]);
    v->layer = layer;
    v->n_move = 0;
    v->n_swap = frame_table_prompt(v->table, layer, counts, passing, v->swaps, v->banks->n_expert);
    memset(v->kept, 0, (size_t)v->banks->n_expert * sizeof *v->kept);
    return v->n_swap;
}

static bool is_among(int expert, const int32_t *experts, int n)
{
    for (int i = 0; i < n; i++)
        if (experts[i] == expert) return true;
    return false;
}

void vram_cache_keep(vram_cache *v, const int32_t *experts, int n, const uint64_t *address)
{
    const int first = v->n_move;
    for (int i = 0; i < v->n_swap; i++) {
        const frame_table_swap *swap = &v->swaps[i];
        if (v->kept[i] || !is_among(swap->expert, experts, n)) continue;
        for (int s = 0; s < SLAB_COUNT; s++)
            v->moves[v->n_move++] = (gpu_move){
                .to = vram_cache_address(v, swap->frame, (expert_slab)s),
                .from = address[(size_t)swap->expert * SLAB_COUNT + (size_t)s],
                .bytes = slab_bytes(v, v->layer, s),
            };
        v->kept[i] = true;
    }
    gpu_moves(v->g, v->moves + first, v->n_move - first);
}

void vram_cache_end_picks(vram_cache *v)
{
    for (int i = 0; i < v->n_swap; i++)
        if (!v->kept[i]) frame_table_drop(v->table, v->swaps[i].frame);
    v->changed |= v->n_swap > 0;
    v->n_swap = 0;
}

/* ---- create and free ------------------------------------------------------------------------- */

static int wait_for_copies(vram_cache *v, err_ctx *err)
{
    int rc;
    gpu_copy_queue_record(v->g, v->copies, 0);
    while ((rc = gpu_copy_queue_passed(v->g, v->copies, 0, err)) == 0) {}
    return rc < 0 ? rc : 0;
}

/* Copies an expert to its new frame, through buffers if it is not in page-locked RAM. */
static int load(vram_cache *v, int layer, int expert, int frame, err_ctx *err)
{
    expert_slabs from;
    int rc = 0;
    if (copy_expert(v, layer, expert, frame)) return 0;
    expert_store_find(v->store, layer, expert, &from);
    for (int s = 0; s < SLAB_COUNT && rc == 0; s++)
        rc = gpu_upload(v->g, (void *)(uintptr_t)vram_cache_address(v, frame, (expert_slab)s),
                        from.at[s], slab_bytes(v, layer, s), v->team ? pool_copy : NULL,
                        v->team, err);
    return rc;
}

/* Gives an expert an EMPTY frame. Returns 1, 0 if there is none, or < 0. */
static int add(vram_cache *v, int layer, int expert, err_ctx *err)
{
    const int frame = frame_table_put(v->table, layer, expert);
    const int rc = frame < 0 ? 0 : load(v, layer, expert, frame, err);
    return rc < 0 ? rc : frame >= 0;
}

/* The first contents. They count as used once to twice, the first of them most. */
static int add_listed(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const int n_expert = v->banks->n_expert;
    int rc = 0;
    for (int i = 0; i < o->n_expert && rc >= 0; i++) {
        const int l = o->experts[i] / n_expert, e = o->experts[i] % n_expert;
        if (o->experts[i] < 0 || l >= v->n_layer) continue;
        if ((rc = add(v, l, e, err)) > 0)
            frame_table_seed(v->table, l, e, 2.0 - (double)i / o->n_expert);
    }
    return rc < 0 ? rc : 0;
}

/* The first experts of every layer, up to its quota; then while there are EMPTY frames. */
static int add_first(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const uint64_t all = frame_table_all_bytes(v->table);
    uint64_t done = 0;
    int rc = 0;
    for (int by_quota = 1; by_quota >= 0; by_quota--)
        for (int l = 0; l < v->n_layer && rc >= 0; l++) {
            const int most = by_quota ? frame_table_quota(v->table, l) : v->banks->n_expert;
            for (int e = 0; e < v->banks->n_expert && rc >= 0; e++)
                if (frame_table_n_ready(v->table, l) < most) rc = add(v, l, e, err);
            if (!by_quota) continue;
            done += (uint64_t)most * frame_table_pool(v->table, l)->stride;
            if (rc >= 0 && o->watch && !o->watch(o->watch_ctx, (double)done, (double)all))
                rc = err_set(err, ERR_STOPPED, "interrupted");
        }
    return rc < 0 ? rc : 0;
}

static int load_all(vram_cache *v, const frame_table_swap *swaps, int n, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = load(v, swaps[i].layer, swaps[i].expert, swaps[i].frame, err);
    if (rc == 0) rc = wait_for_copies(v, err);
    const int ended = gpu_upload_end(v->g, rc < 0 ? NULL : err);
    return rc < 0 ? rc : ended;
}

/* Waits for all copies: of evicted experts to RAM, and of new ones to the frames that are then
 * free. */
static int finish_copies(vram_cache *v, err_ctx *err)
{
    int rc = 0;
    for (int pass = 0; pass < 2 && rc == 0; pass++) {
        vram_cache_submit(v, INT_MAX);
        rc = wait_for_copies(v, err);
        const int collected = collect(v, rc < 0 ? NULL : err);
        if (rc == 0) rc = collected;
        refresh(v);
    }
    return rc;
}

/* Moves experts in, as many at a time as there are spare RAM frames. Returns how many; copies that
 * were in flight before may be among them. */
static int apply_moves(vram_cache *v, const int *experts, int n, err_ctx *err)
{
    int rc = finish_copies(v, err);
    const uint64_t before = frame_table_counts(v->table).uploads;
    uint64_t last = before - 1, now = before;
    while (now != last && rc >= 0 &&
           (rc = frame_table_apply_moves(v->table, experts, n, err)) > 0) {
        rc = finish_copies(v, err);
        last = now;                      /* no progress: there would never be any */
        now = frame_table_counts(v->table).uploads;
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
                     frame_table_find(v->table, experts[i] / n_expert, experts[i] % n_expert) < 0;
    const int rc = apply_moves(v, experts, n, err);
    for (int i = 0; i < n; i++) {
        const int l = experts[i] / n_expert, e = experts[i] % n_expert;
        if (seeded && missing[i] && frame_table_find(v->table, l, e) >= 0)
            frame_table_seed(v->table, l, e, 2.0);
    }
    mem_free(missing);
    return rc;
}

static int copy_all(vram_cache *v, const int *experts, int n, bool seeded, err_ctx *err)
{
    frame_table_swap *swaps = mem_array((size_t)max_int(n, 1), sizeof *swaps);
    int rc = 0;
    if (!swaps) rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", n);
    const int n_swap = rc < 0 ? rc : frame_table_apply(v->table, experts, n, swaps, err);
    if (n_swap > 0 && (rc = load_all(v, swaps, n_swap, err)) < 0)
        for (int i = 0; i < n_swap; i++) frame_table_drop(v->table, swaps[i].frame);
    for (int i = 0; i < n_swap && rc >= 0 && seeded; i++)
        frame_table_seed(v->table, swaps[i].layer, swaps[i].expert, 2.0);
    v->changed |= n_swap > 0;
    mem_free(swaps);
    return rc < 0 ? rc : n_swap;
}

/* Whether the contents of frames can change: experts that are moved need page-locked RAM frames. */
static bool can_change(const vram_cache *v)
{
    return !v->ram ||
           (v->slabs && expert_store_locked(v->store) == expert_store_bytes(v->store));
}

/* Waits for the device and for all copies that are decided. */
static int settle(vram_cache *v, err_ctx *err)
{
    const int rc = gpu_wait(v->g, err);
    vram_cache_submit(v, INT_MAX);
    return rc < 0 ? rc : wait_for_copies(v, err);
}

/* The same, and the copies have arrived. */
static int quiesce(vram_cache *v, err_ctx *err)
{
    const int rc = settle(v, err);
    if (rc == 0) exchange(v, false);
    refresh(v);
    return rc;
}

uint64_t vram_cache_frame_bytes(const vram_cache *v)
{
    uint64_t least = UINT64_MAX;
    for (int l = 0; l < v->n_layer; l++) {
        const frame_pool *p = frame_table_pool(v->table, l);
        if (p->n > 0 && p->stride < least) least = p->stride;
    }
    return least;
}

int vram_cache_lend(vram_cache *v, void **memory, err_ctx *err)
{
    int rc = settle(v, err);
    if (rc == 0) rc = collect(v, err);   /* no copy is under way to a frame that is lent */
    const int frame = rc < 0 ? -1 : frame_table_lend(v->table);
    *memory = NULL;
    v->changed |= frame >= 0;
    vram_cache_publish(v);
    if (rc < 0) return rc;
    if (frame < 0)
        return err_set(err, ERR_NOMEM, "VRAM has no more room for contexts: the experts in it are "
                       "needed for a single token; end or shorten other conversations");
    *memory = (void *)(uintptr_t)vram_cache_address(v, frame, SLAB_GATE);
    return 0;
}

void vram_cache_return(vram_cache *v, void *memory)
{
    int frame = 0;
    while (vram_cache_address(v, frame, SLAB_GATE) != (uint64_t)(uintptr_t)memory) frame++;
    (void)gpu_wait(v->g, NULL);          /* a failure is reported by the next call */
    frame_table_return(v->table, frame);
}

/* seeded: new experts count as used twice. */
static int bring_in(vram_cache *v, const int *experts, int n, bool seeded, err_ctx *err)
{
    const int rc = v->ram ? move_all(v, experts, n, seeded, err)
                            : copy_all(v, experts, n, seeded, err);
    vram_cache_publish(v);
    return rc;
}

int vram_cache_apply(vram_cache *v, const int *experts, int n, err_ctx *err)
{
    const int rc = quiesce(v, err);
    if (rc == 0) return bring_in(v, experts, n, true, err);
    vram_cache_publish(v);
    return rc;
}

int vram_cache_update(vram_cache *v, int n, err_ctx *err)
{
    const int cap = min_int(n, frame_table_count(v->table));
    int rc = quiesce(v, err);
    int *list = mem_array((size_t)max_int(cap, 1), sizeof *list);
    if (!list && rc == 0) rc = err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", cap);
    const int n_missing = rc == 0 && can_change(v) ? frame_table_missing(v->table, list, cap) : 0;
    if (n_missing > 0) rc = bring_in(v, list, n_missing, false, err);
    else vram_cache_publish(v);
    mem_free(list);
    return rc;
}

void vram_cache_pin(vram_cache *v, const int *experts, int n)
{
    const int n_expert = v->banks->n_expert, all = v->n_layer * n_expert;
    const int most = min_int(n, frame_table_count(v->table) / 2);
    for (int i = 0; i < all; i++) frame_table_pin(v->table, i / n_expert, i % n_expert, false);
    for (int i = 0; i < most; i++)
        if (experts[i] >= 0 && experts[i] < all)
            frame_table_pin(v->table, experts[i] / n_expert, experts[i] % n_expert, true);
}

/* Experts without a frame in VRAM get one in RAM. */
static int fill_ram(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    const int n_expert = v->banks->n_expert, n = v->banks->n_layer * n_expert;
    bool *in_vram = mem_zalloc((size_t)n * sizeof *in_vram);
    if (!in_vram) return err_set(err, ERR_NOMEM, "experts in VRAM: %d experts", n);
    for (int i = 0; i < v->n_layer * n_expert; i++)
        in_vram[i] = frame_table_find(v->table, i / n_expert, i % n_expert) >= 0;
    const int rc = expert_store_fill(v->store, in_vram, o->watch, o->watch_ctx, err);
    mem_free(in_vram);
    for (int l = 0; l < v->n_layer; l++) v->row_changed[l] = true;
    return rc;
}

static int fill(vram_cache *v, const vram_cache_options *o, err_ctx *err)
{
    int rc = add_listed(v, o, err);
    if (rc == 0) rc = add_first(v, o, err);
    if (rc == 0) rc = wait_for_copies(v, err);
    const int ended = gpu_upload_end(v->g, rc < 0 ? NULL : err);
    if (rc == 0) rc = ended;
    if (rc == 0 && v->ram) rc = fill_ram(v, o, err);
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
    if (v->ram) {
        v->row_changed = mem_zalloc((size_t)v->n_layer * sizeof *v->row_changed);
        if (!v->row_changed) return err_set(err, ERR_NOMEM, "experts: %d layers", v->n_layer);
    }
    if (v->ram && expert_store_table(v->store, 0)) {
        const size_t table = row_of(v, v->n_layer) * SLAB_COUNT * sizeof *v->slabs;
        v->slabs = gpu_alloc(v->g, table, "addresses of experts", err);
        if (!v->slabs) return ERR_NOMEM;
    }
    for (int l = 0; l < v->n_layer; l++)
        if (expert_slabs_bytes(&b->of[l]) > largest) largest = expert_slabs_bytes(&b->of[l]);
    const frame_table_options frames = {
        .n_layer = v->n_layer, .n_frame = o->n_frame, .policy = o->policy,
        .max_uploads = can_change(v) ? max_int((int)(upload_bytes / largest), 1) : 0,
        .margin = cache_policy_margin(o->policy), .map = v->map, .ram = v->ram,
    };
    if ((rc = frame_table_create(&v->table, b, &frames, err)) < 0 ||
        (rc = gpu_copy_queue_create(&v->copies, v->g, FRAME_TABLE_EVENTS, err)) < 0)
        return rc;
    v->device_map = gpu_alloc(v->g, map_bytes, "the map of experts", err);
    if (!v->device_map) return ERR_NOMEM;
    v->arena = gpu_alloc(v->g, frame_table_all_bytes(v->table), "experts", err);
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
    v->ram = expert_store_ram_frames(store);
    v->team = o->team;
    v->n_layer = o->n_layer;
    v->profile = o->profile;
    trial_worth_begin(&v->worth);
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
    frame_table_free(v->table);
    gpu_free(v->g, v->arena);
    gpu_free(v->g, v->device_map);
    gpu_free(v->g, v->slabs);
    gpu_free_host(v->g, v->map);
    gpu_free_host(v->g, v->moves);
    mem_free(v->row_changed);
    mem_free(v->kept);
    mem_free(v->swaps);
    mem_free(v);
}
