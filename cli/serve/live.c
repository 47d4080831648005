/* live.c - looks at the engine to events.
 *
 *   event: hello   {"model":"...","n_layer":48,"n_bank":48,"n_expert":512,...,"plan":{...}}
 *   event: tick    {"tok_s":38.2,...,"map":"..."}
 *
 * n_bank of the layers have experts. The map has a character for each expert, layer by layer, also
 * for those that a layer without experts has not: its digit of base 64 is 16 * expert_tier + heat.
 * Heat is how often it was chosen lately, 0 .. 15, against what was most lately: choices of
 * a look fade by a third within a second. */
#include "cli/serve/live.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cli/serve/job.h"
#include "engine/instruments.h"
#include "moe/expert_profile.h"
#include "tiers/thread.h"

enum {
    MOST_WATCHERS = 32,
    N_LOOK = 6,                          /* rates are of the last second or so */
    MOST_WAITING = 256 << 10             /* bytes that a watcher has not taken: it misses events */
};
static const uint64_t tick_ns = 200000000, silence_ns = 5000000000;

typedef struct look {
    uint64_t at_ns;
    perf_counts perf;
    prefix_cache_stats prefix;
    desk_counts desk;
} look;

typedef struct watcher {
    http_exchange *x;                    /* kept */
    bool greeted;
} watcher;

struct live {
    desk *d;
    char *hello;                         /* its whole event */
    int n_layer, n_expert;
    pthread_t ticker;
    bool has_ticker;
    pthread_mutex_t lock;                /* of the next five */
    pthread_cond_t more;
    watcher watchers[MOST_WATCHERS];
    int n_watcher;
    bool looking, closing;
    /* Between two looks the ticker's, during one the engine's thread's: looking says which. */
    look latest;
    bool failed;                         /* the server stop_strings */
    uint8_t *where;                      /* [n_layer, n_expert] */
    double *uses;                        /* so far */
    /* the ticker's own */
    look before[N_LOOK];                 /* the latest first */
    int n_before;
    double *used;                        /* uses of the look before */
    float *heat, most_heat;
    char *map, *shown;                   /* terminated; shown: that of the last event */
    uint64_t said_ns;
    bool was_busy;                       /* so that rates of 0 are said, too */
};

static size_t n_all(const live *v) { return (size_t)v->n_layer * (size_t)v->n_expert; }

/* ---- a look ---------------------------------------------------------------------------------- */

/* On the engine's thread: as little as possible. */
static void take_look(void *ctx, const desk_options *o)
{
    live *v = ctx;
    v->failed = !o;
    if (o) {
        const expert_profile *seen = engine_profile(o->model->e);
        double *to = v->uses;
        engine_whereabouts(o->model->e, v->where);
        for (int l = 0; l < v->n_layer && seen; l++) {
            const expert_uses *u = expert_profile_uses(seen, l);
            for (int e = 0; e < v->n_expert; e++) *to++ = u[e].raw;
        }
        v->latest.perf = session_perf(o->sessions[0]);
        if (o->cache) v->latest.prefix = prefix_cache_counts(o->cache);
        v->latest.at_ns = clock_ns();
    }
    pthread_mutex_lock(&v->lock);
    v->looking = false;
    pthread_cond_broadcast(&v->more);
    pthread_mutex_unlock(&v->lock);
}

/* ---- what it says ---------------------------------------------------------------------------- */

static void make_map(live *v)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n = n_all(v);
    v->most_heat *= 0.99f;
    for (size_t i = 0; i < n; i++) {
        const float more = v->n_before > 0 ? (float)(v->uses[i] - v->used[i]) : 0;
        v->heat[i] = 0.92f * v->heat[i] + more;
        if (v->heat[i] > v->most_heat) v->most_heat = v->heat[i];
        v->used[i] = v->uses[i];
    }
    const float scale = 1 / fmaxf(v->most_heat, 1);
    for (size_t i = 0; i < n; i++) {
        const float hot = v->heat[i] * scale;
        const int level = hot < 1e-3f ? 0 : (int)(15 * sqrtf(hot) + 0.5f);
        v->map[i] = digits[16 * v->where[i] + level];
    }
}

/* A second, of a figure that only a reset makes smaller. */
static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 && now > before ? (double)(now - before) / seconds : 0;
}

static void put_rates(textbuf *to, const look *now, const look *then)
{
    const perf_counts *a = &now->perf, *b = &then->perf;
    const double s = (double)(now->at_ns - then->at_ns) * 1e-9;
    const double hot = rate(a->hot, b->hot, s), cold = rate(a->cold, b->cold, s);
    textbuf_printf(to, "\"tok_s\":%.4g,\"prompt_tok_s\":%.4g,\"vram_bytes_s\":%.4g,"
                   "\"ram_bytes_s\":%.4g,\"bus_bytes_s\":%.4g,\"drive_bytes_s\":%.4g,",
                   rate(a->tokens, b->tokens, s), rate(a->prompt_tokens, b->prompt_tokens, s),
                   rate(a->vram_bytes, b->vram_bytes, s), rate(a->cpu_bytes, b->cpu_bytes, s),
                   rate(a->fetch_bytes + a->upload_bytes, b->fetch_bytes + b->upload_bytes, s),
                   rate(a->drive_bytes, b->drive_bytes, s));
    if (hot + cold > 0) textbuf_printf(to, "\"hit_rate\":%.4f,", hot / (hot + cold));
    else textbuf_str(to, "\"hit_rate\":null,");
}

