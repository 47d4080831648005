/* drive_access.h - measures how fast a drive reads ranges of a file into scattered memory.
 *
 * Each read goes to memory that no earlier read used, as in a cache of experts that fills. A large
 * cache stays that way: virtual drives whose first reads into memory are slow became fast with a
 * cache of 6 GB but not with 17 GB. */
#ifndef TIERS_DRIVE_ACCESS_H
#define TIERS_DRIVE_ACCESS_H

#include "tiers/pool.h"
#include "tiers/reader.h"

enum { DRIVE_MEMORY = 512 << 20 };       /* bytes for the reads, if RAM suffices */

typedef struct drive_task {
    const char *path;
    uint64_t file_bytes;                 /* reads stay within the first file_bytes */
    uint64_t one;                        /* bytes of a read, rounded up to pages */
    uint64_t memory_bytes;               /* DRIVE_MEMORY is enough */
    pool *team;                          /* touches the memory first */
    double seconds;
    int at_once;                         /* reads of one wait, as for an expert: at most
                                          * READER_DEPTH; 0: the wait is not measured */
    keep_going_fn *watch;                /* or NULL */
    void *ctx;
} drive_task;

typedef struct drive_speed {
    double speed;                        /* bytes per second */
    double wait;                         /* latency of at_once reads in s, without the time for
                                          * their bytes; within the bounds below */
} drive_speed;

/* From a file in the page cache to a rotating disk; other measurements are clamped. */
#define DRIVE_LEAST_WAIT_S 1e-6
#define DRIVE_MOST_WAIT_S 20e-3

uint64_t drive_least_memory(uint64_t one);

/* Reads from anywhere in the file. ERR_RANGE if file or memory is too small. */
int drive_measure(drive_speed *out, const drive_task *t, err_ctx *err);

#endif
