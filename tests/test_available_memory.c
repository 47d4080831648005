/* test_available_memory.c - the limit that control groups set, on made-up file trees. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"
#include "tiers/available_memory.h"
#include "tiers/page_advice.h"

static char root[300];

/* Writes text to root/path; folders are made on the way. NULL removes the file. */
static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    if (!text) {
        unlink(full);
        return;
    }
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", full)) return;
    fputs(text, f);
    fclose(f);
}

#define V2 "sys/fs/cgroup"
#define V1 "sys/fs/cgroup/memory"

static const struct room_row {
    struct { const char *path, *text; } files[8];
    bool limited;
    uint64_t room;
    const char *why;
} rows[] = {
    { { { NULL, NULL } }, false, 0, "no /proc/self/cgroup at all" },
    { { { "proc/self/cgroup", "0::/\n" } }, false, 0, "version 2, no limit file: the root" },
    { { { "proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "max\n" },
        { V2 "/memory.current", "5\n" } }, false, 0, "version 2, no limit" },
    { { { "proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "1000\n" },
        { V2 "/memory.current", "600\n" }, { V2 "/memory.stat", "anon 100\nfile 500\nslab 1\n" } },
      true, 900, "version 2: the page cache is room" },
    { { { "proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "1000\n" },
        { V2 "/memory.current", "1200\n" } }, true, 0, "over the limit already" },
    { { { "proc/self/cgroup", "0::/\n" }, { V2 "/memory.max", "1000\n" } }, true, 1000,
      "nothing known about use" },
    { { { "proc/self/cgroup", "0::/a/b\n" }, { V2 "/a/b/memory.max", "900\n" },
        { V2 "/a/memory.max", "700\n" }, { V2 "/memory.max", "800\n" } }, true, 700,
      "a group above ours is tighter" },
    { { { "proc/self/cgroup", "0::/a/b\n" }, { V2 "/a/b/memory.max", "900\n" },
        { V2 "/a/b/memory.current", "850\n" }, { V2 "/a/memory.max", "700\n" } }, true, 50,
      "ours is nearly full" },
    { { { "proc/self/cgroup", "0::/../elsewhere\n" }, { V2 "/memory.max", "300\n" } }, true, 300,
      "seen from inside a container" },
    { { { "proc/self/cgroup", "3:cpu:/x\n4:memory:/pod/c1\n0::/\n" },
        { V1 "/pod/c1/memory.limit_in_bytes", "5000\n" },
        { V1 "/pod/c1/memory.usage_in_bytes", "3000\n" },
        { V1 "/pod/c1/memory.stat", "cache 1\ntotal_cache 1000\n" } }, true, 3000, "version 1" },
    { { { "proc/self/cgroup", "4:memory:/pod\n" }, { V1 "/memory.limit_in_bytes", "4000\n" } },
      true, 4000, "version 1 in a container: only the root is mounted" },
    { { { "proc/self/cgroup", "4:memory:/\n" },
        { V1 "/memory.limit_in_bytes", "9223372036854771712\n" } }, false, 0,
      "version 1 without a limit" },
    { { { "proc/self/cgroup", "nonsense\n\n:::\n" } }, false, 0, "lines that mean nothing" },
};

/* Pages of a file that were read leave memory, and their contents stay. */
static void test_forget(void)
{
    enum { BYTES = 8 << 20, EDGE = 100 };
    char path[] = "/tmp/moe_pages_XXXXXX";
    uint8_t *data = mem_alloc(BYTES);
    const int fd = mkstemp(path);
    if (!CHECK(fd >= 0 && data)) return;
    unlink(path);
    for (int i = 0; i < BYTES; i++) data[i] = (uint8_t)(i / 4096 + i);
    CHECK(write(fd, data, BYTES) == BYTES);
    uint8_t *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (CHECK(at != MAP_FAILED)) {
        pages_few(at, BYTES);
        CHECK(memcmp(at, data, BYTES) == 0);
        const uint64_t held = resident_memory_bytes();
        pages_forget(at + EDGE, BYTES - 2 * EDGE);       /* the first and the last page stay */
        const uint64_t left = resident_memory_bytes();
        CHECK_MSG(left + BYTES / 2 < held, "%llu of %llu bytes are left", (unsigned long long)left,
                  (unsigned long long)held);
        CHECK(memcmp(at, data, BYTES) == 0);
        pages_forget(at + 1, 10);        /* not one page */
        munmap(at, BYTES);
    }
    close(fd);
    mem_free(data);
}

/* To the page, unlike the kernel's own sum. */
static void test_counted(void)
{
    enum { PAGES = 7 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = PAGES * page;
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(at != MAP_FAILED)) return;
    (void)resident_memory_bytes();       /* its own buffers */
    const uint64_t before = resident_memory_bytes();
    memset(at, 1, bytes);
    const uint64_t after = resident_memory_bytes();
    CHECK_MSG(before > 100000 && after >= before + bytes, "%llu bytes, then %llu",
              (unsigned long long)before, (unsigned long long)after);
    munmap(at, bytes);
}

int main(int argc, char **argv)
{
    test_begin("memory_room", argc, argv);
    if (!CHECK(mkdtemp(test_temp(root, sizeof root)) != NULL)) return test_end();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct room_row *r = &rows[i];
        uint64_t room = 1;
        for (int k = 0; k < 8 && r->files[k].path; k++) put(r->files[k].path, r->files[k].text);
        const bool limited = available_memory_cgroup(&room, root);
        CHECK_MSG(limited == r->limited, "%s: limited %d", r->why, limited);
        CHECK_MSG(!r->limited || room == r->room, "%s: %llu, expected %llu", r->why,
                  (unsigned long long)room, (unsigned long long)r->room);
        for (int k = 0; k < 8 && r->files[k].path; k++) put(r->files[k].path, NULL);
    }
    const uint64_t now = resident_memory_bytes(), peak = peak_memory_bytes();    /* in that order */
    CHECK_MSG(now > 100000 && now <= peak + (1 << 20), "resident memory %llu", (unsigned long long)now);
    test_forget();
    test_counted();
    CHECK_MSG(peak > 100000 && peak < (uint64_t)1 << 40, "peak memory %llu",
              (unsigned long long)peak);

    test_remove(root);
    return test_end();
}
