/* session.c - one conversation: its state and its ids; cuts tokens into chunks.
 *
 * session_create allocates everything. forward_tiered.c computes a chunk. A runner has what a call
 * needs and no conversation keeps; sessions that share one use it in turn. One thread at a time for
 * all sessions of an engine. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/engine_stats.h"
#include "engine/forward_tiered.h"
#include "engine/session/session_bytes.h"

/* The memory that sessions compute with. */
typedef struct runner {
    forward *f;
    float *logits;                       /* [n_vocab], of session_next and session_pick */
    uint64_t n_single, n_batched;        /* tokens since the counts were reset, by size of batch */
    perf_level perf;
    session *taken;                      /* the session of a token in flight (session_take); or
                                          * NULL */
    int32_t taken_id;
    bool taken_kept;                     /* `before` has the recurrent state before that token */
    void *before[RECURRENT_BLOCKS];      /* copies of the recurrent blocks, in their spaces, from
                                          * before the chunk under way; or NULL */
} runner;

struct session {
    engine *e;                           /* borrowed */
    session_options opt;
    runner *runner;
    bool shares_runner;                  /* another session owns it */
    state *st;
    forward_recordings *recordings;
    bool broken;                         /* the recurrent state belongs to no position */
    int n_recovery;                      /* gpu_recoveries when the state began; after a further
                                          * recovery the state is lost */
    int32_t *ids;                        /* [ctx]: the tokens so far */
};

/* ---- options and sizes ----------------------------------------------------------------------- */

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
    if (o->n_sharing < 0 || o->n_sharing > SESSION_MAX_SHARING)
        return err_set(err, ERR_RANGE, "%d sharing sessions are not within 0..%d", o->n_sharing,
                       SESSION_MAX_SHARING);
    return 0;
}

/* Checks the options and replaces the default chunk by a number. */
static int resolve_options(session_options *out, const engine *e, const session_options *o,
                           err_ctx *err)
{
    const int rc = session_check(e->m, o, err);
    if (rc < 0) return rc;
    *out = *o;
    if (out->chunk == 0) out->chunk = engine_on_gpu(e) ? SESSION_GPU_CHUNK : SESSION_CHUNK;
    if (out->chunk > out->ctx) out->chunk = out->ctx;
    return 0;
}

static state_options state_options_of(const engine *e, const session_options *o)
{
    return (state_options){
        .ctx = o->ctx, .slack = o->chunk, .kv = o->kv, .n_snapshot = o->n_snapshot,
        .where = e->vram, .n_ram = e->vram ? e->m->hp.n_layer - engine_gpu_layers(e) : 0,
    };
}

/* Whether a chunk can end half-way, so that the recurrent state has to be copied before it. A model
 * that is all in VRAM is never stopped within a chunk. */
static bool keeps_before(const engine *e) { return !engine_on_gpu(e) || e->store; }

int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err)
{
    const model *m = e->m;
    session_options opt;
    int rc = resolve_options(&opt, e, o, err);
    if (rc < 0) return rc;
    const bool host = !engine_on_gpu(e) || !e->on_gpu->head.data, before = keeps_before(e);
    const state_options so = state_options_of(e, &opt);
    const session_bytes b = session_bytes_of(m, &so, opt.n_sharing, engine_threads(e));
    const uint64_t work =
        engine_on_gpu(e) ? gpu_steps_bytes(e->device, m, opt.chunk) + b.recordings : 0;
    const uint64_t all[] = {
        b.state, work, host ? b.host_work : 0, before ? b.recurrent_copy : 0, b.ids, b.logits,
    };
    *vram = work;
    for (int l = 0; l < engine_gpu_layers(e); l++) {
        const uint64_t layer[] = { *vram, session_bytes_layer(m, &so, opt.n_sharing, l),
                                   before ? recurrent_layer_bytes(m, l) : 0 };
        *vram = session_bytes_sum(layer, ARRAY_LEN(layer));
    }
    *bytes = session_bytes_sum(all, ARRAY_LEN(all));
    if (*bytes < UINT64_MAX) return 0;
    return err_set(err, ERR_RANGE, "a session of %d tokens is too large to count", opt.ctx);
}

/* ---- completed and failed tokens ------------------------------------------------------------- */

