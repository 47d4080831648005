/* test_experts_cpu.c - experts on the CPU against the golden bits of whole experts, and against
 * itself.
 *
 * The vectors of every chosen expert must have the promised bits whatever the number of threads,
 * however the tokens are batched, however the experts are divided among shares and cut into pieces,
 * and wherever they come from; also if the caller takes some of the downs. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "engine/host/experts_cpu.h"
#include "tests/ffn_golden.h"
#include "tests/make_store.h"
#include "tests/make_weights.h"
#include "tests/test.h"
#include "tiers/fault_injection.h"

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
        .bank = &g->bank, .act = g->act, .x = x, .work = w,
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

static bool some_more(void *ctx) { return atomic_fetch_sub((_Atomic int *)ctx, 1) > 0; }

/* Each token alone, after some of its experts, or others, or parts of either were read ahead. */
static void check_ahead(ffn_golden *g, const ops *o, experts_cpu *e, acts *x, worklist *w, float *y,
                        const char *name)
{
    const int n = g->k * g->n_embd, most_guess = min_int(g->n_expert, AHEAD_RUNS / SLAB_COUNT);
    read_ahead *r = NULL;
    if (!CHECK(read_ahead_create(&r, pool_threads(o->team), NULL) == 0)) return;
    for (int way = 0; way < 12; way++)
        for (int t = 0; t < g->n_token; t++) {
            int32_t guess[AHEAD_RUNS];
            const int n_guess = 1 + (way + t) % most_guess;
            const uint64_t all = (uint64_t)n_guess * expert_slabs_bytes(&g->bank);
            _Atomic int looks = way % 3 == 2 ? 1 + way : 1 << 30;
            for (int i = 0; i < n_guess; i++)
                guess[i] = (g->ids[t * g->k] + (way % 2 ? 1 : g->n_expert - 1) * i) % g->n_expert;
            acts_set(x, g->x + t * g->n_embd, 1, g->n_embd);
            worklist_fill(w, g->ids + t * g->k, 1, g->k);
            const expert_job job = {
                .bank = &g->bank, .act = g->act, .x = x,
                .work = w, .items = w->items, .n_item = w->n_item, .y = y,
            };
            memset(y, 0xAA, (size_t)n * sizeof *y);
            mem_guard(true);
            const uint64_t bytes = experts_cpu_read_ahead(e, r, 0, &g->bank, guess, n_guess,
                                                          some_more, (void *)&looks);
            CHECK(experts_cpu_run(e, &job, NULL) == 0);
            mem_guard(false);
            const int bad = differing(y, g->y + t * n, n);
            CHECK_MSG(bad == 0, "%s, token %d after %d experts: %d values differ", name, t, n_guess,
                      bad);
            CHECK_MSG(way % 3 == 2 ? bytes > 0 && bytes <= all : bytes == all,
                      "%s: %d of %d bytes were read ahead", name, (int)bytes, (int)all);
        }
    read_ahead_free(r);
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
    check_ahead(g, &o, e, &x, w, y, name);
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

/* ---- pieces of all heights ------------------------------------------------------------------- */

enum { PIECES_EMBD = 320, PIECES_USED = 10, PIECES_TOKENS = 5,
       PIECES_SLOTS = PIECES_USED * PIECES_TOKENS };

/* Rows of the calls of a kernel, since they were last set to 0. */
static struct { _Atomic int least, most; } calls;
static dot_fn *real_dot;

static void spy_dot(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                    const act_row *x, int n_token, int cols)
{
    int least = atomic_load(&calls.least), most = atomic_load(&calls.most);
    while ((least == 0 || n_row < least) &&
           !atomic_compare_exchange_weak(&calls.least, &least, n_row)) {}
    while (n_row > most && !atomic_compare_exchange_weak(&calls.most, &most, n_row)) {}
    real_dot(sums, rows, row_bytes, n_row, x, n_token, cols);
}

typedef struct pieces {                  /* a bank, tokens, and what comes out of them */
    ops o;
    tensor weight[SLAB_COUNT];
    expert_bank bank;
    uint8_t *bytes[SLAB_COUNT];
    float *x, *want, *got;               /* [token, n_embd], [token, expert, n_embd] */
    acts tokens;
    void *storage;
    int n_token;
    worklist *w;
    experts_cpu *e;
} pieces;

/* Types: gate's is that of no other slab, so that a kernel for it alone can be watched. */
static void make_bank(pieces *g, int n_ff, quant_type down)
{
    const quant_type types[SLAB_COUNT] = { QT_Q4_0, QT_Q8_0, down };
    test_rng rng = { (uint64_t)n_ff };
    g->bank = (expert_bank){ .n_expert = PIECES_USED, .n_embd = PIECES_EMBD,
                             .n_ff = (uint64_t)n_ff };
    for (int s = 0; s < SLAB_COUNT; s++) {
        const int cols = s == SLAB_DOWN ? n_ff : PIECES_EMBD;
        const uint64_t ne[3] = { (uint64_t)cols, s == SLAB_DOWN ? PIECES_EMBD : (uint64_t)n_ff,
                                 PIECES_USED };
        tensor *t = &g->weight[s];
        t->name = str_from("pieces");
        CHECK(tensor_set_shape(t, types[s], ne, 3, NULL) == 0);
        t->data = g->bytes[s] = test_alloc(t->bytes, 1);
        for (uint64_t at = 0; at < t->bytes; at += t->row_bytes)
            weight_row_make(g->bytes[s] + at, types[s], cols, WEIGHTS_PLAUSIBLE, &rng);
        g->bank.weight[s] = t;
    }
}

/* One slot the plain way: whole matrices, one after the other. */
static void one_slot(const pieces *g, float *y, int token, int expert)
{
    const int n_ff = (int)g->bank.n_ff;
    const matrix gate = expert_matrix(&g->bank, SLAB_GATE, expert),
                 up = expert_matrix(&g->bank, SLAB_UP, expert),
                 down = expert_matrix(&g->bank, SLAB_DOWN, expert);
    float *mid = test_alloc(2 * (size_t)n_ff, sizeof *mid), *u = mid + n_ff;
    void *storage = test_alloc(acts_bytes(1, n_ff), 1);
    acts a;
    acts_init(&a, storage, 1, n_ff);
    acts_set(&a, mid, 1, n_ff);
    product_rows(mid, (size_t)n_ff, &g->o, &gate, 0, n_ff, g->tokens.rows + token, 1, NULL);
    product_rows(u, (size_t)n_ff, &g->o, &up, 0, n_ff, g->tokens.rows + token, 1, NULL);
    g->o.loops->swiglu(mid, mid, u, n_ff);
    if (g->o.kernels->of[down.type].quantised) ops_quantise(&g->o, &a);
    product_rows(y, PIECES_EMBD, &g->o, &down, 0, PIECES_EMBD, a.rows, 1, NULL);
    mem_free(storage);
    mem_free(mid);
}

static void pieces_open(pieces *g, const kernel_set *kernels, int n_ff, quant_type down,
                        int n_token)
{
    const loops *sets[LOOPS_MAX_SETS];
    test_rng rng = { 1 };
    const size_t n = (size_t)n_token, n_slot = n * PIECES_USED;
    memset(g, 0, sizeof *g);
    g->n_token = n_token;
    loops_here(sets);
    g->o = (ops){ .kernels = kernels, .loops = sets[0] };
    CHECK(pool_create(&g->o.team, 1, NULL) == 0);
    CHECK(worklist_create(&g->w, PIECES_USED, (int)n_slot, NULL) == 0);
    make_bank(g, n_ff, down);
    g->x = test_alloc(n * PIECES_EMBD, sizeof *g->x);
    g->want = test_alloc(n_slot * PIECES_EMBD, sizeof *g->want);
    g->got = test_alloc(n_slot * PIECES_EMBD, sizeof *g->got);
    g->storage = test_alloc(acts_bytes(n_token, PIECES_EMBD), 1);
    for (int t = 0; t < n_token; t++)
        activations_make(g->x + t * PIECES_EMBD, PIECES_EMBD, false, &rng);
    acts_init(&g->tokens, g->storage, n_token, PIECES_EMBD);
    acts_set(&g->tokens, g->x, n_token, PIECES_EMBD);
    ops_quantise(&g->o, &g->tokens);
    for (int i = 0; i < (int)n_slot; i++)
        one_slot(g, g->want + i * PIECES_EMBD, i / PIECES_USED, i % PIECES_USED);
    pool_free(g->o.team);
    g->o.team = NULL;
}

static void pieces_close(pieces *g)
{
    for (int s = 0; s < SLAB_COUNT; s++) mem_free(g->bytes[s]);
    worklist_free(g->w);
    mem_free(g->x);
    mem_free(g->want);
    mem_free(g->got);
    mem_free(g->storage);
}

static bool take_none(void *ctx, const work_item *it)
{
    (void)ctx, (void)it;
    return false;
}

/* The first n experts of n_token tokens that all chose the same ones, in another order each. The
 * downs of the first n_sure experts are certain from the start. */
static void check_pieces(pieces *g, int n_token, int n, int n_sure)
{
    int32_t ids[PIECES_SLOTS];
    for (int i = 0; i < n_token * PIECES_USED; i++)
        ids[i] = (i % PIECES_USED + 3 * (i / PIECES_USED)) % PIECES_USED;
    worklist_fill(g->w, ids, n_token, PIECES_USED);
    acts_set(&g->tokens, g->x, n_token, PIECES_EMBD);
    memset(g->got, 0xAA, PIECES_SLOTS * PIECES_EMBD * sizeof *g->got);
    const expert_job job = {
        .bank = &g->bank, .act = ACT_SWIGLU, .x = &g->tokens, .work = g->w, .items = g->w->items,
        .n_item = n, .y = g->got, .taken = n_sure < n ? take_none : NULL, .n_sure = n_sure,
    };
    atomic_store(&calls.least, 0);
    atomic_store(&calls.most, 0);
    mem_guard(true);
    CHECK(experts_cpu_run(g->e, &job, NULL) == 0);
    mem_guard(false);
    int bad = 0;
    for (int i = 0; i < n_token * PIECES_USED; i++) {
        const int at = i / PIECES_USED * PIECES_USED + ids[i];
        if (ids[i] < n)
            bad += differing(g->got + i * PIECES_EMBD, g->want + at * PIECES_EMBD, PIECES_EMBD);
    }
    CHECK_MSG(bad == 0, "n_ff %d, %d threads, %d tokens, %d experts, %d sure: %d values differ",
              (int)g->bank.n_ff, pool_threads(g->o.team), n_token, n, n_sure, bad);
}

/* Sanitizers make this arithmetic fifteen times slower: less of it there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int sizes[] = { 1, 2, 26 }; /* tokens */
static const int counts[] = { 1, 2, 3, 7 };      /* experts */
static const int teams[] = { 3, 16 };
enum { MOST_SETS = 1, WIDEST_UNEVEN = 96 };
#else
static const int sizes[] = { 1, 1, 2, 5, 8, 13, 26, 70 };
static const int counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
static const int teams[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
enum { MOST_SETS = KERNELS_MAX_SETS, WIDEST_UNEVEN = 288 };
#endif

/* With that many threads. Notes the heights of the pieces of ups, which are powers of two: the last
 * ones are handed out one by one, unless downs follow. */
static void check_team(pieces *g, int n_thread, unsigned *heights)
{
    const model_hparams hp = { .n_embd = PIECES_EMBD, .n_ff_expert = (int)g->bank.n_ff,
                               .n_expert = PIECES_USED, .n_expert_used = PIECES_USED };
    if (!CHECK(pool_create(&g->o.team, n_thread, NULL) == 0)) return;
    if (CHECK(experts_cpu_create(&g->e, &g->o, &hp, NULL, NULL, PIECES_SLOTS, NULL) == 0))
        for (size_t i = 0; i < ARRAY_LEN(counts); i += (size_t)test_rounds(1, 2))
            for (int n = counts[i], n_sure = 0; n_sure <= n; n_sure += max_int(1, n / 2)) {
                check_pieces(g, 1, n, n_sure);
                const int rows = (int)g->bank.n_ff * n, most = atomic_load(&calls.most);
                if (n_sure == 0 && n_thread > 1) *heights |= (unsigned)atomic_load(&calls.least);
                CHECK_MSG(n_thread == 1 || rows < 512 || most <= rows / n_thread + OPS_ROWS,
                          "n_ff %d, %d experts: %d rows of one for one of %d threads",
                          (int)g->bank.n_ff, n, most, n_thread);
                if (n % 4 == 1) check_pieces(g, n % 3 + 2, n, n_sure);
            }
    experts_cpu_free(g->e);
    pool_free(g->o.team);
}

static void check_heights(void)
{
    static const struct { int n_ff; quant_type down; unsigned heights; const char *why; } rows[] = {
        { 32, QT_Q8_0, 8, "one block" }, { 96, QT_Q8_0, 8, "fewer blocks than threads" },
        { 288, QT_Q8_0, 8 | 32, "for some teams enough" }, { 512, QT_Q8_0, 32, "Qwen3-Next" },
        { 2880, QT_Q8_0, 32, "gpt-oss" }, { 160, QT_F16, 8 | 16, "downs that read no blocks" },
        { 52, QT_F32, 4, "no whole blocks: the last piece is shorter" },
    };
    kernel_set spied = *kernels_named(NULL, NULL);
    real_dot = spied.of[QT_Q4_0].dot;
    spied.of[QT_Q4_0].dot = spy_dot;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        unsigned heights = 0;
        pieces g;
        pieces_open(&g, &spied, rows[i].n_ff, rows[i].down, PIECES_TOKENS);
        const size_t step = ARRAY_LEN(teams) > 3 ? (size_t)test_rounds(1, 3) : 1;
        for (size_t k = i % step; k < ARRAY_LEN(teams); k += step)
            check_team(&g, teams[k], &heights);
        pieces_close(&g);
        CHECK_MSG((heights & rows[i].heights) == rows[i].heights, "n_ff %d, %s: heights %u, not %u",
                  rows[i].n_ff, rows[i].why, heights, rows[i].heights);
    }
}

/* ---- some experts chosen much more often ----------------------------------------------------- */

enum { MANY_TOKENS = 150, MANY_USED = 3 };

/* Every token chooses expert 0; one token more than are handed out at once choose expert 1; the
 * others share the rest. */
static void choose_unevenly(int32_t *ids)
{
    for (int t = 0; t < MANY_TOKENS; t++) {
        ids[MANY_USED * t] = 0;
        ids[MANY_USED * t + 1] = t <= OPS_TOKENS ? 1 : 2 + t % 3;
        ids[MANY_USED * t + 2] = 5 + t % (PIECES_USED - 5);
    }
}

/* With an experts_cpu that has computed nothing before: what is read too early is wrong. */
static void check_uneven(pieces *g, int n_sure)
{
    const model_hparams hp = { .n_embd = PIECES_EMBD, .n_ff_expert = (int)g->bank.n_ff,
                               .n_expert = PIECES_USED, .n_expert_used = MANY_USED };
    const int n_slot = MANY_TOKENS * MANY_USED;
    int32_t ids[MANY_TOKENS * MANY_USED];
    int bad = 0;
    choose_unevenly(ids);
    worklist_fill(g->w, ids, MANY_TOKENS, MANY_USED);
    const expert_job job = {
        .bank = &g->bank, .act = ACT_SWIGLU, .x = &g->tokens, .work = g->w, .items = g->w->items,
        .n_item = g->w->n_item, .y = g->got, .taken = take_none, .n_sure = n_sure,
    };
    if (!CHECK(experts_cpu_create(&g->e, &g->o, &hp, NULL, NULL, n_slot, NULL) == 0)) return;
    memset(g->got, 0xAA, (size_t)(n_slot * PIECES_EMBD) * sizeof *g->got);
    mem_guard(true);
    CHECK(experts_cpu_run(g->e, &job, NULL) == 0);
    mem_guard(false);
    for (int i = 0; i < n_slot; i++)
        bad += differing(g->got + i * PIECES_EMBD,
                         g->want + (i / MANY_USED * PIECES_USED + ids[i]) * PIECES_EMBD,
                         PIECES_EMBD);
    CHECK_MSG(bad == 0, "%s, n_ff %d, %d threads, %d sure: %d values differ", g->o.kernels->isa,
              (int)g->bank.n_ff, pool_threads(g->o.team), n_sure, bad);
    experts_cpu_free(g->e);
}

static void check_uneven_teams(const kernel_set *set, int n_ff, bool all)
{
    static const int some[] = { 3, 1, 16 };
    pieces g;
    pieces_open(&g, set, n_ff, QT_MXFP4, MANY_TOKENS);
    for (size_t t = 0; t < (all ? ARRAY_LEN(some) : 1); t++) {
        if (!CHECK(pool_create(&g.o.team, some[t], NULL) == 0)) break;
        for (int n_sure = 0; n_sure <= PIECES_USED; n_sure += PIECES_USED / 2)
            check_uneven(&g, n_sure);
        pool_free(g.o.team);
    }
    pieces_close(&g);
}

/* Threads are late with the gate of the last tokens of expert 0, when the others have nothing left
 * but downs: those of this expert must wait. */
static dot_fn *real_wide;

static void late_wide(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                      const act_row *x, int n_token, int cols)
{
    if (n_token == MANY_TOKENS % OPS_TOKENS)
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    real_wide(sums, rows, row_bytes, n_row, x, n_token, cols);
}

static void check_late(void)
{
    kernel_set late = *kernels_named(NULL, NULL);
    kernel *gate = &late.of[QT_Q4_0];
    real_wide = gate->wide ? gate->wide : gate->dot;
    gate->wide = late_wide;
    gate->wide_from = 2;
    gate->packed = (packing){ .bytes = NULL };
    check_uneven_teams(&late, WIDEST_UNEVEN, true);
}

static void check_many(void)
{
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n_set = min_int(kernels_here(sets), MOST_SETS);
    for (int i = 0; i < n_set; i++)
        for (int n_ff = 96; n_ff <= (test_is_long() ? WIDEST_UNEVEN : 96); n_ff *= 3)
            check_uneven_teams(sets[i], n_ff, i == 0 || test_is_long());
    check_late();
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
                             &down, r, 64, mid->rows + at, 1, NULL);
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

static void check_store(stage *g, const char *name, const store_options *so, unsigned seed)
{
    const model_hparams *hp = &g->f.m->hp;
    const bool all[] = { true, true, true, true };
    router_ahead *ahead = NULL;
    expert_store *s = NULL;
    experts_cpu *plain = NULL, *e = NULL;
    test_rng rng = { seed };
    err_ctx err = { 0 };
    if (!so->layers) CHECK(router_ahead_create(&ahead, &g->o, g->weights, hp, all, NULL) == 0);
    if (!CHECK_MSG(expert_store_create(&s, &g->f.m->experts, g->o.team, so, &err) == 0, "%s",
                   err.msg))
        goto done;
    if (CHECK(experts_cpu_create(&plain, &g->o, hp, NULL, NULL, MAX_SLOT, NULL) == 0 &&
              experts_cpu_create(&e, &g->o, hp, s, ahead, MAX_SLOT, NULL) == 0))
        for (size_t i = test_is_long() ? 0 : seed % 2; i < ARRAY_LEN(sizes);
             i += (size_t)test_rounds(1, 2))
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
            for (size_t k = test_is_long() ? 0 : i; k < ARRAY_LEN(kinds);
                 k += (size_t)test_rounds(1, 3))
                check_store(&g, rows[i].name, &kinds[k], (unsigned)k);
            if (rows[i].where != IN_MEMORY) check_faults(&g);
        }
        stage_close(&g);
    }
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets), some_teams[] = { 1, 2, 3, 16 };
    test_begin("experts_cpu", argc, argv);
    for (const char *const *name = ffn_golden_names; *name; name++) {
        ffn_golden g;
        if (ffn_golden_read(&g, *name)) {
            for (int k = 0; k < n_set; k++)
                for (size_t i = test_is_long() ? 0 : (size_t)k % 4; i < ARRAY_LEN(some_teams);
                     i += (size_t)test_rounds(1, 4))
                    check_experts(&g, *name, sets[k], some_teams[i]);
            check_failures(&g);
        }
        ffn_golden_free(&g);
    }
    check_heights();
    check_many();
    check_stores();
    return test_end();
}
