/* test_sim_plan.c - a plan counts all VRAM that a run allocates.
 *
 * Models of the families, also such whose layers are not alike, in budgets of VRAM from little to
 * all: sessions of the planned kind, up to eight, allocate no more than the plan says, and not much
 * less. On a card that is full all the same, tokens without a recording have the same bits. Where
 * page-locked RAM is refused, loading fails and takes nothing. For the simulated GPU, which counts
 * every byte. */

#include "cuda/gpu_measure.h"
#include "engine/engine_stats.h"
#include "engine/gpu/gpu_steps.h"
#include "engine/plan/planning.h"
#include "engine/session/runner.h"
#include "engine/session/session_bytes.h"
#include "moe/postfetch.h"
#include "tests/sim_gpu.h"
#include "tests/small_shapes.h"
#include "tests/test.h"

#define GB UINT64_C(1000000000)

enum {
    N_BUDGET = 8, CTX = 256, PROMPT = 70, N_TOKEN = 6,
    GRAINS = 16 << 10                    /* allocations are rounded up, and few */
};

/* Changes of a small shape. */
typedef struct variant {
    const char *arch, *what;
    int n_dense, n_ff_dense, n_ff_shared, n_head, n_sharing;
    kv_type kv;
    bool tight;                          /* RAM for three quarters of the experts: they
                                          * are moved */
} variant;

static const variant variants[] = {
    { .arch = "qwen3moe", .what = "as it is", .kv = KV_F16 },
    { .arch = "qwen35moe", .what = "as it is", .kv = KV_F16, .n_sharing = 1 },
    { .arch = "glm4moe", .what = "as it is", .kv = KV_F16 },
    { .arch = "glm4moe", .what = "three dense layers of four, very wide", .n_dense = 3,
      .n_ff_dense = 6144, .kv = KV_Q8_0 },
    { .arch = "glm4moe", .what = "48 heads", .n_head = 48, .kv = KV_F32, .n_sharing = 2 },
    { .arch = "gemma4", .what = "as it is", .kv = KV_F16 },
    { .arch = "glm4moe", .what = "moved", .kv = KV_F16, .tight = true },
    { .arch = "gemma4", .what = "moved", .kv = KV_F32, .tight = true },
    { .arch = "gemma4", .what = "a wide network and experts", .n_ff_shared = 2048,
      .kv = KV_Q8_0, .n_sharing = 1 },
    { .arch = "qwen3moe", .what = "eight sessions", .kv = KV_F16, .n_sharing = 7 },
    { .arch = "llama", .what = "as it is", .kv = KV_F16 },
    { .arch = "olmoe", .what = "as it is", .kv = KV_F32 },
};

typedef struct made {
    synth_plan *p;
    uint8_t *bytes;
    gguf *g;
    model *m;
} made;

static void made_free(made *d)
{
    model_free(d->m);
    gguf_close(d->g);
    mem_free(d->bytes);
    synth_plan_free(d->p);
}

static bool make(made *d, const variant *v)
{
    synth_shape s = { 0 };
    err_ctx err = { 0 };
    *d = (made){ 0 };
    for (int i = 0; i < N_SMALL_SHAPES; i++)
        if (!strcmp(small_shapes[i].family->arch, v->arch)) s = small_shapes[i];
    if (v->n_dense) s.n_dense = v->n_dense;
    if (v->n_ff_dense) s.n_ff_dense = v->n_ff_dense;
    if (v->n_ff_shared) s.n_ff_shared = v->n_ff_shared;
    if (v->n_head) s.n_head = v->n_head;
    const synth_options o = synth_options_of(&s);
    if (!CHECK_MSG(synth_plan_create(&d->p, &o, &err) == 0, "%s: %s", v->what, err.msg))
        return false;
    const size_t n = (size_t)synth_plan_bytes(d->p);
    d->bytes = test_alloc(n, 1);
    synth_plan_fill(d->p, d->bytes, 0, n);
    if (!CHECK_MSG(gguf_open_memory(&d->g, d->bytes, n, &err) == 0 &&
                   model_bind(&d->m, d->g, &err) == 0, "%s: %s", v->what, err.msg))
        return false;
    model_use_mtp(d->m, true);
    return true;
}