/* Whether a token can fail half-way, because experts are read while it is computed. */
static bool can_fail(const session *s)
{
    return s->e->store && expert_store_kind(s->e->store) == STORE_CACHED;
}

/* Copies the recurrent state to the runner or back. After a stop or a failure only some layers have
 * taken in the tokens under way: keys and values beyond the position do no harm, but the recurrent
 * state has to be restored. */
static void copy_recurrent(session *s, bool back)
{
    for (int i = 0; i < RECURRENT_BLOCKS; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        if (b.bytes > 0)
            b.where->copy(b.where, back ? b.data : s->runner->before[i],
                          back ? s->runner->before[i] : b.data, (size_t)b.bytes);
    }
}

/* Copies the recurrent state before n tokens if they may fail. Returns whether it did. A single
 * token is never stopped: it is short, and the copy would take a large part of its time. */
static bool copy_before(session *s, int n, bool watched)
{
    const bool kept = keeps_before(s->e) &&
                      ((n > 1 && (watched || engine_on_gpu(s->e))) || can_fail(s));
    if (kept) copy_recurrent(s, false);
    return kept;
}

static int recoveries(const session *s)
{
    return engine_on_gpu(s->e) ? gpu_recoveries(s->e->device) : 0;
}

static bool is_lost(const session *s) { return s->n_recovery != recoveries(s); }

/* Resets a device that has failed and returns rc. The device reports late that the host did not
 * answer in time, so earlier results may be wrong, too: every session has to begin again. */
static int recover(const session *s, int rc)
{
    if (engine_on_gpu(s->e) && gpu_wait(s->e->device, NULL) < 0) gpu_recover(s->e->device);
    return rc;
}

static int undo(session *s, bool kept, int rc)
{
    if (kept) copy_recurrent(s, true);
    else s->broken = recurrent_bytes(s->e->m) > 0;       /* until a rewind */
    return recover(s, rc);
}

static void advance(session *s, const int32_t *ids, int n)
{
    memcpy(s->ids + session_pos(s), ids, (size_t)n * sizeof *s->ids);
    state_advance(s->st, n);
    if (n == 1) s->runner->n_single++;
    else s->runner->n_batched += (uint64_t)n;
}

/* The token in flight has ended. rc < 0: it failed and is not taken in. */
static int end_taken(runner *r, int rc)
{
    session *s = r->taken;
    r->taken = NULL;
    if (rc < 0) return undo(s, r->taken_kept, rc);
    advance(s, &r->taken_id, 1);
    return 0;
}

/* Waits for the token in flight of any session of the runner: the next token must not write the
 * cursor before the device has read this one's. */
