/* session.c - one conversation: its state, its tokens, and how a run of them is cut into chunks.
 *
 * Everything is allocated here, at creation; nothing while tokens flow. What happens to a chunk in
 * between is forward_tiered.c's business. What only a call needs, and no conversation keeps, is the
 * bench: sessions beside each other use one, in turn. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "cuda/gpu_measure.h"
#include "engine/engine_internal.h"
#include "engine/engine_stats.h"
#include "engine/session/session_bytes.h"

/* What a session computes with. */
typedef struct bench {
    forward *f;
    float *logits;                       /* [n_vocab], of session_next and session_pick */
    struct { uint64_t singles, in_batches; } seen;       /* tokens since the counts were reset */
    perf_level perf;
    session *taken;                      /* its token was taken and is not known to have ended; or
                                          * NULL */
    int32_t taken_id;
    bool taken_kept;                     /* the recurrent state before that token is in before */
    void *before[RECURRENT_BLOCKS];      /* in their spaces: the recurrent state before the chunk
                                          * under way; NULL: there is none */
} bench;

struct session {
    engine *e;                           /* borrowed */
    session_options opt;
    bench *at;
    bool shares_runner;                  /* the bench is another session's */
    state *st;
    forward_recordings *recordings;
    bool broken;                         /* the recurrent state is that of no position */
    int n_recovery;                      /* gpu_recoveries when the state began: if the device has
                                          * another number, nothing of the state is certain */
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
        return err_set(err, ERR_RANGE, "%d sessions beside one are not within 0..%d", o->n_sharing,
                       SESSION_MAX_SHARING);
    return 0;
}

/* Fills in what the caller left open, and refuses what cannot be. */
static int settle_options(session_options *to, const engine *e, const session_options *o,
                          err_ctx *err)
{
    const int rc = session_check(e->m, o, err);
    if (rc < 0) return rc;
    *to = *o;
    if (to->chunk == 0) to->chunk = engine_on_gpu(e) ? SESSION_GPU_CHUNK : SESSION_CHUNK;
    if (to->chunk > to->ctx) to->chunk = to->ctx;
    return 0;
}

static state_options state_options_of(const engine *e, const session_options *o)
{
    return (state_options){
        .ctx = o->ctx, .slack = o->chunk, .kv = o->kv, .n_snapshot = o->n_snapshot,
        .where = e->vram, .n_ram = e->vram ? e->m->hp.n_layer - engine_gpu_layers(e) : 0,
    };
}

/* Whether a chunk can be taken back: what is all in VRAM is not stopped half-way. */
static bool keeps_before(const engine *e) { return !engine_on_gpu(e) || e->store; }

