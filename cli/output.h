/* output.h - writes to a pipe or terminal whose reader may be slow or gone.
 *
 * Uses the file descriptor, because a signal makes a C stream lose its buffer. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "loader/base.h"

/* Writes n bytes. Waits for the reader until interrupted(): then ERR_STOPPED, with errno EINTR.
 * ERR_IO with errno after a failed write. */
int output_write(int fd, const void *data, size_t n);

/* Opens a file for writing, truncated or new; waits for the reader of a FIFO. The descriptor, or
 * < 0 as above. */
int output_open(const char *path);

#endif
