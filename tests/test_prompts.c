/* test_prompts.c - prompts that the host computes do not show which experts are in VRAM.
 *
 * The same prompts, with single tokens between them, through engines that have none, some and most
 * of the experts in VRAM, fixed or changing: the logits after each have the same bits. Lengths are
 * those at which something begins: more than the device asks the host for, more than a tile of
 * slots, more than the host computes at a time, the ends of chunks. Experts change places after
 * single tokens, on demand, and while a prompt passes through VRAM, which a shorter one follows.
 *
 * Where experts are shared out between bus and cores, the border moves with the clock, and the bits
 * do not. Prompts are stopped there and fail there, between two layers and in the middle of one.
 *
 * A real GPU rounds prompts differently where all experts are in VRAM or pass through it, and dense
 * parts differently from the CPU: there only placements in which the host computes are compared. */
#include "cuda/gpu.h"
#include "engine/gpu/prompt_experts.h"
#include "engine/instruments.h"
#include "tests/places.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

#include <limits.h>
#include <string.h>

#include "tiers/fault.h"

static const place homes[] = {
    { .name = "GPU, experts in RAM", .gpu = true, .planned = true, .stream_from = INT_MAX },
    { .name = "CPU", .gpu = false },
    { .name = "GPU, a quarter in VRAM for good", .gpu = true, .planned = true, .hot_of_8 = 2,
      .stream_from = INT_MAX },
    { .name = "GPU, most in VRAM for good, others from the file", .gpu = true, .planned = true,
      .hot_of_8 = 6, .disk = true, .stream_from = INT_MAX },
    { .name = "GPU, a cache of a quarter", .gpu = true, .planned = true, .hot_of_8 = 2,
      .changing = true, .stream_from = INT_MAX },
    { .name = "GPU, a cache of 5 of 8", .gpu = true, .planned = true, .hot_of_8 = 5,
      .changing = true, .no_fetch = true, .stream_from = INT_MAX },
    { .name = "GPU, a cache of 5 of 8, long prompts streamed", .gpu = true, .planned = true,
      .hot_of_8 = 5, .changing = true, .stage_parts = 2, .stream_from = 40 },
    { .name = "GPU, a cache of 7 of 8", .gpu = true, .planned = true, .hot_of_8 = 7,
      .changing = true, .stream_from = INT_MAX },
    { .name = "GPU, 3 of 8, moved", .gpu = true, .planned = true, .hot_of_8 = 3, .changing = true,
      .moved = true, .stream_from = INT_MAX },
    { .name = "GPU, 5 of 8, moved, long prompts streamed", .gpu = true, .planned = true,
      .hot_of_8 = 5, .changing = true, .moved = true, .stage_parts = 2, .stream_from = 40 },
    { .name = "GPU, experts in RAM, shared out", .gpu = true, .planned = true, .stage_parts = 1,
      .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, a quarter in VRAM for good, shared out", .gpu = true, .planned = true,
      .hot_of_8 = 2, .stage_parts = 3, .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, a cache of a quarter, shared out", .gpu = true, .planned = true, .hot_of_8 = 2,
      .changing = true, .stage_parts = 2, .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, a cache of 5 of 8, shared out and streamed", .gpu = true, .planned = true,
      .hot_of_8 = 5, .changing = true, .stage_parts = 2, .split_from = 12, .stream_from = 100 },
    { .name = "GPU, a cache of 7 of 8, shared out", .gpu = true, .planned = true, .hot_of_8 = 7,
      .changing = true, .stage_parts = 1, .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, a cache of 3 of 8, all others sent", .gpu = true, .planned = true,
      .hot_of_8 = 3, .changing = true, .stage_parts = 1, .split_from = 9, .stream_from = INT_MAX,
      .bus = 1e60 },
    { .name = "GPU, 3 of 8, moved, shared out", .gpu = true, .planned = true, .hot_of_8 = 3,
      .changing = true, .moved = true, .stage_parts = 2, .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, all in VRAM", .gpu = true },
};

static bool by_host(const place *p)
{
    return p->gpu && p->planned && p->stream_from == INT_MAX && p->split_from == 0;
}

/* What is fed, in this order. */
typedef enum feed_kind { PROMPT, SINGLES, APPLY } feed_kind;
static const struct feed { feed_kind kind; int n; } feeds[] = {
    { PROMPT, 9 }, { PROMPT, 17 }, { SINGLES, 12 }, { PROMPT, 64 }, { PROMPT, 36 }, { APPLY, 3 },
    { PROMPT, 200 }, { SINGLES, 6 }, { PROMPT, HOST_EXPERTS_TOKENS + 77 }, { PROMPT, 10 },
};
enum { N_FEED = ARRAY_LEN(feeds), MOST = HOST_EXPERTS_TOKENS + 77, CTX = 1024 };

typedef struct trail { uint64_t hash[N_FEED]; } trail;   /* of the logits after each */

static bool feed(session *s, float *logits, const model *m, int n, int *pos)
{
    static int32_t ids[MOST];
    err_ctx err = { 0 };
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((17 + 29 * (*pos + i) + (*pos + i) / 7) % m->hp.n_vocab);
    *pos += n;
    return CHECK_MSG(session_eval(s, ids, n, logits, 1, NULL, NULL, &err) == 0, "%s", err.msg);
}

/* The last experts of every layer, which nobody began with. */
static bool apply(engine *e, const model *m, int n_last)
{
    int list[512], n = 0;
    err_ctx err = { 0 };
    for (int l = 0; l < m->hp.n_layer; l++)
        for (int i = 1; i <= n_last && n < (int)ARRAY_LEN(list); i++)
            list[n++] = (l + 1) * m->hp.n_expert - i;
    return CHECK_MSG(engine_apply(e, list, n, &err) >= 0, "%s", err.msg);
}

static bool feed_all(trail *t, engine *e, session *s, const model *m, const place *p)
{
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = mem_array(n_vocab, sizeof *logits);
    int pos = 0;
    bool ok = CHECK(logits != NULL);
    for (int i = 0; i < (int)N_FEED && ok; i++) {
        const int n = feeds[i].n;
        if (feeds[i].kind == APPLY) ok = !p->changing || apply(e, m, n);
        else if (feeds[i].kind == PROMPT) ok = feed(s, logits, m, n, &pos);
        for (int j = 0; feeds[i].kind == SINGLES && j < n && ok; j++)
            ok = feed(s, logits, m, 1, &pos);
        t->hash[i] = str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
    }
    mem_free(logits);
    return ok;
}

static void check_moved(session *s, const place *p)
{
    const residency_stats r = session_places(s);
    if (!p->changing) return;
    CHECK_MSG(r.hits > 0 && r.misses > 0 && r.uploads > 0 && r.evictions > 0 && r.failures == 0,
              "%s: %d hits, %d misses, %d uploads, %d evictions", p->name, (int)r.hits,
              (int)r.misses, (int)r.uploads, (int)r.evictions);
    CHECK_MSG(p->stage_parts == 0 || (p->moved ? r.saves : r.swaps) > 0, "%s: no prompt passed by", p->name);
}

/* Both sides had something to do, or the faster one all that there was room for. */
static void check_shared(session *s, const place *p)
{
    prompt_experts_stats n;
    session_split(s, &n);
    if (p->split_from == 0) {
        CHECK_MSG(n.layers == 0, "%s: %d layers were shared out", p->name, (int)n.layers);
        return;
    }
    CHECK_MSG(n.layers > 0 && n.sent > 0 && n.sent_slots >= n.sent && n.core_slots >= n.by_cores &&
              n.sent_bytes > 0 && (n.by_cores > 0) == (p->bus == 0) &&
              (n.there > 0) == (p->hot_of_8 > 0) && n.cores_s >= 0,
              "%s: %d layers, %d there, %d sent, %d by the cores", p->name, (int)n.layers,
              (int)n.there, (int)n.sent, (int)n.by_cores);
}

static bool follow(trail *t, const model *m, const place *p, int chunk)
{
    const engine_options eo = { .threads = test_n_thread(sim_gpu() ? 1 : 0) };
    const session_options so = { .ctx = CTX, .chunk = chunk, .kv = KV_F16 };
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0 };
    const bool ok = CHECK(engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
                    CHECK_MSG(session_create(&s, e, &so, &err) == 0, "%s: %s", p->name, err.msg) &&
                    feed_all(t, e, s, m, p);
    if (ok) check_moved(s, p);
    if (ok) check_shared(s, p);
    session_free(s);
    engine_close(e);
    return ok;
}

/* ---- in the middle of a layer ---------------------------------------------------------------- */

typedef struct patience { int layers; } patience;

static bool lose_patience(void *ctx, double done, double total)
{
    patience *p = ctx;
    (void)done, (void)total;
    return --p->layers >= 0;
}

static int resident(engine *e)
{
    static int list[4096];
    return engine_resident(e, list, (int)ARRAY_LEN(list));
}

enum { HALTED = 100, HALTED_CHUNK = 40 };

static bool same_after(session *s, const float *want, float *got, int32_t *ids, const model *m,
                       const char *when, const place *p)
{
    const int done = session_pos(s);
    const size_t bytes = (size_t)m->hp.n_vocab * sizeof *want;
    err_ctx err = { 0 };
    return CHECK_MSG(session_eval(s, ids + done, HALTED - done, got, 1, NULL, NULL, &err) == 0,
                     "%s: %s: %s", p->name, when, err.msg) &&
           CHECK_MSG(!sim_gpu() || memcmp(want, got, bytes) == 0, "%s: %s: other logits", p->name,
                     when);
}

/* A prompt that somebody stops, or that fails, while experts are shared out: whole chunks stay, and
 * what follows is as if nothing had happened. */
static void halt(const model *m, const place *p)
{
    const engine_options eo = { .threads = test_n_thread(sim_gpu() ? 1 : 0) };
    const session_options so = { .ctx = CTX, .chunk = HALTED_CHUNK, .kv = KV_F16 };
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *want = mem_array(n_vocab, sizeof *want), *got = mem_array(n_vocab, sizeof *got);
    int32_t ids[HALTED];
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0 };
    for (int i = 0; i < HALTED; i++) ids[i] = (int32_t)((5 + 31 * i + i / 9) % m->hp.n_vocab);
    bool ok = CHECK(want && got && engine_open(&e, m, &eo, &err) == 0) && place_engine(e, m, p) &&
              CHECK(session_create(&s, e, &so, &err) == 0);
    const int n_there = ok ? resident(e) : 0;
    ok = ok && CHECK(session_eval(s, ids, HALTED, want, 1, NULL, NULL, &err) == 0);
    /* what made room for an expert that passed did so for one that stays */
    if (ok && p->changing && !p->moved)
        CHECK_MSG(resident(e) == n_there && (p->bus == 0 || session_places(s).swaps > 0),
                  "%s: %d experts in VRAM, %d before", p->name, resident(e), n_there);
    for (int way = PROMPT_CORES; way <= PROMPT_BUS && ok; way++) {
        prompt_experts_stats n;
        session_rewind(s, 0);
        session_reset_counts(s);
        session_force_way(s, way);
        ok = same_after(s, want, got, ids, m, "forced", p);
        session_split(s, &n);
        CHECK_MSG(way == PROMPT_SPLIT || n.layers == 0, "%s: shared out against orders", p->name);
    }
    session_force_way(s, -1);
    for (int i = 1; i < 3 * m->hp.n_layer && ok; i += 1 + m->hp.n_layer / 2) {
        patience some = { i };
        session_rewind(s, 0);
        const int rc = session_eval(s, ids, HALTED, got, 1, lose_patience, &some, &err);
        ok = CHECK_MSG(rc == ERR_STOPPED && session_pos(s) % HALTED_CHUNK == 0,
                       "%s: stopped with %d at %d", p->name, rc, session_pos(s)) &&
             same_after(s, want, got, ids, m, "after a stop", p);
        session_rewind(s, 0);
        fault_arm(FAULT_GPU_LOST, i - 1, 1);
        const int failed = session_eval(s, ids, HALTED, got, 1, NULL, NULL, &err);
        fault_disarm_all();
        /* where the clock decides, not every layer is shared out */
        CHECK_MSG(failed == ERR_IO || (failed == 0 && p->bus == 0), "%s: %d", p->name, failed);
        if (failed == 0) session_rewind(s, 0);
        if (ok) ok = same_after(s, want, got, ids, m, "after a failure", p);
    }
    session_free(s);
    engine_close(e);
    mem_free(got);
    mem_free(want);
}

