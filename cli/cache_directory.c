/* cache_directory.c - folders below an existing home, and marks of printed notes. Failures are
 * silent. */
#include "cli/cache_directory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cache_directory_allows(const char *path)
{
    const char *home = getenv("HOME");
    size_t n = home ? strlen(home) : 0;
    struct stat st;
    while (n > 0 && home[n - 1] == '/') n--;
    if (n == 0 || strncmp(path, home, n) != 0 || path[n] != '/') return true;
    return stat(home, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Counts from the last folder that existed, also in a path such as "made/../old". */
size_t cache_directory_make(const char *path)
{
    char dst[PATH_MAX];
    size_t made = 0;
    if (!cache_directory_allows(path)) return 0;
    if ((size_t)snprintf(dst, sizeof dst, "%s", path) >= sizeof dst) return 0;
    for (char *p = strchr(dst + 1, '/'); p; p = strchr(p + 1, '/')) {
        if (p[-1] == '/') continue;
        *p = '\0';
        /* it exists, or opening the file fails too */
        if (mkdir(dst, 0700) != 0) made = 0;
        else if (made == 0) made = (size_t)(p - dst);
        *p = '/';
    }
    return made;
}

void cache_directory_unmake(const char *path, size_t made)
{
    char dst[PATH_MAX], *slash;
    if (made == 0 || (size_t)snprintf(dst, sizeof dst, "%s", path) >= sizeof dst) return;
    while ((slash = strrchr(dst, '/')) && (size_t)(slash - dst) >= made) {
        *slash = '\0';
        if (dst[strlen(dst) - 1] != '/' && rmdir(dst) != 0) return;
    }
}

/* The path of the mark for name. False: nothing can be stored. */
static bool mark_path(char *path, size_t cap, const char *name)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char machine[64] = "";
    int n = -1;
    gethostname(machine, sizeof machine - 1);    /* a home may be on many machines */
    if (strchr(machine, '/')) machine[0] = '\0';
    if (cache && cache[0] == '/')
        n = snprintf(path, cap, "%s/moe/said-%s-%s", cache, name, machine);
    else if (home && home[0] == '/')
        n = snprintf(path, cap, "%s/.cache/moe/said-%s-%s", home, name, machine);
    return n > 0 && (size_t)n < cap && cache_directory_allows(path);
}

bool cache_directory_first_time(const char *name)
{
    char path[PATH_MAX];
    if (!mark_path(path, sizeof path, name)) return true;
    if (access(path, F_OK) == 0) return false;
    cache_directory_make(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return true;
}

void cache_directory_forget(const char *name)
{
    char path[PATH_MAX];
    if (mark_path(path, sizeof path, name)) unlink(path);
}
