/* forward_tiered.c - the token loop.
 *
 * walk() is the only loop over layers. The implementations (layer_steps.h) define what a step
 * does; this file only decides which of them does it, and in which order. The sum over experts
 * adds one vector per chosen expert, in the router's order, whichever processor computed them, so
 * the tier of an expert cannot change the result. */
#include "engine/forward_tiered.h"

#include <limits.h>

#include "engine/engine_internal.h"

/* A run of layers that one implementation computes. The last segment also has the head; it may have
 * no layers. */
typedef struct segment {
    int end;                             /* layers from the end of the one before, up to end - 1 */
    const layer_steps *live, *replay;    /* the latter for a recorded pass; on a CPU the same */
    bool on_gpu;
} segment;

struct forward {
    const model *m;
    const ops *o;
    gpu *g;
    segment segments[2];
    int n_segment;
    bool head_on_gpu;
    host_steps *host;                    /* NULL: the GPU computes everything */
    gpu_steps *gpu;                      /* NULL: no GPU */
    expert_server *server;               /* NULL: all experts of the GPU's layers are in VRAM */
    const layer_steps *last;             /* the steps that ended the last batch: give its logits */
    bool has_inner;                      /* batches between the layers of others are possible */
};

/* ---- the loop -------------------------------------------------------------------------------- */

static expert_strategy strategy_of(const forward *f, const segment *g, const batch *b, int l)
{
    if (!g->on_gpu || !f->server || !expert_server_has_cold(f->server, l)) return EXPERTS_LOCAL;
    if (b->n <= GPU_MAIL) return EXPERTS_ASKED;
    switch (b->strategy) {
    case PROMPT_CORES: return EXPERTS_BY_HOST;
    case PROMPT_SPLIT: return EXPERTS_SPLIT;
    case PROMPT_BUS: return EXPERTS_STREAMED;
    }
    return EXPERTS_BY_HOST;
}

static int run_experts(const layer_steps *s, expert_strategy strategy, int l, err_ctx *err)
{
    switch (strategy) {
    case EXPERTS_LOCAL: return s->experts_local(s->self, l, err);
    case EXPERTS_ASKED: return s->experts_asked(s->self, l, err);
    case EXPERTS_BY_HOST: return s->experts_by_host(s->self, l, err);
    case EXPERTS_SPLIT: return s->experts_split(s->self, l, err);
    case EXPERTS_STREAMED: return s->experts_streamed(s->self, l, err);
    }
    return 0;
}

/* The layers of a segment are done: the next one continues with their vectors. */
static int hand_over(const layer_steps *from, const layer_steps *to, const batch *b, err_ctx *err)
{
    const float *x;
    int rc;
    if ((rc = from->end(from->self, err)) < 0 ||
        (rc = from->copy_to_host(from->self, &x, err)) < 0)
        return rc;
    return to->resume(to->self, b, x, err);
}

static const layer_steps *steps_of(const segment *g, bool replayed)
{
    return replayed ? g->replay : g->live;
}

/* Takes a batch of the trunk through layers 0 .. end - 1, and to the head unless it is being
 * recorded. replayed: by the GPU's recording. */
static int walk(forward *f, const batch *b, bool replayed, int end, err_ctx *err)
{
    const int n_layer = f->m->hp.n_layer;
    const segment *g = f->segments, *last = f->segments + f->n_segment - 1;
    const layer_steps *s = steps_of(g, replayed);
    int rc = s->begin(s->self, b, err);
    for (int l = 0; l < end && rc == 0; l++) {
        for (; l == g->end; s = steps_of(++g, replayed))
            if ((rc = hand_over(s, steps_of(g + 1, replayed), b, err)) < 0) return rc;
        const expert_strategy strategy = strategy_of(f, g, b, l);
        s->mix(s->self, l);
        s->route(s->self, l);
        if ((rc = run_experts(s, strategy, l, err)) < 0) break;
        s->join(s->self, l);
        if (b->watch && (!g->on_gpu || strategy != EXPERTS_LOCAL) &&
            !b->watch(b->watch_ctx, l + 1, n_layer))
            rc = err_set(err, ERR_STOPPED, "stopped after layer %d of %d", l + 1, n_layer);
    }
    if (rc < 0) return rc;
    for (; g < last && b->ids; s = steps_of(++g, replayed))
        if ((rc = hand_over(s, steps_of(g + 1, replayed), b, err)) < 0) return rc;
    f->last = s;
    return s->end(s->self, err);
}

/* ---- a pass of a few tokens on the GPU ------------------------------------------------------- */

