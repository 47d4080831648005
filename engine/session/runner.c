/* runner.c - takes tokens in: cuts them into chunks, has forward_tiered.c compute these, and undoes
 * what a stop or a failure left half done. */
#include "engine/session/session_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "engine/engine_stats.h"
#include "engine/session/session_bytes.h"

/* ---- life ------------------------------------------------------------------------------------ */

static int lend_frame(void *ctx, void **block, err_ctx *err)
{
    return vram_cache_lend(ctx, block, err);
}

static void return_frame(void *ctx, void *block) { vram_cache_return(ctx, block); }

/* Memory for all pages of all sessions, for layers with full attention in VRAM. */
static int make_pages(runner *r, const state_options *so, err_ctx *err)
{
    int rc = 0;
    if (r->e->cache)
        r->frames = (page_source){ r->e->cache, vram_cache_frame_bytes(r->e->cache), lend_frame,
                                   return_frame };
    for (int i = 0; i < so->in.n && rc == 0; i++) {
        const session_pages n = session_pages_of(r->e, so, r->opt.n_sharing, i);
        const page_pool_options o = { .where = so->in.of[i].where, .page_bytes = n.bytes,
                                      .n_page = n.n, .n_own = n.n_own,
                                      .more = n.n_own < n.n ? &r->frames : NULL };
        if (n.n > 0) rc = page_pool_create(&r->pages[i], &o, err);
    }
    return rc;
}

static int make_versions(runner *r, const layer_segments *in, err_ctx *err)
{
    const int n_version = r->opt.n_version, n = n_version + (engine_keeps_before(r->e) ? 1 : 0);
    int rc = 0;
    if (recurrent_bytes(r->e->m) == 0) return 0;
    for (; r->n_spare < n && rc == 0; r->n_spare += rc == 0)
        rc = recurrent_create(&r->spares[r->n_spare], r->e->m, in, err);
    return rc < 0 || n_version == 0 ? rc : kept_inputs_create(&r->kept, r->e->m, in, err);
}

int runner_create(runner **out, engine *e, const session_options *o, err_ctx *err)
{
    runner *r = mem_zalloc(sizeof *r);
    int rc = 0;
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "runner: %zu bytes", sizeof *r);
    r->n_holder = 1;
    r->e = e;
    r->opt = *o;
    r->logits = mem_array((size_t)e->m->hp.n_vocab, sizeof *r->logits);
    r->ids = mem_array((size_t)o->chunk, sizeof *r->ids);
    if (!r->logits || !r->ids)
        rc = err_set(err, ERR_NOMEM, "runner: a chunk of %d tokens", o->chunk);
    /* in the same spaces as those of the sessions */
    const state_options so = session_state_options(e, o);
    if (rc == 0) rc = make_pages(r, &so, err);
    if (rc == 0) rc = make_versions(r, &so.in, err);
    const batch_sizes most = { o->chunk, session_pass_tokens(o) };
    if (rc == 0) rc = forward_create(&r->f, e, runner_skips_missing(r), most,
                                     session_inner_tokens(o), err);
    if (rc == 0) *out = r;
    else runner_release(r);
    return rc;
}

void runner_release(runner *r)
{
    if (--r->n_holder > 0) return;
    forward_free(r->f);
    while (r->n_spare > 0) recurrent_free(r->spares[--r->n_spare]);
    kept_inputs_free(r->kept);
    for (int i = 0; i < SEGMENTS_MOST; i++) page_pool_free(r->pages[i]);
    mem_free(r->ids);
    mem_free(r->logits);
    mem_free(r);
}

/* ---- completed and failed tokens ------------------------------------------------------------- */

/* Whether a token can fail half-way, because experts are read while it is computed. */
static bool can_fail(const runner *r)
{
    return r->e->store && expert_store_kind(r->e->store) == STORE_CACHED;
}

/* Whether a batch of n tokens writes its recurrent state to a spare version. After a stop or a
 * failure only some layers have taken in the tokens under way: keys and values beyond the position
 * do no harm, but the recurrent state before them has to stay. A single token is never stopped, and
 * in place it is faster on the CPU. */
static bool uses_spare(const session *s, int n, bool watched)
{
    const engine *e = s->r->e;
    if (recurrent_bytes(e->m) == 0 || !engine_keeps_before(e)) return false;
    return (n > 1 && (watched || engine_on_gpu(e))) || can_fail(s->r);
}

static batch_row row_of(const session *s, int first, int n, bool spare)
{
    runner *r = s->r;
    assert(!spare || r->n_spare > 0);
    return (batch_row){ .st = s->st, .next = spare ? r->spares[--r->n_spare]
                                                   : state_recurrent(s->st),
                        .pos = session_pos(s), .first = first, .n = n };
}

