/* test_layer_time.c - a layer's time: rows by hand, and the plan's own expectation wherever a plan
 * is about a single case. */
#include <math.h>
#include <string.h>

#include "tests/test.h"
#include "tiers/layer_time.h"
#include "tiers/plan.h"

#define MB UINT64_C(1000000)
#define GB UINT64_C(1000000000)

static const speeds usual = {
    .vram_read = 400e9, .pcie_in = 24e9, .pcie_out = 24e9, .pull = 22e9, .pull_busy = 20e9,
    .cpu = 50e9, .cpu_busy = 40e9, .cpu_dense = 70e9, .cpu_many = 6e11, .gpu_macs = 2e13,
    .hop = 8e-6, .disk = 2e9, .disk_straight = 2e9, .layer_dense = 25e-6, .layer_hot = 9e-6,
    .layer_cpu = 35e-6, .disk_wait = 0.3e-3,
};

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

/* 4 experts of 4 MB, of which the down slab is 1 MB. */
static void test_by_hand(void)
{
    const layer_experts e = { 4 * MB, 1 * MB, 4 };
    speeds no_bus = usual;
    no_bus.pull = no_bus.pull_busy = 0;
    const struct { double got, want; const char *why; } rows[] = {
        { layer_time_gpu(&e, 0, &usual), 25e-6 + 40e-6 + 9e-6, "all in VRAM" },
        { layer_time_gpu(&e, 4, &no_bus), 25e-6 + 8e-6 + 320e-6, "none, no post-fetch" },
        { layer_time_gpu(&e, 1, &no_bus), 25e-6 + 8e-6 + 80e-6, "one: longer than the hot three" },
        /* 16 MB: one whole and one down, 5 MB, cross at 20 GB/s while 11 are computed at 40 */
        { layer_time_gpu(&e, 4, &usual), 25e-6 + 8e-6 + 11e6 / 40e9, "none, post-fetch" },
        { layer_time_cpu(&e, 0, &usual), 35e-6 + 320e-6, "CPU, all in RAM" },
        { layer_time_cpu(&e, 1, &usual), 35e-6 + 2e-3 + 0.3e-3, "CPU, one from the drive" },
        { layer_time_cpu(&e, 4, &usual), 35e-6 + 8e-3 + 0.3e-3, "CPU, all from the drive" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        CHECK_MSG(near(rows[i].got, rows[i].want), "%s: %g us, not %g", rows[i].why,
                  rows[i].got * 1e6, rows[i].want * 1e6);
    for (int m = 1; m <= 4; m++)
        CHECK_MSG(layer_time_gpu(&e, m, &usual) > layer_time_gpu(&e, m - 1, &usual), "%d cold", m);
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum { N_LAYER = 24, N_EXPERT = 32, N_USED = 4 };

typedef struct made {
    plan_machine machine;
    plan_model what;
    plan_session s;
    plan_wish w;
    uint64_t expert[N_LAYER], down[N_LAYER];
} made;

static void make_case(made *c, uint64_t vram, uint64_t ram)
{
    memset(c, 0, sizeof *c);
    c->machine = (plan_machine){ .gpu = vram > 0, .vram_free = vram, .ram_available = ram,
                                 .lock_limit = UINT64_MAX, .rate = usual };
    c->w = (plan_wish){ .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX,
                        .gpu_wanted = vram > 0 };
    for (int l = 0; l < N_LAYER; l++) {
        c->expert[l] = 13219200;
        c->down[l] = 4406400;
    }
    c->what = (plan_model){
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_used = N_USED, .expert_bytes = c->expert,
        .down_bytes = c->down, .dense = 1900 * MB, .embed = 600 * MB, .token_dense = 1300 * MB,
        .dense_macs = 1.2e9, .expert_macs = 2.4e9, .file_bytes = 12100 * MB,
    };
    c->s = (plan_session){ .n_chunk = 1, .chunk = { 512 }, .vram_work = { 100 * MB },
                           .ram_work = { 100 * MB }, .state = { 200 * MB },
                           .ram_beside = { 60 * MB }, .ctx = 8192 };
}

/* The plan's tokens per second from layer times with m experts cold, or missed. */
static void see_plan(const char *why, const made *c, bool gpu, int m)
{
    plan p;
    err_ctx err = { 0 };
    if (!CHECK_MSG(plan_make(&p, &c->machine, &c->what, &c->s, &c->w, &err) == 0, "%s: %s", why,
                   err.msg)) return;
    const layer_experts e = { c->expert[0], c->down[0], N_USED };
    const speeds *r = &p.rate;
    double sum = (double)c->what.token_dense / (gpu ? r->vram_read : r->cpu_dense);
    for (int l = 0; l < N_LAYER; l++)
        sum += gpu ? layer_time_gpu(&e, m, r) : layer_time_cpu(&e, m, r);
    CHECK_MSG(p.gpu == gpu && near(p.decode_tok_s, 1 / sum), "%s: the plan says %g, the layers %g",
              why, p.decode_tok_s, 1 / sum);
}

static void test_plans(void)
{
    made c;
    make_case(&c, 80 * GB, 64 * GB);
    see_plan("all in VRAM", &c, true, 0);
    c.w.no_hot = true;
    see_plan("no expert in VRAM", &c, true, N_USED);
    make_case(&c, 0, 64 * GB);
    see_plan("CPU, all in RAM", &c, false, 0);
    make_case(&c, 0, 64 * GB);
    c.w.ram = 2600 * MB;                 /* less cache than a token's experts */
    see_plan("CPU, all from the drive", &c, false, N_USED);
}

int main(int argc, char **argv)
{
    test_begin("layer_time", argc, argv);
    test_by_hand();
    test_plans();
    return test_end();
}
