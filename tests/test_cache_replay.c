/* test_cache_replay.c - replays of made-up traces: against naive caches that search everything,
 * against all that any cache could do (small ones, every choice tried), and by hand.
 *
 * Which expert a policy values most is tests/test_expert_cache.c's business; here it is when
 * experts come in, what counts as a hit, and the best there is. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/cache_replay.h"
#include "tests/test.h"
#include "tiers/layer_time.h"

enum { MAX_LAYER = 6, MAX_EXPERT = 16, MAX_USED = 4, MAX_TOKEN = 300,
       MAX_OWNER = MAX_LAYER * MAX_EXPERT };

/* A trace in memory. */
typedef struct made {
    routing_trace t;
    uint64_t expert_bytes[MAX_LAYER], down_bytes[MAX_LAYER];
    uint32_t pos[MAX_TOKEN];
    bool prompt[MAX_TOKEN];
    uint16_t ids[MAX_TOKEN * MAX_LAYER * MAX_USED];
} made;

static void make_empty(made *m, int n_layer, int n_expert, int n_used, int n_token)
{
    memset(m, 0, sizeof *m);
    m->t = (routing_trace){
        .model = { .n_layer = n_layer, .n_expert = n_expert, .n_used = n_used,
                   .dense_bytes = 5000000, .expert_bytes = m->expert_bytes,
                   .down_bytes = m->down_bytes, .name = "made up" },
        .n_token = n_token, .pos = m->pos, .prompt = m->prompt, .ids = m->ids,
    };
    for (int l = 0; l < n_layer; l++) {
        m->expert_bytes[l] = 300000;
        m->down_bytes[l] = 100000;
    }
    for (int t = 0; t < n_token; t++) m->pos[t] = (uint32_t)t;
}

static void set_prompt(made *m, int t) { m->t.n_prompt += !m->prompt[t], m->prompt[t] = true; }

/* Popular experts, which change now and then; the first n_prompt tokens are given. */
static void make_random(made *m, int n_layer, int n_expert, int n_used, int n_token, int n_prompt,
                        test_rng *rng)
{
    make_empty(m, n_layer, n_expert, n_used, n_token);
    uint32_t shift = 0;
    for (int t = 0; t < n_token; t++) {
        if (test_below(rng, 40) == 0) shift = test_below(rng, (uint32_t)n_expert);
        if (t < n_prompt) set_prompt(m, t);
        for (int l = 0; l < n_layer; l++) {
            uint16_t *ids = m->ids + (t * n_layer + l) * n_used;
            for (int i = 0; i < n_used;) {
                const uint32_t a = test_below(rng, (uint32_t)n_expert),
                               b = test_below(rng, (uint32_t)n_expert);
                const uint16_t e = (uint16_t)(((a < b ? a : b) + shift) % (uint32_t)n_expert);
                int j = 0;
                while (j < i && ids[j] != e) j++;
                if (j == i) ids[i++] = e;
            }
        }
    }
}

/* Layers of n_size sizes, in turn. */
static void set_sizes(made *m, int n_size)
{
    for (int l = 0; l < m->t.model.n_layer; l++)
        m->expert_bytes[l] = 300000 + 1000 * (uint64_t)(l % n_size);
}

static int n_counted(const made *m) { return m->t.n_token - m->t.n_prompt; }

static const speeds usual = {
    .vram_read = 400e9, .pcie_in = 20e9, .pcie_out = 20e9, .pull = 18e9, .pull_busy = 16e9,
    .cpu = 40e9, .cpu_busy = 35e9, .cpu_dense = 50e9, .cpu_many = 6e11, .gpu_macs = 2e13,
    .hop = 8e-6, .disk = 2e9, .disk_straight = 2e9, .layer_dense = 20e-6, .layer_hot = 8e-6,
    .layer_cpu = 30e-6, .disk_wait = 0.2e-3,
};

static replay_figures run(replay *r, replay_mode mode, int rule, const replay_size *size, int cap)
{
    replay_figures f = { 0 };
    err_ctx err = { 0 };
    const int rc = replay_run(&f, r, mode, rule, size, cap, &usual, &err);
    CHECK_MSG(rc == 0, "%s, %s: %s", replay_mode_name(mode), replay_rule_name(rule), err.msg);
    return f;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(1, fabs(b)); }

