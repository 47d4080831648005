/* test_prompts.c - prompts do not show which experts are in VRAM, nor who computed the others.
 *
 * The same prompts, with single tokens between them, through engines that have none, some and most
 * of the experts in VRAM, fixed or changing: the logits after each have the same bits. Lengths are
 * those at which something begins: more than the device asks the host for, more than a tile of
 * slots, more than the host computes at a time, the ends of chunks. Experts change places after
 * single tokens, on demand, and while a prompt passes through VRAM, which a shorter one follows.
 *
 * Where experts are split between bus and cores, the border moves with the clock, and the bits
 * do not. Prompts are stopped there and fail there, between two layers and in the middle of one.
 *
 * So it is up to plan_most_shared tokens at a time, wherever experts are and whichever way they go;
 * above it where the host may compute some. Prompts that are longer and all streamed are rounded
 * differently: among themselves they agree. A real GPU rounds dense parts differently from the CPU,
 * too, which is not compared there.
 *
 * And experts of a prompt that come from the drive are read before they are wanted. */
#include "cuda/gpu.h"
#include "engine/engine_internal.h"
#include "engine/engine_stats.h"
#include "engine/gpu/prompt_split.h"
#include "engine/host/experts_cpu.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "engine/session/runner.h"
#include "moe/expert_store.h"
#include "tiers/fault_injection.h"

#define PLANNED .gpu = true, .planned = true
#define NEVER .stream_from = INT_MAX

static const place homes[] = {
    { .name = "GPU, experts in RAM", PLANNED, NEVER },
    { .name = "CPU", .gpu = false },
    { .name = "GPU, a quarter fixed in VRAM", PLANNED, .hot_of_8 = 2, NEVER },
    { .name = "GPU, most fixed in VRAM, others from the file", PLANNED, .hot_of_8 = 6,
      .disk = true, NEVER },
    { .name = "GPU, a cache of a quarter", PLANNED, .hot_of_8 = 2, .changing = true, NEVER },
    { .name = "GPU, a cache of 5 of 8", PLANNED, .hot_of_8 = 5, .changing = true,
      .no_fetch = true, NEVER },
    { .name = "GPU, a cache of 5 of 8, long prompts streamed", PLANNED, .hot_of_8 = 5,
      .changing = true, .stage_ranges = 2, .stream_from = 40 },
    { .name = "GPU, a cache of 7 of 8", PLANNED, .hot_of_8 = 7, .changing = true, NEVER },
    { .name = "GPU, 3 of 8, moved", PLANNED, .hot_of_8 = 3, .changing = true, .moved = true,
      NEVER },
    { .name = "GPU, 5 of 8, moved, long prompts streamed", PLANNED, .hot_of_8 = 5,
      .changing = true, .moved = true, .stage_ranges = 2, .stream_from = 40 },
    { .name = "GPU, experts in RAM, split", PLANNED, .stage_ranges = 1, .split_from = 9, NEVER },
    { .name = "GPU, a quarter fixed in VRAM, split", PLANNED, .hot_of_8 = 2, .stage_ranges = 3,
      .split_from = 9, NEVER },
    { .name = "GPU, a cache of a quarter, split", PLANNED, .hot_of_8 = 2, .changing = true,
      .stage_ranges = 2, .split_from = 9, NEVER },
    { .name = "GPU, a cache of 5 of 8, split and streamed", PLANNED, .hot_of_8 = 5,
      .changing = true, .stage_ranges = 2, .split_from = 12, .stream_from = 100 },
    { .name = "GPU, a cache of 7 of 8, split", PLANNED, .hot_of_8 = 7, .changing = true,
      .stage_ranges = 1, .split_from = 9, NEVER },
    { .name = "GPU, a cache of 3 of 8, all others sent", PLANNED, .hot_of_8 = 3,
      .changing = true, .stage_ranges = 1, .split_from = 9, NEVER, .bus = 1e60 },
    { .name = "GPU, 3 of 8, moved, split", PLANNED, .hot_of_8 = 3, .changing = true,
      .moved = true, .stage_ranges = 2, .split_from = 9, NEVER },
    { .name = "GPU, half of the layers in VRAM, the others split", PLANNED, .whole_of_4 = 2,
      .stage_ranges = 1, .split_from = 9, NEVER },
    { .name = "GPU, half of the layers in VRAM, the others streamed", PLANNED, .whole_of_4 = 2,
      .stage_ranges = 1, .stream_from = 9 },
    { .name = "GPU, all in VRAM, by the contract", .gpu = true, .frozen = true },
};

