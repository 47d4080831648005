/* perf_counts.h - what a session did with its experts, in numbers: where they were, what crossed
 * which link, what took how long, and what did not go as planned.
 *
 * Counts are of tokens that came one at a time, unless it says otherwise. Experts in VRAM that make
 * room for others, and those in RAM before a drive, belong to the engine: their counts are of all
 * its sessions. Plain numbers, no state. */
#ifndef ENGINE_PERF_COUNTS_H
#define ENGINE_PERF_COUNTS_H

#include "loader/base.h"

typedef enum perf_level {
    PERF_UPDATE,                         /* what is counted anyway */
    PERF_OFF,                            /* the clock does not run in layers: seconds of layers are
                                          * 0, and profiles of experts get no times */
    PERF_FULL                            /* each layer by itself, too */
} perf_level;

/* One layer. hot + cold are tokens * n_used. */
typedef struct perf_layer {
    uint64_t calls, quiet;               /* 0 where the layer has all of its experts in one place */
    uint64_t hot, cold;
    double cold_s;                       /* from its questions to their replies */
} perf_layer;

typedef struct perf_counts {
    int n_layer, n_used;                 /* of the model: layers, and experts of a token in each */
    uint64_t tokens, prompt_tokens;      /* that came one at a time; that came in batches */

    /* layers with experts in two places: once for each token */
    uint64_t calls;
    uint64_t quiet;                      /* of these: had all in VRAM, and asked nobody */

    /* slots: hot + cold is tokens * n_used in each layer that has experts */
    uint64_t hot, cold;                  /* expert was in VRAM; was not, and of these: */
    uint64_t on_cpu, down_fetched, all_fetched;  /* by what crossed the bus: nothing, down, all */

    /* bytes of experts, by link */
    uint64_t vram_bytes, cpu_bytes;      /* read by the GPU from VRAM; by the CPU from RAM */
    uint64_t fetch_bytes, upload_bytes;  /* over the bus: for one token, post-fetch; to stay */
    uint64_t drive_bytes;                /* prompts, too */

    /* seconds */
    double ask_s;                        /* the host waiting for questions: the device's own time */
    double cold_s;                       /* the cold lane: from questions to replies; in that: */
    double late_s;                       /* waiting for slabs that were nearly there */
    double fetch_s;                      /* slabs crossing the bus, by the device's clock. The last
                                          * question's are counted with the next */
    /* Of that, while the cores computed. The device tells how long it fetched, not when it began;
     * the host saw whether fetching was over when it replied. So there are two bounds. */
    double overlap_least_s, overlap_most_s;
    double join_s;                       /* the host waiting for the token's end after the last
                                          * reply. How long the device waits for replies nobody
                                          * tells: it is within cold_s */

    /* what was meant to be otherwise */
    uint64_t late;                       /* fetched slabs that came too late: the CPU computed */
    uint64_t not_locked;                 /* slots of which nothing was fetched because they are not
                                          * in page-locked RAM; all cold ones if there is none */
    uint64_t failed_uploads;
    uint64_t refused;                    /* missing experts not worth a place in VRAM */

    /* places in VRAM: choices of all tokens but those of streamed prompts. A token's are counted
     * when the next one begins */
    uint64_t place_hits, place_misses;
    uint64_t uploads, swaps;             /* experts brought in between tokens; by prompts */
    uint64_t evictions;

    /* experts in RAM before a drive; prompts, too */
    uint64_t ram_hits, ram_misses;
    double ram_wait_s;                   /* for the drive */
} perf_counts;

/* How long the device fetched while the cores were busy, at least and at most: it fetched for
 * fetch_s, they were busy for busy_s, and for unsure_s it may have fetched while they were not. */
void perf_overlap(double *least, double *most, double fetch_s, double busy_s, double unsure_s);

#endif
