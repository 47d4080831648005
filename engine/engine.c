/* engine.c - engine and session: who owns what, and how a run of tokens is cut into chunks.
 *
 * An engine holds what sessions share (prepared weights, rotation tables, threads), a session what
 * they do not (state, workspace, lane, ids). Everything is allocated here, at creation. */
#include "engine/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "engine/host/repack_head.h"
#include "engine/host/expert_predictor.h"
#include "engine/gpu/forward_gpu.h"
#include "engine/forward_tiered.h"
#include "engine/plan/measure.h"

struct engine {
    const model *m;                      /* borrowed */
    engine_options opt;
    weights *w;
    rope_tables rope;
    pool *team;
    ops verbs;
    const recipe *how;
    /* on a GPU; else NULL */
    gpu *device;
    gpu_info device_info;
    mem_space *vram;
    weights_gpu *on_gpu;
    /* by a plan; else NULL */
    plan *p;
    postfetch_options post;
    expert_store *store;
    expert_predictor *predictor;                /* where experts come from a drive; or NULL */
};

struct session {
    engine *e;                           /* borrowed */
    session_options opt;
    state *st;
    workspace *ws;                       /* NULL on a GPU, which has its own: */
    experts_cpu *experts;
    forward_gpu *gpu;
    host_experts *host;                          /* NULL: all experts are in VRAM */
    bool broken;                         /* the recurrent state is that of no position */
    float *logits;                       /* [n_vocab], of session_next and session_draw */
    int32_t *ids;                        /* [ctx]: the tokens so far */
    void *before;                        /* in the state's space: its recurrent block before the
                                          * chunk under way; NULL: it has none */
};

/* ---- engine ---------------------------------------------------------------------------------- */

/* Widths are held as int all through the engine; a file could claim more. */
static int check_widths(const model_hparams *hp, err_ctx *err)
{
    const int64_t most = 1 << 26;
    const struct { const char *what; int64_t width; } list[] = {
        { "attention heads", 2 * (int64_t)hp->n_head * hp->head_dim },
        { "DeltaNet values", (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim },
        { "DeltaNet keys", (int64_t)hp->ssm_n_k_head * hp->ssm_head_dim },
        { "vocabulary", hp->n_vocab },
    };
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        if (list[i].width > most)
            return err_set(err, ERR_UNSUPPORTED, "%s: a width of %" PRId64 " is above %" PRId64,
                           list[i].what, list[i].width, most);
    return 0;
}

static int make_rope(engine *e, err_ctx *err)
{
    const int half = e->m->hp.rope_dim / 2;
    e->rope.n_table = e->m->hp.rope_base_window == e->m->hp.rope_base ? 1 : 2;
    for (int i = 0; i < e->rope.n_table; i++) {
        const rope_spec s = rope_spec_of(&e->m->hp, i == 1, e->opt.yarn_rounded);
        e->rope.freq[i] = mem_array((size_t)half, sizeof(double));
        if (!e->rope.freq[i]) return err_set(err, ERR_NOMEM, "rope: %d frequencies", half);
        rope_frequencies(e->rope.freq[i], &e->rope.magnitude[i], &s);
    }
    return 0;
}

/* Code linked with -ffast-math, in any library, may have told the processor to take subnormal
 * numbers for zero. Results would depend on it. */
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
    int rc;
    if (gpu_count() == 0)
        return err_set(err, ERR_UNSUPPORTED, "cuda: there is no GPU, or no driver for it; use "
                       "--device cpu");
    if (e->opt.exact)
        return err_set(err, ERR_UNSUPPORTED, "F32 activations (--exact) are for the CPU alone");
    if ((rc = weights_gpu_check(e->m, err)) < 0 || (rc = gpu_open(&e->device, 0, err)) < 0 ||
        (rc = gpu_describe(&e->device_info, 0, err)) < 0 ||
        (rc = mem_space_vram_create(&e->vram, e->device, err)) < 0)
        return rc;
    const weights_share share = {
        .hot = e->p ? e->p->hot : NULL, .embed_in_ram = e->p && e->p->embed_in_ram,
    };
    return weights_gpu_create(&e->on_gpu, e->device, e->m, e->w, &share, e->team, p->watch,
                              p->watch_ctx, err);
}

