/* test_cache_cost.c - moe-run with --skip-missing on a GPU: what is said, and that
 * it is true. The verbs are called as the program calls them; on a simulated GPU, so that this runs
 * everywhere. Without any, the option has no effect, which is said. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cuda/gpu.h"
#include "engine/models/model.h"
#include "engine/plan/planning.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"
#include "tiers/speeds.h"

enum { MAX_ARGS = 32 };

static const char *const files[] = { "tests/models/demo-qwen3next-mtp.gguf",
                                     "tests/models/demo-gptoss-MXFP4.gguf" };

static char folder[512];                 /* whatever the program keeps, and what it prints */

/* ---- a call of the program ------------------------------------------------------------------- */

typedef struct said { char *out, *err; } said;

static char *slurp(int fd)
{
    struct stat st;
    const size_t n = fstat(fd, &st) == 0 ? (size_t)st.st_size : 0;
    char *text = test_alloc(n + 1, 1);
    CHECK(pread(fd, text, n, 0) == (ssize_t)n);
    text[n] = '\0';
    close(fd);
    return text;
}

static int open_text(const char *name)
{
    char path[600];
    return open(test_path(path, sizeof path, "%s/%s", folder, name), O_RDWR | O_CREAT | O_TRUNC,
                0600);
}

/* args: one string, split at spaces. Returns the exit code. */
static int call(said *s, int (*verb)(int, char **), const char *args)
{
    char copy[1024], *argv[MAX_ARGS + 1] = { "run" };
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", args);
    for (char *at = strtok(copy, " "); at && argc < MAX_ARGS; at = strtok(NULL, " "))
        argv[argc++] = at;
    fflush(NULL);
    const int out = open_text("out"), err = open_text("err"), was_out = dup(1), was_err = dup(2);
    CHECK(dup2(out, 1) == 1 && dup2(err, 2) == 2);
    const int code = verb(argc, argv);
    fflush(NULL);
    dup2(was_out, 1);
    dup2(was_err, 2);
    close(was_out);
    close(was_err);
    *s = (said){ slurp(out), slurp(err) };
    return code;
}

static void said_free(said *s)
{
    mem_free(s->out);
    mem_free(s->err);
}

/* After a call with these arguments, text is there. */
static void see(int (*verb)(int, char **), const char *args, bool on_stdout, const char *text)
{
    said s;
    const int code = call(&s, verb, args);
    CHECK_MSG(code == 0 && strstr(on_stdout ? s.out : s.err, text),
              "%s: exit code %d, expected '%s' in '%s' '%s'", args, code, text, s.out, s.err);
    said_free(&s);
}

/* What the line says that the option costs; NaN if there is none. */
static double cost_of(const char *args)
{
    static const char line[] = ": --skip-missing: KL ";
    said s;
    const int code = call(&s, cmd_run, args);
    const char *at = strstr(s.err, line);
    CHECK_MSG(code == 0 && at && strstr(at, " nats per token over the last 64 of 256 tokens"),
              "%s: exit code %d, expected '%s' in '%s'", args, code, line, s.err);
    const double kl = at ? strtod(at + strlen(line), NULL) : (double)NAN;
    said_free(&s);
    return kl;
}

/* ---- with a cache ---------------------------------------------------------------------------- */

/* Arguments that let sizes decide about the plan, never measured speeds. */
static const char *line_of(char *dst, size_t cap, const char *path, uint64_t bytes,
                           const char *flags)
{
    snprintf(dst, cap, "-m %s --ctx 300 -p Hello --raw -n 8 --temp 0 -q --device cuda "
             "--deterministic --threads 1 --expert-cache %llu %s", path, (unsigned long long)bytes,
             flags);
    return dst;
}

/* So nothing needs to be measured: the program finds figures of this machine, of one thread. */
static void keep_speeds(const model *m)
{
    speeds s = { .vram_read = 1e12, .pcie_in = 2e10, .pcie_out = 2e10, .pull = 2e10,
                 .pull_busy = 2e10, .cpu = 1e10, .cpu_busy = 1e10, .cpu_dense = 1e10,
                 .cpu_many = 4e10, .gpu_macs = 5e10, .hop = 1e-5, .disk = 3e9,
                 .layer_dense = 2e-5, .layer_hot = 8e-6, .layer_cpu = 3e-5, .disk_wait = 2e-4 };
    char path[600];
    gpu_info info;
    speeds_key key;
    err_ctx err = { 0 };
    snprintf(path, sizeof path, "%s/moe", folder);
    (void)mkdir(path, 0700);
    for (int i = 0; i < SPEEDS_GEMM_POINTS; i++) s.gemm_own[i] = 5e10;
    CHECK_MSG(gpu_describe(&info, 0, &err) == 0 &&
              planning_key(&key, m, 1, NULL, info.name, &err) == 0 &&
              speeds_path(path, sizeof path, folder, NULL) &&
              speeds_save(&s, 1, path, &key, &err) == 0, "%s", err.msg);
}

