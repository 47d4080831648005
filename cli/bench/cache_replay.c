/* cache_replay.c - walks through a trace with a cache, and adds up what that would take.
 *
 * A run leaves the number of hits in each layer of each generated token, and the bytes that were
 * brought in after each; all figures are made of these. Which expert makes room is left to
 * moe/expert_cache.h. */
#include "cli/bench/cache_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/layer_time.h"

/* One that a token chose and that is not there. */
typedef struct newcomer {
    int layer, expert;
    double value;
} newcomer;

struct replay {
    const routing_trace *t;
    int n_counted;                       /* generated tokens */
    int n_pool;
    uint64_t bytes[CACHE_MOST_POOLS];    /* of an expert */
    int n_expert[CACHE_MOST_POOLS];      /* in all layers of the pool */
    int n_layer[CACHE_MOST_POOLS];
    uint8_t *pool_of;                    /* [n_layer] */
    cache_optimum *best;
    newcomer *news;                      /* [n_layer, n_used] */
    double *times;                       /* [n_layer, n_used + 1]: seconds, by how many are
                                          * missing */
    /* of the last run */
    uint8_t *hits;                       /* [n_counted, n_layer] */
    uint64_t *brought;                   /* [n_counted]: bytes that came in after the token */
    uint64_t n_brought;                  /* experts that did, after all of them */
};

const char *replay_mode_name(replay_mode m) { return m == REPLAY_VRAM ? "vram" : "ram"; }

