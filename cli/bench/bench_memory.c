/* bench_memory.c - options of the verbs that measure this machine. */
#include "cli/bench/bench_memory.h"

#include "cli/console.h"
#include "tiers/available_memory.h"
#include "tiers/bandwidth.h"

#define FIELD(f) offsetof(bench_memory_args, f)
const arg_option bench_memory_options[BENCH_MEMORY_N_OPTION] = {
    { "threads", 't', ARG_THREADS, FIELD(threads), "N", "MOE_THREADS", 0, 0,
      "Threads of the CPU. Default: one per physical core" },
    { "seconds", 0, ARG_FLOAT, FIELD(seconds), "S", NULL, 0.001, 10,
      "Time for each figure, a median. Default: 0.2; 0.5 for machine" },
    { "buffer", 0, ARG_SIZE, FIELD(buffer), "SIZE", NULL, 0, 0,
      "Memory to read. Default: 8 times the last cache, 512M or more" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0, "JSON on stdout instead of a table" },
};

int bench_memory_team(pool **out, const bench_memory_args *a)
{
    err_ctx err;
    const int rc = pool_create(out, (int)a->threads, &err);
    if (rc == 0) return 0;
    console_error("--%s", err.msg);      /* "threads: 99 is not within ..." */
    return rc == ERR_RANGE ? 2 : 1;
}

int bench_memory_bytes(size_t *out, const bench_memory_args *a, const topology *t)
{
    uint64_t room;
    const char *whose;
    err_ctx err;
    *out = (size_t)a->buffer;
    if (a->buffer > 0) return bench_memory_fits(a->buffer, "--buffer");
    if (available_memory(&room, &whose, &err) < 0 || bandwidth_bytes(out, t, room, &err) < 0)
        return console_fail("memory", &err);
    return 0;
}

int bench_memory_fits(uint64_t bytes, const char *user)
{
    uint64_t available;
    const char *whose;
    char need[32], left[32];
    err_ctx err;
    if (available_memory(&available, &whose, &err) < 0) return console_fail("memory", &err);
    if (bytes <= available) return 0;
    console_error("%s: needs %s, but %s are available (%s)", user,
                  text_bytes(need, sizeof need, bytes), text_bytes(left, sizeof left, available),
                  whose);
    return 1;
}
