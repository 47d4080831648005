/* listen.c - socket, bind and listen, with a message that names the address. */
#include "cli/serve/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

static int fail_socket(int fd, const char *action, err_ctx *err)
{
    const int error = errno;
    if (fd >= 0) close(fd);
    return err_set(err, ERR_IO, "%s: %s", action, strerror(error));
}

int listen_tcp(int *out, int *port, const char *address, int port_wanted, err_ctx *err)
{
    union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; } a;
    socklen_t n = sizeof a;
    char action[96];
    memset(&a, 0, sizeof a);
    snprintf(action, sizeof action, "cannot listen on %s:%d", address, port_wanted);
    if (inet_pton(AF_INET, address, &a.v4.sin_addr) == 1) {
        a.v4.sin_family = AF_INET;
        a.v4.sin_port = htons((uint16_t)port_wanted);
        n = sizeof a.v4;
    } else if (inet_pton(AF_INET6, address, &a.v6.sin6_addr) == 1) {
        a.v6.sin6_family = AF_INET6;
        a.v6.sin6_port = htons((uint16_t)port_wanted);
        n = sizeof a.v6;
    } else {
        return err_set(err, ERR_RANGE, "%s: not an address such as 127.0.0.1 or ::1", action);
    }
    const int on = 1, fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, &a.any, n) != 0 || listen(fd, BACKLOG) != 0 || getsockname(fd, &a.any, &n) != 0)
        return fail_socket(fd, action, err);
    *port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    *out = fd;
    return 0;
}

/* True: a socket file on which no process listens. */
static bool is_stale(const struct sockaddr_un *a)
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    const bool refused = connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    return refused;
}

int listen_unix(int *out, const char *path, err_ctx *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char action[160];
    snprintf(action, sizeof action, "cannot listen on unix:%.120s", path);
    if (strlen(path) >= sizeof a.sun_path)
        return err_set(err, ERR_RANGE, "%s: longer than %zu bytes", action, sizeof a.sun_path - 1);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (is_stale(&a)) unlink(path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const mode_t before = umask(0177);
    const bool ok = fd >= 0 && bind(fd, (const struct sockaddr *)&a, sizeof a) == 0;
    umask(before);
    if (!ok || listen(fd, BACKLOG) != 0) return fail_socket(fd, action, err);
    *out = fd;
    return 0;
}
