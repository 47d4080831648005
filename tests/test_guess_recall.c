/* test_guess_recall.c - counts of right guesses: against a list that is counted naively, and, on
 * the demo models, against guesses that are made and compared beside a forward pass taken step by
 * step. Where experts are on a simulated GPU, layers that ask the host give the same counts, and
 * the others those of the tokens for which they asked. */
#include <string.h>

#include "cuda/gpu.h"
#include "engine/host/host_steps.h"
#include "engine/instruments.h"
#include "moe/guess_recall.h"
#include "tests/places.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { LAYERS = 5, RANKS = 4, EXPERTS = 9, MOST_LAYERS = 8, MOST_RANKS = 8,
       N_TOKEN = 47, A_FEW = 3 };

/* ---- counting -------------------------------------------------------------------------------- */

static void draw(int32_t *ids, test_rng *rng)
{
    for (int i = 0; i < RANKS; i++) {
        bool again = false;
        ids[i] = (int32_t)test_below(rng, EXPERTS);
        for (int j = 0; j < i; j++) again |= ids[j] == ids[i];
        i -= again;
    }
}

static void test_counts(void)
{
    static int32_t guess[LAYERS][RANKS];
    uint64_t right[LAYERS][RANKS] = { { 0 } }, tokens[LAYERS] = { 0 }, vram[LAYERS] = { 0 };
    int waits[LAYERS] = { 0 };           /* in VRAM, plus 1; 0: no guess */
    guess_recall *g = NULL;
    test_rng rng = { 5 };
    if (!CHECK(guess_recall_create(&g, LAYERS, RANKS, NULL) == 0)) return;
    for (int i = 0; i < 4000; i++) {
        const int l = (int)test_below(&rng, LAYERS);
        int32_t ids[RANKS];
        draw(ids, &rng);
        if (test_below(&rng, 20) == 0) {
            guess_recall_forget(g);
            memset(waits, 0, sizeof waits);
        }
        if (test_below(&rng, 2)) {
            waits[l] = 1 + (int)test_below(&rng, RANKS + 1);
            memcpy(guess[l], ids, sizeof ids);
            guess_recall_guess(g, l, ids, waits[l] - 1);
            continue;
        }
        guess_recall_chosen(g, l, ids);
        if (waits[l] == 0) continue;
        tokens[l]++;
        vram[l] += (uint64_t)waits[l] - 1;
        for (int r = 0; r < RANKS; r++)
            for (int j = 0; j < RANKS; j++)
                if (guess[l][r] == ids[j]) right[l][r]++;
        waits[l] = 0;
    }
    for (int l = 0; l < LAYERS; l++) {
        const recall_layer c = guess_recall_counts(g, l);
        CHECK(c.tokens == tokens[l] && tokens[l] > 100 && c.in_vram == vram[l]);
        CHECK(memcmp(c.right, right[l], sizeof right[l]) == 0);
    }
    CHECK(guess_recall_layers(g) == LAYERS && guess_recall_ranks(g) == RANKS);
    guess_recall_free(g);
}

static void test_failures(void)
{
    for (long fail = 1; fail < 10; fail++) {
        guess_recall *g = NULL;
        mem_fail_after(fail);
        const int rc = guess_recall_create(&g, LAYERS, RANKS, NULL);
        mem_fail_after(0);
        CHECK((rc == 0) == (g != NULL));
        guess_recall_free(g);
        if (rc == 0) break;
    }
}

/* ---- the demo models, step by step ----------------------------------------------------------- */

/* What every layer chose, and what was guessed about it from the layer before. */
typedef struct trail {
    int32_t chosen[N_TOKEN][MOST_LAYERS][MOST_RANKS], guess[N_TOKEN][MOST_LAYERS][MOST_RANKS];
} trail;

static int32_t token(int t) { return 7 + 61 * t % 1000; }

static void note_choice(void *ctx, int layer, int pos, int n_token, const int32_t *ids, int k)
{
    trail *to = ctx;
    (void)n_token;
    memcpy(to->chosen[pos][layer], ids, (size_t)k * sizeof *ids);
}

/* One layer of one token; the next one is guessed from the residual as the loop sees it, by routers
 * of our own. */
