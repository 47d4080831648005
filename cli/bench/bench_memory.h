/* bench_memory.h - what the verbs that measure this machine share: flags, and how much memory. */
#ifndef CLI_BENCH_BENCH_MEMORY_H
#define CLI_BENCH_BENCH_MEMORY_H

#include "cli/args/args.h"
#include "tiers/pool.h"
#include "tiers/topology.h"

typedef struct bench_memory_args {
    int64_t threads;                     /* 0: one per physical core */
    double seconds;                      /* for each figure; set before args_parse */
    uint64_t buffer;                     /* bytes; 0: enough */
    bool json;
} bench_memory_args;

/* For a verb's groups: { "Measuring:", bench_memory_options, BENCH_MEMORY_N_OPTION, ... }. */
enum { BENCH_MEMORY_N_OPTION = 4 };
extern const arg_option bench_memory_options[BENCH_MEMORY_N_OPTION];

/* All of these return 0 or the exit code, and then have said why on stderr, in one line. */

/* --threads of them. */
int bench_memory_team(pool **out, const bench_memory_args *a);

/* --buffer, or enough to tell memory from cache. */
int bench_memory_bytes(size_t *out, const bench_memory_args *a, const topology *t);

/* Whether that many bytes are free; the message says what needs them. */
int bench_memory_fits(uint64_t bytes, const char *what);

#endif
