/* file_io.h - whole reads and writes, and files that are complete or absent.
 *
 * Messages do not name the file: the caller does. Any thread may call these. */
#ifndef LOADER_FILE_IO_H
#define LOADER_FILE_IO_H

#include <sys/types.h>

#include "loader/base.h"

/* Returns how many bytes were read: fewer than n only at the end of the file. */
ssize_t file_read(int fd, void *bytes, size_t n, err_ctx *err);
int file_write(int fd, const void *bytes, size_t n, err_ctx *err);

typedef int file_writer(void *ctx, int fd, err_ctx *err);

/* Has fn fill a temporary file next to path, which then replaces path in one step, after its bytes
 * are on the drive. It belongs to its owner alone unless mode, its permissions, is above 0. On
 * failure no temporary file is left, and what was at path stays. */
int file_replace(const char *path, int mode, file_writer *fn, void *ctx, err_ctx *err);

#endif
