/* bounce_buffer.h - a little memory that a drive's reads go to, and the threads that carry the
 * bytes to where they belong.
 *
 * For drives that write much faster to the same few megabytes than to scattered memory: virtual
 * drives do, whose host maps or caches what it writes to. drive_access.h measures what that is
 * worth on a machine. Owned and called by one thread at a time: the team's, unless it carries
 * alone. */
#ifndef TIERS_BOUNCE_BUFFER_H
#define TIERS_BOUNCE_BUFFER_H

#include "tiers/pool.h"

typedef struct bounce_buffer bounce_buffer;

/* n cells of cell_bytes each, whole small pages. Borrows team. */
int bounce_buffer_create(bounce_buffer **out, pool *team, int n, uint32_t cell_bytes, err_ctx *err);
void bounce_buffer_free(bounce_buffer *d);                 /* NULL is fine */

uint8_t *bounce_buffer_cell(const bounce_buffer *d, int i);
void *bounce_buffer_memory(const bounce_buffer *d, uint64_t *bytes);       /* of all cells */

/* Bytes from .. from + bytes - 1 of a cell belong to memory at `to`, where the next
 * bounce_buffer_flush brings them, by the team or by its caller alone; one call for each cell. */
void bounce_buffer_assign(bounce_buffer *d, int cell, uint64_t from, uint64_t bytes, uint8_t *to);
void bounce_buffer_flush(bounce_buffer *d, bool alone);

#endif