/* Rates are since this look: the first of those before the latest at which requests ran all the
 * time, so that a pause does not count as slowness. */
static const look *since(const live *v)
{
    int i = 0;
    if (v->n_before == 0) return &v->latest;
    while (i + 1 < v->n_before && v->before[i].desk.running && v->before[i + 1].desk.running) i++;
    return &v->before[i];
}

static void put_tick(textbuf *to, const live *v, bool map)
{
    const desk_counts c = v->latest.desk;
    const perf_counts *p = &v->latest.perf;
    const prefix_cache_stats *s = &v->latest.prefix;
    textbuf_str(to, "event: tick\ndata: {");
    put_rates(to, &v->latest, since(v));
    textbuf_printf(to, "\"running\":%d,\"waiting\":%d,\"tokens\":%llu,\"uploads\":%llu,"
                   "\"evictions\":%llu,\"requests\":%llu,\"prompt_tokens\":%llu,"
                   "\"cached_tokens\":%llu,\"states\":%d,\"states_in_ram\":%d,"
                   "\"states_on_drive\":%d", c.running, c.waiting, (unsigned long long)p->tokens,
                   (unsigned long long)(p->uploads + p->swaps), (unsigned long long)p->evictions,
                   (unsigned long long)c.requests, (unsigned long long)c.prompt_tokens,
                   (unsigned long long)c.cached_tokens, s->n_state, s->n_ram, s->n_drive);
    if (map) textbuf_printf(to, ",\"map\":\"%s\"", v->map);
    textbuf_str(to, "}\n\n");
}

static void remember(live *v)
{
    memmove(v->before + 1, v->before, (N_LOOK - 1) * sizeof *v->before);
    v->before[0] = v->latest;
    if (v->n_before < N_LOOK) v->n_before++;
}

/* The lock is held: watchers that have left make room. */
static void drop_gone(live *v)
{
    int n = 0;
    for (int i = 0; i < v->n_watcher; i++) {
        if (http_gone(v->watchers[i].x)) http_release(v->watchers[i].x);
        else v->watchers[n++] = v->watchers[i];
    }
    v->n_watcher = n;
}

/* The lock is held. A write to one that has just left is in vain, and it is dropped next time. */
static void write_all(live *v, const textbuf *tick, const textbuf *whole)
{
    drop_gone(v);
    for (int i = 0; i < v->n_watcher; i++) {
        watcher *w = &v->watchers[i];
        const textbuf *text = w->greeted ? tick : whole;
        if (!w->greeted) (void)http_write(w->x, v->hello, strlen(v->hello));
        if (http_waiting(w->x) < MOST_WAITING) (void)http_write(w->x, text->ptr, text->len);
        w->greeted = true;
    }
}

/* What has changed, to all; to new ones all of it. */
static void say(live *v)
{
    textbuf tick = { 0 }, whole = { 0 };
    v->latest.desk = desk_count(v->d);
    make_map(v);
    const bool moved = strcmp(v->map, v->shown) != 0;
    const bool busy = v->n_before > 0 &&
                      memcmp(&v->before[v->n_before - 1].perf, &v->latest.perf,
                             sizeof v->latest.perf) != 0;
    put_tick(&whole, v, true);
    if (moved || busy || v->was_busy || v->latest.at_ns - v->said_ns > silence_ns) {
        put_tick(&tick, v, moved);
        v->said_ns = v->latest.at_ns;
        memcpy(v->shown, v->map, n_all(v));
    }
    v->was_busy = busy;
    remember(v);
    pthread_mutex_lock(&v->lock);
    if (!tick.failed && !whole.failed) write_all(v, &tick, &whole);
    pthread_mutex_unlock(&v->lock);
    textbuf_free(&tick);
    textbuf_free(&whole);
}

/* ---- the ticker ------------------------------------------------------------------------------ */

/* The lock is held. */
static void wait_until(live *v, uint64_t ns)
{
    while (!v->closing && clock_ns() < ns) thread_cond_wait_until(&v->more, &v->lock, ns);
}

