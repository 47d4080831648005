/* cache_fixture.h - placements to run the same tests in: which processor computes, where experts
 * are. */
#ifndef TESTS_CACHE_FIXTURE_H
#define TESTS_CACHE_FIXTURE_H

#include "engine/engine.h"

typedef struct place {
    const char *name;
    bool gpu;
    bool planned;                        /* false: everything on that processor */
    int cpu_of_4;                        /* layers computed on the CPU, in quarters */
    bool head_in_ram;
    int hot_of_8;                        /* experts in VRAM, in eighths of a layer's */
    int whole_of_4;                      /* layers, in quarters, that have all of them there */
    bool changing;                       /* and these change */
    bool moved;                          /* experts are in RAM or in VRAM, not in both */
    bool no_lock;                        /* RAM that cannot be page-locked: nothing moves */
    bool disk;                           /* the others through a small cache from the file */
    cache_policy cache;                  /* which expert is evicted */
    int stage_ranges, stream_from;       /* prompts; parts 0: never streamed */
    int split_from;                      /* 0: never */
    double bus;                          /* its speed in the plan; 0: as fast as the memory */
    bool no_fetch, force_cpu, block, one_stream;         /* post-fetch */
    bool frozen;                         /* post-fetch without trials; every layer is logged */
} place;

enum { N_CPU_PLACES = 2, N_GPU_PLACES = 17, N_PLACES = 24 };
extern const place places[N_PLACES];     /* those of the CPU first, then those of the GPU; then
                                          * layers on both */

/* Moves e there. Whatever fails is a failed check. */
bool place_engine(engine *e, const model *m, const place *p);

/* Calls fn for each of n tiny models (names as "models/tiny-gptoss-f32") at each place that this
 * machine has; if the GPU is simulated, at one of `of`. A next-token block is used. index: a number
 * for each call. */
typedef void at_place(const model *m, engine *e, const place *p, int index);
void each_place(const char *const *models, size_t n, int of, at_place *fn);

/* A model of each family, and those with a tensor layout of their own. */
enum { N_FAMILY_MODELS = 9 };
extern const char *const family_models[N_FAMILY_MODELS];

#endif
