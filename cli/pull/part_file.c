/* part_file.c - FILE.part, FILE.part.from, and the rename to FILE. */
#include "cli/pull/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cache_directory.h"
#include "cli/output_file.h"

enum { HASH_BYTES = 1 << 20 };

/* ---- FILE.part.from ------------------------------------------------------------------------ */

/* The line is `12109566560 "etag"`; "-" stands for an unknown value. Other lines are ignored. */
static void read_from(part_file *f)
{
    char line[FETCH_ETAG_CAP + 40], *end;
    const int fd = open(f->from, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    f->total = FETCH_UNKNOWN;
    f->etag[0] = '\0';
    f->has_source = false;
    if (n <= 0) return;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    const unsigned long long total = strtoull(line, &end, 10);
    if (line[0] != '-' && (end == line || *end != ' ')) return;
    if (line[0] == '-') end = line + 1;
    else f->total = total;
    if (*end != ' ' || strlen(end + 1) >= sizeof f->etag) return;
    if (end[1] == '"') strcpy(f->etag, end + 1);
    f->has_source = true;
}

int part_file_set_source(part_file *f, uint64_t total, const char *etag, err_ctx *err)
{
    char line[FETCH_ETAG_CAP + 40], size[24] = "-";
    if (f->has_source && f->total == total && strcmp(f->etag, etag) == 0) return 0;
    if (total != FETCH_UNKNOWN) snprintf(size, sizeof size, "%llu", (unsigned long long)total);
    const int n = snprintf(line, sizeof line, "%s %s\n", size, *etag ? etag : "-");
    const int fd = open(f->from, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return err_sys(err, "cannot create %s", f->from);
    const bool ok = write(fd, line, (size_t)n) == n;
    if (close(fd) != 0 || !ok) return err_sys(err, "cannot write %s", f->from);
    f->total = total;
    snprintf(f->etag, sizeof f->etag, "%s", etag);
    f->has_source = true;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int hash_rest(part_file *f, progress_fn *watch, void *ctx, err_ctx *err)
{
    struct stat st;
    char *buffer;
    int rc = 0;
    if (fstat(f->fd, &st) != 0) return err_sys(err, "cannot stat %s", f->part);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_IO, "%s is not a regular file: remove it", f->part);
    if (st.st_size == 0) return 0;
    if (!(buffer = mem_alloc(HASH_BYTES))) return err_set(err, ERR_NOMEM, "out of memory");
    for (;;) {
        const ssize_t n = read(f->fd, buffer, HASH_BYTES);
        if (watch && !watch(ctx, (double)f->bytes, (double)st.st_size)) {
            rc = err_set(err, ERR_STOPPED, "interrupted");
            break;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) rc = err_sys(err, "cannot read %s", f->part);
        if (n <= 0) break;
        sha256_add(&f->sum, buffer, (size_t)n);
        f->bytes += (uint64_t)n;
    }
    mem_free(buffer);
    return rc;
}

/* Whether the path still names the open file. A process that held the lock before may have renamed
 * or removed it. */
static bool still_has_name(const part_file *f)
{
    struct stat opened, named;
    return fstat(f->fd, &opened) == 0 && stat(f->part, &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

int part_file_open(part_file *f, const char *final, progress_fn *watch, void *ctx, err_ctx *err)
{
    int rc;
    *f = (part_file){ .total = FETCH_UNKNOWN };
    sha256_init(&f->sum);
    snprintf(f->final, sizeof f->final, "%s", final);
    snprintf(f->part, sizeof f->part, "%s.part", f->final);
    snprintf(f->from, sizeof f->from, "%s.from", f->part);
    if ((rc = output_file_check_new(final, err)) < 0) return err_prefix(err, rc, "%s", final);
    f->made = cache_directory_make(final);
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (f->fd < 0)
        return err_sys(err, "cannot create %s (--dir chooses another folder)", f->part);
    f->is_open = true;
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return err_set(err, ERR_IO, "%s: another moe-run pull is writing it; wait for that one",
                       f->part);
    if (!still_has_name(f))
        return err_set(err, ERR_IO, "%s: another moe-run pull has just ended; start again",
                       f->part);
    read_from(f);
    return hash_rest(f, watch, ctx, err);
}

/* ---- bytes --------------------------------------------------------------------------------- */

int part_file_restart(part_file *f, err_ctx *err)
{
    if (ftruncate(f->fd, 0) != 0 || lseek(f->fd, 0, SEEK_SET) < 0)
        return err_sys(err, "cannot empty %s", f->part);
    f->bytes = 0;
    sha256_init(&f->sum);
    return 0;
}

int part_file_add(part_file *f, const void *data, size_t n, err_ctx *err)
{
    const char *p = data;
    while (n > 0) {
        const ssize_t put = write(f->fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return err_sys(err, "cannot write");
        sha256_add(&f->sum, p, (size_t)put);
        f->bytes += (uint64_t)put;
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

int part_file_finish(part_file *f, err_ctx *err)
{
    if (fsync(f->fd) != 0) return err_sys(err, "cannot write %s", f->part);
    if (output_file_move_new(f->part, f->final) != 0)
        return err_sys(err, "cannot rename %s", f->part);
    unlink(f->from);
    f->made = 0;
    f->is_open = false;
    close(f->fd);
    return 0;
}

void part_file_drop(part_file *f)
{
    if (!f->is_open) return;
    unlink(f->from);
    unlink(f->part);
    f->is_open = false;
    close(f->fd);
}

/* Checks the file, not f->bytes, which is 0 too if the .part was never read. */
static bool is_empty(const part_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && st.st_size == 0 && flock(f->fd, LOCK_EX | LOCK_NB) == 0 &&
           still_has_name(f);
}

void part_file_close(part_file *f)
{
    if (f->is_open && is_empty(f)) part_file_drop(f);
    if (f->is_open) close(f->fd);
    f->is_open = false;
    cache_directory_unmake(f->final, f->made);
    f->made = 0;
}

/* ---- sizes --------------------------------------------------------------------------------- */

uint64_t part_file_size(const char *final, bool *done)
{
    char part[PATH_MAX + 8];
    struct stat st;
    *done = stat(final, &st) == 0;
    if (*done) return (uint64_t)st.st_size;
    snprintf(part, sizeof part, "%s.part", final);
    return stat(part, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

int part_file_disk_free(uint64_t *left, const char *path, err_ctx *err)
{
    char folder[PATH_MAX];
    struct statvfs fs;
    snprintf(folder, sizeof folder, "%s", path);
    while (statvfs(folder, &fs) != 0) {          /* the nearest folder that exists */
        char *slash = strrchr(folder, '/');
        if (errno != ENOENT && errno != ENOTDIR) return err_sys(err, "cannot stat %s", folder);
        if (!slash) snprintf(folder, sizeof folder, ".");
        else if (slash == folder) folder[1] = '\0';
        else *slash = '\0';
    }
    *left = (uint64_t)fs.f_bavail * fs.f_frsize;
    return 0;
}