static int record(forward *f, const batch *pass, err_ctx *err)
{
    batch b = *pass;
    if (!gpu_steps_wants_recording(f->gpu, pass)) return 0;
    const int rc = gpu_steps_record_begin(f->gpu, err);
    if (rc < 0) return rc;
    b.ids = NULL;
    (void)walk(f, &b, false, f->segments[0].end, NULL);  /* nothing is waited for */
    return gpu_steps_record_end(f->gpu, pass, err);
}

static batch batch_of(const batch_row *rows, int n_row, const int32_t *ids, kept_inputs *keep)
{
    const batch_row *last = &rows[n_row - 1];
    return (batch){ .ids = ids, .n = last->first + last->n, .rows = rows, .n_row = n_row,
                    .keep = keep, .is_pass = true };
}

/* Takes in a pass without waiting for the GPU to finish it. */
static int take(forward *f, const batch_row *rows, int n_row, const int32_t *ids,
                kept_inputs *keep, err_ctx *err)
{
    batch b = batch_of(rows, n_row, ids, keep);
    for (int i = 0; i < n_row; i++)
        b.last = max_int(b.last, gpu_steps_reach(rows[i].pos + rows[i].n - 1));
    int rc = record(f, &b, err);
    if (rc < 0) return rc;
    const bool recorded = gpu_steps_is_recorded(f->gpu, &b);
    rc = walk(f, &b, recorded, f->m->hp.n_layer, err);
    if (rc < 0) return gpu_steps_give_up(f->gpu, rc, err);
    if (!recorded && f->head_on_gpu) gpu_steps_end_pass(f->gpu);
    return 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

int forward_eval(forward *f, batch *b, err_ctx *err)
{
    int rc;
    if (!f->gpu) return walk(f, b, false, f->m->hp.n_layer, err);
    if (b->n == 1) {
        rc = take(f, b->rows, 1, b->ids, NULL, err);
        return rc < 0 ? rc : gpu_steps_wait(f->gpu, err);
    }
    b->last = 0;
    for (const batch_row *row = b->rows; row < b->rows + b->n_row; row++)
        b->last = max_int(b->last, row->pos + row->n);
    b->strategy = gpu_steps_strategy(f->gpu, b->n);
    rc = walk(f, b, false, f->m->hp.n_layer, err);
    return rc < 0 ? gpu_steps_give_up(f->gpu, rc, err) : gpu_steps_wait(f->gpu, err);
}

int forward_again(forward *f, const batch_row *row, const kept_inputs *kept, err_ctx *err)
{
    int rc = 0;
    for (int i = 0, first = 0; i < f->n_segment && rc == 0; first = f->segments[i++].end) {
        const layer_steps *s = f->segments[i].live;
        rc = s->again(s->self, row, kept, first, f->segments[i].end, err);
    }
    return rc;
}

int forward_take(forward *f, const batch_row *rows, int n_row, const int32_t *ids,
                 kept_inputs *keep, err_ctx *err)
{
    batch b = batch_of(rows, n_row, ids, keep);
    return f->head_on_gpu ? take(f, rows, n_row, ids, keep, err) : forward_eval(f, &b, err);
}

int forward_most_taken(const forward *f) { return f->gpu ? gpu_steps_most_taken(f->gpu) : INT_MAX; }

int forward_wait(forward *f, err_ctx *err)
{
    return f->head_on_gpu ? gpu_steps_wait(f->gpu, err) : 0;
}

int forward_logits(forward *f, float *logits, int first, int n, err_ctx *err)
{
    return f->last->logits(f->last->self, logits, first, n, err);
}

int forward_next(forward *f, int32_t *next, const batch_row *row, int32_t id, float *logits,
                 err_ctx *err)
{
    int rc = forward_take(f, row, 1, &id, NULL, err);
    if (rc < 0) return rc;
    if (f->head_on_gpu) return gpu_steps_picked(f->gpu, next, row->pos, err);
    if ((rc = forward_logits(f, logits, 0, 1, err)) < 0) return rc;
    *next = ops_largest(f->o, logits, f->m->hp.n_vocab);
    return 0;
}

/* ---- the next-token block -------------------------------------------------------------------- */

/* It is where the head is, with all of its experts. */
static const layer_steps *mtp_steps(const forward *f)
{
    return f->segments[f->n_segment - 1].live;
}

const float *forward_vectors(const forward *f) { return mtp_steps(f)->vectors(mtp_steps(f)->self); }
float *forward_hidden(const forward *f) { return mtp_steps(f)->hidden(mtp_steps(f)->self); }

void forward_copy_vectors(const forward *f, float *to, const float *from, int n)
{
    mtp_steps(f)->copy(mtp_steps(f)->self, to, from, n);
}

int forward_mtp(forward *f, const batch_row *row, const int32_t *ids, bool chained, int32_t *next,
                err_ctx *err)
{
    const layer_steps *s = f->last = mtp_steps(f);
    const int l = f->m->hp.n_layer;
    const batch b = { .ids = ids, .n = row->n, .rows = row, .n_row = 1, .last = row->pos + row->n,
                      .hidden = forward_hidden(f), .chained = chained };
    int rc = s->begin(s->self, &b, err);
    if (rc < 0) return rc;
    s->mix(s->self, l);
    s->route(s->self, l);
    if ((rc = s->experts_local(s->self, l, err)) < 0) return rc;
    s->join(s->self, l);
    return s->pick(s->self, next, err);
}

bool forward_source(forward *f, int t, sampler_source *out)
{
    if (f->head_on_gpu) *out = gpu_steps_source(f->gpu, t);
    return f->head_on_gpu;
}

/* ---- profiles -------------------------------------------------------------------------------- */

/* The first replay warms up. */
static int profile_token(forward *f, gpu_span *spans, int cap, const batch_row *row, int32_t id,
                         err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < 2 && rc >= 0; i++) {
        rc = take(f, row, 1, &id, NULL, err);
        if (rc == 0) rc = gpu_profile_read(spans, cap, f->g, err);
    }
    return rc;
}

