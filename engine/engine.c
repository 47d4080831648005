/* engine.c - prepares a model: weights, rotation tables, threads, tiers and caches of experts.
 *
 * Sessions share all of it. engine_open and engine_place allocate everything. One thread at a
 * time. */
#include "engine/engine_internal.h"

#include <assert.h>
#include <inttypes.h>

#include "cuda/gpu_measure.h"
#include "engine/engine_stats.h"
#include "engine/host/repack_head.h"
#include "engine/host/router_ahead.h"
#include "engine/plan/measure.h"

/* ---- engine ---------------------------------------------------------------------------------- */

/* Widths are held as int all through the engine; a file could claim more. */
static int check_widths(const model_hparams *hp, err_ctx *err)
{
    const int64_t most = 1 << 26;
    const struct { const char *name; int64_t width; } list[] = {
        { "attention heads", 2 * (int64_t)hp->n_head * hp->head_dim },
        { "attention heads of windowed layers",
          2 * (int64_t)hp->windowed.n_head * hp->windowed.head_dim },
        { "DeltaNet values", (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim },
        { "DeltaNet keys", (int64_t)hp->ssm_n_k_head * hp->ssm_head_dim },
        { "vocabulary", hp->n_vocab },
    };
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        if (list[i].width > most)
            return err_set(err, ERR_UNSUPPORTED, "%s: a width of %" PRId64 " is above %" PRId64,
                           list[i].name, list[i].width, most);
    return 0;
}

/* A library built with -ffast-math may have set the processor to flush subnormal numbers to zero.
 * Results would depend on it. */
static int check_arithmetic(err_ctx *err)
{
    volatile float smallest = 0x1p-126f;
    if (smallest * 0.5f != 0.0f) return 0;
    return err_set(err, ERR_UNSUPPORTED, "this process flushes subnormal numbers to zero (a "
                   "library built with -ffast-math?): results would not be the promised ones");
}

/* Weights to the first GPU. */
static int move_to_gpu(engine *e, const engine_placement *p, err_ctx *err)
{
    engine_device *d = &e->devices[0];
    int rc;
    if (gpu_count() == 0)
        return err_set(err, ERR_UNSUPPORTED, "cuda: there is no GPU, or no driver for it; use "
                       "--device cpu");
    if (e->opt.exact)
        return err_set(err, ERR_UNSUPPORTED, "F32 activations (--exact) are for the CPU alone");
    if ((rc = weights_gpu_check(e->m, err)) < 0 || (rc = gpu_open(&d->g, 0, err)) < 0 ||
        (rc = gpu_describe(&d->info, 0, err)) < 0 ||
        (rc = mem_space_vram_create(&d->vram, d->g, err)) < 0)
        return rc;
    if (p->gemm) gpu_gemm_set(d->g, p->gemm);
    static const int no_experts[PLAN_MAX_LAYERS];
    const weights_choice choice = {
        .n_layer = e->p ? plan_gpu_layers(e->p, e->m->hp.n_layer) : e->m->hp.n_layer,
        .head = !e->p || e->p->head == PLAN_VRAM,
        .hot = !e->p ? NULL : e->p->cache ? no_experts : e->p->hot,
        .embed_in_ram = e->p && e->p->embed == PLAN_RAM,
    };
    rc = weights_gpu_create(&d->w, d->g, e->m, e->w, &choice, e->team, p->watch, p->watch_ctx, err);
    if (rc == 0) e->n_device = 1;
    return rc;
}

/* Predictions take at most 1/32 of the cache's memory. A layer with experts in VRAM reads only some
 * of those its router picks, so it is left out. */
static void make_ahead(engine *e, const bool *layers, store_options *so)
{
    const model_hparams *hp = &e->m->hp;
    bool all_cold[PLAN_MAX_LAYERS];
    for (int l = 0; l < hp->n_layer; l++) all_cold[l] = layers[l] && e->p->hot[l] == 0;
    const uint64_t bytes = router_ahead_bytes(hp, all_cold);
    const uint64_t least = expert_store_least(&e->m->experts);
    if (bytes > so->cache_bytes / 32 || so->cache_bytes - bytes < least) return;
    if (router_ahead_create(&e->ahead, &e->ops_table, e->w, hp, all_cold, NULL) < 0) return;
    so->cache_bytes -= bytes;
}

/* The store of experts that are neither in VRAM nor read from the mapping. */
static int make_store(engine *e, const engine_placement *p, err_ctx *err)
{
    const model_hparams *hp = &e->m->hp;
    bool layers[PLAN_MAX_LAYERS], any = false, disk = false;
    for (int l = 0; l < hp->n_layer; l++) {
        const int n = e->m->layers[l].experts->n_expert;
        layers[l] = n > 0 && (!p->gpu || e->p->hot[l] < n);
        any |= layers[l];
        disk |= layers[l] && e->p->place[l].cold == PLAN_DISK;
    }
    if (!any || (!disk && !p->gpu)) return 0;
    store_options so = {
        .kind = disk ? STORE_CACHED : STORE_LOADED, .layers = layers,
        .n_in_vram = e->p->moved ? e->p->hot : NULL,
        .cache_bytes = e->p->ram.experts, .policy = p->cache, .device = e->devices[0].g,
        .watch = p->watch, .watch_ctx = p->watch_ctx,
    };
    err_ctx failure = { 0 };
    if (disk) make_ahead(e, layers, &so);
    const int rc = expert_store_create(&e->store, &e->m->experts, e->team, &so, &failure);
    if (rc != ERR_NOMEM || disk) {
        if (rc < 0 && err) *err = failure;
        return rc;
    }
    so.kind = STORE_MAPPED;              /* the system's own copy of the file, and no post-fetch */
    log_line("%s: using the mapped file instead, which is slower", failure.msg);
    return expert_store_create(&e->store, &e->m->experts, e->team, &so, err);
}

/* The cache of experts in VRAM. */
static int make_vram_cache(engine *e, const engine_placement *p, err_ctx *err)
{
    const engine_device *d = &e->devices[0];
    const vram_cache_options o = {
        .n_layer = d->w->n_layer, .n_frame = e->p->hot, .team = e->team, .policy = p->cache,
        .experts = p->experts, .n_expert = p->n_expert, .profile = e->usage, .watch = p->watch,
        .watch_ctx = p->watch_ctx,
    };
    const int rc = vram_cache_create(&e->cache, d->g, &e->m->experts, e->store, &o, err);
    if (rc < 0) return rc;
    for (int l = 0; l < o.n_layer; l++) {
        layer_weights_gpu *w = &d->w->layers[l];
        vram_cache_bank(e->cache, l, (gpu_bank *[SLAB_COUNT]){ &w->gate, &w->up, &w->down });
    }
    return 0;
}

static int keep_plan(engine *e, const engine_placement *p, err_ctx *err)
{
    const int n_layer = e->m->hp.n_layer, most = model_split_most(e->m);
    if (p->postfetch) e->post = *p->postfetch;
    if (!p->plan) return 0;
    const int n = plan_gpu_layers(p->plan, n_layer);
    if (p->gpu && n < n_layer && n > most)
        return err_set(err, ERR_RANGE, "plan: %d of %d layers on the GPU; layers after %d share "
                       "keys and values with earlier ones", n, n_layer, most);
    e->p = mem_zalloc(sizeof *e->p);
    if (!e->p) return err_set(err, ERR_NOMEM, "plan: %zu bytes", sizeof *e->p);
    *e->p = *p->plan;
    return 0;
}

/* Leaves the engine as if engine_place had never been called. */
static void unplace(engine *e)
{
    vram_cache_free(e->cache);
    expert_store_free(e->store);
    router_ahead_free(e->ahead);
    for (int i = 0; i < ENGINE_DEVICES; i++) {
        weights_gpu_free(e->devices[i].w);
        mem_space_vram_free(e->devices[i].vram);
        gpu_close(e->devices[i].g);
        e->devices[i] = (engine_device){ 0 };
    }
    mem_free(e->p);
    e->cache = NULL;
    e->store = NULL;
    e->ahead = NULL;
    e->n_device = 0;
    e->p = NULL;
    e->post = (postfetch_options){ 0 };
}

int engine_place(engine *e, const engine_placement *p, err_ctx *err)
{
    int rc;
    assert(!e->p && e->n_device == 0);
    if ((rc = keep_plan(e, p, err)) < 0 || (p->gpu && (rc = move_to_gpu(e, p, err)) < 0) ||
        (e->p && (rc = make_store(e, p, err)) < 0) ||
        (e->p && e->p->cache && (rc = make_vram_cache(e, p, err)) < 0))
        unplace(e);
    return rc;
}

int engine_open(engine **out, const model *m, const engine_options *o, err_ctx *err)
{
    const kernel_set *best = kernels_named(o->isa, err);
    int rc;
    *out = NULL;
    if (!best) return err ? err->code : ERR_UNSUPPORTED;
    if ((rc = check_arithmetic(err)) < 0) return rc;
    if ((rc = check_widths(&m->hp, err)) < 0) return rc;
    engine *e = mem_zalloc(sizeof *e);
    if (!e) return err_set(err, ERR_NOMEM, "engine: %zu bytes", sizeof *e);
    e->m = m;
    e->opt = *o;
    if ((rc = weights_create(&e->w, m, err)) < 0 ||
        (rc = rope_tables_init(&e->rope, m, o->yarn_rounded, err)) < 0 ||
        (rc = pool_create(&e->team, o->threads, err)) < 0) {
        engine_close(e);
        return rc;
    }
    (void)usage_profile_create(&e->usage, m->experts.n_layer, m->experts.n_expert, NULL);
    e->ops_table = (ops){ e->team, o->exact ? kernels_exact() : best, loops_for(best->isa) };
    *out = e;
    return 0;
}

void engine_close(engine *e)
{
    if (!e) return;
    unplace(e);
    if (e->w) repack_head_free(&e->w->head);
    pool_free(e->team);
    rope_tables_release(&e->rope);
    usage_profile_free(e->usage);
    weights_free(e->w);
    mem_free(e);
}

int engine_threads(const engine *e) { return pool_threads(e->team); }
const char *engine_kernels(const engine *e)
{
    return engine_on_gpu(e) ? "cuda" : e->ops_table.kernels->isa;
}

bool engine_on_gpu(const engine *e) { return e->n_device > 0; }
const char *engine_gpu_name(const engine *e) { return e->devices[0].info.name; }

int engine_gpu_layers(const engine *e)
{
    return e->n_device > 0 ? e->devices[e->n_device - 1].w->n_layer : 0;
}

const char *engine_gemm(const engine *e)
{
    return e->n_device > 0 ? gpu_gemm_name(e->devices[0].g) : "";
}

uint64_t engine_gpu_bytes(const engine *e)
{
    uint64_t sum = 0;
    for (int i = 0; i < e->n_device; i++) sum += e->devices[i].w->bytes;
    return sum;
}

int engine_measure(speeds *out, engine *e, gpu *g, uint64_t ram_bytes, double seconds,
                   keep_going_fn *watch, void *ctx, err_ctx *err)
{
    const measure_parts parts = {
        .m = e->m, .w = e->w, .rope = &e->rope, .o = &e->ops_table, .g = g};
    return measure_speeds(out, &parts, ram_bytes, seconds, watch, ctx, err);
}

int engine_throttle_begin(engine *e, double share, gpu_throttled *out, err_ctx *err)
{
    *out = (gpu_throttled){ 0 };
    if (e->n_device == 0)
        return err_set(err, ERR_UNSUPPORTED, "throttling needs a GPU: --device cuda");
    return gpu_throttle_begin(e->devices[0].g, share, out, err);
}

int engine_throttle_end(engine *e, err_ctx *err)
{
    return e->n_device > 0 ? gpu_throttle_end(e->devices[0].g, err) : 0;
}

engine_experts engine_expert_store(const engine *e)
{
    if (!e->store) return (engine_experts){ 0, 0, "", "" };
    return (engine_experts){
        expert_store_bytes(e->store), expert_store_locked(e->store), expert_store_reader(e->store),
        expert_store_note(e->store)
    };
}

int engine_resident(const engine *e, int *list, int cap)
{
    return e->cache ? frame_table_list(vram_cache_table(e->cache), list, cap) : 0;
}

static bool in_vram(const engine *e, int l, int x)
{
    if (l >= engine_gpu_layers(e)) return false;
    if (e->cache) return frame_table_find(vram_cache_table(e->cache), l, x) >= 0;
    return !e->p || x < e->p->hot[l];
}

static expert_tier tier_of(const engine *e, int l, int x)
{
    const bool drive = e->store && expert_store_kind(e->store) == STORE_CACHED;
    expert_slabs slabs;
    if (e->m->experts.of[l].n_expert == 0) return EXPERT_NONE;
    if (in_vram(e, l, x)) return EXPERT_IN_VRAM;
    return drive && !expert_store_find(e->store, l, x, &slabs) ? EXPERT_ON_DRIVE : EXPERT_IN_RAM;
}

void engine_expert_tiers(const engine *e, uint8_t *tiers)
{
    for (int l = 0; l < e->m->experts.n_layer; l++)
        for (int x = 0; x < e->m->experts.n_expert; x++) *tiers++ = (uint8_t)tier_of(e, l, x);
}

bool engine_caches(const engine *e) { return e->cache != NULL; }

int engine_apply(engine *e, const int *experts, int n, err_ctx *err)
{
    if (e->cache) return vram_cache_apply(e->cache, experts, n, err);
    return err_set(err, ERR_UNSUPPORTED, "%s", !engine_on_gpu(e) ? "no experts are in VRAM" :
                   "experts in VRAM do not change here");
}

int engine_update(engine *e, int most, err_ctx *err)
{
    return e->cache && most > 0 ? vram_cache_update(e->cache, most, err) : 0;
}

void engine_pin(engine *e, const int *experts, int n)
{
    if (e->cache) vram_cache_pin(e->cache, experts, n);
}

const usage_profile *engine_profile(const engine *e) { return e->usage; }

typedef struct type_set {
    bool has[QT_COUNT];
} type_set;

static void add_type(void *ctx, const tensor *t, model_use use, int layer)
{
    type_set *used = ctx;
    (void)layer;
    if (use != USE_EMBED && use != USE_NORM && use != USE_EXPERT_SMALL && t->rows > 1)
        used->has[t->type] = true;
}

int engine_slow_types(const engine *e, quant_type types[QT_COUNT])
{
    type_set used = { 0 };
    int n = 0;
    if (engine_head_on_gpu(e)) return 0; /* all on the GPU, which has kernels for every type */
    model_visit(e->m, add_type, &used);
    used.has[e->w->head.type] = true;            /* may be the embedding's */
    for (int type = 0; type < QT_COUNT; type++)
        if (used.has[type] && kernel_is_reference(e->ops_table.kernels, (quant_type)type))
            types[n++] = (quant_type)type;
    return n;
}

uint64_t engine_repacked_bytes(const engine *e)
{
    return e->w->head.repacked_bytes;
}

int engine_repack_head(engine *e, err_ctx *err)
{
    if (engine_head_on_gpu(e) || e->w->head.repacked) return 0;
    return repack_head(&e->w->head, &e->ops_table, err);
}
