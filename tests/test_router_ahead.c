/* test_router_ahead.c - guesses are what the next layer's router says of this layer's
 * vector, and experts that were read early are the right ones. */
#include "engine/host/router_ahead.h"

#include <math.h>
#include <string.h>

#include "tests/make_store.h"
#include "tests/test.h"

enum { N_EXPERT = 37, N_USED = 5, N_LAYER = 4 };

static const bool all[N_LAYER] = { true, true, true, true };
static const int first[N_USED] = { 1, 2, 3, 4, 5 };              /* some experts of a layer */

typedef struct stage {
    made_model f;
    weights *w;
    ops o;
    acts x;
    void *storage;
    float *h, *in;                       /* a residual's direction; what this layer's experts see */
    int n_embd;
} stage;

static bool stage_open(stage *g, model_arch arch, unsigned variants, made_where where)
{
    const maker mk = made_maker(arch, N_EXPERT, N_USED, variants);
    *g = (stage){ .n_embd = mk.n_embd };
    g->o = (ops){ .kernels = kernels_contract(), .loops = loops_for("scalar") };
    g->h = test_alloc((size_t)g->n_embd, sizeof *g->h);
    g->in = test_alloc((size_t)g->n_embd, sizeof *g->in);
    g->storage = test_alloc(acts_bytes(1, g->n_embd), 1);
    memset(g->storage, 0, acts_bytes(1, g->n_embd));
    acts_init(&g->x, g->storage, 1, g->n_embd);
    return made_open(&g->f, &mk, where) && CHECK(g->f.m->hp.n_layer == N_LAYER) &&
           CHECK(weights_create(&g->w, g->f.m, NULL) == 0) &&
           CHECK(pool_create(&g->o.team, test_n_thread(2), NULL) == 0);
}

static void stage_close(stage *g)
{
    pool_free(g->o.team);
    weights_free(g->w);
    made_close(&g->f);
    mem_free(g->h);
    mem_free(g->in);
    mem_free(g->storage);
}

static void draw(stage *g, int layer, test_rng *rng)
{
    const float *norm = g->w->layers[layer].post_attn_norm;
    for (int i = 0; i < g->n_embd; i++) {
        g->h[i] = ((float)test_below(rng, 2001) - 1000) / 1000;
        g->in[i] = g->h[i] * norm[i];
    }
    acts_set(&g->x, g->in, 1, g->n_embd);
}

/* The next router's score of an expert for the same residual, and the sum of absolute values. */
static double score(const stage *g, int next, int expert, double *size)
{
    const matrix *r = &g->w->layers[next].router;
    const float *norm = g->w->layers[next].post_attn_norm;
    double sum = 0;
    float v;
    *size = 0;
    for (int i = 0; i < g->n_embd; i++) {
        memcpy(&v, r->data + (uint64_t)expert * r->row_bytes + (size_t)i * sizeof v, sizeof v);
        sum += (double)v * norm[i] * g->h[i];
        *size += fabs((double)v * norm[i] * g->h[i]);
    }
    v = 0;
    if (r->bias) memcpy(&v, (const uint8_t *)r->bias + (size_t)expert * sizeof v, sizeof v);
    return sum * r->scale + v;
}

/* ---- guesses --------------------------------------------------------------------------------- */

/* Each of k guesses is among the k best, except for what 16 bits cannot tell apart. */
static void check_guess(const stage *g, int next, const int32_t *ids, const char *name)
{
    double scores[N_EXPERT], most = 0;
    bool guessed[N_EXPERT] = { false };
    for (int e = 0; e < N_EXPERT; e++) {
        double size;
        scores[e] = score(g, next, e, &size);
        most = fmax(most, size);
    }
    for (int i = 0; i < N_USED; i++) {
        if (ids[i] < 0 || ids[i] >= N_EXPERT || guessed[ids[i]]) {
            CHECK_MSG(false, "%s, layer %d: guess %d is %d", name, next, i, ids[i]);
            return;
        }
        guessed[ids[i]] = true;
    }
    double least = INFINITY, missed = -INFINITY;
    for (int e = 0; e < N_EXPERT; e++) {
        if (guessed[e]) least = fmin(least, scores[e]);
        else missed = fmax(missed, scores[e]);
    }
    CHECK_MSG(missed <= least + most / 64, "%s, layer %d: an expert with %g, and not one with %g",
              name, next, least, missed);
}

