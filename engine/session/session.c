/* session.c - what is remembered of one conversation: its state and its ids.
 *
 * session_create allocates everything. runner.c takes tokens in. */
#include "engine/session/session_internal.h"

#include <assert.h>
#include <string.h>

#include "engine/session/session_bytes.h"

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
    if (o->n_version < 0 || o->n_version > SESSION_MOST_VERSIONS)
        return err_set(err, ERR_RANGE, "%d versions of the state are not within 0..%d",
                       o->n_version, SESSION_MOST_VERSIONS);
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

/* First layers whose state is in VRAM: with the head those of a next-token block, too. */
static int layers_in_vram(const engine *e)
{
    return engine_head_on_gpu(e) ? hparams_layers(&e->m->hp) : engine_gpu_layers(e);
}

state_options session_state_options(const engine *e, const session_options *o)
{
    state_options so = {
        .ctx = o->ctx, .slack = o->chunk, .kv = o->kv, .n_snapshot = o->n_snapshot,
    };
    for (int i = 0; i < e->n_device; i++)
        segments_add(&so.in, layers_in_vram(e), e->devices[i].vram);
    segments_add(&so.in, hparams_layers(&e->m->hp), mem_space_ram());
    return so;
}

session_pages session_pages_of(const engine *e, const state_options *so, int n_sharing, int segment)
{
    const int first = segment_first(&so->in, segment), end = so->in.of[segment].end;
    session_pages p = { .bytes = kv_page_bytes(e->m, so->kv, first, end) };
    if (so->in.of[segment].where->addressable || p.bytes == 0) return (session_pages){ 0 };
    p.n = p.n_own = (1 + (uint64_t)n_sharing) * kv_n_page(e->m, so->ctx, first, end);
    if (!e->cache || e->p->vram_lent == 0 || vram_cache_frame_bytes(e->cache) < p.bytes) return p;
    if (p.n_own > e->p->pages_own) p.n_own = e->p->pages_own;
    return p;
}

int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err)
{
    const model *m = e->m;
    session_options opt;
    int rc = resolve_options(&opt, e, o, err);
    if (rc < 0) return rc;
    const bool host = !engine_head_on_gpu(e), before = engine_keeps_before(e);
    const state_options so = session_state_options(e, &opt);
    const session_bytes b = session_bytes_of(m, &so, &opt, engine_threads(e));
    const batch_sizes most = { opt.chunk, session_pass_tokens(&opt) };
    const uint64_t work =
        engine_on_gpu(e) ? gpu_steps_bytes(e->devices[0].g, m, most) + b.recordings : 0;
    *vram = work;
    for (int l = 0; l < layers_in_vram(e); l++)
        *vram = size_plus(size_plus(*vram, session_bytes_layer(m, &so, &opt, l)),
                          before ? recurrent_layer_bytes(m, l) : 0);
    *bytes = size_plus(size_plus(b.state, work), size_plus(host ? b.host_work : 0,
                                                           before ? b.spare : 0));
    *bytes = size_plus(*bytes, b.ids + b.logits);
    if (*bytes < UINT64_MAX) {
        const session_pages pages = session_pages_of(e, &so, opt.n_sharing, 0);
        *vram -= (pages.n - pages.n_own) * pages.bytes;  /* frames of experts */
        *bytes -= (pages.n - pages.n_own) * pages.bytes;
        return 0;
    }
    return err_set(err, ERR_RANGE, "a session of %d tokens is too large to count", opt.ctx);
}

/* ---- life ------------------------------------------------------------------------------------ */

int session_create_sharing(session **out, runner *r, err_ctx *err)
{
    session *s = mem_zalloc(sizeof *s);
    int rc = 0;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "session: %zu bytes", sizeof *s);
    s->r = r;
    r->n_holder++;
    s->n_recovery = runner_recoveries(r);
    s->ids = mem_array((size_t)r->opt.ctx, sizeof *s->ids);
    if (!s->ids) rc = err_set(err, ERR_NOMEM, "session: %d tokens", r->opt.ctx);
    state_options so = session_state_options(r->e, &r->opt);
    for (int i = 0; i < so.in.n; i++) so.in.of[i].pages = r->pages[i];
    if (rc == 0) rc = state_create(&s->st, r->e->m, &so, err);
    if (rc == 0) rc = mtp_create(s, err);
    if (rc == 0) *out = s;
    else session_free(s);
    return rc;
}

int session_create(session **out, engine *e, const session_options *o, err_ctx *err)
{
    session_options opt;
    runner *r;
    int rc = resolve_options(&opt, e, o, err);
    *out = NULL;
    if (rc < 0 || (rc = runner_create(&r, e, &opt, err)) < 0) return rc;
    rc = session_create_sharing(out, r, err);
    runner_release(r);                   /* the session holds it */
    return rc;
}

