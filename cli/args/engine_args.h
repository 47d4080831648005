/* engine_args.h - options of the model: file, context, KV type, threads, device.
 *
 * Put an engine_args into the verb's options, call engine_args_init before args_parse and
 * engine_args_read after it, and add to the verb's groups:
 * { "Model:", engine_arg_options, ENGINE_N_OPTION, offsetof(..., engine) }. */
#ifndef CLI_ARGS_ENGINE_ARGS_H
#define CLI_ARGS_ENGINE_ARGS_H

#include "cli/args/args.h"
#include "cli/placement.h"
#include "engine/engine.h"

typedef struct engine_args {
    const char *model;                   /* NULL: the demo */
    int64_t ctx, chunk, threads;         /* 0: not given */
    const char *kv, *isa;
    const char *device;                  /* "cpu", "cuda", "auto"; NULL: cpu */
    bool exact, yarn_rounded;            /* of moe-bench alone */
    int64_t experts_used;                /* 0: the model's number. The verb prints the cost:
                                          * cli/cost/experts_cost.h */
    bool skip_missing;                   /* likewise: cli/cost/cache_cost.h */
    const char *drafts;                  /* "on"; "lookup": without the model's next-token block;
                                          * "off", NULL */
} engine_args;

enum { ENGINE_N_OPTION = 10 };
extern const arg_option engine_arg_options[ENGINE_N_OPTION];

void engine_args_init(engine_args *a);

/* Cores of this machine, or MOE_CORES, which simulates a larger one. */
int engine_args_cores(void);

/* Fills so, and of where engine, device and mtp; so->ctx is 0 without --ctx, and the caller sets
 * so->n_snapshot. 0, or 2, the exit code, after one line on stderr. */
int engine_args_read(placement_options *where, session_options *so, const engine_args *a);

#endif
