/* test_experts_cpu.c - experts on the CPU against the golden bits of whole experts, and against
 * itself.
 *
 * The vectors of every chosen expert must have the promised bits whatever the number of threads,
 * however the tokens are batched, however the experts are divided among shares, and wherever they
 * come from; also if someone else takes some of the downs. */
#include <math.h>
#include <string.h>

#include "engine/host/experts_cpu.h"
#include "tests/ffn_golden.h"
#include "tests/store_maker.h"
#include "tests/test.h"
#include "tiers/fault.h"

static int differing(const float *a, const float *b, int n)
{
    int bad = 0;
    for (int i = 0; i < n; i++)
        bad += memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]));
    return bad;
}

/* Tokens first .. first+n-1 with the experts cut into two shares before item cut. */
static void run(ffn_golden *g, const ops *o, experts_cpu *e, acts *x, worklist *w, float *y,
                int first, int n, int cut)
{
    acts_set(x, g->x + first * g->n_embd, n, g->n_embd);
    worklist_fill(w, g->ids + first * g->k, n, g->k);
    if (cut > w->n_item) cut = w->n_item;
    expert_job job = {
        .bank = &g->bank, .act = g->kind ? ACT_SWIGLU_CLAMPED : ACT_SWIGLU, .x = x, .work = w,
        .items = w->items, .n_item = cut, .y = y,
    };
    (void)o;
    mem_guard(true);
    CHECK(experts_cpu_run(e, &job, NULL) == 0);
    job.items += cut;
    job.n_item = w->n_item - cut;
    CHECK(experts_cpu_run(e, &job, NULL) == 0);
    mem_guard(false);
}

static void check_experts(ffn_golden *g, const char *name, const loops *f, int n_thread)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const int slots = g->n_token * g->k;
    float *y = mem_array((size_t)(slots * g->n_embd), sizeof *y);
    void *storage = mem_zalloc(acts_bytes(g->n_token, g->n_embd));
    ops o = { .kernels = kernels_contract(), .loops = f };
    experts_cpu *e = NULL;
    worklist *w = NULL;
    acts x;

    if (!CHECK(y && storage && pool_create(&o.team, n_thread, NULL) == 0 &&
               experts_cpu_create(&e, &o, &hp, NULL, NULL, slots, NULL) == 0 &&
               worklist_create(&w, g->n_expert, slots, NULL) == 0))
        return;
    acts_init(&x, storage, g->n_token, g->n_embd);
    for (int cut = 0; cut <= 3; cut++) {
        memset(y, 0xAA, (size_t)(slots * g->n_embd) * sizeof *y);
        run(g, &o, e, &x, w, y, 0, g->n_token, cut);
        const int bad = differing(y, g->y, slots * g->n_embd);
        CHECK_MSG(bad == 0, "%s, %s, %d threads, cut at %d: %d of %d values differ", name, f->isa,
                  n_thread, cut, bad, slots * g->n_embd);
    }
    for (int t = 0; t < g->n_token; t++) {
        const int n = g->k * g->n_embd;
        run(g, &o, e, &x, w, y, t, 1, 1);
        const int bad = differing(y, g->y + t * n, n);
        CHECK_MSG(bad == 0, "%s, %s, token %d alone: %d values differ", name, f->isa, t, bad);
    }
    worklist_free(w);
    experts_cpu_free(e);
    pool_free(o.team);
    mem_free(storage);
    mem_free(y);
}

static void check_failures(const ffn_golden *g)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const ops o = { .kernels = kernels_contract(), .loops = loops_for("scalar") };
    for (long fail = 1; fail < 10; fail++) {
        experts_cpu *e = NULL;
        mem_fail_after(fail);
        const int rc = experts_cpu_create(&e, &o, &hp, NULL, NULL, 8, NULL);
        mem_fail_after(0);
        CHECK((rc == 0) == (e != NULL));
        if (!e) continue;
        experts_cpu_free(e);
        break;
    }
}

/* ---- experts from stores --------------------------------------------------------------------- */

enum { N_EXPERT = 37, N_USED = 3, MAX_TOKEN = 70, MAX_SLOT = MAX_TOKEN * N_USED };

typedef struct stage {                   /* one model, and a batch that runs through its layers */
    made_model f;
    ops o;
    acts x;
    worklist *w;
    weights *weights;
    float *tokens, *want, *got;          /* [MAX_TOKEN, n_embd], and of slots */
    void *storage;
    int32_t ids[MAX_SLOT];
    int n_embd;
} stage;

