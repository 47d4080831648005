/* expert_server_create.c - allocates and frees an expert server.
 *
 * RAM: the mailbox, the vectors of a prompt's slots, and the scratch of experts_cpu. VRAM: tables
 * with the frame of each expert, and the pad for fetched slabs. For each layer that asks it keeps
 * the arguments of its launches (expert_server_args). expert_server.c answers questions. */
#include "engine/gpu/expert_server_internal.h"

#include <string.h>

/* ---- VRAM ------------------------------------------------------------------------------------ */

static gpu_expert_args shapes_of(const weights_gpu *w, int l)
{
    return (gpu_expert_args){ .gate = w->layers[l].gate, .up = w->layers[l].up,
                              .down = w->layers[l].down };
}

/* Not where RAM is a cache of the drive: a slab could be overwritten while it is fetched. In a
 * loaded store a RAM frame is overwritten only when the device has ended its token. */
static bool wants_to_fetch(const expert_server *c)
{
    return !c->post.off && c->p->vram.pad > 0 && expert_store_kind(c->store) == STORE_LOADED;
}

static bool can_fetch(const expert_server *c)
{
    return wants_to_fetch(c) && expert_store_locked(c->store) > 0;
}

static uint64_t table_bytes(const model_hparams *hp)
{
    return (uint64_t)hp->n_expert * SLAB_COUNT * sizeof(uint64_t);
}

/* The contents of the arena. */
typedef struct vram_parts {
    uint32_t *number;
    uint8_t *fetch;
    void *scratch;
    int32_t *hot;                        /* [n_layer, n_expert] */
    uint64_t *slabs;                     /* [n_layer, n_expert, SLAB_COUNT] */
    void *prediction_state;
    uint8_t *pad;
} vram_parts;

static vram_parts place_all(mem_layout *a, const model_hparams *hp, uint64_t pad_bytes)
{
    const uint64_t n_layer = (uint64_t)hp->n_layer, n_expert = (uint64_t)hp->n_expert;
    vram_parts v;
    v.number = mem_layout_take(a, 1, 1, sizeof *v.number);
    v.fetch = mem_layout_take(a, FETCH_TABLE, 1, 1);
    v.scratch = mem_layout_take(a, gpu_with_host_scratch(hp->n_expert_used, hp->n_ff_expert,
                                                         hp->n_embd), 1, 1);
    v.hot = mem_layout_take(a, n_layer, n_expert, sizeof *v.hot);
    v.slabs = mem_layout_take(a, n_layer, table_bytes(hp), 1);
    v.prediction_state =
        mem_layout_take(a, gpu_prediction_state(hp->n_expert, hp->n_embd, hp->n_layer), 1, 1);
    v.pad = mem_layout_take(a, pad_bytes, 1, 1);
    return v;
}

static uint64_t vram_bytes(const model_hparams *hp, uint64_t pad_bytes)
{
    mem_layout a = mem_layout_count(256);
    (void)place_all(&a, hp, pad_bytes);
    return a.used;
}

/* Bytes of the pad, for as many slabs as options allow, in the layer with the largest slabs. */
static uint64_t choose_pad(expert_server *c, const weights_gpu *w)
{
    int *n_down = &c->levels.pad_down, *n_all = &c->levels.pad_all;
    const uint64_t most = c->post.pad_bytes;
    if (!can_fetch(c)) return 0;
    *n_down = c->m->hp.n_expert_used;
    *n_all = min_int(*n_down, PLAN_PAD_WHOLE);
    for (;;) {
        uint64_t pad = 0;
        for (int l = 0; l < c->n_layer; l++) {
            const gpu_expert_args shapes = shapes_of(w, l);
            const uint64_t bytes = gpu_with_host_pad(&shapes, *n_down, *n_all);
            if (bytes > pad) pad = bytes;
        }
        if (most == 0 || pad <= most || *n_down + *n_all == 0) return pad;
        if (*n_all > 0) --*n_all;
        else --*n_down;
    }
}

/* The next layer's weights for a prediction. No router unless both layers have slabs to fetch. */
static gpu_predict prediction_of(const expert_server *c, const weights_gpu *w, int l)
{
    gpu_predict next = { .norm = w->layers[l].experts_norm };
    if (l + 1 >= c->n_layer || !c->args[l].slabs || !c->args[l + 1].slabs ||
        !gpu_prediction_fits(w->layers[l + 1].router.type))
        return next;
    next.router = w->layers[l + 1].router;
    next.rule = weights_gpu_rule(&c->m->hp.router, w->layers[l + 1].choice_bias);
    next.next_norm = w->layers[l + 1].router_norm;
    next.hot = c->args[l + 1].hot;
    return next;
}