/* What is fed, in this order. */
typedef enum feed_kind { PROMPT, SINGLES, APPLY } feed_kind;
static const struct feed { feed_kind kind; int n; } feeds[] = {
    { PROMPT, 9 }, { PROMPT, 17 }, { SINGLES, 12 }, { PROMPT, 64 }, { PROMPT, 36 }, { APPLY, 3 },
    { PROMPT, 200 }, { SINGLES, 6 }, { PROMPT, EXPERT_SERVER_TOKENS + 77 }, { PROMPT, 10 },
};
enum { N_FEED = ARRAY_LEN(feeds), MOST = PLAN_SPLIT_TOKENS + 1, CTX = 1024 };

/* If there is no time, a home of a simulated GPU has at most one of the combinations of the others,
 * a case's model and chunks: those of every kind have one, in an order that mixes neighbours. The
 * first, which others are compared with, has all. Sanitizers leave some out already. */
static bool has_turn(size_t home, size_t others, size_t of)
{
    return test_is_long() || !sim_gpu() || sim_gpu_step(1, 2) > 1 || home == 0 ||
           5 * home % of == others;
}

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

/* The last experts of every layer, none of which was in VRAM at the start. */
static bool apply(engine *e, const model *m, int n_last)
{
    int list[512], n = 0;
    err_ctx err = { 0 };
    for (int l = 0; l < m->hp.n_layer; l++)
        for (int i = 1; i <= n_last && n < (int)ARRAY_LEN(list); i++)
            list[n++] = (l + 1) * m->hp.n_expert - i;
    return CHECK_MSG(engine_apply(e, list, n, &err) >= 0, "%s", err.msg);
}

/* An engine and a session there. */
static bool begin(model_fixture *f, const place *p, int ctx, int chunk)
{
    const engine_options eo = { .threads = sim_n_thread() };
    const session_options so = { .ctx = ctx, .chunk = chunk, .kv = KV_F16 };
    return model_fixture_engine(f, &eo) && place_engine(f->e, f->m, p) &&
           model_fixture_session(f, &so);
}

static bool feed_all(trail *t, model_fixture *r, const place *p, int chunk)
{
    const model *m = r->m;
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *logits = mem_array(n_vocab, sizeof *logits);
    int pos = 0;
    bool ok = CHECK(logits != NULL);
    for (int i = 0; i < (int)N_FEED && ok; i++) {
        /* more than the host computes at a time is so in large chunks alone */
        const int most = chunk < EXPERT_SERVER_TOKENS ? test_rounds(INT_MAX, 100) : INT_MAX;
        const int n = min_int(feeds[i].n, most);
        if (feeds[i].kind == APPLY) ok = !p->changing || apply(r->e, m, n);
        else if (feeds[i].kind == PROMPT) ok = feed(r->s, logits, m, n, &pos);
        for (int j = 0; feeds[i].kind == SINGLES && j < n && ok; j++)
            ok = feed(r->s, logits, m, 1, &pos);
        t->hash[i] = str_hash((str_view){ (const char *)logits, n_vocab * sizeof *logits });
    }
    mem_free(logits);
    return ok;
}

/* From now on prompts of all lengths are computed this way. */
static void set_strategy(engine *e, prompt_strategy way)
{
    e->p->split_from = way == PROMPT_SPLIT ? GPU_MAIL + 1 : INT_MAX;
    e->p->stream_from = way == PROMPT_BUS ? GPU_MAIL + 1 : INT_MAX;
    e->p->contract_to = way == PROMPT_BUS
        ? plan_most_shared(e->m->hp.n_expert_used, e->m->hp.n_expert) : INT_MAX;
}