int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err)
{
    const model *m = e->m;
    session_options opt;
    int rc = settle_options(&opt, e, o, err);
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

/* ---- tokens that end, or do not
 * ---------------------------------------------------------------- */

/* Whether a token can fail half-way, because experts are read while it is computed. */
static bool can_fail(const session *s)
{
    return s->e->store && expert_store_kind(s->e->store) == STORE_CACHED;
}

/* Stopped or failed half-way, some layers have seen the tokens under way and some have not: keys
 * and values beyond the position do not matter, the recurrent state is put back. */
static void copy_recurrent(session *s, bool back)
{
    for (int i = 0; i < RECURRENT_BLOCKS; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        if (b.bytes > 0)
            b.where->copy(b.where, back ? b.at : s->at->before[i], back ? s->at->before[i] : b.at,
                          (size_t)b.bytes);
    }
}

/* Before n tokens: whether they can be taken back. A single token is not stopped half-way: it is
 * short, and a copy of the state would be a good part of it. */
static bool remember(session *s, int n, bool watched)
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

/* The device reports late that the host did not answer in time, so earlier results may be wrong,
 * too. From here on it computes again, and every session has to begin anew. */
static int failed(const session *s, int rc)
{
    if (engine_on_gpu(s->e) && gpu_wait(s->e->device, NULL) < 0) gpu_recover(s->e->device);
    return rc;
}

static int undo(session *s, bool kept, int rc)
{
    if (kept) copy_recurrent(s, true);
    else s->broken = recurrent_bytes(s->e->m) > 0;       /* only going back helps */
    return failed(s, rc);
}

static void advance(session *s, const int32_t *ids, int n)
{
    memcpy(s->ids + session_pos(s), ids, (size_t)n * sizeof *s->ids);
    state_advance(s->st, n);
    if (n == 1) s->at->seen.singles++;
    else s->at->seen.in_batches += (uint64_t)n;
}

/* The taken token has ended: well, or with the failure rc, and then it was not taken. */
static int end_taken(bench *at, int rc)
{
    session *s = at->taken;
    at->taken = NULL;
    if (rc < 0) return undo(s, at->taken_kept, rc);
    advance(s, &at->taken_id, 1);
    return 0;
}

/* Waits for a token that session_take() started and session_pick() has not ended, of any session of
 * the bench: the next token must not write the cursor before the device has read this one's. */
static int settle(bench *at, err_ctx *err)
{
    return at->taken ? end_taken(at, forward_wait(at->f, err)) : 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Copies within the spaces: a chunk is too short to move the state somewhere else and back. */
static int make_before(session *s, err_ctx *err)
{
    int rc = 0;
    if (!keeps_before(s->e)) return 0;
    for (int i = 0; i < RECURRENT_BLOCKS && rc == 0; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        if (b.bytes > 0)
            rc = b.where->alloc(&s->at->before[i], b.where, b.bytes, MEM_DENSE,
                                "a copy of the recurrent state", err);
    }
    return rc;
}

/* Whether the choice of experts is another one than the model's. */
static bool skips_missing(const session *s)
{
    return s->e->cache && s->opt.skip_missing;
}

static int make_forward(session *s, err_ctx *err)
{
    const engine *e = s->e;
    postfetch_options post = e->post;
    post.off |= skips_missing(s);     /* as good as nothing is left to fetch */
    forward_parts parts = {
        .host = { .m = e->m, .w = e->w, .o = &e->ops_table, .rope = &e->rope,
                  .store = e->store, .ahead = e->ahead, .usage = e->usage },
        .postfetch = &post,
    };
    if (engine_on_gpu(e))
        parts.gpu = (gpu_parts){
            .g = e->device, .m = e->m, .w = e->on_gpu, .rope = &e->rope,
            .n_layer = engine_gpu_layers(e), .head = e->on_gpu->head.data != NULL,
            .store = e->store, .cache = e->cache, .p = e->p, .skip_missing = skips_missing(s),
            /* whatever is decided anew, and wherever experts are, results stay */
            .contract = e->post.frozen,
        };
    return forward_create(&s->at->f, &parts, s->opt.chunk, err);
}

/* At first, or NULL: with a bench of its own. */
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
    s->at = first ? first->at : mem_zalloc(sizeof *s->at);
    s->ids = mem_array((size_t)opt->ctx, sizeof *s->ids);
    if (s->at && !first)
        s->at->logits = mem_array((size_t)e->m->hp.n_vocab, sizeof *s->at->logits);
    if (!s->ids || !s->at || !s->at->logits)
        rc = err_set(err, ERR_NOMEM, "session: %d tokens", opt->ctx);
    const state_options so = state_options_of(e, opt);
    if (rc == 0) rc = state_create(&s->st, e->m, &so, err);
    if (rc == 0 && !first) rc = make_before(s, err);
    if (rc == 0 && !first) rc = make_forward(s, err);
    if (rc == 0) rc = forward_recordings_create(&s->recordings, s->at->f, s->st, err);
    if (rc == 0) *out = s;
    else session_free(s);
    return rc;
}

int session_create(session **out, engine *e, const session_options *o, err_ctx *err)
{
    session_options opt;
    *out = NULL;
    const int rc = settle_options(&opt, e, o, err);
    return rc < 0 ? rc : create(out, e, NULL, &opt, err);
}

int session_create_sharing(session **out, session *first, err_ctx *err)
{
    *out = NULL;
    return create(out, first->e, first, &first->opt, err);
}

static void free_bench(session *s)
{
    bench *at = s->at;
    if (!at || s->shares_runner) return;
    forward_free(at->f);
    for (int i = 0; i < RECURRENT_BLOCKS && s->st; i++) {
        const recurrent_block b = recurrent_block_of(state_recurrent(s->st), i);
        b.where->free(b.where, at->before[i], b.bytes);
    }
    mem_free(at->logits);
    mem_free(at);
}

void session_free(session *s)
{
    if (!s) return;
    if (s->at) (void)settle(s->at, NULL);
    forward_recordings_free(s->recordings);
    free_bench(s);
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
    (void)settle(s->at, NULL);
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

/* What a chunk tells the session's watcher. */
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
    const bool kept = remember(s, b.n, b.watch != NULL);
    forward_select(s->at->f, s->recordings);
    const int rc = forward_eval(s->at->f, &b, err);
    if (rc < 0) return undo(s, kept, rc);
    advance(s, ids, b.n);
    return 0;
}

/* Of so many tokens that are left. Where others follow on a GPU, recurrent layers get whole chunks
 * up to the end: then it does not show in their bits where chunks of a session were cut. */
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
        if (engine_on_gpu(s->e) && watch) watch(ctx, done, n);   /* what it returns counts at the
                                                                  * next chunk */
        if (first < done &&
            (rc = forward_logits(s->at->f, logits + (size_t)(first - wanted) * n_vocab,
                                 done - first,
                                 err)) < 0)
            return failed(s, rc);
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
    const bool kept = remember(s, 1, false);
    forward_select(s->at->f, s->recordings);
    rc = forward_next(s->at->f, next, id, session_pos(s), s->at->logits, err);
    if (rc < 0) return undo(s, kept, rc);
    advance(s, &id, 1);
    return 0;
}