/* ---- naive caches ---------------------------------------------------------------------------- */

typedef struct naive {
    const made *m;
    bool there[MAX_OWNER];
    long used[MAX_OWNER];                /* when, counting every use; 0: never */
    int count[MAX_OWNER];
    long now;
    int n_place[CACHE_MOST_POOLS];
    double hits, inside, uploads;        /* of tokens that count */
} naive;

static int owner_of(const made *m, int t, int l, int i)
{
    return l * m->t.model.n_expert + routing_trace_ids(&m->t, t, l)[i];
}

static int pool_of(const made *m, int owner)
{
    const uint64_t bytes = m->expert_bytes[owner / m->t.model.n_expert];
    int p = 0;
    for (int l = 0; m->expert_bytes[l] != bytes; l++) {
        bool first = true;
        for (int k = 0; k < l; k++) first &= m->expert_bytes[k] != m->expert_bytes[l];
        p += first;
    }
    return p;
}

static int n_there(const naive *v, int pool)
{
    int n = 0;
    for (int o = 0; o < v->m->t.model.n_layer * v->m->t.model.n_expert; o++)
        n += v->there[o] && pool_of(v->m, o) == pool;
    return n;
}

static bool weaker(const naive *v, int a, int b, bool lfu)
{
    if (lfu && v->count[a] != v->count[b]) return v->count[a] < v->count[b];
    return v->used[a] < v->used[b];
}

/* The one of the pool that would go. */
static int weakest(const naive *v, int pool, bool lfu)
{
    int worst = -1;
    for (int o = 0; o < v->m->t.model.n_layer * v->m->t.model.n_expert; o++)
        if (v->there[o] && pool_of(v->m, o) == pool && (worst < 0 || weaker(v, o, worst, lfu)))
            worst = o;
    return worst;
}

static void note_use(naive *v, int owner)
{
    v->used[owner] = ++v->now;
    v->count[owner]++;
}

/* After token t: its missing ones, the most valuable first. An LFU newcomer must have been used
 * more often than the one that goes, after the prompt twice more; a later use is not enough. */
static int naive_bring_in(naive *v, int t, bool lfu, int cap)
{
    const int more = v->m->prompt[t] ? 0 : 1;
    const routing_model *m = &v->m->t.model;
    bool tried[MAX_OWNER] = { false };
    int n_in = 0;
    while (n_in < cap) {
        int best = -1;
        for (int l = 0; l < m->n_layer; l++)
            for (int i = 0; i < m->n_used; i++) {
                const int o = owner_of(v->m, t, l, i);
                if (v->there[o] || tried[o]) continue;
                if (best < 0 || (lfu ? v->count[o] > v->count[best] : v->used[o] > v->used[best]))
                    best = o;
                /* of equal counts: by layer, then by number, as the replay does */
                else if (lfu && v->count[o] == v->count[best] && o < best) best = o;
            }
        if (best < 0) break;
        tried[best] = true;
        const int pool = pool_of(v->m, best);
        if (v->n_place[pool] == 0) continue;
        if (n_there(v, pool) == v->n_place[pool]) {
            const int gone = weakest(v, pool, lfu);
            if (lfu ? v->count[best] <= v->count[gone] + more
                    : v->used[best] <= v->used[gone]) continue;
            v->there[gone] = false;
            tried[gone] = true;          /* it had its chance */
        }
        v->there[best] = true;
        n_in++;
    }
    return n_in;
}

static void naive_run(naive *v, const made *m, const replay_size *size, replay_mode mode, bool lfu,
                      int cap)
{
    memset(v, 0, sizeof *v);
    v->m = m;
    memcpy(v->n_place, size->n_place, sizeof v->n_place);
    for (int t = 0; t < m->t.n_token; t++) {
        for (int l = 0; l < m->t.model.n_layer; l++) {
            int hits = 0;
            for (int i = 0; i < m->t.model.n_used; i++) {
                const int o = owner_of(m, t, l, i), pool = pool_of(m, o);
                hits += v->there[o];
                if (mode == REPLAY_RAM && !v->there[o] && v->n_place[pool] > 0) {
                    if (n_there(v, pool) == v->n_place[pool])
                        v->there[weakest(v, pool, lfu)] = false;
                    v->there[o] = true;
                }
                note_use(v, o);
            }
            if (m->prompt[t]) continue;
            v->hits += hits;
            v->inside += hits == m->t.model.n_used;
        }
        if (mode == REPLAY_RAM) continue;
        const int n = naive_bring_in(v, t, lfu, m->prompt[t] ? MAX_OWNER : cap);
        if (!m->prompt[t]) v->uploads += n;
    }
}