static void check_moved(session *s, const place *p)
{
    const frame_table_stats r = runner_vram_moves(session_runner(s));
    if (!p->changing) return;
    CHECK_MSG(r.hits > 0 && r.misses > 0 && r.uploads > 0 && r.evictions > 0 && r.failures == 0,
              "%s: %d hits, %d misses, %d uploads, %d evictions", p->name, (int)r.hits,
              (int)r.misses, (int)r.uploads, (int)r.evictions);
    CHECK_MSG(p->stage_ranges == 0 || (p->moved ? r.saves : r.swaps) > 0,
              "%s: no prompt passed by", p->name);
}

/* Both sides had something to do, or the faster one all that there was room for. */
static void check_shared(session *s, const place *p)
{
    prompt_split_stats n;
    runner_split(session_runner(s), &n);
    if (p->split_from == 0) {
        CHECK_MSG(n.layers == 0, "%s: %d layers were split", p->name, (int)n.layers);
        return;
    }
    CHECK_MSG(n.layers > 0 && n.sent > 0 && n.sent_slots >= n.sent && n.core_slots >= n.by_cores &&
              n.sent_bytes > 0 && (n.by_cores > 0) == (p->bus == 0) &&
              (n.hot > 0) == (p->hot_of_8 > 0) && n.cores_s >= 0,
              "%s: %d layers, %d there, %d sent, %d by the cores", p->name, (int)n.layers,
              (int)n.hot, (int)n.sent, (int)n.by_cores);
}

static bool follow(trail *t, model_fixture *f, const place *p, int chunk)
{
    const bool ok = begin(f, p, CTX, chunk) && feed_all(t, f, p, chunk);
    if (ok) check_moved(f->s, p);
    if (ok) check_shared(f->s, p);
    model_fixture_stop(f);
    return ok;
}

/* ---- in the middle of a layer ---------------------------------------------------------------- */

typedef struct wait_limit { int layers; } wait_limit;

static bool give_up_waiting(void *ctx, double done, double total)
{
    wait_limit *p = ctx;
    (void)done, (void)total;
    return --p->layers >= 0;
}

static int resident(engine *e)
{
    static int list[4096];
    return engine_resident(e, list, (int)ARRAY_LEN(list));
}

enum { HALTED = 100, HALTED_CHUNK = 40 };

static bool same_after(session *s, const float *want, float *got, int32_t *ids, const char *when,
                       const place *p)
{
    const int done = session_pos(s);
    const size_t bytes = (size_t)session_vocab(s) * sizeof *want;
    err_ctx err = { 0 };
    return CHECK_MSG(session_eval(s, ids + done, HALTED - done, got, 1, NULL, NULL, &err) == 0,
                     "%s: %s: %s", p->name, when, err.msg) &&
           CHECK_MSG(memcmp(want, got, bytes) == 0, "%s: %s: other logits", p->name, when);
}

/* A prompt that is stopped, or fails, while experts are split: whole chunks stay, and what follows
 * is as if nothing had happened. */
