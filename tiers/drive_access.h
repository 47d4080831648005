/* drive_access.h - how fast a drive reads parts of a file into scattered memory.
 *
 * The memory is new to the drive, as a cache of experts is in its first round, and in all later
 * ones if it is large: virtual drives that are slow at first stayed slow with 17 GB and became fast
 * with 6. */
#ifndef TIERS_DRIVE_ACCESS_H
#define TIERS_DRIVE_ACCESS_H

#include "tiers/pool.h"
#include "tiers/reader.h"

enum { DRIVE_MEMORY = 512 << 20 };       /* that reads are spread over, if there is room */

typedef struct drive_task {
    const char *path;
    uint64_t file_bytes;                 /* of it, from the beginning */
    uint64_t one;                        /* bytes of a read, rounded up to pages */
    uint64_t memory_bytes;               /* DRIVE_MEMORY is enough */
    pool *team;                          /* that touches the memory first */
    double seconds;
    int at_once;                         /* reads that somebody waits for with nothing else under
                                          * way: those of an expert; READER_DEPTH at most, 0: the
                                          * wait is not measured */
    keep_going_fn *watch;                  /* or NULL */
    void *ctx;
} drive_task;

typedef struct drive_speed {
    double speed;                        /* bytes per second */
    double wait;                         /* s that at_once reads take beyond their bytes; within
                                          * the bounds below */
} drive_speed;

/* A file in the system's cache, and a disk that turns: what is measured outside is an accident. */
#define DRIVE_LEAST_WAIT_S 1e-6
#define DRIVE_MOST_WAIT_S 20e-3

uint64_t drive_least_memory(uint64_t one);

/* Reads from anywhere in the file. ERR_RANGE if file or memory is too small. */
int drive_measure(drive_speed *out, const drive_task *t, err_ctx *err);

#endif