static void see_naive(const made *m, replay *r, const replay_size *size, replay_mode mode,
                      cache_policy policy, int cap)
{
    static naive v;
    const double n = (double)n_counted(m) * m->t.model.n_layer;
    const replay_figures f = run(r, mode, (int)policy, size, cap);
    naive_run(&v, m, size, mode, policy == CACHE_LFU, cap);
    CHECK_MSG(near(f.hit_rate * n * m->t.model.n_used, v.hits), "%s %s, %d places, cap %d: %g "
              "hits, not %g", replay_mode_name(mode), cache_policy_name(policy), size->places, cap,
              f.hit_rate * n * m->t.model.n_used, v.hits);
    CHECK_MSG(near(f.layers_inside * n, v.inside), "%s: %g layers inside, not %g",
              replay_mode_name(mode), f.layers_inside * n, v.inside);
    if (mode == REPLAY_VRAM)
        CHECK_MSG(near(f.uploads * n_counted(m), v.uploads), "cap %d: %g uploads, not %g", cap,
                  f.uploads * n_counted(m), v.uploads);
}

static void test_naive(void)
{
    static const double shares[] = { 0, 0.03, 0.1, 0.25, 0.5, 0.8, 1 };
    static const int caps[] = { 0, 1, 3, 8, 100 };
    static made m;
    test_rng rng = { 21 };
    for (int i = 0; i < 6; i++) {
        replay *r = NULL;
        make_random(&m, 1 + i, 16, 1 + i % 4, 150, i % 3 * 20, &rng);
        set_sizes(&m, 1 + i % 3);
        if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
        for (size_t s = 0; s < ARRAY_LEN(shares); s++) {
            const replay_size size = replay_share(r, shares[s]);
            see_naive(&m, r, &size, REPLAY_RAM, CACHE_LRU, 0);
            see_naive(&m, r, &size, REPLAY_RAM, CACHE_LFU, 0);
            for (size_t c = 0; c < ARRAY_LEN(caps); c++) {
                see_naive(&m, r, &size, REPLAY_VRAM, CACHE_LRU, caps[c]);
                see_naive(&m, r, &size, REPLAY_VRAM, CACHE_LFU, caps[c]);
            }
        }
        replay_free(r);
    }
}

/* ---- the best there is ----------------------------------------------------------------------- */

static double best_hits(const made *m, replay *r, const replay_size *size, replay_mode mode)
{
    const replay_figures f = run(r, mode, REPLAY_BEST, size, 0);
    return f.hit_rate * n_counted(m) * m->t.model.n_layer * m->t.model.n_used;
}

/* Tries everything: the most hits with each set of experts in the cache, token by token. */
enum { TRIED_OWNERS = 8, N_SET = 1 << TRIED_OWNERS };

static void forget(int most[N_SET])
{
    for (int s = 0; s < N_SET; s++) most[s] = -1;
}

static void keep(int most[N_SET], int set, int hits)
{
    if (hits > most[set]) most[set] = hits;
}

/* A request on demand: it stays as it is, takes an empty place, or any expert goes. */
static void try_request(int to[N_SET], const int from[N_SET], int owner, int n_place)
{
    const int bit = 1 << owner;
    forget(to);
    for (int s = 0; s < N_SET; s++) {
        if (from[s] < 0) continue;
        if (s & bit) keep(to, s, from[s] + 1);
        else if (n_place == 0) keep(to, s, from[s]);
        else if (__builtin_popcount((unsigned)s) < n_place) keep(to, s | bit, from[s]);
        else
            for (int o = 0; o < TRIED_OWNERS; o++)
                if (s & 1 << o) keep(to, (s & ~(1 << o)) | bit, from[s]);
    }
}

