/* test_cache_routing.c - tokens whose choice of experts looks at what is in VRAM: --skip-missing,
 * against a naive pass on the CPU.
 *
 * Tokens go through a cache that changes. What was in VRAM for each of them is noted, and the CPU
 * takes the same tokens with a router that knows it: the linker hands every call of router_select
 * to this file first (Makefile). A simulated GPU has the CPU's bits, so the logits are the same,
 * and the host was asked exactly where some of the choice was missing. A real one rounds
 * differently: there only the questions are counted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu_experts.h"
#include "engine/engine_stats.h"
#include "engine/gpu/expert_server.h"
#include "engine/session/runner.h"
#include "moe/expert_store.h"
#include "moe/router.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { PROMPT = 36, SINGLES = 24, FEW = 5, BATCHES = SINGLES + 1, MAX_LAYER = 8, MAX_EXPERT = 32 };

static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };

typedef struct way {
    bool skip;
    int hot_of_8;
    const char *why;
} way;

static const way own = { false, 4, "the model's own choice" };
static const way ways[] = {
    { true, 6, "most is there" }, { true, 4, "half is there" }, { true, 2, "often nothing is" },
};

/* After a prompt: single tokens, then a few together. */
typedef struct trail {
    uint64_t hash[BATCHES];              /* of the logits after each batch */
    bool hot[BATCHES][MAX_LAYER][MAX_EXPERT];    /* what was in VRAM for it */
    int questions, quiet;                /* of the single tokens */
} trail;

/* ---- the naive router ------------------------------------------------------------------------ */

static struct {
    bool on;
    const way *w;
    const bool (*hot)[MAX_EXPERT];       /* [n_layer] of the batch under way */
    int n, call;                         /* its tokens; calls since it began, layer by layer */
    int asks;                            /* layers of single tokens where some are missing */
} naive;

void __real_router_select(int32_t *ids, float *gates, const float *logits, int n, int k,
                            const router_rule *rule);
void __wrap_router_select(int32_t *ids, float *gates, const float *logits, int n, int k,
                            const router_rule *rule);

/* The slots keep their order; one that is dropped has weight 0, whatever its expert. */
static void choose(int32_t *ids, float *gates, const float *logits, int n, int k, const bool *hot)
{
    float unused[GPU_MOST_USED];
    int n_hot = 0;
    double sum = 0.0, top = -INFINITY;
    __real_router_select(ids, unused, logits, n, k, NULL);
    for (int r = 0; r < k; r++) n_hot += hot[ids[r]];
    const bool drops = naive.w->skip && n_hot > 0;
    for (int r = 0; r < k; r++)
        if (!drops || hot[ids[r]]) top = fmax(top, (double)logits[ids[r]]);
    for (int r = 0; r < k; r++)
        if (!drops || hot[ids[r]]) sum += exp((double)logits[ids[r]] - top);
    for (int r = 0; r < k; r++)
        gates[r] = drops && !hot[ids[r]] ? 0.0f
                                           : (float)(exp((double)logits[ids[r]] - top) / sum);
    if (naive.n == 1) naive.asks += drops ? 0 : n_hot < k;
}

void __wrap_router_select(int32_t *ids, float *gates, const float *logits, int n, int k,
                            const router_rule *rule)
{
    if (naive.on) choose(ids, gates, logits, n, k, naive.hot[naive.call++ / naive.n]);
    else __real_router_select(ids, gates, logits, n, k, rule);
}

/* ---- the two passes -------------------------------------------------------------------------- */

static void note_hot(bool hot[][MAX_EXPERT], const engine *e, const model *m)
{
    int list[MAX_LAYER * MAX_EXPERT];
    const int n = engine_resident(e, list, (int)ARRAY_LEN(list));
    for (int i = 0; i < n; i++) hot[list[i] / m->hp.n_expert][list[i] % m->hp.n_expert] = true;
}

/* Experts change places at the end of a batch: those in VRAM before it stay for it. known: the
 * naive router takes t->hot and this option; NULL: t->hot is noted. */
static bool feed(trail *t, model_fixture *r, const way *known)
{
    const model *m = r->m;
    session *s = r->s;
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = test_alloc(n_vocab, sizeof *logits);
    int32_t ids[PROMPT + SINGLES + FEW];
    err_ctx err = { 0 };
    for (int i = 0; i < (int)ARRAY_LEN(ids); i++) ids[i] = (int32_t)((17 + 29 * i) % (int)n_vocab);
    bool ok = CHECK(session_eval(s, ids, PROMPT, logits, 1, NULL, NULL, &err) == 0);
    runner_reset_counts(session_runner(s));
    for (int i = 0; i < BATCHES && ok; i++) {
        const int n = i < SINGLES ? 1 : FEW;
        if (!known) note_hot(t->hot[i], r->e, m);
        naive.on = known != NULL;
        naive.w = known;
        naive.hot = (const bool (*)[MAX_EXPERT])t->hot[i];
        naive.n = n;
        naive.call = 0;
        ok = CHECK_MSG(session_eval(s, ids + PROMPT + i, n, logits, 1, NULL, NULL, &err) == 0,
                       "batch %d: %s", i, err.msg);
        naive.on = false;
        CHECK(!known || naive.call == n * m->hp.n_layer);
        t->hash[i] = str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
    }
    mem_free(logits);
    return ok;
}

static place place_of(const way *w)
{
    return (place){ .name = w->why, .gpu = true, .planned = true, .hot_of_8 = w->hot_of_8,
                    .changing = true, .stage_ranges = 2, .stream_from = 9 };
}

