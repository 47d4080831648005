/* bench_machine.c - moe-bench machine: what this machine is, how fast it reads memory, and how fast
 * its drive gives random parts of a file, as experts are read (tiers/drive_access.h).
 *
 * Decoding reads all active weights once for each token, so the last column bounds the token rate:
 * bytes per token times tokens per second does not exceed it. The reading itself is
 * tiers/bandwidth.h's. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bench/bench_memory.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/view/median_spread.h"
#include "engine/cpu/kernels.h"
#include "tiers/bandwidth.h"
#include "tiers/drive_access.h"
#include "tiers/machine.h"

typedef struct machine_options {
    bench_memory_args run;
    const char *model;                   /* NULL: no file to read */
} machine_options;

static const arg_option options[] = {
    { "model", 'm', ARG_TEXT, offsetof(machine_options, model), "FILE", NULL, 0, 0,
      "Also measure how fast the drive reads this file; a large one is best" },
};

static const arg_group groups[] = {
    { "Measuring:", bench_memory_options, BENCH_MEMORY_N_OPTION, offsetof(machine_options, run) },
};

static const arg_spec spec = {
    .usage = "moe-bench machine [[-m] FILE] [options]",
    .about = "Shows cores, caches, memory nodes and GPUs, and measures how fast 1, 2, 4, ...\n"
             "threads read memory: each on its own core, and what it wrote itself.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .operands = "",
    .groups = groups,
    .n_group = ARRAY_LEN(groups),
    .epilogue = "plain   reads one line after the other; the processor looks ahead by itself\n"
                "ahead   the program looks ahead too: into which cache, and how far, is shown\n"
                "limit   the best of all, GB/s (10^9): what decoding is held against\n"
                "drive   reads of 576 KiB past the page cache. straight: to memory that the drive\n"
                "        has not written to before. bounced: through a buffer of a few megabytes,\n"
                "        from which threads copy: faster on some virtual drives, and used there",
};

typedef struct machine_view {
    const bench_memory_args *args;
    const char *file;                    /* or NULL */
    uint64_t file_bytes;
    machine m;                           /* what this process may use */
    topology t;                          /* what there is */
    size_t buffer;
    bool huge;                           /* the system gives huge pages on request */
    drive_speed drive;                   /* all 0: not measured */
} machine_view;

/* ---- what there is --------------------------------------------------------------------------- */

/* Caches come in powers of two, and only those look like the numbers people know. */
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

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

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

/* ---- how fast it reads ----------------------------------------------------------------------- */

typedef struct rate_row {
    int n_thread;
    bandwidth small, huge;
    double limit;
} rate_row;

static int measure_row(rate_row *row, const machine_view *v, err_ctx *err)
{
    const double seconds = v->args->seconds;
    pool *team;
    int rc = pool_create(&team, row->n_thread, err);

    if (rc < 0) return rc;
    console_status("reading memory with %d thread%s", row->n_thread, plural(row->n_thread));
    rc = bandwidth_measure(&row->small, team, PAGES_SMALL, v->buffer, seconds, interrupt_watch,
                           NULL, err);
    if (rc == 0 && v->huge)
        rc = bandwidth_measure(&row->huge, team, PAGES_HUGE, v->buffer, seconds, interrupt_watch,
                               NULL, err);
    row->limit = row->huge.gb_s > row->small.gb_s ? row->huge.gb_s : row->small.gb_s;
    pool_free(team);
    console_status_clear();
    return rc;
}

static void print_heading(const machine_view *v)
{
    char bytes[32], page[32];
    printf("\nreading %s, GB/s, medians of %d\n", text_bytes(bytes, sizeof bytes, v->buffer),
           BANDWIDTH_RUNS);
    printf("          pages of %-18s%s\n",
           text_cache(page, sizeof page, (uint64_t)sysconf(_SC_PAGESIZE)),
           v->huge ? "huge pages" : "");
    printf("threads   plain   ahead         ");
    if (v->huge) printf("   plain   ahead         ");
    printf("   limit  a thread\n");
}