/* A token's experts at once, as between tokens and in prompts: afterwards any of these and of those
 * that were there. */
static void try_token(int to[N_SET], const int from[N_SET], int chosen, int n_place, bool counts)
{
    forget(to);
    for (int s = 0; s < N_SET; s++) {
        if (from[s] < 0) continue;
        const int hits = counts ? __builtin_popcount((unsigned)(s & chosen)) : 0;
        const int all = s | chosen;
        for (int kept = all;; kept = (kept - 1) & all) {
            if (__builtin_popcount((unsigned)kept) <= n_place) keep(to, kept, from[s] + hits);
            if (kept == 0) break;
        }
    }
}

static int try_all(const made *m, replay_mode mode, int n_place)
{
    static int table[2][N_SET];
    int *now = table[0], *then = table[1];
    int most = 0;
    forget(now);
    now[0] = 0;
    for (int t = 0; t < m->t.n_token; t++) {
        int chosen = 0;
        for (int l = 0; l < m->t.model.n_layer; l++)
            for (int i = 0; i < m->t.model.n_used; i++) {
                const int o = owner_of(m, t, l, i);
                chosen |= 1 << o;
                if (mode == REPLAY_VRAM || m->prompt[t]) continue;
                try_request(then, now, o, n_place);
                int *swap = now;
                now = then;
                then = swap;
            }
        if (mode == REPLAY_RAM && !m->prompt[t]) continue;
        try_token(then, now, chosen, n_place, !m->prompt[t]);
        int *swap = now;
        now = then;
        then = swap;
    }
    for (int s = 0; s < N_SET; s++) most = max_int(most, now[s]);
    return most;
}

static void test_every_choice(void)
{
    static const struct { int n_layer, n_expert, n_used; } shapes[] = {
        { 1, 5, 1 }, { 1, 8, 2 }, { 2, 4, 1 }, { 2, 4, 2 }, { 4, 2, 1 },
    };
    static made m;
    test_rng rng = { 5 };
    for (int i = 0; i < 150; i++) {
        const int k = i % (int)ARRAY_LEN(shapes);
        const int n_owner = shapes[k].n_layer * shapes[k].n_expert;
        replay *r = NULL;
        make_random(&m, shapes[k].n_layer, shapes[k].n_expert, shapes[k].n_used, 14, i % 7, &rng);
        if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
        for (int n = 0; n <= n_owner; n++)
            for (int mode = 0; mode < REPLAY_MODES; mode++) {
                const replay_size size = replay_share(r, (double)n / n_owner);
                const int want = try_all(&m, (replay_mode)mode, n);
                CHECK_MSG(size.places == n, "%d places, not %d", size.places, n);
                CHECK_MSG(near(best_hits(&m, r, &size, (replay_mode)mode), want),
                          "trace %d, %s, %d places: %g hits, not %d", i,
                          replay_mode_name((replay_mode)mode), n,
                          best_hits(&m, r, &size, (replay_mode)mode), want);
            }
        replay_free(r);
    }
}

static int used_at(const made *m, int at)        /* of all uses, in their order */
{
    const int n_used = m->t.model.n_used, n_layer = m->t.model.n_layer;
    return owner_of(m, at / n_used / n_layer, at / n_used % n_layer, at % n_used);
}

/* The expert in the cache whose next use after `at` is furthest away, found by looking. */
static int furthest(const made *m, const bool *there, int at)
{
    const int n_use = m->t.n_token * m->t.model.n_layer * m->t.model.n_used;
    int gone = -1, when = -1;
    for (int o = 0; o < m->t.model.n_layer * m->t.model.n_expert; o++) {
        int next = at + 1;
        if (!there[o]) continue;
        while (next < n_use && used_at(m, next) != o) next++;
        if (next > when) when = next, gone = o;
    }
    return gone;
}