static void test_costs(const char *path, uint64_t experts)
{
    char args[900];
    const uint64_t half = experts / 2, most = experts / 8 * 7;
    line_of(args, sizeof args, path, half, "--skip-missing");
    const double kl_half = cost_of(args);
    line_of(args, sizeof args, path, most, "--skip-missing");
    const double kl_most = cost_of(args);
    CHECK_MSG(kl_most < kl_half && kl_half < 20, "KL %g with most of them in VRAM, %g with half",
              kl_most, kl_half);
    CHECK(kl_half > 0);
}

/* Where else it is seen. */
static void test_views(const char *path, uint64_t experts)
{
    char args[900];
    const uint64_t half = experts / 2;
    said s;
    line_of(args, sizeof args, path, half, "--skip-missing --experts-used 3 --json");
    CHECK(call(&s, cmd_run, args) == 0);
    CHECK_MSG(strstr(s.err, ": --experts-used 3 (the model's number: 4): KL 0.") &&
              strstr(s.err, ": --skip-missing: KL 0."), "'%s'", s.err);
    CHECK_MSG(strstr(s.out, "\"skip_missing\": true, \"cache_kl\": 0."), "'%s'", s.out);
    said_free(&s);
    line_of(args, sizeof args, path, half, "--json");
    see(cmd_run, args, true, "\"skip_missing\": false, \"cache_kl\": null");
    snprintf(args, sizeof args, "-m %s --ctx 300 --device cuda --expert-cache %llu --skip-missing",
             path, (unsigned long long)half);
    see(cmd_plan, args, false, "--skip-missing changes answers; moe-run measures by how much");

    /* no effect, and why */
    line_of(args, sizeof args, path, 2 * experts, "--skip-missing");
    see(cmd_run, args, false, "--skip-missing has no effect: all experts are in VRAM");
    line_of(args, sizeof args, path, half, "--cache-policy off --skip-missing");
    see(cmd_run, args, false, "--skip-missing has no effect: experts in VRAM do not change places");
    line_of(args, sizeof args, path, 0, "--skip-missing");
    see(cmd_run, args, false, "--skip-missing has no effect: experts in VRAM do not");
}

/* ---- without one ----------------------------------------------------------------------------- */

static void test_cpu(const char *path)
{
    char args[900];
    snprintf(args, sizeof args, "-m %s --ctx 64 -p Hello --raw -n 2 -q --device cpu --threads 1 "
             "--skip-missing", path);
    see(cmd_run, args, false, "--skip-missing has no effect: no GPU is used");
    snprintf(args, sizeof args, "-m %s --device cpu --skip-missing", path);
    see(cmd_plan, args, false, "--skip-missing has no effect: no GPU is used");
    snprintf(args, sizeof args, "-m %s --device cpu --skip-missing --json", path);
    see(cmd_plan, args, true, "\"skip_missing\":true,");
}

int main(int argc, char **argv)
{
    test_begin("cache cost", argc, argv);
    if (CHECK(mkdtemp(test_temp(folder, sizeof folder)))) {
        setenv("XDG_CACHE_HOME", folder, 1);
        setenv("XDG_STATE_HOME", folder, 1);
        if (gpu_count() == 0) test_skip("no GPU: the option has no effect");
        for (size_t i = 0; i < ARRAY_LEN(files); i += (size_t)sim_gpu_step(1, 2)) {
            model_fixture f;
            model_bytes bytes = { 0 };
            const bool ok = model_fixture_open(&f, files[i]);
            if (ok) model_count_bytes(&bytes, f.m);
            if (ok && gpu_count() > 0) keep_speeds(f.m);
            model_fixture_close(&f);
            test_cpu(files[i]);
            if (ok && gpu_count() > 0) {
                if (i > 0 || !sim_gpu() || test_is_long()) test_costs(files[i], bytes.experts);
                if (i == 0) test_views(files[i], bytes.experts);
            }
        }
        test_remove(folder);
    }
    return test_end();
}
