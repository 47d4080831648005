/* output.c - the one loop around write().
 *
 * Invariant: a signal never goes unseen while a write waits. Whether there is room is asked first,
 * with a time limit, because a signal that comes just before a write that blocks would not end it;
 * and no more is written at once than a pipe with room takes without blocking. */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "cli/interrupt.h"

enum { LOOK_MS = 100 };                  /* how late a signal that came in between may be seen */

/* 0 when there is room, or when write() will say better what is wrong. */
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
