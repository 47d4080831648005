/* perf_counts.h - counts of a session's experts: their tiers, bytes on each link, seconds, and
 * decisions that failed.
 *
 * Counts are of passes: single tokens, tokens of several sessions together, drafts. Where a GPU
 * asks the host for cold experts, slots, bytes and seconds are of single tokens alone. The caches
 * of experts in VRAM and in RAM belong to the engine: their counts are of all its sessions. Plain
 * numbers, no state. */
#ifndef ENGINE_PERF_COUNTS_H
#define ENGINE_PERF_COUNTS_H

#include "loader/base.h"

typedef enum perf_level {
    PERF_UPDATE,                         /* the default: sums over layers */
    PERF_OFF,                            /* the clock is not read in layers: their seconds are 0,
                                          * and usage profiles get no times */
    PERF_FULL                            /* sums, and each layer by itself */
} perf_level;

/* One layer. hot + cold are tokens * n_used. */
typedef struct perf_layer {
    uint64_t calls, quiet;               /* 0 where all experts of the layer are in one tier */
    uint64_t hot, cold;
    double cold_s;                       /* from its questions to their replies */
} perf_layer;

typedef struct perf_counts {
    int n_layer, n_used;                 /* of the model: layers, and experts of a token in each */
    uint64_t passes, rows;               /* rows: sessions, summed over passes */
    uint64_t tokens, prompt_tokens;      /* of passes; of other batches */

    /* layers with experts in two tiers: once for each token */
    uint64_t calls;
    uint64_t quiet;                      /* of these: all chosen experts hit, so no question */

    uint64_t read_experts;               /* by the CPU's layers: one that several tokens of a pass
                                          * chose counts once */

    /* slots: hot + cold is tokens * n_used in each layer that has experts */
    uint64_t hot, cold;                  /* the expert was in VRAM; it was not, and of these: */
    uint64_t on_cpu, down_fetched, all_fetched;  /* no slab, the down slab, all slabs fetched */

    /* bytes of experts, by link */
    uint64_t vram_bytes, cpu_bytes;      /* read by the GPU from VRAM, for single tokens alone; by
                                          * the CPU from RAM */
    uint64_t fetch_bytes, upload_bytes;  /* over the bus: post-fetch for one token; to frames */
    uint64_t drive_bytes;                /* prompts included */

    /* seconds */
    double ask_s;                        /* the host waits for questions: the device's own time */
    double cold_s;                       /* from questions to replies; included in that: */
    double late_s;                       /* waiting for slabs that were about to arrive */
    double fetch_s;                      /* slabs crossing the bus, by the device's clock. The last
                                          * question's are counted with the next */
    /* Part of fetch_s during which the CPU computed. The device reports how long it fetched, not
     * when it began; the host knows whether fetching had ended when it replied. So there are two
     * bounds. */
    double overlap_least_s, overlap_most_s;
    double join_s;                       /* the host waits for the token's end after the last reply.
                                          * The device's waits for replies are not measured: they
                                          * are within cold_s */

    /* decisions that failed */
    uint64_t late;                       /* fetched slabs that came too late: the CPU computed */
    uint64_t not_locked;                 /* slots without a fetch because their experts are not in
                                          * page-locked RAM; all cold ones if there is none */
    uint64_t failed_uploads;
    uint64_t refused;                    /* missing experts less valuable than those in VRAM */

    /* VRAM frames: choices of all tokens but those of streamed prompts. A token's are counted when
     * the next one begins */
    uint64_t frame_hits, frame_misses;
    uint64_t uploads, swaps;             /* experts copied to frames between tokens; by prompts */
    uint64_t evictions;

    /* RAM as a cache of the drive; prompts included */
    uint64_t ram_hits, ram_misses;
    double ram_wait_s;                   /* for the drive */
} perf_counts;

/* Bounds for the seconds in which the device fetched while the CPU was busy. It fetched for
 * fetch_s, the CPU was busy for busy_s, and in up to unsure_s the device may have fetched while the
 * CPU was idle. */
void perf_overlap(double *least, double *most, double fetch_s, double busy_s, double unsure_s);

#endif