/* On demand, one pool: all that the prompt chose, then as much of it as fits. */
static int naive_belady(const made *m, int n_place)
{
    const int per_token = m->t.model.n_layer * m->t.model.n_used;
    const int begin = m->t.n_prompt * per_token, n_use = m->t.n_token * per_token;
    bool there[MAX_OWNER] = { false };
    int n = 0, hits = 0;
    for (int at = 0; at < begin; at++) {
        n += !there[used_at(m, at)];
        there[used_at(m, at)] = true;
    }
    for (; n > n_place; n--) there[furthest(m, there, begin - 1)] = false;
    for (int at = begin; at < n_use; at++) {
        const int o = used_at(m, at);
        hits += there[o];
        if (there[o] || n_place == 0) continue;
        if (n == n_place) there[furthest(m, there, at)] = false;
        else n++;
        there[o] = true;
    }
    return hits;
}

static void test_belady(void)
{
    static made m;
    test_rng rng = { 77 };
    for (int i = 0; i < 4; i++) {
        replay *r = NULL;
        make_random(&m, 2 + i, 12, 1 + i % 3, 120, i * 10, &rng);
        if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
        for (int n = 0; n <= 12 * (2 + i); n += 5) {
            const replay_size size = replay_share(r, n / (12.0 * (2 + i)));
            const double got = best_hits(&m, r, &size, REPLAY_RAM);
            const int want = naive_belady(&m, n);
            CHECK_MSG(near(got, want), "trace %d, %d places: %g hits, not %d", i, n, got, want);
        }
        replay_free(r);
    }
}

