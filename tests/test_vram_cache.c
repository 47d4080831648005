/* test_vram_cache.c - the output does not show where experts are.
 *
 * The same tokens one by one through every placement: on one processor the logits have the same
 * bits, whatever is in VRAM, fetched, late, cached or read from the file, whichever expert is
 * evicted, and whether post-fetch is paused for a while. Between the processors, and between
 * ways of dividing the layers among them, attention and other dense parts round differently: there
 * the logits are close. A simulated GPU does not round differently: there all
 * logits have the same bits, also after a prompt whose experts pass through VRAM, or stay in it if
 * they keep to the contract. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/engine_stats.h"
#include "engine/gpu/expert_server.h"
#include "engine/session/runner.h"
#include "moe/expert_store.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { MAX_TOKENS = 256, FIRST = 5, CHUNK = 64, SIM_PROMPT = CHUNK + 36 };

/* Post-fetch is paused before token `pause`. */
static struct { int n, pause, go_on; } tokens = { MAX_TOKENS, 100, 140 };

enum { MAX_VOCAB = 4096 };

typedef struct trail {                   /* what a placement gave */
    int32_t ids[MAX_TOKENS];
    uint64_t hash[MAX_TOKENS];           /* of the logits after each */
    float first[MAX_VOCAB];              /* logits after the first tokens */
} trail;

static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };

static expert_server_stats cold_of(const session *s)
{
    expert_server_stats c;
    store_stats st;
    runner_counts(session_runner(s), &c, &st);
    return c;
}

static uint64_t ahead_of_all;            /* bytes, of all placements */
static int updates;                      /* experts that came in by one, likewise */

static uint64_t n_fetched(const expert_server_stats *c) { return c->down_fetched + c->all_fetched; }

/* Before token i: pauses post-fetch for some tokens. *then gets the counts before them. */
static void pause_or_go_on(session *s, expert_server_stats *then, int i, const place *p)
{
    if (i == tokens.pause) {
        *then = cold_of(s);
        runner_pause_postfetch(session_runner(s), true);
    } else if (i == tokens.go_on) {
        const expert_server_stats now = cold_of(s);
        CHECK_MSG(n_fetched(&now) == n_fetched(then) && now.late == then->late &&
                  now.pull_bytes == then->pull_bytes, "%s: fetched while paused", p->name);
        CHECK_MSG(!p->gpu || !p->planned || p->changing ||
                  (now.on_cpu > then->on_cpu && !now.fetching),
                  "%s: nothing for the CPU while paused", p->name);
        runner_pause_postfetch(session_runner(s), false);
    }
}

/* A chunk that may be streamed, and a shorter one. */
static bool feed_more(session *s, float *logits, const model *m, const place *p)
{
    int32_t ids[SIM_PROMPT];
    err_ctx err = { 0 };
    for (int i = 0; i < SIM_PROMPT; i++) ids[i] = (int32_t)((17 + 29 * i) % m->hp.n_vocab);
    return CHECK_MSG(session_eval(s, ids, SIM_PROMPT, logits, 1, NULL, NULL, &err) == 0, "%s: %s",
                     p->name, err.msg);
}

static bool stop(void *ctx, double done, double total)
{
    (void)ctx, (void)total;
    return done <= 0;
}

/* A batch that ends after its first layer counts no choices of the others. */
static void check_stopped(session *s, const model *m, const place *p)
{
    static const int32_t ids[3] = { 5, 77, 12 };
    const frame_table_stats before = runner_vram_moves(session_runner(s));
    err_ctx err = { 0 };
    const int rc = session_eval(s, ids, 3, NULL, 0, stop, NULL, &err);
    const frame_table_stats after = runner_vram_moves(session_runner(s));
    const int n = (int)(after.hits + after.misses - before.hits - before.misses);
    CHECK_MSG(rc == ERR_STOPPED && n <= 3 * m->hp.n_expert_used, "%s: stopped with %d, %d choices",
              p->name, rc, n);
}

/* Experts that are asked for are there at once. Whether they are the right ones, the logits of the
 * tokens that follow show. */
