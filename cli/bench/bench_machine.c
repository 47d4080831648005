/* bench_machine.c - moe-bench machine: cores, caches, memory and GPUs, how fast memory is read, and
 * the speeds that plans are made with (engine/plan/measure.h).
 *
 * Decoding reads all active weights once for each token: bytes per token times tokens per second
 * does not exceed the speed of memory. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#include "cli/bench/bench_memory.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/view/plan_view.h"
#include "engine/engine_stats.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/plan/measure.h"
#include "tiers/bandwidth.h"
#include "tiers/machine.h"

typedef struct machine_options {
    bench_memory_args run;
    const char *model;                   /* NULL: the demo model, without a drive */
} machine_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(machine_options, model), "FILE", NULL, 0, 0,
      "GGUF file: the shapes to measure with, and its drive. Default: the demo model" },
};

static const arg_group groups[] = {
    { "Measuring:", bench_memory_options, BENCH_MEMORY_N_OPTION, offsetof(machine_options, run) },
};

static const arg_spec spec = {
    .usage = "moe-bench machine [[-m] FILE] [options]",
    .about =
        "Shows cores, caches, memory nodes and GPUs. Measures how fast memory is read, and the\n"
        "speeds that plans for the model are made with.",
    .options = options, .n_option = ARRAY_LEN(options), .groups = groups,
    .n_group = ARRAY_LEN(groups),
    .epilogue =
        "GB are 10^9 bytes. The speed of memory is the limit that decoding is compared with: the\n"
        "better of reading in order, and of reading with prefetches by the program. Speeds of\n"
        "matrices of many tokens: moe-bench gemm.",
};

typedef struct machine_view {
    const bench_memory_args *args;
    const char *model;
    machine m;                           /* what this process may use */
    topology t;                          /* the whole machine */
    size_t buffer;
    int n_thread;
    bandwidth memory;
    speeds rate;
    bool partial;                        /* some speeds could not be measured */
} machine_view;

/* ---- cores, memory, GPUs --------------------------------------------------------------------- */

/* In powers of two, as processors are described. */
static const char *text_cache(char *dst, size_t cap, uint64_t n)
{
    if (n >= 1 << 20) snprintf(dst, cap, "%g MiB", (double)n / (1 << 20));
    else snprintf(dst, cap, "%g KiB", (double)n / (1 << 10));
    return dst;
}

static const char *cache_name(char dst[8], int level)
{
    snprintf(dst, 8, "L%d%s", level, level == 1 ? "d" : "");
    return dst;
}

static const char *plural(int n) { return n == 1 ? "" : "s"; }

static void print_cpu(const machine_view *v)
{
    const kernel_set *sets[KERNELS_MAX_SETS];
    const topology *t = &v->t;
    const int n_set = kernels_here(sets);

    printf("cpu       %s\n", t->cpu[0] ? t->cpu : "unknown");
    printf("cores     %d, %d CPU%s: ", t->n_core, t->n_cpu, plural(t->n_cpu));
    if (t->smt > 1) printf("SMT, up to %d CPUs a core\n", t->smt);
    else printf("%s\n", t->smt_off ? "SMT is off" : "no SMT");
    if (v->m.n_cpu < t->n_cpu)
        printf("          this process may use %d core%s, %d CPU%s\n", v->m.n_core,
               plural(v->m.n_core), v->m.n_cpu, plural(v->m.n_cpu));
    printf("kernels   ");
    for (int i = 0; i < n_set; i++) printf("%s%s", i > 0 ? ", " : "", sets[i]->isa);
    printf(" (fastest first)\n");
    for (int i = 0; i < t->n_cache; i++) {
        const topology_cache *c = &t->caches[i];
        char name[8], bytes[32];
        printf("%-9s %-4s %9s  %3d x, each for %d core%s\n", i == 0 ? "caches" : "",
               cache_name(name, c->level), text_cache(bytes, sizeof bytes, c->bytes), c->n,
               c->n_core, plural(c->n_core));
    }
    if (t->n_cache == 0) printf("caches    unknown\n");
}