static void halt(model_fixture *f, const place *p)
{
    const model *m = f->m;
    const size_t n_vocab = (size_t)m->hp.n_vocab;
    float *want = test_alloc(n_vocab, sizeof *want), *got = test_alloc(n_vocab, sizeof *got);
    int32_t ids[HALTED];
    err_ctx err = { 0 };
    for (int i = 0; i < HALTED; i++) ids[i] = (int32_t)((5 + 31 * i + i / 9) % m->hp.n_vocab);
    bool ok = begin(f, p, CTX, HALTED_CHUNK);
    engine *e = f->e;
    session *s = f->s;
    const int n_there = ok ? resident(e) : 0;
    ok = ok && CHECK(session_eval(s, ids, HALTED, want, 1, NULL, NULL, &err) == 0);
    /* an expert was evicted for one that stays, not for one that passed */
    if (ok && p->changing && !p->moved) {
        const frame_table_stats moves = runner_vram_moves(session_runner(s));
        CHECK_MSG(resident(e) == n_there && (p->bus == 0 || moves.swaps > 0),
                  "%s: %d experts in VRAM, %d before", p->name, resident(e), n_there);
    }
    static plan planned;
    if (ok) planned = *e->p;
    for (int way = PROMPT_CORES; way <= PROMPT_BUS && ok; way++) {
        prompt_split_stats n;
        session_rewind(s, 0);
        runner_reset_counts(session_runner(s));
        set_strategy(e, (prompt_strategy)way);
        ok = same_after(s, want, got, ids, "forced", p);
        runner_split(session_runner(s), &n);
        CHECK_MSG(way == PROMPT_SPLIT || n.layers == 0, "%s: split against orders", p->name);
    }
    if (ok) *e->p = planned;
    const int stride = test_rounds(1, 2) + m->hp.n_layer / 2;
    for (int i = 1; i < 3 * m->hp.n_layer && ok; i += stride) {
        wait_limit some = { i };
        session_rewind(s, 0);
        const int rc = session_eval(s, ids, HALTED, got, 1, give_up_waiting, &some, &err);
        ok = CHECK_MSG(rc == ERR_STOPPED && session_pos(s) % HALTED_CHUNK == 0,
                       "%s: stopped with %d at %d", p->name, rc, session_pos(s)) &&
             same_after(s, want, got, ids, "after a stop", p);
        session_rewind(s, 0);
        fault_arm(FAULT_GPU_LOST, i - 1, 1);
        const int failed = session_eval(s, ids, HALTED, got, 1, NULL, NULL, &err);
        fault_disarm_all();
        /* where the clock decides, not every layer is split */
        CHECK_MSG(failed == ERR_IO || (failed == 0 && p->bus == 0), "%s: %d", p->name, failed);
        if (failed == 0) session_rewind(s, 0);
        if (ok) ok = same_after(s, want, got, ids, "after a failure", p);
    }
    model_fixture_stop(f);
    mem_free(got);
    mem_free(want);
}

static void test_halts(const char *path, size_t file)
{
    model_fixture f;
    const bool ok = model_fixture_open(&f, path);
    for (size_t i = 0; i < ARRAY_LEN(homes) && ok; i++)
        if (homes[i].split_from > 0 && homes[i].stream_from == INT_MAX && has_turn(i, file, 4))
            halt(&f, &homes[i]);
    model_fixture_close(&f);
}

enum { LATE_PROMPT = 4, LATE_TOKENS = 6 };

static int host_sleep_ms;                /* before the host computes cold experts */

int __real_experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err);
int __wrap_experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err);
int __wrap_experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err)
{
    if (host_sleep_ms > 0) usleep((useconds_t)host_sleep_ms * 1000);
    return __real_experts_cpu_run(c, job, err);
}

static int late_tokens(session *s, int32_t *ids, err_ctx *err)
{
    int rc = session_eval(s, ids, LATE_PROMPT, NULL, 0, NULL, NULL, err);
    for (int i = LATE_PROMPT; i + 1 < LATE_TOKENS && rc == 0; i++)
        rc = session_next(s, &ids[i + 1], ids[i], err);
    return rc;
}

/* A program that was stopped for too long in the middle of a token: an error says so, and after
 * going back the session computes what it would have. */
