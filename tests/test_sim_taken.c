/* test_sim_taken.c - a token that was taken, and whose pick never came.
 *
 * The simulated GPU is lazy: the token is still queued when the next call begins. Whatever that is,
 * and whichever of two sessions that share a bench it belongs to, both continue with the bits that
 * they have alone. A token that failed on the device was not taken. */
#include "cuda/gpu.h"
#include "engine/engine_internal.h"
#include "tests/cache_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { CTX = 64, PROMPT = 12 };

static const int32_t prompts[2][PROMPT] = {
    { 5, 9, 2, 14, 7, 3, 3, 8, 21, 4, 6, 1 }, { 30, 2, 2, 19, 11, 8, 5, 16, 3, 9, 27, 4 },
};
static const int32_t taken_id = 17, later_id[2] = { 12, 25 };

/* What comes instead of the pick. */
typedef enum follower { NEXT, EVAL, TAKE, SNAPSHOT, REWIND, FREE_OTHER, FOLLOWERS } follower;

static const char *const names[FOLLOWERS] = { "next", "eval", "take", "snapshot", "rewind",
                                              "free" };

static bool start(session *s, const int32_t *prompt)
{
    err_ctx err = { 0 };
    int32_t next;
    /* a token on its own has the session's recording made */
    const bool ok = session_eval(s, prompt, PROMPT - 1, NULL, 0, NULL, NULL, &err) == 0 &&
                    session_next(s, &next, prompt[PROMPT - 1], &err) == 0;
    if (ok) session_snapshot(s);
    return CHECK_MSG(ok, "%s", err.msg);
}

/* The likeliest token after the given ones, by a session of its own. */
static uint64_t alone(engine *e, const session_options *so, int which, bool taken)
{
    session *s = NULL;
    err_ctx err = { 0 };
    float *row = test_alloc((size_t)CTX * 1000, sizeof *row);
    uint64_t hash = 0;
    int32_t next;
    if (CHECK_MSG(session_create(&s, e, so, &err) == 0, "%s", err.msg) &&
        start(s, prompts[which])) {
        if (taken) CHECK(session_next(s, &next, taken_id, &err) == 0);
        CHECK(session_eval(s, &later_id[which], 1, row, 1, NULL, NULL, &err) == 0);
        hash = str_hash((str_view){ (const char *)row, (size_t)session_vocab(s) * sizeof *row });
    }
    session_free(s);
    mem_free(row);
    return hash;
}

static void check_later(session *s, int which, uint64_t want, const char *name)
{
    float *row = test_alloc((size_t)session_vocab(s), sizeof *row);
    err_ctx err = { 0 };
    const int rc = session_eval(s, &later_id[which], 1, row, 1, NULL, NULL, &err);
    CHECK_MSG(rc == 0, "%s: %s", name, err.msg);
    CHECK_MSG(str_hash((str_view){ (const char *)row, (size_t)session_vocab(s) * sizeof *row }) ==
              want, "%s: session %d has other bits", name, which);
    mem_free(row);
}