void session_free(session *s)
{
    if (!s) return;
    (void)runner_settle(s->r, NULL);
    runner_forget_version(s);
    mtp_free(s);
    state_free(s->st);
    mem_free(s->ids);
    runner_release(s->r);
    mem_free(s);
}

runner *session_runner(const session *s) { return s->r; }
int session_ctx(const session *s) { return s->r->opt.ctx; }
int session_chunk(const session *s) { return s->r->opt.chunk; }
int session_vocab(const session *s) { return s->r->e->m->hp.n_vocab; }
int session_pos(const session *s) { return state_pos(s->st); }
const int32_t *session_ids(const session *s) { return s->ids; }

const int32_t *session_with(session *s, int32_t id)
{
    if (session_pos(s) < session_ctx(s)) s->ids[session_pos(s)] = id;
    return s->ids;
}

int session_common(const session *s, const int32_t *ids, int n)
{
    const int most = min_int(n, session_pos(s));
    int i = 0;
    while (i < most && s->ids[i] == ids[i]) i++;
    return i;
}

int32_t session_likeliest(const session *s, const float *logits)
{
    return ops_largest(&s->r->e->ops_table, logits, s->r->e->m->hp.n_vocab);
}

/* ---- rewinds, files -------------------------------------------------------------------------- */

static bool is_lost(const session *s) { return s->n_recovery != runner_recoveries(s->r); }

int session_check_state(const session *s, err_ctx *err)
{
    (void)runner_settle(s->r, NULL);
    if (!s->broken && !is_lost(s)) return 0;
    return err_set(err, ERR_IO, "the session's state was lost in an earlier failure");
}

void session_snapshot(session *s)
{
    (void)runner_settle(s->r, NULL);
    state_snapshot(s->st, s->r->e->team);
}

/* A broken state cannot stay at its position: it is rewound to a snapshot, or to 0. */
static int most_kept(const session *s, int n_keep)
{
    return is_lost(s) ? 0 : min_int(n_keep, session_pos(s) - s->broken);
}

/* State and position agree again. */
static void mark_whole(session *s)
{
    runner_forget_version(s);
    s->broken = false;
    s->n_recovery = runner_recoveries(s->r);
}

/* Whether n_keep is within the tokens whose inputs are kept. */
static bool can_go_back(const session *s, int n_keep)
{
    return s->before && !is_lost(s) && n_keep >= s->before_pos;
}

int session_rewind(session *s, int n_keep)
{
    (void)runner_settle(s->r, NULL);
    const int most = most_kept(s, n_keep);
    if (can_go_back(s, most)) {
        runner_go_back(s, most);
        mtp_trim(s, most);
        return most;
    }
    const int kept = state_rewind(s->st, most);
    mtp_trim(s, kept);
    mark_whole(s);
    return kept;
}

int session_rewind_target(const session *s, int n_keep)
{
    (void)runner_settle(s->r, NULL);
    const int most = most_kept(s, n_keep);
    return can_go_back(s, most) ? most : state_rewind_target(s->st, most);
}

static state_tag tag_of(const session *s)
{
    const model *m = s->r->e->m;
    state_tag tag = { .model = model_fingerprint(m) };
    const rope_tables *rope = &s->r->e->rope;
    for (int i = 0; i < rope->n_table; i++)              /* keys are stored rotated */
        tag.model = tag.model * 31 + str_hash((str_view){ (const char *)rope->freq[i],
                                              (size_t)rope->dim[i] / 2 * sizeof(double) });
    if (m->hp.n_expert_used != m->own_experts_used)      /* not the file's own number */
        tag.model = tag.model * 31 + (uint64_t)m->hp.n_expert_used;
    if (runner_skips_missing(s->r)) tag.model = tag.model * 31 + 1;
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
    (void)runner_settle(s->r, NULL);
    const int rc = state_load(s->st, path, &tag, s->ids, session_ctx(s), extra, n_extra, err);
    mtp_trim(s, 0);
    if (rc == 0) mark_whole(s);
    return rc;
}

/* ---- kept states ----------------------------------------------------------------------------- */

pool *session_team(const session *s) { return s->r->e->team; }

state *session_state(session *s)
{
    (void)runner_settle(s->r, NULL);
    return s->st;
}

state_tag session_tag(const session *s)
{
    state_tag tag = tag_of(s);
    tag.model = tag.model * 31 + (engine_on_gpu(s->r->e) ? 2 : s->r->e->opt.exact ? 1 : 0);
    return tag;
}

void session_replaced(session *s, const int32_t *ids, int n)
{
    assert(n == session_pos(s));
    memmove(s->ids, ids, (size_t)n * sizeof *ids);
    mtp_trim(s, 0);
    mark_whole(s);
}