/* A few tokens, many, and some one by one: with post-fetch, without, and under a profile. */
static bool run(session *s, const model *m, err_ctx *err)
{
    const int n_prompt = test_rounds(PROMPT, 20);
    int32_t ids[PROMPT + N_TOKEN];
    int rc = 0, n;
    for (int i = 0; i < PROMPT + N_TOKEN; i++) ids[i] = (i * 37 + 11) % m->hp.n_vocab;
    for (int t = 0; t < n_prompt + N_TOKEN && rc == 0; t += n) {
        n = t < 5 ? 5 : t < n_prompt ? n_prompt - t : 1;
        runner_pause_postfetch(session_runner(s), t == n_prompt);
        rc = session_eval(s, ids + t, n, NULL, 0, NULL, NULL, err);
    }
    gpu_span span;
    double bandwidth;
    if (rc == 0 && session_profile(s, &span, 1, ids, 1, &bandwidth, err) < 0) rc = err->code;
    return rc == 0;
}

static void take(const model *m, const plan *p, const variant *v, uint64_t budget)
{
    const engine_options eo = { .threads = sim_n_thread() };
    const session_options so = { .ctx = CTX, .chunk = p->chunk, .kv = v->kv, .n_snapshot = 1,
                                 .n_sharing = v->n_sharing };
    const postfetch_options post = { .off = false };
    const engine_placement where = { .gpu = p->gpu, .plan = p, .postfetch = &post };
    const uint64_t before = sim_gpu_vram_used();
    engine *e = NULL;
    session *s = NULL, *more[7] = { NULL };
    err_ctx err = { 0 };
    bool ok = engine_open(&e, m, &eo, &err) == 0 && engine_place(e, &where, &err) == 0 &&
              session_create(&s, e, &so, &err) == 0;
    ok = ok && run(s, m, &err);
    for (int i = 0; i < v->n_sharing && ok; i++)
        ok = session_create_sharing(&more[i], session_runner(s), &err) == 0 &&
             run(more[i], m, &err);
    CHECK_MSG(ok, "%s, %s, %llu: %s", v->arch, v->what, (unsigned long long)budget, err.msg);
    const uint64_t taken = sim_gpu_vram_used() - before, said = plan_vram(p);
    CHECK_MSG(taken <= said + GRAINS, "%s, %s, --vram %llu: %llu taken, the plan says %llu",
              v->arch, v->what, (unsigned long long)budget, (unsigned long long)taken,
              (unsigned long long)said);
    const uint64_t at_once = said - (1 + (uint64_t)v->n_sharing) * gpu_steps_recordings_bytes(m, session_pass_tokens(&so));
    CHECK_MSG(taken > at_once / 10 * 9, "%s, %s, --vram %llu: %llu taken, the plan says %llu",
              v->arch, v->what, (unsigned long long)budget, (unsigned long long)taken,
              (unsigned long long)said);
    for (int i = 0; i < v->n_sharing; i++) session_free(more[i]);
    session_free(s);
    engine_close(e);
    CHECK(sim_gpu_vram_used() == before);
}