static void check_guesses(stage *g, const char *name)
{
    const bool some[N_LAYER] = { true, true, false, true };
    const model_hparams *hp = &g->f.m->hp;
    test_rng rng = { 7 };
    router_ahead *f = NULL;
    const int32_t *ids;
    if (!CHECK(router_ahead_create(&f, &g->o, g->w, hp, all, NULL) == 0)) return;
    for (int i = 0; i < 8; i++)
        for (int l = 0; l < N_LAYER; l++) {
            draw(g, l, &rng);
            const int n = router_ahead_predict(f, l, &g->x, &ids);
            CHECK(n == (l + 1 < N_LAYER ? N_USED : 0));
            if (n > 0) check_guess(g, l + 1, ids, name);
        }
    router_ahead_free(f);
    f = NULL;
    if (!CHECK(router_ahead_create(&f, &g->o, g->w, hp, some, NULL) == 0)) return;
    for (int l = 0; l < N_LAYER; l++)    /* both layers or neither */
        CHECK((router_ahead_predict(f, l, &g->x, &ids) == N_USED) == (l == 0));
    CHECK(router_ahead_bytes(hp, some) < router_ahead_bytes(hp, all));
    router_ahead_free(f);
}

/* A norm with a zero weight tells nothing of that channel, and does not spoil the others. */
static void check_zero_norm(stage *g)
{
    float *norm = (float *)(uintptr_t)g->w->layers[0].post_attn_norm;
    test_rng rng = { 3 };
    router_ahead *f = NULL;
    const int32_t *ids;
    const float kept = norm[5];
    norm[5] = 0;
    if (CHECK(router_ahead_create(&f, &g->o, g->w, &g->f.m->hp, all, NULL) == 0)) {
        draw(g, 0, &rng);
        g->h[5] = 0;                     /* as far as it can be known */
        CHECK(router_ahead_predict(f, 0, &g->x, &ids) == N_USED);
        check_guess(g, 1, ids, "a norm of 0");
    }
    router_ahead_free(f);
    norm[5] = kept;
}

/* ---- in a store ------------------------------------------------------------------------------ */

static bool all_there(const stage *g, expert_store *s, int layer, const int *experts, int n)
{
    int which[N_EXPERT], got;
    bool ok = expert_store_want(s, layer, experts, n, NULL) == 0;
    while ((got = expert_store_next(s, which, STORE_ALL, NULL)) > 0)
        for (int i = 0; i < got; i++) {
            const int e = experts[which[i]];
            expert_slabs at;
            ok &= expert_store_find(s, layer, e, &at);
            for (int k = 0; ok && k < SLAB_COUNT; k++)
                ok &= made_slab_is(&g->f, layer, (expert_slab)k, e, at.at[k]);
        }
    expert_store_release(s);
    return ok && got == 0;
}

/* What layer 0 will guess of layer 1 for a vector just drawn. */
static void prediction_of(stage *g, router_ahead *f, int chosen[N_USED], test_rng *rng)
{
    const int32_t *ids;
    draw(g, 0, rng);
    CHECK(router_ahead_predict(f, 0, &g->x, &ids) == N_USED);
    for (int i = 0; i < N_USED; i++) chosen[i] = ids[i];
}

/* A cache of this many bytes that looks ahead. Free both, also after a failed check. */
static bool store_open(stage *g, expert_store **s, router_ahead **f, uint64_t bytes)
{
    const store_options so = { .kind = STORE_CACHED, .cache_bytes = bytes };
    *s = NULL;
    const bool ok = CHECK(router_ahead_create(f, &g->o, g->w, &g->f.m->hp, all, NULL) == 0);
    return ok && CHECK(expert_store_create(s, &g->f.m->experts, g->o.team, &so, NULL) == 0);
}

