/* sink.c - output that is complete or absent.
 *
 * Whatever fails between open and finish, sink_drop leaves only what was there before. The caller
 * decides what is written, and in which byte order. */
#include "cli/sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/output.h"

static const char *volatile unfinished;  /* the part of the sink that is open; for sink_abandon */

void sink_abandon(void)
{
    if (unfinished) unlink(unfinished);
}

void sink_drop(sink *s)
{
    if (s->staged) unfinished = NULL;
    if (s->is_open && s->fd != STDOUT_FILENO) close(s->fd);
    if (s->staged) unlink(s->part);
    s->is_open = s->staged = false;
}

/* rc of an output_* call that failed, with its message. */
static int explain(int rc, const char *what, const char *which, err_ctx *err)
{
    if (rc == ERR_STOPPED) return err_set(err, rc, "interrupted");
    return err_sys(err, "%s%s%s", what, *which ? " " : "", which);
}

static int open_path(sink *s, const char *path, const char *what, const char *which, err_ctx *err)
{
    const int fd = output_open(path);
    if (fd < 0) return explain(fd, what, which, err);
    s->fd = fd;
    s->is_open = true;
    return 0;
}

int sink_open(sink *s, const char *path, err_ctx *err)
{
    struct stat st;
    int rc;

    if (strcmp(path, "-") == 0) {
        s->fd = STDOUT_FILENO;
        s->is_open = true;
        return 0;
    }
    if (stat(path, &st) != 0) {          /* a new file, or something that open() will explain */
        if ((size_t)snprintf(s->final, sizeof s->final, "%s", path) >= sizeof s->final)
            return err_set(err, ERR_RANGE, "a path of %zu bytes is too long", strlen(path));
    } else if (!S_ISREG(st.st_mode)) {
        return open_path(s, path, "cannot write", "", err);
    } else if (!realpath(path, s->final)) {      /* through a link, so that the link stays */
        return err_sys(err, "cannot resolve");
    }
    snprintf(s->part, sizeof s->part, "%s.part", s->final);
    if ((rc = open_path(s, s->part, "cannot create", s->part, err)) < 0) return rc;
    s->staged = true;
    unfinished = s->part;
    return 0;
}

int sink_write(sink *s, const void *data, size_t bytes, err_ctx *err)
{
    const int rc = output_write(s->fd, data, bytes);
    return rc < 0 ? explain(rc, "cannot write", "", err) : 0;
}

int sink_finish(sink *s, err_ctx *err)
{
    s->is_open = false;
    if (s->fd != STDOUT_FILENO && close(s->fd) != 0) return err_sys(err, "cannot write");
    if (s->staged && rename(s->part, s->final) != 0)
        return err_sys(err, "cannot rename %s", s->part);
    if (s->staged) unfinished = NULL;
    s->staged = false;
    return 0;
}

const char *sink_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard output" : path;
}
