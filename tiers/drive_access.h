/* drive_access.h - how fast a drive reads parts of a file into scattered memory: straight there,
 * and through a bounce buffer.
 *
 * The memory is new to the drive, as a cache of experts is in its first round, and in all later
 * ones if it is large: virtual drives that are slow at first stayed slow with 17 GB and became fast
 * with 6. A bounce buffer that is not needed costs a tenth of the speed, a missing one half. */
#ifndef TIERS_DRIVE_ACCESS_H
#define TIERS_DRIVE_ACCESS_H

#include "tiers/reader.h"

enum { DRIVE_MEMORY = 512 << 20 };       /* that reads are spread over, if there is room */

typedef struct drive_task {
    const char *path;
    uint64_t file_bytes;                 /* of it, from the beginning */
    uint64_t one;                        /* bytes of a read, rounded up to pages */
    uint64_t memory_bytes;               /* bounce buffer included: without room for it, reads are
                                          * measured straight alone. DRIVE_MEMORY is enough */
    pool *team;                          /* that carries from the bounce buffer */
    double seconds;                      /* each way */
    int at_once;                         /* reads that somebody waits for with nothing else under
                                          * way: those of an expert; READER_DEPTH at most, 0: the
                                          * wait is not measured */
    keep_going_fn *watch;                  /* or NULL */
    void *ctx;
} drive_task;

typedef struct drive_speed {
    double straight, bounced;             /* bytes per second; bounced 0: no memory for it */
    double wait;                          /* s that at_once reads take beyond their bytes, in the
                                           * way that pays; within the bounds below */
} drive_speed;

/* A file in the system's cache, and a disk that turns: what is measured outside is an accident. */
#define DRIVE_LEAST_WAIT_S 1e-6
#define DRIVE_MOST_WAIT_S 20e-3

uint64_t drive_least_memory(uint64_t one);       /* without a bounce buffer */

/* Reads from anywhere in the file, both ways alternating, with the same number of jobs at a time.
 * ERR_RANGE if file or memory is too small. */
int drive_measure(drive_speed *out, const drive_task *t, err_ctx *err);

/* Carrying takes time of the threads and of memory: true only for a clear gain. */
bool drive_wants_bounce(const drive_speed *s);

#endif