static void check_apply(engine *e, const model *m, const place *p)
{
    enum { LAST = 3, MOST = 16 };
    int list[LAST * MOST] = { 0 }, there[4096], n = 0;
    err_ctx err = { 0 };
    for (int l = 0; l < m->hp.n_layer && l < MOST; l++)
        for (int i = 1; i <= LAST; i++) list[n++] = (l + 1) * m->hp.n_expert - i;
    CHECK_MSG(engine_apply(e, list, n, &err) >= 0, "%s: %s", p->name, err.msg);
    engine_pin(e, list, n);
    const int n_new = engine_update(e, LAST, &err);      /* others, and these stay */
    CHECK_MSG(n_new >= 0 && n_new <= LAST, "%s: %d came in: %s", p->name, n_new, err.msg);
    updates += n_new;
    const int n_there = engine_resident(e, there, (int)ARRAY_LEN(there));
    for (int i = 0; i < n; i++) {
        bool found = false;
        for (int j = 0; j < n_there; j++) found |= there[j] == list[i];
        CHECK_MSG(found, "%s: expert %d is not there", p->name, list[i]);
    }
}

/* Experts have changed places, as far as they can. */
static void check_changes(const session *s, const place *p, uint64_t quiet)
{
    const frame_table_stats moved = runner_vram_moves(session_runner(s));
    CHECK_MSG(moved.failures == 0, "%s: %d failures", p->name, (int)moved.failures);
    if (p->no_lock) {
        CHECK_MSG(moved.uploads == 0 && moved.saves == 0, "%s: %d uploads, %d saves", p->name,
                  (int)moved.uploads, (int)moved.saves);
        return;
    }
    CHECK_MSG(moved.uploads > 0 && moved.evictions > 0 && quiet > 0,
              "%s: %d uploads, %d swaps, %d evictions, %d quiet layers", p->name,
              (int)moved.uploads, (int)moved.swaps, (int)moved.evictions, (int)quiet);
    CHECK_MSG(!p->moved || moved.saves > 0, "%s: nothing was taken to RAM", p->name);
    CHECK_MSG(p->moved || !sim_gpu() || p->stage_ranges == 0 || moved.swaps > 0,
              "%s: the prompt left nothing", p->name);
}

