/* test_layer_overhead.c - layers of every family can be timed on the GPU with weights of zeros, and
 * nothing is left behind; how long they take does not matter. */
#include "engine/plan/layer_overhead.h"

#include "engine/gpu/weights_gpu.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

static const struct row { const char *name; bool family; } rows[] = {
    { "demo-qwen3next-mtp", false }, { "demo-gptoss-MXFP4", false },
    { "tiny-qwen3moe-bf16", true }, { "tiny-qwen35moe-bf16", true },
    { "tiny-llama-wide-bf16", true }, { "tiny-olmoe-wide-bf16", true },
    { "tiny-glm4moe-bf16", true }, { "tiny-gemma4-bf16", true },
    { "tiny-gemma4-shared-bf16", true },
};

/* Each of the chains has its own recording: the one that was made last is played. */
static const gpu_recording *last_made;

int __real_gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err);
int __wrap_gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err);
int __wrap_gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err)
{
    last_made = r;
    return __real_gpu_record_end(r, g, err);
}

void __real_gpu_replay(gpu *g, gpu_recording *r);
void __wrap_gpu_replay(gpu *g, gpu_recording *r);
void __wrap_gpu_replay(gpu *g, gpu_recording *r)
{
    CHECK(r == last_made);
    __real_gpu_replay(g, r);
}

static bool in_bounds(double s) { return s >= LAYER_OVERHEAD_LEAST_S && s <= LAYER_OVERHEAD_MOST_S; }

static uint64_t vram_free(void)
{
    gpu_info info = { 0 };
    err_ctx err = { 0 };
    CHECK_MSG(gpu_describe(&info, 0, &err) == 0, "%s", err.msg);
    return info.vram_free;
}

/* Without memory: said, all of it given back, and the next attempt finds the device well. */
static void test_no_memory(const char *name, gpu *g, const model *m, const weights *w,
                           const rope_tables *rope)
{
    layer_overhead c;
    int refused = 0, done = 0;
    for (long nth = 1; done == 0 && nth < 400; nth++) {
        c = (layer_overhead){ 7, 7 };
        mem_fail_after(nth);
        const int rc = measure_layer_overhead(&c, g, m, w, rope, 1e12, NULL);
        mem_fail_after(0);
        refused += rc == ERR_NOMEM;
        done += rc == 0;
        CHECK_MSG(rc == 0 ? in_bounds(c.dense) : rc == ERR_NOMEM && c.dense == 7,
                  "%s: allocation %ld: %d, %g s", name, nth, rc, c.dense);
    }
    CHECK_MSG(refused > 5 && done == 1, "%s: %d refused, %d done", name, refused, done);
}

static void test_model(const struct row *r, gpu *g, const model *m, const weights *w,
                       const rope_tables *rope)
{
    layer_overhead c = { 0, 0 };
    err_ctx err = { 0 };
    const uint64_t before = vram_free();
    int rc = measure_layer_overhead(&c, g, m, w, rope, 1e12, &err);
    CHECK_MSG(rc == 0 && in_bounds(c.dense) && in_bounds(c.hot), "%s: %d, %g and %g s: %s", r->name,
              rc, c.dense, c.hot, err.msg);
    /* bytes that take years: nothing is left */
    rc = measure_layer_overhead(&c, g, m, w, rope, 1.0, &err);
    CHECK_MSG(rc == 0 && c.dense == LAYER_OVERHEAD_LEAST_S && c.hot == LAYER_OVERHEAD_LEAST_S, "%s: %d, %g and %g s",
              r->name, rc, c.dense, c.hot);
    if (!r->family) test_no_memory(r->name, g, m, w, rope);
    if (sim_gpu())                       /* others may use a real one */
        CHECK_MSG(vram_free() == before, "%s: VRAM is left behind", r->name);
}

static void test_row(const struct row *r, gpu *g)
{
    char path[512];
    model_fixture f;
    weights *w = NULL;
    rope_tables rope = { 0 };
    err_ctx err = { 0 };
    test_path(path, sizeof path, r->family ? "%s/families/%s.gguf" : "%s/%s.gguf",
              r->family ? test_unpacked() : "tests/models", r->name);
    if (model_fixture_open(&f, path) &&
        CHECK_MSG(weights_gpu_check(f.m, &err) == 0 && weights_create(&w, f.m, &err) == 0 &&
                  rope_tables_init(&rope, f.m, false, &err) == 0, "%s: %s", r->name, err.msg))
        test_model(r, g, f.m, w, &rope);
    rope_tables_release(&rope);
    weights_free(w);
    model_fixture_close(&f);
}

int main(int argc, char **argv)
{
    gpu *g = NULL;
    err_ctx err = { 0 };
    test_begin("layer_overhead", argc, argv);
    if (gpu_count() == 0) {
        test_skip("no GPU");
        return test_end();
    }
    if (CHECK_MSG(gpu_open(&g, 0, &err) == 0, "%s", err.msg))
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) test_row(&rows[i], g);
    gpu_close(g);
    return test_end();
}
