/* test_sim_devices.c - two simulated devices at once: each has memory of its own, and a session's
 * layers may be on both and in RAM. */
#include "cuda/gpu.h"
#include "tests/sim_gpu.h"
#include "tests/state_reference.h"
#include "tests/test.h"

enum { MB = 1 << 20, DEVICES = 2 };

static gpu *g[DEVICES];

/* What one device has taken is still free on the other. */
static void test_memory(void)
{
    void *p[DEVICES] = { NULL };
    gpu_info info[DEVICES];
    err_ctx err = { 0 };
    for (int i = 0; i < DEVICES; i++) {
        CHECK_MSG((p[i] = gpu_alloc(g[i], 3 * MB, "a test", &err)) != NULL, "%s", err.msg);
        CHECK(!gpu_alloc(g[i], 2 * MB, "a test", &err) && err.code == ERR_NOMEM);
        CHECK_MSG(strstr(err.msg, i == 0 ? "GPU 0" : "GPU 1"), "%s", err.msg);
    }
    gpu_free(g[1], p[1]);
    CHECK(gpu_describe(&info[0], 0, &err) == 0 && gpu_describe(&info[1], 1, &err) == 0);
    CHECK(info[0].vram_free == MB && info[1].vram_free == 4 * MB);
    gpu_free(g[0], p[0]);
    CHECK(gpu_describe(&info[0], DEVICES, &err) == ERR_RANGE);
}

/* No operation uses another device's memory; the failure is that device's alone. The last test. */
static void test_foreign(void)
{
    err_ctx err = { 0 };
    uint32_t word = 7;
    void *own = gpu_alloc(g[0], 256, "a test", &err), *other = gpu_alloc(g[1], 256, "a test", &err);
    CHECK(gpu_write(g[0], own, &word, sizeof word, &err) == 0 &&
          gpu_write(g[1], other, &word, sizeof word, &err) == 0);
    CHECK(gpu_read(g[1], &word, own, sizeof word, &err) < 0);
    CHECK_MSG(strstr(err.msg, "GPU 1"), "%s", err.msg);
    CHECK(gpu_read(g[0], &word, own, sizeof word, NULL) == 0 && word == 7);
    gpu_free(g[0], own);
    gpu_free(g[1], other);
}

/* Random steps of a session with a part of each model on each device. */
static void test_state(mem_space *const where[DEVICES])
{
    static const char *const layers[] = { "DWFDWF", "FFF", "WDF" };
    for (size_t k = 0; k < ARRAY_LEN(layers); k++) {
        model *m = reference_model(layers[k], 2, 32, 20);
        state_options o = { .ctx = 300, .slack = 40, .kv = (kv_type)k, .n_snapshot = 2 };
        test_rng rng = { k };
        reference t;
        segments_add(&o.in, m->hp.n_layer / 3, where[0]);
        segments_add(&o.in, m->hp.n_layer * 2 / 3, where[1]);
        segments_add(&o.in, m->hp.n_layer, mem_space_ram());
        reference_open(&t, m, &o);
        for (int i = 0; i < 40 && reference_holds(&t, &rng); i++) {
            const int left = o.ctx - t.pos;
            const uint32_t dice = test_below(&rng, 10);
            if (dice < 6 && left > 0) {
                const int n = 1 + (int)test_below(&rng, (uint32_t)min_int(left, o.slack));
                reference_run(&t, &rng, n, dice == 0);
            } else if (dice < 8) {
                reference_snapshot(&t);
            } else {
                reference_rewind(&t, t.pos - (int)test_below(&rng, 90));
            }
        }
        CHECK_MSG(reference_holds(&t, &rng), "%s: %s", layers[k], t.why);
        reference_close(&t);
        reference_model_free(m);
    }
}

int main(int argc, char **argv)
{
    mem_space *where[DEVICES] = { NULL };
    err_ctx err = { 0 };
    int rc = 0;
    test_begin("devices", argc, argv);
    sim_gpu_set_devices(DEVICES);
    sim_gpu_set_vram(4 * MB);
    for (int i = 0; i < DEVICES && rc == 0; i++) {
        rc = gpu_open(&g[i], i, &err);
        if (rc == 0) rc = mem_space_vram_create(&where[i], g[i], &err);
    }
    if (CHECK_MSG(rc == 0 && gpu_count() == DEVICES, "%s", err.msg)) {
        test_memory();
        test_state(where);
        CHECK(sim_gpu_vram_used() == 0);
        test_foreign();
    }
    for (int i = 0; i < DEVICES; i++) {
        mem_space_vram_free(where[i]);
        gpu_close(g[i]);
    }
    return test_end();
}