static void see_layer(trail *to, const host_parts *p, host_steps *host, router_ahead *by, int t,
                      int l, acts *x, float *h)
{
    const model_hparams *hp = &p->m->hp;
    const steps *f = host_steps_face(host);
    const int32_t *likely;
    const float *residual;
    f->mix(f->self, l);
    CHECK(f->hand_over(f->self, &residual, NULL) == 0);
    ops_rmsnorm(p->o, h, residual, p->w->layers[l].post_attn_norm, 1, hp->n_embd,
                (size_t)hp->n_embd, hp->rms_eps);
    f->route(f->self, l);                /* tells note_choice */
    acts_set(x, h, 1, hp->n_embd);
    const int n = router_ahead_guess(by, l, x, &likely);
    CHECK(n == (l + 1 < hp->n_layer ? hp->n_expert_used : 0));
    if (n > 0) memcpy(to->guess[t][l + 1], likely, (size_t)n * sizeof *likely);
    CHECK(f->experts_here(f->self, l, NULL) == 0);
    f->join(f->self, l);
}

static void follow_naively(trail *to, const model *m)
{
    const state_options so = { .ctx = N_TOKEN, .slack = 1, .kv = KV_F16 };
    const kernel_set *best = kernels_named("", NULL);
    const size_t n_embd = (size_t)m->hp.n_embd;
    ops o = { .kernels = best, .loops = loops_for(best->isa) };
    float *h = test_alloc(n_embd, sizeof *h);
    void *storage = test_alloc(acts_bytes(1, m->hp.n_embd), 1);
    bool all[MOST_LAYERS];
    weights *w = NULL;
    rope_tables rope = { 0 };
    state *st = NULL;
    host_steps *host = NULL;
    router_ahead *by = NULL;
    acts x;
    memset(all, true, sizeof all);
    acts_init(&x, storage, 1, m->hp.n_embd);
    bool ok = CHECK(pool_create(&o.team, 1, NULL) == 0 && weights_create(&w, m, NULL) == 0 &&
                    rope_tables_init(&rope, m, false, NULL) == 0 &&
                    state_create(&st, m, &so, NULL) == 0);
    const host_parts p = { .m = m, .w = w, .o = &o, .rope = &rope };
    ok = ok && CHECK(host_steps_create(&host, &p, 1, NULL) == 0 &&
                     router_ahead_create(&by, &o, w, &m->hp, all, NULL) == 0);
    if (ok) host_steps_turn_to(host, st);
    if (ok) host_steps_watch_routing(host, note_choice, to);
    for (int t = 0; t < N_TOKEN && ok; t++) {
        const int32_t id = token(t);
        const batch b = { .ids = &id, .n = 1, .pos = t };
        const steps *f = host_steps_face(host);
        ok = CHECK(f->begin(f->self, &b, NULL) == 0);
        for (int l = 0; l < m->hp.n_layer && ok; l++) see_layer(to, &p, host, by, t, l, &x, h);
        state_advance(st, 1);
    }
    router_ahead_free(by);
    host_steps_free(host);
    state_free(st);
    rope_tables_release(&rope);
    weights_free(w);
    pool_free(o.team);
    mem_free(storage);
    mem_free(h);
}

/* ---- what a session should count ------------------------------------------------------------- */

typedef struct counts {
    uint64_t tokens[MOST_LAYERS], right[MOST_LAYERS][MOST_RANKS], in_vram[MOST_LAYERS];
} counts;

/* Experts that are there for good, of how many layers, and how many more of a layer may have come
 * on a guess of the GPU's own. */
typedef struct fixed_place { int n_gpu, hot, guessed; } fixed_place;

static fixed_place fixed_of(const model *m, const place *p)
{
    const int n_layer = m->hp.n_layer, n_expert = m->hp.n_expert;
    if (!p->gpu) return (fixed_place){ 0 };
    if (!p->planned) return (fixed_place){ n_layer, n_expert, 0 };
    return (fixed_place){ n_layer - n_layer * p->cpu_of_4 / 4, n_expert * p->hot_of_8 / 8,
                          p->guesses };
}

static bool asks(const trail *from, const model *m, fixed_place f, int t, int l)
{
    int n = 0;
    for (int i = 0; i < m->hp.n_expert_used; i++) n += from->chosen[t][l][i] >= f.hot;
    return n > f.guessed;
}

