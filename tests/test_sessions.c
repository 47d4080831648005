/* test_sessions.c - sessions that share a runner have the same bits as a session with its own.
 *
 * A conversation is a script of prompts, single tokens, snapshots and rewinds. A session with a
 * runner of its own plays each script once. Then sessions that share one runner play several
 * scripts, interleaved in random order. In every placement, also on a GPU, real or simulated. */
#include "tests/test.h"

#include <string.h>

#include "cuda/gpu.h"
#include "engine/engine_internal.h"
#include "engine/gpu/gpu_steps.h"
#include "engine/session/mtp.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

enum { CTX = 160, CHUNK = 24, TALKS = 4, OPS = 12 };

typedef struct op {
    enum { OP_EVAL, OP_NEXT, OP_DRAW, OP_BACK } kind;
    int n;                               /* tokens of EVAL; of BACK those that are left */
    int32_t first;                       /* token; the others follow from it */
} op;

typedef struct format {
    op ops[OPS];
    uint64_t seen[OPS];                  /* of what each gave */
} format;

static void make_talk(format *t, test_rng *rng, int n_vocab)
{
    int pos = 0;
    for (int i = 0; i < OPS; i++) {
        op *o = &t->ops[i];
        const int dice = (int)test_below(rng, 10);
        o->kind = i == 0 || dice < 3 ? OP_EVAL : dice < 6 ? OP_NEXT : dice < 9 ? OP_DRAW : OP_BACK;
        o->n = o->kind == OP_EVAL ? 1 + (int)test_below(rng, CTX / OPS * 3) : 1;
        if (o->kind == OP_BACK) o->n = (int)test_below(rng, (uint32_t)pos + 1);
        if (o->kind != OP_BACK && pos + o->n > CTX) {
            o->kind = OP_BACK;
            o->n = 0;
        }
        pos = o->kind == OP_BACK ? o->n : pos + o->n;
        o->first = (int32_t)test_below(rng, (uint32_t)n_vocab);
    }
}

static uint64_t hash_of(const void *bytes, size_t n)
{
    return str_hash((str_view){ bytes, n });
}

/* One operation; what comes of it as a hash. */
static uint64_t play(session *s, const op *o, float *logits)
{
    const int n_vocab = session_vocab(s);
    const sampler_options any = { .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5 };
    int32_t ids[CTX], next = -1;
    sampler *smp = NULL;
    err_ctx err = { 0 };
    int rc = 0;
    for (int i = 0; i < o->n && o->kind != OP_BACK; i++)
        ids[i] = (o->first + i * 7) % n_vocab;
    switch (o->kind) {
    case OP_EVAL:
        rc = session_eval(s, ids, o->n, logits, 1, NULL, NULL, &err);
        session_snapshot(s);
        break;
    case OP_NEXT:
        rc = session_next(s, &next, ids[0], &err);
        break;
    case OP_DRAW:
        rc = sampler_create(&smp, &any, n_vocab, CTX, &err);
        if (rc == 0) rc = session_take(s, ids[0], &err);
        if (rc == 0) rc = session_pick(s, &next, smp, &err);
        sampler_free(smp);
        break;
    case OP_BACK:
        next = session_rewind(s, o->n);
        break;
    }
    CHECK_MSG(rc == 0, "%s", err.msg);
    return o->kind == OP_EVAL ? hash_of(logits, (size_t)n_vocab * sizeof *logits)
                              : (uint64_t)(uint32_t)next * 2654435761u + (uint64_t)session_pos(s);
}

static void test_turns(const model *m, engine *e, const char *name, test_rng *rng)
{
    const session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = KV_F16, .n_snapshot = 2,
                                 .n_sharing = TALKS - 1 };
    float *logits = test_alloc((size_t)m->hp.n_vocab, sizeof *logits);
    static format talks[TALKS];
    session *s[TALKS] = { 0 };
    int at[TALKS] = { 0 }, left = TALKS * OPS, wrong = 0;
    err_ctx err = { 0 };

    for (int i = 0; i < TALKS; i++) {
        make_talk(&talks[i], rng, m->hp.n_vocab);
        session *alone = NULL;
        if (!CHECK_MSG(session_create(&alone, e, &so, &err) == 0, "%s: %s", name, err.msg)) break;
        for (int k = 0; k < OPS; k++) talks[i].seen[k] = play(alone, &talks[i].ops[k], logits);
        session_free(alone);
    }
    if (CHECK_MSG(session_create(&s[0], e, &so, &err) == 0, "%s: %s", name, err.msg))
        for (int i = 1; i < TALKS; i++)
            CHECK_MSG(session_create_sharing(&s[i], session_runner(s[0]), &err) == 0, "%s: %s",
                      name, err.msg);
    while (left > 0 && s[TALKS - 1]) {
        const int i = (int)test_below(rng, TALKS);
        if (at[i] == OPS) continue;
        wrong += play(s[i], &talks[i].ops[at[i]], logits) != talks[i].seen[at[i]];
        at[i]++;
        left--;
    }
    CHECK_MSG(wrong == 0 && left == 0, "%s: %d of %d differ", name, wrong, TALKS * OPS);
    for (int i = TALKS; i-- > 0;) session_free(s[i]);
    mem_free(logits);
}

/* A further session takes its state and its tokens. */
static void test_bytes(const model *m, engine *e)
{
    session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = KV_F16, .n_snapshot = 2 };
    const state_options st = { .ctx = CTX, .slack = CHUNK, .kv = KV_F16, .n_snapshot = 2 };
    uint64_t one, four, vram_one, vram_four;
    err_ctx err = { 0 };
    so.n_sharing = 1;
    CHECK(session_plan(&one, &vram_one, e, &so, &err) == 0);
    so.n_sharing = 4;
    CHECK(session_plan(&four, &vram_four, e, &so, &err) == 0);
    CHECK_MSG(four - one == 3 * (state_bytes(m, &st) + mtp_vector_bytes(m) +
                                 CTX * sizeof(int32_t)), "%llu",
              (unsigned long long)(four - one));
    CHECK((vram_four > vram_one) == (vram_one > 0));
    so.n_sharing = SESSION_MAX_SHARING + 1;
    CHECK(session_check(m, &so, &err) == ERR_RANGE);
}

static void test_place(const model *m, engine *e, const place *p, int index)
{
    test_rng rng = { 11 + (uint64_t)index };
    if (p == &places[1] && !test_is_long() && index % 2) return;
    test_bytes(m, e);
    test_turns(m, e, p->name, &rng);
}

int main(int argc, char **argv)
{
    static const char *const models[] = { "models/tiny-qwen3next-f32", "models/tiny-gptoss-f32",
                                          "families/tiny-glm4moe-bf16",
                                          "families/tiny-gemma4-shared-bf16" };
    test_begin("sessions", argc, argv);
    each_place(models, ARRAY_LEN(models), 12, test_place);
    return test_end();
}
