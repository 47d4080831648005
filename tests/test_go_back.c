/* test_go_back.c - a session that goes back within its last tokens has the bits of never having
 * taken them in.
 *
 * Each pass takes in a few tokens of several sessions in one batch, right ones and then wrong ones
 * (as drafts are), and goes back to the right ones. A session with a runner of its own takes in the
 * right ones alone. All kinds of layer memory, on the CPU and on a GPU, real or simulated. */
#include "tests/test.h"

#include <assert.h>

#include "cuda/gpu.h"
#include "engine/session/kept_inputs.h"
#include "engine/session/recurrent.h"
#include "engine/session/runner.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

enum { TALKS = 2, PASSES = 9, MOST = 4, PROMPT = 40, CTX = PROMPT + 8 * PASSES * MOST, CHUNK = 64 };
static_assert(TALKS * MOST <= KEPT_TOKENS, "a batch with wrong tokens");

/* One pass of a conversation: of n tokens the first `right` stay. */
typedef struct pass {
    int32_t ids[MOST];
    int n, right;
} pass;

typedef struct talk {
    session *s, *alone;
    pass now;
} talk;

static uint64_t hash_of(const float *logits, int n_vocab)
{
    return str_hash((str_view){ (const char *)logits, (size_t)n_vocab * sizeof *logits });
}

static void draw_pass(pass *r, test_rng *rng, int n_vocab)
{
    r->n = 1 + (int)test_below(rng, MOST);
    r->right = (int)test_below(rng, (uint32_t)r->n + 1);
    for (int i = 0; i < r->n; i++) r->ids[i] = (int32_t)test_below(rng, (uint32_t)n_vocab);
}

/* The same tokens for both sessions of a talk: their logits must be the same. */
static bool agree(talk *t, const int32_t *ids, int n, float *logits, err_ctx *err)
{
    const int n_vocab = session_vocab(t->s);
    uint64_t hash[2] = { 0, 1 };
    for (int i = 0; i < 2; i++) {
        session *s = i == 0 ? t->alone : t->s;
        if (session_eval(s, ids, n, logits, 1, NULL, NULL, err) < 0) return false;
        hash[i] = hash_of(logits, n_vocab);
    }
    return hash[0] == hash[1];
}

/* Goes back to the right tokens, in one step or in two. */
static bool go_back(session *s, const pass *r, int before, test_rng *rng)
{
    const int to = before + r->right, n_wrong = r->n - r->right;
    const int by_way = to + (int)test_below(rng, (uint32_t)n_wrong + 1);
    return session_rewind_target(s, by_way) == by_way && session_rewind(s, by_way) == by_way &&
           session_rewind(s, to) == to && session_pos(s) == to;
}

static bool play_pass(talk *talks, test_rng *rng, err_ctx *err)
{
    runner_row rows[TALKS];
    int before[TALKS];
    bool ok = true;
    for (int i = 0; i < TALKS; i++) {
        talk *t = &talks[i];
        draw_pass(&t->now, rng, session_vocab(t->s));
        before[i] = session_pos(t->s);
        rows[i] = (runner_row){ .s = t->s, .ids = t->now.ids, .n = t->now.n, .keep = true };
        if (t->now.right > 0 &&
            session_eval(t->alone, t->now.ids, t->now.right, NULL, 0, NULL, NULL, err) < 0)
            return false;
    }
    if (runner_eval(session_runner(talks[0].s), rows, TALKS, NULL, err) < 0) return false;
    for (int i = TALKS; i-- > 0;) ok &= go_back(talks[i].s, &talks[i].now, before[i], rng);
    return ok;
}

