/* test_available_memory.c - the limit that control groups set, on made-up file trees. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/case_file.h"
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

/* Writes the files of "2/NAME=TEXT;1/NAME=TEXT", or removes them. */
static void put_all(const char *files, bool remove)
{
    char copy[400], path[200];
    char *next = strcpy(copy, files);
    for (char *file; next && *next && (file = strsep(&next, ";"));) {
        char *text = strchr(file, '=');
        *text++ = '\0';
        snprintf(path, sizeof path, "sys/fs/cgroup%s%s", file[0] == '1' ? "/memory" : "", file + 1);
        put(path, remove ? NULL : text);
    }
}

static void test_room(void)
{
    static case_rows rows;
    (void)case_rows_read(&rows, "available_memory.txt");
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i], got[32];
        uint64_t room = 1;
        put("proc/self/cgroup", cells[1][0] ? cells[1] : NULL);
        put_all(cells[2], false);
        const bool limited = available_memory_cgroup(&room, root);
        snprintf(got, sizeof got, limited ? "%llu" : "none", (unsigned long long)room);
        CHECK_MSG(!strcmp(got, cells[0]), "%s: %s, expected %s", cells[3], got, cells[0]);
        put_all(cells[2], true);
    }
    case_rows_free(&rows);
}

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
    test_room();
    const uint64_t now = resident_memory_bytes(), peak = peak_memory_bytes();    /* in that order */
    CHECK_MSG(now > 100000 && now <= peak + (1 << 20), "resident memory %llu",
              (unsigned long long)now);
    test_forget();
    test_counted();
    CHECK_MSG(peak > 100000 && peak < (uint64_t)1 << 40, "peak memory %llu",
              (unsigned long long)peak);

    test_remove(root);
    return test_end();
}
