/* postfetch.h - options of post-fetch, which copies down matrices to VRAM while the CPU computes
 * gate and up (engine/gpu/expert_server.h). */
#ifndef MOE_POSTFETCH_H
#define MOE_POSTFETCH_H

#include "loader/base.h"

typedef struct postfetch_options {
    bool off;                            /* the CPU computes cold experts whole */
    bool always;                         /* no trials without post-fetch */
    bool force_cpu;                      /* fetch, but compute on the CPU: measures the cost of
                                          * fetching */
    bool block;                          /* wait for a slab that is late, instead of computing it */
    bool one_stream;                     /* fetch in the stream of the other kernels */
    int max_transfers;                   /* limit of slabs fetched in a layer; 0: no limit */
    uint64_t pad_bytes;                  /* VRAM for them; 0: as planned */
    bool no_prediction;                  /* predicted experts are not read ahead */
    bool prediction_always;              /* no trials without prediction */
    bool frozen;                         /* decide once, from the plan; never measure again */
    bool debug;                          /* a line about every trial, and about every layer
                                          * that has slabs fetched */
} postfetch_options;

#endif
