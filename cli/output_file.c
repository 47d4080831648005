/* output_file.c - output that is complete or absent: after a failure between open and finish,
 * output_file_drop leaves the older file. */
#include "cli/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/console.h"
#include "cli/output.h"
#include "loader/file_io.h"

static const char *volatile unfinished;  /* .part of the open file; for output_file_abandon */

void output_file_abandon(void)
{
    if (unfinished) unlink(unfinished);
}

void output_file_drop(output_file *s)
{
    if (s->staged) unfinished = NULL;
    if (s->is_open && s->fd != STDOUT_FILENO) close(s->fd);
    if (s->staged) unlink(s->part);
    s->is_open = s->staged = false;
}

static const char *folder_of(char *dst, size_t cap, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) snprintf(dst, cap, ".");
    else snprintf(dst, cap, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return dst;
}

/* rc of an output_* call that failed, with its message. */
static int explain(int rc, const char *what, const char *which, err_ctx *err)
{
    if (rc == ERR_STOPPED) return err_set(err, rc, "interrupted");
    return err_sys(err, "%s%s%s", what, *which ? " " : "", which);
}

static int open_path(output_file *s, const char *path, const char *what, const char *which,
                     err_ctx *err)
{
    const int fd = output_open(path);
    if (fd < 0) return explain(fd, what, which, err);
    s->fd = fd;
    s->is_open = true;
    return 0;
}

int output_file_open(output_file *s, const char *path, err_ctx *err)
{
    struct stat st;
    int rc;

    if (output_file_is_stdout(path)) {
        s->fd = STDOUT_FILENO;
        s->is_open = true;
        return 0;
    }
    if (stat(path, &st) != 0) {          /* a new file, or an error that open() reports */
        if ((size_t)snprintf(s->final, sizeof s->final, "%s", path) >= sizeof s->final)
            return err_set(err, ERR_RANGE, "a path of %zu bytes is too long", strlen(path));
    } else if (!S_ISREG(st.st_mode)) {
        return open_path(s, path, "cannot write", "", err);
    } else if (!realpath(path, s->final)) {      /* a link stays; its target is replaced */
        return err_sys(err, "cannot resolve");
    }
    snprintf(s->part, sizeof s->part, "%s.part", s->final);
    if ((rc = open_path(s, s->part, "cannot create", s->part, err)) < 0) return rc;
    s->staged = true;
    unfinished = s->part;
    return 0;
}

/* ---- new files ------------------------------------------------------------------------------- */

static int check_room(const char *path, uint64_t bytes, err_ctx *err)
{
    char folder[PATH_MAX], need[32], room[32];
    struct statvfs fs;

    if (statvfs(folder_of(folder, sizeof folder, path), &fs) < 0)
        return err_sys(err, "folder %s", folder);
    const uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (left >= bytes) return 0;
    return err_set(err, ERR_IO, "needs %s, the disk of %s has %s left",
                   text_bytes(need, sizeof need, bytes), folder,
                   text_bytes(room, sizeof room, left));
}

/* Reserves the space, if the file system can, so that a full disk fails early. */
static int reserve(int fd, uint64_t bytes, err_ctx *err)
{
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0) return 0;
    if (errno != ENOSPC && errno != EFBIG && errno != EDQUOT) return 0;
    return err_sys(err, "cannot reserve %llu bytes", (unsigned long long)bytes);
}

int output_file_check_new(const char *path, err_ctx *err)
{
    struct stat st;
    if (lstat(path, &st) != 0) return 0;
    return err_set(err, ERR_IO, "is there already, and nothing is overwritten: remove it, or "
                   "choose another name");
}

int output_file_open_new(output_file *s, const char *path, uint64_t bytes, err_ctx *err)
{
    int rc = output_file_check_new(path, err);
    if (rc < 0) return rc;
    *s = (output_file){ .fd = -1, .is_new = true };
    if ((size_t)snprintf(s->final, sizeof s->final, "%s", path) >= sizeof s->final)
        return err_set(err, ERR_RANGE, "a path of %zu bytes is too long", strlen(path));
    if ((rc = check_room(path, bytes, err)) < 0) return rc;
    snprintf(s->part, sizeof s->part, "%s.part", s->final);
    const int fd = open(s->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return err_set(err, ERR_IO, "%s is there: another program is writing it, or one was "
                       "killed; then remove it", s->part);
    if (fd < 0) return err_sys(err, "cannot create %s", s->part);
    s->fd = fd;
    s->is_open = s->staged = true;
    unfinished = s->part;
    return reserve(fd, bytes, err);
}

/* ---- writing -------------------------------------------------------------------------------- */

int output_file_write(output_file *s, const void *data, size_t bytes, err_ctx *err)
{
    if (s->is_new) return file_write(s->fd, data, bytes, err);
    const int rc = output_write(s->fd, data, bytes);
    return rc < 0 ? explain(rc, "cannot write", "", err) : 0;
}

/* File systems without RENAME_NOREPLACE leave a gap between look and rename. */
int output_file_move_new(const char *from, const char *path)
{
    struct stat st;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, path, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (lstat(path, &st) != 0) return rename(from, path);
    errno = EEXIST;
    return -1;
}

int output_file_finish(output_file *s, err_ctx *err)
{
    if (s->is_new && fsync(s->fd) != 0) return err_sys(err, "cannot write");
    s->is_open = false;
    if (s->fd != STDOUT_FILENO && close(s->fd) != 0) return err_sys(err, "cannot write");
    if (s->staged && (s->is_new ? output_file_move_new(s->part, s->final)
                                : rename(s->part, s->final)) != 0)
        return err_sys(err, "cannot rename %s", s->part);
    if (s->staged) unfinished = NULL;
    s->staged = false;
    return 0;
}

int output_file_text(const char *path, const textbuf *b, err_ctx *err)
{
    output_file to = { 0 };
    int rc =
        b->failed ? err_set(err, ERR_NOMEM, "out of memory") : output_file_open(&to, path, err);
    if (rc == 0) rc = output_file_write(&to, b->ptr, b->len, err);
    if (rc == 0) rc = output_file_finish(&to, err);
    output_file_drop(&to);
    return rc;
}

int output_file_json(const char *path, const json_t *root, err_ctx *err)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    textbuf b = { .failed = !text };
    if (text) textbuf_str(&b, text);
    textbuf_str(&b, "\n");
    free(text);
    const int rc = output_file_text(path, &b, err);
    textbuf_free(&b);
    return rc;
}

int output_file_check(const char *path)
{
    char folder[PATH_MAX];
    struct stat st;
    err_ctx err;
    if (!path || !*path || output_file_is_stdout(path)) return 0;
    const bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) errno = EISDIR;
    else if (there && !S_ISREG(st.st_mode)) return 0;
    else if (access(folder_of(folder, sizeof folder, path), W_OK) == 0) return 0;
    err_sys(&err, "cannot write");
    return console_fail(path, &err);
}

bool output_file_is_stdout(const char *path) { return path && strcmp(path, "-") == 0; }

const char *output_file_name(const char *path)
{
    return output_file_is_stdout(path) ? "standard output" : path;
}
