/* file_io.c - read and write loops that retry after signals and short counts; file replacement. */
#include "loader/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ssize_t file_read(int fd, void *bytes, size_t n, err_ctx *err)
{
    uint8_t *p = bytes;
    size_t have = 0;
    while (have < n) {
        const ssize_t got = read(fd, p + have, n - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys(err, "cannot read");
        if (got == 0) break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

int file_write(int fd, const void *bytes, size_t n, err_ctx *err)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        const ssize_t done = write(fd, p, n < INT_MAX / 2 ? n : INT_MAX / 2);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return err_sys(err, "cannot write");
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

int file_replace(const char *path, int mode, file_writer *fn, void *ctx, err_ctx *err)
{
    const size_t len = strlen(path);
    char *temp = mem_array(len + 8, 1);
    int rc;
    if (!temp) return err_set(err, ERR_NOMEM, "no memory for its name");
    snprintf(temp, len + 8, "%s.XXXXXX", path);
    const int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        rc = err_sys(err, "cannot write");
    } else {
        if (mode > 0) (void)!fchmod(fd, (mode_t)mode);
        rc = fn(ctx, fd, err);
        if (rc == 0 && fsync(fd) < 0) rc = err_sys(err, "cannot write");
        if (close(fd) < 0 && rc == 0) rc = err_sys(err, "cannot write");
        if (rc == 0 && rename(temp, path) < 0) rc = err_sys(err, "cannot write");
        if (rc < 0) unlink(temp);
    }
    mem_free(temp);
    return rc;
}