static session_options options_of(const way *w)
{
    return (session_options){ .ctx = 128, .chunk = 64, .kv = KV_F16, .skip_missing = w->skip };
}

static bool begin(model_fixture *r, const way *w, const place *p)
{
    /* one thread: then the CPU calls its router token after token */
    const engine_options eo = { .threads = 1 };
    const session_options so = options_of(w);
    return model_fixture_engine(r, &eo) && place_engine(r->e, r->m, p) &&
           model_fixture_session(r, &so);
}

static bool follow(trail *t, model_fixture *r, const way *w)
{
    const place p = place_of(w);
    expert_server_stats c = { 0 };
    store_stats unused;
    memset(t, 0, sizeof *t);
    bool ok = begin(r, w, &p) && CHECK(engine_caches(r->e)) && feed(t, r, NULL);
    if (ok) {
        runner_counts(session_runner(r->s), &c, &unused);
        const frame_table_stats moved = runner_vram_moves(session_runner(r->s));
        CHECK_MSG(moved.misses > 0 && moved.uploads > 0, "%s: %d missed, %d uploads", w->why,
                  (int)moved.misses, (int)moved.uploads);
    }
    t->questions = (int)c.questions;
    t->quiet = (int)c.quiet;
    model_fixture_stop(r);
    return ok;
}

/* The same tokens on the CPU, whose router knows what was in VRAM. Returns how often the host would
 * have been asked, or -1. */
static int follow_naively(trail *t, model_fixture *r, const way *w)
{
    naive.asks = 0;
    const bool ok = begin(r, w, &places[0]) && CHECK(!engine_caches(r->e)) && feed(t, r, w);
    model_fixture_stop(r);
    return ok ? naive.asks : -1;
}

static bool same(const trail *a, const trail *b)
{
    return memcmp(a->hash, b->hash, sizeof a->hash) == 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* On the CPU there is nothing to look at: the option changes no bit. */
static void check_cpu(const trail *plain, model_fixture *r)
{
    static trail t;
    memset(&t, 0, sizeof t);
    if (begin(r, &ways[1], &places[0]) && feed(&t, r, NULL) && sim_gpu())
        CHECK_MSG(same(&t, plain), "on the CPU the option has an effect");
    model_fixture_stop(r);
}

static void test_file(model_fixture *r)
{
    static trail plain, got, want;
    const model *m = r->m;
    if (!CHECK(m->hp.n_layer <= MAX_LAYER && m->hp.n_expert <= MAX_EXPERT)) return;
    if (gpu_count() == 0 || !follow(&plain, r, &own)) return;
    const int all = SINGLES * m->hp.n_layer;
    CHECK_MSG(plain.questions > 0 && plain.questions + plain.quiet == all, "%d + %d questions",
              plain.questions, plain.quiet);
    want = plain;
    const int own_asks = follow_naively(&want, r, &own);
    CHECK_MSG(!sim_gpu() || (same(&plain, &want) && own_asks == plain.questions),
              "without the option: %d questions, expected %d", plain.questions, own_asks);
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        const way *w = &ways[i];
        if (!follow(&got, r, w)) continue;
        want = got;
        const int asks = follow_naively(&want, r, w);
        CHECK_MSG(!sim_gpu() || same(&got, &want), "%s: not the naive logits", w->why);
        CHECK_MSG(!sim_gpu() || got.questions == asks, "%s: %d questions, expected %d", w->why,
                  got.questions, asks);
        CHECK_MSG(got.questions + got.quiet == all, "%s: %d + %d of %d layers", w->why,
                  got.questions, got.quiet, all);
        CHECK_MSG(w->hot_of_8 < 6 || 8 * got.questions < plain.questions,
                  "%s: %d questions, %d without the option", w->why, got.questions,
                  plain.questions);
        CHECK_MSG(!same(&got, &plain), "%s: no effect", w->why);
    }
    check_cpu(&plain, r);
}

/* Files of one way are not taken by another: it is another model in effect. */
static void test_saved(model_fixture *r)
{
    char path[512], *extra = NULL;
    const int fd = mkstemp(test_temp(path, sizeof path));
    const place p = place_of(&own);
    const int32_t ids[3] = { 5, 6, 7 };
    session *other[2] = { NULL };
    size_t n_extra;
    err_ctx err = { 0 };
    if (gpu_count() > 0 && CHECK(fd >= 0) && begin(r, &ways[0], &p) &&
        CHECK(session_eval(r->s, ids, 3, NULL, 0, NULL, NULL, &err) == 0 &&
              session_save(r->s, path, (str_view){ "", 0 }, &err) == 0)) {
        const way *of[2] = { &ways[0], &own };
        for (int i = 0; i < 2; i++) {
            const session_options so = options_of(of[i]);
            const bool taken = CHECK(session_create(&other[i], r->e, &so, &err) == 0) &&
                               session_load(other[i], path, &extra, &n_extra, &err) == 0;
            CHECK_MSG(taken == (i == 0), "a file of another choice of experts: %d", i);
            mem_free(extra);
            extra = NULL;
        }
    }
    for (int i = 0; i < 2; i++) session_free(other[i]);
    model_fixture_stop(r);
    if (fd >= 0) close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    test_begin("cache routing", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU");
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        model_fixture r;
        if (model_fixture_open(&r, files[i])) {
            test_file(&r);
            test_saved(&r);
        }
        model_fixture_close(&r);
    }
    return test_end();
}