static void test_budgets(const variant *v)
{
    static planning in;
    made d;
    gpu *g = NULL;
    plan p;
    err_ctx err = { 0 };
    if (!make(&d, v) || !CHECK(gpu_open(&g, 0, &err) == 0)) {
        made_free(&d);
        return;
    }
    const session_options so = { .ctx = CTX, .kv = v->kv, .n_snapshot = 1,
                                 .n_sharing = v->n_sharing };
    plan_wish w = { .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX,
                    .gpu_wanted = true };
    uint64_t all = 0;
    int n_gpu = 0, n_moved = 0, n_tried = 0;
    in.machine = (plan_machine){ .gpu = true, .vram_free = 2 * GB, .ram_available = 8 * GB };
    for (int i = 0; i <= N_BUDGET; n_tried++) {
        if (i > 0) w.vram = all - all * (uint64_t)(i - 1) / N_BUDGET - (i > 1);
        const int rc = planning_make(&p, &in, d.m, &so, 1, planning_gpu_work, g, &w, &err);
        if (!CHECK_MSG(rc == 0, "%s, %s: %s", v->arch, v->what, err.msg)) break;
        if (i == 0) all = plan_vram(&p);
        if (i == 0 && v->tight)
            w.ram = in.session.chunk[0].ram_with_gpu + in.session.chunk[0].snapshots +
                    in.model.embed + plan_all_experts(&in.model) / 4 * 3;
        const bool unlimited = i == 0;
        i += test_is_long() ? 1 : i == 0 ? 1 + v->tight : 4;
        if (!p.gpu || unlimited) continue;       /* the next budget is all of it */
        CHECK(plan_vram(&p) <= w.vram);
        take(d.m, &p, v, w.vram);
        n_gpu++;
        n_moved += p.moved;
    }
    CHECK_MSG(!v->tight || n_moved > 0, "%s: experts are never moved", v->arch);
    CHECK_MSG(n_gpu > (n_tried - 2) / 2, "%s, %s: a GPU in %d budgets", v->arch, v->what, n_gpu);
    gpu_close(g);
    made_free(&d);
}

/* ---- a full card ----------------------------------------------------------------------------- */

/* Logits [FULL_TOKENS, n_vocab] of single tokens; the card is full during the first third. A
 * recording that was refused is tried again 64 tokens later. */
enum { FULL_TOKENS = 96 };
static void eval_tokens(engine *e, const session_options *so, float *rows, bool full)
{
    session *s = NULL;
    err_ctx err = { 0 };
    uint64_t used = 0;
    int rc = session_create(&s, e, so, &err);
    for (int i = 0; i < FULL_TOKENS && rc == 0; i++) {
        const int32_t id = (i * 37 + 11) % session_vocab(s);
        if (i == 0) used = sim_gpu_vram_used();
        if (full && i == 0) sim_gpu_set_vram(used);
        if (full && i == FULL_TOKENS / 3) {
            CHECK_MSG(sim_gpu_vram_used() == used, "a recording on a full card");
            sim_gpu_set_vram(2 * GB);
        }
        rc = session_eval(s, &id, 1, rows + (size_t)i * (size_t)session_vocab(s), 1, NULL, NULL,
                          &err);
    }
    CHECK_MSG(rc == 0, "%s card: %s", full ? "full" : "empty", err.msg);
    CHECK_MSG(sim_gpu_vram_used() > used, "%s card: no recording", full ? "full" : "empty");
    sim_gpu_set_vram(2 * GB);
    session_free(s);
}

static void test_full_card(const variant *v, int part)
{
    static planning in;
    const session_options so = { .ctx = CTX, .chunk = 64, .kv = v->kv, .n_snapshot = 1 };
    const engine_options eo = { .threads = sim_n_thread() };
    const postfetch_options post = { .off = false };
    plan_wish w = { .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX,
                    .gpu_wanted = true };
    made d = { 0 };
    gpu *g = NULL;
    engine *e = NULL;
    plan p;
    err_ctx err = { 0 };
    bool ok = make(&d, v) && gpu_open(&g, 0, &err) == 0;
    in.machine = (plan_machine){ .gpu = true, .vram_free = 2 * GB, .ram_available = 8 * GB };
    ok = ok && planning_make(&p, &in, d.m, &so, 1, planning_gpu_work, g, &w, &err) == 0;
    w.vram = ok ? plan_vram(&p) / 8 * (uint64_t)part : 0;
    ok = ok && planning_make(&p, &in, d.m, &so, 1, planning_gpu_work, g, &w, &err) == 0 && p.gpu;
    const engine_placement where = { .gpu = true, .plan = &p, .postfetch = &post };
    ok = ok && engine_open(&e, d.m, &eo, &err) == 0 && engine_place(e, &where, &err) == 0;
    if (CHECK_MSG(ok, "%s, %d eighths: %s", v->arch, part, err.msg)) {
        const size_t n = FULL_TOKENS * (size_t)d.m->hp.n_vocab;
        float *want = test_alloc(n, sizeof *want), *got = test_alloc(n, sizeof *got);
        eval_tokens(e, &so, want, false);
        eval_tokens(e, &so, got, true);
        CHECK_MSG(memcmp(got, want, n * sizeof *want) == 0, "%s, %d eighths: other bits", v->arch,
                  part);
        mem_free(want);
        mem_free(got);
    }
    engine_close(e);
    gpu_close(g);
    made_free(&d);
}

