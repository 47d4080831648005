/* test_perf_counts.c - what a session counts adds up, wherever its experts are: slots to tokens,
 * layers to totals, bytes to slots, and the log of what was fetched to bytes. */
#include "engine/perf_counts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/engine_stats.h"
#include "engine/gpu/expert_server.h"
#include "tests/cache_fixture.h"
#include "tests/chosen_experts.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"
#include "engine/session/runner.h"
#include "engine/session/sampler.h"
#include "moe/expert_store.h"
#include "tiers/fault_injection.h"

enum { N_TOKEN = 12, N_PROMPT = 5, MOST_LAYERS = 64 };

static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };
static const char dense_file[] = "families/tiny-glm4moe-bf16.gguf";      /* has a dense layer */

static bool has_experts(const model *m, int l) { return m->layers[l].experts->n_expert > 0; }

/* ---- bounds ---------------------------------------------------------------------------------- */

static const struct { double fetch, busy, unsure, least, most; const char *why; } bounds[] = {
    { 2, 5, 0, 2, 2, "over before the reply: all of it" },
    { 5, 2, 3, 2, 2, "began with the question, went on after the reply" },
    { 5, 2, 4, 1, 2, "the device went on a second after it had fetched" },
    { 2, 5, 3, 0, 2, "may have been before, or after" },
    { 0, 5, 1, 0, 0, "nothing was fetched" },
    { 5, 0, 9, 0, 0, "nothing was computed" },
    { 5, 2, 0, 2, 2, "clocks that do not agree: never more than the cores were busy" },
    { 5, -1, 0, 0, 0, "never less than nothing" },
};

static void test_bounds(void)
{
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
        double least, most;
        perf_overlap(&least, &most, bounds[i].fetch, bounds[i].busy, bounds[i].unsure);
        CHECK_MSG(least == bounds[i].least && most == bounds[i].most, "%s: %g to %g",
                  bounds[i].why, least, most);
    }
}

/* ---- a session ------------------------------------------------------------------------------- */

typedef struct fixture {
    model_fixture *f;
    session *s;
    float *logits;
    int32_t next;
} fixture;

static bool feed(fixture *r, const int32_t *ids, int n, const place *p)
{
    err_ctx err = { 0 };
    if (!CHECK_MSG(session_eval(r->s, ids, n, r->logits, 1, NULL, NULL, &err) == 0, "%s: %s",
                   p->name, err.msg))
        return false;
    r->next = session_likeliest(r->s, r->logits);
    return true;
}

static bool feed_tokens(fixture *r, int n, const place *p)
{
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        const int32_t id = r->next;
        ok = feed(r, &id, 1, p);
    }
    return ok;
}

static bool open_fixture(fixture *r, model_fixture *f, const place *p, perf_level level)
{
    static const int32_t prompt[N_PROMPT] = { 11, 102, 7, 93, 60 };
    const engine_options eo = { .threads = sim_n_thread() };
    const session_options so = { .ctx = 128, .chunk = 64, .kv = KV_F16 };
    *r = (fixture){ .f = f, .logits = test_alloc((size_t)f->m->hp.n_vocab, sizeof(float)) };
    if (!model_fixture_engine(f, &eo) || !place_engine(f->e, f->m, p) ||
        !model_fixture_session(f, &so))
        return false;
    r->s = f->s;
    runner_count(session_runner(r->s), level);
    return feed(r, prompt, N_PROMPT, p);
}