/* A bounce buffer where that was measured to be faster. It, too, takes a little of the cache's memory. */
static void choose_bounce_buffer(engine *e, store_options *so)
{
    if (e->p->rate.disk <= e->p->rate.disk_straight) return;
    so->reader.team = e->team;
    if (so->cache_bytes >= READER_BOUNCE + expert_store_least(e->m)) so->cache_bytes -= READER_BOUNCE;
}

/* Guesses take a little of the cache's memory, where that is large. A layer of which some experts
 * are in VRAM wants others than its router says. */
static void make_predictor(engine *e, const bool *layers, store_options *so)
{
    const model_hparams *hp = &e->m->hp;
    bool alike[PLAN_MAX_LAYERS];
    for (int l = 0; l < hp->n_layer; l++) alike[l] = layers[l] && e->p->hot[l] == 0;
    const uint64_t bytes = expert_predictor_bytes(hp, alike), least = expert_store_least(e->m);
    if (bytes > so->cache_bytes / 32 || so->cache_bytes - bytes < least) return;
    if (expert_predictor_create(&e->predictor, &e->verbs, e->w, hp, alike, NULL) < 0) return;
    so->predictor = e->predictor;
    so->cache_bytes -= bytes;
}

/* Experts that are neither in VRAM nor to be had from the mapping. */
static int make_store(engine *e, const engine_placement *p, err_ctx *err)
{
    const model_hparams *hp = &e->m->hp;
    bool layers[PLAN_MAX_LAYERS], any = false, disk = false;
    for (int l = 0; l < hp->n_layer; l++) {
        layers[l] = !p->gpu || e->p->hot[l] < hp->n_expert;
        any |= layers[l];
        disk |= layers[l] && e->p->place[l] == PLAN_DISK;
    }
    if (!any || (!disk && !p->gpu)) return 0;
    store_options so = {
        .kind = disk ? STORE_CACHED : STORE_LOADED, .layers = layers,
        .cache_bytes = e->p->ram_experts, .device = e->device, .watch = p->watch,
        .watch_ctx = p->watch_ctx,
    };
    err_ctx why = { 0 };
    choose_bounce_buffer(e, &so);
    if (disk) make_predictor(e, layers, &so);
    const int rc = expert_store_create(&e->store, e->m, e->team, &so, &why);
    if (rc != ERR_NOMEM || disk) {
        if (rc < 0 && err) *err = why;
        return rc;
    }
    so.kind = STORE_MAPPED;              /* the system's own copy of the file, and no post-fetch */
    log_line("%s: using the mapped file instead, which is slower", why.msg);
    return expert_store_create(&e->store, e->m, e->team, &so, err);
}

static int keep_plan(engine *e, const engine_placement *p, err_ctx *err)
{
    if (p->postfetch) e->post = *p->postfetch;
    if (!p->plan) return 0;
    e->p = mem_zalloc(sizeof *e->p);
    if (!e->p) return err_set(err, ERR_NOMEM, "plan: %zu bytes", sizeof *e->p);
    *e->p = *p->plan;
    return 0;
}

/* As if it had never been tried. */
static void unplace(engine *e)
{
    expert_store_free(e->store);
    expert_predictor_free(e->predictor);
    weights_gpu_free(e->on_gpu);
    mem_space_vram_free(e->vram);
    gpu_close(e->device);
    mem_free(e->p);
    e->store = NULL;
    e->predictor = NULL;
    e->on_gpu = NULL;
    e->vram = NULL;
    e->device = NULL;
    e->p = NULL;
}

int engine_place(engine *e, const engine_placement *p, err_ctx *err)
{
    int rc;
    assert(!e->p && !e->on_gpu);
    if ((rc = keep_plan(e, p, err)) < 0 || (p->gpu && (rc = move_to_gpu(e, p, err)) < 0) ||
        (e->p && (rc = make_store(e, p, err)) < 0))
        unplace(e);
    return rc;
}