/* Whether a guess about layer l can be made, and judged: the layer before it is on the same side,
 * and on a GPU asks for an expert. */
static bool is_told(const trail *from, const model *m, fixed_place f, int t, int l)
{
    return l < f.n_gpu ? asks(from, m, f, t, l - 1) : l > f.n_gpu || f.n_gpu == 0;
}

/* Whether, with most experts in VRAM, a guess of the last token is about a layer that asks for
 * nothing, and is judged only when counting ends. Other numbers of tokens might not show it. */
static bool ends_quietly(const trail *from, const model *m)
{
    const fixed_place most = { m->hp.n_layer, m->hp.n_expert * 6 / 8, 0 };
    bool any = false;
    for (int l = 1; l < m->hp.n_layer; l++)
        any |= is_told(from, m, most, N_TOKEN - 1, l) && !asks(from, m, most, N_TOKEN - 1, l);
    return any;
}

static void count_naively(counts *to, const trail *from, const model *m, fixed_place f)
{
    const int k = m->hp.n_expert_used;
    memset(to, 0, sizeof *to);
    for (int t = 0; t < N_TOKEN; t++)
        for (int l = 1; l < m->hp.n_layer; l++) {
            if (!is_told(from, m, f, t, l)) continue;
            to->tokens[l]++;
            for (int r = 0; r < k; r++) {
                const int32_t guess = from->guess[t][l][r];
                to->in_vram[l] += l < f.n_gpu && guess < f.hot;
                for (int i = 0; i < k; i++) to->right[l][r] += guess == from->chosen[t][l][i];
            }
        }
}

/* ---- what it counts -------------------------------------------------------------------------- */

static void take(counts *to, const guess_recall *g)
{
    memset(to, 0, sizeof *to);
    for (int l = 0; l < guess_recall_layers(g); l++) {
        const recall_layer c = guess_recall_counts(g, l);
        to->tokens[l] = c.tokens;
        to->in_vram[l] = c.in_vram;
        memcpy(to->right[l], c.right, (size_t)guess_recall_ranks(g) * sizeof *c.right);
    }
}

/* A session's own counts, and in *hash its logits'. counted: guesses are counted. A prompt and a
 * few tokens together, which come first, are not, and neither is what comes after the end. */
static bool run(counts *to, uint64_t *hash, const model *m, const place *p, int n_thread,
                bool counted)
{
    const engine_options eo = { .threads = n_thread };
    const session_options so = { .ctx = 2 * N_TOKEN, .kv = KV_F16 };
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = test_alloc(n_vocab, sizeof *logits);
    guess_recall *g = NULL;
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0 };
    int32_t ids[N_TOKEN];
    for (int t = 0; t < N_TOKEN; t++) ids[t] = token(t);
    bool ok = CHECK(guess_recall_create(&g, m->hp.n_layer, m->hp.n_expert_used, NULL) == 0) &&
              CHECK(engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
              CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", p->name, err.msg) &&
              (!counted || CHECK(session_watch_guesses(s, g, &err) == 0)) &&
              CHECK(session_eval(s, ids, N_TOKEN, logits, 1, NULL, NULL, &err) == 0 &&
                    session_eval(s, ids, A_FEW, logits, 1, NULL, NULL, &err) == 0);
    if (ok) session_rewind(s, 0);
    *hash = 0;
    for (int t = 0; t < N_TOKEN && ok; t++) {
        mem_guard(!p->gpu);              /* a simulated GPU allocates what it likes */
        ok = CHECK_MSG(session_eval(s, &ids[t], 1, logits, 1, NULL, NULL, &err) == 0, "%s: %s",
                       p->name, err.msg);
        mem_guard(false);
        *hash = *hash * 31 + str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
    }
    if (ok) {
        counts after;
        CHECK(session_watch_guesses(s, NULL, &err) == 0);
        take(to, g);
        CHECK(session_eval(s, ids, 1, logits, 1, NULL, NULL, &err) == 0);
        take(&after, g);
        CHECK_MSG(memcmp(to, &after, sizeof after) == 0, "%s: counted after all", p->name);
    }
    session_free(s);
    engine_close(e);
    guess_recall_free(g);
    mem_free(logits);
    return ok;
}

