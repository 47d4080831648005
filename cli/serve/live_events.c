/* live_events.c - samples of the engine to events.
 *
 *   event: hello   {"model":"...","n_layer":48,"n_bank":48,"n_expert":512,...,"plan":{...}}
 *   event: tick    {"tok_s":38.2,...,"map":"..."}
 *
 * n_bank layers have experts. The map has one character for each expert, layer by layer, also for
 * layers without experts: the base-64 digit of 16 * expert_tier + heat. Heat, 0 .. 15, is how often
 * the expert was chosen lately, relative to the hottest one; uses decay by a third each second.
 *
 * The sample belongs to the events thread, and to the engine thread while `sampling` is true. */
#include "cli/serve/live_events.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cli/serve/error_reply.h"
#include "engine/engine_stats.h"
#include "engine/session/runner.h"
#include "moe/usage_profile.h"
#include "tiers/thread.h"

enum {
    MAX_WATCHERS = 32,
    N_SAMPLE = 6,                        /* rates cover about the last second */
    MAX_UNREAD_BYTES = 256 << 10         /* a watcher with more misses events */
};
static const uint64_t tick_ns = 200000000, silence_ns = 5000000000;

typedef struct sample {
    uint64_t taken_ns;
    perf_counts perf;
    prefix_cache_stats prefix;
    queue_stats queue;
} sample;

typedef struct watcher {
    http_exchange *exchange;             /* kept */
    bool greeted;                        /* hello was sent */
} watcher;

struct live_events {
    request_queue *queue;                /* set once, as the next three */
    char *hello;                         /* the whole event */
    int n_layer, n_expert;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;                /* guards the next five */
    pthread_cond_t changed;
    watcher watchers[MAX_WATCHERS];
    int n_watcher;
    bool sampling, closing;
    /* the engine thread's while sampling, else the events thread's */
    sample latest;
    bool failed;                         /* the server stops */
    uint8_t *tiers;                      /* [n_layer, n_expert]: expert_tier */
    double *uses;                        /* [n_layer, n_expert]: since the start */
    /* events thread only */
    sample before[N_SAMPLE];             /* the latest first */
    int n_before;
    double *last_uses;                   /* uses of the sample before */
    float *heat, max_heat;
    char *map, *sent_map;                /* terminated; sent_map: of the last event */
    uint64_t sent_ns;
    bool was_busy;                       /* rates of 0 are sent once after it */
};

static size_t n_expert_all(const live_events *v)
{
    return (size_t)v->n_layer * (size_t)v->n_expert;
}

/* ---- a sample -------------------------------------------------------------------------------- */

/* On the engine thread; copies counters only. */
static void take_sample(void *ctx, const engine_context *ec)
{
    live_events *v = ctx;
    v->failed = !ec;
    if (ec) {
        const usage_profile *profile = engine_profile(ec->model->e);
        double *uses = v->uses;
        engine_expert_tiers(ec->model->e, v->tiers);
        for (int l = 0; l < v->n_layer && profile; l++) {
            const expert_uses *u = usage_profile_uses(profile, l);
            for (int e = 0; e < v->n_expert; e++) *uses++ = u[e].raw;
        }
        v->latest.perf = runner_perf(session_runner(ec->sessions[0]));
        if (ec->cache) v->latest.prefix = prefix_cache_counts(ec->cache);
        v->latest.taken_ns = clock_ns();
    }
    pthread_mutex_lock(&v->lock);
    v->sampling = false;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void make_map(live_events *v)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n = n_expert_all(v);
    v->max_heat *= 0.99f;
    for (size_t i = 0; i < n; i++) {
        const float more = v->n_before > 0 ? (float)(v->uses[i] - v->last_uses[i]) : 0;
        v->heat[i] = 0.92f * v->heat[i] + more;
        if (v->heat[i] > v->max_heat) v->max_heat = v->heat[i];
        v->last_uses[i] = v->uses[i];
    }
    const float scale = 1 / fmaxf(v->max_heat, 1);
    for (size_t i = 0; i < n; i++) {
        const float hot = v->heat[i] * scale;
        const int level = hot < 1e-3f ? 0 : (int)(15 * sqrtf(hot) + 0.5f);
        v->map[i] = digits[16 * v->tiers[i] + level];
    }
}

/* Per second. A counter that was reset has no rate. */
static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 && now > before ? (double)(now - before) / seconds : 0;
}