int engine_open(engine **out, const model *m, const engine_options *o, err_ctx *err)
{
    const kernel_set *best = kernels_named(o->isa, err);
    int rc;
    *out = NULL;
    if (!best) return err->code;
    if ((rc = check_arithmetic(err)) < 0) return rc;
    if ((rc = check_widths(&m->hp, err)) < 0) return rc;
    engine *e = mem_zalloc(sizeof *e);
    if (!e) return err_set(err, ERR_NOMEM, "engine: %zu bytes", sizeof *e);
    e->m = m;
    e->opt = *o;
    e->how = m->hp.arch == ARCH_GPTOSS ? &gptoss_recipe : &qwen3next_recipe;
    if ((rc = weights_create(&e->w, m, err)) < 0 || (rc = make_rope(e, err)) < 0 ||
        (rc = pool_create(&e->team, o->threads, err)) < 0) {
        engine_close(e);
        return rc;
    }
    e->verbs = (ops){ e->team, o->exact ? kernels_exact() : best, loops_for(best->isa) };
    *out = e;
    return 0;
}

void engine_close(engine *e)
{
    if (!e) return;
    unplace(e);
    if (e->w) repack_head_free(&e->w->head);
    pool_free(e->team);
    mem_free(e->rope.freq[0]);
    mem_free(e->rope.freq[1]);
    weights_free(e->w);
    mem_free(e);
}

int engine_threads(const engine *e) { return pool_threads(e->team); }
const char *engine_kernels(const engine *e)
{
    return engine_on_gpu(e) ? "cuda" : e->verbs.kernels->isa;
}

bool engine_on_gpu(const engine *e) { return e->on_gpu != NULL; }
const char *engine_gpu_name(const engine *e) { return e->device_info.name; }
uint64_t engine_gpu_bytes(const engine *e) { return e->on_gpu ? e->on_gpu->bytes : 0; }

const plan *engine_plan(const engine *e) { return e->p; }

int engine_measure(speeds *out, engine *e, gpu *g, uint64_t room, engine_ask *ask, void *ctx,
                   err_ctx *err)
{
    return measure_speeds(out, e->m, &e->verbs, g, room, ask, ctx, err);
}

engine_experts engine_expert_store(const engine *e)
{
    if (!e->store) return (engine_experts){ 0, 0, "", "" };
    return (engine_experts){
        expert_store_bytes(e->store), expert_store_locked(e->store), expert_store_reader(e->store),
        expert_store_note(e->store)
    };
}

typedef struct type_marks {
    bool used[QT_COUNT];
} type_marks;

static void mark_type(void *ctx, const tensor *t, model_use use, int layer)
{
    type_marks *marks = ctx;
    (void)layer;
    if (use != USE_EMBED && use != USE_NORM && use != USE_EXPERT_SMALL && t->rows > 1)
        marks->used[t->type] = true;
}

int engine_slow_types(const engine *e, quant_type types[QT_COUNT])
{
    type_marks marks = { 0 };
    int n = 0;
    if (engine_on_gpu(e)) return 0;      /* or it would not be there */
    model_visit(e->m, mark_type, &marks);
    marks.used[e->w->head.type] = true;          /* may be the embedding's */
    for (int type = 0; type < QT_COUNT; type++)
        if (marks.used[type] && kernel_is_reference(e->verbs.kernels, (quant_type)type))
            types[n++] = (quant_type)type;
    return n;
}

uint64_t engine_repack_bytes(const engine *e)
{
    if (engine_on_gpu(e) || e->w->head.repacked) return 0;
    return repack_head_bytes(&e->w->head, e->verbs.kernels);
}

uint64_t engine_repacked_bytes(const engine *e)
{
    return e->w->head.repacked_bytes;
}

int engine_repack_head(engine *e, err_ctx *err)
{
    if (engine_on_gpu(e) || e->w->head.repacked) return 0;
    return repack_head(&e->w->head, &e->verbs, err);
}

/* ---- session --------------------------------------------------------------------------------- */

