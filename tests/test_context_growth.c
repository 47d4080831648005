/* test_context_growth.c - contexts that grow into the cache of experts, and give its frames back.
 *
 * Two sessions grow in turn while all their pages come from frames that experts had. Every token has
 * the bits that it has where contexts have memory of their own, the cache continues with the
 * frames that are left, and the error of a full cache changes nothing. */
#include "engine/engine_internal.h"
#include "engine/session/runner.h"
#include "tests/cache_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

enum { SESSIONS = 2, CHUNK = 64, STEPS = 9, CTX = 320 };
static const int batches[STEPS] = { 30, 1, 64, 1, 1, 64, 40, 1, 64 };

static int32_t id_at(int s, int pos) { return (int32_t)(3 + (s * 31 + pos * 7 + pos / 5) % 200); }

/* The next step of a session; a hash of the last token's logits. */
static uint64_t take(session *s, int which, int n, float *row)
{
    int32_t ids[CHUNK];
    err_ctx err = { 0 };
    for (int i = 0; i < n; i++) ids[i] = id_at(which, session_pos(s) + i);
    if (!CHECK_MSG(session_eval(s, ids, n, row, 1, NULL, NULL, &err) == 0, "%s", err.msg)) return 0;
    return str_hash((str_view){ (const char *)row, (size_t)session_vocab(s) * sizeof *row });
}

static int n_lent(const engine *e)
{
    const frame_table *t = vram_cache_table(e->cache);
    int n = 0;
    for (int f = 0; f < frame_table_count(t); f++) n += frame_table_state(t, f) == FRAME_LENT;
    return n;
}

/* hashes: gets those of each step, or with `lent` has them. */
static void run(engine *e, const char *name, uint64_t hashes[STEPS][SESSIONS], bool lent)
{
    const session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = KV_F16, .n_sharing = 1 };
    session *s[SESSIONS] = { NULL };
    err_ctx err = { 0 };
    int wrong = 0;
    e->p->vram_lent = lent;              /* all of it: no page is their own */
    if (!CHECK_MSG(session_create(&s[0], e, &so, &err) == 0 &&
                   session_create_sharing(&s[1], session_runner(s[0]), &err) == 0, "%s: %s", name,
                   err.msg))
        goto done;
    float *row = test_alloc((size_t)session_vocab(s[0]), sizeof *row);
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            const uint64_t hash = take(s[k], k, batches[i], row);
            if (lent) wrong += hash != hashes[i][k];
            else hashes[i][k] = hash;
        }
    CHECK_MSG(wrong == 0, "%s: %d of %d steps differ", name, wrong, STEPS * SESSIONS);
    const int most = n_lent(e);
    CHECK_MSG((most > 0) == lent, "%s: %d frames are lent", name, most);
    if (lent) {
        CHECK(session_rewind(s[0], 0) == 0 && n_lent(e) <= most);
        CHECK(take(s[0], 0, batches[0], row) == hashes[0][0]);
    }
    mem_free(row);
done:
    for (int k = SESSIONS; k-- > 0;) session_free(s[k]);
    CHECK_MSG(n_lent(e) == 0, "%s: %d frames have not come back", name, n_lent(e));
}

/* A context as long as VRAM has frames, and more: one error, and the session goes on. */
static void run_full(engine *e, const char *name)
{
    const session_options so = { .ctx = 4096, .chunk = CHUNK, .kv = KV_F32 };
    session *s = NULL;
    err_ctx err = { 0 };
    int rc = 0, n = 0;
    e->p->vram_lent = 1;
    if (!CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", name, err.msg)) return;
    float *row = test_alloc((size_t)session_vocab(s), sizeof *row);
    for (int32_t ids[CHUNK]; rc == 0 && n < so.ctx; n += CHUNK) {
        for (int i = 0; i < CHUNK; i++) ids[i] = id_at(0, n + i);
        rc = session_eval(s, ids, CHUNK, NULL, 0, NULL, NULL, &err);
        if (rc < 0) break;
    }
    CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, "no more room for contexts"), "%s: %d, %s", name,
              rc, err.msg);
    CHECK_MSG(n > CHUNK && session_pos(s) == n, "%s: %d of %d", name, session_pos(s), n);
    const int lent = n_lent(e);
    CHECK(session_rewind(s, 0) == 0 && n_lent(e) < lent);
    const uint64_t first = take(s, 0, 20, row);
    CHECK(session_rewind(s, 0) == 0 && take(s, 0, 20, row) == first);
    mem_free(row);
    session_free(s);
    CHECK(n_lent(e) == 0);
}

int main(int argc, char **argv)
{
    static const char *const models[] = { "demo-gptoss-MXFP4", "demo-qwen3next-mtp" };
    const engine_options eo = { .threads = sim_n_thread() };
    test_begin("context_growth", argc, argv);
    if (gpu_count() == 0) {
        test_skip("no GPU");
        return test_end();
    }
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        uint64_t hashes[STEPS][SESSIONS];
        char path[512];
        gguf *g = NULL;
        model *m = NULL;
        engine *e = NULL;
        err_ctx err = { 0 };
        /* all experts chosen by one token, and frames for as many again */
        const place where = { .name = models[i], .gpu = true, .planned = true, .hot_of_8 = 6,
                              .changing = true, .stage_ranges = 2, .stream_from = 40 };
        test_path(path, sizeof path, "tests/models/%s.gguf", models[i]);
        if (CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0 &&
                      engine_open(&e, m, &eo, &err) == 0, "%s: %s", path, err.msg) &&
            place_engine(e, m, &where)) {
            run(e, models[i], hashes, false);
            run(e, models[i], hashes, true);
            run_full(e, models[i]);
        }
        engine_close(e);
        model_free(m);
        gguf_close(g);
    }
    return test_end();
}
