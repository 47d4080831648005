/* output.c - the loop around write().
 *
 * Invariant: no signal is missed while a write waits. poll() with a limit comes first, because a
 * signal just before a blocking write would not end it. Each write is at most PIPE_BUF bytes,
 * which a pipe with room takes without blocking. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "cli/interrupt.h"

enum { LOOK_MS = 100 };                  /* until a signal before poll() is noticed */

/* 0 if there is room, or if write() will report an error. */
static int wait_for_room(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    for (;;) {
        const bool stop = interrupted();
        const int n = poll(&p, 1, stop ? 0 : LOOK_MS);
        if (n > 0 || (n < 0 && errno != EINTR)) return 0;
        if (!stop) continue;
        errno = EINTR;
        return ERR_STOPPED;
    }
}

int output_write(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        if (wait_for_room(fd) < 0) return ERR_STOPPED;
        const ssize_t done = write(fd, p, n < PIPE_BUF ? n : PIPE_BUF);
        if (done < 0 && errno == EINTR) {
            if (interrupted()) return ERR_STOPPED;
            continue;
        }
        if (done < 0) return ERR_IO;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

int output_open(const char *path)
{
    int fd;
    do fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR && !interrupted());
    if (fd >= 0) return fd;
    return errno == EINTR ? ERR_STOPPED : ERR_IO;
}