int session_check(const model *m, const session_options *o, err_ctx *err)
{
    const int most = m->hp.ctx_train;
    if (o->ctx < 1 || o->ctx > most)
        return err_set(err, ERR_RANGE, "a context of %d tokens: the model's is %d; use --ctx %d or "
                       "less", o->ctx, most, most);
    if (o->chunk < 0 || o->chunk > SESSION_MAX_CHUNK)
        return err_set(err, ERR_RANGE, "a chunk of %d tokens is not within 1..%d", o->chunk,
                       SESSION_MAX_CHUNK);
    if (o->n_snapshot < 0)
        return err_set(err, ERR_RANGE, "%d snapshots: the number cannot be negative",
                       o->n_snapshot);
    return 0;
}

/* Fills in what was left to us, and refuses what cannot be. */
static int settle_options(session_options *to, const model *m, bool on_gpu,
                          const session_options *o, err_ctx *err)
{
    const int rc = session_check(m, o, err);
    if (rc < 0) return rc;
    *to = *o;
    if (to->chunk == 0) to->chunk = on_gpu ? SESSION_GPU_CHUNK : SESSION_CHUNK;
    if (to->chunk > to->ctx) to->chunk = to->ctx;
    return 0;
}

static state_options state_options_of(const session_options *o, mem_space *where)
{
    return (state_options){
        .ctx = o->ctx, .slack = o->chunk, .kv = o->kv, .n_snapshot = o->n_snapshot, .where = where
    };
}

/* The sum of n parts; UINT64_MAX among them is too much, and so is the sum then. */
static int add_parts(uint64_t *sum, const uint64_t *parts, size_t n, int ctx, err_ctx *err)
{
    *sum = 0;
    for (size_t i = 0; i < n; i++)
        if (!size_add(sum, *sum, parts[i]) || *sum == UINT64_MAX)
            return err_set(err, ERR_RANGE, "a session of %d tokens is too large to count", ctx);
    return 0;
}

int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err)
{
    const model *m = e->m;
    session_options opt;
    int rc = settle_options(&opt, e->m, engine_on_gpu(e), o, err);
    if (rc < 0) return rc;
    const state_options so = state_options_of(&opt, e->vram);
    const uint64_t in_ram[] = {
        state_bytes(m, &so), workspace_bytes(m, engine_threads(e), opt.chunk),
        experts_cpu_bytes(&m->hp, opt.chunk * m->hp.n_expert_used),
        (uint64_t)opt.ctx * sizeof(int32_t), recurrent_bytes(m),
        (uint64_t)m->hp.n_vocab * sizeof(float),
    };
    *vram = 0;
    if (!engine_on_gpu(e)) return add_parts(bytes, in_ram, ARRAY_LEN(in_ram), opt.ctx, err);
    const uint64_t in_vram[] = { state_space_bytes(m, &so),
                                 forward_gpu_bytes(e->device, m, opt.chunk) };
    const uint64_t both[] = { state_bytes(m, &so), in_vram[1],
                              (uint64_t)opt.ctx * sizeof(int32_t),
                              (uint64_t)m->hp.n_vocab * sizeof(float) };
    rc = add_parts(vram, in_vram, ARRAY_LEN(in_vram), opt.ctx, err);
    return rc < 0 ? rc : add_parts(bytes, both, ARRAY_LEN(both), opt.ctx, err);
}

/* Whether a token can fail half-way, because experts are read while it is computed. */
static bool can_fail(const session *s)
{
    return s->e->store && expert_store_kind(s->e->store) == STORE_CACHED;
}

/* A copy within the space: a chunk is too short to move it somewhere else and back. */
static int make_before(session *s, err_ctx *err)
{
    const uint64_t bytes = recurrent_bytes(s->e->m);
    mem_space *where = state_space(s->st);
    if (bytes == 0) return 0;
    return where->alloc(&s->before, where, bytes, MEM_DENSE, "a copy of the recurrent state",
                        err);
}

/* What computes, on the CPU. */
static int make_cpu_parts(session *s, err_ctx *err)
{
    const engine *e = s->e;
    const int slots = s->opt.chunk * e->m->hp.n_expert_used;
    int rc = make_before(s, err);
    if (rc == 0) rc = workspace_create(&s->ws, e->m, engine_threads(e), s->opt.chunk, err);
    if (rc == 0) rc = experts_cpu_create(&s->experts, &e->verbs, &e->m->hp, e->store, slots, err);
    return rc;
}

