/* postfetch.h - options of post-fetch: down matrices that cross the bus while the CPU computes
 * gate and up. What it is and does: expert_server.h. */
#ifndef MOE_POSTFETCH_H
#define MOE_POSTFETCH_H

#include "loader/base.h"

typedef struct postfetch_options {
    bool off;                            /* the CPU computes cold experts whole */
    bool always;                         /* never tried without */
    bool force_cpu;                      /* fetch, but still compute on the CPU: shows what fetching
                                          * costs */
    bool block;                          /* wait for a slab that is late, instead of computing it */
    bool one_stream;                     /* fetch in the stream of the other kernels */
    int max_transfers;                   /* slabs fetched in a layer; 0: as many as pay */
    uint64_t pad_bytes;                  /* VRAM for them; 0: what the plan says */
    bool no_prediction;                  /* predicted experts are not read ahead */
    bool prediction_always;              /* never tried without */
    bool frozen;                         /* decide once, from the plan; never measure again */
    bool debug;                          /* a line about every trial, and about every layer
                                          * that has slabs fetched */
} postfetch_options;

#endif
