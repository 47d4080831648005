/* bad_disk.c - the calls themselves, by the system's own numbers. */
#include "tests/bad_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

bad_disk disk = { .portion = 100 };

/* True: this call fails, with errno set. */
static bool disk_fails(int code)
{
    const int n = ++disk.n_call;
    if (disk.lazy && n % 2) {
        errno = EINTR;
        return true;
    }
    if (n != disk.fail_at) return false;
    errno = code;
    return true;
}

static size_t portion(size_t n) { return disk.lazy && n > disk.portion ? disk.portion : n; }

ssize_t read(int fd, void *p, size_t n)
{
    if (disk_fails(EIO)) return disk.cut ? 0 : -1;
    return syscall(SYS_read, fd, p, portion(n));
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    if (disk_fails(EIO)) return disk.cut ? 0 : -1;
    return syscall(SYS_pread64, fd, p, portion(n), at);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return disk_fails(ENOSPC) ? -1 : syscall(SYS_write, fd, p, portion(n));
}

int fsync(int fd)                        /* no need to wait for a real disk */
{
    (void)fd;
    disk.lazy = false;
    return disk_fails(EIO) ? -1 : 0;
}

int rename(const char *from, const char *to)
{
    return disk_fails(EXDEV) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