/* No policy beats it, more room never has fewer hits, and with all of it only first uses miss. */
static void test_bounds(void)
{
    static made m;
    test_rng rng = { 8 };
    for (int i = 0; i < 12; i++) {
        replay *r = NULL;
        make_random(&m, 1 + i % 6, 16, 1 + i % 4, 300, i % 4 * 30, &rng);
        set_sizes(&m, 1 + i % 3);
        if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
        for (int mode = 0; mode < REPLAY_MODES; mode++) {
            double before = 0;
            for (int percent = 0; percent <= 100; percent += 10) {
                const replay_size size = replay_share(r, percent / 100.0);
                const double best = best_hits(&m, r, &size, (replay_mode)mode);
                CHECK_MSG(best >= before, "%d%%: %g hits, with less room %g", percent, best,
                          before);
                before = best;
                for (int p = 0; p < CACHE_POLICIES; p++) {
                    const replay_figures f = run(r, (replay_mode)mode, p, &size, 1 + 5 * (i % 3));
                    const double hits = f.hit_rate * n_counted(&m) * m.t.model.n_layer *
                                        m.t.model.n_used;
                    CHECK_MSG(hits <= best + 1e-6, "%s, %s, %d%%: %g hits, the best has %g",
                              replay_mode_name((replay_mode)mode), replay_rule_name(p), percent,
                              hits, best);
                    CHECK(f.tok_s > 0 && f.layers_inside <= f.hit_rate + 1e-9);
                }
            }
        }
        replay_free(r);
    }
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* One layer of 4 experts, one chosen: 0 1 | 0 2 0 3 0, places for two. */
static void test_by_hand(void)
{
    static const uint16_t ids[] = { 0, 1, 0, 2, 0, 3, 0 };
    static made m;
    replay *r = NULL;
    make_empty(&m, 1, 4, 1, ARRAY_LEN(ids));
    memcpy(m.ids, ids, sizeof ids);
    set_prompt(&m, 0);
    set_prompt(&m, 1);
    if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
    const replay_size two = replay_share(r, 0.5), none = replay_share(r, 0.2);
    const struct { replay_mode mode; int rule, cap; const replay_size *size; double hits, uploads;
                   const char *why; } rows[] = {
        { REPLAY_RAM, CACHE_LRU, 0, &two, 3, 2, "1, then 2 goes" },
        { REPLAY_RAM, CACHE_LFU, 0, &two, 3, 2, "0 is used most" },
        { REPLAY_RAM, REPLAY_BEST, 0, &two, 3, 2, "2 and 3 are new" },
        { REPLAY_RAM, CACHE_LRU, 0, &none, 0, 5, "no places" },
        { REPLAY_RAM, REPLAY_BEST, 0, &none, 0, 5, "no places" },
        { REPLAY_VRAM, CACHE_LRU, 8, &two, 3, 2, "2 and 3 come in after their tokens" },
        { REPLAY_VRAM, CACHE_LRU, 0, &two, 3, 0, "what the prompt left stays" },
        { REPLAY_VRAM, CACHE_LFU, 8, &two, 3, 0, "2 and 3 were used no more often than 1" },
        { REPLAY_VRAM, CACHE_LCP, 8, &two, 3, 0, "... of about the same value" },
        { REPLAY_VRAM, CACHE_FADE, 8, &two, 3, 0, "the same" },
        { REPLAY_VRAM, CACHE_LRU, 8, &none, 0, 0, "no places" },
        { REPLAY_VRAM, REPLAY_BEST, 0, &two, 3, 0, "0 stays" },
        { REPLAY_VRAM, REPLAY_FIXED, 0, &two, 3, 0, "0 and 1" },
        { REPLAY_VRAM, REPLAY_FIXED, 0, &none, 0, 0, "nothing" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const replay_figures f = run(r, rows[i].mode, rows[i].rule, rows[i].size, rows[i].cap);
        CHECK_MSG(near(f.hit_rate * 5, rows[i].hits) && near(f.uploads * 5, rows[i].uploads),
                  "%s, %s: %g hits and %g uploads, not %g and %g (%s)",
                  replay_mode_name(rows[i].mode), replay_rule_name(rows[i].rule), f.hit_rate * 5,
                  f.uploads * 5, rows[i].hits, rows[i].uploads, rows[i].why);
    }
    replay_free(r);
}

/* Sizes, with layers of two sizes: 2 of 1 MB and 1 of 3 MB, 8 experts each, 2 chosen. */
static void test_sizes(void)
{
    static made m;
    test_rng rng = { 1 };
    replay *r = NULL;
    make_random(&m, 3, 8, 2, 10, 2, &rng);
    m.expert_bytes[0] = m.expert_bytes[2] = 1000000;
    m.expert_bytes[1] = 3000000;
    if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
    const replay_size half = replay_share(r, 0.5), odd = replay_share(r, 0.29),
                      all = replay_share(r, 1), one = replay_one_token(r);
    CHECK(replay_all_bytes(r) == 40000000 && all.bytes == 40000000 && all.places == 24);
    CHECK(half.n_place[0] == 8 && half.n_place[1] == 4 && half.bytes == 20000000);
    CHECK(odd.n_place[0] == 4 && odd.n_place[1] == 2 && odd.places == 6);
    CHECK(one.n_place[0] == 4 && one.n_place[1] == 2 && one.bytes == 10000000);
    /* half of the bytes: layer 0, and 4 of layer 1 */
    const replay_figures f = run(r, REPLAY_VRAM, REPLAY_FIXED, &half, 0);
    double hits = 0;
    for (int t = 0; t < m.t.n_token; t++)
        for (int i = 0; i < 2 && !m.prompt[t]; i++)
            hits += 1 + (routing_trace_ids(&m.t, t, 1)[i] < 4);
    CHECK_MSG(near(f.hit_rate * n_counted(&m) * 6, hits), "fixed: %g of %g", f.hit_rate, hits);
    replay_free(r);
    make_empty(&m, 1, 100, 1, 1);        /* 0.29 * 100 is a little less than 29 */
    if (CHECK(replay_create(&r, &m.t, NULL) == 0)) CHECK(replay_share(r, 0.29).places == 29);
    replay_free(r);
}

/* Two layers, two of four experts chosen; places for all of them but one. */
static void test_times(void)
{
    static made m;
    replay *r = NULL;
    make_empty(&m, 2, 4, 2, 3);
    static const uint16_t ids[] = { 0, 1, 0, 1,   0, 1, 0, 1,   2, 3, 0, 1 };
    memcpy(m.ids, ids, sizeof ids);
    set_prompt(&m, 0);
    if (!CHECK(replay_create(&r, &m.t, NULL) == 0)) return;
    const replay_size half = replay_share(r, 0.5);
    const layer_experts e = { 300000, 100000, 2 };
    const double dense = 5000000 / usual.vram_read, on_cpu = 5000000 / usual.cpu_dense;
    const double hot = layer_time_gpu(&e, 0, &usual), cold = layer_time_gpu(&e, 2, &usual);
    const double held = layer_time_cpu(&e, 0, &usual), missed = layer_time_cpu(&e, 2, &usual);
    replay_figures f = run(r, REPLAY_VRAM, CACHE_LRU, &half, 8);
    const double upload = fmax(dense + hot + cold, 600000 / usual.pcie_in);
    CHECK_MSG(near(f.tok_s, 2 / (dense + 2 * hot + upload)), "VRAM: %g tok/s", f.tok_s);
    CHECK(near(f.hit_rate, 0.75) && near(f.layers_inside, 0.75) && near(f.uploads, 1));
    f = run(r, REPLAY_RAM, CACHE_LRU, &half, 8);
    CHECK_MSG(near(f.tok_s, 2 / (2 * on_cpu + 3 * held + missed)), "RAM: %g tok/s", f.tok_s);
    speeds slow_bus = usual;             /* then the bus is what a token waits for */
    slow_bus.pcie_in = 1e9;
    CHECK(replay_run(&f, r, REPLAY_VRAM, CACHE_LRU, &half, 8, &slow_bus, NULL) == 0);
    CHECK_MSG(near(f.tok_s, 2 / (dense + 2 * hot + 600e-6)), "slow bus: %g tok/s", f.tok_s);
    replay_free(r);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    static made m;
    static uint64_t sizes[CACHE_MOST_POOLS + 1];
    static uint16_t ids[2 * (CACHE_MOST_POOLS + 1)];
    test_rng rng = { 2 };
    replay *r = NULL;
    err_ctx err = { 0 };
    make_random(&m, 2, 4, 1, 5, 0, &rng);
    for (int t = 0; t < 5; t++) set_prompt(&m, t);
    CHECK(replay_create(&r, &m.t, &err) < 0 && !r);
    CHECK_MSG(strstr(err.msg, "a prompt of 5 tokens and none after it") != NULL, "%s", err.msg);
    make_random(&m, 2, 4, 1, 5, 2, &rng);
    set_prompt(&m, 3);
    CHECK(replay_create(&r, &m.t, &err) < 0 && !r);
    CHECK_MSG(strstr(err.msg, "a second prompt after token 2") != NULL, "%s", err.msg);
    make_random(&m, 2, 4, 1, 2, 0, &rng);
    for (int l = 0; l <= CACHE_MOST_POOLS; l++) sizes[l] = 1000 + (uint64_t)l;
    m.t.model.n_layer = CACHE_MOST_POOLS + 1;
    m.t.model.expert_bytes = m.t.model.down_bytes = sizes;
    m.t.ids = ids;
    CHECK(replay_create(&r, &m.t, &err) < 0 && !r);
    CHECK_MSG(strstr(err.msg, "more than 16 different sizes") != NULL, "%s", err.msg);
    m.t.model.n_layer = CACHE_MOST_POOLS;
    CHECK(replay_create(&r, &m.t, &err) == 0);
    replay_free(r);
    replay_free(NULL);
    cache_optimum_free(NULL);
}

static void test_no_memory(void)
{
    static made m;
    test_rng rng = { 3 };
    int n_failed = 0;
    make_random(&m, 3, 8, 2, 20, 4, &rng);
    for (long at = 1; at < 60; at++) {
        replay *r = NULL;
        replay_figures f;
        err_ctx err = { 0 };
        mem_fail_after(at);
        int rc = replay_create(&r, &m.t, &err);
        const replay_size size = rc == 0 ? replay_share(r, 0.5) : (replay_size){ .places = 0 };
        for (int rule = 0; rule < REPLAY_RULES && rc == 0; rule++)
            rc = replay_run(&f, r, REPLAY_VRAM, rule, &size, 8, &usual, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && err.msg[0]), "allocation %ld: %d %s", at, rc,
                  err.msg);
        replay_free(r);
        if (rc == 0) break;
        n_failed++;
    }
    CHECK_MSG(n_failed > 10 && n_failed < 59, "%d failures", n_failed);
}

int main(int argc, char **argv)
{
    test_begin("cache_replay", argc, argv);
    test_by_hand();
    test_sizes();
    test_times();
    test_naive();
    test_every_choice();
    test_belady();
    test_bounds();
    test_refusals();
    test_no_memory();
    return test_end();
}