static int settle(runner *r, err_ctx *err)
{
    return r->taken ? end_taken(r, forward_wait(r->f, err)) : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The copies are in the same spaces: a copy over the bus would take too long for each chunk. */
static int make_before(session *s, err_ctx *err)
{
    int rc = 0;
    if (!keeps_before(s->e)) return 0;
    for (int i = 0; i < RECURRENT_BLOCKS && rc == 0; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        if (b.bytes > 0)
            rc = b.where->alloc(&s->runner->before[i], b.where, b.bytes, MEM_DENSE,
                                "a copy of the recurrent state", err);
    }
    return rc;
}

/* Whether the choice of experts differs from the model's. */
static bool skips_missing(const session *s)
{
    return s->e->cache && s->opt.skip_missing;
}

static int make_forward(session *s, err_ctx *err)
{
    return forward_create(&s->runner->f, s->e, skips_missing(s), s->opt.chunk, err);
}

/* first NULL: with a runner of its own; else shares first's runner. */
static int create(session **out, engine *e, session *first, const session_options *opt,
                  err_ctx *err)
{
    session *s = mem_zalloc(sizeof *s);
    int rc = 0;
    if (!s) return err_set(err, ERR_NOMEM, "session: %zu bytes", sizeof *s);
    s->e = e;
    s->opt = *opt;
    s->shares_runner = first != NULL;
    s->n_recovery = recoveries(s);
    s->runner = first ? first->runner : mem_zalloc(sizeof *s->runner);
    s->ids = mem_array((size_t)opt->ctx, sizeof *s->ids);
    if (s->runner && !first)
        s->runner->logits = mem_array((size_t)e->m->hp.n_vocab, sizeof *s->runner->logits);
    if (!s->ids || !s->runner || !s->runner->logits)
        rc = err_set(err, ERR_NOMEM, "session: %d tokens", opt->ctx);
    const state_options so = state_options_of(e, opt);
    if (rc == 0) rc = state_create(&s->st, e->m, &so, err);
    if (rc == 0 && !first) rc = make_before(s, err);
    if (rc == 0 && !first) rc = make_forward(s, err);
    if (rc == 0) rc = forward_recordings_create(&s->recordings, s->runner->f, s->st, err);
    if (rc == 0) *out = s;
    else session_free(s);
    return rc;
}

int session_create(session **out, engine *e, const session_options *o, err_ctx *err)
{
    session_options opt;
    *out = NULL;
    const int rc = resolve_options(&opt, e, o, err);
    return rc < 0 ? rc : create(out, e, NULL, &opt, err);
}

int session_create_sharing(session **out, session *first, err_ctx *err)
{
    *out = NULL;
    return create(out, first->e, first, &first->opt, err);
}

static void free_runner(session *s)
{
    runner *r = s->runner;
    if (!r || s->shares_runner) return;
    forward_free(r->f);
    for (int i = 0; i < RECURRENT_BLOCKS && s->st; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        b.where->free(b.where, r->before[i], b.bytes);
    }
    mem_free(r->logits);
    mem_free(r);
}

void session_free(session *s)
{
    if (!s) return;
    if (s->runner) (void)settle(s->runner, NULL);
    forward_recordings_free(s->recordings);
    free_runner(s);
    state_free(s->st);
    mem_free(s->ids);
    mem_free(s);
}

int session_ctx(const session *s) { return s->opt.ctx; }
int session_chunk(const session *s) { return s->opt.chunk; }
int session_vocab(const session *s) { return s->e->m->hp.n_vocab; }
int session_pos(const session *s) { return state_pos(s->st); }
const int32_t *session_ids(const session *s) { return s->ids; }

int session_common(const session *s, const int32_t *ids, int n)
{
    const int most = min_int(n, session_pos(s));
    int i = 0;
    while (i < most && s->ids[i] == ids[i]) i++;
    return i;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

int session_check_state(const session *s, err_ctx *err)
{
    (void)settle(s->runner, NULL);
    if (!s->broken && !is_lost(s)) return 0;
    return err_set(err, ERR_IO, "the session's state was lost in an earlier failure");
}

static int check_tokens(const session *s, const int32_t *ids, int n, err_ctx *err)
{
    const int n_vocab = s->e->m->hp.n_vocab, room = s->opt.ctx - session_pos(s);
    const int rc = session_check_state(s, err);
    if (rc < 0) return rc;
    if (n > room)
        return err_set(err, ERR_RANGE, "%d tokens do not fit: the context of %d has room for %d", n,
                       s->opt.ctx, room);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(err, ERR_RANGE, "token id %" PRId32 " is not within 0..%d", ids[i],
                           n_vocab - 1);
    return 0;
}

/* Converts the progress of a chunk, in layers, to that of the call, in tokens. */
typedef struct chunk_watch {
    progress_fn *watch;
    void *ctx;
    int done, n_chunk, n;
} chunk_watch;

static bool watch_chunk(void *ctx, double layers, double n_layer)
{
    const chunk_watch *w = ctx;
    return w->watch(w->ctx, w->done + w->n_chunk * layers / n_layer, w->n);
}

static int eval_chunk(session *s, const int32_t *ids, chunk_watch *w, err_ctx *err)
{
    batch b = { .ids = ids, .n = w->n_chunk, .pos = session_pos(s) };
    if (w->watch && !w->watch(w->ctx, w->done, w->n)) return err_set(err, ERR_STOPPED, "stopped");
    if (w->watch && w->n_chunk > 1 && keeps_before(s->e)) {
        b.watch = watch_chunk;
        b.watch_ctx = w;
    }
    const bool kept = copy_before(s, b.n, b.watch != NULL);
    forward_select(s->runner->f, s->recordings);
    const int rc = forward_eval(s->runner->f, &b, err);
    if (rc < 0) return undo(s, kept, rc);
    advance(s, ids, b.n);
    return 0;
}

/* On a GPU all chunks but the last end at a multiple of GPU_DELTA_CHUNK, so that the bits of
 * recurrent layers do not depend on how a session's tokens were cut. left: tokens to take in. */
int session_first_chunk(const session *s, int left)
{
    const int n = min_int(left, s->opt.chunk);
    if (n == left || n < 2 * GPU_DELTA_CHUNK || !engine_on_gpu(s->e) ||
        s->e->m->hp.ssm_n_v_head == 0)
        return n;
    return n - (session_pos(s) + n) % GPU_DELTA_CHUNK;
}

int session_eval(session *s, const int32_t *ids, int n, float *logits, int n_row,
                 progress_fn *watch, void *ctx, err_ctx *err)
{
    const size_t n_vocab = (size_t)s->e->m->hp.n_vocab;
    const int wanted = n - n_row;        /* logits from this token on */
    int rc;
    assert(n >= 0 && n_row >= 0 && n_row <= n);
    if ((rc = check_tokens(s, ids, n, err)) < 0) return rc;
    for (int done = 0; done < n;) {
        chunk_watch w = { watch, ctx, done, session_first_chunk(s, n - done), n };
        rc = eval_chunk(s, ids + done, &w, err);
        if (rc == ERR_STOPPED) return err_set(err, rc, "stopped after %d of %d tokens", done, n);
        if (rc < 0) return rc;
        const int first = wanted > done ? wanted : done;
        done += w.n_chunk;
        if (engine_on_gpu(s->e) && watch) watch(ctx, done, n);   /* the next call may stop */
        if (first < done &&
            (rc = forward_logits(s->runner->f, logits + (size_t)(first - wanted) * n_vocab,
                                 done - first,
                                 err)) < 0)
            return recover(s, rc);
    }
    return 0;
}

int32_t session_likeliest(const session *s, const float *logits)
{
    return ops_largest(&s->e->ops_table, logits, s->e->m->hp.n_vocab);
}

int session_next(session *s, int32_t *next, int32_t id, err_ctx *err)
{
    int rc = check_tokens(s, &id, 1, err);
    if (rc < 0) return rc;
    const bool kept = copy_before(s, 1, false);
    forward_select(s->runner->f, s->recordings);
    rc = forward_next(s->runner->f, next, id, session_pos(s), s->runner->logits, err);
    if (rc < 0) return undo(s, kept, rc);
    advance(s, &id, 1);
    return 0;
}

int session_take(session *s, int32_t id, err_ctx *err)
{
    int rc = check_tokens(s, &id, 1, err);
    if (rc < 0) return rc;
    const bool kept = copy_before(s, 1, false);
    forward_select(s->runner->f, s->recordings);
    if ((rc = forward_take(s->runner->f, id, session_pos(s), err)) < 0) return undo(s, kept, rc);
    s->runner->taken = s;
    s->runner->taken_id = id;
    s->runner->taken_kept = kept;
    return 0;
}

int session_pick(session *s, int32_t *next, sampler *smp, err_ctx *err)
{
    sampler_source source;
    int rc = 1;                          /* the logits are needed in RAM */
    assert(s->runner->taken == s);
    if (forward_source(s->runner->f, &source)) rc = sampler_pick_from(next, smp, &source, err);
    /* what the sampler has read of the token proves its end */
    const int ended = rc == 0 ? end_taken(s->runner, 0) : settle(s->runner, rc > 0 ? err : NULL);
    if (rc <= 0) return rc;
    if (ended < 0) return ended;
    rc = forward_logits(s->runner->f, s->runner->logits, 1, err);
    return rc < 0 ? recover(s, rc) : sampler_pick(next, smp, s->runner->logits, err);
}

/* ---- counts and profiles --------------------------------------------------------------------- */

int session_profile(session *s, struct gpu_span *spans, int cap, const int32_t *ids, int n,
                    double *bandwidth, err_ctx *err)
{
    int rc;
    assert(n >= 1 && n <= s->opt.chunk);
    if (!engine_on_gpu(s->e))
        return err_set(err, ERR_UNSUPPORTED, "profiles need a GPU: --device cuda");
    if ((rc = check_tokens(s, ids, n, err)) < 0 ||
        (rc = gpu_read_bandwidth(bandwidth, s->e->device, err)) < 0)
        return rc;
    forward_select(s->runner->f, s->recordings);
    return forward_profile(s->runner->f, spans, cap, ids, n, session_pos(s), err);
}

void session_counts(const session *s, expert_server_stats *host, store_stats *store)
{
    const expert_server *server = forward_expert_server(s->runner->f);
    *host = server ? expert_server_counts(server) : (expert_server_stats){ 0 };
    *store = s->e->store ? expert_store_counts(s->e->store) : (store_stats){ 0 };
}

void session_reset_counts(session *s)
{
    expert_server *server = forward_expert_server(s->runner->f);
    if (server) expert_server_reset_counts(server);
    forward_reset_waited(s->runner->f);
    forward_reset_split(s->runner->f);
    s->runner->n_single = s->runner->n_batched = 0;
    if (s->e->store) expert_store_reset_counts(s->e->store);
    if (s->e->cache) vram_cache_reset_counts(s->e->cache);
}

frame_table_stats session_vram_moves(const session *s)
{
    return s->e->cache ? frame_table_counts(vram_cache_table(s->e->cache))
                        : (frame_table_stats){ 0 };
}

void session_split(const session *s, prompt_split_stats *out)
{
    *out = forward_split(s->runner->f);
}

void session_count(session *s, perf_level level)
{
    expert_server *server = forward_expert_server(s->runner->f);
    s->runner->perf = level;
    if (server) expert_server_count(server, level);
    session_reset_counts(s);             /* loading the model has counted reads and copies */
}

/* The tiers of a layer's experts. ASKED: hot and cold ones, which the expert server counts. */
typedef enum layer_tiers { ASKED, ALL_HOT, ALL_COLD } layer_tiers;

static layer_tiers tiers_of(const session *s, int l)
{
    const expert_server *server = forward_expert_server(s->runner->f);
    if (l >= engine_gpu_layers(s->e)) return ALL_COLD;
    return server && expert_server_has_cold(server, l) ? ASKED : ALL_HOT;
}

/* Adds the layers without questions, whose counts follow from the number of tokens. */
static void add_other_layers(perf_counts *c, const session *s)
{
    const uint64_t slots = c->tokens * (uint64_t)c->n_used;
    for (int l = 0; l < c->n_layer; l++) {
        const expert_bank *bank = s->e->m->layers[l].experts;
        const uint64_t bytes = slots * expert_slabs_bytes(bank);
        if (bank->n_expert == 0) continue;
        switch (tiers_of(s, l)) {
        case ASKED:
            break;
        case ALL_HOT:
            c->hot += slots;
            c->vram_bytes += bytes;
            break;
        case ALL_COLD:
            c->cold += slots;
            c->on_cpu += slots;
            c->cpu_bytes += bytes;
            break;
        }
    }
}

perf_counts session_perf(const session *s)
{
    expert_server_stats h;
    store_stats st;
    session_counts(s, &h, &st);
    const frame_table_stats r = session_vram_moves(s);
    perf_counts c = {
        .n_layer = s->e->m->hp.n_layer, .n_used = s->e->m->hp.n_expert_used,
        .tokens = s->runner->n_single, .prompt_tokens = s->runner->n_batched,
        .calls = h.questions + h.quiet, .quiet = h.quiet, .hot = h.hot,
        .cold = h.on_cpu + h.down_fetched + h.all_fetched, .on_cpu = h.on_cpu,
        .down_fetched = h.down_fetched, .all_fetched = h.all_fetched,
        .vram_bytes = h.hot_bytes, .cpu_bytes = h.cpu_bytes, .fetch_bytes = h.pull_bytes,
        .upload_bytes = r.upload_bytes,
        .drive_bytes = st.read_bytes, .ask_s = h.ask_s, .cold_s = h.cpu_s, .late_s = h.wait_s,
        .fetch_s = h.pull_s, .overlap_least_s = h.hidden_least_s,
        .overlap_most_s = h.hidden_most_s, .join_s = forward_waited(s->runner->f), .late = h.late,
        .not_locked = h.not_locked, .failed_uploads = r.failures, .refused = r.refused,
        .frame_hits = r.hits, .frame_misses = r.misses, .uploads = r.uploads, .swaps = r.swaps,
        .evictions = r.evictions, .ram_hits = st.hits, .ram_misses = st.misses,
        .ram_wait_s = st.wait_s,
    };
    add_other_layers(&c, s);
    return c;
}

int session_perf_layers(const session *s, perf_layer *layers, int cap)
{
    const expert_server *server = forward_expert_server(s->runner->f);
    const perf_layer *asked = server ? expert_server_layers(server) : NULL;
    const uint64_t slots = s->runner->n_single * (uint64_t)s->e->m->hp.n_expert_used;
    const int n = min_int(s->e->m->hp.n_layer, cap);
    if (s->runner->perf != PERF_FULL) return 0;
    for (int l = 0; l < n; l++) {
        const layer_tiers tiers = tiers_of(s, l);
        if (tiers == ASKED) layers[l] = asked[l];
        else if (s->e->m->layers[l].experts->n_expert == 0) layers[l] = (perf_layer){ 0 };
        else layers[l] = (perf_layer){ .hot = tiers == ALL_HOT ? slots : 0,
                                       .cold = tiers == ALL_COLD ? slots : 0 };
    }
    return n;
}

void session_pause_postfetch(session *s, bool paused)
{
    expert_server *server = forward_expert_server(s->runner->f);
    if (server) expert_server_pause_fetching(server, paused);
}

/* ---- rewinds, files -------------------------------------------------------------------------- */

void session_snapshot(session *s)
{
    (void)settle(s->runner, NULL);
    state_snapshot(s->st, s->e->team);
}

/* A broken state cannot stay at its position: it is rewound to a snapshot, or to 0. */
static int most_kept(const session *s, int n_keep)
{
    return is_lost(s) ? 0 : s->broken ? min_int(n_keep, session_pos(s) - 1) : n_keep;
}

int session_rewind(session *s, int n_keep)
{
    (void)settle(s->runner, NULL);
    const int kept = state_rewind(s->st, most_kept(s, n_keep));
    s->broken = false;                   /* state and position agree again */
    s->n_recovery = recoveries(s);
    return kept;
}

int session_rewind_target(const session *s, int n_keep)
{
    (void)settle(s->runner, NULL);
    return state_rewind_target(s->st, most_kept(s, n_keep));
}

static state_tag tag_of(const session *s)
{
    const model *m = s->e->m;
    state_tag tag = { .model = model_fingerprint(m) };
    const rope_tables *rope = &s->e->rope;
    for (int i = 0; i < rope->n_table; i++)              /* keys are stored rotated */
        tag.model = tag.model * 31 + str_hash((str_view){ (const char *)rope->freq[i],
                                              (size_t)rope->dim[i] / 2 * sizeof(double) });
    if (m->hp.n_expert_used != m->own_experts_used)      /* not the file's own number */
        tag.model = tag.model * 31 + (uint64_t)m->hp.n_expert_used;
    if (skips_missing(s)) tag.model = tag.model * 31 + 1;
    str_view name = { "", 0 };
    (void)gguf_get_str(&name, m->file, "general.name", NULL);
    str_escape(tag.arch, sizeof tag.arch, str_from(model_arch_name(m->hp.arch)));
    str_escape(tag.name, sizeof tag.name, name);
    return tag;
}

int session_save(const session *s, const char *path, str_view extra, err_ctx *err)
{
    const state_tag tag = tag_of(s);
    const int rc = session_check_state(s, err);
    return rc < 0 ? rc : state_save(s->st, path, &tag, s->ids, extra, err);
}

int session_load(session *s, const char *path, char **extra, size_t *n_extra, err_ctx *err)
{
    const state_tag tag = tag_of(s);
    (void)settle(s->runner, NULL);
    const int rc = state_load(s->st, path, &tag, s->ids, s->opt.ctx, extra, n_extra, err);
    if (rc == 0) {
        s->broken = false;
        s->n_recovery = recoveries(s);
    }
    return rc;
}

/* ---- kept states ----------------------------------------------------------------------------- */

pool *session_team(const session *s) { return s->e->team; }

state *session_state(session *s)
{
    (void)settle(s->runner, NULL);
    return s->st;
}

state_tag session_tag(const session *s)
{
    state_tag tag = tag_of(s);
    tag.model = tag.model * 31 + (engine_on_gpu(s->e) ? 2 : s->e->opt.exact ? 1 : 0);
    return tag;
}

void session_replaced(session *s, const int32_t *ids, int n)
{
    assert(n == session_pos(s));
    memmove(s->ids, ids, (size_t)n * sizeof *ids);
    s->broken = false;
    s->n_recovery = recoveries(s);
}