int runner_recoveries(const runner *r)
{
    return engine_on_gpu(r->e) ? gpu_recoveries(r->e->devices[0].g) : 0;
}

/* The device reports late that the host did not
 * answer in time, so earlier results may be wrong, too: every session has to begin again. */
int runner_recover(const runner *r, int rc)
{
    for (int i = 0; i < r->e->n_device; i++)
        if (gpu_wait(r->e->devices[i].g, NULL) < 0) gpu_recover(r->e->devices[i].g);
    return rc;
}

/* A batch of n tokens has been taken in. */
static void count_tokens(runner *r, int n_row, int n, bool is_pass)
{
    r->n_pass += is_pass;
    r->n_pass_row += is_pass ? (uint64_t)n_row : 0;
    r->n_single += is_pass && n == 1;
    *(is_pass ? &r->n_taken : &r->n_batched) += (uint64_t)n;
}

/* A row of the session has ended. rc < 0: it failed, and its tokens are not taken in. Returns the
 * version that is free now, or NULL: there was one only. */
static recurrent *end_row(session *s, const int32_t *ids, const batch_row *row, int rc)
{
    const bool spare = row->next != state_recurrent(s->st);
    if (rc < 0) {
        mtp_trim(s, row->pos);
        state_trim(s->st);
        s->broken |= !spare && recurrent_bytes(s->r->e->m) > 0;      /* until a rewind */
        return spare ? row->next : NULL;
    }
    memcpy(s->ids + session_pos(s), ids, (size_t)row->n * sizeof *s->ids);
    state_advance(s->st, row->n);
    return spare ? state_exchange_recurrent(s->st, row->next) : NULL;
}

static void give_spare(runner *r, recurrent *version)
{
    if (version) r->spares[r->n_spare++] = version;
}

static int end_token(session *s, int32_t id, const batch_row *row, int rc)
{
    give_spare(s->r, end_row(s, &id, row, rc));
    if (rc < 0) return runner_recover(s->r, rc);
    count_tokens(s->r, 1, 1, true);
    return 0;
}

/* The version before a row is kept for session_rewind. */
static void keep_version(session *s, recurrent *before, const batch_row *row)
{
    s->before = before;
    s->before_pos = row->pos;
    s->kept_first = row->first;
    s->r->kept_of[s->r->n_kept_of++] = s;
}

/* Rows of a batch have ended; ids: of all rows. */
static void end_rows(runner *r, session *const *s, const batch_row *rows, const bool *keep,
                     int n_row, const int32_t *ids, bool is_pass, int rc)
{
    const batch_row *last = &rows[n_row - 1];
    if (rc == 0) count_tokens(r, n_row, last->first + last->n, is_pass);
    for (int i = 0; i < n_row; i++) {
        recurrent *before = end_row(s[i], ids + rows[i].first, &rows[i], rc);
        if (before && keep[i] && rc == 0) keep_version(s[i], before, &rows[i]);
        else give_spare(r, before);
    }
}

/* The same for the pass in flight. */
static int end_taken(runner *r, int rc)
{
    taken_pass *t = &r->taken;
    t->in_flight = false;
    t->rc = rc;
    end_rows(r, t->s, t->rows, t->keep, t->n_row, t->ids, true, rc);
    return rc < 0 ? runner_recover(r, rc) : 0;
}