static bool stage_open(stage *g, model_arch arch, unsigned variants, made_where where)
{
    const maker mk = made_maker(arch, N_EXPERT, N_USED, variants);
    *g = (stage){ .n_embd = mk.n_embd };
    g->o = (ops){ .kernels = kernels_contract(), .loops = loops_for("scalar") };
    const size_t n = (size_t)g->n_embd;
    g->tokens = test_alloc(MAX_TOKEN * n, sizeof *g->tokens);
    g->want = test_alloc(MAX_SLOT * n, sizeof *g->want);
    g->got = test_alloc(MAX_SLOT * n, sizeof *g->got);
    g->storage = test_alloc(acts_bytes(MAX_TOKEN, g->n_embd), 1);
    memset(g->storage, 0, acts_bytes(MAX_TOKEN, g->n_embd));
    acts_init(&g->x, g->storage, MAX_TOKEN, g->n_embd);
    return made_open(&g->f, &mk, where) &&
           CHECK(pool_create(&g->o.team, test_n_thread(2), NULL) == 0) &&
           CHECK(weights_create(&g->weights, g->f.m, NULL) == 0) &&
           CHECK(worklist_create(&g->w, N_EXPERT, MAX_SLOT, NULL) == 0);
}

static void stage_close(stage *g)
{
    weights_free(g->weights);
    made_close(&g->f);
    worklist_free(g->w);
    pool_free(g->o.team);
    mem_free(g->tokens);
    mem_free(g->want);
    mem_free(g->got);
    mem_free(g->storage);
}

/* n tokens, each with different experts. few: all of them choose among this many. */
static void draw(stage *g, int n, int few, test_rng *rng)
{
    for (int t = 0; t < n; t++) {
        int32_t *own = g->ids + t * N_USED;
        for (int c = 0; c < g->n_embd; c++)
            g->tokens[t * g->n_embd + c] = ((float)test_below(rng, 2001) - 1000) / 1000;
        for (int r = 0; r < N_USED; r++)
            do own[r] = (int32_t)test_below(rng, (uint32_t)few);
            while ((r > 0 && own[r] == own[0]) || (r > 1 && own[r] == own[1]));
    }
    acts_set(&g->x, g->tokens, n, g->n_embd);
    worklist_fill(g->w, g->ids, n, N_USED);
}

/* Takes some items, and does their downs itself when the others are done. */
typedef struct taker {
    uint32_t one_in;                     /* 0: takes nothing */
    test_rng rng;
    int asked[N_EXPERT];
    bool took[N_EXPERT];
} taker;

static bool take(void *ctx, const work_item *it)
{
    taker *k = ctx;
    k->asked[it->expert]++;
    return k->took[it->expert] = k->one_in > 0 && test_below(&k->rng, k->one_in) == 0;
}

static void do_taken(stage *g, const experts_cpu *e, const expert_job *job, const taker *k)
{
    const acts *mid = experts_cpu_mid(e);
    CHECK(mid->n == g->w->n_slot && mid->cols == (int)job->bank->n_ff);
    for (int i = 0; i < job->n_item; i++) {
        const work_item *it = &job->items[i];
        const matrix down = expert_matrix(job->bank, SLAB_DOWN, it->expert);
        for (int at = it->first; k->took[it->expert] && at < it->first + it->n; at++)
            for (int r = 0; r < g->n_embd; r += 64)
                product_rows(g->got + (size_t)g->w->slots[at] * (size_t)g->n_embd + r, 64, &g->o,
                             &down, r, 64, mid->rows + at, 1);
    }
}

static expert_job share_of(stage *g, int layer, float *y)
{
    return (expert_job){
        .bank = g->f.m->layers[layer].experts, .x = &g->x, .work = g->w, .items = g->w->items,
        .n_item = g->w->n_item, .y = y, .layer = layer,
        .act = g->f.m->hp.arch == ARCH_GPTOSS ? ACT_SWIGLU_CLAMPED : ACT_SWIGLU,
    };
}

static void check_batch(stage *g, experts_cpu *plain, experts_cpu *e, int layer, uint32_t one_in,
                        const char *name)
{
    const int n = g->w->n_slot * g->n_embd;
    taker k = { .one_in = one_in, .rng = { (uint64_t)n } };
    err_ctx err = { 0 };
    expert_job job = share_of(g, layer, g->want);
    CHECK(experts_cpu_run(plain, &job, NULL) == 0);
    memset(g->got, 0xAA, (size_t)n * sizeof *g->got);
    job.y = g->got;
    job.taken = take;
    job.taken_ctx = &k;
    job.n_sure = layer * job.n_item / 3;
    CHECK_MSG(experts_cpu_run(e, &job, &err) == 0, "%s: %s", name, err.msg);
    do_taken(g, e, &job, &k);
    for (int i = 0; i < job.n_item; i++)
        CHECK_MSG(k.asked[job.items[i].expert] == (i >= job.n_sure), "%s: asked %d times", name,
                  k.asked[job.items[i].expert]);
    int real = 0;
    for (int i = 0; i < n; i++) real += isfinite(g->want[i]) && g->want[i] != 0;
    CHECK_MSG(real > n / 2, "%s, layer %d: %d of %d values are numbers", name, layer, real, n);
    const int bad = differing(g->got, g->want, n);
    CHECK_MSG(bad == 0, "%s, layer %d, %d tokens, %d experts, taken 1 in %u: %d values differ",
              name, layer, g->x.n, job.n_item, one_in, bad);
}