static void print_rates(const bandwidth *b)
{
    char how[32];
    snprintf(how, sizeof how, "L%d %zuK", b->ahead.level, b->ahead.ahead_bytes >> 10);
    printf(" %7.1f %7.1f %-8s", b->plain.gb_s, b->ahead.gb_s, how);
}

static void print_row(const machine_view *v, const rate_row *row)
{
    printf("%7d", row->n_thread);
    print_rates(&row->small);
    if (v->huge) print_rates(&row->huge);
    printf(" %7.1f %9.1f\n", row->limit, row->limit / row->n_thread);
    fflush(stdout);
}

/* ---- the drive ------------------------------------------------------------------------------- */

enum { SLAB = 576 << 10, SLABS = 3 };    /* an expert's matrix, and an expert */

/* 0, or the exit code. */
static int measure_drive(machine_view *v)
{
    drive_task t = { .path = v->file, .one = SLAB, .memory_bytes = DRIVE_MEMORY,
                     .file_bytes = v->file_bytes, .seconds = v->args->seconds, .at_once = SLABS,
                     .watch = interrupt_watch };
    err_ctx err;
    int rc = pool_create(&t.team, (int)v->args->threads, &err);
    if (rc == 0) {
        console_status("reading %d KiB at a time from %s", SLAB >> 10, v->file);
        rc = drive_measure(&v->drive, &t, &err);
        console_status_clear();
        pool_free(t.team);
    }
    return rc < 0 ? bench_model_fail(v->file, rc, &err) : 0;
}

static void print_drive(const machine_view *v)
{
    char shown[256];
    printf("\ndrive     %s: straight %.2f GB/s, bounced %.2f GB/s%s; an expert waits %.2f ms\n",
           ESC(shown, str_from(v->file)), v->drive.straight * 1e-9, v->drive.bounced * 1e-9,
           drive_wants_bounce(&v->drive) ? ", which is worth it here" : "", v->drive.wait * 1e3);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A NULL on either side, which is lack of memory, makes it NULL; so it goes up to the whole. */
static json_t *append(json_t *list, json_t *item)
{
    if (json_array_append_new(list, item) == 0) return list;
    json_decref(list);
    return NULL;
}

static json_t *way_json(const bandwidth_way *w)
{
    const spread s = spread_of(w->runs, BANDWIDTH_RUNS);
    return json_pack("{s:i, s:I, s:o}", "prefetch_level", w->level,
                     "ahead_bytes", (json_int_t)w->ahead_bytes, "gb_s", spread_json(&s, w->runs));
}

static json_t *rates_json(const bandwidth *b)
{
    return json_pack("{s:o, s:o, s:f}", "plain", way_json(&b->plain), "ahead", way_json(&b->ahead),
                     "gb_s", b->gb_s);
}

static json_t *row_json(const machine_view *v, const rate_row *row)
{
    return json_pack("{s:i, s:o, s:o, s:f}", "threads", row->n_thread,
                     "small_pages", rates_json(&row->small),
                     "huge_pages", v->huge ? rates_json(&row->huge) : json_null(),
                     "limit_gb_s", row->limit);
}

static json_t *kernels_json(void)
{
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n = kernels_here(sets);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) list = append(list, json_string(sets[i]->isa));
    return list;
}

static json_t *caches_json(const topology *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->n_cache; i++) {
        const topology_cache *c = &t->caches[i];
        list = append(list, json_pack("{s:i, s:I, s:i, s:i}", "level", c->level,
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
        list = append(list, json_pack("{s:i, s:s, s:i, s:I, s:I}", "id", n->id, "cpus", n->cpus,
                                      "n_cpu", n->n_cpu, "bytes", (json_int_t)n->bytes,
                                      "free_bytes", (json_int_t)n->free_bytes));
    }
    return list;
}

static json_t *gpus_json(const machine *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->n_gpu; i++) {
        const gpu_info *g = &m->gpus[i];
        list = append(list, json_pack("{s:s, s:i, s:i, s:i, s:I, s:I}", "name", g->name,
                                      "cc_major", g->cc_major, "cc_minor", g->cc_minor,
                                      "sm", g->n_sm, "vram_bytes", (json_int_t)g->vram_total,
                                      "vram_free_bytes", (json_int_t)g->vram_free));
    }
    return list;
}