int runner_settle(runner *r, err_ctx *err)
{
    return r->taken.in_flight ? end_taken(r, forward_wait(r->f, err)) : 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Also takes the pages that they need, and gives back the version before the last batch. */
static int check_tokens(session *s, const int32_t *ids, int n, err_ctx *err)
{
    const int n_vocab = session_vocab(s), room = session_ctx(s) - session_pos(s);
    const int rc = session_check_state(s, err);
    if (rc < 0) return rc;
    if (n > room)
        return err_set(err, ERR_RANGE, "%d tokens do not fit: the context of %d has room for %d", n,
                       session_ctx(s), room);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(err, ERR_RANGE, "token id %" PRId32 " is not within 0..%d", ids[i],
                           n_vocab - 1);
    runner_forget_version(s);
    return state_reserve(s->st, session_pos(s) + n, err);
}

/* Converts the progress of a chunk, in layers, to that of the call, in tokens. */
typedef struct chunk_watch {
    progress_fn *watch;                  /* or NULL */
    void *ctx;
    int done, n_chunk, n;
} chunk_watch;

static bool watch_chunk(void *ctx, double layers, double n_layer)
{
    const chunk_watch *w = ctx;
    return w->watch(w->ctx, w->done + w->n_chunk * layers / n_layer, w->n);
}

/* Copies the rows' ids and gives each row its place in the batch and a version to write. If there
 * are fewer spare versions than rows and the batch fails, its sessions are broken until they are
 * rewound. Returns the number of tokens. */
static int place_rows(batch_row *list, session **s, bool *keep, int32_t *ids, const runner_row *rows,
                      int n_row, bool spare)
{
    int n = 0;
    for (int i = 0; i < n_row; n += rows[i++].n) {
        s[i] = rows[i].s;
        keep[i] = rows[i].keep;
        memcpy(ids + n, rows[i].ids, (size_t)rows[i].n * sizeof *ids);
        list[i] = row_of(s[i], n, rows[i].n, spare || (keep[i] && s[i]->r->kept));
    }
    return n;
}

/* Checked rows, as one batch. */
static int eval_rows(runner *r, const runner_row *rows, int n_row, chunk_watch *w, err_ctx *err)
{
    batch_row list[RUNNER_MOST_ROWS];
    session *s[RUNNER_MOST_ROWS];
    bool keep[RUNNER_MOST_ROWS];
    batch b = { .ids = r->ids, .rows = list, .n_row = n_row };
    for (int i = 0; i < n_row; i++) {
        if (rows[i].keep) b.keep = r->kept;
        b.n += rows[i].n;
    }
    if (w && w->watch && b.n > 1 && engine_keeps_before(r->e)) {
        b.watch = watch_chunk;
        b.watch_ctx = w;
    }
    b.is_pass = b.n == 1;
    const bool spare = n_row <= r->n_spare && uses_spare(rows->s, b.n, b.watch != NULL);
    (void)place_rows(list, s, keep, r->ids, rows, n_row, spare);
    const int rc = forward_eval(r->f, &b, err);
    end_rows(r, s, list, keep, n_row, r->ids, b.is_pass, rc);
    return rc < 0 ? runner_recover(r, rc) : 0;
}

/* Logits of n tokens of the last batch. */
static int read_logits(runner *r, float *logits, int first, int n, err_ctx *err)
{
    const int rc = n > 0 ? forward_logits(r->f, logits, first, n, err) : 0;
    return rc < 0 ? runner_recover(r, rc) : 0;
}

/* The rows' logits, neighbours together. */
static int read_rows(runner *r, float *logits, const runner_row *rows, int n_row, err_ctx *err)
{
    const size_t n_vocab = (size_t)r->e->m->hp.n_vocab;
    int first = 0, n = 0, end = 0, rc = 0;
    for (int i = 0; i < n_row && rc == 0; i++) {
        end += rows[i].n;
        if (end - rows[i].n_logits != first + n) {
            rc = read_logits(r, logits, first, n, err);
            logits += (size_t)n * n_vocab;
            first = end - rows[i].n_logits;
            n = 0;
        }
        n += rows[i].n_logits;
    }
    return rc < 0 ? rc : read_logits(r, logits, first, n, err);
}

/* The first rows of a batch: all on the CPU; on a GPU one, or as many as have up to GPU_FEW
 * tokens. */
static int rows_together(const runner *r, const runner_row *rows, int n_row)
{
    int n = 0, i = 0;
    if (!engine_on_gpu(r->e)) return n_row;
    do n += rows[i++].n;
    while (i < n_row && n + rows[i].n <= GPU_FEW);
    return i;
}

/* Keeps the vectors of the last batch's rows, which have been taken in. */
static void keep_rows(const runner_row *rows, int n_row)
{
    for (int i = 0, first = 0; i < n_row; first += rows[i++].n)
        mtp_keep(rows[i].s, first, session_pos(rows[i].s) - rows[i].n, rows[i].n);
}

static void forget_versions(runner *r)
{
    while (r->n_kept_of > 0) runner_forget_version(r->kept_of[0]);
}

int runner_eval(runner *r, const runner_row *rows, int n_row, float *logits, err_ctx *err)
{
    int rc = 0, n = 0, n_keep = 0;
    assert(n_row >= 0 && n_row <= RUNNER_MOST_ROWS);
    for (int i = 0; i < n_row; i++) {
        assert(rows[i].s->r == r && rows[i].n_logits <= rows[i].n);
        n_keep += rows[i].keep;
        if ((rc = check_tokens(rows[i].s, rows[i].ids, rows[i].n, err)) < 0) return rc;
        n += rows[i].n;
    }
    assert(n <= r->opt.chunk && n_keep <= r->opt.n_version && (n_keep == 0 || n <= KEPT_TOKENS));
    for (int i = 0; i < n_row; i++)
        if ((rc = mtp_before(rows[i].s, rows[i].ids[0], err)) < 0) return rc;
    if (n_keep > 0) forget_versions(r);
    while (n_row > 0 && rc == 0) {
        const int together = rows_together(r, rows, n_row);
        rc = eval_rows(r, rows, together, NULL, err);
        if (rc == 0) rc = read_rows(r, logits, rows, together, err);
        if (rc == 0) keep_rows(rows, together);
        for (const runner_row *end = rows + together; rows < end; rows++, n_row--)
            logits += (size_t)rows->n_logits * (size_t)r->e->m->hp.n_vocab;
    }
    return rc;
}

/* ---- going back ------------------------------------------------------------------------------ */

void runner_forget_version(session *s)
{
    runner *r = s->r;
    int i = 0;
    if (!s->before) return;
    give_spare(r, s->before);
    s->before = NULL;
    while (r->kept_of[i] != s) i++;
    r->kept_of[i] = r->kept_of[--r->n_kept_of];
}

/* Its last version gets the state at n_keep, from the one before and the inputs. */
void runner_go_back(session *s, int n_keep)
{
    runner *r = s->r;
    if (n_keep == session_pos(s)) return;
    recurrent *last = state_exchange_recurrent(s->st, s->before);
    s->before = last;
    state_go_back(s->st, n_keep);
    if (n_keep == s->before_pos) {
        runner_forget_version(s);
        return;
    }
    const batch_row row = { .st = s->st, .next = last, .pos = s->before_pos,
                            .first = s->kept_first, .n = n_keep - s->before_pos };
    const int rc = forward_again(r->f, &row, r->kept, NULL);
    s->before = state_exchange_recurrent(s->st, last);
    s->broken = rc < 0 && runner_recover(r, rc) < 0;
}

/* On a GPU all chunks but the last end at a multiple of GPU_DELTA_CHUNK, so that the bits of
 * recurrent layers do not depend on how a session's tokens were cut. left: tokens to take in. */
int session_first_chunk(const session *s, int left)
{
    const int n = min_int(left, session_chunk(s));
    if (n == left || n < 2 * GPU_DELTA_CHUNK || !engine_on_gpu(s->r->e) ||
        s->r->e->m->hp.ssm_n_v_head == 0)
        return n;
    return n - (session_pos(s) + n) % GPU_DELTA_CHUNK;
}

int session_eval(session *s, const int32_t *ids, int n, float *logits, int n_row,
                 progress_fn *watch, void *ctx, err_ctx *err)
{
    const size_t n_vocab = (size_t)session_vocab(s);
    const int wanted = n - n_row;        /* logits from this token on */
    int rc;
    assert(n >= 0 && n_row >= 0 && n_row <= n);
    if ((rc = check_tokens(s, ids, n, err)) < 0) return rc;
    for (int done = 0; done < n;) {
        chunk_watch w = { watch, ctx, done, session_first_chunk(s, n - done), n };
        const runner_row row = { .s = s, .ids = ids + done, .n = w.n_chunk };
        const bool go_on = !watch || watch(ctx, done, n);
        const int pos = session_pos(s);
        rc = go_on ? mtp_before(s, row.ids[0], err) : ERR_STOPPED;
        if (rc == 0) rc = eval_rows(s->r, &row, 1, &w, err);
        if (!go_on) state_trim(s->st);
        if (rc == ERR_STOPPED) return err_set(err, rc, "stopped after %d of %d tokens", done, n);
        if (rc < 0) return rc;
        const int first = max_int(wanted, done), end = done + w.n_chunk;
        if (engine_on_gpu(s->r->e) && watch) watch(ctx, end, n);     /* the next call may stop */
        if (first < end &&
            (rc = read_logits(s->r, logits + (size_t)(first - wanted) * n_vocab, first - done,
                              end - first, err)) < 0)
            return rc;
        if ((rc = mtp_after(s, row.ids, pos, row.n, err)) < 0) return rc;
        done = end;
    }
    return 0;
}

/* ---- single tokens --------------------------------------------------------------------------- */

int session_next(session *s, int32_t *next, int32_t id, err_ctx *err)
{
    int rc = check_tokens(s, &id, 1, err);
    if (rc < 0) return rc;
    const batch_row row = row_of(s, 0, 1, uses_spare(s, 1, false));
    rc = forward_next(s->r->f, next, &row, id, s->r->logits, err);
    if (rc == 0) mtp_keep(s, 0, row.pos, 1);
    return end_token(s, id, &row, rc);
}

bool runner_inner_begin(runner *r) { return forward_inner_begin(r->f); }
void runner_inner_end(runner *r)
{
    (void)runner_settle(r, NULL);
    forward_inner_end(r->f);
}

int runner_most_taken(const runner *r)
{
    return min_int(min_int(RUNNER_MOST_ROWS, r->opt.chunk), forward_most_taken(r->f));
}

int runner_most_drafting(const runner *r)
{
    return r->opt.n_version == 0 || r->kept ? r->opt.n_version : RUNNER_MOST_ROWS;
}

bool runner_keeps(const runner *r) { return r->kept != NULL; }
draft_times *runner_draft_times(runner *r) { return &r->times; }

int runner_take(runner *r, const runner_row *rows, int n_row, int *failed, err_ctx *err)
{
    taken_pass *t = &r->taken;
    int n = 0, n_keep = 0, rc;
    for (*failed = 0; *failed < n_row; ++*failed) {
        const runner_row *row = &rows[*failed];
        assert(row->s->r == r);
        if ((rc = check_tokens(row->s, row->ids, row->n, err)) < 0) return rc;
        n += row->n;
        n_keep += row->keep;
    }
    *failed = -1;
    assert(n >= 1 && n <= runner_most_taken(r));
    assert(n_keep <= r->opt.n_version && (n_keep == 0 || n <= KEPT_TOKENS));
    if (n_keep > 0) forget_versions(r);
    const bool spare = n_row <= r->n_spare - n_keep && uses_spare(rows->s, 1, false);
    t->n_row = n_row;
    (void)place_rows(t->rows, t->s, t->keep, t->ids, rows, n_row, spare);
    rc = forward_take(r->f, t->rows, n_row, t->ids, n_keep > 0 ? r->kept : NULL, err);
    if (rc < 0) return end_taken(r, rc);
    for (int i = 0; i < n_row; i++)
        mtp_keep(t->s[i], t->rows[i].first, t->rows[i].pos, t->rows[i].n);
    t->in_flight = true;
    t->rc = 0;
    return 0;
}

int session_take(session *s, int32_t id, err_ctx *err)
{
    const runner_row row = { .s = s, .ids = &id, .n = 1 };
    int failed;
    return runner_take(s->r, &row, 1, &failed, err);
}

static const batch_row *taken_row_of(const session *s)
{
    const taken_pass *t = &s->r->taken;
    int i = 0;
    while (i < t->n_row && t->s[i] != s) i++;
    assert(i < t->n_row);
    return &t->rows[i];
}

int runner_pick(session *s, int t, int32_t *next, sampler *smp, err_ctx *err)
{
    runner *r = s->r;
    sampler_source source;
    const batch_row *row = taken_row_of(s);
    const int at = row->first + t;
    int rc = 1;                          /* the logits are needed in RAM */
    assert(t >= 0 && t < row->n);
    if (r->taken.rc < 0) return err_set(err, r->taken.rc, "the pass of this token has failed");
    if (forward_source(r->f, at, &source)) rc = sampler_pick_from(next, smp, &source, err);
    if (r->taken.in_flight) {            /* what the sampler has read of the pass proves its end */
        const int ended = rc == 0 ? end_taken(r, 0) : runner_settle(r, rc > 0 ? err : NULL);
        if (rc >= 0 && ended < 0) return ended;
    }
    if (rc <= 0) return rc;
    rc = read_logits(r, r->logits, at, 1, err);
    return rc < 0 ? rc : sampler_pick(next, smp, r->logits, err);
}

void runner_ask(session *s, int t, const sampler *smp)
{
    sampler_source source;
    if (s->r->taken.rc == 0 && forward_source(s->r->f, taken_row_of(s)->first + t, &source))
        (void)sampler_ask(smp, &source, NULL);
}

int session_pick(session *s, int32_t *next, sampler *smp, err_ctx *err)
{
    return runner_pick(s, 0, next, smp, err);
}

int session_profile(session *s, struct gpu_span *spans, int cap, const int32_t *ids, int n,
                    double *bandwidth, err_ctx *err)
{
    const runner *r = s->r;
    int rc;
    assert(n >= 1 && n <= r->opt.chunk);
    if (!engine_on_gpu(r->e))
        return err_set(err, ERR_UNSUPPORTED, "profiles need a GPU: --device cuda");
    if ((rc = check_tokens(s, ids, n, err)) < 0 ||
        (rc = gpu_read_bandwidth(bandwidth, r->e->devices[0].g, err)) < 0)
        return rc;
    const batch_row row = row_of(s, 0, n, false);
    return forward_profile(r->f, spans, cap, &row, ids, err);
}