/* Sanitizers make this arithmetic fifteen times slower: fewer tokens there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int sizes[] = { 1, 2, 26 };
#else
static const int sizes[] = { 1, 1, 2, 5, 8, 13, 26, 70 };
#endif

static void check_store(stage *g, const char *name, const store_options *so, unsigned seed)
{
    const model_hparams *hp = &g->f.m->hp;
    const bool all[] = { true, true, true, true };
    router_ahead *ahead = NULL;
    expert_store *s = NULL;
    experts_cpu *plain = NULL, *e = NULL;
    test_rng rng = { seed };
    err_ctx err = { 0 };
    if (!so->layers)
        CHECK(router_ahead_create(&ahead, &g->o, g->weights, hp, all, NULL) == 0);
    if (!CHECK_MSG(expert_store_create(&s, &g->f.m->experts, g->o.team, so, &err) == 0, "%s",
                   err.msg))
        goto done;
    if (CHECK(experts_cpu_create(&plain, &g->o, hp, NULL, NULL, MAX_SLOT, NULL) == 0 &&
              experts_cpu_create(&e, &g->o, hp, s, ahead, MAX_SLOT, NULL) == 0))
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            for (int layer = 0; layer < 4; layer++) {
                draw(g, sizes[i], layer == 2 ? 9 : N_EXPERT, &rng);
                check_batch(g, plain, e, layer, (uint32_t)(i + (size_t)layer) % 4, name);
            }
    const store_stats k = expert_store_counts(s);
    if (so->kind == STORE_CACHED) CHECK(k.misses > 0);
    if (so->kind == STORE_CACHED && !so->layers) CHECK((k.guesses > 0) == (g->f.n_path > 0));
done:
    experts_cpu_free(plain);
    experts_cpu_free(e);
    expert_store_free(s);
    router_ahead_free(ahead);
}

/* A read that fails fails the job, once; then all works again. */
static void check_faults(stage *g)
{
    const store_options so = { .kind = STORE_CACHED,
                               .cache_bytes = expert_store_least(&g->f.m->experts) };
    expert_store *s = NULL;
    experts_cpu *plain = NULL, *e = NULL;
    test_rng rng = { 1 };
    int n_error = 0;
    if (!CHECK(expert_store_create(&s, &g->f.m->experts, g->o.team, &so, NULL) == 0)) return;
    if (CHECK(experts_cpu_create(&plain, &g->o, &g->f.m->hp, NULL, NULL, MAX_SLOT, NULL) == 0 &&
              experts_cpu_create(&e, &g->o, &g->f.m->hp, s, NULL, MAX_SLOT, NULL) == 0))
        for (int skip = 0; skip < 40; skip += 3) {
            err_ctx err = { 0 };
            draw(g, skip % 2 ? 1 : 12, N_EXPERT, &rng);
            const expert_job job = share_of(g, skip % 4, g->got);
            fault_arm(FAULT_READ_ERROR, skip, 1);
            const int rc = experts_cpu_run(e, &job, &err);
            fault_disarm_all();
            n_error += rc < 0;
            CHECK_MSG(rc == 0 || (rc == ERR_IO && err.msg[0]), "%d: %s", rc, err.msg);
            check_batch(g, plain, e, skip % 4, 0, "after a fault");
        }
    CHECK_MSG(n_error >= 2, "%d errors", n_error);
    experts_cpu_free(plain);
    experts_cpu_free(e);
    expert_store_free(s);
}

static void check_stores(void)
{
    static const struct { model_arch arch; unsigned variants; made_where where; const char *name; }
    rows[] = {
        { ARCH_GPTOSS, 0, IN_FILE, "gpt-oss" },
        { ARCH_QWEN3NEXT, MAKE_FUSED_EXPERTS | MAKE_SCALES, IN_PARTS, "qwen3next, fused" },
        { ARCH_QWEN3NEXT, 0, IN_MEMORY, "qwen3next in memory" },
    };
    const bool some[] = { true, false, true, true };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        stage g;
        if (stage_open(&g, rows[i].arch, rows[i].variants, rows[i].where)) {
            const uint64_t least = expert_store_least(&g.f.m->experts);
            const store_options kinds[] = {
                { .kind = STORE_MAPPED }, { .kind = STORE_LOADED, .layers = some },
                { .kind = STORE_CACHED, .cache_bytes = least },
                { .kind = STORE_CACHED, .cache_bytes = 3 * least, .layers = some },
                { .kind = STORE_CACHED, .cache_bytes = 40 * least },
            };
            for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
                check_store(&g, rows[i].name, &kinds[k], (unsigned)k);
            if (rows[i].where != IN_MEMORY) check_faults(&g);
        }
        stage_close(&g);
    }
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    test_begin("experts_cpu", argc, argv);
    for (const char *const *name = ffn_golden_names; *name; name++) {
        ffn_golden g;
        if (ffn_golden_read(&g, *name)) {
            for (int k = 0; k < n_set; k++)
                for (int n_thread = 1; n_thread <= 3; n_thread++)
                    check_experts(&g, *name, sets[k], n_thread);
            check_failures(&g);
        }
        ffn_golden_free(&g);
    }
    check_stores();
    return test_end();
}
