/* output.h - writing to a reader that may be slow, gone, or never look.
 *
 * Straight to the file descriptor: a C stream that a signal interrupts has lost what it held. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "loader/base.h"

/* Writes all n bytes. Waits for the reader, but not once interrupted(): then ERR_STOPPED, and errno
 * is EINTR. ERR_IO with errno if it cannot be written at all. */
int output_write(int fd, const void *data, size_t n);

/* Opens a file to be written, empty or new; opening a FIFO waits, too. The descriptor, or < 0 as
 * above. */
int output_open(const char *path);

#endif