int forward_profile(forward *f, gpu_span *spans, int cap, const batch_row *row, const int32_t *ids,
                    err_ctx *err)
{
    batch b = { .ids = ids, .n = row->n, .rows = row, .n_row = 1 };
    int rc = gpu_steps_profile_begin(f->gpu, err);
    if (rc == 0 && row->n == 1) {
        rc = profile_token(f, spans, cap, row, ids[0], err);
    } else if (rc == 0) {
        rc = forward_eval(f, &b, err);
        if (rc == 0) rc = gpu_profile_read(spans, cap, f->g, err);
    }
    gpu_steps_profile_end(f->gpu);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_gpu(forward *f, const engine *e, bool skip_missing, batch_sizes most, err_ctx *err)
{
    const int rc = e->store ? expert_server_create(&f->server, e, skip_missing, err) : 0;
    if (rc < 0) return rc;
    f->g = e->devices[0].g;
    f->head_on_gpu = engine_head_on_gpu(e);
    return gpu_steps_create(&f->gpu, e, f->server, skip_missing, most, err);
}

static void add_segment(forward *f, int end, const layer_steps *live, const layer_steps *replay,
                        bool on_gpu)
{
    f->segments[f->n_segment++] = (segment){ end, live, replay, on_gpu };
}

bool forward_inner_begin(forward *f)
{
    if (f->has_inner) host_steps_inner_begin(f->host);
    return f->has_inner;
}

void forward_inner_end(forward *f) { host_steps_inner_end(f->host); }

int forward_create(forward **out, const engine *e, bool skip_missing, batch_sizes most, int inner,
                   err_ctx *err)
{
    forward *f = mem_zalloc(sizeof *f);
    int rc = 0;
    *out = NULL;
    if (!f) return err_set(err, ERR_NOMEM, "forward: %zu bytes", sizeof *f);
    f->m = e->m;
    f->o = &e->ops_table;
    if (engine_on_gpu(e)) rc = make_gpu(f, e, skip_missing, most, err);
    if (f->gpu) inner = 0;
    f->has_inner = inner > 0;
    if (rc == 0 && !f->head_on_gpu) rc = host_steps_create(&f->host, e, most.chunk, inner, err);
    if (rc < 0) {
        forward_free(f);
        return rc;
    }
    if (f->gpu)
        add_segment(f, e->devices[0].w->n_layer, gpu_steps_live(f->gpu), gpu_steps_replay(f->gpu),
                    true);
    if (f->host)
        add_segment(f, f->m->hp.n_layer, host_steps_table(f->host), host_steps_table(f->host),
                    false);
    *out = f;
    return 0;
}

void forward_free(forward *f)
{
    if (!f) return;
    gpu_steps_free(f->gpu);
    expert_server_free(f->server);
    host_steps_free(f->host);
    mem_free(f);
}

expert_server *forward_expert_server(forward *f) { return f->server; }

experts_read forward_read(const forward *f)
{
    return f->host ? host_steps_read(f->host) : (experts_read){ 0 };
}

double forward_waited(const forward *f) { return f->gpu ? gpu_steps_waited(f->gpu) : 0.0; }

void forward_reset_waited(forward *f)
{
    if (f->gpu) gpu_steps_reset_waited(f->gpu);
}

prompt_split_stats forward_split(const forward *f)
{
    return f->gpu ? gpu_steps_split_counts(f->gpu) : (prompt_split_stats){ 0 };
}

void forward_reset_split(forward *f)
{
    if (f->gpu) gpu_steps_reset_split(f->gpu);
}