static void test_late_host(const char *path)
{
    static const place p = { .name = "GPU, a late host", .gpu = true, .planned = true,
                             .hot_of_8 = 2 };
    int32_t want[LATE_TOKENS] = { 3, 10, 17, 24, 31 }, got[LATE_TOKENS] = { 3, 10, 17, 24, 31 };
    model_fixture f;
    err_ctx err = { 0 };
    if (model_fixture_open(&f, path) && begin(&f, &p, CTX, CTX)) {
        session *s = f.s;
        CHECK_MSG(late_tokens(s, want, &err) == 0, "%s", err.msg);
        session_rewind(s, 0);
        gpu_set_host_limit(f.e->devices[0].g, 1000000);
        host_sleep_ms = 50;
        const int rc = late_tokens(s, got, &err);
        host_sleep_ms = 0;
        CHECK_MSG(rc == ERR_IO && strstr(err.msg, "did not answer"), "%d: %s", rc, err.msg);
        gpu_set_host_limit(f.e->devices[0].g, (uint64_t)20 * 1000000000);
        CHECK(late_tokens(s, got, &err) < 0 && strstr(err.msg, "lost"));
        CHECK(session_rewind_target(s, CTX) == 0 && session_rewind(s, CTX) == 0);
        CHECK_MSG(late_tokens(s, got, &err) == 0, "%s", err.msg);
        CHECK(memcmp(want, got, sizeof want) == 0);
    }
    model_fixture_close(&f);
}

/* Experts of a prompt that come from the drive: but for the first ones, each was being read when it
 * was wanted, across parts and layers. Two tokens' experts have room, so as many are wanted at a
 * time as a token has. */
static void test_reading_ahead(const char *path)
{
    static const place p = { .name = "GPU, cache before the file", .gpu = true, .planned = true,
                             .disk = true, .stage_ranges = 3, .stream_from = 9 };
    model_fixture f;
    expert_server_stats host;
    store_stats n;
    err_ctx err = { 0 };
    int32_t ids[40];
    for (int i = 0; i < 40; i++) ids[i] = 3 + 7 * i;
    if (model_fixture_open(&f, path) && begin(&f, &p, CTX, CTX) &&
        CHECK(session_eval(f.s, ids, 40, NULL, 0, NULL, NULL, &err) == 0)) {
        runner_counts(session_runner(f.s), &host, &n);
        CHECK_MSG(n.misses == (uint64_t)f.m->hp.n_expert_used &&
                  n.hits + n.misses == (uint64_t)(f.m->hp.n_layer * f.m->hp.n_expert),
                  "%d misses, %d hits", (int)n.misses, (int)n.hits);
    }
    model_fixture_close(&f);
}

/* Whether the prompts of a feed and of all before it were short enough. */
static bool is_short(const model *m, int f, int chunk)
{
    int longest = 0;
    for (int i = 0; i <= f; i++)
        if (feeds[i].kind == PROMPT) longest = max_int(longest, min_int(feeds[i].n, chunk));
    return longest <= plan_most_shared(m->hp.n_expert_used, m->hp.n_expert);
}

static void compare(const trail *want, const trail *streamed, const trail *got, const model *m,
                    const char *path, int chunk, const place *p)
{
    for (int f = 0; f < (int)N_FEED; f++) {
        const trail *same = !p->planned || p->stream_from == INT_MAX || is_short(m, f, chunk)
                                ? want : streamed;
        if (!CHECK_MSG(got->hash[f] == same->hash[f], "%s, chunks of %d, %s: other logits after "
                       "feed %d, of %d", path, chunk, p->name, f, feeds[f].n))
            return;
    }
}

static void test_file(const char *path, int chunk, size_t others)
{
    model_fixture f;
    trail first, streamed = { { 0 } }, now;
    bool known = false, known_streamed = false;
    const bool ok = model_fixture_open(&f, path);
    for (size_t i = 0; i < ARRAY_LEN(homes) && ok; i += (size_t)sim_gpu_step(1, 3)) {
        const place *p = &homes[i];
        if ((!sim_gpu() && !p->gpu) || !has_turn(i, others, 8)) continue;
        if (!follow(&now, &f, p, chunk)) continue;
        if (!known) first = now;
        known = true;
        if (!known_streamed && p->planned && p->stream_from != INT_MAX) {
            streamed = now;
            known_streamed = true;
        }
        compare(&first, &streamed, &now, f.m, path, chunk, p);
    }
    model_fixture_close(&f);
}