static void print_memory(const machine_view *v)
{
    const topology *t = &v->t;
    char total[32], left[32];

    printf("memory    %s, %s available; huge pages: %s\n",
           text_bytes(total, sizeof total, v->m.ram_total),
           text_bytes(left, sizeof left, v->m.ram_available),
           t->huge_pages[0] ? t->huge_pages : "unknown");
    for (int i = 0; i < t->n_node; i++) {
        const topology_node *n = &t->nodes[i];
        printf("%-9s node %d: %s, %s free, %s%s\n", i == 0 ? "numa" : "", n->id,
               text_bytes(total, sizeof total, n->bytes),
               text_bytes(left, sizeof left, n->free_bytes), n->n_cpu ? "CPUs " : "no CPUs",
               n->cpus);
    }
    for (int i = 0; i < v->m.n_gpu; i++) {
        const gpu_info *g = &v->m.gpus[i];
        printf("%-9s %d: %s, sm_%d%d, %s, %s free%s\n", i == 0 ? "gpu" : "", i, g->name,
               g->cc_major, g->cc_minor, text_bytes(total, sizeof total, g->vram_total),
               text_bytes(left, sizeof left, g->vram_free),
               g->watchdog ? ", display watchdog" : "");
    }
    if (v->m.n_gpu == 0) printf("gpu       none (GPU support in this build: %s)\n", gpu_backend());
}

/* ---- speeds ---------------------------------------------------------------------------------- */

static const struct speed_row {
    const char *name, *unit;
    double scale;                        /* unit: value * scale */
    size_t offset;
    const char *meaning;
} speed_rows[] = {
#define SPEED(field, unit, scale, meaning) { #field, unit, scale, offsetof(speeds, field), meaning }
    SPEED(cpu, "GB/s", 1e-9, "experts of one token, on the CPU"),
    SPEED(cpu_busy, "GB/s", 1e-9, "the same while the GPU reads RAM"),
    SPEED(cpu_dense, "GB/s", 1e-9, "the output matrix of one token, on the CPU"),
    SPEED(cpu_many, "GMAC/s", 1e-9, "experts of a prompt, on the CPU"),
    SPEED(layer_cpu, "us", 1e6, "a layer of one token on the CPU beyond its bytes"),
    SPEED(vram_read, "GB/s", 1e-9, "a kernel that reads VRAM"),
    SPEED(pcie_in, "GB/s", 1e-9, "copies from RAM to VRAM"),
    SPEED(pcie_out, "GB/s", 1e-9, "copies from VRAM to RAM"),
    SPEED(pull, "GB/s", 1e-9, "a kernel that reads RAM"),
    SPEED(pull_busy, "GB/s", 1e-9, "the same while the CPU computes experts"),
    SPEED(gpu_macs, "GMAC/s", 1e-9, "a prompt, on the GPU"),
    SPEED(hop, "us", 1e6, "a question of the GPU to the CPU and its reply"),
    SPEED(layer_dense, "us", 1e6,
          "a layer of one token on the GPU beyond its bytes, to the router"),
    SPEED(layer_hot, "us", 1e6, "and its experts"),
    SPEED(disk, "GB/s", 1e-9, "reads of the size of an expert's matrix, from the drive"),
    SPEED(disk_wait, "us", 1e6, "an expert from the drive beyond its bytes"),
#undef SPEED
};

static double speed_of(const machine_view *v, const struct speed_row *row)
{
    return *(const double *)(const void *)((const char *)&v->rate + row->offset);
}

static int measure_memory(machine_view *v, err_ctx *err)
{
    pool *team;
    int rc = bench_memory_team(&team, v->args);
    if (rc != 0) return rc;
    v->n_thread = pool_threads(team);
    console_status("reading memory with %d thread%s", v->n_thread, plural(v->n_thread));
    rc = bandwidth_measure(&v->memory, team, v->buffer, v->args->seconds, interrupt_watch, NULL,
                           err);
    console_status_clear();
    pool_free(team);
    return rc < 0 ? bench_model_fail("machine", rc, err) : 0;
}

/* As cli/placement.c measures before it plans. --buffer limits the RAM for experts. */
static int measure_plan_speeds(machine_view *v, const model_handle *l, err_ctx *err)
{
    const uint64_t ram = v->args->buffer > 0 ? 4 * (uint64_t)v->buffer : v->m.ram_available;
    gpu *g = NULL;
    int rc = 0;
    if (gpu_count() > 0 && weights_gpu_check(l->m, NULL) == 0) rc = gpu_open(&g, 0, err);
    console_status("measuring this machine...");
    if (rc == 0)
        rc = engine_measure(&v->rate, l->e, g, ram, v->args->seconds, interrupt_watch, NULL, err);
    console_status_clear();
    gpu_close(g);
    v->partial = rc == MEASURE_PARTIAL;
    return rc < 0 ? bench_model_fail("machine", rc, err) : 0;
}