/* ---- refused page-locked RAM ----------------------------------------------------------------- */

/* Each allocation of page-locked RAM is refused once. Loading then fails, or does without it; it
 * keeps no VRAM, and the next attempt finds a device that works. */
static void test_refused(const variant *v)
{
    static planning in;
    const session_options so = { .ctx = CTX, .chunk = 64, .kv = v->kv, .n_snapshot = 1 };
    const engine_options eo = { .threads = sim_n_thread() };
    const postfetch_options post = { .off = false };
    plan_wish w = { .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = 0, .gpu_wanted = true };
    made d = { 0 };
    gpu *g = NULL;
    plan p;
    err_ctx err = { 0 };
    in.machine = (plan_machine){ .gpu = true, .vram_free = 2 * GB, .ram_available = 8 * GB };
    const bool ready = make(&d, v) && gpu_open(&g, 0, &err) == 0 &&
        planning_make(&p, &in, d.m, &so, 1, planning_gpu_work, g, &w, &err) == 0 && p.gpu;
    CHECK_MSG(ready, "%s: %s", v->arch, err.msg);
    const engine_placement where = { .gpu = true, .plan = &p, .postfetch = &post };
    const uint64_t before = sim_gpu_vram_used();
    int n_failed = 0;
    bool refused = true;
    for (int nth = 1; ready && refused; nth++) {
        engine *e = NULL;
        session *s = NULL;
        sim_gpu_refuse_locked(nth);
        int rc = engine_open(&e, d.m, &eo, &err);
        if (rc == 0 && (rc = engine_place(e, &where, &err)) < 0) {
            n_failed++;
            CHECK_MSG(rc == ERR_NOMEM, "allocation %d: %s", nth, err.msg);
            rc = engine_place(e, &where, &err);
        }
        if (rc == 0 && (rc = session_create(&s, e, &so, &err)) < 0) {
            n_failed++;
            CHECK_MSG(rc == ERR_NOMEM, "allocation %d: %s", nth, err.msg);
            rc = session_create(&s, e, &so, &err);
        }
        CHECK_MSG(rc == 0 && run(s, d.m, &err), "after allocation %d: %s", nth, err.msg);
        refused = sim_gpu_refuse_locked(0);
        session_free(s);
        engine_close(e);
        CHECK_MSG(sim_gpu_vram_used() == before, "allocation %d: VRAM is kept", nth);
    }
    CHECK_MSG(!ready || n_failed > 2, "%d allocations of page-locked RAM", n_failed);
    gpu_close(g);
    made_free(&d);
}

int main(int argc, char **argv)
{
    test_begin("plan", argc, argv);
    for (size_t i = test_is_long() ? 0 : 1; i < ARRAY_LEN(variants); i += (size_t)test_rounds(1, 3))
        test_budgets(&variants[i]);
    for (int part = 6; part <= 8; part += test_rounds(1, 2)) {
        test_full_card(&variants[part % 2], part);
        if (test_is_long()) test_full_card(&variants[1 - part % 2], part);
    }
    test_refused(&variants[0]);
    return test_end();
}
