/* prefix_writer.h - a background thread that writes the files of kept states.
 *
 * One file at a time. The thread does not read the tree: it gets the contents of a file, and the
 * owner polls for its end. The owner's thread calls all functions. */
#ifndef ENGINE_SESSION_PREFIX_WRITER_H
#define ENGINE_SESSION_PREFIX_WRITER_H

#include "engine/session/prefix_file.h"

typedef struct prefix_writer prefix_writer;

/* Borrows folder. The thread has the lowest priority. NULL: no thread is available. */
prefix_writer *prefix_writer_create(const char *folder);
void prefix_writer_free(prefix_writer *w);       /* NULL is fine; waits for a file under way */

/* Begins a file; prefix_writer_ended has returned true for the last one. Frees ids; borrows body
 * until prefix_writer_ended returns true. */
void prefix_writer_begin(prefix_writer *w, const prefix_file *f, int32_t *ids, const uint8_t *body);

/* True, once for each file, when it is finished: *f has both sums, *rc and *err the result of
 * prefix_file_write. */
bool prefix_writer_ended(prefix_writer *w, bool wait, prefix_file *f, int *rc, err_ctx *err);

#endif
