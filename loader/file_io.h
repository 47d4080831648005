/* file_io.h - complete reads and writes, and atomic replacement of a file.
 *
 * Messages do not contain the path; the caller prefixes it. Any thread may call these. */
#ifndef LOADER_FILE_IO_H
#define LOADER_FILE_IO_H

#include <sys/types.h>

#include "loader/base.h"

/* Returns the number of bytes read, which is below n only at the end of the file, or < 0. */
ssize_t file_read(int fd, void *bytes, size_t n, err_ctx *err);
int file_write(int fd, const void *bytes, size_t n, err_ctx *err);

typedef int file_writer(void *ctx, int fd, err_ctx *err);

/* Calls fn to write a temporary file next to path, syncs it and renames it to path. Permissions are
 * mode, or 0600 if mode is 0. On failure the temporary file is removed and path is unchanged. */
int file_replace(const char *path, int mode, file_writer *fn, void *ctx, err_ctx *err);

#endif