static void test_halts(const char *path)
{
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0 };
    if (!CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s", path,
                   err.msg))
        return;
    for (size_t i = 0; i < ARRAY_LEN(homes); i++)
        if (homes[i].split_from > 0 && homes[i].stream_from == INT_MAX) halt(m, &homes[i]);
    model_free(m);
    gguf_close(g);
}

static void test_file(const char *path, int chunk)
{
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0 };
    trail first, now;
    bool known = false;
    if (!CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0, "%s: %s", path,
                   err.msg))
        return;
    for (size_t i = 0; i < ARRAY_LEN(homes); i += (size_t)sim_gpu_step(1, 3)) {
        const place *p = &homes[i];
        if (!sim_gpu() && !by_host(p)) continue;
        if (!follow(known ? &now : &first, m, p, chunk)) continue;
        for (int f = 0; f < (int)N_FEED && known; f++)
            if (!CHECK_MSG(now.hash[f] == first.hash[f], "%s, chunks of %d, %s: other logits after "
                           "feed %d, of %d", path, chunk, p->name, f, feeds[f].n))
                break;
        known = true;
    }
    model_free(m);
    gguf_close(g);
}

typedef struct cuts {
    int pos, n, at[16];                  /* where chunks ended; pos: of the first token */
} cuts;