/* The launch arguments of a layer that asks. map: scratch. */
static int make_split(expert_server *c, const vram_parts *v, int32_t *map, int l, err_ctx *err)
{
    const int n_expert = c->m->hp.n_expert, n_hot = c->p->hot[l];
    const int32_t *hot = c->cache ? vram_cache_map(c->cache, l) : NULL;
    int rc = 0;
    if (!c->cache && n_hot > 0) {
        int32_t *own = v->hot + (size_t)l * (size_t)n_expert;
        for (int e = 0; e < n_expert; e++) map[e] = e < n_hot ? e : -1;
        rc = gpu_write(c->g, own, map, (size_t)n_expert * sizeof *map, err);
        hot = own;
    }
    const uint64_t *table = c->s.pad_bytes > 0 ? expert_store_table(c->store, l) : NULL;
    const uint64_t *cached = c->cache ? vram_cache_slabs(c->cache, l) : NULL;
    uint64_t *own = v->slabs + (size_t)l * (size_t)n_expert * SLAB_COUNT;
    const uint64_t *slabs = cached ? cached : own;
    if (table && !cached && rc == 0)
        rc = gpu_write(c->g, own, table, table_bytes(&c->m->hp), err);
    c->args[l] = (gpu_with_host){
        .mailbox = c->mailbox, .number = v->number, .hot = hot,
        .chosen = c->log ? expert_server_log(c, l) : NULL,
        .slabs = table ? slabs : NULL, .fetch = v->fetch, .pad = v->pad,
        .pad_down = c->levels.pad_down, .pad_all = c->levels.pad_all, .scratch = v->scratch,
        .one_stream = c->post.one_stream,
    };
    return rc;
}

/* All layers that ask. */
static int make_splits(expert_server *c, const vram_parts *v, err_ctx *err)
{
    const int n_expert = c->m->hp.n_expert;
    int32_t *map = mem_array((size_t)n_expert, sizeof *map);
    gpu_with_host *last = NULL;
    int rc = 0;
    if (!map) return err_set(err, ERR_NOMEM, "%d experts", n_expert);
    for (int l = 0; l < c->n_layer && rc == 0; l++) {
        const expert_bank *bank = c->m->layers[l].experts;
        if (bank->n_expert == 0 || c->p->hot[l] >= n_expert) continue;
        c->n_asking++;
        if (!c->bank) c->bank = bank;
        rc = make_split(c, v, map, l, err);
        last = &c->args[l];
    }
    if (last) last->closes = true;
    mem_free(map);
    return rc;
}

static void make_predictions(expert_server *c, const weights_gpu *w, const vram_parts *v)
{
    for (int l = 0; l < c->n_layer && c->levels.can_predict; l++) {
        gpu_with_host *args = &c->args[l];
        if (!args->slabs) continue;
        args->next = prediction_of(c, w, l);
        args->prediction_layer = l;
        args->prediction_state = v->prediction_state;
    }
}

static int make_vram(expert_server *c, const weights_gpu *w, err_ctx *err)
{
    const model_hparams *hp = &c->m->hp;
    const uint64_t pad = c->s.pad_bytes = choose_pad(c, w);
    const uint64_t bytes = vram_bytes(hp, pad);
    int rc;

    c->levels.can_predict = pad > 0 && !c->post.one_stream && !c->post.no_prediction;
    c->arena = gpu_alloc(c->g, bytes, "post-fetched experts", err);
    if (!c->arena) return ERR_NOMEM;
    if ((rc = gpu_zero(c->g, c->arena, bytes, err)) < 0) return rc;
    mem_layout a = mem_layout_over(c->arena, 256);
    const vram_parts v = place_all(&a, hp, pad);
    c->fetch_table = v.fetch;
    if ((rc = make_splits(c, &v, err)) < 0) return rc;
    make_predictions(c, w, &v);
    return 0;
}

/* ---- RAM ------------------------------------------------------------------------------------- */

static uint64_t log_bytes(const model_hparams *hp)
{
    return (uint64_t)hp->n_layer * GPU_MAIL * (uint64_t)hp->n_expert_used * sizeof(uint32_t);
}

/* Sizes in RAM: slots of a prompt, floats of their vectors, bytes of activations. */
typedef struct ram_sizes { size_t slots, floats, acts; } ram_sizes;

static ram_sizes ram_of(const model_hparams *hp)
{
    const size_t slots = EXPERT_SERVER_TOKENS * (size_t)hp->n_expert_used;
    return (ram_sizes){ slots, slots * (size_t)hp->n_embd,
                        acts_bytes(PLAN_SPLIT_TOKENS, hp->n_embd) + 64 };
}

uint64_t expert_server_ram_bytes(const model *m)
{
    const ram_sizes r = ram_of(&m->hp);
    const uint64_t mailbox = (uint64_t)GPU_MAIL * (uint64_t)m->hp.n_expert_used *
                          ((uint64_t)m->hp.n_embd + 2 * (uint64_t)m->hp.n_ff_expert) *
                          sizeof(float);
    const uint64_t lists = (uint64_t)m->hp.n_layer * (sizeof(gpu_with_host) + table_bytes(&m->hp));
    return r.floats * sizeof(float) + r.acts + experts_cpu_bytes(&m->hp, (int)r.slots) + mailbox +
           lists + log_bytes(&m->hp);
}

