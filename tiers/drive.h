/* drive.h - how fast a drive gives pieces of a file to memory all over the place, as a cache of
 * experts has it: straight there, and by way of a dock. */
#ifndef TIERS_DRIVE_H
#define TIERS_DRIVE_H

#include "tiers/reader.h"

enum { DRIVE_MEMORY = 512 << 20 };       /* that reads are spread over, if there is room */

typedef struct drive_speed {
    double straight, docked;             /* bytes per second; docked 0: no memory for a dock */
} drive_speed;

/* Least memory for reads of one bytes. */
uint64_t drive_least_memory(uint64_t one);

/* Random reads of one bytes (rounded to pages) from the file, as many in flight as a reader has by
 * itself, for so many seconds each way. memory_bytes: DRIVE_MEMORY is enough; ERR_RANGE if it, or
 * the file, is too small. */
int drive_measure(drive_speed *out, const char *path, uint64_t file_bytes, uint64_t one,
                  uint64_t memory_bytes, pool *team, double seconds, err_ctx *err);

/* Carrying takes the threads' time, and memory's: only for a clear gain. */
bool drive_wants_dock(const drive_speed *s);

#endif