int session_take(session *s, int32_t id, err_ctx *err)
{
    int rc = check_tokens(s, &id, 1, err);
    if (rc < 0) return rc;
    const bool kept = remember(s, 1, false);
    forward_select(s->at->f, s->recordings);
    if ((rc = forward_take(s->at->f, id, session_pos(s), err)) < 0) return undo(s, kept, rc);
    s->at->taken = s;
    s->at->taken_id = id;
    s->at->taken_kept = kept;
    return 0;
}

int session_pick(session *s, int32_t *next, sampler *smp, err_ctx *err)
{
    sampler_source there;
    int rc = 1;                          /* the logits are needed here */
    assert(s->at->taken == s);
    if (forward_source(s->at->f, &there)) rc = sampler_pick_from(next, smp, &there, err);
    /* what the sampler has read of the token proves its end */
    const int ended = rc == 0 ? end_taken(s->at, 0) : settle(s->at, rc > 0 ? err : NULL);
    if (rc <= 0) return rc;
    if (ended < 0) return ended;
    rc = forward_logits(s->at->f, s->at->logits, 1, err);
    return rc < 0 ? failed(s, rc) : sampler_pick(next, smp, s->at->logits, err);
}

/* ---- instruments ----------------------------------------------------------------------------- */

int session_profile(session *s, struct gpu_span *spans, int cap, const int32_t *ids, int n,
                    double *bandwidth, err_ctx *err)
{
    int rc;
    assert(n >= 1 && n <= s->opt.chunk);
    if (!engine_on_gpu(s->e))
        return err_set(err, ERR_UNSUPPORTED, "profiles are of the GPU: --device cuda");
    if ((rc = check_tokens(s, ids, n, err)) < 0 ||
        (rc = gpu_read_bandwidth(bandwidth, s->e->device, err)) < 0)
        return rc;
    forward_select(s->at->f, s->recordings);
    return forward_profile(s->at->f, spans, cap, ids, n, session_pos(s), err);
}

void session_counts(const session *s, expert_server_stats *host, store_stats *store)
{
    const expert_server *beside = forward_expert_server(s->at->f);
    *host = beside ? expert_server_counts(beside) : (expert_server_stats){ 0 };
    *store = s->e->store ? expert_store_counts(s->e->store) : (store_stats){ 0 };
}

void session_reset_counts(session *s)
{
    expert_server *beside = forward_expert_server(s->at->f);
    if (beside) expert_server_reset_counts(beside);
    forward_reset_waited(s->at->f);
    forward_reset_split(s->at->f);
    s->at->seen.singles = s->at->seen.in_batches = 0;
    if (s->e->store) expert_store_reset_counts(s->e->store);
    if (s->e->cache) vram_cache_reset_counts(s->e->cache);
}

frame_table_stats session_vram_moves(const session *s)
{
    return s->e->cache ? frame_table_counts(vram_cache_table(s->e->cache))
                        : (frame_table_stats){ 0 };
}

void session_split(const session *s, prompt_split_stats *out) { *out = forward_split(s->at->f); }

void session_count(session *s, perf_level level)
{
    expert_server *beside = forward_expert_server(s->at->f);
    s->at->perf = level;
    if (beside) expert_server_count(beside, level);
    session_reset_counts(s);             /* loading, too, reads and moves */
}

