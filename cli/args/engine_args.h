/* engine_args.h - the flags that say how a model is run: context, KV store, threads.
 *
 * Shared by the verbs that talk: put an engine_args into the verb's options, call engine_args_init
 * before args_parse and engine_args_read after it, and add to the verb's groups:
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
    bool exact, yarn_rounded;            /* flags of moe-bench alone */
    int64_t experts_used;                /* 0: as the model says. Whoever offers the flag says what
                                          * it costs: cli/cost/experts_cost.h */
    bool skip_missing;                   /* likewise: session_options */
} engine_args;

enum { ENGINE_N_OPTION = 9 };
extern const arg_option engine_arg_options[ENGINE_N_OPTION];

void engine_args_init(engine_args *a);

/* Cores that threads are counted against: this machine's, or as many as MOE_CORES says, to try out
 * a larger one. */
int engine_args_cores(void);

/* Fills all three; so->ctx is 0 if --ctx was not given, snapshots are the caller's to add. 0, or 2,
 * the exit code, after one line on stderr. */
int engine_args_read(engine_options *eo, session_options *so, device_choice *device,
                     const engine_args *a);

#endif