static void *ticker(void *ctx)
{
    live *v = ctx;
    uint64_t next_ns = 0;
    pthread_mutex_lock(&v->lock);
    for (;;) {
        while (v->n_watcher == 0 && !v->closing) {
            v->n_before = 0;             /* rates begin anew */
            pthread_cond_wait(&v->more, &v->lock);
        }
        wait_until(v, next_ns);
        if (v->closing) break;
        next_ns = clock_ns() + tick_ns;
        v->looking = true;
        pthread_mutex_unlock(&v->lock);
        const bool asked = desk_call(v->d, DESK_LOOK, take_look, v);
        pthread_mutex_lock(&v->lock);
        if (!asked) break;
        while (v->looking) pthread_cond_wait(&v->more, &v->lock);
        if (v->failed) break;
        pthread_mutex_unlock(&v->lock);
        say(v);
        pthread_mutex_lock(&v->lock);
    }
    v->closing = true;
    for (int i = 0; i < v->n_watcher; i++) {
        http_end(v->watchers[i].x);
        http_release(v->watchers[i].x);
    }
    v->n_watcher = 0;
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ---- from outside ---------------------------------------------------------------------------- */

static int make_hello(live *v, const model_handle *h, const session *s, const char *name,
                      err_ctx *err)
{
    const plan_view view = placement_view(h->where);
    const char *device = engine_gpu_name(h->e);
    textbuf text = { 0 };
    json_t *root = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:b, s:o}", "model",
                             name, "architecture", model_arch_name(h->m->hp.arch), "n_ctx",
                             session_ctx(s), "n_layer", v->n_layer, "n_bank",
                             plan_n_bank(view.what), "n_expert", v->n_expert, "n_used", h->m->hp.n_expert_used, "device", device[0] ? device : "CPU",
                             "threads", engine_threads(h->e), "cache", engine_caches(h->e),
                             "plan", plan_view_json(&view));
    char *json = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    textbuf_printf(&text, "event: hello\ndata: %s\n\n", json ? json : "");
    if (json && !text.failed) v->hello = mem_strdup_n(text.ptr, text.len);
    free(json);                          /* Jansson's own */
    json_decref(root);
    textbuf_free(&text);
    return v->hello ? 0 : err_set(err, ERR_NOMEM, "live view: no memory");
}

int live_open(live **out, desk *d, const model_handle *h, const session *s, const char *name,
              err_ctx *err)
{
    live *v = mem_zalloc(sizeof *v);
    *out = NULL;
    if (!v) return err_set(err, ERR_NOMEM, "live view: %zu bytes", sizeof *v);
    v->d = d;
    v->n_layer = h->m->experts.n_layer;
    v->n_expert = h->m->experts.n_expert;
    pthread_mutex_init(&v->lock, NULL);
    thread_cond_init(&v->more);
    const size_t n = n_all(v);
    v->where = mem_zalloc(n);
    v->uses = mem_zalloc(n * sizeof *v->uses);
    v->used = mem_zalloc(n * sizeof *v->used);
    v->heat = mem_zalloc(n * sizeof *v->heat);
    v->map = mem_zalloc(n + 1);
    v->shown = mem_zalloc(n + 1);
    int rc = v->where && v->uses && v->used && v->heat && v->map && v->shown ? 0 :
             err_set(err, ERR_NOMEM, "live view: %zu experts", n);
    if (rc == 0) rc = make_hello(v, h, s, name, err);
    if (rc == 0 && !(v->has_ticker = thread_start(&v->ticker, ticker, v) == 0))
        rc = err_set(err, ERR_NOMEM, "no more threads");
    if (rc == 0) *out = v;
    else live_free(v);
    return rc;
}

void live_take(live *v, http_exchange *x)
{
    bool taken = false;
    api_error why;
    if (!strcmp(http_method(x), "HEAD")) {
        http_reply(x, 200, "text/event-stream", NULL, 0);
        return;
    }
    pthread_mutex_lock(&v->lock);
    const bool closing = v->closing;
    drop_gone(v);
    if (!closing && v->n_watcher < MOST_WATCHERS) {
        taken = true;
        http_keep(x);
        http_add_header(x, "Cache-Control", "no-cache");
        http_add_header(x, "X-Accel-Buffering", "no");
        http_stream(x, 200, "text/event-stream");
        v->watchers[v->n_watcher++] = (watcher){ .x = x };
        pthread_cond_broadcast(&v->more);
    }
    pthread_mutex_unlock(&v->lock);
    if (taken) return;
    api_error_make(&why, API_BUSY, API_CHAT, "%s", closing ? "the server is stopping" :
                   "too many watch already");
    job_refuse(x, API_CHAT, &why);
}

void live_close(live *v)
{
    if (!v || !v->has_ticker) return;
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    pthread_cond_broadcast(&v->more);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->ticker, NULL);
    v->has_ticker = false;
}

void live_free(live *v)
{
    if (!v) return;
    pthread_cond_destroy(&v->more);
    pthread_mutex_destroy(&v->lock);
    mem_free(v->where);
    mem_free(v->uses);
    mem_free(v->used);
    mem_free(v->heat);
    mem_free(v->map);
    mem_free(v->shown);
    mem_free(v->hello);
    mem_free(v);
}
