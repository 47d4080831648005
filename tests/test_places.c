/* test_places.c - the output does not show where experts are.
 *
 * The same tokens one by one through every placement: on one processor the logits have the same
 * bits, whatever is in VRAM, fetched, late, cached or read from the file, whichever expert makes
 * room there, and whether post-fetch is paused for a while. Between the processors, and between
 * ways of dividing the layers among them, attention and other dense parts round differently: there
 * only the likeliest tokens are the same. */
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/gpu/host_experts.h"
#include "engine/instruments.h"
#include "tests/places.h"
#include "tests/test.h"

enum { N_TOKENS = 256, FIRST = 5, PAUSE = 100, GO_ON = 140 };    /* PAUSE: before that token */

typedef struct trail {                   /* what a placement gave */
    int32_t ids[N_TOKENS];
    uint64_t hash[N_TOKENS];             /* of the logits after each */
} trail;

static const char *const files[] = { "tests/models/demo-qwen3next-Q4_K_M.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };

static host_experts_stats cold_of(const session *s)
{
    host_experts_stats c;
    store_stats st;
    session_counts(s, &c, &st);
    return c;
}

static uint64_t n_fetched(const host_experts_stats *c) { return c->down_fetched + c->all_fetched; }

/* Before token i: pauses post-fetch for some tokens. *then gets the counts before them. */
static void pause_or_go_on(session *s, host_experts_stats *then, int i, const place *p)
{
    if (i == PAUSE) {
        *then = cold_of(s);
        session_pause_postfetch(s, true);
    } else if (i == GO_ON) {
        const host_experts_stats now = cold_of(s);
        CHECK_MSG(n_fetched(&now) == n_fetched(then) && now.late == then->late &&
                  now.pull_bytes == then->pull_bytes, "%s: fetched while paused", p->name);
        CHECK_MSG(!p->gpu || !p->planned || (now.on_cpu > then->on_cpu && !now.fetching),
                  "%s: nothing for the CPU while paused", p->name);
        session_pause_postfetch(s, false);
    }
}

/* Greedy, from a few tokens that are fed together. */
static bool follow(trail *t, const model *m, const place *p)
{
    static const int32_t prompt[FIRST] = { 11, 402, 7, 93, 260 };
    const engine_options eo = { .threads = test_n_thread(0) };
    const session_options so = { .ctx = 512, .chunk = 128, .kv = KV_F16 };
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = mem_array(n_vocab, sizeof *logits);
    engine *e = NULL;
    session *s = NULL;
    host_experts_stats then = { 0 };
    err_ctx err = { 0 };
    bool ok = CHECK(logits && engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
              CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", p->name, err.msg);
    ok = ok && CHECK(session_eval(s, prompt, FIRST, logits, 1, NULL, NULL, &err) == 0);
    for (int i = 0; i < N_TOKENS && ok; i++) {
        pause_or_go_on(s, &then, i, p);
        t->ids[i] = session_likeliest(s, logits);
        t->hash[i] = str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
        ok = CHECK_MSG(session_eval(s, &t->ids[i], 1, logits, 1, NULL, NULL, &err) == 0,
                       "%s, token %d: %s", p->name, i, err.msg);
    }
    if (ok && p->gpu && p->planned) {
        const host_experts_stats c = cold_of(s);
        CHECK_MSG(c.tokens == N_TOKENS && c.questions + c.quiet >= c.tokens && c.questions > 0,
                  "%s: %d tokens, %d questions, %d without", p->name, (int)c.tokens,
                  (int)c.questions, (int)c.quiet);
        CHECK_MSG(p->no_fetch || p->disk || n_fetched(&c) > 0,
                  "%s: nothing was fetched", p->name);
        CHECK_MSG(p->hot_of_8 == 0 || c.hot > 0, "%s: nothing was hot", p->name);
    }
    session_free(s);
    engine_close(e);
    mem_free(logits);
    return ok;
}

static void compare(const trail *want, const trail *got, bool bits, const char *file,
                    const char *name)
{
    for (int i = 0; i < N_TOKENS; i++) {
        if (bits ? got->hash[i] == want->hash[i] : got->ids[i] == want->ids[i]) continue;
        CHECK_MSG(false, "%s, %s: %s differ from token %d on", file, name,
                  bits ? "logits" : "tokens", i);
        return;
    }
    CHECK(true);
}

/* Every policy where experts are cached; elsewhere there is nothing to choose. */
static int n_policies(const place *p)
{
    return p->disk && !p->bounce ? CACHE_POLICIES : 1;
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
    trail *t = i == 0 ? &cpu : i == N_CPU_PLACES ? &device : i == on_both ? &half : &now;
    if (!follow(t, m, &p)) return;
    if (i > 0 && i < N_CPU_PLACES) compare(&cpu, t, true, path, p.name);
    if (i == N_CPU_PLACES) compare(&cpu, t, false, path, p.name);
    if (i > N_CPU_PLACES && i < on_both) compare(&device, t, true, path, p.name);
    if (i >= on_both) compare(&cpu, t, false, path, p.name);
    if (i > on_both && p.cpu_of_4 == places[on_both].cpu_of_4)
        compare(&half, t, true, path, p.name);
}

static void test_file(const char *path)
{
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s", path,
                   err.msg))
        return;
    for (int i = 0; i < N_PLACES; i++) {
        if (places[i].gpu && gpu_count() == 0) continue;
        for (int p = 0; p < n_policies(&places[i]); p++)
            follow_and_compare(m, path, i, (cache_policy)p);
    }
    model_free(m);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    test_begin("places", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU: placements of the CPU alone");
    for (size_t i = 0; i < ARRAY_LEN(files); i++) test_file(files[i]);
    return test_end();
}