static void print_speeds(const machine_view *v)
{
    char bytes[32], shown[256];
    printf("\nreading   %.1f GB/s with %d thread%s, %s; %.1f without prefetches by the program\n",
           v->memory.gb_s, v->n_thread, plural(v->n_thread),
           text_bytes(bytes, sizeof bytes, v->buffer), v->memory.plain.gb_s);
    printf("speeds    %s%s\n", v->model ? ESC(shown, str_from(v->model)) : "demo model",
           v->partial ? " (some could not be measured)" : "");
    for (size_t i = 0; i < ARRAY_LEN(speed_rows); i++) {
        const struct speed_row *row = &speed_rows[i];
        const double value = speed_of(v, row) * row->scale;
        if (value > 0)
            printf("  %-14s %9.*f %-6s  %s\n", row->name, value < 100 ? 2 : 0, value, row->unit,
                   row->meaning);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *kernels_json(void)
{
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n = kernels_here(sets);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) list = console_append(list, json_string(sets[i]->isa));
    return list;
}

static json_t *caches_json(const topology *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_cache; i++) {
        const topology_cache *c = &t->caches[i];
        list = console_append(list, json_pack("{s:i, s:I, s:i, s:i}", "level", c->level,
                                              "bytes", (json_int_t)c->bytes, "cores", c->n_core,
                                              "count", c->n));
    }
    return list;
}

static json_t *nodes_json(const topology *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_node; i++) {
        const topology_node *n = &t->nodes[i];
        list = console_append(list, json_pack("{s:i, s:s, s:i, s:I, s:I}", "id", n->id,
                                              "cpus", n->cpus, "n_cpu", n->n_cpu,
                                              "bytes", (json_int_t)n->bytes,
                                              "free_bytes", (json_int_t)n->free_bytes));
    }
    return list;
}

static json_t *gpus_json(const machine *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->n_gpu; i++) {
        const gpu_info *g = &m->gpus[i];
        list = console_append(list, json_pack("{s:s, s:i, s:i, s:i, s:I, s:I}", "name", g->name,
                                              "cc_major", g->cc_major, "cc_minor", g->cc_minor,
                                              "sm", g->n_sm,
                                              "vram_bytes", (json_int_t)g->vram_total,
                                              "vram_free_bytes", (json_int_t)g->vram_free));
    }
    return list;
}

static json_t *view_json(const machine_view *v)
{
    const topology *t = &v->t;
    char shown[1024];
    return json_pack("{s:s, s:i, s:i, s:i, s:b, s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:s, s:o, s:I, "
                     "s:i, s:f, s:f, s:s, s:o}",
                     "cpu", t->cpu, "cores", t->n_core, "cpus", t->n_cpu, "smt", t->smt,
                     "smt_off", t->smt_off, "usable_cores", v->m.n_core, "usable_cpus", v->m.n_cpu,
                     "kernels", kernels_json(), "caches", caches_json(t), "nodes", nodes_json(t),
                     "ram_bytes", (json_int_t)v->m.ram_total,
                     "ram_available_bytes", (json_int_t)v->m.ram_available,
                     "huge_pages", t->huge_pages, "gpus", gpus_json(&v->m),
                     "buffer_bytes", (json_int_t)v->buffer, "threads", v->n_thread,
                     "limit_gb_s", v->memory.gb_s, "plain_gb_s", v->memory.plain.gb_s,
                     "model", v->model ? ESC(shown, str_from(v->model)) : "demo model",
                     "speeds", plan_view_speeds_json(&v->rate));
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int print_machine(machine_view *v, const model_handle *l)
{
    err_ctx err;
    int rc;
    if (!v->args->json) {
        print_cpu(v);
        print_memory(v);
        fflush(stdout);
    }
    if ((rc = measure_memory(v, &err)) != 0 || (rc = measure_plan_speeds(v, l, &err)) != 0)
        return rc;
    if (!v->args->json) print_speeds(v);
    else if (console_report(view_json(v), REPORT_FLAGS, "") != 0) return 1;
    return console_finish();
}

int cmd_bench_machine(int argc, char **argv)
{
    static machine_view v;
    machine_options opt = { .run.seconds = MEASURE_SECONDS };
    err_ctx err;
    int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    v.args = &opt.run;
    v.model = opt.model;
    topology_read(&v.t, "");
    if (machine_probe(&v.m, &err) < 0) return console_fail("machine", &err);
    if (v.t.n_cpu == 0) {                /* /sys is not mounted */
        v.t.n_cpu = v.m.n_cpu;
        v.t.n_core = v.m.n_core;
    }
    if ((rc = bench_memory_bytes(&v.buffer, &opt.run, &v.t)) != 0) return rc;
    const load_options load = { .path = v.model, .where.engine.threads = (int)opt.run.threads };
    model_handle l;
    if (model_handle_open(&l, &load, &err) < 0)
        return console_fail(v.model ? v.model : "demo model", &err);
    interrupt_install();
    rc = print_machine(&v, &l);
    model_handle_close(&l);
    return rc;
}