uint64_t expert_server_vram_bytes(const model *m) { return vram_bytes(&m->hp, 0); }

static int make_ram(expert_server *c, router_ahead *ahead, bool skip_missing, err_ctx *err)
{
    const model_hparams *hp = &c->m->hp;
    const ram_sizes r = ram_of(hp);
    int rc;
    c->args = mem_array((size_t)hp->n_layer, sizeof *c->args);
    c->layer_s = mem_zalloc((size_t)hp->n_layer * sizeof *c->layer_s);
    c->layers = mem_zalloc((size_t)hp->n_layer * sizeof *c->layers);
    c->items = mem_array((size_t)hp->n_expert, sizeof *c->items);
    c->x_storage = mem_zalloc(r.acts);
    if (!c->args || !c->layer_s || !c->layers || !c->items || !c->x_storage)
        return err_set(err, ERR_NOMEM, "experts on the CPU: %zu bytes", r.acts);
    c->slots = gpu_alloc_host(c->g, r.floats * sizeof *c->slots, err);
    if (!c->slots) return ERR_NOMEM;
    memset(c->args, 0, (size_t)hp->n_layer * sizeof *c->args);
    acts_init(&c->x, (uint8_t *)(((uintptr_t)c->x_storage + 63) / 64 * 64), PLAN_SPLIT_TOKENS,
              hp->n_embd);
    if ((rc = worklist_create(&c->work, hp->n_expert, (int)r.slots, err)) < 0 ||
        (rc = experts_cpu_create(&c->cpu, c->o, hp, c->store, ahead, (int)r.slots, err)) < 0)
        return rc;
    if (c->cache || c->p->vram.pad > 0) {
        c->log = gpu_alloc_host(c->g, log_bytes(hp), err);
        if (!c->log) return ERR_NOMEM;
        memset(c->log, 0, (size_t)log_bytes(hp));
    }
    if (skip_missing) {
        c->wanted = gpu_alloc_host(c->g, log_bytes(hp), err);
        if (!c->wanted) return ERR_NOMEM;
        memset(c->wanted, 0, (size_t)log_bytes(hp));
    }
    return gpu_mailbox_create(&c->mailbox, c->g, hp->n_embd, hp->n_ff_expert, hp->n_expert_used,
                              err);
}

/* ---- both ------------------------------------------------------------------------------------ */

int expert_server_create(expert_server **out, const engine *e, bool skip_missing, err_ctx *err)
{
    expert_server *c = mem_zalloc(sizeof *c);
    int rc;
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "experts on the CPU: %zu bytes", sizeof *c);
    c->g = e->devices[0].g;
    c->n_poll = gpu_polls(c->g);
    c->m = e->m;
    c->store = e->store;
    c->cache = e->cache;
    c->o = &e->ops_table;
    c->p = e->p;
    c->n_layer = e->devices[0].w->n_layer;
    c->post = e->post;
    c->post.off |= skip_missing;
    c->levels.post = c->post;
    c->levels.k = c->m->hp.n_expert_used;
    if ((rc = make_ram(c, e->ahead, skip_missing, err)) < 0 ||
        (rc = make_vram(c, e->devices[0].w, err)) < 0 ||
        (c->post.debug && c->s.pad_bytes > 0 &&
         (rc = postfetch_log_create(&c->fetch_log, c->m, e->devices[0].w, c->n_layer,
                                    c->levels.pad_all, err)) < 0)) {
        expert_server_free(c);
        return rc;
    }
    if (c->levels.can_predict &&
        (rc = read_ahead_create(&c->reader, pool_threads(c->o->team), err)) < 0) {
        expert_server_free(c);
        return rc;
    }
    c->nothing_locked = wants_to_fetch(c) && !can_fetch(c);
    postfetch_levels_begin(&c->levels, c->bank, &c->p->rate);
    expert_server_send_levels(c);
    *out = c;
    return 0;
}

void expert_server_free(expert_server *c)
{
    if (!c) return;
    expert_server_log_fetches(c);
    gpu_free(c->g, c->arena);
    gpu_mailbox_free(c->g, c->mailbox);
    gpu_free_host(c->g, c->log);
    gpu_free_host(c->g, c->slots);
    gpu_free_host(c->g, c->wanted);
    experts_cpu_free(c->cpu);
    read_ahead_free(c->reader);
    worklist_free(c->work);
    mem_free(c->x_storage);
    mem_free(c->items);
    postfetch_log_free(c->fetch_log);
    mem_free(c->layers);
    mem_free(c->layer_s);
    mem_free(c->args);
    mem_free(c);
}
