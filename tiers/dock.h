/* dock.h - a little memory where a drive's pieces come in, and the threads that carry them to where
 * they belong.
 *
 * For drives that write much faster to a few megabytes, again and again, than to memory all over
 * the place: virtual ones do, whose other side maps or caches what it writes to. What that is worth
 * on a machine, drive.h measures. Owned and called by one thread at a time, the team's. */
#ifndef TIERS_DOCK_H
#define TIERS_DOCK_H

#include "tiers/pool.h"

typedef struct dock dock;

/* n berths of so many bytes, whole small pages. Borrows team. */
int dock_create(dock **out, pool *team, int n, uint32_t berth_bytes, err_ctx *err);
void dock_free(dock *d);                 /* NULL is fine */

uint8_t *dock_berth(const dock *d, int i);
void *dock_memory(const dock *d, uint64_t *bytes);       /* of all berths */

/* Bytes from .. of a berth belong to memory at to, where the next dock_carry brings them; one such
 * word for each berth. */
void dock_unload(dock *d, int berth, uint64_t from, uint64_t bytes, uint8_t *to);
void dock_carry(dock *d);

#endif