static void close_fixture(fixture *r)
{
    model_fixture_stop(r->f);
    mem_free(r->logits);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void check_slots(const perf_counts *c, const model *m, const place *p)
{
    uint64_t all = 0;
    for (int l = 0; l < m->hp.n_layer; l++)
        if (has_experts(m, l)) all += N_TOKEN * (uint64_t)m->hp.n_expert_used;
    CHECK_MSG(c->tokens == N_TOKEN && c->prompt_tokens == N_PROMPT, "%s: %d tokens, %d in a prompt",
              p->name, (int)c->tokens, (int)c->prompt_tokens);
    CHECK_MSG(c->hot + c->cold == all, "%s: %d hot + %d cold, not %d", p->name, (int)c->hot,
              (int)c->cold, (int)all);
    CHECK_MSG(c->on_cpu + c->down_fetched + c->all_fetched == c->cold,
              "%s: %d + %d + %d cold", p->name, (int)c->on_cpu, (int)c->down_fetched,
              (int)c->all_fetched);
    CHECK_MSG(p->gpu ? p->cpu_of_4 > 0 || !p->planned || c->calls > 0 : c->calls == 0,
              "%s: %d calls", p->name, (int)c->calls);
    CHECK_MSG(c->calls % N_TOKEN == 0 && c->quiet <= c->calls, "%s: %d calls, %d quiet", p->name,
              (int)c->calls, (int)c->quiet);
    CHECK_MSG(p->gpu || c->hot == 0, "%s: hot without a GPU", p->name);
    CHECK_MSG(!p->gpu || p->planned || c->cold == 0, "%s: cold, with all in VRAM", p->name);
    CHECK_MSG(!p->changing || c->frame_hits + c->frame_misses > 0, "%s: no choices", p->name);
    CHECK_MSG(!p->changing || (c->uploads > 0) == (c->upload_bytes > 0), "%s: %d uploads, %d bytes",
              p->name, (int)c->uploads, (int)c->upload_bytes);
}

/* Every slot's expert is read once; banks are of one size in these files. */
static void check_bytes(const perf_counts *c, const model *m, const place *p)
{
    const uint64_t one = expert_slabs_bytes(model_first_bank(m));
    for (int l = 0; l < m->hp.n_layer; l++)
        if (has_experts(m, l) && expert_slabs_bytes(m->layers[l].experts) != one) return;
    CHECK_MSG(c->vram_bytes == c->hot * one, "%s: %d bytes of %d hot ones", p->name,
              (int)c->vram_bytes, (int)c->hot);
    CHECK_MSG(p->force_cpu || c->late > 0 || c->cpu_bytes + c->fetch_bytes == c->cold * one,
              "%s: %d + %d bytes of %d cold ones", p->name, (int)c->cpu_bytes,
              (int)c->fetch_bytes, (int)c->cold);
    CHECK_MSG(c->upload_bytes == c->uploads * one, "%s: %d bytes of %d uploads", p->name,
              (int)c->upload_bytes, (int)c->uploads);
    CHECK_MSG(!p->disk || (c->drive_bytes > 0 && c->ram_misses > 0), "%s: nothing read", p->name);
    CHECK_MSG(p->disk || c->drive_bytes == 0, "%s: read from the drive", p->name);
}

/* The map says of each expert where it is, and of layers without any that there are none. */
static void check_places(const engine *e, const model *m, const place *p)
{
    const int n = m->hp.n_layer * m->hp.n_expert;
    uint8_t *where = test_alloc((size_t)n, 1);
    int n_vram = 0, n_wrong = 0;
    bool banks_there = false;
    for (int l = 0; l < engine_gpu_layers(e); l++) banks_there |= has_experts(m, l);
    engine_expert_tiers(e, where);
    for (int i = 0; i < n; i++) {
        const bool none = where[i] == EXPERT_NONE;
        n_vram += where[i] == EXPERT_IN_VRAM;
        n_wrong += none == has_experts(m, i / m->hp.n_expert) || where[i] > EXPERT_NONE;
        n_wrong += !none && p->gpu && !p->planned && where[i] != EXPERT_IN_VRAM;
    }
    CHECK_MSG(n_wrong == 0, "%s: %d experts are said to be where they are not", p->name, n_wrong);
    CHECK_MSG((n_vram > 0) == (banks_there && (!p->planned || m->hp.n_expert * p->hot_of_8 >= 8)),
              "%s: %d experts in VRAM", p->name, n_vram);
    mem_free(where);
}

static void check_seconds(const perf_counts *c, const place *p)
{
    const uint64_t questions = c->calls - c->quiet;
    CHECK_MSG((c->cold_s > 0) == (questions > 0) && (c->ask_s > 0) == (c->calls > 0),
              "%s: %g s to questions, %g s to replies", p->name, c->ask_s, c->cold_s);
    CHECK_MSG(c->late_s >= 0 && c->late_s <= c->cold_s, "%s: %g s of %g s late", p->name, c->late_s,
              c->cold_s);
    CHECK_MSG(c->overlap_least_s >= 0 && c->overlap_least_s <= c->overlap_most_s &&
              c->overlap_most_s <= c->fetch_s && c->overlap_most_s <= c->cold_s,
              "%s: %g to %g s of fetching %g s", p->name, c->overlap_least_s, c->overlap_most_s,
              c->fetch_s);
    CHECK_MSG((c->fetch_s > 0) == (c->fetch_bytes > 0), "%s: %d bytes in %g s", p->name,
              (int)c->fetch_bytes, c->fetch_s);
    CHECK_MSG((c->join_s > 0) == p->gpu, "%s: %g s for ends of tokens", p->name, c->join_s);
    CHECK_MSG(c->late <= c->down_fetched && c->not_locked == 0 && c->failed_uploads == 0,
              "%s: fallbacks", p->name);
}

static void check_layers(const session *s, const perf_counts *c, const model *m, const place *p)
{
    perf_layer layers[MOST_LAYERS], sum = { 0 };
    const int n = runner_perf_layers(session_runner(s), layers, MOST_LAYERS);
    CHECK_MSG(n == c->n_layer, "%s: %d layers", p->name, n);
    for (int l = 0; l < n; l++) {
        sum.calls += layers[l].calls;
        sum.quiet += layers[l].quiet;
        sum.hot += layers[l].hot;
        sum.cold += layers[l].cold;
        sum.cold_s += layers[l].cold_s;
        const uint64_t slots = has_experts(m, l) ? c->tokens * (uint64_t)c->n_used : 0;
        CHECK_MSG(layers[l].hot + layers[l].cold == slots, "%s, layer %d: %d hot, %d cold", p->name,
                  l, (int)layers[l].hot, (int)layers[l].cold);
    }
    CHECK_MSG(sum.calls == c->calls && sum.quiet == c->quiet && sum.hot == c->hot &&
              sum.cold == c->cold && fabs(sum.cold_s - c->cold_s) < 1e-9,
              "%s: layers do not add up", p->name);
}

static void test_sums(model_fixture *f, const place *p)
{
    const model *m = f->m;
    fixture r;
    if (open_fixture(&r, f, p, PERF_FULL) && feed_tokens(&r, N_TOKEN, p)) {
        const perf_counts c = runner_perf(session_runner(r.s));
        check_slots(&c, m, p);
        check_bytes(&c, m, p);
        check_seconds(&c, p);
        check_places(f->e, m, p);
        check_layers(r.s, &c, m, p);
        runner_reset_counts(session_runner(r.s));
        const perf_counts none = runner_perf(session_runner(r.s));
        const perf_counts zero = { .n_layer = m->hp.n_layer, .n_used = m->hp.n_expert_used };
        CHECK_MSG(!memcmp(&none, &zero, sizeof zero), "%s: counts after a reset", p->name);
    }
    close_fixture(&r);
}

/* ---- levels, fallbacks, log ------------------------------------------------------------------ */

static const place asked = { .name = "half of the experts in VRAM", .gpu = true, .planned = true,
                             .hot_of_8 = 4, .stage_ranges = 1, .stream_from = 64, .frozen = true };

static void test_off(model_fixture *f)
{
    const place p = { .name = "a cache, nothing counted", .gpu = true, .planned = true,
                      .hot_of_8 = 4, .changing = true, .stage_ranges = 1, .stream_from = 64 };
    perf_layer layers[MOST_LAYERS];
    fixture r;
    if (open_fixture(&r, f, &p, PERF_OFF) && feed_tokens(&r, N_TOKEN, &p)) {
        const perf_counts c = runner_perf(session_runner(r.s));
        CHECK(c.ask_s == 0 && c.cold_s == 0 && c.overlap_least_s == 0 && c.overlap_most_s == 0);
        CHECK(runner_perf_layers(session_runner(r.s), layers, MOST_LAYERS) == 0);
        check_slots(&c, f->m, &p);       /* these cost nothing */
    }
    close_fixture(&r);
}

/* The store's table is page-locked, its slabs are not. */
static void test_not_locked(model_fixture *f)
{
    const place p = { .name = "RAM that cannot be page-locked", .gpu = true, .planned = true,
                      .hot_of_8 = 4, .stream_from = 1 << 20 };
    fixture r;
    fault_arm(FAULT_PAGE_LOCK, 1, FAULT_ALWAYS);
    if (open_fixture(&r, f, &p, PERF_UPDATE) && feed_tokens(&r, N_TOKEN, &p)) {
        const perf_counts c = runner_perf(session_runner(r.s));
        CHECK_MSG(c.cold > 0 && c.not_locked == c.cold && c.fetch_bytes == 0,
                  "%d of %d cold ones not page-locked", (int)c.not_locked, (int)c.cold);
    }
    fault_disarm_all();
    close_fixture(&r);
}

/* What the lines of the log add up to. */
static struct { uint64_t bytes, end; int n_line, n_slab, n_bad; } logged;

enum { MOST_SLABS = 96 };
typedef struct span { unsigned long long bytes, at; } span;

static int overlaps(const span *spans, int n)
{
    int bad = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            bad += spans[i].at < spans[j].at + spans[j].bytes &&
                   spans[j].at < spans[i].at + spans[i].bytes;
    return bad;
}

static void hear(void *ctx, const char *line)
{
    static const char begin[] = "post-fetch: layer ";
    span spans[MOST_SLABS];
    int n = 0;
    (void)ctx;
    if (strncmp(line, begin, sizeof begin - 1) != 0) return;
    logged.n_line++;
    for (const char *at = strchr(line, ';'); at && n < MOST_SLABS; at = strchr(at + 1, ';')) {
        span *s = &spans[n];
        int expert;
        char what[8];
        if (sscanf(at, "; expert %d %7s %llu bytes at %llu", &expert, what, &s->bytes,
                   &s->at) != 4) {
            logged.n_bad++;
            continue;
        }
        n++;
        logged.bytes += s->bytes;
        if (s->at + s->bytes > logged.end) logged.end = s->at + s->bytes;
        logged.n_bad += expert < 0 || (strcmp(what, "gate") && strcmp(what, "up") &&
                                     strcmp(what, "down"));
    }
    logged.n_slab += n;
    logged.n_bad += overlaps(spans, n);
}

/* All of it is logged when the session ends, and nothing is allocated meanwhile. */
static void test_log(model_fixture *f)
{
    perf_counts c = { 0 };
    expert_server_stats host = { 0 };
    store_stats store;
    fixture r;
    memset(&logged, 0, sizeof logged);
    log_set_sink(hear, NULL);
    if (open_fixture(&r, f, &asked, PERF_UPDATE) && feed_tokens(&r, 2, &asked)) {
        const long before = mem_count();
        if (sim_gpu()) mem_guard(true);
        feed_tokens(&r, N_TOKEN - 2, &asked);
        mem_guard(false);
        CHECK_MSG(mem_count() == before, "%ld allocations", mem_count() - before);
        c = runner_perf(session_runner(r.s));
        runner_counts(session_runner(r.s), &host, &store);
    }
    close_fixture(&r);
    log_set_sink(NULL, NULL);
    CHECK_MSG(logged.n_line > 0 && logged.n_bad == 0 && logged.bytes == c.fetch_bytes &&
              logged.n_slab == (int)(c.down_fetched + 3 * c.all_fetched),
              "%d lines, %d of %d matrices, %d of %d bytes, %d not understood", logged.n_line,
              logged.n_slab, (int)(c.down_fetched + 3 * c.all_fetched), (int)logged.bytes,
              (int)c.fetch_bytes, logged.n_bad);
    CHECK_MSG(logged.end <= host.pad_bytes, "up to byte %d of a pad of %d", (int)logged.end,
              (int)host.pad_bytes);
}

/* ---- passes of several sessions -------------------------------------------------------------- */

enum { TOGETHER = 3, N_PASS = 4 };

/* Different experts of each layer, by the router's choices [layers with experts, tokens, k]. */
static uint64_t union_of(const model *m, const int32_t *ids, int n_token)
{
    uint64_t n = 0;
    for (int l = 0; l < m->hp.n_layer; l++) {
        const int n_slot = has_experts(m, l) ? n_token * m->hp.n_expert_used : 0;
        for (int i = 0; i < n_slot; i++) {
            int k = 0;
            while (ids[k] != ids[i]) k++;
            n += k == i;
        }
        ids += n_slot;
    }
    return n;
}

/* Passes of three sessions. Returns what the CPU must have read. */
static uint64_t take_passes(session *const *s, const model *m)
{
    const sampler_options greedy = { .top_p = 1, .repeat_penalty = 1 };
    runner_row rows[TOGETHER];
    int32_t ids[TOGETHER] = { 11, 60, 93 };
    uint64_t n_read = 0;
    sampler *smp = NULL;
    err_ctx err = { 0 };
    int failed, rc = sampler_create(&smp, &greedy, m->hp.n_vocab, 0, &err);
    for (int i = 0; i < N_PASS && rc == 0; i++) {
        for (int k = 0; k < TOGETHER; k++)
            rows[k] = (runner_row){ .s = s[k], .ids = &ids[k], .n = 1 };
        chosen.n = 0;
        rc = runner_take(session_runner(s[0]), rows, TOGETHER, &failed, &err);
        n_read += union_of(m, chosen.ids, TOGETHER);
        for (int k = 0; k < TOGETHER && rc == 0; k++) rc = session_pick(s[k], &ids[k], smp, &err);
    }
    CHECK_MSG(rc == 0, "%s", err.msg);
    sampler_free(smp);
    return n_read;
}

/* Where no layer has a question, passes count as single tokens do, and an expert that several
 * tokens chose is read once. */
static void test_together(model_fixture *f, const place *p)
{
    const engine_options eo = { .threads = 1 };          /* the order of choices */
    const session_options so = { .ctx = 64, .chunk = 64, .kv = KV_F16, .n_sharing = TOGETHER - 1 };
    const model *m = f->m;
    session *s[TOGETHER] = { 0 };
    uint64_t all = 0;
    err_ctx err = { 0 };
    chosen.cap = (size_t)TOGETHER * (size_t)m->hp.n_layer * (size_t)m->hp.n_expert_used;
    chosen.ids = test_alloc(chosen.cap, sizeof *chosen.ids);
    if (!model_fixture_engine(f, &eo) || !place_engine(f->e, m, p)) goto done;
    if (!CHECK_MSG(session_create(&s[0], f->e, &so, &err) == 0, "%s", err.msg)) goto done;
    for (int i = 1; i < TOGETHER; i++)
        if (!CHECK_MSG(session_create_sharing(&s[i], session_runner(s[0]), &err) == 0, "%s",
                       err.msg)) goto done;
    runner_count(session_runner(s[0]), PERF_FULL);
    const uint64_t n_read = take_passes(s, m);
    const perf_counts c = runner_perf(session_runner(s[0]));
    for (int l = 0; l < m->hp.n_layer; l++)
        if (has_experts(m, l)) all += TOGETHER * N_PASS * (uint64_t)m->hp.n_expert_used;
    CHECK_MSG(c.passes == N_PASS && c.rows == TOGETHER * N_PASS &&
              c.tokens == TOGETHER * N_PASS && c.prompt_tokens == 0,
              "%s: %d passes of %d tokens, %d others", p->name, (int)c.passes, (int)c.tokens,
              (int)c.prompt_tokens);
    CHECK_MSG((p->gpu ? c.hot : c.cold) == all && c.hot + c.cold == all,
              "%s: %d hot, %d cold of %d", p->name, (int)c.hot, (int)c.cold, (int)all);
    CHECK_MSG(p->gpu ? c.read_experts == 0 : c.read_experts == n_read && n_read < all,
              "%s: %d experts read, not %d", p->name, (int)c.read_experts, (int)n_read);
    CHECK_MSG(p->gpu || c.cpu_bytes > 0, "%s: no bytes", p->name);
    check_layers(s[0], &c, m, p);
done:
    for (int i = 0; i < TOGETHER; i++) session_free(s[i]);
    model_fixture_stop(f);
    mem_free(chosen.ids);
    chosen = (chosen_experts){ 0 };
}

static void test_file(const char *path, int turn)
{
    model_fixture f;
    if (model_fixture_open(&f, path)) {
        for (int i = 0; i < N_PLACES; i++)
            if ((!places[i].gpu || gpu_count() > 0) && !sim_gpu_skips(i + turn, 3))
                test_sums(&f, &places[i]);
        for (int i = 0; i < N_PLACES; i++)
            if (places[i].gpu ? !places[i].planned && gpu_count() > 0 : i < N_CPU_PLACES)
                test_together(&f, &places[i]);
        if (gpu_count() > 0) {
            test_off(&f);
            test_not_locked(&f);
            test_log(&f);
        }
    }
    model_fixture_close(&f);
}

int main(int argc, char **argv)
{
    test_begin("perf_counts", argc, argv);
    if (gpu_count() == 0) test_skip("no GPU: placements of the CPU alone");
    test_bounds();
    char dense[512];
    for (size_t i = 0; i < ARRAY_LEN(files); i++) test_file(files[i], (int)i);
    test_file(test_path(dense, sizeof dense, "%s/%s", test_unpacked(), dense_file), 2);
    return test_end();
}
