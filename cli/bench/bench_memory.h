/* bench_memory.h - options and memory checks of the verbs that measure this machine. */
#ifndef CLI_BENCH_BENCH_MEMORY_H
#define CLI_BENCH_BENCH_MEMORY_H

#include "cli/args/args.h"
#include "tiers/pool.h"
#include "tiers/topology.h"

typedef struct bench_memory_args {
    int64_t threads;                     /* 0: one per physical core */
    double seconds;                      /* for each figure; set before args_parse */
    uint64_t buffer;                     /* bytes; 0: chosen by bench_memory_bytes */
    bool json;
} bench_memory_args;

/* For a verb's groups: { "Measuring:", bench_memory_options, BENCH_MEMORY_N_OPTION, ... }. */
enum { BENCH_MEMORY_N_OPTION = 4 };
extern const arg_option bench_memory_options[BENCH_MEMORY_N_OPTION];

/* Functions return 0, or the exit code after one line on stderr. */

/* A team of --threads threads. */
int bench_memory_team(pool **out, const bench_memory_args *a);

/* --buffer, or 8 times the last cache, at least 512 MiB, so that reads miss the caches. */
int bench_memory_bytes(size_t *out, const bench_memory_args *a, const topology *t);

/* Checks that so many bytes are available; the message names their user. */
int bench_memory_fits(uint64_t bytes, const char *user);

#endif
