/* moe_routes.c - reads and replaces the experts in VRAM for HTTP clients.
 *
 * Reads run between two steps of any request. A replacement waits until no request runs and blocks
 * new ones, so that no other code moves experts meanwhile. */
#include "cli/serve/moe_routes.h"

#include <string.h>

#include "cli/expert_cache_files.h"
#include "cli/serve/error_reply.h"
#include "cli/serve/moe_view.h"
#include "cli/view/perf_view.h"
#include "engine/session/runner.h"
#include "moe/layer_perf.h"

/* A list of all experts of the largest model has a tenth of these bytes. */
enum { MAX_LIST_BYTES = 16 << 20 };

typedef struct moe_call {
    server_context *c;
    http_exchange *x;                    /* kept */
    perf_level level;                    /* of MOE_SET_PERF */
} moe_call;

static void refuse(http_exchange *x, api_error_type type, const char *text)
{
    error_reply_text(x, API_CHAT, type, text);
}

/* ---- engine thread --------------------------------------------------------------------------- */

static void end_call(moe_call *call)
{
    http_release(call->x);
    mem_free(call);
}

/* False: the server stops, and the client has its error. */
static bool check_engine(moe_call *call, const engine_context *ec)
{
    if (!ec) refuse(call->x, API_BUSY, "the server is stopping");
    return ec != NULL;
}

static void reply_perf(const moe_call *call, const engine_context *ec)
{
    const runner *r = session_runner(ec->sessions[0]);
    const int n_layer = ec->model->m->hp.n_layer;
    perf_layer *layers = mem_array((size_t)n_layer, sizeof *layers);
    moe_counts counts = {
        .level = call->c->perf, .profile = engine_profile(ec->model->e),
        .cached = engine_caches(ec->model->e), .all = runner_perf(r),
    };
    textbuf text = { 0 };
    if (layers && (counts.n_layer = runner_perf_layers(r, layers, n_layer)) > 0)
        counts.layers = layers;
    moe_view_perf(&text, &counts);
    http_reply_text(call->x, "application/json", &text);
    mem_free(layers);
}

static void show_perf(void *ctx, const engine_context *ec)
{
    moe_call *call = ctx;
    if (check_engine(call, ec)) reply_perf(call, ec);
    end_call(call);
}

static void set_perf(void *ctx, const engine_context *ec)
{
    moe_call *call = ctx;
    if (check_engine(call, ec)) {
        if (call->c->perf != call->level)
            runner_count(session_runner(ec->sessions[0]), call->level);
        call->c->perf = call->level;
        reply_perf(call, ec);
    }
    end_call(call);
}

static void show_cache(void *ctx, const engine_context *ec)
{
    moe_call *call = ctx;
    textbuf text = { 0 };
    if (check_engine(call, ec)) {
        const expert_banks *b = &ec->model->m->experts;
        const size_t n = (size_t)b->n_layer * (size_t)b->n_expert;
        uint8_t *where = mem_zalloc(n);
        uint64_t used = 0;
        if (where) engine_expert_tiers(ec->model->e, where);
        for (size_t i = 0; where && i < n; i++)
            if (where[i] == EXPERT_IN_VRAM)
                used += expert_slabs_bytes(&b->of[i / (size_t)b->n_expert]);
        text.failed = !where;
        if (where)
            moe_view_cache(&text, engine_caches(ec->model->e),
                           ec->model->where ? ec->model->where->p.vram.experts : 0, used,
                           where, b->n_layer, b->n_expert);
        http_reply_text(call->x, "application/json", &text);
        mem_free(where);
    }
    end_call(call);
}

/* ---- replacing experts ----------------------------------------------------------------------- */

/* Reads a usage profile, which names its model, or the output of /moe-layer-perf. *save: keep the
 * list for the next start. */
static int read_hot_list(usage_profile **p, bool *save, const engine_context *ec, str_view body,
                     err_ctx *err)
{
    const expert_banks *b = &ec->model->m->experts;
    api_error error;
    json_t *root = api_json_read(body.ptr, body.len, &error);
    const json_t *save_field = json_object_get(root, "save_to_disk");
    int rc;
    *save = json_is_true(save_field);
    if (!root) {
        rc = err_set(err, ERR_FORMAT, "%s", error.message);
    } else if (save_field && !json_is_boolean(save_field) && !json_is_null(save_field)) {
        rc = err_set(err, ERR_FORMAT, "save_to_disk is neither true nor false");
    } else if (json_object_get(root, "format")) {
        const profile_key key = expert_cache_files_key(ec->model->m);
        rc = profile_file_parse(p, body, &key, err);
    } else {
        rc = layer_perf_read(p, root, b->n_layer, b->n_expert, err);
    }
    json_decref(root);
    return rc;
}