/* Counts of fewer tokens are never more. */
static bool is_between(const counts *got, const counts *least, const counts *most, int l)
{
    bool ok = got->tokens[l] >= least->tokens[l] && got->tokens[l] <= most->tokens[l] &&
              got->in_vram[l] >= least->in_vram[l] && got->in_vram[l] <= most->in_vram[l];
    for (int r = 0; r < MOST_RANKS; r++)
        ok &= got->right[l][r] >= least->right[l][r] && got->right[l][r] <= most->right[l][r];
    return ok;
}

/* Which layers ask is known where experts stay where they are, but for the GPU's own guesses, some
 * of which come too late. A real GPU rounds other bits, so that other experts may be chosen. */
static void compare_fixed(const counts *got, const trail *from, const model *m, const place *p)
{
    static counts least, most;
    fixed_place f = fixed_of(m, p);
    count_naively(&least, from, m, f);
    f.guessed = 0;
    count_naively(&most, from, m, f);
    for (int l = 0; l < m->hp.n_layer; l++)
        CHECK_MSG(is_between(got, &least, &most, l),
                  "%s: layer %d: %d tokens, %d in VRAM; not within %d, %d and %d, %d", p->name, l,
                  (int)got->tokens[l], (int)got->in_vram[l], (int)least.tokens[l],
                  (int)least.in_vram[l], (int)most.tokens[l], (int)most.in_vram[l]);
}

static void compare_loosely(const counts *got, const model *m, const place *p)
{
    const uint64_t k = (uint64_t)m->hp.n_expert_used;
    int n_layer = 0, n_vram = 0;
    for (int l = 0; l < m->hp.n_layer; l++) {
        n_layer += got->tokens[l] > 0;
        n_vram += got->in_vram[l] > 0;
        CHECK(got->tokens[l] <= N_TOKEN && got->in_vram[l] <= got->tokens[l] * k);
        for (int r = 0; r < MOST_RANKS; r++) CHECK(got->right[l][r] <= got->tokens[l]);
    }
    CHECK_MSG(p->hot_of_8 != 4 || !p->changing || (n_layer > 0 && n_vram > 0), "%s: %d layers, %d",
              p->name, n_layer, n_vram);
}

/* If there is no time, every sixth place of a simulated GPU, others for each `turn`. */
static void test_model(const char *path, int turn, bool *ends)
{
    static counts all, got, ignored;
    static trail seen;
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0 };
    uint64_t plain, hash, right = 0, n = 0;
    if (CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s", path,
                  err.msg) &&
        CHECK(m->hp.n_layer <= MOST_LAYERS && m->hp.n_expert_used <= MOST_RANKS)) {
        follow_naively(&seen, m);
        count_naively(&all, &seen, m, (fixed_place){ 0 });
        *ends |= ends_quietly(&seen, m);
        for (int l = 1; l < m->hp.n_layer; l++)
            for (int r = 0; r < m->hp.n_expert_used; r++, n += N_TOKEN) right += all.right[l][r];
        CHECK_MSG(right > n / 3 && right < n, "%s: %d of %d right", path, (int)right, (int)n);
        for (int i = 0; i < N_PLACES; i++) {
            const place *p = &places[i];
            const int n_thread = test_n_thread(sim_gpu() ? 1 : 1 + i % 2);
            if (p->gpu && gpu_count() == 0) continue;
            if (sim_gpu_skips(i + turn, 6)) continue;
            if (!run(&ignored, &plain, m, p, n_thread, false) ||
                !run(&got, &hash, m, p, n_thread, true))
                continue;
            CHECK_MSG(hash == plain, "%s: counting changes logits", p->name);
            if (!p->gpu || (sim_gpu() && !p->changing)) compare_fixed(&got, &seen, m, p);
            else compare_loosely(&got, m, p);
        }
    }
    model_free(m);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    bool ends = false;
    test_begin("guess_recall", argc, argv);
    test_counts();
    test_failures();
    test_model("tests/models/demo-qwen3next-Q4_K_M.gguf", 0, &ends);
    test_model("tests/models/demo-gptoss-MXFP4.gguf", 2, &ends);
    CHECK(ends);
    if (gpu_count() == 0) test_skip("no GPU: placements of the CPU alone");
    return test_end();
}