static int make_gpu_parts(session *s, err_ctx *err)
{
    const engine *e = s->e;
    forward_tiers tiers = { .store = e->store, .p = e->p };
    int rc;
    if (e->store && (rc = make_before(s, err)) < 0) return rc;
    if (e->store) {
        rc = host_experts_create(&s->host, e->device, e->m, e->on_gpu, e->store, &e->verbs,
                         e->how->act, e->p, &e->post, err);
        if (rc < 0) return rc;
        tiers.host = s->host;
    }
    return forward_gpu_create(&s->gpu, e->device, e->m, e->on_gpu, &tiers, &e->rope, s->st,
                              s->opt.chunk, err);
}

int session_create(session **out, engine *e, const session_options *o, err_ctx *err)
{
    session_options opt;
    int rc;
    *out = NULL;
    if ((rc = settle_options(&opt, e->m, engine_on_gpu(e), o, err)) < 0) return rc;
    session *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, ERR_NOMEM, "session: %zu bytes", sizeof *s);
    s->e = e;
    s->opt = opt;
    s->ids = mem_array((size_t)opt.ctx, sizeof *s->ids);
    s->logits = mem_array((size_t)e->m->hp.n_vocab, sizeof *s->logits);
    if (!s->ids || !s->logits) {
        session_free(s);
        return err_set(err, ERR_NOMEM, "session: %d tokens", opt.ctx);
    }
    const state_options so = state_options_of(&opt, e->vram);
    if ((rc = state_create(&s->st, e->m, &so, err)) < 0 ||
        (rc = engine_on_gpu(e) ? make_gpu_parts(s, err) : make_cpu_parts(s, err)) < 0) {
        session_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void session_free(session *s)
{
    if (!s) return;
    forward_gpu_free(s->gpu);
    host_experts_free(s->host);
    experts_cpu_free(s->experts);
    workspace_free(s->ws);
    if (s->before) {
        mem_space *where = state_space(s->st);
        where->free(where, s->before, recurrent_bytes(s->e->m));
    }
    state_free(s->st);
    mem_free(s->logits);
    mem_free(s->ids);
    mem_free(s);
}

int session_ctx(const session *s) { return s->opt.ctx; }
int session_chunk(const session *s) { return s->opt.chunk; }
int session_vocab(const session *s) { return s->e->m->hp.n_vocab; }
int session_pos(const session *s) { return state_pos(s->st); }
const int32_t *session_ids(const session *s) { return s->ids; }

/* ---- tokens ---------------------------------------------------------------------------------- */

static int check_tokens(const session *s, const int32_t *ids, int n, err_ctx *err)
{
    const int n_vocab = s->e->m->hp.n_vocab, room = s->opt.ctx - session_pos(s);
    if (s->broken)
        return err_set(err, ERR_IO, "the session's state was lost in an earlier failure");
    if (n > room)
        return err_set(err, ERR_RANGE, "%d tokens do not fit: the context of %d has room for %d", n,
                       s->opt.ctx, room);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(err, ERR_RANGE, "token id %" PRId32 " is not within 0..%d", ids[i],
                           n_vocab - 1);
    return 0;
}

/* Stopped or failed half-way, some layers have seen the tokens under way and some have not: keys
 * and values beyond the position do not matter, the recurrent state is put back. */
static void remember(session *s)
{
    mem_space *where = state_space(s->st);
    if (s->before)
        where->copy(where, s->before, recurrent_block(state_recurrent(s->st)),
                    (size_t)recurrent_bytes(s->e->m));
}

static int undo(session *s, int rc)
{
    mem_space *where = state_space(s->st);
    if (s->before)
        where->copy(where, recurrent_block(state_recurrent(s->st)), s->before,
                    (size_t)recurrent_bytes(s->e->m));
    return rc;
}

/* One chunk. A single token is not stopped half-way: it is short, and a copy of the state would be
 * a good part of it. */
static int eval_chunk(session *s, batch *p, session_watch *watch, void *ctx, int done, int n,
                      err_ctx *err)
{
    session_watch *inside = p->n > 1 ? watch : NULL;
    const bool kept = inside || can_fail(s);
    if (watch && !watch(ctx, done, n)) return ERR_STOPPED;
    if (kept) remember(s);
    const int rc = forward_tiered(p, s->e->how, inside, ctx, done, n, err);
    return rc < 0 && kept ? undo(s, rc) : rc;
}

/* Without a copy of the state only going back helps. */
static int fail_gpu(session *s, bool kept, int rc)
{
    if (kept) return undo(s, rc);
    s->broken = recurrent_bytes(s->e->m) > 0;
    return rc;
}

/* What a chunk on the GPU tells the session's watcher. */
typedef struct chunk_watch {
    session_watch *watch;
    void *ctx;
    int done, n_chunk, n;
} chunk_watch;

static bool watch_chunk(void *ctx, double share)
{
    const chunk_watch *w = ctx;
    return w->watch(w->ctx, w->done + share * w->n_chunk, w->n);
}

/* Stopped within a chunk only where experts are elsewhere: else it is short. */
static int eval_chunk_gpu(session *s, const batch *p, session_watch *watch, void *ctx, int done,
                          int n, err_ctx *err)
{
    chunk_watch w = { watch, ctx, done, p->n, n };
    const bool kept = s->host && (p->n > 1 || can_fail(s));
    if (watch && !watch(ctx, done, n)) return err_set(err, ERR_STOPPED, "stopped");
    if (kept) remember(s);
    const int rc = forward_gpu_eval(s->gpu, p->ids, p->n, p->pos,
                                    watch && s->host ? watch_chunk : NULL, &w, err);
    return rc < 0 ? fail_gpu(s, kept, rc) : rc;
}

int session_eval(session *s, const int32_t *ids, int n, float *logits, int n_row,
                 session_watch *watch, void *ctx, err_ctx *err)
{
    const size_t n_vocab = (size_t)s->e->m->hp.n_vocab;
    const int wanted = n - n_row;        /* logits from this token on */
    int rc;
    assert(n >= 0 && n_row >= 0 && n_row <= n);
    if ((rc = check_tokens(s, ids, n, err)) < 0) return rc;
    for (int done = 0; done < n;) {
        const int pos = session_pos(s), left = n - done;
        batch p = {
            .m = s->e->m, .w = s->e->w, .o = &s->e->verbs, .rope = &s->e->rope, .st = s->st,
            .ws = s->ws, .experts = s->experts, .ids = ids + done, .pos = pos,
            .n = left < s->opt.chunk ? left : s->opt.chunk,
        };
        rc = s->gpu ? eval_chunk_gpu(s, &p, watch, ctx, done, n, err)
                    : eval_chunk(s, &p, watch, ctx, done, n, err);
        if (rc == ERR_STOPPED) return err_set(err, rc, "stopped after %d of %d tokens", done, n);
        if (rc < 0) return rc;
        memcpy(s->ids + pos, p.ids, (size_t)p.n * sizeof *s->ids);
        state_advance(s->st, p.n);
        if (s->gpu && watch) watch(ctx, done + p.n, n);  /* what it says counts at the next chunk */
        const int first = wanted > done ? wanted : done;
        done += p.n;
        if (first >= done) continue;
        float *to = logits + (size_t)(first - wanted) * n_vocab;
        if (!s->gpu) forward_logits(&p, to, done - first);
        else if ((rc = forward_gpu_logits(s->gpu, to, done - first, err)) < 0) return rc;
    }
    return 0;
}

int32_t session_likeliest(const session *s, const float *logits)
{
    return ops_largest(&s->e->verbs, logits, s->e->m->hp.n_vocab);
}

int session_next(session *s, int32_t *next, int32_t id, err_ctx *err)
{
    const int pos = session_pos(s);
    int rc;
    if (!s->gpu) {
        rc = session_eval(s, &id, 1, s->logits, 1, NULL, NULL, err);
        if (rc == 0) *next = session_likeliest(s, s->logits);
        return rc;
    }
    if ((rc = check_tokens(s, &id, 1, err)) < 0) return rc;
    if (can_fail(s)) remember(s);
    if ((rc = forward_gpu_next(s->gpu, next, id, pos, err)) < 0)
        return fail_gpu(s, can_fail(s), rc);
    s->ids[pos] = id;
    state_advance(s->st, 1);
    return 0;
}

int session_draw(session *s, int32_t *next, int32_t id, sampler *smp, err_ctx *err)
{
    const int pos = session_pos(s);
    int rc;
    if (!s->gpu) {
        rc = session_eval(s, &id, 1, s->logits, 1, NULL, NULL, err);
        return rc < 0 ? rc : sampler_pick(next, smp, s->logits, err);
    }
    if ((rc = check_tokens(s, &id, 1, err)) < 0) return rc;
    if (can_fail(s)) remember(s);
    if ((rc = forward_gpu_take(s->gpu, id, pos, err)) < 0)
        return fail_gpu(s, can_fail(s), rc);
    s->ids[pos] = id;
    state_advance(s->st, 1);
    const sampler_source there = forward_gpu_source(s->gpu);
    if ((rc = sampler_pick_from(next, smp, &there, err)) <= 0) return rc;
    rc = forward_gpu_logits(s->gpu, s->logits, 1, err);
    return rc < 0 ? rc : sampler_pick(next, smp, s->logits, err);
}

int session_profile(session *s, struct gpu_span *spans, int cap, const int32_t *ids, int n,
                    double *bandwidth, err_ctx *err)
{
    int rc;
    assert(n >= 1 && n <= s->opt.chunk);
    if (!s->gpu) return err_set(err, ERR_UNSUPPORTED, "profiles are of the GPU: --device cuda");
    if ((rc = check_tokens(s, ids, n, err)) < 0 ||
        (rc = gpu_read_bandwidth(bandwidth, s->e->device, err)) < 0)
        return rc;
    return forward_gpu_profile(s->gpu, spans, cap, ids, n, session_pos(s), err);
}

void session_counts(const session *s, host_experts_stats *host, store_stats *store)
{
    *host = s->host ? host_experts_counts(s->host) : (host_experts_stats){ 0 };
    *store = s->e->store ? expert_store_counts(s->e->store) : (store_stats){ 0 };
}

void session_reset_counts(session *s)
{
    if (s->host) host_experts_reset_counts(s->host);
    if (s->e->store) expert_store_reset_counts(s->e->store);
}

void session_pause_postfetch(session *s, bool paused)
{
    if (s->host) host_experts_pause_fetching(s->host, paused);
}

/* ---- going back, files ----------------------------------------------------------------------- */

void session_snapshot(session *s) { state_snapshot(s->st); }
int session_rewind(session *s, int n_keep)
{
    const int before = session_pos(s), kept = state_rewind(s->st, n_keep);
    if (kept < before || kept == 0) s->broken = false;           /* state and position are as then */
    return kept;
}
int session_rewind_target(const session *s, int n_keep)
{
    return state_rewind_target(s->st, n_keep);
}

static state_tag tag_of(const session *s)
{
    const model *m = s->e->m;
    state_tag tag = { .model = model_fingerprint(m) };
    const size_t half = (size_t)m->hp.rope_dim / 2 * sizeof(double);
    for (int i = 0; i < s->e->rope.n_table; i++)         /* keys are stored rotated */
        tag.model = tag.model * 31 + str_hash((str_view){ (const char *)s->e->rope.freq[i], half });
    str_view name = { "", 0 };
    (void)gguf_get_str(&name, m->file, "general.name", NULL);
    str_escape(tag.arch, sizeof tag.arch, str_from(model_arch_name(m->hp.arch)));
    str_escape(tag.name, sizeof tag.name, name);
    return tag;
}

int session_save(const session *s, const char *path, str_view extra, err_ctx *err)
{
    const state_tag tag = tag_of(s);
    return state_save(s->st, path, &tag, s->ids, extra, err);
}

int session_load(session *s, const char *path, char **extra, size_t *n_extra, err_ctx *err)
{
    const state_tag tag = tag_of(s);
    return state_load(s->st, path, &tag, s->ids, s->opt.ctx, extra, n_extra, err);
}