static void put_rates(textbuf *out, const sample *now, const sample *then)
{
    const perf_counts *a = &now->perf, *b = &then->perf;
    const double s = (double)(now->taken_ns - then->taken_ns) * 1e-9;
    const scheduler_totals *work = &now->queue.work, *old = &then->queue.work;
    const double passes = rate(a->passes, b->passes, s), drawn = rate(work->tokens, old->tokens, s);
    const double hot = rate(a->hot, b->hot, s), cold = rate(a->cold, b->cold, s);
    textbuf_printf(out, "\"tok_s\":%.4g,\"prompt_tok_s\":%.4g,\"vram_bytes_s\":%.4g,"
                   "\"ram_bytes_s\":%.4g,\"bus_bytes_s\":%.4g,\"drive_bytes_s\":%.4g,",
                   drawn, rate(a->prompt_tokens, b->prompt_tokens, s),
                   rate(a->vram_bytes, b->vram_bytes, s), rate(a->cpu_bytes, b->cpu_bytes, s),
                   rate(a->fetch_bytes + a->upload_bytes, b->fetch_bytes + b->upload_bytes, s),
                   rate(a->drive_bytes, b->drive_bytes, s));
    textbuf_printf(out, "\"pass_rows\":%.4g,\"pass_tokens\":%.4g,",
                   passes > 0 ? rate(a->rows, b->rows, s) / passes : 0,
                   passes > 0 ? drawn / passes : 0);
    if (hot + cold > 0) textbuf_printf(out, "\"hit_rate\":%.4f,", hot / (hot + cold));
    else textbuf_str(out, "\"hit_rate\":null,");
}

/* The sample that rates are measured from: the oldest one since which requests ran all the time, so
 * that a pause does not lower the rates. */
static const sample *oldest_busy(const live_events *v)
{
    int i = 0;
    if (v->n_before == 0) return &v->latest;
    while (i + 1 < v->n_before && v->before[i].queue.running && v->before[i + 1].queue.running) i++;
    return &v->before[i];
}

static void put_tick(textbuf *out, const live_events *v, bool map)
{
    const queue_stats c = v->latest.queue;
    const perf_counts *p = &v->latest.perf;
    const prefix_cache_stats *s = &v->latest.prefix;
    textbuf_str(out, "event: tick\ndata: {");
    put_rates(out, &v->latest, oldest_busy(v));
    textbuf_printf(out, "\"running\":%d,\"waiting\":%d,\"tokens\":%llu,\"drafts\":%llu,"
                   "\"right_drafts\":%llu,\"uploads\":%llu,"
                   "\"evictions\":%llu,\"requests\":%llu,\"prompt_tokens\":%llu,"
                   "\"cached_tokens\":%llu,\"states\":%d,\"states_in_ram\":%d,"
                   "\"states_on_drive\":%d", c.running, c.waiting,
                   (unsigned long long)c.work.tokens, (unsigned long long)c.work.drafts,
                   (unsigned long long)c.work.right_drafts,
                   (unsigned long long)(p->uploads + p->swaps), (unsigned long long)p->evictions,
                   (unsigned long long)c.requests, (unsigned long long)c.prompt_tokens,
                   (unsigned long long)c.cached_tokens, s->n_state, s->n_ram, s->n_drive);
    if (map) textbuf_printf(out, ",\"map\":\"%s\"", v->map);
    textbuf_str(out, "}\n\n");
}

static void push_sample(live_events *v)
{
    memmove(v->before + 1, v->before, (N_SAMPLE - 1) * sizeof *v->before);
    v->before[0] = v->latest;
    if (v->n_before < N_SAMPLE) v->n_before++;
}

/* The caller holds the lock. */
static void drop_disconnected(live_events *v)
{
    int n = 0;
    for (int i = 0; i < v->n_watcher; i++) {
        if (http_gone(v->watchers[i].exchange)) http_release(v->watchers[i].exchange);
        else v->watchers[n++] = v->watchers[i];
    }
    v->n_watcher = n;
}

/* The caller holds the lock. A watcher that leaves now is dropped at the next event. */
static void write_events(live_events *v, const textbuf *tick, const textbuf *whole)
{
    drop_disconnected(v);
    for (int i = 0; i < v->n_watcher; i++) {
        watcher *w = &v->watchers[i];
        const textbuf *text = w->greeted ? tick : whole;
        if (!w->greeted) (void)http_write(w->exchange, v->hello, strlen(v->hello));
        if (http_unread_bytes(w->exchange) < MAX_UNREAD_BYTES)
            (void)http_write(w->exchange, text->ptr, text->len);
        w->greeted = true;
    }
}