/* Greedy, from a few tokens that are fed together. */
static bool follow(trail *t, const model *m, const place *p)
{
    static const int32_t prompt[FIRST] = { 11, 402, 7, 93, 260 };
    const engine_options eo = { .threads = sim_n_thread() };
    const session_options so = { .ctx = 512, .chunk = CHUNK, .kv = KV_F16 };
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = mem_array(n_vocab, sizeof *logits);
    engine *e = NULL;
    session *s = NULL;
    expert_server_stats then = { 0 };
    err_ctx err = { 0 };
    bool ok = CHECK(logits && engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
              CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", p->name, err.msg);
    ok = ok && CHECK(session_eval(s, prompt, FIRST, logits, 1, NULL, NULL, &err) == 0) &&
         (!sim_gpu() || feed_more(s, logits, m, p));
    ok = ok && CHECK(n_vocab <= MAX_VOCAB);
    if (ok) memcpy(t->first, logits, n_vocab * sizeof *logits);
    for (int i = 0; i < tokens.n && ok; i++) {
        pause_or_go_on(s, &then, i, p);
        if (i == tokens.n / 2 && p->changing && !p->no_lock) check_apply(e, m, p);
        if (i == tokens.n / 3 && p->changing) check_stopped(s, m, p);
        t->ids[i] = session_likeliest(s, logits);
        t->hash[i] = str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
        ok = CHECK_MSG(session_eval(s, &t->ids[i], 1, logits, 1, NULL, NULL, &err) == 0,
                       "%s, token %d: %s", p->name, i, err.msg);
    }
    if (ok && p->gpu && p->planned) {
        const expert_server_stats c = cold_of(s);
        CHECK_MSG((int)c.tokens == tokens.n && c.questions + c.quiet >= c.tokens && c.questions > 0,
                  "%s: %d tokens, %d questions, %d without", p->name, (int)c.tokens,
                  (int)c.questions, (int)c.quiet);
        CHECK_MSG(p->no_fetch || p->disk || n_fetched(&c) > 0,
                  "%s: nothing was fetched", p->name);
        ahead_of_all += c.ahead_bytes;
        CHECK_MSG(p->hot_of_8 == 0 || c.hot > 0, "%s: nothing was hot", p->name);
        if (p->changing) check_changes(s, p, c.quiet);
    }
    session_free(s);
    engine_close(e);
    mem_free(logits);
    return ok;
}

/* Where dense parts round otherwise, a code of an activation may become its neighbour, which moves
 * logits by up to a hundredth, and tokens that are nearly as likely change places. */
static void compare_near(const trail *want, const trail *got, const model *m, const char *file,
                         const char *name)
{
    double wrong = 0.0, all = 0.0;
    for (int i = 0; i < m->hp.n_vocab; i++) {
        const double x = want->first[i], away = got->first[i] - x;
        wrong += away * away;
        all += x * x;
    }
    CHECK_MSG(all > 0.0 && wrong < 1e-4 * all, "%s, %s: logits differ by %.1e", file, name,
              sqrt(wrong / all));
}

static void compare(const trail *want, const trail *got, const char *file, const char *name)
{
    for (int i = 0; i < tokens.n; i++) {
        if (got->hash[i] == want->hash[i]) continue;
        CHECK_MSG(false, "%s, %s: logits differ from token %d on", file, name, i);
        return;
    }
    CHECK(true);
}

/* Every policy where experts are cached; elsewhere there is nothing to choose. */
static int n_policies(const place *p)
{
    return p->disk || p->changing ? CACHE_POLICIES : 1;
}

static void follow_and_compare(const model *m, const char *path, int i, cache_policy policy)
{
    static trail cpu, device, half, now;
    const int on_both = N_CPU_PLACES + N_GPU_PLACES;
    char name[96];
    place p = places[i];
    snprintf(name, sizeof name, "%s (%s)", p.name, cache_policy_name(policy));
    if (n_policies(&p) > 1) p.name = name;
    p.cache = policy;
    p.frozen |= !p.planned;              /* --deterministic: else its prompts go by tensor cores */
    trail *t = i == 0 ? &cpu : i == N_CPU_PLACES ? &device : i == on_both ? &half : &now;
    if (!follow(t, m, &p)) return;
    if (i > N_CPU_PLACES && i < on_both) compare(&device, t, path, p.name);
    else if (i > 0 && (i < N_CPU_PLACES || sim_gpu())) compare(&cpu, t, path, p.name);
    else if (i > 0) compare_near(&cpu, t, m, path, p.name);
    if (i > on_both && p.cpu_of_4 == places[on_both].cpu_of_4) compare(&half, t, path, p.name);
}

/* Whether a place is one that others are compared with. */
static bool others_follow(int i)
{
    return i == 0 || i == N_CPU_PLACES || i == N_CPU_PLACES + N_GPU_PLACES;
}

/* If there is no time, every place with one of the models, or where experts are cached one policy
 * with each; but on a real GPU. */
static void test_file(const char *path, int turn)
{
    const bool all = test_is_long() || has_real_gpu();
    model_fixture f;
    if (!model_fixture_open(&f, path)) return;
    for (int i = 0; i < N_PLACES; i++) {
        if (places[i].gpu && gpu_count() == 0) continue;
        for (int p = 0; p < n_policies(&places[i]); p++)
            if (all || (p == 0 && others_follow(i)) ||
                (n_policies(&places[i]) > 1 ? (p + i) % 4 == 2 * turn : i % 2 == turn))
                follow_and_compare(f.m, path, i, (cache_policy)p);
    }
    model_fixture_close(&f);
}

int main(int argc, char **argv)
{
    test_begin("places", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU: placements of the CPU alone");
    const int step = gpu_count() == 0 ? test_rounds(1, 4) : sim_gpu_step(test_rounds(8, 32), 32);
    if (step > 1) tokens.n = 256 / step, tokens.pause = 96 / step, tokens.go_on = 160 / step;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) test_file(files[i], (int)i);
    if (gpu_count() > 0) CHECK_MSG(ahead_of_all > 0, "no core has read ahead");
    if (gpu_count() > 0) CHECK_MSG(updates > 0, "no update has found anything");
    return test_end();
}