/* f comes for s[by] after s[0] has taken a token. */
static void follow(engine *e, const session_options *so, follower f, int by)
{
    static const int32_t some[4] = { 3, 1, 4, 1 };
    session *s[2] = { 0 }, *third = NULL;
    err_ctx err = { 0 };
    char name[32];
    int32_t next;
    int rc = 0;
    test_path(name, sizeof name, "%s by %d", names[f], by);
    if (!CHECK_MSG(session_create(&s[0], e, so, &err) == 0 &&
                   session_create_sharing(&s[1], session_runner(s[0]), &err) == 0 &&
                   session_create_sharing(&third, session_runner(s[0]), &err) == 0,
                   "%s", err.msg) ||
        !start(s[0], prompts[0]) || !start(s[1], prompts[1]))
        goto out;
    sim_gpu_lazy(true);
    CHECK_MSG(session_take(s[0], taken_id, &err) == 0, "%s", err.msg);
    switch (f) {
    case NEXT: rc = session_next(s[by], &next, some[0], &err); break;
    case EVAL: rc = session_eval(s[by], some, 4, NULL, 0, NULL, NULL, &err); break;
    case TAKE: rc = session_take(s[by], some[0], &err); break;
    case SNAPSHOT: session_snapshot(s[by]); break;
    case REWIND: session_rewind(s[by], by == 0 ? PROMPT + 1 : PROMPT); break;
    case FREE_OTHER: session_free(third); third = NULL; break;
    case FOLLOWERS: break;
    }
    CHECK_MSG(rc == 0, "%s: %s", name, err.msg);
    if (f == NEXT || f == EVAL || f == TAKE)
        CHECK_MSG(session_rewind(s[by], PROMPT) == PROMPT, "%s", name);
    if (by == 0 && (f == NEXT || f == EVAL || f == TAKE))
        CHECK_MSG(session_next(s[0], &next, taken_id, &err) == 0, "%s: %s", name, err.msg);
    check_later(s[0], 0, alone(e, so, 0, true), name);
    check_later(s[1], 1, alone(e, so, 1, false), name);
    CHECK_MSG(session_pos(s[0]) == PROMPT + 2, "%s: position %d", name, session_pos(s[0]));
out:
    sim_gpu_lazy(false);
    session_free(third);
    session_free(s[1]);
    session_free(s[0]);
}

/* The device fails between the two: the engine's last test. */
static void fail_between(engine *e, const session_options *so, bool snapshots_only)
{
    const sampler_options greedy = { .top_p = 1, .repeat_penalty = 1 };
    session *s = NULL;
    sampler *smp = NULL;
    err_ctx err = { 0 };
    int32_t next;
    if (!CHECK_MSG(session_create(&s, e, so, &err) == 0, "%s", err.msg) || !start(s, prompts[0]))
        goto out;
    CHECK(sampler_create(&smp, &greedy, session_vocab(s), CTX, &err) == 0);
    sim_gpu_lazy(true);
    CHECK_MSG(session_take(s, taken_id, &err) == 0, "%s", err.msg);
    gpu_copy(e->devices[0].g, &next, &err, sizeof next);       /* no memory of the device's */
    CHECK(session_pick(s, &next, smp, &err) < 0);
    CHECK_MSG(session_pos(s) == PROMPT, "position %d", session_pos(s));
    const int kept = session_rewind_target(s, PROMPT);
    CHECK_MSG(snapshots_only ? kept < PROMPT : kept == PROMPT, "%d of %d tokens kept", kept,
              PROMPT);
out:
    sim_gpu_lazy(false);
    sampler_free(smp);
    session_free(s);
}

int main(int argc, char **argv)
{
    static const struct { const char *path; bool recurrent; } models[] = {
        { "models/tiny-qwen3next-f32", true }, { "models/tiny-gptoss-f32", false },
    };
    static const place whole = { .name = "GPU, all in VRAM", .gpu = true };
    const engine_options eo = { .threads = sim_n_thread() };
    const session_options so = { .ctx = CTX, .chunk = 16, .kv = KV_F16, .n_snapshot = 3,
                                 .n_sharing = 2 };
    char path[512];
    test_begin("taken", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        gguf *g = NULL;
        model *m = NULL;
        engine *e = NULL;
        err_ctx err = { 0 };
        test_path(path, sizeof path, "%s/%s.gguf", test_unpacked(), models[i].path);
        if (!CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0 &&
                       engine_open(&e, m, &eo, &err) == 0, "%s: %s", path, err.msg))
            return test_end();
        if (place_engine(e, m, &whole)) {
            for (int f = 0; f < FOLLOWERS; f++)
                for (int by = 0; by < 2; by++) follow(e, &so, (follower)f, by);
            fail_between(e, &so, models[i].recurrent);
        }
        engine_close(e);
        model_free(m);
        gguf_close(g);
    }
    return test_end();
}