/* ---- every way ------------------------------------------------------------------------------- */

static const place shares[] = {
    { .name = "experts in RAM", .split_from = 9 },
    { .name = "a third fixed in VRAM", .hot_of_8 = 3, .split_from = 9 },
    { .name = "half of the layers in VRAM", .whole_of_4 = 2, .split_from = 9 },
    { .name = "a cache of a quarter", .hot_of_8 = 2, .changing = true, .split_from = 9 },
    { .name = "a cache of 7 of 8", .hot_of_8 = 7, .changing = true, .split_from = 9 },
    { .name = "5 of 8, moved", .hot_of_8 = 5, .changing = true, .moved = true, .split_from = 9 },
    { .name = "a cache of half, a fast bus", .hot_of_8 = 4, .changing = true, .split_from = 9,
      .bus = 1e60 },
    { .name = "a quarter in VRAM, others from the file", .hot_of_8 = 2, .disk = true },
    { .name = "half in VRAM, no bus", .hot_of_8 = 4, .stream_from = INT_MAX },
};
enum { N_LENGTH = 4, N_WAY = PROMPT_BUS + 2 };           /* the last: as the plan says */

typedef struct ways { uint64_t hash[N_LENGTH][N_WAY]; } ways;

static bool go_all_ways(ways *w, model_fixture *f, const place *p, const int *lengths)
{
    const size_t n_vocab = (size_t)f->m->hp.n_vocab;
    float *logits = test_alloc(n_vocab, sizeof *logits);
    bool ok = begin(f, p, CTX, CTX);
    static plan planned;
    if (ok) planned = *f->e->p;
    for (int i = 0; i < N_LENGTH * N_WAY && ok; i++) {
        const int way = i % N_WAY;
        int pos = 0;
        session_rewind(f->s, 0);
        *f->e->p = planned;
        if (way < N_WAY - 1) set_strategy(f->e, (prompt_strategy)way);
        ok = feed(f->s, logits, f->m, lengths[i / N_WAY], &pos);
        w->hash[i / N_WAY][way] = str_hash((str_view){ (const char *)logits,
                                                       n_vocab * sizeof *logits });
    }
    model_fixture_stop(f);
    mem_free(logits);
    return ok;
}

/* Up to the border it shows neither where experts are nor which way they go. Above it all of them
 * cross the bus, unless another way is forced, which keeps its bits. */
static void test_ways(const char *path, size_t file)
{
    static const char *const names[N_WAY] = { "cores", "split", "bus", "auto" };
    model_fixture f;
    ways first = { { { 0 } } }, now;
    if (!model_fixture_open(&f, path)) return;
    const int most = plan_most_shared(f.m->hp.n_expert_used, f.m->hp.n_expert);
    const int lengths[N_LENGTH] = { 9, 64, most, most + 1 };
    for (size_t i = 0; i < ARRAY_LEN(shares); i += (size_t)sim_gpu_step(1, 3)) {
        place p = shares[i];
        if (!has_turn(i, file, 7)) continue;
        p.gpu = p.planned = true;
        const bool bus = p.stream_from == 0;
        if (bus) p.stage_ranges = 1 + (int)i % 3;
        if (bus) p.stream_from = most + 1;
        if (!go_all_ways(&now, &f, &p, lengths)) continue;
        if (i == 0) first = now;
        for (int n = 0; n < N_LENGTH; n++)
            for (int way = 0; way < N_WAY; way++) {
                const int like = bus && lengths[n] > most && way >= PROMPT_BUS ? PROMPT_BUS
                                                                               : PROMPT_CORES;
                CHECK_MSG(now.hash[n][way] == first.hash[n][like], "%s, %s: %d tokens, %s: other "
                          "logits", path, p.name, lengths[n], names[way]);
            }
        for (int n = 0; n < N_LENGTH; n++)       /* else nothing of this could have failed */
            CHECK_MSG((now.hash[n][PROMPT_BUS] != now.hash[n][PROMPT_CORES]) ==
                      (bus && lengths[n] > most), "%s, %s: %d tokens by the contract?", path,
                      p.name, lengths[n]);
    }
    model_fixture_close(&f);
}

