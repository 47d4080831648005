/* test_measure.c - figures are measured, or known to be missing; their size does not matter. */
#include "cuda/gpu_measure.h"
#include "engine/plan/measure.h"

#include "engine/engine_stats.h"
#include "engine/plan/layer_overhead.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tiers/drive_access.h"
#include "tiers/fault_injection.h"

static const char file[] = "tests/models/demo-qwen3next-mtp.gguf";
#define RAM_BYTES ((uint64_t)64 << 20)
#define SECONDS 0.007

static int n_thread = 2;                 /* what is measured takes as long with more */

static bool never(void *ctx)
{
    ++*(int *)ctx;
    return false;
}

/* g may be NULL. nth: the allocation that fails, 0: none does. */
static int measure_with(speeds *out, const model *m, gpu *g, uint64_t ram_bytes, long nth,
                        keep_going_fn *watch, void *ctx)
{
    const engine_options o = { .threads = g ? sim_n_thread() : test_n_thread(n_thread) };
    engine *e = NULL;
    err_ctx err = { 0 };
    int rc = engine_open(&e, m, &o, &err);
    if (!CHECK_MSG(rc == 0, "%s", err.msg)) return rc;
    mem_fail_after(nth);
    rc = engine_measure(out, e, g, ram_bytes, SECONDS, watch, ctx, &err);
    mem_fail_after(0);
    engine_close(e);
    CHECK_MSG(rc >= 0 || rc == ERR_STOPPED, "%d: %s", rc, err.msg);
    return rc;
}

static int measure(speeds *out, const model *m, long nth, keep_going_fn *watch, void *ctx)
{
    return measure_with(out, m, NULL, RAM_BYTES, nth, watch, ctx);
}

static bool within(double s, double least, double most) { return s >= least && s <= most; }

static const struct row {
    long nth;
    int fault;                           /* a fault_point, or -1 */
    int rc;
    bool cpu, disk;
    const char *why;
} rows[] = {
    { 0, -1, 0, true, true, "all that a machine without a GPU has" },
    { 1, -1, MEASURE_PARTIAL, false, true, "no memory for the CPU's turn: the drive has its own" },
    { 0, FAULT_READ_ERROR, MEASURE_PARTIAL, true, false, "a drive that cannot be read" },
};

static void test_rows(const model *m)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];
        speeds s;
        n_thread = test_rounds(2, i == 0 ? 2 : 1);
        if (r->fault >= 0) fault_arm((fault_point)r->fault, 0, FAULT_ALWAYS);
        const int rc = measure(&s, m, r->nth, NULL, NULL);
        fault_disarm_all();
        CHECK_MSG(rc == r->rc && (s.cpu > 0) == r->cpu && (s.cpu_many > 0) == r->cpu &&
                  (s.cpu_dense > 0) == r->cpu && (s.disk > 0) == r->disk,
                  "%d, CPU %g %g, drive %g: %s", rc, s.cpu, s.cpu_many, s.disk, r->why);
        CHECK_MSG(r->cpu ? within(s.layer_cpu, LAYER_OVERHEAD_LEAST_S, LAYER_OVERHEAD_MOST_S) : s.layer_cpu == 0,
                  "%g s for a layer: %s", s.layer_cpu, r->why);
        CHECK_MSG(r->disk ? within(s.disk_wait, DRIVE_LEAST_WAIT_S, DRIVE_MOST_WAIT_S)
                          : s.disk_wait == 0, "%g s for the drive: %s", s.disk_wait, r->why);
        CHECK_MSG(s.vram_read == 0 && s.pcie_in == 0 && s.pcie_out == 0 && s.pull == 0 &&
                  s.pull_busy == 0 && s.cpu_busy == 0 && s.gpu_macs == 0 && s.hop == 0 &&
                  s.layer_dense == 0 && s.layer_hot == 0, "a GPU where there is none: %s", r->why);
    }
}

static void test_gpu(const model *m)
{
    const uint64_t ram_bytes = 8 * (uint64_t)GPU_LOAD_LEAST;
    gpu *g = NULL;
    err_ctx err = { 0 };
    int asked = 0;
    speeds s;
    if (gpu_count() == 0) return;
    if (!CHECK_MSG(gpu_open(&g, 0, &err) == 0, "%s", err.msg)) return;
    int rc = measure_with(&s, m, g, ram_bytes, 0, NULL, NULL);
    CHECK_MSG(rc == 0 && s.cpu > 0 && s.disk > 0 && s.vram_read > 0 && s.pcie_in > 0 &&
              s.gpu_macs > 0 && s.hop > 0 && s.pull_busy > 0 && s.cpu_busy > 0,
              "%d: VRAM %g, bus %g", rc, s.vram_read, s.pcie_in);
    CHECK_MSG(within(s.layer_dense, LAYER_OVERHEAD_LEAST_S, LAYER_OVERHEAD_MOST_S) &&
              within(s.layer_hot, LAYER_OVERHEAD_LEAST_S, LAYER_OVERHEAD_MOST_S) &&
              within(s.layer_cpu, LAYER_OVERHEAD_LEAST_S, LAYER_OVERHEAD_MOST_S), "layers: %g, %g, %g s",
              s.layer_dense, s.layer_hot, s.layer_cpu);
    rc = measure_with(&s, m, g, ram_bytes, 1, NULL, NULL);    /* first the CPU, then the GPU */
    CHECK_MSG(rc == MEASURE_PARTIAL && s.cpu == 0 && s.layer_cpu == 0 && s.vram_read > 0 &&
              s.layer_dense > 0 && s.layer_hot > 0, "%d: CPU %g, layers %g", rc, s.cpu,
              s.layer_dense);
    CHECK(measure_with(&s, m, g, ram_bytes, 0, never, &asked) == ERR_STOPPED && asked == 1);
    gpu_close(g);
}

static void test_memory(void)
{
    size_t bytes = 0;
    uint8_t *data = test_read_file(file, &bytes);
    model_fixture f = { 0 };
    speeds s;
    if (data && model_fixture_open_memory(&f, data, bytes, file)) {
        const int rc = measure(&s, f.m, 0, NULL, NULL);
        CHECK_MSG(rc == 0 && s.cpu > 0 && s.disk == 0 && s.disk_wait == 0,
                  "%d, drive %g: a model in memory has none, and lacks nothing", rc, s.disk);
    }
    model_fixture_close(&f);
    mem_free(data);
}

int main(int argc, char **argv)
{
    model_fixture f;
    int asked = 0;
    speeds s;
    const bool without = !sim_gpu() || test_is_long();   /* what is not about a GPU */
    test_begin("measure", argc, argv);
    if (model_fixture_open(&f, file)) {
        if (without) test_rows(f.m);
        CHECK(measure(&s, f.m, 0, never, &asked) == ERR_STOPPED && asked == 1);
        test_gpu(f.m);
    }
    model_fixture_close(&f);
    if (without) test_memory();
    return test_end();
}
