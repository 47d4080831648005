/* available_memory.c - reads /proc and the files of control groups, of both versions.
 *
 * The page cache counts as available: it holds the mapped model, and the rest of it can be
 * reclaimed. Each group from the process's own up to the root may set a limit; the lowest
 * counts. */
#include "tiers/available_memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "tiers/machine.h"

/* ---- small files --------------------------------------------------------------------------- */

/* The number after "key " at the start of a line, or the first word if key is "". False if there is
 * none, or it is no number ("max"). */
static bool read_number(uint64_t *out, const char *path, const char *key)
{
    const size_t n_key = strlen(key);
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, key, n_key) == 0 && sscanf(line + n_key, "%" SCNu64, out) == 1;
    fclose(f);
    return found;
}

/* ---- control groups ------------------------------------------------------------------------ */

typedef struct cgroup_files {
    const char *mount, *limit, *used, *cache;    /* cache: a line of memory.stat */
} cgroup_files;
static const cgroup_files version1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                       "memory.usage_in_bytes", "total_cache " };
static const cgroup_files version2 = { "/sys/fs/cgroup", "memory.max", "memory.current", "file " };

static bool group_number(uint64_t *out, const char *root, const cgroup_files *v, const char *group,
                         const char *file, const char *key)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s%s%s/%s", root, v->mount, group, file);
    return n > 0 && n < (int)sizeof path && read_number(out, path, key);
}

/* Lowers *bytes to what this group leaves. */
static bool group_available(uint64_t *bytes, const char *root, const cgroup_files *v,
                            const char *group)
{
    uint64_t limit, used = 0, cache = 0;
    if (!group_number(&limit, root, v, group, v->limit, "")) return false;
    if (limit >= (uint64_t)1 << 60) return false;        /* version 1's way to say "none" */
    group_number(&used, root, v, group, v->used, "");
    group_number(&cache, root, v, group, "memory.stat", v->cache);
    used -= cache < used ? cache : used;
    const uint64_t left = limit > used ? limit - used : 0;
    if (left < *bytes) *bytes = left;
    return true;
}

/* This process's group and all above it. In a container the path may not exist; the root of the
 * mounted folder is then the container's own group. */
static bool groups_available(uint64_t *bytes, const char *root, const cgroup_files *v, char *group)
{
    bool any = false;
    for (;;) {
        char *cut = strrchr(group, '/');
        if (cut && cut[1] == '\0') *cut = '\0';          /* "/" is the root: "" */
        any |= group_available(bytes, root, v, group);
        if (!(cut = strrchr(group, '/'))) return any;
        *cut = '\0';
    }
}

bool available_memory_cgroup(uint64_t *bytes, const char *root)
{
    char path[PATH_MAX], line[PATH_MAX];
    uint64_t lowest = UINT64_MAX;
    bool any = false;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {           /* "4:memory:/a/b" or "0::/a/b" */
        char *kind = strchr(line, ':'), *group = kind ? strchr(kind + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (!strcmp(kind, ":")) any |= groups_available(&lowest, root, &version2, group);
        else if (strstr(kind, "memory")) any |= groups_available(&lowest, root, &version1, group);
    }
    if (f) fclose(f);
    *bytes = lowest;
    return any;
}

/* ---- all together -------------------------------------------------------------------------- */

int available_memory(uint64_t *bytes, const char **whose, err_ctx *err)
{
    uint64_t total, limit;
    int rc;

    *whose = "this machine";
    if ((rc = machine_ram(&total, bytes, err)) < 0) return rc;
    if (available_memory_cgroup(&limit, "") && limit < *bytes) {
        *bytes = limit;
        *whose = "this container";
    }
    return 0;
}

uint64_t resident_memory_bytes(void)
{
    uint64_t kb;
    return read_number(&kb, "/proc/self/smaps_rollup", "Rss:") ||
           read_number(&kb, "/proc/self/status", "VmRSS:") ? kb * 1024 : 0;
}

uint64_t peak_memory_bytes(void)
{
    struct rusage r;
    uint64_t kb;
    /* not ru_maxrss alone: that also counts the process that started us */
    if (read_number(&kb, "/proc/self/status", "VmHWM:")) return kb * 1024;
    return getrusage(RUSAGE_SELF, &r) == 0 ? (uint64_t)r.ru_maxrss * 1024 : 0;
}