/* More tokens than can be split all cross the bus, with the bits of what was asked for. */
static void test_too_long(const char *path)
{
    static const prompt_strategy forced[] = { PROMPT_CORES, PROMPT_SPLIT, PROMPT_BUS };
    const place p = { .name = "GPU, experts in RAM", .gpu = true, .planned = true,
                      .stage_ranges = 1, .split_from = 9, .stream_from = MOST };
    uint64_t hash[ARRAY_LEN(forced)] = { 0 };
    model_fixture f;
    if (!model_fixture_open(&f, path)) return;
    const size_t bytes = (size_t)f.m->hp.n_vocab * sizeof(float);
    float *logits = test_alloc(bytes, 1);
    bool ok = begin(&f, &p, MOST, MOST);
    for (size_t i = 0; i < ARRAY_LEN(forced) && ok; i++) {
        int pos = 0;
        session_rewind(f.s, 0);
        set_strategy(f.e, forced[i]);
        ok = feed(f.s, logits, f.m, MOST, &pos);
        hash[i] = str_hash((str_view){ (const char *)logits, bytes });
    }
    CHECK_MSG(!ok || (hash[0] == hash[1] && hash[1] != hash[2]), "%s: %d tokens", path, MOST);
    model_fixture_close(&f);
    mem_free(logits);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

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
    int32_t ids[500] = { 0 };
    model_fixture f;
    err_ctx err = { 0 };
    cuts c = { .pos = 10 };
    if (model_fixture_open(&f, path) && begin(&f, &everything, CTX, chunk) &&
        CHECK_MSG(session_eval(f.s, ids, c.pos, NULL, 0, NULL, NULL, &err) == 0 &&
                  session_eval(f.s, ids, ARRAY_LEN(ids), NULL, 0, note_cut, &c, &err) == 0,
                  "%s: %s", path, err.msg)) {
        CHECK_MSG(c.n == n_want, "%s, chunks of %d: %d instead of %d", path, chunk, c.n, n_want);
        for (int i = 0; i < c.n && i < n_want; i++)
            CHECK_MSG(c.at[i] == want[i], "%s, chunks of %d: %d ends at %d, not at %d", path, chunk,
                      i, c.at[i], want[i]);
    }
    model_fixture_close(&f);
}

int main(int argc, char **argv)
{
    static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                         "tests/models/demo-gptoss-MXFP4.gguf" };
    static const int chunks[] = { 1024, 64 };
    test_begin("prompts", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU");
    /* A simulated GPU without LONG=1: one model for each kind of test. */
    const size_t step = sim_gpu() && !test_is_long() ? 2 : 1;
    for (size_t i = 0; i < ARRAY_LEN(files) && gpu_count() > 0; i += step) {
        for (size_t c = 0; c < ARRAY_LEN(chunks); c += (size_t)sim_gpu_step(1, 2))
            test_file(files[i], chunks[c], 2 * i + c);
        test_halts(files[i], i);
    }
    for (size_t i = step - 1; i < ARRAY_LEN(files) && gpu_count() > 0; i += step) {
        test_reading_ahead(files[i]);
        test_ways(files[i], i);
        test_late_host(files[i]);
    }
    if (gpu_count() > 0 && step == 1 && sim_gpu_step(1, 2) == 1) test_too_long(files[1]);
    if (gpu_count() > 0) {
        static const int chunked[] = { 192, 384, 510 }, other[] = { 210, 410, 510 };
        static const int small[] = { 110, 210, 310, 410, 510 };
        test_cuts(files[0], 200, chunked, ARRAY_LEN(chunked));
        test_cuts(files[0], 100, small, ARRAY_LEN(small));       /* too little to cut more off */
        if (step == 1) test_cuts(files[1], 200, other, ARRAY_LEN(other));
    }
    return test_end();
}