/* Sends what has changed to every watcher, and all of it to new ones. */
static void send_tick(live_events *v)
{
    textbuf tick = { 0 }, whole = { 0 };
    v->latest.queue = queue_get_stats(v->queue);
    make_map(v);
    const bool moved = strcmp(v->map, v->sent_map) != 0;
    const bool busy = v->n_before > 0 &&
                      memcmp(&v->before[v->n_before - 1].perf, &v->latest.perf,
                             sizeof v->latest.perf) != 0;
    put_tick(&whole, v, true);
    if (moved || busy || v->was_busy || v->latest.taken_ns - v->sent_ns > silence_ns) {
        put_tick(&tick, v, moved);
        v->sent_ns = v->latest.taken_ns;
        memcpy(v->sent_map, v->map, n_expert_all(v));
    }
    v->was_busy = busy;
    push_sample(v);
    pthread_mutex_lock(&v->lock);
    if (!tick.failed && !whole.failed) write_events(v, &tick, &whole);
    pthread_mutex_unlock(&v->lock);
    textbuf_free(&tick);
    textbuf_free(&whole);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* The caller holds the lock. */
static void wait_until(live_events *v, uint64_t deadline_ns)
{
    while (!v->closing && clock_ns() < deadline_ns)
        thread_cond_wait_until(&v->changed, &v->lock, deadline_ns);
}

static void *run_events(void *ctx)
{
    live_events *v = ctx;
    uint64_t next_ns = 0;
    pthread_mutex_lock(&v->lock);
    for (;;) {
        while (v->n_watcher == 0 && !v->closing) {
            v->n_before = 0;             /* rates start again */
            pthread_cond_wait(&v->changed, &v->lock);
        }
        wait_until(v, next_ns);
        if (v->closing) break;
        next_ns = clock_ns() + tick_ns;
        v->sampling = true;
        pthread_mutex_unlock(&v->lock);
        const bool queued = engine_call(v->queue, CALL_READ, take_sample, v);
        pthread_mutex_lock(&v->lock);
        if (!queued) break;
        while (v->sampling) pthread_cond_wait(&v->changed, &v->lock);
        if (v->failed) break;
        pthread_mutex_unlock(&v->lock);
        send_tick(v);
        pthread_mutex_lock(&v->lock);
    }
    v->closing = true;
    for (int i = 0; i < v->n_watcher; i++) {
        http_end(v->watchers[i].exchange);
        http_release(v->watchers[i].exchange);
    }
    v->n_watcher = 0;
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ---- the interface --------------------------------------------------------------------------- */

static int make_hello(live_events *v, const model_handle *h, const session *s, const char *name,
                      err_ctx *err)
{
    const plan_view view = placement_view(h->where);
    const char *device = engine_gpu_name(h->e);
    textbuf text = { 0 };
    json_t *root = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:b, s:o}", "model",
                             name, "architecture", model_arch_name(h->m->hp.arch), "n_ctx",
                             session_ctx(s), "n_layer", v->n_layer, "n_bank",
                             plan_n_bank(view.model), "n_expert", v->n_expert, "n_used",
                             h->m->hp.n_expert_used, "device", device[0] ? device : "CPU",
                             "threads", engine_threads(h->e), "cache", engine_caches(h->e),
                             "plan", plan_view_json(&view));
    char *json = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    textbuf_printf(&text, "event: hello\ndata: %s\n\n", json ? json : "");
    if (json && !text.failed) v->hello = mem_strdup_n(text.ptr, text.len);
    free(json);                          /* Jansson's own */
    json_decref(root);
    textbuf_free(&text);
    return v->hello ? 0 : err_set(err, ERR_NOMEM, "live events: no memory");
}

int live_events_open(live_events **out, request_queue *q, const model_handle *h, const session *s,
                     const char *name, err_ctx *err)
{
    live_events *v = mem_zalloc(sizeof *v);
    *out = NULL;
    if (!v) return err_set(err, ERR_NOMEM, "live events: %zu bytes", sizeof *v);
    v->queue = q;
    v->n_layer = h->m->experts.n_layer;
    v->n_expert = h->m->experts.n_expert;
    pthread_mutex_init(&v->lock, NULL);
    thread_cond_init(&v->changed);
    const size_t n = n_expert_all(v);
    v->tiers = mem_zalloc(n);
    v->uses = mem_zalloc(n * sizeof *v->uses);
    v->last_uses = mem_zalloc(n * sizeof *v->last_uses);
    v->heat = mem_zalloc(n * sizeof *v->heat);
    v->map = mem_zalloc(n + 1);
    v->sent_map = mem_zalloc(n + 1);
    int rc = v->tiers && v->uses && v->last_uses && v->heat && v->map && v->sent_map ? 0 :
             err_set(err, ERR_NOMEM, "live events: %zu experts", n);
    if (rc == 0) rc = make_hello(v, h, s, name, err);
    if (rc == 0 && !(v->started = thread_start(&v->thread, run_events, v) == 0))
        rc = err_set(err, ERR_NOMEM, "live events: no more threads");
    if (rc == 0) *out = v;
    else live_events_free(v);
    return rc;
}

void live_events_watch(live_events *v, http_exchange *x)
{
    bool added = false;
    if (!strcmp(http_method(x), "HEAD")) {
        http_reply(x, 200, "text/event-stream", NULL, 0);
        return;
    }
    pthread_mutex_lock(&v->lock);
    const bool closing = v->closing;
    drop_disconnected(v);
    if (!closing && v->n_watcher < MAX_WATCHERS) {
        added = true;
        http_keep(x);
        http_stream(x, 200, "text/event-stream");
        v->watchers[v->n_watcher++] = (watcher){ .exchange = x };
        pthread_cond_broadcast(&v->changed);
    }
    pthread_mutex_unlock(&v->lock);
    if (added) return;
    error_reply_text(x, API_CHAT, API_BUSY, closing ? "the server is stopping" :
                     "too many clients read /moe-events");
}

void live_events_close(live_events *v)
{
    if (!v || !v->started) return;
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->thread, NULL);
    v->started = false;
}

void live_events_free(live_events *v)
{
    if (!v) return;
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    mem_free(v->tiers);
    mem_free(v->uses);
    mem_free(v->last_uses);
    mem_free(v->heat);
    mem_free(v->map);
    mem_free(v->sent_map);
    mem_free(v->hello);
    mem_free(v);
}