static void test_passes(const model *m, engine *e, const char *name, kv_type kv, test_rng *rng)
{
    session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = kv, .n_snapshot = 1,
                           .n_sharing = TALKS - 1, .n_version = TALKS };
    float *logits = test_alloc((size_t)m->hp.n_vocab, sizeof *logits);
    talk talks[TALKS] = { 0 };
    int32_t prompt[PROMPT];
    err_ctx err = { 0 };
    int rc = 0, wrong = 0;
    for (int i = 0; i < TALKS && rc == 0; i++) {
        talk *t = &talks[i];
        rc = i == 0 ? session_create(&t->s, e, &so, &err)
                    : session_create_sharing(&t->s, session_runner(talks[0].s), &err);
        if (rc == 0) rc = session_create(&t->alone, e, &so, &err);
        for (int k = 0; k < PROMPT; k++)
            prompt[k] = (int32_t)test_below(rng, (uint32_t)m->hp.n_vocab);
        if (rc == 0) wrong += !agree(t, prompt, PROMPT - 7 * i, logits, &err);
    }
    for (int i_pass = 0; i_pass < PASSES && rc == 0 && wrong == 0; i_pass++) {
        wrong += !play_pass(talks, rng, &err);
        for (int i = 0; i < TALKS && i_pass % 3 == 2 && wrong == 0; i++) {
            const int n = 1 + i_pass % 2;
            wrong += !agree(&talks[i], prompt + i_pass, n, logits, &err);
        }
    }
    CHECK_MSG(rc == 0 && wrong == 0, "%s, %s: %d, differs: %s", model_arch_name(m->hp.arch), name,
              rc, err.msg);
    for (int i = TALKS; i-- > 0;) {
        session_free(talks[i].alone);
        session_free(talks[i].s);
    }
    mem_free(logits);
}

/* What ends the time in which the tokens can be left: the session's next tokens, another batch that
 * keeps some, and a rewind beyond them. */
static void test_end_of_time(const model *m, engine *e)
{
    const session_options so = { .ctx = CTX, .chunk = CHUNK, .n_sharing = 1, .n_version = 1 };
    const bool lossy = recurrent_bytes(m) > 0;
    const int32_t ids[] = { 1, 2, 3, 4, 5 };
    session *s[2] = { NULL };
    err_ctx err = { 0 };
    if (!CHECK_MSG(session_create(&s[0], e, &so, &err) == 0 &&
                   session_create_sharing(&s[1], session_runner(s[0]), &err) == 0, "%s", err.msg))
        return;
    runner *r = session_runner(s[0]);
    const runner_row rows[] = { { .s = s[0], .ids = ids, .n = 4, .keep = true },
                                { .s = s[1], .ids = ids, .n = 4, .keep = true } };
    CHECK(session_eval(s[0], ids, 5, NULL, 0, NULL, NULL, &err) == 0);
    CHECK(runner_eval(r, rows, 1, NULL, &err) == 0 && session_rewind_target(s[0], 7) == 7);
    CHECK(session_rewind_target(s[0], 4) == (lossy ? 0 : 4));    /* before these tokens */
    CHECK(runner_eval(r, rows + 1, 1, NULL, &err) == 0);
    CHECK(session_rewind_target(s[0], 5) == (lossy ? 0 : 5));    /* other inputs are kept now */
    CHECK(session_rewind_target(s[1], 1) == 1 && session_rewind(s[1], 9) == 4);
    CHECK(session_eval(s[1], ids, 1, NULL, 0, NULL, NULL, &err) == 0);
    CHECK(session_rewind_target(s[1], 4) == (lossy ? 0 : 4));
    const runner_row mixed[] = { rows[0], { .s = s[1], .ids = ids, .n = 3 } };
    CHECK(runner_eval(r, mixed, 2, NULL, &err) == 0 && session_rewind(s[0], 11) == 11);
    CHECK(session_rewind(s[0], 9) == 9 && session_rewind_target(s[1], 7) == (lossy ? 0 : 7));
    CHECK(session_rewind(s[0], 0) == 0 && session_rewind(s[1], 0) == 0);
    session_free(s[0]);
    session_free(s[1]);
}

static void test_place(const model *m, engine *e, const place *p, int index)
{
    static const kv_type types[] = { KV_F16, KV_F32, KV_Q8_0 };
    test_rng rng = { 23 + (uint64_t)index };
    test_passes(m, e, p->name, types[index % 3], &rng);
    test_end_of_time(m, e);
}

int main(int argc, char **argv)
{
    static const char *const models[] = {
        "models/tiny-qwen3next-f32", "families/tiny-qwen35moe-bf16", "models/tiny-gptoss-f32",
        "families/tiny-gemma4-shared-bf16",
    };
    test_begin("go_back", argc, argv);
    each_place(models, ARRAY_LEN(models), 5, test_place);
    return test_end();
}