static bool note_cut(void *ctx, double done_tokens, double n_tokens)
{
    cuts *c = ctx;
    const int at = c->pos + (int)done_tokens;
    (void)n_tokens;
    if (done_tokens > 0.0 && (c->n == 0 || c->at[c->n - 1] != at) && c->n < (int)ARRAY_LEN(c->at))
        c->at[c->n++] = at;
    return true;
}

/* Chunks of a session that begins anywhere end where recurrent layers on the GPU take tokens
 * together, but for the last. */
static void test_cuts(const char *path, int chunk, const int *want, int n_want)
{
    const place everything = { .name = "GPU, all in VRAM", .gpu = true };
    const session_options so = { .ctx = CTX, .chunk = chunk, .kv = KV_F16 };
    const engine_options eo = { .threads = test_n_thread(sim_gpu() ? 1 : 0) };
    int32_t ids[500] = { 0 };
    gguf *g = NULL;
    model *m = NULL;
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0 };
    cuts c = { .pos = 10 };
    if (CHECK_MSG(gguf_open(&g, path, &err) == 0 && model_bind(&m, g, &err) == 0 &&
                  engine_open(&e, m, &eo, &err) == 0, "%s: %s", path, err.msg) &&
        place_engine(e, m, &everything) &&
        CHECK_MSG(session_create(&s, e, &so, &err) == 0 &&
                  session_eval(s, ids, c.pos, NULL, 0, NULL, NULL, &err) == 0 &&
                  session_eval(s, ids, ARRAY_LEN(ids), NULL, 0, note_cut, &c, &err) == 0, "%s: %s",
                  path, err.msg)) {
        CHECK_MSG(c.n == n_want, "%s, chunks of %d: %d instead of %d", path, chunk, c.n, n_want);
        for (int i = 0; i < c.n && i < n_want; i++)
            CHECK_MSG(c.at[i] == want[i], "%s, chunks of %d: %d ends at %d, not at %d", path, chunk,
                      i, c.at[i], want[i]);
    }
    session_free(s);
    engine_close(e);
    model_free(m);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    static const char *const files[] = { "tests/models/demo-qwen3next-Q4_K_M.gguf",
                                         "tests/models/demo-gptoss-MXFP4.gguf" };
    static const int chunks[] = { 1024, 64 };
    test_begin("prompts", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU");
    for (size_t i = 0; i < ARRAY_LEN(files) && gpu_count() > 0; i++)
        for (size_t c = 0; c < ARRAY_LEN(chunks); c += (size_t)sim_gpu_step(1, 2))
            test_file(files[i], chunks[c]);
    for (size_t i = 0; i < ARRAY_LEN(files) && gpu_count() > 0; i++) test_halts(files[i]);
    if (gpu_count() > 0) {
        static const int recurrent[] = { 192, 384, 510 }, other[] = { 210, 410, 510 };
        static const int small[] = { 110, 210, 310, 410, 510 };
        test_cuts(files[0], 200, recurrent, ARRAY_LEN(recurrent));
        test_cuts(files[0], 100, small, ARRAY_LEN(small));       /* too little to cut more off */
        test_cuts(files[1], 200, other, ARRAY_LEN(other));
    }
    return test_end();
}