static void check_store(stage *g)
{
    int chosen[N_USED];
    test_rng rng = { 11 };
    expert_store *s;
    router_ahead *f;
    if (store_open(g, &s, &f, 4 * expert_store_least(&g->f.m->experts))) {
        prediction_of(g, f, chosen, &rng);
        CHECK(expert_store_want(s, 0, first, N_USED, NULL) == 0);
        router_ahead_read(f, s, 0, &g->x);
        expert_store_release(s);
        CHECK(all_there(g, s, 1, chosen, N_USED));
        const store_stats k = expert_store_counts(s);
        CHECK_MSG(k.misses == 2 * N_USED && k.hits == 0 && k.predicted == PREDICTOR_PICKS &&
                  k.guesses == PREDICTOR_PICKS, "%llu misses, %llu predicted, %llu guesses",
                  (unsigned long long)k.misses, (unsigned long long)k.predicted,
                  (unsigned long long)k.guesses);
        CHECK(expert_store_want(s, 0, first, N_USED, NULL) == 0);
        router_ahead_read(f, s, 0, &g->x);       /* all are present: nothing to read */
        expert_store_release(s);
        CHECK(all_there(g, s, 1, chosen, N_USED));
        CHECK(expert_store_counts(s).guesses == PREDICTOR_PICKS &&
              expert_store_counts(s).hits == 2 * N_USED);
        router_ahead_read(f, s, N_LAYER - 1, &g->x);     /* nothing after the last */
        CHECK(expert_store_counts(s).guesses == PREDICTOR_PICKS);
        const int wrong = chosen[0] == 0 ? 1 : 0;
        for (int i = 0; i < 100; i++) {          /* the choice is reported: guesses end */
            draw(g, 0, &rng);
            router_ahead_read(f, s, 0, &g->x);
            router_ahead_report(f, 1, &wrong, 1);
        }
        const uint64_t so_far = expert_store_counts(s).guesses;
        for (int i = 0; i < 10; i++) {
            draw(g, 0, &rng);
            router_ahead_read(f, s, 0, &g->x);
        }
        CHECK_MSG(expert_store_counts(s).guesses == so_far, "%llu guesses, then %llu",
                  (unsigned long long)so_far, (unsigned long long)expert_store_counts(s).guesses);
    }
    expert_store_free(s);
    router_ahead_free(f);
}

/* A wrong guess is an expert like any other: later it is found in RAM. */
static void check_wrong_guess(stage *g)
{
    int chosen[N_USED], other[1] = { 0 };
    test_rng rng = { 12 };
    expert_store *s;
    router_ahead *f;
    if (store_open(g, &s, &f, 4 * expert_store_least(&g->f.m->experts))) {
        prediction_of(g, f, chosen, &rng);
        for (int i = 0; i < N_USED; i++)         /* one that was not guessed */
            if (chosen[i] == other[0]) other[0]++, i = -1;
        CHECK(all_there(g, s, 0, first, N_USED));
        router_ahead_read(f, s, 0, &g->x);
        CHECK(all_there(g, s, 1, other, 1) && all_there(g, s, 1, chosen, PREDICTOR_PICKS));
        const store_stats k = expert_store_counts(s);
        CHECK_MSG(k.predicted == 0 && k.hits == PREDICTOR_PICKS && k.guesses == PREDICTOR_PICKS,
                  "%llu predicted, %llu hits", (unsigned long long)k.predicted,
                  (unsigned long long)k.hits);
    }
    expert_store_free(s);
    router_ahead_free(f);
}

/* An early read does not evict another guess that is present. */
static void check_small_cache(stage *g)
{
    int chosen[N_USED];
    test_rng rng = { 13 };
    expert_store *s;
    router_ahead *f;
    if (store_open(g, &s, &f, expert_store_least(&g->f.m->experts)) &&
        CHECK(expert_store_room(s) == 2 * N_USED)) {
        prediction_of(g, f, chosen, &rng);
        CHECK(all_there(g, s, 1, chosen, N_USED - 1));   /* the oldest there are */
        CHECK(all_there(g, s, 3, first, 1) && all_there(g, s, 0, first, N_USED));
        router_ahead_read(f, s, 0, &g->x);
        expert_store_reset_counts(s);
        CHECK(all_there(g, s, 1, chosen, N_USED));
        const store_stats k = expert_store_counts(s);
        CHECK_MSG(k.misses == 1 && k.predicted == 1 && k.hits == N_USED - 1, "%llu misses",
                  (unsigned long long)k.misses);
    }
    expert_store_free(s);
    router_ahead_free(f);
}

int main(int argc, char **argv)
{
    static const struct { model_arch arch; unsigned variants; const char *name; } rows[] = {
        { ARCH_GPTOSS, 0, "gpt-oss" }, { ARCH_QWEN3NEXT, 0, "qwen3next" },
        { ARCH_QWEN3NEXT, MAKE_FUSED_EXPERTS, "qwen3next, fused" },
    };
    test_begin("router_ahead", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        stage g;
        if (stage_open(&g, rows[i].arch, rows[i].variants, IN_FILE)) {
            check_guesses(&g, rows[i].name);
            check_zero_norm(&g);
            check_store(&g);
            check_wrong_guess(&g);
            check_small_cache(&g);
        }
        stage_close(&g);
    }
    return test_end();
}