static int layers_that_differ(const uint8_t *a, const uint8_t *b, int n_layer, int n_expert)
{
    int n = 0;
    for (int l = 0; l < n_layer; l++, a += n_expert, b += n_expert)
        n += memcmp(a, b, (size_t)n_expert) != 0;
    return n;
}

static int apply_hot_list(moe_update *u, const engine_context *ec, const usage_profile *p,
                     err_ctx *err)
{
    const model_handle *h = ec->model;
    const expert_banks *b = &h->m->experts;
    const size_t n = (size_t)b->n_layer * (size_t)b->n_expert;
    uint8_t *before = mem_zalloc(2 * n);
    int rc = 0;
    if (!before) return err_set(err, ERR_NOMEM, "%zu experts", n);
    engine_expert_tiers(h->e, before);
    for (size_t i = 0; i < n; i++) u->capacity += before[i] == EXPERT_IN_VRAM;
    for (int l = 0; l < b->n_layer; l++)
        for (int e = 0; e < b->n_expert; e++) {
            const expert_uses *uses = &usage_profile_uses(p, l)[e];
            u->hot += uses->hot;
            u->cold += uses->raw - uses->hot;
        }
    rc = expert_cache_files_use(&u->candidates, h->e, p, h->where, &h->asked, h->m, err);
    if (rc >= 0) {
        engine_expert_tiers(h->e, before + n);
        u->exchanged = rc;
        u->layers_changed = layers_that_differ(before, before + n, b->n_layer, b->n_expert);
    }
    mem_free(before);
    return rc < 0 ? rc : 0;
}

/* Saves the list as a run does at its end, without the user's --learn file, which is of whole
 * runs. */
static void save_hot_list(const model_handle *h)
{
    placement_options o = h->asked;
    o.learn = NULL;
    expert_cache_files_keep(h->e, &o, h->m);
}

static void apply(void *ctx, const engine_context *ec)
{
    moe_call *call = ctx;
    usage_profile *p = NULL;
    moe_update u = { 0 };
    textbuf text = { 0 };
    err_ctx err = { 0 };
    bool save = false;
    if (check_engine(call, ec)) {
        if (read_hot_list(&p, &save, ec, http_body(call->x), &err) < 0) {
            refuse(call->x, API_BAD_REQUEST, err.msg);
        } else if (!engine_caches(ec->model->e)) {
            api_error error;
            api_error_make(&error, API_BAD_REQUEST, API_CHAT, "there is no expert cache in VRAM: "
                           "experts cannot be exchanged");
            error.status = 409;
            error_reply(call->x, API_CHAT, &error);
        } else if (apply_hot_list(&u, ec, p, &err) < 0) {
            refuse(call->x, API_BROKEN, err.msg);
        } else {
            if (save) save_hot_list(ec->model);
            moe_view_update(&text, &u);
            http_reply_text(call->x, "application/json", &text);
        }
    }
    usage_profile_free(p);
    end_call(call);
}

/* ---- network thread -------------------------------------------------------------------------- */

/* False: the body has no mode, and the client has its error. */
static bool read_mode(perf_level *level, http_exchange *x)
{
    const str_view body = http_body(x);
    api_error error;
    if (body.len > 4096) {
        refuse(x, API_TOO_LARGE, "the body exceeds 4 KiB");
        return false;
    }
    json_t *root = api_json_read(body.ptr, body.len, &error);
    const char *mode = json_string_value(json_object_get(root, "mode"));
    const bool found = mode && perf_level_named(level, mode);
    if (!root) error_reply(x, API_CHAT, &error);
    else if (!found) refuse(x, API_BAD_REQUEST, "mode must be full, update or off");
    json_decref(root);
    return found;
}

void moe_route(server_context *c, http_exchange *x, int action)
{
    static const struct { engine_call_when when; engine_call_fn *fn; } calls[] = {
        [MOE_PERF] = { CALL_READ, show_perf }, [MOE_SET_PERF] = { CALL_BETWEEN_STEPS, set_perf },
        [MOE_CACHE] = { CALL_READ, show_cache }, [MOE_APPLY] = { CALL_IDLE, apply },
    };
    perf_level level = PERF_UPDATE;
    if (action == MOE_SET_PERF && !read_mode(&level, x)) return;
    if (action == MOE_APPLY && http_body(x).len > MAX_LIST_BYTES) {
        refuse(x, API_TOO_LARGE, "the body exceeds 16 MiB");
        return;
    }
    moe_call *call = mem_zalloc(sizeof *call);
    if (call) *call = (moe_call){ .c = c, .x = x, .level = level };
    http_keep(x);
    if (call && engine_call(c->queue, calls[action].when, calls[action].fn, call)) return;
    refuse(x, API_BUSY, "the server is stopping");
    http_release(x);
    mem_free(call);
}
