/* prefix_writer.h - a thread that writes the files of kept states while their owner goes on.
 *
 * One file at a time. The thread knows nothing of the tree: it is given what goes into a file, and
 * its owner asks now and then whether that is done. All functions are the owner's. */
#ifndef ENGINE_SESSION_PREFIX_WRITER_H
#define ENGINE_SESSION_PREFIX_WRITER_H

#include "engine/session/prefix_file.h"

typedef struct prefix_writer prefix_writer;

/* Borrows folder. The thread gives way to all others. NULL: there are no more threads. */
prefix_writer *prefix_writer_create(const char *folder);
void prefix_writer_free(prefix_writer *w);       /* NULL is fine; waits for a file under way */

/* Begins a file; none is under way, and the last one's end was told. Takes ids; borrows body until
 * the end is told. */
void prefix_writer_begin(prefix_writer *w, const prefix_file *f, int32_t *ids, const uint8_t *body);

/* True, once for each file, when it is finished: then *f has both sums, and *rc and *err what
 * prefix_file_write said. */
bool prefix_writer_ended(prefix_writer *w, bool wait, prefix_file *f, int *rc, err_ctx *err);

#endif