const char *replay_rule_name(int rule)
{
    if (rule == REPLAY_BEST) return "best";
    return rule == REPLAY_FIXED ? "fixed" : cache_policy_name((cache_policy)rule);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_pools(replay *r, err_ctx *err)
{
    const routing_model *m = &r->t->model;
    for (int l = 0; l < m->n_layer; l++) {
        int p = 0;
        while (p < r->n_pool && r->bytes[p] != m->expert_bytes[l]) p++;
        if (p == CACHE_MOST_POOLS)
            return err_set(err, ERR_UNSUPPORTED, "experts of more than %d different sizes",
                           CACHE_MOST_POOLS);
        r->n_pool = max_int(r->n_pool, p + 1);
        r->bytes[p] = m->expert_bytes[l];
        r->n_expert[p] += m->n_expert;
        r->n_layer[p]++;
        r->pool_of[l] = (uint8_t)p;
    }
    return 0;
}

static int check_tokens(const routing_trace *t, err_ctx *err)
{
    int first = 0;                       /* token that was generated */
    while (first < t->n_token && t->prompt[first]) first++;
    if (first == t->n_token)
        return err_set(err, ERR_RANGE, "a prompt of %d tokens and none after it: nothing to replay",
                       t->n_prompt);
    if (first < t->n_prompt)
        return err_set(err, ERR_UNSUPPORTED, "a second prompt after token %d: only one at the "
                       "beginning can be replayed", first);
    return 0;
}

int replay_create(replay **out, const routing_trace *t, err_ctx *err)
{
    const size_t n_layer = (size_t)t->model.n_layer, n = (size_t)(t->n_token - t->n_prompt);
    replay *r;
    int rc = check_tokens(t, err);
    *out = NULL;
    if (rc < 0) return rc;
    r = mem_zalloc(sizeof *r);
    if (!r) return err_set(err, ERR_NOMEM, "replay: %zu bytes", sizeof *r);
    r->t = t;
    r->n_counted = (int)n;
    r->pool_of = mem_array(n_layer, sizeof *r->pool_of);
    r->news = mem_array(n_layer * (size_t)t->model.n_used, sizeof *r->news);
    r->times = mem_array(n_layer, ((size_t)t->model.n_used + 1) * sizeof *r->times);
    r->hits = mem_array(n, n_layer * sizeof *r->hits);
    r->brought = mem_array(n, sizeof *r->brought);
    rc = r->pool_of && r->news && r->times && r->hits && r->brought ? 0 :
         err_set(err, ERR_NOMEM, "no memory to replay %zu tokens", n);
    if (rc < 0 || (rc = make_pools(r, err)) < 0 ||
        (rc = cache_optimum_create(&r->best, t, r->pool_of, err)) < 0) {
        replay_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void replay_free(replay *r)
{
    if (!r) return;
    cache_optimum_free(r->best);
    mem_free(r->brought);
    mem_free(r->hits);
    mem_free(r->times);
    mem_free(r->news);
    mem_free(r->pool_of);
    mem_free(r);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static replay_size size_of(const replay *r, const int *n_place)
{
    replay_size s = { { 0 }, 0, 0 };
    for (int p = 0; p < r->n_pool; p++) {
        s.n_place[p] = n_place[p];
        s.places += n_place[p];
        s.bytes += (uint64_t)n_place[p] * r->bytes[p];
    }
    return s;
}

replay_size replay_share(const replay *r, double share)
{
    int n[CACHE_MOST_POOLS];
    for (int p = 0; p < r->n_pool; p++)          /* 0.29 * 100 is a little less than 29 */
        n[p] = min_int(r->n_expert[p], (int)(share * r->n_expert[p] + 1e-6));
    return size_of(r, n);
}

replay_size replay_one_token(const replay *r)
{
    int n[CACHE_MOST_POOLS];
    for (int p = 0; p < r->n_pool; p++) n[p] = r->n_layer[p] * r->t->model.n_used;
    return size_of(r, n);
}

uint64_t replay_all_bytes(const replay *r) { return size_of(r, r->n_expert).bytes; }

/* ---- on demand ------------------------------------------------------------------------------- */

/* Hits of a layer. An expert is let go as soon as it was used: with fewer places than a layer
 * chooses, its own experts push each other out. */
static int demand_layer(replay *r, expert_cache *c, int t, int l)
{
    const uint16_t *ids = routing_trace_ids(r->t, t, l);
    int hits = 0;
    for (int i = 0; i < r->t->model.n_used; i++) {
        bool was_there;
        int evicted;
        const int place = expert_cache_hold(c, l, ids[i], &was_there, &evicted);
        if (place < 0) continue;         /* there are no places */
        hits += was_there;
        expert_cache_release(c, place);
    }
    return hits;
}

/* ---- between tokens -------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const newcomer *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    if (x->layer != y->layer) return x->layer - y->layer;
    return x->expert - y->expert;
}

/* Brings in at most `most` of the n newcomers, the most valuable ones first, if they are worth that
 * much more than who makes room. Returns how many. */
static int bring_in(uint64_t *bytes, replay *r, expert_cache *c, int n, int most, double margin)
{
    int n_in = 0;
    for (int i = 0; i < n; i++)
        r->news[i].value = expert_cache_value(c, r->news[i].layer, r->news[i].expert);
    qsort(r->news, (size_t)n, sizeof *r->news, by_value);
    for (int i = 0; i < n && n_in < most; i++) {
        const newcomer *one = &r->news[i];
        const int pool = r->pool_of[one->layer];
        double least;
        const int place = expert_cache_weakest(c, pool, &least);
        if (place < 0 || !(expert_cache_gain(c, one->value, least) > margin)) continue;
        expert_cache_assign(c, place, one->layer, one->expert);
        *bytes += r->bytes[pool];
        n_in++;
    }
    return n_in;
}

/* Hits of a layer; what is missing goes to the newcomers. */
static int look_layer(replay *r, expert_cache *c, int t, int l, int *n_new)
{
    const uint16_t *ids = routing_trace_ids(r->t, t, l);
    int hits = 0;
    for (int i = 0; i < r->t->model.n_used; i++) {
        if (expert_cache_find(c, l, ids[i]) >= 0) hits++;
        else r->news[(*n_new)++] = (newcomer){ l, ids[i], 0 };
        expert_cache_use(c, l, ids[i]);
    }
    return hits;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* All layers of a token; the hits of each. Returns how many experts came in after it. */
static int run_token(uint8_t *hits, uint64_t *bytes, replay *r, expert_cache *c, replay_mode mode,
                     int t, int n_upload, double margin)
{
    int n_new = 0;
    for (int l = 0; l < r->t->model.n_layer; l++)
        hits[l] = (uint8_t)(mode == REPLAY_RAM ? demand_layer(r, c, t, l)
                                               : look_layer(r, c, t, l, &n_new));
    expert_cache_tick(c);
    if (mode == REPLAY_RAM) return 0;
    if (t < r->t->n_prompt) return bring_in(bytes, r, c, n_new, n_new, 0);
    return bring_in(bytes, r, c, n_new, n_upload, margin);
}

static int run_policy(replay *r, replay_mode mode, cache_policy policy, const replay_size *size,
                      int n_upload, err_ctx *err)
{
    const routing_model *m = &r->t->model;
    cache_shape shape = { .n_layer = m->n_layer, .n_expert = m->n_expert, .n_pool = r->n_pool,
                          .pool_of = r->pool_of, .policy = policy };
    expert_cache *c;
    memcpy(shape.n_place, size->n_place, sizeof shape.n_place);
    const int rc = expert_cache_create(&c, &shape, err);
    if (rc < 0) return rc;
    for (int t = 0; t < r->t->n_token; t++) {
        const int i = max_int(0, t - r->t->n_prompt);    /* the prompt's hits are overwritten */
        uint64_t bytes = 0;
        const int n = run_token(r->hits + (size_t)i * (size_t)m->n_layer, &bytes, r, c, mode, t,
                                n_upload, cache_policy_margin(policy));
        if (t < r->t->n_prompt) continue;
        r->brought[i] = bytes;
        r->n_brought += (uint64_t)n;
    }
    expert_cache_free(c);
    return 0;
}

/* Banks of the first layers until the bytes are used up, the last one in part. */
static void run_fixed(replay *r, const replay_size *size)
{
    const routing_model *m = &r->t->model;
    uint64_t before = 0;                 /* bytes of the layers before */
    for (int l = 0; l < m->n_layer; l++) {
        const uint64_t one = m->expert_bytes[l];
        const uint64_t left = size->bytes > before ? (size->bytes - before) / one : 0;
        uint8_t *hits = r->hits + l;
        for (int t = r->t->n_prompt; t < r->t->n_token; t++, hits += m->n_layer) {
            const uint16_t *ids = routing_trace_ids(r->t, t, l);
            *hits = 0;
            for (int i = 0; i < m->n_used; i++) *hits = (uint8_t)(*hits + (ids[i] < left));
        }
        before += (uint64_t)m->n_expert * one;
    }
}

/* ---- figures --------------------------------------------------------------------------------- */

static void fill_times(replay *r, replay_mode mode, const speeds *rate)
{
    const routing_model *m = &r->t->model;
    double *to = r->times;
    for (int l = 0; l < m->n_layer; l++) {
        const layer_experts e = { m->expert_bytes[l], m->down_bytes[l], m->n_used };
        for (int missing = 0; missing <= m->n_used; missing++)
            *to++ = mode == REPLAY_VRAM ? layer_time_gpu(&e, missing, rate)
                                        : layer_time_cpu(&e, missing, rate);
    }
}

/* Seconds of a generated token. What comes in does so while the token is computed, over the same
 * bus: a token is not shorter than that. */
static double token_time(const replay *r, int i, replay_mode mode, const speeds *rate)
{
    const routing_model *m = &r->t->model;
    const uint8_t *hits = r->hits + (size_t)i * (size_t)m->n_layer;
    const bool vram = mode == REPLAY_VRAM;
    double sum = (double)m->dense_bytes / (vram ? rate->vram_read : rate->cpu_dense);
    for (int l = 0; l < m->n_layer; l++)
        sum += r->times[l * (m->n_used + 1) + m->n_used - hits[l]];
    return vram ? fmax(sum, (double)r->brought[i] / rate->pcie_in) : sum;
}

static replay_figures figures_of(replay *r, replay_mode mode, const speeds *rate)
{
    const routing_model *m = &r->t->model;
    const size_t n = (size_t)r->n_counted * (size_t)m->n_layer;
    double hits = 0, inside = 0, time = 0;
    for (size_t i = 0; i < n; i++) {
        hits += r->hits[i];
        inside += r->hits[i] == m->n_used;
    }
    fill_times(r, mode, rate);
    for (int i = 0; i < r->n_counted; i++) time += token_time(r, i, mode, rate);
    const double choices = (double)n * m->n_used;
    return (replay_figures){
        .hit_rate = hits / choices, .layers_inside = inside / (double)n,
        .uploads = (mode == REPLAY_RAM ? choices - hits : (double)r->n_brought) / r->n_counted,
        .tok_s = r->n_counted / time,
    };
}

int replay_run(replay_figures *out, replay *r, replay_mode mode, int rule, const replay_size *size,
               int n_upload, const speeds *rate, err_ctx *err)
{
    int rc = 0;
    r->n_brought = 0;
    memset(r->brought, 0, (size_t)r->n_counted * sizeof *r->brought);
    if (rule == REPLAY_BEST) cache_optimum_run(r->hits, r->best, size->n_place, mode == REPLAY_RAM);
    else if (rule == REPLAY_FIXED) run_fixed(r, size);
    else rc = run_policy(r, mode, (cache_policy)rule, size, n_upload, err);
    if (rc == 0) *out = figures_of(r, mode, rate);
    return rc;
}
