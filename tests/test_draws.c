/* test_draws.c - a session's draws are the sampler's, wherever the logits are.
 *
 * Two sessions of one engine take in the same tokens. One of them draws, on a GPU from logits that
 * stay there; the other gives the row itself to a sampler of the same options. Both pick the same
 * token: with all tokens allowed, with few of them, with one. The row was not fetched for it. */
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/forward_tiered.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { PROMPT = 12, TOKENS = 40, CTX = PROMPT + TOKENS + 8 };

static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };

static const struct { sampler_options o; const char *why; } rules[] = {
    { { .top_p = 1, .repeat_penalty = 1 }, "greedy" },
    { { .temperature = 1, .top_p = 0.95, .repeat_penalty = 1, .seed = 3 }, "top-p" },
    { { .temperature = 0.8, .top_k = 20, .top_p = 1, .repeat_penalty = 1.2, .penalty_window = 32,
        .seed = 4 }, "top-k, penalties" },
};

/* Rows that left the device, or were asked for on the CPU. */
static int n_fetched;
int __real_forward_logits(forward *f, float *logits, int first, int n, err_ctx *err);
int __wrap_forward_logits(forward *f, float *logits, int first, int n, err_ctx *err);
int __wrap_forward_logits(forward *f, float *logits, int first, int n, err_ctx *err)
{
    n_fetched++;
    return __real_forward_logits(f, logits, first, n, err);
}

/* What may come as token t: all, every other one, a few, one block, one. The bits after the last
 * token mean nothing. */
static const uint64_t *allow(uint64_t *bits, int n_vocab, int t, test_rng *rng)
{
    const int n_word = (n_vocab + 63) / 64;
    if (t % 5 == 0) return NULL;
    for (int i = 0; i < n_word; i++) {
        const uint64_t u = test_rand(rng);
        bits[i] = t % 5 == 1 ? u : 0;
        if (t % 5 == 2) bits[i] = u & test_rand(rng) & test_rand(rng) & test_rand(rng);
    }
    if (t % 5 == 3) bits[t % n_word] = UINT64_MAX;
    if (t % 5 == 4) bits[t % n_word] = (uint64_t)1 << t % (n_vocab % 64 ? n_vocab % 64 : 64);
    if (n_vocab % 64) bits[n_word - 1] |= UINT64_MAX << n_vocab % 64;
    return bits;
}

/* The session that draws, and the one that shows its row. */
typedef struct pair {
    session *draws, *shows;
    sampler *far, *near;
    float *row;
    uint64_t *bits;
    int n_vocab;
} pair;

static int feed(pair *p, err_ctx *err)
{
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((17 + 29 * i) % p->n_vocab);
    session_rewind(p->draws, 0);
    session_rewind(p->shows, 0);
    const int rc = session_eval(p->draws, ids, PROMPT, NULL, 0, NULL, NULL, err);
    return rc < 0 ? rc : session_eval(p->shows, ids, PROMPT, NULL, 0, NULL, NULL, err);
}

/* Returns how often the row was fetched for a draw; -1: something else is wrong. */
static int follow(pair *p, const char *what, const char *why)
{
    test_rng rng = { 9 };
    err_ctx err = { 0 };
    int32_t id = 7;
    int fetched = 0;
    if (!CHECK_MSG(feed(p, &err) == 0, "%s: %s", what, err.msg)) return -1;
    for (int t = 0; t < TOKENS; t++) {
        const uint64_t *bits = allow(p->bits, p->n_vocab, t, &rng);
        int32_t got = -1, want = -1;
        sampler_allow(p->far, bits);
        sampler_allow(p->near, bits);
        n_fetched = 0;
        mem_guard(true);
        int rc = session_take(p->draws, id, &err);
        if (rc == 0) rc = session_pick(p->draws, &got, p->far, &err);
        mem_guard(false);
        fetched += n_fetched;
        if (rc == 0) rc = session_eval(p->shows, &id, 1, p->row, 1, NULL, NULL, &err);
        if (rc == 0) rc = sampler_pick(&want, p->near, p->row, &err);
        if (!CHECK_MSG(rc == 0 && got == want, "%s, %s: draw %d is %d, not %d: %s", what, why, t,
                       got, want, err.msg))
            return -1;
        if (bits) CHECK_MSG(bits[got / 64] >> got % 64 & 1, "%s: %d came", what, got);
        id = got;
        sampler_accept(p->far, id);
        sampler_accept(p->near, id);
    }
    return fetched;
}

static void test_place(const model *m, const char *path, const place *at)
{
    const engine_options eo = { .threads = test_n_thread(1) };
    const session_options so = { .ctx = CTX, .chunk = 16, .kv = KV_F16 };
    pair p = { .n_vocab = m->hp.n_vocab };
    engine *e = NULL;
    err_ctx err = { 0 };
    char what[200];
    snprintf(what, sizeof what, "%s, %s", path, at->name);
    p.row = test_alloc((size_t)p.n_vocab, sizeof *p.row);
    p.bits = test_alloc((size_t)p.n_vocab / 64 + 1, sizeof *p.bits);
    if (CHECK_MSG(engine_open(&e, m, &eo, &err) == 0, "%s: %s", what, err.msg) &&
        place_engine(e, m, at) &&
        CHECK_MSG(session_create(&p.draws, e, &so, &err) == 0 &&
                  session_create(&p.shows, e, &so, &err) == 0, "%s: %s", what, err.msg)) {
        const bool stays = engine_gpu_layers(e) == m->hp.n_layer && !at->head_in_ram;
        for (size_t k = 0; k < ARRAY_LEN(rules); k++) {
            CHECK(sampler_create(&p.far, &rules[k].o, p.n_vocab, CTX, &err) == 0 &&
                  sampler_create(&p.near, &rules[k].o, p.n_vocab, CTX, &err) == 0);
            const int fetched = follow(&p, what, rules[k].why);
            CHECK_MSG(fetched < 0 || fetched == (stays ? 0 : TOKENS), "%s, %s: %d rows fetched",
                      what, rules[k].why, fetched);
            sampler_free(p.far);
            sampler_free(p.near);
        }
    }
    session_free(p.draws);
    session_free(p.shows);
    engine_close(e);
    mem_free(p.row);
    mem_free(p.bits);
}

int main(int argc, char **argv)
{
    test_begin("draws", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU: draws of the CPU alone");
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        model_fixture f;
        if (model_fixture_open(&f, files[i])) {
            if (!sim_gpu() || test_is_long()) test_place(f.m, files[i], &places[0]);
            /* if there is no time, every place with one of the models */
            const int step = sim_gpu() ? test_rounds(4, 16) : 4;
            const int first = N_CPU_PLACES + (step > 4 ? 4 * (int)i : 0);
            for (int k = first; k < N_PLACES && gpu_count() > 0; k += step)
                test_place(f.m, files[i], &places[k]);
        }
        model_fixture_close(&f);
    }
    return test_end();
}