static json_t *drive_json(const machine_view *v)
{
    char shown[1024];
    if (!v->file) return json_null();
    return json_pack("{s:s, s:f, s:f, s:b, s:f}", "file", ESC(shown, str_from(v->file)),
                     "straight_gb_s", v->drive.straight * 1e-9,
                     "bounced_gb_s", v->drive.bounced * 1e-9,
                     "bounced_is_worth_it", drive_wants_bounce(&v->drive),
                     "wait_ms", v->drive.wait * 1e3);
}

/* Takes rows over. */
static json_t *view_json(const machine_view *v, json_t *rows)
{
    const topology *t = &v->t;
    return json_pack("{s:s, s:i, s:i, s:i, s:b, s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:s, s:o, s:I, "
                     "s:o, s:o}",
                     "cpu", t->cpu, "cores", t->n_core, "cpus", t->n_cpu, "smt", t->smt,
                     "smt_off", t->smt_off, "usable_cores", v->m.n_core, "usable_cpus", v->m.n_cpu,
                     "kernels", kernels_json(), "caches", caches_json(t), "nodes", nodes_json(t),
                     "ram_bytes", (json_int_t)v->m.ram_total,
                     "ram_available_bytes", (json_int_t)v->m.ram_available,
                     "huge_pages", t->huge_pages, "gpus", gpus_json(&v->m),
                     "buffer_bytes", (json_int_t)v->buffer, "bandwidth", rows,
                     "drive", drive_json(v));
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* 1, 2, 4, ... and n itself. */
static int next_count(int now, int n)
{
    return now < n && 2 * now > n ? n : 2 * now;
}

static int measure(machine_view *v, int most)
{
    json_t *rows = json_array();
    err_ctx err;

    if (!v->args->json) print_heading(v);
    for (int n = 1; n <= most; n = next_count(n, most)) {
        rate_row row = { .n_thread = n };
        const int rc = measure_row(&row, v, &err);
        if (rc < 0) {
            json_decref(rows);
            return bench_model_fail("machine", rc, &err);
        }
        if (v->args->json) rows = append(rows, row_json(v, &row));
        else print_row(v, &row);
    }
    const int code = v->file ? measure_drive(v) : 0;
    if (code != 0 || !v->args->json) {
        if (code == 0 && v->file) print_drive(v);
        json_decref(rows);
        return code ? code : console_finish();
    }
    if (console_json(view_json(v, rows), JSON_COMPACT | JSON_REAL_PRECISION(6)))
        return console_finish();
    console_error("out of memory");
    return 1;
}

int cmd_bench_machine(int argc, char **argv)
{
    static machine_view v;
    machine_options opt = { .run.seconds = 0.2 };
    const bench_memory_args *args = &opt.run;
    pool *team;
    err_ctx err;
    int most, rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    v.args = args;
    v.file = opt.model;
    topology_read(&v.t, "");
    v.huge = !strcmp(v.t.huge_pages, "always") || !strcmp(v.t.huge_pages, "madvise");
    struct stat st = { 0 };
    if (v.file && stat(v.file, &st) < 0) {
        err_sys(&err, "cannot look at it");
        return console_fail(v.file, &err);
    }
    v.file_bytes = (uint64_t)st.st_size;
    if (machine_probe(&v.m, &err) < 0) return console_fail("machine", &err);
    if (v.t.n_cpu == 0) {                /* no /sys to be seen */
        v.t.n_cpu = v.m.n_cpu;
        v.t.n_core = v.m.n_core;
    }
    if ((rc = bench_memory_team(&team, args)) != 0) return rc;
    most = pool_threads(team);
    pool_free(team);
    if ((rc = bench_memory_bytes(&v.buffer, args, &v.t)) != 0) return rc;
    interrupt_install();
    if (!args->json) {
        print_cpu(&v);
        print_memory(&v);
    }
    return measure(&v, most);
}