/* Where a layer's experts are if nobody has to be asked: all in VRAM, or all outside it. */
typedef enum one_place { ASKED, ALL_HOT, ALL_COLD } one_place;

static one_place place_of(const session *s, int l)
{
    const expert_server *beside = forward_expert_server(s->at->f);
    if (l >= engine_gpu_layers(s->e)) return ALL_COLD;
    return beside && expert_server_has_cold(beside, l) ? ASKED : ALL_HOT;
}

/* Layers that ask nobody: nothing is counted there, because it follows from the tokens. */
static void add_silent(perf_counts *c, const session *s)
{
    const uint64_t slots = c->tokens * (uint64_t)c->n_used;
    for (int l = 0; l < c->n_layer; l++) {
        const expert_bank *bank = s->e->m->layers[l].experts;
        const uint64_t bytes = slots * expert_slabs_bytes(bank);
        if (bank->n_expert == 0) continue;
        switch (place_of(s, l)) {
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
        .tokens = s->at->seen.singles, .prompt_tokens = s->at->seen.in_batches,
        .calls = h.questions + h.quiet, .quiet = h.quiet, .hot = h.hot,
        .cold = h.on_cpu + h.down_fetched + h.all_fetched, .on_cpu = h.on_cpu,
        .down_fetched = h.down_fetched, .all_fetched = h.all_fetched,
        .vram_bytes = h.hot_bytes, .cpu_bytes = h.cpu_bytes, .fetch_bytes = h.pull_bytes,
        .upload_bytes = r.upload_bytes,
        .drive_bytes = st.read_bytes, .ask_s = h.ask_s, .cold_s = h.cpu_s, .late_s = h.wait_s,
        .fetch_s = h.pull_s, .overlap_least_s = h.hidden_least_s,
        .overlap_most_s = h.hidden_most_s, .join_s = forward_waited(s->at->f), .late = h.late,
        .not_locked = h.not_locked, .failed_uploads = r.failures, .refused = r.refused,
        .frame_hits = r.hits, .frame_misses = r.misses, .uploads = r.uploads, .swaps = r.swaps,
        .evictions = r.evictions, .ram_hits = st.hits, .ram_misses = st.misses,
        .ram_wait_s = st.wait_s,
    };
    add_silent(&c, s);
    return c;
}

int session_perf_layers(const session *s, perf_layer *layers, int cap)
{
    const expert_server *beside = forward_expert_server(s->at->f);
    const perf_layer *asked = beside ? expert_server_layers(beside) : NULL;
    const uint64_t slots = s->at->seen.singles * (uint64_t)s->e->m->hp.n_expert_used;
    const int n = min_int(s->e->m->hp.n_layer, cap);
    if (s->at->perf != PERF_FULL) return 0;
    for (int l = 0; l < n; l++) {
        const one_place where = place_of(s, l);
        if (where == ASKED) layers[l] = asked[l];
        else if (s->e->m->layers[l].experts->n_expert == 0) layers[l] = (perf_layer){ 0 };
        else layers[l] = (perf_layer){ .hot = where == ALL_HOT ? slots : 0,
                                       .cold = where == ALL_COLD ? slots : 0 };
    }
    return n;
}

void session_pause_postfetch(session *s, bool paused)
{
    expert_server *beside = forward_expert_server(s->at->f);
    if (beside) expert_server_pause_fetching(beside, paused);
}

/* ---- going back, files ----------------------------------------------------------------------- */

void session_snapshot(session *s)
{
    (void)settle(s->at, NULL);
    state_snapshot(s->st, s->e->team);
}

/* A broken state cannot stay at its position: it goes back to a snapshot, or to 0. */
static int most_kept(const session *s, int n_keep)
{
    return is_lost(s) ? 0 : s->broken ? min_int(n_keep, session_pos(s) - 1) : n_keep;
}

int session_rewind(session *s, int n_keep)
{
    (void)settle(s->at, NULL);
    const int kept = state_rewind(s->st, most_kept(s, n_keep));
    s->broken = false;                   /* state and position agree again */
    s->n_recovery = recoveries(s);
    return kept;
}

int session_rewind_target(const session *s, int n_keep)
{
    (void)settle(s->at, NULL);
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
    if (m->hp.n_expert_used != m->own_experts_used)      /* another model in effect */
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
    (void)settle(s->at, NULL);
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
    (void)settle(s->at, NULL);
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
